"""``Replay``: reads ranges of queues again and writes them elsewhere, in atomic steps.

Rule 1: a replay is fixed when it is planned: it does not include new messages or queues.
Rule 2: a replay reads as no user's group, so it changes no offsets; brokers see ``pyspark-rocketmq-source``.
Rule 3: a second run with the same target adds no duplicates. A table has every message's position, and each
step is a MERGE by position, in one commit. A topic has no such key, so each step is recorded before it is
sent and after it is stored; the target shows how much of an interrupted step is stored.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pyspark_rocketmq.client.cluster import outcomes_at_queues
from pyspark_rocketmq.consume.planning import split_ranges
from pyspark_rocketmq.delta.paths import TableName
from pyspark_rocketmq.delta.storage_options import StorageOptions
from pyspark_rocketmq.display import masked, peer_text
from pyspark_rocketmq.errors import (
    ConnectFailed,
    DataLoss,
    OptionError,
    RocketMQError,
    SchemaError,
    TransportError,
)
from pyspark_rocketmq.model import POSITION_COLUMNS, MessageQueue, QueueRange
from pyspark_rocketmq.options.parsers import MAX_TOPIC_LENGTH, resource_name
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.replay.ranges import (
    Sending,
    away_error,
    check_recorded_targets,
    check_same_log,
    last_of,
    recorded_targets,
    steps_of,
    without,
)
from pyspark_rocketmq.replay.record import ReplayRecord
from pyspark_rocketmq.replay.target import TargetTopic, master_bounds, read_tail
from pyspark_rocketmq.replay.tasks import (
    RESEND_COLUMNS,
    SENT_SCHEMA,
    ReadRanges,
    Resending,
    ResendRanges,
    run_tasks,
)
from pyspark_rocketmq.sinks.delta.spark_writer import log_store_problem
from pyspark_rocketmq.sinks.shared_storage import check_shared, is_on_one_machine
from pyspark_rocketmq.source.message_lookup import Found, found_at
from pyspark_rocketmq.source.ranges import QueuePartition, brokers_of
from pyspark_rocketmq.source.readers import RocketMQBatchReader
from pyspark_rocketmq.source.schema import spark_schema
from pyspark_rocketmq.spark.session import (
    NO_DELTA,
    check_classic,
    check_delta,
    check_session,
    check_speculation,
    cores,
    is_classic,
    qualified,
)
from pyspark_rocketmq.wire.namespace import without_namespace

logger = logging.getLogger(__name__)

_TASKS_END_S: Final = 2.0
"""Time for which a Python worker may continue after its task was cancelled
(``spark.python.task.killTimeout``)."""
_TOPIC_NAME: Final = resource_name("topic", MAX_TOPIC_LENGTH)

OnStep = Callable[[int, int], None]
"""Called before the first step and after each, with the numbers of finished offsets and of all offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySummary:
    """Counts of one run of a replay, and its duration.

    ``recorded`` counts planned offsets that earlier runs have replayed; ``written`` counts rows or messages.
    """

    queues: int
    planned: int
    """Number of offsets between the starting and the ending positions."""
    recorded: int
    """Number of planned offsets left out because earlier runs replayed them into the same topic."""
    written: int
    """Rows added to the table, or messages sent. Fewer than planned if a filter left some out, the table had
    some already, or some offsets hold no message."""
    steps: int
    seconds: float


