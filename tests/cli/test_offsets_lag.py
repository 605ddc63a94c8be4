"""Job ``offsets lag`` against clusters with members in them: who holds what, how far behind, and bounded."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from broker_sim.cluster import SimCluster
from pyspark_rocketmq.cli.offsets.lag import look_at_lag, show_lag
from pyspark_rocketmq.cli.offsets.records import LagView
from pyspark_rocketmq.cli.offsets.show import show_offsets
from pyspark_rocketmq.cli.options import OffsetsLagSettings, OffsetsShowSettings
from pyspark_rocketmq.cli.output import OutputForm
from pyspark_rocketmq.cli.settings import JobFailed
from pyspark_rocketmq.model import Message, MessageQueue, retry_topic
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from tests.cli.test_offset_change import joined
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.sending import patient_producer
from tests.helpers.wait import PATIENCE_S, wait_until

MESSAGES = 6
PATIENCE_MS = int(PATIENCE_S * 1000)

Join = Callable[..., str]


@pytest.fixture
def topic(cluster: ClusterUnderTest) -> str:
    """Two queues on broker-a with six messages each."""
    topic = cluster.create_topic(queues=2, brokers=["broker-a"])
    with patient_producer(cluster.name_servers) as producer:
        for queue in producer.queues(topic):
            producer.send_batch([Message(topic=topic, body=b"x")] * MESSAGES, queue)
    return topic


@pytest.fixture
def table(tmp_path: Path) -> DeltaOffsetStore:
    return DeltaOffsetStore(tmp_path / "offsets")


@pytest.fixture
def join(cluster: ClusterUnderTest, topic: str, table: DeltaOffsetStore) -> Iterator[Join]:
    """Let a member join, claim its queues and commit ``next_offset`` of each."""
    with ExitStack() as members:

        def join_as(group: str, instance: str, next_offset: int, **more: str) -> str:
            return members.enter_context(
                joined(table, cluster.name_servers, topic, group, instance, at=next_offset, **more)
            )

        yield join_as


def settings(
    cluster: ClusterUnderTest | SimCluster, table: DeltaOffsetStore, **more: Any
) -> OffsetsLagSettings:
    return OffsetsLagSettings(
        offset_store=table.spec, name_servers=(cluster.name_servers,), request_timeout_ms=PATIENCE_MS, **more
    )


def with_all_members(look: Callable[[], list[LagView]]) -> list[LagView]:
    """What comes of a look that every member has answered; a broker does not wait long for one."""

    def looked() -> list[LagView] | None:
        views = look()
        return views if all(view.holder for view in views) else None

    return wait_until(looked, reason="an answer of every member")


def test_a_member_s_lag_lock_and_epoch_are_shown(
    cluster: ClusterUnderTest, topic: str, table: DeltaOffsetStore, join: Join
) -> None:
    """B5, C2: the lock's age is the member's own account of it."""
    began_s = time.time()
    group = cluster.unique_name("group")
    member_id = join(group, "one", 4)

    def shown() -> Any:
        output = io.StringIO()
        given = settings(cluster, table, consumer_group=group)
        show_lag(given, Console(file=output, width=300), OutputForm.JSON)
        report = json.loads(output.getvalue())
        return report if report["totals"][0]["members"] else None

    report = wait_until(shown, reason="an answer of the member, for which a broker does not wait long")
    (total,) = report["totals"]
    assert (total["queues"], total["lag"], total["members"], total["heldByNobody"]) == (
        2,
        2 * (MESSAGES - 4),
        1,
        0,
    )
    for queue in report["queues"]:
        assert (queue["nextOffset"], queue["brokerMaxOffset"], queue["lag"]) == (4, MESSAGES, MESSAGES - 4)
        assert (queue["heldBy"], queue["claimedBy"], queue["epoch"]) == (member_id, member_id, 1)
        # Shown to a tenth.
        assert 0 <= queue["lockAgeSeconds"] <= time.time() - began_s + 0.1
        assert queue["lagSeconds"] >= 0


def test_the_retry_topic_is_shown_like_any_other(
    cluster: ClusterUnderTest, topic: str, table: DeltaOffsetStore, join: Join
) -> None:
    """E3, B5: its queue is held and locked by the member; nothing was given back yet."""
    group = cluster.unique_name("group")
    member_id = join(group, "one", 4)
    retry = MessageQueue(retry_topic(group), "broker-a", 0)
    table.claim(group, member_id, {retry: 0})

    def is_held() -> list[LagView]:
        return [view for view in look_at_lag(asked) if view.row.queue == retry and view.holder is not None]

    asked = settings(cluster, table, consumer_group=group)
    (view,) = wait_until(is_held, reason="the retry queue being held")
    assert view.holder is not None
    assert (view.lag, view.holder.client_id) == (0, member_id)
    assert view.holder.locked_at_s is not None
    assert {view.row.queue.topic for view in look_at_lag(asked)} == {topic, retry.topic}


def test_instances_of_a_broadcasting_group_are_shown_one_by_one(
    cluster: ClusterUnderTest, topic: str, table: DeltaOffsetStore, join: Join
) -> None:
    """B3: all under the group's name, each with its own position, none with a lock."""
    group = cluster.unique_name("group")
    ids = [
        join(group, name, offset, messageModel="BROADCASTING") for name, offset in (("one", 1), ("two", 6))
    ]

    views = with_all_members(lambda: look_at_lag(settings(cluster, table, consumer_group=group)))

    shown = [
        (view.row.consumer_group, view.lag, view.holder and (view.holder.client_id, view.holder.locked_at_s))
        for view in views
    ]
    assert shown == [
        *[(f"{group}@one", MESSAGES - 1, (ids[0], None))] * 2,
        *[(f"{group}@two", 0, (ids[1], None))] * 2,
    ]


