"""When a task reports that it is dirty, and when it cuts."""

from __future__ import annotations

import random

import pytest

from pyspark_rocketmq.consume.task_cuts import CutTimes


def test_a_task_reports_once_per_cut_that_it_is_dirty() -> None:
    cuts = CutTimes()
    assert [cuts.settled() for _ in range(3)] == [True, False, False]
    assert cuts.cut_wanted()
    assert cuts.cut_begins()
    assert [cuts.settled() for _ in range(3)] == [True, False, False]


def test_a_clean_task_has_nothing_to_cut() -> None:
    cuts = CutTimes()
    assert not cuts.cut_wanted()
    assert cuts.settled()
    assert cuts.cut_wanted()
    assert cuts.cut_begins()
    assert not cuts.cut_wanted()


def test_a_task_that_settles_something_before_the_cut_begins_reports_it_again() -> None:
    """It is not known whether the cut will take it, and the driver has forgotten the report before."""
    cuts = CutTimes()
    assert cuts.settled()
    assert cuts.cut_wanted()
    assert cuts.settled()
    assert cuts.cut_begins()
    assert not cuts.cut_wanted()


def test_a_task_with_two_parts_that_are_not_committed_makes_no_cut() -> None:
    """H1: its rows wait, in bounded memory."""
    cuts = CutTimes()
    cuts.sent("one")
    assert cuts.settled()
    cuts.sent("two")
    cuts.taken("one")
    assert not cuts.cut_wanted()
    assert not cuts.settled()

    assert cuts.over({"one"})
    assert not cuts.settled()
    assert cuts.cut_wanted()


def test_a_task_that_has_become_clean_reports_nothing_when_a_part_is_committed() -> None:
    cuts = CutTimes()
    cuts.sent("one")
    cuts.sent("two")
    assert not cuts.over({"one", "unknown"})


def test_a_part_that_is_sent_before_a_wanted_cut_begins_may_put_it_off() -> None:
    cuts = CutTimes()
    cuts.sent("one")
    assert cuts.settled()
    assert cuts.cut_wanted()
    cuts.sent("two")
    assert not cuts.cut_begins()
    assert cuts.over({"one"})
    assert cuts.cut_wanted()


def test_parts_are_in_doubt_until_the_driver_has_them() -> None:
    cuts = CutTimes()
    for part_id in ("b", "a", "c"):
        cuts.sent(part_id)
    cuts.taken("a")
    cuts.taken("a")
    assert list(cuts.in_doubt) == ["b", "c"]


@pytest.mark.parametrize("seed", range(200))
def test_whatever_happens_nothing_that_is_settled_stays_without_a_report(seed: int) -> None:
    """A driver that asks whenever it was reported to since it asked before gets everything."""
    draw = random.Random(seed)
    cuts, number = CutTimes(), 0
    waiting = is_dirty = is_cutting = False
    parts: list[str] = []
    for _ in range(300):
        match draw.choice(["settle", "ask", "begin", "over"]):
            case "settle":
                waiting = True
                is_dirty |= cuts.settled()
            case "ask" if is_dirty and not is_cutting:
                is_dirty, is_cutting = False, cuts.cut_wanted()
            case "begin" if is_cutting:
                is_cutting = False
                if cuts.cut_begins() and waiting:
                    waiting, number = False, number + 1
                    cuts.sent(f"{number}")
                    parts.append(f"{number}")
            case "over" if parts:
                is_dirty |= cuts.over({parts.pop(0)})
        assert len(parts) <= 2
        assert not waiting or is_dirty or is_cutting or len(parts) == 2


def test_on_another_connection_the_answer_has_what_is_known_of_the_parts() -> None:
    cuts = CutTimes()
    for part_id in ("one", "two", "three"):
        cuts.sent(part_id)
    assert not cuts.settled()

    # Part one is committed, part two is not, and part three has not arrived.
    assert not cuts.resumed({"one", "two"}, {"two"})
    assert list(cuts.in_doubt) == ["three"]
    assert not cuts.cut_wanted()
    assert cuts.over({"two"})
    assert cuts.cut_wanted()


def test_on_another_connection_a_dirty_task_reports_that_again() -> None:
    cuts = CutTimes()
    assert cuts.settled()
    assert cuts.resumed((), ())
    assert not cuts.settled()


def test_on_another_connection_a_clean_task_reports_nothing() -> None:
    cuts = CutTimes()
    assert not cuts.resumed((), ())
    assert cuts.settled()


def test_a_task_cuts_by_itself_once_its_rows_have_a_size_and_holds_until_then() -> None:
    """H1: rows that travel within the parts."""
    cuts = CutTimes()
    cuts.limit_rows(100)
    cuts.rows_grew(99)
    assert (cuts.is_held, cuts.cuts_itself()) == (False, False)
    cuts.rows_grew(1)
    assert (cuts.is_held, cuts.cuts_itself(), cuts.cuts_itself()) == (True, True, False)

    assert cuts.cut_begins()
    # Until it has taken the rows, more of them would be in the same part.
    assert (cuts.is_held, cuts.cuts_itself()) == (True, False)
    cuts.rows_grew(60)
    cuts.taking_begins()
    cuts.rows_grew(60)
    cuts.rows_are_taken()
    assert not cuts.is_held
    cuts.rows_grew(40)
    assert cuts.cuts_itself()


def test_a_task_wants_no_cut_of_its_own_while_a_cut_for_the_driver_takes_its_rows() -> None:
    """H1: it would take one of the two parts, with hardly a row."""
    cuts = CutTimes()
    cuts.limit_rows(100)
    cuts.rows_grew(90)
    assert cuts.cut_begins()
    cuts.rows_grew(10)
    assert (cuts.is_held, cuts.cuts_itself()) == (True, False)

    cuts.taking_begins()
    cuts.rows_are_taken()
    assert (cuts.is_held, cuts.cuts_itself()) == (False, False)


def test_a_task_with_two_parts_that_are_not_committed_holds_its_rows() -> None:
    """H1"""
    cuts = CutTimes()
    cuts.limit_rows(100)
    cuts.sent("one")
    cuts.sent("two")
    cuts.rows_grew(150)
    assert (cuts.is_held, cuts.cuts_itself()) == (True, False)

    cuts.over({"one"})
    assert cuts.cuts_itself()


def test_a_cut_of_its_own_that_finds_two_parts_is_wanted_again_after_a_commit() -> None:
    cuts = CutTimes()
    cuts.limit_rows(100)
    cuts.rows_grew(150)
    assert cuts.cuts_itself()
    cuts.sent("one")
    cuts.sent("two")
    assert not cuts.cut_begins()
    assert cuts.is_held

    cuts.over({"one", "two"})
    assert cuts.cuts_itself()
    assert cuts.cut_begins()


def test_rows_in_files_are_not_bounded() -> None:
    cuts = CutTimes()
    cuts.rows_grew(1 << 40)
    assert (cuts.is_held, cuts.cuts_itself()) == (False, False)
