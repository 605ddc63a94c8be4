"""Exactly once into the user's database: rows and watermarks in one of its transactions.

A watermark is the next offset of a queue whose rows the database does not have. The batch's rows come to the
Spark driver, where the user's function writes them in the transaction that also moves the watermarks.  This
fits micro-batches, not a backfill of millions of rows in one batch.  Any DB-API 2 database driver works whose
parameters are ``?`` or ``%s``, if the database has savepoints.

With ``commit_in_task`` each task commits by itself (:mod:`~pyspark_rocketmq.sinks.database_task`). The rules
of a transaction: :mod:`~pyspark_rocketmq.sinks.database_batch`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from typing import Final

import pyarrow as pa

from pyspark_rocketmq.errors import OffsetError, OptionError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.retry import commit_with_retry
from pyspark_rocketmq.sinks.against_offsets import SinkStanding, with_newest
from pyspark_rocketmq.sinks.base import QueueGeneration, SinkBatch
from pyspark_rocketmq.sinks.database_batch import (
    DatabaseBatch,
    RowCollector,
    WriteRows,
    committed_by_itself,
    known_to,
    removal_advice,
)
from pyspark_rocketmq.sinks.database_task import (
    CommittingWriter,
    DatabaseAccess,
    ReachDatabase,
    TaskCommittedBatch,
    new_mark,
)
from pyspark_rocketmq.sinks.database_watermarks import (
    PAUSES_S,
    Connection,
    Stored,
    Watermark,
    WatermarkTable,
    shown_error,
)

_PLACEHOLDERS = ("?", "%s")
_WITH_OTHERS: Final = (
    "stop the group's other queries (if any ran, start this one again: its error then counts their commits), "
)


class DatabaseSink:
    """A database to which rows are added exactly once.

    Its table ``watermark_table``, made by ``prepare``, stores the watermarks: one row per group and queue.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        write: WriteRows,
        *,
        placeholder: str = "?",
        watermark_table: str = "rocketmq_watermarks",
        commit_in_task: bool = False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Set the database and the function that writes rows.

        Args:
            connect: Function that opens a connection without autocommit. The Spark driver calls it for each
                transaction.
            write: Function ``write(cursor, rows)`` that writes rows; it must not commit. ``rows`` are those
                that the database lacks, as an Arrow table: the position of each row's message (``topic``,
                ``brokerName``, ``queueId``, ``queueOffset``) and the listener's columns.
            placeholder: Mark for parameters in SQL that the database driver reads: ``?`` (sqlite3) or ``%s``
                (psycopg, PyMySQL).
            watermark_table: Name of the table of watermarks, with a schema if wanted; each sink needs its
                own.
            commit_in_task: Whether each task commits its rows by itself, through a connection that it keeps
                open. It commits when it has nothing to deliver or 5 ms after the first row, but not while an
                earlier commit runs. Each executor must reach the database, and ``connect``, ``write`` and
                ``sleep`` are pickled. Only for a query without another sink.
            sleep: Function that waits between the tries of a transaction.

        Raises:
            OptionError: If the placeholder is neither ``?`` nor ``%s``, or if the table's name is not a plain
                one such as ``rocketmq_watermarks``.
        """
        problems = []
        if placeholder not in _PLACEHOLDERS:
            problems.append(
                f"placeholder='{placeholder}' is wrong: give '?' (sqlite3) or '%s' (psycopg, PyMySQL)"
            )
        if not all(part.isidentifier() for part in watermark_table.split(".")):
            problems.append(
                f"watermark_table='{watermark_table}' is not a plain name such as rocketmq_watermarks"
            )
        if problems:
            raise OptionError(tuple(problems), where="database sink")
        self._connect = connect
        self.write = write
        """Function that writes rows; see the constructor's ``write``."""
        self.sleep = sleep
        self.table = WatermarkTable(connect, watermark_table, placeholder)
        """The table of watermarks: per group and queue, the next offset whose rows are missing."""
        self._placeholder = placeholder
        self.commits_in_task = commit_in_task
        """Whether each task commits its rows by itself; otherwise the driver commits them."""
        self._access: DatabaseAccess | None = None
        """The user's functions, pickled for tasks; None unless tasks commit and :meth:`prepare` is done."""
        self._schema: pa.Schema | None = None

    def __repr__(self) -> str:
        # Leaves out connect, which may contain a password.
        return f"DatabaseSink(watermark_table='{self.table.name}')"

    @property
    def place(self) -> Hashable:
        """A value that identifies the table of watermarks; a query refuses two sinks with the same value.

        Before ``prepare``, the value differs for two ``connect`` functions, even if they open the same
        database.
        """
        return self.table.identity or (self._connect, self.table.name)

    def prepare(self, schema: pa.Schema) -> None:
        """Create the table of watermarks if it is missing; the user creates the tables of rows.

        If ``connect`` fails, its own error is raised.

        Raises:
            OptionError: If the table cannot be created or has another form, or if connections commit by
                themselves. With ``commit_in_task``, also if ``connect``, ``write`` or ``sleep`` cannot be
                pickled.
        """
        if self.commits_in_task:
            self._access = DatabaseAccess.of(
                self._connect,
                self.write,
                self.sleep,
                table=self.table.name,
                placeholder=self._placeholder,
            )
        self.table.prepare(self.sleep)
        self._schema = schema

    def task_check(self) -> Callable[[], str] | None:
        """Return a function with which a task checks that it reaches this database.

        None if tasks do not commit, or before ``prepare``. See ``ReachedByTasks``.
        """
        return None if self._access is None else ReachDatabase(self._access, self.table.identity)

    def begin(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> SinkBatch:
        """Begin a micro-batch: read the group's watermarks.

        ``queues`` has the generation of each queue of the group, a number that grows when the queue's offsets
        start again. When a query starts, it begins a batch without queues, to see what the sink can do. Such
        a batch begins even if ``write`` committed by itself before: without queues, an error could not name
        the rows to remove.

        Raises:
            SinkMoved: If there are rows of a later generation of a queue.
            SinkConflict: If ``write`` committed by itself in an earlier transaction, so that rows may be
                without watermarks.
            OffsetError: If the watermarks cannot be read.
        """
        stored = self._stored(consumer_group)
        if queues and stored.open_attempts:
            generations = {queue: each.generation for queue, each in stored.watermarks.items()} | dict(queues)
            advice = removal_advice(
                self.table, consumer_group, stored.open_attempts, stored.watermarks, generations
            )
            raise committed_by_itself(consumer_group, "an earlier attempt", _WITH_OTHERS + advice)
        assert self._schema is not None, "prepare() comes first"
        known = {
            queue: known_to(consumer_group, queue, stored.watermarks.get(queue, Watermark()), generation)
            for queue, generation in queues.items()
        }
        standings = (self._standing(self.table.identity or "", stored.watermarks, queues),)
        if self._access is not None:
            writer = CommittingWriter(
                access=self._access,
                consumer_group=consumer_group,
                schema=self._schema,
                mark=new_mark(),
                stored=dict(stored.watermarks),
                watermarks=known,
                generations=dict(queues),
            )
            return TaskCommittedBatch(writer=writer, standings=standings)
        return DatabaseBatch(
            sink=self,
            consumer_group=consumer_group,
            writer=RowCollector(self._schema, known),
            stored=dict(stored.watermarks),
            generations=dict(queues),
            standings=standings,
        )

    def standings(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> tuple[SinkStanding, ...]:
        """Return, as the only element, the group's progress as the table of watermarks stores it.

        ``queues`` has the generation of each queue, a number that grows when its offsets start again. Only
        watermarks of these generations are returned. The standing's identity is that of the table of
        watermarks; empty if this table is not there: the rows, which are in other tables, may still be.

        Raises:
            OffsetError: If the watermarks cannot be read.
        """
        identity = self.table.identity or self.table.stored_identity(self.sleep)
        watermarks = {} if identity is None else self._stored(consumer_group).watermarks
        return (self._standing(identity or "", watermarks, queues),)

    def _standing(
        self,
        identity: str,
        stored: Mapping[MessageQueue, Watermark],
        queues: Mapping[MessageQueue, int],
    ) -> SinkStanding:
        named = {
            queue: stored[queue]
            for queue, generation in queues.items()
            if queue in stored and stored[queue].generation == generation
        }
        watermarks = {queue: watermark.next_offset for queue, watermark in named.items()}
        newest = {queue: watermark.newest for queue, watermark in named.items()}
        later = frozenset(
            queue
            for queue, generation in queues.items()
            if queue in stored and stored[queue].generation > generation
        )
        name = f"database table {self.table.name}"
        return with_newest(SinkStanding(name, identity, watermarks, later=later), newest)

    def watermarks(self, consumer_group: str) -> dict[QueueGeneration, int]:
        """Return the stored next offset of each queue of the group, by queue and stored generation.

        The result is empty if the table of watermarks is not there.

        Raises:
            OffsetError: If the watermarks cannot be read.
        """
        if self.table.identity is None and self.table.stored_identity(self.sleep) is None:
            return {}
        stored = self._stored(consumer_group).watermarks
        return {QueueGeneration(queue, each.generation): each.next_offset for queue, each in stored.items()}

    def _stored(self, consumer_group: str) -> Stored:
        """Return the group's rows in the table of watermarks. If reading fails, it is tried a few times.

        Raises:
            OffsetError: If reading keeps failing.
        """
        try:
            return commit_with_retry(
                f"watermarks of group {consumer_group}",
                lambda _: self.table.read(consumer_group),
                PAUSES_S,
                self.sleep,
                unknown=Exception,
            )
        except Exception as error:
            raise OffsetError(
                f"The watermarks of group {consumer_group} in database table {self.table.name} cannot be "
                f"read: {shown_error(error)}. Check that the database can be reached, and start the query "
                "again."
            ) from error
