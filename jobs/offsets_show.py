"""Job ``offsets show``: the progress in an offset table, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from rich.console import Console

from jobs.offset_view import OffsetView, view_offsets
from jobs.output import OutputForm, print_csv, print_json
from jobs.settings import OffsetsShowSettings
from jobs.stored_groups import read_groups
from jobs.tables import offset_table
from pyspark_rocketmq.client.process_pool import process_pool
from pyspark_rocketmq.client.settings import ConnectionSettings
from pyspark_rocketmq.client.system_clock import SystemClock
from pyspark_rocketmq.datasource.cluster_view import ClusterView
from pyspark_rocketmq.errors import TopicNotFound
from pyspark_rocketmq.model import MessageQueue, QueueBounds
from pyspark_rocketmq.options import ReadOptions


def show_offsets(
    settings: OffsetsShowSettings, console: Console, form: OutputForm = OutputForm.TABLE
) -> None:
    """Print the group's progress, or every group's.

    Raises:
        JobFailed: If there is no such table or group.
    """
    views: list[OffsetView] = []
    groups = read_groups(settings.offset_store, settings.consumer_group, settings.namespace)
    for name, rows in groups.items():
        topics = {row.queue.topic for row in rows}
        views += view_offsets(rows, _bounds_of(topics, name.namespace, settings))
    records = [view.columns() for view in views]
    match form:
        case OutputForm.JSON:
            print_json(console, records)
        case OutputForm.CSV:
            print_csv(console, tuple(records[0]) if records else (), records)
        case OutputForm.TABLE:
            print_offsets(views, console)


def print_offsets(views: Sequence[OffsetView], console: Console) -> None:
    """One table per group and topic."""
    for (group, topic), part in groupby(
        views, key=lambda view: (view.row.consumer_group, view.row.queue.topic)
    ):
        console.print(offset_table(group, topic, list(part)))


def broker_bounds(
    topic: str,
    name_servers: Sequence[str],
    request_timeout_ms: int,
    access_options: Mapping[str, str] | None = None,
) -> dict[MessageQueue, QueueBounds]:
    """What the brokers hold of ``topic`` now; nothing of a topic that is gone."""
    options = ReadOptions.parse(
        {
            "nameServers": ";".join(name_servers),
            "topic": topic,
            "requestTimeoutMs": str(request_timeout_ms),
            **(access_options or {}),
        }
    )
    pool = process_pool(ConnectionSettings.of(options))
    try:
        return dict(ClusterView(options, pool, SystemClock()).snapshot().bounds)
    except TopicNotFound:
        return {}


def _bounds_of(
    topics: Iterable[str], namespace: str, settings: OffsetsShowSettings
) -> dict[MessageQueue, QueueBounds]:
    if settings.name_servers is None:
        return {}
    access = settings.access_options(namespace)
    bounds: dict[MessageQueue, QueueBounds] = {}
    for topic in sorted(topics):
        bounds |= broker_bounds(topic, settings.name_servers, settings.request_timeout_ms, access)
    return bounds
