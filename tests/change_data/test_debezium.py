"""Debezium's messages, as its own engine has made them from a real PostgreSQL."""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

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
)
from pyspark_rocketmq.change_data.debezium import DebeziumJson
from pyspark_rocketmq.change_data.effects import order_of
from pyspark_rocketmq.change_data.rules import Rules
from tests.change_data.samples import LENIENT, debezium, debezium_changes, one, reason, recorded

NAMES = ("schema", "plain", "flat")
PLACEHOLDER = "__debezium_unavailable_value"


def decode(value: Any, key: Any = None, rules: Rules | None = None) -> list[Decoded]:
    keys = "" if key is None else json.dumps(key)
    return list(DebeziumJson(rules or Rules()).decode(ChangeMessage(json.dumps(value).encode(), keys)))


def mysql(op: str = "c", **source: Any) -> dict[str, Any]:
    """A message of the MySQL connector without a schema, after its documentation."""
    place = {"file": "mysql-bin.000003", "pos": 154, "row": 0, "server_id": 223344}
    return {
        "before": None,
        "after": {"id": 1},
        "source": {
            "connector": "mysql",
            "db": "shop",
            "table": "orders",
            "ts_ms": 1465491411815,
            **place,
            **source,
        },
        "op": op,
        "ts_ms": 1465491411815,
    }


def with_schema(value: Any, **field: Any) -> dict[str, Any]:
    """A message with a column ``v`` of a schema's field."""
    fields = [{"type": "int32", "field": "id"}, {"field": "v", **field}]
    payload = mysql()
    payload["after"] = {"id": 1, "v": value}
    return {
        "schema": {"type": "struct", "fields": [{"type": "struct", "field": "after", "fields": fields}]},
        "payload": payload,
    }


def value_of(value: Any, **field: Any) -> Any:
    return one(decode(with_schema(value, **field), {"id": 1})).row["v"]


def test_values_of_every_type_are_those_of_the_source() -> None:
    """K6: facts 29, 30, 32, 35, 36, 37: with a schema every value is exact, and has the source's meaning."""
    row = debezium_changes("schema", "types")[0].row

    assert row["bi"] == 2**63 - 1
    assert row["n"] == Decimal("12345678901234567890123456789012345678901234567890.12345")
    assert row["n1"] == Decimal("12345678.91")
    assert row["n2"] == Decimal("1234567890123456789012345678.0123456789")
    assert row["money"] == Decimal("12.34")
    assert (row["r"], row["d"]) == (1.5, 0.1)
    assert (row["c"], row["vc"], row["t"]) == ("ab   ", "grün", 'line\n"quoted" 漢字 😀')
    assert row["by"] == b"\x00\xff\x10"
    assert row["dt"] == date(2026, 2, 28)
    assert (row["ti"], row["tiz"]) == ("23:59:59.123456", "10:30:15.5Z")
    assert row["ts0"] == datetime(2026, 1, 2, 3, 4, 5)
    assert row["ts3"] == datetime(2026, 1, 2, 3, 4, 5, 678000)
    assert row["ts6"] == datetime(1969, 12, 31, 23, 59, 59, 999999)
    assert row["tz"] == datetime(2026, 1, 2, 1, 4, 5, 678901, tzinfo=UTC)
    assert row["e"] == 'it\'s "happy"'
    assert (row["bit1"], row["bit5"], row["vb"]) == (True, 0b10110, 0b101)
    assert (row["ia"], row["ta"]) == ((1, None, 3), ("a", "b,c", None))
    assert row["na"] == (Decimal("1.10"), Decimal("2.00"))
    assert row["j"] == '{"a": 9007199254740993}'
    assert json.loads(row["pt"])["x"] == 1.5


def test_types_are_from_the_schema() -> None:
    """K6: facts 27, 29: precision, scale and zone are in the schema."""
    types = debezium_changes("schema", "types")[0].types

    assert {
        name: types[name].spark for name in ("n", "n1", "n2", "money", "ts6", "tz", "na", "ia", "bit5")
    } == {
        "n": "string",
        "n1": "decimal(10,2)",
        "n2": "decimal(38,10)",
        "money": "string",
        "ts6": "timestamp_ntz",
        "tz": "timestamp",
        "na": "array<decimal(10,2)>",
        "ia": "array<int>",
        "bit5": "bigint",
    }
    assert types["n"].kind is Kind.DECIMAL


