"""Settings for what a message leaves open, such as a time zone, and helpers that all envelopes share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from pyspark_rocketmq.change_data.change import Position, SourceTable, SourceType
from pyspark_rocketmq.change_data.times import OutOfRange, Unreadable, moment

ValueT = TypeVar("ValueT")

HIDDEN_KEYS: Final = frozenset({"__#alibaba_rds_row_id#__", "_drds_implicit_id_"})
"""Columns that RDS and PolarDB-X add to a table without a key. They are its key, but not part of its rows."""
_MOST: Final = 2**63 - 1
"""Greatest part of a position."""


class ZeroDates(StrEnum):
    """Treatment of MySQL's zero dates."""

    NULL = "null"
    EPOCH = "epoch"
    ERROR = "error"


class OutOfRangeTimes(StrEnum):
    """Treatment of PostgreSQL's infinite dates, and of years before 1 or after 9999, which Python lacks."""

    NULL = "null"
    ERROR = "error"


class Bytes(StrEnum):
    """How bytes are written in a JSON string."""

    LATIN_1 = "latin-1"
    """A character for each byte, as Canal writes them."""
    HEX = "hex"
    """Two hexadecimal digits for each byte, as Tencent DTS writes them."""
    BASE64 = "base64"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Settings by which envelopes read messages; hashable, so that compiled types can be cached for them."""

    source_time_zone: tzinfo | None = None
    """Zone in which the program writes a TIMESTAMP without naming the zone; for Canal, that of its JVM."""
    zero_dates: ZeroDates = ZeroDates.NULL
    out_of_range: OutOfRangeTimes = OutOfRangeTimes.ERROR
    tinyint1_as_boolean: bool = False
    binary: Bytes = Bytes.LATIN_1
    servers: tuple[int, ...] = ()
    """Ids of the MySQL servers, in the order in which they were the primary; empty if it was always the same.

    They are needed because another server numbers the files of its binary log from the beginning.
    """
    keys: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Key columns by table (``database.name``, or ``*`` for all); they override those that messages name."""
    unavailable_value: str = "__debezium_unavailable_value"
    """Debezium's ``unavailable.value.placeholder``."""

    def keys_of(self, table: SourceTable) -> tuple[str, ...] | None:
        """Return the key columns that the option ``keys`` names for a table; None if it names none."""
        named = dict(self.keys)
        return named.get(str(table), named.get("*"))

    def epoch_of(self, server: int) -> int:
        """Return a server's epoch, a part of positions: its number in :attr:`servers`, counted from 1.

        The epoch is 0 if :attr:`servers` is empty, or if the message names no server (id 0).

        Raises:
            ValueError: If :attr:`servers` lacks this server.
        """
        if not self.servers or server == 0:
            return 0
        if server not in self.servers:
            raise Unreadable(
                f"the change comes from server {server}, which option servers does not name. Add the server "
                "there, after those that were the primary before it."
            )
        return self.servers.index(server) + 1

    def or_null(self, decode: Callable[[ValueT], Any], value: ValueT) -> Any:
        """Decode a value. For a time that no Spark type holds, return None if ``out_of_range`` is ``NULL``.

        Raises:
            ValueError: If the value cannot be decoded, or if no Spark type holds the time and
                ``out_of_range`` is ``ERROR``.
        """
        try:
            return decode(value)
        except OutOfRange as fault:
            if self.out_of_range is OutOfRangeTimes.NULL:
                return None
            raise Unreadable(f"{fault}; out_of_range='null' makes it NULL") from None


@dataclass(frozen=True, slots=True)
class Column(Generic[ValueT]):
    """The type of a column, and the function that decodes its values."""

    type: SourceType
    decode: Callable[[ValueT], Any] = field(compare=False)
    reads_plain_texts: bool = False
    """Whether a whole column of texts can be converted in one step, instead of value by value.

    This is so if ``decode`` reads the plain text of each value of the type ``type.spark`` as that same value,
    for example ``3.00`` as the decimal 3.00.
    """


def decoded(columns: Mapping[str, Column[Any]], values: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Decode the values of a row, given with their columns' names; None stays None.

    Raises:
        ValueError: If a value does not fit its column; the error names the column.
    """
    row = {}
    for name, value in values:
        try:
            row[name] = None if value is None else columns[name].decode(value)
        except (ValueError, TypeError, ArithmeticError) as fault:
            raise Unreadable(f"column {name} ({columns[name].type.text}): {fault}") from fault
    return row


def columns_in(reason: str) -> list[str]:
    """Return the possible names of the column that an error of :func:`decoded` is about.

    ``reason`` is the error's text. There are several names if the column's name contains a parenthesis, and
    none if the error is about something else.
    """
    head, found, _ = reason.partition("): ")
    if not found or not head.startswith("column "):
        return []
    parts = head.removeprefix("column ").split(" (")
    return [" (".join(parts[:number]) for number in range(1, len(parts))]


def checked(position: Iterable[int]) -> Position:
    """Return a position as a tuple, after a check of its parts.

    Raises:
        ValueError: If a part is negative or has more than 63 bits.
    """
    parts = tuple(position)
    if min(parts) < 0 or max(parts) > _MOST:
        raise Unreadable(f"the position {parts} has a number that is negative or longer than 63 bits")
    return parts


def number_of_file(name: str) -> int:
    """Return the number of a binary log's file: 12 for ``mysql-bin.000012``.

    Raises:
        ValueError: If the name does not end with a number.
    """
    digits = name.rpartition(".")[2]
    if not (digits.isascii() and digits.isdigit()):
        raise Unreadable(f"{name!r} is not a file of a binary log: the name does not end with a number")
    return int(digits)


def transactions_in(gtids: str) -> int:
    """Count the transactions in a set of global transaction ids; a source's count only grows.

    MySQL writes ``uuid:1-5:7,uuid:1-3``. MariaDB writes ``domain-server-sequence`` for each domain, with the
    sequence number of the domain's newest transaction.

    Raises:
        ValueError: If the text has neither form.
    """
    return sum(map(_transactions_in_part, gtids.replace("\n", "").split(",")))


def _transactions_in_part(part: str) -> int:
    source, *intervals = part.strip().split(":")
    if not intervals:
        _domain, _server, sequence = map(int, source.split("-"))
        return sequence
    count = 0
    for interval in intervals:
        first, _, last = interval.partition("-")
        if first.isdigit():
            count += int(last or first) - int(first) + 1
        elif not first.isidentifier():
            raise Unreadable(f"{part!r} is not a set of global transaction ids")
    return count


def source_time(millis: object) -> datetime | None:
    """Return the moment that is ``millis`` milliseconds after the epoch.

    None if ``millis`` is not a whole number above 0, or if the moment is after the year 9999.
    """
    if not isinstance(millis, int) or isinstance(millis, bool) or millis <= 0:
        return None
    try:
        return moment(millis * 1000)
    except OutOfRange:
        return None
