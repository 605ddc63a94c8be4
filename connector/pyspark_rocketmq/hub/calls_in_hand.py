"""Decides which queues of a task in real time wait when the end of their batch is announced.

A task ends only when its listener calls have ended, and the next batch begins only when all tasks have ended.
If every queue stopped with its running call, one slow call would keep all queues of the batch waiting. So the
driver announces the end before it ends the tasks. A queue *waits* while the task begins no further call with
its messages. A call is *in hand* if it was running at the announcement.

Rule 1: if a queue's call in hand lasts for 0.1 s or longer, the queue waits when that call has ended, for as
long as the call has lasted. If other calls in hand are about as long, the batch ends meanwhile. If another
one takes much longer, perhaps in another task, the queue goes on.
Rule 2: all other queues go on: when their call has ended, the next one begins.
Rule 3: the task reports when all calls in hand have ended. When all tasks have reported, the driver ends
them. A call that begins meanwhile may delay the end once more.

:class:`AnnouncedEnd` decides, without a clock; :class:`CallsInHand` looks at the calls on a thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from pyspark_rocketmq.model import MessageQueue

_SLOW_S: Final = 0.1
_SHORTEST_PAUSE_S: Final = 0.001
_LONGEST_PAUSE_S: Final = 0.01


class AnnouncedEnd:
    """Decides which queues of a task wait after their batch's end was announced. Not thread-safe.

    Create it at the announcement. It is over when the listener calls that were running at that moment have
    ended; queues may wait for longer.
    """

    def __init__(self, now_s: float) -> None:
        self._began_s = now_s
        self._lasted_s = 0.0
        self._wait_until_s: dict[MessageQueue, float] = {}
        self.is_over = False
        """Whether a :meth:`look` found no call that was running at the announcement already."""

    def look(self, calls: Mapping[MessageQueue, float], now_s: float) -> frozenset[MessageQueue]:
        """Return the queues that must begin no call for now, beside a running one; set :attr:`is_over`.

        These are the queues whose call was already running at the announcement, and has lasted for 0.1 s or
        longer. After this call, each waits for as long as the call has lasted.

        Args:
            calls: For each queue with a running call, how long its oldest one has lasted, in seconds.
            now_s: The monotonic time just before ``calls`` was made.
        """
        self._lasted_s = lasted_s = now_s - self._began_s
        # A call that began within a millisecond after the announcement counts too.
        awaited = {queue: for_s for queue, for_s in calls.items() if for_s >= lasted_s - _SHORTEST_PAUSE_S}
        self.is_over = self.is_over or not awaited
        until_s = self._wait_until_s
        until_s.update((queue, now_s + for_s) for queue, for_s in awaited.items() if for_s >= _SLOW_S)
        return frozenset(queue for queue, at_s in until_s.items() if now_s < at_s)

    @property
    def pause_s(self) -> float:
        """Time until the next :meth:`look`, in seconds: as long as the wait so far, within 1 to 10 ms."""
        return min(max(self._lasted_s, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)


class CallsInHand:
    """Watches a task's listener calls once the end of its batch is announced (real time).

    It waits for the calls that were running at the announcement, and has queues wait whose calls take long.
    """

    def __init__(
        self,
        is_ended: Callable[[], bool],
        wait: Callable[[frozenset[MessageQueue]], None],
        over: Callable[[], None],
    ) -> None:
        """Prepare without watching; set :attr:`lasting` before :meth:`watch`.

        Args:
            is_ended: Returns whether the driver has ended the task.
            wait: Makes these queues begin no call for now, and lets all others go on. It is called on any
                thread, perhaps several times with the same queues.
            over: Called when no call is left that was running at the announcement, or the driver has ended
                the task; called on any thread, and again at each later announcement.
        """
        self.lasting: Callable[[], Mapping[MessageQueue, float]] = dict
        """Function that returns how long the oldest running call of each queue has lasted, in seconds; queues
        without a call are missing."""
        self._is_ended, self._wait, self._over = is_ended, wait, over
        self._guard = threading.Lock()
        self._is_watched = self._is_left = False
        self._is_over = False
        """Whether the calls have ended that were running at the first announcement."""

    def watch(self) -> None:
        """Begin to wait, on a new thread, for the calls that are running now; return immediately.

        The thread has queues wait whose calls take long. A repeated announcement is of the same end: it
        starts no other thread, and is answered immediately if those calls have ended.
        """
        with self._guard:
            is_watched, self._is_watched = self._is_watched, True
            is_over = self._is_over
        if is_over:
            self._over()
        elif not is_watched:
            self.begin()

    def begin(self) -> None:
        """Begin to wait; :meth:`watch` calls this once."""
        threading.Thread(target=self._await_end, name="rocketmq-batch-end", daemon=True).start()

    def leave(self) -> None:
        """Note that the task is over: no call counts as running any more, even if one has not ended."""
        self._is_left = True

    def _await_end(self) -> None:
        end, pause = AnnouncedEnd(time.monotonic()), threading.Event()
        while not self.look(end, time.monotonic()):
            pause.wait(end.pause_s)

    def look(self, end: AnnouncedEnd, now_s: float) -> bool:
        """Have queues wait whose calls take long, as ``end`` decides; return whether to look no more.

        Once no call is left that was running at the announcement, or the driver has ended the task, call the
        function ``over``. There is nothing more to look for when no queue waits any longer, either.
        """
        is_over, waiting = True, frozenset[MessageQueue]()
        if not (self._is_left or self._is_ended()):
            waiting = end.look(self.lasting(), now_s)
            is_over = end.is_over
        self._wait(waiting)
        with self._guard:
            is_news = is_over and not self._is_over
            self._is_over = is_over
        if is_news:
            self._over()
        return is_over and not waiting
