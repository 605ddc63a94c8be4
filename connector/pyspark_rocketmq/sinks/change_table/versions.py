"""The versions that a batch's changes write or delete, as the source of a MERGE that keeps all versions.

They are decided from the changes and from all that is stored of the changes' keys. Values stay in Arrow:
:mod:`pyspark_rocketmq.change_data.history` decides which row has the value of a column in a version, and the
value is taken from that row.

A *place* is where a change comes in the order of its table's changes (``effects.Order``). A change is
recorded *beside the table* (``side_tables.PastChanges``) if no version in the table shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from pyspark_rocketmq.change_data.change import Operation
from pyspark_rocketmq.change_data.effects import LOWEST, Order, older_of, older_text, place_in
from pyspark_rocketmq.change_data.history import (
    NOTHING,
    Event,
    History,
    StoredVersion,
    Version,
    events_of,
    history,
)
from pyspark_rocketmq.sinks.change_table.compaction import (
    ABSENT,
    EFFECT,
    OPERATION,
    POSITION,
    UNPLACED,
    Effect,
    Key,
    TableColumns,
    keys_of,
)

START_AT: Final = "__START_AT"
"""Column with the time from which on the source's table had a version."""
END_AT: Final = "__END_AT"
"""Column with the time at which a version ended; null for the current one."""
END_POSITION: Final = "__end_position"
"""Column with the place of the change that ended a version; null for the current one."""
PLACES: Final = "__places"
"""Column with the places of values that a version's first change did not give (``effects.older_text``)."""
TIME: Final = "__time"
"""Column of a change with its time in the source."""
MOMENT: Final = pa.timestamp("us", "UTC")
HISTORY_FIELDS: Final = (
    pa.field(POSITION, pa.string()),
    pa.field(END_POSITION, pa.string()),
    pa.field(PLACES, pa.string()),
    pa.field(START_AT, MOMENT),
    pa.field(END_AT, MOMENT),
)
"""Columns that a table with versions has besides those of the source's table."""
CHANGE_FIELDS: Final = (
    pa.field(POSITION, pa.string()),
    pa.field(OPERATION, pa.string()),
    pa.field(ABSENT, pa.list_(pa.string())),
    pa.field(TIME, MOMENT),
)
"""Columns of a change besides those of the source's table."""

Truncations = Mapping[Order, datetime | None]
"""Times of truncations by their places; a time is None if it is unknown."""


class Facts(Protocol):
    """Reads everything that is stored of the keys of a batch."""

    def versions(self, keys: Collection[Key], since: Order) -> pa.Table:
        """Return the versions of ``keys`` that end at place ``since`` or later, or have not ended."""
        ...

    def past(self, keys: Collection[Key], since: Order) -> pa.Table:
        """Return the changes of ``keys`` at place ``since`` or later that are recorded beside the table.

        They are changes that no version in the table shows.
        """
        ...

    def truncations(self, since: Order) -> Truncations:
        """Return the truncations at place ``since`` or later that are recorded beside the table."""
        ...

    def keys_after(self, at: Order) -> set[Key]:
        """Return all keys of which something is stored from place ``at`` on, also keys not in the batch.

        "Something" is a version that begins, changes or ends at place ``at`` or later, or a change at such a
        place that is recorded beside the table.
        """
        ...


class Known(NamedTuple):
    """Everything that decides the effect of a batch on its keys."""

    changes: pa.Table
    """The batch's changes with a key."""
    stored: pa.Table
    """The stored versions that had not ended before place ``since``, of the keys that the batch concerns.

    The batch concerns the keys in ``changes``. With a truncation, it also concerns the keys of which
    something is stored from the truncation's place on.

    If a value that the batch needs was overwritten in such a version, earlier versions are there, too: see
    :func:`_overwritten_later`.
    """
    past: pa.Table
    """All changes recorded beside the table, however old, of each key for which the batch's changes are late.

    Such a key has a recorded change, or a version that begins, changes or ends, at the key's lowest place in
    the batch or later.
    """
    truncations: Truncations
    """The batch's truncations, and the recorded ones at place ``since`` or later."""
    since: Order
    """The lowest place of the batch in the order of changes.

    Earlier changes matter only through the values that they gave to rows by this place.
    """


