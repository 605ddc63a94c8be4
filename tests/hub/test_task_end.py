"""A process's connections to drivers, and what its children have of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

from pyspark_rocketmq.hub import task_end
from pyspark_rocketmq.hub.session import HubAddress
from pyspark_rocketmq.hub.task_end import ControlEndpoint, report_reset
from tests.helpers.forked import begin_child
from tests.helpers.parts import part_of
from tests.hub.test_server import A, B, Driver


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


def test_a_reset_that_cannot_reach_the_driver_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """F5: its query has ended, and the broker has forgotten it."""
    monkeypatch.setattr(task_end, "RECONNECT_S", 0.0)
    report_reset(ControlEndpoint(HubAddress.new("127.0.0.1", 1), 7, must_ask=True), A, 3)

    assert f"reset it again if still wanted {A} target=3" in caplog.text
