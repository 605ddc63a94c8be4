"""What every offset store promises; each store's test module runs this suite on its own store.

``PositionConformance`` is what all of them can do;
``OffsetStoreConformance`` adds what only a store that fences can.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from pyspark_rocketmq.errors import OffsetError, OffsetRegressed
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.offsets.broker import BrokerOffsetStore
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.offsets.file import FileOffsetStore
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.offsets.store import (
    CLAIMED,
    FOLLOWED,
    LastSkipped,
    NewGeneration,
    OffsetRow,
    OffsetStore,
    QueueCommit,
    SinkRecord,
)
from tests.helpers import stored_texts
from tests.helpers.fake_clock import FakeClock
from tests.offsets.store_workers import claim_and_commit

GROUP = "order-etl"
Q0 = MessageQueue("orders", "broker-a", 0)
Q1 = MessageQueue("orders", "broker-a", 1)
Q2 = MessageQueue("orders", "broker-b", 0)
START_S = 1_700_000_000.25


def committed(queue: MessageQueue, next_offset: int, epoch: int = 1, **more: Any) -> QueueCommit:
    state = {name: more.pop(name) for name in QueueState._fields if name in more}
    return QueueCommit(queue=queue, state=QueueState(next_offset, epoch, **state), **more)


class PositionConformance:
    """Needs a fixture ``store``, empty; its clock, if it has one, is ``clock``."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock(START_S)

    def test_an_unknown_group_has_no_rows(self, store: OffsetStore) -> None:
        assert store.read("nobody") == {}

    def test_a_claim_returns_only_the_claimed_queues(self, store: OffsetStore) -> None:
        store.claim(GROUP, "client-1", {Q0: 0})

        assert set(store.claim(GROUP, "client-1", {Q1: 0, Q2: 0})) == {Q1, Q2}
        assert set(store.read(GROUP)) == {Q0, Q1, Q2}

    def test_a_claim_of_nothing_stores_nothing(self, store: OffsetStore) -> None:
        assert store.claim(GROUP, "client-1", {}) == {}
        assert store.read(GROUP) == {}

    def test_a_commit_of_a_queue_never_claimed_is_refused(self, store: OffsetStore) -> None:
        commit = committed(Q0, 9)

        assert store.commit(GROUP, [commit], query_id="q", batch_id=1).refused == (commit,)
        assert store.read(GROUP) == {}

    def test_a_commit_that_changes_nothing_writes_nothing(self, store: OffsetStore, clock: FakeClock) -> None:
        store.claim(GROUP, "client-1", {Q0: 0})
        store.commit(GROUP, [committed(Q0, 9)], query_id="q", batch_id=1)
        before = store.read(GROUP)
        clock.advance(60)

        result = store.commit(GROUP, [committed(Q0, 9)], query_id="q", batch_id=2)

        assert result.refused == ()
        assert store.read(GROUP) == before

    def test_an_empty_commit_is_accepted(self, store: OffsetStore) -> None:
        assert store.commit(GROUP, [], query_id="q", batch_id=1).accepted == ()

    @pytest.mark.parametrize("change", ["claim", "commit", "reset", "attempts"])
    def test_negative_values_are_refused_in_a_sentence(self, store: OffsetStore, change: str) -> None:
        """F3: -1 means "not found" and never becomes a position."""
        store.claim(GROUP, "client-1", {Q0: 0})
        before = store.read(GROUP)
        bad_attempts = committed(Q0, 1, reconsume_times=-1)

        changes: dict[str, Callable[[], object]] = {
            "claim": lambda: store.claim(GROUP, "client-1", {Q1: -1}),
            "commit": lambda: store.commit(GROUP, [committed(Q0, -1)], query_id="q", batch_id=1),
            "reset": lambda: store.reset(GROUP, {Q0: -1}),
            "attempts": lambda: store.commit(GROUP, [bad_attempts], query_id="q", batch_id=1),
        }

        with pytest.raises(OffsetError, match=r"order-etl.*topic=orders broker=broker-a queue=\d.*-1"):
            changes[change]()

        assert store.read(GROUP) == before

    @pytest.mark.parametrize("change", ["claim", "commit", "reset"])
    def test_offsets_beyond_64_bits_are_refused_in_a_sentence(self, store: OffsetStore, change: str) -> None:
        """F3: neither a broker nor Java's members could read them."""
        store.claim(GROUP, "client-1", {Q0: 0})
        before = store.read(GROUP)
        changes: dict[str, Callable[[], object]] = {
            "claim": lambda: store.claim(GROUP, "client-1", {Q1: 2**63}),
            "commit": lambda: store.commit(GROUP, [committed(Q0, 2**63)], query_id="q", batch_id=1),
            "reset": lambda: store.reset(GROUP, {Q0: 2**63}),
        }

        with pytest.raises(OffsetError, match=r"order-etl.*topic=orders broker=broker-a queue=\d.*above"):
            changes[change]()

        assert store.read(GROUP) == before

    def test_offsets_beyond_32_bits_are_kept(self, store: OffsetStore) -> None:
        store.claim(GROUP, "client-1", {Q0: 2**62})

        assert store.read(GROUP)[Q0].next_offset == 2**62

    def test_a_group_without_offsets_begins_as_configured_and_goes_on_from_what_it_stored(
        self, store: BrokerOffsetStore | DeltaOffsetStore | FileOffsetStore | MemoryOffsetStore
    ) -> None:
        """F1, F2: stored when the call returns, and kept by the next claim."""
        assert store.claim(GROUP, "client-1", {Q0: 17})[Q0].next_offset == 17
        assert store.read(GROUP)[Q0].next_offset == 17

        epoch = store.read(GROUP)[Q0].epoch
        store.commit(GROUP, [committed(Q0, 21, epoch=epoch)], query_id="q", batch_id=0)

        assert store.claim(GROUP, "client-2", {Q0: 3})[Q0].next_offset == 21

    def test_a_batch_run_again_never_moves_a_queue_back(
        self, store: BrokerOffsetStore | DeltaOffsetStore | FileOffsetStore | MemoryOffsetStore
    ) -> None:
        """F6, H1: increaseOnly."""
        epoch = store.claim(GROUP, "client-1", {Q0: 0})[Q0].epoch
        store.commit(GROUP, [committed(Q0, 9, epoch=epoch)], query_id="q", batch_id=1)

        replayed = store.commit(GROUP, [committed(Q0, 4, epoch=epoch)], query_id="q", batch_id=1)

        assert len(replayed.accepted) == 1
        assert store.read(GROUP)[Q0].next_offset == 9

    def test_a_reset_goes_anywhere(
        self, store: BrokerOffsetStore | DeltaOffsetStore | FileOffsetStore | MemoryOffsetStore
    ) -> None:
        """F5"""
        epoch = store.claim(GROUP, "client-1", {Q0: 0, Q1: 50})[Q0].epoch
        store.commit(GROUP, [committed(Q0, 9, epoch=epoch)], query_id="q", batch_id=1)

        moved = store.reset(GROUP, {Q0: 2, Q1: 70, Q2: 5})

        assert {queue: row.next_offset for queue, row in moved.items()} == {Q0: 2, Q1: 70, Q2: 5}
        assert {queue: row.next_offset for queue, row in store.read(GROUP).items()} == {Q0: 2, Q1: 70, Q2: 5}

    def test_groups_are_those_that_have_rows(
        self, store: BrokerOffsetStore | DeltaOffsetStore | FileOffsetStore | MemoryOffsetStore
    ) -> None:
        assert store.groups() == ()

        store.claim(GROUP, "client-1", {Q0: 0})

        assert store.groups() == (GROUP,)


