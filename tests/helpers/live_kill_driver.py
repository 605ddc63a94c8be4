"""A consumer that commits while its batches run, and of which parts die by SIGKILL at one step after the other.

``python -m tests.helpers.live_kill_driver CONFIG_JSON``: started again after each death of its driver, until it
exits by itself. Each death leaves a file ``killed-N``. Once a file ``finish`` has the number of messages that
were sent, it waits for their rows, stops its query in good order and exits.

A death is a point and a victim: a ``worker``, the ``driver``'s Python, or the whole ``group``. A worker dies by
itself at its own points; at those of the driver all workers die.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pyspark_rocketmq.consumer import push_consumer
from pyspark_rocketmq.delta.files import WrittenFile
from pyspark_rocketmq.format import DefaultSource
from pyspark_rocketmq.hub.driver_end import DriverControl
from pyspark_rocketmq.hub.messages import PlanOver, QueuesFree
from pyspark_rocketmq.hub.state import Action, HubState, Send
from pyspark_rocketmq.hub.task_end import TaskControl
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
from pyspark_rocketmq.sinks.base import RowWriter, Sink, Span, Writing, Written
from pyspark_rocketmq.sinks.delta.batch import DeltaBatch
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.sinks.delta.task_files import TaskWriter
from pyspark_rocketmq.source.readers import RocketMQStreamReader
from tests.helpers import passes
from tests.helpers.delivery_log import DeliveryLog
from tests.helpers.killing_database import count_rows, killing_sink
from tests.helpers.orders import OUTPUT_SCHEMA
from tests.helpers.processes import all_pids, is_worker_daemon, parent_of, session_of
from tests.helpers.spark_session import make_session

WORKER_POINTS = ("in_cut", "part_written", "part_sent", "part_taken", "at_end")
"""A file is half written, is written; a part has left, the driver has it; the task is about to end."""
DRIVER_POINTS = (
    "part_received",
    "before_data_commit",
    "after_data_commit",
    "after_offset_commit",
    "before_free",
    "between_batches",
)
PLANNER_POINTS = ("after_plan",)
"""The plan is in Spark's log, and nothing of it is read."""
VICTIMS = ("driver", "group")
"""After the death of one of these the consumer is started again; after a worker's its query goes on."""

_OF_BATCHES = frozenset({"at_end", "before_free", "between_batches", "after_plan"})
_FIRST_DEADLY = 3
"""How often a process passes a point before one dies there, but for those that a batch has only once."""
_CALL_S = 0.004
"""How long a call of the listener takes, so that a micro-batch has several commits."""
_COMMIT_INTERVAL = "50 milliseconds"
_PATIENCE_S = 400.0
_is_patched = False


def deaths_at(points: Sequence[str], *, first: str) -> list[tuple[str, str]]:
    """Return for each point the death of a worker, then by turns of a driver and a group, ``first`` before the other.

    So two tests with different ``first`` have each victim at each point. No worker runs while the planner plans.
    """
    victims = itertools.cycle(VICTIMS if first == VICTIMS[0] else VICTIMS[::-1])
    by_point = [[(point, "worker"), (point, next(victims))] for point in points]
    return [*itertools.chain(*by_point), *((point, next(victims)) for point in PLANNER_POINTS)]


@dataclass(frozen=True, kw_only=True)
class Killer:
    """Kills the victims of ``deaths``, one after the other; each is a point and a victim."""

    folder: str
    deaths: Sequence[Sequence[str]]
    driver: int
    """Id of the driver's process."""

    def passed(self, point: str) -> None:
        """Kill the victim if this is the point where it is to die."""
        turn = len(list(Path(self.folder).glob("killed-*")))
        if turn >= len(self.deaths) or self.deaths[turn][0] != point or self._is_dying(turn - 1):
            return
        passes.PASSES[turn, point] += 1
        if passes.PASSES[turn, point] < (1 if point in _OF_BATCHES else _FIRST_DEADLY):
            return
        try:
            with Path(self.folder, f"killed-{turn}").open("x") as file:
                file.write(str(self.driver))
        except FileExistsError:
            return
        self._kill(self.deaths[turn][1])

    def _is_dying(self, turn: int) -> bool:
        """Return whether this driver dies of that turn: its other threads and its workers still run a moment."""
        if turn < 0 or self.deaths[turn][1] == "worker":
            return False
        return Path(self.folder, f"killed-{turn}").read_text() in {"", str(self.driver)}

    def works_here(self) -> None:
        """Have the points of a worker passed in this process."""
        kill_in_worker(self)

    def _kill(self, victim: str) -> None:
        own = os.getpid()
        session = [pid for pid in all_pids() if session_of(pid) == os.getsid(own)]
        daemons = {pid for pid in session if is_worker_daemon(pid)}
        workers = [pid for pid in daemons if parent_of(pid) in daemons]
        victims = {
            "worker": [own] if own in workers else workers,
            "driver": [self.driver],
            "group": [*(pid for pid in session if pid != own), own],
        }
        for pid in victims[victim]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _then(killer: Killer, point: str, function: Callable[..., Any], when: Callable[[Any], bool]) -> Any:
    """Wrap a function: the point is passed after it, when its result is right."""

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if when(result):
            killer.passed(point)
        return result

    return wrapped


