"""Decides which queue of the batch under way a task must give up, and when a queue is free; no I/O, no clock.

The planner says which queues its plan holds and which of them it must give away. Tasks say which queues they
begin with, and what became of them. The driver says when a batch begins and ends, and what it has committed.
Methods return the actions to take.

Rule 1: a queue is *free* once nobody delivers it and everything that was delivered is committed, or is never
going to be. Then the planner hears of it, with the number of its plan: it ignores what comes late of an older
plan.
Rule 2: a queue that no task has begun is free at once if every task asks before it begins. A task that cannot
ask may begin only in a batch in which none must (``must_ask``).
Rule 3: what a task hands over is the driver's from then on, whatever becomes of the task; another attempt of
the task must leave these queues out.
Rule 4: the queues of a task whose connection broke are free when the batch is over, or when another attempt
of it says so: the call in hand may still run.
Rule 5: a task that has only suspended queues left is *idle*, and stays so. It waits for them while its batch
is *at work*: all tasks have begun, and one is not idle. While some have not begun, it waits two seconds if a
slot is free; without a free slot it ends, because they may need its own. Once told that it is to end, it
does.
Rule 6: a planner that ends keeps its locks until nobody delivers any more. So nothing is delivered from then
on; once the batch is committed or given up, and each of its tasks has ended or may not begin, the plan is
over. If that is not known of a task, the planner waits as long as Spark may take to end a worker.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pyspark_rocketmq.hub.session import Message, listed
from pyspark_rocketmq.model import MessageQueue

Queues = frozenset[MessageQueue]

CALLS_END_S: Final = 5.0
"""How long after its query a listener may be called: Spark looks every 2 s for tasks that were cancelled,
gives the Python worker of one ``spark.python.task.killTimeout`` (2 s), then ends it with SIGKILL."""
_PLANNER_GONE_S: Final = 15.0
"""How long tasks go on without their planner, which may come back."""
_BEGIN_WITHIN_S: Final = 2.0
"""How long an idle task waits for those that have not begun, though there seems to be a slot for them."""
_NOTHING: Final[Queues] = frozenset()


class Part(NamedTuple):
    """What a task has written and acknowledged of some of its queues; committed or dropped as one."""

    id: str
    queues: Queues
    result: Message
    """As the task's own result has it."""


class Send(NamedTuple):
    """Send a message to whom ``peer`` stands for."""

    peer: Hashable
    message: Message


class Commit(NamedTuple):
    """Commit a part, and report :meth:`HubState.committed`."""

    part: Part


class Look(NamedTuple):
    """Look soon whether the query still runs."""


Action = Send | Commit | Look


class BatchResult(NamedTuple):
    """What a job leaves to the driver."""

    plan: int
    """The number of the plan that was run."""
    taken: frozenset[str]
    """Ids of the parts that were handed over: they are committed, or to be."""


class Slots(NamedTuple):
    """How many tasks can run at the same time."""

    at_once: int = 0
    """As of now; 0 if that is not known."""
    most_planned: int = 0
    """Tasks that a batch is to have at most; 0 for any number."""


class TaskStart(NamedTuple):
    """What a task says of itself before it delivers anything."""

    task: str
    """Tells attempts apart, those of other batches and queries too."""
    batch_id: int
    partition: int
    """The same for all attempts."""
    epochs: Mapping[MessageQueue, int]
    """Of its ranges."""
    tasks: int = 1
    """How many the batch has."""


@dataclass(slots=True)
class _Task:
    peer: Hashable
    start: TaskStart
    is_lost: bool = False
    done: Part | None = None
    """A copy of its result, once it has ended."""
    is_done: bool = False
    asked: set[MessageQueue] = field(default_factory=set)
    """Queues that it was told to give up."""
    idle_s: float | None = None
    """Since when it has only suspended queues left."""
    is_waiting: bool = False
    """It is idle and was told that the batch is at work."""

    @property
    def is_running(self) -> bool:
        return not self.is_done and not self.is_lost


