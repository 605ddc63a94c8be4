from __future__ import annotations

import pandas as pd
import pytest

from pyspark_rocketmq.datasource.schema import CONSUMER_SCHEMA, marker_row
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import QueueRange
from pyspark_rocketmq.streaming.orderly_engine import _gather
from tests.helpers.messages import QUEUE, message_at

PLANNED = QueueRange(queue=QUEUE, start=10, end=20, epoch=3)


def arrived(*offsets: int, read: int, planned: QueueRange = PLANNED) -> pd.DataFrame:
    """Message rows as Spark hands them over, and the marker row of a range of ``read`` messages."""
    rows = [dict(zip(CONSUMER_SCHEMA.names, message_at(offset), strict=False)) for offset in offsets]
    marker = marker_row(planned, rows=read).to_pandas()
    messages = pd.DataFrame(rows, columns=CONSUMER_SCHEMA.names).astype(object)
    return pd.concat([messages, marker.astype(object)]).astype({"queueOffset": "int64"})


def offsets_in(*chunks: pd.DataFrame) -> list[int]:
    planned, messages = _gather(QUEUE, chunks)
    assert planned == PLANNED
    return [message.queue_offset for message in messages]


def test_a_range_is_gathered_in_queue_order_whatever_came_first() -> None:
    """D1: a sort that spills, and chunks."""
    rows = arrived(10, 11, 12, 15, read=4)

    assert offsets_in(rows) == [10, 11, 12, 15]
    assert offsets_in(rows[::-1][:2], rows[::-1][2:]) == [10, 11, 12, 15]


@pytest.mark.parametrize(
    ("offsets", "complaint"),
    [
        pytest.param((10, 11, 15), "4 messages were read of the range 10 to 20, but 3 rows", id="lost"),
        pytest.param((10, 11, 12, 12, 15), "but 5 rows", id="doubled"),
        pytest.param((10, 11, 11, 15), "offset 11 arrived twice", id="lost and doubled"),
    ],
)
def test_rows_lost_or_doubled_on_the_way_are_never_acknowledged(
    offsets: tuple[int, ...], complaint: str
) -> None:
    """H1"""
    with pytest.raises(RocketMQError, match=complaint):
        offsets_in(arrived(*offsets, read=4))


def test_a_range_without_its_marker_row_is_an_error() -> None:
    """H1"""
    with pytest.raises(RocketMQError, match="exactly one marker row"):
        offsets_in(arrived(10, 11, read=2)[:-1])
