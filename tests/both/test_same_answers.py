"""The simulator against the real RocketMQ: one random sequence of requests, the same answers from both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspark_rocketmq.client.channel import Channel
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand, SerializeType
from pyspark_rocketmq.wire.fastjson import dumps_java
from pyspark_rocketmq.wire.requests.bodies import LockBatchRequest
from tests.both.answers import essence
from tests.both.support import ANSWER_S
from tests.broker_sim import exchange
from tests.helpers.cluster import Backend, ClusterUnderTest
from tests.helpers.wait import wait_until

_QUEUES = 2
_CLIENTS = {"client-0": SerializeType.JSON, "client-1": SerializeType.ROCKETMQ}
"""With the form of their requests' headers."""
_FAR_FUTURE_MS = 4_000_000_000_000


@dataclass(frozen=True)
class Names:
    """Fresh names, so that every sequence begins with an empty topic and an unknown group."""

    topic: str
    group: str

    def placed(self, name: str) -> str:
        """``name`` with {topic} and {group} filled in."""
        return name.format(topic=self.topic, group=self.group)


@dataclass(frozen=True)
class Step:
    """One request of a sequence; printed by hypothesis when it makes a difference."""

    what: str
    arguments: tuple[Any, ...]
    client: int = 0

    def request(self, names: Names) -> RemotingCommand:
        name, form = list(_CLIENTS.items())[self.client]
        return replace(_REQUESTS[self.what](names, name, *self.arguments), serialize_type=form)


class Side:
    """One of the two clusters, with a connection for each client."""

    def __init__(self, backend: Backend, kind: str) -> None:
        self.cluster = ClusterUnderTest(backend, kind)
        self._pools = [ChannelPool(SystemClock()) for _ in _CLIENTS]

    def close(self) -> None:
        for pool in self._pools:
            pool.close()

    def perform(self, step: Step, names: Names) -> dict[str, Any]:
        request = step.request(names)
        answer = self._ask(step.client, request)
        if answer.code == ResponseCode.SUCCESS and request.ext_fields.get("b") == names.topic:
            self._await_readable(names, answer)
        return essence(request, answer) | {"form": answer.serialize_type}

    def _ask(self, client: int, request: RemotingCommand) -> RemotingCommand:
        deadline = Deadline.after(SystemClock(), 2 * ANSWER_S)
        channel: Channel = self._pools[client].get(self.cluster.broker_addresses["broker-a"], deadline)
        return channel.request(request, deadline)

    def _await_readable(self, names: Names, sent: RemotingCommand) -> None:
        # A real broker enters a stored message into the consume queue a moment later.
        count = len(sent.ext_fields["msgId"].split(","))
        queue_id, end = int(sent.ext_fields["queueId"]), int(sent.ext_fields["queueOffset"]) + count
        wait_until(
            lambda: int(self._ask(0, _max_offset(names, "", queue_id)).ext_fields["offset"]) >= end,
            reason=f"{count} messages in queue {queue_id} of {names.topic}",
        )


def _send(names: Names, _: str, queue_id: int, body: bytes, properties: str, flag: int) -> RemotingCommand:
    return exchange.send(body, b=names.topic, e=queue_id, i=properties, h=flag)


def _send_batch(names: Names, _: str, queue_id: int, bodies: tuple[bytes, ...], tag: str) -> RemotingCommand:
    messages = [
        Message(
            topic=names.topic, body=body, properties={"TAGS": tag, "UNIQ_KEY": f"{index:032d}"}, flag=index
        )
        for index, body in enumerate(bodies)
    ]
    return exchange.send_batch(messages, b=names.topic, e=queue_id)


def _send_elsewhere(names: Names, _: str, topic: str, queue_id: int, queue_nums: int) -> RemotingCommand:
    return exchange.send(b"elsewhere", b=names.placed(topic), e=queue_id, d=queue_nums)


def _spoiled(names: Names, client: str, what: str, field: str, value: str) -> RemotingCommand:
    """A request that would be right but for one field.

    None is left out, which an empty one is in a binary header:
    Java checks that for some requests and fails somewhere else for others.
    """
    if not value and _CLIENTS[client] is SerializeType.ROCKETMQ:
        value = "-"
    right = _SPOILED[what](names, client)
    return replace(right, ext_fields={**right.ext_fields, field: value})


