"""Which broker answers at an address, and that no request meant for another one is sent there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pyspark_rocketmq.client.broker import Batch, BrokerClient, PullRequest, SendSettings
from pyspark_rocketmq.client.channel import Channel
from pyspark_rocketmq.client.identity import WHO, confirm, name_in
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.transport import TcpTransport
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.errors import RocketMQError, SystemBusy, WrongBroker
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.requests.bodies import HeartbeatData
from tests.helpers.fake_clock import FakeClock
from tests.helpers.messages import message_at
from tests.helpers.scripted_server import Peer, ScriptedServer
from tests.helpers.wait import PATIENCE_S, wait_until

QUEUE = MessageQueue("orders", "broker-a", 0)
MESSAGE = Message(topic="orders", body=b"x")
SETTINGS = SendSettings(producer_group="p")

CALLS: dict[str, Callable[[BrokerClient, str], object]] = {
    "pull": lambda brokers, at: brokers.pull(
        at, PullRequest(consumer_group="g", queue=QUEUE, queue_offset=0)
    ),
    "send": lambda brokers, at: brokers.send(at, MESSAGE, QUEUE, SETTINGS),
    "send one-way": lambda brokers, at: brokers.send_oneway(at, MESSAGE, QUEUE, SETTINGS),
    "send batch": lambda brokers, at: brokers.send_batch(
        at, Batch(queue=QUEUE, messages=[MESSAGE], properties={}), SETTINGS
    ),
    "send back": lambda brokers, at: brokers.send_message_back(at, message_at(0), "g", 0, 16),
    "first offset": lambda brokers, at: brokers.min_offset(at, QUEUE),
    "last offset": lambda brokers, at: brokers.max_offset(at, QUEUE),
    "offset by time": lambda brokers, at: brokers.search_offset(at, QUEUE, 1),
    "statistics": lambda brokers, at: brokers.topic_stats(at, "orders", broker_name="broker-a"),
    "read offset": lambda brokers, at: brokers.query_consumer_offset(at, "g", QUEUE),
    "store offset": lambda brokers, at: brokers.update_consumer_offset(at, "g", QUEUE, 7),
    "lock": lambda brokers, at: brokers.lock_batch(at, "g", "c", [QUEUE]),
    "unlock": lambda brokers, at: brokers.unlock_batch(at, "g", "c", [QUEUE]),
    "heartbeat": lambda brokers, at: brokers.heartbeat(
        at, HeartbeatData(client_id="c"), broker_name="broker-a"
    ),
    "members": lambda brokers, at: brokers.consumer_list(at, "g", broker_name="broker-a"),
}
SENT_LATER: dict[str, Callable[[BrokerClient, str, Callable[[object], object]], object]] = {
    "pull": lambda brokers, at, done: brokers.pull_async(
        at, PullRequest(consumer_group="g", queue=QUEUE, queue_offset=0), done
    ),
    "send": lambda brokers, at, done: brokers.send_async(at, MESSAGE, QUEUE, SETTINGS, done),
    "send batch": lambda brokers, at, done: brokers.send_batch_async(
        at, Batch(queue=QUEUE, messages=[MESSAGE], properties={}), SETTINGS, done
    ),
}


@pytest.fixture
def other() -> Iterator[ScriptedServer]:
    """Broker-b, where broker-a was."""
    with ScriptedServer(broker_name="broker-b") as server:
        yield server


@pytest.fixture
def brokers(pool: ChannelPool) -> BrokerClient:
    return BrokerClient(pool, SystemClock(), PATIENCE_S)


@pytest.mark.parametrize("name", CALLS)
def test_another_broker_gets_no_request(brokers: BrokerClient, other: ScriptedServer, name: str) -> None:
    """A7: nothing is read, locked, stored or sent there; the route is to be asked for again."""
    with pytest.raises(WrongBroker, match=f"{other.address}: it is broker-b, and broker-a was expected"):
        CALLS[name](brokers, other.address)
    assert other.requests.empty()


@pytest.mark.parametrize("name", SENT_LATER)
def test_another_broker_gets_no_request_that_is_not_waited_for(
    brokers: BrokerClient, other: ScriptedServer, name: str
) -> None:
    """A7: the error comes as any other does."""
    outcomes: list[object] = []
    SENT_LATER[name](brokers, other.address, outcomes.append)

    assert [type(outcome) for outcome in outcomes] == [WrongBroker]
    assert other.requests.empty()


@pytest.mark.parametrize("broker_name", ["broker-a", None])
def test_a_server_is_asked_for_its_name_once_for_each_connection(
    brokers: BrokerClient, pool: ChannelPool, server: ScriptedServer, broker_name: str | None
) -> None:
    """A7: what does not say its name, as a proxy, is taken for the broker of the route."""
    server.broker_name = broker_name
    for _ in range(3):
        brokers.update_consumer_offset(server.address, "g", QUEUE, 7)
    assert server.introductions == 1

    server.next_peer().close()
    wait_until(lambda: succeeds(lambda: brokers.update_consumer_offset(server.address, "g", QUEUE, 8)))
    assert server.introductions == 2
    server.broker_name = "broker-b"
    server.next_peer().close()
    with pytest.raises(WrongBroker):
        wait_until(lambda: succeeds(lambda: brokers.update_consumer_offset(server.address, "g", QUEUE, 9)))


def succeeds(call: Callable[[], object]) -> bool:
    try:
        call()
    except WrongBroker:
        raise
    except RocketMQError:
        return False
    return True


def test_a_broker_that_was_another_one_is_asked_again(brokers: BrokerClient, other: ScriptedServer) -> None:
    """A7: by then the connection may have fallen silent, which must not stand in the way of a new one."""
    for _ in range(2):
        with pytest.raises(WrongBroker):
            brokers.max_offset(other.address, QUEUE)
    brokers.update_consumer_offset(other.address, "g", QUEUE._replace(broker_name="broker-b"), 7)

    assert other.introductions == 2
    assert other.requests.qsize() == 1


def test_a_busy_server_has_not_said_who_it_is() -> None:
    """A7: neither it nor another one."""
    with pytest.raises(SystemBusy):
        name_in(WHO.response(ResponseCode.SYSTEM_BUSY, remark="busy"), "a:1")


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b"brokerName=broker-a\n", "broker-a"),
        (b"aBrokerName=x\r\nbrokerName=broker-a\r\nbrokerNameX=y\r\n", "broker-a"),
        (b"brokerClusterName=c\n", ""),
        (b"", ""),
        (b"brokerName=\xff\n", "\ufffd"),
    ],
)
def test_a_broker_s_name_is_found_among_its_settings(body: bytes, name: str) -> None:
    """A7, H9: whatever else is there."""
    assert name_in(WHO.response(0, body=body), "a:1") == name


@pytest.mark.parametrize(("silent_s", "is_kept"), [(1.0, True), (2.0, False)])
def test_a_slow_broker_that_said_its_name_keeps_its_connection(silent_s: float, is_kept: bool) -> None:
    """A7: what its name has left of a call's time is too short for the answer; the next call has it all."""
    clock = FakeClock()

    class SlowToSayIt(ScriptedServer):
        def _introduce(self, peer: Peer, request: RemotingCommand) -> None:
            clock.advance(2.0)
            super()._introduce(peer, request)

    with SlowToSayIt(lambda peer, request: None, broker_name="broker-a") as server:
        channel = Channel(TcpTransport.connect(server.address, PATIENCE_S), clock)
        try:
            confirm(channel, "broker-a", Deadline.after(clock, PATIENCE_S))
            channel.submit(RemotingCommand(code=31), lambda outcome: None, Deadline.after(clock, silent_s))
            clock.advance(silent_s)
            channel.expire_overdue()

            assert channel.is_open is is_kept
        finally:
            channel.close()
