from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_rocketmq.client.settings import ConnectionSettings
from pyspark_rocketmq.client.system_clock import SystemClock
from pyspark_rocketmq.clock import Deadline
from pyspark_rocketmq.errors import ChannelClosed, ConnectFailed, OptionError
from pyspark_rocketmq.wire.command import RemotingCommand
from tests.helpers.scripted_server import ScriptedServer

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
        "-addext",
    ]
    subprocess.run(
        [*command, "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    return certificate, key


@pytest.fixture
def tls_server(certificate: tuple[Path, Path]) -> Iterator[ScriptedServer]:
    """A peer behind TLS that sends back what it gets."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with ScriptedServer(
        lambda peer, request: peer.answer(request, body=request.body),
        wrap=lambda accepted: context.wrap_socket(accepted, server_side=True),
    ) as server:
        yield server


def test_requests_and_answers_of_any_size_travel_encrypted(
    tls_server: ScriptedServer, certificate: tuple[Path, Path], soon: Deadline
) -> None:
    """A5: TLS from the first byte on the same port."""
    settings = ConnectionSettings(use_tls=True, tls_ca_file=str(certificate[0]))
    with settings.open_pool(SystemClock()) as pool:
        channel = pool.get(tls_server.address, soon)
        for size in (0, 1, 20_000, 3_000_000):
            assert channel.request(RemotingCommand(code=10, body=bytes(size)), soon).body == bytes(size)


def test_a_server_nobody_vouches_for_is_refused(tls_server: ScriptedServer, soon: Deadline) -> None:
    """A5: verification is on unless switched off."""
    with (
        ConnectionSettings(use_tls=True).open_pool(SystemClock()) as pool,
        pytest.raises(ConnectFailed, match="TLS handshake failed"),
    ):
        pool.get(tls_server.address, soon)


def test_verification_can_be_switched_off(tls_server: ScriptedServer, soon: Deadline) -> None:
    """A5: for brokers with their built-in test certificate."""
    with ConnectionSettings(use_tls=True, tls_verify=False).open_pool(SystemClock()) as pool:
        assert pool.get(tls_server.address, soon).request(RemotingCommand(code=10), soon).code == 0


def test_the_end_of_the_connection_is_noticed(tls_server: ScriptedServer, soon: Deadline) -> None:
    """A5: as without TLS."""
    tls_server.script = lambda peer, _request: peer.close()
    with (
        ConnectionSettings(use_tls=True, tls_verify=False).open_pool(SystemClock()) as pool,
        pytest.raises(ChannelClosed),
    ):
        pool.get(tls_server.address, soon).request(RemotingCommand(code=10), soon)


def test_a_server_without_tls_is_told_as_such(server: ScriptedServer, soon: Deadline) -> None:
    """A5: a failed handshake, not a hang."""
    with (
        ConnectionSettings(use_tls=True, connect_timeout_s=0.2).open_pool(SystemClock()) as pool,
        pytest.raises(ConnectFailed),
    ):
        pool.get(server.address, soon)


def test_a_missing_file_is_an_option_error(tmp_path: Path) -> None:
    """A5: found when the pool is made, not at the first request."""
    with pytest.raises(OptionError, match=r"nowhere\.pem"):
        ConnectionSettings(use_tls=True, tls_ca_file=str(tmp_path / "nowhere.pem")).open_pool(SystemClock())
