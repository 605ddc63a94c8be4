"""Pulled messages as Arrow columns, all messages of a buffer at once: the hot path of every read.

Regular input is decoded by numpy views on the pulled bytes, with no Python object per message: find the
messages and their parts (:mod:`~pyspark_rocketmq.wire.columnar.rows`), put the members of inner batches in
their place (:mod:`~pyspark_rocketmq.wire.columnar.columns`), make the columns asked for
(:mod:`~pyspark_rocketmq.wire.columnar.columns`). What the vectorised decoder does not expect (malformed
UTF-8, odd properties) is cut out by halves and given to the scalar codec of
:mod:`~pyspark_rocketmq.wire.messages`; malformed bytes are given to it whole. So the two never differ, and
errors are worded in one place.

Each call has a cost before the first message: decode the bodies of many pulls in one call. Those that were
received into one buffer are decoded where they are (:mod:`~pyspark_rocketmq.wire.columnar.rows`).

Messages that cannot be decoded: what is wrong with one, and how it is shown with the bytes that are stored.

Java's consumer drops such a message in silence, and what follows it in the same answer
(``MessageDecoder.decodesBatch``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    TIMESTAMP_TYPE,
    ColumnBuilder,
    expand_inner_batches,
    timestamps,
)
from pyspark_rocketmq.wire.columnar.property_columns import MAP_TYPE
from pyspark_rocketmq.wire.columnar.rows import BufferSlices, Rows, locate
from pyspark_rocketmq.wire.compression import ExpansionBudget
from pyspark_rocketmq.wire.messages import (
    INNER_BATCH_FLAGS,
    MIN_STORED_BYTES,
    StoredMessage,
    check_expands,
    decode_stored_messages,
    iter_messages,
    shown_as_stored,
)
from pyspark_rocketmq.wire.properties import INNER_NUM

UNDECODABLE: Final = "UNDECODABLE"
"""The property that says why a message is shown with the bytes that are stored. Ours: Java has none of that
name."""
_MAX_REASON: Final = 500
_QUEUE_OFFSET_AT: Final = 20
_LENGTH_BYTES: Final = 4


class Undecodable(NamedTuple):
    """A message that cannot be decoded, in the place of its row."""

    stored: StoredMessage | None
    """As it is stored; None if its layout is broken, and then what follows it in the answer is not read
    either."""
    data: bytes
    """All bytes of it; with a broken layout, the rest of the answer from where it begins."""
    reason: str
    """A sentence or two."""

    def queue_offsets(self, at_least: int, end: int, *, is_filtered: bool) -> range:
        """The queue offsets it has; several for an inner batch.

        Args:
            at_least: The first that can come, which it is where nothing is left out.
            end: No offset as high as this can come.
            is_filtered: Whether messages before it may be left out.
        """
        if self.stored is not None:
            return offsets_of(self.stored)
        told = int.from_bytes(self.data[_QUEUE_OFFSET_AT : _QUEUE_OFFSET_AT + 8], "big", signed=True)
        first = told if is_filtered and at_least <= told < end else at_least
        return range(first, first + 1)

    def shown(self, queue: MessageQueue, queue_offset: int) -> MessageExt:
        """As a consumer gets it: the body is what is stored, and property ``UNDECODABLE`` says why.

        With a broken layout the body is the whole of it, and all but the position is empty or 0; it has no
        place in the log, -1, by which a broker could be asked to copy it.
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
    """What is wrong with the one message that ``data`` is; None if nothing is."""
    try:
        (stored,) = decode_stored_messages(data)
    except RemoteProtocolError as error:
        return Undecodable(None, data, str(error))
    try:
        check_expands(stored, ExpansionBudget(len(data)))
    except RemoteProtocolError as error:
        return Undecodable(stored, data, str(error))
    return None


def message_starts(data: bytes) -> list[int]:
    """Where messages begin by their total sizes, as far as these can be right."""
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
    """The queue offsets that a message has by what its broker says of it; several for an inner batch."""
    return range(stored.queue_offset, stored.queue_offset + _count_of(stored))


def _count_of(stored: StoredMessage) -> int:
    if stored.sys_flag & INNER_BATCH_FLAGS != INNER_BATCH_FLAGS:
        return 1
    announced = stored.properties.get(INNER_NUM, "")
    is_number = announced.isascii() and announced.isdigit() and len(announced) < 10
    return max(1, int(announced)) if is_number else 1


