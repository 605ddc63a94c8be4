"""Checks at ``emit()`` that each value fits its column.

Spark would notice an error only when it converts a whole batch to Arrow; at ``emit()`` the error names value
and column. It ends the query: the cause is not a message, and every delivery would break the schema again.
See row D5 of ``docs/semantics.md``.

Arrow's conversion of Python values and Spark's accept different values, and neither is safe: both truncate
1.5 to 1 in a column of whole numbers, Arrow converts booleans to numbers, and a map with an entry of None
crashes the process. So the class of a value is checked first, even inside arrays, maps and structs, and only
then Arrow converts it. Spark can convert every value that passes here, in any combination.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from numbers import Integral, Real
from operator import itemgetter
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import types as st
from pyspark.sql.pandas.types import _create_converter_from_pandas

from pyspark_rocketmq.errors import SchemaError
from pyspark_rocketmq.model import MESSAGE_COLUMNS, QUEUE_OFFSET
from pyspark_rocketmq.spark.version import arrow_schema, arrow_type

_OFFSET = st.StructType().add(QUEUE_OFFSET, MESSAGE_COLUMNS[QUEUE_OFFSET])
_PLAIN = (
    st.StringType,
    st.BinaryType,
    st.BooleanType,
    st.ByteType,
    st.ShortType,
    st.IntegerType,
    st.LongType,
    st.FloatType,
    st.DoubleType,
)
"""Types whose checked values Arrow converts itself; values of other types take Spark's own conversion."""

Row = tuple[Any, ...]
"""A queue offset, then one value per output column."""

_Check = Callable[[Any], bool]
"""Function that returns whether a value fits; checks of nullable parts accept None."""
_SCALARS: tuple[tuple[type[st.DataType], tuple[type, ...], tuple[type, ...]], ...] = (
    (st.StringType, (str,), ()),
    (st.BinaryType, (bytes, bytearray), ()),
    (st.BooleanType, (bool, np.bool_), ()),
    (st.IntegralType, (Integral,), (bool,)),
    (st.DecimalType, (Decimal, int), (bool,)),
    (st.FractionalType, (Real,), (bool,)),
    (st.DateType, (date,), (datetime,)),
    (st.TimestampType, (datetime,), ()),
    (st.TimestampNTZType, (datetime,), ()),
    (st.DayTimeIntervalType, (timedelta,), ()),
)
"""Column type, accepted Python classes, and subclasses that are refused because they would lose information.

The first item whose column type matches counts. pandas.NaT is a datetime, but Arrow refuses it.
"""
_KINDS: tuple[tuple[Callable[[pa.DataType], bool], tuple[Callable[[pa.DataType], bool], ...]], ...] = (
    (pa.types.is_integer, (pa.types.is_integer,)),
    (pa.types.is_floating, (pa.types.is_floating, pa.types.is_integer)),
    (pa.types.is_decimal, (pa.types.is_decimal, pa.types.is_integer)),
    (pa.types.is_string, (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)),
    (
        pa.types.is_binary,
        (
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_binary_view,
            pa.types.is_fixed_size_binary,
        ),
    ),
    (pa.types.is_duration, (pa.types.is_duration,)),
    (pa.types.is_timestamp, (pa.types.is_timestamp,)),
    (pa.types.is_struct, (pa.types.is_struct,)),
    (pa.types.is_map, (pa.types.is_map,)),
    (pa.types.is_list, (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)),
)
"""Kinds of column types, each with the kinds of types that may be cast to it."""


