"""Name servers that deny what another one knows, or are not ready: their word is no verdict."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from broker_sim.bodies import encode_route
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.client.pull_connection import close_idle_connections
from pyspark_rocketmq.errors import NameServerNotReady, TopicDeleted, TopicNotFound
from pyspark_rocketmq.model import BrokerAddress, BrokerData, Message, MessageQueue, QueueData, TopicRoute
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.first_contact import check_topics
from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.command import RemotingCommand
from tests.both.conftest import Put
from tests.both.support import ANSWER_S
from tests.both.test_restarts import running
from tests.helpers.batch_read import read_batch
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.relayed_cluster import FrontNameServer, knowing_nothing, not_ready
from tests.helpers.scripted_server import Peer, Script
from tests.helpers.stream_read import StreamUnderTest
from tests.helpers.wait import wait_until
from tests.real_broker import plain_remoting

TROUBLES = {"denies": knowing_nothing, "is not ready": not_ready}


@pytest.fixture(params=TROUBLES)
def trouble(request: pytest.FixtureRequest) -> Script:
    """A name server that is alive and of no use."""
    return TROUBLES[request.param]


@contextmanager
def stream_of(name_servers: str, **options: str) -> Iterator[StreamUnderTest]:
    """A stream that asks for routes at each plan."""
    yield StreamUnderTest(nameServers=name_servers, startingOffsets="earliest", routeRefreshMs="1", **options)
    close_idle_connections()


def test_reads_and_sends_begin_where_only_the_second_name_server_is_of_use(
    cluster: ClusterUnderTest, queue: MessageQueue, put: Put, trouble: Script
) -> None:
    """A2 ★: the first one may be off the list of those where brokers register."""
    put(b"one")
    with FrontNameServer(cluster, instead=trouble) as front:
        name_servers = f"{front.address};{cluster.name_servers}"
        with stream_of(name_servers, topic=queue.topic) as stream:
            assert stream.next_offsets() == {queue: [0]}
        with Producer(name_servers, "tests", send_timeout_s=ANSWER_S) as producer:
            assert producer.send(Message(topic=queue.topic, body=b"two"), queue=queue).queue_offset == 1


def knowing_only_b(cluster: ClusterUnderTest) -> Script:
    """A name server at which only ``broker-b`` has registered."""
    address = BrokerAddress(cluster.broker_addresses["broker-b"])
    broker = BrokerData(broker_name="broker-b", cluster="C", addresses={0: address})
    data = QueueData(broker_name="broker-b", read_queue_nums=1, write_queue_nums=1, perm=6)
    route = TopicRoute(brokers=(broker,), queues=(data,))

    def script(peer: Peer, request: RemotingCommand) -> None:
        peer.answer(request, body=encode_route(route, standard_json=True))

    return script


def test_a_read_begins_with_the_brokers_that_any_name_server_knows(
    cluster: ClusterUnderTest, queue: MessageQueue, put: Put
) -> None:
    """A2 ★: brokers register one after the other at one that has just restarted; a batch would lack theirs,
    and a stream would read theirs from the beginning later.
    """
    cluster.create_topic(queue.topic, queues=1)
    put(b"one")
    with FrontNameServer(cluster, instead=knowing_only_b(cluster)) as front:
        name_servers = f"{front.address};{cluster.name_servers}"
        assert read_batch(nameServers=name_servers, topic=queue.topic).num_rows == 1
        with stream_of(name_servers, topic=queue.topic) as stream:
            assert stream.next_offsets() == {queue: [0]}


def test_a_running_stream_goes_on_when_the_name_server_it_asks_is_of_no_use_any_more(
    cluster: ClusterUnderTest, queue: MessageQueue, put: Put, trouble: Script
) -> None:
    """A2 ★: with another one that knows the topic, and without: its route was known."""
    put(b"one")
    with (
        FrontNameServer(cluster) as front,
        stream_of(f"{front.address};{cluster.name_servers}", topic=queue.topic) as two,
        stream_of(front.address, topic=queue.topic) as one,
    ):
        assert one.next_offsets() == two.next_offsets() == {queue: [0]}
        front.instead = trouble
        put(b"two")
        assert one.next_offsets() == two.next_offsets() == {queue: [1]}
        front.instead = None
        put(b"three")
        assert one.next_offsets() == two.next_offsets() == {queue: [2]}


def test_a_pattern_sees_topics_that_only_the_second_name_server_knows(
    cluster: ClusterUnderTest, queue: MessageQueue, put: Put, trouble: Script
) -> None:
    """A2 ★: new ones too, and the known ones stay."""
    put(b"one")
    with (
        FrontNameServer(cluster) as front,
        stream_of(f"{front.address};{cluster.name_servers}", topicPattern=f"{queue.topic}(-new)?") as stream,
    ):
        assert stream.next_offsets() == {queue: [0]}
        front.instead = trouble
        new = cluster.create_topic(f"{queue.topic}-new", queues=1, brokers=["broker-a"])
        with Producer(cluster.name_servers, "tests", send_timeout_s=ANSWER_S) as producer:
            producer.send(Message(topic=new, body=b"x"))
        put(b"two")
        seen: dict[MessageQueue, list[int]] = {}

        def has_all() -> bool:
            seen.update(stream.next_offsets() or {})
            return seen == {queue: [1], MessageQueue(new, "broker-a", 0): [0]}

        wait_until(has_all, ANSWER_S)


def test_a_topic_that_was_deleted_is_noticed_beside_a_name_server_of_no_use(
    cluster: ClusterUnderTest, queue: MessageQueue, put: Put, trouble: Script
) -> None:
    """A2, F4 ★: its broker says so."""
    put(b"one")
    with (
        FrontNameServer(cluster, instead=trouble) as front,
        stream_of(f"{front.address};{cluster.name_servers}", topic=queue.topic) as stream,
    ):
        assert stream.next_offsets() == {queue: [0]}
        for address, code in (
            (cluster.broker_addresses["broker-a"], RequestCode.DELETE_TOPIC_IN_BROKER),
            (cluster.name_servers, RequestCode.DELETE_TOPIC_IN_NAMESRV),
        ):
            plain_remoting.call(address, code, {"topic": queue.topic})

        with pytest.raises(TopicDeleted, match=f"topic={queue.topic} .* offset 1 was to be read next"):
            wait_until(lambda: stream.plan() and False, 4 * ANSWER_S)


def test_a_query_that_starts_waits_for_a_name_server_that_is_not_ready_and_gives_up_in_the_end(
    cluster: ClusterUnderTest, queue: MessageQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """A2 ★: one that has just restarted with ``needWaitForService``."""
    with FrontNameServer(cluster, instead=not_ready) as front:
        options = {"nameServers": front.address, "topic": queue.topic}
        with pytest.raises(NameServerNotReady, match="name server not ready"):
            check_topics(ReadOptions.parse({**options, "retryTimeoutMs": "0"}), lambda _: ())
        with running(lambda: check_topics(ReadOptions.parse(options), lambda _: ())):
            wait_until(lambda: "waiting up to" in caplog.text)
            front.instead = None


def test_a_query_that_starts_while_brokers_register_finds_its_topic(
    cluster: ClusterUnderTest, queue: MessageQueue
) -> None:
    """A2 ★: they do so between the denial and the look which of them are there."""

    def deny_once(peer: Peer, request: RemotingCommand) -> None:
        front.instead = None
        knowing_nothing(peer, request)

    with FrontNameServer(cluster, instead=deny_once) as front:
        check_topics(ReadOptions.parse({"nameServers": front.address, "topic": queue.topic}), lambda _: ())

    assert front.instead is None


def test_a_topic_that_no_name_server_knows_is_refused_at_once(cluster: ClusterUnderTest) -> None:
    """A2 ★: a mistyped name is loud."""
    with FrontNameServer(cluster) as front:
        name_servers = f"{front.address};{cluster.name_servers}"
        options = ReadOptions.parse({"nameServers": name_servers, "topic": cluster.unique_name("absent")})

        with pytest.raises(TopicNotFound):
            check_topics(options, lambda _: ())
