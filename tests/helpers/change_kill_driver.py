"""A consumer with a change table that dies by SIGKILL, at one step of its commits after the other.

``python -m tests.helpers.change_kill_driver CONFIG_JSON``: started again after each death, until it exits by
itself. It is its own process group, and everything in it dies at the same time. Each death leaves a file.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.delta.snapshot import TableSnapshot
from pyspark_rocketmq.model import ConsumeFromWhere
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.offsets.store import CommitResult, QueueCommit
from pyspark_rocketmq.sinks.change_table.side_tables import Deletions, PastChanges
from pyspark_rocketmq.sinks.change_table.sink import ChangeTable
from tests.helpers.json_changes import JsonEnvelope
from tests.helpers.spark_session import make_session
from tests.sinks.change_rows import MODEL_SCHEMA

STEPS = ("before the deletions", "after the deletions", "after the merge", "after the offsets")


class _Killer:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._turn = len(list(folder.glob("killed-*")))

    def reached(self, step: str) -> None:
        """Die if it is this step's turn; the steps come in their order, so each start makes progress."""
        if STEPS[self._turn : self._turn + 1] != (step,):
            return
        (self._folder / f"killed-{self._turn}").touch()
        os.killpg(os.getpgid(0), signal.SIGKILL)

    def wrap(self, kind: type, name: str, *, before: str | None = None, after: str) -> None:
        """Have a method die before or after it has run."""
        done: Callable[..., Any] = getattr(kind, name)

        def run(*given: Any, **named: Any) -> Any:
            if before is not None:
                self.reached(before)
            result = done(*given, **named)
            self.reached(after)
            return result

        setattr(kind, name, run)


class _KillingStore(DeltaOffsetStore):
    killer: _Killer

    def commit(
        self, consumer_group: str, commits: Sequence[QueueCommit], *, query_id: str, batch_id: int
    ) -> CommitResult:
        """Commit, then perhaps die."""
        result = super().commit(consumer_group, commits, query_id=query_id, batch_id=batch_id)
        self.killer.reached(STEPS[3])
        return result


def consume(spark: SparkSession, config: Mapping[str, Any], store: DeltaOffsetStore) -> StreamingQuery:
    """Begin to consume the changes that are there."""
    folder = Path(config["folder"])
    consumer = PushConsumer(
        consumer_group=config["group"],
        name_servers=config["nameServers"],
        offset_store=store,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        max_offsets_per_trigger=config["maxOffsetsPerTrigger"],
        instance_name="killed",
    )
    consumer.subscribe(config["topic"])
    sink = ChangeTable(
        folder / "table",
        keys=["id"],
        envelope=JsonEnvelope(),
        columns=MODEL_SCHEMA,
        bad_changes="keep",
        stored_as_scd_type=config.get("scdType", 1),
    )
    return consumer.start(
        spark, sink=sink, checkpoint=str(folder / "checkpoint"), trigger={"availableNow": True}
    )


def main(config: Mapping[str, Any]) -> None:
    """Consume everything there is."""
    folder = Path(config["folder"])
    killer = _Killer(folder)
    killer.wrap(Deletions, "record", before=STEPS[0], after=STEPS[1])
    killer.wrap(PastChanges, "record", before=STEPS[0], after=STEPS[1])
    killer.wrap(TableSnapshot, "write_next", after=STEPS[2])
    store = _KillingStore(str(folder / "offsets"))
    store.killer = killer
    spark = make_session(folder)
    consume(spark, config, store).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
