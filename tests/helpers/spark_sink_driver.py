"""A consumer whose sink Spark writes, a table of a Hive metastore or one on S3: it dies by SIGKILL at one step
after the other.

``python -m tests.helpers.spark_sink_driver CONFIG_JSON``: started again after each death until it exits by
itself. In each start it dies the second time it reaches its point. Before each of its commits another
Spark writer adds a row. In the end it writes the table's content and, for a metastore's table, the error
of a start after the table was dropped and made again.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark.sql import DataFrame, SparkSession

from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.delta.hadoop_settings import storage_options_of_spark
from pyspark_rocketmq.delta.paths import TableName
from pyspark_rocketmq.errors import SinkSetBack
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.model import ConsumeFromWhere, ConsumeOrderlyStatus, MessageExt
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.sinks.delta.spark_writer import NameTarget, PathTarget
from tests.helpers.kill_driver import KillingStore
from tests.helpers.orders import OUTPUT_SCHEMA
from tests.helpers.spark_session import make_session

KILL_POINTS = ("before_append", "after_append", "after_offset_commit", "before_spark_commit")
_COLUMNS = "topic STRING, brokerName STRING, queueId INT, queueOffset BIGINT, " + OUTPUT_SCHEMA
_SKIPPED_TIMES = 1


class Killer:
    """Kills the whole process group at its point."""

    def __init__(self, folder: Path, points: Sequence[str]) -> None:
        self._folder = folder
        self._turn = len(list(folder.glob("killed-*")))
        self._point = next(iter(points[self._turn : self._turn + 1]), None)
        self._times = 0

    def reached(self, point: str, batch_id: int | None = None) -> None:
        """Die here if this is the point, and a batch has passed it."""
        if point != self._point:
            return
        self._times += 1
        if self._times > _SKIPPED_TIMES:
            (self._folder / f"killed-{self._turn}").touch()
            os.killpg(os.getpgid(0), signal.SIGKILL)


def kill_around_appends(killer: Killer, kind: type[NameTarget | PathTarget], name: str) -> None:
    """Have the sink die before and after Spark's commit, which comes after another writer's."""
    append = kind.append

    def killing(target: Any, rows: DataFrame, options: Mapping[str, Any]) -> None:
        killer.reached("before_append")
        rows.sparkSession.sql(f"INSERT INTO {name} VALUES ('other', 'b', 0, 0, 'o', 's', 0)")
        append(target, rows, options)
        killer.reached("after_append")

    patch.object(kind, "append", killing).start()


def on_orders(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    """Emit the message."""
    (message,) = messages
    order_id, _, step = message.body.decode().partition(":")
    context.emit(order_id=order_id, step=step, delivered_ns=message.queue_offset)
    return ConsumeOrderlyStatus.SUCCESS


def consume(spark: SparkSession, config: Mapping[str, Any], killer: Killer) -> None:
    """Consume all that is there."""
    work, options = Path(config["work"]), storage_options_of_spark(config["settings"], config["sink"])
    store = KillingStore(config["store"], storage_options=options)
    store.killer = killer
    consumer = PushConsumer(
        consumer_group=config["group"],
        name_servers=config["nameServers"],
        offset_store=store,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        max_offsets_per_trigger=config["maxOffsetsPerTrigger"],
        instance_name="killed",
    )
    consumer.subscribe(config["topic"])
    consumer.register_message_listener(on_orders, output_schema=OUTPUT_SCHEMA)
    consumer.register_batch_listener(lambda _: killer.reached("before_spark_commit"))
    consumer.start(
        spark,
        sink=DeltaSink(config["sink"], storage_options=options),
        checkpoint=str(work / "checkpoint"),
        trigger={"availableNow": True},
    ).awaitTermination()


def main(config: Mapping[str, Any]) -> None:
    """See the module."""
    work = Path(config["work"])
    sink: str = config["sink"]
    is_named = TableName.is_name(sink)
    name = sink if is_named else f"delta.`{sink.replace('s3:', 's3a:', 1)}`"
    killer = Killer(work, config["points"])
    kill_around_appends(killer, NameTarget if is_named else PathTarget, name)
    spark = make_session(work, settings=config["settings"])
    if is_named:
        spark.sql("CREATE DATABASE IF NOT EXISTS shop")
    create = f"{name} ({_COLUMNS}) USING delta TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    spark.sql(f"CREATE TABLE IF NOT EXISTS {create}")
    consume(spark, config, killer)
    rows = spark.table(name).orderBy("queueOffset").collect()
    found: dict[str, Any] = {"rows": [row.asDict() for row in rows], "refusal": None}
    if is_named:
        spark.sql(f"DROP TABLE {name}")
        spark.sql(f"CREATE TABLE {create}")
        try:
            consume(spark, config, killer)
        except SinkSetBack as error:
            found["refusal"] = str(error)
    Path(config["result"]).write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
