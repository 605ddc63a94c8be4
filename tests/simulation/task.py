"""A task of the simulation: one thread that calls the listener, one that cuts, one connection to the driver.

Its life is the one that the design gives to a real task::

    begin -> RUNNING -> ENDING -> OVER
    RUNNING or ENDING --connection broken--> PAUSED --resumed--> as before; after 10 s OVER, as failed

The real machine decides when it reports that it is dirty, and whether it cuts. A part is *in doubt* from its
cut until the driver confirms it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from pyspark_rocketmq.consume.cuts import Answer, Place
from pyspark_rocketmq.consume.orderly import NoStatus, OrderlyConsumption, OrderlyFinish, OrderlySettings
from pyspark_rocketmq.consume.part import Part, QueueAck
from pyspark_rocketmq.consume.task_cuts import TaskCuts
from pyspark_rocketmq.model import ConsumeOrderlyStatus, MessageQueue, QueueState

if TYPE_CHECKING:
    from tests.simulation.driver import Driver
    from tests.simulation.world import World

_PAUSED_S = 10.0
"""How long a task tries to be connected again."""
_SETTINGS = OrderlySettings()
_SUCCESS = ConsumeOrderlyStatus.SUCCESS
_SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
_ROLLBACK = ConsumeOrderlyStatus.ROLLBACK


class Life(Enum):
    """State of a task."""

    BEGINNING = "BEGINNING"
    RUNNING = "RUNNING"
    ENDING = "ENDING"
    OVER = "OVER"


class Link:
    """A connection; whatever has not arrived when it breaks is lost, or the driver reads it later."""

    __slots__ = ("down_s", "has_begun", "is_read_later", "is_up", "number", "unread", "up_s")

    def __init__(self, number: int) -> None:
        self.number = number
        """Number among its task's connections."""
        self.is_up = True
        self.is_read_later = False
        self.unread = 0
        """Messages on their way to the driver."""
        self.has_begun = False
        """Whether the driver knows which task is at the other end."""
        self.up_s = self.down_s = 0.0
        """When the last message of each direction arrives: none overtakes another."""


class Begin(NamedTuple):
    partition: int
    attempt: int
    places: Mapping[MessageQueue, Place]


class Resume(NamedTuple):
    in_doubt: tuple[str, ...]


class Dirty(NamedTuple):
    pass


class SentPart(NamedTuple):
    part: Part
    cut: int | None
    ends: frozenset[MessageQueue]


class NoProgress(NamedTuple):
    cut: int


class Released(NamedTuple):
    queues: frozenset[MessageQueue]


class Done(NamedTuple):
    pass


class ToRun(NamedTuple):
    """The answer to ``Begin`` and ``Resume``, with the queues that must leave."""

    answer: Answer
    left_out: frozenset[MessageQueue]


class Cut(NamedTuple):
    number: int


class Confirmed(NamedTuple):
    part_id: str


class Over(NamedTuple):
    part_ids: frozenset[str]


class GiveUp(NamedTuple):
    queues: frozenset[MessageQueue]
    is_dropped: bool


class End(NamedTuple):
    pass


