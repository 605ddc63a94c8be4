"""Messages as rows without a listener, into a Delta table (row K7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.model import ConsumeFromWhere, Message, MessageQueue
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.sinks.multi import Route
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.modes import Mode
from tests.helpers.poison import GARBAGE, store_as_it_is
from tests.helpers.retries import rows_but_retries
from tests.helpers.sending import patient_producer
from tests.helpers.wait import wait_until

pytestmark = pytest.mark.spark

TIMEOUT_S = 240
COLUMNS = ["msgId", "tags", "keys", "body", "properties", "bornTimestamp", "storeTimestamp", "bornHost"]


class Landing:
    """A topic, and a consumer that lands it."""

    def __init__(self, spark: SparkSession, cluster: ClusterUnderTest, folder: Path) -> None:
        self.spark, self.cluster, self.folder = spark, cluster, folder
        self.topic = cluster.create_topic(queues=4)
        self.group = cluster.unique_name("landing")
        self.store = DeltaOffsetStore(str(folder / "offsets"))
        self.sent = 0

    def send(self, count: int) -> None:
        with patient_producer(self.cluster.name_servers) as producer:
            for number in range(self.sent, self.sent + count):
                properties = {"KEYS": f"k{number}", "TAGS": f"t{number % 3}", "n": str(number)}
                producer.send(
                    Message(topic=self.topic, body=f"body {number}".encode(), properties=properties)
                )
        self.sent += count

    def consumer(self, columns: Sequence[str] = (), tags: str = "*", **settings: Any) -> PushConsumer:
        of_columns = {each: settings.pop(each) for each in ("body",) if each in settings}
        consumer = PushConsumer(
            consumer_group=self.group,
            name_servers=self.cluster.name_servers,
            offset_store=self.store,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            **settings,
        )
        consumer.subscribe(self.topic, tags)
        consumer.register_message_columns(columns or COLUMNS, **of_columns)
        return consumer

    def start(self, consumer: PushConsumer, trigger: Any, sink: Any = None) -> StreamingQuery:
        return consumer.start(
            self.spark,
            sink=sink or DeltaSink(self.folder / "table"),
            checkpoint=self.folder / "checkpoint",
            trigger=trigger,
        )

    def drain(self, consumer: PushConsumer, sink: Any = None) -> None:
        assert self.start(consumer, {"availableNow": True}, sink).awaitTermination(TIMEOUT_S)

    def rows(self, table: str = "table") -> list[dict[str, Any]]:
        """The table's rows by position."""
        if not DeltaTable.is_deltatable(str(self.folder / table)):
            return []
        rows: list[dict[str, Any]] = DeltaTable(self.folder / table).to_pyarrow_table().to_pylist()
        return sorted(rows, key=lambda row: (row["brokerName"], row["queueId"], row["queueOffset"]))

    def source_rows(self) -> list[dict[str, Any]]:
        """The same columns as a batch read has them, in the same order."""
        position = ["topic", "brokerName", "queueId", "queueOffset"]
        read = (
            self.spark.read.format("rocketmq")
            .options(nameServers=self.cluster.name_servers, topic=self.topic)
            .load()
            .select(*position, *COLUMNS)
        )
        rows = read.toArrow().to_pylist()
        return sorted(rows, key=lambda row: (row["brokerName"], row["queueId"], row["queueOffset"]))


@pytest.fixture
def landing(spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path) -> Landing:
    return Landing(spark, cluster, tmp_path)


@pytest.mark.every_spark
def test_every_message_is_a_row_with_the_source_s_own_columns(landing: Landing) -> None:
    """F1, H1, K7: over several micro-batches and a new start, partitioned too."""
    landing.send(300)
    sink = DeltaSink(landing.folder / "table", partition_by=["tags"])
    landing.drain(landing.consumer(max_offsets_per_trigger=90), sink)
    landing.send(60)
    landing.drain(landing.consumer(), sink)

    rows = landing.rows()
    assert len(rows) == 360
    assert rows == landing.source_rows()


Live = tuple[Landing, Callable[[], bool]]
"""A consumer that runs, and what stops it: in real time it has all slots that a read needs."""


