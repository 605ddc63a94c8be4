"""Decides when tasks hand over what they have consumed, and which parts the driver commits together.

A batch may commit several times while its tasks run. For each commit the driver asks all tasks for a *cut*:
to send what is *settled* since the task's last cut. That is the task's *part*: the rows of messages that are
done, and one ack per queue. The driver gathers the parts and commits them as one *group*: one data commit and
one offset commit, however many tasks there are. The offset commit may wait and be made with a later group
(``consume.offset_pace``). A task that has settled something reports, once per cut, that it is *dirty*. So the
driver neither asks nor commits while nothing happens. Two state machines::

    asking:     QUIET --dirty--> DUE --tick--> GATHERING --all answered, late, a queue ended--> QUIET or DUE
    committing: IDLE --parts wait--> COMMITTING --failed--> RETRY --tick--> COMMITTING; after 60 s FAILED

Rule 1 (chain): the parts of a queue form a chain. Each begins at the epoch and the offset that the previous
part has reached; the first one begins where the plan does. Any other part is not accepted.
Rule 2 (known parts): a task sends a part again if it got no confirmation. If the part has arrived already, it
is confirmed again and otherwise ignored.
Rule 3 (attempts): Spark starts a later attempt of a task that has died. If the ranges are *open* (without a
planned end), the later attempt consumes nothing and ends the batch; the next batch continues the queues from
the offset store. The earlier attempt may still be alive. Then its last part counts, and the batch is not over
before the earlier attempt has ended or paused. The batch fails when a task has died four times while none of
its queues moved, or twelve times while one of them did not move, perhaps because it has no messages. A
queue's deaths are forgiven when the queue moves, or when its task ends well in a batch. A death after a quiet
minute is taken back if later plans find no message where the task's queues are: its machine was taken away
(:mod:`~pyspark_rocketmq.consume.deaths`). If the ranges are
*closed* (with a planned end), nothing more is accepted from the earlier attempt. The later attempt leaves out
queues of which a part has arrived, which the next batch continues; it consumes the other queues from their
start.
Rule 4 (poisoned queues): a queue is *poisoned* if a part broke its chain, if the sink or the offset store
refused it, or if it has another epoch now. Nothing more of it is committed in this batch. The other queues go
on.
Rule 5 (one group): one group is committed at a time. If its commit fails, the same group is tried again
before any other, because the outcome of the commit may be unknown. A group takes all parts that wait, up to
1,000 files. After a minute of failures the batch fails. If commits have no interval, the batch fails only
when its job is over, because storage may answer by then.
Rule 6 (pace): after a pause, a cut is asked for 5 ms after the first new result, and then once per interval.
No cut is asked for while one group is committed and another part waits, so slow commits lengthen the
interval.
Rule 7 (free queues): a queue is free once nobody delivers it, no part of it waits or is being committed, and
its offset is stored. The batch is over once all offsets are stored.

No I/O, no clock, no thread; methods take the monotonic time and return the actions to take.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Final, NamedTuple

from pyspark_rocketmq.consume.deaths import DeathCounts
from pyspark_rocketmq.consume.offset_pace import OffsetPace
from pyspark_rocketmq.consume.part import Group, Part, QueueAck
from pyspark_rocketmq.model import MessageQueue

Queues = frozenset[MessageQueue]

_FIRST_CUT_AFTER_S: Final = 0.005
"""Time between the first result after a pause and the cut, in seconds."""
_GATHER_S: Final = 0.1
"""Longest time for which a group waits for the parts of all tasks, in seconds."""
_LARGEST_GROUP: Final = 1_000
"""Maximum number of files of a group of more than one part."""
_FIRST_RETRY_S: Final = 0.5
_LONGEST_RETRY_S: Final = 5.0
_FAIL_AFTER_S: Final = 60.0
"""Time for which a failed commit is tried again, in seconds."""
_KNOWN_PARTS: Final = 1_000
"""Number of ids of arrived parts that are kept for each task; far fewer can be unconfirmed."""
_CLOSED_S: Final = 1.0
"""Time within which a task notices that its connection is closed, and ends its running call, in seconds."""
_SILENCE_S: Final = 20.0
"""Time for which a task may go on when nothing comes from its driver, in seconds."""
_BEGINNING_S: Final = 60.0
"""Time in which a task dies if its beginning ends it, such as an import or the listener's ``open``."""
_NOTHING: Final[Queues] = frozenset()


