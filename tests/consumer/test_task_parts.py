"""A task's result, and what leaves it before its end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pyspark_rocketmq.consume.cuts import Place
from pyspark_rocketmq.consume.part import NOT_BEGUN, Part, QueueAck, reset_after
from pyspark_rocketmq.consume.turns import NO_INSTRUCTIONS, RangeInstructions
from pyspark_rocketmq.consumer.engine import task
from pyspark_rocketmq.consumer.engine.arrivals import Source
from pyspark_rocketmq.consumer.engine.output import Consumed, CutTogether
from pyspark_rocketmq.consumer.engine.task import BatchTask, TaskParts
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.hub import task_end
from pyspark_rocketmq.hub.messages import GiveUpQueues, PartHandedOver
from pyspark_rocketmq.hub.session import HubAddress
from pyspark_rocketmq.hub.task_end import ControlEndpoint, Fate, TaskControl
from pyspark_rocketmq.listeners.row_validation import RowColumns
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, QueueRange, QueueState
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.ranges import Ticket, partitions_of, ticket_rows
from pyspark_rocketmq.source.schema import Arrival
from tests.helpers.wait import PATIENCE_S, wait_until
from tests.hub.test_task_control import Connection

A, B, C = (MessageQueue("T", "broker-a", number) for number in range(3))


class Instructions:
    """Plays the connection to the driver."""

    def __init__(self) -> None:
        self.fates: dict[MessageQueue, Fate] = {}
        self.handed: list[Part] = []
        self.ends: list[frozenset[MessageQueue]] = []
        """Queues of which the task delivers nothing after each part."""
        self.freed: list[MessageQueue] = []
        self.copies: list[Part | None] = []
        self.is_there = True
        self.is_cut = self.is_open = False
        self.cut: Callable[[None], bool] = lambda _: False
        self.doubt: Exception | None = None
        self.errors: list[BaseException | None] = []
        """Arguments of the calls of :meth:`forget`."""

    def fate(self, queue: MessageQueue) -> Fate:
        return self.fates.get(queue, Fate.KEPT)

    def kept(self, queues: Sequence[MessageQueue]) -> bool:
        return any(self.fate(queue) is Fate.HANDED_OVER for queue in queues)

    def when_cut(self, cut: Callable[[None], bool]) -> None:
        self.cut = cut

    def taken_by(self, taker: Any) -> None:
        self.taker = taker

    def released(self, queue: MessageQueue) -> None:
        self.freed.append(queue)

    def settled(self) -> None:
        pass

    def counts_rows(self) -> bool:
        return False

    def stop(self) -> None:
        pass

    def hand_over(self, part: Part, *, ends: frozenset[MessageQueue], cut: int | None) -> bool:
        assert cut is None
        if self.is_there:
            self.handed.append(part)
            self.ends.append(ends)
        return self.is_there

    def await_taken(self) -> None:
        if self.doubt is not None:
            raise self.doubt

    def done(self, last: Part | None) -> None:
        self.copies.append(last)

    def forget(self, error: BaseException | None = None) -> None:
        self.errors.append(error)


class Lines:
    """Plays a sink's writer: what is written is the rows themselves."""

    def __init__(self) -> None:
        self.abandoned = 0
        self.slow: threading.Event | None = None
        self.is_writing = threading.Event()

    def open(self) -> Any:
        return _Lines(self)

    def written(self, facts: Mapping[str, Any]) -> Any:
        return facts["rows"]


class _Lines:
    def __init__(self, writer: Lines) -> None:
        self._writer = writer
        self.rows: list[Any] = []

    def add(self, rows: pa.RecordBatch) -> int:
        if self._writer.slow is not None:
            self._writer.is_writing.set()
            assert self._writer.slow.wait(PATIENCE_S)
        self.rows += [(row["queueId"], row["queueOffset"]) for row in rows.to_pylist()]
        return 0

    def finish(self) -> list[Any]:
        return [self] if self.rows else []

    def to_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def abandon(self) -> None:
        self._writer.abandoned += 1


