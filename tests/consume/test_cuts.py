"""When tasks cut and what is committed: step by step, as tables of moment, event and actions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import pytest

from pyspark_rocketmq.consume.cuts import (
    Action,
    Answer,
    AskForCut,
    Asking,
    CommitGroup,
    Committing,
    Cuts,
    Drop,
    EndReason,
    EndTasks,
    Fail,
    Free,
    PartsOver,
    Place,
    Replan,
    StoreOffsets,
    Taken,
)
from pyspark_rocketmq.consume.part import Group, Part, QueueAck
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageQueue, QueueState

A, B, C = (MessageQueue("T", "broker-a", number) for number in range(3))
AWAY = RocketMQError("away")
Event = Callable[[Cuts, float], list[Action]]


def ack(queue: MessageQueue, start: int, stop: int, epoch: int = 1) -> QueueAck:
    state = QueueState(stop, epoch)
    return QueueAck(
        queue=queue, start=start, state=state, consumed=stop - start, failed=0, finished="GIVEN_UP"
    )


def part(part_id: str, *acks: QueueAck, files: int = 1) -> Part:
    return Part(id=part_id, acks=acks, written=({"file": part_id},) * files)


def begins(
    task: str,
    partition: int,
    *queues: MessageQueue,
    attempt: int = 0,
    start: int = 0,
    is_open: bool = True,
) -> Event:
    places = dict.fromkeys(queues, Place(1, start))
    return lambda cuts, now_s: cuts.begin(task, partition, attempt, places, now_s, is_open=is_open)


def resumes(task: str, *in_doubt: str) -> Event:
    return lambda cuts, now_s: cuts.resume(task, in_doubt)


def dirty(task: str) -> Event:
    return lambda cuts, now_s: cuts.dirty(task, now_s)


def sends(task: str, sent: Part, cut: int | None = None, *, ends: tuple[MessageQueue, ...] = ()) -> Event:
    return lambda cuts, now_s: cuts.part(task, sent, now_s, cut=cut, ends=frozenset(ends))


def nothing(task: str, cut: int) -> Event:
    return lambda cuts, now_s: cuts.nothing(task, cut, now_s)


def released(task: str, *queues: MessageQueue) -> Event:
    return lambda cuts, now_s: cuts.released(task, frozenset(queues), now_s)


def lost(task: str) -> Event:
    return lambda cuts, now_s: cuts.lost(task, now_s)


def done(task: str) -> Event:
    return lambda cuts, now_s: cuts.done(task, now_s)


def tick(cuts: Cuts, now_s: float) -> list[Action]:
    return cuts.tick(now_s)


def committed(*refused: MessageQueue) -> Event:
    return lambda cuts, now_s: cuts.committed(frozenset(refused), now_s)


def fails(cuts: Cuts, now_s: float) -> list[Action]:
    return cuts.commit_failed(AWAY, now_s)


def moved(*queues: MessageQueue) -> Event:
    return lambda cuts, now_s: cuts.moved(frozenset(queues), now_s)


def ends(reason: EndReason) -> Event:
    return lambda cuts, now_s: cuts.end(reason, now_s)


def closes(cuts: Cuts, now_s: float) -> list[Action]:
    return cuts.close(now_s)


def commits(*parts: Part, without: tuple[MessageQueue, ...] = ()) -> CommitGroup:
    return CommitGroup(Group(parts, frozenset(without)))


def over(task: str, *part_ids: str) -> PartsOver:
    return PartsOver(task, frozenset(part_ids))


def run(cuts: Cuts, *steps: tuple[float, Event, list[Action]]) -> None:
    for number, (now_s, event, expected) in enumerate(steps):
        assert event(cuts, now_s) == expected, f"step {number} at {now_s}"


def two_tasks(interval_s: float | None = 0.5) -> Cuts:
    """A batch in which task one has begun with A and B, and task two with C, all at offset 0."""
    cuts = Cuts(interval_s)
    run(
        cuts,
        (0.0, begins("one", 0, A, B), [Answer("one", is_stopped=False)]),
        (0.0, begins("two", 1, C), [Answer("two", is_stopped=False)]),
    )
    return cuts


def asked(interval_s: float = 0.5) -> Cuts:
    """The same, with cut 1 under way at 1.005."""
    cuts = two_tasks(interval_s)
    run(cuts, (1.0, dirty("one"), []), (1.005, tick, [AskForCut(1, ("one", "two"))]))
    return cuts


A1, A2, A3 = part("a1", ack(A, 0, 3)), part("a2", ack(A, 3, 5)), part("a3", ack(A, 5, 6))
C1 = part("c1", ack(C, 0, 7))


def test_nothing_is_asked_while_nothing_happens() -> None:
    cuts = two_tasks()

    run(cuts, (100.0, tick, []))

    assert (cuts.asking, cuts.committing, cuts.next_tick_s) == (Asking.QUIET, Committing.IDLE, None)


def test_the_first_message_after_a_pause_is_cut_at_once_and_all_tasks_are_committed_together() -> None:
    cuts = two_tasks()
    run(cuts, (1.0, dirty("one"), []), (1.004, tick, []))
    assert (cuts.asking, cuts.next_tick_s) == (Asking.DUE, 1.005)

    run(cuts, (1.005, tick, [AskForCut(1, ("one", "two"))]))
    assert (cuts.asking, cuts.next_tick_s) == (Asking.GATHERING, 1.105)
    run(
        cuts,
        (1.010, sends("one", A1, cut=1), [Taken("one", "a1")]),
        (1.020, sends("two", C1, cut=1), [Taken("two", "c1"), commits(A1, C1)]),
    )
    assert (cuts.asking, cuts.committing) == (Asking.QUIET, Committing.COMMITTING)
    run(cuts, (1.030, committed(), [over("one", "a1"), over("two", "c1")]))
    assert (cuts.committing, cuts.is_settled) == (Committing.IDLE, True)


def test_without_an_interval_parts_come_only_when_queues_end() -> None:
    cuts = two_tasks(interval_s=None)
    run(cuts, (1.0, dirty("one"), []), (100.0, tick, []))
    assert (cuts.asking, cuts.next_tick_s) == (Asking.QUIET, None)
    run(cuts, (101.0, sends("one", A1, ends=(A,)), [Taken("one", "a1"), commits(A1)]))


def test_a_busy_task_is_cut_once_per_interval() -> None:
    run(
        asked(),
        (1.010, sends("one", A1, cut=1), [Taken("one", "a1")]),
        (1.011, dirty("one"), []),
        (1.012, nothing("two", 1), [commits(A1)]),
        (1.020, committed(), [over("one", "a1")]),
        (1.504, tick, []),
        (1.505, tick, [AskForCut(2, ("one", "two"))]),
    )


def test_a_report_that_crosses_the_answer_is_not_forgotten() -> None:
    """Writing takes a while: messages that were settled meanwhile are in no part yet."""
    run(
        asked(),
        (1.006, dirty("one"), []),
        (1.010, sends("one", A1, cut=1), [Taken("one", "a1")]),
        (1.010, nothing("two", 1), [commits(A1)]),
        (1.011, committed(), [over("one", "a1")]),
        (1.505, tick, [AskForCut(2, ("one", "two"))]),
    )


def test_a_slow_task_holds_up_the_others_for_a_tenth_of_a_second() -> None:
    run(
        asked(),
        (1.010, sends("one", A1, cut=1), [Taken("one", "a1")]),
        (1.104, tick, []),
        (1.105, tick, [commits(A1)]),
        (1.200, sends("two", C1, cut=1), [Taken("two", "c1")]),
        (1.300, committed(), [over("one", "a1"), commits(C1)]),
    )


def test_slow_commits_lengthen_the_interval() -> None:
    """One group is committed while the next one is gathered, and no further cut is asked for."""
    cuts = asked(interval_s=0.1)
    run(
        cuts,
        (1.01, sends("one", A1, cut=1), [Taken("one", "a1")]),
        (1.02, nothing("two", 1), [commits(A1)]),
        (1.03, dirty("one"), []),
        (1.11, tick, [AskForCut(2, ("one", "two"))]),
        (1.12, sends("one", A2, cut=2), [Taken("one", "a2")]),
        (1.13, nothing("two", 2), []),
        (1.14, dirty("one"), []),
        (1.90, tick, []),
    )
    assert cuts.next_tick_s is None
    run(
        cuts,
        (2.00, committed(), [over("one", "a1"), commits(A2)]),
        (2.00, tick, [AskForCut(3, ("one", "two"))]),
    )


def test_several_parts_of_a_queue_are_committed_as_one_span() -> None:
    cuts = asked()
    run(
        cuts,
        (1.01, sends("one", A1, cut=1), [Taken("one", "a1")]),
        (1.01, nothing("two", 1), [commits(A1)]),
        (1.10, sends("one", A2), [Taken("one", "a2")]),
        (1.20, sends("one", A3), [Taken("one", "a3")]),
        (2.00, committed(), [over("one", "a1"), commits(A2, A3)]),
    )
    group = Group((A2, A3))
    assert (group.id, [(each.start, each.state.next_offset) for each in group.acks]) == ("a2", [(3, 6)])


def test_a_large_group_is_committed_in_pieces() -> None:
    large, larger = part("a1", ack(A, 0, 3), files=600), part("a2", ack(A, 3, 5), files=500)
    largest = part("c1", ack(C, 0, 7), files=2_000)
    run(
        asked(),
        (1.01, sends("one", large), [Taken("one", "a1")]),
        (1.02, sends("one", larger), [Taken("one", "a2")]),
        (1.03, sends("two", largest), [Taken("two", "c1")]),
        (1.105, tick, [commits(large)]),
        (1.2, committed(), [over("one", "a1"), commits(larger)]),
        (1.3, committed(), [over("one", "a2"), commits(largest)]),
    )


# --- chain, known parts, poisoned queues ------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(ack(A, 4, 6), id="a gap"),
        pytest.param(ack(A, 2, 6), id="an overlap"),
        pytest.param(ack(A, 3, 6, epoch=2), id="another epoch"),
        pytest.param(ack(MessageQueue("T", "broker-a", 9), 0, 6), id="another queue"),
    ],
)
def test_a_part_that_does_not_follow_poisons_its_queue_and_no_other(wrong: QueueAck) -> None:
    both = part("both", wrong, ack(B, 0, 2))
    drop = Drop(frozenset({wrong.queue}))
    replan = Replan(frozenset({wrong.queue}), "a part does not follow the one before")
    run(
        asked(),
        (1.01, sends("one", A1, cut=1), [Taken("one", "a1")]),
        (1.02, nothing("two", 1), [commits(A1)]),
        (1.03, committed(), [over("one", "a1")]),
        (
            1.04,
            sends("one", both),
            [Taken("one", "both"), drop, replan, commits(both, without=(wrong.queue,))],
        ),
    )


def test_a_part_that_arrives_twice_counts_once() -> None:
    cuts = asked()
    run(
        cuts,
        (1.01, sends("one", A1), [Taken("one", "a1")]),
        (1.02, sends("one", A1), [Taken("one", "a1")]),
        (1.105, tick, [commits(A1)]),
        (1.2, sends("one", A1), [Taken("one", "a1")]),
        (1.3, committed(), [over("one", "a1")]),
        (1.4, sends("one", A1), [Taken("one", "a1")]),
    )
    assert cuts.is_settled


def test_a_refused_queue_is_dropped_with_all_that_comes_later_and_the_others_go_on() -> None:
    both = part("both", ack(A, 3, 5), ack(B, 0, 2))
    replan = Replan(frozenset({A}), "the sink or the offset store has refused the queue")
    run(
        asked(),
        (1.01, sends("one", A1, cut=1), [Taken("one", "a1")]),
        (1.02, nothing("two", 1), [commits(A1)]),
        (1.03, sends("one", both), [Taken("one", "both")]),
        (
            1.04,
            committed(A),
            [over("one", "a1"), Drop(frozenset({A})), replan, commits(both, without=(A,))],
        ),
        (1.05, committed(), [over("one", "both")]),
        (1.06, sends("one", A3), [Taken("one", "a3"), over("one", "a3")]),
        (1.07, moved(A), []),
    )


def test_a_moved_queue_is_left_out_of_the_next_group() -> None:
    replan = Replan(frozenset({A}), "the queue was claimed or reset")
    run(
        asked(),
        (1.01, sends("one", A1, cut=1), [Taken("one", "a1")]),
        (1.02, moved(A), [Drop(frozenset({A})), replan]),
        (1.03, sends("two", C1, cut=1), [Taken("two", "c1"), over("one", "a1"), commits(C1)]),
    )


# --- commits that fail ------------------------------------------------------------------------------------


def test_a_failed_commit_is_tried_again_before_any_other_with_growing_pauses() -> None:
    cuts = asked()
    run(
        cuts,
        (1.01, sends("one", A1, cut=1), [Taken("one", "a1")]),
        (1.02, nothing("two", 1), [commits(A1)]),
        (1.10, sends("two", C1), [Taken("two", "c1")]),
    )
    now_s = 2.0
    for pause_s in (0.5, 1.0, 2.0, 4.0, 5.0, 5.0):
        run(cuts, (now_s, fails, []))
        assert (cuts.committing, cuts.next_tick_s) == (Committing.RETRY, now_s + pause_s)
        now_s += pause_s
        run(cuts, (now_s - 0.01, tick, []), (now_s, tick, [commits(A1)]))
    run(cuts, (now_s, committed(), [over("one", "a1"), commits(C1)]), (now_s, fails, []))
    assert cuts.next_tick_s == now_s + 0.5


def test_after_a_minute_of_failures_the_batch_fails_and_nothing_more_is_committed() -> None:
    cuts = asked()
    run(
        cuts,
        (1.01, sends("one", A1, cut=1), [Taken("one", "a1")]),
        (1.02, nothing("two", 1), [commits(A1)]),
        (2.0, fails, []),
        (61.9, fails, []),
        (62.0, fails, [Fail(AWAY), EndTasks(EndReason.STOP, ("one", "two"))]),
        (62.1, sends("two", C1, ends=(C,)), [Taken("two", "c1")]),
        (62.2, done("one"), []),
        (62.3, begins("other", 2, C), [Answer("other", is_stopped=True)]),
        (100.0, tick, []),
    )
    assert (cuts.committing, cuts.is_settled) == (Committing.FAILED, True)


# --- offsets that wait ------------------------------------------------------------------------------------


B1 = part("b1", ack(B, 0, 2))


def behind() -> Cuts:
    """A's rows up to 3 are committed at 1.4; offsets were last stored at 1.1."""
    cuts = Cuts(0.5, may_offsets_wait=True)
    run(
        cuts,
        (1.0, begins("one", 0, A, B), [goes_on("one")]),
        (1.0, begins("two", 1, C), [goes_on("two")]),
        (1.0, sends("two", C1), [Taken("two", "c1"), commits(C1)]),
        (1.1, committed(), [over("two", "c1")]),
        (1.3, sends("one", A1), [Taken("one", "a1"), CommitGroup(Group((A1,)), stores_offsets=False)]),
        (1.4, committed(), [over("one", "a1")]),
    )
    assert cuts.behind == {A}
    assert not cuts.is_settled
    return cuts


