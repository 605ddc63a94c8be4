"""A secured cluster, real and simulated: who is let in, who is not, and the error that they get."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ConnectionSettings
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.errors import (
    ConnectFailed,
    NoPermission,
    OffsetNotFound,
    RocketMQError,
    TlsFailed,
    TransportError,
)
from pyspark_rocketmq.group.join import join_group
from pyspark_rocketmq.model import Message, MessageQueue, retry_topic
from pyspark_rocketmq.offsets.open import open_offset_store
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.cluster_view import ClusterView
from pyspark_rocketmq.source.readers import RocketMQBatchReader
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, HeartbeatData
from pyspark_rocketmq.wire.requests.pull import PullRequest
from pyspark_rocketmq.wire.subscription import build_subscription
from tests.both.support import ANSWER_S
from tests.helpers.certificates import Authority
from tests.helpers.retries import but_retries
from tests.helpers.running import running
from tests.helpers.secured import GROUP, SECRET, TOPIC, USER, SecuredCluster, secured_real, secured_sim
from tests.helpers.wait import wait_until
from tests.real_broker.harness import RealCluster
from tests.real_broker.security import Security, Tls

CLOCK = SystemClock()
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
HEARTBEAT = HeartbeatData(
    client_id="me",
    consumers=(
        ConsumerData(
            group_name=GROUP,
            subscriptions=tuple(
                build_subscription(topic, "*", sub_version=1) for topic in (TOPIC, retry_topic(GROUP))
            ),
        ),
    ),
)


@pytest.fixture(
    scope="module",
    params=[pytest.param("sim", marks=pytest.mark.sim), pytest.param("real", marks=pytest.mark.real)],
)
def secured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredCluster]:
    """One cluster of each kind for all tests here."""
    start = secured_sim if request.param == "sim" else secured_real
    yield from running(start(tmp_path_factory.mktemp("secured")))


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    """An authority the servers do not know."""
    return Authority(tmp_path, "stranger")


def outcome(address: str, settings: ConnectionSettings, call: Callable[[BrokerClient], object]) -> object:
    """What one call gives or ends in."""
    with settings.open_pool(CLOCK) as pool:
        try:
            return call(BrokerClient(pool, CLOCK, ANSWER_S))
        except RocketMQError as error:
            return error


def ask(address: str, settings: ConnectionSettings) -> object:
    return outcome(address, settings, lambda brokers: brokers.max_offset(address, QUEUE))


def test_a_user_with_the_rights_does_all_that_producing_and_consuming_take(secured: SecuredCluster) -> None:
    """A5 ★: every kind of request, signed and encrypted: send, pull, offsets, heartbeat, locks."""
    at = secured.address
    with (
        secured.settings.open_pool(CLOCK) as pool,
        Producer(secured.name_servers, "P", pool=pool, send_timeout_s=ANSWER_S) as producer,
    ):
        brokers = BrokerClient(pool, CLOCK, ANSWER_S)
        sent = producer.send(Message(topic=TOPIC, body="größe".encode()), queue=QUEUE)
        producer.send_batch([Message(topic=TOPIC, body=b"two")], QUEUE)
        producer.send_oneway(Message(topic=TOPIC, body=b"three"), queue=QUEUE)
        end = sent.queue_offset + 3
        wait_until(lambda: brokers.max_offset(at, QUEUE) == end, ANSWER_S)
        brokers.heartbeat(at, HEARTBEAT)
        pull = PullRequest(consumer_group=GROUP, queue=QUEUE, queue_offset=sent.queue_offset)
        pulled = brokers.pull(at, pull)

        assert decode_messages(pulled.body, "broker-a")[0].body == "größe".encode()
        assert brokers.topic_stats(at, TOPIC)[QUEUE].max_offset == end
        assert brokers.min_offset(at, QUEUE) == 0
        assert brokers.search_offset(at, QUEUE, 0) == 0
        brokers.update_consumer_offset(at, GROUP, QUEUE, end)
        brokers.update_consumer_offset(at, GROUP, QUEUE, end)
        assert brokers.query_consumer_offset(at, GROUP, QUEUE) == end
        assert brokers.consumer_list(at, GROUP) == ("me",)
        assert brokers.lock_batch(at, GROUP, "me", [QUEUE]) == {QUEUE}
        brokers.unlock_batch(at, GROUP, "me", [QUEUE])
        brokers.unregister(at, "me", consumer_group=GROUP)


def test_the_source_reads_a_secured_topic(secured: SecuredCluster) -> None:
    """A5 ★: from options through the planner to the tasks' own connections."""
    queue = MessageQueue(TOPIC, "broker-a", 1)
    bodies = [b"%d" % number for number in range(100)]
    with Producer(secured.name_servers, "P", settings=secured.settings, send_timeout_s=ANSWER_S) as producer:
        producer.send_batch([Message(topic=TOPIC, body=body) for body in bodies], queue)
    reader = RocketMQBatchReader(
        ReadOptions.parse({**secured.options, "requestTimeoutMs": "30000", "retryTimeoutMs": "60000"})
    )

    def read() -> list[bytes]:
        partitions = [part for part in reader.partitions() if part.planned.queue == queue]  # type: ignore[attr-defined]
        batches = [batch for part in partitions for batch in reader.read(part)]
        return [body for batch in batches for body in batch.column("body").to_pylist()]

    # The real broker builds its queues a moment after it has answered a send.
    wait_until(lambda: len(read()) == len(bodies), ANSWER_S)
    assert read() == bodies


