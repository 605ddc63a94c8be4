"""``QueryMonitor``: listens to streaming queries and reports their queues' positions after each commit.

The consumer reports each commit on a thread of the query; Spark reports the batch's end, on its listener
thread. Both only pass on their data: the monitor computes metrics, queries brokers and calls listeners on its
own thread, so that an unreachable broker delays neither Spark nor the query. A commit while the batch's job
runs is shown immediately, any other with the batch's end.
"""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from pyspark_rocketmq.client.cluster import Cluster, run_concurrently, stored_at_s
from pyspark_rocketmq.clock import Clock, Deadline, SystemClock
from pyspark_rocketmq.commit.pipeline import BatchReport
from pyspark_rocketmq.consume.latencies import NONE_COUNTED, LatencyHistogram
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.display import masking_logger
from pyspark_rocketmq.errors import RocketMQError, TransportError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.monitoring.batch_metrics import BatchMetrics, metrics_of, metrics_of_commit
from pyspark_rocketmq.options.read import ReadOptions

logger = masking_logger(__name__)

_TIMEOUT_S: Final = 1.5
"""Time-out of one request. It is short, so that an unreachable broker does not delay metrics for long."""
_CALLS_AT_ONCE: Final = 16
_SHARE_OF_TIME: Final = 20
"""Length of the pause after brokers were asked, as a multiple of the time that the requests took. In the
pause, commits within a batch ask no broker."""

_REPORTS_KEPT: Final = 100
"""Maximum number of reports kept until Spark reports their batches' ends. Spark may never do so: it drops
events if its listeners are too slow."""
MetricsListener = Callable[[BatchMetrics], None]
"""Gets the metrics of a micro-batch, or of a commit within one."""


