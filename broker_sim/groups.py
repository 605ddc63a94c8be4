"""Consumer groups of one broker: configuration, members, locks, committed offsets.

Members (``ConsumerManager``): a heartbeat replaces the group's whole subscription table, so the last member
to send one decides. A member leaves with its connection, by UNREGISTER_CLIENT, or after 120 s (by default)
without a heartbeat. If ``register`` or ``unregister`` returns True, the members or the topics have changed,
and the caller must notify the group's members. The same holds for each group that ``connection_closed`` or
``expire`` returns.

Committed offsets (``ConsumerOffsetManager``) are a plain table: the last write wins. An operator's reset of a
queue overrides the table until the group's next pull of that queue. Until then, queries return the reset's
offset, and commits are ignored.

Locks (``RebalanceLockManager``): a lock lives 60 s (by default) after it was last granted or refreshed. Only
its holder can release it; closing a connection or unregistering does not. Topic and queue need not exist. A
lock fences nothing: pulls and commits are not checked against it.

Configuration: ``SubscriptionGroupManager``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from broker_sim.bodies import SubscriptionGroupConfig
from broker_sim.replies import Peer
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.requests.bodies import ConsumerData
from pyspark_rocketmq.wire.subscription import SubscriptionData

LOCK_MAX_LIVE_TIME_S = 60.0
CHANNEL_EXPIRED_TIMEOUT_S = 120.0


class SubscriptionGroups:
    """Configurations of the consumer groups of a broker."""

    def __init__(self) -> None:
        self._groups: dict[str, SubscriptionGroupConfig] = {}

    def __iter__(self) -> Iterator[SubscriptionGroupConfig]:
        return iter(self._groups.values())

    def find(self, name: str) -> SubscriptionGroupConfig | None:
        """Return the group's configuration; None if there is no such group."""
        return self._groups.get(name)

    def put(self, group: SubscriptionGroupConfig) -> None:
        """Create or replace a group."""
        self._groups[group.group_name] = group

    def delete(self, name: str) -> None:
        """Forget a group; one that does not exist is not an error."""
        self._groups.pop(name, None)

    def find_or_create(self, name: str, *, may_create: bool) -> SubscriptionGroupConfig | None:
        """Return the group; create it with defaults if it is missing and that is allowed.

        Source: ``SubscriptionGroupManager.findSubscriptionGroupConfig``.
        """
        group = self._groups.get(name)
        if group is None and may_create:
            group = SubscriptionGroupConfig(group_name=name)
            self.put(group)
        return group


class _Lock(NamedTuple):
    client_id: str
    refreshed_at_s: float


