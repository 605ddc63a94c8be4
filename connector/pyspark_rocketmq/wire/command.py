"""The remoting command, its frame, and the signature of access control.

Frame (big-endian)::

    u32 length of the rest | u8 serialize type | u24 header length | header | body

The header is JSON or RocketMQ's binary form, as the frame's serialize type says. The folder ``requests``
defines each code's ext fields and body.

Source: RocketMQ 5.3.3 ``RemotingCommand``, ``RocketMQSerializable``, ``AclClientRPCHook.doBeforeRequest``,
``AclUtils.combineRequestContent``, ``AclSigner``.
"""

from __future__ import annotations

import base64
import hmac
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final, NoReturn

from pyspark_rocketmq.errors import LocalProtocolError, RemoteProtocolError
from pyspark_rocketmq.wire.codes import CLIENT_VERSION, LanguageCode
from pyspark_rocketmq.wire.fastjson import check_json_size, short_repr

ACCESS_KEY: Final = "AccessKey"
"""Ext field with the user's name."""
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105 - the name of a field
"""Ext field with the token of a temporary credential."""
SIGNATURE: Final = "Signature"
"""Ext field with the signature of the other fields and the body."""
NAMESPACE: Final = "ns"
"""Ext field with a request's namespace of version 2: the id of an instance of a managed cluster
(``MixAll``)."""
NAMESPACED: Final = "nsd"
"""Ext field that is "true" if ``NAMESPACE`` is present."""

MAX_FRAME_LENGTH: Final = 16 * 1024 * 1024
"""Maximum number of bytes of a whole frame, length word included
(``com.rocketmq.remoting.frameMaxLength``)."""
RESPONSE_FLAG: Final = 0x1
ONEWAY_FLAG: Final = 0x2
_MAX_HEADER_LENGTH: Final = 0xFFFFFF
_INT32_END: Final = 1 << 31
_CREDENTIALS: Final = frozenset({ACCESS_KEY, SECURITY_TOKEN, SIGNATURE})
_to_json: Final[Callable[[object], str]] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_BINARY_FIXED: Final = struct.Struct(">hBhii")
_MAX_HEADER_MEMORY: Final = 2 * MAX_FRAME_LENGTH
_BYTES_PER_FIELD: Final = 320
_WIDEST_CHARACTER: Final = 4
_MAX_BINARY_CODE: Final = 0x7FFF
_SHOWN_AROUND: Final = 10
"""Number of characters that an error shows before and after a character that cannot be sent."""


def signature(secret_key: bytes, ext_fields: Mapping[str, str], body: bytes) -> str:
    """Return Base64(HMAC-SHA1(secretKey, values || body)), with the ext fields' values in order of names.

    A field ``Signature`` is left out. Code, opaque and version are not signed: a request can be replayed.
    """
    # Names are ASCII, so Java's order of UTF-16 units is the order of str.
    values = "".join([ext_fields[name] for name in sorted(ext_fields) if name != SIGNATURE])
    # Half of a surrogate pair becomes "?", as Java writes it; encode_frame refuses the text itself.
    digest = hmac.digest(secret_key, values.encode(errors="replace") + body, "sha1")
    return base64.b64encode(digest).decode()