def known_of(columns: TableColumns, changes: pa.Table, truncations: Truncations, facts: Facts) -> Known:
    """Return everything that decides the effect of a batch on its keys.

    Args:
        columns: Columns of the table.
        changes: The batch's changes with a key.
        truncations: The batch's truncations.
        facts: Reads what is stored.
    """
    first = min(truncations, default=None)
    lowest: dict[Key, Order] = {}
    for key, at in zip(keys_of(changes, columns.keys), changes[POSITION].to_pylist(), strict=True):
        lowest[key] = min(at, lowest.get(key, at))
    if first is not None:
        keys = [*lowest, *facts.keys_after(first)]
        lowest = {key: min(first, lowest.get(key, first)) for key in keys}
    since = min(lowest.values(), default=LOWEST)
    stored, past = facts.versions(lowest, since), facts.past(lowest, since)
    earlier = min(_overwritten_later(stored, columns.keys, lowest), default=since)
    if earlier < since:
        stored = facts.versions(lowest, earlier)
    late = keys_after(stored, columns.keys, lowest.__getitem__)
    places = zip(keys_of(past, columns.keys), past[POSITION].to_pylist(), strict=True)
    late |= {key for key, at in places if at >= lowest[key]}
    past = facts.past(late, LOWEST) if late else past.slice(0, 0)
    return Known(changes, stored, past, {**facts.truncations(since), **truncations}, since)


class Outcome(NamedTuple):
    """The effect of a batch: versions of rows for the MERGE, and changes to record beside the table."""

    source: pa.Table
    """The versions to write or to delete, for a MERGE by key and place."""
    lost: pa.Table
    """The changes to record beside the table, because its versions do not show them."""


def outcome(columns: TableColumns, tracked: frozenset[str] | None, known: Known) -> Outcome:
    """Return the effect of a batch on a table that keeps all versions of its rows.

    Args:
        columns: Columns of the table.
        tracked: Columns whose change opens a new version; None for all.
        known: All that is known of the keys.
    """
    names = [*columns.keys, *columns.others]
    tables = [known.changes, known.stored, known.past]
    rows = pa.concat_tables([table.select(names) for table in tables]).combine_chunks()
    keys = _Keys(columns)
    keys.add_changes(known.changes, 0)
    keys.add_stored(known.stored, len(known.changes))
    keys.add_changes(known.past, len(known.changes) + len(known.stored), is_remembered=True)
    values = _Values(rows)
    source, lost = _Rows(columns, HISTORY_FIELDS), _Rows(columns, CHANGE_FIELDS)
    truncations = [Event(at, time, None, True) for at, time in known.truncations.items()]
    for key in keys.found.values():
        begin, inherited = key.begin(known.since, columns.others)
        events = [*key.events, *events_of(key.stored, columns.others), *truncations]
        events = [event for event in events if event.at >= begin]
        found = history(events, _tracks(tracked), values.differ, inherited)
        _add_versions(source, key, found, columns.others, values)
        for event in found.lost:
            _add_lost(lost, key.row, event, columns.others)
    return Outcome(source.table(rows), lost.table(rows).drop_columns([EFFECT]))


def keys_after(stored: pa.Table, keys: Sequence[str], place_of: Callable[[Key], Order]) -> set[Key]:
    """Return the keys of versions that begin, change or end at a place or later.

    Args:
        stored: Versions of the table.
        keys: Columns of the key.
        place_of: Returns the place for a key.
    """
    names = (POSITION, END_POSITION, PLACES)
    hidden = zip(*(stored[name].to_pylist() for name in names), strict=True)
    return {
        key
        for key, (begun_at, ended_at, places) in zip(keys_of(stored, keys), hidden, strict=True)
        if max(begun_at or UNPLACED, ended_at or UNPLACED, *older_of(places).values()) >= place_of(key)
    }


