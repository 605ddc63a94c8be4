"""Body compression: zlib, LZ4 frames and Zstandard, named by bits 8 to 10 of the message's sysFlag.

A few hundred bytes can expand to gigabytes, and any producer of a topic may send them, so what comes out is bounded
twice: by what one frame could carry, and for the messages of an answer together by :class:`ExpansionBudget`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final

import lz4.frame
import zstandard

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.wire.codes import MessageSysFlag
from pyspark_rocketmq.wire.command import MAX_FRAME_LENGTH

MAX_BODY_BYTES: Final = MAX_FRAME_LENGTH
"""Of one body, decompressed; a longer one could not be sent without compression."""
MAX_EXPANDED_BYTES: Final = 128 * 1024 * 1024
"""Of all bodies of a short answer: a broker gives at most 32 messages of at most 4 MiB by its default limits."""
_ZLIB_LEVEL: Final = 5
"""``DefaultMQProducer.compressLevel``."""
MAX_EXPANSION: Final = 64
"""And of a long one, for each of its bytes; texts reach 30."""
_BATCH_WEIGHT: Final = MAX_EXPANDED_BYTES // MAX_BODY_BYTES
"""How often an inner batch counts: a member of 22 bytes becomes a row of ten times as many. A batch alone is never too large."""
_INNER_BATCH: Final = int(MessageSysFlag.INNER_BATCH)
COMPRESSION_TYPE_SHIFT: Final = 8
COMPRESSION_TYPE_MASK: Final = 0x7

# What one byte can become at most; inputs too short for a bomb take the quickest way.
_ZLIB_EXPANSION: Final = 1040
_LZ4_EXPANSION: Final = 256
_USUAL_BYTES: Final = 1 << 16
_USUAL_EXPANSION: Final = 32


class CompressionType(IntEnum):
    """The compression type bits (``CompressionType``); 0 means zlib too, as old producers wrote it."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


