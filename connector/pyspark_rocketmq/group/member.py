"""A running member: the thread that does what membership says; checks that members agree.

The machine is touched by this thread, by the planner and by the threads of connections on which brokers
notify; a lock guards it, and under that lock nothing is called and nothing waits. Every call to a server has
a deadline, and those of one kind are made to all brokers at the same time: the worst round stays below the
10 s that a lock still counts after its renewal is due, however many brokers are silent.

A connection that broke took the membership at its broker with it, so a heartbeat follows at once, not at the
next half minute: otherwise the others would see this member missing and take its queues.

A broker keeps one subscription table per group, that of the last heartbeat: members that subscribe to
different things take messages from each other without a word (rocketmq-client-go#592, apache/rocketmq#7885).

The planner asks before every micro-batch; a queue that is not in the answer is in no plan. A queue comes with
the number of its *grant*, which grows: under a grant not seen before it must be claimed in the offset store
first. The claim is what fences; ownership alone fences nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
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
from pyspark_rocketmq.display import peer_text
from pyspark_rocketmq.errors import BrokerError, RequestTimeout, RocketMQError, TransportError
from pyspark_rocketmq.hub.state import CALLS_END_S
from pyspark_rocketmq.model import BrokerAddress, MessageQueue
from pyspark_rocketmq.wire.requests.admin import ConsumerConnection
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, HeartbeatData
from pyspark_rocketmq.wire.subscription import SubscriptionData


class QueueOwnership(Protocol):
    """The group's queues that belong to this consumer now. Only ``await_settled`` waits."""

    def begin_plan(self) -> Mapping[MessageQueue, int]:
        """The queues that may be planned now, and the grant of each; the plan before this one is over.

        None of them is given up until :meth:`planned` was called.
        """
        ...

    def planned(self, grants: Mapping[MessageQueue, int]) -> frozenset[MessageQueue]:
        """Report the plan's queues; those of them that may still be run, the others must leave it."""
        ...

    def holds(self, queue: MessageQueue) -> bool:
        """Whether the queue is in the plan under way and may still be run."""
        ...

    def claimed_by_other(self, queue: MessageQueue) -> None:
        """Another consumer has claimed ``queue`` in the offset store."""
        ...

    def reclaim(self, queue: MessageQueue) -> None:
        """Grant a queue anew that was not planned for too long (B6)."""
        ...

    def await_settled(self, timeout_s: float) -> bool:
        """Wait until every queue allocated to this consumer may be planned; whether that is so now."""
        ...


logger = logging.getLogger(__name__)


class SubscriptionConsistency:
    """Compares what a broker reports of the group with this member; warns once of a difference."""

    def __init__(self, own: ConsumerData, client_id: str) -> None:
        self._own = own
        self._client_id = client_id
        self._warned: frozenset[str] = frozenset()

    def look(self, listed: Sequence[str], reported: ConsumerConnection) -> None:
        """Warn of each difference that was not there at the last look."""
        problems = frozenset(differences(self._own, self._client_id, listed, reported))
        for problem in sorted(problems - self._warned):
            logger.warning("group members differ group=%s: %s", self._own.group_name, problem)
        self._warned = problems


