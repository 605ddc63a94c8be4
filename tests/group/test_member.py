"""Members of a group against brokers: who gets what, and what each fault costs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Sequence
from itertools import chain

import pytest

from broker_sim.cluster import SimCluster
from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consume.allocation import Averagely
from pyspark_rocketmq.consume.membership import MembershipTiming
from pyspark_rocketmq.group.member import RunningMember
from pyspark_rocketmq.model import MessageQueue, retry_topic
from pyspark_rocketmq.wire.codes import RequestCode
from tests.group.conftest import (
    SOON_S,
    Members,
    await_listed,
    await_plannable,
    let_calls_end,
    plannable,
    vanish,
    wait_for_ever,
)
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.fake_clock import FakeClock
from tests.helpers.retries import but_retries
from tests.helpers.wait import wait_until

QUICK = MembershipTiming(
    heartbeat_s=0.3, rebalance_s=0.3, shortest_rebalance_s=0.1, lock_renewal_s=0.2, lock_valid_s=2.0,
    lock_retry_s=0.1
)  # fmt: skip
"""For what RocketMQ does every twenty seconds."""


def queues_of(cluster: ClusterUnderTest | SimCluster, topic: str, per_broker: int = 2) -> set[MessageQueue]:
    return {MessageQueue(topic, name, n) for name in cluster.broker_addresses for n in range(per_broker)}


def await_shares(queues: set[MessageQueue], *members: RunningMember) -> list[set[MessageQueue]]:
    """Wait until the members have all queues between them, evenly."""

    def shares() -> list[set[MessageQueue]] | None:
        found = [plannable(member) for member in members]
        is_even = max(map(len, found)) - min(map(len, found)) <= 1
        return found if is_even and sorted(chain(*found)) == sorted(queues) else None

    found = wait_until(shares, SOON_S, reason=f"{len(members)} members that share {len(queues)} queues")
    assert found is not None
    return found


# --- coming and going ---------------------------------------------------------------------------------------


def test_the_first_member_gets_every_queue_locked(cluster: ClusterUnderTest, members: Members) -> None:
    """B1, C1."""
    topic = cluster.create_topic(queues=2)

    member = members.join(cluster.name_servers, topic, "one")

    assert member.await_settled(SOON_S)
    assert plannable(member) == but_retries(member.held()) == queues_of(cluster, topic)


@pytest.mark.parametrize("orderly", ["true", "false"])
def test_the_first_share_of_a_new_group_has_its_retry_queues(
    cluster: ClusterUnderTest, members: Members, orderly: str
) -> None:
    """E3: each broker creates one at the group's first heartbeat; in real time, a batch without it would end
    as soon as it was found.
    """
    member = members.join(cluster.name_servers, cluster.create_topic(queues=1), "one", consumeOrderly=orderly)

    assert member.await_settled(SOON_S)

    queues = member.begin_plan()
    retries = {queue.broker_name for queue in queues if queue.topic == retry_topic(members.group)}
    assert retries == cluster.broker_addresses.keys()


def test_a_member_waits_for_its_first_queue(cluster: ClusterUnderTest, members: Members) -> None:
    """C1: in real time, where nothing is planned before."""
    member = members.join(cluster.name_servers, cluster.create_topic(queues=2), "one")

    assert member.await_held(SOON_S)
    assert member.begin_plan()
    member.planned({})
    member.stop(SOON_S)
    assert not member.await_held(0.0)


def test_a_concurrent_member_locks_nothing(cluster: ClusterUnderTest, members: Members) -> None:
    """E1, C1: Java locks only in orderly mode; brokers would give anybody the locks."""
    topic = cluster.create_topic(queues=2)
    member = members.join(cluster.name_servers, topic, "one", consumeOrderly="false")

    await_plannable(member, queues_of(cluster, topic))

    for name, address in cluster.broker_addresses.items():
        on_it = {queue for queue in queues_of(cluster, topic) if queue.broker_name == name}
        assert member._calls.brokers.lock_batch(address, members.group, "rival", on_it) == on_it
    assert plannable(member) == queues_of(cluster, topic)


def test_concurrent_members_share_the_queues_and_take_over_at_once(
    cluster: ClusterUnderTest, members: Members
) -> None:
    """B1, B7: without a lock to wait for, even when the one before is killed."""
    topic = cluster.create_topic(queues=2)
    one = members.join(cluster.name_servers, topic, "one", consumeOrderly="false")
    two = members.join(cluster.name_servers, topic, "two", consumeOrderly="false")
    await_shares(queues_of(cluster, topic), one, two)

    vanish(two)

    await_plannable(one, queues_of(cluster, topic))


def test_a_second_member_gets_its_share_at_once_and_keeps_it(
    cluster: ClusterUnderTest, members: Members
) -> None:
    """B1, B5: brokers notify the first one of the second, so nobody waits for the next rebalance in 20 s."""
    topic = cluster.create_topic(queues=2)
    one = members.join(cluster.name_servers, topic, "one")
    await_plannable(one, queues_of(cluster, topic))

    two = members.join(cluster.name_servers, topic, "two")

    await_shares(queues_of(cluster, topic), one, two)


def test_queues_of_a_batch_under_way_are_kept_until_it_is_over(
    cluster: ClusterUnderTest, members: Members
) -> None:
    """B5: what is planned is not given free, although it is somebody else's share by now."""
    topic = cluster.create_topic(queues=2)
    everything = queues_of(cluster, topic)
    one = members.join(cluster.name_servers, topic, "one")
    await_plannable(one, everything)
    one.planned(one.begin_plan())

    two = members.join(cluster.name_servers, topic, "two")
    wait_until(lambda: not two.await_settled(0.0) and two._machine._members, SOON_S)
    wait_until(
        lambda: len(but_retries(one._query(lambda machine, now_s: machine.plannable(now_s)))) == 2, SOON_S
    )

    assert but_retries(one.held()) == everything
    assert all(one.holds(queue) for queue in everything)
    assert not plannable(two)
    one.begin_plan()  # the batch before is over
    await_shares(everything, one, two)


