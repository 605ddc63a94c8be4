"""Command ``offsets show``: prints the progress in an offset table, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from rich.console import Console

from pyspark_rocketmq.cli.offsets.cluster import ClusterInspector
from pyspark_rocketmq.cli.offsets.groups import GroupRows, read_groups
from pyspark_rocketmq.cli.offsets.records import OffsetView, view_offsets
from pyspark_rocketmq.cli.options import OffsetsShowSettings
from pyspark_rocketmq.cli.output import OutputForm, offset_table, print_csv, print_json
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.model import MessageQueue, QueueBounds


def show_offsets(
    settings: OffsetsShowSettings, console: Console, form: OutputForm = OutputForm.TABLE
) -> None:
    """Print the progress of the group in ``settings``, or of every group in the store if none is given.

    Raises:
        JobFailed: If there is no such table or group.
        RocketMQError: If no name server answers.
    """
    groups = read_groups(settings, settings.consumer_group)
    views = _views(groups, settings)
    records = [view.columns() for view in views]
    match form:
        case OutputForm.JSON:
            print_json(console, records)
        case OutputForm.CSV:
            print_csv(console, tuple(records[0]) if records else (), records)
        case OutputForm.TABLE:
            print_offsets(views, console)


def _views(groups: GroupRows, settings: OffsetsShowSettings) -> list[OffsetView]:
    views: list[OffsetView] = []
    clusters: dict[str, ClusterInspector] = {}
    for name, rows in groups.items():
        bounds: Mapping[MessageQueue, QueueBounds] = {}
        if settings.name_servers is not None:
            if name.namespace not in clusters:
                clusters[name.namespace] = ClusterInspector(settings, name.namespace, SystemClock())
            bounds = clusters[name.namespace].bounds(sorted({row.queue.topic for row in rows}))
        views += view_offsets(rows, bounds)
    return views


def print_offsets(views: Sequence[OffsetView], console: Console) -> None:
    """Print one table per group and topic; ``views`` must be sorted by group and topic."""
    for (group, topic), part in groupby(
        views, key=lambda view: (view.row.consumer_group, view.row.queue.topic)
    ):
        console.print(offset_table(group, topic, list(part), console))
