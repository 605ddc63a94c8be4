"""What being a member of a group costs: a rebalance, a trigger of the planner, and a queue that changes hands."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from bench.measure import Result, Spread, Target, load_average
from broker_sim.cluster import SimCluster
from pyspark_rocketmq.client.system_clock import SystemClock
from pyspark_rocketmq.consume.allocation_names import allocation_strategy
from pyspark_rocketmq.consume.duties import Duty, Lock
from pyspark_rocketmq.consume.membership import Membership
from pyspark_rocketmq.datasource.group_member import join_group
from pyspark_rocketmq.group.member import RunningMember
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.memory import MemoryOffsetStore
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.wire.bodies import (
    LockBatchRequest,
    decode_consumer_list,
    decode_lock_response,
    encode_consumer_list,
    encode_lock_request,
    encode_lock_response,
)

_BROKERS = 4
_QUEUES = 1_024
_MEMBERS = 8
_REBALANCE_TARGET_MS = 200.0
_TRIGGER_TARGET_MS = 1.0
_TAKEOVER_TARGET_S = 5.0
_LONGEST_S = 60.0
_POLL_S = 0.01

_METHOD = """\
*Rebalance*: {members} members that share {queues:,} queues of {brokers} brokers; the last one of them joins, and each
takes in the new list, decides, gives up, asks for locks and takes in the answers until nothing is left to do: own computing,
JSON bodies included, without network and brokers. `all` is the sum over the {members} members, as if they shared a core.
{rounds} times. *Lock calls* are counted in a renewal of all locks. *Trigger*: `begin_plan` and `planned` of a member that
holds all {queues:,} queues and plans all of them, {triggers} times. *Takeover*: two members on a simulated cluster,
RocketMQ's intervals; from `stop()` of one to the moment at which the other may plan every queue, {takeovers} times."""


def run(*, rounds: int = 20, triggers: int = 500, takeovers: int = 10) -> Result:
    """Measure; ``takeovers`` take some two seconds each."""
    before = load_average()
    together, single, calls = [], [], []
    for _ in range(rounds):
        spent = _rebalance()
        together.append(sum(spent))
        single += spent
    member = _settled(_queues(), "member-0", ["member-0"])
    calls = [len(each) / _BROKERS for each in _renewals(member, rounds)]
    spreads = {
        "rebalance of all members, ms": Spread.of(together),
        "rebalance of one member, ms": Spread.of(single),
        "lock calls per broker and renewal": Spread.of(calls),
        "trigger, ms": Spread.of(_trigger(member) for _ in range(triggers)),
        "graceful takeover, s": Spread.of(_takeovers(takeovers)),
    }
    all_ms, _, per_broker, trigger_ms, takeover_s = spreads.values()
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
        ),
        columns=("what", "min", "median", "max"),
        rows=tuple((what, *spread.cells(".3f")) for what, spread in spreads.items()),
        targets=(
            _target(
                f"rebalance of {_QUEUES:,} queues, {_MEMBERS} members", all_ms, _REBALANCE_TARGET_MS, "ms"
            ),
            _target("lock calls per broker and renewal", per_broker, 1.0, ""),
            _target(f"membership per trigger, {_QUEUES:,} queues", trigger_ms, _TRIGGER_TARGET_MS, "ms"),
            _target("queues of a member that stops", takeover_s, _TAKEOVER_TARGET_S, "s"),
        ),
        load=(before, load_average()),
    )


def _target(what: str, seen: Spread, bound: float, unit: str) -> Target:
    return Target(what=what, seen=seen, bound=bound, at_most=True, unit=unit)


def _queues() -> list[MessageQueue]:
    return [MessageQueue("orders", f"broker-{n % _BROKERS}", n // _BROKERS) for n in range(_QUEUES)]


def _settled(queues: Sequence[MessageQueue], client_id: str, members: Sequence[str]) -> Membership:
    """A member at second 0 that holds its share."""
    member = Membership(client_id, allocation_strategy("averagely").allocate)
    member.route_changed(queues, 0.0)
    member.due(0.0)
    member.members_listed(members, 0.0)
    _do_all(member, 0.0)
    return member


def _rebalance() -> list[float]:
    """Milliseconds of each member's own computing when the last one of them joins."""
    queues, names = _queues(), [f"member-{number}" for number in range(_MEMBERS)]
    members = [_settled(queues, name, names[:-1]) for name in names[:-1]]
    newcomer = Membership(names[-1], allocation_strategy("averagely").allocate)
    newcomer.route_changed(queues, 0.0)
    answer = encode_consumer_list(names)

    def rebalance(member: Membership) -> None:
        member.members_listed(decode_consumer_list(answer), 5.0)
        _do_all(member, 5.0)

    return [_milliseconds(lambda each=each: rebalance(each)) for each in (*members, newcomer)]


def _do_all(member: Membership, now_s: float) -> list[Duty]:
    """Do what is due, every lock being granted, until nothing is; what was done."""
    done: list[Duty] = []
    while duties := member.due(now_s):
        for duty in duties:
            if isinstance(duty, Lock):
                encode_lock_request(
                    LockBatchRequest(consumer_group="bench", client_id="member", queues=duty.queues)
                )
                granted = decode_lock_response(encode_lock_response(duty.queues))
                member.locks_answered(duty.queues, granted, now_s)
        done += duties
    return done


def _renewals(member: Membership, rounds: int) -> list[list[Duty]]:
    """The lock calls of each of so many renewals."""
    return [
        [duty for duty in _do_all(member, number * 20.0) if isinstance(duty, Lock)]
        for number in range(1, rounds + 1)
    ]


def _trigger(member: Membership) -> float:
    now_s = max(member.locked_at_s().values())

    def trigger() -> None:
        member.planned(member.begin_plan(now_s), now_s)

    return _milliseconds(trigger)


def _takeovers(count: int) -> list[float]:
    with SimCluster(brokers=2) as cluster:
        cluster.create_topic("orders", queues=8)
        wanted = 16
        stayer = _join(cluster, "stayer")
        try:
            return [_takeover(cluster, stayer, wanted) for _ in range(count)]
        finally:
            stayer.stop(_LONGEST_S)


def _takeover(cluster: SimCluster, stayer: RunningMember, wanted: int) -> float:
    """Seconds until ``stayer`` has what another one, who stops, had."""
    leaver = _join(cluster, "leaver")
    _await(lambda: _plannable(stayer) == _plannable(leaver) == wanted // 2)
    started_s = time.perf_counter()
    leaver.stop(_LONGEST_S)
    _await(lambda: _plannable(stayer) == wanted)
    return time.perf_counter() - started_s


def _join(cluster: SimCluster, name: str) -> RunningMember:
    store = MemoryOffsetStore("bench", clock=SystemClock())
    options = ReadOptions.parse(
        {
            "nameServers": cluster.name_servers,
            "topic": "orders",
            "consumerGroup": "bench",
            "offsetStore": store.spec,
        }
    )
    member = join_group(options, name, store, SystemClock())
    member.start()
    return member


def _plannable(member: RunningMember) -> int:
    return len(member.planned(member.begin_plan()))


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
