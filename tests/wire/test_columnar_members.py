"""Inner batches, which a broker stores for a topic with a batch consume queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import Message
from pyspark_rocketmq.wire.compression import CompressionType, compress
from pyspark_rocketmq.wire.messages import INNER_BATCH_FLAGS, StoredMessage, decode_messages, encode_batch
from tests.helpers.stored_messages import decode_columns
from tests.wire.columnar_cases import (
    REGULAR_PROPERTIES,
    assert_same_reaction,
    encoded,
    expected_rows,
    inner_batches,
    rows,
    stored_message,
    stored_messages,
    vectorised,
)


def inner_batch(*bodies: bytes, compression: CompressionType | None = None, **changes: Any) -> StoredMessage:
    body = encode_batch([Message(topic="T", body=body) for body in bodies])
    body, flags = (body, 0) if compression is None else compress(body, compression)
    return stored_message(body=body, sys_flag=flags | INNER_BATCH_FLAGS, **changes)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(stored_messages(REGULAR_PROPERTIES, inner_batches()), stored_messages(REGULAR_PROPERTIES)),
        min_size=1,
        max_size=5,
    )
)
def test_inner_batches_among_other_messages_take_the_vectorised_path(messages: list[StoredMessage]) -> None:
    data = encoded(*messages)

    assert rows(vectorised(data)) == expected_rows(decode_messages(data, "b"))


@pytest.mark.parametrize("compression", [None, *CompressionType])
def test_members_count_queue_offsets_from_that_of_their_batch(compression: CompressionType | None) -> None:
    data = encoded(
        stored_message(queue_offset=1),
        inner_batch(b"a", b"b", compression=compression, queue_offset=2, reconsume_times=3, flag=5),
        inner_batch(queue_offset=4),
        inner_batch(b"c", compression=compression, queue_offset=4),
        stored_message(queue_offset=5),
    )

    batch = vectorised(data)

    assert batch is not None
    assert batch.column("queueOffset").to_pylist() == [1, 2, 3, 4, 5]
    assert batch.column("body").to_pylist() == [b"hello", b"a", b"b", b"c", b"hello"]
    assert batch.column("reconsumeTimes").to_pylist() == [0] * 5
    assert_same_reaction(data)
    assert_same_reaction(data, columns=["queueOffset", "sysFlag", "flag"])


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body[:-1],
        lambda body: body + b"\0\0\0",
        lambda body: body + b"\0\0\0\x04",
        lambda body: b"\0\0\0\0" + body,
        lambda body: b"\xff" + body[1:],
        lambda body: body[:3] + b"\x15" + body[4:],
        lambda body: body[:19] + b"\x7f" + body[20:],
        lambda body: body[:16] + b"\xff" + body[17:],
    ],
)
def test_a_malformed_inner_batch_raises_where_it_is(change: Callable[..., Any]) -> None:
    whole = inner_batch(b"one", b"two")
    data = encoded(stored_message(queue_offset=6), replace(whole, body=change(whole.body)))

    with pytest.raises(RemoteProtocolError, match="queueOffset=7"):
        decode_columns(data, "b", columns=["flag"])
    assert_same_reaction(data)


@pytest.mark.parametrize("announced", [b"2", b"3", b"02", b"x"])
def test_a_batch_has_as_many_members_as_it_announces(announced: bytes) -> None:
    data = encoded(inner_batch(b"one", b"two", properties_data=b"INNER_NUM\x01" + announced + b"\x02"))

    assert_same_reaction(data)
    assert_same_reaction(data, columns=["flag"])


def test_members_past_the_greatest_queue_offset_are_dropped_as_the_plain_decoder_drops_them() -> None:
    data = encoded(inner_batch(b"one", b"two", queue_offset=(1 << 63) - 1))

    assert_same_reaction(data)