def consumed(queue: MessageQueue, count: int = 2) -> Consumed:
    """What an engine gives for a range of which ``count`` messages were consumed."""
    ack = QueueAck(
        queue=queue, start=0, state=QueueState(count), consumed=count, failed=0, finished="GIVEN_UP"
    )
    return Consumed(
        [(offset,) for offset in range(count)], ack, RowColumns(StructType().add("queueOffset", "long"))
    )


def rest_of(queue: MessageQueue, start: int, stop: int) -> Consumed:
    """Make the rest of a range that starts at 0, as an engine gives it."""
    whole = consumed(queue, stop)
    ack = replace(whole.ack, start=start, consumed=stop - start)
    return whole._replace(rows=whole.rows[start:], ack=ack)


def cut_of(queue: MessageQueue, start: int, stop: int) -> CutTogether:
    """Make what it gives before."""
    return CutTogether((rest_of(queue, start, stop),))


def rows_of(part: Part) -> list[tuple[int, int]]:
    return [row for written in part.written for row in written["rows"]]


def queues_of(part: Part) -> list[MessageQueue]:
    return [ack.queue for ack in part.acks]


def parts_of(instructions: Instructions | None, writer: Lines | None = None) -> TaskParts:
    return TaskParts(writer or Lines(), instructions)  # type: ignore[arg-type]


@pytest.mark.parametrize("instructions", [None, Instructions()])
def test_ranges_that_need_no_early_commit_are_one_part(instructions: Instructions | None) -> None:
    parts = parts_of(instructions)
    for queue in (A, B):
        parts.add(consumed(queue))

    [part] = parts.finish()
    assert rows_of(part) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert queues_of(part) == [A, B]
    assert part.emitted == 4
    assert instructions is None or instructions.copies == [part]


def test_only_a_queue_that_was_given_up_leaves_at_once() -> None:
    """D7, B5: another queue that moved can then not take its rows with it."""
    instructions = Instructions()
    instructions.fates[B] = Fate.HANDED_OVER
    parts = parts_of(instructions)
    for queue in (A, B, C):
        parts.add(consumed(queue))

    wait_until(lambda: instructions.handed)
    [handed] = instructions.handed
    assert (rows_of(handed), queues_of(handed)) == ([(1, 0), (1, 1)], [B])
    [part] = parts.finish()
    assert queues_of(part) == [A, C]


def test_a_queue_that_was_given_up_is_taken_from_any_thread_and_one_that_is_kept_is_not() -> None:
    """B5: the task's own thread may be in a slow call of another queue."""
    instructions = Instructions()
    instructions.fates[B] = Fate.HANDED_OVER
    parts = parts_of(instructions)

    assert not instructions.taker(consumed(A))
    assert instructions.taker(consumed(B))
    assert parts.finish() == []
    [handed] = instructions.handed
    assert (rows_of(handed), queues_of(handed)) == ([(1, 0), (1, 1)], [B])
    assert handed.emitted == 2


def test_a_queue_of_which_nothing_was_delivered_is_just_let_go() -> None:
    """B5"""
    instructions = Instructions()
    instructions.fates[A] = Fate.HANDED_OVER
    parts = parts_of(instructions)
    parts.add(consumed(A, 0))

    assert parts.finish() == []
    assert (instructions.freed, instructions.handed) == ([A], [])


def test_a_queue_that_was_reset_leaves_nothing() -> None:
    """F5: and the others' rows are in other files."""
    instructions = Instructions()
    instructions.fates[A] = Fate.DROPPED
    parts = parts_of(instructions)
    for queue in (A, B):
        parts.add(consumed(queue))

    assert [queues_of(part) for part in parts.finish()] == [[B]]
    assert (instructions.freed, instructions.handed) == ([A], [])


