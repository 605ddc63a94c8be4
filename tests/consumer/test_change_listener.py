"""The listener of a consumer whose sink takes changes: a row for each change, and a reason for each bad one."""

from __future__ import annotations

import json
import pickle
import random
from base64 import b64decode
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import pyspark_rocketmq as rmq
from pyspark_rocketmq.change_data.change import (
    BadChange,
    Change,
    ChangeMessage,
    Decoded,
    Kind,
    Operation,
    PassedOver,
    SchemaChange,
    SourceTable,
    SourceType,
)
from pyspark_rocketmq.change_data.effects import order_of
from pyspark_rocketmq.consumer.change_listener import ChangeListener
from pyspark_rocketmq.consumer.tables_listener import TablesListener
from pyspark_rocketmq.model import QUEUE_OFFSET, queue_columns
from pyspark_rocketmq.sinks.change_table.columns import BODY, MORE, PROBLEM, SCHEMA, change_schema
from pyspark_rocketmq.sinks.change_table.compaction import ABSENT, OPERATION, POSITION
from pyspark_rocketmq.sinks.change_table.sink import ChangeTable
from pyspark_rocketmq.sinks.change_table.versions import TIME
from tests.change_data.samples import recorded
from tests.helpers.messages import message_at
from tests.helpers.sink_rows import Q0, files_of

ORDERS = SourceTable("shop", None, "orders")
COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("amount", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("seen", pa.timestamp("us")),
    ]
)


class Given:
    """Every message has the changes that the test gives."""

    def __init__(self, *decoded: Decoded) -> None:
        self._decoded = decoded

    def decode(self, message: ChangeMessage) -> Sequence[Decoded]:
        return self._decoded


def rows_of(*decoded: Decoded, **settings: Any) -> list[dict[str, Any]]:
    """Return the rows that the listener emits for one message at offset 0."""
    given: dict[str, Any] = {"keys": ["id"], "columns": COLUMNS} | settings
    sink = ChangeTable("/nowhere/orders", envelope=Given(*decoded), **given)
    listener = pickle.loads(pickle.dumps(ChangeListener(sink)))
    run = rmq.run_listener(listener, [rmq.Message(topic="t", body=b"body")], output_schema=listener.schema)
    assert (run.consumed, run.failed) == (1, 0)
    return [
        {
            name: value
            for name, value in row.items()
            if value is not None and name not in ("queueOffset", TIME)
        }
        for row in run.rows
    ]


def test_the_time_of_a_change_is_the_source_s() -> None:
    """K5: where the envelope has none, it is the time at which the message was stored."""
    at = datetime(2026, 11, 3, 4, 5, 6, 789_000, tzinfo=UTC)
    times = []
    for given in (change(source_time=at), change()):
        sink = ChangeTable("/nowhere/orders", envelope=Given(given), keys=["id"], columns=COLUMNS)
        [row] = ChangeListener(sink).rows(message_at(0))
        times.append(row[TIME])
    assert times == [at, datetime(2023, 11, 14, 22, 13, 20, 1_000, tzinfo=UTC)]


def change(operation: Operation = Operation.INSERT, **parts: Any) -> Change:
    given: dict[str, Any] = {"table": ORDERS, "operation": operation, "key": {"id": 1}, "position": (7, 3)}
    if operation in (Operation.INSERT, Operation.UPDATE, Operation.SNAPSHOT):
        given["row"] = {"id": 1, "amount": Decimal("1.50")}
    return Change(**(given | parts))


def problem_of(*decoded: Decoded, **settings: Any) -> str:
    [row] = rows_of(*decoded, **settings)
    assert row[OPERATION] == "bad"
    assert row[BODY] == b"body"
    problem: str = row[PROBLEM]
    return problem


def test_the_body_is_in_the_first_bad_row_of_a_message() -> None:
    """K1: else a message of thousands of bad changes would be stored thousands of times; the place is enough."""
    bad = [BadChange(f"bad {number}", ORDERS) for number in range(3)]

    rows = rows_of(change(), bad[0], change(), *bad[1:])

    assert [(row.get(PROBLEM), row.get(BODY)) for row in rows if row[OPERATION] == "bad"] == [
        ("bad 0", b"body"),
        ("bad 1", None),
        ("bad 2", None),
    ]


