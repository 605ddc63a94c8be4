from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from broker_sim.cluster import SimCluster
from broker_sim.faults import FAULTS, Corrupt, Cut, DropConnection, Fail, FaultScript, GoAway, Lose
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import encode_frame
from pyspark_rocketmq.wire.requests.bodies import decode_consumer_list
from tests.broker_sim.exchange import GROUP, TOPIC, heartbeat, held_pull, message, pull, request, send
from tests.broker_sim.raw_client import RawClient
from tests.helpers.fake_clock import FakeClock
from tests.helpers.wait import wait_until

_PULL = RequestCode.PULL_MESSAGE
_SEND = RequestCode.SEND_MESSAGE_V2
_QUEUE = MessageQueue(TOPIC, "broker-a", 0)


@pytest.fixture
def cluster(clock: FakeClock) -> Iterator[SimCluster]:
    with SimCluster(clock=clock) as cluster:
        cluster.create_topic(TOPIC)
        yield cluster
        assert cluster.faults.pending == 0, "a fault that was asked for did not happen"


@pytest.fixture
def client(cluster: SimCluster) -> Iterator[RawClient]:
    with RawClient(cluster.broker_addresses["broker-a"]) as client:
        yield client


def test_lines_are_used_once_in_the_order_they_were_written() -> None:
    script = FaultScript()
    script.add("answer-code", on=_PULL, times=2, response_code=2)
    script.add("drop-before", on=_PULL)
    assert script.take_for_request("broker-a", _SEND, 409) is None
    taken = [script.take_for_request("broker-a", _PULL, 409) for _ in range(4)]
    assert taken == [Fail(2), Fail(2), DropConnection(), None]


def test_a_line_may_be_meant_for_one_server_only() -> None:
    script = FaultScript()
    script.add("flow-control", on=_PULL, where="broker-b")
    assert script.take_for_request("broker-a", _PULL, 409) is None
    fault = script.take_for_request("broker-b", _PULL, 409)
    assert isinstance(fault, Fail)
    assert fault.response_code == ResponseCode.FLOW_CONTROL


def test_faults_of_answers_do_not_fit_requests_nor_connections() -> None:
    script = FaultScript()
    script.add("cut", on=_PULL, keep_bytes=3)
    script.add("lose", on=_PULL)
    assert script.take_for_request("broker-a", _PULL, 409) is None
    assert script.take_for_connection("broker-a") is None
    assert [script.take_for_answer("broker-a", _PULL) for _ in range(3)] == [Cut(3), Lose(), None]


def test_only_clients_newer_than_5_3_1_are_sent_away() -> None:
    """A1: others are served, and the line waits for one that understands it."""
    script = FaultScript()
    script.add("go-away", on=_PULL)
    assert script.take_for_request("broker-a", _PULL, 475) is None
    assert script.take_for_request("broker-a", _PULL, 476) == GoAway()


