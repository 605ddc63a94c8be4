"""What becomes of a stream when topics, queues or messages are no longer there (row F4)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from broker_sim.cluster import SimCluster
from pyspark_rocketmq.client.pull_connection import close_idle_connections
from pyspark_rocketmq.errors import (
    ConnectFailed,
    DataLoss,
    LogTailLost,
    MessagesExpired,
    QueueRemoved,
    RocketMQError,
    TopicDeleted,
)
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.source import range_reader
from pyspark_rocketmq.source.message_lookup import Found
from pyspark_rocketmq.source.reader import read_queue
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from tests.helpers.stream_read import offsets_by_queue
from tests.helpers.wait import wait_until
from tests.real_broker import plain_remoting
from tests.source.conftest import Topics
from tests.source.test_planner import A0, A1, B0, Planning


def delete(topics: Topics, topic: str) -> None:
    """From broker and name server, as ``mqadmin deleteTopic`` does."""
    plain_remoting.call(
        topics.sim.broker_addresses["broker-a"], RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}
    )
    plain_remoting.call(topics.sim.name_servers, RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic})


def make_again(topics: Topics, topic: str, count: int) -> None:
    """Delete a topic of one queue, and create it with messages that are stored later."""
    queue = MessageQueue(topic, "broker-a", 0)
    newest_ms = topics.sim.bounds(queue).last_update_timestamp
    delete(topics, topic)
    wait_until(lambda: time.time() * 1000 > newest_ms + 1)
    topics.make(count, topic=topic)


def test_a_deleted_topic_ends_the_query(topics: Topics) -> None:
    """failOnDataLoss, F4: also when it was the only one, and although it was read to its end."""
    topic = topics.make(2)
    stream = topics.stream(topic, routeRefreshMs="1")
    assert stream.next_offsets() == {MessageQueue(topic, "broker-a", 0): [0, 1]}

    delete(topics, topic)

    with pytest.raises(
        TopicDeleted, match=rf"queue=0: offset 2 was to be read next, but .* has no topic {topic} any more"
    ):
        stream.next_offsets()


def test_a_stream_goes_on_without_a_deleted_topic_and_reads_it_from_its_start_when_made_again(
    topics: Topics,
) -> None:
    """failOnDataLoss, topicPattern: as Spark's "subscribe topic by
    pattern with topic recreation between batches".
    """
    first, second = (topics.make(3, topic=name) for name in ("again-1", "again-2"))
    stream = topics.stream(None, topicPattern="again-.", routeRefreshMs="1", failOnDataLoss="false")
    assert stream.next_offsets() is not None

    delete(topics, first)
    topics.put(second, 0, 1)
    assert stream.next_offsets() == {MessageQueue(second, "broker-a", 0): [3]}
    assert first not in stream.planned()
    topics.make(2, topic=first)

    assert stream.next_offsets() == {MessageQueue(first, "broker-a", 0): [0, 1]}


def test_a_topic_deleted_while_the_query_is_stopped_is_noticed(topics: Topics) -> None:
    """F4, topicPattern: the checkpoint knows it."""
    kept, gone = (topics.make(1, topic=name) for name in ("stopped-1", "stopped-2"))
    stream = topics.stream(None, topicPattern="stopped-.", routeRefreshMs="1")
    assert stream.next_offsets() is not None
    delete(topics, gone)
    topics.put(kept, 0, 1)

    stream.restart()
    with pytest.raises(TopicDeleted, match=f"topic={gone}"):
        stream.next_offsets()
    stream.restart(failOnDataLoss="false")

    assert stream.next_offsets() == {MessageQueue(kept, "broker-a", 0): [1]}


def test_a_topic_that_was_left_out_and_made_again_is_read_from_its_start(topics: Topics) -> None:
    """F4: another topic of its broker went on meanwhile."""
    kept, again = topics.make(3, topic="kept"), topics.make(5, topic="left-out")
    both = f"{kept},{again}"
    stream = topics.stream(None, topics=both, routeRefreshMs="1", failOnDataLoss="false")
    stream.next_offsets()
    make_again(topics, again, 8)
    stream.restart(topics=kept)
    topics.put(kept, 0, 2)
    assert stream.next_offsets() == {MessageQueue(kept, "broker-a", 0): [3, 4]}

    stream.restart(topics=both)
    assert stream.next_offsets() == {MessageQueue(again, "broker-a", 0): [*range(8)]}


@pytest.mark.parametrize("count", [6, 12])
def test_a_batch_that_runs_again_leaves_a_topic_made_again_to_the_next(topics: Topics, count: int) -> None:
    """F4: it read the new messages at the old offsets, and the next batch read them again."""
    topic = topics.make(4)
    stream = topics.stream(topic, routeRefreshMs="1", failOnDataLoss="false")
    stream.next_offsets()
    topics.put(topic, 0, 4)
    assert stream.plan()
    make_again(topics, topic, count)
    stream.restart(failOnDataLoss="true")
    with pytest.raises(DataLoss, match=r"(the|The) topic was"):
        stream.run()

    stream.restart(failOnDataLoss="false")
    assert stream.run().num_rows == 0
    assert stream.next_offsets() == {MessageQueue(topic, "broker-a", 0): [*range(count)]}


@pytest.fixture
def denied(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], None]]:
    """Lets the name server deny all topics, as if no broker was registered, or answer as usual."""
    monkeypatch.setattr("pyspark_rocketmq.source.message_lookup.REFUSED_PAUSE_S", 0.0)

    def denied(is_denied: bool) -> None:
        topics.sim.faults.clear()
        if is_denied:
            on, code = RequestCode.GET_ROUTEINFO_BY_TOPIC, ResponseCode.TOPIC_NOT_EXIST
            topics.sim.faults.add("answer-code", on=on, response_code=code, times=10_000)

    yield denied
    topics.sim.faults.clear()


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_log_that_ends_early_is_lost_only_when_a_name_server_lists_its_broker(
    topics: Topics, denied: Callable[[bool], None], fails: str
) -> None:
    """F4, L3: a broker that serves before it has its role may not show all it has."""
    topic = topics.make(5)
    queue = MessageQueue(topic, "broker-a", 0)
    stream = topics.stream(topic, routeRefreshMs="1", failOnDataLoss=fails)
    assert stream.next_offsets() == {queue: [0, 1, 2, 3, 4]}
    denied(True)
    make_again(topics, topic, 3)

    assert [stream.plan() for _ in range(3)] == [False] * 3
    denied(False)
    if fails == "true":
        with pytest.raises(LogTailLost, match="offset 5 was wanted"):
            stream.plan()
    else:
        assert stream.next_offsets() == {queue: [0, 1, 2]}


def test_a_topic_deleted_while_it_is_read_ends_the_range_or_the_query(topics: Topics) -> None:
    """F4: as Spark's "delete a topic when a Spark job is running"."""
    topic = topics.make(3)
    stream = topics.stream(topic, failOnDataLoss="false")
    assert stream.plan()
    delete(topics, topic)

    assert stream.run().num_rows == 0
    (task,) = topics.planned(topics.make(3))
    with pytest.raises(TopicDeleted, match="offset 0 was to be read next"):
        list(
            read_queue(
                replace(task, planned=replace(task.planned, queue=task.planned.queue._replace(topic=topic)))
            )
        )


