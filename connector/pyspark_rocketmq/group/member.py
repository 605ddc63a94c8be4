"""A running member: the thread that performs the actions of its membership, and a check of subscriptions.

This thread, the planner, and the connection threads that receive brokers' notifications all use the state
machine (:mod:`~pyspark_rocketmq.consume.membership`). A lock guards it; while a thread holds this lock, it
does not call a server or wait. Every call to a server has a deadline. Calls of one kind go to all brokers at
the same time. Only the list of members is requested from one broker after another, with silent brokers last;
after 3 s, a round requests it from no further broker. So a round of calls normally takes less than 10 s,
although some brokers are silent. That is soon enough: a queue's lock counts for 10 s more after its renewal
is due.

When a connection breaks, its broker removes the member. The other members would then take its queues. So the
next heartbeat is sent immediately and not after half a minute; if it fails, it is tried again every second.
After two time-outs at a broker only the regular heartbeats go on.

A broker keeps one table of subscriptions for each group, that of the last heartbeat. If members have
different subscriptions, some of them silently miss messages (rocketmq-client-go#592, apache/rocketmq#7885).

The planner asks for this member's queues before every micro-batch, and plans no others. Each queue comes with
the number of its *grant*, the period for which this member holds the queue; every new grant has a higher
number. Under a new grant the queue must first be claimed in the offset store: only the claim keeps other
members from committing, the lock does not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import inf
from typing import Protocol, TypeVar

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.channel import Channel
from pyspark_rocketmq.client.cluster import Routes, TopicRoutes, run_concurrently
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import Clock, Deadline, SleepWatch
from pyspark_rocketmq.consume.membership import (
    AskMembers,
    GroupAction,
    Heartbeat,
    Lock,
    Membership,
    Unlock,
    Unregister,
)
from pyspark_rocketmq.consume.not_now import reports_no_members
from pyspark_rocketmq.consume.recent_offsets import Outage, Outages
from pyspark_rocketmq.display import counted, masking_logger, peer_text
from pyspark_rocketmq.errors import RequestTimeout, RocketMQError, TransportError, WrongBroker
from pyspark_rocketmq.hub.state import CALLS_END_S
from pyspark_rocketmq.model import BrokerAddress, MessageQueue
from pyspark_rocketmq.wire.requests.admin import ConsumerConnection
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, HeartbeatData
from pyspark_rocketmq.wire.subscription import SubscriptionData

logger = masking_logger(__name__)

T = TypeVar("T")

_LOCK_TIMEOUT_S = 1.0
"""Time-out of a lock request, as in ``RebalanceImpl``: a silent broker must not delay other renewals."""
CALL_TIMEOUT_S = 3.0
"""Maximum time-out of the clients in :class:`GroupCalls`: ``ClientConfig.mqClientApiTimeout``."""
_LONGEST_SLEEP_S = 1.0
"""Maximum time until a broken connection or a new route is noticed."""
_BEAT_AGAIN_S = 1.0
"""Pause, in seconds, after a failed heartbeat before another one is sent because a connection is broken."""
_LOOK_AGAIN_S = 1.0
"""Pause, in seconds, between look-ups of routes that lack a queue which the planner has seen."""
_LIST_AGAIN_S = 300.0
"""Time, in seconds, for which the list of members is requested from other brokers first, after a request at a
broker has failed."""
_SETTLE_CHECK_S = 0.05


class QueueOwnership(Protocol):
    """The group's queues that this consumer owns now. Only ``await_settled`` and ``await_held`` wait."""

    def begin_plan(self) -> Mapping[MessageQueue, int]:
        """Return the queues that may be planned now, with their grants' numbers; this ends the previous plan.

        A grant is a period for which this member holds a queue. The member gives none of the returned queues
        up before :meth:`planned` is called.
        """
        ...

    def left_to_others(self, queues: Collection[MessageQueue]) -> Collection[MessageQueue]:
        """Return those of ``queues`` that are known to be allocated to other consumers now."""
        ...

    def note_seen(self, queues: Collection[MessageQueue]) -> None:
        """Note that there are ``queues``.

        If this consumer does not know one of them, it soon looks up the routes again.
        """
        ...

    def planned(self, grants: Mapping[MessageQueue, int]) -> frozenset[MessageQueue]:
        """Note the queues of the plan that was made; return those whose messages may be consumed.

        These are the queues that this member still holds under the same grants as in ``grants``.
        """
        ...

    def holds(self, queue: MessageQueue) -> bool:
        """Return whether the queue is in the current plan and its messages may still be consumed."""
        ...

    def claimed_by_other(self, queue: MessageQueue) -> None:
        """Report that another consumer has claimed ``queue`` in the offset store."""
        ...

    def take_resets(self) -> Mapping[MessageQueue, int]:
        """Return, by queue, the offsets to which operators have reset queues, and forget these resets.

        Pulls of this query have met the resets. The caller must apply them: a broker reports each one once.
        """
        ...

    def outage_of(self, broker_name: str) -> Outage | None:
        """Return when the broker's master last did not answer this consumer; None if it always has."""
        ...

    def reclaim(self, queue: MessageQueue) -> None:
        """Give a held queue a new grant, because it has been in no plan for too long.

        The queue must then be claimed in the offset store again. See row B6 of ``docs/semantics.md``.
        """
        ...

    def await_settled(self, timeout_s: float) -> bool:
        """Wait until all queues allocated to this consumer may be planned; False after ``timeout_s``."""
        ...

    def await_held(self, timeout_s: float) -> bool:
        """Wait until at least one queue may be planned; return False if none may within ``timeout_s``."""
        ...


