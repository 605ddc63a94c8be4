"""Where a claimed queue begins when the group has offsets at the brokers too."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest

from pyspark_rocketmq.consume.recent_offsets import Outage, PassedOffset, pass_on
from pyspark_rocketmq.errors import BrokerOffsetUnavailable, ConnectFailed, NameServerNotReady, RocketMQError
from pyspark_rocketmq.group.broker_offsets import Addresses
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.offsets.store import QueueCommit
from pyspark_rocketmq.options.positions import LATEST
from tests.helpers.fake_clock import FakeClock
from tests.source.test_planner import A0, A1, B0, Planning

RETRY = MessageQueue("%RETRY%g", "broker-a", 0)


class FakeBrokerOffsets:
    """The brokers' table, and whether they answer."""

    def __init__(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        self.offsets = dict(offsets or {})
        self.is_down = False
        self.failures: dict[str, RocketMQError] = {}
        """Errors of brokers that do not report or take offsets."""
        self.reads: list[set[MessageQueue]] = []
        self.writes: list[dict[MessageQueue, int]] = []

    def read(self, queues: Iterable[MessageQueue], addresses: Addresses) -> dict[MessageQueue, int]:
        self._answer(queues)
        self.reads.append(set(queues))
        return {queue: self.offsets[queue] for queue in self.reads[-1] if queue in self.offsets}

    def write(self, next_offsets: Mapping[MessageQueue, int], addresses: Addresses) -> None:
        self._answer(next_offsets)
        self.writes.append(dict(next_offsets))
        self.offsets |= next_offsets

    def _answer(self, queues: Iterable[MessageQueue]) -> None:
        if self.is_down:
            raise BrokerOffsetUnavailable("broker-a does not answer")
        for queue in queues:
            if queue.broker_name in self.failures:
                raise self.failures[queue.broker_name]


def handed_over(planning: Planning, *queues: MessageQueue) -> None:
    """Another member had the queues and gave them back; nothing of it is in the offset store."""
    planning.ownership.taken.update(queues)
    planning.next()
    for queue in queues:
        planning.ownership.give(queue)


def test_a_group_that_java_members_served_so_far_goes_on_where_they_came() -> None:
    """F1, C3: this is how a group moves to Spark."""
    brokers = FakeBrokerOffsets({A0: 3, A1: 1})
    planning = Planning({A0: (0, 5), A1: (0, 3)}, group=True, broker_offsets=brokers)

    assert planning.next() == [(A0, 3, 5), (A1, 1, 3)]
    assert {row.next_offset for row in planning.store.read("g").values()} == {3, 1}


def test_a_topic_does_not_begin_by_the_options_while_a_broker_may_have_its_offsets() -> None:
    """A2, A8: one broker fails the first question for the group's offsets, and has some."""
    brokers = FakeBrokerOffsets({B0: 3})
    answer, failing = brokers._answer, [B0]

    def fail_once(queues: Iterable[MessageQueue]) -> None:
        if B0 in (asked := list(queues)) and failing:
            raise BrokerOffsetUnavailable(f"{failing.pop().broker_name} does not answer")
        answer(asked)

    brokers._answer = fail_once  # type: ignore[method-assign]
    planning = Planning({A0: (1, 5), B0: (0, 5)}, group=True, broker_offsets=brokers, start=LATEST)

    assert planning.next() is None
    assert brokers.offsets == {B0: 3}
    assert planning.next() == [(A0, 1, 5), (B0, 3, 5)]


def test_a_new_group_begins_where_the_options_say() -> None:
    """F2: as without brokers' offsets."""
    brokers = FakeBrokerOffsets()
    planning = Planning({A0: (0, 5)}, group=True, broker_offsets=brokers, start=LATEST)

    assert planning.next() is None
    assert planning.store.read("g")[A0].next_offset == 5
    assert brokers.offsets == {A0: 5}


@pytest.mark.parametrize("brokers", [FakeBrokerOffsets(), None], ids=["mixed", "store alone"])
def test_a_new_group_says_how_many_stored_messages_it_passes_over(
    brokers: FakeBrokerOffsets | None, caplog: pytest.LogCaptureFixture
) -> None:
    """F2: once; a user who expects them would wait in vain."""
    bounds = {A0: (2, 5), A1: (0, 3), B0: (0, 0)}
    planning = Planning(bounds, group=True, broker_offsets=brokers, start=LATEST)

    assert planning.next() is planning.next() is None

    told = [text for text in caplog.messages if "is new to" in text]
    assert len(told) == 1
    assert "group g is new to orders" in told[0]
    assert "skips 6 stored messages" in told[0]
    assert "offsets reset --to earliest" in told[0]


def test_a_group_that_begins_with_the_first_message_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """F2"""
    planning = Planning({A0: (2, 5)}, group=True)

    assert planning.next() == [(A0, 2, 5)]
    assert not [text for text in caplog.messages if "is new to" in text]


def test_members_that_begin_a_group_together_begin_it_at_one_place() -> None:
    """F2, A2: the second finds rows of the group, but its own queues were not made later."""
    brokers = FakeBrokerOffsets()
    store = MemoryOffsetStore("test", clock=FakeClock())
    bounds = {A0: (0, 5), A1: (0, 3)}
    first, second = (
        Planning(
            bounds,
            group=True,
            broker_offsets=brokers,
            store=store,
            client_id=name,
            start=LATEST,
        )
        for name in ("first", "second")
    )
    first.ownership.taken.add(A1)
    second.ownership.taken.add(A0)

    assert first.next() is None
    assert second.next() is None

    assert {queue: row.next_offset for queue, row in store.read("g").items()} == {A0: 5, A1: 3}
    second.view.bounds[B0] = (0, 4)
    assert second.next() == [(B0, 0, 4)]


def test_a_member_that_stood_still_while_another_began_the_group_passes_over_nothing() -> None:
    """F2, C3: the end of the queue is further on by then."""
    brokers = FakeBrokerOffsets()
    store = MemoryOffsetStore("test", clock=FakeClock())
    first, second, third = (
        Planning(
            {A0: (0, end)}, group=True, broker_offsets=brokers, store=store, client_id=f"m{end}", start=LATEST
        )
        for end in (200, 100, 220)
    )
    positions = first.view.starting_positions

    def stands_still(*arguments: Any) -> dict[MessageQueue, int]:
        found = positions(*arguments)
        second.next()
        state = QueueState(150, store.read("g")[A0].epoch)
        store.commit("g", [QueueCommit(queue=A0, state=state, is_shown=True)], query_id="q", batch_id=1)
        brokers.offsets[A0] = 150
        return found

    first.view.starting_positions = stands_still  # type: ignore[method-assign,assignment]

    assert first.next() == [(A0, 150, 200)]
    assert third.next() == [(A0, 150, 220)]


def test_a_queue_made_after_the_group_began_at_the_brokers_is_read_from_its_start() -> None:
    """A2: its messages were sent while the group was there."""
    brokers = FakeBrokerOffsets({A0: 5})
    planning = Planning({A0: (0, 5), A1: (0, 3)}, group=True, broker_offsets=brokers, start=LATEST)

    assert planning.next() == [(A1, 0, 3)]


def test_a_queue_made_after_java_members_began_is_read_from_its_start_whatever_the_first_share_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A2, C3: Java members hold the old queues when the first Spark member comes."""
    brokers = FakeBrokerOffsets({A0: 5})
    bounds = {A0: (0, 5), A1: (0, 7), B0: (2, 40)}
    planning = Planning(bounds, group=True, broker_offsets=brokers, start=LATEST)
    planning.ownership.taken |= {A0, A1}

    assert planning.next() is planning.next() is None
    planning.clock.advance(11.0)

    assert planning.next() == [(B0, 2, 40)]
    assert brokers.writes == [], "the other queue is a Java member's, which begins in it"
    assert len([text for text in caplog.messages if "is just beginning" in text]) == 1
    planning.ownership.give(A1)
    assert planning.next() == [(A1, 0, 7)]


def test_a_member_waits_for_another_that_is_just_writing_where_the_group_begins() -> None:
    """F2, C3: it has written only one broker's offsets so far."""
    brokers = FakeBrokerOffsets({A0: 5})
    planning = Planning({A0: (0, 5), B0: (0, 9)}, group=True, broker_offsets=brokers, start=LATEST)
    planning.ownership.taken.add(A0)

    assert planning.next() is None
    brokers.offsets[B0] = 8
    planning.clock.advance(4.0)

    assert planning.next() == [(B0, 8, 9)]


@pytest.mark.parametrize("has_broker_offsets", [True, False])
def test_messages_that_were_given_back_are_read_from_the_first_wherever_the_group_begins(
    has_broker_offsets: bool,
) -> None:
    """E3, F2: ``computePullFromWhere``; they failed in this group, and the retry topic is found late."""
    planning = Planning(
        {A0: (0, 5), RETRY: (2, 4)},
        group=True,
        broker_offsets=FakeBrokerOffsets() if has_broker_offsets else None,
        start=LATEST,
    )

    assert planning.next() == [(RETRY, 2, 4)]
    assert planning.store.read("g")[A0].next_offset == 5


def test_a_retry_topic_does_not_begin_the_group_in_the_topics_asked_for() -> None:
    """F2: their queues begin where the options say, not where queues made later do."""
    planning = Planning({RETRY: (0, 1)}, group=True, start=LATEST)
    assert planning.next() == [(RETRY, 0, 1)]
    planning.commit(RETRY, 1)

    planning.view.bounds[A0] = (0, 5)

    assert planning.next() is None
    assert planning.store.read("g")[A0].next_offset == 5


def test_a_group_goes_on_in_one_topic_while_it_cannot_begin_in_another() -> None:
    """F2, A2: a broker is away, so where the group begins in the second topic cannot be said yet."""
    store = MemoryOffsetStore("test", clock=FakeClock())
    store.claim("g", "me", {A0: 3})
    payments = MessageQueue("payments", "broker-a", 0)
    planning = Planning({A0: (0, 5), payments: (0, 9)}, group=True, store=store, start=LATEST)
    planning.view.down = {"broker-b": ConnectFailed("b:1", "refused")}

    assert planning.next() == [(A0, 3, 5)]
    assert payments not in store.read("g")

    planning.view.down = {}
    planning.next()
    assert store.read("g")[payments].next_offset == 9


@pytest.mark.parametrize("has_brokers", [False, True], ids=["broadcasting", "clustering"])
def test_a_new_group_does_not_begin_while_brokers_may_still_register(
    has_brokers: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """F2, A2: queues of those that register later would count as created later, and begin with their first
    messages; a topic that has begun goes on.
    """
    payments = MessageQueue("payments", "broker-a", 0)
    store = MemoryOffsetStore("test", clock=FakeClock())
    store.claim("g", "me", {payments: 3})
    brokers = FakeBrokerOffsets({payments: 3}) if has_brokers else None
    planning = Planning(
        {A0: (0, 5), B0: (0, 9), payments: (0, 4)}, group=True, store=store, start=LATEST,
        broker_offsets=brokers, is_sole_owner=not has_brokers
    )  # fmt: skip
    planning.view.not_in_route = {"broker-b"}
    planning.view.still_registering = NameServerNotReady(0, "it had no broker")

    assert planning.next() == [(payments, 3, 4)]
    assert planning.commit(payments, 4)
    assert planning.next() is None
    assert store.read("g").keys() == {payments}
    assert caplog.text.count("it had no broker") == 1

    planning.view.not_in_route = set()
    planning.view.still_registering = None
    assert planning.next() is None
    assert [store.read("g")[queue].next_offset for queue in (A0, B0)] == [5, 9]


def test_a_broadcasting_instance_begins_when_it_has_all_queues_that_the_planner_sees() -> None:
    """F2, A2, B3: its member's route may be older, and it would find the other queues created later."""
    planning = Planning({A0: (0, 5), B0: (0, 9)}, group=True, start=LATEST, is_sole_owner=True)
    planning.ownership.unseen = {"broker-b"}

    assert planning.next() is None
    assert planning.store.read("g") == {}
    assert planning.ownership.has_to_look

    planning.ownership.unseen = set()
    assert planning.next() is None
    planning.view.bounds = {A0: (0, 6), B0: (0, 10)}
    assert planning.next() == [(A0, 5, 6), (B0, 9, 10)]


def test_a_queue_created_later_does_not_hold_up_a_broadcasting_instance() -> None:
    """A2, B3: the planner sees it first; the instance has begun."""
    planning = Planning({A0: (0, 5)}, group=True, start=LATEST, is_sole_owner=True)
    assert planning.next() is None
    planning.view.bounds = {A0: (0, 6), B0: (0, 9)}
    planning.ownership.unseen = {"broker-b"}

    assert planning.next() == [(A0, 5, 6)]

    planning.ownership.unseen = set()
    planning.commit(A0, 6)
    assert planning.next() == [(B0, 0, 9)]


def test_a_beginning_does_not_ask_again_for_offsets_that_the_claim_has_just_read() -> None:
    """F2: it looks once more before it writes, since others may have begun meanwhile."""
    brokers = FakeBrokerOffsets()
    planning = Planning({A0: (0, 5), A1: (0, 3)}, group=True, broker_offsets=brokers, start=LATEST)
    planning.ownership.taken.add(A1)

    assert planning.next() is None

    assert brokers.reads == [{A0}, {A1}, {A0, A1}]
    assert brokers.offsets == {A0: 5, A1: 3}


def test_a_group_begins_each_new_topic_where_the_options_say() -> None:
    """F2: offsets at the brokers are asked for and set by topic;
    a subscription added later begins by the options.
    """
    payments = MessageQueue("payments", "broker-a", 0)
    brokers = FakeBrokerOffsets({A0: 3})
    planning = Planning({A0: (0, 5), payments: (0, 9)}, group=True, broker_offsets=brokers, start=LATEST)

    assert planning.next() == [(A0, 3, 5)]
    assert brokers.writes == [{payments: 9}]
    assert {payments} in brokers.reads, "the other topic's queues need not be asked again"


def test_what_another_member_consumed_meanwhile_is_not_planned_again() -> None:
    """C3, B5: and it is stored under the new epoch before it is planned."""
    brokers = FakeBrokerOffsets()
    planning = Planning({A0: (0, 10)}, group=True, broker_offsets=brokers)
    planning.next()
    planning.commit(A0, 4, reconsume_times=2, suspended_until_s=planning.clock.now_s() + 60)
    handed_over(planning, A0)
    brokers.offsets[A0] = 7

    assert planning.next() == [(A0, 7, 10)]

    row = planning.store.read("g")[A0]
    assert (row.next_offset, row.epoch, row.state.reconsume_times, row.state.suspended_until_s) == (
        7,
        2,
        0,
        None,
    )
    assert planning.commit(A0, 9)


def test_a_queue_that_no_batch_of_ours_moved_goes_on_where_the_other_member_came() -> None:
    """C3: a claim by itself is no operator's word."""
    brokers = FakeBrokerOffsets()
    planning = Planning({A0: (0, 10)}, group=True, broker_offsets=brokers)
    planning.next()
    handed_over(planning, A0)
    brokers.offsets[A0] = 7

    assert planning.next() == [(A0, 7, 10)]


@pytest.mark.parametrize(
    ("at_broker", "is_away", "idle_s", "next_offset"),
    [
        pytest.param(0, True, 0.0, 6, id="stored before its crash"),
        pytest.param(2, True, 0.0, 2, id="an operator's, after its crash"),
        pytest.param(0, True, 60.0, 0, id="an operator's, after a crash long after the last commit"),
        pytest.param(0, False, 0.0, 0, id="an operator's"),
    ],
)
def test_a_broker_that_has_forgotten_the_last_offsets_in_a_crash_moves_nothing_back(
    at_broker: int, is_away: bool, idle_s: float, next_offset: int
) -> None:
    """F5: brokers store offsets every 5 s; what was there in the seconds before the crash is nobody's reset."""
    brokers = FakeBrokerOffsets({A0: 0})
    planning = Planning({A0: (0, 10)}, group=True, broker_offsets=brokers)
    for offset in (4, 6):
        planning.next()
        planning.commit(A0, offset, is_shown=True)
        planning.store.note_arrivals("g", {A0: offset})
        brokers.offsets[A0] = offset
    planning.next()
    planning.clock.advance(idle_s)
    planning.next()
    if is_away:
        planning.clock.advance(1.0)
        planning.view.down = {"broker-a": ConnectFailed("a:1", "refused")}
        planning.next()
        planning.view.down = {}

    brokers.offsets[A0] = at_broker
    handed_over(planning, A0)

    assert planning.next() == [(A0, next_offset, 10)]
    assert brokers.offsets[A0] == next_offset


class LongBatch:
    """A batch in real time: it commits for minutes, its offsets arrive at the broker, and nothing is planned.

    It plans at second 0. From 280 on it commits a message more each second, up to offset 20 at second 300.
    """

    def __init__(self, *, answers: bool = True) -> None:
        self.brokers = FakeBrokerOffsets({A0: 0})
        self.passed: list[PassedOffset] = []
        self.asked: list[set[MessageQueue]] = []
        self.answers = answers
        self.planning = Planning(
            {A0: (0, 30)}, group=True, broker_offsets=self.brokers, lately_arrived=self._lately_arrived
        )
        self.clock = self.planning.clock
        self.planning.next()
        self.clock.advance(280.0)
        arrived = None
        for offset in range(1, 21):
            self.clock.advance(1.0)
            assert self.planning.commit(A0, offset, is_shown=True, arrived=arrived)
            arrived = offset
            self.arrives(offset)

    def arrives(self, offset: int) -> None:
        self.brokers.offsets[A0] = offset
        pass_on(self.passed, offset, self.clock.monotonic_s())

    def _lately_arrived(self, queues: Collection[MessageQueue]) -> Mapping[MessageQueue, list[PassedOffset]]:
        self.asked.append(set(queues))
        return {A0: list(self.passed)} if self.answers else {}

    def is_away(self, answered_s_ago: float = 1.0) -> None:
        """Let the member see that the broker is away, which has last answered it some seconds ago."""
        now_s = self.clock.monotonic_s()
        self.planning.ownership.outages["broker-a"] = Outage(now_s - answered_s_ago, now_s + 1.0)
        self.clock.advance(40.0)

    def claims_at(self, at_broker: int) -> int:
        """Claim the queue again, for which the broker has this offset; return the offset of the next plan."""
        self.brokers.offsets[A0] = at_broker
        self.planning.ownership.reclaim(A0)
        planned = self.planning.next()
        assert planned is not None
        [(_, start, _)] = planned
        assert self.brokers.offsets[A0] == start
        return start


@pytest.mark.parametrize("lost", range(6))
def test_a_broker_that_crashes_while_a_long_batch_runs_moves_nothing_back(
    lost: int, caplog: pytest.LogCaptureFixture
) -> None:
    """F5: the batch's offsets of the last seconds were in no plan, and the broker was away in none."""
    batch = LongBatch()
    batch.is_away()

    assert batch.claims_at(20 - lost) == 20
    assert "not set by this store's members" not in caplog.text
    assert ("broker no longer has the group's last offset" in caplog.text) == (lost > 0)


def test_a_reset_to_where_a_long_batch_was_a_moment_ago_is_followed_if_the_broker_was_not_away() -> None:
    """F5: as one to where the last micro-batch began."""
    batch = LongBatch()

    assert batch.claims_at(18) == 18
    assert batch.asked == []


@pytest.mark.parametrize(
    ("target", "answered_s_ago"),
    [
        pytest.param(25, 1.0, id="ahead"),
        pytest.param(3, 1.0, id="an offset that the broker keeps through a crash"),
        pytest.param(0, 1.0, id="the offset of the last plan, minutes ago"),
    ],
)
def test_a_reset_while_a_broker_is_away_in_a_long_batch_is_followed(
    target: int, answered_s_ago: float
) -> None:
    """F5: the group was not there in the seconds before the broker was away."""
    batch = LongBatch()
    batch.is_away(answered_s_ago)

    assert batch.claims_at(target) == target


def test_a_reset_to_an_offset_that_no_commit_had_is_followed_in_a_long_batch_whose_broker_was_away() -> None:
    """F5: only the very offsets that were sent can be there by a crash."""
    batch = LongBatch()
    batch.planning.view.bounds[A0] = (0, 60)
    assert batch.planning.commit(A0, 40, is_shown=True, arrived=20)
    batch.arrives(40)
    batch.is_away()

    assert batch.claims_at(30) == 30


def test_an_old_offset_of_a_long_batch_is_a_reset_when_a_newer_one_has_arrived_after_the_crash() -> None:
    """F5: the broker had the newest one when it was back, so somebody has set the old one later."""
    batch = LongBatch()
    batch.is_away()
    batch.arrives(20)
    batch.passed.append(PassedOffset(batch.clock.monotonic_s(), 21))

    assert batch.claims_at(18) == 18


def test_an_offset_that_arrives_while_the_driver_is_asked_shows_nothing_of_the_brokers_answer() -> None:
    """F5: the broker had lost its offset when it was asked; the mirror sends what waited for it."""
    batch = LongBatch()
    batch.is_away()
    batch.passed.append(PassedOffset(batch.clock.monotonic_s() + 0.01, 20))

    assert batch.claims_at(18) == 20


def test_a_brokers_offset_is_followed_if_the_driver_does_not_say_what_has_arrived() -> None:
    """F5: messages come again, but no reset is lost, and the queue does not wait."""
    batch = LongBatch(answers=False)
    batch.is_away()

    assert batch.claims_at(18) == 18
    assert batch.asked == [{A0}]


def test_an_offset_that_the_broker_never_got_moves_nothing_back() -> None:
    """B5, F5: a mirror that was late; what the broker has was shown by this side before."""
    brokers = FakeBrokerOffsets()
    planning = Planning({A0: (0, 10)}, group=True, broker_offsets=brokers)
    planning.next()
    planning.commit(A0, 2, is_shown=True)
    planning.commit(A0, 4, is_shown=True)
    handed_over(planning, A0)
    brokers.offsets[A0] = 2

    assert planning.next() == [(A0, 4, 10)]


@pytest.mark.parametrize("is_mirrored", [True, False])
@pytest.mark.parametrize("target", [0, 1, 3, 9])
def test_a_reset_made_while_the_group_was_stopped_is_followed(target: int, is_mirrored: bool) -> None:
    """F5: back as well as forth, by a broker that only stores it, as 4.x and other tools do."""
    brokers = FakeBrokerOffsets()
    store = MemoryOffsetStore("test", clock=FakeClock())
    first = Planning({A0: (0, 10)}, group=True, broker_offsets=brokers, store=store)
    first.next()
    first.commit(A0, 5, reconsume_times=3, is_shown=is_mirrored)
    if is_mirrored:
        brokers.offsets[A0] = 5
        store.note_arrivals("g", {A0: 5})
    brokers.offsets[A0] = target
    again = Planning({A0: (0, 10)}, group=True, broker_offsets=brokers, store=store, client_id="c2")

    # Without a mirror the broker still has what the group began with.
    is_news = is_mirrored or target != 0
    assert again.next() == [(A0, target if is_news else 5, 10)]
    assert store.read("g")[A0].state.reconsume_times == (0 if is_news else 3)


def test_a_reset_that_a_java_member_followed_is_not_undone() -> None:
    """F5, C3: it went back and consumed a little."""
    brokers = FakeBrokerOffsets()
    planning = Planning({A0: (0, 100)}, group=True, broker_offsets=brokers)
    planning.next()
    planning.commit(A0, 90, is_shown=True)
    brokers.offsets[A0] = 90
    handed_over(planning, A0)
    brokers.offsets[A0] = 12

    assert planning.next() == [(A0, 12, 100)]


@pytest.mark.parametrize("second", [6, 8])
def test_a_second_reset_while_the_group_is_away_is_followed_too(second: int) -> None:
    """F5: the first one was shown to the broker, so what it has now came later, even where the group was."""
    brokers = FakeBrokerOffsets()
    planning = Planning({A0: (0, 10)}, group=True, broker_offsets=brokers)
    planning.next()
    planning.commit(A0, 8, is_shown=True)
    planning.store.reset("g", {A0: 2})
    assert planning.next() == [(A0, 2, 10)]
    planning.clock.advance(10)
    planning.next()
    handed_over(planning, A0)
    brokers.offsets[A0] = second

    assert planning.next() == [(A0, second, 10)]


def test_a_reset_back_stands_though_its_broker_crashes_and_has_the_offset_from_before() -> None:
    """F5: it had not written the reset to its disk, and another process claims the queue."""
    brokers = FakeBrokerOffsets()
    planning = Planning({A0: (0, 10)}, group=True, broker_offsets=brokers)
    planning.next()
    planning.commit(A0, 8, is_shown=True)
    planning.store.reset("g", {A0: 2})
    assert planning.next() == [(A0, 2, 10)]
    handed_over(planning, A0)
    brokers.offsets[A0] = 8

    assert planning.next() == [(A0, 2, 10)]


def test_an_offset_that_was_followed_is_followed_back_to_where_the_group_had_been() -> None:
    """F5: somebody skips messages at the broker, and undoes that, while the group is away."""
    brokers = FakeBrokerOffsets()
    planning = Planning({A0: (0, 10)}, group=True, broker_offsets=brokers)
    planning.next()
    planning.commit(A0, 4, is_shown=True)
    brokers.offsets[A0] = 4
    planning.store.note_arrivals("g", {A0: 4})
    for moved in (9, 4):
        handed_over(planning, A0)
        brokers.offsets[A0] = moved

        assert planning.next() == [(A0, moved, 10)]


@pytest.mark.parametrize("target", [2, 5])
def test_a_reset_that_no_broker_has_taken_stands_at_the_next_claim(target: int) -> None:
    """F5: the member that claims first cannot write it; a Java member goes on from the broker's offset."""
    brokers = FakeBrokerOffsets()
    planning = Planning({A0: (0, 10)}, group=True, broker_offsets=brokers)
    for offset in (5, 6):
        planning.next()
        planning.commit(A0, offset, is_shown=True)
        brokers.offsets[A0] = offset
    planning.store.reset("g", {A0: target})
    handed_over(planning, A0)
    write = brokers.write

    def refuse(next_offsets: Mapping[MessageQueue, int], addresses: Addresses) -> None:
        raise BrokerOffsetUnavailable("broker-a does not answer")

    brokers.write = refuse  # type: ignore[method-assign]
    assert planning.next() is None
    brokers.write = write  # type: ignore[method-assign]
    brokers.offsets[A0] = 8
    handed_over(planning, A0)

    assert planning.next() == [(A0, target, 10)]
    assert brokers.offsets == {A0: target}
    brokers.offsets[A0] = 9
    handed_over(planning, A0)
    assert planning.next() == [(A0, 9, 10)]


def test_rows_of_an_earlier_release_go_on_as_that_release_did_once() -> None:
    """F5, C3: what it has shown the broker is not known."""
    brokers = FakeBrokerOffsets({A0: 3})
    store = MemoryOffsetStore("test", clock=FakeClock())
    store.claim("g", "old", {A0: 7})
    planning = Planning({A0: (0, 10)}, group=True, broker_offsets=brokers, store=store)

    assert planning.next() == [(A0, 7, 10)]
    handed_over(planning, A0)
    assert planning.next() == [(A0, 7, 10)]
    brokers.offsets[A0] = 1
    handed_over(planning, A0)
    assert planning.next() == [(A0, 1, 10)]


def test_a_reset_stands_although_the_broker_still_knows_a_later_offset() -> None:
    """F5: through any number of claims, and after the first batch from there too."""
    brokers = FakeBrokerOffsets({A0: 8})
    planning = Planning({A0: (0, 10)}, group=True, broker_offsets=brokers)
    assert planning.next() == [(A0, 8, 10)]
    planning.commit(A0, 9)
    planning.store.reset("g", {A0: 2})
    handed_over(planning, A0)

    assert planning.next() == [(A0, 2, 10)]
    planning.commit(A0, 3)
    # The mirror has shown the 3 to nobody.
    handed_over(planning, A0)
    assert planning.next() == [(A0, 3, 10)]


def test_a_reset_is_written_to_the_broker_once_before_a_plan_begins_there() -> None:
    """F5: otherwise the next claim would take its offset for a later one."""
    brokers = FakeBrokerOffsets({A0: 8})
    planning = Planning({A0: (0, 10), A1: (0, 2)}, group=True, broker_offsets=brokers)
    planning.next()
    planning.commit(A0, 10)
    planning.commit(A1, 2)
    planning.store.reset("g", {A0: 2})

    brokers.is_down = True
    assert planning.next() is None
    brokers.is_down = False
    assert planning.next() == [(A0, 2, 10)]
    planning.commit(A0, 3)
    assert planning.next() == [(A0, 3, 10)]

    assert brokers.writes == [{A0: 2}]


def test_a_broker_that_does_not_report_the_offset_keeps_its_queues_waiting() -> None:
    """F3: an error never becomes an offset, and nothing is claimed meanwhile."""
    brokers = FakeBrokerOffsets({A0: 8})
    brokers.is_down = True
    planning = Planning({A0: (0, 10)}, group=True, broker_offsets=brokers)

    assert planning.next() is None
    assert planning.store.read("g") == {}
    brokers.is_down = False
    assert planning.next() == [(A0, 8, 10)]


def test_brokers_are_asked_only_at_a_claim() -> None:
    """C3: a plan of queues that are held costs no call per queue."""
    brokers = FakeBrokerOffsets()
    planning = Planning({A0: (0, 10), B0: (0, 1)}, group=True, broker_offsets=brokers)
    planning.next()
    planning.commit(A0, 4)
    planning.next()
    handed_over(planning, B0)
    planning.next()

    # Each broker by itself at a claim, and all queues once more when the group begins.
    assert sorted(brokers.reads[:2], key=str) == [{A0}, {B0}]
    assert brokers.reads[2:] == [{A0, B0}, {B0}]


@pytest.mark.parametrize("at_broker", [1, 99], ids=["deleted", "not there"])
def test_an_offset_outside_the_queue_goes_the_way_of_every_gap(at_broker: int) -> None:
    """F4: skipped to the earliest, or to the end, and reported."""
    brokers = FakeBrokerOffsets({A0: at_broker})
    planning = Planning({A0: (4, 10)}, group=True, broker_offsets=brokers, failOnDataLoss="false")

    planning.next()

    assert planning.store.read("g")[A0].next_offset == (4 if at_broker == 1 else 10)


def test_a_queue_claimed_by_somebody_else_in_between_is_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """C5: following the broker is part of the claim, so there is nothing in between."""
    clock = FakeClock()
    store = MemoryOffsetStore("test", clock=clock)
    brokers = FakeBrokerOffsets()
    planning = Planning({A0: (0, 10)}, group=True, broker_offsets=brokers, store=store)
    planning.next()
    planning.commit(A0, 4)
    handed_over(planning, A0)
    brokers.offsets[A0] = 7
    claim = store.claim

    def claim_and_lose(*arguments: Any, **named: Any) -> object:
        claimed = claim(*arguments, **named)
        claim("g", "other", {A0: 0})
        store.commit("g", [QueueCommit(queue=A0, state=QueueState(8, 3))], query_id="q", batch_id=1)
        return claimed

    monkeypatch.setattr(store, "claim", claim_and_lose)
    planning.next()

    row = store.read("g")[A0]
    assert (row.owner, row.next_offset) == ("other", 8)
    assert not planning.commit(A0, 9)


def test_commits_of_another_member_between_the_look_at_the_broker_and_the_claim_stand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C3, F5: in a group without locks both may have the queue; its offset at the broker is an old one then."""
    store = MemoryOffsetStore("test", clock=FakeClock())
    brokers = FakeBrokerOffsets({A0: 4})
    planning = Planning({A0: (0, 10)}, group=True, broker_offsets=brokers, store=store)
    planning.next()
    handed_over(planning, A0)
    read = brokers.read

    def read_and_be_overtaken(
        queues: Iterable[MessageQueue], addresses: Addresses
    ) -> dict[MessageQueue, int]:
        old = read(queues, addresses)
        for batch_id, (next_offset, arrived) in enumerate([(6, None), (8, 6)]):
            epoch = store.read("g")[A0].epoch
            commit = QueueCommit(
                queue=A0, state=QueueState(next_offset, epoch), is_shown=True, arrived=arrived
            )
            store.commit("g", [commit], query_id="q", batch_id=batch_id)
        return old

    monkeypatch.setattr(brokers, "read", read_and_be_overtaken)

    assert planning.next() == [(A0, 8, 10)]


def test_a_gap_moves_no_queue_that_somebody_else_has_claimed_since_the_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C5, F4: as after a long pause of this process between the two."""
    clock = FakeClock()
    store = MemoryOffsetStore("test", clock=clock)
    planning = Planning({A0: (0, 10)}, group=True, store=store, failOnDataLoss="false")
    planning.next()
    planning.view.bounds[A0] = (4, 10)
    reset = store.reset

    def pause_and_reset(*arguments: Any, **named: Any) -> object:
        store.claim("g", "other", {A0: 0})
        store.commit("g", [QueueCommit(queue=A0, state=QueueState(8, 2))], query_id="q", batch_id=1)
        return reset(*arguments, **named)

    monkeypatch.setattr(store, "reset", pause_and_reset)
    planning.next()

    row = store.read("g")[A0]
    assert (row.owner, row.epoch, row.next_offset) == ("other", 2, 8)


def test_a_beginning_that_one_broker_did_not_take_is_the_same_at_the_next_plan() -> None:
    """A2, A8, F2: what the other broker has taken does not make its queues look as if made later."""
    brokers = FakeBrokerOffsets()
    write = brokers.write

    def write_in_part(next_offsets: Mapping[MessageQueue, int], addresses: Addresses) -> None:
        write({queue: offset for queue, offset in next_offsets.items() if queue != B0}, addresses)
        if B0 in next_offsets:
            raise BrokerOffsetUnavailable("broker-b does not answer")

    brokers.write = write_in_part  # type: ignore[method-assign]
    planning = Planning({A0: (0, 5), B0: (0, 5)}, group=True, broker_offsets=brokers, start=LATEST)
    assert planning.next() is planning.next() is None
    assert brokers.offsets == {A0: 5}

    brokers.write = write  # type: ignore[method-assign]
    assert planning.next() is None
    assert brokers.offsets == {A0: 5, B0: 5}
