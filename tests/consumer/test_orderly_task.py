"""The ranges of one task: slow queues, suspended ones, ranges that are not read yet; with threads,
but without Spark.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.types import StructType

from pyspark_rocketmq.client.producer.send_back import SendBack, SendBackSettings
from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.consume import turns
from pyspark_rocketmq.consume.orderly import OrderlySettings
from pyspark_rocketmq.consume.part import joined
from pyspark_rocketmq.consume.turns import NO_INSTRUCTIONS, RangeInstructions
from pyspark_rocketmq.consumer.engine import direct as orderly_task
from pyspark_rocketmq.consumer.engine.arrivals import ClosedSource
from pyspark_rocketmq.consumer.engine.direct import OrderlyTask
from pyspark_rocketmq.consumer.engine.orderly import OrderlyRun, RangeConsumer
from pyspark_rocketmq.consumer.engine.output import Consumed
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import ConsumeOrderlyStatus, MessageExt, MessageQueue, QueueRange
from pyspark_rocketmq.source.schema import Arrival, EndReason, RangeEnd
from tests.helpers.emitted import kept_rows
from tests.helpers.fake_clock import FakeClock
from tests.helpers.messages import message_at
from tests.helpers.wait import PATIENCE_S, wait_until

SUCCESS = ConsumeOrderlyStatus.SUCCESS
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
SLOW, OTHER, THIRD = (MessageQueue("orders", "broker-a", number) for number in range(3))

Listener = Callable[[MessageExt, ConsumeOrderlyContext], Any]


def range_of(queue: MessageQueue, count: int = 1) -> Arrival:
    planned = QueueRange.between(queue, 0, count, epoch=1)
    messages = [message_at(at, queue=queue) for at in range(count)]
    return Arrival(planned, [messages], RangeEnd(planned=planned, rows=count))


class Task:
    """What its listener was given, by queue, and what came out."""

    def __init__(self, listener: Listener, *, clock: Clock | None = None, **settings: Any) -> None:
        self._listener = listener
        self.clock = clock or SystemClock()
        self._task: OrderlyTask | None = None
        self._settings = OrderlySettings(**settings)
        self.delivered: dict[MessageQueue, list[tuple[int, int]]] = defaultdict(list)
        """Queue offsets and how often each was put back before."""
        self.order: list[int] = []
        """Queue ids."""
        self.threads: set[str] = set()
        self.most_calls = self._calls = 0
        self._busy: dict[MessageQueue, threading.Lock] = defaultdict(threading.Lock)

    def run(
        self,
        ranges: Iterable[Arrival],
        instructions: RangeInstructions = NO_INSTRUCTIONS,
        give_away: Callable[[Consumed], bool] = lambda _: False,
    ) -> dict[MessageQueue, Consumed]:
        return {each.ack.queue: each for each in self.consumed(ranges, instructions, give_away)}

    def consumed(
        self,
        ranges: Iterable[Arrival],
        instructions: RangeInstructions,
        give_away: Callable[[Consumed], bool] = lambda _: False,
    ) -> Iterator[Consumed]:
        return self.prepared(ClosedSource([whole] for whole in ranges), instructions, give_away).consumed()

    def prepared(
        self,
        source: ClosedSource,
        instructions: RangeInstructions = NO_INSTRUCTIONS,
        give_away: Callable[[Consumed], bool] = lambda _: False,
    ) -> OrderlyTask:
        output = OutputColumns.of(StructType().add("name", "string"))
        send_back = SendBackSettings(name_servers=("127.0.0.1:1",), consumer_group="billing")
        consumer = RangeConsumer(self._call, output, self._settings, send_back)
        self._task = OrderlyTask(source, consumer, instructions, self.clock, give_away=give_away)
        return self._task

    def has_something_to_give_out(self) -> bool:
        """Whether a range has ended that its own thread has not given out yet."""
        assert self._task is not None
        with self._task._changed:
            return bool(self._task._done)

    def _call(self, messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> Any:
        [message] = messages
        queue = message.message_queue
        assert self._busy[queue].acquire(blocking=False), "two calls of one queue at the same time"
        try:
            self.threads.add(threading.current_thread().name)
            self.delivered[queue].append((message.queue_offset, message.reconsume_times))
            self.order.append(queue.queue_id)
            context.emit(name=message.keys)
            return self._listener(message, context)
        finally:
            self._busy[queue].release()


def suspended_once(
    message: MessageExt, pause_ms: int, context: ConsumeOrderlyContext
) -> ConsumeOrderlyStatus:
    context.suspend_current_queue_time_millis = pause_ms
    return SUSPEND if message.reconsume_times == 0 else SUCCESS


def awaited(event: threading.Event) -> ConsumeOrderlyStatus:
    assert event.wait(PATIENCE_S), "what the slow queue waits for has not happened"
    return SUCCESS


def test_a_suspended_queue_is_delivered_again_while_another_queues_listener_is_slow() -> None:
    """D3: once more, with what another micro-batch would have given it."""
    again = threading.Event()

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        if message.message_queue == SLOW:
            return awaited(again)
        if message.reconsume_times:
            again.set()
        return suspended_once(message, 10, context)

    task = Task(listener)
    brought = task.run([range_of(OTHER), range_of(SLOW)])

    assert task.delivered[OTHER] == [(0, 0), (0, 1)]
    assert brought[OTHER].rows == [(0, "key-0")]
    ack = brought[OTHER].ack
    assert (ack.state.next_offset, ack.finished, ack.failed, ack.state.suspended_until_s) == (
        1,
        "EXHAUSTED",
        1,
        None,
    )
    assert brought[SLOW].ack.state.next_offset == 1


def test_a_suspended_queue_makes_room_for_ranges_that_are_not_read_yet() -> None:
    """D3: where the ranges at hand take too much memory; it comes again with the next micro-batch."""

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        return suspended_once(message, 10, context) if message.message_queue == OTHER else SUCCESS

    task = Task(listener)
    large = range_of(OTHER)._replace(nbytes=orderly_task.OUT_OF_MEMORY_BYTES)
    brought = task.run([large, range_of(THIRD), range_of(SLOW)], OtherTasks())

    assert task.delivered == {OTHER: [(0, 0)], THIRD: [(0, 0)], SLOW: [(0, 0)]}
    assert {queue: each.ack.state.next_offset for queue, each in brought.items()} == {
        OTHER: 0,
        THIRD: 1,
        SLOW: 1,
    }


def test_ranges_behind_one_whose_listener_is_slow_are_read_and_delivered() -> None:
    """D3: other queues do not wait for a slow one."""
    passed = {queue: threading.Event() for queue in (OTHER, THIRD)}

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        if message.message_queue == SLOW:
            return all(awaited(event) for event in passed.values()) and SUCCESS
        passed[message.message_queue].set()
        return SUCCESS

    brought = Task(listener).run([range_of(SLOW), range_of(OTHER), range_of(THIRD)])

    assert {ack.state.next_offset for _, ack, *_ in brought.values()} == {1}


def test_two_slow_queues_hold_neither_each_other_nor_a_third_one() -> None:
    """D3: there is another thread for whoever waits."""
    is_there = {queue: threading.Event() for queue in (SLOW, OTHER, THIRD)}

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        is_there[message.message_queue].set()
        return all(awaited(event) for event in is_there.values()) and SUCCESS

    task = Task(listener)
    task.run([range_of(SLOW), range_of(OTHER), range_of(THIRD)])

    assert len(task.threads) == 3


def test_a_quick_listener_is_called_only_by_the_tasks_own_thread() -> None:
    """D1: one range after the other; and a listener that holds something of its thread's is safe."""
    clock = FakeClock()
    task = Task(lambda _, context: SUCCESS, clock=clock)

    task.run([range_of(SLOW, 300), range_of(OTHER, 300), range_of(THIRD, 300)])

    assert task.threads == {threading.current_thread().name}
    assert task.order == [0] * 300 + [1] * 300 + [2] * 300


