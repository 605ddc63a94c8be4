"""Body compression: zlib, LZ4 frames and Zstandard, named by bits 8 to 10 of the message's sysFlag.

Within bounds, every body that Java's consumer can read is decoded: also several frames one after another,
skippable frames, and bodies that become far larger than ``MAX_FRAME_LENGTH``. The bounds are needed because
a few hundred bytes can expand to gigabytes, and any producer of a topic may send them. Each body has a bound,
and :class:`ExpansionBudget` bounds the messages of an answer together.

Source: lz4-java 1.8.0 ``LZ4FrameInputStream``, zstd-jni 1.5.2 ``ZstdInputStreamNoFinalizer``; LZ4 frame
format 1.6, RFC 8878.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

import lz4.frame
import zstandard

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.wire.codes import MessageSysFlag
from pyspark_rocketmq.wire.command import MAX_FRAME_LENGTH

MAX_EXPANDED_BYTES: Final = 128 * 1024 * 1024
"""Number of decompressed bytes that the messages of an answer may have, however short the answer is. By
default an answer has at most 32 messages of at most 4 MiB."""
MAX_EXPANSION: Final = 64
"""Number of decompressed bytes allowed for each byte of an answer, if these are more than
``MAX_EXPANDED_BYTES`` together. Text expands to 30 times its compressed size at most."""
MAX_BODY_BYTES: Final = MAX_EXPANDED_BYTES
"""Maximum number of bytes of one decompressed body; Java has no bound, but its producers send at most 4 MiB
by default."""
MAX_BATCH_BYTES: Final = MAX_FRAME_LENGTH
"""Maximum number of bytes of one decompressed inner batch."""
_BATCH_WEIGHT: Final = MAX_EXPANDED_BYTES // MAX_BATCH_BYTES
"""Number of times that each decompressed byte of an inner batch counts against an answer's budget: a member
of 22 bytes becomes a row of 220 bytes. One inner batch of ``MAX_BATCH_BYTES`` still fits."""
_INNER_BATCH: Final = int(MessageSysFlag.INNER_BATCH)
COMPRESSION_TYPE_SHIFT: Final = 8
COMPRESSION_TYPE_MASK: Final = 0x7
_ZLIB_LEVEL: Final = 5
"""Level at which bodies are compressed, as in Java (``DefaultMQProducer.compressLevel``)."""

# Maximum number of bytes that one byte expands to. A body that is too short to become too large is
# decompressed by a faster call.
_ZLIB_EXPANSION: Final = 1040
_LZ4_EXPANSION: Final = 256
_USUAL_BYTES: Final = 1 << 16
_USUAL_EXPANSION: Final = 32
_LARGEST_WINDOW: Final = 1 << 27
"""Maximum window of a Zstandard frame, in bytes, as in Java's decoder (``ZSTD_WINDOWLOG_LIMIT_DEFAULT``)."""

_idle_zstd: Final[list[zstandard.ZstdDecompressor]] = []
"""Decompressors that no thread is using."""
_SKIPPABLE: Final = 0x184D2A5
"""All but the last four bits of a skippable frame's magic number."""
_WORD: Final = 4
_LZ4_PLAIN_BLOCK: Final = 1 << 31
_ZSTD_RLE: Final = 2
"""Bits in the header of a block that repeats one byte. Only that byte follows the header, whose size field is
the size of the result."""
_ZSTD_SHORTEST_FRAME: Final = 5
"""Bytes that Java needs for another frame; fewer bytes after the last frame count as the end."""
MAX_FRAMES: Final = 65_536
"""Maximum number of frames of one body, including skippable ones; Java has no bound, but each frame costs
some microseconds and may be empty."""


