"""Both engines: how a range reaches the listener, and what they refuse."""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, MapType, StringType, StructType

from pyspark_rocketmq.consume.orderly import OrderlySettings
from pyspark_rocketmq.consume.part import QueueAck
from pyspark_rocketmq.consumer.engine.arrivals import whole_ranges
from pyspark_rocketmq.consumer.engine.direct import DirectEngine
from pyspark_rocketmq.consumer.engine.orderly import RangeConsumer
from pyspark_rocketmq.consumer.engine.range import acknowledged
from pyspark_rocketmq.consumer.engine.state import OrderlyEngine, _gather
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.listeners.messages import ArrivedMessages
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import (
    TIME_COLUMNS,
    ConsumeOrderlyStatus,
    MessageExt,
    MessageQueue,
    QueueRange,
    QueueState,
)
from pyspark_rocketmq.source.marker_rows import marker_row
from pyspark_rocketmq.source.schema import CONSUMER_SCHEMA, Arrival, EndReason, RangeEnd
from tests.helpers.messages import QUEUE, message_at
from tests.helpers.source_rows import Row, messages_in, pieces_of, row_of, rows_of, source_of

PLANNED = QueueRange(QUEUE, QueueState(100, epoch=3, reconsume_times=2), 140)
MESSAGES = [
    message_at(offset)._replace(properties={"KEYS": f"key-{offset}", "WAIT": "true"} if offset % 3 else {})
    for offset in range(100, 140)
    if offset % 10 != 3
]
"""A filter, or a transaction, leaves offsets without a message."""
OTHER_QUEUE = QUEUE._replace(queue_id=9)
RETRY_QUEUE = MessageQueue("%RETRY%g", "broker-a", 0)


def marker(planned: QueueRange = PLANNED, rows: int = len(MESSAGES)) -> Row:
    """The range's marker row."""
    row: Row
    (row,) = marker_row(RangeEnd(planned=planned, rows=rows)).to_pylist()
    return row


def chunks_of(rows: Sequence[Row], size: int) -> list[pd.DataFrame]:
    """As ``applyInPandasWithState`` gives them: instants in milliseconds."""
    millis = [row | {name: round(row[name].timestamp() * 1000) for name in TIME_COLUMNS} for row in rows]
    return [
        pd.DataFrame(millis[at : at + size], columns=CONSUMER_SCHEMA.names)
        for at in range(0, len(rows), size)
    ]


def gather_in_state_engine(rows: Sequence[Row], size: int) -> Arrival:
    queue = MessageQueue(*(rows[0][name] for name in ("topic", "brokerName", "queueId")))
    return _gather(queue, iter(chunks_of(rows, size)))


def gather_in_direct_engine(rows: Sequence[Row], size: int) -> Arrival:
    ((arrived,),) = whole_ranges(pieces_of(rows, size))
    return arrived


Gather = Callable[[Sequence[Row], int], Arrival]
in_state_engine = pytest.mark.parametrize("gather", [pytest.param(gather_in_state_engine, id="state")])
in_direct_engine = pytest.mark.parametrize("gather", [pytest.param(gather_in_direct_engine, id="direct")])
in_both_engines = pytest.mark.parametrize(
    "gather",
    [pytest.param(gather_in_state_engine, id="state"), pytest.param(gather_in_direct_engine, id="direct")],
)


class State:
    """A group's state as Spark hands it over."""

    def __init__(self, *values: Any) -> None:
        self.exists = bool(values)
        self.get = values

    def remove(self) -> None:
        self.exists = False


@in_state_engine
@pytest.mark.parametrize("size", [1, 7, 37])
@pytest.mark.parametrize("seed", range(5))
def test_a_range_in_any_order_and_any_chunks_is_put_back_into_order(
    gather: Gather, size: int, seed: int
) -> None:
    """D1: Spark's chunks have any size and, after a spill, any order; the marker may come first."""
    rows = [*map(row_of, MESSAGES), marker()]
    random.Random(seed).shuffle(rows)

    arrived = gather(rows, size)

    assert arrived.planned == PLANNED
    assert messages_in(arrived) == MESSAGES


