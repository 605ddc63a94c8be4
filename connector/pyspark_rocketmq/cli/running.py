"""Support for running commands: Spark session, progress on the screen, and the signals that stop them.

``spark-submit`` runs two processes: the JVM and its child, this process. A supervisor sends SIGTERM only to
the JVM. Ctrl-C sends SIGINT to both, and to the planner, which is another child of the JVM. At either signal
the JVM would stop Spark in the middle of the listener's calls. So this module has the JVM pass SIGTERM on to
this process, and ignore SIGINT. Processes that the JVM starts later, such as the planner, ignore SIGINT too.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, Self

from py4j.protocol import Py4JError
from pyspark.errors import StreamingQueryException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import pyspark_rocketmq
from pyspark_rocketmq.cli.settings import JobFailed
from pyspark_rocketmq.commit.pipeline import BatchReport
from pyspark_rocketmq.consume.latencies import NONE_COUNTED, LatencyHistogram
from pyspark_rocketmq.delta.hadoop_settings import storage_options_of_spark
from pyspark_rocketmq.delta.paths import local_path, table_uri
from pyspark_rocketmq.delta.storage_options import is_reached_by_environment
from pyspark_rocketmq.display import counted, masked, masking_logger
from pyspark_rocketmq.monitoring.batch_metrics import BatchMetrics
from pyspark_rocketmq.monitoring.query_monitor import QueryMonitor
from pyspark_rocketmq.options.store_spec import StoreKind, StoreSpec
from pyspark_rocketmq.spark.session import check_classic

logger = masking_logger(__name__)

SETTINGS: Final = {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Settings of a session that nobody else configures. Together with ``DELTA_SETTINGS`` they are the same as in
conf/spark-defaults.conf."""
DELTA_SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_SETTINGS_COME_BY: Final = frozenset(
    {"PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_REMOTE"}
)
"""Environment variables that show that spark-submit started this process or that the user has settings."""

_SAME_S: Final = 1.0
"""Seconds within which a second SIGTERM counts as the same one: if all processes of a group get a SIGTERM,
this process gets it directly and again through the JVM."""
_POLL_S = 0.25
_LINE_EVERY_S = 5.0
_ROWS = "rows committed by this run"
_RAISED_IN_PYTHON = re.compile(
    r"^(?!java\.|org\.|scala\.|py4j\.)(?:[a-z_]\w*\.)*[A-Z]\w*: .+(?:\n(?!\s*$|\s*at |Traceback|===| "
    r"?SQLSTATE).+)*",
    re.MULTILINE,
)
"""Matches the end of a Python traceback: class and text, up to an empty line or a Java stack."""


@contextmanager
def spark_session(job: str, *, needs_delta: bool = False) -> Iterator[SparkSession]:
    """Start a Spark session, or join the one that runs, for the ``with`` block; stop it at the end.

    A session gets the settings of spark-submit or of the user's environment. Without these it gets ours
    (:data:`SETTINGS`).

    The data source is registered explicitly, since Spark's own look-up does not find packages of --py-files.
    After Ctrl-C the session is not stopped, since Ctrl-C ends the JVM too.

    Args:
        job: Names the application.
        needs_delta: Whether Spark itself reads or writes Delta tables, for which it fetches jars at its first
            start.

    Raises:
        RocketMQError: If the session uses Spark Connect (``SPARK_REMOTE``).
    """
    print("Starting Spark, which takes some seconds.", file=sys.stderr)
    started_s = time.monotonic()
    spark = _builder(job, needs_delta=needs_delta).getOrCreate()
    check_classic(
        spark,
        f"Command '{job}'",
        "it runs beside Spark's driver, whose signals and progress it needs; unset "
        "SPARK_REMOTE, or use the package's classes from a client of Spark Connect",
    )
    # Spark's own handler asks the JVM to cancel its jobs first.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    pyspark_rocketmq.register(spark)
    print(
        f"Spark started in {time.monotonic() - started_s:.0f} s; its first rows take some seconds more.",
        file=sys.stderr,
    )
    try:
        yield spark
    except Exception:
        spark.stop()
        raise
    spark.stop()


def _builder(job: str, *, needs_delta: bool) -> SparkSession.Builder:
    builder = SparkSession.builder.appName(f"pyspark-rocketmq {job}")
    if SparkSession.getActiveSession() is not None or not os.environ.keys().isdisjoint(_SETTINGS_COME_BY):
        return builder
    # Otherwise workers would run whatever python3 is on PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for key, text in SETTINGS.items():
        builder = builder.config(key, text)
    if not needs_delta:
        return builder
    from delta import configure_spark_with_delta_pip

    for key, text in DELTA_SETTINGS.items():
        builder = builder.config(key, text)
    return configure_spark_with_delta_pip(builder)


