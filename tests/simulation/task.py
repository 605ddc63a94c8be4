"""A task of the simulation: one thread that calls the listener, one that cuts, one connection to the driver.

``TaskControl``, ``CutTimes`` and ``Reconnecting`` are the real ones, and so is the orderly machine. The
task around them does what the engines and ``TaskParts`` do: it looks at the driver's instructions before each
call, cuts, hands over, and fails if it does not know whether the driver has a part::

    begin -> RUNNING -> ENDING -> OVER
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pyspark_rocketmq.consume.cuts import Place
from pyspark_rocketmq.consume.orderly import NoStatus, OrderlyConsumption, OrderlySettings
from pyspark_rocketmq.consume.part import Part, QueueAck
from pyspark_rocketmq.errors import RocketMQError, SchemaError
from pyspark_rocketmq.hub.calls_in_hand import AnnouncedEnd, CallsInHand
from pyspark_rocketmq.hub.connections import Reconnecting
from pyspark_rocketmq.hub.messages import FromTask, ToTask
from pyspark_rocketmq.hub.task_end import Fate, TaskControl
from pyspark_rocketmq.model import ConsumeOrderlyStatus, MessageQueue, QueueState

if TYPE_CHECKING:
    from tests.simulation.driver import Driver
    from tests.simulation.world import World

_TAKEN_S = 30.0
"""How long a task waits at its end for the driver to confirm its parts."""
_SETTINGS = OrderlySettings()
_OF_BACKLOG = OrderlySettings(consume_message_batch_max_size=8)
"""Settings while the messages from the time of the faults are consumed."""
_SUCCESS = ConsumeOrderlyStatus.SUCCESS
_SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
_ROLLBACK = ConsumeOrderlyStatus.ROLLBACK


class Life(Enum):
    """State of a task."""

    BEGINNING = "BEGINNING"
    RUNNING = "RUNNING"
    ENDING = "ENDING"
    OVER = "OVER"


# An Enum member costs a slow lookup at each use.
_RUNNING = Life.RUNNING
_OVER = Life.OVER


class Link:
    """A connection; whatever has not arrived when it breaks is lost, or the driver reads it later."""

    __slots__ = ("down_s", "is_read_later", "is_up", "number", "since_s", "unread", "up_s")

    def __init__(self, number: int, since_s: float) -> None:
        self.number = number
        """Number among its task's connections."""
        self.is_up = True
        self.since_s = since_s
        self.is_read_later = False
        self.unread = 0
        """Messages on their way to the driver."""
        self.up_s = self.down_s = 0.0
        """When the last message of each direction arrives: none overtakes another."""


class Connection:
    """The connection of a task's process, in the form that ``TaskControl`` uses."""

    place = "driver"

    def __init__(self, task: Task) -> None:
        self._task = task
        self.is_lost = False
        self.number = 1

    def send(self, message: FromTask) -> None:
        """Send a message, if the connection is not known to be broken."""
        if self._task.link is not None:
            self._task.world.to_driver(self._task, message)

    def forget(self, _: TaskControl) -> None:
        """Note the task's end, which changes nothing here."""


class _Range:
    """An open range: a run of the real orderly machine over each piece of messages that has arrived."""

    __slots__ = (
        "base",
        "cut_at",
        "epoch",
        "is_given_up",
        "is_over",
        "is_standing",
        "queue",
        "run",
        "since_s",
        "until",
    )

    def __init__(self, queue: MessageQueue, place: Place) -> None:
        self.queue = queue
        self.epoch, self.base = place
        self.until = self.base
        self.cut_at = self.base
        """Offset of the last cut."""
        self.run: OrderlyConsumption | None = None
        self.since_s = 0.0
        """When the first message after the last cut was settled."""
        self.is_given_up = self.is_standing = self.is_over = False

    @property
    def settled(self) -> int:
        return self.base + (0 if self.run is None else self.run.committed)

    def next_call(self, stored: int, now_s: float, settings: OrderlySettings) -> bool:
        """Return whether there is a message for the listener; ``settings`` are those of another run."""
        run = self.run
        if run is not None:
            if run.goes_on_at_s is not None:
                if now_s < run.goes_on_at_s:
                    return False
                run.go_on(now_s)
            if run.next_delivery(now_s) is not None:
                return True
            self.base = self.settled
            self.run = None
        if self.base >= stored:
            return False
        self.until = stored
        self.run = OrderlyConsumption(count=stored - self.base, settings=settings, started_s=now_s)
        return self.run.next_delivery(now_s) is not None


class _Part(Part):
    """A part that nobody turns into JSON."""

    facts: ClassVar[dict[str, Any]] = {}


