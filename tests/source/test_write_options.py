"""What each option of writing makes of the requests that brokers get."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage

from broker_sim.bodies import encode_route
from pyspark_rocketmq.client.cluster import PatientLookup
from pyspark_rocketmq.client.pool import ConnectionSettings
from pyspark_rocketmq.client.producer.attempts import FaultTable, SendOutcome
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.errors import KeysOutOfOrder, RowNotSent, TopicNotFound, TransportError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.options.write import MOST_MESSAGE_BYTES, WriteOptions
from pyspark_rocketmq.publish import writer
from pyspark_rocketmq.publish import writer as sink_task
from pyspark_rocketmq.publish.keys import KeySampler
from pyspark_rocketmq.publish.rows import RowKeys
from pyspark_rocketmq.publish.writer import (
    RocketMQStreamWriter,
    RocketMQWriter,
    SentMessage,
    seen_routes,
    send_rows,
)
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.compression import MAX_BODY_BYTES
from pyspark_rocketmq.wire.messages import BatchMember, decode_batch
from pyspark_rocketmq.wire.properties import decode_properties
from pyspark_rocketmq.wire.requests.send import select_by_hash
from tests.helpers.fake_clock import FakeClock
from tests.helpers.scripted_cluster import ScriptedCluster
from tests.helpers.scripted_server import Peer, ScriptedServer
from tests.helpers.sent_rows import send_as_one_task
from tests.helpers.wait import wait_until

TOPIC = "orders"
QUEUES = [MessageQueue(TOPIC, name, number) for name in ("broker-a", "broker-b") for number in range(2)]


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    """Two brokers with two queues of ``orders`` each."""
    with ScriptedCluster() as scripted:
        route = scripted.route({"broker-a": 2, "broker-b": 2})
        scripted.routes = {TOPIC: route, f"shop%{TOPIC}": route}
        yield scripted


class LateClock:
    """The system's clock, set forward by a test."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self.late_s = 0.0

    def now_s(self) -> float:
        return self._clock.now_s()

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s() + self.late_s


def send(cluster: ScriptedCluster, *bodies: bytes, **options: Any) -> int:
    rows = [{"body": body} for body in bodies]
    return send_as_one_task(cluster.name_server.address, rows, **{"topic": TOPIC} | options)


def requests(cluster: ScriptedCluster) -> list[RemotingCommand]:
    return [request for broker in cluster.brokers.values() for request in broker.sends]


def members(cluster: ScriptedCluster) -> list[BatchMember]:
    """All messages, which came in batches."""
    found = requests(cluster)
    assert {request.code for request in found} == {RequestCode.SEND_BATCH_MESSAGE}
    return [member for request in found for member in decode_batch(request.body)]


def test_fixed_values_are_those_of_every_message(cluster: ScriptedCluster) -> None:
    """topic, tags, keys, properties; G2."""
    send(cluster, b"1", b"2", tags="paid", keys="k1 k2", properties='{"source": "lake"}')

    assert {request.ext_fields["b"] for request in requests(cluster)} == {TOPIC}
    wanted = {"TAGS": "paid", "KEYS": "k1 k2", "source": "lake"}
    assert [{name: each.properties.get(name) for name in wanted} for each in members(cluster)] == 2 * [wanted]


def test_a_topic_that_is_missing_for_all_the_time_fails_the_write_unless_brokers_make_topics(
    cluster: ScriptedCluster,
) -> None:
    """G1, G7: as with Kafka, that is up to the cluster: its template is then named in the request."""
    with pytest.raises(TopicNotFound, match=r"nowhere.*Create the topic, or correct .* option 'topic'"):
        send(cluster, b"1", topic="nowhere", retryTimeoutMs=200)
    assert requests(cluster) == []
    assert cluster.route_requests.count("nowhere") > 2

    cluster.routes["TBW102"] = cluster.only({"broker-a": 8})
    send(cluster, b"1", topic="nowhere", shardingKey="k", retryTimeoutMs=0)

    assert [[request.ext_fields[name] for name in "bc"] for request in requests(cluster)] == [
        ["nowhere", "TBW102"]
    ]


