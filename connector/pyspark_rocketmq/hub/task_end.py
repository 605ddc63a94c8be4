"""A task's end of the connection to its driver: it receives instructions and sends parts of the result.

One connection serves all tasks of a process. The connection's thread writes instructions into sets and flags,
which a task's thread reads without a lock. Except for pauses, they grow and never shrink. A lock is held only
while messages are recorded and passed on.

If the connection breaks, a task with closed ranges (a micro-batch) ends after the running call. A task with
open ranges (real time) *pauses*: it begins no delivery. If the process connects again within ten seconds, the
task resumes; otherwise the task fails.

A *part* is a piece of the task's result, sent to the driver in one message. A task with open ranges keeps
each part until the driver has confirmed it. After a new connection, the task first asks the driver whether it
may resume. After the answer it sends, in this order: the parts that have not arrived, the queues that cannot
go on, the queues that it has released, and whether it has new results.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from enum import Enum
from math import inf
from typing import Any, Final, NamedTuple, assert_never

from pyspark_rocketmq.clock import Deadline, SystemClock, waits
from pyspark_rocketmq.consume.cuts import Place
from pyspark_rocketmq.consume.part import Part
from pyspark_rocketmq.consume.task_cuts import CutTimes
from pyspark_rocketmq.consume.turns import RangeInstructions
from pyspark_rocketmq.display import counted
from pyspark_rocketmq.errors import (
    DataLoss,
    ListenerError,
    RocketMQError,
    SchemaError,
    SinkConflict,
    TransportError,
    UndecodableMessage,
)
from pyspark_rocketmq.hub.calls_in_hand import CallsInHand
from pyspark_rocketmq.hub.connections import RECONNECT_S, SILENT_FOR_S, HubClient
from pyspark_rocketmq.hub.messages import (
    BatchAtWork,
    CallsEnded,
    CutWanted,
    EndSoon,
    EndTask,
    FromTask,
    GiveUpQueues,
    NothingToCut,
    PartHandedOver,
    PartsCommitted,
    PartTaken,
    QueuesReleased,
    QueueStands,
    ResetFound,
    TaskBegins,
    TaskDirty,
    TaskDone,
    TaskError,
    TaskFailed,
    TaskIdle,
    TaskMayBegin,
    TaskMayGoOn,
    TaskResumes,
    ToTask,
    decode_to_task,
)
from pyspark_rocketmq.hub.session import LONGEST_LINE, HubAddress, line_bytes
from pyspark_rocketmq.model import MessageQueue

logger = logging.getLogger(__name__)

_CONNECT_S: Final = 3.0
_ANSWER_S: Final = 10.0
_IDLE_ANSWER_S: Final = 2.0
"""Time for which a task with only suspended queues waits for the driver's answer, in seconds."""
_TAKEN_S: Final = 30.0
"""Time within which a driver must confirm a part, in seconds."""
_AGAIN_AFTER_S: Final = 60.0
"""Pause, in seconds, before tasks that can also run without the driver try again to connect to it."""
_PAUSE_S: Final = 0.5
"""Pause, in seconds, between the tries of a task that cannot do without the driver."""
_CONNECTIONS: Final = 3
"""Maximum number of connections that a task tries, if each is lost just before the task is registered."""
_CALLS_END_S: Final = 2.0
"""How long the running call may continue after the driver's end, in seconds; like
``spark.python.task.killTimeout``."""
_LARGEST_COPY: Final = 256 << 10
"""Size of the largest result, in bytes of JSON, of which the driver gets a copy."""
_FATAL: Final = (SchemaError, DataLoss, UndecodableMessage, ListenerError, SinkConflict)
"""Errors that would occur again in another attempt of the task."""


class ControlEndpoint(NamedTuple):
    """Address at which the tasks of a batch connect to their driver, and rules for them.

    It is pickled with the tasks.
    """

    address: HubAddress
    batch_id: int
    must_ask: bool
    """True if a task that cannot reach the driver must consume nothing."""
    ends_tasks: bool = False
    """Whether a task must end together with the driver, even within a call, because Spark does not end it."""
    wants_cuts: bool = False
    """Whether the batch commits while it runs, so that tasks report when they have new results."""


