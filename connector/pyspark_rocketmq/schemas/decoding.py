"""Decodes messages in listeners, one by one or as a record batch, by schemas from a registry."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any, Final

import pyarrow as pa

from pyspark_rocketmq.errors import BadRecord, OptionError, SchemaError
from pyspark_rocketmq.model import QUEUE_OFFSET, MessageExt
from pyspark_rocketmq.schemas.formats import (
    Decode,
    avro_decoder,
    decode_json,
    parse_reader_schema,
    protobuf_decoder,
)
from pyspark_rocketmq.schemas.framing import (
    CONTENT_ID,
    GLOBAL_ID,
    BodyFormat,
    Framing,
    SchemaId,
    split_frame,
)
from pyspark_rocketmq.schemas.http_lookup import RegistrySettings, lookup_of
from pyspark_rocketmq.schemas.lookup import SchemaLookup
from pyspark_rocketmq.schemas.structs import as_structs

_MODULES: Final = {BodyFormat.AVRO: "fastavro", BodyFormat.PROTOBUF: "google.protobuf"}
"""Module that each format needs; an extra of this package installs it."""
_IN_HEADERS: Final = frozenset({Framing.CONFLUENT_HEADERS, Framing.APICURIO_HEADERS})
BAD_RECORD: Final = "badRecord"
BAD_REASON: Final = "badReason"
_ADDED: Final = (QUEUE_OFFSET, BAD_RECORD, BAD_REASON)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSettings:
    """Settings of a decoder; pickled to the executors."""

    registry: RegistrySettings
    framing: Framing
    body_format: BodyFormat
    reader_schema: str | None = None
    """Avro schema, as JSON, to which values are converted; None leaves them as they were written."""
    message_type: str | None = None
    """Protobuf message type for bodies whose frame names no type, or the first type of the file.

    None if each file has only one type, or if frames name the type.
    """

    @classmethod
    def of(
        cls,
        registry: RegistrySettings,
        *,
        framing: str,
        body_format: str,
        reader_schema: str | None,
        message_type: str | None,
    ) -> DecoderSettings:
        """Check the arguments of ``SchemaRegistry.decoder``, and return them as settings.

        Raises:
            OptionError: If an argument is wrong, or the module that the format needs is not installed.
        """
        problems = [
            f"{name} is {value!r}; choose from {', '.join(known)}"
            for name, value, known in (
                ("framing", framing, [str(each) for each in Framing]),
                ("format", body_format, [str(each) for each in BodyFormat]),
            )
            if value not in known
        ]
        if reader_schema is not None and body_format != BodyFormat.AVRO:
            problems.append("reader_schema is for format avro; leave it out")
        elif reader_schema is not None and not _is_json(reader_schema):
            problems.append("reader_schema is not JSON; give the Avro schema as a JSON text")
        if message_type is not None and body_format != BodyFormat.PROTOBUF:
            problems.append("message_type is for format protobuf; leave it out")
        if problems:
            raise OptionError(tuple(problems), where="decoder")
        settings = cls(
            registry=registry,
            framing=Framing(framing),
            body_format=BodyFormat(body_format),
            reader_schema=reader_schema,
            message_type=message_type,
        )
        _check_installed(settings.body_format)
        if reader_schema is not None:
            _check_reader_schema(reader_schema)
        return settings


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _check_installed(body_format: BodyFormat) -> None:
    module = _MODULES.get(body_format)
    try:
        is_there = module is None or find_spec(module) is not None
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        install = f"pip install 'pyspark-rocketmq[{body_format}]'"
        problem = f"format {body_format} needs module {module}, on the executors, too: {install}"
        raise OptionError((problem,), where="decoder")


def _check_reader_schema(text: str) -> None:
    try:
        parse_reader_schema(text)
    except ValueError as error:
        raise OptionError((str(error),), where="decoder") from error


class BodyDecoder:
    """Decodes bodies by the schemas with which they were written; :meth:`SchemaRegistry.decoder` creates it.

    A listener may hold a decoder, and is pickled with it.
    """

    def __init__(self, settings: DecoderSettings) -> None:
        self._settings = settings

    def __call__(self, message: MessageExt) -> Any:
        """Return a message's decoded body: a dict for a record.

        Raises:
            BadRecord: If the body can never be decoded.
            SchemaRegistryDown: If this process has not got the body's schema yet, and the registry does not
                answer. Do not catch this error in a listener: it makes the messages wait, without counting an
                attempt.
        """
        return self._decode(message.body, message.properties)

    def columns(self, messages: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return the decoded bodies of an ``ArrowListener``'s messages as rows for it to return.

        Each message becomes a row with ``queueOffset``, the fields of ``schema``, ``badRecord`` and
        ``badReason``. A field that a body lacks is null. ``badRecord`` and ``badReason`` are usually null. If
        the body cannot be decoded to a record, or a value does not fit its column, they have the whole body
        and the reason, and all fields are null. A number does not fit a column of times, because its unit is
        unknown. A time that is finer than its column does not fit either.

        Raises:
            SchemaError: If ``schema`` has one of the added columns.
            SchemaRegistryDown: If this process has not got a body's schema yet, and the registry does not
                answer. Do not catch this error in a listener: it makes the messages wait.
        """
        if taken := [name for name in schema.names if name in _ADDED]:
            raise SchemaError(
                f"The schema has column(s) {', '.join(taken)}, which columns() adds itself. Leave them out."
            )
        bodies = messages.column("body").to_pylist()
        values, reasons = self._values(bodies, self._properties(messages))
        into = pa.struct(list(schema))
        rows = as_structs(values, reasons, into)
        return pa.RecordBatch.from_arrays(
            [
                messages.column(QUEUE_OFFSET),
                *(rows.flatten() if len(schema) else ()),
                pa.array(
                    [None if why is None else body for body, why in zip(bodies, reasons, strict=True)],
                    pa.binary(),
                ),
                pa.array(reasons, pa.string()),
            ],
            names=[QUEUE_OFFSET, *schema.names, BAD_RECORD, BAD_REASON],
        )

    def _properties(self, messages: pa.RecordBatch) -> Sequence[Mapping[str, str]]:
        if self._settings.framing not in _IN_HEADERS:
            return [{}] * messages.num_rows
        return [dict(pairs or ()) for pairs in messages.column("properties").to_pylist()]

    def _values(
        self, bodies: Sequence[bytes], properties: Sequence[Mapping[str, str]]
    ) -> tuple[list[Any], list[str | None]]:
        """Return two lists with one entry per body: its record, and the reason if it has none."""
        values: list[Any] = []
        reasons: list[str | None] = []
        for body, of_body in zip(bodies, properties, strict=True):
            value: Any = None
            reason: str | None = "The body's value is not a record."
            try:
                value = self._decode(body, of_body)
            except BadRecord as bad:
                reason = str(bad)
            is_record = isinstance(value, dict)
            values.append(value if is_record else None)
            reasons.append(None if is_record else reason)
        return values, reasons

    def _decode(self, body: bytes, properties: Mapping[str, str]) -> Any:
        settings = self._settings
        if settings.framing is Framing.APICURIO_HEADERS and settings.body_format is not BodyFormat.JSON:
            properties = _id_of_apicurio(properties, legacy_id_mode=settings.registry.legacy_id_mode)
        schema_id, payload, message_type = split_frame(
            settings.framing, body, properties, settings.body_format
        )
        if settings.body_format is BodyFormat.JSON:
            return decode_json(payload)
        decoders = _decoders_of(settings)
        decode = decoders.get(schema_id)
        if decode is None:
            # Several threads may do this for the same schema, with the same result.
            decode = decoders[schema_id] = _decoder(settings, schema_id)
        return decode(payload, message_type)


