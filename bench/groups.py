"""Cost of membership in a group: a rebalance, a trigger of the planner, and the takeover of a queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial

from bench.cluster import real_cluster
from bench.group_member import join, member_process, plannable
from bench.measure import Result, Spread, Target, load_average
from broker_sim.bodies import encode_consumer_list, encode_lock_response
from pyspark_rocketmq.consume.allocation import allocation_strategy
from pyspark_rocketmq.consume.membership import GroupAction, Lock, Membership
from pyspark_rocketmq.group.member import RunningMember
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.fastjson import dumps_java
from pyspark_rocketmq.wire.requests.bodies import LockBatchRequest, decode_consumer_list, decode_lock_response
from tests.helpers.cluster import ClusterUnderTest

_BROKERS = 4
_QUEUES = 1_024
_MEMBERS = 8
_REBALANCE_TARGET_MS = 200.0
_TRIGGER_TARGET_MS = 1.0
_TAKEOVER_TARGET_S = 5.0
_KILLED_TARGET_S = 80.0
"""The broker's 60 s and one rebalance of 20 s."""
_LONGEST_S = 120.0
_SHARED = 8
_SETTLING_S = 25.0
"""Longer than the interval of lock renewals, so that the victim has its queues
and has renewed their locks once.
"""
_POLL_S = 0.01

Servers = Callable[[], AbstractContextManager[ClusterUnderTest]]

_METHOD = """\
*Rebalance*: {members} members that share {queues:,} queues of {brokers} brokers; the last one of them joins, and each
takes in the new list, decides, gives up, asks for locks and takes in the answers until nothing is left to do: own computing,
JSON bodies included, without network and brokers. `all` is the sum over the {members} members, as if they shared a core.
{rounds} times. *Lock calls* are counted in a renewal of all locks. *Trigger*: `begin_plan` and `planned` of a member that
holds all {queues:,} queues and plans all of them, {triggers} times. *Takeover*: two members on a real broker,
RocketMQ's intervals; from `stop()` of one to the moment at which the other may plan all {shared} queues, {takeovers} times; and the
same from kill -9 of a member's process, without an `instanceName`, {kills} times."""


def run(
    *,
    rounds: int = 20,
    triggers: int = 500,
    takeovers: int = 10,
    kills: int = 3,
    servers: Servers = real_cluster,
) -> Result:
    """Measure; a takeover takes some two seconds, one after a kill some 90."""
    before = load_average()
    together, single, calls = [], [], []
    for _ in range(rounds):
        spent = _rebalance()
        together.append(sum(spent))
        single += spent
    member = _settled(_queues(), "member-0", ["member-0"])
    calls = [len(each) / _BROKERS for each in _renewals(member, rounds)]
    stopped_s, killed_s = _takeovers(takeovers, kills, servers)
    spreads = {
        "rebalance of all members, ms": Spread.of(together),
        "rebalance of one member, ms": Spread.of(single),
        "lock calls per broker and renewal": Spread.of(calls),
        "trigger, ms": Spread.of(_trigger(member) for _ in range(triggers)),
        "graceful takeover, s": Spread.of(stopped_s),
    }
    all_ms, _, per_broker, trigger_ms, stop_s = spreads.values()
    targets = [
        _target(f"rebalance of {_QUEUES:,} queues, {_MEMBERS} members", all_ms, _REBALANCE_TARGET_MS, "ms"),
        _target("lock calls per broker and renewal", per_broker, 1.0, ""),
        _target(f"membership per trigger, {_QUEUES:,} queues", trigger_ms, _TRIGGER_TARGET_MS, "ms"),
        _target("queues of a member that stops", stop_s, _TAKEOVER_TARGET_S, "s"),
    ]
    if killed_s:
        spreads["takeover after kill -9, s"] = kill_s = Spread.of(killed_s)
        targets.append(_target("queues of a member that is killed", kill_s, _KILLED_TARGET_S, "s"))
    return Result(
        name="groups",
        title="Consumer groups",
        method=_METHOD.format(
            members=_MEMBERS,
            queues=_QUEUES,
            brokers=_BROKERS,
            rounds=rounds,
            triggers=triggers,
            takeovers=takeovers,
            kills=kills,
            shared=_SHARED,
        ),
        columns=("what", "min", "median", "max"),
        rows=tuple((what, *spread.cells(".3f")) for what, spread in spreads.items()),
        targets=tuple(targets),
        load=(before, load_average()),
    )


