"""Declare header dataclasses, write them as ext fields and read them.

Every value is sent as text. A field's metadata has Java's spelling and the codec; a field without a default
is required (``@CFNotNull``), and ``None`` is not sent.

Source: RocketMQ 5.3.3 ``RemotingCommand.makeCustomHeaderToNet`` and ``decodeCommandCustomHeader``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache, partial
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeVar

from pyspark_rocketmq.errors import LocalProtocolError, RemoteProtocolError

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


class Header(Protocol):
    """Any dataclass of header fields."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


HeaderT = TypeVar("HeaderT", bound=Header)


class _Codec(NamedTuple):
    """Writes and reads a value; a bad value raises TypeError or ValueError."""

    to_text: Callable[[Any], str]
    from_text: Callable[[str], Any]


def to_ext_fields(header: Header) -> dict[str, str]:
    """Write a header's fields as text; fields that are ``None`` are left out.

    Raises:
        LocalProtocolError: If a required value is ``None`` or a value does not fit Java's type.
    """
    ext_fields: dict[str, str] = {}
    for attribute, java_name, codec, required in _entries(type(header)):
        value = getattr(header, attribute)
        if value is None and not required:
            continue
        try:
            ext_fields[java_name] = codec.to_text(value)
        except (TypeError, ValueError) as exc:
            raise LocalProtocolError(f"{type(header).__name__}.{attribute} cannot be sent: {exc}.") from exc
    return ext_fields


def from_ext_fields(header_class: type[HeaderT], ext_fields: Mapping[str, str]) -> HeaderT:
    """Read a header from a command's ext fields; unknown names are ignored.

    Raises:
        RemoteProtocolError: If a required field is missing or a string is not of Java's type.
    """
    values: dict[str, Any] = {}
    for attribute, java_name, codec, required in _entries(header_class):
        text = ext_fields.get(java_name)
        if text is not None:
            try:
                values[attribute] = codec.from_text(text)
            except ValueError as exc:
                raise RemoteProtocolError(
                    f"{header_class.__name__}: ext field {java_name!r} cannot be read: {exc}."
                ) from exc
        elif required:
            raise RemoteProtocolError(
                f"{header_class.__name__}: required ext field {java_name!r} is missing."
            )
    return header_class(**values)


@cache
def _entries(header_class: type[Header]) -> tuple[tuple[str, str, _Codec, bool], ...]:
    """Return each field's attribute name, Java name and codec, and whether the field is required."""
    return tuple(
        (spec.name, spec.metadata["java_name"], spec.metadata["codec"], spec.default is MISSING)
        for spec in fields(header_class)
    )


def _write_text(value: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is not a string")
    return value


def _integer_codec(bits: int) -> _Codec:
    """Return a codec like ``Integer.parseInt`` and ``Long.parseLong``: ASCII digits with an optional sign."""
    end = 1 << bits - 1

    def to_text(value: int) -> str:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{value!r:.80} is not an integer")
        if not -end <= value < end:
            raise ValueError(f"{value} exceeds {bits} bits")
        return str(int(value))

    def from_text(text: str) -> int:
        if _INTEGER.fullmatch(text) is None:
            raise ValueError(f"{text!r:.80} is not a {bits}-bit integer")
        value = int(text)
        if not -end <= value < end:
            raise ValueError(f"{text} exceeds {bits} bits")
        return value

    return _Codec(to_text, from_text)


def _write_bool(value: bool) -> str:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r:.80} is neither True nor False")
    return "true" if value else "false"


def _field(codec: _Codec, java_name: str, default: Any = MISSING) -> Any:
    """Return a field of a header; it is required unless a default is given."""
    return field(default=default, metadata={"java_name": java_name, "codec": codec})


text_field: Final = partial(_field, _Codec(_write_text, str))
int_field: Final = partial(_field, _integer_codec(32))
long_field: Final = partial(_field, _integer_codec(64))
# Like Boolean.parseBoolean: every text except "true" is false.
bool_field: Final = partial(_field, _Codec(_write_bool, lambda text: text.lower() == "true"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcFields:
    """Fields that any request may have besides its own (``RpcRequestHeader``); old servers ignore them."""

    namespace: str | None = text_field("ns", None)
    namespaced: bool | None = bool_field("nsd", None)
    oneway: bool | None = bool_field("oway", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFields(RpcFields):
    """Fields of most requests, with the broker name as ``bname``."""

    broker_name: str | None = text_field("bname", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRequestFields(RequestFields):
    """Fields of requests about a topic (``TopicRequestHeader``)."""

    lo: bool | None = bool_field("lo", None)
    """Whether the topic is a logical one (static topics)."""
