"""The whole state of one broker, which only handlers change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from broker_sim.delay import DelayedMessages
from broker_sim.filters import HeldPulls, RegisteredFilters
from broker_sim.groups import ConsumerOffsets, LockTable, Membership, Producers, SubscriptionGroups
from broker_sim.layout import Host
from broker_sim.message_store import MessageStore
from broker_sim.replies import SERVER_VERSION, ClientCalls, Outgoing
from broker_sim.settings import BrokerSettings
from broker_sim.topics import TopicTable
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.wire.codes import LanguageCode
from pyspark_rocketmq.wire.command import RemotingCommand

CLUSTER_NAME = "DefaultCluster"
REPLY_TOPIC = f"{CLUSTER_NAME}_REPLY_TOPIC"
"""Topic to which replies are sent; every broker has it from its start."""


class HalfMessage(NamedTuple):
    """A transactional message that its producer has neither committed nor rolled back yet."""

    producer_group: str
    due_s: float
    """Monotonic time at which a member of the producer group is asked about it next."""
    checks: int
    """Number of times that a member was asked so far."""


@dataclass(slots=True, kw_only=True)
class BrokerState:
    """All data and tables of one broker; ``outbox`` has the commands to send besides the direct answer."""

    name: str
    clock: Clock
    settings: BrokerSettings
    host: Host
    """Address at which the broker listens; part of every stored message and offset message id."""
    started_ms: int
    topics: TopicTable
    store: MessageStore
    locks: LockTable
    membership: Membership
    groups: SubscriptionGroups = field(default_factory=SubscriptionGroups)
    offsets: ConsumerOffsets = field(default_factory=ConsumerOffsets)
    held_pulls: HeldPulls = field(default_factory=HeldPulls)
    filters: RegisteredFilters = field(default_factory=RegisteredFilters)
    producers: Producers
    delayed: DelayedMessages = field(default_factory=DelayedMessages)
    """Messages that wait for the time of their delay level."""
    timers: DelayedMessages = field(default_factory=DelayedMessages)
    """Messages that wait for the delivery time that their producer requested."""
    half_messages: dict[int, HalfMessage] = field(default_factory=dict)
    """Messages of transactions that have not ended, by commit log offset.

    They survive a restart, as a real broker finds them in its log."""
    client_calls: ClientCalls = field(default_factory=ClientCalls)
    replicas: Callable[[], Mapping[Host, int]] = dict
    """For a master: function that returns the end of each running replica's copy of its log, by address."""
    outbox: list[Outgoing] = field(default_factory=list)
    numbers: count[int] = field(default_factory=count)
    """Counter that replaces a real broker's random choices: of queues, of unique keys, and of the producer to
    ask about a transaction. It also numbers requests to clients."""

    def now_ms(self) -> int:
        """Return the milliseconds since the epoch."""
        return int(self.clock.now_s() * 1000)

    @classmethod
    def create(cls, name: str, clock: Clock, settings: BrokerSettings, host: Host) -> BrokerState:
        """Create the state of a new broker."""
        topics = TopicTable(settings.default_queues)
        topics.ensure(REPLY_TOPIC, 1)
        return cls(
            name=name,
            clock=clock,
            settings=settings,
            host=host,
            started_ms=int(clock.now_s() * 1000),
            topics=topics,
            store=MessageStore(clock, retention_bytes=settings.retention_bytes),
            locks=LockTable(clock, settings.lock_max_live_s),
            membership=Membership(clock, settings.channel_expired_s),
            producers=Producers(clock, settings.channel_expired_s),
        )


def to_client(
    state: BrokerState, code: int, ext_fields: Mapping[str, str], body: bytes = b"", *, flag: int = 0
) -> RemotingCommand:
    """Create a request from the broker to a client, with a new number (opaque); it is not sent here."""
    return RemotingCommand(
        code=int(code),
        opaque=next(state.numbers) & 0x7FFFFFFF,
        flag=flag,
        language=int(LanguageCode.JAVA),
        version=SERVER_VERSION,
        ext_fields=ext_fields,
        body=body,
    )