class RowColumns:
    """Creates record batches of one schema from Python values; picklable."""

    def __init__(self, schema: st.StructType) -> None:
        self._fields = tuple(schema.fields)
        self.schema = arrow_schema(schema)
        """Schema of the batches."""
        self.is_plain = all(isinstance(field.dataType, st.AtomicType) for field in self._fields)
        """Whether no column is an array, a map or a struct."""
        self.texts = tuple(
            at
            for at, field in enumerate(self._fields)
            if isinstance(field.dataType, st.StringType | st.BinaryType)
        )
        """Indexes of the columns of strings and bytes."""

    def to_batch(self, columns: Mapping[str, Any], count: int) -> pa.RecordBatch:
        """Create a batch of ``count`` rows.

        A column is a list, an array of NumPy, an array of exactly its Arrow type, or one value for all rows.
        """
        arrays = [self.array(field, columns[field.name], count) for field in self._fields]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def array(self, field: st.StructField, values: Any, count: int) -> pa.Array:
        """Create the column ``field`` of a batch of ``count`` rows; for ``values`` see :meth:`to_batch`."""
        wanted = self.schema.field(field.name).type
        if isinstance(values, pa.Array):
            return values
        if not isinstance(values, list | np.ndarray):
            return pa.repeat(pa.scalar(values, wanted), count)
        if isinstance(field.dataType, _PLAIN):
            # NaN becomes null, as for pandas' columns in Spark.
            return pa.array(values, wanted, from_pandas=True)
        convert = _create_converter_from_pandas(
            field.dataType, timezone="UTC", error_on_duplicated_field_names=False
        )
        column = convert(pd.Series(values, dtype=object))
        return pa.Array.from_pandas(column, mask=column.isnull(), type=wanted)


def _fits_scalar(
    classes: tuple[type, ...], refused: tuple[type, ...], arrow_type: pa.DataType, value: Any
) -> bool:
    if not isinstance(value, classes) or isinstance(value, refused):
        return False
    try:
        pa.array([value], arrow_type)
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError):
        return False
    return True


def _fits_aware(check: _Check, value: Any) -> bool:
    """Return whether a time in an array, map or struct has a zone and fits.

    Without a zone Spark would use the session's.
    """
    return getattr(value, "tzinfo", None) is not None and check(value)


def _fits_nullable(check: _Check, value: Any) -> bool:
    return value is None or check(value)


def _fits_array(element: _Check, value: Any) -> bool:
    return isinstance(value, list | tuple | np.ndarray) and all(map(element, value))


def _fits_map(key: _Check, item: _Check, value: Any) -> bool:
    return isinstance(value, dict) and all(map(key, value)) and all(map(item, value.values()))


def _fits_struct(fields: dict[str, _Check], value: Any) -> bool:
    """Return whether a value fits a struct: a dict may omit nullable fields; a tuple has all, by position."""
    if isinstance(value, tuple):
        return len(value) == len(fields) and all(
            check(item) for check, item in zip(fields.values(), value, strict=True)
        )
    return (
        isinstance(value, dict)
        and fields.keys() >= value.keys()
        and all(check(value.get(name)) for name, check in fields.items())
    )


def _check_of_column(field: st.StructField) -> _Check:
    try:
        return _check_of(field.dataType)
    except SchemaError as error:
        raise SchemaError(f"Column {field.name!r} of the listener's output schema: {error}") from None


def _check_of(data_type: st.DataType) -> _Check:
    """Return a function that returns whether a value other than None fits a column of this type."""
    match data_type:
        case st.ArrayType():
            return partial(_fits_array, _part(data_type.elementType, nullable=data_type.containsNull))
        case st.MapType():
            key = _part(data_type.keyType, nullable=False)
            return partial(_fits_map, key, _part(data_type.valueType, nullable=data_type.valueContainsNull))
        case st.StructType():
            fields = {
                field.name: _part(field.dataType, nullable=field.nullable) for field in data_type.fields
            }
            return partial(_fits_struct, fields)
        case _:
            return _scalar_check(data_type)


def _scalar_check(data_type: st.DataType) -> _Check:
    for column_type, classes, refused in _SCALARS:
        if isinstance(data_type, column_type):
            return partial(_fits_scalar, classes, refused, arrow_type(data_type))
    raise SchemaError(
        f"A listener cannot emit type {data_type.simpleString()}. Declare the column as string or binary "
        "instead."
    )


def _part(data_type: st.DataType, *, nullable: bool) -> _Check:
    check = _check_of(data_type)
    if isinstance(data_type, st.TimestampType):
        check = partial(_fits_aware, check)
    return partial(_fits_nullable, check) if nullable else check


# The common values, written out because every emit() pays for them: one call and no loop per value.


def _is_str(value: Any) -> bool:
    # A lone surrogate, for example from errors="surrogateescape", cannot be encoded in UTF-8.
    return type(value) is str and (value.isascii() or _is_utf8(value))


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_bytes(value: Any) -> bool:
    return type(value) is bytes


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _is_byte(value: Any) -> bool:
    return type(value) is int and -0x80 <= value <= 0x7F


