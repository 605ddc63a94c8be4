"""Who may consume under a broadcasting instance's progress: nobody beside a living member."""

from __future__ import annotations

import logging

import pytest

from broker_sim.cluster import SimCluster
from pyspark_rocketmq.client.pool import ConnectionSettings
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import OffsetError, OffsetStoreUnavailable
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.offsets.store import new_owner
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.queue_claims import await_sole_owner, living_members, possible_owners
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from tests.helpers.fake_clock import FakeClock

Q0 = MessageQueue("orders", "broker-a", 0)
OWN, ELSEWHERE, OTHER = "here@one", "there@one", "here@two"


class Group:
    """Lists of members, one at each look; the last one stays. None: nobody answers."""

    def __init__(self, *looks: set[str] | None) -> None:
        self.looks = list(looks)
        self.clock = FakeClock()

    def members(self) -> set[str] | None:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def await_sole_owner(self, *owners: str) -> float:
        """How long it took."""
        begun_s = self.clock.monotonic_s()
        await_sole_owner("g@one", owners, self.members, self.clock, self.clock.advance)
        return self.clock.monotonic_s() - begun_s


def test_members_of_other_names_are_not_waited_for() -> None:
    """H8, B3"""
    assert Group({OTHER, ELSEWHERE}).await_sole_owner(OWN) == 0.0


def test_a_query_that_is_being_stopped_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """H8: it starts again under its name at once."""
    with caplog.at_level(logging.WARNING):
        assert Group({OWN}, {OWN, OTHER}, {OTHER}).await_sole_owner(OWN) == 1.0

    assert caplog.text.count("waiting for another query of this instance to end") == 1


@pytest.mark.parametrize("alive", [OWN, ELSEWHERE])
def test_a_second_query_of_one_name_is_refused(alive: str) -> None:
    """H8: on this machine, and on another one with the same offset store."""
    group = Group({alive, OTHER})

    with pytest.raises(OffsetError, match=f"progress g@one .* member {alive} is alive"):
        group.await_sole_owner(OWN, ELSEWHERE)

    assert group.clock.monotonic_s() >= 30.0


def test_while_nobody_says_who_lives_an_owner_may_live() -> None:
    """H8: claiming now would end the query that consumes."""
    assert Group(None, None, {OTHER}).await_sole_owner(OWN) == 1.0
    assert Group(None, {OWN}, None, {OTHER}).await_sole_owner(OWN) == 1.5
    with pytest.raises(OffsetError, match=f"member {OWN} is alive"):
        Group(None, {OWN}).await_sole_owner(OWN)


def test_a_query_whose_cluster_never_says_who_lives_starts(caplog: pytest.LogCaptureFixture) -> None:
    """H8: planning waits for the cluster, and says why."""
    assert Group(None).await_sole_owner(OWN) == 30.0

    assert "not known whether another query of this instance lives progress=g@one" in caplog.text


@pytest.mark.parametrize(
    ("code", "remark", "is_known"),
    [
        (ResponseCode.SYSTEM_ERROR, "no consumer for this group, g", True),
        # A proxy on Java 8, and on a newer one.
        (ResponseCode.SYSTEM_ERROR, "", True),
        (ResponseCode.SYSTEM_ERROR, 'Cannot invoke "ConsumerGroupInfo.getAllClientId()"', True),
        (ResponseCode.SYSTEM_ERROR, "AclException: No default permission for g", False),
        (ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while", False),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "request type 38 not supported", False),
        (ResponseCode.NO_PERMISSION, "no permission", False),
        (ResponseCode.GO_AWAY, "server shutdown", False),
    ],
)
def test_only_no_consumer_means_that_nobody_lives(code: int, remark: str, is_known: bool) -> None:
    """H8, B1: every other refusal says nothing about members; another broker's answer does."""
    with SimCluster(brokers=2) as cluster:
        cluster.create_topic("orders")
        given = options(MemoryOffsetStore("refused", clock=FakeClock()), cluster.name_servers)
        pool = ConnectionSettings.of(given).open_pool(SystemClock())
        try:
            for where in ("broker-a", "broker-a", "broker-b"):
                cluster.faults.add(
                    "answer-code",
                    on=RequestCode.GET_CONSUMER_LIST_BY_GROUP,
                    where=where,
                    response_code=code,
                    remark=remark,
                )
            # Each line of the script is used once: both brokers refuse, then one.
            assert living_members(given, pool, SystemClock()) == (frozenset() if is_known else None)
            assert living_members(given, pool, SystemClock()) == frozenset()
        finally:
            pool.close()


def options(store: MemoryOffsetStore, name_servers: str = "127.0.0.1:9") -> ReadOptions:
    return ReadOptions.parse(
        {
            "nameServers": name_servers, "topic": "orders", "consumerGroup": "g", "offsetStore": store.spec,
            "messageModel": "BROADCASTING", "instanceName": "one",
        }
    )  # fmt: skip


def test_the_member_that_claimed_the_rows_may_own_them() -> None:
    """H8: those of other instances say nothing."""
    store = MemoryOffsetStore("owners", clock=FakeClock())
    store.claim("g@one", new_owner(ELSEWHERE), {Q0: 0})
    store.claim("g@two", OTHER, {Q0: 0})

    assert possible_owners(options(store), OWN, store) == {OWN, ELSEWHERE}


def test_a_store_that_does_not_answer_is_left_to_the_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    """H8"""
    store = MemoryOffsetStore("away", clock=FakeClock())

    def away(_: str) -> None:
        raise OffsetStoreUnavailable("storage is away")

    monkeypatch.setattr(store, "read", away)

    assert possible_owners(options(store), OWN, store) == {OWN}
