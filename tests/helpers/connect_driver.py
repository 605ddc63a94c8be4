"""A client of Spark Connect with its own server, as in a notebook;
it prints the outcome of everything it tries, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

import pyspark_rocketmq as rmq
from pyspark_rocketmq.cli.running import spark_session
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.publish.keys import by_sharding_key
from pyspark_rocketmq.replay.replay import Replay
from tests.helpers.driver_process import REPO
from tests.helpers.lock_watch import LockWatch, events
from tests.helpers.orders import OUTPUT_SCHEMA, STEPS, check_sink
from tests.helpers.quick_jvm import QUICK_JVM
from tests.helpers.spark_session import delta_jars
from tests.helpers.wait import wait_until


def append_step(
    messages: Sequence[rmq.MessageExt], context: rmq.ConsumeOrderlyContext
) -> rmq.ConsumeOrderlyStatus:
    """Emit the columns that ``check_sink`` reads."""
    for message in messages:
        order_id, step = message.body.decode().split(":")
        context.emit(order_id=order_id, step=step, delivered_ns=time.time_ns())
    return rmq.ConsumeOrderlyStatus.SUCCESS


def append_slowly(
    messages: Sequence[rmq.MessageExt], context: rmq.ConsumeOrderlyContext
) -> rmq.ConsumeOrderlyStatus:
    """Do the same, for so long that a batch has several commits."""
    time.sleep(0.02)
    return append_step(messages, context)


def append_concurrently(
    messages: Sequence[rmq.MessageExt], context: rmq.ConsumeConcurrentlyContext
) -> rmq.ConsumeConcurrentlyStatus:
    """Do the same for concurrent calls."""
    append_step(messages, context)
    return rmq.ConsumeConcurrentlyStatus.CONSUME_SUCCESS


def rows_of(path: str) -> int:
    """Return the number of rows of a Delta table."""
    return int(DeltaTable(path).to_pyarrow_table().num_rows)


class Held:
    """A listener that records the process it is called in, and waits until it is let go."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(
        self, messages: Sequence[rmq.MessageExt], context: rmq.ConsumeOrderlyContext
    ) -> rmq.ConsumeOrderlyStatus:
        if not (self._folder / "go").exists():
            (self._folder / "committer").write_text(str(_committer_s_pid()))
            (self._folder / str(os.getpid())).touch()
            wait_until((self._folder / "go").exists, 600)
        return append_step(messages, context)


def _committer_s_pid() -> int:
    """Return the newest process of this machine in which Spark Connect runs foreachBatch."""
    found = [
        int(each.parent.name)
        for each in Path("/proc").glob("[0-9]*/cmdline")
        if b"foreach_batch_worker" in _bytes_of(each)
    ]
    return max(found)


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


