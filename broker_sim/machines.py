"""The machines of one broker name: its master and the replicas that can replace the master.

Replicas have broker id 1 and up and follow the master's log (``HAService``). Metadata (topics, groups,
committed offsets) are the master's own tables: a real slave fetches them every few seconds
(``SlaveSynchronize``). Messages are copied one by one, as late as a test wants. This module also changes the
answers of a broker that is a slave or has one (``PullMessageProcessor``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from broker_sim.bodies import SubscriptionGroupConfig
from broker_sim.broker import Broker
from broker_sim.layout import Host, read_stored, tag_hash
from broker_sim.message_store import MessageStore
from broker_sim.nameserver import MASTER_ID, NameServer
from broker_sim.replies import Outgoing, Peer, Refused, in_json, reply
from broker_sim.server import Endpoint, EndpointServer
from broker_sim.settings import BrokerSettings
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.wire.codes import PullSysFlag, RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.requests.header_fields import from_ext_fields
from pyspark_rocketmq.wire.requests.headers import PullMessageRequestHeader

_PULLS = frozenset({int(RequestCode.PULL_MESSAGE), int(RequestCode.LITE_PULL_MESSAGE)})
_SENDS = frozenset(
    {
        int(RequestCode.SEND_MESSAGE),
        int(RequestCode.SEND_MESSAGE_V2),
        int(RequestCode.SEND_BATCH_MESSAGE),
        int(RequestCode.CONSUMER_SEND_MSG_BACK),
    }
)
_REJECTED = "[REJECTREQUEST]system busy, start flow control for a while"
_NOT_AVAILABLE = (
    "service not available now. It may be caused by one of the following reasons: the broker's disk is full, "
    "messages are put to the slave, message store has been shut down, etc."
)
Serve = Callable[[Endpoint, Callable[[], None]], EndpointServer]
"""Function that creates the server of an endpoint (its first argument).

The server calls the second argument after any work that may have stored messages."""


def make_replica(master: Broker, clock: Clock, settings: BrokerSettings) -> Broker:
    """Create a broker with the master's name and metadata, and its own empty log."""
    replica = Broker(master.name, clock, settings)
    replica.state.topics = master.state.topics
    replica.state.groups = master.state.groups
    replica.state.offsets = master.state.offsets.copied()
    return replica


class LogCopy:
    """Copies the messages of a master's store ``source`` to a replica's, ``target``, except the newest ones.

    :meth:`catch_up` must be called after every append to ``source``, before old messages are dropped there.
    """

    def __init__(self, source: MessageStore, target: MessageStore) -> None:
        self._source = source
        self._target = target
        self._seen = target.end_offset
        self._waiting: deque[bytes] = deque()
        self.lag_messages = 0
        """Number of the newest messages that are not copied yet. Copied messages are never removed."""

    def catch_up(self) -> None:
        """Copy all messages except the last ``lag_messages``."""
        while self._seen < self._source.end_offset:
            message = self._source.message_at(self._seen)
            if message is None:
                raise RuntimeError(
                    f"The message at commit log offset {self._seen} was dropped before it was copied."
                )
            self._waiting.append(message)
            self._seen += len(message)
        while len(self._waiting) > self.lag_messages:
            self._copy(self._waiting.popleft())

    def _copy(self, message: bytes) -> None:
        parts = read_stored(message)
        self._target.append_copy(
            message,
            topic=parts.run.topic,
            queue_id=parts.run.queue_id,
            queue_offset=parts.queue_offset,
            tag_hash=tag_hash(parts.member.properties),
        )


