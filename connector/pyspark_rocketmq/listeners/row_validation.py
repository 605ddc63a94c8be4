"""Whether a value that a listener emits fits its column, decided when it is emitted.

Spark would find out only when it turns a whole batch into Arrow; at ``emit()`` the error names the value and
its column. It ends the query (row D5): what breaks the schema does so at each delivery, and no message is at
fault.

The ways from pandas to Arrow differ in what they take: both cut 1.5 down to 1 for a whole number, Arrow turns
booleans into numbers, and a map with an entry of None ends the process.  So a value's class is looked at
first, inside arrays, maps and structs too, and only then Arrow is asked.  Whatever passes here, Spark
converts, also next to any other value that passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, Protocol, Self

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import types as st
from pyspark.sql.conversion import PandasToArrowConversion
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type

from pyspark_rocketmq.errors import SchemaError

_PLAIN = (
    st.StringType, st.BinaryType, st.BooleanType, st.ByteType, st.ShortType, st.IntegerType, st.LongType, st.FloatType,
    st.DoubleType,
)  # fmt: skip
"""Arrow takes what ``emit()`` takes for these as Spark does; the others go Spark's own way."""


Row = tuple[Any, ...]
"""A queue offset, then one value per output column."""


class RowColumns:
    """Makes record batches of columns; picklable."""

    def __init__(self, schema: st.StructType) -> None:
        self._fields = tuple(schema.fields)
        self.schema = to_arrow_schema(schema, timezone="UTC")
        """The batches' columns."""
        self.is_plain = all(isinstance(field.dataType, st.AtomicType) for field in self._fields)
        """Whether no value has parts."""

    def to_batch(self, columns: Mapping[str, Any], count: int) -> pa.RecordBatch:
        """A batch of ``count`` rows; a column is a sequence or one value for all rows."""
        arrays = [self.array(field, columns[field.name], count) for field in self._fields]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def array(self, field: st.StructField, values: Any, count: int) -> pa.Array:
        """One column; see :meth:`to_batch`."""
        arrow_type = self.schema.field(field.name).type
        if not isinstance(values, list | np.ndarray):
            return pa.repeat(pa.scalar(values, arrow_type), count)
        if isinstance(field.dataType, _PLAIN):
            # As Spark does with pandas' columns, NaN becomes null.
            return pa.array(values, arrow_type, from_pandas=True)
        column = pd.Series(values, dtype=object)
        return PandasToArrowConversion.convert([column], st.StructType([field]), timezone="UTC").column(0)


class _Check(Protocol):
    def accepts(self, value: Any) -> bool:
        """Whether a value that is not None fits."""
        ...


