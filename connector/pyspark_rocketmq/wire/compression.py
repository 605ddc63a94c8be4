"""Body compression: zlib, LZ4 frames and Zstandard, named by bits 8 to 10 of the message's sysFlag.

What Java's consumer shows is shown: several frames behind one another, skippable ones, and sizes far beyond a
frame of the wire. A few hundred bytes can expand to gigabytes, though, and any producer of a topic may send
them, so what comes out is bounded twice: of one body, and for the messages of an answer together by
:class:`ExpansionBudget`.

Where the frames of a compressed body begin and end: LZ4 and Zstandard bodies may have several.

Java's streams read one frame behind the other and skip the skippable ones, so a body is what its frames hold
together. Only lengths are read here; the decompressors check all else.

Source: lz4-java 1.8.0 ``LZ4FrameInputStream``, zstd-jni 1.5.2 ``ZstdInputStreamNoFinalizer``; LZ4 frame
format 1.6, RFC 8878.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Final

import lz4.frame
import zstandard

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.wire.codes import MessageSysFlag
from pyspark_rocketmq.wire.command import MAX_FRAME_LENGTH

LZ4_MAGIC: Final = 0x184D2204
ZSTD_MAGIC: Final = 0xFD2FB528
_SKIPPABLE: Final = 0x184D2A5
"""All but the last four bits of a skippable frame's magic number."""

_U32: Final = struct.Struct("<I")
_WORD: Final = 4
_LZ4_PLAIN_BLOCK: Final = 1 << 31
_ZSTD_RLE: Final = 2
"""Bits of a block's header that say so: its size is that of what it becomes. The decompressor knows the other
kinds."""
_ZSTD_SHORTEST_FRAME: Final = 5
"""Java waits for more behind the last frame until it has as many bytes, and takes fewer for the end."""

MAX_FRAMES: Final = 65_536
"""Of one body, skippable ones included; Java has no bound, but each frame costs some microseconds and may
hold nothing."""
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


MAX_EXPANDED_BYTES: Final = 128 * 1024 * 1024
"""Of all bodies of a short answer: a broker gives at most 32 messages of at most 4 MiB by its default limits.
"""
MAX_BODY_BYTES: Final = MAX_EXPANDED_BYTES
"""Of one body, decompressed; Java has no bound, but its producers send no more than 4 MiB if not told to."""
_ZLIB_LEVEL: Final = 5
"""``DefaultMQProducer.compressLevel``."""
MAX_EXPANSION: Final = 64
"""And of a long one, for each of its bytes; texts reach 30."""
MAX_BATCH_BYTES: Final = MAX_FRAME_LENGTH
"""Of one inner batch, decompressed."""
_BATCH_WEIGHT: Final = MAX_EXPANDED_BYTES // MAX_BATCH_BYTES
"""How often an inner batch counts: a member of 22 bytes becomes a row of ten times as many. A batch alone is
never too large."""
_INNER_BATCH: Final = int(MessageSysFlag.INNER_BATCH)
COMPRESSION_TYPE_SHIFT: Final = 8
COMPRESSION_TYPE_MASK: Final = 0x7

# What one byte can become at most; inputs too short for a bomb take the quickest way.
_ZLIB_EXPANSION: Final = 1040
_LZ4_EXPANSION: Final = 256
_USUAL_BYTES: Final = 1 << 16
_USUAL_EXPANSION: Final = 32
_LARGEST_WINDOW: Final = 1 << 27
"""Of a Zstandard frame, in bytes: what Java's decoder takes (``ZSTD_WINDOWLOG_LIMIT_DEFAULT``)."""


class CompressionType(IntEnum):
    """The compression type bits (``CompressionType``); 0 means zlib too, as old producers wrote it."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


def decompress(body: bytes, sys_flag: int) -> bytes:
    """Return the body as it was sent; ``body`` itself when the compressed bit is clear or it is empty.

    Raises:
        RemoteProtocolError: If the type is unknown, or the data is damaged, cut, (LZ4, Zstandard) followed by
            what is no frame, or expands to more than ``MAX_BODY_BYTES``, an inner batch to more than
            ``MAX_BATCH_BYTES``.

    Source: RocketMQ 5.3.3 ``MessageDecoder.decode``, ``ZlibCompressor``, ``Lz4Compressor``,
    ``ZstdCompressor``.
    """
    if not sys_flag & MessageSysFlag.COMPRESSED or not body:
        return body
    number = sys_flag >> COMPRESSION_TYPE_SHIFT & COMPRESSION_TYPE_MASK
    try:
        decompressor = _DECOMPRESSORS[CompressionType(number or CompressionType.ZLIB)]
    except ValueError as exc:
        raise RemoteProtocolError(
            f"A message body has the unknown compression type {number} (sysFlag {sys_flag:#x})."
        ) from exc
    return decompressor(body, MAX_BATCH_BYTES if sys_flag & _INNER_BATCH else MAX_BODY_BYTES)


class ExpansionBudget:
    """What the bodies of one or more answers may expand to together, by the bytes the answers have."""

    __slots__ = ("_limit", "left")

    def __init__(self, answer_bytes: int) -> None:
        self._limit = self.left = max(MAX_EXPANDED_BYTES, MAX_EXPANSION * answer_bytes)
        """``left`` is in bytes; who begins anew after an error sets it back to what it was."""

    def decompress(self, body: bytes, sys_flag: int) -> bytes:
        """As :func:`decompress`.

        Raises:
            RemoteProtocolError: As there, and if this body is one too many: fewer can be decoded at once.
        """
        expanded = decompress(body, sys_flag)
        if expanded is not body:
            self.left -= len(expanded) * (_BATCH_WEIGHT if sys_flag & _INNER_BATCH else 1)
            if self.left < 0:
                raise RemoteProtocolError(
                    f"The message bodies of an answer expand to more than {self._limit} bytes. If they are "
                    "what was sent, pull fewer messages at once: lower pullBatchSize."
                )
        return expanded


def compress(body: bytes, compression_type: CompressionType) -> tuple[bytes, int]:
    """Compress ``body``; returns it with the sysFlag bits that say so."""
    flags = MessageSysFlag.COMPRESSED | compression_type << COMPRESSION_TYPE_SHIFT
    return _COMPRESSORS[compression_type](body), int(flags)


def _decompress_zlib(body: bytes, most: int) -> bytes:
    """Like Java's Inflater: one stream, and whatever follows it is ignored."""
    try:
        if len(body) <= most // _ZLIB_EXPANSION:
            return zlib.decompress(body)
        decompressor = zlib.decompressobj()
        result = decompressor.decompress(body, most + 1)
    except zlib.error as exc:
        raise RemoteProtocolError(f"A message body is marked as zlib but is not: {exc}.") from exc
    _check_size("zlib", len(result), most)
    if not decompressor.eof:
        raise RemoteProtocolError("A zlib message body ends inside its stream.")
    return result


