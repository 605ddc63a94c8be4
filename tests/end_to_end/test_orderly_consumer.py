from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import pyspark_rocketmq
from broker_sim.bodies import SubscriptionGroupConfig
from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.commit.pipeline import BatchReport
from pyspark_rocketmq.consume.part import QueueAck
from pyspark_rocketmq.consumer import preparation
from pyspark_rocketmq.consumer.engine import state as orderly_engine
from pyspark_rocketmq.consumer.engine.orderly import RangeConsumer
from pyspark_rocketmq.consumer.engine.state import OrderlyEngine
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.errors import BrokerError
from pyspark_rocketmq.format import register
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.model import ConsumeFromWhere, ConsumeOrderlyStatus, MessageExt
from pyspark_rocketmq.monitoring.batch_metrics import BatchMetrics
from pyspark_rocketmq.monitoring.query_monitor import QueryMonitor
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.spark.version import SPARK_PASSES_TRIGGER
from pyspark_rocketmq.wire.codes import RequestCode
from tests.docs.pages import blocks
from tests.helpers.administrator import Administrator
from tests.helpers.cluster import LONG_ON_REAL, REAL_ONLY, SIM_ONLY, ClusterUnderTest
from tests.helpers.delivery_log import DeliveryLog
from tests.helpers.modes import BOTH_MODES, TIMEOUT_S, Mode, all_consumed, micro_batch_only
from tests.helpers.orders import OUTPUT_SCHEMA, check_sink, produce_orders
from tests.helpers.retries import rows_but_retries
from tests.helpers.spark_session import SPILL_THRESHOLD
from tests.helpers.wait import PATIENCE_S, wait_until

pytestmark = pytest.mark.spark

SUCCESS = ConsumeOrderlyStatus.SUCCESS
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
INSTANCE_NAME = "tests"
"""Of all queries of a group, one after the other:
as long as the process that planned the last one has not left, a member of
another name would have half of the queues, and end when it has drained them."""


