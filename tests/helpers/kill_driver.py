"""Consumers that die together by SIGKILL, each at a given step of its micro-batch, again and again,
and then finish.

``python -m tests.helpers.kill_driver CONFIG_JSON``: started again after each death until it exits by itself.
It is its own process group, and everything in it dies at once: the driver, its JVM and, with their pipes, the
workers. Each kind of consumer has its own group; the first that reaches its point waits there for the
others, so that one start of Spark serves them all.

``after_offset_commit`` and ``before_spark_commit`` are the last two moments our code has before
Spark writes its own commit log entry: the offsets are stored, and the batch listeners are called.
Between the end of ``foreachBatch`` and that entry nothing durable happens, so a death there leaves
the same tables and the same checkpoint behind.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from unittest.mock import patch

from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from pyspark_rocketmq.consumer import push_consumer
from pyspark_rocketmq.delta.files import WrittenFile
from pyspark_rocketmq.format import DefaultSource
from pyspark_rocketmq.listeners.context import ConsumeConcurrentlyContext, ConsumeOrderlyContext
from pyspark_rocketmq.model import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    MessageExt,
    MessageQueue,
)
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.offsets.store import CommitResult, QueueCommit
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.sinks.base import Span
from pyspark_rocketmq.sinks.delta.batch import DeltaBatch
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.source.readers import RocketMQStreamReader
from tests.helpers.orders import OUTPUT_SCHEMA
from tests.helpers.spark_session import make_session
from tests.helpers.wait import wait_until

CONCURRENT = "concurrent"
CONSUMERS = ("state", "direct", CONCURRENT)
"""The engines of an orderly consumer, and a concurrent one."""
KILL_POINTS = ("after_plan", "in_listener", "after_data_commit", "after_offset_commit", "before_spark_commit")

_ALL_THERE_S = 400.0
"""Time limit for all consumers to reach their points on a busy machine."""


@dataclass(frozen=True, kw_only=True)
class Killer:
    """Kills the whole process group when each consumer is at its point,
    each time at least one batch later.
    """

    consumer: str
    points: Mapping[str, Sequence[str]]
    """Where each consumer dies in its first, second … start."""
    folder: str
    process_group: int
    turn: int
    """How often all had died before this start; two tasks that reach the point at once are one death."""

    def reached(self, point: str, batch_id: int | None = None) -> None:
        """Die here if this is the point and, where a batch is named, if its turn has come."""
        is_too_early = batch_id is not None and batch_id < self.turn
        if self.points[self.consumer][self.turn : self.turn + 1] != [point] or is_too_early:
            return
        try:
            self._mark(self.consumer).touch(exist_ok=False)
        except FileExistsError:
            return
        wait_until(
            lambda: all(self._mark(each).exists() for each in self.points),
            _ALL_THERE_S,
            reason=f"Every consumer being where it dies for the {self.turn + 1}. time",
        )
        Path(self.folder, f"killed-{self.turn}").touch()
        os.killpg(self.process_group, signal.SIGKILL)

    def _mark(self, consumer: str) -> Path:
        return Path(self.folder, f"arrived-{self.turn}-{consumer}")


class KillingReader(RocketMQStreamReader):
    """Dies when the plan is in Spark's log and nothing of it is read."""

    def __init__(self, options: ReadOptions, killer: Killer) -> None:
        super().__init__(options)
        self._killer = killer

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_killer": self._killer}

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        """Spark has written the plan to its log when it asks."""
        self._killer.reached("after_plan", end["seq"] - 1)
        return super().partitions(start, end)


class Dying(Protocol):
    """Decides where a process dies."""

    def reached(self, point: str, batch_id: int | None = None) -> None:
        """Die here if this is the point."""
        ...


class KillingStore(DeltaOffsetStore):
    """Dies when the offsets are committed."""

    killer: Dying

    def commit(
        self, consumer_group: str, commits: Sequence[QueueCommit], *, query_id: str, batch_id: int
    ) -> CommitResult:
        """Commit, then perhaps die."""
        result = super().commit(consumer_group, commits, query_id=query_id, batch_id=batch_id)
        self.killer.reached("after_offset_commit", batch_id)
        return result


