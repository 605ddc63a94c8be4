"""Command ``offsets lag``: how far groups are behind and who holds their queues. Without Spark.

The cost is bounded: for each group, one query of its topics, one list of members, one request to each
member, and one pull of a single message for each queue that is behind. Values that do not arrive in time stay
empty. The pulls name another group, so they touch neither the group's offsets nor its metrics.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from functools import partial

from rich.console import Console

from pyspark_rocketmq.cli.offsets.cluster import CALLS_AT_ONCE, ClusterInspector
from pyspark_rocketmq.cli.offsets.groups import read_groups
from pyspark_rocketmq.cli.offsets.records import LAG_COLUMNS, LagView, holder_of, totals
from pyspark_rocketmq.cli.options import OffsetsLagSettings
from pyspark_rocketmq.cli.output import OutputForm, lag_table, print_csv, print_json, totals_table
from pyspark_rocketmq.client.cluster import run_concurrently, stored_at_s
from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, QueueBounds
from pyspark_rocketmq.offsets.store import OffsetKey, OffsetRow

logger = logging.getLogger(__name__)


def show_lag(settings: OffsetsLagSettings, console: Console, form: OutputForm = OutputForm.TABLE) -> None:
    """Print the lag of the group in ``settings``, or of every group of the store if none is given.

    Raises:
        JobFailed: If there is no such store or group.
        RocketMQError: If no name server answers.
    """
    views = look_at_lag(settings)
    sums = totals(views)
    records = [view.columns() for view in views]
    match form:
        case OutputForm.JSON:
            print_json(console, {"queues": records, "totals": [total.columns() for total in sums]})
        case OutputForm.CSV:
            print_csv(console, LAG_COLUMNS, records)
        case OutputForm.TABLE:
            for total in sums:
                console.print(lag_table(total, console))
            console.print(totals_table(sums, console))


def look_at_lag(settings: OffsetsLagSettings, clock: Clock | None = None) -> list[LagView]:
    """Return the lag of every queue of the group in ``settings``, else of all groups, by group and queue.

    Values that brokers or members do not give in time are None.
    """
    groups = read_groups(settings, settings.consumer_group)
    clock = clock or SystemClock()
    looks: dict[str, _GroupLag] = {}
    views = []
    for name, rows in groups.items():
        if name.namespace not in looks:
            looks[name.namespace] = _GroupLag(ClusterInspector(settings, name.namespace, clock), clock)
        views += looks[name.namespace].at(name, rows)
    return sorted(views, key=lambda view: (view.row.consumer_group, view.row.queue))


class _GroupLag:
    """Computes the lag of groups: messages, and how long the next message of each queue has waited."""

    def __init__(self, cluster: ClusterInspector, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock

    def at(self, name: OffsetKey, rows: Collection[OffsetRow]) -> list[LagView]:
        """Return the lag of each queue in ``rows``, the rows of group ``name`` in the offset store."""
        topics = {row.queue.topic for row in rows}
        bounds = self._cluster.bounds(topics)
        members = self._cluster.members_of(name.group, topics)
        next_stored_at_s = self._next_stored_at_s(rows, bounds, self._cluster.addresses(topics))
        now_s = self._clock.now_s()
        return [
            LagView(
                name=name,
                row=row,
                bounds=bounds.get(row.queue),
                next_stored_at_s=next_stored_at_s.get(row.queue),
                holder=holder_of(name, row, members),
                now_s=now_s,
            )
            for row in rows
        ]

    def _next_stored_at_s(
        self,
        rows: Collection[OffsetRow],
        bounds: Mapping[MessageQueue, QueueBounds],
        addresses: Mapping[str, BrokerAddress],
    ) -> dict[MessageQueue, float]:
        behind = [
            (addresses[row.queue.broker_name], row)
            for row in rows
            if (found := bounds.get(row.queue)) is not None
            and found.min_offset <= row.next_offset < found.max_offset
        ]
        calls = [partial(self._stored_at_s, address, row) for address, row in behind]
        times = run_concurrently(calls, at_most=CALLS_AT_ONCE)
        return {row.queue: at_s for (_, row), at_s in zip(behind, times, strict=True) if at_s is not None}

    def _stored_at_s(self, address: BrokerAddress, row: OffsetRow) -> float | None:
        try:
            return stored_at_s(self._cluster.brokers, address, row.queue, row.next_offset)
        except RocketMQError as error:
            logger.warning(
                "next message not read, lagSeconds stays empty group=%s %s: %s",
                row.consumer_group,
                row.queue,
                error,
            )
            return None
