from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from broker_sim.bodies import encode_cluster_info, encode_route, encode_topic_list
from pyspark_rocketmq.client import transport
from pyspark_rocketmq.client.channel import Channel
from pyspark_rocketmq.client.nameserver import NameServerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.errors import (
    BrokerError,
    ConnectFailed,
    NameServerNotReady,
    NoPermission,
    NotANameServer,
    RemoteProtocolError,
    RequestTimeout,
    StaticTopic,
    TopicNotFound,
)
from pyspark_rocketmq.model import BrokerAddress, BrokerData, QueueData, TopicRoute
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from tests.helpers.fake_clock import FakeClock
from tests.helpers.scripted_server import Peer, Script, ScriptedServer
from tests.helpers.wait import PATIENCE_S


def route_with(queue_nums: int) -> TopicRoute:
    return TopicRoute(
        brokers=(
            BrokerData(broker_name="broker-a", cluster="C", addresses={0: BrokerAddress("10.0.0.1:10911")}),
        ),
        queues=(
            QueueData(
                broker_name="broker-a", read_queue_nums=queue_nums, write_queue_nums=queue_nums, perm=6
            ),
        ),
    )


def route_of(*names: str) -> TopicRoute:
    """One queue at each broker."""
    queues = (QueueData(broker_name=n, read_queue_nums=1, write_queue_nums=1, perm=6) for n in names)
    brokers = (
        BrokerData(broker_name=name, cluster="C", addresses={0: BrokerAddress(f"{name}:10911")})
        for name in names
    )
    return TopicRoute(brokers=tuple(brokers), queues=tuple(queues))


class RouteScript:
    """Answers route requests with ``route``, or TOPIC_NOT_EXIST while it is None."""

    def __init__(self, route: TopicRoute | None, *, standard_json: bool = True) -> None:
        self.route = route
        self.standard_json = standard_json
        self.count = 0

    def __call__(self, peer: Peer, request: RemotingCommand) -> None:
        """Answer one request."""
        self.count += 1
        assert request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
        if self.route is None:
            peer.answer(request, ResponseCode.TOPIC_NOT_EXIST, remark="No topic route info")
        else:
            peer.answer(request, body=encode_route(self.route, standard_json=self.standard_json))


@pytest.mark.parametrize("standard_json", [True, False])
def test_a_route_is_read_in_both_spellings(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline, standard_json: bool
) -> None:
    """A2: bare integer keys are accepted."""
    server.script = RouteScript(route_with(3), standard_json=standard_json)

    route = NameServerClient((server.address,), pool, SystemClock(), PATIENCE_S).route("orders", soon)

    assert route == route_with(3)
    assert server.next_request().ext_fields == {"topic": "orders"}


def test_a_route_is_kept_for_thirty_seconds(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline
) -> None:
    """A2: then new queues are found."""
    clock, script = FakeClock(), RouteScript(route_with(3))
    server.script = script
    client = NameServerClient((server.address,), pool, clock, PATIENCE_S)
    client.route("orders", soon)
    script.route = route_with(8)
    clock.advance(29.9)
    kept = client.route("orders", soon)
    clock.advance(0.2)

    assert kept == route_with(3)
    assert client.route("orders", soon) == route_with(8)
    assert script.count == 2


def test_a_route_is_kept_while_no_name_server_has_the_topic(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline, caplog: pytest.LogCaptureFixture
) -> None:
    """A2, G7: the name server is asked again each second, and believed as soon as it knows the topic."""
    clock, script = FakeClock(), RouteScript(None)
    server.script = script
    client = NameServerClient((server.address,), pool, clock, PATIENCE_S)
    with pytest.raises(TopicNotFound):
        client.route("orders", soon)
    script.route = route_with(3)
    client.route("orders", soon)
    assert client.denial("orders") is None
    client.invalidate("orders")
    script.route = None
    kept = [client.route("orders", soon) for _ in range(3)]
    asked = script.count
    clock.advance(1.1)
    kept.append(client.route("orders", soon))
    denial = client.denial("orders")
    script.route = route_with(8)
    clock.advance(1.1)

    assert kept == [route_with(3)] * 4
    assert (asked, script.count) == (3, 4)
    assert isinstance(denial, TopicNotFound)
    assert caplog.text.count("keeping the known route topic=orders brokers=broker-a (10.0.0.1:10911)") == 1
    assert client.route("orders", soon) == route_with(8)
    assert client.denial("orders") is None


