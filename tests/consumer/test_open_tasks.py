"""Tasks whose ranges have no end, in both engines: what the driver orders, and what they report to it.

Nothing here looks every half second: the engines must be woken.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.types import StructType

from pyspark_rocketmq.client.producer.send_back import SendBack, SendBackSettings
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consume.concurrent import ConcurrentSettings
from pyspark_rocketmq.consume.orderly import OrderlySettings
from pyspark_rocketmq.consume.turns import RangeInstructions, Rest
from pyspark_rocketmq.consumer.engine import concurrent, direct
from pyspark_rocketmq.consumer.engine.arrivals import PULL_THRESHOLD_FOR_QUEUE
from pyspark_rocketmq.consumer.engine.concurrent import ConcurrentEngine
from pyspark_rocketmq.consumer.engine.direct import DirectEngine, OrderlyTask
from pyspark_rocketmq.consumer.engine.orderly import RangeConsumer
from pyspark_rocketmq.consumer.engine.output import Consumed
from pyspark_rocketmq.consumer.engine.range import RangeCuts
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.listeners.forms import Call, form_of
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import (
    OPEN_END,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    MessageExt,
    MessageQueue,
    QueueRange,
)
from pyspark_rocketmq.source.schema import Arrival, EndReason, RangeEnd
from tests.consumer.test_arrivals import OTHER, piece
from tests.helpers.fake_clock import FakeClock
from tests.helpers.messages import QUEUE
from tests.helpers.open_source import OpenSource
from tests.helpers.wait import PATIENCE_S, wait_until

_SLICE_S = 0.02
"""Instead of the 60 s after which a closed range yields."""
OUTPUT = StructType().add("name", "string")
MINE = QueueRange.between(QUEUE, 0, OPEN_END, epoch=1)
THEIRS = QueueRange.between(OTHER, 0, OPEN_END, epoch=1)


@pytest.fixture(autouse=True)
def _nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    for engine in (direct, concurrent):
        monkeypatch.setattr(engine, "_LOOK_EVERY_S", 3600.0)


class Source(OpenSource):
    """Ends when every range has ended or is left, as the reader does."""

    def __init__(self) -> None:
        super().__init__()
        self._open: set[MessageQueue] = set()
        self.is_ended = False

    def send(self, *pieces: Arrival) -> None:
        self._open |= {each.queue for each in pieces} - set(self.left)
        super().send(*pieces)
        for each in pieces:
            if each.is_end:
                self._over(each.queue)

    def leave(self, queue: MessageQueue) -> None:
        super().leave(queue)
        self._over(queue)

    def end(self) -> None:
        self.is_ended = True
        super().end()

    def _over(self, queue: MessageQueue) -> None:
        self._open.discard(queue)
        if not self._open:
            super().end()


class Driver(RangeInstructions):
    """Orders what a test wants, and keeps what is reported to it."""

    def __init__(self) -> None:
        self.given_up: set[MessageQueue] = set()
        self.stopped = False
        self.paused = False
        self.waiting: set[MessageQueue] = set()
        """Queues that must begin no delivery for now."""
        self.counted: list[int] | None = None
        """Sizes of rows; None if nobody wants them."""
        self.standing: list[tuple[MessageQueue, str, bool]] = []
        self.settlings = 0
        self.cut: Callable[[], RangeCuts] = RangeCuts
        self.leaving: set[MessageQueue] = set()
        """Queues that another member is to have."""
        self.taken: list[MessageQueue] = []
        """Queues whose results were sent before the task's end."""
        self.calls: Callable[[], Mapping[MessageQueue, float]] = dict
        self.changed: Callable[[], None] = lambda: None

    def is_given_up(self, queue: MessageQueue) -> bool:
        return self.stopped or queue in self.given_up

    def is_batch_at_work(self) -> bool:
        return not self.stopped

    def is_paused(self) -> bool:
        return self.paused

    def must_wait(self, queue: MessageQueue) -> bool:
        return queue in self.waiting

    def notifies(self, changed: Callable[[], None]) -> None:
        self.changed = changed

    def stands(self, queue: MessageQueue, reason: str, *, is_reset: bool = False) -> None:
        self.standing.append((queue, reason, is_reset))

    def counts_rows(self) -> bool:
        return self.counted is not None

    def rows_grew(self, nbytes: int) -> None:
        assert self.counted is not None
        self.counted.append(nbytes)

    def settled(self) -> None:
        self.settlings += 1

    def cut_with(self, cut: Callable[[], RangeCuts]) -> None:
        self.cut = cut

    def shows_calls(self, calls: Callable[[], Mapping[MessageQueue, float]]) -> None:
        self.calls = calls

    def take(self, brought: object) -> bool:
        assert isinstance(brought, Consumed)
        if brought.ack.queue not in self.leaving:
            return False
        self.taken.append(brought.ack.queue)
        return True

    def pause(self, *, is_paused: bool = True) -> None:
        self.paused = is_paused
        self.changed()

    def wait(self, *queues: MessageQueue) -> None:
        self.waiting = set(queues)
        self.changed()

    def give_up(self, *queues: MessageQueue) -> None:
        self.given_up |= set(queues)
        self.changed()

    def stop(self) -> None:
        self.stopped = True
        self.changed()


