"""Messages in which one value was replaced."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

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


@pytest.mark.parametrize(
    ("envelope", "samples"),
    [
        (envelope_of("canal", {"source_time_zone": "UTC"}), CANAL),
        (envelope_of("debezium", {}), DEBEZIUM),
        (envelope_of("maxwell", {}), [json.loads(event())]),
    ],
    ids=["canal", "debezium", "maxwell"],
)
@given(data=st.data())
def test_no_value_raises(envelope: Envelope, samples: list[Any], data: st.DataObject) -> None:
    """K6: what cannot be understood is a bad change, never an exception."""
    sample = data.draw(st.sampled_from(samples))
    path = data.draw(st.sampled_from(list(places(sample))))
    body = json.dumps(replaced(sample, path, data.draw(VALUES))).encode()

    decoded = envelope.decode(ChangeMessage(body, data.draw(st.sampled_from(["", "{}", "key", '{"id": 1}']))))
    assert decoded
    assert all(isinstance(change, Change | SchemaChange | PassedOver | BadChange) for change in decoded)
