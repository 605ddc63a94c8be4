"""An offset store that has forgotten a group whose rows are in the sink."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pyspark_rocketmq.commit.recovery import check_sink, note_sink_ahead, seed_offsets_from_sink
from pyspark_rocketmq.consumer.preparation import log_unused_start
from pyspark_rocketmq.model import ConsumeFromWhere, QueueState
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.offsets.store import QueueCommit
from pyspark_rocketmq.sinks.against_offsets import recorded_sinks
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.sinks.multi import MultiSink
from pyspark_rocketmq.stored_values import RememberedMessages
from tests.helpers.fake_clock import FakeClock
from tests.helpers.sink_rows import GROUP, Q0, Q1, files_of
from tests.helpers.sink_rows import run_batch as run
from tests.sinks.sink_conformance import SCHEMA, rows, with_newest


@pytest.fixture
def sink(tmp_path: Path) -> DeltaSink:
    made = DeltaSink(tmp_path / "orders")
    made.prepare(SCHEMA)
    run(made, {Q0: 5, Q1: 2}, rows(Q0, 0, 5), rows(Q1, 0, 2))
    return made


@pytest.fixture
def store(tmp_path: Path) -> DeltaOffsetStore:
    return DeltaOffsetStore(tmp_path / "offsets")


def test_the_group_goes_on_where_the_sink_is(
    sink: DeltaSink, store: DeltaOffsetStore, caplog: pytest.LogCaptureFixture
) -> None:
    """H2: not where the options say, which may be the end."""
    with caplog.at_level(logging.WARNING):
        seed_offsets_from_sink(store, sink, GROUP)

    found = store.read(GROUP)
    assert {queue: row.next_offset for queue, row in found.items()} == {Q0: 5, Q1: 2}
    assert not any(row.was_reset for row in found.values()), "a mixed group's brokers may know better"
    assert "but the sink has its rows" in caplog.text


def test_the_group_goes_on_in_the_generation_that_the_sink_has_rows_of(
    sink: DeltaSink, store: DeltaOffsetStore
) -> None:
    """F4, H2: what the sink has of the generation before is of other messages."""
    batch = sink.begin(GROUP, {Q0: 2})
    batch.commit(files_of(batch.task_writer(), iter([rows(Q0, 0, 3)])), {Q0: 3})

    seed_offsets_from_sink(store, sink, GROUP)

    found = {queue: (row.next_offset, row.generation) for queue, row in store.read(GROUP).items()}
    assert found == {Q0: (3, 2), Q1: (2, 0)}


def test_offsets_that_are_there_are_not_changed(sink: DeltaSink, store: DeltaOffsetStore) -> None:
    """F5: an operator may have moved them anywhere."""
    there = store.reset(GROUP, {Q0: 1, Q1: 0})

    seed_offsets_from_sink(store, sink, GROUP)

    assert store.read(GROUP) == there


def test_a_queue_that_a_put_back_store_lacks_goes_on_where_the_sink_is(
    sink: DeltaSink, store: DeltaOffsetStore, caplog: pytest.LogCaptureFixture
) -> None:
    """H2, F2: its topic may have been subscribed since; at the end, its messages would be passed over."""
    [there] = store.claim(GROUP, "one", {Q0: 3}).values()
    with_newest(sink, {Q1: 4}, {Q1: "[3,1003,192]"})

    with caplog.at_level(logging.WARNING):
        seed_offsets_from_sink(store, sink, GROUP)
    found = store.read(GROUP)
    seed_offsets_from_sink(store, sink, GROUP)

    assert (found[Q0].epoch, found[Q0].owner) == (there.epoch, "one"), "a member may run"
    assert {queue: row.next_offset for queue, row in found.items()} == {Q0: 3, Q1: 4}
    assert found[Q1].state.last_message.to_text() == "[3,1003,192]"
    [warning] = caplog.messages
    assert "has no offset of group" in warning
    assert f"{Q1}=4" in warning
    assert str(Q0) not in warning
    assert store.read(GROUP) == found


def test_a_queue_that_another_member_claims_meanwhile_is_left_to_it(
    sink: DeltaSink, store: DeltaOffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C5: its row is there before the sink's first watermark of the queue, and its epoch must not grow."""
    store.claim(GROUP, "one", {Q0: 5})
    watermarks = sink.watermarks

    def claimed_and_written_meanwhile(group: str) -> object:
        store.claim(GROUP, "two", {Q1: 0})
        return watermarks(group)

    monkeypatch.setattr(sink, "watermarks", claimed_and_written_meanwhile)
    seed_offsets_from_sink(store, sink, GROUP)

    row = store.read(GROUP)[Q1]
    assert (row.owner, row.epoch, row.next_offset) == ("two", 1, 0)


