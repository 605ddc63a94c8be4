"""A pull's bytes: the request and its answer, with fast paths because a task sends thousands of pulls."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, NamedTuple

from pyspark_rocketmq.errors import RemoteProtocolError, RocketMQError
from pyspark_rocketmq.model import MessageQueue, PulledBody
from pyspark_rocketmq.wire.codes import PullSysFlag, RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import (
    MAX_FRAME_LENGTH,
    RemotingCommand,
    SerializeType,
    decode_frame,
    encode_frame,
)
from pyspark_rocketmq.wire.framing import FrameDecoder, Outgoing
from pyspark_rocketmq.wire.requests.admin import encode_client_config_check
from pyspark_rocketmq.wire.requests.header_fields import to_ext_fields
from pyspark_rocketmq.wire.requests.headers import PullMessageRequestHeader, PullMessageResponseHeader
from pyspark_rocketmq.wire.requests.responses import error_of, header_of
from pyspark_rocketmq.wire.subscription import ALL, TAG, SubscriptionData

HOLD_SCAN_S: Final = 5.0
"""Seconds by which a broker may answer a held pull late, because it checks its held pulls in this interval
(``PullRequestHoldService.run``)."""
_CLIENT_ID: Final = "pyspark-rocketmq"
"""Client id in check requests, which brokers do not use."""
_NOTHING_MATCHED: Final = "NO_MATCHED_MESSAGE"
_SIZES: Final = struct.Struct(">II")
"""Length word, then serialize type and header length."""
_NUMBERS_OF_ONE_PULL: Final = re.compile(
    rb'(?<="queueOffset":")-?\d+|(?<="maxMsgNums":")-?\d+|(?<="opaque":)\d+'
)
_LENGTH_WORD: Final = 4
_PREFIX: Final = _SIZES.size
_JSON_LIMIT: Final = int(SerializeType.JSON) + 1 << 24
"""Bound of a frame's second word (serialize type and header length). A header is JSON if the word is lower;
the word is then the header's length."""
_MOST_PATTERNS: Final = 8
"""Maximum number of headers from which one connection makes a pattern (``PullHeaderPattern``). After that, it
makes no pattern even if a header does not match, so a peer whose headers always differ costs no more time."""
_FREE: Final = re.compile(
    rb'"(?P<field>nextBeginOffset|minOffset|maxOffset|suggestWhichBrokerId)":"(?P<text>[0-9]+)"'
    rb'|"(?P<opaque>opaque)":(?P<number>[0-9]+)'
)
_ANY_NUMBER: Final = rb"(0|[1-9][0-9]{0,17})"
_ANY_OPAQUE: Final = rb"(0|[1-9][0-9]{0,8})"


class PullStatus(IntEnum):
    """Outcome of a pull, with the broker's response code as value."""

    FOUND = ResponseCode.SUCCESS
    NO_NEW_MSG = ResponseCode.PULL_NOT_FOUND
    """There is no message at this offset yet; pull again from ``next_begin_offset``."""
    NO_MATCHED_MSG = ResponseCode.PULL_RETRY_IMMEDIATELY
    """Messages were scanned and none matched; pull again immediately, from the advanced
    ``next_begin_offset``."""
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED
    """The broker does not have the offset, or an operator has reset the group; go on at
    ``next_begin_offset``."""


_WAS_RESET: Final = "OFFSET_RESET"
_HOLES: Final = frozenset(
    {(PullStatus.NO_MATCHED_MSG, "MESSAGE_WAS_REMOVING"), (PullStatus.NO_NEW_MSG, "OFFSET_FOUND_NULL")}
)

