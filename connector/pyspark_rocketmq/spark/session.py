"""Checks of a Spark session before a query starts; workarounds for its stream execution thread."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TimedOut
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeGuard

import pyarrow as pa
from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_rocketmq.display import masking_logger
from pyspark_rocketmq.errors import OptionError, RocketMQError, error_of_worker, without_frames
from pyspark_rocketmq.hub.state import CALLS_END_S, Slots
from pyspark_rocketmq.spark.version import HAS_DELTA, NEWEST_DELTA

logger = masking_logger(__name__)

BatchFunction = Callable[[DataFrame, int], None]
ArrowFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_INTERRUPTIONS: Final = frozenset(
    {
        "java.lang.InterruptedException",
        "java.io.InterruptedIOException",
        "java.nio.channels.ClosedByInterruptException",
    }
)
"""Java classes that ``StreamExecution.isInterruptionException`` takes for an interruption."""
_JOB_CANCELLED: Final = "[SPARK_JOB_CANCELLED]"
"""Text in the error of a cancelled job; a stop cancels the query's jobs before it interrupts its thread."""
_MOST_CHARACTERS: Final = 200
_KILL_TIMEOUT: Final = "spark.python.task.killTimeout"
_USUAL_KILL_TIMEOUT: Final = "2s"
_USUAL_KILL_TIMEOUT_S: Final = 2.0
_GROWS_WITH_TASKS: Final = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.databricks.clusterUsageTags.clusterScalingType": "autoscaling",
}
"""Settings of clusters that add executors only while tasks wait; a batch of few tasks makes none grow."""
_ENCRYPTIONS: Final = (
    "spark.ssl.enabled",
    "spark.ssl.rpc.enabled",
    "spark.network.crypto.enabled",
    # The older form of spark.network.crypto; both need spark.authenticate.
    "spark.authenticate.enableSaslEncryption",
)
_MANY: Final = 10_000
"""Number of rows of the job that counts tasks, so many that every task gets some."""
_PROBE: Final = """\
import sys
from pyspark_rocketmq.requirements import check_packages
check_packages()
import pandas, pyarrow, pyspark_rocketmq.wire.columnar.decode
print("{}.{}".format(*sys.version_info))"""
_SPARKS_PYTHON: Final = "python3"
"""Python that ``SparkContext`` uses for its workers if ``PYSPARK_PYTHON`` is not set."""
_PROBE_TIMEOUT_S: Final = 60.0


_ASK_TIMEOUT_S: Final = 60.0
"""Maximum time for which the start of a query waits for executors."""
_MOST_ASKED: Final = 200
"""Maximum number of tasks of a job that checks the executors."""
_UDF_IDLE: Final = "spark.sql.execution.pyspark.udf.idleTimeoutSeconds"
_UDF_KILL: Final = "spark.sql.execution.pyspark.udf.killOnIdleTimeout"
_WORKER_IDLE: Final = "spark.python.worker.idleTimeoutSeconds"
_WORKER_KILL: Final = "spark.python.worker.killOnIdleTimeout"
"""Spark's settings by which it kills idle Python workers. The first two are for SQL; if they are not set,
Spark uses the other two.

Spark 4.0 kills no idle worker.
"""

NO_DELTA: Final = (
    "This Spark session has no Delta Lake. Start it with "
    "configure_spark_with_delta_pip(builder).getOrCreate() of package delta, or with Delta's jars in "
    "spark.jars, and with spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension and "
    "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog."
)


class IdleKill(NamedTuple):
    """When Spark kills a Python worker that yields no rows, and which of its settings decide this."""

    after_s: float
    """Time without rows after which Spark kills the worker, in seconds."""
    settings: tuple[str, str]
    """Names of two settings: the first sets the time, the second switches killing on."""


