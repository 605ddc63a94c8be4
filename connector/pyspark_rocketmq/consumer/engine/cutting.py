"""Cuts of a task: what leaves it before its end, and the commits that it makes by itself.

* A queue that was given up leaves in its own part; a range that had ended before is handed over in the part
  that contains it.
* If the driver asks for cuts, each of them ends the part that has grown, together with what is settled of the
  ranges that go on, also while the listener is called. So a queue has several parts, which must reach the
  driver in order. A part that cannot be handed over, because the connection is lost or it is too long, comes
  with the job, and so does all that follows of its queues. Rows that cross Spark between the engine and the
  sink's writer (``orderlyEngine=state``) cannot be cut.

If the sink's writer is ``CommitsInTask``, the task commits by itself, as
:mod:`~pyspark_rocketmq.consume.task_commits` decides. The part that has grown then has acks of several such
commits, and goes to the driver as any other; a queue that is given up leaves with all of it.

One thread, ``rocketmq-cut``, writes and hands over everything that leaves before the end, one after the
other. It takes the growing part from its place when no other thread adds to it. No lock is held while files
are written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from math import inf
from queue import Empty, SimpleQueue

from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.consume.task_commits import TaskCommits as CommitTimes
from pyspark_rocketmq.consumer.engine.output import Consumed, CutTogether
from pyspark_rocketmq.consumer.engine.parts import GrowingPart, GrowingPlace, PartSender, undone_by_errors
from pyspark_rocketmq.consumer.engine.range import RangeCuts
from pyspark_rocketmq.hub.task_end import Fate, TaskControl
from pyspark_rocketmq.model import MessageQueue

Work = Callable[[], None]


class CutThread:
    """The thread ``rocketmq-cut``, which does one piece of work after the other, from the first one on."""

    def __init__(self, clock: Clock, *, failed: Callable[[], None], over: Callable[[], None]) -> None:
        """Prepare; the thread calls ``failed`` after an error in its work, and ``over`` at its end."""
        self._clock = clock
        self._failed = failed
        self._over = over
        self._guard = threading.Lock()
        """Guards that no work follows the end; nothing is done under it."""
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._is_closed = False
        self._is_abandoned = False
        self.thread: threading.Thread | None = None
        self.failure: BaseException | None = None
        """Error of the work, which the task's own thread raises."""
        self.due_s: Callable[[], float] = lambda: inf
        """Monotonic time at which to do ``when_due`` without being asked."""
        self.when_due: Work = look_again

    def begin(self, work: Work) -> bool:
        """Have the thread do something, after what it was given before; return False at the end."""
        with self._guard:
            if self._is_closed:
                return False
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="rocketmq-cut", daemon=True)
                self.thread.start()
            self._work.put(work)
            return True

    def close(self) -> None:
        """Accept no more work; what was accepted is still done."""
        with self._guard:
            self._is_closed = True
            self._work.put(None)

    def join(self) -> None:
        """Wait for the end of the work."""
        if self.thread is not None:
            self.thread.join()

    def abandon(self) -> None:
        """Begin no more work."""
        self._is_abandoned = True
        self.close()

    def _run(self) -> None:
        try:
            while (work := self._next()) is not None and not self._is_abandoned:
                work()
        except BaseException as error:  # noqa: BLE001 - the task's own thread raises it
            self.failure = error
            self._failed()
        finally:
            self._over()

    def _next(self) -> Work | None:
        due_s = self.due_s()
        try:
            return self._work.get(
                timeout=None if due_s == inf else max(0.0, due_s - self._clock.monotonic_s())
            )
        except Empty:
            return self.when_due


def look_again() -> None:
    """Do nothing: the thread has only to look when its next work is due."""


