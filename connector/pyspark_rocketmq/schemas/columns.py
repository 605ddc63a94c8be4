"""Splits a column of bodies into the schemas' ids and the payloads, for ``from_avro`` and ``from_protobuf``.

A *frame* is what a serializer puts before the payload, or into a property, to name the schema. The functions
return Spark expressions, which run in the JVM. These have the same values as the functions of
:mod:`~pyspark_rocketmq.schemas.framing`; null stands for a damaged frame.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as sf

from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.schemas.framing import (
    APICURIO_PROPERTIES,
    CONFLUENT_PROPERTY,
    BodyFormat,
    Framing,
)

_REST: Final = 2**31 - 1
_SMALL_ID: Final = "(?!00000000)[0-7].{7}"
"""Hexadecimal digits of an int32 above 0."""
_LARGE_ID: Final = "(?!0{16})[0-7].{15}"
"""Hexadecimal digits of an int64 above 0."""
_GUID: Final = "(.{8})(.{4})(.{4})(.{4})(.{12})"
_INDEX: Final = "(?:[0-7][02468ACE]|[89A-F][02468ACE](?:[89A-F].){0,3}[0-7].)"
"""Pattern of the hexadecimal digits of one Confluent index: a varint whose lowest bit, the sign, is 0."""
_MOST_INDEXES: Final = 16
"""Maximum depth of a nested protobuf message type."""
_INDEXES: Final = "(00|" + "|".join(f"{2 * n:02X}{_INDEX}{{{n}}}" for n in range(1, _MOST_INDEXES + 1)) + ")"
"""Pattern of the hexadecimal digits of Confluent's indexes, as one group.

The indexes are the place of a message type in its file.
"""
_GUIDS: Final = {Framing.CONFLUENT: "^01(.{32})", Framing.CONFLUENT_HEADERS: f"^01(.{{32}}){_INDEXES}?$"}
"""Regular expressions that find a schema's GUID at the beginning of bytes, by framing.

The bytes (a body's or, with ``CONFLUENT_HEADERS``, a property's) are given as hexadecimal digits. The first
group of a match is the GUID.
"""
_INDEX_BYTES: Final = 1 + 5 * _MOST_INDEXES
_FRAMES: Final = {
    Framing.CONFLUENT: f"^00({_SMALL_ID})",
    Framing.CONFLUENT_HEADERS: f"^00({_SMALL_ID}){_INDEXES}?$",
    Framing.APICURIO: f"^00({_SMALL_ID})",
    Framing.APICURIO_LEGACY: f"^00({_LARGE_ID})",
    Framing.ROCKETMQ_AVRO: f"^10({_LARGE_ID})",
    Framing.ROCKETMQ_JSON: f"^({_LARGE_ID})",
    Framing.ROCKETMQ_CONNECT: f"^({_LARGE_ID})",
}
"""Regular expressions that find a schema's id, a number, at the beginning of bytes, by framing.

The bytes (a body's or, with ``CONFLUENT_HEADERS``, a property's) are given as hexadecimal digits. The first
group of a match is the id.
"""
_PAYLOAD_FROM: Final = {
    Framing.CONFLUENT: 6,
    Framing.APICURIO: 6,
    Framing.APICURIO_LEGACY: 10,
    Framing.ROCKETMQ_AVRO: 10,
    Framing.ROCKETMQ_JSON: 9,
    Framing.ROCKETMQ_CONNECT: 9,
}
"""Place of the first byte after the schema's id in a body, by framing. Places count from 1."""
_NO_PROPERTIES: Final = "framing {} has the schema's id in a property: give properties=df.properties"


def schema_id(body: Column, framing: str = "confluent", *, properties: Column | None = None) -> Column:
    """Return the id of a body's schema as text: digits or a GUID; null if the frame is damaged.

    With ``apicurio-headers`` this is the globalId or, in a message without one, the contentId. The other
    framings of Apicurio have either, and do not show which.

    Args:
        body: The column of bodies.
        framing: One of the names in ``SchemaRegistry.decoder``.
        properties: The column of properties; needed if the framing has the id in a property.

    Raises:
        OptionError: If the framing is unknown, or needs ``properties``.
    """
    kind = _framing(framing)
    if kind is Framing.APICURIO_HEADERS:
        numbers = [_property(properties, kind, name) for name in APICURIO_PROPERTIES]
        number = sf.coalesce(*numbers)
        is_id = number.rlike("^[1-9][0-9]{0,18}$") & number.try_cast("bigint").isNotNull()
        return sf.when(is_id, number)
    if kind is Framing.CONFLUENT_HEADERS:
        return _id_in_header(_property(properties, kind, CONFLUENT_PROPERTY))
    return _id_in(sf.hex(body.substr(1, 17)), kind)


