"""The ranges of a task as an engine gets them: pieces that are read and handed to it.

A :class:`Source` reads; :class:`Arrivals` runs it, in a thread of its own or piece by piece in the engine's
threads, and calls the engine. The engine decides how much it takes:

* Of closed ranges it pauses the reading of all, since the memory of a task is what they fill, and a range
  that is read early is not consumed earlier.
* Of open ranges it holds only queues that have too many messages (``hold``, ``go_on``), since one slow queue
  must not delay the others.

The thread is a daemon: a broker that does not answer must not keep a worker process from ending.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

import pyarrow as pa

from pyspark_rocketmq.consume.part import QueueAck
from pyspark_rocketmq.consume.turns import RangeInstructions
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageQueue, QueueRange
from pyspark_rocketmq.source.schema import Arrival, EndReason, RangeEnd, ReadPiece

PULL_THRESHOLD_FOR_QUEUE: Final = 1000
"""Number of messages not passed at which a queue is held
(``DefaultMQPushConsumer.pullThresholdForQueue``)."""
_HELD_BYTES: Final = 64 << 20
"""Memory of messages not released at which a queue is held."""
_CHECK_S: Final = 0.5
"""How often a paused thread checks whether the engine has ended."""
_STOP_S: Final = 10.0
"""How long an engine that ends waits for the thread."""


class Source(Protocol):
    """Reads the ranges of one task; methods other than ``arrivals`` come from any thread and do not wait."""

    @property
    def is_open(self) -> bool:
        """Whether all ranges are open; otherwise all of them end."""
        ...

    def arrivals(self) -> Generator[Sequence[Arrival]]:
        """Yield pieces as soon as there are some, until every range has had its end.

        The pieces of a range come in order. The first one of an open range comes first of all, also without
        messages, so that its queue can be given up. Closing the generator releases all connections.

        Raises:
            RocketMQError: If a range cannot be read.
        """
        ...

    def hold(self, queue: MessageQueue) -> None:
        """Read no more of a queue for now; what is under way may still come."""
        ...

    def go_on(self, queue: MessageQueue) -> None:
        """Read a queue again."""
        ...

    def leave(self, queue: MessageQueue) -> None:
        """Read nothing more of a queue: its range has ended for the engine."""
        ...

    def end(self) -> None:
        """Wake ``arrivals``, whatever it waits for, because the task is over."""
        ...


class ClosedSource:
    """Reads ranges that end, as ``made`` yields them; goes on only when the caller wants more."""

    is_open = False

    def __init__(self, made: Iterable[Sequence[Arrival]]) -> None:
        self._made = made

    def arrivals(self) -> Generator[Sequence[Arrival]]:
        """See :class:`Source`."""
        yield from self._made

    def hold(self, queue: MessageQueue) -> None:
        """Do nothing: the reading of closed ranges is paused as a whole."""

    def go_on(self, queue: MessageQueue) -> None:
        """Do nothing; see :meth:`hold`."""

    def leave(self, queue: MessageQueue) -> None:
        """Do nothing: the rest of a closed range is small."""

    def end(self) -> None:
        """Do nothing: no pull waits for messages."""


class TakesArrivals(Protocol):
    """The run of a range; both properties are for any thread."""

    @property
    def passed(self) -> int:
        """Number of messages passed, of all that have arrived."""
        ...

    @property
    def freed_bytes(self) -> int:
        """Memory of messages that is released, of all that has arrived."""
        ...


RunT = TypeVar("RunT", bound=TakesArrivals)


@dataclass(slots=True, eq=False)
class ArrivingRange(Generic[RunT]):
    """One range in an engine's hands."""

    planned: QueueRange
    run: RunT | None = None
    """Its run, once it has begun."""
    arrivals: deque[Arrival] = field(default_factory=deque)
    """Pieces that the run has not taken in."""
    end: RangeEnd | None = None
    """Its end, once that has arrived."""
    is_whole: bool = False
    """Whether its end has arrived, perhaps after the range has ended here."""
    is_held: bool = False
    """Whether no more is read of its queue for now."""
    arrived: int = 0
    """Number of messages that have arrived."""
    arrived_bytes: int = 0
    """Memory of all pieces that have arrived."""

    def add(self, arrival: Arrival) -> None:
        """Add a piece."""
        self.arrived += sum(map(len, arrival.messages))
        self.arrived_bytes += arrival.nbytes
        self.end, self.is_whole = arrival.end, arrival.is_end
        self.arrivals.append(arrival)

    @property
    def held(self) -> int:
        """Number of messages that have arrived and are not passed."""
        return self.arrived - (0 if self.run is None else self.run.passed)

    @property
    def held_bytes(self) -> int:
        """Memory of the messages that have arrived and are not released."""
        return self.arrived_bytes - (0 if self.run is None else self.run.freed_bytes)


