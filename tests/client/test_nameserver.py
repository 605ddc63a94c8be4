from __future__ import annotations

import threading

import pytest

from broker_sim.bodies import encode_route
from pyspark_rocketmq.client import transport
from pyspark_rocketmq.client.nameserver import NameServerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.errors import BrokerError, RequestTimeout, TopicNotFound
from pyspark_rocketmq.model import BrokerAddress, BrokerData, QueueData, TopicRoute
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from tests.helpers.fake_clock import FakeClock
from tests.helpers.scripted_server import Peer, ScriptedServer
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


def test_a_route_for_sending_is_kept_while_no_name_server_has_the_topic(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline, caplog: pytest.LogCaptureFixture
) -> None:
    """G7: the name server is asked again each second, and believed as soon as it knows the topic."""
    clock, script = FakeClock(), RouteScript(None)
    server.script = script
    client = NameServerClient((server.address,), pool, clock, PATIENCE_S)
    with pytest.raises(TopicNotFound):
        client.lasting_route("orders", soon)
    script.route = route_with(3)
    client.lasting_route("orders", soon)
    client.invalidate("orders")
    script.route = None
    kept = [client.lasting_route("orders", soon) for _ in range(3)]
    asked = script.count
    clock.advance(1.1)
    kept.append(client.lasting_route("orders", soon))
    known = client.last_known("orders")
    script.route = route_with(8)
    clock.advance(1.1)

    assert kept == [route_with(3)] * 4
    assert (asked, script.count) == (3, 4)
    assert known is not None
    assert known.is_denied
    assert (
        caplog.text.count("going on with what was known topic=orders brokers=broker-a (10.0.0.1:10911)") == 1
    )
    assert client.lasting_route("orders", soon) == route_with(8)


def test_a_kept_route_is_not_used_for_reading(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline
) -> None:
    """A2, G7: only those who send go by it; consumers have rules of their own for a topic that is gone."""
    script = RouteScript(route_with(3))
    server.script = script
    client = NameServerClient((server.address,), pool, FakeClock(), PATIENCE_S)
    client.route("orders", soon)
    client.invalidate("orders")
    script.route = None

    with pytest.raises(TopicNotFound):
        client.route("orders", soon)


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


def test_a_name_server_that_is_not_ready_is_an_error(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline
) -> None:
    """F3, broker answers: code 1 is not "no such topic"."""
    server.script = lambda peer, request: peer.answer(request, 1, remark="name server not ready")

    with pytest.raises(BrokerError, match="not ready") as caught:
        NameServerClient((server.address,), pool, SystemClock(), PATIENCE_S).route("orders", soon)
    assert not isinstance(caught.value, TopicNotFound)


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
