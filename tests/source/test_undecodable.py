"""Messages that cannot be decoded, read through the data source: option undecodableMessages."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.errors import UndecodableMessage
from pyspark_rocketmq.model import MessageQueue
from tests.helpers.poison import GARBAGE, store_as_it_is
from tests.source.conftest import Topics


def poisoned(topics: Topics) -> str:
    """A topic of one queue, with such a message at offset 2 of 5."""
    topic = topics.make(2)
    store_as_it_is(topics.sim.broker_addresses["broker-a"], MessageQueue(topic, "broker-a", 0))
    topics.put(topic, 0, 2)
    return topic


def test_messages_that_cannot_be_decoded_are_an_error_or_are_kept(topics: Topics) -> None:
    """L7, undecodableMessages"""
    topic = poisoned(topics)

    with pytest.raises(
        UndecodableMessage, match=r"queue=0: the message at offset 2 .*undecodableMessages=keep"
    ) as refusal:
        topics.read(topic)
    assert "offsets skip" not in str(refusal.value), "no group reads the queue"
    read = topics.read(topic, undecodableMessages="KEEP", includeColumns="queueOffset, body, sysFlag, keys")

    assert read.to_pydict() == {
        "queueOffset": [0, 1, 2, 3, 4],
        "body": [b"0", b"1", GARBAGE, b"3", b"4"],
        "sysFlag": [0, 0, 1, 0, 0],
        "keys": [None, None, "poison", None, None],
    }


def test_the_reason_is_a_property_of_the_undecodable_message(topics: Topics) -> None:
    """L7, undecodableMessages: a column of its own, if asked for."""
    read = topics.read(
        poisoned(topics), undecodableMessages="keep", decodeProperties="false", propertyColumns="UNDECODABLE"
    )

    [reason] = filter(None, read.column("UNDECODABLE").to_pylist())
    assert "marked as zlib but is not" in reason
    assert read.column("UNDECODABLE").null_count == 4


def test_a_body_that_is_not_selected_need_not_be_decoded(topics: Topics) -> None:
    """L7"""
    assert topics.offsets(poisoned(topics), includeColumns="queueId, queueOffset") == {0: [0, 1, 2, 3, 4]}


def test_a_stream_stands_still_before_one_or_goes_on(topics: Topics) -> None:
    """L7, undecodableMessages: the option is as good for a query that has failed."""
    stream = topics.stream(poisoned(topics))

    with pytest.raises(UndecodableMessage, match="offset 2"):
        stream.next()
    stream.restart(undecodableMessages="keep")

    assert stream.run().column("body").to_pylist() == [b"0", b"1", GARBAGE, b"3", b"4"]
    assert stream.next() is None
