"""A batch's changes, compacted to one row per key, as the source of a MERGE.

Values stay in Arrow: :mod:`pyspark_rocketmq.change_data.effects` decides which row has the value of a column,
and the value is taken from that row. Most changes have all values, and most keys have nothing but such
changes, for example no deletion. The newest change of such a key is then the key's new row, and Arrow finds
these rows for all keys at the same time (:class:`DividedChanges`).

A *place* is where a change comes in the order of its table's changes (``effects.Order``).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rocketmq.change_data.change import Operation
from pyspark_rocketmq.change_data.effects import (
    LOWEST,
    NONE_OLDER,
    Fact,
    Order,
    RowState,
    combine,
    older_of,
    older_text,
)

POSITION: Final = "__position"
"""Column with the place of a change; in a table, with the place of the newest change in the row."""
OLDER: Final = "__older"
"""Column with the places of those values in a row that are older than the row's newest change.

The places are a text of ``effects.older_text``; null if no value is older.
"""
DELETED: Final = "__deleted"
"""Column that marks deleted rows, in a table that keeps them."""
OPERATION: Final = "__operation"
"""Column of a change with its ``Operation``."""
ABSENT: Final = "__absent"
"""Column of a change with the names of the columns whose values it lacks; null if it has all."""
EFFECT: Final = "__effect"
"""Column of a MERGE's source with the :class:`Effect` of each row."""

_RANK: Final = "__rank"
UNPLACED: Final[Order] = " "
"""Place of a row that the table had before it was a change table: lower than that of every change."""

Key = tuple[Any, ...]
"""Values of the key's columns, as the Python objects that Arrow returns for them."""


class Effect(StrEnum):
    """The effect that a row of a MERGE's source has on the table's row with the same key."""

    ROW = "row"
    """Replace the table's row if that is older; insert the row if the table has none."""
    FINAL = "final"
    """Replace the table's row, or insert the row. It already contains what was read from the table's row."""
    DELETE = "delete"
    """Delete the table's row unless that is newer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumns:
    """Columns of the target table."""

    keys: tuple[str, ...]
    others: tuple[str, ...]
    """All other columns of the source's table."""
    keeps_deleted: bool = False
    """Whether deleted rows stay in the table, with a mark."""

    @property
    def hidden(self) -> tuple[pa.Field, ...]:
        """The columns that a change table has besides those of the source's table."""
        deleted = (pa.field(DELETED, pa.bool_()),) if self.keeps_deleted else ()
        return (pa.field(POSITION, pa.string()), pa.field(OLDER, pa.string()), *deleted)


@dataclass(slots=True)
class KeyedChanges:
    """Changes of a batch by their keys. Truncations are left out, because they have no key."""

    columns: TableColumns
    rows: pa.Table
    """Changes with a key."""
    facts: dict[Key, list[Fact]] = field(init=False)
    """The changes of each key as ``effects.Fact``; ``Fact.row`` is the index of the change in ``rows``."""
    deletions: dict[Key, Order] = field(init=False, default_factory=dict)
    """Place of the last deletion of each key that has one, in the order of changes."""

    def __post_init__(self) -> None:
        self.facts = {}
        places, operations, absent = (self.rows[name].to_pylist() for name in (POSITION, OPERATION, ABSENT))
        for number, key in enumerate(keys_of(self.rows, self.columns.keys)):
            at = places[number]
            if operations[number] == Operation.DELETE:
                fact = Fact(number, LOWEST, at)
                self.deletions[key] = max(at, self.deletions.get(key, LOWEST))
            else:
                older = dict.fromkeys(absent[number], LOWEST) if absent[number] else NONE_OLDER
                fact = Fact(number, at, LOWEST, older)
            self.facts.setdefault(key, []).append(fact)

    @property
    def unfinished(self) -> list[Key]:
        """The keys whose rows in the table must be read before a MERGE, to decide the new row.

        They have a change without all values, or a deletion if deleted rows stay in the table.

        The list does not name all rows to read. A row with values that are older than its newest change
        (:data:`OLDER`) must be read, too, if its key is among the changes or the batch has a truncation.
        """
        return [
            key
            for key, facts in self.facts.items()
            if (self.columns.keeps_deleted and key in self.deletions) or any(fact.older for fact in facts)
        ]


