"""The ext fields of requests and responses, one frozen dataclass per Java header class.

Headers of administrators' requests are in :mod:`~pyspark_rocketmq.wire.requests.admin`, those that only
brokers read in the simulator (``broker_sim/request_headers.py``). A field without a default is required, and
``None`` is not sent. To add a header, add a class; only tests have a table of them.

Source: RocketMQ 5.3.3 ``remoting/protocol/header/*``, ``RpcRequestHeader``, ``TopicRequestHeader``.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_rocketmq.wire.requests.header_fields import (
    RequestFields,
    RpcFields,
    TopicRequestFields,
    bool_field,
    int_field,
    long_field,
    text_field,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRouteInfoRequestHeader(TopicRequestFields):
    """105 GET_ROUTEINFO_BY_TOPIC; the answer's body is a route."""

    topic: str = text_field("topic")
    accept_standard_json_only: bool | None = bool_field("acceptStandardJsonOnly", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PullMessageRequestHeader(TopicRequestFields):
    """11 PULL_MESSAGE and 361 LITE_PULL_MESSAGE."""

    consumer_group: str = text_field("consumerGroup")
    topic: str = text_field("topic")
    queue_id: int = int_field("queueId")
    queue_offset: int = long_field("queueOffset")
    """First queue offset wanted."""
    max_msg_nums: int = int_field("maxMsgNums")
    """Maximum number of messages wanted; the broker's own limits (32, or 8 from disk) also apply. 0 counts as
    1."""
    sys_flag: int = int_field("sysFlag")
    """Bits of ``PullSysFlag``."""
    commit_offset: int = long_field("commitOffset")
    """Next offset to consume, stored for the group if ``COMMIT_OFFSET`` is set."""
    suspend_timeout_millis: int = long_field("suspendTimeoutMillis")
    """How long the broker may hold the request if ``SUSPEND`` is set; it ends holds only every 5 s."""
    subscription: str | None = text_field("subscription", None)
    """Tags joined by ``||``, or an SQL92 expression; used only if ``sys_flag`` has ``SUBSCRIPTION``."""
    sub_version: int = long_field("subVersion")
    expression_type: str | None = text_field("expressionType", None)
    """``TAG`` (also when absent) or ``SQL92``."""
    max_msg_bytes: int | None = int_field("maxMsgBytes", None)
    """Sent by 5.x clients, but not read by any broker up to 5.3.3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullMessageResponseHeader:
    """Answer to a pull with code 0, 19, 20 or 21; answers with other codes may lack required fields."""

    suggest_which_broker_id: int = long_field("suggestWhichBrokerId")
    next_begin_offset: int = long_field("nextBeginOffset")
    """Where to pull next: after all scanned messages, whether they matched or not."""
    min_offset: int = long_field("minOffset")
    max_offset: int = long_field("maxOffset")
    """End of the queue (exclusive)."""
    topic_sys_flag: int | None = int_field("topicSysFlag", None)
    group_sys_flag: int | None = int_field("groupSysFlag", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessageRequestHeaderV2(RpcFields):
    """310 SEND_MESSAGE_V2 and 320 SEND_BATCH_MESSAGE: the fields of 10 SEND_MESSAGE by one-letter names."""

    producer_group: str = text_field("a")
    topic: str = text_field("b")
    default_topic: str = text_field("c")
    """Template of a topic that does not exist yet, normally ``TBW102``."""
    default_topic_queue_nums: int = int_field("d")
    queue_id: int = int_field("e")
    """Queue to store the message in; negative: the broker picks one."""
    sys_flag: int = int_field("f")
    """Bits of ``MessageSysFlag``."""
    born_timestamp: int = long_field("g")
    """Milliseconds since the epoch."""
    flag: int = int_field("h")
    properties: str | None = text_field("i", None)
    reconsume_times: int | None = int_field("j", None)
    unit_mode: bool | None = bool_field("k", None)
    max_reconsume_times: int | None = int_field("l", None)
    batch: bool | None = bool_field("m", None)
    """True with code 320."""
    broker_name: str | None = text_field("n", None)
    lo: bool | None = bool_field("lo", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessageResponseHeader:
    """Answer to a send with code 0, 10, 11 or 12, all of which mean that the message is stored."""

    msg_id: str = text_field("msgId")
    """OFFSET message id; the ids of a batch are joined by commas."""
    queue_id: int = int_field("queueId")
    queue_offset: int = long_field("queueOffset")
    """Queue offset; for a batch, that of its first message."""
    transaction_id: str | None = text_field("transactionId", None)
    """The UNIQ_KEY of any send, transactional or not."""
    batch_uniq_id: str | None = text_field("batchUniqId", None)
    recall_handle: str | None = text_field("recallHandle", None)
    msg_region: str | None = text_field("MSG_REGION", None)
    """Region of the broker. Java's header class lacks it, but Java's producer fails if the answer has no ext
    fields at all."""
    trace_on: bool | None = bool_field("TRACE_ON", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumerOffsetRequestHeader(TopicRequestFields):
    """14 QUERY_CONSUMER_OFFSET."""

    consumer_group: str = text_field("consumerGroup")
    topic: str = text_field("topic")
    queue_id: int = int_field("queueId")
    set_zero_if_not_found: bool | None = bool_field("setZeroIfNotFound", None)
    """Whether the broker may answer 0 if no offset is stored, so that a new group begins at 0.

    None means yes. With False, a broker without a stored offset answers 22 (QUERY_NOT_FOUND).
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConsumerOffsetRequestHeader(TopicRequestFields):
    """15 UPDATE_CONSUMER_OFFSET; the broker accepts any ``commit_offset``, even a lower one."""

    consumer_group: str = text_field("consumerGroup")
    topic: str = text_field("topic")
    queue_id: int = int_field("queueId")
    commit_offset: int = long_field("commitOffset")
    """Next offset to consume."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOffsetRequestHeader(TopicRequestFields):
    """29 SEARCH_OFFSET_BY_TIMESTAMP."""

    topic: str = text_field("topic")
    queue_id: int = int_field("queueId")
    timestamp: int = long_field("timestamp")
    """STORE time, milliseconds since the epoch."""
    boundary_type: str | None = text_field("boundaryType", None)
    """``LOWER`` (also when absent): first message at or after; ``UPPER``: last at or before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRequestHeader(TopicRequestFields):
    """30 GET_MAX_OFFSET, 31 GET_MIN_OFFSET and 32 GET_EARLIEST_MSG_STORETIME."""

    topic: str = text_field("topic")
    queue_id: int = int_field("queueId")
    committed: bool | None = bool_field("committed", None)
    """Whether to count only messages that consumers can read already; None means yes. Only code 30
    (GET_MAX_OFFSET) uses this field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetResponseHeader:
    """Answer with one offset: to 14 QUERY_CONSUMER_OFFSET, 29 SEARCH_OFFSET_BY_TIMESTAMP, 30 and 31."""

    offset: int = long_field("offset")
    """A queue offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterClientRequestHeader(RequestFields):
    """35 UNREGISTER_CLIENT."""

    client_id: str = text_field("clientID")
    producer_group: str | None = text_field("producerGroup", None)
    consumer_group: str | None = text_field("consumerGroup", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfigRequestHeader(RequestFields):
    """352 GET_SUBSCRIPTIONGROUP_CONFIG; the answer's body is the group's configuration."""

    group: str = text_field("group")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequestHeader(RequestFields):
    """38 GET_CONSUMER_LIST_BY_GROUP and 203 GET_CONSUMER_CONNECTION_LIST; 40 NOTIFY_CONSUMER_IDS_CHANGED.

    The broker sends 40, oneway, to make members rebalance immediately.
    """

    consumer_group: str = text_field("consumerGroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSendMsgBackRequestHeader(RequestFields):
    """36 CONSUMER_SEND_MSG_BACK, to the broker that stores the message."""

    offset: int = long_field("offset")
    """COMMIT LOG offset of the message."""
    group: str = text_field("group")
    delay_level: int = int_field("delayLevel")
    """0: the broker decides; -1: straight to the dead-letter topic."""
    origin_msg_id: str | None = text_field("originMsgId", None)
    origin_topic: str | None = text_field("originTopic", None)
    unit_mode: bool | None = bool_field("unitMode", None)
    max_reconsume_times: int | None = int_field("maxReconsumeTimes", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionRequestHeader(RequestFields):
    """37 END_TRANSACTION, oneway, to the broker that has the half message."""

    producer_group: str = text_field("producerGroup")
    tran_state_table_offset: int = long_field("tranStateTableOffset")
    """QUEUE offset of the half message."""
    commit_log_offset: int = long_field("commitLogOffset")
    """COMMIT LOG offset of the half message."""
    commit_or_rollback: int = int_field("commitOrRollback")
    """Transaction bits of ``MessageSysFlag``; 0: not known yet."""
    from_transaction_check: bool | None = bool_field("fromTransactionCheck", None)
    """Whether this answers the broker's check."""
    msg_id: str = text_field("msgId")
    transaction_id: str | None = text_field("transactionId", None)
    topic: str | None = text_field("topic", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTransactionStateRequestHeader(RequestFields):
    """39 CHECK_TRANSACTION_STATE, oneway, from a broker; the half message is the body."""

    tran_state_table_offset: int = long_field("tranStateTableOffset")
    commit_log_offset: int = long_field("commitLogOffset")
    msg_id: str | None = text_field("msgId", None)
    transaction_id: str | None = text_field("transactionId", None)
    offset_msg_id: str | None = text_field("offsetMsgId", None)
    topic: str | None = text_field("topic", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicRequestHeader(TopicRequestFields):
    """17 UPDATE_AND_CREATE_TOPIC."""

    topic: str = text_field("topic")
    default_topic: str = text_field("defaultTopic", "TBW102")
    read_queue_nums: int = int_field("readQueueNums")
    write_queue_nums: int = int_field("writeQueueNums")
    perm: int = int_field("perm", 6)
    """Bits: 2 write, 4 read, 1 inherit, 8 priority."""
    topic_filter_type: str = text_field("topicFilterType", "SINGLE_TAG")
    topic_sys_flag: int | None = int_field("topicSysFlag", None)
    order: bool = bool_field("order", False)
    attributes: str | None = text_field("attributes", None)
    """Attributes to set (``+message.type=FIFO``) or to delete (``-message.type``), separated by commas."""
    force: bool | None = bool_field("force", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRequestHeader(TopicRequestFields):
    """202 GET_TOPIC_STATS_INFO and other requests about one topic to a broker.

    These are 215 DELETE_TOPIC_IN_BROKER, 300 QUERY_TOPIC_CONSUME_BY_WHO and 351 GET_TOPIC_CONFIG.
    """

    topic: str = text_field("topic")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOffsetRequestHeader(TopicRequestFields):
    """220 RESET_CONSUMER_CLIENT_OFFSET (from the broker) and 222 INVOKE_BROKER_TO_RESET_OFFSET."""

    topic: str = text_field("topic")
    group: str = text_field("group")
    queue_id: int | None = int_field("queueId", None)
    """-1: every queue."""
    offset: int | None = long_field("offset", None)
    timestamp: int = long_field("timestamp")
    """Store time in milliseconds; -1: the end of each queue."""
    is_force: bool = bool_field("isForce")
