"""Columns of messages as rows, without a listener: the engine, before and without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain, pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consume.metrics import ConsumeMetrics
from pyspark_rocketmq.consume.part import GOING_ON, QueueAck, joined
from pyspark_rocketmq.consume.turns import NO_INSTRUCTIONS, RangeInstructions
from pyspark_rocketmq.consumer.engine import landing
from pyspark_rocketmq.consumer.engine.arrivals import ClosedSource, Source
from pyspark_rocketmq.consumer.engine.landing import LandedRange, LandingEngine, LandingTask, divided
from pyspark_rocketmq.consumer.engine.output import Consumed, CutTogether
from pyspark_rocketmq.consumer.message_columns import MessageColumns, texts_of
from pyspark_rocketmq.errors import RocketMQError, SchemaError
from pyspark_rocketmq.model import (
    DEFAULT_MESSAGE_COLUMNS,
    OPEN_END,
    POSITION_COLUMNS,
    BodyType,
    MessageQueue,
    QueueRange,
    QueueState,
)
from pyspark_rocketmq.source.schema import NOTHING_READ, Arrival, EndReason, RangeEnd
from pyspark_rocketmq.stored_values import RetryCounts, RetrySpan
from pyspark_rocketmq.wire.columnar.decode import rows_of
from tests.helpers.messages import QUEUE, message_at
from tests.helpers.open_source import OpenSource
from tests.helpers.range_instructions import GivenUpWhen
from tests.helpers.wait import PATIENCE_S, wait_until

OTHER = MessageQueue("orders", "broker-a", 4)
OPEN = QueueRange.between(QUEUE, 0, OPEN_END, epoch=1)
ALL = MessageColumns(names=("msgId", *DEFAULT_MESSAGE_COLUMNS, "bornHost", "storeHost", "sysFlag", "flag"))


@pytest.fixture(autouse=True, scope="module")
def _nothing_waits_for_more() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(landing, "_TAKEN_BYTES", 1)
        yield


def batch(*offsets: int, queue: MessageQueue = QUEUE, columns: MessageColumns = ALL) -> pa.RecordBatch:
    return rows_of([message_at(offset, queue=queue) for offset in offsets], columns=columns.needed)


def piece(
    planned: QueueRange, *offsets: int, reached: int | None = None, columns: MessageColumns = ALL
) -> Arrival:
    messages = [batch(*offsets, queue=planned.queue, columns=columns)] if offsets else []
    return Arrival(planned, messages, reached=reached, nbytes=sum(each.nbytes for each in messages))


def end_of(planned: QueueRange, rows: int = 0, **facts: Any) -> Arrival:
    return Arrival(planned, end=RangeEnd(planned=planned, rows=rows, **facts))


def each_of(brought: Consumed | CutTogether) -> tuple[Consumed, ...]:
    return brought.cuts if isinstance(brought, CutTogether) else (brought,)


def landed(
    *pieces: Arrival, columns: MessageColumns = ALL, instructions: RangeInstructions = NO_INSTRUCTIONS
) -> list[Consumed]:
    """Return the cuts of the ranges, and their ends."""
    brought = LandingEngine(columns)(ClosedSource([[each] for each in pieces]), instructions)
    return list(chain.from_iterable(map(each_of, brought)))


def landed_in_steps(
    *pieces: Arrival, given_up: Callable[[Sequence[Consumed]], bool] = lambda _: False
) -> list[Consumed]:
    """Land pieces of which each is read when the one before is consumed."""
    is_consumed = threading.Semaphore()

    def made() -> Iterator[list[Arrival]]:
        for each in pieces:
            assert is_consumed.acquire(timeout=PATIENCE_S)
            yield [each]

    found: list[Consumed] = []
    for each in LandingEngine(ALL)(ClosedSource(made()), GivenUpWhen(lambda: given_up(found))):
        found.extend(each_of(each))
        is_consumed.release()
    return found


def rows_in(found: Sequence[Consumed]) -> list[dict[str, Any]]:
    return [row for each in found for rows in each.batches() for row in rows.to_pylist()]


def offsets_in(found: Sequence[Consumed]) -> list[int]:
    return [row["queueOffset"] for row in rows_in(found)]


def ack_of(found: Sequence[Consumed]) -> QueueAck:
    return reduce(joined, (each.ack for each in found))


@given(
    gaps=st.lists(st.integers(1, 3), min_size=1, max_size=40),
    cuts=st.sets(st.integers(0, 40)),
    names=st.lists(st.sampled_from(ALL.names), min_size=1, unique=True),
)
def test_any_cutting_of_messages_gives_the_source_s_own_columns(
    gaps: list[int], cuts: set[int], names: list[str]
) -> None:
    """K7: each message is one row with what the source shows of it, and the acks are a chain over the range."""
    offsets = [sum(gaps[: at + 1]) for at in range(len(gaps))]
    columns = MessageColumns(names=tuple(names))
    planned = QueueRange.between(QUEUE, 0, offsets[-1] + 3, epoch=7)
    edges = sorted({0, *(cut for cut in cuts if cut < len(offsets)), len(offsets)})
    pieces = [piece(planned, *offsets[begin:stop], columns=columns) for begin, stop in pairwise(edges)]

    found = landed(*pieces, end_of(planned, rows=len(offsets)), columns=columns)

    wanted = rows_of([message_at(offset) for offset in offsets])
    assert rows_in(found) == wanted.select([*POSITION_COLUMNS, *names]).to_pylist()
    assert [each.ack.start for each in found[1:]] == [each.ack.state.next_offset for each in found[:-1]]
    assert [each.ack.finished for each in found] == [GOING_ON] * (len(found) - 1) + ["EXHAUSTED"]
    ack = ack_of(found)
    assert (ack.start, ack.state.next_offset, ack.state.epoch) == (0, planned.end, 7)
    assert (ack.read, ack.consumed, ack.failed) == (len(offsets), len(offsets), 0)
    newest = ack.state.last_message.newest
    assert newest is not None
    assert newest.queue_offset == offsets[-1]


@given(
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=30),
    most_bytes=st.integers(1, 4_000),
    is_end=st.booleans(),
)
def test_a_divided_piece_gives_the_same_rows_and_acks(
    sizes: list[int], most_bytes: int, is_end: bool
) -> None:
    """I2, K7: in pieces that are small enough, or have one message."""
    planned = QueueRange.between(QUEUE, 0, len(sizes) + 5, epoch=7)
    messages = rows_of(
        [message_at(at, body=b"x" * size) for at, size in enumerate(sizes)], columns=ALL.needed
    )
    half = len(sizes) // 2
    halves = [each for each in (messages.slice(0, half), messages.slice(half)) if each.num_rows]
    whole = Arrival(
        planned,
        halves,
        end=RangeEnd(planned=planned, rows=len(sizes), pulls=2) if is_end else None,
        reached=None if is_end else len(sizes) + 2,
        nbytes=messages.nbytes,
        reading=NOTHING_READ if is_end else ConsumeMetrics(pulled=len(sizes), pulls=1),
    )

    pieces = divided(whole, most_bytes)
    one, other = LandedRange(planned, ALL), LandedRange(planned, ALL)
    together = [each for each in one.take([whole], 9.0) if each is not None]
    apart = [each for piece in pieces for each in other.take([piece], 9.0) if each is not None]

    assert rows_in(apart) == rows_in(together)
    assert ack_of(apart) == ack_of(together)
    assert all(min(each.ack.metrics) >= 0 for each in apart)
    assert len(pieces) > 1 or len(sizes) == 1 or whole.nbytes <= most_bytes


def test_a_range_without_messages_is_acknowledged() -> None:
    """A4, K7: a filter may leave none."""
    planned = QueueRange.between(QUEUE, 5, 9, epoch=7)
    [found] = landed(end_of(planned))

    assert (rows_in([found]), found.ack.state.next_offset) == ([], 9)
    assert found.ack.state.suspended_until_s is None


def test_offsets_that_a_filter_left_out_are_passed_while_the_range_goes_on() -> None:
    """A4, K7: also if the reader has forgotten them when it ends early."""
    planned = QueueRange.between(QUEUE, 0, 100, epoch=7)
    early = RangeEnd(planned=replace(planned, end=4), rows=1, reason=EndReason.EARLY)
    [first, last] = landed_in_steps(piece(planned, 3, reached=60), Arrival(planned, end=early))

    assert (first.ack.state.next_offset, first.ack.finished) == (60, GOING_ON)
    assert (last.ack.start, last.ack.state.next_offset) == (60, 60)


def test_a_queue_whose_broker_was_away_may_go_on_immediately() -> None:
    """A2, K7: a range that ended where it began keeps what its row has of failed messages."""
    state = QueueState(5, 7, retry_counts=RetryCounts.of((RetrySpan(6, 7, 2),), 5, 0))
    planned = QueueRange(QUEUE, state, 5)
    [found] = landed(end_of(planned, reason=EndReason.EARLY))

    assert found.ack.state.suspended_until_s is not None
    assert found.ack.state._replace(suspended_until_s=None) == state


def test_a_reset_and_what_reading_took_are_passed_on_once() -> None:
    """D11, F5, K7"""
    planned = QueueRange.between(QUEUE, 0, 9, epoch=7)
    found = landed(
        piece(planned, 0, 1)._replace(reading=ConsumeMetrics(pulled=2, pulls=1, pull_ms=2.0)),
        piece(planned, 2)._replace(reading=ConsumeMetrics(pulled=3, pulls=2, pull_ms=3.0)),
        end_of(planned, rows=3, reset_to=2, pulls=3, pull_ms=4.5),
    )

    ack = ack_of(found)
    assert ack.reset_to == 2
    assert ack.metrics == ConsumeMetrics(ok=3, pulled=3, pulls=3, pull_ms=4.5)
    assert ack.latencies.to_listener.messages == 3


def test_ranges_of_several_queues_are_kept_apart() -> None:
    """K7"""
    first, second = QueueRange.between(QUEUE, 0, 2, epoch=1), QueueRange.between(OTHER, 4, 6, epoch=2)
    found = landed(
        piece(first, 0), piece(second, 4), piece(first, 1), end_of(first), piece(second, 5), end_of(second)
    )

    assert sorted((row["queueId"], row["queueOffset"]) for row in rows_in(found)) == [
        (3, 0), (3, 1), (4, 4), (4, 5),
    ]  # fmt: skip
    ends = {each.ack.queue: each.ack.state for each in found if each.ack.finished == "EXHAUSTED"}
    assert {queue: (state.epoch, state.next_offset) for queue, state in ends.items()} == {
        QUEUE: (1, 2),
        OTHER: (2, 6),
    }


def test_a_queue_with_two_ranges_and_a_range_without_an_end_are_errors() -> None:
    """H1, K7: nothing of them may be committed."""
    planned = QueueRange.between(QUEUE, 0, 2, epoch=1)

    with pytest.raises(RocketMQError, match="two ranges of this queue"):
        landed(piece(planned, 0), end_of(planned), piece(planned, 0), end_of(planned))
    with pytest.raises(RocketMQError, match="before the end of the range"):
        landed(piece(planned, 0))


def test_a_range_that_cannot_be_read_fails_the_task() -> None:
    """F4, K7"""

    def made() -> Iterator[list[Arrival]]:
        yield [piece(QueueRange.between(QUEUE, 0, 2, epoch=1), 0)]
        raise RocketMQError("the broker refuses")

    with pytest.raises(RocketMQError, match="the broker refuses"):
        list(LandingEngine(ALL)(ClosedSource(made())))


def test_no_more_is_read_than_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """K7: the memory of a task is bounded while its sink is slow."""
    monkeypatch.setattr(landing, "_WAITING_BYTES", 1)
    planned = QueueRange.between(QUEUE, 0, 9, epoch=1)
    made: list[int] = []

    def pieces() -> Iterator[list[Arrival]]:
        for offset in range(9):
            made.append(offset)
            yield [piece(planned, offset)]
        yield [end_of(planned)]

    landed_offsets: list[int] = []
    for brought in LandingEngine(ALL)(ClosedSource(pieces())):
        landed_offsets += offsets_in(each_of(brought))
        # One is written, one waits, and the next may be read.
        assert len(made) <= len(landed_offsets) + 2
    assert landed_offsets == list(range(9))


def test_messages_of_closed_ranges_wait_for_more_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """K7: a writer's cost is that of a call; what comes late does not wait for ever."""
    monkeypatch.setattr(landing, "_TAKEN_BYTES", 1 << 20)
    first, second = QueueRange.between(QUEUE, 0, 2, epoch=1), QueueRange.between(OTHER, 4, 6, epoch=2)
    pieces = [piece(first, 0), piece(second, 4), piece(first, 1), end_of(first), end_of(second)]

    together, *ends = LandingEngine(ALL)(ClosedSource([[each] for each in pieces]))
    monkeypatch.setattr(landing, "_LOOK_EVERY_S", 0.01)
    late = landed_in_steps(piece(first, 0), piece(first, 1), end_of(first))

    assert isinstance(together, CutTogether)
    [rows] = together.batches()
    assert rows.column("queueOffset").to_pylist() == [0, 1, 4]
    assert len(ends) == 2
    assert [offsets_in([each]) for each in late] == [[0], [1], []]


