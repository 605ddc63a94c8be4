"""Parsers of single options: text in, value out, ``ValueError`` with the problem."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from numbers import Integral
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pyspark_rocketmq.model import MESSAGE_COLUMNS

MAX_TOPIC_LENGTH: Final = 127
"""Maximum length of a topic's name, in characters (``Validators.TOPIC_MAX_LENGTH``)."""

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

UNBOUNDED: Final = 2**31 - 1
"""Upper bound of numbers without a meaningful limit; the documentation does not show it."""
_LATEST_TIME_MS: Final = 2**62
_TIMES_IN_SECONDS: Final = range(10**9, 10**10)
"""Numbers that are refused because they are most likely seconds: as seconds they are times from 2001 on, as
milliseconds times in early 1970."""
_DURATION_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION_WORDS: Final = {"millisecond": "ms", "second": "s", "minute": "m", "hour": "h", "day": "d"}
"""Units as words, as in Spark's intervals, without the s of the plural; each with its short form."""
_ADDRESS: Final = "give host:port, such as '10.0.0.5:9876', or 'http://host:port' as clouds' consoles show it"
_INSTANCE: Final = re.compile(r"(MQ_INST_\w+_\w+)\.", re.ASCII)
_SEPARATES_TAGS: Final = re.compile(r"[|,;\s]|&&")
"""Separators that users confuse with ``||``, the only valid one."""


class ArgumentRule(NamedTuple):
    """Rule for the Python values that a program may pass as an argument in place of an option's string."""

    kinds: tuple[type, ...] = (str,)
    is_allowed: Callable[[Any], bool] = lambda _: True
    """Function that returns whether a value, which has one of the types ``kinds``, is allowed."""
    problem: str = ""
    """End of the sentence ``name=value …`` about a value that is not allowed."""


_ANY_TEXT: Final = ArgumentRule()


@dataclass(frozen=True, slots=True)
class Parser(Generic[T]):
    """A function that turns a string into a value, and the documentation's name for the string's type."""

    type_name: str
    function: Callable[[str], T]
    """Raises ValueError with the end of the sentence ``key='value' …``."""
    argument: ArgumentRule = _ANY_TEXT
    bounds: tuple[int, int] | None = None
    """Least and largest value, if it is a whole number."""

    def __call__(self, text: str) -> T:
        """Return the value of an option's ``text``.

        Raises:
            ValueError: If the text is wrong; the message is the end of the sentence ``key='value' …``.
        """
        return self.function(text)


def parses(
    type_name: str, argument: ArgumentRule = _ANY_TEXT, bounds: tuple[int, int] | None = None
) -> Callable[[Callable[[str], T]], Parser[T]]:
    """Return a decorator that makes a function from text to a value a :class:`Parser`."""
    return lambda function: Parser(type_name, function, argument, bounds)


def int_between(low: int, high: int) -> Parser[int]:
    """Return a parser of whole numbers from ``low`` to ``high``."""
    shown = f"{low} or more" if high >= UNBOUNDED else f"{low} to {high}"
    outside = f"is not {shown}" if high >= UNBOUNDED else f"is not between {low} and {high}"
    argument = ArgumentRule((Integral,), lambda value: bool(low <= value <= high), outside)

    @parses(f"integer, {shown}", argument, (low, high))
    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d+", text.strip()):
            raise ValueError(f"is not a whole number, {shown}")
        value = int(text)
        if not low <= value <= high:
            raise ValueError(outside)
        return value

    return parse


def iso_time(text: str) -> datetime:
    """Parse a time in ISO 8601, such as ``2026-11-20T10:00``; UTC without a zone.

    Raises:
        ValueError: If it is not a time.
    """
    # ISO's form without hyphens (20261120) is refused, because options give bare numbers another meaning.
    if text.strip()[4:5] != "-":
        raise ValueError(f"is not a time in ISO 8601: {text}")
    at = datetime.fromisoformat(text.strip())
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


@parses("integer, 0 or more, or ISO time")
def time_ms(text: str) -> int:
    """Parser of a time, given in milliseconds since the epoch or in ISO 8601; returns milliseconds."""
    with suppress(ValueError, OverflowError):
        return max(0, round(iso_time(text).timestamp() * 1000))
    if not re.fullmatch(r"\+?\d{1,19}", text.strip()) or int(text) > _LATEST_TIME_MS:
        raise ValueError(
            "is not a time: give milliseconds since the epoch, such as 1700000000000, or ISO 8601, such as "
            "2026-11-20T10:00 (UTC if it has no zone)"
        )
    if int(text) in _TIMES_IN_SECONDS:
        raise ValueError(f"is in seconds; give milliseconds since the epoch, {int(text) * 1000}")
    return int(text)


