"""Plans of open ranges, which are read until their batch is over."""

from __future__ import annotations

import logging
import threading
from typing import Any
from unittest.mock import Mock, create_autospec

import pytest

from pyspark_rocketmq.consume.planning import OpenBatchLength
from pyspark_rocketmq.errors import ConnectFailed, OptionError
from pyspark_rocketmq.group.member import RunningMember
from pyspark_rocketmq.hub.planner_end import PlannerControl
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.offsets.store import OffsetRow, QueueCommit
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source import readers
from pyspark_rocketmq.source.ranges import SharedTask, offset_to_plan, open_for_s_of
from pyspark_rocketmq.source.readers import RocketMQStreamReader
from tests.helpers.fake_clock import FakeClock
from tests.source.test_planner import A0, A1, B0, Planning
from tests.source.test_queue_generations import Scenario

REAL_TIME = {
    "realTime": "5 minutes",
    "consumerGroup": "g",
    "offsetStore": "delta:/nowhere",
    "handOverRanges": "true",
}


def in_real_time(bounds: dict[MessageQueue, tuple[int, int]], **given: Any) -> Planning:
    return Planning(bounds, group=True, **REAL_TIME | given)


def opened(planning: Planning) -> dict[MessageQueue, QueueState] | None:
    """The states at which the next plan's ranges begin; none of them has an end."""
    if planning.next() is None:
        return None
    ranges = offset_to_plan(planning.offset)[1]
    assert all(planned.has_open_end for planned in ranges)
    return {planned.queue: planned.state for planned in ranges}


def test_a_plan_has_every_held_queue_whatever_there_is_to_read() -> None:
    planning = in_real_time({A0: (0, 5), A1: (3, 3), B0: (0, 0)}, maxOffsetsPerTrigger="1")

    assert opened(planning) == {A0: QueueState(0, 1), A1: QueueState(3, 1), B0: QueueState(0, 1)}
    assert open_for_s_of(planning.offset) == 300.0
    assert planning.pauses == []


def test_each_plan_is_a_new_one_although_nothing_has_changed() -> None:
    """Spark takes an equal offset for no news, and runs no batch."""
    planning = in_real_time({A0: (0, 5)})

    assert [opened(planning) for _ in range(3)] == [{A0: QueueState(0, 1)}] * 3
    assert planning.offset["seq"] == 3


def test_a_plan_begins_where_the_offset_store_stands() -> None:
    """D3, F5: with what suspends a queue, and under the epoch of a reset."""
    planning = in_real_time({A0: (0, 9), A1: (0, 9)})
    opened(planning)
    planning.store.reset("g", {A1: 2})
    suspended = QueueState(4, 1, 2, suspended_until_s=planning.clock.now_s() + 7)
    planning.store.commit("g", [QueueCommit(queue=A0, state=suspended)], query_id="q", batch_id=1)

    assert opened(planning) == {A0: suspended, A1: QueueState(2, 2)}
    assert [planned.state for planned in planning.planner.runnable(planning.offset)] == [
        suspended,
        QueueState(2, 2),
    ]


def test_a_queue_that_was_reset_before_its_tasks_begin_gets_another_plan() -> None:
    """F5, I3: no task of the batch reads it, so nobody else would notice for as long as the batch lasts."""
    planning = in_real_time({A0: (0, 9), A1: (0, 9)})
    opened(planning)
    planning.store.reset("g", {A1: 2})

    assert [planned.queue for planned in planning.planner.runnable(planning.offset)] == [A0]
    # The member reports a queue under a new grant to the driver, which ends the batch.
    assert planning.ownership.begin_plan() == {A0: 1, A1: 2}
    assert opened(planning) == {A0: QueueState(0, 1), A1: QueueState(2, 3)}
    assert len(planning.planner.runnable(planning.offset)) == 2


def test_a_reset_that_a_task_has_found_is_followed_by_the_next_plan() -> None:
    """F5, I3: it came with the answer to a pull of the batch before."""
    planning = in_real_time({A0: (0, 9), A1: (0, 9)})
    opened(planning)
    planning.commit(A1, 9)
    planning.ownership.resets[A1] = 3

    assert opened(planning) == {A0: QueueState(0, 1), A1: QueueState(3, 2)}
    assert planning.store.read("g")[A1].was_reset
    assert opened(planning) == {A0: QueueState(0, 1), A1: QueueState(3, 2)}


def test_a_queue_that_another_member_claimed_before_its_tasks_begin_is_left_to_it() -> None:
    """B5"""
    planning = in_real_time({A0: (0, 9), A1: (0, 9)})
    opened(planning)
    planning.store.claim("g", "other", {A1: 0})

    assert [planned.queue for planned in planning.planner.runnable(planning.offset)] == [A0]
    assert planning.ownership.claimed_elsewhere == [A1]
    assert opened(planning) == {A0: QueueState(0, 1)}


