"""What a member of a group does, and when: RocketMQ's rules one by one."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from pyspark_rocketmq.consume.allocation import Averagely
from pyspark_rocketmq.consume.membership import (
    TRANSITIONS,
    Allocate,
    AskMembers,
    GroupAction,
    Heartbeat,
    Lock,
    Membership,
    OwnershipEffect,
    OwnershipEvent,
    Phase,
    Unlock,
    Unregister,
    after,
)
from pyspark_rocketmq.model import MessageQueue
from tests.consume.group_model import average

QUEUES = [MessageQueue("T", broker, number) for broker in ("a", "b") for number in range(2)]
ME, OTHER = "me", "other"


class Driver:
    """A member whose calls all succeed, unless a test answers itself."""

    def __init__(self, *, allocate: Allocate = average, **kwargs: Any) -> None:
        self.machine = Membership(ME, allocate, **kwargs)
        self.now_s = 100.0
        self.members = [ME]
        self.refused: set[MessageQueue] = set()
        self.done: list[GroupAction] = []
        self.machine.route_changed(QUEUES, self.now_s)

    def work(self) -> list[GroupAction]:
        """Do what is due until nothing is; what was done now."""
        now: list[GroupAction] = []
        for _ in range(10):
            actions = self.machine.due(self.now_s)
            if not actions:
                self.done += now
                return now
            now += actions
            for action in actions:
                self.answer(action)
        raise AssertionError(f"no end of actions: {now}")

    def answer(self, action: GroupAction) -> None:
        if isinstance(action, AskMembers):
            self.machine.members_listed(self.members, self.now_s)
        elif isinstance(action, Lock):
            self.machine.locks_answered(action.queues, action.queues - self.refused, self.now_s)

    def after(self, seconds: float) -> list[GroupAction]:
        self.now_s += seconds
        return self.work()

    @property
    def plannable(self) -> set[MessageQueue]:
        return set(self.machine.plannable(self.now_s))


class Shares:
    """Averagely, but for topics where that fails."""

    def __init__(self, fails_at: Collection[str] = ()) -> None:
        self.fails_at = fails_at

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Collection[MessageQueue] | None:
        return None if queues[0].topic in self.fails_at else average(client_id, queues, members)


@pytest.fixture
def driver() -> Driver:
    return Driver()


def kinds(actions: list[GroupAction]) -> list[type[GroupAction]]:
    return [type(action) for action in actions]


def test_a_start_is_heartbeat_then_members_then_one_lock_call_per_broker(driver: Driver) -> None:
    """A3, B1, C1, C2: in Java's order; the queues may be planned after that and not before."""
    assert driver.plannable == set()

    done = driver.work()

    assert kinds(done) == [Heartbeat, AskMembers, Lock, Lock]
    assert {action.broker_name: len(action.queues) for action in done if isinstance(action, Lock)} == {
        "a": 2,
        "b": 2,
    }
    assert driver.plannable == set(QUEUES)


def test_heartbeat_rebalance_and_renewal_come_at_their_intervals(driver: Driver) -> None:
    """A3: 30 s; B1: 20 s; C2: 20 s, one call per broker for all queues."""
    driver.work()
    seen: dict[type[GroupAction], list[int]] = {Heartbeat: [], AskMembers: [], Lock: []}
    for second in range(1, 61):
        for action in driver.after(1.0):
            seen[type(action)].append(second)

    assert seen[Heartbeat] == [30, 60]
    assert seen[AskMembers] == [20, 40, 60]
    assert seen[Lock] == [20, 20, 40, 40, 60, 60]


def test_nothing_is_due_before_the_moment_that_is_named(driver: Driver) -> None:
    """B1: whoever drives the machine may sleep until then."""
    driver.work()
    for _ in range(20):
        next_s = driver.machine.next_due_s()
        assert next_s > driver.now_s
        driver.now_s = next_s - 0.001
        assert driver.work() == []
        driver.now_s = next_s
        assert driver.work()


def test_without_a_route_nothing_is_asked_of_anybody() -> None:
    machine = Membership(ME, average)

    assert machine.due(5.0) == []
    assert machine.next_due_s() == float("inf")


def test_a_notification_is_followed_by_a_look_at_once_but_not_twice_a_second(driver: Driver) -> None:
    """B1: NOTIFY_CONSUMER_IDS_CHANGED; ``RebalanceService.minInterval`` is 1 s."""
    driver.work()
    driver.now_s += 5
    driver.machine.notified(driver.now_s)
    assert kinds(driver.work()) == [AskMembers]

    driver.machine.notified(driver.now_s)
    assert driver.work() == []
    assert kinds(driver.after(1.0)) == [AskMembers]


