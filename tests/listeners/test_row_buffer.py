"""Rows that wait for their range's end: in memory, in batches, in a file; the same rows everywhere."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Sequence

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, StringType, StructType

from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.listeners import row_buffer
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.listeners.row_buffer import (
    Emitted,
    RowBuffer,
    SpilledRows,
    SpillFile,
    batches_of,
    in_queue_order,
    memory_of,
    spill,
    to_rows,
    tuples_of,
)
from pyspark_rocketmq.listeners.row_validation import OutputColumns, Row
from tests.helpers.messages import message_at

OUTPUT = OutputColumns.of(StructType().add("name", "string").add("parts", ArrayType(StringType())))
COLUMNS = OUTPUT.rows
PLAIN = OutputColumns.of(StructType().add("name", "string"))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a test reaches."""
    for name, value in {
        "IN_MEMORY_BYTES": 2000,
        "_BATCH_BYTES": 1000,
        "_BATCH_ROWS": 40,
        "_FEW_ROWS": 10,
        "_WRITTEN_BYTES": 1000,
    }.items():
        monkeypatch.setattr(row_buffer, name, value)


@pytest.fixture(params=range(20))
def dice(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.param)


def row_at(offset: int, dice: random.Random) -> Row:
    return offset, "x" * dice.choice([0, 1, 300]), dice.choice([None, [], ["a", "b" * 50]])


def emit_many(context: ConsumeOrderlyContext) -> None:
    for number in range(1000):
        context.emit(name=f"{number:100}")


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    return COLUMNS.to_batch(
        dict(zip(COLUMNS.schema.names, map(list, zip(*rows, strict=True)), strict=True)), len(rows)
    )


def all_of(emitted: Sequence[Emitted]) -> list[Row]:
    return [row for rows in tuples_of(emitted, COLUMNS) for row in rows]


@pytest.mark.usefixtures("small")
def test_the_rows_of_any_calls_stay_the_same_and_in_their_order(dice: random.Random) -> None:
    """D1, D3, H6: those of calls that were given back are not among them."""
    file = SpillFile()
    kept = RowBuffer(COLUMNS, file)
    wanted: list[Row] = []
    for offset in range(60):
        context = ConsumeOrderlyContext([message_at(offset)], OUTPUT, 0, file)
        rows = [row_at(offset, dice) for _ in range(dice.choice([0, 1, 2, 70, 150]))]
        for _, name, parts in rows:
            context.emit(name=name, parts=parts)
        if rows and dice.random() < 0.3:
            context.emit_batch(batch_of(rows))
            rows = rows * 2
        emitted = context.take_emitted()
        if dice.random() < 0.3:
            file.drop(emitted)
        else:
            kept.add(emitted)
            wanted += rows

    in_memory = [each for each in kept.rows if not isinstance(each, SpilledRows)]
    assert sum(each.nbytes for each in in_memory if isinstance(each, pa.RecordBatch)) <= 2000
    assert all_of(kept.rows) == wanted
    written = list(batches_of(kept.rows, COLUMNS))
    assert [row for batch in written for row in to_rows(batch)] == wanted


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("is_shuffled", [True, False])
@pytest.mark.parametrize("where", ["tuples", "batches", "file"])
def test_rows_are_put_into_the_order_of_their_messages(
    dice: random.Random, where: str, *, is_shuffled: bool
) -> None:
    """E6: those of one message stay in the order in which it emitted them,
    and those of others are left out.
    """
    rows = [(offset, str(number), None) for offset in range(8) for number in range(dice.randrange(30))]
    if is_shuffled:
        dice.shuffle(rows)
    wanted = sorted(dice.sample(range(8), dice.choice([3, 8])))
    emitted: list[Emitted] = list(rows)
    file = SpillFile()
    if where != "tuples":
        emitted = [batch_of(rows[at : at + 7]) for at in range(0, len(rows), 7)] + [(9, "another's", None)]
    if where == "file":
        emitted = spill(emitted, COLUMNS, file)

    found = all_of(in_queue_order(emitted, wanted, COLUMNS, file))

    assert found == sorted((row for row in rows if row[0] in wanted), key=lambda row: row[0])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("wanted", [[1], [1, 2]])
def test_batches_without_rows_are_put_into_order_too(wanted: list[int]) -> None:
    """H6: a listener's filter may match nothing."""
    file, row = SpillFile(), (1, "a", None)
    nothing = batch_of([row]).slice(0, 0)

    assert all_of(in_queue_order([nothing], wanted, COLUMNS, file)) == []
    assert all_of(in_queue_order([nothing, row], wanted, COLUMNS, file)) == [row]


@pytest.mark.usefixtures("small")
def test_a_call_that_is_given_back_again_and_again_takes_its_room_once() -> None:
    """D3"""
    file = SpillFile()
    ends = set()
    for _ in range(5):
        context = ConsumeOrderlyContext([message_at(1)], OUTPUT, 0, file)
        emit_many(context)
        ends.add(file._end)
        file.drop(context.take_emitted())

    assert len(ends) == 1
    assert (ends.pop() > 10_000, file._end) == (True, 0)


def test_small_batches_are_joined_before_they_take_much_memory() -> None:
    """D1, H6: each takes some kilobytes besides its values."""
    dice, kept = random.Random(1), RowBuffer(COLUMNS, SpillFile())
    wanted: list[Row] = []
    for _ in range(3000):
        rows = [row_at(0, dice) for _ in range(3)]
        kept.add([batch_of(rows[:2]), rows[2]])
        wanted += rows
    # An item for the rows of each MiB, and those that came since.
    assert len(kept.rows) < 1000
    assert all_of(kept.rows) == wanted


