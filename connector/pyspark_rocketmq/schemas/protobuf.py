"""Message types of protobuf files, and their messages as Python's values.  Needs the package ``protobuf``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any, Final, cast

import pandas as pd
from google.protobuf import (
    any_pb2,
    api_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    message_factory,
    source_context_pb2,
    struct_pb2,
    text_format,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

from pyspark_rocketmq.schemas.framing import MessageType

_WELL_KNOWN: Final[Mapping[str, bytes]] = {
    each.DESCRIPTOR.name: each.DESCRIPTOR.serialized_pb
    for each in (
        any_pb2,
        api_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        source_context_pb2,
        struct_pb2,
        timestamp_pb2,
        type_pb2,
        wrappers_pb2,
    )
}
"""Files that registries leave out, since every compiler has them."""
_DECIMAL: Final = """
    package: "confluent.type" syntax: "proto3"
    message_type {
      name: "Decimal"
      field { name: "value" number: 1 label: LABEL_OPTIONAL type: TYPE_BYTES }
      field { name: "precision" number: 2 label: LABEL_OPTIONAL type: TYPE_UINT32 }
      field { name: "scale" number: 3 label: LABEL_OPTIONAL type: TYPE_INT32 }
    }
"""
_META: Final = """
    package: "confluent" syntax: "proto3"
    message_type {
      name: "Meta"
      field { name: "doc" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
      field {
        name: "params" number: 2 label: LABEL_REPEATED
        type: TYPE_MESSAGE type_name: ".confluent.Meta.ParamsEntry"
      }
      field { name: "tags" number: 3 label: LABEL_REPEATED type: TYPE_STRING }
      nested_type {
        name: "ParamsEntry" options { map_entry: true }
        field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
        field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_STRING }
      }
    }
"""
_OF_CONFLUENT: Final = {
    "confluent/meta.proto": _META,
    "confluent/type/decimal.proto": _DECIMAL,
    "confluent/types/decimal.proto": _DECIMAL,
}
"""Confluent's own files: their descriptors in protobuf's text format.

The file of ``Decimal`` is there twice, since Confluent's Java and Python clients name it differently. The
options that ``meta.proto`` defines are left out: no value depends on them.
"""
_OF_GOOGLE: Final = re.compile(r"(google/type/[a-z_]+)\.proto")
"""Files that Confluent's serializers leave out, too; the package ``googleapis-common-protos`` has them."""
_MAIN: Final = "writers-schema.proto"


class MessageTypes:
    """The message types of a protobuf file, as classes."""

    def __init__(self, file: bytes, imports: Mapping[str, bytes]) -> None:
        """Build the types of ``file``; ``imports`` has the files that it imports, by name.

        Raises:
            DecodeError: If bytes are no descriptor.
            ValueError: If a descriptor is not valid, or a file is missing.
        """
        self._pool = descriptor_pool.DescriptorPool()
        self._files = {**_WELL_KNOWN, **imports}
        self._added: set[str] = set()
        self._main = FileDescriptorProto.FromString(file)
        self._main.name = _MAIN
        self._add(self._main)
        self._classes: dict[MessageType | None, Any] = {}

    def _add(self, file: FileDescriptorProto) -> None:
        """Add a file after those that it imports."""
        self._added.add(file.name)
        for name in file.dependency:
            if name in self._added:
                continue
            encoded = self._files.get(name) or _built_in(name)
            if encoded is None:
                raise ValueError(f"the file imports {name}, which the registry does not have")
            imported = FileDescriptorProto.FromString(encoded)
            imported.name = name
            self._add(imported)
        try:
            self._pool.Add(file)
            self._pool.FindFileByName(file.name)
        except (TypeError, KeyError) as error:
            raise ValueError(str(error)) from error

    def message_class(self, message_type: MessageType | None) -> Any:
        """Return the Python class of a message type; None stands for the only type of the file.

        Raises:
            LookupError: If the file has no such type, or not exactly one for None.
        """
        found = self._classes.get(message_type)
        if found is None:
            descriptor = self._pool.FindMessageTypeByName(self._full_name(message_type))
            found = self._classes[message_type] = message_factory.GetMessageClass(descriptor)
        return found

    def _full_name(self, message_type: MessageType | None) -> str:
        package = f"{self._main.package}." if self._main.package else ""
        if isinstance(message_type, str):
            return message_type if message_type.startswith(package) else package + message_type
        if message_type is None:
            if len(self._main.message_type) != 1:
                raise LookupError(
                    f"the file has {len(self._main.message_type)} message types; give message_type"
                )
            message_type = (0,)
        return package + _named_path(self._main, message_type)