class TestMembersComeAndGo:
    def test_a_new_member_takes_its_share_at_once(self, driver: Driver) -> None:
        """B1, B5: idle queues are given free in one call per broker."""
        driver.work()
        driver.members = [ME, OTHER]

        done = driver.after(20.0)

        theirs = {QUEUES[1], QUEUES[3]}
        assert driver.plannable == set(QUEUES) - theirs
        assert {queue for action in done if isinstance(action, Unlock) for queue in action.queues} == theirs

    def test_a_queue_in_a_batch_keeps_its_lock_until_the_batch_is_over(self, driver: Driver) -> None:
        """B5: not planned again, renewed, then unlocked."""
        driver.work()
        terms = driver.machine.begin_plan(driver.now_s)
        assert driver.machine.planned(terms, driver.now_s) == set(QUEUES)
        driver.members = [ME, OTHER]

        done = driver.after(20.0)
        assert not [action for action in done if isinstance(action, Unlock)]
        assert driver.plannable == {QUEUES[0], QUEUES[2]}
        assert driver.machine.phase(QUEUES[1]) is Phase.LEAVING
        renewed = {
            queue for action in driver.after(20.0) if isinstance(action, Lock) for queue in action.queues
        }
        assert renewed == set(QUEUES)

        driver.machine.batch_over(driver.now_s)
        done = driver.work()
        assert {queue for action in done if isinstance(action, Unlock) for queue in action.queues} == {
            QUEUES[1],
            QUEUES[3],
        }
        assert driver.machine.phase(QUEUES[1]) is Phase.ABSENT

    def test_a_queue_the_plan_leaves_out_is_free_to_go(self, driver: Driver) -> None:
        """B5: nothing to read in it, so nothing to wait for."""
        driver.work()
        terms = driver.machine.begin_plan(driver.now_s)
        driver.members = [ME, OTHER]
        assert not [action for action in driver.after(20.0) if isinstance(action, Unlock)]

        driver.machine.planned({QUEUES[0]: terms[QUEUES[0]]}, driver.now_s)

        assert [action for action in driver.work() if isinstance(action, Unlock)]

    def test_a_queue_that_comes_back_before_it_is_gone_goes_on_under_its_term(self, driver: Driver) -> None:
        """B5: no second claim, so the batch under way is not fenced off."""
        driver.work()
        terms = driver.machine.begin_plan(driver.now_s)
        driver.machine.planned(terms, driver.now_s)
        driver.members = [ME, OTHER]
        driver.after(20.0)
        driver.members = [ME]
        driver.after(20.0)
        driver.after(1.0)

        assert driver.machine.plannable(driver.now_s) == terms

    def test_a_member_missing_from_one_list_still_counts(self, driver: Driver) -> None:
        """B4: a momentarily short list takes nobody's queues; the second look, a second later, decides."""
        driver.members = [ME, OTHER]
        driver.work()
        mine = driver.plannable
        driver.members = [ME]
        driver.after(20.0)
        assert driver.plannable == mine

        driver.members = [ME, OTHER]
        driver.after(1.0)
        assert driver.plannable == mine

        driver.members = [ME]
        driver.after(20.0)
        driver.after(1.0)
        assert driver.plannable == set(QUEUES)

    def test_a_member_missing_from_the_list_sends_a_heartbeat_and_rechecks(self, driver: Driver) -> None:
        """B4: only then every queue is given up."""
        driver.work()
        driver.members = [OTHER]
        assert Heartbeat in kinds(driver.after(20.0))
        assert driver.plannable == {QUEUES[0], QUEUES[2]}

        driver.after(1.0)
        assert driver.plannable == set()

    @pytest.mark.parametrize("answer", ["none", "an empty list"])
    def test_a_list_that_cannot_be_had_changes_nothing(self, driver: Driver, answer: str) -> None:
        """B4."""
        driver.work()
        driver.now_s += 20
        asked = [action for action in driver.machine.due(driver.now_s) if isinstance(action, AskMembers)]
        assert asked
        if answer == "none":
            driver.machine.members_unknown(driver.now_s)
        else:
            driver.machine.members_listed([], driver.now_s)

        assert driver.plannable == set(QUEUES)
        assert AskMembers in kinds(driver.after(1.0))

    def test_a_queue_or_broker_that_is_new_in_the_route_is_taken_at_once(self, driver: Driver) -> None:
        """A2, A3: a new broker gets a heartbeat before it is asked for locks."""
        driver.work()
        new = MessageQueue("T", "c", 0)
        driver.machine.route_changed([*QUEUES, new], driver.now_s)

        assert kinds(driver.work()) == [Heartbeat, Lock]
        assert new in driver.plannable

    def test_a_queue_that_leaves_the_route_is_given_up(self, driver: Driver) -> None:
        """B1: as ``updateTopicSubscribeInfo`` has it; every member computes with the route."""
        driver.work()
        driver.machine.route_changed(QUEUES[:2], driver.now_s)

        assert driver.plannable == set(QUEUES[:2])


