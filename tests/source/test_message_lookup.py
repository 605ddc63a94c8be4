"""Looks at single messages: brokers at once, and what they report besides is not lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from broker_sim.bodies import encode_route
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consume.not_now import REFUSED_PAUSE_S
from pyspark_rocketmq.errors import BrokerOffsetUnavailable, RocketMQError, SystemBusy
from pyspark_rocketmq.model import (
    BrokerAddress,
    BrokerData,
    MessageQueue,
    QueueBounds,
    QueueData,
    TopicRoute,
)
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.cluster_view import Snapshot
from pyspark_rocketmq.source.message_lookup import MessageLookup
from pyspark_rocketmq.stored_values import LastMessage
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.messages import StoredMessage, body_crc
from tests.helpers.fake_clock import FakeClock
from tests.helpers.scripted_server import Peer, ScriptedServer
from tests.helpers.stored_messages import encode_stored_message
from tests.helpers.wait import PATIENCE_S
from tests.source.test_planner import A0, A1, B0

END = 10


class OneBroker(ScriptedServer):
    """Has messages 0 to 9 in each queue, the message at offset n stored at n ms;
    searches by time as brokers before 5 do.
    """

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.resets: dict[int, int] = {}
        """Targets by queue id, given once."""
        self.end = END
        """End of each queue, as shown to a request for only that."""
        self.refuses = False
        self.refused_queue: int | None = None
        self.before_answer: Callable[[], object] = lambda: None

    def _answer(self, peer: Peer, request: RemotingCommand) -> None:
        self.before_answer()
        queue_id = int(request.ext_fields.get("queueId", "-1"))
        if self.refuses or queue_id == self.refused_queue:
            peer.answer(request, ResponseCode.SYSTEM_BUSY, remark="busy")
        elif request.code == RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
            # The nearest one, which is the one before.
            peer.answer(request, ext_fields={"offset": str(int(request.ext_fields["timestamp"]) - 1)})
        elif request.code == RequestCode.GET_MAX_OFFSET:
            peer.answer(request, ext_fields={"offset": str(self.end)})
        else:
            self._answer_pull(peer, request)

    def _answer_pull(self, peer: Peer, request: RemotingCommand) -> None:
        offset, queue_id = (int(request.ext_fields[name]) for name in ("queueOffset", "queueId"))
        target = self.resets.pop(queue_id, None)
        fields = {"minOffset": "0", "maxOffset": str(END), "suggestWhichBrokerId": "0"}
        if target is not None:
            told = fields | {"nextBeginOffset": str(target)}
            peer.answer(request, ResponseCode.PULL_OFFSET_MOVED, ext_fields=told)
        else:
            fields |= {"nextBeginOffset": str(offset + 1)}
            peer.answer(request, ext_fields=fields, body=_stored(queue_id, offset))


def _stored(queue_id: int, offset: int) -> bytes:
    return encode_stored_message(
        StoredMessage(
            topic="orders",
            queue_id=queue_id,
            queue_offset=offset,
            commit_log_offset=offset * 100,
            body=b"",
            sys_flag=0,
            properties_data=b"",
            born_timestamp=0,
            born_host="127.0.0.1:1",
            store_timestamp=offset,
            store_host="127.0.0.1:2",
            body_crc=body_crc(b""),
        )
    )


class OneNameServer(ScriptedServer):
    """Answers each request for a route with ``route``; without one, it denies the topic."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.route: TopicRoute | None = None
        self.asked: list[str] = []

    def _answer(self, peer: Peer, request: RemotingCommand) -> None:
        self.asked.append(request.ext_fields["topic"])
        if self.route is None:
            peer.answer(request, ResponseCode.TOPIC_NOT_EXIST, remark="No topic route info")
        else:
            peer.answer(request, body=encode_route(self.route, standard_json=True))


def route_to(broker_id: int, address: BrokerAddress) -> TopicRoute:
    """One writable queue at ``broker-a``, which has one address."""
    return TopicRoute(
        brokers=(BrokerData(broker_name="broker-a", cluster="C", addresses={broker_id: address}),),
        queues=(QueueData(broker_name="broker-a", read_queue_nums=1, write_queue_nums=1, perm=6),),
    )