def test_a_queue_whose_broker_is_away_is_not_missing_in_a_store_at_the_brokers(sink: DeltaSink) -> None:
    """H2: such a store of a user's own leaves it out."""

    class AtBrokers(MemoryOffsetStore):
        is_at_brokers = True

    store = AtBrokers("at brokers", clock=FakeClock())
    store.claim(GROUP, "one", {Q0: 3})

    seed_offsets_from_sink(store, sink, GROUP)

    assert store.read(GROUP).keys() == {Q0}


def test_a_group_that_is_new_to_both_begins_where_the_options_say(
    sink: DeltaSink, store: DeltaOffsetStore
) -> None:
    seed_offsets_from_sink(store, sink, "another")

    assert store.read("another") == {}


@pytest.mark.parametrize(
    ("is_known", "where", "is_told"),
    [
        (True, ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, True),
        (True, ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, True),
        (True, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, False),
        (False, ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, False),
    ],
)
def test_an_unused_consume_from_where_is_reported(
    store: DeltaOffsetStore,
    caplog: pytest.LogCaptureFixture,
    is_known: bool,
    where: ConsumeFromWhere,
    is_told: bool,
) -> None:
    """F2: given by a user who wants to consume again what the group has consumed."""
    if is_known:
        store.claim(GROUP, "me", {Q0: 5})
    with caplog.at_level(logging.INFO, "pyspark_rocketmq.consumer.preparation"):
        log_unused_start(store, GROUP, where)

    told = [text for text in caplog.messages if f"so consume_from_where={where} is not used" in text]
    assert len(told) == is_told


def test_a_store_restored_while_no_member_was_running_is_reported(
    sink: DeltaSink, store: DeltaOffsetStore, caplog: pytest.LogCaptureFixture
) -> None:
    """H2: messages are consumed again, and nobody would know why."""
    row = store.claim(GROUP, "one", {Q0: 0})[Q0]
    remembered = recorded_sinks(sink.standings(GROUP, {Q0: 0}))
    commit = QueueCommit(queue=Q0, state=QueueState(2, row.epoch), sinks=remembered)
    store.commit(GROUP, [commit], query_id="q", batch_id=1)

    with caplog.at_level(logging.WARNING):
        check_sink(store, sink, GROUP)

    assert "behind its sink in 1 queues: 3 messages are consumed again" in caplog.text


