from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_sim.message_store import CommitLog


def test_without_a_bound_everything_stays_readable() -> None:
    log = CommitLog()
    offsets = [log.append(bytes([index]) * 100) for index in range(200)]
    assert log.min_offset == 0
    assert all(log.read(offset, 100) == bytes([index]) * 100 for index, offset in enumerate(offsets))


def test_the_oldest_bytes_go_when_the_bound_is_exceeded_and_offsets_keep_their_meaning() -> None:
    log = CommitLog(retention_bytes=10_000)
    offsets = [log.append(bytes([index]) * 100) for index in range(200)]
    assert log.end_offset == 20_000
    assert 8_000 <= log.end_offset - log.min_offset <= 10_000
    held = [(index, offset) for index, offset in enumerate(offsets) if offset >= log.min_offset]
    assert all(log.read(offset, 100) == bytes([index]) * 100 for index, offset in held)


def test_one_append_larger_than_the_bound_is_held_until_the_next_one() -> None:
    log = CommitLog(retention_bytes=1_000)
    log.append(b"x" * 5_000)
    assert log.read(0, 5_000) == b"x" * 5_000
    log.append(b"y")
    assert log.min_offset == 5_000


@given(
    pieces=st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=40),
    bound=st.sampled_from([None, 2_000]),
)
def test_a_read_may_cross_segments(pieces: list[bytes], bound: int | None) -> None:
    log = CommitLog(bound)
    for piece in pieces:
        log.append(piece)
    whole = b"".join(pieces)
    assert log.end_offset == len(whole)
    assert log.read(log.min_offset, log.end_offset - log.min_offset) == whole[log.min_offset :]


@pytest.mark.parametrize("size", [0, 1, 99])
def test_a_read_gives_exactly_the_bytes_asked_for(size: int) -> None:
    log = CommitLog(retention_bytes=4_000)
    log.append(bytes(range(100)))
    assert log.read(1, size) == bytes(range(100))[1 : 1 + size]
