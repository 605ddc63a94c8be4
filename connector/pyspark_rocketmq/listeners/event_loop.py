"""The event loop on which this process's asynchronous listeners run.

One for all: what a listener has opened on it, such as a pool of connections, stays usable from batch to
batch. It runs in a daemon thread, because a call that never returns must not keep its worker process from
ending.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import select
import selectors
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

_running: asyncio.AbstractEventLoop | None = None
_guard = threading.Lock()
"""Over ``_running``."""
_ANSWER_S: Final = 1.0
"""How long a loop that nothing blocks may take to begin what it is asked for."""


def is_async(listener: object) -> bool:
    """Whether calling it gives something to await; a wrapper may say so itself."""
    if (said := getattr(listener, "is_async", None)) is not None:
        return bool(said)
    call = getattr(listener, "__call__", None)  # noqa: B004 - an instance's class may have an async one
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(call)


def listener_loop() -> asyncio.AbstractEventLoop:
    """The loop, running; started when it is first needed."""
    global _running  # noqa: PLW0603 - one per process is the point
    with _guard:
        if _running is None:
            _running = asyncio.SelectorEventLoop(_selector())
            threading.Thread(target=_running.run_forever, name="rocketmq-listener-loop", daemon=True).start()
        return _running


def leave_loop_if_blocked(loop: asyncio.AbstractEventLoop, patience_s: float) -> None:
    """Have the next call begin another loop, unless this one shows a sign of life within the time.

    Whoever waited in vain cannot tell from that alone: a process that stood still finds all its times over
    when it goes on, and what listeners have opened on a loop is of no use on another one.
    """
    global _running  # noqa: PLW0603
    with suppress(TimeoutError):
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(patience_s)
        return
    logger.error("an async listener blocks its event loop, which is left behind; await what takes time")
    with _guard:
        if _running is loop:
            _running = None


def run_on_loop(begin: Callable[[], Awaitable[ResultT]], timeout_s: float) -> ResultT:
    """Wait for what ``begin``, called on the loop, gives; from any thread but the loop's.

    Raises:
        TimeoutError: If it takes longer; it is cancelled.
    """

    async def run() -> ResultT:
        async with asyncio.timeout(timeout_s):
            return await begin()

    loop = listener_loop()
    future = asyncio.run_coroutine_threadsafe(run(), loop)
    try:
        # A little longer than the loop itself waits: it does not answer at all when something blocks it.
        return future.result(timeout_s + _ANSWER_S)
    except TimeoutError:
        if not future.done():
            leave_loop_if_blocked(loop, _ANSWER_S)
        if future.done():
            return future.result()  # it came while this process went on again
        raise


def _forget() -> None:
    """In a child of ``fork()``: the thread that runs the loop is the parent's."""
    global _running, _guard  # noqa: PLW0603 - a thread that is not there may hold it
    _guard = threading.Lock()
    _running = None


os.register_at_fork(after_in_child=_forget)


def _selector() -> selectors.BaseSelector:
    """The platform's best, with exact waits where that has none."""
    return _ExactEpoll() if hasattr(selectors, "EpollSelector") else selectors.DefaultSelector()


_LONG_S: Final = 0.1
"""Waits longer than this may be a millisecond too long."""
_MOST_FILES: Final = 1024
"""``FD_SETSIZE``: file numbers that ``select`` cannot take begin here."""


class _ExactEpoll(selectors.EpollSelector):
    """Waits as long as asked: ``epoll_wait`` rounds up to a whole millisecond, a fifth of a call of five.

    And calls whose waits are rounded end together, so that each waits for the others' turns, too.
    """

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """See ``selectors.BaseSelector.select``."""
        if timeout is not None and 0 < timeout < _LONG_S and self.fileno() < _MOST_FILES:
            # An epoll's own file can be waited for as any other.
            select.select([self.fileno()], (), (), timeout)
            timeout = 0
        return super().select(timeout)
