"""Maxwell's messages, after its documentation."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from pyspark_rocketmq.change_data.change import (
    BadChange,
    ChangeMessage,
    Decoded,
    Operation,
    PassedOver,
    SchemaChange,
    SourceTable,
)
from pyspark_rocketmq.change_data.maxwell import MaxwellJson
from pyspark_rocketmq.change_data.rules import Rules
from tests.change_data.samples import one, reason


def event(**members: Any) -> bytes:
    base = {
        "database": "shop",
        "table": "e",
        "type": "update",
        "ts": 1477053217,
        "xid": 23396,
        "commit": True,
        "position": "master.000006:800911",
        "server_id": 23042,
        "primary_key": [1, "2016-10-21 05:33:37.523000"],
        "primary_key_columns": ["id", "c"],
        "data": {"id": 1, "m": 5, "c": "2016-10-21 05:33:54.631000", "comment": "I am a creature of light."},
        "old": {"m": 4, "c": "2016-10-21 05:33:37.523000"},
    }
    return json.dumps(base | members).encode()


def decode(body: bytes, rules: Rules | None = None) -> list[Decoded]:
    return list(MaxwellJson(rules or Rules()).decode(ChangeMessage(body)))


def test_update_of_the_key_is_a_delete_and_an_insert() -> None:
    """K6: fact 1: as Canal's; this is the example of Maxwell's documentation."""
    deleted, inserted = decode(event())

    assert deleted.operation is Operation.DELETE  # type: ignore[union-attr]
    assert deleted.key == {"id": 1, "c": "2016-10-21 05:33:37.523000"}  # type: ignore[union-attr]
    assert inserted.operation is Operation.INSERT  # type: ignore[union-attr]
    assert inserted.row["m"] == 5  # type: ignore[union-attr]


def test_position_is_the_place_in_the_binary_log() -> None:
    """K6: facts 2, 11, 43: output_binlog_position; the last row of a transaction comes after the others."""
    row = {"primary_key_columns": ["id"], "commit": None}
    first = one(decode(event(**row, xoffset=0))).position
    second = one(decode(event(**row, xoffset=1))).position
    last = one(decode(event(primary_key_columns=["id"]))).position

    assert first == (0, 6, 800911, 0)
    assert first < second < last  # type: ignore[operator]
    assert one(decode(event(**row, position=None))).position is None
    named = one(decode(event(**row), Rules(servers=(1, 23042))))
    assert named.position == (2, 6, 800911, 0)


def test_bootstrap_rows_are_rows_of_a_snapshot() -> None:
    """K6: facts 13, 43: a bootstrap runs beside the stream, and begins again after a crash."""
    change = one(decode(event(type="bootstrap-insert", old=None, primary_key_columns=["id"])))

    assert (change.operation, change.position, change.key) == (Operation.SNAPSHOT, None, {"id": 1})
    assert decode(event(type="bootstrap-start", data={})) == [PassedOver("bootstrap-start")]
    assert decode(event(type="bootstrap-complete", data={})) == [PassedOver("bootstrap-complete")]


def test_rows_have_seconds() -> None:
    """K6: fact 43: ts of a row is in seconds."""
    change = one(decode(event(primary_key_columns=["id"])))

    assert change.source_time == datetime(2016, 10, 21, 12, 33, 37, tzinfo=UTC)


def test_numbers_are_exact() -> None:
    """K6: facts 29, 30: decimals come as JSON numbers, and a double would change both."""
    body = event(primary_key_columns=["id"]).replace(
        b'"m": 5', b'"m": 18446744073709551616, "d": 1.10000000000000000001'
    )

    row = one(decode(body)).row
    assert row["m"] == 2**64
    assert row["d"] == Decimal("1.10000000000000000001")


def test_zero_dates_and_nulls_stay() -> None:
    """K6: facts 31, 39: without types a zero date is a text, and a missing column is not NULL."""
    change = one(
        decode(event(primary_key_columns=["id"], data={"id": 1, "at": "0000-00-00", "n": None}, old={}))
    )

    assert change.row == {"id": 1, "at": "0000-00-00", "n": None}


@pytest.mark.parametrize(
    "document",
    ['{"a":[1]}', "[1,null]", '["a","d"]', '["a,b","c"]', '["\u00e9\\""]', '[""]', "[]", '[["a"]]'],
)
def test_a_document_of_a_json_column_stays_that_document(document: str) -> None:
    """K6: facts 36, 39: Maxwell writes a SET as an array, too, and its messages have no types."""
    row = {"id": 1, "j": json.loads(document)}
    change = one(decode(event(primary_key_columns=["id"], data=row, old={"j": json.loads(document)})))

    assert change.row == {"id": 1, "j": document}
    assert change.before == {"id": 1, "j": document}


def test_statements_are_schema_changes() -> None:
    """K6: fact 5."""
    assert decode(event(type="table-alter", sql="ALTER TABLE e ADD x int")) == [
        SchemaChange(
            table=SourceTable("shop", None, "e"), statement="ALTER TABLE e ADD x int", kind="table-alter"
        )
    ]


def test_key_is_named_by_the_reader_where_maxwell_has_none() -> None:
    """K6: facts 17, 43: without output_primary_keys."""
    body = event(primary_key_columns=None)

    assert one(decode(body)).key == {}
    assert one(decode(body, Rules(keys=(("*", ("id",)),)))).key == {"id": 1}
    assert "the row lacks x of the key" in reason(decode(body, Rules(keys=(("*", ("x",)),))))


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{",
        b"{}",
        b'{"type": "insert"}',
        b'{"type": "insert", "table": "t", "data": []}x',
        b'{"type": "insert", "table": "t", "data": [1]}',
        b'{"type": "insert", "table": "t", "primary_key_columns": 1}',
        b'{"type": "insert", "table": "t", "position": "x"}',
        b'{"type": "insert", "table": "t", "position": "b.1:-2"}',
    ],
)
def test_damaged_message_is_bad(body: bytes) -> None:
    """K6: what cannot be understood is a bad change, never an exception."""
    assert [type(change) for change in decode(body)] == [BadChange]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b'{"type": "insert"}', 'the type "insert" must name its table'),
        (b'{"type": "merge", "table": "t"}', 'no message of the type "merge"'),
    ],
)
def test_a_bad_message_names_what_it_lacks(body: bytes, named: str) -> None:
    """K6"""
    assert named in reason(decode(body))
