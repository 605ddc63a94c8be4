"""Values shared by the whole package: queues, messages, routes, ranges and RocketMQ's enums.

Rule 1: all values are frozen, and built completely or not at all.  Rule 2: no byte layouts, no I/O, no Spark.
Names are RocketMQ's in Python case; the name of an offset always shows what it is an offset of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Annotated, Any, Final, NamedTuple, NewType, Self, get_type_hints

from pyspark_rocketmq.display import peer_text
from pyspark_rocketmq.stored_values import (
    NO_MESSAGES,
    NO_RETRIES,
    RememberedMessages,
    RetryCounts,
    RetrySpan,
    spans_of_first,
    trial_of,
)

BrokerAddress = NewType("BrokerAddress", str)
"""``host:port``; IPv6 hosts in brackets."""

PulledBody = bytes | memoryview
"""Messages of one answer to a pull, as the broker stored them, not decoded yet.

A memoryview has single bytes as items, and keeps the buffer that it shows alive."""

OPEN_END: Final = (1 << 63) - 1
"""End of an open range, which goes on while its queue grows; higher than the offset of any message."""

MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of the body of a message or a batch, unless a producer sets another limit
(``DefaultMQProducer.maxMessageSize``, which is also the brokers' default)."""

RETRY_TOPIC_PREFIX = "%RETRY%"
DLQ_TOPIC_PREFIX = "%DLQ%"

ORIGIN_TOPIC: Final = "originTopic"
"""Name of a column: the topic to which a message was first sent, if the message was read from a retry topic.

Null in all other rows."""

