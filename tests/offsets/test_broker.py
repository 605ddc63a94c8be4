"""Offsets at the brokers: positions as everywhere, and honest about the rest."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Never

import pytest

from pyspark_rocketmq.errors import BrokerOffsetUnavailable, OffsetError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.broker import BrokerOffsetStore
from pyspark_rocketmq.offsets.open import checked_rows
from tests.offsets.conformance import GROUP, Q0, Q1, PositionConformance, committed


class Brokers:
    """A group's offsets as brokers keep them: numbers."""

    consumer_group = GROUP

    def __init__(self) -> None:
        self.offsets: dict[MessageQueue, int] = {}
        self.written: list[dict[MessageQueue, int]] = []

    def read(self, queues: Collection[MessageQueue] | None = None) -> dict[MessageQueue, int]:
        return {queue: at for queue, at in self.offsets.items() if queues is None or queue in queues}

    def write(self, next_offsets: Mapping[MessageQueue, int]) -> None:
        self.written.append(dict(next_offsets))
        self.offsets |= next_offsets


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def store(brokers: Brokers) -> BrokerOffsetStore:
    return BrokerOffsetStore(brokers)


class TestBrokerOffsetStore(PositionConformance):
    @pytest.fixture
    def store(self, brokers: Brokers) -> BrokerOffsetStore:
        return BrokerOffsetStore(brokers)


def test_any_member_s_commit_counts_and_the_larger_stays(brokers: Brokers, store: BrokerOffsetStore) -> None:
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
    brokers: Brokers, store: BrokerOffsetStore
) -> None:
    """Brokers that are away report nothing."""
    seen = store.claim(GROUP, "one", {Q0: 4})
    brokers.offsets.clear()

    assert checked_rows(store, GROUP, store.read(GROUP), seen=seen) == {}


def test_unchanged_offsets_are_not_sent(brokers: Brokers, store: BrokerOffsetStore) -> None:
    epoch = store.claim(GROUP, "one", {Q0: 4})[Q0].epoch
    store.claim(GROUP, "two", {Q0: 0})

    store.commit(GROUP, [committed(Q0, 4, epoch=epoch)], query_id="q", batch_id=1)

    assert [each for each in brokers.written if each] == [{Q0: 4}]


def test_a_claim_is_remembered_where_it_was_made(store: BrokerOffsetStore, brokers: Brokers) -> None:
    """The planner asks whether a queue is still its own; brokers cannot know."""
    store.claim(GROUP, "one", {Q0: 0})

    assert store.read(GROUP)[Q0].owner == "one"
    assert BrokerOffsetStore(brokers).read(GROUP)[Q0].owner == ""


def test_another_group_is_refused(store: BrokerOffsetStore) -> None:
    assert store.read("other") == {}
    with pytest.raises(
        OffsetError, match=r"group order-etl at its brokers.* of group other.* Nothing was stored"
    ):
        store.claim("other", "me", {Q0: 0})


def test_a_broker_without_an_answer_is_an_error_and_never_an_offset(
    store: BrokerOffsetStore, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F3"""

    def silent(queues: dict[MessageQueue, int] | None = None) -> Never:
        raise BrokerOffsetUnavailable("broker-a does not answer")

    monkeypatch.setattr(brokers, "read", silent)

    for call in (lambda: store.read(GROUP), lambda: store.claim(GROUP, "me", {Q0: 0}), store.groups):
        with pytest.raises(BrokerOffsetUnavailable):
            call()
    assert brokers.written == []
