"""A writer of a Delta table among others: ``python -m tests.object_stores.writer CONFIG_JSON``.

Prints how many rows it has added, as JSON.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake

from pyspark_rocketmq.delta.compaction import compact
from pyspark_rocketmq.delta.log import LogFiles
from pyspark_rocketmq.delta.storage_options import StorageOptions
from pyspark_rocketmq.delta.table import STORAGE_ERRORS
from pyspark_rocketmq.errors import SinkConflict
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.helpers.sink_rows import files_of
from tests.sinks.sink_conformance import SCHEMA, rows

_MOST_ROWS = 4
_PATIENCE_S = 120.0
"""For so long an OPTIMIZE or a VACUUM is tried."""


def queue_of(writer: str) -> MessageQueue:
    """What it writes rows of."""
    return MessageQueue(writer, "broker-a", 0)


def actions_of(log: LogFiles, version: int) -> list[dict[str, Any]]:
    """What a version's commit says."""
    with log._lines(version) as lines:
        return [json.loads(line) for line in lines if line.strip()]


def has_upkeep(log: LogFiles) -> bool:
    """Whether an OPTIMIZE has replaced files, which nothing else here does, and a VACUUM has removed some."""
    actions = [action for version in log.readable_versions() for action in actions_of(log, version)]
    operations = {action["commitInfo"].get("operation") for action in actions if "commitInfo" in action}
    return "VACUUM END" in operations and any("remove" in action for action in actions)


class Writer:
    """Its rounds."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._name: str = config["name"]
        self._uri: str = config["uri"]
        self._options: dict[str, str] = config["options"]
        self._random = random.Random(f"{config['seed']} {self._name}")
        self._queue = queue_of(self._name)
        self._end = 0

    def sink(self, rounds: int) -> None:
        """Batches of a group of this name, some of them run again in whole or in part."""
        sink = DeltaSink(self._uri, storage_options=self._options)
        sink.prepare(SCHEMA)
        for _ in range(rounds):
            self._end += self._random.randint(1, _MOST_ROWS)
            while not self._is_committed(sink):
                pass
            if self._random.random() < 0.2:
                self._is_committed(sink)

    def _is_committed(self, sink: DeltaSink) -> bool:
        batch = sink.begin(self._name, {self._queue: 0})
        start = max(0, batch.watermarks[self._queue] - self._random.randint(0, 3))
        files = files_of(batch.task_writer(), iter([rows(self._queue, start, self._end)]))
        try:
            batch.commit(files, {self._queue: self._end})
        except SinkConflict:
            # The batch can be repeated.
            return False
        return True

    def append(self, rounds: int) -> None:
        """Plain appends by delta-rs."""
        for _ in range(rounds):
            start, self._end = self._end, self._end + self._random.randint(1, _MOST_ROWS)
            made = pa.Table.from_batches([rows(self._queue, start, self._end)])
            write_deltalake(
                self._uri,
                made,
                mode="append",
                storage_options=self._options,
                # By default it gives up against writers that are quicker.
                commit_properties=CommitProperties(max_commit_retries=1_000),
            )

    def maintain(self, rounds: int) -> None:
        """What operators run, delta-rs' OPTIMIZE among it."""
        self._maintain(rounds, lambda table: table.optimize.compact())

    def compact(self, rounds: int) -> None:
        """The same with this package's compaction instead."""
        log = LogFiles(self._uri, StorageOptions(self._options))
        self._maintain(rounds, lambda table: compact(table, log))

    def _maintain(self, rounds: int, optimize: Callable[[DeltaTable], object]) -> None:
        """Each may be refused because of another commit; goes on until the log has one of each by anybody.

        VACUUM removes at once what OPTIMIZE has replaced; what nobody has committed yet it does not touch.
        """
        log = LogFiles(self._uri, StorageOptions(self._options))
        deadline_s = time.monotonic() + _PATIENCE_S
        for number in itertools.count():
            if number >= rounds and (has_upkeep(log) or time.monotonic() > deadline_s):
                return
            table = DeltaTable(self._uri, storage_options=self._options)
            work: list[Callable[[], object]] = [
                lambda table=table: optimize(table),  # type: ignore[misc]
                lambda table=table: table.vacuum(0, dry_run=False, enforce_retention_duration=False),  # type: ignore[misc]
                table.create_checkpoint,
            ]
            try:
                self._random.choice(work)()
            except STORAGE_ERRORS as error:
                sys.stderr.write(f"{self._name}: {error}\n")

    def run(self, kind: str, rounds: int) -> int:
        """The rows that it has added."""
        kinds = {
            "sink": self.sink,
            "append": self.append,
            "maintain": self.maintain,
            "compact": self.compact,
        }
        kinds[kind](rounds)
        return self._end


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    sys.stdout.write(json.dumps(Writer(given).run(given["kind"], given["rounds"])))
