from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker_sim.cluster import SimCluster
from broker_sim.settings import BrokerSettings
from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import BrokerError
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.fastjson import read_object
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.requests.pull import PullRequest, PullResult, PullStatus
from pyspark_rocketmq.wire.requests.send import SendSettings
from pyspark_rocketmq.wire.requests.topics import decode_route
from tests.broker_sim.exchange import GROUP, TOPIC, held_pull, message, pull, request, send
from tests.broker_sim.raw_client import RawClient
from tests.helpers.fake_clock import FakeClock
from tests.helpers.wait import PATIENCE_S, wait_until

_QUEUE = MessageQueue(TOPIC, "broker-a", 0)
_READS = BrokerSettings(slave_read_enable=True)


@pytest.fixture
def cluster(clock: FakeClock) -> Iterator[SimCluster]:
    with SimCluster(replicas=1, settings=_READS, clock=clock) as cluster:
        cluster.create_topic(TOPIC, queues=2)
        yield cluster


@pytest.fixture
def slave(cluster: SimCluster) -> Iterator[RawClient]:
    with RawClient(cluster.replica_address("broker-a")) as client:
        yield client


@pytest.fixture
def master(cluster: SimCluster) -> Iterator[RawClient]:
    with RawClient(cluster.broker_addresses["broker-a"]) as client:
        yield client


def _put(cluster: SimCluster, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        cluster.put(_QUEUE, [message(b"%d" % number, "TagA")])


def _route(cluster: SimCluster) -> dict[int, str]:
    with RawClient(cluster.name_servers) as client:
        return dict(decode_route(client.call(request(105, {"topic": TOPIC})).body).brokers[0].addresses)


def test_a_master_reports_how_far_its_replicas_are(
    cluster: SimCluster, master: RawClient, slave: RawClient
) -> None:
    """907: of a slave nobody needs to ask, until it is the master."""
    _put(cluster, 3)
    cluster.set_replica_lag("broker-a", 1)
    _put(cluster, 1, start=3)
    ask = request(RequestCode.GET_BROKER_HA_STATUS)
    told = read_object(master.call(ask).body, "HARuntimeInfo")
    (copy,) = told.objects("haConnectionInfo")
    diff, copied = copy.integer("diff"), copy.integer("slaveAckOffset")

    assert copy.text("addr") == cluster.replica_address("broker-a")
    assert 0 < diff < copied
    assert diff + copied == told.integer("masterCommitLogMaxOffset")
    assert slave.call(ask).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    cluster.promote_replica("broker-a")
    assert list(read_object(slave.call(ask).body, "HARuntimeInfo").objects("haConnectionInfo")) == []


def test_the_route_names_master_and_replica(cluster: SimCluster) -> None:
    """A2: 0 is the master; who stops leaves."""
    master, replica = cluster.broker_addresses["broker-a"], cluster.replica_address("broker-a")
    assert _route(cluster) == {0: master, 1: replica}
    cluster.stop_broker("broker-a", broker_id=1)
    assert _route(cluster) == {0: master}
    cluster.start_broker("broker-a", broker_id=1)
    cluster.stop_broker("broker-a")
    assert _route(cluster) == {1: replica}


def test_a_replica_has_its_masters_very_bytes(
    cluster: SimCluster, slave: RawClient, master: RawClient
) -> None:
    _put(cluster, 3)
    master.call(send(b"sent", i="TAGS\x01TagB\x02"))
    for tags in ("*", "TagA", "TagB"):
        answers = [client.call(pull(subscription=tags)) for client in (master, slave)]
        assert answers[0].body == answers[1].body != b""
        assert answers[0].ext_fields == answers[1].ext_fields


def test_a_replica_lags_as_far_as_a_test_wants(cluster: SimCluster, slave: RawClient) -> None:
    cluster.set_replica_lag("broker-a", messages=2)
    _put(cluster, 5)
    assert slave.call(pull()).ext_fields["maxOffset"] == "3"
    _put(cluster, 1, start=5)
    assert slave.call(pull()).ext_fields["maxOffset"] == "4"
    cluster.set_replica_lag("broker-a", messages=0)
    bodies = [each.body for each in decode_messages(slave.call(pull()).body, "broker-a")]
    assert bodies == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_a_topic_made_again_begins_at_0_on_the_replica_too(
    cluster: SimCluster, master: RawClient, slave: RawClient
) -> None:
    _put(cluster, 3)
    master.call(request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC}))
    cluster.create_topic(TOPIC, queues=2)
    _put(cluster, 1)
    assert [client.call(pull()).ext_fields["maxOffset"] for client in (master, slave)] == ["1", "1"]