def test_a_row_that_ends_the_query_takes_the_body_from_no_other() -> None:
    """K5: it is not stored, or not even counted if the table lacks a dropped column anyway."""
    dropped = SchemaChange(
        table=ORDERS, statement="ALTER TABLE orders DROP COLUMN seen", kind="alter", position=(1, 1)
    )

    ends, bad = rows_of(dropped, BadChange("bad", ORDERS), schema_changes="evolve")

    assert (ends[OPERATION], ends.get(BODY), bad.get(BODY)) == (SCHEMA, None, b"body")


def test_a_reason_is_no_longer_than_it_helps() -> None:
    """K1: it may contain names of the message, in each row."""
    [row] = rows_of(BadChange("x" * 1_000_000, ORDERS))

    assert len(row[PROBLEM]) == 4_000


def test_a_row_for_each_change() -> None:
    """K1: a change has its values, its place and what it lacks."""
    at = order_of((7, 3), 0, 0)
    assert rows_of(change()) == [
        {POSITION: at, OPERATION: "insert", "of_id": 1, "of_amount": Decimal("1.50")}
    ]
    assert rows_of(change(Operation.UPDATE, row={"id": 1, "at": None})) == [
        {POSITION: at, OPERATION: "update", "of_id": 1, ABSENT: ["amount", "seen"]}
    ]
    [deletion, snapshot] = rows_of(change(Operation.DELETE), change(Operation.SNAPSHOT))
    assert deletion == {POSITION: at, OPERATION: "delete", "of_id": 1}
    assert snapshot[POSITION] == order_of((7, 3), 0, 1, is_snapshot=True)
    assert rows_of(change(Operation.TRUNCATE, key={})) == [{POSITION: at, OPERATION: "truncate"}]


@pytest.mark.parametrize(
    ("parts", "settings"),
    [
        ({}, {"source_table": "shop.carts"}),
        ({"operation": Operation.DELETE}, {"deletes": "ignore"}),
        ({"operation": Operation.TRUNCATE, "key": {}}, {"truncates": "ignore"}),
    ],
)
def test_changes_that_are_passed_over(parts: dict[str, Any], settings: dict[str, Any]) -> None:
    """K5: changes of other tables, and those that a mode ignores."""
    assert rows_of(change(**parts), **settings) == []


def test_messages_without_changes_are_passed_over() -> None:
    """K5: heartbeats, and statements that change the schema."""
    assert rows_of(PassedOver("heartbeat"), SchemaChange(table=ORDERS, statement="ALTER TABLE orders")) == []


def test_a_key_is_found_where_the_envelope_has_it() -> None:
    """K1: in the key, the row or the row before."""
    assert rows_of(change(key={}))[0]["of_id"] == 1
    assert rows_of(change(Operation.DELETE, key={}, before={"id": 4}))[0]["of_id"] == 4
    assert "no value for id of the key" in problem_of(change(Operation.DELETE, key={}))
    assert "no value for id of the key" in problem_of(change(key={"id": None}))


def test_a_column_that_the_table_lacks_is_left_out() -> None:
    """K3: schema_changes='ignore': ``columns`` chooses those to keep."""
    [row] = rows_of(change(row={"id": 1, "note": "x"}), schema_changes="ignore")
    assert row.keys() == {POSITION, OPERATION, "of_id"}


def test_a_column_that_the_table_lacks_is_carried_with_its_type() -> None:
    """K3: by the source's type, or as text."""
    types = {"size": SourceType("int(11)", Kind.INT)}
    [row] = rows_of(change(row={"id": 1, "size": 7, "note": Decimal("1.50")}, types=types))
    assert json.loads(row[MORE]) == {"size": ["int", 7], "note": ["string", "1.50"]}


