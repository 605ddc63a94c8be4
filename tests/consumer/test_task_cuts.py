"""A task whose driver asks for cuts: the parts that it answers with, and what is left for its end."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pyspark_rocketmq.client.producer.send_back import SendBackSettings
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consume.concurrent import ConcurrentSettings
from pyspark_rocketmq.consume.cuts import Place
from pyspark_rocketmq.consume.orderly import OrderlySettings
from pyspark_rocketmq.consume.part import Part, QueueAck
from pyspark_rocketmq.consumer.engine.arrivals import ClosedSource
from pyspark_rocketmq.consumer.engine.concurrent import ConcurrentEngine
from pyspark_rocketmq.consumer.engine.direct import OrderlyTask
from pyspark_rocketmq.consumer.engine.landing import LandingTask
from pyspark_rocketmq.consumer.engine.orderly import RangeConsumer
from pyspark_rocketmq.consumer.engine.output import Consumed, CutTogether
from pyspark_rocketmq.consumer.engine.range import RangeCuts
from pyspark_rocketmq.consumer.engine.task import _MOST_ROW_BYTES, TaskParts
from pyspark_rocketmq.consumer.message_columns import MessageColumns
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.hub import task_end
from pyspark_rocketmq.hub.messages import (
    CutWanted,
    FromTask,
    GiveUpQueues,
    NothingToCut,
    PartHandedOver,
    PartsCommitted,
    PartTaken,
    QueuesReleased,
    QueueStands,
    TaskDirty,
    TaskDone,
    TaskMayBegin,
)
from pyspark_rocketmq.hub.task_end import TaskControl
from pyspark_rocketmq.listeners.context import ConsumeConcurrentlyContext, ConsumeOrderlyContext
from pyspark_rocketmq.listeners.forms import form_of
from pyspark_rocketmq.listeners.row_validation import OutputColumns, RowColumns
from pyspark_rocketmq.model import (
    OPEN_END,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    MessageExt,
    MessageQueue,
    QueueRange,
    QueueState,
)
from pyspark_rocketmq.sinks.database_batch import CollectedRows, RowCollector
from pyspark_rocketmq.source.schema import Arrival
from pyspark_rocketmq.wire.columnar.decode import rows_of as messages_of
from pyspark_rocketmq.wire.columnar.schema import POSITION_FIELDS
from tests.consumer.test_orderly_task import range_of
from tests.consumer.test_task_parts import Lines, rows_of
from tests.helpers.messages import QUEUE, message_at
from tests.helpers.open_source import OpenSource
from tests.helpers.source_rows import source_in_pieces
from tests.helpers.wait import PATIENCE_S, wait_until

A, B, C = (MessageQueue("T", "broker-a", number) for number in range(3))
BOTH = frozenset({A, B})


class Connection:
    """Plays the connection to the driver, which takes every part; a test commits them."""

    def __init__(self) -> None:
        self.sent: list[FromTask] = []
        self.place = "driver:1"
        self.is_lost = False
        self.number = 1
        self.confirms = True
        self.task: TaskControl | None = None
        self._changed = threading.Condition()

    def send(self, message: FromTask) -> None:
        with self._changed:
            self.sent.append(message)
            self._changed.notify_all()
        if isinstance(message, PartHandedOver) and self.confirms:
            assert self.task is not None
            # Not by the sender's thread, which may hold a lock.
            taken = PartTaken(message.task, message.part.id)
            threading.Thread(target=self.task.receive, args=[taken], daemon=True).start()

    def forget(self, _: TaskControl) -> None:
        pass

    def messages(self, kind: type[Any]) -> list[Any]:
        return [each for each in self.sent if isinstance(each, kind)]


class Task:
    """A task with the ranges that a test gives it."""

    def __init__(
        self, *, writer: Lines | None = None, is_cut: bool = True, open_for_s: float | None = None
    ) -> None:
        self.connection = Connection()
        places = dict.fromkeys((A, B, C), Place(1, 0))
        self.control = TaskControl(
            self.connection,  # type: ignore[arg-type]
            places,
            is_cut=is_cut,
            open_for_s=open_for_s,
        )
        self.connection.task = self.control
        if open_for_s is not None:
            self.control.ask(7, 0, attempt=0, tasks=1)
            self.control.receive(TaskMayBegin(self.control.id, frozenset(), is_stopped=False))
        self.parts = TaskParts(writer or Lines(), self.control)
        self.ranges = RangeCuts()
        self.control.cut_with(self._take)

    def _take(self) -> RangeCuts:
        ranges, self.ranges = self.ranges, RangeCuts()
        return ranges

    def settles(self, *, ended: Sequence[Consumed] = (), going_on: Sequence[Consumed] = ()) -> None:
        self.ranges = RangeCuts(ended, going_on)
        self.control.settled()

    def cut(self, number: int) -> PartHandedOver | None:
        """Ask for a cut, and wait for the answer."""
        self.control.receive(CutWanted(self.control.id, number))
        wait_until(lambda: self.answers(number))
        [answer] = self.answers(number)
        return answer if isinstance(answer, PartHandedOver) else None

    def answers(self, number: int) -> list[Any]:
        answers = self.connection.messages(PartHandedOver) + self.connection.messages(NothingToCut)
        return [each for each in answers if each.cut == number]

    def is_committed(self, *parts: PartHandedOver) -> None:
        ids = frozenset(each.part.id for each in parts)
        self.control.receive(PartsCommitted(self.control.id, ids))

    def gives_up(self, *queues: MessageQueue, is_dropped: bool = False) -> None:
        self.control.receive(GiveUpQueues(self.control.id, frozenset(queues), is_dropped))

    @property
    def dirty_reports(self) -> int:
        return len(self.connection.messages(TaskDirty))


def consumed(queue: MessageQueue, start: int, end: int, *, finished: str = "GOING_ON") -> Consumed:
    ack = QueueAck(
        queue=queue,
        start=start,
        state=QueueState(end, 1),
        consumed=end - start,
        failed=0,
        finished=finished,
    )
    columns = RowColumns(StructType().add("queueOffset", "long"))
    return Consumed([(offset,) for offset in range(start, end)], ack, columns)


def spans(part: Part) -> list[tuple[MessageQueue, int, int]]:
    return [(ack.queue, ack.start, ack.state.next_offset) for ack in part.acks]


def test_a_cut_is_answered_with_all_that_is_settled_and_names_the_queues_that_end() -> None:
    """H1"""
    task = Task()
    task.parts.add(consumed(A, 0, 2))
    task.settles(ended=[consumed(B, 0, 1)], going_on=[consumed(C, 0, 2)])
    answer = task.cut(7)

    assert answer is not None
    assert (spans(answer.part), answer.ends) == ([(A, 0, 2), (B, 0, 1), (C, 0, 2)], BOTH)
    assert rows_of(answer.part) == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1)]
    assert task.dirty_reports == 1


def test_a_clean_task_answers_at_once_that_there_is_nothing_to_cut() -> None:
    task = Task()
    assert task.cut(1) is None
    task.settles(going_on=[consumed(A, 0, 1)])
    assert task.cut(2) is not None
    assert task.cut(3) is None


def test_a_task_that_was_dirty_for_nothing_answers_that_there_is_nothing() -> None:
    task, writer = Task(), Lines()
    task.parts = TaskParts(writer, task.control)
    task.control.settled()
    assert task.cut(1) is None
    assert writer.abandoned == 1


def test_no_cut_is_made_while_two_parts_are_not_committed() -> None:
    """H1: the rows wait in the task."""
    task = Task()
    parts: list[PartHandedOver] = []
    for number in (1, 2):
        task.settles(going_on=[consumed(A, number, number + 1)])
        answer = task.cut(number)
        assert answer is not None
        parts.append(answer)
    task.settles(going_on=[consumed(A, 3, 4)])
    assert task.dirty_reports == 2
    assert task.cut(3) is None

    task.is_committed(parts[0])
    assert task.dirty_reports == 3
    answer = task.cut(4)
    assert answer is not None
    assert spans(answer.part) == [(A, 3, 4)]


def test_what_is_given_up_while_a_cut_is_written_leaves_after_it() -> None:
    """B5, H1: the parts of a queue reach the driver in order."""
    writer = Lines()
    task = Task(writer=writer)
    writer.slow = threading.Event()
    task.settles(going_on=[consumed(A, 0, 2)])
    task.control.receive(CutWanted(task.control.id, 1))
    assert writer.is_writing.wait(PATIENCE_S)
    task.gives_up(A)
    assert task.control.take(consumed(A, 2, 3, finished="GIVEN_UP"))
    assert task.connection.messages(PartHandedOver) == []
    writer.slow.set()

    assert task.parts.finish() == []
    cut, given_up = task.connection.messages(PartHandedOver)
    assert (spans(cut.part), cut.ends, cut.cut) == ([(A, 0, 2)], frozenset(), 1)
    assert (spans(given_up.part), given_up.ends, given_up.cut) == ([(A, 2, 3)], {A}, None)


def test_a_queue_given_up_without_more_after_its_cut_is_just_let_go() -> None:
    """B5"""
    task = Task()
    task.settles(going_on=[consumed(A, 0, 2)])
    assert task.cut(1) is not None
    task.gives_up(A)
    task.settles(ended=[consumed(A, 2, 2)])
    assert task.cut(2) is None
    assert [each.queues for each in task.connection.messages(QueuesReleased)] == [{A}, {A}]


def test_nothing_of_a_queue_that_was_reset_is_in_a_cut() -> None:
    """F5"""
    task = Task()
    assert task.control.begins(A)
    task.gives_up(A, is_dropped=True)
    task.settles(going_on=[consumed(A, 0, 2), consumed(B, 0, 1)])
    answer = task.cut(1)
    assert answer is not None
    assert spans(answer.part) == [(B, 0, 1)]


def test_the_rest_is_handed_over_at_the_end_of_the_task() -> None:
    task = Task()
    task.settles(going_on=[consumed(A, 0, 2)])
    assert task.cut(1) is not None
    for queue in (A, B):
        task.parts.add(consumed(queue, 2, 3, finished="EXHAUSTED"))

    assert task.parts.finish() == []
    _, last = task.connection.messages(PartHandedOver)
    assert (spans(last.part), last.ends, last.cut) == ([(A, 2, 3), (B, 2, 3)], BOTH, None)
    assert task.connection.messages(TaskDone) == [TaskDone(task.control.id, None)]
    assert task.cut(2) is None


def test_without_cuts_the_rest_comes_with_the_job() -> None:
    task = Task(is_cut=False)
    task.parts.add(consumed(A, 0, 2, finished="EXHAUSTED"))
    [part] = task.parts.finish()
    assert task.connection.sent == [TaskDone(task.control.id, part)]


def test_what_cannot_be_handed_over_comes_with_the_job_as_one_part(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """H1: and so does all that follows; a hole in the middle could not be filled."""
    task = Task()
    task.settles(going_on=[consumed(A, 0, 2)])
    assert task.cut(1) is not None
    task.connection.is_lost = True
    task.settles(going_on=[consumed(A, 2, 3)])
    assert task.cut(2) is None
    task.connection.is_lost = False
    task.settles(going_on=[consumed(B, 0, 1)])
    assert task.cut(3) is None
    task.parts.add(consumed(A, 3, 5, finished="EXHAUSTED"))

    [part] = task.parts.finish()
    assert spans(part) == [(A, 2, 5)]
    assert rows_of(part) == [(0, 2), (0, 3), (0, 4)]
    assert part.emitted == 3
    assert caplog.text.count("committed at the batch's end queues=1") == 1
    assert task.connection.messages(TaskDone) == [TaskDone(task.control.id, None)]


def test_a_part_whose_arrival_is_not_known_fails_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """H1"""
    monkeypatch.setattr("pyspark_rocketmq.hub.task_end._TAKEN_S", 0.01)
    task = Task()
    task.connection.confirms = False
    task.settles(going_on=[consumed(A, 0, 2)])
    assert task.cut(1) is not None
    with pytest.raises(RocketMQError, match="has not confirmed 1 part of this task's result"):
        task.parts.finish()


class FullDisk(Lines):
    def open(self) -> Any:
        writing = super().open()
        writing.finish = self._fail
        return writing

    def _fail(self) -> Any:
        raise OSError("disk full")


def test_a_cut_that_cannot_be_written_ends_the_task_after_the_running_call() -> None:
    writer = FullDisk()
    task = Task(writer=writer)
    task.settles(going_on=[consumed(A, 0, 2)])
    task.control.receive(CutWanted(task.control.id, 1))
    wait_until(lambda: task.control.is_given_up(B))
    with pytest.raises(OSError, match="disk full"):
        task.parts.add(consumed(B, 0, 2))
    assert writer.abandoned == 1
    with pytest.raises(OSError, match="disk full"):
        task.parts.finish()
    task.parts.abandon()
    assert writer.abandoned == 2


def test_a_task_that_has_failed_hands_nothing_over_any_more() -> None:
    """H1"""
    writer = Lines()
    task = Task(writer=writer)
    writer.slow = threading.Event()
    task.settles(going_on=[consumed(A, 0, 2)])
    task.control.receive(CutWanted(task.control.id, 1))
    assert writer.is_writing.wait(PATIENCE_S)
    task.control.receive(GiveUpQueues(task.control.id, frozenset({B}), is_dropped=False))
    assert task.control.take(consumed(B, 0, 2))
    task.parts.abandon()
    writer.slow.set()
    assert task.parts._cut_thread.thread is not None
    task.parts._cut_thread.thread.join(PATIENCE_S)
    assert [spans(each.part) for each in task.connection.messages(PartHandedOver)] == [[(A, 0, 2)]]
    task.settles(going_on=[consumed(A, 2, 3)])
    assert task.cut(2) is None


# --- with the engine -------------------------------------------------------------------------------------


class Asking:
    """Plays a driver that asks for cuts, confirms and commits whenever it likes, until the task is over."""

    def __init__(self, task: Task, draw: random.Random) -> None:
        self._task, self._draw = task, draw
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number, committed = 0, 0
        while not self._is_over.wait(self._draw.choice([0.0, 0.001, 0.003])):
            number += 1
            self._task.control.receive(CutWanted(self._task.control.id, number))
            handed = self._task.connection.messages(PartHandedOver)
            if committed < len(handed) and self._draw.random() < 0.7:
                self._task.is_committed(*handed[committed:])
                committed = len(handed)

    def end(self) -> None:
        self._is_over.set()
        self._thread.join(PATIENCE_S)


def emitting(answer: Callable[[MessageExt], Any]) -> Any:
    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> Any:
        [message] = messages
        context.emit(name=message.keys)
        context.suspend_current_queue_time_millis = 10
        return answer(message)

    return listener


def drawn_answers(draw: random.Random) -> Callable[[MessageExt], Any]:
    guard = threading.Lock()

    def answer(message: MessageExt) -> Any:
        with guard:
            slow_s, is_failure = draw.choice([0.0, 0.0, 0.0, 0.002]), draw.random() < 0.1
        time.sleep(slow_s)
        if is_failure and message.reconsume_times < 2:
            return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        return ConsumeOrderlyStatus.SUCCESS

    return answer


def source(counts: Mapping[MessageQueue, int], draw: random.Random) -> ClosedSource:
    return source_in_pieces(draw, [range_of(queue, count) for queue, count in counts.items()])


def orderly(task: Task, counts: Mapping[MessageQueue, int], draw: random.Random) -> Iterator[Consumed]:
    return OrderlyTask(
        source(counts, draw),
        RangeConsumer(
            emitting(drawn_answers(draw)),
            OutputColumns.of(StructType().add("name", "string")),
            OrderlySettings(max_reconsume_times=-1),
        ),
        task.control,
        SystemClock(),
        give_away=task.control.take,
    ).consumed()


def concurrent(task: Task, counts: Mapping[MessageQueue, int], draw: random.Random) -> Iterator[Consumed]:
    slow = [draw.choice([0.0, 0.0, 0.002]) for _ in range(100)]

    def listener(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> Any:
        for message in messages:
            context.emit(name=message.keys)
        time.sleep(slow[messages[0].queue_offset])
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    engine = ConcurrentEngine(
        form_of(listener, orderly=False),
        StructType().add("name", "string"),
        ConcurrentSettings(consume_thread_max=4),
        SendBackSettings(name_servers=("127.0.0.1:1",), consumer_group="billing"),
    )
    return engine(source(counts, draw), task.control)


Consume = Callable[[Task, Mapping[MessageQueue, int], random.Random], Iterator[Consumed]]


def run_cut(consume: Consume, seed: int) -> list[Part]:
    """Consume ranges with an engine while cuts come at any time; return all parts of the task."""
    draw = random.Random(seed)
    task = Task()
    counts = {queue: draw.randint(0, 60) for queue in (A, B, C)}
    asking = Asking(task, random.Random(seed))
    try:
        if draw.random() < 0.5:
            threading.Timer(0.01, task.gives_up, [draw.choice([A, B, C])]).start()
        for result in consume(task, counts, draw):
            task.parts.add(result)
        assert task.parts.finish() == []
        return [each.part for each in task.connection.messages(PartHandedOver)]
    finally:
        asking.end()


@pytest.mark.timeout(10 * PATIENCE_S)
@pytest.mark.parametrize("consume", [orderly, concurrent])
def test_whenever_cuts_come_the_parts_of_each_queue_follow_one_another(consume: Consume) -> None:
    """D1, D3, E6, H1: and each row is in one of them, in order."""
    seed, cuts = random.SystemRandom().getrandbits(32), 0
    for each in range(seed, seed + 30):
        parts = run_cut(consume, each)
        cuts += len(parts)
        chains: dict[MessageQueue, list[QueueAck]] = defaultdict(list)
        for part in parts:
            for ack in part.acks:
                chains[ack.queue].append(ack)
        rows = [row for part in parts for row in rows_of(part)]
        for queue, acks in chains.items():
            assert acks[0].start == 0, f"seed {each}"
            assert all(before.state.next_offset == after.start for before, after in pairwise(acks)), (
                f"seed {each}: {acks}"
            )
            mine = [offset for queue_id, offset in rows if queue_id == queue.queue_id]
            assert mine == list(range(acks[-1].state.next_offset)), f"seed {each}"
    assert cuts > 60


class SentLines(Lines):
    """Rows that travel within the parts."""

    sends_rows = True


_FULL = _MOST_ROW_BYTES


def test_rows_that_travel_within_the_parts_are_cut_without_being_asked() -> None:
    """H1: a line of the connection is bounded."""
    task = Task(writer=SentLines(), open_for_s=300.0)
    assert task.control.counts_rows()
    task.settles(going_on=[consumed(A, 0, 2)])
    task.control.rows_grew(_FULL - 1)
    assert not task.control.is_paused()
    task.control.rows_grew(1)

    wait_until(lambda: task.connection.messages(PartHandedOver))
    [handed] = task.connection.messages(PartHandedOver)
    assert (spans(handed.part), handed.cut, handed.ends) == ([(A, 0, 2)], None, frozenset())
    assert not task.control.is_paused()


def test_a_task_holds_while_its_rows_wait_for_the_commit_of_two_parts() -> None:
    """H1"""
    task = Task(writer=SentLines(), open_for_s=300.0)
    pauses: list[bool] = []
    task.control.notifies(lambda: pauses.append(task.control.is_paused()))
    parts: list[PartHandedOver] = []
    for number in (1, 2):
        task.settles(going_on=[consumed(A, number, number + 1)])
        answer = task.cut(number)
        assert answer is not None
        parts.append(answer)
    task.settles(going_on=[consumed(A, 3, 4)])
    task.control.rows_grew(_FULL)
    assert (task.control.is_paused(), pauses) == (True, [True])

    task.is_committed(parts[0])
    wait_until(lambda: len(task.connection.messages(PartHandedOver)) == 3)
    assert (task.control.is_paused(), pauses) == (False, [True, False])


@pytest.mark.parametrize(
    ("writer", "open_for_s"), [(SentLines(), None), (Lines(), 300.0)], ids=["closed", "files"]
)
def test_rows_of_closed_ranges_or_in_files_are_not_counted(writer: Lines, open_for_s: float | None) -> None:
    task = Task(writer=writer, open_for_s=open_for_s)
    assert not task.control.counts_rows()
    task.control.rows_grew(_FULL)
    assert not task.control.is_paused()


def test_results_that_are_too_large_for_the_connection_come_with_the_job_and_end_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H1, I2: nothing of their queues is committed, and none of them is free, before that."""
    task = Task(writer=SentLines(), open_for_s=300.0)
    task.settles(going_on=[consumed(A, 0, 2)])
    assert task.cut(1) is not None
    monkeypatch.setattr(task_end, "LONGEST_LINE", 16)
    task.settles(going_on=[consumed(A, 2, 4), consumed(B, 0, 1)])
    assert task.cut(2) is None
    monkeypatch.undo()

    assert [each.queue for each in task.connection.messages(QueueStands)] == [A, B]
    assert {each.is_reset for each in task.connection.messages(QueueStands)} == {False}
    assert not task.control.is_given_up(A)
    task.settles(going_on=[consumed(A, 4, 5)])
    assert task.cut(3) is None
    for queue in (A, B, C):
        assert task.control.begins(queue)
    task.gives_up(A, B, C)
    for rest in (consumed(A, 5, 6), consumed(B, 1, 1), consumed(C, 0, 0)):
        assert task.control.take(rest)
    [part] = task.parts.finish()

    assert spans(part) == [(A, 2, 6), (B, 0, 1)]
    assert rows_of(part) == [(0, 2), (0, 3), (1, 0), (0, 5)]
    assert len(task.connection.messages(PartHandedOver)) == 1
    assert [each.queues for each in task.connection.messages(QueuesReleased)] == [{C}]
    assert len(task.connection.messages(QueueStands)) == 2


