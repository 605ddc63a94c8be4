"""Compressed bodies: the columns expand to no more than the plain decoder lets an answer expand to."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from pyspark_rocketmq.errors import RemoteProtocolError, RocketMQError
from pyspark_rocketmq.model import Message
from pyspark_rocketmq.wire import compression
from pyspark_rocketmq.wire.columnar.decode import Undecodable, decode_in_turn, decode_together
from pyspark_rocketmq.wire.compression import CompressionType, compress
from pyspark_rocketmq.wire.messages import INNER_BATCH_FLAGS, StoredMessage, encode_batch
from tests.helpers.stored_messages import decode_columns
from tests.wire.columnar_cases import assert_same_reaction, encoded, stored_message

BODY_BYTES = 1000


def message(queue_offset: int, *, is_batch: bool = False, properties: bytes = b"") -> StoredMessage:
    body, more_flags = bytes(BODY_BYTES), 0
    if is_batch:
        body, more_flags = encode_batch([Message(topic="T", body=bytes(BODY_BYTES - 22))]), INNER_BATCH_FLAGS
    compressed, flags = compress(body, CompressionType.ZSTD)
    return stored_message(
        queue_offset=queue_offset, body=compressed, sys_flag=flags | more_flags, properties_data=properties
    )


def batches_of(bodies: list[bytes], **wanted: Any) -> list[pa.RecordBatch]:
    """What is decoded of bodies that can be."""
    parts = list(decode_in_turn(bodies, "b", **wanted))
    batches = [part for part in parts if not isinstance(part, Undecodable)]
    assert len(batches) == len(parts)
    return batches


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many bytes the bodies of an answer may expand to, whatever its length."""
    monkeypatch.setattr(compression, "MAX_EXPANSION", 0)
    return lambda most: monkeypatch.setattr(compression, "MAX_EXPANDED_BYTES", most)


@pytest.mark.parametrize("messages", [4, 70])
def test_columns_refuse_what_the_plain_decoder_refuses(allowed: Callable[[int], None], messages: int) -> None:
    """A4: in one word with it, inner batches and what is decoded by halves included."""
    irregular = b"a\x01\xff\x02"
    for is_batch, properties, has_plain in product([False, True], [b"", irregular], [False, True]):
        parts = [message(at, is_batch=is_batch and at % 2 == 0) for at in range(messages)]
        parts[-2] = message(messages - 2, properties=properties)
        if has_plain:
            parts.insert(1, stored_message(queue_offset=messages, body=b"as it is"))
        data = encoded(*parts)
        for most in (messages * BODY_BYTES, messages * BODY_BYTES - 1, 2 * BODY_BYTES):
            allowed(most)
            some: dict[str, Any] = {"columns": ["body", "queueOffset"], "properties": ["a"]}
            for options in ({}, some):
                assert_same_reaction(data, **options)


def test_bodies_that_expand_too_far_together_are_decoded_one_after_the_other(
    allowed: Callable[[int], None],
) -> None:
    """A4: whole messages are never refused for what they expand to, only decoded in smaller steps."""
    bodies = [encoded(*(message(10 * group + at) for at in range(5))) for group in range(3)]
    allowed(5 * BODY_BYTES)

    (refusal,) = decode_together([bodies], "b")
    assert isinstance(refusal, RemoteProtocolError)
    assert "expand to more than" in str(refusal)
    assert [batch.num_rows for batch in batches_of(bodies)] == [5, 5, 5]
    allowed(2 * BODY_BYTES)
    halves = batches_of(bodies, columns=["queueOffset", "body"])
    assert [batch.num_rows for batch in halves] == [2, 1, 2] * 3
    assert [at for batch in halves for at in batch.column("queueOffset").to_pylist()] == [
        10 * group + at for group in range(3) for at in range(5)
    ]
    assert all(body == bytes(BODY_BYTES) for batch in halves for body in batch.column("body").to_pylist())


def test_only_the_message_that_expands_too_far_cannot_be_decoded(allowed: Callable[[int], None]) -> None:
    """L7: it stands in its place, and what is before and behind it is read."""
    large, small = message(2), stored_message(queue_offset=3)
    allowed(BODY_BYTES - 1)

    before, undecodable, behind = decode_in_turn([encoded(small, large, small)], "b")

    assert not isinstance(before, Undecodable)
    assert not isinstance(behind, Undecodable)
    assert (before.num_rows, behind.num_rows) == (1, 1)
    assert isinstance(undecodable, Undecodable)
    assert undecodable.stored is not None
    assert undecodable.stored.queue_offset == 2
    assert "lower pullBatchSize" in undecodable.reason


def test_other_ranges_are_decoded_when_one_expands_too_far(allowed: Callable[[int], None]) -> None:
    allowed(2 * BODY_BYTES)
    groups = [[encoded(message(at))] for at in range(2)] + [[encoded(message(2), message(3), message(4))]]

    first, second, third = decode_together(groups, "b")

    assert not isinstance(first, RocketMQError)
    assert not isinstance(second, RocketMQError)
    assert (first.num_rows, second.num_rows) == (1, 1)
    assert isinstance(third, RemoteProtocolError)
    assert "expand to more than" in str(third)


def test_an_answer_of_a_few_kilobytes_costs_no_more_than_it_may() -> None:
    """A1: nine messages of 15 MiB each in 5 KB."""
    body, flags = compress(bytes(15 << 20), CompressionType.ZSTD)
    data = encoded(*[stored_message(body=body, sys_flag=flags)] * 9)

    with pytest.raises(RemoteProtocolError, match="expand to more than 134217728 bytes"):
        decode_columns(data, "b")