@in_direct_engine
@pytest.mark.parametrize("size", [1, 7, 37])
@pytest.mark.parametrize("at", [0, 6, 7, 34])
def test_a_range_that_was_shuffled_is_refused_where_nothing_may_shuffle(
    gather: Gather, size: int, at: int
) -> None:
    """D1: two neighbours that changed places, within a batch or between two."""
    moved = [*MESSAGES[:at], MESSAGES[at + 1], MESSAGES[at], *MESSAGES[at + 2 :]]

    with pytest.raises(
        RocketMQError,
        match=f"offset {MESSAGES[at].queue_offset} arrived behind offset {MESSAGES[at + 1].queue_offset}",
    ):
        gather([*map(row_of, moved), marker()], size)


@in_both_engines
@pytest.mark.parametrize("size", [1, 7, 10, 36, 37, 100])
def test_a_range_in_order_stays_as_it_is(gather: Gather, size: int) -> None:
    """D1: Spark cuts it into batches of maxRecordsPerBatch, anywhere."""
    arrived = gather([*map(row_of, MESSAGES), marker()], size)

    assert (arrived.planned, messages_in(arrived)) == (PLANNED, MESSAGES)


@in_state_engine
def test_chunks_that_arrive_in_another_order_are_sorted(gather: Gather) -> None:
    """D1: as spilled runs are, when they are merged."""
    rows = [*map(row_of, MESSAGES), marker()]

    arrived = gather([*rows[30:], *rows[20:30], *rows[10:20], *rows[:10]], 10)

    assert messages_in(arrived) == MESSAGES


@in_both_engines
def test_the_listener_gets_messages_of_the_retry_topic_under_the_topic_they_were_sent_to(
    gather: Gather,
) -> None:
    """E3: the planned range stays that of the retry queue."""
    planned = replace(PLANNED, queue=RETRY_QUEUE)
    sent_to = {offset: "orders" if offset % 2 else "payments" for offset in range(100, 110)}
    read = [message_at(offset, queue=RETRY_QUEUE) for offset in sent_to]
    rows = [row_of(one) | {"originTopic": sent_to[one.queue_offset]} for one in read]

    arrived = gather([*rows, marker(planned, rows=10)], 4)

    assert arrived.planned == planned
    assert messages_in(arrived) == [one.restored(sent_to[one.queue_offset]) for one in read]
    assert [one.topic for one in messages_in(arrived)[:2]] == ["payments", "orders"]


@in_both_engines
def test_a_range_of_which_a_filter_left_nothing_has_only_its_marker(gather: Gather) -> None:
    """A4"""
    arrived = gather([marker(rows=0)], 1)

    assert (arrived.end, messages_in(arrived)) == (RangeEnd(planned=PLANNED, rows=0), [])


@in_both_engines
def test_a_range_without_its_marker_row_is_refused(gather: Gather) -> None:
    """D1: what else is missing nobody could know."""
    with pytest.raises(RocketMQError, match=r"exactly one marker row, at its end, but "):
        gather([*map(row_of, MESSAGES)], 7)


@in_both_engines
def test_a_range_with_two_marker_rows_is_refused(gather: Gather) -> None:
    """D1: two ranges of one queue in one micro-batch, or a copied one."""
    with pytest.raises(
        RocketMQError, match=r"one marker row, at its end, but 2 came|36 messages were read .* but 0 rows"
    ):
        gather([*map(row_of, MESSAGES), marker(), marker()], 7)


@in_both_engines
def test_a_message_behind_the_marker_row_is_refused(gather: Gather) -> None:
    """D1: it belongs to no planned range."""
    with pytest.raises(RocketMQError, match="at its end"):
        gather([*map(row_of, MESSAGES), marker(), row_of(message_at(141))], 7)


@in_both_engines
@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(MESSAGES[1:], id="first lost"),
        pytest.param(MESSAGES[:-1], id="last lost"),
        pytest.param([*MESSAGES, MESSAGES[5]], id="doubled"),
    ],
)
def test_a_range_with_fewer_or_more_messages_than_were_read_is_refused(
    gather: Gather, kept: list[MessageExt]
) -> None:
    """D1, H1: a row lost on the way would be acknowledged, a doubled one delivered twice."""
    complaint = f"36 messages were read of the range 100 to 140, but {len(kept)} rows arrived"
    with pytest.raises(RocketMQError, match=complaint):
        gather([*map(row_of, kept), marker()], 7)


