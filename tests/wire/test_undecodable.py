"""Messages that cannot be decoded stand in their place; everything else of the answer is read."""

from __future__ import annotations

import zlib
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.columnar.decode import (
    Undecodable,
    decode_in_turn,
    message_starts,
    row_of,
    why_undecodable,
)
from pyspark_rocketmq.wire.columnar.schema import MESSAGE_SCHEMA
from pyspark_rocketmq.wire.compression import CompressionType, ExpansionBudget, compress
from pyspark_rocketmq.wire.messages import INNER_BATCH_FLAGS, StoredMessage, decode_messages, iter_messages
from tests.helpers.stored_messages import encode_stored_message
from tests.wire.columnar_cases import (
    Row,
    assert_same_reaction,
    encoded,
    expected_rows,
    rows,
    stored_message,
    stored_messages,
)

QUEUE = MessageQueue("T", "b", 3)
BROKEN_BODIES = {
    "not zlib": (b"nonsense", 0x1),
    "zlib cut": (zlib.compress(b"hello")[:-2], 0x301),
    "not LZ4": (b"nonsense", 0x101),
    "not Zstandard": (b"nonsense", 0x201),
    "Zstandard and more": (compress(b"a", CompressionType.ZSTD)[0] + b"nonsense", 0x201),
    "of no known type": (b"nonsense", 0x701),
    "a bomb": compress(bytes((128 << 20) + 1), CompressionType.ZSTD),
    "no inner batch": (b"nonsense", INNER_BATCH_FLAGS),
    "no compressed inner batch": (compress(b"nonsense", CompressionType.ZLIB)[0], INNER_BATCH_FLAGS | 1),
}
broken_messages = st.sampled_from(sorted(BROKEN_BODIES.keys() - {"a bomb"})).flatmap(
    lambda name: stored_messages(bodies=st.just(BROKEN_BODIES[name]))
)


def in_turn(*bodies: bytes, **wanted: Any) -> list[list[Row] | Undecodable]:
    """What is decoded, batches as rows."""
    parts = decode_in_turn(bodies, "b", **wanted)
    return [part if isinstance(part, Undecodable) else rows(part) for part in parts]


def shown(data: bytes) -> list[Row]:
    return expected_rows(decode_messages(data, "b"))


@pytest.mark.parametrize(("body", "sys_flag"), BROKEN_BODIES.values(), ids=BROKEN_BODIES)
def test_a_message_whose_body_cannot_be_decoded_is_shown_as_it_is_stored(body: bytes, sys_flag: int) -> None:
    """L7: with its bytes, its own properties and the reason; the bits that say how it was compressed stay."""
    good = stored_message(queue_offset=6)
    bad = stored_message(queue_offset=7, body=body, sys_flag=sys_flag, properties_data=b"KEYS\x01k\x02")

    before, undecodable, behind = in_turn(encoded(good, bad, good))

    assert before == behind == shown(encoded(good))
    assert isinstance(undecodable, Undecodable)
    assert undecodable.queue_offsets(0, 100, is_filtered=False) == range(7, 8)
    message = undecodable.shown(QUEUE, 7)
    assert (message.body, message.sys_flag, message.keys) == (body, sys_flag, "k")
    assert message.properties == {"KEYS": "k", "UNDECODABLE": undecodable.reason}
    assert "queueOffset" not in undecodable.reason
    assert rows(row_of(message)) == expected_rows([message])


def test_the_columns_of_one_that_is_kept_are_those_asked_for() -> None:
    """L7."""
    bad = stored_message(body=b"nonsense", sys_flag=0x201)
    wanted: dict[str, Any] = {"columns": ["queueOffset", "body"], "properties": ["UNDECODABLE", "a"]}

    (undecodable,) = decode_in_turn([encoded(bad)], "b", **wanted)
    row = row_of(undecodable.shown(QUEUE, 7), **wanted)

    assert rows(row) == [(7, b"nonsense", undecodable.reason, None)]
    assert row.schema.names == ["queueOffset", "body", "UNDECODABLE", "a"]


def test_one_that_is_not_subscribed_to_is_left_out() -> None:
    """L7: brokers filter only by hash code."""
    bad = stored_message(body=b"nonsense", sys_flag=0x201, properties_data=b"TAGS\x01other\x02")
    good = stored_message(properties_data=b"TAGS\x01mine\x02")

    parts = in_turn(encoded(good, bad, good), tags=frozenset({"mine"}))

    assert not any(isinstance(part, Undecodable) for part in parts)
    assert sum(map(len, parts)) == 2