def _built_in(name: str) -> bytes | None:
    """Return the serialized descriptor of a file that Confluent's serializers have built in; else None.

    They do not register such files, so a schema can import one that the registry does not have.

    Raises:
        ValueError: If it is a ``google/type`` file, and googleapis-common-protos is not installed.
    """
    if name in _OF_CONFLUENT:
        file = FileDescriptorProto()
        text_format.Parse(_OF_CONFLUENT[name], file)
        return bytes(file.SerializeToString())
    found = _OF_GOOGLE.fullmatch(name)
    if found is None:
        return None
    try:
        module = import_module(f"{found[1].replace('/', '.')}_pb2")
    except ModuleNotFoundError:
        raise ValueError(
            f"the file imports {name}, which the registry does not have: install googleapis-common-protos on "
            "every executor"
        ) from None
    return bytes(module.DESCRIPTOR.serialized_pb)


def _named_path(file: FileDescriptorProto, indexes: tuple[int, ...]) -> str:
    level: Any = file.message_type
    names = []
    for index in indexes:
        if index >= len(level):
            raise LookupError(f"the file has no message type at indexes {indexes[:8]}")
        found: DescriptorProto = level[index]
        names.append(found.name)
        level = found.nested_type
    return ".".join(names)


def as_value(message: Any) -> Any:
    """Return a message as a dict with all its fields.

    A field that was not set is None. If the wire format does not show whether a field was set, as for a plain
    number in proto3, the field has its default instead of None.

    A value of an enumeration is given by its name, or by its number if it has no known name.  ``Timestamp``,
    ``Duration`` and wrappers such as ``Int32Value`` become the Python values that they stand for. A time that
    is finer than a microsecond becomes a Timestamp or Timedelta of pandas, which is also a datetime or a
    timedelta.

    Raises:
        ValueError, OverflowError: If a time is outside of what these Python types can hold.
    """
    special = _SPECIAL.get(message.DESCRIPTOR.full_name)
    if special is not None:
        return special(message)
    return {field.name: _field(message, field) for field in message.DESCRIPTOR.fields}


def _field(message: Any, field: Any) -> Any:
    if field.is_repeated:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            of_value = field.message_type.fields_by_name["value"]
            return {key: _one(item, of_value) for key, item in getattr(message, field.name).items()}
        return [_one(item, field) for item in getattr(message, field.name)]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _one(getattr(message, field.name), field)


def _one(value: Any, field: Any) -> Any:
    if field.message_type is not None:
        return as_value(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    return value


def _moment(message: Any) -> datetime:
    if message.nanos % 1_000:
        return pd.Timestamp(message.ToNanoseconds(), unit="ns", tz=UTC)
    return cast("datetime", message.ToDatetime(tzinfo=UTC))


def _duration(message: Any) -> timedelta:
    if message.nanos % 1_000:
        return pd.Timedelta(message.ToNanoseconds(), unit="ns")
    return cast("timedelta", message.ToTimedelta())


_SPECIAL: Final[Mapping[str, Any]] = {
    "google.protobuf.Timestamp": _moment,
    "google.protobuf.Duration": _duration,
    **{
        f"google.protobuf.{kind}Value": lambda message: message.value
        for kind in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
    },
}