def test_a_slave_without_slave_reads_refuses_pulls(clock: FakeClock) -> None:
    """Code 2, as PullMessageProcessor.rejectRequest makes it."""
    with SimCluster(replicas=1, clock=clock) as cluster:
        cluster.create_topic(TOPIC)
        with RawClient(cluster.replica_address("broker-a")) as client:
            answer = client.call(pull())
    assert (answer.code, answer.remark) == (2, "[REJECTREQUEST]system busy, start flow control for a while")


def test_a_slave_takes_no_messages(cluster: SimCluster, slave: RawClient) -> None:
    answer = slave.call(send())
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "messages are put to the slave" in (answer.remark or "")


@pytest.mark.parametrize(
    ("queue_offset", "next_offset"),
    [(0, 2), (2, 2), (7, 7), (-3, -3)],
    ids=["there", "end", "beyond", "below"],
)
def test_a_slave_corrects_no_offset_and_holds_nothing_while_its_master_lives(
    cluster: SimCluster, slave: RawClient, queue_offset: int, next_offset: int
) -> None:
    """19 and 21 become 20 with the offset asked for, to be asked again at the master."""
    _put(cluster, 2)
    answer = slave.call(held_pull(queue_offset))
    expected = ResponseCode.SUCCESS if queue_offset == 0 else ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.code == expected
    assert answer.ext_fields["nextBeginOffset"] == str(next_offset)
    assert answer.ext_fields["suggestWhichBrokerId"] == "0"


def test_a_slave_without_master_holds_pulls_until_the_master_is_back(
    cluster: SimCluster, slave: RawClient, clock: FakeClock
) -> None:
    cluster.stop_broker("broker-a")
    slave.send(held_pull(timeout_ms=15000))
    wait_until(lambda: cluster.held_pulls() == 1)
    clock.advance(15)
    cluster.look_at_clock()
    assert slave.receive().code == ResponseCode.PULL_NOT_FOUND


@pytest.mark.parametrize(("is_on", "suggested"), [(True, "1"), (False, "0")])
def test_slow_consumers_are_sent_to_the_slave(clock: FakeClock, is_on: bool, suggested: str) -> None:
    """suggestWhichBrokerId: further back than memory reaches 1, else 0; without slaveReadEnable always 0."""
    settings = BrokerSettings(slave_read_enable=is_on, in_memory_bytes=1000)
    with SimCluster(replicas=1, settings=settings, clock=clock) as cluster:
        cluster.create_topic(TOPIC)
        _put(cluster, 20)
        with RawClient(cluster.broker_addresses["broker-a"]) as client:
            slow = client.call(pull(0, maxMsgNums=1)).ext_fields
            quick = client.call(pull(19)).ext_fields
            none = client.call(pull(20)).ext_fields
    assert slow["suggestWhichBrokerId"] == suggested
    assert quick["suggestWhichBrokerId"] == none["suggestWhichBrokerId"] == "0"


def test_a_slow_consumer_may_stay_with_the_slave(clock: FakeClock) -> None:
    settings = BrokerSettings(slave_read_enable=True, in_memory_bytes=1000)
    with SimCluster(replicas=1, settings=settings, clock=clock) as cluster:
        cluster.create_topic(TOPIC)
        _put(cluster, 20)
        with RawClient(cluster.replica_address("broker-a")) as client:
            assert client.call(pull(0, maxMsgNums=1)).ext_fields["suggestWhichBrokerId"] == "1"
            assert client.call(pull(19)).ext_fields["suggestWhichBrokerId"] == "0"


class _Client:
    """The connector's own calls."""

    def __init__(self, pool: ChannelPool) -> None:
        self.calls = BrokerClient(pool, SystemClock(), PATIENCE_S)

    def pull(self, address: str, queue_offset: int) -> PullResult:
        return self.calls.pull(
            address, PullRequest(consumer_group=GROUP, queue=_QUEUE, queue_offset=queue_offset)
        )


@pytest.fixture
def client() -> Iterator[_Client]:
    with ChannelPool(SystemClock()) as pool:
        yield _Client(pool)


def test_a_switch_loses_the_tail_and_the_client_is_notified(cluster: SimCluster, client: _Client) -> None:
    """F4: the maximum falls back; an offset beyond it is 21 with the new maximum as correction."""
    cluster.set_replica_lag("broker-a", messages=3)
    _put(cluster, 10)
    old = cluster.broker_addresses["broker-a"]
    assert client.pull(old, 0).next_begin_offset == 10
    cluster.promote_replica("broker-a")
    new = cluster.broker_addresses["broker-a"]
    assert _route(cluster) == {0: new}
    assert new != old
    moved = client.pull(new, 10)
    assert (moved.status, moved.next_begin_offset) == (PullStatus.OFFSET_ILLEGAL, 7)
    with Producer(cluster.name_servers, "p", send_timeout_s=PATIENCE_S) as producer:
        result = producer.send(Message(topic=TOPIC, body=b"new"), queue=_QUEUE)
    assert result.queue_offset == 7
    assert cluster.bounds(_QUEUE).max_offset == 8


