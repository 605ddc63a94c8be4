from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable
from typing import Any

import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.wire import compression
from pyspark_rocketmq.wire.compression import (
    MAX_BATCH_BYTES,
    MAX_BODY_BYTES,
    CompressionType,
    ExpansionBudget,
    compress,
    decompress,
)
from pyspark_rocketmq.wire.messages import INNER_BATCH_FLAGS

BODY = b"compress me " * 40
TYPES = list(CompressionType)


@settings(deadline=None)
@given(st.binary(max_size=2000), st.sampled_from(TYPES))
def test_bodies_survive_compression(body: bytes, compression_type: CompressionType) -> None:
    compressed, flags = compress(body, compression_type)

    assert decompress(compressed, flags) == body


@pytest.mark.parametrize(
    ("compression_type", "flags"), [(TYPES[0], 0x101), (TYPES[1], 0x201), (TYPES[2], 0x301)]
)
def test_the_type_is_in_the_sys_flag(compression_type: CompressionType, flags: int) -> None:
    """G2: compression."""
    assert compress(BODY, compression_type)[1] == flags


@pytest.mark.parametrize("count", [1, 1 << 16, (1 << 16) + 1, 200_000])
def test_lz4_frames_are_of_the_kind_that_java_reads(count: int) -> None:
    """G2: lz4-java refuses blocks that refer to the one before, and dictionaries (``LZ4FrameInputStream``)."""
    frame, flags = compress((BODY * 417)[:count], CompressionType.LZ4)

    # Bits of a frame's flags: 0xC0 the version, 0x20 independent blocks, 0x02 reserved, 0x01 a dictionary.
    assert frame[4] & 0xE3 == 0x60
    assert len(decompress(frame, flags)) == count


@pytest.mark.parametrize("sys_flag", [0x1, 0x301, 0x3F])
def test_zlib_is_the_type_with_and_without_type_bits(sys_flag: int) -> None:
    assert decompress(zlib.compress(BODY), sys_flag) == BODY


@pytest.mark.parametrize("sys_flag", [0, 0x100, 0x200, 0x300, 0x700, 0x3E])
def test_a_body_without_the_compressed_bit_stays_as_it_is(sys_flag: int) -> None:
    assert decompress(BODY, sys_flag) is BODY


@pytest.mark.parametrize("sys_flag", [0x1, 0x101, 0x201, 0x301, 0x701])
def test_an_empty_body_stays_as_it_is(sys_flag: int) -> None:
    assert decompress(b"", sys_flag) == b""


@pytest.mark.parametrize("sys_flag", [0x401, 0x501, 0x601, 0x701])
def test_an_unknown_type_raises(sys_flag: int) -> None:
    with pytest.raises(RemoteProtocolError, match="unknown compression type"):
        decompress(BODY, sys_flag)


@pytest.mark.parametrize("compression_type", TYPES)
def test_every_truncation_raises(compression_type: CompressionType) -> None:
    compressed, flags = compress(BODY, compression_type)

    for length in range(1, len(compressed)):
        with pytest.raises(RemoteProtocolError):
            decompress(compressed[:length], flags)


@pytest.mark.parametrize("compression_type", TYPES)
def test_a_body_that_is_not_compressed_raises(compression_type: CompressionType) -> None:
    with pytest.raises(RemoteProtocolError, match="but is not"):
        decompress(b"not compressed at all", compress(b"", compression_type)[1])


@pytest.mark.parametrize("compression_type", [CompressionType.LZ4, CompressionType.ZSTD])
def test_bytes_after_the_frame_raise(compression_type: CompressionType) -> None:
    compressed, flags = compress(BODY, compression_type)

    with pytest.raises(RemoteProtocolError, match="5 bytes that are not a frame follow the"):
        decompress(compressed + b"a tail"[1:], flags)


def lz4_frame(body: bytes, **how: bool) -> bytes:
    return bytes(lz4.frame.compress(body, block_linked=False, **how))


def zstd_frame(body: bytes, *, tells_size: bool = True) -> bytes:
    compressor = zstandard.ZstdCompressor(write_content_size=tells_size).compressobj(
        size=len(body) if tells_size else -1
    )
    return compressor.compress(body) + compressor.flush()


def skippable(count: int) -> bytes:
    return struct.pack("<II", 0x184D2A53, count) + b"s" * count