class LockTable:
    """Locks of queues, by group and queue; a lock expires ``max_live_s`` after its last refresh."""

    def __init__(self, clock: Clock, max_live_s: float = LOCK_MAX_LIVE_TIME_S) -> None:
        self._clock = clock
        self._max_live_s = max_live_s
        self._locks: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock_batch(
        self, consumer_group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> frozenset[MessageQueue]:
        """Grant or refresh a lock of each of ``queues`` that no other client holds; return these queues."""
        held = self._locks.setdefault(consumer_group, {})
        now_s = self._clock.monotonic_s()
        granted = frozenset(queue for queue in queues if self._is_free_for(client_id, held.get(queue), now_s))
        held.update((queue, _Lock(client_id, now_s)) for queue in granted)
        return granted

    def unlock_batch(self, consumer_group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release those of ``queues`` that ``client_id`` holds; ignore the others."""
        held = self._locks.get(consumer_group, {})
        for queue in queues:
            lock = held.get(queue)
            if lock is not None and lock.client_id == client_id:
                del held[queue]

    def has_live_lock(self, consumer_group: str) -> bool:
        """Whether any queue of the group has a lock that has not expired (``!isLockAllExpired``)."""
        now_s = self._clock.monotonic_s()
        return any(not self._is_expired(lock, now_s) for lock in self._locks.get(consumer_group, {}).values())

    def holder(self, consumer_group: str, queue: MessageQueue) -> str | None:
        """Return the client id that holds the group's lock of the queue now; None if no lock is alive."""
        lock = self._locks.get(consumer_group, {}).get(queue)
        return None if lock is None or self._is_expired(lock, self._clock.monotonic_s()) else lock.client_id

    def clear(self) -> None:
        """Lose everything, as a broker does when it restarts."""
        self._locks.clear()

    def _is_free_for(self, client_id: str, lock: _Lock | None, now_s: float) -> bool:
        return lock is None or lock.client_id == client_id or self._is_expired(lock, now_s)

    def _is_expired(self, lock: _Lock, now_s: float) -> bool:
        return now_s - lock.refreshed_at_s > self._max_live_s


class ConsumerOffsets:
    """Committed offsets, pull positions and resets of groups, by group, topic and queue id.

    A committed offset is the next queue offset to consume.
    """

    def __init__(self) -> None:
        self._committed: dict[tuple[str, str], dict[int, int]] = {}
        self._pulled: dict[tuple[str, str, int], int] = {}
        self._resets: dict[tuple[str, str, int], int] = {}

    def commit(self, consumer_group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Store ``queue_offset`` unchanged, even if it is lower than before, negative or too high.

        A real broker does so, too, as was recorded (golden fact 13).
        """
        self._committed.setdefault((consumer_group, topic), {})[queue_id] = queue_offset

    def query(self, consumer_group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset of a reset that waits for a pull, else the committed one.

        None if there is neither, or the offset is negative.
        """
        queue_offset = self._resets.get((consumer_group, topic, queue_id))
        if queue_offset is None:
            queue_offset = self._committed.get((consumer_group, topic), {}).get(queue_id, -1)
        return queue_offset if queue_offset >= 0 else None

    def reset(self, consumer_group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Commit ``queue_offset`` and answer the queue's next pull with it (``assignResetOffset``)."""
        self._resets[consumer_group, topic, queue_id] = queue_offset
        self.commit(consumer_group, topic, queue_id, queue_offset)

    def is_reset(self, consumer_group: str, topic: str, queue_id: int) -> bool:
        """Whether a reset of the queue waits for a pull."""
        return (consumer_group, topic, queue_id) in self._resets

    def take_reset(self, consumer_group: str, topic: str, queue_id: int) -> int | None:
        """Remove the reset that waits for a pull and return its offset; None if there is none."""
        return self._resets.pop((consumer_group, topic, queue_id), None) if self._resets else None

    def copied(self) -> ConsumerOffsets:
        """Return the slave's copy of this object; both share the committed offsets and the pull positions.

        Only the master's object has resets that wait for a pull.
        """
        copy = ConsumerOffsets()
        copy._committed = self._committed
        copy._pulled = self._pulled
        return copy

    def note_pull(self, consumer_group: str, topic: str, queue_id: int, next_offset: int) -> None:
        """Remember how far the group pulled; for statistics only."""
        self._pulled[consumer_group, topic, queue_id] = next_offset

    def pulled(self, consumer_group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset at which the group's next pull continues; the committed one if it never pulled.

        None if there is neither.
        """
        pulled = self._pulled.get((consumer_group, topic, queue_id))
        return self.query(consumer_group, topic, queue_id) if pulled is None else pulled

    def topics_of(self, consumer_group: str) -> list[str]:
        """Return the topics for which the group has committed offsets."""
        return [topic for group, topic in self._committed if group == consumer_group]

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have committed offsets for the topic."""
        return [group for group, each in self._committed if each == topic]

    def tables(self) -> Iterable[tuple[str, str, dict[int, int]]]:
        """Yield every group and topic, with committed offsets by queue id."""
        return ((group, topic, dict(table)) for (group, topic), table in self._committed.items())

    def clone(self, source_group: str, target_group: str, topic: str) -> None:
        """Replace the target group's committed offsets for the topic by the source group's, if it has any."""
        table = self._committed.get((source_group, topic))
        if table is not None:
            self._committed[target_group, topic] = dict(table)

    def forget_group(self, consumer_group: str) -> None:
        """Drop everything of the group (``removeOffset``)."""
        self._forget(lambda group, _: group == consumer_group)

    def forget_topic(self, topic: str) -> None:
        """Drop everything about the topic (``cleanOffsetByTopic``)."""
        self._forget(lambda _, each: each == topic)

    def _forget(self, is_gone: Callable[[str, str], bool]) -> None:
        for key in [key for key in self._committed if is_gone(*key)]:
            del self._committed[key]
        for table in (self._pulled, self._resets):
            for queue in [queue for queue in table if is_gone(*queue[:2])]:
                del table[queue]


class Client(NamedTuple):
    """The client at the other end of a connection, as its heartbeat describes it."""

    peer: Peer
    client_id: str
    language: int
    version: int


class Member(NamedTuple):
    """One connection that consumes or produces in a group, and when its last heartbeat came."""

    client: Client
    refreshed_at_s: float


@dataclass(slots=True)
class _Group:
    data: ConsumerData
    members: dict[int, Member] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)


class Membership:
    """Members and subscriptions of the consumer groups that have members now (``ConsumerManager``)."""

    def __init__(self, clock: Clock, expired_s: float = CHANNEL_EXPIRED_TIMEOUT_S) -> None:
        self._clock = clock
        self._expired_s = expired_s
        self._groups: dict[str, _Group] = {}
        self._fingerprints: dict[str, int] = {}
        self._subscribed_topics: set[str] = set()

    def register(self, client: Client, data: ConsumerData, *, replaces_subscriptions: bool = True) -> bool:
        """Register the client in one group of its heartbeat.

        ``replaces_subscriptions`` is False if the heartbeat has no subscriptions; then the known ones stay.
        Return whether the client is a new member, or the topics of the group's subscriptions changed.
        """
        group = self._groups.setdefault(data.group_name, _Group(data))
        group.data = data
        is_new_member = client.peer.connection_id not in group.members
        group.members[client.peer.connection_id] = Member(client, self._clock.monotonic_s())
        changed = _update_subscriptions(group, data) if replaces_subscriptions else False
        self._subscribed_topics.update(group.subscriptions)
        return changed or is_new_member

    def note_fingerprint(self, consumer_group: str, fingerprint: int) -> bool:
        """Store the heartbeat's fingerprint for the group; return whether it replaces a different one.

        Source: ``ClientManageProcessor.heartBeatV2``.
        """
        known = self._fingerprints.get(consumer_group, fingerprint)
        self._fingerprints[consumer_group] = fingerprint
        return known != fingerprint

    def unregister(self, peer: Peer, consumer_group: str) -> bool:
        """Remove the connection from the group; return whether it was a member."""
        group = self._groups.get(consumer_group)
        if group is None or group.members.pop(peer.connection_id, None) is None:
            return False
        self._forget_if_empty(consumer_group)
        return True

    def connection_closed(self, peer: Peer) -> list[str]:
        """Remove the connection everywhere; return the groups it left."""
        return [name for name in list(self._groups) if self.unregister(peer, name)]

    def expire(self) -> list[str]:
        """Remove members that were silent for too long; return the groups they left."""
        oldest_s = self._clock.monotonic_s() - self._expired_s
        silent = [
            (member.client.peer, name)
            for name, group in self._groups.items()
            for member in group.members.values()
            if member.refreshed_at_s < oldest_s
        ]
        return [name for peer, name in silent if self.unregister(peer, name)]

    def members(self, consumer_group: str) -> tuple[Client, ...]:
        """Return the group's members; empty if it has none. A client with two connections appears twice."""
        group = self._groups.get(consumer_group)
        return tuple(member.client for member in group.members.values()) if group else ()

    def find(self, consumer_group: str, client_id: str) -> Client | None:
        """Return the member with this client id; None if there is none."""
        return next((each for each in self.members(consumer_group) if each.client_id == client_id), None)

    def was_subscribed(self, topic: str) -> bool:
        """Whether any group's heartbeat ever named the topic."""
        return topic in self._subscribed_topics

    def consumer_data(self, consumer_group: str) -> ConsumerData | None:
        """Return the group's data from its last heartbeat; None if it has no members."""
        group = self._groups.get(consumer_group)
        return group.data if group else None

    def subscriptions(self, consumer_group: str) -> Mapping[str, SubscriptionData]:
        """Return the group's subscriptions by topic; empty if it has no members."""
        group = self._groups.get(consumer_group)
        return group.subscriptions if group else {}

    def clear(self) -> None:
        """Forget all members, as a broker does when it restarts."""
        self._groups.clear()
        self._fingerprints.clear()
        self._subscribed_topics.clear()

    def _forget_if_empty(self, consumer_group: str) -> None:
        if not self._groups[consumer_group].members:
            del self._groups[consumer_group]


class Producers:
    """Producer groups that have members now (``ProducerManager``)."""

    def __init__(self, clock: Clock, expired_s: float = CHANNEL_EXPIRED_TIMEOUT_S) -> None:
        self._clock = clock
        self._expired_s = expired_s
        self._groups: dict[str, dict[int, Member]] = {}

    def register(self, client: Client, producer_group: str) -> None:
        """Register the client in one producer group of its heartbeat, or renew its membership."""
        members = self._groups.setdefault(producer_group, {})
        members[client.peer.connection_id] = Member(client, self._clock.monotonic_s())

    def unregister(self, peer: Peer, producer_group: str) -> None:
        """Remove the connection from the producer group; do nothing if it is no member."""
        members = self._groups.get(producer_group, {})
        members.pop(peer.connection_id, None)
        if not members:
            self._groups.pop(producer_group, None)

    def connection_closed(self, peer: Peer) -> None:
        """Remove the connection from all producer groups."""
        for name in list(self._groups):
            self.unregister(peer, name)

    def expire(self) -> None:
        """Remove producers that were silent for too long."""
        oldest_s = self._clock.monotonic_s() - self._expired_s
        for name, members in list(self._groups.items()):
            for member in [each for each in members.values() if each.refreshed_at_s < oldest_s]:
                self.unregister(member.client.peer, name)

    def members(self, producer_group: str) -> tuple[Client, ...]:
        """Return the producer group's members; empty if it has none."""
        return tuple(member.client for member in self._groups.get(producer_group, {}).values())

    def find(self, client_id: str) -> Client | None:
        """Return the producer with this client id; None if there is none.

        Of several connections, return the one with the newest heartbeat.
        """
        members = [
            each
            for group in self._groups.values()
            for each in group.values()
            if each.client.client_id == client_id
        ]
        return max(members, key=lambda each: each.refreshed_at_s).client if members else None

    def groups(self) -> Mapping[str, tuple[Client, ...]]:
        """Return the members of every producer group, by group."""
        return {name: self.members(name) for name in self._groups}

    def clear(self) -> None:
        """Forget all producers, as a broker does when it restarts."""
        self._groups.clear()


def _update_subscriptions(group: _Group, data: ConsumerData) -> bool:
    """Replace the group's subscriptions by those of ``data``; return whether the set of topics changed.

    If the group was subscribed to a topic already, the newer subscription is kept; this does not change the
    set. Source: ``updateSubscription``.
    """
    sent = {each.topic: each for each in data.subscriptions}
    changed = sent.keys() != group.subscriptions.keys()
    group.subscriptions = {
        topic: _newer(group.subscriptions.get(topic), subscription) for topic, subscription in sent.items()
    }
    return changed


def _newer(known: SubscriptionData | None, sent: SubscriptionData) -> SubscriptionData:
    return sent if known is None or sent.sub_version > known.sub_version else known