class StoredTimes:
    """Queries the ends of queues, and when messages were stored, with the access configured by ``options``.

    Only one thread may use it.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._clock = SystemClock()
        cluster = Cluster.of(options, self._clock, at_most_s=_TIMEOUT_S)
        self._name_server, self._brokers = cluster.name_server(), cluster.brokers()
        self._known: dict[MessageQueue, tuple[int, float]] = {}
        self._silent: set[str] = set()
        self._ends: dict[MessageQueue, int] = {}
        self._due_s = -math.inf

    @property
    def is_due(self) -> bool:
        """Whether brokers may be asked again for a commit within a batch.

        They may after a pause since they were last asked for the ends of queues. The pause is 20 times as
        long as those requests took.
        """
        return self._clock.monotonic_s() >= self._due_s

    def ends(self, positions: Mapping[MessageQueue, int], *, asks: bool) -> dict[MessageQueue, int]:
        """Return the ends of the queues in ``positions`` whose brokers answer.

        With ``asks=False`` no broker is asked: return the ends that were found last. An end below the queue's
        position in ``positions`` is then raised to this position, since messages up to there have been
        consumed.
        """
        if not asks:
            return {queue: max(end, positions.get(queue, end)) for queue, end in self._ends.items()}
        began_s = self._clock.monotonic_s()
        self._silent = set()
        places = sorted({(queue.broker_name, queue.topic) for queue in positions})
        found = run_concurrently([partial(self._ends_at, *each) for each in places], at_most=_CALLS_AT_ONCE)
        self._ends = {queue: end for each in found for queue, end in each.items() if queue in positions}
        now_s = self._clock.monotonic_s()
        self._due_s = now_s + (now_s - began_s) * _SHARE_OF_TIME
        return dict(self._ends)

    def _ends_at(self, broker_name: str, topic: str) -> dict[MessageQueue, int]:
        if broker_name in self._silent:
            return {}
        try:
            route = self._name_server.route(topic, Deadline.after(self._clock, _TIMEOUT_S))
            address = route.address_of(broker_name)
            if address is None:
                return {}
            statistics = self._brokers.topic_stats(address, topic, broker_name=broker_name)
        except RocketMQError as error:
            if isinstance(error, TransportError):
                self._silent.add(broker_name)
            logger.warning("ends of queues not known broker=%s topic=%s: %s", broker_name, topic, error)
            return {}
        return {queue: bounds.max_offset for queue, bounds in statistics.items()}

    def last_known(self, positions: Mapping[MessageQueue, int]) -> dict[MessageQueue, float]:
        """Return the store times that the last :meth:`query` found for these queues, without asking a broker.

        Each is the time of the message at the queue's position in that query. The position in ``positions``
        may be a later one. Queues without a known time are left out.
        """
        return {queue: stored for queue, (_, stored) in self._known.items() if queue in positions}

    def query(self, positions: Mapping[MessageQueue, int]) -> dict[MessageQueue, float]:
        """Return, by queue, the wall-clock second at which the message at its position was stored.

        Brokers are asked only for queues that have moved since the previous call, or had no time then. Queues
        whose brokers do not answer, or have no such message, are left out.
        """
        self._known = {
            queue: known for queue, known in self._known.items() if positions.get(queue) == known[0]
        }
        self._silent = set()
        unknown = {queue: at for queue, at in positions.items() if queue not in self._known}
        if unknown:
            calls = [partial(self._query_one, each) for each in unknown.items()]
            times = run_concurrently(calls, at_most=_CALLS_AT_ONCE)
            for (queue, at), stored in zip(unknown.items(), times, strict=True):
                if stored is not None:
                    self._known[queue] = at, stored
        return {queue: stored for queue, (_, stored) in self._known.items()}

    def _query_one(self, position: tuple[MessageQueue, int]) -> float | None:
        queue, queue_offset = position
        # Do not query a silent broker for its other queues: wait for at most one time-out per broker, not per
        # queue.
        if queue.broker_name in self._silent:
            return None
        try:
            route = self._name_server.route(queue.topic, Deadline.after(self._clock, _TIMEOUT_S))
            address = route.address_of(queue.broker_name)
            return None if address is None else stored_at_s(self._brokers, address, queue, queue_offset)
        except RocketMQError as error:
            self._silent.add(queue.broker_name)
            logger.warning("age of the next message not known %s: %s", queue, error)
            return None


class _Run(NamedTuple):
    """One run of a query."""

    run_id: str
    query: str
    """Its name, or its id if it has none."""
    began_s: float
    """Wall-clock second of its start."""


@dataclass(frozen=True, slots=True)
class QueueTotals:
    """Numbers of messages of one queue in one run of a query, since the monitor has watched the run.

    They are sums of the fields of the same names in ``QueueMetrics``.
    """

    acknowledged: int = 0
    retried: int = 0
    dead_letters: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryState:
    """Newest metrics of one running query, and sums over this run since the monitor has watched it."""

    latest: BatchMetrics
    batches: int = 0
    """Number of micro-batches of this run that the monitor has seen end."""
    batch_s: float | None = None
    """Duration of the last micro-batch that has ended, in seconds; None before the first end."""
    rows: int = 0
    """Number of rows added to the consumer's sink."""
    store_to_listener: LatencyHistogram = NONE_COUNTED
    """For all messages that a consumer has finished: times from storage at the broker to delivery."""
    store_to_commit: LatencyHistogram = NONE_COUNTED
    """For the same messages: times from storage at the broker to the commit that passed them."""
    queues: Mapping[MessageQueue, QueueTotals] = field(default_factory=dict)
    """Sums by queue."""

    def after(self, metrics: BatchMetrics) -> QueryState:
        """Return the state after ``metrics``, of one more batch or one more commit while a batch runs."""
        totals = dict(self.queues)
        for queue_metrics in metrics.queues:
            before = totals.get(queue_metrics.queue, QueueTotals())
            totals[queue_metrics.queue] = QueueTotals(
                before.acknowledged + queue_metrics.acknowledged,
                before.retried + queue_metrics.retried,
                before.dead_letters + queue_metrics.dead_letters,
            )
        return QueryState(
            latest=metrics,
            batches=self.batches + metrics.has_ended,
            batch_s=metrics.duration_s if metrics.has_ended else self.batch_s,
            rows=self.rows + (metrics.rows or 0),
            store_to_listener=self.store_to_listener.plus(metrics.store_to_listener),
            store_to_commit=self.store_to_commit.plus(metrics.store_to_commit),
            queues=totals,
        )


