"""Plans of a group whose offsets only its brokers keep (``offsetStore=broker:``)."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_rocketmq.errors import BrokerOffsetUnavailable, ConnectFailed, DataLoss, OffsetError
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.offsets.broker import BrokerOffsetStore
from pyspark_rocketmq.options.positions import EARLIEST, LATEST, QueuePositions
from pyspark_rocketmq.source.ranges import offset_to_plan
from pyspark_rocketmq.stored_values import trial_of
from tests.helpers.offsets_at_brokers import OffsetsAtBrokers
from tests.source.test_planner import A0, A1, B0, Planning

DOWN = {"broker-b": ConnectFailed("broker-b:1", "refused")}


class AtBrokers(Planning):
    """Planning with such a store; the driver, another process, commits with its own object."""

    def __init__(
        self, *queues: MessageQueue, end: int = 5, start: QueuePositions = EARLIEST, **options: Any
    ) -> None:
        self.brokers = OffsetsAtBrokers()
        self.of_driver = BrokerOffsetStore(self.brokers)
        store: Any = BrokerOffsetStore(self.brokers)
        super().__init__(
            dict.fromkeys(queues, (0, end)),
            group=True,
            store=store,
            start=start,
            broker_offsets=self.brokers.of_claims,
            **options,
        )
        self.of_planner = store

    def commit(self, queue: MessageQueue, next_offset: int, **facts: Any) -> bool:
        self.store: Any = self.of_driver
        self.store.read("g")
        try:
            return super().commit(queue, next_offset, **facts)
        finally:
            self.store = self.of_planner

    def go_away(self) -> None:
        """Broker-b answers nobody any more."""
        self.view.down, self.brokers.down = dict(DOWN), {"broker-b"}

    def come_back(self) -> None:
        self.view.down, self.brokers.down = {}, set()


# --- a broker that is away ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sees", ["neither", "its queues"])
def test_a_broker_that_is_down_costs_only_its_own_queues(sees: str, caplog: pytest.LogCaptureFixture) -> None:
    """A8: also if it reports its queues and not the group's offsets."""
    planning = AtBrokers(A0, B0)
    assert planning.next() == [(A0, 0, 5), (B0, 0, 5)]
    planning.commit(A0, 5)
    planning.commit(B0, 3)
    planning.go_away()
    if sees == "its queues":
        planning.view.down = {}

    for end in (6, 7, 8):
        planning.view.bounds[A0] = (0, end)
        planning.clock.advance(60)
        assert planning.next() == [(A0, end - 1, end)]
        planning.commit(A0, end)
    assert not planning.ownership.claimed_elsewhere
    left_out = [text for text in caplog.messages if "queue left out of this plan" in text]
    assert bool(left_out) == (sees == "its queues")

    planning.come_back()
    assert planning.next() == [(B0, 3, 5)]


def test_a_query_that_begins_while_a_broker_is_away_plans_the_others_queues() -> None:
    """A8, F2: the group has begun before, and its offsets at that broker are not known here."""
    planning = AtBrokers(A0, B0, start=LATEST)
    planning.brokers.offsets = {A0: 2, B0: 3}
    planning.go_away()

    assert planning.next() == [(A0, 2, 5)]
    planning.come_back()
    planning.commit(A0, 5)
    assert planning.next() == [(B0, 3, 5)]


def test_a_broker_that_goes_away_at_a_claim_delays_no_other_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """A8, C3: it has just reported the group's offset."""
    planning = AtBrokers(A0, B0)
    planning.brokers.offsets = {A0: 2, B0: 3}
    claim = planning.of_planner.claim

    def fails(group: str, owner: str, starts: Any, **others: Any) -> Any:
        if B0 in starts:
            raise BrokerOffsetUnavailable("broker-b does not answer")
        return claim(group, owner, starts, **others)

    monkeypatch.setattr(planning.of_planner, "claim", fails)
    assert planning.next() == [(A0, 2, 5)]
    monkeypatch.undo()
    planning.commit(A0, 5)
    assert planning.next() == [(B0, 3, 5)]


@pytest.mark.parametrize("sees", ["neither", "its queues"])
@pytest.mark.parametrize("read_to", [3, 5])
def test_a_drain_waits_for_a_broker_that_is_away_unless_all_is_read(sees: str, read_to: int) -> None:
    """H4"""
    planning = AtBrokers(A0, B0, retryTimeoutMs="60000")
    planning.next()
    planning.commit(A0, 5)
    planning.commit(B0, read_to)
    planning.planner.prepare_available_now()
    assert planning.next() == ([(B0, 3, 5)] if read_to == 3 else None)
    planning.go_away()
    if sees == "its queues":
        planning.view.down = {}

    planning.on_pause.append(planning.come_back)
    assert planning.next() == ([(B0, 3, 5)] if read_to == 3 else None)
    assert bool(planning.pauses) == (read_to == 3)


