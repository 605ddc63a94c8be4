"""Messages of Canal from a database with hostile keys, through listener and sink into a table."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import pyspark_rocketmq as rmq
from pyspark_rocketmq.consumer.change_listener import ChangeListener
from pyspark_rocketmq.model import QUEUE_OFFSET, MessageQueue, queue_columns
from pyspark_rocketmq.sinks.change_table.columns import HIDDEN, change_schema
from tests.helpers.sink_rows import GROUP, files_of

_QUEUES = [MessageQueue("orders", "broker-a", number) for number in range(3)]
_LONG, _LAST = "x" * 70, "\U0010ffff"
_CLOCKS = [
    datetime(1, 1, 1),  # noqa: DTZ001 - a clock without a zone
    datetime(1677, 1, 1),  # noqa: DTZ001
    datetime(1969, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001
    datetime(2026, 1, 1, 0, 0, 0, 1),  # noqa: DTZ001
    datetime(9999, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001
]
_TEXTS = ["", " ", "a", "A", "a ", "'", "\\", "%", "null", "\x00", "1", "01", "-1", _LAST * 40, _LAST * 41]
KEYS: dict[str, tuple[str, pa.DataType, Sequence[Any]]] = {
    "text": (
        "varchar(8000)",
        pa.string(),
        [*_TEXTS, _LONG, _LONG + "a", _LONG + "b", _LONG * 100, _LONG * 100 + "z", "漢" * 30, "漢" * 31],
    ),
    "bytes": (
        "varbinary(200)",
        pa.binary(),
        [bytes([byte] * size) for byte in (0, 127, 255) for size in (0, 1, 63, 64, 65, 100)],
    ),
    "unsigned": (
        "bigint(20) unsigned",
        pa.decimal128(20, 0),
        [0, 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1],
    ),
    "decimal": (
        "decimal(10,2)",
        pa.decimal128(10, 2),
        [Decimal(text) for text in ("0.00", "-0.01", "0.01", "99999999.99", "-99999999.99", "1.10", "1.11")],
    ),
    "clock": ("datetime(6)", pa.timestamp("us"), _CLOCKS),
    "date": ("date", pa.date32(), [date(1, 1, 1), date(1969, 12, 31), date(1970, 1, 1), date(9999, 12, 31)]),
    "bit": ("bit(1)", pa.bool_(), [True, False]),
}
"""Type in the source, type in the table, values."""
_VALUES: Mapping[str, Sequence[Any]] = {
    "note": [None, "", "x", "null"],
    "price": [None, Decimal("1.0000000001"), Decimal("-12345678901234567890.1234567890")],
    "at": [None, *_CLOCKS],
}
_TYPES = {"note": "varchar(20)", "price": "decimal(30,10)", "at": "datetime(6)"}
_COLUMNS = pa.schema(
    [("note", pa.string()), ("price", pa.decimal128(30, 10)), ("at", pa.timestamp("us")), ("no", pa.int32())]
)


def _text(value: Any) -> str | None:
    """A value as Canal writes it."""
    match value:
        case None:
            return None
        case bool():
            return str(int(value))
        case bytes():
            return value.decode("latin-1")
        case datetime():
            return value.isoformat(" ", "microseconds")
        case _:
            return str(value)


@dataclass
class _Database:
    """A table with a key of two columns, ``id`` and ``no``, and Canal's messages of its changes by queue."""

    by: random.Random
    kind: str
    rows: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    queues: list[list[bytes]] = field(default_factory=lambda: [[] for _ in _QUEUES])
    _transactions: int = 0

    def run(self, transactions: int) -> None:
        for _ in range(transactions):
            self.by.choice([self._insert, self._insert, self._update, self._move, self._delete])(self._key())
        if self.by.random() < 0.3:
            self.rows.clear()
            self._send("TRUNCATE", None, isDdl=True, sql="TRUNCATE orders")
            self._insert(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self.by.choice(KEYS[self.kind][2]), self.by.choice([-(2**31), 0, 2**31 - 1])

    def _insert(self, key: tuple[Any, ...]) -> None:
        if key not in self.rows:
            self.rows[key] = {"id": key[0], "no": key[1], **self._values()}
            self._send("INSERT", self.rows[key])

    def _update(self, key: tuple[Any, ...]) -> None:
        self._replace(key, key)

    def _move(self, key: tuple[Any, ...]) -> None:
        free = key not in self.rows
        if free and self.rows:
            self._replace(self.by.choice(list(self.rows)), key)

    def _replace(self, key: tuple[Any, ...], new: tuple[Any, ...]) -> None:
        old = self.rows.pop(key, None)
        if old is not None:
            row = self.rows[new] = {"id": new[0], "no": new[1], **self._values()}
            self._send("UPDATE", row, {name: old[name] for name in row if old[name] != row[name]})

    def _delete(self, key: tuple[Any, ...]) -> None:
        if key in self.rows:
            self._send("DELETE", self.rows.pop(key))

    def _values(self) -> dict[str, Any]:
        return {name: self.by.choice(values) for name, values in _VALUES.items()}

    def _send(
        self, kind: str, row: Mapping[str, Any] | None, old: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        self._transactions += 1
        rows, olds = ([_texts(each)] if each else None for each in (row, old))
        message = {
            "database": "shop",
            "table": "orders",
            "type": kind,
            "isDdl": False,
            "gtid": f"3e11fa47-71ca-11e1-9e33-c80aa9429562:1-{self._transactions}",
            "pkNames": ["id", "no"],
            "mysqlType": {"id": KEYS[self.kind][0], "no": "int(11)", **_TYPES},
            "data": rows,
            "old": olds,
            **more,
        }
        place = repr([row[name] for name in ("id", "no")]) if row else ""
        queue = self.queues[zlib.crc32(place.encode()) % len(_QUEUES)]
        queue.append(json.dumps(message, ensure_ascii=self.by.random() < 0.5).encode())

    def stored(self) -> list[list[bytes]]:
        """The messages as queues have them: some swapped, some sent again, a queue from its beginning."""
        for queue in self.queues:
            for at in range(len(queue) - 1):
                if self.by.random() < 0.1:
                    queue[at : at + 2] = reversed(queue[at : at + 2])
            at = self.by.randrange(len(queue) + 1)
            queue[at:at] = queue[max(at - 3, 0) : at]
        self.by.choice(self.queues).extend(self.by.choice(self.queues))
        return self.queues


def _texts(row: Mapping[str, Any]) -> dict[str, str | None]:
    return {name: _text(value) for name, value in row.items()}


def _batches(by: random.Random, queues: Sequence[Sequence[bytes]]) -> Iterator[tuple[int, int, list[bytes]]]:
    """Yield number of the queue, offset and messages, until all are there."""
    begins = [0] * len(queues)
    while left := [number for number, queue in enumerate(queues) if begins[number] < len(queue)]:
        number = by.choice(left)
        begin = begins[number]
        begins[number] += by.randrange(1, len(queues[number]) - begin + 1)
        yield number, begin, list(queues[number][begin : begins[number]])


def _sink(path: Path, kind: str, scd_type: int) -> rmq.ChangeTable:
    columns = pa.schema([("id", KEYS[kind][1]), *_COLUMNS])
    settings: dict[str, Any] = {"columns": columns, "stored_as_scd_type": scd_type, "compaction": False}
    sink = rmq.ChangeTable(path, keys=["id", "no"], envelope="canal", source_time_zone="UTC", **settings)
    sink.prepare(change_schema(sink.table_columns()))
    return sink


def _consume(sink: rmq.ChangeTable, number: int, begin: int, bodies: Sequence[bytes]) -> None:
    listener = ChangeListener(sink)
    messages = [rmq.Message(topic="orders", body=body) for body in bodies]
    run = rmq.run_listener(
        listener,
        messages,
        output_schema=listener.schema,
        consume_message_batch_max_size=listener.messages_per_call,
    )
    queue = _QUEUES[number]
    rows = [{**queue_columns(queue), **row, QUEUE_OFFSET: row[QUEUE_OFFSET] + begin} for row in run.rows]
    batch = sink.begin(GROUP, {queue: 0})
    schema = change_schema(sink.table_columns())
    written = files_of(batch.task_writer(), iter([pa.RecordBatch.from_pylist(rows, schema)]))
    batch.commit(written, {queue: begin + len(bodies)})


@pytest.mark.parametrize("scd_type", [1, 2])
@pytest.mark.parametrize("kind", KEYS)
def test_messages_with_hostile_keys_give_the_table_of_the_database(
    tmp_path: Path, kind: str, scd_type: int
) -> None:
    """K1: keys that are long, share a beginning, differ in case or blanks, or are at the ends of their type."""
    by = random.Random(f"{kind} {scd_type}")
    database = _Database(by, kind)
    database.run(30)
    path = tmp_path / "orders"
    sink = _sink(path, kind, scd_type)
    for number, begin, bodies in _batches(by, database.stored()):
        _consume(sink, number, begin, bodies)
        if by.random() < 0.3:
            sink = _sink(path, kind, scd_type)

    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    current = [row for row in rows if row.get("__end_position") is None]
    found = {
        (row["id"], row["no"]): {name: value for name, value in row.items() if name not in HIDDEN}
        for row in current
    }
    assert len(found) == len(current), "a key has two rows"
    assert found == database.rows