class CompressionType(IntEnum):
    """Number in a sysFlag's compression bits (``CompressionType``). Old producers write 0 for zlib."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


def decompress(body: bytes, sys_flag: int) -> bytes:
    """Return the decompressed body; ``body`` itself if it is empty or the compressed bit is clear.

    Raises:
        RemoteProtocolError: If the type is unknown, or the data is damaged or cut. If it expands to more than
            ``MAX_BODY_BYTES`` (for an inner batch, ``MAX_BATCH_BYTES``). With LZ4 and Zstandard, also if
            something other than a frame follows, or if there are more than ``MAX_FRAMES`` frames.

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
    """Bounds the decompressed size of all bodies of one or more answers, by the size of these answers."""

    __slots__ = ("_limit", "left")

    def __init__(self, answer_bytes: int) -> None:
        self._limit = self.left = max(MAX_EXPANDED_BYTES, MAX_EXPANSION * answer_bytes)
        """Decompressed bytes that are still allowed.

        To decode again after an error, set ``left`` to its earlier value.
        """

    def decompress(self, body: bytes, sys_flag: int) -> bytes:
        """Return the body decompressed by :func:`decompress`, and take its new size from the budget.

        A body that is not compressed takes nothing.

        Raises:
            RemoteProtocolError: If the body exceeds the budget, or :func:`decompress` raises it.
        """
        expanded = decompress(body, sys_flag)
        if expanded is not body:
            self.left -= len(expanded) * (_BATCH_WEIGHT if sys_flag & _INNER_BATCH else 1)
            if self.left < 0:
                raise RemoteProtocolError(
                    f"The message bodies of an answer expand to more than {self._limit} bytes. If the "
                    "messages are really so large, pull fewer at a time: lower pullBatchSize."
                )
        return expanded


def compress(body: bytes, compression_type: CompressionType) -> tuple[bytes, int]:
    """Compress ``body``; return it with the sysFlag bits for its compression."""
    flags = MessageSysFlag.COMPRESSED | compression_type << COMPRESSION_TYPE_SHIFT
    return _COMPRESSORS[compression_type](body), int(flags)


def _decompress_zlib(body: bytes, most: int) -> bytes:
    """Decompress one stream, and ignore whatever follows it, like Java's Inflater."""
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
    result, decompressor = _lz4_frame(body, most)
    if decompressor.eof and not decompressor.unused_data and result:
        return result

    def parts() -> Iterator[bytes]:
        for frame in _frames(body, _LZ4):
            part, decompressor = _lz4_frame(frame, most)
            if not decompressor.eof:
                raise _cut("LZ4")
            yield part

    return _joined("LZ4", parts(), most)


def _lz4_frame(frame: bytes, most: int) -> tuple[bytes, lz4.frame.LZ4FrameDecompressor]:
    decompressor = lz4.frame.LZ4FrameDecompressor()
    is_short = len(frame) <= most // _LZ4_EXPANSION
    try:
        result = bytes(decompressor.decompress(frame, -1 if is_short else most + 1))
    except RuntimeError as exc:
        raise RemoteProtocolError(f"A message body is marked as LZ4 but is not: {exc}.") from exc
    _check_size("LZ4", len(result), most)
    return result, decompressor


def _decompress_zstd(body: bytes, most: int) -> bytes:
    # The library silently ignores bytes after a frame, so frames are cut out first.
    try:
        return _joined("Zstandard", (_zstd_frame(frame, most) for frame in _frames(body, _ZSTD)), most)
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
        # For an empty result, the library's ``decompress`` would not check the frame; a stream does.
        return zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW).stream_reader(frame).read(1)
    # Frames of Java's streams do not contain their size: try a guess first, then the largest size allowed.
    try:
        return _zstd_result(frame, min(most, _USUAL_BYTES + _USUAL_EXPANSION * len(frame)))
    except zstandard.ZstdError:
        return _zstd_result(frame, most)


def _zstd_result(frame: bytes, most: int) -> bytes:
    """Decompress a frame to at most ``most`` bytes, in one step.

    If the frame states the size of its result, zstd needs no memory (window) besides the result.

    Raises:
        ZstdError: If the result is larger, or the frame is damaged.
    """
    # Making a decompressor costs more than using it, and two threads must not share one; list operations are
    # atomic.
    try:
        decompressor = _idle_zstd.pop()
    except IndexError:
        decompressor = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
    result = decompressor.decompress(frame, max_output_size=most)
    # After a large result or an error a decompressor may hold a large window: do not keep it.
    if len(result) <= MAX_FRAME_LENGTH:
        _idle_zstd.append(decompressor)
    # A result that is much smaller than its buffer may keep the buffer's memory pages: copy it.
    return result if len(result) == most else bytes(memoryview(result))


def _joined(name: str, parts: Iterable[bytes], most: int) -> bytes:
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


