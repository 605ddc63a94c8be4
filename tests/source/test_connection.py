"""How the cluster is reached: what the options make of requests and connections."""

from __future__ import annotations

import pytest

from broker_sim import consumer_requests, filters
from broker_sim.cluster import SimCluster
from broker_sim.settings import BrokerSettings
from broker_sim.sql92 import Expression, Sql92Error
from pyspark_rocketmq.client.pool import ConnectionSettings
from pyspark_rocketmq.client.pull_connection import close_idle_connections
from pyspark_rocketmq.errors import ConnectFailed, ExpressionInvalid, RequestTimeout, SystemBusy
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.requests.responses import describe_request
from tests.helpers.batch_read import planned_batch
from tests.helpers.scripted_server import Peer, ScriptedServer
from tests.source.conftest import PATIENT, Topics

REQUIRED = {"nameServers": "n:1", "topic": "orders"}


def test_requests_are_signed_with_the_token_of_temporary_credentials() -> None:
    """securityToken, A5"""
    given = {"accessKey": "user", "secretKey": "secret", "securityToken": "token"}
    signer = ConnectionSettings.of(ReadOptions.parse(REQUIRED | given)).signer()
    assert signer is not None

    assert signer(RemotingCommand(code=105)).ext_fields["SecurityToken"] == "token"


def test_certificates_are_looked_at_as_the_options_say() -> None:
    """tlsVerifyCertificate, tlsVerifyHostname, A5: what either means is tested with the transport."""
    given = {"useTls": "true", "tlsVerifyCertificate": "false", "tlsVerifyHostname": "false"}

    settings = ConnectionSettings.of(ReadOptions.parse(REQUIRED | given))

    assert (settings.tls_verify_certificate, settings.tls_verify_hostname) == (False, False)


def test_a_server_that_says_nothing_is_waited_for_as_long_as_the_option_says(
    given_s: list[float],
) -> None:
    """requestTimeoutMs"""
    # A connection is made in that time, too.
    with ScriptedServer(lambda peer, request: None) as server, pytest.raises((RequestTimeout, ConnectFailed)):
        planned_batch(nameServers=server.address, topic="orders", requestTimeoutMs="30", retryTimeoutMs="0")

    assert max(given_s) == 0.03


def test_a_busy_server_is_asked_again_for_as_long_as_the_option_says() -> None:
    """retryTimeoutMs: with none it is asked once, and else three times at first contact."""
    asked: list[str] = []

    def busy(peer: Peer, request: RemotingCommand) -> None:
        asked.append(describe_request(request))
        peer.answer(request, ResponseCode.SYSTEM_BUSY, remark="busy")

    with ScriptedServer(busy) as server, pytest.raises(SystemBusy):
        planned_batch(nameServers=server.address, topic="orders", retryTimeoutMs="0", **PATIENT)

    assert len(asked) == 1


def test_a_broker_that_says_nothing_costs_the_next_plans_a_second_at_most(
    topics: Topics, given_s: list[float]
) -> None:
    """A2: one behind a cable that was pulled would cost each plan the whole requestTimeoutMs."""
    topic = topics.make(2)
    stream = topics.stream(topic, requestTimeoutMs="1500")
    assert stream.next_offsets() is not None
    topics.put(topic, 0, 1)
    topics.sim.faults.add("lose", on=RequestCode.GET_TOPIC_STATS_INFO, times=2)

    longest = []
    try:
        for _ in range(3):
            given_s.clear()
            planned = stream.plan()
            longest.append((planned, min(given_s)))
    finally:
        topics.sim.faults.clear()

    assert longest == [(False, 1.5), (False, 1.0), (True, 1.0)]


def test_a_server_without_statistics_is_asked_for_each_queue(topics: Topics) -> None:
    """A2: as a RocketMQ 5 Proxy, which knows min and max offsets only; it is asked for statistics once."""
    topic = topics.make(3, 2)
    topics.sim.faults.add(
        "answer-code",
        on=RequestCode.GET_TOPIC_STATS_INFO,
        response_code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        times=2,
    )
    try:
        stream = topics.stream(topic)
        one, other = (MessageQueue(topic, "broker-a", queue_id) for queue_id in (0, 1))
        assert stream.next_offsets() == {one: [0, 1, 2], other: [0, 1]}
        topics.put(topic, 1, 1)
        assert stream.next_offsets() == {other: [2]}
        assert topics.sim.faults.pending == 1
    finally:
        topics.sim.faults.clear()


@pytest.mark.parametrize("is_read", [False, True], ids=["before it was read", "while it is read"])
def test_a_broker_that_restarts_as_an_older_version_ends_the_query(
    monkeypatch: pytest.MonkeyPatch, is_read: bool
) -> None:
    """sqlFilter, A4: such a broker cannot compile the condition, and answers pulls with all messages."""
    queue = MessageQueue("orders", "broker-a", 0)

    def put(sim: SimCluster) -> None:
        cities = ("Paris", "Rome")
        sim.put(queue, [Message(topic="orders", body=b"x", properties={"city": city}) for city in cities])

    def compile_as_older_version(text: str) -> Expression:
        raise Sql92Error("Encountered STARTSWITH")

    with SimCluster(settings=BrokerSettings(enable_property_filter=True)) as sim:
        sim.create_topic("orders", queues=1, brokers=["broker-a"])
        put(sim)
        stream = Topics(sim).stream("orders", sqlFilter="city STARTSWITH 'Pa'")
        assert stream.next_offsets() == {queue: [0]}

        put(sim)
        if is_read:
            assert stream.plan()
        sim.stop_broker("broker-a")
        monkeypatch.setattr(filters, "compile_expression", compile_as_older_version)
        monkeypatch.setattr(consumer_requests, "compile_expression", compile_as_older_version)
        sim.start_broker("broker-a")

        with pytest.raises(ExpressionInvalid, match=r"Encountered STARTSWITH.* need RocketMQ 5\.1\.3"):
            stream.run() if is_read else stream.plan()
        close_idle_connections()
