"""Converts the values of changes to the columns of a table: exactly, or not at all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as st

from pyspark_rocketmq.change_data.json_text import text_of
from pyspark_rocketmq.errors import SchemaError
from pyspark_rocketmq.listeners.row_validation import OutputColumns, is_none_of_these
from pyspark_rocketmq.sinks.change_table.carried import real_number, whole_number
from pyspark_rocketmq.sinks.change_table.columns import value_column

_TOO_EXACT: Final = re.compile(r"[.,]\d{7}")
"""Fraction of a second that a column of microseconds cannot hold."""


class FittedColumns:
    """The columns of a change table, and the conversion of values to their types; picklable."""

    def __init__(self, names: Iterable[str], output: OutputColumns) -> None:
        """Take the names of the table's columns; ``output`` has the columns of the rows of changes."""
        self.columns: Mapping[str, str] = {name: value_column(name) for name in names}
        """Names of the columns in the rows of changes, by the names of the table's columns."""
        self.types: Mapping[str, st.DataType] = {
            name: output.fields[column].dataType for name, column in self.columns.items()
        }
        """Types of the table's columns, by name."""
        self.is_plainly: Mapping[str, Callable[[Any], bool]] = {
            # Python's float may have more digits than a column of floats.
            name: is_none_of_these
            if isinstance(self.types[name], st.FloatType)
            else output.is_plainly[column]
            for name, column in self.columns.items()
        }
        """Functions that quickly check whether a value needs no conversion, by the table's column names."""
        self._output = output

    def fitted(self, name: str, value: Any) -> Any:
        """Convert a value that :attr:`is_plainly` does not accept to the Python class of column ``name``.

        The value must not be None.

        Raises:
            SchemaError, ValueError, ArithmeticError: If the value does not fit the column exactly.
        """
        type_ = self.types[name]
        converted = _converted(value, type_)
        self._output.check(self.columns[name], converted)
        if not _has_zones_of(type_, converted):
            raise SchemaError(f"{value!r:.80} does not have a zone exactly if column {name} has one.")
        return converted

    def array(self, name: str, values: Sequence[Any]) -> pa.Array:
        """Convert all ``values`` to an array of the table's column ``name``; None stays None.

        Raises:
            SchemaError, ValueError, ArithmeticError, TypeError: If a value does not fit the column exactly.
        """
        is_plainly = self.is_plainly[name]
        fitted = [
            value if value is None or is_plainly(value) else self.fitted(name, value) for value in values
        ]
        array = self._output.rows.array(self._output.fields[self.columns[name]], fitted, len(fitted))
        if array.null_count != fitted.count(None):
            raise ValueError(f"column {name} has NaN, which would become null")
        return array

    def array_of_texts(self, name: str, texts: Sequence[str | None]) -> pa.Array | None:
        """Convert plain texts of values to an array of the table's column ``name``, in one step.

        Return None if a text does not fit the column, or is not the text that Arrow itself writes for the
        value.

        Raises:
            pa.ArrowException, ValueError: If an item is no text, or UTF-8 cannot hold it.
        """
        given = pa.array(texts, pa.string())
        wanted = self._output.rows.schema.field(self.columns[name]).type
        if given.type == wanted:
            return given
        try:
            array = given.cast(wanted)
        except pa.ArrowException:
            return None
        return array if array.cast(given.type).equals(given) else None


def _converted(value: Any, type_: st.DataType) -> Any:
    """Convert a text or a number to the Python class of its column, if it holds exactly such a value.

    Messages without the source's types have texts for decimals and times, and decimals for numbers with a
    fraction. A value that needs no conversion, or cannot be converted, is returned unchanged; the caller
    checks it.

    Raises:
        ValueError, ArithmeticError: If the value does not fit the column.
    """
    match type_, value:
        case _, str():
            return _from_text(value, type_)
        case st.StringType(), _:
            return text_of(value)
        case ((st.DoubleType() | st.FloatType()), (Decimal() | float())):
            return real_number(value, type_.simpleString())
        case st.IntegralType(), Decimal():
            return whole_number(value)
        case st.ArrayType(elementType=st.FloatType() | st.ArrayType() as element), (list() | tuple()):
            return [None if item is None else _converted(item, element) for item in value]
        case _:
            return value


def _from_text(text: str, type_: st.DataType) -> Any:
    match type_:
        case st.DecimalType():
            return Decimal(text)
        case st.DateType():
            return date.fromisoformat(text.removesuffix("Z"))
        case st.TimestampType() | st.TimestampNTZType() if not _TOO_EXACT.search(text):
            return datetime.fromisoformat(text)
        case _:
            return text


def _has_zones_of(type_: st.DataType, value: Any) -> bool:
    """Return whether times in ``value`` have a zone if the type's times have one, and none otherwise."""
    match type_, value:
        case ((st.TimestampType() | st.TimestampNTZType()), datetime()):
            return (value.tzinfo is not None) == isinstance(type_, st.TimestampType)
        case st.ArrayType(elementType=element), (list() | tuple()):
            return all(_has_zones_of(element, item) for item in value)
        case _:
            return True
