"""Which ranges were replayed into which topic, in a Delta table that anyone can read: what makes a second run add nothing.

One row for each queue and step, appended after its messages were stored. A crash between the two makes the next run send that
step's messages again: at least once, and each has :data:`REPLAYED_FROM`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageQueue, QueueRange
from pyspark_rocketmq.offsets.table_reading import STORAGE_ERRORS, table_uri
from pyspark_rocketmq.replay.ranges import Stretch

_SCHEMA = pa.schema(
    [
        ("target", pa.string()),
        ("subscription", pa.string()),
        ("topic", pa.string()),
        ("brokerName", pa.string()),
        ("queueId", pa.int32()),
        ("fromOffset", pa.int64()),
        ("untilOffset", pa.int64()),
        ("replayedAt", pa.timestamp("us", tz="UTC")),
    ]
)


class ReplayRecord:
    """Of one target topic.

    What was chosen of a source topic, by tags or SQL92, is part of what was replayed: other messages of the same range are others.
    """

    def __init__(self, path: str | Path, target: str, expression_of: Callable[[str], str]) -> None:
        """Look at ``path`` for what went to ``target``; ``expression_of`` gives the subscription to a source topic."""
        self._path = table_uri(path)
        self._target = target
        self._expression_of = expression_of

    def done(self) -> dict[MessageQueue, list[Stretch]]:
        """What was replayed, by source queue.

        Raises:
            RocketMQError: If the table cannot be read.
        """
        found: dict[MessageQueue, list[Stretch]] = {}
        for target, expression, topic, broker_name, queue_id, start, end in self._rows():
            if target == self._target and expression == self._expression_of(topic):
                found.setdefault(MessageQueue(topic, broker_name, queue_id), []).append((start, end))
        return {queue: sorted(parts) for queue, parts in found.items()}

    def add(self, ranges: Sequence[QueueRange]) -> None:
        """The messages of ``ranges`` are stored.

        Raises:
            RocketMQError: If the table cannot be written: the next run will send these messages again.
        """
        now = datetime.now(UTC)
        rows = [
            (self._target, self._expression_of(one.queue.topic), *one.queue, one.start, one.end, now)
            for one in ranges
        ]
        columns = [
            pa.array(column, field.type)
            for column, field in zip(zip(*rows, strict=True), _SCHEMA, strict=True)
        ]
        try:
            write_deltalake(self._path, pa.Table.from_arrays(columns, schema=_SCHEMA), mode="append")
        except STORAGE_ERRORS as error:
            raise RocketMQError(
                f"{len(ranges)} ranges were replayed to topic {self._target} but could not be recorded in {self._path}: {error} "
                "The next run will send their messages again."
            ) from error

    def _rows(self) -> list[tuple[Any, ...]]:
        """All columns but the last."""
        try:
            if not DeltaTable.is_deltatable(self._path):
                return []
            names = ", ".join(f'"{name}"' for name in _SCHEMA.names[:-1])
            chosen = f"SELECT {names} FROM t"  # noqa: S608 - our own names
            rows = pa.table(QueryBuilder().register("t", DeltaTable(self._path)).execute(chosen))
            return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
        except (*STORAGE_ERRORS, pa.ArrowException) as error:
            raise RocketMQError(
                f"The record of what was replayed could not be read from {self._path}: {error} Check that the storage can be "
                "reached and that it is a table a replay has made."
            ) from error
