"""Decode pulled messages into Arrow columns, all messages of a buffer together: the hot path of every read.

Regular input is decoded by numpy views on the pulled bytes, without a Python object per message: find the
messages and their parts (:mod:`~pyspark_rocketmq.wire.columnar.rows`), replace inner batches by their members
and create the columns (:mod:`~pyspark_rocketmq.wire.columnar.columns`). Input that the vectorised decoder
does not expect (malformed UTF-8, odd properties) is isolated by halving and decoded by the scalar codec of
:mod:`~pyspark_rocketmq.wire.messages`, which reads one message after another. Bytes without the layout of
messages go to the scalar codec as a whole, which raises the error. So the two decoders never differ, and
errors are worded in one place.

Each call has a fixed cost: decode the bodies of many pulls in one call.

:func:`decode_in_turn` yields a message that cannot be decoded with its stored bytes. Java's consumer silently
drops such a message and all messages after it in the same answer (``MessageDecoder.decodesBatch``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, islice, pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rocketmq.errors import LocalProtocolError, RemoteProtocolError, RocketMQError
from pyspark_rocketmq.model import MessageExt, MessageQueue, PulledBody
from pyspark_rocketmq.wire import properties as property_names
from pyspark_rocketmq.wire.columnar.arrays import IrregularLayout, check_column_bytes
from pyspark_rocketmq.wire.columnar.columns import (
    ColumnBuilder,
    expand_inner_batches,
    timestamps,
)
from pyspark_rocketmq.wire.columnar.rows import BufferSlices, Rows, locate
from pyspark_rocketmq.wire.columnar.schema import MAP_TYPE, MESSAGE_SCHEMA, TIMESTAMP_TYPE
from pyspark_rocketmq.wire.compression import ExpansionBudget
from pyspark_rocketmq.wire.messages import (
    INNER_BATCH_FLAGS,
    MIN_STORED_BYTES,
    StoredMessage,
    decode_stored_messages,
    expanded_body,
    iter_messages,
    shown_as_stored,
)

UNDECODABLE: Final = "UNDECODABLE"
"""Property with the reason why a message has its stored bytes as body; Java has no property of that name."""
_MAX_REASON: Final = 500
_QUEUE_OFFSET_AT: Final = 20
_LENGTH_BYTES: Final = 4

_TAGS: Final = "tags"
_BODY: Final = "body"
_MIN_HALVED_ROWS: Final = 32
"""Number of rows that the scalar codec decodes in the time of one vectorised call; so few rows are not halved
any more."""
_SCALAR_ROWS: Final = 1024


class Undecodable(NamedTuple):
    """A message that cannot be decoded, in place of its row."""

    stored: StoredMessage | None
    """The stored message; None if its layout is broken, so that the rest of the answer cannot be read."""
    data: bytes
    """All its bytes; with a broken layout, the rest of the answer from the message's beginning."""
    reason: str

    def queue_offsets(self, at_least: int, end: int, *, is_filtered: bool) -> range:
        """Return the message's queue offsets: one, or several for an inner batch.

        If the message's layout is broken, it counts as the next one: its offset is ``at_least``. But with a
        filter, messages before it may have been left out. Then the offset in its bytes counts, if that is in
        ``[at_least, end)``.

        Args:
            at_least: The offset after the last message that was read.
            end: End of the offsets that are read (exclusive).
            is_filtered: Whether the broker leaves out messages that do not match.
        """
        if self.stored is not None:
            return offsets_of(self.stored)
        stored = int.from_bytes(self.data[_QUEUE_OFFSET_AT : _QUEUE_OFFSET_AT + 8], "big", signed=True)
        first = stored if is_filtered and at_least <= stored < end else at_least
        return range(first, first + 1)

    def shown(self, queue: MessageQueue, queue_offset: int) -> MessageExt:
        """Return the message for a consumer, with its stored body and the reason in ``UNDECODABLE``.

        With a broken layout the body is the rest of the answer from the message on, and all other fields
        except the position are empty, None or 0. The commit log offset is then -1, because no broker can copy
        such a message to a retry topic.
        """
        reason = self.reason[:_MAX_REASON]
        if self.stored is not None:
            shown = shown_as_stored(self.stored, queue.broker_name)
            return shown._replace(
                queue_offset=queue_offset, properties={**shown.properties, UNDECODABLE: reason}
            )
        return MessageExt(
            topic=queue.topic,
            broker_name=queue.broker_name,
            queue_id=queue.queue_id,
            queue_offset=queue_offset,
            commit_log_offset=-1,
            msg_id="",
            keys=None,
            tags=None,
            body=self.data,
            properties={UNDECODABLE: reason},
            born_timestamp=0,
            born_host="",
            store_timestamp=0,
            store_host="",
            reconsume_times=0,
            sys_flag=0,
            flag=0,
        )