def _id_of_apicurio(properties: Mapping[str, str], *, legacy_id_mode: bool) -> Mapping[str, str]:
    """Return the property with the kind of id that the registry takes; all properties if they have no id.

    So the error for a message without an id can name the framing that its properties have.

    Raises:
        BadRecord: If the message has only the other kind of id, by which the registry might return another
            schema.
    """
    wanted, other = (GLOBAL_ID, CONTENT_ID) if legacy_id_mode else (CONTENT_ID, GLOBAL_ID)
    if wanted in properties:
        return {wanted: properties[wanted]}
    if other in properties:
        raise BadRecord(_OTHER_ID[legacy_id_mode])
    return properties


_OTHER_ID: Final = {
    False: (
        f"The message has its schema's globalId (property {GLOBAL_ID}), but Apicurio's …/apis/ccompat takes "
        "numbers for contentIds, so it might return another schema. Have producers set "
        "apicurio.registry.use-id=contentId. Or set apicurio.ccompat.legacy-id-mode.enabled=true on the "
        "server (before Apicurio 3: registry.ccompat.legacy-id-mode.enabled), and "
        "SchemaRegistry(legacy_id_mode=True)."
    ),
    True: (
        f"The message has its schema's contentId (property {CONTENT_ID}), but by "
        "SchemaRegistry(legacy_id_mode=True) the server takes numbers for globalIds, so it might return "
        "another schema. Have producers set apicurio.registry.use-id=globalId, or leave out legacy_id_mode "
        "if the server is not in this mode."
    ),
}
"""Errors for a message that has only the other kind of id, by ``legacy_id_mode``."""


@lru_cache(maxsize=64)
def _decoders_of(settings: DecoderSettings) -> dict[SchemaId, Decode]:  # noqa: ARG001 - the key
    """Return the dict of this process's decoders for these settings, by schema id; callers add decoders.

    All calls with equal settings return the same dict, so decoders are kept from one micro-batch to the next.
    """
    return {}


def _decoder(settings: DecoderSettings, schema_id: SchemaId) -> Decode:
    """Return the decoder for a schema. If the schema cannot be used, return one that refuses all payloads."""
    lookup = lookup_of(settings.registry)
    make: Callable[..., Decode] = (
        partial(_avro, settings) if settings.body_format is BodyFormat.AVRO else partial(_protobuf, settings)
    )
    try:
        return make(lookup, schema_id)
    except _Unusable as unusable:
        return partial(_refuse, f"Schema {schema_id}: {unusable}")


class _Unusable(Exception):
    """The registry has a schema, but it cannot be used."""


def _avro(settings: DecoderSettings, lookup: SchemaLookup, schema_id: SchemaId) -> Decode:
    schema = lookup.schema(schema_id)
    references = lookup.with_references(schema)
    try:
        return avro_decoder(schema, references, settings.reader_schema)
    except BadRecord as bad:
        raise _Unusable(str(bad)) from bad


def _protobuf(settings: DecoderSettings, lookup: SchemaLookup, schema_id: SchemaId) -> Decode:
    schema = lookup.schema(schema_id, serialized=True)
    references = lookup.with_references(schema, serialized=True)
    try:
        return protobuf_decoder(schema, references, settings.message_type)
    except BadRecord as bad:
        raise _Unusable(str(bad)) from bad


def _refuse(reason: str, *_: object) -> Any:
    raise BadRecord(reason)
