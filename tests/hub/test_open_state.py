"""A hub whose batch has open ranges: how it is ended, how tasks resume, and when it is over."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.consume.cuts import EndReason, Place
from pyspark_rocketmq.consume.part import Part
from pyspark_rocketmq.hub.messages import (
    EndSoon,
    EndTask,
    GiveUpQueues,
    PartHandedOver,
    PartTaken,
    QueuesFree,
    QueueStands,
    SlotsKnown,
    TaskBegins,
    TaskError,
    TaskMayBegin,
    TaskMayGoOn,
    TaskResumes,
)
from pyspark_rocketmq.hub.state import (
    Action,
    Commit,
    Ended,
    Flushed,
    HubState,
    Look,
    Send,
    Slots,
    StillDelivered,
)
from pyspark_rocketmq.model import MessageQueue
from tests.helpers.parts import part_of
from tests.hub.test_state import committed, freed, plans_over, sent

A, B, C = (MessageQueue("T", "broker-a", number) for number in range(3))
BOTH = frozenset({A, B})
FOR_S = 300.0
FOUR = Slots(4, 4)


class Driver:
    """A hub with a planner whose plan 1 holds two queues, and a batch with a task for each, from 100.0 on."""

    def __init__(self, *, begins: bool = True, slots: Slots = FOUR) -> None:
        self.state = HubState(must_ask=True, slots=slots, interval_s=0.5)
        self.state.planner_came("planner")
        self.state.plan_made(1, BOTH)
        self.state.batch_begins(7)
        if begins:
            self.begins("one", A)
            self.begins("two", B, partition=1)

    def begins(
        self,
        task: str,
        *queues: MessageQueue,
        partition: int = 0,
        attempt: int = 0,
        connection: int = 1,
        tasks: int = 2,
        now_s: float = 100.0,
        at_end: frozenset[MessageQueue] = frozenset(),
    ) -> list[Action]:
        start = TaskBegins(
            task=task,
            batch_id=7,
            partition=partition,
            attempt=attempt,
            places=dict.fromkeys(queues, Place(1, 0)),
            tasks=tasks,
            open_for_s=FOR_S,
            at_end=at_end & frozenset(queues),
            connection=connection,
        )
        return self.state.task_begins(peer(task, connection), start, now_s)

    def resumes(
        self, task: str, *in_doubt: str, connection: int = 2, batch_id: int = 7, now_s: float = 103.0
    ) -> list[Action]:
        resumed = TaskResumes(
            task=task, batch_id=batch_id, in_doubt=frozenset(in_doubt), connection=connection
        )
        return self.state.task_resumes(peer(task, connection), resumed, now_s)

    def hands_over(self, task: str, part: Part, *, connection: int = 1) -> list[Action]:
        handed = PartHandedOver(task, part, cut=None, ends=frozenset())
        return self.state.handed_over(peer(task, connection), handed, 101.0)

    def breaks(
        self, task: str, *, connection: int = 1, is_silent: bool = False, now_s: float = 102.0
    ) -> list[Action]:
        return self.state.lost(peer(task, connection), now_s, is_silent=is_silent)

    def is_done(self, task: str, *, connection: int = 1, now_s: float = 110.0) -> list[Action]:
        return self.state.task_done(peer(task, connection), task, None, now_s)

    def calls_end(self, *tasks: str, connection: int = 1, now_s: float = 103.0) -> list[Action]:
        """Let these tasks report, by default all."""
        reports = [
            self.state.calls_ended(peer(task, connection), task, now_s) for task in tasks or sorted(BOTH_END)
        ]
        return [action for actions in reports for action in actions]

    def job_is_over(self, now_s: float = 110.0, *, could_ask: bool | None = True) -> list[Action]:
        over = self.state.job_is_over(now_s, is_whole=True)
        return over + self.state.batch_ends(now_s, could_ask=could_ask)


def peer(task: str, connection: int = 1) -> tuple[str, int]:
    return task, connection


def announced(actions: list[Action]) -> set[str]:
    return {message.task for message in sent(actions, EndSoon)}


def ended(actions: list[Action]) -> dict[str, EndReason]:
    return {message.task: message.reason for message in sent(actions, EndTask)}


def why(actions: list[Action]) -> list[str]:
    return [action.ending.why for action in actions if isinstance(action, Ended)]


def goes_on(actions: list[Action]) -> TaskMayGoOn:
    [message] = sent(actions, TaskMayGoOn)
    return message


def flushed(actions: list[Action]) -> list[BaseException | None]:
    return [action.failure for action in actions if isinstance(action, Flushed)]


def is_stopped(actions: list[Action]) -> bool:
    [message] = sent(actions, TaskMayBegin)
    return message.is_stopped


BOTH_END = {"one", "two"}


# --- what ends a batch ------------------------------------------------------------------------------------


def test_a_batch_is_ended_when_its_time_is_over() -> None:
    driver = Driver()
    state = driver.state
    assert (state.tick(399.9), state.next_tick_s) == ([], 400.0)
    actions = state.tick(400.0)
    assert (announced(actions), ended(actions)) == (BOTH_END, {})
    assert why(actions) == ["its time is over"]
    assert ended(driver.calls_end()) == dict.fromkeys(BOTH_END, EndReason.TIME)
    assert state.tick(401.0) == []


def test_no_task_is_ended_before_the_calls_of_all_tasks_have_ended() -> None:
    """D3, I3: otherwise all queues would wait for the slowest call."""
    driver = Driver(begins=False)
    driver.begins("one", A)
    assert announced(driver.state.replan(1, "a queue was gained", 101.0)) == {"one"}
    assert why(driver.state.tick(101.0 + FOR_S)) == [], "it is announced once"
    late = driver.begins("two", B, partition=1)
    assert (announced(late), is_stopped(late)) == ({"two"}, False)
    assert driver.calls_end("two") == []
    assert driver.state.calls_ended(peer("stranger"), "one", 104.0) == []

    assert ended(driver.calls_end("one")) == dict.fromkeys(BOTH_END, EndReason.PLAN)


@pytest.mark.parametrize("outcome", ["done", "failed"])
def test_a_task_that_has_ended_has_no_calls(outcome: str) -> None:
    """I3"""
    driver = Driver()
    driver.state.replan(1, "a queue was gained", 101.0)
    driver.calls_end("two")
    over = driver.is_done("one") if outcome == "done" else driver.state.task_failed(peer("one"), "one", 104.0)
    assert ended(over) == {"two": EndReason.PLAN}


def test_the_end_of_the_query_does_not_wait_for_calls() -> None:
    """B7, H11"""
    driver = Driver()
    driver.state.replan(1, "a queue was gained", 101.0)
    assert ended(driver.state.stop(102.0)) == dict.fromkeys(BOTH_END, EndReason.STOP)
    assert driver.calls_end() == []


def test_an_announced_end_is_announced_again_to_a_task_that_resumes() -> None:
    """I3: the message, or the report, was lost with the connection."""
    driver = Driver()
    driver.state.replan(1, "a queue was gained", 101.0)
    driver.breaks("one")
    assert announced(driver.resumes("one")) == {"one"}
    assert driver.calls_end("two") == []
    assert set(ended(driver.calls_end("one", connection=2))) == BOTH_END


@pytest.mark.parametrize("breaks_first", [True, False])
def test_an_announced_end_waits_for_no_task_that_is_not_connected(breaks_first: bool) -> None:
    """D1, I3: it may be dead, and wait for a slot that another task has."""
    driver = Driver()
    if breaks_first:
        driver.breaks("one")
    driver.state.replan(1, "a queue was gained", 102.0)
    actions = driver.calls_end("two")
    if not breaks_first:
        actions += driver.breaks("one")
    assert ended(actions) == {"two": EndReason.PLAN}


@pytest.mark.parametrize("has_failed", [False, True])
def test_a_task_that_stays_away_ends_the_batch(has_failed: bool) -> None:
    """D1, I3: otherwise its queues would wait for the batch's time, if Spark has no slot to run it again."""
    driver = Driver()
    if has_failed:
        driver.state.task_failed(peer("one"), "one", 102.0)
    else:
        driver.breaks("one")
    assert driver.state.tick(113.9) == []
    actions = driver.state.tick(114.0)
    assert (announced(actions), why(actions)) == ({"two"}, ["task 0 does not come back"])
    assert driver.state.tick(114.5) == []
    assert ended(driver.calls_end("two")) == {"two": EndReason.PLAN}


