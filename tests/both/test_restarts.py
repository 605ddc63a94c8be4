"""Sends while a topic's only broker, or the name server, restarts: keys stay where they are,
and writes go on (G7). Queries that start then wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ConnectionSettings, process_pool
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import BrokerError, ConnectFailed, TopicAway, TopicNotFound, TransportError
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.options.write import WriteOptions
from pyspark_rocketmq.publish.rows import RowKeys
from pyspark_rocketmq.publish.writer import send_rows
from pyspark_rocketmq.source.cluster_view import ClusterView, Snapshot
from pyspark_rocketmq.source.first_contact import check_topics
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.requests.send import SendSettings
from tests.both.support import ANSWER_S
from tests.both.test_java_interop import read_queue
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.relayed_cluster import RelayedCluster
from tests.helpers.stream_read import StreamUnderTest
from tests.helpers.wait import wait_until

ROWS = 60


@pytest.fixture
def topic(cluster: ClusterUnderTest) -> str:
    """Two queues, only on broker-b, while both brokers make topics by themselves."""
    return cluster.create_topic(queues=2, brokers=["broker-b"])


@pytest.fixture
def producer(cluster: ClusterUnderTest) -> Iterator[Producer]:
    """Gives a send that must fail a few seconds."""
    with Producer(cluster.name_servers, "tests", send_timeout_s=ANSWER_S) as producer:
        yield producer


@contextmanager
def running(work: Callable[[], object]) -> Iterator[None]:
    """Do ``work`` on a thread meanwhile, and raise what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    thread.join(10 * ANSWER_S)
    assert not thread.is_alive()
    if raised:
        raise raised[0]


def keyed_rows(cluster: ClusterUnderTest, topic: str, batches: Iterator[pa.RecordBatch]) -> int:
    """Send rows of columns body, shardingKey, keys as one task."""
    options = WriteOptions.parse(
        {
            "nameServers": cluster.name_servers,
            "topic": topic,
            "batchSize": "2",
            "requestTimeoutMs": str(int(ANSWER_S * 1000)),
            "retryTimeoutMs": "300000",
        }
    )
    return send_rows(batches, options, {"body": 0, "shardingKey": 1, "keys": 2}, RowKeys("w", 0, 0))[0]


