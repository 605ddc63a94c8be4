"""Turns decoded records into Arrow's structs. Values that pyarrow would change (1.5 to 1) are refused."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

Fits = Callable[[Any], bool]

_MISFITS: Final = (pa.ArrowException, TypeError, ValueError, OverflowError)
_INFINITE: Final = {16: 65520.0, 32: 3.4028235677973366e38, 64: float("inf")}
"""Smallest number that becomes infinite in a float of 16, 32 or 64 bits."""
_EXACT: Final = 2.0**53
"""Number from which on not all whole numbers are exact as a float: neighbours have the same float."""
_NANOS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
"""Number of nanoseconds in each of Arrow's units of time."""
_LISTS: Final = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)


def as_structs(values: list[Any], reasons: list[str | None], into: pa.StructType) -> pa.Array:
    """Return records as structs of type ``into``; a record that does not fit becomes null.

    Both lists are changed for such a record: ``values`` gets None at its index, and ``reasons`` the reason.
    """
    fits = _fits(into)
    if fits is None or all(map(fits, values)):
        try:
            return pa.array(values, into)
        except _MISFITS:
            pass
    for at, value in enumerate(values):
        try:
            values[at] = plain = _plain(value)
        except RecursionError:
            # Too deep for a search: whether it fits must not depend on the other records.
            plain = value
        misfit = _misfit(plain, into, fits)
        if misfit is not None:
            values[at] = None
            reasons[at] = f"The body's record does not fit the columns: {misfit}"
    return pa.array(values, into)


def _misfit(value: Any, into: pa.StructType, fits: Fits | None) -> str | None:
    if fits is not None and not fits(value):
        unfit = [
            field
            for field in into
            if (fits_one := _fits(field.type)) is not None and not fits_one(value.get(field.name))
        ]
        reason = f"the value of {', '.join(field.name for field in unfit)} would change."
        if any(_has_time(field.type) for field in unfit):
            reason += (
                " A column of times takes only times that are whole in its unit: declare a number as int64, "
                "text as string, a finer time in nanoseconds."
            )
        return reason
    try:
        pa.array([value], into)
    except _MISFITS as misfit:
        return str(misfit)
    return None


@lru_cache(maxsize=1024)
def _fits(kind: pa.DataType) -> Fits | None:
    """Return a function that returns whether pyarrow would keep a value of the type ``kind`` as it is.

    Return None for a type whose unfit values pyarrow itself refuses.
    """
    for is_kind, check_of in _CHECKS:
        if is_kind(kind):
            return check_of(kind)
    return None


def _has_time(kind: pa.DataType) -> bool:
    return pa.types.is_temporal(kind) or any(_has_time(kind.field(at).type) for at in range(kind.num_fields))


def _is_whole(value: Any) -> bool:
    return (
        value is None
        or type(value) is int
        or (isinstance(value, float) and value.is_integer() and abs(value) < _EXACT)
    )


def _is_number(infinite: float) -> Fits:
    def fits(value: Any) -> bool:
        if not isinstance(value, float):
            return type(value) is not bool
        return not infinite <= abs(value) < float("inf")

    return fits


def _is_day(value: Any) -> bool:
    return value is None or (isinstance(value, dt.date) and not isinstance(value, dt.datetime))


# Times of pandas, which are Python's times, too, have nanoseconds.


def _is_time(of: type[dt.datetime | dt.time], unit: int) -> Fits:
    def fits(value: Any) -> bool:
        return value is None or (
            isinstance(value, of)
            and (value.microsecond * 1_000 + getattr(value, "nanosecond", 0)) % unit == 0
        )

    return fits


def _is_duration(unit: int) -> Fits:
    def fits(value: Any) -> bool:
        return value is None or (
            isinstance(value, dt.timedelta)
            and (value.microseconds * 1_000 + getattr(value, "nanoseconds", 0)) % unit == 0
        )

    return fits


def _fits_struct(kind: pa.StructType) -> Fits | None:
    checks = [(field.name, fits) for field in kind if (fits := _fits(field.type)) is not None]
    if not checks:
        return None

    def fits_all(value: Any) -> bool:
        return not isinstance(value, dict) or all(fits(value.get(name)) for name, fits in checks)

    return fits_all


def _is_list(kind: pa.DataType) -> bool:
    return any(is_list(kind) for is_list in _LISTS)


def _fits_list(kind: pa.ListType) -> Fits | None:
    fits = _fits(kind.value_type)
    if fits is None:
        return None
    # Arrow takes bytes for a list of numbers, and these for times.
    return lambda value: not isinstance(value, list | bytes) or all(map(fits, value))


def _fits_map(kind: pa.MapType) -> Fits | None:
    fits_key, fits_item = _fits(kind.key_type), _fits(kind.item_type)
    if fits_key is None and fits_item is None:
        return None

    def fits(value: Any) -> bool:
        return not isinstance(value, dict) or all(
            (fits_key is None or fits_key(key)) and (fits_item is None or fits_item(item))
            for key, item in value.items()
        )

    return fits


_CHECKS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], Fits | None]], ...]] = (
    (pa.types.is_struct, _fits_struct),
    (_is_list, _fits_list),
    (pa.types.is_map, _fits_map),
    (pa.types.is_dictionary, lambda kind: _fits(kind.value_type)),
    (pa.types.is_integer, lambda _: _is_whole),
    (pa.types.is_floating, lambda kind: _is_number(_INFINITE[kind.bit_width])),
    (pa.types.is_date, lambda _: _is_day),
    (pa.types.is_timestamp, lambda kind: _is_time(dt.datetime, _NANOS[kind.unit])),
    (pa.types.is_time, lambda kind: _is_time(dt.time, _NANOS[kind.unit])),
    (pa.types.is_duration, lambda kind: _is_duration(_NANOS[kind.unit])),
)
"""Kinds of Arrow's types, each with a function that returns the check of its values."""


def _plain(value: Any) -> Any:
    """Return a value with its UUIDs as text, since Arrow has no type for UUIDs."""
    match value:
        case UUID():
            return str(value)
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case list():
            return [_plain(each) for each in value]
        case _:
            return value