class TestLocks:
    def test_a_refused_queue_is_not_planned_and_tried_again_soon(self, driver: Driver) -> None:
        """C1: between 500 ms and 20 s; the others do not wait for it."""
        driver.refused = {QUEUES[1]}
        driver.work()
        assert driver.plannable == set(QUEUES) - {QUEUES[1]}
        assert not driver.machine.is_settled

        driver.refused = set()
        assert driver.after(1.0) == [Lock("a", frozenset({QUEUES[1]}))]
        assert driver.plannable == set(QUEUES)
        assert driver.machine.is_settled

    def test_an_answer_without_the_queue_means_lost(self, driver: Driver) -> None:
        """C2, C4: at once, with a new term when it comes back."""
        driver.work()
        terms = driver.machine.plannable(driver.now_s)
        driver.refused = {QUEUES[1]}
        driver.after(20.0)
        assert driver.plannable == set(QUEUES) - {QUEUES[1]}

        driver.refused = set()
        driver.after(1.0)
        again = driver.machine.plannable(driver.now_s)
        assert again[QUEUES[1]] > terms[QUEUES[1]]
        assert {queue: term for queue, term in again.items() if queue != QUEUES[1]} == {
            queue: term for queue, term in terms.items() if queue != QUEUES[1]
        }

    def test_a_failed_call_keeps_the_lock_until_30_s_have_passed(self, driver: Driver) -> None:
        """C2: and nothing is planned after that, whether or not anybody looked at the clock."""
        driver.work()
        began_s = driver.now_s
        for second in range(19, 31):
            driver.now_s = began_s + second
            for action in driver.machine.due(driver.now_s):
                if isinstance(action, Lock):
                    driver.machine.locks_unknown(action.queues, driver.now_s)
                else:
                    driver.answer(action)
            assert driver.plannable == set(QUEUES)

        driver.now_s = began_s + 30.1
        assert driver.plannable == set()

    def test_a_lock_counts_from_the_moment_it_was_asked_for(self, driver: Driver) -> None:
        """C2: the broker's minute begins later, so here it ends earlier."""
        driver.machine.due(driver.now_s)
        driver.machine.members_listed([ME], driver.now_s)
        asked_s = driver.now_s
        locks = [action for action in driver.machine.due(driver.now_s) if isinstance(action, Lock)]
        driver.now_s += 9
        for action in locks:
            driver.machine.locks_answered(action.queues, action.queues, driver.now_s)

        driver.now_s = asked_s + 30
        assert driver.plannable == set(QUEUES)
        driver.now_s = asked_s + 31
        assert driver.plannable == set()

    def test_a_plan_that_took_too_long_may_not_be_run(self, driver: Driver) -> None:
        """C1, C5: a process that slept in the middle of planning finds its terms over."""
        driver.work()
        terms = driver.machine.begin_plan(driver.now_s)
        driver.after(61.0)

        assert driver.machine.planned(terms, driver.now_s) == frozenset()

    def test_a_queue_that_another_claimed_waits_for_the_next_rebalance(self, driver: Driver) -> None:
        """C5, H5: two that claim a queue from each other at every trigger would get nothing done."""
        driver.work()
        driver.machine.claimed_by_other(QUEUES[0], driver.now_s)
        assert driver.plannable == set(QUEUES[1:])

        assert QUEUES[0] not in {
            queue for action in driver.after(19.0) if isinstance(action, Lock) for queue in action.queues
        }
        driver.after(1.0)
        assert QUEUES[0] in driver.plannable

    def test_a_held_queue_can_be_claimed_again(self, driver: Driver) -> None:
        """B6."""
        driver.work()
        before = driver.machine.plannable(driver.now_s)
        driver.machine.reclaim(QUEUES[0])

        assert driver.machine.plannable(driver.now_s)[QUEUES[0]] > before[QUEUES[0]]