class BatchInterrupted(Exception):
    """A batch ended because its query stops or its job was cancelled.

    Its text has the form by which Spark recognises an interruption.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling the batch's job: "
            f"java.lang.InterruptedException: {reason[:_MOST_CHARACTERS]}"
        )


def qualified(spark: SparkSession, path: str) -> str:
    """Return the percent-encoded URI to which Spark resolves a path."""
    jvm: Any = spark._jvm  # noqa: SLF001 - only Spark knows its file systems
    place = jvm.org.apache.hadoop.fs.Path(path)
    files = place.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())  # noqa: SLF001
    return str(files.makeQualified(place).toUri())


def stoppable(function: BatchFunction) -> BatchFunction:
    """Wrap a ``foreachBatch`` function, so that Spark recognises when a stop of the query interrupted it.

    Spark looks for interruptions in an error's text with a regular expression that needs a stack frame per
    character (``StreamExecution.PROXY_ERROR``).  A whole Java stack trace would overflow the stack and end
    the stream thread, and callers that wait for the query would wait for ever. So the wrapped function raises
    a short error.

    Raises:
        BatchInterrupted: In place of the error of a job that was interrupted or cancelled.
        RocketMQError: The error that a task raised, in place of Spark's error around it.
    """

    def run(batch: DataFrame, batch_id: int) -> None:
        try:
            function(batch, batch_id)
        except Py4JJavaError as error:
            reason = _interruption(error.java_exception)
            if reason is None:
                raise
            raise BatchInterrupted(reason) from None
        except PythonException as error:
            of_task = error_of_worker(str(error))
            if of_task is None:
                raise
            raise of_task from None

    return without_frames(run)


def _interruption(error: Any) -> str | None:
    """Find an interruption among a Java exception and its causes; return its text, or None."""
    while error is not None:
        name, message = error.getClass().getName(), error.getMessage() or ""
        if name in _INTERRUPTIONS or _JOB_CANCELLED in message:
            return f"{name} {message}".strip()
        error = error.getCause()
    return None


def is_classic(spark: object) -> TypeGuard[SparkSession]:
    """Return whether the session's driver is this process, as it is without Spark Connect."""
    return isinstance(spark, SparkSession)


def living_session(given: SparkSession | None) -> SparkSession | None:
    """Return ``given`` if it runs, else this thread's active session, else the process's; None if none runs.

    A plain Python thread has no active session, and an object may outlive the session it was created with.
    """
    if given is not None and not _is_stopped(given):
        return given
    process_wide = SparkSession._instantiatedSession  # noqa: SLF001 - Spark shows it to nobody
    others = (SparkSession.getActiveSession(), process_wide)
    return next((spark for spark in others if spark is not None and not _is_stopped(spark)), None)


def _is_stopped(spark: SparkSession) -> bool:
    if is_classic(spark):
        return _has_stopped_context(spark)
    return bool(getattr(spark, "is_stopped", False))


def _has_stopped_context(spark: SparkSession) -> bool:
    """Return whether the context of a classic session was stopped, by Python or only in the JVM."""
    context: Any = spark.sparkContext._jsc  # noqa: SLF001 - SparkContext.stop leaves None
    if context is None:
        return True
    try:
        return bool(context.sc().isStopped())
    except Exception:  # noqa: BLE001 - a platform may forbid it, or the JVM is gone
        return False


def _settings(spark: SparkSession) -> Any:
    # The context's setting counts; Connect only shows the session's copy.
    return spark.sparkContext.getConf() if is_classic(spark) else spark.conf


def is_speculative(spark: SparkSession) -> bool:
    """Return whether Spark starts a second copy of a slow task (``spark.speculation``)."""
    return str(_settings(spark).get("spark.speculation", "false")).strip().lower() == "true"


def check_speculation(spark: SparkSession) -> None:
    """Refuse ``spark.speculation``: two copies of a task deliver the same messages.

    See rows D1 and G6 of ``docs/semantics.md``.

    Raises:
        OptionError: If it is on.
    """
    if is_speculative(spark):
        problem = (
            "spark.speculation is on: a second copy of a slow task would run beside the first and give the "
            "listener the same messages, or send the same rows, twice and out of order; start the session "
            "with spark.speculation=false"
        )
        raise OptionError((problem,), where="Spark session")


def check_session(spark: SparkSession | None, what: str) -> None:
    """Raise RocketMQError if ``spark`` is None, as ``SparkSession.getActiveSession()`` is without a session.

    Args:
        spark: The session, or None.
        what: Name of what needs the session, for the error.
    """
    if spark is None:
        raise RocketMQError(
            f"{what} needs a Spark session, not None; create one by SparkSession.builder.getOrCreate()."
        )


def check_classic(spark: SparkSession, what: str, why: str) -> None:
    """Raise RocketMQError if there is no session, or if it is one of Spark Connect.

    The driver of a session of Spark Connect is another process.

    Args:
        spark: The session.
        what: Name of what needs a classic session, for the error.
        why: Reason, for the error.
    """
    check_session(spark, what)
    if not is_classic(spark):
        raise RocketMQError(f"{what} does not work with Spark Connect: {why}.")


def check_delta(spark: SparkSession) -> None:
    """Raise RocketMQError for a session without Delta Lake, or with a release too old for its Spark.

    A release can be too old only for a Spark newer than 4.2. A session of Spark Connect is not checked; there
    only the first use shows whether Delta Lake is available.
    """
    if not is_classic(spark):
        return
    jvm: Any = spark._jvm  # noqa: SLF001 - there is no other way to its classes
    has_delta = not isinstance(jvm.io.delta.tables.DeltaTable, JavaPackage)
    if not HAS_DELTA and (not has_delta or _is_too_old(jvm)):
        raise RocketMQError(
            "Replay.to_table needs Delta Lake in the session. Delta Lake has no release for Spark "
            f"{spark.version}, and this session has none that works with it. Use Spark 4.2, 4.1 or 4.0. "
            "Offset stores, a DeltaSink with a path and replays into a topic do not need it."
        )
    if not has_delta:
        raise RocketMQError(NO_DELTA)


