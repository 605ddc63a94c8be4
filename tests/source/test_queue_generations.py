"""When a planner looks whether offsets began again, and what it does then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Never

import pytest

from pyspark_rocketmq.errors import (
    BrokerOffsetUnavailable,
    ConnectFailed,
    DataLoss,
    LogTailLost,
    OffsetsBeganAgain,
    OffsetStoreUnavailable,
    RocketMQError,
)
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, QueueBounds
from pyspark_rocketmq.offsets.rules import Change
from pyspark_rocketmq.offsets.store import CLAIMED, SinkRecord
from pyspark_rocketmq.options.positions import EARLIEST, LATEST, QueuePositions
from pyspark_rocketmq.source.message_lookup import Found, MessageLookup
from pyspark_rocketmq.stored_values import LastMessage, RememberedMessages
from tests.helpers import stored_texts
from tests.source.test_planner import A0, A1, B0, Planning
from tests.source.test_queue_claims import FakeBrokerOffsets, handed_over


class FakeLog(MessageLookup):
    """Queues' messages by the second they were stored in."""

    def __init__(self) -> None:
        self.stored: dict[MessageQueue, list[int]] = {}
        self.first: dict[MessageQueue, int] = {}
        self.reset_to: dict[MessageQueue, int] = {}
        """Known to the broker, which forgets it when it reports it."""
        self.told: dict[MessageQueue, int] = {}
        self.failure: RocketMQError | None = None
        """Error of each queue that is looked at, behind the resets that come with it."""
        self.failures: dict[MessageQueue, RocketMQError] = {}
        """Errors of single queues."""
        self.looks: list[dict[MessageQueue, int]] = []
        self.slaves: set[str] = set()
        """Brokers that are slaves, although routes name them as masters."""
        self.tiered_end: int | None = None
        """End that answers show below the local storage's messages, as those of tiered storage do."""
        self.connections: Counter[BrokerAddress] = Counter()

    def connections_to(self, address: BrokerAddress) -> int:
        return self.connections[address]

    def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        first = self.first.get(queue, 0)
        return first, first + len(self.stored[queue])

    def shown_bounds(self, queue: MessageQueue) -> QueueBounds:
        first, end = self.bounds(queue)
        return QueueBounds(first, end if self.tiered_end is None else min(end, self.tiered_end))

    def end_now(self, queue: MessageQueue, address: BrokerAddress) -> int:
        if self.failure is not None:
            raise self.failure
        return self.bounds(queue)[1]

    def message(self, queue: MessageQueue, offset: int) -> LastMessage | None:
        first, end = self.bounds(queue)
        return LastMessage(offset, self.stored[queue][offset - first], 0) if first <= offset < end else None

    def look(
        self, places: Mapping[MessageQueue, int], addresses: Mapping[str, BrokerAddress]
    ) -> dict[MessageQueue, Found | RocketMQError]:
        told = {queue: self.reset_to.pop(queue) for queue in places if queue in self.reset_to}
        self.told |= told
        failures = self.failures if self.failure is None else dict.fromkeys(places, self.failure)
        if seen := {queue: offset for queue, offset in places.items() if queue not in failures}:
            self.looks.append(seen)
        return {
            queue: failures.get(queue)
            or Found(
                self.shown_bounds(queue),
                None if queue in told else self.message(queue, offset),
                told.get(queue),
            )
            for queue, offset in places.items()
        }

    def without_master(
        self,
        queues: Iterable[MessageQueue],
        addresses: Mapping[str, BrokerAddress],
        *,
        is_to_be_listed: bool,
    ) -> dict[MessageQueue, RocketMQError]:
        error = BrokerOffsetUnavailable("it is a slave")
        return {queue: error for queue in queues if queue.broker_name in self.slaves}

    def resets(self) -> dict[MessageQueue, int]:
        told, self.told = self.told, {}
        return told

    def stored_after(
        self, queue: MessageQueue, address: BrokerAddress, timestamp: int, bounds: QueueBounds
    ) -> int:
        later = (at for at, stored in enumerate(self.stored[queue], bounds.min_offset) if stored > timestamp)
        return next(later, bounds.max_offset)