def test_ranges_that_have_ended_are_handed_over_while_the_task_goes_on() -> None:
    """B5: a slow queue of the same task holds nobody up."""
    instructions = Instructions()
    parts = parts_of(instructions)
    parts.add(consumed(A))
    assert instructions.cut(None)
    wait_until(lambda: instructions.handed)
    parts.add(consumed(B))

    last = parts.finish()
    [handed] = instructions.handed
    assert (queues_of(handed), [queues_of(part) for part in last]) == ([A], [[B]])
    assert rows_of(handed) == [(0, 0), (0, 1)]


def test_while_rows_are_written_nothing_is_cut_but_at_once_after() -> None:
    """B5"""
    instructions, writer = Instructions(), Lines()
    parts = parts_of(instructions, writer)
    parts.add(consumed(A))
    writer.slow = threading.Event()
    adding = threading.Thread(target=parts.add, args=(consumed(B),))
    adding.start()
    assert writer.is_writing.wait(PATIENCE_S)
    assert instructions.cut(None)
    assert instructions.handed == []
    writer.slow.set()
    adding.join(PATIENCE_S)

    assert parts.finish() == []
    [handed] = instructions.handed
    assert queues_of(handed) == [A, B]


def test_a_queue_that_was_taken_away_while_it_was_written_is_handed_over() -> None:
    """B5: who was notified then did not find it among what has ended."""
    instructions = Instructions()
    instructions.kept = lambda queues: True  # type: ignore[method-assign]
    parts = parts_of(instructions)
    parts.add(consumed(A))

    assert parts.finish() == []
    assert [queues_of(handed) for handed in instructions.handed] == [[A]]


def test_without_a_driver_to_take_it_a_part_comes_with_the_job() -> None:
    """H1"""
    instructions = Instructions()
    instructions.is_there = False
    instructions.fates[A] = Fate.HANDED_OVER
    parts = parts_of(instructions)
    for queue in (A, B):
        parts.add(consumed(queue))

    assert [queues_of(part) for part in parts.finish()] == [[A], [B]]


@pytest.mark.parametrize("instructions", [None, Instructions()])
def test_a_range_that_its_engine_cuts_has_one_ack_in_a_part(instructions: Instructions | None) -> None:
    """H1, K7"""
    parts = parts_of(instructions)
    parts.add_cuts(cut_of(A, 0, 1))
    parts.add_cuts(cut_of(B, 0, 2))
    parts.add_cuts(cut_of(A, 1, 3))
    parts.add(rest_of(A, 3, 3))
    parts.add(rest_of(B, 2, 3))

    [part] = parts.finish()
    assert rows_of(part) == [(0, 0), (1, 0), (1, 1), (0, 1), (0, 2), (1, 2)]
    assert [(ack.queue, ack.start, ack.state.next_offset, ack.consumed) for ack in part.acks] == [
        (A, 0, 3, 3),
        (B, 0, 3, 3),
    ]


def test_cuts_that_do_not_follow_each_other_are_left_to_the_driver_to_judge() -> None:
    """H1, K7: joined they would hide what is missing."""
    parts = parts_of(None)
    parts.add_cuts(cut_of(A, 0, 1))
    parts.add(rest_of(A, 2, 3))

    [part] = parts.finish()
    assert [(ack.start, ack.state.next_offset) for ack in part.acks] == [(0, 1), (2, 3)]


def test_a_range_that_is_given_up_after_a_cut_leaves_with_all_of_its_rows() -> None:
    """B5, K7: and with those of a queue whose range goes on, which follow later."""
    instructions = Instructions()
    parts = parts_of(instructions)
    parts.add_cuts(cut_of(A, 0, 2))
    parts.add_cuts(cut_of(B, 0, 1))
    instructions.fates[A] = Fate.HANDED_OVER
    parts.add(rest_of(A, 2, 2))
    wait_until(lambda: instructions.handed)
    parts.add(rest_of(B, 1, 2))

    [last] = parts.finish()
    [handed] = instructions.handed
    assert (rows_of(handed), queues_of(handed)) == ([(0, 0), (0, 1), (1, 0)], [A, B])
    assert instructions.ends == [frozenset({A})]
    assert (rows_of(last), queues_of(last)) == ([(1, 1)], [B])


