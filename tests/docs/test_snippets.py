"""What the pages show is run: Python and SQL with a session, commands of jobs in this process,
all on the simulator.

A page's blocks run in its order and share their names, as for a reader. What a page takes for granted (a
DataFrame of the reader's, a database) is in ``GIVEN``; an address and a folder are the test's own.
"""

from __future__ import annotations

import io
import re
import shlex
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import psycopg
import pytest
from _pytest.mark import ParameterSet
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's usual name

import pyspark_rocketmq as rmq
import pyspark_rocketmq.cli.consume
import pyspark_rocketmq.cli.publish
import pyspark_rocketmq.cli.replay
from broker_sim.cluster import SimCluster
from broker_sim.settings import BrokerSettings
from pyspark_rocketmq.cli import running as stop_signals
from pyspark_rocketmq.cli.main import main
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.model import Message
from tests.cli.conftest import session
from tests.docs.pages import ROOT, Block, blocks
from tests.docs.test_pages import JOB_CALL
from tests.helpers.running import running
from tests.helpers.wait import wait_until
from tests.postgres.server import Postgres

__all__ = ["session"]

pytestmark = [pytest.mark.spark, pytest.mark.sim]

TUTORIAL = "docs/tutorial.md"
NOT_RUN = {
    "docs/change-data.md": "tests/docs/test_change_data_page.py has a cluster of its own for it",
    "docs/how-to/databricks.md": "needs Databricks",
    "docs/how-to/pipelines.md": "tests/docs/test_pipelines_page.py runs it by spark-pipelines",
    "docs/how-to/security.md": "needs certificates; tests/both/test_security.py does the same",
    "docs/upstream/delta-rs-cost-of-a-commit.md": "writes 100,000 commits; the defect is one of time",
    "docs/upstream/delta-rs-two-optimizes.md": "tests/delta/test_upstream.py runs it",
    TUTORIAL: "test_the_tutorial_goes_step_by_step has a cluster of its own for it",
}
PAGES = sorted({block.page for block in (*blocks("python"), *blocks("sql"))} - NOT_RUN.keys())
DAILY = {"README.md", "docs/listeners.md", "docs/sinks.md", "docs/how-to/reading.md"}
"""Pages whose code `make test` runs here, and that of the quick start in a program of its own; `make long-test`
runs the others'."""
STEPS = ("created", "paid", "packed", "sent")


class Shop:
    """A reader's surroundings: a cluster with orders, a folder in the place of ``/lake``."""

    def __init__(self, cluster: SimCluster, spark: SparkSession, folder: Path) -> None:
        self.cluster = cluster
        self.spark = spark
        self.folder = folder

    def fitted(self, text: str) -> str:
        """``text`` with this test's address, folder and time."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        return (
            re.sub(r"(?<![\w.])/lake\b", str(self.folder / "lake"), text)
            .replace("127.0.0.1:9876", self.cluster.name_servers)
            .replace("$NAMESRV", self.cluster.name_servers)
            .replace("2026-11-20T10:00", now)
            .replace("2026-11-20T11:00", "2099-01-01")
            .replace("PrometheusEndpoint(monitor, 9102)", "PrometheusEndpoint(monitor, 0)")
        )

    def consumer(self) -> rmq.PushConsumer:
        """One that is configured, as pages take for granted that speak of something else."""
        made = rmq.PushConsumer(
            consumer_group="order-etl",
            name_servers=self.cluster.name_servers,
            offset_store=rmq.DeltaOffsetStore(self.folder / "lake" / "_offsets"),
            consume_from_where=rmq.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        )
        made.subscribe("orders")
        return made


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    with SimCluster(brokers=1, settings=BrokerSettings()) as cluster:
        for topic in ("orders", "orders-eu", "orders-again", "%DLQ%shop"):
            cluster.create_topic(topic, queues=4)
        with Producer(cluster.name_servers, "shop") as producer:
            producer.send_ordered((f"o{number}", order(number)) for number in range(8))
        monkeypatch.chdir(tmp_path)
        rmq.register(spark)
        made = Shop(cluster, spark, tmp_path)
        try:
            yield made
        finally:
            for query in spark.streams.active:
                query.stop()
            spark.sql("DROP DATABASE IF EXISTS lake CASCADE")
            for view in spark.catalog.listTables():
                if view.isTemporary:
                    spark.catalog.dropTempView(view.name)


def order(number: int) -> Message:
    body = f'{{"order_id": "o{number}", "amount": {number}}}'.encode()
    return Message(topic="orders", body=body, properties={"KEYS": f"o{number}", "TAGS": STEPS[number % 4]})


def with_listener(shop: Shop) -> dict[str, Any]:
    # Not by its module's name, which workers do not know.
    def on_orders(messages: Any, context: Any) -> rmq.ConsumeOrderlyStatus:
        for message in messages:
            context.emit(order_id=message.keys, step=message.tags)
        return rmq.ConsumeOrderlyStatus.SUCCESS

    consumer = shop.consumer()
    consumer.register_message_listener(on_orders, output_schema="order_id string, step string")
    return {"consumer": consumer, "on_orders": on_orders}


def with_events(shop: Shop) -> dict[str, Any]:
    rows = [(f"o{number}", STEPS[number % 4], number) for number in range(8)]
    events = shop.spark.createDataFrame(rows, "order_id string, step string, event_time int")
    shop.spark.sql("CREATE DATABASE IF NOT EXISTS lake")
    events.write.mode("overwrite").saveAsTable("lake.order_events")
    events.write.mode("overwrite").json(str(shop.folder / "events"))
    return {"events": events}


def with_past(shop: Shop) -> dict[str, Any]:
    """A group that has consumed everything, and what the pages' settings file says."""
    given = with_listener(shop)
    query = given["consumer"].start(
        shop.spark,
        sink=rmq.DeltaSink(shop.folder / "lake" / "orders"),
        checkpoint=shop.folder / "lake" / "_checkpoints" / "past",
        trigger={"availableNow": True},
    )
    query.awaitTermination(240)
    settings = {
        "nameServers": shop.cluster.name_servers,
        "consumerGroup": "order-etl",
        "offsetStore": str(shop.folder / "lake/_offsets"),
    }
    (shop.folder / "order-etl.toml").write_text(
        "".join(f'{key} = "{text}"\n' for key, text in settings.items())
    )
    return given


