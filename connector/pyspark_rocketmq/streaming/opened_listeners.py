"""Listeners that are opened: once per process, however many tasks use them, and closed when none has for a while.

Spark keeps a Python worker for the next task and ends one that was idle for a minute, without letting it finish
anything. So a listener that nobody has used for half a minute is closed here, before that; it is opened again when it
is needed again. One whose process is killed is not closed, which nothing could change.
"""

from __future__ import annotations

import atexit
import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
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

    def __init__(self, listener: Any) -> None:
        self.listener = listener
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
    try:
        opened = _take(key) or _open(key, listener, context)
    except Exception as error:  # noqa: BLE001 - its calls raise it
        yield NotOpened(error)
        return
    try:
        yield opened.listener.consume_message
    finally:
        _give_back(key, opened, idle_s)


def _take(key: str) -> _Opened | None:
    with _guard:
        opened = _opened.get(key)
        if opened is not None:
            opened.users += 1
            if opened.closing is not None:
                opened.closing.cancel()
        return opened


def _open(key: str, listener: Any, context: ListenerContext) -> _Opened:
    made = listener() if isinstance(listener, type) else listener
    if hasattr(made, "open"):
        _ended(partial(made.open, context), _OPEN_S)
    opened = _Opened(made)
    opened.users = 1
    with _guard:
        _opened[key] = opened
    return opened


def _give_back(key: str, opened: _Opened, idle_s: float) -> None:
    closing = threading.Timer(idle_s, _close_if_idle, (key, opened))
    closing.daemon = True
    with _guard:
        opened.users -= 1
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
    if not hasattr(opened.listener, "close"):
        return
    try:
        _ended(opened.listener.close, _CLOSE_S)
    except Exception:
        logger.exception("listener could not be closed type=%s", type(opened.listener).__name__)


@atexit.register
def _close_all() -> None:
    with _guard:
        left = list(_opened.values())
        _opened.clear()
    for opened in left:
        _close(opened)


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
