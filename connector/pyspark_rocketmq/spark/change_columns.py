"""Decodes change data (Canal, Debezium or Maxwell) in messages into columns of a plain stream or read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple, Unpack, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructField, StructType

from pyspark_rocketmq.change_data.change import (
    BadChange,
    Change,
    ChangeMessage,
    Decoded,
    Envelope,
    Position,
    SchemaChange,
    SourceTable,
    SourceType,
)
from pyspark_rocketmq.change_data.debezium import NEW_KEY
from pyspark_rocketmq.change_data.envelopes import EnvelopeOptions, envelope_of
from pyspark_rocketmq.change_data.json_text import show
from pyspark_rocketmq.errors import SchemaError
from pyspark_rocketmq.spark.version import HAS_ARROW_UDF
from pyspark_rocketmq.wire.columnar.schema import MESSAGE_SCHEMA

_BODY: Final = "body"
_KEYS: Final = "keys"
_PROPERTIES: Final = "properties"
_TEXTS: Final = (pa.string(), pa.large_string())
_SCHEMA_CHANGE: Final = "schema_change"
_PIECE_BYTES: Final = 16 << 20
"""Approximate size at which a record batch of changes ends."""
_MOST_ESTIMATED: Final = 16
"""Maximum number of a message's changes with which its size is only estimated.