class EndReason(Enum):
    """Reason why the driver ends the tasks of a batch before their ranges end."""

    TIME = "time"
    """The batch has lasted long enough."""
    PLAN = "plan"
    """Another plan is needed."""
    STOP = "stop"
    """The query ends, so nothing more must be consumed."""


class Place(NamedTuple):
    """Position up to which a queue was consumed, and the epoch of the queue then.

    The epoch is a number that grows with each claim and reset of the queue.
    """

    epoch: int
    next_offset: int


# --- actions --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer a task that is going to begin, or that is connected again."""

    task: str
    is_stopped: bool
    """True if the task must deliver nothing."""
    known: frozenset[str] = frozenset()
    """Ids of the task's unconfirmed parts that have arrived; the task sends the others again, in order."""
    uncommitted: frozenset[str] = frozenset()
    """Ids of the task's parts that have arrived and are neither committed nor dropped yet."""
    dropped: Queues = _NOTHING
    """Queues that the task must give up without sending a part."""
    left_out: Queues = _NOTHING
    """Queues that the task must not begin: an earlier attempt has ended them, or has sent parts of them."""


@dataclass(frozen=True, slots=True)
class AskForCut:
    """Ask tasks for a cut: each is to send, as a part, what it has finished since its last cut."""

    number: int
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Taken:
    """Confirm to a task that a part (its results for some queues) has arrived."""

    task: str
    part_id: str


@dataclass(frozen=True, slots=True)
class PartsOver:
    """Report to a task that parts of it are committed or dropped, so that it may send further parts."""

    task: str
    part_ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class CommitGroup:
    """Commit a group of parts, then call :meth:`Cuts.committed` or :meth:`Cuts.commit_failed`."""

    group: Group
    stores_offsets: bool = True
    """Whether to store offsets after the rows: the group's, and those of earlier groups that wait.

    If not, the group's offsets wait, too.
    """


@dataclass(frozen=True, slots=True)
class StoreOffsets:
    """Store the offsets that wait although their rows are committed.

    Then call :meth:`Cuts.committed` or :meth:`Cuts.commit_failed`.
    """


@dataclass(frozen=True, slots=True)
class Drop:
    """Instruct tasks to give up queues, and to drop results of these queues that they have not sent."""

    queues: Queues


@dataclass(frozen=True, slots=True)
class Free:
    """Report queues that may go to other members.

    No task delivers them any more, and all their results are committed or dropped (rule 7).
    """

    queues: Queues


@dataclass(frozen=True, slots=True)
class Replan:
    """Report queues that cannot go on in this batch.

    With open ranges the batch then ends, unless all of these queues go to other members.
    """

    queues: Queues
    reason: str


@dataclass(frozen=True, slots=True)
class EndTasks:
    """Instruct tasks to end after the running call, and to send their last part."""

    reason: EndReason
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fail:
    """Fail the batch, and so the query."""

    error: BaseException


Action = (
    Answer
    | AskForCut
    | Taken
    | PartsOver
    | CommitGroup
    | StoreOffsets
    | Drop
    | Free
    | Replan
    | EndTasks
    | Fail
)


class Asking(Enum):
    """State of a batch's next cut, for which :class:`Cuts` asks the tasks.

    QUIET: no cut is due. DUE: tasks will be asked for a cut. GATHERING: the tasks' answers are awaited.
    """

    QUIET = "QUIET"
    DUE = "DUE"
    GATHERING = "GATHERING"


class Committing(Enum):
    """State of a batch's commits of groups of parts, in :class:`Cuts`.

    IDLE: nothing is being committed. COMMITTING: a commit is under way. RETRY: the commit has failed and will
    be tried again. FAILED: the batch has failed.
    """

    IDLE = "IDLE"
    COMMITTING = "COMMITTING"
    RETRY = "RETRY"
    FAILED = "FAILED"


