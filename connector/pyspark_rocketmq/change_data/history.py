"""The versions of a row, in whatever order its changes come.

A *place* is where an event comes in the order of its table's changes (``effects.Order``). A *tracked* column
is one whose change opens a new version.

Rule 1: the versions of a key depend only on the set of its events: changes, deletions, truncations. These
are sorted by their places; it makes no difference how or when they came.
Rule 2: a change opens a version if there is none, or if it changes the value of a tracked column. Any other
change belongs to the version that contains its place, and its values are the version's from then on.
Rule 3: a value that a change lacks is taken over from the version before. After a deletion, or without a
version before, the value is missing.
Rule 4: a version is a summary of events. An event that cannot be derived from the stored versions again is
*lost* in them. Callers must record it elsewhere; then it is *remembered*. A change that comes late may have
to split a version, and all the version's events are needed for that. If the record of an event is deleted,
only its values in the versions remain.
Rule 5: no version ends before it starts. Times may go back from one place to the next: a row of a later
snapshot may have a low place, and changes of a long transaction have late places. A version that would end
earlier ends at the time of its start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Final, NamedTuple

from pyspark_rocketmq.change_data.effects import LOWEST, NONE_OLDER, Order, compressed, place_in

NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
Differ = Callable[[str, int | None, int | None], bool]
"""Returns whether two rows, by their numbers, differ in a column; None stands for a row of nulls."""


class Event(NamedTuple):
    """A change of a key, its deletion, or a truncation of the table."""

    at: Order
    """Place in the order of the table's changes."""
    time: datetime | None
    """Time in the source; None if it is unknown."""
    values: Mapping[str, int] | None
    """Numbers of the rows with the values that the change gives, by column.

    None for a deletion and a truncation.
    """
    is_remembered: bool = False
    """Whether the event is recorded elsewhere, with all its values."""


@dataclass(slots=True)
class Version:
    """One state of a key's row: from the change that opened the version to the event that ended it."""

    at: Order
    """Place of the change that opened the version."""
    start: datetime | None
    values: dict[str, int]
    """Numbers of the rows with the values at the version's end, by column. Missing values are left out."""
    places: dict[str, Order]
    """Place of the change that gave each value. Missing and inherited values are left out."""
    ended_at: Order | None = None
    """Place of the change or deletion that ended the version; None for the current version."""
    end: datetime | None = None
    events: list[Event] = field(default_factory=list)
    """The version's changes: the one that opened it, then those that belong to it without opening another."""

    def later_places(self, columns: Sequence[str]) -> Mapping[str, Order]:
        """Return the place of each column's value, in the short form of ``effects.compressed``.

        A column without a place has ``LOWEST``.
        """
        if len(self.places) == len(columns) and all(place == self.at for place in self.places.values()):
            return NONE_OLDER
        return compressed({name: self.places.get(name, LOWEST) for name in columns}, self.at)

    def lost(self) -> Iterator[Event]:
        """Yield the lost events of the version (rule 4), except the remembered ones.

        All events of the version are lost except the change that opened it. That one is lost, too, once a
        later change has replaced one of its values.
        """
        for event in self.events:
            is_shown = event.at == self.at and all(
                self.places[name] == self.at for name in event.values or ()
            )
            if not is_shown and not event.is_remembered:
                yield event


class History(NamedTuple):
    """All versions of a key, and the key's lost events."""

    versions: list[Version]
    """The versions, sorted by their places."""
    lost: list[Event]
    """The lost events that are not remembered yet, and must be recorded elsewhere."""


def history(
    events: Iterable[Event],
    tracked: Callable[[str], bool],
    differ: Differ,
    inherited: Mapping[str, int] = NOTHING,
) -> History:
    """Return the versions that result from the events of one key, and the lost events to be recorded.

    Args:
        events: Events in any order; any of them may come several times.
        tracked: Returns whether a change of a column opens a version.
        differ: Compares values.
        inherited: Numbers of the rows with the values before the first event, by column.
    """
    walk = _Walk(tracked, differ, inherited)
    for event in _in_order(events):
        walk.add(event)
    lost = [event for version in walk.versions for event in version.lost()]
    return History(walk.versions, walk.in_vain + lost)