def test_a_task_that_comes_back_in_time_does_not_end_the_batch() -> None:
    """D1"""
    driver = Driver()
    driver.breaks("one")
    driver.resumes("one", now_s=111.0)
    assert driver.state.tick(120.0) == []


def test_a_queue_that_ends_before_its_batch_may_leave_when_its_part_is_committed() -> None:
    """B5: its offset must be shown to the brokers before, as nothing of it is planned."""
    driver = Driver()
    driver.state.replan(1, "a queue was gained", 101.0)
    handed = PartHandedOver("one", part_of("p", A), cut=None, ends=frozenset({A}))
    actions = driver.state.handed_over(peer("one"), handed, 101.0)
    assert [action.leaving for action in actions if isinstance(action, Commit)] == [{A}]


def test_the_planner_has_the_batch_of_its_newest_plan_ended() -> None:
    """B5: no message gives a queue to a running task."""
    driver = Driver()
    assert driver.state.replan(0, "a queue was gained", 101.0) == []
    actions = driver.state.replan(1, "a queue was gained", 102.0)
    assert announced(actions) == BOTH_END
    assert why(actions) == ["a queue was gained"]
    assert ended(driver.calls_end()) == dict.fromkeys(BOTH_END, EndReason.PLAN)


def test_a_plan_that_is_old_before_its_batch_has_begun_ends_it_at_once() -> None:
    driver = Driver(begins=False)
    driver.state.batch_ends(1.0, could_ask=None)
    driver.state.plan_made(2, BOTH)
    assert driver.state.replan(2, "a queue was gained", 50.0) == []
    driver.state.batch_begins(7)

    actions = driver.begins("one", A)
    assert not is_stopped(actions)
    assert announced(actions) == {"one"}
    assert ended(driver.calls_end("one")) == {"one": EndReason.PLAN}
    assert is_stopped(driver.begins("two", B, partition=1))