@in_both_engines
def test_a_message_that_took_anothers_place_is_refused(gather: Gather) -> None:
    """D1, H1: as many rows as were read, one of them twice."""
    with pytest.raises(RocketMQError, match="offset 106 arrived twice"):
        gather([*map(row_of, MESSAGES[1:6]), *map(row_of, MESSAGES[5:]), marker()], 7)


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_ranges_that_share_a_task_arrive_one_after_the_other(size: int) -> None:
    """D1: coalesced partitions follow each other; a batch may hold the
    end of one and the beginning of the next.
    """
    planned = [
        QueueRange.between(QUEUE, 0, 3, epoch=1),
        QueueRange.between(OTHER_QUEUE, 7, 7, epoch=4),
        QueueRange.between(OTHER_QUEUE._replace(queue_id=4), 2, 4, epoch=2),
    ]

    arrived = [whole for (whole,) in whole_ranges(pieces_of(rows_of(*planned), size))]

    assert [each.planned for each in arrived] == planned
    assert [[message.queue_offset for message in messages_in(each)] for each in arrived] == [
        [0, 1, 2],
        [],
        [2, 3],
    ]


@in_both_engines
def test_messages_have_where_their_queue_began_and_ended(gather: Gather) -> None:
    """D1: properties MIN_OFFSET and MAX_OFFSET, as Java's consumer adds them."""
    rows = [row_of(message) for message in MESSAGES]
    rows += marker_row(RangeEnd(planned=PLANNED, rows=len(rows), bounds=(7, 999))).to_pylist()

    arrived = gather(rows, 16)

    told = {"MIN_OFFSET": "7", "MAX_OFFSET": "999"}
    assert messages_in(arrived) == [
        message._replace(properties={**message.properties, **told}) for message in MESSAGES
    ]


def test_rows_of_two_queues_that_were_mixed_are_refused() -> None:
    """D1: as after a shuffle that Spark was asked for."""
    one, other = rows_of(PLANNED), rows_of(QueueRange.between(OTHER_QUEUE, 0, 2, epoch=1))

    with pytest.raises(
        RocketMQError, match=r"queue=3: .* but rows of topic=orders .* queue=9 came before it"
    ):
        list(whole_ranges(pieces_of([one[0], *other, *one[1:]], 100)))


@pytest.mark.parametrize("sizes", [(1, 1, 5), (700, 600), (2000,), (512, 1), ()])
def test_messages_made_when_they_are_delivered_are_those_that_arrived(sizes: Sequence[int]) -> None:
    """D1: forwards, as listeners get them, across the pieces that were made at once, and anywhere else."""
    count = sum(sizes)
    expected = [message_at(offset) for offset in range(count)]
    pieces = iter(expected)
    batches = [
        pa.RecordBatch.from_pylist([row_of(next(pieces)) for _ in range(size)], schema=CONSUMER_SCHEMA)
        for size in sizes
    ]

    messages = ArrivedMessages(QUEUE, batches)

    assert [one for at in range(0, count, 37) for one in messages[at : at + 37]] == expected
    assert list(messages) == expected
    chance = random.Random(count)
    for _ in range(20 if count else 0):
        at, stop = chance.randrange(count), chance.randrange(count + 9)
        assert messages[at] == expected[at]
        assert messages[at - count] == expected[at]
        assert messages[at:stop:3] == expected[at:stop:3]
    with pytest.raises(IndexError):
        messages[count]


# ------------------------------------------------------------------------------------------ what is not commi

TAGS = MapType(StringType(), ArrayType(StringType()))
OUTPUT = StructType().add("name", "string").add("size", "integer").add("tags", TAGS)


def consumer_of(listener: Callable[..., Any], **settings: Any) -> RangeConsumer:
    return RangeConsumer(listener, OutputColumns.of(OUTPUT), OrderlySettings(**settings))