_STATUSES: Final[Mapping[int, PullStatus]] = {int(status): status for status in PullStatus}


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """One PULL_MESSAGE (code 11); implements :class:`pyspark_rocketmq.wire.framing.Outgoing`."""

    consumer_group: str
    queue: MessageQueue
    queue_offset: int
    """First queue offset wanted."""
    max_msg_nums: int = 32
    """Maximum number of messages wanted; the broker's own limits (32, or 8 from disk, and 256 KiB) also
    apply."""
    sys_flag: int = PullSysFlag.SUBSCRIPTION
    """``SUBSCRIPTION``: filter by ``subscription`` below. Without it: by the group's latest heartbeat.
    ``SUSPEND``: the broker may hold the request. ``COMMIT_OFFSET``: store ``commit_offset`` for the group."""
    subscription: str = ALL
    """Tags joined by ``||``, or an SQL92 expression."""
    sub_version: int = 0
    expression_type: str = TAG
    suspend_timeout_millis: int = 0
    """How long the broker may hold the request; the answer may come ``HOLD_SCAN_S`` later."""
    commit_offset: int = 0

    def encode(self, opaque: int) -> bytes:
        """Return the whole frame, length prefix included."""
        return encode_frame(replace(self.command(), opaque=opaque))

    def command(self) -> RemotingCommand:
        """Return the same request as a command, without its opaque."""
        header = PullMessageRequestHeader(
            consumer_group=self.consumer_group,
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            queue_offset=self.queue_offset,
            max_msg_nums=self.max_msg_nums,
            sys_flag=int(self.sys_flag),
            commit_offset=self.commit_offset,
            suspend_timeout_millis=self.suspend_timeout_millis,
            subscription=self.subscription,
            sub_version=self.sub_version,
            expression_type=self.expression_type,
            broker_name=self.queue.broker_name,
        )
        return RemotingCommand(code=RequestCode.PULL_MESSAGE, ext_fields=to_ext_fields(header))

    @property
    def longest_hold_s(self) -> float:
        """Seconds for which the broker may keep the request; 0 without ``SUSPEND``.

        They are the hold time and ``HOLD_SCAN_S``, the broker's delay in ending a hold.
        """
        if not self.sys_flag & PullSysFlag.SUSPEND:
            return 0.0
        return self.suspend_timeout_millis / 1000 + HOLD_SCAN_S

    @property
    def filter_check(self) -> RemotingCommand | None:
        """Request by which the server is asked whether it can filter by the pull's condition.

        None if the pull has none: any server filters by tags.
        """
        if self.expression_type == TAG or not self.sys_flag & PullSysFlag.SUBSCRIPTION:
            return None
        wanted = SubscriptionData(
            topic=self.queue.topic, sub_string=self.subscription, expression_type=self.expression_type
        )
        body = encode_client_config_check(_CLIENT_ID, self.consumer_group, wanted)
        return RemotingCommand(code=RequestCode.CHECK_CLIENT_CONFIG, body=body)


class PullRequestTemplate:
    """Template for the pulls of one queue with one subscription, which differ only in offset and count.

    The rest of the header is encoded once, so that making a frame is a single formatting of bytes.
    """

    __slots__ = ("_request", "_template", "filter_check")

    def __init__(self, request: PullRequest) -> None:
        """Prepare pulls like ``request``, whose own offset and count do not matter."""
        self._request = request
        self.filter_check = request.filter_check
        """Request by which the server is asked whether it can filter by the condition; None without one."""
        header = request.encode(0)[_SIZES.size :].replace(b"%", b"%%")
        self._template = _NUMBERS_OF_ONE_PULL.sub(b"%d", header)

    def encode(self, queue_offset: int, max_msg_nums: int, opaque: int) -> bytes:
        """Return the whole frame of one pull."""
        header = self._template % (queue_offset, max_msg_nums, opaque)
        return _SIZES.pack(4 + len(header), len(header)) + header

    def request(self, queue_offset: int, max_msg_nums: int) -> PullRequest:
        """Return the pull with this offset and count as a ``PullRequest``."""
        return replace(self._request, queue_offset=queue_offset, max_msg_nums=max_msg_nums)


