"""Sub-commits in a simulated world: whatever dies, breaks or is late, each row is there once and in order.

Every seed is another world (:mod:`tests.simulation.world`): tasks, drivers and planners are killed, connections
break and are made again, tasks fail or are run again although they live, find no slot, or find that a queue
cannot go on; other members claim queues, operators reset them, brokers forget locks, commits fail or succeed
unseen, processes stand still. Checked at every step: rows are added in order
and once, offsets are never ahead of rows, resets are not undone, a queue has one deliverer while a lock holds,
and is free only after its last commit, tasks have few parts under way; later, that commits are prompt, that
queues which other members want are given up, and that everything is consumed.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Hashable, Mapping
from dataclasses import replace
from math import inf

import pytest

from pyspark_rocketmq.consume.cuts import Action, Answer, CommitGroup, Cuts, EndTasks, Place, _Task
from pyspark_rocketmq.consume.offset_pace import OffsetPace
from pyspark_rocketmq.consume.part import QueueAck
from pyspark_rocketmq.consume.task_cuts import CutTimes
from pyspark_rocketmq.hub import state
from pyspark_rocketmq.hub.messages import EndSoon, TaskBegins, TaskMayGoOn, TaskResumes
from pyspark_rocketmq.hub.state import HubState, Send
from pyspark_rocketmq.hub.task_end import TaskControl
from pyspark_rocketmq.model import MessageQueue
from tests.simulation.closed import ClosedDriver
from tests.simulation.driver import Driver
from tests.simulation.many import run_on_all_cores, run_worlds, violations
from tests.simulation.storage import Violation
from tests.simulation.world import Left, World

WORLDS = int(os.environ.get("WORLDS", "1000000"))
"""Worlds of the long test, half of them with open ranges; each takes about five milliseconds."""
WORLD = os.environ.get("WORLD")
"""Seed of the only world of the long test, to see again what has failed."""
_EVENTS = (
    "calls",
    "cuts",
    "groups",
    "groups whose offsets wait",
    "offsets without a group",
    "freed",
    "killed tasks",
    "replaced tasks",
    "killed before data",
    "killed after data",
    "killed after offsets",
    "killed planners",
    "stops",
    "broken connections",
    "claims by others",
    "queues asked for",
    "resets",
    "jumps",
    "unknown",
    "not made",
    "refused queues",
    "lost parts",
    "broken chains",
)
_OPEN_EVENTS = (
    *_EVENTS,
    "resumed tasks",
    "failed tasks",
    "tasks failed for good",
    "standing queues",
    "large parts",
    "slots too few",
    "no slot to run again",
    "replans wanted",
    "deadly calls",
    "skipped",
    "ended for time",
    "ended for plan",
)
"""Events of worlds whose ranges are open."""


@pytest.mark.parametrize("part", range(5))
def test_each_row_is_committed_once_and_in_order_whatever_breaks(part: int) -> None:
    counts = run_worlds(range(300 * part, 300 * (part + 1)))

    assert counts["steps"] > 100_000
    assert [event for event in _OPEN_EVENTS if not counts[event]] == []


@pytest.mark.parametrize("part", range(5))
def test_each_row_of_micro_batches_is_committed_once_and_in_order_whatever_breaks(part: int) -> None:
    counts = run_worlds(range(300 * part, 300 * (part + 1)), ClosedDriver)

    assert counts["steps"] > 100_000
    assert [event for event in (*_EVENTS, "parts with the job") if not counts[event]] == []


@pytest.mark.long
@pytest.mark.timeout(120 + WORLDS // 50)
@pytest.mark.parametrize("driver", [Driver, ClosedDriver])
def test_each_row_is_committed_once_and_in_order_in_many_worlds(driver: type[Driver]) -> None:
    first = int(WORLD or 10_000)

    run_on_all_cores(range(first, first + (1 if WORLD else WORLDS // 2)), driver)


class NeverBegins(Driver):
    """Fail in each world."""

    def __init__(self, world: World) -> None:
        raise Violation("it is simulated")


def test_a_world_that_fails_is_named() -> None:
    with pytest.raises(Violation, match="it is simulated") as raised:
        run_on_all_cores(range(7, 9), NeverBegins)

    assert raised.value.__notes__ == ["NeverBegins: `make worlds SEED=7` runs this world again."]


# --- rules left out, to show that the checks see it -------------------------------------------------------


class WithoutChain(Cuts):
    """Take parts that do not follow."""

    def _follows(self, ack: QueueAck) -> bool:
        return True


class WithoutKnownParts(Cuts):
    """Count a part each time that it arrives, and answer that none is known."""

    def _is_known(self, task: _Task, part_id: str) -> bool:
        return False

    def resume(self, task: str, in_doubt: Collection[str]) -> list[Action]:
        answer, *others = super().resume(task, in_doubt)
        assert isinstance(answer, Answer)
        return [replace(answer, known=frozenset()), *others]


class LaterAttemptsConsume(Cuts):
    """Let another attempt begin like the first one."""

    def _is_another_attempt(self, former: _Task | None, attempt: int) -> bool:
        return False


class EndIsSentOnce(Cuts):
    """Leave the end of the batch out of the answer to a task that was not connected then."""

    def resume(self, task: str, in_doubt: Collection[str]) -> list[Action]:
        return [each for each in super().resume(task, in_doubt) if not isinstance(each, EndTasks)]


class DeathsAreForgotten(Cuts):
    """Have tasks die at the same message for ever."""

    def _died(self, former: _Task | None, places: Mapping[MessageQueue, Place], now_s: float) -> list[Action]:
        return []


class WithoutPoison(Cuts):
    """Commit what follows of a queue that was refused or has a gap."""

    def _is_poisoned(self, queue: MessageQueue) -> bool:
        return False


class OtherGroupFirst(Cuts):
    """Go on with the next group when one has failed."""

    def _try_again(self) -> list[Action]:
        if not isinstance(self._in_hand, CommitGroup):
            return super()._try_again()
        self._in_hand, self._batch.in_hand = None, []
        return self._next_group(0.0)


class FreeAtOnce(Cuts):
    """Free a queue although parts of it are still to be committed."""

    def _is_free(self, queue: MessageQueue) -> bool:
        return True


class FreeBeforeItsOffset(Cuts):
    """Free a queue whose offset is still to be stored."""

    def _is_free(self, queue: MessageQueue) -> bool:
        pace, self._pace = self._pace, OffsetPace(may_wait=True)
        is_free = super()._is_free(queue)
        self._pace = pace
        return is_free


class OverBeforeOffsets(Cuts):
    """End a batch whose offsets are still to be stored."""

    @property
    def is_settled(self) -> bool:
        is_idle = not isinstance(self._in_hand, CommitGroup)
        return is_idle and (not self._batch.waiting or self._error is not None)


class OffsetsNeedGroups(Cuts):
    """Store offsets with the next group only, whenever that comes."""

    def __init__(self, interval_s: float | None, *, may_offsets_wait: bool = False) -> None:
        super().__init__(interval_s)
        self._pace = _NeverDue(may_wait=may_offsets_wait)


class _NeverDue(OffsetPace):
    @property
    def due_s(self) -> float | None:
        return inf if self.behind else None


class AskAlways(Cuts):
    """Ask for a cut while one group is committed and another waits."""

    _is_held_back = False


class AnswerClearsReports(Cuts):
    """Take an answer to a cut for all that its task has reported before."""

    def _answered(self, task_id: str, cut: int | None) -> None:
        super()._answered(task_id, cut)
        self._batch.dirty.discard(task_id)


class SilentTasksAreGone(Cuts):
    """Take a task from which nothing comes for one that has noticed it."""

    def lost(self, task: str, now_s: float, *, is_silent: bool = False) -> list[Action]:
        return super().lost(task, now_s)


class AnyConnection(HubState):
    """Take a task's word on an older connection for that on its newest one."""

    def task_begins(self, peer: Hashable, start: TaskBegins, now_s: float) -> list[state.Action]:
        return super().task_begins(peer, replace(start, connection=self._next_number()), now_s)

    def task_resumes(self, peer: Hashable, resumed: TaskResumes, now_s: float) -> list[state.Action]:
        return super().task_resumes(peer, replace(resumed, connection=self._next_number()), now_s)

    def _next_number(self) -> int:
        self._number = getattr(self, "_number", 0) + 1
        return self._number


