"""Converts Arrow columns to messages when they are delivered."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise, repeat
from types import MappingProxyType
from typing import Any, Final, TypeAlias, overload

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
from pyspark_rocketmq.stored_values import LastMessage, RememberedMessages
from pyspark_rocketmq.wire.columnar.columns import timestamps
from pyspark_rocketmq.wire.columnar.schema import MESSAGE_SCHEMA

_TIMES = frozenset(TIME_COLUMNS)
_MICROS_PER_MILLI = 1000
_MOSTLY_ALIKE = frozenset({"tags", "bornHost", "storeHost"})
"""Columns of strings that neighbouring messages often share."""
_RECONSUME_TIMES: Final = "reconsumeTimes"
_MADE_AT_ONCE: Final = 512
"""Number of messages created at a time: so few that they stay in the processor's caches and below the
threshold of Python's garbage collector, and so many that the cost of reading a column is negligible."""
_BLOCKS_KEPT: Final = 16
"""Number of groups of ``_MADE_AT_ONCE`` messages that are kept while messages are delivered by key and not in
queue order."""


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
        columns: dict[str, Any] = dict(
            zip(MESSAGE_SCHEMA.names, map(list, zip(*messages, strict=True)), strict=False)
        )
        for name in _TIMES:
            columns[name] = timestamps(np.array(columns[name], np.int64))
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


MessagePiece: TypeAlias = "pa.RecordBatch | list[MessageExt]"
"""Consecutive messages of a queue: rows in columns, or ``MessageExt`` objects if they are few."""