def test_what_the_planner_wanted_of_an_older_plan_does_not_end_a_later_batch() -> None:
    driver = Driver()
    driver.state.replan(1, "a queue was gained", 101.0)
    driver.is_done("one")
    driver.is_done("two")
    driver.job_is_over()
    driver.state.plan_made(2, BOTH)
    driver.state.batch_begins(7)

    assert announced(driver.begins("three", A, now_s=120.0)) == set()


def test_a_batch_whose_tasks_find_no_slot_is_ended_and_the_next_plan_has_fewer() -> None:
    """D3"""
    driver = Driver(begins=False)
    driver.begins("one", A)
    actions = driver.state.tick(105.0)
    assert announced(actions) == {"one"}
    assert sent(actions, SlotsKnown) == [SlotsKnown(1, 5.0)]
    assert ended(driver.calls_end("one")) == {"one": EndReason.PLAN}

    assert driver.state.slots_are(Slots(4, 4)) == []
    assert sent(driver.state.slots_are(Slots(6, 6)), SlotsKnown) == [SlotsKnown(6, 5.0)]


@pytest.mark.parametrize(("left", "planned"), [(1, 2), (2, 1), (3, 1)])
@pytest.mark.parametrize("most_planned", [0, 3])
def test_a_plan_with_fewer_tasks_leaves_slots_free_too(most_planned: int, left: int, planned: int) -> None:
    """I7: Spark needs one to write the sink, also where the cluster grows and has no more."""
    driver = Driver(begins=False, slots=Slots(4, most_planned, left))
    for partition, task in enumerate(("one", "two", "three")):
        driver.begins(task, MessageQueue("T", "broker-a", partition), partition=partition, tasks=4)

    assert sent(driver.state.tick(105.0), SlotsKnown) == [SlotsKnown(planned, 5.0)]


