"""One TLS connection: like ``transport``, but encrypted.

An OpenSSL connection must not be read and written at the same moment, so both happen under one lock, without
blocking. Waiting for the socket happens outside the lock.  RocketMQ speaks TLS on the same port as plain
text, from the first byte.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Final

from pyspark_rocketmq.client.transport import (
    RECEIVE_TICK_S,
    SEND_STALL_S,
    SendingTime,
    open_socket,
    reset_at_close,
    split_address,
)
from pyspark_rocketmq.errors import ChannelClosed, ConnectFailed, OptionError, TlsFailed

_PIECE_BYTES: Final = 256 * 1024
"""Bytes encrypted in one call, which bounds how long a reader waits for the lock."""
_OTHER_HOST: Final = frozenset({62, 64})
"""OpenSSL's codes ``X509_V_ERR_HOSTNAME_MISMATCH`` and ``X509_V_ERR_IP_ADDRESS_MISMATCH``."""
_NOT_VALID_NOW: Final = frozenset({9, 10})
"""OpenSSL's codes ``X509_V_ERR_CERT_NOT_YET_VALID`` and ``X509_V_ERR_CERT_HAS_EXPIRED``."""
_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"})
"""OpenSSL's reasons for an error if a server answers the handshake with something else than TLS."""


class TlsConnector:
    """Opens TLS connections that share one set of certificates."""

    def __init__(
        self,
        *,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        key_password: str | None = None,
        verify_certificate: bool = True,
        verify_hostname: bool = True,
    ) -> None:
        self._context = _context(ca_file)
        if not (verify_certificate and verify_hostname):
            self._context.check_hostname = False
        if not verify_certificate:
            self._context.verify_mode = ssl.CERT_NONE
        if cert_file is not None:
            # Without this callback OpenSSL would ask for a missing password at the terminal.
            password = key_password or ""
            with _reporting("tlsCertFile, tlsKeyFile and tlsKeyPassword", cert_file, key_file):
                self._context.load_cert_chain(cert_file, key_file, lambda: password)

    def connect(self, address: str, timeout_s: float) -> TlsTransport:
        """Connect and shake hands, each within ``timeout_s``.

        Raises:
            ConnectFailed: If the address is malformed, nobody accepts, or the handshake takes too long or
                fails in another way.
            TlsFailed: If one side does not trust the other, or the server does not speak TLS 1.2 or later.
                With TLS 1.3 a server checks the client's certificate only after this call: then ``sendall``
                or ``recv_into`` raises this error.
        """
        connected = open_socket(address, timeout_s)
        try:
            secured = self._context.wrap_socket(connected, server_hostname=split_address(address)[0])
        except OSError as exc:
            connected.close()
            raise _handshake_error(address, exc) from exc
        return TlsTransport(address, secured)


def _context(ca_file: str | None) -> ssl.SSLContext:
    with _reporting("tlsCaFile", ca_file):
        return ssl.create_default_context(cafile=ca_file)


@contextlib.contextmanager
def _reporting(options: str, *files: str | None) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        named = ", ".join(file for file in files if file is not None)
        raise OptionError(
            (f"{named} cannot be used: {exc}. Correct {options}; the files must be on every machine",)
        ) from exc


def _handshake_error(address: str, failure: OSError) -> ConnectFailed:
    """Return an error that explains a failed handshake to the operator."""
    if isinstance(failure, ssl.SSLCertVerificationError):
        complaint = failure.verify_message.rstrip(".")
        if failure.verify_code in _OTHER_HOST:
            return TlsFailed(
                address,
                f"the server's certificate is for another host: {complaint}. Put the address into the "
                "certificate's subjectAltName, or set tlsVerifyHostname=false.",
            )
        if failure.verify_code in _NOT_VALID_NOW:
            return TlsFailed(
                address,
                f"the server's certificate, or one in its chain, is not valid now: {complaint}. Renew the "
                "certificate, and check this machine's clock.",
            )
        return TlsFailed(
            address,
            f"the server's certificate is not trusted: {complaint}. Set tlsCaFile to the authority "
            "that signed it.",
        )
    if isinstance(failure, ssl.SSLError) and failure.reason in _NO_TLS:
        return TlsFailed(
            address,
            "the server does not speak TLS. Set useTls=false, or tls.server.mode=enforcing on the server.",
        )
    if isinstance(failure, ssl.SSLError) and "ALERT" in (failure.reason or ""):
        return _alert_error(address, failure)
    return ConnectFailed(
        address,
        f"the TLS handshake failed: {failure}. If the server has TLS switched off "
        "(tls.server.mode=disabled), set useTls=false",
    )