class SerializeType(IntEnum):
    """Form of the header (``SerializeType``)."""

    JSON = 0
    ROCKETMQ = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotingCommand:
    """One request or response, in either direction.

    A request is an :class:`~pyspark_rocketmq.wire.framing.Outgoing`.
    """

    code: int
    """A ``RequestCode`` in a request, a ``ResponseCode`` in a response."""
    opaque: int = 0
    """Number of the request (int32), echoed in the answer; each side of a connection counts its own."""
    flag: int = 0
    language: int = LanguageCode.PYTHON
    version: int = CLIENT_VERSION
    """Ordinal of the sender's ``MQVersion``."""
    remark: str | None = None
    ext_fields: Mapping[str, str] = field(default_factory=dict)
    """Fields of this kind of request or answer, by Java's names; fields that are null in Java are absent."""
    body: bytes = b""
    """Empty for Java's null: a frame does not distinguish them."""
    serialize_type: SerializeType = SerializeType.JSON

    def __repr__(self) -> str:
        """Return the fields as text, with credentials masked."""
        fields = {name: "***" if name in _CREDENTIALS else text for name, text in self.ext_fields.items()}
        return (
            f"RemotingCommand(code={self.code}, opaque={self.opaque}, flag={self.flag}, "
            f"remark={self.remark!r}, ext_fields={fields}, body={self.body!r:.200}, "
            f"serialize_type={self.serialize_type.name})"
        )

    @property
    def is_response(self) -> bool:
        """Whether this is an answer; then ``opaque`` is the number of the request."""
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        """Whether the sender wants no answer, not even an error."""
        return bool(self.flag & ONEWAY_FLAG)

    def encode(self, opaque: int) -> bytes:
        """Return the whole frame of this request, length prefix included."""
        return encode_frame(replace(self, opaque=opaque))

    def command(self) -> RemotingCommand:
        """Return this request itself; see ``Outgoing``."""
        return self

    def response(
        self,
        code: int,
        *,
        remark: str | None = None,
        ext_fields: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> RemotingCommand:
        """Return an answer to this request, with its opaque and its header form."""
        return RemotingCommand(
            code=code,
            opaque=self.opaque,
            flag=RESPONSE_FLAG,
            remark=remark,
            ext_fields={} if ext_fields is None else ext_fields,
            body=body,
            serialize_type=self.serialize_type,
        )


def encode_frame(command: RemotingCommand, *, max_frame_length: int = MAX_FRAME_LENGTH) -> bytes:
    """Encode one frame, with its 4-byte length prefix.

    Raises:
        LocalProtocolError: If a number does not fit its field, a string is not Unicode, the header form
            cannot carry the code, or the frame is longer than a server accepts.
    """
    try:
        header = _ENCODERS[command.serialize_type](command)
    except UnicodeEncodeError as exc:
        raise LocalProtocolError(
            f"The header of the command with code {command.code} contains half of a surrogate pair, which "
            f"UTF-8 cannot carry, in {_around(exc)!r}. Correct that string."
        ) from exc
    length = 4 + len(header) + len(command.body)
    if len(header) > _MAX_HEADER_LENGTH:
        raise LocalProtocolError(
            f"The header of a frame of code {command.code} would have {len(header)} bytes; at most "
            f"{_MAX_HEADER_LENGTH} are accepted. Send less in one request."
        )
    if length + 4 > max_frame_length:
        raise LocalProtocolError(
            f"A frame of code {command.code} would have {length + 4} bytes (header {len(header)}); "
            f"at most {max_frame_length} are accepted. Send less in one request."
        )
    mark = command.serialize_type << 24 | len(header)
    return b"".join((struct.pack(">II", length, mark), header, command.body))


def _around(error: UnicodeEncodeError) -> str:
    return error.object[max(0, error.start - _SHOWN_AROUND) : error.start + _SHOWN_AROUND]


def decode_frame(frame: bytes | memoryview) -> RemotingCommand:
    """Decode one frame, without its 4-byte length prefix; the body is copied once.

    Raises:
        RemoteProtocolError: If the frame is malformed.
    """
    view = memoryview(frame)
    if len(view) < 4:
        raise RemoteProtocolError(f"A frame of {len(view)} bytes has no room for its header length.")
    mark = int.from_bytes(view[:4], "big")
    header_end = 4 + (mark & _MAX_HEADER_LENGTH)
    if header_end > len(view):
        raise RemoteProtocolError(
            f"The header length {header_end - 4} exceeds the frame, which has {len(view)} bytes."
        )
    return decode_parts(mark, bytes(view[4:header_end]), bytes(view[header_end:]))


def decode_parts(mark: int, header: bytes, body: bytes) -> RemotingCommand:
    """Decode a frame that was already cut into ``mark``, header and body.

    ``mark`` is the frame's second word: the header's form and length.

    Raises:
        RemoteProtocolError: If the header is malformed.
    """
    serialize_type = mark >> 24
    if serialize_type == SerializeType.JSON:
        return _decode_json(header, body)
    if serialize_type == SerializeType.ROCKETMQ:
        return _decode_binary(header, body)
    raise RemoteProtocolError(f"Serialize type {serialize_type} is neither 0 (JSON) nor 1 (ROCKETMQ).")


# --- JSON header --------------------------------------------------------------------------------------------


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Fractions stay text: no header field is a fraction, and an ext field keeps its spelling.
_from_json: Final[Callable[[str], Any]] = json.JSONDecoder(
    parse_float=str, parse_constant=_refuse_constant, strict=False
).decode
_LANGUAGE_NAMES: Final = {int(language): language.name for language in LanguageCode}
_LANGUAGES: Final = {language.name: int(language) for language in LanguageCode}


def _encode_json(command: RemotingCommand) -> bytes:
    """Encode the header as fastjson does: keys in alphabetical order; fields without a value left out."""
    fields: dict[str, object] = {"code": _int32(command, "code", command.code)}
    if command.ext_fields:
        fields["extFields"] = dict(_checked_ext_fields(command))
    fields["flag"] = _int32(command, "flag", command.flag)
    fields["language"] = _LANGUAGE_NAMES.get(command.language, LanguageCode.OTHER.name)
    fields["opaque"] = _int32(command, "opaque", command.opaque)
    if command.remark is not None:
        fields["remark"] = command.remark
    fields["serializeTypeCurrentRPC"] = SerializeType.JSON.name
    fields["version"] = _int32(command, "version", command.version)
    return _to_json(fields).encode()


def _decode_json(header: bytes, body: bytes) -> RemotingCommand:
    """Decode a JSON header; as in fastjson, unknown keys are ignored, and the last of equal keys counts."""
    check_json_size(header)
    try:
        fields = _from_json(header.decode())
    except (ValueError, RecursionError) as exc:
        raise RemoteProtocolError(
            f"The frame's header is not JSON: {exc}; it begins {header[:80]!r}."
        ) from exc
    if type(fields) is not dict:
        raise RemoteProtocolError(f"The frame's header is not a JSON object; it begins {header[:80]!r}.")
    remark = fields.get("remark")
    if remark is not None and type(remark) is not str:
        raise RemoteProtocolError(f"Header field 'remark' is not a string: {short_repr(remark)}.")
    return RemotingCommand(
        code=_integer(fields, "code"),
        opaque=_integer(fields, "opaque"),
        flag=_integer(fields, "flag", 0),
        language=_language(fields.get("language", LanguageCode.JAVA.name)),
        version=_integer(fields, "version", 0),
        remark=remark,
        ext_fields=_json_ext_fields(fields.get("extFields")),
        body=body,
        serialize_type=SerializeType.JSON,
    )


def _integer(fields: dict[str, Any], name: str, default: int | None = None) -> int:
    value = fields.get(name, default)
    if type(value) is not int or not -_INT32_END <= value < _INT32_END:
        raise RemoteProtocolError(f"Header field {name!r} is not a 32-bit integer: {short_repr(value)}.")
    return value


def _language(value: object) -> int:
    """Return the language's number; an unknown one is OTHER, because it never changes a command's meaning."""
    if type(value) is str:
        return _LANGUAGES.get(value, LanguageCode.OTHER)
    return int(LanguageCode.OTHER)


def _json_ext_fields(value: object) -> dict[str, str]:
    """Return the ext fields as strings; as in fastjson, numbers and booleans are converted, nulls dropped."""
    if value is None:
        return {}
    if type(value) is not dict:
        raise RemoteProtocolError(f"Header field 'extFields' is not an object: {short_repr(value)}.")
    if {str}.issuperset(map(type, value.values())):
        return value
    return {name: _json_text(name, item) for name, item in value.items() if item is not None}


def _json_text(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    raise RemoteProtocolError(f"Ext field {name!r} is not a string, number or boolean: {short_repr(value)}.")


# --- binary header ------------------------------------------------------------------------------------------


def _encode_binary(command: RemotingCommand) -> bytes:
    """Encode a binary header.

    Layout: ``i16 code | u8 language | i16 version | i32 opaque | i32 flag | i32+remark | i32+ext fields``.
    """
    if command.code > _MAX_BINARY_CODE:
        raise LocalProtocolError(
            f"Code {command.code} does not fit into the 16 bits that the binary header has for it, like the "
            "codes of POP. Send this request with the JSON header."
        )
    try:
        fixed = _BINARY_FIXED.pack(
            command.code, command.language, command.version, command.opaque, command.flag
        )
    except struct.error as exc:
        raise LocalProtocolError(
            f"A number of the command with code {command.code} does not fit the binary header: {exc}."
        ) from exc
    remark = (command.remark or "").encode()
    fields = b"".join(_binary_ext_fields(command))
    return b"".join((fixed, _length32(remark), remark, _length32(fields), fields))


def _binary_ext_fields(command: RemotingCommand) -> Iterator[bytes]:
    for name, value in _checked_ext_fields(command):
        key, text = name.encode(), value.encode()
        if not 0 < len(key) <= _MAX_BINARY_CODE:
            raise LocalProtocolError(
                f"Ext field name {short_repr(name)} must have 1 to 32767 bytes of UTF-8."
            )
        yield from (len(key).to_bytes(2, "big"), key, _length32(text), text)


def _length32(text: bytes) -> bytes:
    return len(text).to_bytes(4, "big")


def _decode_binary(header: bytes, body: bytes) -> RemotingCommand:
    """Decode a binary header; an empty remark or value means null, and the last of equal names counts."""
    if len(header) < _BINARY_FIXED.size:
        raise RemoteProtocolError(f"A binary header of {len(header)} bytes is cut off.")
    code, language, version, opaque, flag = _BINARY_FIXED.unpack_from(header)
    most = _most_fields(header)
    remark, at = _read_text(header, _BINARY_FIXED.size, 4, len(header))
    fields_length, at = _read_length(header, at, 4, len(header))
    if at + fields_length != len(header):
        raise RemoteProtocolError(
            f"A binary header has {len(header)} bytes, but its fields end at {at + fields_length}."
        )
    return RemotingCommand(
        code=code,
        opaque=opaque,
        flag=flag,
        language=language,
        version=version,
        remark=remark or None,
        ext_fields=_read_ext_fields(header, at, most),
        body=body,
        serialize_type=SerializeType.ROCKETMQ,
    )


def _most_fields(header: bytes) -> int:
    """Return how many ext fields of this header fit into ``_MAX_HEADER_MEMORY``.

    Without this bound, a million fields would take hundreds of megabytes.
    """
    width = 1 if header.isascii() else _WIDEST_CHARACTER
    left = _MAX_HEADER_MEMORY - len(header) * (1 + width)
    if left < 0:
        raise RemoteProtocolError(
            f"A binary header of {len(header)} bytes takes more than {_MAX_HEADER_MEMORY} bytes of memory."
        )
    return left // _BYTES_PER_FIELD


def _read_ext_fields(header: bytes, at: int, most: int) -> dict[str, str]:
    fields: dict[str, str] = {}
    end = len(header)
    while at < end:
        name, at = _read_text(header, at, 2, end)
        value, at = _read_text(header, at, 4, end)
        if not name:
            raise RemoteProtocolError(f"A binary header holds an ext field without a name before byte {at}.")
        if len(fields) >= most:
            raise RemoteProtocolError(
                f"A binary header of {end} bytes with more than {most} fields was refused: it would take "
                f"more than {_MAX_HEADER_MEMORY >> 20} MiB of memory. RocketMQ sends no such headers."
            )
        if value:
            fields[name] = value
        else:
            fields.pop(name, None)
    return fields


def _read_text(header: bytes, at: int, width: int, end: int) -> tuple[str, int]:
    length, at = _read_length(header, at, width, end)
    if at + length > end:
        raise RemoteProtocolError(f"A string of {length} bytes at byte {at} exceeds the binary header.")
    try:
        return header[at : at + length].decode(), at + length
    except UnicodeDecodeError as exc:
        raise RemoteProtocolError(f"A string at byte {at} of a binary header is not UTF-8: {exc}.") from exc


def _read_length(header: bytes, at: int, width: int, end: int) -> tuple[int, int]:
    if at + width > end:
        raise RemoteProtocolError(f"A binary header ends inside a length at byte {at}.")
    # Java reads a signed length. A negative one is a large one here, and is refused because it exceeds the
    # header.
    return int.from_bytes(header[at : at + width], "big"), at + width


# --- both ---------------------------------------------------------------------------------------------------


def _int32(command: RemotingCommand, name: str, value: int) -> int:
    # Comparisons, because "in range(...)" with an IntEnum would count up from the range's start.
    if not -_INT32_END <= value < _INT32_END:
        raise LocalProtocolError(
            f"{name} {value} of a command with code {command.code} exceeds 32 bits; this is a bug of "
            "pyspark-rocketmq. Please report it."
        )
    return value


def _checked_ext_fields(command: RemotingCommand) -> Iterator[tuple[str, str]]:
    for name, value in command.ext_fields.items():
        if not isinstance(value, str):
            raise LocalProtocolError(
                f"Ext field {name!r} of a command with code {command.code} is not a string: "
                f"{short_repr(value)}."
            )
        yield name, value


_ENCODERS: Final[Mapping[SerializeType, Callable[[RemotingCommand], bytes]]] = {
    SerializeType.JSON: _encode_json,
    SerializeType.ROCKETMQ: _encode_binary,
}
