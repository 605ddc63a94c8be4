"""``host:port`` as text and as stored bytes: 4 or 16 address bytes and a 4-byte port, big-endian."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Final

from pyspark_rocketmq.errors import LocalProtocolError, RemoteProtocolError

IPV4_HOST_BYTES: Final = 8
IPV6_HOST_BYTES: Final = 20
_MAX_PORT = 65535


@lru_cache(maxsize=4096)
def decode_host(data: bytes) -> str:
    """Show a stored host: ``127.0.0.1:10911`` or ``[2001:db8:0:0:0:0:0:1]:10911``.

    IPv6 addresses are spelt as Java does, without ``::``, in brackets.

    Raises:
        RemoteProtocolError: If the port is not one (Java's ``InetSocketAddress`` refuses it too).
    """
    port = int.from_bytes(data[-4:], "big", signed=True)
    if not 0 <= port <= _MAX_PORT:
        raise RemoteProtocolError(f"A stored host has the impossible port {port}.")
    if len(data) == IPV4_HOST_BYTES:
        return f"{data[0]}.{data[1]}.{data[2]}.{data[3]}:{port}"
    groups = ":".join(f"{data[at] << 8 | data[at + 1]:x}" for at in range(0, 16, 2))
    return f"[{groups}]:{port}"


@lru_cache(maxsize=4096)
def encode_host(host: str) -> bytes:
    """Turn ``host:port`` into 8 (IPv4) or 20 (IPv6) bytes; IPv6 addresses may be in brackets or not.

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
