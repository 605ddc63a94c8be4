"""Listeners of every form on Spark's workers, and what becomes of one that ends its worker."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.errors import BrokerError
from pyspark_rocketmq.listeners.arrow_listener import ArrowListener, PandasListener
from pyspark_rocketmq.listeners.context import ConsumeMessageContext, ConsumeOrderlyContext
from pyspark_rocketmq.listeners.forms import ListenerContext
from pyspark_rocketmq.model import ConsumeOrderlyStatus, Message, MessageExt, MessageQueue
from tests.end_to_end.test_orderly_consumer import Consumption
from tests.helpers.administrator import Administrator
from tests.helpers.cluster import LONG_ON_REAL, SIM_ONLY, ClusterUnderTest
from tests.helpers.delivery_log import DeliveryLog
from tests.helpers.driver_process import run_driver
from tests.helpers.dying_listener_driver import CUT_DEATHS, CUTTING, DEATHS
from tests.helpers.modes import BOTH_MODES, Mode, micro_batch_only
from tests.helpers.orders import OUTPUT_SCHEMA, check_sink, produce_orders
from tests.helpers.sending import patient_producer
from tests.helpers.wait import PATIENCE_S, wait_until

pytestmark = pytest.mark.spark


@pytest.fixture
def consumption(spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path, mode: Mode) -> Consumption:
    return Consumption(spark, cluster, tmp_path, cluster.create_topic(queues=2), "direct", mode=mode)


def note(folder: str, line: str) -> None:
    with Path(folder, str(os.getpid())).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def noted(folder: Path) -> dict[str, list[str]]:
    """Lines by process."""
    return {file.name: file.read_text(encoding="utf-8").splitlines() for file in folder.iterdir()}


class Connected:
    """Opens something once per process."""

    folder = ""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def open(self, context: ListenerContext) -> None:
        note(self.folder, f"open {context.consumer_group}")

    def consume_message(
        self, messages: Sequence[MessageExt], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus:
        for message in messages:
            context.emit(order_id=message.keys, step=message.tags, delivered_ns=message.queue_offset)
        return ConsumeOrderlyStatus.SUCCESS


def yielding(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> Iterator[dict[str, Any]]:
    """Found by name."""
    for message in messages:
        yield {"order_id": message.keys, "step": message.tags, "delivered_ns": message.queue_offset}


def on_frame(
    frame: pd.DataFrame, context: ConsumeOrderlyContext
) -> tuple[ConsumeOrderlyStatus, pd.DataFrame]:
    rows = pd.DataFrame(
        {
            "queueOffset": frame["queueOffset"],
            "order_id": frame["keys"],
            "step": frame["tags"],
            "delivered_ns": frame["queueOffset"],
        }
    )
    return ConsumeOrderlyStatus.SUCCESS, rows


def on_batch(
    batch: pa.RecordBatch, context: ConsumeOrderlyContext
) -> tuple[ConsumeOrderlyStatus, pa.RecordBatch]:
    columns = [batch.column(name) for name in ("queueOffset", "keys", "tags", "queueOffset")]
    names = ["queueOffset", "order_id", "step", "delivered_ns"]
    return ConsumeOrderlyStatus.SUCCESS, pa.RecordBatch.from_arrays(columns, names=names)


class Tracing:
    """A hook that notes what it sees."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def hook_name(self) -> str:
        return "tracing"

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        context.mq_trace_context = len(context.msg_list)

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        note(self.folder, f"{context.consumer_group} {context.mq_trace_context} {context.status}")
        raise ValueError("hooks change nothing")


@SIM_ONLY
@BOTH_MODES
@pytest.mark.parametrize(
    "form",
    [
        Connected,
        lambda _: f"{__name__}:yielding",
        lambda _: PandasListener(on_frame),
        lambda _: ArrowListener(on_batch),
    ],
    ids=["opened", "generator by name", "pandas", "arrow"],
)
def test_every_form_of_a_listener_fills_the_sink(
    consumption: Consumption, form: Callable[[str], Any]
) -> None:
    """D1, D2: in order, each row once; one that is opened is opened once in each worker process,
    not in each batch.
    """
    opened = consumption.folder / "opened"
    opened.mkdir()
    expected = produce_orders(consumption.cluster.name_servers, consumption.topic, 30)

    consumption.drain(form(str(opened)), consume_message_batch_max_size=8, max_offsets_per_trigger=40)

    report = check_sink(consumption.sink, expected)
    assert (report.messages, report.rows) == (150, 150)
    assert len(consumption.reports) > (2 if consumption.mode is Mode.MICRO_BATCH else 0)
    if form is Connected:
        assert noted(opened)
        assert all(lines == [f"open {consumption.group}"] for lines in noted(opened).values())


