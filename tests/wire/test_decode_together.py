"""Several queues' answers decoded in one go, where they were received."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.errors import RemoteProtocolError, RocketMQError
from pyspark_rocketmq.model import PulledBody
from pyspark_rocketmq.wire.columnar import decode as columnar
from pyspark_rocketmq.wire.columnar.decode import decode_together
from tests.helpers.stored_messages import decode_columns
from tests.wire.columnar_cases import encoded, stored_message
from tests.wire.test_columnar_members import inner_batch


def body_of(begin: int, count: int, size: int = 10, tag: str = "t") -> bytes:
    """Messages of several lengths."""
    return encoded(
        *(
            stored_message(
                queue_offset=begin + number,
                body=b"b" * (size + number % 3),
                properties_data=f"TAGS\x01{tag}{number % 2}\x02".encode(),
            )
            for number in range(count)
        )
    )


def scattered(groups: list[list[bytes]], gap: int) -> list[list[memoryview]]:
    """The bodies as views of one buffer: in turn one of each group, with gaps between."""
    buffer = bytearray(b"\xda\xa3\x20\xa7" * 50)
    places: list[list[tuple[int, int]]] = [[] for _ in groups]
    for turn in range(max(map(len, groups))):
        for group, bodies in zip(places, groups, strict=True):
            if turn < len(bodies):
                buffer += b"\x55" * gap
                group.append((len(buffer), len(buffer) + len(bodies[turn])))
                buffer += bodies[turn]
    view = memoryview(buffer)
    return [[view[begin:end] for begin, end in group] for group in places]


def assert_as_alone(groups: list[list[bytes]], views: Sequence[Sequence[PulledBody]], **options: Any) -> None:
    together = decode_together(views, "b", **options)

    assert together == [decode_columns(b"".join(bodies), "b", **options) for bodies in groups]


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 40), st.integers(0, 300)), min_size=1, max_size=6),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 20),
)
def test_every_group_is_the_same_beside_others(shapes: list[list[tuple[int, int]]], gap: int) -> None:
    """D1: whatever the lengths, and wherever the bodies are."""
    groups = [
        [body_of(100 * number, count, size) for number, (count, size) in enumerate(shape)] for shape in shapes
    ]

    assert_as_alone(groups, scattered(groups, gap))


def test_equally_long_messages_in_many_bodies() -> None:
    """D1: the quickest way through."""
    groups = [[encoded(*(stored_message(queue_offset=at) for at in range(32)))] * 20 for _ in range(4)]

    assert_as_alone(groups, scattered(groups, 7))


def test_hundreds_of_messages_in_few_bodies() -> None:
    """D1: bodies are entered in the middle too."""
    groups = [[body_of(0, 900, 50), body_of(900, 5)], [body_of(0, 2, 3000)]]

    assert_as_alone(groups, scattered(groups, 3))


def test_tags_are_compared_in_every_group() -> None:
    """A4"""
    groups = [[body_of(0, 5)], [body_of(0, 4, tag="other")], [body_of(5, 7)]]

    assert_as_alone(groups, scattered(groups, 1), tags=frozenset({"t1"}))


def test_bodies_of_several_buffers_or_none_are_the_same() -> None:
    """D1: after the first answer of a connection, and when a buffer was full."""
    groups = [[body_of(0, 5), body_of(5, 6)], [body_of(0, 4)]]
    (first,), (second,) = scattered([groups[0][:1]], 3), scattered([groups[1]], 3)

    assert_as_alone(groups, [[first[0], groups[0][1]], [second[0]]])


def test_inner_batches_and_empty_bodies_are_taken_apart() -> None:
    """D1"""
    groups = [[encoded(inner_batch(b"one", b"two"))], [body_of(2, 3)]]

    assert_as_alone(groups, scattered(groups, 2))
    none, two = decode_together([[], [body_of(0, 2)]], "b")
    assert not isinstance(none, RocketMQError)
    assert not isinstance(two, RocketMQError)
    assert (none.num_rows, two.num_rows) == (0, 2)


@pytest.mark.parametrize("cut", [1, 40, 90])
def test_a_group_that_is_cut_fails_by_itself(cut: int) -> None:
    """D1: the others' messages are there."""
    groups = [[body_of(0, 3)], [body_of(0, 4)[:-cut]], [body_of(0, 5)]]

    first, second, third = decode_together(scattered(groups, 4), "b")

    assert isinstance(second, RemoteProtocolError)
    assert [each.num_rows for each in (first, third) if isinstance(each, pa.RecordBatch)] == [3, 5]


def test_a_message_that_leads_out_of_its_body_is_refused() -> None:
    """D1: what is behind the body is not part of it, though it may look so."""
    whole = body_of(0, 3)
    buffer = bytearray(whole + body_of(3, 3))
    length = len(whole)
    buffer[0:4] = (int.from_bytes(buffer[0:4], "big") + length).to_bytes(4, "big")
    view = memoryview(buffer)

    (outcome, rest) = decode_together([[view[:length]], [view[length:]]], "b")

    assert isinstance(outcome, RemoteProtocolError)
    assert isinstance(rest, pa.RecordBatch)


def test_a_batch_does_not_refer_to_the_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A1: the buffer can be received into again at once."""
    monkeypatch.setattr(columnar._Decoder, "decode_one", None)  # all of it in place
    buffer = bytearray(body_of(0, 40))
    expected = decode_columns(bytes(buffer), "b")

    (batch,) = decode_together([[memoryview(buffer)]], "b")
    buffer[:] = bytes(len(buffer))
    buffer.append(0)  # refused as long as anybody looks into it

    assert batch == expected
