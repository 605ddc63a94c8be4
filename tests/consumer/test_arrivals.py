"""The thread that reads a task's ranges, and an engine whose ranges arrive in pieces or have no end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from queue import SimpleQueue
from typing import Any

import pytest
from pyspark.sql.types import StructType

from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consume.orderly import OrderlySettings
from pyspark_rocketmq.consume.read_range import PullThresholds
from pyspark_rocketmq.consume.turns import RangeInstructions
from pyspark_rocketmq.consumer.engine.arrivals import Arrivals, ClosedSource, Source
from pyspark_rocketmq.consumer.engine.direct import OrderlyTask
from pyspark_rocketmq.consumer.engine.orderly import RangeConsumer
from pyspark_rocketmq.consumer.engine.output import Consumed
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import OPEN_END, ConsumeOrderlyStatus, MessageExt, MessageQueue, QueueRange
from pyspark_rocketmq.source.schema import Arrival, EndReason, RangeEnd
from tests.helpers.messages import QUEUE, message_at
from tests.helpers.open_source import OpenSource
from tests.helpers.wait import PATIENCE_S, wait_until

SUCCESS = ConsumeOrderlyStatus.SUCCESS
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
OTHER = MessageQueue("orders", "broker-a", 4)
PLANNED = QueueRange.between(QUEUE, 0, 9, epoch=1)
OPEN = QueueRange.between(QUEUE, 0, OPEN_END, epoch=1)


def piece(planned: QueueRange, *offsets: int, end: bool = False, nbytes: int = 0) -> Arrival:
    return Arrival(
        planned,
        [[message_at(offset, queue=planned.queue) for offset in offsets]],
        RangeEnd(planned=planned, rows=9) if end else None,
        nbytes=nbytes,
    )


class Reading:
    """Everything that a thread has handed over."""

    def __init__(self, source: Source) -> None:
        self.arrivals = Arrivals(source)
        self.pieces: list[Arrival] = []
        self.pauses = False
        self.over: SimpleQueue[BaseException | None] = SimpleQueue()

    def begin(self) -> None:
        self.arrivals.begin(self._arrived, self.over.put)

    def _arrived(self, pieces: Sequence[Arrival]) -> None:
        self.pieces += pieces
        if self.pauses:
            self.arrivals.pause()


def test_pieces_come_in_order_and_then_the_end() -> None:
    pieces = [piece(PLANNED, 1), piece(PLANNED, 2, end=True)]
    reading = Reading(ClosedSource([[each] for each in pieces]))
    reading.begin()

    assert reading.over.get(timeout=PATIENCE_S) is None
    assert reading.pieces == pieces
    reading.arrivals.end()


def test_an_error_of_the_source_or_of_the_engine_ends_the_thread() -> None:
    """H2"""

    def made() -> Iterator[list[Arrival]]:
        yield [piece(PLANNED, 1)]
        raise RocketMQError("the broker refuses")

    reading = Reading(ClosedSource(made()))
    reading.begin()
    assert str(reading.over.get(timeout=PATIENCE_S)) == "the broker refuses"

    over: SimpleQueue[BaseException | None] = SimpleQueue()
    Arrivals(ClosedSource([[piece(PLANNED, 1)]])).begin(lambda pieces: pieces[99], over.put)  # type: ignore[arg-type]
    assert isinstance(over.get(timeout=PATIENCE_S), IndexError)


def test_nothing_is_read_while_reading_pauses() -> None:
    """D13"""
    asked: list[int] = []

    def made() -> Iterator[list[Arrival]]:
        for number in range(3):
            asked.append(number)
            yield [piece(PLANNED, number)]

    reading = Reading(ClosedSource(made()))
    reading.pauses = True
    reading.begin()
    for count in (1, 2, 3):
        wait_until(lambda: len(reading.pieces) == count)  # noqa: B023 - used within the round
        assert asked == list(range(count))
        reading.arrivals.resume()

    assert reading.over.get(timeout=PATIENCE_S) is None


def test_the_end_closes_the_source_even_while_reading_pauses() -> None:
    closed = threading.Event()

    def made() -> Iterator[list[Arrival]]:
        try:
            yield [piece(PLANNED, 1)]
            yield [piece(PLANNED, 2)]
        finally:
            closed.set()

    class Closing(ClosedSource):
        def arrivals(self) -> Generator[Sequence[Arrival]]:
            with_end = made()
            try:
                yield from with_end
            finally:
                with_end.close()  # type: ignore[attr-defined]

    reading = Reading(Closing(()))
    reading.pauses = True
    reading.begin()
    wait_until(lambda: len(reading.pieces) == 1)
    reading.arrivals.end()

    assert closed.is_set()
    assert len(reading.pieces) == 1


class Orders(RangeInstructions):
    """Gives queues up when a test asks for it."""

    def __init__(self) -> None:
        self.given_up: set[MessageQueue] = set()

    def is_given_up(self, queue: MessageQueue) -> bool:
        return queue in self.given_up


class Task:
    """A task that runs in a thread."""

    def __init__(self, source: Source, listener: Callable[[MessageExt], Any], **settings: Any) -> None:
        self.orders = Orders()
        self.calls: list[tuple[int, int]] = []
        self.results: dict[MessageQueue, Consumed] = {}
        self.error: BaseException | None = None
        self._listener = listener
        consumer = RangeConsumer(
            self._call,
            OutputColumns.of(StructType().add("name", "string")),
            OrderlySettings(max_reconsume_times=-1),
        )
        self.task = OrderlyTask(source, consumer, self.orders, SystemClock(), **settings)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.results.update((each.ack.queue, each) for each in self.task.consumed())
        except RocketMQError as error:
            self.error = error

    def _call(self, messages: Sequence[MessageExt], context: Any) -> Any:
        context.suspend_current_queue_time_millis = 10
        self.calls += [(message.queue_id, message.queue_offset) for message in messages]
        context.emit(name=messages[0].keys)
        return self._listener(messages[0])


def test_messages_are_delivered_before_their_range_has_arrived() -> None:
    """D1: and the rest when it comes."""
    source = OpenSource()
    task = Task(source, lambda _: SUCCESS)
    task.start()
    source.send(Arrival(OPEN))
    source.send(piece(OPEN, 3, 5))
    wait_until(lambda: task.calls == [(3, 3), (3, 5)])
    source.send(Arrival(OPEN, reached=9))
    source.send(piece(OPEN, 9))
    wait_until(lambda: task.calls == [(3, 3), (3, 5), (3, 9)])
    task.orders.given_up.add(QUEUE)
    wait_until(lambda: source.left == [QUEUE])
    source.end()
    task.join()

    ack = task.results[QUEUE].ack
    assert (ack.start, ack.state.next_offset, ack.consumed, ack.read) == (0, 10, 3, 3)
    assert ack.finished == "GIVEN_UP"


def test_an_open_range_passes_offsets_without_messages() -> None:
    """A4: a filter may leave nothing for long."""
    source = OpenSource()
    task = Task(source, lambda _: SUCCESS)
    task.start()
    source.send(piece(OPEN, 3))
    source.send(Arrival(OPEN, reached=700))
    wait_until(lambda: task.calls == [(3, 3)])
    cut = wait_until_cut(task)
    while cut.ack.state.next_offset < 700:
        cut = wait_until_cut(task)
    task.orders.given_up.add(QUEUE)
    wait_until(lambda: source.left == [QUEUE])
    source.end()
    task.join()

    assert (task.results[QUEUE].ack.start, task.results[QUEUE].ack.state.next_offset) == (700, 700)


def wait_until_cut(task: Task) -> Consumed:
    (found,) = wait_until(lambda: task.task._cut().going_on)
    return found


def test_a_queue_with_too_many_messages_is_held_until_they_are_passed() -> None:
    """D13: pullThresholdForQueue; other queues go on."""
    source, may_go_on = OpenSource(), threading.Event()

    def listener(message: MessageExt) -> Any:
        if message.queue_id == QUEUE.queue_id:
            assert may_go_on.wait(PATIENCE_S)
        return SUCCESS

    task = Task(source, listener, most_held=3)
    task.start()
    other = QueueRange.between(OTHER, 0, OPEN_END, epoch=1)
    source.send(piece(OPEN, 0, 1, 2), piece(other, 0, 1))
    wait_until(lambda: source.held == {QUEUE} and (4, 1) in task.calls)
    may_go_on.set()
    wait_until(lambda: not source.held)
    task.orders.given_up |= {QUEUE, OTHER}
    wait_until(lambda: len(source.left) == 2)
    source.end()
    task.join()

    assert {each.ack.state.next_offset for each in task.results.values()} == {3, 2}


def test_a_queue_whose_last_piece_is_too_large_is_read_again_once_it_is_passed() -> None:
    """D13: an open range keeps its newest piece, however large."""
    source = OpenSource()
    task = Task(source, lambda _: SUCCESS)
    task.start()
    source.send(piece(OPEN, 0, 1, nbytes=1 << 30))
    wait_until(lambda: len(task.calls) == 2)
    wait_until(lambda: not source.held)
    assert source.was_held
    task.orders.given_up.add(QUEUE)
    wait_until(lambda: len(source.left) == 1)
    source.end()
    task.join()


class Accumulating(Task):
    """A task whose listener commits when it has had so many messages."""

    def __init__(self, source: Source, every: int, **settings: Any) -> None:
        super().__init__(source, lambda _: SUCCESS, **settings)
        self._every = every

    def _call(self, messages: Sequence[MessageExt], context: Any) -> Any:
        super()._call(messages, context)
        context.auto_commit = False
        has_all = context.accumulated + len(messages) >= self._every
        return ConsumeOrderlyStatus.COMMIT if has_all else SUCCESS


def send_in_pieces(task: Task, source: OpenSource, count: int, **facts: Any) -> None:
    """Send messages as the reader does, which sends none while the queue is held."""
    for offset in range(0, count, 2):
        wait_until(lambda: not source.held)
        source.send(piece(OPEN, offset, offset + 1, **facts))
        wait_until(lambda: len(task.calls) == offset + 2)  # noqa: B023 - used within the round


def ended(task: Task, source: OpenSource) -> int:
    """Give the queue up; return the offset that was committed last."""
    task.orders.given_up.add(QUEUE)
    wait_until(lambda: len(source.left) == 1)
    source.end()
    task.join()
    return task.results[QUEUE].ack.state.next_offset


def test_a_listener_gets_messages_until_it_commits_however_many_it_has_had() -> None:
    """D4, D13: what waits for a COMMIT does not keep the queue from being read."""
    source = OpenSource()
    task = Accumulating(source, 20, most_held=4)
    task.start()

    send_in_pieces(task, source, 30, nbytes=30 << 20)
    assert source.was_held
    assert ended(task, source) == 20


@pytest.mark.parametrize(
    ("thresholds", "option"),
    [
        (PullThresholds(messages=6), "pullThresholdForQueue"),
        (PullThresholds(body_bytes=6 * len(b"body-0")), "pullThresholdSizeForQueue"),
    ],
)
def test_a_queue_is_blocked_where_an_option_allows_no_more_messages_without_a_commit(
    thresholds: PullThresholds, option: str, caplog: pytest.LogCaptureFixture
) -> None:
    """D4, D13: which is reported; a listener that commits in time is read on."""
    source = OpenSource()
    source.thresholds = thresholds
    blocked = Accumulating(source, 8)
    blocked.start()
    send_in_pieces(blocked, source, 6)
    wait_until(lambda: source.held and "the queue is blocked" in caplog.text)
    assert ended(blocked, source) == 0
    assert f"has had 6 messages without a COMMIT, and {option} allows no more" in caplog.text
    assert caplog.text.count("the queue is blocked") == 1

    source = OpenSource()
    source.thresholds = thresholds
    task = Accumulating(source, 5)
    task.start()
    send_in_pieces(task, source, 30)
    assert ended(task, source) == 30
    assert caplog.text.count("the queue is blocked") == 1


def test_an_open_range_that_is_suspended_goes_on_however_little_memory_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """D3, I3: another plan would have to begin it again."""
    monkeypatch.setattr("pyspark_rocketmq.consumer.engine.direct.SHORT_OF_MEMORY_BYTES", 2)
    monkeypatch.setattr("pyspark_rocketmq.consumer.engine.direct.OUT_OF_MEMORY_BYTES", 4)
    source, may_succeed = OpenSource(), threading.Event()
    task = Task(source, lambda _: SUCCESS if may_succeed.is_set() else SUSPEND)
    task.start()
    source.send(piece(OPEN, 0, nbytes=9))
    wait_until(lambda: len(task.calls) > 2)
    may_succeed.set()

    assert source.left == []
    wait_until_committed(task, 1)
    assert ended(task, source) == 1


def wait_until_committed(task: Task, offset: int) -> None:
    while wait_until_cut(task).ack.state.next_offset < offset:
        pass


def test_an_open_range_may_begin_suspended_and_be_given_up_before_it_begins() -> None:
    """D3, D7"""
    until_s = SystemClock().now_s() + 60.0
    suspended = QueueRange(QUEUE, OPEN.state._replace(suspended_until_s=until_s), OPEN_END)
    source = OpenSource()
    task = Task(source, lambda _: SUCCESS)
    task.start()
    source.send(piece(suspended, 0, 1))
    source.send(piece(QueueRange.between(OTHER, 0, OPEN_END, epoch=1), 0))
    wait_until(lambda: task.calls == [(4, 0)])
    task.orders.given_up |= {QUEUE, OTHER}
    wait_until(lambda: len(source.left) == 2)
    source.end()
    task.join()

    assert (task.results[QUEUE].ack.counts, task.results[QUEUE].ack.state.next_offset) == (False, 0)
    assert task.calls == [(4, 0)]


def test_a_queue_that_is_suspended_gets_what_has_arrived_meanwhile() -> None:
    """D1, D3: in order."""
    failed = threading.Event()

    def pieces() -> Iterator[list[Arrival]]:
        yield [piece(PLANNED, 0)]
        assert failed.wait(PATIENCE_S)
        yield [piece(PLANNED, 1, 2, end=True)]

    def listener(message: MessageExt) -> Any:
        if message.queue_offset or failed.is_set():
            return SUCCESS
        failed.set()
        return SUSPEND

    task = Task(ClosedSource(pieces()), listener)
    task.start()
    task.join()

    # The only queue of a task does not come again if everything had arrived when it was suspended.
    assert task.calls in ([(3, 0)], [(3, 0), (3, 0), (3, 1), (3, 2)])
    assert task.results[QUEUE].ack.read == 3


def test_what_arrives_of_a_range_that_has_ended_is_dropped() -> None:
    """D7: it was given up, and the next owner reads it."""
    ended = threading.Event()

    def pieces() -> Iterator[list[Arrival]]:
        yield [piece(PLANNED, 0)]
        wait_until(lambda: len(task.calls) == 1)
        task.orders.given_up.add(QUEUE)
        assert ended.wait(PATIENCE_S)
        yield [piece(PLANNED, 1), piece(QueueRange.between(OTHER, 0, 9, epoch=1), 0, end=True)]
        yield [piece(PLANNED, 2, end=True)]

    class Left(ClosedSource):
        def leave(self, queue: MessageQueue) -> None:
            ended.set()

    task = Task(Left(pieces()), lambda _: SUCCESS)
    task.start()
    task.join()

    assert sorted(task.calls) == [(3, 0), (4, 0)]
    assert task.results[QUEUE].ack.state.next_offset == 1
    assert task.results[OTHER].ack.state.next_offset == 9


@pytest.mark.parametrize("is_ended", [False, True])
def test_a_second_range_of_a_queue_is_refused(is_ended: bool) -> None:
    """D1"""
    called = threading.Event()

    def pieces() -> Iterator[list[Arrival]]:
        yield [piece(PLANNED, 0, end=True)]
        assert not is_ended or called.wait(PATIENCE_S)
        yield [piece(PLANNED, 0, end=True)]

    def listener(message: MessageExt) -> Any:
        called.set()
        return SUCCESS

    task = Task(ClosedSource(pieces()), listener)
    task.start()
    task.join()

    assert "a task got two ranges of this queue in one batch" in str(task.error)


def test_a_source_that_forgets_an_end_is_an_error() -> None:
    task = Task(ClosedSource([[piece(PLANNED, 0)]]), lambda _: SUCCESS)
    task.start()
    task.join()

    assert "reading stopped before the end of the range was reached" in str(task.error)


def test_a_range_that_ends_early_is_acknowledged_up_to_there() -> None:
    end = RangeEnd(planned=QueueRange.between(QUEUE, 0, 4, epoch=1), rows=1, reason=EndReason.REFUSED)
    task = Task(ClosedSource([[piece(PLANNED, 0)], [Arrival(PLANNED, end=end)]]), lambda _: SUCCESS)
    task.start()
    task.join()

    ack = task.results[QUEUE].ack
    assert (ack.state.next_offset, ack.finished) == (4, "EXHAUSTED")
    assert ack.state.suspended_until_s is not None


def test_memory_is_that_of_messages_that_are_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """D3, D13: a long range is read on while its beginning is released."""
    monkeypatch.setattr("pyspark_rocketmq.consumer.engine.direct.SHORT_OF_MEMORY_BYTES", 2)
    monkeypatch.setattr("pyspark_rocketmq.consumer.engine.direct.OUT_OF_MEMORY_BYTES", 4)
    ahead: list[int] = []

    def pieces() -> Iterator[list[Arrival]]:
        for number in range(50):
            ahead.append(number - len(task.calls))
            yield [piece(PLANNED, number, end=number == 49, nbytes=1)]

    task = Task(ClosedSource(pieces()), lambda _: SUCCESS)
    task.start()
    task.join()

    assert [offset for _, offset in task.calls] == list(range(50))
    assert max(ahead) <= 4
