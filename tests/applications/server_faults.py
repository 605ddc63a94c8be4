"""Faults of servers and of connections to them, from which a group must recover by itself."""

from __future__ import annotations

import random
from typing import Final

from broker_sim.bodies import SubscriptionGroupConfig
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from tests.applications.running_application import wait_patiently
from tests.applications.schedule import Kind
from tests.helpers.administrator import Administrator
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.relayed_cluster import RelayedCluster, not_ready

_CHANGE_S = 120.0
_CODES: Final = (
    RequestCode.PULL_MESSAGE,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.HEART_BEAT,
)
"""Requests that are answered with code 1 on the simulator; a real broker cannot be made to."""


class ServerFaults:
    """Works on the servers of a cluster and on the relays in front of them."""

    KINDS: Final = frozenset(
        {
            Kind.NOT_READY,
            Kind.READY,
            Kind.OUT_OF_REACH,
            Kind.IN_REACH,
            Kind.SILENT,
            Kind.SWAPPED,
            Kind.REGISTERED,
            Kind.SWITCHED_OFF,
            Kind.SWITCHED_ON,
            Kind.CODE_1,
        }
    )
    """Faults that :meth:`do` makes."""

    def __init__(
        self, cluster: ClusterUnderTest, relayed: RelayedCluster, group: str, rng: random.Random
    ) -> None:
        """Work on a cluster that the members of ``group`` reach by relays."""
        self._cluster = cluster
        self._relayed = relayed
        self._group = group
        self._rng = rng
        self._pool = ChannelPool(SystemClock())

    def close(self) -> None:
        """Close its connections."""
        self._pool.close()

    def do(self, kind: Kind) -> None:
        """Begin or end a fault.

        Raises:
            AssertionError: If brokers do not take a change in time.
        """
        {
            Kind.NOT_READY: self._be_not_ready,
            Kind.READY: self._be_ready,
            Kind.OUT_OF_REACH: self._relayed.name_server.close,
            Kind.IN_REACH: self._relayed.name_server.open,
            Kind.SILENT: self._fall_silent,
            Kind.SWAPPED: self._relayed.swap,
            Kind.REGISTERED: self._relayed.register,
            Kind.SWITCHED_OFF: lambda: self._switch(is_on=False),
            Kind.SWITCHED_ON: lambda: self._switch(is_on=True),
            Kind.CODE_1: self._answer_with_code_1,
        }[kind]()

    def _be_not_ready(self) -> None:
        self._relayed.front.instead = not_ready

    def _be_ready(self) -> None:
        self._relayed.front.instead = None

    def _fall_silent(self) -> None:
        for relay in (self._relayed.name_server, *self._relayed.brokers.values()):
            relay.fall_silent()

    def _switch(self, *, is_on: bool) -> None:
        admin = Administrator(self._pool, SystemClock(), request_timeout_s=30.0)
        config = SubscriptionGroupConfig(group_name=self._group, consume_enable=is_on)

        def is_done() -> bool:
            try:
                for address in self._cluster.broker_addresses.values():
                    admin.put_group(address, config)
            except RocketMQError:
                return False
            return True

        wait_patiently(is_done, _CHANGE_S, reason=f"consumption switched {'on' if is_on else 'off'}")

    def _answer_with_code_1(self) -> None:
        if self._cluster.kind == "sim":
            code = self._rng.choice(_CODES)
            self._cluster.faults.add("answer-code", on=code, response_code=ResponseCode.SYSTEM_ERROR)
