from __future__ import annotations

import asyncio
import logging
import select
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import StructType

from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.consume.concurrent import ConcurrentSettings
from pyspark_rocketmq.consume.metrics import ConsumeMetrics
from pyspark_rocketmq.consume.turns import NO_INSTRUCTIONS, RangeInstructions
from pyspark_rocketmq.consumer.engine.call_pool import CallPool
from pyspark_rocketmq.consumer.engine.concurrent import ConcurrentRun
from pyspark_rocketmq.errors import (
    BrokerError,
    ListenerError,
    RequestTimeout,
    RocketMQError,
    SchemaRegistryDown,
)
from pyspark_rocketmq.listeners import calls
from pyspark_rocketmq.listeners import event_loop as listener_loop
from pyspark_rocketmq.listeners.calls import (
    CallEnded,
    DaemonThreads,
    Event,
    ListenerWorkers,
    LoopWorkers,
    SendBackEnded,
    ThreadWorkers,
)
from pyspark_rocketmq.listeners.context import ConsumeConcurrentlyContext
from pyspark_rocketmq.listeners.event_loop import is_async, run_on_loop
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import (
    OPEN_END,
    ConsumeConcurrentlyStatus,
    MessageExt,
    MessageModel,
    MessageQueue,
    QueueRange,
    QueueState,
)
from pyspark_rocketmq.stored_values import trial_of
from tests.helpers.emitted import kept_rows
from tests.helpers.fake_clock import FakeClock
from tests.helpers.messages import QUEUE, message_at
from tests.helpers.range_instructions import GivenUpWhen
from tests.helpers.wait import PATIENCE_S, wait_until

SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER
OUTPUT = OutputColumns.of(StructType().add("name", "string"))

Listener = Callable[[Sequence[MessageExt], ConsumeConcurrentlyContext], Any]


class InlineWorkers(ListenerWorkers):
    """Does everything at once, in the caller's thread; where nothing is left to happen, time passes."""

    def __init__(self, clock: FakeClock, *, hangs: Callable[[int], bool] = lambda number: False) -> None:
        self._clock = clock
        self._hangs = hangs
        self._happened: deque[Event] = deque()
        self.abandoned: list[int] = []

    def call(self, number: int, invoke: Callable[[], object]) -> None:
        if self._hangs(number):
            return
        try:
            invoke()
            self._happened.append(CallEnded(number))
        except BaseException as error:  # noqa: BLE001 - as the real ones
            self._happened.append(CallEnded(number, failure=error))

    def abandon(self, number: int) -> None:
        self.abandoned.append(number)

    def send_back(self, indexes: Sequence[int], send: Callable[[int], None]) -> None:
        for index in indexes:
            try:
                send(index)
                self._happened.append(SendBackEnded(index))
            except Exception as error:  # noqa: BLE001 - as the real ones
                self._happened.append(SendBackEnded(index, error))

    def next_event(self, timeout_s: float | None) -> Event | None:
        if self._happened:
            return self._happened.popleft()
        assert timeout_s is not None, "The run waits for what never comes."
        self._clock.advance(timeout_s)
        return None

    def wake(self) -> None:
        pass

    def close(self) -> None:
        pass


class Broker:
    """Takes messages back, or refuses those at ``refused`` offsets as often as said."""

    def __init__(self, refused: dict[int, int] | None = None) -> None:
        self.taken: list[tuple[int, int, int]] = []
        """Queue offset, delay level, reconsume times."""
        self._refused = Counter(refused or {})

    def send_back(self, message: MessageExt, delay_level: int) -> None:
        if self._refused[message.queue_offset] > 0:
            self._refused[message.queue_offset] -= 1
            raise RequestTimeout("broker-a:1", "CONSUMER_SEND_MSG_BACK", 5.0)
        self.taken.append((message.queue_offset, delay_level, message.reconsume_times))


def run_of(
    listener: Listener,
    *,
    offsets: Sequence[int] = range(10, 20),
    planned: QueueRange | None = None,
    broker: Broker | None = None,
    workers: ListenerWorkers | None = None,
    clock: Clock | None = None,
    instructions: RangeInstructions = NO_INSTRUCTIONS,
    **settings: Any,
) -> ConcurrentRun:
    fake = FakeClock(1_000.0)
    return ConcurrentRun(
        planned or QueueRange.between(QUEUE, 10, 20, epoch=3),
        [message_at(offset) for offset in offsets],
        listener=listener,
        output=OUTPUT,
        settings=ConcurrentSettings(**settings),
        workers=workers or InlineWorkers(clock if isinstance(clock, FakeClock) else fake),
        pool=CallPool(settings.get("consume_thread_max", 20)),
        send_back=(broker or Broker()).send_back,
        clock=clock or fake,
        instructions=instructions,
    )