def _is_too_old(jvm: Any) -> bool:
    """Return whether Delta Lake is a release for Spark 4.2 or older, which cannot read on a newer Spark."""
    try:
        version = str(jvm.io.delta.package.VERSION())
        return tuple(map(int, version.split(".")[:2])) <= NEWEST_DELTA
    except (Py4JError, TypeError, ValueError):
        # A platform's own Delta Lake.
        return False


def cores(spark: SparkSession) -> int:
    """Return Spark's default parallelism, usually the number of its cores.

    Over Spark Connect, run a job to find it.
    """
    if is_classic(spark):
        return int(spark.sparkContext.defaultParallelism)
    numbers = spark.range(_MANY).select(sf.spark_partition_id().alias("number"))
    return len(numbers.distinct().collect())


def check_worker_python(spark: SparkSession) -> None:
    """Try the workers' Python on this machine, before a query fails with a worker's ModuleNotFoundError.

    If no Python was named, Spark uses the ``python3`` of the PATH. If that one does not work, the session is
    switched to the one of ``spark.pyspark.python``, which Spark ignores in sessions created by Python.
    Without that setting, and if all workers are on this machine, it is switched to this program's Python.

    Raises:
        RocketMQError: If the Python cannot be started, has another version than this program's, or lacks
            packages that the workers need.
    """
    context: Any = spark.sparkContext
    executable = str(context.pythonExec)
    problem = _problem_of(executable)
    chosen = _chosen_python(spark) if problem is not None and executable == _SPARKS_PYTHON else None
    if chosen is not None:
        executable, problem = chosen, _problem_of(chosen)
    if problem is not None:
        raise RocketMQError(f"Spark would start its workers with '{executable}', which {problem}")
    if chosen is not None:
        logger.info(
            "workers are started with %s, since %s lacks packages that they need", chosen, context.pythonExec
        )
        context.pythonExec = chosen


def _chosen_python(spark: SparkSession) -> str | None:
    """Return the Python to use in place of ``python3``; None to leave the choice to Spark or the user."""
    if "PYSPARK_PYTHON" in os.environ:
        return None
    return _settings(spark).get("spark.pyspark.python", None) or (
        sys.executable if _is_local(spark) else None
    )


def _problem_of(executable: str) -> str | None:
    """Describe why workers cannot run with ``executable``, and what to do; None if they can."""
    return None if executable == sys.executable else _found_problem(executable)


