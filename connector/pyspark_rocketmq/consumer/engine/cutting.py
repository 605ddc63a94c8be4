"""Cuts of a task: results that the task hands over before its end, and commits that the task itself makes.

A task collects its results in one *part*, which grows. Results are *settled* if they may be committed: their
messages need no further delivery. Parts leave the task early for two reasons:

* A queue is given up: the result of its range leaves in a separate part. If the range has ended already, the
  growing part contains the result, and leaves.
* The driver asks for a *cut*: the growing part leaves, with the settled results of the ranges that go on,
  even while the listener is called. A new part begins to grow.

So a queue may have several parts, and they must reach the driver in order. A part cannot be handed over if
the connection is lost or the part is too long. It then comes with the job's result, and so do all later parts
of its queues. In real time the batch is ended for this reason. Rows that cross Spark between the engine and
the sink's writer (``orderlyEngine=state``) cannot be cut.

If the sink's writer is ``CommitsInTask``, the task itself commits its rows, at the times that
:mod:`~pyspark_rocketmq.consume.task_commits` decides. The growing part then collects the acks of several
such commits, and leaves like any other part. If a queue is given up, the whole growing part leaves.

One thread, ``rocketmq-cut``, writes and hands over all early parts, one after the other. The growing part is
in a *place*, from which one thread at a time takes it. No lock is held while files are written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from math import inf
from queue import Empty, SimpleQueue

from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.consume.task_commits import CommitTimes
from pyspark_rocketmq.consumer.engine.output import Consumed, CutTogether
from pyspark_rocketmq.consumer.engine.parts import GrowingPart, GrowingPlace, PartSender, undone_by_errors
from pyspark_rocketmq.consumer.engine.range import RangeCuts
from pyspark_rocketmq.hub.task_end import Fate, TaskControl
from pyspark_rocketmq.model import MessageQueue

Work = Callable[[], None]


class CutThread:
    """The thread ``rocketmq-cut``: starts with the first piece of work, and does all work in order."""

    def __init__(self, clock: Clock, *, failed: Callable[[], None], over: Callable[[], None]) -> None:
        """Prepare; the thread calls ``failed`` after an error in its work, and ``over`` at its end."""
        self._clock = clock
        self._failed = failed
        self._over = over
        self._guard = threading.Lock()
        """Ensures that no work is accepted after the end; the work itself is not done under it."""
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._is_closed = False
        self._is_abandoned = False
        self.thread: threading.Thread | None = None
        self.failure: BaseException | None = None
        """Error of the work, which the task's own thread raises; None if there was none."""
        self.due_s: Callable[[], float] = lambda: inf
        """Returns the monotonic time at which the thread does ``when_due`` without being asked."""
        self.when_due: Work = look_again

    def begin(self, work: Work) -> bool:
        """Have the thread do ``work`` after its earlier work; return False if it accepts no more work."""
        with self._guard:
            if self._is_closed:
                return False
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="rocketmq-cut", daemon=True)
                self.thread.start()
            self._work.put(work)
            return True

    def close(self) -> None:
        """Accept no more work; what was accepted is still done, unless earlier work fails."""
        with self._guard:
            self._is_closed = True
            self._work.put(None)

    def join(self) -> None:
        """Wait until the thread has ended.

        It ends after :meth:`close` or :meth:`abandon`, or when a piece of work raises.
        """
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
    """Do nothing: as a piece of work this wakes the thread, which then calls ``due_s`` for the new time."""


