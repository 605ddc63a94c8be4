"""The queues of one task in order of their sharding keys; with threads, but without Spark."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any

import pytest
from pyspark.sql.types import StructType

from pyspark_rocketmq.client.producer.send_back import SendBack, SendBackSettings
from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.consume.orderly import OrderlySettings
from pyspark_rocketmq.consume.turns import NO_INSTRUCTIONS, RangeInstructions, Turn
from pyspark_rocketmq.consumer.engine.arrivals import ClosedSource, Source
from pyspark_rocketmq.consumer.engine.direct import OrderlyTask
from pyspark_rocketmq.consumer.engine.keyed import KeyedRangeConsumer, KeyedRun
from pyspark_rocketmq.consumer.engine.output import Consumed
from pyspark_rocketmq.consumer.engine.range import RangeCuts
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import OPEN_END, ConsumeOrderlyStatus, MessageExt, MessageQueue, QueueRange
from pyspark_rocketmq.source.schema import Arrival, RangeEnd
from tests.helpers.emitted import kept_rows
from tests.helpers.fake_clock import FakeClock
from tests.helpers.messages import message_at
from tests.helpers.open_source import OpenSource
from tests.helpers.source_rows import source_in_pieces
from tests.helpers.wait import PATIENCE_S, wait_until

SUCCESS = ConsumeOrderlyStatus.SUCCESS
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
FIRST, SECOND = (MessageQueue("orders", "broker-a", number) for number in range(2))

Listener = Callable[[MessageExt, ConsumeOrderlyContext], Any]


def range_of(keys: str, queue: MessageQueue = FIRST) -> Arrival:
    """A range with a message for each letter, its key; ``-`` is a message without a key."""
    planned = QueueRange.between(queue, 0, len(keys), epoch=1)
    messages = [
        message_at(at, queue=queue)._replace(properties={} if key == "-" else {"__SHARDINGKEY": key})
        for at, key in enumerate(keys)
    ]
    return Arrival(planned, [messages], RangeEnd(planned=planned, rows=len(keys)))


def open_piece(keys: str, start: int = 0) -> Arrival:
    """A piece of the open range of the first queue, from offset ``start`` on."""
    messages = [
        message_at(start + at, queue=FIRST)._replace(properties={"__SHARDINGKEY": key})
        for at, key in enumerate(keys)
    ]
    return Arrival(QueueRange.between(FIRST, 0, OPEN_END, epoch=1), [messages])


class Task:
    """A task with a listener, which notes its messages."""

    def __init__(self, listener: Listener, *, clock: Clock | None = None, **settings: Any) -> None:
        self._listener = listener
        self._clock = clock or SystemClock()
        self._settings = OrderlySettings(**settings)
        self.delivered: dict[tuple[MessageQueue, str | None], list[tuple[int, int]]] = defaultdict(list)
        """Queue offsets and how often each was put back before, by queue and key."""
        self.threads: set[str] = set()
        self.most_calls = self.calls = 0
        self._guard = threading.Lock()
        self._busy: set[tuple[MessageQueue, str | None]] = set()

    def run(
        self, *ranges: Arrival, instructions: RangeInstructions = NO_INSTRUCTIONS
    ) -> dict[MessageQueue, Consumed]:
        return self.consume(ClosedSource([[each] for each in ranges]), instructions)

    def consume(
        self, source: Source, instructions: RangeInstructions = NO_INSTRUCTIONS, **more: Any
    ) -> dict[MessageQueue, Consumed]:
        output = OutputColumns.of(StructType().add("name", "string"))
        send_back = SendBackSettings(name_servers=("127.0.0.1:1",), consumer_group="billing")
        consumer = KeyedRangeConsumer(self._call, output, self._settings, send_back)
        task = OrderlyTask(source, consumer, instructions, self._clock, give_away=instructions.take, **more)
        return {each.ack.queue: each for each in task.consumed()}

    def _call(self, messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> Any:
        place = messages[0].message_queue, messages[0].properties.get("__SHARDINGKEY")
        with self._guard:
            assert place not in self._busy, "two calls for one key at the same time"
            self._busy.add(place)
            self.most_calls = max(self.most_calls, len(self._busy))
            self.calls += 1
            self.threads.add(threading.current_thread().name)
            self.delivered[place] += [(each.queue_offset, each.reconsume_times) for each in messages]
        try:
            for message in messages:
                context.emit(message, name=message.keys)
            return self._listener(messages[0], context)
        finally:
            with self._guard:
                self._busy.remove(place)


def key_of(message: MessageExt) -> str | None:
    return message.properties.get("__SHARDINGKEY")


def awaited(event: threading.Event) -> ConsumeOrderlyStatus:
    assert event.wait(PATIENCE_S), "what the call waits for has not happened"
    return SUCCESS


def suspended_once(message: MessageExt, pause_ms: int, context: ConsumeOrderlyContext) -> Any:
    context.suspend_current_queue_time_millis = pause_ms
    return SUSPEND if message.reconsume_times == 0 else SUCCESS


def test_calls_for_different_keys_of_one_queue_overlap() -> None:
    """I8: and messages without a key are in order with each other."""
    is_there = {key: threading.Event() for key in ("a", "b", None)}

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        is_there[key_of(message)].set()
        return all(awaited(event) for event in is_there.values()) and SUCCESS

    task = Task(listener)
    brought = task.run(range_of("a-ab--b"))

    assert task.most_calls == 3
    assert [offset for offset, _ in task.delivered[FIRST, None]] == [1, 4, 5]
    assert brought[FIRST].ack.state.next_offset == 7
    assert [offset for offset, _ in kept_rows(brought[FIRST].rows)] == list(range(7))


def test_a_quick_listener_is_called_by_one_thread() -> None:
    """I8: more would only get in each other's way."""
    task = Task(lambda _, context: SUCCESS, clock=FakeClock())
    task.run(range_of("abc" * 100), range_of("abc" * 100, SECOND))

    assert task.threads == {threading.current_thread().name}


