"""A Delta table of the ranges replayed into a topic, so that a second run adds no duplicates.

It has two rows for each source queue and step (a set of ranges that are sent together). The first is written
before anything is sent, with the end of the target queue; the second after everything is stored. If the
second row is missing, a later run finds the stored part in the target (:mod:`pyspark_rocketmq.replay.ranges`)
and writes the row. Both rows have the last message of the range, by which a later run notices that the source
queue has another log. The second row has the number of messages that were sent, by which a later run notices
that the target queue has another log. A later run also goes on in the recorded target queues, so that
messages keep their order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from pyspark_rocketmq.delta.paths import table_uri
from pyspark_rocketmq.delta.storage_options import NO_OPTIONS, StorageOptions
from pyspark_rocketmq.delta.table import STORAGE_ERRORS, open_table
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageQueue, QueueRange
from pyspark_rocketmq.replay.ranges import Sending
from pyspark_rocketmq.retry import commit_with_retry
from pyspark_rocketmq.stored_values import LastMessage
from pyspark_rocketmq.wire.columnar.schema import QUEUE_FIELDS
from pyspark_rocketmq.wire.namespace import with_namespace

_SCHEMA = pa.schema(
    [
        ("target", pa.string()),
        ("subscription", pa.string()),
        *QUEUE_FIELDS,
        ("fromOffset", pa.int64()),
        ("untilOffset", pa.int64()),
        ("state", pa.string()),
        ("run", pa.string()),
        ("targetBroker", pa.string()),
        ("targetQueueId", pa.int32()),
        ("targetOffset", pa.int64()),
        ("lastOffset", pa.int64()),
        ("lastStoreTimestamp", pa.int64()),
        ("lastCommitLogOffset", pa.int64()),
        ("sentMessages", pa.int64()),
        ("replayedAt", pa.timestamp("us", tz="UTC")),
    ]
)
_ADDED: Final = frozenset({"lastOffset", "lastStoreTimestamp", "lastCommitLogOffset", "sentMessages"})
"""Columns that a table of an earlier release lacks."""
_NOT_KNOWN: Final = (None, None, None)
_BEGUN: Final = "begun"
"""State of a range that is about to be sent. Such a row no longer counts once the table has a row with state
``stored`` for the same run, queue and start."""
_STORED: Final = "stored"
_PAUSES_S: Final = (0.1, 0.5, 2.0)


class ReplayRecord:
    """The ranges that were replayed into one target topic, each source topic read with one subscription.

    Rows of the table for other targets or subscriptions are ignored.
    """

    def __init__(
        self,
        path: str | Path,
        target: str,
        expression_of: Callable[[str], str],
        *,
        namespace: str = "",
        storage: StorageOptions = NO_OPTIONS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Use the table at ``path``; ``expression_of`` returns the subscription to a source topic."""
        self._path = table_uri(path)
        self._storage = storage
        self._sleep = sleep
        self._bare_target = target
        self._target = with_namespace(namespace, target)
        self._expression_of = expression_of

    def done(self) -> list[Sending]:
        """Return the ranges that were replayed, in the order in which they were recorded.

        Raises:
            RocketMQError: If the table cannot be read.
        """
        return [one for state, one in self._rows() if state == _STORED and one.source.count]

    def unfinished(self) -> list[Sending]:
        """Return ranges that a run began to send and did not record as stored: that run failed or is active.

        Raises:
            RocketMQError: If the table cannot be read.
        """
        rows = self._rows()
        ended = {_identity(one) for state, one in rows if state == _STORED}
        return [one for state, one in rows if state == _BEGUN and _identity(one) not in ended]

    def begin(self, sendings: Sequence[Sending]) -> None:
        """Record that the messages of these ranges are about to be sent.

        Raises:
            RocketMQError: If the table cannot be written; nothing may be sent then.
        """
        self._append(
            _BEGUN,
            sendings,
            "None of their messages was sent. Check that the table can be written, and replay again.",
        )

    def finish(self, sendings: Sequence[Sending]) -> None:
        """Record that the messages of these ranges are stored; a range may end earlier than in ``begin``.

        Raises:
            RocketMQError: If the table cannot be written; the next run finds the messages in the target.
        """
        self._append(
            _STORED,
            sendings,
            "Their messages are sent. Check that the table can be written, and replay again: the next run "
            "finds these messages in the target.",
        )

    def _append(self, state: str, sendings: Sequence[Sending], consequence: str) -> None:
        now = datetime.now(UTC)
        rows = [
            (
                self._target,
                self._expression_of(sending.source.queue.topic),
                *sending.source.queue,
                sending.source.start,
                sending.source.end,
                state,
                sending.run,
                sending.target.broker_name,
                sending.target.queue_id,
                sending.target_offset,
                *(sending.last or _NOT_KNOWN),
                sending.sent,
                now,
            )
            for sending in sendings
        ]
        columns = [
            pa.array(column, field.type)
            for column, field in zip(zip(*rows, strict=True), _SCHEMA, strict=True)
        ]

        def attempt(failure: Exception | None) -> None:
            if failure is not None:
                stored = {_identity(sending) for found, sending in self._rows() if found == state}
                if stored.issuperset(map(_identity, sendings)):
                    return
            self._storage.renew()
            write_deltalake(
                self._path,
                pa.Table.from_arrays(columns, schema=_SCHEMA),
                mode="append",
                # A table of an earlier release lacks columns.
                schema_mode="merge",
                storage_options=self._storage.values_for(self._path),
            )

        unknown = (*STORAGE_ERRORS, RocketMQError)
        try:
            commit_with_retry("record of a replay", attempt, _PAUSES_S, self._sleep, unknown=unknown)
        except unknown as error:
            raise RocketMQError(
                f"{len(sendings)} ranges for topic {self._target} could not be recorded as {state} in "
                f"{self._path}: {self._storage.describe_error(error)} {consequence}"
            ) from error

    def _rows(self) -> list[tuple[str, Sending]]:
        """Return state and range of each row of this target and these subscriptions, oldest first."""
        found = []
        # Each row ends with the time at which it was written. The table returns its rows in any order.
        in_order = sorted(self._table(), key=lambda row: row[-1])
        for target, expression, topic, broker, queue_id, start, end, state, run, *more in in_order:
            if target == self._target and expression == self._expression_of(topic):
                to_broker, to_queue_id, at, *last, sent, _ = more
                sending = Sending(
                    run=run,
                    source=QueueRange.between(MessageQueue(topic, broker, queue_id), start, end),
                    target=MessageQueue(self._bare_target, to_broker, to_queue_id),
                    target_offset=at,
                    last=None if None in last else LastMessage(*last),
                    sent=sent,
                )
                found.append((state, sending))
        return found

    def _table(self) -> list[tuple[Any, ...]]:
        """Return the rows of the whole table, in any order."""
        try:
            self._storage.renew()
            if not DeltaTable.is_deltatable(self._path, self._storage.values_for(self._path)):
                return []
            table = open_table(self._path, self._storage)
            has = {field.name for field in table.schema().fields}
            names = ", ".join(
                f'NULL AS "{name}"' if name in _ADDED - has else f'"{name}"' for name in _SCHEMA.names
            )
            chosen = f"SELECT {names} FROM t"  # noqa: S608 - our own names
            rows = pa.table(QueryBuilder().register("t", table).execute(chosen))
            return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
        except (*STORAGE_ERRORS, pa.ArrowException) as error:
            raise RocketMQError(
                f"The record of what was replayed could not be read from {self._path}: "
                f"{self._storage.describe_error(error)} "
                "Check that the storage can be reached and that a replay created this table."
            ) from error


def _identity(one: Sending) -> tuple[str, MessageQueue, int]:
    return one.run, one.source.queue, one.source.start