@pytest.mark.parametrize("name", ["plain", "flat"])
def test_without_a_schema_values_are_as_json_has_them(name: str) -> None:
    """K6: fact 29: decimals as text stay text, and no number passes through a float."""
    change = debezium_changes(name, "types")[0]

    assert change.types == {}
    assert change.row["n1"] == "12345678.91"
    assert change.row["d"] == Decimal("0.1")
    assert change.row["bi"] == 2**63 - 1


@pytest.mark.parametrize("name", NAMES)
def test_positions_follow_commits(name: str) -> None:
    """K6: facts 9, 10: commit, LSN, order in the transaction; three events of one transaction differ."""
    changes = debezium_changes(name, "orders")
    positions = [change.position for change in changes]

    assert positions == sorted(positions)  # type: ignore[type-var]
    assert all(position is not None and len(position) == 3 for position in positions)
    first = next(at for at, change in enumerate(changes) if change.operation is Operation.INSERT)
    commits = {position[0] for position in positions[first : first + 3] if position}
    assert len(commits) == 1
    assert [position[2] for position in positions[first : first + 3] if position] == [1, 2, 3]


def test_interleaved_transactions_are_in_the_order_of_their_commits() -> None:
    """K6: fact 10: a transaction with a lower LSN may commit later."""

    def position(commit: int, lsn: int) -> Any:
        source = {"db": "d", "schema": "s", "table": "t", "lsn": lsn, "sequence": f'["{commit}","{lsn}"]'}
        return one(decode({"op": "u", "before": None, "after": {"id": 1}, "source": source})).position

    assert position(500, 300) > position(400, 450)


@pytest.mark.parametrize("name", NAMES)
def test_key_change_is_two_messages_with_one_position_of_the_log(name: str) -> None:
    """K6: fact 15: d of the old key, c of the new one; either may be read first."""
    deleted, inserted = debezium_changes(name, "orders")[-4 if name != "flat" else -3 :][:2]

    assert (deleted.operation, deleted.key) == (Operation.DELETE, {"tenant": 1, "no": "A"})
    assert (inserted.operation, inserted.key) == (Operation.INSERT, {"tenant": 1, "no": "C"})
    assert deleted.position is not None
    assert inserted.position is not None
    assert deleted.position[:2] == inserted.position[:2]
    assert deleted.position < inserted.position


def test_snapshot_row_is_below_what_came_after_it() -> None:
    """K6: fact 13: r carries the snapshot's LSN."""
    changes = [change for line in recorded("debezium_schema") for change in debezium(line)]
    snapshot, *others = [change for change in changes if isinstance(change, Change)]

    assert snapshot.operation is Operation.SNAPSHOT
    assert snapshot.row["note"] == "was there before"
    assert snapshot.position is not None
    assert all(other.position is not None and snapshot.position < other.position for other in others)


def test_tombstones_heartbeats_and_marks_are_passed_over() -> None:
    """K6: facts 16, 19: known, counted by their reason, and no change."""
    found = {
        change.reason
        for line in recorded("debezium_schema")
        for change in debezium(line)
        if isinstance(change, PassedOver)
    }

    assert found == {"tombstone", "heartbeat", "transaction mark", "logical message"}
    assert decode(None) == [PassedOver("tombstone")]


@pytest.mark.parametrize(
    "columns",
    [
        {"status": "BEGIN"},
        {"status": "END"},
        {"ddl": "text"},
        {"op": "m"},
        {"op": "c"},
        {"op": 7, "source": {}},
    ],
)
def test_columns_that_are_named_like_control_messages(columns: dict[str, Any]) -> None:
    """K6: facts 19, 24: a flattened row is a row, whatever its columns are named."""
    added = {"__op": "u", "__db": "shop", "__table": "orders", "__lsn": 7}
    shown = {name: "{}" if value == {} else value for name, value in columns.items()}
    for marks in (
        added,
        {name: added[name] for name in ("__db", "__table", "__lsn")} | {"__deleted": "false"},
    ):
        change = one(decode({"id": 1, **columns, **marks}, {"id": 1}))
        assert (change.operation, change.row) == (Operation.UPDATE, {"id": 1, **shown})