class OverWithTheJob(HubState):
    """End a batch with its job, although an attempt that Spark believes dead still delivers."""

    def batch_ends(
        self, now_s: float, *, could_ask: bool | None, is_whole: bool = True
    ) -> list[state.Action]:
        return self._close(now_s, could_ask=could_ask, is_whole=is_whole)


class AnnouncesOnce(HubState):
    """Leave the announced end of the batch out of the answer to a task that resumes."""

    def task_resumes(self, peer: Hashable, resumed: TaskResumes, now_s: float) -> list[state.Action]:
        return [
            each
            for each in super().task_resumes(peer, resumed, now_s)
            if not (isinstance(each, Send) and isinstance(each.message, EndSoon))
        ]


class GivesUpOnce(HubState):
    """Leave what a task was to give up out of the answer to it when it resumes."""

    def task_resumes(self, peer: Hashable, resumed: TaskResumes, now_s: float) -> list[state.Action]:
        return [
            Send(peer, replace(each.message, given_up=frozenset()))
            if isinstance(each, Send) and isinstance(each.message, TaskMayGoOn)
            else each
            for each in super().task_resumes(peer, resumed, now_s)
        ]


class SendsPartsOnce(TaskControl):
    """Leave out the parts that the driver may not have."""

    def _goes_on(self, answer: TaskMayGoOn) -> None:
        self._handed.clear()
        super()._goes_on(answer)