def test_a_group_without_members_still_has_a_lag(
    cluster: ClusterUnderTest, topic: str, table: DeltaOffsetStore
) -> None:
    """B7: nobody holds its queues; the table shows who claimed them last."""
    group = cluster.unique_name("group")
    table.claim(group, "gone", {MessageQueue(topic, "broker-a", 0): 2})
    output = io.StringIO()

    show_lag(settings(cluster, table), Console(file=output, width=300))

    (view,) = look_at_lag(settings(cluster, table))
    assert (view.lag, view.holder) == (MESSAGES - 2, None)
    assert view.lag_s is not None
    assert "claimedBy" in output.getvalue()


def test_an_unknown_group_is_refused(cluster: ClusterUnderTest, topic: str, table: DeltaOffsetStore) -> None:
    table.claim("known", "me", {MessageQueue(topic, "broker-a", 0): 0})
    with pytest.raises(JobFailed, match="holds nothing of consumer group 'elt'"):
        look_at_lag(settings(cluster, table, consumer_group="elt"))


@SIM_ONLY
def test_a_member_that_does_not_answer_leaves_its_columns_empty(
    cluster: ClusterUnderTest,
    topic: str,
    table: DeltaOffsetStore,
    join: Join,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """B5: the rest is shown all the same."""
    group = cluster.unique_name("group")
    member_id = join(group, "one", 2)
    faults = cluster.faults
    faults.add("answer-code", on=307, response_code=1)

    try:
        (view, _) = look_at_lag(settings(cluster, table, consumer_group=group))
        assert not faults.pending
    finally:
        faults.clear()

    assert (view.lag, view.holder, view.row.owner_id) == (MESSAGES - 2, None, member_id)
    assert f"member does not answer group={group} client_id={member_id}" in caplog.text


def test_a_broker_that_is_away_leaves_its_queues_without_a_lag(
    table: DeltaOffsetStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A2: a topic of which no broker answers does not keep the others from being shown."""
    queues = [
        MessageQueue("both", "broker-a", 0),
        MessageQueue("both", "broker-b", 0),
        MessageQueue("one", "broker-b", 0),
    ]
    table.claim("etl", "me", dict.fromkeys(queues, 0))
    with SimCluster(brokers=2) as cluster:
        cluster.create_topic("both", 1)
        cluster.create_topic("one", 1, brokers=["broker-b"])
        cluster.refuse_connections("broker-b")

        views = look_at_lag(settings(cluster, table))
        output = io.StringIO()
        given = OffsetsShowSettings(
            offset_store=table.spec, name_servers=(cluster.name_servers,), request_timeout_ms=PATIENCE_MS
        )
        show_offsets(given, Console(file=output, width=300), OutputForm.JSON)

    assert {view.row.queue: view.lag for view in views} == dict(zip(queues, (0, None, None), strict=True))
    assert [queue["lag"] for queue in json.loads(output.getvalue())] == [0, None, None]
    assert "broker does not answer broker=broker-b" in caplog.text
    assert "no broker of topic one answers" in caplog.text