def zstd_of_window(log: int) -> bytes:
    how = zstandard.ZstdCompressionParameters(window_log=log, enable_ldm=True)
    compressor = zstandard.ZstdCompressor(compression_params=how).compressobj()
    return compressor.compress(b"ab") + compressor.flush()


def streamed(body: bytes) -> bytes:
    return zstd_frame(body, tells_size=False)


JAVA = {
    "LZ4, two frames": (1, lz4_frame(b"a") + lz4_frame(b"b"), b"ab"),
    "LZ4, a skippable frame first": (1, skippable(5) + lz4_frame(b"a"), b"a"),
    "LZ4, skippable frames": (1, lz4_frame(b"a") + skippable(0) + lz4_frame(b"b") + skippable(3), b"ab"),
    "LZ4, skippable only": (1, skippable(3), b""),
    "LZ4, an empty frame first": (1, lz4_frame(b"") + lz4_frame(b"b"), b"b"),
    "LZ4, checksums": (
        1,
        lz4_frame(b"a", content_checksum=True, block_checksum=True) + lz4_frame(b"b"),
        b"ab",
    ),
    "LZ4, a byte more": (1, lz4_frame(b"a") + b"x", None),
    "LZ4, three bytes more": (1, lz4_frame(b"a") + b"xyz", None),
    "LZ4, four bytes more": (1, lz4_frame(b"a") + b"tail", None),
    "LZ4, the second cut": (1, lz4_frame(b"a") + lz4_frame(b"bbbbbb")[:-3], None),
    "LZ4, a skippable frame cut": (1, lz4_frame(b"a") + skippable(9)[:-3], None),
    "Zstandard, two frames": (2, zstd_frame(b"a") + zstd_frame(b"b"), b"ab"),
    "Zstandard, two without their size": (2, streamed(b"a") + streamed(b"b"), b"ab"),
    "Zstandard, one of each": (2, streamed(b"a") + zstd_frame(b"b") + streamed(b"c"), b"abc"),
    "Zstandard, a skippable frame first": (2, skippable(5) + zstd_frame(b"a"), b"a"),
    "Zstandard, skippable frames": (
        2,
        streamed(b"a") + skippable(0) + zstd_frame(b"b") + skippable(3),
        b"ab",
    ),
    "Zstandard, skippable only": (2, skippable(3), b""),
    "Zstandard, an empty frame": (2, zstd_frame(b""), b""),
    "Zstandard, an empty frame first": (2, zstd_frame(b"") + zstd_frame(b"b"), b"b"),
    "Zstandard, a byte more": (2, zstd_frame(b"a") + b"x", b"a"),
    "Zstandard, four bytes more": (2, zstd_frame(b"a") + b"tail", b"a"),
    "Zstandard, a skippable frame cut": (2, zstd_frame(b"a") + skippable(9)[:-3], b"a"),
    "Zstandard, the widest window": (2, zstd_of_window(27), b"ab"),
    "Zstandard, too wide a window": (2, zstd_of_window(28), None),
    "zlib, four bytes more": (3, zlib.compress(b"a") + b"tail", b"a"),
    "zlib, two streams": (3, zlib.compress(b"a") + zlib.compress(b"b"), b"a"),
    "zlib without its header": (3, zlib.compress(b"a" * 30)[2:-4], None),
    "gzip": (3, gzip.compress(b"a"), None),
}
"""Type, body, and what ``Lz4Compressor``, ``ZstdCompressor`` and ``ZlibCompressor`` of RocketMQ
5.3.3 make of it: None for an exception.
"""


@pytest.mark.parametrize(("compression_type", "body", "shown"), JAVA.values(), ids=JAVA)
def test_a_body_is_shown_as_java_shows_it(compression_type: int, body: bytes, shown: bytes | None) -> None:
    """A4: several frames behind one another, and what is around them."""
    flags = 1 | compression_type << 8

    if shown is None:
        with pytest.raises(RemoteProtocolError):
            decompress(body, flags)
    else:
        assert decompress(body, flags) == shown


@settings(deadline=None)
@given(
    st.lists(st.binary(max_size=300), min_size=1, max_size=5),
    st.sampled_from([(0x101, lz4_frame), (0x201, zstd_frame), (0x201, streamed)]),
    st.binary(max_size=20),
)
def test_frames_are_read_whole_or_refused(
    bodies: list[bytes], kind: tuple[int, Callable[..., Any]], tail: bytes
) -> None:
    """A4: nothing is cut off in silence,
    but for what is too short to be a frame behind those of Zstandard.
    """
    flags, compressed = kind
    frames = b"".join(map(compressed, bodies))

    assert decompress(frames, flags) == b"".join(bodies)
    for length in range(len(frames) - len(compressed(bodies[-1])) + 5, len(frames)):
        with pytest.raises(RemoteProtocolError):
            decompress(frames[:length], flags)
    if len(tail) > 4 and tail[1:3] != skippable(0)[1:3]:
        with pytest.raises(RemoteProtocolError):
            decompress(frames + tail, flags)