def test_a_member_that_stops_gives_its_queues_to_the_others(
    cluster: ClusterUnderTest, members: Members
) -> None:
    """B7: unlocked and unregistered; the others are notified, and need not wait for a lock to expire."""
    topic = cluster.create_topic(queues=2)
    one = members.join(cluster.name_servers, topic, "one")
    two = members.join(cluster.name_servers, topic, "two")
    await_shares(queues_of(cluster, topic), one, two)

    two.stop(SOON_S)

    assert plannable(two) == set()
    await_plannable(one, queues_of(cluster, topic))


def test_queues_of_a_vanished_member_come_free_when_its_locks_expire(members: Members) -> None:
    """B7, C2: 60 s at the broker, on a clock that stands still until then."""
    clock = FakeClock()
    with SimCluster(brokers=2, clock=clock) as cluster:
        cluster.create_topic("T", queues=2)
        one = members.join(cluster.name_servers, "T", "one")
        two = members.join(cluster.name_servers, "T", "two")
        kept, lost = await_shares(queues_of(cluster, "T"), one, two)

        vanish(two)
        wait_until(lambda: not one.await_settled(0.0), SOON_S, reason="the other one's share being wanted")
        assert plannable(one) == kept
        assert {cluster.lock_holder(members.group, queue) for queue in lost} == {"two"}
        clock.advance(60.1)

        await_plannable(one, kept | lost)
        one.stop(SOON_S)


def test_a_restart_under_the_same_name_has_its_queues_back_at_once(
    cluster: ClusterUnderTest, members: Members
) -> None:
    """B7, C1: brokers know a lock's owner by its client id."""
    topic = cluster.create_topic(queues=2)
    before = members.join(cluster.name_servers, topic, "same")
    await_plannable(before, queues_of(cluster, topic))

    vanish(before)
    after = members.join(cluster.name_servers, topic, "same")

    await_plannable(after, queues_of(cluster, topic))


# --- faults -------------------------------------------------------------------------------------------------


def test_a_broker_that_restarts_knows_the_member_again_and_has_its_locks(
    cluster: ClusterUnderTest, members: Members
) -> None:
    """A3, C2, C4: a restart forgets members and locks; the heartbeat follows the new connection at once."""
    topic = cluster.create_topic(queues=2)
    one = members.join(cluster.name_servers, topic, "one", timing=QUICK)
    await_plannable(one, queues_of(cluster, topic))

    cluster.stop_broker("broker-a")
    await_plannable(one, {queue for queue in queues_of(cluster, topic) if queue.broker_name == "broker-b"})
    cluster.start_broker("broker-a")
    # As the 30 s do for which a route is kept.
    one._calls.routes.invalidate()

    await_plannable(one, queues_of(cluster, topic))
    address = cluster.broker_addresses["broker-a"]
    await_listed(one, address)
    rival = one._calls.brokers.lock_batch(address, members.group, "rival", queues_of(cluster, topic))
    assert rival & queues_of(cluster, topic) == {q for q in rival if q.broker_name == "broker-b"} == rival


