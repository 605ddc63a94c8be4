"""Cutting the stream: any chunks, any order of sizes, nothing lost, nothing allocated too early."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.wire.command import RemotingCommand, SerializeType, decode_frame, encode_frame
from pyspark_rocketmq.wire.framing import FrameDecoder
from tests.helpers.golden import golden
from tests.wire.test_command import commands

JAVA_FRAMES = [bytes.fromhex(vector["frame_hex"]) for vector in golden("remoting.json")["frames"]]


def in_chunks(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cuts), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


def feed_all(decoder: FrameDecoder, chunks: list[bytes]) -> list[RemotingCommand]:
    return [command for chunk in chunks for command in decoder.feed(chunk)]


@pytest.mark.parametrize("frame", JAVA_FRAMES, ids=lambda frame: frame[:8].hex())
def test_no_prefix_of_a_frame_yields_a_command_and_each_is_seen_as_pending(frame: bytes) -> None:
    """A1: fed byte by byte."""
    decoder = FrameDecoder()

    for fed, byte in enumerate(frame[:-1], start=1):
        assert decoder.feed(bytes([byte])) == []
        assert decoder.pending == fed

    assert len(decoder.feed(frame[-1:])) == 1
    assert decoder.pending == 0


def test_all_java_frames_in_one_chunk_come_out_in_order() -> None:
    decoder = FrameDecoder()

    decoded = decoder.feed(b"".join(JAVA_FRAMES))

    assert decoded == [decode_frame(frame[4:]) for frame in JAVA_FRAMES]
    assert decoder.pending == 0


@given(st.lists(commands(), max_size=5), st.data())
def test_the_chunks_do_not_matter(sent: list[RemotingCommand], data: st.DataObject) -> None:
    """A1: both header forms, however the stream is cut."""
    stream = b"".join(map(encode_frame, sent))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    decoder = FrameDecoder()

    received = feed_all(decoder, in_chunks(stream, cuts))

    assert received == sent
    assert decoder.pending == 0


@given(st.lists(commands(), min_size=1, max_size=3), st.data())
def test_a_stream_that_ends_inside_a_frame_leaves_exactly_that_part_pending(
    sent: list[RemotingCommand], data: st.DataObject
) -> None:
    frames = [encode_frame(command) for command in sent]
    last = data.draw(st.integers(1, len(frames[-1]) - 1))
    stream = b"".join(frames[:-1]) + frames[-1][:last]
    cut = data.draw(st.integers(0, len(stream)))
    decoder = FrameDecoder()

    received = [*decoder.feed(stream[:cut]), *decoder.feed(stream[cut:])]

    assert received == sent[:-1]
    assert decoder.pending == last


@settings(max_examples=300)
@given(st.lists(st.binary(max_size=60), max_size=6), st.booleans())
def test_random_bytes_raise_nothing_but_remote_protocol_errors(
    chunks: list[bytes], with_plausible_length: bool
) -> None:
    decoder = FrameDecoder(max_frame_length=100)
    if with_plausible_length:
        chunks = [b"\x00\x00\x00\x40", *chunks]

    try:
        feed_all(decoder, chunks)
    except RemoteProtocolError:
        return
    assert decoder.pending < 100


@pytest.mark.parametrize("frame_tail", [b"", b"\0\0\0\0", bytes(200)], ids=["word", "prefix", "more"])
@pytest.mark.parametrize("one_by_one", [True, False])
def test_a_frame_that_is_too_long_is_refused_before_memory_is_taken(
    frame_tail: bytes, one_by_one: bool
) -> None:
    length = (1 << 31) - 1
    stream = length.to_bytes(4, "big") + frame_tail
    chunks = [bytes([byte]) for byte in stream] if one_by_one else [stream]
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match=f"{length + 4} bytes was announced; at most 16777216"):
            feed_all(decoder, chunks)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1_000_000


def test_the_limit_counts_the_length_word() -> None:
    frame = encode_frame(RemotingCommand(code=0, body=b"x"))

    assert len(FrameDecoder(max_frame_length=len(frame)).feed(frame)) == 1
    with pytest.raises(RemoteProtocolError):
        FrameDecoder(max_frame_length=len(frame) - 1).feed(frame)


@pytest.mark.parametrize("one_by_one", [True, False])
@pytest.mark.parametrize(
    "stream",
    [
        b"\0\0\0\0" + bytes(8),
        b"\0\0\0\3" + bytes(8),
        b"\0\0\0\4" + b"\0\0\0\1" + bytes(8),
        b"\0\0\0\x0a" + b"\0\xff\xff\xff" + bytes(8),
        b"\0\0\0\4" + b"\0\0\0\0",
        b"\0\0\0\6" + b"\7\0\0\0" + b"{}",
        b"\xff\xff\xff\xff" + bytes(8),
        b"HTTP/1.1 400 Bad Request\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
    ],
    ids=lambda stream: stream[:8].hex(),
)
def test_what_is_no_frame_raises_whether_it_comes_whole_or_in_pieces(stream: bytes, one_by_one: bool) -> None:
    decoder = FrameDecoder()
    chunks = [bytes([byte]) for byte in stream] if one_by_one else [stream]

    with pytest.raises(RemoteProtocolError):
        feed_all(decoder, chunks)


def test_the_fed_buffer_may_be_reused_at_once() -> None:
    """The transport receives into one buffer over and over."""
    command = RemotingCommand(code=0, ext_fields={"a": "b"}, body=bytes(range(256)) * 4)
    frame = encode_frame(command)
    buffer = bytearray(100)
    decoder = FrameDecoder()
    received = []

    for start in range(0, len(frame), len(buffer)):
        piece = frame[start : start + len(buffer)]
        buffer[: len(piece)] = piece
        received += decoder.feed(memoryview(buffer)[: len(piece)])
        buffer[:] = b"\xaa" * len(buffer)

    assert received == [command]


@pytest.mark.parametrize("chunk_size", [1024, 65_536, 100_000_000])
def test_a_body_is_held_once_and_handed_out_as_bytes(chunk_size: int) -> None:
    """At most one copy of a body: memory never holds it twice beside the chunk it came in."""
    size = 8 * 1024 * 1024
    stream = memoryview(encode_frame(RemotingCommand(code=0, body=bytes(size))))
    decoder = FrameDecoder()
    received = []
    tracemalloc.start()
    try:
        for start in range(0, len(stream), chunk_size):
            received += decoder.feed(stream[start : start + chunk_size])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(received) == 1
    assert type(received[0].body) is bytes
    assert peak < 1.5 * size


def test_frames_follow_each_other_through_all_states() -> None:
    """An empty body, an empty chunk and both header forms in a row, one byte at a time."""
    sent = [
        RemotingCommand(code=0, opaque=at, body=body, serialize_type=form)
        for at, (body, form) in enumerate((body, form) for body in (b"", b"x", b"") for form in SerializeType)
    ]
    decoder = FrameDecoder()
    assert decoder.feed(b"") == []

    received = [
        command for byte in b"".join(map(encode_frame, sent)) for command in decoder.feed(bytes([byte]))
    ]

    assert received == sent
