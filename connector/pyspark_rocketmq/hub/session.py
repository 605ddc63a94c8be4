"""The protocol between a query's driver, planner and tasks: lines of JSON between two ends that share a key.

The key itself is never sent. The hub, which is the driver's server, greets with a random number. The
connecting side answers with its own random number and with a proof that it has the key, computed from both
numbers; then the hub proves itself in the same way. From then on every line begins with a code, computed from
the line, its number, and a key for this connection and direction. So nobody can add, change, repeat or
reorder lines. This module encrypts nothing: if Spark encrypts its network,
:mod:`~pyspark_rocketmq.hub.encryption` encrypts the bytes of these lines.

No I/O: it takes bytes and returns JSON objects, which :mod:`~pyspark_rocketmq.hub.messages` reads.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark_rocketmq.errors import LocalProtocolError, RemoteProtocolError
from pyspark_rocketmq.hub.messages import JsonObject

LONGEST_GREETING: Final = 512
"""Maximum length of a line, in bytes, before the other side has proved itself."""
LONGEST_LINE: Final = 8 << 20
"""Maximum length of a line, in bytes, after the proof; its code is not counted."""
_VERSION: Final = 1
_KEY_BYTES: Final = 32
_FINGERPRINT_BYTES: Final = 32
_CODE_CHARS: Final = 32
_NONCE_BYTES: Final = 16
_TLS_HANDSHAKE: Final = b"\x16\x03"
"""First bytes that a client sends if it encrypts."""


@dataclass(frozen=True, slots=True)
class HubAddress:
    """Address of the driver's hub, with the query's secret key; its repr does not show the key."""

    host: str
    port: int
    key: bytes = field(repr=False)
    fingerprint: bytes = field(default=b"", repr=False)
    """SHA-256 of the hub's certificate; empty if the connections are not encrypted."""

    @classmethod
    def new(cls, host: str, port: int, fingerprint: bytes = b"") -> HubAddress:
        """Return an address with a new random key, which is the query's secret."""
        return cls(host, port, secrets.token_bytes(_KEY_BYTES), fingerprint)

    @classmethod
    def parse(cls, text: str) -> HubAddress:
        """Read an address from a text that :meth:`to_text` has returned.

        Raises:
            LocalProtocolError: If it is not such a text; the error does not show the text.
        """
        place, _, rest = text.partition("/")
        host, _, port = place.rpartition(":")
        key, separator, fingerprint = rest.partition("/")
        try:
            found: HubAddress | None = cls(host, int(port), bytes.fromhex(key), bytes.fromhex(fingerprint))
        except ValueError:
            found = None
        # A string whose end is missing must not lead to a connection without encryption.
        wanted = _FINGERPRINT_BYTES if separator else 0
        if found is None or len(found.fingerprint) != wanted:
            raise LocalProtocolError(
                "The address of a query's hub is not HOST:PORT/KEY or HOST:PORT/KEY/FINGERPRINT. Leave out "
                "option hubSecret: the consumer sets it for each query."
            )
        return found

    def to_text(self) -> str:
        """Return the address as ``HOST:PORT/KEY`` or ``HOST:PORT/KEY/FINGERPRINT``; the text is a secret."""
        fingerprint = f"/{self.fingerprint.hex()}" if self.fingerprint else ""
        return f"{self.host}:{self.port}/{self.key.hex()}{fingerprint}"