class Fate(Enum):
    """Destination of the result of a range that a task has finished."""

    KEPT = "KEPT"
    """The result becomes part of the task's result."""
    HANDED_OVER = "HANDED_OVER"
    """The result is sent to the driver immediately, because another member is to have the range's queue."""
    DROPPED = "DROPPED"
    """Nothing of the result is committed, for example because the queue was claimed or reset meanwhile."""


def _do_nothing() -> None:
    pass


class TaskControl(RangeInstructions):
    """The driver's instructions to one attempt of a task, and the attempt's reports to the driver.

    A *cut* puts the results so far into a *part*, which is sent to the driver while the task goes on.
    """

    def __init__(
        self,
        connection: _DriverConnection,
        places: Mapping[MessageQueue, Place],
        *,
        is_cut: bool,
        open_for_s: float | None = None,
    ) -> None:
        self.id = os.urandom(16).hex()
        """Unique id of the attempt."""
        self.is_cut: Final = is_cut
        """Whether the driver asks for parts while the batch runs."""
        self.is_open: Final = open_for_s is not None
        """Whether the task's ranges are open, so that it consumes them until the driver ends the task."""
        self._open_for_s = open_for_s
        self._connection = connection
        self._places = places
        self._given_up: set[MessageQueue] = set()
        self._waiting: frozenset[MessageQueue] = frozenset()
        """Queues that begin no delivery for now, because of a long call at the batch's end."""
        self._dropped: set[MessageQueue] = set()
        self._all = False
        self._begun: set[MessageQueue] = set()
        """Queues whose turn has come: the task has begun them, or has passed over them."""
        self._passed_over: set[MessageQueue] = set()
        """Queues that the task has not begun because it was to end."""
        self._kept: set[MessageQueue] = set()
        self._on_cut: Callable[[int | None], bool] = lambda _: False
        self._cutter: Callable[[], Any] = lambda: None
        self._calls = CallsInHand(lambda: self._all, self._wait, self._calls_ended)
        self._on_change = self._on_settled = self._on_rest = self._on_work_end = _do_nothing
        self._idle_s: float | None = None
        self._is_batch_at_work = False
        """Whether other tasks of the batch have work, according to the driver's last report."""
        self._is_last = False
        """Whether the task must no longer wait for other tasks."""
        self._taker: Callable[[Any], bool] = lambda _: False
        self._answered = threading.Event()
        self._is_certain = threading.Event()
        """Set while every part that was sent is confirmed, and when the connection is lost for good."""
        self._is_certain.set()
        self._is_lost = False
        """Whether the connection is lost for good."""
        self._is_paused = self._counts_rows = False
        self._is_held = False
        """Whether no message may be delivered, because too many rows are in no part yet
        (``CutTimes.is_held``)."""
        self._on_full: Callable[[], bool] = lambda: False
        self._guard = threading.Lock()
        """Guards everything below: messages are recorded and sent in the same order."""
        self._cuts = CutTimes()
        self._begin: TaskBegins | None = None
        self._is_online = True
        """Whether messages may be sent; after a new connection only when the driver has answered."""
        self._handed: dict[str, PartHandedOver] = {}
        """Unconfirmed parts of a task with open ranges, by id; sent again after a new connection."""
        self._released: set[MessageQueue] = set()
        self._stands: dict[MessageQueue, QueueStands] = {}
        """Reports of queues that cannot go on; sent again after a new connection, as is ``_released``."""

    # --- the task's threads ---------------------------------------------------------------------------------

    def is_given_up(self, queue: MessageQueue) -> bool:
        """Return whether nothing more may be delivered from ``queue``; once the answer is True, it stays so.

        It is True if the queue is given up, or if the task is to end.
        """
        return self._all or queue in self._given_up

    def idles(self, changed: Callable[[], None]) -> None:
        """Report that the task has only suspended queues left; return immediately.

        Another thread calls ``changed`` when the task must no longer wait for these queues.
        """
        self._on_work_end, self._idle_s = changed, time.monotonic()
        if not self._is_last and not self.is_open:
            self._send(TaskIdle(self.id))

    def is_batch_at_work(self) -> bool:
        """Return whether the task may wait for suspended queues.

        With closed ranges it may after :meth:`idles`, as long as the driver reports that other tasks have
        work. With open ranges it may until the driver ends the task.
        """
        if self.is_open:
            return not self._is_last
        if self._idle_s is None or self._is_last:
            return False
        if not self._is_batch_at_work and time.monotonic() - self._idle_s > _IDLE_ANSWER_S:
            self._is_last = True
        return not self._is_last

    def is_paused(self) -> bool:
        """Return whether no delivery may begin now: the driver is away, or too many rows wait for it."""
        return self._is_paused or self._is_held

    def must_wait(self, queue: MessageQueue) -> bool:
        """Return whether no delivery of ``queue`` may begin now: the batch's end is announced.

        Such a queue had a long call at the announcement (``hub.calls_in_hand``).
        """
        return queue in self._waiting

    def notifies(self, changed: Callable[[], None]) -> None:
        """Set a function to call when the task's instructions change; it must not wait.

        These are :meth:`is_paused`, :meth:`must_wait` and :meth:`is_given_up`.
        """
        self._on_change = changed

    def shows_calls(self, calls: Callable[[], Mapping[MessageQueue, float]]) -> None:
        """Set the function that returns, by queue, how many seconds its oldest running call has lasted."""
        self._calls.lasting = calls

    def begins(self, queue: MessageQueue) -> bool:
        """Note that the task is about to begin a queue's range; return whether it may.

        It may not if the queue is given up or the task is to end. If the queue is given up, the driver gets a
        report that the task has released the queue.
        """
        # Write _begun, then read _given_up: _give_up writes _given_up, then reads _begun. So at least one of
        # the two notices a queue that begins and is given up at the same time.
        self._begun.add(queue)
        if not self.is_given_up(queue):
            return True
        if queue in self._given_up:
            self.released(queue)
        else:
            self._passed_over.add(queue)
        return False

    def not_begun(self) -> frozenset[MessageQueue]:
        """Return the queues that :meth:`begins` refused because the task is to end.

        Queues that are given up are left out. No other member gets the returned queues before the batch is
        over, so the task's result may have acks of them.
        """
        return frozenset(queue for queue in self._passed_over if self.fate(queue) is Fate.KEPT)

    def fate(self, queue: MessageQueue) -> Fate:
        """Return what happens to the result of a queue's range, by the driver's instructions so far."""
        if queue in self._dropped:
            return Fate.DROPPED
        return Fate.HANDED_OVER if queue in self._given_up else Fate.KEPT

    def kept(self, queues: Collection[MessageQueue]) -> bool:
        """Note that the part which the task is filling contains the results of these queues' ranges.

        Return whether to send that part to the driver now, because one of the queues is given up.
        """
        self._kept.update(queues)
        return any(self.fate(queue) is Fate.HANDED_OVER for queue in queues)

    def when_cut(self, cut: Callable[[int | None], bool]) -> None:
        """Set the function that begins a *cut*: another thread then puts results into a part and sends it.

        The function is called on the connection's thread, must not wait, and returns whether it has begun a
        cut. Its argument is the number of the driver's request, which the cut answers later, by
        :meth:`hand_over` or :meth:`nothing_to_cut`.

        The argument is None if a queue is given up whose results are in the part that the task is filling.
        That part is then sent as it is, without new results of ranges that go on. This needs no answer.
        """
        self._on_cut = cut

    def commit_when(self, settled: Callable[[], None], rests: Callable[[], None]) -> None:
        """Set the functions that :meth:`settled` and :meth:`rests` call, for a task that commits by itself.

        ``settled`` is called when a range has new results. ``rests`` is called when the task has no message
        to deliver for now. Both are called on any thread and must not wait.
        """
        self._on_settled, self._on_rest = settled, rests

    def rests(self) -> None:
        """Note that the task has no message to deliver for now; call ``rests`` of :meth:`commit_when`."""
        self._on_rest()

    def settled(self) -> None:
        """Note that a range has new results to commit; return immediately.

        If the batch is committed while it runs, the driver gets a report of this, at most once between two of
        its requests for results. A task that commits by itself also calls the function of
        :meth:`commit_when`.
        """
        self._on_settled()
        if self.is_cut:
            with self._guard:
                if self._cuts.settled():
                    self._send_now(TaskDirty(self.id))

    def cut_with(self, cut: Callable[[], Any]) -> None:
        """Set the function that collects the results of all ranges since its last call.

        :meth:`cut_ranges` calls it.
        """
        self._cutter = cut

    def limit_rows(self, nbytes: int, cut: Callable[[], bool]) -> None:
        """Limit how many bytes of rows may wait in the task for a part or a commit; only for open ranges.

        Call this if rows reach the driver inside parts, not in files, or if the task itself commits. When the
        waiting rows take ``nbytes``, ``cut`` is called, which begins to send or commit them. No message is
        delivered until a part or a commit has taken the rows. ``cut`` is called on any thread and must not
        wait.
        """
        if self.is_open:
            self._counts_rows, self._on_full = True, cut
            self._cuts.limit_rows(nbytes)

    def counts_rows(self) -> bool:
        """Return whether :meth:`rows_grew` is to be called, because :meth:`limit_rows` has set a limit."""
        return self._counts_rows

    def rows_grew(self, nbytes: int) -> None:
        """Add the size of new rows, in bytes, that wait for a commit.

        At the limit of :meth:`limit_rows`, deliveries pause, and the rows are sent or committed.
        """
        with self._guard:
            self._cuts.rows_grew(nbytes)
        self._hold_or_cut()

    def _hold_or_cut(self) -> None:
        with self._guard:
            is_due = self._cuts.cuts_itself()
            has_changed = self._cuts.is_held != self._is_held
            self._is_held = self._cuts.is_held
        if has_changed:
            self._on_change()
        if is_due:
            self._on_full()

    def cut_begins(self) -> bool:
        """Note that a part is to be made of all results so far; return whether it may be made.

        It may not be made while two earlier parts of the task are not committed.
        """
        with self._guard:
            begins = self._cuts.cut_begins()
        self._hold_or_cut()
        return begins

    def cut_ranges(self) -> Any:
        """Call the function that was given to :meth:`cut_with`, and return the results that it has collected.

        Deliveries that were held because of the size of their rows go on after that.
        """
        with self._guard:
            self._cuts.taking_begins()
        taken = self._cutter()
        with self._guard:
            self._cuts.rows_are_taken()
        self._hold_or_cut()
        return taken

    def nothing_to_cut(self, number: int) -> None:
        """Report that the task has no part for the driver's request ``number``."""
        self._send(NothingToCut(self.id, number))

    def taken_by(self, taker: Callable[[Any], bool]) -> None:
        """Set the function that sends the result of a range whose queue is given up; :meth:`take` calls it.

        The function returns whether it takes the result.
        """
        self._taker = taker

    def take(self, brought: object) -> bool:
        """Hand over the result ``brought`` of a range that has ended; return False if the caller keeps it.

        The caller keeps the result if the queue is not given up (only the task is to end), or if the task
        sends no more parts. A result that the driver wants dropped counts as handed over.
        """
        return self._taker(brought)

    def released(self, queue: MessageQueue) -> None:
        """Report that the task has no results of a queue to commit, and delivers nothing more from it."""
        with self._guard:
            self._released.add(queue)
            self._send_now(QueuesReleased(self.id, frozenset({queue})))

    def stands(self, queue: MessageQueue, reason: str, *, is_reset: bool = False) -> None:
        """Report that an open range cannot go on: only another plan can continue its queue.

        ``reason``: the cause in words, for the log. ``is_reset``: whether an operator has reset the queue;
        the driver then ends the batch without delay.
        """
        with self._guard:
            message = self._stands[queue] = QueueStands(self.id, queue, is_reset, reason)
            self._send_now(message)

    def hand_over(
        self, part: Part, *, ends: frozenset[MessageQueue] | None = None, cut: int | None = None
    ) -> bool:
        """Send a part of the task's result to the driver, without waiting for its confirmation.

        Return False if the part is too large, or no message can reach the driver.

        Args:
            part: The part.
            ends: Queues from which nothing more is delivered; by default all queues of the part.
            cut: Number of the driver's request (cut) that the part answers; None if the driver has not asked
                for it.
        """
        # The hub ends a connection with too long a line, and would get the part again on the next one. The
        # other half is for the lists of queues.
        if line_bytes(part.facts) > LONGEST_LINE // 2:
            return False
        with self._guard:
            if self.is_cut_off:
                return False
            self._cuts.sent(part.id)
            self._is_certain.clear()
            message = PartHandedOver(self.id, part, cut, part.queues if ends is None else ends)
            if self.is_open:
                self._handed[part.id] = message
            self._send_now(message)
        return True

    def await_taken(self) -> None:
        """Wait until the driver has confirmed every part that the task has sent.

        Raises:
            RocketMQError: If a part is not confirmed within 30 s, or the ranges are open and the connection
                is lost for good. With closed ranges, another attempt of the task then asks the driver which
                parts have arrived.
        """
        any(map(self._is_certain.wait, waits(_TAKEN_S)))
        with self._guard:
            in_doubt = len(self._cuts.in_doubt)
        if self.is_open and self._is_lost:
            raise RocketMQError(
                f"The connection to the driver at {self._connection.place} broke, and a new one could not be "
                f"made within {RECONNECT_S:g} s. Messages that were not committed are consumed again. If the "
                "driver still runs, check the network between driver and executors."
            )
        if in_doubt:
            raise RocketMQError(
                f"The driver at {self._connection.place} has not confirmed {counted(in_doubt, 'part')} of "
                "this task's result, which may not have arrived. Spark runs the task again, and the driver "
                "then reports which parts it has. If this happens again and again, look at the driver's log."
            )

    def done(self, last: Part | None) -> None:
        """Report the task's end; send the driver a copy of the last part, unless the part is too large.

        With the copy, the driver can commit the part and give up its queues before the job ends.
        """
        copy = None if last is None or line_bytes(last.facts) > _LARGEST_COPY else last
        self._leave()
        self._connection.send(TaskDone(self.id, copy))

    def forget(self, error: BaseException | None = None) -> None:
        """Report that the task has failed with ``error``, or that it does not begin (``error`` is None).

        If the ranges are open and the error would occur again in another attempt, the driver fails the batch
        with this error. Without this rule the error would be lost: another attempt of an open task consumes
        nothing, and Spark would count the task as done. Any other error fails the batch only after several
        attempts (``DeathCounts``).
        """
        is_fatal = self.is_open and isinstance(error, _FATAL)
        reported = None if error is None else TaskError.of(error, is_fatal=is_fatal)
        self._leave()
        # Send this even before the driver has answered on a new connection: no other message follows it.
        self._connection.send(TaskFailed(self.id, reported))

    def _leave(self) -> None:
        """Accept no further instruction of the driver.

        No listener call counts as running any more, even if one has not ended.
        """
        self._connection.forget(self)
        self._calls.leave()

    def ask(
        self,
        batch_id: int,
        partition: int,
        *,
        attempt: int,
        tasks: int,
        at_end: frozenset[MessageQueue] = frozenset(),
    ) -> None:
        """Ask the driver with which of the task's queues to begin; then call :meth:`await_answer`."""
        with self._guard:
            self._begin = TaskBegins(
                task=self.id,
                batch_id=batch_id,
                partition=partition,
                attempt=attempt,
                places=self._places,
                tasks=tasks,
                open_for_s=self._open_for_s,
                at_end=at_end,
                connection=self._connection.number,
            )
            self._is_last = tasks == 1 and not self.is_open
            self._is_online = not self.is_open
            self._connection.send(self._begin)

    def await_answer(self) -> bool:
        """Wait for the driver's answer; return whether it came in time and messages can reach the driver."""
        # With open ranges, leave time to notice that the connection is dead and to make another one.
        more_s = SILENT_FOR_S + RECONNECT_S if self.is_open else 0.0
        is_answered = any(map(self._answered.wait, waits(_ANSWER_S + more_s)))
        return is_answered and not self.is_cut_off

    @property
    def is_cut_off(self) -> bool:
        """Whether no further message of this task can reach the driver."""
        return self._is_lost or (self._connection.is_lost and not self.is_open)

    def _send(self, message: FromTask) -> None:
        with self._guard:
            self._send_now(message)

    def _send_now(self, message: FromTask) -> None:
        """Send a message if that is possible now; call with the guard held.

        Without a connection the message is dropped. After a new connection :meth:`_goes_on` sends again all
        that the driver needs.
        """
        if self._is_online:
            self._connection.send(message)

    # --- the connection's thread ----------------------------------------------------------------------------

    def receive(self, message: ToTask) -> None:
        """Handle a message from the driver to this task."""
        match message:
            case TaskMayBegin(_, left_out, is_stopped):
                self._given_up |= left_out
                self._all = self._all or is_stopped
                with self._guard:
                    self._is_online = True
                self._pauses(is_paused=False)
                self._answered.set()
            case TaskMayGoOn():
                self._goes_on(message)
            case GiveUpQueues(_, queues, is_dropped):
                self._give_up(queues, is_dropped=is_dropped)
            case BatchAtWork(_, is_at_work):
                if is_at_work:
                    self._is_batch_at_work = True
                else:
                    self._end_idle()
            case EndSoon() | EndTask():
                self._ends(message)
            case CutWanted() | PartTaken() | PartsCommitted():
                self._receive_of_parts(message)
            case _:
                assert_never(message)

    def _receive_of_parts(self, message: CutWanted | PartTaken | PartsCommitted) -> None:
        match message:
            case CutWanted(_, number):
                self._cut_wanted(number)
            case PartTaken(_, part_id):
                with self._guard:
                    self._taken({part_id})
            case PartsCommitted(_, part_ids):
                with self._guard:
                    if self._cuts.over(part_ids):
                        self._send_now(TaskDirty(self.id))
                self._hold_or_cut()
            case _:
                assert_never(message)

    def _taken(self, part_ids: Collection[str]) -> None:
        """Note that parts have arrived at the driver; call with the guard held."""
        for part_id in part_ids:
            self._cuts.taken(part_id)
            self._handed.pop(part_id, None)
        if not self._cuts.in_doubt:
            self._is_certain.set()

    def _cut_wanted(self, number: int) -> None:
        with self._guard:
            is_due = self._cuts.cut_wanted()
        if not (is_due and self._on_cut(number)):
            self.nothing_to_cut(number)

    def _ends(self, message: EndSoon | EndTask) -> None:
        if isinstance(message, EndTask):
            self.stop()
        else:
            self._calls.watch()

    def _wait(self, queues: frozenset[MessageQueue]) -> None:
        if queues != self._waiting:
            self._waiting = queues
            self._on_change()

    def _calls_ended(self) -> None:
        self._send(CallsEnded(self.id))

    def stop(self) -> None:
        """Make no further deliveries; messages delivered so far remain in the task's result."""
        self._all = True
        self._end_idle()
        self._on_change()

    def broke(self) -> None:
        """Note that the connection broke: pause if the ranges are open, else end after the running call."""
        if not self.is_open:
            self.lost()
            return
        with self._guard:
            self._is_online = False
        self._pauses(is_paused=True)

    def opened_again(self) -> None:
        """Ask the driver, on a new connection, whether the task may go on.

        Do nothing for a task with closed ranges, or before the task calls :meth:`ask`.
        """
        with self._guard:
            if not self.is_open or self._begin is None:
                # A task that has not asked yet does so on this connection.
                return
            number = self._connection.number
            if not self._answered.is_set():
                self._begin = replace(self._begin, connection=number)
                self._connection.send(self._begin)
                return
            self._connection.send(
                TaskResumes(
                    task=self.id,
                    batch_id=self._begin.batch_id,
                    in_doubt=frozenset(self._cuts.in_doubt),
                    connection=number,
                )
            )

    def _goes_on(self, answer: TaskMayGoOn) -> None:
        """After a break, send again what the driver lacks, carry out its instructions, and resume.

        If the driver's answer is to stop, end the task instead.
        """
        with self._guard:
            self._is_online = True
            if answer.is_stopped:
                # None of these parts will be committed, so do not send them again.
                self._taken(list(self._cuts.in_doubt))
            is_due = self._cuts.resumed(answer.known, answer.uncommitted)
            self._taken(answer.known)
            for handed in self._handed.values():
                self._connection.send(handed)
            for stands in self._stands.values():
                self._connection.send(stands)
            if self._released:
                self._connection.send(QueuesReleased(self.id, frozenset(self._released)))
            if is_due:
                self._connection.send(TaskDirty(self.id))
        if answer.is_stopped:
            self.stop()
        self._give_up(answer.dropped - self._dropped, is_dropped=True)
        self._give_up(answer.given_up - self._given_up, is_dropped=False)
        self._pauses(is_paused=False)
        self._hold_or_cut()

    def _pauses(self, *, is_paused: bool) -> None:
        if is_paused != self._is_paused:
            self._is_paused = is_paused
            self._on_change()

    def lost(self) -> None:
        """Note that the connection is lost for good: end the task after its running call."""
        self._all = True
        with self._guard:
            self._is_lost = True
        self._pauses(is_paused=False)
        self._answered.set()
        self._is_certain.set()
        self._end_idle()
        self._on_change()

    def _end_idle(self) -> None:
        self._is_last = True
        self._on_work_end()

    def _give_up(self, queues: Collection[MessageQueue], *, is_dropped: bool) -> None:
        if is_dropped:
            self._dropped.update(queues)
        self._given_up.update(queues)
        for queue in queues:
            if queue not in self._begun:
                self.released(queue)
        if not is_dropped and not self._kept.isdisjoint(queues):
            self._on_cut(None)
        self._on_change()


