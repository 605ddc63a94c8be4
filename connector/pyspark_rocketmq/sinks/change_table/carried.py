"""Values of columns that a query did not have when it started, as JSON text with their types.

A row *carries* such values in a column of text: ``{"note": ["string", "x"], "size": ["int", 7]}``. A task
derives the type of a value only from the value's message (:attr:`~.change.Change.types`). So every task that
reads the message derives the same type.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal
from functools import reduce
from math import isfinite
from typing import Any, Final

import pyarrow as pa

from pyspark_rocketmq.change_data.change import Kind, SourceType
from pyspark_rocketmq.change_data.json_text import text_of

TEXT: Final = "string"
_ARROW: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    TEXT: pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DIGITS: Final[Mapping[str, int]] = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
"""Maximum number of decimal digits of each type of whole numbers, the narrowest type first."""
FLOAT, DOUBLE = "float", "double"
_FLOATS: Final = (FLOAT, DOUBLE)
_MOST_DIGITS: Final = 38
_EXACT_IN_DOUBLE: Final = 2**53
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_ARRAY: Final = re.compile(r"array<(.*)>")


def type_of(name: str, types: Mapping[str, SourceType]) -> str:
    """Return the type, in Spark's DDL, of a new column ``name``: text if the source's type is unknown."""
    source = types.get(name)
    return TEXT if source is None or _is_unknown(source) else source.spark


def _is_unknown(source: SourceType) -> bool:
    """Return whether a type is an array whose elements' type is unknown."""
    if source.kind is not Kind.ARRAY:
        return False
    return source.element is None or _is_unknown(source.element)


def carried(values: Mapping[str, Any], types: Mapping[str, SourceType]) -> str:
    """Return the JSON text of values by column, each with its type: ``{"size":["int",7]}``.

    Raises:
        ValueError: If a value is bytes and its type is unknown, or if it is nested too deeply.
    """
    typed = {name: type_of(name, types) for name in values}
    found = {name: [typed[name], _stored(value, typed[name])] for name, value in values.items()}
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def carried_values(text: str) -> dict[str, tuple[str, Any]]:
    """Return the type and the value of each column in a text of :func:`carried`."""
    return {name: (type_, _value(stored, type_)) for name, (type_, stored) in json.loads(text).items()}


def arrow_type(type_: str) -> pa.DataType:
    """Return the Arrow type of a type by its name in Spark's DDL.

    Raises:
        KeyError: If the name is not one that :attr:`SourceType.spark` returns.
    """
    if found := _DECIMAL.fullmatch(type_):
        return pa.decimal128(int(found[1]), int(found[2]))
    if found := _ARRAY.fullmatch(type_):
        return pa.list_(arrow_type(found[1]))
    return _ARROW[type_]


def common_type(types: Iterable[str]) -> str:
    """Return the narrowest type that holds all values of these types; text if there is no such type.

    Only types of one kind can have such a type. Whole numbers and decimals are one kind, floats another.
    """
    return reduce(_wider, sorted(set(types)))


def _wider(one: str, other: str) -> str:
    if one == other:
        return one
    if one in _DIGITS and other in _DIGITS:
        return max(one, other, key=_DIGITS.__getitem__)
    if one in _FLOATS and other in _FLOATS:
        return "double"
    first, second = _digits(one), _digits(other)
    if first is None or second is None:
        return TEXT
    whole, scale = (max(pair) for pair in zip(first, second, strict=True))
    return f"decimal({whole + scale},{scale})" if whole + scale <= _MOST_DIGITS else TEXT


def _digits(type_: str) -> tuple[int, int] | None:
    """Return the digits before and after the point of a type of exact numbers; None for other types."""
    if type_ in _DIGITS:
        return _DIGITS[type_], 0
    found = _DECIMAL.fullmatch(type_)
    return (int(found[1]) - int(found[2]), int(found[2])) if found else None


def fitted(value: Any, type_: str) -> Any:
    """Convert a value for a column whose type is not that of the value, and return it.

    Raises:
        ValueError: If the column cannot hold the value exactly.
    """
    if value is None:
        return None
    if type_ == TEXT:
        return text_of(value)
    try:
        converted = _of_class(value, type_)
        pa.scalar(converted, arrow_type(type_))
    except (pa.ArrowException, ArithmeticError, TypeError) as error:
        raise ValueError(str(error)) from error
    return converted