def with_decoded(shop: Shop) -> dict[str, Any]:
    return {"F": F, "order_avsc": '{"type": "record", "name": "o", "fields": []}'}


GIVEN: dict[str, Callable[[Shop], dict[str, Any]]] = {
    "README.md": with_events,
    "docs/how-to/dead-letters.md": with_listener,
    "docs/how-to/decoding.md": with_decoded,
    "docs/how-to/maintenance.md": with_past,
    "docs/listeners.md": lambda shop: with_listener(shop) | {"psycopg": MagicMock(), "write": print},
    "docs/how-to/monitoring.md": with_listener,
    "docs/how-to/offsets.md": with_past,
    "docs/how-to/real-time.md": with_listener,
    "docs/how-to/sending.md": lambda _: {"database": MagicMock()},
    "docs/how-to/writing.md": with_events,
    "docs/sinks.md": with_listener,
}


def in_order(page: str) -> list[Block]:
    """Its Python and SQL."""
    found = [block for block in (*blocks("python"), *blocks("sql")) if block.page == page]
    return sorted(found, key=lambda block: block.line)


def daily_or_long(pages: Iterable[str]) -> list[ParameterSet]:
    """Parameters of a test that runs each of the pages."""
    return [pytest.param(page, marks=[pytest.mark.long] * (page not in DAILY)) for page in pages]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    yield from running(Postgres())


@pytest.fixture
def is_stored(
    request: pytest.FixtureRequest, page: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], bool]]:
    """Whether the database of the page of sinks, with the table that it says to make, has rows.

    How many is not fixed: the page's second consumer shares the queues, and stores some of the rows only.
    """
    if page != "docs/sinks.md":
        yield lambda: True
        return
    server: Postgres = request.getfixturevalue("postgres")
    shell = "".join(each.text for each in blocks("bash") if each.page == page)
    (table,) = re.findall(r"psql shop -c '(.*)'", shell)
    with closing(server.connect(autocommit=True)) as connection:
        connection.execute(table)
        place = connection.info.dsn
        monkeypatch.setattr("psycopg.connect", lambda _: psycopg.Connection.connect(place))
        yield lambda: connection.execute("SELECT 1 FROM orders").fetchone() is not None