def test_a_new_column_that_an_update_leaves_out() -> None:
    """K3: the table gets it, and its row notes that the value is elsewhere."""
    types = {"size": SourceType("int(11)", Kind.INT)}
    update = change(Operation.UPDATE, row={"id": 1}, absent=frozenset({"size", "untyped"}), types=types)
    [row] = rows_of(update)
    assert json.loads(row[MORE]) == {"size": ["int", None], "untyped": ["string", None]}
    assert row[ABSENT] == ["amount", "at", "seen", "size", "untyped"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [("Amount", "differ only in case"), ("a b", "Delta forbids the column"), (POSITION, "Rename column _")],
)
def test_a_column_that_no_table_can_have(name: str, problem: str) -> None:
    """K3: its changes are bad ones, with what to do."""
    assert problem in problem_of(change(row={"id": 1, name: 5}))


def test_any_change_of_the_schema_ends_the_query() -> None:
    """K3: schema_changes='exception': an unknown column, a value that does not fit, a dropped column."""
    dropped = SchemaChange(table=ORDERS, statement="ALTER TABLE orders DROP COLUMN amount")
    unknown, unfit = change(row={"id": 1, "note": "x"}), change(row={"id": 1, "amount": Decimal("1.555")})
    rows = [rows_of(decoded, schema_changes="exception")[0] for decoded in (unknown, unfit, dropped)]
    assert [row[OPERATION] for row in rows] == [SCHEMA] * 3
    assert rows[-1][ABSENT] == ["amount"]


@pytest.mark.parametrize(("mode", "stops"), [("evolve", True), ("lenient", False), ("try_evolve", False)])
def test_a_statement_that_takes_columns_away(mode: str, stops: bool) -> None:
    """K3: only evolve ends the query there, if the table has the column."""
    statement = SchemaChange(table=ORDERS, statement="ALTER TABLE orders CHANGE amount price int")
    other = SchemaChange(table=None, statement="ALTER TABLE carts DROP COLUMN amount")
    rows = rows_of(statement, other, schema_changes=mode)
    assert [row[ABSENT] for row in rows] == ([["amount"]] if stops else [])


def test_a_text_column_holds_every_value_as_text() -> None:
    """K3: a column that was added as text gets values without a type after a restart, too."""
    columns = pa.schema([("id", pa.int64()), ("note", pa.string())])
    assert rows_of(change(row={"id": 1, "note": 5}), columns=columns)[0]["of_note"] == "5"
    assert "cannot hold b'x'" in problem_of(change(row={"id": 1, "note": b"x"}), columns=columns)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("amount", Decimal("1.555")),
        ("amount", 1.5),
        ("amount", "1,5"),
        ("amount", "1.555"),
        ("id", "1"),
        ("at", "2026-01-01T00:00:00"),
        ("seen", "2026-01-01T00:00:00.1234567"),
        ("id", 2**63),
        ("id", Decimal("7.5")),
        ("id", Decimal(2**63)),
        ("at", datetime(2026, 1, 1)),  # noqa: DTZ001 - what is refused
        ("seen", datetime(2026, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_value_that_does_not_fit_exactly_is_a_bad_change(name: str, value: object) -> None:
    """K5: nothing is rounded, cut, converted or moved to a zone."""
    row = {"id": 1, name: value}
    assert f"Column {name} is " in problem_of(change(key={}, row=row))


@pytest.mark.parametrize("zone", ["UTC", None])
def test_times_in_arrays_are_not_moved_to_a_zone(zone: str | None) -> None:
    """K5: an array of times with a zone has no place in one of times without, nor the other way round."""
    columns = pa.schema([("id", pa.int64()), ("times", pa.list_(pa.timestamp("us", zone)))])
    times = {None: datetime(2026, 1, 1), "UTC": datetime(2026, 1, 1, tzinfo=UTC)}  # noqa: DTZ001 - no zone
    other = next(time for key, time in times.items() if key != zone)
    assert "Column times is " in problem_of(change(row={"id": 1, "times": (None, other)}), columns=columns)
    [row] = rows_of(change(row={"id": 1, "times": (None, times[zone])}), columns=columns)
    assert row["of_times"] == (None, times[zone])


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("amount", "1.50", Decimal("1.50")),
        ("at", "2026-01-01T02:00:00.123456+02:00", datetime(2026, 1, 1, 0, 0, 0, 123456, UTC)),
        ("seen", "2026-01-01T02:00:00", datetime(2026, 1, 1, 2)),  # noqa: DTZ001 - a time without a zone
    ],
)
def test_a_text_that_is_exactly_the_value(name: str, text: str, value: object) -> None:
    """K5: where messages have no types, decimals and times come as texts."""
    assert rows_of(change(row={"id": 1, name: text}))[0][f"of_{name}"] == value


