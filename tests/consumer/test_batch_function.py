"""Consumers of Spark Connect: what is sent to the server, and what is refused."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consume.cuts import Place
from pyspark_rocketmq.consumer import batch_function
from pyspark_rocketmq.consumer.batch_function import (
    CommitterParts,
    ServerFunction,
    check_over_connect,
    check_server_has,
)
from pyspark_rocketmq.consumer.engine.state import NOT_OVER_CONNECT
from pyspark_rocketmq.errors import OptionError, RocketMQError, StorageNotShared
from pyspark_rocketmq.hub import task_end
from pyspark_rocketmq.hub.driver_end import BatchEnd, Committed, DriverControl
from pyspark_rocketmq.hub.state import Slots
from pyspark_rocketmq.hub.task_end import ControlEndpoint, ask_driver
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.offsets.store import OffsetStore
from pyspark_rocketmq.options.read import ReadOptions
from tests.helpers.parts import part_of
from tests.helpers.wait import wait_until

A = MessageQueue("T", "broker-a", 0)
COLUMNS = pa.schema([("a", pa.int32())])


def parts(folder: Path, *, store: OffsetStore | None = None, **changed: Any) -> CommitterParts:
    options = {
        "nameServers": "127.0.0.1:1",
        "topic": "T",
        "consumerGroup": "g",
        "offsetStore": str(folder / "offsets"),
    }
    given: dict[str, Any] = {
        "options": ReadOptions.parse(options),
        "store": store,
        "sink": None,
        "engine": None,
        "listeners": (),
        "is_mirrored": False,
        "tries_for_ever": False,
        "drains": False,
    }
    return CommitterParts(**given | changed)


def test_the_function_is_pickled_and_makes_its_committer_at_the_first_batch(tmp_path: Path) -> None:
    """H1: in the server's process, with the id of the query that has its name."""
    function: ServerFunction = pickle.loads(pickle.dumps(ServerFunction(parts(tmp_path), COLUMNS, "q")))
    queries = [SimpleNamespace(name=name, id=f"id of {name}") for name in (None, "p", "q")]

    committer = function._made(SimpleNamespace(streams=SimpleNamespace(active=queries)))  # type: ignore[arg-type]

    assert committer._query_id() == "id of q"
    assert isinstance(committer._parts._store, DeltaOffsetStore)


