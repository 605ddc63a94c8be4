"""Consumers, one by each engine, whose listener ends its worker in several ways, each once,
and then consumes the rest.

``python -m tests.helpers.dying_listener_driver CONFIG_JSON``;
a task may fail more often than the listener does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pyspark.sql import SparkSession

from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.delta.files import WrittenFile
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.model import ConsumeFromWhere, ConsumeOrderlyStatus, MessageExt, MessageQueue
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.sinks.base import Writing, Written
from pyspark_rocketmq.sinks.delta.batch import DeltaBatch
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.sinks.delta.task_files import TaskWriter
from tests.helpers.delivery_log import DeliveryLog
from tests.helpers.orders import OUTPUT_SCHEMA
from tests.helpers.spark_session import make_session

CUTTING = "cutting"
"""The consumer, of engine ``direct``, that commits while its micro-batch runs."""
_CALL_S = 0.05
"""How long its listener takes for a call, so that a batch has several commits."""
DEATHS = ("exit", "SystemExit", "KeyboardInterrupt", "SIGKILL")
CUT_DEATHS = ("half-a-part", "a-part-unsent")
"""Where a worker of ``CUTTING`` dies besides: within the writing of a part, and before it is handed over."""


def die(how: str) -> None:
    """End this worker."""
    match how:
        case "exit":
            os._exit(3)
        case "SystemExit":
            sys.exit("enough")
        case "KeyboardInterrupt":
            raise KeyboardInterrupt
        case _:
            os.kill(os.getpid(), signal.SIGKILL)


class DyingListener:
    """A listener that dies in the middle of each of its first four batches."""

    def __init__(self, folder: Path, call_s: float) -> None:
        self._folder = str(folder)
        self._call_s = call_s
        self._log = DeliveryLog(folder / "deliveries")

    def __call__(
        self, messages: Sequence[MessageExt], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus:
        """Emit each message's order and step, and die at every twentieth message,
        as long as there are deaths.
        """
        self._log.note(messages)
        time.sleep(self._call_s)
        for message in messages:
            order_id, _, step = message.body.decode().partition(":")
            context.emit(order_id=order_id, step=step, delivered_ns=time.time_ns())
            if message.queue_offset % 20 == 19:
                self._die_if_it_is_time()
        return ConsumeOrderlyStatus.SUCCESS

    def _die_if_it_is_time(self) -> None:
        for death in DEATHS:
            if is_first(self._folder, death):
                die(death)


def is_first(folder: str, death: str) -> bool:
    """Return whether nobody has died so before, and note it."""
    try:
        Path(folder, f"died-by-{death}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class DyingSink(DeltaSink):
    """A sink whose writer dies in each way once."""

    folder = ""

    def begin(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> Any:
        """Begin a batch."""
        return _DyingBatch(super().begin(consumer_group, queues), self.folder)


class _DyingBatch:
    def __init__(self, batch: DeltaBatch, folder: str) -> None:
        self._batch = batch
        self._folder = folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def task_writer(self) -> _DyingWriter:
        return _DyingWriter(self._batch.task_writer(), self._folder)


class _DyingWriter(NamedTuple):
    writer: TaskWriter
    folder: str

    def open(self) -> _DyingWriting:
        return _DyingWriting(self.writer.open(), self.folder)

    def written(self, facts: Mapping[str, Any]) -> WrittenFile:
        return self.writer.written(facts)


class _DyingWriting:
    finished: ClassVar[int] = 0
    """Parts of this process."""

    def __init__(self, writing: Writing, folder: str) -> None:
        self._writing = writing
        self._folder = folder
        self.add = writing.add
        self.abandon = writing.abandon

    def finish(self) -> Sequence[Written]:
        _DyingWriting.finished += 1
        self._die(CUT_DEATHS[0])
        written = self._writing.finish()
        self._die(CUT_DEATHS[1])
        return written

    def _die(self, how: str) -> None:
        # Not with the first part, so that others of the batch are committed.
        if self.finished > 1 and is_first(self._folder, how):
            die("SIGKILL")


def main(config: Mapping[str, Any]) -> None:
    """Consume everything there is."""
    spark = make_session(Path(config["work"]), max_failures=len(DEATHS) + len(CUT_DEATHS) + 1)
    for engine in config["engines"]:
        _consume(spark, Path(config["work"], engine), engine, config)
    spark.stop()


def _consume(spark: SparkSession, work: Path, engine: str, config: Mapping[str, Any]) -> None:
    work.mkdir()
    is_cutting = engine == CUTTING
    consumer = PushConsumer(
        consumer_group=f"{config['group']}-{engine}",
        name_servers=config["nameServers"],
        offset_store=DeltaOffsetStore(str(work / "offsets")),
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        consume_message_batch_max_size=7,
        orderly_engine="direct" if is_cutting else engine,
        commit_interval="50 milliseconds" if is_cutting else None,
    )
    consumer.subscribe(config["topic"])
    consumer.register_message_listener(
        DyingListener(work, _CALL_S if is_cutting else 0.0), output_schema=OUTPUT_SCHEMA
    )
    sink = (DyingSink if is_cutting else DeltaSink)(str(work / "sink"))
    if isinstance(sink, DyingSink):
        sink.folder = str(work)
    query = consumer.start(
        spark,
        sink=sink,
        checkpoint=str(work / "checkpoint"),
        trigger={"availableNow": True},
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