def test_a_queue_that_is_given_up_ends_where_its_rows_end() -> None:
    """B5, K7: what comes of it later is left to the next owner."""
    planned = QueueRange.between(QUEUE, 0, 9, epoch=1)
    found = landed_in_steps(
        piece(planned, 0, 1),
        piece(planned, 2),
        end_of(planned),
        given_up=lambda found: offsets_in(found) == [0, 1],
    )

    assert offsets_in(found) == [0, 1]
    assert [(each.ack.finished, each.ack.state.next_offset) for each in found] == [
        (GOING_ON, 2),
        ("GIVEN_UP", 2),
    ]


def test_a_queue_that_is_given_up_before_it_begins_brings_nothing() -> None:
    """B5, K7: its progress stays as it is."""
    state = QueueState(5, 7, reconsume_times=3)
    planned = QueueRange(QUEUE, state, 9)
    [found] = landed(
        piece(planned, 5), piece(planned, 6), end_of(planned), instructions=GivenUpWhen(lambda: True)
    )

    assert (found.rows, found.ack.counts, found.ack.finished) == ([], False, "GIVEN_UP")
    assert found.ack.state == state


def test_a_reset_that_arrives_after_a_queue_is_given_up_is_passed_on() -> None:
    """F5, K7: the broker reports it only once."""
    planned = QueueRange.between(QUEUE, 0, 9, epoch=1)
    found = landed_in_steps(
        piece(planned, 0, 1),
        piece(planned, 2),
        end_of(planned, reset_to=7),
        given_up=lambda found: offsets_in(found) == [0, 1],
    )
    [other] = landed(end_of(planned, reset_to=7), instructions=GivenUpWhen(lambda: True))

    assert [(each.ack.start, each.ack.state.next_offset, each.ack.reset_to) for each in found] == [
        (0, 2, None),
        (2, 2, None),
        (2, 2, 7),
    ]
    assert (other.ack.start, other.ack.state.next_offset, other.ack.reset_to) == (0, 0, 7)


