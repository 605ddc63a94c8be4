"""Everything one broker knows; handlers change it, nothing else does."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from broker_sim.delay import DelayedMessages
from broker_sim.groups import SubscriptionGroups
from broker_sim.held_pulls import HeldPulls
from broker_sim.layout import Host
from broker_sim.locks import LockTable
from broker_sim.membership import Membership
from broker_sim.message_store import MessageStore
from broker_sim.offsets import ConsumerOffsets
from broker_sim.peers import Outgoing
from broker_sim.settings import BrokerSettings
from broker_sim.topics import TopicTable
from pyspark_rocketmq.clock import Clock

CLUSTER_NAME = "DefaultCluster"


@dataclass(slots=True, kw_only=True)
class BrokerState:
    """Pure data and pure tables; the outbox collects what goes to other connections than the asking one."""

    name: str
    clock: Clock
    settings: BrokerSettings
    host: Host
    """Where the broker listens: part of every stored message and offset message id."""
    topics: TopicTable
    store: MessageStore
    locks: LockTable
    membership: Membership
    groups: SubscriptionGroups = field(default_factory=SubscriptionGroups)
    offsets: ConsumerOffsets = field(default_factory=ConsumerOffsets)
    held_pulls: HeldPulls = field(default_factory=HeldPulls)
    delayed: DelayedMessages = field(default_factory=DelayedMessages)
    outbox: list[Outgoing] = field(default_factory=list)
    numbers: count[int] = field(default_factory=count)
    """For what a real broker draws at random: queues for producers that name none, and unique keys."""

    @classmethod
    def create(cls, name: str, clock: Clock, settings: BrokerSettings, host: Host) -> BrokerState:
        """A broker that has seen nothing yet."""
        return cls(
            name=name,
            clock=clock,
            settings=settings,
            host=host,
            topics=TopicTable(settings.default_queues),
            store=MessageStore(clock, retention_bytes=settings.retention_bytes),
            locks=LockTable(clock),
            membership=Membership(clock),
        )
