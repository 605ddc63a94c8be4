"""Every option of reading with ``format("rocketmq")``, declared once.

A field of :class:`ReadOptions` is the declaration: its key, parser, default, unit and text. Parsing (all problems
reported together), the unknown-key hint, redaction and ``docs/options.md`` (``options_page``) come from it; nothing
else in the package sees a map of strings.  Those of the cluster are in ``connection_options``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark_rocketmq.connection_options import ConnectionOptions
from pyspark_rocketmq.model import MESSAGE_COLUMNS, MessageModel, retry_topic
from pyspark_rocketmq.option_parsers import (
    MAX_TOPIC_LENGTH,
    boolean,
    column_name,
    int_between,
    list_of,
    message_model,
    resource_name,
    tag_expression,
    text_value,
)
from pyspark_rocketmq.option_set import option
from pyspark_rocketmq.starting_offsets import StartingOffsets, parse_starting_offsets
from pyspark_rocketmq.subscriptions import Subscription, parse_subscriptions, subscribed, topic_problems

_PROPERTIES: Final = "properties"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ReadOptions(ConnectionOptions):
    """Options of the source, for batch and for streams."""

    topic: str | None = option(
        "topic",
        parse=resource_name("topic", MAX_TOPIC_LENGTH),
        instead=("topics", "subscriptions"),
        default_text="required, or `topics` or `subscriptions`",
        doc="The topic to read.",
    )
    topics: tuple[str, ...] = option(
        "topics",
        parse=list_of(resource_name("topic", MAX_TOPIC_LENGTH)),
        default=(),
        default_text="none",
        doc="The topics to read, separated by commas; in place of `topic`.",
    )
    subscription: str = option(
        "subscription",
        parse=tag_expression,
        default="*",
        doc="Tags to read, such as `created || paid`; `*` reads every message. The same for each of `topics`. "
        "Filtered by the broker by hash code and again by exact tag in the task.",
    )
    subscriptions: tuple[Subscription, ...] = option(
        "subscriptions",
        parse=parse_subscriptions,
        default=(),
        default_text="none",
        doc='Several topics with tags of their own, as JSON: `{"orders": "created || paid", "payments": "*"}`; in '
        "place of `topic`, `topics` and `subscription`. All members of a group must subscribe to the same.",
    )
    starting_offsets: StartingOffsets | None = option(  # noqa: RUF009 - declares the field
        "startingOffsets",
        parse=parse_starting_offsets,
        default=None,
        default_text="latest (stream), earliest (batch)",
        doc="Where a new query, or a consumer group without a stored offset, begins: `earliest`, `latest` or JSON "
        '`{"topic": {"broker-a": {"0": 17, "1": -2}}}` (-2 earliest, -1 latest; queues not named: earliest). '
        "Queues that appear later begin at their earliest offset.",
    )
    starting_timestamp: int | None = option(
        "startingTimestamp",
        parse=int_between(0, 2**62),
        default=None,
        unit="ms since the epoch",
        doc="Begin at the first message stored at or after this time; not together with `startingOffsets`.",
    )
    max_offsets_per_trigger: int | None = option(
        "maxOffsetsPerTrigger",
        parse=int_between(1, 2**62),
        default=None,
        unit="messages",
        doc="Upper bound of one micro-batch, shared among the queues in proportion to their backlog; "
        "every queue with a backlog gets at least one.",
    )
    pull_threshold_for_queue: int | None = option(
        "pullThresholdForQueue",
        parse=int_between(1, 65_535),
        default=None,
        unit="messages",
        doc="Most messages of one queue in one micro-batch. Java's consumer keeps at most 1,000 in memory and goes on pulling "
        "as they are consumed; here a queue gets its next messages with the next micro-batch, so that such a bound is one "
        "of the throughput. Hence there is none by default: `maxOffsetsPerTrigger` bounds the micro-batch.",
    )
    pull_threshold_size_for_queue: int = option(
        "pullThresholdSizeForQueue",
        parse=int_between(1, 1024),
        default=100,
        unit="MiB",
        doc="With `consumerGroup`: a queue's share of one micro-batch ends with the message whose body makes it as large "
        "as this, Java's default; a task has it in memory. The rest is planned with the next micro-batch.",
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        parse=boolean,
        default=True,
        doc="What to do when wanted messages are no longer on the broker: fail with an error that names the queue "
        "and the offsets, or go on at the first offset available and log the gap.",
    )
    consumer_group: str | None = option(
        "consumerGroup",
        parse=resource_name("consumer group", 255),
        default=None,
        doc="Read as this consumer group: ranges are planned from its offsets in `offsetStore`, and every range "
        "ends with a marker row. Used by `PushConsumer`; needs `offsetStore`.",
    )
    offset_store: str | None = option(
        "offsetStore",
        parse=text_value,
        default=None,
        doc="Where the group's offsets are: the path or URI of a Delta table.",
    )
    message_model: MessageModel = option(  # noqa: RUF009 - declares the field
        "messageModel",
        parse=message_model,
        default=MessageModel.CLUSTERING,
        default_text="CLUSTERING",
        doc="`CLUSTERING`: the members of the group share the queues, Java consumers among them. `BROADCASTING`: "
        "every query reads every queue, with progress of its own under its `instanceName`.",
    )
    consume_orderly: bool = option(
        "consumeOrderly",
        parse=boolean,
        default=True,
        doc="Whether the group's queues are locked at their brokers before they are read, as orderly listeners need it. "
        "`false`, for concurrent listeners: a queue is read by whoever it is allocated to, so that two members may have "
        "the same messages while the group changes; only one of them gets its offsets stored. The same for all members.",
    )
    listener: str | None = option(
        "listener",
        parse=text_value,
        default=None,
        doc="`module:name` of the group's orderly listener, set by `PushConsumer` when it was given one so: the planner, "
        "which is the member of the group, consumes a message with it when an administrator asks for that one.",
    )
    allocate_message_queue_strategy: str = option(
        "allocateMessageQueueStrategy",
        parse=text_value,
        default="averagely",
        doc="How the members of the group share the queues; all must use the same: `averagely`, `averagelyByCircle`, "
        "`consistentHash`, `byMachineRoom:ROOM,…`, `machineRoomNearby`, `byConfig:TOPIC/BROKER/QUEUE,…` or "
        "`module:Class`.",
    )
    instance_name: str | None = option(
        "instanceName",
        parse=resource_name("instance", 100),
        default=None,
        default_text="unique for every start",
        doc="Names this member of the group: its client id is `HOST@instanceName`. With a name that stays, a query "
        "that was killed gets its queues back at once, not after the 60 s for which brokers keep its locks. "
        "No two members of a group may have the same.",
    )
    include_columns: tuple[str, ...] = option(
        "includeColumns",
        parse=list_of(column_name),
        default=(),
        default_text="all",
        doc="Columns of a message to read, separated by commas, in that order: the others are neither decoded nor handed "
        "to Spark, which cannot tell a Python source what a query needs. Not with `consumerGroup`: a listener gets "
        "whole messages.",
    )
    property_columns: tuple[str, ...] = option(
        "propertyColumns",
        parse=list_of(text_value),
        default=(),
        default_text="none",
        doc="Properties of a message that become string columns of their own behind the others, by name, separated by "
        "commas; null where a message lacks one. Cheaper than column `properties`, which can then be left out. "
        "Not with `consumerGroup`.",
    )
    decode_properties: bool = option(
        "decodeProperties",
        parse=boolean,
        default=True,
        doc="Whether there is a column `properties`, the map of all of them and the dearest to decode. `false` leaves it "
        "out; `keys`, `tags`, `msgId` and `propertyColumns` stay. Not with `consumerGroup`.",
    )
    pull_batch_size: int = option(
        "pullBatchSize",
        parse=int_between(1, 1024),
        default=32,
        unit="messages",
        doc="Messages asked for in one pull. A broker gives at most 32 unless "
        "`maxTransferCountOnMessageInMemory` was raised there.",
    )
    pulls_in_flight: int = option(
        "pullsInFlight",
        parse=int_between(1, 256),
        default=16,
        unit="requests",
        doc="Pulls under way at once on a task's connection to its broker.",
    )

    def subscribed(self) -> dict[str, str]:
        """Each topic that is asked for, with its tag expression."""
        return subscribed(self.topic, self.topics, self.subscription, self.subscriptions)

    def columns(self) -> tuple[str, ...]:
        """Columns of a message that are read, in their order; those of ``propertyColumns`` follow."""
        named = self.include_columns or MESSAGE_COLUMNS
        return named if self.decode_properties else tuple(name for name in named if name != _PROPERTIES)

    def retry_topic(self) -> str | None:
        """The topic through which messages that the group has given back come again; None where there is none.

        Source: ``DefaultMQPushConsumerImpl.copySubscription``: any group but a broadcasting one has it.
        """
        if self.consumer_group is None or self.message_model is MessageModel.BROADCASTING:
            return None
        return retry_topic(self.consumer_group)

    def needs_locks(self) -> bool:
        """Whether queues are locked at their brokers: an orderly member of a group that shares them (C1, B3)."""
        return self.consume_orderly and self.message_model is MessageModel.CLUSTERING

    def all_subscriptions(self) -> dict[str, str]:
        """What is read: the topics asked for and the retry topic."""
        retry = self.retry_topic()
        return self.subscribed() | ({} if retry is None else {retry: "*"})

    def cross_field_problems(self) -> list[str]:
        """Topics are said once; group and store go together; where to begin is said once, and of what is read."""
        problems = topic_problems(self.topic, self.topics, self.subscription, self.subscriptions)
        if self.consumer_group is not None and self.offset_store is None:
            problems.append(
                "option 'consumerGroup' needs 'offsetStore', the table that holds the group's offsets"
            )
        if not self.consume_orderly and self.consumer_group is None:
            problems.append(
                "option 'consumeOrderly' needs 'consumerGroup': without a group nothing is locked"
            )
        if self.offset_store is not None and self.consumer_group is None:
            problems.append("option 'offsetStore' needs 'consumerGroup', whose offsets are to be used")
        if self.message_model is MessageModel.BROADCASTING and self.instance_name is None:
            problems.append(
                "option 'messageModel=BROADCASTING' needs 'instanceName', under which this query's progress is kept"
            )
        if self.starting_offsets is not None and self.starting_timestamp is not None:
            problems.append("options 'startingOffsets' and 'startingTimestamp' exclude each other; give one")
        names = [("consumerGroup", self.consumer_group or "", 255)]
        names += [("topic", topic, MAX_TOPIC_LENGTH) for topic in self.subscribed()]
        problems += self._other_topics() + self._column_problems()
        return problems + self.security_problems() + self.name_problems(names)

    def _column_problems(self) -> list[str]:
        chosen = {
            "includeColumns": bool(self.include_columns),
            "propertyColumns": bool(self.property_columns),
            "decodeProperties=false": not self.decode_properties,
        }
        problems = [
            f"option '{key}' does not go with 'consumerGroup', whose listener gets whole messages"
            for key, is_given in chosen.items()
            if is_given and self.consumer_group is not None
        ]
        if _PROPERTIES in self.include_columns and not self.decode_properties:
            problems.append(
                "option 'includeColumns' names 'properties', which 'decodeProperties=false' leaves out"
            )
        taken = {name.lower(): f"the column '{name}'" for name in MESSAGE_COLUMNS}
        for name in self.property_columns:
            if name.lower() in taken:
                problems.append(
                    f"option 'propertyColumns' names '{name}' beside {taken[name.lower()]}, and Spark does not tell upper "
                    "from lower case; take it from column 'properties'"
                )
            taken[name.lower()] = f"the property '{name}'"
        return problems

    def _other_topics(self) -> list[str]:
        named = {queue.topic for queue in self.starting_offsets.by_queue} if self.starting_offsets else set()
        read = self.subscribed()
        what = f"option 'topic' is '{self.topic}'" if self.topic else f"{', '.join(read)} are read"
        return [
            f"option 'startingOffsets' names queues of topic '{topic}', but {what}"
            for topic in sorted(named - read.keys())
        ]