def _pull(
    names: Names, _: str, queue_id: int, queue_offset: int, count: int, subscription: str
) -> RemotingCommand:
    return exchange.pull(
        queue_offset,
        consumerGroup=names.group,
        topic=names.topic,
        queueId=queue_id,
        maxMsgNums=count,
        subscription=subscription,
    )


def _pull_by_heartbeat(names: Names, _: str, queue_id: int, sub_version: int, commit: int) -> RemotingCommand:
    return exchange.pull(
        0,
        consumerGroup=names.group,
        topic=names.topic,
        queueId=queue_id,
        sysFlag=0 if commit < 0 else 1,
        commitOffset=max(0, commit),
        subVersion=sub_version,
        subscription=None,
    )


def _query_offset(names: Names, _: str, queue_id: int, zero: str | None) -> RemotingCommand:
    return _group_request(RequestCode.QUERY_CONSUMER_OFFSET, names, queue_id, setZeroIfNotFound=zero)


def _update_offset(names: Names, _: str, queue_id: int, queue_offset: int) -> RemotingCommand:
    return _group_request(RequestCode.UPDATE_CONSUMER_OFFSET, names, queue_id, commitOffset=queue_offset)


def _group_request(code: RequestCode, names: Names, queue_id: int, **fields: object) -> RemotingCommand:
    return exchange.request(
        code, {"consumerGroup": names.group, "topic": names.topic, "queueId": queue_id, **fields}
    )


def _max_offset(names: Names, _: str, queue_id: int) -> RemotingCommand:
    return exchange.request(RequestCode.GET_MAX_OFFSET, {"topic": names.topic, "queueId": queue_id})


def _min_offset(names: Names, _: str, queue_id: int) -> RemotingCommand:
    return exchange.request(RequestCode.GET_MIN_OFFSET, {"topic": names.topic, "queueId": queue_id})


def _search_offset(
    names: Names, _: str, queue_id: int, timestamp: int, boundary: str | None
) -> RemotingCommand:
    return exchange.request(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        {"topic": names.topic, "queueId": queue_id, "timestamp": timestamp, "boundaryType": boundary},
    )


def _topic_stats(names: Names, _: str) -> RemotingCommand:
    return exchange.request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": names.topic})


def _heartbeat(names: Names, client: str, expression: str, sub_version: int) -> RemotingCommand:
    return exchange.heartbeat(
        client, names.topic, group=names.group, expression=expression, sub_version=sub_version
    )


def _unregister(names: Names, client: str) -> RemotingCommand:
    return exchange.request(RequestCode.UNREGISTER_CLIENT, {"clientID": client, "consumerGroup": names.group})


def _consumer_list(names: Names, _: str) -> RemotingCommand:
    return exchange.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": names.group})


def _lock(names: Names, client: str, queue_ids: frozenset[int]) -> RemotingCommand:
    return _lock_request(RequestCode.LOCK_BATCH_MQ, names, client, queue_ids)


def _unlock(names: Names, client: str, queue_ids: frozenset[int]) -> RemotingCommand:
    return _lock_request(RequestCode.UNLOCK_BATCH_MQ, names, client, queue_ids)


def _lock_request(code: RequestCode, names: Names, client: str, queue_ids: frozenset[int]) -> RemotingCommand:
    queues = frozenset(MessageQueue(names.topic, "broker-a", queue_id) for queue_id in queue_ids)
    body = dumps_java(LockBatchRequest(consumer_group=names.group, client_id=client, queues=queues))
    return exchange.request(code, body=body)


_REQUESTS: dict[str, Callable[..., RemotingCommand]] = {
    "send": _send,
    "send_batch": _send_batch,
    "send_elsewhere": _send_elsewhere,
    "spoiled": _spoiled,
    "pull": _pull,
    "pull_by_heartbeat": _pull_by_heartbeat,
    "query_offset": _query_offset,
    "update_offset": _update_offset,
    "max_offset": _max_offset,
    "min_offset": _min_offset,
    "search_offset": _search_offset,
    "topic_stats": _topic_stats,
    "heartbeat": _heartbeat,
    "unregister": _unregister,
    "consumer_list": _consumer_list,
    "lock": _lock,
    "unlock": _unlock,
}

