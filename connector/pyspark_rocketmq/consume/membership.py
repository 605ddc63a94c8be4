"""One member of a group: what it must ask, report and lock, and which queues it may plan.

The machine knows neither sockets nor threads nor time: its driver reports what happened (a route, a list of
members, an answer to a lock call) with the monotonic second of the moment, takes what is
:meth:`~Membership.due`, does it, and reports the result. The table ``TRANSITIONS`` says how a single queue
comes into this member's hands and out again.

1. What is not known changes nothing. Without a list of members, or with an empty one, the allocation stays
   as it is (B4); so does a topic's whose share cannot be computed (B2). A lock call that fails leaves the
   locks as they are until they expire (C2).
2. Bad news is checked twice. A member missing from the list for the first time, this one included, still
   counts as a member; a new one counts at once (B4).
3. A lock's age counts from the moment it was asked for, so the broker's own clock for it starts later.
4. Without locks (concurrent and broadcasting consumers) a share is held as soon as it is known. Members that
   see different groups may then both plan a queue for a moment; the claim in the offset store decides.
5. Between :meth:`~Membership.begin_plan` and :meth:`~Membership.planned` every plannable queue counts as
   planned, so a queue is never given free while a plan that may hold it is made (B5).
6. Plans have numbers. A report that a batch is over, for all queues or for some, names its plan: a late one
   does not touch the plan that is under way by then.
7. A member that stops gives back what no batch holds at once, the rest when it is free: whoever has a queue
   next must not meet a call of the batch before. It waits as long as Spark lets Python workers go on after a
   stop, no longer. With locks it leaves the group first, so that the others wait for its locks, and a drain
   does not end without its queues. Without locks it leaves last, since others begin once it is off the list.

Source: RocketMQ 5.3.3 ``RebalanceImpl``, ``RebalanceService``, ``MQClientInstance``,
``ConsumeMessageOrderlyService``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from math import inf
from typing import Final, NamedTuple

from pyspark_rocketmq.consume.allocation import sorted_members, sorted_queues
from pyspark_rocketmq.model import MessageQueue


class Phase(Enum):
    """How far this consumer has a queue, which is granted in two steps.

    *Allocation* says that the queue is this consumer's share; every member computes it itself, so two may
    differ for a while. The *lock* at the queue's broker says that nobody else has it now. Concurrent and
    broadcasting consumers need no lock; for them the grant comes with the allocation.

    A queue is planned only in HELD. While a micro-batch that holds it is under way, it leaves through
    LEAVING: it is planned no more, its lock is kept, and it is given free when the batch is over. That wait
    keeps the order of a queue that changes hands.

    Source: ``RebalanceImpl.updateProcessQueueTableInRebalance``,
    ``RebalancePushImpl.removeUnnecessaryMessageQueue``.
    """

    ABSENT = "ABSENT"
    WANTED = "WANTED"
    """Allocated to us; its lock is not held."""
    HELD = "HELD"
    """Allocated and locked: may be planned."""
    LEAVING = "LEAVING"
    """Allocated to somebody else, locked by us until the batch under way is over."""


class OwnershipEvent(Enum):
    """What happens to a queue."""

    ALLOCATED = "ALLOCATED"
    TAKEN_AWAY = "TAKEN_AWAY"
    """No longer our share, and no batch under way holds it."""
    TAKEN_AWAY_IN_BATCH = "TAKEN_AWAY_IN_BATCH"
    GRANTED = "GRANTED"
    """The broker locked the queue for us, or renewed our lock."""
    REFUSED = "REFUSED"
    """The broker's answer lacks the queue: somebody else has it."""
    EXPIRED = "EXPIRED"
    """Our lock was not renewed for so long that it no longer counts (C2)."""
    BATCH_OVER = "BATCH_OVER"
    CLAIMED_BY_OTHER = "CLAIMED_BY_OTHER"
    """The offset store names another owner: our epoch is fenced off."""


class OwnershipEffect(Enum):
    """What a transition asks for besides the new phase."""

    NEW_GRANT = "NEW_GRANT"
    """Claim the queue in the offset store before it is planned (C3)."""
    UNLOCK = "UNLOCK"


