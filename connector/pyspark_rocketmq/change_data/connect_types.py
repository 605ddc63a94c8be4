"""Types of Kafka Connect's JSON, which Debezium's messages carry in their ``schema``.

A field's logical name (``io.debezium.time.MicroTimestamp`` …) says what its values stand for. So no option
here needs to repeat the connector's ``time.precision.mode``, ``decimal.handling.mode`` and similar settings.

Source: ``org.apache.kafka.connect.json.JsonConverter``; Debezium's packages ``time`` and ``data``.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache, partial
from math import isfinite
from typing import Any, Final

from pyspark_rocketmq.change_data.change import Kind, SourceType
from pyspark_rocketmq.change_data.json_text import show
from pyspark_rocketmq.change_data.mysql_types import scaled
from pyspark_rocketmq.change_data.rules import Column, Rules
from pyspark_rocketmq.change_data.times import (
    Unreadable,
    clock,
    day,
    micros_of,
    parse_clock,
    parse_date,
    parse_moment,
    time_text,
)

Decode = Callable[[Any], Any]

DEEPEST_ARRAY: Final = 32
"""Maximum number of dimensions of an array; PostgreSQL has 6."""
_UNSIGNED: Final = 2**64
_MOST_DIGITS: Final = 131_072
"""Maximum number of digits before the point of PostgreSQL's numeric; behind the point it has fewer."""
_LONGEST_BITS: Final = 64
_BEYOND_SINGLE: Final = 2.0**128 - 2.0**103
"""Least number that is infinite as a 32-bit float.

The greatest finite 32-bit float is no bound: Java writes it as 3.4028235E38, which is a little more.
"""


@dataclass(frozen=True, slots=True)
class _Field:
    """The parts of a field's schema that decide its type; hashable."""

    type: str
    name: str
    parameters: tuple[tuple[str, str], ...]
    items: _Field | None

    def parameter(self, name: str) -> str | None:
        return dict(self.parameters).get(name)


def connect_column(schema: Mapping[str, Any], rules: Rules) -> Column[Any]:
    """Return the type and the decoder of a column, from the schema of its field in Kafka Connect's JSON.

    Raises:
        ValueError: If the schema cannot be read.
    """
    return _column(_field(schema), rules)


def _field(schema: Mapping[str, Any], depth: int = 0) -> _Field:
    if depth > DEEPEST_ARRAY:
        raise Unreadable(f"an array has more than {DEEPEST_ARRAY} dimensions")
    items, parameters = schema.get("items"), schema.get("parameters")
    return _Field(
        type=str(schema.get("type")),
        name=str(schema.get("name") or ""),
        parameters=tuple(sorted((str(key), str(value)) for key, value in parameters.items()))
        if isinstance(parameters, dict)
        else (),
        items=_field(items, depth + 1) if isinstance(items, dict) else None,
    )


@lru_cache(maxsize=4096)
def _column(field: _Field, rules: Rules) -> Column[Any]:
    if field.name in _SPECIAL:
        return _SPECIAL[field.name](field, rules)
    if field.name in _TIMES:
        kind, decode = _TIMES[field.name]
        return _of(field, kind, partial(rules.or_null, decode))
    if field.type == "array" and field.items is not None:
        element = _column(field.items, rules)
        return Column(
            SourceType(field.name or "array", Kind.ARRAY, element=element.type), partial(_tuple, element)
        )
    if field.type in _PLAIN:
        if _is_long_unsigned(field):
            return Column(SourceType(_text(field), Kind.DECIMAL, 20, 0), _unsigned)
        return _of(field, *_PLAIN[field.type])
    if field.type in ("struct", "map", "array"):
        return _of(field, Kind.STRING, show)
    raise Unreadable(f"Kafka Connect has no type {field.type!r}")


def _text(field: _Field) -> str:
    own = field.parameter("__debezium.source.column.type")
    return own or field.name or field.type


def _of(field: _Field, kind: Kind, decode: Decode) -> Column[Any]:
    return Column(SourceType(_text(field), kind), decode)


