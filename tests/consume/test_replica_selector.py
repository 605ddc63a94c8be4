"""Which broker a queue is pulled from: followed when it helps, never believed where it may be wrong."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.consume.slave_reads import AVOIDED_S, ReplicaSelector


def test_the_master_is_pulled_from_at_first() -> None:
    assert ReplicaSelector([1, 2]).broker_id == 0


def test_a_suggested_replica_is_followed_and_so_is_the_way_back() -> None:
    """A4: suggestWhichBrokerId."""
    chosen = ReplicaSelector([1, 2])

    chosen.suggested(0, 2, now_s=0.0)
    assert chosen.broker_id == 2
    chosen.suggested(2, 2, now_s=0.0)
    assert chosen.broker_id == 2
    chosen.suggested(2, 0, now_s=0.0)
    assert chosen.broker_id == 0


@pytest.mark.parametrize("unknown", [3, -1])
def test_a_replica_whose_address_is_not_known_is_not_followed(unknown: int) -> None:
    chosen = ReplicaSelector([1])

    chosen.suggested(0, unknown, now_s=0.0)

    assert chosen.broker_id == 0


def test_the_answer_of_a_broker_left_behind_decides_nothing() -> None:
    """Pulls are in flight at both when the choice changes."""
    chosen = ReplicaSelector([1, 2])
    chosen.suggested(0, 1, now_s=0.0)

    chosen.suggested(0, 2, now_s=0.0)
    assert chosen.broker_id == 1
    chosen.suggested(2, 0, now_s=0.0)
    assert chosen.broker_id == 1


def test_a_replica_that_does_not_serve_is_not_asked_for_a_while() -> None:
    """A4: the master suggests it with every answer."""
    chosen = ReplicaSelector([1])
    chosen.suggested(0, 1, now_s=5.0)

    assert chosen.disappointed(1, now_s=6.0)
    chosen.suggested(0, 1, now_s=6.0)
    assert chosen.broker_id == 0
    chosen.suggested(0, 1, now_s=6.0 + AVOIDED_S)
    assert chosen.broker_id == 1


def test_a_master_that_does_not_serve_is_trouble_and_stays_the_one_to_ask() -> None:
    chosen = ReplicaSelector([1])

    assert not chosen.disappointed(0, now_s=0.0)
    assert chosen.broker_id == 0


def test_a_master_that_calls_itself_a_replica_changes_nothing() -> None:
    chosen = ReplicaSelector([0])

    chosen.suggested(0, 0, now_s=0.0)

    assert chosen.broker_id == 0


def test_a_preferred_replica_is_pulled_from_without_being_suggested() -> None:
    """readFrom=slave: the master's suggestion of itself is not followed."""
    chosen = ReplicaSelector([2, 1], prefers_replica=True)
    assert chosen.broker_id == 1
    chosen.suggested(1, 0, now_s=0.0)

    assert chosen.broker_id == 1


def test_a_preferred_replica_that_failed_is_preferred_again_after_a_while() -> None:
    """readFrom=slave: what it lacks is read from the master."""
    chosen = ReplicaSelector([1], prefers_replica=True)
    assert chosen.disappointed(1, now_s=0.0)
    assert chosen.broker_id == 0

    chosen.suggested(0, 0, now_s=AVOIDED_S - 0.1)
    assert chosen.broker_id == 0
    chosen.suggested(0, 0, now_s=AVOIDED_S)
    assert chosen.broker_id == 1


def test_without_a_replica_the_master_is_preferred() -> None:
    chosen = ReplicaSelector([], prefers_replica=True)

    assert chosen.broker_id == 0


def test_a_replica_is_asked_in_the_place_of_a_master_that_does_not_answer() -> None:
    """L3: of several the first; its suggestion of the master is not followed for a while."""
    chosen = ReplicaSelector([2, 1], replaces_master=True)

    assert chosen.master_failed(now_s=0.0)
    assert chosen.broker_id == 1
    # Other pulls that were under way at the master.
    assert chosen.master_failed(now_s=0.5)
    chosen.suggested(1, 0, now_s=1.0)
    assert chosen.broker_id == 1
    chosen.suggested(1, 0, now_s=0.5 + AVOIDED_S)
    assert chosen.broker_id == 0


def test_a_replica_that_failed_is_not_asked_again_at_once_for_a_master_that_does_not_answer() -> None:
    """L3: the two would be asked by turns without a pause."""
    chosen = ReplicaSelector([1], replaces_master=True)
    assert chosen.master_failed(now_s=0.0)
    assert chosen.disappointed(1, now_s=1.0)

    assert not chosen.master_failed(now_s=2.0)
    assert chosen.broker_id == 0
    assert chosen.master_failed(now_s=1.0 + AVOIDED_S)
    assert chosen.broker_id == 1


def test_the_end_of_a_replica_leads_to_its_master_only_if_that_may_answer() -> None:
    """L3: else the two would be asked by turns without a pause."""
    chosen = ReplicaSelector([1], replaces_master=True)
    assert chosen.master_failed(now_s=0.0)

    assert not chosen.ended(now_s=1.0)
    assert chosen.broker_id == 1
    assert chosen.ended(now_s=AVOIDED_S)
    assert chosen.broker_id == 0


@pytest.mark.parametrize(("replicas", "replaces_master"), [([1], False), ([], True)])
def test_the_master_is_kept_if_no_replica_may_replace_it(replicas: list[int], replaces_master: bool) -> None:
    chosen = ReplicaSelector(replicas, replaces_master=replaces_master)

    assert not chosen.master_failed(now_s=0.0)
    assert chosen.broker_id == 0
