"""Administrators' requests: the simulator and the real RocketMQ, brought to the same state, answer alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pyspark_rocketmq.client.channel import Channel
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.fastjson import ObjectMap, dumps_java, loads
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, HeartbeatData
from pyspark_rocketmq.wire.subscription import build_subscription
from tests.both.support import ANSWER_S
from tests.broker_sim.exchange import pull, request, send
from tests.helpers.cluster import Backend, ClusterUnderTest
from tests.helpers.wait import wait_until

pytestmark = pytest.mark.real

_VERSION = 479
_MESSAGES = 5
_MOMENTS = re.compile(r"[tT]ime[sS]tamp|Time$|Offset$|dataVersion|mappingDataVersion|physic|delay|Tps$")
# The index is the whole broker's: other tests' messages are in it.
_CIRCUMSTANCES = re.compile(rf"{_MOMENTS.pattern}|^indexLastUpdatePhyoffset$")
_ADDRESS = re.compile(r"127\.0\.0\.1:\d+")


_CLIENTS_ANSWER = b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:3}}'


@dataclass
class _Side:
    """One of the clusters with a member of a group, whose connection the test plays."""

    cluster: ClusterUnderTest
    pushes: list[RemotingCommand] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._pool = ChannelPool(SystemClock(), handler_for=lambda _: self._serve)
        self.topic = self.group = ""
        self.ids: list[str] = []

    def close(self) -> None:
        self._pool.close()

    def prepare(self, topic: str, group: str) -> None:
        self.topic, self.group, self.ids = topic, group, []
        self.cluster.create_topic(topic, 2, brokers=["broker-a"])
        for number in range(_MESSAGES):
            keys = f"TAGS\x01T{number}\x02KEYS\x01all k{number}\x02UNIQ_KEY\x01{topic}{number}\x02"
            self.ids.append(self.ask(send(b"%d" % number, b=topic, i=keys)).ext_fields["msgId"])
        wait_until(
            lambda: (
                self.ask(self._about_queue(RequestCode.GET_MAX_OFFSET)).ext_fields["offset"] == str(_MESSAGES)
            ),
            ANSWER_S,
            reason=f"{_MESSAGES} messages in {topic}",
        )
        self.join()
        self.commit(2)

    def join(self) -> None:
        subscriptions = (
            build_subscription(self.topic, "*", sub_version=1),
            build_subscription(f"%RETRY%{self.group}", "*", sub_version=1),
        )
        consumer = ConsumerData(group_name=self.group, subscriptions=subscriptions)
        heartbeat = HeartbeatData(
            client_id="client", consumers=(consumer,), producers=(f"{self.group}-producers",)
        )
        self.ask(request(RequestCode.HEART_BEAT, body=dumps_java(heartbeat), version=_VERSION))

    def commit(self, queue_offset: int) -> None:
        fields = {"consumerGroup": self.group, "commitOffset": queue_offset}
        self.ask(self._about_queue(RequestCode.UPDATE_CONSUMER_OFFSET, **fields))

    def ask(self, command: RemotingCommand) -> RemotingCommand:
        deadline = Deadline.after(SystemClock(), 3 * ANSWER_S)
        return self._channel(deadline).request(replace(command, version=_VERSION), deadline)

    def outcome(self, command: RemotingCommand) -> dict[str, Any]:
        """The answer without its circumstances."""
        answer = self.ask(command)
        return {
            "code": ResponseCode(answer.code).name,
            "remark": _ADDRESS.sub("address", answer.remark or "") if answer.code else None,
            "fields": {
                name: ... if _CIRCUMSTANCES.search(name) else v for name, v in answer.ext_fields.items()
            },
            "body": self._shown(answer.body),
        }

    def _shown(self, body: bytes) -> object:
        if not body:
            return None
        if body[:1] == b"{":
            return _without_moments(loads(_ADDRESS.sub("address", body.decode()).encode()))
        return [message.body for message in decode_messages(body, "broker-a")]

    def _about_queue(self, code: RequestCode, **fields: object) -> RemotingCommand:
        return request(code, {"topic": self.topic, "queueId": 0, **fields})

    def _channel(self, deadline: Deadline) -> Channel:
        return self._pool.get(self.cluster.broker_addresses["broker-a"], deadline)

    def _serve(self, command: RemotingCommand) -> RemotingCommand | None:
        self.pushes.append(command)
        if command.is_oneway:
            return None
        return command.response(0, body=_CLIENTS_ANSWER)


def _without_moments(value: object) -> object:
    if isinstance(value, dict):
        return {
            name: ...
            if _MOMENTS.search(name) and not isinstance(item, (dict, ObjectMap))
            else _without_moments(item)
            for name, item in value.items()
            if name not in {"dataVersion", "mappingDataVersion"}
        }
    if isinstance(value, ObjectMap):
        return sorted((str(_without_moments(key)), str(_without_moments(item))) for key, item in value)
    if isinstance(value, list):
        return sorted(map(_without_moments, value), key=str)
    return value


_Ask = Callable[[_Side], RemotingCommand]


def _group(code: RequestCode, **fields: object) -> _Ask:
    """A request that names the group as ``consumerGroup``."""
    return lambda side: request(code, {"consumerGroup": side.group, **fields})


def _topic_group(code: RequestCode, **fields: object) -> _Ask:
    return lambda side: request(code, {"topic": side.topic, "group": side.group, **fields})


def _by_key(key: str, **fields: object) -> _Ask:
    times = {"beginTimestamp": 0, "endTimestamp": (1 << 63) - 1}
    return lambda side: request(
        RequestCode.QUERY_MESSAGE,
        {"topic": side.topic, "key": key.format(topic=side.topic), "maxNum": 3, **times, **fields},
    )


def _entries(**fields: object) -> _Ask:
    defaults = {"queueId": 0, "index": 1, "count": 2}
    return lambda side: request(RequestCode.QUERY_CONSUME_QUEUE, {"topic": side.topic, **defaults, **fields})


def _view(side: _Side) -> RemotingCommand:
    return request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": int(side.ids[3][-16:], 16)})


def _put_group(**config: object) -> _Ask:
    return lambda side: request(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        body=dumps_java({"groupName": f"{side.group}-made", **config}),
    )


def _made_group(code: RequestCode, name: str, **fields: object) -> _Ask:
    return lambda side: request(code, {name: f"{side.group}-made", **fields})


def _consume_directly(side: _Side) -> RemotingCommand:
    fields = {"consumerGroup": side.group, "clientId": "client", "msgId": side.ids[1], "topic": side.topic}
    return request(RequestCode.CONSUME_MESSAGE_DIRECTLY, {**fields, "brokerName": "broker-a"})


def _clone(side: _Side) -> RemotingCommand:
    fields = {
        "srcGroup": side.group,
        "destGroup": f"{side.group}-clone",
        "topic": side.topic,
        "offline": "true",
    }
    return request(RequestCode.CLONE_GROUP_OFFSET, fields)


def _send_back(offset: int | None, level: int) -> _Ask:
    def ask(side: _Side) -> RemotingCommand:
        at = int(side.ids[4][-16:], 16) if offset is None else offset
        fields = {"offset": at, "group": side.group, "delayLevel": level, "originTopic": side.topic}
        return request(RequestCode.CONSUMER_SEND_MSG_BACK, {**fields, "maxReconsumeTimes": 3})

    return ask


_CASES: dict[str, _Ask] = {
    "consume stats": _group(RequestCode.GET_CONSUME_STATS),
    "consume stats of a topic": lambda side: request(
        RequestCode.GET_CONSUME_STATS, {"consumerGroup": side.group, "topic": side.topic}
    ),
    "consume stats of a topic nobody subscribes to": _group(RequestCode.GET_CONSUME_STATS, topic="TBW102"),
    "consume stats of a list": lambda side: request(
        RequestCode.GET_CONSUME_STATS, {"consumerGroup": "nobody", "topicList": f"{side.topic};no-such;"}
    ),
    "groups of the topic": _topic_group(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO),
    "groups of no topic": _topic_group(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="no-such"),
    "topics of the group": _topic_group(RequestCode.QUERY_TOPICS_BY_CONSUMER),
    "subscription": _topic_group(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER),
    "no subscription": _topic_group(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, topic="no-such"),
    "time span": _topic_group(RequestCode.QUERY_CONSUME_TIME_SPAN),
    "time span of no topic": _topic_group(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="no-such"),
    "clone offsets": _clone,
    "stats of the clone": lambda side: request(
        RequestCode.GET_CONSUME_STATS, {"consumerGroup": f"{side.group}-clone"}
    ),
    "queue entries": _entries(),
    "queue entries of a group": lambda side: _entries(consumerGroup=f"{side.group}-x")(side),
    "queue entries of no queue": _entries(queueId=9),
    "queue entries past the end": _entries(index=99),
    "topic": _topic_group(RequestCode.GET_TOPIC_CONFIG),
    "no topic": _topic_group(RequestCode.GET_TOPIC_CONFIG, topic="no-such"),
    "a system topic cannot be deleted": _topic_group(RequestCode.DELETE_TOPIC_IN_BROKER, topic="TBW102"),
    "make a group": _put_group(retryMaxTimes=3, consumeEnable=False),
    "the made group": _made_group(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, "group"),
    "delete the group": _made_group(RequestCode.DELETE_SUBSCRIPTIONGROUP, "groupName", cleanOffset="true"),
    "an illegal group": _put_group(groupName="not a name"),
    "a group without a name": _put_group(groupName=" "),
    "consumer connections": _group(RequestCode.GET_CONSUMER_CONNECTION_LIST),
    "connections of no group": _group(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="nobody"),
    "producer connections": lambda side: request(
        RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": f"{side.group}-producers"}
    ),
    "connections of no producer group": lambda _: request(
        RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "nobody"}
    ),
    "messages by a key of all": _by_key("all"),
    "messages by a key of one": _by_key("k2"),
    "messages by no key": _by_key("k"),
    "messages by unique key": _by_key("{topic}1", _UNIQUE_KEY_QUERY="true"),
    "messages before any": _by_key("all", endTimestamp=1000),
    "view a message": _view,
    "view nothing": lambda _: request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 1 << 40}),
    "running info": _group(RequestCode.GET_CONSUMER_RUNNING_INFO, clientId="client"),
    "running info of nobody": _group(RequestCode.GET_CONSUMER_RUNNING_INFO, clientId="nobody"),
    "consume directly": _consume_directly,
    "consumer status": _topic_group(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS),
    "consumer status of nobody": _topic_group(
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, clientAddr="nobody"
    ),
    "reset of no topic": _topic_group(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, topic="no-such", timestamp=0, isForce="true", queueId=-1
    ),
    "reset of no group": _topic_group(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, group="nobody", timestamp=0, isForce="true", queueId=-1
    ),
    "reset beyond the end": _topic_group(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, timestamp=0, isForce="true", queueId=0, offset=99
    ),
    "send back what is not there": _send_back(1 << 40, 0),
    "send back to the dead letters": _send_back(None, -1),
}


@pytest.fixture(scope="module")
def sides(sim_cluster: Backend, real_cluster: Backend) -> Iterator[tuple[_Side, _Side]]:
    both = _Side(ClusterUnderTest(sim_cluster, "sim")), _Side(ClusterUnderTest(real_cluster, "real"))
    topic, group = both[0].cluster.unique_name(), both[0].cluster.unique_name("group")
    for side in both:
        side.prepare(topic, group)
    yield both
    for side in both:
        side.close()


@pytest.mark.parametrize("case", _CASES)
def test_both_answer_an_administrator_alike(sides: tuple[_Side, _Side], case: str) -> None:
    """A4: code, remark of errors, ext fields and body, without moments and commit log offsets."""
    for side in sides:
        # Else a member is forgotten after two minutes.
        side.join()
    simulated, real = (side.outcome(_CASES[case](side)) for side in sides)
    assert simulated == real


def test_both_asked_their_client_the_same(sides: tuple[_Side, _Side]) -> None:
    """A4: 307, 309 and 221 as the client gets them; commands and messages are the administrator's."""
    simulated, real = (
        [
            (push.code, push.flag, {**push.ext_fields, "msgId": ...}, bool(push.body))
            for push in side.pushes
            if push.code != RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        ]
        for side in sides
    )
    assert simulated == real
    assert simulated


