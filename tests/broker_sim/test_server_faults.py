"""What scripted faults look like to the connector's own client."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from broker_sim.cluster import SimCluster
from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.errors import (
    BrokerError,
    ChannelClosed,
    ConnectFailed,
    RemoteProtocolError,
    RequestTimeout,
    TransportError,
)
from pyspark_rocketmq.model import Message, MessageQueue, SendStatus
from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.requests.pull import PullRequest, PullStatus
from pyspark_rocketmq.wire.requests.send import SendResult, SendSettings
from tests.helpers.fake_clock import FakeClock
from tests.helpers.wait import PATIENCE_S, wait_until

_SEND = RequestCode.SEND_MESSAGE_V2
_PULL = RequestCode.PULL_MESSAGE
_QUEUE = MessageQueue("orders", "broker-a", 0)
_MESSAGE = Message(topic="orders", body=b"hello")
_SHORT_S = 0.05
_LONG_S = PATIENCE_S


@pytest.fixture
def cluster(clock: FakeClock) -> Iterator[SimCluster]:
    with SimCluster(clock=clock) as cluster:
        cluster.create_topic("orders", queues=1)
        yield cluster
        assert cluster.faults.pending == 0, "a fault that was asked for did not happen"


@pytest.fixture
def pool() -> Iterator[ChannelPool]:
    with ChannelPool(SystemClock()) as pool:
        yield pool


class Client:
    """Sends to and pulls from the only queue."""

    def __init__(self, cluster: SimCluster, pool: ChannelPool, timeout_s: float) -> None:
        self._address = cluster.broker_addresses["broker-a"]
        self._pool = pool
        self._calls = BrokerClient(pool, SystemClock(), timeout_s)

    def connect(self) -> None:
        """Connect first, so that a short timeout applies only to a request."""
        self._pool.get(self._address, Deadline.after(SystemClock(), _LONG_S))

    def send(self) -> SendResult:
        return self._calls.send(self._address, _MESSAGE, _QUEUE, SendSettings(producer_group="p"))

    def pull(self) -> PullStatus:
        request = PullRequest(consumer_group="g", queue=_QUEUE, queue_offset=0)
        return self._calls.pull(self._address, request).status


@pytest.fixture
def client(cluster: SimCluster, pool: ChannelPool) -> Client:
    return Client(cluster, pool, _LONG_S)


@pytest.fixture
def hasty(cluster: SimCluster, pool: ChannelPool) -> Client:
    """As ``client``, on the same connections, but does not wait for long."""
    return Client(cluster, pool, _SHORT_S)


def _stored(cluster: SimCluster) -> int:
    return cluster.bounds(_QUEUE).max_offset


@pytest.mark.parametrize(("fault", "stored"), [("drop-before", 0), ("drop-after", 1)])
def test_a_dropped_connection_says_nothing_of_the_effect(
    cluster: SimCluster, client: Client, fault: str, stored: int
) -> None:
    """A1: the caller learns that the channel was closed; the next request makes a new one."""
    cluster.faults.add(fault, on=_SEND)
    with pytest.raises(ChannelClosed):
        client.send()
    assert _stored(cluster) == stored
    assert client.send().queue_offset == stored


def test_an_answer_cut_off_in_its_middle_is_a_closed_channel(cluster: SimCluster, client: Client) -> None:
    cluster.faults.add("cut", on=_SEND, keep_bytes=20)
    with pytest.raises(ChannelClosed):
        client.send()
    assert client.send().queue_offset == 1


def test_a_reset_connection_is_a_transport_error_and_the_next_one_serves(
    cluster: SimCluster, client: Client
) -> None:
    cluster.faults.add("refuse")
    with pytest.raises(TransportError):
        client.send()
    assert client.send().queue_offset == 0


def test_nobody_listening_is_a_failed_connection(cluster: SimCluster, client: Client) -> None:
    cluster.refuse_connections("broker-a")
    with pytest.raises(ConnectFailed, match="refused"):
        client.send()
    cluster.accept_connections("broker-a")
    assert client.send().queue_offset == 0


def test_answers_are_matched_by_opaque_when_one_is_late(
    cluster: SimCluster, client: Client, hasty: Client, clock: FakeClock
) -> None:
    """A1: a late answer is nobody's; the channel goes on."""
    cluster.faults.add("delay", on=_SEND, seconds=1.0, times=2)
    hasty.connect()
    with pytest.raises(RequestTimeout):
        hasty.send()
    assert client.pull() is PullStatus.FOUND
    with ThreadPoolExecutor(1) as other:
        second = other.submit(client.send)
        wait_until(lambda: cluster.faults.pending == 0)
        clock.advance(1.0)
        cluster.look_at_clock()
        late = second.result(_LONG_S)
    assert late.queue_offset == 1, "the late answer of the first send was taken for the second's"


