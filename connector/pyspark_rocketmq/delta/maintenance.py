"""Runs the maintenance of a Delta table, such as checkpoints, in background threads after commits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from pyspark_rocketmq.delta.storage_options import NO_OPTIONS, StorageOptions
from pyspark_rocketmq.delta.table import STORAGE_ERRORS
from pyspark_rocketmq.display import masked, masking_logger
from pyspark_rocketmq.process_end import await_at_end, process_ends

logger = masking_logger(__name__)


class Maintenance:
    """Runs one kind of maintenance of one table in a background thread; one run at a time.

    A failed run is logged, and the next run does its work, too.
    """

    def __init__(
        self,
        kind: str,
        table_uri: str,
        storage: StorageOptions = NO_OPTIONS,
        *,
        is_interruptible: bool = False,
    ) -> None:
        """Set the table; a thread starts only when :meth:`after_commit` finds that a task is due.

        ``kind`` describes the table in one word, for the log and the thread's name.  A process that exits
        normally waits for a running task.  Set ``is_interruptible`` if tasks end early when
        :data:`process_ends` is set: then the process waits for at most 30 s.
        """
        self._kind = kind
        self._table_uri = table_uri
        self._storage = storage
        self._is_interruptible = is_interruptible
        self._guard = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None
        self._running: Future[None] | None = None
        self._seen: int | None = None

    def after_commit(self, before: int, every: int, task: Callable[[int], None]) -> None:
        """Note a commit on top of version ``before``, and start ``task`` if it is due; return immediately.

        ``task`` is due if the table's version has reached or passed a multiple of ``every`` since the last
        call.  ``task`` is skipped while an earlier run goes on.  Its argument is the table's version divided
        by ``every``, rounded down.
        """
        with self._guard:
            last, self._seen = self._seen, before + 1
            is_due = (before if last is None else last) // every < (before + 1) // every
            if not is_due or (self._running is not None and not self._running.done()):
                return
            self._running = self._begin(task, (before + 1) // every)

    def _begin(self, task: Callable[[int], None], number: int) -> Future[None]:
        name = f"rocketmq-{self._kind}-upkeep"
        if not self._is_interruptible:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, name)
            return self._thread.submit(self._run_logged, task, number)
        done: Future[None] = Future()

        def run() -> None:
            try:
                self._run_logged(task, number)
            finally:
                done.set_result(None)

        # ThreadPoolExecutor joins its threads before atexit handlers run, so it could not stop them.
        thread = threading.Thread(target=run, name=name, daemon=True)
        await_at_end(thread)
        thread.start()
        return done

    def wait(self, timeout_s: float) -> None:
        """Wait until the current run is done; return immediately if there is none.

        Raises:
            TimeoutError: If that takes longer than ``timeout_s``.
        """
        with self._guard:
            running = self._running
        if running is not None:
            running.result(timeout_s)

    def _run_logged(self, task: Callable[[int], None], number: int) -> None:
        try:
            task(number)
        except STORAGE_ERRORS as error:
            logger.warning(
                "maintenance of %s table failed, the next run makes up for it path=%s: %s",
                self._kind,
                masked(self._table_uri),
                self._storage.describe_error(error),
            )
        except Exception:
            if process_ends.is_set():
                return
            # Nobody waits for this thread, and commits do not depend on it.
            logger.exception("maintenance of %s table failed path=%s", self._kind, masked(self._table_uri))