@pytest.mark.parametrize(
    ("at", "size", "expected"),
    [
        (0, 1, b"\xff\0\0\0"),
        (1, 2, b"\0\xff\xff\0"),
        (-1, 1, b"\0\0\0\xff"),
        (3, 9, b"\0\0\0\xff"),
        (-9, 1, b"\xff\0\0\0"),
        (9, 1, bytes(4)),
    ],
)
def test_corrupt_bytes_are_the_named_ones(at: int, size: int, expected: bytes) -> None:
    assert Corrupt(at, size).inverted(bytes(4)) == expected


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("explode", {"on": _PULL}, "no fault 'explode'; the names are answer-code"),
        ("delay", {"on": _PULL}, "missing 1 required positional argument: 'seconds'"),
        ("lose", {"on": _PULL, "seconds": 3}, "unexpected keyword argument"),
        ("lose", {}, "name its code with 'on'"),
        ("refuse", {"on": _PULL}, "use 'drop-before'"),
    ],
)
def test_a_line_that_makes_no_sense_is_explained(name: str, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        FaultScript().add(name, **options)


def test_every_fault_can_be_written_by_its_name() -> None:
    options: dict[str, dict[str, Any]] = {
        "delay": {"seconds": 1.0},
        "answer-code": {"response_code": 2},
        "recode": {"response_code": 12},
    }
    script = FaultScript()
    for name in FAULTS:
        script.add(name, on=None if name == "refuse" else _PULL, **options.get(name, {}))
    assert script.pending == len(FAULTS)


def test_the_rest_of_a_script_can_be_forgotten() -> None:
    script = FaultScript()
    script.add("lose", on=_PULL, times=3)
    script.clear()
    assert script.pending == 0


def test_a_failed_request_is_answered_and_not_done(cluster: SimCluster, client: RawClient) -> None:
    cluster.faults.add("answer-code", on=_SEND, response_code=ResponseCode.SYSTEM_BUSY)
    assert client.call(send()).code == ResponseCode.SYSTEM_BUSY
    assert cluster.bounds(_QUEUE).max_offset == 0
    assert client.call(send()).code == ResponseCode.SUCCESS


def test_a_dropped_connection_leaves_the_request_undone(cluster: SimCluster, client: RawClient) -> None:
    cluster.faults.add("drop-before", on=_SEND)
    client.send(send())
    assert client.read_to_end() == b""
    assert cluster.bounds(_QUEUE).max_offset == 0
    with RawClient(cluster.broker_addresses["broker-a"]) as again:
        assert again.call(send()).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("keep_bytes", [0, 3, 100])
def test_a_cut_answer_belongs_to_a_request_that_was_done(
    cluster: SimCluster, client: RawClient, keep_bytes: int
) -> None:
    cluster.faults.add("cut", on=_SEND, keep_bytes=keep_bytes)
    client.send(send())
    assert len(client.read_to_end()) == keep_bytes
    assert cluster.bounds(_QUEUE).max_offset == 1


def test_a_held_pulls_late_answer_can_be_cut_too(cluster: SimCluster, client: RawClient) -> None:
    cluster.faults.add("cut", on=_PULL, keep_bytes=10)
    client.send(held_pull())
    with RawClient(cluster.broker_addresses["broker-a"]) as producer:
        producer.call(send())
        while cluster.held_pulls():
            producer.call(send())
    assert len(client.read_to_end()) == 10


def test_a_lost_answer_leaves_the_connection_usable(cluster: SimCluster, client: RawClient) -> None:
    cluster.put(_QUEUE, [message()])
    cluster.faults.add("lose", on=_PULL)
    client.send(pull(opaque=1))
    assert client.call(pull(opaque=2)).opaque == 2


def test_a_name_server_can_fail_as_well(cluster: SimCluster) -> None:
    cluster.faults.add("answer-code", on=105, response_code=1, where="namesrv")
    with RawClient(cluster.name_servers) as client:
        assert client.call(request(105, {"topic": TOPIC})).code == ResponseCode.SYSTEM_ERROR
        assert client.call(request(105, {"topic": TOPIC})).code == ResponseCode.SUCCESS


def test_a_failed_oneway_request_stays_unanswered(cluster: SimCluster, client: RawClient) -> None:
    cluster.faults.add("answer-code", on=_SEND, response_code=ResponseCode.SYSTEM_BUSY)
    oneway = encode_frame(request(_SEND, send().ext_fields, body=b"x", flag=2))
    client.socket.sendall(oneway)
    assert client.call(pull(opaque=3)).opaque == 3


def test_a_stalled_connection_stays_open_and_silent(cluster: SimCluster, client: RawClient) -> None:
    cluster.faults.add("stall", on=_SEND)
    client.send(send())
    client.send(pull())
    wait_until(lambda: cluster.faults.pending == 0)
    with RawClient(cluster.broker_addresses["broker-a"]) as other:
        other.call(send(b"served"))
    client.socket.settimeout(0.05)
    with pytest.raises(TimeoutError):
        client.receive()
    assert cluster.bounds(_QUEUE).max_offset == 1


def test_only_the_broker_misses_the_member_of_a_half_open_connection(
    cluster: SimCluster, client: RawClient
) -> None:
    """B7: as when the broker's machine lost the connection and the client does not know."""
    client.call(heartbeat("c1"))
    with RawClient(cluster.broker_addresses["broker-a"]) as other:
        other.call(heartbeat("c2"))
        cluster.faults.add("half-open", on=_PULL)
        client.send(pull())
        wait_until(lambda: _members(other) == ("c2",))


def test_a_stalled_members_membership_goes_on(cluster: SimCluster, client: RawClient) -> None:
    client.call(heartbeat("c1"))
    cluster.faults.add("stall", on=_PULL)
    client.send(pull())
    wait_until(lambda: cluster.faults.pending == 0)
    with RawClient(cluster.broker_addresses["broker-a"]) as other:
        assert _members(other) == ("c1",)


def _members(client: RawClient) -> tuple[str, ...]:
    client.send(request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP}, opaque=99))
    while (answer := client.receive()).opaque != 99:
        pass
    return decode_consumer_list(answer.body)


