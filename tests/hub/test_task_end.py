"""A process's connections to drivers, and what its children have of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pytest

from pyspark_rocketmq.consume.cuts import Place
from pyspark_rocketmq.errors import ConnectFailed
from pyspark_rocketmq.hub import task_end
from pyspark_rocketmq.hub.connections import HubClient
from pyspark_rocketmq.hub.session import HubAddress
from pyspark_rocketmq.hub.task_end import ControlEndpoint, ask_driver, report_reset
from tests.helpers.forked import begin_child
from tests.helpers.parts import part_of
from tests.hub.test_server import BATCH, A, B, Driver


def test_a_child_of_fork_has_connections_of_its_own() -> None:
    """G8, B5: also where another thread of the parent held the lock over them; the parent's go on."""
    driver = Driver()

    def hand_over_b() -> None:
        own = driver.ask(B, partition=1, tasks=2)
        assert own.begins(B)
        assert own.hand_over(part_of("child's", B))
        own.await_taken()

    with closing(driver.hub):
        parents = driver.ask(A)
        with ThreadPoolExecutor(1) as other, ExitStack() as held:
            other.submit(held.enter_context, task_end._guard).result()
            outcome = begin_child(hand_over_b)
            other.submit(held.close).result()

        outcome()
        assert parents.hand_over(part_of("parent's", A))
        parents.await_taken()
        for _ in range(2):
            driver.hub.report(lambda state: state.committed(frozenset(), 0.0))
        assert driver.hub.batch_ends(could_ask=True) is None
        assert [part.id for part in driver.parts] == ["child's", "parent's"]


class FailsFirst:
    """In place of the client of the hub: each first connection of a task fails, a later one succeeds."""

    made = 0

    def __class_getitem__(cls, _: object) -> type[FailsFirst]:
        return cls

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        cls.made += 1
        if cls.made % 2:
            raise ConnectFailed("the driver", "timed out")
        return HubClient(*args, **kwargs)


@pytest.mark.parametrize(
    ("ends_tasks", "open_for_s", "asks"),
    [(True, None, True), (False, 300.0, True), (False, None, False)],
    ids=["Spark Connect", "real time", "can go on without"],
)
def test_a_task_that_cannot_do_without_its_driver_outlasts_a_failed_connection_each_time(
    monkeypatch: pytest.MonkeyPatch, *, ends_tasks: bool, open_for_s: float | None, asks: bool
) -> None:
    """D1: a lost packet or a pause of the driver; also within a minute of an earlier failure."""
    monkeypatch.setattr(task_end, "_failed_s", {})
    monkeypatch.setattr(task_end, "_PAUSE_S", 0.0)
    monkeypatch.setattr(task_end, "HubClient", FailsFirst)
    monkeypatch.setattr(FailsFirst, "made", 0)
    driver = Driver()
    with closing(driver.hub):
        terms = ControlEndpoint(driver.hub.address, BATCH, must_ask=True, ends_tasks=ends_tasks)
        for partition, queue in enumerate((A, B)):
            monkeypatch.setattr(task_end, "_connections", {})
            places = {queue: Place(1, 0)}
            task = ask_driver(terms, partition, places, tasks=2, open_for_s=open_for_s)
            assert (task is not None) is asks
            if task is not None:
                task.forget()


def test_a_reset_that_cannot_reach_the_driver_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """F5: its query has ended, and the broker has forgotten it."""
    monkeypatch.setattr(task_end, "RECONNECT_S", 0.0)
    report_reset(ControlEndpoint(HubAddress.new("127.0.0.1", 1), 7, must_ask=True), A, 3)

    assert f"reset it again if still wanted {A} target=3" in caplog.text
