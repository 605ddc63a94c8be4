"""``QueryMonitor``: listens to streaming queries and reports their queues' positions after each micro-batch.

The consumer reports a batch on the query's thread; Spark reports it later, on its listener thread. Both only
pass on their data: the monitor computes metrics, queries brokers and calls listeners on its own thread, so
that an unreachable broker delays neither Spark nor the query.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

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
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.monitoring.batch_metrics import BatchMetrics, metrics_of
from pyspark_rocketmq.options.read import ReadOptions

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 1.5
"""Time-out of one request. It is short, so that an unreachable broker does not delay metrics for long."""
_CALLS_AT_ONCE: Final = 16

_REPORTS_KEPT: Final = 100
"""Reports kept of batches without progress: Spark drops events if its listeners are too slow."""
MetricsListener = Callable[[BatchMetrics], None]


class StoredTimes:
    """Queries when messages were stored, with the access configured by ``options``. For one thread."""

    def __init__(self, options: ReadOptions) -> None:
        self._clock = SystemClock()
        cluster = Cluster.of(options, self._clock, at_most_s=_TIMEOUT_S)
        self._name_server, self._brokers = cluster.name_server(), cluster.brokers()
        self._known: dict[MessageQueue, tuple[int, float]] = {}
        self._silent: set[str] = set()

    def query(self, positions: Mapping[MessageQueue, int]) -> dict[MessageQueue, float]:
        """Return when the messages at ``positions`` were stored, for the queues whose brokers answer."""
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


@dataclass(frozen=True, slots=True)
class QueueTotals:
    """Totals of one query and one queue since the monitor started."""

    acknowledged: int = 0
    retried: int = 0
    dead_letters: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryState:
    """State of one running query."""

    latest: BatchMetrics
    batches: int = 0
    """Micro-batches since the monitor started, like the other sums."""
    rows: int = 0
    queues: Mapping[MessageQueue, QueueTotals] = field(default_factory=dict)

    def after(self, metrics: BatchMetrics) -> QueryState:
        """Return the state with one more batch."""
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
            batches=self.batches + 1,
            rows=self.rows + (metrics.rows or 0),
            queues=totals,
        )


class QueryMonitor(StreamingQueryListener):
    """Metrics of every query of ``format("rocketmq")`` in a session, and of consumers in more detail.

    One log line for each micro-batch, at INFO; :meth:`queries` shows all; listeners get each batch.
    """

    def __init__(self, options: Mapping[str, str] | None = None, *, clock: Clock | None = None) -> None:
        """Create a monitor that watches nothing yet; see :meth:`watch`.

        Args:
            options: Options of the source, with which brokers are queried for queries without a consumer, to
                find how long their messages have waited. None: the lag of such queries is known only in
                messages.
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
        """Call ``listener`` with the metrics of each later micro-batch, on the monitor's thread."""
        self._listeners.append(listener)

    def queries(self) -> dict[str, QueryState]:
        """Return the running queries by run id, in their states after the last micro-batches."""
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
        """Note that a consumer has committed a batch (``BatchListener``), which Spark will report too.

        A batch may have several commits, of which each has a report.
        """
        with self._guard:
            key = report.query_id, report.batch_id
            before, _ = self._reports.pop(key, (None, None))
            self._reports[key] = report if before is None else before.with_later(report), times
            while len(self._reports) > _REPORTS_KEPT:
                del self._reports[next(iter(self._reports))]

    # --- Spark's listener -----------------------------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: a query is tracked from its first micro-batch on."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: the metrics of the last micro-batch stay valid."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Process the end of a micro-batch."""
        progress = json.loads(event.progress.json)
        with self._guard:
            found = self._reports.pop((progress["id"], progress["batchId"]), (None, self._default_times))
            self._waiting += 1
        if not self._submit(self._take_in, progress, *found):
            with self._guard:
                self._waiting -= 1

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Remove a query that has ended, since its metrics no longer change."""
        self._submit(self._forget, str(event.runId))

    def _submit(self, work: Callable[..., None], *arguments: Any) -> bool:
        """Submit work; return False if the monitor is closed: Spark may report a batch during ``close``."""
        try:
            self._thread.submit(work, *arguments)
        except RuntimeError:
            return False
        return True

    # --- the thread -----------------------------------------------------------------------------------------

    def _take_in(
        self, progress: Mapping[str, Any], report: BatchReport | None, times: StoredTimes | None
    ) -> None:
        try:
            metrics = metrics_of(progress, report, self._clock.now_s())
            if metrics is not None:
                self._publish(metrics if times is None or self._is_behind() else _with_times(metrics, times))
        except Exception:
            # Nobody watches this thread; the query must not be affected.
            logger.exception("metrics of a batch could not be computed")
        finally:
            with self._guard:
                self._waiting -= 1

    def _is_behind(self) -> bool:
        """Whether newer metrics are waiting; brokers are then queried only for those."""
        with self._guard:
            return self._waiting > 1

    def _publish(self, metrics: BatchMetrics) -> None:
        with self._guard:
            state = self._queries.get(metrics.run_id, QueryState(latest=metrics))
            self._queries[metrics.run_id] = state.after(metrics)
        logger.info("batch %s", metrics.line())
        for listener in self._listeners:
            try:
                listener(metrics)
            except Exception:
                logger.exception("a listener of metrics failed query=%s", metrics.query)

    def _forget(self, run_id: str) -> None:
        with self._guard:
            self._queries.pop(run_id, None)


def _with_times(metrics: BatchMetrics, times: StoredTimes) -> BatchMetrics:
    behind = {one.queue: one.lag.next_offset for one in metrics.queues if one.lag and one.lag.messages}
    return metrics.with_stored_times(times.query(behind))