class Looks:
    """A watch over ``broker-a`` and ``broker-b``."""

    def __init__(self, pool: ChannelPool, *name_servers: ScriptedServer) -> None:
        options = {
            "nameServers": ";".join(server.address for server in name_servers) or "n:1",
            "requestTimeoutMs": f"{PATIENCE_S * 1000:.0f}",
            "topic": "orders",
            "consumerGroup": "g",
            "offsetStore": "delta:/unused",
        }
        self.clock = FakeClock()
        self.watch = MessageLookup(ReadOptions.parse(options), pool, self.clock)
        self.brokers = {"broker-a": OneBroker(), "broker-b": OneBroker()}
        self.addresses = {name: BrokerAddress(broker.address) for name, broker in self.brokers.items()}

    def at(self, **places: int) -> dict[MessageQueue, LastMessage | RocketMQError | None]:
        queues = {"A0": A0, "A1": A1, "B0": B0}
        wanted = {queues[name]: offset for name, offset in places.items()}
        found = self.watch.look(wanted, self.addresses)
        return {
            queue: each if isinstance(each, RocketMQError) else each.message for queue, each in found.items()
        }


@pytest.fixture
def looks() -> Iterator[Looks]:
    with ChannelPool(SystemClock()) as pool:
        looks = Looks(pool)
        yield looks
        for broker in looks.brokers.values():
            broker.close()


def test_brokers_are_looked_at_at_once(looks: Looks) -> None:
    """C3: each of them answers when both have been asked,
    so that one that is silent costs its time-out once.
    """
    both = threading.Barrier(2, timeout=PATIENCE_S)
    for broker in looks.brokers.values():
        broker.before_answer = both.wait

    assert looks.at(A0=3, B0=5) == {A0: LastMessage(3, 3, 300), B0: LastMessage(5, 5, 500)}


def test_a_reset_reported_with_a_look_is_kept_when_another_queue_cannot_be_looked_at(
    looks: Looks,
) -> None:
    """F5: of this broker or of another."""
    looks.brokers["broker-a"].resets = {0: 2}
    looks.brokers["broker-b"].refuses = True

    found = looks.at(A0=3, A1=3, B0=5)

    assert found[A1] == LastMessage(3, 3, 300)
    assert isinstance(found[B0], SystemBusy)
    assert looks.watch.resets() == {A0: 2}
    assert looks.watch.resets() == {}
    looks.clock.advance(REFUSED_PAUSE_S)
    looks.brokers["broker-b"].refuses = False
    assert looks.at(A0=3) == {A0: LastMessage(3, 3, 300)}


def test_a_queue_whose_look_is_refused_rests_and_the_broker_s_others_are_looked_at(looks: Looks) -> None:
    """A8, D3: as ``PullCallback.onException`` pulls again 3 s later, for that queue only."""
    looks.brokers["broker-a"].refused_queue = 0

    first = looks.at(A0=3, A1=3)
    looks.brokers["broker-a"].refused_queue = None

    assert first[A1] == LastMessage(3, 3, 300)
    assert looks.at(A0=3, A1=3)[A0] is first[A0]
    looks.clock.advance(REFUSED_PAUSE_S)
    assert looks.at(A0=3) == {A0: LastMessage(3, 3, 300)}


def test_a_reset_reported_while_the_next_generation_is_looked_for_is_kept(
    looks: Looks,
) -> None:
    """F5, F4: and the message after it is seen all the same."""
    looks.brokers["broker-a"].resets = {0: 2}

    start = looks.watch.stored_after(A0, looks.addresses["broker-a"], 4, QueueBounds(0, END))

    assert start == 5
    assert looks.watch.resets() == {A0: 2}


# --- whether a broker that lacks messages is the master -----------------------------------------------------


class Standing:
    """``broker-a``, which the last known route names as master, and two name servers."""

    def __init__(self, pool: ChannelPool) -> None:
        self.name_servers = OneNameServer(), OneNameServer()
        self.looks = Looks(pool, *self.name_servers)
        self.broker = self.looks.brokers["broker-a"]
        self.broker.broker_name = "broker-a"
        self.master = route_to(0, self.looks.addresses["broker-a"])
        self.snapshot = Snapshot(
            bounds={A0: QueueBounds(5, END)}, addresses=self.looks.addresses, unreachable={}
        )

    def troubles(self, position: int = END + 1) -> list[RocketMQError]:
        """Errors of the queue, asked for three times, the last time a while later."""
        found: list[RocketMQError] = []
        for pause_s in (0, 0, REFUSED_PAUSE_S):
            self.looks.clock.advance(pause_s)
            found += self.looks.watch.at_slaves({A0: position}, self.snapshot).values()
        return found

    def close(self) -> None:
        for server in (*self.name_servers, *self.looks.brokers.values()):
            server.close()


@pytest.fixture
def standing() -> Iterator[Standing]:
    with ChannelPool(SystemClock()) as pool:
        standing = Standing(pool)
        yield standing
        standing.close()