def test_a_dead_letter_looks_the_same_on_both(sides: tuple[_Side, _Side]) -> None:
    """G1: the copy that code 36 stored."""
    simulated, real = (_dead_letter(side) for side in sides)
    assert simulated == real


def test_a_reset_is_taken_by_one_pull_and_shuts_out_commits_until_then(sides: tuple[_Side, _Side]) -> None:
    """F5, golden fact 11: section 2.9, step by step."""
    simulated, real = (_reset_steps(side) for side in sides)
    assert simulated == real
    assert [step["code"] for step in simulated][3:5] == ["PULL_OFFSET_MOVED", "SUCCESS"]


def _dead_letter(side: _Side) -> dict[str, Any]:
    def pulled() -> bytes:
        command = pull(0, consumerGroup=side.group, topic=f"%DLQ%{side.group}")
        return side.ask(command).body

    wait_until(lambda: bool(pulled()), ANSWER_S, reason="a dead letter")
    (message,) = decode_messages(pulled(), "broker-a")
    facts = message._asdict()
    for name in ("commit_log_offset", "store_timestamp", "store_host", "born_host"):
        del facts[name]
    origin = message.properties["ORIGIN_MESSAGE_ID"]
    assert origin == side.ids[4]
    return {**facts, "properties": {**message.properties, "ORIGIN_MESSAGE_ID": ...}}


def _reset_steps(side: _Side) -> list[dict[str, Any]]:
    queue = MessageQueue(side.topic, "broker-a", 0)
    reset = _topic_group(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, timestamp=0, isForce="true", queueId=-1, offset=-1
    )
    commit = {"consumerGroup": side.group, "topic": queue.topic, "queueId": 0, "commitOffset": 4}
    query = {"consumerGroup": side.group, "topic": queue.topic, "queueId": 0}
    pulled = pull(2, consumerGroup=side.group, topic=queue.topic, sysFlag=5, commitOffset=3)
    steps = (
        reset(side),
        request(RequestCode.UPDATE_CONSUMER_OFFSET, commit),
        request(RequestCode.QUERY_CONSUMER_OFFSET, query),
        pulled,
        pulled,
        request(RequestCode.UPDATE_CONSUMER_OFFSET, commit),
        request(RequestCode.QUERY_CONSUMER_OFFSET, query),
    )
    return [side.outcome(step) for step in steps]
