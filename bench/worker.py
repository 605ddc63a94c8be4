"""Processor time of a real-time query's worker, without Spark: pulls, listener and files of one task."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from bench.contenders import LISTENER_BATCH
from bench.feeder import BODY, Feeder
from bench.histogram import percentile
from bench.measure import Result, load_average, markdown_table
from pyspark_rocketmq.client.pool import ConnectionSettings
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consume.orderly import OrderlySettings
from pyspark_rocketmq.consume.read_range import ReadSettings
from pyspark_rocketmq.consume.turns import RangeInstructions
from pyspark_rocketmq.consumer.engine.direct import OrderlyTask
from pyspark_rocketmq.consumer.engine.orderly import RangeConsumer
from pyspark_rocketmq.consumer.engine.output import Consumed
from pyspark_rocketmq.consumer.engine.range import RangeCuts
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.listeners.row_buffer import gathered
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import (
    OPEN_END,
    BrokerAddress,
    ConsumeOrderlyStatus,
    Message,
    MessageExt,
    MessageQueue,
    QueueRange,
    QueueState,
)
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.sinks.delta.task_files import TaskWriter
from pyspark_rocketmq.source.range_arrivals import RangeArrivals
from pyspark_rocketmq.source.ranges import QueuePartition
from pyspark_rocketmq.wire.columnar.schema import QUEUE_FIELDS

_QUEUES: Final = 4
_COMMIT_INTERVAL_S: Final = 0.5
_WARM_UP_S: Final = 2.0
_METHOD: Final = """\
One task's part of a worker, in this process: {queues} queues of the simulator, which is another process, an orderly listener that
emits a row for each message, and each {interval:g} s a cut, whose rows are written as a file. Messages of 1 KiB come at a steady
rate for {seconds:g} s. *Cores*: processor time of this process in a second. *Listener*: from the feeder's clock before its send to
the call, in milliseconds."""


class _Cuts(RangeInstructions):
    """Instructions that never end a task; the benchmark asks for its cuts."""

    cut: Callable[[], RangeCuts] = staticmethod(RangeCuts)
    is_over = False
    _changed: Callable[[], None] = staticmethod(lambda: None)

    def cut_with(self, cut: Callable[[], RangeCuts]) -> None:
        self.cut = cut

    def notifies(self, changed: Callable[[], None]) -> None:
        self._changed = changed

    def is_given_up(self, queue: MessageQueue) -> bool:  # noqa: ARG002 - all of them
        return self.is_over

    def is_batch_at_work(self) -> bool:
        return not self.is_over

    def end(self) -> None:
        """Give up all queues."""
        self.is_over = True
        self._changed()


class _Listener:
    def __init__(self) -> None:
        self.calls = self.messages = 0
        self.late_ms: list[float] = []

    def __call__(
        self, messages: Sequence[MessageExt], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus:
        heard_ms = time.time() * 1000
        self.calls += 1
        self.messages += len(messages)
        for message in messages:
            context.emit(message, stored=message.store_timestamp, heard=heard_ms)
        self.late_ms.append(heard_ms - messages[0].born_timestamp)
        return ConsumeOrderlyStatus.SUCCESS


class _Figures(NamedTuple):
    cores: float
    threads: dict[str, float]
    per_message_us: float
    per_call_us: float
    messages_per_call: float
    listener_ms: tuple[float, float]

    def cells(self) -> tuple[str, ...]:
        """Return the cells of a row."""
        return (
            f"{self.cores:.3f}",
            f"{self.per_message_us:.0f}",
            f"{self.per_call_us:.0f}",
            f"{self.messages_per_call:.1f}",
            *(f"{each:.1f}" for each in self.listener_ms),
            " ".join(f"{name} {each:.3f}" for name, each in self.threads.items()),
        )


def run(*, rates: Sequence[int] = (1000,), seconds: float = 15.0, rounds: int = 3) -> Result:
    """Measure the processor time at each rate."""
    before = load_average()
    rows: list[tuple[str, ...]] = []
    for rate in rates:
        for _ in range(rounds):
            rows.append((f"{rate:,}", *measure(rate, seconds).cells()))
            print("  " + " | ".join(rows[-1]), flush=True)
    columns = ("messages/s", "cores", "µs/message", "µs/call", "messages/call", "p50", "p99", "threads")
    return Result(
        name="worker",
        title="Worker",
        method=_METHOD.format(queues=_QUEUES, interval=_COMMIT_INTERVAL_S, seconds=seconds),
        columns=(),
        rows=(),
        targets=(),
        load=(before, load_average()),
        page=markdown_table(columns, rows),
    )


@contextmanager
def _simulator() -> Iterator[tuple[str, str]]:
    """Run a cluster; yield the addresses of its name server and its broker."""
    command = [sys.executable, "-m", "broker_sim", "--exit-with-parent", "--queues", str(_QUEUES)]
    with subprocess.Popen(
        [*command, "--retention-bytes", str(256 << 20)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        try:
            assert process.stdout is not None
            found = json.loads(process.stdout.readline())
            yield found["nameServers"], found["brokers"]["broker-a"]
        finally:
            process.kill()


def measure(rate: int, seconds: float) -> _Figures:
    """Return the figures of one task at one rate."""
    topic = "worker"
    with _simulator() as (name_servers, address), tempfile.TemporaryDirectory(prefix="bench-") as folder:
        with Producer(name_servers, producer_group="bench") as producer:
            producer.send(Message(topic=topic, body=BODY))
            queues = producer.queues(topic)
        partitions = [_partition(queue, name_servers, address) for queue in queues]
        task = _Task(partitions, Path(folder))
        with Feeder.running(name_servers, topic, rate):
            task.begin()
            task.cut_for(_WARM_UP_S)
            began_s, cpu_s, of_threads = time.monotonic(), time.process_time(), _threads_s()
            calls, messages, late = task.listener.calls, task.listener.messages, len(task.listener.late_ms)
            task.cut_for(seconds)
            used_s, lasted_s = time.process_time() - cpu_s, time.monotonic() - began_s
            calls, messages = task.listener.calls - calls, task.listener.messages - messages
            late_ms = np.array(task.listener.late_ms[late:])
            threads = {
                name: (each - of_threads.get(name, 0.0)) / lasted_s for name, each in _threads_s().items()
            }
        task.end()
    return _Figures(
        used_s / lasted_s,
        {name: each for name, each in threads.items() if each > 0.001},
        used_s / messages * 1e6,
        used_s / calls * 1e6,
        messages / calls,
        (percentile(late_ms, 50), percentile(late_ms, 99)),
    )


def _threads_s() -> dict[str, float]:
    """Return the processor time of this process's named threads."""
    spent: dict[str, float] = {}
    for thread in threading.enumerate():
        assert thread.ident is not None
        spent[thread.name] = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return spent


