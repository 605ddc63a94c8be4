"""Certificates for TLS tests, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple


class Certificate(NamedTuple):
    """PEM files of a certificate and its key."""

    certificate: Path
    key: Path


def self_signed(folder: Path, name: str = "server") -> Certificate:
    """A certificate for 127.0.0.1 that vouches for itself; it serves as an authority too."""
    made = Certificate(folder / f"{name}.pem", folder / f"{name}-key.pem")
    _openssl(
        *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"),
        *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(made.key), "-out", str(made.certificate)),
    )
    return made


def signed_by(authority: Certificate, folder: Path, name: str) -> Certificate:
    """A certificate that ``authority`` vouches for."""
    made = Certificate(folder / f"{name}.pem", folder / f"{name}-key.pem")
    request = folder / f"{name}.csr"
    _openssl(
        *("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"),
        *("-keyout", str(made.key), "-out", str(request)),
    )
    _openssl(
        *("x509", "-req", "-in", str(request), "-days", "2", "-CA", str(authority.certificate)),
        *("-CAkey", str(authority.key), "-CAcreateserial", "-out", str(made.certificate)),
    )
    return made


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
