from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker_sim.cluster import SimCluster
from broker_sim.faults import Cut, DropConnection, Fail, FaultScript, Lose
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import encode_frame
from tests.broker_sim.exchange import TOPIC, held_pull, message, pull, request, send
from tests.broker_sim.raw_client import RawClient
from tests.helpers.fake_clock import FakeClock

_PULL = RequestCode.PULL_MESSAGE
_SEND = RequestCode.SEND_MESSAGE_V2
_QUEUE = MessageQueue(TOPIC, "broker-a", 0)


@pytest.fixture
def cluster(clock: FakeClock) -> Iterator[SimCluster]:
    with SimCluster(clock=clock) as cluster:
        cluster.create_topic(TOPIC)
        yield cluster


@pytest.fixture
def client(cluster: SimCluster) -> Iterator[RawClient]:
    with RawClient(cluster.broker_addresses["broker-a"]) as client:
        yield client


def test_lines_are_used_once_in_the_order_they_were_written() -> None:
    script = FaultScript()
    script.fail_next(_PULL, 2, times=2)
    script.drop_connection_on(_PULL)
    assert script.take_for_request("broker-a", _SEND) is None
    taken = [script.take_for_request("broker-a", _PULL) for _ in range(4)]
    assert taken == [Fail(2), Fail(2), DropConnection(), None]


def test_a_line_may_be_meant_for_one_server_only() -> None:
    script = FaultScript()
    script.fail_next(_PULL, 2, where="broker-b")
    assert script.take_for_request("broker-a", _PULL) is None
    assert script.take_for_request("broker-b", _PULL) == Fail(2)


def test_faults_of_answers_do_not_fit_requests() -> None:
    script = FaultScript()
    script.cut_next_response(_PULL, 3)
    script.lose_next_response(_PULL)
    assert script.take_for_request("broker-a", _PULL) is None
    assert [script.take_for_response("broker-a", _PULL) for _ in range(3)] == [Cut(3), Lose(), None]


def test_the_rest_of_a_script_can_be_forgotten() -> None:
    script = FaultScript()
    script.fail_next(_PULL, 2, times=3)
    script.clear()
    assert script.pending == 0


def test_a_failed_request_is_answered_and_not_done(cluster: SimCluster, client: RawClient) -> None:
    cluster.faults.fail_next(_SEND, ResponseCode.SYSTEM_BUSY)
    assert client.call(send()).code == ResponseCode.SYSTEM_BUSY
    assert cluster.bounds(_QUEUE).max_offset == 0
    assert client.call(send()).code == ResponseCode.SUCCESS


def test_a_dropped_connection_leaves_the_request_undone(cluster: SimCluster, client: RawClient) -> None:
    cluster.faults.drop_connection_on(_SEND)
    client.send(send())
    assert client.read_to_end() == b""
    assert cluster.bounds(_QUEUE).max_offset == 0
    with RawClient(cluster.broker_addresses["broker-a"]) as again:
        assert again.call(send()).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("keep_bytes", [0, 3, 100])
def test_a_cut_answer_belongs_to_a_request_that_was_done(
    cluster: SimCluster, client: RawClient, keep_bytes: int
) -> None:
    cluster.faults.cut_next_response(_SEND, keep_bytes)
    client.send(send())
    assert len(client.read_to_end()) == keep_bytes
    assert cluster.bounds(_QUEUE).max_offset == 1


def test_a_held_pulls_late_answer_can_be_cut_too(cluster: SimCluster, client: RawClient) -> None:
    cluster.faults.cut_next_response(_PULL, 10)
    client.send(held_pull())
    with RawClient(cluster.broker_addresses["broker-a"]) as producer:
        producer.call(send())
        while cluster.held_pulls():
            producer.call(send())
    assert len(client.read_to_end()) == 10


def test_a_lost_answer_leaves_the_connection_usable(cluster: SimCluster, client: RawClient) -> None:
    cluster.put(_QUEUE, [message()])
    cluster.faults.lose_next_response(_PULL)
    client.send(pull(opaque=1))
    assert client.call(pull(opaque=2)).opaque == 2


def test_a_name_server_can_fail_as_well(cluster: SimCluster) -> None:
    cluster.faults.fail_next(105, ResponseCode.SYSTEM_ERROR, where="namesrv")
    with RawClient(cluster.name_servers) as client:
        assert client.call(request(105, {"topic": TOPIC})).code == ResponseCode.SYSTEM_ERROR
        assert client.call(request(105, {"topic": TOPIC})).code == ResponseCode.SUCCESS


def test_a_failed_oneway_request_stays_unanswered(cluster: SimCluster, client: RawClient) -> None:
    cluster.faults.fail_next(_SEND, ResponseCode.SYSTEM_BUSY)
    oneway = encode_frame(request(_SEND, send().ext_fields, body=b"x", flag=2))
    client.socket.sendall(oneway)
    assert client.call(pull(opaque=3)).opaque == 3