def _tuple(element: Column[Any], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise Unreadable("the value is not a list")
    return tuple(None if item is None else element.decode(item) for item in value)


def _is_long_unsigned(field: _Field) -> bool:
    own = field.parameter("__debezium.source.column.type")
    return field.type == "int64" and own is not None and own.upper().startswith("BIGINT UNSIGNED")


def _unsigned(value: Any) -> Decimal:
    # bigint.unsigned.handling.mode=long wraps what is above 2^63.
    return Decimal(_whole(value) % _UNSIGNED)


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise Unreadable(f"{show(value)} is not a whole number")
    return value


def _integer(bits: int, value: Any) -> int:
    number = _whole(value)
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise Unreadable(f"{show(value)} has more than {bits} bits")
    return number


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise Unreadable(f"{show(value)} is not a text")
    return value


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Unreadable(f"{show(value)} is not a boolean")
    return value


def _real(value: Any) -> float:
    if isinstance(value, str) and value not in ("NaN", "Infinity", "-Infinity"):
        raise Unreadable(f"{show(value)} is not a number")
    return float(value)


def _single(value: Any) -> float:
    number = _real(value)
    if isfinite(number) and abs(number) >= _BEYOND_SINGLE:
        raise Unreadable(f"{show(value)} is too large for a float of 32 bits")
    return number


def as_bytes(value: Any) -> bytes:
    """Decode base64, in which Connect writes bytes.

    Raises:
        ValueError: If the value is not base64.
    """
    text = _string(value)
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise Unreadable(f"{show(value):.80} is not base64, in which Kafka Connect writes bytes") from None


def _decimal(field: _Field, _rules: Rules) -> Column[Any]:
    scale = int(field.parameter("scale") or 0)
    declared = field.parameter("connect.decimal.precision")
    precision = int(declared) if declared else None
    kind = SourceType(_text(field), Kind.DECIMAL, precision, scale)
    return Column(kind, lambda value: scaled(_unscaled(as_bytes(value), scale), precision, scale))


def _unscaled(encoded: bytes, scale: int) -> Decimal:
    if abs(scale) > _MOST_DIGITS:
        raise Unreadable(f"no decimal has the scale {scale}")
    sign, digits, _ = Decimal(int.from_bytes(encoded, "big", signed=True)).as_tuple()
    return Decimal((sign, digits, -scale))


def variable_decimal(value: Any) -> Decimal:
    """Decode Debezium's ``VariableScaleDecimal``, whose scale is in each value.

    Raises:
        ValueError: If the value is no such decimal.
    """
    if not isinstance(value, dict) or value.keys() != {"scale", "value"}:
        raise Unreadable(f"{show(value)} has no scale and value")
    return _unscaled(as_bytes(value["value"]), _whole(value["scale"]))


def _variable(field: _Field, _rules: Rules) -> Column[Any]:
    return _of(field, Kind.DECIMAL, variable_decimal)


def _bits(field: _Field, _rules: Rules) -> Column[Any]:
    length = int(field.parameter("length") or 0)
    if not 0 < length <= _LONGEST_BITS:
        return _of(field, Kind.BINARY, as_bytes)
    if length == _LONGEST_BITS:
        kind = SourceType(_text(field), Kind.DECIMAL, 20, 0)
        return Column(kind, lambda value: Decimal(_little(length, value)))
    return _of(field, Kind.LONG, partial(_little, length))


def _little(bits: int, value: Any) -> int:
    number = int.from_bytes(as_bytes(value), "little")
    if number >> bits:
        raise Unreadable(f"{show(value)} has more than {bits} bits")
    return number


_PLAIN: Final[Mapping[str, tuple[Kind, Decode]]] = {
    "int8": (Kind.BYTE, partial(_integer, 8)),
    "int16": (Kind.SHORT, partial(_integer, 16)),
    "int32": (Kind.INT, partial(_integer, 32)),
    "int64": (Kind.LONG, partial(_integer, 64)),
    "float": (Kind.FLOAT, _single),
    "float32": (Kind.FLOAT, _single),
    "double": (Kind.DOUBLE, _real),
    "float64": (Kind.DOUBLE, _real),
    "boolean": (Kind.BOOLEAN, _boolean),
    "string": (Kind.STRING, _string),
    "bytes": (Kind.BINARY, as_bytes),
}
_CONNECT: Final = "org.apache.kafka.connect.data."
_TIME: Final = "io.debezium.time."
_TIMES: Final[Mapping[str, tuple[Kind, Decode]]] = {
    f"{_CONNECT}Date": (Kind.DATE, lambda value: day(_whole(value))),
    f"{_CONNECT}Time": (Kind.STRING, lambda value: time_text(_whole(value) * 1000)),
    f"{_CONNECT}Timestamp": (Kind.TIMESTAMP_NTZ, lambda value: clock(_whole(value) * 1000)),
    f"{_TIME}Date": (Kind.DATE, lambda value: day(_whole(value))),
    f"{_TIME}IsoDate": (Kind.DATE, lambda value: parse_date(_string(value))),
    f"{_TIME}Time": (Kind.STRING, lambda value: time_text(_whole(value) * 1000)),
    f"{_TIME}MicroTime": (Kind.STRING, lambda value: time_text(_whole(value))),
    f"{_TIME}NanoTime": (Kind.STRING, lambda value: time_text(micros_of(_whole(value)))),
    f"{_TIME}IsoTime": (Kind.STRING, lambda value: _string(value).removesuffix("Z")),
    f"{_TIME}Timestamp": (Kind.TIMESTAMP_NTZ, lambda value: clock(_whole(value) * 1000)),
    f"{_TIME}MicroTimestamp": (Kind.TIMESTAMP_NTZ, lambda value: clock(_whole(value))),
    f"{_TIME}NanoTimestamp": (Kind.TIMESTAMP_NTZ, lambda value: clock(micros_of(_whole(value)))),
    f"{_TIME}IsoTimestamp": (Kind.TIMESTAMP_NTZ, lambda value: parse_clock(_string(value))),
    f"{_TIME}ZonedTimestamp": (Kind.TIMESTAMP, lambda value: parse_moment(_string(value))),
}
_SPECIAL: Final[Mapping[str, Callable[[_Field, Rules], Column[Any]]]] = {
    f"{_CONNECT}Decimal": _decimal,
    "io.debezium.data.VariableScaleDecimal": _variable,
    "io.debezium.data.Bits": _bits,
}
