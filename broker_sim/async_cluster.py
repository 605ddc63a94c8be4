"""A name server and some brokers on one event loop, from which all of it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from string import ascii_lowercase

from broker_sim.broker import Broker
from broker_sim.faults import FaultScript
from broker_sim.layout import UNKNOWN_HOST
from broker_sim.machines import BrokerMachines
from broker_sim.nameserver import NameServer
from broker_sim.real_clock import RealClock
from broker_sim.security import AccessControl, Guarded, User
from broker_sim.server import Endpoint, EndpointServer
from broker_sim.settings import BrokerSettings
from broker_sim.tls import PLAIN, ServerTls
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.model import Message, MessageQueue

_MOST_BROKERS = len(ascii_lowercase)


class AsyncCluster:
    """A cluster for use on one event loop."""

    def __init__(
        self,
        *,
        brokers: int = 1,
        replicas: int = 0,
        settings: BrokerSettings | None = None,
        clock: Clock | None = None,
        users: Iterable[User] = (),
        tls: ServerTls = PLAIN,
    ) -> None:
        """Prepare a cluster; the arguments are those of :class:`broker_sim.cluster.SimCluster`."""
        if not 1 <= brokers <= _MOST_BROKERS:
            raise ValueError(f"A cluster has 1 to {_MOST_BROKERS} brokers, not {brokers}.")
        if replicas < 0:
            raise ValueError(f"A broker cannot have {replicas} replicas.")
        self.clock = clock or RealClock()
        self.faults = FaultScript()
        settings = settings or BrokerSettings()
        served = tuple(users)
        access = AccessControl(served) if served else None
        self.name_server = NameServer(mirror_header_form=settings.mirror_header_form)
        self.name_server_host = UNKNOWN_HOST
        self._name_server_server = EndpointServer(self.name_server, self.clock, self.faults, tls=tls)
        self._servers = [self._name_server_server]

        def serve(endpoint: Endpoint, on_change: Callable[[], None]) -> EndpointServer:
            if access is not None:
                endpoint = Guarded(endpoint, access, mirror_header_form=settings.mirror_header_form)
            server = EndpointServer(endpoint, self.clock, self.faults, tls=tls, on_change=on_change)
            self._servers.append(server)
            return server

        self._machines = {
            f"broker-{letter}": BrokerMachines(
                f"broker-{letter}",
                replicas=replicas,
                clock=self.clock,
                settings=settings,
                name_server=self.name_server,
                serve=serve,
            )
            for letter in ascii_lowercase[:brokers]
        }

    @property
    def brokers(self) -> dict[str, Broker]:
        """The master of each broker name."""
        return {name: machines.master for name, machines in self._machines.items()}

    def machines(self, name: str) -> BrokerMachines:
        """All machines of a broker name.

        Raises:
            ValueError: If there is no such broker.
        """
        try:
            return self._machines[name]
        except KeyError:
            raise ValueError(f"There is no {name!r}; the brokers are {', '.join(self._machines)}.") from None

    async def start(self, port: int = 0) -> None:
        """Start everything; ``port`` is the name server's, the brokers take free ones."""
        self.name_server_host = await self._name_server_server.start(port)
        for machines in self._machines.values():
            await machines.start_all()

    async def stop(self) -> None:
        """Stop everything; messages stay."""
        for machines in self._machines.values():
            await machines.stop_all()
        await self._name_server_server.stop()
        for server in self._servers:
            server.release_port()

    def put(self, queue: MessageQueue, messages: Sequence[Message]) -> int:
        """Store messages as if a producer had sent them one by one; the first one's queue offset."""
        machines = self.machines(queue.broker_name)
        queue_offset = machines.master.put(queue, messages)
        machines.messages_were_put()
        return queue_offset

    def held_pulls(self) -> int:
        """Pulls that wait at all machines."""
        return sum(machines.held_pulls() for machines in self._machines.values())

    def look_at_clock(self) -> None:
        """Do on every server what is due; needed only after a fake clock was moved."""
        self._name_server_server.look_at_clock()
        for machines in self._machines.values():
            machines.look_at_clock()