class QueryMonitor(StreamingQueryListener):
    """Metrics of every query of ``format("rocketmq")`` in a session, and of consumers in more detail.

    It logs one line for each micro-batch, at INFO, and one for each commit while a batch runs, at DEBUG.
    Registered listeners get a ``BatchMetrics`` for each micro-batch and for each of these commits. The method
    :meth:`queries` returns the present state of all running queries.
    """

    def __init__(self, options: Mapping[str, str] | None = None, *, clock: Clock | None = None) -> None:
        """Create a monitor that watches nothing yet; see :meth:`watch`.

        Args:
            options: Options of the source, for access to brokers. With them the monitor also finds how long
                the messages of queries without a consumer have waited. Without them the lag of such queries
                is known only in messages.
            clock: The system's clock unless given.

        Raises:
            OptionError: If the options are wrong.
        """
        self._clock = clock or SystemClock()
        self._default_times = None if options is None else StoredTimes(ReadOptions.parse(options))
        self._listeners: list[MetricsListener] = []
        self._guard = threading.Lock()
        self._reports: dict[tuple[str, int], tuple[BatchReport, StoredTimes | None]] = {}
        self._queries: dict[str, QueryState] = {}
        self._runs: dict[str, _Run] = {}
        """Runs of queries, by the queries' ids."""
        self._waiting = 0
        self._thread = ThreadPoolExecutor(1, "rocketmq-monitor")

    def watch(self, spark: SparkSession, consumer: PushConsumer | None = None) -> None:
        """Listen to the queries of ``spark``, and to ``consumer``, which must not be started yet.

        Call this once for each consumer. The monitor listens to the session of the first call.

        Raises:
            OptionError: If the consumer's configuration is wrong.
        """
        if consumer is not None:
            times = StoredTimes(ReadOptions.parse(consumer.source_options()))
            consumer.register_batch_listener(partial(self.batch_committed, times=times))
        if self.spark is None:
            self.spark = spark
            spark.streams.addListener(self)

    def register_listener(self, listener: MetricsListener) -> None:
        """Call ``listener`` with the metrics of each later batch or commit, on the monitor's thread.

        An exception of the listener is logged and changes nothing.
        """
        self._listeners.append(listener)

    def queries(self) -> dict[str, QueryState]:
        """Return the running queries by run id, in their states after the last commits."""
        with self._guard:
            return dict(self._queries)

    def now_s(self) -> float:
        """Return the wall-clock seconds of the monitor's clock, to which ages and suspensions refer."""
        return self._clock.now_s()

    def close(self) -> None:
        """Finish pending metrics and stop listening."""
        if self.spark is not None:
            self.spark.streams.removeListener(self)
            self.spark = None
        self._thread.shutdown()

    def batch_committed(self, report: BatchReport, times: StoredTimes | None = None) -> None:
        """Take the report of a consumer's commit (``BatchListener``).

        A commit while the batch's job runs is shown immediately. Any other is kept until Spark reports the
        end of the batch. ``times`` queries the consumer's brokers; None means that they are not asked.
        """
        with self._guard:
            run = self._runs.get(report.query_id) if report.is_ahead else None
        if run is not None and self._submit(self._take_in, partial(self._of_commit, report, times, run)):
            report = report.without_counts()
        with self._guard:
            key = report.query_id, report.batch_id
            before, _ = self._reports.pop(key, (None, None))
            self._reports[key] = report if before is None else before.with_later(report), times
            while len(self._reports) > _REPORTS_KEPT:
                del self._reports[next(iter(self._reports))]

    # --- Spark's listener -----------------------------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Note the query's name and run; metrics follow with its first commit or micro-batch."""
        run = _Run(str(event.runId), event.name or str(event.id), self._clock.now_s())
        with self._guard:
            self._runs[str(event.id)] = run

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: the metrics of the last micro-batch stay valid."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Compute and show the metrics of a micro-batch that has ended, on the monitor's thread."""
        progress = json.loads(event.progress.json)
        with self._guard:
            found = self._reports.pop((progress["id"], progress["batchId"]), (None, self._default_times))
        self._submit(self._take_in, partial(self._of_batch, progress, *found))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Remove a query that has ended, since its metrics no longer change."""
        with self._guard:
            run = self._runs.get(str(event.id))
            if run is not None and run.run_id == str(event.runId):
                del self._runs[str(event.id)]
        self._submit(self._forget, str(event.runId))

    def _submit(self, work: Callable[..., None], *arguments: Any) -> bool:
        """Have the monitor's thread do ``work``; return False if the monitor is closed.

        Spark may report a batch during :meth:`close`.
        """
        with self._guard:
            self._waiting += 1
        try:
            self._thread.submit(self._run, work, *arguments)
        except RuntimeError:
            with self._guard:
                self._waiting -= 1
            return False
        return True

    def _run(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except Exception:
            # Nobody watches this thread; the query must not be affected.
            logger.exception("metrics could not be computed")
        finally:
            with self._guard:
                self._waiting -= 1

    # --- the thread -----------------------------------------------------------------------------------------

    def _take_in(self, compute: Callable[[], BatchMetrics | None]) -> None:
        metrics = compute()
        if metrics is not None:
            self._publish(metrics)

    def _of_batch(
        self, progress: Mapping[str, Any], report: BatchReport | None, times: StoredTimes | None
    ) -> BatchMetrics | None:
        metrics = metrics_of(progress, report, self._clock.now_s())
        if metrics is None or times is None or self._is_behind():
            return metrics
        return metrics.with_stored_times(times.query(_behind(metrics)))

    def _of_commit(self, report: BatchReport, times: StoredTimes | None, run: _Run) -> BatchMetrics:
        positions = {row.queue: row.next_offset for row in report.offsets}
        asks = times is not None and times.is_due and not self._is_behind()
        before = self._queries.get(run.run_id)
        metrics = metrics_of_commit(
            report,
            query=run.query,
            run_id=run.run_id,
            max_offsets={} if times is None else times.ends(positions, asks=asks),
            since_s=run.began_s if before is None else before.latest.at_s,
            now_s=self._clock.now_s(),
        )
        if times is None:
            return metrics
        behind = _behind(metrics)
        return metrics.with_stored_times(times.query(behind) if asks else times.last_known(behind))

    def _is_behind(self) -> bool:
        """Return whether newer metrics are waiting; brokers are then queried only for the newer ones."""
        with self._guard:
            return self._waiting > 1

    def _publish(self, metrics: BatchMetrics) -> None:
        with self._guard:
            state = self._queries.get(metrics.run_id, QueryState(latest=metrics))
            self._queries[metrics.run_id] = state.after(metrics)
        # A batch in real time commits twice a second.
        logger.log(logging.INFO if metrics.has_ended else logging.DEBUG, "batch %s", metrics.line())
        for listener in self._listeners:
            try:
                listener(metrics)
            except Exception:
                logger.exception("a listener of metrics failed query=%s", metrics.query)

    def _forget(self, run_id: str) -> None:
        with self._guard:
            self._queries.pop(run_id, None)


def _behind(metrics: BatchMetrics) -> dict[MessageQueue, int]:
    """Return the next offset of each queue that has messages which are not consumed yet."""
    return {one.queue: one.lag.next_offset for one in metrics.queues if one.lag and one.lag.messages}