def why_undecodable(data: bytes) -> Undecodable | None:
    """Try to decode the single message in ``data``; return it with the reason if that fails, else None."""
    try:
        (stored,) = decode_stored_messages(data)
    except RemoteProtocolError as error:
        return Undecodable(None, data, str(error))
    try:
        expanded_body(stored, ExpansionBudget(len(data)))
    except RemoteProtocolError as error:
        return Undecodable(stored, data, str(error))
    return None


def message_starts(data: bytes) -> list[int]:
    """Return where messages begin according to their total sizes.

    A message with an impossible size is the last one in the list, because its end is unknown.
    """
    starts = []
    at = 0
    while at < len(data):
        starts.append(at)
        total = int.from_bytes(data[at : at + _LENGTH_BYTES], "big", signed=True)
        if not MIN_STORED_BYTES <= total <= len(data) - at:
            break
        at += total
    return starts


def offsets_of(stored: StoredMessage) -> range:
    """Return a message's queue offsets; for an inner batch, as many as its broker announces."""
    count = 1
    if stored.sys_flag & INNER_BATCH_FLAGS == INNER_BATCH_FLAGS:
        announced = stored.properties.get(property_names.INNER_NUM, "")
        if announced.isascii() and announced.isdigit() and len(announced) < 10:
            count = max(1, int(announced))
    return range(stored.queue_offset, stored.queue_offset + count)


def projected_schema(columns: Sequence[str] | None = None, properties: Sequence[str] = ()) -> pa.Schema:
    """Return the schema of these columns of ``MESSAGE_SCHEMA`` (by default all), followed by the properties.

    Raises:
        LocalProtocolError: If a name is not in the schema or occurs twice.
    """
    return _decoder("", None, columns, properties).projection.schema


def decode_together(
    groups: Sequence[Sequence[PulledBody]],
    broker_name: str,
    *,
    tags: frozenset[str] | None = None,
    columns: Sequence[str] | None = None,
    properties: Sequence[str] = (),
) -> list[pa.RecordBatch | RocketMQError]:
    """Decode several lists of bodies together; return a batch or an error for each list.

    With ``tags``, only messages with one of these tags become rows. A batch has ``columns`` (by default all),
    then one column for each of ``properties``. If a list's rows take 2 GiB, its error is a
    LocalProtocolError.

    Bodies that are all views of one ``bytearray`` are read in place. They are copied, list by list, only if
    the lists cannot be decoded as one, for example because one of them is damaged. A batch never refers to
    the bodies.

    Raises:
        LocalProtocolError: If a column name is wrong.
    """
    decoder = _decoder(broker_name, tags, columns, properties)
    together = decoder.decode_as_one(groups)
    if together is None:
        return list(map(decoder.decode_one, groups))
    return list(map(decoder.filtered, together))


def decode_in_turn(
    bodies: Sequence[PulledBody],
    broker_name: str,
    *,
    tags: frozenset[str] | None = None,
    columns: Sequence[str] | None = None,
    properties: Sequence[str] = (),
) -> Iterator[pa.RecordBatch | Undecodable]:
    """Decode bodies one by one; a body that cannot be decoded is decoded in halves.

    With ``tags``, only messages with one of these tags are yielded. A batch has ``columns`` (by default all),
    then one column for each of ``properties``. Each batch is decoded when the caller asks for it, so that it
    can be freed before the next one. Each body, and each half of a body, has an ``ExpansionBudget`` of its
    own, which a single message that can be decompressed never exceeds.

    A message that cannot be decoded is yielded as ``Undecodable``, between the batches before and after it. A
    message with a broken layout is the last result, whatever its tag: its end is unknown, and later bodies
    are not decoded either.

    Raises:
        LocalProtocolError: If a column name is wrong, or a body's rows take 2 GiB.
    """
    decoder = _decoder(broker_name, tags, columns, properties)
    for body in bodies:
        data = bytes(body)
        for part in decoder.decode_in_turn(data, [*message_starts(data), len(data)]):
            if not isinstance(part, Undecodable):
                yield decoder.filtered(part)
                continue
            if part.stored is None:
                yield part
                return
            if tags is None or part.stored.properties.get(property_names.TAGS) in tags:
                yield part