@pytest.mark.parametrize("options", [{}, {"subscription": "odd"}, {"includeColumns": "body"}], ids=str)
@pytest.mark.parametrize("count", [3, 5], ids=["as long", "longer"])
def test_a_batch_whose_topic_is_made_again_before_it_is_read_fails(
    topics: Topics, count: int, options: dict[str, str]
) -> None:
    """failOnDataLoss, F4: although the new log has a message at each planned offset."""
    topic = topics.make(3)
    (task,) = topics.planned(topic, **options)
    make_again(topics, topic, count)

    with pytest.raises(DataLoss, match=r"offset 2 was wanted, but the broker has another log than"):
        list(read_queue(task))


def test_a_batch_that_may_lose_messages_reads_what_is_there_and_logs_it(
    topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    """failOnDataLoss"""
    topic = topics.make(3)
    (task,) = topics.planned(topic, failOnDataLoss="false")
    make_again(topics, topic, 3)

    assert sum(batch.num_rows for batch in read_queue(task)) == 3
    assert "the broker has another log than" in caplog.text


def test_a_batch_whose_log_ends_within_its_range_fails_or_reads_what_is_there(
    topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    """failOnDataLoss, F4: the broker answers a pull at the new end as if nothing was lost."""
    topic = topics.make(3)
    (strict,) = topics.planned(topic, retryTimeoutMs="100")
    (lenient,) = topics.planned(topic, retryTimeoutMs="100", failOnDataLoss="false")
    make_again(topics, topic, 2)

    with pytest.raises(LogTailLost, match=r"offset 2 was wanted, but the broker has 0 .* to 2 "):
        list(read_queue(strict))
    assert sum(batch.num_rows for batch in read_queue(lenient)) == 2
    assert "wanted=2 available=0 (inclusive) to 2 (exclusive) continuing_at=3" in caplog.text


def test_a_stream_goes_on_after_a_batch_whose_log_ended_within_its_range(topics: Topics) -> None:
    """failOnDataLoss, F4"""
    topic = topics.make(3)
    stream = topics.stream(topic, routeRefreshMs="1", retryTimeoutMs="100", failOnDataLoss="false")
    assert stream.plan()
    make_again(topics, topic, 2)

    assert stream.run().num_rows == 2
    topics.put(topic, 0, 3)

    read = stream.next_offsets()
    assert read is not None
    assert read[MessageQueue(topic, "broker-a", 0)][-3:] == [2, 3, 4]


def test_a_part_of_a_batch_whose_topic_is_made_again_fails_too(topics: Topics) -> None:
    """F4, minPartitions: also the part that ends before the queue's last message."""
    topic = topics.make(6)
    tasks = topics.planned(topic, minPartitions="3")
    make_again(topics, topic, 6)

    assert [task.planned.end for task in tasks] == [2, 4, 6]
    for task in tasks:
        with pytest.raises(DataLoss, match=r"offset 5 was wanted, but the broker has another log than"):
            list(read_queue(task))


def test_a_batch_looks_at_its_log_without_a_request_of_its_own(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A4: the last pull of the range shows it."""
    monkeypatch.setattr(range_reader, "found_at", lambda *_: pytest.fail("the broker was asked again"))
    (task,) = topics.planned(topics.make(3))

    assert sum(batch.num_rows for batch in read_queue(task)) == 3


@pytest.mark.parametrize("options", [{}, {"endingOffsets": "2"}], ids=str)
def test_a_batch_whose_queue_grows_meanwhile_reads_what_was_planned(
    topics: Topics, options: dict[str, str]
) -> None:
    """F4: new messages are not another log."""
    topic = topics.make(3)
    if options:
        options = {"endingOffsets": f'{{"{topic}": {{"broker-a": {{"0": 2}}}}}}'}
    (task,) = topics.planned(topic, **options)
    topics.put(topic, 0, 2)

    assert sum(batch.num_rows for batch in read_queue(task)) == (2 if options else 3)


@pytest.mark.parametrize("by_pattern", [False, True])
def test_a_batch_of_queues_whose_reading_is_switched_off_fails(
    topics: Topics, caplog: pytest.LogCaptureFixture, by_pattern: bool
) -> None:
    """failOnDataLoss, L4: a stream waits for them, and a batch would lack their messages."""
    topic = topics.make(2)
    options = {"topicPattern": topic} if by_pattern else {}
    topics.sim.create_topic(topic, queues=1, brokers=["broker-a"], perm=2)

    with pytest.raises(
        RocketMQError,
        match=f"topic {topic} is switched off at broker broker-a, so .* updateTopicPerm.*failOnDataLoss=",
    ):
        topics.planned(topic, **options)
    assert topics.planned(topic, failOnDataLoss="false", **options) == []
    assert f"reading is switched off, its queues wait topic={topic}" in caplog.text


@pytest.mark.parametrize("start", ["latest", "offset", "time"])
def test_a_stream_does_not_begin_while_reading_is_switched_off(topics: Topics, start: str) -> None:
    """startingOffsets, failOnDataLoss, L4: it would later read such queues from their first messages."""
    topic = topics.make(2)
    options = {
        "latest": {"startingOffsets": "latest"},
        "offset": {"startingOffsets": json.dumps({topic: {"broker-a": {"0": 1}}})},
        "time": {"startingTimestamp": "1"},
    }[start]
    topics.sim.create_topic(topic, queues=1, brokers=["broker-a"], perm=2)

    with pytest.raises(RocketMQError, match=f"topic {topic} is switched off at .* from their first messages"):
        topics.stream(topic, **options).next_offsets()
    assert topics.stream(topic, startingOffsets="earliest").next_offsets() is None
    topics.sim.create_topic(topic, queues=1, brokers=["broker-a"])
    read, queue = topics.stream(topic, **options).next_offsets(), MessageQueue(topic, "broker-a", 0)
    assert read == {"latest": None, "offset": {queue: [1]}, "time": {queue: [0, 1]}}[start]


def fail_last_pull(topics: Topics, fault: str, **options: Any) -> None:
    """Make the second pull of a task fail, which looks at the queue's newest message: the first brings a short range."""
    topics.sim.faults.add("delay", on=RequestCode.PULL_MESSAGE, seconds=0.0)
    topics.sim.faults.add(fault, on=RequestCode.PULL_MESSAGE, **options)


LAST_PULL_FAILS: list[dict[str, Any]] = [
    {"fault": "drop-after"},
    {"fault": "recode", "response_code": ResponseCode.SYSTEM_ERROR},
]


@pytest.mark.parametrize("fault", LAST_PULL_FAILS, ids=str)
def test_a_batch_whose_broker_leaves_after_it_was_read_is_whole(
    topics: Topics, monkeypatch: pytest.MonkeyPatch, fault: dict[str, Any]
) -> None:
    """F4: what cannot be asked is not known."""
    (task,) = topics.planned(topics.make(3), retryTimeoutMs="1")
    asked = []

    def away(*_: object) -> Found:
        asked.append(task.address)
        raise ConnectFailed(task.address, "refused")

    monkeypatch.setattr(range_reader, "found_at", away)
    fail_last_pull(topics, **fault)

    assert sum(batch.num_rows for batch in read_queue(task)) == 3
    assert asked


@pytest.mark.parametrize("fault", LAST_PULL_FAILS, ids=str)
def test_a_batch_whose_last_pull_fails_asks_again_whether_the_topic_was_made_again(
    topics: Topics, fault: dict[str, Any]
) -> None:
    """F4, failOnDataLoss"""
    topic = topics.make(3)
    (task,) = topics.planned(topic)
    make_again(topics, topic, 3)
    fail_last_pull(topics, **fault)

    with pytest.raises(DataLoss, match="the broker has another log than"):
        list(read_queue(task))
    assert not topics.sim.faults.pending


def test_a_queue_that_was_removed_before_it_was_read_ends_the_query(topics: Topics) -> None:
    """F4: and not if it was read to its end."""
    topic = topics.make(1, 1)
    stream = topics.stream(topic, routeRefreshMs="1")
    assert stream.next_offsets() is not None
    topics.put(topic, 1, 2)
    topics.sim.create_topic(topic, queues=1, brokers=["broker-a"])

    with pytest.raises(QueueRemoved, match=r"queue=1: offset 1 was to be read next, but .* reaches to 3"):
        wait_until(stream.next_offsets)

    whole = topics.stream(topic, routeRefreshMs="1")
    assert whole.next_offsets() == {MessageQueue(topic, "broker-a", 0): [0]}


def test_a_broker_that_does_not_say_how_far_a_removed_queue_reaches_is_asked_again(topics: Topics) -> None:
    """F4: what cannot be asked is not known, and ends no query."""
    topic = topics.make(1, 1)
    stream = topics.stream(topic, routeRefreshMs="1")
    assert stream.next_offsets() is not None
    topics.put(topic, 1, 2)
    topics.sim.create_topic(topic, queues=1, brokers=["broker-a"])
    topics.sim.faults.add(
        "answer-code", on=RequestCode.GET_MAX_OFFSET, response_code=ResponseCode.SYSTEM_ERROR
    )

    try:
        assert wait_until(lambda: stream.next_offsets() is None and not topics.sim.faults.pending)
    finally:
        topics.sim.faults.clear()


def test_a_broker_that_is_away_is_no_deleted_topic(topics: Topics) -> None:
    """A2: its topics are forgotten by the name servers all the same."""
    topic = topics.make(1)
    stream = topics.stream(topic, routeRefreshMs="1")
    assert stream.plan()
    topics.sim.stop_broker("broker-a")
    try:
        assert stream.plan() is False
    finally:
        topics.sim.start_broker("broker-a")
    topics.put(topic, 0, 1)

    assert wait_until(stream.plan)
    assert offsets_by_queue(stream.run()) == {MessageQueue(topic, "broker-a", 0): [1]}


def test_a_promoted_slave_without_the_tail_is_recognised_and_nothing_is_read_again() -> None:
    """F4: the end is below what was read; with failOnDataLoss=false reading goes on there, never at 0."""
    with SimCluster(brokers=1, replicas=1) as sim:
        sim.set_replica_lag("broker-a", 4)
        topics = Topics(sim)
        topic = topics.make(10)
        queue = MessageQueue(topic, "broker-a", 0)
        stream = topics.stream(topic, routeRefreshMs="1")
        assert stream.next_offsets() == {queue: list(range(10))}
        sim.promote_replica("broker-a")

        with pytest.raises(
            LogTailLost, match="offset 10 was wanted, but the broker has offsets 0 to 6: its log ends"
        ):
            wait_until(stream.plan)
        stream.restart(failOnDataLoss="false")
        read = stream.next_offsets()
        topics.put(topic, 0, 2)
        after = stream.next_offsets()
        close_idle_connections()

    assert read is None
    assert after == {queue: [6, 7]}


def test_expired_messages_have_an_error_of_their_own() -> None:
    planning = Planning({A0: (5, 9)})
    assert planning.next() == [(A0, 5, 9)]
    planning.view.bounds[A0] = (12, 20)

    with pytest.raises(
        MessagesExpired, match="offset 9 was wanted, but the broker has offsets 12 to 20: older messages"
    ):
        planning.next()


def test_available_now_ends_although_a_queue_is_gone() -> None:
    """failOnDataLoss: what is gone is not waited for."""
    loss = TopicDeleted(str(A1), 2, "gone")
    planning = Planning({A0: (0, 5), A1: (0, 5)}, failOnDataLoss="false", maxOffsetsPerTrigger="4")
    planning.planner.prepare_available_now()
    assert planning.next() == [(A0, 0, 2), (A1, 0, 2)]
    del planning.view.bounds[A1]
    planning.view.gone[A1] = loss

    assert planning.next() == [(A0, 2, 5)]
    assert planning.next() is None
    assert planning.pauses == []


def test_available_now_begins_although_a_topic_of_the_pattern_was_just_deleted(topics: Topics) -> None:
    """topicPattern: what living brokers deny to have is not waited for."""
    kept, gone = (topics.make(1, topic=name) for name in ("begun-1", "begun-2"))
    stream = topics.stream(None, topicPattern="begun-.", routeRefreshMs="1", failOnDataLoss="false")
    assert stream.next_offsets() is not None
    delete(topics, gone)
    topics.put(kept, 0, 1)

    stream.prepare_available_now()

    assert stream.next_offsets() == {MessageQueue(kept, "broker-a", 0): [1]}
    assert stream.next_offsets() is None


@pytest.mark.parametrize("fails", [False, True])
def test_available_now_ends_although_a_queue_is_gone_that_was_never_planned(fails: bool) -> None:
    """failOnDataLoss: it came after the last plan and before the query began."""
    planning = Planning({A0: (0, 5)}, failOnDataLoss=str(fails).lower())
    assert planning.next() == [(A0, 0, 5)]
    planning.view.bounds[A1] = (0, 5)
    planning.planner.prepare_available_now()
    del planning.view.bounds[A1]
    planning.view.gone[A1] = TopicDeleted(str(A1), 0, "gone")

    if fails:
        with pytest.raises(TopicDeleted):
            planning.next()
    else:
        assert planning.next() is None
    assert planning.pauses == []


def test_a_queue_that_is_gone_begins_again_when_it_comes_back() -> None:
    planning = Planning({A0: (0, 5), A1: (0, 5)}, failOnDataLoss="false")
    assert planning.next() is not None
    del planning.view.bounds[A1]
    planning.view.gone[A1] = TopicDeleted(str(A1), 5, "gone")
    assert planning.next() is None

    planning.view.gone.clear()
    planning.view.bounds[A1] = (0, 3)

    assert planning.next() == [(A1, 0, 3)]
    assert planning.next() is None


def test_a_queue_read_to_its_end_may_go(caplog: pytest.LogCaptureFixture) -> None:
    planning = Planning({A0: (0, 5), B0: (0, 5)})
    assert planning.next() is not None
    del planning.view.bounds[B0]
    planning.view.gone[B0] = None

    planning.view.bounds[A0] = (0, 6)

    assert planning.next() == [(A0, 5, 6)]
    assert "it was read to its end" in caplog.text


@pytest.mark.parametrize("kind", [MessagesExpired, LogTailLost, TopicDeleted, QueueRemoved])
def test_every_loss_names_the_queue_the_wanted_and_available_offsets_and_the_remedy(
    kind: type[DataLoss],
) -> None:
    text = str(kind(str(A0), 7, "offsets 1 to 5"))

    assert str(A0) in text
    assert "7" in text
    assert "offsets 1 to 5" in text
    assert "failOnDataLoss=false" in text


@pytest.mark.parametrize("drains", [False, True])
@pytest.mark.parametrize("loss", [TopicDeleted("q", 3, "none"), QueueRemoved("q", 3, "fewer"), None])
@pytest.mark.parametrize(
    "wanted", [{"topics": "orders"}, {"topicPattern": "ord.*"}, {"subscriptions": '{"orders": "*"}'}]
)
def test_queues_of_a_topic_that_is_read_no_more_are_nobodys_loss(
    wanted: dict[str, str], loss: DataLoss | None, drains: bool
) -> None:
    """F4: the query's topics were narrowed between two runs, and the topic left out was deleted later."""
    payments = MessageQueue("payments", "broker-b", 0)
    planning = Planning({A0: (0, 5), payments: (0, 3)})
    planning.next()
    planning.options = wanted | {"topic": ""}
    planning.restart()
    del planning.view.bounds[payments]
    planning.view.gone[payments] = loss
    planning.view.bounds[A0] = (0, 7)
    if drains:
        planning.planner.prepare_available_now()

    assert planning.next() == [(A0, 5, 7)]
    assert planning.planner.latest(planning.offset) == planning.offset

    # Where it stood is kept, in case it is read again.
    planning.options = {"topic": "", "topics": "orders,payments"}
    planning.restart()
    planning.view.gone.clear()
    planning.view.bounds[payments] = (0, 4)
    assert planning.next() == [(payments, 3, 4)]


def test_a_topic_that_is_read_and_gone_is_still_a_loss() -> None:
    """F4"""
    planning = Planning({A0: (0, 5), B0: (0, 3)})
    planning.next()
    planning.restart()
    planning.view.gone[B0] = TopicDeleted("q", 3, "none")

    with pytest.raises(TopicDeleted):
        planning.next()


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_queue_that_a_topic_gets_back_goes_on_where_it_was(topics: Topics, fails: str) -> None:
    """F4: a broker keeps the messages of removed queues, so that none is read twice."""
    topic = topics.make(1, 2)
    stream = topics.stream(topic, routeRefreshMs="1", failOnDataLoss=fails)
    assert stream.next_offsets() is not None
    topics.sim.create_topic(topic, queues=1, brokers=["broker-a"])
    topics.put(topic, 0, 1)
    assert stream.next_offsets() == {MessageQueue(topic, "broker-a", 0): [1]}

    topics.sim.create_topic(topic, queues=2, brokers=["broker-a"])
    topics.put(topic, 1, 1)

    assert stream.next_offsets() == {MessageQueue(topic, "broker-a", 1): [2]}


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_logged_batch_runs_again_without_a_topic_that_is_read_no_more(
    topics: Topics, fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    """F4, topics: the topic was deleted, so that leaving it out is the remedy."""
    kept, gone = topics.make(2), topics.make(4)
    stream = topics.stream(None, topics=f"{kept},{gone}", routeRefreshMs="1", failOnDataLoss=fails)
    assert stream.plan()
    delete(topics, gone)

    stream.restart(topics=kept)

    assert offsets_by_queue(stream.run()) == {MessageQueue(kept, "broker-a", 0): [0, 1]}
    assert f"these offsets are left out topic={gone} broker=broker-a queue=0 offsets=0 to 4" in caplog.text
    topics.put(kept, 0, 1)
    assert stream.next_offsets() == {MessageQueue(kept, "broker-a", 0): [2]}


def test_a_topic_left_out_when_a_batch_runs_again_keeps_its_unread_messages(topics: Topics) -> None:
    """F4, subscriptions: its tag is no longer known; named again, it goes on where it was."""
    kept, left = topics.make(2), topics.make(4)
    both = json.dumps({kept: "*", left: "odd"})
    stream = topics.stream(None, subscriptions=both, routeRefreshMs="1")
    assert stream.plan()
    stream.restart(subscriptions=json.dumps({kept: "*"}))
    assert offsets_by_queue(stream.run()) == {MessageQueue(kept, "broker-a", 0): [0, 1]}

    # Its position is written although there is nothing new to read, and only once.
    assert stream.next_offsets() == {}
    assert stream.next_offsets() is None
    stream.restart(subscriptions=both)

    assert stream.next_offsets() == {MessageQueue(left, "broker-a", 0): [1, 3]}


def test_a_logged_batch_runs_again_without_the_broker_of_a_topic_that_is_read_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """topics: the query looks no longer for a broker that has none of its topics."""
    payments = MessageQueue("payments", "broker-b", 0)
    planning = Planning({A0: (0, 5), payments: (1, 3)})
    planning.offset = planning.planner.latest(planning.offset)
    planning.options = {"topic": "", "topics": "orders"}
    planning.restart()

    again = planning.planner.runnable(planning.offset)
    assert again == planning.planner.runnable(planning.offset)

    assert [(each.queue, each.start, each.end) for each in again] == [(A0, 0, 5)]
    assert caplog.text.count("topic=payments broker=broker-b queue=0 offsets=1 to 3") == 1
    del planning.view.bounds[payments]
    planning.view.bounds[A0] = (0, 6)
    assert planning.next() == [(A0, 5, 6)]
    planning.options = {"topic": "", "topics": "orders,payments"}
    planning.restart()
    planning.view.bounds[payments] = (1, 4)
    assert planning.next() == [(payments, 1, 4)]