class Running:
    """A task of one of the engines, in a thread."""

    def __init__(self, *, is_orderly: bool) -> None:
        self.is_orderly = is_orderly
        self.source = Source()
        self.driver = Driver()
        self.calls: list[tuple[int, int]] = []
        self.has_own_call = False
        """Whether the task's own thread, and not a helper, has made a call."""
        self.results: list[Consumed] = []
        self.error: BaseException | None = None
        self.answers: Callable[[MessageExt], Any] = lambda _: None
        """Returns an answer other than success, or None."""
        self.consumer: Callable[..., RangeConsumer] = RangeConsumer
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def end(self) -> list[Consumed]:
        """Stop it, and return the results."""
        self.driver.stop()
        self.join()
        return self.results

    def ends(self) -> dict[MessageQueue, int]:
        return {each.ack.queue: each.ack.state.next_offset for each in self.results}

    def _run(self) -> None:
        engine: Any
        if self.is_orderly:
            settings = OrderlySettings(max_reconsume_times=-1, max_time_consume_continuously_s=_SLICE_S)
            engine = DirectEngine(self.consumer(self._call, OutputColumns.of(OUTPUT), settings))
        else:
            engine = ConcurrentEngine(
                form_of(self._call, orderly=False),
                OUTPUT,
                ConcurrentSettings(consume_thread_max=2, max_time_consume_continuously_s=_SLICE_S),
                SendBackSettings(name_servers=("127.0.0.1:9",), consumer_group="g"),
            )
        try:
            self.results.extend(engine(self.source, self.driver))
        except BaseException as error:  # noqa: BLE001 - a test's
            self.error = error

    def _call(self, messages: Sequence[MessageExt], context: Any) -> Any:
        (message,) = messages
        self.has_own_call |= threading.current_thread() is self._thread
        self.calls.append((message.queue_id, message.queue_offset))
        context.emit(name="x" * 100)
        answer = self.answers(message)
        success = (
            ConsumeOrderlyStatus.SUCCESS if self.is_orderly else ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        )
        return success if answer is None else answer


@pytest.fixture(params=[True, False], ids=["orderly", "concurrent"])
def task(request: pytest.FixtureRequest) -> Iterator[Running]:
    running = Running(is_orderly=request.param)
    yield running
    # A failed test may have left it paused.
    running.driver.paused = False
    running.driver.stop()
    running.source.end()


class Gate:
    """Holds the listener's calls for some messages."""

    def __init__(self, task: Running, *held: tuple[int, int]) -> None:
        self._open = threading.Event()
        self._held = held
        task.answers = self._pass

    def open(self) -> None:
        self._open.set()

    def _pass(self, message: MessageExt) -> None:
        if (message.queue_id, message.queue_offset) in self._held:
            assert self._open.wait(PATIENCE_S)


def begun_with_a_call(task: Running) -> Gate:
    """Start a task with two queues: of one, a call is in hand until the gate opens; the other one is dry."""
    gate = Gate(task, (3, 0))
    task.start()
    task.source.send(piece(MINE, 0), piece(THEIRS))
    wait_until(lambda: task.calls == [(3, 0)])
    return gate