def differences(
    own: ConsumerData, client_id: str, listed: Sequence[str], reported: ConsumerConnection
) -> list[str]:
    """A sentence on each."""
    problems = []
    if (count := list(listed).count(client_id)) > 1:
        problems.append(
            f"client id '{client_id}' is listed {count} times: a connection of this member fell silent, and "
            "the broker notices that within two minutes; or members share the id, and each takes the shares "
            "of all: give each query an instanceName of its own, or leave the option out"
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


T = TypeVar("T")

_LOCK_TIMEOUT_S = 1.0
"""As ``RebalanceImpl`` has it: a broker that does not answer must not cost the others' renewals."""
CALL_TIMEOUT_S = 3.0
"""Of the clients in :class:`GroupCalls`, at most: ``ClientConfig.mqClientApiTimeout``."""
_LONGEST_SLEEP_S = 1.0
"""How soon a broken connection or a new route is noticed."""
_SETTLE_CHECK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCalls:
    """The clients a member makes its calls through; ``pool`` must hand brokers' requests to the member."""

    pool: ChannelPool
    brokers: BrokerClient
    routes: TopicRoutes
    """Of all topics the group subscribes to."""


class PlanWatcher(Protocol):
    """Reports to those who run a plan what becomes of its queues; must not wait."""

    def plan_made(self, plan: int, queues: Collection[MessageQueue]) -> None:
        """A plan with a number of its own holds ``queues``."""
        ...

    def must_leave(self, plan: int, queues: Collection[MessageQueue]) -> None:
        """All queues of the plan that are to be given up, as of now; called again when that has changed."""
        ...

    def leaves(self, plan: int) -> None:
        """The process that plans ends, and waits until nothing of the plan is delivered any more."""
        ...

    def calls_end_s(self) -> float:
        """How long after its query a call of the listener may go on."""
        ...


class RunningMember:
    """Implements :class:`QueueOwnership`. Start it, and stop it in any case."""

    def __init__(
        self, machine: Membership, heartbeat: HeartbeatData, calls: GroupCalls, clock: Clock
    ) -> None:
        """Prepare the member.

        Args:
            machine: What it is to do.
            heartbeat: What it tells the brokers; its only consumer names group and subscriptions.
            calls: How servers are called.
            clock: The machine's.
        """
        self._machine = machine
        self._heartbeat = heartbeat
        self._client_id = heartbeat.client_id
        self._group = heartbeat.consumers[0].group_name
        self._calls = calls
        self._clock = clock
        self._sleeps = SleepWatch(clock)
        """Brokers' clocks go on while this machine sleeps, and so does the machine's time: all that was due
        meanwhile is."""
        self._guard = threading.Lock()
        self._wake = threading.Event()
        self._is_stopping = False
        self._waits_for_calls = False
        """It leaves when a listener is called no more; a restart of the same name may have come meanwhile."""
        self._thread = threading.Thread(target=self._run, name="rocketmq-group", daemon=True)
        self._routes = Routes({})
        """As of the last look; of a topic that is gone, the last there was."""
        self._known_absent: frozenset[str] = frozenset()
        """Topics that had no route at the last look."""
        self._channels: dict[BrokerAddress, Channel] = {}
        """On which a heartbeat was answered."""
        self._silent: set[BrokerAddress] = set()
        """Where the last heartbeat was not."""
        self._differences = SubscriptionConsistency(heartbeat.consumers[0], self._client_id)
        self._watcher: PlanWatcher | None = None
        self._notified: tuple[int, frozenset[MessageQueue]] = (0, frozenset())
        """Plan and queues to be given up, as the watcher knows them."""

    # --- life -----------------------------------------------------------------------------------------------

    def watched_by(self, watcher: PlanWatcher) -> None:
        """Tell ``watcher`` of plans; before :meth:`start`."""
        self._watcher = watcher

    def start(self) -> None:
        """Begin to take part; returns at once."""
        self._thread.start()

    def stop(self, within_s: float) -> None:
        """Leave: nothing is planned any more, locks are given back, the others are told; idempotent.

        Queues of the plan under way are given back once they are free, or when Spark has ended its workers.
        Returns after ``within_s`` at the latest; what was not done then the brokers do by themselves: a lock
        ends 60 s after its last renewal, a membership with the connection.
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
        """How long :meth:`stop` may wait for calls of the listener."""
        return CALLS_END_S if self._watcher is None else self._watcher.calls_end_s()

    # --- what the planner asks ------------------------------------------------------------------------------

    def begin_plan(self) -> Mapping[MessageQueue, int]:
        """See :class:`QueueOwnership`."""
        return self._notify(lambda machine, now_s: machine.begin_plan(now_s))

    def planned(self, grants: Mapping[MessageQueue, int]) -> frozenset[MessageQueue]:
        """See :class:`QueueOwnership`."""
        valid = self._notify(lambda machine, now_s: machine.planned(grants, now_s))
        if self._watcher is not None and valid:
            plan, _ = self._query(lambda machine, _: machine.plan_under_way())
            self._watcher.plan_made(plan, valid)
        return valid

    def free(self, plan: int, queues: Collection[MessageQueue] | None) -> None:
        """The batch of ``plan`` is over, or it is for ``queues``; an older plan's is so already."""
        self._notify(lambda machine, now_s: machine.free(plan, queues, now_s))

    def holds(self, queue: MessageQueue) -> bool:
        """See :class:`QueueOwnership`."""
        return self._query(lambda machine, now_s: machine.is_planned(queue, now_s))

    def claimed_by_other(self, queue: MessageQueue) -> None:
        """See :class:`QueueOwnership`."""
        self._notify(lambda machine, now_s: machine.claimed_by_other(queue, now_s))

    def reclaim(self, queue: MessageQueue) -> None:
        """See :class:`QueueOwnership`."""
        self._notify(lambda machine, _: machine.reclaim(queue))

    def await_settled(self, timeout_s: float) -> bool:
        """See :class:`QueueOwnership`."""
        deadline = Deadline.after(self._clock, timeout_s)
        pause = threading.Event()
        while not self._query(lambda machine, _: machine.is_settled):
            if deadline.has_passed:
                return False
            pause.wait(min(_SETTLE_CHECK_S, deadline.remaining_s()))
        return True

    def notified(self) -> None:
        """A broker says that the group changed."""
        self._notify(lambda machine, now_s: machine.notified(now_s))

    def held(self) -> Mapping[MessageQueue, float]:
        """Queues held, and the monotonic second at which the lock of each was asked for last."""
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
                # Before each round: where a broker is silent, something is due again at the end of one.
                self._look_at_routes()
                self._look_at_connections()
                has_worked = self._do_what_is_due()
                self._notify_watcher()
            except Exception:
                # Nobody watches this thread; without it the group would lose this member and never be told.
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
        try:
            routes = self._calls.routes.look(self._within(CALL_TIMEOUT_S))
        except RocketMQError as error:
            # The last routes hold: a name server that is away takes nobody's queues.
            logger.warning("route could not be refreshed group=%s: %s", self._group, error)
            return
        absent = {**routes.absent, **routes.denied}
        for topic in absent.keys() - self._known_absent:
            logger.warning(
                "topic has no route, its last one holds group=%s topic=%s: %s",
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
        if any(not channel.is_open for channel in self._channels.values()):
            self._query(lambda machine, now_s: machine.heartbeat_wanted(now_s))

    def _notify_watcher(self) -> None:
        if self._watcher is None:
            return
        plan, leaving = self._query(lambda machine, _: (machine.plan_under_way()[0], machine.must_leave()))
        if (plan, leaving) != self._notified and (leaving or self._notified[1]):
            self._watcher.must_leave(plan, leaving)
        self._notified = plan, leaving

    def _do_what_is_due(self) -> bool:
        """Do it once; whether there was anything, which may have made more due."""
        actions = self._query(lambda machine, now_s: machine.due(now_s))
        self._do_all(actions)
        return bool(actions)

    def _do_all(self, actions: Sequence[GroupAction]) -> None:
        """In their order, those of one kind at the same time."""
        for _, alike in groupby(actions, key=type):
            run_concurrently([partial(self._do, action) for action in alike])

    def _do(self, action: GroupAction) -> None:
        """Do it and report it whatever happens: the machine repeats no action that was not reported."""
        try:
            self._done(action)
        except Exception:
            # Not of this thread always, and other actions are to be done beside it.
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
        """To every machine of the route, replicas too (``sendHeartbeatToAllBroker``)."""
        names: dict[BrokerAddress, set[str]] = {}
        for broker in self._routes.brokers:
            for address in broker.addresses.values():
                names.setdefault(address, set()).add(broker.broker_name)
        for gone in self._channels.keys() - names.keys():
            del self._channels[gone]
        self._silent &= names.keys()
        run_concurrently([partial(self._beat_at, *each) for each in sorted(names.items())])

    def _beat_at(self, address: BrokerAddress, names: Collection[str]) -> None:
        # Behind a proxy several brokers have one address.
        name = next(iter(names)) if len(names) == 1 else ""
        try:
            channel = self._calls.pool.get(address, self._within(CALL_TIMEOUT_S))
            self._calls.brokers.heartbeat(address, self._heartbeat, broker_name=name)
        except RocketMQError as error:
            logger.warning("heartbeat failed group=%s broker=%s: %s", self._group, address, error)
            if isinstance(error, RequestTimeout) and address in self._silent:
                # It hangs: one heartbeat at once is enough, the next one comes when it is due.
                self._channels.pop(address, None)
            self._silent.add(address)
            self._calls.routes.invalidate()
        else:
            self._silent.discard(address)
            self._channels[address] = channel

    def _ask_members(self) -> None:
        """Of the first broker that answers: all members ask in the same order, so they see the same list.

        Those that were silent at the last heartbeat come last, for each of them costs its time-out.
        """
        for name, address in sorted(self._routes.masters.items(), key=lambda item: item[1] in self._silent):
            try:
                listed = self._calls.brokers.consumer_list(address, self._group, broker_name=name)
            except BrokerError as error:
                # "no consumer for this group": this broker has not heard of us, or has forgotten us.
                logger.info(
                    "group not known to the broker group=%s broker=%s: %s", self._group, address, error
                )
                self._query(lambda machine, now_s: machine.heartbeat_wanted(now_s))
            except RocketMQError as error:
                logger.warning(
                    "members could not be asked group=%s broker=%s: %s", self._group, address, error
                )
            else:
                self._query(lambda machine, now_s: machine.members_listed(listed, now_s))  # noqa: B023
                self._look_for_differences(address, listed)
                return
        self._query(lambda machine, now_s: machine.members_unknown(now_s))

    def _look_for_differences(self, address: str, listed: Sequence[str]) -> None:
        """Only warns, so it does not matter if the user may not ask (``Get`` on the group)."""
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
            if isinstance(error, TransportError):
                # The broker may have another address by now.
                self._calls.routes.invalidate()
            self._query(lambda machine, now_s: machine.locks_unknown(action.queues, now_s))
            return
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
        """Whether another connection has this client id: to a broker, locks of both are the same.

        This one is off the list by then.
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

        run_concurrently([partial(unregister_at, address) for address in sorted(self._channels)])

    def _master(self, broker_name: str) -> BrokerAddress:
        address = self._routes.masters.get(broker_name)
        if address is None:
            raise TransportError(broker_name, "the route names no master for this broker")
        return address

    def _within(self, seconds: float) -> Deadline:
        return Deadline.after(self._clock, seconds)
