"""Canal's messages, as its own classes have made them from a real binary log."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from pyspark_rocketmq.change_data.canal import CanalJson
from pyspark_rocketmq.change_data.change import (
    BadChange,
    Change,
    ChangeMessage,
    Kind,
    Operation,
    PassedOver,
    SchemaChange,
    SourceTable,
)
from pyspark_rocketmq.change_data.rules import Bytes, Rules
from tests.change_data.samples import (
    RULES,
    canal,
    canal_entries,
    flat,
    one,
    positions,
    protobuf,
    reason,
    recorded,
)

ORDERS = SourceTable("shop", None, "orders")
MEMBERS = ",".join(f"'m{at:02}'" for at in range(1, 65))


def decode(body: bytes, rules: Rules = RULES) -> Any:
    return CanalJson(rules).decode(ChangeMessage(body))


@pytest.mark.parametrize("read", [canal, protobuf])
def test_values_of_every_type_are_those_of_the_source(read: Any) -> None:
    """K6: facts 27, 30, 32, 35, 36, 37: unsigned, large, timed, bit, enum, set and binary values are exact."""
    row = one(read(canal_entries("types", "INSERT")[0])).row

    assert row["id"] == row["biu"] == row["b64"] == Decimal(2**64 - 1)
    assert (row["ti"], row["tiu"], row["si"], row["siu"]) == (-128, 255, -32768, 65535)
    assert (row["mi"], row["miu"], row["i"], row["iu"]) == (-8388608, 16777215, -(2**31), 2**32 - 1)
    assert (row["bi"], row["iz"], row["flag"], row["y"]) == (-(2**63), 42, 1, 2026)
    assert (row["f"], row["d"]) == (1.5, 0.1)
    assert row["n"] == Decimal("-12345678.91")
    assert row["nu"] == Decimal("12345678.9012")
    assert row["n65"] == Decimal("12345678901234567890123456789012345.123456789012345678901234567890")
    assert row["b1"] is True
    assert row["b8"] == 0b10110
    assert row["dt"] == date(2026, 2, 28)
    assert (row["t"], row["t6"]) == ("-838:59:59", "23:59:59.123456")
    assert row["d0"] == datetime(2026, 1, 2, 3, 4, 5)
    assert row["d6"] == datetime(2026, 1, 2, 3, 4, 5, 678901)
    assert row["ts"] == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert row["ts6"] == datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    assert (row["c"], row["vc"], row["tx"]) == ("ab", "grün 漢字", 'line\n"quoted" 😀')
    assert row["bin"] == b"\x00\xff\x10\x00"
    assert row["vb"] == b"\x00\xff"
    assert row["bl"] == b"\x89PNG\x00\n\xff"
    assert row["tbl"] == b"\x80"
    assert row["e"] == 'it\'s "happy"'
    assert row["s"] == "a,d"
    assert row["s64"] == "m01,m32,m64"
    assert row["j"] == '{"a": 9007199254740993, "b": 1.10}'


@pytest.mark.parametrize("read", [canal, protobuf])
def test_types_are_from_the_columns_and_not_from_the_values(read: Any) -> None:
    """K6: fact 27: 5 and 2^64 - 1 in a BIGINT UNSIGNED have one type, though sqlType differs."""
    large, *_, small = canal_entries("types", "INSERT")

    types = one(read(large)).types
    assert types == one(read(small)).types
    assert {name: types[name].spark for name in ("id", "bi", "iu", "nu", "n65", "b1", "b8", "b64")} == {
        "id": "decimal(20,0)",
        "bi": "bigint",
        "iu": "bigint",
        "nu": "decimal(12,4)",
        "n65": "string",
        "b1": "boolean",
        "b8": "bigint",
        "b64": "decimal(20,0)",
    }
    assert (types["ts"].kind, types["d0"].kind) == (Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ)


@pytest.mark.parametrize("read", [canal, protobuf])
def test_null_is_null_in_every_column(read: Any) -> None:
    """K6: fact 39: SQL's NULL is JSON's null; JSON's null in a column is the text."""
    nulls = one(read(canal_entries("types", "INSERT")[1])).row
    with_json = one(read(canal_entries("types", "INSERT")[2])).row

    assert {value for name, value in nulls.items() if name != "id"} == {None}
    assert with_json["j"] == "null"


