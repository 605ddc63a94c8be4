"""A consumer that kills itself with SIGKILL at given steps of its micro-batches, one after the other, and then finishes.

``python -m tests.helpers.kill_driver CONFIG_JSON``: started anew after each death until it exits by itself.  It is
its own process group, and everything in it dies at once: the driver, its JVM and, with their pipes, the workers.

``after_offset_commit`` and ``before_spark_commit`` are the last two moments our code has before Spark writes its own
commit log entry: the offsets are stored, and the batch listeners are called.  Between the end of ``foreachBatch`` and
that entry nothing durable happens, so a death there leaves the same tables and the same checkpoint behind.
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
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import InputPartition

from pyspark_rocketmq.datasource.format import DefaultSource
from pyspark_rocketmq.datasource.stream_reader import RocketMQStreamReader
from pyspark_rocketmq.model import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    MessageExt,
    MessageQueue,
)
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.offsets.store import CommitResult, QueueCommit
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.streaming import push_consumer
from pyspark_rocketmq.streaming.delta_files import WrittenFile
from pyspark_rocketmq.streaming.delta_sink import DeltaSink, SinkBatch
from pyspark_rocketmq.streaming.listener import ConsumeConcurrentlyContext, ConsumeOrderlyContext
from tests.helpers.orders import OUTPUT_SCHEMA
from tests.helpers.spark_session import make_session

KILL_POINTS = ("after_plan", "in_listener", "after_data_commit", "after_offset_commit", "before_spark_commit")


@dataclass(frozen=True)
class Killer:
    """Kills the whole process group at one of its points a start, each time at least one batch later."""

    points: tuple[str, ...]
    folder: str
    process_group: int
    turn: int
    """How often it had killed before this start; two tasks that reach the point at once are one death."""

    @classmethod
    def of_this_start(cls, points: Sequence[str], folder: Path) -> Killer:
        """One whose turn is told by the marks that earlier ones left in ``folder``."""
        return cls(tuple(points), str(folder), os.getpgid(0), len(list(folder.glob("killed-*"))))

    def reached(self, point: str, batch_id: int | None = None) -> None:
        """Die here if this is the point and, where a batch is named, if its turn has come."""
        is_too_early = batch_id is not None and batch_id < self.turn
        if self.points[self.turn : self.turn + 1] != (point,) or is_too_early:
            return
        Path(self.folder, f"killed-{self.turn}").touch()
        os.killpg(self.process_group, signal.SIGKILL)


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


class KillingStore(DeltaOffsetStore):
    """Dies when the offsets are committed."""

    killer: Killer

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
    batches = 0

    def begin(self, consumer_group: str, queues: Any) -> Any:
        """A batch that dies after its commit."""
        self.batches += 1
        return _KillingBatch(super().begin(consumer_group, queues), self.killer)


class _KillingBatch:
    def __init__(self, batch: SinkBatch, killer: Killer) -> None:
        self._batch = batch
        self._killer = killer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def commit(self, files: Sequence[WrittenFile], acked: Mapping[MessageQueue, int]) -> int | None:
        version = self._batch.commit(files, acked)
        self._killer.reached("after_data_commit")
        return version


def make_listener(killer: Killer) -> Any:
    """A listener that emits what it reads, gives some messages back, and dies in the middle of a batch."""
    delivered = 0

    def on_orders(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        nonlocal delivered
        (message,) = messages
        order_id, _, step = message.body.decode().partition(":")
        context.emit(order_id=order_id, step=step.rstrip("."), delivered_ns=time.time_ns())
        delivered += 1
        # Within a queue's first range: the direct engine has one queue to a task, and each task a listener of its own.
        if delivered == 10:
            killer.reached("in_listener")
        # Differs between a batch and its replay, as a real listener's troubles do.
        if message.reconsume_times == 0 and zlib.crc32(f"{order_id}{step}{os.getpid()}".encode()) % 151 == 0:
            context.suspend_current_queue_time_millis = 10
            return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        return ConsumeOrderlyStatus.SUCCESS

    return on_orders


def make_concurrent_listener(killer: Killer) -> Any:
    """The same for concurrent consumption: what fails comes again through the retry topic."""
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


def main(config: Mapping[str, Any]) -> None:
    """Consume everything there is."""
    work = Path(config["work"])
    killer = Killer.of_this_start(config["points"], work)
    spark = make_session(work)

    class KillingSource(DefaultSource):
        def streamReader(self, schema: Any) -> RocketMQStreamReader:  # noqa: N802 - Spark's name
            return KillingReader(self._read_options(), killer)

    push_consumer.register = lambda session: session.dataSource.register(KillingSource)
    store, sink = KillingStore(str(work / "offsets")), KillingSink(str(work / "sink"))
    store.killer = sink.killer = killer
    consumer = push_consumer.PushConsumer(
        consumer_group=config["group"],
        name_servers=config["nameServers"],
        offset_store=store,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        max_offsets_per_trigger=config["maxOffsetsPerTrigger"],
        orderly_engine=config.get("orderlyEngine", "direct"),
        # What is killed comes back under its name: its locks at the brokers are its own.
        instance_name="killed",
    )
    consumer.subscribe(config["topic"])
    is_concurrent = config.get("isConcurrent", False)
    consumer.register_message_listener(
        (make_concurrent_listener if is_concurrent else make_listener)(killer),
        orderly=not is_concurrent,
        output_schema=OUTPUT_SCHEMA,
    )
    consumer.register_batch_listener(lambda report: killer.reached("before_spark_commit", report.batch_id))
    query = consumer.start(
        spark, sink=sink, checkpoint=str(work / "checkpoint"), trigger={"availableNow": True}
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
