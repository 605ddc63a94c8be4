"""A message that becomes more rows than memory has room for."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructType

from pyspark_rocketmq.client.producer.send_back import SendBackSettings
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consume.concurrent import ConcurrentSettings
from pyspark_rocketmq.consume.orderly import OrderlySettings
from pyspark_rocketmq.consume.part import Part
from pyspark_rocketmq.consumer.engine.concurrent import ConcurrentEngine
from pyspark_rocketmq.consumer.engine.direct import DirectEngine
from pyspark_rocketmq.consumer.engine.orderly import OrderlyRun, RangeConsumer
from pyspark_rocketmq.consumer.engine.output import Consumed
from pyspark_rocketmq.consumer.engine.task import Engine, TaskParts
from pyspark_rocketmq.listeners.context import (
    ConsumeConcurrentlyContext,
    ConsumeOrderlyContext,
    DeliveryContext,
)
from pyspark_rocketmq.listeners.forms import form_of
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import ConsumeOrderlyStatus, MessageExt, MessageModel, QueueRange
from pyspark_rocketmq.sinks.delta.task_files import TaskWriter
from pyspark_rocketmq.wire.columnar.schema import POSITION_FIELDS
from tests.helpers.messages import QUEUE, message_at
from tests.helpers.source_rows import rows_of, source_of

OUTPUT = StructType().add("n", "long").add("text", "string")
TABLE = pa.schema(
    [
        *POSITION_FIELDS,
        ("n", pa.int64()), ("text", pa.string()),
    ]
)  # fmt: skip
PLANNED = QueueRange.between(QUEUE, 10, 13, epoch=1)
ENGINES = ["orderly", "concurrent"]
BOUND_BYTES = 130 << 20
"""What they may add to a process; a million as Python's objects take twice that."""


class Many:
    """A listener that yields ``count`` rows for each message,
    and fails after those of offset ``fails_at``.
    """

    def __init__(self, count: int, fails_at: int = -1) -> None:
        self._count = count
        self._fails_at = fails_at

    def __call__(self, messages: Sequence[MessageExt], context: DeliveryContext) -> Any:
        for message in messages:
            for n in range(self._count):
                context.emit(message, n=n, text=f"row {n} of {message.queue_offset}")
            if message.queue_offset == self._fails_at:
                raise ValueError("after all rows")
        return "SUCCESS" if type(context).__name__ == "ConsumeOrderlyContext" else "CONSUME_SUCCESS"


def generator(count: int) -> Any:
    def listener(messages: Sequence[MessageExt], context: DeliveryContext) -> Iterator[dict[str, Any]]:
        for n in range(count):
            yield {"n": n, "text": f"row {n} of {messages[0].queue_offset}"}

    return listener


def engine_of(kind: str, listener: Any) -> Engine:
    send_back = SendBackSettings(name_servers=("127.0.0.1:1",), consumer_group="billing")
    if kind == "orderly":
        return DirectEngine(RangeConsumer(listener, OutputColumns.of(OUTPUT), OrderlySettings(), send_back))
    settings = ConcurrentSettings(message_model=MessageModel.BROADCASTING)
    return ConcurrentEngine(form_of(listener, orderly=False), OUTPUT, settings, send_back)


def consume(engine: Engine, planned: QueueRange, folder: Path) -> Part:
    """A task's one part, with its files in ``folder``."""
    writer = TaskWriter(table_uri=str(folder), schema=TABLE, partition_by=(), watermarks={QUEUE: 0})
    parts = TaskParts(writer, None)
    for consumed in engine(source_of(rows_of(planned), 9)):
        assert isinstance(consumed, Consumed)
        parts.add(consumed)
    [part] = parts.finish()
    return part


def written(part: Part, folder: Path) -> list[tuple[int, int]]:
    tables = [pq.read_table(folder / file["path"]) for file in part.written]
    rows = pa.concat_tables([table.select(["queueOffset", "n"]) for table in tables])
    return list(zip(rows["queueOffset"].to_pylist(), rows["n"].to_pylist(), strict=True))


def measure(kind: str, count: int, folder: Path) -> None:
    """In a process of its own: how much memory the rows of one message have added."""
    warm_up = QueueRange.between(QUEUE, 1, 2, epoch=1)
    consume(engine_of(kind, generator(100_000)), warm_up, folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    part = consume(engine_of(kind, generator(count)), warm_up, folder)
    added = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    rows = sum(file["num_records"] for file in part.written)
    sys.stdout.write(json.dumps({"added": added, "rows": rows, "emitted": part.emitted}))


@pytest.mark.long
@pytest.mark.parametrize("kind", ENGINES)
def test_a_message_may_become_a_million_rows_in_the_same_memory(kind: str, tmp_path: Path) -> None:
    """H6: the rows are written in files as they come."""
    count = 1_000_000
    command = [
        sys.executable,
        "-c",
        f"from {__name__} import *; measure({kind!r}, {count}, Path({str(tmp_path)!r}))",
    ]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert (found["rows"], found["emitted"]) == (count, count)
    assert found["added"] < BOUND_BYTES


@pytest.mark.parametrize("kind", ENGINES)
def test_rows_of_a_call_that_fails_after_many_of_them_reach_no_file(kind: str, tmp_path: Path) -> None:
    """D3, D5, E2: and those of the calls before it do, in their order."""
    count = 30_000
    part = consume(engine_of(kind, Many(count, fails_at=11)), PLANNED, tmp_path)

    passed = [10] if kind == "orderly" else [10, 12]
    assert written(part, tmp_path) == [(offset, n) for offset in passed for n in range(count)]
    assert part.acks[0].state.next_offset == (11 if kind == "orderly" else 13)
    assert part.emitted == len(passed) * count


def test_rows_of_a_run_of_hours_do_not_fill_the_disk() -> None:
    """I1: the file of the rows that a cut has taken goes with them."""
    output = OutputColumns.of(StructType().add("body", "binary"))
    row = b"." * (256 << 10)

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        for _ in range(130):
            context.emit(body=row)
        return ConsumeOrderlyStatus.SUCCESS

    run = OrderlyRun(
        QueueRange.between(QUEUE, 0, 3),
        [message_at(offset) for offset in range(3)],
        listener=listener,
        output=output,
        settings=OrderlySettings(),
        now_s=SystemClock().monotonic_s,
    )
    sizes = []
    for _ in range(3):
        run.consume(0.0)
        cut = run.cut()
        assert cut is not None
        sizes.append(run._file.is_used)
        assert sum(batch.num_rows for batch in cut.batches()) == 130

    assert sizes == [False, False, False]


def test_many_rows_of_a_message_stay_when_others_of_its_call_have_failed(tmp_path: Path) -> None:
    """E2: rows of later calls are not written over them in the range's temporary file."""

    def listener(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> str:
        first = messages[0].queue_offset
        for n in range(200):
            context.emit(messages[0], n=n, text=f"{first}" * (32 << 10))
        context.ack_index = 0
        return "CONSUME_SUCCESS"

    settings = ConcurrentSettings(
        consume_message_batch_max_size=2, consume_thread_max=1, message_model=MessageModel.BROADCASTING
    )
    send_back = SendBackSettings(name_servers=("127.0.0.1:1",), consumer_group="billing")
    engine = ConcurrentEngine(form_of(listener, orderly=False), OUTPUT, settings, send_back)

    part = consume(engine, QueueRange.between(QUEUE, 10, 14, epoch=1), tmp_path)

    assert written(part, tmp_path) == [(offset, n) for offset in (10, 12) for n in range(200)]