class Scenario:
    """A planner over such a log, of one queue unless more are given."""

    def __init__(
        self,
        stored: Mapping[MessageQueue, list[int]],
        *,
        start: QueuePositions | None = None,
        log: FakeLog | None = None,
        **options: Any,
    ) -> None:
        self.log = log or FakeLog()
        self.log.stored = {queue: list(times) for queue, times in stored.items()}
        self.brokers = FakeBrokerOffsets()
        self.planning = Planning(
            {queue: self.log.bounds(queue) for queue in stored},
            group=True,
            start=start or EARLIEST,
            message_lookup=self.log,
            broker_offsets=self.brokers,
            **options,
        )

    def next(self) -> list[tuple[MessageQueue, int, int]] | None:
        self.planning.view.bounds |= {queue: self.log.bounds(queue) for queue in self.log.stored}
        return self.planning.next()

    def consume(self, queue: MessageQueue, next_offset: int) -> None:
        last = self.log.message(queue, next_offset - 1)
        assert last is not None
        assert self.planning.commit(
            queue, next_offset, last_message=RememberedMessages.of(last), is_shown=True
        )
        self.brokers.offsets[queue] = next_offset
        self.planning.store.note_arrivals("g", {queue: next_offset})

    def consume_all(self) -> None:
        for queue, _, end in self.next() or []:
            self.consume(queue, end)

    def restart(self) -> None:
        """As another member takes everything over."""
        handed_over(self.planning, *self.log.stored)

    def generations(self) -> dict[MessageQueue, int]:
        return {queue: row.generation for queue, row in self.planning.store.read("g").items()}


@pytest.mark.parametrize("is_running", [True, False], ids=["while running", "while away"])
@pytest.mark.parametrize("count", [0, 1, 4, 5])
def test_a_topic_made_again_is_read_from_its_first_message_in_a_new_generation(
    count: int, is_running: bool
) -> None:
    """F4, H1: with fewer messages than before; running or not."""
    scenario = Scenario({A0: [1, 2, 3, 4, 5, 6]}, failOnDataLoss="false")
    scenario.consume_all()
    if not is_running:
        scenario.restart()
    scenario.log.stored[A0] = [100 + at for at in range(count)]

    assert scenario.next() == ([(A0, 0, count)] if count else None)
    assert scenario.generations() == {A0: 1}
    scenario.log.stored[A0] += [200, 201]
    assert scenario.next() == [(A0, 0, count + 2)]
    assert scenario.generations() == {A0: 1}
    assert scenario.brokers.offsets == {A0: 0}, "Java members begin there, too"


def test_a_topic_made_again_that_grew_past_the_stored_offset_is_found_at_the_next_claim() -> None:
    """F4"""
    scenario = Scenario({A0: [1, 2, 3]}, failOnDataLoss="false")
    scenario.consume_all()
    scenario.restart()
    scenario.log.stored[A0] = [100 + at for at in range(9)]

    assert scenario.next() == [(A0, 0, 9)]
    assert scenario.generations() == {A0: 1}


def test_a_topic_made_again_before_the_group_consumed_anything_is_found_too() -> None:
    """F4: by the message that the group's beginning passed over."""
    scenario = Scenario({A0: [1, 2, 3]}, failOnDataLoss="false", start=LATEST)
    assert scenario.next() is None
    scenario.restart()
    scenario.log.stored[A0] = [100 + at for at in range(9)]

    assert scenario.next() == [(A0, 0, 9)]
    assert scenario.generations() == {A0: 1}


def test_a_group_that_consumed_nothing_reports_the_loss() -> None:
    """F4: loud unless set otherwise."""
    scenario = Scenario({A0: [1, 2, 3]}, start=LATEST)
    assert scenario.next() is None
    scenario.restart()
    scenario.log.stored[A0] = [100 + at for at in range(9)]

    with pytest.raises(OffsetsBeganAgain, match="offsets 0 to 9"):
        scenario.next()


