"""While a master is down its slave is read: nothing lost, doubled or skipped, whatever the slave lacks."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from itertools import chain

import pytest

from broker_sim.cluster import SimCluster
from broker_sim.settings import BrokerSettings
from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.pull_connection import close_idle_connections
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import ConnectFailed, LogTailLost, SystemBusy, TransportError
from pyspark_rocketmq.model import MessageQueue, QueueRange
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.cluster_view import ClusterView
from pyspark_rocketmq.source.fetcher import Fetcher
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from tests.helpers.batch_read import planned_batch, read_batch
from tests.helpers.group_query import GroupQuery
from tests.helpers.wait import PATIENCE_S, wait_until
from tests.real_broker import plain_remoting
from tests.source.conftest import Topics
from tests.source.test_planner import A0, B0, Planning
from tests.source.test_queue_generations import Scenario
from tests.source.test_vanished import make_again

DOWN = {"broker-a": TransportError("broker-a", "the route names no master for this broker")}
READS = BrokerSettings(slave_read_enable=True)


# --- what is planned ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [False, True], ids=["plain", "group"])
def test_a_queue_goes_on_at_the_slave_as_far_as_that_has_it_and_then_at_the_master(group: bool) -> None:
    """L3"""
    planning = Planning({A0: (0, 5), B0: (0, 5)}, group=group)
    assert planning.next() == [(A0, 0, 5), (B0, 0, 5)]
    for queue in (A0, B0) if group else ():
        planning.commit(queue, 5)
    planning.view.bounds |= {A0: (0, 20), B0: (0, 6)}
    planning.view.down, planning.view.at_slaves = dict(DOWN), {A0: (0, 12)}

    assert planning.next() == [(A0, 5, 12), (B0, 5, 6)]
    for queue, end in ((A0, 12), (B0, 6)) if group else ():
        planning.commit(queue, end)
    assert planning.next() is None
    planning.view.down = {}
    assert planning.next() == [(A0, 12, 20)]


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
@pytest.mark.parametrize("group", [False, True], ids=["plain", "group"])
@pytest.mark.parametrize("at_slave", [(0, 4), (6, 12), (0, 0), (12, 12)])
def test_a_queue_that_stands_outside_of_what_the_slave_has_waits_for_the_master(
    at_slave: tuple[int, int], group: bool, fail_on_data_loss: str
) -> None:
    """L3: a slave that lags, or began later, lost nothing; no offset is corrected by it."""
    planning = Planning({A0: (0, 5)}, group=group, failOnDataLoss=fail_on_data_loss)
    planning.next()
    if group:
        planning.commit(A0, 5)
    planning.view.bounds[A0] = (0, 8)
    planning.view.down, planning.view.at_slaves = dict(DOWN), {A0: at_slave}

    assert planning.next() is None
    planning.view.down = {}
    assert planning.next() == [(A0, 5, 8)]


def test_a_queue_that_appears_at_a_slave_begins_when_its_master_is_back() -> None:
    """A2, L3: the first message that a slave has need not be the queue's."""
    planning = Planning({B0: (0, 5)})
    planning.next()
    planning.view.bounds[A0] = (0, 9)
    planning.view.down, planning.view.at_slaves = dict(DOWN), {A0: (3, 9)}

    assert planning.next() is None
    planning.view.down = {}
    assert planning.next() == [(A0, 0, 9)]


def test_a_group_claims_no_queue_while_its_master_is_down() -> None:
    """C3, L3: a Java member may have consumed it meanwhile, which only the master knows."""
    planning = Planning({A0: (0, 5)}, group=True)
    planning.next()
    planning.commit(A0, 5)
    planning.view.bounds[A0] = (0, 8)
    planning.view.down, planning.view.at_slaves = dict(DOWN), {A0: (0, 8)}
    planning.ownership.give(A0)

    assert planning.next() is None
    planning.view.down = {}
    assert planning.next() == [(A0, 5, 8)]


def test_a_reset_is_not_followed_to_a_slave() -> None:
    """F5, L3: the master gets it before anything is consumed from there."""
    planning = Planning({A0: (0, 5)}, group=True)
    planning.next()
    planning.commit(A0, 5)
    planning.view.down, planning.view.at_slaves = dict(DOWN), {A0: (0, 5)}
    planning.store.reset("g", {A0: 2})

    assert planning.next() is None
    planning.view.down = {}
    assert planning.next() == [(A0, 2, 5)]


