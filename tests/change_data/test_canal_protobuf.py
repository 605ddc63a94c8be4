"""Canal's protobuf packets, as Canal's own serializer has written them."""

from __future__ import annotations

from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.change_data.canal_protobuf import CanalProtobuf, fields
from pyspark_rocketmq.change_data.change import (
    BadChange,
    Change,
    ChangeMessage,
    Operation,
    PassedOver,
    SchemaChange,
)
from pyspark_rocketmq.change_data.effects import order_of
from pyspark_rocketmq.change_data.rules import Rules
from tests.change_data.samples import RULES, canal, canal_entries, one, positions, protobuf, reason, recorded

ROWS = [line for line in recorded("canal") if line["entry"] == "ROWDATA"]
PACKETS = [b64decode(line["protobuf"]) for line in recorded("canal")]


def test_both_forms_of_an_entry_hold_the_same_changes() -> None:
    """K6: protobuf has more (positions, whole rows before); what both have is equal."""
    compared = 0
    for line in ROWS:
        for plain, exact in zip(canal(line), protobuf(line), strict=True):
            if isinstance(plain, Change):
                assert isinstance(exact, Change)
                assert (
                    plain.table,
                    plain.operation,
                    plain.key,
                    plain.row,
                    plain.types,
                    plain.source_time,
                ) == (*(exact.table, exact.operation, exact.key, exact.row, exact.types, exact.source_time),)
                compared += 1
    assert compared > 20


def test_position_is_the_place_in_the_binary_log() -> None:
    """K6: facts 2, 7, 10: later events have higher positions, and rows of one event the same."""
    events = [positions(protobuf(line)) for line in ROWS]
    found = [position for event in events for position in event]

    assert all(len(set(event)) <= 1 for event in events)
    assert max(map(len, events)) == 3
    assert found == sorted(found)
    assert found[0] == (0, 0, 2, 413)


def test_position_counts_transactions_before_the_place_in_a_file() -> None:
    """K6: fact 11: with GTIDs the number of transactions comes first, so a fail-over does not go back."""
    lines = canal_entries("orders", "UPDATE", "canal_gtid")
    found = [positions(protobuf(line))[0] for line in lines]

    assert found[:4] == [(10, 0, 2, 7714), (11, 0, 2, 8055), (12, 0, 2, 8359), (12, 0, 2, 8588)]


@pytest.mark.parametrize("is_divided", [True, False])
def test_a_key_is_freed_before_another_row_of_the_event_gets_it(is_divided: bool) -> None:
    """K1: facts 1, 7: Canal puts the rows of an event into the queues of their new keys, at any offsets.

    An event that is whole in its entry keeps its position: its rows are in the order of a queue.
    """
    count = b"rowsCount\x12\x012" if is_divided else b"rowsCount\x12\x011"
    packet = b64decode(canal_entries("orders", "UPDATE")[1]["protobuf"])
    packet = packet.replace(b"rowsCount\x12\x011", count)
    # The value of a column, its field 8: the row A becomes C, then in the same event the row B becomes A.
    other = packet.replace(b"\x42\x01A", b"\x42\x01B").replace(b"\x42\x01C", b"\x42\x01A")
    freed, _ = CanalProtobuf(RULES).decode(ChangeMessage(packet))
    _, taken = CanalProtobuf(RULES).decode(ChangeMessage(other))

    assert isinstance(freed, Change)
    assert isinstance(taken, Change)
    assert (freed.operation, taken.operation) == (Operation.DELETE, Operation.INSERT)
    assert freed.key == taken.key == {"tenant": 1, "no": "A"}
    assert (order_of(freed.position, 900, 0) < order_of(taken.position, 3, 1)) == is_divided
    earlier = positions(protobuf(canal_entries("orders", "UPDATE")[0]))[-1]
    assert order_of(earlier, 901, 0) < order_of(freed.position, 900, 0)


def test_servers_are_ordered_by_the_reader() -> None:
    """K6: fact 11: without GTIDs another server's files begin again, so its epoch comes first."""
    line = canal_entries("orders", "DELETE")[0]

    assert one(protobuf(line, Rules(servers=(7, 11)))).position[:2] == (0, 2)  # type: ignore[index]
    assert "server 11, which option servers does not name" in reason(protobuf(line, Rules(servers=(7,))))


def test_row_before_an_update_is_whole() -> None:
    """K6: protobuf has both images."""
    first, second = protobuf(canal_entries("orders", "UPDATE")[0])

    assert isinstance(first, Change)
    assert first.before is not None
    assert first.before["note"] == "first"
    assert first.row["note"] == "changed"
    assert isinstance(second, Change)


def test_packet_without_rows_is_passed_over() -> None:
    """K6: fact 23."""
    assert CanalProtobuf(RULES).decode(ChangeMessage(b"")) == [PassedOver("empty body")]
    # Type 7 (messages), and a body without any.
    assert CanalProtobuf(RULES).decode(ChangeMessage(b"\x18\x07\x2a\x00")) == [PassedOver("empty body")]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"type":"INSERT"}', "cannot be read as a packet of Canal"),
        (b"\x18\x01", "not a packet of Canal with messages"),
        (b"\x18\x07\x20\x02\x2a\x00", "compressed"),
        (b"\x18\x07\x28\x01", "field 5 of a protobuf message in the body is a number"),
    ],
)
def test_other_bytes_are_bad(body: bytes, words: str) -> None:
    """K6: what cannot be understood is a bad change, never an exception."""
    assert words in reason(CanalProtobuf(RULES).decode(ChangeMessage(body)))


@given(packet=st.sampled_from(PACKETS), length=st.integers(1, 4096))
def test_packet_that_is_cut_off_never_raises(packet: bytes, length: int) -> None:
    """K6: what cannot be understood is a bad change, never an exception."""
    assert CanalProtobuf(RULES).decode(ChangeMessage(packet[: min(length, len(packet) - 1)]))


@given(packet=st.sampled_from(PACKETS), at=st.integers(0, 4096), value=st.integers(0, 255))
def test_changed_byte_never_raises(packet: bytes, at: int, value: int) -> None:
    """K6: what cannot be understood is a bad change, never an exception."""
    damaged = bytearray(packet)
    damaged[at % len(packet)] = value

    for change in CanalProtobuf(RULES).decode(ChangeMessage(bytes(damaged))):
        assert isinstance(change, Change | SchemaChange | PassedOver | BadChange)


def test_fields_are_read_as_protobuf_writes_them() -> None:
    assert fields(
        b"\x08\x96\x01\x12\x02hi\x12\x01!\x1d\x01\x00\x00\x00\x21\x02\x00\x00\x00\x00\x00\x00\x00"
    ) == {
        1: [150],
        2: [b"hi", b"!"],
        3: [1],
        4: [2],
    }
