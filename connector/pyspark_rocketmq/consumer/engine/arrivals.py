"""Reads a task's ranges, and passes their messages to the engine piece by piece, as they arrive.

A *range* is a part of one queue, which a task has to read and consume. A *piece* (``Arrival``) has the next
messages of a range, its end, or both.

A :class:`Source` reads. :class:`Arrivals` runs the source, either in a separate thread or, piece by piece, in
the engine's threads, and gives the pieces to the engine. When too many messages wait in the task, the engine
slows the reading:

* Closed ranges (micro-batches): the engine pauses the reading of all ranges. This delays nothing, because a
  range that is read early is not consumed earlier.
* Open ranges (real time): an engine that calls a listener stops reading only the queues that have too many
  messages (``hold``, ``go_on``): one slow queue must not delay the others. A listener that has had all
  messages and has not committed them gets further ones, however many it has had: it decides when it commits.
  Only the options ``pullThresholdForQueue`` and ``pullThresholdSizeForQueue`` limit their number and size.

The thread is a daemon: a broker that does not answer must not keep a worker process from ending.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

import pyarrow as pa

from pyspark_rocketmq.consume.part import QueueAck
from pyspark_rocketmq.consume.read_range import PullThresholds
from pyspark_rocketmq.consume.turns import RangeInstructions
from pyspark_rocketmq.consumer.engine.output import Consumed
from pyspark_rocketmq.consumer.engine.range import late_reset
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageExt, MessageQueue, QueueRange
from pyspark_rocketmq.source.schema import Arrival, EndReason, RangeEnd, ReadPiece

logger = logging.getLogger(__name__)

PULL_THRESHOLD_FOR_QUEUE: Final = 1000
"""Number of waiting messages at which no more are read from an open range's queue
(``DefaultMQPushConsumer.pullThresholdForQueue``)."""
_HELD_BYTES: Final = 64 << 20
"""Memory of a queue's messages, in bytes, at which no more are read from an open range's queue."""
_CHECK_S: Final = 0.5
"""Time between two checks of a paused thread whether the engine has ended, in seconds."""
_STOP_S: Final = 10.0
"""Longest time for which an engine that ends waits for the thread, in seconds."""


class Source(Protocol):
    """Reads the ranges of one task; its methods, except ``arrivals``, are for any thread and do not wait."""

    @property
    def is_open(self) -> bool:
        """Whether all ranges are open (without a planned end); otherwise all of them are closed."""
        ...

    @property
    def thresholds(self) -> PullThresholds:
        """Limits of the messages of each open range's queue that wait for a COMMIT: number and size."""
        ...

    def arrivals(self) -> Generator[Sequence[Arrival]]:
        """Yield lists of pieces as they arrive, until every range has ended or was left (:meth:`leave`).

        A piece has the next messages of a range, its end, or both. The pieces of a range come in order. Each
        open range has its first piece at the very beginning, even if there are no messages, so that its queue
        can be given up. Closing the generator releases all connections.

        Raises:
            RocketMQError: If a range cannot be read.
        """
        ...

    def hold(self, queue: MessageQueue) -> None:
        """Read no more of a queue until :meth:`go_on`; answers that are under way may still come."""
        ...

    def go_on(self, queue: MessageQueue) -> None:
        """Continue to read a queue that :meth:`hold` has stopped."""
        ...

    def leave(self, queue: MessageQueue) -> None:
        """Read nothing more of a queue: its range has ended for the engine."""
        ...

    def end(self) -> None:
        """Wake ``arrivals``, whatever it waits for, because the task is over."""
        ...


class ClosedSource:
    """A source of closed ranges (with planned ends): yields the pieces of ``made``, when the caller asks."""

    is_open = False
    thresholds = PullThresholds()

    def __init__(self, made: Iterable[Sequence[Arrival]]) -> None:
        self._made = made

    def arrivals(self) -> Generator[Sequence[Arrival]]:
        """Yield the lists of pieces that ``made`` yields."""
        yield from self._made

    def hold(self, queue: MessageQueue) -> None:
        """Do nothing: closed ranges are paused all together, not one by one."""

    def go_on(self, queue: MessageQueue) -> None:
        """Do nothing: closed ranges are paused all together, not one by one."""

    def leave(self, queue: MessageQueue) -> None:
        """Do nothing: the rest of a closed range is small."""

    def end(self) -> None:
        """Do nothing: with closed ranges no pull waits for messages at a broker."""


class TakesArrivals(Protocol):
    """The consumption of one range; any thread may read both properties."""

    @property
    def passed(self) -> int:
        """Number of arrived messages below the range's progress: they need no further delivery."""
        ...

    @property
    def freed_bytes(self) -> int:
        """Memory of arrived messages that was released, in bytes."""
        ...


RunT = TypeVar("RunT", bound=TakesArrivals)


