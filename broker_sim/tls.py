"""TLS of a simulated server: on the same port as plain connections, told apart by their first byte.

Rule 1: no socket here; bytes from the peer go in, plaintext and bytes for the peer come out.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from enum import StrEnum

_HANDSHAKE_MAGIC = 0x16
_RECORD_BYTES = 1 << 16


class TlsMode(StrEnum):
    """Who may connect (``tls.server.mode``)."""

    DISABLED = "disabled"
    """Plain connections only."""
    PERMISSIVE = "permissive"
    """Both kinds."""
    ENFORCING = "enforcing"
    """TLS only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """Certificate and rules of every server of a cluster (``TlsSystemConfig``).

    A real 5.3.3 without certificate makes one for itself (``tls.test.mode.enable``); here TLS is then closed.
    """

    mode: TlsMode = TlsMode.PERMISSIVE
    certificate_file: str | None = None
    """PEM chain of the server (``tls.server.certPath``); None: nobody can connect by TLS."""
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    trust_file: str | None = None
    """PEM of who signs client certificates; given, every client must show one (``need.client.auth``: require)."""

    def context(self) -> ssl.SSLContext | None:
        """What handshakes are made with, None without certificate.

        Raises:
            OSError: If a file cannot be read or does not fit (``ssl.SSLError``).
        """
        if self.certificate_file is None or self.mode is TlsMode.DISABLED:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate_file, self.key_file, self.key_password)
        if self.trust_file is not None:
            context.load_verify_locations(self.trust_file)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


PLAIN = ServerTls()


def is_welcome(first_byte: int, mode: TlsMode, context: ssl.SSLContext | None) -> bool:
    """Whether a connection beginning with ``first_byte`` is served.

    Source: ``NettyRemotingServer.TlsModeHandler``.
    """
    if is_tls(first_byte):
        return mode is not TlsMode.DISABLED and context is not None
    return mode is not TlsMode.ENFORCING


def is_tls(first_byte: int) -> bool:
    """Whether a connection beginning with this byte is a TLS handshake."""
    return first_byte == _HANDSHAKE_MAGIC


class TlsStream:
    """The server's end of one TLS connection."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_established = False

    def receive(self, data: bytes) -> bytes:
        """Take bytes of the peer and return the plaintext they complete; look at :meth:`output` afterwards.

        Raises:
            ssl.SSLError: If the peer is refused or speaks no TLS; what :meth:`output` has tells it why.
        """
        self._incoming.write(data)
        plaintext = bytearray()
        try:
            if not self._is_established:
                self._tls.do_handshake()
                self._is_established = True
            while piece := self._tls.read(_RECORD_BYTES):
                plaintext += piece
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):  # nothing more now, nothing more ever
            pass
        return bytes(plaintext)

    def send(self, plaintext: bytes) -> bytes:
        """Encrypt, once the handshake is over; the bytes for the peer."""
        sent = 0
        view = memoryview(plaintext)
        while sent < len(view):
            sent += self._tls.write(view[sent:])
        return self._outgoing.read()

    def output(self) -> bytes:
        """Bytes for the peer that handshakes and alerts left behind."""
        return self._outgoing.read()
