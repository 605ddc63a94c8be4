"""What was replayed is known to later runs, of the same target and choice only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageQueue, QueueRange
from pyspark_rocketmq.replay import record as record_module
from pyspark_rocketmq.replay.ranges import Sending
from pyspark_rocketmq.replay.record import ReplayRecord
from pyspark_rocketmq.stored_values import LastMessage

A0, B0 = MessageQueue("orders", "a", 0), MessageQueue("orders", "b", 0)


def every(topic: str) -> str:
    return "*"


def paid(topic: str) -> str:
    return "paid"


def sending(queue: MessageQueue, start: int, end: int, run: str = "r1") -> Sending:
    source = QueueRange.between(queue, start, end)
    return Sending(run=run, source=source, target=MessageQueue("copy", "b", 2), target_offset=7)


def done(record: ReplayRecord) -> list[tuple[MessageQueue, int, int]]:
    return sorted((one.source.queue, one.source.start, one.source.end) for one in record.done())


def test_a_later_run_knows_what_earlier_ones_have_done(tmp_path: Path) -> None:
    """H3"""
    ReplayRecord(tmp_path / "record", "copy", every).finish([sending(A0, 0, 5), sending(B0, 3, 4)])
    ReplayRecord(tmp_path / "record", "copy", every).finish([sending(A0, 5, 9)])

    assert done(ReplayRecord(tmp_path / "record", "copy", every)) == [
        (A0, 0, 5),
        (A0, 5, 9),
        (B0, 3, 4),
    ]


def test_ranges_are_returned_in_the_order_in_which_they_were_replayed(tmp_path: Path) -> None:
    """H3: the target queue of the newest range gets the next one."""
    record = ReplayRecord(tmp_path / "record", "copy", every)
    order = [7, 2, 9, 4, 0, 5]
    for start in order:
        record.begin([sending(A0, start, start + 1)])
        record.finish([sending(A0, start, start + 1)])

    assert [one.source.start for one in record.done()] == order


def test_a_step_is_unfinished_until_its_end_is_recorded(tmp_path: Path) -> None:
    """H3: also that nothing of it is stored."""
    record = ReplayRecord(tmp_path / "record", "copy", every, namespace="shop")
    whole, half, none = sending(A0, 0, 5), sending(A0, 5, 9, "r2"), sending(B0, 3, 9, "r2")
    record.begin([whole])
    record.finish([whole])
    record.begin([half, none])

    assert record.unfinished() == [half, none]
    assert done(record) == [(A0, 0, 5)]
    record.finish([sending(A0, 5, 7, "r2"), sending(B0, 3, 3, "r2")])
    assert record.unfinished() == []
    assert done(record) == [(A0, 0, 5), (A0, 5, 7)]
    assert done(ReplayRecord(tmp_path / "record", "copy", every)) == []


def test_a_range_begun_by_two_runs_is_ended_for_each(tmp_path: Path) -> None:
    """H3: the second one failed as well."""
    record = ReplayRecord(tmp_path / "record", "copy", every)
    record.begin([sending(A0, 0, 5)])
    record.finish([sending(A0, 0, 0)])
    record.begin([sending(A0, 0, 5, "r2")])

    assert record.unfinished() == [sending(A0, 0, 5, "r2")]


def test_the_last_message_of_a_range_is_kept_with_it(tmp_path: Path) -> None:
    """H3: also where only a part of the range was stored."""
    record = ReplayRecord(tmp_path / "record", "copy", every)
    first = replace(sending(A0, 0, 5), last=LastMessage(4, 1_700_000_000_000, 900))
    record.begin([first, sending(B0, 0, 5)])
    record.finish([replace(first, source=QueueRange.between(A0, 0, 3)), sending(B0, 0, 5)])

    assert {one.source.queue: one.last for one in record.done()} == {A0: first.last, B0: None}
    assert record.unfinished() == []


def test_a_record_of_an_earlier_release_is_read_and_continued(tmp_path: Path) -> None:
    """H3: it has no last messages, and no numbers of messages."""
    path = tmp_path / "record"
    ReplayRecord(path, "copy", every).begin([sending(A0, 0, 5), sending(A0, 5, 9)])
    old = DeltaTable(path).to_pyarrow_table()
    names = [name for name in old.column_names if not name.startswith(("last", "sent"))]
    assert len(names) == len(old.column_names) - 4
    write_deltalake(path, old.select(names), mode="overwrite", schema_mode="overwrite")
    record = ReplayRecord(path, "copy", every)

    assert record.unfinished() == [sending(A0, 0, 5), sending(A0, 5, 9)]
    last = LastMessage(4, 1_700_000_000_000, 900)
    record.finish([replace(sending(A0, 0, 5), last=last)])

    assert [one.last for one in record.done()] == [last]
    assert record.unfinished() == [sending(A0, 5, 9)]


def test_another_target_and_another_choice_are_other_replays(tmp_path: Path) -> None:
    """H3"""
    ReplayRecord(tmp_path / "record", "copy", paid).finish([sending(A0, 0, 5)])

    assert done(ReplayRecord(tmp_path / "record", "copy", every)) == []
    assert done(ReplayRecord(tmp_path / "record", "copy-2", paid)) == []


def test_looking_makes_no_table(tmp_path: Path) -> None:
    ReplayRecord(tmp_path / "record", "copy", every).done()

    assert not DeltaTable.is_deltatable(str(tmp_path / "record"))


def test_a_record_that_cannot_be_read_ends_the_run_before_it_sends(tmp_path: Path) -> None:
    """H3: without it everything would be sent again."""
    record = ReplayRecord(tmp_path / "record", "copy", every)
    record.finish([sending(A0, 0, 5)])
    for file in (tmp_path / "record").glob("*.parquet"):
        file.write_bytes(b"")

    with pytest.raises(RocketMQError, match="what was replayed could not be read"):
        record.done()


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_record_whose_outcome_is_unknown_is_looked_for_and_stored_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    """H3"""
    path = tmp_path / "record"
    record = ReplayRecord(path, "copy", every, sleep=lambda _: None)
    record.begin([sending(A0, 0, 5)])
    errors = [OSError("connection reset")]

    def failing(*args: Any, **kwargs: Any) -> None:
        if errors and not is_stored:
            raise errors.pop()
        write_deltalake(*args, **kwargs)
        if errors:
            raise errors.pop()

    monkeypatch.setattr(record_module, "write_deltalake", failing)
    record.finish([sending(A0, 0, 5)])

    assert done(record) == [(A0, 0, 5)]
    assert DeltaTable(path).version() == 1