@SIM_ONLY
def test_a_broken_connection_is_followed_by_a_heartbeat_at_once(
    cluster: ClusterUnderTest, members: Members
) -> None:
    """A3: the connection took the membership along; the others must not take the queues for it."""
    topic = cluster.create_topic(queues=2)
    one = members.join(cluster.name_servers, topic, "one")
    two = members.join(cluster.name_servers, topic, "two")
    mine, others = await_shares(queues_of(cluster, topic), one, two)
    broken = [channel for address, channel in one._channels.items()]

    for channel in broken:
        channel.close()

    wait_until(lambda: not set(one._channels.values()) & set(broken), SOON_S, reason="new connections")
    assert await_shares(queues_of(cluster, topic), one, two) == [mine, others]


def test_queues_of_brokers_that_answer_go_on_while_one_is_away(members: Members) -> None:
    """C2: locks of the others are renewed; those that cannot be renewed stop counting."""
    with SimCluster(brokers=2) as cluster:
        cluster.create_topic("T", queues=2)
        one = members.join(cluster.name_servers, "T", "one", timing=QUICK)
        await_plannable(one, queues_of(cluster, "T"))

        cluster.stop_broker("broker-a")

        there = {queue for queue in queues_of(cluster, "T") if queue.broker_name == "broker-b"}
        await_plannable(one, there)
        now_s = one._clock.monotonic_s()
        wait_until(
            lambda: min(one.held().values(), default=0.0) > now_s, SOON_S, reason="renewals at broker-b"
        )
        await_plannable(one, there)
        one.stop(SOON_S)


def test_a_silent_broker_holds_up_no_other(members: Members) -> None:
    """A3, C2: calls to all brokers are made at the same time, each with its own deadline."""
    with SimCluster(brokers=21) as cluster:
        cluster.create_topic("T", queues=1)
        *silent, last = sorted(cluster.broker_addresses)
        for name in silent:
            cluster.faults.add("lose", on=RequestCode.HEART_BEAT, where=name)
            cluster.faults.add("lose", on=RequestCode.LOCK_BATCH_MQ, where=name)

        # No call to a silent broker ends, so whoever comes behind one in a row gets none.
        one = members.join(cluster.name_servers, "T", "one", calls_end=False)
        wait_until(
            lambda: cluster.broker(last).state.membership.members(members.group),
            SOON_S,
            reason=f"a heartbeat at {last}",
        )

        let_calls_end(one, (cluster.broker_addresses[name] for name in silent))
        await_plannable(one, queues_of(cluster, "T", 1))
        one.stop(SOON_S)


def test_a_broker_that_hangs_gets_no_heartbeat_after_heartbeat(members: Members) -> None:
    """A3, A7: each costs its time-out and closes the connection; one that hangs is left to the next round."""
    with SimCluster(brokers=2) as cluster:
        cluster.create_topic("T", queues=1)
        one = members.join(cluster.name_servers, "T", "one", timing=QUICK)
        await_plannable(one, queues_of(cluster, "T", 1))
        address = cluster.broker_addresses["broker-a"]
        wait_until(lambda: address in one._channels, SOON_S)

        for code in (RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ):
            cluster.faults.add("lose", on=code, where="broker-a", times=1000)
        wait_until(lambda: address not in one._channels, SOON_S, reason="giving up at once to try again")
        cluster.faults.clear()
        wait_until(lambda: address in one._channels, SOON_S, reason="a heartbeat in its turn")
        one.stop(SOON_S)


def test_a_broker_that_refuses_connections_is_not_asked_without_a_pause(
    members: Members, caplog: pytest.LogCaptureFixture
) -> None:
    """A3, A7: a heartbeat follows a broken connection immediately, and then once a second."""
    with SimCluster(brokers=1) as cluster:
        cluster.create_topic("T", queues=1)
        one = members.join(cluster.name_servers, "T", "one")
        await_plannable(one, queues_of(cluster, "T", 1))

        with caplog.at_level(logging.WARNING):
            cluster.stop_broker("broker-a")

            def failed_at_s() -> list[float]:
                return [each.created for each in caplog.records if "heartbeat failed" in each.message]

            wait_until(lambda: len(failed_at_s()) >= 4, SOON_S, reason="some heartbeats")
        first_s, *_, last_s = failed_at_s()[:4]
        assert last_s - first_s > 1.5
        one.stop(SOON_S)


