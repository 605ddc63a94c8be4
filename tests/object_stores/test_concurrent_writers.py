"""Sinks of two groups among other writers of their table, all at once, each in a process of its own."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_rocketmq.delta.log import LogFiles
from pyspark_rocketmq.delta.storage_options import StorageOptions
from pyspark_rocketmq.delta.table import query_rows
from pyspark_rocketmq.sinks.base import QueueGeneration
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.helpers.driver_process import ENVIRONMENT, REPO
from tests.object_stores.server import AzureServer, Bucket, GoogleServer
from tests.object_stores.writer import actions_of, has_upkeep, queue_of
from tests.sinks.sink_conformance import SCHEMA, rows

TIMES = int(os.environ.get("WRITER_ROUNDS", "1"))
"""How many times as many rounds as by default."""
PATIENCE_S = 300.0 * TIMES
SINKS = ("orders-etl", "payments-etl")


class Writers:
    """Those of one table."""

    def __init__(self, uri: str, options: dict[str, str] | None = None) -> None:
        self.uri = uri
        self.options = options or {}
        self.seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(1_000_000))
        sys.stdout.write(f"SEED={self.seed}\n")
        sink = DeltaSink(uri, storage_options=self.options)
        sink.prepare(SCHEMA)
        self._running: dict[str, tuple[str, subprocess.Popen[str]]] = {}

    def start(self, kind: str, name: str, rounds: int) -> None:
        """Start a writer."""
        config = {
            "kind": kind,
            "name": name,
            "rounds": rounds * TIMES,
            "seed": self.seed,
            "uri": self.uri,
            "options": self.options,
        }
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.object_stores.writer", json.dumps(config)],
            cwd=REPO,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._running[name] = kind, process

    @property
    def is_any_running(self) -> bool:
        """Whether one has not ended yet."""
        return any(process.poll() is None for _, process in self._running.values())

    def kill(self) -> None:
        """End all."""
        for _, process in self._running.values():
            process.kill()
            process.communicate()

    def check(self, **others: int) -> None:
        """Each row is there once, versions have no gap, watermarks are right; ``others`` have added rows, too."""
        ends = dict(others)
        for name, (_, process) in self._running.items():
            told, failure = process.communicate(timeout=PATIENCE_S)
            sys.stdout.write(failure)
            assert process.returncode == 0, failure
            ends[name] = int(told)
        table = DeltaTable(self.uri, storage_options=self.options)
        found = query_rows(table, 'SELECT topic, "queueOffset" FROM rows').to_pylist()
        expected = {(name, at) for name, end in ends.items() for at in range(end)}
        counts = Counter((row["topic"], row["queueOffset"]) for row in found)
        assert {row: count for row, count in counts.items() if count > 1} == {}
        assert counts.keys() == expected
        self._check_log(table.version())
        sink = DeltaSink(self.uri, storage_options=self.options)
        for name in SINKS:
            assert sink.watermarks(name) == {QueueGeneration(queue_of(name), 0): ends[name]}

    def _check_log(self, newest: int) -> None:
        log = LogFiles(self.uri, StorageOptions(self.options))
        assert log.readable_versions() == range(newest + 1)
        files = Counter[str]()
        watermarks: dict[str, int] = {}
        for version in range(newest + 1):
            actions = actions_of(log, version)
            for action in actions:
                if "add" in action:
                    files[action["add"]["path"]] += 1
                if (moved := action.get("txn")) is not None:
                    # By one batch after another.
                    assert moved["version"] > watermarks.get(moved["appId"], 0), (version, moved)
                    watermarks[moved["appId"]] = moved["version"]
        assert {path: count for path, count in files.items() if count > 1} == {}


@pytest.fixture
def writers(request: pytest.FixtureRequest) -> Callable[..., Writers]:
    def make(*arguments: Any) -> Writers:
        made = Writers(*arguments)
        request.addfinalizer(made.kill)
        return made

    return make


def run_all(writers: Writers, rounds: int, maintainers: Iterable[str] = ("compact", "compact")) -> None:
    for name in SINKS:
        writers.start("sink", name, rounds)
    writers.start("append", "appender", rounds)
    for number, kind in enumerate(maintainers):
        writers.start(kind, f"maintainer {number}", rounds)
    writers.check()
    assert has_upkeep(LogFiles(writers.uri, StorageOptions(writers.options))), "each was refused"


# delta-rs' OPTIMIZE doubles rows beside any other one.
BY_DELTA_RS = pytest.param(("maintain",), id="delta-rs")
BY_TABLES = pytest.param(("compact", "compact"), id="tables compact")


@pytest.mark.parametrize("maintainers", [BY_DELTA_RS, BY_TABLES])
@pytest.mark.timeout(PATIENCE_S)
def test_writers_of_a_table_here_make_one_history(
    maintainers: Sequence[str], writers: Callable[..., Writers], tmp_path: Path
) -> None:
    """J1, H1, H5: sinks of two groups, appends, OPTIMIZE, VACUUM and checkpoints."""
    run_all(writers(str(tmp_path / "table")), 40, maintainers)


@pytest.mark.parametrize(
    "maintainers", [pytest.param(*BY_DELTA_RS.values, id=BY_DELTA_RS.id, marks=pytest.mark.long), BY_TABLES]
)
@pytest.mark.timeout(PATIENCE_S)
def test_writers_of_a_table_on_s3_make_one_history(
    maintainers: Sequence[str], writers: Callable[..., Writers], s3: Bucket
) -> None:
    """J1, H1, H5"""
    run_all(writers(s3.uri("table"), s3.storage_options()), 10, maintainers)


@pytest.mark.long
@pytest.mark.timeout(PATIENCE_S)
def test_writers_of_a_table_on_azure_make_one_history(
    writers: Callable[..., Writers], azure_server: AzureServer
) -> None:
    """J1, H1, H5"""
    run_all(writers(f"{azure_server.make_place()}/t", azure_server.storage_options()), 10)


@pytest.mark.long
@pytest.mark.timeout(PATIENCE_S)
def test_writers_of_a_table_on_google_make_one_history(
    writers: Callable[..., Writers], google_server: GoogleServer
) -> None:
    """J1, H1, H5"""
    run_all(writers(f"{google_server.make_place()}/t", google_server.storage_options()), 10)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(PATIENCE_S)
def test_spark_and_sinks_at_once_make_one_history(
    writers: Callable[..., Writers], spark: SparkSession, tmp_path: Path
) -> None:
    """J1, J3, H1, H5: Spark appends, optimizes, and removes what OPTIMIZE has replaced; so do others."""
    uri = str(tmp_path / "table")
    table = writers(uri)
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    for name in SINKS:
        table.start("sink", name, 30)
    table.start("append", "appender", 30)
    table.start("compact", "maintainer", 30)
    rng = random.Random(table.seed)
    end = 0
    name = f"delta.`{uri}`"
    todo = ("append", f"OPTIMIZE {name}", f"VACUUM {name} LITE RETAIN 0 HOURS")
    done = Counter[str]()
    deadline_s = time.monotonic() + PATIENCE_S / 2
    while table.is_any_running or (not all(done[each] for each in todo) and time.monotonic() < deadline_s):
        chosen = rng.choice(todo)
        if chosen == "append":
            made = rows(queue_of("spark"), end, end + 2)
            spark.createDataFrame(made.to_pandas(), spark.table(name).schema).write.format("delta").mode(
                "append"
            ).save(uri)
            end += 2
            done[chosen] += 1
            continue
        try:
            [told] = spark.sql(chosen).collect()
        except PySparkException as error:
            sys.stdout.write(f"{chosen}: {str(error)[:300]}\n")
        else:
            # An OPTIMIZE that finds nothing to replace makes no commit.
            done[chosen] += "metrics" not in told or told["metrics"]["numFilesRemoved"] > 0
    table.check(spark=end)
    assert all(done[each] for each in todo), done
