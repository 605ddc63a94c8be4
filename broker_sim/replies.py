"""Answers as a RocketMQ 5.3.3 server writes them, and the one exception that means an error answer."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_rocketmq.wire.codes import LanguageCode, ResponseCode
from pyspark_rocketmq.wire.command import RESPONSE_FLAG, RemotingCommand, SerializeType

SERVER_VERSION = 479
"""Ordinal of V5_3_3 in ``MQVersion``."""
SEE_FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."

_JAVA = int(LanguageCode.JAVA)
_NO_FIELDS: Mapping[str, str] = {}


class Refused(Exception):
    """A request is answered with an error code; raised by handlers, turned into the answer by their caller."""

    def __init__(self, code: ResponseCode, remark: str, ext_fields: Mapping[str, str] = _NO_FIELDS) -> None:
        super().__init__(code, remark)
        self.code = code
        self.remark = remark
        self.ext_fields = ext_fields


def reply(
    request: RemotingCommand,
    code: int = ResponseCode.SUCCESS,
    remark: str | None = None,
    *,
    ext_fields: Mapping[str, str] = _NO_FIELDS,
    body: bytes = b"",
) -> RemotingCommand:
    """Answer ``request`` in its own header form."""
    return RemotingCommand(
        code=int(code),
        opaque=request.opaque,
        flag=RESPONSE_FLAG,
        language=_JAVA,
        version=SERVER_VERSION,
        remark=remark,
        ext_fields=ext_fields,
        body=body,
        serialize_type=request.serialize_type,
    )


def not_supported(request: RemotingCommand) -> RemotingCommand:
    """The answer to a code no processor is registered for."""
    return reply(
        request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported"
    )


def in_json(command: RemotingCommand) -> RemotingCommand:
    """The same command with the JSON header."""
    if command.serialize_type is SerializeType.JSON:
        return command
    return RemotingCommand(
        code=command.code,
        opaque=command.opaque,
        flag=command.flag,
        language=command.language,
        version=command.version,
        remark=command.remark,
        ext_fields=command.ext_fields,
        body=command.body,
    )