class Replay:
    """Reads messages of queues again, and adds them to a Delta table or sends them to another topic."""

    def __init__(
        self,
        spark: SparkSession,
        options: Mapping[str, str] | ReadOptions,
        *,
        offsets_per_step: int = 200_000,
    ) -> None:
        """Check the options, without a request to the cluster.

        Args:
            spark: A classic session for a topic; a session with Delta Lake for a table.
            options: Options of ``spark.read.format("rocketmq")``: the topics, the start and end, and the way
                of reading.
            offsets_per_step: Approximate number of offsets read between two commits.

        Raises:
            OptionError: If an option is wrong, or only for streams.
            RocketMQError: If there is no session.
        """
        check_session(spark, "A Replay")
        self._spark = spark
        self._options = options if isinstance(options, ReadOptions) else ReadOptions.parse(options)
        self._offsets_per_step = offsets_per_step
        problems = self._options.problems_of_batch()
        if problems:
            raise OptionError(tuple(problems), where="replay options")

    def to_table(self, path: str, on_step: OnStep | None = None) -> ReplaySummary:
        """Add every message that a Delta table lacks, by position; create the table if it is missing.

        ``path`` is its path, its URI, or its name, ``SCHEMA.TABLE`` or ``CATALOG.SCHEMA.TABLE``.

        Each step is one commit, and adds no duplicates even if several runs write at the same time; on S3
        this requires a log store for several writers.

        Raises:
            SchemaError: If the table has other columns than the messages.
            OptionError: If a column of the position is not read, or if ``path`` is no valid path or name.
            StorageNotShared: If the path is another folder on an executor.
            RocketMQError: If messages cannot be read, or the session lacks Delta Lake.
        """
        options = self._options
        names = spark_schema(
            consumer_mode=False, columns=options.columns(), property_columns=options.property_columns
        )
        missing = [name for name in POSITION_COLUMNS if name not in names.fieldNames()]
        if missing:
            missed = ", ".join(missing)
            raise OptionError(
                (f"option 'includeColumns' must name {missed}, by which the table recognises messages",)
            )
        spark, name = self._spark, TableName.of(path)
        check_delta(spark)
        table = _made_table(spark, path, name, names)
        address = path if name is None else _location(spark, name)
        _warn_of_other_writers(spark, address)
        _check_columns(path, table.columns, names.fieldNames())
        if is_classic(spark) and not is_on_one_machine(spark):
            # Only Spark can resolve a path without a scheme, which is on Spark's default file system.
            check_shared(spark, {"table": qualified(spark, path) if name is None else address})

        def write(parts: list[QueuePartition]) -> int:
            rows = run_tasks(self._spark, ReadRanges(parts), len(parts), names)
            # One statement makes one commit. SQL is used because Spark Connect has no DeltaTable.
            [counts] = spark.sql(
                "MERGE INTO {table} AS t USING {rows} AS s ON "
                f"{_same_position([part.planned for part in parts])} WHEN NOT MATCHED THEN INSERT *",
                table=table,
                rows=rows,
            ).collect()
            return int(counts["num_inserted_rows"])

        return self._run(_planned(options)[1], write, on_step, in_order=False)

    def to_topic(self, topic: str, record: str, on_step: OnStep | None = None) -> ReplaySummary:
        """Send the messages to ``topic``, with their bodies, properties and flags.

        The messages of each source queue go to one target queue, in their order; later runs with the same
        record go on in that queue. Properties that brokers wrote about the first delivery (delays,
        transactions …) are left out; ``REPLAYED_FROM`` and ``REPLAYED_BY`` are added.

        Args:
            topic: Must exist, unless its brokers create topics; must not be one of those that are read.
            record: Path or URI of the Delta table that shows later runs what was replayed; created if
                missing. On an object store, option ``storageSecrets`` gives access to it. Two runs to one
                topic at the same time must not share this table.
            on_step: Reports progress.

        Raises:
            OptionError: If the topic's name is invalid or it is one of those that are read, or if
                ``spark.speculation`` is on: two copies of a task would send its messages.
            StorageNotShared: If ``record`` is a folder that other machines lack.
            DataLoss: If an earlier run ended within a step and the target no longer shows what it had sent.
                Also if a queue has another log than the recorded one, because its topic was created again.
            TargetQueueAway: If the queue that got a source queue's messages cannot be written to now.
            RocketMQError: If the session is one of Spark Connect, or if messages cannot be read or sent. A
                later run does not send the stored part of the current step again.
        """
        check_classic(
            self._spark,
            "A Replay to a topic",
            "when this process dies, Spark's server continues the current step for minutes, and the next run "
            "would send the same messages a second time; replay into a table, and publish its rows by "
            "df.write, or use a classic session",
        )
        check_speculation(self._spark)
        options = self._options
        topic = _topic_name(without_namespace(options.namespace or "", topic))
        whole = replace(options, include_columns=(), property_columns=(), decode_properties=True)
        starts, found = _planned(whole)
        partitions = {
            queue: replace(one, settings=one.settings._replace(columns=RESEND_COLUMNS))
            for queue, one in found.items()
        }
        if topic in {queue.topic for queue in partitions}:
            problem = (
                f"topic '{topic}' is read and cannot be written to as well; to have its consumers read "
                "messages again, reset their group's offsets"
            )
            raise OptionError((problem,), where="replay options")
        targets = TargetTopic(options, topic)
        recorded = ReplayRecord(
            record,
            topic,
            lambda source: options.subscription_of(source).expression,
            namespace=options.namespace or "",
            storage=StorageOptions.parse(options.storage_secrets),
        )
        check_shared(self._spark, {"record": record})
        self._finish_interrupted(recorded, targets, starts)
        done = recorded.done()
        planned = [one.planned for _, one in sorted(partitions.items())]
        _check_logs(partitions, done)
        check_recorded_targets(planned, starts, done, targets.queues)
        _check_targets(targets, done)
        chosen = recorded_targets(done)
        left_out = [one.source for one in done]
        _warn_of_closed(targets, {part.queue for part in without(planned, left_out)} - chosen.keys())
        run = uuid.uuid4().hex

        def write(parts: list[QueuePartition]) -> int:
            sendings = _with_last(targets.sendings(run, [part.planned for part in parts], chosen), parts)
            recorded.begin(sendings)
            resendings = [
                Resending(partition=part, sending=sending, target=targets.partition(sending.target))
                for part, sending in zip(parts, sendings, strict=True)
            ]
            send = ResendRanges(
                parts=resendings,
                name_servers=options.name_servers,
                send_timeout_s=options.request_timeout_ms / 1000,
                route=targets.route(),
            )
            rows = run_tasks(self._spark, send, len(parts), SENT_SCHEMA).collect()
            sent = {row["task"]: row["sent"] for row in rows}
            recorded.finish([replace(one, sent=sent.get(task)) for task, one in enumerate(sendings)])
            return sum(sent.values())

        return self._run(partitions, write, on_step, in_order=True, done=left_out)

    def _finish_interrupted(
        self, recorded: ReplayRecord, targets: TargetTopic, starts: Mapping[MessageQueue, int]
    ) -> None:
        """Find in the target topic which part of an interrupted step is stored, and record it as replayed.

        If target queues are away, the others are done first, so that the starting offsets in the error leave
        out what the others have. Any other error is therefore raised before this one.

        Raises:
            TargetQueueAway: If a target queue cannot be read, because its broker has no master.
            RocketMQError: If the record or a target queue cannot be read.
        """
        unfinished = recorded.unfinished()
        if not unfinished:
            return
        logger.warning(
            "searching the target for messages that an unfinished step sent ranges=%d", len(unfinished)
        )
        by_target = _by_target(unfinished)
        places, away = _places(targets, by_target)
        if places:
            # Wait: a task of the failed run may still send for a moment, and its last request may be on its
            # way.
            time.sleep(_TASKS_END_S + self._options.request_timeout_ms / 1000)
        ended: list[Sending] = []
        for target, place in places.items():
            sendings = by_target[target]
            begin = min(sending.target_offset for sending in sendings)
            bounds, highest = read_tail(place, sendings, begin)
            for sending, offset in zip(sendings, highest, strict=True):
                fails = self._options.fail_on_data_loss
                until = sending.stored_until(offset, bounds, fail_on_data_loss=fails)
                ended.append(replace(sending, source=replace(sending.source, end=until)))
        if ended:
            recorded.finish(ended)
        for target, cause in away.items():
            raise away_error(by_target[target][0].source.queue, target, starts, recorded.done()) from cause

    def _run(
        self,
        partitions: Mapping[MessageQueue, QueuePartition],
        write: Callable[[list[QueuePartition]], int],
        on_step: OnStep | None,
        *,
        in_order: bool,
        done: Iterable[QueueRange] = (),
    ) -> ReplaySummary:
        """Write the ranges of ``partitions`` step by step, except the ranges ``done``.

        ``write`` gets the ranges of one step, one for each task, and returns the number of rows or messages
        written. With ``in_order``, each step has one task for a queue. Otherwise, several tasks may read
        parts of one queue's range.
        """
        begun_s = time.monotonic()
        planned = [one.planned for _, one in sorted(partitions.items())]
        left = without(planned, done)
        total = sum(one.count for one in left)
        steps = steps_of(left, self._offsets_per_step)
        written = finished = 0
        for step in steps:
            if on_step is not None:
                on_step(finished, total)
            parts = step if in_order else self._split(step)
            written += write([replace(partitions[part.queue], planned=part) for part in parts])
            finished += sum(one.count for one in step)
        if on_step is not None:
            on_step(finished, total)
        return ReplaySummary(
            queues=len(planned),
            planned=sum(one.count for one in planned),
            recorded=sum(one.count for one in planned) - total,
            written=written,
            steps=len(steps),
            seconds=time.monotonic() - begun_s,
        )

    def _split(self, step: Sequence[QueueRange]) -> list[QueueRange]:
        """Split the step's ranges into about ``minPartitions`` parts, by default one for each core."""
        wanted = self._options.min_partitions or cores(self._spark)
        return split_ranges(step, min_partitions=wanted, max_records=self._options.max_records_per_partition)