@dataclass(frozen=True, slots=True)
class DividedChanges:
    """Changes with a key, divided into two parts: one is compacted key by key, the other quickly by Arrow.

    :func:`merge_source` takes the part :attr:`rows`, and :func:`whole_source` the part :attr:`whole`.
    """

    rows: pa.Table
    """Changes to compact key by key: all those of each key for which one change is not enough.

    Such a key has a deletion, a change without all values or a change before a truncation, or is one of the
    keys ``others`` of :meth:`of`. Changes of further keys may be among them: see :func:`has_keys_of`.
    """
    whole: pa.Table
    """All changes of all other keys; the newest change of a key is the key's new row."""

    @classmethod
    def of(cls, columns: TableColumns, rows: pa.Table, others: pa.Table, floor: Order) -> DividedChanges:
        """Divide changes by whether the newest change of their key can become its row as it is.

        Args:
            columns: Columns of the table.
            rows: Changes with a key.
            others: Keys with a row that was read from the table, or with a recorded deletion. Their changes
                go into ``rows`` of the result.
            floor: Place of the last truncation in the order of changes; ``LOWEST`` without one.
        """
        is_whole = pc.equal(pc.fill_null(pc.list_value_length(rows[ABSENT]), 0), 0)
        is_placed = pc.and_(
            pc.not_equal(rows[OPERATION], Operation.DELETE.value), pc.greater(rows[POSITION], floor)
        )
        partly = rows.filter(pc.invert(pc.fill_null(pc.and_(is_whole, is_placed), False)))
        keys = partly.select(columns.keys)
        is_other = has_keys_of(rows, pa.concat_tables([keys, others.cast(keys.schema)]))
        return cls(rows.filter(is_other), rows.filter(pc.invert(is_other)))


def whole_source(columns: TableColumns, whole: pa.Table) -> pa.Table:
    """Return one row per key for a MERGE: the newest change of each key in ``whole``.

    Each of these changes has all values; see ``DividedChanges.whole``.
    """
    newest = _newest(columns.keys, whole)
    count = len(newest)
    hidden = {POSITION: newest[POSITION], OLDER: pa.nulls(count, pa.string())}
    if columns.keeps_deleted:
        hidden[DELETED] = pa.repeat(pa.scalar(False), count)
    values = {name: newest[name] for name in (*columns.keys, *columns.others)}
    return pa.table({**values, **hidden, EFFECT: pa.repeat(pa.scalar(str(Effect.ROW)), count)})


def _newest(keys: Sequence[str], rows: pa.Table) -> pa.Table:
    """Return the change of each key with the highest place; of several changes at this place, the first."""
    ranked = rows.select(list(keys)).append_column(_RANK, pa.array(np.arange(len(rows))))
    if len(ranked.group_by(list(keys)).aggregate([])) == len(rows):
        return rows
    numbered = rows.select([POSITION]).append_column(_RANK, ranked[_RANK])
    order = pc.sort_indices(numbered, sort_keys=[(POSITION, "descending"), (_RANK, "ascending")])
    ranked = ranked.select(list(keys)).take(order).append_column(_RANK, ranked[_RANK])
    highest = ranked.group_by(list(keys)).aggregate([(_RANK, "min")])[f"{_RANK}_min"]
    return rows.take(order.take(highest.combine_chunks()))


def keys_of(rows: pa.Table, names: Sequence[str]) -> Iterator[Key]:
    """Yield the key of each row: its values in the columns ``names``."""
    return zip(*(rows[name].to_pylist() for name in names), strict=True)


def has_keys_of(rows: pa.Table, keys: pa.Table) -> pa.Array:
    """Return for each row whether it may have one of the ``keys``: a quick test, one column at a time.

    The result is true for each row with one of the keys, but also for a row that mixes values of several
    keys.
    """
    found = pa.repeat(pa.scalar(True), len(rows))
    for name in keys.column_names:
        found = pc.and_(found, pc.is_in(rows[name], value_set=keys[name].combine_chunks()))
    return found


def share_of(key: Key, shares: int) -> int:
    """Return the number, from 0, of the share that a key belongs to; every process returns the same number.

    ``shares`` is the number of shares into which a large batch is divided by its keys.
    """
    return zlib.crc32(repr(key).encode()) % shares