def as_static_topic(peer: Peer, request: RemotingCommand) -> None:
    """Answer with the route of a static topic."""
    mapping = b',"topicQueueMappingByBroker":{"broker-a":{"currIdMap":{},"totalQueues":1}}}'
    peer.answer(request, body=encode_route(route_with(1), standard_json=True)[:-1] + mapping)


def test_a_known_topic_that_becomes_static_is_an_error(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline
) -> None:
    """A2, L9: it was deleted and made again, and its old route would lead to wrong queues."""
    clock, script = FakeClock(), RouteScript(route_with(3))
    server.script = script
    client = NameServerClient((server.address,), pool, clock, PATIENCE_S)
    client.route("orders", soon)
    server.script = as_static_topic
    clock.advance(30.1)
    for _ in range(2):
        with pytest.raises(StaticTopic, match="orders is a static topic"):
            client.route("orders", soon)

    script.route = route_with(8)
    server.script = script
    clock.advance(1.1)
    assert client.route("orders", soon) == route_with(8)


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_topic_that_is_static_at_one_of_two_name_servers_is_refused_at_first_contact_only(
    server: ScriptedServer,
    pool: ChannelPool,
    soon: Deadline,
    caplog: pytest.LogCaptureFixture,
    *,
    is_known: bool,
    is_first: bool,
) -> None:
    """A2, L9: one of them is behind, and brokers register at both within 30 s."""
    clock, ordinary = FakeClock(), RouteScript(route_with(3))
    server.script = ordinary
    with ScriptedServer(ordinary) as other:
        servers = (other.address, server.address) if is_first else (server.address, other.address)
        client = NameServerClient(servers, pool, clock, PATIENCE_S)
        if is_known:
            client.route("orders", soon)
            clock.advance(30.1)
        ordinary.route = route_of("broker-b")
        other.script = as_static_topic
        if is_known:
            assert client.route("orders", soon) == route_of("broker-b")
            assert "another name server has an ordinary route, which is used: Topic orders" in caplog.text
            return
        with pytest.raises(StaticTopic):
            client.route("orders", soon)


@pytest.mark.parametrize(
    "script",
    [
        RouteScript(None),
        lambda peer, request: peer.answer(request, ResponseCode.SYSTEM_ERROR, remark="restarting"),
        lambda peer, request: peer.close(),
    ],
    ids=["denies it", "restarts", "is gone"],
)
def test_a_name_server_that_knows_nothing_does_not_make_a_static_topic_an_ordinary_one(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline, script: Script
) -> None:
    """A2, L9: no answer, a denial and an error are no route."""
    clock = FakeClock()
    server.script = RouteScript(route_with(3))
    with ScriptedServer(RouteScript(route_with(3))) as other:
        client = NameServerClient((server.address, other.address), pool, clock, PATIENCE_S)
        client.route("orders", soon)
        clock.advance(30.1)
        server.script, other.script = as_static_topic, script
        with pytest.raises(StaticTopic):
            client.route("orders", soon)