def test_schema_change_topic_is_known() -> None:
    """K6: facts 5, 19: the topic with the connector's prefix has DDL, after the documentation."""
    event = {
        "source": {"connector": "mysql", "db": "shop", "table": "customers"},
        "ts_ms": 1651535750218,
        "databaseName": "shop",
        "schemaName": None,
        "ddl": "ALTER TABLE customers ADD middle_name varchar(255)",
        "tableChanges": [{"type": "ALTER", "id": '"shop"."customers"', "table": {}}],
    }

    assert decode(event) == [
        SchemaChange(
            table=SourceTable("shop", None, "customers"),
            statement="ALTER TABLE customers ADD middle_name varchar(255)",
            kind="alter",
        )
    ]


def test_truncate_has_no_key() -> None:
    """K6: fact 18: t has the position at which all rows went."""
    truncated = debezium_changes("schema", "orders")[-1]

    assert (truncated.operation, truncated.key, truncated.row) == (Operation.TRUNCATE, {}, {})
    assert truncated.position is not None


@pytest.mark.parametrize("name", NAMES)
def test_table_is_named_by_the_source_and_not_by_the_topic(name: str) -> None:
    """K6: fact 20: RocketMQ's topics have no dots."""
    change = debezium_changes(name, "orders")[0]

    assert change.table == SourceTable(name, "shop", "orders")


@pytest.mark.parametrize("name", NAMES)
def test_table_without_a_key_has_an_empty_one(name: str) -> None:
    """K6: fact 17: the message key is null."""
    assert [(change.operation, change.key) for change in debezium_changes(name, "keyless")] == [
        (Operation.INSERT, {}),
        (Operation.UPDATE, {}),
        (Operation.DELETE, {}),
    ]


def test_named_keys_go_before_those_of_the_message() -> None:
    """K6: fact 17: keys= for a table without one."""
    rules = Rules(keys=(("schema.shop.keyless", ("a",)),))
    line = next(line for line in recorded("debezium_schema") if line["topic"] == "schema_shop_keyless")

    assert one(debezium(line, rules)).key == {"a": 1}
    assert "key column b is neither in the message" in reason(
        decode(mysql(), {"id": 1}, Rules(keys=(("*", ("b",)),)))
    )


def updated(before: Any, after: Any, keys: Any = None, **named: Any) -> list[Decoded]:
    """An update of MySQL by the rules of a reader that names the key."""
    payload = mysql("u") | {"before": before, "after": after}
    return decode(payload, keys, Rules(keys=(("*", tuple(named["key"])),)))


def test_update_of_a_named_key_is_a_delete_and_an_insert() -> None:
    """K6: fact 17: Debezium splits only updates of the key that it has itself."""
    old, new = {"id": 1, "mail": "a", "n": 1}, {"id": 1, "mail": "b", "n": 2}
    deleted, inserted = updated(old, new, {"id": 1}, key=["mail"])

    assert isinstance(deleted, Change)
    assert isinstance(inserted, Change)
    assert (deleted.operation, deleted.key, deleted.before) == (Operation.DELETE, {"mail": "a"}, old)
    assert (inserted.operation, inserted.key, inserted.row) == (Operation.INSERT, {"mail": "b"}, new)
    assert inserted.before is None
    assert deleted.position == inserted.position == (0, 3, 154, 0)


@pytest.mark.parametrize("before", [None, {"id": 1}, {"id": 1, "mail": None}, {"id": 1, "mail": "b"}])
def test_update_that_keeps_a_named_key_is_one_change(before: Any) -> None:
    """K6: fact 17: also if the source logs no row before it, or not the column."""
    change = one(updated(before, {"id": 1, "mail": "b"}, {"id": 1}, key=["mail", "id"]))

    assert (change.operation, change.key) == (Operation.UPDATE, {"mail": "b", "id": 1})