def test_a_task_may_be_held_to_one_thread() -> None:
    """D3: with consumeThreadMax 1 a suspended queue comes again between two calls of another one."""
    clock = FakeClock()

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        clock.advance(0.4)
        return SUCCESS if message.message_queue == SLOW else suspended_once(message, 1000, context)

    task = Task(listener, clock=clock, consume_thread_max=1)
    brought = task.run([range_of(OTHER), range_of(SLOW, 6)])

    assert task.threads == {threading.current_thread().name}
    assert task.order == [1, 0, 0, 0, 1, 0, 0, 0]
    assert brought[OTHER].ack.finished == brought[SLOW].ack.finished == "EXHAUSTED"


def test_a_task_whose_queues_are_all_suspended_ends_at_once() -> None:
    """D3: the micro-batch is committed, and the next one is planned when they are due."""
    task = Task(lambda _, context: SUSPEND)
    brought = task.run([range_of(SLOW), range_of(OTHER)])

    assert task.delivered == {SLOW: [(0, 0)], OTHER: [(0, 0)]}
    assert {each.ack.finished for each in brought.values()} == {"SUSPENDED"}
    assert all(each.ack.state.suspended_until_s is not None for each in brought.values())


def test_a_queue_that_came_again_stops_when_the_others_have_ended() -> None:
    """D3, D7: with the call in hand, and is planned again from there."""
    clock = FakeClock()

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        clock.advance(0.4)
        if message.message_queue == SLOW or message.queue_offset:
            return SUCCESS
        return suspended_once(message, 1000, context)

    task = Task(listener, clock=clock, consume_thread_max=1)
    brought = task.run([range_of(OTHER, 100), range_of(SLOW, 5)])

    assert brought[SLOW].ack.finished == "EXHAUSTED"
    ack = brought[OTHER].ack
    assert (ack.finished, ack.state.reconsume_times, ack.state.suspended_until_s) == ("SLICE_USED", 0, None)
    assert ack.state.next_offset == ack.consumed == len(brought[OTHER].rows) < 100
    assert task.order[-2:] == [0, 1] or task.order[-1] == 0