class Client:
    """Everything a user does, one method each."""

    def __init__(self, spark: SparkSession, config: dict[str, str]) -> None:
        self._spark = spark
        self._folder = config["folder"]
        self._broker = config["broker"]
        self._source = {"nameServers": config["nameServers"], "topic": config["source"]}
        self._orders = dict.fromkeys((f"order-{number}" for number in range(10)), STEPS)
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

    def read_from_offset_store(self) -> int:
        """Check group ``seen``, which :meth:`orderly` has brought to the end."""
        options = self._source | {
            "startingOffsets": "group",
            "startingGroup": "orderly",
            "offsetStore": f"{self._folder}/offsets",
            "storageSecrets": json.dumps({"aws_access_key_id": "unused"}),
        }
        return self._read(options).count()

    def storage_options(self) -> dict[str, str]:
        settings = {"spark.hadoop.fs.s3a.access.key": "key"} | dict(self._spark.conf.getAll)
        return dict(rmq.storage_options_of_spark(settings, "s3://bucket/table"))

    def orderly(self) -> int:
        self._consume("orderly", append_step, orderly=True)
        return self._checked("orderly")

    def orderly_again(self) -> int:
        """Start it again with its tables and checkpoint: nothing comes twice."""
        self._consume("orderly", append_step, orderly=True)
        return self._checked("orderly")

    def with_commits(self) -> tuple[int, bool]:
        """Return the rows, and whether the only batch has made several commits."""
        self._consume("commits", append_slowly, orderly=True, commit_interval="50ms")
        return self._checked("commits"), DeltaTable(f"{self._folder}/commits").version() > 2

    def concurrent(self) -> int:
        self._consume("concurrent", append_concurrently, orderly=False)
        return rows_of(f"{self._folder}/concurrent")

    def table(self) -> int:
        consumer = self._consumer("table")
        consumer.register_message_table(lambda body: sf.struct(body.cast("string").alias("text")))
        self._run(consumer, "table")
        return rows_of(f"{self._folder}/table")

    def ends_the_calls(self) -> dict[str, object]:
        """Stop a query, then kill its process at the server, within the listener's calls."""
        return {end: self._ended_within_a_call(end) for end in ("stop", "kill")}

    def _ended_within_a_call(self, end: str) -> bool:
        """Return whether the call in hand ended, and a restart had everything once."""
        folder = Path(self._folder, f"held-{end}")
        folder.mkdir()
        consumer = self._consumer(end, consume_thread_max=1)
        consumer.register_message_listener(Held(folder), orderly=True, output_schema=OUTPUT_SCHEMA)
        query = self._start(consumer, end, {"processingTime": "1 second"})
        pids = wait_until(lambda: [int(one.name) for one in folder.glob("[0-9]*")])
        queues = [rmq.MessageQueue(self._source["topic"], "broker-a", number) for number in range(2)]
        with LockWatch(folder, self._broker, end, queues, needs_locks=True):
            if end == "stop":
                query.stop()
            else:
                os.kill(int((folder / "committer").read_text()), signal.SIGKILL)
            wait_until(lambda: events(folder), reason="queues free for others")
            for pid in pids:
                assert not Path(f"/proc/{pid}").exists(), "the call goes on"
        (folder / "go").touch()
        wait_until(lambda: not query.isActive)
        self._run(consumer, end)
        return self._checked(end) == rows_of(f"{self._folder}/{end}")

    def replay_to_table(self) -> list[int]:
        replay = Replay(self._spark, self._source, offsets_per_step=20)
        return [replay.to_table(f"{self._folder}/replayed {{it}}`s").written for _ in range(2)]

    def replay_to_topic(self) -> None:
        Replay(self._spark, self._source).to_topic("any", f"{self._folder}/record")

    def state_engine(self) -> None:
        self._consume("state", append_step, orderly=True, orderly_engine="state")

    def batch_listener(self) -> None:
        consumer = self._consumer("listener")
        consumer.register_message_listener(append_step, orderly=True, output_schema=OUTPUT_SCHEMA)
        rmq.QueryMonitor().watch(self._spark, consumer)
        self._run(consumer, "listener")

    def renewed_storage(self) -> None:
        store = rmq.DeltaOffsetStore(f"{self._folder}/offsets", storage_options=dict)
        self._consume("renewed", append_step, orderly=True, offset_store=store)

    def job(self) -> None:
        with spark_session("demo"):
            pass

    def _checked(self, group: str) -> int:
        report = check_sink(f"{self._folder}/{group}", self._orders)
        assert report.is_clean, report
        return report.rows

    def _consume(self, group: str, listener: object, *, orderly: bool, **settings: Any) -> None:
        consumer = self._consumer(group, **settings)
        consumer.register_message_listener(listener, orderly=orderly, output_schema=OUTPUT_SCHEMA)
        self._run(consumer, group)

    def _consumer(self, group: str, **settings: Any) -> PushConsumer:
        given: dict[str, Any] = {
            "consumer_group": group,
            "name_servers": self._source["nameServers"],
            "offset_store": f"{self._folder}/offsets",
            "consume_from_where": "CONSUME_FROM_FIRST_OFFSET",
            "instance_name": "one",
        }
        consumer = PushConsumer(**given | settings)
        consumer.subscribe(self._source["topic"])
        return consumer

    def _run(self, consumer: PushConsumer, group: str) -> None:
        query = self._start(consumer, group, {"availableNow": True})
        assert query.awaitTermination(120), query.lastProgress
        if (error := query.exception()) is not None:
            raise error

    def _start(self, consumer: PushConsumer, group: str, trigger: dict[str, Any]) -> StreamingQuery:
        sink = rmq.DeltaSink(f"{self._folder}/{group}")
        return consumer.start(
            self._spark, sink=sink, checkpoint=f"{self._folder}/checkpoint-{group}", trigger=trigger
        )

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
    # The server is a child of this process.
    os.environ |= {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CONF_DIR": str(REPO / "conf" / "none"),
        "JDK_JAVA_OPTIONS": QUICK_JVM,
        # The daemon of workers forks, so its imports must start no threads.
        "JE_ARROW_MALLOC_CONF": "background_thread:false",
        "OMP_NUM_THREADS": "1",
    }
    builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.python.daemon.module", "tests.helpers.warm_daemon")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.driver.extraClassPath", os.pathsep.join(map(str, delta_jars())))
    for line in (REPO / "conf" / "spark-defaults.conf").read_text().splitlines():
        if "delta" in line:
            builder = builder.config(*line.split())
    spark = builder.config("spark.sql.warehouse.dir", str(Path(config["folder"], "warehouse"))).getOrCreate()
    client = Client(spark, config)
    found: dict[str, object] = {"session": type(spark).__module__}
    wanted: list[Callable[[], object]] = [getattr(client, name) for name in config["attempts"].split()]
    for attempt in wanted:
        try:
            found[attempt.__name__] = attempt()
        except (RocketMQError, PySparkException) as error:
            found[attempt.__name__] = str(error)
    spark.stop()
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))) + "\n")