def row_of(
    message: MessageExt, *, columns: Sequence[str] | None = None, properties: Sequence[str] = ()
) -> pa.RecordBatch:
    """Return one message as a row: ``columns`` (by default all), then a column for each of ``properties``."""
    return rows_of([message], columns=columns, properties=properties)


def rows_of(
    messages: Sequence[MessageExt], *, columns: Sequence[str] | None = None, properties: Sequence[str] = ()
) -> pa.RecordBatch:
    """Return messages as rows: ``columns`` (by default all), then a column for each of ``properties``."""
    return _decoder("", None, columns, properties).columns_of_messages(messages)


class _Projection(NamedTuple):
    columns: tuple[str, ...]
    properties: tuple[str, ...]
    schema: pa.Schema
    """Schema of the columns and the properties."""
    decoded_schema: pa.Schema
    """The same schema, followed by the tags if these are only needed for filtering."""
    decoded: tuple[str, ...]
    """The columns, followed by the tags if these are only needed for filtering."""


@lru_cache(maxsize=32)
def _projection(names: tuple[str, ...], properties: tuple[str, ...], *, is_filtered: bool) -> _Projection:
    unknown = [name for name in names if name not in MESSAGE_SCHEMA.names]
    if unknown or len({*names, *properties}) < len(names) + len(properties):
        raise LocalProtocolError(
            f"Messages cannot be decoded into the columns {', '.join([*names, *properties])}: name each "
            f"column once, out of {', '.join(MESSAGE_SCHEMA.names)}, and properties by other names."
        )
    fields = [MESSAGE_SCHEMA.field(name) for name in names]
    schema = pa.schema(fields + [pa.field(name, pa.string()) for name in properties])
    if is_filtered and _TAGS not in names:
        with_tags = schema.append(MESSAGE_SCHEMA.field(_TAGS))
        return _Projection(names, properties, schema, with_tags, (*names, _TAGS))
    return _Projection(names, properties, schema, schema, names)


def _decoder(
    broker_name: str,
    tags: frozenset[str] | None,
    columns: Sequence[str] | None,
    properties: Sequence[str],
) -> _Decoder:
    names = tuple(MESSAGE_SCHEMA.names if columns is None else columns)
    return _Decoder(broker_name, tags, _projection(names, tuple(properties), is_filtered=tags is not None))


