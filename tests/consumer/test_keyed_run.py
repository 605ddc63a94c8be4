"""Runs in order of the sharding key, against runs in order of the queue; what can vary is drawn.

A second worker is a turn within a call of the listener, so that every interleaving is repeatable.
``KEYED_SEED`` repeats an earlier run; a failure names its seed.
"""

from __future__ import annotations

import logging
import os
import random
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pyspark_rocketmq.consume.orderly import OrderlyFinish, OrderlySettings
from pyspark_rocketmq.consume.part import QueueAck
from pyspark_rocketmq.consume.turns import RangeInstructions
from pyspark_rocketmq.consumer.engine import keyed
from pyspark_rocketmq.consumer.engine.keyed import HeldRows, KeyedRun
from pyspark_rocketmq.consumer.engine.orderly import OrderlyRun
from pyspark_rocketmq.consumer.engine.output import Consumed
from pyspark_rocketmq.errors import RocketMQError, SchemaError
from pyspark_rocketmq.listeners import row_buffer
from pyspark_rocketmq.listeners.arrow_listener import ArrowListener
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.listeners.messages import ArrivedMessages
from pyspark_rocketmq.listeners.row_buffer import SpillFile, batches_of
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import ConsumeOrderlyStatus, MessageExt, MessageQueue, QueueRange, QueueState
from pyspark_rocketmq.source.schema import Arrival, EndReason, RangeEnd
from tests.helpers.messages import QUEUE, message_at
from tests.helpers.source_rows import batches_of as batches_with
from tests.helpers.source_rows import row_of

SEED = int(os.environ.get("KEYED_SEED", random.SystemRandom().getrandbits(32)))
SUCCESS = ConsumeOrderlyStatus.SUCCESS
ROLLBACK = ConsumeOrderlyStatus.ROLLBACK
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
_ALWAYS = 10_000
OUTPUT = OutputColumns.of(StructType().add("step", "long"))


def keyed_message(offset: int, key: str | None) -> MessageExt:
    properties = {} if key is None else {"__SHARDINGKEY": key}
    return message_at(offset)._replace(properties=properties)


class Plan:
    """A queue's messages, and what becomes of each."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.end = draw.randint(1, 40)
        offsets = sorted(draw.sample(range(self.end), draw.randint(0, self.end)))
        keys: list[str | None] = [*"abcdefgh", None][: draw.choice([1, 2, 9])]
        self.messages = [keyed_message(offset, draw.choice(keys)) for offset in offsets]
        share, limit = draw.choice([0.0, 0.1, 0.4]), draw.choice([-1, 0, 1, 3])
        most = 3 if limit < 0 else _ALWAYS
        self.fails = {offset: draw.choice([1, 2, most]) if draw.random() < share else 0 for offset in offsets}
        """How often each message fails."""
        self.rows = {offset: draw.choice([0, 1, 1, 3]) for offset in offsets}
        self.most = limit
        self.batch = draw.choice([1, 1, 3])

    def fate(self) -> list[int]:
        """Offsets of the messages that become dead letters, if a delivery has one message."""
        return [offset for offset, times in self.fails.items() if 0 <= self.most < times]

    def rows_of(self, offsets: Collection[int]) -> list[dict[str, Any]]:
        """The rows of these messages, in the queue's order."""
        return [
            {"queueOffset": offset, "step": step}
            for offset, rows in self.rows.items()
            if offset in offsets
            for step in range(rows)
        ]