@pytest.mark.parametrize("read", [canal, protobuf])
def test_zero_dates_and_invalid_members_are_values(read: Any) -> None:
    """K6: facts 31, 35, 36: zero dates are NULL, the member 0 is the empty text, bit(1) 0 is false."""
    row = one(read(canal_entries("types", "INSERT")[2])).row
    later = one(read(canal_entries("types", "INSERT")[3])).row

    assert (row["dt"], row["d0"], row["ts"]) == (None, None, None)
    assert (row["e"], row["s"], row["b1"], row["y"], row["flag"]) == ("", "", False, 0, 5)
    assert later["dt"] is None, "2026-00-00"
    assert later["d0"] == datetime(1000, 1, 1)
    assert (later["e"], later["s"]) == ("ok, fine", 'b"c')


@pytest.mark.parametrize("read", [canal, protobuf])
def test_update_that_changes_the_key_is_a_delete_and_an_insert(read: Any) -> None:
    """K6: fact 1: the old key is deleted at the position at which the new one appears."""
    deleted, inserted = read(canal_entries("orders", "UPDATE")[1])

    assert (deleted.operation, deleted.key) == (Operation.DELETE, {"tenant": 1, "no": "A"})
    assert (inserted.operation, inserted.key) == (Operation.INSERT, {"tenant": 1, "no": "C"})
    assert inserted.row == {"tenant": 1, "no": "C", "price": Decimal("3.50"), "note": "changed"}
    assert deleted.position == inserted.position


def test_position_is_the_number_of_executed_transactions() -> None:
    """K6: facts 2, 3: with gtidon a resent change has its old position, and a later one a higher one."""
    found = [position for line in recorded("canal_gtid") for position in positions(canal(line))]

    assert found == sorted(found)
    assert (found[0], found[-1]) == ((8,), (23,))
    assert positions(canal(recorded("canal_gtid")[1])) == [(9,)] * 3, "one transaction, in the queue's order"


@pytest.mark.parametrize("event", ["INSERT", "UPDATE", "DELETE"])
def test_flat_json_without_gtids_has_no_position(event: str) -> None:
    """K6: fact 3: es has whole seconds, and id is in memory; neither is taken for a position."""
    changes = [
        change
        for line in canal_entries("orders", event)
        for change in canal(line)
        if isinstance(change, Change)
    ]

    assert changes
    assert {change.position for change in changes} == {None}


@pytest.mark.parametrize(
    ("gtids", "position"),
    [
        ("7f8e9fa5-1111-11ee-8c99-0242ac120002:1-105", 105),
        ("7f8e9fa5-1111-11ee-8c99-0242ac120002:1-105:107", 106),
        ("7f8e9fa5-1111-11ee-8c99-0242ac120002:1-3,\n8e9fa57f-1111-11ee-8c99-0242ac120002:1-7:9-10", 12),
        ("7f8e9fa5-1111-11ee-8c99-0242ac120002:tag_a:1-3:5", 4),
        ("0-11-8", 8),
        ("0-11-8,1-12-5", 13),
    ],
)
def test_a_set_of_gtids_is_counted(gtids: str, position: int) -> None:
    """K6: facts 3, 11: the count grows over a fail-over, where names and offsets of files begin again."""
    assert one(decode(flat(gtid=gtids))).position == (position,)


def test_resent_message_has_its_old_position() -> None:
    """K6: facts 2, 4: the position is the source's: neither the queue nor the program's id and ts count."""
    first = one(decode(flat(gtid="0-1-7", id=1, ts=1795788551648)))

    assert one(decode(flat(gtid="0-1-7", id=99, ts=1795788559999))) == first


def test_statements_are_schema_changes() -> None:
    """K6: fact 5: a statement has no order to rows, which name their own columns."""
    (change,) = canal(canal_entries("keyless", "ALTER")[0])

    assert change == SchemaChange(
        table=SourceTable("shop", None, "keyless"),
        statement="ALTER TABLE keyless ADD COLUMN c int",
        kind="alter",
    )
    after = one(canal(canal_entries("keyless", "INSERT")[1]))
    assert after.row == {"a": 2, "b": "y", "c": 3}


