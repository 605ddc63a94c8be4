"""A database in memory, its change log, and a table in memory that is kept by the rules of a ChangeTable."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from pyspark_rocketmq.change_data.change import Change, Operation, SourceTable
from pyspark_rocketmq.change_data.effects import LOWEST, Order, order_of
from pyspark_rocketmq.sinks.change_table import compaction
from pyspark_rocketmq.sinks.change_table.compaction import (
    ABSENT,
    DELETED,
    EFFECT,
    OLDER,
    OPERATION,
    POSITION,
    Effect,
    Key,
    KeyedChanges,
    TableColumns,
)

TABLE = SourceTable("shop", None, "orders")
COLUMNS = ("a", "b", "c")
MODEL_COLUMNS = TableColumns(keys=("id",), others=COLUMNS)
Row = dict[str, Any]


@dataclass
class ModelDatabase:
    """One table with the key ``id`` and three columns; ``log`` has its changes in their order."""

    random: random.Random
    keys: int = 3
    absent: bool = True
    """Whether updates leave out columns that they do not change."""
    truncates: bool = True
    rows: dict[int, Row] = field(default_factory=dict)
    deleted: dict[int, Row] = field(default_factory=dict)
    """The last values of keys that were deleted and are not there now."""
    log: list[Change] = field(default_factory=list)
    _position: int = 0

    def run(self, transactions: int) -> None:
        for _ in range(transactions):
            choices = [self.insert, self.update, self.update, self.delete, self.move, self.snapshot]
            if self.truncates and self.random.random() < 0.2:
                choices = [self.truncate]
            self._position += 1
            self.random.choice(choices)()

    def insert(self) -> None:
        free = [key for key in range(self.keys) if key not in self.rows]
        if free:
            self._insert(self.random.choice(free), self._values())

    def update(self) -> None:
        if not self.rows:
            return
        key = self.random.choice(list(self.rows))
        changed = [name for name in COLUMNS if self.random.random() < 0.6]
        self.rows[key] |= {name: value for name, value in self._values().items() if name in changed}
        absent = frozenset(name for name in COLUMNS if name not in changed) if self.absent else frozenset()
        if self.random.random() < 0.3:
            absent = frozenset()
        row = {name: value for name, value in self.rows[key].items() if name not in absent}
        self._log(Operation.UPDATE, key, row={"id": key, **row}, absent=absent)

    def delete(self) -> None:
        if self.rows:
            self._delete(self.random.choice(list(self.rows)))

    def move(self) -> None:
        """Change a row's key: a delete and an insert of one position."""
        free = [key for key in range(self.keys) if key not in self.rows]
        if free and self.rows:
            self._insert(self.random.choice(free), self._delete(self.random.choice(list(self.rows))))

    def truncate(self) -> None:
        self.deleted |= self.rows
        self.rows.clear()
        self.log.append(Change(table=TABLE, operation=Operation.TRUNCATE, position=(self._position, 0)))

    def snapshot(self) -> None:
        """Read a row; then one change gets the same position, and the snapshot may lack it."""
        if not self.rows:
            return
        key = self.random.choice(list(self.rows))
        self._log(Operation.SNAPSHOT, key, row={"id": key, **self.rows[key]})
        if self.random.random() < 0.7:
            self.random.choice([self.update, self.delete])()

    def _values(self) -> Row:
        return {name: self.random.choice([None, self.random.randrange(1000)]) for name in COLUMNS}

    def _insert(self, key: int, values: Row) -> None:
        self.rows[key] = dict(values)
        self.deleted.pop(key, None)
        self._log(Operation.INSERT, key, row={"id": key, **values})

    def _delete(self, key: int) -> Row:
        self.deleted[key] = self.rows.pop(key)
        self._log(Operation.DELETE, key)
        return self.deleted[key]

    def _log(self, operation: Operation, key: int, **more: Any) -> None:
        # The second part has several digits, so that an order of digits would be noticed.
        position = (self._position, self._position * 7 % 13)
        self.log.append(Change(table=TABLE, operation=operation, key={"id": key}, position=position, **more))


@dataclass(frozen=True)
class Sent:
    """A change in a message of a queue."""

    change: Change
    offset: int

    @property
    def at(self) -> Order:
        is_snapshot = self.change.operation is Operation.SNAPSHOT
        return order_of(self.change.position, self.offset, 0, is_snapshot=is_snapshot)


def sent(changes: Iterable[Change]) -> list[Sent]:
    return [Sent(change, offset) for offset, change in enumerate(changes)]