def test_frames_come_together_from_single_bytes(cluster: SimCluster, client: Client) -> None:
    """A1: a frame may be cut anywhere."""
    cluster.faults.add("split", on=_SEND)
    cluster.faults.add("split", on=_PULL)
    assert client.send().queue_offset == 0
    assert client.pull() is PullStatus.FOUND


def test_corrupt_bytes_close_the_channel_with_a_protocol_error(
    cluster: SimCluster, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """A1: never a wrong answer and never a hang."""
    caplog.set_level(logging.CRITICAL)
    for at in (0, 4, 5, 8):
        cluster.faults.add("corrupt", on=_SEND, at=at)
        with pytest.raises(RemoteProtocolError):
            client.send()
    assert client.send().queue_offset == 4


@pytest.mark.parametrize(("fault", "options", "code"), [
    ("answer-code", {"response_code": 14}, 14),
    ("flow-control", {}, 215),
])  # fmt: skip
def test_an_error_code_is_a_broker_error(
    cluster: SimCluster, client: Client, fault: str, options: dict[str, Any], code: int
) -> None:
    cluster.faults.add(fault, on=_SEND, **options)
    with pytest.raises(BrokerError) as refused:
        client.send()
    assert refused.value.code == code
    assert _stored(cluster) == 0


@pytest.mark.parametrize("status", [SendStatus.FLUSH_DISK_TIMEOUT, SendStatus.SLAVE_NOT_AVAILABLE])
def test_a_message_may_be_stored_less_safely_than_wanted(
    cluster: SimCluster, client: Client, status: SendStatus
) -> None:
    """G2: not SEND_OK, and yet stored."""
    cluster.faults.add("recode", on=_SEND, response_code=int(status))
    assert client.send().status is status
    assert _stored(cluster) == 1


def test_an_answer_that_comes_twice_is_taken_once(cluster: SimCluster, client: Client) -> None:
    """A1: an opaque is answered once."""
    cluster.faults.add("twice", on=_SEND)
    assert [client.send().queue_offset for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("fault", ["stall", "half-open", "lose"])
def test_silence_is_a_timeout(cluster: SimCluster, hasty: Client, fault: str) -> None:
    cluster.faults.add(fault, on=_SEND)
    hasty.connect()
    with pytest.raises(RequestTimeout):
        hasty.send()
    wait_until(lambda: cluster.faults.pending == 0)
    assert _stored(cluster) == (1 if fault == "lose" else 0)


def test_a_connection_that_is_never_heard_is_a_timeout(cluster: SimCluster, hasty: Client) -> None:
    cluster.faults.add("stall", where="broker-a")
    hasty.connect()
    wait_until(lambda: cluster.faults.pending == 0)
    with pytest.raises(RequestTimeout):
        hasty.send()


def test_only_a_newer_client_than_this_one_is_sent_away(
    cluster: SimCluster, client: Client, pool: ChannelPool
) -> None:
    """A1: 1500 answers versions over 475 only; this client shows 409."""
    cluster.faults.add("go-away", on=_SEND)
    assert client.send().queue_offset == 0
    cluster.faults.clear()
    cluster.faults.add("go-away", on=RequestCode.GET_MAX_OFFSET)
    soon = Deadline.after(SystemClock(), _LONG_S)
    address = cluster.broker_addresses["broker-a"]
    fields = {"topic": "orders", "queueId": "0"}
    newer = RemotingCommand(code=RequestCode.GET_MAX_OFFSET, version=479, ext_fields=fields)
    first = pool.get(address, soon)
    assert first.request(newer, soon).code == 1500
    wait_until(lambda: not first.is_open)
    assert pool.get(address, soon).request(newer, soon).code == 0


def test_a_producer_sends_again_where_a_broker_is_busy(cluster: SimCluster) -> None:
    """G3: a retried send is stored once."""
    cluster.faults.add("answer-code", on=_SEND, response_code=2, times=2)
    with Producer(cluster.name_servers, "p", send_timeout_s=_LONG_S) as producer:
        producer.send(_MESSAGE)
    wait_until(lambda: cluster.faults.pending == 0)
    assert _stored(cluster) == 1
