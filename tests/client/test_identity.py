"""Which broker answers at an address, and that no request meant for another one is sent there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.channel import Channel
from pyspark_rocketmq.client.cluster import run_concurrently
from pyspark_rocketmq.client.identity import WHO, confirm, name_in
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.transport import TcpTransport
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.errors import ConnectFailed, RocketMQError, SystemBusy, TransportError, WrongBroker
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.requests.bodies import HeartbeatData
from pyspark_rocketmq.wire.requests.pull import PullRequest
from pyspark_rocketmq.wire.requests.send import Batch, SendSettings
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
    outcomes: SimpleQueue[object] = SimpleQueue()
    SENT_LATER[name](brokers, other.address, outcomes.put)

    assert isinstance(outcomes.get(timeout=PATIENCE_S), WrongBroker)
    assert other.requests.empty()


sent_later = pytest.mark.parametrize("name", SENT_LATER)


@sent_later
def test_an_asynchronous_call_does_not_wait_for_a_connection(server: ScriptedServer, name: str) -> None:
    """A7: a caller may send to other brokers meanwhile."""
    has_returned = threading.Event()

    def connect(address: str, timeout_s: float) -> TcpTransport:
        assert has_returned.wait(PATIENCE_S)
        return TcpTransport.connect(address, timeout_s)

    outcomes: SimpleQueue[object] = SimpleQueue()
    with ChannelPool(SystemClock(), connect=connect) as pool:
        SENT_LATER[name](BrokerClient(pool, SystemClock(), PATIENCE_S), server.address, outcomes.put)
        has_returned.set()

        server.next_request()
        outcomes.get(timeout=PATIENCE_S)
    assert outcomes.empty()


class HeldBack(ScriptedServer):
    """Says its name when it may."""

    def __init__(self, *names: str) -> None:
        super().__init__(broker_name=names[0])
        self.names = [*names]
        self.may = threading.Event()
        self.has_waited = True

    def _introduce(self, peer: Peer, request: RemotingCommand) -> None:
        self.has_waited = self.may.wait(PATIENCE_S) and self.has_waited
        self.broker_name = self.names.pop(0) if len(self.names) > 1 else self.names[0]
        super()._introduce(peer, request)


@sent_later
def test_an_asynchronous_call_does_not_wait_for_the_broker_s_name(brokers: BrokerClient, name: str) -> None:
    """A7: on a new connection."""
    outcomes: SimpleQueue[object] = SimpleQueue()
    with HeldBack("broker-a") as server:
        SENT_LATER[name](brokers, server.address, outcomes.put)
        server.may.set()

        server.next_request()
        outcomes.get(timeout=PATIENCE_S)
        assert server.has_waited


@sent_later
def test_an_asynchronous_call_to_nobody_calls_back(pool: ChannelPool, name: str) -> None:
    """A7: exactly once."""
    closed, outcomes = ScriptedServer(), SimpleQueue[object]()
    closed.close()
    SENT_LATER[name](BrokerClient(pool, SystemClock(), PATIENCE_S), closed.address, outcomes.put)

    assert isinstance(outcomes.get(timeout=PATIENCE_S), ConnectFailed)
    assert outcomes.empty()


def test_a_callback_may_call_another_broker_that_came_to_the_same_address(brokers: BrokerClient) -> None:
    """A7: it runs on the thread that takes in the answers, the broker's name among them."""
    outcomes: SimpleQueue[object] = SimpleQueue()
    moved = QUEUE._replace(broker_name="broker-b")

    def go_on(_: object) -> None:
        request = PullRequest(consumer_group="g", queue=moved, queue_offset=1)
        brokers.pull_async(server.address, request, outcomes.put)

    with HeldBack("broker-a", "broker-b") as server:
        server.may.set()
        SENT_LATER["pull"](brokers, server.address, go_on)
        outcome = outcomes.get(timeout=PATIENCE_S)

    assert not isinstance(outcome, TransportError)


@pytest.mark.parametrize("is_other", [False, True])
def test_threads_that_ask_for_a_name_at_the_same_time_get_the_same_verdict(
    brokers: BrokerClient, is_other: bool
) -> None:
    """A7: nobody waits for another thread's question; both answers come from one server."""

    class AsksTwice(ScriptedServer):
        def __init__(self) -> None:
            super().__init__(broker_name="broker-b" if is_other else "broker-a")
            self.held: list[tuple[Peer, RemotingCommand]] = []

        def _introduce(self, peer: Peer, request: RemotingCommand) -> None:
            self.held.append((peer, request))
            if len(self.held) == 2:
                for each in self.held:
                    super()._introduce(*each)

    def call() -> str:
        try:
            brokers.update_consumer_offset(server.address, "g", QUEUE, 7)
        except WrongBroker:
            return "another"
        return "wanted"

    with AsksTwice() as server:
        assert run_concurrently([call, call]) == ["another" if is_other else "wanted"] * 2
        assert server.introductions == 2
        assert server.requests.qsize() == (0 if is_other else 2)


class Refusing(ScriptedServer):
    """Refuses to say its name while ``code`` is not 0."""

    code = int(ResponseCode.NO_PERMISSION)

    def _introduce(self, peer: Peer, request: RemotingCommand) -> None:
        if self.code:
            self.introductions += 1
            peer.answer(request, self.code, remark="no right to the cluster's configuration")
        else:
            super()._introduce(peer, request)


@pytest.mark.parametrize("code", [ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR])
def test_a_broker_that_refuses_its_name_is_warned_of_once_and_asked_again_later(
    pool: ChannelPool, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A7: rights may be given meanwhile, and a broker may have failed for a moment."""
    clock = FakeClock()
    brokers = BrokerClient(pool, clock, PATIENCE_S)

    def call() -> None:
        brokers.update_consumer_offset(server.address, "g", QUEUE, 7)

    with Refusing(broker_name="broker-b") as server:
        server.code = int(code)
        for _ in range(3):
            call()
        clock.advance(59.0)
        call()
        assert server.introductions == 1
        clock.advance(1.0)
        call()
        assert server.introductions == 2

        [said] = [
            each.message for each in caplog.records if "does not report which broker it is" in each.message
        ]
        assert f"broker=broker-a address={server.address} code={code}" in said
        assert "Give this user the right to GET_BROKER_CONFIG" in said
        server.code = 0
        clock.advance(60.0)
        with pytest.raises(WrongBroker):
            call()


def test_a_server_without_a_name_is_warned_of_once(
    brokers: BrokerClient, pool: ChannelPool, server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A7: a proxy finds the broker by itself; another server may be any."""
    brokers.update_consumer_offset(server.address, "g", QUEUE, 7)
    server.next_peer().close()
    wait_until(lambda: succeeds(lambda: brokers.update_consumer_offset(server.address, "g", QUEUE, 8)))

    assert caplog.text.count("does not report which broker it is") == 1
    assert "This is normal for a RocketMQ 5 Proxy" in caplog.text


@pytest.mark.parametrize("code", [ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR])
def test_a_broker_that_has_said_its_name_is_no_other_one_when_it_refuses(
    brokers: BrokerClient, code: int
) -> None:
    """A7: an answer that says nothing does not make it the wanted one."""
    with Refusing(broker_name="broker-b") as server:
        server.code = 0
        for server.code in (0, int(code), int(code)):
            with pytest.raises(WrongBroker, match="it is broker-b, and broker-a was expected"):
                brokers.update_consumer_offset(server.address, "g", QUEUE, 7)
        assert server.requests.empty()


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