def test_a_queue_that_is_dropped_is_released_although_results_of_it_come_with_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F5, I2: nothing of it is committed any more."""
    monkeypatch.setattr(task_end, "LONGEST_LINE", 16)
    task = Task(writer=SentLines(), open_for_s=300.0)
    assert task.control.begins(A)
    task.settles(going_on=[consumed(A, 0, 2)])
    assert task.cut(1) is None
    task.gives_up(A, is_dropped=True)
    assert task.control.take(consumed(A, 2, 3))
    task.parts.finish()

    assert [each.queues for each in task.connection.messages(QueuesReleased)] == [{A}]


_BODY = 16 << 10
"""Size of a body that does not compress, in bytes."""
_POSITION = pa.schema([*POSITION_FIELDS, pa.field("body", pa.binary())])


class Ranges(OpenSource):
    """Ends when its only range is left, as the reader does."""

    def leave(self, queue: MessageQueue) -> None:
        super().leave(queue)
        self.end()


def in_real_time(consume: Callable[[OpenSource, TaskControl], Iterator[Any]], bodies: int) -> list[Part]:
    """Send messages with large bodies to an engine whose rows travel within the parts.

    Return the parts that came with the job; each row must be in one part, in order.
    """
    task = Task(open_for_s=300.0)
    task.parts = TaskParts(RowCollector(_POSITION, {QUEUE: 0}), task.control)
    draw, planned = random.Random(7), QueueRange.between(QUEUE, 0, OPEN_END, epoch=1)
    messages = [message_at(offset, body=draw.randbytes(_BODY)) for offset in range(bodies)]
    source = Ranges()
    rows = messages_of(messages)
    source.send(Arrival(planned, [rows], nbytes=rows.nbytes))
    kept: list[Part] = []
    acknowledged = 0

    def run() -> None:
        for result in consume(source, task.control):
            task.parts.add_cuts(result) if isinstance(result, CutTogether) else task.parts.add(result)
        kept.extend(task.parts.finish())

    def handed() -> list[Part]:
        return [each.part for each in task.connection.messages(PartHandedOver)]

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    deadline = time.monotonic() + PATIENCE_S
    while not task.connection.messages(QueueStands) and time.monotonic() < deadline:
        parts = task.connection.messages(PartHandedOver)
        task.is_committed(*parts[acknowledged:])
        acknowledged = len(parts)
        if handed() and handed()[-1].acks[-1].state.next_offset == bodies:
            break
        time.sleep(0.002)
        task.control.receive(CutWanted(task.control.id, 1))
    task.control.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    found = [CollectedRows(**each).table() for part in [*handed(), *kept] for each in part.written]
    assert [offset for table in found for offset in table.column("queueOffset").to_pylist()] == list(
        range(bodies)
    )
    return kept


def test_a_backlog_of_any_size_is_landed_in_parts_that_the_connection_carries() -> None:
    """I2, K7: although a piece that arrives has more."""
    columns = MessageColumns(names=("body",))

    def consume(source: OpenSource, control: TaskControl) -> Iterator[Any]:
        return LandingTask(source, columns, control, SystemClock()).consumed()

    assert in_real_time(consume, 700) == []


def test_messages_that_are_committed_together_may_have_more_rows_than_the_connection_carries() -> None:
    """D4, I2: the rows come with the job."""

    def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        context.auto_commit = False
        for message in messages:
            context.emit(message, body=message.body)
        is_last = messages[-1].queue_offset == 299
        return ConsumeOrderlyStatus.COMMIT if is_last else ConsumeOrderlyStatus.SUCCESS

    def consume(source: OpenSource, control: TaskControl) -> Iterator[Any]:
        output = OutputColumns.of(StructType().add("body", "binary"))
        consumer = RangeConsumer(listener, output, OrderlySettings(consume_message_batch_max_size=10))
        return OrderlyTask(source, consumer, control, SystemClock(), give_away=control.take).consumed()

    [part] = in_real_time(consume, 300)

    assert part.acks[0].consumed == 300
