from __future__ import annotations

import socket
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from broker_sim.cluster import SimCluster
from pyspark_rocketmq import format as source_format
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.errors import OptionError, RocketMQError, SchemaError, StorageNotShared, TopicNotFound
from pyspark_rocketmq.format import DefaultSource, register
from pyspark_rocketmq.model import ConsumeFromWhere, ConsumeOrderlyStatus
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.sinks import shared_storage
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.helpers.cluster import LONG_ON_REAL, ClusterUnderTest
from tests.helpers.wait import wait_until

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def registered(spark: SparkSession) -> None:
    register(spark)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port nobody listens on, held so that nobody can."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def succeed(messages: object, context: object) -> ConsumeOrderlyStatus:
    return ConsumeOrderlyStatus.SUCCESS


def consumer_of(
    folder: Path, name_servers: str, topic: str = "no-such-topic", **settings: Any
) -> PushConsumer:
    consumer = PushConsumer(
        **{
            "consumer_group": "group",
            "name_servers": name_servers,
            "offset_store": DeltaOffsetStore(str(folder / "offsets")),
            "consume_from_where": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            **settings,
        }
    )
    consumer.subscribe(topic)
    consumer.register_message_listener(succeed, output_schema="a string")
    return consumer


def test_a_second_session_gets_the_source_while_another_one_is_active(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a package that came with --py-files: each session must register it."""

    class Shipped(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "rocketmq_shipped"

    monkeypatch.setattr(source_format, "DefaultSource", Shipped)
    register(spark)
    second = spark.newSession()

    register(second)

    for session in (spark, second):
        with pytest.raises(PySparkException, match="option 'nameServers' is required"):
            session.read.format("rocketmq_shipped").load()
    assert SparkSession.getActiveSession() is not None


def test_another_source_of_the_same_name_is_reported(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DefaultSource, "name", lambda: "csv")

    with pytest.raises(RocketMQError, match="has its own data source 'csv'"):
        register(spark)


def test_a_wrong_address_says_which_and_what_to_check(spark: SparkSession, closed_port: int) -> None:
    frame = (
        spark.read.format("rocketmq")
        .option("nameServers", f"127.0.0.1:{closed_port}")
        .option("topic", "t")
        .load()
    )

    with pytest.raises(
        PySparkException, match=rf"Could not connect to 127\.0\.0\.1:{closed_port}.*Check the address"
    ):
        frame.count()


def start(consumer: PushConsumer, spark: SparkSession, folder: Path) -> None:
    consumer.start(spark, sink=DeltaSink(folder / "sink"), checkpoint=str(folder / "checkpoint"))


def test_a_consumer_with_a_wrong_address_does_not_start(
    spark: SparkSession, closed_port: int, tmp_path: Path
) -> None:
    """And leaves nothing behind: no sink, no checkpoint, no offsets."""
    with pytest.raises(RocketMQError, match=f"Could not connect to 127.0.0.1:{closed_port}"):
        start(consumer_of(tmp_path, f"127.0.0.1:{closed_port}"), spark, tmp_path)

    assert not list(tmp_path.iterdir())


@LONG_ON_REAL
def test_a_consumer_of_an_unknown_topic_does_not_start(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """And leaves nothing behind."""
    with pytest.raises(TopicNotFound, match=r"no-such-topic.*Create the topic, or correct .* option 'topic'"):
        start(consumer_of(tmp_path, cluster.name_servers), spark, tmp_path)

    assert not list(tmp_path.iterdir())


@pytest.mark.sim
def test_a_consumer_whose_tables_executors_do_not_see_does_not_start(
    spark: SparkSession, sim_cluster: SimCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row J6: no table is left behind that nobody could use."""
    sim_cluster.create_topic("seen-by-the-driver", queues=1)
    monkeypatch.setattr(shared_storage, "is_on_one_machine", lambda _: False)
    # Spark's processes stay where they are.
    monkeypatch.chdir(tmp_path)
    seen = Path("/proc/self/cwd")

    with pytest.raises(StorageNotShared, match=r"is another folder on .* than on the driver's"):
        start(consumer_of(seen, sim_cluster.name_servers, "seen-by-the-driver"), spark, seen)

    assert [found for found in tmp_path.rglob("*") if found.is_file()] == []


def test_every_bad_option_is_reported_at_load(spark: SparkSession) -> None:
    reader = spark.read.format("rocketmq").options(nameServers="x", topicc="t", pullBatchSize="0")

    with pytest.raises(PySparkException) as caught:
        reader.load()

    text = str(caught.value)
    assert "'x', which is not host:port" in text
    assert "did you mean 'topic'?" in text
    assert "pullBatchSize='0' is not between 1 and 1024" in text


def test_the_error_of_a_path_names_the_topic_option(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match=r"load\(\) takes no path; write .option\('topic', 'orders'\)"):
        spark.read.format("rocketmq").option("nameServers", "127.0.0.1:1").load("orders")
    writer = spark.sql("SELECT 'a' AS body").write.format("rocketmq").option("nameServers", "127.0.0.1:1")
    with pytest.raises(PySparkException, match=r"save\(\) takes no path; write .option\('topic', 'orders'\)"):
        writer.mode("append").save("orders")


def test_a_source_for_no_session_is_refused_in_a_sentence() -> None:
    with pytest.raises(RocketMQError, match=r"register needs a Spark session, not None; create one by"):
        register(None)  # type: ignore[arg-type]


def test_a_batch_read_refuses_a_consumer_group(spark: SparkSession, tmp_path: Path) -> None:
    frame = (
        spark.read.format("rocketmq")
        .options(nameServers="127.0.0.1:1", topic="t", consumerGroup="g", offsetStore=str(tmp_path))
        .load()
    )

    with pytest.raises(PySparkException, match="a batch read touches no group's offsets"):
        frame.count()


def test_all_problems_of_a_consumer_are_reported_together(spark: SparkSession, tmp_path: Path) -> None:
    consumer = consumer_of(
        tmp_path,
        "nowhere",
        consumer_group="or.ders",
        consume_message_batch_max_size=0,
        max_reconsume_times=-2,
        options={"pullBachSize": "32"},
    )

    with pytest.raises(OptionError) as caught:
        consumer.start(spark, checkpoint=str(tmp_path / "checkpoint"))

    assert len(caught.value.problems) == 5
    assert "did you mean 'pullBatchSize'?" in str(caught.value)


def test_an_output_schema_that_takes_the_engines_columns_is_refused() -> None:
    consumer = PushConsumer(consumer_group="g", name_servers="a:1", offset_store=DeltaOffsetStore("unused"))

    with pytest.raises(
        SchemaError, match=r"has column\(s\) queueId, whose names are reserved: each output row gets"
    ):
        consumer.register_message_listener(lambda m, c: None, output_schema="queueId int, a string")
    with pytest.raises(SchemaError, match="is not a schema such as"):
        consumer.register_message_listener(lambda m, c: None, output_schema="a strng")


def bare_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    venv.create(folder / "bare", with_pip=False)
    monkeypatch.delenv("PYTHONPATH")
    return str(folder / "bare" / "bin" / "python")


def test_a_worker_python_without_the_package_is_found_before_the_query_starts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", bare_python(tmp_path, monkeypatch))

    with pytest.raises(
        RocketMQError, match=r"which cannot import the packages that they need.*Set os\.environ"
    ):
        consumer_of(tmp_path, "127.0.0.1:1").start(spark, checkpoint=str(tmp_path / "checkpoint"))


@pytest.fixture
def other_checkpoint(spark: SparkSession, tmp_path: Path) -> Path:
    """Checkpoint of a query that reads Spark's source ``rate``, whose offsets are numbers."""
    folder = tmp_path / "other"
    rows = spark.readStream.format("rate").load()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(folder)).start()
    wait_until(lambda: bool(list((folder / "commits").glob("[0-9]*"))), timeout_s=120)
    query.stop()
    return folder


