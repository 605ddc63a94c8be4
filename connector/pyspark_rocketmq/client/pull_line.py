"""A connection that one thread pulls on, many pulls at a time: the fast way to read a queue's range.

Why not a channel: its reader thread wakes once per answer and then contends with the thread that decodes messages
for Python's lock.  Here one thread sends the next pulls in one piece, takes everything that has come in one piece,
and decodes in between while the broker works; that costs half the processor time, on the broker's side too, which
sees bursts instead of single requests.

Rule 1: one thread.  Rule 2: after any error the line is of no use: close it.  Rule 3: silence is measured while
waiting, never while the caller was busy with something else: the answers may have come meanwhile.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable
from typing import Final, Generic, TypeVar

from pyspark_rocketmq.client.outgoing import PlainRequest, Signer, describe_request
from pyspark_rocketmq.client.pull import PullRequest, PullResult, pull_result
from pyspark_rocketmq.client.transport import Transport
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.errors import ChannelClosed, RequestTimeout, RocketMQError
from pyspark_rocketmq.wire.framing import FrameDecoder

logger = logging.getLogger(__name__)

TagT = TypeVar("TagT")

_RECEIVE_BUFFER_BYTES: Final = 1 << 20
_OPAQUE_MASK: Final = 0x7FFFFFFF


class PullLine(Generic[TagT]):
    """Pulls in flight on one connection; each is known to the caller by a tag of its own choice.

    No suspended pulls: a broker that holds one is silent, and silence is taken for failure.
    """

    def __init__(self, transport: Transport, clock: Clock, *, signer: Signer | None = None) -> None:
        self._transport = transport
        self._clock = clock
        self._signer = signer
        self._decoder = FrameDecoder()
        self._buffer = memoryview(bytearray(_RECEIVE_BUFFER_BYTES))
        self._opaques = itertools.count()
        self._waiting: dict[int, tuple[TagT, PullRequest]] = {}

    @property
    def address(self) -> str:
        """``host:port`` of the broker."""
        return self._transport.address

    @property
    def in_flight(self) -> int:
        """Pulls sent and not answered."""
        return len(self._waiting)

    def send(self, pulls: Iterable[tuple[TagT, PullRequest]]) -> None:
        """Send pulls, all in one piece.

        Raises:
            ChannelClosed: If the connection is gone; the pulls count as in flight all the same.
        """
        frames = []
        for tag, request in pulls:
            opaque = next(self._opaques) & _OPAQUE_MASK
            self._waiting[opaque] = (tag, request)
            frames.append(self._encode(request, opaque))
        if frames:
            self._transport.sendall(b"".join(frames))

    def receive(self, silence_s: float) -> list[tuple[TagT, PullResult | RocketMQError]]:
        """Wait for answers and return what has come, perhaps nothing yet; errors are those of single pulls.

        Raises:
            RequestTimeout: If not a byte came for ``silence_s`` seconds, give or take one.
            ChannelClosed: If the connection ended.
            RemoteProtocolError: If what came is not the protocol.
        """
        count = self._await_bytes(silence_s)
        answers: list[tuple[TagT, PullResult | RocketMQError]] = []
        for command in self._decoder.feed(self._buffer[:count]):
            # Brokers ask only clients that sent heartbeats; whatever comes unasked is not for this line.
            found = self._waiting.pop(command.opaque, None) if command.is_response else None
            if found is None:
                logger.debug("! unexpected frame ignored code=%d address=%s", command.code, self.address)
                continue
            tag, request = found
            answers.append((tag, pull_result(request, command, self.address)))
        return answers

    def close(self) -> list[TagT]:
        """End the connection; the tags of the pulls that were not answered."""
        self._transport.shutdown()
        self._transport.close()
        unanswered = [tag for tag, _ in self._waiting.values()]
        self._waiting.clear()
        return unanswered

    def _encode(self, request: PullRequest, opaque: int) -> bytes:
        if self._signer is None:
            return request.encode(opaque)
        return PlainRequest(self._signer(request.command())).encode(opaque)

    def _await_bytes(self, silence_s: float) -> int:
        began_s = self._clock.monotonic_s()
        while True:
            count = self._transport.recv_into(self._buffer)
            if count:
                return count
            if count == 0:
                raise ChannelClosed(self.address, "the server ended it")
            waited_s = self._clock.monotonic_s() - began_s
            if waited_s >= silence_s:
                raise RequestTimeout(self.address, self._oldest(), waited_s)

    def _oldest(self) -> str:
        request = next((request for _, request in self._waiting.values()), None)
        return "anything" if request is None else describe_request(request.command())