@dataclass(frozen=True, slots=True)
class _Scalar:
    classes: tuple[type, ...]
    refused: tuple[type, ...]
    """Subclasses of ``classes`` that would lose something."""
    arrow_type: pa.DataType

    def accepts(self, value: Any) -> bool:
        if not isinstance(value, self.classes) or isinstance(value, self.refused):
            return False
        try:
            pa.array([value], self.arrow_type)
        except (pa.ArrowException, ArithmeticError, TypeError, ValueError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class _Aware:
    """Within arrays, maps and structs Spark takes a naive time by the session's zone."""

    check: _Check

    def accepts(self, value: Any) -> bool:
        return getattr(value, "tzinfo", None) is not None and self.check.accepts(value)


@dataclass(frozen=True, slots=True)
class _Nested:
    """An element, a map's value or a struct's field."""

    check: _Check
    nullable: bool

    def accepts(self, value: Any) -> bool:
        return self.nullable if value is None else self.check.accepts(value)


@dataclass(frozen=True, slots=True)
class _Array:
    element: _Nested

    def accepts(self, value: Any) -> bool:
        return isinstance(value, list | tuple | np.ndarray) and all(map(self.element.accepts, value))


@dataclass(frozen=True, slots=True)
class _Map:
    key: _Nested
    value: _Nested

    def accepts(self, value: Any) -> bool:
        return (
            isinstance(value, dict)
            and all(map(self.key.accepts, value))
            and all(map(self.value.accepts, value.values()))
        )


@dataclass(frozen=True, slots=True)
class _Struct:
    fields: dict[str, _Nested]

    def accepts(self, value: Any) -> bool:
        """A dict may leave nullable fields out; a tuple has them all, by position."""
        if isinstance(value, tuple):
            return len(value) == len(self.fields) and all(
                field.accepts(item) for field, item in zip(self.fields.values(), value, strict=True)
            )
        return (
            isinstance(value, dict)
            and self.fields.keys() >= value.keys()
            and all(field.accepts(value.get(name)) for name, field in self.fields.items())
        )


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
"""Column type, what it takes, what of that it does not take; the first that fits. pandas.NaT is a datetime,
but Arrow refuses it."""


def _check_of(data_type: st.DataType) -> _Check:
    match data_type:
        case st.ArrayType():
            return _Array(_nested(data_type.elementType, nullable=data_type.containsNull))
        case st.MapType():
            return _Map(
                _nested(data_type.keyType, nullable=False),
                _nested(data_type.valueType, nullable=data_type.valueContainsNull),
            )
        case st.StructType():
            return _Struct({f.name: _nested(f.dataType, nullable=f.nullable) for f in data_type.fields})
        case _:
            return _scalar(data_type)


def _nested(data_type: st.DataType, *, nullable: bool) -> _Nested:
    check = _check_of(data_type)
    return _Nested(_Aware(check) if isinstance(data_type, st.TimestampType) else check, nullable)


def _scalar(data_type: st.DataType) -> _Scalar:
    for column_type, classes, refused in _SCALARS:
        if isinstance(data_type, column_type):
            return _Scalar(classes, refused, to_arrow_type(data_type, timezone="UTC"))
    raise SchemaError(
        f"A listener cannot emit type {data_type.simpleString()}; declare the column as string or binary "
        "instead."
    )


# Written out, because each call of emit() pays for them: one call and no loop per value.


def _is_str(value: Any) -> bool:
    # A lone surrogate, as errors="surrogateescape" makes, cannot be written as UTF-8.
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


def _is_none_of_these(_value: Any) -> bool:
    return False


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
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputColumns:
    """The columns a listener emits, and what they take; picklable, made once per engine."""

    names: tuple[str, ...]
    known: frozenset[str]
    """The same names."""
    is_plainly: dict[str, Callable[[Any], bool]]
    """By name: the quick answer for common values; False means that :meth:`check` decides."""
    types: dict[str, tuple[str, _Check]]
    """By name: the type as Spark writes it, and the thorough answer."""
    required: tuple[str, ...]
    """Columns that must not be null."""
    rows: RowColumns = field(compare=False)
    """A row's columns: the queue offset of its message, and these."""
    fields: dict[str, st.StructField]

    @classmethod
    def of(cls, schema: st.StructType) -> Self:
        """What ``schema`` takes.

        Raises:
            SchemaError: If a column has a type that cannot be emitted.
        """
        return cls(
            names=tuple(schema.fieldNames()),
            known=frozenset(schema.fieldNames()),
            is_plainly={f.name: _FAST.get(type(f.dataType), _is_none_of_these) for f in schema.fields},
            types={f.name: (f.dataType.simpleString(), _check_of(f.dataType)) for f in schema.fields},
            required=tuple(f.name for f in schema.fields if not f.nullable),
            rows=RowColumns(st.StructType([st.StructField("queueOffset", st.LongType()), *schema.fields])),
            fields={f.name: f for f in schema.fields},
        )

    def check_names(self, given: Mapping[str, Any]) -> None:
        """Look at which columns a row has.

        Raises:
            SchemaError: If one is not known, or one that must not be null is left out or None.
        """
        self._check_known(given.keys())
        missing = [name for name in self.required if given.get(name) is None]
        if missing:
            raise _missing(missing)

    def check(self, name: str, value: Any) -> None:
        """Ask Arrow.

        Raises:
            SchemaError: If ``value``, which is not None, does not fit column ``name``.
        """
        wanted, check = self.types[name]
        if not check.accepts(value):
            kind = type(value)
            given = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
            raise SchemaError(
                f"emit() was given {value!r:.80} of type {given} for column '{name}', which is of type "
                f"{wanted} and "
                "cannot hold it. Convert the value in the listener, or change the output schema."
            )

    def fitted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """``rows``, which have a column ``queueOffset``, with exactly the columns of :attr:`rows`.

        Raises:
            SchemaError: As of :meth:`check_names`, or if a column's type is not its own and does not become
                it without loss.
        """
        wanted = self.rows.schema
        if rows.schema.equals(wanted) and not self.required:
            return rows
        given = dict(zip(rows.schema.names, rows.columns, strict=True))
        if len(given) < rows.num_columns:
            raise SchemaError(
                f"The listener returned rows with a column more than once: {', '.join(rows.schema.names)}."
            )
        self._check_known(given.keys() - {"queueOffset"})
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
        """Values of column ``name``, each of which :meth:`check` takes or is None.

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
                f"emit() was given column(s) {', '.join(sorted(unknown))}, which the output schema does not "
                f"have; it has {', '.join(self.names)}."
            )


def _missing(names: Sequence[str]) -> SchemaError:
    return SchemaError(
        f"emit() was given no value for column(s) {', '.join(names)}, which the output schema says are never "
        "null."
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
            f"{shown} and cannot hold all of its values: {error}"
        ) from error


def _may_become(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one type mean the same as another one's, where they fit at all."""
    if pa.types.is_dictionary(given):
        given = given.value_type
    if given == wanted or pa.types.is_null(given):
        return True
    if not any(is_wanted(wanted) and any(each(given) for each in kinds) for is_wanted, kinds in _KINDS):
        return False
    if pa.types.is_timestamp(wanted):
        return bool((given.tz is None) == (wanted.tz is None))
    parts = (
        [(given.field(at), wanted.field(at)) for at in range(wanted.num_fields)]
        if given.num_fields == wanted.num_fields
        else None
    )
    is_struct = pa.types.is_struct(wanted)
    return parts is not None and all(
        (not is_struct or one.name == other.name) and _may_become(one.type, other.type)
        for one, other in parts
    )


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
"""What a column's type is, and which kinds of types it takes, where these values fit."""