def test_a_delayed_answer_is_overtaken_and_comes_by_the_clusters_clock(
    cluster: SimCluster, client: RawClient, clock: FakeClock
) -> None:
    cluster.faults.add("delay", on=_SEND, seconds=5)
    client.send(send())
    assert client.call(pull(opaque=8)).opaque == 8
    clock.advance(5)
    cluster.look_at_clock()
    assert client.receive().code == ResponseCode.SUCCESS


def test_a_delayed_answer_comes_by_itself_on_real_time() -> None:
    with SimCluster() as cluster, RawClient(cluster.name_servers) as client:
        cluster.faults.add("delay", on=105, seconds=0.02)
        assert client.call(request(105, {"topic": "TBW102"})).code == ResponseCode.SUCCESS
        assert cluster.faults.pending == 0


def test_an_answer_may_come_twice(cluster: SimCluster, client: RawClient) -> None:
    cluster.faults.add("twice", on=_SEND)
    assert client.call(send()) == client.receive()
    assert cluster.bounds(_QUEUE).max_offset == 1


def test_an_answer_may_come_byte_by_byte(cluster: SimCluster, client: RawClient) -> None:
    cluster.faults.add("split", on=_SEND)
    assert client.call(send()).code == ResponseCode.SUCCESS


def test_a_new_connection_may_be_reset_or_never_be_heard(cluster: SimCluster) -> None:
    cluster.faults.add("refuse", where="broker-a")
    cluster.faults.add("stall", where="broker-a")
    address = cluster.broker_addresses["broker-a"]
    assert _is_reset(address)
    with RawClient(address) as unheard:
        wait_until(lambda: cluster.faults.pending == 0)
        unheard.send(send())
        with RawClient(address) as served:
            served.call(send())
        unheard.socket.settimeout(0.05)
        with pytest.raises(TimeoutError):
            unheard.receive()


def _is_reset(address: str) -> bool:
    try:
        with RawClient(address) as client:
            return client.read_to_end() == b""
    except ConnectionResetError:  # before the client has heard that it is connected
        return True


def test_a_broker_can_refuse_connections_while_the_old_ones_go_on(
    cluster: SimCluster, client: RawClient
) -> None:
    """A2: nothing listens at the port; the route still names it."""
    client.call(send())
    cluster.refuse_connections("broker-a")
    with pytest.raises(ConnectionRefusedError):
        RawClient(cluster.broker_addresses["broker-a"])
    assert client.call(send()).code == ResponseCode.SUCCESS
    cluster.accept_connections("broker-a")
    with RawClient(cluster.broker_addresses["broker-a"]) as again:
        assert again.call(send()).code == ResponseCode.SUCCESS
