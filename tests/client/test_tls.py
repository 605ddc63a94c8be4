"""Connections with TLS: what is trusted, what is refused, and in which words."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pyspark_rocketmq.client.pool import ConnectionSettings
from pyspark_rocketmq.client.pull_connection import acquire_connection, release_connection
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.errors import ChannelClosed, ConnectFailed, OptionError, TlsFailed
from pyspark_rocketmq.wire.command import RemotingCommand
from tests.helpers.certificates import KEY_PASSWORD, Authority, Certificate
from tests.helpers.scripted_server import ScriptedServer
from tests.helpers.wait import PATIENCE_S

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")

Serve = Callable[..., ScriptedServer]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that nobody in these tests has a reason to trust."""
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Certificate:
    """The server's."""
    return authority.issue("server")


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a peer behind TLS that sends back what it gets; it may require client certificates."""
    with ExitStack() as stack:

        def start(
            certificate: Certificate,
            *,
            clients_of: Authority | None = None,
            newest: ssl.TLSVersion | None = None,
        ) -> ScriptedServer:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            if newest is not None:
                context.set_ciphers("ALL:@SECLEVEL=0")
                context.minimum_version = context.maximum_version = newest
            context.load_cert_chain(certificate.certificate, certificate.key)
            if clients_of is not None:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(clients_of.own.certificate)
            server = ScriptedServer(
                lambda peer, request: peer.answer(request, body=request.body),
                wrap=lambda accepted: context.wrap_socket(accepted, server_side=True),
            )
            return stack.enter_context(server)

        yield start


def trusting(authority: Authority, **more: object) -> ConnectionSettings:
    ca_file = str(authority.own.certificate)
    return ConnectionSettings(use_tls=True, tls_ca_file=ca_file, connect_timeout_s=PATIENCE_S, **more)  # type: ignore[arg-type]


def with_certificate(
    authority: Authority, own: Certificate, password: str | None = None
) -> ConnectionSettings:
    return trusting(
        authority,
        tls_cert_file=str(own.certificate),
        tls_key_file=str(own.key),
        tls_key_password=password,
    )


def failure_of(settings: ConnectionSettings, server: ScriptedServer, soon: Deadline) -> Exception:
    """What a first request ends in, however far it gets."""
    with settings.open_pool(SystemClock()) as pool, pytest.raises(Exception) as caught:
        pool.get(server.address, soon).request(RemotingCommand(code=10), soon)
    return caught.value


def test_requests_and_answers_of_any_size_travel_encrypted(
    serve: Serve, certificate: Certificate, authority: Authority, soon: Deadline
) -> None:
    """A5: TLS from the first byte on the same port."""
    server = serve(certificate)
    with trusting(authority).open_pool(SystemClock()) as pool:
        channel = pool.get(server.address, soon)
        for size in (0, 1, 20_000, 3_000_000):
            assert channel.request(RemotingCommand(code=10, body=bytes(size)), soon).body == bytes(size)


def test_pull_lines_are_encrypted_too_and_kept_apart_by_settings(
    serve: Serve, certificate: Certificate, authority: Authority
) -> None:
    """A5: what executors read with; a line is reused only under the settings it was made with."""
    server, clock, settings = serve(certificate), SystemClock(), trusting(authority)
    line = acquire_connection(server.address, clock, settings)
    release_connection(line, clock, settings)
    other = acquire_connection(server.address, clock, trusting(authority, access_key="a", secret_key="b"))
    again = acquire_connection(server.address, clock, settings)

    assert other is not line
    assert again is line
    other.close()
    again.close()


@pytest.mark.parametrize("password", [None, KEY_PASSWORD])
def test_a_server_that_requires_client_certificates_takes_ours(
    serve: Serve, certificate: Certificate, authority: Authority, soon: Deadline, password: str | None
) -> None:
    """A5: with a plain key and with an encrypted one."""
    own = authority.issue(f"client-{password is None}", password=password)
    server = serve(certificate, clients_of=authority)
    with with_certificate(authority, own, password).open_pool(SystemClock()) as pool:
        assert pool.get(server.address, soon).request(RemotingCommand(code=10), soon).code == 0


def test_a_server_that_requires_client_certificates_gets_none(
    serve: Serve, certificate: Certificate, authority: Authority, soon: Deadline
) -> None:
    """A5: one clear error, which is not tried again."""
    error = failure_of(trusting(authority), serve(certificate, clients_of=authority), soon)

    assert isinstance(error, TlsFailed)
    assert not error.retryable
    assert "set tlsCertFile to a certificate from an authority" in str(error)


def test_a_client_certificate_of_another_authority_is_refused(
    serve: Serve, certificate: Certificate, authority: Authority, stranger: Authority, soon: Deadline
) -> None:
    """A5: as is none."""
    settings = with_certificate(authority, stranger.issue("client"))
    error = failure_of(settings, serve(certificate, clients_of=authority), soon)

    assert isinstance(error, TlsFailed)
    assert "the server refused the connection" in str(error)


def test_a_server_of_another_authority_is_refused(
    serve: Serve, certificate: Certificate, stranger: Authority, soon: Deadline
) -> None:
    """A5: verification is on unless switched off."""
    server = serve(certificate)

    for settings in (ConnectionSettings(use_tls=True, connect_timeout_s=PATIENCE_S), trusting(stranger)):
        error = failure_of(settings, server, soon)
        assert isinstance(error, TlsFailed)
        assert "Set tlsCaFile to the authority" in str(error)
        assert server.address in str(error)


@pytest.mark.parametrize("verify_hostname", [True, False])
def test_a_certificate_that_has_expired_is_refused(
    serve: Serve, authority: Authority, soon: Deadline, verify_hostname: bool
) -> None:
    """A5: and no authority is asked for that signed it."""
    server = serve(authority.issue_expired(f"expired-{verify_hostname}"))
    error = failure_of(trusting(authority, tls_verify_hostname=verify_hostname), server, soon)

    assert isinstance(error, TlsFailed)
    assert "is not valid now: certificate has expired. Renew the certificate" in str(error)
    assert "tlsCaFile" not in str(error)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_a_server_with_an_older_tls_is_reported(
    serve: Serve, certificate: Certificate, authority: Authority, soon: Deadline
) -> None:
    """A5: no client certificate would help."""
    server = serve(certificate, newest=ssl.TLSVersion.TLSv1_1)
    error = failure_of(trusting(authority), server, soon)

    assert isinstance(error, TlsFailed)
    assert "no TLS version that is accepted here; at least 1.2 is needed" in str(error)
    assert "tlsCertFile" not in str(error)


@pytest.mark.parametrize("host", ["IP:127.0.0.9", "DNS:broker.example"])
def test_a_certificate_for_another_host_is_refused(
    serve: Serve, authority: Authority, soon: Deadline, host: str
) -> None:
    """A5: unless the host check is off, which leaves the check of the authority on."""
    server = serve(authority.issue(host.replace(":", "-"), host))
    error = failure_of(trusting(authority), server, soon)

    assert isinstance(error, TlsFailed)
    assert "tlsVerifyHostname=false" in str(error)
    with trusting(authority, tls_verify_hostname=False).open_pool(SystemClock()) as pool:
        assert pool.get(server.address, soon).request(RemotingCommand(code=10), soon).code == 0


def test_switching_the_host_check_off_still_asks_for_the_authority(
    serve: Serve, certificate: Certificate, stranger: Authority, soon: Deadline
) -> None:
    """A5: it is not the same as trusting everybody."""
    error = failure_of(trusting(stranger, tls_verify_hostname=False), serve(certificate), soon)

    assert isinstance(error, TlsFailed)


def test_verification_can_be_switched_off(serve: Serve, certificate: Certificate, soon: Deadline) -> None:
    """A5: for brokers with their built-in test certificate."""
    settings = ConnectionSettings(use_tls=True, tls_verify_certificate=False, connect_timeout_s=PATIENCE_S)
    with settings.open_pool(SystemClock()) as pool:
        assert pool.get(serve(certificate).address, soon).request(RemotingCommand(code=10), soon).code == 0


def test_the_end_of_the_connection_is_noticed(
    serve: Serve, certificate: Certificate, authority: Authority, soon: Deadline
) -> None:
    """A5: as without TLS."""
    server = serve(certificate)
    server.script = lambda peer, _request: peer.close()
    error = failure_of(trusting(authority), server, soon)

    assert isinstance(error, ChannelClosed)


def test_a_server_that_is_silent_at_the_handshake_is_given_up(server: ScriptedServer, soon: Deadline) -> None:
    """A5: a failed connection, not a hang."""
    settings = ConnectionSettings(use_tls=True, connect_timeout_s=0.2)

    assert isinstance(failure_of(settings, server, soon), ConnectFailed)


def test_the_error_of_a_plain_client_of_a_tls_server_says_where_to_look(
    serve: Serve, certificate: Certificate, soon: Deadline
) -> None:
    """A5: the server ends the connection without a word."""
    error = failure_of(ConnectionSettings(), serve(certificate), soon)

    assert "useTls" in str(error)


@pytest.mark.parametrize("field", ["tls_ca_file", "tls_cert_file"])
def test_a_missing_file_is_an_option_error(tmp_path: Path, field: str) -> None:
    """A5: found when the pool is made, not at the first request."""
    nowhere: dict[str, Any] = {field: str(tmp_path / "nowhere.pem")}
    settings = ConnectionSettings(use_tls=True, **nowhere)

    with pytest.raises(OptionError, match=r"nowhere\.pem"):
        settings.open_pool(SystemClock())


@pytest.mark.parametrize("password", [None, "wrong-password"])
def test_a_key_that_cannot_be_decrypted_is_an_option_error(
    authority: Authority, password: str | None
) -> None:
    """A5: without a question at the terminal, and without the password in the text."""
    own = authority.issue("locked", password=KEY_PASSWORD)

    with pytest.raises(OptionError, match="tlsKeyPassword") as caught:
        with_certificate(authority, own, password).open_pool(SystemClock())
    assert "wrong-password" not in str(caught.value)