def test_offsets_wait_for_the_next_group_that_is_stored_with_them() -> None:
    """H1"""
    cuts = behind()
    run(
        cuts,
        (1.8, sends("one", A2), [Taken("one", "a2"), CommitGroup(Group((A2,)), stores_offsets=False)]),
        (1.9, committed(), [over("one", "a2")]),
        (2.1, sends("one", B1), [Taken("one", "b1"), commits(B1)]),
    )
    assert cuts.behind == {A}
    run(cuts, (2.2, committed(), [over("one", "b1")]))
    assert cuts.behind == frozenset()
    assert cuts.next_tick_s is None


def test_offsets_are_stored_without_a_group_when_it_is_time() -> None:
    """H1: nothing else may come for hours."""
    cuts = behind()
    assert cuts.next_tick_s == pytest.approx(2.1)
    run(
        cuts,
        (2.09, tick, []),
        (2.1, tick, [StoreOffsets()]),
        (2.2, sends("one", A2), [Taken("one", "a2")]),
        (2.3, committed(), [CommitGroup(Group((A2,)), stores_offsets=False)]),
        (2.4, committed(), [over("one", "a2")]),
    )
    assert cuts.next_tick_s == pytest.approx(3.3)


def test_storing_takes_long_so_that_it_is_done_less_often() -> None:
    cuts = behind()
    run(
        cuts,
        (2.1, tick, [StoreOffsets()]),
        (2.3, lambda cuts, now_s: cuts.committed(frozenset(), now_s, took_s=0.2), []),
        (2.4, sends("one", A2), [Taken("one", "a2"), CommitGroup(Group((A2,)), stores_offsets=False)]),
        (2.5, committed(), [over("one", "a2")]),
    )
    assert cuts.next_tick_s == pytest.approx(7.3)


