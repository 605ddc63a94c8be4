"""Whose queue is whose while a batch runs, and when it is free: rule by rule."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TypeVar

import pytest

from pyspark_rocketmq.consume.cuts import EndReason, Place
from pyspark_rocketmq.consume.part import Group, Part, QueueAck
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.hub.messages import (
    BatchAtWork,
    CutWanted,
    EndTask,
    GiveUpQueues,
    PartHandedOver,
    PartsCommitted,
    PartTaken,
    PlanOver,
    QueuesFree,
    QueuesHeldUp,
    ResetFound,
    SlotsKnown,
    TaskBegins,
    TaskMayBegin,
)
from pyspark_rocketmq.hub.state import Action, Commit, Flushed, HubState, Look, Send, Slots
from pyspark_rocketmq.model import MessageQueue, QueueState
from tests.helpers.parts import part_of

A, B, C, D = (MessageQueue("T", "broker-a", number) for number in range(4))
ALL = frozenset((A, B, C, D))
AWAY = RocketMQError("away")
MessageT = TypeVar("MessageT")


class Driver:
    """A hub with a planner whose plan 1 holds four queues, in the batch that runs it."""

    def __init__(
        self, *, must_ask: bool = True, interval_s: float | None = None, may_offsets_wait: bool = False
    ) -> None:
        self.state = HubState(must_ask=must_ask, interval_s=interval_s, may_offsets_wait=may_offsets_wait)
        self.state.planner_came("planner")
        self.state.plan_made(1, ALL)
        self.must_ask = self.state.batch_begins(7)
        self._attempts: dict[int, Iterator[int]] = defaultdict(itertools.count)
        """Numbers of the next attempts, by task."""

    def begins(
        self,
        task: str,
        *queues: MessageQueue,
        partition: int = 0,
        batch_id: int = 7,
        tasks: int = 1,
    ) -> list[Action]:
        start = TaskBegins(
            task=task,
            batch_id=batch_id,
            partition=partition,
            attempt=next(self._attempts[partition]),
            places=dict.fromkeys(queues, Place(1, 0)),
            tasks=tasks,
        )
        return self.state.task_begins(f"peer of {task}", start, 0.0)

    def hands_over(self, task: str, *queues: MessageQueue) -> list[Action]:
        handed = PartHandedOver(task, part(task, *queues), cut=None, ends=frozenset(queues))
        return self.state.handed_over(f"peer of {task}", handed, 0.0)

    def is_done(self, task: str, *queues: MessageQueue) -> list[Action]:
        return self.state.task_done(f"peer of {task}", task, part(task, *queues), 0.0)

    def idles(self, task: str, now_s: float = 0.0) -> list[Action]:
        return self.state.task_idles(f"peer of {task}", task, now_s)

    def must_leave(self, *queues: MessageQueue) -> list[Action]:
        return self.state.must_leave(1, frozenset(queues), 0.0)

    def is_committed(self, *refused: MessageQueue) -> list[Action]:
        return self.state.committed(frozenset(refused), 0.0)


def part(task: str, *queues: MessageQueue) -> Part:
    return part_of(f"part of {task}", *queues)


def sent(actions: Iterable[Action], kind: type[MessageT]) -> list[MessageT]:
    """The messages of one kind among the actions."""
    messages = [action.message for action in actions if isinstance(action, Send)]
    return [message for message in messages if isinstance(message, kind)]


def freed(actions: Iterable[Action]) -> set[MessageQueue]:
    return {queue for message in sent(actions, QueuesFree) for queue in message.queues}


def asked_to_give_up(actions: Iterable[Action]) -> dict[str, set[MessageQueue]]:
    found: dict[str, set[MessageQueue]] = {}
    for message in sent(actions, GiveUpQueues):
        found.setdefault(message.task, set()).update(message.queues)
    return found


def committed(actions: Iterable[Action]) -> list[Part]:
    groups = (action.group for action in actions if isinstance(action, Commit))
    return [part for group in groups if group is not None for part in group.parts]


def work_reports(actions: Iterable[Action]) -> list[tuple[str, bool]]:
    """Task by task, whether its batch is at work."""
    return [(message.task, message.is_at_work) for message in sent(actions, BatchAtWork)]


def stopped(actions: Iterable[Action]) -> list[str]:
    return [message.task for message in sent(actions, EndTask)]


def plans_over(actions: Iterable[Action]) -> list[int]:
    return [message.plan for message in sent(actions, PlanOver)]


def left_out(actions: list[Action]) -> set[MessageQueue]:
    [go] = sent(actions, TaskMayBegin)
    return set(go.left_out)


def test_a_queue_that_is_consumed_is_free_once_what_was_handed_over_is_committed() -> None:
    """B5, D7"""
    driver = Driver()
    driver.begins("one", A, B)

    assert asked_to_give_up(driver.must_leave(A)) == {"one": {A}}
    assert driver.must_leave(A) == []
    handed = driver.hands_over("one", A)
    assert (committed(handed), freed(handed)) == ([part("one", A)], set())
    assert freed(driver.is_committed()) == {A}
    assert driver.state.batch_ends(0.0, could_ask=True) == [Flushed(None)]
    assert driver.state.rest([part("one", A)]) is None


@pytest.mark.parametrize("is_sent", [True, False], ids=["sent in vain", "not sent"])
def test_a_planner_that_comes_back_gets_the_queues_that_are_free_by_now(is_sent: bool) -> None:
    """B5, I4: else it would keep their locks until the batch ends, which in real time lasts for minutes."""
    driver = Driver()
    driver.begins("one", A, B)
    driver.must_leave(A)
    driver.hands_over("one", A)
    if is_sent:
        assert freed(driver.is_committed()) == {A}
    driver.state.lost("planner", 0.0)
    if not is_sent:
        assert freed(driver.is_committed()) == set()

    assert freed(driver.state.planner_came("planner again")) == {A}
    driver.state.plan_made(1, ALL)
    assert asked_to_give_up(driver.must_leave(A, B)) == {"one": {B}}


def test_a_planner_that_comes_back_gets_the_plan_that_is_over_by_now() -> None:
    """B5: else it would keep the locks of its queues until the next trigger."""
    driver = Driver()
    driver.state.batch_ends(0.0, could_ask=True)
    driver.state.lost("planner", 0.0)
    assert plans_over(driver.state.batch_committed(1, 1)) == []

    assert plans_over(driver.state.planner_came("planner again")) == [1]
    driver.state.plan_made(2, ALL)
    assert plans_over(driver.state.planner_came("once more")) == []


def test_a_queue_that_no_task_has_begun_is_free_at_once_and_left_out_by_who_comes_to_it() -> None:
    """B5: a batch of many tasks has some that wait for a slot."""
    driver = Driver()
    driver.begins("one", A)

    assert freed(driver.must_leave(C)) == {C}
    assert left_out(driver.begins("two", C, D, partition=1)) == {C}


def test_between_two_batches_the_queues_of_a_plan_that_will_be_run_are_free_at_once() -> None:
    """B5: Spark takes its time to begin with a plan that it has logged."""
    driver = Driver()
    driver.state.batch_ends(0.0, could_ask=True)
    driver.state.plan_made(2, ALL)

    assert freed(driver.state.must_leave(2, frozenset({A}), 0.0)) == {A}
    assert driver.state.batch_begins(8)
    assert left_out(driver.begins("one", A, B, batch_id=8)) == {A}


def test_where_tasks_may_begin_without_asking_a_queue_that_none_has_begun_waits() -> None:
    """B5: until its task says so, or the batch is over."""
    driver = Driver(must_ask=False)
    assert not driver.must_ask

    assert driver.must_leave(C) == []
    begun = driver.begins("two", C, D)
    assert (left_out(begun), freed(begun)) == ({C}, {C})


@pytest.mark.parametrize("could_ask", [True, False])
def test_whether_tasks_must_ask_is_what_those_of_the_last_batch_could(could_ask: bool) -> None:
    """B5: a firewall must not keep a query from consuming."""
    driver = Driver(must_ask=not could_ask)
    driver.state.batch_ends(0.0, could_ask=could_ask)

    assert driver.state.batch_begins(8) is could_ask
    driver.state.batch_ends(0.0, could_ask=None)
    assert driver.state.batch_begins(9) is could_ask


def test_a_task_that_has_ended_has_its_result_committed_when_one_of_its_queues_must_leave() -> None:
    """B5: the batch goes on for as long as its slowest queue."""
    driver = Driver()
    driver.begins("one", A, B)
    assert driver.is_done("one", A, B) == []

    assert committed(driver.must_leave(B)) == [part("one", A, B)]
    assert driver.must_leave(B) == []
    assert freed(driver.is_committed()) == {A, B}


def test_a_task_that_ends_while_it_gets_the_message_has_its_result_committed() -> None:
    """B5"""
    driver = Driver()
    driver.begins("one", A, B)
    driver.must_leave(A)

    assert committed(driver.is_done("one", A, B)) == [part("one", A, B)]


def test_another_attempt_leaves_out_what_the_driver_has_of_the_one_before() -> None:
    """D1, H1: handed over is handed over."""
    driver = Driver()
    driver.begins("one", A, B)
    driver.must_leave(A)
    driver.hands_over("one", A)
    driver.state.lost("peer of one", 0.0)

    assert left_out(driver.begins("again", A, B)) == {A}
    assert driver.hands_over("one", B) == []


def test_the_queues_of_a_task_that_is_lost_wait_for_another_attempt_or_the_batchs_end() -> None:
    """D1: its call in hand may still run."""
    driver = Driver()
    driver.begins("one", A)
    driver.state.lost("peer of one", 0.0)

    assert driver.must_leave(A) == []
    assert freed(driver.begins("again", A)) == {A}


def test_only_a_queue_that_was_reset_is_dropped_by_its_task() -> None:
    """F5: what it has of it is not committed."""
    driver = Driver()
    driver.begins("one", A, B)

    actions = driver.state.moved({A: 2, B: 1, C: 5}, driver.state.batches, 0.0)
    assert actions == [Send("peer of one", GiveUpQueues("one", frozenset({A}), is_dropped=True))]
    assert driver.state.moved({A: 2, B: 1}, driver.state.batches, 0.0) == []
    assert freed(driver.state.released("peer of one", "one", frozenset({A}), 0.0)) == {A}


def test_epochs_read_before_a_batch_drop_nothing_of_it() -> None:
    """F5: the offset store was slow, and the queue was claimed again meanwhile."""
    driver = Driver()
    driver.begins("one", A)
    read, batches = {A: 1}, driver.state.batches
    driver.is_done("one", A)
    driver.state.batch_ends(0.0, could_ask=True)
    driver.state.plan_made(2, ALL)
    driver.state.batch_begins(8)
    claimed = TaskBegins(task="two", batch_id=8, partition=0, attempt=0, places={A: Place(2, 0)}, tasks=1)
    driver.state.task_begins("peer of two", claimed, 1.0)

    assert driver.state.moved(read, batches, 1.0) == []
    assert driver.state.moved({A: 3}, driver.state.batches, 1.0) == [
        Send("peer of two", GiveUpQueues("two", frozenset({A}), is_dropped=True))
    ]


def test_nothing_more_is_committed_of_a_queue_that_was_reset_without_an_epoch() -> None:
    """F5: also of what its task has handed over or ended with, unless the queue is free."""
    driver = Driver()
    driver.begins("one", A, B)
    driver.begins("two", C, partition=1)
    driver.is_done("two", C)

    actions = driver.state.unfenced_reset(frozenset({A, C, D}), 0.0)
    assert actions == [Send("peer of one", GiveUpQueues("one", frozenset({A}), is_dropped=True))]
    assert driver.state.unfenced_reset(frozenset({A}), 0.0) == []
    rest = driver.state.rest([part("one", A, B), part("two", C)])
    assert rest is not None
    assert rest.without == {A, C}


def test_a_reset_without_an_epoch_leaves_a_queue_to_its_next_owner() -> None:
    """F5, B5: its part is committed, and the planner has unlocked it."""
    driver = Driver()
    driver.begins("one", A, B)
    driver.state.must_leave(1, frozenset({A}), 0.0)
    driver.hands_over("one", A)
    driver.state.committed(frozenset(), 0.0)

    assert driver.state.unfenced_reset(frozenset({A}), 0.0) == []


def test_a_reset_that_a_task_has_found_is_passed_on_to_the_planner_also_later() -> None:
    """F5: its broker has forgotten it."""
    state = HubState(must_ask=True)
    first, second = ResetFound(A, 3), ResetFound(B, 4)

    assert state.reset_found(first) == []
    assert Send("planner", first) in state.planner_came("planner")
    assert state.reset_found(second) == [Send("planner", second)]
    state.lost("planner", 0.0)
    assert not any(isinstance(each.message, ResetFound) for each in sent_by(state.planner_came("again")))


def sent_by(actions: Iterable[Action]) -> list[Send]:
    return [action for action in actions if isinstance(action, Send)]


def test_a_task_of_an_older_batch_has_to_end_and_nothing_of_it_is_taken() -> None:
    """D1, H1: it was believed dead."""
    driver = Driver()
    [go] = sent(driver.begins("zombie", A, batch_id=6), TaskMayBegin)
    assert go.is_stopped
    assert driver.hands_over("zombie", A) == []


def test_when_a_batch_is_committed_the_planner_gets_its_plan() -> None:
    """B5: with a trigger of minutes it has no other way to know."""
    driver = Driver()
    driver.begins("one", *ALL)
    driver.is_done("one", *ALL)
    assert driver.state.batch_ends(0.0, could_ask=True) == [Flushed(None)]

    # What must leave from now on waits for the commit.
    assert driver.must_leave(A) == []
    assert driver.state.batch_committed(driver.state.plan, 1) == [Send("planner", PlanOver(1))]


def test_reports_about_an_older_plan_change_nothing() -> None:
    driver = Driver()
    driver.begins("one", A)

    assert driver.state.must_leave(0, frozenset({A}), 0.0) == []
    driver.state.plan_made(0, frozenset())
    assert asked_to_give_up(driver.must_leave(A)) == {"one": {A}}


def test_tasks_stop_when_the_query_does() -> None:
    """B7: what they have delivered is committed with their batch."""
    driver = Driver()
    driver.begins("one", A)
    driver.begins("two", B, partition=1)
    driver.is_done("two", B)

    assert driver.state.stop(0.0) == [Send("peer of one", EndTask("one", EndReason.STOP))]
    [go] = sent(driver.begins("three", C, partition=2), TaskMayBegin)
    assert go.is_stopped


def test_tasks_stop_when_their_planner_is_away_for_so_long_that_its_locks_may_run_out() -> None:
    """C2: nobody renews them."""
    driver = Driver()
    driver.begins("one", A)
    driver.state.lost("planner", 100.0)

    assert driver.state.tick(114.0) == []
    assert driver.state.tick(115.0) == [Send("peer of one", EndTask("one", EndReason.STOP))]
    assert driver.state.tick(116.0) == []


def test_a_planner_that_comes_back_in_time_changes_nothing() -> None:
    """C2"""
    driver = Driver()
    driver.begins("one", A)
    driver.state.lost("planner", 100.0)
    driver.state.planner_came("planner again")

    assert driver.state.tick(200.0) == []


def test_the_planner_gets_how_many_tasks_can_run_when_it_comes_and_when_that_changes() -> None:
    """D3: it makes no more."""
    state = HubState(must_ask=True, slots=Slots(2, 2))
    assert state.slots_are(Slots(3, 3)) == []

    assert state.planner_came("planner") == [Send("planner", SlotsKnown(3, 5.0))]
    assert state.slots_are(Slots(3, 3)) == []
    assert state.slots_are(Slots(4, 4)) == [Send("planner", SlotsKnown(4, 5.0))]
    assert state.slots_are(Slots(9, 0)) == [Send("planner", SlotsKnown(0, 5.0))]


def test_the_planner_gets_what_holds_queues_up_when_it_comes_and_when_that_changes() -> None:
    """D6: a drain that stands still says why."""
    state = HubState(must_ask=True)
    assert state.held_up("No permission.") == []

    report = Send("planner", QueuesHeldUp("No permission."))
    assert report in state.planner_came("planner")
    assert state.held_up("No permission.") == []
    assert state.held_up("") == [Send("planner", QueuesHeldUp(""))]


def two_tasks(tasks: int = 2, slots: int = 2) -> Driver:
    """A batch of ``tasks``, of which two have begun."""
    driver = Driver()
    # Where executors come when tasks wait, any number is planned.
    driver.state.slots_are(Slots(slots, 0))
    driver.state.batch_begins(7)
    driver.begins("one", A, tasks=tasks)
    driver.begins("two", B, partition=1, tasks=tasks)
    return driver


def test_a_task_with_only_suspended_queues_waits_until_the_others_have_ended() -> None:
    """D3: however slow their listeners are; and the batch is not prolonged."""
    driver = two_tasks()

    assert work_reports(driver.idles("one")) == [("one", True)]
    assert driver.state.tick(100.0) == []
    assert work_reports(driver.is_done("two", B)) == [("one", False)]
    assert driver.state.tick(200.0) == []


def test_two_tasks_with_only_suspended_queues_both_end() -> None:
    """D3: else they would wait for each other."""
    driver = two_tasks()
    driver.idles("one")

    assert sorted(work_reports(driver.idles("two"))) == [("one", False), ("two", False)]


def test_the_only_task_of_a_batch_does_not_wait() -> None:
    """D3"""
    driver = Driver()
    driver.begins("one", A)

    assert work_reports(driver.idles("one")) == [("one", False)]


def test_a_task_does_not_keep_the_slot_that_another_one_needs_to_begin() -> None:
    """D3: a batch has more tasks than run at the same time."""
    driver = two_tasks(tasks=3)

    assert work_reports(driver.idles("one")) == [("one", False)]
    driver.is_done("one", A)
    driver.begins("three", C, partition=2, tasks=3)
    assert work_reports(driver.idles("two")) == [("two", True)]


def test_a_task_waits_for_those_that_are_about_to_begin() -> None:
    """D3: two seconds, as a slot may be somebody else's; Spark begins tasks one after the other,
    some with a new process.
    """
    driver = two_tasks(tasks=4, slots=4)

    assert work_reports(driver.idles("one", 10.0)) == [("one", True)]
    assert work_reports(driver.begins("three", C, partition=2, tasks=4)) == []
    assert driver.state.tick(11.9) == []
    assert work_reports(driver.state.tick(12.0)) == [("one", False)]


def test_a_task_that_has_the_last_slot_ends_for_those_that_have_not_begun() -> None:
    """D3"""
    driver = two_tasks(tasks=4, slots=3)
    assert work_reports(driver.idles("one")) == [("one", True)]
    driver.begins("three", C, partition=2, tasks=4)

    assert work_reports(driver.state.tick(0.5)) == [("one", False)]


@pytest.mark.parametrize("how", ["failed", "lost"])
def test_a_task_does_not_keep_the_slot_that_another_ones_next_attempt_needs(how: str) -> None:
    """D3, E2: nor is an attempt counted twice."""
    driver = two_tasks(slots=1)
    driver.idles("one")
    ended = (
        driver.state.task_failed("peer of two", "two", 1.0)
        if how == "failed"
        else driver.state.lost("peer of two", 1.0)
    )

    assert work_reports(ended) == [("one", False)]
    driver.is_done("one", A)
    driver.begins("two again", B, partition=1, tasks=2)
    assert work_reports(driver.idles("two again")) == [("two again", False)]


def test_an_attempt_that_another_one_follows_waits_no_longer() -> None:
    """D3: whatever it does is in vain."""
    driver = two_tasks()
    driver.idles("one")

    assert work_reports(driver.begins("one again", A, tasks=2)) == [("one", False)]
    assert work_reports(driver.idles("one")) == [("one", False)]
    assert work_reports(driver.idles("one again")) == [("one again", True)]


def test_no_task_waits_when_the_job_is_over() -> None:
    """D3: one that failed leaves tasks behind."""
    driver = two_tasks()
    driver.idles("one")

    assert stopped(driver.state.job_is_over(0.0, is_whole=False)) == ["one", "two"]
    driver.state.batch_ends(0.0, could_ask=None)
    assert work_reports(driver.idles("two")) == [("two", False)]


def cancelled(driver: Driver) -> list[Action]:
    """The query is stopped: its job is cancelled, its batch given up, and its planner ends."""
    actions = driver.state.job_is_over(0.0, is_whole=False)
    driver.state.batch_ends(0.0, could_ask=None)
    return [*actions, *driver.state.batch_failed(), *driver.state.planner_leaves(1, 0.0)]


def test_the_plan_of_a_stopped_query_is_over_once_each_of_its_tasks_has_ended() -> None:
    """H11: Spark lets a cancelled task's Python worker go on for seconds."""
    driver = Driver()
    driver.begins("one", A, tasks=3)
    driver.begins("two", B, partition=1, tasks=3)
    driver.begins("three", C, partition=2, tasks=3)
    driver.is_done("three", C)

    actions = cancelled(driver)
    assert (stopped(actions), plans_over(actions)) == (["one", "two"], [])
    assert plans_over(driver.is_done("one", A)) == []
    assert plans_over(driver.state.task_failed("peer of another", "two", 1.0)) == []
    assert plans_over(driver.state.task_failed("peer of two", "two", 1.0)) == [1]