def _location(spark: SparkSession, name: TableName) -> str:
    [detail] = spark.sql(f"DESCRIBE DETAIL {name.sql}").collect()
    return str(detail["location"])


def _warn_of_other_writers(spark: SparkSession, address: str) -> None:
    problem = log_store_problem(address, lambda name: spark.conf.get(name, None))
    if problem is not None:
        logger.warning(
            "nothing else may write the table while the replay runs path=%s: %s", masked(address), problem
        )


def _made_table(spark: SparkSession, path: str, name: TableName | None, columns: StructType) -> DataFrame:
    """Return the table; create it if it is missing."""
    writer = spark.createDataFrame([], columns).write.format("delta").mode("ignore")
    try:
        if name is not None:
            writer.saveAsTable(name.sql)
            return spark.read.table(name.sql)
        writer.save(path)
        return spark.read.format("delta").load(path)
    except PySparkException as error:
        if error.getCondition() != "DATA_SOURCE_NOT_FOUND":
            raise
        raise RocketMQError(NO_DELTA) from error


def _planned(options: ReadOptions) -> tuple[dict[MessageQueue, int], dict[MessageQueue, QueuePartition]]:
    """Return where each queue begins, and a partition for each with messages, as for a batch read."""
    whole = replace(options, min_partitions=None, max_records_per_partition=None)
    starts, parts = RocketMQBatchReader(whole).plan()
    return starts, {one.planned.queue: one for one in parts if isinstance(one, QueuePartition)}