class SubscriptionConsistency:
    """Compares a broker's reports of the group with this member, and warns about each new difference."""

    def __init__(self, own: ConsumerData, client_id: str) -> None:
        self._own = own
        self._client_id = client_id
        self._warned: frozenset[str] = frozenset()

    def look(self, listed: Sequence[str], reported: ConsumerConnection) -> None:
        """Warn about each difference that the previous report did not have.

        A report consists of the client ids that the broker lists for the group (``listed``), and of its
        members' subscriptions (``reported``).
        """
        problems = frozenset(differences(self._own, self._client_id, listed, reported))
        for problem in sorted(problems - self._warned):
            logger.warning("group members differ group=%s: %s", self._own.group_name, problem)
        self._warned = problems


def differences(
    own: ConsumerData, client_id: str, listed: Sequence[str], reported: ConsumerConnection
) -> list[str]:
    """Return a sentence for each difference between this member (``own``) and a broker's report of the group.

    ``listed`` has the client ids of all members, ``reported`` their subscriptions.
    """
    problems = []
    if (count := list(listed).count(client_id)) > 1:
        problems.append(
            f"client id '{client_id}' is listed {count} times. If a connection of this member fell silent, "
            "the broker notices that within two minutes. Otherwise several members share the id, and each "
            "of them takes the queues of all: give each query its own instanceName, or leave the option out"
        )
    if reported.message_model is not own.message_model:
        problems.append(
            f"another member consumes in the model {reported.message_model}, this one in "
            f"{own.message_model}; a group has one model, so use another group for the other"
        )
    mine, theirs = {one.topic: one for one in own.subscriptions}, reported.subscriptions
    return problems + [
        f"topic {peer_text(topic)} is subscribed to as {_shown(theirs.get(topic))} by another member and as "
        f"{_shown(mine.get(topic))} by this one; members of a group must subscribe to the same"
        for topic in sorted(mine.keys() | theirs.keys())
        if _meaning(mine.get(topic)) != _meaning(theirs.get(topic))
    ]


def _meaning(subscription: SubscriptionData | None) -> object:
    if subscription is None:
        return None
    is_tags = subscription.expression_type == "TAG"
    return subscription.expression_type, subscription.tags_set if is_tags else subscription.sub_string


def _shown(subscription: SubscriptionData | None) -> str:
    return "nothing" if subscription is None else f"'{peer_text(subscription.sub_string)}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCalls:
    """Clients by which a member calls brokers and name servers.

    ``pool`` must pass the brokers' own requests to the member.
    """

    pool: ChannelPool
    brokers: BrokerClient
    routes: TopicRoutes
    """Routes of all topics to which the group subscribes."""


