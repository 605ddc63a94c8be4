"""Programs that tests submit to a cluster: a listener for job ``consume``, and a user's program.

All that the program has from the tests is the folder with its settings; it consumes until a
file ``enough`` is there. While a file ``armed`` is there, one worker process waits in its listener's call, so
that its machine can be killed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pyspark_rocketmq as rmq

FOLDER = "SUBMITTED_FOLDER"
"""Variable of the executors' environment: a folder that all machines share."""
OUTPUT_SCHEMA = "order_id string, step string, delivered_ns bigint, stored_ms bigint, instance string"
_WAITS_S = 120.0
_POLL_S = 0.02


def on_orders(
    messages: Sequence[rmq.MessageExt], context: rmq.ConsumeOrderlyContext
) -> rmq.ConsumeOrderlyStatus:
    """Emit each message with time and place: each executor has its own folder on its machine."""
    folder = Path(os.environ[FOLDER])
    for message in messages:
        order_id, _, step = message.body.decode().partition(":")
        context.emit(
            order_id=order_id,
            step=step,
            delivered_ns=time.time_ns(),
            stored_ms=message.store_timestamp,
            instance=str(Path.cwd()),
        )
    if (folder / "armed").exists():
        _await_death_if_first(folder)
    return rmq.ConsumeOrderlyStatus.SUCCESS


def _await_death_if_first(folder: Path) -> None:
    note = folder / f"{os.getpid()}.note"
    note.write_text(str(os.getpid()))
    try:
        # Appears as a whole, and for only one process.
        os.link(note, folder / "doomed")
    except FileExistsError:
        return
    # On a machine that is not killed after all, this call continues.
    deadline_s = time.monotonic() + _WAITS_S
    while (folder / "doomed").exists() and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)


def main(folder: Path) -> None:
    """Run until the file ``enough`` is there."""
    from pyspark.sql import SparkSession

    settings = json.loads((folder / "settings.json").read_text())
    (folder / f"{os.getpid()}.driver").touch()
    spark = SparkSession.builder.getOrCreate()

    def consumer(group: str, offset_store: str) -> rmq.PushConsumer:
        made = rmq.PushConsumer(
            consumer_group=group,
            name_servers=settings["nameServers"],
            offset_store=rmq.DeltaOffsetStore(offset_store),
            consume_from_where=rmq.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            instance_name="submitted",
        )
        made.subscribe(settings["topic"])
        made.register_message_listener(on_orders, output_schema=OUTPUT_SCHEMA)
        return made

    refusals = []
    for tables in settings["refused"]:
        sink = rmq.DeltaSink(tables["sink"])
        try:
            consumer("refused", tables["offsetStore"]).start(
                spark, sink=sink, checkpoint=tables["checkpoint"]
            )
        except rmq.RocketMQError as error:
            left = [str(found) for found in Path("private").rglob("*") if found.is_file()]
            refusals.append({"type": type(error).__name__, "text": str(error), "left": left})
    (folder / f"{os.getpid()}.refusals").write_text(json.dumps(refusals))
    ours = consumer(settings["consumerGroup"], settings["offsetStore"])
    query = ours.start(
        spark,
        sink=rmq.DeltaSink(settings["sink"]),
        checkpoint=settings["checkpoint"],
        trigger={"processingTime": "500 milliseconds"},
    )
    while not (folder / "enough").exists():
        query.awaitTermination(1)
        assert query.isActive, "the query has ended by itself"
    assert ours.stop(query, 60.0), "the running work could not be committed"
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