@pytest.mark.parametrize(
    "place",
    [
        {},
        {"file": None, "lsn": 900, "sequence": '["800","900"]'},
        {"file": None, "commit_lsn": "27:758:5", "change_lsn": "27:758:3", "event_serial_no": 2},
    ],
)
@pytest.mark.parametrize(
    ("named", "new_key", "is_freed_first"),
    [("mail", {"id": 2}, True), ("mail", None, False), ("id", {"id": 2}, False)],
)
def test_a_named_key_outlives_a_change_of_the_tables_own_key(
    named: str, new_key: Any, is_freed_first: bool, place: dict[str, Any]
) -> None:
    """K1, K6: facts 15, 17: MySQL's REPLACE by a unique mail gives the row another id.

    Debezium sends a delete and an insert, in two queues and with one position: no queue may decide.
    """
    rules = Rules(keys=(("*", (named,)),))
    row = {"id": 1, "mail": "a"}
    # In SQL Server's positions, the order in the transaction is no part.
    order = {"transaction": {"total_order": 7}} if "change_lsn" in place else {}
    body = json.dumps(mysql("d", **place) | {"before": row, "after": None} | order).encode()
    properties = {} if new_key is None else {"__debezium.newkey": json.dumps(new_key)}
    deleted = one(DebeziumJson(rules).decode(ChangeMessage(body, '{"id":1}', properties)))
    inserted = one(decode(mysql("c", **place) | {"after": row | {"id": 2}}, {"id": 2}, rules))

    assert (deleted.operation, inserted.operation) == (Operation.DELETE, Operation.INSERT)
    assert deleted.position is not None
    assert inserted.position is not None
    assert len(deleted.position) == len(inserted.position)
    assert (order_of(deleted.position, 900, 0) < order_of(inserted.position, 3, 0)) == is_freed_first
    lower = [at - 2 for at in inserted.position]
    assert deleted.position > (*inserted.position[:-2], lower[-2], inserted.position[-1])


@pytest.mark.parametrize("name", NAMES)
def test_flattened_messages_give_the_same_rows(name: str) -> None:
    """K6: fact 24: __deleted is a text, __op and __source_* are no columns."""
    operations = [change.operation for change in debezium_changes(name, "full_image")]
    inserted, updated, deleted = debezium_changes(name, "full_image")

    assert operations == [Operation.INSERT, Operation.UPDATE, Operation.DELETE]
    assert (inserted.row, updated.row) == ({"id": 1, "a": "x", "b": 1}, {"id": 1, "a": "x", "b": 2})
    assert (deleted.key, deleted.row, deleted.before) == ({"id": 1}, {}, {"id": 1, "a": "x", "b": 2})


@pytest.mark.parametrize("name", NAMES)
def test_big_values_that_did_not_change_are_absent(name: str) -> None:
    """K6: fact 25: text, bytes (base64 and hex) and arrays; row by row."""
    _, first, second, _ = debezium_changes(name, "docs")

    assert first.absent == {"body", "raw", "words"}
    assert first.row == {"id": 1, "title": "two"}
    assert second.absent == {"raw"}
    assert second.row == {"id": 1, "title": "two", "body": None, "words": ("x",)}


@pytest.mark.parametrize(
    "value",
    [
        PLACEHOLDER,
        b64encode(PLACEHOLDER.encode()).decode(),
        [PLACEHOLDER],
        list(PLACEHOLDER.encode()),
        {PLACEHOLDER: PLACEHOLDER},
    ],
)
def test_every_form_of_the_placeholder_is_known(value: Any) -> None:
    """K6: fact 25: an array of integers has one element for each byte, an hstore one member."""
    payload = mysql()
    payload["after"] = {"id": 1, "v": value}

    assert one(decode(payload)).absent == {"v"}


def test_other_placeholder_is_an_option() -> None:
    """K6: fact 25: unavailable.value.placeholder."""
    payload = mysql()
    payload["after"] = {"id": 1, "v": "~"}

    assert one(decode(payload, None, Rules(unavailable_value="~"))).absent == {"v"}
    assert one(decode(payload)).row == {"id": 1, "v": "~"}


def test_key_is_from_the_message_where_before_lacks_it() -> None:
    """K6: fact 26: REPLICA IDENTITY NOTHING: a delete has its key only in KEYS."""
    payload = mysql("d")
    payload["after"] = None

    change = one(decode(payload, {"schema": None, "payload": {"id": 7}}))
    assert (change.operation, change.key, change.before) == (Operation.DELETE, {"id": 7}, None)


def _deletion(form: str, field: dict[str, Any], value: Any) -> Change:
    """The deletion of a row that is in no part of the message except KEYS."""
    fields = [{"field": "k", **field}]
    rows = [{"type": "struct", "field": name, "fields": fields} for name in ("before", "after")]
    payload = mysql("d") | {"after": None}
    with_rows = {"schema": {"type": "struct", "fields": rows}, "payload": payload}
    typed = {"schema": {"type": "struct", "fields": fields}, "payload": {"k": value}}
    key = typed if form in ("key", "both") else {"k": value}
    return one(decode(with_rows if form in ("row", "both") else payload, key))


