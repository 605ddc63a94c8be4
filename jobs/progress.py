"""Showing how far something is, and waiting for a query meanwhile."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Self

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from jobs.errors import JobFailed
from pyspark_rocketmq.consumer.commit import BatchReport
from pyspark_rocketmq.monitoring.batch_metrics import BatchFigures
from pyspark_rocketmq.monitoring.query_monitor import QueryMonitor

_POLL_S = 0.25
_LINE_EVERY_S = 5.0

_RAISED_IN_PYTHON = re.compile(
    r"^(?!java\.|org\.|scala\.|py4j\.)(?:[a-z_]\w*\.)*[A-Z]\w*: .+(?:\n(?!\s*$|\s*at |Traceback|===| ?SQLSTATE).+)*",
    re.MULTILINE,
)
"""The end of a Python traceback: class and text, up to an empty line or a Java stack."""


class RowCounter:
    """Counts committed rows; told on the query's thread, asked on ours."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows = 0
        self._given_back = 0
        self._last_error = ""

    def __call__(self, report: BatchReport) -> None:
        """A batch was committed (``BatchListener``)."""
        with self._lock:
            self._rows += report.rows
            self._given_back += sum(ack.failed for ack in report.acks)
            self._last_error = next(
                (ack.last_error for ack in report.acks if ack.last_error), self._last_error
            )

    @property
    def rows(self) -> int:
        """Rows added to the sink."""
        with self._lock:
            return self._rows

    @property
    def given_back(self) -> int:
        """Deliveries the listener failed."""
        with self._lock:
            return self._given_back

    def __str__(self) -> str:
        """What there is to say at the end."""
        with self._lock:
            text = f"rows committed: {self._rows:,}"
            if self._given_back:
                text += f"; deliveries given back by the listener: {self._given_back:,}"
            return f"{text}; last error: {self._last_error}" if self._last_error else text


def progress_bar(console: Console) -> Progress:
    """A bar with count and time; nothing where there is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


class Shown:
    """How much of something is done: a bar, or, where there is no terminal, a line now and then."""

    def __init__(self, console: Console, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Show nothing yet; ``what`` is done, such as "rows committed"."""
        self._console = console
        self._what = what
        self._clock = clock
        self._bar = progress_bar(console)
        self._task = self._bar.add_task(what, total=None)
        self._line_due_s = clock() + _LINE_EVERY_S

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._bar.stop()

    def __call__(self, done: int, total: int | None, beside: str = "") -> None:
        """Show that ``done`` of ``total`` is done; None: there is no end."""
        more = f" · {beside}" if beside else ""
        self._bar.update(self._task, completed=done, total=total, description=self._what + more)
        if not self._console.is_terminal and self._clock() >= self._line_due_s:
            count = f"{done:,}" if total is None else f"{done:,} of {total:,}"
            self._console.print(f"{self._what}: {count}{more}")
            self._line_due_s = self._clock() + _LINE_EVERY_S


def failure_sentence(text: str) -> str:
    """The part of a failed query's text that says what happened, on one line.

    An error raised in one of our Python processes arrives wrapped in Spark's messages, with a traceback before
    and a Java stack after it. Ours are preferred to others.
    """
    raised = [" ".join(found.group().split()) for found in _RAISED_IN_PYTHON.finditer(text)]
    ours = [sentence for sentence in raised if sentence.startswith("pyspark_rocketmq.")]
    if ours or raised:
        return (ours or raised)[-1]
    return next(iter(text.strip().splitlines()), "no reason given")


def behind_text(figures: BatchFigures) -> str:
    """Where a query's queues are, for one line beside the rows; empty while it is not known."""
    if figures.lag is None:
        return ""
    age = "" if not figures.lag_s else f" for {figures.lag_s:.1f} s"
    suspended = f", {_counted(figures.suspended, 'queue')} suspended" if figures.suspended else ""
    return f"{_counted(figures.lag, 'message')} behind{age}{suspended}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def await_query(
    query: StreamingQuery,
    counter: RowCounter,
    total: int | None,
    console: Console,
    *,
    monitor: QueryMonitor | None = None,
    is_enough: Callable[[], bool] = lambda: False,
) -> None:
    """Wait until ``query`` ends, or ``is_enough``, showing committed rows; ``total`` is None when there is no end.

    With ``monitor``, how far behind the query is, too.

    Raises:
        JobFailed: If the query failed, with the reason without Spark's stack traces.
    """
    with Shown(console, "rows committed") as shown:
        # Not in awaitTermination: Ctrl-C inside a call to the JVM is reported with a traceback.
        while query.isActive:
            if is_enough():
                return
            time.sleep(_POLL_S)
            shown(counter.rows, total, _behind(query, monitor))
        shown(counter.rows, total)
    check_ended_well(query)


def check_ended_well(query: StreamingQuery) -> None:
    """Wait for the end of a query that ends.

    Raises:
        JobFailed: If it failed, with the reason without Spark's stack traces.
    """
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        raise JobFailed(f"The streaming query failed: {failure_sentence(str(error))}") from error


def _behind(query: StreamingQuery, monitor: QueryMonitor | None) -> str:
    state = None if monitor is None else monitor.queries().get(str(query.runId))
    return "" if state is None else behind_text(state.latest)