def plan_of(driver: Driver, queues: Sequence[MessageQueue]) -> None:
    """Have plan 1 hold some of the member's queues."""
    driver.work()
    grants = driver.machine.begin_plan(driver.now_s)
    assert driver.machine.planned({queue: grants[queue] for queue in queues}, driver.now_s) == set(queues)


def leave_unanswered(driver: Driver) -> None:
    """Have the member ask for the locks of its share, and get no answer."""
    driver.machine.due(driver.now_s)
    driver.machine.members_listed([ME], driver.now_s)
    for action in driver.machine.due(driver.now_s):
        assert isinstance(action, Lock)
        driver.machine.locks_unknown(action.queues, driver.now_s)


class TestUnknownLocks:
    """A broker keeps for 60 s what this member does not hold."""

    def test_a_queue_that_another_member_is_to_have_is_unlocked(self, driver: Driver) -> None:
        """B7, C2: its lock was asked for, and the answer came too late."""
        leave_unanswered(driver)
        driver.machine.members_listed([ME, OTHER], driver.now_s)

        unlocks = [action for action in driver.machine.due(driver.now_s) if isinstance(action, Unlock)]
        lost = frozenset(QUEUES) - driver.machine._phases.keys()
        assert len(lost) == 2
        assert {queue for unlock in unlocks for queue in unlock.queues} == lost

    def test_a_queue_that_is_gone_before_its_lock_call_fails_is_unlocked(self, driver: Driver) -> None:
        """B7, C2"""
        driver.machine.due(driver.now_s)
        driver.machine.members_listed([ME], driver.now_s)
        locks = driver.machine.due(driver.now_s)
        driver.machine.route_changed(QUEUES[:2], driver.now_s)
        for action in locks:
            assert isinstance(action, Lock)
            driver.machine.locks_unknown(action.queues, driver.now_s)

        assert Unlock("b", frozenset(QUEUES[2:])) in driver.machine.due(driver.now_s)

    def test_a_refused_queue_is_not_unlocked(self, driver: Driver) -> None:
        """C1: another member has it, as its broker says by now."""
        leave_unanswered(driver)
        driver.refused = set(QUEUES)
        driver.after(1.0)
        driver.machine.members_listed([OTHER], driver.now_s)
        driver.machine.members_listed([OTHER], driver.now_s)

        assert driver.plannable == set()
        assert Unlock not in kinds(driver.machine.due(driver.now_s))

    def test_a_queue_that_another_has_claimed_is_unlocked_when_it_is_gone(self, driver: Driver) -> None:
        """B7, C5: the broker may still have this member's lock."""
        driver.work()
        assert driver.plannable == set(QUEUES)
        driver.machine.claimed_by_other(QUEUES[2], driver.now_s)
        driver.machine.route_changed(QUEUES[:2], driver.now_s)

        assert any(
            isinstance(action, Unlock) and QUEUES[2] in action.queues
            for action in driver.machine.due(driver.now_s)
        )

    def test_a_queue_whose_lock_has_expired_in_a_batch_is_unlocked_after_it(self, driver: Driver) -> None:
        """B7, C2: its task may deliver until it is given up."""
        plan_of(driver, QUEUES)
        driver.now_s += 31.0
        driver.machine.due(driver.now_s)
        for queue in QUEUES:
            driver.machine.locks_unknown([queue], driver.now_s)
        driver.machine.route_changed(QUEUES[:2], driver.now_s)
        assert Unlock not in kinds(driver.machine.due(driver.now_s))

        driver.machine.free(1, QUEUES[2:], driver.now_s)
        assert Unlock("b", frozenset(QUEUES[2:])) in driver.machine.due(driver.now_s)


