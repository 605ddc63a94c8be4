"""Routes of several topics, of which the retry topic need not exist."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pyspark_rocketmq.client.cluster import PatientLookup, TopicRoutes
from pyspark_rocketmq.client.nameserver import KnownRoute
from pyspark_rocketmq.clock import Deadline
from pyspark_rocketmq.errors import (
    ConnectFailed,
    NameServerNotReady,
    NoPermission,
    NoWritableQueue,
    RocketMQError,
    StaticTopic,
    SystemBusy,
    TlsFailed,
    TopicNotFound,
)
from pyspark_rocketmq.model import BrokerAddress, BrokerData, MessageQueue, QueueData, TopicRoute
from tests.helpers.fake_clock import FakeClock

RETRY = "%RETRY%g"


def route(*broker_names: str, port: int = 1) -> TopicRoute:
    return TopicRoute(
        brokers=tuple(
            BrokerData(broker_name=name, cluster="c", addresses={0: BrokerAddress(f"{name}:{port}")})
            for name in broker_names
        ),
        queues=tuple(
            QueueData(broker_name=name, read_queue_nums=1, write_queue_nums=1, perm=6)
            for name in broker_names
        ),
    )


class NameServer:
    """Knows the routes a test writes down; does not keep them, as the real client does."""

    def __init__(self, **routes: TopicRoute) -> None:
        self.routes: dict[str, TopicRoute] = dict(routes)
        self.denials: dict[str, TopicNotFound] = {}
        self.static: dict[str, StaticTopic] = {}
        self.down: RocketMQError | None = None
        self.asked: list[str] = []

    def route(self, topic: str, deadline: Deadline) -> TopicRoute:
        self.asked.append(topic)
        if self.down is not None:
            raise self.down
        if topic in self.static:
            raise self.static[topic]
        if topic not in self.routes:
            raise TopicNotFound(17, f"No topic route info of {topic}")
        return self.routes[topic]

    def denial(self, topic: str) -> TopicNotFound | None:
        return self.denials.get(topic)

    def last_known(self, topic: str) -> KnownRoute | None:
        return KnownRoute(self.routes[topic], 0.0, 0.0) if topic in self.routes else None

    def invalidate(self, topic: str, *, is_doubted: bool = False) -> None:
        pass


class Look:
    """What is under test, on a clock to move by hand."""

    def __init__(self, name_server: NameServer, *topics: str, retry: str | None = RETRY) -> None:
        self.clock = FakeClock()
        client: Any = name_server
        self.routes = TopicRoutes(client, topics, retry, self.clock)

    def __call__(self) -> Any:
        return self.routes.look(Deadline.after(self.clock, 1.0))


def test_the_queues_and_masters_of_all_topics_are_one() -> None:
    """A2, A3: a member talks to the brokers of every topic it subscribes to."""
    look = Look(
        NameServer(orders=route("broker-b"), payments=route("broker-a", "broker-b")), "orders", "payments"
    )

    routes = look()

    assert set(routes.queues) == {
        MessageQueue("orders", "broker-b", 0),
        MessageQueue("payments", "broker-a", 0),
        MessageQueue("payments", "broker-b", 0),
    }
    assert routes.masters == {"broker-a": "broker-a:1", "broker-b": "broker-b:1"}
    assert routes.absent == {}
    assert look() is routes, "nothing is computed again as long as nothing has changed"


def test_a_topic_that_is_gone_is_named_and_the_others_stay() -> None:
    name_server = NameServer(orders=route("broker-a"), payments=route("broker-a"))
    look = Look(name_server, "orders", "payments")
    look()

    del name_server.routes["payments"]
    routes = look()

    assert set(routes.by_topic) == {"orders"}
    assert set(routes.absent) == {"payments"}
    name_server.routes["payments"] = route("broker-a")
    assert look().absent == {}


def test_a_denied_topic_is_named_and_its_last_route_holds() -> None:
    """A2: what a denial means, the brokers of the route can say."""
    name_server = NameServer(orders=route("broker-a"), payments=route("broker-b"))
    look = Look(name_server, "orders", "payments")
    before = look()

    name_server.denials["payments"] = TopicNotFound(17, "No topic route info of payments")
    routes = look()

    assert routes.by_topic == before.by_topic
    assert routes.denied == name_server.denials
    assert routes.absent == {}
    assert look() is routes, "nothing is computed again as long as nothing has changed"
    name_server.denials.clear()
    assert look().denied == {}


def test_a_topic_that_became_static_keeps_its_route_and_the_others_theirs() -> None:
    """A2: what was consumed is committed; only who reads it ends."""
    name_server = NameServer(aa=route("broker-a"), bb=route("broker-b"))
    look = Look(name_server, "aa", "bb", retry=None)
    before = look()
    name_server.static["bb"] = StaticTopic("bb", ["broker-b"])

    after = look()

    assert after.by_topic == before.by_topic
    assert list(after.static) == ["bb"]
    assert look() is after
    del name_server.routes["bb"]
    with pytest.raises(StaticTopic):
        look()


def test_a_retry_topic_need_not_be_there_and_is_found_soon_after_it_was_made() -> None:
    """E3: golden fact 21; a Java consumer finds it 20 s late."""
    name_server = NameServer(orders=route("broker-a"))
    look = Look(name_server, "orders")
    assert set(look().by_topic) == {"orders"}
    assert look().absent == {}
    assert name_server.asked.count(RETRY) == 1, "not with every look"

    name_server.routes[RETRY] = route("broker-a")
    look.clock.advance(1.0)

    assert look().queues == (MessageQueue("orders", "broker-a", 0), MessageQueue(RETRY, "broker-a", 0))


def test_a_retry_topic_is_looked_for_at_once_when_brokers_have_had_a_heartbeat() -> None:
    """E3."""
    name_server = NameServer(orders=route("broker-a", "broker-b"))
    look = Look(name_server, "orders")
    look()

    name_server.routes[RETRY] = route("broker-a", "broker-b")
    look.routes.expect_retries()

    assert {queue.broker_name for queue in look().queues if queue.topic == RETRY} == {"broker-a", "broker-b"}
    asked = name_server.asked.count(RETRY)
    look.routes.expect_retries()
    look()
    assert name_server.asked.count(RETRY) == asked + 1, "like any other route, which its client keeps"


def test_a_retry_topic_that_never_comes_is_asked_for_less_and_less_often() -> None:
    """A group that brokers may not make has none."""
    name_server = NameServer(orders=route("broker-a"))
    look = Look(name_server, "orders")

    for _ in range(300):
        look()
        look.clock.advance(1.0)

    assert 10 <= name_server.asked.count(RETRY) <= 16


def test_a_retry_topic_is_looked_for_until_all_brokers_have_it() -> None:
    """E3: each broker makes its own at the group's first heartbeat there."""
    name_server = NameServer(orders=route("broker-a", "broker-b"))
    name_server.routes[RETRY] = route("broker-a")
    look = Look(name_server, "orders")
    assert MessageQueue(RETRY, "broker-a", 0) in look().queues

    name_server.routes[RETRY] = route("broker-a", "broker-b")
    look.clock.advance(1.0)

    assert MessageQueue(RETRY, "broker-b", 0) in look().queues


