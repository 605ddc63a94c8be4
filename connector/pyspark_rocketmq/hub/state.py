"""Decides which queues of the running batch a task must give up, and when a queue is free; no I/O, no clock.

The planner reports which queues its plan holds and which of them it must give away. Tasks report the queues
that they begin with, and their outcome. The driver reports when a batch begins and ends, and which groups of
parts it has committed. A *part* is a piece of a task's result; the parts of a *group* get one commit. Methods
return the actions to take. ``consume.cuts`` decides all about parts: when tasks are asked for them (a *cut*),
which are committed together, and what follows from a failed commit. Before it begins, a task *asks* which of
its queues to leave out.

Rule 1: a queue is *free*, so that another member may have it, once no task delivers it, and all that was
delivered is committed or never will be. The planner then gets a message with the number of the queue's plan,
so that the planner can ignore late messages about an older plan.
Rule 2: a queue that no task has begun is free immediately if every task asks before it begins. A task that
cannot ask may begin only in a batch in which tasks need not ask (``must_ask`` is False).
Rule 3: a part that a task hands over belongs to the driver from then on, whatever happens to the task;
another attempt of the task must leave out the part's queues, even if the task went on with them afterwards.
Rule 4: a task whose connection broke may still be in a listener call. So its queues are free only when the
batch is over, or when another attempt of the task reports that they are.
Rule 5: a task that has only suspended queues left is *idle*, and stays so. It waits for them while its batch
is *at work*: all tasks have begun, and at least one is not idle. While some have not begun, it waits two
seconds if a slot is free; without a free slot it ends, because they may need its slot. An instruction to end
is final.
Rule 6: in real time ranges are *open*: they have no end. ``hub.open_batch`` decides when such a batch ends,
and the end is announced. Tasks are ended when no listener call is left that was running at the announcement
(``hub.calls_in_hand``). The batch ends immediately when another attempt of one of its tasks begins
(``consume.cuts``). If a connection breaks, its task pauses and resumes, and keeps its parts and queues. The
batch is over when no task delivers any more, not even an attempt that Spark believes dead; a minute after
its job it is over in any case.
Rule 7: a planner that ends keeps its locks until no task delivers any more. So when it reports its end, all
tasks are ended, and none may begin. Its plan is over when the batch is committed or given up, and each task
has ended or may not begin. If the driver cannot learn this of a task, the planner waits as long as Spark may
take to end a worker.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple, assert_never

from pyspark_rocketmq.consume import cuts
from pyspark_rocketmq.consume.cuts import Cuts, EndReason
from pyspark_rocketmq.consume.part import Group, Part
from pyspark_rocketmq.hub.messages import (
    BatchAtWork,
    CutWanted,
    EndSoon,
    EndTask,
    FromDriver,
    GiveUpQueues,
    PartHandedOver,
    PartsCommitted,
    PartTaken,
    PlanOver,
    QueuesFree,
    QueuesHeldUp,
    QueueStands,
    ResetFound,
    SlotsKnown,
    TaskBegins,
    TaskError,
    TaskMayBegin,
    TaskMayGoOn,
    TaskResumes,
    ToPlanner,
    ToTask,
)
from pyspark_rocketmq.hub.open_batch import Ending, OpenBatch
from pyspark_rocketmq.model import MessageQueue

Queues = frozenset[MessageQueue]

CALLS_END_S: Final = 5.0
"""How long after its query's end a listener may be called, in seconds.

Spark looks for cancelled tasks every 2 s. It gives the Python worker of such a task 2 s to end
(``spark.python.task.killTimeout``), then ends it with SIGKILL.
"""
_PLANNER_GONE_S: Final = 15.0
"""How long tasks go on without a connection of their planner, which may come back, in seconds."""
_ZOMBIES_END_S: Final = 60.0
"""Time for which an open batch waits for attempts that Spark believes dead, in seconds: as long as a lock
lasts."""
_BACK_WITHIN_S: Final = 12.0
"""Time within which a task with open ranges is connected again, if it lives: it tries for ten seconds."""
_BEGIN_WITHIN_S: Final = 2.0
"""How long an idle task waits, in seconds, for tasks that have not begun although a slot seems to be free."""
_KNOWN_PARTS: Final = 100_000
"""Maximum number of ids of parts that are kept. Far fewer parts can come again with their job's result."""
_NOTHING: Final[Queues] = frozenset()


class Send(NamedTuple):
    """Send a message to ``peer``."""

    peer: Hashable
    message: FromDriver


class Commit(NamedTuple):
    """Instruct the driver to commit a group of parts.

    The driver then calls :meth:`HubState.committed` or :meth:`HubState.commit_failed`.
    """

    group: Group | None
    """None if only offsets are to be stored."""
    leaving: Queues = _NOTHING
    """Queues that another member may have after the commit."""
    stores_offsets: bool = True
    """Whether to store offsets: those of the group, and those that earlier commits of only rows have not
    stored. If False, only rows are committed."""
    left: Queues = _NOTHING
    """Queues whose positions this query no longer decides: other members may have them by now, or they were
    claimed or reset."""


class Look(NamedTuple):
    """Instruct the driver to check soon whether the query still runs."""


class Flushed(NamedTuple):
    """End the driver's wait for the batch, which has ended: none of its parts waits for a commit any more."""

    failure: BaseException | None
    """Error with which the batch fails: nothing more of it may be committed. None if it does not fail."""