def test_a_consumer_refuses_the_checkpoint_of_another_query(
    spark: SparkSession, tmp_path: Path, other_checkpoint: Path
) -> None:
    """H9: at once, and before anything is made or asked."""
    with pytest.raises(OptionError, match=r"the checkpoint \S+/other is another query's.*Take a new folder"):
        consumer_of(tmp_path, "127.0.0.1:1").start(spark, checkpoint=other_checkpoint)

    assert not (tmp_path / "offsets").exists()


def test_a_plain_stream_refuses_the_checkpoint_of_another_query(
    spark: SparkSession, other_checkpoint: Path
) -> None:
    """H9"""
    with SimCluster(brokers=1) as cluster:
        cluster.create_topic("orders", queues=1)
        stream = spark.readStream.format("rocketmq").options(nameServers=cluster.name_servers, topic="orders")
        query = (
            stream.load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(other_checkpoint))
            .start()
        )
        with pytest.raises(PySparkException, match=r"is another query's: the offset in it, \d+, is not one"):
            query.awaitTermination(240)


def test_a_worker_python_without_the_package_is_found_by_register(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the virtual environment is not activated:
    who reads without a consumer calls nothing else of ours.
    """
    bare = bare_python(tmp_path, monkeypatch)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", bare)

    with pytest.raises(RocketMQError, match=f"'{bare}', which cannot import .* Set os\\.environ"):
        register(spark)


@LONG_ON_REAL
def test_a_schema_of_the_user_s_is_refused_before_anything_runs(
    spark: SparkSession, cluster: ClusterUnderTest
) -> None:
    given = {"nameServers": cluster.name_servers, "topic": cluster.create_topic()}
    batch, stream = (
        reader.format("rocketmq").schema("topic string, body string").options(**given).load()
        for reader in (spark.read, spark.readStream)
    )
    query = stream.writeStream.format("noop").trigger(availableNow=True)
    told = r"are fixed.*option\('includeColumns', 'topic,body'\)"

    with pytest.raises(PySparkException, match=told):
        batch.count()
    with pytest.raises(PySparkException, match=told):
        query.start().awaitTermination(240)


@LONG_ON_REAL
def test_a_consumer_started_twice_in_a_session_is_two_members(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """B2: with a checkpoint of its own, as the pages say; names of queries need no thought."""
    consumer = PushConsumer(
        consumer_group=cluster.unique_name("pair"),
        name_servers=cluster.name_servers,
        offset_store=DeltaOffsetStore(str(tmp_path / "offsets")),
    )
    consumer.subscribe(cluster.create_topic())
    consumer.register_message_listener(succeed, output_schema="a string")
    first = consumer.start(spark, checkpoint=tmp_path / "checkpoint-1")
    try:
        second = consumer.start(spark, checkpoint=tmp_path / "checkpoint-2")
        second.stop()
        assert first.isActive
        assert second.name == f"{first.name} (2)"
    finally:
        first.stop()


def test_a_packed_environment_that_is_not_on_the_drivers_machine_is_asked_for_there(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "./environment/bin/python")

    with pytest.raises(RocketMQError, match=f"unpack the environment's archive .* {Path.cwd()}"):
        consumer_of(tmp_path, "127.0.0.1:1").start(spark, checkpoint=str(tmp_path / "checkpoint"))


def test_a_frame_cut_by_the_peer_is_pulled_again(spark: SparkSession) -> None:
    """A1: the connection is given up, nothing of the torn answer is used, nothing is lost."""
    from tests.helpers.orders import produce_orders

    with SimCluster(brokers=1) as cluster:
        produce_orders(cluster.name_servers, "torn", 100)
        cluster.faults.add("cut", on=11, keep_bytes=500)
        frame = spark.read.format("rocketmq").options(nameServers=cluster.name_servers, topic="torn").load()

        assert frame.select("brokerName", "queueId", "queueOffset").distinct().count() == 500
        assert cluster.faults.pending == 0, "the answer of a pull was not cut"
