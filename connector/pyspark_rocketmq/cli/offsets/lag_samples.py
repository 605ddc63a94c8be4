"""Gathers the data for the chart of a group's lag, from the store's history and from the brokers."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from pyspark_rocketmq.cli.offsets.cluster import ClusterInspector
from pyspark_rocketmq.cli.offsets.groups import StoredGroup, open_group
from pyspark_rocketmq.cli.offsets.lag_chart import LagHistory, moments_at, sample_times
from pyspark_rocketmq.cli.options import OffsetsLagSettings
from pyspark_rocketmq.cli.settings import JobFailed
from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.model import MessageQueue, dlq_topic
from pyspark_rocketmq.offsets.history import Moment, StoredChange

_SAMPLES: Final = 80


def draw_lag(settings: OffsetsLagSettings, hours: float, page: Path | None, png: Path | None) -> None:
    """Draw the group's lag in the last ``hours`` into the HTML file ``page``, the file ``png``, or both.

    Raises:
        JobFailed: If no group is named, there is nothing to draw, or the extra 'charts' is not installed.
    """
    # Check for this extra first, so that nobody waits for data that cannot be drawn.
    chart = import_module("pyspark_rocketmq.cli.offsets.lag_chart")
    history = lag_history(settings, hours)
    if page is not None:
        chart.write_page(history, page)
    if png is not None:
        chart.write_png(history, png)


def lag_history(settings: OffsetsLagSettings, hours: float, clock: Clock | None = None) -> LagHistory:
    """Return 80 samples of a group's offsets, queues' ends and dead letters over the last ``hours``.

    The samples begin with the group's first change if that is later, and cover at least a minute.

    Raises:
        JobFailed: If no group is named, or no history of it is kept.
    """
    if settings.consumer_group is None:
        raise JobFailed("A chart shows one group: name it with option 'consumerGroup'.")
    group = open_group(settings, settings.consumer_group)
    clock = clock or SystemClock()
    changes = group.changes
    if not changes:
        raise JobFailed(
            f"The offset store has no history of group '{group.name}', so there is no chart. Start the "
            "group's query first: the history begins with it."
        )
    until_s = max(clock.now_s(), changes[-1].at_s + 1)
    since_s = max(until_s - hours * 3600, min(changes[0].at_s, until_s - 60))
    times_s = sample_times(since_s, until_s, _SAMPLES)
    moments = moments_at(times_s, _moments(group, changes, times_s))
    queues = sorted({queue for moment in moments if moment is not None for queue in moment.rows})
    cluster = ClusterInspector(settings, group.name.namespace, clock)
    ends = cluster.stored_by(queues, times_s)
    letters = [
        MessageQueue(dlq_topic(group.name.group), name, 0) for name in {queue.broker_name for queue in queues}
    ]
    dead = cluster.stored_by(letters, times_s, beside=queues)
    return LagHistory(
        group=str(group.name),
        times_s=times_s,
        moments=moments,
        ends=ends,
        dead_letters=tuple(sum(each.values()) for each in dead),
        resets_s=tuple(change.at_s for change in changes if change.is_reset and change.at_s >= since_s),
    )


def _moments(group: StoredGroup, changes: Sequence[StoredChange], times_s: Sequence[float]) -> list[Moment]:
    """Return the group's rows at the times ``times_s``: those after the last change before each time."""
    shown = moments_at(times_s, [Moment(change, {}) for change in changes])
    wanted = {moment.change.version: moment.change for moment in shown if moment is not None}
    rows = group.rows_of_all(list(wanted.values()))
    return [Moment(wanted[version], rows[version]) for version in sorted(rows)]
