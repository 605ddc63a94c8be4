"""A connection that one thread pulls on, many pulls at a time: the fast way to read a queue's range.

Why not a channel: its reader thread wakes once per answer and then contends with the thread that decodes messages
for Python's lock.  Here one thread sends the next pulls in one piece, takes everything that has come in one piece,
and decodes in between while the broker works; that costs half the processor time, on the broker's side too, which
sees bursts instead of single requests.

Rule 1: one thread.  Rule 2: after any error the line is of no use: close it.  Rule 3: silence is measured while
waiting, never while the caller was busy with something else or the whole process stood still: the answers may have come
meanwhile.  Rule 4: a pull that stays without an answer while others get theirs is given up alone; a broker may drop one
that it cannot write (``DefaultPullMessageResultHandler.channelIsWritable``).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable
from typing import Final, Generic, TypeVar

from pyspark_rocketmq.client.after_fork import renew_in_children
from pyspark_rocketmq.client.outgoing import Outgoing, PlainRequest, Signer, describe_request
from pyspark_rocketmq.client.pull import PullResult, pull_result
from pyspark_rocketmq.client.pull_answers import PullAnswers
from pyspark_rocketmq.client.transport import RECEIVE_TICK_S, Transport
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.errors import ChannelClosed, RequestTimeout, RocketMQError
from pyspark_rocketmq.model import PulledBody
from pyspark_rocketmq.wire.command import RemotingCommand

logger = logging.getLogger(__name__)

PullT = TypeVar("PullT", bound=Outgoing)

_OPAQUE_MASK: Final = 0x7FFFFFFF


class PullLine(Generic[PullT]):
    """Pulls in flight on one connection; the caller gets each back with its answer.

    No suspended pulls: a broker that holds one is silent, and silence is taken for failure.
    """

    def __init__(self, transport: Transport, clock: Clock, *, signer: Signer | None = None) -> None:
        self._transport = transport
        self._clock = clock
        self._signer = signer
        self._answers = PullAnswers()
        self._opaques = itertools.count()
        self._waiting: dict[int, tuple[PullT, float]] = {}
        """By opaque, in the order of sending: pulls and when they were sent, by the line's own time, which passes only
        while it waits for bytes."""
        self._listened_s = 0.0
        self._next_look_s = 0.0
        renew_in_children(self)

    def renew(self) -> None:
        """In a child of ``fork()``: give the connection back without ending it; it is the parent's."""
        self._transport.close()

    @property
    def address(self) -> str:
        """``host:port`` of the broker."""
        return self._transport.address

    @property
    def in_flight(self) -> int:
        """Pulls sent and not answered."""
        return len(self._waiting)

    def fileno(self) -> int:
        """Number of the connection's socket."""
        return self._transport.fileno()

    def send(self, pulls: Iterable[PullT]) -> None:
        """Send pulls, all in one piece.

        Raises:
            ChannelClosed: If the connection is gone; the pulls count as in flight all the same.
        """
        frames = []
        waiting, opaques, now_s = self._waiting, self._opaques, self._listened_s
        for pull in pulls:
            opaque = next(opaques) & _OPAQUE_MASK
            waiting[opaque] = pull, now_s
            frames.append(pull.encode(opaque) if self._signer is None else self._signed(pull, opaque))
        if frames:
            self._transport.sendall(b"".join(frames))

    def receive(self, silence_s: float) -> list[tuple[PullT, PullResult | RocketMQError]]:
        """Wait for answers and return what has come, perhaps nothing yet; errors are those of single pulls.

        A pull without an answer after ``silence_s`` of waiting gets ``RequestTimeout``.

        Raises:
            RequestTimeout: If not a byte came for ``silence_s`` seconds, give or take one.
            ChannelClosed: If the connection ended.
            RemoteProtocolError: If what came is not the protocol.
        """
        count = self._await_bytes(silence_s)
        answers: list[tuple[PullT, PullResult | RocketMQError]] = []
        for opaque, answer in self._answers.take_in(count):
            if isinstance(answer, RemotingCommand):
                self._take_in(answer, answers)
            elif (found := self._waiting.pop(opaque, None)) is not None:
                answers.append((found[0], answer))
        if self._listened_s >= self._next_look_s:
            answers += self._overdue(silence_s)
        return answers

    def turn_over(self) -> None:
        """Receive elsewhere from now on; the bodies given so far are used up, or kept by ``keep``."""
        self._answers.buffer.turn_over()

    def keep(self, body: PulledBody) -> PulledBody:
        """The same body, out of the way of what is to be received; itself if it is none of this line."""
        return self._answers.buffer.keep(body)

    def pass_time(self, waited_s: float, silence_s: float) -> list[tuple[PullT, PullResult | RocketMQError]]:
        """Count time in which somebody waited for this line among others, and nothing came on it.

        Returns:
            The pulls that are given up now, as by ``receive``.
        """
        self._listened_s += waited_s
        return self._overdue(silence_s) if self._listened_s >= self._next_look_s else []

    def close(self) -> list[PullT]:
        """End the connection; the pulls that were not answered."""
        self._transport.shutdown()
        self._transport.close()
        unanswered = [pull for pull, _ in self._waiting.values()]
        self._waiting.clear()
        return unanswered

    def _signed(self, pull: PullT, opaque: int) -> bytes:
        assert self._signer is not None
        return PlainRequest(self._signer(pull.command())).encode(opaque)

    def _take_in(
        self, command: RemotingCommand, answers: list[tuple[PullT, PullResult | RocketMQError]]
    ) -> None:
        # Brokers ask only clients that sent heartbeats; whatever comes unasked is not for this line.
        found = self._waiting.pop(command.opaque, None) if command.is_response else None
        if found is None:
            logger.debug("! unexpected frame ignored code=%d address=%s", command.code, self.address)
        else:
            pull, _ = found
            answers.append((pull, pull_result(pull, command, self.address)))

    def _await_bytes(self, silence_s: float) -> int:
        waited_s = 0.0
        while True:
            began_s = self._clock.monotonic_s()
            count = self._transport.recv_into(self._answers.buffer.room())
            # What it took longer, nobody listened.
            waited_s += min(self._clock.monotonic_s() - began_s, RECEIVE_TICK_S)
            if count:
                self._listened_s += waited_s
                return count
            if count == 0:
                raise ChannelClosed(self.address, "the server ended it")
            if waited_s >= silence_s:
                oldest, _ = next(iter(self._waiting.values()), (None, 0.0))
                raise self._timeout(oldest, waited_s)

    def _overdue(self, silence_s: float) -> list[tuple[PullT, PullResult | RocketMQError]]:
        """Give up the pulls that were passed over; looked for now and then, oldest first."""
        self._next_look_s = self._listened_s + silence_s / 4
        overdue: list[tuple[PullT, PullResult | RocketMQError]] = []
        for opaque, (pull, sent_at_s) in list(self._waiting.items()):
            waited_s = self._listened_s - sent_at_s
            if waited_s < silence_s:
                break
            del self._waiting[opaque]
            overdue.append((pull, self._timeout(pull, waited_s)))
        return overdue

    def _timeout(self, pull: PullT | None, waited_s: float) -> RequestTimeout:
        asked = "anything" if pull is None else describe_request(pull.command())
        return RequestTimeout(self.address, asked, waited_s)