@pytest.mark.parametrize("code", [ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SYSTEM_ERROR])
@pytest.mark.parametrize("order", [["orders", "%RETRY%g"], ["%RETRY%g", "orders"]], ids=["before", "behind"])
def test_a_kept_route_leads_to_where_another_topic_shows_its_broker_now(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline, order: list[str], code: ResponseCode
) -> None:
    """A2: a broker that is back at another address may have one of two topics only."""
    clock, routes = FakeClock(), dict.fromkeys(order, route_of("broker-a", "broker-b"))

    def script(peer: Peer, request: RemotingCommand) -> None:
        if (route := routes.get(request.ext_fields["topic"])) is not None:
            peer.answer(request, body=encode_route(route, standard_json=True))
        else:
            peer.answer(request, code, remark="none")

    server.script = script
    client = NameServerClient((server.address,), pool, clock, PATIENCE_S)
    before = [client.route(topic, soon) for topic in order]
    moved = BrokerData(broker_name="broker-a", cluster="C", addresses={0: BrokerAddress("10.0.0.9:10911")})
    routes["orders"] = replace(before[0], brokers=(moved, before[0].brokers[1]))
    del routes["%RETRY%g"]
    for _ in range(2):
        clock.advance(31)
        for topic in order:
            client.route(topic, soon)

    kept = client.route("%RETRY%g", soon)
    assert kept.brokers == client.route("orders", soon).brokers == routes["orders"].brokers
    assert kept.queues == before[0].queues


def test_a_newer_route_is_not_led_back_to_where_an_older_one_shows_its_broker(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline
) -> None:
    """A2, G7: one lost answer invalidates the newer route, and then no name server has its topic."""
    clock, script = FakeClock(), RouteScript(route_with(3))
    server.script = script
    client = NameServerClient((server.address,), pool, clock, PATIENCE_S)
    client.route("payments", soon)
    clock.advance(5.0)
    before = route_with(3)
    moved = replace(before.brokers[0], addresses={0: BrokerAddress("10.0.0.9:10911")})
    script.route = replace(before, brokers=(moved,))
    assert client.route("orders", soon).master_of("broker-a") == "10.0.0.9:10911"

    client.invalidate("orders")
    script.route = None

    assert client.known_master("broker-a") == "10.0.0.9:10911"
    assert client.route("orders", soon).master_of("broker-a") == "10.0.0.9:10911"
    clock.advance(2.0)
    assert client.route("orders", soon).master_of("broker-a") == "10.0.0.9:10911"
    assert client.known_master("broker-a") == "10.0.0.9:10911"


def test_an_invalidated_route_is_asked_for_again(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline
) -> None:
    """A2: a route that led nowhere is not used twice."""
    script = RouteScript(route_with(3))
    server.script = script
    client = NameServerClient((server.address,), pool, SystemClock(), PATIENCE_S)
    client.route("orders", soon)
    client.invalidate("orders")
    client.invalidate("never asked")
    client.route("orders", soon)

    assert script.count == 2


def test_an_unknown_topic_is_a_class_of_its_own(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline
) -> None:
    """A2, broker answers: code 17; nothing is cached, so the topic is found as soon as it exists."""
    script = RouteScript(None)
    server.script = script
    client = NameServerClient((server.address,), pool, SystemClock(), PATIENCE_S)
    with pytest.raises(TopicNotFound) as caught:
        client.route("orders", soon)
    script.route = route_with(1)

    assert "topic=orders" in str(caught.value)
    assert server.address in str(caught.value)
    assert client.route("orders", soon) == route_with(1)


ERRORS = [
    (ResponseCode.SYSTEM_ERROR, "name server not ready"),
    (ResponseCode.SYSTEM_BUSY, "too many requests"),
    (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "request type 105 not supported"),
    (ResponseCode.NO_PERMISSION, "no right"),
    (9999, "a code of the future"),
]


def answering(code: int, remark: str) -> Script:
    """A server that gives everyone this answer."""
    return lambda peer, request: peer.answer(request, code, remark=remark)


@pytest.mark.parametrize(("code", "remark"), ERRORS)
def test_any_error_answer_asks_the_next_name_server_which_is_then_asked_first(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline, code: int, remark: str
) -> None:
    """A2: an error says nothing of the topic while another name server knows it."""
    clock = FakeClock()
    server.script = RouteScript(route_with(2))
    with ScriptedServer(answering(code, remark)) as failing:
        client = NameServerClient((failing.address, server.address), pool, clock, PATIENCE_S)

        assert client.route("orders", soon) == route_with(2)
        clock.advance(31)
        assert client.route("orders", soon) == route_with(2)
        assert failing.requests.qsize() == 1


