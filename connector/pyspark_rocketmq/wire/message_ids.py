"""Message ids: where a message is stored (offset id) and who created it (unique key), both upper-case hex.

Neither of the two identifies a delivered message: the messages of a batch of Java's producer share a unique
key, and a retried message gets a new offset id.
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import Final

from pyspark_rocketmq.errors import LocalProtocolError, RemoteProtocolError

IPV4_HOST_BYTES: Final = 8
IPV6_HOST_BYTES: Final = 20
"""Bytes of an IPv6 host in a message: the address, and four bytes for the port."""
_MAX_PORT = 65535

_OFFSET_BYTES = 8
_LONGEST_SHOWN = 64
"""Maximum number of characters of a wrong id shown in an error."""
_OFFSET_MESSAGE_ID = re.compile(r"[0-9A-Fa-f]{32}(?:[0-9A-Fa-f]{24})?")


@lru_cache(maxsize=4096)
def decode_host(data: bytes) -> str:
    """Return the text of a host in a message: ``127.0.0.1:10911`` or ``[2001:db8:0:0:0:0:0:1]:10911``.

    ``data`` is the address and four bytes for the port; the text has Java's form.

    Raises:
        RemoteProtocolError: If the port is impossible (Java's ``InetSocketAddress`` also refuses it).
    """
    port = int.from_bytes(data[-4:], "big", signed=True)
    if not 0 <= port <= _MAX_PORT:
        raise RemoteProtocolError(
            "A message, or its id, is damaged: the address of its producer or broker has the "
            f"impossible port {port}."
        )
    if len(data) == IPV4_HOST_BYTES:
        return f"{data[0]}.{data[1]}.{data[2]}.{data[3]}:{port}"
    groups = ":".join(f"{data[at] << 8 | data[at + 1]:x}" for at in range(0, 16, 2))
    return f"[{groups}]:{port}"


@lru_cache(maxsize=4096)
def encode_host(host: str) -> bytes:
    """Turn ``host:port`` into 8 (IPv4) or 20 (IPv6) bytes; IPv6 addresses may be in brackets.

    Raises:
        LocalProtocolError: If it is not an IP address and a port.
    """
    address, _, port = host.rpartition(":")
    try:
        packed = ipaddress.ip_address(address.removeprefix("[").removesuffix("]")).packed
        number = int(port)
    except ValueError as exc:
        raise LocalProtocolError(
            f"{host!r} is not an IP address and a port, such as 10.0.0.1:10911."
        ) from exc
    if not 0 <= number <= _MAX_PORT:
        raise LocalProtocolError(f"{host!r} has a port outside 0 to {_MAX_PORT}.")
    return packed + number.to_bytes(4, "big")


def offset_message_id(store_host: str, commit_log_offset: int) -> str:
    """Build the id that a broker gives a stored message: host (8 or 20 bytes) and commit log offset in hex.

    Raises:
        LocalProtocolError: If the host is not an IP address and a port.

    Source: RocketMQ 5.3.3 ``MessageDecoder.createMessageId``.
    """
    place = encode_host(store_host) + commit_log_offset.to_bytes(_OFFSET_BYTES, "big", signed=True)
    return place.hex().upper()


def decode_offset_message_id(message_id: str) -> tuple[str, int]:
    """Split an offset message id into the store host and the commit log offset.

    Raises:
        RemoteProtocolError: If it is not 32 or 56 hex digits (Java misreads some of these), or has an
            impossible port.

    Source: RocketMQ 5.3.3 ``MessageDecoder.decodeMessageId``.
    """
    if not _OFFSET_MESSAGE_ID.fullmatch(message_id):
        raise RemoteProtocolError(
            f"{message_id[:_LONGEST_SHOWN]!r} is not an offset message id: expected 32 or 56 hex digits."
        )
    data = bytes.fromhex(message_id)
    return decode_host(data[:-_OFFSET_BYTES]), int.from_bytes(data[-_OFFSET_BYTES:], "big", signed=True)


def unique_key(ip: bytes, pid: int, hash_code: int, since_month_start_ms: int, counter: int) -> str:
    """Build a producer's unique key: ip (4 or 16), pid (2), hash (4), time (4) and counter (2 bytes) in hex.

    Numbers are cut to their width, as Java does. ``since_month_start_ms`` counts from the first instant of
    the current local month; ``hash_code`` may be any number that differs between producers of one process.

    Source: RocketMQ 5.3.3 ``MessageClientIDSetter.createUniqID``.
    """
    parts = ((pid, 2), (hash_code, 4), (since_month_start_ms, 4), (counter, 2))
    numbers = b"".join((value % (1 << 8 * size)).to_bytes(size, "big") for value, size in parts)
    return (ip + numbers).hex().upper()