@dataclass(frozen=True, slots=True)
class _Decoder:
    """Decodes for one call, into the columns of ``projection``.

    Only :meth:`filtered` and :meth:`decode_one` leave out messages whose tag is not wanted.
    """

    broker_name: str
    tags: frozenset[str] | None
    projection: _Projection

    def filtered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.tags is None:
            return batch
        wanted = pa.array(sorted(self.tags), pa.string())
        kept = batch.filter(pc.is_in(batch.column(_TAGS), value_set=wanted))
        schema = self.projection.schema
        return _batch(kept.columns[: len(schema)], schema, len(kept))

    def decode_as_one(self, groups: Sequence[Sequence[PulledBody]]) -> list[pa.RecordBatch] | None:
        """Return slices of one unfiltered batch, one per group; None if a group is irregular or empty.

        Also return None if a body cannot be decompressed, if a column would take 2 GiB or, with several
        groups, if there is an inner batch.
        """
        if not all(groups):
            return None
        slices = BufferSlices.of([body for bodies in groups for body in bodies])
        try:
            check_column_bytes(len(slices.data))
            rows = locate(slices)
            if len(groups) > 1 and rows.sys_flag_bits() & INNER_BATCH_FLAGS == INNER_BATCH_FLAGS:
                return None
            batch = self.columns_of(rows, ExpansionBudget(int((slices.ends - slices.begins).sum())))
        except (IrregularLayout, RemoteProtocolError, LocalProtocolError):
            return None
        if len(groups) == 1:
            return [batch]
        assert rows.in_slices is not None
        rows_before = [0, *np.cumsum(rows.in_slices).tolist()]
        bounds = [rows_before[bodies] for bodies in accumulate(map(len, groups), initial=0)]
        return [batch.slice(at, end - at) for at, end in pairwise(bounds)]

    def decode_one(self, bodies: Sequence[PulledBody]) -> pa.RecordBatch | RocketMQError:
        """Decode bodies into one batch with only the wanted tags; return it, or the error."""
        data = b"".join(bodies)
        try:
            check_column_bytes(len(data))
            return self.filtered(self.decode(data))
        except RocketMQError as error:
            return error

    def decode(self, data: bytes) -> pa.RecordBatch:
        budget = ExpansionBudget(len(data))
        try:
            located = locate(BufferSlices.whole(data))
        except IrregularLayout:
            return self._scalar(data, budget)
        return self._decode_part(located, budget)

    def decode_in_turn(self, data: bytes, bounds: Sequence[int]) -> Iterator[pa.RecordBatch | Undecodable]:
        """Yield one batch of all messages between the first and the last bound.

        ``bounds`` has where each message begins, and the end. If the messages cannot be decoded together,
        yield the results of their halves; a single one that cannot be decoded is yielded as ``Undecodable``.
        """
        part = data[bounds[0] : bounds[-1]]
        try:
            yield self.decode(part)
        except RemoteProtocolError:
            if len(bounds) > 2:
                middle = len(bounds) // 2
                yield from self.decode_in_turn(data, bounds[: middle + 1])
                yield from self.decode_in_turn(data, bounds[middle:])
                return
            if (undecodable := why_undecodable(part)) is None:
                raise
            yield undecodable._replace(data=data[bounds[0] :]) if undecodable.stored is None else undecodable

    def columns_of(self, located: Rows, budget: ExpansionBudget) -> pa.RecordBatch:
        """Return a batch of located messages, not filtered by tags, created by vectorised operations.

        Raises:
            IrregularLayout: If the scalar codec must decode the messages.
            RemoteProtocolError: If a body cannot be decompressed, or exceeds the budget.
            LocalProtocolError: If a column exceeds 2 GiB.
        """
        rows = expand_inner_batches(located, budget)
        builder = ColumnBuilder(rows, self.broker_name, budget)
        return self._assembled(builder.column, builder.property, len(rows))

    def _decode_part(self, located: Rows, budget: ExpansionBudget) -> pa.RecordBatch:
        left = budget.left
        try:
            return self.columns_of(located, budget)
        except RemoteProtocolError:
            budget.left = left
        except IrregularLayout:
            budget.left = left
            if len(located) > _MIN_HALVED_ROWS:
                middle = len(located) // 2
                halves = (located.take(slice(middle)), located.take(slice(middle, None)))
                return pa.concat_batches([self._decode_part(half, budget) for half in halves])
        return self._scalar(bytes(located.data[located.starts[0] : located.ends[-1]]), budget)

    def _scalar(self, data: bytes, budget: ExpansionBudget) -> pa.RecordBatch:
        """Build the columns from messages decoded one by one; few exist at a time, to save memory."""
        messages = iter_messages(data, self.broker_name, budget)
        parts, body_bytes = [], 0
        while some := list(islice(messages, _SCALAR_ROWS)):
            body_bytes += sum(len(message.body) for message in some)
            check_column_bytes(body_bytes)
            parts.append(self.columns_of_messages(some))
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts or [self.columns_of_messages([])])

    def columns_of_messages(self, messages: Sequence[MessageExt]) -> pa.RecordBatch:
        values = dict(zip(MESSAGE_SCHEMA.names, zip(*messages, strict=True), strict=False))
        return self._assembled(
            lambda name: _column(MESSAGE_SCHEMA.field(name).type, values.get(name, ())),
            lambda name: pa.array([message.properties.get(name) for message in messages], pa.string()),
            len(messages),
        )

    def _assembled(
        self, column: Callable[[str], pa.Array], property_column: Callable[[str], pa.Array], rows: int
    ) -> pa.RecordBatch:
        projection = self.projection
        # Bodies come last, because copying them evicts the other columns' source from the processor's cache.
        made = {name: column(name) for name in sorted(projection.decoded, key=_BODY.__eq__)}
        columns = [made[name] for name in projection.columns]
        columns += map(property_column, projection.properties)
        if projection.decoded is not projection.columns:
            columns.append(made[_TAGS])
        return _batch(columns, projection.decoded_schema, rows)


def _batch(columns: Sequence[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Return a batch that has the right number of rows even without columns."""
    if columns:
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None]))


def _column(arrow_type: pa.DataType, values: Sequence[Any]) -> pa.Array:
    if arrow_type == TIMESTAMP_TYPE:
        return timestamps(np.array(values, np.int64))
    if arrow_type == MAP_TYPE:
        return pa.array([list(properties.items()) for properties in values], arrow_type)
    return pa.array(values, arrow_type)