@pytest.mark.parametrize("value", [Decimal(7), Decimal("7.00")])
def test_a_decimal_without_a_fraction_fits_a_column_of_whole_numbers(value: Decimal) -> None:
    """K5: MySQL's BIGINT UNSIGNED is one, and its keys are mostly small."""
    assert rows_of(change(key={"id": value}, row={"id": value}))[0]["of_id"] == 7


_NUMBERS = pa.schema(
    [
        ("id", pa.int64()),
        ("double", pa.float64()),
        ("float", pa.float32()),
        ("floats", pa.list_(pa.list_(pa.float32()))),
    ]
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("double", "1.10000000000000000001"),
        ("double", "123456789012345678.5"),
        ("double", "1E+400"),
        ("double", "1E-400"),
        ("double", "-1E+99999999"),
        ("double", "12345678901234567"),
        ("float", "1234567890.12"),
        ("float", "0.1000000001"),
        ("float", "16777217"),
        ("float", "1E+39"),
        ("float", "1E-60"),
    ],
)
def test_a_decimal_that_a_floating_point_number_would_change(name: str, text: str) -> None:
    """K5: it is neither rounded to other digits, nor to infinity or zero."""
    row = {"id": 1, name: Decimal(text)}
    assert f"Column {name} is {name} and cannot hold" in problem_of(change(row=row), columns=_NUMBERS)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("double", "0.1", 0.1),
        ("double", "8.409999999999999E+21", 8.41e21),
        ("double", "0.000", 0.0),
        ("double", "0.1000000000000000055511151231257827021181583404541015625", 0.1),
        ("double", "123456789012345680000000", 1.2345678901234568e23),
        ("float", "1.1", 1.100000023841858),
        ("float", "1.100000023841858", 1.100000023841858),
        ("float", "1.23456792E+8", 123456792.0),
        ("float", "3.4028235E+38", 3.4028234663852886e38),
    ],
)
def test_a_decimal_that_is_the_text_of_a_floating_point_number(name: str, text: str, value: float) -> None:
    """K5: MySQL, Java and Python write it with up to 17 digits."""
    [row] = rows_of(change(row={"id": 1, name: Decimal(text)}), columns=_NUMBERS)
    assert row[f"of_{name}"] == value


@pytest.mark.parametrize("value", [0.1000000001, 16777217.0, 1e39, -1e-60])
def test_a_double_that_a_float_would_change(value: float) -> None:
    """K5: it is neither rounded to other digits, nor to infinity or zero; nor is an element of an array."""
    for row in ({"id": 1, "float": value}, {"id": 1, "floats": ((1.5, None), None, (value,))}):
        assert "float" in problem_of(change(row=row), columns=_NUMBERS)


@pytest.mark.parametrize(
    "text", ["1.1", "0.1", "16777216", "3.4028235E38", "1.4E-45", "-0.0", "1.100000023841858", "inf"]
)
def test_a_double_that_is_the_text_of_a_float(text: str) -> None:
    """K5: programs write a FLOAT as the text or the double of its 32 bits; DOUBLE has the same class."""
    value = float(text)
    row = {"id": 1, "float": value, "floats": ((value, None), None)}
    [found] = rows_of(change(row=row), columns=_NUMBERS)
    assert [found["of_float"], found["of_floats"][0][0]] == [pytest.approx(value, rel=1e-7)] * 2