@pytest.mark.parametrize(("code", "remark"), [*ERRORS, (ResponseCode.TOPIC_NOT_EXIST, "No topic route info")])
def test_a_known_route_outlives_any_error_answer(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline, code: int, remark: str
) -> None:
    """A2: for a name server that restarts, the query goes on; it is asked again a second later."""
    clock = FakeClock()
    server.script = RouteScript(route_with(2))
    client = NameServerClient((server.address,), pool, clock, PATIENCE_S)
    client.route("orders", soon)
    server.script = answering(code, remark)
    clock.advance(31)

    assert client.route("orders", soon) == route_with(2)
    server.script = RouteScript(route_with(4))
    clock.advance(1.1)
    assert client.route("orders", soon) == route_with(4)


@pytest.mark.parametrize(
    ("code", "remark", "expected"),
    [
        (ResponseCode.SYSTEM_ERROR, "name server not ready", NameServerNotReady),
        (9999, "a code of the future", NameServerNotReady),
        (ResponseCode.SYSTEM_ERROR, "AclException: check signature failed", NoPermission),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported", NotANameServer),
    ],
)
def test_an_error_at_first_contact_is_raised_and_says_whether_it_may_pass(
    server: ScriptedServer, soon: Deadline, code: int, remark: str, expected: type[BrokerError]
) -> None:
    """F3, A2, broker answers: code 1 is not "no such topic"; a refusal by access control stays one."""
    server.script = answering(code, remark)

    with ChannelPool(SystemClock()) as pool, pytest.raises(expected) as caught:
        NameServerClient((server.address,), pool, SystemClock(), PATIENCE_S).route("orders", soon)
    assert type(caught.value) is expected
    assert caught.value.retryable is (expected is NameServerNotReady)
    assert remark in str(caught.value)


UNREADABLE = b'{"queueDatas": 7, "topicList": 7, "brokerAddrTable": 7}'


def test_an_unreadable_answer_of_one_name_server_counts_as_none_of_it(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline
) -> None:
    """A2: each answer that can be read is used, whichever name server is asked first."""
    route = route_with(2)

    def readable(peer: Peer, request: RemotingCommand) -> None:
        bodies = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: encode_route(route, standard_json=True),
            RequestCode.GET_BROKER_CLUSTER_INFO: encode_cluster_info(route.brokers),
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: encode_topic_list(["orders"]),
        }
        peer.answer(request, body=bodies[RequestCode(request.code)])

    server.script = readable
    with ScriptedServer(lambda peer, request: peer.answer(request, body=UNREADABLE)) as broken:
        client = NameServerClient((broken.address, server.address), pool, FakeClock(), PATIENCE_S)

        assert client.route("orders", soon) == route
        assert client.brokers(soon) == route.brokers
        assert client.topics(soon) == ("orders",)


def test_a_name_server_whose_answer_cannot_be_read_is_named(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline
) -> None:
    """A2: at first contact; it may pass, and a known route would stay in use."""
    server.script = lambda peer, request: peer.answer(request, body=UNREADABLE)
    client = NameServerClient((server.address,), pool, FakeClock(), PATIENCE_S)

    with pytest.raises(RemoteProtocolError) as caught:
        client.route("orders", soon)
    assert str(caught.value) == (
        f"The answer of {server.address} cannot be read: TopicRouteData: field 'queueDatas' is not a list: 7."
    )


def test_a_topic_that_one_of_two_name_servers_denies_is_looked_up_at_the_other(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline
) -> None:
    """A2: one where no broker registers any more is no witness; the one that knows is asked first then."""
    clock, stale = FakeClock(), RouteScript(None)
    server.script = RouteScript(route_with(2))
    with ScriptedServer(stale) as stale_server:
        client = NameServerClient((stale_server.address, server.address), pool, clock, PATIENCE_S)

        assert client.route("orders", soon) == route_with(2)
        clock.advance(31)
        assert client.route("orders", soon) == route_with(2)
        assert client.denial("orders") is None
        assert stale.count == 1