@pytest.mark.parametrize("first", ["the planner", "the driver"])
def test_the_plan_of_a_planner_that_ends_is_over_once_the_batch_is_settled_too(first: str) -> None:
    """H11: whoever has the queues next begins at what is committed."""
    driver = Driver()
    driver.begins("one", A)
    driver.is_done("one", A)
    state = driver.state

    left = state.planner_leaves(1, 0.0) if first == "the planner" else []
    assert plans_over([*left, *state.job_is_over(0.0, is_whole=True)]) == []
    state.batch_ends(0.0, could_ask=True)
    assert plans_over(state.batch_committed(1, 1)) == [1]
    assert first == "the planner" or plans_over(state.planner_leaves(1, 0.0)) == [1]


def before_the_second_batch() -> Driver:
    """A batch has ended, its offsets are still on their way to the brokers, and the next one is planned."""
    driver = Driver()
    driver.begins("one", A)
    driver.is_done("one", A)
    driver.state.batch_ends(0.0, could_ask=True)
    driver.state.plan_made(2, ALL)
    return driver


def in_the_second_batch() -> HubState:
    """The same, and the next batch has begun."""
    driver = before_the_second_batch()
    driver.state.batch_begins(8)
    driver.begins("two", A, batch_id=8)
    return driver.state