def test_all_slots_are_tried_again_after_a_batch_whose_tasks_have_begun() -> None:
    """D3: one late start must not leave a query with one task for good."""
    driver = Driver(begins=False)
    driver.begins("one", A)
    driver.state.tick(105.0)
    driver.is_done("one")
    driver.job_is_over()
    driver.state.plan_made(2, BOTH)
    driver.state.batch_begins(7)
    driver.begins("two", A, now_s=110.0)
    driver.begins("three", B, partition=1, now_s=110.0)

    assert sent(driver.state.tick(110.0 + FOR_S), SlotsKnown) == [SlotsKnown(4, 5.0)]


def test_a_queue_that_cannot_go_on_ends_the_batch() -> None:
    """F5"""
    driver = Driver()
    stands = QueueStands("one", A, is_reset=True, reason="reset to 9")
    assert driver.state.queue_stands(peer("stranger"), stands, 101.0) == []
    actions = driver.state.queue_stands(peer("one"), stands, 101.0)
    assert announced(actions) == BOTH_END
    assert why(actions) == [f"{A}: reset to 9"]


def test_a_queue_that_cannot_go_on_as_its_batch_ends_does_not_delay_the_end_of_the_next_one() -> None:
    """I4: a last part that is too large comes with the job."""
    driver = Driver()
    stands = QueueStands("one", A, is_reset=False, reason="its results are too large")
    driver.state.tick(400.0)
    driver.calls_end()
    assert driver.state.queue_stands(peer("one"), stands, 403.0) == []
    for task in BOTH_END:
        driver.is_done(task, now_s=403.0)
    driver.job_is_over(403.0)
    driver.state.plan_made(2, BOTH)
    driver.state.batch_begins(7)
    driver.begins("one", A, now_s=404.0)
    driver.begins("two", B, partition=1, now_s=404.0)

    assert announced(driver.state.queue_stands(peer("one"), stands, 404.5)) == BOTH_END


def test_a_queue_that_was_claimed_or_reset_is_dropped_and_ends_the_batch() -> None:
    """F5: the planner plans it from its new place."""
    driver = Driver()
    actions = driver.state.moved({A: 2, B: 1}, driver.state.batches, 101.0)
    assert sent(actions, GiveUpQueues) == [GiveUpQueues("one", frozenset({A}), is_dropped=True)]
    assert announced(actions) == BOTH_END


def test_a_queue_that_was_reset_without_an_epoch_is_dropped_and_ends_the_batch() -> None:
    """F5: the brokers are the store."""
    driver = Driver()
    actions = driver.state.unfenced_reset(frozenset({A}), 101.0)
    assert sent(actions, GiveUpQueues) == [GiveUpQueues("one", frozenset({A}), is_dropped=True)]
    assert announced(actions) == BOTH_END


def test_a_queue_that_leaves_anyway_does_not_end_the_batch() -> None:
    """B5: losing a queue needs no new plan."""
    driver = Driver()
    driver.state.must_leave(1, frozenset({A}), 101.0)
    assert announced(driver.state.moved({A: 2, B: 1}, driver.state.batches, 102.0)) == set()


@pytest.mark.parametrize("has_part", [True, False])
def test_a_queue_that_its_next_owner_has_claimed_ends_no_batch(has_part: bool) -> None:
    """B5, I4: it was given up in good order; whoever gets it raises its epoch while the others go on."""
    driver = Driver()
    driver.state.must_leave(1, frozenset({A}), 101.0)
    if has_part:
        handed = PartHandedOver("one", part_of("p", A), cut=None, ends=frozenset({A}))
        driver.state.handed_over(peer("one"), handed, 101.0)
        assert freed(driver.state.committed(frozenset(), 102.0)) == {A}
    else:
        assert freed(driver.state.released(peer("one"), "one", frozenset({A}), 101.0)) == {A}
    # The planner has unlocked it.
    driver.state.must_leave(1, frozenset(), 102.0)

    assert driver.state.moved({A: 2, B: 1}, driver.state.batches, 103.0) == []


