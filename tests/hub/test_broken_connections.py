"""A task with open ranges behind a gate that breaks its connection at each type of message.

Whatever is lost, each message that was delivered is committed once and in order, the task pauses and goes on,
and the batch ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consume.cuts import Place
from pyspark_rocketmq.consume.part import Part, QueueAck
from pyspark_rocketmq.errors import ConnectFailed, RocketMQError
from pyspark_rocketmq.hub import connections, task_end
from pyspark_rocketmq.hub.connections import HubClient, Reconnecting
from pyspark_rocketmq.hub.driver_end import BatchEnd, Committed, DriverControl
from pyspark_rocketmq.hub.messages import (
    PlanMade,
    PlannerConnected,
    QueuesFree,
    QueuesLeaving,
    ToPlanner,
    decode_to_planner,
)
from pyspark_rocketmq.hub.session import HubAddress
from pyspark_rocketmq.hub.state import Commit, Slots
from pyspark_rocketmq.hub.task_end import TaskControl, ask_driver
from pyspark_rocketmq.model import MessageQueue, QueueState
from tests.helpers.wait import PATIENCE_S, wait_until
from tests.hub.gate import At, Fault, HubGate

A, B, C = (MessageQueue("T", "broker-a", number) for number in range(3))
_BATCH = 3
_PAUSE_S = 0.002


class Query:
    """A hub, the planner that has planned three queues, and what was committed."""

    def __init__(self, *, is_encrypted: bool) -> None:
        self.committed: dict[MessageQueue, int] = dict.fromkeys((A, B, C), 0)
        """Where each queue has been committed to."""
        self.groups = 0
        self.received: list[ToPlanner] = []
        self.hub = DriverControl(
            "127.0.0.1",
            "127.0.0.1",
            must_ask=True,
            slots=Slots,
            read_epochs=dict,
            clock=SystemClock(),
            look_every_s=0.05,
            calls_end_s=0.1,
            interval_s=0.01,
            is_encrypted=is_encrypted,
        )
        self.address = HubAddress.parse(self.hub.secret)
        self.planner = HubClient[ToPlanner](
            self.address,
            decode=decode_to_planner,
            received=self.received.append,
            lost=lambda: None,
            clock=SystemClock(),
            timeout_s=PATIENCE_S,
        )
        self.planner.send(PlannerConnected())
        self.planner.send(PlanMade(1, frozenset({A, B, C})))
        wait_until(lambda: self.hub._hub.query(lambda state: state.plan) == 1)

    def commit(self, commit: Commit) -> Committed:
        """Commit a group; refuse what does not follow."""
        group = commit.group
        assert group is not None
        assert group.without == frozenset(), "a chain is broken"
        for ack in group.acks:
            assert ack.start == self.committed[ack.queue], "a message is lost, or comes twice"
            self.committed[ack.queue] = ack.state.next_offset
        self.groups += 1
        return Committed()

    def is_free(self, queue: MessageQueue) -> bool:
        return any(isinstance(each, QueuesFree) and queue in each.queues for each in self.received)

    def end(self) -> None:
        self.hub._hub.report(lambda state: state.replan(1, "a test", 0.0))

    def close(self) -> None:
        self.planner.close()
        self.hub.failed()
        self.hub.close()


class Engine:
    """A task that delivers a message of a queue at a time, and cuts when it is asked to."""

    def __init__(self, control: TaskControl, *queues: MessageQueue, delivers: bool = True) -> None:
        self._control = control
        self._delivers = delivers
        self._guard = threading.Lock()
        self.delivered = dict.fromkeys(queues, 0)
        self._cut = dict.fromkeys(queues, 0)
        self._left: set[MessageQueue] = set()
        self._parts = 0
        self.failure: BaseException | None = None
        self.paused_deliveries = 0
        control.when_cut(self._begin_cut)
        for queue in queues:
            assert control.begins(queue)
        self._thread = threading.Thread(target=self._run, name=f"engine of {queues}", daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        pause = threading.Event()
        control = self._control
        try:
            while not control._all:
                for queue in self.delivered.keys() - self._left:
                    self._look_at(queue)
                pause.wait(_PAUSE_S)
            rest = self.delivered.keys() - self._left
            with self._guard:
                if (part := self._part(rest)) is not None:
                    control.hand_over(part, ends=frozenset(rest))
            control.await_taken()
            control.done(None)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.failure = error
            control.forget(error)

    def _look_at(self, queue: MessageQueue) -> None:
        control = self._control
        if control.is_given_up(queue):
            self._left.add(queue)
            with self._guard:
                part = self._part({queue})
                if part is None:
                    control.released(queue)
                else:
                    control.hand_over(part)
        elif self._delivers and not control.is_paused():
            with self._guard:
                self.delivered[queue] += 1
            control.settled()

    def _begin_cut(self, number: int | None) -> bool:
        """Cut within the connection's thread, and not in one for cuts."""
        if number is None:
            return False
        with self._guard:
            part = self._part(self.delivered.keys() - self._left) if self._control.cut_begins() else None
            if part is None:
                return False
            return self._control.hand_over(part, ends=frozenset(), cut=number)

    def _part(self, queues: set[MessageQueue]) -> Part | None:
        acks = tuple(
            QueueAck(
                queue=queue,
                start=self._cut[queue],
                state=QueueState(self.delivered[queue], 1),
                consumed=self.delivered[queue] - self._cut[queue],
                failed=0,
                finished="GOING_ON",
            )
            for queue in sorted(queues)
            if self.delivered[queue] > self._cut[queue]
        )
        if not acks:
            return None
        for ack in acks:
            self._cut[ack.queue] = ack.state.next_offset
        self._parts += 1
        return Part(id=f"{self._control.id}.{self._parts}", acks=acks)