def test_a_reset_that_arrives_after_the_end_of_a_range_never_leaves_before_it() -> None:
    """B5, F5: the queue is given up between the two, and the first result has not left yet."""
    instructions = Instructions()
    parts = parts_of(instructions)
    ended = consumed(A)
    parts.add(ended)
    instructions.fates[A] = Fate.HANDED_OVER
    parts.add(ended._replace(rows=[], ack=reset_after(ended.ack, 7)))

    assert parts.finish() == []
    [handed] = instructions.handed
    assert rows_of(handed) == [(0, 0), (0, 1)]
    assert handed.acks == (replace(ended.ack, reset_to=7),)


def test_a_cut_range_is_released_if_its_rows_have_left_before() -> None:
    """B5, K7"""
    instructions = Instructions()
    parts = parts_of(instructions)
    parts.add_cuts(cut_of(A, 0, 2))
    assert instructions.cut(None)
    wait_until(lambda: instructions.handed)
    instructions.fates[A] = Fate.HANDED_OVER
    parts.add(rest_of(A, 2, 2))

    assert parts.finish() == []
    assert (instructions.ends, instructions.freed) == ([frozenset()], [A])


class OfColumns:
    """An engine that takes only columns; it keeps what it was given."""

    needed_columns = ("topic", "queueOffset", "body")

    def __init__(self) -> None:
        self.sources: list[Source] = []

    def __call__(
        self, source: Source, instructions: RangeInstructions = NO_INSTRUCTIONS
    ) -> Iterator[Consumed]:
        self.sources.append(source)
        return iter(())


@pytest.mark.parametrize("open_for_s", [None, 300.0])
def test_an_engine_of_columns_reads_no_others(
    monkeypatch: pytest.MonkeyPatch, open_for_s: float | None
) -> None:
    """K7: and all of a retry topic's, whose messages name their topic in a property."""
    read: list[tuple[Sequence[Any], dict[str, Any]]] = []
    retry = MessageQueue("%RETRY%G", "broker-a", 0)

    def reader(partitions: Sequence[Any], **how: Any) -> Any:
        read.append((partitions, how))
        return iter(())

    monkeypatch.setattr(task, "closed_arrivals", reader)
    monkeypatch.setattr(task, "RangeArrivals", reader)
    options = ReadOptions.parse(
        {"nameServers": "127.0.0.1:1", "topic": "T", "consumerGroup": "G", "offsetStore": "delta:/offsets"}
    )
    partitions = partitions_of(
        [QueueRange.between(queue, 0, 9) for queue in (A, retry)],
        options,
        {"broker-a": BrokerAddress("127.0.0.1:1")},
        {},
    )
    engine = OfColumns()
    list(BatchTask(None, engine)(iter([ticket_rows(Ticket(tuple(partitions), 1, open_for_s))])))
    if open_for_s is None:
        assert list(engine.sources[0].arrivals()) == []

    [(found, how)] = read
    assert how == {"reset_found": None} | ({} if open_for_s is None else {"few_as_objects": False})
    assert [each.settings.columns for each in found] == [OfColumns.needed_columns, None]


class Begun(Instructions):
    """Lets the task begin with every queue."""

    def begins(self, queue: MessageQueue) -> bool:
        return True

    def not_begun(self) -> frozenset[MessageQueue]:
        return frozenset()


