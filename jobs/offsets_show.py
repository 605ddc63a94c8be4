"""Job ``offsets show``: the progress in an offset table, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from rich.console import Console

from jobs.errors import JobFailed
from jobs.offset_view import OffsetView, view_offsets
from jobs.settings import OffsetsShowSettings
from jobs.tables import offset_table
from pyspark_rocketmq.client.process_pool import process_pool
from pyspark_rocketmq.client.settings import ConnectionSettings
from pyspark_rocketmq.client.system_clock import SystemClock
from pyspark_rocketmq.datasource.cluster_view import ClusterView
from pyspark_rocketmq.errors import TopicNotFound
from pyspark_rocketmq.model import MessageQueue, QueueBounds
from pyspark_rocketmq.offsets.registry import open_offset_store
from pyspark_rocketmq.offsets.store import OffsetRow
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.wire.namespace import with_namespace


def show_offsets(settings: OffsetsShowSettings, console: Console, *, as_json: bool) -> None:
    """Print the group's progress, or every group's.

    Raises:
        JobFailed: If there is no such table or group.
    """
    views = view_offsets(
        rows := _read_rows(settings), _bounds_of({row.queue.topic for row in rows}, settings)
    )
    if as_json:
        console.print_json(json.dumps([view.columns() for view in views]), indent=2)
        return
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


def _bounds_of(topics: Iterable[str], settings: OffsetsShowSettings) -> dict[MessageQueue, QueueBounds]:
    if settings.name_servers is None:
        return {}
    bounds: dict[MessageQueue, QueueBounds] = {}
    for topic in sorted(topics):
        bounds |= broker_bounds(
            topic, settings.name_servers, settings.request_timeout_ms, settings.access_options()
        )
    return bounds


def _read_rows(settings: OffsetsShowSettings) -> list[OffsetRow]:
    groups = _groups_of(settings.offset_store)
    if settings.consumer_group is not None:
        wanted = with_namespace(settings.namespace or "", settings.consumer_group)
        if wanted not in groups:
            known = ", ".join(groups) or "none"
            raise JobFailed(
                f"The offset table {settings.offset_store} holds nothing of consumer group "
                f"'{wanted}'; its groups are: {known}."
            )
        groups = [wanted]
    store = open_offset_store(settings.offset_store)
    return [row for group in groups for row in store.read(group).values()]


def _groups_of(path: str) -> list[str]:
    """The groups of an existing table: opening a store would make a missing one."""
    try:
        partitions = DeltaTable(path.removeprefix("delta:")).partitions()
    except TableNotFoundError as error:
        raise JobFailed(f"There is no offset table at {path}; correct option 'offsetStore'.") from error
    return sorted({partition["consumer_group"] for partition in partitions})
