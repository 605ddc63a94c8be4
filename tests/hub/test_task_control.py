"""A task with open ranges whose connection breaks: when it pauses, and what it sends on the next one."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from pyspark_rocketmq.consume.cuts import EndReason, Place
from pyspark_rocketmq.consume.part import Part
from pyspark_rocketmq.errors import ListenerError, RocketMQError
from pyspark_rocketmq.hub.messages import (
    CallsEnded,
    CutWanted,
    EndSoon,
    EndTask,
    FromTask,
    GiveUpQueues,
    NothingToCut,
    PartHandedOver,
    PartsCommitted,
    PartTaken,
    QueuesReleased,
    QueueStands,
    TaskBegins,
    TaskDirty,
    TaskDone,
    TaskError,
    TaskFailed,
    TaskMayBegin,
    TaskMayGoOn,
    TaskResumes,
    decode_to_driver,
    encode,
)
from pyspark_rocketmq.hub.session import LONGEST_LINE, line_bytes
from pyspark_rocketmq.hub.task_end import Fate, TaskControl
from pyspark_rocketmq.model import MessageQueue
from tests.helpers.parts import part_of
from tests.helpers.wait import PATIENCE_S, wait_until
from tests.hub.test_session import opened

A, B = (MessageQueue("T", "broker-a", number) for number in range(2))
P, Q = part_of("p", A), part_of("q", A)
BATCH = 7


class Connection:
    """Plays the connection: a test has it break and opens it again."""

    place = "driver:1"

    def __init__(self) -> None:
        self.number = 1
        self.is_lost = False
        self._sent: list[FromTask] = []

    def send(self, message: FromTask) -> None:
        if not self.is_lost:
            self._sent.append(message)

    def forget(self, _: TaskControl) -> None:
        pass

    def has(self, message: FromTask) -> bool:
        """Return whether a message was sent since the last :meth:`taken`."""
        return message in self._sent

    def taken(self) -> list[FromTask]:
        """Return what was sent since the last call."""
        sent, self._sent = self._sent, []
        return sent


class Task:
    """A task that has begun with two queues."""

    def __init__(
        self,
        *,
        open_for_s: float | None = 300.0,
        tasks: int = 2,
        begins: bool = True,
        breaks_first: bool = False,
    ) -> None:
        self.connection = Connection()
        places = dict.fromkeys((A, B), Place(1, 0))
        self.control = TaskControl(
            self.connection,  # type: ignore[arg-type]
            places,
            is_cut=True,
            open_for_s=open_for_s,
        )
        self.id = self.control.id = "t"
        self.pauses: list[bool] = []
        self.control.notifies(self._look)
        if breaks_first:
            self.breaks()
        self.control.ask(BATCH, 0, attempt=0, tasks=tasks)
        if begins:
            self.control.receive(TaskMayBegin("t", frozenset(), is_stopped=False))
            assert self.control.await_answer()
            assert self.control.begins(A)
            assert self.control.begins(B)
            self.connection.taken()

    def _look(self) -> None:
        is_paused = self.control.is_paused()
        if is_paused != (bool(self.pauses) and self.pauses[-1]):
            self.pauses.append(is_paused)

    def breaks(self) -> None:
        self.connection.is_lost = True
        self.control.broke()

    def opens_again(self) -> list[FromTask]:
        self.connection.is_lost = False
        self.connection.number += 1
        self.control.opened_again()
        return self.connection.taken()

    def goes_on(
        self,
        *known: str,
        uncommitted: tuple[str, ...] = (),
        given_up: tuple[MessageQueue, ...] = (),
        dropped: tuple[MessageQueue, ...] = (),
        is_stopped: bool = False,
    ) -> list[FromTask]:
        self.control.receive(
            TaskMayGoOn(
                task="t",
                is_stopped=is_stopped,
                known=frozenset(known),
                uncommitted=frozenset(uncommitted),
                given_up=frozenset(given_up),
                dropped=frozenset(dropped),
            )
        )
        return self.connection.taken()

    def hands_over(self, part: Part, cut: int | None = None) -> PartHandedOver:
        assert self.control.hand_over(part, ends=frozenset(), cut=cut)
        return handed(part, cut)


def handed(part: Part, cut: int | None = None) -> PartHandedOver:
    return PartHandedOver("t", part, cut, frozenset())


def resumes(*in_doubt: str, connection: int = 2) -> TaskResumes:
    return TaskResumes(task="t", batch_id=BATCH, in_doubt=frozenset(in_doubt), connection=connection)


def released(*queues: MessageQueue) -> QueuesReleased:
    return QueuesReleased("t", frozenset(queues))


def test_a_task_pauses_until_the_driver_has_answered_on_another_connection() -> None:
    """D1: nobody renews its locks."""
    task = Task()
    task.breaks()
    assert task.control.is_paused()
    assert not task.control.is_given_up(A)
    assert task.opens_again() == [resumes()]
    assert task.control.is_paused()

    assert task.goes_on() == []
    assert not task.control.is_paused()
    assert task.pauses == [True, False]


@pytest.mark.parametrize("character", ["x", '"', "\x00", "é", "单", "😀", "\ud800"])
def test_a_part_is_sent_only_if_the_hub_takes_its_line(character: str) -> None:
    """H1: the hub ends the connection otherwise, and each next one, on which the part is sent again."""
    task = Task()
    hub, sender = opened()

    def part(count: int) -> Part:
        return replace(P, written=({"rows": character * count},))

    room = LONGEST_LINE // 2 - line_bytes(part(0).facts)
    fitting = room // (line_bytes({character: 0}) - line_bytes({"": 0}))
    assert not task.control.hand_over(part(fitting + 1), ends=frozenset())
    sent = task.hands_over(part(fitting))

    assert task.connection.taken() == [sent]
    [line] = hub.lines(sender.seal(encode(sent)))
    _, facts = hub.receive(line)
    assert facts is not None
    assert decode_to_driver(facts, "task") == sent


def test_parts_that_the_driver_does_not_have_are_sent_again_in_order_and_the_others_are_taken() -> None:
    """H1"""
    task = Task()
    first, second = task.hands_over(P, cut=1), task.hands_over(Q, cut=2)
    assert task.connection.taken() == [first, second]
    task.breaks()
    third = task.hands_over(part_of("r", B))

    assert task.opens_again() == [resumes("p", "q", "r")]
    assert task.goes_on("p") == [second, third]
    for part_id in ("q", "r"):
        task.control.receive(PartTaken("t", part_id))
    task.control.await_taken()


def test_nothing_is_sent_on_another_connection_before_the_answer() -> None:
    """H1: what follows a part must not be there before it."""
    task = Task()
    lost = task.hands_over(P)
    task.breaks()
    task.opens_again()
    late = task.hands_over(Q)
    task.control.released(B)
    task.control.stands(A, "reset", is_reset=True)
    task.control.nothing_to_cut(3)
    task.control.settled()
    assert task.connection.taken() == []

    stands = QueueStands("t", A, is_reset=True, reason="reset")
    # Two parts are not committed, so that it is no use to report that it is dirty.
    assert task.goes_on() == [lost, late, stands, released(B)]
    task.control.receive(PartsCommitted("t", frozenset({"p"})))
    assert task.connection.taken() == [TaskDirty("t")]


def test_released_and_standing_queues_are_reported_on_each_connection() -> None:
    task = Task()
    task.control.released(B)
    task.control.stands(A, "forbidden")
    assert task.connection.taken() == [released(B), QueueStands("t", A, is_reset=False, reason="forbidden")]
    task.breaks()

    task.opens_again()
    assert task.goes_on() == [QueueStands("t", A, is_reset=False, reason="forbidden"), released(B)]


def test_a_dirty_task_reports_that_again() -> None:
    """The driver has forgotten it."""
    task = Task()
    task.control.settled()
    assert task.connection.taken() == [TaskDirty("t")]
    task.breaks()

    task.opens_again()
    assert task.goes_on() == [TaskDirty("t")]


def test_parts_that_are_not_committed_count_after_another_connection() -> None:
    """H1: at most two."""
    task = Task()
    for part in (P, Q):
        task.hands_over(part)
        task.control.receive(PartTaken("t", part.id))
    task.control.settled()
    task.connection.taken()
    task.breaks()
    task.opens_again()

    assert task.goes_on(uncommitted=("p", "q")) == []
    task.control.receive(CutWanted("t", 1))
    assert task.connection.taken() == [NothingToCut("t", 1)]


def test_parts_whose_commit_was_reported_meanwhile_count_no_more() -> None:
    task = Task()
    task.hands_over(P)
    task.hands_over(Q)
    task.control.settled()
    task.connection.taken()
    task.breaks()
    task.opens_again()

    assert task.goes_on("p", "q") == [TaskDirty("t")]


def test_queues_are_given_up_and_dropped_that_were_to_be_while_the_connection_was_broken() -> None:
    """B5, F5"""
    task = Task()
    task.breaks()
    task.opens_again()
    task.goes_on(given_up=(A,), dropped=(B,))

    assert (task.control.fate(A), task.control.fate(B)) == (Fate.HANDED_OVER, Fate.DROPPED)


def test_a_queue_that_was_not_begun_and_is_to_be_given_up_is_released() -> None:
    task = Task(begins=False)
    task.control.receive(TaskMayBegin("t", frozenset(), is_stopped=False))
    task.connection.taken()
    task.breaks()
    task.opens_again()

    assert task.goes_on(given_up=(A,)) == [released(A)]


def test_a_task_that_has_no_answer_begins_again_on_another_connection() -> None:
    task = Task(begins=False)
    [begin] = task.connection.taken()
    assert isinstance(begin, TaskBegins)
    assert (begin.open_for_s, begin.connection) == (300.0, 1)
    task.breaks()

    [again] = task.opens_again()
    assert isinstance(again, TaskBegins)
    assert (again.task, again.connection) == ("t", 2)
    task.control.receive(TaskMayBegin("t", frozenset({A}), is_stopped=False))
    assert task.control.await_answer()
    assert not task.control.begins(A)
    assert not task.control.is_paused()


def test_a_task_of_which_nothing_counts_any_more_ends() -> None:
    """D1: its batch is over."""
    task = Task()
    task.hands_over(P)
    task.breaks()
    task.opens_again()

    assert task.goes_on(is_stopped=True) == []
    assert task.control.is_given_up(A)
    task.control.await_taken()


def test_a_task_fails_if_there_is_no_other_connection() -> None:
    """D1: Spark runs it again, and the other attempt has the batch ended."""
    task = Task()
    task.breaks()
    task.control.lost()

    assert task.pauses == [True, False]
    assert task.control.is_given_up(A)
    assert not task.control.hand_over(P)
    with pytest.raises(RocketMQError, match="broke, and a new one could not be made within 10 s"):
        task.control.await_taken()


def test_a_task_that_never_got_an_answer_does_not_begin() -> None:
    task = Task(begins=False)
    task.breaks()
    task.control.lost()

    assert not task.control.await_answer()


def test_a_task_with_closed_ranges_ends_when_its_connection_breaks() -> None:
    """D1: what it has comes with the job."""
    task = Task(open_for_s=None)
    task.breaks()

    assert task.control.is_given_up(A)
    assert not task.control.is_paused()
    assert not task.control.hand_over(P)
    assert task.opens_again() == []
    assert not task.control.hand_over(P)
    task.control.await_taken()


def test_a_task_with_open_ranges_waits_for_its_suspended_queues_until_it_is_ended() -> None:
    """D5: no other task decides about it."""
    task = Task(tasks=1)
    ended: list[bool] = []
    task.control.idles(lambda: ended.append(True))
    assert task.control.is_batch_at_work()
    assert task.connection.taken() == []

    task.control.receive(EndTask("t", EndReason.TIME))
    assert ended == [True]
    assert not task.control.is_batch_at_work()
    assert task.control.is_given_up(B)


def test_a_task_reports_when_the_calls_have_ended_that_were_in_hand_at_the_announcement() -> None:
    """D3, I3: the queue of the long call makes no further one for a while, and the other queue goes on."""
    task, changes, may_end = Task(), threading.Event(), threading.Event()
    task.control.notifies(changes.set)
    task.control.shows_calls(lambda: {} if may_end.is_set() else {A: 60.0})
    for _ in range(2):
        task.control.receive(EndSoon("t"))
    assert changes.wait(PATIENCE_S)
    assert (task.control.must_wait(A), task.control.must_wait(B)) == (True, False)
    assert not task.control.is_given_up(A)
    assert not task.control.is_paused()
    assert task.control.fate(A) is Fate.KEPT
    assert task.connection.taken() == []

    may_end.set()
    wait_until(lambda: task.connection.has(CallsEnded("t")), PATIENCE_S)
    assert task.connection.taken() == [CallsEnded("t")]
    task.control.receive(EndSoon("t"))
    wait_until(lambda: task.connection.has(CallsEnded("t")), PATIENCE_S)
    assert (task.control.must_wait(A), task.control.must_wait(B)) == (True, False)

    changes.clear()
    task.control.receive(EndTask("t", EndReason.TIME))
    wait_until(lambda: not task.control.must_wait(A), PATIENCE_S)
    assert changes.is_set()
    assert task.control.is_given_up(A)


@pytest.mark.parametrize("outcome", ["done", "failed"])
def test_a_task_that_has_ended_waits_for_no_calls(outcome: str) -> None:
    """D5: Spark uses the process again, and a call that has failed may still count as in hand."""
    task, before = Task(), set(threading.enumerate())
    task.control.shows_calls(lambda: {A: 60.0})
    task.control.receive(EndSoon("t"))
    wait_until(lambda: task.control.must_wait(A), PATIENCE_S)
    if outcome == "done":
        task.control.done(None)
    else:
        task.control.forget(ValueError("It is a bug."))

    wait_until(lambda: set(threading.enumerate()) <= before, PATIENCE_S)


@pytest.mark.parametrize(
    ("open_for_s", "error", "reported"),
    [
        (300.0, ListenerError("A call ended."), TaskError("ListenerError", "A call ended.", is_fatal=True)),
        (300.0, RocketMQError("The disk is full."), TaskError("RocketMQError", "The disk is full.")),
        (300.0, ValueError("It is a bug."), TaskError("ValueError", "It is a bug.")),
        (300.0, SystemExit(3), TaskError("SystemExit", "3")),
        (None, ListenerError("A call ended."), TaskError("ListenerError", "A call ended.")),
    ],
)
def test_the_driver_gets_each_error_and_fails_the_batch_if_another_attempt_would_meet_it_again(
    open_for_s: float | None, error: BaseException, reported: TaskError
) -> None:
    """D1: another attempt of open ranges consumes nothing, so that Spark takes it for done."""
    task = Task(open_for_s=open_for_s)
    task.control.forget(error)

    assert task.connection.taken() == [TaskFailed("t", reported)]


def test_a_task_reports_its_end_also_before_the_answer() -> None:
    """H11: nothing of it is waited for."""
    failed, done = Task(begins=False), Task()
    failed.connection.taken()
    failed.control.forget()
    assert failed.connection.taken() == [TaskFailed("t", None)]

    done.breaks()
    done.opens_again()
    done.control.done(None)
    assert done.connection.taken() == [TaskDone("t", None)]


def test_a_task_that_has_not_asked_at_the_break_asks_on_the_next_connection() -> None:
    """D1: it is registered with the connection just before it breaks."""
    task = Task(begins=False, breaks_first=True)
    assert task.connection.taken() == []

    [asked] = task.opens_again()
    assert isinstance(asked, TaskBegins)
    assert (asked.open_for_s, asked.connection) == (300.0, 2)
    task.control.receive(TaskMayBegin("t", frozenset(), is_stopped=False))
    assert task.control.await_answer()
    assert task.control.begins(A)


def test_a_queue_given_up_before_the_break_is_not_released_after_it() -> None:
    """B5: its part is on its way."""
    task = Task()
    task.control.receive(GiveUpQueues("t", frozenset({A}), is_dropped=False))
    last = task.hands_over(P)
    task.connection.taken()
    task.breaks()
    task.opens_again()

    assert task.goes_on(given_up=(A,)) == [last]