def test_a_queue_that_was_claimed_before_its_last_part_is_committed_is_not_free() -> None:
    """C5: the one who has claimed it begins where it stands in the store."""
    driver = Driver()
    driver.state.must_leave(1, frozenset({A}), 101.0)
    driver.hands_over("two", part_of("first", B))
    driver.state.tick(101.2)
    handed = PartHandedOver("one", part_of("p", A), cut=None, ends=frozenset({A}))
    driver.state.handed_over(peer("one"), handed, 101.3)
    driver.state.moved({A: 2, B: 1}, driver.state.batches, 101.4)

    assert committed(driver.state.committed(frozenset(), 102.0)) == []


def test_a_refused_queue_ends_the_batch() -> None:
    """H1"""
    driver = Driver()
    driver.hands_over("one", part_of("p", A))
    driver.state.tick(101.2)
    assert announced(driver.state.committed(frozenset({A}), 102.0)) == BOTH_END


def test_another_attempt_of_a_task_consumes_nothing_and_ends_the_batch() -> None:
    """D1: its queues begin again at what is committed."""
    driver = Driver()
    driver.breaks("one")
    actions = driver.begins("again", A, attempt=1, now_s=103.0)
    assert is_stopped(actions)
    # Task one may be alive and connected again.
    assert ended(actions) == {"two": EndReason.PLAN}


def test_the_fourth_death_of_a_task_at_the_same_offset_fails_the_batch() -> None:
    """D1: another attempt succeeds, so that Spark never gives up."""
    driver = Driver()
    failures: list[BaseException | None] = []
    for batch in range(4):
        driver.breaks("one", connection=batch + 1)
        driver.begins("again", A, attempt=1, now_s=103.0)
        driver.is_done("two")
        failures = flushed(driver.job_is_over())
        driver.state.batch_begins(7)
        driver.begins("one", A, connection=batch + 2)
        driver.begins("two", B, partition=1)
        if batch < 3:
            assert failures == [None]
    assert f"{A} offset=0: 4 tasks died one after the other" in str(failures[0])


def test_machines_that_are_taken_away_from_a_queue_without_messages_fail_no_batch() -> None:
    """D1: the tasks of the next batch report that there was nothing to deliver."""
    driver = Driver(begins=False)
    for batch in range(9):
        driver.begins("one", A, connection=batch + 1, at_end=BOTH)
        driver.begins("two", B, partition=1, at_end=BOTH)
        driver.breaks("one", connection=batch + 1, now_s=161.0)
        driver.begins("again", A, attempt=1, now_s=162.0)
        driver.is_done("two")
        assert flushed(driver.job_is_over(170.0)) == [None]
        driver.state.batch_begins(7)


def test_an_error_that_fails_each_task_at_the_same_offset_is_the_batchs_error() -> None:
    """D1: a disk that is full, a sink's writer with a bug; no message is to blame."""
    driver = Driver()
    failures: list[BaseException | None] = []
    for _ in range(4):
        full = TaskError("RocketMQError", "Rows could not be written:\nNo space left on device.")
        driver.state.task_failed(peer("one"), "one", 102.0, full)
        driver.begins("again", A, attempt=1, now_s=103.0)
        driver.is_done("two")
        failures += flushed(driver.job_is_over())
        driver.state.batch_begins(7)
        driver.begins("one", A)
        driver.begins("two", B, partition=1)
    assert failures[:3] == [None, None, None]
    reported = "The last error that they reported: RocketMQError: Rows could not be written: No space left on"
    assert f"4 tasks failed one after the other without getting further. {reported} device." in str(
        failures[3]
    )
    assert f"it continues at {A} offset=0." in str(failures[3])
    assert "skip" not in str(failures[3])


def test_an_error_that_another_attempt_would_meet_again_fails_the_batch() -> None:
    """D1"""
    driver = Driver()
    fatal = TaskError("SchemaError", "no such column", is_fatal=True)
    actions = driver.state.task_failed(peer("one"), "one", 101.0, fatal)
    assert ended(actions) == {"two": EndReason.STOP}
    driver.is_done("two")
    [failure] = flushed(driver.job_is_over())
    assert (type(failure).__name__, str(failure)) == ("SchemaError", "no such column")


