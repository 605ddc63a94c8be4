"""Converts Arrow columns to messages when they are delivered."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice, repeat
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rocketmq.model import (
    LISTENER_COLUMNS,
    MESSAGE_COLUMNS,
    ORIGIN_TOPIC,
    QUEUE_OFFSET,
    TIME_COLUMNS,
    MessageExt,
    MessageQueue,
    is_retry_topic,
)
from pyspark_rocketmq.spark.stored_messages import message_in
from pyspark_rocketmq.stored_values import RememberedMessages
from pyspark_rocketmq.wire.columnar.schema import MESSAGE_SCHEMA

_TIMES = frozenset(TIME_COLUMNS)
_MICROS_PER_MILLI = 1000
_MOSTLY_ALIKE = frozenset({"tags", "bornHost", "storeHost"})
"""Columns of strings that neighbouring messages often share."""
_RECONSUME_TIMES: Final = "reconsumeTimes"
_MADE_AT_ONCE: Final = 512
"""Number of messages created at a time. Few enough for the processor's caches and for the threshold of
Python's garbage collector; enough to make the cost of reading a column negligible."""


def messages_of(columns: Iterable[Sequence[Any]]) -> list[MessageExt]:
    """Return the messages of one queue from ``columns``, which are in the order of :data:`LISTENER_COLUMNS`.

    Messages of a retry queue get the topic to which they were first sent.
    """
    *fields, origin_topics = columns
    values = zip(*fields, repeat(None, len(origin_topics)), strict=True)
    # The same as MessageExt._make, without a Python call per message.
    messages = list(map(tuple.__new__, repeat(MessageExt), values))
    if not messages or not is_retry_topic(messages[0].topic):
        return messages
    return [one.restored(origin) for one, origin in zip(messages, origin_topics, strict=True)]


class ArrowMessages(Sequence[MessageExt]):
    """The messages of one delivery as a record batch, and as objects on demand."""

    def __init__(
        self,
        batch: pa.RecordBatch,
        queue: MessageQueue,
        queue_offsets: npt.NDArray[np.int64],
        extra: Mapping[str, str],
    ) -> None:
        self.batch = batch
        """Columns of ``format("rocketmq")``; the topic is the one to which the messages were first sent."""
        self._extra = extra
        self.queue = queue
        """Queue from which the messages were read."""
        self.queue_offsets = queue_offsets
        self._made: list[MessageExt] | None = None

    @classmethod
    def of(cls, messages: Sequence[MessageExt]) -> ArrowMessages:
        """Create a batch of the messages of one queue, at least one."""
        columns = dict(zip(MESSAGE_SCHEMA.names, map(list, zip(*messages, strict=True)), strict=False))
        for name in _TIMES:
            columns[name] = [millis * _MICROS_PER_MILLI for millis in columns[name]]
        columns["properties"] = [list(properties.items()) for properties in columns["properties"]]
        batch = pa.RecordBatch.from_pydict(columns, schema=MESSAGE_SCHEMA)
        offsets = batch.column(QUEUE_OFFSET).to_numpy()
        made = cls(batch, messages[0].message_queue, offsets, {})
        made._made = list(messages)
        return made

    @property
    def attempt(self) -> int:
        """Number of this delivery of the first message, from 1."""
        return int(self.batch.column(_RECONSUME_TIMES)[0].as_py()) + 1

    def __len__(self) -> int:
        return len(self.queue_offsets)

    @overload
    def __getitem__(self, at: int) -> MessageExt: ...
    @overload
    def __getitem__(self, at: slice) -> list[MessageExt]: ...
    def __getitem__(self, at: int | slice) -> MessageExt | list[MessageExt]:
        if self._made is None:
            topics = self.batch.column("topic")
            # Restore the column as it was read: null if a message does not name its topic, or was never given
            # back.
            origins = pc.replace_with_mask(
                topics, pc.equal(topics, self.queue.topic), pa.scalar(None, pa.string())
            )
            self._made = _messages(self.batch.append_column(ORIGIN_TOPIC, origins), self.queue, self._extra)
        return self._made[at]


