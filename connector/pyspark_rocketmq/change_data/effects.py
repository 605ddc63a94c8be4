"""The effect of changes on a row, in whatever order they come.

Rule 1: the order is that of the source. Each change has a *place* in one order (:func:`order_of`): its
position in the source's log, then its offset in the queue. A change never undoes one that comes after it in
this order.
Rule 2: nothing depends on how changes arrive. The state of a key is the highest deletion, and per column the
value with the highest place. Combining states is associative, commutative and idempotent: any order of
arrival, any repetition and any batches give the same state.
Rule 3: values stay where they are. A :class:`Fact` has only the number of the row that has its values. So
values are never copied here, and keep their types.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from string import ascii_lowercase
from types import MappingProxyType
from typing import Final, NamedTuple

from pyspark_rocketmq.errors import OffsetError

Order = str
"""A place in the order of a table's changes, as a text: of two texts, the higher one is the later place.

Tables store this text, because Delta has statistics for texts, and all engines compare texts in the same way.
"""
LOWEST: Final[Order] = ""
"""The place below all others: that of a value which no message has had yet."""
OTHERS: Final = "*"
"""Key in :attr:`Fact.older` that stands for all columns which have no entry of their own there."""
NONE_OLDER: Final[Mapping[str, Order]] = MappingProxyType({})
_TIMED: Final = 2
"""First number after the position in a place that has a time. A place without a time has 0 or 1 there."""
_PARTS, _RANKS = ".", " "
"""Separators within and between tuples. The second one sorts lower, so a shorter tuple is the lower one."""
_MOST_DIGITS: Final = len(ascii_lowercase)


def order_of(
    position: Sequence[int] | None,
    queue_offset: int,
    number: int,
    *,
    is_snapshot: bool = False,
    time_ms: int | None = None,
) -> Order:
    """Return a change's place in the order of its table.

    The position decides first. Of changes with equal positions, rows that a snapshot read come before all
    others; then the order of the queue decides. Without positions, only the order of the queue decides. If
    there is a time, it decides before the order of the queue: a topic that is created again gives its offsets
    a second time.

    Args:
        position: Position in the log of the source; None if the message has none.
        queue_offset: Offset of the change's message.
        number: Number of the change in its message.
        is_snapshot: Whether a snapshot read the row, perhaps while others changed it.
        time_ms: Time of a snapshot's row without a position, in milliseconds since 1970. Such a place is
            above all those without position and time, which tables have from earlier releases.

    Raises:
        OffsetError: If a number is negative or has more than 26 digits.
    """
    place = [int(not is_snapshot or position is None), queue_offset, number]
    if position is None and time_ms is not None:
        place = [_TIMED, time_ms, queue_offset, number]
    return f"{_text_of(position or ())}{_RANKS}{_text_of(place)}"


def parts_in(place: Order) -> int | None:
    """Return how many parts (numbers) the position in a place has; 0 without a position.

    None if the text was cut off within the position, as texts in Delta's statistics may be.
    """
    position, rank, _ = place.partition(_RANKS)
    if not rank:
        return None
    return position.count(_PARTS) + 1 if position else 0


def _text_of(parts: Iterable[int]) -> str:
    return _PARTS.join(map(_digits, parts))


def _digits(number: int) -> str:
    """Return a letter for the number of digits, and the digits: ``a7`` for 7, ``b12`` for 12."""
    digits = str(number)
    if number < 0 or len(digits) > _MOST_DIGITS:
        raise OffsetError(
            f"A position has the part {number}, which is negative or longer than {_MOST_DIGITS} digits. "
            "The envelope must give positions of plain numbers."
        )
    return ascii_lowercase[len(digits) - 1] + digits


class Fact(NamedTuple):
    """Something that is known of one key: a change, or the row that the table has."""

    row: int
    """Number of the row that has the values; without meaning for a deletion."""
    at: Order
    """Place of the values; ``LOWEST`` for a deletion."""
    deleted_at: Order = LOWEST
    """Place of the highest deletion that the fact includes; ``LOWEST`` if it includes none."""
    older: Mapping[str, Order] = NONE_OLDER
    """Places of those values that are older than ``at``, by column; ``LOWEST`` for a missing value."""


class RowState(NamedTuple):
    """The state of one key that its facts result in: a row, or a deletion."""

    at: Order
    """Place of the newest value, or of the deletion if the row is deleted."""
    is_deleted: bool
    row: int | None
    """Number of the row with the values of all columns not in ``elsewhere``; None if no values are kept."""
    elsewhere: Mapping[str, int | None]
    """Numbers of the rows with the values of other columns, by column; None for a value that is missing."""
    older: Mapping[str, Order]
    """Places of those values that are older than ``at``, by column; ``LOWEST`` for a missing value."""
    deleted_at: Order
    """Place of the highest deletion; ``LOWEST`` if none is known."""


def combine(
    facts: Iterable[Fact], columns: Sequence[str], *, floor: Order = LOWEST, keeps_deleted: bool = False
) -> RowState:
    """Return the state of a key (a row, or a deletion) that results from the key's facts.

    Args:
        facts: Facts in any order; any of them may come several times.
        columns: Columns of the table, without those of the key.
        floor: Place of a deletion that is known from elsewhere, such as a truncation.
        keeps_deleted: Whether a deleted row keeps the values that it had.
    """
    found = list(facts)
    deleted_at = max((fact.deleted_at for fact in found), default=LOWEST)
    deleted_at = max(deleted_at, floor)
    living = [fact for fact in found if fact.at > deleted_at]
    if living:
        return _row_of(living, columns, deleted_at)
    if not keeps_deleted:
        return RowState(deleted_at, True, None, {}, NONE_OLDER, deleted_at)
    valued = [fact for fact in found if fact.at]
    if not valued:
        return RowState(deleted_at, True, None, {}, {OTHERS: LOWEST}, deleted_at)
    row = _row_of(valued, columns, LOWEST)
    places = {name: place_in(row.older, name, row.at) for name in columns}
    older = compressed(places, deleted_at)
    return row._replace(at=deleted_at, is_deleted=True, older=older, deleted_at=deleted_at)


def place_in(older: Mapping[str, Order], column: str, at: Order) -> Order:
    """Return the place of a column's value: the column's own place in ``older``, else ``at``, the row's."""
    return older.get(column, older.get(OTHERS, at)) if older else at


