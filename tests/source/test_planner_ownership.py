"""What the planner makes of a share of the queues that comes and goes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ClassVar, Never

import pytest

from pyspark_rocketmq.consume.planning import LONGEST_LEFT_OUT_S, StuckQueueDetector
from pyspark_rocketmq.errors import OffsetStoreUnavailable, RocketMQError
from pyspark_rocketmq.model import MessageQueue, QueueBounds, QueueState
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.offsets.store import QueueCommit, SinkRecord
from pyspark_rocketmq.stored_values import LastMessage, RememberedMessages
from tests.helpers.fake_clock import FakeClock
from tests.source.test_planner import A0, A1, B0, Planning

NOW_S = FakeClock().now_s()


def test_a_queue_that_is_not_held_is_in_no_plan() -> None:
    """C1, B5."""
    planning = Planning({A0: (0, 5), A1: (0, 3)}, group=True)
    planning.ownership.taken.add(A1)

    assert planning.next() == [(A0, 0, 5)]
    assert A1 not in planning.store.read("g")


def test_a_queue_that_comes_back_is_claimed_again_and_planned_from_the_store() -> None:
    """C3, B5: its offset is read after the lock, under an epoch that fences off whoever had it meanwhile."""
    planning = Planning({A0: (0, 5)}, group=True)
    planning.next()
    first_epoch = planning.store.read("g")[A0].epoch
    planning.commit(A0, 2)
    planning.ownership.taken.add(A0)
    assert planning.next() is None
    other = planning.store.claim("g", "other", {A0: 0})[A0]
    planning.ownership.give(A0)

    assert planning.next() == [(A0, 2, 5)]
    assert planning.store.read("g")[A0].owner_id == "me"
    assert planning.store.read("g")[A0].epoch > other.epoch > first_epoch


def test_a_queue_that_another_claimed_without_a_lock_is_given_up() -> None:
    """C5, H5."""
    planning = Planning({A0: (0, 5), A1: (0, 3)}, group=True)
    planning.next()
    planning.store.claim("g", "other", {A1: 0})

    assert planning.next() == [(A0, 0, 5)]
    assert planning.ownership.claimed_elsewhere == [A1]


def _not_moved(_: MemoryOffsetStore) -> None:
    """Leave the row as it is."""


def _reset_by_operator(store: MemoryOffsetStore) -> None:
    store.reset("g", {A0: 0})


def _found_behind_its_sink(store: MemoryOffsetStore) -> None:
    store.note_sinks("g", {A0: SinkRecord(0, 2, RememberedMessages.of(LastMessage(1, 1001, 64)))})


@pytest.mark.parametrize("before", [_not_moved, _reset_by_operator, _found_behind_its_sink])
@pytest.mark.parametrize("after", [_not_moved, _reset_by_operator, _found_behind_its_sink])
def test_a_queue_that_another_query_of_the_same_client_id_claimed_is_given_up(
    before: Callable[[MemoryOffsetStore], None], after: Callable[[MemoryOffsetStore], None]
) -> None:
    """C5, H5: two queries under one instance name; else both would consume it, under the rival's epoch."""
    store = MemoryOffsetStore("test", clock=FakeClock())
    first, second = (Planning({A0: (0, 5)}, group=True, store=store) for _ in range(2))
    assert first.next() == [(A0, 0, 5)]
    before(store)
    assert second.next() == [(A0, 0, 5)]
    after(store)

    assert first.next() is None
    assert first.ownership.claimed_elsewhere == [A0]
    assert not first.commit(A0, 5)
    second.next()
    assert second.commit(A0, 5)
    assert not second.ownership.claimed_elsewhere
    # After its pause the first one takes the queue back, and fences the second one off.
    first.ownership.give(A0)
    first.view.bounds[A0] = second.view.bounds[A0] = (0, 6)
    assert first.next() == [(A0, 5, 6)]
    assert second.next() is None
    assert second.ownership.claimed_elsewhere == [A0]
    assert first.commit(A0, 6)