class Role:
    """An endpoint that lets a broker answer as a master with slaves, or as a slave.

    ``broker_id`` is 0 for the master; it changes when a slave is promoted.
    """

    def __init__(self, broker: Broker, broker_id: int, is_master_alive: Callable[[], bool]) -> None:
        self.broker_id = broker_id
        self._broker = broker
        self._is_master_alive = is_master_alive

    @property
    def name(self) -> str:
        """Name of the broker; for a slave with its id, so that faults can be meant for only this slave."""
        return f"{self._broker.name}:{self.broker_id}" if self._is_slave else self._broker.name

    def handle(self, peer: Peer, command: RemotingCommand) -> list[Outgoing]:
        """Return the broker's commands after one request, changed as a master or slave answers.

        A slave refuses sends, resets of offsets, and the question how far replicas are. It also refuses pulls
        unless ``slave_read_enable`` is set.
        """
        if command.is_response:
            return self._broker.handle(peer, command)
        if self._is_slave:
            try:
                self._refuse_on_slave(command.code)
            except Refused as refused:
                answer = in_json(reply(command, refused.code, refused.remark))
                return [] if command.is_oneway else [Outgoing(peer, answer, command.code)]
            if command.code == RequestCode.GET_BROKER_CONFIG:
                return [self._as_slave(each) for each in self._broker.handle(peer, command)]
        if command.code not in _PULLS:
            return self._broker.handle(peer, command)
        return self._pull(peer, command)

    def _as_slave(self, shown: Outgoing) -> Outgoing:
        """Return the broker's configuration with the slave's id and role."""
        body = shown.command.body.replace(b"brokerId=0\n", b"brokerId=%d\n" % self.broker_id)
        body = body.replace(b"brokerRole=ASYNC_MASTER\n", b"brokerRole=SLAVE\n")
        return shown._replace(command=replace(shown.command, body=body))

    def connection_closed(self, peer: Peer) -> list[Outgoing]:
        """Report the closed connection to the broker."""
        return self._broker.connection_closed(peer)

    def look_at_clock(self) -> list[Outgoing]:
        """Do the broker's work that is due."""
        return self._broker.look_at_clock()

    def next_deadline_s(self) -> float | None:
        """Return the monotonic time of the broker's next due work; None if none is known."""
        return self._broker.next_deadline_s()

    @property
    def _is_slave(self) -> bool:
        return self.broker_id != MASTER_ID

    def _refuse_on_slave(self, request_code: int) -> None:
        if request_code == RequestCode.INVOKE_BROKER_TO_RESET_OFFSET:
            raise Refused(ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker")
        if request_code in _SENDS:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, _NOT_AVAILABLE)
        if request_code == RequestCode.GET_BROKER_HA_STATUS:
            raise Refused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "Ask the master how far its replicas are.")
        if request_code in _PULLS and not self._broker.state.settings.slave_read_enable:
            raise Refused(ResponseCode.SYSTEM_BUSY, _REJECTED)

    def _pull(self, peer: Peer, command: RemotingCommand) -> list[Outgoing]:
        try:
            header = from_ext_fields(PullMessageRequestHeader, command.ext_fields)
        except RemoteProtocolError:
            return self._broker.handle(peer, command)  # says what is wrong with it
        asked = command
        if (
            self._is_slave and self._is_master_alive()
        ):  # there, "nothing yet" is not held: it refers to the master
            flags = header.sys_flag & ~PullSysFlag.SUSPEND
            asked = replace(command, ext_fields={**command.ext_fields, "sysFlag": str(int(flags))})
        return [
            each._replace(command=self._revised(each.command, header))
            if each.peer == peer and each.command.is_response and each.command.opaque == command.opaque
            else each
            for each in self._broker.handle(peer, asked)
        ]

    def _revised(self, answer: RemotingCommand, header: PullMessageRequestHeader) -> RemotingCommand:
        """Return the broker's answer to a pull, changed as a master with slaves, or a slave, gives it.

        The changed answer suggests the machine for the next pull. While the master is alive, a slave suggests
        the master, unless the pulled messages are old. If the slave has no message, the client is to retry
        immediately. A slave never corrects the client's offset. Refusals stay unchanged.
        """
        if "nextBeginOffset" not in answer.ext_fields:
            return answer
        state = self._broker.state
        group = state.groups.find(header.consumer_group) or SubscriptionGroupConfig(
            group_name=header.consumer_group
        )
        is_slow = self._is_slow(header, answer)
        suggested, code, fields = MASTER_ID, answer.code, dict(answer.ext_fields)
        if state.settings.slave_read_enable:
            suggested = group.which_broker_when_consume_slowly if is_slow else group.broker_id
        if self._is_slave:
            if not is_slow and self._is_master_alive():
                suggested = MASTER_ID
                code = code if code == ResponseCode.SUCCESS else ResponseCode.PULL_RETRY_IMMEDIATELY
            if answer.code == ResponseCode.PULL_OFFSET_MOVED:  # a slave that lags must not correct offsets
                suggested, code = group.broker_id, ResponseCode.PULL_RETRY_IMMEDIATELY
                fields["nextBeginOffset"] = str(header.queue_offset)
        fields["suggestWhichBrokerId"] = str(suggested)
        return replace(answer, code=int(code), ext_fields=fields)

    def _is_slow(self, header: PullMessageRequestHeader, answer: RemotingCommand) -> bool:
        """Whether the pulled messages are older than the newest ``in_memory_bytes`` of the commit log."""
        reach = self._broker.state.settings.in_memory_bytes
        if reach is None or answer.code not in {ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY}:
            return False
        last = int(answer.ext_fields["nextBeginOffset"]) - 1
        return self._broker.state.store.bytes_behind(header.topic, header.queue_id, last) > reach


@dataclass(slots=True, kw_only=True)
class _Machine:
    broker: Broker
    server: EndpointServer
    role: Role | None = None
    """Role of the broker; None if it never has slaves."""
    copy: LogCopy | None = None
    """Copy of the master's log; None for the master."""
    is_running: bool = False


