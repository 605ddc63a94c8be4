"""Body compression: zlib, LZ4 frames and Zstandard, named by bits 8 to 10 of the message's sysFlag.

What Java's consumer shows is shown: several frames behind one another, skippable ones, and sizes far beyond a frame of
the wire. A few hundred bytes can expand to gigabytes, though, and any producer of a topic may send them, so what comes
out is bounded twice: of one body, and for the messages of an answer together by :class:`ExpansionBudget`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Final

import lz4.frame
import zstandard

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.wire.codes import MessageSysFlag
from pyspark_rocketmq.wire.command import MAX_FRAME_LENGTH
from pyspark_rocketmq.wire.compressed_frames import lz4_frames, zstd_frames

MAX_EXPANDED_BYTES: Final = 128 * 1024 * 1024
"""Of all bodies of a short answer: a broker gives at most 32 messages of at most 4 MiB by its default limits."""
MAX_BODY_BYTES: Final = MAX_EXPANDED_BYTES
"""Of one body, decompressed; Java has no bound, but its producers send no more than 4 MiB if not told to."""
_ZLIB_LEVEL: Final = 5
"""``DefaultMQProducer.compressLevel``."""
MAX_EXPANSION: Final = 64
"""And of a long one, for each of its bytes; texts reach 30."""
MAX_BATCH_BYTES: Final = MAX_FRAME_LENGTH
"""Of one inner batch, decompressed."""
_BATCH_WEIGHT: Final = MAX_EXPANDED_BYTES // MAX_BATCH_BYTES
"""How often an inner batch counts: a member of 22 bytes becomes a row of ten times as many. A batch alone is never too large."""
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
        RemoteProtocolError: If the type is unknown, or the data is damaged, cut, (LZ4, Zstandard) followed by what is
            no frame, or expands to more than ``MAX_BODY_BYTES``, an inner batch to more than ``MAX_BATCH_BYTES``.

    Source: RocketMQ 5.3.3 ``MessageDecoder.decode``, ``ZlibCompressor``, ``Lz4Compressor``, ``ZstdCompressor``.
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
                    f"The message bodies of an answer expand to more than {self._limit} bytes. If they are what was "
                    "sent, pull fewer messages at once: lower pullBatchSize."
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
    # Making one costs more than using it, and no two threads may use the same at a time; list operations are atomic.
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
