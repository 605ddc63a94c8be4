"""Dates and times of change data, exact to the microsecond. A number that is too large is an error.

Python's and Spark's dates end with the year 9999, and Python's begin with the year 1. A source has more:
MySQL's zero dates, PostgreSQL's infinity and years before Christ. For such a value the functions here raise
``OutOfRange``. The settings of the envelope turn this error into NULL or into a bad change.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - a clock without a zone
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROS_OF_DAY: Final = 86_400_000_000
_TIMESTAMP: Final = re.compile(
    r"(\d{4}-\d{2}-\d{2})(?:[ T](\d{2}:\d{2}(?::\d{2})?)(?:\.(\d{1,9}))?)?(Z|[+-]\d{2}(?::?\d{2})?)?\Z"
)
_OUT_OF_RANGE: Final = re.compile(r"-?infinity\Z|(?:[+-]\d+|\d{5,})-\d{2}-\d{2}", re.IGNORECASE)
_YEAR_0, _LEAP_YEAR = "0000", "2000"
"""Year 0, which Python lacks, and a year with the same days.

MySQL has the year 0, and Java writes 1 BC in this way.
"""


class Unreadable(ValueError):
    """A value or a message does not have the form in which its program writes it."""


MALFORMED: Final = (ValueError, ArithmeticError, RecursionError)
"""Errors that a malformed message may cause.

These are ``Unreadable``, and the errors for numbers with absurd exponents and for lists nested without end.
"""


class OutOfRange(Unreadable):
    """A date or time that the source can have, but that no Spark type can hold."""


def moment(micros: int) -> datetime:
    """Return the moment that is ``micros`` microseconds after the epoch.

    Raises:
        OutOfRange: If the moment is not within the years 1 to 9999.
    """
    return _plus(_EPOCH_UTC, micros)


def clock(micros: int) -> datetime:
    """Return the time that a clock without a zone shows ``micros`` microseconds after 1970-01-01 00:00.

    Raises:
        OutOfRange: If the time is not within the years 1 to 9999.
    """
    return _plus(_EPOCH, micros)


def day(days: int) -> date:
    """Return the day that is ``days`` after 1970-01-01.

    Raises:
        OutOfRange: If the day is not within the years 1 to 9999.
    """
    return _plus(_EPOCH, days * _MICROS_OF_DAY).date()


def micros_of(nanos: int) -> int:
    """Return nanoseconds as microseconds.

    Raises:
        ValueError: If the value has a part that microseconds cannot hold.
    """
    micros, rest = divmod(nanos, 1000)
    if rest:
        raise Unreadable("the value is exact to the nanosecond, which no Spark type holds")
    return micros


def time_text(micros: int) -> str:
    """Return a time of day, or a MySQL TIME of up to 838 hours, as ``[-]HH:MM:SS[.ffffff]``."""
    seconds, fraction = divmod(abs(micros), 1_000_000)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    sign = "-" if micros < 0 else ""
    text = f"{sign}{hours:02}:{minute:02}:{second:02}"
    return f"{text}.{fraction:06}" if fraction else text


def parse_date(text: str) -> date:
    """Parse ``YYYY-MM-DD``; ignore a time of day or a zone after it.

    Raises:
        OutOfRange: If the date is not within the years 1 to 9999.
        ValueError: If the text is no date, or if a time after it is malformed or exact to the nanosecond.
    """
    return _parse(text).date()


def parse_clock(text: str) -> datetime:
    """Parse the time that a clock without a zone showed; ignore a zone, such as Debezium's ``Z``.

    Raises:
        OutOfRange: If the time is not within the years 1 to 9999.
        ValueError: If the text is no such time, or has a part that microseconds cannot hold.
    """
    return _parse(text).replace(tzinfo=None)


def parse_moment(text: str, zone: tzinfo | None = None) -> datetime:
    """Parse a moment and return it in UTC. ``zone`` is used for a text that names no zone.

    When clocks are set back, an hour comes twice. A text does not show which of the two it means, so the
    first one is taken.

    Raises:
        OutOfRange: If the moment is not within the years 1 to 9999.
        ValueError: If the text is no moment, if it has a part that microseconds cannot hold, or if it names
            no zone and ``zone`` is None.
    """
    parsed = _parse(text)
    if parsed.tzinfo is None:
        if zone is None:
            raise Unreadable(f"{text!r} names no time zone")
        parsed = parsed.replace(tzinfo=zone)
    try:
        return parsed.astimezone(UTC)
    except OverflowError:
        raise OutOfRange(f"{text} is out of range in UTC") from None


def utc_text(value: date) -> str:
    """Return a date or a ``datetime`` in ISO 8601; one with a zone is converted to UTC and ends in ``Z``."""
    if not isinstance(value, datetime):
        return value.isoformat()
    if value.tzinfo is None:
        return value.isoformat()
    return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def _plus(start: datetime, micros: int) -> datetime:
    try:
        return start + timedelta(microseconds=micros)
    except OverflowError:
        raise OutOfRange(f"{micros} microseconds from the epoch are not within the years 1 to 9999") from None


def _parse(text: str) -> datetime:
    found = _TIMESTAMP.match(text)
    if found is None:
        if _OUT_OF_RANGE.match(text):
            raise _beyond(text)
        raise Unreadable(f"{text!r} is not a date or time")
    day_text, time_of_day, fraction, zone = found.groups()
    if fraction is not None and fraction[6:].strip("0"):
        raise Unreadable(f"{text!r} is exact to the nanosecond, which no Spark type holds")
    parts = f"{day_text}T{time_of_day or '00:00'}"
    if fraction:
        parts += f".{fraction[:6]:0<6}"
    parts += zone or ""
    if parts.startswith(_YEAR_0):
        datetime.fromisoformat(_LEAP_YEAR + parts.removeprefix(_YEAR_0))
        raise _beyond(text)
    return datetime.fromisoformat(parts)


def _beyond(text: str) -> OutOfRange:
    return OutOfRange(f"{text} is not within the years 1 to 9999")