def _check_logs(partitions: Mapping[MessageQueue, QueuePartition], done: Iterable[Sending]) -> None:
    """Check that the source queues still have the logs whose ranges are recorded as replayed.

    All recorded ranges of these queues are checked, also those that this run does not read. Otherwise the
    record would get ranges of two logs.

    Raises:
        DataLoss: If a queue has another log than the recorded one.
        TransportError: If a slave seems to have another log: it may lack messages, or have an older log.
        RocketMQError: If a broker does not answer.
    """
    recorded: dict[MessageQueue, list[Sending]] = {}
    for one in done:
        if one.source.queue in partitions:
            recorded.setdefault(one.source.queue, []).append(one)
    places = {queue: last_of(ranges).queue_offset for queue, ranges in recorded.items()}
    for queue, found in _found_at(places, partitions).items():
        if isinstance(found, RocketMQError):
            raise found
        try:
            check_same_log(recorded[queue], found.message, found.bounds)
        except DataLoss:
            part = partitions[queue]
            if part.is_slave or brokers_of(part).is_slave(part.address, queue.broker_name):
                raise TransportError(
                    part.address,
                    f"the broker there is a slave of {queue.broker_name}, and lacks messages of {queue} that "
                    "were replayed. Run the replay again when the master is back.",
                ) from None
            raise


def _by_target(sendings: Iterable[Sending]) -> dict[MessageQueue, list[Sending]]:
    found: dict[MessageQueue, list[Sending]] = {}
    for one in sendings:
        found.setdefault(one.target, []).append(one)
    return found