@pytest.mark.parametrize("error", [TaskError("RocketMQError", "the disk is full"), None])
def test_another_error_leaves_it_to_another_attempt(error: TaskError | None) -> None:
    driver = Driver()
    assert ended(driver.state.task_failed(peer("one"), "one", 101.0, error)) == {}
    driver.begins("again", A, attempt=1)
    driver.is_done("two")
    assert flushed(driver.job_is_over()) == [None]


@pytest.mark.parametrize("stop", ["the query", "the planner", "no planner"])
def test_the_end_of_the_query_ends_the_batch(stop: str) -> None:
    """B7, C2, H11"""
    driver = Driver()
    if stop == "the query":
        actions = driver.state.stop(101.0)
    elif stop == "the planner":
        actions = driver.state.planner_leaves(1, 101.0)
    else:
        assert driver.state.lost("planner", 101.0) == [Look()]
        assert driver.state.tick(115.9) == []
        actions = driver.state.tick(116.0)
    assert ended(actions) == dict.fromkeys(BOTH_END, EndReason.STOP)
    assert is_stopped(driver.begins("again", A, attempt=1, now_s=117.0))


def test_no_task_begins_once_the_query_ends() -> None:
    driver = Driver(begins=False)
    assert driver.state.stop(99.0) == []
    assert is_stopped(driver.begins("one", A))


# --- connections ------------------------------------------------------------------------------------------


def test_a_task_resumes_on_another_connection_with_all_that_it_missed() -> None:
    """D1, H1"""
    driver = Driver()
    driver.hands_over("one", part_of("p", A))
    driver.breaks("one")
    driver.state.must_leave(1, frozenset({A}), 102.5)

    actions = driver.resumes("one", "p", "q")
    answer = goes_on(actions)
    assert actions[0] == Send(peer("one", 2), answer)
    assert answer == TaskMayGoOn(
        task="one",
        is_stopped=False,
        known=frozenset({"p"}),
        uncommitted=frozenset({"p"}),
        given_up=frozenset({A}),
        dropped=frozenset(),
    )


def test_nothing_is_sent_to_a_task_that_is_not_connected() -> None:
    driver = Driver()
    driver.breaks("one")
    assert sent(driver.state.must_leave(1, frozenset({A}), 102.5), GiveUpQueues) == []
    assert ended(driver.state.stop(103.0)) == {"two": EndReason.STOP}


def test_a_task_that_resumes_in_a_batch_that_is_ended_has_to_end() -> None:
    driver = Driver()
    driver.state.replan(1, "a queue was gained", 101.5)
    driver.calls_end("one")
    driver.breaks("one")
    driver.calls_end("two")
    actions = driver.resumes("one")
    assert not goes_on(actions).is_stopped
    assert ended(actions) == {"one": EndReason.PLAN}


def test_a_task_may_resume_before_the_loss_of_its_connection_is_noticed() -> None:
    """The network swallows what closes it."""
    driver = Driver()
    assert not goes_on(driver.resumes("one")).is_stopped
    driver.breaks("one", connection=1)

    assert driver.hands_over("one", part_of("p", A), connection=1) == []
    taken = driver.hands_over("one", part_of("p", A), connection=2)
    assert sent(taken, PartTaken) == [PartTaken("one", "p")]


def test_what_comes_late_from_an_older_connection_changes_nothing() -> None:
    driver = Driver()
    driver.resumes("one", connection=3)
    assert driver.resumes("one", connection=2) == []
    assert driver.begins("one", A, connection=1) == []
    taken = driver.hands_over("one", part_of("p", A), connection=3)
    assert [each.peer for each in taken if isinstance(each, Send)] == [peer("one", 3)]


def test_a_part_that_is_sent_again_is_confirmed_and_not_committed_twice() -> None:
    """H1"""
    driver = Driver()
    driver.hands_over("one", part_of("p", A))
    driver.breaks("one")
    driver.resumes("one", "p")
    again = driver.hands_over("one", part_of("p", A), connection=2)
    assert sent(again, PartTaken) == [PartTaken("one", "p")]
    assert committed(again) == []