def test_rows_without_keys_go_to_a_new_topic_at_once_where_brokers_make_topics(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """G7: as those of `Producer.send`: no order could be lost by it."""
    cluster.routes["TBW102"] = cluster.only({"broker-a": 8})

    send(cluster, b"1", b"2", topic="nowhere")  # retryTimeoutMs is two minutes

    assert {request.ext_fields["b"] for request in requests(cluster)} == {"nowhere"}
    assert "topic is not there" not in caplog.text


def test_all_tasks_of_a_write_go_by_what_the_driver_has_seen(cluster: ScriptedCluster) -> None:
    """G7: also one that begins while the name server does not know the topic,
    or reports only some of its brokers.
    """
    options = write_options(nameServers=cluster.name_server.address, requestTimeoutMs="60000")
    seen = seen_routes(options)
    rows = pa.RecordBatch.from_pylist([{"body": b"%d" % n, "shardingKey": str(n % 9)} for n in range(40)])
    stored = []
    for route in (cluster.only({"broker-a": 2}), None):
        cluster.routes = {} if route is None else {TOPIC: route}
        cluster.routes["TBW102"] = cluster.only({"broker-a": 8})
        send_rows(iter([rows]), options, {"body": 0, "shardingKey": 1}, RowKeys("w", 0, 0), seen)
        stored.append({name: dict(broker.stored) for name, broker in cluster.brokers.items()})
        for broker in cluster.brokers.values():
            broker.stored.clear()

    chosen = [QUEUES[select_by_hash(str(key), 4)] for key in range(9)]
    assert stored[0] == stored[1]
    for key, queue in enumerate(chosen):
        bodies = [b"%d" % n for n in range(key, 40, 9)]
        assert [body for body in stored[0][queue.broker_name][queue.queue_id] if body in bodies] == bodies


@pytest.mark.parametrize("column", ["shardingKey", "queueId"])
def test_a_task_keeps_to_the_drivers_queues_however_late_its_first_row_comes(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    """G5, G7: a route expires after 30 s; keys would then move while a broker restarts."""
    clock = LateClock()
    monkeypatch.setattr(writer, "SystemClock", lambda: clock)
    options = write_options(nameServers=cluster.name_server.address, requestTimeoutMs="60000")
    seen = seen_routes(options)
    cluster.routes[TOPIC] = cluster.route({"broker-b": 2})

    def rows() -> Iterator[pa.RecordBatch]:
        for chosen in (range(4), range(4, 8)):
            clock.late_s += 31.0
            if column == "shardingKey":
                yield pa.RecordBatch.from_pylist([{"body": b"%d" % n, column: str(n)} for n in chosen])
            else:
                yield pa.RecordBatch.from_pylist(
                    [{"body": b"%d" % n, column: n % 2, "brokerName": "broker-a"} for n in chosen]
                )

    positions = {"body": 0, column: 1} | ({"brokerName": 2} if column == "queueId" else {})
    send_rows(rows(), options, positions, RowKeys("w", 0, 0), seen)

    stored = {
        body: MessageQueue(TOPIC, name, number)
        for name, broker in cluster.brokers.items()
        for number, bodies in broker.stored.items()
        for body in bodies
    }
    wanted = [
        QUEUES[select_by_hash(str(n), 4)] if column == "shardingKey" else QUEUES[n % 2] for n in range(8)
    ]
    assert [stored[b"%d" % n] for n in range(8)] == wanted


def test_a_write_sees_the_brokers_that_any_name_server_lists(cluster: ScriptedCluster) -> None:
    """G7: a name server that has just restarted lacks some, and keys would move for that batch."""

    def lists_one(peer: Peer, request: RemotingCommand) -> None:
        peer.answer(request, body=encode_route(cluster.only({"broker-a": 2}), standard_json=True))

    with ScriptedServer(lists_one) as restarted:
        addresses = f"{restarted.address};{cluster.name_server.address}"
        seen = seen_routes(write_options(nameServers=addresses))

    assert seen[TOPIC].publish_queues(TOPIC) == tuple(QUEUES)


def test_rows_for_any_queue_go_on_when_their_topic_gets_fewer(cluster: ScriptedCluster) -> None:
    """G3, G5: those with a key stay with their queue, which the broker refuses."""
    cluster.routes[TOPIC] = cluster.only({"broker-a": 4})
    broker = cluster.brokers["broker-a"]

    def shrunk(peer: Peer, request: RemotingCommand) -> None:
        """As after mqadmin updateTopic, at the first request."""
        cluster.routes[TOPIC] = cluster.only({"broker-a": 2})
        if int(request.ext_fields["e"]) < 2:
            broker.fault = None
            broker._take_in(peer, request)
            broker.fault = shrunk
        else:
            peer.answer(request, ResponseCode.INVALID_PARAMETER, remark="request queueId[3] is illegal")

    broker.fault = shrunk
    assert send(cluster, *[b"%d" % n for n in range(20)], batchSize=2) == 20
    assert sorted(body for bodies in broker.stored.values() for body in bodies) == sorted(
        b"%d" % n for n in range(20)
    )
    assert broker.stored.keys() <= {0, 1}

    cluster.routes[TOPIC] = cluster.only({"broker-a": 4})
    with pytest.raises(RowNotSent, match=r"queueId\[3\] is illegal"):
        send(cluster, b"x", queueId=3)


@pytest.mark.parametrize("is_away", [False, True], ids=["refused", "away"])
def test_rows_for_any_queue_follow_their_topic_to_another_broker(
    cluster: ScriptedCluster, is_away: bool
) -> None:
    """G3, G5, G7: in the middle of a task, and in a task that is repeated with the driver's route;
    those with a key stay with their queue.
    """
    cluster.routes[TOPIC] = cluster.only({"broker-a": 2})
    former, present = cluster.brokers["broker-a"], cluster.brokers["broker-b"]
    options = write_options(
        nameServers=cluster.name_server.address, batchSize="1", retryTimeoutMs="3000", requestTimeoutMs="9000"
    )
    seen = seen_routes(options)

    def refuse(peer: Peer, request: RemotingCommand) -> None:
        peer.answer(request, ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{TOPIC}] not exist")

    def rows(**columns: str) -> Iterator[pa.RecordBatch]:
        for number in range(20):
            if number == 10:
                cluster.routes[TOPIC] = cluster.only({"broker-b": 2})
                former.fault = refuse
                if is_away:
                    former.server.close()
            yield pa.RecordBatch.from_pylist([{"body": b"%d" % number} | columns])

    all_bodies = sorted(b"%d" % number for number in range(20))
    assert send_rows(rows(), options, {"body": 0}, RowKeys("w", 0, 0), seen)[0] == 20
    stored = [body for each in (former, present) for bodies in each.stored.values() for body in bodies]
    assert sorted(set(stored)) == all_bodies

    present.stored.clear()
    assert send_rows(rows(), options, {"body": 0}, RowKeys("w", 0, 0), seen)[0] == 20
    assert sorted(body for bodies in present.stored.values() for body in bodies) == all_bodies

    present.stored.clear()
    with pytest.raises(RowNotSent):
        send_rows(rows(shardingKey="k"), options, {"body": 0, "shardingKey": 1}, RowKeys("w", 0, 0), seen)
    assert not present.stored


def test_a_driver_that_sees_no_topic_leaves_it_to_the_tasks(cluster: ScriptedCluster) -> None:
    """G7"""
    address = cluster.name_server.address

    assert seen_routes(write_options(nameServers=address)).keys() == {TOPIC}
    assert seen_routes(write_options(nameServers=address, topic="nowhere")) == {}
    assert seen_routes(WriteOptions.parse({"nameServers": address})) == {}
    # Nobody listens there.
    assert seen_routes(write_options(nameServers="127.0.0.1:1", requestTimeoutMs="1000")) == {}


def test_one_sharding_key_or_one_queue_is_that_of_every_message(cluster: ScriptedCluster) -> None:
    """shardingKey, queueId; G1."""
    send(cluster, *map(str.encode, "abcdef"), shardingKey="k", batchSize=1)
    chosen = QUEUES[select_by_hash("k", len(QUEUES))]
    assert cluster.brokers[chosen.broker_name].stored == {chosen.queue_id: list(map(str.encode, "abcdef"))}

    cluster.routes[TOPIC] = cluster.route({"broker-a": 9})
    send(cluster, b"x", b"y", queueId=7)
    assert cluster.brokers["broker-a"].stored[7] == [b"x", b"y"]


def test_a_fixed_delay_is_that_of_every_message(cluster: ScriptedCluster) -> None:
    """delayLevel; G2"""
    send(cluster, b"1", delayLevel=3)

    assert [decode_properties(each.ext_fields["i"].encode())["DELAY"] for each in requests(cluster)] == ["3"]


def test_brokers_see_the_producer_group(cluster: ScriptedCluster) -> None:
    """producerGroup"""
    send(cluster, b"1", producerGroup="loaders")

    assert [request.ext_fields["a"] for request in requests(cluster)] == ["loaders"]


def test_a_request_has_as_many_messages_and_bytes_as_it_may(cluster: ScriptedCluster) -> None:
    """batchSize, batchBytes"""
    send(cluster, *[b"x"] * 10, shardingKey="k", batchSize=4)
    assert [len(decode_batch(request.body)) for request in requests(cluster)] == [4, 4, 2]

    send(cluster, *[b"x" * 10_000] * 4, shardingKey="k", batchBytes=25_000)
    assert [len(decode_batch(request.body)) for request in requests(cluster)][3:] == [2, 2]


def test_a_body_may_be_as_large_as_the_option_says(cluster: ScriptedCluster) -> None:
    """maxMessageSize; G2: counted before it is compressed, and of a whole request."""
    send(cluster, b"x" * 600, b"x" * 600, shardingKey="k", maxMessageSize=1000)
    assert [request.code for request in requests(cluster)] == 2 * [RequestCode.SEND_BATCH_MESSAGE]

    with pytest.raises(RowNotSent, match=r"body of 1001 bytes; 1000 can be sent.*raise maxMessageSize"):
        send(cluster, b"x" * 1001, compressionType="zlib", compressOverBytes=0, maxMessageSize=1000)
    with pytest.raises(RowNotSent, match="4194304 can be sent"):
        send(cluster, bytes(5 << 20))

    send(cluster, bytes(5 << 20), maxMessageSize=8 << 20)
    assert sorted(len(request.body) for request in requests(cluster))[2:] == [5 << 20]
    assert MOST_MESSAGE_BYTES == MAX_BODY_BYTES


def test_no_more_is_under_way_than_may_be(cluster: ScriptedCluster) -> None:
    """maxInFlightBytes: with one byte it is one request, though the other broker has nothing to do."""
    meet = threading.Barrier(2)
    met: list[bool] = []

    def answer_when_both_are_asked(peer: Peer, request: RemotingCommand) -> None:
        try:
            meet.wait(0.2)
            met.append(True)
        except threading.BrokenBarrierError:
            met.append(False)
        peer.answer(request, ext_fields={"msgId": "1", "queueId": "0", "queueOffset": "0"})

    for broker in cluster.brokers.values():
        broker.fault = answer_when_both_are_asked
    rows = [{"body": b"x", "brokerName": name, "queueId": 0} for name in cluster.brokers]
    send_as_one_task(cluster.name_server.address, rows, topic=TOPIC, maxInFlightBytes=1)

    assert met == [False, False]


def test_bodies_that_are_large_enough_are_compressed(cluster: ScriptedCluster) -> None:
    """compressionType, compressOverBytes: a batch that has none of them is sent as it is."""
    for body in (b"x" * 500, b"y" * 499):
        send(cluster, body, shardingKey="k", compressionType="zlib", compressOverBytes=500)

    sizes = [len(member.body) for member in members(cluster)]
    assert sizes[0] < 100
    assert sizes[1] == 499


def test_a_less_durable_send_is_no_failure_if_the_option_allows_it(
    cluster: ScriptedCluster,
) -> None:
    """requireSendOk"""

    def store_here_alone(peer: Peer, request: RemotingCommand) -> None:
        fields = {"msgId": "1", "queueId": "0", "queueOffset": "0"}
        peer.answer(request, ResponseCode.SLAVE_NOT_AVAILABLE, ext_fields=fields)

    for broker in cluster.brokers.values():
        broker.fault = store_here_alone

    assert send(cluster, b"1", requireSendOk="false") == 1
    with pytest.raises(RowNotSent, match="SLAVE_NOT_AVAILABLE"):
        send(cluster, b"1")


class Unhurried(FaultTable):
    """A client for which no answer is slow."""

    def note(self, broker_name: str, latency_ms: float, outcome: SendOutcome) -> None:
        super().note(broker_name, 0.0, outcome)


def test_a_failed_broker_is_avoided_if_the_option_is_set(
    cluster: ScriptedCluster, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sendLatencyFaultEnable: asked once, it is not asked again; no time passes here,
    in which it would be asked again.
    """
    monkeypatch.setattr(sink_task, "FaultTable", lambda _: Unhurried(clock))
    asked: list[RemotingCommand] = []

    def busy(peer: Peer, request: RemotingCommand) -> None:
        asked.append(request)
        peer.answer(request, ResponseCode.SYSTEM_BUSY, remark="busy")

    cluster.brokers["broker-a"].fault = busy

    send(cluster, *[b"x"] * 20, batchSize=1, maxInFlightBytes=1, sendLatencyFaultEnable="true")

    assert len(asked) <= 1
    assert len(requests(cluster)) == 20


def write_options(**given: str) -> WriteOptions:
    return WriteOptions.parse({"nameServers": "n:1", "topic": TOPIC} | given)


def test_keys_of_several_tasks_are_not_checked_if_the_option_is_off(cluster: ScriptedCluster) -> None:
    """checkShardingKeys; G6"""
    batch = pa.RecordBatch.from_pylist([{"body": b"x", "shardingKey": "b"}])

    def write(**given: str) -> None:
        options = write_options(nameServers=cluster.name_server.address, **given)
        positions = {"body": 0, "shardingKey": 1}
        sent = [send_rows(iter([batch]), options, positions, RowKeys("w", 0, task)) for task in range(2)]
        RocketMQWriter(options, positions).commit([SentMessage(*each) for each in sent])

    write(checkShardingKeys="false")
    with pytest.raises(KeysOutOfOrder, match="'b'"):
        write()


def test_a_stream_warns_of_keys_of_several_tasks_because_a_restart_would_send_the_batch_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """checkShardingKeys; G6: everything is stored by then."""
    sampler = KeySampler()
    sampler.add(TOPIC, "order-7")
    sent: list[WriterCommitMessage | None] = [
        SentMessage(1, sampler.sample()),
        SentMessage(1, sampler.sample()),
    ]
    stream = RocketMQStreamWriter(write_options(), {"body": 0})

    stream.commit(sent[:1], 3)
    assert "order" not in caplog.text
    stream.commit(sent, 4)

    assert (
        "batch 4 of the stream was stored out of order, and the stream goes on: All rows are stored"
        in caplog.text
    )
    assert "'order-7'" in caplog.text
    with pytest.raises(KeysOutOfOrder, match="Writing them again stores every row once more"):
        RocketMQWriter(write_options(), {"body": 0}).commit(sent)


class FirstTask:
    """What the writers ask Spark's context of a task."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return 0

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        return self._properties.get(name)


def test_message_ids_come_of_the_id_of_the_write(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """writeId; H6: in place of a stream's query id, too; with the number of the micro-batch,
    within foreachBatch as well.
    """
    task = FirstTask({"sql.streaming.queryId": "query", "streaming.sql.batchId": "4"})
    monkeypatch.setattr(writer, "_task", lambda: task)
    rows = pa.RecordBatch.from_pylist([{"body": b"x"}])
    options = WriteOptions.parse(
        {"nameServers": cluster.name_server.address, "topic": TOPIC, "writeId": "load-7"}
    )

    RocketMQWriter(options, {"body": 0}).write(iter([rows]))
    RocketMQStreamWriter(options, {"body": 0}).write(iter([rows]))
    [of_a_stream] = {each.properties["UNIQ_KEY"] for each in members(cluster)}

    monkeypatch.setattr(writer, "_task", lambda: FirstTask({}))
    RocketMQWriter(options, {"body": 0}).write(iter([rows]))
    send_rows(iter([rows]), options, {"body": 0}, RowKeys("load-7", 0, 0))
    send_rows(iter([rows]), options, {"body": 0}, RowKeys("load-7", 4, 0))
    sent = Counter(each.properties["UNIQ_KEY"] for each in members(cluster))
    assert sent.pop(of_a_stream) == 3
    assert list(sent.values()) == [2]


@pytest.mark.parametrize(
    ("kind", "batch_id", "has_worked"),
    [
        (RocketMQWriter, None, False),
        (RocketMQWriter, "0", False),
        (RocketMQWriter, "1", True),
        (RocketMQStreamWriter, "0", False),
        (RocketMQStreamWriter, "1", True),
    ],
)
def test_a_stream_has_worked_once_a_micro_batch_is_written(
    cluster: ScriptedCluster,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[RocketMQWriter | RocketMQStreamWriter],
    batch_id: str | None,
    has_worked: bool,
) -> None:
    """A8: then it waits for its name servers, also in foreachBatch; a first start with a wrong address fails
    soon.
    """
    asked = []

    def look(producer: Producer, clock: Clock, timeout_s: float, **how: bool) -> PatientLookup:
        asked.append(how["has_worked"])
        return PatientLookup(producer, clock, timeout_s, has_keys=how["has_keys"], has_worked=asked[-1])

    properties = {"sql.streaming.queryId": "q"} | ({"streaming.sql.batchId": batch_id} if batch_id else {})
    monkeypatch.setattr(writer, "_task", lambda: FirstTask(properties))
    monkeypatch.setattr(writer, "PatientLookup", look)
    rows = pa.RecordBatch.from_pylist([{"body": b"x"}])

    kind(write_options(nameServers=cluster.name_server.address), {"body": 0}).write(iter([rows]))

    assert asked == [has_worked]


def test_topics_are_those_of_the_namespace(cluster: ScriptedCluster) -> None:
    """namespace"""
    send(cluster, b"1", namespace="shop")

    assert [request.ext_fields["b"] for request in requests(cluster)] == [f"shop%{TOPIC}"]


def test_requests_are_signed(cluster: ScriptedCluster) -> None:
    """accessKey, secretKey, securityToken; A5"""
    send(cluster, b"1", accessKey="user", secretKey="secret", securityToken="token")
    send(cluster, b"1", accessKey="user", secretKey="another", securityToken="token")

    fields = [request.ext_fields for request in requests(cluster)]
    assert [(each["AccessKey"], each["SecurityToken"]) for each in fields] == [("user", "token")] * 2
    assert all(each["Signature"] for each in fields)


def test_a_broker_that_says_nothing_is_waited_for_as_long_as_the_option_says(
    cluster: ScriptedCluster, given_s: list[float]
) -> None:
    """requestTimeoutMs; retryTimeoutMs: with none it is asked once."""
    asked: list[RemotingCommand] = []
    tries = itertools.count()
    for broker in cluster.brokers.values():
        broker.fault = lambda peer, request: asked.append(request)

    def is_asked() -> bool:
        next(tries)
        with pytest.raises((RowNotSent, TransportError), match=r"did not answer|Could not connect"):
            send(cluster, b"1", shardingKey="k", requestTimeoutMs=300, retryTimeoutMs="0")
        return bool(asked)

    # Not so where the time is over before the route has come.
    wait_until(is_asked)
    assert len(asked) <= next(tries)
    assert max(given_s) == 0.3


def test_connections_are_made_as_the_options_say() -> None:
    """useTls, tlsCaFile, tlsCertFile, tlsKeyFile, tlsKeyPassword, tlsVerifyCertificate,
    tlsVerifyHostname, A5: what
    they mean is tested with the transport."""
    files = {"tlsCertFile": "c.pem", "tlsKeyFile": "k.pem", "tlsKeyPassword": "p"}
    trusting = ConnectionSettings.of(
        write_options(useTls="true", tlsVerifyCertificate="false", tlsVerifyHostname="false", **files)
    )
    careful = ConnectionSettings.of(write_options(useTls="true", tlsCaFile="ca.pem"))

    assert (trusting.use_tls, trusting.tls_verify_certificate, trusting.tls_verify_hostname) == (
        True,
        False,
        False,
    )
    assert (trusting.tls_cert_file, trusting.tls_key_file, trusting.tls_key_password) == (
        "c.pem",
        "k.pem",
        "p",
    )
    assert (careful.tls_ca_file, careful.tls_verify_certificate) == ("ca.pem", True)