def test_a_queue_is_free_once_its_offset_is_stored() -> None:
    """B5: with its last part, or without one if it made no progress since."""
    run(
        behind(),
        (1.5, sends("one", B1), [Taken("one", "b1"), CommitGroup(Group((B1,)), stores_offsets=False)]),
        (1.6, released("one", A), []),
        (1.7, committed(), [over("one", "b1"), StoreOffsets()]),
        (1.8, committed(), [_freed(A)]),
    )
    run(behind(), (1.5, released("one", A), [StoreOffsets()]), (1.6, committed(), [_freed(A)]))
    run(
        behind(),
        (1.5, sends("one", A2, ends=(A,)), [Taken("one", "a2"), commits(A2)]),
        (1.6, committed(), [over("one", "a2"), _freed(A)]),
    )


def test_a_queue_whose_offset_is_refused_is_free_all_the_same() -> None:
    """C5: somebody else has claimed it since its rows were committed."""
    cuts = behind()
    run(
        cuts,
        (2.1, tick, [StoreOffsets()]),
        (2.2, released("one", A), []),
        (
            2.3,
            committed(A),
            [
                Drop(frozenset({A})),
                Replan(frozenset({A}), "the sink or the offset store has refused the queue"),
                _freed(A),
            ],
        ),
    )
    assert cuts.behind == frozenset()


