"""The pairs of tests/golden/frames.jsonl as commands,
and what two answers to one request must have in common.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.wire.command import RemotingCommand, SerializeType, decode_frame, decode_parts
from pyspark_rocketmq.wire.fastjson import ObjectMap, loads

PAIRS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "golden" / "frames.jsonl").read_text().splitlines()[1:]
]
_OF_THE_RUN = frozenset(
    {"msgId", "transactionId", "timestamp", "version", "recallHandle", "indexLastUpdatePhyoffset"}
    | {"indexLastUpdateTimestamp"}
)
"""Ext fields that are ids or moments."""


def recorded(side: Mapping[str, Any]) -> RemotingCommand:
    """One side of a pair; a body that was recorded in part is filled up with zeros."""
    body = bytes.fromhex(side.get("body_hex") or "")
    body += bytes(side["body_len"] - len(body))
    if side["serialize"] == "JSON":
        return decode_parts(SerializeType.JSON << 24, side["header"].encode("utf-8", "replace"), body)
    header = bytes.fromhex(side["header_hex"])
    mark = (SerializeType.ROCKETMQ << 24 | len(header)).to_bytes(4, "big")
    return decode_frame(mark + header + body)


def assert_same_answer(answer: RemotingCommand, real: RemotingCommand) -> None:
    """Response code, ext field names and values, remark and body shape."""
    assert (answer.code, answer.opaque, answer.flag) == (real.code, real.opaque, real.flag)
    assert answer.serialize_type is real.serialize_type
    assert answer.ext_fields.keys() == real.ext_fields.keys()
    assert _stable(answer.ext_fields) == _stable(real.ext_fields)
    assert _remark(answer) == _remark(real)
    if answer.body != real.body:
        assert _shape(answer.body) == _shape(real.body)


def _stable(ext_fields: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in ext_fields.items() if name not in _OF_THE_RUN}


def _remark(command: RemotingCommand) -> str:
    """Ports masked; Java's own exceptions and an empty remark say nothing to compare."""
    remark = command.remark or ""
    is_exception = command.code == 1 and not remark.startswith(("no consumer", "look", "can not", "The Cons"))
    if is_exception or command.code == 23:
        return "an exception"
    return re.sub(r"( Producer: .*|:\d{4,5})", "", remark)


def _shape(body: bytes) -> object:
    """JSON bodies: all key names and list lengths; stored messages: that there are some."""
    if not body:
        return None
    if body[:1] != b"{":
        return "messages"
    try:
        return _outline(loads(body))
    except RemoteProtocolError:
        return "cut off"


def _outline(value: object) -> object:
    if isinstance(value, dict):
        return {name: _outline(item) for name, item in sorted(value.items())}
    if isinstance(value, ObjectMap):
        return sorted((str(_outline(key)), str(_outline(item))) for key, item in value)
    if isinstance(value, list):
        return [_outline(item) for item in value]
    return type(value).__name__
