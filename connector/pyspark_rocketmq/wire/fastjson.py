"""fastjson's JSON: read it with typed fields and bounded memory, and write it in Java's form.

Like Java's reader, this one treats a null field as absent, ignores unknown fields and converts scalars:
Apache's Go client writes ``codeSet`` as strings (``["112785"]``), other clients write numbers or booleans as
strings. It never accepts a map or array as a string.

Java's ``Map<Long, …>`` arrives as ``{0:"127.0.0.1:10911"}`` and ``Map<MessageQueue, …>`` as
``{{"brokerName":"b","queueId":3,"topic":"T"}:{…}}``. Neither is JSON. The C scanner of Python's ``json``
reads everything that is JSON. Where it refuses a map or an array, this module reads that one itself, item by
item; so it never misreads braces and quotes inside strings.

A short body can become large objects: sixteen million bytes of ``{},`` take four hundred million as dicts. So
the largest possible size is computed before a body is read: its characters three times (as text, as text
again where fastjson's keys need a second pass, as strings), and an object for each comma, colon or bracket.

Source: fastjson 1.2.83 ``TypeUtils.castToInt``, ``castToLong``, ``castToDouble``, ``castToBoolean``,
``StringCodec``, ``EnumDeserializer``, ``MapSerializer``, as used by RocketMQ 5.3.3 ``RemotingSerializable``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from reprlib import Repr
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from pyspark_rocketmq.errors import LocalProtocolError, RemoteProtocolError
from pyspark_rocketmq.model import MessageQueue

T = TypeVar("T")

E = TypeVar("E", bound=StrEnum)

_MAX_CHARACTERS: Final = 80

_repr: Final = Repr()
_repr.maxlevel = 3
_repr.maxstring = _repr.maxother = _repr.maxlong = _MAX_CHARACTERS

MAX_JSON_MEMORY: Final = 32 * 1024 * 1024
"""Maximum memory of one JSON document as Python objects, in bytes, twice the longest frame: enough for about
20,000 queues or 100,000 topics."""
_LIGHT_BYTES: Final = 512 * 1024
"""Maximum length of JSON texts that need no check: they stay below ``MAX_JSON_MEMORY`` in any case."""
_BYTES_PER_MARK: Final = 100
_MARKS: Final = (b",", b":", b"[", b"{")
_COPIES: Final = 3
_WIDEST_CHARACTER: Final = 4
_MAX_ODD_DEPTH: Final = 32
"""Maximum depth of nested maps and arrays that Python's JSON scanner refuses (real bodies need 4). It bounds
how often the same text is scanned again."""
_MAX_REFUSED_CHARS: Final = 1 << 30
"""Maximum sum of the positions at which Python's JSON scanner refuses one text. Each refusal takes time in
proportion to its position, because the error counts lines; without a bound a hostile body could take the
square of its length. A route of 3000 brokers whose ids are bare integer keys, as old clients get it, stays
below."""
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_SPACES: Final = frozenset(" \t\n\r")
_ODD_BEGINNINGS: Final = frozenset(f"{{{first}" for first in "{[-0123456789")
_END: Final = "\0"
"""Appended to the text, so that reading the next character needs no bounds check; it never occurs in JSON."""
_write_scalar: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_INT64_END: Final = 1 << 63
_LARGEST_DOUBLE: Final = sys.float_info.max
_WHOLE: Final = re.compile(r"[+-]?[0-9][0-9,]{0,40}", re.ASCII)
_DECIMAL: Final = re.compile(r"[+-]?[0-9][0-9,]{0,40}(\.[0-9]{0,40})?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_NOTHING: Final = frozenset({"", "null", "NULL"})
_TRUE: Final = frozenset({"1", "Y", "T"})
_FALSE: Final = frozenset({"0", "N", "F"})


def short_repr(value: object) -> str:
    """Return the beginning of ``repr(value)``, at most 80 characters, at a bounded cost.

    ``f"{value!r:.80}"`` would first format the whole value, in four times the memory if text must be escaped.
    """
    return _repr.repr(value)[:_MAX_CHARACTERS]


def check_json_size(data: bytes) -> None:
    """Raise RemoteProtocolError if ``data`` could take more than ``MAX_JSON_MEMORY`` as Python objects."""
    if len(data) <= _LIGHT_BYTES:
        return
    width = 1 if data.isascii() else _WIDEST_CHARACTER
    needed = len(data) * _COPIES * width + _BYTES_PER_MARK * sum(map(data.count, _MARKS))
    if needed > MAX_JSON_MEMORY:
        raise RemoteProtocolError(
            f"A JSON document of {len(data)} bytes would take up to {needed} bytes of memory; at most "
            f"{MAX_JSON_MEMORY} are spent on one. It begins {data[:80]!r}."
        )


class ObjectMap(tuple[tuple[Any, Any], ...]):
    """A map with object keys, as pairs of key and value in written order."""

    __slots__ = ()


def loads(data: bytes) -> Any:
    """Read a JSON body, standard or fastjson's.

    Returns:
        The same as ``json.loads``, except for odd maps: bare integer keys become text (``{0:1}`` reads like
        ``{"0":1}``), and a map with an object or array among its keys is an :class:`ObjectMap`.  An *empty*
        map is always a dict.  If a string key occurs twice, the last one counts.

    Raises:
        RemoteProtocolError: If the body is not UTF-8, is cut off, is not JSON in this wider sense, or would
            take too much memory.
    """
    check_json_size(data)
    try:
        return _Reader(data.decode()).document()
    except (ValueError, RecursionError) as exc:
        raise RemoteProtocolError(
            f"A body of {len(data)} bytes is not JSON: {exc}; it begins {data[:80]!r}."
        ) from exc


def dumps_java(value: object) -> bytes:
    """Write a value as JSON in fastjson's form.

    Integer keys have no quotes, message queues as keys are maps, sets are sorted, and text is not escaped to
    ASCII.

    A dataclass of :func:`member` fields becomes a map in alphabetical order, without the fields that are
    None.

    Raises:
        LocalProtocolError: If a string holds half a surrogate pair or a value has no JSON form.
    """
    try:
        return _write(value).encode()
    except (TypeError, ValueError) as exc:
        raise LocalProtocolError(f"A body cannot be written as JSON: {exc}.") from exc


# --- reading ------------------------------------------------------------------------------------------------


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_scan: Final = json.JSONDecoder(parse_constant=_refuse_constant, strict=False).raw_decode


class _Reader:
    """Reads one text by Python's JSON scanner; reads a map or array that the scanner refuses item by item."""

    __slots__ = ("_refusal_budget", "_text")

    def __init__(self, text: str) -> None:
        self._text = text + _END
        self._refusal_budget = _MAX_REFUSED_CHARS

    def document(self) -> Any:
        """Return the only value of the text."""
        value, at = self._value(self._skip_space(0), _MAX_ODD_DEPTH)
        if self._skip_space(at) != len(self._text) - len(_END):
            raise self._error("Extra data", at)
        return value

    def _value(self, at: int, depth: int) -> tuple[Any, int]:
        """Return the value at ``at``, and where it ends."""
        text = self._text
        if text[at : at + 2] not in _ODD_BEGINNINGS:
            try:
                return _scan(text, at)
            except json.JSONDecodeError as refusal:
                self._refusal_budget -= refusal.pos
                if depth == 0 or self._refusal_budget < 0 or text[at] not in "{[":
                    raise
            if text[at] == "[":
                return self._array(at, depth - 1)
        elif depth == 0:
            raise self._error("Too many maps with odd keys in each other", at)
        return self._map(at, depth - 1)

    def _array(self, at: int, depth: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        closed = False
        while not closed:
            item, at = self._value(self._skip_space(at + 1), depth)
            items.append(item)
            at, closed = self._after_item(at, "]")
        return items, at + 1

    def _map(self, at: int, depth: int) -> tuple[dict[str, Any] | ObjectMap, int]:
        """Return a map, and where it ends; a hot loop: a topic with a thousand queues has as many pairs."""
        text = self._text
        pairs: list[tuple[Any, Any]] = []
        odd = closed = False
        while not closed:
            key_at = at + 1 if text[at + 1] not in _SPACES else self._skip_space(at + 1)
            key, at = self._value(key_at, depth)
            if type(key) is not str:
                key, odd = self._odd_key(key, key_at), odd or type(key) is not int
            if text[at] != ":":
                at = self._skip_space(at)
                if text[at] != ":":
                    raise self._error("Expecting ':'", at)
            at = at + 1 if text[at + 1] not in _SPACES else self._skip_space(at + 1)
            value, at = self._value(at, depth)
            pairs.append((key, value))
            at, closed = self._after_item(at, "}")
        return (ObjectMap(pairs) if odd else dict(pairs)), at + 1

    def _odd_key(self, key: object, at: int) -> object:
        if type(key) is int:
            return str(key)
        if isinstance(key, (dict, list, ObjectMap)):
            return key
        raise self._error("Expecting a string, an integer, a map or an array as key", at)

    def _after_item(self, at: int, closing: str) -> tuple[int, bool]:
        """Return where the comma or closing bracket after an item is, and whether it is the bracket."""
        mark = self._text[at]
        if mark in _SPACES:
            at = self._skip_space(at)
            mark = self._text[at]
        if mark not in (",", closing):
            raise self._error(f"Expecting ',' or '{closing}'", at)
        return at, mark == closing

    def _skip_space(self, at: int) -> int:
        match = _SPACE.match(self._text, at)
        return at if match is None else match.end()

    def _error(self, message: str, at: int) -> json.JSONDecodeError:
        return json.JSONDecodeError(message, self._text, at)


# --- writing ------------------------------------------------------------------------------------------------


def _write(value: object) -> str:
    if type(value) is int:
        return str(value)
    if isinstance(value, str):
        return _write_scalar(value)
    if isinstance(value, MessageQueue):
        value = queue_to_json(value)
    elif is_dataclass(value):
        value = to_json(value)
    if isinstance(value, ObjectMap | Mapping):
        pairs = value if isinstance(value, ObjectMap) else value.items()
        return "{" + ",".join([f"{_write_key(key)}:{_write(item)}" for key, item in pairs]) + "}"
    if isinstance(value, (set, frozenset)):
        value = sorted(value)
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_write, value)) + "]"
    return _write_scalar(value)