def test_a_late_report_of_the_batch_before_settles_nothing_of_the_one_under_way() -> None:
    """H11: a slow broker gets the offsets of a batch while the next one is delivered, and the query is stopped."""
    state = in_the_second_batch()

    assert plans_over(state.batch_committed(1, 1)) == [1]
    assert plans_over(state.planner_leaves(2, 0.0)) == []
    state.batch_ends(0.0, could_ask=True)
    assert plans_over(state.batch_committed(2, 2)) == [2]


def test_a_plan_that_never_ran_is_over_once_the_batch_before_it_is_settled() -> None:
    """H11: a slow broker gets the offsets of a batch while the next one is planned, and the query is stopped."""
    state = before_the_second_batch().state

    assert plans_over(state.planner_leaves(2, 0.0)) == []
    assert plans_over(state.batch_committed(1, 1)) == [1, 2]


def test_a_plan_whose_batch_has_begun_is_not_over_with_the_batch_before_it() -> None:
    """H11: also where its planner ends first."""
    state = in_the_second_batch()
    state.planner_leaves(2, 0.0)

    assert plans_over(state.batch_committed(1, 1)) == [1]
    state.batch_ends(0.0, could_ask=True)
    assert plans_over(state.batch_committed(2, 2)) == [2]


def test_no_task_of_a_planner_that_ends_begins_any_more() -> None:
    """H11: it may have been on its way to an executor."""
    driver = Driver()
    assert plans_over(driver.state.planner_leaves(1, 0.0)) == []

    [go] = sent(driver.begins("one", A), TaskMayBegin)
    assert go.is_stopped
    assert plans_over(cancelled(driver)) == []
    assert plans_over(driver.is_done("one")) == [1]


