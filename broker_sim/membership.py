"""Which clients consume in which group, and what they subscribe to (``ConsumerManager``).

Rule 1: a heartbeat replaces the group's whole subscription table: the last member to send one decides.
Rule 2: a member leaves with its connection, by UNREGISTER_CLIENT, or after 120 s, unless set otherwise, without heartbeat.
Rule 3: whoever changes the membership or the topics gets a True back and must notify the members.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from broker_sim.peers import Peer
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.wire.requests.bodies import ConsumerData
from pyspark_rocketmq.wire.subscription import SubscriptionData

CHANNEL_EXPIRED_TIMEOUT_S = 120.0


class Client(NamedTuple):
    """Who is at the other end of a connection, as its heartbeat says."""

    peer: Peer
    client_id: str
    language: int
    version: int


class Member(NamedTuple):
    """One connection that consumes, or produces, in a group."""

    client: Client
    refreshed_at_s: float


@dataclass(slots=True)
class _Group:
    data: ConsumerData
    members: dict[int, Member] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)


class Membership:
    """Consumer groups that have members now."""

    def __init__(self, clock: Clock, expired_s: float = CHANNEL_EXPIRED_TIMEOUT_S) -> None:
        self._clock = clock
        self._expired_s = expired_s
        self._groups: dict[str, _Group] = {}
        self._fingerprints: dict[str, int] = {}
        self._subscribed_topics: set[str] = set()

    def register(self, client: Client, data: ConsumerData, *, replaces_subscriptions: bool = True) -> bool:
        """Take one group of a heartbeat; whether members or topics changed."""
        group = self._groups.setdefault(data.group_name, _Group(data))
        group.data = data
        is_new_member = client.peer.connection_id not in group.members
        group.members[client.peer.connection_id] = Member(client, self._clock.monotonic_s())
        changed = _update_subscriptions(group, data) if replaces_subscriptions else False
        self._subscribed_topics.update(group.subscriptions)
        return changed or is_new_member

    def note_fingerprint(self, consumer_group: str, fingerprint: int) -> bool:
        """Remember the heartbeat's fingerprint for the group; whether another one was known.

        Source: ``ClientManageProcessor.heartBeatV2``.
        """
        known = self._fingerprints.get(consumer_group, fingerprint)
        self._fingerprints[consumer_group] = fingerprint
        return known != fingerprint

    def unregister(self, peer: Peer, consumer_group: str) -> bool:
        """Remove the connection from the group; whether it was a member."""
        group = self._groups.get(consumer_group)
        if group is None or group.members.pop(peer.connection_id, None) is None:
            return False
        self._forget_if_empty(consumer_group)
        return True

    def connection_closed(self, peer: Peer) -> list[str]:
        """Remove the connection everywhere; the groups it left."""
        return [name for name in list(self._groups) if self.unregister(peer, name)]

    def expire(self) -> list[str]:
        """Remove members that were silent for too long; the groups they left."""
        oldest_s = self._clock.monotonic_s() - self._expired_s
        silent = [
            (member.client.peer, name)
            for name, group in self._groups.items()
            for member in group.members.values()
            if member.refreshed_at_s < oldest_s
        ]
        return [name for peer, name in silent if self.unregister(peer, name)]

    def members(self, consumer_group: str) -> tuple[Client, ...]:
        """The group's members, none for an unknown group; one client may appear with two connections."""
        group = self._groups.get(consumer_group)
        return tuple(member.client for member in group.members.values()) if group else ()

    def find(self, consumer_group: str, client_id: str) -> Client | None:
        """The member with this client id."""
        return next((each for each in self.members(consumer_group) if each.client_id == client_id), None)

    def was_subscribed(self, topic: str) -> bool:
        """Whether any group's heartbeat ever named the topic."""
        return topic in self._subscribed_topics

    def consumer_data(self, consumer_group: str) -> ConsumerData | None:
        """What the last heartbeat of the group said, None when it has no members."""
        group = self._groups.get(consumer_group)
        return group.data if group else None

    def subscriptions(self, consumer_group: str) -> Mapping[str, SubscriptionData]:
        """Topic → subscription of the group."""
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
        """Take one producer group of a heartbeat."""
        members = self._groups.setdefault(producer_group, {})
        members[client.peer.connection_id] = Member(client, self._clock.monotonic_s())

    def unregister(self, peer: Peer, producer_group: str) -> None:
        """Remove the connection from the group."""
        members = self._groups.get(producer_group, {})
        members.pop(peer.connection_id, None)
        if not members:
            self._groups.pop(producer_group, None)

    def connection_closed(self, peer: Peer) -> None:
        """Remove the connection everywhere."""
        for name in list(self._groups):
            self.unregister(peer, name)

    def expire(self) -> None:
        """Remove producers that were silent for too long."""
        oldest_s = self._clock.monotonic_s() - self._expired_s
        for name, members in list(self._groups.items()):
            for member in [each for each in members.values() if each.refreshed_at_s < oldest_s]:
                self.unregister(member.client.peer, name)

    def members(self, producer_group: str) -> tuple[Client, ...]:
        """The group's members, none for an unknown group."""
        return tuple(member.client for member in self._groups.get(producer_group, {}).values())

    def groups(self) -> Mapping[str, tuple[Client, ...]]:
        """All groups with their members."""
        return {name: self.members(name) for name in self._groups}

    def clear(self) -> None:
        """Forget all producers, as a broker does when it restarts."""
        self._groups.clear()


def _update_subscriptions(group: _Group, data: ConsumerData) -> bool:
    """Replace the table; a newer version of a known topic is no change (``updateSubscription``)."""
    sent = {each.topic: each for each in data.subscriptions}
    changed = sent.keys() != group.subscriptions.keys()
    group.subscriptions = {
        topic: _newer(group.subscriptions.get(topic), subscription) for topic, subscription in sent.items()
    }
    return changed


def _newer(known: SubscriptionData | None, sent: SubscriptionData) -> SubscriptionData:
    return sent if known is None or sent.sub_version > known.sub_version else known
