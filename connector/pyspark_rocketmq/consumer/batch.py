"""Runs each micro-batch on the driver: evaluates it once, and has its results committed.

One Spark job reads the source, calls the listener and writes files. It returns the names of the files, or the
rows if the sink takes no files, and acks with the progress of each queue. No second job evaluates the batch:
it would call the listener again.

While the job runs, tasks may hand over *parts* of their results: a queue goes to another member, or a commit
is due. Another thread commits these parts, one group after the other
(:mod:`~pyspark_rocketmq.hub.driver_end`). It has finished before the rest of the batch is committed.
:mod:`~pyspark_rocketmq.commit.pipeline` commits a group.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from pyspark.sql import DataFrame

from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.commit.pipeline import BatchListener, BatchUnderCommit, Mirror, PartCommitter
from pyspark_rocketmq.consume.part import Group, Part
from pyspark_rocketmq.consumer.engine.task import RESULT_COLUMNS, BatchTask, Engine
from pyspark_rocketmq.hub.driver_end import BatchEnd, Committed, DriverControl
from pyspark_rocketmq.hub.state import Commit
from pyspark_rocketmq.hub.task_end import ControlEndpoint
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.store import OffsetStore, QueueCommit
from pyspark_rocketmq.sinks.base import RowWriter, Sink

logger = logging.getLogger(__name__)

_here = threading.local()
"""Has in ``queries`` the ids of the queries of which the thread runs a batch, or commits a part of one."""


@contextmanager
def _within_batch_of(query_id: str) -> Iterator[None]:
    """Note during the ``with`` block that the calling thread runs or commits a batch of the query."""
    before: tuple[str, ...] = getattr(_here, "queries", ())
    _here.queries = (*before, query_id)
    try:
        yield
    finally:
        _here.queries = before


def is_within_batch_of(query_id: str) -> bool:
    """Return whether the calling thread runs or commits a batch of the query, as in a batch listener."""
    return query_id in getattr(_here, "queries", ())


class Job(NamedTuple):
    """Result of the Spark job that has evaluated a micro-batch."""

    parts: Sequence[Part]
    """The tasks' results, in parts, except those that tasks handed over while the job ran. If the driver has
    already used its copy of a part, the part is here, too."""
    could_ask: bool | None
    """Whether all tasks that had to connect to the driver could; None if none had to."""
    could_any_ask: bool = False
    """Whether at least one of these tasks could."""


def run_job(
    batch: DataFrame,
    writer: RowWriter | None,
    engine: Engine | None = None,
    terms: ControlEndpoint | None = None,
) -> Job:
    """Evaluate ``batch`` in one Spark job, and return the results of its tasks.

    Args:
        batch: With ``engine``, the planned ranges; without it, the rows to write and acks.
        writer: Writes the rows in the tasks; None without a sink.
        engine: Reads the planned ranges and consumes their messages in the tasks.
        terms: How the tasks connect to the driver; None if they do not.
    """
    names: Sequence[str] = ()
    if engine is None:
        # mapInArrow looks columns up by name, and takes a dot in a name for access to a field. So the columns
        # get plain names here, and the task gives them their own names back.
        names = batch.columns
        batch = batch.toDF(*(f"column{at}" for at in range(len(names))))
    parts: list[Part] = []
    asked: list[bool] = []
    for row in batch.mapInArrow(BatchTask(writer, engine, terms, names), RESULT_COLUMNS).collect():
        parts += map(Part.from_facts, json.loads(row["parts"]))
        if row["could_ask"] is not None:
            asked.append(row["could_ask"])
    return Job(parts, could_ask=all(asked) if asked else None, could_any_ask=any(asked))


class BatchRunner:
    """The ``foreachBatch`` function of a consumer: evaluates each micro-batch and commits its results."""

    def __init__(
        self,
        *,
        consumer_group: str,
        store: OffsetStore,
        sink: Sink | None,
        query_id: Callable[[], str],
        listeners: list[BatchListener],
        mirror: Mirror | None = None,
        engine: Engine | None = None,
        hub: DriverControl | None = None,
        clock: Clock | None = None,
        before_batch: Callable[[], object] = lambda: None,
        keeps_others: bool = False,
    ) -> None:
        """Prepare to run batches.

        With ``engine``, a batch has the source's ranges, and the engine consumes them. Without an engine, a
        batch already has the rows to write, and acks. ``before_batch`` is called at the beginning of each
        batch. ``keeps_others`` decides about a part of a task's result in which the commit of one queue is
        refused. If it is true, and the sink can separate the rows, the part's other queues are still
        committed. Otherwise the whole part is dropped.
        """
        self._before_batch = before_batch
        self._group = consumer_group
        self._query_id = query_id
        self._engine = engine
        self._hub = hub
        self._committed: dict[MessageQueue, QueueCommit] = {}
        """Newest stored offset of each queue in this batch."""
        self._parts = PartCommitter(
            consumer_group=consumer_group,
            store=store,
            sink=sink,
            listeners=listeners,
            mirror=mirror,
            clock=clock or SystemClock(),
            keeps_others=keeps_others,
        )

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Evaluate the batch once and commit it.

        Raises:
            SinkSetBack: If the sink lacks rows below the group's offsets. Nothing was consumed.
            RocketMQError: If data or offsets could not be committed, or tasks that must connect could not.
                The query then ends; when it starts again, Spark runs the batch again, without what is
                committed.
            Exception: The error of the job, if it has failed; it ends the query, too.
        """
        query_id = self._query_id()
        with _within_batch_of(query_id):
            self._before_batch()
            under_commit = self._parts.begin(query_id, batch_id)
            try:
                self._evaluate(batch, under_commit)
            except BaseException:
                if self._hub is not None:
                    self._hub.failed()
                raise

    def _evaluate(self, batch: DataFrame, under_commit: BatchUnderCommit) -> None:
        end = self._run(batch, under_commit)
        if end.rest is not None:
            self._commit(Commit(end.rest), under_commit)
        if self._hub is not None:
            committed = tuple(self._committed.values())
            self._hub.over(end.plan, lambda: self._parts.await_shown(committed))
        if end.failure is not None:
            raise end.failure

    def _run(self, batch: DataFrame, under_commit: BatchUnderCommit) -> BatchEnd:
        """Run the batch's job; return the results that are still to be committed.

        Another thread commits the parts that tasks hand over while the job runs. It has finished when this
        method returns.
        """
        self._committed = {}
        terms = None
        if self._hub is not None:
            terms = self._hub.begin(
                under_commit.batch_id, lambda commit: self._commit_ahead(commit, under_commit)
            )
        if self._hub is None or terms is None:
            job = run_job(batch, under_commit.writer, self._engine)
            return BatchEnd(rest=Group(tuple(job.parts)) if job.parts else None)
        try:
            job = run_job(batch, under_commit.writer, self._engine, terms)
        except BaseException:
            self._hub.cut_short()
            raise
        return self._hub.end(job.parts, could_ask=job.could_ask, could_any_ask=job.could_any_ask)

    def _commit_ahead(self, commit: Commit, under_commit: BatchUnderCommit) -> Committed:
        """Make a commit while the job of the batch still runs.

        If queues are given up with this commit, wait until the brokers have their offsets, for at most 2 s.
        """
        leaving = commit.leaving
        under_commit.left.update(commit.left)
        if leaving:
            logger.info(
                "queues given up before their batch ends group=%s batch=%d queues=%s",
                self._group,
                under_commit.batch_id,
                ", ".join(map(str, sorted(leaving))),
            )
        with _within_batch_of(under_commit.query_id):
            committed = self._commit(commit, under_commit, is_ahead=True)
        self._parts.await_shown([stored for queue, stored in self._committed.items() if queue in leaving])
        return committed

    def _commit(self, commit: Commit, under_commit: BatchUnderCommit, *, is_ahead: bool = False) -> Committed:
        group = commit.group
        if group is None:
            result = self._parts.store_offsets(under_commit, is_ahead=is_ahead)
        else:
            result = self._parts.commit_group(
                group, under_commit, stores_offsets=commit.stores_offsets, is_ahead=is_ahead
            )
        self._committed.update({stored.queue: stored for stored in result.stored})
        return Committed(result.refused, result.took_s)