def test_a_topic_is_not_found_when_all_name_servers_that_answer_deny_it(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline
) -> None:
    """A2: loud at first contact; one that is not ready has said nothing, and is waited for."""
    server.script = RouteScript(None)
    with ScriptedServer(RouteScript(None)) as other, ScriptedServer(lambda peer, _: peer.close()) as broken:
        addresses = broken.address, other.address, server.address
        client = NameServerClient(addresses, pool, SystemClock(), PATIENCE_S)

        with pytest.raises(TopicNotFound):
            client.route("orders", soon)
        other.script = answering(ResponseCode.SYSTEM_ERROR, "name server not ready")
        with pytest.raises(NameServerNotReady):
            client.route("orders", soon)


def test_a_broker_that_leaves_a_route_is_looked_up_at_the_other_name_servers(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline
) -> None:
    """A2: where only one of a topic's brokers is missing, one name server's word is no verdict either."""
    clock = FakeClock()
    both, only_a = route_of("broker-a", "broker-b"), route_of("broker-a")
    script, other_script = RouteScript(both), RouteScript(both)
    server.script = script
    with ScriptedServer(other_script) as other:
        client = NameServerClient((server.address, other.address), pool, clock, PATIENCE_S)
        for _ in range(2):
            client.route("orders", soon)
            clock.advance(31)
        assert other_script.count == 1, "only for the first route while nothing is missing"
        script.route = only_a
        clock.advance(31)
        assert client.route("orders", soon) == both
        other_script.route = only_a
        clock.advance(31)
        assert client.route("orders", soon) == only_a


def test_a_doubted_route_is_looked_up_at_all_name_servers(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline
) -> None:
    """A2: the first one lists all that is known, and yet lacks a broker."""
    both, only_a = route_of("broker-a", "broker-b"), route_of("broker-a")
    server.script = RouteScript(only_a)
    other_script = RouteScript(only_a)
    with ScriptedServer(other_script) as other:
        client = NameServerClient((server.address, other.address), pool, FakeClock(), PATIENCE_S)
        client.route("orders", soon)
        other_script.route = both

        client.invalidate("orders")
        assert client.route("orders", soon) == only_a
        client.invalidate("orders", is_doubted=True)
        assert client.route("orders", soon) == both


def test_a_first_route_has_the_brokers_of_all_name_servers(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline
) -> None:
    """A2: brokers register one after the other at one that has just restarted, and nobody misses the rest."""
    clock = FakeClock()
    whole = RouteScript(route_of("broker-a", "broker-b"))
    server.script = whole
    with ScriptedServer(RouteScript(route_of("broker-a"))) as filling:
        addresses = filling.address, server.address
        client = NameServerClient(addresses, pool, clock, PATIENCE_S)

        assert client.route("orders", soon) == whole.route
        filling.script = RouteScript(whole.route)
        clock.advance(31)
        assert client.route("orders", soon) == whole.route
        assert whole.count == 1, "later only if a broker is missing"


@pytest.mark.parametrize("shown_as", [1, 0], ids=["as replica", "as acting master"])
@pytest.mark.parametrize("is_known", [False, True], ids=["at first", "later"])
def test_a_broker_that_registered_only_its_replica_keeps_its_master(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline, is_known: bool, shown_as: int
) -> None:
    """A2, G7: without a master its queues are none to write to, and the keys of all others would move."""
    clock, whole = FakeClock(), route_of("broker-a", "broker-b")
    replica = replace(whole.brokers[1], addresses={shown_as: BrokerAddress("replica-b:10911")})
    read_only = replace(whole.queues[1], perm=4)
    filling = TopicRoute(brokers=(whole.brokers[0], replica), queues=(whole.queues[0], read_only))
    script = RouteScript(whole)
    server.script = script
    with ScriptedServer(RouteScript(whole if is_known else filling)) as restarted:
        addresses = restarted.address, server.address
        client = NameServerClient(addresses, pool, clock, PATIENCE_S)
        client.route("orders", soon)
        restarted.script = RouteScript(filling)
        clock.advance(31)
        client.route("orders", soon)
        clock.advance(31)

        assert client.route("orders", soon) == whole
        script.route = filling
        clock.advance(31)
        assert client.route("orders", soon) == filling, "no name server lists the master"
        script.route = whole
        clock.advance(31)
        assert client.route("orders", soon) == whole, "the master is back, and reaches one of them"


