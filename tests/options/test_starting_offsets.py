"""Parsing option startingOffsets."""

from __future__ import annotations

import contextlib
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.options.positions import (
    COMMITTED,
    EARLIEST,
    LATEST,
    QueuePositions,
    parse_ending_offsets,
    parse_ending_times,
    parse_starting_offsets,
    parse_starting_times,
)


@pytest.mark.parametrize("text", ["earliest", " EARLIEST "])
def test_earliest_is_a_word(text: str) -> None:
    assert parse_starting_offsets(text) == EARLIEST


def test_latest_is_a_word() -> None:
    assert parse_starting_offsets("Latest") == LATEST


def test_json_names_queues_and_the_others_start_at_earliest() -> None:
    """F2: Spark's startingOffsets for the plain source."""
    spec = parse_starting_offsets('{"orders": {"broker-a": {"0": 17, "1": -2}, "broker-b": {"0": -1}}}')

    assert spec.by_queue == {
        MessageQueue("orders", "broker-a", 0): 17,
        MessageQueue("orders", "broker-a", 1): -2,
        MessageQueue("orders", "broker-b", 0): -1,
    }
    assert spec.wanted(MessageQueue("orders", "broker-a", 0)) == 17
    assert spec.wanted(MessageQueue("orders", "broker-b", 5)) == -2


def test_json_may_name_whole_topics_beside_queues() -> None:
    """As in Spark's Kafka source (SPARK-58774)."""
    spec = parse_starting_offsets('{"a": "Latest", "b": -2, "c": 5, "d": {"broker-a": {"0": 7}}}')

    assert [spec.wanted(MessageQueue(topic, "broker-a", 0)) for topic in "abcde"] == [-1, -2, 5, 7, -2]
    assert spec.topics == set("abcd")


def test_a_group_s_offsets_are_a_word() -> None:
    assert parse_starting_offsets("GROUP") == COMMITTED
    assert parse_ending_offsets(" Group ") == COMMITTED


def test_endings_are_latest_unless_they_are_named() -> None:
    ends = parse_ending_offsets('{"orders": {"broker-a": {"0": 17}}, "payments": "latest"}')

    assert [ends.wanted(MessageQueue("orders", "broker-a", number)) for number in (0, 1)] == [17, -1]
    assert parse_ending_offsets(" Latest ") == QueuePositions(-1)
    for text in ('{"orders": -2}', '{"orders": "earliest"}', "earliest"):
        with pytest.raises(ValueError, match=r"JSON of the shape|from 0 on, or -1 \(latest\), not"):
            parse_ending_offsets(text)


def test_times_are_named_per_topic_or_queue() -> None:
    text = '{"orders": {"broker-a": {"0": 1700000000000}}, "payments": 5}'

    starts, ends = parse_starting_times(text), parse_ending_times(text)

    assert starts.wanted(MessageQueue("orders", "broker-a", 0)) == 1_700_000_000_000
    assert starts.wanted(MessageQueue("payments", "broker-b", 3)) == 5
    assert [each.wanted(MessageQueue("orders", "broker-a", 1)) for each in (starts, ends)] == [-2, -1]
    for wrong in ("5", '{"orders": -1}', '{"orders": "latest"}', "latest"):
        with pytest.raises(
            ValueError,
            match=(
                r"of another shape|milliseconds since the epoch, not|is not a time: give|is not JSON of the "
                r"shape"
            ),
        ):
            parse_starting_times(wrong)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("newest", "is neither earliest nor latest nor JSON of the shape"),
        ("", "nor latest nor JSON"),
        ("{", "failed at character 1"),
        ("[" * 100_000, "nested too deeply"),
        ("{}", "the JSON must be a non-empty JSON object"),
        ("17", "the JSON must be a non-empty JSON object"),
        ('{"orders": -3}', "for topic orders that must be a whole number"),
        ('{"orders": "newest"}', 'not "newest"'),
        ('{"orders": {}}', "the value of topic 'orders' must be"),
        ('{"orders": {"broker-a": [1]}}', "the value of broker 'broker-a' must be"),
        ('{"orders": {"broker-a": {"x": 1}}}', "queue id 'x' for broker 'broker-a'"),
        ('{"orders": {"broker-a": {"-1": 1}}}', "queue id '-1'"),
        ('{"orders": {"broker-a": {"01": 1}}}', "queue id '01'"),
        ('{"orders": {"broker-a": {"0": -3}}}', "for orders / broker-a / 0 that must be a whole number"),
        ('{"orders": {"broker-a": {"0": "5"}}}', 'not "5"'),
        ('{"orders": {"broker-a": {"0": 1.5}}}', "not 1.5"),
        ('{"orders": {"broker-a": {"0": true}}}', "not true"),
        ('{"orders": {"broker-a": {"0": 9223372036854775808}}}', "whole number"),
        ('{"orders": {"broker-a": {"0": 1, "0": 2}}}', "the name '0' twice"),
    ],
)
def test_invalid_starting_offsets_are_refused_with_a_reason(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=r"^(is|has) .*[^.]$") as raised:
        parse_starting_offsets(text)

    assert complaint in str(raised.value)


def test_the_value_survives_the_way_to_the_source_runner() -> None:
    spec = parse_starting_offsets('{"orders": {"broker-a": {"0": 17}}}')

    assert pickle.loads(pickle.dumps(spec)) == spec


@given(st.text(max_size=60))
def test_any_text_is_parsed_or_refused_as_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse_starting_offsets(text)
