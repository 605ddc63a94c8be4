"""Message properties: the string ``name U+0001 value U+0002 …`` and the names RocketMQ itself uses.

There is no escaping, so neither separator may occur in a name or a value that is sent.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pyspark_rocketmq.errors import LocalProtocolError, RemoteProtocolError

NAME_VALUE_SEPARATOR: Final = "\x01"
PROPERTY_SEPARATOR: Final = "\x02"
MAX_PROPERTIES_BYTES: Final = 32767
"""Maximum number of bytes of a message's properties, because their stored length is a signed short."""
MAX_MEMBER_PROPERTIES_BYTES: Final = MAX_PROPERTIES_BYTES - 512
"""Maximum number of bytes of the properties of a message in a batch.

A broker appends the batch's properties and properties of its own (``CLUSTER``, ``TRACE_ON`` …), and does not
check the sum. If the sum exceeded ``MAX_PROPERTIES_BYTES``, the broker would write a negative length into its
log, and no consumer could read the message.

Source: RocketMQ 5.3.3 ``MessageExtEncoder.encode(MessageExtBatch)``.
"""
_MAX_READ_BYTES: Final = 512 * 1024
"""Maximum number of bytes of properties to decode. A request may have more than can be stored; as Python
objects they take up to fifty times as much memory."""

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
UNIQ_KEY: Final = "UNIQ_KEY"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
RETRY_TOPIC: Final = "RETRY_TOPIC"
PGROUP: Final = "PGROUP"
TRAN_MSG: Final = "TRAN_MSG"
MIN_OFFSET: Final = "MIN_OFFSET"
MAX_OFFSET: Final = "MAX_OFFSET"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
INNER_NUM: Final = "INNER_NUM"
SHARDING_KEY: Final = "__SHARDINGKEY"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"

_ENTRY = re.compile(f"[^{PROPERTY_SEPARATOR}]+")
_ENCODED_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACE_AS_JAVA = "pyspark_rocketmq.replace_as_java"


def _replace_as_java(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    surrogate = _ENCODED_SURROGATE.match(error.object, error.start)
    return "\N{REPLACEMENT CHARACTER}", surrogate.end() if surrogate else error.end


codecs.register_error(_REPLACE_AS_JAVA, _replace_as_java)


def decode_text(data: bytes) -> str:
    """Decode UTF-8 as ``new String(bytes, UTF_8)`` does: each malformed part becomes U+FFFD.

    Java replaces an encoded surrogate, whole or cut, by one U+FFFD; Python would replace each of its bytes.
    """
    return data.decode("utf-8", _REPLACE_AS_JAVA)


def decode_properties(data: bytes) -> dict[str, str]:
    """Parse stored properties; if a name occurs several times, its last entry counts.

    An entry without separator, with an empty name or with an empty value is dropped; a value may contain
    U+0001 again, and the last U+0002 may be missing. Java's parser accepts every string.

    Raises:
        RemoteProtocolError: If ``data`` has more than 512 KiB, sixteen times what can be stored.

    Source: RocketMQ 5.3.3 ``MessageDecoder.string2messageProperties``.
    """
    if len(data) > _MAX_READ_BYTES:
        raise RemoteProtocolError(
            f"The properties of a message take {len(data)} bytes; {MAX_PROPERTIES_BYTES} can be stored."
        )
    properties: dict[str, str] = {}
    text = decode_text(data)
    # Only requests can have more than is stored; a million entries must not exist at the same time.
    is_long = len(data) > MAX_PROPERTIES_BYTES
    entries = (match[0] for match in _ENTRY.finditer(text)) if is_long else text.split(PROPERTY_SEPARATOR)
    for entry in entries:
        name, _, value = entry.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            properties[name] = value
    return properties


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Write properties in the mapping's order, each entry ended by U+0002.

    Raises:
        LocalProtocolError: If a name or value is no string, contains a separator, cannot be UTF-8 or is
            empty, or if the result exceeds ``MAX_PROPERTIES_BYTES``.

    Source: RocketMQ 5.3.3 ``MessageDecoder.messageProperties2String``, ``Message.putUserProperty``.
    """
    entries: Iterable[tuple[Any, Any]] = properties.items()
    for name, value in entries:
        if not isinstance(name, str) or not isinstance(value, str):
            raise LocalProtocolError(
                f"Message property {name!r:.80} has the value {value!r:.80}, and both must be strings; "
                "convert them."
            )
        if not name:
            raise LocalProtocolError(
                "A message property has an empty name; every consumer would drop it. Leave it out, or name "
                "it."
            )
        if not value:
            raise LocalProtocolError(
                f"Message property {name!r} has an empty value; every consumer would drop it. Leave it "
                "out, or give it a value."
            )
        entry = name + value
        if NAME_VALUE_SEPARATOR in entry or PROPERTY_SEPARATOR in entry:
            raise LocalProtocolError(
                f"Message property {name!r} contains U+0001 or U+0002, which separate properties on the "
                "wire; remove them."
            )
    text = "".join(
        f"{name}{NAME_VALUE_SEPARATOR}{value}{PROPERTY_SEPARATOR}" for name, value in properties.items()
    )
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as exc:
        at = text.rfind(PROPERTY_SEPARATOR, 0, exc.start) + 1
        name = text[at:].partition(NAME_VALUE_SEPARATOR)[0]
        raise LocalProtocolError(
            f"Message property {name!r} contains U+{ord(text[exc.start]):04X}, half of a surrogate pair, "
            "which is not text: correct it, or send binary data in the body."
        ) from exc
    if len(data) > MAX_PROPERTIES_BYTES:
        raise LocalProtocolError(
            f"The message's properties take {len(data)} bytes, more than the {MAX_PROPERTIES_BYTES} "
            "RocketMQ can store; move large values into the body."
        )
    return data