def test_a_batch_ends_with_all_its_offsets_stored() -> None:
    """H1: the next plan begins at them."""
    cuts = behind()
    run(cuts, (1.5, closes, [StoreOffsets()]))
    assert not cuts.is_settled
    run(cuts, (1.6, fails, []), (2.1, tick, [StoreOffsets()]), (2.2, committed(), []))
    assert cuts.is_settled


def test_a_batch_that_has_failed_tries_once_to_store_its_offsets() -> None:
    """H1: they cost calls of the listener, and the query's own error is to be seen."""
    cuts = behind()
    run(
        cuts,
        (1.5, lambda cuts, now_s: cuts.failed("one", AWAY, now_s)[:1], [Fail(AWAY)]),
        (9.0, tick, []),
        (9.1, lambda cuts, now_s: cuts.close(now_s, is_hurried=True), [StoreOffsets()]),
        (9.2, fails, []),
    )
    assert cuts.is_settled


def test_offsets_that_cannot_be_stored_fail_the_batch_after_a_minute() -> None:
    """H1"""
    cuts = behind()
    run(cuts, (2.1, tick, [StoreOffsets()]), (2.2, fails, []), (2.7, tick, [StoreOffsets()]))
    assert Fail(AWAY) in fails(cuts, 62.3)
    assert cuts.committing is Committing.FAILED
    assert cuts.is_settled


# --- attempts and connections -----------------------------------------------------------------------------


def test_another_attempt_consumes_nothing_and_ends_the_batch() -> None:
    """Its predecessor may live; what it hands over counts, and the batch is not over before it has ended."""
    cuts = two_tasks()
    last = part("a1", ack(A, 0, 3))
    run(
        cuts,
        (
            1.0,
            begins("again", 0, A, B, attempt=1),
            [
                Answer("again", is_stopped=True),
                EndTasks(EndReason.PLAN, ("one", "two", "again")),
            ],
        ),
        (1.01, sends("one", last, ends=(A, B)), [Taken("one", "a1"), _freed(B)]),
        (1.02, done("again"), []),
        (1.03, done("two"), [commits(last)]),
        (1.04, committed(), [over("one", "a1"), _freed(A)]),
    )
    assert cuts.is_anybody_delivering(1.04)
    run(cuts, (1.05, done("one"), []))
    assert not cuts.is_anybody_delivering(1.05)


def test_an_attempt_that_comes_late_or_into_a_batch_that_ends_is_stopped() -> None:
    cuts = two_tasks()
    run(
        cuts,
        (1.0, begins("older", 0, A, B), [Answer("older", is_stopped=True)]),
        (1.0, ends(EndReason.TIME), [EndTasks(EndReason.TIME, ("one", "two"))]),
        (1.0, begins("third", 2, C), [Answer("third", is_stopped=True)]),
        (2.0, ends(EndReason.PLAN), []),
    )


