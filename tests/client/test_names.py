"""Namespaces at the client's border: full names outside, short names inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker_sim.bodies import (
    encode_cluster_info,
    encode_consumer_list,
    encode_lock_response,
    encode_route,
    encode_topic_list,
    encode_topic_stats,
)
from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.names import Names
from pyspark_rocketmq.client.nameserver import NameServerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.model import (
    BrokerAddress,
    BrokerData,
    Message,
    MessageQueue,
    QueueBounds,
    QueueData,
    TopicRoute,
)
from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.fastjson import loads
from pyspark_rocketmq.wire.requests.send import Batch
from tests.client import test_admin, test_broker
from tests.helpers.scripted_server import Peer, ScriptedServer
from tests.helpers.wait import PATIENCE_S

QUEUE = MessageQueue("orders", "broker-a", 3)
FULL = MessageQueue("shop%orders", "broker-a", 3)
ANSWERS = {
    RequestCode.LOCK_BATCH_MQ: encode_lock_response({FULL}),
    RequestCode.GET_TOPIC_STATS_INFO: encode_topic_stats({FULL: QueueBounds(1, 9)}),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: encode_consumer_list(["a"]),
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: encode_topic_list(
        ["TBW102", "shop%orders", "%RETRY%shop%g", "orders"]
    ),
    RequestCode.GET_BROKER_CLUSTER_INFO: encode_cluster_info(
        [BrokerData(broker_name="broker-a", cluster="c", addresses={0: BrokerAddress("h:1")})]
    ),
}
FIELDS = {**test_broker.STORED, **test_broker.PULLED, "offset": "41", "timestamp": "5"}


@pytest.fixture
def answering(server: ScriptedServer) -> ScriptedServer:
    def answer(peer: Peer, request: RemotingCommand) -> None:
        if request.is_oneway:
            return
        body = ANSWERS.get(RequestCode(request.code), b"")
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            body = route_to(server.address)
        peer.answer(request, ext_fields=FIELDS, body=body)

    server.script = answer
    return server


def route_to(address: str) -> bytes:
    data = QueueData(broker_name="broker-a", read_queue_nums=4, write_queue_nums=4, perm=6)
    broker = BrokerData(broker_name="broker-a", cluster="c", addresses={0: BrokerAddress(address)})
    return encode_route(TopicRoute(brokers=(broker,), queues=(data,)), standard_json=True)


def names_in(request: RemotingCommand) -> list[str]:
    """Every place where a request names a topic or a group."""
    keys = ("topic", "consumerGroup", "producerGroup", "group", "groupName", "originTopic", "a", "b")
    found = [request.ext_fields[key] for key in keys if key in request.ext_fields]
    if request.body.startswith(b"{"):
        found += _names_in_json(loads(request.body))
    return found


def _names_in_json(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value[key] for key in ("topic", "consumerGroup", "groupName", "group") if key in value]
        return own + [name for item in value.values() for name in _names_in_json(item)]
    if isinstance(value, list):
        return [name for item in value for name in _names_in_json(item)]
    return []


CALLS: dict[str, Callable[[BrokerClient, str], Any]] = {
    **{name: call for name, (_, call) in test_broker.CALLS.items()},
    **{name: test_admin.CALLS[name][1] for name in ("create topic", "check subscription")},
}


@pytest.mark.parametrize("name", CALLS)
def test_a_request_names_topics_and_groups_with_their_namespace(
    answering: ScriptedServer, pool: ChannelPool, name: str
) -> None:
    """A6: in ext fields and in bodies, of every call."""
    CALLS[name](BrokerClient(pool, SystemClock(), PATIENCE_S, namespace="shop"), answering.address)
    names = names_in(answering.next_request())

    assert names
    assert all(named.removeprefix("%RETRY%").startswith("shop%") for named in names)


def test_answers_name_topics_and_groups_without_it(answering: ScriptedServer, pool: ChannelPool) -> None:
    """A6: users never see the full names; names of no or another namespace stay."""
    brokers = BrokerClient(pool, SystemClock(), PATIENCE_S, namespace="shop")
    at = answering.address

    assert brokers.topic_stats(at, "orders") == {QUEUE: QueueBounds(1, 9)}
    assert brokers.lock_batch(at, "g", "me", [QUEUE]) == {QUEUE}


def test_name_servers_are_asked_for_the_full_name(
    answering: ScriptedServer, pool: ChannelPool, soon: Deadline
) -> None:
    """A2, A6: and list only the topics of the namespace."""
    names = NameServerClient((answering.address,), pool, SystemClock(), PATIENCE_S, namespace="shop")

    assert names.route("orders", soon).subscribe_queues("orders")[0].topic == "orders"
    assert answering.next_request().ext_fields["topic"] == "shop%orders"
    assert names.topics(soon) == ("%RETRY%g", "orders")
    assert [broker.broker_name for broker in names.brokers(soon)] == ["broker-a"]
    everything = NameServerClient((answering.address,), pool, SystemClock(), PATIENCE_S)
    assert everything.topics(soon) == ("%RETRY%shop%g", "TBW102", "orders", "shop%orders")


def test_a_producer_sends_into_its_namespace(answering: ScriptedServer, pool: ChannelPool) -> None:
    """A6: singly and in batches; the template of new topics keeps its name."""
    with Producer(answering.address, "P", send_timeout_s=PATIENCE_S, pool=pool, namespace="shop") as producer:
        result = producer.send(Message(topic="orders", body=b"x"), queue=QUEUE)
        producer.send_batch([Message(topic="orders", body=b"x")], QUEUE)
    sent = [answering.next_request() for _ in range(3)][1:]

    assert result.queue == QUEUE
    for request in sent:
        assert (request.ext_fields["a"], request.ext_fields["b"]) == ("shop%P", "shop%orders")
        assert request.ext_fields["c"] == "TBW102"


def test_names_change_a_batch_for_brokers_only_with_a_namespace() -> None:
    messages = [Message(topic="orders", body=b"1"), Message(topic="orders", body=b"2")]
    batch = Batch(queue=QUEUE, messages=messages, properties={})

    named = Names("shop").named_batch(batch)

    assert named.queue == FULL
    assert [message.topic for message in named.messages] == ["shop%orders"] * 2
    assert Names("").named_batch(batch) is batch


def test_names_of_received_queues_lose_the_namespace_and_keep_their_values() -> None:
    assert Names("shop").bare_queues({FULL: 7}) == {QUEUE: 7}
