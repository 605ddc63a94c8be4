"""JSON as fastjson writes it: bare integers and whole objects as map keys.

Java's ``Map<Long, …>`` arrives as ``{0:"127.0.0.1:10911"}`` and ``Map<MessageQueue, …>`` as
``{{"brokerName":"b","queueId":3,"topic":"T"}:{…}}``. Neither is JSON. What *is* JSON between those keys, the keys
included, is left to the C scanner: this module steps in only where the scanner refuses, and there handles one
map or array, so braces and quotes inside strings are never looked at.

Source: fastjson 1.2.83 ``MapSerializer``, as used by RocketMQ 5.3.3 ``RemotingSerializable``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NoReturn

from pyspark_rocketmq.errors import LocalProtocolError, RemoteProtocolError

_MAX_ODD_DEPTH: Final = 32
"""Nesting around an odd key (real bodies need 4); it bounds how often a text is scanned again."""
_MAX_REFUSED_CHARS: Final = 1 << 30
"""Sum of the positions at which the scanner refused. Each refusal costs time in proportion to its position (the
error counts lines), so without a bound a hostile body could cost the square of its length; a route of 3000 brokers
in the old form stays below."""


class ObjectMap(tuple[tuple[Any, Any], ...]):
    """A map with object keys, as pairs of key and value in the order they were written."""

    __slots__ = ()


def loads(data: bytes) -> Any:
    """Read a JSON body, standard or fastjson's.

    Returns:
        What ``json.loads`` returns, and for the odd maps: bare integer keys as text (``{0:1}`` reads like
        ``{"0":1}``), a map with an object or array among its keys as an :class:`ObjectMap`.  An *empty* map is
        always a dict.  Of a text key given twice the last counts.

    Raises:
        RemoteProtocolError: If the body is not UTF-8, is cut off, or is not JSON in this wider sense.
    """
    try:
        return _Reader(data.decode()).document()
    except (ValueError, RecursionError) as exc:
        raise RemoteProtocolError(
            f"A body of {len(data)} bytes is no JSON: {exc}; it begins {data[:80]!r}."
        ) from exc


def dumps_java(value: object) -> bytes:
    """Write as fastjson does: int keys bare, an :class:`ObjectMap`'s keys inline, non-ASCII as it is.

    Raises:
        LocalProtocolError: If a text holds half a surrogate pair or a value has no JSON form.
    """
    try:
        return _write(value).encode()
    except (TypeError, ValueError) as exc:
        raise LocalProtocolError(f"A body cannot be written as JSON: {exc}.") from exc


def dumps_standard(value: object) -> bytes:
    """Write standard JSON: every key quoted and sorted, all of it ASCII.

    Source: fastjson ``SerializerFeature.BrowserCompatible``, ``QuoteFieldNames``, ``MapSortField``.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


# --- reading -------------------------------------------------------------------------------------------------


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_scan: Final = json.JSONDecoder(parse_constant=_refuse_constant, strict=False).raw_decode
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_BARE_KEY: Final = re.compile(r"-?[0-9]{1,19}")
_ODD_MAP: Final = re.compile(r"\{[ \t\n\r]*[-0-9{\[]")


class _Reader:
    """One pass over one text; ``scan`` first, map or array by hand where it refuses."""

    __slots__ = ("_refusal_budget", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._refusal_budget = _MAX_REFUSED_CHARS

    def document(self) -> Any:
        """The one value of the text."""
        value, at = self._value(self._skip_space(0), _MAX_ODD_DEPTH)
        if self._skip_space(at) != len(self._text):
            raise json.JSONDecodeError("Extra data", self._text, at)
        return value

    def _value(self, at: int, depth: int) -> tuple[Any, int]:
        """The value at ``at`` and where it ends."""
        if _ODD_MAP.match(self._text, at) is None:
            try:
                return _scan(self._text, at)
            except json.JSONDecodeError as refusal:
                self._refusal_budget -= refusal.pos
                opening = self._text[at : at + 1]
                if depth == 0 or self._refusal_budget < 0 or opening not in ("{", "["):
                    raise
            if opening == "[":
                return self._array(at, depth - 1)
        elif depth == 0:
            raise json.JSONDecodeError("Too many maps with odd keys in each other", self._text, at)
        return self._map(at, depth - 1)

    def _array(self, at: int, depth: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        closed = False
        at = self._skip_space(at + 1)
        while not closed:
            item, at = self._value(at, depth)
            items.append(item)
            at, closed = self._after_item(at, "]")
        return items, at

    def _map(self, at: int, depth: int) -> tuple[dict[str, Any] | ObjectMap, int]:
        text = self._text
        pairs: list[tuple[Any, Any]] = []
        odd = closed = False
        at = self._skip_space(at + 1)
        while not closed:
            key, at = self._key(at, depth)
            odd = odd or type(key) is not str
            if text[at : at + 1] != ":":
                at = self._expect(":", self._skip_space(at))
            value, at = self._value(self._skip_space(at + 1), depth)
            pairs.append((key, value))
            at, closed = self._after_item(at, "}")
        return (ObjectMap(pairs) if odd else dict(pairs)), at

    def _key(self, at: int, depth: int) -> tuple[Any, int]:
        if self._text[at : at + 1] in ('"', "{", "["):
            return self._value(at, depth)
        bare = _BARE_KEY.match(self._text, at)
        if bare is None:
            raise json.JSONDecodeError("Expecting a key", self._text, at)
        return bare.group(), bare.end()

    def _after_item(self, at: int, closing: str) -> tuple[int, bool]:
        """Step over what follows an item: a comma, or the end of its map or array."""
        mark = self._text[at : at + 1]
        if mark not in (",", closing):
            at = self._skip_space(at)
            mark = self._text[at : at + 1]
        if mark == closing:
            return at + 1, True
        return self._skip_space(self._expect(",", at) + 1), False

    def _expect(self, mark: str, at: int) -> int:
        if self._text[at : at + 1] != mark:
            raise json.JSONDecodeError(f"Expecting {mark!r}", self._text, at)
        return at

    def _skip_space(self, at: int) -> int:
        match = _SPACE.match(self._text, at)
        return at if match is None else match.end()


# --- writing -------------------------------------------------------------------------------------------------

_to_json: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def _write(value: object) -> str:
    if isinstance(value, ObjectMap):
        return "{" + ",".join(f"{_write(key)}:{_write(item)}" for key, item in value) + "}"
    if isinstance(value, Mapping):
        return "{" + ",".join(_write_members(value)) + "}"
    if isinstance(value, Iterable) and not isinstance(value, str):
        return "[" + ",".join(map(_write, value)) + "]"
    return _to_json(value)


def _write_members(members: Mapping[Any, Any]) -> Iterator[str]:
    for key, value in members.items():
        if not isinstance(key, (str, int)) or isinstance(key, bool):
            raise TypeError(f"{key!r} is no key; write maps with object keys as ObjectMap")
        yield f"{_to_json(key)}:{_write(value)}"