class Store:
    """What the offset store brings back to a queue's next range."""

    def __init__(self) -> None:
        self._ack: QueueAck | None = None

    def planned(self, start: int, end: int, epoch: int) -> QueueRange:
        planned = QueueRange.between(QUEUE, start, end, epoch=epoch)
        if self._ack is None:
            return planned
        stored = planned.state._replace(retry_counts=self._ack.state.retry_counts)
        return replace(planned, state=stored)

    def commit(self, text: str) -> QueueAck:
        self._ack = QueueAck.from_json(text)
        return self._ack


def read_rows(planned: QueueRange, reset_to: int | None) -> list[Row]:
    """A range as it was read: to the end it reached, and with what the broker reported meanwhile."""
    *messages, _ = rows_of(planned)
    return [
        *messages,
        *marker_row(RangeEnd(planned=planned, rows=planned.count, reset_to=reset_to)).to_pylist(),
    ]


class Bomb:
    """What whoever may write the checkpoint could put into its state."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return pytest.fail, ("code from the checkpoint ran",)


class StateEngine:
    """A queue's ranges, one after the other, with state of an earlier release that Spark has kept."""

    def __init__(self, listener: Callable[..., Any]) -> None:
        self._engine = OrderlyEngine(consumer_of(listener))
        self._state = State(100, 3, 110, pickle.dumps(Bomb()))
        self._store = Store()

    def consume(
        self, start: int, end: int, epoch: int = 3, reset_to: int | None = None
    ) -> tuple[list[str], QueueAck]:
        rows = read_rows(self._store.planned(start, end, epoch), reset_to)
        (frame,) = self._engine(QUEUE, iter(chunks_of(rows, 7)), self._state)  # type: ignore[arg-type]
        return frame["name"].dropna().tolist(), self._store.commit(frame["ack"].iloc[-1])


class DirectEngineAndStore:
    """A queue's ranges, one after the other, with what the offset store would bring back."""

    def __init__(self, listener: Callable[..., Any]) -> None:
        self._engine = DirectEngine(consumer_of(listener))
        self._store = Store()

    def consume(
        self, start: int, end: int, epoch: int = 3, reset_to: int | None = None
    ) -> tuple[list[str], QueueAck]:
        rows = read_rows(self._store.planned(start, end, epoch), reset_to)
        # As Spark does with whatever is given to mapInArrow.
        engine = pickle.loads(pickle.dumps(self._engine))
        (consumed,) = engine(source_of(rows, 7))
        ack = self._store.commit(consumed.ack.to_json())
        return [name for rows in consumed.batches() for name in rows.column("name").to_pylist()], ack


in_each_engine = pytest.mark.parametrize("engine", [StateEngine, DirectEngineAndStore])


def commit_every_tenth(
    messages: Sequence[MessageExt], context: ConsumeOrderlyContext
) -> ConsumeOrderlyStatus:
    context.auto_commit = False
    for message in messages:
        context.emit(name=message.keys, size=None, tags={"at": [str(message.queue_offset), None]})
    at = messages[-1].queue_offset
    return ConsumeOrderlyStatus.COMMIT if at % 10 == 9 else ConsumeOrderlyStatus.SUCCESS


@in_each_engine
def test_uncommitted_messages_are_consumed_again(engine: Callable[..., Any]) -> None:
    """D4: the next range begins at the committed offset, and each row leaves once, with the COMMIT."""
    consumption = engine(commit_every_tenth)

    names, ack = consumption.consume(100, 115)
    assert (names, ack.state.next_offset) == ([f"key-{at}" for at in range(100, 110)], 110)
    names, ack = consumption.consume(110, 117)
    assert (names, ack.state.next_offset, ack.consumed) == ([], 110, 0)
    names, ack = consumption.consume(110, 125)
    assert (names, ack.state.next_offset) == ([f"key-{at}" for at in range(110, 120)], 120)


@in_each_engine
@pytest.mark.parametrize(("start", "epoch"), [(105, 3), (115, 3), (110, 4)], ids=["back", "on", "claimed"])
def test_a_range_that_does_not_go_on_from_there_is_delivered_whole(
    engine: Callable[..., Any], start: int, epoch: int
) -> None:
    """D4, F5: after a reset, a claim or a replay everything is delivered again,
    from where the plan begins.
    """
    consumption = engine(commit_every_tenth)
    consumption.consume(100, 115)

    names, _ = consumption.consume(start, 120, epoch)

    assert names == [f"key-{at}" for at in range(start, 120)]


