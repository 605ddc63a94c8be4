"""G8: what a child of fork() has of its own."""

from __future__ import annotations

import shutil
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from broker_sim.cluster import SimCluster
from pyspark_rocketmq.client import pull_connection as process_lines
from pyspark_rocketmq.client import transport as after_fork
from pyspark_rocketmq.client.pool import ChannelPool, ConnectionSettings, process_pool
from pyspark_rocketmq.client.producer.async_sends import AsyncSends
from pyspark_rocketmq.client.producer.producer import Producer, UniqueKeys
from pyspark_rocketmq.client.producer.transactions import TransactionProducer
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import LocalTransactionState, Message, MessageQueue, SendStatus
from pyspark_rocketmq.wire.command import RemotingCommand, encode_frame
from tests.helpers.certificates import self_signed
from tests.helpers.fake_clock import FakeClock
from tests.helpers.forked import begin_child, in_child
from tests.helpers.scripted_cluster import ScriptedCluster
from tests.helpers.scripted_server import Peer, ScriptedServer
from tests.helpers.wait import PATIENCE_S, wait_until

A0 = MessageQueue("orders", "broker-a", 0)


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster() as cluster:
        cluster.routes["orders"] = cluster.only({"broker-a": 1})
        yield cluster


@pytest.fixture
def producer(cluster: ScriptedCluster) -> Iterator[Producer]:
    with Producer((cluster.name_server.address,), "P", send_timeout_s=PATIENCE_S) as producer:
        yield producer


@dataclass(frozen=True)
class Asks:
    """Asks a server through a pool; the answer's code."""

    pool: ChannelPool
    address: str

    def __call__(self) -> int:
        soon = Deadline.after(SystemClock(), PATIENCE_S)
        return self.pool.get(self.address, soon).request(RemotingCommand(code=30), soon).code


def message(body: bytes) -> Message:
    return Message(topic="orders", body=body)


def test_parent_and_child_get_their_own_answers(cluster: ScriptedCluster, producer: Producer) -> None:
    """G8: the child's message is acknowledged on the child's connection,
    while the parent waits on its own.
    """
    broker = cluster.brokers["broker-a"]
    producer.send(message(b"first"))
    kept: SimpleQueue[tuple[Peer, RemotingCommand]] = SimpleQueue()
    broker.fault = lambda peer, request: kept.put((peer, request))
    told: SimpleQueue[Any] = SimpleQueue()
    producer.send_async(message(b"parent's"), told.put)
    peer, request = kept.get(timeout=PATIENCE_S)
    broker.fault = None

    own = in_child(lambda: producer.send(message(b"child's")).queue_offset)
    assert told.empty()
    peer.answer(request, ext_fields={"msgId": "0-2", "queueId": "0", "queueOffset": "2"})

    assert own == 1
    assert told.get(timeout=PATIENCE_S).queue_offset == 2
    assert broker.server.connection_count == 2