def _target(what: str, seen: Spread, bound: float, unit: str) -> Target:
    return Target(what=what, seen=seen, bound=bound, at_most=True, unit=unit)


def _queues() -> list[MessageQueue]:
    return [MessageQueue("orders", f"broker-{n % _BROKERS}", n // _BROKERS) for n in range(_QUEUES)]


def _settled(queues: Sequence[MessageQueue], client_id: str, members: Sequence[str]) -> Membership:
    """Return a member at second 0 that holds its share."""
    member = Membership(client_id, allocation_strategy("averagely").allocate)
    member.route_changed(queues, 0.0)
    member.due(0.0)
    member.members_listed(members, 0.0)
    _do_all(member, 0.0)
    return member


def _rebalance() -> list[float]:
    """Return the milliseconds that each member computes when the last one joins."""
    queues, names = _queues(), [f"member-{number}" for number in range(_MEMBERS)]
    members = [_settled(queues, name, names[:-1]) for name in names[:-1]]
    newcomer = Membership(names[-1], allocation_strategy("averagely").allocate)
    newcomer.route_changed(queues, 0.0)
    answer = encode_consumer_list(names)

    def rebalance(member: Membership) -> None:
        member.members_listed(decode_consumer_list(answer), 5.0)
        _do_all(member, 5.0)

    return [_milliseconds(partial(rebalance, each)) for each in (*members, newcomer)]


def _do_all(member: Membership, now_s: float) -> list[GroupAction]:
    """Perform the due actions, with every lock granted, until none is left; return them."""
    done: list[GroupAction] = []
    while actions := member.due(now_s):
        for action in actions:
            if isinstance(action, Lock):
                dumps_java(LockBatchRequest(consumer_group="bench", client_id="member", queues=action.queues))
                granted = decode_lock_response(encode_lock_response(action.queues))
                member.locks_answered(action.queues, granted, now_s)
        done += actions
    return done


def _renewals(member: Membership, rounds: int) -> list[list[GroupAction]]:
    """Return the lock calls of each of ``rounds`` renewals."""
    return [
        [action for action in _do_all(member, number * 20.0) if isinstance(action, Lock)]
        for number in range(1, rounds + 1)
    ]


def _trigger(member: Membership) -> float:
    now_s = max(member.locked_at_s().values())

    def trigger() -> None:
        member.planned(member.begin_plan(now_s), now_s)

    return _milliseconds(trigger)


def _takeovers(graceful: int, killed: int, servers: Servers) -> tuple[list[float], list[float]]:
    with servers() as cluster:
        topic = cluster.create_topic("bench-groups", _SHARED)
        stayer = join(cluster.name_servers, topic, "stayer")
        try:
            return (
                [_after_stop(cluster.name_servers, topic, stayer) for _ in range(graceful)],
                [_after_kill(cluster.name_servers, topic, stayer, number) for number in range(killed)],
            )
        finally:
            stayer.stop(_LONGEST_S)


def _after_stop(name_servers: str, topic: str, stayer: RunningMember) -> float:
    """Return the seconds until ``stayer`` has the queues of another member that stops."""
    leaver = join(name_servers, topic, "leaver")
    _await(lambda: plannable(stayer) == plannable(leaver) == _SHARED // 2)
    started_s = time.perf_counter()
    leaver.stop(_LONGEST_S)
    _await(lambda: plannable(stayer) == _SHARED)
    return time.perf_counter() - started_s


def _after_kill(name_servers: str, topic: str, stayer: RunningMember, number: int) -> float:
    """Return the same after kill -9, a rebalance and a renewal of locks after the victim has joined."""
    with member_process(name_servers, topic, f"victim-{number}") as victim:
        _await(lambda: plannable(stayer) == _SHARED // 2)
        # Its share is given up; a refused lock shows that the victim has locked it.
        time.sleep(_SETTLING_S)
        victim.kill()
        started_s = time.perf_counter()
        _await(lambda: plannable(stayer) == _SHARED)
        return time.perf_counter() - started_s


def _await(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _LONGEST_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"The members did not share their queues within {_LONGEST_S:g} s.")
        time.sleep(_POLL_S)


def _milliseconds(action: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    action()
    return (time.perf_counter() - started_s) * 1000
