"""A task that commits by itself: its transactions, and what the driver gets of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pyspark_rocketmq.consume.latencies import LatencyHistogram, StoreLatencies
from pyspark_rocketmq.consume.part import Part, QueueAck, not_begun
from pyspark_rocketmq.consumer.engine.output import Consumed
from pyspark_rocketmq.consumer.engine.parts import GrowingPart
from pyspark_rocketmq.consumer.engine.range import RangeCuts
from pyspark_rocketmq.consumer.engine.task import TaskParts
from pyspark_rocketmq.errors import RocketMQError, SinkConflict
from pyspark_rocketmq.hub.task_end import Fate
from pyspark_rocketmq.listeners.row_validation import RowColumns
from pyspark_rocketmq.model import MessageQueue, QueueRange, QueueState
from pyspark_rocketmq.sinks.base import Progress, RowWriter, Span, TaskCommit
from tests.consumer.test_task_parts import Instructions, queues_of
from tests.helpers.fake_clock import FakeClock
from tests.helpers.wait import PATIENCE_S, wait_until

A, B = (MessageQueue("T", "broker-a", number) for number in range(2))
_COLUMNS = RowColumns(StructType().add("queueOffset", "long"))


class Driver(Instructions):
    """Plays the driver, and the ranges that go on."""

    def __init__(self) -> None:
        super().__init__()
        self.is_cut = True
        self.going_on: list[Consumed] = []
        self.rows_limit = 0
        self.settled_here: Callable[[], None] = lambda: None
        self.rests_here: Callable[[], None] = lambda: None
        self.is_stopped = threading.Event()
        self.ended: frozenset[MessageQueue] = frozenset()

    def limit_rows(self, nbytes: int, _: Callable[[], bool]) -> None:
        self.rows_limit = nbytes

    def commit_when(self, settled: Callable[[], None], rests: Callable[[], None]) -> None:
        self.settled_here, self.rests_here = settled, rests

    def settled(self) -> None:
        self.settled_here()

    def cut_begins(self) -> bool:
        return True

    def cut_ranges(self) -> RangeCuts:
        cut, self.going_on = self.going_on, []
        return RangeCuts(going_on=cut)

    def nothing_to_cut(self, number: int) -> None:
        raise AssertionError(number)

    def hand_over(self, part: Part, *, ends: frozenset[MessageQueue], cut: int | None) -> bool:
        self.handed.append(part)
        self.ended = ends
        return True

    def stop(self) -> None:
        self.is_stopped.set()

    def consume(self, queue: MessageQueue, start: int, end: int) -> None:
        """Have the listener consume more of a range that goes on."""
        self.going_on.append(progress_of(queue, start, end))
        self.settled()
        self.rests_here()


def progress_of(queue: MessageQueue, start: int, end: int) -> Consumed:
    ack = QueueAck(
        queue=queue,
        start=start,
        state=QueueState(end),
        consumed=end - start,
        failed=0,
        finished="GOING_ON",
    )
    return Consumed([(offset,) for offset in range(start, end)], ack, _COLUMNS)


class Database:
    """Plays a writer whose tasks commit, and its transactions."""

    def __init__(self) -> None:
        self.transactions: list[tuple[list[tuple[int, int]], Mapping[MessageQueue, Progress]]] = []
        self.refuses: frozenset[MessageQueue] = frozenset()
        self.fails: Exception | None = None
        self.releases: list[str] = []

    def open(self) -> Any:
        raise AssertionError("all writing of a task belongs to what it has begun")

    def written(self, facts: Mapping[str, Any]) -> Any:
        return facts

    def fenced(self, _: Mapping[MessageQueue, int]) -> RowWriter:
        return self

    def begin_task(self) -> Any:
        return Task(self)

    def has_made(self, count: int) -> bool:
        return len(self.transactions) >= count

    @property
    def rows(self) -> list[tuple[int, int]]:
        return [row for rows, _ in self.transactions for row in rows]

    @property
    def spans(self) -> list[dict[MessageQueue, Span]]:
        return [{queue: each.span for queue, each in progress.items()} for _, progress in self.transactions]


class Task:
    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self) -> Any:
        return Writing(self._database)

    def close(self) -> None:
        self._database.releases.append(threading.current_thread().name)


class Writing:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._rows: list[tuple[int, int]] = []
        self._refused: list[MessageQueue] = []

    def add(self, rows: pa.RecordBatch) -> int:
        self._rows += [(row["queueId"], row["queueOffset"]) for row in rows.to_pylist()]
        return 0

    def commit(self, progress: Mapping[MessageQueue, Progress]) -> TaskCommit:
        if self._database.fails is not None:
            raise self._database.fails
        refused = self._database.refuses.intersection(progress)
        kept = [row for row in self._rows if row[0] not in {queue.queue_id for queue in refused}]
        self._rows = []
        self._database.transactions.append(
            (kept, {queue: each for queue, each in progress.items() if queue not in refused})
        )
        self._refused += refused
        return TaskCommit(refused, 0)

    def finish(self) -> list[Any]:
        return [self] if self._refused else []

    def to_dict(self) -> dict[str, Any]:
        return {"refused": self._refused}

    def abandon(self) -> None:
        self._rows.clear()


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def database() -> Database:
    return Database()


def parts_of(database: Database, driver: Driver | None) -> TaskParts:
    return TaskParts(database, driver)  # type: ignore[arg-type]


def test_rows_are_committed_here_and_acks_wait_for_the_drivers_cut(
    driver: Driver, database: Database
) -> None:
    """I6: the driver gets one ack for each queue, however many transactions there were."""
    parts = parts_of(database, driver)
    for number in range(3):
        driver.consume(A, number * 2, number * 2 + 2)
        wait_until(partial(database.has_made, number + 1))
    assert driver.handed == []

    assert driver.cut(1)  # type: ignore[arg-type]
    wait_until(lambda: driver.handed)
    assert parts.finish() == []

    [part] = driver.handed
    assert part.written == ()
    assert [(ack.start, ack.state.next_offset, ack.consumed) for ack in part.acks] == [(0, 6, 6)]
    assert part.emitted == 6
    assert database.rows == [(0, offset) for offset in range(6)]
    assert database.spans[:3] == [{A: (0, 2)}, {A: (2, 4)}, {A: (4, 6)}]


def test_a_busy_task_commits_when_its_time_is_over(driver: Driver, database: Database) -> None:
    """I6: the concurrent engine never reports that it has nothing to deliver."""
    parts = parts_of(database, driver)
    driver.going_on.append(progress_of(A, 0, 2))
    driver.settled()
    wait_until(lambda: database.transactions)

    assert database.rows == [(0, 0), (0, 1)]
    parts.finish()


def test_what_a_cut_of_the_driver_finds_is_committed_before_it_leaves(
    driver: Driver, database: Database
) -> None:
    """I6, H1: offsets are never ahead of the rows."""
    parts = parts_of(database, driver)
    driver.going_on.append(progress_of(A, 0, 2))
    database.fails = SinkConflict("not yet")

    assert driver.cut(1)  # type: ignore[arg-type]
    assert driver.is_stopped.wait(PATIENCE_S)

    assert driver.handed == []
    with pytest.raises(SinkConflict, match="not yet"):
        parts.finish()


@pytest.mark.parametrize("last", [6, 4], ids=["with more of it", "with nothing more"])
def test_a_queue_that_is_given_up_leaves_with_all_that_was_committed_of_it(
    driver: Driver, database: Database, last: int
) -> None:
    """I6, B5: the chain of its acks has no gap, and it is free only after them."""
    parts = parts_of(database, driver)
    driver.consume(A, 0, 4)
    wait_until(lambda: database.transactions)
    driver.fates[A] = Fate.HANDED_OVER

    assert driver.taker(progress_of(A, 4, last))
    wait_until(lambda: driver.handed)
    assert parts.finish() == []

    [part] = driver.handed
    assert [(ack.start, ack.state.next_offset) for ack in part.acks] == [(0, last)]
    assert driver.ended == frozenset({A})
    assert driver.freed == []
    assert database.rows == [(0, offset) for offset in range(last)]


def test_a_queue_that_is_given_up_before_anything_of_it_counts_is_just_let_go(
    driver: Driver, database: Database
) -> None:
    """I6, B5"""
    parts = parts_of(database, driver)
    driver.fates[A] = Fate.HANDED_OVER

    assert driver.taker(progress_of(A, 3, 3))
    wait_until(lambda: driver.freed == [A])
    assert parts.finish() == []
    assert (driver.handed, database.rows) == ([], [])


def test_a_queue_that_is_dropped_is_not_committed(driver: Driver, database: Database) -> None:
    """I6, C5: it was claimed or reset meanwhile."""
    parts = parts_of(database, driver)
    driver.fates[A] = Fate.DROPPED
    driver.going_on.append(progress_of(A, 0, 4))
    driver.consume(B, 0, 2)
    wait_until(lambda: database.transactions)
    parts.finish()

    assert database.rows == [(1, 0), (1, 1)]


def test_the_driver_gets_to_know_a_refused_queue_now(driver: Driver, database: Database) -> None:
    """I6, H5: it drops the queue, as if its own commit had been refused; the others go on."""
    database.refuses = frozenset({A})
    parts = parts_of(database, driver)
    driver.going_on.append(progress_of(B, 0, 1))
    driver.consume(A, 0, 4)
    wait_until(lambda: driver.handed)

    [part] = driver.handed
    assert part.written == ({"refused": [A]},)
    assert sorted(queues_of(part)) == [A, B]
    assert driver.ended == frozenset()
    assert database.rows == [(1, 0)]
    parts.finish()


def test_ranges_that_end_are_committed_with_those_that_go_on(driver: Driver, database: Database) -> None:
    """I6: of a micro-batch, whose parts come with the job."""
    driver.is_cut = False
    parts = parts_of(database, driver)
    driver.consume(A, 0, 2)
    wait_until(lambda: database.transactions)
    parts.add(progress_of(A, 2, 3))
    parts.add(progress_of(B, 0, 1))

    [part] = parts.finish()

    assert [(ack.queue, ack.start, ack.state.next_offset) for ack in part.acks] == [(A, 0, 3), (B, 0, 1)]
    assert sorted(database.rows) == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert driver.copies == [part]


def test_a_task_with_nothing_to_commit_asks_its_database_nothing(driver: Driver, database: Database) -> None:
    """I6: an attempt that the driver has stopped ends while the database is away."""
    database.fails = SinkConflict("the server is away")
    parts = parts_of(database, driver)

    assert parts.finish() == []
    assert not driver.is_stopped.is_set()


def test_a_range_that_was_not_begun_moves_no_watermark(driver: Driver, database: Database) -> None:
    """I6, H7: a sink that is new to the group would count messages as its own that it has never had."""
    untouched = not_begun(QueueRange.between(B, 5, 7, epoch=1), 100.0)

    parts = parts_of(database, None)
    parts.add(progress_of(A, 0, 2))
    with_rows, without = parts.finish(lambda: [untouched])
    assert database.spans == [{A: (0, 2)}]
    assert (queues_of(with_rows), queues_of(without)) == ([A], [B])

    database.fails = SinkConflict("the server is away")
    parts = parts_of(database, None)
    assert [queues_of(part) for part in parts.finish(lambda: [untouched])] == [[], [B]]


def test_a_task_that_cannot_ask_its_driver_commits_at_its_end(database: Database) -> None:
    """I6"""
    parts = parts_of(database, None)
    parts.add(progress_of(A, 0, 2))
    assert database.transactions == []

    [part] = parts.finish()

    assert database.spans == [{A: (0, 2)}]
    assert queues_of(part) == [A]
    assert database.releases == ["MainThread"]


def test_a_transaction_that_fails_ends_the_task_and_nothing_of_it_counts(
    driver: Driver, database: Database
) -> None:
    """I6, H1"""
    parts = parts_of(database, driver)
    database.fails = SinkConflict("the server is away")
    driver.consume(A, 0, 2)
    assert driver.is_stopped.wait(PATIENCE_S)

    with pytest.raises(SinkConflict, match="away") as caught:
        parts.add(progress_of(B, 0, 1))
    parts.abandon(caught.value)

    assert driver.handed == []
    assert database.releases == ["rocketmq-cut"], "by the thread that has it"


def test_copied_ranges_are_found_out(database: Database) -> None:
    """H1: rows of the source that were joined with themselves."""
    parts = parts_of(database, None)
    twice = progress_of(A, 0, 2)
    parts.add_rows([], [twice.ack, twice.ack])

    with pytest.raises(RocketMQError, match="two ranges of one batch"):
        parts.finish()

    assert database.transactions == []


def test_rows_that_are_in_no_transaction_are_bounded(driver: Driver, database: Database) -> None:
    """I6: the database may be away for a minute."""
    parts = parts_of(database, driver)

    assert driver.rows_limit > 0
    parts.finish()


def test_messages_grow_no_older_after_their_task_has_committed_them(clock: FakeClock) -> None:
    """D11, I6: their rows are there before the driver gets the part."""
    part = GrowingPart(Database().begin_task(), clock)

    def consume(start: int, age_ms: int) -> None:
        one = progress_of(A, start, start + 1)
        age = LatencyHistogram.of([age_ms])
        latencies = StoreLatencies(age, age, int(clock.now_s() * 1000))
        part.add(one.batches(), [replace(one.ack, latencies=latencies)])
        clock.advance(0.004)
        part.commit()

    consume(0, 3)
    clock.advance(1.0)
    consume(1, 2)
    clock.advance(1.0)
    [ack] = part.finish().acks

    assert ack.latencies.to_listener == LatencyHistogram.of([3, 2])
    assert ack.latencies.to_commit(int(clock.now_s() * 1000) + 50) == LatencyHistogram.of([7, 6])