@parses("duration")
def duration_ms(text: str) -> int:
    """Parse a duration such as ``15m`` or ``15 minutes`` into milliseconds; a bare number is milliseconds."""
    found = re.fullmatch(r"(\d{1,15}) *([a-z]*)", text.strip().lower())
    unit = (found[2] or "ms") if found else ""
    unit = _DURATION_WORDS.get(unit.removesuffix("s"), unit)
    if found is None or unit not in _DURATION_UNITS_MS:
        raise ValueError(f"is not a duration such as 15m; units are {', '.join(_DURATION_UNITS_MS)}")
    return int(found[1]) * _DURATION_UNITS_MS[unit]


def list_of(parse_one: Parser[T]) -> Parser[tuple[T, ...]]:
    """Return a parser of one or more distinct values that are separated by commas."""

    @parses(f"list of {parse_one.type_name}s")
    def parse(text: str) -> tuple[T, ...]:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if not parts:
            raise ValueError("is empty; give names separated by ','")
        twice = sorted({part for part in parts if parts.count(part) > 1})
        if twice:
            raise ValueError(f"names {', '.join(twice)} twice")
        return tuple(map(parse_one, parts))

    return parse


def unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of a JSON object as a dict; for ``object_pairs_hook`` of ``json.loads``.

    Raises:
        ValueError: If a name occurs twice; ``json`` would keep only the last value.
    """
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"has the name {twice!r} twice in one JSON object; keep one of them")
    return members


def json_texts(text: str, example: str) -> dict[str, str]:
    """Parse a JSON object whose values are strings.

    Raises:
        ValueError: With the end of a sentence if it is not such an object; ``example`` shows one.
    """
    try:
        found = json.loads(text, object_pairs_hook=unique_members)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except json.JSONDecodeError:
        raise ValueError(f"is not a JSON object such as {example}") from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError(f"is not a JSON object of strings such as {example}")
    return found


@parses("boolean", ArgumentRule((bool,)))
def boolean(text: str) -> bool:
    """Parser of true or false."""
    value = text.strip().lower()
    if value not in {"true", "false"}:
        raise ValueError("is neither true nor false")
    return value == "true"


@parses("string")
def secret_value(text: str) -> str:
    """Parser of any text that is not blank; returns it unchanged."""
    if not text.strip():
        raise ValueError("is empty")
    return text


@parses("JSON")
def secret_json(text: str) -> str:
    """Parser of a JSON object of strings, booleans and whole numbers; returns its text unchanged."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(
        isinstance(value, str | bool | int) for value in found.values()
    ):
        raise ValueError('is not JSON such as {"aws_access_key_id": "…", "aws_secret_access_key": "…"}')
    return text


@parses("string")
def text_value(text: str) -> str:
    """Parser of any text that is not blank; returns it without outer blanks."""
    return secret_value(text).strip()


@parses("string")
def namespace_name(text: str) -> str:
    """Parser of a namespace of letters, digits, ``_`` and ``-``; returns it without outer blanks.

    It has no ``%``, since in ``NAMESPACE%TOPIC`` the first ``%`` ends the namespace.
    """
    name = text.strip()
    if not re.fullmatch(r"[a-zA-Z0-9_-]+", name):
        raise ValueError("is not a namespace: only letters, digits and the characters _ - are allowed")
    return name


def resource_name(kind: str, max_length: int, *, marks: str = "%|_-") -> Parser[str]:
    """Return a parser of names of topics or groups; ``kind`` names their kind in errors.

    ``marks`` are the characters that are allowed besides letters and digits.

    Source: ``Validators.checkTopic``, ``checkGroup``.
    """

    @parses("string")
    def parse(text: str) -> str:
        name = text_value(text)
        if not re.fullmatch(rf"[a-zA-Z0-9{re.escape(marks)}]+", name):
            raise ValueError(
                f"is not a {kind} name: only letters, digits and the characters {' '.join(marks)} are allowed"
            )
        if len(name) > max_length:
            raise ValueError(f"is longer than the {max_length} characters RocketMQ allows for a {kind} name")
        return name

    return parse


@parses("string")
def instance_name(text: str) -> str:
    """Parser of a member's name, optionally after a machine room: ``worker-1``, ``east/worker-1``.

    It may have dots, as full names of machines do.
    """
    room, slash, name = text.strip().rpartition("/")
    named = resource_name("member", 100, marks="%|_-.")
    return f"{named(room)}/{named(name)}" if slash else named(name)


