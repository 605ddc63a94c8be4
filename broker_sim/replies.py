"""Answers as a RocketMQ 5.3.3 server writes them, and requests to its clients (``Broker2Client``)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from typing import NamedTuple

from broker_sim.layout import Host
from pyspark_rocketmq.wire.codes import LanguageCode, RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RESPONSE_FLAG, RemotingCommand, SerializeType

_logger = logging.getLogger(__name__)

SERVER_VERSION = 479
"""Ordinal of V5_3_3 in ``MQVersion``."""
SEE_FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
_JAVA = int(LanguageCode.JAVA)
_NO_FIELDS: Mapping[str, str] = {}


class Peer(NamedTuple):
    """Identifies one accepted connection by a number and the client's address."""

    connection_id: int
    """Unique within the server for all time."""
    host: Host


class Outgoing(NamedTuple):
    """A command to send on one connection."""

    peer: Peer
    command: RemotingCommand
    request_code: int
    """Code of the request that a response answers, or a request's own code."""


class Refused(Exception):
    """Raised by a handler that answers with an error code; the handler's caller creates the answer."""

    def __init__(self, code: ResponseCode, remark: str, ext_fields: Mapping[str, str] = _NO_FIELDS) -> None:
        super().__init__(code, remark)
        self.code = code
        self.remark = remark
        self.ext_fields = ext_fields


def reply(
    request: RemotingCommand,
    code: int = ResponseCode.SUCCESS,
    remark: str | None = None,
    *,
    ext_fields: Mapping[str, str] = _NO_FIELDS,
    body: bytes = b"",
) -> RemotingCommand:
    """Create the answer to ``request``, with its number (opaque) and its header's form (JSON or binary)."""
    return RemotingCommand(
        code=int(code),
        opaque=request.opaque,
        flag=RESPONSE_FLAG,
        language=_JAVA,
        version=SERVER_VERSION,
        remark=remark,
        ext_fields=ext_fields,
        body=body,
        serialize_type=request.serialize_type,
    )


def not_supported(request: RemotingCommand) -> RemotingCommand:
    """Create the answer to a request with a code that is not simulated; each such code is logged once."""
    _tell_not_supported(request.code)
    return reply(
        request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported"
    )


@cache
def _tell_not_supported(code: int) -> None:
    name = RequestCode(code).name if code in set(RequestCode) else "unknown"
    _logger.warning("Request %d (%s) is not simulated; see docs/how-to/simulator.md.", code, name)


def in_json(command: RemotingCommand) -> RemotingCommand:
    """Return the same command, with the JSON form of its header."""
    if command.serialize_type is SerializeType.JSON:
        return command
    return RemotingCommand(
        code=command.code,
        opaque=command.opaque,
        flag=command.flag,
        language=command.language,
        version=command.version,
        remark=command.remark,
        ext_fields=command.ext_fields,
        body=command.body,
    )


class NoAnswer(Enum):
    """Reason why a client's answer will not arrive."""

    TIMEOUT = auto()
    CONNECTION_CLOSED = auto()


Outcome = RemotingCommand | NoAnswer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClientCall:
    """One request that a client has not answered yet."""

    peer: Peer
    opaque: int
    deadline_s: float
    """Monotonic time at which the call ends without an answer."""
    finish: Callable[[Outcome], None]
    """Called once, with the answer or the reason why there is none."""


class ClientCalls:
    """All pending requests to clients, by connection and opaque number."""

    def __init__(self) -> None:
        self._calls: dict[tuple[int, int], ClientCall] = {}

    def add(self, call: ClientCall) -> None:
        """Wait for the answer to ``call``."""
        self._calls[call.peer.connection_id, call.opaque] = call

    def answered(self, peer: Peer, answer: RemotingCommand) -> None:
        """Pass an answer to the call that waits for it; drop the answer if no call waits any longer."""
        call = self._calls.pop((peer.connection_id, answer.opaque), None)
        if call is not None:
            call.finish(answer)

    def expire(self, now_s: float) -> None:
        """End the calls whose deadline is at or before the monotonic time ``now_s``; each gets a time-out."""
        self._end([key for key, call in self._calls.items() if call.deadline_s <= now_s], NoAnswer.TIMEOUT)

    def connection_closed(self, peer: Peer) -> None:
        """End the calls that wait for an answer on this connection; each gets ``CONNECTION_CLOSED``."""
        mine = [key for key in self._calls if key[0] == peer.connection_id]
        self._end(mine, NoAnswer.CONNECTION_CLOSED)

    def next_deadline_s(self) -> float | None:
        """Return the monotonic time at which the next call expires; None if no call waits."""
        return min((call.deadline_s for call in self._calls.values()), default=None)

    def clear(self) -> None:
        """Forget all calls without ending them, as a broker does when it stops."""
        self._calls.clear()

    def _end(self, keys: list[tuple[int, int]], reason: NoAnswer) -> None:
        for key in keys:
            self._calls.pop(key).finish(reason)