def test_a_group_that_consumed_nothing_goes_on_where_it_was_in_the_same_generation() -> None:
    """F4, F5: a reset, too, passes over messages."""
    scenario = Scenario({A0: [1, 2, 3], A1: [1, 2, 3]}, start=LATEST)
    assert scenario.next() is None
    scenario.planning.store.reset("g", {A1: 2})
    assert scenario.next() == [(A1, 2, 3)]
    scenario.restart()
    scenario.log.stored[A0] += [4]

    assert scenario.next() == [(A0, 3, 4), (A1, 2, 3)]
    assert scenario.generations() == {A0: 0, A1: 0}


def test_it_is_found_at_once_where_the_broker_has_less_than_at_the_last_look() -> None:
    """F4: a queue that was far from read."""
    scenario = Scenario({A0: [1, 2, 3, 4, 5, 6, 7]}, failOnDataLoss="false")
    scenario.next()
    scenario.consume(A0, 2)
    scenario.log.stored[A0] = [100, 101, 102, 103]

    assert scenario.next() == [(A0, 0, 4)]
    assert scenario.generations() == {A0: 1}


def test_it_is_found_when_the_topic_was_out_of_sight_for_a_moment() -> None:
    """F4: deleted and made again between two plans, and longer than before."""
    scenario = Scenario({A0: [1, 2], A1: [1]}, failOnDataLoss="false")
    scenario.consume_all()
    stored = scenario.log.stored.pop(A0)
    del scenario.planning.view.bounds[A0]
    assert scenario.next() is None
    scenario.log.stored[A0] = [at + 100 for at in [*stored, 3, 4]]

    assert scenario.next() == [(A0, 0, 4)]
    assert scenario.generations() == {A0: 1, A1: 0}


def passed_over_to(end: int, last: int, **options: Any) -> Scenario:
    """A group that has filtered out what follows the message at ``last``, and whose log is in tiered storage.

    Answers from there show an end that lags behind the queue's.
    """
    scenario = Scenario({A0: list(range(1, end + 1))}, **options)
    scenario.next()
    newest = scenario.log.message(A0, last)
    assert newest is not None
    assert scenario.planning.commit(A0, end, last_message=RememberedMessages.of(newest), is_shown=True)
    scenario.restart()
    scenario.log.tiered_end = last + 1
    return scenario


@pytest.mark.parametrize("fails", ["true", "false"])
def test_an_end_that_only_an_answer_from_tiered_storage_shows_is_no_loss(fails: str) -> None:
    """F4: the statistics of the same plan, and the broker when it is asked, have the position."""
    scenario = passed_over_to(6, last=2, failOnDataLoss=fails)

    assert scenario.next() is None
    scenario.log.stored[A0].append(7)
    assert scenario.next() == [(A0, 6, 7)]
    assert scenario.generations() == {A0: 0}


def test_a_log_that_is_shorter_by_all_witnesses_has_lost_its_tail() -> None:
    """F4: the statistics were read just before the log was cut off."""
    scenario = passed_over_to(6, last=2)
    scenario.planning.view.bounds[A0] = (0, 6)
    del scenario.log.stored[A0][4:]

    with pytest.raises(LogTailLost, match="offset 6 was wanted"):
        scenario.planning.next()