class PullResult(NamedTuple):
    """A broker's answer to one pull."""

    status: PullStatus
    next_begin_offset: int
    """Where to pull next: after all scanned messages, whether they matched or not."""
    min_offset: int
    max_offset: int
    """End of the queue (exclusive)."""
    suggest_which_broker_id: int = 0
    body: PulledBody = b""
    """Stored messages one after another, undecoded; they may begin before the offset asked for (an inner
    batch)."""
    remark: str = ""
    """Why there are no messages (``GetMessageStatus``). A slave may change the code, but not this text."""

    @property
    def scanned_in_vain(self) -> bool:
        """Whether the broker looked at all messages up to ``next_begin_offset`` and none matched.

        The status does not show this: a slave also answers NO_MATCHED_MSG for an offset that it does not
        have (``DefaultPullMessageResultHandler``). So the remark is compared, too.
        """
        return self.status is PullStatus.NO_MATCHED_MSG and self.remark == _NOTHING_MATCHED

    def reset_from(self, asked: int) -> int | None:
        """Return the offset to which an operator has reset the group in this queue; None without a reset.

        ``asked`` is the offset that was pulled from. A broker reports a reset only once, in place of
        messages. The offset shows a reset only if there is no remark: tiered storage may lack an offset that
        is within the queue's bounds, because its ``min_offset`` is that of the local storage.

        Source: ``PullMessageProcessor.composeResponseHeader``, ``TieredMessageStore.getMessageAsync``.
        """
        is_there = self.min_offset <= asked <= self.max_offset
        is_reset = self.remark == _WAS_RESET or (not self.remark and is_there)
        return self.next_begin_offset if self.status is PullStatus.OFFSET_ILLEGAL and is_reset else None

    def first_from(self, asked: int) -> int:
        """Return the queue's first offset, as the answer to a pull from ``asked`` shows it.

        It is above ``min_offset`` if tiered storage has expired ``asked``.
        """
        is_ahead = self.status is PullStatus.OFFSET_ILLEGAL and self.next_begin_offset > asked
        has_expired = is_ahead and self.reset_from(asked) is None
        return max(self.min_offset, self.next_begin_offset) if has_expired else self.min_offset

    def reports_hole(self, asked: int) -> bool:
        """Return whether the broker lacks messages from ``asked`` on although they are within the queue.

        A file of its commit log or of the queue is missing. This may pass: the answer is the same while a
        broker exchanges files.

        Source: RocketMQ 5.3.3 ``DefaultMessageStore.getMessage``.
        """
        is_ahead = asked < self.next_begin_offset <= self.max_offset
        return is_ahead and (self.status, self.remark) in _HOLES


def pull_result(
    request: Outgoing, outcome: RemotingCommand | RocketMQError, address: str
) -> PullResult | RocketMQError:
    """Return the result of a pull, or its error; errors are not raised, because callbacks get them."""
    if isinstance(outcome, RocketMQError):
        return outcome
    status = _STATUSES.get(outcome.code)
    if status is None:
        return error_of(request.command(), outcome, address)
    fields = outcome.ext_fields
    try:
        # This runs once per pull, and is ten times as fast as decoding the whole header.
        return PullResult(
            status=status,
            next_begin_offset=int(fields["nextBeginOffset"]),
            min_offset=int(fields["minOffset"]),
            max_offset=int(fields["maxOffset"]),
            suggest_which_broker_id=int(fields["suggestWhichBrokerId"]),
            body=outcome.body,
            remark="" if status is PullStatus.FOUND else outcome.remark or "",
        )
    except (KeyError, ValueError):
        return _header_error(outcome, address)


def _header_error(answer: RemotingCommand, address: str) -> RocketMQError:
    try:
        header_of(PullMessageResponseHeader, answer, address)
    except RemoteProtocolError as error:
        return error
    return RemoteProtocolError(f"The answer of {address} cannot be read: {dict(answer.ext_fields)}.")


