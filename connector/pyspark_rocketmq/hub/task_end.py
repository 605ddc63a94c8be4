"""A task's end of the connection to its driver: it receives instructions and hands parts of its result over.

One connection serves all tasks of a process. The data that the connection's thread writes and a task's thread
reads is sets and flags that only grow, so neither thread waits for the other.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple, assert_never

from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consume.cuts import Place
from pyspark_rocketmq.consume.part import Part
from pyspark_rocketmq.consume.task_cuts import TaskCuts
from pyspark_rocketmq.consume.turns import RangeInstructions
from pyspark_rocketmq.errors import RocketMQError, TransportError
from pyspark_rocketmq.hub.connections import HubClient
from pyspark_rocketmq.hub.messages import (
    BatchAtWork,
    CutWanted,
    FromTask,
    GiveUpQueues,
    NothingToCut,
    PartHandedOver,
    PartsCommitted,
    PartTaken,
    QueuesReleased,
    StopTask,
    TaskBegins,
    TaskDirty,
    TaskDone,
    TaskFailed,
    TaskIdle,
    TaskMayBegin,
    ToTask,
    decode_to_task,
)
from pyspark_rocketmq.hub.session import LONGEST_LINE, HubAddress
from pyspark_rocketmq.model import MessageQueue

logger = logging.getLogger(__name__)

_CONNECT_S: Final = 3.0
_ANSWER_S: Final = 10.0
_IDLE_ANSWER_S: Final = 2.0
"""How long an idle task waits for the answer whether its batch is at work."""
_TAKEN_S: Final = 30.0
"""How long a driver may take to confirm a part."""
_AGAIN_AFTER_S: Final = 60.0
"""Pause before a driver that could not be reached is tried again."""
_CALLS_END_S: Final = 2.0
"""How long the running call may continue after the driver's end; like ``spark.python.task.killTimeout``."""
_LARGEST_COPY: Final = 256 << 10
"""Longest result, in characters, of which the driver gets a copy."""


class ControlEndpoint(NamedTuple):
    """How the tasks of one batch reach their driver; pickled and sent to them."""

    address: HubAddress
    batch_id: int
    must_ask: bool
    """Whether a task that cannot reach the driver must leave its ranges as they are."""
    ends_tasks: bool = False
    """Whether a task must end when the driver does, even within a call: Spark does not end it."""
    wants_cuts: bool = False
    """Whether the driver asks for cuts, so that tasks report when they are dirty."""


class Fate(Enum):
    """Destination of a range that a task has finished."""

    KEPT = "KEPT"
    """It is part of the task's result."""
    HANDED_OVER = "HANDED_OVER"
    """It goes to the driver immediately, separately from all others."""
    DROPPED = "DROPPED"
    """Nothing of it is committed: its queue was claimed or reset meanwhile."""