@dataclass(slots=True, eq=False)
class ArrivingRange(Generic[RunT]):
    """One range that an engine consumes, and what has arrived of it."""

    planned: QueueRange
    run: RunT | None = None
    """The consumption of the range; None before it begins."""
    arrivals: deque[Arrival] = field(default_factory=deque)
    """Pieces that have arrived and that the run has not taken yet."""
    last: Consumed | None = None
    """The last result of the range, without its rows; None before the range has ended for the engine."""
    end: RangeEnd | None = None
    """The end of the range; None before it has arrived."""
    is_whole: bool = False
    """Whether the range's end has arrived, even if the engine had given the range up before."""
    is_held: bool = False
    """Whether no more is read from the queue now, because too many messages wait."""
    is_blocked: bool = False
    """Whether no more is read before the listener commits some of the messages that it has had."""
    arrived: int = 0
    """Number of messages that have arrived."""
    arrived_bytes: int = 0
    """Memory of all pieces that have arrived, in bytes."""
    _bodies: deque[tuple[int, int]] = field(default_factory=deque)
    """For each piece with messages that still need delivery: how many messages of the range had arrived with
    it, and the size of its bodies, in bytes."""
    _body_bytes: int = 0
    """Size of all bodies in ``_bodies`` together, in bytes."""

    def add(self, arrival: Arrival) -> None:
        """Add a piece that has arrived."""
        self.arrived += sum(map(len, arrival.messages))
        self.arrived_bytes += arrival.nbytes
        size = sum(map(_body_bytes, arrival.messages))
        self._bodies.append((self.arrived, size))
        self._body_bytes += size
        self._drop_passed()
        self.end, self.is_whole = arrival.end, arrival.is_end
        self.arrivals.append(arrival)

    @property
    def held(self) -> int:
        """Number of messages that have arrived and still need delivery."""
        return self.arrived - (0 if self.run is None else self.run.passed)

    @property
    def held_bytes(self) -> int:
        """Memory of the messages that have arrived and are still kept, in bytes."""
        return self.arrived_bytes - (0 if self.run is None else self.run.freed_bytes)

    @property
    def is_moved(self) -> bool:
        """Whether what has arrived must not be delivered any more: see :meth:`RangeEnd.moves`."""
        return self.end is not None and self.end.moves(self.planned)

    @property
    def late_reset(self) -> Consumed | None:
        """Further result with a reset that arrived after the range had its last result; None without one."""
        return None if self.last is None else late_reset(self.last, self.end)

    def has_reached(self, thresholds: PullThresholds) -> bool:
        """Return whether the messages that have arrived and still need delivery reach a threshold."""
        self._drop_passed()
        most, most_bytes = thresholds
        is_long = most is not None and self.held >= most
        return is_long or (most_bytes is not None and self._body_bytes >= most_bytes)

    def _drop_passed(self) -> None:
        passed = self.arrived - self.held
        while self._bodies and self._bodies[0][0] <= passed:
            self._body_bytes -= self._bodies.popleft()[1]


class Arrivals:
    """Reads one task's ranges from a :class:`Source`, and gives the engine their messages piece by piece.

    Either a separate thread reads (:meth:`begin`), or the engine's own threads do (:meth:`read`).
    """

    def __init__(self, source: Source) -> None:
        """Prepare to read ``source``; :meth:`begin` or :meth:`read` starts."""
        self._source = source
        self._may_read = threading.Event()
        self._may_read.set()
        self._has_ended = False
        self._thread: threading.Thread | None = None
        self._made: Generator[Sequence[Arrival]] | None = None
        """The source's pieces, if the engine reads them in its own threads."""
        self._reads = threading.Lock()
        """Held by the engine's thread that is reading a piece."""
        self.leave = source.leave

    def begin(
        self,
        arrived: Callable[[Sequence[Arrival]], None],
        over: Callable[[BaseException | None], None],
    ) -> None:
        """Start a thread that reads.

        Args:
            arrived: Called by the thread with each list of pieces; when it returns, the thread reads on or is
                paused.
            over: Called once by the thread, at its end, with the error, or None if there was none.
        """
        self._thread = threading.Thread(
            target=self._run, args=(arrived, over), name="rocketmq-arrivals", daemon=True
        )
        self._thread.start()

    def read(self) -> Sequence[Arrival] | None:
        """Read and return the next pieces, without the thread of :meth:`begin`.

        Return None after the last pieces, and after :meth:`end`. Only one thread at a time may call this.
        """
        with self._reads:
            if self._has_ended:
                return None
            if self._made is None:
                self._made = self._source.arrivals()
            return next(self._made, None)

    def hold_if_full(self, one: ArrivingRange[Any], most_held: int, *, has_had_all: bool = False) -> None:
        """Stop reading an open range's queue while its waiting messages are too many or too large.

        Otherwise read the queue again, if it was stopped. Messages are too many from ``most_held`` on, unless
        option ``pullThresholdForQueue`` names another number. ``has_had_all``: the listener has had all
        messages that have arrived, so that it may need more before it commits. Then only the options limit
        number and size.
        """
        thresholds = self._source.thresholds
        if has_had_all:
            is_full = one.has_reached(thresholds)
            if is_full and not one.is_blocked:
                _report_blocked(one, thresholds)
            one.is_blocked = is_full
        else:
            most_held = most_held if thresholds.messages is None else thresholds.messages
            # The newest piece is kept even if all its messages are passed.
            is_full = one.held >= most_held or (one.held > 0 and one.held_bytes >= _HELD_BYTES)
        if one.is_held != is_full:
            one.is_held = is_full
            (self._source.hold if is_full else self._source.go_on)(one.planned.queue)

    def pause(self) -> None:
        """Pause the thread after its current call of ``arrived``; any thread may call this."""
        self._may_read.clear()

    def resume(self) -> None:
        """Let the thread read again; any thread may call this."""
        self._may_read.set()

    def end(self) -> None:
        """Stop reading and close the source; wait some seconds at most for a thread that is reading."""
        self._has_ended = True
        self._may_read.set()
        self._source.end()
        if self._thread is not None:
            self._thread.join(_STOP_S)
        elif self._made is not None and self._reads.acquire(timeout=_STOP_S):
            self._made.close()
            self._reads.release()

    def _run(
        self, arrived: Callable[[Sequence[Arrival]], None], over: Callable[[BaseException | None], None]
    ) -> None:
        error: BaseException | None = None
        made = self._source.arrivals()
        try:
            for pieces in made:
                arrived(pieces)
                # Release these pieces before waiting for the next ones.
                del pieces
                while not (self._may_read.wait(_CHECK_S) or self._has_ended):
                    pass
                if self._has_ended:
                    break
            made.close()
        except BaseException as raised:  # noqa: BLE001 - it is the engine's
            error = raised
        over(error)