class TestStop:
    def test_the_last_duties_are_to_unlock_and_to_unregister(self, driver: Driver) -> None:
        """B7: once, and nothing may be planned any more."""
        driver.work()
        driver.machine.stop()

        assert driver.machine.due(driver.now_s) == [
            Unlock("a", frozenset(QUEUES[:2])),
            Unlock("b", frozenset(QUEUES[2:])),
            Unregister(),
        ]
        assert driver.plannable == set()
        assert driver.machine.due(driver.now_s) == []

    def test_locks_asked_for_and_not_answered_are_given_back_too(self, driver: Driver) -> None:
        """B7: the broker may have granted them."""
        driver.machine.due(driver.now_s)
        driver.machine.members_listed([ME], driver.now_s)
        driver.machine.due(driver.now_s)
        driver.machine.stop()

        assert kinds(driver.machine.due(driver.now_s)) == [Unlock, Unlock, Unregister]

    def test_locks_of_which_no_answer_came_are_given_back_too(self, driver: Driver) -> None:
        """B7, C2: a broker that is slow has granted them, perhaps."""
        leave_unanswered(driver)
        driver.machine.stop()

        assert kinds(driver.machine.due(driver.now_s)) == [Unlock, Unlock, Unregister]

    def test_a_plan_that_is_over_immediately_is_left_before_its_locks_are_given_back(
        self, driver: Driver
    ) -> None:
        """H11, B7: the member looks for a restart under its name before it unlocks, and would find itself."""
        plan_of(driver, QUEUES)
        driver.machine.stop(driver.now_s, calls_end_s=5.0)
        driver.machine.free(1, None, driver.now_s)

        assert kinds(driver.machine.due(driver.now_s)) == [Unregister, Unlock, Unlock]

    def test_queues_of_the_plan_under_way_stay_locked_until_it_is_over(self, driver: Driver) -> None:
        """H11, B7, H4: the others hear of it at once and wait for the locks, so that a drain which begins
        now does not end without these queues.
        """
        plan_of(driver, QUEUES[:3])
        driver.machine.stop(driver.now_s, calls_end_s=5.0)

        assert driver.machine.due(driver.now_s) == [Unregister(), Unlock("b", frozenset(QUEUES[3:]))]
        assert driver.plannable == set()
        driver.machine.free(1, {QUEUES[0]}, driver.now_s)
        assert driver.machine.due(driver.now_s + 4.9) == [Unlock("a", frozenset(QUEUES[:1]))]
        assert not driver.machine.has_left
        driver.machine.free(1, None, driver.now_s)
        assert driver.machine.due(driver.now_s + 4.9) == [
            Unlock("a", frozenset(QUEUES[1:2])),
            Unlock("b", frozenset(QUEUES[2:3])),
        ]
        assert driver.machine.has_left

    def test_when_spark_has_ended_the_workers_a_plan_is_over_for_good(self, driver: Driver) -> None:
        """H11, B7: the driver may be dead, or a call may last for hours."""
        plan_of(driver, QUEUES)
        left_at_s = driver.now_s + 5.0
        driver.machine.stop(driver.now_s, calls_end_s=5.0)
        driver.machine.stop(driver.now_s + 3.0, calls_end_s=5.0)

        assert driver.machine.next_due_s() == left_at_s
        assert driver.machine.due(left_at_s - 0.1) == [Unregister()]
        assert kinds(driver.machine.due(left_at_s)) == [Unlock, Unlock]

    def test_locks_are_renewed_for_as_long_as_the_last_calls_may_last(self, driver: Driver) -> None:
        """H11, C2: with a long spark.python.task.killTimeout; the broker lets a lock go after 60 s."""
        plan_of(driver, QUEUES)
        driver.machine.free(1, QUEUES[:2], driver.now_s)
        driver.machine.stop(driver.now_s, calls_end_s=100.0)
        assert kinds(driver.work()) == [Unregister, Unlock]

        renewed = []
        for second in range(1, 100):
            for action in driver.after(1.0):
                assert action == Lock("b", frozenset(QUEUES[2:]))
                renewed.append(second)

        assert renewed == [20, 40, 60, 80]
        assert driver.after(1.0) == [Unlock("b", frozenset(QUEUES[2:]))]

    def test_a_member_without_locks_is_listed_for_as_long_as_its_last_calls_may_last(self) -> None:
        """H11, E1: brokers forget one that sends no heartbeat for two minutes."""
        driver = Driver(needs_locks=False)
        driver.work()
        plan_of(driver, QUEUES)
        driver.machine.stop(driver.now_s, calls_end_s=100.0)

        sent = [second for second in range(1, 100) for action in driver.after(1.0) if action == Heartbeat()]

        assert sent == [30, 60, 90]
        assert driver.after(1.0) == [Unregister()]

    def test_a_member_without_locks_unregisters_after_its_last_call(self) -> None:
        """H11, E1: others take its queues as soon as it is gone from the list."""
        driver = Driver(needs_locks=False)
        plan_of(driver, QUEUES[:1])
        driver.machine.stop(driver.now_s, calls_end_s=5.0)

        assert driver.machine.due(driver.now_s) == []
        driver.machine.free(1, QUEUES[:1], driver.now_s)
        assert driver.machine.due(driver.now_s) == [Unregister()]

    def test_a_broadcasting_member_waits_for_no_call(self) -> None:
        """B3: nobody else takes its queues."""
        driver = Driver(needs_locks=False, is_broadcast=True)
        plan_of(driver, QUEUES)
        driver.machine.stop(driver.now_s, calls_end_s=5.0)

        assert driver.machine.due(driver.now_s) == [Unregister()]

    def test_a_member_that_never_registered_leaves_without_unregistering(self) -> None:
        machine = Membership(ME, average)
        machine.stop()

        assert machine.due(1.0) == []


