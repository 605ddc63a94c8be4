"""Tasks that cannot reach the database to which they commit."""

from __future__ import annotations

import logging
import os
import socket
import sqlite3
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from pyspark_rocketmq.consumer import task_checks
from pyspark_rocketmq.consumer.task_checks import Reach, check_reached, unreached_problem
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.sinks.base import Sink
from pyspark_rocketmq.sinks.database import DatabaseSink
from pyspark_rocketmq.sinks.database_task import ReachDatabase
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.consumer.test_preparation import ROWS

PAUSES = [0.0, 0.05, 0.2, 1.0, 3.0]
slept: list[float] = []
opened: list[None] = []


@pytest.fixture(autouse=True)
def nothing_yet() -> None:
    slept.clear()
    opened.clear()


def note(pause_s: float) -> None:
    """Note a pause; found by its name, as what a task unpickles is a copy."""
    slept.append(pause_s)


def prepared(connect: Callable[[], Any], folder: Path) -> DatabaseSink:
    """Return a sink whose tasks commit; the driver reaches the database in a file."""
    sink = DatabaseSink(connect, lambda cursor, rows: None, commit_in_task=True, sleep=note)
    sink.table._connect = partial(sqlite3.connect, folder / "rows.db")
    sink.prepare(ROWS)
    return sink


def problem_of(connect: Callable[[], Any], folder: Path) -> str:
    """Return the reason that a task finds, here in the driver's process."""
    check = prepared(connect, folder).task_check()
    assert check is not None
    return check()


def refused(text: str) -> Any:
    opened.append(None)
    raise sqlite3.OperationalError(text)


def back_again(folder: Path) -> Any:
    return refused("away") if len(opened) < 3 else sqlite3.connect(folder / "rows.db")


def test_a_database_that_tasks_reach_is_taken(tmp_path: Path) -> None:
    """I7"""
    assert not problem_of(partial(sqlite3.connect, tmp_path / "rows.db"), tmp_path)
    assert slept == []


def test_a_database_that_is_away_for_a_moment_is_tried_again(tmp_path: Path) -> None:
    """I7"""
    assert not problem_of(partial(back_again, tmp_path), tmp_path)
    assert slept == PAUSES[:3]


def test_the_last_error_is_the_reason_and_shows_no_password(tmp_path: Path) -> None:
    """I7, A5"""
    refuses = partial(refused, "cannot open postgresql://u:geheim@db:5432/x, password=geheim.")

    reason = problem_of(refuses, tmp_path)

    assert reason == "OperationalError: cannot open postgresql://***@db:5432/x, password=***"
    assert slept == PAUSES


def test_another_database_than_the_drivers_is_found(tmp_path: Path) -> None:
    """I7: such as a file on the executor's disk, or a server at localhost."""
    DatabaseSink(partial(sqlite3.connect, tmp_path / "other.db"), lambda *_: None).prepare(ROWS)

    reason = problem_of(partial(sqlite3.connect, tmp_path / "other.db"), tmp_path)

    assert reason == "connect() opens another database there than on the driver"


def test_a_function_that_cannot_be_loaded_there_is_a_reason(tmp_path: Path) -> None:
    """I7"""
    access = prepared(partial(sqlite3.connect, tmp_path / "rows.db"), tmp_path)._access
    assert access is not None
    missing = cloudpickle.dumps(os.getcwd).replace(b"getcwd", b"getcwx")

    reason = ReachDatabase(type(access)(missing, access.table, "?"), None)()

    assert reason.startswith("AttributeError: ")


def test_a_host_that_never_answers_has_a_deadline(tmp_path: Path) -> None:
    """I7"""
    access = prepared(partial(sqlite3.connect, tmp_path / "rows.db"), tmp_path)._access
    assert access is not None
    hangs = type(access)(cloudpickle.dumps((wait, print, note)), access.table, "?")

    try:
        assert ReachDatabase(hangs, None, within_s=0.05)() == "no answer within 0.05 s"
    finally:
        waiting.set()


waiting = threading.Event()


def wait() -> Any:
    waiting.wait(60.0)
    raise sqlite3.OperationalError("the test is over")


class Session:
    """Stands for a session: its jobs run here."""

    def __init__(self, *, has_executor: bool = True) -> None:
        self.has_executor = has_executor
        self.jobs = 0

    def ask(self, spark: object, ask: Reach, columns: str, description: str) -> list[dict[str, str]] | None:
        self.jobs += 1
        batches = list(ask(iter(()))) * 2
        return [row for batch in batches for row in batch.to_pylist()] if self.has_executor else None


def check(monkeypatch: pytest.MonkeyPatch, spark: Session, sink: Any) -> None:
    monkeypatch.setattr(task_checks, "ask_executors", spark.ask)
    check_reached(spark, sink)  # type: ignore[arg-type]


def test_only_sinks_to_which_tasks_commit_are_checked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """I7"""
    spark, connect = Session(), partial(sqlite3.connect, tmp_path / "rows.db")
    others: list[Sink] = [DeltaSink(tmp_path / "table"), DatabaseSink(connect, lambda *_: None)]
    for sink in others:
        sink.prepare(ROWS)
        check(monkeypatch, spark, sink)
    assert spark.jobs == 0

    check(monkeypatch, spark, prepared(connect, tmp_path))
    assert spark.jobs == 1


def test_the_error_names_host_reason_and_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """I7"""
    sink = prepared(partial(refused, "no route to db"), tmp_path)

    with pytest.raises(OptionError) as caught:
        check(monkeypatch, Session(), sink)

    [problem] = caught.value.problems
    assert problem == (
        "tasks commit by themselves into DatabaseSink(watermark_table='rocketmq_watermarks'), and executors "
        f"on these hosts cannot reach it: {socket.gethostname()} (OperationalError: no route to db). Let each "
        "executor reach the database at the address that connect() uses there, or leave out commit_in_task"
    )


def test_many_hosts_are_counted() -> None:
    sink = DatabaseSink(lambda: None, lambda *_: None)

    problem = unreached_problem(sink, {f"host-{number}": "away" for number in range(5)})

    assert "host-0 (away), host-1 (away), host-2 (away) and 2 more hosts. Let each" in problem


def test_without_an_executor_the_check_is_left_to_the_first_batch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """I7"""
    sink = prepared(partial(sqlite3.connect, tmp_path / "rows.db"), tmp_path)
    with caplog.at_level(logging.WARNING):
        check(monkeypatch, Session(has_executor=False), sink)
    assert "no executor was running in time to check that tasks reach DatabaseSink" in caplog.text
