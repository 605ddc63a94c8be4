"""A name server and some brokers together, on an event loop or a thread of their own.

with SimCluster(brokers=2) as cluster:
    cluster.create_topic("orders", queues=4)
    client = connect(cluster.name_servers)
    cluster.stop_broker("broker-a")
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from string import ascii_lowercase
from types import TracebackType
from typing import Any, Self, TypeVar

from broker_sim.broker import Broker
from broker_sim.clouds import CloudRules, InCloud
from broker_sim.connection import PLAIN, ServerTls
from broker_sim.faults import FaultScript
from broker_sim.layout import UNKNOWN_HOST
from broker_sim.machines import BrokerMachines
from broker_sim.nameserver import MASTER_ID, NameServer
from broker_sim.security import AccessControl, Guarded, User
from broker_sim.server import Endpoint, EndpointServer
from broker_sim.settings import BrokerSettings
from broker_sim.topic_requests import bounds_of
from broker_sim.topics import PERM_READ_WRITE, Topic
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.model import BrokerAddress, Message, MessageQueue, QueueBounds

_T = TypeVar("_T")

_MOST_BROKERS = len(ascii_lowercase)
_LONGEST_CALL_S = 30.0


class RealClock:
    """A ``Clock`` that reads the operating system."""

    def now_s(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic_s(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()


class AsyncCluster:
    """A name server and brokers with their replicas, for use on one event loop."""

    def __init__(
        self,
        *,
        brokers: int = 1,
        replicas: int = 0,
        settings: BrokerSettings | None = None,
        clock: Clock | None = None,
        users: Iterable[User] = (),
        tls: ServerTls = PLAIN,
        cloud: CloudRules | None = None,
    ) -> None:
        """Prepare a cluster of ``brokers`` brokers with ``replicas`` replicas each.

        The arguments are those of :class:`broker_sim.cluster.SimCluster`.
        """
        if not 1 <= brokers <= _MOST_BROKERS:
            raise ValueError(f"A cluster has 1 to {_MOST_BROKERS} brokers, not {brokers}.")
        if replicas < 0:
            raise ValueError(f"A broker cannot have {replicas} replicas.")
        self.clock = clock or RealClock()
        self.faults = FaultScript()
        settings = settings or BrokerSettings()
        served = tuple(users)
        access = AccessControl(served) if served else None
        rules = cloud or CloudRules()
        self.name_server = NameServer(
            mirror_header_form=settings.mirror_header_form, advertised=rules.advertised
        )
        self.name_server_host = UNKNOWN_HOST

        def in_cloud(endpoint: Endpoint) -> Endpoint:
            if cloud is None:
                return endpoint
            return InCloud(endpoint, rules, mirror_header_form=settings.mirror_header_form)

        self._name_server_server = EndpointServer(
            in_cloud(self.name_server), self.clock, self.faults, tls=tls
        )
        self._servers = [self._name_server_server]

        def serve(endpoint: Endpoint, on_change: Callable[[], None]) -> EndpointServer:
            endpoint = in_cloud(endpoint)
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
        """The present master of each broker, by broker name."""
        return {name: machines.master for name, machines in self._machines.items()}

    def machines(self, name: str) -> BrokerMachines:
        """Return the machines of a broker name: its master and replicas.

        Raises:
            ValueError: If there is no such broker.
        """
        try:
            return self._machines[name]
        except KeyError:
            raise ValueError(f"There is no {name!r}; the brokers are {', '.join(self._machines)}.") from None

    async def start(self, port: int = 0) -> None:
        """Start everything; ``port`` is for the name server, and the brokers use free ports."""
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
        """Store messages as if a producer had sent them one by one; return the first one's queue offset."""
        machines = self.machines(queue.broker_name)
        queue_offset = machines.master.put(queue, messages)
        machines.messages_were_put()
        return queue_offset

    def held_pulls(self) -> int:
        """Return the number of pulls that wait for messages at all brokers and replicas."""
        return sum(machines.held_pulls() for machines in self._machines.values())

    def look_at_clock(self) -> None:
        """Do the work whose time has come on every server; needed only after a fake clock was moved."""
        self._name_server_server.look_at_clock()
        for machines in self._machines.values():
            machines.look_at_clock()


