"""The driver of the simulation with its planner: the real ``HubState`` with its ``Cuts``, and who carries it out.

What is here is the part of ``hub.server``, ``hub.driver_end``, ``commit.pipeline`` and the planner. A batch's
ranges are open; :mod:`tests.simulation.closed` has those of micro-batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import TYPE_CHECKING, Any, Final

from pyspark_rocketmq.consume.cuts import Asking, Committing, Place
from pyspark_rocketmq.consume.part import Group, Part
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.hub.messages import (
    CallsEnded,
    CutWanted,
    FromTask,
    NothingToCut,
    PartHandedOver,
    PlanOver,
    QueuesFree,
    QueuesReleased,
    QueueStands,
    SlotsKnown,
    TaskBegins,
    TaskDirty,
    TaskDone,
    TaskFailed,
    TaskResumes,
    ToPlanner,
)
from pyspark_rocketmq.hub.state import Action, Commit, Ended, Flushed, HubState, Send, StillDelivered
from pyspark_rocketmq.model import MessageQueue
from tests.simulation.storage import Span, Violation
from tests.simulation.task import Task

if TYPE_CHECKING:
    from tests.simulation.world import World

Queues = frozenset[MessageQueue]
Peer = tuple[str, int]
"""A task's name, and the number of its connection."""
_PLANNER = "planner"
_RENEW_S = 20.0
_LOOK_S = 1.0
_TAKEN_BY: Final[Mapping[type[FromTask], Callable[[HubState, Peer, Any, float], list[Action]]]] = {
    TaskBegins: lambda hub, peer, begins, now_s: hub.task_begins(peer, begins, now_s),
    TaskResumes: lambda hub, peer, resumes, now_s: hub.task_resumes(peer, resumes, now_s),
    TaskDone: lambda hub, peer, done, now_s: hub.task_done(peer, done.task, done.part, now_s),
    TaskFailed: lambda hub, peer, failed, now_s: hub.task_failed(peer, failed.task, now_s, failed.error),
    TaskDirty: lambda hub, peer, dirty, now_s: hub.task_is_dirty(peer, dirty.task, now_s),
    PartHandedOver: lambda hub, peer, handed, now_s: hub.handed_over(peer, handed, now_s),
    NothingToCut: lambda hub, peer, nothing, now_s: hub.nothing_to_cut(
        peer, nothing.task, nothing.cut, now_s
    ),
    QueuesReleased: lambda hub, peer, each, now_s: hub.released(peer, each.task, each.queues, now_s),
    CallsEnded: lambda hub, peer, ended, now_s: hub.calls_ended(peer, ended.task, now_s),
    QueueStands: lambda hub, peer, stands, now_s: hub.queue_stands(peer, stands, now_s),
}
"""Methods of the hub for the messages of tasks."""