def test_rows_of_several_calls_that_are_committed_together_stay_within_memory() -> None:
    """D1: the first call may have emitted few rows, and a later one many."""
    kept = RowBuffer(PLAIN.rows, SpillFile())
    large = PLAIN.rows.to_batch({"queueOffset": [0], "name": ["x" * 400_000]}, 1)
    for _ in range(100):
        kept.add([(0, "a"), large])
    in_memory = [each for each in kept.rows if isinstance(each, pa.RecordBatch)]
    assert memory_of(in_memory) <= row_buffer.IN_MEMORY_BYTES + (2 << 20)


def test_small_batches_of_one_call_stay_within_its_memory() -> None:
    """D1, H6"""
    dice, context = random.Random(1), ConsumeOrderlyContext([message_at(0)], OUTPUT)
    wanted: list[Row] = []
    for _ in range(8000):
        rows = [row_at(0, dice) for _ in range(2)]
        context.emit_batch(batch_of(rows[:1]))
        context.emit(name=rows[1][1], parts=rows[1][2])
        wanted += rows
    emitted = context.take_emitted()
    assert memory_of(emitted) <= row_buffer.IN_MEMORY_BYTES
    assert all_of(emitted) == wanted


def test_a_large_batch_is_kept_without_a_copy() -> None:
    """H6: nor is it joined with small ones beside it."""
    few, many = batch_of([(1, "name", None)]), batch_of([(1, "name" * 100_000, None)] * 3)
    kept = RowBuffer(COLUMNS, SpillFile())
    for batch in (few, many, few, few):
        kept.add([batch])
    kept.pack()

    assert [each.num_rows for each in kept.rows if isinstance(each, pa.RecordBatch)] == [1, 3, 2]
    assert kept.rows[1] is many


def test_dropped_rows_make_no_room_in_another_file() -> None:
    """I1: a call may fail whose rows were written before a cut, and others have written as many since."""
    rows = batch_of([(1, "name", None)])
    before, after = SpillFile(), SpillFile()
    dropped, kept = before.write(rows), after.write(rows)
    assert dropped.end == kept.end
    after.drop([dropped])
    after.write(batch_of([(2, "other", None)]))

    assert all_of([kept]) == [(1, "name", None)]


def test_rows_that_another_thread_has_measured_have_no_size() -> None:
    """H1: several threads of a listener may measure at the same time; the last finds nothing left."""
    assert PLAIN.rows.is_plain
    assert row_buffer._size_of_rows([], PLAIN.rows) == 0


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("output", [OUTPUT, PLAIN], ids=["nested", "plain"])
def test_rows_that_several_threads_of_a_listener_emit_are_all_there(output: OutputColumns) -> None:
    context = ConsumeOrderlyContext([message_at(1)], output)

    def emit(thread: int) -> None:
        for number in range(3000):
            context.emit(name=f"{thread}-{number}")

    threads = [threading.Thread(target=emit, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    names = sorted(row[1] for rows in tuples_of(context.take_emitted(), output.rows) for row in rows)
    assert names == sorted(f"{thread}-{number}" for thread in range(4) for number in range(3000))


@pytest.mark.usefixtures("small")
def test_without_room_for_its_file_a_call_ends_the_query_whatever_its_listener_makes_of_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """D5: no message is at fault."""

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    context = ConsumeOrderlyContext([message_at(1)], OUTPUT)
    with pytest.raises(RocketMQError, match=r"No space left on device\. .* Give spark\.local\.dir more room"):
        emit_many(context)

    assert "could not be written to a temporary file" in str(context.broken_at("here"))


def test_rows_emitted_after_the_end_of_a_call_do_not_count() -> None:
    """D3: a thread of a listener may go on when its call has been answered."""
    context = ConsumeOrderlyContext([message_at(1)], OUTPUT)
    for _ in range(100):
        context.emit(name="in time")
    emitted = context.take_emitted()
    for _ in range(100):
        context.emit(name="late")

    assert {name for _, name, _ in all_of(emitted)} == {"in time"}


def test_plain_values_are_distinguished_from_those_with_parts() -> None:
    plain = OutputColumns.of(StructType().add("name", "string").add("at", "timestamp"))

    assert (plain.rows.is_plain, COLUMNS.is_plain) == (True, False)
    assert row_buffer._size_of({"a": ["x" * 1000, ("y" * 1000,)]}) > 2000


def test_large_texts_and_bytes_count_in_the_size_of_rows() -> None:
    """D3: of any column, and a null has no size of its own."""
    columns = OutputColumns.of(StructType().add("name", "string").add("count", "long").add("data", "binary"))
    rows = [(1, "x" * 1000, 7, None), (2, None, None, b"y" * 3000)]

    assert 4000 < row_buffer._size_of_rows(rows, columns.rows) < 5000


def test_columns_left_out_are_null_also_where_there_are_none() -> None:
    """D3: a row has its message's offset in any case."""
    some = ConsumeOrderlyContext(
        [message_at(1)], OutputColumns.of(StructType().add("a", "long").add("b", "long"))
    )
    some.emit(b=2)
    some.emit()
    none = ConsumeOrderlyContext([message_at(1)], OutputColumns.of(StructType()))
    none.emit()

    assert some.take_emitted() == [(1, None, 2), (1, None, None)]
    assert none.take_emitted() == [(1,)]