def storage_secrets(spark: SparkSession, given: str | None, *places: str | None) -> str | None:
    """Return the value of option ``storageSecrets`` for tables at ``places``; None if no options are needed.

    This is ``given`` unless that is None; otherwise, Spark's own settings of the storage. If environment
    variables give access to a place, Spark's settings are not used for that place: they may belong to
    somebody else. If Spark's settings differ between the places, return None and log a warning.
    """
    if given is not None:
        return given
    settings = dict(spark.sparkContext.getConf().getAll())
    asked = [place for place in places if place is not None and local_path(table_uri(place)) is None]
    found = [
        {} if is_reached_by_environment(place) else storage_options_of_spark(settings, place)
        for place in asked
    ]
    if any(options != found[0] for options in found):
        logger.warning(
            "Spark's settings of storage are not used, because they differ between %s: give option "
            "storageSecrets",
            " and ".join(map(masked, asked)),
        )
        return None
    return json.dumps(found[0]) if found and found[0] else None


def delta_place(offset_store: str | None) -> str | None:
    """Return the place of the offsets if they are in a Delta table, otherwise None."""
    spec = None if offset_store is None else StoreSpec.parse(offset_store)
    return None if spec is None or spec.kind is not StoreKind.DELTA else spec.place


class StopSignals:
    """Records the first SIGINT or SIGTERM within its block; a second signal raises KeyboardInterrupt.

    The same signal again within 1 s of the first one does nothing.
    """

    def __init__(self, spark: SparkSession) -> None:
        """Take SIGINT and SIGTERM over from the JVM; if that fails, log a warning.

        Create this object before a query starts: from then on the JVM ignores SIGINT, and the query's planner
        process, which the JVM starts, does the same.
        """
        self.received: signal.Signals | None = None
        """The first signal."""
        self._at_s = 0.0
        self._before: dict[int, Any] = {}
        try:
            _take_from_jvm(spark)
        except Py4JError:
            # For example with -Xrs, or on a platform that does not support the call.
            logger.warning(
                "could not take SIGINT and SIGTERM over from the JVM: at such a signal the JVM stops Spark "
                "during the listener's calls, and their messages are consumed again",
                exc_info=True,
            )

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *unused: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signal module's
        now_s = time.monotonic()
        if self.received is None:
            self.received, self._at_s = signal.Signals(number), now_s
        elif number != self.received or now_s - self._at_s > _SAME_S:
            raise KeyboardInterrupt


def _take_from_jvm(spark: SparkSession) -> None:
    context: Any = spark.sparkContext
    gateway, jvm = context._gateway, context._jvm  # noqa: SLF001 - Spark offers no other way to the JVM
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    of_java = jvm.sun.misc
    of_java.Signal.handle(of_java.Signal("INT"), of_java.SignalHandler.SIG_IGN)
    of_java.Signal.handle(of_java.Signal("TERM"), _PassesOn())


class _PassesOn:
    """A ``sun.misc.SignalHandler`` of the JVM that passes SIGTERM on to this process.

    The JVM calls it on a thread of the connection between the two processes.
    """

    def handle(self, of_java: object) -> None:  # noqa: ARG002 - the interface's
        """Send SIGTERM to this Python process."""
        os.kill(os.getpid(), signal.SIGTERM)

    class Java:
        """Declares the interface in the form that Py4J requires."""

        implements = ("sun.misc.SignalHandler",)


class RowCounter:
    """Counts the rows that this run has committed, deliveries given back, and latencies.

    Threads of the query update it, and the command's thread reads it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows = 0
        self._batch_id = -1
        self._given_back = 0
        self._last_error = ""
        self._to_listener = NONE_COUNTED

    def __call__(self, report: BatchReport) -> None:
        """Count the rows, the deliveries given back and the latencies of one commit (``BatchListener``)."""
        with self._lock:
            self._rows += report.rows
            self._batch_id = report.batch_id
            self._given_back += sum(ack.failed for ack in report.acks)
            self._to_listener = self._to_listener.plus(report.store_to_listener)
            self._last_error = next(
                (ack.last_error for ack in report.acks if ack.last_error), self._last_error
            )

    @property
    def rows(self) -> int:
        """Number of rows that this run has added to the sink."""
        with self._lock:
            return self._rows

    @property
    def batch_id(self) -> int:
        """Id of the micro-batch that was committed last; -1 before the first commit."""
        with self._lock:
            return self._batch_id

    @property
    def to_listener(self) -> LatencyHistogram:
        """Times from messages' storage at the brokers to the listener's calls.

        They are counted since the last :meth:`forget_latencies`, else since this object was created.
        """
        with self._lock:
            return self._to_listener

    def forget_latencies(self) -> None:
        """Forget the latencies counted so far."""
        with self._lock:
            self._to_listener = NONE_COUNTED

    @property
    def given_back(self) -> int:
        """Number of deliveries that the listener gave back."""
        with self._lock:
            return self._given_back

    def __str__(self) -> str:
        """Return one line with the committed rows and, if any, deliveries given back and the last error."""
        with self._lock:
            text = f"{_ROWS}: {self._rows:,}"
            if self._given_back:
                text += f"; deliveries given back by the listener: {self._given_back:,}"
            return f"{text}; last error: {self._last_error}" if self._last_error else text


def progress_bar(console: Console) -> Progress:
    """Create a bar with count and time; it shows nothing without a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


