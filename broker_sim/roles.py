"""What a broker answers differently because it is a slave, or has one (``PullMessageProcessor``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from broker_sim.broker import Broker
from broker_sim.peers import Outgoing, Peer
from broker_sim.replies import Refused, in_json, reply
from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.wire.codes import PullSysFlag, RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.requests.header_fields import from_ext_fields
from pyspark_rocketmq.wire.requests.headers import PullMessageRequestHeader
from pyspark_rocketmq.wire.requests.topics import SubscriptionGroupConfig

_PULLS = frozenset({int(RequestCode.PULL_MESSAGE), int(RequestCode.LITE_PULL_MESSAGE)})
_SENDS = frozenset(
    {
        int(RequestCode.SEND_MESSAGE),
        int(RequestCode.SEND_MESSAGE_V2),
        int(RequestCode.SEND_BATCH_MESSAGE),
        int(RequestCode.CONSUMER_SEND_MSG_BACK),
    }
)
_MASTER_ID = 0
_REJECTED = "[REJECTREQUEST]system busy, start flow control for a while"
_NOT_AVAILABLE = (
    "service not available now. It may be caused by one of the following reasons: the broker's disk is full, "
    "messages are put to the slave, message store has been shut down, etc."
)


class Role:
    """A broker as the master or a slave of its name; ``broker_id`` changes when a slave is promoted."""

    def __init__(self, broker: Broker, broker_id: int, is_master_alive: Callable[[], bool]) -> None:
        self.broker_id = broker_id
        self._broker = broker
        self._is_master_alive = is_master_alive

    @property
    def name(self) -> str:
        """The broker's; a slave's with its id, so that faults can be meant for it alone."""
        return f"{self._broker.name}:{self.broker_id}" if self._is_slave else self._broker.name

    def handle(self, peer: Peer, command: RemotingCommand) -> list[Outgoing]:
        """Answer one request as this kind of broker does."""
        if command.is_response:
            return self._broker.handle(peer, command)
        if self._is_slave:
            try:
                self._refuse_on_slave(command.code)
            except Refused as refused:
                answer = in_json(reply(command, refused.code, refused.remark))
                return [] if command.is_oneway else [Outgoing(peer, answer, command.code)]
        if command.code not in _PULLS:
            return self._broker.handle(peer, command)
        return self._pull(peer, command)

    def connection_closed(self, peer: Peer) -> list[Outgoing]:
        """Tell the broker."""
        return self._broker.connection_closed(peer)

    def look_at_clock(self) -> list[Outgoing]:
        """Tell the broker."""
        return self._broker.look_at_clock()

    def next_deadline_s(self) -> float | None:
        """The broker's."""
        return self._broker.next_deadline_s()

    @property
    def _is_slave(self) -> bool:
        return self.broker_id != _MASTER_ID

    def _refuse_on_slave(self, request_code: int) -> None:
        if request_code in _SENDS:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, _NOT_AVAILABLE)
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
        ):  # there "nothing yet" is not held but sent to the master
            flags = header.sys_flag & ~PullSysFlag.SUSPEND
            asked = replace(command, ext_fields={**command.ext_fields, "sysFlag": str(int(flags))})
        return [
            each._replace(command=self._revised(each.command, header))
            if each.peer == peer and each.command.is_response and each.command.opaque == command.opaque
            else each
            for each in self._broker.handle(peer, asked)
        ]

    def _revised(self, answer: RemotingCommand, header: PullMessageRequestHeader) -> RemotingCommand:
        """The answer to a pull as this role gives it; refusals stay as they are."""
        if "nextBeginOffset" not in answer.ext_fields:
            return answer
        state = self._broker.state
        group = state.groups.find(header.consumer_group) or SubscriptionGroupConfig(
            group_name=header.consumer_group
        )
        is_slow = self._is_slow(header, answer)
        suggested, code, fields = _MASTER_ID, answer.code, dict(answer.ext_fields)
        if state.settings.slave_read_enable:
            suggested = group.which_broker_when_consume_slowly if is_slow else group.broker_id
        if self._is_slave:
            if not is_slow and self._is_master_alive():
                suggested = _MASTER_ID
                code = code if code == ResponseCode.SUCCESS else ResponseCode.PULL_RETRY_IMMEDIATELY
            if answer.code == ResponseCode.PULL_OFFSET_MOVED:  # a slave that lags corrects nobody's offset
                suggested, code = group.broker_id, ResponseCode.PULL_RETRY_IMMEDIATELY
                fields["nextBeginOffset"] = str(header.queue_offset)
        fields["suggestWhichBrokerId"] = str(suggested)
        return replace(answer, code=int(code), ext_fields=fields)

    def _is_slow(self, header: PullMessageRequestHeader, answer: RemotingCommand) -> bool:
        """Whether what was just pulled lies further back than memory reaches."""
        reach = self._broker.state.settings.in_memory_bytes
        if reach is None or answer.code not in {ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY}:
            return False
        last = int(answer.ext_fields["nextBeginOffset"]) - 1
        return self._broker.state.store.bytes_behind(header.topic, header.queue_id, last) > reach