class Session:
    """One end of a connection: proves that it has the key, then writes and checks signed lines. No I/O.

    ``lines`` and ``receive`` raise ``RemoteProtocolError`` if the connection must be ended.
    """

    def __init__(self, peer: str, key: bytes, *, is_hub: bool) -> None:
        self._peer = peer
        self._key = key
        self._is_hub = is_hub
        self._nonce = secrets.token_hex(_NONCE_BYTES)
        self._nonces = ""
        """The random numbers (nonces) of the hub and of the other side; empty until both are known."""
        self._send_key = self._receive_key = b""
        self._sent = self._received = 0
        self._rest = bytearray()
        self.is_open = False
        """Whether both sides have proved that they have the key."""

    def greeting(self) -> bytes:
        """Return the hub's first line, with the protocol's version and the hub's random number."""
        return _line({"v": _VERSION, "nonce": self._nonce})

    def lines(self, data: bytes) -> list[bytes]:
        """Return the lines that end in the next bytes received, without their newlines.

        The start of an unfinished line is kept until the rest comes.
        """
        if not self.is_open and data.startswith(_TLS_HANDSHAKE):
            raise RemoteProtocolError(
                f"{self._peer}: the process there encrypts, but this query does not, because its Spark does "
                "not. The process may belong to an earlier query that had this port: end it, or start this "
                "query again."
            )
        longest = LONGEST_LINE + 2 * _CODE_CHARS if self.is_open else LONGEST_GREETING
        end = data.rfind(b"\n") + 1
        lines = bytes(self._rest + data[:end]).split(b"\n")[:-1] if end else []
        self._rest = bytearray(data[end:]) if end else self._rest + data
        if any(len(line) > longest for line in (*lines, self._rest)):
            unproved = "" if self.is_open else " It has not shown the query's key: it may be another program."
            raise RemoteProtocolError(
                f"{self._peer}: the process there sent a line of more than {longest} bytes.{unproved}"
            )
        return lines

    def receive(self, line: bytes) -> tuple[bytes, JsonObject | None]:
        """Take the next line; return bytes to send as the answer, and the line's JSON object.

        While the two sides prove themselves, only the bytes matter, and the object is None. After that the
        bytes are empty.
        """
        if not self.is_open:
            return self._greeted(line), None
        code, body = line[:_CODE_CHARS], line[_CODE_CHARS:]
        if not hmac.compare_digest(code, _code(self._receive_key, self._received, body)):
            raise RemoteProtocolError(
                f"{self._peer}: a line was not written by the peer of this connection, or was changed on its "
                "way. If this happens again, look for what changes data between executors and driver."
            )
        self._received += 1
        return b"", self._object(body)

    def seal(self, message: JsonObject) -> bytes:
        """Return ``message`` as a signed line: its code (an HMAC), then its JSON. The session must be open.

        Send all returned lines, in their order.
        """
        body = _body(message)
        line = _code(self._send_key, self._sent, body) + body + b"\n"
        self._sent += 1
        return line

    def _greeted(self, line: bytes) -> bytes:
        greeting = self._object(line)
        if not self._nonces:
            nonce = self._text(greeting, "nonce")
            if not self._is_hub:
                self._nonces = f"{nonce}|{self._nonce}"
                return _line({"nonce": self._nonce, "proof": self._proof("other")})
            self._nonces = f"{self._nonce}|{nonce}"
        proof = self._proof("other" if self._is_hub else "hub")
        if not hmac.compare_digest(self._text(greeting, "proof").encode(), proof.encode()):
            consequence = (
                "belongs to another query or program"
                if self._is_hub
                else "is another one than the query's driver"
            )
            raise RemoteProtocolError(
                f"{self._peer}: the process there does not have the query's key, so it {consequence}."
            )
        hub, other = (
            hmac.digest(self._key, f"{side}|{self._nonces}".encode(), "sha256") for side in ("hub", "other")
        )
        self._send_key, self._receive_key = (hub, other) if self._is_hub else (other, hub)
        self.is_open = True
        return _line({"proof": self._proof("hub")}) if self._is_hub else b""

    def _proof(self, side: str) -> str:
        return hmac.digest(self._key, f"proof|{side}|{self._nonces}".encode(), "sha256").hex()

    def _object(self, text: bytes) -> JsonObject:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RemoteProtocolError(
                f"{self._peer}: the process there sent a line that is not JSON ({type(error).__name__}), so "
                "it may be another program."
            ) from error
        if not isinstance(found, dict):
            raise RemoteProtocolError(
                f"{self._peer}: the process there sent a line that is not a JSON object, so it may be "
                "another program."
            )
        return found

    def _text(self, greeting: JsonObject, name: str) -> str:
        value = greeting.get(name)
        if not isinstance(value, str):
            raise RemoteProtocolError(
                f"{self._peer}: the greeting of the process there lacks {name!r}, so the process is another "
                "program, or has another version of pyspark-rocketmq."
            )
        return value


def line_bytes(message: JsonObject) -> int:
    """Return how many bytes a message, or a field of one, takes in a line; see :data:`LONGEST_LINE`."""
    return len(_body(message))


def _body(message: JsonObject) -> bytes:
    # UTF-8, since an escape in ASCII takes 6 bytes or 12. A lone surrogate, which UTF-8 lacks, is written as
    # json.loads reads it.
    text = json.dumps(message, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def _code(key: bytes, number: int, body: bytes) -> bytes:
    return hmac.digest(key, b"%d|%b" % (number, body), "sha256").hex()[:_CODE_CHARS].encode()


def _line(message: Mapping[str, object]) -> bytes:
    return json.dumps(message).encode() + b"\n"