def test_another_look_into_tiered_storage_does_not_hold_a_changed_log_up() -> None:
    """F4: it shows an end that is lower than the one that the broker has reported."""
    scenario = passed_over_to(6, last=2, failOnDataLoss="false")
    scenario.log.stored[A0] = [1, 2, 103, 104, 105, 106, 107]

    assert scenario.next() == [(A0, 2, 7)]
    assert scenario.generations() == {A0: 1}


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize(
    "at_slave", [[1, 2, 3], [1, 2, 3, 4, 5, 100], []], ids=["behind", "another", "empty"]
)
def test_a_slave_that_is_listed_as_master_proves_no_loss(at_slave: list[int], fails: str) -> None:
    """F4, L3: a name server lists it while the master is down, and a route may be old."""
    scenario = Scenario({A0: [1, 2, 3, 4, 5, 6], B0: [1]}, failOnDataLoss=fails)
    scenario.consume_all()
    scenario.restart()
    scenario.log.stored |= {A0: at_slave, B0: [1, 2]}
    scenario.log.slaves = {"broker-a"}

    assert scenario.next() == [(B0, 1, 2)]
    assert "it is a slave" in str(scenario.planning.planner._waiting()[A0])
    scenario.log.stored[A0] = [1, 2, 3, 4, 5, 6, 7]
    scenario.log.slaves.clear()
    assert scenario.next() == [(A0, 6, 7)]
    assert scenario.generations() == {A0: 0, B0: 0}


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("first", [0, 6], ids=["behind", "without the beginning"])
def test_a_plain_stream_counts_nothing_as_lost_by_a_slave_that_is_listed_as_master(
    first: int, fails: str
) -> None:
    """F4, L3"""
    log = FakeLog()
    log.stored = {A0: [1, 2, 3, 4]}
    planning = Planning({A0: (0, 4)}, message_lookup=log, failOnDataLoss=fails)
    assert planning.next() == [(A0, 0, 4)]
    log.slaves = {"broker-a"}
    log.first[A0], log.stored[A0] = first, [1, 2]
    planning.view.bounds[A0] = log.bounds(A0)

    assert planning.next() is None
    log.slaves.clear()
    log.first[A0], log.stored[A0] = 0, [1, 2, 3, 4, 5]
    planning.view.bounds[A0] = (0, 5)
    assert planning.next() == [(A0, 4, 5)]


@pytest.mark.parametrize("grown", [0, 2, 9], ids=["not grown", "grown", "grown past the old end"])
def test_a_slave_that_lacked_the_end_of_the_log_is_read_from_where_it_ends(grown: int) -> None:
    """F4, H1: what it has of the old messages was consumed, what it got since was not."""
    scenario = Scenario({A0: [1, 2, 3, 4, 5, 6]}, failOnDataLoss="false")
    scenario.consume_all()
    scenario.restart()
    # Offsets of groups reach slaves later, too.
    scenario.brokers.offsets[A0] = 2
    scenario.log.stored[A0] = [1, 2, 3, 4] + [100 + at for at in range(grown)]

    assert scenario.next() == ([(A0, 4, 4 + grown)] if grown else None)
    row = scenario.planning.store.read("g")[A0]
    assert (row.next_offset, row.generation) == (4, 1)


def test_the_end_of_a_log_that_a_filter_had_passed_over_may_be_lost_too() -> None:
    """F4, A4: whatever comes behind the last message consumed was not consumed."""
    scenario = Scenario({A0: [1, 2, 3, 4, 5, 6]}, failOnDataLoss="false")
    scenario.next()
    scenario.planning.commit(A0, 6, last_message=RememberedMessages.of(LastMessage(1, 2, 0)))
    scenario.restart()
    scenario.log.stored[A0] = [1, 2, 3, 100]

    assert scenario.next() == [(A0, 2, 4)]
    assert scenario.generations() == {A0: 1}


@pytest.mark.parametrize("is_away", [False, True], ids=["live", "away"])
@pytest.mark.parametrize("target", [0, 3, 5])
def test_a_reset_within_a_life_begins_no_other(target: int, is_away: bool) -> None:
    """F5, H1: the sink goes on dropping what it has."""
    scenario = Scenario({A0: [1, 2, 3, 4, 5, 6]}, failOnDataLoss="false")
    scenario.consume_all()
    if is_away:
        scenario.restart()
        scenario.brokers.offsets[A0] = target
    else:
        scenario.planning.store.reset("g", {A0: target})

    assert scenario.next() == [(A0, target, 6)]
    assert scenario.generations() == {A0: 0}