def test_old_of_a_later_row_may_name_columns_that_it_did_not_change() -> None:
    """K6: fact 6: the key is changed only if its values differ; old has price and note for both rows."""
    line = canal_entries("orders", "UPDATE")[0]
    assert [sorted(old) for old in json.loads(line["flat"])["old"]] == [["note", "price"], ["note", "price"]]

    first, second = canal(line)

    assert isinstance(first, Change)
    assert isinstance(second, Change)
    assert (first.operation, second.operation) == (Operation.UPDATE, Operation.UPDATE)
    assert second.row["note"] == second.before["note"] == "second"  # type: ignore[index]


def test_key_among_the_old_values_but_unchanged_is_no_new_key() -> None:
    """K6: fact 6: old is a superset of what a row has changed."""
    change = one(
        decode(
            flat(
                type="UPDATE",
                data=[{"id": "1", "a": "2"}],
                old=[{"id": "1", "a": "1"}],
                mysqlType={"id": "int(11)", "a": "int(11)"},
            )
        )
    )

    assert change.operation is Operation.UPDATE
    assert change.before == {"id": 1, "a": 1}


def test_rows_of_a_message_keep_their_order() -> None:
    """K6: fact 7: equal rows are two changes; of two changes of a key the later one comes last."""
    equal = canal(canal_entries("keyless", "INSERT")[0])
    twice = decode(
        flat(data=[{"id": "1", "a": "1"}, {"id": "1", "a": "2"}], mysqlType={"id": "int", "a": "int"})
    )

    assert [change.row for change in equal] == [{"a": 1, "b": "x"}] * 2  # type: ignore[union-attr]
    assert [change.row["a"] for change in twice] == [1, 2]


def test_marks_of_transactions_are_passed_over() -> None:
    """K6: facts 8, 19: begin, end, GTID, heartbeat and row query entries are known and change nothing."""
    marks = [line for line in recorded("canal") if line["entry"] != "ROWDATA" or line["event"] == "QUERY"]
    statements = ("CREATE DATABASE shop",)

    for line in marks:
        for change in (*(canal(line) if line["flat"] else ()), *protobuf(line)):
            is_statement = isinstance(change, SchemaChange) and change.statement in statements
            assert isinstance(change, PassedOver) or is_statement
    assert {line["entry"] for line in marks} >= {"TRANSACTIONEND", "GTIDLOG", "HEARTBEAT", "ROWDATA"}


@pytest.mark.parametrize("read", [canal, protobuf])
def test_insert_after_a_delete_is_later_by_position(read: Any) -> None:
    """K6: fact 14: delete and insert at one time are ordered by position, and es is not looked at."""
    lines = [line for line in recorded("canal_gtid") if line["event"] in ("INSERT", "DELETE")]
    found = [position for line in lines for position in positions(read(line))]

    assert len(lines) >= 4
    assert found == sorted(found)


def test_hidden_key_is_a_key_and_no_column() -> None:
    """K6: fact 17: RDS adds a key to a table without one."""
    columns = {"__#alibaba_rds_row_id#__": "bigint", "a": "int"}
    change = one(
        decode(flat(pkNames=None, data=[{"__#alibaba_rds_row_id#__": "77", "a": "1"}], mysqlType=columns))
    )

    assert change.key == {"__#alibaba_rds_row_id#__": 77}
    assert change.row == {"a": 1}


def test_table_without_a_key_has_an_empty_key_or_the_one_that_is_named() -> None:
    """K6: fact 17: keys= names the columns of a key where the table has none."""
    line = canal_entries("keyless", "DELETE")[0]
    named = Rules(source_time_zone=UTC, keys=(("shop.keyless", ("a",)),))

    assert one(canal(line)).key == {}
    assert one(canal(line, named)).key == {"a": 1}
    assert one(canal(line, named)).before == {"a": 1, "b": "x"}