def test_a_query_that_is_started_again_under_its_client_id_keeps_its_queues() -> None:
    """C3, H1: it is not refused by its dead predecessor, which has left its name in the rows."""
    store = MemoryOffsetStore("test", clock=FakeClock())
    Planning({A0: (0, 5)}, group=True, store=store).next()
    again = Planning({A0: (0, 5)}, group=True, store=store)

    assert again.next() == [(A0, 0, 5)]
    again.store.reset("g", {A0: 1})
    assert again.next() == [(A0, 1, 5)]
    assert again.commit(A0, 5)
    again.ownership.reclaim(A0)
    again.view.bounds[A0] = (0, 6)
    assert again.next() == [(A0, 5, 6)]
    assert not again.ownership.claimed_elsewhere


def test_a_claim_that_is_stored_although_its_answer_was_lost_is_the_querys_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C3, C5: it is no other query that the store names."""
    planning = Planning({A0: (0, 5)}, group=True)
    planning.next()
    claim = planning.store.claim

    def stored_but_not_answered(*what: Any, **how: Any) -> Never:
        claim(*what, **how)
        raise OffsetStoreUnavailable("the answer was lost")

    planning.ownership.reclaim(A0)
    with monkeypatch.context() as patched:
        patched.setattr(planning.store, "claim", stored_but_not_answered)
        for _ in range(2):
            assert planning.next() is None

    assert planning.next() == [(A0, 0, 5)]
    assert not planning.ownership.claimed_elsewhere


def test_a_queue_lost_while_the_plan_was_made_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """C1: the last word is spoken after the plan is made."""
    planning = Planning({A0: (0, 5), A1: (0, 3)}, group=True)
    monkeypatch.setattr(
        planning.ownership, "planned", lambda terms: frozenset(queue for queue in terms if queue != A0)
    )

    assert planning.next() == [(A1, 0, 3)]


def test_a_logged_plan_is_run_again_only_where_the_queue_is_held() -> None:
    """B5, H5: after a restart another member may have the queue, and would consume it at the same time."""
    clock = FakeClock()
    store = MemoryOffsetStore("test", clock=clock)
    before = Planning({A0: (0, 5), A1: (0, 3)}, group=True, store=store)
    before.next()
    assert [r.queue for r in before.planner.runnable(before.offset)] == [A0, A1]

    restarted = Planning({A0: (0, 5), A1: (0, 3)}, group=True, store=store)
    assert restarted.planner.runnable(before.offset) == []
    restarted.offset = before.offset
    assert restarted.next() == [(A0, 0, 5), (A1, 0, 3)]


@pytest.mark.parametrize(
    ("committed", "again"),
    [(QueueState(0, 1), [(0, 5)]), (QueueState(2, 1, 3), [(2, 5)]), (QueueState(5, 1), []),
     (QueueState(2, 1, 1, suspended_until_s=9_000.0), []),
     (QueueState(0, 1, 1, suspended_until_s=NOW_S + 7.0), []),
     (QueueState(0, 1, 1, suspended_until_s=NOW_S - 7.0), [(0, 5)])],
)  # fmt: skip
def test_a_logged_plan_is_run_again_without_what_its_batch_has_committed(
    committed: QueueState, again: list[tuple[int, int]]
) -> None:
    """H1, D1: its driver died while the batch ran, or after it; a listener had those messages."""
    planning = Planning({A0: (0, 5)}, group=True)
    planning.next()
    planning.store.commit("g", [QueueCommit(queue=A0, state=committed)], query_id="q", batch_id=0)

    ranges = planning.planner.runnable(planning.offset)
    assert [(planned.start, planned.end) for planned in ranges] == again
    assert {planned.state.reconsume_times for planned in ranges} <= {committed.reconsume_times}


def test_an_available_now_run_waits_for_queues_that_another_member_still_locks() -> None:
    """H4: ending before would leave their messages behind."""
    planning = Planning({A0: (0, 5)}, group=True)
    planning.planner.prepare_available_now()
    planning.ownership.taken.add(A0)
    planning.ownership.is_settled = False

    def come_free() -> None:
        planning.ownership.is_settled = True
        planning.ownership.taken.clear()

    planning.on_pause.append(come_free)

    assert planning.next() == [(A0, 0, 5)]
    assert planning.pauses


def test_an_available_now_run_does_not_end_if_its_queues_come_free_while_it_plans() -> None:
    """H4: the plan was made without them, and nothing is left to wait for when it is looked at."""
    planning = Planning({A0: (0, 5)}, group=True)
    planning.planner.prepare_available_now()
    planning.ownership.taken.add(A0)
    planning.ownership.is_settled = False

    def come_free() -> None:
        planning.ownership.is_settled = True
        planning.ownership.taken.clear()

    planning.ownership.meanwhile.append(come_free)

    assert planning.next() == [(A0, 0, 5)]


def test_an_available_now_run_does_not_end_if_its_share_grows_while_it_plans() -> None:
    """H4, B2: another member leaves, and its queue is wanted, not held yet, when the plan is looked at."""
    planning = Planning({A0: (0, 5)}, group=True)
    planning.planner.prepare_available_now()
    planning.ownership.taken.add(A0)

    def is_wanted() -> None:
        planning.ownership.is_settled = False

    def is_held() -> None:
        planning.ownership.is_settled = True
        planning.ownership.taken.clear()

    planning.ownership.meanwhile.append(is_wanted)
    planning.on_pause.append(is_held)

    assert planning.next() == [(A0, 0, 5)]


def test_an_available_now_run_does_not_end_if_another_member_claims_a_queue() -> None:
    """H4, C5: the plan finds that its row has another owner; the queue may come back."""
    planning = Planning({A0: (0, 5)}, group=True)
    planning.next()
    planning.planner.prepare_available_now()
    planning.store.claim("g", "somebody else", {A0: 0})

    def comes_back() -> None:
        planning.ownership.is_settled = True
        planning.ownership.give(A0)

    planning.on_pause.append(comes_back)

    assert planning.next() == [(A0, 0, 5)]


def test_an_available_now_run_does_not_end_before_its_member_sees_a_broker_that_came_back() -> None:
    """H4, A2: the planner has a route of its own, which may be younger than the member's."""
    planning = Planning({A0: (0, 5), B0: (0, 50)}, group=True, maxOffsetsPerTrigger="10")
    planning.planner.prepare_available_now()
    assert planning.next() == [(A0, 0, 2), (B0, 0, 8)]
    planning.commit(A0, 2)
    planning.commit(B0, 8)
    planning.view.not_in_route = planning.ownership.unseen = {"broker-b"}
    assert planning.next() == [(A0, 2, 5)]
    planning.commit(A0, 5)

    def planner_sees_it() -> None:
        planning.view.not_in_route = set()
        planning.on_pause[:] = [member_sees_it]

    def member_sees_it() -> None:
        assert planning.ownership.has_to_look
        planning.ownership.unseen = set()

    planning.on_pause.append(planner_sees_it)

    assert planning.next() == [(B0, 8, 18)]


