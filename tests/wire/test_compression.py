from __future__ import annotations

import zlib

import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.wire import compression
from pyspark_rocketmq.wire.compression import (
    MAX_BODY_BYTES,
    CompressionType,
    ExpansionBudget,
    compress,
    decompress,
)

BODY = b"compress me " * 40
TYPES = list(CompressionType)


@settings(deadline=None)
@given(st.binary(max_size=2000), st.sampled_from(TYPES))
def test_bodies_survive_compression(body, compression_type):
    compressed, flags = compress(body, compression_type)

    assert decompress(compressed, flags) == body


@pytest.mark.parametrize(
    ("compression_type", "flags"), [(TYPES[0], 0x101), (TYPES[1], 0x201), (TYPES[2], 0x301)]
)
def test_the_type_is_told_in_the_sys_flag(compression_type, flags):
    """G2: compression."""
    assert compress(BODY, compression_type)[1] == flags


@pytest.mark.parametrize("sys_flag", [0x1, 0x301, 0x3F])
def test_zlib_is_the_type_with_and_without_type_bits(sys_flag):
    assert decompress(zlib.compress(BODY), sys_flag) == BODY


@pytest.mark.parametrize("sys_flag", [0, 0x100, 0x200, 0x300, 0x700, 0x3E])
def test_a_body_without_the_compressed_bit_is_left_alone(sys_flag):
    assert decompress(BODY, sys_flag) is BODY


@pytest.mark.parametrize("sys_flag", [0x1, 0x101, 0x201, 0x301, 0x701])
def test_an_empty_body_is_left_alone(sys_flag):
    assert decompress(b"", sys_flag) == b""


@pytest.mark.parametrize("sys_flag", [0x401, 0x501, 0x601, 0x701])
def test_an_unknown_type_raises(sys_flag):
    with pytest.raises(RemoteProtocolError, match="unknown compression type"):
        decompress(BODY, sys_flag)


@pytest.mark.parametrize("compression_type", TYPES)
def test_every_truncation_raises(compression_type):
    compressed, flags = compress(BODY, compression_type)

    for length in range(1, len(compressed)):
        with pytest.raises(RemoteProtocolError):
            decompress(compressed[:length], flags)


@pytest.mark.parametrize("compression_type", TYPES)
def test_a_body_that_is_not_compressed_raises(compression_type):
    with pytest.raises(RemoteProtocolError, match="but is not"):
        decompress(b"not compressed at all", compress(b"", compression_type)[1])


@pytest.mark.parametrize("compression_type", [CompressionType.LZ4, CompressionType.ZSTD])
def test_bytes_after_the_frame_raise(compression_type):
    compressed, flags = compress(BODY, compression_type)

    with pytest.raises(RemoteProtocolError, match=r"follow the|unused data"):
        decompress(compressed + b"tail", flags)


def test_bytes_after_a_zlib_stream_are_ignored_as_java_does():
    assert decompress(zlib.compress(BODY) + b"tail", 0x1) == BODY


def test_frames_that_do_not_tell_their_size_are_read():
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    unsized = compressor.compress(BODY) + compressor.flush()

    assert decompress(unsized, 0x201) == BODY
    assert decompress(lz4.frame.compress(BODY, store_size=False, block_linked=False), 0x101) == BODY


@pytest.mark.parametrize("compression_type", TYPES)
def test_a_body_expands_to_what_a_frame_could_carry_and_no_further(compression_type):
    largest, flags = compress(bytes(MAX_BODY_BYTES), compression_type)
    assert len(decompress(largest, flags)) == MAX_BODY_BYTES

    bomb, flags = compress(bytes(MAX_BODY_BYTES + 1), compression_type)
    with pytest.raises(RemoteProtocolError, match=f"{MAX_BODY_BYTES} bytes"):
        decompress(bomb, flags)


def test_a_bomb_that_does_not_tell_its_size_is_refused_as_well():
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    bomb = compressor.compress(bytes(MAX_BODY_BYTES + 1)) + compressor.flush()

    with pytest.raises(RemoteProtocolError, match=f"at most {MAX_BODY_BYTES} bytes"):
        decompress(bomb, 0x201)


def test_the_bodies_of_an_answer_expand_to_a_bounded_sum(monkeypatch):
    monkeypatch.setattr(compression, "MAX_EXPANDED_BYTES", 1000)
    compressed, flags = compress(bytes(400), CompressionType.ZLIB)
    budget = ExpansionBudget(10)

    assert budget.decompress(b"plain ones do not count" * 100, 0)
    assert [len(budget.decompress(compressed, flags)) for _ in range(2)] == [400, 400]
    with pytest.raises(RemoteProtocolError, match=r"more than 1000 bytes.*lower pullBatchSize"):
        budget.decompress(compressed, flags)


def test_a_long_answer_may_expand_by_its_length(monkeypatch):
    monkeypatch.setattr(compression, "MAX_EXPANDED_BYTES", 0)
    compressed, flags = compress(bytes(640), CompressionType.ZLIB)

    assert len(ExpansionBudget(10).decompress(compressed, flags)) == 640
