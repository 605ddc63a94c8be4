"""The consumers whose latencies are compared: this package's, in real time and in micro-batches, and Java's."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Protocol

import numpy as np
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.histogram import Latencies
from bench.pull_peers import JVM
from bench.row_times import COMMITTED, rows_with_times
from pyspark_rocketmq.commit.pipeline import BatchReport
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.model import ConsumeFromWhere, ConsumeOrderlyStatus, MessageExt
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.sinks.base import Sink
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.helpers.processes import descendants_of, is_planner, is_worker_daemon
from tests.real_broker.artifacts import compile_java, fetch_jars
from tests.real_broker.java_process import java_command, java_environment

LISTENER_BATCH: Final = 32
_MOST_JAVA_MESSAGES: Final = 4_000_000
_OUTPUT_SCHEMA: Final = "stored bigint, heard double"
_PLACE: Final = ("queueId", "queueOffset")
_STOP_S: Final = 60.0


class Times(NamedTuple):
    """Times of each message, in milliseconds since the epoch."""

    stored: Latencies
    """Whole milliseconds."""
    heard: Latencies
    """Time of the listener's call."""
    committed: Latencies | None
    """Time of the commit of the message's row; None if the consumer writes no rows."""

    def between(self, first_ms: float, last_ms: float) -> Times:
        """Return the times of the messages that were stored between two moments."""
        is_in = (self.stored >= first_ms) & (self.stored < last_ms)
        committed = None if self.committed is None else self.committed[is_in]
        return Times(self.stored[is_in], self.heard[is_in], committed)

    def to_listener(self) -> Latencies:
        """Whole milliseconds from store to listener."""
        latencies: Latencies = np.floor(self.heard) - self.stored
        return latencies

    def to_row(self) -> Latencies:
        """Milliseconds from store to the committed row; empty if the consumer writes no rows."""
        return np.array([]) if self.committed is None else self.committed - self.stored


class Running(Protocol):
    """A consumer at work."""

    def consumed(self) -> int:
        """Return the number of messages whose rows are committed; without rows, those that the listener got.

        Raises:
            RuntimeError: If it has failed.
        """
        ...

    def processes(self) -> Mapping[str, Sequence[int]]:
        """Return the ids of the consumer's processes, by kind of process."""
        ...

    def end(self) -> Times:
        """Stop the consumer; return the times of all messages.

        Raises:
            RuntimeError: If a message has no row or two.
        """
        ...


class Contender(Protocol):
    """A way to consume a topic, in a new group."""

    name: str

    @contextmanager
    def running(self, name_servers: str, topic: str, folder: Path) -> Iterator[Running]:
        """Consume during the block, from the topic's beginning."""
        ...


