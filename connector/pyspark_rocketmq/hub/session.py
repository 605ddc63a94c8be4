"""What goes over a connection to a query's hub: lines of JSON between two ends that know one key.

The key itself never travels.  The hub greets with a random number; who connects answers with one of its own
and with a proof made from both; the hub proves itself in the same way.  From then on every line begins with a
code made from a key of this connection, of this direction and of the line's number, so that nobody can add,
repeat or reorder lines.  Nothing is encrypted.

No I/O here: bytes in, messages out.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark_rocketmq.errors import LocalProtocolError, RemoteProtocolError
from pyspark_rocketmq.model import MessageQueue

_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class HubAddress:
    """Host, port and key; its repr leaves the key out."""

    host: str
    port: int
    key: bytes = field(repr=False)

    @classmethod
    def new(cls, host: str, port: int) -> HubAddress:
        """An address with a random key."""
        return cls(host, port, secrets.token_bytes(_KEY_BYTES))

    @classmethod
    def parse(cls, text: str) -> HubAddress:
        """The reverse of :meth:`to_text`.

        Raises:
            LocalProtocolError: If it is not; the text is not shown.
        """
        place, _, key = text.rpartition("/")
        host, _, port = place.rpartition(":")
        try:
            return cls(host, int(port), bytes.fromhex(key))
        except ValueError:
            raise LocalProtocolError("The address of a query's hub is not HOST:PORT/KEY.") from None

    def to_text(self) -> str:
        """As an option can carry it: a secret."""
        return f"{self.host}:{self.port}/{self.key.hex()}"


LONGEST_GREETING: Final = 512
"""Bytes of a line of somebody who has proved nothing yet."""
LONGEST_LINE: Final = 8 << 20
"""Bytes of a line after that."""

_VERSION: Final = 1
_CODE_CHARS: Final = 32
_NONCE_BYTES: Final = 16

Message = dict[str, Any]
"""A JSON object."""


class LineBuffer:
    """Cuts received bytes into lines."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._rest = bytearray()
        self.longest = LONGEST_GREETING
        """Bytes that a line may have."""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that end in ``data``, without their ends.

        Raises:
            RemoteProtocolError: If a line is longer than it may be.
        """
        end = data.rfind(b"\n") + 1
        lines = bytes(self._rest + data[:end]).split(b"\n")[:-1] if end else []
        self._rest = bytearray(data[end:]) if end else self._rest + data
        if any(len(line) > self.longest for line in (*lines, self._rest)):
            raise RemoteProtocolError(f"{self._peer}: a line has more than {self.longest} bytes.")
        return lines


class Session:
    """The lines of one connection, in both directions, once both have proved who they are."""

    def __init__(self, peer: str, key: bytes, nonces: str, *, is_hub: bool) -> None:
        hub, other = (hmac.digest(key, f"{side}|{nonces}".encode(), "sha256") for side in ("hub", "other"))
        self._peer = peer
        self._send_key, self._receive_key = (hub, other) if is_hub else (other, hub)
        self._sent = self._received = 0

    def seal(self, message: Mapping[str, Any]) -> bytes:
        """The next line to send."""
        body = json.dumps(message, separators=(",", ":")).encode()
        line = _code(self._send_key, self._sent, body) + body + b"\n"
        self._sent += 1
        return line

    def open(self, line: bytes) -> Message:
        """The message of the next line received.

        Raises:
            RemoteProtocolError: If it is not the next line that the other side wrote.
        """
        code, body = line[:_CODE_CHARS], line[_CODE_CHARS:]
        if not hmac.compare_digest(code, _code(self._receive_key, self._received, body)):
            raise RemoteProtocolError(
                f"{self._peer}: a line was not written by whom this connection is with."
            )
        self._received += 1
        return _object(self._peer, body)


class Greeting:
    """The hub's side of the beginning of a connection."""

    def __init__(self, peer: str, key: bytes) -> None:
        self._peer = peer
        self._key = key
        self._nonce = secrets.token_hex(_NONCE_BYTES)

    def first_line(self) -> bytes:
        """What the hub says first."""
        return _line({"v": _VERSION, "nonce": self._nonce})

    def receive(self, line: bytes) -> tuple[bytes, Session]:
        """Judge the answer; what to send in return, and the session that begins.

        Raises:
            RemoteProtocolError: If it is no answer, or its proof is wrong.
        """
        said = _object(self._peer, line)
        nonces = f"{self._nonce}|{_text(self._peer, said, 'nonce')}"
        proof = _text(self._peer, said, "proof")
        if not hmac.compare_digest(proof.encode(), _proof(self._key, "other", nonces).encode()):
            raise RemoteProtocolError(f"{self._peer}: it does not know the query's key.")
        answer = _line({"proof": _proof(self._key, "hub", nonces)})
        return answer, Session(self._peer, self._key, nonces, is_hub=True)


class Introduction:
    """The other side of it."""

    def __init__(self, peer: str, key: bytes) -> None:
        self._peer = peer
        self._key = key
        self._nonces = ""

    def receive(self, line: bytes) -> tuple[bytes, Session | None]:
        """Take the hub's next line; what to send in return, and the session once it has begun.

        Raises:
            RemoteProtocolError: If it is no such line, or the hub cannot prove that it knows the key.
        """
        said = _object(self._peer, line)
        if not self._nonces:
            own = secrets.token_hex(_NONCE_BYTES)
            self._nonces = f"{_text(self._peer, said, 'nonce')}|{own}"
            return _line({"nonce": own, "proof": _proof(self._key, "other", self._nonces)}), None
        proof = _text(self._peer, said, "proof")
        if not hmac.compare_digest(proof.encode(), _proof(self._key, "hub", self._nonces).encode()):
            raise RemoteProtocolError(
                f"{self._peer}: it does not know the query's key, so it is not the query's hub."
            )
        return b"", Session(self._peer, self._key, self._nonces, is_hub=False)


def listed(queues: Iterable[MessageQueue]) -> list[list[str | int]]:
    """Queues as a message carries them; the reverse of :func:`queue_list`."""
    return [[queue.topic, queue.broker_name, queue.queue_id] for queue in sorted(queues)]


def queue_list(queues: object, peer: str = "hub") -> frozenset[MessageQueue]:
    """The queues that a message carries.

    Raises:
        RemoteProtocolError: If they are none.
    """
    try:
        return frozenset(
            MessageQueue(str(topic), str(broker_name), int(queue_id))
            for topic, broker_name, queue_id in queues  # type: ignore[attr-defined]
        )
    except (TypeError, ValueError) as error:
        raise RemoteProtocolError(f"{peer}: a list of queues is none: {error}.") from error


def _code(key: bytes, number: int, body: bytes) -> bytes:
    return hmac.digest(key, b"%d|%b" % (number, body), "sha256").hex()[:_CODE_CHARS].encode()


def _proof(key: bytes, side: str, nonces: str) -> str:
    return hmac.digest(key, f"proof|{side}|{nonces}".encode(), "sha256").hex()


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _object(peer: str, text: bytes) -> Message:
    try:
        said = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"{peer}: a line is no JSON: {type(error).__name__}.") from error
    if not isinstance(said, dict):
        raise RemoteProtocolError(f"{peer}: a line is no JSON object.")
    return said


def _text(peer: str, said: Message, name: str) -> str:
    value = said.get(name)
    if not isinstance(value, str):
        raise RemoteProtocolError(f"{peer}: a line has no {name}.")
    return value
