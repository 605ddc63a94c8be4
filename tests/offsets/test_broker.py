"""Offsets at the brokers: positions as everywhere, and honest about the rest."""

from __future__ import annotations

from typing import Never

import pytest

from pyspark_rocketmq.errors import BrokerOffsetUnavailable, OffsetError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.broker import BrokerOffsetStore
from pyspark_rocketmq.offsets.open import checked_rows
from tests.helpers.offsets_at_brokers import OffsetsAtBrokers
from tests.offsets.conformance import GROUP, Q0, Q1, PositionConformance, committed

AT_B = MessageQueue("orders", "broker-b", 0)


@pytest.fixture
def brokers() -> OffsetsAtBrokers:
    return OffsetsAtBrokers(GROUP)


@pytest.fixture
def store(brokers: OffsetsAtBrokers) -> BrokerOffsetStore:
    return BrokerOffsetStore(brokers)


class TestBrokerOffsetStore(PositionConformance):
    @pytest.fixture
    def store(self, brokers: OffsetsAtBrokers) -> BrokerOffsetStore:
        return BrokerOffsetStore(brokers)


def test_any_member_s_commit_counts_and_the_larger_stays(
    brokers: OffsetsAtBrokers, store: BrokerOffsetStore
) -> None:
    """F1, F6: nobody is fenced; RemoteBrokerOffsetStore.updateOffset with increaseOnly."""
    other = BrokerOffsetStore(brokers)
    epoch = store.claim(GROUP, "one", {Q0: 0, Q1: 0})[Q0].epoch
    other.claim(GROUP, "two", {Q0: 0})

    result = store.commit(
        GROUP, [committed(Q0, 9, epoch=epoch), committed(Q1, 3, epoch=epoch)], query_id="q", batch_id=1
    )
    other.commit(GROUP, [committed(Q0, 5, epoch=epoch)], query_id="p", batch_id=7)

    assert (len(result.accepted), result.refused) == (2, ())
    assert brokers.offsets == {Q0: 9, Q1: 3}


def test_offsets_that_brokers_lack_for_a_while_are_not_taken_for_a_restored_store(
    brokers: OffsetsAtBrokers, store: BrokerOffsetStore
) -> None:
    """Brokers that are away report nothing."""
    seen = store.claim(GROUP, "one", {Q0: 4})
    brokers.offsets.clear()

    assert checked_rows(store, GROUP, store.read(GROUP), seen=seen) == {}


def test_unchanged_offsets_are_not_sent(brokers: OffsetsAtBrokers, store: BrokerOffsetStore) -> None:
    epoch = store.claim(GROUP, "one", {Q0: 4})[Q0].epoch
    store.claim(GROUP, "two", {Q0: 0})

    store.commit(GROUP, [committed(Q0, 4, epoch=epoch)], query_id="q", batch_id=1)

    assert [each for each in brokers.written if each] == [{Q0: 4}]


def test_a_claim_is_remembered_where_it_was_made(store: BrokerOffsetStore, brokers: OffsetsAtBrokers) -> None:
    """The planner asks whether a queue is still its own; brokers cannot know."""
    store.claim(GROUP, "one", {Q0: 0})

    assert store.read(GROUP)[Q0].owner == "one"
    assert store.reset(GROUP, {Q0: 2})[Q0].owner == "one"
    assert BrokerOffsetStore(brokers).read(GROUP)[Q0].owner == ""


def test_another_group_is_refused(store: BrokerOffsetStore) -> None:
    assert store.read("other") == {}
    with pytest.raises(
        OffsetError, match=r"group order-etl at its brokers.* of group other.* Nothing was stored"
    ):
        store.claim("other", "me", {Q0: 0})