@SIM_ONLY
def test_without_a_name_server_the_known_route_holds(
    cluster: ClusterUnderTest, members: Members, caplog: pytest.LogCaptureFixture
) -> None:
    """A2, B4: whoever starts meanwhile waits for it."""
    topic = cluster.create_topic(queues=2)
    faults = cluster.faults
    faults.add("drop-before", on=RequestCode.GET_ROUTEINFO_BY_TOPIC, where="namesrv")
    with caplog.at_level(logging.WARNING):
        one = members.join(cluster.name_servers, topic, "one")
        await_plannable(one, queues_of(cluster, topic))
    assert "route could not be refreshed" in caplog.text

    faults.add("drop-before", on=RequestCode.GET_ROUTEINFO_BY_TOPIC, where="namesrv")
    one._calls.routes.invalidate()
    wait_until(lambda: not faults.pending, SOON_S, reason="a route that could not be had")

    assert plannable(one) == queues_of(cluster, topic)


def test_queues_that_the_planner_has_seen_first_are_looked_up_again(members: Members) -> None:
    """A2, H4: its route is younger; a drain must not wait for the member's to be due."""
    with SimCluster(brokers=2) as cluster:
        cluster.create_topic("T", queues=1)
        one = members.join(cluster.name_servers, "T", "one", routeRefreshMs="3600000")
        await_plannable(one, queues_of(cluster, "T", 1))
        cluster.create_topic("T", queues=2)
        seen_first = queues_of(cluster, "T") | {MessageQueue(retry_topic(members.group), "broker-a", 0)}

        assert one.left_to_others(seen_first) == set()
        one.note_seen(seen_first)

        await_plannable(one, queues_of(cluster, "T"))
        one.stop(SOON_S)


# --- what members must have in common -----------------------------------------------------------------------


def test_a_client_id_used_twice_is_logged(
    cluster: ClusterUnderTest, members: Members, caplog: pytest.LogCaptureFixture
) -> None:
    topic = cluster.create_topic(queues=2)
    with caplog.at_level(logging.WARNING):
        members.join(cluster.name_servers, topic, "same", timing=QUICK)
        members.join(cluster.name_servers, topic, "same", timing=QUICK)

        wait_until(lambda: "client id 'same' is listed 2 times" in caplog.text, SOON_S)


def test_a_different_subscription_in_the_group_is_logged(
    cluster: ClusterUnderTest, members: Members, caplog: pytest.LogCaptureFixture
) -> None:
    """A3: the broker keeps the last one's, and the other one loses messages without a word."""
    topic = cluster.create_topic(queues=2)
    with caplog.at_level(logging.WARNING):
        members.join(cluster.name_servers, topic, "one", timing=QUICK, subscription="paid")
        members.join(cluster.name_servers, topic, "two", timing=QUICK, subscription="created || paid")

        wait_until(lambda: f"topic {topic} is subscribed to as '" in caplog.text, SOON_S)


class FarAway:
    """A driver that reports nothing by itself, of a Spark that lets workers go on for long."""

    def plan_made(self, plan: int, queues: Collection[MessageQueue]) -> None:
        pass

    def must_leave(self, plan: int, queues: Collection[MessageQueue]) -> None:
        pass

    def replan(self, plan: int, reason: str) -> None:
        pass

    def leaves(self, plan: int) -> None:
        pass

    def calls_end_s(self) -> float:
        return SOON_S


class Quick(FarAway):
    """A driver that reports the end of the last call immediately."""

    def __init__(self, member: RunningMember) -> None:
        self._member = member

    def leaves(self, plan: int) -> None:
        self._member.free(plan, None)


# --- leaving ------------------------------------------------------------------------------------------------


def test_a_plan_that_ends_while_its_member_leaves_leaves_no_lock(
    cluster: ClusterUnderTest, members: Members
) -> None:
    """H11, B7: the driver's answer may come before the member has done anything to leave."""
    topic = cluster.create_topic(queues=2)
    queues = queues_of(cluster, topic)
    one = members.join(cluster.name_servers, topic, "one")
    await_plannable(one, queues)
    assert but_retries(one.planned(one.begin_plan())) == queues
    one._watcher = Quick(one)

    one.stop(SOON_S)

    with ChannelPool(SystemClock()) as pool:
        brokers = BrokerClient(pool, SystemClock(), request_timeout_s=SOON_S)
        for queue in queues:
            address = cluster.broker_addresses[queue.broker_name]
            assert brokers.lock_batch(address, members.group, "somebody else", [queue]) == {queue}