def shuffled(by: random.Random, log: Sequence[Change]) -> list[list[Sent]]:
    """Return changes in any order, some of them again, in batches of any size."""
    changes = [*log, *(change for change in log if by.random() < 0.3)]
    by.shuffle(changes)
    messages = sent(changes)
    batches = []
    while messages:
        size = by.randrange(1, len(messages) + 1)
        batches.append(messages[:size])
        messages = messages[size:]
    return batches


@dataclass
class MemoryTable:
    """A table as a MERGE keeps it. Each rule of the MERGE can be left out."""

    columns: TableColumns = MODEL_COLUMNS
    rows: dict[Key, Row] = field(default_factory=dict)
    deletions: dict[Key, Order] = field(default_factory=dict)
    truncated_at: Order = LOWEST
    compares: bool = True
    keeps_deletions: bool = True
    keeps_truncations: bool = True
    truncates_below: bool = True
    reads_older: bool = True
    reads_unfinished: bool = True

    @property
    def schema(self) -> pa.Schema:
        names = (*self.columns.keys, *self.columns.others)
        return pa.schema([*(pa.field(name, pa.int64()) for name in names), *self.columns.hidden])

    def apply(self, batch: Sequence[Sent]) -> None:
        truncations = [each.at for each in batch if each.change.operation is Operation.TRUNCATE]
        changes = KeyedChanges(self.columns, change_rows(self.columns, batch))
        truncated_at = max([*truncations, self.truncated_at])
        if not self.columns.keeps_deleted:
            for key, at in changes.deletions.items():
                self.deletions[key] = max(at, self.deletions.get(key, LOWEST))
        self.truncated_at = truncated_at
        stored = self._read(changes, all_older=bool(truncations))
        source = compaction.merge_source(changes, stored, self.deletions, truncated_at)
        self.merge(source, truncated_at if truncations else LOWEST)
        if not self.keeps_deletions:
            self.deletions.clear()
        if not self.keeps_truncations:
            self.truncated_at = LOWEST

    def _read(self, changes: KeyedChanges, *, all_older: bool) -> pa.Table:
        wanted = set(changes.unfinished) if self.reads_unfinished else set()
        if self.reads_older:
            wanted |= {
                key for key, row in self.rows.items() if row[OLDER] and (all_older or key in changes.facts)
            }
        return pa.Table.from_pylist([self.rows[key] for key in wanted if key in self.rows], self.schema)

    def merge(self, source: pa.Table, truncated_at: Order) -> None:
        matched = set()
        for row in source.to_pylist():
            key = tuple(row[name] for name in self.columns.keys)
            assert key not in matched, "two rows for a key"
            matched.add(key)
            self._merge_row(key, row, row.pop(EFFECT))
        for key, row in list(self.rows.items()):
            is_below = not self.truncates_below or row[POSITION] < truncated_at
            if truncated_at and key not in matched and is_below:
                del self.rows[key]

    def _merge_row(self, key: Key, row: Row, effect: str) -> None:
        old = self.rows.get(key)
        if effect == Effect.DELETE:
            if old is not None and (not self.compares or old[POSITION] <= row[POSITION]):
                del self.rows[key]
        elif old is None or effect == Effect.FINAL or not self.compares or row[POSITION] > old[POSITION]:
            self.rows[key] = row

    @property
    def visible(self) -> dict[int, Row]:
        return {
            key[0]: {name: row[name] for name in COLUMNS}
            for key, row in self.rows.items()
            if not row.get(DELETED)
        }

    @property
    def marked(self) -> dict[int, Row]:
        """The values of rows that are marked as deleted."""
        return {
            key[0]: {name: row[name] for name in COLUMNS}
            for key, row in self.rows.items()
            if row.get(DELETED)
        }


def change_rows(columns: TableColumns, batch: Iterable[Sent]) -> pa.Table:
    """Return changes with a key as a task writes them."""
    names = (*columns.keys, *columns.others)
    schema = pa.schema(
        [
            *(pa.field(name, pa.int64()) for name in names),
            pa.field(POSITION, pa.string()),
            pa.field(OPERATION, pa.string()),
            pa.field(ABSENT, pa.list_(pa.string())),
        ]
    )
    rows = [
        {
            **each.change.row,
            **each.change.key,
            POSITION: each.at,
            OPERATION: str(each.change.operation),
            ABSENT: sorted(each.change.absent),
        }
        for each in batch
        if each.change.operation is not Operation.TRUNCATE
    ]
    return pa.Table.from_pylist(rows, schema)


def without_positions(log: Iterable[Change]) -> list[Change]:
    return [replace(change, position=None) for change in log]