class TestOtherModels:
    def test_without_locks_allocation_is_enough(self) -> None:
        """E1, B1: a concurrent consumer; two may have a queue during a rebalance,
        which is RocketMQ's rule.
        """
        driver = Driver(needs_locks=False)

        assert kinds(driver.work()) == [Heartbeat, AskMembers]
        assert driver.plannable == set(QUEUES)
        assert not [
            action for second in range(40) for action in driver.after(1.0) if isinstance(action, Lock)
        ]
        assert driver.plannable == set(QUEUES)

    @pytest.mark.parametrize("is_broadcast", [False, True])
    def test_without_locks_there_is_always_time_until_something_is_due(self, is_broadcast: bool) -> None:
        """A3, B1: a member that waits for a lock's renewal, which never comes, would run in a circle."""
        driver = Driver(needs_locks=False, is_broadcast=is_broadcast)
        driver.work()
        driver.machine.claimed_by_other(QUEUES[0], driver.now_s)

        for _ in range(90):
            driver.after(1.0)
            assert driver.machine.next_due_s() > driver.now_s

    def test_without_locks_a_queue_that_another_has_claimed_is_left_to_it_until_the_next_rebalance(
        self,
    ) -> None:
        """B1, C5: both may think it theirs while their lists differ;
        taking it back at once would take it from both.
        """
        driver = Driver(needs_locks=False)
        driver.work()
        (queue, *others), term = QUEUES, driver.machine.plannable(driver.now_s)[QUEUES[0]]

        driver.machine.claimed_by_other(queue, driver.now_s)
        driver.machine.notified(driver.now_s)
        driver.after(2.0)
        assert driver.plannable == set(others)
        assert not driver.machine.is_settled

        driver.after(18.0)
        assert driver.plannable == set(QUEUES)
        assert driver.machine.plannable(driver.now_s)[queue] > term, "it must be claimed again"

    def test_without_locks_a_queue_is_anothers_as_soon_as_it_is_allocated_to_it(self) -> None:
        """B1, B5: the plan that holds it may still be run,
        but what it commits is refused once the other has claimed.
        """
        driver = Driver(needs_locks=False)
        driver.work()
        terms = driver.machine.begin_plan(driver.now_s)
        assert driver.machine.planned(terms, driver.now_s) == set(QUEUES)

        driver.members = [ME, OTHER]
        driver.machine.notified(driver.now_s)
        driver.after(1.0)

        share = set(average(ME, QUEUES, sorted([ME, OTHER])))
        assert driver.plannable == share
        assert all(driver.machine.is_planned(queue, driver.now_s) for queue in QUEUES)
        driver.machine.batch_over(driver.now_s)
        assert set(driver.machine.locked_at_s()) == share

    def test_broadcasting_takes_every_queue_whoever_else_is_there(self) -> None:
        """B3, D9: no locks; heartbeats go on, so that the group can be seen,
        and members that differ be reported.
        """
        driver = Driver(needs_locks=False, is_broadcast=True)

        assert kinds(driver.work()) == [Heartbeat, AskMembers]
        assert driver.plannable == set(QUEUES)
        driver.members = ["others", "and", "more"]
        later = set(kinds([action for _ in range(60) for action in driver.after(1.0)]))
        assert later == {Heartbeat, AskMembers}
        assert driver.plannable == set(QUEUES)

    def test_broadcasting_waits_only_for_the_route(self) -> None:
        """B3, H4: nobody has to give a queue away, and a list that cannot be had holds nothing up."""
        machine = Membership("me", average, needs_locks=False, is_broadcast=True)
        assert not machine.is_settled

        machine.route_changed(QUEUES, 0.0)
        machine.members_unknown(0.0)

        assert machine.is_settled