class _DriverConnection:
    """This process's connection to one driver."""

    def __init__(self, address: HubAddress, *, ends_tasks: bool) -> None:
        self._ends_tasks = ends_tasks
        self.place = f"{address.host}:{address.port}"
        self.is_lost = False
        self._guard = threading.Lock()
        """Guards the next two, so that no task is registered on a connection that has just ended."""
        self._tasks: dict[str, TaskControl] = {}
        self._is_over = False
        """Whether the connection is lost for good."""
        self._client = HubClient[ToTask](
            address,
            decode=decode_to_task,
            received=self._received,
            lost=self._lost,
            clock=SystemClock(),
            timeout_s=_CONNECT_S,
            broken=self._broken,
            opened_again=self._opened_again,
        )
        self.send = self._client.send

    @property
    def number(self) -> int:
        """Number of the process's newest connection to this driver, from 1."""
        return self._client.number

    def begin(
        self, places: Mapping[MessageQueue, Place], *, is_cut: bool, open_for_s: float | None = None
    ) -> TaskControl | None:
        """Register a task; return None if it needs another connection, because this one is lost.

        A task with open ranges is registered during a break, too, and waits for the next connection.
        """
        instructions = TaskControl(self, places, is_cut=is_cut, open_for_s=open_for_s)
        with self._guard:
            if self._is_over or (self.is_lost and not instructions.is_open):
                return None
            self._tasks[instructions.id] = instructions
        return instructions

    def forget(self, instructions: TaskControl) -> None:
        self._tasks.pop(instructions.id, None)

    def _received(self, message: ToTask) -> None:
        if (task := self._tasks.get(message.task)) is not None:
            task.receive(message)

    def _broken(self) -> bool:
        with self._guard:
            # A task that begins from now on must not use this connection, and makes another one.
            self.is_lost = True
            tasks = list(self._tasks.values())
            connects_again = any(each.is_open for each in tasks)
            self._is_over = not connects_again
        for instructions in tasks:
            instructions.broke()
        return connects_again

    def _opened_again(self) -> None:
        self.is_lost = False
        for instructions in list(self._tasks.values()):
            instructions.opened_again()

    def _lost(self) -> None:
        with self._guard:
            self.is_lost = self._is_over = True
            tasks = list(self._tasks.values())
        for instructions in tasks:
            instructions.lost()
        if self._ends_tasks and self._tasks:
            timer = threading.Timer(_CALLS_END_S, self._end_calls)
            timer.daemon = True
            timer.start()

    def _end_calls(self) -> None:
        if self._tasks:
            logger.warning("this worker process ends during a listener call, because its query has ended")
            # Nothing else can end a call; Spark starts another worker.
            os._exit(1)


