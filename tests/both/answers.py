"""What two servers must have in common when they answer the same request:
the answer without its circumstances.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from pyspark_rocketmq.model import MessageExt
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.message_ids import decode_offset_message_id
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.requests.bodies import decode_consumer_list, decode_lock_response
from pyspark_rocketmq.wire.requests.topics import decode_topic_stats

_PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
_ADDRESS = re.compile(r"127\.0\.0\.1:\d+")
_ANY_VALUE = frozenset({"msgId", "transactionId", "batchUniqId", "recallHandle", "timestamp"})
"""Ext fields that name a commit log offset, a moment or a random id: compared only by presence."""


def essence(request: RemotingCommand, answer: RemotingCommand) -> dict[str, Any]:
    """Code, ext fields and decoded body of ``answer``, without times, addresses and commit log offsets."""
    fields = {name: ... if name in _ANY_VALUE else value for name, value in answer.ext_fields.items()}
    facts: dict[str, Any] = {"code": ResponseCode(answer.code).name, "fields": fields}
    if request.code in _PULLS and answer.code != ResponseCode.SYSTEM_ERROR:
        # The GetMessageStatus or a reason; only after an exception it is Java's own.
        facts["remark"] = _ADDRESS.sub("address", answer.remark or "")
    if answer.body:
        facts["body"] = _BODIES[request.code](answer.body)
    return facts


def _messages(body: bytes) -> list[Mapping[str, Any]]:
    return [_message(message) for message in decode_messages(body, "broker-a")]


def _message(message: MessageExt) -> Mapping[str, Any]:
    facts = message._asdict()
    for name in ("commit_log_offset", "store_timestamp", "store_host", "born_host"):
        del facts[name]
    if _is_offset_id(message.msg_id):
        del facts["msg_id"]
    if "UNIQ_KEY" in message.properties and message.properties["UNIQ_KEY"] == message.msg_id:
        # The broker makes one up for a producer that did not; then only its being there can be compared.
        facts["properties"] = {**message.properties, "UNIQ_KEY": ...}
        facts["msg_id"] = ...
    return facts


def _is_offset_id(message_id: str) -> bool:
    try:
        host, _ = decode_offset_message_id(message_id)
    except Exception:  # noqa: BLE001 - whatever it is, it is no offset id
        return False
    return host.startswith("127.0.0.1:")


def _topic_stats(body: bytes) -> Mapping[Any, Any]:
    return {
        queue: (bounds.min_offset, bounds.max_offset, bounds.last_update_timestamp > 0)
        for queue, bounds in decode_topic_stats(body).items()
    }


_BODIES: Mapping[int, Callable[[bytes], Any]] = {
    RequestCode.PULL_MESSAGE: _messages,
    RequestCode.LITE_PULL_MESSAGE: _messages,
    RequestCode.LOCK_BATCH_MQ: decode_lock_response,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: lambda body: sorted(decode_consumer_list(body)),
    RequestCode.GET_TOPIC_STATS_INFO: _topic_stats,
}
