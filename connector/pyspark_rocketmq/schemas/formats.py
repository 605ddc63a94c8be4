"""Turns payloads into values by the schema with which they were written.

A payload that cannot be decoded is a bad record. Schemas and payloads are foreign bytes, which must not harm
the process.  A schema that contains itself could make fastavro's compiled reader overflow its stack, so
fastavro's slower reader in Python reads such payloads. A schema is refused if a short payload could have a
huge value, because parts of it take no bytes: an array of empty records could have any number of items, and
``n`` records, each with two fields of the next one's type, have 2^n parts.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import decimal
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from pyspark_rocketmq.errors import BadRecord
from pyspark_rocketmq.schemas.framing import FIRST_MESSAGE, MessageType
from pyspark_rocketmq.schemas.lookup import RegisteredSchema

Decode = Callable[[bytes, MessageType | None], Any]
"""Decodes a payload, or raises ``BadRecord``.

The second argument is the protobuf message type, if the payload's frame names it.
"""
References = Mapping[str, RegisteredSchema]

_PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_MARKS: Final = frozenset({"__fastavro_parsed", "__named_schemas"})
"""Members of a schema that fastavro has checked; it would not check a schema that comes with them."""
_ESSENTIAL: Final = (
    *("type", "name", "fields", "items", "values", "symbols", "size"),
    *("logicalType", "precision", "scale"),
)
"""Members of a schema by which payloads are read; others are remarks, or matter to readers' schemas only."""
_SHOWN: Final = 200
_NODES_PER_BYTE: Final = 32
"""Maximum number of parts (see ``_AvroShape``) that a value may have for each byte of its payload.

Usual schemas need two or three. A record in a record, and so on, is a part on each level.
"""
_OF_A_BYTE: Final = 1 - _NODES_PER_BYTE
"""Surplus of one value that takes at least one byte."""
_MOST_SURPLUS: Final = 10_000
"""Maximum number of parts that a value may have besides."""


def decode_json(payload: bytes, _: MessageType | None = None) -> Any:
    """Decode JSON in UTF-8, without a schema.

    Raises:
        BadRecord: If it is not exactly one JSON value, or has a number that is too large.
    """
    try:
        return _JSON.decode(payload.decode())
    except (ValueError, RecursionError) as error:
        raise BadRecord(
            f"The payload is not JSON in UTF-8, or has a number that is too large: {error}"
        ) from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:_SHOWN]} is too large for a float")
    return value


_JSON: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)


def avro_decoder(schema: RegisteredSchema, references: References, reader_schema: str | None) -> Decode:
    """Return a decoder of Avro payloads that were written by ``schema``.

    The decoder converts values to ``reader_schema``; None leaves them as they were written. ``references``
    has the schemas that ``schema`` uses, by name.

    Raises:
        BadRecord: If ``schema`` or one of ``references`` cannot be used.
        ValueError: If ``reader_schema`` is no Avro schema.
    """
    import fastavro
    import fastavro._read_py as slow

    named: dict[str, Any] = {}
    try:
        parsed = [
            fastavro.parse_schema(_avro_json(each.text), named_schemas=named)
            for each in (*references.values(), schema)
        ]
        _check_definitions(parsed, named)
        writer = parsed[-1]
        shape = _AvroShape(named)
        shape.surplus(writer)
        for each in (writer, *named.values()):
            _use_own_readers(each)
    except BadRecord:
        raise
    except Exception as error:
        raise BadRecord(
            "The registry's schema for this body, or one that it refers to, is not an Avro schema: "
            f"{_reason(error)}. Correct the schema in the registry, or choose the format that the body has."
        ) from error
    fastavro.read.LOGICAL_READERS.update(_OWN_READERS)
    reader = None if reader_schema is None else parse_reader_schema(reader_schema)
    read: Any = slow.schemaless_reader if shape.is_recursive else fastavro.schemaless_reader

    def decode(payload: bytes, _: MessageType | None = None) -> Any:
        stream = io.BytesIO(payload)
        try:
            value = read(stream, writer, reader)
        except Exception as error:
            raise BadRecord(f"The payload does not fit its Avro schema: {_reason(error)}") from error
        if stream.tell() != len(payload):
            raise BadRecord(
                f"The payload does not fit its Avro schema: {len(payload) - stream.tell()} bytes are left."
            )
        return value

    return decode


def parse_reader_schema(text: str) -> Any:
    """Parse the Avro schema to which values are converted, and return it in fastavro's form.

    Raises:
        ValueError: If it is no Avro schema.
    """
    import fastavro

    try:
        return fastavro.parse_schema(json.loads(text))
    except Exception as error:
        raise ValueError(f"reader_schema is not an Avro schema: {_reason(error)}") from error