@pytest.mark.parametrize("form", ["row", "key", "both"])
@pytest.mark.parametrize(
    ("field", "value", "type_", "expected"),
    [
        ({"type": "int64"}, 7, "bigint", 7),
        ({"type": "int32", "name": "io.debezium.time.Date"}, 20512, "date", date(2026, 2, 28)),
        (
            {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal"}
            | {"parameters": {"scale": "2", "connect.decimal.precision": "5"}},
            "APo=",
            "decimal(5,2)",
            Decimal("2.50"),
        ),
    ],
)
def test_a_key_that_is_only_in_the_message_has_its_type(
    form: str, field: dict[str, Any], value: Any, type_: str, expected: Any
) -> None:
    """K6: fact 26: of the schema of KEYS, or of that of the row, which is null."""
    change = _deletion(form, field, value)
    assert (change.key, change.types["k"].spark) == ({"k": expected}, type_)
    untyped = _deletion("none", field, value)
    assert (untyped.key, untyped.types) == ({"k": value}, {})


def test_a_key_without_a_schema_is_that_of_its_row() -> None:
    """K6: fact 26: KEYS without a schema, the body with one; and a column of KEYS that no row has."""
    message = with_schema(20512, type="int32", name="io.debezium.time.Date")
    assert one(decode(message, {"v": 20512})).key == {"v": date(2026, 2, 28)}
    mixed = one(decode(message, {"v": 20512, "shard": 3}))
    assert (mixed.key, mixed.types["v"].spark) == ({"v": date(2026, 2, 28), "shard": 3}, "date")


@pytest.mark.parametrize("name", NAMES)
def test_infinite_dates_never_become_numbers(name: str) -> None:
    """K6: fact 34: Debezium itself wraps infinity; it is refused, or NULL by option."""
    line = next(
        line
        for line in recorded(f"debezium_{name}")
        if line["key"] and line["topic"].endswith("types") and '"infinity"' in (line["value"] or "")
    )

    if name == "schema":
        assert "out_of_range='null'" in reason(debezium(line, Rules()))
        row = one(debezium(line)).row
        assert (row["dt"], row["ts6"], row["tz"]) == (None, None, None)
    else:
        assert one(debezium(line)).row["tz"] == "infinity", "without a schema it is a text"


def test_years_before_christ_are_out_of_range() -> None:
    """K6: fact 34: 44 BC."""
    row = debezium_changes("schema", "types")[3].row

    assert (row["dt"], row["ts6"]) == (None, None)
    assert row["tz"] == datetime(1, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ({"type": "int32", "name": "io.debezium.time.Date"}, 20512, date(2026, 2, 28)),
        ({"type": "string", "name": "io.debezium.time.IsoDate"}, "2026-02-28Z", date(2026, 2, 28)),
        ({"type": "int32", "name": "org.apache.kafka.connect.data.Date"}, -1, date(1969, 12, 31)),
        ({"type": "int32", "name": "io.debezium.time.Time"}, 1500, "00:00:01.500000"),
        ({"type": "int64", "name": "io.debezium.time.MicroTime"}, -3020399000000, "-838:59:59"),
        ({"type": "int64", "name": "io.debezium.time.NanoTime"}, 1_000_001_000, "00:00:01.000001"),
        (
            {"type": "int64", "name": "io.debezium.time.Timestamp"},
            1500,
            datetime(1970, 1, 1, 0, 0, 1, 500000),
        ),
        (
            {"type": "int64", "name": "io.debezium.time.MicroTimestamp"},
            -1,
            datetime(1969, 12, 31, 23, 59, 59, 999999),
        ),
        ({"type": "int64", "name": "io.debezium.time.NanoTimestamp"}, 1000, datetime(1970, 1, 1, 0, 0, 0, 1)),
        (
            {"type": "int64", "name": "org.apache.kafka.connect.data.Timestamp"},
            1,
            datetime(1970, 1, 1, 0, 0, 0, 1000),
        ),
        (
            {"type": "string", "name": "io.debezium.time.ZonedTimestamp"},
            "2026-01-02T03:04:05+08:00",
            datetime(2026, 1, 1, 19, 4, 5, tzinfo=UTC),
        ),
    ],
)
def test_times_are_read_by_their_logical_name(field: dict[str, Any], value: Any, expected: Any) -> None:
    """K6: facts 32, 33: time.precision.mode changes the unit by column; the schema has which."""
    assert value_of(value, **field) == expected


