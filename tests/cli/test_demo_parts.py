"""The demo's smaller parts: where queues go, what a run is called, how the cluster is stopped,
what is reported.
"""

from __future__ import annotations

import io
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from tempfile import gettempdir
from typing import Never

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from rich.console import Console

from broker_sim.cluster import SimCluster
from pyspark_rocketmq.cli.demo.orders import STEPS
from pyspark_rocketmq.cli.demo.report import (
    check_orders,
    print_head,
    read_orders,
    verdict_line,
)
from pyspark_rocketmq.cli.demo.run import DemoTopic, RunNames, embedded_cluster, run_demo, share_queues
from pyspark_rocketmq.cli.demo.settings import DemoSettings
from pyspark_rocketmq.cli.settings import JobFailed
from tests.packaging.checkout import ROOT

NOON = datetime(2024, 5, 6, 12, 0, 0, tzinfo=UTC)


def connects(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def orders_table(rows: list[tuple[str, ...]]) -> pa.Table:
    positions = [("demo", "broker-a", 0, offset) for offset in range(len(rows))]
    names = ("topic", "brokerName", "queueId", "queueOffset", "order_id", "step")
    columns = zip(*(position + row for position, row in zip(positions, rows, strict=True)), strict=True)
    return pa.table(dict(zip(names, map(list, columns), strict=True)))


@given(brokers=st.integers(1, 12), queues=st.integers(1, 64))
def test_queues_are_shared_as_evenly_as_can_be_and_all_of_them(brokers: int, queues: int) -> None:
    shares = share_queues([f"broker-{number:02d}" for number in range(brokers)], queues)

    assert sum(shares.values()) == queues
    assert max(shares.values()) - min(shares.values()) <= 1
    assert len(shares) == min(brokers, queues)


def test_two_brokers_get_four_queues_each() -> None:
    assert share_queues({"broker-b", "broker-a"}, 8) == {"broker-a": 4, "broker-b": 4}


@pytest.mark.sim
def test_a_topic_is_not_created_while_no_broker_has_a_master() -> None:
    with SimCluster(replicas=1) as cluster:
        cluster.stop_broker("broker-a")

        with pytest.raises(JobFailed, match=r"cannot create 'new'.*\(broker-a\) has a master now\. Start"):
            DemoTopic("new", [cluster.name_servers]).ensure()


def test_a_run_is_named_after_its_start() -> None:
    names = RunNames.for_run(DemoSettings(), NOON)

    assert names.topic == "demo-orders-20240506-120000"
    assert names.consumer_group == "demo-group-20240506-120000"
    assert names.work_dir == Path(gettempdir(), "pyspark-rocketmq-demo-20240506-120000")


def test_given_names_are_kept() -> None:
    settings = DemoSettings(topic="t", consumer_group="g", work_dir="/lake/demo")

    names = RunNames.for_run(settings, NOON)

    assert names == RunNames(topic="t", consumer_group="g", work_dir=Path("/lake/demo"))
    assert (names.orders, names.offsets) == ("/lake/demo/orders", "/lake/demo/offsets")


@pytest.mark.sim
def test_the_embedded_cluster_is_gone_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'connector'}{os.pathsep}{ROOT}")

    def fail_in_the_middle() -> Never:
        with embedded_cluster(2) as name_server:
            seen.append((name_server, connects(name_server)))
            raise RuntimeError("in the middle")

    seen: list[tuple[str, bool]] = []
    with pytest.raises(RuntimeError, match="in the middle"):
        fail_in_the_middle()

    ((name_server, was_there),) = seen
    assert was_there
    assert not connects(name_server)


def test_the_verdict_of_a_clean_table_is_one_line() -> None:
    report = check_orders(orders_table([("order-00000000", step) for step in STEPS]), orders=1)

    assert report.is_clean
    assert verdict_line(5, report) == "messages: 5 · rows: 5 · duplicates: 0 · lost: 0 · order violations: 0"


def test_a_missing_and_a_late_step_are_counted() -> None:
    created, paid, packed, shipped, _ = (("order-00000000", step) for step in STEPS)

    report = check_orders(orders_table([created, packed, paid, shipped]), orders=1)

    assert verdict_line(5, report) == "messages: 5 · rows: 4 · duplicates: 0 · lost: 1 · order violations: 1"


def test_a_table_is_checked_in_the_order_of_delivery(tmp_path: Path) -> None:
    """D1: every row is there and in its place, but the listener got two of them the wrong way round."""
    table = orders_table([("order-00000000", step) for step in STEPS])
    write_deltalake(str(tmp_path), table.append_column("delivered_ns", pa.array([1, 2, 4, 3, 5])))

    report = check_orders(read_orders(str(tmp_path)), orders=1)

    assert verdict_line(5, report) == "messages: 5 · rows: 5 · duplicates: 0 · lost: 0 · order violations: 1"


def test_the_head_of_the_table_leaves_out_what_is_not_for_reading() -> None:
    table = orders_table([("order-00000000", step) for step in STEPS])
    output = io.StringIO()
    console = Console(file=output, width=100)

    print_head(table.append_column("delivered_ns", pa.array([1, 2, 3, 4, 5])), "orders", console, count=2)

    shown = output.getvalue()
    assert "queueOffset   order_id" in shown
    assert "paid" in shown
    assert not any(word in shown for word in ("delivered_ns", "topic", "packed"))


@pytest.mark.spark
@pytest.mark.sim
def test_the_demo_in_real_time_shows_how_long_messages_took(session: SparkSession, tmp_path: Path) -> None:
    """I1"""
    assert session.version
    output = io.StringIO()
    settings = DemoSettings(orders=200, brokers=1, work_dir=str(tmp_path), real_time=True)
    run_demo(settings, Console(file=output, width=200))

    shown = output.getvalue()
    assert "messages: 1000 · rows: 1000 · duplicates: 0 · lost: 0 · order violations: 0" in shown
    assert "store to listener: p50 " in shown


@pytest.mark.spark
@pytest.mark.sim
def test_the_demo_says_before_it_consumes_that_its_warnings_are_part_of_it(
    session: SparkSession, tmp_path: Path
) -> None:
    assert session.version
    output = io.StringIO()
    run_demo(DemoSettings(orders=20, brokers=1, work_dir=str(tmp_path)), Console(file=output, width=200))

    announced, consumed, judged = map(
        output.getvalue().index,
        (
            "The demo's listener fails on purpose now and then, so tracebacks and warnings are expected.",
            "Consumed 100 rows",
            "messages: 100 · rows: 100 · duplicates: 0 · lost: 0 · order violations: 0",
        ),
    )
    assert announced < consumed < judged