def test_a_reset_in_a_topic_made_again_begins_a_life_where_the_operator_wants_it() -> None:
    """F4, F5: and needs no failOnDataLoss=false, for somebody has said where to go on."""
    scenario = Scenario({A0: [1, 2, 3, 4, 5, 6]})
    scenario.consume_all()
    scenario.restart()
    scenario.log.stored[A0] = [100 + at for at in range(9)]
    scenario.planning.store.reset("g", {A0: 7})

    assert scenario.next() == [(A0, 7, 9)]
    assert scenario.generations() == {A0: 1}


@pytest.mark.parametrize(("count", "error"), [(2, LogTailLost), (9, OffsetsBeganAgain)])
def test_with_fail_on_data_loss_the_query_ends_and_nothing_is_changed(
    count: int, error: type[Exception]
) -> None:
    """F4: loud unless set otherwise."""
    scenario = Scenario({A0: [1, 2, 3, 4]})
    scenario.consume_all()
    scenario.restart()
    scenario.log.stored[A0] = [100 + at for at in range(count)]

    with pytest.raises(error, match=f"queue=0: offset .* offsets 0 to {count}.*failOnDataLoss=false"):
        scenario.next()
    row = scenario.planning.store.read("g")[A0]
    assert (row.next_offset, row.generation) == (4, 0)


def test_messages_that_have_expired_are_a_gap_and_no_new_generation() -> None:
    """F4: whether they are those consumed cannot be known, and need not."""
    scenario = Scenario({A0: [1, 2, 3]}, failOnDataLoss="false")
    scenario.consume_all()
    scenario.restart()
    scenario.log.first[A0], scenario.log.stored[A0] = 50, [100, 101]

    scenario.next()

    assert scenario.next() == [(A0, 50, 52)]
    assert scenario.generations() == {A0: 0}


def test_brokers_are_looked_at_once_in_a_claim_and_never_for_a_batch() -> None:
    """C3, F4: a message each, where one was consumed."""
    scenario = Scenario({A0: [1, 2, 3], A1: [1]})
    scenario.next()
    scenario.consume(A0, 1)
    scenario.next()
    scenario.consume(A0, 2)
    assert scenario.log.looks == []
    scenario.restart()

    assert scenario.next() == [(A0, 2, 3), (A1, 0, 1)]
    scenario.consume(A0, 3)
    scenario.consume(A1, 1)
    assert scenario.next() is None

    assert scenario.log.looks == [{A0: 1}]


def test_a_broker_that_does_not_answer_is_asked_again_with_the_next_plan() -> None:
    """F3, F4: nothing is planned before it is known."""
    scenario = Scenario({A0: [1, 2, 3]}, failOnDataLoss="false")
    scenario.consume_all()
    scenario.restart()
    scenario.log.stored[A0] = [100 + at for at in range(9)]
    scenario.log.failure = ConnectFailed("broker-a:1", "refused")

    assert scenario.next() is None
    scenario.log.failure = None

    assert scenario.next() == [(A0, 0, 9)]


@pytest.mark.parametrize("fails", ["begin_generations", "note_passed"])
def test_a_broadcasting_instance_knows_its_own_generation_whose_plan_failed(fails: str) -> None:
    """H8, F4: its epoch has grown, too."""
    log = FakeLog()
    log.stored = {A0: [1, 2, 3], A1: []}
    planning = Planning(
        {queue: log.bounds(queue) for queue in log.stored}, group=True, is_sole_owner=True, message_lookup=log,
        failOnDataLoss="false",
    )  # fmt: skip
    planning.next()
    last = log.message(A0, 2)
    assert last is not None
    planning.commit(A0, 3, last_message=RememberedMessages.of(last))
    planning.store.reset("g", {A1: 1})
    log.stored |= {A0: [100, 101], A1: [4, 5]}
    planning.view.bounds |= {A0: (0, 2), A1: (0, 2)}
    right = getattr(planning.store, fails)

    def fail(*what: Any) -> Never:
        if fails == "begin_generations":
            right(*what)
        setattr(planning.store, fails, right)
        raise OffsetStoreUnavailable("storage is away")

    setattr(planning.store, fails, fail)
    assert planning.next() is None

    assert planning.next() == [(A0, 0, 2), (A1, 1, 2)]