class OffsetStoreConformance(PositionConformance):
    """Needs fixtures ``clock`` (FakeClock at START_S), ``store`` (empty), and ``again``:
    opens the same store again.
    """

    def test_a_first_claim_begins_at_the_given_start_with_epoch_1(self, store: OffsetStore) -> None:
        """C3: the start is stored with the claim, so that it is decided once."""
        claimed = store.claim(GROUP, "client-1", {Q0: 17})

        assert claimed == {
            Q0: OffsetRow(
                consumer_group=GROUP,
                queue=Q0,
                state=QueueState(17, 1),
                owner="client-1",
                query_id="",
                batch_id=CLAIMED,
                updated_at_s=START_S,
            )
        }
        assert store.read(GROUP) == claimed

    def test_a_later_claim_keeps_progress_and_suspension_and_raises_the_epoch(
        self, store: OffsetStore
    ) -> None:
        """C3, B5: the new owner continues exactly where the old one stopped."""
        store.claim(GROUP, "client-1", {Q0: 0})
        suspended = committed(Q0, 5, reconsume_times=2, suspended_until_s=START_S + 1.5)
        store.commit(GROUP, [suspended], query_id="q", batch_id=3)

        row = store.claim(GROUP, "client-2", {Q0: 999})[Q0]

        assert (row.next_offset, row.epoch, row.owner) == (5, 2, "client-2")
        assert (row.state.reconsume_times, row.state.suspended_until_s) == (2, START_S + 1.5)

    def test_a_claim_keeps_how_often_messages_were_given_back_and_a_reset_forgets_it(
        self, store: OffsetStore
    ) -> None:
        """D6, F5: the next owner goes on counting; figures are each owner's own (D11)."""
        store.claim(GROUP, "client-1", {Q0: 0, Q1: 0})
        failed = [
            committed(
                queue,
                5,
                reconsume_times=2,
                retry_counts=stored_texts.retries("[[5,9,2]]"),
                statistics=stored_texts.speed("{}"),
            )
            for queue in (Q0, Q1)
        ]
        store.commit(GROUP, failed, query_id="q", batch_id=3)
        assert store.read(GROUP)[Q0].statistics.to_text() == "{}"

        store.claim(GROUP, "client-2", {Q0: 0})
        store.reset(GROUP, {Q1: 5})

        rows = store.read(GROUP)
        assert (rows[Q0].state.retry_counts.to_text(), rows[Q0].statistics.to_text()) == ("[[5,9,2]]", "")
        assert rows[Q1].state.retry_counts.to_text() == ""
        store.commit(
            GROUP,
            [committed(Q0, 5, epoch=2, retry_counts=stored_texts.retries("[[5,9,3]]"))],
            query_id="q",
            batch_id=4,
        )
        assert store.read(GROUP)[Q0].state.retry_counts.to_text() == "[[5,9,3]]"

    def test_a_queue_keeps_its_generation(self, store: OffsetStore) -> None:
        """F4: a lost store gets it from the sink; nothing but offsets that begin again changes it."""
        store.claim(GROUP, "client-1", {Q0: 0, Q1: 7}, {Q1: 3})
        store.claim(GROUP, "client-2", {Q0: 0, Q1: 0}, {Q0: 9})
        store.commit(GROUP, [committed(Q1, 9, epoch=2)], query_id="q", batch_id=1)
        store.reset(GROUP, {Q0: 1, Q1: 1})

        assert {queue: row.generation for queue, row in store.read(GROUP).items()} == {Q0: 0, Q1: 3}

    def test_a_queue_whose_offsets_begin_again_forgets_what_was_of_the_messages_before(
        self, store: OffsetStore
    ) -> None:
        """F4: and who was planning it is fenced off."""
        store.claim(GROUP, "client-1", {Q0: 0})
        failed = committed(
            Q0,
            5,
            reconsume_times=2,
            suspended_until_s=START_S + 9,
            retry_counts=stored_texts.retries("[[5,9,2]]"),
            last_message=stored_texts.messages("[4,1,1]"),
        )
        store.commit(GROUP, [failed], query_id="q", batch_id=3)
        assert store.read(GROUP)[Q0].state.last_message.to_text() == "[4,1,1]"

        begun = store.begin_generations(GROUP, {Q0: NewGeneration(1, 2), Q1: NewGeneration(1, 2)})

        assert store.read(GROUP) == begun
        row = begun[Q0]
        assert (row.next_offset, row.epoch, row.generation, row.owner) == (2, 2, 1, "client-1")
        assert (
            row.state.last_message.to_text(),
            row.state.retry_counts.to_text(),
            row.state.reconsume_times,
            row.state.suspended_until_s,
        ) == (
            "",
            "",
            0,
            None,
        )
        assert store.commit(GROUP, [committed(Q0, 9)], query_id="q", batch_id=4).refused

    def test_a_generation_begins_only_under_the_epoch_that_was_looked_at(self, store: OffsetStore) -> None:
        """F4, C5: another owner has looked himself."""
        store.claim(GROUP, "client-1", {Q0: 0})
        store.claim(GROUP, "client-2", {Q0: 0})

        assert store.begin_generations(GROUP, {Q0: NewGeneration(1, 2)}) == {}
        assert store.read(GROUP)[Q0].generation == 0

    def test_a_reset_before_a_generation_without_consumption_goes_back_to_the_one_before(
        self, store: OffsetStore
    ) -> None:
        """F4, F5, H1: sinks have its rows under that number; up to the boundary it goes on there."""
        store.claim(GROUP, "client-1", {Q0: 0, Q1: 0})
        store.commit(
            GROUP,
            [
                committed(Q0, 9, last_message=stored_texts.messages("[8,1,1]")),
                committed(Q1, 9, last_message=stored_texts.messages("[8,1,1]")),
            ],
            query_id="q",
            batch_id=1,
        )
        store.begin_generations(GROUP, {Q0: NewGeneration(1, 7, 5), Q1: NewGeneration(1, 5)})
        store.commit(
            GROUP,
            [committed(Q1, 6, epoch=2, last_message=stored_texts.messages("[5,2,2]"))],
            query_id="q",
            batch_id=2,
        )

        above = store.reset(GROUP, {Q0: 6})
        below = store.reset(GROUP, {Q0: 3, Q1: 3})

        assert (above[Q0].generation, above[Q0].state.last_message.to_text()) == (1, "")
        assert (below[Q0].generation, below[Q0].state.last_message.to_text()) == (0, "[8,1,1]")
        assert below[Q0].boundaries.to_text() == "[[],5]"
        assert (below[Q1].generation, below[Q1].state.last_message.to_text()) == (1, "[5,2,2]")
        again = store.begin_generations(GROUP, {Q0: NewGeneration(4, 5)})
        assert (again[Q0].generation, again[Q0].boundaries.ahead) == (1, None)

    def test_a_position_put_below_a_generation_at_the_broker_belongs_to_the_one_before(
        self, store: OffsetStore
    ) -> None:
        """F4, F5: it is followed there, and not taken for one of the new log."""
        store.claim(GROUP, "client-1", {Q0: 0}, at_brokers={Q0: 0})
        store.commit(
            GROUP, [committed(Q0, 9, last_message=stored_texts.messages("[8,1,1]"))], query_id="q", batch_id=1
        )
        store.begin_generations(GROUP, {Q0: NewGeneration(1, 5)})
        store.claim(GROUP, "client-1", {Q0: 0}, at_brokers={Q0: 5})

        row = store.claim(GROUP, "client-1", {Q0: 0}, at_brokers={Q0: 2})[Q0]

        assert (row.next_offset, row.generation, row.was_followed) == (2, 0, False)
        assert row.boundaries.ahead == 5

    def test_a_sink_with_rows_of_a_generation_brings_a_row_back_that_was_set_before_it(
        self, store: OffsetStore
    ) -> None:
        """H1: a kill between data and offsets, then a reset; the position stays."""
        store.claim(GROUP, "client-1", {Q0: 0})
        store.commit(
            GROUP, [committed(Q0, 9, last_message=stored_texts.messages("[8,1,1]"))], query_id="q", batch_id=1
        )
        store.begin_generations(GROUP, {Q0: NewGeneration(1, 5)})
        store.reset(GROUP, {Q0: 3})

        row = store.note_sinks(GROUP, {Q0: SinkRecord(1, 7, stored_texts.messages("[6,2,2]"))})[Q0]

        assert (row.next_offset, row.generation, row.epoch, row.boundaries.to_text()) == (3, 1, 4, "")
        assert row.state.last_message.to_text() == "[6,2,2]"

    def test_a_reset_under_an_epoch_moves_no_queue_of_another_one(self, store: OffsetStore) -> None:
        """C5, F4: a member's own, for messages that are gone."""
        store.claim(GROUP, "client-1", {Q0: 0, Q1: 0})
        store.claim(GROUP, "client-2", {Q1: 0})

        moved = store.reset(GROUP, {Q0: 4, Q1: 4, Q2: 4}, under={Q0: 1, Q1: 1, Q2: 1})

        assert moved == {Q0: store.read(GROUP)[Q0]}
        assert {queue: row.next_offset for queue, row in store.read(GROUP).items()} == {Q0: 4, Q1: 0}

    def test_the_newest_message_consumed_is_remembered(self, store: OffsetStore) -> None:
        """F4: through claims and resets of one generation."""
        store.claim(GROUP, "client-1", {Q0: 0})
        store.commit(
            GROUP, [committed(Q0, 5, last_message=stored_texts.messages("[4,1,1]"))], query_id="q", batch_id=1
        )
        store.commit(GROUP, [committed(Q0, 9)], query_id="q", batch_id=2)
        store.reset(GROUP, {Q0: 1})
        store.claim(GROUP, "client-2", {Q0: 0})
        store.commit(
            GROUP,
            [committed(Q0, 3, epoch=3, last_message=stored_texts.messages("[2,1,1]"))],
            query_id="q",
            batch_id=3,
        )

        assert store.read(GROUP)[Q0].state.last_message.to_text() == "[4,1,1,2,1,1]"

    def test_the_last_message_passed_over_is_remembered_until_one_is_consumed(
        self, store: OffsetStore
    ) -> None:
        """F4: only of the generation, and under the epoch, that was looked at; nothing moves."""
        before = store.claim(GROUP, "client-1", {Q0: 5, Q1: 5})

        store.note_passed(
            GROUP,
            {
                Q0: LastSkipped(1, stored_texts.messages("[4,1,1]")),
                Q1: LastSkipped(2, stored_texts.messages("[4,1,1]")),
                Q2: LastSkipped(1, stored_texts.messages("[4,1,1]")),
            },
        )

        noted = before[Q0].state._replace(last_message=stored_texts.messages("[4,1,1]"))
        assert store.read(GROUP) == {**before, Q0: before[Q0]._replace(state=noted)}
        store.commit(
            GROUP, [committed(Q0, 6, last_message=stored_texts.messages("[5,2,2]"))], query_id="q", batch_id=1
        )
        store.note_passed(GROUP, {Q0: LastSkipped(1, stored_texts.messages("[5,3,3]"))})
        assert store.read(GROUP)[Q0].state.last_message.to_text() == "[5,2,2,4,1,1]"
        store.note_passed(GROUP, {Q0: LastSkipped(1, stored_texts.messages("[2,1,1]"))})
        assert store.read(GROUP)[Q0].state.last_message.to_text() == "[5,2,2,4,1,1,2,1,1]"

    def test_what_only_a_sink_has_is_remembered_under_a_new_epoch(self, store: OffsetStore) -> None:
        """H10: it was killed between data and offsets; what the row knows already changes nothing."""
        store.claim(GROUP, "client-1", {Q0: 0, Q1: 0})
        store.commit(
            GROUP,
            [
                committed(Q0, 5, last_message=stored_texts.messages("[4,1,1]")),
                committed(Q1, 5, last_message=stored_texts.messages("[4,1,1]")),
            ],
            query_id="q",
            batch_id=1,
        )
        records = {
            Q0: SinkRecord(0, 8, stored_texts.messages("[6,2,2]")),
            Q1: SinkRecord(0, 8, stored_texts.messages("[4,1,1]")),
            Q2: SinkRecord(0, 8, stored_texts.messages("[6,2,2]")),
        }

        noted = store.note_sinks(GROUP, records)

        assert list(noted) == [Q0]
        assert store.read(GROUP)[Q0] == noted[Q0]
        assert (noted[Q0].epoch, noted[Q0].next_offset) == (2, 5)
        assert noted[Q0].state.last_message.to_text() == "[6,2,2,4,1,1]"
        assert store.note_sinks(GROUP, records) == {}
        unknown = store.note_sinks(GROUP, {Q1: SinkRecord(0, 8, stored_texts.messages(""))})[Q1]
        assert unknown.state.last_message.to_text() == "[7,0,-1,4,1,1]"

    def test_what_only_a_sink_has_is_remembered_beside_a_running_batch(self, store: OffsetStore) -> None:
        """B1, H10: the batch may commit; only a row that moves gets a new epoch."""
        store.claim(GROUP, "client-1", {Q0: 0, Q1: 0})
        records = {
            Q0: SinkRecord(0, 8, stored_texts.messages("[7,2,2]")),
            Q1: SinkRecord(1, 8, stored_texts.messages("[7,2,2]")),
        }

        noted = store.note_sinks(GROUP, records, is_fenced=False)
        assert [(row.epoch, row.next_offset) for row in noted.values()] == [(1, 0), (2, 8)]
        last = committed(Q0, 6, last_message=stored_texts.messages("[5,1,1]"))
        result = store.commit(GROUP, [last], query_id="q", batch_id=1)

        assert result.refused == ()
        assert store.read(GROUP)[Q0].state.last_message.to_text() == "[7,2,2,5,1,1]"

    def test_a_row_goes_on_in_the_later_generation_of_its_sink(self, store: OffsetStore) -> None:
        """H10: a store that was put back to an earlier state; never to an earlier generation."""
        store.claim(GROUP, "client-1", {Q0: 0})
        store.commit(
            GROUP, [committed(Q0, 5, last_message=stored_texts.messages("[4,1,1]"))], query_id="q", batch_id=1
        )

        noted = store.note_sinks(GROUP, {Q0: SinkRecord(2, 3, stored_texts.messages("[2,9,9]"))})[Q0]

        assert (noted.generation, noted.next_offset, noted.epoch) == (2, 3, 2)
        assert (noted.state.last_message.to_text(), noted.sinks.to_text()) == ("[2,9,9]", "")
        assert store.note_sinks(GROUP, {Q0: SinkRecord(1, 9, stored_texts.messages("[8,9,9]"))}) == {}

    def test_the_mirrored_offset_is_stored_with_the_offset(self, store: OffsetStore) -> None:
        """F5: before it is sent; what cannot be there any more is forgotten."""
        store.claim(GROUP, "client-1", {Q0: 3, Q1: 0}, at_brokers={Q0: 3})
        assert [store.read(GROUP)[queue].shown.to_text() for queue in (Q0, Q1)] == ["[3]", "[0]"]

        for batch_id, (next_offset, arrived) in enumerate([(5, None), (7, None), (9, 7)]):
            commit = committed(Q0, next_offset, is_shown=True, arrived=arrived)
            store.commit(GROUP, [commit], query_id="q", batch_id=batch_id)

        assert store.read(GROUP)[Q0].shown.to_text() == "[7,9]"
        store.note_arrivals(GROUP, {Q0: 9, Q1: 77, Q2: 1})
        assert [store.read(GROUP)[queue].shown.to_text() for queue in (Q0, Q1)] == ["[9]", "[0]"]
        assert store.claim(GROUP, "c", {Q0: 0}, at_brokers={Q0: 9})[Q0].shown.to_text() == "[9]"
        moved = store.claim(GROUP, "c", {Q0: 0}, at_brokers={Q0: 4})[Q0]
        assert (moved.next_offset, moved.shown.to_text(), moved.batch_id) == (4, "[4]", FOLLOWED)
        assert store.claim(GROUP, "c", {Q0: 0}, at_brokers={Q0: 4})[Q0].next_offset == 4

    def test_an_offset_that_another_member_of_this_side_has_overtaken_is_not_followed(
        self, store: OffsetStore
    ) -> None:
        """C3, F5: the broker was asked before; the other member has committed twice since, and it arrived."""
        store.claim(GROUP, "client-1", {Q0: 10}, at_brokers={Q0: 10})
        read_before, asked_before = store.read(GROUP), {Q0: 10}
        for batch_id, (next_offset, arrived) in enumerate([(20, None), (30, 20)]):
            commit = committed(Q0, next_offset, is_shown=True, arrived=arrived)
            store.commit(GROUP, [commit], query_id="q", batch_id=batch_id)

        claimed = store.claim(GROUP, "c", {Q0: 0}, at_brokers=asked_before, rows_before=read_before)[Q0]

        assert (claimed.next_offset, claimed.shown.to_text(), claimed.batch_id) == (30, "[20,30]", 1)
        again = store.claim(GROUP, "c", {Q0: 0}, at_brokers={Q0: 9}, rows_before=read_before)[Q0]
        assert (again.next_offset, again.shown.to_text()) == (9, "[30,9]")

    @pytest.mark.parametrize(
        ("target", "is_recorded"), [(0, False), (100, False), (120, False), (0, True), (100, True)]
    )
    def test_a_reset_stands_until_it_is_sent_although_the_broker_has_had_its_target(
        self, store: OffsetStore, target: int, is_recorded: bool
    ) -> None:
        """F5, C3: a Java member went on from 120 before the reset, by an operator or to a recorded offset."""
        store.claim(GROUP, "client-1", {Q0: 0}, at_brokers={Q0: 0})
        for batch_id, next_offset in enumerate([100, 120]):
            commit = committed(Q0, next_offset, is_shown=True)
            store.commit(GROUP, [commit], query_id="q", batch_id=batch_id)
        store.reset(GROUP, {Q0: target}, under={Q0: 1} if is_recorded else None)

        # The first member dies before it has sent the reset, and a Java member goes on again.
        store.claim(GROUP, "c", {Q0: 0}, at_brokers={Q0: 200})
        claimed = store.claim(GROUP, "c", {Q0: 0}, at_brokers={Q0: 250})[Q0]
        assert (claimed.next_offset, claimed.was_reset) == (target, True)

        sent = committed(Q0, target, epoch=claimed.epoch, is_shown=True)
        store.commit(GROUP, [sent], query_id="", batch_id=claimed.batch_id)
        assert store.claim(GROUP, "c", {Q0: 0}, at_brokers={Q0: target})[Q0].next_offset == target
        assert store.claim(GROUP, "c", {Q0: 0}, at_brokers={Q0: 300})[Q0].next_offset == 300

    def test_a_row_that_planners_are_to_check_where_it_stands_follows_its_broker(
        self, store: OffsetStore
    ) -> None:
        """F5, C3: nobody has moved it, and a Java member has gone on since."""
        store.claim(GROUP, "client-1", {Q0: 0}, at_brokers={Q0: 0})
        store.commit(GROUP, [committed(Q0, 100, is_shown=True)], query_id="q", batch_id=0)
        store.reset(GROUP, {Q0: 100}, under={Q0: 1})

        assert store.claim(GROUP, "c", {Q0: 0}, at_brokers={Q0: 0})[Q0].next_offset == 100
        assert store.claim(GROUP, "c", {Q0: 0}, at_brokers={Q0: 200})[Q0].next_offset == 200

    def test_only_figures_are_not_stored(self, store: OffsetStore) -> None:
        """D11: a batch that runs again changes nothing."""
        store.claim(GROUP, "client-1", {Q0: 0})
        store.commit(
            GROUP, [committed(Q0, 5, statistics=stored_texts.speed("first"))], query_id="q", batch_id=3
        )

        store.commit(
            GROUP, [committed(Q0, 5, statistics=stored_texts.speed("second"))], query_id="q", batch_id=3
        )

        assert store.read(GROUP)[Q0].statistics.to_text() == "first"

    def test_a_commit_under_the_stored_epoch_is_accepted(self, store: OffsetStore, clock: FakeClock) -> None:
        """F1: what a batch achieved is in the store when commit returns."""
        store.claim(GROUP, "client-1", {Q0: 0})
        clock.advance(2)
        commit = committed(Q0, 8, reconsume_times=1, suspended_until_s=START_S + 3)

        result = store.commit(GROUP, [commit], query_id="q", batch_id=4)

        assert (result.accepted, result.refused) == ((commit,), ())
        row = store.read(GROUP)[Q0]
        assert (row.next_offset, row.state.reconsume_times, row.state.suspended_until_s) == (
            8,
            1,
            START_S + 3,
        )
        assert (row.query_id, row.batch_id, row.updated_at_s) == ("q", 4, START_S + 2)

    def test_a_commit_that_does_not_suspend_ends_the_suspension(self, store: OffsetStore) -> None:
        store.claim(GROUP, "client-1", {Q0: 0})
        suspended = committed(Q0, 5, reconsume_times=2, suspended_until_s=START_S + 1)
        store.commit(GROUP, [suspended], query_id="q", batch_id=1)

        store.commit(GROUP, [committed(Q0, 6)], query_id="q", batch_id=2)

        row = store.read(GROUP)[Q0]
        assert (row.state.reconsume_times, row.state.suspended_until_s) == (0, None)

    def test_a_commit_under_a_lost_epoch_is_refused_and_the_others_go_on(self, store: OffsetStore) -> None:
        """C5, B5: a consumer that lost a queue cannot move it, whatever the broker's lock says."""
        store.claim(GROUP, "client-1", {Q0: 0, Q1: 0})
        store.claim(GROUP, "client-2", {Q0: 0})
        lost, kept = committed(Q0, 9), committed(Q1, 9)

        result = store.commit(GROUP, [lost, kept], query_id="q", batch_id=1)

        assert (result.accepted, result.refused) == ((kept,), (lost,))
        assert {queue: row.next_offset for queue, row in store.read(GROUP).items()} == {Q0: 0, Q1: 9}

    def test_a_replay_that_gets_less_far_never_moves_the_queue_back(self, store: OffsetStore) -> None:
        """H1: the same batch may run twice with another outcome."""
        store.claim(GROUP, "client-1", {Q0: 0})
        store.commit(GROUP, [committed(Q0, 9)], query_id="q", batch_id=1)
        before = store.read(GROUP)
        replayed = committed(Q0, 4, reconsume_times=1, suspended_until_s=START_S + 9)

        result = store.commit(GROUP, [replayed], query_id="q", batch_id=1)

        assert result.accepted == (replayed,)
        assert store.read(GROUP) == before

    def test_a_replay_that_gets_farther_is_stored(self, store: OffsetStore) -> None:
        """H1: the watermark of the first run does not hold the second one back."""
        store.claim(GROUP, "client-1", {Q0: 0})
        suspended = committed(Q0, 4, reconsume_times=1, suspended_until_s=START_S + 9)
        store.commit(GROUP, [suspended], query_id="q", batch_id=1)

        store.commit(GROUP, [committed(Q0, 9)], query_id="q", batch_id=1)

        row = store.read(GROUP)[Q0]
        assert (row.next_offset, row.state.reconsume_times, row.state.suspended_until_s) == (9, 0, None)

    @pytest.mark.parametrize(("query_id", "batch_id"), [("q", 2), ("other", 1)])
    def test_another_batch_going_back_is_loud_and_stores_nothing(
        self, store: DeltaOffsetStore | FileOffsetStore | MemoryOffsetStore, query_id: str, batch_id: int
    ) -> None:
        """F6: increaseOnly within one epoch."""
        store.claim(GROUP, "client-1", {Q0: 0, Q1: 0})
        store.commit(GROUP, [committed(Q0, 9)], query_id="q", batch_id=1)
        before = store.read(GROUP)

        with pytest.raises(
            OffsetRegressed, match=r"topic=orders broker=broker-a queue=0.* next offset to 8, but it is 9 "
        ):
            store.commit(GROUP, [committed(Q1, 3), committed(Q0, 8)], query_id=query_id, batch_id=batch_id)

        assert store.read(GROUP) == before

    def test_a_reset_may_go_back_and_fences_the_running_batch(self, store: OffsetStore) -> None:
        """F5: reset while consumers run."""
        store.claim(GROUP, "client-1", {Q0: 0})
        suspended = committed(Q0, 9, reconsume_times=3, suspended_until_s=START_S + 9)
        store.commit(GROUP, [suspended], query_id="q", batch_id=1)

        row = store.reset(GROUP, {Q0: 2})[Q0]

        assert (row.next_offset, row.epoch, row.owner) == (2, 2, "client-1")
        assert (row.state.reconsume_times, row.state.suspended_until_s) == (0, None)
        assert store.read(GROUP) == {Q0: row}
        late = committed(Q0, 12)
        assert store.commit(GROUP, [late], query_id="q", batch_id=1).refused == (late,)

    def test_after_a_reset_the_same_batch_number_may_commit_below_the_old_offset(
        self, store: OffsetStore
    ) -> None:
        """F5: "a replay never goes back" must not undo an operator's reset."""
        store.claim(GROUP, "client-1", {Q0: 0})
        store.commit(GROUP, [committed(Q0, 9)], query_id="q", batch_id=1)
        store.reset(GROUP, {Q0: 2})

        store.commit(GROUP, [committed(Q0, 5, epoch=2)], query_id="q", batch_id=1)

        assert store.read(GROUP)[Q0].next_offset == 5

    def test_a_reset_of_an_unknown_queue_makes_its_row(self, store: OffsetStore) -> None:
        """F5: skip before the first start."""
        row = store.reset(GROUP, {Q0: 40})[Q0]

        assert (row.next_offset, row.epoch, row.owner) == (40, 1, "")
        assert store.claim(GROUP, "client-1", {Q0: 0})[Q0].next_offset == 40

    def test_a_row_is_marked_as_reset_until_a_batch_moves_it(self, store: OffsetStore) -> None:
        """F5: through claims too; a reset must be distinguished from where a member has come to."""
        assert not store.claim(GROUP, "client-1", {Q0: 0})[Q0].was_reset
        store.commit(GROUP, [committed(Q0, 9)], query_id="q", batch_id=1)
        assert not store.read(GROUP)[Q0].was_reset

        assert store.reset(GROUP, {Q0: 2})[Q0].was_reset
        assert store.claim(GROUP, "client-2", {Q0: 0})[Q0].was_reset

        store.commit(GROUP, [committed(Q0, 3, epoch=3)], query_id="q", batch_id=2)
        assert not store.read(GROUP)[Q0].was_reset

    @pytest.mark.parametrize("other", ["%RETRY%o'brien", "a/b=c d", "gruppe-é", "order-etl2", "ORDER-ETL"])
    def test_groups_do_not_see_each_other_whatever_their_names(self, store: OffsetStore, other: str) -> None:
        store.claim(GROUP, "client-1", {Q0: 0})
        store.claim(other, "client-2", {Q0: 7, Q1: 7})

        store.commit(other, [committed(Q0, 8)], query_id="q", batch_id=1)
        store.reset(other, {Q1: 1})

        assert {queue: row.next_offset for queue, row in store.read(other).items()} == {Q0: 8, Q1: 1}
        assert {row.consumer_group for row in store.read(other).values()} == {other}
        assert {queue: row.next_offset for queue, row in store.read(GROUP).items()} == {Q0: 0}

    def test_times_keep_whole_microseconds(self, store: OffsetStore) -> None:
        store.claim(GROUP, "client-1", {Q0: 0})
        suspended = committed(Q0, 1, suspended_until_s=START_S + 0.123456789)

        store.commit(GROUP, [suspended], query_id="q", batch_id=1)

        assert store.read(GROUP)[Q0].state.suspended_until_s == round(START_S + 0.123456789, 6)

    def test_every_group_is_listed_whatever_its_name(self, store: OffsetStore) -> None:
        names = ["a/b=c d", "%RETRY%o'brien", "g@one", "gruppe-é"]
        for name in names:
            store.claim(name, "client-1", {Q0: 0})

        assert store.groups() == tuple(sorted(names))

    def test_the_same_store_opened_again_sees_everything(
        self, store: OffsetStore, again: Callable[..., Any]
    ) -> None:
        """H2: nothing but the storage is needed to go on."""
        store.claim(GROUP, "client-1", {Q0: 0, Q1: 3})
        suspended = committed(
            Q0,
            8,
            reconsume_times=1,
            suspended_until_s=START_S + 3,
            retry_counts=stored_texts.retries("[[8,9,1]]"),
        )
        store.commit(GROUP, [suspended], query_id="q", batch_id=4)

        assert again().read(GROUP) == store.read(GROUP)
        assert again().spec == store.spec

    def test_writers_of_one_group_lose_nothing_and_zombies_are_refused(
        self, store: OffsetStore, again: Callable[..., Any]
    ) -> None:
        """C5, H5: every accepted step is in the final offset, and only those."""
        with ThreadPoolExecutor(3) as executor:
            steps = [
                executor.submit(claim_and_commit, again(), GROUP, owner, 12, 4, shares_group=True)
                for owner in ("1", "2", "3")
            ]
            accepted = [step.result() for step in steps]

        assert store.read(GROUP)[Q0].next_offset == sum(accepted)

    def test_readers_see_each_commit_whole_and_none_go_back(
        self, store: OffsetStore, again: Callable[..., Any]
    ) -> None:
        """F1, H5: both queues of a commit or none, while others write."""
        store.claim(GROUP, "client-1", {Q0: 0, Q1: 0})
        is_over = Event()

        def look() -> list[int]:
            reader, seen = again(), [0]
            while not is_over.is_set():
                rows = reader.read(GROUP)
                assert rows[Q0].next_offset == rows[Q1].next_offset
                seen.append(rows[Q0].next_offset)
            return seen

        with ThreadPoolExecutor(2) as executor:
            looks = [executor.submit(look) for _ in range(2)]
            try:
                for number in range(1, 31):
                    step = [committed(Q0, number), committed(Q1, number)]
                    store.commit(GROUP, step, query_id="q", batch_id=number)
            finally:
                is_over.set()

        for each in looks:
            assert each.result() == sorted(each.result())
