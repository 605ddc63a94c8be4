"""Threads that make the events of a schedule: one for each application, server or table that they happen to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tests.applications.schedule import DISTURBING, Event, Kind
from tests.applications.slot import Slot


class EventThreads:
    """Makes events, those of one target one after the other.

    An application is disturbed only once it is a member. Its later events, and those of a target whose event
    had to wait, are delayed accordingly.
    """

    def __init__(
        self,
        slots: Mapping[str, Slot],
        others: Iterable[str],
        *,
        do: Callable[[Event], None],
        say: Callable[[str], None],
    ) -> None:
        """Start the clock of the events; :meth:`begin` starts it again.

        Args:
            slots: Places of applications, by name.
            others: Targets besides applications.
            do: Makes an event of one of the ``others``.
            say: Prints what happens.
        """
        self._slots = slots
        self._do = do
        self._say = say
        self._threads = {
            target: ThreadPoolExecutor(1, thread_name_prefix=target) for target in (*slots, *others)
        }
        self._late_s = dict.fromkeys(self._threads, 0.0)
        """Seconds by which each target is behind its schedule."""
        self._done: list[Future[None]] = []
        self._began_s = time.monotonic()

    def begin(self) -> None:
        """Begin the schedule now."""
        self._began_s = time.monotonic()

    @property
    def now_s(self) -> float:
        """Seconds since the schedule began."""
        return time.monotonic() - self._began_s

    @property
    def longest_delay_s(self) -> float:
        """Seconds by which the slowest application is behind its schedule."""
        return max(self._late_s[name] for name in self._slots)

    def make(self, event: Event) -> None:
        """Have an event made when it is due."""
        self.submit(event.target, self._make, event)

    def submit(self, target: str, work: Callable[..., None], *arguments: Any) -> None:
        """Have work done on the thread of ``target``, after what was submitted before."""
        self._done.append(self._threads[target].submit(work, *arguments))

    def look(self) -> None:
        """Have each application that ended by itself reported, and started again."""
        for name, slot in self._slots.items():
            self.submit(name, slot.look)
        self._done = [done for done in self._done if not done.done() or done.exception() is not None]

    def wait(self, target: str, until: Callable[[], object]) -> None:
        """Wait until a call returns; the target's later events are delayed by as much."""
        asked_s = time.monotonic()
        until()
        self._late_s[target] += time.monotonic() - asked_s

    def errors(self) -> list[BaseException]:
        """Wait until all is done; return the errors of what failed."""
        return [error for done in self._done if (error := done.exception()) is not None]

    def close(self) -> None:
        """Begin nothing more, and wait for what is under way."""
        for thread in self._threads.values():
            thread.shutdown(cancel_futures=True)

    def _make(self, event: Event) -> None:
        left_s = event.at_s + self._late_s[event.target] - self.now_s
        if left_s > 0:
            time.sleep(left_s)
        if event.kind in DISTURBING:
            self.wait(event.target, self._slots[event.target].await_member)
        how = ", as the same" if event.same_name and event.kind is Kind.JOIN else ""
        self._say(f"{event.target}: {event.kind}{how}")
        if event.target in self._slots:
            self._slots[event.target].do(event)
        else:
            self._do(event)
