"""How much is read at once, from which broker and how soon."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from broker_sim.cluster import SimCluster
from pyspark_rocketmq.client.pull_connection import close_idle_connections
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.options.parsers import duration_ms
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.fetcher import Fetcher
from tests.source.conftest import Topics
from tests.source.test_planner import A0, A1, Planning

REQUIRED = {"nameServers": "n:1", "topic": "orders"}


def test_a_micro_batch_waits_until_there_is_enough_or_too_much_time_has_passed() -> None:
    """minOffsetsPerTrigger, maxTriggerDelay: the first does not wait, as in Spark's Kafka source."""
    planning = Planning({A0: (0, 3)}, minOffsetsPerTrigger="10", maxTriggerDelay="30s")
    assert planning.next() == [(A0, 0, 3)]

    planning.view.bounds[A0] = (0, 12)
    assert planning.next() is None
    planning.view.bounds[A1] = (0, 1)
    assert planning.next() == [(A0, 3, 12), (A1, 0, 1)]

    planning.view.bounds[A0] = (0, 13)
    planning.clock.advance(29.9)
    assert planning.next() is None
    planning.clock.advance(0.2)
    assert planning.next() == [(A0, 12, 13)]


def test_the_backlog_is_counted_before_a_limit_is_applied() -> None:
    """minOffsetsPerTrigger together with maxOffsetsPerTrigger."""
    planning = Planning({A0: (0, 1)}, minOffsetsPerTrigger="8", maxOffsetsPerTrigger="8")
    assert planning.next() == [(A0, 0, 1)]

    planning.view.bounds[A0] = (0, 20)

    assert planning.next() == [(A0, 1, 9)]
    assert planning.next() == [(A0, 9, 17)]
    assert planning.next() is None


def test_available_now_waits_for_nothing_that_comes_later() -> None:
    planning = Planning({A0: (0, 1)}, minOffsetsPerTrigger="10")
    assert planning.next() == [(A0, 0, 1)]
    planning.view.bounds[A0] = (0, 4)
    planning.planner.prepare_available_now()

    assert planning.next() == [(A0, 1, 4)]
    assert planning.next() is None


def test_a_micro_batch_is_bounded_in_bytes(topics: Topics) -> None:
    """maxBytesPerTrigger: by the size of the messages that are next, at least one of each queue."""
    topic = topics.make(0, 1)
    queue = MessageQueue(topic, "broker-a", 0)
    topics.sim.put(queue, [Message(topic=topic, body=bytes(10_000))] * 100)
    stream = topics.stream(topic, maxBytesPerTrigger="100000")
    assert stream.plan()
    (broker,) = stream.planned()[topic].values()
    assert broker["1"] == {"from": 0, "to": 1}
    assert 8 <= broker["0"]["to"] <= 10

    small = topics.stream(topic, maxBytesPerTrigger="1")
    assert small.plan()
    (broker,) = small.planned()[topic].values()
    assert [broker[number]["to"] for number in ("0", "1")] == [1, 1]
    assert topics.stream(topic).plan()


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("500", 500),
        ("500ms", 500),
        ("200 milliseconds", 200),
        ("1 second", 1_000),
        ("30s", 30_000),
        ("15m", 900_000),
        ("2 h", 7_200_000),
    ],
)
def test_durations_are_written_as_spark_writes_them(text: str, milliseconds: int) -> None:
    assert duration_ms(text) == milliseconds


class Pull(NamedTuple):
    """One that a batch read sent for messages of its range."""

    wanted: int
    """Messages asked for."""
    in_flight: int
    """Others under way."""


def pulls(topics: Topics, topic: str, **options: str) -> list[Pull]:
    seen: list[Pull] = []
    fetcher = Fetcher(topics.planned(topic, **options))
    send = fetcher._send_to

    def noted(place: Any, pulls: Any) -> None:
        seen.extend(
            Pull(pull.task.max_msg_nums, fetcher._window.in_flight - len(pulls) + before)
            for before, pull in enumerate(pulls)
            if not pull.task.is_log_check
        )
        send(place, pulls)

    fetcher._send_to = noted  # type: ignore[method-assign]
    for _ in fetcher.arrivals():
        pass
    return seen


def test_a_pull_asks_for_a_batch(topics: Topics) -> None:
    """pullBatchSize"""
    topic = topics.make(20)

    assert [pull.wanted for pull in pulls(topics, topic, pullBatchSize="5")] == [5, 5, 5, 5]


def test_as_many_pulls_are_under_way_as_are_allowed(topics: Topics) -> None:
    """pullsInFlight"""
    topic = topics.make(20)

    bursts = [pull.in_flight for pull in pulls(topics, topic, pullBatchSize="1", pullsInFlight="2")]

    assert max(bursts) < 2
    assert len(bursts) == 20


def test_no_more_is_asked_for_than_may_be_held(topics: Topics) -> None:
    """maxInFlightBytes: one answer is taken for 256 KiB until a larger one came."""
    topic = topics.make(100)

    bursts = [
        pull.in_flight for pull in pulls(topics, topic, pullBatchSize="1", maxInFlightBytes=str(1 << 20))
    ]

    assert max(bursts) < 4 <= max(pull.in_flight for pull in pulls(topics, topic, pullBatchSize="1"))


def test_messages_are_pulled_from_the_broker_that_the_option_names() -> None:
    """readFrom: a replica without being asked to, and the master for what the replica lacks;
    else only the master.
    """
    with SimCluster(brokers=1, replicas=1) as sim:
        sim.set_replica_lag("broker-a", 5)
        topics = Topics(sim)
        topic = topics.make(40)
        asked = [
            {each.broker_id for each in Fetcher(topics.planned(topic, readFrom=text)).ranges}
            for text in ("suggested", "master", "slave")
        ]
        replicas = [
            bool(topics.planned(topic, readFrom=text)[0].replicas)
            for text in ("suggested", "master", "slave")
        ]
        read = topics.offsets(topic, readFrom="slave", pullBatchSize="8")
        close_idle_connections()

    assert asked == [{0}, {0}, {1}]
    assert replicas == [True, False, True]
    assert read == {0: list(range(40))}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            "is 5, above 'maxOffsetsPerTrigger', which is 4",
        ),
        ({"maxTriggerDelay": "1m"}, "'maxTriggerDelay' needs 'minOffsetsPerTrigger'"),
        ({"minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"}, "is not a duration such as 15m"),
        ({"readFrom": "anyone"}, "is none of suggested, master, slave"),
        (
            {"maxBytesPerTrigger": "1", "consumerGroup": "g", "offsetStore": "/s"},
            "has 'pullThresholdSizeForQueue'",
        ),
        (
            {"minOffsetsPerTrigger": "1", "consumerGroup": "g", "offsetStore": "/s"},
            "whose retries must not wait",
        ),
    ],
)
def test_bounds_that_do_not_go_together_are_refused(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        ReadOptions.parse(REQUIRED | given)