def _overwritten_later(stored: pa.Table, keys: Sequence[str], lowest: Mapping[Key, Order]) -> list[Order]:
    """Return the places at which those versions begin that no longer show a value which the batch needs.

    The batch needs the values that a key had at the key's lowest place in the batch; ``lowest`` has this
    place of each key. Such a version began before that place, and a change at that place or later has
    overwritten a value in it. If the version had inherited the value, an earlier version still shows it.
    """
    hidden = zip(stored[POSITION].to_pylist(), stored[PLACES].to_pylist(), strict=True)
    return [
        at
        for key, (at, places) in zip(keys_of(stored, keys), hidden, strict=True)
        if at is not None
        and at < lowest[key]
        and any(place >= lowest[key] for place in older_of(places).values())
    ]


def _tracks(tracked: frozenset[str] | None) -> Callable[[str], bool]:
    return (lambda _: True) if tracked is None else tracked.__contains__


@dataclass(slots=True)
class _Key:
    row: int
    """Index of a row with the key."""
    events: list[Event] = field(default_factory=list)
    stored: list[StoredVersion] = field(default_factory=list)

    def begin(self, since: Order, columns: Sequence[str]) -> tuple[Order, Mapping[str, int]]:
        """Return the place from which on events are known, and where the values from before that place are.

        The place is the beginning of the first known version if this is below ``since``, else ``since``. The
        second result has, for each column whose value that version inherited, the number of a row with the
        value. The second result is empty if the place is ``since``.
        """
        first = min(self.stored, key=lambda version: version.at, default=None)
        if first is None or first.at >= since:
            return since, NOTHING
        older = [name for name in columns if place_in(first.places, name, first.at) < first.at]
        return first.at, dict.fromkeys(older, first.row)


class _Keys:
    """The keys of a batch, with the known events and versions of each."""

    def __init__(self, columns: TableColumns) -> None:
        self._columns = columns
        self.found: dict[Key, _Key] = {}

    def add_changes(self, changes: pa.Table, first: int, *, is_remembered: bool = False) -> None:
        """Add changes whose rows are numbered from ``first`` on.

        ``is_remembered`` means that the changes are recorded beside the table already.
        """
        others = self._columns.others
        names = (POSITION, TIME, OPERATION, ABSENT)
        places, times, operations, absent = (changes[name].to_pylist() for name in names)
        for number, key in enumerate(keys_of(changes, self._columns.keys)):
            row = first + number
            values = None
            if operations[number] != Operation.DELETE:
                values = dict.fromkeys(others, row)
                for name in absent[number] or ():
                    values.pop(name, None)
            event = Event(places[number], times[number], values, is_remembered)
            self.found.setdefault(key, _Key(row)).events.append(event)

    def add_stored(self, stored: pa.Table, first: int) -> None:
        """Add versions of the table whose rows are numbered from ``first`` on."""
        names = (POSITION, START_AT, PLACES, END_POSITION, END_AT)
        hidden = zip(*(stored[name].to_pylist() for name in names), strict=True)
        keyed = zip(keys_of(stored, self._columns.keys), hidden, strict=True)
        for row, (key, (at, start, places, ended_at, end)) in enumerate(keyed, first):
            # A row that the table had before it was a change table has no position.
            version = StoredVersion(row, at or UNPLACED, start, older_of(places), ended_at, end)
            self.found.setdefault(key, _Key(row)).stored.append(version)