def _decompress_lz4(body: bytes, most: int) -> bytes:
    decompressor = lz4.frame.LZ4FrameDecompressor()
    try:
        result = bytes(decompressor.decompress(body, -1 if len(body) <= most // _LZ4_EXPANSION else most + 1))
    except RuntimeError as exc:
        raise RemoteProtocolError(f"A message body is marked as LZ4 but is not: {exc}.") from exc
    _check_size("LZ4", len(result), most)
    if decompressor.eof and not decompressor.unused_data and result:
        return result
    return _joined("LZ4", (_lz4_frame(body[begin:end], most) for begin, end in lz4_frames(body)), most)


def _lz4_frame(frame: bytes, most: int) -> bytes:
    decompressor = lz4.frame.LZ4FrameDecompressor()
    try:
        result = bytes(decompressor.decompress(frame, most + 1))
    except RuntimeError as exc:
        raise RemoteProtocolError(f"A message body is marked as LZ4 but is not: {exc}.") from exc
    if not decompressor.eof and len(result) <= most:
        raise RemoteProtocolError("A LZ4 message body ends inside its frame.")
    return result


def _decompress_zstd(body: bytes, most: int) -> bytes:
    # Its library leaves what follows a frame unread without a word, so frames are cut out first.
    frames = zstd_frames(body)
    try:
        parts = (_zstd_frame(body[begin:end], most) for begin, end in frames)
        return _joined("Zstandard", parts, most)
    except zstandard.ZstdError as exc:
        raise RemoteProtocolError(
            f"A message body is marked as Zstandard but is not, or expands to more than {most} bytes: {exc}."
        ) from exc


def _zstd_frame(frame: bytes, most: int) -> bytes:
    size = zstandard.frame_content_size(frame)
    _check_size("Zstandard", size, most)
    if size > 0:
        return _zstd_result(frame, size)
    if not size:
        # Its library would not look into the frame.
        return zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW).stream_reader(frame).read(1)
    # The frame does not tell, as Java's streams never do: a guess, then the most there may be.
    try:
        return _zstd_result(frame, min(most, _USUAL_BYTES + _USUAL_EXPANSION * len(frame)))
    except zstandard.ZstdError:
        return _zstd_result(frame, most)


def _zstd_result(frame: bytes, most: int) -> bytes:
    """Decompress in one go, which needs no window beside a result of known size."""
    # Making one costs more than using it, and no two threads may use the same at a time; list operations are
    # atomic.
    try:
        decompressor = _idle_zstd.pop()
    except IndexError:
        decompressor = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
    result = decompressor.decompress(frame, max_output_size=most)
    # One that has seen a large result, or an error, may hold a large window.
    if len(result) <= MAX_FRAME_LENGTH:
        _idle_zstd.append(decompressor)
    # A result much smaller than its room may keep memory pages of its own: copy it.
    return result if len(result) == most else bytes(memoryview(result))


def _joined(name: str, parts: Iterable[bytes], most: int) -> bytes:
    """What several frames hold together."""
    kept: list[bytes] = []
    size = 0
    for part in parts:
        size += len(part)
        _check_size(name, size, most)
        if part:
            kept.append(part)
    return kept[0] if len(kept) == 1 else b"".join(kept)


def _check_size(name: str, size: int, most: int) -> None:
    if size > most:
        raise RemoteProtocolError(f"A {name} message body expands to more than {most} bytes.")


def _compress_zlib(body: bytes) -> bytes:
    return zlib.compress(body, _ZLIB_LEVEL)


def _compress_lz4(body: bytes) -> bytes:
    return bytes(lz4.frame.compress(body))


def _compress_zstd(body: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(body)


_idle_zstd: Final[list[zstandard.ZstdDecompressor]] = []
_DECOMPRESSORS: Mapping[CompressionType, Callable[[bytes, int], bytes]] = {
    CompressionType.LZ4: _decompress_lz4,
    CompressionType.ZSTD: _decompress_zstd,
    CompressionType.ZLIB: _decompress_zlib,
}
_COMPRESSORS: Mapping[CompressionType, Callable[[bytes], bytes]] = {
    CompressionType.LZ4: _compress_lz4,
    CompressionType.ZSTD: _compress_zstd,
    CompressionType.ZLIB: _compress_zlib,
}