MESSAGE_SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("brokerName", pa.string()),
        pa.field("queueId", pa.int32()),
        pa.field("queueOffset", pa.int64()),
        pa.field("commitLogOffset", pa.int64()),
        pa.field("msgId", pa.string()),
        pa.field("keys", pa.string()),
        pa.field("tags", pa.string()),
        pa.field("body", pa.binary()),
        pa.field("properties", MAP_TYPE),
        pa.field("bornTimestamp", TIMESTAMP_TYPE),
        pa.field("bornHost", pa.string()),
        pa.field("storeTimestamp", TIMESTAMP_TYPE),
        pa.field("storeHost", pa.string()),
        pa.field("reconsumeTimes", pa.int32()),
        pa.field("sysFlag", pa.int32()),
        pa.field("flag", pa.int32()),
    ]
)
"""The fields of ``MessageExt`` in their order, in Spark's types; all nullable, as Spark writes them."""

_TAGS: Final = "tags"
_BODY: Final = "body"
_MIN_HALVED_ROWS: Final = 32
"""The scalar codec decodes as many in the time of a vectorised call."""
_SCALAR_ROWS: Final = 1024


def projected_schema(columns: Sequence[str] | None = None, properties: Sequence[str] = ()) -> pa.Schema:
    """These columns of ``MESSAGE_SCHEMA`` (all by default) and the properties behind them.

    Raises:
        LocalProtocolError: If a name is none of the schema's or there twice.
    """
    return _projected(columns, properties, None).schema


def decode_together(
    groups: Sequence[Sequence[PulledBody]],
    broker_name: str,
    *,
    tags: frozenset[str] | None = None,
    columns: Sequence[str] | None = None,
    properties: Sequence[str] = (),
) -> list[pa.RecordBatch | RocketMQError]:
    """Decode several lists of bodies together; each gives its batch or its error.

    Bodies that are views of one buffer are not copied; a batch never refers to them.
    """
    decoder = _Decoder(broker_name, _projected(columns, properties, tags))
    together = _decode_together(groups, decoder)
    if together is None:
        return [_decode_alone(bodies, decoder, tags) for bodies in groups]
    return [_with_tags(batch, tags, decoder.projection) for batch in together]


def decode_in_turn(
    bodies: Sequence[PulledBody],
    broker_name: str,
    *,
    tags: frozenset[str] | None = None,
    columns: Sequence[str] | None = None,
    properties: Sequence[str] = (),
) -> Iterator[pa.RecordBatch | Undecodable]:
    """Decode bodies one by one, and one that cannot be decoded alone by halves.

    Each batch is decoded when it is asked for, so that it may be gone before the next: a message alone
    expands to no more than is allowed. One that cannot be decoded stands in its place; behind one whose
    layout is broken there is nothing more, because nobody knows where it ends.
    """
    decoder = _Decoder(broker_name, _projected(columns, properties, tags))
    for body in bodies:
        data = bytes(body)
        for part in decoder.decode_in_turn(data, [*message_starts(data), len(data)]):
            if not isinstance(part, Undecodable):
                yield _with_tags(part, tags, decoder.projection)
            elif (
                tags is None or part.stored is None or part.stored.properties.get(property_names.TAGS) in tags
            ):
                yield part
                if part.stored is None:
                    return


def row_of(
    message: MessageExt, *, columns: Sequence[str] | None = None, properties: Sequence[str] = ()
) -> pa.RecordBatch:
    """One message in the columns asked for."""
    return _Decoder(message.broker_name, _projected(columns, properties, None)).row_of(message)


def _decode_alone(
    bodies: Sequence[PulledBody], decoder: _Decoder, tags: frozenset[str] | None
) -> pa.RecordBatch | RocketMQError:
    data = b"".join(bodies)
    try:
        check_column_bytes(len(data))
        return _with_tags(decoder.decode(data), tags, decoder.projection)
    except RocketMQError as error:
        return error


def _decode_together(
    groups: Sequence[Sequence[PulledBody]], decoder: _Decoder
) -> list[pa.RecordBatch] | None:
    """A batch for each group, slices of one; None if anything is irregular, empty or an inner batch."""
    if not all(groups):
        return None
    slices = BufferSlices.of([body for bodies in groups for body in bodies])
    check_column_bytes(len(slices.data))
    try:
        rows = locate(slices)
        if len(groups) > 1 and rows.sys_flag_bits() & INNER_BATCH_FLAGS == INNER_BATCH_FLAGS:
            return None
        batch = decoder.columns_of(rows, ExpansionBudget(int((slices.ends - slices.begins).sum())))
    except (IrregularLayout, RemoteProtocolError):
        return None
    if len(groups) == 1:
        return [batch]
    assert rows.in_slices is not None
    rows_before = [0, *np.cumsum(rows.in_slices).tolist()]
    bounds = [rows_before[bodies] for bodies in accumulate(map(len, groups), initial=0)]
    return [batch.slice(at, end - at) for at, end in pairwise(bounds)]


