"""Operators' changes to a group, running or away: resets, permissions,
tables restored and deleted.
"""

from __future__ import annotations

import time

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.applications.running_application import Group, wait_patiently
from tests.helpers.administrator import Administrator
from tests.helpers.cluster import ClusterUnderTest

_BACK_S = 120.0
"""How far a reset goes back."""
_RESTORED_VERSIONS = 5
_CHANGE_S = 120.0
_READ_AND_WRITE, _WRITE = 6, 2


class Operator:
    """Works on one topic of the group with the tools that mqadmin uses, and on its tables."""

    def __init__(self, cluster: ClusterUnderTest, group: Group, topic: str) -> None:
        self._cluster = cluster
        self._group = group
        self._topic = topic
        self._pool = ChannelPool(SystemClock())

    def close(self) -> None:
        """Close its connections."""
        self._pool.close()

    def reset_back(self) -> str:
        """Reset the topic's offsets by time, as ``mqadmin resetOffsetByTime``, and return what was done.

        Never forward: that would pass over messages.
        """
        admin = Administrator(self._pool, SystemClock(), request_timeout_s=30.0)
        brokers = BrokerClient(self._pool, SystemClock(), request_timeout_s=30.0)
        time_ms = int((time.time() - _BACK_S) * 1000)
        rows = self._group.rows()
        done = []
        for name, address in self._cluster.broker_addresses.items():
            mine = {
                queue: row.next_offset
                for queue, row in rows.items()
                if (queue.topic, queue.broker_name) == (self._topic, name)
            }
            try:
                if any(brokers.search_offset(address, queue, time_ms) > at for queue, at in mine.items()):
                    done.append(f"{name} not, the group is behind")
                    continue
                admin.reset_back(address, self._group.group, self._topic, time_ms)
            except RocketMQError as error:
                done.append(f"{name} not: {type(error).__name__}")
            else:
                done.append(f"{name} by {_BACK_S:g} s")
        return ", ".join(done)

    def permit(self, queues: int, *, reading: bool) -> None:
        """Revoke or restore the permission to read the topic at its first broker."""
        name = min(self._cluster.broker_addresses)

        def is_done() -> bool:
            try:
                self._cluster.create_topic(
                    self._topic, queues, brokers=[name], perm=_READ_AND_WRITE if reading else _WRITE
                )
            except (OSError, AssertionError):
                return False
            return True

        wait_patiently(is_done, _CHANGE_S, reason=f"the permission of {self._topic} at {name}")

    def restore_sink(self, not_before: int) -> str:
        """Take the sink's newest versions away and have the group follow; every application must be away."""
        storage = self._group.storage
        table = storage.table("sink")
        assert table is not None
        target = max(table.version() - _RESTORED_VERSIONS, not_before)
        if target >= table.version():
            return "nothing to take away"
        table.restore(target)
        sink = DeltaSink(self._group.sink, storage_options=storage.options)
        sink.follow_restore(self._group.group, storage.store("offsets"))
        return f"to version {target}"

    def delete_store(self) -> str:
        """Lose the group's offsets; every application must be away."""
        self._group.storage.remove("offsets")
        return "gone"
