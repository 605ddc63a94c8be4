"""One member of a group: decides what it must ask, report and lock, and which queues it may plan.

The machine uses no sockets, threads or clock. The caller reports what happened (a route, a list of members,
an answer to a lock call) with the monotonic second of the moment, takes the actions that are
:meth:`~Membership.due`, performs them, and reports the results. The table ``TRANSITIONS`` defines how this
member gets and gives up a single queue. Ids such as B4 name rows of ``docs/semantics.md``.

1. Missing information changes nothing. Without a list of members, or with an empty one, the allocation stays
   as it is (B4); so does the allocation of a topic whose share cannot be computed (B2). A lock call that
   fails leaves the locks as they are until they expire (C2).
2. Bad news is checked twice. A member missing from the list for the first time, this one included, still
   counts as a member; a new one counts immediately (B4).
3. A lock's age counts from its request. The broker counts from a later moment, so a lock expires here first.
4. Without locks (concurrent and broadcasting consumers) a share is held as soon as it is known. Two members
   with different lists of members may then both plan a queue for a moment; the claim in the offset store
   decides.
5. Between :meth:`~Membership.begin_plan` and :meth:`~Membership.planned` every plannable queue counts as
   planned, so a queue is never released while a plan that may contain it is being made (B5).
6. Plans have numbers. A report that a batch is over, for all queues or for some, names its plan, so a late
   report does not touch the plan that is under way by then.
7. A member that stops gives back immediately the queues that no batch holds, and the others when their batch
   is over: the next owner of a queue must not overlap with a call of that batch. The member waits for the
   batch only as long as Spark lets Python workers go on after a stop. With locks and a batch under way, the
   member unregisters from the group before it unlocks. Then the other members wait for its locks, and a drain
   of theirs does not end without its queues. Without locks the member unregisters last, because the others
   take its queues as soon as it is off the list.
8. A broker may have granted a lock although no answer came. It may also keep a lock that has expired only
   here, or whose queue another member has claimed in the offset store. Such a queue is unlocked once it is
   no longer allocated to this member, and no batch holds it.

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

Allocate = Callable[[str, Sequence[MessageQueue], Sequence[str]], Collection[MessageQueue] | None]
"""Returns this member's share of a topic from ``(client_id, sorted queues, sorted members)``, or None if it
cannot be computed; see :mod:`~pyspark_rocketmq.consume.allocation`."""


class Phase(Enum):
    """State of a queue at this consumer. A queue is granted in two steps.

    *Allocation* makes the queue part of this consumer's share; every member computes it itself, so two may
    differ for a while. The *lock* at the queue's broker ensures that nobody else has it now. Concurrent and
    broadcasting consumers need no lock; for them the grant comes with the allocation.

    A queue is planned only in HELD. If it is taken away while a micro-batch that holds it is under way, it
    goes through LEAVING: it is no longer planned, its lock is kept, and it is released when the batch is
    over. That wait preserves the order of a queue that changes hands.

    Source: ``RebalanceImpl.updateProcessQueueTableInRebalance``,
    ``RebalancePushImpl.removeUnnecessaryMessageQueue``.
    """

    ABSENT = "ABSENT"
    WANTED = "WANTED"
    """Allocated to us; its lock is not held."""
    HELD = "HELD"
    """Allocated and locked: may be planned."""
    LEAVING = "LEAVING"
    """Allocated to another member, but kept (with its lock) by us until the batch under way is over."""


class OwnershipEvent(Enum):
    """Something that happens to a queue."""

    ALLOCATED = "ALLOCATED"
    TAKEN_AWAY = "TAKEN_AWAY"
    """The queue is no longer in our share, and no batch under way holds it."""
    TAKEN_AWAY_IN_BATCH = "TAKEN_AWAY_IN_BATCH"
    GRANTED = "GRANTED"
    """The broker locked the queue for us, or renewed our lock; without locks, the allocation is enough."""
    REFUSED = "REFUSED"
    """The broker's answer lacks the queue: another member has it."""
    EXPIRED = "EXPIRED"
    """Our lock was last renewed too long ago, and no longer counts."""
    BATCH_OVER = "BATCH_OVER"
    CLAIMED_BY_OTHER = "CLAIMED_BY_OTHER"
    """The offset store names another owner: our epoch is fenced off."""