class _Projection(NamedTuple):
    """What is decoded: columns, then properties, and last the tags if only to filter by them."""

    columns: tuple[str, ...]
    properties: tuple[str, ...]
    schema: pa.Schema
    """Of what is asked for: without tags that only filter."""
    has_tags_behind: bool

    @property
    def decoded_schema(self) -> pa.Schema:
        return self.schema.append(MESSAGE_SCHEMA.field(_TAGS)) if self.has_tags_behind else self.schema


def _projected(
    columns: Sequence[str] | None, properties: Sequence[str], tags: frozenset[str] | None
) -> _Projection:
    names = tuple(MESSAGE_SCHEMA.names if columns is None else columns)
    return _projection(names, tuple(properties), is_filtered=tags is not None)


@lru_cache(maxsize=32)
def _projection(names: tuple[str, ...], properties: tuple[str, ...], *, is_filtered: bool) -> _Projection:
    unknown = [name for name in names if name not in MESSAGE_SCHEMA.names]
    if unknown or len({*names, *properties}) < len(names) + len(properties):
        raise LocalProtocolError(
            f"Messages cannot be decoded into the columns {', '.join([*names, *properties])}: name each "
            f"column once, out of {', '.join(MESSAGE_SCHEMA.names)}, and properties by other names."
        )
    fields = [MESSAGE_SCHEMA.field(name) for name in names] + [
        pa.field(name, pa.string()) for name in properties
    ]
    return _Projection(names, properties, pa.schema(fields), is_filtered and _TAGS not in names)


def _with_tags(batch: pa.RecordBatch, tags: frozenset[str] | None, projection: _Projection) -> pa.RecordBatch:
    if tags is None:
        return batch
    kept = batch.filter(pc.is_in(batch.column(_TAGS), value_set=pa.array(sorted(tags), pa.string())))
    return _batch(kept.columns[: len(projection.schema)], projection.schema, len(kept))


def _batch(columns: Sequence[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """A batch that has its number of rows even without columns."""
    if columns:
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None]))


@dataclass(frozen=True, slots=True)
class _Decoder:
    """One call's decisions."""

    broker_name: str
    projection: _Projection

    def decode(self, data: bytes) -> pa.RecordBatch:
        budget = ExpansionBudget(len(data))
        try:
            located = locate(BufferSlices.whole(data))
        except IrregularLayout:
            return self._scalar(data, budget)
        return self._decode_part(located, budget)

    def decode_in_turn(self, data: bytes, bounds: Sequence[int]) -> Iterator[pa.RecordBatch | Undecodable]:
        """The messages between the bounds at once or, if that cannot be, one half after the other."""
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

    def row_of(self, message: MessageExt) -> pa.RecordBatch:
        """One message."""
        return self._columns_of_messages([message])

    def columns_of(self, located: Rows, budget: ExpansionBudget) -> pa.RecordBatch:
        """All columns by vectors.

        Raises:
            IrregularLayout: If the scalar codec has to do it.
            RemoteProtocolError: If a body cannot be decompressed, or is beyond the budget.
            LocalProtocolError: If a column exceeds 2 GiB.
        """
        rows = expand_inner_batches(located, budget)
        builder = ColumnBuilder(rows, self.broker_name, budget)
        projection = self.projection
        wanted = [*projection.columns, *([_TAGS] if projection.has_tags_behind else [])]
        # The bodies last: copying them drives what the others are made of out of the processor's cache.
        made = {name: builder.column(name) for name in sorted(wanted, key=_BODY.__eq__)}
        columns = [made[name] for name in wanted]
        columns[len(projection.columns) : len(projection.columns)] = map(
            builder.property, projection.properties
        )
        return _batch(columns, projection.decoded_schema, len(rows))

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
            parts.append(self._columns_of_messages(some))
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts or [self._columns_of_messages([])])

    def _columns_of_messages(self, messages: Sequence[MessageExt]) -> pa.RecordBatch:
        values = dict(zip(MESSAGE_SCHEMA.names, zip(*messages, strict=True), strict=False))
        projection = self.projection
        wanted = [*projection.columns, *([_TAGS] if projection.has_tags_behind else [])]
        columns = [_column(MESSAGE_SCHEMA.field(name).type, values.get(name, ())) for name in wanted]
        columns[len(projection.columns) : len(projection.columns)] = [
            pa.array([message.properties.get(name) for message in messages], pa.string())
            for name in projection.properties
        ]
        return _batch(columns, projection.decoded_schema, len(messages))


def _column(arrow_type: pa.DataType, values: Sequence[Any]) -> pa.Array:
    if arrow_type == TIMESTAMP_TYPE:
        return timestamps(np.array(values, np.int64))
    if arrow_type == MAP_TYPE:
        return pa.array([list(properties.items()) for properties in values], arrow_type)
    return pa.array(values, arrow_type)
