"""Reports of a member on queues that the plan under way could not have."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_rocketmq.group.join import join_group
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from tests.group.test_group_member import options
from tests.helpers.fake_clock import FakeClock

QUEUES = [MessageQueue("orders", "broker-a", number) for number in range(5)]


class Group:
    """A member whose thread does not run, as the watcher of its own plans."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        given = options(messageModel="BROADCASTING", instanceName="west")
        self.member = join_group(given, "me", MemoryOffsetStore("gained", clock=clock), clock)
        self.member.watched_by(self)
        self.reports: list[tuple[int, str]] = []
        self.leaving: list[tuple[int, set[MessageQueue]]] = []
        self.made = 0

    def plan_made(self, plan: int, queues: Collection[MessageQueue]) -> None:
        self.made = plan

    def must_leave(self, plan: int, queues: Collection[MessageQueue]) -> None:
        assert plan == self.made, "the driver does not know the plan"
        self.leaving.append((plan, set(queues)))

    def replan(self, plan: int, reason: str) -> None:
        assert plan == self.made, "the driver does not know the plan"
        self.reports.append((plan, reason))

    def leaves(self, plan: int) -> None:
        pass

    def calls_end_s(self) -> float:
        return 0.0

    def has(self, count: int) -> None:
        """Give the member this many queues."""
        machine, now_s = self.member._machine, self.clock.monotonic_s()
        machine.route_changed(QUEUES[:count], now_s)
        machine.due(now_s)

    def finds_master_at(self, address: str) -> None:
        """Let the member look at routes in which the broker's master has this address."""
        routes: Any = SimpleNamespace(masters={"broker-a": address})
        self.member._routes = routes

    def plan(self, *left_out: MessageQueue) -> None:
        grants = dict(self.member.begin_plan())
        for queue in left_out:
            del grants[queue]
        assert self.member.planned(grants) == grants.keys()

    def look(self) -> list[tuple[int, str]]:
        """Let the thread's round pass twice; return the plans that it has reported since the last look."""
        self.member._notify_watcher()
        self.member._notify_watcher()
        found, self.reports = self.reports, []
        return found


@pytest.fixture
def group(clock: FakeClock) -> Iterator[Group]:
    made = Group(clock)
    yield made
    made.member.stop(0.0)


def test_a_broker_with_another_address_is_reported_once_for_each_plan(group: Group) -> None:
    """I4: a broker that restarts elsewhere; tasks in real time go on at the address of their plan."""
    group.has(2)
    group.finds_master_at("10.0.0.1:10911")
    group.plan()
    assert group.look() == []
    group.finds_master_at("10.0.0.2:10911")
    assert group.look() == [(1, "broker broker-a has another address")]
    group.finds_master_at("10.0.0.3:10911")
    assert group.look() == []
    group.plan()
    assert group.look() == []


def test_a_reset_that_a_task_has_found_is_for_the_next_plan_and_reported_once(group: Group) -> None:
    """F5: one report ends the batch; the next plan follows the reset."""
    group.has(2)
    group.plan()
    group.member.reset_found(QUEUES[1], 3)
    assert group.look() == [(1, f"an operator has reset {QUEUES[1]}")]
    assert group.look() == []

    group.member.begin_plan()
    assert group.member.take_resets() == {QUEUES[1]: 3}
    # Too late for the plan that is being made.
    group.member.reset_found(QUEUES[0], 4)
    group.plan()
    assert group.look() == [(3, f"an operator has reset {QUEUES[0]}")]
    assert group.member.take_resets() == {QUEUES[0]: 4}
    assert group.member.take_resets() == {}


def test_nothing_is_reported_before_there_is_a_plan(group: Group) -> None:
    """B1: the first plan has all there is."""
    group.has(2)

    assert group.look() == []


def test_a_queue_more_is_reported_once_for_each_plan(group: Group) -> None:
    """B1: one report ends the batch; the next plan has the queue."""
    group.has(2)
    group.plan()
    assert group.look() == []
    group.has(3)
    assert group.look() == [(1, f"this member got 1 queue, such as {QUEUES[2]}")]
    group.has(4)
    assert group.look() == []
    group.plan()
    assert group.look() == []
    group.has(5)
    assert group.look() == [(2, f"this member got 1 queue, such as {QUEUES[4]}")]


def test_changes_while_a_plan_is_made_are_reported_when_the_driver_has_it(group: Group) -> None:
    """B1, D7: before that, it drops what it hears of this plan."""
    group.has(2)
    group.plan()
    grants = group.member.begin_plan()
    group.has(3)
    assert group.look() == []
    assert group.member.planned(grants) == grants.keys()
    assert [plan for plan, _ in group.look()] == [2]

    grants = group.member.begin_plan()
    group.has(1)
    assert group.look() == []
    assert not group.leaving
    group.member.planned(grants)
    group.look()
    assert group.leaving == [(3, set(QUEUES[1:3]))]


def test_a_queue_that_a_plan_has_left_out_or_lost_is_not_reported(group: Group) -> None:
    """B1: it would be left out again, for as long as its reason lasts."""
    group.has(3)
    group.plan(QUEUES[0])
    assert group.look() == []
    group.has(1)
    assert group.look() == []


def test_a_queue_that_comes_back_under_another_grant_is_reported(group: Group) -> None:
    """B6: it must be claimed before anybody may run it."""
    group.has(2)
    group.plan()
    group.member.reclaim(QUEUES[1])

    assert group.look() == [(1, f"this member got 1 queue, such as {QUEUES[1]}")]


def test_a_queue_that_comes_back_after_tasks_were_told_to_give_it_up_is_reported(group: Group) -> None:
    """B5, I4: another member has come and gone during a listener call; tasks cannot take the queue back."""
    group.has(2)
    group.plan()
    group.has(1)
    assert group.look() == []
    assert group.leaving == [(1, {QUEUES[1]})]
    group.has(2)
    assert group.look() == [(1, f"this member got 1 queue, such as {QUEUES[1]}")]
    group.member.free(1, {QUEUES[1]})
    assert group.look() == []

    group.plan()
    assert group.look() == []


@pytest.mark.parametrize("is_free", [False, True], ids=["with the batch", "before the batch is over"])
def test_a_queue_that_comes_back_after_tasks_were_to_give_it_up_is_claimed_again(
    group: Group, is_free: bool
) -> None:
    """B5, D4: they may have given it up without a result, as if the listener had not committed its range."""
    group.has(2)
    group.plan()
    before = dict(group.member.begin_plan())
    group.member.planned(before)
    group.has(1)
    group.look()
    group.has(2)
    group.look()
    if is_free:
        group.member.free(2, {QUEUES[1]})

    grants = dict(group.member.begin_plan())
    assert grants[QUEUES[0]] == before[QUEUES[0]]
    assert grants[QUEUES[1]] > before[QUEUES[1]]
    assert group.member.planned(grants) == set(QUEUES[:2])
    group.look()
    assert group.member.begin_plan() == grants


def test_a_queue_that_comes_back_before_tasks_were_told_of_it_stays_with_them(group: Group) -> None:
    """B5"""
    group.has(2)
    group.plan()
    group.has(1)
    group.has(2)

    assert group.look() == []
    assert not group.leaving


def test_a_member_that_stops_reports_nothing(group: Group) -> None:
    """B7"""
    group.has(2)
    group.plan()
    group.has(3)
    group.member.stop(0.0)

    assert group.look() == []
