from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from broker_sim.cluster import SimCluster
from broker_sim.security import AccessControl, Action, Kind, Need, Policy, User, needs_of
from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import AclSigner, ConnectionSettings
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import NoPermission
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import ONEWAY_FLAG, RemotingCommand, signature
from pyspark_rocketmq.wire.fastjson import dumps_java
from pyspark_rocketmq.wire.requests.bodies import LockBatchRequest
from pyspark_rocketmq.wire.requests.pull import PullRequest, PullStatus
from pyspark_rocketmq.wire.requests.send import SendSettings
from tests.broker_sim.exchange import GROUP, TOPIC, heartbeat, pull, request, send
from tests.broker_sim.raw_client import RawClient
from tests.helpers.golden import golden
from tests.helpers.wait import PATIENCE_S

_IP = "10.0.0.9"
_SECRET = "12345678"
_ANN = User(
    access_key="ann",
    secret_key=_SECRET,
    policies=(
        Policy("Topic:orders", frozenset({Action.PUB, Action.SUB, Action.GET})),
        Policy("Group:bill*", frozenset({Action.SUB})),
    ),
)
_ROOT = User(access_key="root", secret_key="secret-of-root", is_super=True)
_SUB = (Action.SUB,)


def _by(user: User, command: RemotingCommand) -> RemotingCommand:
    return AclSigner(user.access_key, user.secret_key).sign(command)


@pytest.mark.parametrize("vector", golden("remoting.json")["acl"], ids=lambda vector: str(vector["fields"]))
def test_what_java_signed_is_believed_and_nothing_else(vector: dict[str, Any]) -> None:
    """A5: AclClientRPCHook's signatures, verified as a broker does."""
    user = User(access_key=vector["accessKey"], secret_key=vector["secretKey"], is_super=True)
    command = RemotingCommand(
        code=11, ext_fields=vector["extFields_after_hook"], body=(vector["body"] or "").encode()
    )
    access = AccessControl([user])
    assert access.problem(_IP, command) is None
    assert access.problem(_IP, replace(command, body=command.body + b"!")) == "check signature failed."
    added = {**command.ext_fields, "queueOffset": "1"}
    assert access.problem(_IP, replace(command, ext_fields=added)) == "check signature failed."


def test_a_request_nobody_signed_is_refused_with_the_reason() -> None:
    """A5: in the words of DefaultAuthenticationHandler."""
    off = replace(_ANN, access_key="off", is_enabled=False)
    access = AccessControl([_ANN, off])
    unsigned = replace(_by(_ANN, pull()), ext_fields={**pull().ext_fields, "AccessKey": "ann"})
    assert access.problem(_IP, pull()) == "username cannot be null."
    assert access.problem(_IP, _by(replace(_ANN, access_key="eve"), pull())) == "User:eve is not found."
    assert access.problem(_IP, _by(off, pull())) == "User:off is disabled."
    assert access.problem(_IP, unsigned) == "check signature failed."
    assert access.problem(_IP, _by(replace(_ANN, secret_key="guess"), pull())) == "check signature failed."


def test_a_security_token_is_signed_too() -> None:
    signed = AclSigner("ann", _SECRET, "token").sign(pull())
    assert AccessControl([_ANN]).problem(_IP, signed) is None
    stripped = {name: value for name, value in signed.ext_fields.items() if name != "SecurityToken"}
    assert AccessControl([_ANN]).problem(_IP, replace(signed, ext_fields=stripped)) is not None


@pytest.mark.parametrize(("version", "is_signed"), [(399, False), (400, True)])
def test_old_clients_do_not_sign_the_flag_of_unique_key_queries(version: int, is_signed: bool) -> None:
    """A5: the flag is added after the signature up to 4.9.3."""
    fields = {"topic": TOPIC, "AccessKey": "root"}
    sealed = {**fields, "_UNIQUE_KEY_QUERY": "true"} if is_signed else fields
    fields |= {"_UNIQUE_KEY_QUERY": "true", "Signature": signature(_ROOT.secret_key.encode(), sealed, b"")}
    command = RemotingCommand(code=RequestCode.QUERY_MESSAGE, version=version, ext_fields=fields)
    assert AccessControl([_ROOT]).problem(_IP, command) is None