def test_a_broker_that_moved_is_not_looked_for_where_the_retry_topic_had_it() -> None:
    """A2, E3: a retry topic that some broker lacks is looked for less and less often."""
    name_server = NameServer(orders=route("broker-a", "broker-b"))
    name_server.routes[RETRY] = route("broker-a")
    look = Look(name_server, "orders")
    for _ in range(100):
        look()
        look.clock.advance(1.0)

    name_server.routes = {"orders": route("broker-a", "broker-b", port=2), RETRY: route("broker-a", port=2)}

    for _ in range(4):
        assert look().masters["broker-a"] == "broker-a:2"
        look.clock.advance(1.0)


def test_absent_name_servers_are_an_error_unless_asked_only_for_the_retry_topic() -> None:
    name_server = NameServer(orders=route("broker-a"))
    name_server.routes[RETRY] = route("broker-a")
    look = Look(name_server, "orders")
    before = look()

    def refuse(topic: str, deadline: Deadline) -> TopicRoute:
        if topic == RETRY:
            raise ConnectFailed("ns:1", "refused")
        return name_server.routes[topic]

    name_server.route = refuse  # type: ignore[method-assign]
    assert look() is before

    name_server.route = NameServer.route.__get__(name_server)  # type: ignore[method-assign]
    name_server.down = ConnectFailed("ns:1", "refused")
    with pytest.raises(ConnectFailed):
        look()


