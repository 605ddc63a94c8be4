"""Listeners that are opened: once per process, however many tasks use them, and closed when none has for a while.

Spark keeps a Python worker for the next task and ends one that was idle for a minute, without letting it finish
anything. So a listener that nobody has used for half a minute is closed here, before that; it is opened again when it
is needed again. One whose process is killed is not closed, which nothing could change.
"""

from __future__ import annotations

import atexit
import inspect
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn

from pyspark_rocketmq.errors import ListenerError
from pyspark_rocketmq.model import MessageExt
from pyspark_rocketmq.streaming.listener_loop import run_on_loop

logger = logging.getLogger(__name__)

IDLE_S: Final = 30.0
"""Half of what Spark gives an idle worker (``PythonWorkerFactory.IDLE_WORKER_TIMEOUT_NS``)."""
_OPEN_S: Final = 60.0
_CLOSE_S: Final = 10.0
"""How long an ``async def`` ``open`` or ``close`` may take."""

Call = Callable[[Sequence[MessageExt], Any], Any]
"""What engines call: messages and their context."""


@dataclass(frozen=True, slots=True)
class ListenerContext:
    """What ``open`` is told."""

    consumer_group: str
    """Empty where a query was composed without saying it."""


class _Opened:
    """A listener in use, or waiting for its next use."""

    def __init__(self) -> None:
        self.listener: Future[Any] = Future()
        """Known when it is open: who comes meanwhile waits, however long its ``open`` takes."""
        self.users = 0
        self.closing: threading.Timer | None = None


_opened: dict[str, _Opened] = {}
_guard = threading.Lock()
"""Over ``_opened`` and what is in it; nothing of a listener is called under it."""


@contextmanager
def lease_of_opened(
    key: str, listener: Any, context: ListenerContext, idle_s: float = IDLE_S
) -> Iterator[Call]:
    """The ``consume_message`` of the process's one opened object for ``key``.

    Args:
        key: Tells listeners apart.
        listener: To open if there is none yet: an object, or a class to make one of.
        context: For ``open``.
        idle_s: How long it stays open without a lease.

    One that cannot be opened is a :class:`NotOpened`: its queues wait, and it is tried again after that.
    """
    opened, is_new = _take(key)
    if is_new:
        _open(key, opened, listener, context)
    try:
        call = opened.listener.result().consume_message
    except Exception as error:  # noqa: BLE001 - its calls raise it
        yield NotOpened(error)
        return
    try:
        yield call
    finally:
        _give_back(key, opened, idle_s)


def _take(key: str) -> tuple[_Opened, bool]:
    """Become a user; whether this is the first one, who has to open it."""
    with _guard:
        found = _opened.get(key)
        opened = _opened[key] = found or _Opened()
        opened.users += 1
        if opened.closing is not None:
            opened.closing.cancel()
        return opened, found is None


def _open(key: str, opened: _Opened, listener: Any, context: ListenerContext) -> None:
    """Open it for all who wait; who comes after a failure tries again."""
    try:
        made = listener() if isinstance(listener, type) else listener
        if hasattr(made, "open"):
            _ended(partial(made.open, context), _OPEN_S)
    except BaseException as error:
        with _guard:
            del _opened[key]
        opened.listener.set_exception(error)
        if not isinstance(error, Exception):
            raise
    else:
        opened.listener.set_result(made)


def _give_back(key: str, opened: _Opened, idle_s: float) -> None:
    closing = threading.Timer(idle_s, _close_if_idle, (key, opened))
    closing.daemon = True
    with _guard:
        opened.users -= 1
        if opened.users:
            return
        opened.closing = closing
    closing.start()


def _close_if_idle(key: str, opened: _Opened) -> None:
    with _guard:
        # The timer may have gone off just before a new lease cancelled it.
        if opened.users or threading.current_thread() is not opened.closing:
            return
        _opened.pop(key, None)
    _close(opened)


def _close(opened: _Opened) -> None:
    listener = opened.listener.result()
    if not hasattr(listener, "close"):
        return
    try:
        _ended(listener.close, _CLOSE_S)
    except Exception:
        logger.exception("listener could not be closed type=%s", type(listener).__name__)


@atexit.register
def _close_all() -> None:
    with _guard:
        left = [opened for opened in _opened.values() if opened.listener.done()]
        _opened.clear()
    for opened in left:
        _close(opened)


def _forget() -> None:
    """In a child of ``fork()``: what is open is the parent's, and not the child's to close."""
    global _guard  # noqa: PLW0603 - a thread that is not there may hold it
    _guard = threading.Lock()
    _opened.clear()


os.register_at_fork(after_in_child=_forget)


def _ended(method: Callable[[], object], timeout_s: float) -> None:
    """Call ``open`` or ``close``, on the event loop if it is an ``async def``."""
    if inspect.iscoroutinefunction(method):
        run_on_loop(method, timeout_s)
    else:
        method()


class NotOpened:
    """In the place of a listener that could not be opened: its calls fail."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __call__(self, messages: Sequence[MessageExt], context: object) -> NoReturn:  # noqa: ARG002
        """Fail.

        Raises:
            ListenerError: In any case.
        """
        raise self.error()

    def error(self) -> ListenerError:
        """Why it has no answers."""
        error = ListenerError("The listener's open() failed, so its messages could not be consumed.")
        error.__cause__ = self._error
        return error
