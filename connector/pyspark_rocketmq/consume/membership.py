"""One member of a group: what it must ask, report and lock, and which queues it may plan.

The machine knows neither sockets nor threads nor time: whoever drives it reports what happened (a route, a
list of members, an answer to a lock call) with the monotonic second of the moment, takes what is
:meth:`~Membership.due`, does it, and reports the result.  What a single queue goes through is the table of
:mod:`~pyspark_rocketmq.consume.queue_ownership`.

Rule 1: what is not known changes nothing. A list of members that cannot be had, or is empty, leaves the
allocation as it is (B4), and so does a share that cannot be computed, for its topic (B2); a lock call that
fails leaves the locks as they are until they expire (C2).
Rule 2: bad news is looked at twice. Who is missing from the list for the first time, this member included,
still counts as a member; who is new counts at once (B4).
Rule 3: a lock's age counts from the moment it was asked for, so the broker's own clock for it starts later.
Rule 4: without locks (concurrent and broadcasting consumers) a share is held as soon as it is known.  Members
that see different groups may then both plan a queue for a moment; the claim in the offset store decides
between them.
Rule 5: between :meth:`~Membership.begin_plan` and :meth:`~Membership.planned` every plannable queue counts as
planned, so a queue can never be given free under a plan in the making (B5).
Rule 6: plans have numbers. Whoever says that a batch is over, for all queues or for some, says of which plan:
what comes late says nothing of the plan that is under way by then.

Source: RocketMQ 5.3.3 ``RebalanceImpl``, ``RebalanceService``, ``MQClientInstance``,
``ConsumeMessageOrderlyService``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from pyspark_rocketmq.consume.allocation import sorted_members, sorted_queues
from pyspark_rocketmq.consume.queue_ownership import Effect, Event, Phase, after
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


GroupAction = Heartbeat | AskMembers | Lock | Unlock | Unregister


Allocate = Callable[[str, Sequence[MessageQueue], Sequence[str]], Collection[MessageQueue] | None]
"""This member's share of a topic: ``(client_id, sorted queues, sorted members)``; see
:mod:`~pyspark_rocketmq.consume.allocation`. None if it cannot be said."""


class Ownership(NamedTuple):
    """A queue in HELD, since when."""

    term: int
    """Grows with every new grant: a term not seen before must be claimed in the offset store."""
    asked_at_s: float
    """When the lock that counts was asked for."""


class Membership:
    """One member's view of its group.  Not thread-safe, and never waits.

    Args:
        client_id: This member.
        allocate: Its share of the queues, given all members.
        needs_locks: False for concurrent and broadcasting consumers.
        is_broadcast: Every member has every queue (B3); the others are looked at only to tell what does not
            fit.
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
        """As often as they are listed: a member has an entry for each of its connections."""
        self._is_share_known = True
        """Whether the last rebalance could say what is this member's of every topic."""
        self._missing: frozenset[str] = frozenset()
        """Who was not in the last list although a member."""
        self._phases: dict[MessageQueue, Phase] = {}
        """Without the absent ones."""
        self._ownerships: dict[MessageQueue, Ownership] = {}
        """Of queues held or leaving."""
        self._terms = 0
        self._planned: frozenset[MessageQueue] = frozenset()
        """Queues of the micro-batch under way."""
        self._plan = 0
        """The number of the plan it was made by."""
        self._unlocks: set[MessageQueue] = set()
        self._asked: dict[MessageQueue, float] = {}
        """Queues in a lock call that was not answered yet, and when it was made."""
        self._heartbeat_at_s = 0.0
        self._look_at_s = 0.0
        self._looked_at_s = float("-inf")
        self._is_looking = False
        self._renew_at_s = float("inf")
        self._retry_at_s: dict[MessageQueue, float] = {}
        """When a wanted queue is tried; at once when it is not here."""
        self._is_stopping = False
        self._is_registered = False

    # --- what the planner asks ------------------------------------------------------------------------------

    def plannable(self, now_s: float) -> dict[MessageQueue, int]:
        """Queues that may be planned, with their terms, without those whose lock is stale (C1, C2)."""
        if self._is_stopping:
            return {}
        return {
            queue: ownership.term
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

    def planned(self, terms: Mapping[MessageQueue, int], now_s: float) -> frozenset[MessageQueue]:
        """Say what the plan holds, by the terms it was begun with; what of it may really be run.

        Making a plan takes time, and a process may be stopped in the middle of it: a queue whose term ended
        meanwhile must leave the plan. Queues that are not in the plan are free to be given up.
        """
        valid = frozenset(
            queue
            for queue, term in terms.items()
            if (ownership := self._ownerships.get(queue)) is not None
            and ownership.term == term
            and self._is_fresh(ownership, now_s)
        )
        spared, self._planned = self._planned - valid, valid
        self._let_go(spared, now_s)
        return valid

    def batch_over(self, now_s: float) -> None:
        """The micro-batch under way was committed or failed for good."""
        self.free(self._plan, None, now_s)

    def free(self, plan: int, queues: Collection[MessageQueue] | None, now_s: float) -> None:
        """The micro-batch of ``plan`` is over for ``queues`` or for all: its deliveries are settled."""
        if plan == self._plan:
            over = self._planned if queues is None else self._planned.intersection(queues)
            self._planned -= over
            self._let_go(over, now_s)

    def plan_under_way(self) -> tuple[int, frozenset[MessageQueue]]:
        """The number of the plan, and the queues of it that are not over."""
        return self._plan, self._planned

    def must_leave(self) -> frozenset[MessageQueue]:
        """Queues of the plan under way that are not ours any more: their tasks are to give them up (D7)."""
        return frozenset(queue for queue in self._planned if self._phases.get(queue) is not Phase.HELD)

    def claimed_by_other(self, queue: MessageQueue, now_s: float) -> None:
        """The offset store names another owner for ``queue``: tried again at the next rebalance."""
        if queue in self._phases:
            self._happened(queue, Event.CLAIMED_BY_OTHER, now_s)
            self._retry_at_s[queue] = now_s + self._timing.rebalance_s

    def reclaim(self, queue: MessageQueue) -> None:
        """Begin a new term of a held queue that was not planned for too long (B6)."""
        if self._phases.get(queue) is Phase.HELD:
            self._terms += 1
            self._ownerships[queue] = Ownership(self._terms, self._ownerships[queue].asked_at_s)

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
        """What is to be done now, each once until its result is reported; expired locks are dropped first."""
        if self._is_stopping:
            return self._last_actions()
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
        """When to call :meth:`due` again at the latest, if nothing happens before; never without a route."""
        if not self._queues:
            return float("inf")
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
        """A broker forgot this member, or its connection broke: show up before the others miss us."""
        self._heartbeat_at_s = min(self._heartbeat_at_s, now_s)

    def notified(self, now_s: float) -> None:
        """A broker said that the group changed (NOTIFY_CONSUMER_IDS_CHANGED): look now."""
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
        spared = missing - self._missing
        self._missing = missing
        if self._client_id in spared:
            self._heartbeat_at_s = now_s
        wait_s = self._timing.second_look_s if spared else self._timing.rebalance_s
        self._look_at_s = now_s + wait_s
        self._members = tuple(sorted_members((*entries, *spared)))
        self._rebalance(now_s)

    def members_unknown(self, now_s: float) -> None:
        """The list could not be had: nothing changes, and it is asked for again soon."""
        self._is_looking = False
        self._look_at_s = now_s + self._timing.shortest_rebalance_s

    def locks_answered(
        self, asked: Collection[MessageQueue], granted: Collection[MessageQueue], now_s: float
    ) -> None:
        """The answer to a :class:`Lock`; what was asked for and not granted belongs to somebody else."""
        for queue in asked:
            asked_at_s = self._asked.pop(queue, now_s)
            if queue in granted:
                self._happened(queue, Event.GRANTED, now_s, asked_at_s)
            else:
                self._happened(queue, Event.REFUSED, now_s)
                self._retry_at_s[queue] = now_s + self._timing.lock_retry_s

    def locks_unknown(self, asked: Collection[MessageQueue], now_s: float) -> None:
        """The lock call failed: locks keep their age, and the call is made again soon."""
        for queue in asked:
            self._asked.pop(queue, None)
            self._retry_at_s[queue] = now_s + self._timing.lock_retry_s
        self._renew_at_s = min(self._renew_at_s, now_s + self._timing.lock_retry_s)

    def stop(self) -> None:
        """Give everything up: the next :meth:`due` unlocks and unregisters; nothing is planned any more."""
        self._is_stopping = True

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
            self._happened(queue, Event.TAKEN_AWAY_IN_BATCH if in_batch else Event.TAKEN_AWAY, now_s)
        for queue in share:
            self._happened(queue, Event.ALLOCATED, now_s)
        if not self._needs_locks:
            self._take_wanted(now_s)

    def _take_wanted(self, now_s: float) -> None:
        """Without locks allocation grants; what another member has claimed is left to it for a while."""
        for queue in [queue for queue, phase in self._phases.items() if phase is Phase.WANTED]:
            if now_s >= self._retry_at_s.get(queue, 0.0):
                self._happened(queue, Event.GRANTED, now_s, now_s)

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
        self, queue: MessageQueue, event: Event, now_s: float, asked_at_s: float | None = None
    ) -> None:
        before = self._phases.get(queue, Phase.ABSENT)
        phase, effects = after(before, event)
        if phase is Phase.ABSENT:
            self._phases.pop(queue, None)
        else:
            self._phases[queue] = phase
        if Effect.BEGIN_TENURE in effects:
            self._terms += 1
            self._ownerships[queue] = Ownership(self._terms, now_s if asked_at_s is None else asked_at_s)
            if self._needs_locks:
                self._renew_at_s = min(self._renew_at_s, now_s + self._timing.lock_renewal_s)
        elif event is Event.GRANTED and asked_at_s is not None and queue in self._ownerships:
            self._ownerships[queue] = self._ownerships[queue]._replace(asked_at_s=asked_at_s)
        if phase not in {Phase.HELD, Phase.LEAVING}:
            self._ownerships.pop(queue, None)
        if phase is not Phase.WANTED:
            self._retry_at_s.pop(queue, None)
        if Effect.UNLOCK in effects and self._needs_locks:
            self._unlocks.add(queue)

    def _let_go(self, queues: Iterable[MessageQueue], now_s: float) -> None:
        """No batch holds ``queues`` any more; to those in HELD, nearly all, that means nothing."""
        for queue in queues:
            if self._phases.get(queue) is not Phase.HELD:
                self._happened(queue, Event.BATCH_OVER, now_s)

    def _expire(self, now_s: float) -> None:
        stale = [
            queue for queue, ownership in self._ownerships.items() if not self._is_fresh(ownership, now_s)
        ]
        for queue in stale:
            self._happened(queue, Event.EXPIRED, now_s)

    def _is_fresh(self, ownership: Ownership, now_s: float) -> bool:
        """Whether the lock still counts (C2); whoever needs none has always one that does."""
        return not self._needs_locks or now_s - ownership.asked_at_s <= self._timing.lock_valid_s

    def _lock_actions(self, now_s: float) -> list[GroupAction]:
        is_renewal = now_s >= self._renew_at_s
        if is_renewal:
            self._renew_at_s = now_s + self._timing.lock_renewal_s if self._ownerships else float("inf")
        wanted = {
            queue
            for queue, phase in self._phases.items()
            if queue not in self._asked and self._is_lock_due(queue, phase, now_s, is_renewal=is_renewal)
        }
        self._asked |= dict.fromkeys(wanted, now_s)
        return [Lock(broker_name, queues) for broker_name, queues in _by_broker(wanted)]

    def _is_lock_due(self, queue: MessageQueue, phase: Phase, now_s: float, *, is_renewal: bool) -> bool:
        if phase is Phase.WANTED:
            return now_s >= self._retry_at_s.get(queue, 0.0)
        return is_renewal

    def _unlock_actions(self) -> list[GroupAction]:
        # A queue that is wanted again meanwhile is not given free: its lock is simply asked for.
        free, self._unlocks = self._unlocks - self._phases.keys(), set()
        return [Unlock(broker_name, queues) for broker_name, queues in _by_broker(free)]

    def _last_actions(self) -> list[GroupAction]:
        held = self._ownerships.keys() | self._unlocks | self._asked.keys() if self._needs_locks else ()
        actions: list[GroupAction] = [Unlock(broker_name, queues) for broker_name, queues in _by_broker(held)]
        if self._is_registered:
            actions.append(Unregister())
        self._is_registered = False
        self._phases.clear()
        self._ownerships.clear()
        self._unlocks.clear()
        self._asked.clear()
        return actions


def _by_broker(queues: Iterable[MessageQueue]) -> list[tuple[str, frozenset[MessageQueue]]]:
    grouped: dict[str, set[MessageQueue]] = {}
    for queue in queues:
        grouped.setdefault(queue.broker_name, set()).add(queue)
    return [(broker_name, frozenset(mine)) for broker_name, mine in sorted(grouped.items())]