def _partition(queue: MessageQueue, name_servers: str, address: str) -> QueuePartition:
    given = {"nameServers": name_servers, "topic": queue.topic}
    options = ReadOptions.parse({**given, "consumerGroup": "bench", "offsetStore": "/not-used"})
    return QueuePartition(
        planned=QueueRange(queue, QueueState(0), OPEN_END),
        address=BrokerAddress(address),
        subscription="*",
        settings=ReadSettings.of(options),
        connection=ConnectionSettings(),
    )


class _Task:
    """A task's thread, and the writing of its cuts."""

    def __init__(self, partitions: Sequence[QueuePartition], folder: Path) -> None:
        columns = OutputColumns.of(StructType().add("stored", "long").add("heard", "double"))
        self.listener = _Listener()
        self._instructions = _Cuts()
        consumer = RangeConsumer(
            self.listener,
            columns,
            OrderlySettings(max_reconsume_times=-1, consume_message_batch_max_size=LISTENER_BATCH),
        )
        self._task = OrderlyTask(RangeArrivals(partitions), consumer, self._instructions, SystemClock())
        self._writer = TaskWriter(
            table_uri=str(folder),
            schema=pa.schema([*QUEUE_FIELDS, *columns.rows.schema]),
            partition_by=(),
            watermarks={each.planned.queue: 0 for each in partitions},
        )
        self._thread = threading.Thread(target=self._run, name="task", daemon=True)

    def begin(self) -> None:
        """Begin to consume."""
        self._thread.start()

    def _run(self) -> None:
        for _ in self._task.consumed():
            pass

    def cut_for(self, seconds: float) -> None:
        """Cut again and again, and write what the cuts have."""
        for _ in range(round(seconds / _COMMIT_INTERVAL_S)):
            time.sleep(_COMMIT_INTERVAL_S)
            self._write(self._instructions.cut().going_on)

    def _write(self, cuts: Sequence[Consumed]) -> None:
        writing = self._writer.open()
        for batch in gathered(chain.from_iterable(consumed.batches() for consumed in cuts)):
            writing.add(batch)
        writing.finish()

    def end(self) -> None:
        """End the task."""
        self._instructions.end()
        self._thread.join()