class Ended(NamedTuple):
    """Log that the end of the batch in real time is announced; there is nothing else to do."""

    ending: Ending


class StillDelivered(NamedTuple):
    """Log that the batch is over although an attempt that Spark believes dead may still deliver."""


Action = Send | Commit | Look | Flushed | Ended | StillDelivered


class Slots(NamedTuple):
    """How many tasks can run at the same time."""

    at_once: int = 0
    """Number of tasks that can run now; 0 if it is not known."""
    most_planned: int = 0
    """Maximum number of tasks that a batch should have; 0 for any number."""
    left: int = 0
    """Number of slots that a batch is to leave free for other jobs; ``most_planned`` does not count them."""


@dataclass(slots=True)
class _Task:
    peer: Hashable
    start: TaskBegins
    is_lost: bool = False
    done: Part | None = None
    """Copy of an ended task's last part; None before the end, if there is no such part, or if it is too
    large to be sent."""
    is_done: bool = False
    asked: set[MessageQueue] = field(default_factory=set)
    """Queues that the task was instructed to give up after it had begun."""
    idle_s: float | None = None
    """Monotonic second since which the task has only suspended queues left; None while it has others."""
    is_waiting: bool = False
    """True while the task is idle and waits because the batch is at work (rule 5)."""
    lost_s: float = inf
    """Monotonic second in which the task failed or lost its connection; infinite while it is connected.

    After a lost connection, a task with open ranges may connect again."""
    connection: int = 0
    """Number of the newest connection on which the task has begun or resumed."""
    left_out: Queues = _NOTHING
    """Queues that the task was instructed to leave out when it began."""
    have_calls_ended: bool = False
    """Whether no call of the task is left that was running when the batch's end was announced."""

    @property
    def is_open(self) -> bool:
        return self.start.open_for_s is not None

    @property
    def is_running(self) -> bool:
        return not self.is_done and not self.is_lost

    @property
    def is_connected(self) -> bool:
        return self.lost_s == inf

    @property
    def is_reached(self) -> bool:
        return self.is_running and self.is_connected


class _Closing(NamedTuple):
    """Data of an open batch (in real time) whose job is over, and that waits until no task delivers any more.

    The wait ends at the monotonic second ``until_s`` in any case. For ``could_ask`` see
    :meth:`HubState.batch_ends`.
    """

    could_ask: bool | None
    until_s: float