def _places(
    targets: TargetTopic, queues: Iterable[MessageQueue]
) -> tuple[dict[MessageQueue, QueuePartition], dict[MessageQueue, ConnectFailed]]:
    """Return where to read each of ``queues``, and the errors of those whose broker has no master."""
    places: dict[MessageQueue, QueuePartition] = {}
    away: dict[MessageQueue, ConnectFailed] = {}
    for queue in queues:
        try:
            places[queue] = targets.partition(queue)
        except ConnectFailed as error:
            away[queue] = error
    return places, away


def _check_targets(targets: TargetTopic, done: Iterable[Sending]) -> None:
    """Check that the target's queues may still have the messages that are recorded as stored in them.

    Queues that cannot be written to now are passed over: ``check_recorded_targets`` has found that nothing
    will be sent to them.

    Raises:
        DataLoss: If a queue ends before its recorded messages do.
        TransportError: If a slave is listed as a queue's master, because it may lack messages.
        RocketMQError: If a broker does not answer.
    """
    for target, sendings in _by_target(one for one in done if one.target in targets.queues).items():
        bounds = master_bounds(targets.partition(target))
        for one in sendings:
            one.check_target(bounds)


def _warn_of_closed(targets: TargetTopic, sources: Collection[MessageQueue]) -> None:
    """Warn if target queues cannot be written to now that would else get the messages of ``sources``.

    ``sources`` are queues without a recorded target queue. Their messages keep their order in any queue, so
    the run goes on.
    """
    closed = {(queue.broker_name, queue.queue_id) for queue in targets.closed()} if sources else set()
    if elsewhere := sorted(queue for queue in sources if (queue.broker_name, queue.queue_id) in closed):
        logger.warning(
            "queues of the target cannot be written to now: their brokers have no master, or the topic is "
            "read-only there. So the messages of these source queues go to other queues, also in later runs "
            "with this record: %s",
            "; ".join(map(str, elsewhere)),
        )


def _with_last(sendings: Sequence[Sending], parts: Iterable[QueuePartition]) -> list[Sending]:
    """Return the sendings, each with the last message of its range if the broker shows that message now."""
    of_queue = {part.planned.queue: part for part in parts}
    found = _found_at({queue: part.planned.end - 1 for queue, part in of_queue.items()}, of_queue)
    return [
        one
        if isinstance(at_end := found[one.source.queue], RocketMQError)
        else replace(one, last=at_end.message)
        for one in sendings
    ]


def _found_at(
    places: Mapping[MessageQueue, int], partitions: Mapping[MessageQueue, QueuePartition]
) -> dict[MessageQueue, Found | RocketMQError]:
    def look(queue: MessageQueue) -> Found:
        part = partitions[queue]
        return found_at(brokers_of(part), part.settings.consumer_group, queue, places[queue], part.address)

    return outcomes_at_queues(places, look)


def _same_position(ranges: Sequence[QueueRange]) -> str:
    """Return the SQL condition under which rows ``t`` and ``s`` are the same message.

    It also names the topics and offsets of ``ranges``, so that Delta can skip files.
    """
    same = " AND ".join(f"t.{name} = s.{name}" for name in POSITION_COLUMNS)
    topics = ", ".join(f"'{topic}'" for topic in sorted({one.queue.topic for one in ranges}))
    first, end = min(one.start for one in ranges), max(one.end for one in ranges)
    return f"{same} AND t.topic IN ({topics}) AND t.queueOffset >= {first} AND t.queueOffset < {end}"


def _check_columns(path: str, has: Collection[str], wanted: Collection[str]) -> None:
    more, less = sorted(set(has) - set(wanted)), sorted(set(wanted) - set(has))
    if more or less:
        differences = " and ".join(
            [f"lacks {', '.join(less)}"] * bool(less) + [f"also has {', '.join(more)}"] * bool(more)
        )
        raise SchemaError(
            f"The table {path} {differences}, so its columns are not those of the messages. Choose the "
            "table's columns with includeColumns and propertyColumns, or name another table."
        )


def _topic_name(topic: str) -> str:
    try:
        return _TOPIC_NAME(topic)
    except ValueError as error:
        raise OptionError((f"topic {peer_text(topic)!r} {error}",), where="replay options") from None