_LOCK = dumps_java(
    LockBatchRequest(
        consumer_group=GROUP,
        client_id="c",
        queues=frozenset({MessageQueue(TOPIC, "b", 0), MessageQueue(f"%RETRY%{GROUP}", "b", 0)}),
    )
)


@pytest.mark.parametrize(
    ("command", "needs"),
    [
        (pull(), [Need(Kind.TOPIC, TOPIC, _SUB), Need(Kind.GROUP, GROUP, _SUB)]),
        (pull(topic=f"%RETRY%{GROUP}"), [Need(Kind.GROUP, GROUP, _SUB)]),
        (pull(code=RequestCode.LITE_PULL_MESSAGE), []),
        (send(), [Need(Kind.TOPIC, TOPIC, (Action.PUB,))]),
        (send(b=f"%RETRY%{GROUP}", a=GROUP), [Need(Kind.GROUP, GROUP, _SUB)]),
        (send(b=f"%RETRY%{GROUP}", a=""), [Need(Kind.GROUP, GROUP, _SUB)]),
        (
            request(RequestCode.SEND_MESSAGE, {"topic": TOPIC, "producerGroup": "p"}),
            [Need(Kind.TOPIC, TOPIC, (Action.PUB,))],
        ),
        (
            heartbeat("c", TOPIC, f"%RETRY%{GROUP}"),
            [Need(Kind.GROUP, GROUP, _SUB), Need(Kind.TOPIC, TOPIC, _SUB)],
        ),
        (
            request(RequestCode.LOCK_BATCH_MQ, body=_LOCK),
            [Need(Kind.GROUP, GROUP, _SUB), Need(Kind.TOPIC, TOPIC, _SUB)],
        ),
        (
            request(RequestCode.UPDATE_CONSUMER_OFFSET, {"topic": TOPIC, "consumerGroup": GROUP}),
            [
                Need(Kind.TOPIC, TOPIC, (Action.SUB, Action.UPDATE)),
                Need(Kind.GROUP, GROUP, (Action.SUB, Action.UPDATE)),
            ],
        ),
        (
            request(RequestCode.GET_MAX_OFFSET, {"topic": f"%RETRY%{GROUP}"}),
            [Need(Kind.GROUP, GROUP, (Action.GET,))],
        ),
        (request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 0}), []),
        (
            request(RequestCode.GET_PRODUCER_CONNECTION_LIST),
            [Need(Kind.CLUSTER, "DefaultCluster", (Action.GET,))],
        ),
        (request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP), []),
    ],
    ids=lambda value: str(value.code) if isinstance(value, RemotingCommand) else "",
)
def test_requests_need_what_5_3_3_asks_for(command: RemotingCommand, needs: list[Need]) -> None:
    """A5: PUB on the topic to send; SUB on topic and group to consume;
    only the group for its retry topic.
    """
    assert needs_of(command) == needs


@pytest.mark.parametrize(
    ("policies", "is_allowed"),
    [
        ((), False),
        ((Policy("*"),), True),
        ((Policy("Topic:*"),), True),
        ((Policy("Topic:or*"),), True),
        ((Policy("Topic:orders"),), True),
        ((Policy("Topic:orders", frozenset({Action.SUB})),), False),
        ((Policy("Topic:order"),), False),
        ((Policy("Group:orders"),), False),
        ((Policy("*"), Policy("Topic:orders", is_allowed=False)), False),
        ((Policy("Topic:or*", is_allowed=False), Policy("Topic:orders")), True),
        ((Policy("Topic:o*"), Policy("Topic:or*", is_allowed=False)), False),
        ((Policy("Topic:orders"), Policy("Topic:orders", is_allowed=False)), False),
    ],
)
def test_the_most_exact_policy_decides(policies: tuple[Policy, ...], is_allowed: bool) -> None:
    """A5: AclAuthorizationHandler.comparePolicyEntries; of equals the refusal."""
    problem = AccessControl([replace(_ANN, policies=policies)]).problem(_IP, _by(_ANN, send()))
    assert (problem is None) == is_allowed