def _alert_error(address: str, alert: ssl.SSLError) -> TlsFailed:
    reason = (alert.reason or "alert").lower().replace("_", " ")
    if "protocol version" in reason:
        return TlsFailed(
            address,
            "the server offers no TLS version that is accepted here; at least 1.2 is needed. Run the server "
            "on a newer Java, or allow TLS 1.2 in its Java (jdk.tls.disabledAlgorithms).",
        )
    return TlsFailed(
        address,
        f"the server refused the connection: {reason}. If it requires client certificates, set tlsCertFile "
        "to a certificate from an authority that the server trusts, and tlsKeyFile to the certificate's key.",
    )


class TlsTransport:
    """A TLS connection; implements :class:`pyspark_rocketmq.client.transport.Transport`."""

    def __init__(self, address: str, secured: ssl.SSLSocket, *, stall_s: float = SEND_STALL_S) -> None:
        self.address = address
        self._secured = secured
        self._secured.setblocking(False)
        self._stall_s = stall_s
        self._lock = threading.Lock()
        self._alert: ssl.SSLError | None = None
        """The alert with which the server refused this client."""

    def sendall(self, data: bytes, timeout_s: float = math.inf) -> None:
        """Send all of ``data``, encrypted; time limits and errors are those of :class:`Transport`."""
        rest = memoryview(data)
        time_left = SendingTime(len(data), timeout_s, self._stall_s)
        try:
            while rest:
                rest = rest[self._send_some(rest[:_PIECE_BYTES], time_left) :]
        except TimeoutError as exc:
            raise ChannelClosed(self.address, time_left.complaint(len(rest))) from exc
        except (OSError, ValueError) as exc:  # ValueError: the socket was closed meanwhile
            # The alert with the reason may have been received by another thread, or by no thread yet.
            with contextlib.suppress(OSError, ValueError):
                self._receive_some(memoryview(bytearray(1)))
            self._raise_refusal()
            raise ChannelClosed(self.address, f"sending failed: {exc}") from exc

    def recv_into(self, buffer: memoryview) -> int | None:
        """Receive some decrypted bytes; return their number, 0 at the end, None after a silent second.

        Errors are those of :class:`Transport`.
        """
        try:
            count = self._receive_some(buffer)
            if count is None and _wait(self._secured, select.POLLIN, RECEIVE_TICK_S):
                count = self._receive_some(buffer)
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return 0
        except (OSError, ValueError) as exc:
            self._raise_refusal()
            raise ChannelClosed(self.address, f"receiving failed: {exc}") from exc
        return count

    def await_bytes(self, count: int) -> bool:  # noqa: ARG002
        """Do nothing and return False: OpenSSL may need less than ``count`` bytes, the rest of a record."""
        return False

    def fileno(self) -> int:
        """Return the socket's number; the system reports it readable when encrypted bytes have arrived.

        ``recv_into`` leaves no decrypted bytes behind, so all others are still in the socket.
        """
        return self._secured.fileno()

    def discard_unsent(self) -> None:
        """Have the system discard, when the connection is closed, what the peer has not received by then."""
        reset_at_close(self._secured)

    def shutdown(self) -> None:
        """End the connection in both directions, which wakes a thread inside ``recv_into``. Idempotent."""
        with contextlib.suppress(OSError):  # the peer may have ended it already
            # Not SSLSocket.shutdown: it strips the encryption, and a reader would get the raw bytes.
            socket.socket.shutdown(self._secured, socket.SHUT_RDWR)

    def close(self) -> None:
        """Release the operating system's resources. Idempotent; no thread may be inside another call."""
        self._secured.close()

    def _send_some(self, piece: memoryview, time_left: SendingTime) -> int:
        # After SSLWantRead or SSLWantWrite, OpenSSL needs the same piece again.
        while True:
            try:
                with self._lock:
                    return self._secured.send(piece)
            except ssl.SSLWantWriteError:
                is_ready = _wait(self._secured, select.POLLOUT, time_left.next_s())
            except ssl.SSLWantReadError:
                is_ready = _wait(self._secured, select.POLLIN, time_left.next_s())
            if not is_ready:
                raise TimeoutError

    def _receive_some(self, buffer: memoryview) -> int | None:
        with self._lock:
            try:
                return self._secured.recv_into(buffer)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return None
            except ssl.SSLError as exc:
                # In TLS 1.3 a server refuses the client's certificate only after the handshake has ended for
                # the client.
                if "ALERT" in (exc.reason or ""):
                    self._alert = exc
                raise

    def _raise_refusal(self) -> None:
        if self._alert is not None:
            raise _alert_error(self.address, self._alert) from self._alert


def _wait(waiting: socket.socket, event: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(waiting, event)
    return bool(poll.poll(timeout_s * 1000))