def begun_with_an_own_call() -> tuple[Running, Gate]:
    """Start orderly tasks with a call until the task's own thread has it, which a helper may come before."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        task = Running(is_orderly=True)
        gate = begun_with_a_call(task)
        if task.has_own_call:
            return task, gate
        assert time.monotonic() < deadline_s
        gate.open()
        task.end()


def give_time(driver: Driver) -> None:
    """Give an engine every occasion to do something that it must not do."""
    for _ in range(20):
        driver.changed()
        time.sleep(0.005)


# --- pauses -------------------------------------------------------------------------------------------------


def test_a_pause_begins_with_the_call_in_hand_and_ends_when_the_driver_says_so(task: Running) -> None:
    """D1: the call's answer counts, and nothing is delivered twice."""
    gate = Gate(task, (3, 0))
    task.start()
    task.source.send(piece(MINE, 0))
    wait_until(lambda: task.calls == [(3, 0)])
    task.source.send(piece(MINE, 1, 2), piece(THEIRS))
    task.driver.pause()
    gate.open()
    wait_until(lambda: task.driver.settlings)
    task.source.send(piece(THEIRS, 0))
    give_time(task.driver)

    assert task.calls == [(3, 0)]
    (so_far,) = wait_until(lambda: task.driver.cut().going_on)
    assert so_far.ack.state.next_offset == 1
    task.driver.pause(is_paused=False)
    wait_until(lambda: sorted(task.calls) == [(3, 0), (3, 1), (3, 2), (4, 0)])
    task.end()
    assert task.ends() == {QUEUE: 3, OTHER: 1}
    assert not task.driver.standing


def test_a_pause_may_begin_just_before_a_delivery() -> None:
    """D1: the worker has the queue already, and nothing of it."""
    task = Running(is_orderly=True)

    class Pausing(RangeConsumer):
        def borrow(self) -> AbstractContextManager[Call]:
            task.driver.pause()
            return super().borrow()

    task.consumer = Pausing
    task.start()
    task.source.send(piece(MINE, 0))
    wait_until(lambda: task.driver.paused)
    give_time(task.driver)

    assert not task.calls
    task.end()
    assert task.ends() == {QUEUE: 0}


def test_what_is_given_up_in_a_pause_ends_in_it(task: Running) -> None:
    """D7: without one call more, whether or not messages wait."""
    task.start()
    task.driver.pause()
    task.source.send(piece(MINE, 0, 1), piece(THEIRS))
    give_time(task.driver)
    task.driver.give_up(QUEUE)
    wait_until(lambda: task.source.left == [QUEUE])
    task.end()

    assert not task.calls
    assert task.ends() == {QUEUE: 0, OTHER: 0}
    assert not task.driver.standing


def test_a_queue_that_must_wait_goes_on_later_and_others_meanwhile(task: Running) -> None:
    """D3, I3: as at a batch's end, after the queue's call in hand; its range does not end."""
    gate = Gate(task, (3, 0))
    task.start()
    task.source.send(piece(MINE, 0, 1), piece(THEIRS))
    # The concurrent engine calls the listener with both messages at the same time.
    mine = [(3, 0)] if task.is_orderly else [(3, 0), (3, 1)]
    wait_until(lambda: sorted(task.calls) == mine)
    task.driver.wait(QUEUE)
    task.source.send(piece(MINE, 2), piece(THEIRS, 0))
    wait_until(lambda: (4, 0) in task.calls)
    gate.open()
    wait_until(lambda: not task.driver.calls())
    task.source.send(piece(THEIRS, 1))
    wait_until(lambda: (4, 1) in task.calls)
    give_time(task.driver)
    assert sorted(task.calls) == [*mine, (4, 0), (4, 1)]

    task.driver.wait()
    wait_until(lambda: sorted(task.calls) == [(3, 0), (3, 1), (3, 2), (4, 0), (4, 1)])
    task.end()
    assert task.ends() == {QUEUE: 3, OTHER: 2}
    assert not task.driver.standing


def test_a_queue_may_have_to_wait_just_before_a_delivery() -> None:
    """D3, I3: the worker has the queue already, and nothing of it."""
    task = Running(is_orderly=True)

    class Waiting(RangeConsumer):
        def borrow(self) -> AbstractContextManager[Call]:
            task.driver.wait(QUEUE)
            return super().borrow()

    task.consumer = Waiting
    task.start()
    task.source.send(piece(MINE, 0))
    wait_until(lambda: task.driver.waiting)
    give_time(task.driver)

    assert not task.calls
    task.end()
    assert task.ends() == {QUEUE: 0}


