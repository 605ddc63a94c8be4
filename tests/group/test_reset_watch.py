"""A reset made at the brokers, of queues that no plan reads."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pyspark_rocketmq.errors import OffsetStoreUnavailable
from pyspark_rocketmq.model import BrokerAddress, MessageQueue
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