class TestTheTable:
    @pytest.mark.parametrize("phase", Phase)
    @pytest.mark.parametrize("event", OwnershipEvent)
    def test_a_lock_is_given_back_exactly_where_it_is_held_and_no_longer_needed(
        self, phase: Phase, event: OwnershipEvent
    ) -> None:
        """C1, B5."""
        transition = after(phase, event)
        gives_back = OwnershipEffect.UNLOCK in transition.effects

        keeps_none = transition.phase is Phase.ABSENT
        may_hold = phase in {Phase.HELD, Phase.LEAVING} or event is OwnershipEvent.GRANTED
        is_lost_anyway = event in {OwnershipEvent.REFUSED, OwnershipEvent.EXPIRED}
        assert gives_back == (
            keeps_none and may_hold and not is_lost_anyway and after_is_a_way_out(phase, event)
        )

    def test_a_term_begins_with_a_lock_and_no_other_way(self) -> None:
        """C3."""
        beginnings = {
            pair
            for pair, transition in TRANSITIONS.items()
            if OwnershipEffect.NEW_GRANT in transition.effects
        }
        assert beginnings == {(Phase.WANTED, OwnershipEvent.GRANTED)}

    def test_a_held_queue_is_never_reached_without_a_lock(self) -> None:
        """C1."""
        for (phase, event), transition in TRANSITIONS.items():
            if transition.phase is Phase.HELD:
                assert event is OwnershipEvent.GRANTED or phase is Phase.LEAVING

    def test_every_phase_can_be_left_for_good(self) -> None:
        """B5."""
        for phase in Phase:
            reached, waiting = {phase}, [phase]
            while waiting:
                here = waiting.pop()
                for event in OwnershipEvent:
                    there = after(here, event).phase
                    if there not in reached:
                        reached.add(there)
                        waiting.append(there)
            assert Phase.ABSENT in reached

    def test_no_pair_is_written_that_changes_nothing(self) -> None:
        for (phase, event), transition in TRANSITIONS.items():
            assert transition != (phase, ()), (phase, event)
        assert set(TRANSITIONS) <= set(itertools.product(Phase, OwnershipEvent))


def after_is_a_way_out(phase: Phase, event: OwnershipEvent) -> bool:
    """Whether the pair is in the table at all: what is not, changes nothing."""
    return (phase, event) in TRANSITIONS


def in_a_batch(driver: Driver) -> int:
    """The number of the plan under way, which holds all queues."""
    driver.work()
    driver.machine.planned(driver.machine.begin_plan(driver.now_s), driver.now_s)
    plan, planned = driver.machine.plan_under_way()
    assert planned == set(QUEUES)
    return plan


def test_a_queue_of_a_batch_leaves_when_it_is_over_for_that_queue(driver: Driver) -> None:
    """B5: the rest of the batch goes on."""
    plan = in_a_batch(driver)
    driver.members = [ME, OTHER]
    driver.machine.notified(driver.now_s)
    assert not [action for action in driver.after(2.0) if isinstance(action, Unlock)]
    leaving = driver.machine.must_leave()
    assert leaving == set(QUEUES) - set(driver.plannable)
    first = min(leaving)

    driver.machine.free(plan, [first], driver.now_s)

    assert [action for action in driver.work() if isinstance(action, Unlock)] == [
        Unlock(first.broker_name, frozenset({first}))
    ]
    assert driver.machine.must_leave() == leaving - {first}
    assert not driver.machine.is_planned(first, driver.now_s)


def test_a_batch_that_is_over_holds_nothing_back(driver: Driver) -> None:
    """B5: the next trigger may be minutes away."""
    plan = in_a_batch(driver)
    driver.machine.free(plan, None, driver.now_s)
    driver.members = [ME, OTHER]
    driver.machine.notified(driver.now_s)

    unlocked = {
        queue for action in driver.after(2.0) if isinstance(action, Unlock) for queue in action.queues
    }
    assert unlocked == set(QUEUES) - set(driver.plannable) != set()
    assert driver.machine.must_leave() == set()


def test_a_late_report_about_an_older_plan_frees_no_queue_of_the_next_plan(driver: Driver) -> None:
    """B5: the message and Spark's next call cross."""
    late = in_a_batch(driver)
    plan = in_a_batch(driver)
    assert plan > late

    driver.machine.free(late, None, driver.now_s)
    driver.machine.free(late, QUEUES, driver.now_s)

    assert driver.machine.plan_under_way() == (plan, frozenset(QUEUES))


