"""Topics named by a pattern: option topicPattern."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Never

import pytest

from broker_sim.cluster import SimCluster
from pyspark_rocketmq.client import nameserver
from pyspark_rocketmq.client.nameserver import NameServerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.pull_connection import close_idle_connections
from pyspark_rocketmq.clock import Deadline
from pyspark_rocketmq.errors import (
    BrokerError,
    BrokerOffsetUnavailable,
    ConnectFailed,
    NameServerNotReady,
    StaticTopic,
    TopicAway,
)
from pyspark_rocketmq.model import MessageQueue, TopicRoute
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source import first_contact
from pyspark_rocketmq.source.cluster_view import ClusterView
from pyspark_rocketmq.source.topic_changes import MatchingTopics
from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.requests.topics import decode_route
from tests.helpers.batch_read import planned_batch
from tests.helpers.fake_clock import FakeClock
from tests.helpers.stream_read import offsets_by_queue
from tests.helpers.wait import wait_until
from tests.source.conftest import Topics


def topics_read(topics: Topics, pattern: str) -> list[str]:
    return sorted(set(topics.read("", topicPattern=pattern).column("topic").to_pylist()))


def test_a_pattern_matches_whole_names(topics: Topics, caplog: pytest.LogCaptureFixture) -> None:
    """topicPattern; one that matches nothing is reported."""
    wanted = [topics.make(1, topic=name) for name in ("pat-orders", "pat-payments")]
    topics.make(1, topic="pat-orders-old")
    topics.make(1, topic="not-pat-orders")

    assert topics_read(topics, "pat-(orders|payments)") == wanted
    assert "no topic matches" not in caplog.text
    assert topics_read(topics, "nothing.like.it") == []
    assert "no topic matches topicPattern='nothing.like.it', so nothing is read" in caplog.text


def test_rocketmq_s_own_topics_match_no_pattern() -> None:
    """Nor do those of groups, and the one that each broker has of its name and its cluster's."""
    # A cluster of its own: of the run's every topic that is there would be read.
    with SimCluster() as sim:
        topics = Topics(sim)
        for name in (
            "%RETRY%some-group",
            "%DLQ%some-group",
            "SCHEDULE_TOPIC_XXXX",
            "broker-a",
            "DefaultCluster",
        ):
            topics.make(1, topic=name)
        wanted = topics.make(1)

        found = topics_read(topics, ".*")
        close_idle_connections()

    assert found == [wanted]


@pytest.mark.parametrize(("option", "queues"), [("topic", 2), ("topicPattern", 3)])
def test_a_batch_waits_for_brokers_that_register_at_a_name_server_that_was_restarted(
    topics: Topics, clock: FakeClock, option: str, queues: int
) -> None:
    """A2: they do so within 30 s, one after the other, and a batch would lack those that come later."""
    topic = topics.make(1)
    given = {"nameServers": topics.sim.name_servers}
    given[option] = topic if option == "topic" else f"{topic}(-late)?"
    topics.sim.restart_name_server()
    try:
        with pytest.raises(BrokerError, match=r"register (again )?within 30 s of"):
            planned_batch(**given, retryTimeoutMs="0")
        with ChannelPool(clock) as pool:
            view = ClusterView(ReadOptions.parse(given), pool, clock)
            with pytest.raises(BrokerError, match=r"register (again )?within 30 s of"):
                view.whole_snapshot()
            clock.advance(20)
            topics.sim.register_brokers()
            with pytest.raises(NameServerNotReady, match="no broker less than 30 s ago, so it may have"):
                view.whole_snapshot()
            topics.make(1, 1, topic=topic)
            topics.make(1, topic=f"{topic}-late")
            clock.advance(11)
            assert len(view.whole_snapshot().bounds) == queues
    finally:
        topics.sim.register_brokers()