both_ways = pytest.mark.parametrize("query", [False, True], ids=["plain", "encrypted"], indirect=True)
"""Has a test run with and without encryption."""


@pytest.fixture
def query(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Query]:
    monkeypatch.setattr(task_end, "_connections", {})
    monkeypatch.setattr(task_end, "_failed_s", {})
    # A reset may be noticed with the next ping only.
    monkeypatch.setattr(connections, "PING_EVERY_S", 0.1)
    running = Query(is_encrypted=getattr(request, "param", False))
    yield running
    running.close()


def begin(query: Query, gate: HubGate) -> tuple[Engine, Engine]:
    """Begin a batch of two tasks, of which the second has nothing to deliver."""
    terms = query.hub.begin(_BATCH, query.commit)
    assert terms is not None
    terms = terms._replace(address=gate.address)
    controls = []
    for partition, queues in enumerate(((A, B), (C,))):
        places = dict.fromkeys(queues, Place(1, 0))
        controls.append(ask_driver(terms, partition, places, tasks=2, open_for_s=300.0))
    first, second = controls
    assert first is not None
    assert second is not None
    return Engine(first, A, B), Engine(second, C, delivers=False)


def run_batch(query: Query, gate: HubGate) -> None:
    """Run a batch: it commits as it goes, gives queue B up, and is ended."""
    busy, idle = begin(query, gate)
    wait_until(lambda: query.committed[A] >= 20, reason="Commits")
    query.planner.send(QueuesLeaving(1, frozenset({B, C})))
    wait_until(lambda: query.is_free(B) and query.is_free(C), reason="Two free queues")
    at = query.committed[A]
    wait_until(lambda: query.committed[A] >= at + 20, reason="More commits")
    query.end()
    for engine in (busy, idle):
        engine.join()
        assert engine.failure is None

    assert query.hub.end([], could_ask=True) == BatchEnd(1, None)
    assert query.committed == {**busy.delivered, **idle.delivered}
    query.hub.over(1, lambda: None)


TO_DRIVER = ("begin", "dirty", "handed", "nothing", "released", "done")
TO_TASK = ("go", "cut", "taken", "committed", "give_up", "end")
_FIRST = At("cut", Fault.LOSE)
"""The fault before those at messages that come only after one."""


@both_ways
@pytest.mark.parametrize("fault", [Fault.LOSE, Fault.CUT, Fault.RESET])
@pytest.mark.parametrize("kind", [*TO_DRIVER, *TO_TASK])
def test_a_connection_may_break_at_every_message(query: Query, kind: str, fault: Fault) -> None:
    """D1, H1, B5"""
    with HubGate(query.address, [At(kind, fault)]) as gate:
        run_batch(query, gate)
        # Nothing waits for the last word of a task.
        wait_until(lambda: not gate.faults, reason="the fault")
        # After its last word a task needs no other connection.
        assert gate.connections > 1 or kind == "done"


@both_ways
@pytest.mark.parametrize("fault", [Fault.LOSE, Fault.CUT, Fault.RESET])
@pytest.mark.parametrize("kind", ["resume", "go_on"])
def test_the_connection_that_is_made_again_may_break_too(query: Query, kind: str, fault: Fault) -> None:
    """D1, H1"""
    with HubGate(query.address, [_FIRST, At(kind, fault)]) as gate:
        run_batch(query, gate)
        assert not gate.faults
        assert gate.connections > 2


