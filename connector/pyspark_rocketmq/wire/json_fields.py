"""Typed reading of JSON bodies: every wrong shape is the peer's error, said with body and field.

As in Java's reader a null field is an absent one, unknown fields are ignored, and scalars are taken for each other:
Apache's Go client writes ``codeSet`` as texts (``["112785"]``), other clients numbers or booleans as texts.

Source: fastjson 1.2.83 ``TypeUtils.castToInt``, ``castToLong``, ``castToDouble``, ``castToBoolean``, ``StringCodec``,
``EnumDeserializer``, as used by RocketMQ 5.3.3 ``RemotingSerializable``; a map or array is not taken for a text here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.wire.brief import brief
from pyspark_rocketmq.wire.json_quirks import ObjectMap, loads

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

_INT64_END: Final = 1 << 63
_LARGEST_DOUBLE: Final = sys.float_info.max
_WHOLE: Final = re.compile(r"[+-]?[0-9][0-9,]{0,40}", re.ASCII)
_DECIMAL: Final = re.compile(r"[+-]?[0-9][0-9,]{0,40}(\.[0-9]{0,40})?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_NOTHING: Final = frozenset({"", "null", "NULL"})
_TRUE: Final = frozenset({"1", "Y", "T"})
_FALSE: Final = frozenset({"0", "N", "F"})


@dataclass(frozen=True, slots=True)
class JsonObject:
    """One map of a body; a field without a default is required."""

    where: str
    """Name of the body and place in it, for errors."""
    members: Mapping[str, Any]

    def text(self, name: str, default: str | None = None) -> str:
        """A text; a number or a boolean becomes its text."""
        return self._read(name, as_text, default)

    def optional_text(self, name: str) -> str | None:
        """A text that may be absent."""
        return None if self.members.get(name) is None else self.text(name)

    def integer(self, name: str, default: int | None = None) -> int:
        """A number of at most 64 bits, a text of digits too."""
        return self._read(name, _as_integer, default)

    def number(self, name: str, default: float) -> float:
        """A number, whole or not; finite; as a text, too."""
        return self._read(name, _as_number, default)

    def flag(self, name: str, *, default: bool) -> bool:
        """A boolean, or what stands for one."""
        return self._read(name, _as_flag, default)

    def choice(self, name: str, choices: Mapping[str, E], default: E | None = None) -> E:
        """One of ``choices``, by its name in any case or its place among them; an unknown name is an absent one."""
        where = f"{self.where}: field {name!r}"
        value = self.members.get(name)
        found: E | None = None
        if type(value) is int:
            found = dict(enumerate(choices.values())).get(value)
        elif value is None or type(value) is str:
            found = choices.get((value or "").upper(), default)
        if found is None:
            raise RemoteProtocolError(f"{where} is none of {', '.join(choices)}: {brief(value)}.")
        return found

    def items(self, name: str) -> list[Any]:
        """An array; empty when absent."""
        value = self.members.get(name)
        if value is None:
            return []
        if type(value) is not list:
            raise RemoteProtocolError(f"{self.where}: field {name!r} is no list: {brief(value)}.")
        return value

    def texts(self, name: str) -> list[str]:
        """An array of texts; empty when absent, null ones left out."""
        return self._read_items(name, as_text)

    def integers(self, name: str) -> list[int]:
        """An array of integers; empty when absent, null ones left out."""
        return self._read_items(name, _as_integer)

    def objects(self, name: str) -> Iterator[JsonObject]:
        """An array of maps; empty when absent."""
        for item in self.items(name):
            yield as_object(item, f"{self.where}.{name}")

    def pairs(self, name: str) -> list[tuple[Any, Any]]:
        """The pairs of a map whose keys may be objects; empty when absent."""
        value = self.members.get(name)
        if value is None:
            return []
        if type(value) is ObjectMap:
            return list(value)
        return list(as_object(value, f"{self.where}.{name}").members.items())

    def text_pairs(self, name: str) -> list[tuple[str, Any]]:
        """The pairs of a map whose keys are texts; empty when absent, null values left out."""
        where = f"{self.where}.{name}"
        return [(_required(key, as_text, where), item) for key, item in self.pairs(name) if item is not None]

    def text_map(self, name: str) -> dict[str, str]:
        """A map of texts to texts; empty when absent, null values left out."""
        where = f"{self.where}.{name}"
        return {key: _required(item, as_text, where) for key, item in self.text_pairs(name)}

    def _read(self, name: str, read: Callable[[Any, str], T | None], default: T | None) -> T:
        where = f"{self.where}: field {name!r}"
        value = self.members.get(name)
        found = None if value is None else read(value, where)
        if found is not None:
            return found
        if default is None:
            raise RemoteProtocolError(f"{where} is missing or empty: {brief(value)}.")
        return default

    def _read_items(self, name: str, read: Callable[[Any, str], T | None]) -> list[T]:
        where = f"{self.where}: an item of field {name!r}"
        found = (read(item, where) for item in self.items(name) if item is not None)
        return [item for item in found if item is not None]


def read_object(data: bytes, where: str) -> JsonObject:
    """Read a body that is one map, called ``where`` in errors.

    Raises:
        RemoteProtocolError: If the body is no JSON (fastjson's liberties allowed) or no map.
    """
    return as_object(loads(data), where)


def checked_int64(value: object, where: str) -> int:
    """Take an already read value as a Java ``long``.

    Raises:
        RemoteProtocolError: If it is something else.
    """
    return _required(value, _as_integer, where)


def as_text(value: object, where: str) -> str:
    """Take an already read scalar as a text.

    Raises:
        RemoteProtocolError: If it is no scalar.
    """
    if type(value) is str:
        return value
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) in (int, float):
        return str(value)
    raise RemoteProtocolError(f"{where} is no text: {brief(value)}.")


def as_object(value: object, where: str) -> JsonObject:
    """Take an already read value as a map with text keys.

    Raises:
        RemoteProtocolError: If it is something else.
    """
    if type(value) is not dict:
        raise RemoteProtocolError(f"{where} is no JSON object: {brief(value)}.")
    return JsonObject(where, value)


# --- scalars; None where a text says that there is nothing -----------------------------------------------------


def _as_integer(value: object, where: str) -> int | None:
    if type(value) is str:
        if value in _NOTHING:
            return None
        if _WHOLE.fullmatch(value):
            value = int(value.replace(",", ""))
    elif type(value) is bool or (type(value) is float and abs(value) <= _LARGEST_DOUBLE):
        value = int(value)
    if type(value) is not int or not -_INT64_END <= value < _INT64_END:
        raise RemoteProtocolError(f"{where} is no 64-bit integer: {brief(value)}.")
    return value


def _as_number(value: object, where: str) -> float | None:
    if type(value) is str:
        if value in _NOTHING:
            return None
        if _DECIMAL.fullmatch(value):
            value = float(value.replace(",", ""))
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _LARGEST_DOUBLE:
        raise RemoteProtocolError(f"{where} is no finite number: {brief(value)}.")
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
    raise RemoteProtocolError(f"{where} is no boolean: {brief(value)}.")


def _required(value: object, read: Callable[[Any, str], T | None], where: str) -> T:
    found = None if value is None else read(value, where)
    if found is None:
        raise RemoteProtocolError(f"{where} is missing or empty: {brief(value)}.")
    return found