OF_ONE_DELIVERY: Final = frozenset(
    {
        *("UNIQ_KEY", "WAIT", "MIN_OFFSET", "MAX_OFFSET", "CLUSTER", "MSG_REGION", "TRACE_ON", "PGROUP"),
        *("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TRAN_MSG", "RETRY_TOPIC"),
        *("CONSUME_START_TIME", "ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "MAX_RECONSUME_TIMES"),
        *("REAL_TOPIC", "REAL_QID", "INNER_NUM", "INNER_BASE"),
        *("TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY"),
        *("TIMER_DELAY_LEVEL", "__transactionId__", "TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET"),
        *("POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"),
        *("ARRIVE_TIME", "PUSH_REPLY_TIME", "REDIRECT", "PROPERTY_FORWARD_QUEUE_ID", "EXTEND_UNIQ_INFO"),
        *("DUP_INFO", "INSTANCE_ID", "BORN_TIMESTAMP", "__BORNHOST", "__CRC32#"),
        # Since 5.4.0 a broker chooses a single message's queue by the first, and copies it by the second.
        *("_SYS_MSG_PRIORITY_", "__LITE_TOPIC"),
    }
)
"""Properties that are left out when a message that was read is sent again as a new message.

Clients and brokers wrote them for one delivery, and a broker acts upon many of them. With them, it could
delay the new message, or treat it as a retry or as a message of an open transaction. UNIQ_KEY is among them
because each message that is written from a row gets its own.

Source: RocketMQ 5.3.3 ``MessageConst``; ``HookUtils.checkIfTimerMessage``: a message that still has
TIMER_OUT_MS could not be delayed by a timer.
"""


def retry_topic(consumer_group: str) -> str:
    """Return the name of the group's retry topic (``MixAll.getRetryTopic``)."""
    return RETRY_TOPIC_PREFIX + consumer_group


def is_retry_topic(topic: str) -> bool:
    """Return whether ``topic`` is a retry topic (``%RETRY%GROUP``), whose messages were given back."""
    return topic.startswith(RETRY_TOPIC_PREFIX)


def dlq_topic(consumer_group: str) -> str:
    """Return the name of the group's dead-letter topic (``MixAll.getDLQTopic``)."""
    return DLQ_TOPIC_PREFIX + consumer_group


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker; tuple order is Java's ``MessageQueue.compareTo``."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"topic={peer_text(self.topic)} broker={peer_text(self.broker_name)} queue={self.queue_id}"


class MessageModel(StrEnum):
    """How a group's members read: with CLUSTERING they share the queues, with BROADCASTING each reads all."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class ConsumeFromWhere(StrEnum):
    """Where a group without a stored offset begins."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    """At the end of each queue, as with ``startingOffsets=latest``."""
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    """At the first message that the broker still has, as with ``startingOffsets=earliest``."""
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"
    """At the first message stored at or after a given time."""


class BodyType(StrEnum):
    """Type of column ``body`` in a table into which messages are written as they are."""

    BINARY = "binary"
    STRING = "string"


class UndecodableMessages(StrEnum):
    """Treatment of a message whose bytes cannot be decoded."""

    FAIL = "fail"
    """The query ends with an error, after everything before the message is processed."""
    KEEP = "keep"
    """The message is read like any other, with its stored bytes as its body and property UNDECODABLE."""


class OrderlyEngineKind(StrEnum):
    """How Spark runs an orderly listener."""

    STATE = "state"
    """In ``applyInPandasWithState``, after a shuffle by queue that may change the order of its rows."""
    DIRECT = "direct"
    """In the task that reads the messages of a queue, without shuffle or state."""


class OrderlyBy(StrEnum):
    """The messages among which an orderly listener keeps the order."""

    QUEUE = "queue"
    """All messages of a queue are consumed one after the other."""
    SHARDING_KEY = "sharding_key"
    """Messages of a queue with the same sharding key are consumed in order; keys are independent."""


class ConsumeOrderlyStatus(StrEnum):
    """Answers of an orderly listener (``ConsumeOrderlyStatus`` of the Java client).

    With ``context.auto_commit = False`` messages *accumulate* over several calls until the listener answers
    COMMIT.
    """

    SUCCESS = "SUCCESS"
    """The messages are done. Without auto-commit they accumulate."""
    ROLLBACK = "ROLLBACK"
    """Without auto-commit: all accumulated messages are delivered again, as the same attempt. With
    auto-commit: as SUCCESS, with an error in the log."""
    COMMIT = "COMMIT"
    """The messages and all accumulated ones are done."""
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"
    """The messages are delivered again after a pause, as the next attempt; the queue waits meanwhile."""


class ConsumeConcurrentlyStatus(StrEnum):
    """Answers of a concurrent listener (``ConsumeConcurrentlyStatus`` of the Java client)."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    """The messages up to ``context.ack_index`` (by default all) are done; the others are given back."""
    RECONSUME_LATER = "RECONSUME_LATER"
    """All messages of the call are given back, to be delivered again later."""


class LocalTransactionState(StrEnum):
    """State of a sender's local transaction (``LocalTransactionState`` of the Java client)."""

    COMMIT_MESSAGE = "COMMIT_MESSAGE"
    """The transaction succeeded: consumers get the message."""
    ROLLBACK_MESSAGE = "ROLLBACK_MESSAGE"
    """The transaction failed: consumers never get the message."""
    UNKNOW = "UNKNOW"
    """The outcome is not known yet: the broker will ask again."""


class SendStatus(IntEnum):
    """How durably a broker has stored the messages of a send; each value is the broker's response code.

    The messages are stored in all four cases. Only with SEND_OK are they as durable as the broker is set up
    for.
    """

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 10
    """The broker did not write the messages to its disk in time."""
    SLAVE_NOT_AVAILABLE = 11
    """The broker should copy messages to a slave, but has none that is connected and up to date."""
    FLUSH_SLAVE_TIMEOUT = 12
    """The slave did not store the messages in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message to send."""

    topic: str
    body: bytes
    properties: Mapping[str, str] = field(default_factory=dict)
    """Names and values; neither may contain U+0001 or U+0002. TAGS, KEYS, DELAY … are properties too."""
    flag: int = 0

    @property
    def msg_id(self) -> str | None:
        """The message's UNIQ_KEY; None if it has none yet, because a producer adds it when it sends."""
        return self.properties.get("UNIQ_KEY")


class ColumnType(StrEnum):
    """Type of a column, by its name in the schemas of Spark and Delta."""

    STRING = "string"
    INTEGER = "integer"
    LONG = "long"
    BINARY = "binary"
    TIMESTAMP = "timestamp"
    TEXTS_BY_NAME = "map"


Int32 = Annotated[int, "32 bits"]
Int64 = Annotated[int, "64 bits"]
Millis = Annotated[int, "milliseconds since the epoch"]


class MessageExt(NamedTuple):
    """A message as a broker stored it; a tuple, because millions of them are created.

    ``message_queue`` and ``queue_offset`` are its only unique key: the messages of a batch of Java's producer
    share one ``msg_id``.
    """

    # All fields but the last declare the columns of a message: names, order and types.
    topic: str
    """The topic to which the message was first sent, even if it was read from a retry topic. Until
    :meth:`restored` is called, such a message has the retry topic here."""
    broker_name: str
    queue_id: Int32
    queue_offset: Int64
    commit_log_offset: Int64
    msg_id: str
    """UNIQ_KEY if the message has one, else its offset message id (``MessageClientExt.getMsgId``)."""
    keys: str | None
    """Business keys, separated by spaces (property KEYS)."""
    tags: str | None
    body: bytes
    """Decompressed body; empty where Java has null."""
    properties: Mapping[str, str]
    born_timestamp: Millis
    """Milliseconds since the epoch at the producer; 0 if the value is not within the years 1 to 9999."""
    born_host: str
    """``host:port``; IPv6 hosts in brackets."""
    store_timestamp: Millis
    """Milliseconds since the epoch at the broker."""
    store_host: str
    reconsume_times: Int32
    sys_flag: Int32
    """Flags as in Java after decoding: the compression type's bits stay, the compressed bit is cleared."""
    flag: Int32
    queue_topic: str | None = None
    """Topic of the queue from which the message was read, if it is not ``topic``.

    It is the group's retry topic, for a message that a listener gave back. None for all other messages."""

    @property
    def message_queue(self) -> MessageQueue:
        """The queue from which this message was read, and to which ``queue_offset`` refers."""
        return MessageQueue(self.queue_topic or self.topic, self.broker_name, self.queue_id)

    def restored(self, origin_topic: str | None) -> MessageExt:
        """Return a message of a retry topic as a listener gets it: under the topic it was first sent to.

        That topic is ``origin_topic``; ``queue_topic`` becomes the retry topic. If ``origin_topic`` is None,
        the message comes from an ordinary topic and is returned unchanged. Source:
        ``DefaultMQPushConsumerImpl.resetRetryAndNamespace``.
        """
        if origin_topic is None:
            return self
        return self._replace(topic=origin_topic, queue_topic=self.topic)


def camel_case(name: str) -> str:
    """Convert ``queue_id`` to ``queueId``."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


_COLUMN_TYPES: Final[Mapping[Any, ColumnType]] = {
    str: ColumnType.STRING,
    str | None: ColumnType.STRING,
    Int32: ColumnType.INTEGER,
    Int64: ColumnType.LONG,
    Millis: ColumnType.TIMESTAMP,
    bytes: ColumnType.BINARY,
    Mapping[str, str]: ColumnType.TEXTS_BY_NAME,
}
MESSAGE_COLUMNS: Final[Mapping[str, ColumnType]] = {
    camel_case(name): _COLUMN_TYPES[hint]
    for name, hint in get_type_hints(MessageExt, include_extras=True).items()
    if name != "queue_topic"
}
"""The source's columns of a message, in order, with their types."""
TIME_COLUMNS: Final = tuple(name for name, kind in MESSAGE_COLUMNS.items() if kind is ColumnType.TIMESTAMP)
QUEUE_COLUMNS: Final = tuple(map(camel_case, MessageQueue._fields))
"""Columns that identify a queue."""
QUEUE_OFFSET: Final = camel_case("queue_offset")
"""Column of a message's offset in its queue."""
POSITION_COLUMNS: Final = (*QUEUE_COLUMNS, QUEUE_OFFSET)
"""Columns that identify the message of a row, in the source and in every sink."""
DEFAULT_MESSAGE_COLUMNS: Final = ("keys", "tags", "body", "properties", "bornTimestamp", "storeTimestamp")
"""Default columns of a table into which messages are written as they are.

They have the producer's data, and the times of sending and storing. ``POSITION_COLUMNS`` are always added."""
LISTENER_COLUMNS: Final = (*MESSAGE_COLUMNS, ORIGIN_TOPIC)
"""Columns from which a listener's messages are created."""


def queue_columns(queue: MessageQueue) -> dict[str, Any]:
    """Return topic, broker name and queue id by the names of their columns (:data:`QUEUE_COLUMNS`)."""
    return dict(zip(QUEUE_COLUMNS, queue, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueData:
    """Numbers and permissions of a topic's queues on one broker, as the name server reports them."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    """Bits: 2 write, 4 read, 1 inherit, 8 priority."""
    topic_sys_flag: int = 0

    @property
    def is_readable(self) -> bool:
        """Whether consumers may read these queues."""
        return bool(self.perm & 4)

    @property
    def is_writable(self) -> bool:
        """Whether producers may write to these queues."""
        return bool(self.perm & 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerData:
    """Addresses of the master and replicas that share one broker name."""

    broker_name: str
    cluster: str
    addresses: Mapping[int, BrokerAddress]
    """Addresses by broker id; id 0 is the master."""

    @property
    def master(self) -> BrokerAddress | None:
        """Address of the master; None if the route lists none."""
        return self.addresses.get(0)


def ordered_queues(order_topic_conf: str) -> list[tuple[str, int]]:
    """Parse a topic's ``order_topic_conf``: ``a:4;b:2`` gives ``[("a", 4), ("b", 2)]``.

    Each pair is a broker's name and the number of its queues.
    """
    shares = (part.split(":") for part in order_topic_conf.split(";") if part)
    return [(name, int(count)) for name, count in shares]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRoute:
    """Brokers and queues of a topic (``TopicRouteData``)."""

    brokers: tuple[BrokerData, ...]
    queues: tuple[QueueData, ...]
    order_topic_conf: str | None = None
    """Queues to publish to, as broker names with numbers of queues: ``broker-a:4;broker-b:4``.

    If it is present, ``queues`` are not used for publishing. Operators set it for ordered topics."""

    def address_of(self, broker_name: str) -> BrokerAddress | None:
        """Return the address of the broker's master, else of its replica with the lowest id, else None."""
        for broker in self.brokers:
            if broker.broker_name == broker_name and broker.addresses:
                return broker.addresses[min(broker.addresses)]
        return None

    def master_of(self, broker_name: str) -> BrokerAddress | None:
        """Return the address of the broker's master; None if the route lists none."""
        masters = (broker.master for broker in self.brokers if broker.broker_name == broker_name)
        return next((master for master in masters if master is not None), None)

    def brokers_shown(self) -> str:
        """Return the brokers for a log or an error, for example ``broker-a (10.0.0.1:10911), broker-b``.

        A broker without a master has no address there.
        """
        masters = ((broker.broker_name, broker.master) for broker in self.brokers)
        return ", ".join(
            peer_text(f"{name} ({master})" if master else name) for name, master in sorted(masters)
        )

    def subscribe_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues that consumers may read, sorted, as queues of ``topic``.

        Source: ``MQClientInstance.topicRouteData2TopicSubscribeInfo``.
        """
        return tuple(
            sorted(
                MessageQueue(topic, data.broker_name, queue_id)
                for data in self.queues
                if data.is_readable
                for queue_id in range(data.read_queue_nums)
            )
        )

    def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues to which producers may write, as queues of ``topic``.

        With ``order_topic_conf``, return the queues that it lists, in its order. Otherwise return the
        writable queues of brokers with a master, by broker name. Source:
        ``topicRouteData2TopicPublishInfo``.
        """
        if self.order_topic_conf:
            return tuple(
                MessageQueue(topic, name, queue_id)
                for name, count in ordered_queues(self.order_topic_conf)
                for queue_id in range(count)
            )
        with_master = {broker.broker_name for broker in self.brokers if broker.master is not None}
        return tuple(
            MessageQueue(topic, data.broker_name, queue_id)
            for data in sorted(self.queues, key=lambda data: data.broker_name)
            if data.is_writable and data.broker_name in with_master
            for queue_id in range(data.write_queue_nums)
        )


class QueueState(NamedTuple):
    """A consumer group's progress in one queue.

    It is part of the rows in the offset store, of planned ranges, of acks (a task's reports on a queue) and
    of commits.
    """

    next_offset: int
    """Next queue offset to consume."""
    epoch: int = 0
    """Number that grows when a member claims the queue or an operator resets the group's offset.

    The offset store refuses commits with an older epoch. 0 in a read without a consumer group."""
    reconsume_times: int = 0
    """Number of times the listener gave back the message at ``next_offset``."""
    suspended_until_s: float | None = None
    """Wall-clock second before which no messages of the queue are delivered; None if it is not suspended.

    A time more than 30 s ahead counts as over, because it was written before the clock was set back.

    An ack without progress, whose next offset is where its range began, shows by this value how to go on. A
    time means that the queue goes on at that time; the time of the ack itself means immediately. None means
    that the listener received the whole range, and needs more messages before it commits
    (``StallCounter``)."""
    retry_counts: RetryCounts = NO_RETRIES
    """How often the listener gave back each of the messages from ``next_offset`` on.

    Empty if it gave back none of them, or only the one at ``next_offset``: ``reconsume_times`` has that
    number. The queue's next owner continues to count from these numbers; a reset clears them.

    One special value, :func:`~.stored_values.trial_of`, marks a queue that stands still at ``next_offset``:
    its ranges were planned, but brought no progress."""
    last_message: RememberedMessages = NO_MESSAGES
    """Newest messages that were consumed. Later they are compared with the messages that the broker has at
    their offsets by then. A difference shows that the queue's offsets began again.

    An ack or a commit has only the newest message of its batch. A row of the offset store has the newest
    message and up to two earlier ones, all consumed since the offsets last began again. If none was consumed
    since then, the row has the last message that was skipped."""

    @property
    def facts(self) -> tuple[int, int, int, float | None, str, str]:
        """The state as a tuple of numbers and texts, which JSON can hold; :meth:`from_facts` reads it."""
        return (*self[:4], self.retry_counts.to_text(), self.last_message.to_text())

    @classmethod
    def from_facts(cls, facts: Sequence[Any]) -> Self:
        """Build a state from its :attr:`facts`, whether they went through JSON or not."""
        next_offset, epoch, times, suspended_until_s, retries, messages = facts
        return cls(
            next_offset,
            epoch,
            times,
            suspended_until_s,
            RetryCounts.from_text(retries),
            RememberedMessages.from_text(messages),
        )

    @property
    def retry_spans(self) -> tuple[RetrySpan, ...]:
        """How often messages from ``next_offset`` on were given back, as spans of equal numbers.

        Messages in no span were never given back.

        Raises:
            DamagedOffsets: If the stored text of ``retry_counts`` cannot be read.
        """
        if self.retry_counts:
            return self.retry_counts.spans
        return spans_of_first(self.next_offset, self.reconsume_times)

    @property
    def is_on_trial(self) -> bool:
        """Whether the queue was suspended, certainly or perhaps, because of the message at ``next_offset``.

        The same message may suspend the queue again. So the next range is short, and few messages are
        delivered in vain.
        """
        if self.suspended_until_s is None:
            return False
        return self.reconsume_times > 0 or self.retry_counts == trial_of(self.next_offset)


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The offsets of one queue that a micro-batch or a batch read takes.

    An *open* range has no planned end.
    """

    queue: MessageQueue
    state: QueueState
    """The group's progress at the start of the range, without ``last_message``.

    Only an open range may have a ``suspended_until_s`` in the future: its reading begins at that time."""
    end: int
    """Exclusive queue offset; ``OPEN_END`` if the range is open."""

    def __str__(self) -> str:
        return f"{self.queue} offsets={self.extent}"

    @classmethod
    def between(cls, queue: MessageQueue, start: int, end: int, *, epoch: int = 0) -> Self:
        """Create a range from offset ``start`` to ``end``, of messages that were never given back."""
        return cls(queue, QueueState(start, epoch), end)

    def starting_at(self, start: int) -> Self:
        """Return the range with the same end and another first offset."""
        return replace(self, state=self.state._replace(next_offset=start))

    @property
    def start(self) -> int:
        """First queue offset read."""
        return self.state.next_offset

    @property
    def has_open_end(self) -> bool:
        """Whether the range is open: it goes on while its queue grows, until the driver ends its task."""
        return self.end == OPEN_END

    @property
    def extent(self) -> str:
        """The range's offsets in words, for a log or an error: ``5 to 9`` or, if open, ``5 onwards``."""
        return f"{self.start} onwards" if self.has_open_end else f"{self.start} to {self.end}"

    @property
    def count(self) -> int:
        """Number of offsets of a closed range; a filter may leave fewer messages."""
        return self.end - self.start


class QueueBounds(NamedTuple):
    """Bounds of the offsets that one queue's messages have at a broker, at one moment."""

    min_offset: int
    max_offset: int
    """Exclusive: last stored queue offset + 1."""
    last_update_timestamp: int = 0
    """When the last message was stored, in milliseconds since the epoch; 0 if the queue has no message."""

    def allow(self, next_offset: int) -> bool:
        """Return whether reading can continue at ``next_offset``.

        It can at the offset of a stored message, and at ``max_offset``, where the next message will be.
        """
        return self.min_offset <= next_offset <= self.max_offset

    @property
    def extent(self) -> str:
        """The offsets in words, for a message: the first one, and the end (exclusive)."""
        return f"{self.min_offset} to {self.max_offset}"


class ReturnType(StrEnum):
    """How a listener call ended, for hooks and statistics (``ConsumeReturnType``)."""

    SUCCESS = "SUCCESS"
    TIME_OUT = "TIME_OUT"
    """The call lasted at least as long as the consume time-out. It raised no error, and returned a value."""
    EXCEPTION = "EXCEPTION"
    RETURNNULL = "RETURNNULL"
    """The listener returned None."""
    FAILED = "FAILED"
    """The listener gave messages back, or returned an unknown value."""