class Driver(RangeInstructions):
    """Orders what a test wants."""

    def __init__(self) -> None:
        self.given_up: set[MessageQueue] = set()
        self.paused = False
        self.grown: list[int] = []
        self.standing: list[tuple[MessageQueue, bool]] = []
        self.changed: Callable[[], None] = lambda: None

    def is_given_up(self, queue: MessageQueue) -> bool:
        return queue in self.given_up

    def is_paused(self) -> bool:
        return self.paused

    def notifies(self, changed: Callable[[], None]) -> None:
        self.changed = changed

    def counts_rows(self) -> bool:
        return True

    def rows_grew(self, nbytes: int) -> None:
        self.grown.append(nbytes)

    def stands(self, queue: MessageQueue, reason: str, *, is_reset: bool = False) -> None:
        self.standing.append((queue, is_reset))


class OpenRanges(OpenSource):
    """Ends when its only range has ended or is left, as the reader does."""

    def leave(self, queue: MessageQueue) -> None:
        super().leave(queue)
        self.end()


class Running:
    """An engine at work on open ranges, in a thread of its own; nothing looks every half second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(landing, "_LOOK_EVERY_S", 3600.0)
        self.driver, self.source = Driver(), OpenRanges()
        self.found: list[Consumed] = []
        self.thread = threading.Thread(target=self._run, args=(self.source,), daemon=True)
        self.thread.start()
        self.source.send(piece(OPEN))

    def _run(self, source: Source) -> None:
        for each in LandingTask(source, ALL, self.driver, SystemClock()).consumed():
            self.found += each_of(each)

    def await_offset(self, offset: int) -> None:
        wait_until(lambda: offset in offsets_in(list(self.found)), PATIENCE_S, reason=f"offset {offset}")

    def join(self) -> None:
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()


def test_an_open_range_goes_on_until_its_queue_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1, I4, K7: each piece is passed on when it arrives, and the size of its rows is reported."""
    running = Running(monkeypatch)
    for offset in range(3):
        running.source.send(piece(OPEN, offset))
        running.await_offset(offset)

    running.driver.given_up.add(QUEUE)
    running.driver.changed()
    running.join()

    assert offsets_in(running.found) == [0, 1, 2]
    assert [each.ack.finished for each in running.found] == [GOING_ON] * 3 + ["GIVEN_UP"]
    assert len(running.driver.grown) == 3
    assert running.driver.standing == []