def test_name_servers_without_an_answer_are_an_error_and_never_an_offset(
    store: BrokerOffsetStore, brokers: OffsetsAtBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F3"""

    def silent(queues: dict[MessageQueue, int] | None = None) -> Never:
        raise BrokerOffsetUnavailable("the name server does not answer")

    monkeypatch.setattr(brokers, "read", silent)

    for call in (lambda: store.read(GROUP), lambda: store.claim(GROUP, "me", {Q0: 0}), store.groups):
        with pytest.raises(BrokerOffsetUnavailable):
            call()
    assert brokers.written == []


# --- a broker that is away ----------------------------------------------------------------------------------


def commit(store: BrokerOffsetStore, **next_offsets: int) -> None:
    """Commit offsets of Q0 (``q0``) and of the queue at broker-b (``at_b``)."""
    queues = {"q0": Q0, "at_b": AT_B}
    commits = [committed(queues[name], offset, epoch=1) for name, offset in next_offsets.items()]
    result = store.commit(GROUP, commits, query_id="q", batch_id=1)
    assert (len(result.accepted), result.refused) == (len(commits), ())


@pytest.fixture
def away(brokers: OffsetsAtBrokers, store: BrokerOffsetStore) -> OffsetsAtBrokers:
    """Both queues are at 4, as the store has read, and broker-b does not answer any more."""
    brokers.offsets = {Q0: 4, AT_B: 4}
    store.read(GROUP)
    brokers.down = {"broker-b"}
    return brokers


def test_a_broker_that_is_away_has_no_rows_and_others_have_theirs(
    store: BrokerOffsetStore, away: OffsetsAtBrokers
) -> None:
    """A8, F3: an error is never an offset."""
    assert store.read(GROUP).keys() == {Q0}
    assert store.groups() == (GROUP,)
    with pytest.raises(BrokerOffsetUnavailable, match="broker-b"):
        store.claim(GROUP, "me", {Q0: 0, AT_B: 0})
    with pytest.raises(BrokerOffsetUnavailable, match="broker-b"):
        store.reset(GROUP, {Q0: 0, AT_B: 0})
    away.offsets = {AT_B: 4}
    with pytest.raises(BrokerOffsetUnavailable, match="broker-b"):
        store.groups()


@pytest.mark.parametrize("again", ["commit", "read", "empty commit"])
def test_what_a_broker_does_not_take_is_kept_and_sent_again(
    store: BrokerOffsetStore, away: OffsetsAtBrokers, caplog: pytest.LogCaptureFixture, again: str
) -> None:
    """A8, F1: ``RemoteBrokerOffsetStore.persistAll`` only logs a broker that fails."""
    commit(store, q0=6, at_b=7)
    commit(store, q0=8, at_b=9)
    assert away.offsets == {Q0: 8, AT_B: 4}
    [warning] = [text for text in caplog.messages if "does not take" in text]
    assert f"messages come again group={GROUP} broker=broker-b: broker-b does not answer" in warning

    away.down.clear()
    if again == "read":
        assert store.read(GROUP)[AT_B].next_offset == 9
    else:
        commit(store, **({"q0": 9} if again == "commit" else {}))

    assert away.offsets[AT_B] == 9
    store.read(GROUP)
    assert sum(AT_B in each for each in away.written) == 1


def test_what_a_broker_that_has_just_answered_does_not_take_is_kept(
    store: BrokerOffsetStore, away: OffsetsAtBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A8: it goes away between the two requests of a commit."""
    monkeypatch.setattr(away, "read", lambda queues=None: dict(away.offsets))
    commit(store, q0=6, at_b=7)
    assert away.offsets == {Q0: 6, AT_B: 4}

    away.down.clear()
    assert store.read(GROUP)[AT_B].next_offset == 7


@pytest.mark.parametrize("moved_to", [0, 5, 7, 8, 20])
def test_a_kept_offset_does_not_replace_one_that_somebody_has_stored_meanwhile(
    store: BrokerOffsetStore, away: OffsetsAtBrokers, moved_to: int
) -> None:
    """F5, F6: an operator may have moved the group back; another member may be behind or ahead."""
    commit(store, at_b=7)
    away.offsets[AT_B] = moved_to
    away.down.clear()

    assert store.read(GROUP)[AT_B].next_offset == moved_to
    away.down = {"broker-b"}
    store.read(GROUP)
    away.down.clear()
    assert store.read(GROUP)[AT_B].next_offset == moved_to


def test_a_kept_offset_is_sent_until_it_is_taken(
    store: BrokerOffsetStore, away: OffsetsAtBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A8: the broker answers, and goes away again before it has stored the offset."""
    commit(store, at_b=7)
    monkeypatch.setattr(away, "read", lambda queues=None: dict(away.offsets))
    assert store.read(GROUP).keys() == {Q0}

    away.down.clear()
    assert store.read(GROUP)[AT_B].next_offset == 7


@pytest.mark.parametrize(("stored", "then"), [(4, 7), (7, 7), (9, 9)])
def test_an_offset_for_a_broker_that_was_never_read_only_raises_what_it_has(
    brokers: OffsetsAtBrokers, store: BrokerOffsetStore, stored: int, then: int
) -> None:
    """F6: a query that starts while the broker is away."""
    brokers.down = {"broker-b"}
    commit(store, at_b=7)
    brokers.offsets[AT_B] = stored
    brokers.down.clear()

    assert store.read(GROUP)[AT_B].next_offset == then


def test_a_reset_replaces_what_was_kept(store: BrokerOffsetStore, away: OffsetsAtBrokers) -> None:
    """F5: else the kept offset could undo it."""
    commit(store, at_b=7)
    away.down.clear()
    store.reset(GROUP, {AT_B: 4})

    assert store.read(GROUP)[AT_B].next_offset == 4


def test_a_commit_while_a_broker_is_away_never_goes_back(
    store: BrokerOffsetStore, away: OffsetsAtBrokers
) -> None:
    """F6: parts of one batch that are committed ahead of it, and the batch again."""
    commit(store, at_b=9)
    commit(store, at_b=7)
    away.down.clear()

    assert store.read(GROUP)[AT_B].next_offset == 9


# --- a broker that has lost the offsets ---------------------------------------------------------------------


@pytest.mark.parametrize(("reached", "stored"), [(9, 9), (4, 4)])
def test_a_commit_goes_on_from_the_last_offset_that_a_broker_had(
    brokers: OffsetsAtBrokers, store: BrokerOffsetStore, reached: int, stored: int
) -> None:
    """F1: ``RemoteBrokerOffsetStore.offsetTable`` keeps it, and ``persistAll`` stores it again."""
    brokers.offsets = {Q0: 4}
    store.read(GROUP)
    brokers.forget()

    commit(store, q0=3)
    assert brokers.offsets == {}
    commit(store, q0=reached)
    assert brokers.offsets == {Q0: stored}


def test_a_kept_offset_is_sent_to_a_broker_that_comes_back_without_any(
    store: BrokerOffsetStore, away: OffsetsAtBrokers
) -> None:
    """A8, F1"""
    commit(store, at_b=7)
    away.forget()
    away.down.clear()

    assert store.read(GROUP)[AT_B].next_offset == 7


def test_only_an_offset_that_was_seen_is_stored_again(
    brokers: OffsetsAtBrokers, store: BrokerOffsetStore
) -> None:
    """F3: without one, the group may be new here."""
    refused = store.commit(GROUP, [committed(Q0, 9, epoch=1)], query_id="q", batch_id=1).refused

    assert [each.queue for each in refused] == [Q0]
    assert brokers.offsets == {}


def test_a_lost_offset_is_logged_once(
    brokers: OffsetsAtBrokers, store: BrokerOffsetStore, caplog: pytest.LogCaptureFixture
) -> None:
    """F5: a broker that does not know the group any more stores nothing, and triggers come often."""
    store.claim(GROUP, "me", {Q0: 4})
    for _ in range(2):
        for _ in range(3):
            brokers.forget()
            store.claim(GROUP, "me", {Q0: 4})
        store.read(GROUP)

    lost = [text for text in caplog.messages if "has lost the group's offset" in text]
    text = "the broker has lost the group's offset, and the query stores next_offset there"
    assert lost == 2 * [f"{text} group={GROUP} {Q0} next_offset=4"]