def test_a_task_that_resumes_is_sent_what_it_has_missed() -> None:
    cuts = asked()
    b1 = part("b1", ack(B, 0, 1))
    replan = Replan(frozenset({B}), "the queue was claimed or reset")
    run(
        cuts,
        (1.01, sends("one", A1, cut=1), [Taken("one", "a1")]),
        (1.02, nothing("two", 1), [commits(A1)]),
        (1.03, sends("one", b1), [Taken("one", "b1")]),
        (1.04, lost("one"), []),
        (1.05, moved(B), [Drop(frozenset({B})), replan]),
        (
            1.6,
            resumes("one", "b1", "a2"),
            [Answer("one", False, frozenset({"b1"}), frozenset({"a1", "b1"}), frozenset({B}))],
        ),
        (1.7, sends("one", A2), [Taken("one", "a2")]),
        (1.8, ends(EndReason.TIME), [EndTasks(EndReason.TIME, ("one", "two"))]),
        (1.9, resumes("two"), [Answer("two", is_stopped=False), EndTasks(EndReason.TIME, ("two",))]),
        (2.0, resumes("stranger"), [Answer("stranger", is_stopped=True)]),
    )


def test_a_task_that_asks_twice_because_its_connection_broke_is_answered_twice() -> None:
    run(
        two_tasks(),
        (0.1, lost("two"), []),
        (0.2, begins("two", 1, C), [Answer("two", is_stopped=False)]),
        (0.3, sends("two", C1), [Taken("two", "c1"), commits(C1)]),
    )


def test_a_lost_task_is_not_asked() -> None:
    run(
        two_tasks(),
        (1.0, lost("one"), []),
        (1.0, dirty("two"), []),
        (1.005, tick, [AskForCut(1, ("two",))]),
        (1.01, sends("two", C1, cut=1), [Taken("two", "c1"), commits(C1)]),
    )


@pytest.mark.parametrize(("is_silent", "until_s"), [(True, 21.03), (False, 2.03)])
def test_a_lost_task_is_not_waited_for_and_may_deliver_until_it_has_noticed(
    is_silent: bool, until_s: float
) -> None:
    cuts = asked()
    run(cuts, (1.01, sends("one", A1, cut=1), [Taken("one", "a1")]), (1.02, done("one"), []))
    assert cuts.lost("two", 1.03, is_silent=is_silent) == [commits(A1)]
    delivering = [cuts.is_anybody_delivering(at_s) for at_s in (1.03, until_s - 0.01, until_s + 0.01)]
    assert delivering == [True, True, False]


def _die(cuts: Cuts, start: int, *, survives: bool = False, error: str | None = None) -> list[Action]:
    """A batch in which the task of A dies at offset ``start``, unless it survives; its last actions.

    ``error``: what the task reports; None if it is killed.
    """
    cuts.begin_batch()
    begins("one", 0, A, start=start)(cuts, 0.0)
    if survives:
        run(cuts, (0.5, ends(EndReason.TIME), [EndTasks(EndReason.TIME, ("one",))]), (0.6, done("one"), []))
        return closes(cuts, 1.0)
    if error is None:
        lost("one")(cuts, 0.5)
    else:
        cuts.done("one", 0.5, error=error)
    actions = begins("again", 0, A, attempt=1, start=start)(cuts, 1.0)
    done("again")(cuts, 1.1)
    closes(cuts, 1.2)
    return actions


@pytest.mark.parametrize(
    ("places", "is_failed"),
    [([5, 5, 5, 5], True), ([5, 5, 5], False), ([5, 5, 5, 6, 6, 6], False), ([5, 5, 5, -1, 5], False)],
)
def test_the_fourth_death_at_the_same_offset_fails_the_batch(places: list[int], is_failed: bool) -> None:
    """-1 stands for a batch that survives."""
    cuts = Cuts(0.5)
    for place in places[:-1]:
        assert not any(
            isinstance(each, Fail) for each in _die(cuts, 5 if place < 0 else place, survives=place < 0)
        )

    failures = [each for each in _die(cuts, places[-1]) if isinstance(each, Fail)]

    assert [f"{A} offset=5: 4 tasks died" in str(each.error) for each in failures] == [True] * is_failed


@pytest.mark.parametrize(
    ("errors", "named"),
    [
        ([None] * 4, None),
        (["No space."] * 4, "No space"),
        (["Busy.", None, "No space.", None], "No space"),
        (["of an offset before", None, None, None, None], None),
    ],
)
def test_the_last_error_that_tasks_have_reported_is_named_and_otherwise_the_message_that_may_be_skipped(
    errors: list[str | None], named: str | None
) -> None:
    """D1: whoever reports an error was not killed by a message."""
    cuts = Cuts(0.5)
    failures: list[str] = []
    for number, error in enumerate(errors, 5 - len(errors)):
        assert failures == []
        actions = _die(cuts, 5 if number else 4, error=error)
        failures = [str(each.error) for each in actions if isinstance(each, Fail)]

    [text] = failures
    assert (f"The last error that they reported: {named}. Correct its cause" in text) is (named is not None)
    assert ("offsets skip" in text) is (named is None)