def test_nanoseconds_are_not_cut_off() -> None:
    """K6: fact 33: what microseconds cannot hold is refused."""
    found = reason(decode(with_schema(1, type="int64", name="io.debezium.time.NanoTimestamp"), {"id": 1}))

    assert "nanosecond" in found


@pytest.mark.parametrize(("value", "expected"), [(-1, 2**64 - 1), (5, 5)])
def test_unsigned_numbers_that_debezium_wraps_are_unwrapped(value: int, expected: int) -> None:
    """K6: fact 27: bigint.unsigned.handling.mode=long, with the column's type in the schema."""
    parameters = {"__debezium.source.column.type": "BIGINT UNSIGNED"}

    assert value_of(value, type="int64", parameters=parameters) == expected


def test_bits_are_little_endian_numbers() -> None:
    """K6: fact 35: bytes for bit(n), a boolean for bit(1)."""
    bits = {"type": "bytes", "name": "io.debezium.data.Bits"}

    assert value_of("Fg==", parameters={"length": "5"}, **bits) == 0b10110
    assert (
        value_of(b64encode((2**63).to_bytes(8, "little")).decode(), parameters={"length": "64"}, **bits)
        == 2**63
    )
    assert value_of(True, type="boolean") is True


def test_decimals_have_the_scale_of_the_schema() -> None:
    """K6: fact 29: two's complement, big-endian; a decimal that does not fit is refused."""
    kind = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal"}
    parameters = {"scale": "2", "connect.decimal.precision": "4"}

    assert value_of("/w==", parameters=parameters, **kind) == Decimal("-0.01")
    assert "more digits" in reason(decode(with_schema("AYag", parameters=parameters, **kind), {"id": 1}))


def test_variable_decimal_is_exact_without_a_schema() -> None:
    """K6: fact 29: scale and value are in the message."""
    payload = mysql()
    payload["after"] = {"id": 1, "v": {"scale": 2, "value": "APo="}}

    assert one(decode(payload)).row["v"] == Decimal("2.50")


