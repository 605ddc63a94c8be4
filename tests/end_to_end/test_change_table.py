"""A consumer without a listener keeps a Delta table equal to a database's, whatever the queues' order."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import pyspark_rocketmq as rmq
from pyspark_rocketmq.change_data.change import Change
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.model import ConsumeFromWhere, Message
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.change_data.model_database import ModelDatabase, sent
from tests.change_data.model_history import sorted_versions, timed
from tests.change_data.samples import recorded
from tests.helpers.change_kill_driver import STEPS, consume
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.driver_process import run_driver
from tests.helpers.json_changes import JsonEnvelope, body_of
from tests.helpers.sending import patient_producer
from tests.sinks.change_rows import MODEL_SCHEMA, change_table, table_rows, table_versions

_QUEUES = 3
_TIMEOUT_S = 240


def _scattered(by: random.Random, log: Sequence[Change]) -> list[bytes]:
    """Messages with the changes of a log: swapped with later ones, some again, some several to a message."""
    changes = list(log)
    for at in range(len(changes)):
        other = min(len(changes) - 1, at + by.randrange(6))
        changes[at], changes[other] = changes[other], changes[at]
    changes += by.sample(changes, len(changes) // 5)
    bodies = []
    while changes:
        size = by.randrange(1, 4)
        bodies.append(body_of(*changes[:size]))
        changes = changes[size:]
    return [*bodies, b"no change", b"null"]


def _sent_to(cluster: ClusterUnderTest, seed: int) -> tuple[str, ModelDatabase]:
    """A topic with the changes of a database, in queues that have no order of a key."""
    by = random.Random(seed)
    database = ModelDatabase(by, keys=12)
    database.run(150)
    database.log = timed(database.log)
    topic = cluster.create_topic(queues=_QUEUES)
    with patient_producer(cluster.name_servers) as producer:
        for number, body in enumerate(_scattered(by, database.log)):
            producer.send(Message(topic=topic, body=body), sharding_key=str(number * 7919))
    return topic, database


def _config(cluster: ClusterUnderTest, topic: str, folder: Path) -> dict[str, object]:
    return {
        "folder": str(folder),
        "group": cluster.unique_name("group"),
        "nameServers": cluster.name_servers,
        "topic": topic,
        "maxOffsetsPerTrigger": 12,
    }


@SIM_ONLY
@pytest.mark.spark
def test_the_table_equals_the_database(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """K1, H1: no listener; swapped, repeated and scattered changes; bad ones are aside."""
    topic, database = _sent_to(cluster, 1)
    config = _config(cluster, topic, tmp_path)

    query = consume(spark, config, DeltaOffsetStore(str(tmp_path / "offsets")))
    assert query.awaitTermination(_TIMEOUT_S)

    progress = DeltaTable(tmp_path / "offsets").to_pyarrow_table()
    assert len(progress["queue_id"].unique()) == _QUEUES
    assert table_rows(tmp_path / "table") == database.rows
    [bad] = DeltaTable(tmp_path / "table" / "_bad_changes").to_pyarrow_table().to_pylist()
    assert (bad["body"], bad["problem"]) == (b"no change", "The body is no JSON.")
    assert spark.read.format("delta").load(str(tmp_path / "table")).count() == len(database.rows)


@SIM_ONLY
@pytest.mark.spark
def test_the_table_has_all_versions(spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path) -> None:
    """K5, H1: stored_as_scd_type=2: the versions of a model that sorts all changes, with the source's times."""
    topic, database = _sent_to(cluster, 3)
    config = _config(cluster, topic, tmp_path) | {"scdType": 2}

    query = consume(spark, config, DeltaOffsetStore(str(tmp_path / "offsets")))
    assert query.awaitTermination(_TIMEOUT_S)

    assert table_versions(tmp_path / "table") == sorted_versions(sent(database.log))
    table = spark.read.format("delta").load(str(tmp_path / "table"))
    assert table.where("__END_AT IS NULL").count() == len(database.rows)