def test_a_reset_that_is_reported_with_the_look_is_followed() -> None:
    """F5: the broker reports it once, with whatever pull of the group comes next."""
    scenario = Scenario({A0: [1, 2, 3]})
    scenario.consume_all()
    scenario.restart()
    scenario.log.reset_to[A0] = 1

    assert scenario.next() == [(A0, 1, 3)]
    assert scenario.generations() == {A0: 0}


class ResetWithEachLook(FakeLog):
    """Every look at A0 brings another reset, so many times."""

    left = 0

    def look(
        self, places: Mapping[MessageQueue, int], addresses: Mapping[str, BrokerAddress]
    ) -> dict[MessageQueue, Found | RocketMQError]:
        if A0 in places and self.left:
            self.left -= 1
            self.reset_to[A0] = 1 + self.left % 2
        return super().look(places, addresses)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 7])
def test_a_queue_is_planned_only_once_it_was_looked_at_since_its_last_reset(count: int) -> None:
    """F4, F5: however many resets come with the looks of one plan; others go on."""
    scenario = Scenario({A0: [1, 2, 3], B0: [1]}, failOnDataLoss="false", log=ResetWithEachLook())
    scenario.consume_all()
    scenario.restart()
    scenario.log.stored |= {A0: [100, 101, 102, 103], B0: [1, 2]}
    assert isinstance(scenario.log, ResetWithEachLook)
    scenario.log.left = count

    plans = [scenario.next() or []]
    while not any(queue == A0 for queue, _, _ in plans[-1]):
        assert scenario.log.left or len(plans) < 5
        plans.append(scenario.next() or [])

    assert (B0, 1, 2) in plans[0]
    assert scenario.generations()[A0] == 1, "it was looked at, and another log found"


def test_a_reset_that_was_reported_before_the_look_failed_is_followed() -> None:
    """F5: one broker has reported it, another did not answer; none of them reports it again."""
    scenario = Scenario({A0: [1, 2, 3], B0: [1]})
    scenario.consume_all()
    scenario.restart()
    scenario.log.reset_to[A0] = 1
    scenario.log.failure = ConnectFailed("broker-b:1", "refused")

    assert scenario.next() is None
    scenario.log.failure = None

    assert scenario.next() == [(A0, 1, 3)]


