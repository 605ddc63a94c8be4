"""A client of Spark Connect with a server of its own, as a notebook has one;
it prints what came of each thing it tries, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import pyspark_rocketmq as rmq
from jobs.running import spark_session
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.publish.keys import by_sharding_key
from pyspark_rocketmq.replay.replay import Replay
from tests.helpers.driver_process import REPO


class Client:
    """What users do."""

    def __init__(self, spark: SparkSession, config: dict[str, str]) -> None:
        self._spark = spark
        self._folder = config["folder"]
        self._source = {"nameServers": config["nameServers"], "topic": config["source"]}
        self._target = {"nameServers": config["nameServers"], "topic": config["target"]}

    def register(self) -> None:
        rmq.register(self._spark)

    def read(self) -> int:
        return self._read(self._source).count()

    def view(self) -> int:
        options = ", ".join(f"{key} '{value}'" for key, value in self._source.items())
        self._spark.sql(f"CREATE TEMPORARY VIEW v USING rocketmq OPTIONS ({options})")
        return int(self._spark.sql("SELECT count(*) FROM v").collect()[0][0])

    def read_stream(self) -> int:
        self._drain(self._stream(), "seen", "memory")
        return self._spark.table("seen").count()

    def write(self) -> int:
        rows = self._read(self._source).orderBy("queueId", "queueOffset")
        keyed = by_sharding_key(rows.selectExpr("body", "keys", "keys AS shardingKey"))
        keyed.write.format("rocketmq").options(**self._target).mode("append").save()
        return self._read(self._target).count()

    def write_stream(self) -> int:
        self._drain(self._stream().selectExpr("body", "keys"), "written", "rocketmq", **self._target)
        return self._read(self._target).count()

    def push_consumer(self) -> None:
        servers = self._source["nameServers"]
        consumer = rmq.PushConsumer(consumer_group="g", name_servers=servers, offset_store=self._folder)
        consumer.subscribe(self._source["topic"])
        consumer.register_message_listener(
            lambda messages, context: None, orderly=True, output_schema="a int"
        )
        consumer.start(self._spark, checkpoint=self._folder)

    def replay(self) -> None:
        Replay(self._spark, self._source)

    def job(self) -> None:
        with spark_session("demo"):
            pass

    def _read(self, options: dict[str, str]) -> DataFrame:
        return self._spark.read.format("rocketmq").options(**options).load()

    def _stream(self) -> DataFrame:
        reader = self._spark.readStream.format("rocketmq").options(**self._source)
        return reader.option("startingOffsets", "earliest").load()

    def _drain(self, rows: DataFrame, name: str, form: str, **options: str) -> None:
        writer = rows.writeStream.format(form).queryName(name).options(**options).trigger(availableNow=True)
        writer.option("checkpointLocation", str(Path(self._folder, name))).start().awaitTermination()


def main(config: dict[str, str]) -> dict[str, object]:
    """Try everything once."""
    # The server is a child of this process, and has no Delta Lake, which the jobs' configuration wants.
    os.environ |= {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CONF_DIR": str(REPO / "conf" / "none"),
    }
    builder = SparkSession.builder.remote("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.warehouse.dir", str(Path(config["folder"], "warehouse"))).getOrCreate()
    client = Client(spark, config)
    found: dict[str, object] = {"session": type(spark).__module__}
    for attempt in (
        client.register,
        client.read,
        client.view,
        client.read_stream,
        client.write,
        client.write_stream,
        client.push_consumer,
        client.replay,
        client.job,
    ):
        try:
            found[attempt.__name__] = attempt()
        except RocketMQError as error:
            found[attempt.__name__] = str(error)
    spark.stop()
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))) + "\n")
