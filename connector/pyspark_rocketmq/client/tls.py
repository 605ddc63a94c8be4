"""One TLS connection: as ``transport``, encrypted.

An OpenSSL connection must not be read and written at the same moment, so both happen under one lock, without
blocking; waiting for the socket happens outside it.  RocketMQ speaks TLS on the same port as plain text, from
the first byte.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from typing import Final

from pyspark_rocketmq.client.transport import RECEIVE_TICK_S, SEND_STALL_S, open_socket, split_address
from pyspark_rocketmq.errors import ChannelClosed, ConnectFailed, OptionError

_PIECE_BYTES: Final = 256 * 1024
"""Bytes encrypted in one go: bounds how long a reader waits for the lock."""


class TlsConnector:
    """Opens TLS connections that share one set of certificates."""

    def __init__(
        self,
        *,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        key_password: str | None = None,
        verify: bool = True,
    ) -> None:
        try:
            self._context = ssl.create_default_context(cafile=ca_file)
            if not verify:
                self._context.check_hostname = False
                self._context.verify_mode = ssl.CERT_NONE
            if cert_file is not None:
                self._context.load_cert_chain(cert_file, key_file, key_password)
        except OSError as exc:
            files = ", ".join(file for file in (ca_file, cert_file, key_file) if file is not None)
            raise OptionError((f"The TLS files {files} cannot be used: {exc}.",)) from exc

    def connect(self, address: str, timeout_s: float) -> TlsTransport:
        """Connect and shake hands within ``timeout_s`` seconds for each of the two.

        Raises:
            ConnectFailed: If nobody accepts, or the server's certificate does not satisfy.
        """
        connected = open_socket(address, timeout_s)
        try:
            secured = self._context.wrap_socket(connected, server_hostname=split_address(address)[0])
        except OSError as exc:
            connected.close()
            raise ConnectFailed(address, f"the TLS handshake failed: {exc}") from exc
        return TlsTransport(address, secured)


class TlsTransport:
    """A TLS connection; implements :class:`pyspark_rocketmq.client.transport.Transport`."""

    def __init__(self, address: str, secured: ssl.SSLSocket, *, stall_s: float = SEND_STALL_S) -> None:
        self._address = address
        self._secured = secured
        self._secured.setblocking(False)
        self._stall_s = stall_s
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        """``host:port`` of the peer."""
        return self._address

    def sendall(self, data: bytes) -> None:
        """Send all of ``data``.

        Raises:
            ChannelClosed: If the peer is gone, or accepts nothing for ``stall_s``. Part of the data may be
                sent, so the connection is of no use afterwards.
        """
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._send_some(rest[:_PIECE_BYTES]) :]
        except TimeoutError as exc:
            raise ChannelClosed(
                self._address, f"the peer accepted no data for {self._stall_s:.3g} s"
            ) from exc
        except (OSError, ValueError) as exc:  # ValueError: the socket was closed meanwhile
            raise ChannelClosed(self._address, f"sending failed: {exc}") from exc

    def recv_into(self, buffer: memoryview) -> int | None:
        """Receive some bytes: their number, 0 at the end of the stream, None after a silent second.

        Raises:
            ChannelClosed: If the connection was reset or its encryption broken.
        """
        try:
            count = self._receive_some(buffer)
            if count is None and _wait(self._secured, select.POLLIN, RECEIVE_TICK_S):
                count = self._receive_some(buffer)
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return 0
        except (OSError, ValueError) as exc:
            raise ChannelClosed(self._address, f"receiving failed: {exc}") from exc
        return count

    def shutdown(self) -> None:
        """End the connection in both directions, which wakes a thread inside ``recv_into``."""
        with contextlib.suppress(OSError):  # the peer may have ended it already
            # Not SSLSocket.shutdown: it strips the encryption, and a reader would get the raw bytes.
            socket.socket.shutdown(self._secured, socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the socket back."""
        self._secured.close()

    def _send_some(self, piece: memoryview) -> int:
        # After a want, OpenSSL insists on the same piece again.
        while True:
            try:
                with self._lock:
                    return self._secured.send(piece)
            except ssl.SSLWantWriteError:
                is_ready = _wait(self._secured, select.POLLOUT, self._stall_s)
            except ssl.SSLWantReadError:
                is_ready = _wait(self._secured, select.POLLIN, self._stall_s)
            if not is_ready:
                raise TimeoutError

    def _receive_some(self, buffer: memoryview) -> int | None:
        try:
            with self._lock:
                return self._secured.recv_into(buffer)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None


def _wait(waiting: socket.socket, event: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(waiting, event)
    return bool(poll.poll(timeout_s * 1000))
