"""Certificates for TLS tests, made by openssl: signed by an authority,
or self-signed.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

KEY_PASSWORD = "open-sesame-9f2b"


class Certificate(NamedTuple):
    """PEM files of a certificate and its private key (PKCS#8, as Java wants it)."""

    certificate: Path
    key: Path


class Authority:
    """A new certificate authority in ``folder``, which must exist."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        self._folder = folder
        self.own = Certificate(folder / "ca.pem", folder / "ca-key.pem")
        _openssl(
            *("req", "-x509", *_new_key(self.own.key), "-noenc", "-days", "2", "-subj", f"/CN={name}"),
            *("-addext", "keyUsage=critical,keyCertSign", "-out", self.own.certificate),
        )

    def issue(self, name: str, host: str = "IP:127.0.0.1", *, password: str | None = None) -> Certificate:
        """Sign a certificate for ``host`` (``IP:…`` or ``DNS:…``), good for servers and for clients."""
        return signed_by(self.own, self._folder, name, host, password=password)

    def issue_expired(self, name: str) -> Certificate:
        """Sign an expired certificate for 127.0.0.1."""
        made, request, extension = (
            _files(self._folder, name),
            self._folder / f"{name}.csr",
            self._folder / f"{name}.ext",
        )
        _openssl("req", "-new", *_new_key(made.key), "-noenc", "-subj", f"/CN={name}", "-out", request)
        extension.write_text("subjectAltName=IP:127.0.0.1\n")
        _openssl(
            *("x509", "-req", "-in", request, "-CA", self.own.certificate, "-CAkey", self.own.key),
            *("-days", "-1", "-extfile", extension, "-out", made.certificate),
        )
        return made


def self_signed(folder: Path, name: str = "server") -> Certificate:
    """Make a self-signed certificate for 127.0.0.1, which also serves as an authority."""
    made = _files(folder, name)
    _openssl(
        *("req", "-x509", *_new_key(made.key), "-noenc", "-days", "2", "-subj", f"/CN={name}"),
        *("-addext", "subjectAltName=IP:127.0.0.1", "-out", made.certificate),
    )
    return made


def signed_by(
    authority: Certificate,
    folder: Path,
    name: str,
    host: str = "IP:127.0.0.1",
    *,
    password: str | None = None,
) -> Certificate:
    """Make a certificate signed by ``authority``; encrypt its key if there is a password."""
    made = _files(folder, name)
    cipher = ("-noenc",) if password is None else ("-passout", f"pass:{password}")
    _openssl(
        *("req", "-x509", *_new_key(made.key), *cipher, "-days", "2", "-subj", f"/CN={name}"),
        *("-CA", authority.certificate, "-CAkey", authority.key),
        *("-addext", f"subjectAltName={host}", "-addext", "basicConstraints=critical,CA:FALSE"),
        *("-out", made.certificate),
    )
    return made


def _files(folder: Path, name: str) -> Certificate:
    return Certificate(folder / f"{name}.pem", folder / f"{name}-key.pem")


def _new_key(path: Path) -> tuple[str | Path, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", path)


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