class BrokerMachines:
    """The machines of one broker name, a master and its replicas: starts, stops and promotes them.

    A stopped machine keeps everything that it stored.
    """

    def __init__(
        self,
        name: str,
        *,
        replicas: int,
        clock: Clock,
        settings: BrokerSettings,
        name_server: NameServer,
        serve: Serve,
    ) -> None:
        self._name = name
        self._name_server = name_server
        master = Broker(name, clock, settings)
        self._machines = {MASTER_ID: self._machine(master, MASTER_ID, serve, has_role=replicas > 0)}
        for broker_id in range(1, replicas + 1):
            replica = make_replica(master, clock, settings)
            machine = self._machine(replica, broker_id, serve, has_role=True)
            machine.copy = LogCopy(master.state.store, replica.state.store)
            self._machines[broker_id] = machine
        master.state.replicas = self._copied

    @property
    def master(self) -> Broker:
        """The master's broker, running or not."""
        return self._machines[MASTER_ID].broker

    def host(self, broker_id: int = MASTER_ID) -> Host:
        """Return the address at which a machine listens, or listened last."""
        return self._machine_of(broker_id).broker.state.host

    def _copied(self) -> dict[Host, int]:
        copies = [each.broker.state for each in self._machines.values() if each.copy and each.is_running]
        return {state.host: state.store.end_offset for state in copies}

    @property
    def replicas(self) -> dict[int, Host]:
        """The address at which each replica listens, or listened last, by broker id."""
        return {key: machine.broker.state.host for key, machine in self._machines.items() if key != MASTER_ID}

    async def start_all(self) -> None:
        """Start every machine."""
        for broker_id in self._machines:
            await self.start(broker_id)

    async def stop_all(self) -> None:
        """Stop every machine."""
        for broker_id in self._machines:
            await self.stop(broker_id)

    async def start(self, broker_id: int = MASTER_ID) -> None:
        """Listen, on the former port if there was one, and register at the name server."""
        machine = self._machine_of(broker_id)
        host = await machine.server.start(machine.broker.state.host.port)
        machine.broker.listening_at(host)
        machine.is_running = True
        self._name_server.register(self._name, host, machine.broker.state.topics, broker_id)

    async def stop(self, broker_id: int = MASTER_ID) -> None:
        """Leave the name server, close listener and connections, lose locks and memberships."""
        machine = self._machine_of(broker_id)
        self._name_server.unregister(self._name, broker_id)
        machine.is_running = False
        await machine.server.stop()
        machine.broker.restarted()

    async def promote(self, broker_id: int) -> None:
        """Make a replica the master, with the messages that it has; all other machines leave for ever.

        The new master takes over delayed messages, even those that it has not copied yet.

        Raises:
            ValueError: If there is no such machine, or it is the master already.
        """
        promoted = self._machine_of(broker_id)
        if promoted.copy is None or promoted.role is None:
            raise ValueError(f"Machine {broker_id} of {self._name!r} is the master already.")
        former = self.master
        for other in [each for each in self._machines if each != broker_id]:
            await self.stop(other)
        self._name_server.unregister(self._name, broker_id)
        self._machines = {MASTER_ID: promoted}
        promoted.copy = None
        promoted.role.broker_id = MASTER_ID
        promoted.broker.state.delayed = former.state.delayed
        promoted.broker.state.timers = former.state.timers
        if promoted.is_running:
            state = promoted.broker.state
            self._name_server.register(self._name, state.host, state.topics)
        promoted.server.do_due()

    def set_lag(self, broker_id: int, messages: int) -> None:
        """Make a replica lack the master's newest ``messages`` from now on; 0 brings it up to date.

        Raises:
            ValueError: If there is no such machine, or it is the master.
        """
        copy = self._machine_of(broker_id).copy
        if copy is None:
            raise ValueError(f"Machine {broker_id} of {self._name!r} is the master: it copies nobody.")
        copy.lag_messages = messages
        self.replicate()

    def replicate(self) -> None:
        """Copy the master's messages to each replica, except the newest ones by which it is to lag."""
        for machine in self._machines.values():
            if machine.copy is not None:
                machine.copy.catch_up()

    def refuse_connections(self) -> None:
        """Refuse new connections to the master."""
        self._machines[MASTER_ID].server.refuse()

    def accept_connections(self) -> None:
        """Accept new connections to the master again, after :meth:`refuse_connections`."""
        self._machines[MASTER_ID].server.listen()

    def look_at_clock(self) -> None:
        """Do the work whose time has come on every machine."""
        for machine in self._machines.values():
            machine.server.look_at_clock()

    def held_pulls(self) -> int:
        """Return the number of pulls that wait for messages at all machines."""
        return sum(len(machine.broker.state.held_pulls) for machine in self._machines.values())

    def connections(self) -> int:
        """Return the number of connections that the master serves."""
        return self._machines[MASTER_ID].server.connection_count

    def messages_were_put(self) -> None:
        """Send the answers to pulls that waited for messages which the master stored without a request."""
        self._machines[MASTER_ID].server.do_due()

    def _machine(self, broker: Broker, broker_id: int, serve: Serve, *, has_role: bool) -> _Machine:
        if not has_role and not broker.state.settings.slave_read_enable:
            return _Machine(broker=broker, server=serve(broker, self.replicate))
        role = Role(broker, broker_id, lambda: self._machines[MASTER_ID].is_running)
        return _Machine(broker=broker, server=serve(role, self.replicate), role=role)

    def _machine_of(self, broker_id: int) -> _Machine:
        try:
            return self._machines[broker_id]
        except KeyError:
            ids = ", ".join(map(str, self._machines))
            raise ValueError(
                f"{self._name!r} has no machine {broker_id}; its broker ids are {ids}."
            ) from None
