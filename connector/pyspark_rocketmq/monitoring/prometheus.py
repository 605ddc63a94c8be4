"""Exports the metrics of a :class:`QueryMonitor` to Prometheus, computed at each scrape.

Needs the library ``prometheus-client``: ``pip install 'pyspark-rocketmq[prometheus]'``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from pyspark_rocketmq.monitoring.query_monitor import QueryMonitor, QueryState

_QUERY: Final = ("query",)
_QUEUE: Final = ("query", "topic", "broker", "queue")
_PREFIX: Final = "pyspark_rocketmq_"
_EDGES_MS: Final = sorted({1, *(n << power for n in (2, 3) for power in range(21))})
"""Bounds of the exported buckets, in milliseconds; a bucket of ``LatencyHistogram`` begins at each."""


class QueryCollector(Collector):
    """A collector for your own registry: ``registry.register(QueryCollector(monitor))``."""

    def __init__(self, monitor: QueryMonitor) -> None:
        self._monitor = monitor

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics. Ages are computed now, so that they grow while a query hangs."""
        states = list(self._monitor.queries().values())
        yield from self._of_queries(states)
        yield from _latencies(states)
        yield from self._queue_metrics(states)

    def _of_queries(self, states: list[QueryState]) -> Iterator[Metric]:
        batches = _counter("batches", "Micro-batches.", _QUERY)
        rows = _counter("rows", "Rows added to the consumer's sink.", _QUERY)
        seconds = _gauge("batch_seconds", "Duration of the last micro-batch.", _QUERY)
        ended = _gauge(
            "last_batch_timestamp_seconds",
            "Unix time of the last micro-batch's end, or of a later commit.",
            _QUERY,
        )
        for state in states:
            labels = [state.latest.query]
            batches.add_metric(labels, state.batches)
            rows.add_metric(labels, state.rows)
            if state.batch_s is not None:
                seconds.add_metric(labels, state.batch_s)
            ended.add_metric(labels, state.latest.at_s)
        yield from (batches, rows, seconds, ended)

    def _queue_metrics(self, states: list[QueryState]) -> Iterator[Metric]:
        now_s = self._monitor.now_s()
        lag = _gauge("lag_messages", "Messages stored and not yet consumed.", _QUEUE)
        lag_s = _gauge("lag_seconds", "For how long the queue's next message has waited.", _QUEUE)
        suspended = _gauge(
            "suspended", "1 while the queue waits because its listener gave a message back.", _QUEUE
        )
        times = _gauge("reconsume_times", "How often the queue's next message was given back.", _QUEUE)
        planned = _gauge(
            "planned_messages",
            "Offsets planned for the last micro-batch, or read for the last commit.",
            _QUEUE,
        )
        read = _gauge("read_messages", "Messages read for the last micro-batch or commit.", _QUEUE)
        passed = _counter("acknowledged_messages", "Messages passed, dead letters included.", _QUEUE)
        retried = _counter("retried_deliveries", "Deliveries given back by the listener.", _QUEUE)
        dead = _counter("dead_letters", "Messages given up.", _QUEUE)
        for state in states:
            for metrics in state.latest.queues:
                topic, broker_name, queue_id = metrics.queue
                labels = [state.latest.query, topic, broker_name, str(queue_id)]
                values = [
                    (lag, metrics.lag.messages if metrics.lag else None),
                    (lag_s, metrics.lag.seconds(now_s) if metrics.lag else None),
                    (suspended, metrics.is_suspended(now_s)),
                    (times, metrics.reconsume_times),
                    (planned, metrics.planned),
                    (read, metrics.read),
                ]
                for family, value in values:
                    if value is not None:
                        family.add_metric(labels, value)
            for (topic, broker_name, queue_id), sums in state.queues.items():
                labels = [state.latest.query, topic, broker_name, str(queue_id)]
                passed.add_metric(labels, sums.acknowledged)
                retried.add_metric(labels, sums.retried)
                dead.add_metric(labels, sums.dead_letters)
        yield from (lag, lag_s, suspended, times, planned, read, passed, retried, dead)


def _latencies(states: list[QueryState]) -> Iterator[Metric]:
    to_listener = _histogram("store_to_listener_seconds", "From a message's store to its delivery.")
    to_commit = _histogram("store_to_commit_seconds", "From a message's store to the commit that passes it.")
    for state in states:
        for family, found in ((to_listener, state.store_to_listener), (to_commit, state.store_to_commit)):
            if not found.counts:
                # A query without a consumer counts none.
                continue
            below = zip(_EDGES_MS, found.below(_EDGES_MS), strict=True)
            buckets = [(f"{edge / 1000}", count) for edge, count in below]
            buckets.append(("+Inf", found.messages))
            family.add_metric([state.latest.query], buckets, found.total_ms / 1000)
    yield from (to_listener, to_commit)


class PrometheusEndpoint:
    """Serves ``http://HOST:PORT/metrics`` for one monitor, with threads of this process."""

    def __init__(self, monitor: QueryMonitor, port: int, *, host: str = "127.0.0.1") -> None:
        """Start serving.

        Args:
            monitor: The monitor whose metrics are served.
            port: Port to listen at; 0 selects a free one, see :attr:`port`.
            host: Address to listen at, by default reachable only from this machine, since the metrics need
                no password.

        Raises:
            OSError: If the port is taken.
        """
        registry = CollectorRegistry()
        registry.register(QueryCollector(monitor))
        self._server, self._thread = start_http_server(port, host, registry)

    @property
    def port(self) -> int:
        """The port at which metrics are served; useful if port 0 was given."""
        return self._server.server_port

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _gauge(name: str, text: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
    return GaugeMetricFamily(_PREFIX + name, text, labels=labels)


def _counter(name: str, text: str, labels: tuple[str, ...]) -> CounterMetricFamily:
    return CounterMetricFamily(_PREFIX + name, text, labels=labels)


def _histogram(name: str, text: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(_PREFIX + name, text, labels=_QUERY)
