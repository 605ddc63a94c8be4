"""Consumes one range in order of sharding keys: several threads call the listener, each for another key.

:mod:`pyspark_rocketmq.consume.keyed` decides what is delivered. Several workers (threads of the task) take
part in a run at the same time. They share its state under the run's guard, a lock that no worker holds while
it calls the listener.

A *run* consumes one range. Only rows of messages below the lowest unfinished message go to the sink: the
offset of this message is the run's progress and the sink's watermark. Rows of finished messages above it
wait, in memory, and beyond 8 MiB in the range's temporary file. If the run ends before the lower message is
finished, the waiting rows are dropped, and their messages are delivered again. So the sink gets a row only
from the run that moves the offset past the row's message, and rows are in the order of the queue, across
keys, too.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import chain
from math import inf
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_rocketmq.consume.keyed import DueLetters, Key, KeyedConsumption, KeyedDelivery
from pyspark_rocketmq.consume.orderly import Effect, OrderlySettings, Outcome
from pyspark_rocketmq.consume.turns import KEY_PACE
from pyspark_rocketmq.consumer.engine.delivery_times import EachDeliveryTimes
from pyspark_rocketmq.consumer.engine.orderly import GIVEN_BACK, OrderlyRun, RangeConsumer, no_listener
from pyspark_rocketmq.errors import ListenerError
from pyspark_rocketmq.listeners.arrow_listener import ArrowListener
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext, MessageListenerOrderly
from pyspark_rocketmq.listeners.row_buffer import (
    IN_MEMORY_BYTES,
    Emitted,
    SpilledRows,
    SpillFile,
    memory_of,
    spill,
)
from pyspark_rocketmq.listeners.row_validation import OutputColumns, RowColumns
from pyspark_rocketmq.model import MessageExt, QueueRange
from pyspark_rocketmq.source.schema import Arrival
from pyspark_rocketmq.wire.properties import SHARDING_KEY

_Held = tuple[int, int, list[Emitted]]
"""A message's index, the memory of its rows in bytes, and the rows."""


class HeldRows:
    """Rows that wait: their messages are not committed, or are above the lowest unfinished message.

    If the rows take too much memory, they are written to a file.
    """

    def __init__(self, columns: RowColumns, file: SpillFile) -> None:
        self._columns = columns
        self._file = file
        self._nbytes = 0
        self._above: list[_Held] = []
        """Rows of finished messages above the lowest unfinished one, as a heap by index."""
        self._pending: dict[Key, list[_Held]] = {}
        """Rows of messages that wait for a COMMIT, by key."""

    @property
    def has_finished(self) -> bool:
        """Whether there are rows of finished messages."""
        return bool(self._above)

    def finish(self, index: int, rows: list[Emitted]) -> None:
        """Add the rows of a finished message, which wait until all lower messages are finished."""
        for held in self._measured([(index, rows)]):
            heappush(self._above, held)
        self._spill_if_large()

    def accumulate(self, key: Key, rows: Iterable[tuple[int, list[Emitted]]]) -> None:
        """Add the rows of messages of ``key`` that wait for a COMMIT, each with its message's index."""
        self._pending.setdefault(key, []).extend(self._measured(rows))
        self._spill_if_large()

    def commit(self, key: Key) -> None:
        """Note that all messages of ``key`` that waited for a COMMIT are finished."""
        for held in self._pending.pop(key, ()):
            heappush(self._above, held)

    def roll_back(self, key: Key) -> None:
        """Drop the rows of all messages of ``key`` that waited for a COMMIT."""
        for _, nbytes, rows in reversed(self._pending.pop(key, ())):
            self._nbytes -= nbytes
            self._file.drop(rows)

    def spill_to(self, file: SpillFile) -> None:
        """Write further rows to another file."""
        self._file = file

    def below(self, index: int) -> Iterator[list[Emitted]]:
        """Take the rows of finished messages below ``index``, in order."""
        while self._above and self._above[0][0] < index:
            _, nbytes, rows = heappop(self._above)
            self._nbytes -= nbytes
            yield rows

    def _measured(self, rows: Iterable[tuple[int, list[Emitted]]]) -> Iterator[_Held]:
        for index, emitted in rows:
            nbytes = memory_of(emitted)
            self._nbytes += nbytes
            yield index, nbytes, emitted

    def _spill_if_large(self) -> None:
        if self._nbytes > IN_MEMORY_BYTES:
            self._above = list(self._spilled(self._above))
            heapify(self._above)
            self._pending = {key: list(self._spilled(held)) for key, held in self._pending.items()}
            self._nbytes = 0

    def _spilled(self, held: Iterable[_Held]) -> Iterator[_Held]:
        for index, _, rows in held:
            yield index, 0, spill(rows, self._columns, self._file)