def test_a_task_that_is_lost_or_never_asked_leaves_the_planner_to_the_clock() -> None:
    """H11: its call may still run; only Spark ends it."""
    lost = Driver()
    lost.begins("one", A)
    lost.state.lost("peer of one", 0.0)
    assert plans_over(cancelled(lost)) == []

    unseen = Driver(must_ask=False)
    unseen.begins("one", A, tasks=2)
    unseen.is_done("one", A)
    assert plans_over(cancelled(unseen)) == []
    assert plans_over(cancelled(Driver(must_ask=False))) == []


def test_an_attempt_that_another_one_followed_holds_no_planner_up() -> None:
    """H11: Spark has seen it end."""
    driver = Driver()
    driver.begins("one", A)
    driver.state.lost("peer of one", 0.0)
    driver.begins("one again", A)

    assert plans_over(cancelled(driver)) == []
    assert plans_over(driver.is_done("one again", A)) == [1]


def test_when_the_planner_is_lost_the_query_is_looked_at_at_once() -> None:
    """H11: it may have been stopped, and its tasks go on for seconds."""
    driver = Driver()
    assert Look() in driver.state.lost("planner", 1.0)
    assert Look() not in driver.state.lost("peer of one", 1.0)


# --- commits while the job runs ---------------------------------------------------------------------------