def test_a_child_that_closes_what_it_inherited_leaves_the_parent_s_connections_open(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    """G8: it gives the descriptors back, and ends no connection."""
    producer.send(message(b"1"))

    in_child(producer.close)
    producer.send(message(b"2"))

    assert cluster.brokers["broker-a"].server.connection_count == 1
    assert cluster.name_server.connection_count == 1


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_so_does_one_with_encrypted_connections(tmp_path: Path) -> None:
    """G8: nothing is said on them either, as a goodbye of TLS would be."""
    certificate = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    settings = ConnectionSettings(use_tls=True, tls_ca_file=str(certificate.certificate))
    with (
        ScriptedServer(wrap=lambda accepted: context.wrap_socket(accepted, server_side=True)) as server,
        settings.open_pool(SystemClock()) as pool,
    ):
        ask = Asks(pool, server.address)

        def ask_and_close() -> int:
            code = ask()
            pool.close()
            return code

        assert ask() == 0
        assert in_child(ask_and_close) == 0
        assert ask() == 0
        assert server.connection_count == 2


def test_children_make_ids_of_their_own(producer: Producer) -> None:
    """G8, G2: equal ids on different messages, sent in the same millisecond,
    would have readers drop one as a copy.
    """
    keys = UniqueKeys(FakeClock())
    made = [in_child(keys.next), in_child(keys.next), keys.next(), in_child(keys.next), keys.next()]
    sent = [producer.send(message(b"x")).msg_id, in_child(lambda: producer.send(message(b"x")).msg_id)]

    # Without time and counter: who made them.
    assert [len({one[:20] for one in ids}) for ids in (made, sent)] == [4, 2]


def test_a_child_has_futures_of_its_own(cluster: ScriptedCluster, producer: Producer) -> None:
    """G8: and the room for them; the parent's end with an error there, and as they would in the parent."""
    broker = cluster.brokers["broker-a"]
    kept: SimpleQueue[tuple[Peer, RemotingCommand]] = SimpleQueue()
    broker.fault = lambda peer, request: kept.put((peer, request))
    sends = AsyncSends(producer, max_sends=1, wait_s=0.0)
    parents = sends.send(message(b"parent's"))
    called: list[object] = []
    parents.add_done_callback(called.append)
    peer, request = kept.get(timeout=PATIENCE_S)
    broker.fault = None

    def work() -> tuple[int, bool, str, int]:
        own = sends.send(message(b"child's")).result(PATIENCE_S)
        error = parents.exception(PATIENCE_S)
        assert type(error) is RocketMQError
        return own.queue_offset, sends.drain(PATIENCE_S), str(error), len(called)

    assert in_child(work) == (
        0,
        True,
        (
            "The process was forked while this message was sent: only the parent process gets the outcome. "
            "Wait for it there."
        ),
        0,
    )
    assert not parents.done()
    peer.answer(request, ext_fields={"msgId": "0-1", "queueId": "0", "queueOffset": "1"})
    assert parents.result(PATIENCE_S).queue_offset == 1
    wait_until(lambda: called)


def test_a_child_repeats_what_is_not_answered(cluster: ScriptedCluster, producer: Producer) -> None:
    """G8, G3: on a thread of its own, also where the parent has had one."""
    broker = cluster.brokers["broker-a"]
    cuts = threading.Semaphore(1)

    def cut_once(peer: Peer, request: RemotingCommand) -> None:
        if cuts.acquire(blocking=False):
            peer.close()
        else:
            broker.fault = None
            peer.answer(request, ext_fields={"msgId": "m", "queueId": "0", "queueOffset": "5"})

    def send() -> int:
        return AsyncSends(producer).send(message(b"x")).result(PATIENCE_S).queue_offset

    broker.fault = cut_once
    assert send() == 5
    cuts.release()
    broker.fault = cut_once
    assert in_child(send) == 5


def test_a_lock_that_was_held_during_the_fork_is_free_in_the_child(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    """G8: by a thread that is not there."""
    avoiding = Producer(
        (cluster.name_server.address,), "P", send_timeout_s=PATIENCE_S, send_latency_fault_enable=True
    )
    sends = AsyncSends(avoiding)
    sends.send(message(b"1")).result(PATIENCE_S)
    producer.send(message(b"1"))
    names = ("_lock", "_send_lock", "_changed", "_condition")
    locks = [vars(one)[name] for one in after_fork._renewed for name in names if name in vars(one)]

    def work() -> int:
        producer.send(message(b"2"))
        return sends.send(message(b"3")).result(PATIENCE_S).queue_offset

    with ThreadPoolExecutor(1) as other, ExitStack() as held:
        other.submit(lambda: [held.enter_context(lock) for lock in locks]).result()
        outcome = begin_child(work)
        other.submit(held.close).result()

    assert len(locks) >= 10
    assert outcome() == 3
    avoiding.close()


def test_the_pool_of_a_process_begins_again_in_a_child(server: ScriptedServer) -> None:
    """A1, G8: a Spark daemon forks its workers."""
    ask = Asks(process_pool(), server.address)

    assert ask() == 0
    assert in_child(lambda: (process_pool() is ask.pool, ask())) == (True, 0)
    assert ask() == 0
    assert server.connection_count == 2


def test_a_child_takes_no_line_that_its_parent_keeps(server: ScriptedServer) -> None:
    """A1, G8: and does not end it."""
    clock = SystemClock()
    line = process_lines.acquire_connection(server.address, clock)
    process_lines.release_connection(line, clock)
    parents = server.next_peer()

    def work() -> bool:
        is_other = process_lines.acquire_connection(server.address, clock) is not line
        process_lines.close_idle_connections()
        return is_other

    assert in_child(work)
    assert process_lines.acquire_connection(server.address, clock) is line
    line._transport.sendall(encode_frame(RemotingCommand(code=30)))
    assert server.next_request().code == 30
    assert server.next_peer() is not parents
    line.close()


@pytest.mark.sim
def test_a_child_is_a_member_of_its_own_in_its_producer_group() -> None:
    """G8, G2: it registers at brokers, and takes nothing of the parent's with it when it closes."""
    with (
        SimCluster() as cluster,
        TransactionProducer(
            cluster.name_servers, "tx", lambda _: LocalTransactionState.UNKNOW, topics=["orders"]
        ) as producer,
    ):
        cluster.create_topic("orders", queues=1)

        def send() -> tuple[SendStatus, str]:
            sent = producer.send(message(b"x"), lambda _: LocalTransactionState.COMMIT_MESSAGE)
            return sent.sent.status, producer._client_id

        def work() -> tuple[SendStatus, str]:
            outcome = send()
            producer.close()
            return outcome

        before = send()
        own = in_child(work)
        after = send()

        assert [status for status, _ in (before, own, after)] == [SendStatus.SEND_OK] * 3
        assert before == after != own
        wait_until(lambda: cluster.bounds(A0).max_offset == 3)
