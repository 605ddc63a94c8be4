"""The driver of the simulation with its planner: the real ``Cuts`` and the real ``HubState``, wired together.

The wiring is what ``hub.driver_end`` and ``commit.pipeline`` are to do: ``Cuts`` has the parts, ``HubState`` has
the planner's wishes, and a queue that ``HubState`` frees is free once ``Cuts`` agrees.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pyspark_rocketmq.consume.cuts import (
    Action,
    Answer,
    AskForCut,
    CommitGroup,
    Committing,
    Drop,
    EndTasks,
    Fail,
    Free,
    PartsOver,
    Place,
    Replan,
    Taken,
)
from pyspark_rocketmq.consume.part import Group
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.hub import state as hub
from pyspark_rocketmq.hub.messages import (
    FromDriver,
    GiveUpQueues,
    PlanOver,
    QueuesFree,
    StopTask,
    TaskBegins,
    TaskMayBegin,
)
from pyspark_rocketmq.hub.state import HubState
from pyspark_rocketmq.model import MessageQueue
from tests.simulation.storage import Span, Violation
from tests.simulation.task import (
    Begin,
    Confirmed,
    Cut,
    Dirty,
    Done,
    End,
    GiveUp,
    NoProgress,
    Over,
    Released,
    Resume,
    SentPart,
    Task,
    ToRun,
)

if TYPE_CHECKING:
    from tests.simulation.world import World

Queues = frozenset[MessageQueue]
_PLANNER = "planner"
_RENEW_S = 20.0
_LOOK_S = 1.0


class Driver:
    """One run of the query, until it ends or is killed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.member = world.new_name("member")
        self.is_alive = True
        self.cuts = world.new_cuts(world.interval_s, are_ranges_open=True)
        self.hub = HubState(must_ask=True)
        self.hub.planner_came(_PLANNER)
        self.has_planner = True
        self.held: set[MessageQueue] = set()
        self.leaving: set[MessageQueue] = set()
        self.plan = 0
        self.is_at_work = False
        """Whether a job runs."""
        self.is_stopping = False
        self.tasks: dict[str, Task] = {}
        self._asked: dict[str, set[tuple[MessageQueue, bool]]] = {}
        """Queues that tasks were to give up, to be sent again when they resume."""
        self._connections: dict[str, int] = {}
        """Newest connection on which each task has begun or resumed."""
        self._jobs_done: set[int] = set()
        self._partitions: dict[int, Mapping[MessageQueue, Place]] = {}
        self._attempts: dict[int, int] = {}
        self._planned: Queues = frozenset()
        self._free: set[MessageQueue] = set()
        self._epochs: dict[MessageQueue, int] = {}
        """Epochs of the newest look at the store."""
        self.begin_marks: tuple[dict[MessageQueue, int], ...] = ()
        self._expected: tuple[dict[MessageQueue, int], ...] = ()
        self._refused: set[MessageQueue] = set()
        """Queues of the group in hand that were refused."""
        self._group_id = ""
        """Id of the newest group."""
        self._is_committing = False
        self._tick_s: float | None = None
        self._last_cut_s = -1.0
        self._taken: set[str] = set()
        """Parts that have arrived."""
        self._grouped: set[str] = set()
        """Parts that are or were in a group, or were dropped."""
        self._is_over_sent = True
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
        store = self.world.store
        for queue in sorted(self.held):
            if store.rows[queue].owner != self.member:
                store.claim(queue, self.member)
        self.plan += 1
        places = {queue: store.place(queue) for queue in sorted(self.held)}
        self._epochs = {queue: row.epoch for queue, row in store.rows.items()}
        self._planned = frozenset(places)
        self.begin_marks = tuple(dict(sink.marks) for sink in self.world.sinks)
        self._expected = tuple(dict(sink.marks) for sink in self.world.sinks)
        self._free.clear()
        self.hub.plan_made(self.plan, self._planned)
        self.hub.batch_begins(self.plan)
        self.cuts.begin_batch()
        self._taken.clear()
        self._grouped.clear()
        self.is_at_work, self._is_over_sent = True, False
        self.tasks, self._asked, self._jobs_done = {}, {}, set()
        most = min(len(places), self.world.slots)
        ordered = sorted(places)
        self._partitions = {
            number: {queue: places[queue] for queue in ordered[number::most]} for number in range(most)
        }
        self._attempts = dict.fromkeys(self._partitions, 0)
        for partition in self._partitions:
            self.world.after(self.world.random.uniform(0.01, 0.05), self.start_task, partition, self.plan)
        self.world.after(self.world.batch_s(), self._time_is_up, self.plan)

    def _time_is_up(self, plan: int) -> None:
        if self.is_alive and plan == self.plan:
            self.take(self.cuts.end("time", self.world.now_s))

    def must_leave_some(self, queue: MessageQueue) -> None:
        """Note that another member is to have a queue."""
        if queue in self.held and self.has_planner:
            self._must_leave(queue)

    def _must_leave(self, queue: MessageQueue) -> None:
        self.leaving.add(queue)
        if self.is_at_work and queue in self._planned:
            self._take_hub(
                self.hub.must_leave(self.plan, frozenset(self.leaving & self._planned), self.world.now_s)
            )
        elif not self.is_at_work:
            self._unlock({queue})

    def _unlock(self, queues: Iterable[MessageQueue]) -> None:
        for queue in sorted(set(queues) & self.leaving):
            self.leaving.discard(queue)
            self.held.discard(queue)
            self.world.brokers.unlock(queue, self.member)
            self.world.unlocked(queue)

    def lose_planner(self) -> None:
        """End the planner's process only: nobody renews the locks."""
        self.has_planner = False
        self._take_hub(self.hub.lost(_PLANNER, self.world.now_s))

    def stop(self) -> None:
        """End the query: the last parts are committed, and the locks are given back."""
        self.is_stopping = True
        self._end("stop")

    def _end(self, reason: str) -> None:
        self.take(self.cuts.end(reason, self.world.now_s))

    # --- Spark ----------------------------------------------------------------------------------------------

    def start_task(self, partition: int, plan: int) -> None:
        """Start an attempt of a task."""
        if self.is_alive and plan == self.plan and self.is_at_work and partition not in self._jobs_done:
            attempt = self._attempts[partition]
            task = self._new_task(partition, attempt)
            self.tasks[task.name] = task
            self.world.tasks.append(task)

    def _new_task(self, partition: int, attempt: int) -> Task:
        return Task(self.world, self, partition, attempt, self._partitions[partition])

    def run_again(self, task: Task) -> None:
        """Run a task again, whether its attempt before is dead or not."""
        if self.is_alive and self.is_at_work and task.name in self.tasks and self._is_newest(task):
            self._attempts[task.partition] += 1
            self.world.after(0.1, self.start_task, task.partition, self.plan)

    def task_over(self, task: Task, *, is_good: bool) -> None:
        """Note the end of a task's process, as Spark sees it."""
        if not self.is_alive or task.name not in self.tasks:
            return
        if not is_good:
            self.run_again(task)
        elif self._is_newest(task):
            self._jobs_done.add(task.partition)
            if self._jobs_done == self._partitions.keys():
                self.world.after(0.02, self._job_over, self.plan)

    def _is_newest(self, task: Task) -> bool:
        return task.attempt == self._attempts.get(task.partition)

    def _job_over(self, plan: int) -> None:
        if not self.is_alive or plan != self.plan or not self.is_at_work:
            return
        is_anybody_left = self.cuts.is_anybody_delivering(self.world.now_s)
        if is_anybody_left and self.world.has("wait for replaced tasks"):
            self.world.after(0.05, self._job_over, plan)
            return
        self.hub.job_is_over(is_whole=True)
        self.hub.batch_ends(self.world.now_s, could_ask=True)
        self.is_at_work = False
        self.take(self.cuts.close(self.world.now_s))
        self._batch_over()

    def _batch_over(self) -> None:
        if self.is_at_work or self._is_over_sent or not self.cuts.is_settled:
            return
        self._is_over_sent = True
        self._take_hub(self.hub.batch_committed(self.plan))
        if self.is_stopping:
            self.leaving |= self.held
            self._unlock(self.held)
            self.world.driver_over(self, 0.1)
        else:
            self.world.after(0.3, self._plan_batch)

    # --- messages -------------------------------------------------------------------------------------------

    def receive(self, task: Task, message: object, connection: int) -> None:
        """Take a message of a task."""
        if isinstance(message, Begin | Resume):
            if connection < self._connections.get(task.name, 0):
                return
            self._connections[task.name] = connection
        self._receive(task, message)

    def _receive(self, task: Task, message: object) -> None:
        now_s, name = self.world.now_s, task.name
        match message:
            case Begin(partition, attempt, places):
                self._begins(task, partition, attempt, places)
            case Resume(in_doubt):
                self._resumes(task, in_doubt)
            case Dirty():
                self.take(self.cuts.dirty(name, now_s))
            case SentPart(part, cut, ends):
                self.take(self.cuts.part(name, part, now_s, cut=cut, ends=ends))
            case NoProgress(cut):
                self.take(self.cuts.nothing(name, cut, now_s))
            case Released(queues):
                self.take(self.cuts.released(name, queues, now_s))
            case Done():
                self.take(self.cuts.done(name, now_s))
            case _:
                raise TypeError(message)

    def _begins(self, task: Task, partition: int, attempt: int, places: Mapping[MessageQueue, Place]) -> None:
        if task.name not in self.tasks or not self.is_at_work:
            self._send(task, ToRun(Answer(task.name, is_stopped=True), frozenset()))
            return
        actions = self.cuts.begin(task.name, partition, attempt, places, self.world.now_s)
        # A later attempt has nothing for the hub: the queues of the one before are free with the plan.
        left_out: Queues = frozenset()
        if actions[0] == Answer(task.name, is_stopped=False):
            start = TaskBegins(
                task=task.name,
                batch_id=self.plan,
                partition=partition,
                attempt=attempt,
                places=places,
                tasks=len(self._partitions),
            )
            hub_actions = self.hub.task_begins(task.name, start, self.world.now_s)
            left_out = next(
                each.message.left_out
                for each in hub_actions
                if isinstance(each, hub.Send) and isinstance(each.message, TaskMayBegin)
            )
            self._take_hub(hub_actions)
        self.take(actions, left_out=left_out)

    def _resumes(self, task: Task, in_doubt: tuple[str, ...]) -> None:
        # Another connection of it may not be known to be broken.
        self.take(self.cuts.lost(task.name, self.world.now_s))
        asked = self._asked.get(task.name, set())
        self.take(
            self.cuts.resume(task.name, in_doubt),
            left_out=frozenset(queue for queue, drop in asked if not drop),
        )

    def lost(self, task: Task, connection: int, *, is_silent: bool) -> None:
        """Notice that a task's connection is broken."""
        if connection == self._connections.get(task.name):
            self.take(self.cuts.lost(task.name, self.world.now_s, is_silent=is_silent))

    def _send(self, task: Task, message: object) -> None:
        self.world.to_task(task, message)

    def _send_to(self, name: str, message: object) -> None:
        if (task := self.tasks.get(name)) is not None:
            self._send(task, message)

    # --- actions --------------------------------------------------------------------------------------------

    def take(self, actions: list[Action], *, left_out: Queues = frozenset()) -> None:
        """Carry out the actions of ``Cuts``."""
        for action in actions:
            self._check(action)
            names, message = self._message(action, left_out)
            for name in names:
                self._send_to(name, message)
            match action:
                case CommitGroup(group):
                    self._begin_commit(group)
                case Free(queues):
                    self._freed(queues)
                case Replan(queues, reason):
                    self._replan(queues, reason)
                case Fail():
                    self.world.counts["failed batches"] += 1
                    self.world.after(0.0, self.world.kill_driver, self)
                case _:
                    pass
        self._set_timer()

    def _message(self, action: Action, left_out: Queues) -> tuple[Iterable[str], object]:
        """Return the message to tasks that an action asks for, and their names."""
        names: Iterable[str] = ()
        message: object = None
        match action:
            case Answer():
                names, message = (action.task,), ToRun(action, left_out)
            case AskForCut(number, tasks):
                names, message = tasks, Cut(number)
            case Taken(name, part_id):
                names, message = (name,), Confirmed(part_id)
            case PartsOver(name, part_ids):
                names, message = (name,), Over(part_ids)
            case Drop(queues):
                names, message = self.tasks, GiveUp(queues, is_dropped=True)
            case EndTasks(_, tasks):
                names, message = tasks, End()
            case _:
                pass
        return names, message

    def _check(self, action: Action) -> None:
        """Keep count of the parts, to see that no cut comes too soon."""
        match action:
            case Taken(name, part_id) if name in self.tasks:
                self._taken.add(part_id)
            case PartsOver(_, part_ids):
                self._grouped |= part_ids
            case CommitGroup(group):
                self._grouped.update(part.id for part in group.parts)
            case AskForCut():
                self._check_pace()
            case _:
                pass

    def _take_hub(self, actions: list[hub.Action]) -> None:
        for action in actions:
            if isinstance(action, hub.Send):
                self._take_message(action.message)

    def _take_message(self, message: FromDriver) -> None:
        """Carry out what ``HubState`` sends; tasks get most of it from ``Cuts`` instead."""
        match message:
            case GiveUpQueues(name, queues, is_dropped):
                self._asked.setdefault(name, set()).update((queue, is_dropped) for queue in queues)
                self._send_to(name, GiveUp(queues, is_dropped))
            case QueuesFree(plan, queues):
                if plan == self.plan and self.has_planner:
                    self._unlock(queues)
            case PlanOver():
                if self.has_planner:
                    self._unlock(set(self.leaving))
            case StopTask():
                self._end("stop")
            case _:
                pass

    def _freed(self, queues: Queues) -> None:
        self.world.counts["freed"] += len(queues)
        for queue in queues:
            self.world.check_free(self, queue)
        self._free |= queues
        if self.is_at_work:
            for name, task in self.tasks.items():
                mine = queues & task.places.keys()
                self._take_hub(self.hub.released(name, name, mine, self.world.now_s))

    def _replan(self, queues: Queues, reason: str) -> None:
        if reason.startswith("a part does not follow"):
            self.world.chain_broken(queues)
        if queues & self.held:
            self._end("plan")

    def _check_pace(self) -> None:
        world = self.world
        world.counts["cuts"] += 1
        if world.now_s < self._last_cut_s + world.interval_s:
            raise Violation(f"too soon: cut at {world.now_s} after {self._last_cut_s}")
        if self.cuts.committing is not Committing.IDLE and self._does_a_part_wait():
            raise Violation("too soon: a cut while one group is committed and another part waits")
        self._last_cut_s = world.now_s

    def _does_a_part_wait(self) -> bool:
        return bool(self._taken - self._grouped)

    def _set_timer(self) -> None:
        at_s = self.cuts.next_tick_s
        if at_s is not None and (self._tick_s is None or at_s < self._tick_s):
            self._tick_s = max(at_s, self.world.now_s)
            self.world.after(self._tick_s - self.world.now_s, self._tick, self._tick_s)

    def _tick(self, at_s: float) -> None:
        if self.is_alive and self._tick_s == at_s:
            self._tick_s = None
            self.take(self.cuts.tick(self.world.now_s))

    def _look(self) -> None:
        """Look at the store's epochs, and for queues to gain."""
        if not self.is_alive:
            return
        self.world.after(_LOOK_S, self._look)
        self._take_hub(self.hub.tick(self.world.now_s))
        if not self.is_at_work:
            return
        self._epochs = {queue: row.epoch for queue, row in self.world.store.rows.items()}
        self._take_hub(self.hub.moved(self._epochs, self.world.now_s))
        moved = frozenset(
            queue
            for places in self._partitions.values()
            for queue, place in places.items()
            if place.epoch != self._epochs[queue]
        )
        if moved:
            self.take(self.cuts.moved(moved, self.world.now_s))
        if self.has_planner and self._gain():
            self._end("plan")

    # --- commits --------------------------------------------------------------------------------------------

    def _begin_commit(self, group: Group) -> None:
        if self._is_committing:
            raise Violation("two groups at a time")
        if early := group.queues & self._free:
            raise Violation(f"committed after it was free: {early}")
        if group.id != self._group_id:
            self._group_id = group.id
            self._refused.clear()
            self._check_latency(group)
        self._is_committing = True
        self.world.counts["groups"] += 1
        if self.world.has("epoch check"):
            self._refused.update(
                ack.queue for ack in group.acks if ack.state.epoch != self._epochs[ack.queue]
            )
        if not self.world.has("data first"):
            self._store_offsets(group)
        self.world.after(self.world.commit_s(), self._commit_data, group, 0)

    def _check_latency(self, group: Group) -> None:
        for part in group.parts:
            self.world.check_latency(part.written[0]["since_s"])

    def _commit_data(self, group: Group, number: int) -> None:
        """Add the rows to a sink, then to the next one, then store the offsets."""
        sinks = self.world.sinks
        if self.is_alive and number == 0 and self.world.dies("before data"):
            self.world.kill_driver(self)
        if not self.is_alive:
            if number < len(sinks) and self.world.lands_late():
                self.world.after(self.world.random.uniform(0.0, 90.0), self._add_rows, group, number)
            return
        if number == len(sinks):
            self._commit_offsets(group)
            return
        fault = self.world.commit_fault()
        if fault != "not made":
            self._add_rows(group, number)
        if fault:
            self._is_committing = False
            self.world.counts["failed commits"] += 1
            self._group_failed(RocketMQError("away"))
        elif self.world.dies("after data"):
            self.world.kill_driver(self)
        else:
            self.world.after(self.world.commit_s(), self._commit_data, group, number + 1)

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

    def _commit_offsets(self, group: Group) -> None:
        self._store_offsets(group)
        if self.world.dies("after offsets"):
            self.world.kill_driver(self)
            return
        self._is_committing = False
        self._group_committed(group.queues & self._refused)

    def _group_failed(self, error: RocketMQError) -> None:
        self.take(self.cuts.commit_failed(error, self.world.now_s))

    def _group_committed(self, refused: Queues) -> None:
        self.take(self.cuts.committed(refused, self.world.now_s))
        self._batch_over()

    def _store_offsets(self, group: Group) -> None:
        for ack in group.acks:
            is_refused = ack.queue in self._refused
            if not is_refused and not self.world.store.commit(
                ack.queue, ack.state.epoch, ack.state.next_offset
            ):
                self._refused.add(ack.queue)