class Shown:
    """Shows progress as a bar or, without a terminal, as a line now and then."""

    def __init__(self, console: Console, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Show nothing yet; ``what`` names the counted things, such as "messages stored"."""
        self._console = console
        self._what = what
        self._clock = clock
        self._bar = progress_bar(console)
        self._task = self._bar.add_task(what, total=None)
        self._line_due_s = clock() + _LINE_EVERY_S
        self._has_said_less = False

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._bar.stop()

    def __call__(self, done: int, total: int | None, beside: str = "") -> None:
        """Show that ``done`` of ``total`` things are done, and the text ``beside``.

        ``total`` is None if there is no end. Without a terminal, a line is printed at most every 5 s, and one
        at the end if the line before showed less.
        """
        more = f" · {beside}" if beside else ""
        self._bar.update(self._task, completed=done, total=total, description=self._what + more)
        if self._console.is_terminal:
            return
        if self._clock() >= self._line_due_s or (self._has_said_less and done == total):
            count = f"{done:,}" if total is None else f"{done:,} of {total:,}"
            self._console.print(f"{self._what}: {count}{more}")
            self._line_due_s = self._clock() + _LINE_EVERY_S
            self._has_said_less = done != total


def failure_sentence(text: str) -> str:
    """Return the cause of a query's failure, on one line, from ``text``, the whole text of Spark's error.

    An error raised in one of our Python processes stands in that text between a traceback and a Java stack.
    If there are several such errors, one of this package is returned rather than another one.
    """
    raised = [" ".join(found.group().split()) for found in _RAISED_IN_PYTHON.finditer(text)]
    ours = [sentence for sentence in raised if sentence.startswith("pyspark_rocketmq.")]
    if ours or raised:
        return (ours or raised)[-1]
    return next(iter(text.strip().splitlines()), "no reason given")


def behind_text(metrics: BatchMetrics, counter: RowCounter) -> str:
    """Describe in one line how far a query is behind.

    Return an empty text if ``metrics`` lack the lag, or are of an earlier batch than the counted rows.
    """
    # A batch's rows are counted before Spark reports the positions of its queues.
    if metrics.lag is None or metrics.batch_id < counter.batch_id:
        return ""
    age = "" if not metrics.lag_s else f" for {metrics.lag_s:.1f} s"
    suspended = f", {counted(metrics.suspended, 'queue')} suspended" if metrics.suspended else ""
    return f"{counted(metrics.lag, 'message')} behind{age}{suspended}{_latency_text(metrics)}"


def _latency_text(metrics: BatchMetrics) -> str:
    """Describe how soon messages reached the listener, if the batch of ``metrics`` still runs.

    Return an empty text if that batch has ended, or no latency was measured.
    """
    if metrics.has_ended or not metrics.store_to_listener.messages:
        return ""
    return f", 99 % at the listener within {metrics.store_to_listener.percentile(99):,} ms"


def await_query(
    query: StreamingQuery,
    counter: RowCounter,
    total: int | None,
    console: Console,
    *,
    monitor: QueryMonitor | None = None,
    is_enough: Callable[[], bool] = lambda: False,
) -> None:
    """Show the number of committed rows until ``query`` ends, or until ``is_enough()`` is true.

    ``total`` is the number of rows to wait for; None if the query has no end. With ``monitor``, also show how
    far behind the query is.

    Raises:
        JobFailed: If the query failed, with the reason without Spark's stack traces.
    """
    with Shown(console, _ROWS) as shown:
        # Not in awaitTermination: Ctrl-C inside a call to the JVM is reported with a traceback.
        while query.isActive:
            if is_enough():
                return
            time.sleep(_POLL_S)
            shown(counter.rows, total, _behind(query, counter, monitor))
        shown(counter.rows, total)
    check_ended_well(query)


def check_ended_well(query: StreamingQuery) -> None:
    """Wait until ``query`` has ended by itself or because it was stopped.

    Raises:
        JobFailed: If the query failed, with the reason without Spark's stack traces.
    """
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        raise JobFailed(f"The streaming query failed: {failure_sentence(str(error))}") from error


def _behind(query: StreamingQuery, counter: RowCounter, monitor: QueryMonitor | None) -> str:
    state = None if monitor is None else monitor.queries().get(str(query.runId))
    return "" if state is None else behind_text(state.latest, counter)