To measure a message takes longer than to decode a small one.
"""
_COLUMNS: Final = {
    "op": (pa.string(), StringType()),
    "table": (pa.string(), StringType()),
    "key": (pa.string(), StringType()),
    "position": (pa.list_(pa.int64()), ArrayType(LongType())),
    "before": (pa.string(), StringType()),
    "after": (pa.string(), StringType()),
    "absent": (pa.list_(pa.string()), ArrayType(StringType())),
    "statement": (pa.string(), StringType()),
    "error": (pa.string(), StringType()),
}
"""The added columns by name, each with its types in Arrow and in Spark."""
_IN_A_PIPELINE: Final = "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION"
"""Condition of Spark's error when a pipeline's query function asks for something that Spark forbids there."""


def change_columns(
    df: DataFrame, *, envelope: str, columns: Sequence[str] | None = None, **options: Unpack[EnvelopeOptions]
) -> DataFrame:
    """Return the changes of a database's tables that the messages of ``df`` hold, a row for each.

    ``df`` is a stream or a read of ``format("rocketmq")``, with ``body``, and for Debezium with ``keys`` and
    ``properties``. Its columns stay, and these are added:

    * ``op``: ``insert``, ``update``, ``delete``, ``truncate``, ``snapshot`` or ``schema_change``; null in a
      row with ``error``;
    * ``table``: ``database.table``, or ``database.schema.table``;
    * ``key``, ``before``, ``after``: JSON objects, for ``from_json`` or ``parse_json``. Numbers have all
      their digits (a decimal that can have more than 38 is text), bytes are in base64, times in ISO 8601.
      ``after`` is null for a delete and a truncation;
    * ``position``: place in the change log of the source, by which to order the changes of a key; null if the
      messages have none. Changes with the same position are in the order of ``queueOffset``;
    * ``absent``: columns that the source left out of ``after``, since they keep their values;
    * ``statement``: SQL of a schema change;
    * ``error``: why a message, or a row of one, cannot be applied.

    An update that changes the key becomes two rows, a delete and an insert. Heartbeats, tombstones and marks
    of transactions become no rows.

    Args:
        df: The messages.
        envelope: ``canal``, ``canal-protobuf``, ``debezium`` or ``maxwell``.
        columns: The columns of ``format("rocketmq")`` to keep; by default all that ``df`` has. A Spark
            Declarative Pipeline needs this argument, since its query functions must not ask Spark what ``df``
            has.
        options: ``source_time_zone`` (needed for Canal), ``keys``, ``servers``, ``zero_dates``,
            ``out_of_range``, ``tinyint1_as_boolean``, ``binary``, ``unavailable_value``.

    Raises:
        OptionError: If the envelope or an option is unknown, wrong or missing.
        SchemaError: If ``df`` has no column ``body`` or already has an added one, or if ``columns`` names
            another column than those of ``format("rocketmq")``, or is missing in a pipeline.
    """
    decoder = envelope_of(envelope, options)
    added = StructType([StructField(name, kind) for name, (_, kind) in _COLUMNS.items()])
    if columns is not None:
        _check(_known(columns))
        if HAS_ARROW_UDF:
            return _in_a_pipeline(df, columns, decoder, added)
        df = df.select(*columns)
    fields = _fields(df)
    _check([field.name for field in fields])
    return df.mapInArrow(_Changes(decoder), StructType([*fields, *added.fields]))


def _in_a_pipeline(df: DataFrame, columns: Sequence[str], decoder: Envelope, added: StructType) -> DataFrame:
    """Return the changes by an Arrow UDF, for a Spark Declarative Pipeline.

    In a pipeline ``mapInArrow`` cannot be used: it would ask Spark for the columns of ``df``.
    """
    from pyspark.sql import functions as sf
    from pyspark.sql.pandas.functions import arrow_udf

    def decode(bodies: pa.Array, keys: pa.Array, properties: pa.Array) -> pa.Array:
        return _lists(decoder, bodies, keys, properties)

    # Its annotations leave this form out.
    function = cast("Any", arrow_udf)(decode, ArrayType(added))
    optional = {_KEYS: StringType(), _PROPERTIES: MapType(StringType(), StringType())}
    others = [
        sf.col(name) if name in columns else sf.lit(None).cast(type_) for name, type_ in optional.items()
    ]
    return df.select(*columns, sf.inline(function(sf.col(_BODY), *others)))


def _lists(decoder: Envelope, bodies: pa.Array, keys: pa.Array, properties: pa.Array) -> pa.ListArray:
    """Return for each message a list of its changes, as structs of the added columns."""
    rows: list[_Row] = []
    ends = [0]
    for changes in _decoded(decoder, bodies, keys, properties):
        rows.extend(filter(None, map(_row, changes)))
        ends.append(len(rows))
    structs = pa.StructArray.from_arrays(_arrays(rows), names=list(_COLUMNS))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), structs)


def _fields(df: DataFrame) -> list[StructField]:
    try:
        return list(df.schema.fields)
    except AnalysisException as error:
        if error.getCondition() != _IN_A_PIPELINE:
            raise
        raise SchemaError(
            "A query function of a pipeline must not ask Spark for the columns of its messages: name those "
            'that you need, such as change_columns(messages, columns=["queueOffset", "body"], …).'
        ) from error


def _known(columns: Sequence[str]) -> Sequence[str]:
    unknown = [name for name in columns if name not in MESSAGE_SCHEMA.names]
    if unknown:
        raise SchemaError(
            f"The argument columns of change_columns names {', '.join(unknown)}, but format('rocketmq') has "
            f"no such column. Choose from {', '.join(MESSAGE_SCHEMA.names)}."
        )
    return columns


def _check(names: Iterable[str]) -> None:
    """Check the columns of the messages.

    Raises:
        SchemaError: If ``body`` is missing, or a column has the name of one that is added.
    """
    lower = {name.lower() for name in names}
    if _BODY not in lower:
        raise SchemaError(
            "change_columns needs the column body of format('rocketmq'): name it in includeColumns, and keep "
            "it in select."
        )
    twice = [name for name in _COLUMNS if name in lower]
    if twice:
        raise SchemaError(
            f"The messages already have the column(s) {', '.join(twice)}, which change_columns adds: rename "
            "them."
        )


class _Row(NamedTuple):
    """A row of the added columns."""

    op: str | None
    table: str | None
    key: str | None
    position: Position | None
    before: str | None
    after: str | None
    absent: list[str] | None
    statement: str | None
    error: str | None


class _Changes:
    """The function for ``mapInArrow``: each message becomes a row for each of its changes."""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the changes in the messages of each batch, in one or several record batches.

        Each change has a copy of its message's columns. So a batch of changes ends where these copies take
        about 16 MiB; otherwise the changes of one message could be too large for Arrow or for the memory.

        Bodies are counted exactly. The other columns of a message with up to 16 changes count as the mean of
        the messages that came with it: such messages add at most 16 times the size of these columns in the
        batch that came.
        """
        for batch in batches:
            yield from self._pieces(batch)

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        by_lower = {name.lower(): name for name in batch.schema.names}
        missing = pa.nulls(batch.num_rows)
        bodies, keys, properties = (
            batch.column(by_lower[name]) if name in by_lower else missing
            for name in (_BODY, _KEYS, _PROPERTIES)
        )
        estimated = _estimated_sizes(batch, bodies)
        origins: list[int] = []
        rows: list[_Row] = []
        size = 0
        for at, changes in enumerate(_decoded(self._envelope, bodies, keys, properties)):
            # Single copies of all messages are no larger than the batch itself, so they are not counted.
            copied = 0 if len(changes) <= 1 else estimated[at]
            if len(changes) > _MOST_ESTIMATED:
                copied = _measured_size(batch, at)
            for row in filter(None, map(_row, changes)):
                origins.append(at)
                rows.append(row)
                size += copied + _size(row)
                if size >= _PIECE_BYTES:
                    yield _piece(batch, origins, rows)
                    origins, rows, size = [], [], 0
        if rows:
            yield _piece(batch, origins, rows)


