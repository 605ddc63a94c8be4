"""Exactly once into a database of the user's: rows and watermarks in one transaction of it.

The batch's rows come to the driver, where a function of the user's writes them through the very transaction that moves
the watermarks: made for micro-batches, not for a backfill of millions at once.  Any DB-API 2 driver will do.

Rule 1: a watermark is moved only from what it was when the batch began.  Whoever comes second, a query that was believed
dead for example, waits for the first one's transaction and then finds no such row: it is refused.
Rule 2: an error of a commit means "unknown".  The watermarks tell what became of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from pyspark_rocketmq.consume.watermark import advance
from pyspark_rocketmq.errors import OffsetError, OptionError, SinkConflict, SinkMoved
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.streaming.arrow_text import rows_to_text, text_to_rows
from pyspark_rocketmq.streaming.known_rows import drop_known_rows
from pyspark_rocketmq.streaming.sink import RowWriter, Writing

logger = logging.getLogger(__name__)

Connection = Any
"""Of DB-API 2: ``cursor()``, ``commit()``, ``rollback()``, ``close()``; not in autocommit mode."""
WriteRows = Callable[[Any, pa.Table], None]
"""Writes rows through a cursor and neither commits nor rolls back; may be called again after an error."""

_PAUSES_S: Final = (0.0, 0.05, 0.2, 1.0, 3.0)
"""Before each further try of a transaction that failed."""
_PLACEHOLDERS = ("?", "%s")


class DatabaseSink:
    """A database that rows are added to exactly once.

    A table of it (``watermark_table``) holds how far it has come: one row per group and queue, made by ``prepare``.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        write: WriteRows,
        *,
        placeholder: str = "?",
        watermark_table: str = "rocketmq_watermarks",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Name the database and what is done with rows.

        Args:
            connect: Opens a connection, on the driver; a new one for each transaction.
            write: Called with a cursor and the rows that are not there yet, an Arrow table with the position of each
                row's message (``topic``, ``brokerName``, ``queueId``, ``queueOffset``) and the listener's columns.
            placeholder: How the driver writes parameters in SQL: ``?`` (sqlite3) or ``%s`` (psycopg, PyMySQL).
            watermark_table: Name of the table of watermarks, with a schema if wanted.
            sleep: How to wait between the tries of a transaction.

        Raises:
            OptionError: If the placeholder is no such, or the name no plain one.
        """
        problems = []
        if placeholder not in _PLACEHOLDERS:
            problems.append(f"placeholder='{placeholder}' is none of {', '.join(_PLACEHOLDERS)}")
        if not all(part.isidentifier() for part in watermark_table.split(".")):
            problems.append(
                f"watermark_table='{watermark_table}' is no plain name such as rocketmq_watermarks"
            )
        if problems:
            raise OptionError(tuple(problems), where="database sink")
        self._connect = connect
        self._watermark_table = watermark_table
        self.write = write
        """See the constructor."""
        self.sql = _Statements(watermark_table, placeholder)
        """The statements about watermarks."""
        self.sleep = sleep
        self._schema: pa.Schema | None = None

    def __repr__(self) -> str:
        return f"DatabaseSink({self._connect!r}, {self.write!r})"

    @property
    def place(self) -> Hashable:
        """See ``Sink.place``; of two functions that connect to one database it knows nothing."""
        return self._connect, self._watermark_table

    def prepare(self, schema: pa.Schema) -> None:
        """Make the table of watermarks if it is missing; the rows' own tables are the user's."""
        with self.transaction() as cursor:
            cursor.execute(self.sql.create)
        self._schema = schema

    def begin(self, consumer_group: str, queues: Collection[MessageQueue]) -> DatabaseBatch:
        """Read the group's watermarks."""
        stored = self.watermarks(consumer_group)
        assert self._schema is not None, "prepare() comes first"
        return DatabaseBatch(
            self,
            consumer_group,
            RowCollector(self._schema, {queue: stored.get(queue, 0) for queue in queues}),
            stored,
        )

    def watermarks(self, consumer_group: str) -> dict[MessageQueue, int]:
        """The next offset of each queue whose rows are there up to it."""
        with self.transaction() as cursor:
            cursor.execute(self.sql.select, (consumer_group,))
            return {
                MessageQueue(topic, broker, int(queue_id)): int(at)
                for topic, broker, queue_id, at in cursor.fetchall()
            }

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A cursor whose work is committed at the end of the block, and undone by an exception."""
        with closing(self._connect()) as connection:
            try:
                with closing(connection.cursor()) as cursor:
                    yield cursor
                connection.commit()
            except BaseException:
                with suppress(Exception):
                    connection.rollback()
                raise


class DatabaseBatch:
    """One micro-batch on its way into the database; made by :meth:`DatabaseSink.begin`."""

    def __init__(
        self,
        sink: DatabaseSink,
        consumer_group: str,
        writer: RowCollector,
        stored: Mapping[MessageQueue, int],
    ) -> None:
        self._sink = sink
        self._group = consumer_group
        self._writer = writer
        self._stored = stored

    def task_writer(self) -> RowWriter:
        """What tasks gather the batch's rows with."""
        return self._writer

    def commit(self, written: Sequence[CollectedRows], acked: Mapping[MessageQueue, int]) -> None:
        """Write the rows and move the watermarks in one transaction.

        Raises:
            SinkMoved: If another consumer moved one of the watermarks since the batch began. Nothing was added.
            SinkConflict: If the transaction kept failing, what the user's function raised included.
            OffsetError: If a queue was not named to ``begin``, or there are rows although no queue grew.
        """
        unknown = [str(queue) for queue in acked if queue not in self._writer.watermarks]
        if unknown:
            raise OffsetError(f"{'; '.join(unknown)}: acknowledged, but not named when the batch began.")
        grown = advance(self._writer.watermarks, acked)
        if not grown:
            if written:
                raise OffsetError(
                    f"Group {self._group}: {sum(len(each.table()) for each in written)} rows come without progress of any queue. Nothing "
                    "was added. Rows of messages that were not acknowledged must not be written."
                )
            return
        rows = pa.concat_tables([self._writer.schema.empty_table(), *(each.table() for each in written)])
        self._commit(rows, grown)

    def _commit(self, rows: pa.Table, grown: Mapping[MessageQueue, int]) -> None:
        failure: Exception | None = None
        for pause_s in (None, *_PAUSES_S):
            try:
                if pause_s is not None:
                    self._sink.sleep(pause_s)
                if failure is None or not self._is_done(grown):
                    self._write(rows, grown)
            except SinkMoved:
                raise
            except Exception as error:
                logger.info("database transaction to be tried again group=%s", self._group, exc_info=True)
                failure = error
            else:
                return
        raise SinkConflict(
            f"{len(rows)} rows of group {self._group} could not be written into the database in {len(_PAUSES_S) + 1} "
            f"tries; the last error was: {type(failure).__name__}: {failure}. Nothing was added; the batch may run "
            "again."
        ) from failure

    def _write(self, rows: pa.Table, grown: Mapping[MessageQueue, int]) -> None:
        with self._sink.transaction() as cursor:
            for queue, next_offset in sorted(grown.items()):
                self._move(cursor, queue, next_offset)
            if len(rows):
                self._sink.write(cursor, rows)

    def _is_done(self, grown: Mapping[MessageQueue, int]) -> bool:
        """Whether a try before, whose end is not known, was committed after all.

        Raises:
            SinkMoved: If somebody else has been there.
        """
        found = self._sink.watermarks(self._group)
        if all(found.get(queue, 0) == self._stored.get(queue, 0) for queue in grown):
            return False
        if all(found.get(queue, 0) == next_offset for queue, next_offset in grown.items()):
            return True
        raise self._moved(next(queue for queue in grown if found.get(queue, 0) != self._stored.get(queue, 0)))

    def _move(self, cursor: Any, queue: MessageQueue, next_offset: int) -> None:
        key = (self._group, queue.topic, queue.broker_name, queue.queue_id)
        if queue in self._stored:
            cursor.execute(self._sink.sql.update, (next_offset, *key, self._stored[queue]))
            if cursor.rowcount != 1:
                raise self._moved(queue)
        else:
            # Who comes second violates the primary key, and finds the other's watermark when it tries again.
            cursor.execute(self._sink.sql.insert, (*key, next_offset))

    def _moved(self, queue: MessageQueue) -> SinkMoved:
        return SinkMoved(
            f"Another consumer of group {self._group} wrote rows of {queue} into the database while this batch ran. "
            "Nothing of this batch was added. If it happens often, two queries own the same queues."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedRows:
    """A task's rows on their way to the driver."""

    rows: str
    """As ``arrow_text`` writes them."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {"rows": self.rows}

    def table(self) -> pa.Table:
        """The rows."""
        return text_to_rows(self.rows)


@dataclass(frozen=True, slots=True)
class RowCollector:
    """Gathers a task's rows that the database does not have; picklable."""

    schema: pa.Schema
    watermarks: Mapping[MessageQueue, int]

    def open(self) -> Writing:
        """See ``RowWriter.open``."""
        return _Collecting(self)

    def written(self, facts: Mapping[str, Any]) -> CollectedRows:
        """See ``RowWriter.written``."""
        return CollectedRows(**facts)


class _Collecting:
    def __init__(self, collector: RowCollector) -> None:
        self._collector = collector
        self._batches: list[pa.RecordBatch] = []

    def add(self, rows: pa.RecordBatch) -> int:
        new = drop_known_rows(rows.select(self._collector.schema.names), self._collector.watermarks)
        if new.num_rows:
            self._batches.append(new.cast(self._collector.schema))
        return int(rows.num_rows - new.num_rows)

    def finish(self) -> list[CollectedRows]:
        if not self._batches:
            return []
        return [CollectedRows(rows=rows_to_text(self._batches, self._collector.schema))]

    def abandon(self) -> None:
        self._batches.clear()


class _Statements:
    """SQL that SQLite, PostgreSQL, MySQL and others understand alike."""

    def __init__(self, table: str, mark: str) -> None:
        key = f"consumer_group = {mark} AND topic = {mark} AND broker_name = {mark} AND queue_id = {mark}"
        self.create = (
            f"CREATE TABLE IF NOT EXISTS {table} (consumer_group VARCHAR(255) NOT NULL, topic VARCHAR(255) NOT NULL, "
            "broker_name VARCHAR(127) NOT NULL, queue_id INTEGER NOT NULL, next_offset BIGINT NOT NULL, "
            "PRIMARY KEY (consumer_group, topic, broker_name, queue_id))"
        )
        self.select = (
            f"SELECT topic, broker_name, queue_id, next_offset FROM {table} WHERE consumer_group = {mark}"  # noqa: S608 - a plain name
        )
        self.update = f"UPDATE {table} SET next_offset = {mark} WHERE {key} AND next_offset = {mark}"  # noqa: S608
        self.insert = f"INSERT INTO {table} VALUES ({', '.join([mark] * 5)})"  # noqa: S608