def test_a_query_that_has_ended_commits_nothing(tmp_path: Path) -> None:
    """H1: its id is not known any more, by which a batch that comes again is distinguished from another."""
    ended: Any = SimpleNamespace(sparkSession=SimpleNamespace(streams=SimpleNamespace(active=[])))

    with pytest.raises(RocketMQError, match="has no query of the name 'q' any more"):
        ServerFunction(parts(tmp_path), COLUMNS, "q")(ended, 0)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"listeners": (threading.Lock().acquire,)},
            "the batch listener cannot be sent to the server, where Spark",
        ),
        ({"sink": threading.Lock()}, "the sink cannot be sent to the server"),
        (
            {"store": DeltaOffsetStore("t", storage_options=dict)},
            "storage_options of the offset store are a callable",
        ),
        ({"drains": True}, "Spark before 4.2 does not pass the trigger"),
    ],
)
def test_what_would_fail_at_the_server_is_refused_before_the_start(
    changed: dict[str, Any], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J3: in words of what Spark Connect does."""
    monkeypatch.setattr(batch_function, "SPARK_PASSES_TRIGGER", False)

    with pytest.raises(OptionError, match=told):
        check_over_connect(parts(tmp_path, **changed))
    with pytest.raises(OptionError, match="orderly_engine='state' is not possible"):
        check_over_connect(parts(tmp_path), [NOT_OVER_CONNECT])


@pytest.mark.parametrize("hosts", [[], ["other-host"]])
def test_a_folder_of_another_machine_is_reported(hosts: list[str], tmp_path: Path) -> None:
    """H1: this process makes the tables that the server's writes."""
    rows = [{"marker": "m", "host": host} for host in hosts]
    looks = SimpleNamespace(mapInArrow=lambda look, schema: SimpleNamespace(collect=lambda: rows))
    spark: Any = SimpleNamespace(range=lambda *numbers: looks)
    places = {"sink": str(tmp_path / "sink" / "orders"), "offset_store": "s3://lake/offsets"}

    if hosts:
        with pytest.raises(StorageNotShared, match=r"sink=.*is another folder on other-host"):
            check_server_has(spark, places)
    else:
        check_server_has(spark, places)
    assert list((tmp_path / "sink" / "orders").iterdir()) == []


@pytest.fixture
def hub() -> Iterator[DriverControl]:
    made = DriverControl(
        "127.0.0.1",
        "127.0.0.1",
        must_ask=True,
        slots=Slots,
        read_epochs=dict,
        clock=SystemClock(),
        look_every_s=0.02,
        ends_tasks=True,
    )
    yield made
    made.close()


def batch_of(
    hub: DriverControl, batch_id: int, *, could_ask: bool | None, could_any_ask: bool = True
) -> tuple[ControlEndpoint, BatchEnd]:
    """Run a batch with a result; return the rules of its tasks, and its end."""
    terms = hub.begin(batch_id, lambda commit: Committed())
    assert terms is not None
    end = hub.end([part_of(f"of {batch_id}", A)], could_ask=could_ask, could_any_ask=could_any_ask)
    hub.over(end.plan, lambda: None)
    return terms, end


def test_a_query_fails_if_none_of_its_tasks_can_reach_the_committer(hub: DriverControl) -> None:
    """D1: nobody could end them. With a classic session they go on without."""
    with pytest.raises(RocketMQError, match=r"^No task of the query could connect to .*deliver nothing"):
        batch_of(hub, 0, could_ask=False, could_any_ask=False)


def test_a_batch_whose_only_task_is_cut_off_does_not_end_a_query_that_had_connected(
    hub: DriverControl,
) -> None:
    """D1: the failure may pass; the third one in a row ends the query."""
    batch_of(hub, 0, could_ask=True)
    ends = [batch_of(hub, number, could_ask=False, could_any_ask=False)[1] for number in (1, 2, 3)]

    assert [end.failure is None for end in ends] == [True, True, False]


def test_tasks_that_could_ask_are_not_failed_by_one_that_could_not(
    hub: DriverControl, caplog: pytest.LogCaptureFixture
) -> None:
    """D1: what they have delivered is committed, and the queues of that one wait for the next batch, whose
    tasks must ask, too.
    """
    for batch_id, could_ask in enumerate([False, False, True, False, None, False]):
        terms, end = batch_of(hub, batch_id, could_ask=could_ask)
        assert terms.must_ask
        assert end.rest is not None
        assert end.failure is None
    assert caplog.text.count("some tasks of the batch could not connect to 127.0.0.1:") == 4
    assert "commit_interval" not in caplog.text


def test_a_third_batch_in_a_row_with_such_a_task_ends_the_query_once_it_is_committed(
    hub: DriverControl,
) -> None:
    """D1: a machine that never reaches the committer would keep its tasks' queues for ever."""
    for batch_id in range(2):
        assert batch_of(hub, batch_id, could_ask=False)[1].failure is None
    _, end = batch_of(hub, 2, could_ask=False)

    assert end.rest is not None
    assert "In 3 batches one after the other, some tasks could not connect to 127.0.0.1:" in str(end.failure)
    assert "What the other tasks have delivered is committed" in str(end.failure)


def test_a_worker_ends_within_the_call_when_the_committer_is_gone(
    hub: DriverControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D1: but not for a task that has ended by then."""
    ended: list[int] = []
    monkeypatch.setattr(task_end, "_CALLS_END_S", 0.0)
    monkeypatch.setattr(os, "_exit", ended.append)
    terms = hub.begin(0, lambda commit: Committed())
    assert terms is not None
    task = ask_driver(terms, 0, {A: Place(1, 0)})
    assert task is not None

    hub._hub.close()

    wait_until(lambda: ended == [1])
    assert task.is_given_up(A)
    task.forget()
    task._connection._end_calls()
    assert ended == [1]
    hub.failed()