@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped", "given up"])
def test_a_queue_that_must_wait_can_end(task: Running, is_stopped: bool) -> None:
    """D7, I3: without one call more."""
    task.start()
    task.driver.wait(QUEUE)
    task.source.send(piece(MINE, 0, 1), piece(THEIRS))
    give_time(task.driver)
    if not is_stopped:
        task.driver.give_up(QUEUE)
        wait_until(lambda: task.source.left == [QUEUE])
    task.end()

    assert not task.calls
    assert task.ends() == {QUEUE: 0, OTHER: 0}
    assert not task.driver.standing


def test_a_failure_in_a_pause_leaves_no_thread(task: Running) -> None:
    """D5: Spark uses the process again."""
    before = set(threading.enumerate())

    def answer(message: MessageExt) -> None:
        task.driver.pause()
        raise SystemExit

    task.answers = answer
    task.start()
    task.source.send(piece(THEIRS))
    task.source.send(piece(MINE, 0))
    task.source.send(piece(THEIRS, 0))
    task.join()
    wait_until(lambda: set(threading.enumerate()) <= before, reason="The end of all threads")

    assert task.error is not None
    assert task.source.is_ended


# --- the end ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_ended", [True, False], ids=["ended before", "dry"])
def test_a_queue_that_is_to_leave_does_not_wait_for_the_call_of_another_one(has_ended: bool) -> None:
    """B5: whoever would yield its result, the task's own thread, is with the listener."""
    task, gate = begun_with_an_own_call()
    if has_ended:
        task.driver.give_up(OTHER)
        wait_until(lambda: task.source.left == [OTHER])
    assert not task.driver.taken
    task.driver.leaving = {OTHER}
    task.driver.give_up(OTHER)

    wait_until(lambda: task.driver.taken == [OTHER])
    gate.open()
    task.end()
    assert task.ends() == {QUEUE: 1}


def test_calls_in_hand_are_shown_by_queue(task: Running) -> None:
    """D3, I3"""
    gate = Gate(task, (3, 0))
    task.start()
    assert not task.driver.calls()
    task.source.send(piece(MINE, 0, 1), piece(THEIRS, 0))
    wait_until(lambda: (3, 0) in task.calls and (4, 0) in task.calls)
    wait_until(lambda: set(task.driver.calls()) == {QUEUE})
    lasted_s = task.driver.calls()[QUEUE]
    wait_until(lambda: task.driver.calls()[QUEUE] > lasted_s)

    task.driver.give_up(QUEUE)
    task.source.send(piece(THEIRS, 1))
    wait_until(lambda: (4, 1) in task.calls)
    gate.open()
    wait_until(lambda: not task.driver.calls())
    task.end()
    if task.is_orderly:
        assert task.ends() == {QUEUE: 1, OTHER: 2}


@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped", "given up"])
def test_a_task_of_dry_queues_ends_when_the_driver_says_so(task: Running, is_stopped: bool) -> None:
    """D7, B7: woken, since nothing arrives and nobody looks."""
    task.start()
    task.source.send(piece(MINE), piece(THEIRS))
    task.source.send(piece(MINE, 0))
    wait_until(lambda: task.driver.settlings)
    task.driver.cut()
    if is_stopped:
        task.driver.stop()
    else:
        task.driver.give_up(QUEUE)
        wait_until(lambda: task.source.left == [QUEUE])
        task.driver.give_up(OTHER)
    task.join()

    assert sorted(task.source.left) == [QUEUE, OTHER]
    assert task.ends() == {QUEUE: 1, OTHER: 0}
    assert not task.driver.standing


def test_a_queue_that_is_given_up_leaves_the_others_alone(task: Running) -> None:
    """D7, B1"""
    gate = begun_with_a_call(task)
    task.driver.give_up(QUEUE)
    task.source.send(piece(MINE, 1), piece(THEIRS, 0))
    wait_until(lambda: (4, 0) in task.calls)
    gate.open()
    wait_until(lambda: task.source.left == [QUEUE])
    task.source.send(piece(MINE, 2), piece(THEIRS, 1))
    wait_until(lambda: (4, 1) in task.calls)
    task.end()

    assert sorted(task.calls) == [(3, 0), (4, 0), (4, 1)]
    assert task.ends() == {QUEUE: 1, OTHER: 2}
    assert not task.driver.standing