def payload(body: Column, framing: str = "confluent", format: str = "avro") -> Column:  # noqa: A002
    """Return the payload behind a body's frame, for ``from_avro`` and others; null if the frame is damaged.

    A protobuf payload begins after the indexes or the name of its message type. If the type is nested more
    than 16 deep, or its name has more than 125 bytes, the frame counts as damaged. If the framing has the id
    in a property, the payload is the whole body.

    Args:
        body: The column of bodies.
        framing: One of the names in ``SchemaRegistry.decoder``.
        format: ``avro``, ``json`` or ``protobuf``.

    Raises:
        OptionError: If framing or format is unknown.
    """
    kind = _framing(framing)
    if format not in list(BodyFormat):
        raise OptionError((f"format is {format!r}; choose from {', '.join(BodyFormat)}",), where="payload")
    if kind not in _PAYLOAD_FROM:
        return body
    start = sf.when(_id_in(sf.hex(body.substr(1, 9)), kind).isNotNull(), sf.lit(_PAYLOAD_FROM[kind]))
    if kind is Framing.CONFLUENT:
        is_guid = (sf.hex(body.substr(1, 1)) == "01") & (sf.length(body) >= 17)
        start = sf.when(is_guid, sf.lit(18)).otherwise(start)
    if format == BodyFormat.PROTOBUF:
        if kind is Framing.CONFLUENT:
            start = start + _indexes_length(body, start)
        elif kind in {Framing.APICURIO, Framing.APICURIO_LEGACY}:
            start = start + _name_length(body, start)
    return body.substr(start, sf.lit(_REST))


def _framing(framing: str) -> Framing:
    try:
        return Framing(framing)
    except ValueError:
        raise OptionError(
            (f"framing is {framing!r}; choose from {', '.join(Framing)}",), where="framing"
        ) from None


def _property(properties: Column | None, framing: Framing, name: str) -> Column:
    if properties is None:
        raise OptionError((_NO_PROPERTIES.format(framing),), where="schema_id")
    return properties[name]


def _id_in(digits: Column, framing: Framing) -> Column:
    """Return the schema's id at the beginning of bytes, which are given as hexadecimal digits; else null."""
    found = _group(digits, _FRAMES[framing])
    number = sf.conv(found, 16, 10)
    if framing not in _GUIDS:
        return number
    return sf.coalesce(number, _dashed(_group(digits, _GUIDS[framing])))


def _id_in_header(text: Column) -> Column:
    """Return the schema's id in the text of a property; null if the text has none.

    The text is a GUID, or has Confluent's header in hexadecimal digits or in base64.
    """
    is_digits = text.rlike("^0[01](?:[0-9A-Fa-f]{2})*$")
    digits = sf.when(is_digits, sf.upper(text)).otherwise(sf.hex(sf.try_to_binary(text, sf.lit("base64"))))
    of_guid = sf.when(text.rlike("^[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}$"), sf.lower(text))
    return sf.coalesce(of_guid, _id_in(digits, Framing.CONFLUENT_HEADERS))


def _dashed(digits: Column) -> Column:
    return sf.lower(sf.regexp_replace(digits, _GUID, "$1-$2-$3-$4-$5"))


def _group(digits: Column, pattern: str) -> Column:
    """Return the first group of the pattern's match in ``digits``; null without a match."""
    return sf.when(digits.rlike(pattern), sf.regexp_extract(digits, pattern, 1))


def _indexes_length(body: Column, start: Column) -> Column:
    """Return how many bytes Confluent's indexes of a message type take, which begin at ``start``.

    Null if they are damaged.
    """
    digits = sf.hex(body.substr(start, sf.lit(_INDEX_BYTES)))
    return sf.length(_group(digits, f"^{_INDEXES}")) / 2


def _name_length(body: Column, start: Column) -> Column:
    """Return how many bytes Apicurio's ``Ref`` takes, which begins at ``start`` and names the message type.

    Null if it is damaged.
    """
    digits = sf.hex(body.substr(start, sf.lit(3)))
    length = _number(_group(digits, "^([0-7].)"))
    name = body.substr(start + 3, length - 2).cast("string")
    is_name = (_number(_group(digits, "^..0A([0-7].)$")) == length - 2) & sf.is_valid_utf8(name)
    is_whole = (start + length <= sf.length(body)) & ((length == 0) | is_name)
    return sf.when(is_whole, length + 1)


def _number(digits: Column) -> Column:
    return sf.conv(digits, 16, 10).cast("int")