def cut_part(part_id: str, queue: MessageQueue, start: int, stop: int) -> Part:
    ack = QueueAck(
        queue=queue, start=start, state=QueueState(stop, 1), consumed=1, failed=0, finished="GOING_ON"
    )
    return Part(id=part_id, acks=(ack,))


def sends(
    driver: Driver, task: str, sent_part: Part, *, cut: int | None, ends: tuple[MessageQueue, ...] = ()
) -> list[Action]:
    handed = PartHandedOver(task, sent_part, cut=cut, ends=frozenset(ends))
    return driver.state.handed_over(f"peer of {task}", handed, 1.0)


A1, A2, A3 = cut_part("a1", A, 0, 3), cut_part("a2", A, 3, 5), cut_part("a3", A, 5, 6)
B1 = cut_part("b1", B, 0, 7)


def cutting(*, may_offsets_wait: bool = False) -> Driver:
    """A batch of two tasks that are asked for cut 1."""
    driver = Driver(interval_s=0.2, may_offsets_wait=may_offsets_wait)
    driver.begins("one", A, tasks=2)
    driver.begins("two", B, partition=1, tasks=2)
    assert driver.state.task_is_dirty("peer of one", "one", 1.0) == []
    assert driver.state.next_tick_s == pytest.approx(1.005)
    assert driver.state.tick(1.01) == [
        Send("peer of one", CutWanted("one", 1)),
        Send("peer of two", CutWanted("two", 1)),
    ]
    return driver