class TaskCuts:
    """Cuts a task when the driver asks, when too many rows wait, and when queues are given up."""

    def __init__(
        self, place: GrowingPlace, sender: PartSender, instructions: TaskControl, thread: CutThread
    ) -> None:
        self._place = place
        self._sender = sender
        self._instructions = instructions
        self._thread = thread
        self.own: OwnCommits | None = None
        """The commits of the task itself, if its sink has them."""
        self._going_on: set[MessageQueue] = set()
        """Queues of which the part that grows may have rows though their ranges go on."""

    def go_on(self, queues: Collection[MessageQueue]) -> None:
        """Note that the part that grows gets rows of ranges that go on."""
        self._going_on.update(queues)

    def begin(self, number: int | None) -> bool:
        """Begin to cut; called by the connection's thread, which must not wait for storage.

        ``number`` is that of the driver's cut; with None only what has ended leaves.
        """
        return self._thread.begin(lambda: self._cut(number, is_whole=number is not None))

    def begin_own(self) -> bool:
        """Begin a cut that the driver has not asked for."""
        return self._thread.begin(lambda: self._cut(None, is_whole=True))

    def begin_giving_up(self, consumed: Consumed) -> bool:
        """Begin to send the driver what was consumed of a range whose queue the task gives up."""
        return self._thread.begin(lambda: self._give_up(consumed))

    def send_ended(self) -> None:
        """Send what has ended; only the thread itself calls this."""
        self._cut(None, is_whole=False)

    def _cut(self, number: int | None, *, is_whole: bool) -> None:
        """Send the results so far to the driver; only those of ranges that have ended unless ``is_whole``."""
        instructions = self._instructions
        if is_whole and (self._sender.kept_back or not instructions.cut_begins()):
            # Parts of a queue must reach the driver in order, so the rest also comes with the job.
            if number is not None:
                instructions.nothing_to_cut(number)
            return
        if is_whole and self.own is not None:
            self.own.begins()
        # In this order: a range that ends meanwhile must not be in the part with its end before its cut.
        with self._place.leaving() as part:
            if is_whole:
                add_cut(part, instructions.cut_ranges(), instructions)
            if not part.is_empty:
                self._sender.hand_over(part, number)
                return
            part.abandon()
            if number is not None:
                instructions.nothing_to_cut(number)

    def _give_up(self, consumed: Consumed) -> None:
        # The growing part may hold earlier results of the queue, which must reach the driver first.
        is_begun = self.own is not None or consumed.ack.queue in self._going_on
        leaving = self._place.leaving() if is_begun else undone_by_errors(self._place.new_part())
        with leaving as part:
            _add_ended(part, consumed, self._instructions)
            if part.is_empty:
                part.abandon()
            else:
                self._sender.hand_over(part, None)


class OwnCommits:
    """The commits that a task makes by itself."""

    def __init__(
        self,
        place: GrowingPlace,
        instructions: TaskControl,
        thread: CutThread,
        clock: Clock,
        send_ended: Callable[[], None],
    ) -> None:
        """Prepare; ``send_ended`` sends the driver results of ranges that have ended."""
        self._place = place
        self._instructions = instructions
        self._thread = thread
        self._clock = clock
        self._send_ended = send_ended
        self._guard = threading.Lock()
        self._times = CommitTimes()
        """When the task commits; guarded."""
        thread.due_s = self._due_s
        thread.when_due = self._commit

    def settled(self) -> None:
        """Note that there are results to commit."""
        with self._guard:
            is_new = self._times.settled(self._clock.monotonic_s())
        if is_new:
            self._thread.begin(look_again)

    def rests(self) -> None:
        """Note that the task has nothing to deliver."""
        with self._guard:
            is_new = self._times.rests(self._clock.monotonic_s())
        if is_new:
            self._thread.begin(look_again)

    def begin(self) -> bool:
        """Begin a commit that is not due."""
        return self._thread.begin(self._commit)

    def begins(self) -> None:
        """Note that a cut or a commit takes everything that is settled."""
        with self._guard:
            self._times.begins()

    def _due_s(self) -> float:
        with self._guard:
            return self._times.due_s

    def _commit(self) -> None:
        """Commit everything that is settled; the driver gets its acks later."""
        instructions = self._instructions
        self.begins()
        instructions.rows_taken()
        # Nobody adds to the part meanwhile: ranges seldom end, and a transaction takes milliseconds.
        with self._place.part() as part:
            add_cut(part, instructions.cut_ranges(), instructions)
            refused = part.commit()
            ends = list(part.ends)
        if refused or any(instructions.fate(queue) is Fate.HANDED_OVER for queue in ends):
            # The driver is to know it now.
            self._send_ended()


def add_cut(part: GrowingPart, cut: RangeCuts, instructions: TaskControl) -> None:
    """Add what a cut has taken of all ranges."""
    for consumed in cut.ended:
        _add_ended(part, consumed, instructions)
    going_on = [each for each in cut.going_on if instructions.fate(each.ack.queue) is not Fate.DROPPED]
    together = CutTogether(tuple(going_on))
    part.add(together.batches(), together.acks, is_end=False)


def _add_ended(part: GrowingPart, consumed: Consumed, instructions: TaskControl) -> None:
    """Add the result of a range that has ended, except if it stays for another part or does not count."""
    queue = consumed.ack.queue
    fate = instructions.fate(queue)
    is_rest = consumed.ack.counts or part.has(queue)
    if fate is Fate.DROPPED or (fate is Fate.HANDED_OVER and not is_rest):
        instructions.released(queue)
    else:
        part.add(consumed.batches(), [consumed.ack])