class ArrivedMessages(Sequence[MessageExt]):
    """The messages of one queue's range that have arrived; objects are created only at delivery.

    A few hundred objects are created at a time. As objects, messages take three times the memory of columns,
    and the garbage collector would visit a hundred thousand objects again and again. The index of the range's
    first message is 0. A message keeps its index when messages before it are forgotten.
    """

    def __init__(
        self,
        queue: MessageQueue,
        pieces: Iterable[MessagePiece] = (),
        extra: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Begin with ``pieces``, which are added with ``extra`` as by :meth:`extend`."""
        self._queue = queue
        # Each of these lists has one item for each piece.
        self._pieces: list[MessagePiece] = []
        self._ends: list[int] = []
        """For each piece, the index of the message after its last one."""
        self._offsets: list[npt.NDArray[np.int64] | list[int]] = []
        self._last_offsets: list[int] = []
        self._extras: list[Mapping[str, str]] = []
        self._sizes: list[int] = []
        self._shown: list[pa.RecordBatch | None] = []
        """For each piece, its rows in the form of :class:`ArrowMessages`; None until they are needed."""
        self._first = 0
        self._made: list[MessageExt] = []
        """Objects created for deliveries in queue order: the messages from index ``_first`` on."""
        self._blocks: dict[int, list[MessageExt]] = {}
        """Objects created for deliveries by key, in groups by the index of the first message of each.

        The group that was used last is at the end.
        """
        self.freed_bytes = 0
        """Memory of the pieces that were released, in bytes, as given to :meth:`extend`."""
        self.extend(pieces, extra)

    def extend(
        self,
        pieces: Iterable[MessagePiece],
        extra: Mapping[str, str] = MappingProxyType({}),
        nbytes: int = 0,
    ) -> None:
        """Add the next messages, which take ``nbytes`` together.

        Messages created from rows get the additional properties ``extra``; objects stay as they are.
        """
        for piece in pieces:
            if not len(piece):
                continue
            offsets = (
                [message.queue_offset for message in piece]
                if isinstance(piece, list)
                else piece.column(QUEUE_OFFSET).to_numpy()
            )
            self._pieces.append(piece)
            self._ends.append(len(self) + len(piece))
            self._offsets.append(offsets)
            self._last_offsets.append(int(offsets[-1]))
            self._extras.append(extra)
            self._sizes.append(nbytes)
            self._shown.append(None)
            # The size is that of all pieces together, so count it only with the first one.
            nbytes = 0

    @property
    def pieces(self) -> Sequence[MessagePiece]:
        """The added pieces that :meth:`forget` has not released."""
        return self._pieces

    def forget(self, before: int) -> None:
        """Release the pieces whose messages are all below index ``before``; the last piece is kept."""
        if len(self._ends) > 1 and self._ends[0] <= before:
            count = min(bisect_right(self._ends, before), len(self._ends) - 1)
            self.freed_bytes += sum(self._sizes[:count])
            for of_pieces in (
                self._pieces, self._ends, self._offsets, self._last_offsets, self._extras, self._sizes,
                self._shown,
            ):  # fmt: skip
                del of_pieces[:count]

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

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

    def offset_at(self, index: int) -> int:
        """Return the queue offset of the message at ``index``."""
        number, at = self._place(index)
        return int(self._offsets[number][at])

    def index_from(self, queue_offset: int) -> int:
        """Return the index of the first message at or after a queue offset; the length if there is none.

        Messages that are forgotten do not count.
        """
        number = bisect_left(self._last_offsets, queue_offset)
        if number == len(self._offsets):
            return len(self)
        offsets = self._offsets[number]
        return self._ends[number] - len(offsets) + bisect_left(offsets, queue_offset)

    def in_objects(self, start: int, stop: int, retry_counts: Sequence[int] = ()) -> list[MessageExt]:
        """Return the messages from index ``start`` to before ``stop``, which is above ``start``, as objects.

        ``retry_counts``, one for each message, are added to their reconsume times.
        """
        begin, end = start - self._first, stop - self._first
        # True for nearly every delivery.
        is_made = 0 <= begin < end <= len(self._made)
        messages = self._made[begin:end] if is_made else self._between(start, stop, 1)
        return _with_times(messages, retry_counts) if retry_counts else messages

    def in_arrow(self, start: int, stop: int, retry_counts: Sequence[int] = ()) -> ArrowMessages:
        """Return the messages from index ``start`` to before ``stop``, which is above ``start``, in Arrow.

        ``retry_counts``, one for each message, are added to their reconsume times.
        """
        rows: list[pa.RecordBatch] = []
        offsets: list[npt.NDArray[np.int64]] = []
        number, at = self._place(start)
        first = number
        left = stop - start
        while left > 0:
            if (shown := self._rows(number)) is None:
                return ArrowMessages.of(self.in_objects(start, stop, retry_counts))
            rows.append(shown.slice(at, left))
            offsets.append(np.asarray(self._offsets[number][at : at + left]))
            left -= rows[-1].num_rows
            number, at = number + 1, 0
        delivered = rows[0] if len(rows) == 1 else pa.concat_batches(rows)
        if any(retry_counts):
            times = pc.add(delivered.column(_RECONSUME_TIMES), pa.array(retry_counts, pa.int32()))
            place = delivered.schema.get_field_index(_RECONSUME_TIMES)
            delivered = delivered.set_column(place, delivered.schema.field(place), times)
        return ArrowMessages(
            delivered,
            self._queue,
            offsets[0] if len(offsets) == 1 else np.concatenate(offsets),
            self._extras[first],
        )

    def objects_at(self, indexes: Iterable[int], retry_counts: Sequence[int] = ()) -> list[MessageExt]:
        """Return the messages at these indexes as objects.

        ``retry_counts``, one for each message, are added to their reconsume times.
        """
        found = []
        for index in indexes:
            number, at = self._place(index)
            piece = self._pieces[number]
            if isinstance(piece, list):
                found.append(piece[at])
                continue
            begin = at - at % _MADE_AT_ONCE
            block = self._blocks.pop(index - at + begin, None)
            if block is None:
                block = self._made_of(piece, begin, self._extras[number])
                if len(self._blocks) == _BLOCKS_KEPT:
                    del self._blocks[next(iter(self._blocks))]
            self._blocks[index - at + begin] = block
            found.append(block[at - begin])
        return _with_times(found, retry_counts) if retry_counts else found

    def arrow_at(self, indexes: Sequence[int], retry_counts: Sequence[int] = ()) -> ArrowMessages:
        """Return the messages at these ascending indexes in Arrow; there must be at least one.

        ``retry_counts``, one for each message, are added to their reconsume times.
        """
        stops = [at + 1 for at, index in enumerate(indexes) if index + 1 not in indexes[at + 1 : at + 2]]
        parts = [
            self.in_arrow(indexes[start], indexes[stop - 1] + 1, retry_counts[start:stop])
            for start, stop in pairwise([0, *stops])
        ]
        if len(parts) == 1:
            return parts[0]
        return ArrowMessages(
            pa.concat_batches([each.batch for each in parts]),
            self._queue,
            np.concatenate([each.queue_offsets for each in parts]),
            self._extras[self._place(indexes[0])[0]],
        )

    def property_values(self, name: str, start: int = 0) -> list[str | None]:
        """Return a property's value for each message from index ``start`` on; None if a message lacks it."""
        found: list[str | None] = []
        for piece, end in zip(self._pieces, self._ends, strict=True):
            if end > start:
                found += _property_values(piece[max(0, start - end + len(piece)) :], name)
        return found

    def last_message(self, index: int) -> RememberedMessages:
        """Return what an ack records of the message at ``index``: queue offset, store time and log offset.

        Empty if the store time or the log offset was not read.
        """
        number, at = self._place(index)
        piece = self._pieces[number]
        if not isinstance(piece, list):
            return last_message(piece, at)
        message = piece[at]
        return RememberedMessages.of(
            LastMessage(message.queue_offset, message.store_timestamp, message.commit_log_offset)
        )

    def _place(self, index: int) -> tuple[int, int]:
        """Return the number of the piece that has a message, and the message's index in that piece."""
        number = bisect_right(self._ends, index)
        return number, index - (self._ends[number] - len(self._pieces[number]))

    def _rows(self, number: int) -> pa.RecordBatch | None:
        """Return the messages of the piece with this number as columns; None if they are objects."""
        shown, piece = self._shown[number], self._pieces[number]
        if shown is None and not isinstance(piece, list):
            shown = self._shown[number] = _as_shown(piece)
        return shown

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
        """Put objects of the message at ``index`` and of some after it into ``_made``."""
        number, at = self._place(index)
        piece = self._pieces[number]
        if isinstance(piece, list):
            self._first, self._made = index - at, piece
        else:
            self._first, self._made = index, self._made_of(piece, at, self._extras[number])

    def _made_of(self, rows: pa.RecordBatch, at: int, extra: Mapping[str, str]) -> list[MessageExt]:
        """Create objects from at most ``_MADE_AT_ONCE`` rows of a piece, from row ``at`` on.

        They get the additional properties ``extra``.
        """
        return _messages(rows.slice(at, _MADE_AT_ONCE), self._queue, extra)


def _property_values(piece: MessagePiece, name: str) -> Iterable[str | None]:
    if isinstance(piece, list):
        return [message.properties.get(name) for message in piece]
    column = piece.column("properties")
    offsets = column.offsets.to_numpy()
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    is_named = pc.equal(column.keys.slice(first, count), name)
    hits = np.flatnonzero(is_named.to_numpy(zero_copy_only=False))
    rows = np.searchsorted(offsets - first, hits, side="right") - 1
    # Create each distinct string only once.
    values = column.items.slice(first, count).take(pa.array(hits)).dictionary_encode()
    texts = values.dictionary.to_pylist()
    of_row = {row: texts[at] for row, at in zip(rows.tolist(), values.indices.tolist(), strict=True)}
    return map(of_row.get, range(piece.num_rows))


def _with_times(messages: Sequence[MessageExt], retry_counts: Sequence[int]) -> list[MessageExt]:
    return [
        message._replace(reconsume_times=message.reconsume_times + times)
        for message, times in zip(messages, retry_counts, strict=True)
    ]


def _as_shown(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return messages with only the columns of ``format("rocketmq")``.

    Messages of a retry topic get the topic to which they were first sent.
    """
    if batch.num_columns == len(MESSAGE_SCHEMA):
        return batch
    columns = [batch.column(name) for name in MESSAGE_SCHEMA.names]
    columns[0] = pc.coalesce(batch.column(ORIGIN_TOPIC), columns[0])
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)


def last_message(batch: pa.RecordBatch, row: int) -> RememberedMessages:
    """Return what an ack records of the message in a row: queue offset, store time and log offset.

    Empty if the store time or the log offset is null, for example because it was not read.
    """
    return RememberedMessages.of(message_in(batch, row))


def _messages(rows: pa.RecordBatch, queue: MessageQueue, extra: Mapping[str, str]) -> list[MessageExt]:
    """Return the messages of ``rows``, all of ``queue``, with the additional properties ``extra``."""
    of_queue = dict(zip(LISTENER_COLUMNS, queue, strict=False))
    columns: dict[str, list[Any]] = {
        name: [of_queue[name]] * rows.num_rows
        if name in of_queue
        else _values(rows.column(name), name, extra)
        for name in MESSAGE_COLUMNS
    }
    has_origins = ORIGIN_TOPIC in rows.schema.names
    columns[ORIGIN_TOPIC] = (
        _values(rows.column(ORIGIN_TOPIC), ORIGIN_TOPIC) if has_origins else [None] * rows.num_rows
    )
    return messages_of(columns.values())


def _values(column: pa.Array, name: str, extra: Mapping[str, str] = MappingProxyType({})) -> list[Any]:
    """Return a column's values as a message has them; properties get those in ``extra``, too."""
    if name in _TIMES:
        # Milliseconds, as in Java. The column has null if Spark's timestamps cannot represent a time.
        known = column.fill_null(0) if column.null_count else column
        micros = known.view(pa.int64()).to_numpy()
        return (micros // _MICROS_PER_MILLI).tolist()  # type: ignore[no-any-return]
    if column.null_count == len(column):
        return [None] * len(column)
    if pa.types.is_integer(column.type):
        return column.to_numpy().tolist()  # type: ignore[no-any-return]
    if pa.types.is_map(column.type):
        return _dicts(column, extra)
    if name in _MOSTLY_ALIKE and _repeats(column, 1):
        return [column[0].as_py()] * len(column)
    return column.to_pylist()  # type: ignore[no-any-return]


def _dicts(column: pa.MapArray, extra: Mapping[str, str]) -> list[dict[str, str]]:
    """Return each map with ``extra`` added, in a fifth of the time of ``to_pylist``; no map may be null."""
    offsets = column.offsets.to_numpy()
    # A slice of a map column keeps the keys and items of the whole column.
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    keys, items = column.keys.slice(first, count), column.items.slice(first, count).to_pylist()
    width = int(offsets[1]) - first
    if (np.diff(offsets) == width).all() and _repeats(keys, width):
        return _alike(keys[:width].to_pylist(), items, extra)
    pairs = zip(keys.to_pylist(), items, strict=True)
    return [{**dict(islice(pairs, length)), **extra} for length in np.diff(offsets).tolist()]


def _alike(names: Sequence[str], values: Sequence[str], extra: Mapping[str, str]) -> list[dict[str, str]]:
    """Return dicts that all have the keys ``names``, and the items of ``extra``.

    ``values`` has the values of the first dict in the order of ``names``, then those of the second dict, and
    so on. If a key is in ``extra`` too, its value there counts.
    """
    width = len(names)
    pattern = {**dict.fromkeys(names, ""), **extra}
    dicts = [pattern.copy() for _ in range(len(values) // width)]
    for at, name in enumerate(names):
        if name not in extra:
            for properties, value in zip(dicts, values[at::width], strict=True):
                properties[name] = value
    return dicts


def _repeats(column: pa.StringArray, width: int) -> bool:
    """Return whether the column consists only of repetitions of its first ``width`` values.

    False if a value is null, if ``width`` is 0, and for other types of strings, with which Spark can pass
    rows (``spark.sql.execution.arrow.useLargeVarTypes``).
    """
    if not width or column.null_count or not pa.types.is_string(column.type):
        return False
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    lengths = np.diff(ends).reshape(-1, width)
    text = bytes(data[ends[0] : ends[-1]])
    return bool((lengths == lengths[0]).all()) and text == text[: ends[width] - ends[0]] * len(lengths)
