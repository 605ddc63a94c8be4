"""What clients report of themselves to administrators: the answers to 221, 307 and 309.

Written as fastjson writes them, so that Java's tools read them; see ``bodies``.

Source: RocketMQ 5.3.3 ``remoting/protocol/body/ConsumerRunningInfo``, ``ProcessQueueInfo``,
``ConsumeStatus``, ``ConsumeMessageDirectlyResult``, ``CMResult``, ``GetConsumerStatusBody``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.fastjson import JsonObject, ObjectMap, as_object, dumps_java, read_object
from pyspark_rocketmq.wire.requests.bodies import (
    offsets_to_json,
    queue_from_json,
    queue_to_json,
    subscription_from_json,
    subscription_to_json,
)
from pyspark_rocketmq.wire.subscription import SubscriptionData

PROP_NAMESERVER_ADDR: Final = "PROP_NAMESERVER_ADDR"
PROP_THREADPOOL_CORE_SIZE: Final = "PROP_THREADPOOL_CORE_SIZE"
PROP_CONSUME_ORDERLY: Final = "PROP_CONSUMEORDERLY"
PROP_CONSUME_TYPE: Final = "PROP_CONSUME_TYPE"
PROP_CLIENT_VERSION: Final = "PROP_CLIENT_VERSION"
PROP_CONSUMER_START_TIMESTAMP: Final = "PROP_CONSUMER_START_TIMESTAMP"
"""Properties of a running consumer that mqadmin reads (``ConsumerRunningInfo``)."""


# --- running info -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessQueueInfo:
    """What a consumer holds of one queue; times are milliseconds since the epoch, 0 for never."""

    commit_offset: int = 0
    """Next offset to consume as the consumer knows it; may be ahead of what is stored."""
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = 0
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    """The ``transaction`` fields are of messages handed to an orderly listener and not acknowledged."""
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    dropped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeStatus:
    """How fast a consumer is with one topic; times in milliseconds, rates per second."""

    pull_rt: float = 0.0
    pull_tps: float = 0.0
    consume_rt: float = 0.0
    consume_ok_tps: float = 0.0
    consume_failed_tps: float = 0.0
    consume_failed_msgs: int = 0
    """Of the last hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRunningInfo:
    """Body of the answer to 307 GET_CONSUMER_RUNNING_INFO."""

    properties: Mapping[str, str] = field(default_factory=dict)
    """Configuration as text, the ``PROP_…`` names among it."""
    subscriptions: tuple[SubscriptionData, ...] = ()
    queues: Mapping[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    statuses: Mapping[str, ConsumeStatus] = field(default_factory=dict)
    """By topic."""
    user_info: Mapping[str, str] = field(default_factory=dict)
    jstack: str | None = None
    """Stacks of the client's threads, if asked for."""


_QUEUE_NUMBERS: Final = {
    "cached_msg_count": "cachedMsgCount",
    "cached_msg_max_offset": "cachedMsgMaxOffset",
    "cached_msg_min_offset": "cachedMsgMinOffset",
    "cached_msg_size_in_mib": "cachedMsgSizeInMiB",
    "commit_offset": "commitOffset",
    "last_consume_timestamp": "lastConsumeTimestamp",
    "last_lock_timestamp": "lastLockTimestamp",
    "last_pull_timestamp": "lastPullTimestamp",
    "transaction_msg_count": "transactionMsgCount",
    "transaction_msg_max_offset": "transactionMsgMaxOffset",
    "transaction_msg_min_offset": "transactionMsgMinOffset",
    "try_unlock_times": "tryUnlockTimes",
}
_QUEUE_FLAGS: Final = {"dropped": "droped", "locked": "locked"}
"""Misspelt so in Java."""
_STATUS_RATES: Final = {
    "consume_failed_tps": "consumeFailedTPS",
    "consume_ok_tps": "consumeOKTPS",
    "consume_rt": "consumeRT",
    "pull_rt": "pullRT",
    "pull_tps": "pullTPS",
}


def encode_running_info(info: ConsumerRunningInfo) -> bytes:
    """Write the body of the answer to 307 GET_CONSUMER_RUNNING_INFO."""
    fields: dict[str, object] = {} if info.jstack is None else {"jstack": info.jstack}
    fields |= {
        "mqPopTable": {},
        "mqTable": ObjectMap(
            (queue_to_json(queue), _queue_info_to_json(info.queues[queue])) for queue in sorted(info.queues)
        ),
        "properties": dict(info.properties),
        "statusTable": {topic: _status_to_json(info.statuses[topic]) for topic in sorted(info.statuses)},
        "subscriptionSet": [subscription_to_json(subscription) for subscription in info.subscriptions],
        "userConsumerInfo": dict(sorted(info.user_info.items())),
    }
    return dumps_java(fields)


def decode_running_info(body: bytes) -> ConsumerRunningInfo:
    """Read the body of the answer to 307 GET_CONSUMER_RUNNING_INFO.

    Raises:
        RemoteProtocolError: If the body is something else.
    """
    info = read_object(body, "ConsumerRunningInfo")
    return ConsumerRunningInfo(
        properties=info.text_map("properties"),
        subscriptions=tuple(map(subscription_from_json, info.objects("subscriptionSet"))),
        queues={
            queue_from_json(key, f"{info.where}.mqTable"): _queue_info_from_json(
                as_object(value, f"{info.where}.mqTable")
            )
            for key, value in info.pairs("mqTable")
        },
        statuses={
            topic: _status_from_json(as_object(value, f"{info.where}.statusTable"))
            for topic, value in info.text_pairs("statusTable")
        },
        user_info=info.text_map("userConsumerInfo"),
        jstack=info.optional_text("jstack"),
    )


def _queue_info_to_json(info: ProcessQueueInfo) -> dict[str, object]:
    names = _QUEUE_NUMBERS | _QUEUE_FLAGS
    return {
        java_name: getattr(info, name) for name, java_name in sorted(names.items(), key=lambda item: item[1])
    }


def _queue_info_from_json(info: JsonObject) -> ProcessQueueInfo:
    numbers = {name: info.integer(java_name, 0) for name, java_name in _QUEUE_NUMBERS.items()}
    flags = {name: info.flag(java_name, default=False) for name, java_name in _QUEUE_FLAGS.items()}
    return ProcessQueueInfo(**numbers, **flags)  # type: ignore[arg-type]


def _status_to_json(status: ConsumeStatus) -> dict[str, object]:
    rates = {java_name: float(getattr(status, name)) for name, java_name in _STATUS_RATES.items()}
    return {"consumeFailedMsgs": status.consume_failed_msgs, **rates}


def _status_from_json(status: JsonObject) -> ConsumeStatus:
    return ConsumeStatus(
        consume_failed_msgs=status.integer("consumeFailedMsgs", 0),
        **{name: status.number(java_name, 0.0) for name, java_name in _STATUS_RATES.items()},
    )


# --- consuming a message directly ---------------------------------------------------------------------------


class ConsumeResult(StrEnum):
    """What a listener made of a message it was handed by an administrator (``CMResult``)."""

    CR_SUCCESS = "CR_SUCCESS"
    CR_LATER = "CR_LATER"
    CR_ROLLBACK = "CR_ROLLBACK"
    CR_COMMIT = "CR_COMMIT"
    CR_THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    CR_RETURN_NULL = "CR_RETURN_NULL"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeMessageDirectlyResult:
    """Body of the answer to 309 CONSUME_MESSAGE_DIRECTLY."""

    consume_result: ConsumeResult
    order: bool
    """Whether the listener is an orderly one."""
    auto_commit: bool = True
    remark: str | None = None
    """The exception's text after CR_THROW_EXCEPTION."""
    spent_time_mills: int = 0


def encode_directly_result(result: ConsumeMessageDirectlyResult) -> bytes:
    """Write the body of the answer to 309 CONSUME_MESSAGE_DIRECTLY."""
    fields: dict[str, object] = {
        "autoCommit": result.auto_commit,
        "consumeResult": result.consume_result.value,
        "order": result.order,
    }
    if result.remark is not None:
        fields["remark"] = result.remark
    return dumps_java(fields | {"spentTimeMills": result.spent_time_mills})


# --- consumer status ----------------------------------------------------------------------------------------


def encode_consumer_status(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Write the body of a client's answer to 221 GET_CONSUMER_STATUS_FROM_CLIENT: next offsets to consume."""
    return dumps_java({"consumerTable": {}, "messageQueueTable": offsets_to_json(offsets)})
