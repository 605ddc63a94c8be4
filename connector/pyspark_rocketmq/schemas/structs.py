"""Turns decoded records into Arrow's structs and refuses values that pyarrow would change, as 1.5 to 1."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

Fits = Callable[[Any], bool]

_MISFITS: Final = (pa.ArrowException, TypeError, ValueError, OverflowError)
_MOST_FLOAT32: Final = 3.4028235677973366e38
"""Smallest number that rounds to infinity as a float of 32 bits."""
_MICROS: Final = {"s": 1_000_000, "ms": 1_000}
"""Number of microseconds in one of Arrow's units of time, for the longer units."""


def as_structs(values: list[Any], reasons: list[str | None], into: pa.StructType) -> pa.Array:
    """Return records as structs. A record that does not fit becomes null, and ``reasons`` gets the reason.

    Both lists are changed: ``values`` has None in the place of a record that does not fit.
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
        names = [
            field.name
            for field in into
            if (fits_one := _fits(field.type)) is not None and not fits_one(value.get(field.name))
        ]
        return f"the value of {', '.join(names)} would change."
    try:
        pa.array([value], into)
    except _MISFITS as misfit:
        return str(misfit)
    return None


@lru_cache(maxsize=1024)
def _fits(kind: pa.DataType) -> Fits | None:
    """Return a check that pyarrow would keep a value as it is.

    Return None for a type whose unfit values pyarrow itself refuses.
    """
    of = pa.types
    found: Fits | None = None
    if of.is_struct(kind):
        found = _fits_struct(kind)
    elif of.is_list(kind) or of.is_large_list(kind):
        found = _fits_list(kind)
    elif of.is_map(kind):
        found = _fits_map(kind)
    elif of.is_integer(kind):
        found = _is_whole
    elif of.is_float32(kind):
        found = _is_float32
    elif of.is_date(kind):
        found = _is_day
    elif (of.is_timestamp(kind) or of.is_time(kind)) and kind.unit in _MICROS:
        found = _is_in_units(_MICROS[kind.unit])
    return found


def _is_whole(value: Any) -> bool:
    return value is None or type(value) is int or (isinstance(value, float) and value.is_integer())


def _is_float32(value: Any) -> bool:
    return not isinstance(value, float) or not _MOST_FLOAT32 <= abs(value) < float("inf")


def _is_day(value: Any) -> bool:
    return not isinstance(value, dt.datetime)


def _is_in_units(micros: int) -> Fits:
    def fits(value: Any) -> bool:
        return not isinstance(value, dt.datetime | dt.time) or value.microsecond % micros == 0

    return fits


def _fits_struct(kind: pa.StructType) -> Fits | None:
    checks = [(field.name, fits) for field in kind if (fits := _fits(field.type)) is not None]
    if not checks:
        return None

    def fits_all(value: Any) -> bool:
        return not isinstance(value, dict) or all(fits(value.get(name)) for name, fits in checks)

    return fits_all


def _fits_list(kind: pa.ListType) -> Fits | None:
    fits = _fits(kind.value_type)
    return None if fits is None else lambda value: not isinstance(value, list) or all(map(fits, value))


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