def test_a_user_who_may_subscribe_is_a_member_of_the_group(secured: SecuredCluster, tmp_path: Path) -> None:
    """A5, A3: a consumer joins and locks its queues with ``Sub`` on topic
    and group and no right beyond that.
    """
    store = str(tmp_path / "offsets")
    options = ReadOptions.parse({**secured.options, "consumerGroup": GROUP, "offsetStore": store})
    member = join_group(options, "me", open_offset_store(store), CLOCK)
    member.start()
    try:
        wait_until(lambda: len(but_retries(member.held())) == 4, 2 * ANSWER_S)
    finally:
        member.stop(ANSWER_S)


def test_a_user_who_may_subscribe_sees_what_the_group_has_given_back(
    secured: SecuredCluster, tmp_path: Path
) -> None:
    """A5, E3: a retry topic's statistics need ``Get`` on the group; a member has ``Sub``,
    as Java's members do.
    """
    store = str(tmp_path / "offsets")
    options = ReadOptions.parse({**secured.options, "consumerGroup": GROUP, "offsetStore": store})
    retry = MessageQueue(retry_topic(GROUP), "broker-a", 0)
    member = join_group(options, "me", open_offset_store(store), CLOCK)
    member.start()
    try:
        with (
            secured.settings.open_pool(CLOCK) as pool,
            Producer(secured.name_servers, "P", pool=pool, send_timeout_s=ANSWER_S) as producer,
        ):
            view = ClusterView(options, pool, CLOCK)
            brokers = BrokerClient(pool, CLOCK, ANSWER_S)
            wait_until(lambda: retry in view.snapshot().bounds, 2 * ANSWER_S, reason="the retry topic")
            with pytest.raises(NoPermission):
                brokers.topic_stats(secured.address, retry.topic)
            before = view.snapshot().bounds[retry]

            sent = producer.send(Message(topic=TOPIC, body=b"again"), queue=QUEUE)
            wait_until(lambda: brokers.max_offset(secured.address, QUEUE) > sent.queue_offset, ANSWER_S)
            pull = PullRequest(consumer_group=GROUP, queue=QUEUE, queue_offset=sent.queue_offset)
            (message,) = decode_messages(brokers.pull(secured.address, pull).body, "broker-a")
            brokers.send_message_back(secured.address, message, GROUP, 1, 16)

            wait_until(
                # A broker that is slow to answer is left out.
                lambda: view.snapshot().bounds.get(retry, before).max_offset == before.max_offset + 1,
                2 * ANSWER_S,
                reason="its copy",
            )
            assert view.snapshot().bounds[retry] == before._replace(max_offset=before.max_offset + 1)
    finally:
        member.stop(ANSWER_S)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"secret_key": "not-the-secret"}, "check signature failed"),
        ({"access_key": "nobody"}, "nobody is not found"),
        ({"access_key": None, "secret_key": None}, "username cannot be null"),
    ],
    ids=["wrong secret", "unknown user", "no credentials"],
)
def test_a_user_who_cannot_authenticate_has_no_permission(
    secured: SecuredCluster, changes: dict[str, str | None], reason: str
) -> None:
    """A5: in the broker's words, with what to look at, and without the secret."""
    error = ask(secured.address, replace(secured.settings, **changes))  # type: ignore[arg-type]

    assert isinstance(error, NoPermission)
    assert not error.retryable
    for part in (reason, secured.address, f"topic={TOPIC}", "Check accessKey and secretKey"):
        assert part in str(error)
    assert "not-the-secret" not in str(error)