@pytest.mark.parametrize("starts", ["latest", "earliest"])
def test_a_look_shows_that_brokers_may_still_register_at_a_restarted_name_server(
    topics: Topics, clock: FakeClock, starts: str
) -> None:
    """A2, F2: until then no group begins; where it begins with the first messages, it need not wait."""
    topic = topics.make(1)
    given = {"nameServers": topics.sim.name_servers, "topic": topic, "startingOffsets": starts}
    with ChannelPool(clock) as pool:
        view = ClusterView(ReadOptions.parse(given), pool, clock)
        assert view.snapshot().still_registering is None

    topics.sim.restart_name_server()
    try:
        with ChannelPool(clock) as pool:
            view = ClusterView(ReadOptions.parse(given), pool, clock)
            with pytest.raises(TopicAway):
                view.snapshot()
            topics.sim.register_brokers()
            looks = []
            for _ in range(3):
                looks.append(view.snapshot().still_registering)
                clock.advance(14)
            topics.make(1, 1, topic=topic)
            clock.advance(3)
            last = view.snapshot()
    finally:
        topics.sim.register_brokers()

    assert len({*map(id, looks)}) == 1, "an error that stays is logged once"
    assert isinstance(looks[0], NameServerNotReady) is (starts == "latest")
    assert last.still_registering is None
    assert len(last.bounds) == 2


def test_a_restart_that_was_noted_before_brokers_registered_shows_afterwards(
    topics: Topics, clock: FakeClock
) -> None:
    """A2, F2: a broadcasting instance first waits for an earlier query of its name."""
    options = ReadOptions.parse({"nameServers": topics.sim.name_servers, "topic": topics.make(1)})
    with ChannelPool(clock) as pool:
        view = ClusterView(options, pool, clock)
        topics.sim.restart_name_server()
        view.note_restart()
        topics.sim.register_brokers()
        assert view.snapshot().still_registering is not None
        topics.sim.faults.add("drop-before", on=RequestCode.GET_BROKER_CLUSTER_INFO, where="namesrv")
        clock.advance(30)
        view.note_restart()
        assert view.snapshot().still_registering is None


def test_a_start_does_not_read_the_offset_store_without_need(topics: Topics) -> None:
    """A2: it may not answer now, and then its queues would only wait."""

    def nobody_answers(topic: str) -> Never:
        raise BrokerOffsetUnavailable(f"the store is read for {topic}")

    options = ReadOptions.parse({"nameServers": topics.sim.name_servers, "topic": topics.make(1)})

    first_contact.check_topics(options, nobody_answers)


@pytest.mark.parametrize(
    ("starts", "had_it"),
    [("latest", ""), ("latest", "broker-a"), ("earliest", "")],
    ids=["new", "begun", "from the first message"],
)
def test_a_new_group_waits_for_brokers_that_register_at_a_restarted_name_server(
    topics: Topics, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, starts: str, had_it: str
) -> None:
    """A2, F2: the source runner, which starts afterwards, has not seen that there was no broker."""
    topic = topics.make(1)
    options = ReadOptions.parse(
        {"nameServers": topics.sim.name_servers, "topic": topic, "startingOffsets": starts}
    )
    began_s = clock.monotonic_s()

    def sleep(seconds: float) -> None:
        clock.advance(seconds)
        topics.sim.register_brokers()

    monkeypatch.setattr(first_contact, "SystemClock", lambda: clock)
    monkeypatch.setattr(first_contact, "time", SimpleNamespace(sleep=sleep))
    topics.sim.restart_name_server()
    try:
        first_contact.check_topics(options, lambda _: {had_it} - {""})
    finally:
        topics.sim.register_brokers()

    is_new = starts == "latest" and not had_it
    assert (clock.monotonic_s() - began_s >= 30.0) is is_new


def test_a_topic_that_appears_is_read_from_its_start(topics: Topics) -> None:
    """A2, with topicPattern: although the stream began at the end of what was there."""
    first = topics.make(2, topic="grow-1")
    stream = topics.stream(None, topicPattern="grow-.*", startingOffsets="latest", routeRefreshMs="1")
    assert stream.next_offsets() is None

    second = topics.make(3, topic="grow-2")
    topics.put(first, 0, 1)

    assert stream.next_offsets() == {
        MessageQueue(first, "broker-a", 0): [2],
        MessageQueue(second, "broker-a", 0): [0, 1, 2],
    }