def merge_source(
    changes: KeyedChanges,
    stored: pa.Table,
    deletions: Mapping[Key, Order],
    truncated_at: Order = LOWEST,
) -> pa.Table:
    """Return one row per key for a MERGE: values, the place of the newest one, and the row's :class:`Effect`.

    A key is left out if its row in ``stored`` needs no change.

    Args:
        changes: Changes of the batch.
        stored: Those rows of the table that are needed (see :attr:`KeyedChanges.unfinished`), one per key.
        deletions: The highest recorded deletion of each key.
        truncated_at: Place of the latest truncation; ``LOWEST`` if there was none.
    """
    columns = changes.columns
    facts = {key: list(found) for key, found in changes.facts.items()}
    read = set()
    for fact, key in zip(stored_facts(stored, len(changes.rows)), keys_of(stored, columns.keys), strict=True):
        facts.setdefault(key, []).append(fact)
        read.add(key)
    states = _Source(columns, pa.concat_tables(_with_hidden(columns, [changes.rows, stored])))
    for key, found in facts.items():
        floor = max(deletions.get(key, LOWEST), truncated_at)
        state = combine(found, columns.others, floor=floor, keeps_deleted=columns.keeps_deleted)
        states.add(state, found, is_read=key in read)
    return states.table()


def stored_facts(stored: pa.Table, first: int) -> Iterator[Fact]:
    """Yield a ``Fact`` for each row read from the table, with the places of its values and its deletion.

    ``Fact.row`` is the number of the row, counted from ``first`` on.
    """
    deleted = stored[DELETED].to_pylist() if DELETED in stored.column_names else [False] * len(stored)
    rows = zip(stored[POSITION].to_pylist(), stored[OLDER].to_pylist(), deleted, strict=True)
    for number, (at, older, is_deleted) in enumerate(rows, first):
        place = at or UNPLACED
        yield Fact(number, place, place if is_deleted else LOWEST, older_of(older))


def _with_hidden(columns: TableColumns, tables: Iterable[pa.Table]) -> list[pa.Table]:
    return [table.select([*columns.keys, *columns.others]) for table in tables]


class _Source:
    """Collects the rows of a MERGE's source: for each value, the number of the row that it is taken from."""

    def __init__(self, columns: TableColumns, rows: pa.Table) -> None:
        self._columns = columns
        self._rows = rows
        self._keys: list[int] = []
        self._newest: list[int | None] = []
        self._elsewhere: dict[str, dict[int, int | None]] = {}
        self._hidden: dict[str, list[Any]] = {name: [] for name in (POSITION, OLDER, DELETED, EFFECT)}

    def add(self, state: RowState, facts: Sequence[Fact], *, is_read: bool) -> None:
        """Add a key's new state, unless the table's row is already in this state.

        ``is_read`` says whether the table's row was read. Then the last of ``facts`` belongs to that row.
        """
        if is_read and _is_as_stored(state, facts[-1]):
            return
        number = len(self._keys)
        self._keys.append(facts[0].row)
        self._newest.append(state.row)
        for name, row in state.elsewhere.items():
            self._elsewhere.setdefault(name, {})[number] = row
        kept = self._columns.keeps_deleted
        effect = Effect.DELETE if state.is_deleted and not kept else Effect.FINAL if is_read else Effect.ROW
        hidden = (state.at, older_text(state.older), state.is_deleted, effect)
        for values, value in zip(self._hidden.values(), hidden, strict=True):
            values.append(value)

    def table(self) -> pa.Table:
        """Return the rows of the added states as a table, with values, place and ``Effect``."""
        newest = pa.array(self._newest, pa.int64())
        taken = {name: self._rows[name].take(pa.array(self._keys, pa.int64())) for name in self._columns.keys}
        for name in self._columns.others:
            changed = self._elsewhere.get(name)
            taken[name] = self._rows[name].take(newest if changed is None else self._moved(changed))
        types = {POSITION: pa.string(), OLDER: pa.string(), DELETED: pa.bool_(), EFFECT: pa.string()}
        hidden = {name: pa.array(values, types[name]) for name, values in self._hidden.items()}
        if not self._columns.keeps_deleted:
            del hidden[DELETED]
        return pa.table(taken | hidden)

    def _moved(self, changed: Mapping[int, int | None]) -> pa.Array:
        rows = list(self._newest)
        for number, row in changed.items():
            rows[number] = row
        return pa.array(rows, pa.int64())


def _is_as_stored(state: RowState, stored: Fact) -> bool:
    """Return whether ``stored``, the row of the table, is already in ``state``."""
    return (
        state.row == stored.row
        and state.at == stored.at
        and not state.elsewhere
        and state.older == stored.older
        and state.is_deleted == bool(stored.deleted_at)
    )