def suspended_for(seconds: float) -> QueueRange:
    return replace(MINE, state=MINE.state._replace(suspended_until_s=SystemClock().now_s() + seconds))


def test_a_suspended_queue_that_is_given_up_ends_before_its_time(task: Running) -> None:
    """D3, E4, D7"""
    task.start()
    task.source.send(piece(suspended_for(3600.0), 0), piece(THEIRS, 0))
    wait_until(lambda: task.calls == [(4, 0)])
    give_time(task.driver)
    task.driver.give_up(QUEUE)
    wait_until(lambda: task.source.left == [QUEUE])
    task.end()

    assert task.calls == [(4, 0)]
    assert task.ends() == {QUEUE: 0, OTHER: 1}
    assert not any(each.ack.counts for each in task.results if each.ack.queue == QUEUE)
    assert not task.driver.standing


def test_a_suspended_queue_begins_when_its_time_has_come(task: Running) -> None:
    """D3, E4: the plan names it, with the time."""
    began_s = time.monotonic()
    task.start()
    task.source.send(piece(suspended_for(1.0), 0), piece(THEIRS, 0))
    wait_until(lambda: (3, 0) in task.calls)

    assert time.monotonic() - began_s > 0.9
    assert task.calls == [(4, 0), (3, 0)]
    task.end()
    assert task.ends() == {QUEUE: 1, OTHER: 1}


@pytest.mark.parametrize("ahead_s", [2.0, 3600.0])
def test_a_suspended_queue_begins_30_s_late_at_most_whatever_its_computers_clock_shows(
    ahead_s: float,
) -> None:
    """D3, I1: the time is the driver's, whose clock may differ, and clocks are set."""
    clock = FakeClock()
    listener = RangeConsumer(lambda *_: None, OutputColumns.of(OUTPUT), OrderlySettings())
    task = OrderlyTask(Source(), listener, RangeInstructions(), clock)
    state = MINE.state._replace(suspended_until_s=clock.now_s() + ahead_s)
    assert task._range_of(piece(replace(MINE, state=state), 0)) is not None

    rest = task._turns.next(0.0)
    assert isinstance(rest, Rest)
    assert rest.until_s == pytest.approx(min(ahead_s, 30.0))


def test_an_open_range_lasts_however_long_it_has_something_to_do(task: Running) -> None:
    """D7, I1: another plan for each minute of load would be no real time."""
    gate = begun_with_a_call(task)
    time.sleep(2 * _SLICE_S)
    task.source.send(piece(MINE, 1, 2))
    if task.is_orderly:
        gate.open()
    wait_until(lambda: task.calls == [(3, 0), (3, 1), (3, 2)])
    gate.open()
    wait_until(lambda: any(each.ack.state.next_offset == 3 for each in task.driver.cut().going_on))
    assert not task.driver.standing
    task.end()


# --- memory -------------------------------------------------------------------------------------------------


def test_a_queue_is_held_at_a_thousand_messages_and_goes_on(task: Running) -> None:
    """D13: pullThresholdForQueue; a slow queue does not hold another one."""
    gate = Gate(task, (3, 0))
    task.start()
    task.source.send(piece(MINE, *range(PULL_THRESHOLD_FOR_QUEUE - 1)), piece(THEIRS))
    wait_until(lambda: (3, 0) in task.calls)
    task.source.send(piece(THEIRS, 0))
    wait_until(lambda: (4, 0) in task.calls)
    assert not task.source.held
    task.source.send(piece(MINE, PULL_THRESHOLD_FOR_QUEUE - 1))
    wait_until(lambda: task.source.held == {QUEUE})
    task.source.send(piece(THEIRS, 1))
    wait_until(lambda: (4, 1) in task.calls)
    gate.open()
    wait_until(lambda: not task.source.held)
    task.source.send(piece(MINE, PULL_THRESHOLD_FOR_QUEUE))
    wait_until(lambda: (3, PULL_THRESHOLD_FOR_QUEUE) in task.calls)
    # A concurrent task may have another call under way.
    wait_until(lambda: len(task.calls) == PULL_THRESHOLD_FOR_QUEUE + 3)
    task.end()

    assert task.ends() == {QUEUE: PULL_THRESHOLD_FOR_QUEUE + 1, OTHER: 2}