class Transition(NamedTuple):
    """Where an event leads."""

    phase: Phase
    effects: tuple[OwnershipEffect, ...] = ()


TRANSITIONS: Final[Mapping[tuple[Phase, OwnershipEvent], Transition]] = {
    (Phase.ABSENT, OwnershipEvent.ALLOCATED): Transition(Phase.WANTED),
    # A lock asked for while the queue was still wanted.
    (Phase.ABSENT, OwnershipEvent.GRANTED): Transition(Phase.ABSENT, (OwnershipEffect.UNLOCK,)),
    (Phase.WANTED, OwnershipEvent.TAKEN_AWAY): Transition(Phase.ABSENT),
    # A batch from before the lock was lost: it is fenced off, and there is no lock to keep for it.
    (Phase.WANTED, OwnershipEvent.TAKEN_AWAY_IN_BATCH): Transition(Phase.ABSENT),
    (Phase.WANTED, OwnershipEvent.GRANTED): Transition(Phase.HELD, (OwnershipEffect.NEW_GRANT,)),
    (Phase.HELD, OwnershipEvent.TAKEN_AWAY): Transition(Phase.ABSENT, (OwnershipEffect.UNLOCK,)),
    (Phase.HELD, OwnershipEvent.TAKEN_AWAY_IN_BATCH): Transition(Phase.LEAVING),
    (Phase.HELD, OwnershipEvent.REFUSED): Transition(Phase.WANTED),
    (Phase.HELD, OwnershipEvent.EXPIRED): Transition(Phase.WANTED),
    (Phase.HELD, OwnershipEvent.CLAIMED_BY_OTHER): Transition(Phase.WANTED),
    # Back before it was gone: the same ownership goes on.
    (Phase.LEAVING, OwnershipEvent.ALLOCATED): Transition(Phase.HELD),
    (Phase.LEAVING, OwnershipEvent.BATCH_OVER): Transition(Phase.ABSENT, (OwnershipEffect.UNLOCK,)),
    (Phase.LEAVING, OwnershipEvent.REFUSED): Transition(Phase.ABSENT),
    (Phase.LEAVING, OwnershipEvent.EXPIRED): Transition(Phase.ABSENT),
    (Phase.LEAVING, OwnershipEvent.CLAIMED_BY_OTHER): Transition(Phase.ABSENT, (OwnershipEffect.UNLOCK,)),
}
"""All other pairs change nothing: a renewal of a lock, a refusal of what is not held."""


def after(phase: Phase, event: OwnershipEvent) -> Transition:
    """Where ``event`` leads from ``phase``."""
    return TRANSITIONS.get((phase, event)) or Transition(phase)


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
    """Until a list of members that got shorter is asked for again."""


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


GroupAction = Heartbeat | AskMembers | Lock | Unlock | Unregister

Allocate = Callable[[str, Sequence[MessageQueue], Sequence[str]], Collection[MessageQueue] | None]
"""This member's share of a topic: ``(client_id, sorted queues, sorted members)``; see
:mod:`~pyspark_rocketmq.consume.allocation`. None if it cannot be computed."""


class Ownership(NamedTuple):
    """Of a queue in HELD or LEAVING."""

    grant: int
    """Its number, which grows: a queue is claimed in the offset store once under each grant."""
    asked_at_s: float
    """When the lock that counts was asked for."""