def _is_short(value: Any) -> bool:
    return type(value) is int and -0x8000 <= value <= 0x7FFF


def _is_int(value: Any) -> bool:
    return type(value) is int and -0x8000_0000 <= value <= 0x7FFF_FFFF


def _is_long(value: Any) -> bool:
    return type(value) is int and -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF


def _is_float(value: Any) -> bool:
    return type(value) is float


def _is_decimal(whole: int, scale: int, value: Any) -> bool:
    """Return whether a decimal has at most this many digits before and after the point.

    False if it has an exponent above 0.
    """
    if type(value) is not Decimal:
        return False
    exponent = value.as_tuple().exponent
    # The exponent of NaN and infinity is a letter.
    return type(exponent) is int and -scale <= exponent <= 0 and value.adjusted() < whole


def _is_date(value: Any) -> bool:
    return type(value) is date


def _is_moment_in_utc(value: Any) -> bool:
    return type(value) is datetime and value.tzinfo is UTC


def _is_clock(value: Any) -> bool:
    return type(value) is datetime and value.tzinfo is None


def is_none_of_these(_value: Any) -> bool:
    """Return False: the quick check of a column whose values all need the thorough check."""
    return False


def _quick_check(data_type: st.DataType) -> Callable[[Any], bool]:
    """Return a function that is true only for values that the thorough check accepts, and for most of them.

    Arrow converts a value for the thorough check, which takes ten times as long.
    """
    if isinstance(data_type, st.DecimalType):
        return partial(_is_decimal, data_type.precision - data_type.scale, data_type.scale)
    return _FAST.get(type(data_type), is_none_of_these)