_DECOMPRESSORS: Mapping[CompressionType, Callable[[bytes, int], bytes]] = {
    CompressionType.LZ4: _decompress_lz4,
    CompressionType.ZSTD: _decompress_zstd,
    CompressionType.ZLIB: _decompress_zlib,
}
_COMPRESSORS: Mapping[CompressionType, Callable[[bytes], bytes]] = {
    # lz4-java reads no blocks that refer to the one before.
    CompressionType.LZ4: lambda body: bytes(lz4.frame.compress(body, block_linked=False)),
    CompressionType.ZSTD: lambda body: zstandard.ZstdCompressor().compress(body),
    CompressionType.ZLIB: lambda body: zlib.compress(body, _ZLIB_LEVEL),
}


# --- the frames of a body -----------------------------------------------------------------------------------


class _Format(NamedTuple):
    name: str
    magic: int
    end_of: Callable[[bytes, int], int]
    """Returns where the frame ends that begins at this position of a body."""
    may_have_tail: bool
    """Whether bytes too short for a frame may follow the last one."""


def _frames(body: bytes, form: _Format) -> Iterator[bytes]:
    """Yield all frames but skippable ones. Only lengths are read here; the decompressors check the rest.

    Java's streams read one frame after the other and skip skippable ones, so a body is the data of all its
    frames together.
    """
    at = frames = 0
    while at < len(body):
        frames += 1
        if frames > MAX_FRAMES:
            raise RemoteProtocolError(f"A message body has more than {MAX_FRAMES} compressed frames.")
        left = len(body) - at
        may_end = form.may_have_tail and at > 0
        if may_end and left < _ZSTD_SHORTEST_FRAME:
            return
        magic = _u32(body, at, form.name)
        if magic >> 4 == _SKIPPABLE:
            size = 2 * _WORD + (_u32(body, at + _WORD, form.name) if left >= 2 * _WORD else 0)
            if may_end and left < size:
                return
            at += size
            _check_within(body, at, form.name)
        elif magic == form.magic:
            end = form.end_of(body, at)
            yield body[at:end]
            at = end
        elif at:
            raise RemoteProtocolError(
                f"{left} bytes that are not a frame follow the {form.name} frames of a message body."
            )
        else:
            raise RemoteProtocolError(
                f"A message body is marked as {form.name} but is not: it does not begin with a frame's magic "
                "number."
            )


def _lz4_end(body: bytes, begin: int) -> int:
    flags = _u8(body, begin + _WORD, "LZ4")
    has_dictionary, has_checksum, has_size = flags & 1, flags & 4, flags & 8
    block_checksum = _WORD if flags & 16 else 0
    # Magic number, flags, block size, size of the content, dictionary id, checksum of the header.
    at = begin + _WORD + 2 + (8 if has_size else 0) + (_WORD if has_dictionary else 0) + 1
    while length := _u32(body, at, "LZ4") & ~_LZ4_PLAIN_BLOCK:
        at += _WORD + length + block_checksum
    at += _WORD + (_WORD if has_checksum else 0)
    _check_within(body, at, "LZ4")
    return at


def _zstd_end(body: bytes, begin: int) -> int:
    descriptor = _u8(body, begin + _WORD, "Zstandard")
    is_single_segment, has_checksum = descriptor & 0x20, descriptor & 0x04
    dictionary_bytes = (0, 1, 2, 4)[descriptor & 3]
    size_bytes = (1 if is_single_segment else 0, 2, 4, 8)[descriptor >> 6]
    at = begin + _WORD + 1 + (0 if is_single_segment else 1) + dictionary_bytes + size_bytes
    header = 0
    while not header & 1:
        header = int.from_bytes(body[at : at + 3], "little")
        at += 4 if header & 6 == _ZSTD_RLE else 3 + (header >> 3)
        _check_within(body, at, "Zstandard")
    at += _WORD if has_checksum else 0
    _check_within(body, at, "Zstandard")
    return at


def _u8(body: bytes, at: int, name: str) -> int:
    _check_within(body, at + 1, name)
    return body[at]


def _u32(body: bytes, at: int, name: str) -> int:
    _check_within(body, at + _WORD, name)
    return int.from_bytes(body[at : at + _WORD], "little")


def _check_within(body: bytes, end: int, name: str) -> None:
    if end > len(body):
        raise _cut(name)


def _cut(name: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"A {name} message body ends inside its frame.")


_LZ4: Final = _Format("LZ4", 0x184D2204, _lz4_end, may_have_tail=False)
_ZSTD: Final = _Format("Zstandard", 0xFD2FB528, _zstd_end, may_have_tail=True)
