from __future__ import annotations

import logging
import shutil
import ssl
from pathlib import Path

import pytest

from broker_sim.cluster import SimCluster
from broker_sim.connection import ServerTls, TlsMode, TlsStream, is_welcome
from pyspark_rocketmq.client.pool import ConnectionSettings
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.errors import RocketMQError, TransportError
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.wire.codes import ResponseCode
from tests.broker_sim.exchange import request, send
from tests.broker_sim.raw_client import RawClient
from tests.helpers.certificates import Certificate, self_signed, signed_by
from tests.helpers.wait import PATIENCE_S

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")

_PLAIN = ConnectionSettings()
_QUEUE = MessageQueue("orders", "broker-a", 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def server(folder: Path) -> Certificate:
    return self_signed(folder)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "broker_sim.connection")


def _tls(server: Certificate, mode: TlsMode = TlsMode.PERMISSIVE, trust: Path | None = None) -> ServerTls:
    return ServerTls(
        mode=mode,
        certificate_file=str(server.certificate),
        key_file=str(server.key),
        trust_file=None if trust is None else str(trust),
    )


def _secure(server: Certificate, own: Certificate | None = None) -> ConnectionSettings:
    return ConnectionSettings(
        use_tls=True,
        tls_ca_file=str(server.certificate),
        tls_cert_file=own and str(own.certificate),
        tls_key_file=own and str(own.key),
        connect_timeout_s=PATIENCE_S,
    )


def _stored(cluster: SimCluster, settings: ConnectionSettings, body: bytes = b"hello") -> int:
    """Messages in the queue after one was sent with ``settings``."""
    cluster.create_topic("orders", queues=1)
    with Producer(
        cluster.name_servers,
        "p",
        send_timeout_s=PATIENCE_S,
        settings=settings,
        retry_times_when_send_failed=0,
        compress_over_bytes=1 << 30,
    ) as producer:
        producer.send(Message(topic="orders", body=body))
    return cluster.bounds(_QUEUE).max_offset


@pytest.mark.parametrize("body", [b"small", bytes(3_000_000)], ids=["small", "large"])
def test_both_kinds_of_clients_share_one_port(server: Certificate, body: bytes) -> None:
    """A5: permissive; name server and brokers alike."""
    with SimCluster(tls=_tls(server)) as cluster:
        assert _stored(cluster, _secure(server), body) == 1
        assert _stored(cluster, _PLAIN, body) == 2


def test_a_tls_only_port_closes_plain_connections_unanswered(server: Certificate) -> None:
    """A5: enforcing."""
    with SimCluster(tls=_tls(server, TlsMode.ENFORCING)) as cluster:
        assert _stored(cluster, _secure(server)) == 1
        with pytest.raises(TransportError):
            _stored(cluster, _PLAIN)
        with RawClient(cluster.broker_addresses["broker-a"]) as client:
            client.send(send())
            assert client.read_to_end() == b""


@pytest.mark.parametrize("has_certificate", [True, False])
def test_a_plain_only_port_closes_tls_connections(server: Certificate, has_certificate: bool) -> None:
    """A5: disabled, or permissive without a certificate: a failed handshake, no hang."""
    tls = _tls(server, TlsMode.DISABLED) if has_certificate else ServerTls()
    with SimCluster(tls=tls) as cluster:
        assert _stored(cluster, _PLAIN) == 1
        with pytest.raises(TransportError):
            _stored(cluster, _secure(server))


def test_a_client_must_show_a_certificate_the_server_trusts(server: Certificate, folder: Path) -> None:
    """A5: need.client.auth=require."""
    authority = self_signed(folder, "authority")
    member = signed_by(authority, folder, "member")
    with SimCluster(tls=_tls(server, trust=authority.certificate)) as cluster:
        assert _stored(cluster, _secure(server, member)) == 1
        for stranger in (None, self_signed(folder, "stranger")):
            with pytest.raises(RocketMQError):
                _stored(cluster, _secure(server, stranger))
        assert cluster.bounds(_QUEUE).max_offset == 1


def test_garbage_after_a_tls_greeting_closes_the_connection(server: Certificate) -> None:
    with SimCluster(tls=_tls(server)) as cluster:
        with RawClient(cluster.name_servers) as client:
            client.socket.sendall(b"\x16\x03\x01" + bytes(200))
            client.read_to_end()
        with RawClient(cluster.name_servers) as client:
            assert client.call(request(105, {"topic": "TBW102"})).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("first_byte", "mode", "has_context", "expected"),
    [
        (0x16, TlsMode.DISABLED, True, False),
        (0x16, TlsMode.PERMISSIVE, True, True),
        (0x16, TlsMode.PERMISSIVE, False, False),
        (0x16, TlsMode.ENFORCING, True, True),
        (0x00, TlsMode.DISABLED, False, True),
        (0x00, TlsMode.PERMISSIVE, True, True),
        (0x00, TlsMode.ENFORCING, True, False),
    ],
)
def test_the_first_byte_decides(first_byte: int, mode: TlsMode, has_context: bool, expected: bool) -> None:
    """A5: NettyRemotingServer.TlsModeHandler."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if has_context else None
    assert is_welcome(first_byte, mode, context) is expected


def test_a_handshake_and_data_may_come_in_any_pieces(server: Certificate) -> None:
    context = _tls(server).context()
    assert context is not None
    client_context = ssl.create_default_context(cafile=str(server.certificate))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    stream = TlsStream(context)
    received = b""

    def exchange() -> None:
        nonlocal received
        for byte in outgoing.read():
            received += stream.receive(bytes([byte]))
            incoming.write(stream.output())

    for _ in range(3):
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            exchange()
    client.write(b"question")
    exchange()
    assert received == b"question"
    incoming.write(stream.send(bytes(100_000)))
    answer = b""
    while len(answer) < 100_000:
        answer += client.read(1 << 20)
    assert answer == bytes(100_000)


def test_a_missing_certificate_file_is_noticed_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SimCluster(tls=ServerTls(certificate_file=str(tmp_path / "nowhere.pem")))