class ArrivedMessages(Sequence[MessageExt]):
    """The messages of a range, made a few hundred at a time when they are delivered.

    As objects they take three times the memory of their columns, and the garbage collector would walk a
    hundred thousand of them again and again.
    """

    def __init__(
        self,
        batches: Sequence[pa.RecordBatch],
        queue: MessageQueue,
        queue_offsets: npt.NDArray[np.int64],
        extra: Mapping[str, str],
    ) -> None:
        """Take ``batches`` of ``queue``'s rows at ``queue_offsets``; messages get properties ``extra``."""
        self._extra = extra
        self.queue_offsets = queue_offsets
        """Queue offsets of all messages."""
        self._batches = batches
        self._queue = queue
        self._ends = list(accumulate(batch.num_rows for batch in batches))
        """End of each batch, as an index of messages."""
        self._first = 0
        self._made: list[MessageExt] = []
        """The messages made, from index ``_first`` on."""
        self._shown: list[pa.RecordBatch] = []
        """``batches`` in the form of :class:`ArrowMessages`, created for the first delivery."""

    def __len__(self) -> int:
        return len(self.queue_offsets)

    @overload
    def __getitem__(self, at: int) -> MessageExt: ...
    @overload
    def __getitem__(self, at: slice) -> list[MessageExt]: ...
    def __getitem__(self, at: int | slice) -> MessageExt | list[MessageExt]:
        if isinstance(at, slice):
            return self._between(*at.indices(len(self)))
        index = range(len(self))[at]
        return self._between(index, index + 1, 1)[0]

    def __iter__(self) -> Iterator[MessageExt]:
        for start in range(0, len(self), _MADE_AT_ONCE):
            yield from self[start : start + _MADE_AT_ONCE]

    def in_objects(self, start: int, stop: int, retry_counts: Sequence[int] = ()) -> list[MessageExt]:
        """Return at least one message, in order; ``retry_counts`` are added to their reconsume times."""
        begin, end = start - self._first, stop - self._first
        # True for nearly every delivery.
        is_made = 0 <= begin < end <= len(self._made)
        messages = self._made[begin:end] if is_made else self._between(start, stop, 1)
        return _with_times(messages, retry_counts) if retry_counts else messages

    def in_arrow(self, start: int, stop: int, retry_counts: Sequence[int] = ()) -> ArrowMessages:
        """Return the messages of :meth:`in_objects` in Arrow."""
        if not self._shown:
            self._shown = [_as_shown(batch) for batch in self._batches]
        number = bisect_right(self._ends, start)
        rows: list[pa.RecordBatch] = []
        at = start
        while at < stop:
            batch = self._shown[number]
            rows.append(batch.slice(at - (self._ends[number] - batch.num_rows), stop - at))
            at = self._ends[number]
            number += 1
        delivered = rows[0] if len(rows) == 1 else pa.concat_batches(rows)
        if any(retry_counts):
            times = pc.add(delivered.column(_RECONSUME_TIMES), pa.array(retry_counts, pa.int32()))
            place = delivered.schema.get_field_index(_RECONSUME_TIMES)
            delivered = delivered.set_column(place, delivered.schema.field(place), times)
        return ArrowMessages(delivered, self._queue, self.queue_offsets[start:stop], self._extra)

    def last_message(self, index: int) -> RememberedMessages:
        """Return :func:`last_message` for the message at ``index``."""
        number = bisect_right(self._ends, index)
        batch = self._batches[number]
        return last_message(batch, index - (self._ends[number] - batch.num_rows))

    def _between(self, start: int, stop: int, step: int) -> list[MessageExt]:
        found: list[MessageExt] = []
        at = start
        while at < stop:
            if not self._first <= at < self._first + len(self._made):
                self._make(at)
            here = self._made[at - self._first : stop - self._first]
            found = found + here if found else here
            at += len(here)
        return found[::step]

    def _make(self, index: int) -> None:
        """Create the message at ``index`` and some messages after it."""
        number = bisect_right(self._ends, index)
        batch = self._batches[number]
        rows = batch.slice(index - (self._ends[number] - batch.num_rows), _MADE_AT_ONCE)
        self._first, self._made = index, _messages(rows, self._queue, self._extra)