class Driver:
    """One run of the query, until it ends or is killed."""

    is_cut = True
    """Whether tasks are asked for cuts."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.member = world.new_name("member")
        self.is_alive = True
        self.hub = world.new_hub(world.interval_s if self.is_cut else None)
        self.cuts = self.hub._cuts
        self.hub.planner_came(_PLANNER)
        self.has_planner = True
        self.held: set[MessageQueue] = set()
        self.leaving: dict[MessageQueue, float] = {}
        """Queues that other members are to have, and since when."""
        self.plan = 0
        self.tasks_planned = 0
        self.open_for_s: float | None = None
        self.range_ends: dict[MessageQueue, int] = {}
        """Ends of closed ranges."""
        self.is_at_work = False
        """Whether a job runs."""
        self.is_stopping = False
        self.tasks: dict[str, Task] = {}
        self._slots = 0
        """Number of tasks that the hub advises to plan; 0 for any."""
        self._not_started: deque[int] = deque()
        """Tasks that wait for a slot."""
        self._jobs_done: set[int] = set()
        self._partitions: dict[int, Mapping[MessageQueue, Place]] = {}
        self._attempts: dict[int, int] = {}
        self._planned: Queues = frozenset()
        self._free: set[MessageQueue] = set()
        self.begin_marks: tuple[dict[MessageQueue, int], ...] = ()
        self._expected: tuple[dict[MessageQueue, int], ...] = ()
        self._refused: set[MessageQueue] = set()
        """Queues of the group in hand that were refused."""
        self._group_id = ""
        """Id of the newest group."""
        self._waiting: dict[MessageQueue, tuple[Place, float]] = {}
        """Offsets whose rows are committed and that are not stored yet, and since when."""
        self._is_committing = False
        self._results: dict[int, list[Part]] = {}
        """Parts that come with the job, by partition."""
        self._is_rest = False
        """Whether the group in hand is the last one of its batch."""
        self._tick_s: float | None = None
        self._last_cut_s = -1.0
        self._cut_number = 0
        self._is_over_sent = True
        self._unheard: dict[tuple[str, str], float] = {}
        """Facts that a task or the driver does not seem to know, with the task's name, and since when."""
        world.after(0.01, self._renew)
        world.after(_LOOK_S, self._look)
        world.after(0.02, self._plan_batch)

    # --- the planner ----------------------------------------------------------------------------------------

    def _renew(self) -> None:
        if not self.is_alive or not self.has_planner:
            return
        for queue in sorted(self.held):
            if not self.world.brokers.lock(queue, self.member, self.world.now_s):
                self._must_leave(queue)
        self.world.after(_RENEW_S, self._renew)

    def _gain(self) -> bool:
        """Lock queues that nobody has; return whether there were any."""
        gained = [
            queue
            for queue in self.world.queues
            if queue not in self.held and self.world.brokers.lock(queue, self.member, self.world.now_s)
        ]
        self.held.update(gained)
        return bool(gained)

    def _plan_batch(self) -> None:
        """Plan the queues that are held, from the offset store, and start the job."""
        if not self.is_alive or self.is_at_work:
            return
        if self.has_planner:
            self._gain()
        if not self.has_planner:
            self.world.driver_over(self, 0.5)
            return
        if not self.held:
            self.world.after(1.0, self._plan_batch)
            return
        self._claim()
        if not self._is_worth_a_batch():
            self.world.after(0.3, self._plan_batch)
            return
        self.plan += 1
        places = {queue: self.world.store.place(queue) for queue in sorted(self.held)}
        self._planned = frozenset(places)
        self.begin_marks = tuple(dict(sink.marks) for sink in self.world.sinks)
        self._expected = tuple(dict(sink.marks) for sink in self.world.sinks)
        self._free.clear()
        self.hub.plan_made(self.plan, self._planned)
        self.hub.batch_begins(self.plan)
        self.is_at_work, self._is_over_sent = True, False
        self._results, self._is_rest = {}, False
        self.tasks, self._jobs_done = {}, set()
        most = min(len(places), self._slots or self.world.slots)
        ordered = sorted(places)
        self._partitions = {
            number: {queue: places[queue] for queue in ordered[number::most]} for number in range(most)
        }
        self.tasks_planned = most
        self._attempts = dict.fromkeys(self._partitions, 0)
        self._plan_ranges(places)
        self._not_started = deque(self._partitions)
        for _ in range(self._slots_now(most)):
            self._start_next()

    def _claim(self) -> None:
        store = self.world.store
        for queue in sorted(self.held):
            if store.rows[queue].owner != self.member:
                store.claim(queue, self.member)

    def _is_worth_a_batch(self) -> bool:
        """Return whether to plan a batch now."""
        return True

    def _plan_ranges(self, places: Mapping[MessageQueue, Place]) -> None:
        """Decide how far the ranges go."""
        self.open_for_s = self.world.batch_s()

    def _slots_now(self, most: int) -> int:
        """Return how many tasks find a slot."""
        return self.world.slots_for(most)

    def _start_next(self) -> None:
        if self._not_started:
            partition = self._not_started.popleft()
            pause_s = self.world.random.uniform(0.01, 0.05)
            self.world.after(pause_s, self.start_task, partition, self.plan)

    def must_leave_some(self, queue: MessageQueue) -> None:
        """Note that another member is to have a queue."""
        if queue in self.held and self.has_planner:
            self._must_leave(queue)

    def _must_leave(self, queue: MessageQueue) -> None:
        self.leaving.setdefault(queue, self.world.now_s)
        if self.is_at_work and queue in self._planned:
            leaving = frozenset(self.leaving.keys() & self._planned)
            self._take(self.hub.must_leave(self.plan, leaving, self.world.now_s))
        elif self._is_over_sent or queue not in self._planned:
            self._unlock({queue})

    def _unlock(self, queues: Iterable[MessageQueue]) -> None:
        for queue in sorted(set(queues) & self.leaving.keys()):
            del self.leaving[queue]
            self.held.discard(queue)
            self.world.brokers.unlock(queue, self.member)
            self.world.unlocked(queue)

    def lose_planner(self) -> None:
        """End the planner's process only: nobody renews the locks."""
        self.has_planner = False
        self._take(self.hub.lost(_PLANNER, self.world.now_s))

    def stop(self) -> None:
        """End the query: the last parts are committed, and the locks are given back."""
        self.is_stopping = True
        self._take(self.hub.stop(self.world.now_s))

    def _look(self) -> None:
        """Look at the store's epochs, and for queues to gain."""
        if not self.is_alive:
            return
        self.world.after(_LOOK_S, self._look)
        self._take(self.hub.tick(self.world.now_s))
        if self.has_planner:
            for queue, since_s in self.leaving.items():
                self.world.check_leaving(since_s, queue)
        for _, since_s in self._waiting.values():
            self.world.check_offsets(since_s)
        if not self.is_at_work:
            return
        self._check_agreed()
        epochs = {queue: row.epoch for queue, row in self.world.store.rows.items()}
        self._take(self.hub.moved(epochs, self.hub.batches, self.world.now_s))
        if self.has_planner and self.open_for_s is not None and self._gain():
            self.world.after(self.world.random.uniform(0.0, 0.5), self._replan, self.plan)

    def _replan(self, plan: int) -> None:
        """Take the planner's wish for another plan, which may come late."""
        if self.is_alive:
            self.world.counts["replans wanted"] += 1
            self._take(self.hub.replan(plan, "a queue was gained", self.world.now_s))

    # --- Spark ----------------------------------------------------------------------------------------------

    def start_task(self, partition: int, plan: int) -> None:
        """Start an attempt of a task."""
        if self.is_alive and plan == self.plan and self.is_at_work and partition not in self._jobs_done:
            attempt = self._attempts[partition]
            task = self._new_task(partition, attempt)
            self.tasks[task.name] = task
            self.world.task_begins(task)

    def _new_task(self, partition: int, attempt: int) -> Task:
        return Task(self.world, self, partition, attempt, self._partitions[partition])

    def run_again(self, task: Task) -> None:
        """Run a task again, whether its attempt before is dead or not."""
        if self.is_alive and self.is_at_work and task.name in self.tasks and self._is_newest(task):
            self._attempts[task.partition] += 1
            others = [each for each in self.tasks.values() if each.is_running and self._is_newest(each)]
            if others and self.world.random.random() < 0.2:
                self.world.counts["no slot to run again"] += 1
                self._not_started.append(task.partition)
            else:
                self.world.after(0.1, self.start_task, task.partition, self.plan)

    def task_over(self, task: Task, *, is_good: bool) -> None:
        """Note the end of a task's process, as Spark sees it."""
        if not self.is_alive or task.name not in self.tasks:
            return
        if not is_good:
            self.run_again(task)
        elif self._is_newest(task):
            self._results[task.partition] = task.result
            self._jobs_done.add(task.partition)
            self._start_next()
            if self._jobs_done == self._partitions.keys():
                self.world.after(0.02, self._job_over, self.plan)

    def _is_newest(self, task: Task) -> bool:
        return task.attempt == self._attempts.get(task.partition)

    def _job_over(self, plan: int) -> None:
        if not self.is_alive or plan != self.plan or not self.is_at_work:
            return
        now_s = self.world.now_s
        self._take(self.hub.job_is_over(now_s, is_whole=True))
        self.is_at_work = False
        self._take(self.hub.batch_ends(now_s, could_ask=True))

    def _flushed(self, failure: BaseException | None) -> None:
        if failure is not None:
            self.world.skip_deadly(failure)
            self._fail()
            return
        rest = self.hub.rest([part for parts in self._results.values() for part in parts])
        if rest is None:
            self._batch_over()
        else:
            self.world.counts["parts with the job"] += len(rest.parts)
            self._is_rest = True
            self._begin_commit(Commit(rest))

    def _fail(self) -> None:
        """Have the batch's own thread raise the error, so that the query ends."""
        self.world.counts["failed batches"] += 1
        self.world.after(0.0, self.world.kill_driver, self)

    def _batch_over(self) -> None:
        if self._waiting:
            raise Violation(f"over before its offsets are stored: {self._waiting}")
        self._is_over_sent = True
        self._take(self.hub.batch_committed(self.plan, self.hub.batches))
        if self.is_stopping:
            self.leaving |= dict.fromkeys(self.held, self.world.now_s)
            self._unlock(self.held)
            self.world.driver_over(self, 0.1)
        else:
            self.world.after(0.3, self._plan_batch)

    # --- messages -------------------------------------------------------------------------------------------

    def receive(self, task: Task, message: FromTask, connection: int) -> None:
        """Take a message of a task."""
        peer = (task.name, connection)
        if isinstance(message, PartHandedOver):
            self._check_parts(peer, message)
        elif isinstance(message, TaskResumes):
            self.world.counts["resumed tasks"] += 1
        self._take(_TAKEN_BY[type(message)](self.hub, peer, message, self.world.now_s))

    def lost(self, task: Task, connection: int, *, is_silent: bool) -> None:
        """Notice that a task's connection is broken."""
        self._take(self.hub.lost((task.name, connection), self.world.now_s, is_silent=is_silent))

    # --- actions --------------------------------------------------------------------------------------------

    def _take(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if not isinstance(action, Send):
                self._carry_out(action)
            elif action.peer == _PLANNER:
                self._take_at_planner(action.message)  # type: ignore[arg-type]
            else:
                self._check_pace(action.message)
                self.world.to_task(action.peer, action.message)  # type: ignore[arg-type]
        self._set_timer()

    def _carry_out(self, action: Action) -> None:
        match action:
            case Commit():
                self._begin_commit(action)
            case Flushed(failure):
                self._flushed(failure)
            case Ended(ending):
                self.world.counts[f"ended for {ending.reason.value}"] += 1
                self.world.counts["slots too few"] += ending.slots is not None
            case StillDelivered():
                raise Violation("the batch is over although somebody delivers")
            case _:
                pass

    def _take_at_planner(self, message: ToPlanner) -> None:
        match message:
            case QueuesFree(plan, queues):
                self._freed(queues)
                if plan == self.plan and self.has_planner:
                    self._unlock(queues)
            case PlanOver():
                if self.has_planner:
                    self._unlock(set(self.leaving))
            case SlotsKnown(slots):
                self._slots = slots
            case _:
                pass

    def _freed(self, queues: Queues) -> None:
        self.world.counts["freed"] += len(queues)
        for queue in queues:
            self.world.check_free(self, queue)
        if early := queues & self._waiting.keys():
            raise Violation(f"free before its offset is stored: {early}")
        self._free |= queues

    def _check_parts(self, peer: Peer, handed: PartHandedOver) -> None:
        """A task makes no cut while two of its parts are not committed."""
        batch = self.cuts._batch
        if self.hub._task(peer, handed.task) is None:
            return
        others = {each.part.id for each in (*batch.waiting, *batch.in_hand) if each.task == handed.task}
        if handed.cut is not None and len(others - {handed.part.id}) >= 2:
            raise Violation(f"too many parts: {handed.task} sends {handed.part.id} after {others}")

    def _check_agreed(self) -> None:
        """A task and its driver agree once all messages between them must have arrived."""
        now_s = self.world.now_s
        unheard = {each for task in self.tasks.values() for each in self._unheard_of(task)}
        self._unheard = {each: self._unheard.get(each, now_s) for each in unheard}
        for (name, what), since_s in self._unheard.items():
            if since_s < now_s - 2.0:
                raise Violation(f"not heard: {name} {what}")

    def _unheard_of(self, task: Task) -> Iterator[tuple[str, str]]:
        control, known = task.control, self.hub._tasks.get(task.name)
        if known is None or known.is_lost or not control.is_open or not self.world.has_agreed(task):
            return
        batch = self.cuts._batch
        for queue in sorted(control._released - batch.ended - batch.free):
            yield task.name, f"has released {queue}"
        for queue in sorted(known.asked - control._given_up):
            yield task.name, f"is to give up {queue}"
        is_ended = self.cuts.is_ending or self.hub._ending is not None
        is_replanned = is_ended or (self.hub._open.next_tick_s or inf) < self.world.now_s + 6.0
        if (task.result or any(each.is_standing for each in task.ranges)) and not is_replanned:
            yield task.name, "has a queue that cannot go on"
        is_dirty = control._cuts._is_dirty and control._cuts._is_reported
        if is_dirty and not self._is_dirty_known(task.name):
            yield task.name, f"is dirty after {task.parts} parts"

    def _is_dirty_known(self, name: str) -> bool:
        is_busy = self.cuts.asking is not Asking.QUIET or self.cuts.committing is not Committing.IDLE
        return name in self.cuts._batch.dirty or is_busy or self.cuts.is_ending

    def _check_pace(self, message: object) -> None:
        if not isinstance(message, CutWanted) or message.number == self._cut_number:
            return
        self._cut_number = message.number
        world = self.world
        world.counts["cuts"] += 1
        if world.now_s < self._last_cut_s + world.interval_s:
            raise Violation(f"too soon: cut at {world.now_s} after {self._last_cut_s}")
        if self.cuts.committing is not Committing.IDLE and self.cuts._batch.waiting:
            raise Violation("too soon: a cut while one group is committed and another part waits")
        self._last_cut_s = world.now_s

    def _set_timer(self) -> None:
        at_s = self.hub.next_tick_s
        if at_s is not None and (self._tick_s is None or at_s < self._tick_s):
            self._tick_s = max(at_s, self.world.now_s)
            self.world.after(self._tick_s - self.world.now_s, self._tick, self._tick_s)

    def _tick(self, at_s: float) -> None:
        if self.is_alive and self._tick_s == at_s:
            self._tick_s = None
            next_s = self.hub.next_tick_s
            if next_s is not None and next_s <= self.world.now_s:
                self._take(self.hub.tick(self.world.now_s))
            else:
                # The timer's reason is gone meanwhile.
                self._set_timer()

    # --- commits --------------------------------------------------------------------------------------------

    def _begin_commit(self, commit: Commit) -> None:
        if self._is_committing:
            raise Violation("two groups at a time")
        self._is_committing = True
        group = commit.group
        if group is None:
            self.world.counts["offsets without a group"] += 1
            self._refused.clear()
            self.world.after(self.world.commit_s(), self._commit_offsets)
            return
        if early := group.queues & self._free:
            raise Violation(f"committed after it was free: {early}")
        if group.id != self._group_id:
            self._group_id = group.id
            self._refused.clear()
            self._check_latency(group)
        self.world.counts["groups"] += 1
        self.world.counts["groups whose offsets wait"] += not commit.stores_offsets
        if self.world.has("epoch check") and commit.stores_offsets:
            rows = self.world.store.rows
            self._refused.update(ack.queue for ack in group.acks if ack.state.epoch != rows[ack.queue].epoch)
        if not self.world.has("data first"):
            self._add_offsets(group)
            self._store_offsets()
        self.world.after(self.world.commit_s(), self._commit_data, commit, group, 0)

    def _check_latency(self, group: Group) -> None:
        for part in group.parts:
            self.world.check_latency(part.written[0]["since_s"])

    def _commit_data(self, commit: Commit, group: Group, number: int) -> None:
        """Add the rows to a sink, then to the next one, then store the offsets."""
        sinks = self.world.sinks
        if self.is_alive and number == 0 and self.world.dies("before data"):
            self.world.kill_driver(self)
        if not self.is_alive:
            if number < len(sinks) and self.world.lands_late():
                self.world.after(self.world.random.uniform(0.0, 40.0), self._add_rows, group, number)
            return
        if number == len(sinks):
            self._rows_added(commit, group)
            return
        fault = self.world.commit_fault()
        if fault != "not made":
            self._add_rows(group, number)
        if fault:
            self._commit_failed()
        elif self.world.dies("after data"):
            self.world.kill_driver(self)
        else:
            self.world.after(self.world.commit_s(), self._commit_data, commit, group, number + 1)

    def _add_rows(self, group: Group, number: int) -> None:
        """Add rows, without the queues that somebody else has moved; these are refused."""
        expected, sink = self._expected[number], self.world.sinks[number]
        compared = expected if self.world.has("watermark") else None
        while True:
            acks = [ack for ack in group.acks if ack.queue not in self._refused]
            ends = {ack.queue: ack.state.next_offset for ack in acks}
            moved = sink.commit(group.id, self._rows_of(group, number), ends, compared)
            if not moved:
                for queue, end in ends.items():
                    expected[queue] = max(expected[queue], end)
                return
            self.world.counts["refused queues"] += len(moved)
            self._refused |= moved

    @staticmethod
    def _rows_of(group: Group, number: int) -> dict[MessageQueue, list[Span]]:
        rows: dict[MessageQueue, list[Span]] = {}
        for part in group.parts:
            for queue, span in part.written[0]["rows"][number].items():
                rows.setdefault(queue, []).append(span)
        return rows

    def _rows_added(self, commit: Commit, group: Group) -> None:
        self._add_offsets(group)
        if commit.stores_offsets:
            self._commit_offsets()
        else:
            self._made()

    def _commit_offsets(self) -> None:
        """Store the offsets that wait."""
        if not self.is_alive:
            return
        fault = self.world.commit_fault()
        if fault != "not made":
            self._store_offsets()
        if fault:
            self._commit_failed()
        elif self.world.dies("after offsets"):
            self.world.kill_driver(self)
        else:
            self._waiting.clear()
            self._made()

    def _commit_failed(self) -> None:
        self._is_committing = False
        self.world.counts["failed commits"] += 1
        if self._is_rest:
            self._fail()
        else:
            self._take(self.hub.commit_failed(RocketMQError("away"), self.world.now_s))

    def _made(self) -> None:
        self._is_committing = False
        refused, took_s = frozenset(self._refused), self.world.commit_s()
        if self._is_rest:
            self._batch_over()
        else:
            self._take(self.hub.committed(refused, self.world.now_s, took_s=took_s))

    def _add_offsets(self, group: Group) -> None:
        for ack in group.acks:
            if ack.queue not in self._refused:
                _, since_s = self._waiting.get(ack.queue, (None, self.world.now_s))
                place = Place(ack.state.epoch, ack.state.next_offset)
                self._waiting[ack.queue] = place, since_s

    def _store_offsets(self) -> None:
        for queue, (place, _) in self._waiting.items():
            if not self.world.store.commit(queue, *place):
                self._refused.add(queue)
