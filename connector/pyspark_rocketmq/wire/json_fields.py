"""Typed reading of JSON bodies: every wrong shape is the peer's error, said with body and field.

As in Java's reader a null field is an absent one and unknown fields are ignored.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.wire.brief import brief
from pyspark_rocketmq.wire.json_quirks import ObjectMap, loads

T = TypeVar("T")

_INT64_END: Final = 1 << 63
_LARGEST_DOUBLE: Final = sys.float_info.max


@dataclass(frozen=True, slots=True)
class JsonObject:
    """One map of a body; a field without a default is required."""

    where: str
    """Name of the body and place in it, for errors."""
    members: Mapping[str, Any]

    def text(self, name: str, default: str | None = None) -> str:
        """A text."""
        return self._typed(name, str, default)

    def optional_text(self, name: str) -> str | None:
        """A text that may be absent."""
        return None if self.members.get(name) is None else self.text(name)

    def integer(self, name: str, default: int | None = None) -> int:
        """A number of at most 64 bits."""
        return checked_int64(self._typed(name, int, default), f"{self.where}.{name}")

    def number(self, name: str, default: float) -> float:
        """A number, whole or not; finite."""
        value = self.members.get(name)
        if value is None:
            return default
        if type(value) not in (int, float) or not abs(value) <= _LARGEST_DOUBLE:
            raise RemoteProtocolError(f"{self.where}: field {name!r} is no finite number: {brief(value)}.")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        """A boolean."""
        return self._typed(name, bool, default)

    def items(self, name: str) -> list[Any]:
        """An array; empty when absent."""
        empty: list[Any] = []
        return self._typed(name, list, empty)

    def texts(self, name: str) -> list[str]:
        """An array of texts; empty when absent."""
        return self._items_of(name, str)

    def integers(self, name: str) -> list[int]:
        """An array of integers; empty when absent."""
        return self._items_of(name, int)

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
        pairs = [(key, value) for key, value in self.pairs(name) if value is not None]
        for key, _ in pairs:
            self._checked_text(name, key)
        return pairs

    def text_map(self, name: str) -> dict[str, str]:
        """A map of texts to texts; empty when absent, null values left out."""
        return {key: self._checked_text(name, value) for key, value in self.text_pairs(name)}

    def _checked_text(self, name: str, value: object) -> str:
        if type(value) is not str:
            raise RemoteProtocolError(
                f"{self.where}: field {name!r} holds something that is no text: {brief(value)}."
            )
        return value

    def _typed(self, name: str, wanted: type[T], default: T | None) -> T:
        value = self.members.get(name)
        if value is None and default is not None:
            return default
        # "type is", not isinstance: True is no number.
        if type(value) is not wanted:
            raise RemoteProtocolError(
                f"{self.where}: field {name!r} is no {wanted.__name__}: {brief(value)}."
            )
        return value

    def _items_of(self, name: str, wanted: type[T]) -> list[T]:
        items = self.items(name)
        for item in items:
            if type(item) is not wanted:
                raise RemoteProtocolError(
                    f"{self.where}: field {name!r} holds something that is no {wanted.__name__}: {brief(item)}."
                )
        return items


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
    if type(value) is not int or not -_INT64_END <= value < _INT64_END:
        raise RemoteProtocolError(f"{where} is no 64-bit integer: {brief(value)}.")
    return value


def as_object(value: object, where: str) -> JsonObject:
    """Take an already read value as a map with text keys.

    Raises:
        RemoteProtocolError: If it is something else.
    """
    if type(value) is not dict:
        raise RemoteProtocolError(f"{where} is no JSON object: {brief(value)}.")
    return JsonObject(where, value)