class TaskControl(RangeInstructions):
    """Instructions to one attempt of a task."""

    def __init__(
        self, connection: _DriverConnection, places: Mapping[MessageQueue, Place], *, is_cut: bool
    ) -> None:
        self.id = uuid.uuid4().hex
        """Unique id of the attempt."""
        self.is_cut: Final = is_cut
        """Whether the driver asks for cuts."""
        self._connection = connection
        self._places = places
        self._given_up: set[MessageQueue] = set()
        self._dropped: set[MessageQueue] = set()
        self._all = False
        self._begun: set[MessageQueue] = set()
        self._kept: set[MessageQueue] = set()
        self._on_cut: Callable[[int | None], bool] = lambda _: False
        self._cutter: Callable[[], Any] = lambda: None
        self._on_work_end: Callable[[], None] = lambda: None
        self._idle_s: float | None = None
        self._is_batch_at_work = False
        """Whether the batch is at work, according to the driver's last report."""
        self._is_last = False
        """Whether the task must not wait for other tasks any more."""
        self._taker: Callable[[Any], bool] = lambda _: False
        self._cuts = TaskCuts()
        self._cuts_guard = threading.Lock()
        """Guards the one before."""
        self._answered = threading.Event()
        self._is_certain = threading.Event()
        self._is_certain.set()

    # --- the task's threads ---------------------------------------------------------------------------------

    def is_given_up(self, queue: MessageQueue) -> bool:
        """See :class:`RangeInstructions`."""
        return self._all or queue in self._given_up

    def idles(self, changed: Callable[[], None]) -> None:
        """See ``RangeInstructions``."""
        self._on_work_end, self._idle_s = changed, time.monotonic()
        if not self._is_last:
            self._send(TaskIdle(self.id))

    def is_batch_at_work(self) -> bool:
        """See :class:`RangeInstructions`."""
        if self._idle_s is None or self._is_last:
            return False
        if not self._is_batch_at_work and time.monotonic() - self._idle_s > _IDLE_ANSWER_S:
            self._is_last = True
        return not self._is_last

    def begins(self, queue: MessageQueue) -> bool:
        """Report that the range of a queue begins; return whether it may."""
        # Before _given_up is read: _give_up uses the two in the opposite order.
        self._begun.add(queue)
        if not self.is_given_up(queue):
            return True
        if queue in self._given_up:
            self.released(queue)
        return False

    def fate(self, queue: MessageQueue) -> Fate:
        """Return the destination of a queue's finished range."""
        if queue in self._dropped:
            return Fate.DROPPED
        return Fate.HANDED_OVER if queue in self._given_up else Fate.KEPT

    def kept(self, queues: Collection[MessageQueue]) -> bool:
        """Note that ranges are in the task's result so far; return whether to hand that over now."""
        self._kept.update(queues)
        return any(self.fate(queue) is Fate.HANDED_OVER for queue in queues)

    def when_cut(self, cut: Callable[[int | None], bool]) -> None:
        """Set ``cut``, which begins to hand the result so far over; called on another thread, must not wait.

        Its argument is the number of a cut; without one, only ranges that have ended are to be handed over.
        It returns whether it has begun, so that :meth:`hand_over` or :meth:`nothing_to_cut` follows.
        """
        self._on_cut = cut

    def settled(self) -> None:
        """See :class:`RangeInstructions`."""
        if self.is_cut:
            with self._cuts_guard:
                is_due = self._cuts.settled()
            if is_due:
                self._send(TaskDirty(self.id))

    def cut_with(self, cut: Callable[[], Any]) -> None:
        """See :class:`RangeInstructions`."""
        self._cutter = cut

    def cut_begins(self) -> bool:
        """Begin the cut that was wanted; return False if too many parts are under way by now."""
        with self._cuts_guard:
            return self._cuts.cut_begins()

    def cut_ranges(self) -> Any:
        """Call ``cut_with``'s function."""
        return self._cutter()

    def nothing_to_cut(self, number: int) -> None:
        """Answer a cut without a part."""
        self._send(NothingToCut(self.id, number))

    def taken_by(self, taker: Callable[[Any], bool]) -> None:
        """Set ``taker``, which :meth:`take` calls with its argument."""
        self._taker = taker

    def take(self, brought: object) -> bool:
        """See :class:`RangeInstructions`."""
        return self._taker(brought)

    def released(self, queue: MessageQueue) -> None:
        """Report that nothing that counts was delivered from a queue, and nothing will be."""
        self._send(QueuesReleased(self.id, frozenset({queue})))

    def hand_over(
        self, part: Part, *, ends: frozenset[MessageQueue] | None = None, cut: int | None = None
    ) -> bool:
        """Send a part to the driver; return, without waiting, whether this was begun.

        ``ends`` are queues from which nothing more is delivered, by default all of the part; ``cut`` is the
        number of the cut that the part answers.
        """
        if self._connection.is_lost or len(str(part.facts)) > LONGEST_LINE // 2:
            return False
        with self._cuts_guard:
            self._cuts.sent(part.id)
            self._is_certain.clear()
        self._send(PartHandedOver(self.id, part, cut, part.queues if ends is None else ends))
        return True

    def await_taken(self) -> None:
        """Wait until the driver has confirmed every part.

        Raises:
            RocketMQError: If a part is not confirmed; another attempt of the task asks the driver.
        """
        self._is_certain.wait(_TAKEN_S)
        with self._cuts_guard:
            in_doubt = len(self._cuts.in_doubt)
        if in_doubt:
            raise RocketMQError(
                f"The connection to the driver at {self._connection.place} ended while "
                f"{in_doubt} parts of this task's result were on their way to it, so whether it "
                "has them is not known. The "
                "task is run again and asks; look at the driver's log if this goes on."
            )

    def done(self, last: Part | None) -> None:
        """Report the task's end; the driver gets a copy of the last part, if it is not too large."""
        copy = None if last is None or len(str(last.facts)) > _LARGEST_COPY else last
        self._connection.forget(self)
        self._send(TaskDone(self.id, copy))

    def forget(self) -> None:
        """Report that the task has failed."""
        self._connection.forget(self)
        self._send(TaskFailed(self.id))

    def ask(self, terms: ControlEndpoint, partition: int, *, attempt: int, tasks: int) -> bool:
        """Report the queues that the task is going to begin with; return whether the driver has answered."""
        self._is_last = tasks == 1
        self._send(
            TaskBegins(
                task=self.id,
                batch_id=terms.batch_id,
                partition=partition,
                attempt=attempt,
                places=self._places,
                tasks=tasks,
            )
        )
        return self._answered.wait(_ANSWER_S) and not self._connection.is_lost

    def _send(self, message: FromTask) -> None:
        self._connection.send(message)

    # --- the connection's thread ----------------------------------------------------------------------------

    def receive(self, message: ToTask) -> None:
        """Handle a message of the driver to this task."""
        match message:
            case TaskMayBegin(_, left_out, is_stopped):
                self._given_up |= left_out
                self._all = self._all or is_stopped
                self._answered.set()
            case GiveUpQueues(_, queues, is_dropped):
                self._give_up(queues, is_dropped=is_dropped)
            case BatchAtWork(_, is_at_work):
                if is_at_work:
                    self._is_batch_at_work = True
                else:
                    self._end_idle()
            case StopTask():
                self.stop()
            case CutWanted() | PartTaken() | PartsCommitted():
                self._receive_of_parts(message)
            case _:
                assert_never(message)

    def _receive_of_parts(self, message: CutWanted | PartTaken | PartsCommitted) -> None:
        match message:
            case CutWanted(_, number):
                self._cut_wanted(number)
            case PartTaken(_, part_id):
                with self._cuts_guard:
                    self._cuts.taken(part_id)
                    if not self._cuts.in_doubt:
                        self._is_certain.set()
            case PartsCommitted(_, part_ids):
                with self._cuts_guard:
                    is_due = self._cuts.over(part_ids)
                if is_due:
                    self._send(TaskDirty(self.id))
            case _:
                assert_never(message)

    def _cut_wanted(self, number: int) -> None:
        with self._cuts_guard:
            is_due = self._cuts.cut_wanted()
        if not (is_due and self._on_cut(number)):
            self.nothing_to_cut(number)

    def stop(self) -> None:
        """Make no further deliveries; messages delivered so far remain in the task's result."""
        self._all = True
        self._end_idle()

    def lost(self) -> None:
        """End the task after the running call: it can get no further instructions."""
        self._all = True
        self._answered.set()
        self._is_certain.set()
        self._end_idle()

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


