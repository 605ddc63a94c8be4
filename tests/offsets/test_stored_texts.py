"""Texts of offset rows that a store reads and writes again are the same texts."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.consume.metrics import ConsumeMetrics, RecentMetrics
from pyspark_rocketmq.errors import DamagedOffsets
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.offsets.delta_rows import SCHEMA, rows_from_table, rows_to_table
from pyspark_rocketmq.offsets.file import decode_rows, encode_rows
from pyspark_rocketmq.offsets.recorded_sinks import RecordedSinks
from pyspark_rocketmq.offsets.rules import new_row
from pyspark_rocketmq.offsets.store import STORED_FIELDS, OffsetRow
from tests.helpers import stored_texts

QUEUE = MessageQueue("T", "broker-a", 0)
TEXTS = {
    "put_back": "[[7,9,2]]",
    "statistics": '{"at":1700000000.5,"seconds":[60.5,1800.0],"minute":[1,0,1,2.5,1,1,3.0],"hour":[1,0,1,2.5,1,1,3.0]}',
    "last_message": "[6,1006,384,4,1004,256]",
    "shown": "[7,9]",
    "sinks": '{"/lake/orders": "table-1"}',
    "boundaries": '[[[5,"[4,1,1]"],[2,""]],9]',
}
"""Each text as releases have stored it, by column."""
VALUES = {field.column: field.kind for field in STORED_FIELDS if field.kind is not None}


def row_of(texts: dict[str, str]) -> OffsetRow:
    values = {
        field.name: field.from_plain(texts[field.column]) for field in STORED_FIELDS if field.kind is not None
    }
    state = {name: values.pop(name) for name in QueueState._fields if name in values}
    row = new_row("g", QUEUE, 7)
    return row._replace(state=row.state._replace(**state), **values)


def test_every_text_has_one_codec() -> None:
    """F1: a value that was read, and made again of what it holds, has the same text."""
    assert VALUES.keys() == TEXTS.keys()
    for column, kind in VALUES.items():
        value = kind.from_text(TEXTS[column])
        assert kind(value._read()).to_text() == TEXTS[column]
        assert kind.from_text("") == kind() != value


@given(st.fixed_dictionaries({column: st.text() | st.just(text) for column, text in TEXTS.items()}))
def test_what_nobody_uses_is_stored_again_as_it_was(texts: dict[str, str]) -> None:
    """F1, H9: though another program has damaged it, both in the table and in the file."""
    table = rows_to_table([row_of(texts)])
    assert {column: table[column][0].as_py() or "" for column in texts} == texts

    assert rows_to_table(rows_from_table("g", table).values()) == table
    content = encode_rows([row_of(texts)])
    assert encode_rows(decode_rows(content, "g").values()) == content


def test_rows_with_one_text_share_its_value() -> None:
    """F1: it is read once for all of them."""
    rows = [row_of(TEXTS)._replace(queue=MessageQueue("T", "broker-a", number)) for number in range(3)]

    found = rows_from_table("g", rows_to_table(rows))

    assert len({id(row.sinks) for row in found.values()}) == 1
    assert rows_to_table(found.values()).schema == SCHEMA
    assert isinstance(rows_to_table(found.values())["sinks"].chunk(0), pa.StringArray)


def test_a_damaged_text_is_reported_where_its_value_is_used() -> None:
    """H9: the rest of the row, and all other rows, can be read."""
    row = next(iter(rows_from_table("g", rows_to_table([row_of(dict.fromkeys(TEXTS, "{"))])).values()))

    assert row.next_offset == 7
    assert row.statistics.as_of(0.0).hour == ConsumeMetrics()
    assert (row.sinks.identities, bool(row.sinks)) == ({}, True)
    for used in (
        lambda: row.state.retry_spans,
        lambda: row.state.last_message.newest,
        lambda: row.shown.offsets,
        lambda: row.boundaries.ahead,
    ):
        with pytest.raises(DamagedOffsets):
            used()


def test_metrics_of_a_row_are_those_that_were_added() -> None:
    """D11"""
    snapshot = RecentMetrics[str](0.0).add("a", ConsumeMetrics(3, 1, 2, 4.55, 4, 1, 1.25), 100.0)

    assert stored_texts.speed(snapshot.to_text()) == snapshot
    assert stored_texts.speed(snapshot.to_text()).as_of(130.0) == snapshot.as_of(130.0)


def test_a_sink_is_found_by_name_or_by_identity() -> None:
    """H10: a table may be reached under another name."""
    recorded = RecordedSinks({"/lake/orders": "table-1", "/lake/lines": ""})

    assert recorded.identity_of("/lake/orders", "table-2") == "table-1"
    assert recorded.identity_of("/mnt/lake/orders", "table-1") == "table-1"
    assert recorded.identity_of("/lake/lines", None) == ""
    assert recorded.identity_of("/lake/other", "table-3") is None
    assert recorded.identity_of("/lake/orders", "table-2", ["table-1", "table-2"]) is None