@pytest.mark.parametrize("open_for_s", [None, 300.0])
def test_a_reset_that_is_in_no_ranges_end_is_reported_to_the_driver(
    monkeypatch: pytest.MonkeyPatch, open_for_s: float | None
) -> None:
    """F5: also when the task has ended."""
    found: list[Callable[[MessageQueue, int], None]] = []
    reported: list[tuple[object, ...]] = []

    def reader(partitions: Sequence[Any], *, reset_found: Any, **_: object) -> Any:
        found.append(reset_found)
        return iter(())

    for name in ("closed_arrivals", "RangeArrivals"):
        monkeypatch.setattr(task, name, reader)
    monkeypatch.setattr(task, "ask_driver", lambda *_, **__: Begun())
    monkeypatch.setattr(task, "report_reset", lambda *report: reported.append(report))
    options = ReadOptions.parse({"nameServers": "127.0.0.1:1", "topic": "T"})
    [partition] = partitions_of(
        [QueueRange.between(A, 0, 9)], options, {"broker-a": BrokerAddress("127.0.0.1:1")}, {}
    )
    terms = ControlEndpoint(HubAddress.new("127.0.0.1", 1), 7, must_ask=True)
    engine = OfColumns()
    list(BatchTask(None, engine, terms)(iter([ticket_rows(Ticket((partition,), 1, open_for_s))])))
    if open_for_s is None:
        assert list(engine.sources[0].arrivals()) == []
    found[0](A, 3)

    assert reported == [(terms, A, 3)]


def test_a_part_whose_arrival_is_not_known_fails_the_task() -> None:
    """H1"""
    instructions = Instructions()
    instructions.doubt = RocketMQError("not known")
    with pytest.raises(RocketMQError, match="not known"):
        parts_of(instructions).finish()


class _Failing:
    """A writer, or an engine, that fails before the task has consumed anything."""

    def open(self) -> Any:
        raise OSError("it does not open")

    def written(self, facts: Mapping[str, Any]) -> Any:
        return facts

    def __call__(self, source: Source, instructions: RangeInstructions = NO_INSTRUCTIONS) -> Any:
        raise OSError("it does not open")