class HubState:
    """One query's. Not thread-safe; no method waits."""

    def __init__(
        self,
        *,
        must_ask: bool,
        slots: Slots = Slots(),  # noqa: B008 - it does not change
        calls_end_s: float = CALLS_END_S,
    ) -> None:
        """Begin with no batch.

        Args:
            must_ask: Every task will be able to ask, from the first batch on.
            slots: As of now.
            calls_end_s: How long Spark lets a worker go on after its job, for the planner.
        """
        self._calls_end_s = calls_end_s
        self.must_ask = must_ask
        """Whether a task that cannot ask must leave its ranges as they are."""
        self._planner: Hashable | None = None
        self._planner_lost_s: float | None = None
        self._plan = 0
        self._plan_queues: Queues = _NOTHING
        self._leaving: Queues = _NOTHING
        """What the planner must give away of its plan."""
        self._batch_id: int | None = None
        self._slots = slots
        self._held_up = ""
        self._tasks: dict[str, _Task] = {}
        self._owner: dict[MessageQueue, _Task] = {}
        """The task that has begun with a queue, dead ones included."""
        self._moved: set[MessageQueue] = set()
        """Claimed or reset since they were planned."""
        self._settled: set[MessageQueue] = set()
        """Free, or being committed: nobody may begin with them any more in this plan."""
        self._parts: set[str] = set()
        """The driver's: committed, or to be."""
        self.is_stopping = False
        self._last_plan: int | None = None
        """That of a planner which ends."""
        self._is_settled = True
        """No batch is under way, its commit included."""
        self._late: dict[str, Hashable] = {}
        """Tasks that had not ended when their job had, and the peer of each: they may still deliver."""
        self._is_any_unseen = False
        """Whether a job ended before its end, and tasks of it may run that never asked."""

    # --- the planner ----------------------------------------------------------------------------------------

    def planner_came(self, peer: Hashable) -> list[Action]:
        """The planner is connected; the last peer to say so is the planner."""
        self._planner, self._planner_lost_s, self._last_plan = peer, None, None
        return self._tell_slots() + self._tell_held_up()

    def plan_made(self, number: int, queues: Queues) -> None:
        """A plan was made, or is told of again."""
        if number > self._plan:
            self._plan, self._plan_queues = number, queues
            self._leaving = _NOTHING
            self._settled.clear()

    def must_leave(self, number: int, queues: Queues) -> list[Action]:
        """All queues of a plan that are to be given up, as of now."""
        if number != self._plan:
            return []
        self._leaving = queues
        return self._give_up()

    def planner_leaves(self, plan: int) -> list[Action]:
        """The planner ends, and waits to hear that nothing of ``plan`` is delivered any more."""
        self._last_plan = plan
        return self._stop_tasks() + self._over_for_good()

    @property
    def has_planner(self) -> bool:
        """Whether a planner is connected."""
        return self._planner is not None

    # --- the driver -----------------------------------------------------------------------------------------

    def slots_are(self, slots: Slots) -> list[Action]:
        """What has become of the number of tasks that can run at the same time."""
        is_news = slots.most_planned != self._slots.most_planned
        self._slots = slots
        return self._tell_slots() if is_news else []

    def held_up(self, reason: str) -> list[Action]:
        """Note why queues are held up, as far as the last batch has shown; empty without a reason."""
        if reason == self._held_up:
            return []
        self._held_up = reason
        return self._to_planner({"type": "held_up", "reason": reason})

    def batch_begins(self, batch_id: int) -> bool:
        """A job begins; whether its tasks must ask before they begin with their queues."""
        self._batch_id = batch_id
        self._tasks.clear()
        self._owner.clear()
        self._moved.clear()
        self._parts.clear()
        self._late.clear()
        self._is_settled = self._is_any_unseen = False
        return self.must_ask

    def job_is_over(self, *, is_whole: bool) -> list[Action]:
        """The job has ended, before :meth:`batch_ends`: what a task still does is in vain.

        ``is_whole``: it came to its end; otherwise it failed, or was cancelled, and its tasks may go on.
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
        return self._stop_tasks()

    def batch_ends(self, *, could_ask: bool | None) -> BatchResult:
        """Nothing more of the job is taken.

        Args:
            could_ask: Whether all of its tasks were connected; None if it had none, or none that asks.
        """
        if could_ask is not None:
            self.must_ask = could_ask
        self._batch_id = None
        self._tasks.clear()
        self._owner.clear()
        self._settled.clear()
        # What the planner says of this plan from now on has to wait for the commit.
        self._plan_queues = self._leaving = _NOTHING
        return BatchResult(self._plan, frozenset(self._parts))

    def batch_committed(self, plan: int) -> list[Action]:
        """All of a plan's batch is committed, or dropped for good."""
        self._is_settled = True
        return self._to_planner({"type": "over", "plan": plan})

    def batch_failed(self) -> list[Action]:
        """Nothing of the batch is going to be committed any more: its query ends."""
        self._is_settled = True
        return self._over_for_good()

    def committed(self, part: Part) -> list[Action]:
        """A part is committed, or dropped because its queues are somebody else's."""
        return self._free(part.queues)

    def moved(self, epochs: Mapping[MessageQueue, int]) -> list[Action]:
        """The epochs that are stored now, of all queues that have one."""
        for queue, task in self._owner.items():
            if queue in epochs and epochs[queue] != task.start.epochs[queue]:
                self._moved.add(queue)
        return self._give_up()

    def stop(self) -> list[Action]:
        """The query is to end: tasks stop after the call in hand, and their batch is committed."""
        self.is_stopping = True
        return self._stop_tasks()

    @property
    def is_watched(self) -> bool:
        """Whether there are queues whose epochs are to be compared."""
        return bool(self._owner)

    # --- tasks ----------------------------------------------------------------------------------------------

    def task_begins(self, peer: Hashable, start: TaskStart) -> list[Action]:
        """A task asks what to leave out."""
        if start.batch_id != self._batch_id:
            # Of a batch that is over: whatever it does is in vain.
            return [Send(peer, {"type": "go", "task": start.task, "give_up": [], "stop": True})]
        former = [before for before in self._tasks.values() if before.start.partition == start.partition]
        superseded = self._told_to_end([before for before in former if before.is_waiting])
        for before in former:
            before.done = None
            before.is_lost = True
        task = self._tasks[start.task] = _Task(peer, start)
        settled = self._settled.intersection(start.epochs)
        left_out = settled | self._leaving.intersection(start.epochs)
        for queue in start.epochs.keys() - settled:
            self._owner[queue] = task
        go = {
            "type": "go",
            "task": start.task,
            "give_up": listed(left_out),
            "stop": self.is_stopping or self._is_orphaned or self._last_plan is not None,
        }
        return [Send(peer, go), *superseded, *self._free(left_out - settled)]

    def handed_over(self, peer: Hashable, task_id: str, part: Part) -> list[Action]:
        """A task gives a part to the driver."""
        task = self._task(peer, task_id)
        if task is None:
            return []
        return [Send(peer, {"type": "taken", "task": task_id, "part": part.id}), *self._take(part)]

    def released(self, peer: Hashable, task_id: str, queues: Queues) -> list[Action]:
        """A task has delivered nothing of these queues, or nothing that counts, and will not."""
        task = self._task(peer, task_id)
        if task is None:
            return []
        return self._free(queues & task.start.epochs.keys())

    def task_idles(self, peer: Hashable, task_id: str, now_s: float) -> list[Action]:
        """A task has only suspended queues left; it hears whether to wait for them, and when no longer to."""
        task = self._task(peer, task_id)
        if task is None or task.is_done:
            return [Send(peer, {"type": "batch", "task": task_id, "at_work": False})]
        task.idle_s = now_s
        task.is_waiting = self._is_at_work(now_s)
        return [_batch(task, at_work=task.is_waiting), *self._end_idle(now_s)]

    def task_done(self, peer: Hashable, task_id: str, result: Part | None, now_s: float) -> list[Action]:
        """A task has ended; ``result`` is a copy of what comes with the batch, None if that is too large."""
        task = self._task(peer, task_id)
        if task is None:
            return self._late_ended(peer, task_id)
        task.is_done, task.done = True, result
        return self._give_up() + self._end_idle(now_s)

    def task_failed(self, peer: Hashable, task_id: str, now_s: float) -> list[Action]:
        """An attempt of a task delivers nothing any more, and brings nothing but what it has handed over."""
        task = self._task(peer, task_id)
        if task is None:
            return self._late_ended(peer, task_id)
        if not task.is_done:
            task.is_lost = True
        return self._end_idle(now_s)

    def lost(self, peer: Hashable, now_s: float) -> list[Action]:
        """A connection is no more."""
        look: list[Action] = []
        if peer == self._planner:
            self._planner, self._planner_lost_s = None, now_s
            look.append(Look())
        for task in self._tasks.values():
            if task.peer == peer and not task.is_done:
                task.is_lost = True
        return look + self._end_idle(now_s)

    def tick(self, now_s: float) -> list[Action]:
        """Time goes by: without a planner nobody renews the locks, and tasks must end before they run out."""
        idle = self._end_idle(now_s)
        is_gone = self._planner_lost_s is not None and now_s - self._planner_lost_s >= _PLANNER_GONE_S
        if not is_gone or self._is_orphaned:
            return idle
        self._planner_lost_s = float("-inf")
        return idle + self._stop_tasks()

    @property
    def _is_orphaned(self) -> bool:
        return self._planner_lost_s == float("-inf")

    # --- inside ---------------------------------------------------------------------------------------------

    def _tell_slots(self) -> list[Action]:
        """Limit the planner's number of tasks."""
        return self._to_planner(
            {"type": "slots", "slots": self._slots.most_planned, "calls_end_s": self._calls_end_s}
        )

    def _tell_held_up(self) -> list[Action]:
        return self._to_planner({"type": "held_up", "reason": self._held_up}) if self._held_up else []

    def _task(self, peer: Hashable, task_id: str) -> _Task | None:
        """None of a task that nothing more is taken from."""
        task = self._tasks.get(task_id)
        return None if task is None or task.peer != peer or task.is_lost else task

    def _stop_tasks(self) -> list[Action]:
        return [Send(task.peer, {"type": "stop", "task": task.start.task}) for task in self._running()]

    def _late_ended(self, peer: Hashable, task_id: str) -> list[Action]:
        if self._late.get(task_id) == peer:
            del self._late[task_id]
        return self._over_for_good()

    def _over_for_good(self) -> list[Action]:
        """Report to a planner that ends that its plan is over, once that is so."""
        if self._last_plan is None or not self._is_settled or self._late or self._is_any_unseen:
            return []
        return self._to_planner({"type": "over", "plan": self._last_plan})

    def _running(self) -> list[_Task]:
        return [task for task in self._tasks.values() if task.is_running]

    def _is_at_work(self, now_s: float) -> bool:
        """Whether idle tasks are to wait."""
        running = self._running()
        # Another attempt of a lost one needs a slot, too.
        begun = {task.start.partition for task in self._tasks.values() if not task.is_lost}
        if len(begun) >= max((task.start.tasks for task in running), default=0):
            return any(task.idle_s is None for task in running)
        first_idle_s = min((task.idle_s for task in running if task.idle_s is not None), default=now_s)
        return len(running) < self._slots.at_once and now_s - first_idle_s < _BEGIN_WITHIN_S

    def _end_idle(self, now_s: float) -> list[Action]:
        """Tell idle tasks that nobody is left whom they could wait for."""
        waiting = [task for task in self._running() if task.is_waiting]
        return self._told_to_end(waiting) if waiting and not self._is_at_work(now_s) else []

    def _told_to_end(self, waiting: Sequence[_Task]) -> list[Action]:
        for task in waiting:
            task.is_waiting = False
        return [_batch(task, at_work=False) for task in waiting]

    def _give_up(self) -> list[Action]:
        """Begin with every queue that must go and is not on its way."""
        actions: list[Action] = []
        for queue in sorted((self._leaving | self._moved) - self._settled):
            task = self._owner.get(queue)
            if task is None:
                if self.must_ask and queue in self._plan_queues:
                    actions += self._free({queue})
            elif task.is_done:
                if task.done is not None and queue in task.done.queues and queue not in self._moved:
                    actions += self._take(task.done)
            elif not task.is_lost and queue not in task.asked:
                task.asked.add(queue)
                message: Message = {
                    "type": "give_up",
                    "task": task.start.task,
                    "queues": listed({queue}),
                    "drop": queue in self._moved,
                }
                actions.append(Send(task.peer, message))
        return actions

    def _take(self, part: Part) -> list[Action]:
        if part.id in self._parts:
            return []
        self._parts.add(part.id)
        self._settled |= part.queues
        return [Commit(part)]

    def _free(self, queues: Collection[MessageQueue]) -> list[Action]:
        self._settled |= set(queues)
        if not queues:
            return []
        return self._to_planner({"type": "free", "plan": self._plan, "queues": listed(queues)})

    def _to_planner(self, message: Message) -> list[Action]:
        return [] if self._planner is None else [Send(self._planner, message)]


def _batch(task: _Task, *, at_work: bool) -> Send:
    return Send(task.peer, {"type": "batch", "task": task.start.task, "at_work": at_work})