class OwnershipEffect(Enum):
    """Action that a transition requires besides the new phase."""

    NEW_GRANT = "NEW_GRANT"
    """Claim the queue in the offset store before it is planned."""
    UNLOCK = "UNLOCK"


class Transition(NamedTuple):
    """The phase in which a queue is after an event, and the actions that the change requires."""

    phase: Phase
    effects: tuple[OwnershipEffect, ...] = ()


TRANSITIONS: Final[Mapping[tuple[Phase, OwnershipEvent], Transition]] = {
    (Phase.ABSENT, OwnershipEvent.ALLOCATED): Transition(Phase.WANTED),
    # The lock was requested while the queue was still wanted.
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
    # Allocated again before it was given up: the same ownership goes on.
    (Phase.LEAVING, OwnershipEvent.ALLOCATED): Transition(Phase.HELD),
    (Phase.LEAVING, OwnershipEvent.BATCH_OVER): Transition(Phase.ABSENT, (OwnershipEffect.UNLOCK,)),
    (Phase.LEAVING, OwnershipEvent.REFUSED): Transition(Phase.ABSENT),
    (Phase.LEAVING, OwnershipEvent.EXPIRED): Transition(Phase.ABSENT),
    (Phase.LEAVING, OwnershipEvent.CLAIMED_BY_OTHER): Transition(Phase.ABSENT, (OwnershipEffect.UNLOCK,)),
}
"""Changes that events cause, by the queue's phase. Pairs that are missing change nothing, such as the renewal
of a lock, or the refusal of one that is not held."""


