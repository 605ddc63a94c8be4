"""What goes wrong in a listener, for the log of the process it runs in, and in one line for the driver."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

FIRST_PAUSE_S: Final = 10.0
LONGEST_PAUSE_S: Final = 600.0
MOST_KEYS: Final = 100
"""Different things remembered; of more, the one that has not happened for longest is forgotten, and told
anew."""


@dataclass(slots=True)
class _Told:
    at_s: float
    pause_s: float
    since: int = 0
    """How often it has happened since it was told."""


class Repeated:
    """Remembers what was told; times are monotonic seconds. Not thread-safe."""

    def __init__(self) -> None:
        self._told: OrderedDict[Hashable, _Told] = OrderedDict()

    def happened(self, key: Hashable, now_s: float) -> int | None:
        """Whether to tell it now.

        Returns:
            0: in full, it is new. A positive number: that it has happened so often since it was last told.
            None: not now.
        """
        told = self._told.get(key)
        if told is None:
            self._told[key] = _Told(now_s, FIRST_PAUSE_S)
            if len(self._told) > MOST_KEYS:
                self._told.popitem(last=False)
            return 0
        self._told.move_to_end(key)
        told.since += 1
        if now_s - told.at_s < told.pause_s:
            return None
        count, told.since = told.since, 0
        told.at_s, told.pause_s = now_s, min(2 * told.pause_s, LONGEST_PAUSE_S)
        return count


logger = logging.getLogger(__name__)

MOST_CHARACTERS: Final = 300
"""Of the one line."""
_MOST_CAUSES: Final = 10
"""Told of one error; users' code may chain any number, in a circle too."""
_VARIABLE = re.compile(r"'[^']*'|\"[^\"]*\"|0x[0-9a-fA-F]+|\d+")
"""What differs from one message to the next in the text of the same error."""
_repeated = Repeated()
"""Of this process: a message that fails is delivered again within a second, and each task reads other queues.
"""
_guard = threading.Lock()
"""Over ``_repeated``."""


def tell_failure(what: str, where: str, error: BaseException) -> str:
    """Log that ``what`` happened at ``where``, the traceback if it is new here; returns one line."""
    line = one_line(error)
    count = _count((type(error), _VARIABLE.sub("…", line), _place(error)))
    if count == 0:
        logger.error("%s %s", what, where, exc_info=error)
    elif count is not None:
        logger.error("%s %d times more, the last time %s: %s", what, count, where, line)
    return line


def tell_problem(problem: str, where: str) -> str:
    """Log a sentence, in full if it is new in this process; its one line."""
    line = _shortened(problem)
    count = _count(_VARIABLE.sub("…", line))
    if count == 0:
        logger.error("%s %s", problem, where)
    elif count is not None:
        logger.error("%d times more, the last time %s: %s", count, where, line)
    return line


def one_line(error: BaseException) -> str:
    """Type and text of an error, without control characters; at most ``MOST_CHARACTERS``."""
    told: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in told and len(told) < _MOST_CAUSES:
        told.append(cause)
        cause = cause.__cause__
    line = ""
    for each in reversed(told):
        line = _shortened(f"{_own_line(each)} ({line})" if line else _own_line(each))
    return line


def _own_line(error: BaseException) -> str:
    try:
        text = _shortened(str(error))
    except Exception:  # noqa: BLE001 - a user's class
        text = "its text cannot be had"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _shortened(text: str) -> str:
    # Cut first: a text may be megabytes.
    short = text[: 4 * MOST_CHARACTERS]
    plain = " ".join("".join(one if one.isprintable() else " " for one in short).split())
    return plain if len(plain) <= MOST_CHARACTERS else plain[: MOST_CHARACTERS - 1] + "…"


def _count(key: Hashable) -> int | None:
    with _guard:
        return _repeated.happened(key, time.monotonic())


def _renew() -> None:
    """In a child of ``fork()``: a thread that is not there may hold the lock."""
    global _guard  # noqa: PLW0603
    _guard = threading.Lock()


os.register_at_fork(after_in_child=_renew)


def _place(error: BaseException) -> tuple[str, int] | None:
    """The innermost line of code that the error went through."""
    traceback = error.__traceback__
    if traceback is None:
        return None
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
