"""Encryption between a query's own processes: one certificate, known by its fingerprint."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.hub import encryption
from pyspark_rocketmq.hub.encryption import Encryption, HubCertificate


@pytest.fixture(scope="module")
def certificate() -> HubCertificate:
    return HubCertificate.new()


def ends(certificate: HubCertificate, fingerprint: bytes | None = None) -> tuple[Encryption, Encryption]:
    """The hub's and the client's, before the handshake."""
    known = certificate.fingerprint if fingerprint is None else fingerprint
    return Encryption.of_hub("task", certificate), Encryption.of_client("hub", known)


def exchanged(
    hub: Encryption, client: Encryption, *, at_hub: bytes = b"", at_client: bytes = b""
) -> list[bytes]:
    """Carry bytes until neither side has any; return all that was on the way."""
    on_the_way = [client.encrypt(b""), hub.encrypt(b"")]
    seen = list(on_the_way)
    received = {"hub": b"", "client": b""}
    while any(on_the_way):
        received["hub"] += hub.decrypt(on_the_way[0])
        received["client"] += client.decrypt(on_the_way[1])
        on_the_way = [client.encrypt(b""), hub.encrypt(b"")]
        seen += on_the_way
    assert received == {"hub": at_hub, "client": at_client}
    return seen


def test_both_directions_carry_bytes_that_nobody_else_reads(certificate: HubCertificate) -> None:
    """A5: those given before the handshake is over follow it."""
    hub, client = ends(certificate)
    hub.encrypt(b"greeting")
    begun = client.encrypt(b"orders")
    assert b"orders" not in begun
    hub.decrypt(begun)
    seen = exchanged(hub, client, at_hub=b"orders", at_client=b"greeting")

    assert hub.is_ready
    assert client.is_ready
    assert not any(word in b"".join(seen) for word in (b"orders", b"greeting"))


@settings(deadline=None, max_examples=30)
@given(cuts=st.lists(st.integers(1, 3_000), min_size=1), size=st.integers(0, 100_000))
def test_bytes_come_in_any_pieces(cuts: list[int], size: int) -> None:
    """A5"""
    hub, client = ends(HubCertificate.new())
    sent = os.urandom(size)
    exchanged(hub, client)
    wire, received = client.encrypt(sent), b""
    for number in range(len(wire)):
        piece, wire = wire[: cuts[number % len(cuts)]], wire[cuts[number % len(cuts)] :]
        received += hub.decrypt(piece)
        if not wire:
            break

    assert received == sent


def test_every_certificate_is_another_one(certificate: HubCertificate) -> None:
    """A5"""
    assert HubCertificate.new().fingerprint != certificate.fingerprint
    assert len(certificate.fingerprint) == sha256().digest_size


def test_a_hub_with_another_certificate_is_refused_before_anything_is_sent(
    certificate: HubCertificate,
) -> None:
    """A5"""
    hub, client = ends(certificate, b"\0" * 32)
    hub.decrypt(client.encrypt(b"secret"))

    with pytest.raises(
        RemoteProtocolError, match="hub: the certificate there is not that of the query's driver"
    ):
        client.decrypt(hub.encrypt(b""))
    assert not client.is_ready


@pytest.mark.parametrize("said", [b'{"nonce": "n", "proof": "p"}\n', b"GET / HTTP/1.1\r\n\r\n"])
def test_a_peer_that_does_not_encrypt_is_refused_with_the_reason(
    said: bytes, certificate: HubCertificate
) -> None:
    """A5: on either side."""
    hub, client = ends(certificate)
    client.encrypt(b"")

    with pytest.raises(
        RemoteProtocolError, match="task: the process there does not encrypt, but this query's driver does"
    ):
        hub.decrypt(said)
    with pytest.raises(
        RemoteProtocolError, match="hub: the process there does not encrypt, but the query's driver does"
    ):
        client.decrypt(said)


def test_altered_bytes_end_the_connection(certificate: HubCertificate) -> None:
    """H9"""
    hub, client = ends(certificate)
    exchanged(hub, client)
    altered = bytearray(client.encrypt(b"orders"))
    altered[-1] ^= 1

    with pytest.raises(RemoteProtocolError, match="task: bytes cannot be decrypted"):
        hub.decrypt(bytes(altered))


def test_the_private_key_is_in_no_file_and_no_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A5"""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    commands: list[tuple[tuple[str, ...], bytes]] = []
    run = encryption._openssl

    def noted(arguments: tuple[str, ...], given: bytes) -> bytes:
        output = run(arguments, given)
        commands.append((arguments, output))
        return output

    monkeypatch.setattr(encryption, "_openssl", noted)
    HubCertificate.new()

    key = commands[0][1]
    assert b"PRIVATE KEY" in key
    assert all(argument.encode() not in key for arguments, _ in commands for argument in arguments)
    assert list(tmp_path.iterdir()) == []


def test_without_openssl_the_reason_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A5"""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OSError, match="openssl is missing on the driver's machine"):
        HubCertificate.new()

    (tmp_path / "openssl").write_text("#!/bin/sh\necho such trouble >&2\nexit 3\n")
    (tmp_path / "openssl").chmod(0o755)
    with pytest.raises(OSError, match="openssl ecparam failed: such trouble"):
        HubCertificate.new()