class _KeyedContext(ConsumeOrderlyContext):
    """The context of a delivery of messages with one key; other keys' messages may be between them."""

    __slots__ = ("_offsets",)

    def __init__(
        self,
        messages: Sequence[MessageExt],
        output: OutputColumns,
        accumulated: int,
        file: SpillFile,
        offsets: Collection[int],
    ) -> None:
        super().__init__(messages, output, accumulated, file)
        self._offsets = offsets

    def _check_delivered(self, message: MessageExt) -> None:
        super()._check_delivered(message)
        if message.queue_offset not in self._offsets:
            raise ListenerError(
                f"emit() got the message at {self.message_queue} queueOffset={message.queue_offset}, "
                "which is not in this call: with orderly_by='sharding_key' a call has messages of one key. "
                "Give emit() a message of the call, because a row is acknowledged with its message."
            )


class KeyedTurn:
    """The deliveries of a range by one of several workers (threads), until it takes another range."""

    def __init__(self, run: KeyedRun, now_s: Callable[[], float]) -> None:
        self._run = run
        self._now_s = now_s
        self.listener: MessageListenerOrderly = no_listener
        self.ends_turn = False
        self.call_began_s = self.answered_s = now_s()

    def consume(self, for_s: float = inf) -> None:
        """Deliver until nothing is left for this worker, ``for_s`` seconds are over, or ``ends_turn`` is set.

        A running call is not interrupted.
        """
        self._run.work(self, for_s)

    def call_lasts_s(self) -> float:
        """Return how many seconds ago the newest listener call began, even if the call has ended.

        Called by another thread.
        """
        return self._now_s() - self.call_began_s