def decompress(body: bytes, sys_flag: int) -> bytes:
    """Return the body as it was sent; ``body`` itself when the compressed bit is clear or it is empty.

    Raises:
        RemoteProtocolError: If the type is unknown, or the data is damaged, cut, (LZ4, Zstandard) longer than one
            frame, or expands to more than ``MAX_BODY_BYTES``.

    Source: RocketMQ 5.3.3 ``MessageDecoder.decode``, ``CompressorFactory``.
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
    return decompressor(body)


class ExpandsTooFar(RemoteProtocolError):
    """Bodies are whole, but too large together: fewer of them can be decoded at once."""


class ExpansionBudget:
    """What the bodies of one or more answers may expand to together, by the bytes the answers have."""

    __slots__ = ("_limit", "left")

    def __init__(self, answer_bytes: int) -> None:
        self._limit = self.left = max(MAX_EXPANDED_BYTES, MAX_EXPANSION * answer_bytes)
        """``left`` is in bytes; who begins anew after an error sets it back to what it was."""

    def decompress(self, body: bytes, sys_flag: int) -> bytes:
        """As :func:`decompress`.

        Raises:
            RemoteProtocolError: As there.
            ExpandsTooFar: If this body is one too many.
        """
        expanded = decompress(body, sys_flag)
        if expanded is not body:
            self.left -= len(expanded) * (_BATCH_WEIGHT if sys_flag & _INNER_BATCH else 1)
            if self.left < 0:
                raise ExpandsTooFar(
                    f"The message bodies of an answer expand to more than {self._limit} bytes. If they are what was "
                    "sent, pull fewer messages at once: lower pullBatchSize."
                )
        return expanded


def compress(body: bytes, compression_type: CompressionType) -> tuple[bytes, int]:
    """Compress ``body``; returns it with the sysFlag bits that say so."""
    flags = MessageSysFlag.COMPRESSED | compression_type << COMPRESSION_TYPE_SHIFT
    return _COMPRESSORS[compression_type](body), int(flags)


def _decompress_zlib(body: bytes) -> bytes:
    try:
        if len(body) <= MAX_BODY_BYTES // _ZLIB_EXPANSION:
            return zlib.decompress(body)
        decompressor = zlib.decompressobj()
        result = decompressor.decompress(body, MAX_BODY_BYTES + 1)
    except zlib.error as exc:
        raise RemoteProtocolError(f"A message body is marked as zlib but is not: {exc}.") from exc
    _check_size("zlib", len(result))
    # Java's Inflater ignores what follows the stream, too.
    _check_one_frame("zlib", is_complete=decompressor.eof, rest=None)
    return result


def _decompress_lz4(body: bytes) -> bytes:
    decompressor = lz4.frame.LZ4FrameDecompressor()
    most = -1 if len(body) <= MAX_BODY_BYTES // _LZ4_EXPANSION else MAX_BODY_BYTES + 1
    try:
        result = bytes(decompressor.decompress(body, most))
    except RuntimeError as exc:
        raise RemoteProtocolError(f"A message body is marked as LZ4 but is not: {exc}.") from exc
    _check_size("LZ4", len(result))
    _check_one_frame("LZ4", is_complete=decompressor.eof, rest=decompressor.unused_data)
    return result


def _decompress_zstd(body: bytes) -> bytes:
    try:
        size = zstandard.frame_content_size(body)
        _check_size("Zstandard", size)
        if size >= 0:
            return _zstd_result(body, size)
        # The frame does not tell, as Java's streams never do: a guess, then the most there may be.
        try:
            return _zstd_result(body, min(MAX_BODY_BYTES, _USUAL_BYTES + _USUAL_EXPANSION * len(body)))
        except zstandard.ZstdError:
            return _zstd_result(body, MAX_BODY_BYTES)
    except zstandard.ZstdError as exc:
        raise RemoteProtocolError(
            f"A message body is marked as Zstandard but is not one frame of at most {MAX_BODY_BYTES} bytes: {exc}."
        ) from exc


def _zstd_result(body: bytes, most: int) -> bytes:
    """Decompress in one go, which needs no window beside a result of known size."""
    # Making one costs more than using it, and no two threads may use the same at a time; list operations are atomic.
    try:
        decompressor = _idle_zstd.pop()
    except IndexError:
        decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_BODY_BYTES)
    try:
        result = decompressor.decompress(body, max_output_size=most, allow_extra_data=False)
    finally:
        _idle_zstd.append(decompressor)
    # A result much smaller than its room may keep memory pages of its own: copy it.
    return result if len(result) == most else bytes(memoryview(result))


def _check_size(name: str, size: int) -> None:
    if size > MAX_BODY_BYTES:
        raise RemoteProtocolError(
            f"A {name} message body expands to more than {MAX_BODY_BYTES} bytes, which no frame could carry."
        )


def _check_one_frame(name: str, *, is_complete: bool, rest: bytes | None) -> None:
    if not is_complete:
        raise RemoteProtocolError(f"A {name} message body ends inside its frame.")
    if rest:
        raise RemoteProtocolError(f"{len(rest)} bytes follow the {name} frame of a message body.")


def _compress_zlib(body: bytes) -> bytes:
    return zlib.compress(body, _ZLIB_LEVEL)


def _compress_lz4(body: bytes) -> bytes:
    return bytes(lz4.frame.compress(body))


def _compress_zstd(body: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(body)


_idle_zstd: Final[list[zstandard.ZstdDecompressor]] = []
_DECOMPRESSORS: Mapping[CompressionType, Callable[[bytes], bytes]] = {
    CompressionType.LZ4: _decompress_lz4,
    CompressionType.ZSTD: _decompress_zstd,
    CompressionType.ZLIB: _decompress_zlib,
}
_COMPRESSORS: Mapping[CompressionType, Callable[[bytes], bytes]] = {
    CompressionType.LZ4: _compress_lz4,
    CompressionType.ZSTD: _compress_zstd,
    CompressionType.ZLIB: _compress_zlib,
}