@both_ways
@pytest.mark.parametrize("kind", ["begin", "handed", "cut", "taken", "resume", "go_on"])
def test_a_connection_may_fall_silent_at_a_message(
    query: Query, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """D1, H1: nothing closes it, so both ends notice by their own clocks."""
    monkeypatch.setattr(connections, "SILENT_FOR_S", 1.0)
    first = [_FIRST] if kind in {"resume", "go_on"} else []
    with HubGate(query.address, [*first, At(kind, Fault.STALL)]) as gate:
        run_batch(query, gate)
        assert not gate.faults


def test_a_task_waits_for_its_answer_until_a_silent_connection_is_replaced(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1: with the usual times in proportion; one that did not wait so long failed its batch."""
    monkeypatch.setattr(connections, "SILENT_FOR_S", 1.0)
    monkeypatch.setattr(task_end, "SILENT_FOR_S", 1.0)
    monkeypatch.setattr(task_end, "RECONNECT_S", 0.4)
    monkeypatch.setattr(task_end, "_ANSWER_S", 0.4)
    with HubGate(query.address, [At("begin", Fault.STALL)]) as gate:
        run_batch(query, gate)
        assert not gate.faults


def test_a_task_delivers_nothing_while_its_connection_is_broken(query: Query) -> None:
    """D1: nobody renews its locks."""
    with HubGate(query.address) as gate:
        busy, idle = begin(query, gate)
        wait_until(lambda: query.committed[A] > 0)
        gate.faults.append(At("go_on", Fault.STALL))
        gate.faults.appendleft(At("cut", Fault.LOSE))
        wait_until(busy._control.is_paused, reason="A pause")
        wait_until(lambda: not gate.faults, reason="The second fault")
        # The call in hand may end.
        busy_waits = threading.Event()
        busy_waits.wait(4 * _PAUSE_S)
        at = dict(busy.delivered)
        busy_waits.wait(20 * _PAUSE_S)
        assert busy.delivered == at
        query.end()
        gate.close()
        assert idle.delivered == {C: 0}


@both_ways
def test_a_task_whose_driver_is_gone_fails(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """D1"""
    monkeypatch.setattr(connections, "RECONNECT_S", 0.5)
    with HubGate(query.address) as gate:
        busy, idle = begin(query, gate)
        wait_until(lambda: query.committed[A] > 0)
        gate.close()
        for engine in (busy, idle):
            engine.join()
            with pytest.raises(RocketMQError, match="a new one could not be made within"):
                raise engine.failure or AssertionError


# --- when it tries again ----------------------------------------------------------------------------------


def test_a_task_in_real_time_tries_again_where_its_worker_has_failed_to_connect(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1: on a busy machine a try may fail; four failed attempts would end the query."""
    monkeypatch.setattr(task_end, "_PAUSE_S", 0.01)
    terms = query.hub.begin(_BATCH, query.commit)
    assert terms is not None
    task_end._failed_s[terms.address] = time.monotonic()
    places = {A: Place(1, 0)}
    assert ask_driver(terms, 0, places) is None

    failures = iter([ConnectFailed("driver", "busy"), ConnectFailed("driver", "busy")])
    connect = task_end._DriverConnection

    def fails_first(*args: Any, **kwargs: Any) -> task_end._DriverConnection:
        if (failure := next(failures, None)) is not None:
            raise failure
        return connect(*args, **kwargs)

    monkeypatch.setattr(task_end, "_DriverConnection", fails_first)
    assert ask_driver(terms, 0, places, open_for_s=300.0) is not None
    query.hub.cut_short()


def test_tries_come_after_longer_and_longer_pauses_for_ten_seconds() -> None:
    again, now_s = Reconnecting(100.0), 100.0
    tries: list[float] = []
    while not again.is_over(now_s):
        if again.tries(now_s):
            tries.append(round(now_s - 100.0, 3))
            assert not again.tries(now_s)
            again.failed(now_s)
        now_s = again.next_tick_s

    assert tries == [0.1, 0.3, 0.7, 1.5, 3.1, 5.1, 7.1, 9.1]
    assert now_s == 110.0


def test_a_try_that_takes_long_ends_with_the_ten_seconds() -> None:
    again = Reconnecting(100.0)
    assert not again.tries(100.05)
    assert again.tries(100.1)
    assert again.next_tick_s == 110.0
    assert not again.is_over(109.9)
    assert again.is_over(110.0)