def test_committed_offsets_survive_a_switch_and_locks_do_not(cluster: SimCluster, client: _Client) -> None:
    """F1: so an offset may be beyond the maximum after it; C5: nothing keeps the lock."""
    _put(cluster, 4)
    address = cluster.broker_addresses["broker-a"]
    client.pull(address, 0)
    client.calls.update_consumer_offset(address, GROUP, _QUEUE, 4)
    client.calls.lock_batch(address, GROUP, "c1", [_QUEUE])
    assert cluster.lock_holder(GROUP, _QUEUE) == "c1"
    cluster.promote_replica("broker-a")
    assert cluster.committed_offset(GROUP, _QUEUE) == 4
    assert cluster.lock_holder(GROUP, _QUEUE) is None


def test_a_promoted_replica_delivers_what_was_postponed(
    cluster: SimCluster, master: RawClient, clock: FakeClock
) -> None:
    master.call(send(b"later", i="DELAY\x011\x02"))
    cluster.promote_replica("broker-a")
    assert cluster.bounds(_QUEUE).max_offset == 0
    clock.advance(1)
    cluster.look_at_clock()
    assert cluster.bounds(_QUEUE).max_offset == 1


def test_the_former_master_is_gone(cluster: SimCluster, client: _Client) -> None:
    old = cluster.broker_addresses["broker-a"]
    cluster.promote_replica("broker-a")
    with pytest.raises(ConnectionRefusedError):
        RawClient(old)
    with pytest.raises(ValueError, match="its broker ids are 0"):
        cluster.promote_replica("broker-a")


def test_one_of_several_replicas_takes_over(clock: FakeClock) -> None:
    with SimCluster(replicas=2, settings=_READS, clock=clock) as cluster:
        cluster.create_topic(TOPIC)
        assert set(_route(cluster)) == {0, 1, 2}
        _put(cluster, 1)
        cluster.promote_replica("broker-a", broker_id=2)
        assert set(_route(cluster)) == {0}
        assert cluster.bounds(_QUEUE).max_offset == 1


def test_the_client_follows_a_faulty_slave_no_further(cluster: SimCluster, client: _Client) -> None:
    """A fault may be meant only for a replica."""
    _put(cluster, 1)
    cluster.faults.add("answer-code", on=11, response_code=2, where="broker-a:1")
    assert client.pull(cluster.broker_addresses["broker-a"], 0).status is PullStatus.FOUND
    with pytest.raises(BrokerError):
        client.pull(cluster.replica_address("broker-a"), 0)


def test_what_makes_no_sense_is_refused(cluster: SimCluster, client: _Client) -> None:
    with pytest.raises(ValueError, match="is the master: it copies nobody"):
        cluster.set_replica_lag("broker-a", 1, broker_id=0)
    with pytest.raises(ValueError, match="is the master already"):
        cluster.promote_replica("broker-a", broker_id=0)
    with pytest.raises(ValueError, match="cannot have -1 replicas"):
        SimCluster(replicas=-1)


def test_messages_put_by_a_test_wake_who_waits(cluster: SimCluster, master: RawClient) -> None:
    master.send(held_pull())
    wait_until(lambda: cluster.held_pulls() == 1)
    _put(cluster, 1)
    assert master.receive().code == ResponseCode.SUCCESS


def test_sends_go_only_to_the_master(cluster: SimCluster, client: _Client) -> None:
    with pytest.raises(BrokerError, match="slave"):
        client.calls.send(
            cluster.replica_address("broker-a"),
            Message(topic=TOPIC, body=b"x"),
            _QUEUE,
            SendSettings(producer_group="p"),
        )


def test_a_reset_is_kept_only_by_its_master(cluster: SimCluster, master: RawClient, slave: RawClient) -> None:
    """F5: a slave takes none (``AdminBrokerProcessor.resetOffset``) and reports none that its master took."""
    _put(cluster, 3)
    assert master.call(pull(0)).code == ResponseCode.SUCCESS  # makes the group
    wanted = {
        "topic": TOPIC,
        "group": GROUP,
        "queueId": "0",
        "offset": "1",
        "timestamp": "0",
        "isForce": "true",
    }
    refused = slave.call(request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, wanted))
    assert (refused.code, refused.remark) == (1, "Can not reset offset in slave broker")

    assert master.call(request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, wanted)).code == 0
    assert slave.call(pull(0)).code == ResponseCode.SUCCESS
    assert master.call(pull(0)).ext_fields["nextBeginOffset"] == "1"
