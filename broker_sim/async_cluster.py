"""A name server and some brokers on one event loop, from which all of it is called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from string import ascii_lowercase

from broker_sim.broker import Broker
from broker_sim.faults import FaultScript
from broker_sim.layout import UNKNOWN_HOST
from broker_sim.nameserver import NameServer
from broker_sim.real_clock import RealClock
from broker_sim.security import AccessControl, Guarded, User
from broker_sim.server import Endpoint, EndpointServer
from broker_sim.settings import BrokerSettings
from broker_sim.tls import PLAIN, ServerTls
from pyspark_rocketmq.clock import Clock

_MOST_BROKERS = len(ascii_lowercase)


class AsyncCluster:
    """A cluster for use on one event loop."""

    def __init__(
        self,
        *,
        brokers: int = 1,
        settings: BrokerSettings | None = None,
        clock: Clock | None = None,
        users: Iterable[User] = (),
        tls: ServerTls = PLAIN,
    ) -> None:
        """Prepare a cluster; the arguments are those of :class:`broker_sim.cluster.SimCluster`."""
        if not 1 <= brokers <= _MOST_BROKERS:
            raise ValueError(f"A cluster has 1 to {_MOST_BROKERS} brokers, not {brokers}.")
        self.clock = clock or RealClock()
        self.faults = FaultScript()
        settings = settings or BrokerSettings()
        served = tuple(users)
        self.name_server = NameServer(mirror_header_form=settings.mirror_header_form)
        self.brokers: Mapping[str, Broker] = {
            f"broker-{letter}": Broker(f"broker-{letter}", self.clock, settings)
            for letter in ascii_lowercase[:brokers]
        }
        self.name_server_host = UNKNOWN_HOST
        self._name_server_server = EndpointServer(self.name_server, self.clock, self.faults, tls=tls)
        self._servers = {
            name: EndpointServer(_guarded(broker, settings, served), self.clock, self.faults, tls=tls)
            for name, broker in self.brokers.items()
        }

    async def start(self, port: int = 0) -> None:
        """Start everything; ``port`` is the name server's, the brokers take free ones."""
        self.name_server_host = await self._name_server_server.start(port)
        for name in self.brokers:
            await self.start_broker(name)

    async def stop(self) -> None:
        """Stop everything; messages stay."""
        for name in self.brokers:
            await self.stop_broker(name)
        await self._name_server_server.stop()

    async def start_broker(self, name: str) -> None:
        """Listen, on the former port if there was one, and register at the name server."""
        broker = self._broker(name)
        host = await self._servers[name].start(broker.state.host.port)
        broker.listening_at(host)
        self.name_server.register(name, host, broker.state.topics)

    async def stop_broker(self, name: str) -> None:
        """Leave the name server, close listener and connections, lose locks and memberships."""
        broker = self._broker(name)
        self.name_server.unregister(name)
        await self._servers[name].stop()
        broker.restarted()

    def refuse_connections(self, name: str) -> None:
        """Let nobody new connect to a broker; it stays in the routes, and its connections go on."""
        self._broker(name)
        self._servers[name].refuse()

    async def accept_connections(self, name: str) -> None:
        """End :meth:`refuse_connections`."""
        self._broker(name)
        await self._servers[name].listen()

    def look_at_clock(self) -> None:
        """Do on every server what is due; needed only after a fake clock was moved."""
        for server in (self._name_server_server, *self._servers.values()):
            server.look_at_clock()

    def _broker(self, name: str) -> Broker:
        try:
            return self.brokers[name]
        except KeyError:
            raise ValueError(f"There is no {name!r}; the brokers are {', '.join(self.brokers)}.") from None


def _guarded(broker: Broker, settings: BrokerSettings, users: tuple[User, ...]) -> Endpoint:
    """The broker as it is served: with users, only to them."""
    if not users:
        return broker
    return Guarded(broker, AccessControl(users), mirror_header_form=settings.mirror_header_form)