def closest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name most similar to ``name``, ignoring case; None if all are below ``cutoff``."""
    by_lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[close[0]] if close else None


@parses("column name")
def column_name(text: str) -> str:
    """Parse the name of a column of the source, in small or capital letters; return the source's spelling."""
    by_lower = {name.lower(): name for name in MESSAGE_COLUMNS}
    if text.lower() not in by_lower:
        close = closest(text, MESSAGE_COLUMNS)
        hint = f"; did you mean '{close}'?" if close else f"; those are {', '.join(MESSAGE_COLUMNS)}"
        raise ValueError(f"names '{text}', which is not a column of a message{hint}")
    return by_lower[text.lower()]


@parses("list of addresses")
def address_list(text: str) -> tuple[str, ...]:
    """Parser of ``host:port`` addresses separated by semicolons or commas; IPv6 hosts in brackets.

    An address may begin with ``http://``, which is removed and has no effect.

    Source: RocketMQ 5.3.3 ``NameServerAddressUtils.getNameSrvAddrFromNamesrvEndpoint``.
    """
    addresses = tuple(_address(part.strip()) for part in re.split(r"[;,]", text) if part.strip())
    if not addresses:
        raise ValueError("is empty; give host:port, several separated by ';'")
    return addresses


def _address(text: str) -> str:
    scheme, separator, address = text.partition("://") if "://" in text else ("", "", text)
    if separator and scheme.lower() != "http":
        tls = "; TLS is switched on by useTls=true" if scheme.lower() == "https" else ""
        raise ValueError(f"holds '{text}', where '{scheme}://' means nothing to RocketMQ{tls}; {_ADDRESS}")
    if "/" in address:
        raise ValueError(f"holds '{text}', which has a path: servers are named by host and port; {_ADDRESS}")
    if not is_address(address):
        raise ValueError(f"holds '{text}', which is not host:port; {_ADDRESS}")
    return address


def is_address(text: str) -> bool:
    """Return whether the text has the form ``host:port``, with a port from 1 to 65535."""
    host, separator, port = text.rpartition(":")
    return bool(separator and host and "/" not in host) and port.isdecimal() and 0 < int(port) < 65536


def instance_namespace(name_servers: Iterable[str]) -> str | None:
    """Return the namespace that a host like ``MQ_INST_1234_BXxYz.cn-hangzhou.mq.aliyuncs.com`` names, if any.

    Source: RocketMQ 5.3.3 ``ClientConfig.getNamespace``,
    ``NameServerAddressUtils.parseInstanceIdFromEndpoint``.
    """
    found = (_INSTANCE.match(address) for address in name_servers)
    return next((match[1] for match in found if match is not None), None)


def one_of(values: type[E]) -> Parser[E]:
    """Return a parser of the values of an enumeration, which ignores case and returns the member."""
    by_lower = {member.value.lower(): member for member in values}

    @parses(", ".join(f"`{value}`" for value in values), ArgumentRule((values,)))
    def parse(text: str) -> E:
        member = by_lower.get(text.strip().lower())
        if member is None:
            raise ValueError(f"is none of {', '.join(values)}")
        return member

    return parse


@parses("regular expression")
def pattern(text: str) -> re.Pattern[str]:
    """Parser of a regular expression in Python's syntax; returns it compiled."""
    try:
        return re.compile(text_value(text))
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None


@parses("string")
def tag_expression(text: str) -> str:
    """Parser of ``*`` or tags separated by ``||``; returns the text without outer blanks."""
    expression = text.strip()
    if not any(tag.strip() for tag in expression.split("||")):
        raise ValueError("names no tag; give tags separated by '||', or '*' for every message")
    for tag in expression.split("||"):
        # A broker would take the whole text for one tag that no message has: a group would skip everything.
        if _SEPARATES_TAGS.search(tag.strip()):
            raise ValueError(
                f"has the tag '{tag.strip()}'; separate tags only by '||' ('a || b'), or select one tag "
                f"that contains a space, comma or the like by SQL: TAGS = '{tag.strip()}'"
            )
    return expression


@parses("JSON")
def address_map(text: str) -> tuple[tuple[str, str], ...]:
    """Parser of a JSON object: for an address that a broker announces, the address to connect to instead.

    Both have the form ``host:port``. Returns the pairs in their order.
    """
    found = json_texts(text, '{"10.0.0.5:10911": "1.2.3.4:10911"}')
    wrong = [address for pair in found.items() for address in pair if not is_address(address)]
    if wrong:
        raise ValueError(f"holds '{wrong[0]}', which is not host:port")
    return tuple(found.items())
