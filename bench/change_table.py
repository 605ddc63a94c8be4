"""A change table beside a MERGE in ``foreachBatch`` of the same changes from Kafka: one session, in turns."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from bench.cluster import QUEUES, real_cluster
from bench.kafka import fetch_spark_kafka_jars, kafka_broker
from bench.measure import Result, Spread, Target, load_average
from bench.session import CORES, bench_session
from bench.streams import await_end
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.format import register
from pyspark_rocketmq.model import ConsumeFromWhere
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.sinks.change_table.sink import ChangeTable

_SHARES: Final = (0.01, 0.1, 1.0)
_NOTE_BYTES: Final = 600
_TARGET: Final = 3.0
_SERVER: Final = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
_COLUMNS: Final = "id bigint, price decimal(10,2), note string"

_METHOD: Final = """\
A table of {rows:,} rows, and changes of 1 %, 10 % and 100 % of them as Canal's flat JSON of about 1 KiB with `gtid`, one row a message, in {queues} queues of
one RocketMQ broker and in {queues} partitions of one Kafka 3.9.1 broker. One session on `local[{cores}]` applies them in turns, in {rounds} rounds after one
for warming up: *ours* by `PushConsumer` with `ChangeTable`, exactly once; *Kafka* by a stream whose `foreachBatch` reads the JSON, keeps each key's change
with the highest position, and runs a MERGE that compares positions (at least once, and a late change brings a deleted row back). Seconds are
`triggerExecution`; both tables must have the same rows in the end."""

_APPLY: Final = """\
MERGE INTO delta.`{table}` AS t USING newest AS s ON t.id = s.id
WHEN MATCHED AND s.op = 'DELETE' AND s.position > t.position THEN DELETE
WHEN MATCHED AND s.position > t.position THEN UPDATE SET price = s.price, note = s.note, position = s.position
WHEN NOT MATCHED AND s.op <> 'DELETE' THEN INSERT (id, price, note, position) VALUES (s.id, s.price, s.note, s.position)"""
_NEWEST: Final = """\
SELECT * FROM (
  SELECT *, row_number() OVER (PARTITION BY id ORDER BY position DESC, offset DESC) AS place FROM changes
) WHERE place = 1"""
_JSON: Final = "data array<struct<id: string, price: string, note: string>>, gtid string, type string"


def run(*, messages: int = 200_000, rounds: int = 5) -> Result:
    """Measure ``rounds`` batches of each share; the tables have ``messages`` rows."""
    before = load_average()
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        real_cluster() as cluster,
        kafka_broker(Path(folder) / "kafka", partitions=QUEUES) as kafka,
        bench_session(Path(folder), with_delta=True, jars=fetch_spark_kafka_jars()) as spark,
    ):
        register(spark)
        figures: dict[float, list[tuple[float, float]]] = {}
        for share in _SHARES:
            name = f"changes-{share:.0%}".removesuffix("%")
            tables = _Tables(
                spark=spark,
                name_servers=cluster.name_servers,
                kafka=kafka,
                topic=cluster.create_topic(name, QUEUES),
                folder=Path(folder) / name,
                rows=messages,
                changed=max(1, round(messages * share)),
            )
            figures[share] = tables.run(rounds)
    rows = [
        (f"{share:.0%} of the rows: {who}, s", *Spread.of(each[place] for each in seconds).cells(".2f"))
        for share, seconds in figures.items()
        for place, who in enumerate(("ours", "Kafka and MERGE"))
    ]
    return Result(
        name="change_table",
        title="Change table",
        method=_METHOD.format(rows=messages, queues=QUEUES, cores=CORES, rounds=rounds),
        columns=("what", "min", "median", "max"),
        rows=tuple(rows),
        targets=tuple(
            Target(
                what=f"Kafka and MERGE / ours, {share:.0%}",
                seen=Spread.of(theirs / ours for ours, theirs in seconds),
                bound=_TARGET,
                at_most=False,
            )
            for share, seconds in figures.items()
        ),
        load=(before, load_average()),
    )


@dataclass(kw_only=True)
class _Tables:
    """Both sides' tables of one share of changed rows."""

    spark: SparkSession
    name_servers: str
    kafka: str
    topic: str
    folder: Path
    rows: int
    changed: int
    sent: int = 0
    """Transactions that were sent."""

    def run(self, rounds: int) -> list[tuple[float, float]]:
        """Return the seconds of both sides, round by round.

        Raises:
            RuntimeError: If the two tables differ in the end.
        """
        self.spark.sql(f"CREATE TABLE delta.`{self._theirs}` ({_COLUMNS}, position bigint) USING delta")
        self._send("INSERT", self.rows)
        self._apply_ours(), self._apply_theirs()
        figures = []
        for number in range(rounds + 1):
            self._send("UPDATE", self.changed)
            figures.append((self._apply_ours(), self._apply_theirs()))
            ours, theirs = figures[-1]
            print(
                f"  {self.topic}, round {number}: ours {ours:.2f} s, Kafka {theirs:.2f} s, "
                f"ratio {theirs / ours:.2f}  load {load_average()}",
                flush=True,
            )
        self._compare()
        return figures[1:]

    @property
    def _ours(self) -> Path:
        return self.folder / "ours"

    @property
    def _theirs(self) -> Path:
        return self.folder / "theirs"

    def _send(self, operation: str, count: int) -> None:
        """Send a change of each of ``count`` rows, spread over the table, to both brokers."""
        step = self.rows // count
        ids = self.spark.range(0, count, 1, QUEUES).select((sf.col("id") * step).alias("id"))
        bodies = ids.select(
            sf.col("id").cast("string").alias("key"), _body(operation, self.sent).alias("value")
        ).cache()
        self.sent += self.rows
        bodies.write.format("kafka").options(
            **{"kafka.bootstrap.servers": self.kafka}, topic=self.topic
        ).save()
        bodies.select(sf.col("value").cast("binary").alias("body"), sf.col("key").alias("keys")).write.format(
            "rocketmq"
        ).options(nameServers=self.name_servers, topic=self.topic).mode("append").save()
        bodies.unpersist()

    def _apply_ours(self) -> float:
        consumer = PushConsumer(
            consumer_group=self.topic,
            name_servers=self.name_servers,
            offset_store=DeltaOffsetStore(self.folder / "offsets"),
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            max_offsets_per_trigger=self.rows * 2,
        )
        consumer.subscribe(self.topic)
        sink = ChangeTable(
            self._ours, keys=["id"], envelope="canal", source_time_zone="UTC", columns=_COLUMNS
        )
        query = consumer.start(
            self.spark,
            sink=sink,
            checkpoint=str(self.folder / "checkpoint"),
            trigger={"availableNow": True},
        )
        await_end(query)
        return sum(each.durationMs.get("triggerExecution", 0) for each in query.recentProgress) / 1000

    def _apply_theirs(self) -> float:
        query = (
            self.spark.readStream.format("kafka")
            .options(**{"kafka.bootstrap.servers": self.kafka}, subscribe=self.topic)
            .option("startingOffsets", "earliest")
            .load()
            .writeStream.foreachBatch(_merging(self._theirs))
            .option("checkpointLocation", str(self.folder / "kafka-checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        await_end(query)
        return sum(each.durationMs.get("triggerExecution", 0) for each in query.recentProgress) / 1000

    def _compare(self) -> None:
        ours = DeltaTable(self._ours).to_pyarrow_table(columns=["id", "price", "note"]).sort_by("id")
        theirs = DeltaTable(self._theirs).to_pyarrow_table(columns=["id", "price", "note"]).sort_by("id")
        if ours.num_rows != self.rows or not ours.equals(theirs.cast(ours.schema)):
            raise RuntimeError(f"The tables in {self.folder} differ.")


def _merging(table: Path) -> Callable[[DataFrame, int], None]:
    """Return the function of ``foreachBatch`` that applies a batch's changes to a table."""

    def merge(rows: DataFrame, _batch: int) -> None:
        session = rows.sparkSession
        message = sf.from_json(sf.col("value").cast("string"), _JSON)
        changes = rows.select(message.alias("c"), "offset").select(
            sf.explode("c.data").alias("row"),
            sf.col("c.type").alias("op"),
            sf.regexp_extract("c.gtid", r"-(\d+)$", 1).cast("bigint").alias("position"),
            "offset",
        )
        changes.select(
            sf.col("row.id").cast("bigint").alias("id"),
            sf.col("row.price").cast("decimal(10,2)").alias("price"),
            sf.col("row.note").alias("note"),
            "op",
            "position",
            "offset",
        ).createOrReplaceTempView("changes")
        session.sql(_NEWEST).createOrReplaceTempView("newest")
        session.sql(_APPLY.format(table=table))

    return merge


def _body(operation: str, transactions: int) -> Column:
    """Return Canal's message for the row ``id``; its transaction is one of those after ``transactions``."""
    price = sf.format_string("%d.%02d", sf.col("id") % 1000, sf.lit(transactions) % 100)
    row = sf.struct(
        sf.col("id").cast("string").alias("id"),
        price.alias("price"),
        sf.rpad(sf.concat_ws("-", sf.col("id"), sf.lit(transactions)), _NOTE_BYTES, "x").alias("note"),
    )
    types = {"id": "bigint", "price": "decimal(10,2)", "note": f"varchar({_NOTE_BYTES})"}
    sql_types = {"id": -5, "price": 3, "note": 12}
    old = sf.struct(sf.lit("0.01").alias("price"))
    is_update = operation == "UPDATE"
    return sf.to_json(
        sf.struct(
            sf.array(row).alias("data"),
            sf.lit("shop").alias("database"),
            sf.lit(1_700_000_000_000).alias("es"),
            sf.concat(
                sf.lit(f"{_SERVER}:1-"), (sf.col("id") + sf.lit(transactions + 1)).cast("string")
            ).alias("gtid"),
            sf.lit(1).alias("id"),
            sf.lit(False).alias("isDdl"),
            sf.struct(*(sf.lit(each).alias(name) for name, each in types.items())).alias("mysqlType"),
            (sf.array(old) if is_update else sf.lit(None).cast("array<string>")).alias("old"),
            sf.array(sf.lit("id")).alias("pkNames"),
            sf.lit("").alias("sql"),
            sf.struct(*(sf.lit(each).alias(name) for name, each in sql_types.items())).alias("sqlType"),
            sf.lit("orders").alias("table"),
            sf.lit(1_700_000_000_500).alias("ts"),
            sf.lit(operation).alias("type"),
        )
    )