def test_a_task_may_be_held_to_one_call_at_a_time() -> None:
    """I8: ``consumeThreadMax``."""

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        time.sleep(0.003)
        return SUCCESS

    task = Task(listener, consume_thread_max=1)
    task.run(range_of("abcd" * 3))

    assert (task.most_calls, task.calls) == (1, 12)


def test_a_suspended_key_is_delivered_again_while_another_one_is_slow() -> None:
    """D3, I8"""
    again = threading.Event()

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        if key_of(message) == "a":
            return awaited(again)
        if message.reconsume_times:
            again.set()
        return suspended_once(message, 10, context) if message.queue_offset == 1 else SUCCESS

    brought = Task(listener).run(range_of("abb"))

    assert brought[FIRST].ack.state.next_offset == 3
    assert (brought[FIRST].ack.failed, brought[FIRST].ack.finished) == (1, "EXHAUSTED")


def test_a_task_waits_for_a_suspended_key_below_finished_messages() -> None:
    """I8: they would be delivered again with the next micro-batch."""
    task = Task(
        lambda message, context: SUCCESS if key_of(message) == "b" else suspended_once(message, 30, context)
    )
    brought = task.run(range_of("abb"))

    assert task.delivered == {(FIRST, "a"): [(0, 0), (0, 1)], (FIRST, "b"): [(1, 0), (2, 0)]}
    assert brought[FIRST].ack.finished == "EXHAUSTED"


def test_a_task_does_not_wait_for_a_suspended_key_with_nothing_finished_above_it() -> None:
    """D3: the micro-batch is committed."""
    task = Task(lambda message, context: SUCCESS if key_of(message) == "b" else SUSPEND)
    brought = task.run(range_of("bba"))
    ack = brought[FIRST].ack

    assert task.delivered[FIRST, "a"] == [(2, 0)]
    assert (ack.finished, ack.state.next_offset, ack.state.reconsume_times) == ("SUSPENDED", 2, 1)
    assert ack.state.suspended_until_s is not None


class GivesUp(RangeInstructions):
    """Gives up all queues from some time on, and takes their results."""

    def __init__(self) -> None:
        self.gives_up = False
        self.taken: list[Any] = []

    def is_given_up(self, queue: MessageQueue) -> bool:
        return self.gives_up

    def take(self, brought: object) -> bool:
        self.taken.append(brought)
        return True


def test_a_queue_that_is_given_up_leaves_though_its_suspended_key_is_waited_for() -> None:
    """D7, I8: with what is below that key, for its next owner."""
    instructions = GivesUp()

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        context.suspend_current_queue_time_millis = 30_000
        if key_of(message) == "c":
            threading.Timer(0.05, lambda: setattr(instructions, "gives_up", True)).start()
        return SUSPEND if key_of(message) == "b" else SUCCESS

    began_s = time.monotonic()
    assert not Task(listener).run(range_of("abcc"), instructions=instructions)

    [consumed] = instructions.taken
    assert time.monotonic() - began_s < 25
    assert (consumed.ack.state.next_offset, consumed.ack.state.reconsume_times) == (1, 1)
    assert len(consumed.rows) == 1


