from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import count

import pytest

from pyspark_rocketmq.client.producer.async_sends import AsyncSends
from pyspark_rocketmq.client.producer.attempts import select_message_queue_by_hash
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.errors import ChannelClosed, NoWritableQueue, SystemBusy, TooManySends
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.properties import decode_properties
from pyspark_rocketmq.wire.requests.send import SendResult
from tests.helpers.fake_clock import FakeClock
from tests.helpers.scripted_cluster import ScriptedCluster
from tests.helpers.scripted_server import Peer
from tests.helpers.wait import PATIENCE_S, wait_until

A0 = MessageQueue("orders", "broker-a", 0)
PAID = Message(topic="orders", body=b"paid")
TIMEOUT_S = PATIENCE_S


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster() as cluster:
        cluster.routes["orders"] = cluster.route({"broker-a": 1, "broker-b": 1})
        yield cluster


@pytest.fixture
def producer(cluster: ScriptedCluster) -> Iterator[Producer]:
    with Producer((cluster.name_server.address,), "P", send_timeout_s=TIMEOUT_S) as producer:
        yield producer


def hang_up(cluster: ScriptedCluster, broker: str) -> list[RemotingCommand]:
    """Have the broker close the connection of every request; these are what it was asked."""
    asked: list[RemotingCommand] = []

    def fault(peer: Peer, request: RemotingCommand) -> None:
        asked.append(request)
        peer.close()

    cluster.brokers[broker].fault = fault
    return asked


def test_every_send_has_a_future(cluster: ScriptedCluster, producer: Producer) -> None:
    """G2: results and errors, whatever their order; the queue of a key is Java's."""
    sends = AsyncSends(producer)

    stored = [sends.send(PAID, sharding_key=f"order-{number}") for number in range(50)]
    assert sends.drain(TIMEOUT_S)
    cluster.brokers["broker-a"].fault = lambda peer, request: peer.answer(request, ResponseCode.SYSTEM_BUSY)
    failed = sends.send(PAID, queue=A0)

    assert {future.result(0).queue.broker_name for future in stored} == {"broker-a", "broker-b"}
    assert isinstance(failed.exception(TIMEOUT_S), SystemBusy)


def test_drained_sends_are_done_with_their_callbacks(producer: Producer) -> None:
    """G2: what is added to a future has run, and may have sent the next
    message although only one may be under way.
    """
    sends = AsyncSends(producer, max_sends=1)
    pause, chain = threading.Event(), [sends.send(PAID)]

    def go_on(_: Future[SendResult]) -> None:
        pause.wait(0.05)
        if len(chain) < 3:
            chain.append(sends.send(PAID))
            chain[-1].add_done_callback(go_on)

    chain[0].add_done_callback(go_on)

    assert sends.drain(TIMEOUT_S)
    assert [future.done() for future in chain] == [True] * 3


@pytest.mark.parametrize("bound", [{"max_sends": 2}, {"max_bytes": 2 * len(PAID.body)}])
def test_no_more_are_under_way_than_allowed(
    cluster: ScriptedCluster, producer: Producer, bound: dict[str, int]
) -> None:
    """G2: the next one waits for room, and not for ever."""
    held: list[tuple[Peer, RemotingCommand]] = []
    cluster.brokers["broker-a"].fault = lambda peer, request: held.append((peer, request))
    sends = AsyncSends(producer, wait_s=0.05, **bound)
    first, second = sends.send(PAID, queue=A0), sends.send(PAID, queue=A0)

    with pytest.raises(TooManySends, match=r"2 sends with 8 bytes in total were under way for 0\.05 s"):
        sends.send(PAID, queue=A0)
    wait_until(lambda: len(held) == 2, TIMEOUT_S, reason="two requests at the broker")
    for peer, request in held:
        peer.answer(request, ext_fields={"msgId": "m", "queueId": "0", "queueOffset": "0"})
    assert first.result(TIMEOUT_S).queue == second.result(TIMEOUT_S).queue == A0
    assert sends.drain(TIMEOUT_S)


def test_a_send_that_is_cut_off_is_repeated_on_another_broker_which_is_then_preferred(
    cluster: ScriptedCluster,
) -> None:
    """G3, G4: with sendLatencyFaultEnable the broker that failed is not asked again soon."""
    asked = hang_up(cluster, "broker-a")
    # On a clock that stands still no answer is slow, and no avoidance over.
    with Producer(
        (cluster.name_server.address,),
        "P",
        send_timeout_s=TIMEOUT_S,
        send_latency_fault_enable=True,
        clock=FakeClock(),
    ) as producer:
        sends = AsyncSends(producer)
        results = [sends.send(PAID).result(TIMEOUT_S) for _ in range(6)]

    assert {result.queue.broker_name for result in results} == {"broker-b"}
    assert len(asked) == 1
    [keys] = {decode_properties(each.ext_fields["i"].encode())["UNIQ_KEY"] for each in asked}
    assert keys in {result.msg_id for result in results}


@pytest.mark.parametrize("is_by_key", [False, True], ids=["given", "of its key"])
def test_a_send_to_a_queue_is_repeated_there(
    cluster: ScriptedCluster, producer: Producer, is_by_key: bool
) -> None:
    """G5: nowhere else, and three times in all."""
    asked = hang_up(cluster, "broker-a")
    queues = producer.queues(PAID.topic)
    key = next(
        f"order-{n}"
        for n in count()
        if select_message_queue_by_hash(queues, f"order-{n}").broker_name == "broker-a"
    )

    sends = AsyncSends(producer)
    failed = sends.send(PAID, sharding_key=key) if is_by_key else sends.send(PAID, queue=A0)

    assert isinstance(failed.exception(TIMEOUT_S), ChannelClosed)
    assert len(asked) == 3
    assert cluster.brokers["broker-b"].sends == []


def test_a_message_larger_than_everything_allowed_goes_by_itself(producer: Producer) -> None:
    """G2: instead of never."""
    sends = AsyncSends(producer, max_bytes=1, wait_s=TIMEOUT_S)

    assert [sends.send(PAID).result(TIMEOUT_S).queue_offset for _ in range(2)] == [0, 0]


def test_a_send_without_a_queue_takes_no_room(cluster: ScriptedCluster, producer: Producer) -> None:
    """G2: the error comes at once."""
    cluster.routes["closed"] = cluster.route({"broker-a": 1}, perm=4)
    sends = AsyncSends(producer, max_sends=1)

    for _ in range(3):
        with pytest.raises(NoWritableQueue):
            sends.send(Message(topic="closed", body=b"x"))
    assert sends.drain(0)
