"""Frames of what is sent: a peer's odd texts come back in remarks and fields, and must not stop the server."""

from __future__ import annotations

from dataclasses import replace

from pyspark_rocketmq.errors import LocalProtocolError
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand, encode_frame


def frame_of(command: RemotingCommand) -> bytes:
    """Encode; half a surrogate pair becomes ``?``, as ``String.getBytes`` has it, and what cannot be sent an error."""
    try:
        return encode_frame(command)
    except LocalProtocolError:
        pass
    readable = replace(
        command,
        remark=None if command.remark is None else _java_text(command.remark),
        ext_fields={_java_text(name): _java_text(text) for name, text in command.ext_fields.items()},
    )
    try:
        return encode_frame(readable)
    except LocalProtocolError as error:
        failure = replace(command, code=ResponseCode.SYSTEM_ERROR, remark=str(error), ext_fields={}, body=b"")
        return encode_frame(failure)


def _java_text(text: str) -> str:
    return text.encode(errors="replace").decode()
