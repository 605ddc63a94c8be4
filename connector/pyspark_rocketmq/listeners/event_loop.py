"""The event loop on which this process's asynchronous listeners run.

One loop per process, so that a listener's connection pool stays usable from batch to batch. It runs in a
daemon thread: a call that never returns must not keep its worker process from ending.
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
"""Lock of ``_running``."""
_ANSWER_S: Final = 1.0
"""Time within which an unblocked loop begins a call, in seconds."""

_LONG_S: Final = 0.1
"""Shortest wait, in seconds, that may be rounded up to whole milliseconds."""
_MOST_FILES: Final = 1024
"""``FD_SETSIZE``: ``select`` accepts only smaller file numbers."""


def is_async(listener: object) -> bool:
    """Return whether the listener is an ``async def`` or has an asynchronous ``__call__``.

    If the listener has an attribute ``is_async``, as a wrapper may have, return its value.
    """
    if (declared := getattr(listener, "is_async", None)) is not None:
        return bool(declared)
    call = getattr(listener, "__call__", None)  # noqa: B004 - an instance's class may have an async one
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(call)


def listener_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this process; the first call starts it in a thread."""
    global _running  # noqa: PLW0603 - one per process is the point
    with _guard:
        if _running is None:
            _running = asyncio.SelectorEventLoop(_selector())
            threading.Thread(target=_running.run_forever, name="rocketmq-listener-loop", daemon=True).start()
        return _running


def leave_loop_if_blocked(loop: asyncio.AbstractEventLoop, patience_s: float) -> None:
    """Give up the event loop if it does not respond within ``patience_s``; the next call starts a new one.

    The caller's time-out does not prove that the loop is blocked: after a pause of the process, all time-outs
    have expired. The loop gets this second chance because connections that were opened on it are useless on
    another loop.
    """
    global _running  # noqa: PLW0603
    with suppress(TimeoutError):
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(patience_s)
        return
    logger.error(
        "an async listener blocks its event loop, so a new loop replaces it: await whatever takes time"
    )
    with _guard:
        if _running is loop:
            _running = None


def run_on_loop(begin: Callable[[], Awaitable[ResultT]], timeout_s: float) -> ResultT:
    """Call and await ``begin`` on the process's event loop; wait for its result, and return it.

    This may be called from any thread except the loop's.

    Raises:
        TimeoutError: If the call takes longer than ``timeout_s``. The call is cancelled then; if it blocks
            the loop, a new loop replaces that one.
        BaseException: The error that ``begin`` raises.
    """

    async def run() -> ResultT:
        async with asyncio.timeout(timeout_s):
            return await begin()

    loop = listener_loop()
    future = asyncio.run_coroutine_threadsafe(run(), loop)
    try:
        # Wait longer than the loop does, which cancels the call itself unless it is blocked.
        return future.result(timeout_s + _ANSWER_S)
    except TimeoutError:
        if not future.done():
            leave_loop_if_blocked(loop, _ANSWER_S)
        if future.done():
            return future.result()  # it arrived after a pause of this process
        raise


def _forget() -> None:
    """Forget the loop and renew the lock in a child of ``fork()``, which lacks the parent's threads."""
    global _running, _guard  # noqa: PLW0603
    _guard = threading.Lock()
    _running = None


os.register_at_fork(after_in_child=_forget)


def _selector() -> selectors.BaseSelector:
    return _ExactEpoll() if hasattr(selectors, "EpollSelector") else selectors.DefaultSelector()


class _ExactEpoll(selectors.EpollSelector):
    """Makes waits below 0.1 s exact; ``epoll_wait`` rounds them up to whole milliseconds.

    Rounding can make a call of 5 ms a fifth longer. It also lets several waits end at the same moment, and
    then their calls wait for the loop's one thread.
    """

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for a registered file, at most ``timeout`` seconds; return the files that are ready."""
        if timeout is not None and 0 < timeout < _LONG_S and self.fileno() < _MOST_FILES:
            # The file of an epoll can itself be waited for.
            select.select([self.fileno()], (), (), timeout)
            timeout = 0
        return super().select(timeout)
