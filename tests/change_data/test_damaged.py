"""Messages in which one value was replaced."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.change_data.change import (
    BadChange,
    Change,
    ChangeMessage,
    Envelope,
    PassedOver,
    SchemaChange,
)
from pyspark_rocketmq.change_data.envelopes import envelope_of
from pyspark_rocketmq.sinks.change_table.carried import arrow_type, carried, carried_values
from tests.change_data.samples import recorded
from tests.change_data.test_maxwell import event

VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, -1, 2**70, 1.5, "", "x", "1", "\x00", [], [[]], [1], ["a"], {}, {"a": 1}, {"id": {}}]
)
CANAL = [json.loads(line["flat"]) for line in recorded("canal") if line["flat"]]
DEBEZIUM = [
    json.loads(line["value"])
    for name in ("schema", "plain", "flat")
    for line in recorded(f"debezium_{name}")
    if line["value"] and len(line["value"]) < 20_000
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every value."""
    yield path
    members = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, item in members:
        yield from places(item, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    """Return a copy with another value at a place."""
    if not path:
        return other
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], other)
    return copy


EXTREMES = {
    "great exponent": "1e9999999999999999999",
    "small exponent": "-1e-9999999999999999999",
    "exponent without a float": "1e999999",
    "long number": "9" * 5000,
    "infinite": "Infinity",
    "no number": "NaN",
    "lists": "[" * 900 + "]" * 900,
    "objects": '{"a":' * 450 + "1" + "}" * 450,
    "lists without end": "[" * 100_000,
    "great scale": '{"scale": 99999999999999999999999, "value": "AA=="}',
    "small scale": '{"scale": -999999999, "value": "AQ=="}',
    "half a pair": '"\\ud83d"',
}
"""Values that JSON has and nothing else holds."""
ENVELOPES = pytest.mark.parametrize(
    ("envelope", "samples"),
    [
        (envelope_of("canal", {"source_time_zone": "UTC"}), CANAL),
        (envelope_of("debezium", {}), DEBEZIUM),
        (envelope_of("maxwell", {}), [json.loads(event())]),
    ],
    ids=["canal", "debezium", "maxwell"],
)


def check(decoded: Sequence[Any]) -> None:
    """Check that there are changes, whose values can be written as text, and columns that hold them."""
    assert decoded
    for change in decoded:
        assert isinstance(change, Change | SchemaChange | PassedOver | BadChange)
        if isinstance(change, Change):
            text = carried({**change.row, **change.key}, change.types)
            assert len(text) < 1_000_000
            for type_, value in carried_values(text).values():
                pa.array([value], arrow_type(type_))


@ENVELOPES
@given(data=st.data())
def test_no_value_raises(envelope: Envelope, samples: list[Any], data: st.DataObject) -> None:
    """K6: what cannot be understood is a bad change, never an exception."""
    sample = data.draw(st.sampled_from(samples))
    path = data.draw(st.sampled_from(list(places(sample))))
    body = json.dumps(replaced(sample, path, data.draw(VALUES))).encode()

    decoded = envelope.decode(ChangeMessage(body, data.draw(st.sampled_from(["", "{}", "key", '{"id": 1}']))))
    check(decoded)


@pytest.mark.parametrize("extreme", EXTREMES)
@ENVELOPES
def test_no_extreme_value_raises(envelope: Envelope, samples: list[Any], extreme: str) -> None:
    """K6: wherever it is in a message or in its KEYS, as a value or within a text."""
    value = EXTREMES[extreme]
    for form in (value, json.dumps(value)):
        for path in places(samples[0]):
            body = json.dumps(replaced(samples[0], path, "~here~")).replace('"~here~"', form)
            check(envelope.decode(ChangeMessage(body.encode())))
        check(envelope.decode(ChangeMessage(json.dumps(samples[0]).encode(), f'{{"id": {form}}}')))


@pytest.mark.parametrize("name", ["bit", "binary", "decimal", "enum", "varchar"])
@pytest.mark.parametrize("length", ["99999999999999999999", "9" * 5000, "-1", "0", "1,99999999999999"])
def test_no_length_of_a_type_raises(name: str, length: str) -> None:
    """K6: nor does one take memory or time."""
    row = {"data": [{"id": "1", "v": "1"}], "mysqlType": {"id": "int", "v": f"{name}({length})"}}
    flat = {"type": "INSERT", "database": "d", "table": "t", "pkNames": ["id"], "gtid": "", **row}
    check(envelope_of("canal", {"source_time_zone": "UTC"}).decode(ChangeMessage(json.dumps(flat).encode())))