class _Values:
    """Compares values of rows by numbers: each different value of a column has a number of its own."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self._codes: dict[str, list[int]] = {}

    def differ(self, column: str, one: int | None, other: int | None) -> bool:
        """Return whether two rows, by their numbers, differ in a column; None stands for a row of nulls."""
        codes = self._codes.get(column)
        if codes is None:
            codes = self._codes[column] = _codes(self._rows[column])
        return (-1 if one is None else codes[one]) != (-1 if other is None else codes[other])


def _codes(column: pa.ChunkedArray) -> list[int]:
    """Return a number for each value of a column: equal numbers for equal values, -1 for null."""
    if pa.types.is_nested(column.type):
        numbers: dict[str, int] = {}
        return [
            -1 if value is None else numbers.setdefault(repr(value), len(numbers))
            for value in column.to_pylist()
        ]
    encoded = column.combine_chunks().dictionary_encode()
    chunks = encoded.chunks if isinstance(encoded, pa.ChunkedArray) else [encoded]
    return [number for chunk in chunks for number in chunk.indices.fill_null(-1).to_pylist()]


class _Rows:
    """Collects new rows. Values come from other rows, by number; hidden columns get their values directly."""

    def __init__(self, columns: TableColumns, hidden: Sequence[pa.Field]) -> None:
        self._columns = columns
        self._fields = [*hidden, pa.field(EFFECT, pa.string())]
        self._keys: list[int] = []
        self._taken: dict[str, list[int | None]] = {name: [] for name in columns.others}
        self._hidden: list[tuple[Any, ...]] = []

    def add(self, key: int, values: Mapping[str, int], *hidden: Any) -> None:
        """Add a row; ``key`` and ``values`` are numbers of the rows that have its key and its values."""
        self._keys.append(key)
        for name, numbers in self._taken.items():
            numbers.append(values.get(name))
        self._hidden.append(hidden)

    def table(self, rows: pa.Table) -> pa.Table:
        """Return the added rows as a table; their values are taken from ``rows``."""
        taken = {name: rows[name].take(pa.array(self._keys, pa.int64())) for name in self._columns.keys}
        for name, numbers in self._taken.items():
            taken[name] = rows[name].take(pa.array(numbers, pa.int64()))
        columns: Iterable[Sequence[Any]] = zip(*self._hidden, strict=True) if self._hidden else ()
        values = list(columns) or [()] * len(self._fields)
        for hidden, found in zip(self._fields, values, strict=True):
            taken[hidden.name] = pa.array(found, hidden.type)
        return pa.table(taken)


def _add_versions(source: _Rows, key: _Key, found: History, others: Sequence[str], values: _Values) -> None:
    """Add to ``source`` the versions of a key's row that the MERGE has to write or to delete.

    It writes the versions in ``found`` that the table lacks or has differently, and deletes those that only
    the table has.
    """
    stored = {version.at: version for version in key.stored}
    for version in found.versions:
        old = stored.pop(version.at, None)
        places = version.later_places(others)
        if old is not None and _is_as_stored(version, places, old, others, values):
            continue
        hidden = (version.at, version.ended_at, older_text(places), version.start, version.end)
        source.add(key.row, version.values, *hidden, Effect.FINAL)
    for old in stored.values():
        source.add(key.row, {}, old.at, old.ended_at, None, old.start, old.end, Effect.DELETE)


def _is_as_stored(
    version: Version,
    places: Mapping[str, Order],
    old: StoredVersion,
    others: Sequence[str],
    values: _Values,
) -> bool:
    is_equal = (version.ended_at, version.start, version.end) == (old.ended_at, old.start, old.end)
    return (
        is_equal
        and places == old.places
        and not any(values.differ(name, version.values.get(name), old.row) for name in others)
    )


def _add_lost(lost: _Rows, key: int, event: Event, others: Sequence[str]) -> None:
    if event.values is None:
        lost.add(key, {}, event.at, str(Operation.DELETE), None, event.time, None)
        return
    absent = [name for name in others if name not in event.values] or None
    lost.add(key, event.values, event.at, str(Operation.UPDATE), absent, event.time, None)