# --- ranges that end by themselves --------------------------------------------------------------------------


def ended(reason: EndReason, *, reset_to: int | None = None) -> Arrival:
    planned = replace(MINE, end=2)
    return Arrival(MINE, end=RangeEnd(planned=planned, rows=2, reason=reason, reset_to=reset_to))


@pytest.mark.parametrize(
    ("reason", "reset_to"),
    [
        (EndReason.EARLY, 7),
        (EndReason.REFUSED, None),
        (EndReason.UNDECODABLE, None),
        (EndReason.ANOTHER_LOG, None),
    ],
)
def test_a_range_that_ends_by_itself_is_reported_once(
    task: Running, reason: EndReason, reset_to: int | None
) -> None:
    """B1, F5: only another plan brings its queue further; the others go on meanwhile."""
    task.start()
    task.source.send(piece(MINE, 0, 1), piece(THEIRS))
    wait_until(lambda: len(task.calls) == 2)
    task.source.send(ended(reason, reset_to=reset_to))
    wait_until(lambda: task.driver.standing)
    task.source.send(piece(THEIRS, 0))
    wait_until(lambda: (4, 0) in task.calls)
    task.end()

    ((queue, shown, is_reset),) = task.driver.standing
    assert (queue, is_reset) == (QUEUE, reset_to is not None)
    assert str(reason) in shown or is_reset
    assert task.ends() == {QUEUE: 2, OTHER: 1}
    assert sorted(task.calls) == [(3, 0), (3, 1), (4, 0)]


def test_a_queue_that_is_reset_ends_with_the_running_call_which_the_driver_does_not_wait_for(
    task: Running,
) -> None:
    """F5, D7: messages that wait are not delivered, however many they are."""
    gate = Gate(task, (3, 0), (3, 1))
    task.start()
    task.source.send(piece(MINE, 0, 1), piece(THEIRS))
    running = [(3, 0)] if task.is_orderly else [(3, 0), (3, 1)]
    wait_until(lambda: sorted(task.calls) == running)
    task.source.send(piece(MINE, *range(2, 50)), piece(THEIRS, 0))
    task.source.send(ended(EndReason.EARLY, reset_to=7))
    wait_until(lambda: task.driver.standing)
    gate.open()
    wait_until(lambda: QUEUE in task.ends())
    task.source.send(piece(THEIRS, 1))
    wait_until(lambda: (4, 1) in task.calls)
    task.end()

    assert task.driver.standing == [(QUEUE, "an operator has reset it", True)]
    assert sorted(task.calls) == [*running, (4, 0), (4, 1)]
    assert task.ends() == {QUEUE: len(running), OTHER: 2}
    assert [each.ack.reset_to for each in task.results if each.ack.queue == QUEUE] == [7]


def test_a_queue_is_reset_past_a_message_that_always_fails() -> None:
    """F5, D3: a range that is suspended again and again would last as long as its batch."""
    task = Running(is_orderly=True)
    task.answers = lambda message: (
        ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT if message.queue_id == QUEUE.queue_id else None
    )
    task.start()
    task.source.send(piece(MINE, 0, 1), piece(THEIRS))
    wait_until(lambda: task.driver.settlings)
    task.source.send(ended(EndReason.EARLY, reset_to=7))
    wait_until(lambda: QUEUE in task.ends())
    deliveries = len(task.calls)
    task.source.send(piece(THEIRS, 0))
    wait_until(lambda: (4, 0) in task.calls)
    task.end()

    assert task.driver.standing == [(QUEUE, "an operator has reset it", True)]
    assert task.calls == [*[(3, 0)] * deliveries, (4, 0)]
    (ack,) = [each.ack for each in task.results if each.ack.queue == QUEUE]
    assert (ack.reset_to, ack.state.next_offset, ack.failed) == (7, 0, deliveries)