def _avro_json(text: str) -> Any:
    """Return a schema as Python's values, without the members by which fastavro marks a checked schema."""
    try:
        schema = json.loads(text)
    except ValueError:
        # A schema may be only the name of a primitive type, without quotes.
        if text in _PRIMITIVES:
            return text
        raise
    return _without_marks(schema)


def _without_marks(schema: Any) -> Any:
    """Remove the marks where fastavro looks for them: also in the branches of a union."""
    if isinstance(schema, list):
        return [_without_marks(each) for each in schema]
    if isinstance(schema, dict):
        return {name: part for name, part in schema.items() if name not in _MARKS}
    return schema


def _check_definitions(schema: Any, named: Mapping[str, Any]) -> None:
    """Check that each definition in a parsed schema, or in a list of them, is the one in ``named``.

    fastavro takes several definitions of a name in the branches of a union and in references, and reads by
    the last one wherever the name stands.

    Raises:
        BadRecord: If a name has two different definitions.
    """
    match schema:
        case list(parts):
            for each in parts:
                _check_definitions(each, named)
        case {"type": "record" | "error" | "enum" | "fixed", "name": str(name)}:
            fields, known = schema.get("fields"), named[name]
            if fields is not None and fields is known.get("fields"):
                _check_definitions([field["type"] for field in fields], named)
            elif _essence(schema) != _essence(known):
                raise BadRecord(
                    f"The registry's schema for this body, with those that it refers to, defines "
                    f"{name[:_SHOWN]} twice, and differently. Give each type a name of its own."
                )
        case {"type": "array", "items": part} | {"type": "map", "values": part} | {"type": part}:
            _check_definitions(part, named)
        case _:
            pass


def _essence(schema: Any) -> Any:
    """Return a parsed schema with no other members than ``_ESSENTIAL``."""
    if isinstance(schema, list):
        return [_essence(each) for each in schema]
    if isinstance(schema, dict):
        return {name: _essence(schema[name]) for name in _ESSENTIAL if name in schema}
    return schema


def _use_own_readers(schema: Any) -> None:
    """Rename logical types in a parsed schema, so that fastavro calls ``_OWN_READERS`` for them."""
    if isinstance(schema, list):
        for each in schema:
            _use_own_readers(each)
    elif isinstance(schema, dict):
        if schema.get("logicalType") in _INEXACT:
            schema["logicalType"] = _OWN + schema["logicalType"]
        for part in ("type", "fields", "items", "values"):
            _use_own_readers(schema.get(part))


def _read_decimal(data: bytes, schema: Mapping[str, Any], *_: Any) -> decimal.Decimal:
    unscaled, digits = int.from_bytes(data, "big", signed=True), schema["precision"]
    # The bits are compared first: of a long number they are counted in much less time.
    if unscaled.bit_length() > 4 * digits or (value := decimal.Decimal(unscaled)).adjusted() >= digits:
        raise ValueError(f"a decimal has more than {digits} digits")
    return value.scaleb(-schema.get("scale", 0), _EXACT)


def _read_time(unit: dt.timedelta, data: int, *_: Any) -> dt.time:
    after = data * unit
    if not _NO_TIME <= after < _DAY:
        raise ValueError("a time of day is not within a day")
    return (_MIDNIGHT + after).time()


_EXACT: Final = decimal.Context(prec=decimal.MAX_PREC, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)
_MIDNIGHT: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_NO_TIME: Final = dt.timedelta()
_DAY: Final = dt.timedelta(days=1)
_INEXACT: Final = frozenset({"decimal", "time-millis", "time-micros"})
_OWN: Final = "pyspark-rocketmq-"
_OWN_READERS: Final[Mapping[str, Callable[..., Any]]] = {
    f"bytes-{_OWN}decimal": _read_decimal,
    f"fixed-{_OWN}decimal": _read_decimal,
    f"int-{_OWN}time-millis": partial(_read_time, dt.timedelta(milliseconds=1)),
    f"long-{_OWN}time-micros": partial(_read_time, dt.timedelta(microseconds=1)),
}
"""Readers of logical types, by type and name as fastavro has them.

fastavro's own ones round a decimal that has more digits than its schema permits, and make a time of day of a
negative number.
"""