def whole_number(value: Decimal) -> int:
    """Return a decimal without a fraction, such as MySQL's BIGINT UNSIGNED, as an ``int``.

    Raises:
        ValueError: If the decimal has a fraction or more than 20 digits, or is not finite.
    """
    # The remainder of 1E-2000000 would be 0.
    if value.is_finite() and value.adjusted() <= _DIGITS["bigint"] and int(value) == value:
        return int(value)
    raise ValueError(f"{value} is not a whole number of 64 bits")


def real_number(value: Decimal | float, type_: str) -> float:
    """Return the number of the type :data:`FLOAT` or :data:`DOUBLE` that ``value`` stands for.

    ``value`` is either exactly this number, or has the rounded digits with which a program writes the number.
    If ``value`` is a ``float`` and the type is ``FLOAT``, the decimal digits in its ``repr`` count.

    Raises:
        ValueError: If the type has no such number: ``value`` has too many digits, or too large or small an
            exponent.
        OverflowError: If ``value`` is too large for a ``FLOAT``.
    """
    if isinstance(value, float):
        if type_ == DOUBLE or not isfinite(value):
            return value
        value = Decimal(repr(value))
    double = float(value)
    number: float = struct.unpack("f", struct.pack("f", double))[0] if type_ == FLOAT else double
    if Decimal(number) == value or _is_text_of(value, number):
        return number
    raise ValueError(f"type {type_} has no number that is exactly {value}")


def _is_text_of(value: Decimal, number: float) -> bool:
    """Return whether a program may write ``number`` with the digits of ``value``.

    Before Java 19 the last digit is not always the nearest one, but the error is less than 1 in that digit.
    """
    if not number or not isfinite(number):
        return False
    _, digits, exponent = value.as_tuple()
    zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    last_digit = Decimal((0, (1,), int(exponent) + zeros))
    return abs(Decimal(number) - value) < last_digit


def _of_class(value: Any, type_: str) -> Any:
    kind = type(value)
    if kind in (int, Decimal) and _DECIMAL.fullmatch(type_):
        return Decimal(value)
    if kind is Decimal and type_ in _DIGITS:
        return whole_number(value)
    if kind in (float, Decimal) and type_ in _FLOATS:
        return real_number(value, type_)
    if kind is int and type_ == DOUBLE and abs(value) <= _EXACT_IN_DOUBLE:
        return float(value)
    if kind is datetime:
        types = {"timestamp_ntz" if value.tzinfo is None else "timestamp"}
    else:
        types = _TYPES_OF.get(kind, set())
    if type_ in types:
        return value
    raise ValueError(f"a value of type {kind.__name__} is not of type {type_}")


def _stored(value: Any, type_: str) -> Any:
    """Return a value in a form that JSON has."""
    if value is None:
        return None
    if type_ == TEXT:
        return text_of(value)
    if found := _ARRAY.fullmatch(type_):
        return [_stored(each, found[1]) for each in value]
    return _TO_JSON.get(type(value), _same)(value)


def _value(stored: Any, type_: str) -> Any:
    if stored is None:
        return None
    if found := _ARRAY.fullmatch(type_):
        return [_value(each, found[1]) for each in stored]
    if _DECIMAL.fullmatch(type_):
        return Decimal(stored)
    return _FROM_JSON.get(type_, _same)(stored)


def _same(value: Any) -> Any:
    return value


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


_TYPES_OF: Final[Mapping[type, set[str]]] = {
    bool: {"boolean"},
    int: {*_DIGITS},
    date: {"date"},
    bytes: {"binary"},
}
"""Spark's types that hold values of a Python class unchanged, if the values are in the type's range."""
_TO_JSON: Final[Mapping[type, Callable[[Any], Any]]] = {
    Decimal: str,
    bytes: _base64,
    date: date.isoformat,
    datetime: datetime.isoformat,
}
_FROM_JSON: Final[Mapping[str, Callable[[Any], Any]]] = {
    "binary": base64.b64decode,
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
    "timestamp_ntz": datetime.fromisoformat,
}
