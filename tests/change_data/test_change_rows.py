"""Messages in Arrow become rows of changes, as ``change_columns`` has tasks make them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from pyspark_rocketmq.change_data.envelopes import envelope_of
from pyspark_rocketmq.spark import change_columns
from pyspark_rocketmq.spark.change_columns import _Changes, _lists
from tests.change_data.samples import flat

_NEW_KEY = "__debezium.newkey"


def _body(op: str, key: int) -> bytes:
    """A message of MySQL: REPLACE by a unique mail gives the row another id, so both have one position."""
    row = {"id": key, "mail": "a"}
    source = {"db": "shop", "table": "orders", "file": "binlog.000007", "pos": 500, "row": 0, "server_id": 1}
    images = {"before": row, "after": None} if op == "d" else {"before": None, "after": row}
    return json.dumps({"op": op, "source": source, **images}).encode()


_PROPERTIES: list[Any] = [[("A", "1")], [("A", "1"), (_NEW_KEY, '{"id":2}')], None, []]


@pytest.mark.parametrize("text", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("first", [0, 1])
def test_a_changed_key_is_freed_by_the_header_of_its_delete(text: pa.DataType, first: int) -> None:
    """K6: facts 15, 17: as in a change table, so that a key that only ``keys`` names keeps its row."""
    bodies = pa.array([b"null", _body("d", 1), _body("c", 2), b"null"])
    keys = pa.array([None, '{"id":1}', '{"id":2}', None])
    properties = pa.array(_PROPERTIES, pa.map_(text, text))
    columns = {"Body": bodies, "keys": keys, "Properties": properties}
    envelope = envelope_of("debezium", {"keys": ["mail"]})
    batch = pa.RecordBatch.from_pydict(columns).slice(first)

    [found] = _Changes(envelope)([batch])
    lists = _lists(envelope, *batch.columns).to_pylist()

    wanted = [("delete", '{"mail":"a"}', [0, 7, 499, 0]), ("insert", '{"mail":"a"}', [0, 7, 500, 0])]
    rows = found.select(["op", "key", "position"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == wanted
    assert [[(row["op"], row["key"], row["position"]) for row in each] for each in lists] == [
        *[[]] * (1 - first),
        *([each] for each in wanted),
        [],
    ]


_OTHERS = [pa.array(["x", "y"]), pa.array([[(1, "x")], []], pa.map_(pa.int64(), pa.string()))]


@pytest.mark.parametrize("properties", [None, *_OTHERS])
def test_messages_without_properties(properties: pa.Array | None) -> None:
    """K6: fact 15: they are optional, and another column of this name is none of them."""
    columns = {"body": pa.array([_body("d", 1), _body("c", 2)])}
    columns |= {} if properties is None else {"properties": properties}

    [found] = _Changes(envelope_of("debezium", {"keys": ["mail"]}))([pa.RecordBatch.from_pydict(columns)])

    assert found.column("position").to_pylist() == [[0, 7, 500, 0]] * 2


def _canal(rows: int, pad: int, **members: Any) -> bytes:
    data = [{"id": str(number), "note": "x" * pad} for number in range(rows)]
    types = {"id": "bigint", "note": "varchar(400)"}
    return flat(mysqlType=types, data=data, gtid="0-1-1", **members)


@pytest.mark.parametrize(
    "large",
    [
        pytest.param(_canal(300, 400), id="body"),
        pytest.param(_canal(300, 1, table="t" * 40_000), id="table"),
        pytest.param(
            flat(mysqlType={"c" * 40_000: 1}, data=[{"id": "1"}] * 300), id="reason of each of its rows"
        ),
    ],
)
def test_the_changes_of_a_message_do_not_grow_with_its_square(large: bytes) -> None:
    """K6: each row has a copy of its message, so many rows come in several batches, in their order."""
    before, after = _canal(1, 1), _canal(2, 1)
    bodies = [before, large, b"null", after]
    batch = pa.RecordBatch.from_pydict({"queueOffset": pa.array(range(4)), "body": pa.array(bodies)})
    envelope = envelope_of("canal", {"source_time_zone": "UTC"})

    found = list(_Changes(envelope)([batch, batch]))

    assert len(found) >= 4
    assert max(piece.nbytes for piece in found) < 20 << 20
    rows = pa.Table.from_batches(found).drop_columns("body").to_pylist()
    of_large = len(json.loads(large)["data"])
    assert [row["queueOffset"] for row in rows] == [0, *[1] * of_large, 3, 3] * 2
    lists = _lists(envelope, batch["body"], pa.nulls(4), pa.nulls(4)).to_pylist()
    added = [{name: row[name] for name in row if name != "queueOffset"} for row in rows]
    assert added == [change for changes in lists for change in changes] * 2


def test_few_changes_of_many_messages_come_in_several_batches() -> None:
    """K6: large bodies and other columns are counted also where they are not measured."""
    bodies = [_canal(16, 1, table="t" * 100_000)] * 20
    batch = pa.RecordBatch.from_pydict({"body": pa.array(bodies), "other": pa.array(["x" * 100_000] * 20)})

    found = list(_Changes(envelope_of("canal", {"source_time_zone": "UTC"}))([batch]))

    assert sum(piece.num_rows for piece in found) == 320
    assert max(piece.nbytes for piece in found) < 20 << 20


def test_only_messages_with_many_changes_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """K6: to measure a message takes longer than to decode a small one."""
    measured: list[int] = []

    def measure(_: pa.RecordBatch, at: int) -> int:
        measured.append(at)
        return 1

    monkeypatch.setattr(change_columns, "_measured_size", measure)
    bodies = [_canal(count, 1) for count in (1, 2, 16, 17, 3)]

    [found] = _Changes(envelope_of("canal", {"source_time_zone": "UTC"}))(
        [pa.RecordBatch.from_pydict({"body": pa.array([*bodies, None])})]
    )

    assert (found.num_rows, measured) == (39, [3])


def test_messages_of_one_change_stay_in_one_batch() -> None:
    """K6: as they came, so that other functions get batches of a useful size."""
    batch = pa.RecordBatch.from_pydict({"body": pa.array([_canal(1, 100_000)] * 100)})

    found = list(_Changes(envelope_of("canal", {"source_time_zone": "UTC"}))([batch, batch.slice(0, 0)]))

    assert [piece.num_rows for piece in found] == [100]