def test_tasks_are_asked_for_a_cut_and_their_parts_are_committed_as_one_group() -> None:
    driver = cutting()

    assert sends(driver, "one", A1, cut=1) == [Send("peer of one", PartTaken("one", "a1"))]
    assert sends(driver, "two", B1, cut=1) == [
        Send("peer of two", PartTaken("two", "b1")),
        Commit(Group((A1, B1)), frozenset()),
    ]
    assert driver.is_committed() == [
        Send("peer of one", PartsCommitted("one", frozenset({"a1"}))),
        Send("peer of two", PartsCommitted("two", frozenset({"b1"}))),
    ]


def test_a_task_without_progress_is_not_waited_for() -> None:
    driver = cutting()
    sends(driver, "one", A1, cut=1)

    assert driver.state.nothing_to_cut("peer of two", "two", 1, 1.0) == [Commit(Group((A1,)), frozenset())]


def test_a_queue_is_given_up_with_its_last_part_and_free_when_that_is_committed() -> None:
    """B5: its task goes on with its other queues."""
    driver = cutting()
    sends(driver, "one", A1, cut=1)
    driver.state.nothing_to_cut("peer of two", "two", 1, 1.0)
    driver.must_leave(A)

    assert committed(sends(driver, "one", A2, cut=None, ends=(A,))) == []
    assert driver.is_committed()[1:] == [Commit(Group((A2,)), frozenset({A}))]
    assert freed(driver.is_committed()) == {A}