def test_a_message_that_fails_again_in_its_task_uses_up_its_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """D6: as from one micro-batch to the next."""
    over = threading.Event()
    dead: list[MessageExt] = []
    monkeypatch.setattr(SendBack, "send_as_retry", lambda _, message, **__: dead.append(message))

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        if message.message_queue == SLOW:
            return awaited(over)
        context.suspend_current_queue_time_millis = 10
        if message.queue_offset == 1:
            over.set()
            return SUCCESS
        return SUSPEND

    task = Task(listener, max_reconsume_times=2)
    brought = task.run([range_of(OTHER, 2), range_of(SLOW)])

    assert task.delivered[OTHER] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert [(one.queue_offset, one.reconsume_times) for one in dead] == [(0, 2)]
    assert (brought[OTHER].ack.dead_letters, brought[OTHER].ack.failed) == (1, 3)


class GivenUp(RangeInstructions):
    """Orders that come while a task runs."""

    def __init__(self) -> None:
        self.queues: set[MessageQueue] = set()

    def is_given_up(self, queue: MessageQueue) -> bool:
        return queue in self.queues


def test_a_queue_that_is_given_up_while_it_is_suspended_does_not_come_again() -> None:
    """D7: it stays suspended, for whoever has it next."""
    clock, instructions = FakeClock(), GivenUp()

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        clock.advance(0.4)
        instructions.queues.add(OTHER)
        return SUCCESS if message.message_queue == SLOW else SUSPEND

    task = Task(listener, clock=clock, consume_thread_max=1)
    brought = task.run([range_of(OTHER, 3), range_of(SLOW, 6)], instructions)

    assert task.delivered[OTHER] == [(0, 0)]
    assert (brought[OTHER].ack.finished, brought[OTHER].ack.state.reconsume_times) == ("SUSPENDED", 1)
    assert brought[SLOW].ack.finished == "EXHAUSTED"