@pytest.mark.parametrize("is_held", [True, False], ids=["held", "lost"])
def test_a_reset_that_was_reported_with_a_look_and_could_not_be_stored_is_stored_later(
    is_held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F5: the same look found a topic made again, whose next generation could not be stored either;
    a queue that was lost meanwhile may
    have been reset again."""
    scenario = Scenario({A0: [1, 2, 3], A1: [1, 2]}, failOnDataLoss="false")
    scenario.consume_all()
    scenario.restart()
    scenario.log.reset_to[A0] = 1
    scenario.log.stored[A1] = [100]
    with monkeypatch.context() as storage:
        for change in ("reset", "begin_generations"):
            storage.setattr(scenario.planning.store, change, _unavailable)
        assert scenario.next() is None
    if not is_held:
        scenario.planning.ownership.taken.add(A0)

    assert scenario.next() == ([(A0, 1, 3), (A1, 0, 1)] if is_held else [(A1, 0, 1)])


def test_a_reset_that_was_reported_with_a_look_that_ends_the_query_is_stored() -> None:
    """F4, F5: the query that is started next hears of it no more."""
    scenario = Scenario({A0: [1, 2, 3], A1: [1, 2]})
    scenario.consume_all()
    scenario.restart()
    scenario.log.reset_to[A0] = 1
    scenario.log.stored[A1] = [100]

    with pytest.raises(LogTailLost):
        scenario.next()

    assert scenario.planning.store.read("g")[A0].next_offset == 1


def _unavailable(*_: object) -> None:
    raise OffsetStoreUnavailable("The storage is away.")


def test_bounds_that_are_older_than_the_claim_are_no_lost_messages() -> None:
    """F4, C3: the former owner consumed what came since the look at the broker."""
    scenario = Scenario({A0: [1, 2, 3]})
    scenario.consume_all()
    scenario.log.stored[A0] += [4, 5]
    scenario.next()
    scenario.consume(A0, 5)
    scenario.restart()
    scenario.planning.view.bounds[A0] = (0, 3)

    assert scenario.planning.next() is None
    assert scenario.next() is None
    scenario.log.stored[A0] += [6]
    assert scenario.next() == [(A0, 5, 6)]
    assert scenario.generations() == {A0: 0}


def test_a_generation_that_begins_behind_messages_remembers_the_last_of_them_at_once() -> None:
    """F4: else the end could be lost once more, and outgrown,
    before a message of the new generation is consumed.
    """
    scenario = Scenario({A0: [1, 2]}, failOnDataLoss="false")
    scenario.consume_all()
    del scenario.log.stored[A0][1:]
    assert scenario.next() is None
    scenario.restart()
    scenario.log.stored[A0] = [3, 4, 5]

    assert scenario.next() == [(A0, 0, 3)]


def test_a_topic_made_again_under_a_clock_set_back_is_read_from_its_first_message() -> None:
    """F4: no clock decides which messages are new."""
    scenario = Scenario({A0: [1000, 1001, 1002, 1003]}, failOnDataLoss="false")
    scenario.consume_all()
    scenario.restart()
    scenario.log.stored[A0] = [900, 901, 902, 903, 904, 905]

    assert scenario.next() == [(A0, 0, 6)]
    assert scenario.generations() == {A0: 1}


@pytest.mark.parametrize("at_broker", [40, 50], ids=["another member has consumed", "moved to the end"])
@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_group_goes_on_where_another_has_put_it_in_the_new_log(at_broker: int, fails: str) -> None:
    """F4, F5: that is where Java members go on, and nobody calls it a loss."""
    scenario = Scenario({A0: [1, 2, 3, 4, 5, 6]}, failOnDataLoss=fails)
    scenario.consume_all()
    scenario.restart()
    scenario.log.stored[A0] = [100 + at for at in range(50)]
    scenario.brokers.offsets[A0] = at_broker

    assert scenario.next() == ([(A0, 40, 50)] if at_broker == 40 else None)
    assert scenario.generations() == {A0: 1}
    assert scenario.brokers.offsets == {A0: at_broker}


def test_an_operator_answers_a_loss_at_the_broker() -> None:
    """F4, F5: a reset by an administrator's tool of 4.x, while the group is away."""
    scenario = Scenario({A0: [1, 2, 3, 4, 5, 6]})
    scenario.consume_all()
    scenario.restart()
    scenario.log.stored[A0] = [100 + at for at in range(9)]
    with pytest.raises(OffsetsBeganAgain):
        scenario.next()
    scenario.brokers.offsets[A0] = 0
    scenario.restart()

    assert scenario.next() == [(A0, 0, 9)]
    assert scenario.generations() == {A0: 1}


def test_an_answer_that_an_earlier_release_has_followed_in_vain_is_one() -> None:
    """F4, F5: it marked the row as a claimed one, ended at each start, and is upgraded for that."""
    scenario = Scenario({A0: [1, 2, 3, 4, 5, 6]})
    scenario.consume_all()
    scenario.restart()
    scenario.log.stored[A0] = [100 + at for at in range(9)]
    store = scenario.planning.store
    store.reset("g", {A0: 0})
    row = store.read("g")[A0]._replace(batch_id=CLAIMED, shown=stored_texts.shown("[0]"))
    store._change("g", lambda rows: Change({**rows, A0: row}, None), "")
    scenario.brokers.offsets[A0] = 0

    assert scenario.next() == [(A0, 0, 9)]
    assert scenario.generations() == {A0: 1}


@pytest.mark.parametrize("last", ["", "[3,4,0]"], ids=["only its offset", "known"])
def test_a_position_that_a_sink_has_set_is_nobodys_answer(last: str) -> None:
    """F4, H10: an offset store that was lost; a filter left the newest message below the watermark."""
    scenario = Scenario({A0: [1, 2, 3, 4, 5, 6]})
    store = scenario.planning.store
    store.claim("g", "", {A0: 6})
    store.note_sinks(
        "g", {A0: SinkRecord(generation=0, next_offset=6, last_message=RememberedMessages.from_text(last))}
    )
    scenario.log.stored[A0] = [100 + at for at in range(9)] if last else [100, 101]

    with pytest.raises(DataLoss):
        scenario.next()


def test_an_old_offset_of_a_promoted_slave_is_no_answer_to_its_loss() -> None:
    """F4: offsets of groups reach slaves later, like messages."""
    scenario = Scenario({A0: [1, 2, 3, 4, 5, 6]})
    scenario.consume_all()
    scenario.restart()
    scenario.brokers.offsets[A0] = 4
    scenario.log.stored[A0] = [1, 2, 3, 4, 100]

    with pytest.raises(DataLoss):
        scenario.next()


def test_what_another_member_consumed_is_not_taken_for_the_new_log_later() -> None:
    """F4, F5: the message before the position is remembered when it is followed."""
    scenario = Scenario({A0: [1, 2, 3, 4, 5, 6]}, failOnDataLoss="false")
    scenario.consume_all()
    scenario.restart()
    scenario.log.stored[A0] += [7, 8, 9]
    scenario.brokers.offsets[A0] = 9
    assert scenario.next() is None
    assert scenario.generations() == {A0: 0}
    scenario.restart()
    scenario.log.stored[A0] = [100 + at for at in range(20)]

    assert scenario.next() == [(A0, 0, 20)]
    assert scenario.generations() == {A0: 1}


def of_a_lost_end(position: int | None, fails: str = "false") -> Scenario:
    """A hundred messages consumed, the group reset to 10 and consumed up to a position, and the end lost."""
    scenario = Scenario({A0: list(range(1, 101))}, failOnDataLoss=fails)
    scenario.consume_all()
    scenario.planning.store.reset("g", {A0: 10})
    assert scenario.next() == [(A0, 10, 100)]
    if position is not None:
        scenario.consume(A0, position)
    scenario.restart()
    scenario.log.stored[A0] = [*range(1, 96), 500, 501, 502]
    return scenario


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("position", [None, 50], ids=["nothing consumed since", "some consumed since"])
def test_below_the_change_of_its_log_a_queue_goes_on_in_its_generation(
    position: int | None, fails: str
) -> None:
    """F4, F5: messages that an operator wants again are those of before; nothing to be consumed is lost."""
    scenario = of_a_lost_end(position, fails)

    assert scenario.next() == [(A0, position or 10, 95)]
    assert scenario.generations() == {A0: 0}


def test_the_next_generation_begins_when_the_position_reaches_the_change() -> None:
    """F4, H1: all messages behind it are new to the sink."""
    scenario = of_a_lost_end(50)
    scenario.next()
    scenario.consume(A0, 90)
    assert scenario.next() == [(A0, 90, 95)]
    scenario.consume(A0, 95)

    assert scenario.next() == [(A0, 95, 98)]
    assert scenario.generations() == {A0: 1}
    scenario.consume(A0, 98)
    scenario.log.stored[A0] += [503]
    assert scenario.next() == [(A0, 98, 99)]


def test_a_loss_is_reported_when_the_position_reaches_it() -> None:
    """F4: the messages that an operator wanted again are gone from there on."""
    scenario = of_a_lost_end(50, "true")
    scenario.next()
    scenario.consume(A0, 95)

    with pytest.raises(OffsetsBeganAgain):
        scenario.next()