def test_a_task_that_sends_waits_for_a_name_server_that_is_not_ready(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A2, G7: an error inside a name server says nothing of the topic, and passes; else it is raised."""
    clock, queues = FakeClock(), (MessageQueue("orders", "a", 0),)

    class Finder:
        ready_at_s = 60.0

        def queues(self, topic: str, *, may_create: bool = True) -> tuple[MessageQueue, ...]:
            assert not may_create
            if clock.monotonic_s() < self.ready_at_s:
                raise NameServerNotReady(1, f"name server not ready for {topic}")
            return queues

    finder = Finder()
    lookup = PatientLookup(cast("Any", finder), clock, 120.0, clock.advance)

    assert lookup.queues("orders") == queues
    assert caplog.text.count("waiting up to 120 s for a name server topic=orders") == 1
    finder.ready_at_s = float("inf")
    with pytest.raises(NameServerNotReady, match="not ready"):
        lookup.queues("orders")


def test_waiting_for_a_topic_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """G7: and goes on as if brokers had made it when the time is over."""
    clock, made = FakeClock(), (MessageQueue("orders", "a", 0),)

    class Finder:
        def queues(self, topic: str, *, may_create: bool = True) -> tuple[MessageQueue, ...]:
            if may_create:
                return made
            raise TopicNotFound(17, f"no route of {topic}")

    lookup = PatientLookup(cast("Any", Finder()), clock, 120.0, clock.advance)

    assert lookup.queues("orders") == made
    assert clock.monotonic_s() > 100
    assert caplog.text.count("topic is not there, looking for it up to 120 s") == 1


class LateFinder:
    """Fails for a while, then finds the topic."""

    def __init__(self, clock: FakeClock, error: RocketMQError, for_s: float) -> None:
        self.clock = clock
        self.error = error
        self.until_s = clock.monotonic_s() + for_s
        self.found = (MessageQueue("orders", "a", 0),)

    def queues(self, topic: str, *, may_create: bool = True) -> tuple[MessageQueue, ...]:
        if self.clock.monotonic_s() < self.until_s:
            raise self.error
        return self.found


SILENT = ConnectFailed("ns:1", "refused")


@pytest.mark.parametrize("has_keys", [False, True])
@pytest.mark.parametrize(
    ("error", "has_worked", "ends_s"),
    [
        (SILENT, False, 2.0),
        (SILENT, True, 120.0),
        (TlsFailed("ns:1", "no certificate"), True, 0.0),
        (NameServerNotReady(1, "not ready"), False, 120.0),
        (SystemBusy(2, "busy"), False, 120.0),
        (NoWritableQueue("orders"), False, 120.0),
        (NoPermission(16, "no"), True, 0.0),
    ],
    ids=repr,
)
def test_a_task_that_sends_waits_for_what_may_pass_and_a_wrong_address_soon_fails(
    error: RocketMQError, has_worked: bool, ends_s: float, has_keys: bool
) -> None:
    """A8, G7: also for a topic of which only slaves are up."""
    clock = FakeClock()

    def look(lasts_s: float) -> tuple[MessageQueue, ...]:
        finder = LateFinder(clock, error, lasts_s)
        lookup = PatientLookup(
            cast("Any", finder), clock, 120.0, clock.advance, has_keys=has_keys, has_worked=has_worked
        )
        return lookup.queues("orders")

    with pytest.raises(type(error)):
        look(float("inf"))
    assert ends_s - 10 <= clock.monotonic_s() <= ends_s
    if ends_s:
        assert look(ends_s / 2) == (MessageQueue("orders", "a", 0),)


def test_a_look_up_that_has_worked_once_waits_for_name_servers_that_do_not_answer() -> None:
    """A8: topics are in a column, and the address is not wrong."""
    clock = FakeClock()
    finder = LateFinder(clock, SILENT, 0.0)
    lookup = PatientLookup(cast("Any", finder), clock, 120.0, clock.advance)

    lookup.queues("orders")
    finder.until_s = clock.monotonic_s() + 60
    assert lookup.queues("payments") == finder.found


def test_a_topic_that_is_missing_after_its_name_servers_were_silent_has_all_the_time_to_come_back() -> None:
    """G7: brokers register with a restarted name server one after the other, up to 30 s later."""
    clock = FakeClock()

    class Restarting(LateFinder):
        def queues(self, topic: str, *, may_create: bool = True) -> tuple[MessageQueue, ...]:
            if clock.monotonic_s() > 110 and self.error is SILENT:
                self.error, self.until_s = TopicNotFound(17, f"no route of {topic}"), 150.0
            if may_create:
                return (MessageQueue("orders", "made", 0),)
            return super().queues(topic, may_create=may_create)

    finder = Restarting(clock, SILENT, float("inf"))
    lookup = PatientLookup(cast("Any", finder), clock, 120.0, clock.advance, has_worked=True)

    assert lookup.queues("orders") == finder.found