class SimCluster:
    """A cluster on its own thread; every method may be called from any other thread.

    Data survive ``stop_broker`` and ``start_broker``; locks, memberships and held pulls do not, as in a real
    broker. With a fake clock, call :meth:`look_at_clock` after moving it.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        replicas: int = 0,
        queues: int = 8,
        retention_bytes: int | None = None,
        settings: BrokerSettings | None = None,
        clock: Clock | None = None,
        users: Iterable[User] = (),
        tls: ServerTls = PLAIN,
        cloud: CloudRules | None = None,
    ) -> None:
        """Prepare a cluster; it runs inside ``with`` or between ``start`` and ``stop``.

        Args:
            brokers: number of brokers, which are called broker-a, broker-b and so on.
            replicas: machines that follow each broker, with broker ids 1 and up.
            queues: queues of TBW102, the most an automatically created topic gets per broker.
            retention_bytes: commit log bytes that each broker keeps; None keeps all.
            settings: all other settings; if given, ``queues`` and ``retention_bytes`` are ignored.
            clock: for store timestamps, locks and held pulls.
            users: if given, brokers serve only these users, according to their policies; the name server
                serves everybody.
            tls: certificate and rules of all servers.
            cloud: rules of a managed cluster.
        """
        self._settings = settings or BrokerSettings(default_queues=queues, retention_bytes=retention_bytes)
        self._cluster = AsyncCluster(
            brokers=brokers,
            replicas=replicas,
            settings=self._settings,
            clock=clock,
            users=users,
            tls=tls,
            cloud=cloud,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="broker-sim", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the thread and everything on it."""
        self._thread.start()
        self._await(self._cluster.start)

    def stop(self) -> None:
        """Stop everything and end the thread; the cluster cannot be started again."""
        self._await(self._cluster.stop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LONGEST_CALL_S)

    @property
    def name_servers(self) -> str:
        """``host:port`` of the name server."""
        return str(self._cluster.name_server_host)

    @property
    def broker_addresses(self) -> dict[str, BrokerAddress]:
        """Broker name → ``host:port``; a stopped broker keeps its address."""
        return {name: BrokerAddress(str(broker.state.host)) for name, broker in self._cluster.brokers.items()}

    @property
    def faults(self) -> FaultScript:
        """The script of failures."""
        return self._cluster.faults

    def stop_broker(self, name: str, broker_id: int = MASTER_ID) -> None:
        """Close the listener and connections of a broker or replica; it leaves the routes, its data stay."""
        self._await(lambda: self._cluster.machines(name).stop(broker_id))

    def start_broker(self, name: str, broker_id: int = MASTER_ID) -> None:
        """Start a stopped broker or replica on its former port."""
        self._await(lambda: self._cluster.machines(name).start(broker_id))

    def restart_name_server(self) -> None:
        """Make the name server forget all brokers until :meth:`register_brokers`."""
        self.call(self._cluster.name_server.restart)

    def register_brokers(self) -> None:
        """Register again the brokers that the name server forgot in :meth:`restart_name_server`."""
        self.call(self._cluster.name_server.register_forgotten)

    def refuse_connections(self, name: str) -> None:
        """Refuse new connections to a broker; it stays in the routes and keeps its connections."""
        self.call(lambda: self._cluster.machines(name).refuse_connections())

    def accept_connections(self, name: str) -> None:
        """Accept new connections to a broker again, after :meth:`refuse_connections`."""
        self.call(lambda: self._cluster.machines(name).accept_connections())

    def replica_address(self, name: str, broker_id: int = 1) -> BrokerAddress:
        """Return ``host:port`` of a replica."""
        return BrokerAddress(str(self._cluster.machines(name).host(broker_id)))

    def set_replica_lag(self, name: str, messages: int, broker_id: int = 1) -> None:
        """Make a replica lack the newest ``messages`` of its master from now on; 0 brings it up to date."""
        self.call(lambda: self._cluster.machines(name).set_lag(broker_id, messages))

    def promote_replica(self, name: str, broker_id: int = 1) -> None:
        """Permanently replace a master by a replica; messages that were not copied are lost."""
        self._await(lambda: self._cluster.machines(name).promote(broker_id))

    def look_at_clock(self) -> None:
        """Answer held pulls, drop members and close connections whose time is up by the cluster's clock."""
        self.call(self._cluster.look_at_clock)

    def create_topic(
        self, topic: str, queues: int = 4, *, perm: int = PERM_READ_WRITE, brokers: Iterable[str] = ()
    ) -> None:
        """Create or change a topic on ``brokers`` (default: all)."""
        config = Topic(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
        names = tuple(brokers) or tuple(self._cluster.brokers)

        def put() -> None:
            for name in names:
                self.broker(name).state.topics.put(config)

        self.call(put)

    def put(self, queue: MessageQueue, messages: Iterable[Message]) -> int:
        """Store messages as if a producer had sent them one by one; return the first one's queue offset."""
        batch = tuple(messages)
        return self.call(lambda: self._cluster.put(queue, batch))

    def bounds(self, queue: MessageQueue) -> QueueBounds:
        """Return the queue's minimum and maximum offsets at its broker."""
        state = self.broker(queue.broker_name).state
        return self.call(lambda: bounds_of(state, queue.topic, queue.queue_id))

    def committed_offset(self, consumer_group: str, queue: MessageQueue) -> int | None:
        """Return the offset that the group committed to the broker for the queue; None if there is none."""
        offsets = self.broker(queue.broker_name).state.offsets
        return self.call(lambda: offsets.query(consumer_group, queue.topic, queue.queue_id))

    def lock_holder(self, consumer_group: str, queue: MessageQueue) -> str | None:
        """Return the client id that holds the group's lock of the queue now; None if it is free."""
        locks = self.broker(queue.broker_name).state.locks
        return self.call(lambda: locks.holder(consumer_group, queue))

    def held_pulls(self) -> int:
        """Return the number of pulls that wait for messages at all brokers and replicas."""
        return self.call(self._cluster.held_pulls)

    def connections(self, name: str) -> int:
        """Return the number of connections that the master of a broker serves now."""
        return self.call(lambda: self._cluster.machines(name).connections())

    def broker(self, name: str) -> Broker:
        """Return the master of a broker; use it only in functions that :meth:`call` runs."""
        return self._cluster.brokers[name]

    def call(self, function: Callable[[], _T]) -> _T:
        """Run ``function`` on the cluster's thread; return its result or raise its error, within 30 s."""
        done: Future[_T] = Future()
        self._loop.call_soon_threadsafe(_complete, done, function)
        return done.result(_LONGEST_CALL_S)

    def _await(self, operation: Callable[[], Awaitable[_T]]) -> _T:
        async def run() -> _T:
            return await operation()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(_LONGEST_CALL_S)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()


def _complete(done: Future[Any], function: Callable[[], Any]) -> None:
    try:
        done.set_result(function())
    except BaseException as error:
        done.set_exception(error)
        if not isinstance(error, Exception):
            raise