def test_new_topics_are_found_within_the_refresh_interval(topics: Topics) -> None:
    """routeRefreshMs: queues of a known topic too."""
    topic = topics.make(1)
    slow, quick = (topics.stream(topic, routeRefreshMs=text) for text in ("3600000", "1"))
    assert slow.plan()
    assert quick.plan()

    topics.sim.create_topic(topic, queues=2, brokers=["broker-a"])
    topics.put(topic, 1, 1)

    assert wait_until(quick.plan, reason="The new queue in the route")
    assert offsets_by_queue(quick.run()) == {MessageQueue(topic, "broker-a", 1): [0]}
    assert slow.next_offsets() is None


class StaticTopics(set[str]):
    """Names of the topics that are static at the name server."""

    def decode_route(self, body: bytes, topic: str = "") -> TopicRoute:
        """In place of the function of this name."""
        if topic in self:
            raise StaticTopic(topic, ["broker-a"])
        return decode_route(body, topic)


@pytest.fixture
def static(monkeypatch: pytest.MonkeyPatch) -> StaticTopics:
    """Names of topics that are static; none at first."""
    topics = StaticTopics()
    monkeypatch.setattr(nameserver, "decode_route", topics.decode_route)
    return topics


def test_a_static_topic_is_read_when_it_is_made_again_as_an_ordinary_one(
    topics: Topics, clock: FakeClock, static: StaticTopics, caplog: pytest.LogCaptureFixture
) -> None:
    """topicPattern, L9: it is looked up again with each refresh, and logged once while it is static."""
    read, *others = (topics.make(1, topic=f"static-{letter}") for letter in "abc")
    static |= {*others}
    given = {"nameServers": topics.sim.name_servers, "topicPattern": "static-.", "routeRefreshMs": "10000"}
    with ChannelPool(clock) as pool:
        view = ClusterView(ReadOptions.parse(given), pool, clock)

        def seen() -> list[str]:
            return sorted(view.routes().by_topic)

        for _ in range(3):
            assert seen() == [read]
            clock.advance(10.1)
        assert caplog.text.count("topic of the pattern left out") == 2
        assert seen() == [read]
        static -= {others[0]}
        assert seen() == [read]
        clock.advance(10.1)
        assert seen() == [read, others[0]]

        static |= {others[0]}
        clock.advance(10.1)
        with pytest.raises(StaticTopic, match=others[0]):
            seen()
    assert caplog.text.count("topic of the pattern left out") == 2


def test_one_look_asks_for_each_static_topic_once(
    topics: Topics, clock: FakeClock, static: StaticTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L9: although name servers need longer for an answer than routeRefreshMs."""

    def decode_later(body: bytes, topic: str = "") -> TopicRoute:
        clock.advance(0.01)
        return static.decode_route(body, topic)

    monkeypatch.setattr(nameserver, "decode_route", decode_later)
    static |= {topics.make(1, topic=f"many-{number}") for number in range(3)}
    given = {"nameServers": topics.sim.name_servers, "topicPattern": "many-.", "routeRefreshMs": "1"}
    with ChannelPool(clock) as pool:
        view = ClusterView(ReadOptions.parse(given), pool, clock)
        for _ in range(2):
            assert view.routes().by_topic == {}
            clock.advance(1)


class NameServer(NameServerClient):
    """One with a single topic, that may be down."""

    def __init__(self) -> None:
        self.is_down = False

    def topics(self, deadline: Deadline) -> tuple[str, ...]:
        if self.is_down:
            raise ConnectFailed("n:1", "down")
        return ("orders",)

    def brokers(self, deadline: Deadline) -> tuple[()]:
        return ()


def test_known_topics_stay_while_no_name_server_answers(clock: FakeClock) -> None:
    name_server = NameServer()
    matching = MatchingTopics(name_server, re.compile("o.*"), clock, max_age_s=30)
    deadline = Deadline.after(clock, 1)
    name_server.is_down = True
    with pytest.raises(ConnectFailed):
        matching.look(deadline)
    name_server.is_down = False
    assert matching.look(deadline) == {"orders"}

    name_server.is_down = True
    clock.advance(31)

    assert matching.look(deadline) == {"orders"}