def test_a_queue_that_is_given_up_during_several_calls_is_handed_over_once() -> None:
    """D7, I8: by the worker whose call ends last."""
    instructions, is_there = GivesUp(), threading.Barrier(3)

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        is_there.wait(PATIENCE_S)
        instructions.gives_up = True
        time.sleep(0.005 * message.queue_offset)
        return SUCCESS

    assert Task(listener).run(range_of("abc" * 20), instructions=instructions) == {}
    [consumed] = instructions.taken
    assert (consumed.ack.finished, consumed.ack.state.next_offset) == ("GIVEN_UP", 3)


def test_a_fatal_error_in_one_of_several_calls_ends_the_task() -> None:
    """D5"""
    has_begun = threading.Event()

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        if key_of(message) == "a":
            return awaited(has_begun)
        has_begun.set()
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        Task(listener).run(range_of("ab"))


class Pauses(GivesUp):
    """Has a task pause, too, and counts how often other threads than that of a call check it."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses = False
        self.changed: Callable[[], None] = lambda: None
        self.calls_in: threading.Thread | None = None
        self.checks = 0

    def is_paused(self) -> bool:
        self.checks += threading.current_thread() is not self.calls_in
        return self.pauses

    def notifies(self, changed: Callable[[], None]) -> None:
        self.changed = changed


@contextmanager
def open_task(
    task: Task, source: OpenSource, instructions: GivesUp | None = None, **more: Any
) -> Iterator[list[Any]]:
    """Run a task of an open range, which is given up at the end; yield the list of its results then."""
    instructions = instructions or GivesUp()
    results = instructions.taken
    thread = threading.Thread(
        target=lambda: results.extend(task.consume(source, instructions, **more).values()), daemon=True
    )
    thread.start()
    yield results
    instructions.gives_up = True
    wait_until(lambda: source.left == [FIRST])
    source.end()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_messages_that_arrive_during_a_slow_call_are_delivered_beside_it() -> None:
    """I8: those of its key are not."""
    has_begun, others = threading.Event(), threading.Event()

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        if message.queue_offset == 0:
            has_begun.set()
            return awaited(others)
        if message.queue_offset == 3:
            others.set()
        return SUCCESS

    task, source = Task(listener), OpenSource()
    with open_task(task, source) as results:
        source.send(open_piece("a"))
        awaited(has_begun)
        source.send(open_piece("ab", 1))
        source.send(open_piece("c", 3))
        wait_until(lambda: task.calls == 4)

    [consumed] = results
    assert task.delivered[FIRST, "a"] == [(0, 0), (1, 0)]
    assert (consumed.ack.state.next_offset, len(consumed.rows)) == (4, 4)


def test_messages_that_arrive_while_another_key_is_suspended_do_not_wait_for_it() -> None:
    """D3, I8: and its pause goes on with the queue's next owner."""

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        context.suspend_current_queue_time_millis = 30_000
        return SUSPEND if key_of(message) == "a" else SUCCESS

    task, source = Task(listener), OpenSource()
    with open_task(task, source) as results:
        source.send(open_piece("a"))
        wait_until(lambda: task.calls == 1)
        source.send(open_piece("ba", 1))
        wait_until(lambda: task.calls == 2)

    [consumed] = results
    state = consumed.ack.state
    assert task.delivered == {(FIRST, "a"): [(0, 0)], (FIRST, "b"): [(1, 0)]}
    assert (state.next_offset, state.reconsume_times, len(consumed.rows)) == (0, 1, 0)
    assert state.suspended_until_s is not None
    assert state.suspended_until_s > SystemClock().now_s() + 10