@pytest.mark.parametrize(
    ("places", "named"),
    [
        ([1, 2, 3, 4, 5, 6, 6, 6], []),
        ([1, 2, 3, 4, 5, 6, 6, 6, 6], [f"{A} offset=6; {B} offset=0: 4 tasks died"]),
        (list(range(11)), []),
        (list(range(12)), [f"{A} offset=11; {B} offset=0: 12 tasks died"]),
    ],
    ids=["A moves", "A stands too", "A moves eleven times", "A moves twelve times"],
)
def test_a_queue_that_stands_fails_the_batch_late_if_another_one_of_its_task_moves(
    places: list[int], named: list[str]
) -> None:
    """B is idle in most cases, and no message of it ends anybody: both are named."""
    cuts = Cuts(0.5)
    failures: list[str] = []
    for place in places:
        assert failures == []
        cuts.begin_batch()
        at = {A: Place(1, place), B: Place(1, 0)}
        cuts.begin("one", 0, 0, at, 0.0, is_open=True)
        lost("one")(cuts, 0.5)
        actions = cuts.begin("again", 0, 1, at, 1.0, is_open=True)
        failures = [str(each.error) for each in actions if isinstance(each, Fail)]
        closes(cuts, 1.2)

    assert [text.startswith(begin) for text, begin in zip(failures, named, strict=True)] == [True] * len(
        named
    )


class Deaths:
    """Batches in each of which an open task dies, until the query fails."""

    def __init__(self, lives_s: float = 120.0, *, is_silent: bool = False, error: str | None = None) -> None:
        self.cuts = Cuts(0.5)
        self.lives_s = lives_s
        self.is_silent = is_silent
        self.error = error
        self.failures: list[str] = []
        self.number = 0

    def plan(self, *tasks: Mapping[MessageQueue, int], at_end: Collection[MessageQueue]) -> None:
        """Begin a batch of ``tasks``, given by the starts of their queues."""
        self.cuts.begin_batch()
        for number, task in enumerate(tasks):
            places = {queue: Place(1, start) for queue, start in task.items()}
            here = frozenset(at_end) & places.keys()
            self.cuts.begin(f"task {number}", number, 0, places, 0.0, is_open=True, at_end=here)

    def one(self, task: Mapping[MessageQueue, int], *, at_end: Collection[MessageQueue]) -> None:
        """Let the only task of a batch die."""
        self.number += 1
        self.plan(task, at_end=at_end)
        if self.error is None:
            self.cuts.lost("task 0", self.lives_s, is_silent=self.is_silent)
        else:
            self.cuts.done("task 0", self.lives_s, error=self.error)
        places = {queue: Place(1, start) for queue, start in task.items()}
        actions = self.cuts.begin("again", 0, 1, places, self.lives_s + 1.0, is_open=True)
        self.failures += [str(each.error) for each in actions if isinstance(each, Fail)]
        self.cuts.close(self.lives_s + 2.0)

    def until_failure(self, task: Mapping[MessageQueue, int], *, at_end: Collection[MessageQueue]) -> str:
        while not self.failures and self.number < 30:
            self.one(task, at_end=at_end)
        return self.failures[0] if self.failures else ""


@pytest.mark.parametrize("is_silent", [False, True])
def test_machines_that_are_taken_away_from_queues_without_messages_fail_no_batch(*, is_silent: bool) -> None:
    """D1: decommissioning and spot instances end executors one after the other, and nothing is wrong."""
    assert Deaths(is_silent=is_silent).until_failure({A: 5, B: 9}, at_end=(A, B)) == ""


@pytest.mark.parametrize(
    ("deaths", "at_end", "advises_skip"),
    [
        pytest.param(Deaths(), (), True, id="a message may be there"),
        pytest.param(Deaths(), (B,), True, id="a message is in one of the queues"),
        pytest.param(Deaths(lives_s=59.0), (A, B), False, id="its beginning ends it"),
        pytest.param(Deaths(lives_s=79.0, is_silent=True), (A, B), False, id="silent since its beginning"),
        pytest.param(Deaths(error="No space."), (A, B), False, id="it reports an error"),
    ],
)
def test_a_death_whose_cause_may_be_in_the_query_counts_and_no_absent_message_is_to_be_skipped(
    deaths: Deaths, at_end: tuple[MessageQueue, ...], *, advises_skip: bool
) -> None:
    """D1: the same number as ever, whatever the other queues of the task have."""
    text = deaths.until_failure({A: 5, B: 9}, at_end=at_end)

    assert deaths.number == 4
    assert "4 tasks" in text
    assert ("offsets skip" in text) is advises_skip
    assert (f"A message at {A} offset=5 may end" in text) is (at_end == (B,))


def test_a_message_that_comes_to_a_quiet_queue_and_ends_its_worker_counts_from_its_first_death_on() -> None:
    """D1: the plan before the first death saw no message, and the plan after it does."""
    deaths = Deaths()
    for _ in range(6):
        # The sixth death is the message's.
        deaths.one({A: 5}, at_end=(A,))
    for _ in range(3):
        assert deaths.failures == []
        deaths.one({A: 5}, at_end=())

    assert "offsets skip" in deaths.failures[0]


def test_a_death_is_taken_back_once_plans_have_had_all_queues_of_the_task() -> None:
    """D1: the next plans may give the queues to other tasks, or leave one out for a while."""
    deaths = Deaths()
    for _ in range(12):
        deaths.one({A: 5, B: 9}, at_end=(A, B))
        assert deaths.failures == []
        for tasks in ([{B: 9}], [{C: 0}, {A: 5}]):
            deaths.plan(*tasks, at_end=(A, B, C))
            deaths.cuts.close(1.0)


