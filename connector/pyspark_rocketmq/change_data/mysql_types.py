"""MySQL's and MariaDB's types, and their values as Canal writes them: text.

Rule 1: a column's type is from ``mysqlType``, never from a value, and never from ``sqlType``. The latter
changes with the value: a BIGINT UNSIGNED above 2^63 is a DECIMAL there.
Rule 2: a value that its type cannot have is refused, not repaired. For example, a negative unsigned number
shows that the program had no metadata of the table.

Source: ``LogEventConvert.parseOneRow``, ``RowsLogBuffer``.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Context, Decimal, InvalidOperation
from functools import lru_cache, partial
from typing import Any, Final

from pyspark_rocketmq.change_data.change import Kind, SourceType
from pyspark_rocketmq.change_data.rules import Bytes, Column, Rules, ZeroDates
from pyspark_rocketmq.change_data.times import Unreadable, parse_clock, parse_date, parse_moment

_TYPE: Final = re.compile(
    r"\s*([a-z0-9_]+(?: +precision| +varying)?)\s*(?:\((.*)\))?([^()]*)\Z", re.IGNORECASE | re.DOTALL
)
_MEMBER: Final = re.compile(r"'((?:[^']|'')*)'\s*(?:,|\Z)\s*")
_ZERO_DATE: Final = re.compile(r"\d{4}-(?:00-\d{2}|\d{2}-00)")
_JSON_DIFF: Final = re.compile(r"JSON_(?:REPLACE|INSERT|ARRAY_INSERT|REMOVE)\(")
_WHOLE: Final = re.compile(r"-?[0-9]+\Z")
_EXACT: Final = Context(prec=100)
_LONGEST_BITS, _LONGEST_BINARY = 64, 255
_LAST_YEAR: Final = 9999
_MEDIUMINT_BITS: Final = 24
_DECIMAL_DIGITS: Final = 10
"""Precision of a DECIMAL whose type names no precision."""

_INTEGERS: Final = {
    "tinyint": (8, Kind.BYTE, Kind.SHORT),
    "smallint": (16, Kind.SHORT, Kind.INT),
    "mediumint": (_MEDIUMINT_BITS, Kind.INT, Kind.INT),
    "int": (32, Kind.INT, Kind.LONG),
    "integer": (32, Kind.INT, Kind.LONG),
    "bigint": (64, Kind.LONG, Kind.DECIMAL),
    "serial": (64, Kind.DECIMAL, Kind.DECIMAL),
}
"""For each of MySQL's integer types, by name: number of bits, kind if signed, kind if unsigned."""
_DECIMALS: Final = frozenset({"decimal", "numeric", "dec", "fixed"})
_BINARIES: Final = frozenset(
    {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
    | {"geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"}
    | {"geometrycollection", "geomcollection", "vector"}
)


@dataclass(frozen=True, slots=True)
class _Declared:
    text: str
    base: str
    arguments: str
    is_unsigned: bool

    def number(self, at: int, otherwise: int) -> int:
        parts = [part.strip() for part in self.arguments.split(",")] if self.arguments else []
        return int(parts[at]) if at < len(parts) else otherwise

    def length(self, most: int) -> int:
        """Return the length that the type names; 1 if it names none.

        Raises:
            ValueError: If the length is no number, or more than ``most``, MySQL's maximum.
        """
        length = self.number(0, 1)
        if length > most:
            raise Unreadable(f"{self.text:.80} is longer than MySQL's longest, {most}")
        return length

    def members(self) -> tuple[str, ...]:
        found, end = [], 0
        while end < len(self.arguments):
            member = _MEMBER.match(self.arguments, end)
            if member is None:
                raise Unreadable(f"the members of {self.text} cannot be read")
            found.append(member[1].replace("''", "'"))
            end = member.end()
        return tuple(found)


@lru_cache(maxsize=4096)
def mysql_column(text: str, rules: Rules) -> Column[str]:
    """Return the type and the decoder of a column, from the text of its MySQL type in ``SHOW COLUMNS``.

    Raises:
        ValueError: If the text cannot be read.
    """
    found = _TYPE.match(text)
    if found is None:
        raise Unreadable(f"{text!r} is not a type of MySQL")
    attributes = found[3].lower()
    declared = _Declared(
        text, found[1].lower(), found[2] or "", "unsigned" in attributes or "zerofill" in attributes
    )
    return _compiled(declared, rules)


def _compiled(declared: _Declared, rules: Rules) -> Column[str]:
    base = declared.base
    if base in _INTEGERS:
        return _integer(declared, rules)
    if base in _DECIMALS:
        return _decimal(declared)
    if base in _BINARIES:
        return _column(
            declared,
            Kind.BINARY,
            partial(_bytes, rules.binary, declared.length(_LONGEST_BINARY) if base == "binary" else 0),
        )
    if base in _TIMES:
        kind, parse = _TIMES[base]
        return _column(declared, kind, partial(_time, rules, kind, parse))
    special = _SPECIAL.get(base)
    if special is not None:
        return special(declared)
    return _column(declared, Kind.STRING, str, reads_plain_texts=True)


def _column(
    declared: _Declared, kind: Kind, decode: Callable[[str], Any], *, reads_plain_texts: bool = False
) -> Column[str]:
    return Column(SourceType(declared.text, kind), decode, reads_plain_texts)


def _integer(declared: _Declared, rules: Rules) -> Column[str]:
    if declared.base == "tinyint" and declared.arguments == "1" and rules.tinyint1_as_boolean:
        return _column(declared, Kind.BOOLEAN, _boolean)
    bits, signed, unsigned = _INTEGERS[declared.base]
    is_unsigned = declared.is_unsigned or declared.base == "serial"
    kind = unsigned if is_unsigned else signed
    lowest, highest = (0, 2**bits - 1) if is_unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if kind is Kind.DECIMAL:
        return Column(SourceType(declared.text, kind, 20, 0), partial(_bounded, Decimal, lowest, highest))
    # An unsigned number, or one of 24 bits, has a Spark type that holds more.
    is_plain = not is_unsigned and bits != _MEDIUMINT_BITS
    return _column(declared, kind, partial(_bounded, int, lowest, highest), reads_plain_texts=is_plain)


def _boolean(text: str) -> bool:
    # A signed byte: -1 is true, too.
    return _whole(text) != 0


def _whole(text: str) -> int:
    if not _WHOLE.match(text):
        raise Unreadable(f"{text!r} is not a whole number")
    return int(text)


def _bounded(kind: Callable[[int], Any], lowest: int, highest: int, text: str) -> Any:
    value = _whole(text)
    if not lowest <= value <= highest:
        raise Unreadable(
            f"{value} is not between {lowest} and {highest}: the program that wrote it did not have the "
            "table's metadata, or had the metadata of another version of the table"
        )
    return kind(value)


def _decimal(declared: _Declared) -> Column[str]:
    precision, scale = declared.number(0, _DECIMAL_DIGITS), declared.number(1, 0)
    kind = SourceType(declared.text, Kind.DECIMAL, precision, scale)
    # A decimal that Spark cannot hold is a string there; one of whole thousands has a type that holds more.
    is_plain = scale >= 0 and kind.spark != Kind.STRING
    return Column(kind, lambda text: scaled(Decimal(text), precision, scale), is_plain)


def scaled(value: Decimal, precision: int | None, scale: int) -> Decimal:
    """Return a decimal with as many digits behind the point as its type has: 3.00 for Canal's ``3.0``.

    Raises:
        ValueError: If the value is not finite, or has more digits than its type. If ``precision`` is None,
            the type has no maximum of digits before the point, but a value has at most 100 digits in all.
    """
    digits = _EXACT.prec if precision is None else min(precision, _EXACT.prec)
    if value.as_tuple().exponent == -scale and value.adjusted() < digits - scale:
        # The usual case: it has the digits of its type.
        return value
    try:
        result = value.quantize(_quantum(scale), context=_EXACT)
    except InvalidOperation:
        raise Unreadable(f"{value} is not a decimal of {precision or _EXACT.prec} digits") from None
    if result != value or (precision is not None and len(result.as_tuple().digits) > max(precision, scale)):
        raise Unreadable(f"{value} has more digits than decimal({precision},{scale})")
    return result


@lru_cache(maxsize=128)
def _quantum(scale: int) -> Decimal:
    """Return the smallest positive decimal with this many digits behind the point."""
    return Decimal(1).scaleb(-scale)


def _bits(declared: _Declared) -> Column[str]:
    length = declared.length(_LONGEST_BITS)
    if length == 1:
        return _column(declared, Kind.BOOLEAN, _boolean)
    if length > 63:
        return Column(
            SourceType(declared.text, Kind.DECIMAL, 20, 0), partial(_bounded, Decimal, 0, 2**length - 1)
        )
    return _column(declared, Kind.LONG, partial(_bounded, int, 0, 2**length - 1))


def _bytes(form: Bytes, padded: int, text: str) -> bytes:
    # The log has no zeros at the end of BINARY(n).
    return as_bytes(form, text).ljust(padded, b"\0")


def as_bytes(form: Bytes, text: str) -> bytes:
    """Return the bytes that a JSON string stands for; ``form`` says how the string encodes them.

    Raises:
        ValueError: If the string is not in this form.
    """
    match form:
        case Bytes.LATIN_1:
            try:
                return text.encode("latin-1")
            except UnicodeEncodeError:
                raise Unreadable(
                    "the value has a character above U+00FF, which stands for no byte; have the source write "
                    "bytes as latin-1, hex or base64, and name this form in the option binary"
                ) from None
        case Bytes.HEX | Bytes.BASE64:
            try:
                return (
                    bytes.fromhex(text.removeprefix("0x"))
                    if form is Bytes.HEX
                    else b64decode(text, validate=True)
                )
            except ValueError:
                raise Unreadable(
                    f"the value is not {form}; name the form in which the source writes bytes in the option "
                    "binary"
                ) from None


def _time(rules: Rules, kind: Kind, parse: Callable[[Rules, str], Any], text: str) -> Any:
    if _ZERO_DATE.match(text):
        match rules.zero_dates:
            case ZeroDates.NULL:
                return None
            case ZeroDates.EPOCH:
                return _EPOCHS[kind]
            case ZeroDates.ERROR:
                raise Unreadable(f"{text} is a zero date; zero_dates='null' makes it NULL")
    return rules.or_null(partial(parse, rules), text)


_EPOCHS: Final = {
    Kind.DATE: date(1970, 1, 1),
    Kind.TIMESTAMP_NTZ: datetime(1970, 1, 1),  # noqa: DTZ001 - a clock without a zone
    Kind.TIMESTAMP: datetime(1970, 1, 1, tzinfo=UTC),
}
_TIMES: Final[dict[str, tuple[Kind, Callable[[Rules, str], Any]]]] = {
    "date": (Kind.DATE, lambda _, text: parse_date(text)),
    "datetime": (Kind.TIMESTAMP_NTZ, lambda _, text: parse_clock(text)),
    "timestamp": (Kind.TIMESTAMP, lambda rules, text: parse_moment(text, rules.source_time_zone)),
}


def _enum(declared: _Declared) -> Column[str]:
    members = declared.members()

    def member(text: str) -> str:
        if not _is_number(text):
            return _known(text, members, declared)
        index = int(text)
        if index > len(members):
            raise Unreadable(_unknown(f"the member {index}", declared))
        return members[index - 1] if index else ""

    return _column(declared, Kind.STRING, member)


def _set(declared: _Declared) -> Column[str]:
    members = declared.members()

    def chosen(text: str) -> str:
        if not _is_number(text):
            for part in filter(None, text.split(",")):
                _known(part, members, declared)
            return text
        mask = int(text)
        if mask >> len(members):
            raise Unreadable(_unknown(f"all members of the bit mask {mask:#b}", declared))
        return ",".join(member for at, member in enumerate(members) if mask >> at & 1)

    return _column(declared, Kind.STRING, chosen)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _known(text: str, members: tuple[str, ...], declared: _Declared) -> str:
    if text and text not in members:
        raise Unreadable(_unknown(repr(text), declared))
    return text


def _unknown(what: str, declared: _Declared) -> str:
    remedy = "" if declared.arguments else "; TiCDC writes the members with content-compatible=true"
    return f"the column's type does not have {what}{remedy}"


def _json(declared: _Declared) -> Column[str]:
    def document(text: str) -> str:
        if _JSON_DIFF.match(text):
            raise Unreadable(
                "the value is only a change of a document: set MySQL's binlog_row_value_options=''"
            )
        return text

    return _column(declared, Kind.STRING, document)


_SPECIAL: Final[dict[str, Callable[[_Declared], Column[str]]]] = {
    "bit": _bits,
    "enum": _enum,
    "set": _set,
    "json": _json,
    "float": partial(_column, kind=Kind.FLOAT, decode=float),
    "double": partial(_column, kind=Kind.DOUBLE, decode=float),
    "double precision": partial(_column, kind=Kind.DOUBLE, decode=float),
    "real": partial(_column, kind=Kind.DOUBLE, decode=float),
    "bool": partial(_column, kind=Kind.BOOLEAN, decode=_boolean),
    "boolean": partial(_column, kind=Kind.BOOLEAN, decode=_boolean),
    "year": partial(_column, kind=Kind.INT, decode=partial(_bounded, int, 0, _LAST_YEAR)),
}
