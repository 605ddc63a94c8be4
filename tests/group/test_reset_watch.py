"""A reset made at the brokers, of queues that no plan reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from pyspark_rocketmq.client.broker import BrokerClient, OnPull
from pyspark_rocketmq.client.pool import ChannelPool, ConnectionSettings
from pyspark_rocketmq.errors import ConnectFailed, OffsetStoreUnavailable, RocketMQError
from pyspark_rocketmq.group.broker_offsets import PullingResetWatch
from pyspark_rocketmq.model import BrokerAddress, MessageQueue
from pyspark_rocketmq.wire.requests.pull import PullRequest, PullResult, PullStatus
from tests.group.test_gained_queues import QUEUES, Group
from tests.group.test_group_member import options
from tests.helpers.fake_clock import FakeClock
from tests.source.test_planner import A0, A1, Planning


class FakeWatch:
    """Notes what it is to ask for; a test says what was reported."""

    def __init__(self) -> None:
        self.told: dict[MessageQueue, int] = {}
        self.idle: Mapping[MessageQueue, int] = {}

    def found(self) -> dict[MessageQueue, int]:
        found, self.told = self.told, {}
        return found

    def look(self, idle: Mapping[MessageQueue, int], addresses: Mapping[str, BrokerAddress]) -> None:
        assert {queue.broker_name for queue in idle} <= addresses.keys()
        self.idle = idle


def test_queues_with_nothing_new_are_watched() -> None:
    """F5: who reads a queue is notified anyway."""
    watch = FakeWatch()
    planning = Planning({A0: (0, 5), A1: (0, 3)}, group=True, reset_watch=watch)
    planning.next()
    assert watch.idle == {}
    planning.commit(A0, 5)
    planning.commit(A1, 2)

    planning.next()

    assert watch.idle == {A0: 5}


def test_a_reset_that_was_reported_is_planned_at_once_under_a_new_epoch() -> None:
    """F5: without a message to wake the queue."""
    watch = FakeWatch()
    planning = Planning({A0: (0, 5)}, group=True, reset_watch=watch)
    planning.next()
    planning.commit(A0, 5)
    assert planning.next() is None

    watch.told = {A0: 2}

    assert planning.next() == [(A0, 2, 5)]
    row = planning.store.read("g")[A0]
    assert (row.next_offset, row.epoch, row.was_reset) == (2, 2, True)


def test_a_reset_of_a_queue_that_was_lost_meanwhile_is_stored_for_its_next_owner() -> None:
    """F5: the broker reports it once, and an operator means the group."""
    watch = FakeWatch()
    planning = Planning({A0: (0, 5)}, group=True, reset_watch=watch)
    planning.next()
    planning.commit(A0, 5)
    planning.ownership.taken.add(A0)

    watch.told = {A0: 2}

    assert planning.next() is None
    assert planning.store.read("g")[A0].next_offset == 2


def test_a_reset_that_could_not_be_stored_is_stored_with_the_next_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F5: the broker has forgotten it by then."""
    planning = _told_while_the_storage_is_away(monkeypatch)

    assert planning.next() == [(A0, 2, 5)]


def test_a_reset_that_could_not_be_stored_before_its_queue_was_lost_is_not_followed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """F5: the new owner may have got a later one."""
    planning = _told_while_the_storage_is_away(monkeypatch)
    planning.ownership.taken.add(A0)

    assert planning.next() is None
    assert planning.store.read("g")[A0].next_offset == 5
    assert "reset not followed, this member lost the queue before; reset it again" in caplog.text


def _told_while_the_storage_is_away(monkeypatch: pytest.MonkeyPatch) -> Planning:
    """A0 is at 5, and was reset to 2."""
    watch = FakeWatch()
    planning = Planning({A0: (0, 5)}, group=True, reset_watch=watch)
    planning.next()
    planning.commit(A0, 5)

    watch.told = {A0: 2}
    with monkeypatch.context() as storage:
        storage.setattr(planning.store, "reset", _unavailable)
        assert planning.next() is None
    return planning


def _unavailable(*_: object) -> None:
    raise OffsetStoreUnavailable("The storage is away.")


class Looks:
    """A watch whose looks a test answers, and the member whose queues it looks at."""

    def __init__(self, clock: FakeClock, pool: ChannelPool, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = clock
        self.group = Group(clock)
        self.pulls: list[OnPull] = []
        monkeypatch.setattr(BrokerClient, "pull_async", self._pull_async)
        self.watch = PullingResetWatch(options(), pool, clock, self.group.member.reset_is_due)

    def _pull_async(self, _address: str, _request: PullRequest, on_result: OnPull) -> None:
        self.pulls.append(on_result)

    def look(self) -> OnPull:
        """Look at a queue that was consumed up to its end, offset 5; return what takes the answer."""
        self.clock.advance(15)
        self.watch.look({QUEUES[0]: 5}, {"broker-a": BrokerAddress("a:1")})
        return self.pulls.pop()


@pytest.fixture
def looks(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Looks]:
    pool = ConnectionSettings.of(options()).open_pool(clock)
    made = Looks(clock, pool, monkeypatch)
    yield made
    made.group.member.stop(0.0)
    pool.close()


def test_a_reset_that_the_answer_to_a_look_reports_outdates_the_plan_and_is_followed_once(
    looks: Looks,
) -> None:
    """F5: in real time the next plan is minutes away, and the broker has forgotten the reset."""
    group = looks.group
    group.has(1)
    group.plan()
    answer = looks.look()
    assert group.look() == []

    answer(PullResult(PullStatus.OFFSET_ILLEGAL, 2, 0, 5))

    assert group.look() == [(1, f"an operator has reset {QUEUES[0]}")]
    group.member.begin_plan()
    assert (group.member.take_resets(), looks.watch.found()) == ({}, {QUEUES[0]: 2})
    group.plan()
    assert group.look() == []
    assert (group.member.take_resets(), looks.watch.found()) == ({}, {})


def test_a_reset_that_is_reported_while_a_plan_is_made_outdates_that_plan_when_it_is_made(
    looks: Looks,
) -> None:
    """F5: the answer comes after this plan has taken the resets, and before the driver has the plan."""
    group = looks.group
    group.has(1)
    grants = group.member.begin_plan()
    group.member.take_resets()
    assert looks.watch.found() == {}

    looks.look()(PullResult(PullStatus.OFFSET_ILLEGAL, 2, 0, 5))

    assert group.look() == []
    group.member.planned(grants)
    assert group.look() == [(1, f"an operator has reset {QUEUES[0]}")]
    assert looks.watch.found() == {QUEUES[0]: 2}


@pytest.mark.parametrize(
    "outcome",
    [
        pytest.param(PullResult(PullStatus.NO_NEW_MSG, 5, 0, 5), id="nothing new"),
        pytest.param(PullResult(PullStatus.OFFSET_ILLEGAL, 7, 7, 9), id="the messages are gone"),
        pytest.param(ConnectFailed("a:1", "refused"), id="no answer"),
    ],
)
def test_a_look_that_finds_no_reset_leaves_the_plan_as_it_is(
    looks: Looks, outcome: PullResult | RocketMQError
) -> None:
    """F5: a batch in real time goes on."""
    looks.group.has(1)
    looks.group.plan()

    looks.look()(outcome)

    assert looks.group.look() == []
    assert looks.watch.found() == {}
