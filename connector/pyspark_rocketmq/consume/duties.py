"""What a member of a group has to do, and at which intervals: the output of :mod:`.membership`."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_rocketmq.model import MessageQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipTiming:
    """Intervals in seconds, RocketMQ's by default."""

    heartbeat_s: float = 30.0
    rebalance_s: float = 20.0
    shortest_rebalance_s: float = 1.0
    """Between two looks at the members (``RebalanceService.minInterval``)."""
    lock_renewal_s: float = 20.0
    lock_valid_s: float = 30.0
    """How long a lock counts here since it was asked for; the broker keeps it for 60 s."""
    lock_retry_s: float = 1.0
    """Until a refused queue is tried again."""
    second_look_s: float = 1.0
    """Until a list of members that got shorter is looked at again."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Tell every broker of the route who this member is."""


@dataclass(frozen=True, slots=True)
class AskMembers:
    """Ask one broker of the route for the group's client ids."""


@dataclass(frozen=True, slots=True)
class Lock:
    """Lock queues of one broker, or renew their locks, in one call (C2)."""

    broker_name: str
    queues: frozenset[MessageQueue]


@dataclass(frozen=True, slots=True)
class Unlock:
    """Give queues of one broker free."""

    broker_name: str
    queues: frozenset[MessageQueue]


@dataclass(frozen=True, slots=True)
class Unregister:
    """Leave the group at every broker."""


Duty = Heartbeat | AskMembers | Lock | Unlock | Unregister