@pytest.mark.parametrize("read", [canal, protobuf])
def test_truncate_is_a_change_of_the_table(read: Any) -> None:
    """K6: fact 18: Canal sends TRUNCATE as a statement, with the position of the log."""
    change = one(read(canal_entries("orders", "TRUNCATE", "canal_gtid")[0]))

    assert (change.operation, change.table, change.key) == (Operation.TRUNCATE, ORDERS, {})
    assert change.position is not None
    assert change.position[0] == 23


def test_shadow_tables_keep_their_names() -> None:
    """K6: facts 21, 22: the table is from the body, as it is named there, for patterns to leave it out."""
    assert one(canal(canal_entries("_orders_gho", "INSERT")[0])).table.name == "_orders_gho"
    (renamed,) = canal(canal_entries("_keyless_del", "RENAME")[0])
    assert isinstance(renamed, SchemaChange)
    assert renamed.kind == "rename"


@pytest.mark.parametrize("body", [b"", b"null", b" null\n"])
def test_empty_body_is_passed_over(body: bytes) -> None:
    """K6: fact 23: old versions of Canal send the text null to other queues."""
    assert list(decode(body)) == [PassedOver("empty body")]


def test_minimal_row_image_has_its_key_only_in_protobuf() -> None:
    """K6: fact 25: a column that MINIMAL leaves out is neither in the row nor NULL."""
    line = canal_entries("orders", "UPDATE")[-2]

    assert "binlog_row_image=FULL" in reason(canal(line))
    change = one(protobuf(line))
    assert change.key == {"tenant": 1, "no": "D"}
    assert change.row == {"tenant": 1, "no": "D", "price": Decimal("11.00")}


@pytest.mark.parametrize("read", [canal, protobuf])
def test_noblob_row_image_leaves_out_what_did_not_change(read: Any) -> None:
    """K6: fact 25: the text that NOBLOB leaves out is not NULL."""
    change = one(read(canal_entries("orders", "UPDATE")[-1]))

    assert change.row == {"tenant": 1, "no": "D", "price": Decimal("12.00")}
    assert change.key == {"tenant": 1, "no": "D"}


def test_column_of_another_row_of_the_message_is_absent() -> None:
    """K6: fact 25: mysqlType has the columns of all rows of a message."""
    first, second = decode(
        flat(data=[{"id": "1", "a": "1"}, {"id": "2"}], mysqlType={"id": "int", "a": "int"})
    )

    assert (first.absent, second.absent) == (frozenset(), frozenset({"a"}))


def test_negative_unsigned_number_is_bad() -> None:
    """K6: fact 28: without metadata of the table Canal writes an unsigned number as a negative one."""
    found = reason(decode(flat(data=[{"id": "-1"}], mysqlType={"id": "int(10) unsigned"})))

    assert found.startswith("column id (int(10) unsigned): -1 is not between 0 and 4294967295")
    assert "metadata" in found


@pytest.mark.parametrize(
    ("values", "types"),
    [
        ({"id": "1", "extra": "2"}, {"id": "int"}),
        ({"id": "x"}, {"id": "int"}),
        ({"id": "1_0"}, {"id": "int"}),
        ({"id": "1", "price": "1.234"}, {"id": "int", "price": "decimal(10,2)"}),
        ({"id": "1", "price": "123456789.00"}, {"id": "int", "price": "decimal(10,2)"}),
        ({"id": "1", "at": "2026-13-01"}, {"id": "int", "at": "date"}),
        ({"id": "1", "e": "4"}, {"id": "int", "e": "enum('a','b')"}),
        ({"id": "1", "e": "1"}, {"id": "int", "e": "enum"}),
        ({"id": "1", "s": "4"}, {"id": "int", "s": "set('a','b')"}),
        ({"id": "1", "b": "漢"}, {"id": "int", "b": "blob"}),
        ({"id": 1}, {"id": "int"}),
    ],
)
def test_row_that_does_not_fit_its_columns_is_bad(values: dict[str, Any], types: dict[str, str]) -> None:
    """K6: facts 36, 41: a row with other columns or other values than its types is refused, never guessed."""
    (bad, good) = decode(flat(data=[values, {"id": "2"}], mysqlType=types))

    assert isinstance(bad, BadChange)
    assert bad.table == SourceTable("shop", None, "t")
    assert isinstance(good, Change)


