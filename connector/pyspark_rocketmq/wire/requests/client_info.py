"""Bodies of clients' reports to administrators, the answers to 221, 307 and 309; declared as in ``bodies``.

Source: RocketMQ 5.3.3 ``remoting/protocol/body/ConsumerRunningInfo``, ``ProcessQueueInfo``,
``ConsumeStatus``, ``ConsumeMessageDirectlyResult``, ``CMResult``, ``GetConsumerStatusBody``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.fastjson import (
    JsonObject,
    as_object,
    dumps_java,
    from_json,
    list_of,
    member,
    one_of,
    table_of,
)
from pyspark_rocketmq.wire.requests.bodies import queue_from_json
from pyspark_rocketmq.wire.subscription import SubscriptionData

PROP_NAMESERVER_ADDR: Final = "PROP_NAMESERVER_ADDR"
PROP_THREADPOOL_CORE_SIZE: Final = "PROP_THREADPOOL_CORE_SIZE"
PROP_CONSUME_ORDERLY: Final = "PROP_CONSUMEORDERLY"
PROP_CONSUME_TYPE: Final = "PROP_CONSUME_TYPE"
PROP_CLIENT_VERSION: Final = "PROP_CLIENT_VERSION"
PROP_CONSUMER_START_TIMESTAMP: Final = "PROP_CONSUMER_START_TIMESTAMP"
"""Name of a property of a running consumer that mqadmin reads, like those above (``ConsumerRunningInfo``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessQueueInfo:
    """A consumer's state of one queue; times are milliseconds since the epoch, 0 for never."""

    commit_offset: int = member("commitOffset", JsonObject.integer, 0)
    """The consumer's next offset to consume; it may be ahead of the stored one."""
    cached_msg_min_offset: int = member("cachedMsgMinOffset", JsonObject.integer, 0)
    cached_msg_max_offset: int = member("cachedMsgMaxOffset", JsonObject.integer, 0)
    cached_msg_count: int = member("cachedMsgCount", JsonObject.integer, 0)
    cached_msg_size_in_mib: int = member("cachedMsgSizeInMiB", JsonObject.integer, 0)
    transaction_msg_min_offset: int = member("transactionMsgMinOffset", JsonObject.integer, 0)
    transaction_msg_max_offset: int = member("transactionMsgMaxOffset", JsonObject.integer, 0)
    transaction_msg_count: int = member("transactionMsgCount", JsonObject.integer, 0)
    """Number of messages that an orderly listener got and has not acknowledged.

    The other ``transaction`` fields are the offsets of the first and the last of these messages.
    """
    locked: bool = member("locked", JsonObject.flag, False)
    try_unlock_times: int = member("tryUnlockTimes", JsonObject.integer, 0)
    last_lock_timestamp: int = member("lastLockTimestamp", JsonObject.integer, 0)
    dropped: bool = member("droped", JsonObject.flag, False)
    """Whether the queue was given up; Java misspells the field's name."""
    last_pull_timestamp: int = member("lastPullTimestamp", JsonObject.integer, 0)
    last_consume_timestamp: int = member("lastConsumeTimestamp", JsonObject.integer, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeStatus:
    """How fast a consumer handles one topic; times in milliseconds, rates per second."""

    pull_rt: float = member("pullRT", JsonObject.number, 0.0)
    pull_tps: float = member("pullTPS", JsonObject.number, 0.0)
    consume_rt: float = member("consumeRT", JsonObject.number, 0.0)
    consume_ok_tps: float = member("consumeOKTPS", JsonObject.number, 0.0)
    consume_failed_tps: float = member("consumeFailedTPS", JsonObject.number, 0.0)
    consume_failed_msgs: int = member("consumeFailedMsgs", JsonObject.integer, 0)
    """Failed messages of the last hour."""


def _queue_infos(owner: JsonObject, name: str, _: Any) -> dict[MessageQueue, ProcessQueueInfo]:
    where = f"{owner.where}.{name}"
    return {
        queue_from_json(key, where): from_json(ProcessQueueInfo, as_object(value, where))
        for key, value in owner.pairs(name)
    }


def _text_map(owner: JsonObject, name: str, _: Any) -> dict[str, str]:
    return owner.text_map(name)


def _nothing(_owner: JsonObject, _name: str, _: Any) -> dict[str, object]:
    return {}


def _sorted(table: Mapping[Any, object]) -> dict[Any, object]:
    return dict(sorted(table.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRunningInfo:
    """Body of the answer to 307 GET_CONSUMER_RUNNING_INFO."""

    properties: Mapping[str, str] = member("properties", _text_map, dict)
    """Configuration as text, including the ``PROP_…`` names."""
    subscriptions: tuple[SubscriptionData, ...] = member("subscriptionSet", list_of(SubscriptionData), ())
    queues: Mapping[MessageQueue, ProcessQueueInfo] = member("mqTable", _queue_infos, dict, write=_sorted)
    statuses: Mapping[str, ConsumeStatus] = member(
        "statusTable", table_of(ConsumeStatus), dict, write=_sorted
    )
    """Statistics by topic."""
    user_info: Mapping[str, str] = member("userConsumerInfo", _text_map, dict, write=_sorted)
    jstack: str | None = member("jstack", lambda owner, name, _: owner.optional_text(name), None)
    """Stacks of the client's threads, if asked for."""
    pop_queues: Mapping[str, object] = member("mqPopTable", _nothing, dict)
    """Always empty: this client pops no messages."""


class ConsumeResult(StrEnum):
    """A listener's result for a message that an administrator sent to it (``CMResult``)."""

    CR_SUCCESS = "CR_SUCCESS"
    CR_LATER = "CR_LATER"
    CR_ROLLBACK = "CR_ROLLBACK"
    CR_COMMIT = "CR_COMMIT"
    CR_THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    CR_RETURN_NULL = "CR_RETURN_NULL"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeMessageDirectlyResult:
    """Body of the answer to 309 CONSUME_MESSAGE_DIRECTLY."""

    consume_result: ConsumeResult = member("consumeResult", one_of(ConsumeResult.__members__))
    order: bool = member("order", JsonObject.flag)
    """Whether the listener is an orderly one."""
    auto_commit: bool = member("autoCommit", JsonObject.flag, True)
    remark: str | None = member("remark", lambda owner, name, _: owner.optional_text(name), None)
    """The exception's text after CR_THROW_EXCEPTION."""
    spent_time_mills: int = member("spentTimeMills", JsonObject.integer, 0)


def encode_consumer_status(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Write a client's answer to 221 GET_CONSUMER_STATUS_FROM_CLIENT, the next offsets to consume."""
    return dumps_java({"consumerTable": {}, "messageQueueTable": offsets})
