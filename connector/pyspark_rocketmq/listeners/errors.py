"""Reports a listener's errors: to the log of its process, and in one line to the driver."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from pyspark_rocketmq.display import masked, masking_logger

logger = masking_logger(__name__)

FIRST_PAUSE_S: Final = 10.0
"""Minimum time between the first and the second log line of an error, in seconds; doubled after each line."""
LONGEST_PAUSE_S: Final = 600.0
MOST_KEYS: Final = 100
"""Number of different errors remembered; beyond that, the one not seen for longest is forgotten."""
MOST_CHARACTERS: Final = 300
"""Maximum length of a line that is shown, in characters."""
_MOST_CAUSES: Final = 10
"""Maximum number of errors in a line, the causes of the first one included; users' code may chain any number,
even in a circle."""
_VARIABLE = re.compile(r"'[^']*'|\"[^\"]*\"|0x[0-9a-fA-F]+|\d+")
"""Matches the parts of an error's text that differ from message to message."""

_guard = threading.Lock()
"""Lock of ``_limiter``."""


@dataclass(slots=True)
class _Report:
    at_s: float
    pause_s: float
    since: int = 0
    """Number of occurrences of the error since it was last logged."""


class RateLimiter:
    """Limits how often the same error is logged; times are monotonic seconds. Not thread-safe."""

    def __init__(self) -> None:
        self._reports: OrderedDict[Hashable, _Report] = OrderedDict()

    def happened(self, key: Hashable, now_s: float) -> int | None:
        """Count one occurrence of the error ``key``; return what the caller is to log.

        0: this error in full, since it is new. A number above 0: one line with this number of further
        occurrences. None: nothing yet.
        """
        report = self._reports.get(key)
        if report is None:
            self._reports[key] = _Report(now_s, FIRST_PAUSE_S)
            if len(self._reports) > MOST_KEYS:
                self._reports.popitem(last=False)
            return 0
        self._reports.move_to_end(key)
        report.since += 1
        if now_s - report.at_s < report.pause_s:
            return None
        count, report.since = report.since, 0
        report.at_s, report.pause_s = now_s, min(2 * report.pause_s, LONGEST_PAUSE_S)
        return count


_limiter = RateLimiter()
"""Limiter for all tasks of the process: a failed message returns within a second, often in a new task, whose
own limiter would let it log the error in full again."""


def report_failure(what: str, where: str, error: BaseException) -> str:
    """Log that ``what`` happened at ``where``; return the error as text, as :func:`one_line` does.

    A new error is logged with its traceback. If the same error occurs again, its occurrences are counted.
    Now and then one line is logged with their number, and with place and text of the last one.
    """
    line = one_line(error)
    count = _count((type(error), _VARIABLE.sub("…", line), _place(error)))
    if count == 0:
        logger.error("%s %s", what, where, exc_info=error)
    elif count is not None:
        logger.error("%s %d times more, the last time %s: %s", what, count, where, line)
    return line


def report_problem(problem: str, where: str) -> str:
    """Log the sentence ``problem``, and return it shortened to one line.

    The sentence is logged in full if it is new in this process. Its further occurrences are counted. Now and
    then one line is logged with their number, and with place and text of the last one.
    """
    line = _shortened(problem)
    count = _count(_VARIABLE.sub("…", line))
    if count == 0:
        logger.error("%s %s", problem, where)
    elif count is not None:
        logger.error("%d times more, the last time %s: %s", count, where, line)
    return line


def one_line(error: BaseException) -> str:
    """Return type and text of an error and of its causes, in at most ``MOST_CHARACTERS``, all printable.

    Passwords and user information of URIs are masked.
    """
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain and len(chain) < _MOST_CAUSES:
        chain.append(cause)
        cause = cause.__cause__
    line = ""
    for each in reversed(chain):
        line = _shortened(f"{_own_line(each)} ({line})" if line else _own_line(each))
    return line


def _own_line(error: BaseException) -> str:
    try:
        text = _shortened(str(error))
    except Exception:  # noqa: BLE001 - a user's class
        text = "its message cannot be read"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _shortened(text: str) -> str:
    # Cut first: a string may have megabytes.
    short = masked(text[: 4 * MOST_CHARACTERS])
    plain = " ".join("".join(one if one.isprintable() else " " for one in short).split())
    return plain if len(plain) <= MOST_CHARACTERS else plain[: MOST_CHARACTERS - 1] + "…"


def _count(key: Hashable) -> int | None:
    with _guard:
        return _limiter.happened(key, time.monotonic())


def _renew() -> None:
    """Replace the lock in a child of ``fork()``: a thread that only the parent has may hold it."""
    global _guard  # noqa: PLW0603
    _guard = threading.Lock()


os.register_at_fork(after_in_child=_renew)


def _place(error: BaseException) -> tuple[str, int] | None:
    """Return file and line where the error was raised; None without a traceback."""
    traceback = error.__traceback__
    if traceback is None:
        return None
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
