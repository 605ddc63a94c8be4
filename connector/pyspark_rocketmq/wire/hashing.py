"""Java's string hash and the queue it chooses: same key, same queue, whoever sends."""

from __future__ import annotations

from typing import Final

_MASK: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000


def java_string_hash(text: str) -> int:
    """Hash over UTF-16 code units, as a signed 32-bit number; half surrogate pairs count as they are.

    Source: ``java.lang.String.hashCode``.
    """
    value = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            value = 31 * value + unit & _MASK
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for at in range(0, len(units), 2):
            value = 31 * value + (units[at] << 8 | units[at + 1]) & _MASK
    return (value ^ _SIGN) - _SIGN


def select_by_hash(sharding_key: str, queue_count: int) -> int:
    """Position of the key's queue among ``queue_count`` (at least 1) queues in route order.

    Source: ``SelectMessageQueueByHash.select``: Java's remainder (towards zero), then its absolute value.
    """
    return abs(java_string_hash(sharding_key)) % queue_count
