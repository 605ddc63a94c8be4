"""One accepted connection: conversion of bytes to commands and back, TLS, idle time, and stalled peers.

TLS uses the same port as plain connections; the first byte distinguishes them. There is no socket in the TLS
code: bytes from the peer go in, plaintext and bytes for the peer come out.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from broker_sim.layout import Host
from broker_sim.replies import Peer
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.framing import FrameDecoder

_logger = logging.getLogger(__name__)

_HANDSHAKE_MAGIC = 0x16
_RECORD_BYTES = 1 << 16


class TlsMode(StrEnum):
    """Kinds of connections that are accepted (``tls.server.mode``)."""

    DISABLED = "disabled"
    """Plain connections only."""
    PERMISSIVE = "permissive"
    """Both kinds."""
    ENFORCING = "enforcing"
    """TLS only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """Certificate and rules of every server of a cluster (``TlsSystemConfig``).

    Without a certificate, a real 5.3.3 creates its own (``tls.test.mode.enable``); here TLS is refused then.
    """

    mode: TlsMode = TlsMode.PERMISSIVE
    certificate_file: str | None = None
    """PEM chain of the server (``tls.server.certPath``); None: nobody can connect by TLS."""
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    trust_file: str | None = None
    """PEM of the authority that signs client certificates. If given, every client must present one
    (``need.client.auth``: require)."""

    def context(self) -> ssl.SSLContext | None:
        """Create the context for handshakes; None without a certificate.

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
    """Whether a connection that begins with ``first_byte`` is served.

    Source: ``NettyRemotingServer.TlsModeHandler``.
    """
    if is_tls(first_byte):
        return mode is not TlsMode.DISABLED and context is not None
    return mode is not TlsMode.ENFORCING


def is_tls(first_byte: int) -> bool:
    """Whether a connection that begins with this byte is a TLS handshake."""
    return first_byte == _HANDSHAKE_MAGIC


class TlsStream:
    """The server's end of one TLS connection."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_established = False

    def receive(self, data: bytes) -> bytes:
        """Take encrypted bytes of the peer; return the plaintext that they complete, which may be empty.

        Send :meth:`output` to the peer afterwards.

        Raises:
            ssl.SSLError: If the peer is refused or does not speak TLS; :meth:`output` has an alert for it.
        """
        self._incoming.write(data)
        plaintext = bytearray()
        try:
            if not self._is_established:
                self._tls.do_handshake()
                self._is_established = True
            while piece := self._tls.read(_RECORD_BYTES):
                plaintext += piece
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):  # no more data now, or ever
            pass
        return bytes(plaintext)

    def send(self, plaintext: bytes) -> bytes:
        """Encrypt ``plaintext``, after the handshake; return the bytes to send to the peer."""
        sent = 0
        view = memoryview(plaintext)
        while sent < len(view):
            sent += self._tls.write(view[sent:])
        return self._outgoing.read()

    def output(self) -> bytes:
        """Return the bytes of handshakes and alerts to send to the peer; empty if there are none."""
        return self._outgoing.read()


class Owner(Protocol):
    """The server to which a :class:`Connection` belongs, and which the connection calls on the event loop."""

    @property
    def clock(self) -> Clock:
        """Clock that measures idle time."""
        ...

    def opened(self, connection: Connection) -> int:
        """Take a new connection; return its number. The connection may be closed when this returns."""
        ...

    def welcome(self, first_byte: int) -> bool:
        """Return whether a connection whose first byte is this one is served."""
        ...

    def tls_context(self) -> ssl.SSLContext:
        """Return the context for the TLS handshake of a connection that is served."""
        ...

    def may_hold(self, more: int) -> bool:
        """Add ``more``, perhaps negative, to the number of bytes of unfinished frames that the server holds.

        Return False if these are too many now; then the connection must end.
        """
        ...

    def received(self, connection: Connection, peer: Peer, command: RemotingCommand) -> None:
        """Serve one command that has arrived on the connection."""
        ...

    def closed(self, connection: Connection, peer: Peer) -> None:
        """Forget a connection that has ended."""
        ...


class Connection(asyncio.Protocol):
    """One connection of a client to a server of the simulator, as asyncio's protocol.

    Bytes that do not follow the remoting protocol close it without an answer, as in Netty.
    """

    def __init__(self, owner: Owner, host: Host) -> None:
        self._owner = owner
        self._clock = owner.clock
        self._decoder = FrameDecoder()
        self._held = 0
        """Number of bytes of the connection's unfinished frame, as reported to the owner."""
        self._transport: asyncio.Transport | None = None
        self._tls: TlsStream | None = None
        self._is_new = True
        self._is_stalled = False
        self.peer = Peer(0, host)
        self.last_active_s = self._clock.monotonic_s()
        """Monotonic second at which bytes last arrived or were sent."""
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register with the owner, which may have closed the connection when this returns."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.peer = Peer(self._owner.opened(self), self.peer.host)

    def data_received(self, data: bytes) -> None:
        """Serve the commands that ``data`` completes.

        Close the connection if its bytes do not follow the protocol, or if the server has too many bytes of
        unfinished frames.
        """
        if self._is_stalled:
            return
        self.last_active_s = self._clock.monotonic_s()
        try:
            commands = self._decoder.feed(self._plaintext(data))
        except (RemoteProtocolError, ssl.SSLError) as error:
            _logger.warning("%s sent no remoting protocol and is disconnected: %s", self.peer.host, error)
            self.close()
            return
        more = self._decoder.pending - self._held
        self._held += more
        if not self._owner.may_hold(more):
            _logger.warning(
                "%s is disconnected: the server holds too many bytes of unfinished frames", self.peer.host
            )
            self.abort()
            return
        for command in commands:
            if self._transport is None or self._transport.is_closing() or self._is_stalled:
                return
            self._owner.received(self, self.peer, command)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Report the end to the owner."""
        self._transport = None
        self._owner.may_hold(-self._held)
        self._owner.closed(self, self.peer)
        self.lost.set_result(None)

    def pause_writing(self) -> None:
        """Take no more requests from a peer that does not read its answers."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Take requests again from a peer that reads again."""
        if self._transport is not None and not self._transport.is_closing() and not self._is_stalled:
            self._transport.resume_reading()

    def send(self, data: bytes) -> None:
        """Write ``data``, encrypted with TLS; do nothing if the connection is ending or stalled."""
        transport = self._transport
        if transport is not None and not self._is_stalled and not transport.is_closing():
            self.last_active_s = self._clock.monotonic_s()
            transport.write(data if self._tls is None else self._tls.send(data))

    def stall(self) -> None:
        """Stop reading and writing for ever; the connection stays open, and the peer is not informed."""
        self._is_stalled = True
        if self._transport is not None:
            self._transport.pause_reading()

    def close(self) -> None:
        """End the connection after the bytes written so far."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection immediately."""
        if self._transport is not None:
            self._transport.abort()

    def _plaintext(self, data: bytes) -> bytes:
        if self._is_new:
            self._is_new = False
            if not self._owner.welcome(data[0]):
                kind = "TLS" if is_tls(data[0]) else "plain"
                raise RemoteProtocolError(f"A {kind} connection is not welcome here.")
            if is_tls(data[0]):
                self._tls = TlsStream(self._owner.tls_context())
        if self._tls is None:
            return data
        try:
            return self._tls.receive(data)
        finally:
            output = self._tls.output()
            if output and self._transport is not None:
                self._transport.write(output)
