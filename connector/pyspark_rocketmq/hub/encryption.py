"""TLS on the connections from a query's planner and tasks to its driver, whose server is called the *hub*.

The driver makes a new certificate at each start of a query. No authority has signed the certificate, and it
names no host. Spark brings its fingerprint to planner and tasks together with the hub's secret key, and they
accept only a certificate with this fingerprint. They prove themselves with the key, as without encryption.

The command ``openssl`` makes private key and certificate, because Python's ``ssl`` cannot make certificates.
Pre-shared keys in ``ssl`` need Python 3.13 and work only up to TLS 1.2, and a library would be a dependency
for two calls. The private key passes only through pipes, so it is on no disk and in no command line.

An :class:`Encryption` does no I/O: it takes bytes and returns bytes.
"""

from __future__ import annotations

import hmac
import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Final, NamedTuple

from pyspark_rocketmq.errors import RemoteProtocolError

_COMMAND_S: Final = 10.0
_NEW_KEY: Final = ("ecparam", "-name", "prime256v1", "-genkey", "-noout")
_NEW_CERTIFICATE: Final = (
    *("req", "-x509", "-new", "-key", "/dev/stdin"),
    # Name and end are required, but clients check neither.
    *("-subj", "/CN=pyspark-rocketmq", "-days", "3650"),
)
_PIECE_BYTES: Final = 1 << 18
_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"})
"""OpenSSL's error reasons that show that the other side does not use TLS."""


class HubCertificate(NamedTuple):
    """TLS settings of the hub, the driver's server, with its certificate and private key."""

    context: ssl.SSLContext
    fingerprint: bytes
    """SHA-256 of the certificate, by which clients recognize it."""

    @classmethod
    def new(cls) -> HubCertificate:
        """Make a new private key, and a self-signed certificate for it.

        Raises:
            OSError: If the command ``openssl`` is missing or fails.
        """
        key = _openssl(_NEW_KEY, b"")
        certificate = _openssl(_NEW_CERTIFICATE, key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # A ticket serves to resume a TLS session, which no client does.
        context.num_tickets = 0
        with _readable(certificate) as certificate_file, _readable(key) as key_file:
            context.load_cert_chain(certificate_file, key_file)
        return cls(context, sha256(ssl.PEM_cert_to_DER_cert(certificate.decode())).digest())


class Encryption:
    """TLS at one end of a connection: turns data into encrypted bytes and back, without I/O.

    Its methods raise ``RemoteProtocolError`` if the connection must be closed.
    """

    def __init__(self, peer: str, context: ssl.SSLContext, fingerprint: bytes, *, is_hub: bool) -> None:
        """Prepare the handshake; call :meth:`of_hub` or :meth:`of_client` instead."""
        self._peer = peer
        self._fingerprint = fingerprint
        self._is_hub = is_hub
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=is_hub)
        self._waiting = bytearray()
        """Bytes to send that are encrypted when the handshake is over."""
        self.is_ready = False
        """Whether the handshake is over and, at a client's end, the hub has shown the right certificate."""

    @classmethod
    def of_hub(cls, peer: str, certificate: HubCertificate) -> Encryption:
        """Return the encryption for the hub's end (the driver's) of a new connection."""
        return cls(peer, certificate.context, certificate.fingerprint, is_hub=True)

    @classmethod
    def of_client(cls, peer: str, fingerprint: bytes) -> Encryption:
        """Return the encryption for a new connection at the end of a planner or worker.

        The handshake fails unless the SHA-256 of the hub's certificate is ``fingerprint``.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # _shake_hands compares the certificate's fingerprint instead.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return cls(peer, context, fingerprint, is_hub=False)

    def encrypt(self, data: bytes | bytearray) -> bytes:
        """Encrypt ``data``; return the bytes to send now, those of the TLS handshake first.

        Until the handshake is over, ``data`` is kept. The first call after the handshake returns it
        encrypted.
        """
        self._waiting += data
        if not self._is_hub and not self.is_ready:
            self._shake_hands()
        if self.is_ready and self._waiting:
            self._tls.write(self._waiting)
            self._waiting.clear()
        return self._outgoing.read()

    def decrypt(self, data: bytes) -> bytes:
        """Decrypt the next received bytes; return the other side's data, which may be empty.

        Then call :meth:`encrypt`, with empty data if there is nothing to send: the handshake may have bytes
        to send.
        """
        self._incoming.write(data)
        if not self.is_ready:
            self._shake_hands()
        return b"".join(self._decrypted()) if self.is_ready else b""

    def _decrypted(self) -> Iterator[bytes]:
        try:
            while piece := self._tls.read(_PIECE_BYTES):
                yield piece
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise RemoteProtocolError(
                f"{self._peer}: bytes cannot be decrypted: {error}. If this happens again, look for what "
                "changes data between executors and driver."
            ) from error

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise self._refusal(error) from error
        if not self._is_hub:
            found = sha256(self._tls.getpeercert(binary_form=True) or b"").digest()
            if not hmac.compare_digest(found, self._fingerprint):
                raise RemoteProtocolError(
                    f"{self._peer}: the certificate there is not that of the query's driver, so another "
                    "process uses this address now. Look at the driver's log: the query may have ended."
                )
        self.is_ready = True

    def _refusal(self, error: ssl.SSLError) -> RemoteProtocolError:
        if error.reason not in _NO_TLS:
            return RemoteProtocolError(f"{self._peer}: the TLS handshake failed: {error}.")
        if self._is_hub:
            return RemoteProtocolError(
                f"{self._peer}: the process there does not encrypt, but this query's driver does, because "
                "Spark encrypts its network. Install the same release of pyspark-rocketmq on all machines."
            )
        return RemoteProtocolError(
            f"{self._peer}: the process there does not encrypt, but the query's driver does, so another "
            "process uses the driver's port now. Look at the driver's log: the query may have ended."
        )


def _openssl(arguments: Sequence[str], given: bytes) -> bytes:
    """Run the command ``openssl`` with ``given`` as its input; return its output.

    Raises:
        OSError: If the command is missing, fails, or takes longer than ten seconds.
    """
    program = shutil.which("openssl")
    if program is None:
        raise OSError(
            "the command openssl is missing on the driver's machine; Spark encrypts its network, and the "
            "query needs the command to make a certificate for its own connections. Install OpenSSL there"
        )
    try:
        ended = subprocess.run(  # noqa: S603 - constant arguments
            [program, *arguments], input=given, capture_output=True, timeout=_COMMAND_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{program} {arguments[0]} did not end within {_COMMAND_S:g} s") from error
    if ended.returncode != 0:
        reason = (ended.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise OSError(f"{program} {arguments[0]} failed: {reason}")
    return ended.stdout


@contextmanager
def _readable(content: bytes) -> Iterator[str]:
    """Yield a path from which ``content`` can be read once, through a pipe and not from a disk.

    ``content`` must be smaller than a pipe's buffer.
    """
    reading, writing = os.pipe()
    try:
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(content)
        yield f"/dev/fd/{reading}"
    finally:
        os.close(reading)
