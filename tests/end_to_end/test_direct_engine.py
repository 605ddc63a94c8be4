"""What Spark does to a range on its way to ``mapInArrow``, and what a user's own query may do to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import pyspark_rocketmq as rmq
from pyspark_rocketmq.consume.part import Group, check_chains
from pyspark_rocketmq.consumer.batch import run_job
from pyspark_rocketmq.model import OrderlyEngineKind
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.delivery_log import DeliveryLog
from tests.helpers.orders import produce_orders

pytestmark = [pytest.mark.spark, SIM_ONLY]

_MAX_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"


class Composed:
    """A user's query: the source in consumer mode, something done to its rows, the direct engine."""

    def __init__(self, spark: SparkSession, cluster: ClusterUnderTest, folder: Path) -> None:
        rmq.register(spark)
        self._spark = spark
        self._folder = folder
        self._options = {
            "nameServers": cluster.name_servers,
            "topic": cluster.create_topic(queues=4),
            "consumerGroup": cluster.unique_name("group"),
            "offsetStore": str(folder / "offsets"),
            "startingOffsets": "earliest",
        }
        self.sent = produce_orders(cluster.name_servers, self._options["topic"], 60)
        self.log = DeliveryLog(folder / "deliveries")

    def run(self, change: Callable[[DataFrame], DataFrame]) -> Group:
        """Evaluate one batch, without committing it."""
        log = self.log
        evaluated: list[Group] = []

        def note(
            messages: Sequence[rmq.MessageExt], context: rmq.ConsumeOrderlyContext
        ) -> rmq.ConsumeOrderlyStatus:
            log.note(messages)
            return rmq.ConsumeOrderlyStatus.SUCCESS

        def evaluate(batch: DataFrame, _: int) -> None:
            parts = tuple(run_job(batch, None).parts)
            check_chains(parts)
            evaluated.append(Group(parts))

        messages = self._spark.readStream.format("rocketmq").options(**self._options).load()
        query = (
            rmq.consume_orderly(change(messages), note, "step string", engine=OrderlyEngineKind.DIRECT)
            .writeStream.foreachBatch(evaluate)
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(once=True)
            .start()
        )
        assert query.awaitTermination(240), "the query did not end"
        return evaluated[0]


@pytest.fixture
def composed(spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path) -> Composed:
    return Composed(spark, cluster, tmp_path)


@pytest.fixture(params=[1, 7], ids="maxRecordsPerBatch={}".format)
def batch_size(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[None]:
    before = spark.conf.get(_MAX_RECORDS)
    assert before is not None
    spark.conf.set(_MAX_RECORDS, str(request.param))
    yield
    spark.conf.set(_MAX_RECORDS, before)


def check_consumed_once_in_order(composed: Composed, whole: Group) -> None:
    places = [place for delivery in composed.log.deliveries() for place in delivery.places]
    assert len(places) == len(set(places)) == 300
    assert sum(ack.consumed for ack in whole.acks) == 300
    for deliveries in composed.log.by_queue().values():
        offsets = [offset for delivery in deliveries for offset in delivery.queue_offsets]
        assert offsets == sorted(offsets)


@pytest.mark.parametrize("tasks", [1, 3])
def test_coalesced_partitions_are_consumed_one_after_the_other(composed: Composed, tasks: int) -> None:
    """D1: eight ranges in fewer tasks."""
    evaluated = composed.run(lambda messages: messages.coalesce(tasks))

    check_consumed_once_in_order(composed, evaluated)


@pytest.mark.usefixtures("batch_size")
def test_a_range_comes_in_arrow_batches_of_any_size(composed: Composed) -> None:
    """D1"""
    check_consumed_once_in_order(composed, composed.run(lambda messages: messages.coalesce(2)))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        pytest.param(lambda messages: messages.repartition(3), "planned range|rows arrived", id="repartition"),
        pytest.param(lambda messages: messages.where("tags <> 'paid' OR kind = 'end'"), "rows arrived", id="filter"),
        pytest.param(lambda messages: messages.where("kind IS NULL"), "marker row", id="no marker"),
    ],
)  # fmt: skip
def test_rows_that_were_moved_or_lost_are_refused_before_anything_is_delivered(
    composed: Composed, change: Callable[[DataFrame], DataFrame], complaint: str
) -> None:
    """D1, H1"""
    with pytest.raises(StreamingQueryException, match=complaint):
        composed.run(change)

    assert composed.log.deliveries() == []


def test_a_queue_that_was_consumed_twice_is_not_committed(composed: Composed) -> None:
    """D1: copies in different tasks are seen when their acks meet."""
    with pytest.raises(StreamingQueryException, match="two ranges of one batch were consumed"):
        composed.run(lambda messages: messages.union(messages))