@pytest.mark.parametrize("is_copy", [True, False], ids=["copy", "another log"])
def test_a_slave_is_read_where_it_has_the_message_consumed_last(is_copy: bool) -> None:
    """F4, L3: a slave may have what was under these offsets before the topic was made again."""
    scenario = Scenario({A0: [1, 2, 3]})
    scenario.consume_all()
    scenario.planning.view.down, scenario.planning.view.at_slaves = dict(DOWN), {A0: (0, 5)}
    scenario.log.stored[A0] = [1, 2, 3, 4, 5] if is_copy else [1, 2, 9, 10, 11]
    looks = len(scenario.log.looks)

    assert scenario.next() == ([(A0, 3, 5)] if is_copy else None)
    if is_copy:
        scenario.consume(A0, 4)
        assert scenario.next() == [(A0, 4, 5)]
        assert scenario.log.looks[looks:] == [{A0: 2}]


def test_a_slave_that_does_not_answer_holds_up_no_other_queue() -> None:
    """L3"""
    scenario = Scenario({A0: [1, 2], B0: [1, 2]})
    scenario.consume_all()
    scenario.planning.view.down, scenario.planning.view.at_slaves = dict(DOWN), {A0: (0, 3)}
    scenario.log.stored |= {A0: [1, 2, 3], B0: [1, 2, 3]}
    assert scenario.next() == [(A0, 2, 3), (B0, 2, 3)]

    scenario.restart()
    scenario.planning.view.down, scenario.planning.view.at_slaves = {}, {}
    scenario.next()
    scenario.planning.view.down, scenario.planning.view.at_slaves = dict(DOWN), {A0: (0, 3)}
    scenario.log.failure = ConnectFailed("slave:1", "refused")
    assert scenario.next() == [(B0, 2, 3)]


def test_a_drain_does_not_end_before_what_the_master_had_is_read() -> None:
    """H4, L3: the slave's end is no end of a drain that began before."""
    planning = Planning({A0: (0, 5)}, retryTimeoutMs="2000")
    planning.planner.prepare_available_now()
    planning.view.down, planning.view.at_slaves = dict(DOWN), {A0: (0, 3)}
    assert planning.next() == [(A0, 0, 3)]

    with pytest.raises(TransportError, match="no master"):
        planning.next()
    planning.on_pause.append(planning.view.down.clear)
    assert planning.next() == [(A0, 3, 5)]


def test_a_drain_begins_with_what_a_slave_has() -> None:
    """H4, L3"""
    planning = Planning({A0: (0, 5)})
    planning.next()
    planning.view.down, planning.view.at_slaves = dict(DOWN), {A0: (0, 9)}

    planning.planner.prepare_available_now()

    assert planning.next() == [(A0, 5, 9)]
    assert planning.next() is None
    assert planning.pauses == []


@pytest.mark.parametrize(("high", "waits"), [(10, False), (9, True)])
def test_a_logged_plan_is_read_from_a_slave_that_has_all_of_it(high: int, waits: bool) -> None:
    """H1, L3: else its master is waited for."""
    planning = Planning({A0: (0, 10)}, retryTimeoutMs="2000")
    planning.next()
    planning.view.not_in_route = {"broker-a"}
    planning.view.down, planning.view.at_slaves = dict(DOWN), {A0: (0, high)}
    planning.planner.latest(planning.offset)
    planned = [QueueRange.between(A0, 0, 10)]

    snapshot = planning.planner.snapshot_for(planned, can_wait=True)
    assert snapshot.addresses == {"broker-b": "broker-b:1"}
    assert snapshot.slaves == ({} if waits else {"broker-a": "broker-a-slave:1"})
    assert bool(planning.pauses) is waits


def test_reading_a_slave_and_the_master_s_return_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    planning = Planning({A0: (0, 5)})
    planning.next()
    planning.view.down, planning.view.at_slaves = dict(DOWN), {A0: (0, 9)}
    planning.next()
    planning.next()
    planning.view.down = {}
    planning.view.bounds[A0] = (0, 9)
    planning.next()
    planning.next()

    assert caplog.text.count("master is down, reading from its slave instead") == 1
    assert caplog.text.count("master is back, reading from it again broker=broker-a") == 1
    assert "broker left out of this plan" not in caplog.text


