"""Transactional messages: seen when their transaction is over, and asked for when nobody said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.producer.transactions import TransactionProducer
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import LocalTransactionState, Message, MessageExt, MessageQueue
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.requests.pull import PullRequest
from tests.both.support import ANSWER_S, await_readable
from tests.helpers.cluster import ClusterUnderTest

_COMMIT = LocalTransactionState.COMMIT_MESSAGE
_ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE
_UNKNOWN = LocalTransactionState.UNKNOW
_HALF_WAY = "order-7"
"""Whose sender dies."""


@pytest.fixture
def checks() -> SimpleQueue[MessageExt]:
    """The messages that brokers asked for."""
    return SimpleQueue()


@pytest.fixture
def producer(
    cluster: ClusterUnderTest, group: str, queue: MessageQueue, checks: SimpleQueue[MessageExt]
) -> Iterator[TransactionProducer]:
    """One that knows of the sender that died, when a broker asks for the second time,
    that it had succeeded.
    """
    asked: list[str] = []

    def check(message: MessageExt) -> LocalTransactionState:
        asked.append(message.msg_id)
        checks.put(message)
        if message.keys != _HALF_WAY:
            # A broker asks for others, too, while their senders are held up.
            return _UNKNOWN
        if asked.count(message.msg_id) == 1:
            raise ValueError("the database does not answer")
        return _COMMIT

    with TransactionProducer(
        cluster.name_servers, group, check, topics=[queue.topic], send_timeout_s=ANSWER_S
    ) as made:
        yield made


def message_of(queue: MessageQueue, text: str) -> Message:
    return Message(topic=queue.topic, body=text.encode(), properties={"KEYS": text, "TAGS": "tx"}, flag=7)


def readable(client: BrokerClient, address: str, queue: MessageQueue, count: int) -> list[MessageExt]:
    await_readable(client, address, queue, count)
    result = client.pull(address, PullRequest(consumer_group="readers", queue=queue, queue_offset=0))
    return decode_messages(result.body, queue.broker_name)


def test_a_message_is_seen_when_its_transaction_has_succeeded(
    producer: TransactionProducer, client: BrokerClient, address: str, queue: MessageQueue
) -> None:
    """G2 ★: not while it runs; never if it is rolled back."""
    seen: list[int] = []
    ids: list[str | None] = []

    def run(state: LocalTransactionState) -> Callable[[Message], LocalTransactionState]:
        def execute(message: Message) -> LocalTransactionState:
            seen.append(client.max_offset(address, queue))
            ids.append(message.msg_id)
            return state

        return execute

    results = [
        producer.send(message_of(queue, f"order-{number}"), run(state))
        for number, state in enumerate((_ROLLBACK, _COMMIT))
    ]

    (message,) = readable(client, address, queue, 1)
    assert seen == [0, 0]
    assert [result.state for result in results] == [_ROLLBACK, _COMMIT]
    assert (message.body, message.keys, message.tags) == (b"order-1", "order-1", "tx")
    assert message.msg_id == results[1].sent.msg_id
    assert ids == [result.sent.msg_id for result in results]
    assert message.properties["PGROUP"]
    of_half = {"REAL_TOPIC": queue.topic, "REAL_QID": str(queue.queue_id), "TRAN_MSG": "true"}
    assert message.properties.items() >= of_half.items()
    assert (message.flag, message.properties["WAIT"]) == (7, "true")


def test_a_broker_checks_transactions_that_were_neither_committed_nor_rolled_back(  # noqa: PLR0917
    producer: TransactionProducer,
    client: BrokerClient,
    address: str,
    queue: MessageQueue,
    checks: SimpleQueue[MessageExt],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """G2, L6 ★: a check that fails counts as not known, so it asks again; then the message is delivered."""

    def dies(message: Message) -> LocalTransactionState:
        raise KeyError("the sender dies half way")

    with pytest.raises(KeyError, match="half way"):
        producer.send(message_of(queue, _HALF_WAY), dies)

    (message,) = readable(client, address, queue, 1)
    asked = [checks.get(timeout=ANSWER_S) for _ in range(2)]
    assert {(each.topic, each.body, each.keys) for each in asked} == {
        (queue.topic, _HALF_WAY.encode(), _HALF_WAY)
    }
    assert message.msg_id == asked[0].msg_id == asked[1].msg_id
    assert [(each.flag, each.properties["WAIT"]) for each in (*asked, message)] == [
        (7, "false"),
        (0, "false"),
        (0, "true"),
    ]
    assert "transaction check failed" in caplog.text


def test_a_transaction_is_not_run_when_its_message_could_not_be_sent(
    producer: TransactionProducer, cluster: ClusterUnderTest
) -> None:
    """G2: the error surfaces."""
    with pytest.raises(RocketMQError, match="SCHEDULE_TOPIC_XXXX"):
        producer.send(Message(topic="SCHEDULE_TOPIC_XXXX", body=b"x"), lambda _: pytest.fail("it was sent"))