class _Calls(CallsInHand):
    """The call in hand, watched by the simulated clock instead of a thread."""

    def __init__(self, task: Task) -> None:
        control = task.control
        super().__init__(lambda: control._all, self._wait_and_work, control._calls_ended)
        self._task = task

    def begin(self) -> None:
        """See ``CallsInHand``."""
        self._watch(AnnouncedEnd(self._task.world.now_s))

    def _wait_and_work(self, queues: frozenset[MessageQueue]) -> None:
        self._task.control._wait(queues)
        self._task.work()

    def _watch(self, end: AnnouncedEnd) -> None:
        task = self._task
        if task.life is not _OVER and not self.look(end, task.world.now_s):
            task.world.after(end.pause_s, self._watch, end)


class _Job(NamedTuple):
    cut: int | None
    queues: tuple[MessageQueue, ...]
    ends: frozenset[MessageQueue]
    since_s: float = 0.0


class Task:
    """One attempt of a task; its ranges are open, or closed and end by themselves."""

    def __init__(
        self, world: World, driver: Driver, partition: int, attempt: int, places: Mapping[MessageQueue, Place]
    ) -> None:
        self.world, self.driver, self.partition, self.attempt = world, driver, partition, attempt
        self.name = world.new_name("task")
        self.places = places
        self.marks = driver.begin_marks
        """Watermarks below which it writes no rows, for each sink."""
        self.life = Life.BEGINNING
        self.is_replaced = False
        """True if it lives although Spark believes it dead, and nothing of it counts any more."""
        self.result: list[Part] = []
        """Parts that come with the job."""
        self._is_open = driver.open_for_s is not None
        self._stops = driver.range_ends
        self.link: Link | None = Link(1, world.now_s)
        self._connection = Connection(self)
        self._reconnecting: Reconnecting | None = None
        self._ranges = {queue: _Range(queue, place) for queue, place in places.items()}
        self._turns = deque(self._ranges.values())
        self._call: _Range | None = None
        self._call_began_s = 0.0
        self._jobs: deque[_Job] = deque()
        self._is_writing = False
        self._pauses = world.has("pause")
        self.parts = 0
        self.control = world.new_control(
            self._connection, places, is_cut=driver.is_cut, open_for_s=driver.open_for_s
        )
        self.control.id = self.name
        self.control._calls = _Calls(self)
        self.control.shows_calls(self.calls)
        self.control.when_cut(self._cut_wanted)
        self.control.ask(driver.plan, partition, attempt=attempt, tasks=driver.tasks_planned)

    # --- the listener ---------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether the task consumes messages; in its driver's view it may be dead."""
        return self.life is _RUNNING

    def may_deliver(self, queue: MessageQueue) -> bool:
        """Whether the listener may be called with a message of this queue now or at any later step."""
        each = self._ranges.get(queue)
        if each is None or self.life is _OVER:
            return False
        if self._call is each:
            return True
        is_held = each.is_given_up or each.is_standing or self._is_paused
        return self.life is _RUNNING and not is_held

    @property
    def _is_paused(self) -> bool:
        return self.control.is_paused() and self._pauses

    @property
    def ranges(self) -> Iterable[_Range]:
        """All ranges, in the order of their turns."""
        return self._turns

    def work(self) -> None:
        """Begin the next call, if there is a message; end if closed ranges are consumed."""
        if self._call is not None or self.life is not _RUNNING or self._is_paused:
            return
        turns, now_s = self._turns, self.world.now_s
        ends = self.world.brokers.stored if self._is_open else self._stops
        settings = _OF_BACKLOG if self.world.is_backlog else _SETTINGS
        for _ in range(len(turns)):
            turns.rotate(-1)
            each = turns[0]
            is_held = each.is_given_up or each.is_standing or self.control.is_given_up(each.queue)
            is_held = is_held or self.control.must_wait(each.queue)
            if not is_held and each.next_call(ends[each.queue], now_s, settings):
                self._call, self._call_began_s = each, now_s
                self.world.check_delivery(self, each.queue)
                is_deadly = self._is_open and self.world.is_deadly(each.queue, each.settled)
                self.world.after(self.world.call_s(), self.die if is_deadly else self._call_ends)
                return
        if not self._is_open and all(each.is_over or each.settled >= ends[each.queue] for each in turns):
            self._ends()

    def calls(self) -> dict[MessageQueue, float]:
        """Return how long the call in hand has lasted, by its queue."""
        return {} if self._call is None else {self._call.queue: self.world.now_s - self._call_began_s}

    def _call_ends(self) -> None:
        each, self._call = self._call, None
        if self.life is _OVER or each is None or each.run is None:
            return
        random = self.world.random.random()
        now_s = self.world.now_s
        answer: object = _SUCCESS
        auto_commit, pause_ms = True, 10
        if random < 0.06:
            answer, pause_ms = (_SUSPEND if random < 0.04 else NoStatus.RAISED), 40
        elif random < 0.12 and each.base + each.run.committed + each.run.accumulated + 1 < each.until:
            answer, auto_commit, pause_ms = (_SUCCESS if random < 0.1 else _ROLLBACK), False, 20
        settled = each.settled
        each.run.answered(answer, auto_commit=auto_commit, suspend_millis=pause_ms, now_s=now_s)
        if each.run.goes_on_at_s is not None:
            self.world.after(each.run.goes_on_at_s - now_s + 1e-6, self.work)
        if settled == each.cut_at:
            each.since_s = now_s
        self.world.calls += 1
        if each.is_given_up:
            self._leave(each)
        if self.life is Life.ENDING:
            self._cut_last()
        self._report()
        self.work()

    def stand(self, queue: MessageQueue, *, is_reset: bool) -> None:
        """Find that a queue cannot go on."""
        each = self._ranges.get(queue)
        if each is not None and self.life is Life.RUNNING and self.control.is_open:
            each.is_standing = True
            self.control.stands(queue, "it is simulated", is_reset=is_reset)

    # --- cuts -----------------------------------------------------------------------------------------------

    def _report(self) -> None:
        """Note that something is settled."""
        if self.life is not _RUNNING:
            return
        for each in self._turns:
            if each.settled > each.cut_at and not each.is_given_up:
                self.control.settled()
                return

    def _cut_wanted(self, number: int | None) -> bool:
        if self.life is not Life.RUNNING or number is None:
            return False
        self._begin_job(_Job(number, tuple(each.queue for each in self._turns), frozenset()))
        return True

    def _leave(self, each: _Range) -> None:
        """End a queue, after the call in hand."""
        if each.is_over or self._call is each:
            return
        each.is_over = True
        self._begin_job(_Job(None, (each.queue,), frozenset({each.queue})))

    def _cut_last(self) -> None:
        """Hand over the rest, after the call in hand."""
        if self._call is not None:
            return
        rest = [each for each in self._turns if not each.is_over]
        for each in rest:
            each.is_over = each.is_given_up = True
        queues = tuple(each.queue for each in rest)
        self._begin_job(_Job(None, queues, frozenset(queues)))

    def _begin_job(self, job: _Job) -> None:
        self._jobs.append(job)
        if not self._is_writing:
            self._next_job()

    def _next_job(self) -> None:
        """Take what is settled out of the ranges, and write it."""
        while self._jobs:
            job = self._jobs.popleft()
            may_cut = job.cut is None or (not self.result and self.control.cut_begins())
            acks = tuple(self._acks(job)) if may_cut else ()
            if acks:
                self._is_writing = True
                job = job._replace(since_s=min(self._ranges[ack.queue].since_s for ack in acks))
                self.world.after(self.world.write_s(), self._written, job, acks)
                return
            if job.cut is not None:
                self.control.nothing_to_cut(job.cut)
            self._release(job.ends)
        self._finish()

    def _acks(self, job: _Job) -> Iterator[QueueAck]:
        for queue in job.queues:
            each = self._ranges[queue]
            start, settled = each.cut_at, each.settled
            is_dropped = self.control.fate(queue) is Fate.DROPPED
            is_left = is_dropped or (each.is_over and queue not in job.ends)
            if settled > start and not is_left:
                each.cut_at = settled
                state = QueueState(settled, each.epoch)
                yield QueueAck(
                    queue=queue, start=start, state=state, consumed=settled - start, failed=0, finished=""
                )

    def _written(self, job: _Job, acks: tuple[QueueAck, ...]) -> None:
        if self.life is _OVER:
            return
        self._is_writing = False
        self.parts += 1
        rows = [
            {ack.queue: (max(ack.start, marks[ack.queue]), ack.state.next_offset) for ack in acks}
            for marks in self.marks
        ]
        written = ({"rows": rows, "since_s": job.since_s},)
        part = _Part(id=f"{self.name}.{self.parts}", acks=acks, written=written)
        if self.world.loses_part(part):
            self._release(job.ends)
        elif not self._hand_over(part, job):
            if self.control.is_open:
                for queue in sorted(part.queues):
                    self.control.stands(queue, "its results are too large")
            self.result.append(part)
            if job.cut is not None:
                self.control.nothing_to_cut(job.cut)
        self._next_job()
        self._report()

    def _hand_over(self, part: Part, job: _Job) -> bool:
        # Without cuts the last part comes with the job.
        is_last = self.life is Life.ENDING and not self.driver.is_cut and job.ends.isdisjoint(self._asked)
        # The part of a real task has an ack of each queue that ends.
        is_first = all(each.queues.isdisjoint(part.queues | job.ends) for each in self.result)
        may_send = not is_last and is_first and not self.world.is_too_large()
        return may_send and self.control.hand_over(part, ends=job.ends, cut=job.cut)

    @property
    def _asked(self) -> frozenset[MessageQueue]:
        return frozenset(queue for queue in self._ranges if self.control.fate(queue) is not Fate.KEPT)

    def _release(self, queues: frozenset[MessageQueue]) -> None:
        for queue in sorted(queues & self._asked):
            if self.control.fate(queue) is Fate.DROPPED or not self._keeps(queue):
                self.control.released(queue)

    def _keeps(self, queue: MessageQueue) -> bool:
        return self.world.has("rest first") and any(queue in each.queues for each in self.result)

    def _ends(self) -> None:
        if self.life is Life.RUNNING:
            self.life = Life.ENDING
            self.world.after(_TAKEN_S, self._fail_in_doubt)
            self._cut_last()

    def _finish(self) -> None:
        """End, once it is known that the driver has everything."""
        is_busy = self._call is not None or self._is_writing or self._jobs
        if is_busy or self.life is not Life.ENDING or not self.control._is_certain.is_set():
            return
        if not all(each.is_over for each in self._turns):
            return
        try:
            self.control.await_taken()
        except RocketMQError as error:
            self.fail(error)
        else:
            self.control.done(self.result[-1] if self.result and not self.driver.is_cut else None)
            self._end(is_good=True)

    def _fail_in_doubt(self) -> None:
        if self.life is not _OVER and not self.control._is_certain.is_set():
            self.fail(None)

    def fail(self, error: RocketMQError | None) -> None:
        """Fail, and report that to the driver."""
        if self.life is not _OVER:
            self.control.forget(error)
            self._end(is_good=False)

    def fail_for_good(self) -> None:
        """Fail with an error that another attempt would meet again."""
        self.fail(SchemaError("it is simulated"))

    def _end(self, *, is_good: bool) -> None:
        self.life = _OVER
        self.world.task_over(self, is_good=is_good)

    def die(self) -> None:
        """End the process."""
        if self.life is not _OVER:
            self.world.break_link(self)
            self._end(is_good=False)

    # --- the connection -------------------------------------------------------------------------------------

    def receive(self, message: ToTask) -> None:
        """Take a message of the driver."""
        if self.life is not _OVER:
            self.control.receive(message)
            self._look()

    def _look(self) -> None:
        """Do what the driver's instructions ask for."""
        if self.life is Life.BEGINNING and not self._begins():
            return
        for each in self._turns:
            if not each.is_over and each.queue in self.control._given_up:
                each.is_given_up = True
                self._leave(each)
        if self.control._all:
            self._ends()
        self._finish()
        if self.life is not _OVER:
            self._report()
            self.work()

    def _begins(self) -> bool:
        """Begin with the queues that are left; return whether the driver has answered."""
        if not self.control._answered.is_set():
            return False
        if not self.control.await_answer():
            # Closed ranges must ask, and are left as they are.
            self.control.forget()
            self._end(is_good=not self.control.is_open)
            return False
        self.life = Life.RUNNING
        for each in self._turns:
            each.is_over = each.is_given_up = not self.control.begins(each.queue)
        return True

    def broke(self, link: Link) -> None:
        """Notice that the connection is broken."""
        if self.life is _OVER or self.link is not link:
            return
        self.link, self._connection.is_lost = None, True
        self.control.broke()
        if self.control.is_open:
            self._reconnecting = Reconnecting(self.world.now_s)
            self._next_try(self._reconnecting)
        self._look()

    def _next_try(self, reconnecting: Reconnecting) -> None:
        pause_s = reconnecting.next_tick_s - self.world.now_s
        self.world.after(max(pause_s, 1e-6), self._reconnect, reconnecting)

    def _reconnect(self, reconnecting: Reconnecting) -> None:
        now_s = self.world.now_s
        if self.life is _OVER or self._reconnecting is not reconnecting:
            return
        if reconnecting.is_over(now_s):
            self._reconnecting = None
            self._gives_up(now_s)
            return
        if reconnecting.tries(now_s):
            if self.world.may_connect(self):
                self._reconnecting = None
                self._connection.number += 1
                self._connection.is_lost = False
                self.link = Link(self._connection.number, now_s)
                self.control.opened_again()
                return
            reconnecting.failed(now_s)
        self._next_try(reconnecting)

    def _gives_up(self, now_s: float) -> None:
        if self.world.has("pause"):
            self.control.lost()
            self._look()
        else:
            self._reconnecting = Reconnecting(now_s)
            self._next_try(self._reconnecting)