def _row_of(facts: Sequence[Fact], columns: Sequence[str], deleted_at: Order) -> RowState:
    """Return the state of a row: the newest value of each column, without values older than the deletion."""
    # A stored row with the same place as a change contains it.
    newest = max(facts, key=lambda fact: (fact.at, not fact.older))
    if not newest.older:
        return RowState(newest.at, False, newest.row, {}, NONE_OLDER, deleted_at)
    elsewhere: dict[str, int | None] = {}
    places: dict[str, Order] = {}
    for name in columns:
        place, row = max((place_in(fact.older, name, fact.at), fact.row) for fact in facts)
        if place <= deleted_at:
            place = LOWEST
            if place_in(newest.older, name, newest.at):
                elsewhere[name] = None
        elif row != newest.row:
            elsewhere[name] = row
        places[name] = place
    return RowState(newest.at, False, newest.row, elsewhere, compressed(places, newest.at), deleted_at)


def compressed(places: Mapping[str, Order], at: Order) -> Mapping[str, Order]:
    """Return the places by column in the shorter of two forms, both of which :func:`place_in` reads.

    The first form leaves out the columns with the place ``at``. The second form has the entry ``OTHERS`` with
    the most frequent other place, and leaves out the columns with that place. It names all other columns,
    even those with the place ``at``.
    """
    older = {name: place for name, place in places.items() if place != at}
    if len(older) < 2:
        return older
    [(commonest, count)] = Counter(older.values()).most_common(1)
    others = {name: place for name, place in places.items() if place != commonest}
    return {**others, OTHERS: commonest} if len(others) + 1 < len(older) and count > 1 else older


def older_text(older: Mapping[str, Order]) -> str | None:
    """Return the places of older values, by column, as the JSON text that tables store; None without any."""
    return json.dumps(older, ensure_ascii=False, sort_keys=True, separators=(",", ":")) if older else None


def older_of(text: str | None) -> Mapping[str, Order]:
    """Return the places of older values, by column, from a text of :func:`older_text`; empty for None."""
    return NONE_OLDER if text is None else json.loads(text)