_connections: dict[HubAddress, _DriverConnection] = {}
"""Connections of this process, one to each driver."""
_failed_s: dict[HubAddress, float] = {}
_guard = threading.Lock()
"""Guards ``_connections`` and ``_failed_s``; no connection is made while it is held."""


def _renew() -> None:
    """Begin without connections in a child of ``fork()``; the parent's stay open."""
    global _guard  # noqa: PLW0603 - one per process is the point
    _guard = threading.Lock()
    _connections.clear()
    _failed_s.clear()


os.register_at_fork(after_in_child=_renew)


def ask_driver(
    terms: ControlEndpoint,
    partition: int,
    places: Mapping[MessageQueue, Place],
    *,
    attempt: int = 0,
    tasks: int = 1,
    open_for_s: float | None = None,
    at_end: frozenset[MessageQueue] = frozenset(),
) -> TaskControl | None:
    """Ask the driver which of a task's ranges to leave out, and wait for its answer.

    Return the object with the answer and later instructions; None if the driver cannot be reached or does not
    answer in time.

    Args:
        terms: Address and rules of the batch.
        partition: The task's number; the same for all its attempts.
        places: Epoch and first offset of the task's ranges, by queue.
        attempt: Number of the attempt, from 0.
        tasks: Number of tasks of the batch.
        open_for_s: Length of the batch in seconds if its ranges are open; None for closed ranges.
        at_end: Queues that had no message at their first offset when they were planned.
    """
    instructions = _registered(terms, places, open_for_s)
    if instructions is None:
        return None
    instructions.ask(terms.batch_id, partition, attempt=attempt, tasks=tasks, at_end=at_end)
    if instructions.await_answer():
        return instructions
    instructions.forget()
    return None