_SPOILED: dict[str, Callable[[Names, str], RemotingCommand]] = {
    "send": lambda names, client: _send(names, client, 0, b"x", "", 0),
    "pull": lambda names, client: _pull(names, client, 0, 0, 32, "*"),
    "query_offset": lambda names, client: _query_offset(names, client, 0, None),
    "max_offset": lambda names, client: _max_offset(names, client, 0),
    "heartbeat": lambda names, client: _heartbeat(names, client, "*", 1),
}

queue_ids = st.integers(min_value=-1, max_value=_QUEUES)
offsets = st.integers(min_value=-5, max_value=12)
tags = st.sampled_from(["TagA", "TagB", "Aa", "BB"])  # the hash codes of Aa and BB are equal
expressions = st.sampled_from(["*", "TagA", "TagA || TagB", " TagB ", "BB", "||", "Aa||"])
properties = st.one_of(
    st.just(""),
    tags.map(lambda tag: f"TAGS\x01{tag}\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01{'0' * 32}\x02"),
    tags.map(lambda tag: f"own\x01value\x02TAGS\x01{tag}"),
)
bodies = st.binary(min_size=1, max_size=20)
places = st.sampled_from(
    [
        "{topic}-new",
        "%RETRY%{group}",
        "%DLQ%{group}",
        "bad name",
        "x" * 128,
        "",
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
    ]
)
fields = st.sampled_from(
    [
        "a",
        "b",
        "e",
        "g",
        "i",
        "consumerGroup",
        "topic",
        "queueId",
        "queueOffset",
        "maxMsgNums",
        "subscription",
    ]
)
spoilt_values = st.sampled_from(["", "0", "7", "x", "%RETRY%x", "99999999999"])
versions = st.integers(min_value=1, max_value=3)
clients = st.integers(min_value=0, max_value=1)


def _steps(what: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.builds(Step, st.just(what), st.tuples(*arguments), clients)


steps = st.one_of(
    _steps("send", st.integers(0, _QUEUES), bodies, properties, st.integers(min_value=0, max_value=3)),
    _steps("send", st.integers(0, _QUEUES - 1), bodies, properties, st.just(0)),
    _steps(
        "send_batch", st.integers(0, _QUEUES - 1), st.lists(bodies, min_size=1, max_size=4).map(tuple), tags
    ),
    _steps("send_elsewhere", places, st.integers(0, 3), st.integers(0, 9)),
    _steps("spoiled", st.sampled_from(sorted(_SPOILED)), fields, spoilt_values),
    _steps("pull", queue_ids, offsets, st.integers(min_value=-1, max_value=5), expressions),
    _steps("pull", st.integers(0, _QUEUES - 1), st.integers(0, 4), st.just(32), expressions),
    _steps(
        "pull_by_heartbeat", st.integers(0, _QUEUES - 1), versions, st.integers(min_value=-1, max_value=3)
    ),
    _steps("query_offset", queue_ids, st.sampled_from([None, "true", "false"])),
    _steps("update_offset", queue_ids, offsets),
    _steps("max_offset", queue_ids),
    _steps("min_offset", queue_ids),
    _steps(
        "search_offset", queue_ids, st.sampled_from([0, _FAR_FUTURE_MS]), st.sampled_from([None, "upper"])
    ),
    _steps("topic_stats"),
    _steps("heartbeat", st.sampled_from(["*", "TagA", "TagA || TagB"]), versions),
    _steps("unregister"),
    _steps("consumer_list"),
    _steps("lock", st.frozensets(queue_ids, max_size=3)),
    _steps("unlock", st.frozensets(queue_ids, max_size=3)),
)


@pytest.fixture(scope="module")
def sides(sim_cluster: Backend, real_cluster: Backend) -> Iterator[tuple[Side, Side]]:
    both = Side(sim_cluster, "sim"), Side(real_cluster, "real")
    yield both
    for side in both:
        side.close()


@pytest.mark.real
@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(sequence=st.lists(steps, min_size=4, max_size=14))
def test_the_simulator_answers_as_the_real_broker_does(
    sides: tuple[Side, Side], sequence: list[Step]
) -> None:
    simulated, real = sides
    names = Names(real.cluster.unique_name(), real.cluster.unique_name("group"))
    for side in sides:
        side.cluster.create_topic(names.topic, _QUEUES, brokers=["broker-a"])

    for step in sequence:
        assert simulated.perform(step, names) == real.perform(step, names), f"{step} of {names}"
