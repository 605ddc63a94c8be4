"""Filtering by SQL92 at the broker: one table of cases, on the simulator and on the real RocketMQ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.channel import Channel
from pyspark_rocketmq.client.pool import ConnectionSettings
from pyspark_rocketmq.client.pull_connection import close_idle_connections
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.errors import ExpressionInvalid, RocketMQError
from pyspark_rocketmq.group.join import join_group
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.fastjson import dumps_java
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, HeartbeatData
from pyspark_rocketmq.wire.subscription import build_subscription
from tests.both.conftest import Put
from tests.both.support import ANSWER_S, TRIES_TO_BE_HELD
from tests.broker_sim.exchange import pull, request
from tests.helpers.batch_read import planned_batch, read_batch
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.sql92_cases import CASES, ILLEGAL

_MESSAGES = sorted({tuple(sorted(properties.items())) for _, properties, _ in CASES})
_SQL92 = "SQL92"


@pytest.fixture(autouse=True)
def property_filter(cluster: ClusterUnderTest, broker: Channel, soon: Deadline) -> Iterator[None]:
    """enablePropertyFilter is off by default, and on at the real brokers of the harness."""
    _filter_properties(broker, soon, is_on=True)
    yield
    _filter_properties(broker, soon, is_on=cluster.kind == "real")


def _filter_properties(broker: Channel, soon: Deadline, *, is_on: bool) -> None:
    setting = b"enablePropertyFilter=%s\n" % (b"true" if is_on else b"false")
    answer = broker.request(request(RequestCode.UPDATE_BROKER_CONFIG, body=setting), soon)
    assert answer.code == ResponseCode.SUCCESS


@pytest.fixture
def filled(put: Put, queue: MessageQueue) -> None:
    """One message for each set of properties; its body shows which."""
    put(
        *(
            Message(topic=queue.topic, body=b"%d" % number, properties=dict(properties))
            for number, properties in enumerate(_MESSAGES)
        )
    )


@pytest.mark.usefixtures("filled")
def test_a_pull_gets_the_messages_its_expression_matches(
    broker: Channel, queue: MessageQueue, group: str, soon: Deadline
) -> None:
    """E1: every case of the table, on the messages of all."""
    wrong = []
    for expression, properties, expected in CASES:
        offset = _MESSAGES.index(tuple(sorted(properties.items())))
        answer = broker.request(_pull(queue, group, offset, subscription=expression, maxMsgNums=1), soon)
        assert answer.code in {ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY}, expression
        matched = [message.queue_offset for message in decode_messages(answer.body, "broker-a")]
        if (matched[:1] == [offset]) is not expected:
            wrong.append((expression, properties))

    assert wrong == []


def test_the_client_learns_whether_its_expression_compiles(
    broker: Channel, queue: MessageQueue, group: str, soon: Deadline
) -> None:
    """E1, golden fact 9: code 46."""
    legal = {expression: ResponseCode.SUCCESS for expression, _, _ in CASES}
    for expression, code in {
        **legal,
        **dict.fromkeys(ILLEGAL, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    }.items():
        subscription = {"topic": queue.topic, "subString": expression, "expressionType": _SQL92}
        body = dumps_java({"clientId": "c", "group": group, "subscriptionData": subscription})
        answer = broker.request(request(RequestCode.CHECK_CLIENT_CONFIG, body=body), soon)
        assert answer.code == code, expression


@pytest.mark.usefixtures("filled")
def test_a_pull_with_an_expression_that_does_not_compile_gets_everything(
    broker: Channel, queue: MessageQueue, group: str, soon: Deadline
) -> None:
    """Golden fact 9."""
    command = _pull(queue, group, 0, subscription=ILLEGAL[0])
    answer = broker.request(command, soon)
    assert len(decode_messages(answer.body, "broker-a")) == min(32, len(_MESSAGES))


def test_an_expression_comes_with_the_heartbeat_and_must_be_as_new_as_the_pull(
    broker: Channel, queue: MessageQueue, group: str, soon: Deadline, put: Put
) -> None:
    """E1, E4: codes 24, 25, 27 and 0, by one group's registered expression."""
    put(*(Message(topic=queue.topic, body=b"x", properties={"a": str(number)}) for number in (1, 10)))

    def answer_to_pull(sub_version: int) -> int:
        command = _pull(queue, group, 0, sysFlag=0, subVersion=sub_version, subscription=None)
        answer = broker.request(command, soon)
        bodies.append(len(decode_messages(answer.body, "broker-a")) if answer.body else 0)
        return answer.code

    def register(expression: str, sub_version: int) -> None:
        subscription = build_subscription(
            queue.topic, expression, sub_version=sub_version, expression_type=_SQL92
        )
        consumer = ConsumerData(group_name=group, subscriptions=(subscription,))
        body = dumps_java(HeartbeatData(client_id="client", consumers=(consumer,)))
        broker.request(request(RequestCode.HEART_BEAT, body=body), soon)

    bodies: list[int] = []
    codes = [answer_to_pull(1)]
    register("a > 5", 2)
    codes += [answer_to_pull(2), answer_to_pull(3)]
    register("a >>> 5", 3)
    codes.append(answer_to_pull(3))

    assert codes == [
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUCCESS,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.FILTER_DATA_NOT_EXIST,
    ]
    assert bodies == [0, 1, 0, 0]


