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
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from pyspark_rocketmq.errors import LocalProtocolError, RemoteProtocolError
from pyspark_rocketmq.wire.json_size import check_json_size

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
        RemoteProtocolError: If the body is not UTF-8, is cut off, is not JSON in this wider sense, or would take too
            much memory.
    """
    check_json_size(data)
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
_SPACES: Final = frozenset(" \t\n\r")
_ODD_BEGINNINGS: Final = frozenset(f"{{{first}" for first in "{[-0123456789")
_END: Final = "\0"
"""Put behind the text, so that looking at the next character needs no bounds check; never part of JSON."""


class _Reader:
    """One pass over one text; ``scan`` first, map or array by hand where it refuses."""

    __slots__ = ("_refusal_budget", "_text")

    def __init__(self, text: str) -> None:
        self._text = text + _END
        self._refusal_budget = _MAX_REFUSED_CHARS

    def document(self) -> Any:
        """The one value of the text."""
        value, at = self._value(self._skip_space(0), _MAX_ODD_DEPTH)
        if self._skip_space(at) != len(self._text) - len(_END):
            raise self._error("Extra data", at)
        return value

    def _value(self, at: int, depth: int) -> tuple[Any, int]:
        """The value at ``at`` and where it ends."""
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
        """The hot loop: a topic with a thousand queues has as many pairs here."""
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
        raise self._error("Expecting a text, an integer, a map or an array as key", at)

    def _after_item(self, at: int, closing: str) -> tuple[int, bool]:
        """Where the mark after an item stands, and whether it ends the map or array."""
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


# --- writing -------------------------------------------------------------------------------------------------

_write_scalar: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def _write(value: object) -> str:
    if type(value) is int:
        return str(value)
    if isinstance(value, str):
        return _write_scalar(value)
    if isinstance(value, ObjectMap):
        return "{" + ",".join([f"{_write(key)}:{_write(item)}" for key, item in value]) + "}"
    if isinstance(value, (dict, Mapping)):
        return "{" + ",".join([f"{_write_key(key)}:{_write(item)}" for key, item in value.items()]) + "}"
    if isinstance(value, (list, tuple, set, frozenset)):
        return "[" + ",".join(map(_write, value)) + "]"
    return _write_scalar(value)


def _write_key(key: object) -> str:
    if isinstance(key, bool) or not isinstance(key, (str, int)):
        raise TypeError(f"{key!r} is no key; write maps with object keys as ObjectMap")
    return _write_scalar(key)