def test_a_queue_is_not_read_at_a_slave_while_its_offset_cannot_be_stored() -> None:
    """L3, F6: each plan would read the same messages."""
    planning = AtBrokers(A0, B0)
    planning.next()
    planning.commit(A0, 5)
    planning.commit(B0, 3)
    planning.go_away()
    planning.view.at_slaves = {B0: (0, 5)}

    assert planning.next() is None
    planning.come_back()
    assert planning.next() == [(B0, 3, 5)]


def test_a_range_whose_broker_goes_away_after_the_plan_is_run_as_planned() -> None:
    """A8: its task ends without progress; a range of an earlier run may be behind the group."""
    planning = AtBrokers(A0, B0)
    planned = offset_to_plan(planning.planner.latest(planning.offset))[1]
    planning.go_away()

    assert [each.queue for each in planning.planner._progress.runnable(planned)] == [A0, B0]
    again = AtBrokers(A0, B0)
    again.ownership.planned({A0: 1, B0: 1})
    again.brokers.offsets, again.brokers.down = {A0: 2, B0: 3}, {"broker-b"}
    assert [(run.queue, run.start) for run in again.planner._progress.runnable(planned)] == [(A0, 2)]


# --- brokers that have lost the offsets ---------------------------------------------------------------------


def test_a_running_query_goes_on_where_it_is_if_brokers_lose_its_offsets() -> None:
    """F1, F2: it does not begin again as a new group, at the end; what came meanwhile is consumed."""
    planning = AtBrokers(A0, A1, end=100, start=LATEST)
    assert planning.next() is None
    planning.view.bounds[A0] = (0, 120)
    assert planning.next() == [(A0, 100, 120)]
    planning.commit(A0, 120)
    assert planning.next() is None

    planning.brokers.forget()
    planning.view.bounds[A0] = (0, 130)
    assert planning.next() == [(A0, 120, 130)]
    assert not planning.ownership.claimed_elsewhere
    assert planning.brokers.offsets == {A0: 120, A1: 100}


def test_a_member_that_gets_a_queue_without_an_offset_takes_none_from_its_memory() -> None:
    """C3, F2: another member has had it, and has consumed it further."""
    planning = AtBrokers(A0, A1)
    planning.next()
    planning.ownership.taken.add(A0)
    planning.commit(A0, 4)
    planning.commit(A1, 5)
    assert planning.next() is None
    planning.brokers.lost.add(A0)
    del planning.brokers.offsets[A0]
    assert planning.next() is None
    assert A0 not in planning.brokers.offsets

    planning.ownership.give(A0)
    assert planning.next() == [(A0, 0, 5)]


@pytest.mark.parametrize(("fails", "then"), [("true", None), ("false", [(A0, 30, 35)])])
def test_an_offset_that_a_replaced_broker_does_not_have_is_a_gap(fails: str, then: Any) -> None:
    """F4: an empty broker has the name of the one before."""
    planning = AtBrokers(A0, end=100, failOnDataLoss=fails)
    planning.next()
    planning.commit(A0, 100)
    assert planning.next() is None
    planning.brokers.forget()
    planning.view.bounds[A0] = (0, 30)

    if fails == "true":
        with pytest.raises(DataLoss, match="100"):
            planning.next()
        return
    assert planning.next() is None
    planning.view.bounds[A0] = (0, 35)
    assert planning.next() == then


# --- no suspensions in the store ----------------------------------------------------------------------------


def test_a_queue_whose_listener_took_nothing_comes_again_after_five_seconds() -> None:
    """E4, D3: it did not open, or no broker took a failed message back; other queues do not wait for it."""
    planning = AtBrokers(A0, A1, maxOffsetsPerTrigger="2")
    assert planning.next() == [(A0, 0, 1), (A1, 0, 1)]
    planning.commit(A0, 0)
    planning.commit(A1, 1)

    assert planning.next() == [(A1, 1, 3)]
    planning.commit(A1, 5)
    assert planning.next() is None
    planning.clock.advance(4.9)
    assert planning.next() is None
    planning.clock.advance(0.1)
    assert planning.next() == [(A0, 0, 2)]
    planning.commit(A0, 1)
    assert planning.next() == [(A0, 1, 3)]


