"""A transaction producer as a member of its group: who may ask it, from when on, and who hears its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import pytest

import broker_sim.transactions
from broker_sim.cluster import SimCluster
from broker_sim.settings import BrokerSettings
from broker_sim.state import BrokerState, to_client
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.client.producer.transactions import TransactionProducer
from pyspark_rocketmq.errors import LocalProtocolError, RemoteProtocolError
from pyspark_rocketmq.model import LocalTransactionState, Message, MessageExt, MessageQueue
from pyspark_rocketmq.wire.codes import RequestCode
from tests.helpers.wait import PATIENCE_S, wait_until

pytestmark = pytest.mark.sim

COMMIT, UNKNOWN = LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.UNKNOW
A0 = MessageQueue("orders", "broker-a", 0)
ORDER = Message(topic="orders", body=b"placed", properties={"KEYS": "order-7"})


@pytest.fixture
def cluster() -> Iterator[SimCluster]:
    """Two brokers that ask soon, and often."""
    settings = BrokerSettings(
        transaction_timeout_s=0.05, transaction_check_interval_s=0.05, transaction_check_max=10_000
    )
    with SimCluster(brokers=2, settings=settings) as cluster:
        cluster.create_topic("orders", queues=1, brokers=["broker-a"])
        yield cluster


def member(
    cluster: SimCluster, check: Callable[[MessageExt], LocalTransactionState], *topics: str
) -> TransactionProducer:
    return TransactionProducer(cluster.name_servers, "tx", check, topics=topics, send_timeout_s=PATIENCE_S)


def is_member_at(cluster: SimCluster, name: str) -> bool:
    return cluster.call(lambda: bool(cluster.broker(name).state.producers.members("tx")))


def test_a_broker_that_does_not_say_its_name_is_answered(
    cluster: SimCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G2, L6: those before 5.2.0 do not; the answer goes where the question came from."""
    named = to_client

    def unnamed(
        state: BrokerState, code: RequestCode, fields: dict[str, str], *others: Any, **more: Any
    ) -> Any:
        fields = {name: text for name, text in fields.items() if name not in {"bname", "topic"}}
        request = named(state, code, fields, *others, **more)
        assert "bname" not in request.ext_fields
        return request

    monkeypatch.setattr(broker_sim.transactions, "to_client", unnamed)
    asked: SimpleQueue[MessageExt] = SimpleQueue()

    def check(message: MessageExt) -> LocalTransactionState:
        asked.put(message)
        return COMMIT

    with member(cluster, check, "orders") as producer:
        producer.send(ORDER, lambda _: UNKNOWN)
        wait_until(lambda: cluster.bounds(A0).max_offset == 1)

    assert asked.get(timeout=PATIENCE_S).broker_name == "broker-a"


def test_the_local_transaction_is_given_the_id_that_a_check_asks_for(cluster: SimCluster) -> None:
    """G2, L6: what it records under the id is found by whoever is asked."""
    states: dict[str | None, LocalTransactionState] = {}

    def execute(message: Message) -> LocalTransactionState:
        assert (message.topic, message.body, message.properties["KEYS"]) == ("orders", b"placed", "order-7")
        states[message.msg_id] = COMMIT
        return UNKNOWN

    with member(cluster, lambda message: states.get(message.msg_id, UNKNOWN), "orders") as producer:
        sent = producer.send(ORDER, execute).sent
        wait_until(lambda: cluster.bounds(A0).max_offset == 1)

    assert states == {sent.msg_id: COMMIT}


def test_a_transaction_whose_end_could_not_be_reported_is_not_run(
    cluster: SimCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G2: an error of the send says that nothing was done."""
    send = Producer.send
    monkeypatch.setattr(
        Producer, "send", lambda *given, **named: replace(send(*given, **named), offset_msg_id="nowhere")
    )
    executed: list[Message] = []

    def execute(message: Message) -> LocalTransactionState:
        executed.append(message)
        return COMMIT

    with (
        member(cluster, lambda _: UNKNOWN, "orders") as producer,
        pytest.raises(RemoteProtocolError, match="'nowhere' is not an offset message id"),
    ):
        producer.send(ORDER, execute)

    assert executed == []


def test_a_producer_that_begins_again_answers_before_its_first_send(cluster: SimCluster) -> None:
    """G2, L6: it may never send again, and consumers wait for the message of the one before."""
    with member(cluster, lambda _: UNKNOWN) as died:
        died.send(ORDER, lambda _: UNKNOWN)
    assert cluster.bounds(A0).max_offset == 0

    with member(cluster, lambda _: COMMIT, "orders"):
        wait_until(lambda: cluster.bounds(A0).max_offset == 1)


def test_every_broker_of_a_topic_that_was_sent_to_may_ask(cluster: SimCluster) -> None:
    """G2: also for what another member of the group has sent to it."""
    cluster.create_topic("paid", queues=1)

    with member(cluster, lambda _: UNKNOWN) as producer:
        producer.send(Message(topic="paid", body=b"x"), lambda _: COMMIT)
        wait_until(lambda: is_member_at(cluster, "broker-a") and is_member_at(cluster, "broker-b"))

    assert not is_member_at(cluster, "broker-a")
    assert not is_member_at(cluster, "broker-b")


def test_only_the_broker_that_takes_the_message_is_needed(
    cluster: SimCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """G2, G3: one that cannot be reached gets the member later."""
    cluster.create_topic("paid", queues=1)
    cluster.refuse_connections("broker-b")

    with member(cluster, lambda _: UNKNOWN, "paid") as producer:
        sent = [producer.send(Message(topic="paid", body=b"x"), lambda _: COMMIT).sent for _ in range(3)]
        wait_until(lambda: "heartbeat failed" in caplog.text)

    assert {each.queue.broker_name for each in sent} == {"broker-a"}
    wait_until(lambda: cluster.bounds(MessageQueue("paid", "broker-a", 0)).max_offset == 3)


def test_a_topic_that_is_not_there_yet_holds_up_no_other(
    cluster: SimCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """G2: it is looked for again with every heartbeat; the others are answered for."""
    with member(cluster, lambda _: UNKNOWN, "later", "orders"):
        wait_until(lambda: is_member_at(cluster, "broker-a"))

    assert "topic=later" in caplog.text


def test_a_message_may_be_as_large_as_its_producer_is_configured(cluster: SimCluster) -> None:
    """G2, C4: as of any producer."""
    producer = TransactionProducer(
        cluster.name_servers, "tx", lambda _: UNKNOWN, topics=["orders"], max_message_size=10
    )
    with producer, pytest.raises(LocalProtocolError, match="body of 11 bytes; 10 can be sent"):
        producer.send(replace(ORDER, body=b"x" * 11), lambda *_: COMMIT)
