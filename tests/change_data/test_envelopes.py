"""Envelopes by name, and their options."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pyspark_rocketmq.change_data.change import ChangeMessage
from pyspark_rocketmq.change_data.envelopes import ENVELOPES, envelope_of
from pyspark_rocketmq.errors import OptionError
from tests.change_data.samples import flat, one, reason

ZONE = {"source_time_zone": "UTC"}


def row(options: dict[str, Any], values: dict[str, str], types: dict[str, str]) -> Any:
    body = flat(data=[{"id": "1", **values}], mysqlType={"id": "int", **types})
    return envelope_of("canal", ZONE | options).decode(ChangeMessage(body))


@pytest.mark.parametrize("name", ENVELOPES)
def test_envelope_survives_a_task_boundary(name: str) -> None:
    """K6: tasks decode."""
    options = {"source_time_zone": "Asia/Shanghai"} if name.startswith("canal") else {}
    envelope = envelope_of(name, {**options, "keys": ["id"]})

    assert pickle.loads(pickle.dumps(envelope)) == envelope


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("cannal", {}, "envelope='cannal' is unknown; did you mean 'canal'?"),
        ("avro", {}, "known are canal, canal-protobuf, debezium, maxwell"),
        ("canal", {}, "source_time_zone is missing"),
        ("canal", {"source_timezone": "UTC"}, "did you mean 'source_time_zone'?"),
        ("canal", {"source_time_zone": "Asia/Shanghei"}, "is not a time zone"),
        ("canal", ZONE | {"zero_dates": "nul"}, "did you mean 'null'?"),
        ("canal", ZONE | {"servers": [1]}, "an option of canal-protobuf and debezium and maxwell, not of"),
        ("canal", ZONE | {"keys": "id"}, "write the columns as a list: ['id']"),
        ("canal", ZONE | {"keys": {"shop.t": []}}, "needs the names of columns"),
        ("canal", ZONE | {"tinyint1_as_boolean": "yes"}, "needs True or False"),
        ("debezium", {"servers": [1, 1]}, "needs different numbers above 0"),
        ("debezium", {"unavailable_value": ""}, "needs a text"),
    ],
)
def test_wrong_option_is_named_with_its_remedy(name: str, options: dict[str, Any], words: str) -> None:
    """K6: errors of options."""
    with pytest.raises(OptionError) as caught:
        envelope_of(name, options)

    assert words in str(caught.value)


def test_all_problems_are_named_together() -> None:
    """K6: errors of options."""
    with pytest.raises(OptionError) as caught:
        envelope_of("canal", {"binary": "hexa", "zero_dates": "x"})

    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("zone", ["Asia/Shanghai", "+08:00", "+0800"])
def test_timestamp_is_in_the_zone_of_the_source_and_datetime_in_none(zone: str) -> None:
    """K6: fact 32: Canal writes a TIMESTAMP in the zone of its JVM."""
    values = {"ts": "2026-01-02 03:04:05", "dt": "2026-01-02 03:04:05"}

    found = one(row({"source_time_zone": zone}, values, {"ts": "timestamp", "dt": "datetime"})).row
    assert found["ts"] == datetime(2026, 1, 1, 19, 4, 5, tzinfo=UTC)
    assert found["ts"].utcoffset() == timedelta(0)
    assert found["dt"] == datetime(2026, 1, 2, 3, 4, 5)


def test_negative_offset_is_west() -> None:
    """K6: fact 32."""
    values, types = {"ts": "2026-01-02 03:04:05"}, {"ts": "timestamp"}

    found = one(row({"source_time_zone": "-05:30"}, values, types)).row
    assert found["ts"] == datetime(2026, 1, 2, 8, 34, 5, tzinfo=UTC)


def test_zero_dates_are_null_the_epoch_or_bad() -> None:
    """K6: fact 31: zero_dates."""
    values = {"ts": "0000-00-00 00:00:00", "dt": "2026-02-00"}
    types = {"ts": "timestamp", "dt": "date"}

    assert one(row({}, values, types)).row["ts"] is None
    epoch = one(row({"zero_dates": "epoch"}, values, types)).row
    assert (epoch["ts"].timestamp(), epoch["dt"].isoformat()) == (0, "1970-01-01")
    assert "zero_dates='null'" in reason(row({"zero_dates": "error"}, values, types))


def test_tinyint1_is_a_number_or_a_boolean() -> None:
    """K6: fact 35: tinyint1_as_boolean."""
    values, types = {"f": "5"}, {"f": "tinyint(1)"}

    assert one(row({}, values, types)).row["f"] == 5
    assert one(row({"tinyint1_as_boolean": True}, values, types)).row["f"] is True
    assert one(row({"tinyint1_as_boolean": True}, values, {"f": "tinyint(4)"})).row["f"] == 5


def test_binary_is_latin_1_hex_or_base64() -> None:
    """K6: fact 37: binary."""
    for form, text in (("latin-1", "\x00ÿ"), ("hex", "00ff"), ("base64", "AP8=")):
        assert one(row({"binary": form}, {"b": text}, {"b": "blob"})).row["b"] == b"\x00\xff"
    assert "option binary" in reason(row({}, {"b": "漢"}, {"b": "blob"}))


def test_keys_are_named_for_all_tables_or_for_one() -> None:
    """K6: fact 17: keys."""
    values, types = {"a": "2"}, {"a": "int"}

    assert one(row({"keys": ["a"]}, values, types)).key == {"a": 2}
    assert one(row({"keys": {"shop.t": ["a", "id"]}}, values, types)).key == {"a": 2, "id": 1}
    assert one(row({"keys": {"shop.u": ["a"]}}, values, types)).key == {"id": 1}