def test_leaving_unregisters_at_brokers_that_answer_while_one_is_silent(members: Members) -> None:
    """B7: the queues of the brokers that answer are free at once."""
    with SimCluster(brokers=4) as cluster:
        cluster.create_topic("T", queues=2)
        one = members.join(cluster.name_servers, "T", "one")
        await_plannable(one, queues_of(cluster, "T"))
        wait_for_ever(one)
        for code in (RequestCode.UNLOCK_BATCH_MQ, RequestCode.UNREGISTER_CLIENT):
            for name in ("broker-a", "broker-b", "broker-c"):
                cluster.faults.add("stall", on=code, where=name)

        one.stop_soon()

        locks = cluster.broker("broker-d").state.locks
        wait_until(lambda: not cluster.call(lambda: locks.has_live_lock(members.group)), SOON_S)
        one.stop(0.0)


def test_a_member_that_leaves_late_keeps_the_locks_of_its_restart(
    cluster: ClusterUnderTest, members: Members
) -> None:
    """H11, C1: to a broker the locks of two processes of one name are the same."""
    topic = cluster.create_topic(queues=2)
    queues = queues_of(cluster, topic)
    old = members.join(cluster.name_servers, topic, "one")
    await_plannable(old, queues)
    grants = old.begin_plan()
    assert old.planned(grants) == grants.keys()
    plan, _ = old._query(lambda machine, _: machine.plan_under_way())
    old._watcher = FarAway()
    leaving = threading.Thread(target=old.stop, args=(SOON_S,))
    leaving.start()
    new = members.join(cluster.name_servers, topic, "one")
    held = wait_until(lambda: plannable(new), SOON_S, reason="queues of the restarted member")

    old.free(plan, None)
    leaving.join(SOON_S)

    assert not leaving.is_alive()
    for queue in held:
        address = new._master(queue.broker_name)
        assert not new._calls.brokers.lock_batch(address, members.group, "somebody else", [queue])


def test_stopping_ends_within_its_bound_although_no_broker_answers(members: Members) -> None:
    with SimCluster(brokers=2) as cluster:
        cluster.create_topic("T", queues=2)
        one = members.join(cluster.name_servers, "T", "one")
        await_plannable(one, queues_of(cluster, "T"))
        wait_for_ever(one)
        for name in cluster.broker_addresses:
            cluster.faults.add("stall", on=RequestCode.UNLOCK_BATCH_MQ, where=name)

        one.stop(0.1)

        # Its calls were broken off.
        wait_until(lambda: not one._thread.is_alive(), SOON_S, reason="the member's thread ending")


def test_a_member_that_never_started_can_be_stopped_and_stopping_twice_is_once(
    cluster: ClusterUnderTest, members: Members
) -> None:
    topic = cluster.create_topic(queues=2)
    one = members.join(cluster.name_servers, topic, "one")
    one.stop(SOON_S)
    one.stop(SOON_S)

    assert plannable(one) == set()


# --- a machine that sleeps ----------------------------------------------------------------------------------


class MachineClock:
    """The system's clock, on a machine that was asleep: its monotonic clock has not counted that."""

    slept_s = 0.0

    def now_s(self) -> float:
        return time.time() + self.slept_s

    def monotonic_s(self) -> float:
        return time.monotonic()


def test_a_machine_that_slept_plans_nothing_by_the_locks_it_had_before(members: Members) -> None:
    """C2: a laptop that was closed, a virtual machine that was stopped:
    the lock counts 30 s of everybody's time, as in Java.
    """
    clock, broker_clock = MachineClock(), FakeClock()
    with SimCluster(brokers=1, clock=broker_clock) as cluster:
        cluster.create_topic("T", queues=2)
        everything = queues_of(cluster, "T")
        one = members.join(cluster.name_servers, "T", "one", clock=clock)
        await_plannable(one, everything)
        one.planned(one.begin_plan())
        assert all(one.holds(queue) for queue in everything)
        (address,) = cluster.broker_addresses.values()
        brokers = one._calls.brokers

        broker_clock.advance(100.0)
        assert set(brokers.lock_batch(address, members.group, "rival", everything)) >= everything
        clock.slept_s = 100.0

        assert not any(one.holds(queue) for queue in everything)
        assert not plannable(one)
        brokers.unlock_batch(address, members.group, "rival", everything)
        await_plannable(one, everything)
        locked_s_ago = [clock.monotonic_s() - at_s for at_s in one.held().values()]
        assert all(0.0 <= ago_s < SOON_S for ago_s in locked_s_ago), locked_s_ago


