"""The planner's connection to its driver."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from unittest.mock import call, create_autospec

import pytest

from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.group.member import RunningMember
from pyspark_rocketmq.hub import planner_end
from pyspark_rocketmq.hub.planner_end import PlannerControl
from pyspark_rocketmq.hub.server import HubServer
from pyspark_rocketmq.hub.session import HubAddress
from pyspark_rocketmq.hub.state import HubState, Slots
from pyspark_rocketmq.hub.task_end import ControlEndpoint, report_reset
from pyspark_rocketmq.model import MessageQueue
from tests.helpers.wait import wait_until


@pytest.fixture
def hub() -> Iterator[HubServer]:
    server = HubServer(
        "127.0.0.1",
        "127.0.0.1",
        must_ask=True,
        slots=Slots(9, 7),
        commit=lambda commit: None,
        look=lambda: None,
        clock=SystemClock(),
    )
    yield server
    server.close()


def test_the_first_plan_waits_for_the_number_of_tasks_that_can_run(hub: HubServer) -> None:
    """D3: the group's first micro-batch has no more tasks than any other."""
    connection = PlannerControl(hub.address, SystemClock())
    connection.start(create_autospec(RunningMember, instance=True))

    assert connection.slots() == 7


def test_what_holds_queues_up_reaches_the_planner(hub: HubServer) -> None:
    """D6: before and after it connects."""
    hub.report(partial(HubState.held_up, reason="No permission."))
    connection = PlannerControl(hub.address, SystemClock())
    connection.start(create_autospec(RunningMember, instance=True))
    wait_until(lambda: connection.held_up == "No permission.")

    hub.report(partial(HubState.held_up, reason=""))
    wait_until(lambda: connection.held_up == "")


def test_the_wish_for_another_plan_reaches_the_driver_also_later_and_goes_with_its_plan(
    hub: HubServer,
) -> None:
    """B5: a queue was gained."""
    queue = MessageQueue("T", "broker-a", 0)
    connection = PlannerControl(hub.address, SystemClock())
    connection.plan_made(3, [queue])
    connection.replan(3, "a queue was gained")
    connection.start(create_autospec(RunningMember, instance=True))
    wait_until(lambda: hub.query(lambda state: state._replan) == (3, "a queue was gained"))

    connection.replan(3, "another one too")
    wait_until(lambda: hub.query(lambda state: state._replan) == (3, "another one too"))
    connection.plan_made(4, [queue])
    assert connection._replan is None


def test_a_reset_that_a_task_has_found_reaches_the_member(hub: HubServer) -> None:
    """F5"""
    queue = MessageQueue("T", "broker-a", 0)
    member = create_autospec(RunningMember, instance=True)
    PlannerControl(hub.address, SystemClock()).start(member)
    report_reset(ControlEndpoint(hub.address, 7, must_ask=True), queue, 3)

    wait_until(lambda: member.reset_found.mock_calls == [call(queue, 3)])


def test_a_driver_that_is_away_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """D3"""
    waited_s: list[float | None] = []
    connection = PlannerControl(HubAddress.new("127.0.0.1", 1), SystemClock())
    monkeypatch.setattr(connection._are_slots_known, "wait", waited_s.append)

    assert connection.slots() == 0
    assert waited_s == [planner_end._FIRST_SLOTS_S]
    assert connection._are_slots_known.is_set()
