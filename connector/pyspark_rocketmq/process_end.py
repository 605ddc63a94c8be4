"""Keeps a process from ending while its background threads are in native code, such as delta-rs.

When Python shuts down, a daemon thread that returns from native code is ended at that point; if that code is
delta-rs or Arrow, the process crashes (exit code -11). So Python's exit waits for calls that are under way
and for threads passed to :func:`await_at_end`. Meanwhile, no other thread begins a call.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from weakref import WeakSet

from pyspark_rocketmq.errors import RocketMQError

logger = logging.getLogger(__name__)

_WITHIN_S: Final = 30.0
"""Maximum time for which the end of the process waits for all calls and threads together."""
process_ends: Final = threading.Event()
"""Set when Python begins to exit, so that long background work stops at its next check."""
_heeding: Final[WeakSet[threading.Thread]] = WeakSet()
"""Threads that end by themselves when :data:`process_ends` is set."""
_changed: Final = threading.Condition()
_under_way: set[threading.Thread] = set()
"""Threads inside :func:`native_call`."""


def await_at_end(thread: threading.Thread) -> None:
    """Make the end of the process wait, for at most 30 s, for a daemon thread.

    The thread must end soon after :data:`process_ends` is set.
    """
    _heeding.add(thread)


@contextmanager
def native_call(what: str) -> Iterator[None]:
    """Protect calls of native code, such as delta-rs: put them into the ``with`` block.

    The end of the process waits, for at most 30 s, until the block is over.

    Args:
        what: Name of the work, for the error.

    Raises:
        RocketMQError: If the process is ending; the block is not begun. The main thread, and a thread that is
            already inside such a block, never get this error.
    """
    thread = threading.current_thread()
    with _changed:
        if thread in _under_way or thread is threading.main_thread():
            is_outermost = False
        elif process_ends.is_set():
            raise RocketMQError(f"This Python process is ending, so this was not begun: {what}.")
        else:
            _under_way.add(thread)
            is_outermost = True
    try:
        yield
    finally:
        if is_outermost:
            with _changed:
                _under_way.discard(thread)
                _changed.notify_all()


@atexit.register
def _await_calls_and_threads() -> None:
    end_s = time.monotonic() + _WITHIN_S
    with _changed:
        process_ends.set()
        if not _changed.wait_for(lambda: not _under_way, _WITHIN_S):
            names = ", ".join(sorted(thread.name for thread in _under_way))
            logger.warning("the process ends although calls of native code still run in threads %s", names)
    for thread in list(_heeding):
        thread.join(max(0.0, end_s - time.monotonic()))