class HubState:
    """State of one query's hub, the driver's server: takes events, and returns the actions to carry out.

    Not thread-safe; no method waits.
    """

    def __init__(
        self,
        *,
        must_ask: bool,
        slots: Slots = Slots(),  # noqa: B008 - it does not change
        calls_end_s: float = CALLS_END_S,
        interval_s: float | None = None,
        may_offsets_wait: bool = False,
    ) -> None:
        """Begin with no batch.

        Args:
            must_ask: Whether every task of the first batch can surely ask the driver before it begins. For a
                later batch this is assumed if all tasks of the batch before could.
            slots: Number of tasks that can run now.
            calls_end_s: How long Spark lets a worker go on after its job, in seconds; passed on to the
                planner.
            interval_s: Shortest time between two commits while a job runs, in seconds. If it is None, a
                running job commits only results of queues that are given up.
            may_offsets_wait: Whether offsets may be stored less often than rows are committed, because the
                sink records how far its rows go; see ``OffsetPace``.
        """
        self._cuts = Cuts(interval_s, may_offsets_wait=may_offsets_wait)
        self._open = OpenBatch()
        self._wants_cuts = interval_s is not None
        self._calls_end_s = calls_end_s
        self.must_ask = must_ask
        """Whether a task that cannot ask the driver must consume nothing."""
        self._planner: Hashable | None = None
        self._planner_lost_s: float | None = None
        # On free queues of the newest plan, for a planner that connects again.
        self._free_reports: list[QueuesFree | PlanOver] = []
        # For a planner that is not connected.
        self._resets: list[ResetFound] = []
        self._plan = 0
        self._plan_queues: Queues = _NOTHING
        self._leaving: Queues = _NOTHING
        """Queues of its plan that the planner must give away."""
        self._wanted: set[MessageQueue] = set()
        """Queues that the planner had to give away at any time in this batch."""
        self._batch_id: int | None = None
        self._slots = slots
        # Maximum number of tasks of the next batch, 0 for any number: that of ``_slots``. It differs only if
        # the last batch ended because some of its tasks had not begun: then it is the number that had begun,
        # without the slots to leave free.
        self._most_planned = slots.most_planned
        self._held_up = ""
        self._tasks: dict[str, _Task] = {}
        self._owner: dict[MessageQueue, _Task] = {}
        """Task that has begun with a queue, even if it is dead."""
        self._moved: set[MessageQueue] = set()
        """Queues of which nothing more may be committed, such as those claimed or reset since the plan."""
        self._settled: set[MessageQueue] = set()
        """Queues that are free, or whose last results are being committed: no task may begin with them any
        more in this plan."""
        self._parts: dict[str, None] = {}
        """Ids of the newest parts that the driver has got from tasks, and has committed or will commit."""
        self._failure: BaseException | None = None
        """Error with which the batch fails: of a commit that was given up, or of a task."""
        self._is_flushing = False
        """Whether the batch is closed, and something of it may still wait for its commit."""
        self._closing: _Closing | None = None
        self._ending: Ending | None = None
        """The announced end of the open batch; None before it is announced, and after the tasks are ended."""
        self._replan: tuple[int, str] = (0, "")
        """Number of the newest plan that the planner wants to replace, and the reason; 0 without one."""
        self.is_stopping = False
        self._last_plan: int | None = None
        """Number of the plan of a planner that ends; None while no planner ends."""
        self._is_settled = True
        """Whether no batch, and no commit of one, is under way."""
        self.batches = 0
        """Number of batches that have begun."""
        self._late: dict[str, Hashable] = {}
        """Tasks that may still deliver although their job failed or was cancelled, with their peers."""
        self._is_any_unseen = False
        """Whether a job was cut short, and tasks of it that never asked may still run."""

    # --- the planner ----------------------------------------------------------------------------------------

    def planner_came(self, peer: Hashable) -> list[Action]:
        """Note that the planner is connected as ``peer``, in place of any earlier planner.

        Send it the current limits, and what it may have missed without a connection: all reports on free
        queues of the newest plan, and the resets that were found meanwhile.
        """
        self._planner, self._planner_lost_s, self._last_plan = peer, None, None
        limits = self._slots_report() + (self._held_up_report() if self._held_up else [])
        resets, self._resets = self._resets, []
        return [*limits, *(Send(peer, report) for report in (*self._free_reports, *resets))]

    def plan_made(self, number: int, queues: Queues) -> None:
        """Note a new plan; ignored unless its number is higher than the last plan's."""
        if number > self._plan:
            self._plan, self._plan_queues = number, queues
            self._leaving = _NOTHING
            self._settled.clear()
            self._free_reports.clear()

    def must_leave(self, number: int, queues: Queues, now_s: float) -> list[Action]:
        """Note all queues of plan ``number`` that are to be given up by now, and begin to give them up.

        Ignored unless ``number`` is that of the newest plan.
        """
        if number != self._plan:
            return []
        self._leaving = queues
        self._wanted |= queues
        return self._give_up(now_s)

    def replan(self, number: int, why: str, now_s: float) -> list[Action]:
        """Note that the planner wants to replace plan ``number``; end its batch if the ranges are open.

        Ignored unless ``number`` is that of the newest plan. ``why``: the reason in words, for the log.
        """
        if number != self._plan:
            return []
        self._replan = number, why
        self._open.wants_plan(why, now_s)
        return self._end_if_due(now_s)

    def planner_leaves(self, plan: int, now_s: float) -> list[Action]:
        """Note that the planner ends, and end the tasks.

        The planner gets a report when nothing of ``plan`` is delivered any more.
        """
        self._last_plan = plan
        return self._stop_tasks(now_s) + self._over_for_good()

    @property
    def has_planner(self) -> bool:
        """Whether a planner is connected."""
        return self._planner is not None

    # --- the driver -----------------------------------------------------------------------------------------

    def slots_are(self, slots: Slots) -> list[Action]:
        """Note how many tasks can run; report to the planner if the maximum for a batch has changed."""
        is_news = slots.most_planned != self._slots.most_planned
        self._slots = slots
        if not is_news:
            return []
        self._most_planned = slots.most_planned
        return self._slots_report()

    def held_up(self, reason: str) -> list[Action]:
        """Note what keeps queues from being consumed; report it to the planner if it has changed.

        ``reason``: the cause in words; empty if all queues can be consumed.
        """
        if reason == self._held_up:
            return []
        self._held_up = reason
        return self._held_up_report()

    def batch_begins(self, batch_id: int) -> bool:
        """Begin a batch before its job, and forget the previous batch.

        Return whether its tasks must ask which queues to leave out before they begin.
        """
        self._batch_id = batch_id
        self.batches += 1
        self._tasks.clear()
        self._owner.clear()
        self._moved.clear()
        self._parts.clear()
        self._late.clear()
        self._wanted = set(self._leaving)
        self._is_settled = self._is_any_unseen = self._is_flushing = False
        self._failure = None
        self._closing = self._ending = None
        self._cuts.begin_batch()
        plan, why = self._replan
        self._open.begin_batch(why if plan == self._plan else "")
        return self.must_ask

    def job_is_over(self, now_s: float, *, is_whole: bool) -> list[Action]:
        """Note that the job has ended, and end its tasks; call this before :meth:`batch_ends`.

        ``is_whole``: whether the job is complete. If False, it failed or was cancelled, and its tasks may
        still run.
        """
        if not is_whole:
            followed = {task.start.partition for task in self._tasks.values() if not task.is_lost}
            self._late = {
                task.start.task: task.peer
                for task in self._tasks.values()
                if task.is_running or (task.is_lost and task.start.partition not in followed)
            }
            most = max((task.start.tasks for task in self._tasks.values()), default=0)
            self._is_any_unseen = not self.must_ask and (not most or len(followed) < most)
        return self._stop_tasks(now_s)

    def batch_ends(self, now_s: float, *, could_ask: bool | None, is_whole: bool = True) -> list[Action]:
        """End the batch: accept nothing more from its tasks, and commit what they have handed over.

        A batch with open ranges whose job is complete first waits, for a minute at most, for attempts of
        tasks that may still deliver. Once everything is committed, this or a later event returns
        :class:`Flushed`.

        Args:
            now_s: Monotonic time.
            could_ask: Whether all of the batch's tasks were connected; if so, the tasks of the next batch
                must ask before they begin. None if no task had to ask or the job has no result: then the
                next batch has the same rule as this one.
            is_whole: Whether the job is complete; if False, it failed or was cancelled.
        """
        if self._open.is_open and is_whole:
            if could_ask:
                self._cuts.job_is_whole()
            self._closing = _Closing(could_ask, now_s + _ZOMBIES_END_S)
            return self._close_if_quiet(now_s)
        return self._close(now_s, could_ask=could_ask, is_whole=is_whole)

    def _close_if_quiet(self, now_s: float) -> list[Action]:
        """Close the open batch that waits for its end, if no task delivers any more or the wait is over."""
        closing = self._closing
        if closing is None:
            return []
        is_delivered = self._cuts.is_anybody_delivering(now_s)
        if is_delivered and now_s < closing.until_s:
            return []
        self._closing = None
        closed = self._close(now_s, could_ask=closing.could_ask, is_whole=True)
        return [StillDelivered(), *closed] if is_delivered else closed

    def _close(self, now_s: float, *, could_ask: bool | None, is_whole: bool) -> list[Action]:
        if could_ask is not None:
            self.must_ask = could_ask
        self._batch_id = None
        self._tasks.clear()
        self._owner.clear()
        self._settled.clear()
        # Later messages of the planner about this plan have to wait for the commit.
        self._plan_queues = self._leaving = _NOTHING
        self._is_flushing = True
        return self._carry_out(self._cuts.close(now_s, is_hurried=not is_whole), now_s)

    @property
    def plan(self) -> int:
        """Number of the newest plan; 0 before the first one."""
        return self._plan

    def rest(self, parts: Sequence[Part]) -> Group | None:
        """Return the last group to commit: the parts of a job's result that no task had handed over before.

        Return None if there are no such parts.
        """
        return self._cuts.rest([part for part in parts if part.id not in self._parts])

    def batch_committed(self, plan: int, batches: int) -> list[Action]:
        """Note that the batch of ``plan`` is completely committed, or dropped for good.

        ``batches``: the number of batches begun up to this one. It shows whether a later batch is under way
        by now.
        """
        if batches == self.batches:
            self._is_settled = True
        if plan == self._plan:
            self._free_reports.clear()
        over = self._report_free(PlanOver(plan))
        # The planner may have made another plan meanwhile, and end before that one has begun.
        return over if plan == self._last_plan else over + self._over_for_good()

    def batch_failed(self) -> list[Action]:
        """Note that nothing more of the batch will be committed: its query ends."""
        self._is_settled = True
        return self._over_for_good()

    def committed(self, refused: Queues, now_s: float, *, took_s: float = 0.0) -> list[Action]:
        """Note that a commit is made, except for the queues in ``refused``, which sink or store have refused.

        ``took_s``: how long it took to store the offsets, in seconds.
        """
        return self._carry_out(self._cuts.committed(refused, now_s, took_s=took_s), now_s)

    def commit_failed(self, error: BaseException, now_s: float) -> list[Action]:
        """Note that a commit has failed, or that its outcome is unknown.

        The commit is tried again later. After a minute of failures the batch fails; if there is no interval
        for commits (``interval_s`` is None), not before its job is over. A batch that already has an error,
        or whose job failed or was cancelled, fails at the first failure.
        """
        return self._carry_out(self._cuts.commit_failed(error, now_s), now_s)

    def moved(self, epochs: Mapping[MessageQueue, int], batches: int, now_s: float) -> list[Action]:
        """Compare the stored epochs with those that the tasks of the batch began with.

        A queue with another epoch was claimed or reset since then, so nothing more of it may be committed. A
        queue that is free does not count: its next owner may have claimed it.

        ``batches``: the number of batches that had begun when ``epochs`` was read. If another batch has begun
        since then, ``epochs`` may be older than that batch's claims, and is ignored.
        """
        if batches != self.batches:
            return []
        moved = frozenset(
            queue
            for queue, task in self._owner.items()
            if queue in epochs and epochs[queue] != task.start.places[queue].epoch
        )
        return self._drop_moved(moved, now_s)

    def unfenced_reset(self, queues: Queues, now_s: float) -> list[Action]:
        """Note that queues were reset in a store without epochs, which cannot refuse old commits itself.

        So nothing more of them may be committed in this batch, as if their epochs had grown.
        """
        return self._drop_moved(queues & self._owner.keys(), now_s)

    def _drop_moved(self, moved: Queues, now_s: float) -> list[Action]:
        """Commit nothing more of these queues in this batch, and give them up; free queues do not count."""
        free = self._settled - self._cuts.ended
        return self._carry_out(self._cuts.moved(moved - free, now_s), now_s) + self._give_up(now_s)

    def stop(self, now_s: float) -> list[Action]:
        """Note that the query ends: end the tasks after their running calls, and let no other task begin."""
        self.is_stopping = True
        return self._stop_tasks(now_s)

    @property
    def is_watched(self) -> bool:
        """Whether tasks have begun with queues, so that the offset store must be read for newer epochs."""
        return bool(self._owner)

    # --- tasks ----------------------------------------------------------------------------------------------

    def task_begins(self, peer: Hashable, start: TaskBegins, now_s: float) -> list[Action]:
        """Answer a task that asks which of its queues to leave out.

        The task must deliver nothing if its batch is over or ending, if the query or its planner ends, if the
        planner has had no connection for 15 s, if a later attempt has begun, or if its ranges are open and it
        is not the first attempt.
        """
        stop = Send(peer, TaskMayBegin(start.task, left_out=_NOTHING, is_stopped=True))
        if start.batch_id != self._batch_id:
            # The task's batch is over, so all its work is useless.
            return [stop]
        if (same := self._tasks.get(start.task)) is not None:
            return self._begins_again(same, peer, start, now_s)
        is_open = start.open_for_s is not None
        ended: list[Action] = []
        if is_open and self._may_nobody_begin:
            ended = self._carry_out(self._cuts.end(EndReason.STOP, now_s), now_s)
        answer, *others = self._cuts.begin(
            start.task,
            start.partition,
            start.attempt,
            start.places,
            now_s,
            is_open=is_open,
            at_end=start.at_end,
        )
        assert isinstance(answer, cuts.Answer)
        if answer.is_stopped:
            return [stop, *ended, *self._carry_out(others, now_s)]
        former = [before for before in self._tasks.values() if before.start.partition == start.partition]
        superseded = self._end_waiting([before for before in former if before.is_waiting])
        stopped = self._carry_out(others, now_s)
        for before in former:
            before.done = None
            before.is_lost = True
        task = self._tasks[start.task] = _Task(peer, start, connection=start.connection)
        mine = frozenset(start.places)
        begun = answer.left_out | (self._settled & mine)
        for queue in mine - begun:
            self._owner[queue] = task
        task.left_out = left_out = begun | answer.dropped | (self._leaving & mine)
        go = TaskMayBegin(start.task, left_out, is_stopped=self._may_nobody_begin)
        freed = self._carry_out(self._cuts.released(start.task, left_out - begun, now_s), now_s)
        if start.open_for_s is not None:
            self._open.begins(start.partition, tasks=start.tasks, lasts_s=start.open_for_s, now_s=now_s)
            freed += self._announce_to(task) if self._ending is not None else self._end_if_due(now_s)
        return [Send(peer, go), *superseded, *stopped, *freed]

    def _begins_again(self, task: _Task, peer: Hashable, start: TaskBegins, now_s: float) -> list[Action]:
        """Answer again a task whose connection broke before the first answer arrived."""
        if start.connection <= task.connection:
            return []
        answer, *others = self._reconnects(task, peer, start.connection, (), now_s)
        assert isinstance(answer, cuts.Answer)
        go = TaskMayBegin(start.task, task.left_out | task.asked, answer.is_stopped)
        return [Send(peer, go), *self._carry_out(others, now_s), *self._announce_to(task)]

    def task_resumes(self, peer: Hashable, resumed: TaskResumes, now_s: float) -> list[Action]:
        """Answer a task with open ranges that has connected again.

        The task may go on, unless its batch is over or nothing more is accepted from it, for example because
        a later attempt has begun.
        """
        task = self._task_of_batch(resumed)
        if task is None:
            if resumed.task in self._late:
                self._late[resumed.task] = peer
            return [Send(peer, TaskMayGoOn(task=resumed.task, is_stopped=True))]
        if resumed.connection <= task.connection:
            return []
        answer, *others = self._reconnects(task, peer, resumed.connection, resumed.in_doubt, now_s)
        assert isinstance(answer, cuts.Answer)
        go_on = TaskMayGoOn(
            task=resumed.task,
            is_stopped=answer.is_stopped,
            known=answer.known,
            uncommitted=answer.uncommitted,
            given_up=frozenset(task.asked) | task.left_out,
            dropped=answer.dropped,
        )
        return [Send(peer, go_on), *self._carry_out(others, now_s), *self._announce_to(task)]

    def _reconnects(
        self, task: _Task, peer: Hashable, connection: int, in_doubt: Collection[str], now_s: float
    ) -> list[cuts.Action]:
        """Note that a task has a newer connection, and return the actions of ``Cuts``.

        The first action is the answer to the task, which may stop it. ``in_doubt`` has the ids of parts that
        the task has sent, and that the driver has not confirmed to it.
        """
        task_id = task.start.task
        task.peer, task.connection, task.lost_s = peer, connection, inf
        # It may not be known yet that the previous connection broke.
        lost = self._cuts.lost(task_id, now_s)
        return [*self._cuts.resume(task_id, in_doubt), *lost]

    def _task_of_batch(self, resumed: TaskResumes) -> _Task | None:
        task = self._tasks.get(resumed.task)
        is_its = resumed.batch_id == self._batch_id and task is not None and task.is_running
        return task if is_its else None

    def queue_stands(self, peer: Hashable, stands: QueueStands, now_s: float) -> list[Action]:
        """Note that a queue's open range cannot go on, so that the queue needs another plan.

        The batch ends immediately if the queue was reset. For any other reason a batch ends at most once in
        five seconds.
        """
        if self._task(peer, stands.task) is None or self._cuts.is_ending:
            return []
        self._open.stands(f"{stands.queue}: {stands.reason}", now_s, at_once=stands.is_reset)
        return self._end_if_due(now_s)

    def reset_found(self, found: ResetFound) -> list[Action]:
        """Pass an operator's reset on to the planner, or keep it until the planner is connected."""
        if self._planner is None:
            self._resets.append(found)
        return self._to_planner(found)

    def calls_ended(self, peer: Hashable, task_id: str, now_s: float) -> list[Action]:
        """Note that a task's listener calls have returned that ran when the batch's end was announced.

        Once the calls of all connected tasks have returned, end all tasks.
        """
        if (task := self._task(peer, task_id)) is None:
            return []
        task.have_calls_ended = True
        return self._end_after_calls(now_s)

    def task_is_dirty(self, peer: Hashable, task_id: str, now_s: float) -> list[Action]:
        """Note that a task has results that it has not sent, so that the driver soon asks for them."""
        if self._task(peer, task_id) is None:
            return []
        return self._carry_out(self._cuts.dirty(task_id, now_s), now_s)

    def handed_over(self, peer: Hashable, handed: PartHandedOver, now_s: float) -> list[Action]:
        """Take a part of a task's result: confirm it to the task, and have it committed soon.

        Ignore the part if nothing more is accepted from the task. Once the batch has failed, only confirm the
        part.
        """
        task = self._task(peer, handed.task)
        if task is None:
            return []
        return self._accept(task, handed.part, handed.ends, now_s, cut=handed.cut)

    def nothing_to_cut(self, peer: Hashable, task_id: str, cut: int, now_s: float) -> list[Action]:
        """Note that a task sends no part for the driver's request with number ``cut``."""
        if self._task(peer, task_id) is None:
            return []
        return self._carry_out(self._cuts.nothing(task_id, cut, now_s), now_s)

    def released(self, peer: Hashable, task_id: str, queues: Queues, now_s: float) -> list[Action]:
        """Note that a task delivers nothing more from these queues, and has no further results of them."""
        if self._task(peer, task_id) is None:
            return []
        return self._carry_out(self._cuts.released(task_id, queues, now_s), now_s)

    def task_idles(self, peer: Hashable, task_id: str, now_s: float) -> list[Action]:
        """Send the answer to a task that has only suspended queues left: whether to wait for them.

        If it may wait, a later action ends its wait.
        """
        task = self._task(peer, task_id)
        if task is None or task.is_done:
            return [Send(peer, BatchAtWork(task_id, is_at_work=False))]
        task.idle_s = now_s
        task.is_waiting = self._is_at_work(now_s)
        answer = Send(peer, BatchAtWork(task_id, task.is_waiting))
        return [answer, *self._end_idle(now_s)]

    def task_done(self, peer: Hashable, task_id: str, result: Part | None, now_s: float) -> list[Action]:
        """Note that a task has ended.

        ``result``: a copy of the task's last part; None if there is none, or if it is too large to be sent.
        """
        task = self._task(peer, task_id)
        if task is None:
            return self._late_ended(peer, task_id)
        task.is_done, task.done = True, result
        ended = self._carry_out(self._cuts.done(task_id, now_s), now_s)
        return ended + self._give_up(now_s) + self._end_idle(now_s) + self._end_after_calls(now_s)

    def task_failed(
        self, peer: Hashable, task_id: str, now_s: float, error: TaskError | None = None
    ) -> list[Action]:
        """Note that an attempt of a task has failed; the parts that it has sent still count.

        If ``error`` is fatal, the batch fails, too. ``error`` is None if the attempt does not begin.
        """
        task = self._task(peer, task_id)
        if task is None:
            return self._late_ended(peer, task_id)
        if not task.is_done:
            task.is_lost, task.lost_s = True, now_s
        if error is not None and error.is_fatal:
            over = self._cuts.failed(task_id, error.to_error(), now_s)
        else:
            over = self._cuts.done(task_id, now_s, error="" if error is None else error.to_line())
        return self._carry_out(over, now_s) + self._end_idle(now_s) + self._end_after_calls(now_s)

    def lost(self, peer: Hashable, now_s: float, *, is_silent: bool = False) -> list[Action]:
        """Note that a planner's or task's connection is lost.

        A task with open ranges may connect again; any other task counts as dead. ``is_silent``: the other end
        may not have noticed the loss.
        """
        look: list[Action] = []
        if peer == self._planner:
            self._planner, self._planner_lost_s = None, now_s
            look.append(Look())
        for task in self._tasks.values():
            if task.peer == peer and not task.is_done:
                task.is_lost, task.lost_s = not task.is_open, now_s
                lost = self._cuts.lost(task.start.task, now_s, is_silent=is_silent)
                look += self._carry_out(lost, now_s)
        return look + self._end_idle(now_s) + self._end_after_calls(now_s)

    def tick(self, now_s: float) -> list[Action]:
        """Return the actions that are due: requests for parts (cuts), the end of the batch or of idle tasks.

        If the planner has had no connection for 15 s, all tasks are stopped: nobody renews the queues' locks,
        and tasks must end before the locks expire.
        """
        idle = self._end_idle(now_s) + self._carry_out(self._cuts.tick(now_s), now_s)
        self._look_for_absent(now_s)
        idle += self._end_if_due(now_s) + self._close_if_quiet(now_s)
        is_gone = self._planner_lost_s is not None and now_s - self._planner_lost_s >= _PLANNER_GONE_S
        if not is_gone or self._is_orphaned:
            return idle
        self._planner_lost_s = float("-inf")
        return idle + self._stop_tasks(now_s)

    @property
    def next_tick_s(self) -> float | None:
        """Monotonic time at which to call :meth:`tick`; None if it is enough to call it twice a second."""
        cut_s, end_s = self._cuts.next_tick_s, self._open.next_tick_s
        if cut_s is None or end_s is None:
            return end_s if cut_s is None else cut_s
        return min(cut_s, end_s)

    @property
    def _is_orphaned(self) -> bool:
        return self._planner_lost_s == float("-inf")

    # --- inside ---------------------------------------------------------------------------------------------

    def _slots_report(self) -> list[Action]:
        return self._to_planner(SlotsKnown(self._most_planned, self._calls_end_s))

    def _held_up_report(self) -> list[Action]:
        return self._to_planner(QueuesHeldUp(self._held_up))

    def _task(self, peer: Hashable, task_id: str) -> _Task | None:
        """Return a task; None if nothing more is accepted from it."""
        task = self._tasks.get(task_id)
        return None if task is None or task.peer != peer or task.is_lost else task

    def _stop_tasks(self, now_s: float) -> list[Action]:
        if self._open.is_open:
            return self._carry_out(self._cuts.end(EndReason.STOP, now_s), now_s)
        return [Send(task.peer, EndTask(task.start.task, EndReason.STOP)) for task in self._running()]

    @property
    def _may_nobody_begin(self) -> bool:
        return self.is_stopping or self._is_orphaned or self._last_plan is not None

    def _look_for_absent(self, now_s: float) -> None:
        """Have the open batch end if one of its tasks has had no connection for 12 s.

        Spark may have no slot to run that task again before the batch ends.
        """
        absent = [
            task.start.partition
            for task in self._tasks.values()
            if task.is_open and not task.is_done and now_s - task.lost_s >= _BACK_WITHIN_S
        ]
        if absent:
            self._open.wants_plan(f"task {absent[0]} does not come back", now_s)

    def _end_if_due(self, now_s: float) -> list[Action]:
        """Announce the end of the open batch if it is time."""
        ending = self._open.tick(now_s)
        if ending is None or self._ending is not None or self._cuts.is_ending:
            return []
        self._ending = ending
        actions: list[Action] = [Ended(ending)]
        # After one batch with fewer tasks, try again with all slots: the shortage may be over by then.
        slots = self._slots
        most_planned = slots.most_planned if ending.slots is None else max(1, ending.slots - slots.left)
        if most_planned != self._most_planned:
            self._most_planned = most_planned
            actions += self._slots_report()
        for task in self._running():
            actions += self._announce_to(task)
        return actions + self._end_after_calls(now_s)

    def _announce_to(self, task: _Task) -> list[Action]:
        """Announce the batch's end to a task that can be reached; do nothing unless an end is announced."""
        is_announced = self._ending is not None and not self._cuts.is_ending
        hears = task.is_open and task.is_reached and not task.have_calls_ended
        return [Send(task.peer, EndSoon(task.start.task))] if is_announced and hears else []

    def _end_after_calls(self, now_s: float) -> list[Action]:
        """End the tasks if the batch's end is announced, and no call is left from before the announcement.

        A task that is not connected does not count: it may be dead, and Spark may run it again only when
        another task has ended.
        """
        ending = self._ending
        connected = (task for task in self._running() if task.is_connected)
        if ending is None or not all(task.have_calls_ended for task in connected):
            return []
        self._ending = None
        return self._carry_out(self._cuts.end(ending.reason, now_s), now_s)

    def _late_ended(self, peer: Hashable, task_id: str) -> list[Action]:
        if self._late.get(task_id) == peer:
            del self._late[task_id]
        return self._over_for_good()

    def _over_for_good(self) -> list[Action]:
        """Report to the planner that its last plan is over, if the planner ends and nothing is under way.

        Nothing is under way once there is no batch, no commit, and no task of a failed job that may still
        run.
        """
        if self._last_plan is None or not self._is_settled or self._late or self._is_any_unseen:
            return []
        return self._to_planner(PlanOver(self._last_plan))

    def _running(self) -> list[_Task]:
        return [task for task in self._tasks.values() if task.is_running]

    def _is_at_work(self, now_s: float) -> bool:
        """Return whether idle tasks, which have only suspended queues, are to wait (rule 5)."""
        running = self._running()
        # Another attempt of a lost task also needs a slot.
        begun = {task.start.partition for task in self._tasks.values() if not task.is_lost}
        if len(begun) >= max((task.start.tasks for task in running), default=0):
            return any(task.idle_s is None for task in running)
        first_idle_s = min((task.idle_s for task in running if task.idle_s is not None), default=now_s)
        return len(running) < self._slots.at_once and now_s - first_idle_s < _BEGIN_WITHIN_S

    def _end_idle(self, now_s: float) -> list[Action]:
        """End the idle tasks that wait, unless their batch is still at work (rule 5)."""
        waiting = [task for task in self._tasks.values() if task.is_waiting and task.is_running]
        return self._end_waiting(waiting) if waiting and not self._is_at_work(now_s) else []

    def _end_waiting(self, waiting: Sequence[_Task]) -> list[Action]:
        for task in waiting:
            task.is_waiting = False
        return [Send(task.peer, BatchAtWork(task.start.task, is_at_work=False)) for task in waiting]

    def _give_up(self, now_s: float) -> list[Action]:
        """Begin to give up each queue that is to be given up, or was claimed or reset.

        Free such a queue if no task has begun it. If its task has ended, take the queue's results from the
        copy of the task's last part, unless they may not be committed. If its task runs, instruct the task.
        """
        actions: list[Action] = []
        for queue in sorted((self._leaving | self._moved) - self._settled):
            task = self._owner.get(queue)
            if task is None:
                if self.must_ask and queue in self._plan_queues:
                    actions += self._free({queue})
            elif task.is_done:
                if task.done is not None and queue in task.done.queues and queue not in self._moved:
                    actions += self._accept(task, task.done, task.done.queues, now_s)
            elif not task.is_lost and queue not in task.asked:
                task.asked.add(queue)
                is_dropped = queue in self._moved
                # A task that is not connected gets the instruction when it resumes.
                if task.is_connected:
                    give_up = GiveUpQueues(task.start.task, frozenset({queue}), is_dropped)
                    actions.append(Send(task.peer, give_up))
        return actions

    def _accept(
        self, task: _Task, part: Part, ends: Queues, now_s: float, *, cut: int | None = None
    ) -> list[Action]:
        self._parts[part.id] = None
        if len(self._parts) > _KNOWN_PARTS:
            del self._parts[next(iter(self._parts))]
        self._settled |= ends
        taken = self._cuts.part(task.start.task, part, now_s, cut=cut, ends=ends)
        return self._carry_out(taken, now_s)

    def _carry_out(self, actions: Iterable[cuts.Action], now_s: float) -> list[Action]:
        """Turn actions of ``Cuts`` into actions for peers and driver.

        Add :class:`Flushed` if nothing of the closed batch waits for its commit any more.
        """
        done = [action for each in actions for action in self._carried_out(each, now_s)]
        if self._is_flushing and self._cuts.is_settled:
            self._is_flushing = False
            done.append(Flushed(self._failure))
        return done

    def _carried_out(self, action: cuts.Action, now_s: float) -> list[Action]:
        match action:
            case cuts.CommitGroup() | cuts.StoreOffsets():
                return [self._commit(action)]
            case cuts.Drop(queues):
                self._moved |= queues
                return self._give_up(now_s)
            case cuts.Free(queues):
                return self._free(queues)
            case cuts.Fail(error):
                self._failure = error
            case cuts.Replan(queues, reason):
                return self._replan_without(queues, reason, now_s)
            case cuts.Answer():
                pass
            case _:
                return self._to_tasks(action)
        return []

    def _commit(self, action: cuts.CommitGroup | cuts.StoreOffsets) -> Commit:
        stored = self._cuts.behind
        group = None
        if isinstance(action, cuts.CommitGroup):
            group = action.group
            stored |= group.queues
            if not action.stores_offsets:
                return Commit(group, stores_offsets=False, left=self._left())
        # A queue that ends before its batch may leave at any time: nothing of it is planned.
        may_leave = self._wanted if self._ending is None else stored
        leaving = stored & may_leave & (self._settled | self._cuts.ended)
        return Commit(group, leaving, left=self._left())

    def _left(self) -> Queues:
        reports = (each for each in self._free_reports if isinstance(each, QueuesFree))
        freed = {queue for report in reports for queue in report.queues}
        # A queue that is free only because it ended early usually stays with this query, and has a true lag.
        return frozenset(freed & self._wanted | self._moved)

    def _replan_without(self, queues: Queues, reason: str, now_s: float) -> list[Action]:
        # With closed ranges nothing needs to be done: the next batch reads the rest of the range anyway.
        if self._open.is_open and queues - self._leaving:
            named = ", ".join(map(str, sorted(queues)))
            self._open.stands(f"{named}: {reason}", now_s, at_once=False)
        return self._end_if_due(now_s)

    def _to_tasks(self, action: cuts.AskForCut | cuts.Taken | cuts.PartsOver | cuts.EndTasks) -> list[Action]:
        """Return the messages to tasks that an action of ``Cuts`` asks for."""
        match action:
            case cuts.AskForCut(number, tasks):
                messages: list[ToTask] = [CutWanted(task, number) for task in tasks]
            case cuts.Taken(task, part_id):
                messages = [PartTaken(task, part_id)]
            case cuts.PartsOver(task, part_ids):
                # Without an interval, tasks send parts regardless of how many are uncommitted.
                messages = [PartsCommitted(task, part_ids)] if self._wants_cuts else []
            case cuts.EndTasks(reason, tasks):
                messages = [EndTask(task, reason) for task in tasks]
            case _:
                assert_never(action)
        return [
            Send(self._tasks[message.task].peer, message)
            for message in messages
            if message.task in self._tasks and self._tasks[message.task].is_reached
        ]

    def _free(self, queues: Collection[MessageQueue]) -> list[Action]:
        self._settled |= set(queues)
        if not queues:
            return []
        return self._report_free(QueuesFree(self._plan, frozenset(queues)))

    def _report_free(self, report: QueuesFree | PlanOver) -> list[Action]:
        self._free_reports.append(report)
        return self._to_planner(report)

    def _to_planner(self, message: ToPlanner) -> list[Action]:
        return [] if self._planner is None else [Send(self._planner, message)]
