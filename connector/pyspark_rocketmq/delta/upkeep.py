"""Looks after a Delta table beside its commits, which would wait for it otherwise: when it is due, and on which thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from pyspark_rocketmq.delta.table import STORAGE_ERRORS
from pyspark_rocketmq.display import masked

logger = logging.getLogger(__name__)


class UpkeepThread:
    """Sees to one table, at most once at a time in this process; what fails is logged and done by the next."""

    def __init__(self, kind: str, table_uri: str) -> None:
        """``kind`` says what the table is, in one word, for the log and the thread's name."""
        self._kind = kind
        self._table_uri = table_uri
        self._guard = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None
        self._running: Future[None] | None = None
        self._seen: int | None = None

    def written(self, before: int, every: int, work: Callable[[int], None]) -> None:
        """A commit was made on version ``before``: every so many versions has ``work`` done; returns at once.

        ``work`` is told which time it is, counted from the table's beginning.
        """
        with self._guard:
            last, self._seen = self._seen, before + 1
            is_due = (before if last is None else last) // every < (before + 1) // every
            if not is_due or (self._running is not None and not self._running.done()):
                return
            if self._thread is None:
                # Its end is waited for when the process ends in good order.
                self._thread = ThreadPoolExecutor(1, f"rocketmq-{self._kind}-upkeep")
            self._running = self._thread.submit(self._run_logged, work, (before + 1) // every)

    def wait(self, timeout_s: float) -> None:
        """Until what was begun is done.

        Raises:
            TimeoutError: If that takes longer.
        """
        with self._guard:
            running = self._running
        if running is not None:
            running.result(timeout_s)

    def _run_logged(self, work: Callable[[int], None], number: int) -> None:
        try:
            work(number)
        except STORAGE_ERRORS as error:
            logger.warning(
                "%s table not looked after, to be done later path=%s: %s",
                self._kind,
                masked(self._table_uri),
                masked(str(error)),
            )
        except Exception:
            # Nobody watches this thread, and commits do not depend on it.
            logger.exception("%s table not looked after path=%s", self._kind, masked(self._table_uri))