@SIM_ONLY
@pytest.mark.spark
def test_messages_of_canal(spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path) -> None:
    """K1, K5: as recorded from the real program; columns are given as Spark's text."""
    topic = cluster.create_topic(queues=1)
    with patient_producer(cluster.name_servers) as producer:
        for line in recorded("canal_gtid")[:7]:
            producer.send(Message(topic=topic, body=line["flat"].encode()))
    store = DeltaOffsetStore(str(tmp_path / "offsets"))
    consumer = PushConsumer(
        consumer_group=cluster.unique_name("group"),
        name_servers=cluster.name_servers,
        offset_store=store,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )
    consumer.subscribe(topic)
    columns = "tenant int, no string, price decimal(10,2), note string"
    sink = rmq.ChangeTable(
        tmp_path / "table", keys=["tenant", "no"], envelope="canal", source_time_zone="UTC", columns=columns
    )

    query = consumer.start(
        spark, sink=sink, checkpoint=tmp_path / "checkpoint", trigger={"availableNow": True}
    )
    assert query.awaitTermination(_TIMEOUT_S)

    table = spark.read.format("delta").load(str(tmp_path / "table"))
    rows = [(row.tenant, row.no, row.price, row.note) for row in table.orderBy("no").collect()]
    assert rows == [(1, "C", Decimal("3.50"), "changed"), (1, "D", Decimal("4.00"), None)]


@SIM_ONLY
@pytest.mark.spark
def test_many_tables_in_one_query(spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path) -> None:
    """K2, K3: Canal's own messages, and a table whose column comes up while the query runs."""
    topic = cluster.create_topic(queues=2)
    with patient_producer(cluster.name_servers) as producer:
        for number in range(30):
            row = {"id": f"{number // 2}"} | ({"note": "x"} if number >= 20 else {})
            body = {
                "database": "shop",
                "table": ["orders", "carts"][number % 2],
                "type": "INSERT",
                "isDdl": False,
                "pkNames": ["id"],
                "gtid": f"3e11fa47-71ca-11e1-9e33-c80aa9429562:{number + 1}",
                "mysqlType": {name: {"id": "bigint(20)", "note": "varchar(9)"}[name] for name in row},
                "data": [row],
            }
            producer.send(Message(topic=topic, body=json.dumps(body).encode()), sharding_key=str(number))
    consumer = PushConsumer(
        consumer_group=cluster.unique_name("group"),
        name_servers=cluster.name_servers,
        offset_store=DeltaOffsetStore(str(tmp_path / "offsets")),
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        max_offsets_per_trigger=8,
    )
    consumer.subscribe(topic)
    sink = rmq.ChangeTables(tmp_path / "lake", envelope="canal", source_time_zone="UTC")

    query = consumer.start(
        spark, sink=sink, checkpoint=tmp_path / "checkpoint", trigger={"availableNow": True}
    )
    assert query.awaitTermination(_TIMEOUT_S)

    for name in ("orders", "carts"):
        rows = spark.read.format("delta").load(str(tmp_path / "lake" / "shop" / name)).orderBy("id").collect()
        assert [(row.id, row.note) for row in rows] == [(at, "x" if at >= 10 else None) for at in range(15)]


@pytest.mark.long
@SIM_ONLY
@pytest.mark.driver
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scd_type", [1, 2])
def test_the_table_equals_the_database_after_kills(
    cluster: ClusterUnderTest, tmp_path: Path, scd_type: int
) -> None:
    """K1, K5, H1: killed (-9) at each step of the commits, and started again."""
    topic, database = _sent_to(cluster, 2)
    config = _config(cluster, topic, tmp_path) | {"scdType": scd_type}
    log = tmp_path / "driver.log"

    codes = [
        run_driver("tests.helpers.change_kill_driver", config, log, timeout_s=300)
        for _ in range(len(STEPS) + 1)
    ]

    assert codes == [-signal.SIGKILL] * len(STEPS) + [0], log.read_text()[-4000:]
    if scd_type == 1:
        assert table_rows(tmp_path / "table") == database.rows
    else:
        assert table_versions(tmp_path / "table") == sorted_versions(sent(database.log))


@SIM_ONLY
@pytest.mark.spark
def test_a_change_table_needs_the_messages_for_itself(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """K5: a listener or a second sink beside it is refused, with what to do."""
    sink = change_table(tmp_path / "table", envelope=JsonEnvelope(), columns=MODEL_SCHEMA)
    topic = cluster.create_topic(queues=1)

    def problem(consumer: PushConsumer, *sinks: object) -> str:
        consumer.subscribe(topic)
        given = sinks[0] if len(sinks) == 1 else list(sinks)
        with pytest.raises(OptionError) as refused:
            consumer.start(spark, sink=given, checkpoint=tmp_path / "checkpoint")  # type: ignore[arg-type]
        return str(refused.value)

    def made() -> PushConsumer:
        store = DeltaOffsetStore(str(tmp_path / "offsets"))
        return PushConsumer(consumer_group="g", name_servers=cluster.name_servers, offset_store=store)

    listening = made()
    listening.register_message_listener(lambda *_: None, output_schema="a string")
    assert "register neither a listener nor a table of messages" in problem(listening, sink)
    assert "must be the only sink" in problem(made(), sink, DeltaSink(tmp_path / "other"))