@pytest.mark.parametrize("names", ["nothing", "another master", "a replica", "nothing readable"])
def test_a_broker_that_no_name_server_lists_as_master_proves_no_loss(standing: Standing, names: str) -> None:
    """F4, L3: in controller mode it serves before it has its role, and its queues may end too early until
    then; the last known route leads to it, because name servers deny the topic.
    """
    address = standing.looks.addresses["broker-a"]
    first, other = standing.name_servers
    if names == "another master":
        first.route = other.route = route_to(0, BrokerAddress("10.0.0.9:10911"))
    elif names == "a replica":
        first.route = other.route = route_to(2, address)
    elif names == "nothing readable":
        first.script = other.script = lambda peer, request: peer.answer(request, body=b"?")

    troubles = standing.troubles()

    assert len(troubles) == 3
    assert all(each is troubles[0] for each in troubles), "it is logged once"
    assert f"name servers do not list {address} as its master" in str(troubles[0])
    with pytest.raises(BrokerOffsetUnavailable):
        standing.looks.watch.require_master(A0, standing.looks.addresses)
    if names == "nothing":
        assert first.asked == other.asked == ["orders"] * 2, "not again for a while"


def test_a_broker_is_not_judged_while_no_name_server_answers(standing: Standing) -> None:
    """F4, L3: what is not known is no loss."""
    for server in standing.name_servers:
        server.close()

    [trouble, *_] = standing.troubles()

    assert "none answers" in str(trouble)


def test_messages_that_have_expired_need_no_name_server(standing: Standing) -> None:
    """F4: the queue would lose more while it waits, and only its end may come too early; but a slave may have
    begun later than its master.
    """
    assert standing.troubles(position=4) == []
    assert all(not server.asked for server in standing.name_servers)

    standing.broker.role = "SLAVE"
    assert len(standing.troubles(position=4)) == 3


@pytest.mark.parametrize("denied_before", [False, True])
@pytest.mark.parametrize("lists", [0, 1])
def test_a_broker_that_one_name_server_lists_as_master_is_believed(
    standing: Standing, lists: int, denied_before: bool
) -> None:
    """F4: whatever it lacks is lost, and is reported, as soon as it is listed."""
    if denied_before:
        assert len(standing.troubles()) == 3
        standing.looks.clock.advance(REFUSED_PAUSE_S)
    standing.name_servers[lists].route = standing.master

    assert standing.troubles() == []
    standing.looks.watch.require_master(A0, standing.looks.addresses)


def test_a_proxy_that_lists_itself_as_master_is_believed_beside_another_one(standing: Standing) -> None:
    """F4: each RocketMQ Proxy lists itself as the master of every broker."""
    first, other = standing.name_servers
    first.route, other.route = route_to(0, BrokerAddress("10.0.0.9:8080")), standing.master

    assert standing.troubles() == []


def test_a_broker_that_has_its_end_again_when_it_is_listed_proves_no_loss(standing: Standing) -> None:
    """F4, L3: the bounds were read before it had its role, and the name servers were asked later."""
    for server in standing.name_servers:
        server.route = standing.master
    standing.broker.end = END + 1

    assert {str(each) for each in standing.troubles()} == {
        f"{A0}: its broker has offsets up to {END + 1} again. The queue waits for the next plan."
    }
    standing.broker.end = END
    assert standing.troubles() == []


def test_an_answer_of_name_servers_is_not_remembered_for_a_later_loss(standing: Standing) -> None:
    """F4: a broker that was listed a moment ago may have restarted."""
    for server in standing.name_servers:
        server.route = standing.master
    assert standing.troubles() == []

    for server in standing.name_servers:
        server.route = None
    assert len(standing.troubles()) == 3


@pytest.mark.parametrize(("role", "broker_id"), [("SLAVE", 1), ("ASYNC_MASTER", -1)])
def test_a_slave_or_a_broker_without_a_role_proves_no_loss_even_if_listed(
    standing: Standing, role: str, broker_id: int
) -> None:
    """F4, L3: with DLedger the id is -1 until a leader is elected."""
    for server in standing.name_servers:
        server.route = standing.master
    standing.broker.role, standing.broker.broker_id = role, broker_id

    troubles = standing.troubles()

    assert len(troubles) == 3
    assert "is a slave or has no role yet" in str(troubles[0])
    standing.broker.role, standing.broker.broker_id = "SYNC_MASTER", 0
    standing.looks.clock.advance(REFUSED_PAUSE_S)
    assert standing.troubles() == []