def test_only_a_message_that_matches_wakes_a_held_pull(
    broker: Channel, queue: MessageQueue, group: str, soon: Deadline, put: Put
) -> None:
    """B4 with SQL92: the first message passes by, the second ends the wait.

    A broker that looks into the queue between the two sends holds nothing and reports the first as
    passed by (PULL_RETRY_IMMEDIATELY). So the next pair is tried.
    """
    for number in range(TRIES_TO_BE_HELD):
        begin = 2 * number
        command = _pull(
            queue, group, begin, subscription="a > 5", sysFlag=6, suspendTimeoutMillis=int(ANSWER_S * 1000)
        )
        answers: SimpleQueue[RemotingCommand | RocketMQError] = SimpleQueue()
        broker.submit(command, answers.put, soon)
        put(Message(topic=queue.topic, body=b"small", properties={"a": "1"}))
        put(Message(topic=queue.topic, body=b"large", properties={"a": "10"}))

        answer = answers.get(timeout=ANSWER_S)
        assert isinstance(answer, RemotingCommand)
        if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            continue
        assert [message.body for message in decode_messages(answer.body, "broker-a")] == [b"large"]
        assert answer.ext_fields["nextBeginOffset"] == str(begin + 2)
        return
    pytest.fail("The broker held none of the pulls, though each was sent to the end of the queue.")


def _pull(queue: MessageQueue, group: str, queue_offset: int, **fields: object) -> RemotingCommand:
    return pull(
        queue_offset,
        **{"consumerGroup": group, "topic": queue.topic, "expressionType": _SQL92, **fields},
    )


def test_a_read_brings_what_its_condition_matches(
    cluster: ClusterUnderTest, broker: Channel, queue: MessageQueue, put: Put, soon: Deadline
) -> None:
    """sqlFilter, A4: and no condition is believed to filter before the broker has taken it."""
    put(*(Message(topic=queue.topic, body=b"x", properties={"amount": str(number)}) for number in range(50)))
    options = {"nameServers": cluster.name_servers, "topic": queue.topic}

    read = read_batch(**options, sqlFilter="amount > 10 AND amount <= 40", maxRecordsPerPartition="20")
    assert read.column("queueOffset").to_pylist() == list(range(11, 41))
    close_idle_connections()
    with pytest.raises(ExpressionInvalid, match="Correct the expression"):
        planned_batch(**options, sqlFilter=ILLEGAL[0])
    _filter_properties(broker, soon, is_on=False)
    with pytest.raises(ExpressionInvalid, match="needs enablePropertyFilter=true"):
        planned_batch(**options, sqlFilter="amount > 10")


def test_a_group_subscribes_by_a_condition(
    cluster: ClusterUnderTest, client: BrokerClient, address: str, queue: MessageQueue, group: str
) -> None:
    """sqlFilter, A3: its heartbeats have it for the brokers, which show it to administrators."""
    options = {
        "nameServers": cluster.name_servers,
        "subscriptions": json.dumps({queue.topic: {"sql": "amount > 10"}}),
        "consumerGroup": group,
        "offsetStore": "memory:sql92",
    }
    store = MemoryOffsetStore("sql92", clock=SystemClock())
    member = join_group(ReadOptions.parse(options), "sql-member", store, SystemClock())
    try:
        member.start()
        assert member.await_settled(ANSWER_S)
        with ConnectionSettings().open_pool(SystemClock()) as pool:
            told = (
                BrokerClient(pool, SystemClock(), ANSWER_S).consumer_connection(address, group).subscriptions
            )
    finally:
        member.stop(ANSWER_S)

    assert (told[queue.topic].expression_type, told[queue.topic].sub_string) == ("SQL92", "amount > 10")
    assert told[f"%RETRY%{group}"].expression_type == "TAG"
