"""Which clients consume in which group, and what they subscribe to (``ConsumerManager``).

Rule 1: a heartbeat replaces the group's whole subscription table: the last member to send one decides.
Rule 2: a member leaves with its connection, by UNREGISTER_CLIENT, or after 120 s without heartbeat.
Rule 3: whoever changes the membership or the topics gets a True back and must notify the members.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from broker_sim.peers import Peer
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.wire.bodies import ConsumerData
from pyspark_rocketmq.wire.subscription import SubscriptionData

CHANNEL_EXPIRED_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One connection that consumes in a group."""

    peer: Peer
    client_id: str
    language: int
    version: int
    refreshed_at_s: float


@dataclass(slots=True)
class _Group:
    data: ConsumerData
    members: dict[int, Member] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)


class Membership:
    """Consumer groups that have members now."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._groups: dict[str, _Group] = {}

    def register(self, peer: Peer, client_id: str, language: int, version: int, data: ConsumerData) -> bool:
        """Take one group of a heartbeat; whether members or topics changed."""
        group = self._groups.setdefault(data.group_name, _Group(data))
        group.data = data
        old = group.members.get(peer.connection_id)
        group.members[peer.connection_id] = Member(
            peer=peer,
            client_id=client_id,
            language=language,
            version=version,
            refreshed_at_s=self._clock.monotonic_s(),
        )
        is_new_member = old is None or old.client_id != client_id
        return _update_subscriptions(group, data) or is_new_member

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
        oldest_s = self._clock.monotonic_s() - CHANNEL_EXPIRED_TIMEOUT_S
        silent = [
            (member.peer, name)
            for name, group in self._groups.items()
            for member in group.members.values()
            if member.refreshed_at_s < oldest_s
        ]
        return [name for peer, name in silent if self.unregister(peer, name)]

    def members(self, consumer_group: str) -> tuple[Member, ...]:
        """The group's members, none for an unknown group; one client may appear with two connections."""
        group = self._groups.get(consumer_group)
        return tuple(group.members.values()) if group else ()

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

    def _forget_if_empty(self, consumer_group: str) -> None:
        if not self._groups[consumer_group].members:
            del self._groups[consumer_group]


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