@dataclass(slots=True, eq=False)
class _Task:
    name: str
    partition: int
    attempt: int
    queues: Queues
    is_stopped: bool
    """True if the task was stopped before it delivered anything."""
    began_s: float
    known: dict[str, None] = field(default_factory=dict)
    """Ids of the task's newest parts that have arrived, in order; older ones were confirmed long ago."""
    is_connected: bool = True
    is_done: bool = False
    is_replaced: bool = False
    """True if another attempt has replaced this one, so that its further results are ignored."""
    error: str = ""
    """The error that the task has reported, on one line; empty if it has not failed, or reported none."""
    pauses_at_s: float = -inf
    """Time at which the task certainly delivers no more, because its connection is lost."""
    lived_until_s: float = -inf
    """Time until which the task has certainly lived, once its connection is lost."""

    @property
    def is_running(self) -> bool:
        return self.is_connected and not self.is_done and not self.is_replaced

    def note(self, part_id: str) -> None:
        self.known[part_id] = None
        if len(self.known) > _KNOWN_PARTS:
            del self.known[next(iter(self.known))]

    def was_quiet(self, now_s: float) -> bool:
        """Return whether the task, which is dead at ``now_s``, got past its beginning without an error."""
        # If its connection is not lost, it may have been dead for as long as a silent one is not noticed.
        until_s = now_s - _SILENCE_S if self.is_connected else self.lived_until_s
        return not self.is_done and until_s - self.began_s >= _BEGINNING_S

    def may_deliver(self, now_s: float) -> bool:
        is_at_it = self.is_connected or now_s < self.pauses_at_s
        return is_at_it and not self.is_done and not self.is_stopped


@dataclass(slots=True)
class _Gathering:
    number: int | None
    """Number of the cut; None while the last parts of an ended batch are gathered."""
    until_s: float
    missing: set[str]
    """Ids of tasks that have not answered."""


class _Waiting(NamedTuple):
    task: str
    part: Part


@dataclass(slots=True)
class _Batch:
    """The part of the state of :class:`Cuts` that lasts for one batch."""

    reached: dict[MessageQueue, Place] = field(default_factory=dict)
    """Position that the arrived parts of each queue have reached."""
    waiting: deque[_Waiting] = field(default_factory=deque)
    """Parts that are in no group yet."""
    in_hand: list[_Waiting] = field(default_factory=list)
    """Parts of the group that is being committed."""
    poisoned: set[MessageQueue] = field(default_factory=set)
    ended: set[MessageQueue] = field(default_factory=set)
    """Queues of which their task delivers nothing more, and that are not free yet (rule 7)."""
    free: set[MessageQueue] = field(default_factory=set)
    tasks: dict[str, _Task] = field(default_factory=dict)
    newest: dict[int, _Task] = field(default_factory=dict)
    """Newest attempt of each task, by the number of its partition."""
    dirty: set[str] = field(default_factory=set)
    """Tasks that have reported new results since the driver last asked for a cut."""
    is_closed: bool = False
    """Whether nothing more is accepted from tasks."""
    is_hurried: bool = False
    """Whether failed commits are not tried again."""


