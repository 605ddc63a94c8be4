"""A consumer group in small: members, one broker, the offset store and a clock, moved step by step.

Every way in which a step can go is a :class:`Move`; whoever explores chooses among :meth:`GroupModel.moves`.
Calls take no time; what time does is a move of its own. What must hold after every move is checked inside.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from pyspark_rocketmq.consume.membership import (
    AskMembers,
    GroupAction,
    Heartbeat,
    Lock,
    Membership,
    MembershipTiming,
    Unlock,
    Unregister,
)
from pyspark_rocketmq.model import MessageQueue

BROKER_LOCK_S = 60.0
"""``RebalanceLockManager.REBALANCE_LOCK_MAX_LIVE_TIME``."""
MEMBER_EXPIRES_S = 120.0
TIMING = MembershipTiming()
CALLS_END_S = 5.0
KILLED_AFTER_S = 4.0
"""When Spark has ended the Python workers of a query that was stopped."""
_MOST_ROUNDS = 6
"""Of actions that follow from each other: heartbeat, list, unlock and lock, and a list again."""


def average(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """Queue k to member k modulo their number: simple, and every join moves something."""
    return [queue for number, queue in enumerate(queues) if members[number % len(members)] == client_id]


class Move(NamedTuple):
    """One step: ``what`` happens to ``member``, or to all of them."""

    what: str
    member: str = ""
    amount: float = 0.0


class Violation(AssertionError):
    """The group did what it never may."""


class _LockEntry(NamedTuple):
    owner: str
    refreshed_at_s: float


@dataclass
class _Member:
    machine: Membership
    claimed: dict[MessageQueue, tuple[int, int]] = field(default_factory=dict)
    """Term and epoch of each claim."""
    planning: dict[MessageQueue, int] | None = None
    """Queues and terms of the plan in the making."""
    batch: dict[MessageQueue, int] | None = None
    """Queues of the micro-batch under way, with the epoch they were planned under."""
    is_alive: bool = True
    is_paused: bool = False
    killed_at_s: float = math.inf
    """When the calls of one that was stopped end at the latest."""

    @property
    def is_leaving(self) -> bool:
        return self.killed_at_s < math.inf


class GroupModel:
    """The world of the explorers."""

    def __init__(
        self,
        members: int,
        queues: int,
        *,
        faults: int,
        stops: int = 0,
        starts: int = 0,
        needs_locks: bool = True,
    ) -> None:
        """Begin with nobody registered.

        Args:
            members: Their number.
            queues: Of one broker.
            faults: How many crashes, pauses, lost requests and lost answers may happen.
            stops: How many members may stop in good order.
            starts: How often one that crashed or stopped may come back, as a new process of the same name.
            needs_locks: False for a group of concurrent consumers, which have only the store's claims.
        """
        self.needs_locks = needs_locks
        self.now_s = 1000.0
        self.queues = tuple(MessageQueue("T", "b", number) for number in range(queues))
        self.members = {name: self._new_member(name) for name in "abc"[:members]}
        self.registered: dict[str, float] = {}
        self.locks: dict[MessageQueue, _LockEntry] = {}
        self.locked_at_s: dict[tuple[str, MessageQueue], float] = {}
        """When the broker last locked a queue for a member."""
        self.store: dict[MessageQueue, tuple[int, str]] = dict.fromkeys(self.queues, (0, ""))
        self.faults_left = faults
        self.stops_left = stops
        self.starts_left = starts

    def _new_member(self, name: str) -> _Member:
        member = _Member(Membership(name, average, needs_locks=self.needs_locks, timing=TIMING))
        member.machine.route_changed(self.queues, self.now_s)
        return member

    # --- moves ----------------------------------------------------------------------------------------------

    def moves(self) -> Iterator[Move]:
        """Every move possible now."""
        for name, member in self.members.items():
            if not member.is_alive:
                if self.starts_left:
                    yield Move("start", name)
                continue
            if member.is_paused:
                yield Move("resume", name)
                continue
            yield from self._moves_of(name, member)
        yield from (Move("wait", amount=seconds) for seconds in (1.0, 21.0, 61.0) if self._may_wait(seconds))

    def _may_wait(self, seconds: float) -> bool:
        return self.faults_left > 0 or not self._is_sleep(seconds)

    def _is_sleep(self, seconds: float) -> bool:
        """Whether somebody had to do something in that time and did not."""
        if seconds <= 1.0:
            return False
        awake = [member for member in self.members.values() if member.is_alive and not member.is_paused]
        is_busy = any(member.planning is not None or self._has_duties(member) for member in awake)
        return is_busy or (bool(awake) and seconds > TIMING.lock_renewal_s + 1)

    def _moves_of(self, name: str, member: _Member) -> Iterator[Move]:
        has_duties = self._has_duties(member)
        if has_duties:
            yield Move("work", name)
        yield from self._moves_of_a_query(name, member)
        if self.faults_left:
            yield Move("crash", name)
            yield Move("pause", name)
            if has_duties:
                yield Move("work, requests lost", name)
                yield Move("work, answers lost", name)

    def _moves_of_a_query(self, name: str, member: _Member) -> Iterator[Move]:
        if member.is_leaving:
            if member.batch is not None:
                yield Move("end calls", name)
            return
        if member.planning is not None:
            yield Move("finish plan", name)
        elif member.batch is not None:
            yield Move("commit", name)
        elif member.machine.plannable(self.now_s):
            yield Move("begin plan", name)
        if self.stops_left:
            yield Move("stop", name)

    def _has_duties(self, member: _Member) -> bool:
        return bool(clone_machine(member.machine).due(self.now_s))

    def make(self, move: Move) -> None:
        """Make one move.

        Raises:
            Violation: If it breaks what must hold.
        """
        if move.what == "wait":
            self.faults_left -= self._is_sleep(move.amount)
            self._pass_time(move.amount)
            return
        if move.what == "start":
            self.starts_left -= 1
            self.members[move.member] = self._new_member(move.member)
            return
        what, _, lost = move.what.partition(", ")
        self._DOES[what](self, move.member, self.members[move.member], lost)

    def _resume(self, _name: str, member: _Member, _lost: str) -> None:
        member.is_paused = False

    def _pause(self, _name: str, member: _Member, _lost: str) -> None:
        self.faults_left -= 1
        member.is_paused = True

    def _crash(self, name: str, member: _Member, _lost: str) -> None:
        self.faults_left -= 1
        member.is_alive = False
        # The connection breaks; the others are notified, its locks stay.
        self._leave(name)

    def _pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for member in self.members.values():
            if self.now_s >= member.killed_at_s:
                member.batch = None
        for name, seen_at_s in list(self.registered.items()):
            if self.now_s - seen_at_s > MEMBER_EXPIRES_S:
                self._leave(name)

    def _work(self, name: str, member: _Member, lost: str) -> None:
        self.faults_left -= bool(lost)
        for _ in range(_MOST_ROUNDS):
            actions = member.machine.due(self.now_s)
            for action in actions:
                self._check_locks_are_needed(name, action)
                answer = None if lost == "requests lost" else self._serve(name, action)
                self._report(member.machine, action, None if lost == "answers lost" else answer)
            if member.machine.has_left:
                self._end(name, member)
                return
            if not actions:
                return
        due = member.machine.due(self.now_s)
        raise Violation(f"{name} has something to do again and again without time going on: {due}.")

    def _check_locks_are_needed(self, name: str, action: GroupAction) -> None:
        if isinstance(action, Lock | Unlock) and not self.needs_locks:
            raise Violation(f"{name} asks for {action}, although its group locks nothing.")

    def _serve(self, name: str, action: GroupAction) -> frozenset[object]:
        """What the broker does and answers."""
        if isinstance(action, Heartbeat):
            is_new = name not in self.registered
            self.registered[name] = self.now_s
            if is_new:
                self._notify()
        elif isinstance(action, AskMembers):
            return frozenset(self.registered)
        elif isinstance(action, Lock):
            return frozenset(queue for queue in action.queues if self._lock(name, queue))
        elif isinstance(action, Unlock):
            for queue in action.queues:
                if queue in self.locks and self.locks[queue].owner == name:
                    del self.locks[queue]
        else:
            assert isinstance(action, Unregister)
            self._leave(name)
        return frozenset()

    def _report(self, machine: Membership, action: GroupAction, answer: frozenset[object] | None) -> None:
        if isinstance(action, AskMembers):
            if answer is None:
                machine.members_unknown(self.now_s)
            else:
                machine.members_listed(map(str, answer), self.now_s)
        elif isinstance(action, Lock):
            if answer is None:
                machine.locks_unknown(action.queues, self.now_s)
            else:
                machine.locks_answered(action.queues, [q for q in action.queues if q in answer], self.now_s)

    def _lock(self, name: str, queue: MessageQueue) -> bool:
        entry = self.locks.get(queue)
        is_free = entry is None or entry.owner == name or self.now_s - entry.refreshed_at_s > BROKER_LOCK_S
        if is_free:
            self.locks[queue] = _LockEntry(name, self.now_s)
            self.locked_at_s[name, queue] = self.now_s
        return is_free

    def _leave(self, name: str) -> None:
        if self.registered.pop(name, None) is not None:
            self._notify()

    def _notify(self) -> None:
        for name in self.registered:
            member = self.members[name]
            if member.is_alive and not member.is_paused:
                member.machine.notified(self.now_s)

    def _begin_plan(self, name: str, member: _Member, _lost: str = "") -> None:
        member.planning = member.machine.begin_plan(self.now_s)
        for queue, term in list(member.planning.items()):
            if member.claimed.get(queue, (0, 0))[0] != term:
                epoch = self.store[queue][0] + 1
                self.store[queue] = (epoch, name)
                member.claimed[queue] = (term, epoch)
            if self.store[queue] != (member.claimed[queue][1], name):
                member.machine.claimed_by_other(queue, self.now_s)
                del member.claimed[queue], member.planning[queue]

    def _finish_plan(self, name: str, member: _Member, _lost: str = "") -> None:
        assert member.planning is not None
        valid = member.machine.planned(member.planning, self.now_s)
        for queue in valid:
            self._check_alone(name, queue)
        batch = {queue: member.claimed[queue][1] for queue in valid}
        member.planning, member.batch = None, batch or None

    def _check_alone(self, name: str, queue: MessageQueue) -> None:
        """B5, C1: who plans a queue finds it in nobody's batch, unless that one's lock had time to expire.

        Without locks only the claims decide: whoever commits last has claimed last (see :meth:`_commit`).
        """
        if not self.needs_locks:
            return
        if queue not in self.locks or self.locks[queue].owner != name:
            raise Violation(f"{name} plans {queue}, whose lock it gave away.")
        for other_name, other in self.members.items():
            if other_name == name or not other.is_alive or queue not in (other.batch or {}):
                continue
            if self.now_s - self.locked_at_s[other_name, queue] <= BROKER_LOCK_S:
                raise Violation(
                    f"{name} plans {queue} while it is in a batch of {other_name}, whose lock is young."
                )

    def _commit(self, name: str, member: _Member, _lost: str = "") -> None:
        assert member.batch is not None
        for queue, epoch in member.batch.items():
            stored_epoch, owner = self.store[queue]
            if epoch == stored_epoch and owner != name:
                raise Violation(f"{name} commits {queue} under the epoch that {owner} claimed.")
            if epoch > stored_epoch:
                raise Violation(f"{name} commits {queue} under epoch {epoch}, which nobody has claimed.")
        member.batch = None
        member.machine.batch_over(self.now_s)

    def _stop(self, name: str, member: _Member, _lost: str = "") -> None:
        self.stops_left -= 1
        member.planning = None
        member.machine.stop(self.now_s, calls_end_s=CALLS_END_S)
        member.killed_at_s = self.now_s + KILLED_AFTER_S
        self._work(name, member, "")

    def _end_calls(self, name: str, member: _Member, _lost: str = "") -> None:
        """The driver reports that nothing of the batch is delivered any more."""
        member.batch = None
        member.machine.batch_over(self.now_s)
        self._work(name, member, "")

    def _end(self, name: str, member: _Member) -> None:
        if member.batch is not None:
            raise Violation(f"{name} leaves its group while its listener is called.")
        member.is_alive = False
        # Its connection ends with it.
        self._leave(name)

    _DOES: ClassVar[Mapping[str, Callable[[GroupModel, str, _Member, str], None]]] = {
        "work": _work,
        "begin plan": _begin_plan,
        "finish plan": _finish_plan,
        "commit": _commit,
        "stop": _stop,
        "end calls": _end_calls,
        "crash": _crash,
        "pause": _pause,
        "resume": _resume,
    }

    # --- the end --------------------------------------------------------------------------------------------

    def settle(self, within_s: float) -> None:
        """No more faults: everybody works, plans and commits every second.

        Raises:
            Violation: If then, ``within_s`` seconds later,
            a queue is planned by none or by two of the living.
        """
        self.faults_left = self.stops_left = self.starts_left = 0
        end_s = self.now_s + within_s
        while self.now_s < end_s:
            self._fair_second()
        holders = {
            queue: [
                name
                for name, member in self.members.items()
                if member.is_alive and queue in member.machine.plannable(self.now_s)
            ]
            for queue in self.queues
        }
        living = [name for name, member in self.members.items() if member.is_alive]
        if living and any(len(names) != 1 for names in holders.values()):
            raise Violation(f"{within_s:g} s after the last fault the queues are held so: {holders}.")
        owners = {queue: [owner] for queue, (_, owner) in self.store.items()}
        if living and owners != holders:
            raise Violation(f"the queues are held so: {holders}, but their offsets are owned so: {owners}.")

    def _fair_second(self) -> None:
        for name, member in self.members.items():
            if not member.is_alive:
                continue
            if member.is_paused:
                self.make(Move("resume", name))
            self.make(Move("work", name))
            if member.is_leaving:
                if member.is_alive:
                    self.make(Move("end calls", name))
                continue
            if member.planning is not None:
                self._finish_plan(name, member)
            if member.batch is not None:
                self._commit(name, member)
            self._begin_plan(name, member)
            self._finish_plan(name, member)
            self.make(Move("work", name))
        self._pass_time(1.0)

    # --- for exploring --------------------------------------------------------------------------------------

    def clone(self) -> GroupModel:
        """An independent copy."""
        twin = copy.copy(self)
        twin.members = {
            name: _Member(
                clone_machine(member.machine),
                dict(member.claimed),
                None if member.planning is None else dict(member.planning),
                None if member.batch is None else dict(member.batch),
                member.is_alive,
                member.is_paused,
                member.killed_at_s,
            )
            for name, member in self.members.items()
        }
        twin.registered, twin.locks, twin.store = dict(self.registered), dict(self.locks), dict(self.store)
        twin.locked_at_s = dict(self.locked_at_s)
        return twin

    def key(self) -> object:
        """Equal for states that behave alike: moments count from now, epochs and terms from each other."""
        return (
            tuple(self._member_key(name, member) for name, member in self.members.items()),
            tuple(sorted((name, at_s - self.now_s) for name, at_s in self.registered.items())),
            tuple(
                sorted((q, entry.owner, entry.refreshed_at_s - self.now_s) for q, entry in self.locks.items())
            ),
            tuple(owner for _, owner in self.store.values()),
            self.faults_left,
            self.stops_left,
            self.starts_left,
        )

    def _member_key(self, name: str, member: _Member) -> object:
        if not member.is_alive:
            return name
        current = {queue: self.store[queue][0] for queue in self.queues}
        terms = member.machine.plannable(self.now_s)
        return (
            name,
            member.is_paused,
            max(0.0, member.killed_at_s - self.now_s),
            machine_key(member.machine, self.now_s),
            tuple(
                sorted(
                    (q, claim[1] == current[q], claim[0] == terms.get(q))
                    for q, claim in member.claimed.items()
                )
            ),
            None if member.planning is None else tuple(sorted(member.planning)),
            None
            if member.batch is None
            else tuple(sorted((q, e == current[q]) for q, e in member.batch.items())),
        )


def clone_machine(machine: Membership) -> Membership:
    """An independent copy of a machine: its containers hold values only."""
    twin = copy.copy(machine)
    for name, value in vars(machine).items():
        if isinstance(value, dict | set):
            setattr(twin, name, value.copy())
    return twin


def machine_key(machine: Membership, now_s: float) -> object:
    """All that a machine will do depends on, with moments counted from
    ``now_s`` and those that are past as one.
    """

    def since(moment_s: float) -> float:
        return max(moment_s - now_s, -BROKER_LOCK_S)

    state = vars(machine)
    return (
        state["_members"],
        tuple(sorted(state["_missing"])),
        tuple(sorted((queue, phase.name) for queue, phase in state["_phases"].items())),
        tuple(
            sorted((queue, since(ownership.asked_at_s)) for queue, ownership in state["_ownerships"].items())
        ),
        tuple(sorted(state["_planned"])),
        tuple(sorted(state["_unlocks"])),
        tuple(sorted(state["_asked"])),
        tuple(max(0.0, state[name] - now_s) for name in ("_heartbeat_at_s", "_look_at_s", "_renew_at_s")),
        since(state["_looked_at_s"]),
        tuple(sorted((queue, max(0.0, at_s - now_s)) for queue, at_s in state["_retry_at_s"].items())),
        None if state["_leave_at_s"] is None else max(0.0, state["_leave_at_s"] - now_s),
    )
