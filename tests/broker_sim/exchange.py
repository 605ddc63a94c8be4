"""Requests for a simulated broker, and one way to get their answers without sockets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker_sim.broker import Broker
from broker_sim.layout import Host
from broker_sim.nameserver import NameServer
from broker_sim.replies import Outgoing, Peer
from broker_sim.settings import BrokerSettings
from broker_sim.topics import Topic
from pyspark_rocketmq.model import Message
from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.fastjson import dumps_java
from pyspark_rocketmq.wire.messages import encode_batch
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, HeartbeatData
from pyspark_rocketmq.wire.subscription import build_subscription
from tests.helpers.fake_clock import FakeClock

PEER = Peer(1, Host("127.0.0.1", 50001))
OTHER_PEER = Peer(2, Host("127.0.0.1", 50002))
TOPIC = "orders"
GROUP = "billing"


def make_broker(clock: FakeClock, *, queues: int = 4, settings: BrokerSettings | None = None) -> Broker:
    broker = Broker("broker-a", clock, settings)
    broker.listening_at(Host("127.0.0.1", 10911))
    add_topic(broker, TOPIC, queues)
    return broker


def add_topic(broker: Broker, topic: str, queues: int, *, perm: int = 6) -> None:
    broker.state.topics.put(
        Topic(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
    )


def ask(endpoint: Broker | NameServer, command: RemotingCommand, peer: Peer = PEER) -> RemotingCommand:
    """The answer to ``command``; fails when it is held."""
    answer = answer_in(endpoint.handle(peer, command), command)
    assert answer is not None, f"request {command.code} got no answer"
    return answer


def answer_in(outgoing: list[Outgoing], command: RemotingCommand) -> RemotingCommand | None:
    return next(
        (
            each.command
            for each in outgoing
            if each.command.is_response and each.command.opaque == command.opaque
        ),
        None,
    )


def request(code: int, fields: Mapping[str, object] | None = None, **changes: Any) -> RemotingCommand:
    texts = {name: str(value) for name, value in (fields or {}).items() if value is not None}
    return RemotingCommand(code=code, ext_fields=texts, **{"opaque": 7, **changes})


def pull(queue_offset: int = 0, **fields: Any) -> RemotingCommand:
    opaque = fields.pop("opaque", 7)
    code = fields.pop("code", RequestCode.PULL_MESSAGE)
    defaults = {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": 0,
        "queueOffset": queue_offset,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 1,
        "expressionType": "TAG",
    }
    return request(code, {**defaults, **fields}, opaque=opaque)


def held_pull(queue_offset: int = 0, timeout_ms: int = 15000, **fields: Any) -> RemotingCommand:
    return pull(queue_offset, sysFlag=6, suspendTimeoutMillis=timeout_ms, **fields)


def send(body: bytes = b"hello", **fields: object) -> RemotingCommand:
    defaults = {
        "a": "producers",
        "b": TOPIC,
        "c": "TBW102",
        "d": 4,
        "e": 0,
        "f": 0,
        "g": 1_700_000_000_000,
        "h": 0,
        "i": "TAGS\x01TagA\x02UNIQ_KEY\x01AB\x02",
        "j": 0,
        "k": "false",
        "m": "false",
    }
    return request(RequestCode.SEND_MESSAGE_V2, {**defaults, **fields}, body=body)


def send_batch(messages: list[Message], **fields: object) -> RemotingCommand:
    single = send(encode_batch(messages), **{"i": "UNIQ_KEY\x01CD\x02", "m": "true", **fields})
    return request(RequestCode.SEND_BATCH_MESSAGE, single.ext_fields, body=single.body)


def message(body: bytes = b"hello", tag: str | None = None) -> Message:
    return Message(topic=TOPIC, body=body, properties={"TAGS": tag} if tag else {})


def heartbeat(
    client_id: str, *topics: str, group: str = GROUP, expression: str = "*", sub_version: int = 1
) -> RemotingCommand:
    consumer = ConsumerData(
        group_name=group,
        subscriptions=tuple(
            build_subscription(topic, expression, sub_version=sub_version) for topic in topics or (TOPIC,)
        ),
    )
    body = dumps_java(HeartbeatData(client_id=client_id, consumers=(consumer,)))
    return request(RequestCode.HEART_BEAT, body=body)