def rows(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.RecordBatch.from_pylist(
        [{"body": b"%d" % n, "shardingKey": f"k{n % 5}", "keys": f"k{n % 5}"} for n in numbers]
    )


def first_copies(client: BrokerClient, cluster: ClusterUnderTest, topic: str) -> dict[str, list[int]]:
    """What consumers of the topic see of each key, without copies of what was sent again."""
    address = cluster.broker_addresses["broker-b"]
    queues = [MessageQueue(topic, "broker-b", number) for number in range(2)]

    def read() -> dict[str, dict[int, None]]:
        by_key: dict[str, dict[int, None]] = {}
        for queue in queues:
            for message in read_queue(client, cluster, queue, client.max_offset(address, queue)):
                by_key.setdefault(message.keys or "", {}).setdefault(int(message.body))
        return by_key

    wait_until(lambda: sum(map(len, read().values())) == ROWS, ANSWER_S, reason=f"{ROWS} rows in {topic}")
    return {key: list(found) for key, found in read().items()}


IN_ORDER = {f"k{key}": list(range(key, ROWS, 5)) for key in range(5)}


def test_a_key_keeps_its_queue_while_its_topic_s_only_broker_restarts(
    cluster: ClusterUnderTest, producer: Producer, topic: str
) -> None:
    """G7 ★: no other broker makes the topic meanwhile,
    which would spread keys over its queues from then on.
    """
    [before, *_] = [producer.send(Message(topic=topic, body=b"x"), sharding_key="order-7") for _ in range(2)]
    queues = producer.queues(topic)

    cluster.stop_broker("broker-b")
    for _ in range(4):
        with pytest.raises(TransportError):
            producer.send(Message(topic=topic, body=b"x"), sharding_key="order-7")
    with pytest.raises(
        TransportError, match=rf"does not know topic {topic} for the moment, which was on broker-b"
    ):
        producer.send(Message(topic=topic, body=b"x"))
    cluster.start_broker("broker-b")
    after = producer.send(Message(topic=topic, body=b"x"), sharding_key="order-7")

    assert after.queue == before.queue
    with Producer(cluster.name_servers, "newcomer", send_timeout_s=ANSWER_S) as newcomer:
        assert newcomer.queues(topic) == queues
    assert {queue.broker_name for queue in queues} == {"broker-b"}


def test_a_task_goes_on_over_the_restart_of_its_topic_s_only_broker(
    cluster: ClusterUnderTest, client: BrokerClient, topic: str
) -> None:
    """G5, G7 ★: as long as ``retryTimeoutMs``, and every key in its order."""
    is_half_done, may_go_on = threading.Event(), threading.Event()

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(0, ROWS // 2)
        is_half_done.set()
        assert may_go_on.wait(10 * ANSWER_S)
        yield rows(ROWS // 2, ROWS // 2)

    with running(lambda: keyed_rows(cluster, topic, batches())):
        assert is_half_done.wait(ANSWER_S)
        cluster.stop_broker("broker-b")
        may_go_on.set()
        cluster.start_broker("broker-b")

    assert first_copies(client, cluster, topic) == IN_ORDER
    assert cluster.routed_brokers(topic) == {"broker-b"}


@SIM_ONLY
def test_a_task_that_begins_while_the_broker_is_away_waits_for_it(
    cluster: ClusterUnderTest, client: BrokerClient, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """G7: it has never seen the topic, and looks for it before it has another broker make it."""
    cluster.stop_broker("broker-b")
    with running(lambda: keyed_rows(cluster, topic, iter([rows(0, ROWS)]))):
        wait_until(lambda: "topic is not there, looking for it up to 300 s" in caplog.text)
        cluster.start_broker("broker-b")

    assert first_copies(client, cluster, topic) == IN_ORDER
    assert cluster.routed_brokers(topic) == {"broker-b"}


def test_sends_go_on_while_a_restarted_name_server_knows_no_broker(
    cluster: ClusterUnderTest, producer: Producer, topic: str
) -> None:
    """G7 ★: brokers register again after up to 30 s; they are there all the time."""
    first = producer.send(Message(topic=topic, body=b"x"), sharding_key="order-7")

    cluster.restart_name_server()
    assert cluster.kind == "real" or cluster.routed_brokers(topic) == set()
    # After a failure a route is asked for again, as it is every 30 s.
    with pytest.raises(ConnectFailed, match="names no master for this broker"):
        producer.send(Message(topic=topic, body=b"x"), queue=MessageQueue(topic, "broker-x", 0))
    later = [producer.send(Message(topic=topic, body=b"x"), sharding_key="order-7") for _ in range(5)]
    later.append(producer.send_batch([Message(topic=topic, body=b"x")], first.queue))

    assert {one.queue for one in later} == {first.queue}


@SIM_ONLY
def test_a_task_goes_on_while_a_restarted_name_server_knows_no_broker(
    cluster: ClusterUnderTest, client: BrokerClient, topic: str
) -> None:
    """G7: also where a send was cut off, so that the route is asked for again."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(0, ROWS // 2)
        cluster.restart_name_server()
        cluster.faults.add("drop-before", on=int(RequestCode.SEND_BATCH_MESSAGE))
        yield rows(ROWS // 2, ROWS // 2)

    keyed_rows(cluster, topic, batches())

    assert cluster.routed_brokers(topic) == set()
    assert first_copies(client, cluster, topic) == IN_ORDER


def test_a_query_that_starts_while_a_restarted_name_server_knows_no_broker_waits_for_them(
    cluster: ClusterUnderTest, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A2 ★: a broker that runs registers again within 30 s, a real one perhaps before anybody asks."""
    has_begun = threading.Event()

    def start_query() -> None:
        check_topics(read_options(cluster, topic), nobody)
        has_begun.set()

    cluster.restart_name_server()
    with running(start_query):
        wait_until(lambda: has_begun.is_set() or "The name server does not know any broker" in caplog.text)
        if cluster.kind == "sim":
            assert not has_begun.is_set()
            cluster.register_brokers()


@SIM_ONLY
def test_a_query_that_starts_waits_for_brokers_that_register_one_after_the_other(
    cluster: ClusterUnderTest, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A2: the first one that a restarted name server knows is not the only one there is."""
    cluster.stop_broker("broker-b")
    cluster.restart_name_server()
    options = read_options(cluster, topic)
    looks = 0

    def brokers(_: str) -> tuple[()]:
        nonlocal looks
        looks += 1
        return ()

    with running(lambda: check_topics(options, brokers)):
        wait_until(lambda: "The name server does not know any broker" in caplog.text)
        cluster.register_brokers()
        assert cluster.routed_brokers(topic) == set()
        seen = looks
        wait_until(lambda: looks > seen + 1, reason="A look at a name server that knows one broker")
        cluster.start_broker("broker-b")


@SIM_ONLY
def test_a_query_that_starts_waits_for_the_brokers_that_its_group_knows(
    cluster: ClusterUnderTest, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A2: others have registered already; a topic that was never there is refused at once."""
    cluster.stop_broker("broker-b")
    with pytest.raises(TopicNotFound) as refused:
        check_topics(read_options(cluster, topic), nobody)
    with running(lambda: check_topics(read_options(cluster, topic), lambda _: {"broker-a", "broker-b"})):
        wait_until(lambda: "The name server does not know broker-b" in caplog.text)
        cluster.start_broker("broker-b")

    assert not isinstance(refused.value, TopicAway)
    with pytest.raises(TopicNotFound):
        check_topics(read_options(cluster, f"{topic}-mistyped"), lambda _: {"broker-a", "broker-b"})


@pytest.mark.parametrize("away", ["name server", "brokers"])
def test_a_group_that_has_worked_starts_while_servers_are_away_and_waits_for_them(
    cluster: ClusterUnderTest, topic: str, caplog: pytest.LogCaptureFixture, away: str
) -> None:
    """A8 ★: three tries are for a group that has never worked, whose address may be wrong."""
    with RelayedCluster(cluster) as relayed:
        servers = [relayed.name_server] if away == "name server" else list(relayed.brokers.values())
        for relay in servers:
            relay.close()
        options = ReadOptions.parse({"nameServers": relayed.name_servers, "topic": topic})
        with pytest.raises(TransportError):
            check_topics(options, nobody)
        assert "this query has read from the cluster before" not in caplog.text

        with running(lambda: check_topics(options, lambda _: {"broker-b"})):
            wait_until(lambda: "this query has read from the cluster before" in caplog.text)
            for relay in servers:
                relay.open()


@pytest.mark.parametrize("away", ["name server", "brokers"])
def test_a_stream_that_goes_on_from_its_checkpoint_waits_for_servers_that_are_away(
    cluster: ClusterUnderTest, client: BrokerClient, topic: str, away: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A8 ★: as a group that has worked."""
    queue, address = MessageQueue(topic, "broker-b", 0), cluster.broker_addresses["broker-b"]

    def send() -> None:
        client.send(address, Message(topic=topic, body=b"x"), queue, SendSettings(producer_group="p"))

    with RelayedCluster(cluster) as relayed:
        servers = [relayed.name_server] if away == "name server" else list(relayed.brokers.values())
        stream = StreamUnderTest(
            nameServers=relayed.name_servers, topic=topic, startingOffsets="earliest", routeRefreshMs="1"
        )
        send()
        wait_until(lambda: stream.next_offsets() == {queue: [0]}, ANSWER_S)
        send()
        stream.restart()
        for relay in servers:
            relay.close()
        read: list[dict[MessageQueue, list[int]]] = []

        def has_read() -> bool:
            read.append(stream.next_offsets() or {})
            return bool(read[-1])

        with running(lambda: wait_until(has_read, ANSWER_S)):
            wait_until(lambda: "this query has read from the cluster before" in caplog.text)
            for relay in servers:
                relay.open()
        assert read[-1] == {queue: [1]}


@SIM_ONLY
def test_a_query_that_starts_leaves_out_only_a_broker_that_has_worked_and_does_not_now(
    cluster: ClusterUnderTest,
) -> None:
    """A8: code 1 of one broker; the other one's queues go on."""
    topic = cluster.create_topic(queues=1)
    options = read_options(cluster, topic)

    def look(had_it: Callable[[str], Collection[str]]) -> Snapshot:
        cluster.faults.add(
            "answer-code",
            on=RequestCode.GET_TOPIC_STATS_INFO,
            where="broker-b",
            response_code=ResponseCode.SYSTEM_ERROR,
        )
        pool = process_pool(ConnectionSettings.of(options))
        return ClusterView(options, pool, SystemClock(), had_it=had_it).snapshot()

    with pytest.raises(BrokerError):
        look(nobody)
    with pytest.raises(BrokerError):
        look(lambda _: {"broker-a"})
    seen = look(lambda _: {"broker-a", "broker-b"})

    assert seen.bounds.keys() == {MessageQueue(topic, "broker-a", 0)}
    assert seen.unreachable.keys() == {"broker-b"}


@SIM_ONLY
def test_a_topic_that_was_read_before_is_away_where_nobody_knows_which_brokers_there_are(
    cluster: ClusterUnderTest,
) -> None:
    """A2: a proxy does not serve that request; a topic that was never read is not found."""
    options = read_options(cluster, cluster.unique_name("topic"))
    cluster.faults.add(
        "answer-code",
        on=RequestCode.GET_BROKER_CLUSTER_INFO,
        where="namesrv",
        response_code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    )
    pool = process_pool(ConnectionSettings.of(options))

    with pytest.raises(
        TopicAway, match=r"was on broker-a before, and it is not known which brokers there are"
    ):
        ClusterView(options, pool, SystemClock(), had_it=lambda _: {"broker-a"}).snapshot()
    with pytest.raises(TopicNotFound) as refused:
        ClusterView(options, pool, SystemClock(), had_it=nobody).snapshot()
    assert not isinstance(refused.value, TopicAway)


def read_options(cluster: ClusterUnderTest, topic: str) -> ReadOptions:
    """Options with which it does not matter whether a broker registers later."""
    given = {"nameServers": cluster.name_servers, "topic": topic, "startingOffsets": "earliest"}
    return ReadOptions.parse(given)


def nobody(_: str) -> tuple[()]:
    return ()