def test_a_sink_that_was_left_out_of_the_query_and_put_back_is_reported(
    sink: DeltaSink, store: DeltaOffsetStore, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """H7: its next commit moves its watermark past the missing rows, and nobody would notice them."""
    other = DeltaSink(tmp_path / "other")
    other.prepare(SCHEMA)
    run(other, {Q0: 3, Q1: 2}, rows(Q0, 0, 3), rows(Q1, 0, 2))
    claimed = store.claim(GROUP, "one", {Q0: 0, Q1: 0})
    of_one, of_both = (
        recorded_sinks(standing for each in sinks for standing in each.standings(GROUP, {Q0: 0}))
        for sinks in ([sink], [sink, other])
    )
    commits = [
        QueueCommit(queue=Q0, state=QueueState(5, claimed[Q0].epoch), sinks=of_one),
        QueueCommit(queue=Q1, state=QueueState(2, claimed[Q1].epoch), sinks=of_both),
    ]
    store.commit(GROUP, commits, query_id="q", batch_id=1)

    with caplog.at_level(logging.WARNING):
        check_sink(store, MultiSink([sink, other]), GROUP)

    [warning] = caplog.messages
    assert warning.startswith(
        f"the sink {other.standings(GROUP, {})[0].name} lacks rows of group {GROUP} in 1 queues"
    )
    assert warning.endswith(f" {Q0}=3<5")


def test_a_group_whose_offsets_were_lost_remembers_the_newest_messages_of_its_sink(
    sink: DeltaSink, store: DeltaOffsetStore
) -> None:
    """F4, H10: else nobody would notice that the broker lost them, too; of some only the offset is known."""
    with_newest(sink, {Q0: 7}, {Q0: "[6,1006,384]"})

    seed_offsets_from_sink(store, sink, GROUP)

    found = {queue: row.state.last_message.to_text() for queue, row in store.read(GROUP).items()}
    assert found == {Q0: "[6,1006,384]", Q1: "[1,0,-1]"}


def test_a_kill_while_offsets_are_made_from_the_sink_hides_no_newest_message(
    sink: DeltaSink, store: DeltaOffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F4, H10: the rows are there and as far as the sink, and nothing says that they were made from it."""
    with_newest(sink, {Q0: 7}, {Q0: "[6,1006,384]"})

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DeltaOffsetStore, "note_sinks", killed)
        with pytest.raises(KeyboardInterrupt):
            seed_offsets_from_sink(store, sink, GROUP)
    seed_offsets_from_sink(store, sink, GROUP)
    note_sink_ahead(store, sink, GROUP)

    found = store.read(GROUP)
    assert {queue: row.state.last_message.to_text() for queue, row in found.items()} == {
        Q0: "[6,1006,384]",
        Q1: "[1,0,-1]",
    }
    note_sink_ahead(store, sink, GROUP)
    assert store.read(GROUP) == found


def consumed(store: DeltaOffsetStore, sink: DeltaSink, next_offset: int, last_message: str) -> int:
    """Queue 0 as after a batch; its epoch."""
    row = store.claim(GROUP, "one", {Q0: 0})[Q0]
    remembered = recorded_sinks(sink.standings(GROUP, {Q0: 0}))
    state = QueueState(next_offset, row.epoch, last_message=RememberedMessages.from_text(last_message))
    store.commit(GROUP, [QueueCommit(queue=Q0, state=state, sinks=remembered)], query_id="q", batch_id=1)
    return row.epoch


def test_after_a_kill_between_data_and_offsets_the_sinks_newest_message_is_looked_at(
    sink: DeltaSink, store: DeltaOffsetStore
) -> None:
    """F4, H10: whoever takes the queue over raises its epoch; a member that lives on has lost nothing."""
    epoch = consumed(store, sink, 5, "[4,1004,256]")
    with_newest(sink, {Q0: 7}, {Q0: "[6,1006,384]"})

    note_sink_ahead(store, sink, GROUP)
    row = store.read(GROUP)[Q0]
    note_sink_ahead(store, sink, GROUP)

    assert (row.next_offset, row.epoch) == (5, epoch)
    assert row.state.last_message.to_text() == "[6,1006,384,4,1004,256]"
    assert store.read(GROUP)[Q0] == row


def test_offsets_that_are_where_the_sink_is_change_nothing(sink: DeltaSink, store: DeltaOffsetStore) -> None:
    """H10: nor where an operator has moved them back, for the row remembers more than the sink."""
    consumed(store, sink, 5, "[4,1004,256]")
    before = store.read(GROUP)
    note_sink_ahead(store, sink, GROUP)
    assert store.read(GROUP) == before

    moved = store.reset(GROUP, {Q0: 2})
    note_sink_ahead(store, sink, GROUP)
    assert store.read(GROUP) == moved


def test_offsets_put_back_to_an_earlier_generation_go_on_in_the_sinks(
    sink: DeltaSink, store: DeltaOffsetStore
) -> None:
    """F4, H10: its rows are of messages that the row knows nothing of."""
    consumed(store, sink, 5, "[4,1004,256]")
    with_newest(sink, {Q0: 3}, {Q0: "[2,5002,900]"}, {Q0: 1, Q1: 0})

    note_sink_ahead(store, sink, GROUP)

    row = store.read(GROUP)[Q0]
    assert (row.generation, row.next_offset, row.state.last_message.to_text()) == (1, 3, "[2,5002,900]")
