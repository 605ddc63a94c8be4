"""Job ``offsets lag``: how far groups are behind and who holds their queues, asked of table, brokers and members.

Without Spark, and bounded: each group costs one look at its topics, one list of members, one request to each of
them, and one pull of a single message for each queue that is behind; what does not answer in time stays empty.
The pulls are those of an operator: the group's own offsets and figures are not touched.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from rich.console import Console

from jobs.lag_view import LagView, Members, holder_of, totals
from jobs.settings import OffsetsLagSettings
from jobs.stored_groups import read_groups
from jobs.tables import lag_table, totals_table
from pyspark_rocketmq.client.admin import AdminClient
from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.process_pool import process_pool
from pyspark_rocketmq.client.settings import ConnectionSettings
from pyspark_rocketmq.client.stored_time import stored_at_s
from pyspark_rocketmq.client.system_clock import SystemClock
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.datasource.cluster_view import ClusterView, Snapshot
from pyspark_rocketmq.errors import BrokerError, RocketMQError, TopicNotFound, TransportError
from pyspark_rocketmq.model import BrokerAddress, MessageQueue
from pyspark_rocketmq.offsets.progress_name import ProgressName
from pyspark_rocketmq.offsets.store import OffsetRow
from pyspark_rocketmq.options import ReadOptions

logger = logging.getLogger(__name__)

_CALLS_AT_ONCE: Final = 32


def show_lag(settings: OffsetsLagSettings, console: Console, *, as_json: bool) -> None:
    """Print the lag of the group, or of every group of the table.

    Raises:
        JobFailed: If there is no such table or group.
        RocketMQError: If no name server answers.
    """
    views = look_at_lag(settings)
    sums = totals(views)
    if as_json:
        report: dict[str, list[dict[str, Any]]] = {
            "queues": [view.columns() for view in views],
            "totals": [total.columns() for total in sums],
        }
        console.print_json(json.dumps(report), indent=2)
        return
    for total in sums:
        console.print(lag_table(total))
    console.print(totals_table(sums))


def look_at_lag(settings: OffsetsLagSettings, clock: Clock | None = None) -> list[LagView]:
    """Ask everybody; sorted by group and queue."""
    groups = read_groups(settings.offset_store, settings.consumer_group, settings.namespace)
    clock = clock or SystemClock()
    with ThreadPoolExecutor(_CALLS_AT_ONCE, "rocketmq-lag") as threads:
        looks: dict[str, _Look] = {}
        views = []
        for name, rows in groups.items():
            look = looks.setdefault(name.namespace, _Look(settings, name.namespace, clock, threads))
            views += look.at(name, rows)
        return sorted(views, key=lambda view: (view.row.consumer_group, view.row.queue))


class _Look:
    """What the cluster tells of the groups of one namespace."""

    def __init__(
        self, settings: OffsetsLagSettings, namespace: str, clock: Clock, threads: ThreadPoolExecutor
    ) -> None:
        self._settings = settings
        self._namespace = namespace
        self._clock = clock
        self._threads = threads
        self._snapshots: dict[str, Snapshot | None] = {}
        self._members: dict[str, Members] = {}
        self._pool = process_pool(ConnectionSettings.of(self._options("any")))
        timeout_s = settings.request_timeout_ms / 1000
        self._brokers = BrokerClient(self._pool, clock, timeout_s, namespace=namespace)
        self._admin = AdminClient(self._pool, clock, timeout_s, namespace=namespace)

    def at(self, name: ProgressName, rows: Collection[OffsetRow]) -> list[LagView]:
        """The rows of one group."""
        snapshots = {topic: self._snapshot(topic) for topic in {row.queue.topic for row in rows}}
        addresses: dict[str, BrokerAddress] = {}
        for found in snapshots.values():
            addresses |= found.addresses if found is not None else {}
        members = self._members_of(name.group, sorted(set(addresses.values())))
        next_stored_at_s = self._next_stored_at_s(rows, snapshots)
        now_s = self._clock.now_s()
        return [
            LagView(
                name=name,
                row=row,
                bounds=found.bounds.get(row.queue) if (found := snapshots[row.queue.topic]) else None,
                next_stored_at_s=next_stored_at_s.get(row.queue),
                holder=holder_of(name, row, members),
                now_s=now_s,
            )
            for row in rows
        ]

    def _snapshot(self, topic: str) -> Snapshot | None:
        """None of a topic that is gone, or of which no broker answers."""
        if topic not in self._snapshots:
            self._snapshots[topic] = self._looked_at(topic)
        return self._snapshots[topic]

    def _looked_at(self, topic: str) -> Snapshot | None:
        view = ClusterView(self._options(topic), self._pool, self._clock)
        try:
            view.routes()
        except TopicNotFound as error:
            logger.warning("%s", error)
            return None
        try:
            found = view.snapshot()
        except TransportError as error:
            logger.warning("no broker of topic %s answers: %s", topic, error)
            return None
        for broker_name, trouble in found.unreachable.items():
            logger.warning("broker does not answer broker=%s: %s", broker_name, trouble)
        return found

    def _members_of(self, group: str, addresses: Collection[BrokerAddress]) -> Members:
        """Asked once, however many instances of a broadcasting group there are."""
        if group not in self._members:
            self._members[group] = self._asked_members(group, addresses)
        return self._members[group]

    def _asked_members(self, group: str, addresses: Collection[BrokerAddress]) -> Members:
        """What each member tells, through the first broker that knows the group."""
        for address in addresses:
            try:
                listed = self._brokers.consumer_list(address, group)
            except BrokerError:
                # "no consumer for this group", of a broker that was started a moment ago perhaps.
                continue
            except RocketMQError as error:
                logger.warning("members not listed group=%s broker=%s: %s", group, address, error)
                continue
            told = self._threads.map(lambda member: self._queues_of(address, group, member), set(listed))  # noqa: B023
            return {client_id: queues for client_id, queues in told if queues is not None}
        return {}

    def _queues_of(self, address: BrokerAddress, group: str, client_id: str) -> tuple[str, Any]:
        try:
            return client_id, self._admin.running_info(address, group, client_id).queues
        except RocketMQError as error:
            logger.warning("member does not answer group=%s client_id=%s: %s", group, client_id, error)
            return client_id, None

    def _next_stored_at_s(
        self, rows: Collection[OffsetRow], snapshots: Mapping[str, Snapshot | None]
    ) -> dict[MessageQueue, float]:
        behind = [
            (found.addresses[row.queue.broker_name], row)
            for row in rows
            if (found := snapshots[row.queue.topic]) is not None
            and (bounds := found.bounds.get(row.queue)) is not None
            and bounds.min_offset <= row.next_offset < bounds.max_offset
        ]
        stored = self._threads.map(lambda one: (one[1].queue, self._stored_at_s(*one)), behind)
        return {queue: at_s for queue, at_s in stored if at_s is not None}

    def _stored_at_s(self, address: BrokerAddress, row: OffsetRow) -> float | None:
        try:
            return stored_at_s(self._brokers, address, row.queue, row.next_offset)
        except RocketMQError as error:
            logger.warning("next message not read group=%s %s: %s", row.consumer_group, row.queue, error)
            return None

    def _options(self, topic: str) -> ReadOptions:
        return ReadOptions.parse(
            {
                "nameServers": ";".join(self._settings.name_servers),
                "topic": topic,
                "requestTimeoutMs": str(self._settings.request_timeout_ms),
                **self._settings.access_options(self._namespace),
            }
        )