def test_a_topic_that_can_only_be_read_keeps_its_master(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline
) -> None:
    """A2: its queues do not show where the master is, and each refresh costs one request more."""
    clock, route = FakeClock(), route_of("broker-a")
    route = replace(route, queues=(replace(route.queues[0], perm=4),))
    replica = replace(route.brokers[0], addresses={1: BrokerAddress("replica-a:10911")})
    filling = RouteScript(replace(route, brokers=(replica,)))
    script = RouteScript(route)
    server.script = script
    with ScriptedServer(filling) as restarted:
        client = NameServerClient((restarted.address, server.address), pool, clock, PATIENCE_S)
        for _ in range(3):
            assert [client.route("orders", soon) for _ in range(2)] == [route, route]
            clock.advance(31)

        assert (filling.count, script.count) == (3, 3)


@pytest.mark.parametrize("is_first", [False, True])
def test_a_broker_has_the_master_that_any_name_server_lists(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline, is_first: bool
) -> None:
    """A2: also where no topic is asked for."""
    [whole] = route_of("broker-a").brokers
    replica = replace(whole, addresses={1: BrokerAddress("replica-a:10911")})

    def knowing(broker: BrokerData) -> Script:
        return lambda peer, request: peer.answer(request, body=encode_cluster_info([broker]))

    server.script = knowing(whole)
    with ScriptedServer(knowing(replica)) as filling:
        addresses = (server.address, filling.address) if is_first else (filling.address, server.address)
        client = NameServerClient(addresses, pool, SystemClock())

        assert client.brokers(soon) == (whole,)


def test_a_name_server_that_hangs_leaves_time_for_other_topics(server: ScriptedServer) -> None:
    """A2: a second opinion gets half of the time at most."""
    clock = FakeClock()
    server.script = RouteScript(route_with(2))

    class Pool(ChannelPool):
        def get(self, address: str, deadline: Deadline) -> Channel:
            if address != "hangs:1":
                return super().get(address, deadline)
            clock.advance(deadline.remaining_s())
            raise ConnectFailed(address, "no answer")

    with Pool(clock) as pool:
        addresses = server.address, "hangs:1"
        client = NameServerClient(addresses, pool, clock, PATIENCE_S)
        both = Deadline.after(clock, PATIENCE_S)

        assert client.route("orders", both) == client.route("payments", both) == route_with(2)
        assert both.remaining_s() == PATIENCE_S / 2


def test_topics_and_brokers_are_those_of_all_name_servers_that_answer(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline
) -> None:
    """A2: a pattern sees topics that a name server does not know where no broker registers any more."""

    def knowing(topics: Sequence[str], *brokers: BrokerData) -> Script:
        def script(peer: Peer, request: RemotingCommand) -> None:
            is_list = request.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
            peer.answer(request, body=encode_topic_list(topics) if is_list else encode_cluster_info(brokers))

        return script

    a, b = route_of("broker-a", "broker-b").brokers
    server.script = knowing(["orders", "payments"], a, b)
    with (
        ScriptedServer(knowing(["orders"], a)) as stale,
        ScriptedServer(lambda peer, _: peer.close()) as broken,
    ):
        client = NameServerClient((stale.address, broken.address, server.address), pool, SystemClock())

        assert client.topics(soon) == ("orders", "payments")
        assert client.brokers(soon) == (a, b)
    server.script = answering(ResponseCode.SYSTEM_ERROR, "name server not ready")
    for ask in (client.topics, client.brokers):
        with pytest.raises(NameServerNotReady):
            ask(soon)