def test_absurd_scale_and_dimensions_are_refused() -> None:
    """K6: their digits, or the type, would fill the memory of whoever writes them."""
    scale = {"scale": -999_999_999, "value": "AQ=="}
    lists: dict[str, Any] = {"type": "int32"}
    for _ in range(40):
        lists = {"type": "array", "items": lists}
    variable = {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"}
    for message in (with_schema(scale, **variable), with_schema(scale)["payload"]):
        assert "has the scale -999999999" in reason(decode(message, {"id": 1}))
    for message in (with_schema([], **lists), with_schema(json.loads("[" * 40 + "]" * 40))["payload"]):
        assert "more than 32 dimensions" in reason(decode(message, {"id": 1}))


def test_fields_of_null_and_absent_are_different() -> None:
    """K6: fact 39: a column that a message lacks is neither NULL nor there."""
    assert one(decode(mysql())).row == {"id": 1}
    payload = mysql()
    payload["after"] = {"id": 1, "v": None}
    assert one(decode(payload)).row == {"id": 1, "v": None}


def test_mysql_is_ordered_by_file_place_and_row() -> None:
    """K6: facts 11, 12: rows of one event share pos; file 10 is after file 9; ts_ms is not looked at."""
    places = [("mysql-bin.000009", 900, 0), ("mysql-bin.000010", 4, 0), ("mysql-bin.000010", 4, 1)]
    positions = [one(decode(mysql(file=file, pos=pos, row=row))).position for file, pos, row in places]

    assert positions == [(0, 9, 900, 0), (0, 10, 4, 0), (0, 10, 4, 1)]
    after = one(decode(mysql(file="mysql-bin.000001", server_id=5), None, Rules(servers=(223344, 5))))
    assert after.position == (2, 1, 154, 0)


def ordered(order: int | str | None, *, is_flat: bool, **source: Any) -> Change:
    """An update of MySQL with its number in the transaction, of provide.transaction.metadata."""
    payload = mysql("u", **source)
    if not is_flat:
        numbers = {"id": "file=mysql-bin.000003,pos=4", "total_order": order, "data_collection_order": 1}
        return one(decode({**payload, "transaction": None if order is None else numbers}, {"id": 1}))
    added = {"__op": "u", "__transaction_total_order": order}
    added |= {f"__{name}": value for name, value in payload["source"].items()}
    return one(decode({"id": 1, **added}, {"id": 1}))


@pytest.mark.parametrize("is_flat", [False, True])
def test_changes_of_a_compressed_transaction_are_in_its_order(is_flat: bool) -> None:
    """K6: fact 11: with binlog_transaction_compression all events share pos, and row begins again in each."""
    rows = [0, 1, 2, 0, 0, 1, 0]
    positions = [
        ordered(number, is_flat=is_flat, pos=4242, row=row).position for number, row in enumerate(rows, 1)
    ]

    assert positions == [(0, 3, 4242, number) for number in range(1, len(rows) + 1)]
    assert ordered("12", is_flat=is_flat, pos=4242, row=0).position == (0, 3, 4242, 12)


@pytest.mark.parametrize("is_flat", [False, True])
def test_the_place_in_the_log_goes_before_the_order_in_the_transaction(is_flat: bool) -> None:
    """K6: fact 11: transactions from before provide.transaction.metadata was set have only rows.

    If one comes again with its order, its changes stay in their order, and above the same ones before.
    """
    before = [ordered(None, is_flat=is_flat, pos=900, row=row).position for row in (0, 7)]
    again = [ordered(order, is_flat=is_flat, pos=900, row=row).position for order, row in ((3, 0), (10, 7))]
    later = ordered(1, is_flat=is_flat, pos=1200, row=0).position

    assert before == [(0, 3, 900, 0), (0, 3, 900, 7)]
    assert again == [(0, 3, 900, 3), (0, 3, 900, 10)]
    assert [*before, later] == sorted([*before, later])  # type: ignore[type-var]
    assert [*again, later] == sorted([*again, later])  # type: ignore[type-var]


def test_a_changed_key_is_freed_at_its_place_in_the_transaction() -> None:
    """K1, K6: facts 15, 17: a row that the same compressed transaction has inserted is deleted, too.

    With numbers of the transaction, the delete is below the update's insert already.
    """
    rules = Rules(keys=(("*", ("mail",)),))

    def message(op: str, key: int, mail: str, order: int, **properties: str) -> Change:
        row = {"id": key, "mail": mail}
        images = {"before": row, "after": None} if op == "d" else {"after": row}
        body = mysql(op, pos=4242) | images | {"transaction": {"total_order": order}}
        encoded = ChangeMessage(json.dumps(body).encode(), json.dumps({"id": key}), properties)
        return one(DebeziumJson(rules).decode(encoded))

    changes = [
        message("c", 1, "a", 1),
        message("d", 1, "a", 2, **{"__debezium.newkey": '{"id":2}'}),
        message("c", 2, "b", 3, **{"__debezium.oldkey": '{"id":1}'}),
    ]
    assert [change.position for change in changes] == [(0, 3, 4242, number) for number in (1, 2, 3)]


def test_sql_server_is_ordered_by_both_lsns_and_the_event() -> None:
    """K6: fact 12: rows of one transaction share commit_lsn."""
    source = {
        "connector": "sqlserver",
        "db": "shop",
        "schema": "dbo",
        "table": "t",
        "change_lsn": "00000027:00000758:0003",
        "commit_lsn": "00000027:00000758:0005",
        "event_serial_no": 2,
    }

    change = one(decode({"op": "u", "before": {"id": 1}, "after": {"id": 1}, "source": source}))
    assert change.position == (0x27, 0x758, 5, 0x27, 0x758, 3, 2)


def test_row_with_other_columns_than_its_schema_is_bad() -> None:
    """K6: fact 41."""
    message = with_schema(1, type="int32")
    message["payload"]["after"]["w"] = 1

    assert "has no column w" in reason(decode(message, {"id": 1}))
    assert "no type 'time'" in reason(decode(with_schema(1, type="time"), {"id": 1}))


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{}",
        b"{",
        b'{"op": "x", "source": {"table": "t"}}',
        b'{"op": "c", "after": {"id": 1}}',
        b'{"op": "c", "after": {"id": 1}, "source": {}}',
        b'{"op": "c", "after": null, "source": {"table": "t"}}',
        b'{"op": "c", "after": [1], "source": {"table": "t"}}',
        b'{"op": "c", "after": {"id": 1}, "source": {"table": "t", "lsn": -1}}',
        b'{"op": "c", "after": {"id": 1}, "source": {"table": "t", "file": "x", "pos": 1}}',
        b'{"id": 1}',
        b'{"id": 1, "__op": "c"}',
        b'{"schema": {"fields": 1}, "payload": {"op": "c", "after": {"id": 1}, "source": {"table": "t"}}}',
    ],
)
def test_damaged_message_is_bad(body: bytes) -> None:
    """K6: what cannot be understood is a bad change, never an exception."""
    assert [type(change) for change in DebeziumJson(LENIENT).decode(ChangeMessage(body))] == [BadChange]


