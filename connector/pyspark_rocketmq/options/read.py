"""Every option of reading with ``format("rocketmq")``, and the rules between them.

Parsing, errors and ``docs/options.md`` follow from the declarations. The rest of the package does not handle
maps of strings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pyspark_rocketmq.model import MESSAGE_COLUMNS, MessageModel, UndecodableMessages, retry_topic
from pyspark_rocketmq.options.declare import read_option, stream_option
from pyspark_rocketmq.options.parsers import (
    MAX_TOPIC_LENGTH,
    boolean,
    column_name,
    duration_ms,
    instance_name,
    int_between,
    list_of,
    one_of,
    pattern,
    resource_name,
    secret_json,
    secret_value,
    tag_expression,
    text_value,
)
from pyspark_rocketmq.options.positions import PositionOptions
from pyspark_rocketmq.options.store_spec import StoreSpec, offset_store
from pyspark_rocketmq.options.subscription import (
    EVERYTHING,
    Subscription,
    parse_subscriptions,
    subscriptions_of,
    topic_problems,
)

_PROPERTIES: Final = "properties"
_DEFAULT_TRIGGER_DELAY_MS: Final = 15 * 60 * 1000
_WHOLE_MESSAGES: Final = "whose listener gets whole messages"
_IN_ORDER: Final = "which reads a queue in one task, in order"
_NOT_OF_A_GROUP: Final = {
    "topicPattern": "whose members must subscribe to the same topics",
    "includeColumns": _WHOLE_MESSAGES,
    "propertyColumns": _WHOLE_MESSAGES,
    "decodeProperties=false": _WHOLE_MESSAGES,
    "maxBytesPerTrigger": "which has 'pullThresholdSizeForQueue' in its place",
    "minOffsetsPerTrigger": "whose retries must not wait",
    "minPartitions": _IN_ORDER,
    "maxRecordsPerPartition": _IN_ORDER,
}
"""Options without a meaning for a consumer group, each with the end of a sentence that has the reason."""


class ReadFrom(StrEnum):
    """Broker to pull from: the master until it suggests a slave; only the master; or a slave, if any."""

    SUGGESTED = "suggested"
    MASTER = "master"
    SLAVE = "slave"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ReadOptions(PositionOptions):
    """Options of the source, for batch and for streams."""

    max_offsets_per_trigger: int | None = stream_option(
        "maxOffsetsPerTrigger", int_between(1, 2**62), None, unit="messages"
    ).doc(
        "Upper bound of one micro-batch, shared among the queues in proportion to their backlog; every "
        "queue with a backlog gets at least one."
    )
    max_bytes_per_trigger: int | None = stream_option(
        "maxBytesPerTrigger", int_between(1, 2**62), None, unit="bytes"
    ).doc(
        "Approximate size of one micro-batch, as stored, shared among the queues like "
        "`maxOffsetsPerTrigger`; every queue with a backlog gets at least one message. Sizes are estimated "
        "from one pull for each topic and broker at each plan, so a batch may be larger or smaller. Not with "
        "`consumerGroup`, which has `pullThresholdSizeForQueue`."
    )
    min_offsets_per_trigger: int | None = stream_option(
        "minOffsetsPerTrigger", int_between(1, 2**62), None, unit="messages"
    ).doc(
        "Wait with the next micro-batch until there are this many new messages, but no longer than "
        "`maxTriggerDelay`. The first micro-batch after a start does not wait; with `availableNow` none "
        "does. Not with `consumerGroup`, whose retries must not wait."
    )
    max_trigger_delay_ms: int | None = stream_option(
        "maxTriggerDelay", duration_ms, None, default_text="15m"
    ).doc(
        "How long `minOffsetsPerTrigger` may wait after the last micro-batch was planned, such as `30s`, "
        "`500ms`, `15m`."
    )
    min_partitions: int | None = read_option(
        "minPartitions", int_between(1, 1_000_000), None, default_text="one per queue", unit="tasks"
    ).doc(
        "Approximate minimum number of tasks: long ranges are split in proportion to their length, so that "
        "several tasks read one queue. Not with `consumerGroup`, which reads a queue in order."
    )
    max_records_per_partition: int | None = read_option(
        "maxRecordsPerPartition", int_between(1, 2**62), None, unit="messages"
    ).doc("Maximum number of offsets for one task; longer ranges are split. Not with `consumerGroup`.")
    pull_batch_size: int = read_option("pullBatchSize", int_between(1, 1024), 32, unit="messages").doc(
        "Messages asked for in one pull. A broker gives at most 32 unless "
        "`maxTransferCountOnMessageInMemory` was raised there."
    )
    pulls_in_flight: int = read_option("pullsInFlight", int_between(1, 256), 16, unit="requests").doc(
        "Pulls under way at the same time on a task's connection to its broker."
    )
    max_in_flight_bytes: int = read_option(
        "maxInFlightBytes", int_between(1 << 20, 1 << 40), 64 << 20, unit="bytes"
    ).doc(
        "Maximum size of the messages, as stored, that a task has asked for or holds undecoded, in all its "
        "pulls together. One pull is always allowed, however large its answer is."
    )
    read_from: ReadFrom = read_option("readFrom", one_of(ReadFrom), ReadFrom.SUGGESTED).doc(
        "Where messages are pulled from: `suggested`, the master until it suggests a slave, as Java's "
        "consumers do; `master`, only the master; `slave`, to spare the master, a slave if there is one. "
        "Messages that a slave does not have yet are read from the master. While a master is down, its slave "
        "is read, except with `master` and by orderly consumers that share their queues."
    )
    route_refresh_ms: int = stream_option("routeRefreshMs", int_between(1, 3_600_000), 30_000, unit="ms").doc(
        "Time within which new queues, brokers and (with `topicPattern`) topics are found, like Java's "
        "`pollNameServerInterval`."
    )
    topic: str | None = read_option(
        "topic",
        resource_name("topic", MAX_TOPIC_LENGTH),
        instead=("topics", "topicPattern", "subscriptions"),
        default_text="required, or `topics`, `topicPattern` or `subscriptions`",
    ).doc("The topic to read.")
    topics: tuple[str, ...] = read_option(
        "topics", list_of(resource_name("topic", MAX_TOPIC_LENGTH)), ()
    ).doc("The topics to read, separated by commas; in place of `topic`.")
    topic_pattern: re.Pattern[str] | None = read_option("topicPattern", pattern, None).doc(
        "A regular expression in Python's syntax that must match a topic's whole name, such as `orders-.*`; "
        "in place of `topic`. Topics that appear later are found within `routeRefreshMs` and read from their "
        "earliest offset. Retry topics, dead-letter topics and RocketMQ's own are left out. Not with "
        "`consumerGroup`, whose members must subscribe to the same topics."
    )
    subscription: str = read_option("subscription", tag_expression, EVERYTHING).doc(
        "Tags to read, such as `created || paid`; `*` reads every message. It applies to each of `topics`. "
        "The broker filters by the tags' hash codes, and the task by the tags themselves."
    )
    sql_filter: str | None = read_option("sqlFilter", text_value, None).doc(
        "An SQL92 condition on messages' properties, such as `amount > 10 AND region = 'eu'`, in place of "
        "`subscription`. The broker filters; it must have `enablePropertyFilter=true`. It also checks the "
        "condition before the first pull: with an invalid one, it would return all messages."
    )
    subscriptions: tuple[Subscription, ...] = read_option("subscriptions", parse_subscriptions, ()).doc(
        'Several topics, each with its own tags, as JSON: `{"orders": "created || paid", "payments": '
        '"*"}`, or with a condition as in `sqlFilter`: `{"orders": {"sql": "amount > 10"}}`; in place of '
        "`topic`, `topics` and `subscription`. It must be the same for all members of a group."
    )
    pull_threshold_for_queue: int | None = stream_option(
        "pullThresholdForQueue", int_between(1, 65_535), None, unit="messages"
    ).doc(
        "Maximum number of messages of one queue in a micro-batch. By default there is no maximum: a queue "
        "gets further messages only with the next micro-batch, so a maximum limits throughput. "
        "`maxOffsetsPerTrigger` bounds the whole micro-batch. Java's consumer keeps at most 1,000 messages "
        "in memory, and pulls more as they are consumed. In real time, the number of messages of a queue "
        "that may be read and not committed; by default 1,000, beside those that wait for a COMMIT."
    )
    pull_threshold_size_for_queue: int = stream_option(
        "pullThresholdSizeForQueue", int_between(1, 1024), 100, unit="MiB"
    ).doc(
        "With `consumerGroup`: size of the bodies at which a queue's share of a micro-batch ends. The "
        "message that reaches it is still part of the share; later ones follow with the next micro-batch. A "
        "task holds the whole share in memory. In real time, size of a queue's bodies that may wait for a "
        "COMMIT. The default is Java's."
    )
    drain_timeout_ms: int = stream_option(
        "drainTimeoutMs", int_between(1, 2**31 - 1), 3_600_000, unit="ms"
    ).doc(
        "With `consumerGroup` and `availableNow`: time without progress in any queue after which the query "
        "ends with an error that names each queue's position. This happens, for example, if a message always "
        "fails and `maxReconsumeTimes` sets no limit."
    )
    fail_on_data_loss: bool = read_option("failOnDataLoss", boolean, True).doc(
        "What to do if the broker no longer has the wanted messages: `true` fails with an error that names "
        "the queue and the offsets; `false` goes on at the first available offset and logs the gap."
    )
    undecodable_messages: UndecodableMessages = read_option(
        "undecodableMessages", one_of(UndecodableMessages), UndecodableMessages.FAIL
    ).doc(
        "What to do with a message whose body cannot be decompressed or whose bytes are not a message. "
        "`fail` ends the query with an error that names queue, offset and reason; a consumer first consumes "
        "all messages before it. `keep` reads it like any other, with the stored bytes as its body and the "
        "reason as property `UNDECODABLE`."
    )
    consumer_group: str | None = stream_option(
        "consumerGroup", resource_name("consumer group", 255), None
    ).doc(
        "The consumer group as which the query reads: ranges begin at its offsets in `offsetStore`, and "
        "every range ends with a marker row. `PushConsumer` sets it; needs `offsetStore`."
    )
    offset_store: str | None = read_option("offsetStore", offset_store, None).doc(
        "Where the group's offsets are: `delta:PATH`, or just the path or URI of a Delta table; "
        "`file:PATH`, a folder on the driver's machine, for `BROADCASTING`; `broker:`, the brokers "
        "themselves, for concurrent consumers without a sink ([offsets](how-to/offsets.md))."
    )
    storage_secrets: str | None = read_option("storageSecrets", secret_json, None, secret=True).doc(
        "How to reach the storage of `offsetStore`, as [storage options](sinks.md#object-stores) in JSON. "
        "Spark masks the value because of the option's name. It stays the same while a query runs: for keys "
        "that expire use a callable in a program, `DeltaOffsetStore(…, storage_options=…)`, or a role. "
        "Options that are not given are taken from the driver's variables `AWS_ACCESS_KEY_ID`, "
        "`AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_DEFAULT_REGION`, "
        "`AWS_ENDPOINT_URL`, `AWS_ENDPOINT_URL_S3`, `AWS_ALLOW_HTTP`, `AWS_VIRTUAL_HOSTED_STYLE_REQUEST`, "
        "`AWS_CONDITIONAL_PUT`, `AWS_COPY_IF_NOT_EXISTS`, `AWS_S3_LOCKING_PROVIDER`, "
        "`AWS_SERVER_SIDE_ENCRYPTION`, `AWS_SSE_KMS_KEY_ID`, `AWS_SSE_BUCKET_KEY_ENABLED`, "
        "`AWS_REQUEST_PAYER`; `AZURE_STORAGE_ACCOUNT_NAME`, `AZURE_STORAGE_ACCOUNT_KEY`, "
        "`AZURE_STORAGE_SAS_KEY`, `AZURE_STORAGE_CLIENT_ID`, `AZURE_STORAGE_CLIENT_SECRET`, "
        "`AZURE_STORAGE_TENANT_ID`, `AZURE_CLIENT_ID`, `AZURE_CLIENT_SECRET`, `AZURE_TENANT_ID`, "
        "`AZURE_STORAGE_ENDPOINT`, `AZURE_STORAGE_USE_EMULATOR`; `GOOGLE_SERVICE_ACCOUNT_KEY`."
    )
    message_model: MessageModel = stream_option(
        "messageModel", one_of(MessageModel), MessageModel.CLUSTERING
    ).doc(
        "`CLUSTERING`: the members of the group, Java consumers too, share the queues. `BROADCASTING`: every "
        "query reads every queue and has its own progress, stored under its `instanceName`."
    )
    consume_orderly: bool = stream_option("consumeOrderly", boolean, True).doc(
        "Whether the group's queues are locked at their brokers before they are read, as orderly "
        "listeners need it. `false` is for concurrent listeners: a member reads the queues allocated to it "
        "without a lock. While the group changes, two members may then get the same messages, but the offset "
        "store accepts the offsets of only one. It must be the same for all members."
    )
    hand_over_ranges: bool = stream_option("handOverRanges", boolean, False).doc(
        "Whether the group's stream returns planned ranges instead of messages. `PushConsumer` sets it for "
        "engines that read a range in the task that consumes it."
    )
    listener: str | None = stream_option("listener", text_value, None).doc(
        "`module:name` of the group's listener. `PushConsumer` sets it if the listener was registered by "
        "name. The planner calls the listener when an administrator asks this member to consume a single "
        "message (request 309)."
    )
    allocate_message_queue_strategy: str = stream_option(
        "allocateMessageQueueStrategy", text_value, "averagely"
    ).doc(
        "How the members of the group share the queues; it must be the same for all members: `averagely`, "
        "`averagelyByCircle`, `consistentHash`, `byMachineRoom:ROOM,…`, `machineRoomNearby`, "
        "`byConfig:TOPIC/BROKER/QUEUE,…` or `module:Class`. A broker's machine room is the text before `@` "
        "in its name; a member's is the text before `/` in its `instanceName`."
    )
    instance_name: str | None = stream_option(
        "instanceName", instance_name, None, default_text="unique for every start"
    ).doc(
        "Name of this member of the group; its client id is `HOST@instanceName`. Each member needs another "
        "name. If a query was killed and starts again under the same name, it gets its queues back "
        "immediately, and not after the 60 s for which brokers keep its locks. With the strategy "
        "`machineRoomNearby` the name begins with the member's machine room, as in `east/worker-1`."
    )
    hub_secret: str | None = stream_option("hubSecret", secret_value, None, secret=True, internal=True).doc(
        "Where the planner of a `PushConsumer` finds its driver, and the key with which it proves itself; "
        "new for every start."
    )
    drains: bool = stream_option("drains", boolean, False, internal=True).doc(
        "Whether the planner of a `PushConsumer` reports to its driver when the messages present at the "
        "start are consumed: Spark before 4.2 does not pass the trigger `availableNow` to Python sources."
    )
    real_time_ms: int | None = stream_option("realTime", duration_ms, None, internal=True).doc(
        "How long a batch of a `PushConsumer` in real time lasts: its ranges are read until it is over."
    )
    include_columns: tuple[str, ...] = read_option(
        "includeColumns", list_of(column_name), (), default_text="all"
    ).doc(
        "Columns of a message to read, in this order, such as `topic,queueOffset,body`. The others are not "
        "decoded, which saves time: Spark does not pass a query's columns to a Python source. Not with "
        "`consumerGroup`: a listener gets whole messages."
    )
    property_columns: tuple[str, ...] = read_option("propertyColumns", list_of(text_value), ()).doc(
        "Names of message properties, separated by commas. Each becomes a string column after the others, "
        "with null for messages that lack it. This is cheaper than column `properties`, which can then be "
        "left out. Not with `consumerGroup`."
    )
    decode_properties: bool = read_option("decodeProperties", boolean, True).doc(
        "Whether there is a column `properties` with the map of all properties, the column that costs most "
        "to decode. `keys`, `tags`, `msgId` and `propertyColumns` do not need it. `false` not with "
        "`consumerGroup`."
    )

    def subscribed(self) -> tuple[str, ...]:
        """Return the topics that options name; none with ``topicPattern``."""
        if self.subscriptions:
            return tuple(each.topic for each in self.subscriptions)
        return self.topics if self.topic is None else (self.topic,)

    def reads(self, topic: str) -> bool:
        """Return whether a query with these options reads ``topic`` if it exists; False for a retry topic."""
        if self.topic_pattern is not None:
            return self.topic_pattern.fullmatch(topic) is not None
        return topic in self.subscribed()

    def subscription_of(self, topic: str) -> Subscription:
        """Return the subscription to a topic that is read: its tags or SQL; everything of the retry topic."""
        if topic == self.retry_topic():
            return Subscription(topic, EVERYTHING)
        named = (each for each in self.subscriptions if each.topic == topic)
        return next(named, None) or subscriptions_of((topic,), self.subscription, self.sql_filter)[0]

    def columns(self) -> tuple[str, ...]:
        """Return the columns of a message that are read, in order, without those of ``propertyColumns``."""
        named = self.include_columns or tuple(MESSAGE_COLUMNS)
        return named if self.decode_properties else tuple(name for name in named if name != _PROPERTIES)

    def retry_topic(self) -> str | None:
        """Return the topic from which messages that were sent back are delivered again.

        None without a group, or with ``messageModel=BROADCASTING``. Source:
        ``DefaultMQPushConsumerImpl.copySubscription``.
        """
        if self.consumer_group is None or self.message_model is MessageModel.BROADCASTING:
            return None
        return retry_topic(self.consumer_group)

    def needs_locks(self) -> bool:
        """Return whether a group's queues are locked at their brokers.

        They are if orderly members share them. Without ``consumerGroup`` the result has no meaning. See rows
        C1 and B3 of ``docs/semantics.md``.
        """
        return self.consume_orderly and self.message_model is MessageModel.CLUSTERING

    def goes_on_at_slaves(self) -> bool:
        """Return whether a slave is read while its master is down.

        This is false with ``readFrom=master``, and if the group locks queues, since only masters grant locks.
        """
        is_locked = self.consumer_group is not None and self.needs_locks()
        return self.read_from is not ReadFrom.MASTER and not is_locked

    def all_subscribed(self) -> tuple[str, ...]:
        """Return the topics that options name, and the group's retry topic if it has one."""
        retry = self.retry_topic()
        return self.subscribed() if retry is None else (*self.subscribed(), retry)

    def trigger_delay_ms(self) -> int:
        """Return the maximum time, in ms, for which a plan may wait for ``minOffsetsPerTrigger``."""
        return _DEFAULT_TRIGGER_DELAY_MS if self.max_trigger_delay_ms is None else self.max_trigger_delay_ms

    def cross_field_problems(self) -> list[str]:
        """Return a sentence for each problem of options that contradict, require or disable one another."""
        names = [("consumerGroup", self.consumer_group or "", 255)]
        names += [("topic", topic, MAX_TOPIC_LENGTH) for topic in self.subscribed()]
        return [
            *topic_problems(self),
            *self._group_problems(),
            *self.position_problems(
                self.reads, ", ".join(self.subscribed()), reads_as_group=self.consumer_group is not None
            ),
            *self._pace_problems(),
            *self._column_problems(),
            *self.connection_problems(),
            *self.name_problems(names),
        ]

    def _group_problems(self) -> list[str]:
        problems = []
        if self.consumer_group is None:
            if not self.consume_orderly:
                problems.append("option 'consumeOrderly' needs 'consumerGroup': only a group locks queues")
            if self.hand_over_ranges:
                problems.append(
                    "option 'handOverRanges' needs 'consumerGroup': only a consumer reads ranges by itself"
                )
            if self.offset_store is not None and self.starting_group is None and self.ending_group is None:
                problems.append(
                    "option 'offsetStore' needs 'consumerGroup', 'startingGroup' or 'endingGroup', whose "
                    "offsets are to be used"
                )
        else:
            if self.offset_store is None:
                problems.append("option 'consumerGroup' needs 'offsetStore', which holds the group's offsets")
            else:
                store = StoreSpec.parse(self.offset_store)
                problems += store.problems(self.message_model, consume_orderly=self.consume_orderly)
            given = self.given()
            problems += [
                f"option '{shown}' does not go with 'consumerGroup', {reason}"
                for shown, reason in _NOT_OF_A_GROUP.items()
                if shown.partition("=")[0] in given
            ]
        if self.message_model is MessageModel.BROADCASTING and self.instance_name is None:
            problems.append(
                "option 'messageModel=BROADCASTING' needs 'instanceName', under which this query's progress "
                "is kept"
            )
        return problems + self._room_problems()

    def _room_problems(self) -> list[str]:
        """Return the problem if ``instanceName`` lacks the machine room it needs, or must not have one.

        The room is the text before "/", as in ``east/worker-1``. ``messageModel=BROADCASTING`` forbids one.
        Otherwise a group with strategy ``machineRoomNearby`` needs one, and other strategies accept it.
        """
        strategy = self.allocate_message_queue_strategy.strip().partition(":")[0]
        is_shared = self.message_model is MessageModel.CLUSTERING
        wants_room = strategy == "machineRoomNearby" and is_shared and self.consumer_group is not None
        has_room = "/" in (self.instance_name or "")
        if wants_room and not has_room:
            problem = (
                "option 'allocateMessageQueueStrategy=machineRoomNearby' needs an 'instanceName' that "
                "begins with this member's machine room, such as 'east/worker-1'"
            )
            return [problem]
        if has_room and not is_shared:
            problem = (
                f"option 'instanceName={self.instance_name}' has a '/', which is not possible with "
                "'messageModel=BROADCASTING', where the name is that of a stored progress; choose a name "
                "without '/'"
            )
            return [problem]
        return []

    def _pace_problems(self) -> list[str]:
        problems = []
        if self.real_time_ms is not None and not self.hand_over_ranges:
            problems.append("option 'realTime' needs 'handOverRanges': only a consumer reads open ranges")
        least, most = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        if least is not None and most is not None and least > most:
            problems.append(
                f"option 'minOffsetsPerTrigger' is {least}, above 'maxOffsetsPerTrigger', which is {most}"
            )
        if least is None and self.max_trigger_delay_ms is not None:
            problems.append("option 'maxTriggerDelay' needs 'minOffsetsPerTrigger', whose wait it limits")
        return problems

    def _column_problems(self) -> list[str]:
        problems = []
        if _PROPERTIES in self.include_columns and not self.decode_properties:
            problems.append(
                "option 'includeColumns' names 'properties', which 'decodeProperties=false' leaves out"
            )
        taken = {name.lower(): f"the column '{name}'" for name in MESSAGE_COLUMNS}
        for name in self.property_columns:
            if name.lower() in taken:
                problems.append(
                    f"option 'propertyColumns' names '{name}' beside {taken[name.lower()]}, and Spark does "
                    "not distinguish upper and lower case; take it from column 'properties'"
                )
            taken[name.lower()] = f"the property '{name}'"
        return problems


READ_DEFAULTS: Final = ReadOptions(name_servers=())
"""The declared default of each option."""