def taker_of(
    messages: Sequence[MessageExt], *, in_arrow: bool
) -> Callable[[int, int, Sequence[int]], Sequence[MessageExt]]:
    """Return a function of first index, end and added reconsume times that creates a delivery."""
    if isinstance(messages, ArrivedMessages):
        return messages.in_arrow if in_arrow else messages.in_objects

    def take(start: int, stop: int, retry_counts: Sequence[int]) -> Sequence[MessageExt]:
        return _with_times(messages[start:stop], retry_counts) if retry_counts else messages[start:stop]

    return take


def _with_times(messages: Sequence[MessageExt], retry_counts: Sequence[int]) -> list[MessageExt]:
    return [
        message._replace(reconsume_times=message.reconsume_times + times)
        for message, times in zip(messages, retry_counts, strict=True)
    ]


def _as_shown(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the columns of messages, with the topic to which they were first sent."""
    if batch.num_columns == len(MESSAGE_SCHEMA):
        return batch
    columns = [batch.column(name) for name in MESSAGE_SCHEMA.names]
    columns[0] = pc.coalesce(batch.column(ORIGIN_TOPIC), columns[0])
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)


def last_message(batch: pa.RecordBatch, row: int) -> RememberedMessages:
    """Return the newest message for an ack; empty if its columns were not read."""
    return RememberedMessages.of(message_in(batch, row))


def _messages(rows: pa.RecordBatch, queue: MessageQueue, extra: Mapping[str, str]) -> list[MessageExt]:
    """Return the messages of ``rows``, all of ``queue``, with the additional properties ``extra``."""
    of_queue = dict(zip(LISTENER_COLUMNS, queue, strict=False))
    columns: dict[str, list[Any]] = {
        name: [of_queue[name]] * rows.num_rows if name in of_queue else _values(rows.column(name), name)
        for name in MESSAGE_COLUMNS
    }
    if extra:
        for properties in columns["properties"]:
            properties.update(extra)
    has_origins = ORIGIN_TOPIC in rows.schema.names
    columns[ORIGIN_TOPIC] = (
        _values(rows.column(ORIGIN_TOPIC), ORIGIN_TOPIC) if has_origins else [None] * rows.num_rows
    )
    return messages_of(columns.values())


def _values(column: pa.Array, name: str) -> list[Any]:
    if column.null_count == len(column):
        return [None] * len(column)
    if name in _TIMES:
        # Milliseconds, as in Java. Null if Spark's timestamps cannot represent the born time.
        micros = column.cast(pa.int64()).fill_null(0).to_numpy()
        return (micros // _MICROS_PER_MILLI).tolist()  # type: ignore[no-any-return]
    if pa.types.is_integer(column.type):
        return column.to_numpy().tolist()  # type: ignore[no-any-return]
    if pa.types.is_map(column.type):
        return _dicts(column)
    if name in _MOSTLY_ALIKE and _repeats(column, 1):
        return [column[0].as_py()] * len(column)
    return column.to_pylist()  # type: ignore[no-any-return]


def _dicts(column: pa.MapArray) -> list[dict[str, str]]:
    """Do the work of ``to_pylist`` in a third of the time; no map may be null."""
    offsets = column.offsets.to_numpy()
    # A slice of a map column keeps the keys and items of the whole column.
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    keys, items = column.keys.slice(first, count), column.items.slice(first, count).to_pylist()
    width = int(offsets[1]) - first
    if (np.diff(offsets) == width).all() and _repeats(keys, width):
        # All messages have the same keys: make and hash each text once.
        rows = zip(*[iter(items)] * width, strict=True)
        return list(map(dict, map(zip, repeat(keys[:width].to_pylist()), rows)))
    pairs = zip(keys.to_pylist(), items, strict=True)
    return [dict(islice(pairs, length)) for length in np.diff(offsets).tolist()]


def _repeats(column: pa.StringArray, width: int) -> bool:
    """Whether the column repeats its first ``width`` values."""
    if not width or column.null_count:
        return False
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    lengths = np.diff(ends).reshape(-1, width)
    text = bytes(data[ends[0] : ends[-1]])
    return bool((lengths == lengths[0]).all()) and text == text[: ends[width] - ends[0]] * len(lengths)