# --- with a slave -------------------------------------------------------------------------------------------


@pytest.fixture(params=[False, True], ids=["in the route", "listed as master"])
def sim(request: pytest.FixtureRequest) -> Iterator[SimCluster]:
    """A broker with a slave, which the name server may list as master while the master is away."""
    with SimCluster(brokers=1, replicas=1, settings=READS) as sim:
        if request.param:
            let_slaves_act(sim)
        yield sim
        close_idle_connections()


def let_slaves_act(sim: SimCluster) -> None:
    """Let the name server list a slave as master while the master is away."""
    changed = plain_remoting.call(
        sim.name_servers, RequestCode.UPDATE_NAMESRV_CONFIG, body=b"supportActingMaster=true\n"
    )
    assert changed.code == ResponseCode.SUCCESS


def queue_of(topic: str) -> MessageQueue:
    return MessageQueue(topic, "broker-a", 0)


def offsets(**options: str) -> list[int]:
    return [row["queueOffset"] for row in read_batch(**options).select(["queueOffset"]).to_pylist()]


def plain(sim: SimCluster, topic: str, **options: str) -> dict[str, str]:
    return {"nameServers": sim.name_servers, "topic": topic, "routeRefreshMs": "1", **options}


def batch(sim: SimCluster, topic: str, **options: str) -> dict[str, str]:
    return {"nameServers": sim.name_servers, "topic": topic, "retryTimeoutMs": "1000", **options}


@pytest.mark.parametrize(("lag", "expected"), [(0, 10), (4, 6)])
def test_a_batch_reads_what_the_slave_has_and_says_what_may_be_missing(
    sim: SimCluster, lag: int, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    """L3"""
    sim.set_replica_lag("broker-a", lag)
    topic = Topics(sim).make(10)
    sim.stop_broker("broker-a")

    assert offsets(**batch(sim, topic)) == list(range(expected))
    assert "messages not yet copied to the slave are missing broker=broker-a" in caplog.text


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"endingOffsets": '{"orders": {"broker-a": {"0": 6}}}'}, range(6)),
        ({"endingOffsets": '{"orders": {"broker-a": {"0": 7}}}'}, None),
        ({"startingOffsets": '{"orders": {"broker-a": {"0": 6}}}'}, range(0)),
        ({"startingOffsets": '{"orders": {"broker-a": {"0": 7}}}'}, None),
        ({"startingOffsets": "group", "startingGroup": "g"}, None),
        ({"endingOffsets": "group", "endingGroup": "g"}, None),
    ],
)
@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_a_batch_of_which_the_slave_lacks_a_part_waits_for_the_master(
    sim: SimCluster, wanted: dict[str, str], expected: range | None, fail_on_data_loss: str
) -> None:
    """L3: what is asked for by offset is read whole or not at all."""
    sim.set_replica_lag("broker-a", 4)
    topic = Topics(sim).make(10, topic="orders")
    sim.stop_broker("broker-a")
    options = batch(sim, topic, failOnDataLoss=fail_on_data_loss, **wanted)

    if expected is not None:
        assert offsets(**options) == list(expected)
        return
    with pytest.raises(TransportError, match="master is down"):
        read_batch(**options)


def test_a_batch_between_two_times_is_read_from_a_slave_that_has_later_messages(sim: SimCluster) -> None:
    """L3"""
    topics = Topics(sim)
    topic = topics.make(5)
    time.sleep(0.01)
    at_ms = str(int(time.time() * 1000))
    sim.set_replica_lag("broker-a", 3)
    topics.put(topic, 0, 3)
    sim.stop_broker("broker-a")
    options = batch(sim, topic, endingTimestamp=at_ms)
    with pytest.raises(TransportError, match="endingOffsetsByTimestamp"):
        read_batch(**options)

    sim.start_broker("broker-a")
    sim.set_replica_lag("broker-a", 2)
    sim.stop_broker("broker-a")
    assert offsets(**options) == list(range(5))