def report_reset(terms: ControlEndpoint, queue: MessageQueue, target: int) -> None:
    """Report to the driver an operator's reset of ``queue`` to ``target``, so that the planner follows it.

    Use this for a reset that a broker has reported only after the queue's range had ended: the task that read
    the range may have ended, too. If the driver cannot be reached within ten seconds, log a warning.
    """
    connection = _surely_connected(terms)
    if connection is not None:
        connection.send(ResetFound(queue, target))
        return
    logger.warning(
        "reset not followed, the driver cannot be reached or its query has ended; reset it again if still "
        "wanted %s target=%d",
        queue,
        target,
    )


def _registered(
    terms: ControlEndpoint, places: Mapping[MessageQueue, Place], open_for_s: float | None
) -> TaskControl | None:
    """Register a task on a connection to its driver; return None if no connection can be made.

    If a connection is lost just before the task's registration, try another one. Return None if three
    connections are lost in this way. A task that cannot do without its driver, in real time and over Spark
    Connect, tries to connect for ten seconds.
    """
    is_needed = terms.ends_tasks or open_for_s is not None
    for _ in range(_CONNECTIONS):
        connection = _surely_connected(terms) if is_needed else _connected(terms)
        if connection is None:
            return None
        instructions = connection.begin(places, is_cut=terms.wants_cuts, open_for_s=open_for_s)
        if instructions is not None:
            return instructions
    return None