def pieces_with_a_reset() -> tuple[Arrival, Arrival]:
    """Return a range of the queue OTHER in two pieces: one message, and an end with a reset to offset 7."""
    whole = range_of(OTHER, 3)
    end = RangeEnd(planned=replace(whole.planned, end=1), rows=1, reason=EndReason.EARLY, reset_to=7)
    return Arrival(whole.planned, [[message_at(0, queue=OTHER)]]), Arrival(whole.planned, (), end)


def test_a_reset_that_is_read_after_a_range_has_ended_early_is_passed_on() -> None:
    """F5: the broker reports it only once, and the rest of a closed range is read in any case."""
    instructions = GivenUp()
    first, last = pieces_with_a_reset()

    def made() -> Iterator[list[Arrival]]:
        yield [first]
        while not instructions.queues:
            yield []
        yield [last]
        yield [range_of(SLOW)]

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        instructions.queues.add(OTHER)
        return SUCCESS

    task = Task(listener, consume_thread_max=1).prepared(ClosedSource(made()), instructions)
    found = [each for each in task.consumed() if each.ack.queue == OTHER]

    assert [(each.ack.start, each.ack.state.next_offset, each.ack.reset_to) for each in found] == [
        (0, 1, None),
        (1, 1, 7),
    ]
    assert [each.rows for each in found] == [[(0, "key-0")], []]
    assert joined(found[0].ack, found[1].ack) == replace(found[0].ack, reset_to=7)


def test_a_reset_that_is_read_while_a_range_ends_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """F5: the result is made, and the task does not have it yet."""
    instructions = GivenUp()
    first, last = pieces_with_a_reset()
    stopped = OrderlyTask._stopped

    def stopped_before_the_end_arrives(task: OrderlyTask, run: OrderlyRun) -> Consumed:
        result = stopped(task, run)
        task._arrived([last])
        return result

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        instructions.queues.add(OTHER)
        return SUCCESS

    monkeypatch.setattr(OrderlyTask, "_stopped", stopped_before_the_end_arrives)
    task = Task(listener, consume_thread_max=1).prepared(ClosedSource([[first]]), instructions)

    assert [(each.ack.start, each.ack.state.next_offset, each.ack.reset_to) for each in task.consumed()] == [
        (0, 1, None),
        (1, 1, 7),
    ]


def test_a_suspended_queue_that_is_given_up_is_given_out_before_it_is_due() -> None:
    """D7, G7: who gets the queue waits neither for its suspension nor for
    the rest of another queue's range.
    """
    instructions, is_out = GivenUp(), threading.Event()

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        if message.message_queue == OTHER:
            context.suspend_current_queue_time_millis = 30_000
            instructions.queues.add(OTHER)
            return SUSPEND
        if message.queue_offset:
            assert is_out.is_set(), "the whole range came first"
            return SUCCESS
        wait_until(lambda: is_out.is_set() or task.has_something_to_give_out())
        return SUCCESS

    task = Task(listener)
    for consumed in task.consumed([range_of(OTHER), range_of(SLOW, 3)], instructions):
        if consumed.ack.queue == OTHER:
            is_out.set()

    assert task.delivered[OTHER] == [(0, 0)]