def _first(killer: Killer, point: str, function: Callable[..., Any], when: Callable[[Any], bool]) -> Any:
    """Wrap a method: the point is passed before it, when its first argument is right."""

    @wraps(function)
    def wrapped(self: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
        if when(first):
            killer.passed(point)
        return function(self, first, *args, **kwargs)

    return wrapped


def _always(_: object) -> bool:
    return True


def kill_in_worker(killer: Killer) -> None:
    """Have the points of a worker passed, but for those of its writer; once in a process."""
    global _is_patched  # noqa: PLW0603 - one per process is the point
    if _is_patched:
        return
    _is_patched = True
    hand_over = _then(killer, "part_sent", TaskControl.hand_over, bool)
    patch.object(TaskControl, "hand_over", hand_over).start()
    taken = _first(killer, "part_taken", TaskControl._taken, bool)
    patch.object(TaskControl, "_taken", taken).start()
    done = _first(killer, "at_end", TaskControl.done, _always)
    patch.object(TaskControl, "done", done).start()


def kill_in_driver(killer: Killer) -> None:
    """Have the points of the driver's hub passed."""

    def frees(actions: Sequence[Action]) -> bool:
        messages = [each.message for each in actions if isinstance(each, Send)]
        return any(isinstance(message, QueuesFree | PlanOver) for message in messages)

    received = _first(killer, "part_received", HubState.handed_over, _always)
    patch.object(HubState, "handed_over", received).start()
    for name in ("committed", "batch_committed"):
        freeing = _then(killer, "before_free", getattr(HubState, name), frees)
        patch.object(HubState, name, freeing).start()
    over = _then(killer, "between_batches", DriverControl.over, _always)
    patch.object(DriverControl, "over", over).start()


class KillingReader(RocketMQStreamReader):
    """Plans with a point."""

    def __init__(self, options: ReadOptions, killer: Killer) -> None:
        super().__init__(options)
        self._killer = killer

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_killer": self._killer}

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        """Spark has written the plan to its log when it asks."""
        self._killer.passed("after_plan")
        return super().partitions(start, end)


class KillingStore(DeltaOffsetStore):
    """An offset store with a point."""

    killer: Killer

    def commit(
        self, consumer_group: str, commits: Sequence[QueueCommit], *, query_id: str, batch_id: int
    ) -> CommitResult:
        """Commit, then perhaps die."""
        result = super().commit(consumer_group, commits, query_id=query_id, batch_id=batch_id)
        self.killer.passed("after_offset_commit")
        return result


class KillingSink(DeltaSink):
    """A sink with points on the driver and in the tasks."""

    killer: Killer

    def begin(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> Any:
        """Begin a batch."""
        return _KillingBatch(super().begin(consumer_group, queues), self.killer)


class _KillingBatch:
    def __init__(self, batch: DeltaBatch, killer: Killer) -> None:
        self._batch = batch
        self._killer = killer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def task_writer(self) -> RowWriter:
        return _KillingWriter(self._batch.task_writer(), self._killer)

    def commit_group(
        self, files: Sequence[WrittenFile], spans: Mapping[MessageQueue, Span], group_id: str
    ) -> int | None:
        self._killer.passed("before_data_commit")
        version = self._batch.commit_group(files, spans, group_id)
        self._killer.passed("after_data_commit")
        return version


class _KillingWriter(NamedTuple):
    writer: TaskWriter
    killer: Killer

    def open(self) -> _KillingWriting:
        kill_in_worker(self.killer)
        return _KillingWriting(self.writer.open(), self.killer)

    def written(self, facts: Mapping[str, Any]) -> WrittenFile:
        return self.writer.written(facts)


class _KillingWriting:
    def __init__(self, writing: Writing, killer: Killer) -> None:
        self._writing = writing
        self._killer = killer
        self.add = writing.add
        self.abandon = writing.abandon

    def finish(self) -> Sequence[Written]:
        self._killer.passed("in_cut")
        written = self._writing.finish()
        self._killer.passed("part_written")
        return written


def _fails(message: MessageExt, one_in: int) -> bool:
    """Return whether a message fails; another one in each process, as a real listener's failures do."""
    seed = f"{message.body.decode()}{os.getpid()}"
    return message.reconsume_times == 0 and zlib.crc32(seed.encode()) % one_in == 0


def _consume(
    log: DeliveryLog,
    messages: Sequence[MessageExt],
    context: ConsumeOrderlyContext | ConsumeConcurrentlyContext,
) -> MessageExt:
    log.note(messages)
    (message,) = messages
    order_id, _, step = message.body.decode().partition(":")
    context.emit(order_id=order_id, step=step, delivered_ns=time.time_ns())
    time.sleep(_CALL_S)
    return message


def orderly_listener(log: DeliveryLog) -> Any:
    """Make a listener that emits its messages, and gives some back."""

    def in_order(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        if _fails(_consume(log, messages, context), 151):
            context.suspend_current_queue_time_millis = 10
            return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        return ConsumeOrderlyStatus.SUCCESS

    return in_order


def concurrent_listener(log: DeliveryLog) -> Any:
    """Make the same for concurrent consumption: failed messages come again through the retry topic."""

    def any_order(
        messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext
    ) -> ConsumeConcurrentlyStatus:
        if _fails(_consume(log, messages, context), 51):
            context.delay_level_when_next_consume = 1
            return ConsumeConcurrentlyStatus.RECONSUME_LATER
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    return any_order


def make_consumer(config: Mapping[str, Any], killer: Killer) -> tuple[push_consumer.PushConsumer, Sink]:
    """Return the consumer and its sink: a Delta table, or the configured database."""
    work = Path(config["work"])
    store = KillingStore(str(work / "offsets"))
    store.killer = killer
    sink: Sink
    if "database" in config:
        sink = killing_sink(config["database"], killer)
    else:
        sink = killing = KillingSink(str(work / "sink"))
        killing.killer = killer
    consumer = push_consumer.PushConsumer(
        consumer_group=config["group"],
        name_servers=config["nameServers"],
        offset_store=store,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        commit_interval=_COMMIT_INTERVAL,
        orderly_by=config.get("orderlyBy", "queue"),
        # One that was killed comes back under its name, so its locks at the brokers are its own.
        instance_name="killed",
    )
    consumer.subscribe(config["topic"])
    if "columns" in config:
        consumer.register_message_columns(columns_of(config))
        return consumer, sink
    make = orderly_listener if config["isOrderly"] else concurrent_listener
    consumer.register_message_listener(
        make(DeliveryLog(work / "deliveries")), orderly=config["isOrderly"], output_schema=OUTPUT_SCHEMA
    )
    return consumer, sink


def columns_of(config: Mapping[str, Any]) -> list[str]:
    """Return the columns of the sink that name an order and a step."""
    columns: str = config.get("columns", "order_id,step")
    return columns.split(",")


def rows_of(config: Mapping[str, Any]) -> int:
    """Return the number of messages of which the sink has rows."""
    if "database" in config:
        return count_rows(config["database"])
    sink = Path(config["work"]) / "sink"
    if not DeltaTable.is_deltatable(str(sink)):
        return 0
    rows = DeltaTable(sink).to_pyarrow_table(columns=columns_of(config))
    return len(set(zip(*(column.to_pylist() for column in rows.columns), strict=True)))


def main(config: Mapping[str, Any]) -> None:
    """Consume until everything that was sent is in the sink."""
    work = Path(config["work"])
    killer = Killer(folder=str(work), deaths=config["deaths"], driver=os.getpid())
    # Spark 4.0 lets nothing take the place of an installed source, which it looks for with this Python.
    os.environ["PYSPARK_DRIVER_PYTHON"] = "there-is-none"
    spark = make_session(work, max_failures=len(config["deaths"]) + 1)
    kill_in_driver(killer)

    class KillingSource(DefaultSource):
        def streamReader(self, schema: StructType) -> RocketMQStreamReader:  # noqa: N802 - Spark's name
            return KillingReader(self._read_options(), killer)

    patch.object(push_consumer, "register", lambda spark: spark.dataSource.register(KillingSource)).start()
    _run(spark, config, killer)
    spark.stop()


def _run(spark: SparkSession, config: Mapping[str, Any], killer: Killer) -> None:
    work = Path(config["work"])
    consumer, sink = make_consumer(config, killer)
    query = consumer.start(spark, sink=sink, checkpoint=str(work / "checkpoint"), trigger=config["trigger"])
    finish = work / "finish"
    for second in itertools.count():
        if (error := query.exception()) is not None:
            raise error
        if finish.exists() and rows_of(config) == int(finish.read_text()):
            break
        assert second < _PATIENCE_S, f"{rows_of(config)} rows"
        time.sleep(1.0)
    assert consumer.stop(query, _PATIENCE_S)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
