"""Certificates for tests, made by openssl: an authority and what it signs."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

KEY_PASSWORD = "open-sesame-9f2b"


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM files of a certificate and its private key (PKCS#8, as Java wants it)."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority of its own in ``folder``, which must exist."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        self._folder = folder
        self.own = Certificate(folder / "ca.pem", folder / "ca-key.pem")
        _openssl(
            *("req", "-x509", *_new_key(self.own.key), "-noenc", "-days", "2", "-subj", f"/CN={name}"),
            *("-addext", "keyUsage=critical,keyCertSign", "-out", self.own.certificate),
        )

    def issue(self, name: str, host: str = "IP:127.0.0.1", *, password: str | None = None) -> Certificate:
        """Sign a certificate for ``host`` (``IP:…`` or ``DNS:…``), good for servers and for clients."""
        issued = Certificate(self._folder / f"{name}.pem", self._folder / f"{name}-key.pem")
        cipher = ("-noenc",) if password is None else ("-passout", f"pass:{password}")
        _openssl(
            *("req", "-x509", *_new_key(issued.key), *cipher, "-days", "2", "-subj", f"/CN={name}"),
            *("-CA", self.own.certificate, "-CAkey", self.own.key),
            *("-addext", f"subjectAltName={host}", "-addext", "basicConstraints=critical,CA:FALSE"),
            *("-out", issued.certificate),
        )
        return issued


def _new_key(path: Path) -> tuple[str | Path, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", path)


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
