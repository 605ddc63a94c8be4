"""The reasons for which a query in real time is refused before it starts."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consumer import live_checks
from pyspark_rocketmq.consumer.live_checks import (
    Connect,
    FreeSlots,
    LiveContext,
    argument_problems,
    check_live,
    live_context,
    live_problems,
    spared,
)
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.hub.server import HubServer
from pyspark_rocketmq.hub.session import HubAddress
from pyspark_rocketmq.hub.state import Slots
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.sinks.multi import as_single_sink
from pyspark_rocketmq.spark.session import IdleKill
from tests.consumer.test_preparation import ROWS, OneCommit

KILL = IdleKill(60.0, ("idleTimeoutSeconds", "killOnIdleTimeout"))


def context(**changes: Any) -> LiveContext:
    return LiveContext(**{"lasts_s": 300.0, "slots": 2} | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"slots": 1},
        {"slots": 0, "by_spark": ("S",)},
        {
            "slots": 2,
            "by_spark": (
                "S",
                "T",
            ),
        },
        {"idle_kill": IdleKill(300.0, KILL.settings)},
    ],
    ids=str,
)
def test_a_query_that_can_run_is_taken(changes: dict[str, Any]) -> None:
    assert live_problems(context(**changes)) == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"one_commit": ("OneCommit()",)}, r"with OneCommit\(\), which makes only one commit in a batch:"),
        (
            {
                "slots": 1,
                "by_spark": (
                    "S",
                    "T",
                ),
            },
            r"two task slots here, and the session has one\. .* add rows to S, T\.",
        ),
        (
            {"can_listen": False},
            r"could not open a port .*\. Correct spark.driver.bindAddress, or install OpenSSL",
        ),
        (
            {"unreached": {"h2": "refused", "h1": "timed out"}},
            r": h1 \(timed out\), h2 \(refused\)\. Let exe",
        ),
        (
            {"unreached": dict.fromkeys("abcde", "no")},
            r": a \(no\), b \(no\), c \(no\) and 2 more hosts\. Let",
        ),
        (
            {"idle_kill": KILL},
            r"no rows for 300 s, .*after idleTimeoutSeconds=60 seconds\. Set killOnIdleTimeout=false",
        ),
    ],
)
def test_a_query_that_would_stand_still_is_refused(changes: dict[str, Any], says: str) -> None:
    """I7"""
    (problem,) = live_problems(context(**changes))

    assert problem.startswith("trigger realTime ")
    assert re.search(says, problem)


def test_all_problems_are_reported_at_once() -> None:
    """I7"""
    problems = live_problems(
        context(
            slots=1,
            one_commit=("O",),
            by_spark=("S",),
            can_listen=False,
            unreached={"h": "no"},
            idle_kill=KILL,
        )
    )

    assert len(problems) == 5
    assert len(argument_problems(has_listener=False, is_engine_state=True, is_classic=False)) == 3
    assert argument_problems(has_listener=True, is_engine_state=False, is_classic=True) == []


@pytest.mark.parametrize(
    ("slots", "count", "left"),
    [
        (Slots(4, 4), 1, Slots(4, 3, 1)),
        (Slots(4, 4), 0, Slots(4, 4)),
        (Slots(1, 1), 1, Slots(1, 1, 1)),
        # The cluster grows, or shows nothing.
        (Slots(4, 0), 1, Slots(4, 0, 1)),
        (Slots(), 1, Slots(left=1)),
    ],
)
def test_a_slot_is_left_to_the_jobs_of_a_sink(slots: Slots, count: int, left: Slots) -> None:
    assert spared(slots, count) == left


def test_a_query_is_refused_with_all_reasons() -> None:
    """I7"""
    spark: Any = Session(
        spark_python_worker_idleTimeoutSeconds="60", spark_python_worker_killOnIdleTimeout="true"
    )
    with pytest.raises(OptionError) as caught:
        check_live(spark, None, "g", None, 300.0)
    assert len(caught.value.problems) == 2
    assert "configuration of consumer group 'g'" in str(caught.value)


def test_a_query_leaves_a_slot_free_as_long_as_it_may_need_one(tmp_path: Path) -> None:
    spark: Any = Session("local[2]")
    sink = DeltaSink(tmp_path / "table")
    sink.prepare(ROWS)
    slots = FreeSlots(spark, 1)
    assert slots() == Slots(2, 1, 1)

    slots.left = check_live(spark, sink, "g", HubAddress.new("127.0.0.1", 1).to_text(), 300.0)
    assert slots() == Slots(2, 2)


@pytest.mark.parametrize(("most", "planned"), [("5", 9), ("", 0)])
def test_a_slot_is_left_free_of_those_that_a_growing_cluster_can_have(
    most: str, planned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I7: nobody gives one back while all tasks of a batch run."""
    monkeypatch.setattr(live_checks, "task_slots", lambda _: Slots(2, 0))
    spark: Any = Session()
    spark.conf = Settings({"spark.dynamicAllocation.maxExecutors": most, "spark.executor.cores": "2"})

    assert FreeSlots(spark, 1)() == Slots(2, planned, 1)
    assert FreeSlots(spark, 0)() == Slots(2, 0)