def _report_blocked(one: ArrivingRange[Any], thresholds: PullThresholds) -> None:
    by_number = thresholds.messages is not None and one.held >= thresholds.messages
    option = "pullThresholdForQueue" if by_number else "pullThresholdSizeForQueue"
    logger.error(
        "The listener has had %d messages without a COMMIT, and %s allows no more: the queue is blocked. "
        "COMMIT after fewer messages, or raise %s. %s",
        one.held,
        option,
        option,
        one.planned.queue,
    )


def _body_bytes(messages: pa.RecordBatch | list[MessageExt]) -> int:
    """Return about how many bytes the bodies of messages have."""
    if isinstance(messages, list):
        return sum([len(message.body) for message in messages])
    return int(messages.column("body").nbytes) if "body" in messages.schema.names else 0


def report_stand(instructions: RangeInstructions, ack: QueueAck, end: RangeEnd | None) -> None:
    """Report to the driver that an open range cannot go on: only another plan can continue its queue.

    Report nothing if the queue is given up, or the reader was stopped.

    ``end`` is the reader's reason, if the reader has ended the range; otherwise ``ack`` has the reason.
    """
    if end is not None:
        report_end(instructions, end)
    elif not instructions.is_given_up(ack.queue):
        instructions.stands(ack.queue, ack.finished)


def report_end(instructions: RangeInstructions, end: RangeEnd) -> None:
    """Report to the driver that the reader has ended an open range, so that only another plan continues it.

    Report nothing if the queue is given up, or the reader was stopped. An engine that calls a listener
    reports immediately when the group continues at another offset (``ArrivingRange.is_moved``), because the
    running call may be long. It reports other ends when the messages before them are consumed.
    """
    queue = end.planned.queue
    if instructions.is_given_up(queue) or end.reason is EndReason.STOPPED:
        return
    is_reset = end.reset_to is not None
    reason = "an operator has reset it" if is_reset else f"reading it ended: {end.reason}"
    instructions.stands(queue, reason, is_reset=is_reset)


def two_ranges(queue: MessageQueue) -> RocketMQError:
    """Return the error for a second range of the same queue in one task."""
    return RocketMQError(
        f"{queue}: a task got two ranges of this queue in one batch, so messages could be consumed twice. "
        "Nothing of the batch is committed. Do not copy or union the rows of format('rocketmq') before they "
        "are consumed."
    )


def end_did_not_come(queue: MessageQueue) -> RocketMQError:
    """Return the error for a range whose end the source has not delivered."""
    return RocketMQError(
        f"{queue}: reading stopped before the end of the range was reached; this is a bug of "
        "pyspark-rocketmq; please report it. Run the query again."
    )


def whole_ranges(pieces: Iterable[ReadPiece]) -> Iterator[list[Arrival]]:
    """Join ``pieces`` to whole ranges; yield each range, in a list with one item, when its end has come."""
    read: list[pa.RecordBatch] = []
    for piece in pieces:
        if not isinstance(piece, RangeEnd):
            read.append(piece)
            continue
        yield [Arrival(piece.planned, read, piece, nbytes=sum(each.nbytes for each in read))]
        read = []