def after(phase: Phase, event: OwnershipEvent) -> Transition:
    """Return the phase in which a queue in ``phase`` is after ``event``, and the actions required.

    An event that ``TRANSITIONS`` does not list for the phase changes nothing.
    """
    return TRANSITIONS.get((phase, event)) or Transition(phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipTiming:
    """Intervals in seconds, by default those of RocketMQ, which has no ``second_look_s``."""

    heartbeat_s: float = 30.0
    rebalance_s: float = 20.0
    shortest_rebalance_s: float = 1.0
    """Minimum time between two requests for the members (``RebalanceService.minInterval``)."""
    lock_renewal_s: float = 20.0
    lock_valid_s: float = 30.0
    """How long a lock counts here after it was requested; the broker keeps it for 60 s."""
    lock_retry_s: float = 1.0
    """Pause before a lock that was refused, or a lock call that failed, is tried again."""
    second_look_s: float = 1.0
    """Pause before a list of members that got shorter is requested again."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Announce this member to every broker of the route."""


@dataclass(frozen=True, slots=True)
class AskMembers:
    """Ask one broker of the route for the group's client ids."""


@dataclass(frozen=True, slots=True)
class Lock:
    """Lock queues of one broker, or renew their locks, in one call."""

    broker_name: str
    queues: frozenset[MessageQueue]


@dataclass(frozen=True, slots=True)
class Unlock:
    """Release the locks of queues of one broker."""

    broker_name: str
    queues: frozenset[MessageQueue]


@dataclass(frozen=True, slots=True)
class Unregister:
    """Unregister from the group at every broker."""


GroupAction = Heartbeat | AskMembers | Lock | Unlock | Unregister


class Ownership(NamedTuple):
    """This member's hold on a queue that is in the phase HELD or LEAVING."""

    grant: int
    """Number of the grant, a period in which this member holds the queue; a later grant has a larger number.

    A queue is claimed in the offset store once for each grant.
    """
    asked_at_s: float
    """When the current lock was requested; without locks, when the grant began."""


class Membership:
    """One member's view of its group: which queues it may plan, and which actions are due.

    The caller reports events and performs the actions.  Not thread-safe; no method blocks.

    Args:
        client_id: This member's client id.
        allocate: Computes its share of the queues.
        needs_locks: False for concurrent and broadcasting consumers.
        is_broadcast: Whether every member has every queue.
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
        """Client ids as the broker lists them: one entry for each connection of a member."""
        self._is_share_known = True
        """Whether the last rebalance computed this member's share of every topic."""
        self._missing: frozenset[str] = frozenset()
        """Members that the last list lacked."""
        self._phases: dict[MessageQueue, Phase] = {}
        """Phases of all queues except the absent ones."""
        self._ownerships: dict[MessageQueue, Ownership] = {}
        """Ownerships of the queues held or leaving."""
        self._grant = 0
        """Number of the newest grant."""
        self._planned: frozenset[MessageQueue] = frozenset()
        """Queues of the micro-batch under way."""
        self._plan = 0
        """Number of that micro-batch's plan."""
        self._unlocks: set[MessageQueue] = set()
        self._doubtful: set[MessageQueue] = set()
        """Queues not held that the broker may have locked for this member (rule 8)."""
        self._asked: dict[MessageQueue, float] = {}
        """Queues in a lock call without an answer yet, and when it was sent."""
        self._heartbeat_at_s = 0.0
        self._look_at_s = 0.0
        self._looked_at_s = -inf
        self._is_looking = False
        self._renew_at_s = inf
        self._retry_at_s: dict[MessageQueue, float] = {}
        """When a wanted queue is tried; one without an entry is tried immediately."""
        self._leave_at_s: float | None = None
        """When a member that stops leaves, even if queues are still planned; None unless it stops."""
        self._unregisters_first = False
        """Whether a member that stops unregisters before it unlocks, because it had a plan under way then."""
        self.has_left = False
        """Whether the member has stopped, and ``due`` has returned its last actions."""
        self._is_registered = False

    # --- for the planner ------------------------------------------------------------------------------------

    def plannable(self, now_s: float) -> dict[MessageQueue, int]:
        """Return the queues that may be planned, each with the number of its grant.

        A queue whose lock was not renewed in time is left out. A member that stops may plan no queue.
        """
        if self._leave_at_s is not None:
            return {}
        return {
            queue: ownership.grant
            for queue, ownership in self._ownerships.items()
            if self._phases[queue] is Phase.HELD and self._is_fresh(ownership, now_s)
        }

    def begin_plan(self, now_s: float) -> dict[MessageQueue, int]:
        """End the previous batch; return the queues that may be planned, each with the number of its grant.

        All of them count as planned until ``planned`` is called.
        """
        self.batch_over(now_s)
        plannable = self.plannable(now_s)
        self._planned = frozenset(plannable)
        self._plan += 1
        return plannable

    def planned(self, grants: Mapping[MessageQueue, int], now_s: float) -> frozenset[MessageQueue]:
        """Note the plan's queues; return those that may be run.

        ``grants`` has the number of each queue's grant, as :meth:`begin_plan` returned it. A process may be
        paused while it makes a plan, so a queue whose grant has ended meanwhile must leave the plan. From now
        on, queues that are not in the plan may be released.
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
        """Note that the micro-batch under way was committed or has failed for good: it holds no queue now."""
        self.free(self._plan, None, now_s)

    def free(self, plan: int, queues: Collection[MessageQueue] | None, now_s: float) -> None:
        """Note that the batch of ``plan`` no longer holds ``queues`` (None: all of its queues).

        Those that were taken away from this member are released. Do nothing if ``plan`` is not the number of
        the newest plan.
        """
        if plan == self._plan:
            over = self._planned if queues is None else self._planned.intersection(queues)
            self._planned -= over
            self._let_go(over, now_s)

    def plan_under_way(self) -> tuple[int, frozenset[MessageQueue]]:
        """Return the number of the newest plan, and its queues that are not reported as free or over yet."""
        return self._plan, self._planned

    def must_leave(self) -> frozenset[MessageQueue]:
        """Return the queues of the plan under way that are not in HELD any more: tasks must give them up.

        A queue in LEAVING still has its lock. See row D7 of ``docs/semantics.md``.
        """
        return frozenset(queue for queue in self._planned if self._phases.get(queue) is not Phase.HELD)

    def claimed_by_other(self, queue: MessageQueue, now_s: float) -> None:
        """Note that the offset store names another owner of ``queue``.

        The queue is tried again after ``rebalance_s``.
        """
        if queue in self._phases:
            if self._needs_locks and self._phases[queue] is Phase.HELD:
                self._doubtful.add(queue)
            self._retry_at_s[queue] = now_s + self._timing.rebalance_s
            self._happened(queue, OwnershipEvent.CLAIMED_BY_OTHER, now_s)

    def reclaim(self, queue: MessageQueue) -> None:
        """Begin a new grant of a held queue, so that the member claims it in the offset store again.

        A queue that is not held stays as it is.
        """
        if self._phases.get(queue) is Phase.HELD:
            self._grant += 1
            self._ownerships[queue] = Ownership(self._grant, self._ownerships[queue].asked_at_s)

    def is_planned(self, queue: MessageQueue, now_s: float) -> bool:
        """Return whether the plan under way holds ``queue`` and may still run it."""
        ownership = self._ownerships.get(queue)
        return queue in self._planned and ownership is not None and self._is_fresh(ownership, now_s)

    def locked_at_s(self) -> dict[MessageQueue, float]:
        """Return when the current lock of each queue in HELD or LEAVING was requested, in seconds."""
        return {queue: ownership.asked_at_s for queue, ownership in self._ownerships.items()}

    def phase(self, queue: MessageQueue) -> Phase:
        """Return the phase of ``queue`` at this member."""
        return self._phases.get(queue, Phase.ABSENT)

    @property
    def is_settled(self) -> bool:
        """Whether this member's share is known and every queue of the share is held."""
        is_known = bool(self._queues) if self._is_broadcast else self._members is not None
        return is_known and self._is_share_known and Phase.WANTED not in self._phases.values()

    def left_to_others(self, queues: Collection[MessageQueue]) -> frozenset[MessageQueue]:
        """Return those of ``queues`` that are known to be in other members' shares now.

        A queue that is missing from this member's route is in nobody's share as far as this member knows, so
        it is not returned. No queue is returned while this member's share is not known, while the list of
        members lacks this member, or once it stops.
        """
        is_known = self._is_share_known and self._client_id in (self._members or ())
        if not is_known or self._leave_at_s is not None:
            return frozenset()
        mine = {queue for queue, phase in self._phases.items() if phase is not Phase.LEAVING}
        return frozenset(queues).intersection(self._queues) - mine

    # --- for the driver -------------------------------------------------------------------------------------

    def due(self, now_s: float) -> list[GroupAction]:
        """Return the actions to do now; drop expired locks before, unless the member stops.

        A call for locks or for the members is not returned again before its result is reported.
        """
        if self._leave_at_s is not None:
            is_time = now_s >= self._leave_at_s or not self._planned or self._is_broadcast
            return self._last_actions() if is_time else self._actions_before_last(now_s)
        self._expire(now_s)
        actions: list[GroupAction] = []
        if now_s >= self._heartbeat_at_s and self._queues:
            self._heartbeat_at_s = now_s + self._timing.heartbeat_s
            self._is_registered = True
            actions.append(Heartbeat())
        # Locks come before calls that may take seconds each at silent brokers, one after another.
        if self._needs_locks:
            actions += self._lock_actions(now_s)
        else:
            self._take_wanted(now_s)
        if self._is_look_due(now_s):
            self._is_looking = True
            self._looked_at_s = now_s
            actions.append(AskMembers())
        actions += self._unlock_actions()
        return actions

    def next_due_s(self) -> float:
        """Return the time at which to call :meth:`due` again if nothing happens before.

        It is infinite while no queues are known, unless the member stops.
        """
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
        """Take the readable queues of all subscribed topics; if they have changed, compute the share again.

        If a broker is new, a heartbeat is due immediately.
        """
        ordered = tuple(sorted_queues(queues))
        if ordered == self._queues:
            return
        known = {queue.broker_name for queue in self._queues}
        self._queues = ordered
        if any(queue.broker_name not in known for queue in ordered):
            self._heartbeat_at_s = now_s
        self._rebalance(now_s)

    def heartbeat_wanted(self, now_s: float) -> None:
        """Make a heartbeat due now: a broker forgot this member, or the connection to it broke.

        With the heartbeat the broker lists this member again before other members rebalance.
        """
        self._heartbeat_at_s = min(self._heartbeat_at_s, now_s)

    def notified(self, now_s: float) -> None:
        """Request the members soon, because a broker reported a change (NOTIFY_CONSUMER_IDS_CHANGED)."""
        self._look_at_s = now_s

    def members_listed(self, client_ids: Iterable[str], now_s: float) -> None:
        """Apply the group's client ids in the answer to :class:`AskMembers`: compute the share again.

        A member that is missing for the first time still counts. An empty list changes nothing.
        """
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
        """Note that no list of members came: nothing changes, and it is requested again soon."""
        self._is_looking = False
        self._look_at_s = now_s + self._timing.shortest_rebalance_s

    def locks_answered(
        self, asked: Collection[MessageQueue], granted: Collection[MessageQueue], now_s: float
    ) -> None:
        """Apply the answer to :class:`Lock`: queues requested but not granted belong to another member."""
        for queue in asked:
            asked_at_s = self._asked.pop(queue, now_s)
            self._doubtful.discard(queue)
            if queue in granted:
                self._happened(queue, OwnershipEvent.GRANTED, now_s, asked_at_s)
            else:
                self._happened(queue, OwnershipEvent.REFUSED, now_s)
                self._retry_at_s[queue] = now_s + self._timing.lock_retry_s

    def locks_unknown(self, asked: Collection[MessageQueue], now_s: float) -> None:
        """Note that the lock call failed: locks keep their age, and the call is repeated soon."""
        for queue in asked:
            self._asked.pop(queue, None)
            self._retry_at_s[queue] = now_s + self._timing.lock_retry_s
            if queue not in self._ownerships:
                self._doubtful.add(queue)
                self._unlock_doubtful(queue)
        self._renew_at_s = min(self._renew_at_s, now_s + self._timing.lock_retry_s)

    def stop(self, now_s: float = 0.0, *, calls_end_s: float = 0.0) -> None:
        """Plan nothing more, and leave the group when the plan under way is over.

        The member leaves after ``calls_end_s`` seconds at the latest, and a broadcasting member immediately.
        :meth:`due` then returns the actions to unlock and unregister. Only the first call counts.
        """
        if self._leave_at_s is None:
            self._leave_at_s = now_s + calls_end_s
            self._unregisters_first = self._needs_locks and bool(self._planned)

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
        """Grant the allocated queues, since this member needs no locks.

        A queue that another member has claimed is left to that member for a while.
        """
        for queue in [queue for queue, phase in self._phases.items() if phase is Phase.WANTED]:
            if now_s >= self._retry_at_s.get(queue, 0.0):
                self._happened(queue, OwnershipEvent.GRANTED, now_s, now_s)

    def _share(self) -> frozenset[MessageQueue] | None:
        """Return this member's queues; None while they cannot be known."""
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
        self._unlock_doubtful(queue)

    def _unlock_doubtful(self, queue: MessageQueue) -> None:
        if queue in self._doubtful and queue not in self._phases and queue not in self._planned:
            self._doubtful.discard(queue)
            self._unlocks.add(queue)

    def _let_go(self, queues: Iterable[MessageQueue], now_s: float) -> None:
        """Note that no batch holds ``queues`` any more: those in LEAVING are released, those in HELD stay."""
        for queue in queues:
            if self._phases.get(queue) is not Phase.HELD:
                self._happened(queue, OwnershipEvent.BATCH_OVER, now_s)

    def _expire(self, now_s: float) -> None:
        stale = [
            queue for queue, ownership in self._ownerships.items() if not self._is_fresh(ownership, now_s)
        ]
        self._doubtful.update(stale)
        for queue in stale:
            self._happened(queue, OwnershipEvent.EXPIRED, now_s)

    def _is_fresh(self, ownership: Ownership, now_s: float) -> bool:
        """Return whether the lock was requested at most ``lock_valid_s`` ago; true if none is needed."""
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
        # A queue that is wanted again meanwhile is not unlocked: its lock is requested.
        free, self._unlocks = self._unlocks - self._phases.keys(), set()
        return [Unlock(*each) for each in _by_broker(free)]

    def _actions_before_last(self, now_s: float) -> list[GroupAction]:
        """Return the actions of a member that stops, while its plan is under way.

        They give back the queues that the plan does not hold any more. They also renew the locks of the other
        queues or, without locks, send heartbeats: Spark may let calls go on for longer than a lock or a
        membership lasts.
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
        held: set[MessageQueue] = set()
        if self._needs_locks:
            held = self._ownerships.keys() | self._unlocks | self._asked.keys() | self._doubtful
        unlocks: list[GroupAction] = [Unlock(*each) for each in _by_broker(held)]
        # A member that had a plan looks before it unlocks whether a restarted one has its name, and must not
        # find itself in the broker's list.
        unregister = self._unregister_actions()
        actions = [*unregister, *unlocks] if self._unregisters_first else [*unlocks, *unregister]
        self._phases.clear()
        self._ownerships.clear()
        self._unlocks.clear()
        self._doubtful.clear()
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