def test_a_denial_names_user_resource_and_address() -> None:
    access = AccessControl([_ANN])
    assert access.problem(_IP, _by(_ANN, send(b="other"))) == (
        "User:ann has no permission to access Topic:other from 10.0.0.9, no matched policies."
    )


def test_a_body_that_names_no_resources_is_refused() -> None:
    command = _by(_ANN, request(RequestCode.HEART_BEAT, body=b"{"))
    assert AccessControl([_ANN]).problem(_IP, command) == "parse authorization context error."


def test_users_never_show_their_secrets() -> None:
    assert _SECRET not in repr(_ANN)


@pytest.fixture
def cluster() -> Iterator[SimCluster]:
    with SimCluster(users=[_ANN, _ROOT]) as cluster:
        cluster.create_topic(TOPIC, queues=1)
        cluster.create_topic("other", queues=1)
        yield cluster


_SETTINGS = ConnectionSettings(access_key="ann", secret_key=_SECRET, security_token="token")


def test_the_client_sends_and_pulls_what_it_may_and_no_more(cluster: SimCluster) -> None:
    """A5: 16 becomes NoPermission, which names the resource and no secret."""
    queue = MessageQueue(TOPIC, "broker-a", 0)
    address = cluster.broker_addresses["broker-a"]
    with Producer(cluster.name_servers, "p", send_timeout_s=PATIENCE_S, settings=_SETTINGS) as producer:
        producer.send(Message(topic=TOPIC, body=b"hello"))
        with pytest.raises(NoPermission, match="Topic:other") as refused:
            producer.send(Message(topic="other", body=b"hello"))
    assert _SECRET not in str(refused.value)
    with _SETTINGS.open_pool(SystemClock()) as pool:
        calls = BrokerClient(pool, SystemClock(), PATIENCE_S)
        found = calls.pull(address, PullRequest(consumer_group=GROUP, queue=queue, queue_offset=0))
        assert found.status is PullStatus.FOUND
        with pytest.raises(NoPermission, match="Group:others"):
            calls.pull(address, PullRequest(consumer_group="others", queue=queue, queue_offset=0))


@pytest.mark.parametrize("secret", [None, "guess"])
def test_a_client_without_the_right_secret_gets_nothing(cluster: SimCluster, secret: str | None) -> None:
    settings = replace(_SETTINGS, secret_key=secret)
    queue = MessageQueue(TOPIC, "broker-a", 0)
    with settings.open_pool(SystemClock()) as pool, pytest.raises(NoPermission):
        BrokerClient(pool, SystemClock(), PATIENCE_S).send(
            cluster.broker_addresses["broker-a"],
            Message(topic=TOPIC, body=b"x"),
            queue,
            SendSettings(producer_group="p"),
        )
    assert cluster.bounds(queue).max_offset == 0


def test_the_name_server_asks_nobody(cluster: SimCluster) -> None:
    """A5: as 5.3.3."""
    with RawClient(cluster.name_servers) as client:
        assert client.call(request(105, {"topic": TOPIC})).code == ResponseCode.SUCCESS


def test_a_refused_oneway_request_is_not_answered(
    cluster: SimCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    with RawClient(cluster.broker_addresses["broker-a"]) as client:
        client.send(replace(send(), flag=ONEWAY_FLAG))
        answer = client.call(replace(pull(), opaque=12))
    assert (answer.opaque, answer.code) == (12, ResponseCode.NO_PERMISSION)