@pytest.mark.parametrize("later", [None, 10], ids=["in no plan", "at another offset"])
def test_a_death_counts_as_long_as_it_is_not_known_whether_one_of_its_queues_had_a_message(
    later: int | None,
) -> None:
    """D1: another member may have the queue by then, or an operator has reset it."""
    deaths = Deaths()
    for number in range(12):
        assert deaths.failures == []
        other = MessageQueue("T", "broker-b", number)
        deaths.one({A: 5, other: 9}, at_end=(A,))
        deaths.plan({A: 5} if later is None else {A: 5, other: later}, at_end=(A, other))
        deaths.cuts.close(1.0)

    assert len(deaths.failures) == 1


def test_a_quiet_death_that_is_forgiven_is_not_taken_back_too() -> None:
    """D1: otherwise a message that ends its worker would have a death more."""
    deaths = Deaths()
    deaths.one({A: 5, B: 9}, at_end=(A, B))
    deaths.plan({A: 5}, at_end=(A,))
    deaths.cuts.done("task 0", 1.0)
    deaths.cuts.close(1.1)
    deaths.number = 0
    deaths.one({A: 5}, at_end=())
    deaths.plan({B: 9}, at_end=(B,))
    deaths.cuts.close(1.0)

    assert deaths.until_failure({A: 5}, at_end=()) != ""
    assert deaths.number == 4


def test_an_error_that_another_attempt_would_meet_again_fails_the_batch() -> None:
    def fails_for_good(cuts: Cuts, now_s: float) -> list[Action]:
        return cuts.failed("one", AWAY, now_s)

    cuts = two_tasks()
    run(
        cuts,
        (1.0, fails_for_good, [Fail(AWAY), EndTasks(EndReason.STOP, ("two",))]),
        (1.1, sends("two", C1, ends=(C,)), [Taken("two", "c1")]),
        (1.2, fails_for_good, []),
    )
    assert (cuts.is_settled, cuts.is_anybody_delivering(1.2)) == (True, True)
    done("two")(cuts, 1.3)
    assert not cuts.is_anybody_delivering(1.3)


def test_a_task_that_fails_after_its_batch_has_failed_delivers_no_more() -> None:
    """Otherwise the batch would wait a minute for a task that has ended."""
    cuts = two_tasks()
    cuts.failed("one", AWAY, 1.0)
    assert cuts.is_anybody_delivering(1.1)
    assert cuts.failed("two", AWAY, 1.2) == []
    assert not cuts.is_anybody_delivering(1.2)


def test_of_a_whole_job_only_attempts_that_others_have_replaced_may_still_deliver() -> None:
    cuts = two_tasks()
    begins("again", 0, A, B, attempt=1)(cuts, 1.0)
    cuts.lost("two", 1.0, is_silent=True)
    cuts.job_is_whole()
    assert cuts.is_anybody_delivering(1.1)
    done("one")(cuts, 1.2)
    assert not cuts.is_anybody_delivering(1.2)


# --- free queues and the batch's end ----------------------------------------------------------------------


def _freed(*queues: MessageQueue) -> Free:
    return Free(frozenset(queues))


def test_a_queue_given_up_is_committed_at_once_and_free_after_that() -> None:
    run(
        asked(),
        (1.01, sends("one", A1, ends=(A,)), [Taken("one", "a1"), commits(A1)]),
        (1.02, committed(), [over("one", "a1"), _freed(A)]),
    )


def test_a_queue_without_progress_is_free_once_its_earlier_parts_are_committed() -> None:
    run(
        asked(),
        (1.01, sends("one", A1, cut=1), [Taken("one", "a1")]),
        (1.01, released("one", A), []),
        (1.02, nothing("two", 1), [commits(A1)]),
        (1.03, released("one", A, B), [_freed(B)]),
        (1.04, committed(), [over("one", "a1"), _freed(A)]),
        (1.05, released("stranger", C), []),
    )


def test_a_poisoned_queue_is_free_although_a_part_of_it_waits() -> None:
    replan = Replan(frozenset({A}), "the queue was claimed or reset")
    run(
        asked(),
        (1.01, sends("one", A1, cut=1), [Taken("one", "a1")]),
        (1.02, moved(A), [Drop(frozenset({A})), replan]),
        (1.03, released("one", A), [_freed(A)]),
        (1.04, nothing("two", 1), [over("one", "a1")]),
    )


def test_the_last_parts_of_a_batch_are_committed_together() -> None:
    cuts = two_tasks()
    run(
        cuts,
        (1.00, dirty("one"), []),
        (1.00, ends(EndReason.TIME), [EndTasks(EndReason.TIME, ("one", "two"))]),
        (1.01, sends("one", A1, ends=(A, B)), [Taken("one", "a1"), _freed(B)]),
        (1.02, sends("two", C1, ends=(C,)), [Taken("two", "c1"), commits(A1, C1)]),
        (1.03, done("one"), []),
        (1.03, done("two"), []),
        (1.04, closes, []),
        (1.05, committed(), [over("one", "a1"), over("two", "c1"), _freed(A, C)]),
        (1.06, tick, []),
    )
    assert (cuts.is_settled, cuts.is_anybody_delivering(1.06)) == (True, False)


