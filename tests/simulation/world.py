"""A deterministic world around the machines of sub-commits: fake time, a network, and faults from a seed.

Events have times; the loop takes the earliest one, and nothing else moves. While faults last, anything may
die, break or be late; then the world is calm and everything must be consumed: first the backlog, then the last
messages, with which commits must be prompt. Whoever delivers, frees or commits is checked at that step; the
tables check themselves (:mod:`tests.simulation.storage`).

Most worlds are cut short: in calm times the backlog is consumed several messages at a time, locks that only
the dead have are gone early, and the last messages come as soon as nothing is left of the faults.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush
from itertools import accumulate
from math import inf
from typing import Any, Final, NamedTuple

from pyspark_rocketmq.consume.cuts import Cuts, Place
from pyspark_rocketmq.consume.part import Part
from pyspark_rocketmq.hub.messages import FromTask, ToTask
from pyspark_rocketmq.hub.state import Action, HubState
from pyspark_rocketmq.hub.task_end import TaskControl
from pyspark_rocketmq.model import MessageQueue
from tests.simulation.driver import Driver
from tests.simulation.storage import Brokers, Sink, Store, Violation
from tests.simulation.task import Connection, Life, Link, Task

QUEUES: Final = tuple(MessageQueue("T", "broker-a", number) for number in range(3))
_MESSAGES: Final = 40
_FAULTS_S: Final = 25.0
_CALM_S: Final = 400.0
_LONGEST_TROUBLE_S: Final = 45.0
"""How long the world waits, after the faults, until everything that has arrived is consumed."""
_TROUBLE_S: Final = 40.0
"""How long after the faults commits may be late because of them."""
_MOST_STEPS: Final = 200_000
_LOOK_S: Final = 1.0
_SILENCE_S: Final = 20.0
"""How long either end takes to notice that a connection carries nothing any more."""


class Left(NamedTuple):
    """Rules that a run leaves out, to see that the checks notice."""

    cuts: type[Cuts] = Cuts
    hub: type[HubState] = HubState
    control: type[TaskControl] = TaskControl
    rules: frozenset[str] = frozenset()


class Other:
    """Another member of the group, which consumes some messages of a queue in the way of a short batch."""

    def __init__(self, world: World, queue: MessageQueue) -> None:
        self._world, self._queue = world, queue
        self.member = world.new_name("other")
        world.others.add(self.member)
        self._marks = tuple(sink.marks[queue] for sink in world.sinks)
        row = world.store.claim(queue, self.member)
        self._epoch, self._start = row.epoch, row.next_offset
        self._end = min(world.brokers.stored[queue], self._start + world.random.randrange(5))
        world.after(world.random.uniform(0.01, 1.0), self._commit, 0)

    def _commit(self, number: int) -> None:
        world, queue = self._world, self._queue
        world.check_other(self.member, queue)
        is_dead = world.is_faulty and world.random.random() < 0.1
        if is_dead or self._end <= self._start:
            self._leave(is_dead=is_dead)
        elif number < len(world.sinks):
            rows = {queue: [(max(self._start, self._marks[number]), self._end)]}
            known = {queue: self._marks[number]} if world.has("watermark") else None
            if world.sinks[number].commit(f"{self.member}.{number}", rows, {queue: self._end}, known):
                self._leave(is_dead=False)
            else:
                world.after(world.commit_s(), self._commit, number + 1)
        else:
            world.store.commit(queue, self._epoch, self._end)
            self._leave(is_dead=False)

    def _leave(self, *, is_dead: bool) -> None:
        self._world.others.remove(self.member)
        # The lock of a dead member stays until it runs out.
        if not is_dead:
            self._world.brokers.unlock(self._queue, self.member)


class World:
    """Everything, from one seed."""

    def __init__(
        self,
        seed: int,
        left: Left = Left(),  # noqa: B008 - it does not change
        driver: type[Driver] = Driver,
    ) -> None:
        self.random = random.Random(seed)
        self._left = left
        self._driver = driver
        self.counts: Counter[str] = Counter()
        self.now_s = 0.0
        self.is_faulty = True
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._names = 0
        self.queues = QUEUES
        self.brokers = Brokers(QUEUES, _MESSAGES)
        self._skipped: dict[MessageQueue, set[int]] = {queue: set() for queue in QUEUES}
        draw = self.random
        self.sinks = tuple(Sink(QUEUES, self._skipped) for _ in range(1 + (draw.random() < 0.25)))
        self.store = Store(self.sinks, QUEUES, self._skipped)
        self.store.checks_epochs = self.has("epoch check")
        self.slots = draw.choice((1, 2, 2, 3))
        self.interval_s = draw.choice((0.0, 0.05, 0.5))
        self.may_offsets_wait = draw.random() < 0.8
        self._longest_commit_s = draw.choice((0.02, 0.02, 0.2, 1.0))
        self._longest_call_s = draw.choice((0.002, 0.03, 0.3))
        self._batch_length = draw.choice((1.0, 1.0, 100.0))
        # A part that is lost shows in the next one of its queue, or in the next batch.
        self._is_lossy = self._batch_length == 1.0 and draw.random() < 0.3
        self._large = draw.choice((0.0, 0.0, 0.1))
        """Probability of a part that is too large for its task's connection."""
        self._is_slow = draw.random() < 0.2
        """Whether the network between tasks and driver is slow."""
        self._fault_every_s = draw.choice((0.3, 1.0, 3.0))
        self._lost: set[MessageQueue] = set()
        """Queues of parts that a task has lost, by a bug that must do no harm."""
        self._forgotten: set[tuple[MessageQueue, str]] = set()
        """Locks that a broker has forgotten, with the members that had them."""
        self._deadly = (draw.choice(QUEUES), draw.randrange(5, 30)) if draw.random() < 0.1 else None
        """Queue and offset of a message that ends the process of an open range, until an operator skips it."""
        self._deaths = 0
        self._struck: set[MessageQueue] = set()
        """Queues of tasks that have died by chance."""
        self._cut_off: dict[str, float] = {}
        """Until when tasks cannot reach their driver."""
        self._last_jump_s = self._jumped_s = -100.0
        self._silent_until_s = 0.0
        self.is_patient = seed % 16 == 0
        """Whether the world is not cut short, so that locks run out, and batches without messages follow each
        other."""
        self._calm_s = inf
        """When the faults have no effects any more."""
        self.is_backlog = False
        """Whether the messages from the time of the faults are consumed, several at a time."""
        weights = {
            self._break_some: 5,
            self._kill_task: 3,
            self._run_again: 1,
            self._fail_task: 0.5,
            self._fail_task_for_good: 0.2,
            self._stand: 1,
            self._hand_over: 3,
            self._reset: 2,
            self._forget_lock: 1,
            self._kill_any_driver: 0.5,
            self._stop: 0.5,
            self._kill_planner: 0.2,
            self._jump: 0.5,
        }
        self._faults = tuple(weights)
        self._weights = tuple(accumulate(weights.values()))
        self.tasks: list[Task] = []
        self._tasks: dict[str, Task] = {}
        self._made: list[object] = []
        """Whatever refers to the world, or to itself."""
        self.others: set[str] = set()
        """Other members of the group that live."""
        self.calls = 0
        self._start_driver()
        for at_s in (0.0, *(draw.uniform(0.0, _FAULTS_S) for _ in range(12))):
            self.after(at_s, self._arrive)
        self.after(_FAULTS_S, self._calm)
        self.after(draw.expovariate(1 / self._fault_every_s), self._fault)

    # --- time -----------------------------------------------------------------------------------------------

    def after(self, pause_s: float, event: Callable[..., None], *arguments: Any) -> None:
        """Have something happen later."""
        self._number += 1
        heappush(self._events, (self.now_s + pause_s, self._number, event, arguments))

    def _at(self, at_s: float, event: Callable[..., None], *arguments: Any) -> None:
        self._number += 1
        heappush(self._events, (at_s, self._number, event, arguments))

    def run(self) -> None:
        """Run until everything is consumed.

        Raises:
            Violation: If a promise was broken, or it does not get on.
        """
        events = self._events
        for steps in range(1, _MOST_STEPS):
            at_s, _, event, arguments = heappop(events)
            self.now_s = max(self.now_s, at_s)
            event(*arguments)
            if self.store.has_moved and not self.is_faulty and self._is_all_consumed():
                break
            if self.now_s > _FAULTS_S + _CALM_S:
                marks = [sink.marks for sink in self.sinks]
                raise Violation(f"stands still after {steps} steps: {self.store.rows} {marks}")
        else:
            raise Violation(f"goes round at {self.now_s}")
        self.counts["steps"] += steps
        self.counts["calls"] += self.calls
        self._check_rows()

    def close(self) -> None:
        """Take everything apart, which takes less time than to let the garbage collector find the cycles."""
        for each in (*self._made, self):
            vars(each).clear()

    def _is_all_consumed(self) -> bool:
        self.store.has_moved = False
        return all(row.next_offset == _MESSAGES for row in self.store.rows.values())

    def _check_rows(self) -> None:
        for sink in self.sinks:
            for queue, rows in sink.rows.items():
                expected = set(range(_MESSAGES))
                if rows != sorted(set(rows)) or not expected - set(rows) <= self._skipped[queue]:
                    raise Violation(f"rows of {queue}: {rows}")

    # --- values from the seed -------------------------------------------------------------------------------

    def has(self, rule: str) -> bool:
        """Whether a rule is in force."""
        return rule not in self._left.rules

    def new_hub(self, interval_s: float | None) -> HubState:
        hub = self._left.hub(must_ask=True, interval_s=interval_s)
        self._made.append(hub)
        hub._cuts = self._left.cuts(interval_s, may_offsets_wait=self.may_offsets_wait)
        carry_out = hub._replan_without

        def replan_without(queues: frozenset[MessageQueue], reason: str, now_s: float) -> list[Action]:
            if reason.startswith("a part does not follow"):
                self._chain_broken(queues)
            return carry_out(queues, reason, now_s)

        hub._replan_without = replan_without  # type: ignore[method-assign]
        return hub

    def new_control(
        self,
        connection: Connection,
        places: Mapping[MessageQueue, Place],
        *,
        is_cut: bool,
        open_for_s: float | None,
    ) -> TaskControl:
        control = self._left.control(
            connection,  # type: ignore[arg-type]
            places,
            is_cut=is_cut,
            open_for_s=open_for_s,
        )
        self._made.append(control)
        return control

    def slots_for(self, most: int) -> int:
        """Return how many of a batch's tasks find a slot."""
        has_fewer = self.is_faulty and most > 1 and self.random.random() < 0.1
        return self.random.randrange(1, most) if has_fewer else most

    def new_name(self, kind: str) -> str:
        self._names += 1
        return f"{kind} {self._names}"

    def call_s(self) -> float:
        return self.random.random() * self._longest_call_s

    def write_s(self) -> float:
        return 0.002 + self.random.random() * 0.02

    def commit_s(self) -> float:
        return 0.001 + self.random.random() * self._longest_commit_s

    def batch_s(self) -> float:
        return self.random.uniform(2.0, 10.0) * self._batch_length

    def dies(self, where: str) -> bool:
        """Whether the driver is killed here."""
        is_dead = self.is_faulty and self.random.random() < 0.02
        self.counts[f"killed {where}"] += is_dead
        return is_dead

    def commit_fault(self) -> str:
        """The fault of a commit; empty if it succeeds and says so."""
        if not self.is_faulty or self.random.random() > 0.08:
            return ""
        fault = self.random.choice(("unknown", "not made"))
        self.counts[fault] += 1
        return fault

    def lands_late(self) -> bool:
        """Whether a request of a driver that was killed arrives all the same."""
        return self.random.random() < 0.3

    def is_deadly(self, queue: MessageQueue, offset: int) -> bool:
        """Whether a message ends its process."""
        if self._deadly != (queue, offset):
            return False
        self.counts["deadly calls"] += 1
        self._deaths += 1
        if self._deaths > 40:
            raise Violation(f"dies for ever: {queue} at {offset}")
        return True

    def skip_deadly(self, error: BaseException) -> None:
        """Have an operator skip the message that the error names, as it says."""
        if self._deadly is not None and "tasks died one after the other" in str(error):
            queue, offset = self._deadly
            if str(queue) not in str(error):
                if not any(str(each) in str(error) for each in self._struck):
                    raise Violation(f"another queue is to blame: {error}")
                # Deaths by chance count, too, so the error may name a queue of theirs.
                return
            self.counts["skipped"] += 1
            self.store.reset(queue, offset + 1)
            self._deadly = None

    def loses_part(self, part: Part) -> bool:
        is_lost = self.is_faulty and self._is_lossy and self.random.random() < 0.05
        if is_lost:
            self.counts["lost parts"] += 1
            self._lost |= part.queues
        return is_lost

    def is_too_large(self) -> bool:
        """Whether a part is too large for the connection of its task."""
        is_large = self.is_faulty and self.random.random() < self._large
        self.counts["large parts"] += is_large
        return is_large

    # --- the network ----------------------------------------------------------------------------------------

    def to_driver(self, task: Task, message: FromTask) -> None:
        link = task.link
        assert link is not None
        link.unread += 1
        link.up_s = max(link.up_s, self.now_s + self._delay_s())
        self._at(link.up_s, self._at_driver, task, link, message)

    def to_task(self, peer: tuple[str, int], message: ToTask) -> None:
        """Send a message on one of a task's connections."""
        name, connection = peer
        task = self._tasks.get(name)
        link = None if task is None else task.link
        if task is not None and link is not None and link.is_up and link.number == connection:
            link.down_s = max(link.down_s, self.now_s + self._delay_s())
            self._at(link.down_s, self._at_task, task, link, message)

    def _delay_s(self) -> float:
        drawn = self.random.random()
        return drawn * 0.01 if drawn < 0.95 and not self._is_slow else drawn * 0.3

    def _at_driver(self, task: Task, link: Link, message: FromTask) -> None:
        if link.is_up or not link.is_read_later:
            self._read(task, link, message)
        else:
            link.up_s = max(link.up_s, self.now_s + self.random.random() * 0.5)
            self._at(link.up_s, self._read, task, link, message)

    @staticmethod
    def _read(task: Task, link: Link, message: FromTask) -> None:
        link.unread -= 1
        if task.driver.is_alive and (link.is_up or link.is_read_later):
            task.driver.receive(task, message, link.number)

    def _at_task(self, task: Task, link: Link, message: ToTask) -> None:
        if link.is_up and task.link is link:
            task.receive(message)

    def break_link(self, task: Task, *, is_silent: bool = False) -> None:
        """Lose what has not arrived; both ends notice soon, or after the silence that they allow."""
        link = task.link
        if link is None or not link.is_up:
            return
        link.is_up = False
        link.is_read_later = self.random.random() < 0.3
        longest_s = _SILENCE_S if is_silent else 0.05
        if is_silent:
            self._silent_until_s = self.now_s + _SILENCE_S
        self.after(self.random.uniform(0.0, longest_s), task.broke, link)
        self.after(self.random.uniform(0.0, longest_s), self._driver_notices, task, link, is_silent)

    def _driver_notices(self, task: Task, link: Link, is_silent: bool) -> None:
        if link.unread and link.is_read_later:
            # The end of a connection comes after all that was sent.
            self.after(0.1, self._driver_notices, task, link, is_silent)
        elif task.driver.is_alive:
            task.driver.lost(task, link.number, is_silent=is_silent)

    def may_connect(self, task: Task) -> bool:
        return task.driver.is_alive and self.now_s >= self._cut_off.get(task.name, 0.0)

    # --- processes ------------------------------------------------------------------------------------------

    def task_begins(self, task: Task) -> None:
        """Note that an attempt of a task lives."""
        self.tasks.append(task)
        self._tasks[task.name] = task
        self._made.append(task)

    def task_over(self, task: Task, *, is_good: bool) -> None:
        self.tasks.remove(task)
        del self._tasks[task.name]
        task.driver.task_over(task, is_good=is_good)

    def kill_driver(self, driver: Driver) -> None:
        """Kill it with its planner; its tasks notice it later, and nobody gives the locks back."""
        if driver.is_alive:
            self.counts["killed drivers"] += 1
            for task in self.tasks:
                if task.driver is driver:
                    self.break_link(task, is_silent=self.random.random() < 0.2)
            self.driver_over(driver, self.random.uniform(0.3, 3.0))

    def driver_over(self, driver: Driver, pause_s: float) -> None:
        """Start the query again."""
        driver.is_alive = False
        self.after(pause_s, self._start_driver)

    def _start_driver(self) -> None:
        self.driver = self._driver(self)
        self._made.append(self.driver)

    def unlocked(self, queue: MessageQueue) -> None:
        """Let another member have a queue, if one wants it."""
        if self.is_faulty and self.random.random() < 0.8:
            self._let_other(queue)

    def _let_other(self, queue: MessageQueue) -> None:
        member = f"other {self._names + 1}"
        if self.brokers.lock(queue, member, self.now_s):
            self.counts["claims by others"] += 1
            Other(self, queue)

    # --- faults ---------------------------------------------------------------------------------------------

    def _arrive(self) -> None:
        """Store messages."""
        for queue, stored in self.brokers.stored.items():
            self.brokers.stored[queue] = min(_MESSAGES, stored + self.random.randrange(8))
        self._wake()

    def _wake(self) -> None:
        for task in list(self.tasks):
            task.work()

    def _calm(self) -> None:
        self.is_faulty = False
        self.store.has_moved = True
        self.is_backlog = not self.is_patient and self._deadly is None
        self._arrive_calmly()
        self.after(_LOOK_S, self._look)

    def _look(self) -> None:
        """Go on with the last messages when nothing is left of the faults."""
        if not self.is_patient:
            self._free_locks_of_the_dead()
        if self._is_quiet() or self.now_s >= _FAULTS_S + _LONGEST_TROUBLE_S:
            self._calm_s = min(self.now_s, _FAULTS_S + _TROUBLE_S)
            self.is_backlog = False
            self._arrive_calmly()
            self.after(1.0, self._arrive_calmly)
            self.after(5.0, self._arrive_calmly, True)
        else:
            self.after(_LOOK_S, self._look)

    def _free_locks_of_the_dead(self) -> None:
        """Do what time would do: nobody who could use these locks is left."""
        living = self.others | {task.driver.member for task in self.tasks}
        if self.driver.is_alive:
            living.add(self.driver.member)
        for queue in QUEUES:
            holder = self.brokers.holder(queue, self.now_s)
            if holder is not None and holder not in living:
                self.brokers.unlock(queue, holder)

    def _is_quiet(self) -> bool:
        """Whether all messages are consumed, and nobody misses a connection, a planner or a queue."""
        stored = self.brokers.stored
        return (
            not self.is_patient
            and self.driver.is_alive
            and self.driver.has_planner
            and not self.driver.leaving
            and self.now_s >= self._silent_until_s
            and all(row.next_offset == stored[queue] for queue, row in self.store.rows.items())
            and all(task.link is not None and task.link.is_up for task in self.tasks)
        )

    def _arrive_calmly(self, are_all: bool = False) -> None:
        stored = _MESSAGES if are_all else _MESSAGES - 10 + self.random.randrange(10)
        self.brokers.stored = {queue: max(stored, before) for queue, before in self.brokers.stored.items()}
        self._wake()

    def _fault(self) -> None:
        if not self.is_faulty:
            return
        self.after(self.random.expovariate(1 / self._fault_every_s), self._fault)
        self.random.choices(self._faults, cum_weights=self._weights)[0]()

    def _any_task(self) -> Task | None:
        return self.random.choice(self.tasks) if self.tasks else None

    def _break_some(self) -> None:
        if (task := self._any_task()) is not None:
            self.counts["broken connections"] += 1
            is_silent = self.random.random() < 0.2
            if is_silent or self.random.random() < 0.2:
                self._cut_off[task.name] = self.now_s + self.random.uniform(0.0, 15.0)
            trouble = self.random.choice((self._stand_in, self._leave_one_of, self._break_again, None))
            if trouble is not None:
                # Before the break, within it, or soon after it.
                self.after(self.random.uniform(0.0, 0.6), trouble, task)
            self.after(self.random.uniform(0.0, 0.2), self._break, task, is_silent)

    def _break(self, task: Task, is_silent: bool) -> None:
        if task.life is not Life.OVER:
            self.break_link(task, is_silent=is_silent)

    def _break_again(self, task: Task) -> None:
        self._break(task, is_silent=False)

    def _leave_one_of(self, task: Task) -> None:
        if task.driver.is_alive and task.places:
            self.counts["queues asked for"] += 1
            task.driver.must_leave_some(self.random.choice(sorted(task.places)))

    def _stand_in(self, task: Task) -> None:
        if task.places:
            self.counts["standing queues"] += 1
            task.stand(self.random.choice(sorted(task.places)), is_reset=False)

    def _kill_task(self) -> None:
        if (task := self._any_task()) is not None:
            self.counts["killed tasks"] += 1
            self._struck.update(task.places)
            task.die()

    def _run_again(self) -> None:
        """Have Spark run a task again that is alive."""
        if (task := self._any_task()) is not None and task.life is Life.RUNNING:
            self.counts["replaced tasks"] += 1
            self._struck.update(task.places)
            task.driver.run_again(task)

    def _fail_task(self) -> None:
        if (task := self._any_task()) is not None:
            self.counts["failed tasks"] += 1
            self._struck.update(task.places)
            task.fail(None)

    def _fail_task_for_good(self) -> None:
        if (task := self._any_task()) is not None:
            self.counts["tasks failed for good"] += 1
            task.fail_for_good()

    def _stand(self) -> None:
        """Have a task find that a queue cannot go on."""
        if (task := self._any_task()) is not None:
            self._stand_in(task)

    def _hand_over(self) -> None:
        self.counts["queues asked for"] += 1
        self.driver.must_leave_some(self.random.choice(QUEUES))

    def _reset(self) -> None:
        """Reset a queue, back or forth."""
        queue = self.random.choice(QUEUES)
        self.counts["resets"] += 1
        highest = self.brokers.stored[queue]
        target = self.random.randrange(highest + 1)
        self.store.reset(queue, target)
        for task in list(self.tasks):
            if self.random.random() < 0.5:
                task.stand(queue, is_reset=True)

    def _forget_lock(self) -> None:
        """Start a broker again, which loses its locks; another member is first."""
        queue = self.random.choice(QUEUES)
        holder = self.brokers.holder(queue, self.now_s)
        if holder is not None:
            self._forgotten.add((queue, holder))
            self.brokers.unlock(queue, holder)
            self._let_other(queue)

    def _kill_any_driver(self) -> None:
        self.kill_driver(self.driver)

    def _stop(self) -> None:
        if self.driver.is_alive and self.driver.is_at_work:
            self.counts["stops"] += 1
            self.driver.stop()

    def _kill_planner(self) -> None:
        if self.driver.is_alive and self.driver.has_planner:
            self.counts["killed planners"] += 1
            self.driver.lose_planner()

    def _jump(self) -> None:
        """Stop all processes for a while; locks go on running out.

        Not while a task may not have noticed a silence: if it then stands still too, its call may come too
        late for any lock, and only its rows are fenced.
        """
        if self.now_s > max(self._last_jump_s + 60.0, self._silent_until_s):
            self.counts["jumps"] += 1
            self._last_jump_s = self.now_s
            self.now_s += self.random.uniform(0.5, 15.0)
            self._jumped_s = self.now_s

    # --- checks ---------------------------------------------------------------------------------------------

    def has_agreed(self, task: Task) -> bool:
        """Whether a task's connection has been open for long enough for all messages to arrive."""
        link = task.link
        since_s = self.now_s - 2.0
        is_open = link is not None and link.is_up and link.since_s < since_s and self._jumped_s < since_s
        return is_open and task.life is Life.RUNNING

    def check_leaving(self, since_s: float, queue: MessageQueue) -> None:
        """A queue that another member wants is given up soon, unless something breaks again and again."""
        if since_s < self.now_s - 90.0 and not self.is_faulty:
            raise Violation(f"kept: {queue} is to be given up since {since_s}")

    def check_latency(self, since_s: float) -> None:
        """Without faults a group begins soon after the first message in it was settled."""
        longest_s = self.interval_s + 2 * (len(self.sinks) + 1) * self._longest_commit_s + 2.0
        if since_s > self._calm_s and self.now_s - since_s > longest_s:
            raise Violation(f"late: settled at {since_s}, committed from {self.now_s}")

    def check_offsets(self, since_s: float) -> None:
        """Offsets follow their rows within seconds, even if nothing else comes."""
        if since_s > self._calm_s and self.now_s - since_s > 6.0 + 3 * self._longest_commit_s:
            raise Violation(f"offsets are late: of rows that were committed at {since_s}")

    def check_delivery(self, task: Task, queue: MessageQueue) -> None:
        """Nobody else may deliver the queue while a lock holds."""
        if task.is_replaced:
            return
        member = task.driver.member
        holder = self.brokers.holder(queue, self.now_s)
        if holder not in {None, member} and (queue, member) not in self._forgotten:
            raise Violation(f"two deliverers: {task.name} of {member} delivers {queue}, locked by {holder}")
        self._check_sole(queue, member, task)

    def check_other(self, member: str, queue: MessageQueue) -> None:
        """The same for another member's calls."""
        if self.brokers.holder(queue, self.now_s) == member:
            self._check_sole(queue, member, None)

    def _check_sole(self, queue: MessageQueue, member: str, task: Task | None) -> None:
        for each in self.tasks:
            is_other = each is not task and each.may_deliver(queue) and not each.is_replaced
            if is_other and self._forgotten.isdisjoint({(queue, each.driver.member), (queue, member)}):
                raise Violation(
                    f"two deliverers: {each.name} beside {member} {task and task.name} of {queue}"
                )

    def check_free(self, driver: Driver, queue: MessageQueue) -> None:
        """Nobody delivers a queue that is free."""
        for each in self.tasks:
            is_its = each.driver is driver and each.name in driver.tasks and not each.is_replaced
            if is_its and each.may_deliver(queue):
                raise Violation(f"free too early: {each.name} still delivers {queue}")

    def _chain_broken(self, queues: Iterable[MessageQueue]) -> None:
        """A chain breaks only if a task has lost a part."""
        self.counts["broken chains"] += 1
        if not self._lost.issuperset(queues):
            raise Violation(f"broken chain: {sorted(queues)}, although no part is lost")
