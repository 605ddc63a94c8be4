"""One remoting request in plain standard-library code.

The harness must be able to judge a cluster without the codec that is under test, so it does not import it.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_LENGTH = struct.Struct(">I")
# MQVersion.V4_9_8: the highest number for which the name server answers standard JSON and no GO_AWAY.
_VERSION = 409


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainAnswer:
    """The parts of a response the harness looks at."""

    code: int
    remark: str
    ext_fields: Mapping[str, str]
    body: bytes


def call(
    address: str,
    code: int,
    ext_fields: Mapping[str, str] | None = None,
    *,
    body: bytes = b"",
    timeout_s: float = 60.0,
    tls: ssl.SSLContext | None = None,
) -> PlainAnswer:
    """Send one request with a JSON header on a connection of its own and return the answer.

    Raises:
        OSError: If the server cannot be reached, is too slow or closes the connection.
    """
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=timeout_s))
        if tls is not None:
            connection = stack.enter_context(tls.wrap_socket(connection, server_hostname=host))
        connection.sendall(_request_frame(code, ext_fields or {}, body))
        frame = _read_exactly(connection, _LENGTH.unpack(_read_exactly(connection, 4))[0])
    header_length = _LENGTH.unpack_from(frame)[0] & 0xFFFFFF
    header: dict[str, Any] = json.loads(frame[4 : 4 + header_length])
    return PlainAnswer(
        code=header["code"],
        remark=header.get("remark", ""),
        ext_fields=header.get("extFields", {}),
        body=frame[4 + header_length :],
    )


def _request_frame(code: int, ext_fields: Mapping[str, str], body: bytes) -> bytes:
    header = json.dumps(
        {
            "code": code,
            "extFields": dict(ext_fields),
            "flag": 0,
            "language": "PYTHON",
            "opaque": 1,
            "serializeTypeCurrentRPC": "JSON",
            "version": _VERSION,
        }
    ).encode()
    return _LENGTH.pack(4 + len(header) + len(body)) + _LENGTH.pack(len(header)) + header + body


def _read_exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        if not chunk:
            raise ConnectionError(f"The server closed the connection {count - len(data)} bytes too early.")
        data += chunk
    return bytes(data)