@pytest.mark.parametrize("page", daily_or_long(PAGES))
def test_python_and_sql_of_a_page_run(
    page: str, shop: Shop, is_stored: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {"spark": shop.spark, "rmq": rmq, "__name__": "reader"}
    if page in GIVEN:
        names |= GIVEN[page](shop)
    monkeypatch.setattr(sys, "argv", ["program", shop.cluster.name_servers])
    for block in in_order(page):
        if block.language == "sql":
            run_sql(block, shop)
            continue
        code = compile(shop.fitted(block.text), f"{page}:{block.line}", "exec", dont_inherit=True)
        exec(code, names)

    use(names)
    wait_until(is_stored)
    for query in shop.spark.streams.active:
        query.stop()
        assert query.exception() is None


def use(names: dict[str, Any]) -> None:
    """Do with what a page has made what its readers would."""
    for name, value in names.items():
        if isinstance(value, DataFrame) and not value.isStreaming:
            value.limit(1).collect()
        elif name.startswith("test_"):
            value()
        elif isinstance(value, rmq.PrometheusEndpoint | rmq.QueryMonitor):
            # Else it would look at the next test's queries, too.
            value.close()


def run_sql(block: Block, shop: Shop) -> None:
    statements = [text for text in shop.fitted(block.text).split(";") if text.strip()]
    if "rocketmq_watermarks" in block.text:
        with closing(sqlite3.connect(":memory:")) as database:
            for text in statements:
                database.execute(text)
        return
    for text in statements:
        shop.spark.sql(text).collect()


def calls_of(page: str) -> list[list[str]]:
    return [
        shlex.split(call.replace("\\\n", " "), comments=True)
        for block in blocks("bash")
        if block.page == page
        for call in JOB_CALL.findall(block.text)
    ]


def run(words: list[str], shop: Shop) -> str:
    """Do what a command line says, in this process; what it prints."""
    output = io.StringIO()
    with redirect_stdout(output):
        code = main([shop.fitted(word) for word in words])
    assert code == 0, f"{shlex.join(words)}\n{output.getvalue()}"
    return output.getvalue()


@pytest.fixture
def in_this_session(session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs run on the test's session, whose JVM keeps its signals."""
    # What the fixture has put there.
    monkeypatch.setattr(
        pyspark_rocketmq.cli.consume, "spark_session", vars(pyspark_rocketmq.cli.publish)["spark_session"]
    )
    monkeypatch.setattr(stop_signals, "_take_from_jvm", lambda spark: None)


def test_commands_that_look_at_and_move_groups_run(shop: Shop) -> None:
    with_past(shop)
    for words in calls_of("docs/how-to/offsets.md"):
        if "reset" in words:
            # As the page says: the rows first, from a time on before which there was nothing.
            DeltaTable(shop.folder / "lake" / "orders").delete()
            words[words.index("--to") + 1] = "2020-01-01T00:00"
        assert run(words, shop)


def to_its_end(page: str, words: list[str]) -> list[str]:
    """Options more: a consumer is to end, and this session's workers were started in another folder."""
    more = []
    if words[0] == "consume" and "trigger=availableNow" not in words:
        more += ["--option", "trigger=availableNow"]
    if words[0] == "consume" and page == "README.md":
        more += ["--option", "pyFiles=listeners.py"]
    return more


@pytest.mark.usefixtures("in_this_session")
@pytest.mark.parametrize(
    "page",
    daily_or_long(
        ["README.md", "docs/how-to/replay.md", "docs/how-to/decoding.md", "docs/how-to/writing.md"]
    ),
)
def test_jobs_of_a_page_run(page: str, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the listener that the page shows, saved as it says; to their end,
    not until somebody stops them.
    """
    monkeypatch.setattr(sys, "path", [str(shop.folder), *sys.path])
    with_events(shop)
    python = [block.text for block in blocks("python") if block.page == page]
    if page == "README.md":
        listener = python[0].partition("consumer = ")[0]
        (shop.folder / "listeners.py").write_text(listener)
        (shop.folder / "conf").mkdir()
        settings = (ROOT / "conf/consume.example.toml").read_text()
        (shop.folder / "conf/consume.example.toml").write_text(shop.fitted(settings))
    elif page == "docs/how-to/decoding.md":
        with_past(shop)
        (shop.folder / "lake.toml").write_text(
            (shop.folder / "order-etl.toml").read_text().replace("order-etl", "lake")
            + f'topic = "orders"\nsink = "{shop.folder}/lake/decoded"\ncheckpoint = "{shop.folder}/decoded"\n'
        )

    for words in calls_of(page):
        # tests/packaging runs them with the wheel.
        if words[0] not in {"demo", "simulator"}:
            assert run(words + to_its_end(page, words), shop)


@pytest.mark.long
@pytest.mark.usefixtures("in_this_session")
def test_the_tutorial_goes_step_by_step(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its topic is made by the first message; its relative paths are those of its folder."""
    send, listener, look = (block.text for block in blocks("python") if block.page == TUTORIAL)
    simulator, consume, show = (
        [word.replace("=lake/", f"={tmp_path}/lake/") for word in call] for call in calls_of(TUTORIAL)
    )
    assert simulator[0] == "simulator"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "shop.py").write_text(listener)
    with SimCluster(brokers=1) as cluster:
        monkeypatch.setattr(sys, "argv", ["send_orders.py", cluster.name_servers])
        shop = Shop(cluster, spark, tmp_path)
        exec(compile(send, "send_orders.py", "exec", dont_inherit=True), {"__name__": "__main__"})
        consumed, shown = run(consume, shop), run(show, shop)
    exec(compile(look, "look", "exec", dont_inherit=True), {})

    assert capsys.readouterr().out == "sent 4000\n4000 rows, 4000 different\n"
    assert "rows committed by this run: 4,000; deliveries given back by the listener: 8" in consumed
    assert "Offsets of consumer group shop in topic orders" in shown