def emitting(status_of: Callable[[MessageExt], object], seen: list[int] | None = None) -> Listener:
    """Emits a row for each message and answers for the first one."""

    def listener(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
        for message in messages:
            if seen is not None:
                seen.append(message.queue_offset)
            context.emit(name=message.keys)
        return status_of(messages[0])

    return listener


def offsets_of(rows: Sequence[tuple[Any, ...]]) -> list[int]:
    return [row[0] for row in rows]


def test_every_message_is_delivered_once_and_the_whole_range_is_acknowledged() -> None:
    """E1, E6: offsets without a message are passed too; rows leave in queue order."""
    seen: list[int] = []
    run = run_of(emitting(lambda message: SUCCESS, seen), offsets=[10, 11, 14, 17])
    rows = kept_rows(run.consume())
    ack = run.ack()

    assert seen == [10, 11, 14, 17]
    assert rows == [(offset, f"key-{offset}") for offset in (10, 11, 14, 17)]
    assert (ack.start, ack.state.next_offset, ack.state.epoch, ack.consumed, ack.failed) == (10, 20, 3, 4, 0)
    assert (ack.finished, ack.state.suspended_until_s, ack.state.reconsume_times) == ("EXHAUSTED", None, 0)


def test_a_queue_that_is_taken_away_makes_no_further_delivery() -> None:
    """D7: what is with the listener is waited for."""
    seen: list[int] = []
    run = run_of(emitting(lambda _: SUCCESS, seen), instructions=GivenUpWhen(lambda: len(seen) >= 3))

    rows = kept_rows(run.consume())

    assert offsets_of(rows) == seen == [10, 11, 12]
    assert (run.ack().finished, run.ack().state.next_offset) == ("GIVEN_UP", 13)


@pytest.mark.parametrize("ahead_s", [2.0, 3600.0])
def test_an_open_range_begins_30_s_late_at_most_whatever_its_computers_clock_shows(ahead_s: float) -> None:
    """E4, I1: the time is the driver's, whose clock may differ, and clocks are set."""
    clock = FakeClock(1_000.0)
    began_s: list[float] = []

    def status_of(_: MessageExt) -> object:
        began_s.append(clock.monotonic_s())
        return SUCCESS

    planned = QueueRange.between(QUEUE, 10, OPEN_END, epoch=3)
    state = planned.state._replace(suspended_until_s=clock.now_s() + ahead_s)
    run_of(emitting(status_of), planned=replace(planned, state=state), offsets=[10], clock=clock).consume()

    assert began_s == [min(ahead_s, 30.0)]


def test_a_range_without_messages_is_acknowledged() -> None:
    """A4, E6."""
    run = run_of(emitting(lambda message: SUCCESS), offsets=[])

    assert run.consume() == []
    assert run.ack().state.next_offset == 20


@pytest.mark.parametrize("message_model", MessageModel)
def test_messages_wait_for_a_registry_that_is_away(message_model: MessageModel) -> None:
    """K4, E3, E5: none is sent back, dropped or counted; the run ends before the first one that waits."""
    broker = Broker()

    def status_of(message: MessageExt) -> object:
        if message.queue_offset in {12, 13}:
            raise SchemaRegistryDown("http://registry", "refused")
        return SUCCESS

    seen: list[int] = []
    run = run_of(emitting(status_of, seen), broker=broker, message_model=message_model, consume_thread_max=2)
    rows = kept_rows(run.consume())
    ack = run.ack()

    assert offsets_of(rows) == [10, 11]
    assert (ack.finished, ack.state.next_offset, ack.state.reconsume_times) == ("SUSPENDED", 12, 0)
    assert ack.state.suspended_until_s is not None
    assert broker.taken == []
    assert set(seen) <= {10, 11, 12, 13}
    assert "Schema registry http://registry" in (ack.last_error or "")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (LATER, None),
        (None, None),
        ("nonsense", "not a ConsumeConcurrentlyStatus"),
        (ValueError("bad"), "listener failed"),
    ],
)
def test_a_failed_message_is_sent_back_and_passed(
    answer: object, problem: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """E2, E3: whatever failing looks like; its rows are dropped,
    and the broker decides when it comes again.
    """
    broker = Broker()

    def status_of(message: MessageExt) -> object:
        if message.queue_offset != 12:
            return SUCCESS
        if isinstance(answer, Exception):
            raise answer
        return answer

    run = run_of(emitting(status_of), broker=broker)
    rows = kept_rows(run.consume())

    assert broker.taken == [(12, 0, 0)]
    assert offsets_of(rows) == [10, 11, 13, 14, 15, 16, 17, 18, 19]
    ack = run.ack()
    assert (ack.state.next_offset, ack.failed, ack.sent_back, ack.consumed) == (20, 1, 1, 10)
    assert problem is None or problem in caplog.text


def test_messages_after_the_ack_index_go_back_with_the_contexts_level() -> None:
    """E2, E3: rows of those before it leave."""
    broker = Broker()

    def listener(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
        for message in messages:
            context.emit(name=message.keys)
        if messages[0].queue_offset == 10:
            context.ack_index = 1
            context.delay_level_when_next_consume = -1
        return SUCCESS

    run = run_of(listener, broker=broker, consume_message_batch_max_size=4)
    rows = kept_rows(run.consume())

    assert broker.taken == [(12, -1, 0), (13, -1, 0)]
    assert offsets_of(rows) == [10, 11, 14, 15, 16, 17, 18, 19]


def test_a_message_that_could_not_be_sent_back_is_delivered_again_five_seconds_later() -> None:
    """E4: once more in this run, with one attempt more; the others are not delivered again."""
    clock = FakeClock(1_000.0)
    deliveries: list[tuple[int, int, float]] = []

    def listener(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
        (message,) = messages
        deliveries.append((message.queue_offset, message.reconsume_times, clock.monotonic_s()))
        context.emit(name=str(message.reconsume_times))
        return LATER if message.queue_offset == 12 and not message.reconsume_times else SUCCESS

    run = run_of(listener, broker=Broker({12: 1}), clock=clock)
    rows = kept_rows(run.consume())

    assert [delivery for delivery in deliveries if delivery[0] == 12] == [(12, 0, 0.0), (12, 1, 5.0)]
    assert len(deliveries) == 11
    assert rows[2] == (12, "1")
    ack = run.ack()
    assert (ack.state.next_offset, ack.refused_letter) == (20, "")


def test_a_message_that_cannot_be_sent_back_holds_the_offset_and_what_lies_above_it() -> None:
    """E4, E6: rows above it are given up, because their messages are delivered again."""
    run = run_of(
        emitting(lambda message: LATER if message.queue_offset == 12 else SUCCESS), broker=Broker({12: 9})
    )
    rows = kept_rows(run.consume())
    ack = run.ack()

    assert offsets_of(rows) == [10, 11]
    assert (ack.state.next_offset, ack.state.reconsume_times, ack.consumed) == (12, 2, 2)
    assert (ack.finished, ack.state.suspended_until_s) == ("SUSPENDED", 1_000.0 + 5.0 + 5.0)
    assert "queueOffset=12" in ack.refused_letter


def test_the_next_range_begins_with_only_the_held_message() -> None:
    """E4: while it cannot be sent back, nothing above it is delivered again."""
    seen: list[int] = []
    planned = QueueRange(QUEUE, QueueState(12, epoch=3, reconsume_times=2), 20)
    listener = emitting(lambda message: LATER if message.queue_offset == 12 else SUCCESS, seen)
    run = run_of(listener, planned=planned, offsets=range(12, 20), broker=Broker({12: 1}))
    run.consume()

    assert seen == [12]
    assert (run.ack().state.next_offset, run.ack().state.reconsume_times) == (12, 3)


def test_a_range_on_trial_begins_with_only_its_first_message_and_shows_no_attempt() -> None:
    """E4: the brokers, as the store, keep no attempts; the listener may not have been open before."""
    seen: list[tuple[int, int]] = []

    def listener(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
        seen.extend((message.queue_offset, message.reconsume_times) for message in messages)
        return LATER

    planned = QueueRange(QUEUE, QueueState(12, epoch=1, retry_counts=trial_of(12)), 20)
    run = run_of(listener, planned=planned, offsets=range(12, 20), broker=Broker({12: 1}))
    run.consume()

    assert seen == [(12, 0)]
    assert (run.ack().finished, run.ack().state.next_offset) == ("SUSPENDED", 12)


def test_rows_given_up_above_a_held_message_come_with_a_later_range() -> None:
    """H1, E4: over both runs each message's row leaves once."""
    broker = Broker({12: 2})
    listener = emitting(lambda message: LATER if message.queue_offset == 12 else SUCCESS)
    first = run_of(listener, broker=broker)
    rows = kept_rows(first.consume())
    held = first.ack()
    planned = QueueRange(
        QUEUE, QueueState(held.state.next_offset, epoch=3, reconsume_times=held.state.reconsume_times), 20
    )
    second = run_of(listener, planned=planned, offsets=range(12, 20), broker=broker)
    rows += kept_rows(second.consume())

    assert offsets_of(rows) == [10, 11, 13, 14, 15, 16, 17, 18, 19]
    assert second.ack().state.next_offset == 20
    assert broker.taken == [(12, 0, 2)]


def test_a_failed_message_is_dropped_in_broadcasting(caplog: pytest.LogCaptureFixture) -> None:
    """E5: and said so."""
    broker = Broker()
    run = run_of(
        emitting(lambda message: LATER if message.queue_offset == 12 else SUCCESS),
        broker=broker,
        message_model=MessageModel.BROADCASTING,
    )
    rows = kept_rows(run.consume())

    assert broker.taken == []
    assert 12 not in offsets_of(rows)
    assert run.ack().state.next_offset == 20
    assert "dropped topic=orders broker=broker-a queue=3 queueOffset=12" in caplog.text


@pytest.mark.parametrize("model", list(MessageModel))
def test_a_call_that_never_ends_does_not_hold_its_range(
    model: MessageModel, caplog: pytest.LogCaptureFixture
) -> None:
    """E7: its messages are sent back with level 3; in broadcasting they are dropped."""
    clock, broker = FakeClock(1_000.0), Broker()
    workers = InlineWorkers(clock, hangs=lambda number: number == 2)
    run = run_of(
        emitting(lambda message: SUCCESS), broker=broker, clock=clock, workers=workers, message_model=model
    )
    rows = kept_rows(run.consume())

    assert clock.monotonic_s() == 900.0
    assert broker.taken == ([(12, 3, 0)] if model is MessageModel.CLUSTERING else [])
    assert workers.abandoned == [2]
    assert offsets_of(rows) == [10, 11, 13, 14, 15, 16, 17, 18, 19]
    assert run.ack().state.next_offset == 20
    assert "1 listener calls have not returned" in caplog.text


def test_the_end_of_a_batch_waits_for_no_call_that_takes_too_long() -> None:
    """E7, I3: its messages are sent back, so the run ends without it."""
    clock, seen = FakeClock(1_000.0), []

    def listener(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
        for lasted_s in (1.0, 898.0, 1.0):
            clock.advance(lasted_s)
            seen.append(run.awaited_call_s())
        return SUCCESS

    run = run_of(listener, clock=clock, offsets=[10])
    run.consume()

    assert seen == [1.0, 899.0, None]
    assert run.awaited_call_s() is None


def test_a_run_whose_threads_are_all_lost_ends_with_what_is_done() -> None:
    """E7, E9: the rest is planned again, at once and from the first message not delivered."""
    clock = FakeClock(1_000.0)
    workers = InlineWorkers(clock, hangs=lambda number: number in {0, 3})
    run = run_of(emitting(lambda message: SUCCESS), clock=clock, workers=workers, consume_thread_max=2)
    rows = kept_rows(run.consume())

    assert offsets_of(rows) == [11, 12]
    assert (run.ack().state.next_offset, run.ack().finished) == (14, "THREADS_LOST")


def test_a_range_that_was_cut_short_before_its_first_message_may_go_on_at_once() -> None:
    """E6: to the planner it must not look like one that waits for more messages."""
    planned = QueueRange.between(QUEUE, 10, 10, epoch=3)
    run = run_of(emitting(lambda message: SUCCESS), planned=planned, offsets=[])
    run.consume()

    assert (run.ack().state.next_offset, run.ack().state.suspended_until_s) == (10, 1_000.0)


def test_an_expired_message_that_no_broker_takes_holds_the_offset() -> None:
    """E7, E4."""
    clock = FakeClock(1_000.0)
    workers = InlineWorkers(clock, hangs=lambda number: number == 0)
    run = run_of(emitting(lambda message: SUCCESS), clock=clock, workers=workers, broker=Broker({10: 9}))
    rows = kept_rows(run.consume())

    assert (rows, run.ack().state.next_offset, run.ack().finished) == ([], 10, "SUSPENDED")
    assert run.ack().state.suspended_until_s == clock.now_s() + 5.0


def test_a_long_run_yields_after_its_time() -> None:
    """E6: so that what is done is committed."""
    clock = FakeClock(1_000.0)

    def listener(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
        clock.advance(25.0)
        return SUCCESS

    run = run_of(listener, clock=clock, consume_thread_max=1)
    run.consume()

    assert (run.ack().state.next_offset, run.ack().finished) == (13, "SLICE_USED")


def test_the_context_names_the_queue_and_refuses_rows_it_cannot_place() -> None:
    """E2, H6: a row of nobody's message is the listener's failure, not the query's."""

    def listener(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
        assert context.message_queue == MessageQueue("orders", "broker-a", 3)
        context.emit(messages[0]._replace(queue_offset=99), name="x")
        return SUCCESS

    broker = Broker()
    run = run_of(listener, broker=broker, consume_message_batch_max_size=10)
    run.consume()

    assert len(broker.taken) == 10
    assert "Emit a row only with a message of the same delivery." in run.ack().last_error


@pytest.mark.parametrize("size", [1, 4])
def test_a_listener_may_take_its_messages_out_of_their_list(size: int) -> None:
    """E2: what it has consumed is done, as many as there were; none of it is sent back."""

    def listener(messages: list[MessageExt], context: ConsumeConcurrentlyContext) -> object:
        while messages:
            messages.pop(0)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    broker = Broker()
    run = run_of(listener, broker=broker, consume_message_batch_max_size=size)  # type: ignore[arg-type]
    run.consume()

    assert not broker.taken
    assert (run.ack().state.next_offset, run.ack().metrics.ok) == (20, 10)


@pytest.mark.parametrize("fatal", [SystemExit(1), KeyboardInterrupt()], ids=repr)
def test_a_listener_that_ends_its_process_costs_a_try_of_its_task(fatal: BaseException) -> None:
    """E2: nothing is passed."""

    def listener(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
        raise fatal

    with pytest.raises(ListenerError, match=f"raised {type(fatal).__name__}.*queueOffset=10"):
        run_of(listener).consume()


# --- with real threads and a real loop ----------------------------------------------------------------------


class Meeting:
    """Where calls that run at the same time wait for each other: threads, or coroutines of one loop."""

    def __init__(self, parties: int) -> None:
        self._barrier = threading.Barrier(parties)
        self._async_barrier = asyncio.Barrier(parties)
        self._threads: set[int] = set()

    def in_threads(self, messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
        self._barrier.wait(PATIENCE_S)
        context.emit(name=str(messages[0].queue_offset))
        return SUCCESS

    async def in_loop(self, messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
        async with asyncio.timeout(PATIENCE_S):
            await self._async_barrier.wait()
        context.emit(name=str(messages[0].queue_offset))
        return SUCCESS


def test_a_range_that_has_ended_leaves_the_loop_to_one_whose_call_blocks_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """E1: connections that the listener has opened on the loop would be useless on another one."""
    monkeypatch.setattr(calls, "_LOOP_END_S", 0.05)
    ended, other = LoopWorkers(), LoopWorkers()
    is_blocked, release = threading.Event(), threading.Event()

    async def quick() -> bool:
        return False

    async def blocking() -> bool:
        is_blocked.set()
        release.wait(PATIENCE_S)
        return False

    ended.call(1, quick)
    assert ended.next_event(PATIENCE_S) == CallEnded(1)
    loop = listener_loop.listener_loop()
    other.call(1, blocking)
    assert is_blocked.wait(PATIENCE_S)
    try:
        ended.close()
        assert listener_loop.listener_loop() is loop
    finally:
        release.set()
        other.close()


def test_a_call_that_is_abandoned_before_the_blocked_loop_begins_it_ends() -> None:
    """E7: otherwise its slot of the pool would never be free again."""
    workers = LoopWorkers()
    is_blocked, release = threading.Event(), threading.Event()

    async def blocking() -> bool:
        is_blocked.set()
        release.wait(PATIENCE_S)
        return False

    async def waiting() -> bool:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(2 * PATIENCE_S)
        return False

    workers.call(1, blocking)
    assert is_blocked.wait(PATIENCE_S)
    workers.call(2, waiting)
    workers.abandon(2)
    release.set()

    try:
        assert workers.next_event(PATIENCE_S) == CallEnded(1)
        assert workers.next_event(PATIENCE_S) == CallEnded(2)
    finally:
        workers.close()


@pytest.mark.parametrize("kind", ["in_threads", "in_loop"])
def test_as_many_calls_run_at_once_as_there_are_threads(kind: str) -> None:
    """E1: ten calls that wait for five; with fewer at once none would end."""
    listener = getattr(Meeting(5), kind)
    workers: ListenerWorkers = (
        LoopWorkers() if is_async(listener) else ThreadWorkers(DaemonThreads("calls", 5))
    )
    run = run_of(listener, workers=workers, clock=SystemClock(), consume_thread_max=5)
    try:
        rows = kept_rows(run.consume())
    finally:
        workers.close()

    assert [row[1] for row in rows] == [str(offset) for offset in range(10, 20)]
    assert run.ack().state.next_offset == 20


@pytest.mark.parametrize("kind", ["threads", "loop"])
def test_failures_and_send_backs_of_many_calls_at_once_lose_nothing(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """E1-E4, E9: a thousand messages over eight calls, every fifth fails, brokers take them all."""
    broker = Broker()

    def answer(message: MessageExt, context: ConsumeConcurrentlyContext) -> object:
        context.emit(name=message.keys)
        if message.queue_offset % 5 == 0:
            raise ValueError("every fifth")
        return SUCCESS

    def in_threads(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
        return answer(messages[0], context)

    async def in_loop(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
        await asyncio.sleep(0)
        return answer(messages[0], context)

    caplog.set_level(logging.CRITICAL, logger="pyspark_rocketmq.consumer.engine.concurrent")
    workers: ListenerWorkers = LoopWorkers() if kind == "loop" else ThreadWorkers(DaemonThreads("calls", 8))
    run = run_of(
        in_loop if kind == "loop" else in_threads,
        planned=QueueRange.between(QUEUE, 0, 1000, epoch=3),
        offsets=range(1000),
        broker=broker,
        workers=workers,
        clock=SystemClock(),
        consume_thread_max=8,
    )
    try:
        rows = kept_rows(run.consume())
    finally:
        workers.close()

    assert offsets_of(rows) == [offset for offset in range(1000) if offset % 5]
    assert sorted(taken[0] for taken in broker.taken) == list(range(0, 1000, 5))
    assert run.ack().state.next_offset == 1000


class OneHangs(ListenerWorkers):
    """Of workers' calls all but one have ended, in their threads or on the loop;
    then time passes as it is waited for.
    """

    def __init__(self, workers: ListenerWorkers, clock: FakeClock, calls: int) -> None:
        self._workers = workers
        self._clock = clock
        self._most = calls - 1
        self._ended: deque[int] = deque()
        """Settled where they ended, or reported."""

    def call(self, number: int, invoke: Callable[[], Any]) -> None:
        def noted(is_settled: bool) -> bool:
            self._ended.extend([number] * is_settled)
            return is_settled

        async def invoke_later() -> bool:
            return noted(await invoke())

        is_async = isinstance(self._workers, LoopWorkers)
        self._workers.call(number, invoke_later if is_async else lambda: noted(invoke()))

    def abandon(self, number: int) -> None:
        self._workers.abandon(number)

    def send_back(self, indexes: Sequence[int], send: Callable[[int], None]) -> None:
        self._workers.send_back(indexes, send)

    def wake(self) -> None:
        self._workers.wake()

    def close(self) -> None:
        self._workers.close()

    def next_event(self, timeout_s: float | None) -> Event | None:
        event = self._workers.next_event(0.01 if timeout_s else 0.0)
        if isinstance(event, CallEnded):
            self._ended.append(event.number)
        elif event is None and timeout_s and len(self._ended) == self._most:
            self._clock.advance(timeout_s)
        return event


@pytest.mark.parametrize("kind", ["threads", "loop"])
def test_a_hanging_call_is_given_up_in_time(kind: str) -> None:
    """E7: a coroutine is cancelled besides; a thread is left behind."""
    release, clock = threading.Event(), FakeClock(1_000.0)
    cancelled: list[int] = []

    def in_threads(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
        if messages[0].queue_offset == 13:
            release.wait(PATIENCE_S)
        return SUCCESS

    async def in_loop(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
        if messages[0].queue_offset == 13:
            try:
                await asyncio.sleep(PATIENCE_S)
            except asyncio.CancelledError:
                cancelled.append(13)
                raise
        return SUCCESS

    broker = Broker()
    workers: ListenerWorkers = LoopWorkers() if kind == "loop" else ThreadWorkers(DaemonThreads("calls", 4))
    run = run_of(
        in_loop if kind == "loop" else in_threads,
        broker=broker,
        workers=OneHangs(workers, clock, calls=10),
        clock=clock,
        consume_thread_max=4,
    )
    try:
        run.consume()
        wait_until(lambda: cancelled or kind == "threads", reason="The coroutine's end")
    finally:
        release.set()
        workers.close()

    assert clock.monotonic_s() == 900.0
    assert broker.taken == [(13, 3, 0)]
    assert run.ack().state.next_offset == 20
    assert cancelled == ([13] if kind == "loop" else [])


class CountedThreads(ThreadWorkers):
    """Shows when a call has ended, with all that comes of it in its thread."""

    def __init__(self, most_calls: int) -> None:
        super().__init__(DaemonThreads("calls", most_calls))
        self.ended = threading.Semaphore(0)

    def call(self, number: int, invoke: Callable[[], Any]) -> None:
        def counted() -> Any:
            is_settled = invoke()
            self.ended.release()
            return is_settled

        super().call(number, counted)


def test_calls_that_end_after_the_run_has_failed_deliver_nothing_more() -> None:
    """E1: four of ten messages were with the listener when it ended its task; the others stay."""
    seen: list[int] = []
    release = threading.Event()

    def listener(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
        seen.append(messages[0].queue_offset)
        if messages[0].queue_offset == 13:
            raise SystemExit
        release.wait(PATIENCE_S)
        return SUCCESS

    workers = CountedThreads(4)
    run = run_of(listener, workers=workers, clock=SystemClock(), consume_thread_max=4)
    with pytest.raises(ListenerError):
        run.consume()
    release.set()
    assert all(workers.ended.acquire(timeout=PATIENCE_S) for _ in range(3))
    workers.close()

    assert sorted(seen) == [10, 11, 12, 13]


def test_an_error_after_a_call_has_ended_fails_the_run() -> None:
    """E1: a delivery that cannot be made, here in a listener's thread, is not waited for."""

    class Unreadable(list[MessageExt]):
        def __getitem__(self, index: Any) -> Any:
            if index == slice(7, 8):
                raise MemoryError
            return super().__getitem__(index)

    workers = ThreadWorkers(DaemonThreads("calls", 2))
    clock = SystemClock()
    run = ConcurrentRun(
        QueueRange.between(QUEUE, 10, 20, epoch=3),
        Unreadable(message_at(offset) for offset in range(10, 20)),
        listener=emitting(lambda message: SUCCESS),
        output=OUTPUT,
        settings=ConcurrentSettings(consume_thread_max=2),
        workers=workers,
        pool=CallPool(2),
        send_back=Broker().send_back,
        clock=clock,
    )
    try:
        with pytest.raises(MemoryError):
            run.consume()
    finally:
        workers.close()


def test_the_listeners_loop_waits_no_longer_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """E1: epoll by itself would round each wait up to a whole millisecond."""
    waits: list[float] = []

    def noted(*files: Any) -> Any:
        waits.append(files[-1])
        return select.select(*files)

    async def sleep() -> None:
        # A loop that comes too late to a sleep does not wait at all.
        for _ in range(1000):
            await asyncio.sleep(0.0002)
            if waits:
                break

    monkeypatch.setattr(listener_loop, "select", SimpleNamespace(select=noted))
    run_on_loop(sleep, PATIENCE_S)

    assert any(0 < wait_s <= 0.0002 for wait_s in waits)


def test_objects_with_an_async_call_are_known() -> None:
    """E1: so that their calls are awaited."""

    class Asynchronous:
        async def __call__(self, messages: object, context: object) -> object:
            return SUCCESS

    class Plain:
        def __call__(self, messages: object, context: object) -> object:
            return SUCCESS

    assert is_async(Asynchronous())
    assert not is_async(Plain())
    assert not is_async(lambda messages, context: SUCCESS)


class SlowBroker(Broker):
    """Needs ``takes_s`` for each message, and then stores it or, if ``failure`` is given, does not answer."""

    def __init__(self, clock: FakeClock, takes_s: float, failure: RocketMQError | None = None) -> None:
        super().__init__()
        self.tried = 0
        self._clock, self._takes_s, self._failure = clock, takes_s, failure

    def send_back(self, message: MessageExt, delay_level: int) -> None:
        self.tried += 1
        self._clock.advance(self._takes_s)
        if self._failure is not None:
            raise self._failure
        super().send_back(message, delay_level)


def run_of_1024(
    broker: SlowBroker, clock: FakeClock, given_up_s: float = inf, *, at_once: int = 1024
) -> ConcurrentRun:
    return run_of(
        lambda messages, context: LATER,
        planned=QueueRange.between(QUEUE, 0, 1024, epoch=3),
        offsets=range(1024),
        broker=broker,
        clock=clock,
        instructions=GivenUpWhen(lambda: clock.monotonic_s() >= given_up_s),
        consume_message_batch_max_size=at_once,
    )


@pytest.mark.parametrize(("at_once", "counts"), [(1, "[[0,20,2],[20,1024,1]]"), (1024, "[[0,1024,2]]")])
def test_failed_messages_that_no_broker_takes_cost_one_timeout_a_try(at_once: int, counts: str) -> None:
    """E4: the other messages keep the offset as if they had been tried; with 1,024 it lasted 77 minutes."""
    clock = FakeClock(1_000.0)
    broker = SlowBroker(clock, 8.0, RequestTimeout("broker-a:1", "SEND_MESSAGE_V2", 3.0))
    run = run_of_1024(broker, clock, at_once=at_once)
    run.consume()
    ack = run.ack()

    assert (broker.tried, clock.monotonic_s()) == (2, 8.0 + 5.0 + 8.0)
    assert (ack.finished, ack.state.next_offset, ack.sent_back) == ("SUSPENDED", 0, 0)
    assert ack.state.retry_counts.to_text() == counts
    assert "queueOffset=0" in ack.refused_letter


def test_a_message_that_its_broker_refuses_does_not_hold_up_the_others() -> None:
    """E4: only this message's other way was silent; the broker may take the next message."""
    clock = FakeClock(1_000.0)
    failure = RequestTimeout("broker-b:1", "SEND_MESSAGE_V2", 3.0)
    failure.__cause__ = BrokerError(1, "look message by offset failed")
    broker = SlowBroker(clock, 0.0, failure)
    run_of_1024(broker, clock).consume()

    assert broker.tried == 2 * 1024


def test_a_given_up_queue_does_not_wait_until_a_slow_broker_has_taken_all_messages_back() -> None:
    """E4, E6: the offset stays at the first message that was not sent back."""
    clock = FakeClock(1_000.0)
    broker = SlowBroker(clock, 4.0)
    run = run_of_1024(broker, clock, given_up_s=6.0)
    run.consume()
    ack = run.ack()

    assert (broker.tried, clock.monotonic_s()) == (2, 8.0)
    assert (ack.finished, ack.state.next_offset, ack.sent_back) == ("GIVEN_UP", 2, 2)
    assert (ack.refused_letter, ack.last_error) == ("", "")


def test_a_given_up_queue_sends_its_failed_messages_back_to_a_broker_that_answers() -> None:
    """E3: their calls were answered before."""
    clock = FakeClock(1_000.0)
    run = run_of_1024(SlowBroker(clock, 0.001), clock, given_up_s=0.0005)
    run.consume()

    assert (run.ack().state.next_offset, run.ack().sent_back) == (1024, 1024)


def test_every_message_that_could_not_be_sent_back_keeps_its_count() -> None:
    """E4, E6: not only the first of them, whoever has the queue next."""
    attempts: list[tuple[int, int]] = []

    def listener(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
        (message,) = messages
        attempts.append((message.queue_offset, message.reconsume_times))
        return LATER if message.queue_offset in {12, 15} else SUCCESS

    run = run_of(listener, broker=Broker({12: 9, 15: 9}))
    run.consume()
    ack = run.ack()
    assert (ack.state.next_offset, ack.state.reconsume_times, ack.state.retry_counts.to_text()) == (
        12,
        2,
        "[[12,13,2],[15,16,2]]",
    )

    attempts.clear()
    planned = QueueRange(QUEUE, QueueState(12, epoch=4, retry_counts=ack.state.retry_counts), 20)
    run_of(listener, planned=planned, offsets=range(12, 20)).consume()

    assert {attempt for attempt in attempts if attempt[1]} == {(12, 2), (15, 2)}


def test_messages_are_counted_by_their_answers() -> None:
    """D11: as ``ConsumeMessageConcurrentlyService.processConsumeResult`` does, and the time of each call."""
    clock = FakeClock(1_000.0)

    def listener(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
        clock.advance(0.25)
        context.ack_index = 0
        return LATER if messages[0].queue_offset == 18 else SUCCESS

    run = run_of(listener, clock=clock, consume_message_batch_max_size=4)
    run.consume()

    assert run.ack().metrics == ConsumeMetrics(ok=2, failed=8, calls=3, call_ms=750.0)


class TakenMeanwhile(deque[None]):
    """Threads that are idle when a caller looks, and that another caller has taken when it takes one."""

    def __len__(self) -> int:
        return 1


def test_two_ranges_may_see_the_same_idle_thread() -> None:
    """E1: the second begins another thread, and its call is made."""
    threads = DaemonThreads("calls", 2)
    threads._idle = TakenMeanwhile()
    called = threading.Event()

    threads.run(called.set)

    assert called.wait(10)
    threads.close()
