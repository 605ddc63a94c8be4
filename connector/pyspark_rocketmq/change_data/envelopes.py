"""The envelopes (readers of one program's messages) by name, and the options that each of them has."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, timedelta, timezone, tzinfo
from enum import StrEnum
from typing import Any, Final, Protocol, TypedDict, TypeVar
from zoneinfo import ZoneInfo

from pyspark_rocketmq.change_data.canal import CanalJson
from pyspark_rocketmq.change_data.canal_protobuf import CanalProtobuf
from pyspark_rocketmq.change_data.change import Envelope
from pyspark_rocketmq.change_data.debezium import DebeziumJson
from pyspark_rocketmq.change_data.maxwell import MaxwellJson
from pyspark_rocketmq.change_data.rules import Bytes, OutOfRangeTimes, Rules, ZeroDates
from pyspark_rocketmq.errors import OptionError

EnumT = TypeVar("EnumT", bound=StrEnum)

_OFFSET: Final = re.compile(r"([+-])(\d{2}):?(\d{2})\Z")
_WHERE: Final = "options of an envelope"


class TableOptions(TypedDict, total=False):
    """Options of an envelope for one table; the sink has its key, so the option ``keys`` is not needed."""

    source_time_zone: str
    """Zone in which Canal writes a TIMESTAMP: that of Canal's JVM (``Asia/Shanghai``, ``+08:00``)."""
    servers: Sequence[int]
    """Ids (``server_id``) of the MySQL servers, in the order in which they were the primary."""
    zero_dates: str
    """Treatment of MySQL's zero dates: ``null``, ``epoch`` or ``error``."""
    out_of_range: str
    """Treatment of infinite dates, and of years before 1 or after 9999: ``error`` or ``null``."""
    tinyint1_as_boolean: bool
    """Whether ``tinyint(1)`` is a boolean."""
    binary: str
    """Encoding of bytes in Canal's JSON: ``latin-1``, ``hex`` (Tencent DTS) or ``base64``."""
    unavailable_value: str
    """Debezium's ``unavailable.value.placeholder``."""


class EnvelopeOptions(TableOptions, total=False):
    """All options that envelopes have; each envelope has some of them."""

    keys: Mapping[str, Sequence[str]] | Sequence[str]
    """Key columns, for all tables or by ``database.table``; they override those that messages name."""


class _Make(Protocol):
    def __call__(self, rules: Rules) -> Envelope: ...


@dataclass(frozen=True, slots=True)
class _Kind:
    make: _Make
    options: frozenset[str]


_OF_MYSQL: Final = {"source_time_zone", "zero_dates", "out_of_range", "tinyint1_as_boolean"}
_KINDS: Final[Mapping[str, _Kind]] = {
    "canal": _Kind(CanalJson, frozenset({"keys", "binary", *_OF_MYSQL})),
    "canal-protobuf": _Kind(CanalProtobuf, frozenset({"keys", "servers", *_OF_MYSQL})),
    "debezium": _Kind(DebeziumJson, frozenset({"keys", "servers", "out_of_range", "unavailable_value"})),
    "maxwell": _Kind(MaxwellJson, frozenset({"keys", "servers"})),
}
ENVELOPES: Final = tuple(_KINDS)


def envelope_of(name: str, options: Mapping[str, Any]) -> Envelope:
    """Return the envelope that has this name, with these options.

    Raises:
        OptionError: If no envelope has the name, or if an option is unknown, wrong, missing or of another
            envelope.
    """
    kind = _KINDS.get(name)
    if kind is None:
        raise OptionError((f"envelope='{name}' is unknown; {_hint(name, ENVELOPES)}",), where=_WHERE)
    problems = [_foreign(name, kind, option) for option in options if option not in kind.options]
    if "source_time_zone" in kind.options and not options.get("source_time_zone"):
        problems.append(
            f"source_time_zone is missing: a TIMESTAMP of envelope '{name}' is in the zone of Canal's JVM, "
            "which no message names; look at its user.timezone"
        )
    rules = Rules()
    for option in kind.options & options.keys():
        try:
            rules = replace(rules, **{option: _PARSERS[option](options[option])})
        except (ValueError, TypeError) as fault:
            problems.append(f"{option}={options[option]!r} {fault}")
    if problems:
        raise OptionError(tuple(sorted(problems)), where=_WHERE)
    return kind.make(rules=rules)


def _foreign(envelope: str, kind: _Kind, option: str) -> str:
    of_others = [name for name, other in _KINDS.items() if option in other.options]
    if of_others:
        return f"{option} is an option of {' and '.join(of_others)}, not of envelope '{envelope}'"
    return f"{option} is unknown; {_hint(option, sorted(kind.options))}"


def _hint(name: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(name.lower(), known, n=1)
    return f"did you mean '{close[0]}'?" if close else f"known are {', '.join(known)}"


def _zone(text: str) -> tzinfo:
    offset = _OFFSET.match(text)
    if offset is not None:
        minutes = int(offset[2]) * 60 + int(offset[3])
        return timezone(timedelta(minutes=-minutes if offset[1] == "-" else minutes))
    if text.upper() in ("UTC", "Z", "GMT"):
        return UTC
    try:
        return ZoneInfo(text)
    except (KeyError, ValueError, OSError):
        raise ValueError("is not a time zone; name one as Asia/Shanghai or +08:00") from None


def _one_of(kind: type[EnumT]) -> Callable[[Any], EnumT]:
    def parse(text: Any) -> EnumT:
        values = [member.value for member in kind]
        if text not in values:
            raise ValueError(f"is unknown; {_hint(str(text), values)}")
        return kind(text)

    return parse


def _keys(named: Mapping[str, Sequence[str]] | Sequence[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    by_table = named if isinstance(named, Mapping) else {"*": named}
    return tuple(sorted((table, _names(columns)) for table, columns in by_table.items()))


def _names(columns: Iterable[str]) -> tuple[str, ...]:
    if isinstance(columns, str):
        raise TypeError(f"is one text; write the columns as a list: ['{columns}']")
    names = tuple(columns)
    if not names or not all(names):
        raise ValueError("needs the names of columns")
    return names


def _servers(ids: Iterable[int]) -> tuple[int, ...]:
    servers = tuple(ids)
    if min(servers, default=1) < 1 or len(set(servers)) < len(servers):
        raise ValueError("needs different numbers above 0, MySQL's server_id of each")
    return servers


def _is(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("needs True or False")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("needs a text")
    return value


_PARSERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "source_time_zone": _zone,
    "keys": _keys,
    "servers": _servers,
    "zero_dates": _one_of(ZeroDates),
    "out_of_range": _one_of(OutOfRangeTimes),
    "tinyint1_as_boolean": _is,
    "binary": _one_of(Bytes),
    "unavailable_value": _text,
}