class Arrivals:
    """Reads a task's ranges, in a thread or piece by piece; used once."""

    def __init__(self, source: Source) -> None:
        """Begin nothing yet."""
        self._source = source
        self._may_read = threading.Event()
        self._may_read.set()
        self._has_ended = False
        self._thread: threading.Thread | None = None
        self._made: Generator[Sequence[Arrival]] | None = None
        """The pieces, if the engine reads them itself."""
        self._reads = threading.Lock()
        """Held by the thread that reads a piece."""
        self.leave = source.leave

    def begin(
        self,
        arrived: Callable[[Sequence[Arrival]], None],
        over: Callable[[BaseException | None], None],
    ) -> None:
        """Begin to read.

        Args:
            arrived: Called with each list of pieces, by the thread, which reads on when it returns.
            over: Called once, after the last piece, with the error if there was one.
        """
        self._thread = threading.Thread(
            target=self._run, args=(arrived, over), name="rocketmq-arrivals", daemon=True
        )
        self._thread.start()

    def read(self) -> Sequence[Arrival] | None:
        """Read the next pieces in this thread, instead of :meth:`begin`; None after the last ones.

        For one thread at a time.
        """
        with self._reads:
            if self._has_ended:
                return None
            if self._made is None:
                self._made = self._source.arrivals()
            return next(self._made, None)

    def hold_if_full(self, one: ArrivingRange[Any], most_held: int) -> None:
        """Read no more of an open range's queue while too many of its messages wait; then read on (D13).

        ``most_held`` is the number of messages not passed at which no more are read.
        """
        is_full = one.held >= most_held or one.held_bytes >= _HELD_BYTES
        if one.is_held != is_full:
            one.is_held = is_full
            (self._source.hold if is_full else self._source.go_on)(one.planned.queue)

    def pause(self) -> None:
        """Have the thread read no more after its current call of ``arrived``; from any thread."""
        self._may_read.clear()

    def resume(self) -> None:
        """Have the thread read again; from any thread."""
        self._may_read.set()

    def end(self) -> None:
        """Read nothing more, and close the source. Wait for a thread that reads, unless a broker keeps it."""
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
                # Release them before waiting for the next ones.
                del pieces
                while not (self._may_read.wait(_CHECK_S) or self._has_ended):
                    pass
                if self._has_ended:
                    break
            made.close()
        except BaseException as raised:  # noqa: BLE001 - it is the engine's
            error = raised
        over(error)


def report_stand(instructions: RangeInstructions, ack: QueueAck, end: RangeEnd | None) -> None:
    """Report an open range that has ended by itself: only another plan can bring its queue further.

    ``end`` is the reader's, if the range has ended because of it.
    """
    if instructions.is_given_up(ack.queue) or (end is not None and end.reason is EndReason.STOPPED):
        return
    is_reset = end is not None and end.reset_to is not None
    reason = ack.finished if end is None else f"its range ended: {end.reason}"
    instructions.stands(ack.queue, "an operator has reset it" if is_reset else reason, is_reset=is_reset)


def two_ranges(queue: MessageQueue) -> RocketMQError:
    """Return the error for a second range of a queue."""
    return RocketMQError(
        f"{queue}: two ranges of one batch came to one task; nothing of the batch is committed. Do not copy "
        "or union the rows of format('rocketmq') before they are consumed."
    )


def end_did_not_come(queue: MessageQueue) -> RocketMQError:
    """Return the error for a range of which the source has forgotten the end."""
    return RocketMQError(f"{queue}: the end of its range did not come.")


def whole_ranges(pieces: Iterable[ReadPiece]) -> Iterator[list[Arrival]]:
    """Yield the ranges in ``pieces``, each as a whole when its end has come."""
    read: list[pa.RecordBatch] = []
    for piece in pieces:
        if not isinstance(piece, RangeEnd):
            read.append(piece)
            continue
        yield [Arrival(piece.planned, read, piece, nbytes=sum(each.nbytes for each in read))]
        read = []