@pytest.mark.parametrize("reset_to", [7, None], ids=["reset", "another log"])
def test_a_queue_that_begins_suspended_ends_when_it_is_reset_or_has_another_log(
    task: Running, reset_to: int | None
) -> None:
    """F4, F5: only the next plan continues it."""
    planned = suspended_for(3600.0)
    reason = EndReason.EARLY if reset_to is not None else EndReason.ANOTHER_LOG
    task.start()
    task.source.send(piece(planned, 0), piece(THEIRS, 0))
    wait_until(lambda: task.calls == [(4, 0)])
    task.source.send(ended(reason, reset_to=reset_to))
    wait_until(lambda: QUEUE in task.ends())
    task.end()

    ((queue, _, is_reset),) = task.driver.standing
    assert (queue, is_reset) == (QUEUE, reset_to is not None)
    assert task.calls == [(4, 0)]
    (ack,) = [each.ack for each in task.results if each.ack.queue == QUEUE]
    assert (ack.reset_to, ack.is_another_log) == (reset_to, reset_to is None)


def test_a_queue_that_is_reset_in_a_pause_ends_in_it(task: Running) -> None:
    """F5, D7: though its messages wait for the pause's end."""
    task.start()
    task.driver.pause()
    task.source.send(piece(MINE, 0, 1), piece(THEIRS))
    task.source.send(ended(EndReason.EARLY, reset_to=7))
    wait_until(lambda: QUEUE in task.ends())
    task.driver.pause(is_paused=False)
    task.end()

    assert not task.calls
    assert task.ends() == {QUEUE: 0, OTHER: 0}
    assert task.driver.standing == [(QUEUE, "an operator has reset it", True)]


@pytest.mark.parametrize("is_given_up", [True, False])
def test_a_range_that_ends_because_of_the_driver_is_not_reported(task: Running, is_given_up: bool) -> None:
    """B7, D7: the driver knows."""
    gate = begun_with_a_call(task)
    if is_given_up:
        task.driver.give_up(QUEUE)
    task.source.send(ended(EndReason.EARLY if is_given_up else EndReason.STOPPED))
    gate.open()
    wait_until(lambda: QUEUE in task.ends())
    task.end()

    assert not task.driver.standing
    assert task.ends().keys() == {QUEUE, OTHER}


def test_a_concurrent_range_that_keeps_a_message_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """E4: no broker takes a failed message for the second time, so its queue is planned again."""

    def refuse(*_: Any, **__: Any) -> None:
        raise RocketMQError("no broker takes it")

    monkeypatch.setattr(SendBack, "send", refuse)
    task = Running(is_orderly=False)
    task.answers = lambda message: (
        None if message.queue_id == OTHER.queue_id else ConsumeConcurrentlyStatus.RECONSUME_LATER
    )
    again = replace(MINE, state=MINE.state._replace(reconsume_times=1))
    task.start()
    task.source.send(piece(again, 0, 1), piece(THEIRS))
    wait_until(lambda: task.driver.standing)
    task.source.send(piece(THEIRS, 0))
    wait_until(lambda: (4, 0) in task.calls)
    task.end()

    assert task.driver.standing == [(QUEUE, "SUSPENDED", False)]
    assert task.calls == [(3, 0), (4, 0)]
    ack = next(each.ack for each in task.results if each.ack.queue == QUEUE)
    assert (ack.state.next_offset, ack.state.reconsume_times, ack.finished) == (0, 2, "SUSPENDED")
    assert ack.state.suspended_until_s is not None


# --- rows ---------------------------------------------------------------------------------------------------


def test_rows_that_wait_for_a_cut_are_counted_if_somebody_wants_it(task: Running) -> None:
    """H1: each that may reach the sink, once; those of a failed message never do."""
    sizes = task.driver.counted = []
    fails = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT if task.is_orderly else None
    task.answers = lambda message: fails if len(task.calls) == 1 else None
    task.start()
    task.source.send(piece(MINE, 0))
    wait_until(lambda: sum(sizes))
    one = sum(sizes)
    task.source.send(piece(MINE, 1, 2, 3))
    wait_until(lambda: sum(sizes) >= 4 * one)
    (consumed,) = task.end()

    assert sum(sizes) == 4 * one >= 400
    assert sum(rows.num_rows for rows in consumed.batches()) == 4


def test_sizes_of_rows_are_not_counted_if_nobody_wants_them(task: Running) -> None:
    task.start()
    task.source.send(piece(MINE, 0))
    wait_until(lambda: task.driver.settlings)
    (consumed,) = task.end()

    # The driver's end asserts that it has not been called.
    assert task.error is None
    assert sum(rows.num_rows for rows in consumed.batches()) == 1