class StandsOnce(TaskControl):
    """Leave out the queues that cannot go on."""

    def _goes_on(self, answer: TaskMayGoOn) -> None:
        self._stands.clear()
        super()._goes_on(answer)


class BeginsOnce(TaskControl):
    """Wait for the answer to the beginning that was lost with its connection."""

    def opened_again(self) -> None:
        if self._answered.is_set():
            super().opened_again()


class ReportsOnce(TaskControl):
    """Stay dirty for the driver on another connection."""

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)  # type: ignore[arg-type]
        self._cuts = _DirtyOnce()


class CutsAlways(TaskControl):
    """Cut although two parts are not committed."""

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)  # type: ignore[arg-type]
        self._cuts = _NeverFull()


class _NeverFull(CutTimes):
    _is_full = False


class _DirtyOnce(CutTimes):
    def resumed(self, known: Collection[str], uncommitted: Collection[str]) -> bool:
        was_reported = self._is_reported
        super().resumed(known, uncommitted)
        self._is_reported = was_reported
        return False


def left_out(
    *rules: str,
    cuts: type[Cuts] = Cuts,
    hub: type[HubState] = HubState,
    control: type[TaskControl] = TaskControl,
) -> Left:
    return Left(cuts, hub, control, frozenset(rules))


LEFT_OUT = {
    "chain": (left_out(cuts=WithoutChain), "gap"),
    "known parts": (left_out(cuts=WithoutKnownParts), "broken chain"),
    "later attempts consume nothing": (left_out(cuts=LaterAttemptsConsume), "doubled"),
    "deaths are counted": (left_out(cuts=DeathsAreForgotten), "dies for ever"),
    "poisoned queues": (left_out(cuts=WithoutPoison), "gap"),
    "the same group first": (left_out(cuts=OtherGroupFirst), "gap"),
    "free after the commit": (left_out(cuts=FreeAtOnce), "committed after it was free"),
    "free after the offset": (left_out(cuts=FreeBeforeItsOffset), "free before its offset"),
    "free after what comes with the job": (left_out("rest first"), "committed after it was free"),
    "over after the offsets": (left_out(cuts=OverBeforeOffsets), "over before its offsets"),
    "offsets have their time": (left_out(cuts=OffsetsNeedGroups), "offsets are late"),
    "one group waits at most": (left_out(cuts=AskAlways), "too soon"),
    "a report outlives an answer": (left_out(cuts=AnswerClearsReports), "late"),
    "silence is no end": (left_out(cuts=SilentTasksAreGone), "two deliverers"),
    "epoch check and watermark": (left_out("epoch check", "watermark"), "doubled"),
    "epoch check": (left_out("epoch check"), "undone"),
    "watermark": (left_out("watermark"), "doubled"),
    "data first": (left_out("data first"), "ahead"),
    "the batch waits for replaced tasks": (left_out(hub=OverWithTheJob), "two deliverers"),
    "a broken connection pauses": (left_out("pause"), "two deliverers"),
    "a task's newest connection counts": (left_out(hub=AnyConnection), "not heard"),
    "the answer has the end": (left_out(cuts=EndIsSentOnce), "stands still"),
    "the answer has the announced end": (left_out(hub=AnnouncesOnce), "stands still"),
    "the answer has what is given up": (left_out(hub=GivesUpOnce), "is to give up"),
    "two parts": (left_out(control=CutsAlways), "too many parts"),
    "parts in doubt are sent again": (left_out(control=SendsPartsOnce), "broken chain"),
    "standing queues are sent again": (left_out(control=StandsOnce), "cannot go on"),
    "the beginning is sent again": (left_out(control=BeginsOnce), "stands still"),
    "reports are sent again": (left_out(control=ReportsOnce), "is dirty"),
}


@pytest.mark.parametrize("rule", LEFT_OUT)
def test_a_rule_left_out_is_noticed(rule: str) -> None:
    left, expected = LEFT_OUT[rule]

    assert any(expected in found for found in violations(left, range(1_500)))


IN_MICRO_BATCHES = (
    "chain",
    "later attempts consume nothing",
    "poisoned queues",
    "the same group first",
    "free after the commit",
    "free after the offset",
    "over after the offsets",
    "one group waits at most",
    "epoch check and watermark",
    "epoch check",
    "watermark",
    "data first",
)
"""Rules that matter where ranges are closed: tasks are not connected again, and end by themselves."""


@pytest.mark.parametrize("rule", IN_MICRO_BATCHES)
def test_a_rule_left_out_is_noticed_in_micro_batches(rule: str) -> None:
    left, expected = LEFT_OUT[rule]

    assert any(expected in found for found in violations(left, range(1_500), ClosedDriver))