@cache
def _found_problem(executable: str) -> str | None:
    advice = (
        f'Set os.environ["PYSPARK_PYTHON"] = {sys.executable!r} before the session is created, or export '
        f"PYSPARK_PYTHON where the program is started, or install pyspark-rocketmq for {executable}; then "
        "start the program again. spark-submit takes --conf spark.pyspark.python, too."
    )
    if not Path(executable).is_absolute() and "/" in executable:
        advice = (
            "The query is planned on the driver's machine, with the same Python: unpack the environment's "
            f"archive in the folder the driver is started in, {Path.cwd()}. {advice}"
        )
    try:
        probe = subprocess.run(  # noqa: S603 - the interpreter Spark itself is going to run
            [executable, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"failed: {error}. {advice}"
    if probe.returncode != 0:
        reason = (probe.stderr.strip().splitlines() or ["no message"])[-1]
        return f"cannot import the packages that they need ({reason}). {advice}"
    here = "{}.{}".format(*sys.version_info)
    there = probe.stdout.split()[-1]
    if there != here:
        return f"is Python {there}, while this program runs on {here}. {advice}"
    return None


def _is_local(spark: SparkSession) -> bool:
    """Return whether all workers are on this machine."""
    master = _settings(spark).get("spark.master", None) or ""
    return master == "local" or master.startswith("local[")


def driver_address(spark: SparkSession) -> tuple[str, str, bool]:
    """Return the host by which workers reach this process, and the host on which to listen.

    The third value is whether all workers are on this machine.
    """
    if _is_local(spark):
        return "127.0.0.1", "127.0.0.1", True
    settings = _settings(spark)
    host = settings.get("spark.driver.host", None) or "127.0.0.1"
    return host, settings.get("spark.driver.bindAddress", None) or host, False


def encrypts_network(spark: SparkSession) -> bool:
    """Return whether Spark's settings encrypt any connection between its processes."""
    settings = _settings(spark)
    return any(str(settings.get(key, "false")).strip().lower() == "true" for key in _ENCRYPTIONS)


def task_slots(spark: SparkSession) -> Slots:
    """Return how many tasks can run at the same time now, and how many a batch should have at most.

    The second number is 0, which means no maximum, if the cluster adds executors or refuses to answer.
    """
    try:
        # spark.default.parallelism may be any number.
        context: Any = spark.sparkContext._jsc.sc()  # noqa: SLF001 - there is no other way
        at_once = int(
            context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile())
        )
    except Exception as error:  # noqa: BLE001 - a platform may forbid it
        logger.info("how many tasks can run at the same time is not known: %s", error)
        cpus = int(spark.conf.get("spark.task.cpus", "1") or 1)
        return Slots(spark.sparkContext.defaultParallelism // cpus)
    is_growing = any(
        str(spark.conf.get(key, "")).strip().lower() == value for key, value in _GROWS_WITH_TASKS.items()
    )
    return Slots(at_once, 0 if is_growing else at_once)


def most_slots(spark: SparkSession) -> int:
    """Return how many tasks can run once dynamic allocation has added all executors; 0 if it is not known.

    It is known only if ``spark.dynamicAllocation.maxExecutors`` and ``spark.executor.cores`` are set.
    """
    names = ("spark.dynamicAllocation.maxExecutors", "spark.executor.cores", "spark.task.cpus")
    try:
        executors, cores, cpus = (int(spark.conf.get(name, "") or 0) for name in names)
    except Exception as error:  # noqa: BLE001 - a platform may forbid it
        logger.info("how many tasks can run at the same time at most is not known: %s", error)
        return 0
    return executors * (cores // max(1, cpus))


def calls_end_s(spark: SparkSession) -> float:
    """Return the maximum seconds after a query's end in which its listener may still be called.

    This depends on the time that Spark leaves a Python worker to end (``spark.python.task.killTimeout``).
    """
    try:
        settings: Any = spark.sparkContext._jsc.sc().conf()  # noqa: SLF001 - only Spark reads its spans of time
        kill_s = float(settings.getTimeAsMs(_KILL_TIMEOUT, _USUAL_KILL_TIMEOUT)) / 1000
    except Exception as error:  # noqa: BLE001 - a platform may forbid it
        logger.info("cannot read %s, using Spark's default: %s", _KILL_TIMEOUT, error)
        return CALLS_END_S
    return CALLS_END_S + max(kill_s - _USUAL_KILL_TIMEOUT_S, 0.0)


def idle_kill(spark: SparkSession) -> IdleKill | None:
    """Return after what time Spark kills a Python worker that yields no rows, and by which settings.

    Return None if Spark never does this, or if its settings cannot be read.
    """
    try:
        context = spark.sparkContext.getConf()
        killed = spark.conf.get(_UDF_KILL, context.get(_WORKER_KILL, "false"))
        seconds = spark.conf.get(_UDF_IDLE, context.get(_WORKER_IDLE, "0"))
        after_s = float(seconds or 0)
    except Exception as error:  # noqa: BLE001 - a platform may forbid it
        logger.info("cannot read %s, taking Spark's default: %s", _UDF_IDLE, error)
        return None
    if str(killed).strip().lower() != "true" or after_s <= 0:
        return None
    return IdleKill(after_s, (_UDF_IDLE, _UDF_KILL))


def ask_executors(
    spark: SparkSession, ask: ArrowFunction, columns: str, description: str
) -> Sequence[Row] | None:
    """Run a small job whose tasks call ``ask``, on all executors to which Spark gives one of the tasks.

    Args:
        spark: A classic session.
        ask: Function for ``mapInArrow``; its input is a few numbers, which it may ignore.
        columns: Columns of the rows that ``ask`` yields, as DDL.
        description: Description of the job in Spark's UI.

    Returns:
        All rows that the calls yielded; None if the job did not end within 60 s.
    """
    context = spark.sparkContext
    group = f"rocketmq-executors-{uuid.uuid4()}"

    def run() -> Sequence[Row]:
        context.setJobGroup(group, description, interruptOnCancel=True)
        tasks = min(max(context.defaultParallelism, 2), _MOST_ASKED)
        return spark.range(0, tasks, 1, tasks).mapInArrow(ask, columns).collect()

    thread = ThreadPoolExecutor(1, "rocketmq-executors")
    running = thread.submit(run)
    thread.shutdown(wait=False)
    try:
        return running.result(_ASK_TIMEOUT_S)
    except TimedOut:
        context.cancelJobGroup(group)
        return None


def is_active(query: StreamingQuery) -> bool:
    """Return whether a query is running; False if the JVM is gone."""
    try:
        return bool(query.isActive)
    except Exception:  # noqa: BLE001 - the JVM is gone, or its connection
        return False


def lives(query: StreamingQuery, spark: SparkSession) -> bool:
    """Return whether a query of a classic session is running and can run further batches.

    Spark counts an idle query as running after its session was stopped.
    """
    return not _has_stopped_context(spark) and is_active(query)