def test_in_a_pause_nothing_is_taken_and_a_queue_may_be_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """I5, K7"""
    running = Running(monkeypatch)
    running.source.send(piece(OPEN, 0))
    running.await_offset(0)
    running.driver.paused = True
    running.source.send(piece(OPEN, 1))

    running.driver.given_up.add(QUEUE)
    running.driver.changed()
    running.join()

    assert offsets_in(running.found) == [0]
    assert running.found[-1].ack.state.next_offset == 1


def test_after_a_pause_an_open_range_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """I5, K7"""
    running = Running(monkeypatch)
    running.driver.paused = True
    running.source.send(piece(OPEN, 0))
    running.driver.paused = False
    running.driver.changed()
    running.await_offset(0)

    running.source.send(end_of(replace(OPEN, end=1), rows=1, reset_to=7))
    running.source.end()
    running.join()

    assert running.driver.standing == [(QUEUE, True)]
    assert running.found[-1].ack.reset_to == 7


def test_bodies_that_are_no_text_are_kept_apart() -> None:
    """K7: a bad record stops no queue."""
    bodies = pa.array([b"a", b"\xff", "ü".encode(), b"", b"\xed\xa0\x80"], pa.binary())

    texts, bad = texts_of(bodies)

    assert texts.to_pylist() == ["a", None, "ü", "", None]
    assert bad.to_pylist() == [None, b"\xff", None, None, b"\xed\xa0\x80"]


