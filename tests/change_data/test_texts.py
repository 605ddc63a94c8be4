"""JSON and times of change data."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.change_data.json_text import parse, show, text_of
from pyspark_rocketmq.change_data.mysql_types import scaled
from pyspark_rocketmq.change_data.times import (
    OutOfRange,
    Unreadable,
    clock,
    day,
    moment,
    parse_clock,
    parse_date,
    parse_moment,
    time_text,
    utc_text,
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.decimals(allow_nan=False, allow_infinity=False).filter(lambda value: "." in str(value)),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(value=JSON)
def test_json_is_written_as_it_was_read(value: Any) -> None:
    """K6: facts 29, 30: no number passes through a float."""
    assert parse(show(value)) == value
    json.loads(show(value))


@pytest.mark.parametrize("text", ["18446744073709551616", "1.10000000000000000001", "1E+400", "-0.10"])
def test_digits_of_numbers_stay(text: str) -> None:
    """K6: fact 30: orjson is silently a float above 2^64 - 1, and for decimals."""
    assert show(parse(text)) == text


@pytest.mark.parametrize(
    "text", ["NaN", "Infinity", "-Infinity", '"\\ud800"', "", "1 2", b"\xff", "9" * 5000]
)
def test_what_is_no_json_is_refused(text: str | bytes) -> None:
    """K6: what cannot be understood is a bad change."""
    with pytest.raises(ValueError, match=r"."):
        parse(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"\x00\xff", '"AP8="'),
        (date(2026, 1, 2), '"2026-01-02"'),
        (datetime(2026, 1, 2, 3, 4, 5), '"2026-01-02T03:04:05"'),
        (datetime(2026, 1, 2, 3, 4, 5, 6, timezone(timedelta(hours=8))), '"2026-01-01T19:04:05.000006Z"'),
        ((Decimal("1.10"), None), "[1.10,null]"),
        (float("nan"), '"NaN"'),
        (float("-inf"), '"-Infinity"'),
        (0.1, "0.1"),
    ],
)
def test_values_of_changes_have_one_text(value: Any, text: str) -> None:
    """K6: key, before and after are JSON."""
    assert show(value) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("0E-30", f"0.{'0' * 30}"),
        ("-1.00E-7", "-0.000000100"),
        ("12.50", "12.50"),
        ("7", "7"),
        ("1E-2000000", "1E-2000000"),
    ],
)
def test_decimals_in_columns_of_text_are_those_of_the_database(number: str, text: str) -> None:
    """K3: fact 29: decimal(65,30), which no type holds, and decimals without a type."""
    assert text_of(Decimal(number)) == text


def test_other_values_are_refused() -> None:
    with pytest.raises(TypeError, match="set"):
        show({1})


@given(value=st.datetimes())
def test_clocks_and_moments_are_exact(value: datetime) -> None:
    """K6: facts 32, 33: to the microsecond, over the years 1 to 9999."""
    micros = (value - datetime(1970, 1, 1)) // timedelta(microseconds=1)

    assert clock(micros) == value
    assert moment(micros) == value.replace(tzinfo=UTC)
    assert day(micros // 86_400_000_000) == value.date()
    assert parse_clock(utc_text(value)) == value
    assert parse_moment(utc_text(value.replace(tzinfo=UTC))) == value.replace(tzinfo=UTC)


@pytest.mark.parametrize("micros", [2**63 - 1, -(2**63), 10**30])
def test_what_python_cannot_hold_is_out_of_range(micros: int) -> None:
    """K6: fact 34: never a wrapped number."""
    for read in (clock, moment, day):
        with pytest.raises(OutOfRange):
            read(micros)


@pytest.mark.parametrize(
    "text",
    [
        "infinity",
        "-infinity",
        "-5877611-06-21Z",
        "-0043-03-15T12:00:00Z",
        "0000-03-15T12:00:00Z",
        "0000-02-29",
        "+10000-01-01",
        "10000-01-01 00:00:00",
    ],
)
def test_texts_out_of_range_are_known(text: str) -> None:
    """K6: fact 34: as Debezium writes infinity, 44 BC and 1 BC, and as MySQL writes the year 0."""
    with pytest.raises(OutOfRange):
        parse_date(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026",
        "2026-02-30",
        "0000-02-30",
        "0000-00-00",
        "2026-01-01 24:61",
        "20260101",
        "x2026-01-01",
        "\uff12026-01-01",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    """K6: fact 41: never a guess."""
    with pytest.raises(ValueError, match=r".") as caught:
        parse_date(text)
    assert not isinstance(caught.value, OutOfRange)


def test_moment_near_the_end_of_time_is_out_of_range_in_utc() -> None:
    """K6: fact 34."""
    with pytest.raises(OutOfRange):
        parse_moment("9999-12-31 23:59:59", timezone(-timedelta(hours=1)))


def test_moment_without_a_zone_needs_one() -> None:
    """K6: fact 32."""
    with pytest.raises(ValueError, match="names no time zone"):
        parse_moment("2026-01-01 00:00:00")


@pytest.mark.parametrize(
    ("micros", "text"),
    [(0, "00:00:00"), (86_399_123_456, "23:59:59.123456"), (-3_020_399_000_000, "-838:59:59")],
)
def test_times_of_day_are_texts(micros: int, text: str) -> None:
    """K6: fact 33: MySQL's TIME has up to 838 hours."""
    assert time_text(micros) == text


@pytest.mark.parametrize("precision", [None, 1000])
@pytest.mark.parametrize("point", ["", ".00"], ids=["whole", "scaled"])
def test_a_decimal_has_at_most_a_hundred_digits(precision: int | None, point: str) -> None:
    """K6: PostgreSQL's numeric may have 1,000; however the value is written."""
    assert scaled(Decimal("9" * 98 + point), precision, 2) == Decimal("9" * 98)
    with pytest.raises(Unreadable, match=r"is not a decimal of"):
        scaled(Decimal("9" * 99 + point), precision, 2)