class Consumer:
    """Consumes a plan range after range; a sink takes the rows."""

    def __init__(self, plan: Plan, seed: int, *, by_key: bool) -> None:
        self.plan = plan
        self.draw = random.Random(seed)
        self.by_key = by_key
        self.now_s = 1_000.0
        self.state = QueueState(0, epoch=1)
        self.rows: list[dict[str, Any]] = []
        self.dead: list[int] = []
        self.with_listener: set[str | None] = set()
        self.most_at_once = self.ranges = 0
        self.commits = self.draw.choice([1.0, 0.7])
        self.is_committing = self.commits == 1.0
        self.is_over = False
        self.coming: list[MessageExt] = []
        """Messages of the range that have not arrived."""
        self.has_ended = True
        """Whether the end of the range has arrived."""

    def consume(self) -> None:
        while self.state.next_offset < self.plan.end:
            self.ranges += 1
            assert self.ranges < 400, "it never ends"
            if self.ranges > 40:
                self.commits = 1.0
            self._consume_range()
            if self.state.suspended_until_s is not None:
                self.now_s = max(self.now_s, self.state.suspended_until_s)

    def _consume_range(self) -> None:
        is_whole = self.ranges > 40 or self.draw.random() < 0.7
        end = self.plan.end if is_whole else self.draw.randint(self.state.next_offset + 1, self.plan.end)
        self.planned = QueueRange(QUEUE, self.state, end)
        messages = [each for each in self.plan.messages if self.planned.start <= each.queue_offset < end]
        self.reached = self.planned.start
        self.has_ended = self.draw.random() < 0.5 or not self.by_key
        self.coming, at_once = ([], messages) if self.has_ended else (messages, [])
        whole = RangeEnd(planned=self.planned, rows=len(messages)) if self.has_ended else None
        self.run = run = self._run_of(at_once)
        for _ in range(self.draw.randint(1, 30)):
            self.arrive()
            self._turn(self.draw.choice([0.0, 1.0, 1e9]))
            self.cut()
            if run.finished not in {None, OrderlyFinish.SUSPENDED}:
                break
            self.now_s += run.pause_left_s()
        run.stop()
        self._take(run.last(whole))

    def _turn(self, for_s: float) -> None:
        turn = self.run.turn()
        turn.listener = self.listener
        turn.consume(for_s)

    def arrive(self) -> None:
        """Let pieces of the range arrive, as rows or as messages, if it does not come as a whole."""
        while not self.has_ended and (self.ranges > 40 or self.draw.random() < 0.5):
            size = self.draw.randint(0, len(self.coming))
            piece, self.coming = self.coming[:size], self.coming[size:]
            self.has_ended = not self.coming and self.draw.random() < 0.5
            end = RangeEnd(planned=self.planned, rows=0) if self.has_ended else None
            is_in_rows = self.draw.random() < 0.3
            pieces = batches_with([row_of(each) for each in piece], 7) if is_in_rows else [piece]
            self.run.extend(Arrival(self.planned, pieces, end))

    def _run_of(self, messages: Sequence[MessageExt]) -> KeyedRun | OrderlyRun:
        settings = OrderlySettings(
            consume_message_batch_max_size=self.plan.batch, max_reconsume_times=self.plan.most
        )
        if self.by_key:
            return KeyedRun(
                self.planned,
                messages,
                listener=self.listener,
                output=OUTPUT,
                settings=settings,
                now_s=lambda: self.now_s,
                dead_letters=self.send,
                arrivals=None if self.has_ended else deque(),
            )
        return OrderlyRun(
            self.planned,
            messages,
            listener=self.listener,
            output=OUTPUT,
            settings=settings,
            now_s=lambda: self.now_s,
            dead_letters=self.send,
        )

    def listener(self, messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> Any:
        [key] = {message.properties.get("__SHARDINGKEY") for message in messages} if self.by_key else [""]
        assert key not in self.with_listener, "two calls for one key at the same time"
        self.with_listener.add(key)
        self.most_at_once = max(self.most_at_once, len(self.with_listener))
        for message in messages:
            for step in range(self.plan.rows[message.queue_offset]):
                context.emit(message, step=step)
        for _ in range(self.draw.choice([0, 0, 1, 2]) if self.by_key and len(self.with_listener) < 5 else 0):
            self._turn(self.draw.choice([0.0, 0.0, 1.0]))
        self.arrive()
        self.cut()
        self.now_s += self.draw.choice([0.0, 0.25, 0.5, 20.0])
        context.auto_commit = self.draw.random() < self.commits
        context.suspend_current_queue_time_millis = 250
        fails = any(message.reconsume_times < self.plan.fails[message.queue_offset] for message in messages)
        failures: list[object] = [
            SUSPEND,
            None,
            ValueError("no"),
            *([] if context.auto_commit else [ROLLBACK]),
        ]
        answer = self.draw.choice(failures) if fails else SUCCESS
        self.with_listener.remove(key)
        if isinstance(answer, ValueError):
            raise answer
        return answer

    def send(self, message: MessageExt) -> None:
        self.cut()
        # Refused, others would fail once more and pass.
        if self.plan.fails[message.queue_offset] == _ALWAYS and self.draw.random() < 0.2:
            raise RocketMQError("no broker takes it")
        self.dead.append(message.queue_offset)

    def cut(self) -> None:
        if self.draw.random() < 0.3 and (taken := self.run.cut()) is not None:
            assert taken.ack.counts, "a cut without anything to commit"
            self._take(taken)

    def _take(self, taken: Consumed) -> None:
        """Commit a part, as a sink with a watermark does."""
        ack: QueueAck = taken.ack
        assert (ack.start, ack.state.epoch) == (self.reached, 1)
        rows = rows_of(taken)
        assert all(ack.start <= row["queueOffset"] < ack.state.next_offset for row in rows)
        self.rows += rows
        self.state, self.reached = ack.state, ack.state.next_offset


def rows_of(taken: Consumed) -> list[dict[str, Any]]:
    return [row for batch in batches_of(taken.rows, OUTPUT.rows) for row in batch.to_pylist()]


@pytest.fixture
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    "count", [300, pytest.param(30_000, marks=[pytest.mark.long, pytest.mark.timeout(3_600)])]
)
def test_order_by_key_gives_the_rows_that_order_by_queue_gives(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8, H1: in any interleaving, with failures, cuts and commits anywhere, range after range."""
    most_at_once = exact = 0
    for seed in range(SEED, SEED + count):
        monkeypatch.setattr(keyed, "IN_MEMORY_BYTES", 8 << 20 if seed % 2 else 500)
        plan = Plan(seed)
        by_key, by_queue = Consumer(plan, seed, by_key=True), Consumer(plan, seed, by_key=False)
        try:
            by_key.consume()
            by_queue.consume()
            passed = {row["queueOffset"] for row in by_key.rows}
            assert passed.union(by_key.dead) >= {offset for offset, rows in plan.rows.items() if rows}
            assert by_key.rows == plan.rows_of(passed), "a row is missing, comes twice, or in another order"
            if plan.batch == 1 and by_key.is_committing:
                assert set(by_key.dead) == set(by_queue.dead) == set(plan.fate())
                assert by_key.rows == by_queue.rows
                exact += 1
        except AssertionError as error:
            raise AssertionError(f"KEYED_SEED={seed}: {error}") from error
        most_at_once = max(most_at_once, by_key.most_at_once)
    assert most_at_once > 3
    assert exact > count / 10


class GivesUp(RangeInstructions):
    def __init__(self) -> None:
        self.gives_up = False

    def is_given_up(self, queue: MessageQueue) -> bool:
        return self.gives_up


def run_of(
    keys: str,
    *,
    instructions: RangeInstructions | None = None,
    listener: Any = None,
    now_s: Callable[[], float] = lambda: 50.0,
    **settings: Any,
) -> KeyedRun:
    return KeyedRun(
        QueueRange.between(QUEUE, 0, len(keys), epoch=1),
        [keyed_message(offset, key) for offset, key in enumerate(keys)],
        listener=listener,
        output=OUTPUT,
        settings=OrderlySettings(**settings),
        instructions=instructions or RangeInstructions(),
        now_s=now_s,
        wall_s=lambda: now_s() + 100.0,
        dead_letters=lambda _: None,
    )


def consumed(run: KeyedRun, listener: Any) -> None:
    run.listener = listener
    run.consume()


def test_rows_above_a_suspended_key_do_not_leave() -> None:
    """I8, H1: they would be below no watermark, and come again."""

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> Any:
        context.emit(step=messages[0].queue_offset)
        return SUSPEND if messages[0].queue_offset == 1 else SUCCESS

    run = run_of("abca")
    consumed(run, listener)
    taken = run.cut()

    assert taken is not None
    assert [row["step"] for row in rows_of(taken)] == [0]
    state = taken.ack.state
    assert (state.next_offset, state.reconsume_times, state.suspended_until_s) == (1, 1, 151.0)
    assert (taken.ack.consumed, taken.ack.failed, taken.ack.finished) == (1, 1, "SUSPENDED")
    assert (run.finished, run.leads, run.pause_left_s()) == (OrderlyFinish.SUSPENDED, True, 1.0)


def test_a_run_that_is_given_up_commits_what_is_below_its_lowest_unfinished_message() -> None:
    """D7, I8"""
    instructions = GivesUp()

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> Any:
        context.emit(step=messages[0].queue_offset)
        instructions.gives_up = messages[0].queue_offset == 2
        return SUCCESS

    run = run_of("abcabc", instructions=instructions)
    consumed(run, listener)
    run.stop()
    last = run.last(RangeEnd(planned=QueueRange.between(QUEUE, 0, 6, epoch=1), rows=6))

    assert (last.ack.finished, last.ack.state.next_offset, len(last.rows)) == ("GIVEN_UP", 3, 3)


def test_a_row_for_a_message_of_another_key_is_refused() -> None:
    """I8: it would be committed with another message, or not at all."""
    held: list[MessageExt] = []
    problems: list[str] = []

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> Any:
        held.extend(messages)
        if len(held) > 3:
            for message in held:
                try:
                    context.emit(message, step=1)
                except RocketMQError as error:
                    problems.append(str(error))
        return SUCCESS

    run = run_of("abcab", consume_message_batch_max_size=2)
    consumed(run, listener)

    assert [message.queue_offset for message in held] == [0, 3, 1, 4, 2]
    assert len(problems) == 6
    assert "is not in this call" in problems[1] or "is not in this call" in problems[0]


def test_a_row_that_breaks_the_schema_ends_the_query() -> None:
    """D5"""

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> Any:
        context.emit(step="not a number")

    with pytest.raises(SchemaError, match="queueOffset=0"):
        consumed(run_of("ab"), listener)


def test_the_context_counts_what_its_key_has_accumulated() -> None:
    """D4, I8"""
    seen = []

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> Any:
        seen.append((messages[0].queue_offset, context.accumulated))
        context.auto_commit = False
        return SUCCESS

    run = run_of("abab")
    consumed(run, listener)

    assert seen == [(0, 0), (1, 0), (2, 1), (3, 1)]
    ack = run.ack()
    assert (ack.state.next_offset, ack.state.suspended_until_s) == (0, None), "the next range is longer"


def test_one_key_that_waits_for_a_commit_bounds_the_range_as_a_queue_does() -> None:
    """D4, D13"""

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> Any:
        context.auto_commit = messages[0].queue_offset != 0
        return SUCCESS

    run = run_of("ab")
    run._ended = EndReason.FULL
    consumed(run, listener)
    ack = run.ack()

    assert ack.state.suspended_until_s == 50.0 + 100.0 + 30.0
    assert "pullThresholdSizeForQueue allows no more" in ack.last_error


def test_other_workers_are_asked_for_once_for_each_delivery_they_could_make() -> None:
    """I8"""
    offers: list[float] = []

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> Any:
        if messages[0].queue_offset == 0:
            assert offers == [50.0]
            turn = run.turn()
            turn.listener = listener
            turn.consume(0.0)
            assert offers == [50.0], "nothing is left for a third one"
        return SUCCESS

    run = run_of("abab")
    run.offer = offers.append
    consumed(run, listener)

    assert offers == [50.0, 50.0]


def test_many_rows_of_a_batch_reach_the_sink_by_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """I8: rows that the listener emits message after message in turn, and that wait in the range's file."""
    monkeypatch.setattr(row_buffer, "IN_MEMORY_BYTES", 1_000)
    monkeypatch.setattr(row_buffer, "_BATCH_ROWS", 70)
    monkeypatch.setattr(keyed, "IN_MEMORY_BYTES", 1_000)

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> Any:
        for step in range(150):
            for message in messages:
                context.emit(message, step=step)
        return SUSPEND if messages[0].queue_offset == 1 and not passes else SUCCESS

    passes, now_s = False, 50.0
    run = run_of("abaaba", now_s=lambda: now_s, listener=listener, consume_message_batch_max_size=3)
    run.consume()
    first = run.cut()
    assert first is not None
    assert [row["queueOffset"] for row in rows_of(first)] == [0] * 150

    passes, now_s = True, 51.0
    run.consume()
    run.stop()
    rest = rows_of(run.last(RangeEnd(planned=run._planned, rows=6)))
    assert [(row["queueOffset"], row["step"]) for row in rest] == [
        (offset, step) for offset in range(1, 6) for step in range(150)
    ]


def test_rows_that_wait_after_a_cut_are_written_to_another_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """I8, I1: a run of hours does not fill the disk."""
    monkeypatch.setattr(keyed, "IN_MEMORY_BYTES", 100)

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> Any:
        for step in range(9):
            context.emit(step=step)
        return SUSPEND if messages[0].queue_offset == 1 and not passes else SUCCESS

    passes, now_s = False, 50.0
    run = run_of("abc", now_s=lambda: now_s)
    consumed(run, listener)
    files = [run._file]
    assert run.cut() is not None
    run._held.accumulate("z", [(99, [(99, 1)] * 9)])
    files.append(run._file)
    passes, now_s = True, 51.0
    consumed(run, listener)
    last = run.cut()
    files.append(run._file)

    assert [file.is_used for file in files] == [True, True, False]
    assert len(set(files)) == 3
    assert last is not None
    assert [row["queueOffset"] for row in rows_of(last)] == [1] * 9 + [2] * 9


def test_small_batches_that_wait_are_written_to_the_file_in_time() -> None:
    """I8: each takes some kilobytes besides its values."""
    file = SpillFile()
    held = HeldRows(OUTPUT.rows, file)
    batch = OUTPUT.rows.to_batch({name: [0] for name in OUTPUT.rows.schema.names}, 1)
    for index in range(1, 8000):
        held.finish(index, [batch])

    assert file.is_used
    assert [len(list(batches_of(rows, OUTPUT.rows))) for rows in held.below(8000)] == [1] * 7999


@pytest.mark.parametrize("at_once", [1, 3])
def test_an_arrow_listener_gets_the_messages_of_one_key_as_a_batch(at_once: int) -> None:
    """I8: and its rows are those of their messages."""
    keys = [*"abcaabbca", None, None]
    messages = [keyed_message(2 * at, key) for at, key in enumerate(keys)]
    offsets = [message.queue_offset for message in messages]
    rows = batches_with([row_of(message) for message in messages], 4)
    seen: list[list[int]] = []

    def listener(batch: pa.RecordBatch, context: ConsumeOrderlyContext) -> Any:
        seen.append(batch.column("queueOffset").to_pylist())
        doubled = pa.concat_arrays([batch.column("queueOffset")] * 2)
        return SUCCESS, pa.RecordBatch.from_arrays([doubled, doubled], names=["queueOffset", "step"])

    in_arrow: Any = ArrowListener(listener)
    run = KeyedRun(
        QueueRange.between(QUEUE, 0, 2 * len(keys), epoch=1),
        ArrivedMessages(QUEUE, rows),
        listener=in_arrow,
        output=OUTPUT,
        settings=OrderlySettings(consume_message_batch_max_size=at_once),
        now_s=lambda: 50.0,
    )
    run.consume()
    run.stop()
    last = run.last(RangeEnd(planned=run._planned, rows=len(keys)))

    assert seen == ([[offset] for offset in offsets] if at_once == 1 else [
        [0, 6, 8], [2, 10, 12], [4, 14], [16], [18, 20],
    ])  # fmt: skip
    assert [row["queueOffset"] for row in rows_of(last)] == [offset for offset in offsets for _ in range(2)]
    assert last.ack.finished == "EXHAUSTED"


def test_an_arrow_listener_may_return_no_rows_for_the_messages_of_one_key() -> None:
    """I8"""
    messages = [keyed_message(offset, "a") for offset in range(6)]

    def listener(batch: pa.RecordBatch, context: ConsumeOrderlyContext) -> Any:
        is_second = pa.array([offset % 2 == 1 for offset in batch.column("queueOffset").to_pylist()])
        rows = batch.select(["queueOffset"]).filter(is_second)
        return SUCCESS, pa.RecordBatch.from_arrays([rows.column(0)] * 2, names=["queueOffset", "step"])

    in_arrow: Any = ArrowListener(listener)
    for kept in (messages, messages[::2]):
        run = KeyedRun(
            QueueRange.between(QUEUE, 0, 6, epoch=1),
            ArrivedMessages(QUEUE, batches_with([row_of(message) for message in kept], 2)),
            listener=in_arrow,
            output=OUTPUT,
            settings=OrderlySettings(consume_message_batch_max_size=3),
            now_s=lambda: 50.0,
        )
        run.consume()
        run.stop()
        last = run.last(RangeEnd(planned=run._planned, rows=len(kept)))

        assert last.ack.finished == "EXHAUSTED"
        expected = [message.queue_offset for message in kept if message.queue_offset % 2]
        assert [row["queueOffset"] for row in rows_of(last)] == expected