class _DriverConnection:
    """This process's connection to one driver."""

    def __init__(self, address: HubAddress, *, ends_tasks: bool) -> None:
        self._ends_tasks = ends_tasks
        self.place = f"{address.host}:{address.port}"
        self.is_lost = False
        self._tasks: dict[str, TaskControl] = {}
        self._client = HubClient[ToTask](
            address,
            decode=decode_to_task,
            received=self._received,
            lost=self._lost,
            clock=SystemClock(),
            timeout_s=_CONNECT_S,
        )
        self.send = self._client.send

    def begin(self, places: Mapping[MessageQueue, Place], *, is_cut: bool) -> TaskControl:
        instructions = TaskControl(self, places, is_cut=is_cut)
        self._tasks[instructions.id] = instructions
        return instructions

    def forget(self, instructions: TaskControl) -> None:
        self._tasks.pop(instructions.id, None)

    def _received(self, message: ToTask) -> None:
        if (task := self._tasks.get(message.task)) is not None:
            task.receive(message)

    def _lost(self) -> None:
        self.is_lost = True
        for instructions in list(self._tasks.values()):
            instructions.lost()
        if self._ends_tasks and self._tasks:
            timer = threading.Timer(_CALLS_END_S, self._end_calls)
            timer.daemon = True
            timer.start()

    def _end_calls(self) -> None:
        if self._tasks:
            logger.warning("this worker ends within the listener's call: its query has ended")
            # Nothing else can end a call; Spark starts another worker.
            os._exit(1)


_connections: dict[HubAddress, _DriverConnection] = {}
"""Connections of this process, one to each driver."""
_failed_s: dict[HubAddress, float] = {}
_guard = threading.Lock()
"""Guards both; no connection is made under it."""


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
) -> TaskControl | None:
    """Ask the driver which of a task's ranges to leave out; return None if it cannot be reached.

    Args:
        terms: Terms of the batch.
        partition: The task's number; the same for all its attempts.
        places: Epoch and first offset of its ranges, by queue.
        attempt: Number of the attempt, from 0.
        tasks: Number of tasks of the batch.
    """
    connection = _connected(terms)
    if connection is None:
        return None
    instructions = connection.begin(places, is_cut=terms.wants_cuts)
    if instructions.ask(terms, partition, attempt=attempt, tasks=tasks):
        return instructions
    instructions.forget()
    return None


def _connected(terms: ControlEndpoint) -> _DriverConnection | None:
    address = terms.address
    with _guard:
        found = _connections.get(address)
        if found is not None and not found.is_lost:
            return found
        if time.monotonic() - _failed_s.get(address, float("-inf")) < _AGAIN_AFTER_S:
            return None
    try:
        made = _DriverConnection(address, ends_tasks=terms.ends_tasks)
    except TransportError as error:
        logger.warning(
            "the driver cannot be reached from this worker, so its queues change hands between two batches "
            "only: %s",
            error,
        )
        with _guard:
            _failed_s[address] = time.monotonic()
        return None
    with _guard:
        # Lost connections of other queries, and earlier ones of this query.
        for lost in [each for each, connection in _connections.items() if connection.is_lost]:
            del _connections[lost]
        _connections[address] = made
    return made
