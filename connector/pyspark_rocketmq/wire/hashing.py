"""Java's hash of a sharding key and the queue it chooses: same key, same queue, whoever sends."""

from __future__ import annotations

from typing import Final

from pyspark_rocketmq.errors import LocalProtocolError

_MASK: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000
_LONG_MASK: Final = 0xFFFFFFFFFFFFFFFF
_MOST: Final = 1 << 63

ShardingKey = str | int
"""A String, or a Long of Java's."""


class JavaInteger(int):
    """A key that Java's producers have as an Integer, Short or Byte; negative ones have another hash as a Long."""


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


def java_hash(sharding_key: ShardingKey) -> int:
    """``hashCode()`` of the String, Long or Integer that the key is in Java, as a signed 32-bit number.

    Raises:
        LocalProtocolError: If it is none of these.

    Source: ``java.lang.Long.hashCode``, ``java.lang.Integer.hashCode``.
    """
    if isinstance(sharding_key, str):
        return java_string_hash(sharding_key)
    if isinstance(sharding_key, bool) or not -_MOST <= sharding_key < _MOST:
        raise LocalProtocolError(
            f"Sharding key {sharding_key!r} is neither a text nor an integer of 64 bits; make it a text."
        )
    number = int(sharding_key)
    if not isinstance(sharding_key, JavaInteger):
        unsigned = number & _LONG_MASK
        number = unsigned ^ unsigned >> 32
    return (number & _MASK ^ _SIGN) - _SIGN


def select_by_hash(sharding_key: ShardingKey, queue_count: int) -> int:
    """Position of the key's queue among ``queue_count`` (at least 1) queues in route order.

    Source: ``SelectMessageQueueByHash.select``: Java's remainder (towards zero), then its absolute value.
    """
    return abs(java_hash(sharding_key)) % queue_count