def _surely_connected(terms: ControlEndpoint) -> _DriverConnection | None:
    """Connect for a task that cannot do without its driver; return None if that fails for ten seconds.

    In that case a task with open ranges fails, and another one is held back: it delivers nothing.
    """
    tried = threading.Event()
    deadline = Deadline.after(SystemClock(), RECONNECT_S)
    while (found := _connected(terms, is_needed=True)) is None and not deadline.has_passed:
        tried.wait(_PAUSE_S)
    return found


def _connected(terms: ControlEndpoint, *, is_needed: bool = False) -> _DriverConnection | None:
    address = terms.address
    with _guard:
        found = _connections.get(address)
        if found is not None and not found.is_lost:
            return found
        failed_s = _failed_s.get(address, -inf)
        if not is_needed and time.monotonic() - failed_s < _AGAIN_AFTER_S:
            return None
    try:
        made = _DriverConnection(address, ends_tasks=terms.ends_tasks)
    except TransportError as error:
        logger.warning(
            "could not connect from this worker to the driver at %s:%d (%s), %s; let executors reach "
            "spark.driver.host",
            address.host,
            address.port,
            error.detail,
            "so it tries again for some seconds"
            if is_needed
            else "so its queues can go to other members only between two batches",
        )
        with _guard:
            _failed_s[address] = time.monotonic()
        return None
    with _guard:
        # Forget lost connections, of other queries and of this one.
        for lost in [each for each, connection in _connections.items() if connection.is_lost]:
            del _connections[lost]
        _connections[address] = made
    return made