def arrives_at_report(monkeypatch: pytest.MonkeyPatch, *, is_early: bool) -> list[bool]:
    """Have a message of key b arrive once, when the last worker of the queue is about to report.

    ``is_early``: before no other worker may join the queue; otherwise after that. The list gets one item when
    the message has arrived: whether another worker could have joined the queue after that.
    """
    leaves, due = OrderlyTask._leaves, KeyedRun.due_s
    tasks: list[OrderlyTask] = []
    joins: list[bool] = []

    def leaves_at(task: OrderlyTask, worker: Any, one: Any, run: Any) -> bool:
        tasks[:] = [task]
        is_one_of_several = leaves(task, worker, one, run)
        if not (is_one_of_several or is_early or joins):
            task._arrived([open_piece("b", 1)])
            with task._changed:
                joins.append(isinstance(task._turns.next(inf, calls_s=[inf]), Turn))
        return is_one_of_several

    def due_at(run: KeyedRun) -> float:
        due_s = due(run)
        if is_early and not joins:
            tasks[0]._arrived([open_piece("b", 1)])
            joins.append(False)
        return due_s

    monkeypatch.setattr(OrderlyTask, "_leaves", leaves_at)
    monkeypatch.setattr(KeyedRun, "due_s", due_at)
    return joins


