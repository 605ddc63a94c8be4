"""Body compression: zlib, LZ4 frames and Zstandard, named by bits 8 to 10 of the message's sysFlag."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final

import lz4.frame
import zstandard

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.wire.codes import MessageSysFlag

COMPRESSION_TYPE_SHIFT: Final = 8
COMPRESSION_TYPE_MASK: Final = 0x7


class CompressionType(IntEnum):
    """The compression type bits (``CompressionType``); 0 means zlib too, as old producers wrote it."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


def decompress(body: bytes, sys_flag: int) -> bytes:
    """Return the body as it was sent; ``body`` itself when the compressed bit is clear or it is empty.

    Raises:
        RemoteProtocolError: If the type is unknown, or the data is damaged, cut, or (LZ4, Zstandard) longer
            than one frame.

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


def compress(body: bytes, compression_type: CompressionType) -> tuple[bytes, int]:
    """Compress ``body``; returns it with the sysFlag bits that say so."""
    flags = MessageSysFlag.COMPRESSED | compression_type << COMPRESSION_TYPE_SHIFT
    return _COMPRESSORS[compression_type](body), int(flags)


def _decompress_zlib(body: bytes) -> bytes:
    try:
        return zlib.decompress(body)
    except zlib.error as exc:
        raise RemoteProtocolError(f"A message body is marked as zlib but is not: {exc}.") from exc


def _decompress_lz4(body: bytes) -> bytes:
    decompressor = lz4.frame.LZ4FrameDecompressor()
    try:
        result = bytes(decompressor.decompress(body))
    except RuntimeError as exc:
        raise RemoteProtocolError(f"A message body is marked as LZ4 but is not: {exc}.") from exc
    _check_one_frame("LZ4", is_complete=decompressor.eof, rest=decompressor.unused_data)
    return result


def _decompress_zstd(body: bytes) -> bytes:
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    try:
        result = decompressor.decompress(body)
    except zstandard.ZstdError as exc:
        raise RemoteProtocolError(f"A message body is marked as Zstandard but is not: {exc}.") from exc
    _check_one_frame("Zstandard", is_complete=decompressor.eof, rest=decompressor.unused_data)
    return result


def _check_one_frame(name: str, *, is_complete: bool, rest: bytes | None) -> None:
    if not is_complete:
        raise RemoteProtocolError(f"A {name} message body ends inside its frame.")
    if rest:
        raise RemoteProtocolError(f"{len(rest)} bytes follow the {name} frame of a message body.")


def _compress_lz4(body: bytes) -> bytes:
    return bytes(lz4.frame.compress(body))


def _compress_zstd(body: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(body)


_DECOMPRESSORS: Mapping[CompressionType, Callable[[bytes], bytes]] = {
    CompressionType.LZ4: _decompress_lz4,
    CompressionType.ZSTD: _decompress_zstd,
    CompressionType.ZLIB: _decompress_zlib,
}
_COMPRESSORS: Mapping[CompressionType, Callable[[bytes], bytes]] = {
    CompressionType.LZ4: _compress_lz4,
    CompressionType.ZSTD: _compress_zstd,
    CompressionType.ZLIB: zlib.compress,
}
