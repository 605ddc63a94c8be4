"""Few messages are read as objects, many in columns, and both ways give the same."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.consume.fetch_window import FetchedChunks, QueueReset, RangeWindow
from pyspark_rocketmq.consume.generations import NO_WITNESSES, Witnesses
from pyspark_rocketmq.consume.segments import PullChunk
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.listeners.messages import ArrivedMessages, last_message
from pyspark_rocketmq.model import OPEN_END, MessageExt, MessageQueue, QueueRange
from pyspark_rocketmq.source.range_reader import FEW, RangeReader, decode_chunks
from pyspark_rocketmq.source.ranges import QueuePartition
from pyspark_rocketmq.source.schema import EndReason, RangeEnd, described_by
from pyspark_rocketmq.stored_values import LastMessage, RememberedMessages
from pyspark_rocketmq.wire.columnar import arrays
from pyspark_rocketmq.wire.compression import CompressionType, compress
from pyspark_rocketmq.wire.messages import body_crc
from pyspark_rocketmq.wire.properties import encode_properties
from tests.helpers.partitions import partition_of
from tests.helpers.stored_messages import encode_stored_message
from tests.wire.columnar_cases import REGULAR_PROPERTIES, inner_batches, stored_message, stored_messages

QUEUE = MessageQueue("OrderTopic", "broker-a", 3)
RETRY_QUEUE = QUEUE._replace(topic="%RETRY%g")
START = 10


class Outcome(NamedTuple):
    """Whatever a caller of the reader can see."""

    messages: list[MessageExt]
    newest: list[RememberedMessages]
    reached: list[int]
    ends: list[RangeEnd]
    error: str
    logged: list[str]


class Told(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def as_objects(piece: pa.RecordBatch, reader: RangeReader) -> ArrivedMessages:
    return ArrivedMessages(reader.partition.planned.queue, [piece], described_by(reader.bounds))


def newest_of(piece: pa.RecordBatch | list[MessageExt]) -> RememberedMessages:
    """The last message, as an offset row remembers it."""
    if isinstance(piece, pa.RecordBatch):
        return last_message(piece, piece.num_rows - 1)
    message = piece[-1]
    return RememberedMessages.of(
        LastMessage(message.queue_offset, message.store_timestamp, message.commit_log_offset)
    )


def read(
    partition: QueuePartition, taken: list[FetchedChunks], *, few_as_objects: bool, kinds: set[type]
) -> Outcome:
    reader = RangeReader(partition)
    window = RangeWindow(0, partition, segment=1, depth=1, log=lambda *_: None)
    window.bounds = 3, 4711
    reader.begin(window)
    # The broker is not asked.
    reader.__dict__["_is_compacted"] = False
    outcome = Outcome([], [], [], [], "", told := [])
    handler = Told()
    logger = logging.getLogger("pyspark_rocketmq.source.range_reader")
    logger.addHandler(handler)
    try:
        for chunks in taken:
            for decoded in decode_chunks([partition], [chunks], few_as_objects=few_as_objects):
                for piece in reader.pieces(decoded):
                    if isinstance(piece, RangeEnd):
                        outcome.ends.append(piece)
                        continue
                    kinds.add(type(piece))
                    outcome.newest.append(newest_of(piece))
                    outcome.messages.extend(
                        as_objects(piece, reader) if isinstance(piece, pa.RecordBatch) else piece
                    )
                outcome.reached.append(reader.reached)
            if reader.is_done or reader._is_pulled_again:
                break
    except RocketMQError as error:
        outcome = outcome._replace(error=f"{type(error).__name__} {error}")
    finally:
        logger.removeHandler(handler)
        told += handler.texts
    return outcome


def assert_same(partition: QueuePartition, taken: list[FetchedChunks]) -> set[type]:
    """Return the kinds of pieces of the reader that may give objects."""
    kinds: set[type] = set()
    columns = read(partition, taken, few_as_objects=False, kinds=set())
    few = read(partition, taken, few_as_objects=True, kinds=kinds)

    assert few.messages == columns.messages
    # One piece in columns may be several as objects, or the other way round.
    assert few.newest[-1:] == columns.newest[-1:]
    assert few._replace(messages=[], newest=[]) == columns._replace(messages=[], newest=[])
    return kinds


def partition_from(planned: QueueRange, **changes: Any) -> QueuePartition:
    return partition_of(
        planned, "127.0.0.1:1", **{"is_group_read": True, "fail_on_data_loss": False, **changes}
    )


def fetched(
    *bodies: bytes, is_last: bool = False, reached: int = START, failure: Any = None
) -> FetchedChunks:
    return FetchedChunks(0, [PullChunk(body, 1 << 40, 0) for body in bodies], is_last, failure, reached)


@st.composite
def offsets(draw: st.DrawFn, count: int) -> list[int]:
    """Ascending, mostly without gaps, sometimes going back."""
    steps = draw(
        st.lists(st.sampled_from([1] * 30 + [2, 5, 0, -3, -40]), min_size=count, max_size=count)
        if draw(st.booleans())
        else st.just([1] * count)
    )
    at, found = START - 1, []
    for step in steps:
        at = max(0, at + step)
        found.append(at)
    return found


def damaged(data: bytes, kind: str) -> bytes:
    if kind == "size":
        return (7).to_bytes(4, "big") + data[4:]
    return data[: len(data) // 2] if kind == "cut" else data[:4] + b"\0" * 8 + data[12:]


@st.composite
def takes(draw: st.DrawFn) -> tuple[QueuePartition, list[FetchedChunks]]:
    queue = draw(st.sampled_from([QUEUE, RETRY_QUEUE]))
    namespace = draw(st.sampled_from(["", "ns"]))
    topic = (
        queue.topic
        if not namespace
        else queue.topic.replace("OrderTopic", "ns%OrderTopic").replace("%g", "%ns%g")
    )
    counts = draw(st.lists(st.sampled_from([1, 1, 2, 5, FEW - 1, FEW, FEW + 2]), min_size=1, max_size=4))
    at = iter(draw(offsets(sum(counts))))
    plain = st.builds(stored_message, body=st.binary(max_size=20), properties_data=REGULAR_PROPERTIES)
    odd = st.one_of(plain, stored_messages(), stored_messages(bodies=inner_batches()))
    template = draw(st.lists(draw(st.sampled_from([plain, odd])), min_size=1, max_size=4))
    taken = []
    for count in counts:
        data = []
        for number in range(count):
            message = template[(number * 7 + count) % len(template)]
            extra = draw(st.sampled_from([b"", b"", b"RETRY_TOPIC\x01ns%Orders\x02", b"TAGS\x01odd\x02"]))
            data.append(
                encode_stored_message(
                    replace(
                        message,
                        topic=topic,
                        queue_offset=next(at),
                        properties_data=extra + message.properties_data,
                    )
                )
            )
        if draw(st.integers(0, 9)) == 0:
            where = draw(st.integers(0, count - 1))
            data[where] = damaged(data[where], draw(st.sampled_from(["size", "cut", "magic"])))
        middle = draw(st.integers(0, count))
        bodies = [body for body in (b"".join(data[:middle]), b"".join(data[middle:])) if body]
        taken.append(fetched(*bodies, reached=START + draw(st.integers(0, 200))))
    failure = draw(st.sampled_from([None, None, QueueReset("reset", 5)]))
    taken.append(fetched(is_last=True, failure=failure, reached=START + 200))
    end = draw(st.sampled_from([OPEN_END, START + 5, START + 60, START + 200]))
    if end == OPEN_END and failure is None:
        taken.pop()
    before = draw(st.sampled_from([False] * 5 + [True]))
    witnesses = Witnesses(LastMessage(START - 1, 1, 2)) if before else NO_WITNESSES
    partition = partition_from(
        QueueRange.between(queue, START, end),
        namespace=namespace,
        subscription=draw(st.sampled_from(["*", "*", "odd || even"])),
        keeps_undecodable=draw(st.booleans()),
        fail_on_data_loss=draw(st.booleans()),
        max_bytes=draw(st.sampled_from([None, None, 100, 2000])),
        witnesses=witnesses,
    )
    return partition, taken


@given(world=takes())
def test_both_ways_give_the_same(world: tuple[QueuePartition, list[FetchedChunks]]) -> None:
    """A4, D1, F4, L7: messages, gaps, undecodable ones, ends and counts, for any mixture."""
    assert_same(*world)


def usual(*queue_offsets: int, **changes: Any) -> bytes:
    return b"".join(
        encode_stored_message(stored_message(topic=QUEUE.topic, queue_offset=offset, **changes))
        for offset in queue_offsets
    )


OPEN = partition_from(QueueRange.between(QUEUE, START, OPEN_END))


@pytest.mark.parametrize(
    ("bodies", "kind"),
    [
        ([usual(10)], list),
        ([usual(10, 11), usual(12, 15)], list),
        ([usual(*range(10, 10 + FEW - 1))], list),
        ([usual(*range(10, 10 + FEW))], pa.RecordBatch),
        ([usual(*range(10, 10 + FEW // 2)), usual(*range(10 + FEW // 2, 10 + FEW))], pa.RecordBatch),
        ([usual(9, 10)], pa.RecordBatch),
        ([usual(10, 11), usual(11)], pa.RecordBatch),
        ([usual(10, born_timestamp=1 << 60)], pa.RecordBatch),
        ([usual(10, sys_flag=1)], pa.RecordBatch),
    ],
)
def test_few_usual_messages_are_objects(bodies: list[bytes], kind: type) -> None:
    partition = replace(OPEN, settings=OPEN.settings._replace(keeps_undecodable=True))

    assert assert_same(partition, [fetched(*bodies)]) == {kind}


@pytest.mark.parametrize(
    ("planned", "changes", "kind"),
    [
        (QueueRange.between(QUEUE, START, 13), {}, list),
        (QueueRange.between(QUEUE, START, 12), {}, pa.RecordBatch),
        (QueueRange.between(QUEUE, START, 100), {"max_bytes": 16}, list),
        (QueueRange.between(QUEUE, START, 100), {"max_bytes": 15}, pa.RecordBatch),
        (QueueRange.between(QUEUE, START, OPEN_END), {"max_bytes": 1}, list),
    ],
)
def test_messages_that_end_their_range_are_found_in_columns(
    planned: QueueRange, changes: dict[str, Any], kind: type
) -> None:
    """Three bodies of 5 bytes."""
    assert assert_same(partition_from(planned, **changes), [fetched(usual(10, 11, 12))]) == {kind}


def test_what_a_filter_leaves_out_is_reached_without_a_message() -> None:
    """A4"""
    partition = replace(OPEN, subscription="odd")
    reader = RangeReader(partition)
    reader.begin(RangeWindow(0, partition, segment=1, depth=1, log=lambda *_: None))
    body = usual(10, properties_data=b"TAGS\x01even\x02")

    (decoded,) = decode_chunks([partition], [fetched(body, reached=17)], few_as_objects=True)
    assert list(reader.pieces(decoded)) == []
    assert reader.reached == 17
    end = reader.stopped()
    assert (end.planned.end, end.reason, end.rows) == (17, EndReason.STOPPED, 0)


@pytest.mark.parametrize("is_first", [True, False])
def test_ranges_of_one_task_are_decoded_each_in_its_columns(is_first: bool) -> None:
    """K7: without `properties` the topic's range must not take them from the retry topic's."""
    reduced = OPEN.with_columns(("keys", "body"))
    whole = replace(OPEN, planned=replace(OPEN.planned, queue=RETRY_QUEUE))
    partitions = [reduced, whole] if is_first else [whole, reduced]
    taken = [FetchedChunks(index, [PullChunk(usual(10), 100, START)], False, None, 11) for index in range(2)]

    found = decode_chunks(partitions, taken)

    pieces = [piece for decoded in found for piece in decoded.messages]
    columns = [set(piece.schema.names) for piece in pieces if isinstance(piece, pa.RecordBatch)]
    few, all_columns = columns if is_first else reversed(columns)
    assert "body" in few
    assert "properties" not in few
    assert "properties" in all_columns


@pytest.mark.parametrize("ranges", [1, 2])
@pytest.mark.parametrize("is_compressed", [False, True], ids=["plain", "compressed"])
def test_more_than_a_column_holds_is_decoded_in_turn(
    monkeypatch: pytest.MonkeyPatch, ranges: int, is_compressed: bool
) -> None:
    """H9: several pulls may be gathered for a task, and their bodies expand far beyond their size."""
    monkeypatch.setattr(arrays, "MAX_COLUMN_BYTES", 1_000_000)
    text = b"a" * 600_000
    body, flags = compress(text, CompressionType.ZLIB) if is_compressed else (text, 0)
    stored = [
        encode_stored_message(stored_message(queue_offset=at, body=body, sys_flag=flags)) for at in (10, 11)
    ]
    taken = [
        FetchedChunks(index, [PullChunk(one, 100, START) for one in stored], False, None, 12)
        for index in range(ranges)
    ]

    found = decode_chunks([OPEN] * ranges, taken)

    for decoded in found:
        bodies = [message.body for piece in decoded.messages for message in ArrivedMessages(QUEUE, [piece])]
        assert bodies == [text, text]


def test_objects_have_the_bounds_of_their_queue_and_the_first_topic_of_a_message_given_back() -> None:
    partition = partition_from(QueueRange.between(RETRY_QUEUE, START, OPEN_END), namespace="ns")
    reader = RangeReader(partition)
    window = RangeWindow(0, partition, segment=1, depth=1, log=lambda *_: None)
    window.bounds = 3, 12
    reader.begin(window)
    data = encode_stored_message(
        stored_message(
            topic="%RETRY%ns%g", queue_offset=10, properties_data=b"RETRY_TOPIC\x01ns%OrderTopic\x02"
        )
    )

    (decoded,) = decode_chunks([partition], [fetched(data)], few_as_objects=True)
    (piece,) = reader.pieces(decoded)
    assert isinstance(piece, list)
    (message,) = piece
    assert message.topic == "OrderTopic"
    assert message.message_queue == RETRY_QUEUE
    assert (message.properties["MIN_OFFSET"], message.properties["MAX_OFFSET"]) == ("3", "12")


@pytest.mark.parametrize(
    ("body_bytes", "property_bytes"), [(0, 1), (100, 1), (1024, 50), (20_000, 1), (10, 9_000)]
)
@pytest.mark.parametrize("columns", [None, ("topic", "body"), ("topic", "queueOffset", "properties")])
def test_the_memory_of_rows_is_estimated_well(
    body_bytes: int, property_bytes: int, columns: tuple[str, ...] | None
) -> None:
    """The bound of what waits in memory rests on it; small rows may count as more."""
    partition = partition_from(QueueRange.between(QUEUE, 0, FEW, epoch=1), columns=columns)
    body = b"".join(
        encode_stored_message(
            stored_message(
                topic=QUEUE.topic,
                queue_id=QUEUE.queue_id,
                queue_offset=offset,
                body=b"x" * body_bytes,
                body_crc=body_crc(b"x" * body_bytes),
                properties_data=encode_properties({"KEYS": f"k{offset}", "more": "y" * property_bytes}),
            )
        )
        for offset in range(FEW)
    )
    [decoded] = decode_chunks([partition], [fetched(body)])
    reader = RangeReader(partition)
    window = RangeWindow(0, partition, segment=1, depth=1, log=lambda *_: None)
    reader.begin(window)
    pieces = [piece for piece in reader.pieces(decoded) if isinstance(piece, pa.RecordBatch)]

    exact = sum(piece.nbytes for piece in pieces)
    assert sum(piece.num_rows for piece in pieces) == FEW
    assert exact / 2 <= reader.arrival(pieces).nbytes <= 2 * exact + 256 * FEW