@pytest.mark.parametrize("fails", ["the writer", "the engine"])
def test_an_error_before_anything_is_consumed_is_reported_too(
    monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """D1: otherwise the driver would take the task for killed by a message."""
    instructions = Instructions()
    monkeypatch.setattr(BatchTask, "_ask", lambda self, tickets: instructions)
    writer: Any = _Failing() if fails == "the writer" else Lines()
    engine: Any = _Failing() if fails == "the engine" else OfColumns()
    run, schema = BatchTask(writer, engine), pa.schema([("n", pa.int64())])

    with pytest.raises(OSError, match="does not open"):
        list(run(iter([pa.RecordBatch.from_pylist([], schema=schema)])))

    assert [str(error) for error in instructions.errors] == ["it does not open"]


def may_go_on(result: pa.RecordBatch) -> dict[MessageQueue, Part]:
    """The parts of ranges that a task has not begun, by queue; each queue may go on immediately."""
    [text] = result.column("parts").to_pylist()
    found = {}
    for part in map(Part.from_facts, json.loads(text)):
        for ack in part.acks:
            if ack.finished == NOT_BEGUN:
                state = ack.state._replace(suspended_until_s=None)
                assert (ack.start, state, ack.counts) == (0, QueueState(0, 1), False)
                assert ack.state.suspended_until_s == pytest.approx(time.time(), abs=PATIENCE_S)
                found[ack.queue] = part
    return found


@pytest.mark.parametrize("ends", ["broke", "stop"])
@pytest.mark.parametrize("is_cut", [False, True])
def test_ranges_that_a_task_has_not_begun_may_go_on_unless_their_queues_leave(
    monkeypatch: pytest.MonkeyPatch, ends: str, is_cut: bool
) -> None:
    """D1, D4: without an ack the planner would take them for messages that the listener has not committed."""
    leaving, dropped = (MessageQueue("T", "broker-a", number) for number in (3, 4))
    queues = (A, leaving, B, dropped, C)
    connection = Connection()
    control = TaskControl(
        connection,  # type: ignore[arg-type]
        dict.fromkeys(queues, Place(1, 0)),
        is_cut=is_cut,
    )
    monkeypatch.setattr(control, "await_taken", lambda: None)
    options = ReadOptions.parse({"nameServers": "127.0.0.1:1", "topic": "T"})
    partitions = partitions_of(
        [QueueRange.between(queue, 0, 9, epoch=1) for queue in queues],
        options,
        {"broker-a": BrokerAddress("127.0.0.1:1")},
        {},
    )
    monkeypatch.setattr(task, "ask_driver", lambda *_, **__: control)
    monkeypatch.setattr(task, "closed_arrivals", lambda some, **_: [[each.planned.queue] for each in some])

    def engine(source: Source, instructions: RangeInstructions) -> Iterator[Consumed]:
        for [queue] in source.arrivals():
            yield consumed(queue)  # type: ignore[arg-type]
            control.receive(GiveUpQueues(control.id, frozenset({leaving}), is_dropped=False))
            getattr(control, ends)()
        control.receive(GiveUpQueues(control.id, frozenset({dropped}), is_dropped=True))

    terms = ControlEndpoint(HubAddress.new("127.0.0.1", 1), 7, must_ask=True)
    run = BatchTask(None, engine, terms)  # type: ignore[arg-type]
    [result] = run(ticket_rows(Ticket((partition,), 1)) for partition in partitions)

    found = may_go_on(result)
    assert list(found) == [B, C]
    assert found[B] == found[C]
    assert found[B].queues == {B, C}
    handed = [message.part.queues for message in connection.taken() if isinstance(message, PartHandedOver)]
    assert handed == ([{A}] if is_cut and ends == "stop" else [])


def test_a_task_reports_which_of_its_queues_had_no_message_when_they_were_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """D1: so that the driver does not blame a message for the end of its machine."""
    asked: list[frozenset[MessageQueue]] = []
    monkeypatch.setattr(task, "ask_driver", lambda *_, at_end, **__: asked.append(at_end))
    options = ReadOptions.parse({"nameServers": "127.0.0.1:1", "topic": "T"})
    partitions = partitions_of(
        [QueueRange.between(queue, 0, 9, epoch=1) for queue in (A, B)],
        options,
        {"broker-a": BrokerAddress("127.0.0.1:1")},
        {},
    )
    rows = ticket_rows(Ticket(tuple(partitions), 1, 300.0, frozenset({B})))
    terms = ControlEndpoint(HubAddress.new("127.0.0.1", 1), 7, must_ask=True)

    with pytest.raises(RocketMQError, match="only the driver can end its tasks"):
        list(BatchTask(None, lambda *_: iter(()), terms)(iter([rows])))
    assert asked == [frozenset({B})]


@pytest.mark.parametrize("open_for_s", [None, 300.0])
def test_a_task_that_cannot_reach_its_driver_consumes_nothing_and_fails_if_only_the_driver_can_end_it(
    monkeypatch: pytest.MonkeyPatch, open_for_s: float | None
) -> None:
    """D1"""
    monkeypatch.setattr(task_end, "_failed_s", {})
    options = ReadOptions.parse({"nameServers": "127.0.0.1:1", "topic": "T"})
    [partition] = partitions_of(
        [QueueRange.between(A, 0, 9, epoch=1)], options, {"broker-a": BrokerAddress("127.0.0.1:1")}, {}
    )
    rows = ticket_rows(Ticket((partition,), 1, open_for_s))
    terms = ControlEndpoint(HubAddress.new("127.0.0.1", 1), 7, must_ask=True)
    read: list[Arrival] = []

    def engine(source: Source, instructions: RangeInstructions) -> Iterator[Consumed]:
        read.extend(chain.from_iterable(source.arrivals()))
        return iter(())

    run = BatchTask(None, engine, terms)  # type: ignore[arg-type]
    if open_for_s is None:
        [result] = run(iter([rows]))
        assert result.column("could_ask").to_pylist() == [False]
        assert list(may_go_on(result)) == [A]
    else:
        with pytest.raises(RocketMQError, match="only the driver can end its tasks"):
            list(run(iter([rows])))
    assert read == []
