"""The planner's connection to its driver."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from unittest.mock import call, create_autospec

import pytest

from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consume.recent_offsets import AgedOffset
from pyspark_rocketmq.group.member import RunningMember
from pyspark_rocketmq.hub import planner_end
from pyspark_rocketmq.hub.messages import ArrivalsWanted, OffsetsArrived
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


def _hub_with(
    arrivals: Callable[[Collection[MessageQueue]], dict[MessageQueue, list[AgedOffset]]],
) -> HubServer:
    return HubServer(
        "127.0.0.1",
        "127.0.0.1",
        must_ask=True,
        slots=Slots(),
        commit=lambda commit: None,
        look=lambda: None,
        arrivals=arrivals,
        clock=SystemClock(),
    )


def test_the_planner_learns_what_has_arrived_at_brokers_by_its_own_clock() -> None:
    """F5: the driver's clock may show another time."""
    first, second = (MessageQueue("T", "broker-a", number) for number in range(2))
    asked: list[Collection[MessageQueue]] = []

    def arrivals(queues: Collection[MessageQueue]) -> dict[MessageQueue, list[AgedOffset]]:
        asked.append(queues)
        return {first: [AgedOffset(9.0, 5), AgedOffset(4.0, 7)]}

    clock = SystemClock()
    with closing(_hub_with(arrivals)) as hub:
        connection = PlannerControl(hub.address, clock)
        assert connection.lately_arrived([first]) == {}, "there is no connection yet"
        connection.start(create_autospec(RunningMember, instance=True))
        connection.slots()

        before_s = clock.monotonic_s()
        found = connection.lately_arrived([first, second])
        after_s = clock.monotonic_s()

    assert asked == [{first, second}]
    assert found.keys() == {first}
    assert [offset for _, offset in found[first]] == [5, 7]
    assert [round(found[first][1].at_s - at_s, 6) for at_s, _ in found[first]] == [5.0, 0.0]
    assert before_s - 4.0 <= found[first][1].at_s <= after_s - 4.0


def test_a_late_answer_about_arrivals_is_not_taken_for_that_to_a_newer_question(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """F5: its ages were true at an earlier time; and planning does not wait for long."""
    queue = MessageQueue("T", "broker-a", 0)
    monkeypatch.setattr(planner_end, "_ARRIVALS_ANSWER_S", 0.0)
    connection = PlannerControl(HubAddress.new("127.0.0.1", 1), SystemClock())
    sent: list[object] = []
    monkeypatch.setattr(connection, "_client", SimpleNamespace(send=sent.append))

    assert connection.lately_arrived([queue]) == {}
    assert "the driver has not answered in time" in caplog.text
    monkeypatch.setattr(connection, "_client", SimpleNamespace(send=lambda _: answer(1)))

    def answer(number: int) -> None:
        connection._received(OffsetsArrived(number, {queue: (AgedOffset(1.0, 7),)}))

    connection._member = create_autospec(RunningMember, instance=True)
    assert connection.lately_arrived([queue]) == {}
    monkeypatch.setattr(connection, "_client", SimpleNamespace(send=lambda _: answer(3)))
    assert [offset for _, offset in connection.lately_arrived([queue])[queue]] == [7]
    answer(3)
    assert sent == [ArrivalsWanted(1, frozenset({queue}))]


def test_a_driver_that_is_away_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """D3"""
    waited_s: list[float | None] = []
    connection = PlannerControl(HubAddress.new("127.0.0.1", 1), SystemClock())
    monkeypatch.setattr(connection._are_slots_known, "wait", waited_s.append)

    assert connection.slots() == 0
    assert waited_s == [planner_end._FIRST_SLOTS_S]
    assert connection._are_slots_known.is_set()