def test_an_available_now_run_ends_with_an_error_if_its_member_never_sees_a_broker() -> None:
    """H4: their name servers may differ for good."""
    planning = Planning({A0: (0, 5), B0: (0, 5)}, group=True, retryTimeoutMs="9000")
    planning.planner.prepare_available_now()
    planning.ownership.unseen = {"broker-b"}
    assert planning.next() == [(A0, 0, 5)]
    planning.commit(A0, 5)

    with pytest.raises(RocketMQError, match=r"broker-b.* or this member's name server does not list the"):
        planning.next()
    assert sum(planning.pauses) == pytest.approx(9.0, abs=1.0)


def test_an_available_now_run_leaves_the_queues_of_other_members_to_them() -> None:
    """B2, H4: they may have hours of work left."""
    planning = Planning({A0: (0, 5), B0: (0, 5)}, group=True)
    planning.planner.prepare_available_now()
    planning.ownership.taken.add(B0)
    assert planning.next() == [(A0, 0, 5)]
    planning.commit(A0, 5)

    assert planning.next() is None
    assert not planning.pauses


def test_an_available_now_run_does_not_end_if_grants_end_while_it_plans() -> None:
    """H4: after a pause of the process, say."""
    planning = Planning({A0: (0, 5)}, group=True)
    planning.planner.prepare_available_now()
    planning.ownership.refusals = 1

    assert planning.next() == [(A0, 0, 5)]