@pytest.mark.parametrize("is_suspended", [False, True], ids=["dry", "suspended"])
@pytest.mark.parametrize("is_early", [False, True], ids=["after", "before"])
def test_a_message_that_arrives_while_the_last_worker_reports_is_delivered_immediately(
    is_early: bool, is_suspended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D3, I8: by a worker that takes the queue after the report, not beside it."""

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        context.suspend_current_queue_time_millis = 30_000
        return SUSPEND if is_suspended and key_of(message) == "a" else SUCCESS

    began_s = time.monotonic()
    joins = arrives_at_report(monkeypatch, is_early=is_early)
    task, source = Task(listener, consume_thread_max=1), OpenSource()
    with open_task(task, source) as results:
        source.send(open_piece("a"))
        wait_until(lambda: task.calls == 2)

    [consumed] = results
    assert joins == [False]
    assert time.monotonic() - began_s < 25
    assert task.delivered == {(FIRST, "a"): [(0, 0)], (FIRST, "b"): [(1, 0)]}
    assert consumed.ack.state.next_offset == (0 if is_suspended else 2)


class Stands(GivesUp):
    """Keeps which queues cannot go on."""

    def __init__(self) -> None:
        super().__init__()
        self.standing: list[tuple[MessageQueue, bool]] = []

    def stands(self, queue: MessageQueue, reason: str, *, is_reset: bool = False) -> None:
        self.standing.append((queue, is_reset))


@pytest.mark.parametrize("is_busy", [True, False], ids=["during a call", "suspended"])
def test_a_queue_is_reset_past_a_key_that_always_fails(*, is_busy: bool) -> None:
    """F5, I8: what has arrived of other keys is not delivered either."""
    may_end = threading.Event()

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        context.suspend_current_queue_time_millis = 30_000
        return SUSPEND if key_of(message) == "a" else awaited(may_end)

    task, source, instructions = Task(listener), OpenSource(), Stands()
    end = RangeEnd(planned=QueueRange.between(FIRST, 0, 2, epoch=1), rows=2, reset_to=7)
    results: dict[MessageQueue, Consumed] = {}
    thread = threading.Thread(target=lambda: results.update(task.consume(source, instructions)), daemon=True)
    thread.start()
    source.send(open_piece("ab" if is_busy else "a"))
    wait_until(lambda: task.calls == (2 if is_busy else 1))
    source.send(open_piece("cc", 2)._replace(end=end))
    wait_until(lambda: instructions.standing)
    may_end.set()
    source.end()
    thread.join(20.0)

    assert not thread.is_alive()
    assert instructions.standing == [(FIRST, True)]
    assert (FIRST, "c") not in task.delivered
    assert (results[FIRST].ack.reset_to, results[FIRST].ack.state.next_offset) == (7, 0)


def test_a_queue_that_is_full_is_read_on_during_a_slow_call() -> None:
    """D13, I8: as soon as few of its messages are left."""
    may_end = threading.Event()

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        return awaited(may_end) if key_of(message) == "a" else SUCCESS

    task, source = Task(listener), OpenSource()
    with open_task(task, source, most_held=3):
        source.send(open_piece("bcba"))
        wait_until(lambda: task.calls == 4 and source.was_held and not source.held)
        may_end.set()


def test_a_key_gets_messages_until_it_commits_however_many_of_others_come_meanwhile() -> None:
    """D4, D13, I8: a rare key keeps the offset back, and not the queue."""

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        context.auto_commit = False
        return ConsumeOrderlyStatus.COMMIT if context.accumulated == 3 else SUCCESS

    task, source = Task(listener), OpenSource()
    with open_task(task, source, most_held=5) as results:
        for start in range(0, 40, 4):
            wait_until(lambda: not source.held)
            source.send(open_piece("abbb" if start % 8 else "bbbb", start))
            wait_until(lambda: task.calls == start + 4)  # noqa: B023 - used within the round

    [consumed] = results
    assert source.was_held
    # The fifth message of key a waits for three others.
    assert consumed.ack.state.next_offset == 36


def test_a_queue_that_is_given_up_in_a_pause_leaves_after_its_running_call() -> None:
    """D7, I8, I1: though another key waits for a worker."""
    instructions, source = Pauses(), OpenSource()

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        instructions.calls_in = threading.current_thread()
        instructions.gives_up = instructions.pauses = True
        instructions.checks = 0
        instructions.changed()
        wait_until(lambda: instructions.checks > 3)
        return SUCCESS

    # Time stands still, so that the call is not slow, and no other one begins.
    task = Task(listener, clock=FakeClock())
    source.send(open_piece("ab"))
    with open_task(task, source, instructions) as results:
        wait_until(lambda: results)

    [consumed] = results
    assert task.calls == 1
    assert consumed.ack.state.next_offset == 1


class Cutting(RangeInstructions):
    """Cuts the ranges of a task again and again, as the thread of a connection does."""

    def __init__(self) -> None:
        self.cut: Callable[[], RangeCuts] = RangeCuts
        self.taken: list[Consumed] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def cut_with(self, cut: Callable[[], RangeCuts]) -> None:
        self.cut = cut

    def __enter__(self) -> Cutting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(0.002):
            cut = self.cut()
            self.taken += [*cut.going_on, *cut.ended]


@pytest.mark.parametrize("is_in_pieces", [False, True])
@pytest.mark.parametrize("threads", [1, 3, 20])
@pytest.mark.parametrize("seed", range(4))
def test_any_number_of_threads_delivers_each_key_in_order_and_each_row_once(
    seed: int, threads: int, is_in_pieces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8, H1: whatever calls last, however often keys are suspended, and with cuts at any time."""
    draw = random.Random(seed)
    keys = {queue: "".join(draw.choice("abcdef-") for _ in range(60)) for queue in (FIRST, SECOND)}
    failures = {(queue, at): draw.choice([0, 0, 0, 1, 9]) for queue in keys for at in range(60)}
    lasts_s = [draw.choice([0.0, 0.0001, 0.003]) for _ in range(60)]
    dead: list[MessageExt] = []

    def send(_: object, message: MessageExt, **__: object) -> None:
        if len(dead) % 5 == 4:
            dead.append(message)
            raise RocketMQError("no broker takes it")
        dead.append(message)

    monkeypatch.setattr(SendBack, "send_as_retry", send)

    def listener(message: MessageExt, context: ConsumeOrderlyContext) -> Any:
        context.suspend_current_queue_time_millis = 10
        time.sleep(lasts_s[message.queue_offset])
        queue = message.message_queue
        return SUSPEND if message.reconsume_times < failures[queue, message.queue_offset] else SUCCESS

    task = Task(listener, consume_thread_max=threads, max_reconsume_times=2)
    ranges = [range_of(keys[queue], queue) for queue in keys]
    source = source_in_pieces(draw, ranges) if is_in_pieces else ClosedSource([[each] for each in ranges])
    with Cutting() as cutting:
        brought = task.consume(source, cutting)

    assert task.most_calls <= threads
    assert (threads == 1) == (task.most_calls == 1)
    for (queue, key), delivered in task.delivered.items():
        assert delivered == sorted(delivered), "a key's messages are not in order"
        assert {offset for offset, _ in delivered} <= {
            at for at, each in enumerate(keys[queue]) if each == (key or "-")
        }
    for queue in keys:
        parts = [each for each in cutting.taken if each.ack.queue == queue]
        parts += [brought[queue]] if queue in brought else []
        reached = 0
        rows: list[int] = []
        for part in parts:
            assert part.ack.start == reached
            reached = part.ack.state.next_offset
            offsets = [offset for offset, _ in kept_rows(part.rows)]
            assert all(part.ack.start <= offset < reached for offset in offsets)
            rows += offsets
        assert rows == [at for at in range(reached) if failures[queue, at] < 9]
        assert parts[-1].ack.finished in {"EXHAUSTED", "SUSPENDED", "SLICE_USED"}
