"""The versions of rows by a model that sorts all changes, and a table in memory that keeps them by a sink's rules."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from pyspark_rocketmq.change_data.change import Change, Operation
from pyspark_rocketmq.change_data.effects import LOWEST, Order
from pyspark_rocketmq.sinks.change_table import versions
from pyspark_rocketmq.sinks.change_table.compaction import (
    EFFECT,
    POSITION,
    Effect,
    Key,
    TableColumns,
)
from pyspark_rocketmq.sinks.change_table.versions import (
    END_AT,
    END_POSITION,
    HISTORY_FIELDS,
    START_AT,
    TIME,
    keys_after,
    known_of,
)
from tests.change_data.model_database import COLUMNS, MODEL_COLUMNS, Row, Sent, change_rows

_BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
_OPERATIONS = (Operation.DELETE, Operation.TRUNCATE)


def timed(
    log: Iterable[Change], few: int | None = None, swapped: random.Random | None = None
) -> list[Change]:
    """Return changes with times of the source, and with only so many different values of a column.

    With ``swapped`` the times of a third of the changes are some seconds later, so the next ones go back.
    """

    def seconds(change: Change) -> int:
        later = 0 if swapped is None else swapped.choice([0, 0, swapped.randrange(1, 9)])
        return later + (change.position[0] if change.position else 0)

    return [
        replace(
            change,
            row=change.row if few is None else coarse(change.row, few),
            source_time=_BEGIN + timedelta(seconds=seconds(change)),
        )
        for change in log
    ]


def coarse(row: Row | Any, few: int) -> Row:
    """Return a row of the model database with few different values."""
    return {
        name: value if name == "id" or value is None else value % few for name, value in dict(row).items()
    }


Versions = dict[Any, list[Row]]
"""Versions by key, in their order."""


def sorted_versions(changes: Iterable[Sent], tracked: Iterable[str] = COLUMNS) -> Versions:
    """The versions that a model gives which has all changes, and sorts them. None ends before it starts."""
    found: Versions = {}
    current: dict[int, Row] = {}
    for each in sorted(changes, key=lambda each: each.at):
        change, time = each.change, each.change.source_time
        if change.operation in _OPERATIONS:
            keys = [change.key["id"]] if change.key else list(current)
            for key in keys:
                if key in current:
                    _end(current.pop(key), time)
            continue
        key = change.key["id"]
        given = {name: change.row[name] for name in COLUMNS if name not in change.absent}
        old = current.get(key)
        if old is not None and all(old[name] == given.get(name, old[name]) for name in tracked):
            old |= given
            continue
        if old is not None:
            _end(old, time)
        base = dict.fromkeys(COLUMNS) if old is None else {name: old[name] for name in COLUMNS}
        current[key] = {**base, **given, START_AT: time, END_AT: None}
        found.setdefault(key, []).append(current[key])
    return found


def _end(version: Row, time: datetime | None) -> None:
    version[END_AT] = time if time is None else max(version[START_AT], time)


def timed_rows(columns: TableColumns, batch: Iterable[Sent]) -> pa.Table:
    """Return changes with a key as a task writes them, with their times."""
    keyed = [each for each in batch if each.change.operation is not Operation.TRUNCATE]
    times = pa.array([each.change.source_time for each in keyed], versions.MOMENT)
    return change_rows(columns, keyed).append_column(TIME, times)


@dataclass
class MemoryHistory:
    """A table with versions as a MERGE keeps it. Each rule can be left out."""

    tracked: frozenset[str] | None = None
    rows: dict[tuple[Key, Order], Row] = field(default_factory=dict)
    remembered: list[Row] = field(default_factory=list)
    truncated: dict[Order, datetime | None] = field(default_factory=dict)
    remembers: bool = True
    keeps_truncations: bool = True
    closes_below: bool = True
    reads_after_truncations: bool = True
    reads_ended: bool = True
    reads_all_of_late_keys: bool = True
    _last_since: Order = LOWEST

    @property
    def schema(self) -> pa.Schema:
        names = (*MODEL_COLUMNS.keys, *MODEL_COLUMNS.others)
        return pa.schema([*(pa.field(name, pa.int64()) for name in names), *HISTORY_FIELDS])

    @property
    def past_schema(self) -> pa.Schema:
        names = (*MODEL_COLUMNS.keys, *MODEL_COLUMNS.others)
        return pa.schema([*(pa.field(name, pa.int64()) for name in names), *versions.CHANGE_FIELDS])

    def record(self, batch: Sequence[Sent]) -> versions.Outcome:
        """Decide a batch's effect, and remember what the table does not show."""
        truncations = self._truncations(batch)
        known = known_of(MODEL_COLUMNS, timed_rows(MODEL_COLUMNS, batch), truncations, self)
        outcome = versions.outcome(MODEL_COLUMNS, self.tracked, known)
        if self.remembers:
            self.remembered += outcome.lost.to_pylist()
        if self.keeps_truncations:
            self.truncated |= truncations
        return outcome

    def versions(self, keys: Collection[Key], since: Order) -> pa.Table:
        return self._stored(
            lambda row: (
                (row["id"],) in keys
                and (row[END_POSITION] is None or (self.reads_ended and row[END_POSITION] >= since))
            )
        )

    def past(self, keys: Collection[Key], since: Order) -> pa.Table:
        if since == LOWEST and not self.reads_all_of_late_keys:
            since = self._last_since
        self._last_since = since
        rows = [row for row in self.remembered if (row["id"],) in keys and row[POSITION] >= since]
        return pa.Table.from_pylist(rows, self.past_schema)

    def truncations(self, since: Order) -> dict[Order, datetime | None]:
        return {at: time for at, time in self.truncated.items() if at >= since}

    def keys_after(self, at: Order) -> set[Key]:
        if not self.reads_after_truncations:
            return set()
        stored = keys_after(self._stored(lambda _: True), MODEL_COLUMNS.keys, lambda _: at)
        return stored | {(row["id"],) for row in self.remembered if row[POSITION] >= at}

    def apply(self, batch: Sequence[Sent]) -> None:
        self.merge(self.record(batch).source, self._truncations(batch))

    def _stored(self, is_wanted: Callable[[Row], bool]) -> pa.Table:
        return pa.Table.from_pylist(list(filter(is_wanted, self.rows.values())), self.schema)

    @staticmethod
    def _truncations(batch: Sequence[Sent]) -> dict[Order, datetime | None]:
        return {
            each.at: each.change.source_time for each in batch if each.change.operation is Operation.TRUNCATE
        }

    def merge(self, source: pa.Table, truncations: dict[Order, datetime | None]) -> None:
        matched = set()
        for row in source.to_pylist():
            place = ((row["id"],), row[POSITION])
            assert place not in matched, "two rows for a version"
            matched.add(place)
            if row.pop(EFFECT) == Effect.DELETE:
                del self.rows[place]
            else:
                self.rows[place] = row
        for at, time in sorted(truncations.items()):
            for place, row in self.rows.items():
                is_open = row[END_POSITION] is None and row[POSITION] < at
                if self.closes_below and place not in matched and is_open:
                    row[END_POSITION] = at
                    _end(row, time)

    @property
    def visible(self) -> Versions:
        found: Versions = {}
        for (key, _), row in sorted(self.rows.items()):
            names = (*COLUMNS, START_AT, END_AT)
            found.setdefault(key[0], []).append({name: row[name] for name in names})
        return found

    @property
    def current(self) -> dict[int, Row]:
        return {
            row["id"]: {name: row[name] for name in COLUMNS}
            for row in self.rows.values()
            if row[END_POSITION] is None
        }

    def forget(self) -> None:
        """Forget what is beside the table."""
        self.remembered.clear()
        self.truncated.clear()
