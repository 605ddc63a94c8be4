"""Ranges with messages that cannot be decoded: a query ends when all before them is read,
or keeps them as they are stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_rocketmq.errors import DataLoss, UndecodableMessage
from pyspark_rocketmq.source.ranges import QueuePartition
from pyspark_rocketmq.source.reader import read_queue, read_queues
from pyspark_rocketmq.wire.messages import INNER_BATCH_FLAGS, decode_stored_messages
from tests.helpers.partitions import changed
from tests.helpers.stored_messages import encode_stored_message
from tests.source.test_queue_reader import QUEUE, Log, offsets_of, read, told
from tests.source.test_queue_reader import log as _log
from tests.source.test_queue_reader import partition as _partition

log, partition = _log, _partition
GARBAGE = b"no compressed bytes"


def with_body(data: bytes, body: bytes = GARBAGE, sys_flag: int = 1, properties: str = "") -> bytes:
    """The stored message with another body."""
    (message,) = decode_stored_messages(data)
    changed = replace(
        message, body=body, sys_flag=sys_flag, properties_data=message.properties_data + properties.encode()
    )
    return encode_stored_message(changed)


Damage = Callable[[int, bytes], bytes]


def bad_bodies(*offsets: int) -> Damage:
    return lambda offset, data: with_body(data) if offset in offsets else data


def broken_layouts(*offsets: int) -> Damage:
    """A total size that cannot be."""
    return lambda offset, data: b"\x7f" + data[1:] if offset in offsets else data


@pytest.mark.parametrize("damage", [bad_bodies, broken_layouts])
def test_a_group_s_range_ends_before_a_message_that_cannot_be_decoded(
    partition: QueuePartition, log: Log, damage: Callable[..., Damage], caplog: pytest.LogCaptureFixture
) -> None:
    """L7: good messages are never held back; the marker row says where to go on."""
    log.damage = damage(37, 38, 52)

    seen, marked = read(partition)

    assert seen == list(range(10, 37))
    assert marked == replace(partition.planned, end=37)
    assert "the message at offset 37 cannot be decoded" in caplog.text


@pytest.mark.parametrize("damage", [bad_bodies, broken_layouts])
def test_a_range_that_begins_with_it_is_an_error(
    partition: QueuePartition, log: Log, damage: Callable[..., Damage]
) -> None:
    """L7: queue, offset, reason and the option."""
    log.damage = damage(10)

    with pytest.raises(
        UndecodableMessage,
        match=(
            r"topic=orders broker=broker-a queue=3: the message at offset 10 cannot be decoded: "
            r".*undecodableMessages=keep"
        ),
    ):
        read(partition)


@pytest.mark.parametrize("damage", [bad_bodies, broken_layouts])
def test_a_plain_reader_gives_what_is_before_it_and_fails(
    partition: QueuePartition, log: Log, damage: Callable[..., Damage]
) -> None:
    """L7: it is planned to be read to its end."""
    log.damage = damage(37)
    batches: list[pa.RecordBatch] = []

    with pytest.raises(UndecodableMessage, match="offset 37"):
        batches.extend(read_queue(changed(partition, is_group_read=False)))

    assert offsets_of(batches) == list(range(10, 37))


@pytest.mark.parametrize("is_group_read", [True, False])
def test_messages_that_are_kept_have_the_bytes_that_are_stored(
    partition: QueuePartition, log: Log, is_group_read: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """L7: each in its place, with the reason; all others as they are."""
    bad = {10, 20, 21, 59}
    log.damage = bad_bodies(*bad)

    batches = list(read_queue(changed(partition, is_group_read=is_group_read, keeps_undecodable=True)))

    messages = batches[:-1] if is_group_read else batches
    assert offsets_of(messages) == list(range(10, 60))
    rows = [row for batch in messages for row in batch.to_pylist()]
    for row in rows:
        is_bad = row["queueOffset"] in bad
        properties = dict(row["properties"])
        assert row["body"] == (GARBAGE if is_bad else str(row["queueOffset"]).encode())
        assert ("UNDECODABLE" in properties) == is_bad
        assert properties["TAGS"] in ("odd", "even")
        assert row["sysFlag"] == (1 if is_bad else 0)
    assert caplog.text.count("is kept as it is stored") == len(bad)


@pytest.mark.parametrize("is_group_read", [True, False])
def test_behind_a_broken_layout_messages_are_pulled_again(
    partition: QueuePartition, log: Log, is_group_read: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """L7: what it hides of its answer is not lost."""
    log.damage = broken_layouts(10, 20, 21, 59)

    *messages, last = read_queue(changed(partition, is_group_read=is_group_read, keeps_undecodable=True))

    if not is_group_read:
        messages.append(last)
    else:
        assert offsets_of([last]) == [60]
        assert '"rows": 50' in last.column("plannedRange")[0].as_py()
    assert offsets_of(messages) == list(range(10, 60))
    rows = {row["queueOffset"]: row for batch in messages for row in batch.to_pylist()}
    assert rows[22]["body"] == b"22"
    assert rows[20]["body"].startswith(b"\x7f")
    assert [dict(rows[20]["properties"]).keys(), rows[20]["topic"], rows[20]["queueId"]] == [
        {"UNDECODABLE"}, QUEUE.topic, QUEUE.queue_id
    ]  # fmt: skip
    assert not told(caplog)


def test_several_ranges_go_on_beside_one_with_a_broken_layout(partition: QueuePartition, log: Log) -> None:
    """L7: each in order, with one marker row."""
    log.damage = broken_layouts(20)
    queue = QUEUE._replace(queue_id=4)
    other = replace(partition, planned=replace(partition.planned.starting_at(30), queue=queue, end=40))
    both = [changed(one, keeps_undecodable=True) for one in (partition, other)]

    found = list(read_queues(both))

    for one in both:
        *messages, marker = [batch for whose, batch in found if whose is one]
        assert offsets_of(messages) == list(range(one.planned.start, one.planned.end))
        assert marker.column("kind").to_pylist() == ["end"]


def test_an_undecodable_message_beyond_the_range_is_ignored(partition: QueuePartition, log: Log) -> None:
    """L7: pulls bring more than their own offsets."""
    log.scan = 30
    log.damage = bad_bodies(60, 61)

    assert read(partition)[0] == list(range(10, 60))


def test_one_that_is_not_subscribed_to_is_left_out(partition: QueuePartition, log: Log) -> None:
    """L7: the broker filters only by hash codes."""
    log.damage = bad_bodies(21)

    assert read(replace(partition, subscription="even"))[0] == list(range(10, 60, 2))


def test_a_group_s_range_ends_before_one_however_many_messages_are_left_out(
    partition: QueuePartition, log: Log
) -> None:
    """L7: also where nothing before it is wanted; the next range begins with it."""
    log.damage = bad_bodies(12)
    log.missing = {10, 11}

    seen, marked = read(replace(partition, subscription="even"))

    assert (seen, marked.end) == ([], 12)


def test_an_inner_batch_that_is_kept_is_one_message(
    partition: QueuePartition, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    """L7: the offsets that it announces are no hole; messages that are there are read all the same."""
    log.missing = {21, 22}
    log.damage = lambda offset, data: (
        with_body(data, sys_flag=INNER_BATCH_FLAGS, properties="INNER_NUM\x013\x02")
        if offset in {20, 30}
        else data
    )

    seen, _ = read(changed(partition, keeps_undecodable=True))

    assert seen == [offset for offset in range(10, 60) if offset not in log.missing]
    assert not told(caplog)


def test_a_gap_behind_an_undecodable_message_is_reported(partition: QueuePartition, log: Log) -> None:
    """L7, F4: it explains its own offset only."""
    log.missing = {21}
    log.damage = bad_bodies(20)

    with pytest.raises(DataLoss, match="offset 21"):
        read(changed(partition, keeps_undecodable=True))