def left_by(actions: Iterable[Action]) -> list[frozenset[MessageQueue]]:
    return [each.left for each in actions if isinstance(each, Commit)]


def test_commits_name_the_queues_that_other_members_may_have_by_then() -> None:
    """B5: with their last results, without any, and where nobody has begun them."""
    driver = cutting()
    sends(driver, "one", A1, cut=1)
    assert left_by(driver.state.nothing_to_cut("peer of two", "two", 1, 1.0)) == [frozenset()]
    assert freed(driver.must_leave(A, B, C)) == {C}
    assert freed(driver.state.released("peer of two", "two", frozenset({B}), 1.0)) == {B}
    sends(driver, "one", A2, cut=None, ends=(A,))

    assert left_by(driver.is_committed()) == [{B, C}]
    assert freed(driver.is_committed()) == {A}
    driver.begins("three", D, partition=2, tasks=3)
    assert left_by(sends(driver, "three", cut_part("d1", D, 0, 1), cut=None)) == [{A, B, C}]


def test_commits_do_not_name_a_queue_that_ends_early_and_stays() -> None:
    """B5: such as one whose results are too large, whose lag grows until the next batch has it."""
    driver = cutting()
    assert left_by(sends(driver, "two", B1, cut=1, ends=(B,))) == [frozenset()]
    sends(driver, "one", A1, cut=1)
    after = driver.is_committed()

    assert (freed(after), left_by(after)) == ({B}, [frozenset()])


def test_commits_name_the_queues_that_were_claimed_or_reset() -> None:
    """C5: their positions are those of another owner, or from before the reset."""
    driver = cutting()
    driver.state.moved({A: 2, B: 1}, 1, 1.0)
    sends(driver, "two", B1, cut=1)

    assert left_by(driver.state.nothing_to_cut("peer of one", "one", 1, 1.0)) == [{A}]


def test_a_queue_whose_offset_waits_is_stored_and_shown_before_it_is_free() -> None:
    """B5: its next owner may be a Java member, which goes on at its broker's offset."""
    driver = cutting(may_offsets_wait=True)
    sends(driver, "one", A1, cut=1)
    assert sends(driver, "two", B1, cut=1)[1:] == [Commit(Group((A1, B1)))]
    driver.state.committed(frozenset(), 1.0)
    assert sends(driver, "one", A2, cut=None) == [
        Send("peer of one", PartTaken("one", "a2")),
        Commit(Group((A2,)), stores_offsets=False),
    ]
    driver.must_leave(A)
    assert driver.state.released("peer of one", "one", frozenset({A}), 1.0) == []

    assert driver.is_committed()[1:] == [Commit(None, frozenset({A}))]
    assert freed(driver.is_committed()) == {A}


def test_a_queue_that_is_given_up_without_further_progress_is_free_once_its_parts_are_committed() -> None:
    """B5, H1"""
    driver = cutting()
    sends(driver, "one", A1, cut=1)
    driver.state.nothing_to_cut("peer of two", "two", 1, 1.0)
    driver.must_leave(A)

    assert freed(driver.state.released("peer of one", "one", frozenset({A}), 1.0)) == set()
    assert freed(driver.is_committed()) == {A}