def test_a_frame_that_claims_to_be_empty_is_looked_into() -> None:
    """A4: the library does not; Java refuses it."""
    whole = zstd_frame(b"x" * 10)
    liar = whole[:4] + bytes([0x20, 0]) + whole[6:]

    with pytest.raises(RemoteProtocolError, match="Zstandard"):
        decompress(liar, 0x201)


@pytest.mark.parametrize(
    ("flags", "empty"), [(0x101, lz4_frame(b"")), (0x201, zstd_frame(b"")), (0x201, skippable(0))]
)
def test_frames_without_content_are_bounded(flags: int, empty: bytes) -> None:
    """H9: each costs time."""
    assert decompress(empty * 100, flags) == b""
    with pytest.raises(RemoteProtocolError, match="more than 65536 compressed frames"):
        decompress(empty * 65_537, flags)


def test_frames_without_their_size_are_read() -> None:
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    unsized = compressor.compress(BODY) + compressor.flush()

    assert decompress(unsized, 0x201) == BODY
    assert decompress(lz4.frame.compress(BODY, store_size=False, block_linked=False), 0x101) == BODY


@pytest.mark.parametrize("compression_type", TYPES)
def test_a_body_may_expand_beyond_a_frame_but_not_without_bound(compression_type: CompressionType) -> None:
    """A4, H9: Java's producers may be set to send more than 16 MiB."""
    largest, flags = compress(bytes(MAX_BODY_BYTES), compression_type)
    assert len(decompress(largest, flags)) == MAX_BODY_BYTES

    bomb, flags = compress(bytes(MAX_BODY_BYTES + 1), compression_type)
    with pytest.raises(RemoteProtocolError, match=f"{MAX_BODY_BYTES} bytes"):
        decompress(bomb, flags)


def test_a_bomb_without_its_size_is_refused_as_well() -> None:
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    bomb = compressor.compress(bytes(MAX_BODY_BYTES + 1)) + compressor.flush()

    with pytest.raises(RemoteProtocolError, match=f"more than {MAX_BODY_BYTES} bytes"):
        decompress(bomb, 0x201)


@pytest.mark.parametrize("compression_type", TYPES)
def test_an_inner_batch_expands_to_a_frame_at_most(compression_type: CompressionType) -> None:
    """H9: its members become rows of ten times as many bytes."""
    largest, flags = compress(bytes(MAX_BATCH_BYTES), compression_type)
    assert len(decompress(largest, flags | INNER_BATCH_FLAGS)) == MAX_BATCH_BYTES

    bomb, flags = compress(bytes(MAX_BATCH_BYTES + 1), compression_type)
    with pytest.raises(RemoteProtocolError, match=f"{MAX_BATCH_BYTES} bytes"):
        decompress(bomb, flags | INNER_BATCH_FLAGS)


@pytest.mark.parametrize("flags", [0x101, 0x201])
def test_frames_together_expand_no_further_than_one(flags: int) -> None:
    """H9."""
    part = compress(bytes(MAX_BODY_BYTES // 4), CompressionType(flags >> 8))[0]

    with pytest.raises(RemoteProtocolError, match=f"more than {MAX_BODY_BYTES} bytes"):
        decompress(part * 5, flags)


def test_the_bodies_of_an_answer_expand_to_a_bounded_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "MAX_EXPANDED_BYTES", 1000)
    compressed, flags = compress(bytes(400), CompressionType.ZLIB)
    budget = ExpansionBudget(10)

    assert budget.decompress(b"plain ones do not count" * 100, 0)
    assert [len(budget.decompress(compressed, flags)) for _ in range(2)] == [400, 400]
    with pytest.raises(RemoteProtocolError, match=r"more than 1000 bytes.*lower pullBatchSize"):
        budget.decompress(compressed, flags)


def test_a_long_answer_may_expand_by_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "MAX_EXPANDED_BYTES", 0)
    compressed, flags = compress(bytes(640), CompressionType.ZLIB)

    assert len(ExpansionBudget(10).decompress(compressed, flags)) == 640
