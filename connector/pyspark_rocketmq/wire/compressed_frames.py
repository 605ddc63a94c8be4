"""Where the frames of a compressed body begin and end: LZ4 and Zstandard bodies may have several.

Java's streams read one frame behind the other and skip the skippable ones, so a body is what its frames hold together.
Only lengths are read here; the decompressors check all else.

Source: lz4-java 1.8.0 ``LZ4FrameInputStream``, zstd-jni 1.5.2 ``ZstdInputStreamNoFinalizer``; LZ4 frame format 1.6,
RFC 8878.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final

from pyspark_rocketmq.errors import RemoteProtocolError

LZ4_MAGIC: Final = 0x184D2204
ZSTD_MAGIC: Final = 0xFD2FB528
_SKIPPABLE: Final = 0x184D2A5
"""All but the last four bits of a skippable frame's magic number."""

_U32: Final = struct.Struct("<I")
_WORD: Final = 4
_LZ4_PLAIN_BLOCK: Final = 1 << 31
_ZSTD_RLE: Final = 2
"""Bits of a block's header that say so: its size is that of what it becomes. The decompressor knows the other kinds."""
_ZSTD_SHORTEST_FRAME: Final = 5
"""Java waits for more behind the last frame until it has as many bytes, and takes fewer for the end."""

MAX_FRAMES: Final = 65_536
"""Of one body, skippable ones included; Java has no bound, but each frame costs some microseconds and may hold nothing."""
Frames = Iterator[tuple[int, int]]
"""Begin and end (exclusive) of each frame that holds data."""


def lz4_frames(body: bytes) -> Frames:
    """The LZ4 frames of ``body``.

    Raises:
        RemoteProtocolError: When a frame is reached that is cut or one too many, or bytes that are none.
    """
    return _frames(body, "LZ4", LZ4_MAGIC, _lz4_end, may_have_tail=False)


def _frames(
    body: bytes, name: str, wanted: int, end_of: Callable[[bytes, int], int], *, may_have_tail: bool
) -> Frames:
    """The walk; ``may_have_tail``: what is too short for a frame may follow the last one."""
    at = frames = 0
    while at < len(body):
        frames += 1
        _check_count(frames)
        left = len(body) - at
        may_end = may_have_tail and at > 0
        if may_end and left < _ZSTD_SHORTEST_FRAME:
            return
        magic = _u32(body, at, name)
        if magic >> 4 == _SKIPPABLE:
            size = 2 * _WORD + (_u32(body, at + _WORD, name) if left >= 2 * _WORD else 0)
            if may_end and left < size:
                return
            at += size
            _check_within(body, at, name)
        elif magic == wanted:
            end = end_of(body, at)
            yield at, end
            at = end
        else:
            raise RemoteProtocolError(_follows(name, left, at))


def _lz4_end(body: bytes, begin: int) -> int:
    flags = _u8(body, begin + _WORD, "LZ4")
    has_dictionary, has_checksum, has_size = flags & 1, flags & 4, flags & 8
    block_checksum = _WORD if flags & 16 else 0
    # Magic number, flags, block size, size of the content, dictionary, check of the header.
    at = begin + _WORD + 2 + (8 if has_size else 0) + (_WORD if has_dictionary else 0) + 1
    while length := _u32(body, at, "LZ4") & ~_LZ4_PLAIN_BLOCK:
        at += _WORD + length + block_checksum
    at += _WORD + (_WORD if has_checksum else 0)
    _check_within(body, at, "LZ4")
    return at


def zstd_frames(body: bytes) -> Frames:
    """The Zstandard frames of ``body``; like Java, without a beginning of something behind the last one.

    Raises:
        RemoteProtocolError: When a frame is reached that is cut or one too many, or bytes that are none.
    """
    return _frames(body, "Zstandard", ZSTD_MAGIC, _zstd_end, may_have_tail=True)


def _zstd_end(body: bytes, begin: int) -> int:
    descriptor = _u8(body, begin + _WORD, "Zstandard")
    is_single_segment, has_checksum = descriptor & 0x20, descriptor & 0x04
    dictionary_bytes = (0, 1, 2, 4)[descriptor & 3]
    size_bytes = (1 if is_single_segment else 0, 2, 4, 8)[descriptor >> 6]
    at = begin + _WORD + 1 + (0 if is_single_segment else 1) + dictionary_bytes + size_bytes
    header, end = 0, len(body)
    while not header & 1:
        header = int.from_bytes(body[at : at + 3], "little")
        at += 4 if header & 6 == _ZSTD_RLE else 3 + (header >> 3)
        if at > end:
            raise _cut("Zstandard")
    at += _WORD if has_checksum else 0
    _check_within(body, at, "Zstandard")
    return at


def _check_count(frames: int) -> None:
    if frames > MAX_FRAMES:
        raise RemoteProtocolError(f"A message body has more than {MAX_FRAMES} compressed frames.")


def _u8(body: bytes, at: int, name: str) -> int:
    _check_within(body, at + 1, name)
    return body[at]


def _u32(body: bytes, at: int, name: str) -> int:
    _check_within(body, at + _WORD, name)
    number: int = _U32.unpack_from(body, at)[0]
    return number


def _check_within(body: bytes, end: int, name: str) -> None:
    if end > len(body):
        raise _cut(name)


def _cut(name: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"A {name} message body ends inside its frame.")


def _follows(name: str, count: int, at: int) -> str:
    if not at:
        return f"A message body is marked as {name} but is not: it begins with no frame's magic number."
    return f"{count} bytes that are no frame follow the {name} frames of a message body."
