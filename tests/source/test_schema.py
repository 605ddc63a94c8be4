from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_rocketmq.consume.metrics import ConsumeMetrics
from pyspark_rocketmq.model import MessageQueue, QueueRange, QueueState
from pyspark_rocketmq.source.marker_rows import end_from_json, marker_row, spark_rows
from pyspark_rocketmq.source.schema import CONSUMER_SCHEMA, EndReason, RangeEnd, with_origin_topics
from pyspark_rocketmq.wire.messages import StoredMessage, body_crc
from tests.helpers import stored_texts
from tests.helpers.messages import QUEUE, message_at
from tests.helpers.stored_messages import decode_columns, encode_stored_message

PLANNED = QueueRange(QUEUE, QueueState(10, epoch=3, reconsume_times=2), 20)


def test_a_marker_row_stands_at_the_end_of_its_range_and_brings_it_back() -> None:
    """D1: its position sorts it behind every message of the range."""
    (row,) = marker_row(RangeEnd(planned=PLANNED, rows=8)).to_pylist()

    assert (row["topic"], row["brokerName"], row["queueId"], row["queueOffset"]) == (*QUEUE, 20)
    assert row["kind"] == "end"
    assert end_from_json(QUEUE, row["plannedRange"]).planned == PLANNED
    assert end_from_json(QUEUE, row["plannedRange"]).reset_to is None


def test_a_marker_row_has_the_offset_an_operator_reset_the_queue_to() -> None:
    """F5: 0 is a target like any other."""
    (row,) = marker_row(RangeEnd(planned=PLANNED, rows=8, reset_to=0)).to_pylist()

    assert end_from_json(QUEUE, row["plannedRange"]).planned == PLANNED
    assert end_from_json(QUEUE, row["plannedRange"]).reset_to == 0


def test_a_marker_row_has_the_time_reading_took() -> None:
    """D11"""
    (row,) = marker_row(RangeEnd(planned=PLANNED, rows=8, pulls=3, pull_ms=4.56)).to_pylist()

    assert end_from_json(QUEUE, row["plannedRange"]).metrics == ConsumeMetrics(pulled=8, pulls=3, pull_ms=4.6)


@pytest.mark.parametrize(
    ("bounds", "told"),
    [
        (None, {}),
        ((3, 90), {"MIN_OFFSET": "3", "MAX_OFFSET": "90"}),
        ((0, 0), {"MIN_OFFSET": "0", "MAX_OFFSET": "0"}),
    ],
)
def test_a_marker_row_has_the_bounds_that_messages_get_as_properties(
    bounds: tuple[int, int] | None, told: dict[str, str]
) -> None:
    """D1: ``PullAPIWrapper.processPullResult``."""
    (row,) = marker_row(RangeEnd(planned=PLANNED, rows=8, bounds=bounds)).to_pylist()

    assert end_from_json(QUEUE, row["plannedRange"]).described_by_messages == told


def test_a_marker_row_brings_back_how_often_messages_were_given_back() -> None:
    """D6"""
    planned = replace(PLANNED, state=PLANNED.state._replace(retry_counts=stored_texts.retries("[[12,15,1]]")))
    (row,) = marker_row(RangeEnd(planned=planned, rows=8)).to_pylist()

    assert end_from_json(QUEUE, row["plannedRange"]).planned == planned


@pytest.mark.parametrize("ended", list(EndReason))
def test_a_marker_row_says_why_the_range_ends_there(ended: EndReason) -> None:
    """D4, D13"""
    (row,) = marker_row(RangeEnd(planned=PLANNED, rows=8, reason=ended)).to_pylist()

    assert end_from_json(QUEUE, row["plannedRange"]).reason is ended


def test_no_number_and_no_time_of_a_marker_row_is_null() -> None:
    """pandas would make floats of the whole column."""
    marker = marker_row(RangeEnd(planned=PLANNED, rows=0))

    assert marker.schema == CONSUMER_SCHEMA
    for name in ("queueId", "queueOffset", "commitLogOffset", "reconsumeTimes", "sysFlag", "flag"):
        assert marker.column(name).null_count == 0
    assert marker.column("bornTimestamp").null_count == marker.column("storeTimestamp").null_count == 0


def stored(topic: str, properties: str = "") -> bytes:
    return encode_stored_message(
        StoredMessage(
            topic=topic,
            queue_id=0,
            queue_offset=5,
            commit_log_offset=500,
            body=b"x",
            properties_data=properties.encode(),
            born_timestamp=1_700_000_000_000,
            born_host="127.0.0.1:1",
            store_timestamp=1_700_000_000_001,
            store_host="127.0.0.1:2",
            body_crc=body_crc(b"x"),
        )
    )


@pytest.mark.parametrize("namespace", ["", "shop"])
def test_a_message_of_the_retry_topic_names_the_topic_it_was_sent_to_first(namespace: str) -> None:
    """E3: row and queue stay those of the retry topic, and the origin is shown without its namespace (A6)."""
    before = f"{namespace}%" if namespace else ""
    topics = (f"RETRY_TOPIC\x01{before}{name}\x02" for name in ("orders", "payments"))
    body = b"".join(stored("%RETRY%g", properties) for properties in (*topics, "TAGS\x01a\x02"))

    rows = spark_rows(with_origin_topics(decode_columns(body, "broker-a", tags=None), namespace)).to_pylist()

    assert [row["originTopic"] for row in rows] == ["orders", "payments", None]
    assert {(row["topic"], row["brokerName"], row["queueId"]) for row in rows} == {
        ("%RETRY%g", "broker-a", 0)
    }
    assert [row["kind"] for row in rows] == [None] * 3


def test_a_message_of_another_topic_has_no_origin_whatever_its_properties_say() -> None:
    """E3: ``resetRetryAndNamespace`` looks at only messages of the group's retry topic."""
    body = stored("orders", "RETRY_TOPIC\x01payments\x02")

    (row,) = spark_rows(with_origin_topics(decode_columns(body, "broker-a", tags=None), "")).to_pylist()

    assert (row["topic"], row["originTopic"]) == ("orders", None)


def test_a_restored_message_has_the_topic_it_was_sent_to_and_the_queue_it_was_read_from() -> None:
    """E3, H6: its unique key is that of the retry queue."""
    read = message_at(7, queue=MessageQueue("%RETRY%g", "broker-a", 0))

    restored = read.restored("orders")

    assert restored.topic == "orders"
    assert restored.message_queue == read.message_queue == MessageQueue("%RETRY%g", "broker-a", 0)
    assert read.restored(None) == read