def test_a_drain_does_not_end_before_a_queue_that_stands_still_is_read() -> None:
    """H4: nor does it take the messages for delivered; in the end it names the queue."""
    planning = AtBrokers(
        A0, drainTimeoutMs="20000", consumerGroup="g", offsetStore="broker:", consumeOrderly="false"
    )
    planning.planner.prepare_available_now()
    began_s = planning.clock.monotonic_s()
    assert planning.next() == [(A0, 0, 5)]
    assert planning.next() == [(A0, 0, 5)]
    assert planning.clock.monotonic_s() - began_s == 5.0

    def go_on_in_vain() -> None:
        while planning.next() == [(A0, 0, 5)]:
            pass

    with pytest.raises(OffsetError, match=r"no progress for .* queue=0 at offset 0"):
        go_on_in_vain()
    planning.commit(A0, 5)
    assert planning.next() is None


def test_an_idle_queue_in_real_time_is_not_suspended() -> None:
    """E4: its open range stands still because no message came."""
    planning = AtBrokers(
        A0,
        end=0,
        consumerGroup="g",
        offsetStore="broker:",
        consumeOrderly="false",
        realTime="5 minutes",
        handOverRanges="true",
    )
    for _ in range(2):
        planning.next()
        [planned] = offset_to_plan(planning.offset)[1]
        assert planned.has_open_end
        assert planned.state.suspended_until_s is None


def test_a_queue_that_stands_still_is_planned_on_trial() -> None:
    """E4: no broker took its first message back; those behind it are delivered again only after it."""
    planning = AtBrokers(A0, end=5000)
    planning.next()
    assert planned_states(planning) == [QueueState(0, 1)]
    for _ in range(2):
        planning.commit(A0, 0)
        planning.next()
        planning.clock.advance(5.0)

        assert planning.next() == [(A0, 0, 1024)]
        assert planned_states(planning) == [QueueState(0, 1, retry_counts=trial_of(0))]
    planning.commit(A0, 7)
    assert planning.next() == [(A0, 7, 5000)]
    assert planned_states(planning) == [QueueState(7, 1)]


def test_a_queue_that_stands_still_in_real_time_is_planned_on_trial() -> None:
    """E4, I3: if it had messages to read; others have not moved because none came."""
    planning = AtBrokers(
        A0,
        A1,
        consumerGroup="g",
        offsetStore="broker:",
        consumeOrderly="false",
        realTime="5 minutes",
        handOverRanges="true",
    )
    planning.view.bounds[A1] = (0, 0)
    planning.next()
    assert planned_states(planning) == [QueueState(0, 1), QueueState(0, 1)]
    planning.view.bounds[A1] = (0, 3)

    planning.next()
    assert planned_states(planning) == [QueueState(0, 1, retry_counts=trial_of(0)), QueueState(0, 1)]
    planning.commit(A0, 5)
    planning.commit(A1, 1)
    planning.next()
    assert planned_states(planning) == [QueueState(5, 1), QueueState(1, 1)]


def planned_states(planning: AtBrokers) -> list[QueueState]:
    """Where the ranges of the newest plan begin, which tasks get in the same state."""
    planned = [planned.state for planned in offset_to_plan(planning.offset)[1]]
    assert [each.state for each in planning.planner.runnable(planning.offset)] == planned
    return planned


# --- a reset by an operator -----------------------------------------------------------------------------------


def test_a_reset_of_a_queue_that_left_meanwhile_is_not_stored() -> None:
    """F5, B5: its new owner has followed the reset and gone on."""
    planning = AtBrokers(A0, A1)
    planning.next()
    planning.commit(A1, 2)
    planning.ownership.taken.add(A1)
    planning.commit(A1, 5)
    planning.ownership.resets[A1] = 2

    planning.next()

    assert planning.of_driver.read("g")[A1].next_offset == 5


def test_a_reset_is_followed_although_a_commit_was_under_way() -> None:
    """F5: the commit of the batch has replaced it at the broker."""
    planning = AtBrokers(A0)
    assert planning.next() == [(A0, 0, 5)]
    planning.of_planner.reset("g", {A0: 2})
    planning.ownership.resets[A0] = 2
    planning.commit(A0, 5)
    assert planning.brokers.offsets == {A0: 5}

    assert planning.next() == [(A0, 2, 5)]
    assert planning.brokers.offsets == {A0: 2}
