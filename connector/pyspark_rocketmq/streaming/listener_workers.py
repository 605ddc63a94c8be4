"""Where a task's concurrent listener calls run, and where messages are sent back meanwhile.

Whoever drives them waits in ``next_event`` for what has ended; nothing else of a run is touched by another thread.
Threads are daemons: a call that never returns must not keep its worker process from ending.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final, Protocol, cast

_SEND_BACK_THREADS: Final = 16
"""Deliveries whose failed messages are sent back at the same time."""
_LOOP_END_S: Final = 1.0
"""How long a loop may take to cancel what is left; one that a call blocks is left behind."""


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A listener call has returned or raised."""

    number: int
    """The delivery's."""
    status: object = None
    failure: BaseException | None = None


@dataclass(frozen=True, slots=True)
class SendBackEnded:
    """Sending a message back has ended."""

    index: int
    failure: BaseException | None = None


Event = CallEnded | SendBackEnded


class ListenerWorkers(Protocol):
    """What a run needs. Every call and every send-back that is begun ends in one event, unless it hangs."""

    def call(self, number: int, invoke: Callable[[], object]) -> None:
        """Begin a listener call."""
        ...

    def abandon(self, number: int) -> None:
        """Have a call end if that is possible: its messages are on their way back."""
        ...

    def send_back(self, indexes: Sequence[int], send: Callable[[int], None]) -> None:
        """Begin to send messages back, one after the other, so that they keep their order; an event for each."""
        ...

    def next_event(self, timeout_s: float | None) -> Event | None:
        """What has ended; None if nothing does within the time."""
        ...

    def close(self) -> None:
        """Let idle threads end; what hangs is left behind."""
        ...


def is_async(listener: Callable[..., object]) -> bool:
    """Whether calling it gives something to await."""
    call = getattr(listener, "__call__", None)  # noqa: B004 - an instance's class may have an async one
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(call)


def workers_for(listener: Callable[..., object], most_calls: int) -> ListenerWorkers:
    """An event loop for an ``async def`` listener, else threads; nothing is started yet."""
    return LoopWorkers() if is_async(listener) else ThreadWorkers(most_calls)


class _DaemonThreads:
    """At most so many threads, each started when there is work and none is idle."""

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0

    def run(self, work: Callable[[], None]) -> None:
        """Run ``work``, which must not raise; it waits its turn if all threads are busy."""
        if not self._idle.acquire(blocking=False) and self._started < self._most:
            self._started += 1
            name = f"{self._name}-{self._started}"
            threading.Thread(target=self._run, name=name, daemon=True).start()
        self._work.put(work)

    def close(self) -> None:
        for _ in range(self._started):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            self._idle.release()


class _Workers:
    """Events, and threads that send messages back."""

    def __init__(self) -> None:
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._senders = _DaemonThreads("rocketmq-send-back", _SEND_BACK_THREADS)

    def send_back(self, indexes: Sequence[int], send: Callable[[int], None]) -> None:
        def work() -> None:
            for index in indexes:
                try:
                    send(index)
                except BaseException as error:  # noqa: BLE001 - the run decides what it means
                    self._events.put(SendBackEnded(index, error))
                else:
                    self._events.put(SendBackEnded(index))

        self._senders.run(work)

    def next_event(self, timeout_s: float | None) -> Event | None:
        try:
            return self._events.get(timeout=timeout_s)
        except Empty:
            return None

    def close(self) -> None:
        self._senders.close()


class ThreadWorkers(_Workers):
    """A thread for each call."""

    def __init__(self, most_calls: int) -> None:
        super().__init__()
        self._callers = _DaemonThreads("rocketmq-listener", most_calls)

    def call(self, number: int, invoke: Callable[[], object]) -> None:
        """See :class:`ListenerWorkers`."""

        def work() -> None:
            try:
                status = invoke()
            except BaseException as error:  # noqa: BLE001 - the run decides what it means
                self._events.put(CallEnded(number, failure=error))
            else:
                self._events.put(CallEnded(number, status))

        self._callers.run(work)

    def abandon(self, number: int) -> None:
        """Nothing: a thread cannot be ended from outside."""

    def close(self) -> None:
        """See :class:`ListenerWorkers`."""
        super().close()
        self._callers.close()


class LoopWorkers(_Workers):
    """All calls on one event loop, in a thread of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """The loop's thread alone touches it."""

    def call(self, number: int, invoke: Callable[[], object]) -> None:
        """See :class:`ListenerWorkers`; ``invoke`` is called on the loop's thread and gives an awaitable."""
        loop = self._running_loop()
        loop.call_soon_threadsafe(self._begin, loop, number, invoke)

    def abandon(self, number: int) -> None:
        """Cancel the call; it ends where it awaits something."""
        self._running_loop().call_soon_threadsafe(self._cancel, number)

    def close(self) -> None:
        """See :class:`ListenerWorkers`."""
        super().close()
        if self._loop is not None and self._thread is not None:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop)
            self._thread.join(_LOOP_END_S)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=_run_loop, args=(self._loop,), name="rocketmq-listener-loop", daemon=True
            )
            self._thread.start()
        return self._loop

    def _begin(self, loop: asyncio.AbstractEventLoop, number: int, invoke: Callable[[], object]) -> None:
        self._tasks[number] = loop.create_task(self._await(number, invoke))

    def _cancel(self, number: int) -> None:
        if (task := self._tasks.get(number)) is not None:
            task.cancel()

    async def _await(self, number: int, invoke: Callable[[], object]) -> None:
        try:
            status = await cast("Awaitable[object]", invoke())
        except BaseException as error:  # noqa: BLE001 - the run decides what it means
            self._events.put(CallEnded(number, failure=error))
        else:
            self._events.put(CallEnded(number, status))
        finally:
            del self._tasks[number]

    async def _end(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        asyncio.get_running_loop().stop()


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()