class KeyedRun(OrderlyRun):
    """The consumption of one planned range, in order for each sharding key, by several workers (threads)."""

    _machine: KeyedConsumption  # type: ignore[assignment]  # the base uses what both machines have
    _times: EachDeliveryTimes
    _times_of = EachDeliveryTimes

    def __init__(
        self,
        planned: QueueRange,
        messages: Sequence[MessageExt],
        *,
        settings: OrderlySettings,
        arrivals: deque[Arrival] | None = None,
        **more: Any,
    ) -> None:
        """Prepare the run; ``more`` are further arguments of :class:`OrderlyRun`.

        ``messages`` are the whole range if ``arrivals`` is None. Otherwise ``arrivals`` has further pieces,
        and any thread may add more to it. A call does not wait for messages that have not arrived.
        """
        super().__init__(planned, messages, settings=settings, arrivals=arrivals, **more)
        self.offer: Callable[[float], None] = lambda _: None
        """Called when one more worker can deliver; gets the monotonic time from which on that worker can."""
        self._offered_s = inf
        """Monotonic time that the newest offer named; infinite if a worker has begun since."""
        self._held = HeldRows(self._output.rows, self._file)
        self._machine = KeyedConsumption(
            keys=self._messages.property_values(SHARDING_KEY),
            settings=settings,
            started_s=self._started_s,
            retry_counts=self._earlier_retries(),
            stored_times=lambda index: self._messages.objects_at([index])[0].reconsume_times,
            is_whole=arrivals is None,
        )

    def turn(self) -> KeyedTurn:
        """Begin the turn of a worker, which delivers messages of this range until it takes another range."""
        with self._guard:
            self._offered_s = inf
        return KeyedTurn(self, self._now_s)

    def consume(self, for_s: float = inf) -> list[Emitted]:
        """Deliver in one turn, by this thread; return the rows since the last cut that may go to the sink.

        The turn ends when nothing is left to deliver for now, or after ``for_s`` seconds.
        """
        turn = self.turn()
        turn.listener = self.listener
        turn.consume(for_s)
        return self._rows.rows

    @property
    def leads(self) -> bool:  # type: ignore[override]  # a constant in the base
        """Whether the task must wait for this suspended run, even if it has nothing else to do.

        It must while finished messages wait in the run for a message whose key is suspended, for 60 s at
        most.
        """
        return self._machine.leads(self._now_s())

    def due_s(self) -> float:
        """Return the monotonic time from which on one more worker can deliver; infinite if none can."""
        with self._guard:
            return self._now_s() if self._arrivals else self._machine.due_s(self._now_s())

    def _extend_machine(self, count: int, now_s: float, retried: dict[int, int], *, is_last: bool) -> None:
        keys = self._messages.property_values(SHARDING_KEY, len(self._messages) - count)
        self._machine.extend(keys, now_s, retry_counts=retried, is_last=is_last)

    def _spill_to(self, file: SpillFile) -> None:
        super()._spill_to(file)
        self._held.spill_to(file)

    def pause_left_s(self) -> float:
        """Return for how many seconds no worker needs to take the queue, because keys are suspended.

        The time ends when a suspension of one of the keys ends or, if that is earlier, when the task need no
        longer wait for this run (:attr:`leads`).
        """
        machine, now_s = self._machine, self._now_s()
        wakes_at_s = machine.wakes_at_s or now_s
        ends_s = min(wakes_at_s, machine.lead_ends_s) if machine.leads(now_s) else wakes_at_s
        return max(0.0, ends_s - now_s)

    def work(self, turn: KeyedTurn, for_s: float) -> None:
        """Deliver for one worker's ``turn``; several workers call this at the same time.

        Raises:
            SchemaError: If the listener emitted a row that breaks the output schema.
            RocketMQError: If there is no space for the rows.
        """
        with self._guard:
            self._work(turn, for_s)
            self._forget()

    def _work(self, turn: KeyedTurn, for_s: float) -> None:
        machine, now_s = self._machine, self._now_s
        is_given_up, queue = self._instructions.is_given_up, self._planned.queue
        arrived, arrivals = self._messages, self._arrivals
        pick = arrived.arrow_at if isinstance(turn.listener, ArrowListener) else arrived.objects_at
        turn.call_began_s = began_s = now_s()
        self._go_on(began_s)
        while not turn.ends_turn:
            if arrivals or is_given_up(queue):
                self._take_in_changes()
            at_s = now_s()
            if (work := machine.next_work(at_s)) is None:
                break
            self._offer_more()
            if isinstance(work, DueLetters):
                self._send_due(work)
            else:
                self._times.began_each(work.indexes, at_s)
                self._call(turn, work, pick(work.indexes, work.retry_counts))
            if turn.answered_s - began_s >= for_s:
                break

    def _offer_more(self) -> None:
        due_s = self._machine.due_s(self._now_s())
        if due_s >= self._offered_s:
            return
        self._offered_s = due_s
        self._guard.release()
        try:
            self.offer(due_s)
        finally:
            self._guard.acquire()

    def _call(self, turn: KeyedTurn, work: KeyedDelivery, messages: Sequence[MessageExt]) -> None:
        key, indexes = work.key, work.indexes
        context = self._context_of(work, messages)
        outcome = self._deliver(turn, messages, context, partial(self._machine.answered, key))
        emitted = context.take_emitted()
        if outcome.effect in GIVEN_BACK:
            self._failed += 1
            self._file.drop(emitted)
            emitted = []
            if outcome.dead_letters:
                places = {index: place for place, index in enumerate(indexes)}
                letters = [(index, messages[places[index]]) for index in outcome.dead_letters]
                outcome = self._send(key, letters)
        self._apply(key, outcome.effect, self._by_message(indexes, emitted))

    def _context_of(self, work: KeyedDelivery, messages: Sequence[MessageExt]) -> ConsumeOrderlyContext:
        if len(work.indexes) == 1:
            return ConsumeOrderlyContext(messages, self._output, work.accumulated, self._file)
        offsets = set(map(self._offset_at, work.indexes))
        return _KeyedContext(messages, self._output, work.accumulated, self._file, offsets)

    def _apply(self, key: Key, effect: Effect, rows: Sequence[tuple[int, list[Emitted]]]) -> None:
        """Apply the effect of an answer to rows: pass them on to the sink, keep them, or drop them."""
        held = self._held
        if effect is Effect.COMMIT:
            held.commit(key)
            self._finish(rows)
        elif effect is Effect.ACCUMULATE:
            held.accumulate(key, rows)
        elif effect is Effect.ROLL_BACK:
            held.roll_back(key)
        for emitted in held.below(self._machine.committed):
            self._rows.add(emitted)
        if not self._is_reported:
            self._report_settled()

    def _finish(self, rows: Sequence[tuple[int, list[Emitted]]]) -> None:
        above, committed = self._held.has_finished, self._machine.committed
        for index, emitted in rows:
            if above or index >= committed:
                self._held.finish(index, emitted)
            else:
                # The usual case: calls that take equally long end in order, so the rows need not wait.
                self._rows.add(emitted)

    def _by_message(self, indexes: Sequence[int], emitted: list[Emitted]) -> list[tuple[int, list[Emitted]]]:
        """Return each message's index with its rows; messages without rows are left out."""
        if not emitted:
            return []
        if len(indexes) == 1:
            return [(indexes[0], emitted)]
        found = _by_offset(emitted, self._file)
        of_message = ((index, found.get(self._offset_at(index))) for index in indexes)
        return [(index, rows) for index, rows in of_message if rows]

    # --- dead letters ---------------------------------------------------------------------------------------

    def _send_due(self, work: DueLetters) -> None:
        messages = self._messages.objects_at(work.indexes, work.retry_counts)
        outcome = self._send(work.key, list(zip(work.indexes, messages, strict=True)))
        self._apply(work.key, outcome.effect, [])

    def _send(self, key: Key, letters: Sequence[tuple[int, MessageExt]]) -> Outcome:
        self._guard.release()
        try:
            stored = [index for index, message in letters if self._is_dead_letter(message)]
        finally:
            self._guard.acquire()
        self._sent_back += len(stored)
        return self._machine.sent_back(key, stored, self._now_s())


