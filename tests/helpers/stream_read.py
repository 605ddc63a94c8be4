"""A stream of ``format("rocketmq")`` without Spark: its reader is called as Spark calls it,
in this process.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from pyspark_rocketmq.format import DefaultSource
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.source.ranges import Offset
from pyspark_rocketmq.source.readers import RocketMQStreamReader
from pyspark_rocketmq.spark.version import arrow_schema

_QUICK_REFRESH_MS = "1"


class StreamUnderTest:
    """One query with its checkpoint: the offset log as the JSON that Spark would write."""

    def __init__(self, **options: str) -> None:
        self._source = DefaultSource(options)
        self._reader = self._new_reader()
        self.log: list[str] = []
        """The initial offset, and the end of every batch."""

    def _new_reader(self) -> RocketMQStreamReader:
        return self._source.streamReader(self._source.schema())

    def restart(self, **changed: str) -> None:
        """Continue as a new process with the same checkpoint; options may have changed."""
        self._source = DefaultSource(dict(self._source.options) | changed)
        self._reader = self._new_reader()

    def prepare_available_now(self) -> None:
        """Prepare as Spark does before the first batch of such a run."""
        self._outlast_routes()
        self._reader.prepareForTriggerAvailableNow()

    def plan(self) -> bool:
        """Plan the next batch and log it; return whether there is one."""
        self._outlast_routes()
        if not self.log:
            self.log.append(json.dumps(self._reader.initialOffset()))
        start = self._offset(-1)
        end = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
        if end == start:
            return False
        self.log.append(json.dumps(end))
        return True

    def run(self) -> pa.Table:
        """Read the newest batch of the log, again after a restart."""
        partitions = self._reader.partitions(self._offset(-2), self._offset(-1))
        schema = arrow_schema(self._source.schema())
        batches = [batch for partition in partitions for batch in self._reader.read(partition)]
        return pa.Table.from_batches(batches, schema)

    def next(self) -> pa.Table | None:
        """Return the rows of the next batch; None if there is nothing to do."""
        return self.run() if self.plan() else None

    def next_offsets(self) -> dict[MessageQueue, list[int]] | None:
        """Return the queue offsets of the next batch by queue, in the order of the rows."""
        rows = self.next()
        return None if rows is None else offsets_by_queue(rows)

    def latest(self) -> dict[str, Any]:
        """Return what Spark shows as the source's latest offset."""
        return self._reader.reportLatestOffset()

    def planned(self) -> Mapping[str, Mapping[str, Mapping[str, Mapping[str, int]]]]:
        """Return the ranges of the newest batch, as the checkpoint has them."""
        plan: Mapping[str, Mapping[str, Mapping[str, Mapping[str, int]]]] = self._offset(-1)["plan"]
        return plan

    def _outlast_routes(self) -> None:
        """Where routes are refreshed as often as can be, those of the plan before are too old now."""
        if self._source.options.get("routeRefreshMs") == _QUICK_REFRESH_MS:
            # A test may make a topic in less than the millisecond for which they hold.
            time.sleep(0.0011)

    def _offset(self, number: int) -> Offset:
        offset: Offset = json.loads(self.log[number])
        return offset


def offsets_by_queue(rows: pa.Table) -> dict[MessageQueue, list[int]]:
    """Return queue offsets of rows with the position columns."""
    found: dict[MessageQueue, list[int]] = {}
    for row in rows.select(["topic", "brokerName", "queueId", "queueOffset"]).to_pylist():
        queue = MessageQueue(row["topic"], row["brokerName"], row["queueId"])
        found.setdefault(queue, []).append(row["queueOffset"])
    return found