_ORDERS = pa.schema(
    [("tenant", pa.int32()), ("no", pa.string()), ("price", pa.decimal128(10, 2)), ("note", pa.string())]
)
_LEFT = {
    "canal_gtid": {"C": (Decimal("3.50"), "changed"), "D": (Decimal("12.00"), None)},
    "debezium_schema": {"C": (Decimal("9.99"), "first"), "snap": (Decimal("1.10"), "was there before")},
    "debezium_plain": {"C": (Decimal("9.99"), "first"), "snap": (Decimal("1.10"), "was there before")},
    "debezium_flat": {"C": (Decimal("9.99"), "first")},
}
"""Rows of ``orders`` at the end of a recording, without its truncation; the flat form has no snapshot's row."""


def _bodies(recording: str) -> list[tuple[bytes, str]]:
    """Bodies and KEYS of the messages of a recording."""
    if recording == "canal_gtid":
        return [(b64decode(line["protobuf"]), "") for line in recorded(recording)]
    return [((line["value"] or "").encode(), line["key"] or "") for line in recorded(recording)]


@pytest.mark.parametrize("is_truncated", [True, False])
@pytest.mark.parametrize("recording", _LEFT)
def test_recordings_of_real_programs_in_any_order(tmp_path: Path, recording: str, is_truncated: bool) -> None:
    """K1, K5: messages of Canal and Debezium, shuffled and some of them twice, give the rows that were left."""
    program, _, form = recording.partition("_")
    envelope: dict[str, Any] = {"envelope": "debezium", "source_table": f"{form}.shop.orders"}
    if program == "canal":
        envelope = {"envelope": "canal-protobuf", "source_time_zone": "UTC"}
    truncates = "apply" if is_truncated else "ignore"
    for seed in range(3):
        by = random.Random(seed)
        sent = _bodies(recording)
        sent += by.sample(sent, len(sent) // 2)
        by.shuffle(sent)
        sink = ChangeTable(
            tmp_path / str(seed), keys=["tenant", "no"], columns=_ORDERS, truncates=truncates, **envelope
        )
        _consume(sink, sent)
        rows = DeltaTable(tmp_path / str(seed)).to_pyarrow_table().to_pylist()
        found = {row["no"]: (row["price"], row["note"]) for row in rows}
        assert found == ({} if is_truncated and recording != "debezium_flat" else _LEFT[recording])


def _consume(sink: ChangeTable, bodies: Sequence[tuple[bytes, str]]) -> None:
    """Apply messages in batches of seven."""
    listener = ChangeListener(sink)
    schema = change_schema(sink.table_columns())
    sink.prepare(schema)
    for start in range(0, len(bodies), 7):
        messages = [
            rmq.Message(topic="t", body=body, properties={"KEYS": keys})
            for body, keys in bodies[start : start + 7]
        ]
        run = rmq.run_listener(listener, messages, output_schema=listener.schema)
        rows = [
            {**queue_columns(Q0), **row, QUEUE_OFFSET: row[QUEUE_OFFSET] + start, POSITION: row[POSITION]}
            for row in run.rows
        ]
        batch = sink.begin("group", {Q0: 0})
        written = files_of(batch.task_writer(), iter([pa.RecordBatch.from_pylist(rows, schema)]))
        batch.commit(written, {Q0: start + len(messages)})


def test_a_bad_change_names_what_to_do() -> None:
    """K5: reasons of the envelope, and those of the order and of missing values."""
    assert problem_of(BadChange("Not a change.")) == "Not a change."
    assert "order='queue'" in problem_of(change(position=None))
    assert "negative" in problem_of(change(position=(-1,)))
    assert "binlog_row_image=FULL" in problem_of(change(absent=frozenset({"at"})))


@pytest.mark.parametrize("operation", [Operation.INSERT, Operation.SNAPSHOT])
@pytest.mark.parametrize("types", [{"note": SourceType("text", Kind.STRING)}, {}], ids=["types", "no types"])
@pytest.mark.parametrize("name", ["at", "note"])
def test_a_new_row_that_lacks_a_value(operation: Operation, types: Any, name: str) -> None:
    """K5: it is nowhere else, whether the table has the column or is to get it."""
    lacking = change(operation, absent=frozenset({name}), types=types)
    for mode in ("lenient", "evolve", "try_evolve"):
        assert f"The new row lacks the value of {name}:" in problem_of(lacking, schema_changes=mode)


def test_a_new_row_that_lacks_the_value_of_a_column_that_is_left_out() -> None:
    """K3: 'ignore' needs no value of it; 'exception' ends the query, whatever becomes of bad changes."""
    lacking = change(absent=frozenset({"note"}))
    assert [row[OPERATION] for row in rows_of(lacking, schema_changes="ignore")] == ["insert"]
    assert [row[OPERATION] for row in rows_of(lacking, schema_changes="exception")] == [SCHEMA]


def test_a_snapshot_s_row_needs_no_position() -> None:
    """K1: that of Maxwell's bootstrap is below all changes."""
    [row] = rows_of(change(Operation.SNAPSHOT, position=None))
    assert order_of(None, 2**63 - 1, 9) < row[POSITION] < order_of((0,), 0, 0)


@pytest.mark.parametrize("kind", ["one table", "several tables"])
def test_the_later_of_two_snapshots_without_positions_counts(tmp_path: Path, kind: str) -> None:
    """K1: also if the topic was created again in between, so that its offsets have begun again."""
    if kind == "one table":
        columns = pa.schema([("id", pa.int64()), ("a", pa.int64())])
        one = rmq.ChangeTable(tmp_path / "t", keys=["id"], envelope="maxwell", columns=columns)
        listener: ChangeListener | TablesListener = ChangeListener(one)
    else:
        listener = TablesListener(rmq.ChangeTables(tmp_path, envelope="maxwell", servers=[1]))
    places = []
    # Two rows of the first bootstrap, two of the second one. The last two differ only in the broker's time.
    for offset, time_s in ((4999, 100), (5000, 100), (3, 900), (4, 900), (2, None), (1, None)):
        event = {
            "database": "shop",
            "table": "orders",
            "type": "bootstrap-insert",
            "ts": time_s,
            "data": {"id": 1, "a": offset},
            "primary_key_columns": ["id"],
        }
        message = message_at(offset, body=json.dumps(event).encode())
        message = message._replace(store_timestamp=1_700_000_000_000 - offset)
        [row] = listener.rows(message)
        places.append(row[POSITION])
    assert places == sorted(places)
    assert len(set(places)) == len(places)
    # Places that tables have from earlier releases.
    assert all(order_of(None, offset, 0, is_snapshot=True) < places[0] for offset in (0, 5000, 2**63 - 1))


def test_bad_changes_do_not_stop_the_good_ones_of_their_message() -> None:
    """K5: each change is looked at by itself."""
    assert [row[OPERATION] for row in rows_of(BadChange("x"), change(), change(key={"id": None}))] == [
        "bad",
        "insert",
        "bad",
    ]


def test_the_order_of_the_queue() -> None:
    """K1: order='queue' takes offset and number, whatever position there is."""
    settings = {"order": "queue", "truncates": "ignore"}
    first, second = rows_of(change(position=(9,)), change(position=None), **settings)
    assert first[POSITION] == order_of(None, 0, 0) < second[POSITION]


def test_a_truncation_that_stops_the_query() -> None:
    """K5: truncates='stop' is an error even where bad changes are kept."""
    [row] = rows_of(change(Operation.TRUNCATE, key={}), truncates="stop", bad_changes="keep")
    assert row[OPERATION] == "truncate"
    assert "The source has truncated shop.orders" in row[PROBLEM]


def test_the_table_may_exist_already(tmp_path: Path) -> None:
    """K5: without columns those of the table are taken."""
    from deltalake import write_deltalake

    write_deltalake(tmp_path / "t", pa.table({"id": pa.array([1]), "note": pa.array(["x"])}))
    sink = ChangeTable(tmp_path / "t", keys=["id"], envelope=Given())
    assert ChangeListener(sink).schema.fieldNames()[-2:] == ["of_id", "of_note"]
