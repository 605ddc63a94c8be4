"""Which columns a read brings: options includeColumns, propertyColumns and decodeProperties."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.format import DefaultSource
from pyspark_rocketmq.model import MESSAGE_COLUMNS
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.wire.columnar.schema import MESSAGE_SCHEMA
from tests.source.conftest import Topics

REQUIRED = {"nameServers": "n:1", "topic": "orders"}


def test_the_columns_of_a_message_are_the_fields_of_java_s() -> None:
    assert list(MESSAGE_COLUMNS) == MESSAGE_SCHEMA.names


def test_only_included_columns_are_read_in_the_order_given(topics: Topics) -> None:
    """includeColumns: matched without regard to case, as Spark does."""
    topic = topics.make(3)

    assert topics.read(topic, includeColumns="tags, BODY").to_pydict() == {
        "tags": ["even", "odd", "even"],
        "body": [b"0", b"1", b"2"],
    }


def test_included_columns_need_neither_the_queue_offset_nor_the_tags_to_be_filtered_by(
    topics: Topics,
) -> None:
    """includeColumns, A4"""
    topic = topics.make(4)

    assert topics.read(topic, includeColumns="body", subscription="odd").to_pydict() == {"body": [b"1", b"3"]}


def test_named_properties_are_columns_of_their_own(topics: Topics) -> None:
    """propertyColumns: null where a message lacks one."""
    topic = topics.make(2)

    read = topics.read(topic, includeColumns="queueOffset", propertyColumns="number, absent")

    assert read.to_pydict() == {"queueOffset": [0, 1], "number": ["0", "1"], "absent": [None, None]}


def test_the_map_of_properties_can_be_left_out(topics: Topics) -> None:
    """decodeProperties"""
    topic = topics.make(1)

    names = topics.read(topic, decodeProperties="false", propertyColumns="number").column_names

    assert names == [*(name for name in MESSAGE_COLUMNS if name != "properties"), "number"]


def test_the_schema_that_spark_gets_is_that_of_the_columns() -> None:
    source = DefaultSource(REQUIRED | {"includecolumns": "queueId,body", "propertyColumns": "n"})

    assert source.schema().simpleString() == "struct<queueId:int,body:binary,n:string>"


def test_a_stream_of_ranges_has_tickets_in_the_place_of_messages() -> None:
    """handOverRanges"""
    group = {"consumerGroup": "g", "offsetStore": "/lake/offsets", "handOverRanges": "true"}

    assert DefaultSource(REQUIRED | group).schema().simpleString() == "struct<plannedRange:binary>"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"includeColumns": "bodi"}, "names 'bodi', which is not a column of a message; did you mean 'body'"),
        ({"includeColumns": "xyz"}, "is not a column of a message; those are topic, brokerName"),
        ({"includeColumns": "body,body"}, "names body twice"),
        (
            {"includeColumns": "properties", "decodeProperties": "false"},
            "'decodeProperties=false' leaves out",
        ),
        ({"propertyColumns": "Keys"}, "names 'Keys' beside the column 'keys'"),
        ({"propertyColumns": "a,A"}, "names 'A' beside the property 'a'"),
        (
            {"includeColumns": "body", "consumerGroup": "g", "offsetStore": "/s"},
            "'includeColumns' does not go with 'consumerGroup'",
        ),
        (
            {"propertyColumns": "a", "consumerGroup": "g", "offsetStore": "/s"},
            "'propertyColumns' does not go with 'consumerGroup'",
        ),
        (
            {"decodeProperties": "false", "consumerGroup": "g", "offsetStore": "/s"},
            "'decodeProperties=false' does not go with 'consumerGroup'",
        ),
    ],
)
def test_columns_that_cannot_be_read_are_refused(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        ReadOptions.parse(REQUIRED | given)