@pytest.mark.parametrize("at", [0, 3, 4, 84])
@pytest.mark.parametrize("value", [b"\xff", b"\x7f"])
def test_nothing_is_read_behind_a_broken_layout(at: int, value: bytes) -> None:
    """L7: nobody knows where it ends: total size, magic number and length of the body are damaged in turn."""
    good, bad = encoded(stored_message(queue_offset=6)), bytearray(encoded(stored_message(queue_offset=7)))
    bad[at : at + 1] = value
    data = good + bytes(bad) + good

    before, undecodable = in_turn(data, good)

    assert before == shown(good)
    assert isinstance(undecodable, Undecodable)
    assert undecodable.stored is None
    assert undecodable.data == data[len(good) :]
    message = undecodable.shown(QUEUE, 9)
    assert (message.message_queue, message.queue_offset, message.body) == (QUEUE, 9, undecodable.data)
    assert message.commit_log_offset == -1, "a broker would copy another message"
    assert message.properties == {"UNDECODABLE": undecodable.reason}
    assert rows(row_of(message)) == expected_rows([message])


def test_the_offset_of_a_broken_layout_is_the_next_one_or_what_it_says_where_some_are_left_out() -> None:
    """L7."""
    bad = Undecodable(None, encoded(stored_message(queue_offset=7)), "")

    assert bad.queue_offsets(5, 20, is_filtered=False) == range(5, 6)
    assert bad.queue_offsets(5, 20, is_filtered=True) == range(7, 8)
    assert bad.queue_offsets(8, 20, is_filtered=True) == range(8, 9)
    assert bad.queue_offsets(5, 7, is_filtered=True) == range(5, 6)


@pytest.mark.parametrize(
    ("announced", "count"), [("3", 3), ("abc", 1), ("0", 1), ("-4", 1), ("٣", 1), ("9" * 30, 1)]
)
def test_an_inner_batch_has_as_many_offsets_as_it_announces(announced: str, count: int) -> None:
    """L7."""
    bad = stored_message(
        queue_offset=7,
        body=b"x",
        sys_flag=INNER_BATCH_FLAGS,
        properties_data=f"INNER_NUM\x01{announced}\x02".encode(),
    )

    undecodable = why_undecodable(encoded(bad))

    assert undecodable is not None
    assert undecodable.queue_offsets(0, 100, is_filtered=False) == range(7, 7 + count)


def test_a_decodable_message_has_no_reason() -> None:
    assert why_undecodable(encoded(stored_message())) is None


def test_messages_begin_where_sizes_say() -> None:
    one = encoded(stored_message())

    assert message_starts(b"") == []
    assert message_starts(one * 3) == [0, len(one), 2 * len(one)]
    assert message_starts(one + b"\0\0\0\1" + one) == [0, len(one)]
    assert message_starts(one + b"xyz") == [0, len(one)]


@settings(deadline=None)
@given(st.lists(st.tuples(stored_messages() | broken_messages, st.booleans()), max_size=40), st.booleans())
@example([(stored_message(body=b"nonsense", sys_flag=1), False)] * 33, True)
def test_both_decoders_find_the_same_messages_undecodable(
    messages: list[tuple[StoredMessage, bool]], in_pieces: bool
) -> None:
    """L7, A4: what is decoded in turn is what each message is by itself, scalar and as columns."""
    parts = [encode_stored_message(message) for message, _ in messages]
    for part in parts:
        assert_same_reaction(part)
    bodies = parts if in_pieces else [b"".join(parts)]

    expected: list[Row | int] = []
    for number, part in enumerate(parts):
        undecodable = why_undecodable(part)
        if undecodable is None:
            expected += expected_rows(iter_messages(part, "b", ExpansionBudget(len(part))))
        else:
            assert undecodable.stored is not None
            expected.append(undecodable.stored.queue_offset)
            row_of(undecodable.shown(QUEUE, number)).validate(full=True)

    found: list[Row | int] = []
    for decoded in decode_in_turn(bodies, "b"):
        if isinstance(decoded, Undecodable):
            assert decoded.stored is not None
            found.append(decoded.stored.queue_offset)
        else:
            assert decoded.schema == MESSAGE_SCHEMA
            assert isinstance(decoded, pa.RecordBatch)
            found += rows(decoded)
    assert found == expected