def note_times(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    """Emit a row with the times of each message."""
    heard_ms = time.time() * 1000
    for message in messages:
        context.emit(message, stored=message.store_timestamp, heard=heard_ms)
    return ConsumeOrderlyStatus.SUCCESS


class OurConsumer:
    """A ``PushConsumer`` with an orderly listener and a ``DeltaSink``."""

    def __init__(self, name: str, spark: SparkSession, trigger: Mapping[str, Any], **settings: Any) -> None:
        self.name = name
        self._spark = spark
        self._trigger = trigger
        self._settings = settings

    @contextmanager
    def running(self, name_servers: str, topic: str, folder: Path) -> Iterator[OurQuery]:
        """Run a query during the block; the group has the folder's name."""
        consumer = PushConsumer(
            consumer_group=folder.name,
            name_servers=name_servers,
            offset_store=DeltaOffsetStore(folder / "offsets"),
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            consume_message_batch_max_size=LISTENER_BATCH,
            **self._settings,
        )
        consumer.subscribe(topic)
        consumer.register_message_listener(note_times, orderly=True, output_schema=_OUTPUT_SCHEMA)
        committed = _CommittedRows()
        consumer.register_batch_listener(committed.add)
        query = consumer.start(
            self._spark,
            sink=self._sink(folder),
            checkpoint=folder / "checkpoint",
            trigger=self._trigger,
        )
        try:
            yield OurQuery(self._spark, consumer, query, committed, partial(self._times, folder))
        finally:
            query.stop()

    def _sink(self, folder: Path) -> Sink:
        """Return the sink."""
        return DeltaSink(folder / "sink")

    def _times(self, folder: Path, consumed: int) -> Times:
        """Return the times of all messages, of which so many rows were reported."""
        sink = folder / "sink"
        rows = rows_with_times(sink, [*_PLACE, "stored", "heard"])
        in_table = DeltaTable(sink).to_pyarrow_table(columns=list(_PLACE))
        places = set(zip(*(rows[name].to_pylist() for name in _PLACE), strict=True))
        if not len(places) == len(rows) == len(in_table) == consumed:
            raise RuntimeError(
                f"{len(in_table):,} rows are in the table, {len(rows):,} were committed, {len(places):,} messages "
                f"have any, {consumed:,} rows were reported."
            )
        stored, heard, committed = (
            rows[name].to_numpy().astype(np.float64) for name in ("stored", "heard", COMMITTED)
        )
        return Times(stored, heard, committed)


class _CommittedRows:
    """Number of rows that a query has committed; it keeps no report, since a run may last hours."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, report: BatchReport) -> None:
        self.count += report.rows


class OurQuery:
    """A query of a ``PushConsumer``."""

    def __init__(
        self,
        spark: SparkSession,
        consumer: PushConsumer,
        query: StreamingQuery,
        committed: _CommittedRows,
        times: Callable[[int], Times],
    ) -> None:
        self._consumer = consumer
        self._jvm = int(spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]  # noqa: SLF001
        self._query = query
        self._committed = committed
        self._times = times

    def consumed(self) -> int:
        if self._query.exception() is not None:
            raise RuntimeError(f"The query failed: {self._query.exception()}")
        return self._committed.count

    def processes(self) -> Mapping[str, Sequence[int]]:
        kinds: dict[str, list[int]] = {
            "driver": [os.getpid()],
            "JVM": [self._jvm],
            "planner": [],
            "workers": [],
        }
        for pid in descendants_of(self._jvm):
            if is_planner(pid):
                kinds["planner"].append(pid)
            elif is_worker_daemon(pid):
                kinds["workers"].append(pid)
        return kinds

    def stop(self) -> None:
        """Stop it after the running calls, and commit what was delivered.

        Raises:
            RuntimeError: If that is not done in time.
        """
        if not self._consumer.stop(self._query, _STOP_S):
            raise RuntimeError("What was delivered is not committed in time.")

    def end(self) -> Times:
        self._query.stop()
        return self._times(self.consumed())


class JavaPush:
    """Java's ``DefaultMQPushConsumer`` with an orderly listener that writes nothing, in a separate JVM."""

    name = "Java push"

    def __init__(self) -> None:
        lib = fetch_jars()
        self._environment = java_environment([lib / "*", compile_java(lib)])

    @contextmanager
    def running(self, name_servers: str, topic: str, folder: Path) -> Iterator[_JavaProcess]:
        """Run the JVM during the block."""
        folder.mkdir(parents=True)
        arguments = [name_servers, topic, folder.name, str(LISTENER_BATCH), str(_MOST_JAVA_MESSAGES)]
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                java_command(folder, "PushLatency", arguments, heap=JVM),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
            )
        try:
            yield _JavaProcess(process)
        finally:
            process.kill()
            process.wait(_STOP_S)


class _JavaProcess:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def consumed(self) -> int:
        process_input, output = _pipes(self._process)
        process_input.write("count\n")
        process_input.flush()
        line = output.readline()
        if not line:
            raise RuntimeError("Java's consumer has ended.")
        return int(line)

    def processes(self) -> Mapping[str, Sequence[int]]:
        return {"JVM": [self._process.pid]}

    def end(self) -> Times:
        text, _ = self._process.communicate(timeout=_STOP_S)
        if self._process.returncode:
            raise RuntimeError("Java's consumer got more messages than it can note.")
        pairs = np.array(text.split(), dtype=np.float64).reshape(-1, 2)
        return Times(pairs[:, 0], pairs[:, 1], None)


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout
