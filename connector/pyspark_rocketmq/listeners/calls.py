"""Runs the calls of concurrent listeners, on threads or on an event loop.

Threads are daemons: a call that never returns must not keep its worker process from ending.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final, cast

from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.consume.concurrent import Answer, answer_of, answer_of_failure
from pyspark_rocketmq.errors import SchemaRegistryDown
from pyspark_rocketmq.listeners.context import (
    ConsumeConcurrentlyContext,
    ConsumeHooks,
    ConsumeMessageContext,
    MessageListenerConcurrently,
)
from pyspark_rocketmq.listeners.event_loop import is_async, leave_loop_if_blocked, listener_loop
from pyspark_rocketmq.model import ConsumeConcurrentlyStatus, MessageExt, ReturnType

_SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
_LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER
_SEND_BACK_THREADS: Final = 16
"""Maximum number of a range's threads that send messages back; each has the messages of one delivery."""
_LOOP_END_S: Final = 1.0
"""Time in which a range's cancelled calls must end, in seconds. If they block the event loop for three times
this time, a new loop replaces it."""
Settling = bool | Awaitable[bool]
"""Result of the function ``invoke`` of :meth:`ListenerWorkers.call`, which calls the listener.

True: the function has also processed the outcome, so that no :class:`CallEnded` follows. For an asynchronous
listener the function returns an awaitable of this."""


class ListenerCall:
    """A delivery to a concurrent listener: messages, context and, after a ``run`` method, the outcome."""

    def __init__(
        self, messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext, *, timeout_s: float
    ) -> None:
        self.messages = messages
        self.context = context
        self.answer: Answer | None = None
        """The listener's answer; None until the call ends, and after an exception that ends the process."""
        self.failure: BaseException | None = None
        """Exception that the listener raised; None without one, and after one that ends the process."""
        self.began_s: float | None = None
        """Monotonic second at which the call began; None before it begins and after it ends."""
        self.lasted_s = 0.0
        self._timeout_s = timeout_s

    @property
    def is_all_done(self) -> bool:
        """Whether the call has ended, has acknowledged all messages, and has no problem to report."""
        answer = self.answer
        return answer is not None and answer.acknowledged == len(self.messages) and answer.problem is None

    def run(self, listener: MessageListenerConcurrently, hooks: ConsumeHooks, clock: Clock) -> None:
        """Call a listener that returns its answer, and keep the answer or the exception in this object.

        Raises:
            BaseException: Only an error that ends the process: one that is neither an ``Exception`` nor a
                cancellation.
        """
        seen, began_s = self._begin(hooks, clock)
        answer: object = None
        try:
            answer = listener(self.context.follow(self.messages), self.context)
        except (Exception, asyncio.CancelledError) as failure:  # noqa: BLE001 - the run decides
            self.failure = failure
        self._end(answer, seen, began_s, hooks, clock)

    async def run_async(
        self, listener: MessageListenerConcurrently, hooks: ConsumeHooks, clock: Clock
    ) -> None:
        """Call and await an asynchronous listener; raise only errors that end the process, as :meth:`run`."""
        seen, began_s = self._begin(hooks, clock)
        answer: object = None
        try:
            answer = await cast(
                "Awaitable[object]", listener(self.context.follow(self.messages), self.context)
            )
        except (Exception, asyncio.CancelledError) as failure:  # noqa: BLE001 - the run decides
            self.failure = failure
        self._end(answer, seen, began_s, hooks, clock)

    def _begin(self, hooks: ConsumeHooks, clock: Clock) -> tuple[ConsumeMessageContext | None, float]:
        """Call the hooks; return their context (None without hooks) and the monotonic second of the start.

        Source: RocketMQ 5.3.3 ``ConsumeMessageConcurrentlyService.ConsumeRequest.run``.
        """
        seen = hooks.before(self.messages[0].message_queue, self.messages) if hooks else None
        self.began_s = clock.monotonic_s()
        return seen, self.began_s

    def _end(
        self,
        status: object,
        seen: ConsumeMessageContext | None,
        began_s: float,
        hooks: ConsumeHooks,
        clock: Clock,
    ) -> None:
        self.lasted_s = clock.monotonic_s() - began_s
        self.began_s = None
        delay_level = self.context.delay_level_when_next_consume
        self.answer = (
            answer_of(
                status, ack_index=self.context.ack_index, delay_level=delay_level, count=len(self.messages)
            )
            if self.failure is None
            else answer_of_failure(
                delay_level=delay_level, waits=isinstance(self.failure, SchemaRegistryDown)
            )
        )
        if seen is not None:
            is_success = self.answer.return_type is ReturnType.SUCCESS
            hooks.after(
                seen,
                status=_SUCCESS if is_success else _LATER,
                is_success=is_success,
                return_type=str(self.answer.ended_after(self.lasted_s, self._timeout_s)),
            )


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A listener call has returned or raised."""

    number: int
    """Number of the delivery, as given to ``ListenerWorkers.call``."""
    failure: BaseException | None = None
    """Error that ``invoke`` raised; None if it returned. ``ListenerCall`` has the errors of the listener."""


@dataclass(frozen=True, slots=True)
class SendBackEnded:
    """A message was sent back, or could not be sent back."""

    index: int
    """Index of the message, as given to ``ListenerWorkers.send_back``."""
    failure: BaseException | None = None
    """Error with which the sending failed; None if the message was sent back."""


Event = CallEnded | SendBackEnded


class DaemonThreads:
    """Runs work on at most ``most`` threads, each started when there is work and no thread is idle.

    Any thread may call ``run``: a listener's thread also begins the next call of its range.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle: deque[None] = deque()
        """One item per idle thread. This is faster than a semaphore, which is written in Python."""
        self._lock = threading.Lock()
        self._started = 0
        """Number of threads started; changed under the lock."""

    def run(self, work: Callable[[], None]) -> None:
        """Run ``work``, which must not raise, once a thread is free."""
        try:
            self._idle.pop()
        except IndexError:
            self._start()
        self._work.put(work)

    def _start(self) -> None:
        """Start a thread, unless ``most`` threads were already started."""
        with self._lock:
            if self._started >= self._most:
                return
            self._started += 1
            name = f"{self._name}-{self._started}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def close(self) -> None:
        """End the threads: idle ones now, the others after the work given so far; return immediately."""
        for _ in range(self._started):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            self._idle.append(None)


class ListenerWorkers:
    """Runs the calls of a concurrent listener for one queue's range of offsets, and sends messages back.

    ``next_event`` returns one event for each call that ends and for each message that was to be sent back. A
    call that hangs, or whose ``invoke`` returned True (see :meth:`call`), has no event.
    """

    def __init__(self) -> None:
        self._events: SimpleQueue[Event | None] = SimpleQueue()
        self._senders = DaemonThreads("rocketmq-send-back", _SEND_BACK_THREADS)

    def call(self, number: int, invoke: Callable[[], Settling]) -> None:
        """Begin ``invoke``, which calls the listener; a ``CallEnded`` follows unless ``invoke`` returns True.

        ``number``: number of the delivery, which is repeated in the event.
        """
        raise NotImplementedError

    def abandon(self, number: int) -> None:
        """Cancel a call if possible, because its messages are being sent back."""
        raise NotImplementedError

    def send_back(self, indexes: Sequence[int], send: Callable[[int], None]) -> None:
        """Begin to send messages back one by one, in order; a ``SendBackEnded`` follows for each."""

        def work() -> None:
            for index in indexes:
                try:
                    send(index)
                except BaseException as error:  # noqa: BLE001 - the run decides
                    self._events.put(SendBackEnded(index, error))
                else:
                    self._events.put(SendBackEnded(index))

        self._senders.run(work)

    def next_event(self, timeout_s: float | None) -> Event | None:
        """Wait for the next event, and return it; None if none comes in time, or after :meth:`wake`."""
        try:
            return self._events.get(timeout=timeout_s)
        except Empty:
            return None

    def wake(self) -> None:
        """End the current wait for an event; if nobody waits, the next wait. Any thread may call this."""
        self._events.put(None)

    def close(self) -> None:
        """End the threads that send messages back, once they are idle; do not wait for calls that hang."""
        self._senders.close()


class ThreadWorkers(ListenerWorkers):
    """Runs each call on one of the threads that several ranges share."""

    def __init__(self, threads: DaemonThreads) -> None:
        super().__init__()
        self._callers = threads

    def call(self, number: int, invoke: Callable[[], Settling]) -> None:
        """Begin ``invoke`` on a thread; a ``CallEnded`` follows unless ``invoke`` returns True."""

        def work() -> None:
            try:
                is_settled = invoke()
            except BaseException as error:  # noqa: BLE001 - the run decides
                self._events.put(CallEnded(number, error))
            else:
                if not is_settled:
                    self._events.put(CallEnded(number))

        self._callers.run(work)

    def abandon(self, number: int) -> None:
        """Do nothing: a thread cannot be cancelled."""


class LoopWorkers(ListenerWorkers):
    """Runs all calls on the process's event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """Calls that have not ended; changed only by the loop's thread."""
        self._wanted: deque[tuple[int, Callable[[], Settling]]] = deque()
        """Calls that the loop must begin."""
        self._is_woken = False
        """Whether the loop was woken to begin the wanted calls. One wake-up serves several, since it takes
        longer than beginning a call."""

    def call(self, number: int, invoke: Callable[[], Settling]) -> None:
        """Begin ``invoke`` on the event loop's thread, and await what it returns.

        A ``CallEnded`` follows unless the awaited result is True.
        """
        if self._loop is None:
            self._loop = listener_loop()
        if _running_loop() is self._loop:
            self._begin(self._loop, number, invoke)
            return
        self._wanted.append((number, invoke))
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._begin_wanted, self._loop)

    def abandon(self, number: int) -> None:
        """Cancel the call; it ends at its next await."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel, self._loop, number)

    def close(self) -> None:
        """Cancel the calls that have not ended, and wait for them; end the sending threads.

        The wait is at most 1 s, or 3 s if something blocks the event loop. If a call of this range may be the
        one that blocks the loop, a new loop replaces it.
        """
        super().close()
        if self._loop is None or not (self._tasks or self._wanted):
            return
        try:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(2 * _LOOP_END_S)
        except TimeoutError:
            # If no task is left here, calls of other ranges block the loop. Keep the loop: those calls need
            # it, and will end.
            if self._tasks:
                leave_loop_if_blocked(self._loop, _LOOP_END_S)

    def _begin_wanted(self, loop: asyncio.AbstractEventLoop) -> None:
        # Do this first, so that a call that is added later wakes the loop again.
        self._is_woken = False
        while self._wanted:
            self._begin(loop, *self._wanted.popleft())

    def _begin(self, loop: asyncio.AbstractEventLoop, number: int, invoke: Callable[[], Settling]) -> None:
        self._tasks[number] = loop.create_task(self._await(number, invoke))

    def _cancel(self, loop: asyncio.AbstractEventLoop, number: int) -> None:
        if (task := self._tasks.get(number)) is not None:
            # Not now: a task that is cancelled before its first step never runs, so the call would not end.
            loop.call_soon(task.cancel)

    async def _await(self, number: int, invoke: Callable[[], Settling]) -> None:
        try:
            is_settled = await cast("Awaitable[bool]", invoke())
        except BaseException as error:  # noqa: BLE001 - the run decides
            self._events.put(CallEnded(number, error))
        else:
            if not is_settled:
                self._events.put(CallEnded(number))
        finally:
            del self._tasks[number]

    async def _end(self) -> None:
        left = list(self._tasks.values())
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_LOOP_END_S)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running loop of this thread, if any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def workers_for(listener: object, threads: DaemonThreads) -> ListenerWorkers:
    """Return workers on the event loop for an ``async def`` listener, else on ``threads``.

    No thread and no loop starts before the first call.
    """
    return LoopWorkers() if is_async(listener) else ThreadWorkers(threads)
