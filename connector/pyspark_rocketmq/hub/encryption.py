"""TLS between a query's own processes, with a certificate that is made for one start of the query.

No authority vouches for the certificate and it names no host. Its fingerprint travels with the hub's key, so
a client accepts this certificate and no other; the client proves itself with the key, as without encryption.

The command ``openssl`` makes key and certificate: Python's ``ssl`` cannot, its pre-shared keys need Python
3.13 and end with TLS 1.2, and a library would be a dependency for two calls. The private key goes through
pipes only, so it is on no disk and in no command line.

An :class:`Encryption` does no I/O: bytes in, bytes out.
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
    # Nobody looks at either.
    *("-subj", "/CN=pyspark-rocketmq", "-days", "3650"),
)
_PIECE_BYTES: Final = 1 << 18
_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"})
"""Reasons of errors if the other side sends something other than a handshake."""


class HubCertificate(NamedTuple):
    """A certificate with its private key, as the hub uses it."""

    context: ssl.SSLContext
    fingerprint: bytes
    """SHA-256 of the certificate."""

    @classmethod
    def new(cls) -> HubCertificate:
        """Make a certificate.

        Raises:
            OSError: If the command ``openssl`` is not there, or fails.
        """
        key = _openssl(_NEW_KEY, b"")
        certificate = _openssl(_NEW_CERTIFICATE, key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # Sessions are not resumed.
        context.num_tickets = 0
        with _readable(certificate) as certificate_file, _readable(key) as key_file:
            context.load_cert_chain(certificate_file, key_file)
        return cls(context, sha256(ssl.PEM_cert_to_DER_cert(certificate.decode())).digest())


class Encryption:
    """One end of an encrypted connection. Its methods may raise ``RemoteProtocolError``, which ends it."""

    def __init__(self, peer: str, context: ssl.SSLContext, fingerprint: bytes, *, is_hub: bool) -> None:
        """Begin; :meth:`of_hub` and :meth:`of_client` call this."""
        self._peer = peer
        self._fingerprint = fingerprint
        self._is_hub = is_hub
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=is_hub)
        self._waiting = bytearray()
        """Bytes to encrypt after the handshake."""
        self.is_ready = False
        """Whether the handshake is over, and the hub is the right one."""

    @classmethod
    def of_hub(cls, peer: str, certificate: HubCertificate) -> Encryption:
        """Return the hub's end of a connection."""
        return cls(peer, certificate.context, certificate.fingerprint, is_hub=True)

    @classmethod
    def of_client(cls, peer: str, fingerprint: bytes) -> Encryption:
        """Return the end of a process that connects to the hub with this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # The fingerprint is compared instead.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return cls(peer, context, fingerprint, is_hub=False)

    def encrypt(self, data: bytes | bytearray) -> bytes:
        """Return the bytes to send for ``data``, with those of the handshake that are due before them."""
        self._waiting += data
        if not self._is_hub and not self.is_ready:
            self._shake_hands()
        if self.is_ready and self._waiting:
            self._tls.write(self._waiting)
            self._waiting.clear()
        return self._outgoing.read()

    def decrypt(self, data: bytes) -> bytes:
        """Take the next bytes received; return those that the other side encrypted.

        Call :meth:`encrypt` after it, also without data: an answer of the handshake may be due.
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
            raise RemoteProtocolError(f"{self._peer}: its bytes cannot be decrypted: {error}.") from error

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
                    f"{self._peer}: it has another certificate than the query's driver, so it is not the "
                    "query's hub."
                )
        self.is_ready = True

    def _refusal(self, error: ssl.SSLError) -> RemoteProtocolError:
        if error.reason not in _NO_TLS:
            return RemoteProtocolError(f"{self._peer}: the TLS handshake failed: {error}.")
        if self._is_hub:
            return RemoteProtocolError(
                f"{self._peer}: it does not encrypt, but this query's driver does, because Spark encrypts "
                "its network. Run the same release of pyspark-rocketmq everywhere."
            )
        return RemoteProtocolError(
            f"{self._peer}: it does not encrypt, but the query's driver does, so it is not the query's hub. "
            "Another process may listen at the driver's port by now."
        )


def _openssl(arguments: Sequence[str], given: bytes) -> bytes:
    """Return the output of the command for ``given`` as its input."""
    program = shutil.which("openssl")
    if program is None:
        raise OSError(
            "Spark encrypts its network, and no command openssl makes the certificate with which this query "
            "does so, too; install OpenSSL on the driver's machine"
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
    """Return a path where ``content``, smaller than a pipe's buffer, can be read once; it is on no disk."""
    reading, writing = os.pipe()
    try:
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(content)
        yield f"/dev/fd/{reading}"
    finally:
        os.close(reading)