class Membership:
    """One member's view of its group.  Not thread-safe, and never waits.

    Args:
        client_id: This member.
        allocate: Its share of the queues, given all members.
        needs_locks: False for concurrent and broadcasting consumers.
        is_broadcast: Every member has every queue (B3).
        timing: Intervals.
    """

    def __init__(
        self,
        client_id: str,
        allocate: Allocate,
        *,
        needs_locks: bool = True,
        is_broadcast: bool = False,
        timing: MembershipTiming | None = None,
    ) -> None:
        self._client_id = client_id
        self._allocate = allocate
        self._needs_locks = needs_locks
        self._is_broadcast = is_broadcast
        self._timing = timing or MembershipTiming()
        self._queues: tuple[MessageQueue, ...] = ()
        self._members: tuple[str, ...] | None = None
        """As listed: a member has an entry for each of its connections."""
        self._is_share_known = True
        """Whether the last rebalance computed this member's share of every topic."""
        self._missing: frozenset[str] = frozenset()
        """Members that the last list lacked."""
        self._phases: dict[MessageQueue, Phase] = {}
        """Without the absent ones."""
        self._ownerships: dict[MessageQueue, Ownership] = {}
        """Of queues held or leaving."""
        self._grant = 0
        """The newest one."""
        self._planned: frozenset[MessageQueue] = frozenset()
        """Queues of the micro-batch under way."""
        self._plan = 0
        """The number of the plan it was made by."""
        self._unlocks: set[MessageQueue] = set()
        self._asked: dict[MessageQueue, float] = {}
        """Queues in a lock call without an answer yet, and when it was made."""
        self._heartbeat_at_s = 0.0
        self._look_at_s = 0.0
        self._looked_at_s = -inf
        self._is_looking = False
        self._renew_at_s = inf
        self._retry_at_s: dict[MessageQueue, float] = {}
        """When a wanted queue is tried; at once without an entry."""
        self._leave_at_s: float | None = None
        """When a member that stops leaves, whatever is still planned; None while it goes on."""
        self.has_left = False
        """Whether the last actions were given out."""
        self._is_registered = False

    # --- what the planner asks ------------------------------------------------------------------------------

    def plannable(self, now_s: float) -> dict[MessageQueue, int]:
        """Queues that may be planned, with their grants, without those whose lock is stale (C1, C2)."""
        if self._leave_at_s is not None:
            return {}
        return {
            queue: ownership.grant
            for queue, ownership in self._ownerships.items()
            if self._phases[queue] is Phase.HELD and self._is_fresh(ownership, now_s)
        }

    def begin_plan(self, now_s: float) -> dict[MessageQueue, int]:
        """The batch before this one is over; what may be planned now, all of which counts as planned."""
        self.batch_over(now_s)
        plannable = self.plannable(now_s)
        self._planned = frozenset(plannable)
        self._plan += 1
        return plannable

    def planned(self, grants: Mapping[MessageQueue, int], now_s: float) -> frozenset[MessageQueue]:
        """Take what the plan holds, with the grants it began under; what of it may really be run.

        A process may be stopped while it makes a plan: a queue whose grant ended meanwhile must leave
        the plan. Queues that are not in the plan may be given free.
        """
        valid = frozenset(
            queue
            for queue, grant in grants.items()
            if (ownership := self._ownerships.get(queue)) is not None
            and ownership.grant == grant
            and self._is_fresh(ownership, now_s)
        )
        unplanned, self._planned = self._planned - valid, valid
        self._let_go(unplanned, now_s)
        return valid

    def batch_over(self, now_s: float) -> None:
        """The micro-batch under way was committed or failed for good."""
        self.free(self._plan, None, now_s)

    def free(self, plan: int, queues: Collection[MessageQueue] | None, now_s: float) -> None:
        """The micro-batch of ``plan`` is over for ``queues``, all if None: its deliveries are settled."""
        if plan == self._plan:
            over = self._planned if queues is None else self._planned.intersection(queues)
            self._planned -= over
            self._let_go(over, now_s)

    def plan_under_way(self) -> tuple[int, frozenset[MessageQueue]]:
        """The number of the plan, and the queues of it that are not over."""
        return self._plan, self._planned

    def must_leave(self) -> frozenset[MessageQueue]:
        """Queues of the plan under way that are no longer ours: their tasks must give them up (D7)."""
        return frozenset(queue for queue in self._planned if self._phases.get(queue) is not Phase.HELD)

    def claimed_by_other(self, queue: MessageQueue, now_s: float) -> None:
        """The offset store names another owner for ``queue``: tried again at the next rebalance."""
        if queue in self._phases:
            self._happened(queue, OwnershipEvent.CLAIMED_BY_OTHER, now_s)
            self._retry_at_s[queue] = now_s + self._timing.rebalance_s

    def reclaim(self, queue: MessageQueue) -> None:
        """Grant a held queue anew that was not planned for too long (B6)."""
        if self._phases.get(queue) is Phase.HELD:
            self._grant += 1
            self._ownerships[queue] = Ownership(self._grant, self._ownerships[queue].asked_at_s)

    def is_planned(self, queue: MessageQueue, now_s: float) -> bool:
        """Whether the plan under way holds ``queue`` and may still run it."""
        ownership = self._ownerships.get(queue)
        return queue in self._planned and ownership is not None and self._is_fresh(ownership, now_s)

    def locked_at_s(self) -> dict[MessageQueue, float]:
        """When the lock of each held queue was asked for last."""
        return {queue: ownership.asked_at_s for queue, ownership in self._ownerships.items()}

    def phase(self, queue: MessageQueue) -> Phase:
        """How far this member has ``queue``."""
        return self._phases.get(queue, Phase.ABSENT)

    @property
    def is_settled(self) -> bool:
        """Whether this member's share is known and every queue of it is held."""
        is_known = bool(self._queues) if self._is_broadcast else self._members is not None
        return is_known and self._is_share_known and Phase.WANTED not in self._phases.values()

    # --- what the driver does and reports -------------------------------------------------------------------

    def due(self, now_s: float) -> list[GroupAction]:
        """Drop expired locks; what is to be done now, each action once until its result is reported."""
        if self._leave_at_s is not None:
            is_time = now_s >= self._leave_at_s or not self._planned or self._is_broadcast
            return self._last_actions() if is_time else self._actions_before_last(now_s)
        self._expire(now_s)
        actions: list[GroupAction] = []
        if now_s >= self._heartbeat_at_s and self._queues:
            self._heartbeat_at_s = now_s + self._timing.heartbeat_s
            self._is_registered = True
            actions.append(Heartbeat())
        if self._is_look_due(now_s):
            self._is_looking = True
            self._looked_at_s = now_s
            actions.append(AskMembers())
        actions += self._unlock_actions()
        if self._needs_locks:
            actions += self._lock_actions(now_s)
        else:
            self._take_wanted(now_s)
        return actions

    def next_due_s(self) -> float:
        """When to call :meth:`due` again if nothing happens before; never without a route."""
        if self._leave_at_s is not None:
            kept_until_s = self._renew_at_s if self._needs_locks else self._heartbeat_at_s
            return min(self._leave_at_s, kept_until_s)
        if not self._queues:
            return inf
        moments = [self._heartbeat_at_s, self._renew_at_s]
        if not self._is_looking:
            moments.append(max(self._look_at_s, self._looked_at_s + self._timing.shortest_rebalance_s))
        moments += [
            self._retry_at_s.get(queue, 0.0)
            for queue, phase in self._phases.items()
            if phase is Phase.WANTED and queue not in self._asked
        ]
        return min(moments)

    def route_changed(self, queues: Iterable[MessageQueue], now_s: float) -> None:
        """The readable queues of all subscribed topics; a new broker gets a heartbeat at once."""
        ordered = tuple(sorted_queues(queues))
        if ordered == self._queues:
            return
        known = {queue.broker_name for queue in self._queues}
        self._queues = ordered
        if any(queue.broker_name not in known for queue in ordered):
            self._heartbeat_at_s = now_s
        self._rebalance(now_s)

    def heartbeat_wanted(self, now_s: float) -> None:
        """A broker forgot this member, or its connection broke: send a heartbeat before others rebalance."""
        self._heartbeat_at_s = min(self._heartbeat_at_s, now_s)

    def notified(self, now_s: float) -> None:
        """A broker said that the group changed (NOTIFY_CONSUMER_IDS_CHANGED): ask for the members now."""
        self._look_at_s = now_s

    def members_listed(self, client_ids: Iterable[str], now_s: float) -> None:
        """The answer to :class:`AskMembers`."""
        entries = tuple(client_ids)
        listed = frozenset(entries)
        if not listed:
            self.members_unknown(now_s)
            return
        self._is_looking = False
        missing = frozenset((*(self._members or ()), self._client_id)) - listed
        newly_missing = missing - self._missing
        self._missing = missing
        if self._client_id in newly_missing:
            self._heartbeat_at_s = now_s
        self._look_at_s = now_s + (self._timing.second_look_s if newly_missing else self._timing.rebalance_s)
        self._members = tuple(sorted_members((*entries, *newly_missing)))
        self._rebalance(now_s)

    def members_unknown(self, now_s: float) -> None:
        """No list came: nothing changes, and it is asked for again soon."""
        self._is_looking = False
        self._look_at_s = now_s + self._timing.shortest_rebalance_s

    def locks_answered(
        self, asked: Collection[MessageQueue], granted: Collection[MessageQueue], now_s: float
    ) -> None:
        """The answer to :class:`Lock`: queues asked for and not granted belong to somebody else."""
        for queue in asked:
            asked_at_s = self._asked.pop(queue, now_s)
            if queue in granted:
                self._happened(queue, OwnershipEvent.GRANTED, now_s, asked_at_s)
            else:
                self._happened(queue, OwnershipEvent.REFUSED, now_s)
                self._retry_at_s[queue] = now_s + self._timing.lock_retry_s

    def locks_unknown(self, asked: Collection[MessageQueue], now_s: float) -> None:
        """The lock call failed: locks keep their age, and the call is made again soon."""
        for queue in asked:
            self._asked.pop(queue, None)
            self._retry_at_s[queue] = now_s + self._timing.lock_retry_s
        self._renew_at_s = min(self._renew_at_s, now_s + self._timing.lock_retry_s)

    def stop(self, now_s: float = 0.0, *, calls_end_s: float = 0.0) -> None:
        """Plan nothing any more, and leave once the plan under way is over, in ``calls_end_s`` at the latest.

        :meth:`due` unlocks and unregisters. Only the first call counts.
        """
        if self._leave_at_s is None:
            self._leave_at_s = now_s + calls_end_s

    # --- inside ---------------------------------------------------------------------------------------------

    def _is_look_due(self, now_s: float) -> bool:
        if self._is_looking or not self._queues:
            return False
        return now_s >= self._look_at_s and now_s - self._looked_at_s >= self._timing.shortest_rebalance_s

    def _rebalance(self, now_s: float) -> None:
        share = self._share()
        if share is None:
            return
        for queue in [queue for queue in self._phases if queue not in share]:
            in_batch = queue in self._planned
            self._happened(
                queue, OwnershipEvent.TAKEN_AWAY_IN_BATCH if in_batch else OwnershipEvent.TAKEN_AWAY, now_s
            )
        for queue in share:
            self._happened(queue, OwnershipEvent.ALLOCATED, now_s)
        if not self._needs_locks:
            self._take_wanted(now_s)

    def _take_wanted(self, now_s: float) -> None:
        """Without locks, allocation grants; a queue claimed by another member is left to it for a while."""
        for queue in [queue for queue, phase in self._phases.items() if phase is Phase.WANTED]:
            if now_s >= self._retry_at_s.get(queue, 0.0):
                self._happened(queue, OwnershipEvent.GRANTED, now_s, now_s)

    def _share(self) -> frozenset[MessageQueue] | None:
        """This member's queues; None while that cannot be known."""
        if self._is_broadcast:
            return frozenset(self._queues)
        if self._members is None:
            return None
        if self._client_id not in self._members or not self._queues:
            return frozenset()
        by_topic: dict[str, list[MessageQueue]] = {}
        for queue in self._queues:
            by_topic.setdefault(queue.topic, []).append(queue)
        shares = {
            topic: self._allocate(self._client_id, queues, self._members)
            for topic, queues in by_topic.items()
        }
        unknown = {topic for topic, share in shares.items() if share is None}
        self._is_share_known = not unknown
        kept = (
            queue
            for queue, phase in self._phases.items()
            if queue.topic in unknown and phase is not Phase.LEAVING
        )
        return frozenset(chain(kept, *(share for share in shares.values() if share is not None)))

    def _happened(
        self, queue: MessageQueue, event: OwnershipEvent, now_s: float, asked_at_s: float | None = None
    ) -> None:
        before = self._phases.get(queue, Phase.ABSENT)
        phase, effects = after(before, event)
        if phase is Phase.ABSENT:
            self._phases.pop(queue, None)
        else:
            self._phases[queue] = phase
        if OwnershipEffect.NEW_GRANT in effects:
            self._grant += 1
            self._ownerships[queue] = Ownership(self._grant, now_s if asked_at_s is None else asked_at_s)
            if self._needs_locks:
                self._renew_at_s = min(self._renew_at_s, now_s + self._timing.lock_renewal_s)
        elif event is OwnershipEvent.GRANTED and asked_at_s is not None and queue in self._ownerships:
            self._ownerships[queue] = self._ownerships[queue]._replace(asked_at_s=asked_at_s)
        if phase not in {Phase.HELD, Phase.LEAVING}:
            self._ownerships.pop(queue, None)
        if phase is not Phase.WANTED:
            self._retry_at_s.pop(queue, None)
        if OwnershipEffect.UNLOCK in effects and self._needs_locks:
            self._unlocks.add(queue)

    def _let_go(self, queues: Iterable[MessageQueue], now_s: float) -> None:
        """No batch holds ``queues`` any more, which changes nothing for those in HELD, nearly all."""
        for queue in queues:
            if self._phases.get(queue) is not Phase.HELD:
                self._happened(queue, OwnershipEvent.BATCH_OVER, now_s)

    def _expire(self, now_s: float) -> None:
        stale = [
            queue for queue, ownership in self._ownerships.items() if not self._is_fresh(ownership, now_s)
        ]
        for queue in stale:
            self._happened(queue, OwnershipEvent.EXPIRED, now_s)

    def _is_fresh(self, ownership: Ownership, now_s: float) -> bool:
        """Whether the lock still counts (C2); always where none is needed."""
        return not self._needs_locks or now_s - ownership.asked_at_s <= self._timing.lock_valid_s

    def _lock_actions(self, now_s: float) -> list[GroupAction]:
        is_renewal = now_s >= self._renew_at_s
        if is_renewal:
            self._renew_at_s = now_s + self._timing.lock_renewal_s if self._ownerships else inf
        takes_more = self._leave_at_s is None
        wanted = {
            queue
            for queue, phase in self._phases.items()
            if queue not in self._asked
            and (
                takes_more and now_s >= self._retry_at_s.get(queue, 0.0)
                if phase is Phase.WANTED
                else is_renewal
            )
        }
        self._asked |= dict.fromkeys(wanted, now_s)
        return [Lock(*each) for each in _by_broker(wanted)]

    def _unlock_actions(self) -> list[GroupAction]:
        # A queue that is wanted again meanwhile is not unlocked: its lock is asked for.
        free, self._unlocks = self._unlocks - self._phases.keys(), set()
        return [Unlock(*each) for each in _by_broker(free)]

    def _actions_before_last(self, now_s: float) -> list[GroupAction]:
        """Give back what the plan under way does not hold, or holds no more; keep the rest.

        Spark may be told to let calls go on for longer than a lock or a membership lasts.
        """
        for queue in [queue for queue in self._phases if queue not in self._planned]:
            self._happened(queue, OwnershipEvent.TAKEN_AWAY, now_s)
        if self._needs_locks:
            return self._unregister_actions() + self._unlock_actions() + self._lock_actions(now_s)
        if now_s < self._heartbeat_at_s or not self._is_registered:
            return []
        self._heartbeat_at_s = now_s + self._timing.heartbeat_s
        return [Heartbeat()]

    def _last_actions(self) -> list[GroupAction]:
        held = self._ownerships.keys() | self._unlocks | self._asked.keys() if self._needs_locks else ()
        actions: list[GroupAction] = [Unlock(*each) for each in _by_broker(held)]
        actions += self._unregister_actions()
        self._phases.clear()
        self._ownerships.clear()
        self._unlocks.clear()
        self._asked.clear()
        self.has_left = True
        return actions

    def _unregister_actions(self) -> list[GroupAction]:
        was_registered, self._is_registered = self._is_registered, False
        return [Unregister()] if was_registered else []


def _by_broker(queues: Iterable[MessageQueue]) -> list[tuple[str, frozenset[MessageQueue]]]:
    grouped: dict[str, set[MessageQueue]] = {}
    for queue in queues:
        grouped.setdefault(queue.broker_name, set()).add(queue)
    return [(broker_name, frozenset(mine)) for broker_name, mine in sorted(grouped.items())]