def test_a_slow_call_holds_up_no_other_queue_when_the_wall_clock_is_set_back() -> None:
    """D3, D7: what lasts is measured by a clock that nobody sets."""
    clock, is_other_done = FakeClock(), threading.Event()

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        if message.message_queue == OTHER:
            is_other_done.set()
            return SUCCESS
        clock.step(-3600.0)
        clock.advance(10.0)
        return awaited(is_other_done)

    task = Task(listener, clock=clock)
    consumed = task.run([range_of(SLOW, 100), range_of(OTHER)])

    assert len(task.delivered[SLOW]) == 7
    assert consumed[SLOW].ack.finished == "SLICE_USED"
    assert consumed[SLOW].ack.metrics.call_ms == pytest.approx(70_000.0)


def test_a_suspension_is_stored_by_the_wall_clock() -> None:
    """D3: the planner that waits for its end is another process, and may be on another machine."""
    clock = FakeClock()

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        context.suspend_current_queue_time_millis = 20_000
        return SUSPEND

    consumed = Task(listener, clock=clock).run([range_of(OTHER)])

    assert consumed[OTHER].ack.state.suspended_until_s == pytest.approx(clock.now_s() + 20.0)


def test_a_fatal_error_in_another_thread_ends_the_task() -> None:
    """D5: SystemExit in a listener ends its worker process wherever it was called."""
    has_begun = threading.Event()

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        if message.message_queue == SLOW:
            return awaited(has_begun)
        has_begun.set()
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        Task(listener).run([range_of(SLOW), range_of(OTHER)])


def test_a_range_that_cannot_be_read_ends_the_task_wherever_it_is_read() -> None:
    """H2"""
    is_read = threading.Event()

    def ranges() -> Iterator[Arrival]:
        yield range_of(SLOW)
        is_read.set()
        raise RocketMQError("the broker refuses")

    with pytest.raises(RocketMQError, match="the broker refuses"):
        Task(lambda _, context: awaited(is_read)).run(ranges())


def test_a_queue_with_two_ranges_in_one_task_is_refused() -> None:
    """D1: a user's union of the source with itself, in one partition."""
    with pytest.raises(RocketMQError, match="a task got two ranges of this queue in one batch"):
        Task(lambda _, context: SUCCESS).run([range_of(OTHER), range_of(OTHER)])