def test_another_attempt_leaves_out_a_queue_of_which_a_part_has_arrived() -> None:
    """D1, E6: its next range begins where that part ends; the other queues are consumed from their start."""
    driver = Driver(interval_s=0.2)
    driver.begins("one", A, B)
    sends(driver, "one", A1, cut=None)
    driver.state.lost("peer of one", 2.0)
    driver.is_committed()

    again = driver.begins("again", A, B)
    assert (left_out(again), freed(again)) == ({A}, {A})
    assert committed(sends(driver, "again", B1, cut=None)) == [B1]


def test_nothing_is_taken_of_an_attempt_that_another_one_follows() -> None:
    """D1, E6: it is stopped, if it can be."""
    driver = Driver(interval_s=0.2)
    driver.begins("one", A)

    assert stopped(driver.begins("again", A)) == ["one"]
    assert sends(driver, "one", A1, cut=None) == []


def test_an_attempt_that_comes_late_is_stopped() -> None:
    """E6: Spark has started another one since."""
    driver = Driver()
    driver.begins("one", A)
    driver.begins("again", A)
    late = TaskBegins(task="late", batch_id=7, partition=0, attempt=0, places={A: Place(1, 0)}, tasks=1)

    [go] = sent(driver.state.task_begins("peer of late", late, 0.0), TaskMayBegin)
    assert go.is_stopped
    assert driver.hands_over("late", A) == []
    assert len(driver.hands_over("again", A)) == 2


def test_a_refused_queue_is_dropped_by_its_task_and_nothing_more_of_it_is_committed() -> None:
    """C5"""
    driver = cutting()
    sends(driver, "one", A1, cut=1)
    driver.state.nothing_to_cut("peer of two", "two", 1, 1.0)

    refused = driver.is_committed(A)
    assert sent(refused, GiveUpQueues) == [GiveUpQueues("one", frozenset({A}), is_dropped=True)]
    assert committed(sends(driver, "one", A2, cut=None)) == []
    assert driver.state.batch_ends(2.0, could_ask=True) == [Flushed(None)]
    rest = driver.state.rest([A3])
    assert rest is not None
    assert rest.without == {A}


def test_a_failed_commit_is_tried_again_before_the_batch_ends() -> None:
    """H1"""
    driver = Driver()
    driver.begins("one", A)
    driver.hands_over("one", A)
    assert driver.state.commit_failed(AWAY, 10.0) == []

    assert driver.state.batch_ends(10.1, could_ask=True) == []
    assert committed(driver.state.tick(10.5)) == [part("one", A)]
    assert Flushed(None) in driver.is_committed()


def test_a_commit_that_fails_for_a_minute_ends_tasks_and_batch() -> None:
    """H1: nothing may be committed after it."""
    driver = Driver(interval_s=0.2)
    driver.begins("one", A)
    sends(driver, "one", A1, cut=None)
    assert driver.state.commit_failed(AWAY, 10.0) == []
    driver.state.tick(10.5)

    assert stopped(driver.state.commit_failed(AWAY, 70.0)) == ["one"]
    sends(driver, "one", A2, cut=None, ends=(A,))
    assert driver.state.batch_ends(70.1, could_ask=True) == [Flushed(AWAY)]


def test_a_commit_that_fails_after_its_job_is_not_tried_again() -> None:
    """B7: the query ends with the job's error, or by its user."""
    driver = Driver()
    driver.begins("one", A)
    driver.hands_over("one", A)

    assert driver.state.batch_ends(10.0, could_ask=None, is_whole=False) == []
    assert driver.state.commit_failed(AWAY, 10.1) == [Flushed(AWAY)]


def test_what_comes_with_the_job_is_committed_last_and_follows_what_was_handed_over() -> None:
    """H1: a task that has lost its connection hands nothing over any more."""
    driver = Driver(interval_s=0.2)
    driver.begins("one", A)
    sends(driver, "one", A1, cut=None)
    driver.is_committed()
    driver.state.batch_ends(2.0, could_ask=True)

    assert driver.state.rest([A1, A2, A3]) == Group((A2, A3))


def test_what_comes_with_the_job_and_does_not_follow_is_left_out() -> None:
    """H1"""
    driver = Driver(interval_s=0.2)
    driver.begins("one", A)
    sends(driver, "one", A1, cut=None)
    driver.is_committed()
    driver.state.batch_ends(2.0, could_ask=True)

    assert driver.state.rest([A3, B1]) == Group((A3, B1), frozenset({A}))
