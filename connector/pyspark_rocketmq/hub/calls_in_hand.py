"""Decides which queues of a task in real time end first when the end of their batch is announced.

A task ends only when its listener calls have ended, and the next batch begins only when all tasks have ended.
If every queue stopped with its running call, one slow call would keep all queues of the batch waiting. So the
driver announces the end before it ends the tasks. A queue *ends* when the task begins no further call with
its messages. A call is *in hand* if it was running at the announcement.

Rule 1: a queue ends with its call in hand if that call lasts for 0.1 s or longer.
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
    """Decides which queues of a task end, and when, after a batch's end was announced. Not thread-safe.

    Create one object at each announcement. It is over when the listener calls that were running at that
    moment have ended.
    """

    def __init__(self, now_s: float) -> None:
        self._began_s = now_s
        self._lasted_s = 0.0
        self.is_over = False
        """Whether the last :meth:`look` found no call that was running at the announcement already."""

    def look(self, calls: Mapping[MessageQueue, float], now_s: float) -> frozenset[MessageQueue]:
        """Return the queues that must begin no call after the running one; also set :attr:`is_over`.

        These are the queues whose call was already running at the announcement, and has lasted for 0.1 s or
        longer.

        Args:
            calls: For each queue with a running call, how long its oldest one has lasted, in seconds.
            now_s: The monotonic time just before ``calls`` was made.
        """
        self._lasted_s = lasted_s = now_s - self._began_s
        # A call that began within a millisecond after the announcement counts too.
        awaited = {queue: for_s for queue, for_s in calls.items() if for_s >= lasted_s - _SHORTEST_PAUSE_S}
        self.is_over = not awaited
        return frozenset(queue for queue, for_s in awaited.items() if for_s >= _SLOW_S)

    @property
    def pause_s(self) -> float:
        """Time until the next :meth:`look`, in seconds: as long as the wait so far, within 1 to 10 ms."""
        return min(max(self._lasted_s, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)


class CallsInHand:
    """Watches a task's listener calls once the end of its batch is announced (real time).

    It waits for the calls that were running at the announcement, and ends the queues whose calls take long.
    """

    def __init__(
        self,
        is_ended: Callable[[], bool],
        end_queues: Callable[[frozenset[MessageQueue]], None],
        over: Callable[[], None],
    ) -> None:
        """Prepare without watching; set :attr:`lasting` before :meth:`watch`.

        Args:
            is_ended: Returns whether the driver has ended the task.
            end_queues: Makes queues begin no call after the running one. It is called on any thread, perhaps
                several times with the same queues.
            over: Called when no call is left that was running at the announcement, or the driver has ended
                the task; called on any thread.
        """
        self.lasting: Callable[[], Mapping[MessageQueue, float]] = dict
        """Function that returns how long the oldest running call of each queue has lasted, in seconds; queues
        without a call are missing."""
        self._is_ended, self._end_queues, self._over = is_ended, end_queues, over
        self._guard = threading.Lock()
        self._is_watched = False

    def watch(self) -> None:
        """Begin to wait, on a new thread, for the calls that are running now; return immediately.

        The thread ends the queues whose calls take long. Do nothing if such a thread is still waiting.
        """
        with self._guard:
            is_watched, self._is_watched = self._is_watched, True
        if not is_watched:
            threading.Thread(target=self._await_end, name="rocketmq-batch-end", daemon=True).start()

    def _await_end(self) -> None:
        end, pause = AnnouncedEnd(time.monotonic()), threading.Event()
        while not self.look(end, time.monotonic()):
            pause.wait(end.pause_s)

    def look(self, end: AnnouncedEnd, now_s: float) -> bool:
        """End the queues whose calls take long, as ``end`` decides; return whether the wait is over.

        The wait is over when no call is left that was running at the announcement, or when the driver has
        ended the task. In that case this calls the function ``over``.
        """
        if not self._is_ended():
            self._end_queues(end.look(self.lasting(), now_s))
            if not end.is_over:
                return False
        with self._guard:
            self._is_watched = False
        self._over()
        return True
