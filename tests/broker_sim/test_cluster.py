from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest

from broker_sim.cluster import AsyncCluster, SimCluster
from broker_sim.settings import BrokerSettings
from pyspark_rocketmq.model import MessageQueue, QueueBounds
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import SerializeType, encode_frame
from pyspark_rocketmq.wire.fastjson import dumps_java
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.requests.bodies import LockBatchRequest, decode_consumer_list
from pyspark_rocketmq.wire.requests.topics import decode_route
from tests.broker_sim.exchange import GROUP, TOPIC, heartbeat, held_pull, message, pull, request, send
from tests.broker_sim.raw_client import RawClient
from tests.helpers.fake_clock import FakeClock
from tests.helpers.wait import wait_until

_QUEUE = MessageQueue(TOPIC, "broker-a", 0)


@pytest.fixture
def cluster(clock: FakeClock) -> Iterator[SimCluster]:
    with SimCluster(brokers=2, clock=clock) as cluster:
        cluster.create_topic(TOPIC)
        yield cluster


@pytest.fixture
def client(cluster: SimCluster) -> Iterator[RawClient]:
    with RawClient(cluster.broker_addresses["broker-a"]) as client:
        yield client


@pytest.mark.parametrize("form", list(SerializeType))
def test_both_header_forms_are_understood(client: RawClient, form: SerializeType) -> None:
    """A1: the request's opaque comes back, whatever its header form; RocketMQ 5.3.3 answers both in JSON."""
    answer = client.call(request(9999, opaque=77, serialize_type=form))
    assert (answer.code, answer.opaque, answer.flag) == (3, 77, 1)
    assert answer.serialize_type is SerializeType.JSON


def test_a_broker_can_answer_in_the_form_of_the_request(clock: FakeClock) -> None:
    """A1: brokers other than 5.3.3 may, and a client must read either."""
    settings = BrokerSettings(mirror_header_form=True)
    with (
        SimCluster(settings=settings, clock=clock) as cluster,
        RawClient(cluster.broker_addresses["broker-a"]) as client,
    ):
        answer = client.call(request(9999, serialize_type=SerializeType.ROCKETMQ))
    assert (answer.code, answer.serialize_type) == (3, SerializeType.ROCKETMQ)