_FAST: dict[type[st.DataType], Callable[[Any], bool]] = {
    st.StringType: _is_str,
    st.BinaryType: _is_bytes,
    st.BooleanType: _is_bool,
    st.ByteType: _is_byte,
    st.ShortType: _is_short,
    st.IntegerType: _is_int,
    st.LongType: _is_long,
    st.FloatType: _is_float,
    st.DoubleType: _is_float,
    st.DateType: _is_date,
    st.TimestampType: _is_moment_in_utc,
    st.TimestampNTZType: _is_clock,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputColumns:
    """The columns that a listener emits, and the checks of their values; picklable, made once per engine."""

    names: tuple[str, ...]
    known: frozenset[str]
    """Names of the columns as a set."""
    nulls: Mapping[str, Any]
    """A null for each column."""
    row_of: Callable[[Mapping[str, Any]], Row]
    """Function that makes a row from a mapping that has ``queueOffset`` and all columns."""
    is_plainly: dict[str, Callable[[Any], bool]]
    """Quick check of common values, by column; if it fails, :meth:`check` decides."""
    types: dict[str, tuple[str, _Check]]
    """Type in Spark's notation and thorough check, by column."""
    required: tuple[str, ...]
    """Columns that must not be null."""
    rows: RowColumns
    """The columns of a row: the queue offset of its message, and the output columns."""
    fields: dict[str, st.StructField]

    @classmethod
    def of(cls, schema: st.StructType) -> Self:
        """Return the columns of ``schema``.

        Raises:
            SchemaError: If a column has a type that cannot be emitted.
        """
        return cls(
            names=tuple(schema.fieldNames()),
            known=frozenset(schema.fieldNames()),
            nulls=dict.fromkeys(schema.fieldNames()),
            # Without further columns an itemgetter returns no tuple.
            row_of=itemgetter(QUEUE_OFFSET, *schema.fieldNames()) if schema.fields else _only_offset,
            is_plainly={f.name: _quick_check(f.dataType) for f in schema.fields},
            types={f.name: (f.dataType.simpleString(), _check_of_column(f)) for f in schema.fields},
            required=tuple(f.name for f in schema.fields if not f.nullable),
            rows=RowColumns(st.StructType([*_OFFSET.fields, *schema.fields])),
            fields={f.name: f for f in schema.fields},
        )

    def completed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return all columns of a row; those that are not given are null.

        Raises:
            SchemaError: If a column is unknown, or if one that is not nullable is left out or None.
        """
        if not self.known.issuperset(given):
            self._check_known(given)
        missing = [name for name in self.required if given.get(name) is None]
        if missing:
            raise _missing(missing)
        return {**self.nulls, **given}

    def check(self, name: str, value: Any) -> None:
        """Check a value thoroughly.

        Raises:
            SchemaError: If ``value``, which is not None, does not fit column ``name``.
        """
        wanted, check = self.types[name]
        if not check(value):
            kind = type(value)
            given = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
            raise SchemaError(
                f"emit() was given {value!r:.80} of type {given} for column '{name}', which is of type "
                f"{wanted} and cannot hold it. Convert the value in the listener, or change the output "
                "schema."
            )

    def fitted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return ``rows``, which have a column ``queueOffset``, cast to exactly the columns of :attr:`rows`.

        Raises:
            SchemaError: For the reasons of :meth:`completed`, or if a column occurs twice or cannot be cast
                without loss.
        """
        wanted = self.rows.schema
        if rows.schema.equals(wanted) and not self.required:
            return rows
        given = dict(zip(rows.schema.names, rows.columns, strict=True))
        if len(given) < rows.num_columns:
            raise SchemaError(
                "The listener returned rows in which a column occurs more than once: "
                f"{', '.join(rows.schema.names)}. Return each column once."
            )
        self._check_known(given.keys() - {QUEUE_OFFSET})
        missing = [name for name in self.required if name not in given or given[name].null_count]
        if missing and rows.num_rows:
            raise _missing(missing)
        columns = [
            _cast(given[field.name], field, self.types)
            if field.name in given
            else pa.nulls(rows.num_rows, field.type)
            for field in wanted
        ]
        return pa.RecordBatch.from_arrays(columns, schema=wanted)

    def arrow_column(self, name: str, values: list[Any]) -> pa.Array:
        """Check each of ``values`` except None, and convert all of them to column ``name``.

        Raises:
            SchemaError: If one does not fit, or there is no such column.
        """
        self._check_known([name])
        is_plainly = self.is_plainly[name]
        for value in values:
            if value is not None and not is_plainly(value):
                self.check(name, value)
        return self.rows.array(self.fields[name], values, len(values))

    def _check_known(self, names: Iterable[str]) -> None:
        unknown = set(names) - self.known
        if unknown:
            raise SchemaError(
                f"Output rows have column(s) {', '.join(sorted(unknown))}, which the output schema does not "
                f"have; it has {', '.join(self.names)}. Correct the name, or add the column to output_schema."
            )


def _only_offset(columns: Mapping[str, Any]) -> Row:
    """Return the row of a schema without columns."""
    return (columns[QUEUE_OFFSET],)


def _missing(names: Sequence[str]) -> SchemaError:
    return SchemaError(
        f"The listener gave no value for column(s) {', '.join(names)}, which are NOT NULL in the output "
        "schema. Give a value, or let the schema allow nulls."
    )


def _cast(column: pa.Array, field: pa.Field, types: Mapping[str, tuple[str, _Check]]) -> pa.Array:
    if column.type == field.type:
        return column
    shown = types[field.name][0] if field.name in types else "bigint"
    if not _may_become(column.type, field.type):
        raise SchemaError(
            f"The listener returned Arrow's type {column.type} for column '{field.name}', which is of type "
            f"{shown} and cannot hold it. Cast it in the listener, or change the output schema."
        )
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise SchemaError(
            f"The listener returned Arrow's type {column.type} for column '{field.name}', which is of type "
            f"{shown} and cannot hold all of its values: {str(error).rstrip('.')}. Correct the values in the "
            "listener, or change the output schema."
        ) from error


def _may_become(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a value of type ``given``, if it fits at all, keeps its meaning as ``wanted``."""
    if pa.types.is_dictionary(given):
        given = given.value_type
    if given == wanted or pa.types.is_null(given):
        return True
    if not any(is_wanted(wanted) and any(each(given) for each in kinds) for is_wanted, kinds in _KINDS):
        return False
    if pa.types.is_timestamp(wanted):
        return bool((given.tz is None) == (wanted.tz is None))
    if given.num_fields != wanted.num_fields:
        return False
    parts = [(given.field(at), wanted.field(at)) for at in range(wanted.num_fields)]
    is_struct = pa.types.is_struct(wanted)
    return all(
        (not is_struct or given_field.name == wanted_field.name)
        and _may_become(given_field.type, wanted_field.type)
        for given_field, wanted_field in parts
    )