class KeyedRangeConsumer(RangeConsumer):
    """An orderly listener and its settings, with which ranges are consumed in order for each sharding key."""

    pace = open_pace = KEY_PACE
    is_shared = True
    _run = KeyedRun


def _by_offset(emitted: Iterable[Emitted], file: SpillFile) -> dict[int, list[Emitted]]:
    """Return rows by queue offset, each list in its order; rows from the file are written there again."""
    found: dict[int, list[Emitted]] = defaultdict(list)
    for rows in emitted:
        if isinstance(rows, tuple):
            row: Any = rows
            found[row[0]].append(rows)
        elif isinstance(rows, SpilledRows):
            for offset, some in _slices(rows.read()):
                found[offset].append(file.write(some))
        else:
            for offset, some in _slices(rows):
                found[offset].append(some)
    return found


def _slices(rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield each queue offset in ``rows``, ascending, with the rows of this offset in their order."""
    offsets = rows.column(0).to_numpy()
    # Do not use Arrow's sort: it is not stable.
    order = np.argsort(offsets, kind="stable")
    ordered, offsets = rows.take(pa.array(order)), offsets[order]
    starts = np.flatnonzero(np.diff(offsets, prepend=offsets[0] - 1)).tolist()
    for start, stop in zip(starts, chain(starts[1:], [len(offsets)]), strict=True):
        yield int(offsets[start]), ordered.slice(start, stop - start)