def test_nothing_is_taken_after_the_job_and_from_batches_before() -> None:
    cuts = asked()
    run(
        cuts,
        (1.01, sends("one", A1, cut=1), [Taken("one", "a1")]),
        (1.02, closes, [commits(A1)]),
        (1.03, sends("two", C1), [Taken("two", "c1")]),
        (1.04, committed(), [over("one", "a1")]),
    )
    cuts.begin_batch()
    run(
        cuts,
        (2.0, sends("two", C1), [Taken("two", "c1")]),
        (2.0, resumes("two"), [Answer("two", is_stopped=True)]),
    )
    assert cuts.is_settled


def test_a_queue_may_be_begun_by_nobody_else_while_the_batch_is_closed() -> None:
    run(two_tasks(), (1.0, closes, []), (1.1, begins("third", 2, C), [Answer("third", is_stopped=True)]))


def test_without_an_interval_a_commit_is_tried_until_the_job_is_over() -> None:
    """Storage that is away for long harms nothing if it is there again when the batch ends."""
    cuts = two_tasks(None)
    run(
        cuts,
        (10.0, sends("one", A1, ends=(A,)), [Taken("one", "a1"), commits(A1)]),
        (11.0, fails, []),
        (200.0, tick, [commits(A1)]),
        (201.0, fails, []),
        (202.0, closes, []),
        (203.0, tick, [commits(A1)]),
        (204.0, fails, [Fail(AWAY), EndTasks(EndReason.STOP, ("one", "two"))]),
    )


# --- closed ranges ----------------------------------------------------------------------------------------


def goes_on(task: str, *left_out: MessageQueue, dropped: tuple[MessageQueue, ...] = ()) -> Answer:
    return Answer(task, is_stopped=False, dropped=frozenset(dropped), left_out=frozenset(left_out))


def test_another_attempt_of_closed_ranges_consumes_what_is_in_no_part() -> None:
    cuts = two_tasks()
    b1 = part("b1", ack(B, 0, 2))
    run(
        cuts,
        (1.0, sends("one", A1), [Taken("one", "a1"), commits(A1)]),
        (1.1, lost("one"), []),
        (1.2, begins("again", 0, A, B, attempt=1, is_open=False), [goes_on("again", A)]),
        (1.3, committed(), [over("one", "a1"), Free(frozenset({A}))]),
        (1.4, sends("again", b1, ends=(B,)), [Taken("again", "b1"), commits(b1)]),
        (1.5, committed(), [over("again", "b1"), Free(frozenset({B}))]),
    )
    assert not cuts.is_ending


def test_nothing_more_is_taken_of_an_attempt_of_closed_ranges_that_another_one_follows() -> None:
    cuts = two_tasks()
    run(
        cuts,
        (
            1.0,
            begins("again", 0, A, B, attempt=1, is_open=False),
            [goes_on("again"), EndTasks(EndReason.STOP, ("one",))],
        ),
        (1.1, dirty("one"), []),
        (1.2, sends("one", A1), [Taken("one", "a1")]),
        (1.3, released("one", A), []),
        (1.4, sends("again", A1), [Taken("again", "a1"), commits(A1)]),
    )


def test_another_attempt_of_closed_ranges_leaves_out_what_was_given_up() -> None:
    cuts = two_tasks()
    run(
        cuts,
        (1.0, released("one", A), [Free(frozenset({A}))]),
        (1.1, moved(B), [Drop(frozenset({B})), Replan(frozenset({B}), "the queue was claimed or reset")]),
        (1.2, lost("one"), []),
        (1.3, begins("again", 0, A, B, attempt=1, is_open=False), [goes_on("again", A, dropped=(B,))]),
    )


def test_deaths_of_tasks_with_closed_ranges_are_counted_by_spark() -> None:
    cuts = two_tasks()
    for attempt in range(1, 9):
        cuts.lost(f"attempt {attempt - 1}", 1.0)
        assert cuts.begin(f"attempt {attempt}", 0, attempt, {A: Place(1, 0)}, 1.0)[0] == goes_on(
            f"attempt {attempt}"
        )


# --- what comes with the job ------------------------------------------------------------------------------


def test_what_comes_with_the_job_is_the_last_group_without_what_does_not_follow() -> None:
    cuts = two_tasks()
    run(cuts, (1.0, sends("one", A1), [Taken("one", "a1"), commits(A1)]))
    run(cuts, (1.1, committed(), [over("one", "a1")]), (1.2, closes, []))
    late_c = part("c2", ack(C, 3, 7))

    assert cuts.rest([A2, A3, late_c]) == Group((A2, A3, late_c), frozenset({C}))
    assert cuts.rest([]) is None


def test_a_part_of_a_task_that_could_not_ask_follows_none() -> None:
    cuts = Cuts(None)
    cuts.close(1.0)

    assert cuts.rest([A2]) == Group((A2,))


def test_a_commit_that_fails_after_its_job_has_failed_is_not_tried_again() -> None:
    cuts = two_tasks()
    run(
        cuts,
        (1.0, sends("one", A1), [Taken("one", "a1"), commits(A1)]),
        (1.1, fails, []),
        (1.2, lambda cuts, now_s: cuts.close(now_s, is_hurried=True), []),
        (1.2, tick, [commits(A1)]),
        (1.3, fails, [Fail(AWAY), EndTasks(EndReason.STOP, ("one", "two"))]),
    )
    assert cuts.is_settled