def emit_step(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    for message in messages:
        order_id, _, step = message.body.decode().partition(":")
        context.emit(order_id=order_id, step=step.rstrip("."), delivered_ns=time.time_ns())
    return SUCCESS


class Consumption:
    """Drains a topic into a sink, as one consumer group, as often as a test asks."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: ClusterUnderTest,
        folder: Path,
        topic: str,
        engine: str,
        *,
        mode: Mode = Mode.MICRO_BATCH,
    ) -> None:
        self.mode = mode
        self.spark = spark
        self.cluster = cluster
        self.folder = folder
        self.topic = topic
        self.engine = engine
        self.group = cluster.unique_name("group")
        self.store = DeltaOffsetStore(str(folder / "offsets"))
        self.sink = folder / "sink"
        self.reports: list[BatchReport] = []

    def drain(self, listener: object = emit_step, *, checkpoint: str = "checkpoint", **settings: Any) -> None:
        subscription = settings.pop("subscription", "*")
        sql = settings.pop("sql", None)
        hooks = settings.pop("hooks", ())
        monitor = settings.pop("monitor", None)
        after_batch = settings.pop("after_batch", None)
        sink = settings.pop("sink", DeltaSink(self.sink))
        consumer = PushConsumer(
            consumer_group=self.group,
            name_servers=self.cluster.name_servers,
            offset_store=self.store,
            orderly_engine=self.engine,
            **{
                "consume_from_where": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
                "instance_name": INSTANCE_NAME,
            }
            | self.mode.settings
            | settings,
        )
        consumer.subscribe(self.topic, subscription, sql=sql)
        consumer.register_message_listener(listener, output_schema=OUTPUT_SCHEMA)
        consumer.register_batch_listener(self.reports.append)
        if after_batch is not None:
            consumer.register_batch_listener(lambda _: after_batch())
        for hook in hooks:
            consumer.register_consume_message_hook(hook)
        if monitor is not None:
            monitor.watch(self.spark, consumer)
        self.mode.drain(
            consumer,
            self.spark,
            all_consumed(self.cluster, self.topic, self.store, self.group),
            sink=sink,
            checkpoint=str(self.folder / checkpoint),
        )

    def await_departure(self) -> None:
        """Wait until no broker lists a member of the group:
        who planned the last query leaves a moment after it.
        """

        def is_listed(address: str) -> bool:
            with suppress(BrokerError):
                return bool(brokers.consumer_list(address, self.group))
            return False

        clock = SystemClock()
        with closing(ChannelPool(clock)) as pool:
            brokers = BrokerClient(pool, clock, PATIENCE_S)
            for address in self.cluster.broker_addresses.values():
                wait_until(
                    partial(lambda at: not is_listed(at), address),
                    PATIENCE_S,
                    reason=f"No member at {address}",
                )

    def next_offsets(self) -> dict[tuple[str, int], int]:
        rows = rows_but_retries(self.store.read(self.group))
        return {(queue.broker_name, queue.queue_id): row.next_offset for queue, row in rows.items()}


_ENGINES = {"sim": "direct", "real": "state"}
"""Which engine is tested on which backend: both of each, at half the price of all pairs."""


@pytest.fixture
def engine(request: pytest.FixtureRequest, cluster: ClusterUnderTest, mode: Mode) -> str:
    if mode is Mode.REAL_TIME:
        return "direct"
    return str(getattr(request, "param", _ENGINES[cluster.kind]))


@pytest.fixture
def consumption(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path, engine: str, mode: Mode
) -> Consumption:
    return Consumption(spark, cluster, tmp_path, cluster.create_topic(queues=4), engine, mode=mode)


@micro_batch_only("sizes of batches; test_real_time.py has the whole path")
@pytest.mark.every_spark
def test_ordered_messages_reach_the_table_once_and_in_order(
    consumption: Consumption, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D1, D2, F1, A4, B5: the whole path from a broker to a Delta table,
    and how far behind it is on the way.
    """
    # A broker that is only late reports the time of a message as well.
    monkeypatch.setattr("pyspark_rocketmq.monitoring.query_monitor._TIMEOUT_S", PATIENCE_S)
    expected = produce_orders(consumption.cluster.name_servers, consumption.topic, 100)
    told: list[BatchMetrics] = []

    with closing(QueryMonitor()) as monitor:
        monitor.register_listener(told.append)
        consumption.drain(monitor=monitor, max_offsets_per_trigger=300)
        wait_until(lambda: sum(one.planned for one in told) == 500, reason="Spark telling of all batches")

    # A slow start has only the queues of one broker in its first batch.
    assert len(told) == len(consumption.reports) >= 2
    assert max(one.planned for one in told) <= 300
    for at, one in enumerate(told, start=1):
        assert one.planned == one.read == one.acknowledged == one.rows
        behind = 500 - sum(earlier.planned for earlier in told[:at]) if SPARK_PASSES_TRIGGER else None
        assert (one.lag, one.lag_s is not None) == (behind, SPARK_PASSES_TRIGGER), (
            "Spark 4.2 tells what brokers hold"
        )
    report = check_sink(consumption.sink, expected)
    assert report.is_clean, str(report)
    assert sum(consumption.next_offsets().values()) == 500
    assert len(consumption.next_offsets()) == 8

    consumption.drain()
    assert check_sink(consumption.sink, expected).rows == 500


@micro_batch_only("Spark's state")
@pytest.mark.parametrize("engine", ["state", "direct"], indirect=True)
@SIM_ONLY
def test_a_checkpoint_with_state_must_be_on_storage_that_all_machines_share(
    consumption: Consumption, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J6: tasks keep state there; of another engine's, only the driver reads and writes it.

    What a look at the folder has left there, since its process was killed, does no harm.
    """
    looked_for: list[Mapping[str, str]] = []
    monkeypatch.setattr(preparation, "check_shared", lambda _, places: looked_for.append(places))
    place = consumption.folder / "checkpoint"
    place.mkdir()
    (place / "_rocketmq_left").touch()
    expected = produce_orders(consumption.cluster.name_servers, consumption.topic, 1)

    consumption.drain()

    here = f"file://{place}" if consumption.engine == "state" else None
    assert looked_for[0].get("checkpoint") == here
    assert check_sink(consumption.sink, expected).is_clean


@micro_batch_only("Spark's state")
@pytest.mark.long
@pytest.mark.every_spark
@pytest.mark.parametrize("engine", ["state"], indirect=True)
@SIM_ONLY
def test_order_survives_a_sort_that_spills(consumption: Consumption) -> None:
    """D1: Spark keeps no order within a group once its sort spills; the engine puts it back.

    J4: on each Spark, none left out.
    """
    orders = 3 * SPILL_THRESHOLD // 5
    expected = produce_orders(consumption.cluster.name_servers, consumption.topic, orders)

    consumption.drain(max_offsets_per_trigger=10_000_000, consume_message_batch_max_size=1024)

    report = check_sink(consumption.sink, expected)
    assert report.is_clean, str(report)
    assert len(consumption.reports) == 1, "one batch, or there is nothing to spill"
    assert rows_out_of_order(consumption) > 0, "Spark kept the order by itself, so nothing was put back"


def rows_out_of_order(consumption: Consumption) -> int:
    """How many of the topic's rows Spark gives a grouped function behind a later row of their queue."""
    found: list[int] = []
    register(consumption.spark)
    messages = (
        consumption.spark.readStream.format("rocketmq")
        .options(
            nameServers=consumption.cluster.name_servers, topic=consumption.topic, startingOffsets="earliest"
        )
        .load()
    )

    def keep(counts: DataFrame, batch_id: int) -> None:
        found.extend(row.late for row in counts.collect())

    query = (
        # As the engine groups, so that Spark shuffles and sorts as it does for the engine.
        messages.groupBy("topic", "brokerName", "queueId")
        .applyInPandasWithState(
            count_late_rows, "late bigint", "unused int", "append", GroupStateTimeout.NoTimeout
        )
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(consumption.folder / "counting"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(TIMEOUT_S), "the query did not drain"
    assert len(found) == 8
    return sum(found)


def count_late_rows(
    key: tuple[Any, ...],
    chunks: Iterator[pd.DataFrame],
    state: GroupState,
) -> Iterator[pd.DataFrame]:
    offsets = pd.concat([chunk["queueOffset"] for chunk in chunks])
    yield pd.DataFrame({"late": [int((offsets < offsets.cummax()).sum())]})


@BOTH_MODES
@LONG_ON_REAL
def test_a_group_that_may_not_consume_for_a_while_goes_on_when_it_may(consumption: Consumption) -> None:
    """D3: ``mqadmin updateSubGroup -s false``; the query waits, says why, and needs no restart."""
    expected = produce_orders(consumption.cluster.name_servers, consumption.topic, 20)
    errors: list[BaseException] = []

    def drain() -> None:
        try:
            consumption.drain()
        except BaseException as error:
            errors.append(error)
            raise

    def allow(*, allowed: bool) -> None:
        for address in consumption.cluster.broker_addresses.values():
            config = SubscriptionGroupConfig(group_name=consumption.group, consume_enable=allowed)
            admin.put_group(address, config)

    with closing(ChannelPool(SystemClock())) as pool:
        admin = Administrator(pool, SystemClock(), PATIENCE_S)
        allow(allowed=False)
        query = Thread(target=drain, daemon=True)
        query.start()
        wait_until(lambda: is_second_batch(consumption) or not query.is_alive(), TIMEOUT_S)
        assert query.is_alive(), errors
        assert not any(ack.consumed for report in consumption.reports for ack in report.acks)
        allow(allowed=True)
        query.join(TIMEOUT_S)

    assert not query.is_alive()
    assert not errors
    report = check_sink(consumption.sink, expected)
    assert report.is_clean, str(report)


def is_second_batch(consumption: Consumption) -> bool:
    """Return whether every queue was asked for twice."""
    if consumption.mode is Mode.MICRO_BATCH:
        return len(consumption.reports) >= 2
    # Nothing was committed there. The batch has ended because its queues stood.
    progress = [query.lastProgress for query in consumption.spark.streams.active]
    return any(each is not None and each["batchId"] >= 1 for each in progress)


@SIM_ONLY
@pytest.mark.parametrize(
    ("mode", "code", "remark"),
    [
        (Mode.MICRO_BATCH, 1, "store getMessage return null"),
        pytest.param(Mode.MICRO_BATCH, 4711, "a code of a release to come", marks=pytest.mark.long),
        (Mode.REAL_TIME, 4711, "a code of a release to come"),
    ],
    indirect=["mode"],
)
def test_a_group_that_has_consumed_outlives_answers_that_mean_not_now(
    consumption: Consumption, code: int, remark: str
) -> None:
    """A8: at its next start, at its claims' looks and in its tasks; nothing is lost or doubled."""
    first = produce_orders(consumption.cluster.name_servers, consumption.topic, 20)
    consumption.drain()
    again = produce_orders(consumption.cluster.name_servers, consumption.topic, 20, first=20)
    faults = consumption.cluster.faults
    faults.add("answer-code", on=int(RequestCode.PULL_MESSAGE), times=2, response_code=code, remark=remark)

    consumption.drain()

    assert not faults.pending
    report = check_sink(consumption.sink, {**first, **again})
    assert report.is_clean, str(report)


@BOTH_MODES
@pytest.mark.every_spark
@LONG_ON_REAL
def test_a_suspended_queue_holds_nothing_but_itself_up(consumption: Consumption) -> None:
    """D3: other queues go on; the failed message is retried with its reconsumeTimes until it passes."""
    expected = produce_orders(consumption.cluster.name_servers, consumption.topic, 100)
    log = DeliveryLog(consumption.folder / "deliveries")

    def fail_twice(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        log.note(messages)
        emit_step(messages, context)
        if messages[0].keys == "order-7" and messages[0].tags == "packed" and messages[0].reconsume_times < 2:
            context.suspend_current_queue_time_millis = 10
            return SUSPEND
        return SUCCESS

    consumption.drain(fail_twice)

    report = check_sink(consumption.sink, expected)
    assert report.is_clean, str(report)
    acks = [ack for report in consumption.reports for ack in report.acks]
    assert [each.reconsume_times for each in log.deliveries() if each.reconsume_times] == [1, 2]
    assert sum(ack.failed for ack in acks) == 2
    (held,) = {ack.queue for ack in acks if ack.failed}
    if consumption.mode is Mode.REAL_TIME:
        return
    assert [ack.finished for ack in acks if ack.queue != held] == ["EXHAUSTED"] * 7
    of_failure = next(report for report in consumption.reports if any(ack.failed for ack in report.acks))
    assert len(of_failure.acks) > 1, "nothing was consumed beside it"


@BOTH_MODES
@LONG_ON_REAL
def test_a_failing_batch_comes_again_as_a_whole(consumption: Consumption) -> None:
    """D2: up to consumeMessageBatchMaxSize messages a call;
    one that fails takes its whole batch back with it.
    """
    expected = produce_orders(consumption.cluster.name_servers, consumption.topic, 60)
    log = DeliveryLog(consumption.folder / "deliveries")

    def fail_once(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        log.note(messages)
        emit_step(messages, context)
        fails = any(message.keys == "order-7" and message.tags == "packed" for message in messages)
        return SUSPEND if fails and messages[0].reconsume_times == 0 else SUCCESS

    consumption.drain(fail_once, consume_message_batch_max_size=7, suspend_current_queue_time_millis=10)

    report = check_sink(consumption.sink, expected)
    assert report.is_clean, str(report)
    deliveries = log.deliveries()
    assert max(len(delivery.queue_offsets) for delivery in deliveries) == 7
    (again,) = (delivery for delivery in deliveries if delivery.reconsume_times == 1)
    of_its_queue = log.by_queue()[again.broker_name, again.queue_id]
    at = of_its_queue.index(again)
    assert of_its_queue[at - 1].queue_offsets == again.queue_offsets
    assert len(again.queue_offsets) > 1
    once = [place for delivery in deliveries if delivery != again for place in delivery.places]
    assert sorted(once) == sorted(set(once))
    assert len(once) == 300


@BOTH_MODES
@LONG_ON_REAL
def test_an_exception_in_the_listener_suspends_and_the_message_comes_again(consumption: Consumption) -> None:
    """D5"""
    expected = produce_orders(consumption.cluster.name_servers, consumption.topic, 20)

    def raise_once(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        emit_step(messages, context)
        fails = messages[0].keys == "order-3" and messages[0].tags in {"created", "shipped"}
        if fails and messages[0].reconsume_times == 0:
            raise ValueError("not yet")
        return SUCCESS

    consumption.drain(raise_once, suspend_current_queue_time_millis=10)

    report = check_sink(consumption.sink, expected)
    assert report.is_clean, str(report)
    assert sum(ack.failed for batch in consumption.reports for ack in batch.acks) == 2


@BOTH_MODES
@LONG_ON_REAL
def test_a_listener_that_commits_itself_loses_and_doubles_nothing(consumption: Consumption) -> None:
    """D4: rows leave with the COMMIT; what is accumulated is delivered again in the next micro-batch, or
    when it is rolled back.
    """
    expected = produce_orders(consumption.cluster.name_servers, consumption.topic, 30)
    log = DeliveryLog(consumption.folder / "deliveries")
    rolled_back = consumption.folder / "rolled back"

    def commit_when_delivered(
        messages: Sequence[MessageExt], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus:
        log.note(messages)
        emit_step(messages, context)
        context.auto_commit = False
        if messages[0].keys == "order-7" and messages[0].tags == "shipped" and not rolled_back.exists():
            rolled_back.touch()
            context.suspend_current_queue_time_millis = 10
            return ConsumeOrderlyStatus.ROLLBACK
        return ConsumeOrderlyStatus.COMMIT if messages[0].tags == "delivered" else SUCCESS

    consumption.drain(commit_when_delivered, max_offsets_per_trigger=60)

    report = check_sink(consumption.sink, expected)
    assert report.is_clean, str(report)
    delivered = log.times_delivered()
    assert len(delivered) == 150
    again = {place[:2] for place, times in delivered.items() if times > 1}
    if consumption.mode is Mode.REAL_TIME:
        assert (len(again), set(delivered.values())) == (1, {1, 2}), "only what was rolled back comes again"
    else:
        assert len(again) > 1, "every batch ended with a COMMIT"


@micro_batch_only("each batch has other worker processes")
@LONG_ON_REAL
def test_rows_a_listener_collects_in_memory_are_written_before_they_are_committed(
    consumption: Consumption, tmp_path: Path
) -> None:
    """D4, H1: although each micro-batch runs in other worker processes;
    the listener is that of docs/listeners.md.
    """
    produce_orders(consumption.cluster.name_servers, consumption.topic, 40)
    written, pids = tmp_path / "written", tmp_path / "pids"
    pids.mkdir()

    def write(messages: Sequence[MessageExt]) -> None:
        line = [(message.broker_name, message.queue_id, message.queue_offset) for message in messages]
        with written.open("a") as file:
            file.write(json.dumps(line) + "\n")

    (block,) = [each for each in blocks("python") if "class InBulk" in each.text]
    names: dict[str, Any] = {"rmq": pyspark_rocketmq, "write": write, "__name__": "a_page"}
    exec(block.text, names)
    in_bulk = names["InBulk"]

    class InOtherProcesses(in_bulk):  # type: ignore[misc,valid-type]
        def consume_message(self, messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> Any:
            (pids / str(os.getpid())).touch()
            return super().consume_message(messages, context)

    environment = consumption.spark.sparkContext.environment

    def have_other_workers() -> None:
        """Spark has processes of Python for each environment."""
        environment["TESTS_BATCH"] = str(len(consumption.reports))

    try:
        consumption.drain(InOtherProcesses, max_offsets_per_trigger=60, after_batch=have_other_workers)
    finally:
        environment.pop("TESTS_BATCH", None)

    lines = [json.loads(line) for line in written.read_text().splitlines()]
    committed = consumption.next_offsets()
    assert sum(committed.values()) >= 100
    for (broker_name, queue_id), next_offset in committed.items():
        offsets = [
            offset
            for line in lines
            for name, queue, offset in line
            if (name, queue) == (broker_name, queue_id)
        ]
        assert offsets == list(range(next_offset)), "each once, since nothing was killed"
    # Two tasks run at once, so a third process is another micro-batch's.
    assert len(list(pids.iterdir())) >= 3


@micro_batch_only("Spark's state")
@pytest.mark.parametrize("engine", ["state"], indirect=True)
@SIM_ONLY
def test_a_checkpoint_whose_state_an_earlier_release_has_written_is_gone_on_with(
    consumption: Consumption, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """D4, H9: it held pickled rows there.

    Whoever may write a checkpoint could have put anything into it;
    none of it runs.
    """
    expected = produce_orders(consumption.cluster.name_servers, consumption.topic, 20)
    with monkeypatch.context() as earlier:
        earlier.setattr(
            orderly_engine, "OrderlyEngine", lambda consumer: StateOfBefore(consumer, tmp_path / "has-run")
        )
        consumption.drain()
    more = produce_orders(consumption.cluster.name_servers, consumption.topic, 20, first=20)
    expected = {**expected, **more}

    consumption.drain()

    report = check_sink(consumption.sink, expected)
    assert report.is_clean, str(report)
    assert not (tmp_path / "has-run").exists()


class StateOfBefore(OrderlyEngine):
    """Leaves in Spark's state what an earlier release would take for a queue's rows, with code in it."""

    def __init__(self, consumer: RangeConsumer, folder: Path) -> None:
        super().__init__(consumer)
        self._folder = folder

    def __call__(
        self, key: tuple[Any, ...], chunks: Iterable[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        for frame in super().__call__(key, chunks, state):
            ack = QueueAck.from_json(frame["ack"].iloc[-1])
            state.update(
                (
                    ack.state.next_offset,
                    ack.state.epoch + 1,
                    ack.state.next_offset,
                    pickle.dumps(MakesFolder(self._folder)),
                )
            )
            yield frame


class MakesFolder:
    """Runs code when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._folder),)


@BOTH_MODES
@LONG_ON_REAL
def test_a_tag_subscription_reads_its_tags_and_acknowledges_everything(consumption: Consumption) -> None:
    """A4: offsets pass what was filtered, or lag would stay for ever."""
    expected = produce_orders(consumption.cluster.name_servers, consumption.topic, 50)

    consumption.drain(subscription="created || paid")

    report = check_sink(consumption.sink, dict.fromkeys(expected, ("created", "paid")))
    assert report.is_clean, str(report)
    assert sum(consumption.next_offsets().values()) == 250


@REAL_ONLY
@BOTH_MODES
def test_a_condition_reads_its_messages_and_acknowledges_everything(consumption: Consumption) -> None:
    """A4: in real time a pull waits at the broker, which wakes it for messages that it then leaves out."""
    expected = produce_orders(consumption.cluster.name_servers, consumption.topic, 50)

    consumption.drain(sql="TAGS IN ('created', 'paid')")

    report = check_sink(consumption.sink, dict.fromkeys(expected, ("created", "paid")))
    assert report.is_clean, str(report)
    assert sum(consumption.next_offsets().values()) == 250


@BOTH_MODES
@SIM_ONLY
def test_a_lost_checkpoint_loses_and_doubles_nothing(consumption: Consumption) -> None:
    """H2: the query continues from the offset store, by another member's name,
    as without ``instance_name``.
    """
    expected = dict(produce_orders(consumption.cluster.name_servers, consumption.topic, 50))
    consumption.drain(instance_name=None)
    expected |= produce_orders(consumption.cluster.name_servers, consumption.topic, 50, first=50)
    consumption.await_departure()

    consumption.drain(checkpoint="another", instance_name=None)

    report = check_sink(consumption.sink, expected)
    assert report.is_clean, str(report)
    assert report.rows == 500


@micro_batch_only("Spark's state")
@SIM_ONLY
def test_a_group_may_change_its_engine(consumption: Consumption) -> None:
    """H2: with another checkpoint, since Spark's own knows the operators; progress is in the offset store."""
    expected = dict(produce_orders(consumption.cluster.name_servers, consumption.topic, 20))
    consumption.drain(checkpoint=consumption.engine)
    more = produce_orders(consumption.cluster.name_servers, consumption.topic, 20, first=20)
    expected = {**expected, **more}

    consumption.engine = {"state": "direct", "direct": "state"}[consumption.engine]
    consumption.drain(checkpoint=consumption.engine)

    report = check_sink(consumption.sink, expected)
    assert report.is_clean, str(report)
    assert report.rows == 200


@micro_batch_only("the tables are the same in both")
@SIM_ONLY
def test_offsets_and_rows_can_be_read_by_spark(consumption: Consumption) -> None:
    """F1: the offset store is a table anyone can query."""
    produce_orders(consumption.cluster.name_servers, consumption.topic, 10)
    consumption.drain()

    spark = consumption.spark
    offsets = spark.read.format("delta").load(str(consumption.folder / "offsets"))
    rows = spark.read.format("delta").load(str(consumption.sink))

    assert offsets.groupBy("consumer_group").sum("next_offset").collect()[0][1] == 50
    (counts,) = rows.where("queueOffset >= 0").selectExpr("count(*)", "count(DISTINCT order_id)").collect()
    assert tuple(counts) == (50, 10)