class PlanWatcher(Protocol):
    """Gets reports about a plan (the ranges of one micro-batch) and its queues, for the tasks that run it.

    Its methods must not block.
    """

    def plan_made(self, plan: int, queues: Collection[MessageQueue]) -> None:
        """Report a new plan with its number and ``queues``."""
        ...

    def must_leave(self, plan: int, queues: Collection[MessageQueue]) -> None:
        """Report all queues of the plan that its tasks must give up now; called again when these change."""
        ...

    def replan(self, plan: int, reason: str) -> None:
        """Report that the plan is outdated: it lacks queues or a reset, or a broker has moved."""
        ...

    def leaves(self, plan: int) -> None:
        """Report that the planner process will end as soon as the plan's deliveries are over."""
        ...

    def calls_end_s(self) -> float:
        """Return for how many seconds at most a listener's call may continue after its query's end."""
        ...


class RunningMember:
    """A member of a consumer group. Its thread keeps it in the group, takes queues and gives them back.

    Implements :class:`QueueOwnership`. After :meth:`start`, always call :meth:`stop` in the end.
    """

    def __init__(
        self, machine: Membership, heartbeat: HeartbeatData, calls: GroupCalls, clock: Clock
    ) -> None:
        """Prepare the member.

        Args:
            machine: Decides on the member's actions.
            heartbeat: Sent to the brokers; its only consumer names group and subscriptions.
            calls: Clients for the calls to servers.
            clock: This computer's clock.
        """
        self._machine = machine
        self._heartbeat = heartbeat
        self._client_id, self._group = heartbeat.client_id, heartbeat.consumers[0].group_name
        self._calls = calls
        self._clock = clock
        self._sleeps = SleepWatch(clock)
        """Measures how long this computer slept. Brokers' clocks go on meanwhile, so everything that became
        due is done when it wakes."""
        self._guard = threading.Lock()
        self._wake = threading.Event()
        self._is_stopping = False
        self._waits_for_calls = False
        """Whether this member waits for the last call of a listener before it leaves. In that time another
        process may have started under this member's client id."""
        self._thread = threading.Thread(target=self._run, name="rocketmq-group", daemon=True)
        self._routes = Routes({})
        """Routes at the last look-up; for a topic that is gone, its last known route."""
        self._doubts_routes = False
        """Whether the planner has seen a queue that the routes lack, so that they must be looked up again."""
        self._looks_again_at_s = -inf
        """Monotonic second before which routes that are in doubt are not looked up again."""
        self._known_absent: frozenset[str] = frozenset()
        """Topics that had no route at the last look-up."""
        self._channels: dict[BrokerAddress, Channel] = {}
        """Connections on which a heartbeat was answered."""
        self._silent: set[BrokerAddress] = set()
        """Brokers at which the last heartbeat failed."""
        self._unanswered_at_s: dict[BrokerAddress, float] = {}
        """Monotonic second at which the last request for the members failed, by broker. A broker that has
        answered such a request since is left out."""
        self._beats_again_at_s = -inf
        """Monotonic second before which no heartbeat follows a broken connection."""
        self._differences = SubscriptionConsistency(heartbeat.consumers[0], self._client_id)
        self._watcher: PlanWatcher | None = None
        self._notified: tuple[int, frozenset[MessageQueue]] = (0, frozenset())
        """Last report to the watcher: the plan, and its queues that are to be given up."""
        self._given_up: frozenset[MessageQueue] = frozenset()
        """Queues that were in any such report on this plan; the plan's tasks never take one back."""
        self._offered: Mapping[MessageQueue, int] = {}
        """Queues that the newest plan could contain, each with the number of its grant (its lock)."""
        self._made = 0
        """Number of the newest plan that was reported to the watcher."""
        self._masters_at_plan: Mapping[str, BrokerAddress | None] = {}
        """Addresses of the masters when the newest plan was made, by the names of its brokers."""
        self._resets: dict[MessageQueue, int] = {}
        """Targets of resets for the next plan."""
        self._due_resets: set[MessageQueue] = set()
        """Queues with resets for the next plan that the planner has received by itself."""
        self._outages = Outages()
        """When the brokers' masters did not answer heartbeats or requests for locks."""
        self._outdated = 0
        """Number of the newest plan that was reported to the watcher as outdated."""

    # --- life -----------------------------------------------------------------------------------------------

    def watched_by(self, watcher: PlanWatcher) -> None:
        """Report plans to ``watcher``; call this before :meth:`start`."""
        self._watcher = watcher

    def start(self) -> None:
        """Join the group; return immediately."""
        self._thread.start()

    def stop(self, within_s: float) -> None:
        """Leave: stop planning, give back the locks and unregister; idempotent.

        Queues of the current plan are given back once they are free, or when Spark has ended its workers. The
        call returns after ``within_s`` at the latest. Brokers clean up what is left by themselves: a lock
        ends 60 s after its last renewal, a membership ends with the connection.
        """
        self.stop_soon()
        self._stop_planning()
        if self._thread.is_alive():
            self._thread.join(within_s)
        self._calls.pool.close()

    def stop_soon(self) -> None:
        """Leave soon, without waiting; takes no lock, so a signal handler may call it."""
        self._is_stopping = True

    @property
    def calls_end_s(self) -> float:
        """Maximum time for which :meth:`stop` may wait for calls of the listener, in seconds."""
        return CALLS_END_S if self._watcher is None else self._watcher.calls_end_s()

    # --- for the planner ------------------------------------------------------------------------------------

    def begin_plan(self) -> Mapping[MessageQueue, int]:
        """End the previous plan; return the queues that may be planned now, with their grants' numbers.

        A grant is a period for which this member holds a queue. The member gives none of the returned queues
        up before :meth:`planned` is called. A queue that tasks of the previous plan were to give up, and that
        this member has got back since, has a new grant.
        """

        def begin(machine: Membership, now_s: float) -> Mapping[MessageQueue, int]:
            # If they gave it up without a result, its row would show a listener that has committed nothing.
            for queue in self._given_up:
                machine.reclaim(queue)
            self._given_up = frozenset()
            self._offered = machine.begin_plan(now_s)
            return self._offered

        return self._notify(begin)

    def left_to_others(self, queues: Collection[MessageQueue]) -> Collection[MessageQueue]:
        """Return those of ``queues`` that are known to be allocated to other members now."""
        return self._query(lambda machine, _: machine.left_to_others(queues))

    def note_seen(self, queues: Collection[MessageQueue]) -> None:
        """Note that the planner, which has routes of its own, has seen ``queues``.

        If this member's routes lack one of them, its thread asks all name servers for the routes again. It
        does so once a second at most.
        """
        if not set(queues).issubset(self._routes.queues):
            self._doubts_routes = True

    def planned(self, grants: Mapping[MessageQueue, int]) -> frozenset[MessageQueue]:
        """Note the queues of the plan that was made; return those whose messages may be consumed.

        These are the queues that this member still holds under the same grants as in ``grants``. If there
        are any, the watcher gets a report of the plan.
        """
        valid = self._notify(lambda machine, now_s: machine.planned(grants, now_s))
        if self._watcher is not None and valid:
            plan, _ = self._query(lambda machine, _: machine.plan_under_way())
            self._watcher.plan_made(plan, valid)
            masters = self._routes.masters
            self._masters_at_plan = {queue.broker_name: masters.get(queue.broker_name) for queue in valid}
            self._made = plan
            self._wake.set()
        return valid

    def free(self, plan: int, queues: Collection[MessageQueue] | None) -> None:
        """Note that the batch of ``plan`` is over for ``queues`` (None: for all its queues).

        They may then go to other members. Nothing happens if ``plan`` is not the newest plan.
        """
        self._notify(lambda machine, now_s: machine.free(plan, queues, now_s))

    def holds(self, queue: MessageQueue) -> bool:
        """Return whether the queue is in the current plan and its messages may still be consumed."""
        return self._query(lambda machine, now_s: machine.is_planned(queue, now_s))

    def claimed_by_other(self, queue: MessageQueue) -> None:
        """Report that another consumer has claimed ``queue`` in the offset store."""
        self._notify(lambda machine, now_s: machine.claimed_by_other(queue, now_s))

    def reset_found(self, queue: MessageQueue, target: int) -> None:
        """Note an operator's reset for :meth:`take_resets`; the watcher learns that the plan is outdated."""
        with self._guard:
            self._resets[queue] = target
        self._wake.set()

    def reset_is_due(self, queue: MessageQueue) -> None:
        """Note that the planner has received an operator's reset, which its next plan follows.

        The watcher learns that the plan is outdated. :meth:`take_resets` does not return this reset.
        """
        with self._guard:
            self._due_resets.add(queue)
        self._wake.set()

    def take_resets(self) -> Mapping[MessageQueue, int]:
        """Return, by queue, the target offsets that :meth:`reset_found` has noted, and forget them.

        Also forget what :meth:`reset_is_due` has noted, so call this before the planner takes its own resets.
        """
        with self._guard:
            resets, self._resets = self._resets, {}
            self._due_resets.clear()
        return resets

    def outage_of(self, broker_name: str) -> Outage | None:
        """Return when the broker's master last did not answer this member; None if it always has answered."""
        with self._guard:
            return self._outages.of(broker_name)

    def reclaim(self, queue: MessageQueue) -> None:
        """Give a held queue a new grant, under which it must be claimed in the offset store again."""
        self._notify(lambda machine, _: machine.reclaim(queue))

    def await_settled(self, timeout_s: float) -> bool:
        """Wait until all queues allocated to this member may be planned; return False after ``timeout_s``."""
        return self._await(lambda machine, _: machine.is_settled, timeout_s)

    def await_held(self, timeout_s: float) -> bool:
        """Wait until at least one queue may be planned; return False if none may within ``timeout_s``."""
        return self._await(lambda machine, now_s: bool(machine.plannable(now_s)), timeout_s)

    def _await(self, is_so: Callable[[Membership, float], bool], timeout_s: float) -> bool:
        deadline = Deadline.after(self._clock, timeout_s)
        pause = threading.Event()
        while not self._query(is_so):
            if deadline.has_passed:
                return False
            pause.wait(min(_SETTLE_CHECK_S, deadline.remaining_s()))
        return True

    def notified(self) -> None:
        """Request the list of members again soon, because a broker has notified that the group changed."""
        self._notify(lambda machine, now_s: machine.notified(now_s))

    def held(self) -> Mapping[MessageQueue, float]:
        """Return the held queues, with the monotonic second at which each one's current lock was requested.

        Queues that this member will give up after the batch under way count as held.
        """
        locked_at_s, ahead_s = self._query(
            lambda machine, now_s: (machine.locked_at_s(), now_s - self._clock.monotonic_s())
        )
        return {queue: at_s - ahead_s for queue, at_s in locked_at_s.items()}

    def _notify(self, change: Callable[[Membership, float], T]) -> T:
        outcome = self._query(change)
        self._wake.set()
        return outcome

    def _query(self, question: Callable[[Membership, float], T]) -> T:
        with self._guard:
            return question(self._machine, self._sleeps.slept_s() + self._clock.monotonic_s())

    # --- the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_stopping:
            has_worked = False
            try:
                # Look before each round: if a broker is silent, the next round is due when this one ends.
                self._look_at_routes()
                self._look_at_connections()
                has_worked = self._do_what_is_due()
                self._notify_watcher()
            except Exception:
                # The thread must go on after any error: without it the member silently leaves the group.
                logger.exception(
                    "group member failed, going on group=%s client_id=%s", self._group, self._client_id
                )
            if not has_worked:
                self._wake.wait(self._sleep_s())
                self._wake.clear()
        self._leave()

    def _sleep_s(self) -> float:
        due_in_s = self._query(lambda machine, now_s: machine.next_due_s() - now_s)
        return min(max(due_in_s, 0.0), _LONGEST_SLEEP_S)

    def _look_at_routes(self) -> None:
        if self._doubts_routes and self._clock.monotonic_s() >= self._looks_again_at_s:
            self._doubts_routes = False
            self._looks_again_at_s = self._clock.monotonic_s() + _LOOK_AGAIN_S
            self._calls.routes.invalidate(are_doubted=True)
            self._calls.routes.expect_retries()
        try:
            routes = self._calls.routes.look(self._within(CALL_TIMEOUT_S))
        except RocketMQError as error:
            # Keep the last routes: members must not lose queues because no name server answers.
            logger.warning("route could not be refreshed group=%s: %s", self._group, error)
            return
        absent = {**routes.absent, **routes.denied}
        for topic in absent.keys() - self._known_absent:
            logger.warning(
                "topic has no route now, so its last known one is used group=%s topic=%s: %s",
                self._group,
                topic,
                absent[topic],
            )
        self._known_absent = frozenset(absent)
        by_topic = {**self._routes.by_topic, **routes.by_topic}
        if by_topic != self._routes.by_topic:
            self._routes = Routes(by_topic)
            self._query(lambda machine, now_s: machine.route_changed(self._routes.queues, now_s))

    def _look_at_connections(self) -> None:
        if self._clock.monotonic_s() < self._beats_again_at_s:
            return
        if any(not channel.is_open for channel in self._channels.values()):
            self._query(lambda machine, now_s: machine.heartbeat_wanted(now_s))

    def _notify_watcher(self) -> None:
        if self._watcher is None:
            return
        plan, leaving = self._query(lambda machine, _: (machine.plan_under_way()[0], machine.must_leave()))
        if plan != self._made:
            # The plan is still being made, and the watcher would drop a report about a plan that it lacks.
            return
        self._given_up = leaving | (self._given_up if plan == self._notified[0] else frozenset())
        if (plan, leaving) != self._notified and (leaving or self._notified[1]):
            self._watcher.must_leave(plan, leaving)
        self._notified = plan, leaving
        self._report_outdated(self._watcher)

    def _report_outdated(self, watcher: PlanWatcher) -> None:
        """Report, once for each plan, that it lacks a queue or a reset, or that a broker has moved.

        In real time a plan is in use for minutes, and its tasks have only the brokers' addresses of the plan.
        A queue that the plan's tasks had to give up, and that this member has got back since, counts as
        lacking: the tasks do not take it up again.
        """

        def gained(machine: Membership, now_s: float) -> tuple[int, list[MessageQueue], list[MessageQueue]]:
            held = machine.plannable(now_s)
            new = [
                queue
                for queue, grant in held.items()
                if queue in self._given_up or self._offered.get(queue) != grant
            ]
            return machine.plan_under_way()[0], new, sorted(self._due_resets.union(self._resets))

        plan, queues, resets = self._query(gained)
        moved = self._moved_broker()
        if plan == self._outdated or not (queues or resets or moved):
            return
        self._outdated = plan
        if queues:
            reason = f"this member got {counted(len(queues), 'queue')}, such as {min(queues)}"
        elif resets:
            reason = f"an operator has reset {resets[0]}"
        else:
            reason = f"broker {peer_text(moved)} has another address"
        watcher.replan(plan, reason)

    def _moved_broker(self) -> str:
        """Return the name of a broker whose master has another address than at the newest plan, or ""."""
        masters = self._routes.masters
        before = self._masters_at_plan.items()
        return next((name for name, address in before if masters.get(name, address) != address), "")

    def _do_what_is_due(self) -> bool:
        """Perform the due actions once; return whether there were any, because more may be due after them."""
        actions = self._query(lambda machine, now_s: machine.due(now_s))
        self._do_all(actions)
        return bool(actions)

    def _do_all(self, actions: Sequence[GroupAction]) -> None:
        """Perform the actions in order; consecutive actions of one type run at the same time, on threads.

        A process that is about to end cannot start threads, so there they run one after another. For that
        case, locks and unlocks at brokers whose last heartbeat failed come last among those of their type: a
        broker that does not answer then delays no other.
        """
        for _, alike in groupby(actions, key=type):
            run_concurrently([partial(self._do, action) for action in sorted(alike, key=self._is_slow)])

    def _is_slow(self, action: GroupAction) -> bool:
        """Return whether an action locks or unlocks queues of a broker at which the last heartbeat failed."""
        if not isinstance(action, Lock | Unlock):
            return False
        address = self._routes.masters.get(action.broker_name)
        return address is not None and address in self._silent

    def _do(self, action: GroupAction) -> None:
        """Perform the action and always report it: :class:`Membership` never repeats an unreported action."""
        try:
            self._done(action)
        except Exception:
            # The error may be on another thread, and other actions must still be performed.
            logger.exception(
                "group member failed, going on group=%s client_id=%s action=%s",
                self._group,
                self._client_id,
                type(action).__name__,
            )
            if isinstance(action, AskMembers):
                self._query(lambda machine, now_s: machine.members_unknown(now_s))
            elif isinstance(action, Lock):
                self._query(lambda machine, now_s: machine.locks_unknown(action.queues, now_s))

    def _done(self, action: GroupAction) -> None:
        match action:
            case Heartbeat():
                self._beat()
            case AskMembers():
                self._ask_members()
            case Lock():
                self._lock(action)
            case Unlock():
                self._unlock(action)
            case Unregister():
                self._unregister()

    def _beat(self) -> None:
        """Send a heartbeat to all brokers of the routes, replicas too (``sendHeartbeatToAllBroker``).

        A broker creates the group's retry topic when it gets the group's first heartbeat. So look for the
        topic after a first answer. Its queues belong to this member's first share; found later, they would
        end a real-time batch that was planned without them.
        """
        names: dict[BrokerAddress, set[str]] = {}
        for broker in self._routes.brokers:
            for address in broker.addresses.values():
                names.setdefault(address, set()).add(broker.broker_name)
        for gone in self._channels.keys() - names.keys():
            del self._channels[gone]
        for gone in self._unanswered_at_s.keys() - names.keys():
            del self._unanswered_at_s[gone]
        self._silent &= names.keys()
        before = self._channels.keys() & names.keys()
        run_concurrently([partial(self._beat_at, *each) for each in sorted(names.items())])
        if self._channels.keys() - before:
            self._calls.routes.expect_retries()
            self._look_at_routes()

    def _beat_at(self, address: BrokerAddress, names: Collection[str]) -> None:
        # Behind a proxy, several brokers have the same address.
        name = next(iter(names)) if len(names) == 1 else ""
        masters = [each for each in names if self._routes.masters.get(each) == address]
        try:
            channel = self._calls.pool.get(address, self._within(CALL_TIMEOUT_S))
            self._calls.brokers.heartbeat(address, self._heartbeat, broker_name=name)
        except RocketMQError as error:
            logger.warning("heartbeat failed group=%s broker=%s: %s", self._group, address, error)
            self._note_contact(masters, error)
            if isinstance(error, RequestTimeout) and address in self._silent:
                # The broker does not answer, so do not repeat the heartbeat now; send the next one when due.
                self._channels.pop(address, None)
            self._silent.add(address)
            # Wait a moment: a server that is gone refuses connections within a millisecond.
            self._beats_again_at_s = self._clock.monotonic_s() + _BEAT_AGAIN_S
            self._calls.routes.invalidate()
        else:
            self._silent.discard(address)
            self._channels[address] = channel
            self._note_contact(masters)

    def _note_contact(self, masters: Collection[str], error: RocketMQError | None = None) -> None:
        """Note that these brokers' masters have answered, or that a request to them failed with ``error``.

        A broker that refuses a request has answered. Another broker at its address shows neither.
        """
        if isinstance(error, WrongBroker):
            return
        with self._guard:
            now_s = self._clock.monotonic_s()
            if isinstance(error, TransportError):
                self._outages.away(masters, now_s)
            else:
                self._outages.answered(masters, now_s)

    def _ask_members(self) -> None:
        """Get the list of members from the first broker that answers.

        All members ask in the same order, so those for which the same brokers answer see the same list.

        Each silent broker costs its time-out, and no lock is renewed meanwhile. So a round of calls asks no
        further broker once ``CALL_TIMEOUT_S`` have passed; the following round does. Brokers that have not
        answered the last heartbeat, or the last such request, come last.
        """
        deadline = self._within(CALL_TIMEOUT_S)
        for name, address in sorted(self._routes.masters.items(), key=lambda item: self._silence(item[1])):
            if deadline.has_passed or self._is_stopping:
                break
            try:
                listed = self._calls.brokers.consumer_list(address, self._group, broker_name=name)
            except RocketMQError as error:
                if reports_no_members(error):
                    # This broker does not have our membership yet, or has lost it.
                    logger.info(
                        "group not known to the broker group=%s broker=%s: %s", self._group, address, error
                    )
                    self._query(lambda machine, now_s: machine.heartbeat_wanted(now_s))
                    continue
                logger.warning(
                    "members could not be asked group=%s broker=%s: %s", self._group, address, error
                )
                self._unanswered_at_s[address] = self._clock.monotonic_s()
            else:
                self._unanswered_at_s.pop(address, None)
                self._query(lambda machine, now_s: machine.members_listed(listed, now_s))  # noqa: B023
                self._look_for_differences(address, listed)
                return
        self._query(lambda machine, now_s: machine.members_unknown(now_s))

    def _silence(self, address: BrokerAddress) -> tuple[bool, float]:
        """Return a sort key by which the brokers are asked for the members, the likeliest to answer first.

        Brokers without a recent error come first, and brokers of :attr:`_silent` last. In between, the broker
        whose request failed the longest time ago comes first.
        """
        failed_at_s = self._unanswered_at_s.get(address, -inf)
        is_recent = self._clock.monotonic_s() - failed_at_s < _LIST_AGAIN_S
        return address in self._silent, failed_at_s if is_recent else -inf

    def _look_for_differences(self, address: str, listed: Sequence[str]) -> None:
        """Warn about differences. Without the right to query them (``Get`` on the group), skip this check."""
        try:
            reported = self._calls.brokers.consumer_connection(address, self._group)
        except RocketMQError as error:
            logger.debug("subscriptions not compared group=%s broker=%s: %s", self._group, address, error)
        else:
            self._differences.look(listed, reported)

    def _lock(self, action: Lock) -> None:
        try:
            granted = self._calls.brokers.lock_batch(
                self._master(action.broker_name),
                self._group,
                self._client_id,
                action.queues,
                self._within(_LOCK_TIMEOUT_S),
            )
        except RocketMQError as error:
            logger.warning(
                "lock call failed group=%s broker=%s: %s", self._group, peer_text(action.broker_name), error
            )
            self._note_contact([action.broker_name], error)
            if isinstance(error, TransportError):
                # The broker may have another address by now.
                self._calls.routes.invalidate()
            self._query(lambda machine, now_s: machine.locks_unknown(action.queues, now_s))
            return
        self._note_contact([action.broker_name])
        self._query(lambda machine, now_s: machine.locks_answered(action.queues, granted, now_s))

    def _unlock(self, action: Unlock) -> None:
        try:
            address = self._master(action.broker_name)
            if self._waits_for_calls and self._is_name_used_again(address, action.broker_name):
                logger.info(
                    "locks are left to the member that has started under the same name group=%s broker=%s",
                    self._group,
                    address,
                )
                return
            self._calls.brokers.unlock_batch(address, self._group, self._client_id, action.queues)
        except RocketMQError as error:
            logger.warning(
                "unlock failed, the next owner waits for the lock to expire (60 s) group=%s broker=%s "
                "queues=%d: %s",
                self._group,
                peer_text(action.broker_name),
                len(action.queues),
                error,
            )

    def _stop_planning(self) -> None:
        calls_end_s = self.calls_end_s
        self._notify(lambda machine, now_s: machine.stop(now_s, calls_end_s=calls_end_s))

    def _is_name_used_again(self, address: BrokerAddress, broker_name: str) -> bool:
        """Return whether another process has joined the group with this member's client id.

        The broker does not distinguish the locks of members with the same id. This member's own connection
        is no longer in the broker's list when this is called.
        """
        try:
            listed = self._calls.brokers.consumer_list(address, self._group, broker_name=broker_name)
        except RocketMQError as error:
            logger.debug("members not known group=%s broker=%s: %s", self._group, address, error)
            return False
        return self._client_id in listed

    def _leave(self) -> None:
        self._stop_planning()
        plan, planned = self._query(lambda machine, _: machine.plan_under_way())
        self._waits_for_calls = bool(planned)
        if self._watcher is not None and planned:
            self._watcher.leaves(plan)
        while True:
            self._do_all(self._query(lambda machine, now_s: machine.due(now_s)))
            if self._machine.has_left:
                return
            self._wake.wait(self._sleep_s())
            self._wake.clear()

    def _unregister(self) -> None:
        def unregister_at(address: BrokerAddress) -> None:
            try:
                self._calls.brokers.unregister(address, self._client_id, consumer_group=self._group)
            except RocketMQError as error:
                logger.warning("unregister failed group=%s broker=%s: %s", self._group, address, error)

        run_concurrently(
            [partial(unregister_at, address) for address in sorted(self._channels, key=self._silence)]
        )

    def _master(self, broker_name: str) -> BrokerAddress:
        address = self._routes.masters.get(broker_name)
        if address is None:
            raise TransportError(broker_name, "the route names no master for this broker; start its master")
        return address

    def _within(self, seconds: float) -> Deadline:
        return Deadline.after(self._clock, seconds)