class Cuts:
    """Decides when the tasks of a query hand over results, and which results are committed together.

    A *cut* asks tasks for what is *settled* (done, with its rows) since the last cut. A task sends it as a
    *part*; parts are committed together as a *group*. The methods take events and return the actions that
    follow. Not thread-safe.
    """

    def __init__(self, interval_s: float | None, *, may_offsets_wait: bool = False) -> None:
        """Begin without a batch.

        ``interval_s`` is the shortest time between two cuts in seconds. Even with 0, a cut comes only 5 ms
        after the first new result, and not while parts wait for a running commit. With None no cut is asked
        for: parts come only when queues are given up or tasks end. ``may_offsets_wait``: whether the
        offsets of parts that are committed together may be stored later than their rows. With
        ``interval_s=None`` it has no effect: each commit stores the offsets, too.
        """
        self._interval_s = interval_s
        self._pace = OffsetPace(may_wait=may_offsets_wait and interval_s is not None)
        self._deaths = DeathCounts()
        self._number = 0
        self._last_cut_s = -inf
        self.begin_batch()

    def begin_batch(self) -> None:
        """Begin a batch, before its job; no part of the previous batch may wait or be in a commit."""
        self._batch = _Batch()
        self._due_s: float | None = None
        self._gathering: _Gathering | None = None
        self._in_hand: CommitGroup | StoreOffsets | None = None
        self._pace.forget()
        self._retry_s: float | None = None
        self._failing_since_s: float | None = None
        self._failures = 0
        self._error: BaseException | None = None
        self._end_reason: EndReason | None = None

    # --- state ----------------------------------------------------------------------------------------------

    @property
    def asking(self) -> Asking:
        """Whether a cut is due (DUE), its parts are awaited (GATHERING), or neither (QUIET)."""
        if self._gathering is not None:
            return Asking.GATHERING
        return Asking.QUIET if self._due_s is None else Asking.DUE

    @property
    def committing(self) -> Committing:
        """Whether a commit is under way (COMMITTING), or has failed and is to be tried again (RETRY).

        IDLE without a commit; FAILED once the batch has failed.
        """
        if self._error is not None:
            return Committing.FAILED
        if self._in_hand is None:
            return Committing.IDLE
        return Committing.COMMITTING if self._retry_s is None else Committing.RETRY

    @property
    def next_tick_s(self) -> float | None:
        """Time at which :meth:`tick` must be called; None if there is nothing to wait for."""
        at_s = inf if self._due_s is None or self._is_held_back else self._due_s
        if self._gathering is not None:
            at_s = min(at_s, self._gathering.until_s)
        if self._retry_s is not None:
            at_s = min(at_s, self._retry_s)
        if (offsets_s := self._pace.due_s) is not None and self._may_commit:
            at_s = min(at_s, offsets_s)
        return None if at_s == inf else at_s

    @property
    def is_settled(self) -> bool:
        """Whether no part waits, nothing is being committed, and all offsets are stored.

        If the batch has failed, parts that wait do not count, because they will not be committed.
        """
        is_idle = self._in_hand is None and not self._pace.behind
        return is_idle and (not self._batch.waiting or self._error is not None)

    @property
    def behind(self) -> Queues:
        """Queues whose rows are committed and whose offsets are not stored yet."""
        return self._pace.behind

    @property
    def ended(self) -> Queues:
        """Queues of which their task delivers nothing more, and that are not free yet.

        Results of them wait for a commit, or their offsets are not stored.
        """
        return frozenset(self._batch.ended)

    def is_anybody_delivering(self, now_s: float) -> bool:
        """Return whether any task may still deliver; a task that another attempt has replaced counts, too."""
        return any(task.may_deliver(now_s) for task in self._batch.tasks.values())

    @property
    def is_ending(self) -> bool:
        """Whether the batch is ended, so that no task may begin."""
        return self._end_reason is not None

    # --- tasks ----------------------------------------------------------------------------------------------

    def begin(
        self,
        task: str,
        partition: int,
        attempt: int,
        places: Mapping[MessageQueue, Place],
        now_s: float,
        *,
        is_open: bool = False,
        at_end: Queues = _NOTHING,
    ) -> list[Action]:
        """Answer a task that is going to begin with its queues, at the positions of the plan.

        The answer stops the task if the batch is ending or over, or if a later attempt of it has begun. It
        also stops a later attempt with open ranges, and then the batch ends, too. A later attempt with closed
        ranges leaves out the queues of which a part has arrived.

        A task that connects again before it got the answer asks again. The caller must ignore messages that
        come late, from an older connection than the task's newest one.

        Args:
            task: Unique id of the attempt.
            partition: Number of the task, the same for all attempts.
            attempt: Number of the attempt, from 0.
            places: The position of each of the task's queues in the plan.
            now_s: Now.
            is_open: Whether the task's ranges are open, so that it runs until the driver ends it (rule 3).
            at_end: Queues that had no message at their position when they were planned.
        """
        batch = self._batch
        former = batch.newest.get(partition)
        if former is not None and former.name == task:
            return self.resume(task, ())
        if batch.is_closed or (former is not None and former.attempt >= attempt):
            return [Answer(task, is_stopped=True)]
        is_another = self._is_another_attempt(former, attempt)
        is_stopped = (is_another and is_open) or self.is_ending
        mine = _Task(task, partition, attempt, frozenset(places), is_stopped, now_s)
        batch.tasks[task] = batch.newest[partition] = mine
        if not is_another:
            batch.reached.update(places)
            self._deaths.planned({queue: place.next_offset for queue, place in places.items()}, at_end)
            return [Answer(task, is_stopped)]
        if not is_open:
            return self._replace(former, mine, places, now_s)
        answer = Answer(task, is_stopped=True)
        return [answer, *self._died(former, places, now_s), *self.end(EndReason.PLAN, now_s)]

    def resume(self, task: str, in_doubt: Collection[str]) -> list[Action]:
        """Answer a task that is connected again and cannot be sure which of its parts have arrived.

        ``in_doubt`` has the ids of the parts that it has sent without getting a confirmation. The answer
        stops a task from which nothing more is accepted.

        As for :meth:`begin`, the caller must ignore messages that come late from an older connection.
        """
        mine = self._accepted(task)
        if mine is None:
            return [Answer(task, is_stopped=True)]
        mine.is_connected = True
        batch = self._batch
        answer = Answer(
            task,
            mine.is_stopped,
            known=frozenset(mine.known.keys() & set(in_doubt)),
            uncommitted=frozenset(
                each.part.id for each in (*batch.in_hand, *batch.waiting) if each.task == task
            ),
            dropped=mine.queues & batch.poisoned,
        )
        return [answer, *([EndTasks(self._end_reason, (task,))] if self._end_reason is not None else [])]

    def dirty(self, task: str, now_s: float) -> list[Action]:
        """Note that a task has new results since its last cut: if cuts have an interval, one becomes due."""
        if self._accepted(task) is not None and not self.is_ending:
            self._batch.dirty.add(task)
            self._schedule(now_s)
        return []

    def part(
        self, task: str, part: Part, now_s: float, *, cut: int | None = None, ends: Queues = _NOTHING
    ) -> list[Action]:
        """Take a part, the results of a task for some of its queues, and confirm that it has arrived.

        A part that has arrived before is only confirmed; so is any part once nothing more is accepted from
        the task. If a queue in it does not begin where the part before has ended, nothing more of that queue
        is committed.

        Args:
            task: Id of the sender.
            part: The part; each queue in it begins where the queue's previous part has ended (rule 1).
            now_s: Monotonic time.
            cut: Number of the cut that the part answers; None if the driver has not asked for the part.
            ends: Queues of which the task delivers nothing more.
        """
        actions: list[Action] = [Taken(task, part.id)]
        mine = self._accepted(task)
        if mine is None:
            # The part does not count, but its task waits for the answer.
            return actions
        if not self._is_known(mine, part.id):
            mine.note(part.id)
            following = [ack for ack in part.acks if self._follows(ack)]
            broken = part.queues.difference(ack.queue for ack in following)
            actions += self._poison(broken, "a part does not follow the one before")
            for ack in following:
                self._batch.reached[ack.queue] = Place(ack.state.epoch, ack.state.next_offset)
            self._batch.waiting.append(_Waiting(task, part))
            self._batch.ended |= ends
        self._answered(task, cut)
        return [*actions, *self._go_on(now_s, at_once=bool(ends) and not self.is_ending)]

    def nothing(self, task: str, cut: int, now_s: float) -> list[Action]:
        """Note that a task sends no part for a cut.

        Either nothing is settled, or two earlier parts of the task are not committed yet.
        """
        if self._accepted(task) is not None:
            self._answered(task, cut)
        return self._go_on(now_s)

    def released(self, task: str, queues: Queues, now_s: float) -> list[Action]:
        """Note that a task delivers nothing more of these queues, and drops their results not yet sent."""
        mine = self._accepted(task)
        if mine is None:
            return []
        self._batch.ended |= queues & mine.queues
        return self._go_on(now_s)

    def lost(self, task: str, now_s: float, *, is_silent: bool = False) -> list[Action]:
        """Note that a task's newest connection broke; the task may connect again (:meth:`resume`).

        A task pauses when it notices the loss. With ``is_silent`` (nothing came from the task for a while)
        the task may need 20 s to notice it, otherwise 1 s.
        """
        if (mine := self._batch.tasks.get(task)) is not None:
            mine.is_connected = False
            mine.lived_until_s = now_s - (_SILENCE_S if is_silent else 0.0)
            mine.pauses_at_s = now_s + (_SILENCE_S if is_silent else _CLOSED_S)
            self._forget_answer(task)
        return self._go_on(now_s)

    def done(self, task: str, now_s: float, *, error: str = "") -> list[Action]:
        """Note that a task has ended, perhaps with an error after which another attempt may succeed.

        ``error`` is the error's text on one line. It is shown if the task's attempts keep failing.
        """
        if (mine := self._batch.tasks.get(task)) is not None:
            mine.is_done = True
            mine.error = error
            self._forget_answer(task)
        return self._go_on(now_s)

    def failed(self, task: str, error: BaseException, now_s: float) -> list[Action]:
        """Fail the batch: a task has failed with an error that would occur again in another attempt.

        If nothing more is accepted from the task, this is like :meth:`done`.
        """
        if self._accepted(task) is None:
            # The batch has failed already, or another attempt has the task's place; this one has ended too.
            return self.done(task, now_s)
        return [*self._fail(error), *self.done(task, now_s), *self.end(EndReason.STOP, now_s)]

    # --- commits --------------------------------------------------------------------------------------------

    def committed(self, refused: Queues, now_s: float, *, took_s: float = 0.0) -> list[Action]:
        """Note that the commit under way has succeeded, except for the ``refused`` queues.

        Nothing more of these queues is committed in this batch. ``took_s``: the seconds that it took to store
        the offsets; 0 if none were stored.
        """
        over, self._batch.in_hand = self._batch.in_hand, []
        if isinstance(self._in_hand, CommitGroup) and not self._in_hand.stores_offsets:
            self._pace.rows_committed(self._in_hand.group.queues - refused)
        else:
            self._pace.stored(now_s, took_s)
        self._in_hand = self._retry_s = self._failing_since_s = None
        self._failures = 0
        return [
            *_over(over),
            *self._poison(refused, "the sink or the offset store has refused the queue"),
            *self._go_on(now_s),
        ]

    def commit_failed(self, error: BaseException, now_s: float) -> list[Action]:
        """Note that the commit under way has failed, or that its outcome is unknown.

        The commit is tried again after a pause. Once failures have lasted a minute, the batch fails; if
        commits have no interval, not before the job is over. Nothing is tried again if the batch has an error
        already, or was closed because its job failed (``is_hurried``).
        """
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        may_fail = self._interval_s is not None or self._batch.is_closed
        is_over = may_fail and now_s - self._failing_since_s >= _FAIL_AFTER_S
        if is_over or self._batch.is_hurried or self._error is not None:
            self._in_hand = self._retry_s = None
            self._pace.forget()
            return [*self._fail(error), *self.end(EndReason.STOP, now_s)]
        self._retry_s = now_s + min(_LONGEST_RETRY_S, _FIRST_RETRY_S * 2.0 ** min(self._failures, 8))
        self._failures += 1
        return []

    def moved(self, queues: Queues, now_s: float) -> list[Action]:
        """Note that queues were claimed or reset since they were planned.

        Nothing more of them is committed in this batch.
        """
        return [*self._poison(queues, "the queue was claimed or reset"), *self._go_on(now_s)]

    # --- the batch ------------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> list[Action]:
        """Do what is due at ``now_s``.

        These may be due: a cut to ask for, the end of waiting for parts, another try of a failed commit, and
        offsets to store.
        """
        actions: list[Action] = []
        if self._retry_s is not None and now_s >= self._retry_s:
            self._retry_s = None
            actions += self._try_again()
        actions += self._go_on(now_s)
        if self._due_s is not None and now_s >= self._due_s and not self._is_held_back:
            actions += self._ask(now_s)
        return actions

    def end(self, reason: EndReason, now_s: float) -> list[Action]:
        """End the batch: every task hands over its last part. Further calls change nothing."""
        if self.is_ending:
            return []
        self._end_reason = reason
        self._due_s = None
        self._batch.dirty.clear()
        running = tuple(task.name for task in self._batch.tasks.values() if task.is_running)
        self._gathering = _Gathering(None, now_s + _GATHER_S, set(running))
        return [EndTasks(reason, running), *self._go_on(now_s)]

    def job_is_whole(self) -> None:
        """Note that the job has succeeded: the newest attempt of each task has ended well."""
        for task in self._batch.newest.values():
            task.is_done = True

    def close(self, now_s: float, *, is_hurried: bool = False) -> list[Action]:
        """Note that the job is over: accept nothing more, and commit what waits.

        ``is_hurried``: the batch has failed, so a commit that fails is not tried again.
        """
        batch = self._batch
        batch.is_closed = True
        batch.is_hurried = is_hurried
        self._due_s = self._gathering = None
        if is_hurried and self._retry_s is not None:
            self._retry_s = now_s
        ended_well = (task for task in batch.newest.values() if task.is_done and not task.is_stopped)
        self._deaths.forgive({queue for task in ended_well for queue in task.queues})
        return self._go_on(now_s)

    def rest(self, parts: Sequence[Part]) -> Group | None:
        """Return the batch's last group, made of the parts that came with the job's result.

        Return None if no part came. Call this once the closed batch is settled. A queue is left out of the
        commit if it is poisoned (rule 4), or if its ack does not begin where the queue's earlier parts have
        ended. A queue whose task could not reach the driver has no known position; its ack may begin
        anywhere.
        """
        if not parts:
            return None
        without = set(self._batch.poisoned)
        for ack in (ack for part in parts for ack in part.acks if ack.queue in self._batch.reached):
            if not self._follows(ack):
                without.add(ack.queue)
            self._batch.reached[ack.queue] = Place(ack.state.epoch, ack.state.next_offset)
        return Group(tuple(parts), frozenset(without))

    # --- rules ----------------------------------------------------------------------------------------------

    def _follows(self, ack: QueueAck) -> bool:
        """Return whether an ack begins at the position that the queue has reached (rule 1)."""
        return self._batch.reached.get(ack.queue) == (ack.state.epoch, ack.start)

    def _is_known(self, task: _Task, part_id: str) -> bool:
        """Return whether a part of the task has arrived before (rule 2)."""
        return part_id in task.known

    def _is_another_attempt(self, former: _Task | None, attempt: int) -> bool:
        """Return whether an attempt is a later one of its task (rule 3); ``former`` is the newest so far."""
        return former is not None or attempt > 0

    def _is_poisoned(self, queue: MessageQueue) -> bool:
        """Return whether nothing more of a queue is committed in this batch (rule 4)."""
        return queue in self._batch.poisoned

    def _try_again(self) -> list[Action]:
        """Repeat the commit that has failed, with the same content (rule 5)."""
        assert self._in_hand is not None
        return [self._in_hand]

    @property
    def _is_held_back(self) -> bool:
        """Whether the next cut must wait, because a commit is under way and a part waits for it (rule 6)."""
        return self._in_hand is not None and bool(self._batch.waiting)

    def _is_free(self, queue: MessageQueue) -> bool:
        """Return whether an ended queue, which nobody delivers any more, is free (rule 7).

        Its offset must be stored, and no part of it may wait or be in the running commit. Waiting parts of a
        poisoned queue do not count, because they are never committed.
        """
        if isinstance(self._in_hand, CommitGroup) and queue in self._in_hand.group.queues:
            return False
        if queue in self._pace.behind:
            return False
        return self._is_poisoned(queue) or all(queue not in each.part.queues for each in self._batch.waiting)

    # --- inside ---------------------------------------------------------------------------------------------

    def _accepted(self, task_id: str) -> _Task | None:
        """Return the task with this id; None if it is unknown, or nothing more is accepted from it."""
        task = self._batch.tasks.get(task_id)
        is_open = not self._batch.is_closed and self._error is None
        return task if task is not None and is_open and not task.is_replaced else None

    def _replace(
        self, former: _Task | None, mine: _Task, places: Mapping[MessageQueue, Place], now_s: float
    ) -> list[Action]:
        """Answer ``mine``, a later attempt of a task with closed ranges; stop the earlier one, ``former``.

        Nothing more is accepted from ``former``. The later attempt leaves out queues of which a part has
        arrived, or that are ended.
        """
        batch = self._batch
        stopped: list[Action] = []
        if former is not None:
            if former.is_running:
                # Spark counts this attempt as dead.
                stopped.append(EndTasks(EndReason.STOP, (former.name,)))
            former.is_replaced = True
            self._forget_answer(former.name)
        for queue, place in places.items():
            batch.reached.setdefault(queue, place)
        begun = {queue for queue, place in places.items() if batch.reached[queue] != place}
        # No task goes on with these queues in this batch.
        batch.ended |= begun - batch.free
        left_out = mine.queues & (begun | batch.ended | batch.free)
        answer = Answer(mine.name, mine.is_stopped, dropped=mine.queues & batch.poisoned, left_out=left_out)
        return [answer, *stopped, *self._go_on(now_s)]

    def _died(self, former: _Task | None, places: Mapping[MessageQueue, Place], now_s: float) -> list[Action]:
        """Count the death of a task's attempt; return a ``Fail`` if there were too many deaths, else nothing.

        The death does not count if the attempt, ``former``, was stopped before it delivered anything.
        """
        if former is not None and former.is_stopped:
            return []
        reached = {
            queue: self._batch.reached.get(queue, place).next_offset for queue, place in places.items()
        }
        reported = "" if former is None else former.error
        is_quiet = former is not None and former.was_quiet(now_s)
        error = self._deaths.count(reached, reported, is_quiet=is_quiet)
        return [] if error is None else self._fail(error)

    def _schedule(self, now_s: float) -> None:
        is_wanted = self._batch.dirty and self._interval_s is not None and not self.is_ending
        if is_wanted and self._gathering is None and self._due_s is None:
            self._due_s = max(self._last_cut_s + (self._interval_s or 0.0), now_s + _FIRST_CUT_AFTER_S)

    def _ask(self, now_s: float) -> list[Action]:
        tasks = tuple(
            task.name for task in self._batch.tasks.values() if task.is_running and not task.is_stopped
        )
        self._due_s = None
        # A report that comes from now on may be of messages that this cut leaves out: writing takes a while.
        self._batch.dirty.clear()
        if not tasks:
            return []
        self._number += 1
        self._last_cut_s = now_s
        self._gathering = _Gathering(self._number, now_s + _GATHER_S, set(tasks))
        return [AskForCut(self._number, tasks)]

    def _answered(self, task_id: str, cut: int | None) -> None:
        if self._gathering is not None and self._gathering.number == cut:
            self._gathering.missing.discard(task_id)

    def _forget_answer(self, task_id: str) -> None:
        self._batch.dirty.discard(task_id)
        if self._gathering is not None:
            self._gathering.missing.discard(task_id)

    def _go_on(self, now_s: float, *, at_once: bool = False) -> list[Action]:
        """Do what the state allows: stop waiting for parts, begin a commit, free ended queues.

        Waiting for parts ends when all tasks have answered, when its time is over, or if ``at_once`` is set.
        The commit is that of a group or, if no group can be committed, of offsets that wait.
        """
        gathering = self._gathering
        if gathering is not None and (at_once or not gathering.missing or now_s >= gathering.until_s):
            self._gathering = None
            self._schedule(now_s)
        actions: list[Action] = []
        if self._may_commit:
            actions += self._next_group(now_s)
        if self._are_offsets_due(now_s):
            self._in_hand = StoreOffsets()
            actions.append(self._in_hand)
        return actions + self._free_ended()

    @property
    def _may_commit(self) -> bool:
        """Whether the next group may be begun, or offsets may be stored without one."""
        return self._gathering is None and self._in_hand is None and self._error is None

    def _are_offsets_due(self, now_s: float) -> bool:
        """Return whether to store offsets without a group."""
        due_s = self._pace.due_s
        if due_s is None or self._in_hand is not None:
            return False
        if self._batch.is_closed:
            # Offsets of a batch that has failed are stored, too.
            return True
        return self._may_commit and (now_s >= due_s or self._pace.is_any_wanted(self._batch.ended))

    def _next_group(self, now_s: float) -> list[Action]:
        """Begin the next group, of parts that wait; parts that have only poisoned queues are dropped."""
        batch = self._batch
        if not batch.waiting:
            return []
        taken: list[_Waiting] = []
        dropped: list[_Waiting] = []
        files = 0
        while batch.waiting and (not taken or files + len(batch.waiting[0].part.written) <= _LARGEST_GROUP):
            first = batch.waiting.popleft()
            is_dropped = all(map(self._is_poisoned, first.part.queues))
            (dropped if is_dropped else taken).append(first)
            files += 0 if is_dropped else len(first.part.written)
        actions: list[Action] = [*_over(dropped)]
        if taken:
            queues = frozenset(queue for each in taken for queue in each.part.queues)
            without = frozenset(filter(self._is_poisoned, queues))
            group = Group(tuple(each.part for each in taken), without)
            stores = batch.is_closed or self._pace.is_group_stored(group, batch.ended, now_s)
            self._in_hand = CommitGroup(group, stores)
            batch.in_hand = taken
            actions.append(self._in_hand)
        return actions

    def _free_ended(self) -> list[Action]:
        batch = self._batch
        if not batch.ended or self._error is not None:
            return []
        free = frozenset(filter(self._is_free, batch.ended))
        batch.ended -= free
        batch.free |= free
        return [Free(free)] if free else []

    def _poison(self, queues: Queues, reason: str) -> list[Action]:
        news = queues - self._batch.poisoned
        if not news:
            return []
        self._batch.poisoned |= news
        return [Drop(news), Replan(news, reason)]

    def _fail(self, error: BaseException) -> list[Action]:
        if self._error is not None:
            return []
        self._error = error
        return [Fail(error)]


def _over(entries: Iterable[_Waiting]) -> list[Action]:
    by_task: dict[str, set[str]] = {}
    for each in entries:
        by_task.setdefault(each.task, set()).add(each.part.id)
    return [PartsOver(task, frozenset(part_ids)) for task, part_ids in by_task.items()]