def test_a_silent_name_server_costs_a_second_opinion_only_now_and_then(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline
) -> None:
    """A2: a machine that is switched off must not delay each look for a topic that does not exist."""
    server.script = RouteScript(None)
    clock = FakeClock()
    with ScriptedServer(lambda peer, _: peer.close()) as broken:
        client = NameServerClient((server.address, broken.address), pool, clock, PATIENCE_S)
        for _ in range(3):
            with pytest.raises(TopicNotFound):
                client.route("orders", soon)
        assert broken.requests.qsize() == 1
        clock.advance(31)
        with pytest.raises(TopicNotFound):
            client.route("orders", soon)
        assert broken.requests.qsize() == 2


def test_the_next_name_server_is_asked_when_one_is_gone_and_then_kept(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline
) -> None:
    """A2: sticky choice, next on failure."""
    script = RouteScript(route_with(2))
    server.script = script
    with ScriptedServer(lambda peer, _request: peer.close()) as broken:
        client = NameServerClient((broken.address, server.address), pool, SystemClock(), PATIENCE_S)
        client.route("a", soon)
        client.route("b", soon)

        assert broken.requests.qsize() == 1
        assert script.count == 2


def test_a_silent_name_server_leaves_time_for_the_next_one(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A2: one deadline is shared fairly."""
    monkeypatch.setattr(transport, "RECEIVE_TICK_S", 0.02)
    server.script = RouteScript(route_with(2))
    clock, all_s = FakeClock(), 1000.0
    with (
        ScriptedServer(lambda _peer, _request: clock.advance(all_s / 2)) as silent,
        ChannelPool(clock) as pool,
    ):
        client = NameServerClient((silent.address, server.address), pool, clock, request_timeout_s=all_s)

        assert client.route("a", Deadline.after(clock, all_s)) == route_with(2)


def test_no_name_server_at_all_is_the_last_failure(pool: ChannelPool, soon: Deadline) -> None:
    """F3: never an empty route."""
    with ScriptedServer(lambda _peer, _request: None) as silent:
        client = NameServerClient((silent.address,), pool, SystemClock())
        pool.get(silent.address, soon)

        with pytest.raises(RequestTimeout, match="GET_ROUTEINFO_BY_TOPIC topic=orders"):
            client.route("orders", Deadline.after(SystemClock(), 0.05))


def test_a_known_route_outlives_the_name_servers(
    pool: ChannelPool, soon: Deadline, caplog: pytest.LogCaptureFixture
) -> None:
    """A2: brokers go on without name servers, and so does whoever knows them."""
    clock = FakeClock()
    with ScriptedServer(RouteScript(route_with(2))) as server:
        client = NameServerClient((server.address,), pool, clock, PATIENCE_S)
        client.route("orders", soon)
    clock.advance(31)

    assert client.route("orders", soon) == route_with(2)
    assert "route not refreshed" in caplog.text
    client.invalidate("orders")
    assert client.route("orders", soon) == route_with(2)


def test_threads_may_ask_at_the_same_time(server: ScriptedServer, pool: ChannelPool, soon: Deadline) -> None:
    """A2: one client serves planner and heartbeat threads."""
    server.script = RouteScript(route_with(2))
    client = NameServerClient((server.address,), pool, SystemClock(), PATIENCE_S)
    routes: list[TopicRoute] = []
    threads = [threading.Thread(target=lambda: routes.append(client.route("orders", soon))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert routes == [route_with(2)] * 8


def test_a_client_without_addresses_is_refused(pool: ChannelPool) -> None:
    """A2: at least one address."""
    with pytest.raises(ValueError, match="at least one"):
        NameServerClient((), pool, SystemClock())