@BOTH_MODES
@SIM_ONLY
def test_hooks_are_called_on_the_workers_and_change_nothing(consumption: Consumption) -> None:
    """D10"""
    seen = consumption.folder / "seen"
    seen.mkdir()
    expected = produce_orders(consumption.cluster.name_servers, consumption.topic, 10)

    consumption.drain(f"{__name__}:yielding", consume_message_batch_max_size=50, hooks=[Tracing(str(seen))])

    assert check_sink(consumption.sink, expected).messages == 50
    lines = [line.split() for of_process in noted(seen).values() for line in of_process]
    assert {(group, status) for group, _, status in lines} == {(consumption.group, "SUCCESS")}
    assert sum(int(count) for _, count, _ in lines) == 50


@micro_batch_only("Spark retries a task; test_kill_within_batches.py has deaths in real time")
@pytest.mark.long
@SIM_ONLY
@pytest.mark.timeout(900)
def test_a_listener_that_ends_its_worker_costs_a_retry_of_its_task(
    cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """D1, D5, H1: by os._exit, SystemExit, KeyboardInterrupt and SIGKILL, with either engine;
    no message is lost or passed.
    """
    topic = cluster.create_topic(queues=2)
    expected = produce_orders(cluster.name_servers, topic, 60)
    engines = ("state", "direct", CUTTING)
    config = {
        "nameServers": cluster.name_servers,
        "topic": topic,
        "group": cluster.unique_name("group"),
        "work": str(tmp_path),
        "engines": engines,
    }

    log = tmp_path / "driver.log"
    exit_code = run_driver("tests.helpers.dying_listener_driver", config, log, timeout_s=800)

    assert exit_code == 0, log.read_text()[-4000:]
    for work in (tmp_path / engine for engine in engines):
        deaths = (*DEATHS, *CUT_DEATHS) if work.name == CUTTING else DEATHS
        assert {mark.name for mark in work.glob("died-by-*")} == {f"died-by-{death}" for death in deaths}
        report = check_sink(work / "sink", expected)
        assert report.is_clean, f"{work.name}: {report}"
        assert report.rows == 300
        assert max(DeliveryLog(work / "deliveries").times_delivered().values()) > 1


def noting(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    """Notes what it consumes in the folder that the message names; any process finds it by its name."""
    for message in messages:
        note(message.body.decode(), str(message.queue_offset))
    return ConsumeOrderlyStatus.SUCCESS


@micro_batch_only("the planner delivers, no task")
@LONG_ON_REAL
def test_a_running_query_consumes_one_message_for_an_administrator(consumption: Consumption) -> None:
    """D12: by the planner, which is the member of the group; the offset stays where it is."""
    folder = consumption.folder / "noted"
    folder.mkdir()
    name_servers = consumption.cluster.name_servers
    address = consumption.cluster.broker_addresses["broker-a"]
    with patient_producer(name_servers) as producer:
        sent = producer.send(
            Message(topic=consumption.topic, body=str(folder).encode()),
            queue=MessageQueue(consumption.topic, "broker-a", 0),
        )
    consumer = PushConsumer(
        consumer_group=consumption.group, name_servers=name_servers, offset_store=consumption.store
    )
    consumer.subscribe(consumption.topic)
    consumer.register_message_listener(f"{__name__}:noting", output_schema=OUTPUT_SCHEMA)
    query = consumer.start(
        consumption.spark,
        checkpoint=str(consumption.folder / "noting"),
        trigger={"processingTime": "1 second"},
    )
    try:
        with ChannelPool(SystemClock()) as pool:
            admin = Administrator(pool, SystemClock(), request_timeout_s=PATIENCE_S)
            (client_id,) = wait_for_members(admin, address, consumption.group)
            answer = admin.consume_directly(
                address, consumption.group, consumption.topic, client_id, sent.offset_msg_id
            )
    finally:
        query.stop()

    assert (answer["consumeResult"], answer["order"], answer.get("remark")) == ("CR_SUCCESS", True, None)
    # The group begins at the end of the queues, so nobody else consumes it.
    assert [line for lines in noted(folder).values() for line in lines] == ["0"]


def wait_for_members(admin: BrokerClient, address: str, group: str) -> list[str]:
    found: list[str] = []

    def look() -> bool:
        with suppress(BrokerError):
            found.extend(each.client_id for each in admin.consumer_connection(address, group).connections)
        return bool(found)

    wait_until(look, reason="A member of the group")
    return found