@dataclass(slots=True)
class _Walk:
    """Builds versions from events, which are added in their order."""

    tracked: Callable[[str], bool]
    differ: Differ
    inherited: Mapping[str, int]
    """Numbers of the rows with the values that the next version takes over, by column."""
    versions: list[Version] = field(default_factory=list)
    in_vain: list[Event] = field(default_factory=list)
    """Deletions that are not remembered yet, and that no version shows.

    Either no version ended at the deletion's place, or that version's end has another time (rule 5).
    """
    _current: Version | None = None
    _time: datetime | None = None

    def add(self, event: Event) -> None:
        """Add the next event. If its time is unknown, the time of the event before it is used."""
        self._time = self._time if event.time is None else event.time
        if event.values is None:
            self._delete(event)
            return
        current = self._current
        if current is None or self._opens_another(current, event.values):
            current = self._open(event.at, event.values)
        else:
            _update(current, event.at, event.values, self.differ)
        current.events.append(event)

    def _delete(self, event: Event) -> None:
        current = self._current
        if current is not None:
            self._end(current, event.at)
        if not event.is_remembered and (current is None or current.end != self._time):
            self.in_vain.append(event)
        self._current, self.inherited = None, NOTHING

    def _end(self, version: Version, at: Order) -> None:
        start, time = version.start, self._time
        version.ended_at, version.end = at, time if start is None or time is None else max(start, time)

    def _opens_another(self, version: Version, values: Mapping[str, int]) -> bool:
        return any(
            self.tracked(name) and self.differ(name, version.values.get(name), row)
            for name, row in values.items()
        )

    def _open(self, at: Order, values: Mapping[str, int]) -> Version:
        if self._current is not None:
            self._end(self._current, at)
        # The version shares this dictionary: the next one inherits the values that it gets later, too.
        known = {**self.inherited, **values}
        self._current, self.inherited = Version(at, self._time, known, dict.fromkeys(values, at)), known
        self.versions.append(self._current)
        return self._current


def _update(version: Version, at: Order, values: Mapping[str, int], differ: Differ) -> None:
    """Give a version the values of a change that belongs to it and opens no other version."""
    for name, row in values.items():
        old = version.values.get(name)
        # An inherited null may stand for a value that was never sent. Now the null itself was sent.
        is_first_null = name not in version.places and not differ(name, None, row)
        if is_first_null or differ(name, old, row):
            version.values[name] = row
            version.places[name] = at


def _in_order(events: Iterable[Event]) -> Iterator[Event]:
    """Yield events in the order of their places.

    Changes at the same place are joined, and so are deletions. A deletion comes after a change at its place.
    """
    waiting: Event | None = None
    for event in sorted(events, key=lambda event: (event.at, event.values is None)):
        if waiting is None:
            waiting = event
        elif waiting.at == event.at and (waiting.values is None) == (event.values is None):
            waiting = _joined(waiting, event)
        else:
            yield waiting
            waiting = event
    if waiting is not None:
        yield waiting


def _joined(one: Event, other: Event) -> Event:
    """Join two events at one place, which are two parts of one event, or the same event twice."""
    time = one.time if other.time is None else other.time if one.time is None else min(one.time, other.time)
    if one.values is None or other.values is None:
        return Event(one.at, time, None, one.is_remembered or other.is_remembered)
    values = {**one.values, **other.values}
    is_remembered = any(each.is_remembered and len(each.values or ()) == len(values) for each in (one, other))
    return Event(one.at, time, values, is_remembered)


class StoredVersion(NamedTuple):
    """A version as a table has it."""

    row: int
    """Number of the version's row."""
    at: Order
    start: datetime | None
    places: Mapping[str, Order]
    """Places of the columns, in the short form that :meth:`Version.later_places` returns."""
    ended_at: Order | None
    end: datetime | None


def events_of(versions: Sequence[StoredVersion], columns: Sequence[str]) -> Iterator[Event]:
    """Yield the events that can be derived from the stored versions of one key."""
    for version in versions:
        given: dict[Order, dict[str, int]] = {version.at: {}}
        if version.places:
            for name in columns:
                place = place_in(version.places, name, version.at)
                if place >= version.at:
                    given.setdefault(place, {})[name] = version.row
        else:
            given[version.at] = dict.fromkeys(columns, version.row)
        for place, values in given.items():
            is_first = place == version.at
            yield Event(place, version.start if is_first else None, values, not is_first)
        is_deleted = version.ended_at is not None and not any(
            other.at == version.ended_at for other in versions if other is not version
        )
        if is_deleted and version.ended_at is not None:
            yield Event(version.ended_at, version.end, None)