@pytest.mark.parametrize(
    "changed",
    [{"readFrom": "master"}, {}],
    ids=["readFrom=master", "slaveReadEnable=false"],
)
def test_only_masters_are_read_where_the_reader_or_the_slave_wants_it_so(changed: dict[str, str]) -> None:
    """L3: a slave that serves no pulls must not hold up the queues of other brokers either."""
    settings = READS if changed else BrokerSettings()
    with SimCluster(brokers=2, replicas=1, settings=settings) as sim:
        topics = Topics(sim)
        topic = topics.make(3)
        stream = topics.stream(topic, routeRefreshMs="1", retryTimeoutMs="1000", **changed)
        assert stream.next_offsets() is not None
        topics.put(topic, 0, 1)
        sim.stop_broker("broker-a")
        reads = [stream.next_offsets() for _ in range(3)]
        with pytest.raises(TransportError, match="broker-a"):
            planned_batch(**batch(sim, topic, **changed))
        sim.start_broker("broker-a")
        wait_until(stream.plan)
        after = list(chain.from_iterable(stream.run().select(["queueOffset"]).to_pydict().values()))
        close_idle_connections()

    assert reads == [None, None, None]
    assert after == [3]


def test_an_orderly_consumer_knows_of_no_slaves() -> None:
    """C1, L3: queues are locked at masters."""
    group = {"nameServers": "n:1", "topic": "t", "consumerGroup": "g", "offsetStore": "/s"}
    assert not ReadOptions.parse(group).goes_on_at_slaves()
    assert ReadOptions.parse(group | {"consumeOrderly": "false"}).goes_on_at_slaves()
    assert ReadOptions.parse({"nameServers": "n:1", "topic": "t"}).goes_on_at_slaves()
    assert not ReadOptions.parse(
        {"nameServers": "n:1", "topic": "t", "readFrom": "master"}
    ).goes_on_at_slaves()


def test_a_stream_is_read_from_a_slave_that_lags_and_gets_the_tail_from_the_master(sim: SimCluster) -> None:
    """L3"""
    topics = Topics(sim)
    topic = topics.make(5)
    queue = queue_of(topic)
    stream = topics.stream(topic, routeRefreshMs="1")
    assert stream.next_offsets() == {queue: list(range(5))}
    sim.set_replica_lag("broker-a", 3)
    topics.put(topic, 0, 7)
    sim.stop_broker("broker-a")

    assert stream.next_offsets() == {queue: [5, 6, 7, 8]}
    assert stream.next_offsets() is None
    sim.start_broker("broker-a")
    wait_until(stream.plan)
    assert list(stream.run()["queueOffset"].to_pylist()) == [9, 10, 11]
    assert stream.next_offsets() is None


def test_a_range_planned_by_the_master_is_finished_at_the_slave_by_the_same_task(sim: SimCluster) -> None:
    """L3"""
    topic = Topics(sim).make(200)
    partitions = planned_batch(**batch(sim, topic, pullBatchSize="8", maxInFlightBytes="1048576"))
    sim.stop_broker("broker-a")

    fetcher = Fetcher(partitions)
    fetched = list(chain.from_iterable(fetcher.arrivals()))

    assert fetched[-1].failure is None
    assert fetcher.ranges[0].broker_id == 1


def test_the_tail_of_a_range_that_a_slave_lacks_is_never_counted_as_read(sim: SimCluster) -> None:
    """L3: planned by the end of a master that is down by now; the task fails, and runs again."""
    sim.set_replica_lag("broker-a", 4)
    topics = Topics(sim)
    topic = topics.make(10)
    stream = topics.stream(topic, routeRefreshMs="1", retryTimeoutMs="1000")
    assert stream.plan()
    sim.stop_broker("broker-a")
    with pytest.raises(TransportError):
        stream.run()
    stream.restart()
    with pytest.raises(TransportError):
        stream.run()
    stream.restart(failOnDataLoss="false")
    with pytest.raises(TransportError):
        stream.run()

    sim.start_broker("broker-a")
    stream.restart()
    assert stream.run()["queueOffset"].to_pylist() == list(range(10))
    assert stream.next_offsets() is None


def test_a_filter_that_matches_nothing_is_read_to_the_slaves_end(sim: SimCluster) -> None:
    """A4, L3"""
    topic = Topics(sim).make(300)
    sim.stop_broker("broker-a")

    assert offsets(**batch(sim, topic, subscription="NoSuchTag")) == []