class PullResponseDecoder:
    """Decodes one connection's answers.

    The headers of a broker's answers with messages differ in a few numbers only. So the text of a header that
    was decoded in full becomes a pattern, in which only those numbers vary. Headers that match it are read by
    the pattern, with the same result; all others are decoded in full.
    """

    def __init__(self) -> None:
        self._pattern: PullHeaderPattern | None = None
        self._learnt = 0

    def decode(
        self, view: memoryview, start: int, stop: int
    ) -> tuple[list[tuple[int, PullResult | RemotingCommand]], int]:
        """Decode the complete frames in ``view[start:stop]``.

        Return two values: each frame's answer with its opaque, and where the incomplete rest begins. An
        answer with messages whose header matches the pattern becomes a ``PullResult``; its body is a view
        into ``view``. Every other answer becomes a command, with a copy of its body.

        Raises:
            RemoteProtocolError: For the same reasons as ``FrameDecoder.feed``; close the connection.
        """
        answers: list[tuple[int, PullResult | RemotingCommand]] = []
        while stop - start >= _PREFIX:
            length, header_length = _SIZES.unpack_from(view, start)
            end = start + _LENGTH_WORD + length
            if not _LENGTH_WORD <= length <= MAX_FRAME_LENGTH - _LENGTH_WORD:
                # The frame decoder refuses this length before it reserves memory.
                FrameDecoder().feed(view[start : start + _PREFIX])
            if end > stop:
                break
            header_at = start + _PREFIX
            body_at = header_at + header_length
            found = None
            if self._pattern is not None and header_length < _JSON_LIMIT and body_at <= end:
                found = self._pattern.read(view, header_at, body_at, end)
            answers.append(found or self._decoded(view, start, body_at, end))
            start = end
        return answers, start

    def _decoded(self, view: memoryview, start: int, body_at: int, end: int) -> tuple[int, RemotingCommand]:
        command = decode_frame(view[start + _LENGTH_WORD : end])
        if self._learnt < _MOST_PATTERNS and command.code == ResponseCode.SUCCESS and command.is_response:
            self._learnt += 1
            header = bytes(view[start + _PREFIX : body_at])
            self._pattern = PullHeaderPattern.of(header, command) or self._pattern
        return command.opaque, command


class PullHeaderPattern:
    """Pattern of the header of an answer with messages: fixed text, in which five numbers vary."""

    __slots__ = ("_match", "_places")

    def __init__(self, text: bytes, order: Mapping[str, int]) -> None:
        self._match = re.compile(text, re.DOTALL).fullmatch
        self._places = tuple(
            order[name]
            for name in ("opaque", "nextBeginOffset", "minOffset", "maxOffset", "suggestWhichBrokerId")
        )

    @classmethod
    def of(cls, header: bytes, command: RemotingCommand) -> PullHeaderPattern | None:
        """Return the pattern of ``header``, from which ``command`` was decoded; None if it is unusual.

        The header must contain each number once, in its usual spelling, and not inside another string.
        """
        if b"\\" in header:
            return None
        parts: list[bytes] = []
        order: dict[str, int] = {}
        values: dict[str, str] = {"opaque": str(command.opaque), **command.ext_fields}
        at = 0
        for found in _FREE.finditer(header):
            name = (found["field"] or found["opaque"]).decode()
            digits = "text" if found["field"] else "number"
            if name in order or values.get(name) != found[digits].decode():
                return None
            order[name] = len(order) + 1
            any_number = _ANY_NUMBER if digits == "text" else _ANY_OPAQUE
            parts += [re.escape(header[at : found.start(digits)]), any_number]
            at = found.end(digits)
        if len(order) != 5:
            return None
        return cls(b"".join([*parts, re.escape(header[at:])]), order)

    def read(self, view: memoryview, header_at: int, body_at: int, end: int) -> tuple[int, PullResult] | None:
        """Return an answer's opaque and its result; None if its header does not match the pattern."""
        match = self._match(view, header_at, body_at)
        if match is None:
            return None
        opaque, next_begin_offset, min_offset, max_offset, suggested = match.group(*self._places)
        return int(opaque), PullResult(
            PullStatus.FOUND,
            int(next_begin_offset),
            int(min_offset),
            int(max_offset),
            int(suggested),
            view[body_at:end],
        )