def queue_to_json(queue: MessageQueue) -> dict[str, object]:
    """Return a message queue as a map."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def _write_key(key: object) -> str:
    if isinstance(key, bool) or not isinstance(key, (str, int, dict, list, ObjectMap, MessageQueue)):
        raise TypeError(f"{key!r} cannot be a key of a JSON object")
    return _write(key)


# --- typed fields -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JsonObject:
    """One map of a JSON body, with a method to read a field as each type.

    A field is absent if it is missing or null. For a method that reads a number or a boolean, the strings
    ``""``, ``"null"`` and ``"NULL"`` are absent, too. An absent array or map is read as empty. Any other
    absent field without a default raises ``RemoteProtocolError``, and so does a value of another type.
    """

    where: str
    """Name of the body and the place in it, for errors."""
    members: Mapping[str, Any]

    def text(self, name: str, default: str | None = None) -> str:
        """Return field ``name`` as a string; if absent, return ``default`` or, without one, raise.

        A number or a boolean is converted.
        """
        return self._read(name, as_text, default)

    def optional_text(self, name: str) -> str | None:
        """Return field ``name`` as a string; None if it is absent or null."""
        return None if self.members.get(name) is None else self.text(name)

    def integer(self, name: str, default: int | None = None) -> int:
        """Return field ``name`` as a 64-bit integer; if absent, return ``default`` or, without one, raise.

        A string of digits and a boolean are converted, and a fraction is cut to its whole part.
        """
        return self._read(name, _as_integer, default)

    def number(self, name: str, default: float | None = None) -> float:
        """Return field ``name`` as a finite float; if absent, return ``default`` or, without one, raise.

        A string with a number is converted.
        """
        return self._read(name, _as_number, default)

    def flag(self, name: str, default: bool | None = None) -> bool:
        """Return field ``name`` as a boolean; if absent, return ``default`` or, without one, raise.

        A number (only 1 is true) or a string such as ``true``, ``Y`` or ``0`` is converted.
        """
        return self._read(name, _as_flag, default)

    def choice(self, name: str, choices: Mapping[str, E], default: E | None = None) -> E:
        """Return the one of ``choices`` that field ``name`` names, in upper or lower case, or by its index.

        If the field is absent or has an unknown name, return ``default``. Without a default, or with an
        unknown index, raise RemoteProtocolError.
        """
        where = f"{self.where}: field {name!r}"
        value = self.members.get(name)
        found: E | None = None
        if type(value) is int:
            found = dict(enumerate(choices.values())).get(value)
        elif value is None or type(value) is str:
            found = choices.get((value or "").upper(), default)
        if found is None:
            raise RemoteProtocolError(f"{where} is none of {', '.join(choices)}: {short_repr(value)}.")
        return found

    def items(self, name: str) -> list[Any]:
        """Read an array, without checking its items; empty if absent."""
        value = self.members.get(name)
        if value is None:
            return []
        if type(value) is not list:
            raise RemoteProtocolError(f"{self.where}: field {name!r} is not a list: {short_repr(value)}.")
        return value

    def texts(self, name: str) -> list[str]:
        """Read an array of strings, without its nulls; empty if absent."""
        return self._read_items(name, as_text)

    def integers(self, name: str) -> list[int]:
        """Read an array of integers, without its nulls; empty if absent."""
        return self._read_items(name, _as_integer)

    def objects(self, name: str) -> Iterator[JsonObject]:
        """Read an array of maps; empty if absent."""
        for item in self.items(name):
            yield as_object(item, f"{self.where}.{name}")

    def pairs(self, name: str) -> list[tuple[Any, Any]]:
        """Read the pairs of a map whose keys may be objects; empty if absent."""
        value = self.members.get(name)
        if value is None:
            return []
        if type(value) is ObjectMap:
            return list(value)
        return list(as_object(value, f"{self.where}.{name}").members.items())

    def text_pairs(self, name: str) -> list[tuple[str, Any]]:
        """Read the pairs of a map whose keys are strings, except those with a null value; empty if absent."""
        where = f"{self.where}.{name}"
        return [(_required(key, as_text, where), item) for key, item in self.pairs(name) if item is not None]

    def text_map(self, name: str) -> dict[str, str]:
        """Read a map of strings to strings, except pairs with a null value; empty if absent."""
        where = f"{self.where}.{name}"
        return {key: _required(item, as_text, where) for key, item in self.text_pairs(name)}

    def _read(self, name: str, read: Callable[[Any, str], T | None], default: T | None) -> T:
        where = f"{self.where}: field {name!r}"
        value = self.members.get(name)
        found = None if value is None else read(value, where)
        if found is not None:
            return found
        if default is None:
            raise RemoteProtocolError(f"{where} is missing or empty: {short_repr(value)}.")
        return default

    def _read_items(self, name: str, read: Callable[[Any, str], T | None]) -> list[T]:
        where = f"{self.where}: an item of field {name!r}"
        found = (read(item, where) for item in self.items(name) if item is not None)
        return [item for item in found if item is not None]


def read_object(data: bytes, where: str) -> JsonObject:
    """Parse a body that must be one JSON object; errors call it ``where``."""
    return as_object(loads(data), where)


def as_object(value: object, where: str) -> JsonObject:
    """Return a value from JSON, which must be a map with string keys; errors call it ``where``."""
    if type(value) is not dict:
        raise RemoteProtocolError(f"{where} is not a JSON object: {short_repr(value)}.")
    return JsonObject(where, value)


def checked_int64(value: object, where: str) -> int:
    """Return a value from JSON as a Java ``long``; digits in a string, booleans and fractions are converted.

    Raises:
        RemoteProtocolError: If the value is null or no 64-bit integer; it names ``where``.
    """
    return _required(value, _as_integer, where)


def as_text(value: object, where: str) -> str:
    """Return a value from JSON as a string; a number or a boolean is converted.

    Raises:
        RemoteProtocolError: If the value is null, a map or an array; it names ``where``.
    """
    if type(value) is str:
        return value
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) in (int, float):
        return str(value)
    raise RemoteProtocolError(f"{where} is not a string: {short_repr(value)}.")


# --- dataclasses as maps ------------------------------------------------------------------------------------


class _Member(NamedTuple):
    java_name: str
    attribute: str
    read: Callable[[JsonObject, str, Any], Any]
    write: Callable[[Any], object] | None
    default: Any


def member(
    java_name: str,
    read: Callable[[JsonObject, str, Any], Any],
    default: Any = MISSING,
    *,
    write: Callable[[Any], object] | None = None,
) -> Any:
    """Return a field of a dataclass that stands for a JSON map; required unless a default is given.

    Args:
        java_name: The field's name in JSON.
        read: Function that reads the field, given the map, ``java_name`` and the default (None if required);
            usually a method of ``JsonObject``.
        default: The default; ``dict`` stands for an empty map.
        write: Converts the value for :func:`dumps_java`, if that does not accept the value itself.
    """
    metadata = {"member": (java_name, read, write)}
    if default is dict:
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def list_of(kind: type[T]) -> Callable[[JsonObject, str, Any], tuple[T, ...]]:
    """Return a reader for :func:`member`: an array of maps, each of which is a ``kind``; empty if absent."""
    return lambda owner, name, _: tuple(from_json(kind, item) for item in owner.objects(name))


def table_of(kind: type[T]) -> Callable[[JsonObject, str, Any], dict[str, T]]:
    """Return a reader for :func:`member`: a map of strings to maps, each a ``kind``; empty if absent."""

    def read(owner: JsonObject, name: str, _: Any) -> dict[str, T]:
        where = f"{owner.where}.{name}"
        return {key: from_json(kind, as_object(value, where)) for key, value in owner.text_pairs(name)}

    return read


def one_of(choices: Mapping[str, E]) -> Callable[[JsonObject, str, E | None], E]:
    """Return a reader for :func:`member`: one of ``choices``, by name in any case or by index."""
    return lambda owner, name, default: owner.choice(name, choices, default)


def decode_body(kind: type[T], body: bytes) -> T:
    """Read a body that is one ``kind``, a dataclass of :func:`member` fields."""
    return from_json(kind, read_object(body, kind.__name__))


def from_json(kind: type[T], owner: JsonObject) -> T:
    """Create a ``kind``, a dataclass of :func:`member` fields, from a map."""
    return kind(**{each.attribute: each.read(owner, each.java_name, each.default) for each in _members(kind)})


def to_json(value: object) -> dict[str, object]:
    """Return a dataclass of :func:`member` fields as a map in alphabetical order, without None values."""
    written = {}
    for entry in _members(type(value)):
        item = getattr(value, entry.attribute)
        if item is not None:
            written[entry.java_name] = item if entry.write is None else entry.write(item)
    return written


def _members_of(kind: Any) -> tuple[_Member, ...]:
    members = []
    for spec in fields(kind):
        java_name, read, write = spec.metadata["member"]
        default = None if spec.default is MISSING else spec.default
        members.append(_Member(java_name, spec.name, read, write, default))
    return tuple(sorted(members, key=lambda each: each.java_name))


# Typed for any class, because mypy does not accept a class as the Hashable of a cached function.
_members: Final[Callable[[Any], tuple[_Member, ...]]] = cache(_members_of)


# --- scalars; None for a string that stands for nothing -----------------------------------------------------


def _as_integer(value: object, where: str) -> int | None:
    if type(value) is str:
        if value in _NOTHING:
            return None
        if _WHOLE.fullmatch(value):
            value = int(value.replace(",", ""))
    elif type(value) is bool or (type(value) is float and abs(value) <= _LARGEST_DOUBLE):
        value = int(value)
    if type(value) is not int or not -_INT64_END <= value < _INT64_END:
        raise RemoteProtocolError(f"{where} is not a 64-bit integer: {short_repr(value)}.")
    return value


def _as_number(value: object, where: str) -> float | None:
    if type(value) is str:
        if value in _NOTHING:
            return None
        if _DECIMAL.fullmatch(value):
            value = float(value.replace(",", ""))
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _LARGEST_DOUBLE:
        raise RemoteProtocolError(f"{where} is not a finite number: {short_repr(value)}.")
    return float(value)


def _as_flag(value: object, where: str) -> bool | None:
    if type(value) is bool:
        return value
    if type(value) in (int, float):
        return value == 1
    if type(value) is str:
        if value in _NOTHING:
            return None
        if value.lower() == "true" or value in _TRUE:
            return True
        if value.lower() == "false" or value in _FALSE:
            return False
    raise RemoteProtocolError(f"{where} is not a boolean: {short_repr(value)}.")


def _required(value: object, read: Callable[[Any, str], T | None], where: str) -> T:
    found = None if value is None else read(value, where)
    if found is None:
        raise RemoteProtocolError(f"{where} is missing or empty: {short_repr(value)}.")
    return found