class KillingSink(DeltaSink):
    """Dies when the data is committed and the offsets are not."""

    killer: Killer

    def begin(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> Any:
        """Begin a batch that dies after its commit."""
        return _KillingBatch(super().begin(consumer_group, queues), self.killer)


class _KillingBatch:
    def __init__(self, batch: DeltaBatch, killer: Killer) -> None:
        self._batch = batch
        self._killer = killer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def commit_group(
        self, files: Sequence[WrittenFile], spans: Mapping[MessageQueue, Span], group_id: str
    ) -> int | None:
        version = self._batch.commit_group(files, spans, group_id)
        self._killer.reached("after_data_commit")
        return version


def make_listener(killer: Killer) -> Any:
    """Make a listener that emits its messages, gives some back, and dies in the middle of a batch."""
    delivered = 0

    def on_orders(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        nonlocal delivered
        (message,) = messages
        order_id, _, step = message.body.decode().partition(":")
        context.emit(order_id=order_id, step=step.rstrip("."), delivered_ns=time.time_ns())
        delivered += 1
        # Within a queue's first range: the direct engine has one queue to a task,
        # and each task its own listener.
        if delivered == 10:
            killer.reached("in_listener")
        # Differs between a batch and its replay, as a real listener's failures do.
        if message.reconsume_times == 0 and zlib.crc32(f"{order_id}{step}{os.getpid()}".encode()) % 151 == 0:
            context.suspend_current_queue_time_millis = 10
            return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        return ConsumeOrderlyStatus.SUCCESS

    return on_orders


def make_concurrent_listener(killer: Killer) -> Any:
    """Make the same for concurrent consumption: failed messages come again through the retry topic."""
    delivered = itertools.count(1)

    def on_orders(
        messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext
    ) -> ConsumeConcurrentlyStatus:
        (message,) = messages
        order_id, _, step = message.body.decode().partition(":")
        context.emit(order_id=order_id, step=step.rstrip("."), delivered_ns=time.time_ns())
        if next(delivered) == 10:
            killer.reached("in_listener")
        if message.reconsume_times == 0 and zlib.crc32(f"{order_id}{step}{os.getpid()}".encode()) % 51 == 0:
            context.delay_level_when_next_consume = 1
            return ConsumeConcurrentlyStatus.RECONSUME_LATER
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    return on_orders


class Consumer:
    """One of the consumers: a group with its own tables and checkpoint."""

    def __init__(self, name: str, config: Mapping[str, Any]) -> None:
        work = Path(config["work"])
        self._config = config
        self._work = work / name
        self._tables = f"{config['tables']}/{name}"
        self._storage_options: dict[str, str] | None = config["storageOptions"]
        self._is_concurrent = name == CONCURRENT
        self.group = f"{config['group']}-{name}"
        self.killer = Killer(
            consumer=name,
            points=config["points"],
            folder=str(work),
            process_group=os.getpgid(0),
            turn=len(list(work.glob("killed-*"))),
        )
        self._engine = "direct" if self._is_concurrent else name

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Begin to consume the messages that are there."""
        options = self._storage_options
        store = KillingStore(self._uri("offsets"), storage_options=options)
        sink = KillingSink(self._uri("sink"), storage_options=options)
        store.killer = sink.killer = self.killer
        consumer = push_consumer.PushConsumer(
            consumer_group=self.group,
            name_servers=self._config["nameServers"],
            offset_store=store,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            max_offsets_per_trigger=self._config["maxOffsetsPerTrigger"],
            orderly_engine=self._engine,
            # A killed consumer comes back under its name, so its locks at the brokers are its own.
            instance_name="killed",
        )
        consumer.subscribe(self._config["topic"])
        consumer.register_message_listener(
            (make_concurrent_listener if self._is_concurrent else make_listener)(self.killer),
            orderly=not self._is_concurrent,
            output_schema=OUTPUT_SCHEMA,
        )
        consumer.register_batch_listener(
            lambda report: self.killer.reached("before_spark_commit", report.batch_id)
        )
        return consumer.start(
            spark, sink=sink, checkpoint=str(self._work / "checkpoint"), trigger={"availableNow": True}
        )

    def _uri(self, table: str) -> str:
        return f"{self._tables}/{table}"

    def has_everything(self) -> bool:
        """Return whether each message that was sent is in the sink."""
        table = DeltaTable(self._uri("sink"), storage_options=self._storage_options)
        rows = table.to_pyarrow_table(columns=["order_id", "step"]).to_pylist()
        return bool(len({(row["order_id"], row["step"]) for row in rows}) == self._config["messages"])


def _has_planner(query: StreamingQuery) -> bool:
    return not query.isActive or "Initializing" not in query.status["message"]


def _drained(consumer: Consumer, spark: SparkSession) -> bool:
    """Run a drain if messages are missing: those sent back in one drain come with the next one."""
    if not consumer.has_everything():
        consumer.start(spark).awaitTermination()
    return consumer.has_everything()


def main(config: Mapping[str, Any]) -> None:
    """Consume everything there is."""
    work = Path(config["work"])
    # Spark 4.0 lets nothing take the place of an installed source, which it looks for with this Python.
    os.environ["PYSPARK_DRIVER_PYTHON"] = "there-is-none"
    spark = make_session(work)
    consumers = {
        consumer.group: consumer for consumer in (Consumer(name, config) for name in config["points"])
    }

    class KillingSource(DefaultSource):
        def streamReader(self, schema: StructType) -> RocketMQStreamReader:  # noqa: N802 - Spark's name
            options = self._read_options()
            return KillingReader(options, consumers[str(options.consumer_group)].killer)

    patch.object(push_consumer, "register", lambda spark: spark.dataSource.register(KillingSource)).start()
    queries = []
    for consumer in consumers.values():
        queries.append(consumer.start(spark))
        # Spark waits at most 10 s for the process that plans,
        # and so many at once may take that on two cores.
        wait_until(partial(_has_planner, queries[-1]), _ALL_THERE_S, reason="The start of a query")
    for query in queries:
        query.awaitTermination()
    concurrent = next((each for each in consumers.values() if each.killer.consumer == CONCURRENT), None)
    if concurrent is not None:
        wait_until(partial(_drained, concurrent, spark), _ALL_THERE_S, reason="What was sent back")
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