def test_a_queue_whose_lock_was_lost_is_to_be_given_up_until_it_is_back(driver: Driver) -> None:
    """C2, D7: Java looks at the lock before each delivery."""
    in_a_batch(driver)
    driver.refused = {QUEUES[0]}
    driver.after(20.0)
    assert driver.machine.must_leave() == {QUEUES[0]}

    driver.refused = set()
    driver.after(1.0)
    assert driver.machine.must_leave() == set()


def test_a_share_that_cannot_be_computed_leaves_the_queues_as_they_are() -> None:
    """B2: a strategy of the user's own may fail; locks are renewed meanwhile,
    and the next look asks it again.
    """
    shares = Shares()
    driver = Driver(allocate=shares)
    driver.work()
    shares.fails_at = {"T"}
    driver.members = [ME, OTHER]

    driver.machine.notified(driver.now_s + 2.0)
    driver.after(2.0)

    assert driver.plannable == set(QUEUES)
    assert not driver.machine.is_settled
    assert kinds(driver.after(18.0)) == [Lock, Lock]
    shares.fails_at = set()
    driver.after(2.0)
    assert driver.plannable == set(QUEUES[::2])
    assert driver.machine.is_settled


def test_a_topic_whose_share_cannot_be_computed_does_not_hold_up_the_others() -> None:
    """B2: as Java, which rebalances topic by topic."""
    shares = Shares(fails_at={"T"})
    driver = Driver(allocate=shares)
    other_topic = [MessageQueue("U", "a", 0)]
    driver.machine.route_changed([*QUEUES, *other_topic], driver.now_s)

    driver.work()

    assert driver.plannable == set(other_topic)
    assert not driver.machine.is_settled


def test_a_member_leaves_to_others_only_queues_that_it_knows_to_be_in_their_shares() -> None:
    """B2, H4: a drain ends without them; not without its own ones that it cannot plan, nor without those that
    its route lacks.
    """
    driver = Driver()
    unseen = MessageQueue("T", "c", 0)
    driver.members = [ME, OTHER]
    assert driver.machine.left_to_others(QUEUES) == set()
    driver.refused = {QUEUES[0]}
    driver.work()

    assert driver.machine.left_to_others([*QUEUES, unseen]) == {*QUEUES[1::2]}
    driver.now_s += 31.0
    assert not driver.plannable
    assert driver.machine.left_to_others([*QUEUES, unseen]) == {*QUEUES[1::2]}

    driver.machine.route_changed([*QUEUES, unseen], driver.now_s)
    assert driver.machine.left_to_others([unseen]) == set()
    driver.machine.stop(driver.now_s)
    assert driver.machine.left_to_others(QUEUES) == set()


def test_a_member_leaves_no_queue_to_others_while_its_share_is_not_known() -> None:
    """B2, B4, H4: neither while a strategy fails, nor while the list of members lacks this one."""
    shares = Shares()
    driver = Driver(allocate=shares)
    driver.members = [ME, OTHER]
    driver.work()
    assert driver.machine.left_to_others(QUEUES) == {*QUEUES[1::2]}

    shares.fails_at = {"T"}
    driver.after(20.0)
    assert driver.machine.left_to_others(QUEUES) == set()

    shares.fails_at = set()
    driver.members = [OTHER]
    driver.after(20.0)
    driver.after(20.0)
    assert not driver.plannable
    assert driver.machine.left_to_others(QUEUES) == set()


def test_a_broadcasting_member_leaves_no_queue_to_others() -> None:
    """B3, H4: every member has all queues."""
    driver = Driver(needs_locks=False, is_broadcast=True)
    driver.members = [ME, OTHER]
    driver.work()

    assert driver.machine.left_to_others([*QUEUES, MessageQueue("T", "c", 0)]) == set()


def test_a_queue_that_a_batch_still_holds_for_another_member_is_left_to_it(driver: Driver) -> None:
    """B5, H4"""
    in_a_batch(driver)
    driver.members = [ME, OTHER]
    driver.machine.notified(driver.now_s)
    driver.after(2.0)

    assert driver.machine.must_leave() == {*QUEUES[1::2]}
    assert driver.machine.left_to_others(QUEUES) == {*QUEUES[1::2]}


def test_a_member_that_is_listed_twice_counts_twice() -> None:
    """B1: brokers list a member once for each connection, and Java's members count it so: they leave it the
    shares of both.
    """
    driver = Driver(allocate=Averagely().allocate)
    driver.members = [OTHER, ME, ME, "you"]
    driver.work()

    assert driver.plannable == {QUEUES[0], QUEUES[1]}