def test_the_broker_sends_requests_of_its_own_on_the_clients_connection(client: RawClient) -> None:
    """A1: answers and pushes are distinguished by flag bit 0."""
    client.send(heartbeat("c1"))
    answer, push = client.receive(), client.receive()
    assert (answer.is_response, answer.code) == (True, ResponseCode.SUCCESS)
    assert (push.is_response, push.code) == (False, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x02\x00\x00", b"\x00\x00\x00\x08\x00\x00\x00\x04{{{{"],
)
def test_bytes_that_are_no_protocol_close_the_connection_without_an_answer(
    client: RawClient, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A1: as Netty does; other connections go on."""
    caplog.set_level(logging.CRITICAL, "broker_sim.server")
    client.socket.sendall(garbage)
    assert client.read_to_end() == b""


def test_a_request_may_come_in_pieces_and_several_at_once(client: RawClient) -> None:
    """A1: frames are found in any cutting of the stream."""
    frames = b"".join(encode_frame(request(9999, opaque=number)) for number in range(3))
    for at in range(0, len(frames), 7):
        client.socket.sendall(frames[at : at + 7])
    assert [client.receive().opaque for _ in range(3)] == [0, 1, 2]


def test_a_message_sent_on_one_connection_wakes_a_pull_on_another(
    cluster: SimCluster, client: RawClient
) -> None:
    client.send(held_pull(opaque=5))
    wait_until(lambda: cluster.held_pulls() == 1)
    with RawClient(cluster.broker_addresses["broker-a"]) as producer:
        assert producer.call(send(b"late")).code == ResponseCode.SUCCESS
    answer = client.receive()
    assert answer.opaque == 5
    assert [each.body for each in decode_messages(answer.body, "broker-a")] == [b"late"]


def test_a_held_pull_ends_by_the_clusters_clock(
    cluster: SimCluster, client: RawClient, clock: FakeClock
) -> None:
    client.send(held_pull(timeout_ms=15000))
    wait_until(lambda: cluster.held_pulls() == 1)
    clock.advance(15)
    cluster.look_at_clock()
    assert client.receive().code == ResponseCode.PULL_NOT_FOUND


def test_a_held_pull_ends_by_itself_on_real_time() -> None:
    with SimCluster() as cluster:
        cluster.create_topic(TOPIC)
        with RawClient(cluster.broker_addresses["broker-a"]) as client:
            assert client.call(held_pull(timeout_ms=30)).code == ResponseCode.PULL_NOT_FOUND


def test_the_pull_of_a_connection_that_went_away_is_held_until_its_time_is_up(
    cluster: SimCluster, client: RawClient, clock: FakeClock
) -> None:
    client.send(held_pull(timeout_ms=15000))
    wait_until(lambda: cluster.held_pulls() == 1)
    client.socket.close()
    wait_until(lambda: cluster.connections("broker-a") == 0)
    assert cluster.held_pulls() == 1
    clock.advance(15)
    cluster.look_at_clock()
    assert cluster.held_pulls() == 0


def test_a_member_whose_connection_ends_leaves_its_group(cluster: SimCluster, client: RawClient) -> None:
    """B7: the others hear of it at once."""
    client.send(heartbeat("c1"))
    client.receive(), client.receive()
    with RawClient(cluster.broker_addresses["broker-a"]) as other:
        other.call(heartbeat("c2"))
        assert client.receive().code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    assert client.receive().code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    members = client.call(request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP}))
    assert decode_consumer_list(members.body) == ("c1",)


def test_a_stopped_broker_refuses_connections_leaves_the_route_and_comes_back_with_its_data(
    cluster: SimCluster, client: RawClient
) -> None:
    """A2: the same address serves again; locks are lost, messages are not."""
    cluster.put(_QUEUE, [message(b"kept")])
    address = cluster.broker_addresses["broker-a"]
    lock = dumps_java(LockBatchRequest(consumer_group=GROUP, client_id="c1", queues=frozenset({_QUEUE})))
    client.call(request(RequestCode.LOCK_BATCH_MQ, body=lock))
    assert cluster.lock_holder(GROUP, _QUEUE) == "c1"
    cluster.stop_broker("broker-a")
    assert cluster.lock_holder(GROUP, _QUEUE) is None
    assert client.read_to_end() == b""
    with pytest.raises(ConnectionRefusedError):
        RawClient(address)
    with RawClient(cluster.name_servers) as name_server:
        route = decode_route(name_server.call(request(105, {"topic": TOPIC})).body)
        assert [each.broker_name for each in route.brokers] == ["broker-b"]
        cluster.start_broker("broker-a")
        route = decode_route(name_server.call(request(105, {"topic": TOPIC})).body)
    assert route.address_of("broker-a") == address
    with RawClient(address) as again:
        assert [each.body for each in decode_messages(again.call(pull()).body, "broker-a")] == [b"kept"]


def test_stopping_a_stopped_broker_changes_nothing(cluster: SimCluster) -> None:
    cluster.stop_broker("broker-b")
    cluster.stop_broker("broker-b")
    cluster.start_broker("broker-b")


def test_tests_can_put_messages_and_look_at_queues(cluster: SimCluster, clock: FakeClock) -> None:
    assert cluster.put(_QUEUE, [message(), message()]) == 0
    assert cluster.put(_QUEUE, [message()]) == 2
    assert cluster.bounds(_QUEUE) == QueueBounds(
        min_offset=0, max_offset=3, last_update_timestamp=int(clock.now_s() * 1000)
    )
    assert cluster.committed_offset(GROUP, _QUEUE) is None
    assert cluster.lock_holder(GROUP, _QUEUE) is None


def test_an_answer_larger_than_the_sockets_buffers_arrives_whole(
    cluster: SimCluster, client: RawClient
) -> None:
    """The client does not read for a while: the broker stops taking its requests instead of piling up."""
    cluster.put(_QUEUE, [message(bytes(3_900_000))])
    for opaque in range(20):
        client.send(pull(opaque=opaque))
    answers = [client.receive() for _ in range(20)]
    assert [answer.opaque for answer in answers] == list(range(20))
    assert {len(answer.body) for answer in answers} == {len(answers[0].body)}


def test_clients_that_come_while_the_cluster_stops_leave_no_socket() -> None:
    """One that nobody closes would be found by whatever test runs when Python looks for garbage."""
    for _ in range(20):
        with SimCluster() as cluster:
            RawClient(cluster.broker_addresses["broker-a"]).socket.close()
    gc.collect()


def test_errors_inside_a_call_come_back_to_the_caller(cluster: SimCluster) -> None:
    with pytest.raises(ZeroDivisionError):
        cluster.call(lambda: 1 // 0)


def test_a_cluster_has_1_to_26_brokers_and_no_others() -> None:
    with pytest.raises(ValueError, match="1 to 26"):
        AsyncCluster(brokers=0)
    with SimCluster() as cluster, pytest.raises(ValueError, match="the brokers are broker-a"):
        cluster.stop_broker("broker-z")