def test_damaged_key_is_bad() -> None:
    """K6: what cannot be understood is a bad change, never an exception."""
    body = json.dumps(mysql()).encode()

    assert [type(change) for change in DebeziumJson(LENIENT).decode(ChangeMessage(body, '{"id":'))] == [
        BadChange
    ]


def test_the_greatest_float_is_a_value() -> None:
    """K6: Java writes it with eight digits, which are a little more than it is."""
    assert value_of(3.4028235e38, type="float") == 3.4028235e38


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ({"type": "int32"}, "1"),
        ({"type": "int32"}, True),
        ({"type": "int8"}, 128),
        ({"type": "int16"}, -(2**15) - 1),
        ({"type": "int32"}, 2**31),
        ({"type": "int64"}, 2**63),
        ({"type": "array", "items": {"type": "int16"}}, [2**15]),
        ({"type": "float"}, 1e39),
        ({"type": "float"}, 2.0**128 - 2.0**103),
        ({"type": "string"}, 1),
        ({"type": "boolean"}, 1),
        ({"type": "double"}, "1"),
        ({"type": "bytes"}, "*"),
        ({"type": "bytes", "name": "io.debezium.data.Bits", "parameters": {"length": "3"}}, "CA=="),
        ({"type": "array", "items": {"type": "int32"}}, 1),
        ({"type": "array", "items": {"type": "int32"}}, ["a"]),
        ({"type": "bytes", "name": "io.debezium.data.VariableScaleDecimal"}, {}),
    ],
)
def test_value_that_does_not_fit_its_schema_is_bad(field: dict[str, Any], value: Any) -> None:
    """K6: fact 41: never a guess."""
    assert "v" in reason(decode(with_schema(value, **field), {"id": 1}))


@pytest.mark.parametrize("name", NAMES)
def test_messages_with_one_schema_do_not_change_each_other(name: str) -> None:
    """K6: a schema is parsed once, whatever messages came before with the same one or another one."""
    lines = recorded(f"debezium_{name}")
    forwards = [debezium(line) for line in lines]
    assert forwards == [debezium(line) for line in reversed(lines)][::-1]
    # A blank at the end: such a text is parsed as a whole.
    whole = [debezium({**line, "value": f"{line['value']} " if line["value"] else None}) for line in lines]
    assert forwards == whole


@pytest.mark.parametrize(
    "text",
    [
        '{"schema":{"doc":",\\"payload\\":1","fields":[{"field":"id","type":"int32"}]},"payload":PAYLOAD}',
        '{"schema":{"payload":1,"payload":{},"fields":[{"field":"id","type":"int32"}]},"payload":PAYLOAD}',
        '{"schema":null,"payload":PAYLOAD}',
        '{"schema":7,"payload":PAYLOAD}',
        '{"payload":PAYLOAD,"schema":null}',
        '{"schema":{"fields":[{"field":"id","type":"int32"}]},"payload":{},"payload":PAYLOAD}',
        '{"schema":null,"payload":PAYLOAD}\n',
    ],
)
def test_the_place_where_a_schema_ends_is_found(text: str) -> None:
    """K6: texts and members that look like the beginning of the payload are none."""
    flat = json.dumps({"id": 1, "__op": "c", "__db": "shop", "__table": "orders"})
    change = one(
        DebeziumJson(Rules()).decode(ChangeMessage(text.replace("PAYLOAD", flat).encode(), '{"id":1}'))
    )
    assert (change.operation, change.row) == (Operation.INSERT, {"id": 1})


@pytest.mark.parametrize(
    "text", ['{"schema":{},"payload":{}', '{"schema":{},"payload":}', '{"schema":{,"payload":{}}']
)
def test_a_broken_message_with_a_schema_is_bad(text: str) -> None:
    """K6: half a message gives its reason, as one without a schema does."""
    assert "the body cannot be read as a message of Debezium" in reason(
        DebeziumJson(Rules()).decode(ChangeMessage(text.encode()))
    )