SEEN: list[tuple[int, int]] = []


def give_one_back_twice(
    messages: Sequence[MessageExt], context: ConsumeOrderlyContext
) -> ConsumeOrderlyStatus:
    context.auto_commit = False
    SEEN.append((messages[0].queue_offset, messages[0].reconsume_times))
    is_bad = messages[0].queue_offset == 102 and messages[0].reconsume_times < 2
    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT if is_bad else ConsumeOrderlyStatus.SUCCESS


@in_each_engine
def test_how_often_a_message_was_given_back_goes_on_too(engine: Callable[..., Any]) -> None:
    """D2, D4: each message has its own count, those before it, which come again, none."""
    SEEN.clear()
    consumption = engine(give_one_back_twice)

    for _ in range(3):
        consumption.consume(100, 103)

    assert [(at, times if at == 102 else 0) for times in range(3) for at in (100, 101, 102)] == SEEN


@in_each_engine
def test_a_queue_of_which_nothing_was_read_is_due_at_once_and_does_not_look_stalled(
    engine: Callable[..., Any],
) -> None:
    """D4, A2: a queue that is blocked without a suspension counts as waiting for more messages."""
    names, ack = engine(commit_every_tenth).consume(110, 110)

    assert (names, ack.state.next_offset, ack.consumed) == ([], 110, 0)
    assert ack.state.suspended_until_s is not None
    assert 0 < ack.state.suspended_until_s <= time.time()


@pytest.mark.parametrize("until_s", [None, 0.0, time.time() + 600])
def test_a_queue_that_may_not_be_read_is_asked_for_again_after_a_while(until_s: float | None) -> None:
    """D3: not at once, again and again, but after Java's 3 s, or when its own suspension is over."""
    ((arrived,),) = whole_ranges(pieces_of(rows_of(PLANNED), 100))
    assert arrived.end is not None
    ack = consumer_of(lambda messages, context: ConsumeOrderlyStatus.SUCCESS).consume(arrived).ack
    ack = replace(ack, state=ack.state._replace(suspended_until_s=until_s))
    earliest_s = max(until_s or 0, time.time() + 3)

    refused = acknowledged(replace(arrived.end, reason=EndReason.REFUSED), ack).state.suspended_until_s

    assert acknowledged(arrived.end, ack).state.suspended_until_s == until_s
    assert refused is not None
    assert earliest_s <= refused <= max(until_s or 0, time.time() + 3)


@pytest.mark.parametrize("reason", list(EndReason))
def test_an_ack_says_whether_its_range_met_another_log(reason: EndReason) -> None:
    """F4"""
    planned = replace(PLANNED, end=PLANNED.start)
    ((arrived,),) = whole_ranges([RangeEnd(planned=planned, rows=0, reason=reason)])

    ack = consumer_of(lambda messages, context: ConsumeOrderlyStatus.SUCCESS).consume(arrived).ack

    assert ack.is_another_log == (reason is EndReason.ANOTHER_LOG)
    assert (ack.state.next_offset, ack.consumed) == (PLANNED.start, 0)
    assert QueueAck.from_json(ack.to_json()) == ack


@in_each_engine
def test_where_an_operator_wants_to_go_on_is_passed_to_the_committer(engine: Callable[..., Any]) -> None:
    """F5: beside what was consumed until then."""
    consumption = engine(commit_every_tenth)

    names, ack = consumption.consume(108, 110, reset_to=4)

    assert (names, ack.state.next_offset, ack.reset_to) == (["key-108", "key-109"], 110, 4)
    assert consumption.consume(110, 112)[1].reset_to is None


def test_state_of_an_earlier_release_is_forgotten_unread() -> None:
    """D4, H9: it held pickled rows, and whoever may write a checkpoint must not run code by it."""
    state = State(100, 3, 110, pickle.dumps(Bomb()))
    engine = OrderlyEngine(consumer_of(commit_every_tenth))

    (frame,) = engine(QUEUE, iter(chunks_of(rows_of(PLANNED), 7)), state)  # type: ignore[arg-type]

    assert frame["queueOffset"].iloc[0] == 100
    assert not state.exists