class _AvroShape:
    """Checks an Avro schema: may a short payload have a huge value, and does a type contain itself?

    A *node* is a single value, or a record, an array or a map. The *surplus* of a type is an upper bound for
    the nodes of its values beyond ``_NODES_PER_BYTE`` for each byte. It is above 0 only if a value has many
    nodes that take no bytes.
    """

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._surplus: dict[str, int] = {}
        """Surplus of the named types that have been checked."""
        self._open: set[str] = set()
        """Names of the records that are being checked."""
        self._recursive: set[str] = set()
        """Names of the records that contain themselves."""

    @property
    def is_recursive(self) -> bool:
        """Whether a type contains itself."""
        return bool(self._recursive)

    def surplus(self, schema: Any) -> int:
        """Return the surplus of a type.

        Raises:
            BadRecord: If a short payload could have a value with a huge number of nodes.
        """
        match schema:
            case str(name):
                return self._surplus_of_name(name)
            case list(union):
                # The number of the branch takes a byte.
                return max(map(self.surplus, union), default=0) - _NODES_PER_BYTE
            case {"type": "record" | "error", "name": str(name), "fields": fields}:
                if name not in self._surplus:
                    self._surplus[name] = self._surplus_of_record(name, fields)
                return self._surplus[name]
            case {"type": "fixed", "size": int(size)}:
                return 1 - max(0, size) * _NODES_PER_BYTE
            case _:
                return self._surplus_of_other(schema)

    def _surplus_of_other(self, schema: Mapping[str, Any]) -> int:
        match schema:
            case {"type": "enum"}:
                return _OF_A_BYTE
            case {"type": "map", "values": values}:
                # Each entry also has a key, which takes a byte at least.
                if self.surplus(values) + _OF_A_BYTE > 0:
                    raise _huge("a map whose values have too many parts that take no bytes")
                return _OF_A_BYTE
            case {"type": "array", "items": items}:
                if self.surplus(items) > 0:
                    raise _huge("an array whose items take no bytes, or have too many parts that take none")
                return _OF_A_BYTE
            case _:
                return self.surplus(schema["type"])

    def _surplus_of_name(self, name: str) -> int:
        if name in _PRIMITIVES:
            return 1 if name == "null" else _OF_A_BYTE
        if name in self._open:
            # ``_surplus_of_record`` checks that this is true.
            self._recursive.add(name)
            return 0
        if name not in self._surplus:
            self._surplus[name] = self.surplus(self._named[name])
        return self._surplus[name]

    def _surplus_of_record(self, name: str, fields: Iterable[Mapping[str, Any]]) -> int:
        self._open.add(name)
        surplus = 1 + sum(self.surplus(field["type"]) for field in fields)
        self._open.discard(name)
        if surplus > (0 if name in self._recursive else _MOST_SURPLUS):
            raise _huge(f"record {name} with too many parts that take no bytes")
        return surplus


def _huge(what: str) -> BadRecord:
    return BadRecord(
        f"The registry's schema for this body has {what[:_SHOWN]}, so a short body could have a huge value. "
        "Remove parts that are null or records without fields, or give them a value."
    )


def protobuf_decoder(schema: RegisteredSchema, references: References, message_type: str | None) -> Decode:
    """Return a decoder of protobuf payloads, by the descriptor of the ``.proto`` file in ``schema``.

    ``references`` has the files that this file imports, by name. ``message_type`` is a type in the file. It
    is used for a payload whose frame names no type, or names the first type of the file.

    Raises:
        BadRecord: If ``schema`` or one of ``references`` cannot be used.
    """
    from google.protobuf.message import DecodeError

    from pyspark_rocketmq.schemas.protobuf import MessageTypes, as_value

    try:
        types = MessageTypes(
            _descriptor(schema), {name: _descriptor(each) for name, each in references.items()}
        )
    except Exception as error:
        raise BadRecord(
            "The registry's schema for this body, or a schema that it imports, cannot be used as a protobuf "
            f"file: {_reason(error)}. Protobuf needs a registry that gives a file's descriptor "
            "(format=serialized), as Confluent's does. If the body is not protobuf, choose its format."
        ) from error

    def decode(payload: bytes, named: MessageType | None = None) -> Any:
        wanted = named if message_type is None or named not in {None, FIRST_MESSAGE} else message_type
        try:
            message = types.message_class(wanted)()
            message.ParseFromString(payload)
            return as_value(message)
        except (LookupError, DecodeError, ValueError, OverflowError) as error:
            raise BadRecord(f"The payload does not fit its protobuf schema: {_reason(error)}") from error

    return decode


def _descriptor(schema: RegisteredSchema) -> bytes:
    try:
        return base64.b64decode(schema.text, validate=True)
    except (ValueError, binascii.Error):
        raise ValueError(
            "the registry returned the schema's text instead of its descriptor in base64"
        ) from None


def _reason(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
