"""Decode JSON with Spark's ``from_json``, and refuse values that it would change.

Spark's parser stops after the first value, replaces bytes that are not UTF-8 with U+FFFD, and rounds numbers
with more digits than their column has. So a body is parsed as the first element of an array, to which this
module adds a second element: the array has two elements, of which the second is the added one, exactly if the
body is one value. Decimals of less than 38 digits and ``TINYINT``, which Spark rounds or cuts off, are first
parsed into a wider type, and refused if they do not fit the type of their column.

The whole check is one expression, which contains ``from_json`` once: Spark would parse again wherever a
``CASE`` repeats the call. Few bodies are parsed a second time, into strings (``json_as_sent``): those that
may have a field twice, or a time or date that is finer than its column.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import reduce
from math import inf
from operator import and_
from typing import Final, cast

from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    ShortType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pyspark_rocketmq.consumer.json_as_sent import has_fields_once, has_whole_times

_CORRUPT: Final = "_corrupt"
_MOST_DIGITS: Final = 38
_WHOLE_CHARACTERS: Final = r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
"""Escaped backslashes, and characters escaped as a pair of surrogates, such as an emoji."""
_HALF: Final = r"\\u[dD][89a-fA-F]"
_MAY_OVERFLOW: Final = r"[0-9][eE]\+?[0-9]{2}|[0-9]{39}"
"""Numbers that may be too large for a float."""


def exact_json(body: Column, schema: StructType, options: Mapping[str, str]) -> Column:
    """Decode a binary ``body`` into a struct of ``schema``, with the ``options`` of ``from_json``.

    The result is null unless each column has exactly the value that the body has, with two exceptions.
    Floating-point numbers are rounded to their column. Decimals are rounded, before they are compared, to the
    scale of the wider type into which they are parsed: 30 digits behind the point for ``DECIMAL(10, 2)``, and
    for a decimal of 38 digits its own scale. Such rounding cannot be detected: if Spark parses a number into
    a string, the string has only a double's digits.
    """
    schema = StructType(_nullable_fields(schema))
    text = body.cast("string")
    # The name is random, so that no sender can guess it, close the array, and add an element like ours.
    ours = f"end-{secrets.token_hex(8)}"
    element = StructType([*_wider_fields(schema), StructField(ours, DoubleType())])
    whole = StructType().add(ours, ArrayType(element)).add(_CORRUPT, "string")
    # The newline ends a comment, which an option may allow.
    wrapped = sf.concat(sf.lit(f'{{"{ours}":['), text, sf.lit(f'\n,{{"{ours}":1}}]}}'))
    spark_options = {**options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}

    def decoded(parsed: Column) -> Column:
        elements = parsed[ours]
        value = elements[0]
        is_ended = (sf.size(elements) == 2) & elements[1][ours].isNotNull()
        is_one = parsed[_CORRUPT].isNull() & is_ended & value.isNotNull()
        checks = _checks(value, schema, _infinity_is_sent(text))
        is_exact = is_one if checks is None else is_one & checks
        as_sent = has_fields_once(text, schema, options) & has_whole_times(text, schema, options)
        return sf.when(is_exact & as_sent, _narrowed(value, schema))

    parsed = sf.from_json(wrapped, whole, spark_options)
    return sf.when(_is_text(text), sf.transform(sf.array(parsed), decoded)[0])


def _is_text(text: Column) -> Column:
    """Return the condition that a string is UTF-8 and has no escape of an unpaired surrogate.

    Spark would turn such an escape into ``?``.
    """
    has_halves = sf.contains(text, sf.lit("\\ud")) | sf.contains(text, sf.lit("\\uD"))
    are_pairs = ~sf.regexp_replace(text, _WHOLE_CHARACTERS, " ").rlike(_HALF)
    return sf.is_valid_utf8(text) & (~has_halves | are_pairs)


def _infinity_is_sent(text: Column) -> Column:
    is_named = sf.contains(text, sf.lit("Inf")) | sf.contains(text, sf.lit("INF"))
    return is_named & ~text.rlike(_MAY_OVERFLOW)


def _nullable_fields(schema: StructType) -> list[StructField]:
    return [StructField(field.name, _nullable(field.dataType)) for field in schema.fields]


def _nullable(kind: DataType) -> DataType:
    """Return ``kind`` without NOT NULL at any depth: ``from_json`` ignores it, and a cast would refuse it."""
    match kind:
        case StructType():
            return StructType(_nullable_fields(kind))
        case ArrayType():
            return ArrayType(_nullable(kind.elementType))
        case MapType():
            return MapType(kind.keyType, _nullable(kind.valueType))
        case _:
            return kind


def _wider_fields(schema: StructType) -> list[StructField]:
    return [StructField(field.name, _wider(field.dataType)) for field in schema.fields]


def _wider(kind: DataType) -> DataType:
    """Return the type that a value is parsed into, with room for values that do not fit into ``kind``."""
    match kind:
        case DecimalType():
            return DecimalType(_MOST_DIGITS, _MOST_DIGITS - kind.precision + kind.scale)
        case ByteType():
            return ShortType()
        case StructType():
            return StructType(_wider_fields(kind))
        case ArrayType():
            return ArrayType(_wider(kind.elementType))
        case MapType():
            return MapType(kind.keyType, _wider(kind.valueType))
        case _:
            return kind


def _narrowed(value: Column, schema: StructType) -> Column:
    columns = [
        (
            value[field.name]
            if field.dataType == wider.dataType
            else value[field.name].try_cast(field.dataType)
        )
        for field, wider in zip(schema.fields, _wider_fields(schema), strict=True)
    ]
    return sf.struct(*(column.alias(name) for column, name in zip(columns, schema.fieldNames(), strict=True)))


def _checks(value: Column, kind: DataType, is_infinity_sent: Column) -> Column | None:
    """Return the condition that ``value``, parsed into the wider type, is the one sent and fits ``kind``.

    A null fits. Return None for types that need no check, and for decimals of 38 digits, which have no wider
    type. ``is_infinity_sent``: whether a value that was parsed as infinite was infinite in the text, too;
    otherwise the text has a number that is too large.
    """
    match kind:
        case DecimalType() if kind.precision < _MOST_DIGITS:
            fits = value == value.try_cast(kind).cast(_wider(kind))
        case ByteType():
            fits = value.between(-128, 127)
        case FloatType() | DoubleType():
            fits = (sf.abs(value) != inf) | is_infinity_sent
        case TimestampType() | TimestampNTZType():
            # Finds milliseconds that were taken for seconds; Spark does not notice an overflow either.
            fits = sf.year(value).between(1, 9999)
        case StructType():
            parts = (_checks(value[each.name], each.dataType, is_infinity_sent) for each in kind.fields)
            return _together([part for part in parts if part is not None])
        case ArrayType():
            return _of_all(value, kind.elementType, is_infinity_sent)
        case MapType():
            keys = sf.map_keys(value)
            has_each_once = _or_null(value, sf.size(sf.array_distinct(keys)) == sf.size(keys))
            values = _of_all(sf.map_values(value), kind.valueType, is_infinity_sent)
            return has_each_once if values is None else has_each_once & values
        case _:
            return None
    return _or_null(value, fits)


def _together(checks: list[Column]) -> Column | None:
    return reduce(and_, checks) if checks else None


def _of_all(values: Column, kind: DataType, is_infinity_sent: Column) -> Column | None:
    if _checks(values, kind, is_infinity_sent) is None:
        return None
    is_each = sf.forall(values, lambda item: cast("Column", _checks(item, kind, is_infinity_sent)))
    return _or_null(values, is_each)


def _or_null(value: Column, check: Column) -> Column:
    return value.isNull() | sf.coalesce(check, sf.lit(False))