# --- what nobody expects ------------------------------------------------------------------------------------


class MoodyStrategy:
    """A strategy of the user's own that may fail, and counts how often it did."""

    fails = False
    failed = 0

    name = "MOODY"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        if MoodyStrategy.fails:
            MoodyStrategy.failed += 1
            raise LookupError("the table of shares cannot be read")
        return Averagely().allocate(client_id, queues, members)


def test_a_strategy_that_fails_for_a_while_costs_no_queue(
    members: Members, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """B2, C2: it is asked again at each rebalance, and the locks are renewed meanwhile."""
    with SimCluster(brokers=2) as cluster:
        cluster.create_topic("T", queues=2)
        strategy = f"{__name__}:MoodyStrategy"
        one = members.join(
            cluster.name_servers, "T", "one", timing=QUICK, allocateMessageQueueStrategy=strategy
        )
        await_plannable(one, queues_of(cluster, "T"))

        monkeypatch.setattr(MoodyStrategy, "fails", True)
        wait_until(lambda: MoodyStrategy.failed > 3, SOON_S, reason="rebalances that fail")
        await_renewed(one)

        assert plannable(one) == queues_of(cluster, "T")
        assert "queues cannot be allocated, this member keeps those it has" in caplog.text
        assert "the table of shares cannot be read" in caplog.text
        monkeypatch.setattr(MoodyStrategy, "fails", False)
        wait_until(lambda: one.await_settled(0.0), SOON_S, reason="a share that is known again")


@pytest.mark.parametrize("call", ["lock_batch", "consumer_list"])
def test_a_call_that_fails_unexpectedly_is_repeated(
    call: str, members: Members, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """B1, C2: one broker's answer that cannot be understood stops neither renewals nor rebalances."""
    with SimCluster(brokers=2) as cluster:
        cluster.create_topic("T", queues=2)
        one = members.join(cluster.name_servers, "T", "one", timing=QUICK)
        await_plannable(one, queues_of(cluster, "T"))
        right, failed = getattr(one._calls.brokers, call), []

        def fail(*args: object, **kwargs: object) -> object:
            failed.append(args)
            if len(failed) < 3:
                raise LookupError("an answer without what it always has")
            return right(*args, **kwargs)

        monkeypatch.setattr(one._calls.brokers, call, fail)
        two = members.join(cluster.name_servers, "T", "two", timing=QUICK)
        await_shares(queues_of(cluster, "T"), one, two)
        two.stop(SOON_S)
        await_plannable(one, queues_of(cluster, "T"))

        wait_until(lambda: len(failed) >= 3, SOON_S, reason="calls that fail")
        await_renewed(one)
        assert plannable(one) == queues_of(cluster, "T")
        assert "group member failed, going on" in caplog.text


def test_a_member_that_leaves_looks_for_its_name_only_at_the_broker_of_its_locks(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A7, B7: a broker that came to this address has other locks."""
    with SimCluster(brokers=2) as cluster:
        cluster.create_topic("T", queues=1)
        one = members.join(cluster.name_servers, "T", "one", timing=QUICK)
        await_plannable(one, queues_of(cluster, "T", 1))
        addresses, asked = cluster.broker_addresses, set[tuple[str, str]]()

        def listed(address: str, group: str, *, broker_name: str = "") -> tuple[str, ...]:
            asked.add((address, broker_name))
            return ()

        assert one.planned(one.begin_plan())
        monkeypatch.setattr(one._calls.brokers, "consumer_list", listed)
        one.stop(SOON_S)

        assert {(address, name) for name, address in addresses.items()} == asked


def await_renewed(member: RunningMember) -> None:
    """Wait until each lock that the member has now was renewed."""
    before = member.held()
    wait_until(
        lambda: before and all(member.held().get(queue, 0) > at_s for queue, at_s in before.items()),
        SOON_S,
        reason="locks that are renewed",
    )