class _Range:
    """An open range: a run of the real orderly machine over each piece of messages that has arrived."""

    __slots__ = (
        "base",
        "cut_at",
        "epoch",
        "is_dropped",
        "is_given_up",
        "is_over",
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
        self.is_given_up = self.is_dropped = self.is_over = False

    @property
    def settled(self) -> int:
        return self.base + (0 if self.run is None else self.run.committed)

    def next_call(self, stored: int, now_s: float) -> bool:
        """Whether there is a message for the listener."""
        run = self.run
        if run is not None and run.finished is OrderlyFinish.SUSPENDED:
            assert run.goes_on_at_s is not None
            if now_s < run.goes_on_at_s:
                return False
            run.go_on(now_s)
        if run is not None and run.next_delivery(now_s) is not None:
            return True
        self.base = self.settled
        self.run = None
        if self.base >= stored:
            return False
        self.until = stored
        self.run = OrderlyConsumption(count=stored - self.base, settings=_SETTINGS, started_s=now_s)
        return self.run.next_delivery(now_s) is not None


class _Job(NamedTuple):
    cut: int | None
    queues: tuple[MessageQueue, ...]
    ends: frozenset[MessageQueue]
    since_s: float = 0.0


class Task:
    """One attempt of a task."""

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
        self._links = 1
        self.link: Link | None = Link(self._links)
        self.is_online = False
        """Whether the driver has answered on this connection."""
        self.is_paused = False
        self._broke_s = 0.0
        self._ranges = {queue: _Range(queue, place) for queue, place in places.items()}
        self._turns = deque(self._ranges.values())
        self._call: _Range | None = None
        self._cuts = TaskCuts()
        self._in_doubt: dict[str, SentPart] = {}
        self._jobs: deque[_Job] = deque()
        self._is_writing = False
        self._released: set[MessageQueue] = set()
        self._parts = 0
        self._send(Begin(partition, attempt, places))

    # --- the listener ---------------------------------------------------------------------------------------

    def may_deliver(self, queue: MessageQueue) -> bool:
        """Whether the listener may be called with a message of this queue now or at any later step."""
        each = self._ranges.get(queue)
        if each is None or self.life is Life.OVER:
            return False
        if self._call is each:
            return True
        return self.life is Life.RUNNING and not self.is_paused and not each.is_given_up

    def work(self) -> None:
        """Begin the next call, if there is a message."""
        if self._call is not None or self.life is not Life.RUNNING or self.is_paused:
            return
        for _ in range(len(self._turns)):
            self._turns.rotate(-1)
            each = self._turns[0]
            now_s = self.world.now_s
            if not each.is_given_up and each.next_call(self._stored(each.queue), now_s):
                self._call = each
                self.world.check_delivery(self, each.queue)
                self.world.after(self.world.call_s(), self._call_ends)
                return

    def _stored(self, queue: MessageQueue) -> int:
        """Where the messages end that may be consumed."""
        return self.world.brokers.stored[queue]

    def _call_ends(self) -> None:
        each, self._call = self._call, None
        if self.life is Life.OVER or each is None or each.run is None:
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

    # --- cuts -----------------------------------------------------------------------------------------------

    def _report(self) -> None:
        """Report once per cut that something is settled."""
        if not self.is_online or self.life is not Life.RUNNING:
            return
        is_dirty = any(each.settled > each.cut_at for each in self._turns if not each.is_given_up)
        if is_dirty and self._cuts.settled():
            self._send(Dirty())

    def _cut(self, number: int) -> None:
        if self._cuts.cut_wanted() and self.life is Life.RUNNING:
            self._begin_job(_Job(number, tuple(each.queue for each in self._turns), frozenset()))
        else:
            self._send(NoProgress(number))

    def _leave(self, each: _Range) -> None:
        """End a queue, after the call in hand."""
        if each.is_over or self._call is each:
            return
        each.is_over = True
        if each.is_dropped:
            self._release({each.queue})
        else:
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
            may_cut = job.cut is None or self._cuts.cut_begins()
            acks = tuple(self._acks(job)) if may_cut else ()
            if acks:
                self._is_writing = True
                job = job._replace(since_s=min(self._ranges[ack.queue].since_s for ack in acks))
                self.world.after(self.world.write_s(), self._written, job, acks)
                return
            if job.cut is not None:
                self._send(NoProgress(job.cut))
            if job.ends:
                self._release(set(job.ends))
        self._finish()

    def _acks(self, job: _Job) -> Iterator[QueueAck]:
        for queue in job.queues:
            each = self._ranges[queue]
            start, settled = each.cut_at, each.settled
            is_left = each.is_dropped or (each.is_over and queue not in job.ends)
            if settled > start and not is_left:
                each.cut_at = settled
                state = QueueState(settled, each.epoch)
                yield QueueAck(
                    queue=queue, start=start, state=state, consumed=settled - start, failed=0, finished=""
                )

    def _written(self, job: _Job, acks: tuple[QueueAck, ...]) -> None:
        if self.life is Life.OVER:
            return
        self._is_writing = False
        self._parts += 1
        rows = [
            {ack.queue: (max(ack.start, marks[ack.queue]), ack.state.next_offset) for ack in acks}
            for marks in self.marks
        ]
        written = ({"rows": rows, "since_s": job.since_s},)
        part = Part(id=f"{self.name}.{self._parts}", acks=acks, written=written)
        if self.world.loses_part(part):
            self._release(set(job.ends))
        else:
            self._in_doubt[part.id] = sent = SentPart(part, job.cut, job.ends)
            self._cuts.sent(part.id)
            self._send(sent)
        self._next_job()
        self._report()

    def _release(self, queues: set[MessageQueue]) -> None:
        self._released |= queues
        if queues:
            self._send(Released(frozenset(queues)))

    def _finish(self) -> None:
        """End, once the driver has everything."""
        if self.link is not None and not self.is_online:
            # The driver is about to answer, and would take the task for one that goes on.
            return
        is_last = self.life is Life.ENDING and all(each.is_over for each in self._turns)
        if is_last and self._call is None and not self._is_writing and not self._jobs and not self._in_doubt:
            self._send(Done())
            self._end(is_good=True)

    def _end(self, *, is_good: bool) -> None:
        self.life = Life.OVER
        self.world.task_over(self, is_good=is_good)

    def die(self) -> None:
        """End the process."""
        if self.life is not Life.OVER:
            self.world.break_link(self)
            self._end(is_good=False)

    # --- the connection -------------------------------------------------------------------------------------

    def _send(self, message: object) -> None:
        # Parts in doubt and queues released are sent again when the task is connected again.
        if self.link is not None and (self.is_online or isinstance(message, Begin | Resume)):
            self.world.to_driver(self, message)

    def receive(self, message: object) -> None:
        """Take a message of the driver."""
        if self.life is Life.OVER:
            return
        match message:
            case ToRun(answer, left_out):
                self._answered(answer, left_out)
            case Cut(number):
                self._cut(number)
            case Confirmed(part_id):
                self._in_doubt.pop(part_id, None)
                self._cuts.taken(part_id)
                self._finish()
            case Over(part_ids):
                self._parts_over(part_ids)
            case GiveUp(queues, is_dropped):
                self._give_up(queues, is_dropped=is_dropped)
            case End():
                self._ends()
            case _:
                raise TypeError(message)

    def _parts_over(self, part_ids: frozenset[str]) -> None:
        if self._cuts.over(part_ids) and self.life is Life.RUNNING:
            self._send(Dirty())

    def _ends(self) -> None:
        if self.life is Life.RUNNING:
            self.life = Life.ENDING
            self._cut_last()

    def _answered(self, answer: Answer, left_out: frozenset[MessageQueue]) -> None:
        self.is_online = True
        if answer.is_stopped:
            self._send(Done())
            self._end(is_good=True)
            return
        self.is_paused = False
        if self.life is Life.BEGINNING:
            self.life = Life.RUNNING
        for part_id in answer.known:
            self._in_doubt.pop(part_id, None)
        self._cuts = TaskCuts()
        for part_id in answer.uncommitted | self._in_doubt.keys():
            self._cuts.sent(part_id)
        self._send_again()
        self._give_up(answer.dropped, is_dropped=True)
        self._give_up(left_out, is_dropped=False)
        self._finish()
        if self.life is not Life.OVER:
            self._report()
            self.work()

    def _send_again(self) -> None:
        """Send what the driver may not have got."""
        if self.world.has("parts sent again"):
            for sent in self._in_doubt.values():
                self._send(sent)
        if self._released:
            self._send(Released(frozenset(self._released)))

    def _give_up(self, queues: frozenset[MessageQueue], *, is_dropped: bool) -> None:
        for queue in sorted(queues & self._ranges.keys()):
            each = self._ranges[queue]
            each.is_given_up = True
            each.is_dropped |= is_dropped
            self._leave(each)
        self._finish()

    def broke(self, link: Link) -> None:
        """Notice that the connection is broken."""
        if self.life is Life.OVER or self.link is not link:
            return
        self.link, self.is_online = None, False
        self._broke_s = self.world.now_s
        self.is_paused = self.world.has("pause")
        self.world.after(0.1, self._connect, 0.2)

    def _connect(self, pause_s: float) -> None:
        if self.life is Life.OVER or self.link is not None:
            return
        if self.world.now_s - self._broke_s > _PAUSED_S and self.world.has("pause"):
            self._end(is_good=False)
        elif self.world.may_connect(self):
            self._links += 1
            self.link = Link(self._links)
            has_begun = self.life is not Life.BEGINNING
            begin = Begin(self.partition, self.attempt, self.places)
            self._send(Resume(tuple(self._in_doubt)) if has_begun else begin)
        else:
            self.world.after(pause_s, self._connect, min(2.0, 2 * pause_s))
