from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from pyspark_rocketmq.consume.put_back import PutBack, to_text
from pyspark_rocketmq.datasource.schema import CONSUMER_SCHEMA, marker_row
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageExt, MessageQueue, QueueRange
from pyspark_rocketmq.streaming.orderly_engine import _gather, _uncommitted
from pyspark_rocketmq.streaming.orderly_run import Uncommitted
from tests.helpers.messages import QUEUE, message_at

PLANNED = QueueRange(queue=QUEUE, start=100, end=140, epoch=3, reconsume_times=2)
MESSAGES = [message_at(offset) for offset in range(100, 140) if offset % 10 != 3]
"""A filter, or a transaction, leaves offsets without a message."""


def row_of(message: MessageExt) -> dict[str, Any]:
    """A message as the engine gets it; its columns are in the order of MessageExt's fields."""
    return dict(zip(CONSUMER_SCHEMA.names, (*message, None, None), strict=True))


def marker(planned: QueueRange = PLANNED, rows: int = len(MESSAGES)) -> dict[str, Any]:
    """The range's marker row as the engine gets it, instants in milliseconds."""
    (row,) = marker_row(planned, rows=rows).to_pylist()
    return row | dict.fromkeys(("bornTimestamp", "storeTimestamp"), 0)


def chunks_of(rows: Sequence[dict[str, Any]], size: int) -> list[pd.DataFrame]:
    return [
        pd.DataFrame(rows[at : at + size], columns=CONSUMER_SCHEMA.names) for at in range(0, len(rows), size)
    ]


class State:
    """A group's state as Spark hands it over."""

    def __init__(self, *values: Any) -> None:
        self.exists = bool(values)
        self.get = values


@pytest.mark.parametrize("size", [1, 7, 37])
@pytest.mark.parametrize("seed", range(5))
def test_a_range_in_any_order_and_any_chunks_is_put_back_into_order(size: int, seed: int) -> None:
    """D1: Spark's chunks have any size and, after a spill, any order; the marker may come first."""
    rows = [*map(row_of, MESSAGES), marker()]
    random.Random(seed).shuffle(rows)

    planned, messages, _ = _gather(QUEUE, iter(chunks_of(rows, size)))

    assert planned == PLANNED
    assert messages == MESSAGES


def test_a_range_in_order_stays_as_it_is() -> None:
    """D1"""
    planned, messages, _ = _gather(QUEUE, iter(chunks_of([*map(row_of, MESSAGES), marker()], 10)))

    assert (planned, messages) == (PLANNED, MESSAGES)


def test_whole_chunks_that_changed_places_are_put_back() -> None:
    """D1: as spilled runs are, when they are merged."""
    chunks = chunks_of([*map(row_of, MESSAGES), marker()], 10)

    assert _gather(QUEUE, iter(chunks[::-1]))[1] == MESSAGES


def test_the_listener_gets_messages_of_the_retry_topic_under_the_topic_they_were_sent_to() -> None:
    """E3: in whatever order they arrive; the planned range stays that of the retry queue."""
    retry = MessageQueue("%RETRY%g", "broker-a", 0)
    planned = replace(PLANNED, queue=retry)
    sent_to = {offset: "orders" if offset % 2 else "payments" for offset in range(100, 110)}
    read = [message_at(offset, queue=retry) for offset in sent_to]
    rows = [row_of(one) | {"originTopic": sent_to[one.queue_offset]} for one in read]
    random.Random(7).shuffle(rows)

    found, messages, _ = _gather(retry, iter(chunks_of([*rows, marker(planned, rows=10)], 4)))

    assert found == planned
    assert messages == [one.restored(sent_to[one.queue_offset]) for one in read]
    assert [one.topic for one in messages[:2]] == ["payments", "orders"]


def test_a_range_of_which_a_filter_left_nothing_has_only_its_marker() -> None:
    """A4"""
    assert _gather(QUEUE, iter(chunks_of([marker(rows=0)], 1))) == (PLANNED, [], None)


def test_a_range_without_its_marker_row_is_refused() -> None:
    """D1: what else is missing nobody could tell."""
    with pytest.raises(RocketMQError, match=r"exactly one marker row, at its end, but 0 came"):
        _gather(QUEUE, iter(chunks_of([*map(row_of, MESSAGES)], 7)))


def test_a_range_with_two_marker_rows_is_refused() -> None:
    """D1: two ranges of one queue in one micro-batch, or a copied one."""
    with pytest.raises(RocketMQError, match=r"exactly one marker row, at its end, but 2 came"):
        _gather(QUEUE, iter(chunks_of([*map(row_of, MESSAGES), marker(), marker()], 7)))


def test_a_message_behind_the_marker_row_is_refused() -> None:
    """D1: it belongs to no planned range."""
    with pytest.raises(RocketMQError, match="at its end"):
        _gather(QUEUE, iter(chunks_of([*map(row_of, MESSAGES), marker(), row_of(message_at(141))], 7)))


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(MESSAGES[1:], id="first lost"),
        pytest.param(MESSAGES[:-1], id="last lost"),
        pytest.param([*MESSAGES, MESSAGES[5]], id="doubled"),
    ],
)
def test_a_range_with_fewer_or_more_messages_than_were_read_is_refused(kept: list[MessageExt]) -> None:
    """D1, H1: a row lost on the way would be acknowledged, a doubled one delivered twice."""
    complaint = f"36 messages were read of the range 100 to 140, but {len(kept)} rows arrived"
    with pytest.raises(RocketMQError, match=complaint):
        _gather(QUEUE, iter(chunks_of([*map(row_of, kept), marker()], 7)))


def test_a_message_that_took_anothers_place_is_refused() -> None:
    """D1, H1: as many rows as were read, one of them twice."""
    with pytest.raises(RocketMQError, match="offset 106 arrived twice"):
        _gather(QUEUE, iter(chunks_of([*map(row_of, MESSAGES[1:]), row_of(MESSAGES[5]), marker()], 7)))


def test_what_the_range_before_left_is_kept_where_the_plan_continues_it() -> None:
    """D4, D6: accumulated messages are not delivered again, their rows wait on, and nobody's count is lost."""
    rows = [(100, "a"), (104, "b")]
    put_back = (PutBack(110, 113, 1), PutBack(113, 114, 2))

    before = _uncommitted(State(100, 3, 110, to_text(put_back), pickle.dumps(rows)), PLANNED)  # type: ignore[arg-type]

    assert before == Uncommitted(110, rows, put_back)


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(State(), id="there is none"),
        pytest.param(State(99, 3, 110, "[[110,111,1]]", b""), id="it ended elsewhere"),
        pytest.param(State(101, 3, 110, "[[110,111,1]]", b""), id="the plan went back"),
        pytest.param(State(100, 2, 110, "[[110,111,1]]", b""), id="of an older epoch"),
        pytest.param(State(100, 4, 110, "[[110,111,1]]", b""), id="of a newer epoch"),
    ],
)
def test_state_that_does_not_continue_in_the_plan_is_only_advice(state: State) -> None:
    """D4, D6, F5: after a reset, a claim or a replay everything is delivered again, from where the plan begins."""
    assert _uncommitted(state, PLANNED) is None  # type: ignore[arg-type]
