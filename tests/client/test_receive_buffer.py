"""Buffers are written again only when nobody looks into them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.client.pull_connection import ReceiveBuffer

MIB = 1 << 20


def receive(buffer: ReceiveBuffer, data: bytes) -> memoryview:
    """Receive ``data`` as one whole frame; the view of it."""
    room = buffer.room()
    room[: len(data)] = data
    (view,) = buffer.take_in(len(data), lambda view, start, stop: ([view[start:stop]], stop))
    return view


def test_used_space_of_the_buffer_is_overwritten() -> None:
    """A1: two buffers are enough for a caller that is through with one when it asks for the next."""
    buffer = ReceiveBuffer()
    seen = set()
    for _ in range(20):
        seen.add(id(receive(buffer, b"x" * 1000).obj))
        buffer.swap()

    assert len(seen) <= 2


def test_a_view_that_is_kept_stays_as_it_was() -> None:
    """A1: whoever forgets to say what he keeps costs memory, never a message."""
    buffer = ReceiveBuffer()
    kept = []
    for number in range(10):
        kept.append(receive(buffer, b"%d" % number * 1000))
        buffer.swap()

    assert [bytes(view[:1]) for view in kept] == [b"%d" % number for number in range(10)]
    assert len({id(view.obj) for view in kept}) == 10


def test_a_body_still_waited_for_moves_and_frees_its_buffer() -> None:
    """A1"""
    buffer = ReceiveBuffer()
    waiting: bytes | memoryview = receive(buffer, b"waiting")
    assert isinstance(waiting, memoryview)
    first = waiting.obj
    buffer.swap()

    waiting = buffer.retain(waiting)
    assert isinstance(waiting, memoryview)
    received = receive(buffer, b"received")

    assert (bytes(waiting), bytes(received)) == (b"waiting", b"received")
    assert waiting.obj is received.obj
    del received
    buffer.swap()
    assert receive(buffer, b"x").obj is first


def test_data_of_another_connection_is_not_moved() -> None:
    """A1"""
    buffer, other = ReceiveBuffer(), ReceiveBuffer()
    foreign = receive(other, b"foreign")
    receive(buffer, b"own")
    buffer.swap()

    assert buffer.retain(foreign) is foreign
    assert buffer.retain(b"copied") == b"copied"


def test_more_than_there_is_room_for_is_copied_out() -> None:
    """A1"""
    buffer = ReceiveBuffer()
    large = receive(buffer, b"l" * (MIB - 1000))
    buffer.swap()

    kept = buffer.retain(large)

    assert isinstance(kept, bytes)
    assert len(kept) == MIB - 1000


def test_a_long_frame_gets_room_for_all_of_it() -> None:
    """A1: up to the longest frame there is."""
    buffer = ReceiveBuffer()
    receive(buffer, b"x" * 900_000)
    frame = (20 * MIB).to_bytes(4, "big") + bytes(range(256)) * (20 * MIB // 256)
    left = memoryview(frame)
    while left:
        room = buffer.room()
        count = min(len(room), len(left), 700_000)
        room[:count], left = left[:count], left[count:]
        buffer.take_in(count, lambda _, start, __: ([], start))

    assert buffer.take_in(0, lambda view, start, stop: ([view[start:stop] == frame], stop)) == [True]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("receive"), st.binary(min_size=1, max_size=300)),
            st.tuples(st.just("swap"), st.sets(st.integers(0, 5))),
        ),
        max_size=40,
    )
)
def test_no_byte_of_a_view_ever_changes(steps: list[tuple[str, object]]) -> None:
    """A1: any order of receiving, keeping and forgetting."""
    buffer = ReceiveBuffer()
    views: list[tuple[bytes | memoryview, bytes]] = []
    for _, what in steps:
        if isinstance(what, bytes):
            views.append((receive(buffer, what), what))
        else:
            buffer.swap()
            kept = [view for number, view in enumerate(views) if number in what]  # type: ignore[operator]
            views = [(buffer.retain(view), data) for view, data in kept]
        assert all(bytes(view) == data for view, data in views)