class TestLeftOut:
    """B6: the watch itself."""

    bounds: ClassVar = {A0: QueueBounds(0, 10)}

    def progress(self, **facts: Any) -> dict[MessageQueue, QueueState]:
        planning = Planning({A0: (0, 5)}, group=True)
        planning.next()
        return {A0: planning.store.read("g")[A0].state._replace(**facts)}

    def test_a_queue_is_reported_once_when_it_was_left_out_for_two_minutes(self) -> None:
        """B6."""
        watch, progress = StuckQueueDetector(), self.progress()
        told = []
        for second in range(int(LONGEST_LEFT_OUT_S) * 2):
            watch.look(progress, self.bounds, 1000.0 + second)
            told += [(second, queue) for queue in watch.planned((), 1000.0 + second)]

        assert told == [(LONGEST_LEFT_OUT_S, A0)]

    @pytest.mark.parametrize(
        "facts_at",
        [lambda _: {"next_offset": 10}, lambda now_s: {"suspended_until_s": now_s + 30.0}],
        ids=["nothing to read", "suspended each time"],
    )
    def test_a_queue_that_may_wait_is_not_reported_as_stuck(
        self, facts_at: Callable[[float], dict[str, Any]]
    ) -> None:
        """B6: alibaba/rocketmq#459."""
        watch, (state,) = StuckQueueDetector(), self.progress().values()
        for second in range(300):
            now_s = 1000.0 + second
            watch.look({A0: state._replace(**facts_at(now_s))}, self.bounds, now_s)
            assert watch.planned((), now_s) == []

    def test_a_suspension_from_before_the_clock_was_set_back_hides_no_queue(self) -> None:
        """B6, D3: plans do not wait for its end either."""
        watch = StuckQueueDetector()
        progress = self.progress(suspended_until_s=1000.0 + 86_400.0)
        for second in range(int(LONGEST_LEFT_OUT_S)):
            watch.look(progress, self.bounds, 1000.0 + second)
            assert watch.planned((), 1000.0 + second) == []
        watch.look(progress, self.bounds, 1000.0 + LONGEST_LEFT_OUT_S)

        assert watch.planned((), 1000.0 + LONGEST_LEFT_OUT_S) == [A0]

    def test_a_plan_that_holds_the_queue_begins_the_wait_again(self) -> None:
        """B6."""
        watch, progress = StuckQueueDetector(), self.progress()
        for second in range(300):
            watch.look(progress, self.bounds, 1000.0 + second)
            queues = {A0} if second % 100 == 99 else ()
            assert watch.planned(queues, 1000.0 + second) == []


def test_a_wall_clock_that_is_set_forward_leaves_no_queue_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """B6: two minutes are waited for, not read off a clock that an operator sets."""
    planning = Planning({A0: (0, 5)}, group=True)
    planning.next()
    epoch = planning.store.read("g")[A0].epoch
    monkeypatch.setattr(planning.ownership, "planned", lambda _: frozenset())
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            planning.next()
            planning.clock.step(2 * LONGEST_LEFT_OUT_S)

    assert "claiming it again" not in caplog.text
    assert planning.store.read("g")[A0].epoch == epoch


def test_a_held_queue_that_no_plan_takes_is_claimed_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """B6."""
    planning = Planning({A0: (0, 5)}, group=True)
    monkeypatch.setattr(planning.ownership, "planned", lambda _: frozenset())
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            planning.next()
            planning.clock.advance(LONGEST_LEFT_OUT_S / 2)

    assert "claiming it again" in caplog.text
    assert planning.store.read("g")[A0].epoch >= 2


def test_a_drain_claims_no_queue_again_that_has_come_to_its_end(caplog: pytest.LogCaptureFixture) -> None:
    """B6, H4: producers go on, another queue takes its time, and one was made after the beginning."""
    planning = Planning({A0: (0, 5), B0: (0, 9)}, group=True, retryTimeoutMs="86400000")
    planning.planner.prepare_available_now()
    assert planning.next() == [(A0, 0, 5), (B0, 0, 9)]
    planning.commit(A0, 5)
    planning.view.bounds |= {A0: (0, 50), A1: (0, 3)}
    with caplog.at_level(logging.ERROR):
        for offset in range(9):
            planning.clock.advance(LONGEST_LEFT_OUT_S)
            assert planning.next() == [(B0, offset, 9)]
            planning.commit(B0, offset + 1)

    assert planning.store.read("g")[A0].epoch == 1
    assert caplog.text == ""
