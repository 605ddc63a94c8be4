"""Rounds of a member whose brokers are silent: how long one may take, and what is given back at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_rocketmq.client.cluster import Routes
from pyspark_rocketmq.errors import BrokerError, ConnectFailed, RequestTimeout
from pyspark_rocketmq.group import join, member
from pyspark_rocketmq.group.join import join_group
from pyspark_rocketmq.group.member import CALL_TIMEOUT_S
from pyspark_rocketmq.model import BrokerAddress, BrokerData, MessageQueue, QueueData, TopicRoute
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.wire.codes import ResponseCode
from tests.group.test_group_member import options
from tests.helpers.fake_clock import FakeClock

NAMES = [f"broker-{letter}" for letter in "abcdefgh"]
QUEUES = frozenset(MessageQueue("orders", name, 0) for name in NAMES)
ROUTES = Routes(
    {
        "orders": TopicRoute(
            brokers=tuple(
                BrokerData(broker_name=name, cluster="c", addresses={0: BrokerAddress(f"{name}:10911")})
                for name in NAMES
            ),
            queues=tuple(
                QueueData(broker_name=name, read_queue_nums=1, write_queue_nums=1, perm=6) for name in NAMES
            ),
        )
    }
)


class Servers:
    """Plays the clients of a member; a call to a silent server takes its time-out of the test's clock."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.lists: list[str] = []
        """Brokers that have answered a request for the members."""
        self.silent: dict[str, set[str]] = {}
        """Names of the silent servers, by call."""
        self.left: set[str] = set()
        """Brokers at which the member has unregistered."""
        self.unlocked: set[MessageQueue] = set()
        self.are_concurrent = False
        """Whether calls to silent servers take no time, since so many are made at the same time."""
        self.passed: Callable[[], None] = lambda: None
        """Called when a call has taken time."""

    def _is_silent(self, call: str, name: str, timeout_s: float) -> None:
        if name in self.silent.get(call, ()):
            if not self.are_concurrent:
                self.clock.advance(timeout_s)
            self.passed()
            raise RequestTimeout(name, call, timeout_s)

    def get(self, address: str, _: object) -> Any:
        return SimpleNamespace(is_open=True)

    def look(self, _: object) -> Routes:
        self._is_silent("route", "name server", CALL_TIMEOUT_S)
        return ROUTES

    def invalidate(self) -> None:
        pass

    def heartbeat(self, address: str, _: object, *, broker_name: str) -> None:
        self._is_silent("heartbeat", broker_name, CALL_TIMEOUT_S)

    def consumer_list(self, address: str, _: str, *, broker_name: str) -> tuple[str, ...]:
        self._is_silent("list", broker_name, CALL_TIMEOUT_S)
        self.lists.append(broker_name)
        return () if broker_name in self.left else ("me",)

    def consumer_connection(self, address: str, _: str) -> None:
        raise ConnectFailed(address, "no matter for this test")

    def lock_batch(
        self, address: str, _: str, client_id: str, queues: Iterable[MessageQueue], deadline: Any
    ) -> frozenset[MessageQueue]:
        self._is_silent("lock", address.partition(":")[0], deadline.remaining_s())
        return frozenset(queues)

    def unlock_batch(self, address: str, _: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        self._is_silent("unlock", address.partition(":")[0], CALL_TIMEOUT_S)
        self.unlocked |= set(queues)

    def unregister(self, address: str, client_id: str, *, consumer_group: str) -> None:
        name = address.partition(":")[0]
        self._is_silent("unregister", name, CALL_TIMEOUT_S)
        self.left.add(name)


class Rounds:
    """A member whose rounds a test calls; at first all servers answer."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.servers = Servers(self.clock)
        self.member = join_group(options(), "me", MemoryOffsetStore("rounds", clock=self.clock), self.clock)
        self.member._calls.pool.close()
        calls: Any = SimpleNamespace(pool=self.servers, brokers=self.servers, routes=self.servers)
        self.member._calls = calls
        while not self.member.await_settled(0.0):
            self.round()
        self.grants = dict(self.member.begin_plan())
        assert self.member.planned(self.grants) == QUEUES

    def round(self) -> None:
        """Let the member's thread do one round; if nothing is due, a second passes."""
        self.member._look_at_routes()
        if not self.member._do_what_is_due():
            self.clock.advance(1.0)

    def plannable(self) -> dict[MessageQueue, int]:
        return self.member._query(lambda machine, now_s: machine.plannable(now_s))


@pytest.mark.parametrize("call", ["heartbeat", "lock"])
def test_a_member_knows_when_a_broker_was_away(call: str) -> None:
    """F5: in real time no plan is made meanwhile that would see it."""
    rounds = Rounds()
    one, others = NAMES[0], NAMES[1:]
    assert {rounds.member.outage_of(name) for name in NAMES} == {None}
    began_s = rounds.clock.monotonic_s()
    rounds.servers.silent = {call: {one}}
    for _ in range(40):
        rounds.round()

    outage = rounds.member.outage_of(one)
    assert outage is not None
    assert began_s - 20.0 <= outage.left_at_s <= outage.seen_at_s <= rounds.clock.monotonic_s()
    assert outage.seen_at_s > began_s
    assert {rounds.member.outage_of(name) for name in others} == {None}

    rounds.servers.silent = {}
    for _ in range(90):
        rounds.round()
    assert rounds.member.outage_of(one) == outage


def test_a_broker_that_refuses_a_lock_is_not_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """F5: it keeps the group's offsets."""
    rounds = Rounds()
    refused: list[str] = []

    def refuse(address: str, *_: object) -> None:
        refused.append(address)
        raise BrokerError(ResponseCode.SYSTEM_BUSY, "busy", address=address)

    monkeypatch.setattr(rounds.servers, "lock_batch", refuse)
    for _ in range(30):
        rounds.round()

    assert len(set(refused)) == len(NAMES)
    assert {rounds.member.outage_of(name) for name in NAMES} == {None}


@pytest.mark.parametrize("count", [1, 4, 7])
@pytest.mark.parametrize("calls", [("list",), ("list", "route")])
def test_brokers_that_do_not_list_the_members_cost_no_lock(count: int, calls: tuple[str, ...]) -> None:
    """C2, B1: they are asked one after another, and meanwhile no lock is renewed."""
    rounds = Rounds()
    rounds.servers.silent = {call: {"name server", *NAMES[:count]} for call in calls}
    rounds.servers.lists.clear()
    lost: list[float] = []

    def look() -> None:
        if rounds.plannable() != rounds.grants:
            lost.append(rounds.clock.monotonic_s())

    rounds.servers.passed = look
    until_s = rounds.clock.monotonic_s() + 300.0
    while rounds.clock.monotonic_s() < until_s:
        rounds.round()
        look()
    assert not lost
    assert set(rounds.servers.lists) == {NAMES[count]}, "the first one that answers"


def test_of_brokers_that_do_not_answer_each_is_asked_in_its_turn() -> None:
    """B1: one of them may answer again."""
    rounds = Rounds()
    rounds.servers.silent = {"list": set(NAMES)}
    rounds.servers.lists.clear()
    for _ in range(30):
        rounds.round()

    rounds.servers.silent = {"list": set(NAMES) - {NAMES[-1]}}
    for _ in range(60):
        rounds.round()
    assert set(rounds.servers.lists) == {NAMES[-1]}


def test_a_broker_that_has_not_listed_the_members_is_the_first_again_after_a_while() -> None:
    """B1: all members then ask the same broker."""
    rounds = Rounds()
    rounds.servers.silent = {"list": {NAMES[0]}}
    for _ in range(60):
        rounds.round()

    rounds.servers.silent = {}
    rounds.clock.advance(300.0)
    rounds.servers.lists.clear()
    for _ in range(60):
        rounds.round()
    assert set(rounds.servers.lists) == {NAMES[0]}


# --- leaving ------------------------------------------------------------------------------------------------


def leave(rounds: Rounds) -> float:
    """Let the member leave with a plan whose last call ends immediately; return how long it takes."""
    member = rounds.member
    watcher: Any = SimpleNamespace(leaves=lambda plan: member.free(plan, None), calls_end_s=lambda: 5.0)
    member.watched_by(watcher)
    began_s = rounds.clock.monotonic_s()
    member._leave()
    return rounds.clock.monotonic_s() - began_s


def time_to_leave(monkeypatch: pytest.MonkeyPatch) -> float:
    """Return for how long a process that ends waits for a member without a listener's call."""
    waits: list[float] = []
    monkeypatch.setattr(join, "_members", [SimpleNamespace(calls_end_s=0.0, stop=waits.append)])
    join._leave()
    return waits[0]


ALL_CALLS = ("route", "heartbeat", "lock", "list", "unregister", "unlock")


def test_a_member_that_stops_within_a_round_has_time_for_its_last_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B7: one broker and the name server have just fallen silent, and all calls are due."""
    rounds = Rounds()
    rounds.servers.silent = {call: {"name server", NAMES[0]} for call in ALL_CALLS}
    rounds.clock.advance(30.0)
    began_s = rounds.clock.monotonic_s()
    rounds.round()
    took_s = rounds.clock.monotonic_s() - began_s

    assert 8.0 < took_s + leave(rounds) <= time_to_leave(monkeypatch)
    assert rounds.servers.unlocked == {queue for queue in QUEUES if queue.broker_name != NAMES[0]}


def test_a_process_that_ends_and_starts_no_threads_unlocks_first_at_brokers_that_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B7: it makes one call after another, and is not waited for for ever."""
    rounds = Rounds()
    silent = set(NAMES[:-1])
    rounds.servers.silent = dict.fromkeys(ALL_CALLS, silent)
    rounds.servers.are_concurrent = True
    while {str(address).partition(":")[0] for address in rounds.member._channels} & silent:
        rounds.round()
    rounds.servers.are_concurrent = False

    def one_by_one(calls: Sequence[Callable[[], object]]) -> None:
        for call in calls:
            call()

    monkeypatch.setattr(member, "run_concurrently", one_by_one)
    unlocked_after_s: list[float] = []
    began_s = rounds.clock.monotonic_s()
    rounds.servers.passed = lambda: unlocked_after_s.append(
        rounds.clock.monotonic_s() - began_s if rounds.servers.unlocked else inf
    )
    leave(rounds)
    assert unlocked_after_s[0] <= time_to_leave(monkeypatch)