def test_one_thread_reads_the_offset_store_for_a_plan_and_its_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store on Delta keeps the opened table, and its memory, for each thread that reads."""
    planning = in_real_time({A0: (0, 5)})
    read, threads = planning.store.read, list[str]()

    def noted(consumer_group: str) -> dict[MessageQueue, OffsetRow]:
        threads.append(threading.current_thread().name)
        return read(consumer_group)

    monkeypatch.setattr(planning.store, "read", noted)
    opened(planning)
    planning.planner.runnable(planning.offset)

    assert len(threads) >= 2
    assert len(set(threads)) == 1


def test_a_plan_waits_for_the_first_queue() -> None:
    """Spark asks again immediately, and asking the brokers each time would cost more than the consumption."""
    planning = in_real_time({A0: (0, 5)})
    planning.ownership.taken.add(A0)

    assert opened(planning) is None
    assert sum(planning.pauses) == pytest.approx(5.0)
    assert planning.ownership.waited_s[0] == 5.0

    planning.on_pause.append(planning.ownership.taken.clear)
    assert opened(planning) == {A0: QueueState(0, 1)}


def test_a_cluster_that_is_away_is_asked_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    planning = in_real_time({A0: (0, 5)})
    opened(planning)
    planning.view.down["everything"] = ConnectFailed("n:1", "refused")

    with caplog.at_level(logging.WARNING):
        assert opened(planning) is None

    assert max(planning.pauses) <= 0.5
    assert sum(planning.pauses) == pytest.approx(5.0)
    assert caplog.text.count("planning skipped") == 1


def test_a_batch_that_lacks_a_queue_is_short() -> None:
    """B6: no message gives a queue to a running task, so it waits for the next plan."""
    planning = in_real_time({A0: (0, 5), B0: (0, 5)})
    opened(planning)
    planning.view.down["broker-b"] = ConnectFailed("broker-b:1", "refused")
    for_s = []
    for _ in range(5):
        assert opened(planning) == {A0: QueueState(0, 1)}
        for_s.append(open_for_s_of(planning.offset))

    assert for_s == [5.0, 10.0, 20.0, 30.0, 30.0]
    planning.view.down.clear()
    assert opened(planning) == {A0: QueueState(0, 1), B0: QueueState(0, 1)}
    assert open_for_s_of(planning.offset) == 300.0


def test_a_batch_that_reads_from_a_slave_is_short() -> None:
    """L3: its master may be back soon."""
    planning = in_real_time({B0: (0, 5)})
    opened(planning)
    planning.view.down["broker-b"] = ConnectFailed("broker-b:1", "refused")
    planning.view.not_in_route.add("broker-b")
    planning.view.at_slaves[B0] = (0, 5)

    assert opened(planning) == {B0: QueueState(0, 1)}
    assert open_for_s_of(planning.offset) == 5.0
    ranges = planning.planner.runnable(planning.offset)
    assert planning.planner.snapshot_for(ranges, can_wait=False).slaves.keys() == {"broker-b"}


def test_a_batch_is_no_longer_than_wanted() -> None:
    length = OpenBatchLength(7.0)

    assert [length.of_next(is_complete=False) for _ in range(3)] == [5.0, 7.0, 7.0]
    assert length.of_next(is_complete=True) == 7.0
    assert length.of_next(is_complete=False) == 5.0


def test_an_open_plan_of_an_earlier_run_is_not_run(caplog: pytest.LogCaptureFixture) -> None:
    """H1: its ranges were consumed up to nobody knows where; the store knows where the group is."""
    store = MemoryOffsetStore("test", clock=Planning({}).clock)
    before = in_real_time({A0: (0, 5)}, store=store)
    opened(before)
    assert [planned.queue for planned in before.planner.runnable(before.offset)] == [A0]
    before.commit(A0, 3)

    after = in_real_time({A0: (0, 5)}, store=store)
    # Held, so that nothing else keeps it from being run.
    after.ownership.planned({A0: 1})
    with caplog.at_level(logging.INFO):
        assert after.planner.runnable(before.offset) == []
    assert "is not run" in caplog.text
    after.offset = before.offset
    states = opened(after)
    assert states is not None
    assert states[A0].next_offset == 3
    assert after.offset["seq"] == before.offset["seq"] + 1


def test_an_earlier_plan_of_the_same_run_is_not_run() -> None:
    planning = in_real_time({A0: (0, 5)})
    opened(planning)
    first = planning.offset
    opened(planning)

    assert planning.planner.runnable(first) == []


def test_queries_change_between_micro_batches_and_real_time() -> None:
    """H1: with the same checkpoint; a micro-batch that was not committed is run as it was planned."""
    store = MemoryOffsetStore("test", clock=Planning({}).clock)
    micro = Planning({A0: (0, 5)}, group=True, store=store)
    assert micro.next() == [(A0, 0, 5)]

    live = in_real_time({A0: (0, 5)}, store=store)
    live.ownership.planned({A0: 1})
    assert [(planned.start, planned.end) for planned in live.planner.runnable(micro.offset)] == [(0, 5)]
    live.offset = micro.offset
    assert opened(live) is not None

    # A query that starts again claims as another run.
    micro = Planning({A0: (0, 5)}, group=True, store=store)
    micro.ownership.planned({A0: 1})
    assert micro.planner.runnable(live.offset) == []
    micro.offset = live.offset
    assert micro.next() == [(A0, 0, 5)]


def test_a_listener_without_a_commit_leaves_no_mark_on_the_next_micro_batch() -> None:
    """D4: in an open range it gets further messages until it commits; nothing was withheld from it."""
    planning = in_real_time({A0: (0, 5)})
    opened(planning)
    planning.planner.runnable(planning.offset)
    planning.options = dict.fromkeys(REAL_TIME, "")
    planning.restart()

    assert planning.next() == [(A0, 0, 5)]


def test_lost_messages_are_skipped_before_the_plan() -> None:
    """F4: the corrected offset is stored first, then the queue is planned under the new epoch."""
    planning = in_real_time({A0: (0, 9), A1: (0, 9)}, failOnDataLoss="false")
    opened(planning)
    planning.commit(A0, 2)
    planning.view.bounds[A0] = (5, 9)

    assert opened(planning) == {A0: QueueState(5, 2), A1: QueueState(0, 1)}
    assert sum(planning.pauses) == 0.5


def test_a_queue_whose_log_ends_where_another_begins_is_read_to_that_end() -> None:
    """F4: in a micro-batch, since a range that ends leaves its task idle."""
    stored = list(range(1, 101))
    options: dict[str, Any] = REAL_TIME | {"failOnDataLoss": "false"}
    scenario = Scenario({A0: stored, A1: [1]}, **options)
    scenario.next()
    scenario.consume(A0, 100)
    scenario.planning.store.reset("g", {A0: 10})
    scenario.next()
    scenario.consume(A0, 60)
    scenario.restart()
    scenario.log.stored[A0] = [*stored[:95], 500, 501, 502]

    assert scenario.next() == [(A0, 60, 95), (A1, 0, 1)]
    assert open_for_s_of(scenario.planning.offset) is None
    scenario.consume(A0, 95)
    assert opened(scenario.planning) is not None
    assert scenario.generations() == {A0: 1, A1: 0}


def test_spark_gets_as_many_tasks_as_can_run() -> None:
    """D1: no task ends, so none may wait for a slot; the ranges are shared by their backlogs."""
    planning = in_real_time({A0: (0, 900), A1: (0, 5), B0: (0, 800)})
    reader = RocketMQStreamReader(ReadOptions.parse({"nameServers": "n:1", "topic": "orders", **REAL_TIME}))
    driver = create_autospec(PlannerControl, instance=True)
    driver.slots.return_value = 2
    # Both are made at first use, and the planner would join the group.
    vars(reader).update(_planner=planning.planner, _driver=driver)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())

    tasks = reader.partitions(start, end)

    tickets = [ticket for task in tasks if isinstance(task, SharedTask) for ticket in task.tickets]
    assert [[each.planned.queue for each in ticket.partitions] for ticket in tickets] == [[A0, A1], [B0]]
    assert {(ticket.tasks, ticket.open_for_s) for ticket in tickets} == {(2, 300.0)}
    assert [sum(batch.num_rows for batch in reader.read(task)) for task in tasks] == [1, 1]
    # A query starts again on this checkpoint.
    planning.restart()
    vars(reader).update(_planner=planning.planner)
    assert reader.partitions(start, end) == []


def test_resets_and_arrivals_at_brokers_reach_the_planner_of_a_consumer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F5: from member and driver, which learn of them between two plans."""
    given = {"nameServers": "n:1", "topic": "orders", **REAL_TIME}
    member, driver = (
        create_autospec(RunningMember, instance=True),
        create_autospec(PlannerControl, instance=True),
    )
    watch, progress = Mock(), Mock()
    store = MemoryOffsetStore("wired", clock=FakeClock())
    monkeypatch.setattr(readers, "join_group", lambda *_, **__: member)
    monkeypatch.setattr(readers, "unregister_at_exit", lambda _: None)
    monkeypatch.setattr(readers, "open_group_store", lambda *_: store)
    monkeypatch.setattr(readers, "PullingResetWatch", watch)
    monkeypatch.setattr(readers, "GroupProgress", progress)
    reader = RocketMQStreamReader(ReadOptions.parse(given))
    vars(reader).update(_driver=driver)

    reader._progress(Mock(), Mock(), FakeClock())

    assert watch.call_args.args[3] == member.reset_is_due
    assert progress.call_args.kwargs["lately_arrived"] == driver.lately_arrived


def test_real_time_is_for_consumers() -> None:
    with pytest.raises(OptionError, match="'realTime' needs 'handOverRanges'"):
        ReadOptions.parse({"nameServers": "n:1", "topic": "orders", "realTime": "5m"})