def test_part_of_a_json_document_is_bad() -> None:
    """K6: fact 38: PARTIAL_JSON gives a function's text in place of the document."""
    partial = 'JSON_REPLACE(@1, "$.a", 2)'
    found = reason(decode(flat(data=[{"id": "1", "j": partial}], mysqlType={"id": "int", "j": "json"})))

    assert "binlog_row_value_options" in found


def test_text_arrives_as_utf_8() -> None:
    """K6: fact 40: characters of every plane, and a broken one, stay what Canal has made of them."""
    row = one(canal(canal_entries("types", "INSERT")[0])).row

    assert row["tx"].encode() == b'line\n"quoted" \xf0\x9f\x98\x80'
    assert row["l1"] == "gr\ufffdn", "Canal on MariaDB takes latin1 for UTF-8"


@pytest.mark.parametrize("read", [canal, protobuf])
def test_names_are_as_the_source_has_them(read: Any) -> None:
    """K6: fact 42: spaces, dots and words of SQL."""
    change = one(read(canal_entries("Odd Names", "INSERT")[0]))

    assert change.table.name == "Odd Names"
    assert change.row == {"the id": 1, "a.b": 2, "select": 3}
    both = one(decode(flat(data=[{"id": "1", "ID": "2"}], mysqlType={"id": "int", "ID": "int"})))
    assert both.row == {"id": 1, "ID": 2}


def test_ticdc_has_its_commit_timestamp_as_position() -> None:
    """K6: facts 3, 19: canal-json of TiCDC with enable-tidb-extension."""
    row = flat(_tidb={"commitTs": 434332053226815489}, mysqlType={"id": "int unsigned"})
    watermark = flat(type="TIDB_WATERMARK", data=None, table="", _tidb={"watermarkTs": 434332053226815488})

    assert one(decode(row)).position == (434332053226815489,)
    assert list(decode(watermark)) == [PassedOver("heartbeat")]


def test_tencent_dts_writes_bytes_as_hex() -> None:
    """K6: fact 37: binary='hex'."""
    rules = Rules(source_time_zone=UTC, binary=Bytes.HEX)
    body = flat(data=[{"id": "1", "b": "0x00ff10"}], mysqlType={"id": "int", "b": "varbinary(9)"})

    assert one(decode(body, rules)).row["b"] == b"\x00\xff\x10"
    assert (
        one(decode(flat(data=[{"id": "1", "b": "ÿ"}], mysqlType={"id": "int", "b": "blob"}))).row["b"]
        == b"\xff"
    )


def test_set_of_64_members_needs_64_bits() -> None:
    """K6: fact 36: more than 31 members overflow the int of other parsers."""
    kind = f"set({MEMBERS})"
    row = one(
        decode(flat(data=[{"id": "1", "s": str(2**63 + 2**31)}], mysqlType={"id": "int", "s": kind}))
    ).row

    assert row["s"] == "m32,m64"


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{",
        b"\xff",
        b'{"type": 7}',
        b'{"type": "INSERT", "table": "t", "data": {"id": "1"}}',
        b'{"type": "INSERT", "table": "t", "data": [[]], "mysqlType": {"id": "int"}}',
        b'{"type": "INSERT", "table": "t", "data": [], "mysqlType": {"id": "int"}}',
        b'{"type": "INSERT", "table": "t", "data": [{"id": "1"}]}',
        b'{"type": "INSERT", "table": "t", "data": [{"id": "1"}], "mysqlType": {"id": "("}}',
        b'{"type": "INSERT", "table": "t", "gtid": "x", "data": [{"id": "1"}], "mysqlType": {"id": "int"}}',
        b'{"type": "INSERT", "table": "t", "data": [{"id": "\\ud800"}], "mysqlType": {"id": "text"}}',
        b"[" * 100_000,
    ],
)
def test_damaged_message_is_bad(body: bytes) -> None:
    """K6: what cannot be understood is a bad change, never an exception."""
    assert [type(change) for change in decode(body)] == [BadChange]