# ------------------------------------------------------------------------------------------- the session's facts


class Settings:
    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def get(self, key: str, default: str | None = None) -> str | None:
        return self._values.get(key, default)


class Session:
    """A session of a cluster, whose tasks run in this process."""

    def __init__(self, master: str = "yarn", **settings: str) -> None:
        self.master = master
        self.defaultParallelism = 4
        self.jobs = 0
        named = {name.replace("_", "."): value for name, value in settings.items()}
        self.conf = Settings({key: value for key, value in named.items() if "sql" in key})
        self._context = Settings({key: value for key, value in named.items() if "sql" not in key})
        self._rows: list[Any] = []

    @property
    def sparkContext(self) -> Session:  # noqa: N802 - Spark's
        return self

    def getConf(self) -> Settings:  # noqa: N802 - Spark's
        return self._context

    def setJobGroup(self, *_: object, **__: object) -> None:  # noqa: N802 - Spark's
        self.jobs += 1

    def range(self, *_: int) -> Session:
        return self

    def mapInArrow(  # noqa: N802 - Spark's
        self, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str
    ) -> Session:
        self._rows = [row for batch in function(iter(())) for row in batch.to_pylist()]
        return self

    def collect(self) -> list[Any]:
        return self._rows


@pytest.fixture
def hub() -> Iterator[HubServer]:
    server = HubServer(
        "127.0.0.1",
        "127.0.0.1",
        must_ask=True,
        slots=Slots(),
        commit=lambda commit: None,
        look=lambda: None,
        clock=SystemClock(),
    )
    yield server
    server.close()


def seen(spark: Any, hub: HubAddress | None, sink: Any = None) -> LiveContext:
    return live_context(spark, sink, "g", hub, 300.0)


@pytest.fixture(autouse=True)
def two_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_checks, "task_slots", lambda _: Slots(2, 2))


def test_tasks_find_out_if_they_reach_the_driver(hub: HubServer) -> None:
    """I7: on a cluster; on one machine they do."""
    spark = Session()
    assert seen(spark, hub.address) == context()
    assert spark.jobs == 1
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]

    unreached = seen(spark, HubAddress.new("127.0.0.1", port)).unreached
    assert list(unreached) == [socket.gethostname()]
    assert "refused" in unreached[socket.gethostname()]
    local = Session("local[2]")
    assert seen(local, HubAddress.new("127.0.0.1", port)) == context()
    assert local.jobs == 0


def test_whoever_is_not_the_querys_driver_does_not_count(hub: HubServer) -> None:
    """H9: another process may listen at that port of another network."""
    stranger = HubAddress.new(hub.address.host, hub.address.port)

    (batch,) = Connect(stranger)(iter(()))

    assert batch.column("problem").to_pylist() != []


def test_a_driver_that_cannot_listen_is_reported() -> None:
    assert not seen(Session(), None).can_listen


@pytest.mark.parametrize(
    ("settings", "after_s"),
    [
        ({}, None),
        ({"spark_python_worker_idleTimeoutSeconds": "60"}, None),
        ({"spark_python_worker_killOnIdleTimeout": "true"}, None),
        (
            {"spark_python_worker_idleTimeoutSeconds": "60", "spark_python_worker_killOnIdleTimeout": "True"},
            60.0,
        ),
        (
            {
                "spark_python_worker_idleTimeoutSeconds": "60",
                "spark_python_worker_killOnIdleTimeout": "true",
                "spark_sql_execution_pyspark_udf_idleTimeoutSeconds": "0",
            },
            None,
        ),
        (
            {
                "spark_sql_execution_pyspark_udf_idleTimeoutSeconds": "7",
                "spark_sql_execution_pyspark_udf_killOnIdleTimeout": "true",
            },
            7.0,
        ),
        ({"spark_sql_execution_pyspark_udf_idleTimeoutSeconds": "seven"}, None),
    ],
)
def test_a_worker_that_spark_would_end_is_noticed(settings: dict[str, str], after_s: float | None) -> None:
    """I7: the settings for SQL take their defaults from the ones of all workers."""
    found = seen(Session("local", **settings), None).idle_kill

    assert (None if found is None else found.after_s) == after_s


def test_sinks_are_looked_at_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    several: Any = as_single_sink([DeltaSink(tmp_path / "table"), OneCommit()])  # type: ignore[list-item]
    several.sinks[0].prepare(ROWS)
    found = seen(Session("local"), None, several)
    assert (found.one_commit, found.by_spark) == (("OneCommit()",), ())

    begin = DeltaSink.begin

    def by_spark(sink: DeltaSink, *given: Any) -> Any:
        batch = begin(sink, *given)
        batch.is_by_spark = True
        return batch

    monkeypatch.setattr(DeltaSink, "begin", by_spark)
    assert seen(Session("local"), None, several).by_spark == (repr(several.sinks[0]),)