def test_a_promoted_slave_without_the_tail_is_recognised_behind_a_slave_that_was_read(
    sim: SimCluster,
) -> None:
    """F4, L3: what the slave had was read and is there; what only the master had, and was read, is lost."""
    topics = Topics(sim)
    topic = topics.make(5)
    stream = topics.stream(topic, routeRefreshMs="1")
    stream.next()
    sim.set_replica_lag("broker-a", 2)
    topics.put(topic, 0, 5)
    assert stream.next_offsets() == {queue_of(topic): [5, 6, 7, 8, 9]}
    sim.stop_broker("broker-a")
    # The slave has 8 of 10: that is no loss while it is a slave.
    assert [stream.plan() for _ in range(3)] == [False, False, False]

    sim.promote_replica("broker-a")
    with pytest.raises(LogTailLost, match="offset 10 was wanted"):
        wait_until(stream.plan)


@pytest.mark.parametrize("sim", [True], indirect=True, ids=["listed as master"])
@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_stream_waits_for_what_a_slave_lacks_that_is_listed_as_master(
    sim: SimCluster, fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    """F4, L3: as with the master away; RocketMQ's acting master."""
    topics = Topics(sim)
    topic = topics.make(5)
    stream = topics.stream(topic, routeRefreshMs="1", failOnDataLoss=fails)
    sim.set_replica_lag("broker-a", 2)
    topics.put(topic, 0, 5)
    assert stream.next_offsets() == {queue_of(topic): list(range(10))}
    sim.stop_broker("broker-a")

    assert [stream.plan() for _ in range(3)] == [False, False, False]
    reads = f"reading from its slave instead.* slave={sim.replica_address('broker-a')}"
    assert re.search(reads, caplog.text), caplog.text
    sim.start_broker("broker-a")
    topics.put(topic, 0, 1)
    assert stream.next_offsets() == {queue_of(topic): [10]}


class Member:
    """A running concurrent member of a group."""

    def __init__(self, sim: SimCluster, topic: str, pool: ChannelPool, **options: str) -> None:
        self.store = MemoryOffsetStore("slaves", clock=SystemClock())
        given = plain(sim, topic, consumerGroup="g", offsetStore=self.store.spec, startingOffsets="earliest")
        self.query = GroupQuery(
            "one",
            ReadOptions.parse(given | {"consumeOrderly": "false", "retryTimeoutMs": "1000"} | options),
            self.store,
            pool,
        )

    def consume(self) -> list[int]:
        return [message.queue_offset for messages in self.query.consumed().values() for message in messages]


@pytest.fixture
def pool() -> Iterator[ChannelPool]:
    with ChannelPool(SystemClock()) as pool:
        yield pool


def consumed(member: Member, count: int) -> list[int]:
    seen: list[int] = []
    wait_until(lambda: len(seen.__iadd__(member.consume())) >= count, PATIENCE_S, reason=f"{count} messages")
    return seen


@pytest.mark.parametrize("lag", [0, 3])
def test_a_concurrent_group_goes_on_at_the_slave_and_then_at_the_master(
    sim: SimCluster, pool: ChannelPool, lag: int
) -> None:
    """L3: nothing lost, nothing twice, with and without a tail that only the master has."""
    topics = Topics(sim)
    topic = topics.make(5)
    member = Member(sim, topic, pool)
    try:
        assert consumed(member, 5) == list(range(5))
        sim.set_replica_lag("broker-a", lag)
        topics.put(topic, 0, 7)
        sim.stop_broker("broker-a")

        assert consumed(member, 7 - lag) == list(range(5, 12 - lag))
        assert [member.consume() for _ in range(3)] == [[], [], []]
        assert member.store.read("g")[queue_of(topic)].next_offset == 12 - lag

        sim.start_broker("broker-a")
        topics.put(topic, 0, 1)
        assert consumed(member, 1 + lag) == list(range(12 - lag, 13))
        assert member.consume() == []
    finally:
        member.query.member.stop(PATIENCE_S)


@pytest.mark.parametrize("sim", [True], indirect=True, ids=["listed as master"])
@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("orderly", ["true", "false"])
def test_a_group_goes_on_at_a_slave_that_is_listed_as_master_and_waits_for_what_it_lacks(
    sim: SimCluster, pool: ChannelPool, fails: str, orderly: str
) -> None:
    """F4, L3: as far as Java's members do, without correcting an offset."""
    topics = Topics(sim)
    topic = topics.make(5)
    member = Member(sim, topic, pool, failOnDataLoss=fails, consumeOrderly=orderly, routeRefreshMs="1")
    try:
        assert consumed(member, 5) == list(range(5))
        topics.put(topic, 0, 3)
        sim.stop_broker("broker-a")
        assert consumed(member, 3) == [5, 6, 7]
        sim.start_broker("broker-a")
        sim.set_replica_lag("broker-a", 2)
        topics.put(topic, 0, 4)
        assert consumed(member, 4) == [8, 9, 10, 11]

        sim.stop_broker("broker-a")
        assert [member.consume() for _ in range(3)] == [[], [], []]
        row = member.store.read("g")[queue_of(topic)]
        assert (row.next_offset, row.generation) == (12, 0)
        sim.start_broker("broker-a")
        topics.put(topic, 0, 1)
        assert consumed(member, 1) == [12]
    finally:
        member.query.member.stop(PATIENCE_S)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_group_begins_no_generation_at_a_broker_that_no_name_server_lists(
    sim: SimCluster, pool: ChannelPool, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F4, L3: a broker that serves before it has its role may not show all it has."""
    monkeypatch.setattr("pyspark_rocketmq.source.message_lookup.REFUSED_PAUSE_S", 0.0)
    topics = Topics(sim)
    topic = topics.make(5)
    member = Member(sim, topic, pool, failOnDataLoss=fails, routeRefreshMs="1")
    try:
        assert consumed(member, 5) == list(range(5))
        on, code = RequestCode.GET_ROUTEINFO_BY_TOPIC, ResponseCode.TOPIC_NOT_EXIST
        sim.faults.add("answer-code", on=on, response_code=code, times=10_000)
        make_again(topics, topic, 3)

        assert [member.consume() for _ in range(3)] == [[], [], []]
        row = member.store.read("g")[queue_of(topic)]
        assert (row.next_offset, row.generation) == (5, 0)
        sim.faults.clear()
        if fails == "false":
            assert consumed(member, 3) == [0, 1, 2]
            return
        with pytest.raises(LogTailLost, match="offset 5 was wanted"):
            member.consume()
    finally:
        member.query.member.stop(PATIENCE_S)


@pytest.mark.parametrize(
    ("broker_id", "code", "expected"),
    [
        (0, None, False),
        (1, None, True),
        (1, ResponseCode.NO_PERMISSION, False),
        (1, ResponseCode.SYSTEM_BUSY, None),
    ],
)
def test_a_broker_that_does_not_show_its_role_is_no_slave_and_a_busy_one_is_asked_again(
    sim: SimCluster, pool: ChannelPool, broker_id: int, code: ResponseCode | None, expected: bool | None
) -> None:
    """F4, L3"""
    address = sim.replica_address("broker-a") if broker_id else sim.broker_addresses["broker-a"]
    if code is not None:
        sim.faults.add("answer-code", on=RequestCode.GET_BROKER_CONFIG, response_code=code, times=9)
    brokers = BrokerClient(pool, SystemClock())
    if expected is not None:
        assert brokers.is_slave(address, "") is expected
        return
    with pytest.raises(SystemBusy) as raised:
        brokers.is_slave(address, "")
    assert raised.value.retryable


def test_a_new_member_waits_for_the_master(sim: SimCluster, pool: ChannelPool) -> None:
    """C3, L3"""
    topic = Topics(sim).make(5)
    sim.stop_broker("broker-a")
    member = Member(sim, topic, pool)
    try:
        assert [member.consume() for _ in range(3)] == [[], [], []]
        sim.start_broker("broker-a")
        assert consumed(member, 5) == list(range(5))
    finally:
        member.query.member.stop(PATIENCE_S)


def test_a_slave_that_does_not_know_a_topic_yet_is_not_read(sim: SimCluster) -> None:
    """L3: its bounds would be those of an empty queue."""
    topic = Topics(sim).make(5)
    options = ReadOptions.parse(plain(sim, topic))
    sim.faults.add("answer-code", on=202, response_code=17, where="broker-a:1", times=3)
    sim.stop_broker("broker-a")
    with ChannelPool(SystemClock()) as pool:
        view = ClusterView(options, pool, SystemClock())
        with pytest.raises(TransportError, match=r"its slave .* cannot be read .*does not have"):
            view.snapshot()