def test_a_task_begins_again_whose_answer_was_lost_with_its_connection() -> None:
    driver = Driver(begins=False)
    driver.state.must_leave(1, frozenset({A}), 99.0)
    driver.begins("one", A, B)
    driver.state.must_leave(1, frozenset({A, B}), 101.0)
    driver.breaks("one")

    [again] = sent(driver.begins("one", A, B, connection=2), TaskMayBegin)
    assert (again.left_out, again.is_stopped) == (BOTH, False)


@pytest.mark.parametrize("batch_id", [6, 7])
def test_a_task_of_another_batch_or_run_has_to_end_when_it_resumes(batch_id: int) -> None:
    """D1"""
    answer = goes_on(Driver().resumes("zombie", "p", batch_id=batch_id))
    assert (answer.is_stopped, answer.known) == (True, frozenset())


def test_a_queue_is_not_free_while_its_task_is_not_connected() -> None:
    """B5: its call may still run; it resumes, or the batch is over."""
    driver = Driver()
    driver.breaks("one")
    assert freed(driver.state.must_leave(1, frozenset({A}), 102.5)) == set()
    driver.resumes("one")
    released = driver.state.released(peer("one", 2), "one", frozenset({A}), 104.0)
    assert sent(released, QueuesFree) == [QueuesFree(1, frozenset({A}))]


# --- when the batch is over -------------------------------------------------------------------------------


def replaced() -> Driver:
    """Spark believes task one dead, and has run it again."""
    driver = Driver()
    driver.begins("again", A, attempt=1)
    driver.is_done("again")
    driver.is_done("two")
    return driver


def test_a_batch_is_over_once_an_attempt_that_spark_believes_dead_has_ended() -> None:
    """D1: its last part counts."""
    driver = replaced()
    assert flushed(driver.job_is_over(110.0)) == []
    actions = [
        *driver.hands_over("one", part_of("p", A)),
        *driver.is_done("one", now_s=111.0),
        *driver.state.tick(111.0),
    ]
    assert (committed(actions), flushed(actions)) == ([part_of("p", A)], [])
    assert flushed(driver.state.committed(frozenset(), 112.0)) == [None]


@pytest.mark.parametrize(("is_silent", "pauses_s"), [(False, 103.0), (True, 122.0)])
def test_a_batch_is_over_once_such_an_attempt_has_paused(is_silent: bool, pauses_s: float) -> None:
    driver = replaced()
    driver.breaks("one", is_silent=is_silent)
    driver.job_is_over(102.5)
    assert flushed(driver.state.tick(pauses_s - 0.1)) == []
    assert flushed(driver.state.tick(pauses_s)) == [None]


def test_a_batch_does_not_wait_for_ever_for_such_an_attempt() -> None:
    """C2: locks are not renewed for a planner that plans nothing."""
    driver = replaced()
    driver.job_is_over(110.0)
    assert driver.state.tick(169.9) == []
    assert driver.state.tick(170.0) == [StillDelivered(), Flushed(None)]


def test_a_task_whose_last_word_was_lost_has_ended_if_spark_says_so() -> None:
    driver = Driver()
    driver.is_done("two")
    driver.breaks("one", is_silent=True)
    assert flushed(driver.job_is_over(102.5)) == [None]


def test_a_task_that_could_not_ask_does_not_stand_for_the_one_before() -> None:
    """D1: that one may be cut off too, and deliver until it notices."""
    driver = Driver()
    driver.is_done("two")
    driver.breaks("one", is_silent=True)
    assert flushed(driver.job_is_over(102.5, could_ask=False)) == []


def test_a_stopped_query_does_not_wait_for_its_tasks_and_its_planner_does() -> None:
    """H11"""
    driver = Driver()
    driver.breaks("one")
    driver.is_done("two", now_s=103.0)
    driver.state.job_is_over(104.0, is_whole=False)
    assert flushed(driver.state.batch_ends(104.0, could_ask=None, is_whole=False)) == [None]
    driver.state.planner_leaves(1, 104.0)
    assert plans_over(driver.state.batch_failed()) == []

    assert goes_on(driver.resumes("one", now_s=105.0)).is_stopped
    assert plans_over(driver.is_done("one", connection=2)) == [1]