def test_a_user_may_do_what_he_has_rights_for_and_nothing_else(secured: SecuredCluster) -> None:
    """A5: authorization; a right he lacks is distinguished from a missing offset."""
    other = MessageQueue(TOPIC, "broker-a", 2)
    error = outcome(
        secured.address,
        secured.settings,
        lambda brokers: brokers.query_consumer_offset(secured.address, "somebody-else", other),
    )

    assert isinstance(error, NoPermission)
    assert not isinstance(error, OffsetNotFound)
    assert f"User:{USER} has no permission to access Group:somebody-else" in str(error)


def test_a_client_without_certificate_is_not_let_in(secured: SecuredCluster) -> None:
    """A5: it ends in one clear error that nobody tries again."""
    settings = replace(secured.settings, tls_cert_file=None, tls_key_file=None, tls_key_password=None)
    error = ask(secured.address, settings)

    assert isinstance(error, TlsFailed)
    assert "set tlsCertFile to a certificate from an authority" in str(error)


def test_a_client_of_another_authority_is_not_let_in(secured: SecuredCluster, stranger: Authority) -> None:
    """A5: its certificate proves nothing."""
    own = stranger.issue("client")
    settings = replace(
        secured.settings,
        tls_cert_file=str(own.certificate),
        tls_key_file=str(own.key),
        tls_key_password=None,
    )
    error = ask(secured.address, settings)

    assert isinstance(error, TlsFailed)
    assert "the server refused the connection" in str(error)


def test_a_server_of_another_authority_is_not_trusted(secured: SecuredCluster, stranger: Authority) -> None:
    """A5: name server and broker alike."""
    settings = replace(secured.settings, tls_ca_file=str(stranger.own.certificate))

    for address in (secured.address, secured.name_servers):
        error = ask(address, settings)
        assert isinstance(error, TlsFailed)
        assert "Set tlsCaFile to the authority that signed it" in str(error)


def test_a_server_under_another_name_is_not_trusted(secured: SecuredCluster) -> None:
    """A5: the certificate is for 127.0.0.1, the connection for localhost."""
    port = secured.address.rpartition(":")[2]
    error = ask(f"localhost:{port}", secured.settings)

    assert isinstance(error, TlsFailed)
    assert "tlsVerifyHostname=false" in str(error)
    assert isinstance(ask(f"localhost:{port}", replace(secured.settings, tls_verify_hostname=False)), int)


def test_the_error_of_a_plain_client_names_its_tls_option(secured: SecuredCluster) -> None:
    """A5: a server that requires TLS ends a plain connection without a word."""
    settings = ConnectionSettings(access_key=USER, secret_key=SECRET)
    error = ask(secured.address, settings)

    assert isinstance(error, TransportError)
    assert "check option useTls" in str(error)


@pytest.mark.real
def test_the_error_of_a_tls_client_names_a_server_without_tls(tmp_path: Path) -> None:
    """A5: the connection fails with a hint instead of hanging."""
    authority = Authority(tmp_path)
    own = authority.issue("server")
    tls = Tls(server=own, client=own, authority=authority.own.certificate)
    with RealCluster(0, Security(tls=tls, name_server_mode="disabled")) as cluster:
        settings = ConnectionSettings(use_tls=True, tls_ca_file=str(authority.own.certificate))
        with settings.open_pool(CLOCK) as pool, pytest.raises(ConnectFailed, match="useTls=false"):
            pool.get(cluster.name_servers, Deadline.after(CLOCK, ANSWER_S)).request(
                RemotingCommand(code=106), Deadline.after(CLOCK, ANSWER_S)
            )