def test_a_body_may_be_a_string() -> None:
    """K7"""
    columns = MessageColumns(names=("body", "keys"), body_type=BodyType.STRING, bad_record_column="raw")
    planned = QueueRange.between(QUEUE, 0, 2, epoch=1)
    messages = [message_at(0, body=b"text"), message_at(1, body=b"\xff")]
    arrival = Arrival(planned, [rows_of(messages, columns=columns.needed)])

    rows = rows_in(landed(arrival, end_of(planned, rows=2), columns=columns))

    assert [(row["body"], row["keys"], row["raw"]) for row in rows] == [
        ("text", "key-0", None),
        (None, "key-1", b"\xff"),
    ]
    assert columns.schema.simpleString() == "struct<body:string,keys:string,raw:binary>"


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (MessageColumns(names=("key",)), "names key, but a message has no such column"),
        (MessageColumns(names=("topic",)), "every row has topic, brokerName, queueId, queueOffset anyway"),
        (MessageColumns(names=("keys", "keys")), "names keys twice"),
        (MessageColumns(names=()), "columns is empty"),
        (
            MessageColumns(body_type=BodyType.STRING, bad_record_column="Keys"),
            "'Keys', which is the name of another",
        ),
    ],
)
def test_columns_that_cannot_be_are_refused(columns: MessageColumns, problem: str) -> None:
    """K7"""
    with pytest.raises(SchemaError, match=problem):
        columns.check()