@pytest.mark.parametrize("threads", [1, 3, 20])
@pytest.mark.parametrize("seed", range(4))
def test_any_number_of_threads_delivers_each_queue_in_order_and_once(
    seed: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D1, D3: whatever calls last, and however often queues are suspended."""
    monkeypatch.setattr(turns, "TURN_S", 0.001)
    monkeypatch.setattr(RangeConsumer, "pace", turns.Pace(0.001, 0.001, remembers=True))
    draw = random.Random(seed)
    queues = [MessageQueue("orders", "broker-a", number) for number in range(6)]
    failures = {(queue, at): draw.random() < 0.2 for queue in queues for at in range(30)}
    lasts_s = {queue: draw.choice([0.0, 0.0001, 0.003]) for queue in queues}

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        queue = message.message_queue
        time.sleep(lasts_s[queue])
        if failures[queue, message.queue_offset]:
            return suspended_once(message, 10, context)
        return SUCCESS

    task = Task(listener, consume_thread_max=threads)
    brought = task.run([range_of(queue, 30) for queue in queues])

    assert brought.keys() == set(queues)
    assert len(task.threads) <= threads
    for queue in queues:
        ack, delivered = brought[queue].ack, task.delivered[queue]
        passed = [at for at, times in delivered if times or not failures[queue, at]]
        assert delivered == sorted(delivered)
        assert passed == list(range(ack.state.next_offset))
        assert [offset for offset, _ in kept_rows(brought[queue].rows)] == passed
        assert ack.finished in {"EXHAUSTED", "SUSPENDED", "SLICE_USED"}


def test_a_queue_that_is_given_up_leaves_while_another_queues_listener_is_slow() -> None:
    """B5, D7: whoever has it in hand gives it away; the task's own thread may be the one in the slow call."""
    gone = threading.Event()
    begun = threading.Event()
    away: list[Consumed] = []

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        if message.message_queue == SLOW:
            return awaited(gone)
        begun.set()
        return SUCCESS

    class OtherMustLeave(RangeInstructions):
        def is_given_up(self, queue: MessageQueue) -> bool:
            return queue == OTHER and begun.is_set()

    def give_away(consumed: Consumed) -> bool:
        away.append(consumed)
        gone.set()
        return True

    brought = Task(listener).run([range_of(SLOW), range_of(OTHER, 3)], OtherMustLeave(), give_away)

    assert list(brought) == [SLOW]
    assert [(each.ack.queue, each.ack.state.next_offset, len(each.rows)) for each in away] == [(OTHER, 1, 1)]


class OtherTasks(RangeInstructions):
    """Of the batch; at work until a test says that they have ended."""

    def __init__(self, *, are_at_work: bool = True) -> None:
        self.are_at_work = are_at_work
        self.times_told = 0
        self._changed: Callable[[], None] = lambda: None

    def idles(self, changed: Callable[[], None]) -> None:
        self.times_told += 1
        self._changed = changed

    def is_batch_at_work(self) -> bool:
        return bool(self.times_told) and self.are_at_work

    def end(self) -> None:
        self.are_at_work = False
        self._changed()


def test_a_suspended_queue_is_delivered_again_while_other_tasks_of_the_batch_are_at_work() -> None:
    """D3: though it is the only one in its task."""
    instructions = OtherTasks()
    task = Task(lambda message, context: suspended_once(message, 10, context))
    brought = task.run([range_of(OTHER, 2), range_of(THIRD)], instructions)

    assert task.delivered == {OTHER: [(0, 0), (0, 1), (1, 0), (1, 1)], THIRD: [(0, 0), (0, 1)]}
    assert {each.ack.finished for each in brought.values()} == {"EXHAUSTED"}
    assert instructions.times_told == 1


def test_a_task_with_only_suspended_queues_ends_when_the_other_tasks_have() -> None:
    """D3: at once, though its queue is not due, so that the micro-batch is not prolonged."""
    instructions = OtherTasks()

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        context.suspend_current_queue_time_millis = 30_000 if message.reconsume_times else 10
        if message.reconsume_times:
            threading.Timer(0.05, instructions.end).start()
        return SUSPEND

    task = Task(listener)
    brought = task.run([range_of(OTHER)], instructions)

    assert task.delivered[OTHER] == [(0, 0), (0, 1)]
    assert (brought[OTHER].ack.finished, brought[OTHER].ack.state.reconsume_times) == ("SUSPENDED", 2)


def test_a_queue_that_came_again_stops_with_the_call_in_hand_when_the_other_tasks_have_ended() -> None:
    """D3, D7"""
    instructions = OtherTasks()

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        if message.queue_offset == 3:
            instructions.end()
        return SUCCESS if message.queue_offset else suspended_once(message, 10, context)

    task = Task(listener)
    brought = task.run([range_of(OTHER, 100)], instructions)

    assert task.delivered[OTHER] == [(0, 0), (0, 1), (1, 0), (2, 0), (3, 0)]
    assert brought[OTHER].ack.state.next_offset == 4


def test_a_task_without_a_suspended_queue_says_nothing_of_others() -> None:
    """D3: it ends as ever."""
    instructions = OtherTasks()
    Task(lambda _, context: SUCCESS).run([range_of(OTHER, 3), range_of(SLOW, 3)], instructions)

    assert instructions.times_told == 0


def test_a_task_ends_at_once_when_no_other_one_of_its_batch_is_at_work() -> None:
    """D3"""
    instructions = OtherTasks(are_at_work=False)
    task = Task(lambda _, context: SUSPEND)
    brought = task.run([range_of(SLOW), range_of(OTHER)], instructions)

    assert task.delivered == {SLOW: [(0, 0)], OTHER: [(0, 0)]}
    assert {each.ack.finished for each in brought.values()} == {"SUSPENDED"}