class TaskCuts:
    """Sends parts of a task's result to the driver before the task ends.

    It does this when the driver asks for a *cut* (the results of all ranges so far), when too many rows wait,
    and when queues are given up.
    """

    def __init__(
        self, place: GrowingPlace, sender: PartSender, instructions: TaskControl, thread: CutThread
    ) -> None:
        self._place = place
        self._sender = sender
        self._instructions = instructions
        self._thread = thread
        self.own: OwnCommits | None = None
        """The commits that the task itself makes; None if only the driver commits."""
        self._noted: set[MessageQueue] = set()
        """Queues of which the growing part may have results."""

    def note(self, queues: Collection[MessageQueue]) -> None:
        """Note that the growing part, which is the next to be sent, gets results of these queues.

        Further results of them may follow: the range goes on, or a reset arrives after its end.
        """
        self._noted.update(queues)

    def begin(self, number: int | None) -> bool:
        """Have the cut thread send the growing part to the driver.

        With ``number``, that of the driver's request (cut), the settled results of all ranges are added
        first. Without it a queue is given up, and the part leaves as it is. Return False if the cut thread
        accepts no more work. This method does not wait for storage, because the connection's thread calls it,
        too.
        """
        return self._thread.begin(lambda: self._cut(number, is_whole=number is not None))

    def begin_own(self) -> bool:
        """Have the cut thread send the settled results of all ranges, although the driver has not asked.

        Return False if the cut thread accepts no more work.
        """
        return self._thread.begin(lambda: self._cut(None, is_whole=True))

    def take(self, consumed: Consumed) -> bool:
        """Have the cut thread send the driver the result of a range whose queue the task gives up.

        Return False, and leave the result with the caller, if the queue is not given up or the cut thread
        accepts no more work. Any thread may call this.
        """
        if self._instructions.fate(consumed.ack.queue) is Fate.KEPT:
            return False
        return self._thread.begin(lambda: self._give_up(consumed))

    def send_ended(self) -> None:
        """Send the growing part as it is, with the results of ranges that have ended.

        Only the cut thread calls this.
        """
        self._cut(None, is_whole=False)

    def _cut(self, number: int | None, *, is_whole: bool) -> None:
        """Send the growing part to the driver; if ``is_whole``, add first all ranges' settled results."""
        instructions = self._instructions
        if is_whole and (self._sender.kept_back or not instructions.cut_begins()):
            # Parts of a queue must reach the driver in order, so the rest also comes with the job.
            if number is not None:
                instructions.nothing_to_cut(number)
            return
        if is_whole and self.own is not None:
            self.own.begins()
        # Take the part first, then cut the ranges: a range that ends after its cut adds its end to the next
        # part.
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
        # The growing part may have earlier results of the queue, which must not reach the driver later. Then
        # it leaves with the end of the range.
        is_begun = self.own is not None or consumed.ack.queue in self._noted
        leaving = self._place.leaving() if is_begun else undone_by_errors(self._place.new_part())
        is_rest = self._sender.keeps(consumed.ack.queue)
        with leaving as part:
            _add_ended(part, consumed, self._instructions, is_rest=is_rest)
            if part.is_empty:
                part.abandon()
            else:
                self._sender.hand_over(part, None)


class OwnCommits:
    """The commits that a task itself makes into its sink: decides when, and has the cut thread make them."""

    def __init__(
        self,
        place: GrowingPlace,
        instructions: TaskControl,
        thread: CutThread,
        clock: Clock,
        send_ended: Callable[[], None],
    ) -> None:
        """Prepare; ``send_ended`` sends the driver the part that grows, with results of ended ranges."""
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
        """Note that there are settled results: a commit begins in 5 ms, or when the running one has ended."""
        with self._guard:
            is_new = self._times.settled(self._clock.monotonic_s())
        if is_new:
            self._thread.begin(look_again)

    def rests(self) -> None:
        """Note that the task has nothing to deliver: a commit that waits begins now."""
        with self._guard:
            is_new = self._times.rests(self._clock.monotonic_s())
        if is_new:
            self._thread.begin(look_again)

    def begin(self) -> bool:
        """Begin a commit now, even if none is due; return False if the cut thread accepts no more work."""
        return self._thread.begin(self._commit)

    def begins(self) -> None:
        """Note that a cut or a commit now takes everything that is settled, so that no commit is due."""
        with self._guard:
            self._times.begins()

    def _due_s(self) -> float:
        with self._guard:
            return self._times.due_s

    def _commit(self) -> None:
        """Commit everything that is settled; the driver gets its acks later."""
        instructions = self._instructions
        self.begins()
        # Keep the part from other threads meanwhile: a commit takes milliseconds, and ranges, which would add
        # to the part, seldom end.
        with self._place.part() as part:
            add_cut(part, instructions.cut_ranges(), instructions)
            refused = part.commit()
            ends = list(part.ends)
        if instructions.kept(ends) or refused:
            # Report refused and handed over queues to the driver now.
            self._send_ended()


def add_cut(part: GrowingPart, cut: RangeCuts, instructions: TaskControl) -> None:
    """Add to ``part`` the results that a cut has taken from a task's ranges, except those to be dropped."""
    for consumed in cut.ended:
        _add_ended(part, consumed, instructions)
    going_on = [each for each in cut.going_on if instructions.fate(each.ack.queue) is not Fate.DROPPED]
    together = CutTogether(tuple(going_on))
    part.add(together.batches(), together.acks, is_end=False)


def _add_ended(
    part: GrowingPart, consumed: Consumed, instructions: TaskControl, *, is_rest: bool = False
) -> None:
    """Add to ``part`` the result of a range that has ended.

    In two cases report the queue as released instead: if the result is to be dropped, or if the queue is
    given up and has nothing to commit. ``is_rest``: an earlier result of the queue is kept back, so the queue
    has something to commit.
    """
    queue = consumed.ack.queue
    fate = instructions.fate(queue)
    is_rest = is_rest or consumed.ack.counts or part.has(queue)
    if fate is Fate.DROPPED or (fate is Fate.HANDED_OVER and not is_rest):
        instructions.released(queue)
    else:
        part.add(consumed.batches(), [consumed.ack])
