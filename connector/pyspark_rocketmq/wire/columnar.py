"""Pulled messages as Arrow columns, all messages of a buffer at once: the hot path of every read.

Regular input is decoded by numpy views on the pulled bytes, with no Python object per message: find the messages
and their parts (:mod:`~pyspark_rocketmq.wire.columnar_rows`), put the members of inner batches in their place
(:mod:`~pyspark_rocketmq.wire.columnar_members`), make the columns asked for
(:mod:`~pyspark_rocketmq.wire.columnar_builder`). What the vectorised decoder does not expect (malformed UTF-8, odd
properties) is cut out by halves and given to the scalar codec of :mod:`~pyspark_rocketmq.wire.messages`; malformed
bytes are given to it whole. So the two never differ, and errors are worded in one place.

Each call has a cost before the first message: decode the bodies of many pulls in one call. Those that were received
into one buffer are decoded where they are (:mod:`~pyspark_rocketmq.wire.columnar_stretches`).
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
from pyspark_rocketmq.model import MessageExt, PulledBody
from pyspark_rocketmq.wire import properties as property_names
from pyspark_rocketmq.wire.columnar_builder import TIMESTAMP_TYPE, ColumnBuilder, timestamps
from pyspark_rocketmq.wire.columnar_members import expand_inner_batches
from pyspark_rocketmq.wire.columnar_properties import MAP_TYPE
from pyspark_rocketmq.wire.columnar_ranges import IrregularLayout, check_column_bytes
from pyspark_rocketmq.wire.columnar_rows import Rows, locate
from pyspark_rocketmq.wire.columnar_stretches import Stretches
from pyspark_rocketmq.wire.compression import ExpansionBudget
from pyspark_rocketmq.wire.messages import INNER_BATCH_FLAGS, iter_messages
from pyspark_rocketmq.wire.undecodable import Undecodable, message_starts, why_undecodable

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


def decode_columns(
    data: bytes,
    broker_name: str,
    *,
    limit: int | None = None,
    tags: frozenset[str] | None = None,
    columns: Sequence[str] | None = None,
    properties: Sequence[str] = (),
) -> pa.RecordBatch:
    """Decode the bodies of one or more pull responses, one behind the other, into ``MESSAGE_SCHEMA``.

    Rows are in stored order and equal to ``decode_messages``; a timestamp that microseconds cannot hold is null.

    Args:
        data: Stored messages; below 2 GiB, as must be their decompressed bodies together.
        broker_name: The broker they were pulled from.
        limit: Drop messages whose queue offset is not below it.
        tags: Keep only messages whose tag is one of these exactly; the broker filters by hash code alone.
        columns: Decode only these columns of ``MESSAGE_SCHEMA``, in this order; with none the rows are counted.
            Without ``body`` a body is not decompressed, and one that cannot be may go unnoticed.
        properties: Properties that get columns of their own behind these; null where a message lacks one.

    Raises:
        RemoteProtocolError: As ``decode_messages``.
        LocalProtocolError: If the data or a column exceed 2 GiB, or a column has none of the schema's names.
    """
    check_column_bytes(len(data))
    decoder = _Decoder(broker_name, limit, _projected(columns, properties, tags))
    return _with_tags(decoder.decode(data), tags, decoder.projection)


def decode_together(
    groups: Sequence[Sequence[PulledBody]],
    broker_name: str,
    *,
    tags: frozenset[str] | None = None,
    columns: Sequence[str] | None = None,
    properties: Sequence[str] = (),
) -> list[pa.RecordBatch | RocketMQError]:
    """Decode several lists of bodies in one go; for each what ``decode_columns`` makes of it, joined, or its error.

    Bodies that are views of one buffer are not copied; a batch never refers to them.
    """
    decoder = _Decoder(broker_name, None, _projected(columns, properties, tags))
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
    """Decode bodies that cannot be decoded together: one by one, and one that cannot be decoded alone by halves.

    Each batch is decoded when it is asked for, so that it may be gone before the next: a message alone expands to no
    more than is allowed. One that cannot be decoded stands in its place; behind one whose layout is broken there is
    nothing more, because nobody knows where it ends.
    """
    decoder = _Decoder(broker_name, None, _projected(columns, properties, tags))
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
    return _Decoder(message.broker_name, None, _projected(columns, properties, None)).row_of(message)


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
    """A batch for each group, slices of one; None if anything is irregular or empty, or there are inner batches."""
    if not all(groups):
        return None
    stretches = Stretches.of([body for bodies in groups for body in bodies])
    check_column_bytes(len(stretches.data))
    try:
        rows = locate(stretches)
        if len(groups) > 1 and rows.sys_flag_bits() & INNER_BATCH_FLAGS == INNER_BATCH_FLAGS:
            return None
        batch = decoder.columns_of(rows, ExpansionBudget(int((stretches.ends - stretches.begins).sum())))
    except (IrregularLayout, RemoteProtocolError):
        return None
    if len(groups) == 1:
        return [batch]
    assert rows.in_stretches is not None
    rows_before = [0, *np.cumsum(rows.in_stretches).tolist()]
    bounds = [rows_before[bodies] for bodies in accumulate(map(len, groups), initial=0)]
    return [batch.slice(at, end - at) for at, end in pairwise(bounds)]


class _Projection(NamedTuple):
    """What is decoded: columns of the schema, then properties, and behind them tags if only to filter by them."""

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
            f"Messages cannot be decoded into the columns {', '.join([*names, *properties])}: name each column once, "
            f"out of {', '.join(MESSAGE_SCHEMA.names)}, and properties by other names."
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
    limit: int | None
    projection: _Projection

    def decode(self, data: bytes) -> pa.RecordBatch:
        budget = ExpansionBudget(len(data))
        try:
            located = locate(Stretches.whole(data))
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
        rows = expand_inner_batches(located.below(self.limit), budget).below(self.limit)
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
        """Build the columns from decoded messages, one by one; few exist at a time, for they take much memory."""
        messages = iter_messages(data, self.broker_name, budget, limit=self.limit)
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
