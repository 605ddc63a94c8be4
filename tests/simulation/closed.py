"""A query of micro-batches in the simulation: closed ranges, and the real ``HubState`` with its own ``Cuts``.

A task ends by itself once its ranges are consumed. Without its connection it hands nothing over any more: it
ends after the call in hand, and what is left comes with the job's result. A task that does not know whether
the driver has a part fails. Another attempt may begin while the one before lives. In some worlds no cuts are
asked for: then only queues that are given up are handed over, and the driver has copies of the results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark_rocketmq.consume.cuts import Answer, Place
from pyspark_rocketmq.consume.part import Group, Part
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.hub.messages import (
    CutWanted,
    FromDriver,
    GiveUpQueues,
    PartHandedOver,
    PartsCommitted,
    PartTaken,
    PlanOver,
    QueuesFree,
    StopTask,
    TaskBegins,
    TaskMayBegin,
)
from pyspark_rocketmq.hub.state import Action, Commit, Flushed, HubState, Send
from pyspark_rocketmq.model import MessageQueue
from tests.simulation.driver import Driver, Queues
from tests.simulation.task import (
    Begin,
    Confirmed,
    Cut,
    Dirty,
    Done,
    End,
    GiveUp,
    Life,
    Link,
    NoProgress,
    Over,
    Released,
    SentPart,
    Task,
    ToRun,
)

if TYPE_CHECKING:
    from tests.simulation.world import World

_PLANNER = "planner"
_LOOK_S = 1.0
_TAKEN_S = 30.0
"""How long a task waits at its end for the driver to confirm its parts."""


class ClosedTask(Task):
    """One attempt of a task with closed ranges."""

    driver: ClosedDriver

    def __init__(
        self,
        world: World,
        driver: ClosedDriver,
        partition: int,
        attempt: int,
        places: Mapping[MessageQueue, Place],
    ) -> None:
        self.result: list[Part] = []
        """Parts that come with the job."""
        self._stops = driver.range_ends
        self._last: frozenset[MessageQueue] = frozenset()
        """Queues that end with the task."""
        super().__init__(world, driver, partition, attempt, places)

    def _stored(self, queue: MessageQueue) -> int:
        return self._stops[queue]

    def work(self) -> None:
        """Begin the next call; end if the ranges are consumed."""
        super().work()
        is_idle = self._call is None and self.life is Life.RUNNING
        if is_idle and all(each.is_over or each.settled >= self._stops[each.queue] for each in self._turns):
            self._ends()

    def _ends(self) -> None:
        super()._ends()
        self.world.after(_TAKEN_S, self._fail_in_doubt)

    def _cut_last(self) -> None:
        if self._call is None:
            self._last |= frozenset(each.queue for each in self._turns if not each.is_over)
        super()._cut_last()

    def _report(self) -> None:
        if self.driver.is_cut:
            super()._report()

    def _fail_in_doubt(self) -> None:
        if self.life is not Life.OVER and self._in_doubt:
            self._end(is_good=False)

    def receive(self, message: object) -> None:
        """Take a message of the driver; it may have been for the last queue."""
        super().receive(message)
        self.work()

    def _send(self, message: object) -> None:
        if isinstance(message, SentPart) and (self.link is None or self._is_result(message)):
            del self._in_doubt[message.part.id]
            self.result.append(message.part)
        else:
            super()._send(message)

    def _is_result(self, sent: SentPart) -> bool:
        return not self.driver.is_cut and not self._last.isdisjoint(sent.ends)

    def broke(self, link: Link) -> None:
        """Notice that the connection is broken: end."""
        if self.life is Life.OVER or self.link is not link:
            return
        self.link, self.is_online = None, False
        if self._in_doubt:
            self._end(is_good=False)
        elif self.life is Life.BEGINNING:
            # It must ask, and cannot.
            self._end(is_good=True)
        elif self.life is Life.RUNNING:
            self._ends()
        else:
            self._finish()


class ClosedDriver(Driver):
    """One run of the query, until it ends or is killed; ``HubState`` decides everything."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.is_cut = world.random.random() < 0.75
        """Whether tasks are asked for cuts."""
        interval_s = world.interval_s if self.is_cut else None
        self.hub = HubState(must_ask=True, interval_s=interval_s)
        self.hub._cuts = self.cuts = world.new_cuts(interval_s, are_ranges_open=False)
        self.hub.planner_came(_PLANNER)
        self.range_ends: dict[MessageQueue, int] = {}
        self._results: dict[int, list[Part]] = {}
        self._is_rest = False
        """Whether the group in hand is the last one of its batch."""
        self._cut_number = 0

    # --- the planner ----------------------------------------------------------------------------------------

    def _plan_batch(self) -> None:
        super()._plan_batch()
        stored, random = self.world.brokers.stored, self.world.random
        self._results, self._is_rest = {}, False
        self.range_ends = {
            queue: min(stored[queue], place.next_offset + random.randrange(12))
            for places in self._partitions.values()
            for queue, place in places.items()
        }

    def _time_is_up(self, plan: int) -> None:
        """A batch of closed ranges ends by itself."""

    def _must_leave(self, queue: MessageQueue) -> None:
        self.leaving.add(queue)
        if self.is_at_work and queue in self._planned:
            leaving = frozenset(self.leaving & self._planned)
            self._take_hub(self.hub.must_leave(self.plan, leaving, self.world.now_s))
        elif self._is_over_sent or queue not in self._planned:
            self._unlock({queue})

    def stop(self) -> None:
        """End the query: the last parts are committed, and the locks are given back."""
        self.is_stopping = True
        self._take_hub(self.hub.stop())

    def _look(self) -> None:
        """Look at the store's epochs."""
        if not self.is_alive:
            return
        self.world.after(_LOOK_S, self._look)
        self._take_hub(self.hub.tick(self.world.now_s))
        if self.is_at_work:
            self._epochs = {queue: row.epoch for queue, row in self.world.store.rows.items()}
            self._take_hub(self.hub.moved(self._epochs, self.world.now_s))

    # --- Spark ----------------------------------------------------------------------------------------------

    def _new_task(self, partition: int, attempt: int) -> Task:
        for former in self.tasks.values():
            former.is_replaced |= former.partition == partition
        return ClosedTask(self.world, self, partition, attempt, self._partitions[partition])

    def task_over(self, task: Task, *, is_good: bool) -> None:
        """Note the end of a task's process, as Spark sees it."""
        assert isinstance(task, ClosedTask)
        if is_good and self._is_newest(task) and task.name in self.tasks:
            self._results[task.partition] = task.result
        super().task_over(task, is_good=is_good)

    def _job_over(self, plan: int) -> None:
        if not self.is_alive or plan != self.plan or not self.is_at_work:
            return
        self._take_hub(self.hub.job_is_over(is_whole=True))
        self.is_at_work = False
        self._take_hub(self.hub.batch_ends(self.world.now_s, could_ask=True))

    def _flushed(self, failure: BaseException | None) -> None:
        if failure is not None:
            self.world.counts["failed batches"] += 1
            self.world.after(0.0, self.world.kill_driver, self)
            return
        rest = self.hub.rest([part for parts in self._results.values() for part in parts])
        if rest is None:
            self._batch_over()
        else:
            self.world.counts["parts with the job"] += len(rest.parts)
            self._is_rest = True
            self._begin_commit(rest)

    # --- messages -------------------------------------------------------------------------------------------

    def _receive(self, task: Task, message: object) -> None:
        now_s, name = self.world.now_s, task.name
        actions: list[Action] = []
        match message:
            case Begin(partition, attempt, places):
                start = TaskBegins(
                    task=name,
                    batch_id=self.plan if name in self.tasks else -1,
                    partition=partition,
                    attempt=attempt,
                    places=places,
                    tasks=len(self._partitions),
                )
                actions = self.hub.task_begins(name, start, now_s)
                self._answer_stranger(task, actions)
            case Dirty():
                actions = self.hub.task_is_dirty(name, name, now_s)
            case SentPart(part, cut, ends):
                actions = self.hub.handed_over(name, PartHandedOver(name, part, cut, ends), now_s)
            case NoProgress(cut):
                actions = self.hub.nothing_to_cut(name, name, cut, now_s)
            case Released(queues):
                actions = self.hub.released(name, name, queues, now_s)
            case Done():
                assert isinstance(task, ClosedTask)
                copy = None if self.is_cut or not task.result else task.result[-1]
                actions = self.hub.task_done(name, name, copy, now_s)
            case _:
                raise TypeError(message)
        self._take_hub(actions)

    def _answer_stranger(self, task: Task, actions: list[Action]) -> None:
        """Answer a task of an earlier batch, which is none of this one's."""
        if task.name not in self.tasks:
            assert isinstance(actions[0], Send)
            self._send(task, ToRun(Answer(task.name, is_stopped=True), frozenset()))

    def lost(self, task: Task, connection: int, *, is_silent: bool) -> None:
        """Notice that a task's connection is broken."""
        self._take_hub(self.hub.lost(task.name, self.world.now_s))

    # --- actions --------------------------------------------------------------------------------------------

    def _take_hub(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(_, message):
                    self._take_message(message)
                case Commit(group):
                    self._begin_commit(group)
                case Flushed(failure):
                    self._flushed(failure)
                case _:
                    pass
        self._set_timer()

    def _take_message(self, message: FromDriver) -> None:
        match message:
            case QueuesFree(plan, queues):
                self._freed(queues)
                if plan == self.plan and self.has_planner:
                    self._unlock(queues)
            case PlanOver():
                if self.has_planner:
                    self._unlock(set(self.leaving))
            case CutWanted(name, number):
                if number != self._cut_number:
                    self._cut_number = number
                    self._check_pace()
                self._send_to(name, Cut(number))
            case _:
                self._take_task_message(message)

    def _take_task_message(self, message: FromDriver) -> None:
        match message:
            case TaskMayBegin(name, left_out, is_stopped):
                self._send_to(name, ToRun(Answer(name, is_stopped), left_out))
            case GiveUpQueues(name, queues, is_dropped):
                self._send_to(name, GiveUp(queues, is_dropped))
            case PartTaken(name, part_id):
                self._send_to(name, Confirmed(part_id))
            case PartsCommitted(name, part_ids):
                self._send_to(name, Over(part_ids))
            case StopTask(name):
                self._send_to(name, End())
            case _:
                pass

    def _does_a_part_wait(self) -> bool:
        # A task that has ended gets no message about its parts.
        return bool(self.cuts._batch.waiting)

    def _freed(self, queues: Queues) -> None:
        self.world.counts["freed"] += len(queues)
        for queue in queues:
            self.world.check_free(self, queue)
        self._free |= queues

    def _tick(self, at_s: float) -> None:
        if self.is_alive and self._tick_s == at_s:
            self._tick_s = None
            self._take_hub(self.hub.tick(self.world.now_s))

    # --- commits --------------------------------------------------------------------------------------------

    def _check_latency(self, group: Group) -> None:
        if self.is_cut:
            super()._check_latency(group)

    def _group_failed(self, error: RocketMQError) -> None:
        if self._is_rest:
            # The batch's own thread raises it, and the query ends.
            self.world.counts["failed batches"] += 1
            self.world.after(0.0, self.world.kill_driver, self)
        else:
            self._take_hub(self.hub.commit_failed(error, self.world.now_s))

    def _group_committed(self, refused: Queues) -> None:
        if self._is_rest:
            self._batch_over()
        else:
            self._take_hub(self.hub.committed(refused, self.world.now_s))