def _estimated_sizes(batch: pa.RecordBatch, bodies: pa.Array) -> list[int]:
    """Return each message's size: its body's, and the mean size of the other columns."""
    if not batch.num_rows:
        return []
    others = (batch.nbytes - bodies.nbytes) // batch.num_rows
    return [(length or 0) + others for length in pc.binary_length(bodies).to_pylist()]


def _measured_size(batch: pa.RecordBatch, at: int) -> int:
    return int(batch.slice(at, 1).nbytes)


def _piece(batch: pa.RecordBatch, origins: Sequence[int], rows: Sequence[_Row]) -> pa.RecordBatch:
    """Return the rows, each with the columns of its message: the one of this index in ``batch``."""
    kept = [column.take(pa.array(origins, pa.int64())) for column in batch.columns]
    return pa.RecordBatch.from_arrays([*kept, *_arrays(rows)], names=[*batch.schema.names, *_COLUMNS])


def _size(row: _Row) -> int:
    """Return the number of characters in the texts of a row."""
    return sum(len(value) for value in (*row, *(row.absent or ())) if isinstance(value, str))


def _decoded(
    envelope: Envelope, bodies: pa.Array, keys: pa.Array, properties: pa.Array
) -> Iterator[Sequence[Decoded]]:
    """Yield the contents of each message."""
    messages = zip(bodies.to_pylist(), keys.to_pylist(), _read_properties(properties), strict=True)
    for body, key, known in messages:
        yield envelope.decode(ChangeMessage(body or b"", key or "", known))


def _read_properties(properties: pa.Array) -> Iterable[Mapping[str, str]]:
    """Return each message's property ``NEW_KEY``, the only one that an envelope reads, as a mapping.

    The mapping is empty without this property, and if ``properties`` is no map of texts.
    """
    if not pa.types.is_map(properties.type) or properties.type.key_type not in _TEXTS:
        return [{}] * len(properties)
    new_keys = pc.map_lookup(properties, pa.scalar(NEW_KEY, properties.type.key_type), "first")
    return [{} if key is None else {NEW_KEY: key} for key in new_keys.to_pylist()]


def _arrays(rows: Sequence[_Row]) -> list[pa.Array]:
    return [pa.array([row[at] for row in rows], kind) for at, (kind, _) in enumerate(_COLUMNS.values())]


def _row(change: Decoded) -> _Row | None:
    match change:
        case Change():
            return _Row(
                op=change.operation.value,
                table=str(change.table),
                key=_json(change.key, change.types),
                position=change.position,
                before=None if change.before is None else _json(change.before, change.types),
                after=_json(change.row, change.types) if change.row else None,
                absent=sorted(change.absent),
                statement=None,
                error=None,
            )
        case SchemaChange():
            table = _name(change.table)
            return _Row(
                _SCHEMA_CHANGE, table, None, change.position, None, None, None, change.statement, None
            )
        case BadChange():
            return _Row(None, _name(change.table), None, None, None, None, None, None, change.reason)
        case _:
            return None


def _json(values: Mapping[str, Any], types: Mapping[str, SourceType]) -> str:
    return show({name: _exact(value, types.get(name)) for name, value in values.items()})


def _exact(value: Any, kind: SourceType | None) -> Any:
    """Return the value, or its text if it is a decimal with more digits than Spark's decimals have.

    ``from_json`` reads such a decimal as a string, and would first turn a JSON number into a double.
    """
    match value:
        case Decimal() if kind is not None and kind.spark == "string":
            return f"{value:f}"
        case tuple() if kind is not None:
            return tuple(_exact(item, kind.element) for item in value)
        case _:
            return value


def _name(table: SourceTable | None) -> str | None:
    return None if table is None else str(table)