@pytest.fixture(params=[Mode.MICRO_BATCH, Mode.REAL_TIME])
def live(request: pytest.FixtureRequest, landing: Landing) -> Iterator[Live]:
    """A query that runs, and commits every 100 ms."""
    landing.send(40)
    consumer = landing.consumer(commit_interval="100 milliseconds")
    query = landing.start(consumer, request.param.trigger)
    yield landing, lambda: consumer.stop(query, TIMEOUT_S)
    query.stop()


@SIM_ONLY
def test_rows_and_offsets_follow_the_messages_while_a_query_runs(
    live: Live,
) -> None:
    """I2, K7: in micro-batches that commit as they go, and in real time."""
    landing, stop = live
    for _ in range(3):
        wait_until(lambda: len(landing.rows()) == landing.sent, TIMEOUT_S, reason="the rows")
        landing.send(20)
    wait_until(lambda: len(landing.rows()) == landing.sent, TIMEOUT_S, reason="the last rows")

    assert stop()
    assert landing.rows() == landing.source_rows()


@SIM_ONLY
def test_a_queue_that_is_reset_is_read_again_and_no_row_is_there_twice(
    live: Live,
) -> None:
    """F5, K7: the running batch gives it up, and the sink drops rows below its watermark."""
    landing, stop = live
    wait_until(lambda: len(landing.rows()) == landing.sent, TIMEOUT_S, reason="the rows")
    queue, before = next(iter(rows_but_retries(landing.store.read(landing.group)).items()))
    landing.store.reset(landing.group, {queue: 2})

    def is_read_again() -> bool:
        row = landing.store.read(landing.group)[queue]
        return row.epoch > before.epoch and row.next_offset >= before.next_offset

    wait_until(is_read_again, TIMEOUT_S, reason="the offsets after the reset")
    landing.send(20)
    wait_until(lambda: len(landing.rows()) >= landing.sent, TIMEOUT_S, reason="the last rows")

    assert stop()
    assert landing.rows() == landing.source_rows()


@SIM_ONLY
def test_a_message_that_cannot_be_decoded_ends_the_query_or_is_a_row(landing: Landing) -> None:
    """K7, L7: what is before it is committed; if it is kept, its row has the stored bytes and the reason."""
    broker_name, address = next(iter(landing.cluster.broker_addresses.items()))
    landing.topic = landing.cluster.create_topic(queues=1, brokers=[broker_name])
    landing.send(2)
    store_as_it_is(address, MessageQueue(landing.topic, broker_name, 0))
    landing.send(1)

    with pytest.raises(StreamingQueryException, match="cannot be decoded"):
        landing.drain(landing.consumer(instance_name="undecodable"))
    assert [row["queueOffset"] for row in landing.rows()] == [0, 1]
    landing.drain(landing.consumer(undecodable_messages="keep", instance_name="undecodable"))

    rows = landing.rows()
    assert [(row["queueOffset"], row["body"]) for row in rows[2:]] == [(2, GARBAGE), (3, b"body 2")]
    assert ["UNDECODABLE" in dict(row["properties"]) for row in rows] == [False, False, True, False]


@SIM_ONLY
def test_a_filter_several_sinks_and_text_bodies(landing: Landing) -> None:
    """A4, K7: bodies that are not UTF-8 are kept in a column of their own."""
    landing.send(30)
    with patient_producer(landing.cluster.name_servers) as producer:
        producer.send(Message(topic=landing.topic, body=b"\xff", properties={"TAGS": "t1"}))
    sinks = [
        DeltaSink(landing.folder / "table"),
        Route(sink=DeltaSink(landing.folder / "bad"), where=pc.field("badRecord").is_valid()),
    ]
    landing.drain(landing.consumer(["body"], tags="t1 || t2", body="string"), sinks)

    bodies = [row["body"] for row in landing.rows()]
    wanted = [f"body {number}" for number in range(30) if number % 3]
    assert sorted(body for body in bodies if body is not None) == sorted(wanted)
    assert bodies.count(None) == 1
    assert [(row["body"], row["badRecord"]) for row in landing.rows("bad")] == [(None, b"\xff")]
