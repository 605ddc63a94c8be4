from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import replace
from queue import SimpleQueue

import pytest

from broker_sim.bodies import encode_route
from pyspark_rocketmq.client import transport
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.errors import (
    BrokerError,
    ChannelClosed,
    ConnectFailed,
    LocalProtocolError,
    NoWritableQueue,
    RequestTimeout,
    RocketMQError,
    TopicAway,
    TopicNotFound,
)
from pyspark_rocketmq.model import MAX_MESSAGE_BYTES, Message, MessageQueue
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.compression import CompressionType, decompress
from pyspark_rocketmq.wire.messages import decode_batch
from pyspark_rocketmq.wire.properties import decode_properties
from pyspark_rocketmq.wire.requests.send import SendResult
from tests.helpers.fake_clock import FakeClock
from tests.helpers.scripted_cluster import ScriptedCluster
from tests.helpers.scripted_server import Peer, Script, ScriptedServer
from tests.helpers.wait import PATIENCE_S

A0, A1 = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)
B0 = MessageQueue("orders", "broker-b", 0)


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster() as cluster:
        cluster.routes["orders"] = cluster.route({"broker-a": 4, "broker-b": 4})
        yield cluster


@pytest.fixture
def producer(cluster: ScriptedCluster) -> Iterator[Producer]:
    with Producer((cluster.name_server.address,), "P", send_timeout_s=PATIENCE_S) as producer:
        yield producer


def message(body: bytes = b"paid", **properties: str) -> Message:
    return Message(topic="orders", body=body, properties=properties)


def properties_of(request: RemotingCommand) -> dict[str, str]:
    return decode_properties(request.ext_fields["i"].encode())


def refuse(code: int) -> Script:
    return lambda peer, request: peer.answer(request, code, remark="as told")


def hang_up(peer: Peer, request: RemotingCommand) -> None:
    peer.close()


@pytest.mark.parametrize(
    ("key", "broker", "queue_id"),
    [("order-1", "broker-b", 2), ("order-2", "broker-b", 1), ("", "broker-a", 0)],
)
def test_a_keyed_message_goes_to_the_queue_java_would_choose(
    cluster: ScriptedCluster, producer: Producer, key: str, broker: str, queue_id: int
) -> None:
    """G1: hash over the publish queues in route order ("order-1" is 6 of 8, "order-2" 5)."""
    results = [producer.send(message(), sharding_key=key) for _ in range(3)]

    assert {result.queue for result in results} == {MessageQueue("orders", broker, queue_id)}
    assert [result.queue_offset for result in results] == [0, 1, 2]


def test_a_new_producer_counts_the_brokers_that_any_name_server_lists(cluster: ScriptedCluster) -> None:
    """G7: the first one has just restarted and lacks broker-a, and all keys would move to broker-b."""

    def lists_one(peer: Peer, request: RemotingCommand) -> None:
        peer.answer(request, body=encode_route(cluster.only({"broker-b": 4}), standard_json=True))

    with ScriptedServer(lists_one) as restarted:
        addresses = restarted.address, cluster.name_server.address
        with Producer(addresses, "P", send_timeout_s=PATIENCE_S) as producer:
            sent = producer.send(message(), sharding_key="order-1")
            producer.send_ordered([("", message())])

    assert sent.queue == MessageQueue("orders", "broker-b", 2)
    assert cluster.brokers["broker-a"].stored == {0: [b"paid"]}


def test_queues_are_given_in_route_order(producer: Producer) -> None:
    """G1: the order that keys count in."""
    queues = producer.queues("orders")

    assert [queue.broker_name for queue in queues] == ["broker-a"] * 4 + ["broker-b"] * 4
    assert [queue.queue_id for queue in queues] == [0, 1, 2, 3] * 2


@pytest.mark.parametrize(
    ("fault", "error"),
    [(hang_up, ChannelClosed), (refuse(ResponseCode.SYSTEM_ERROR), BrokerError)],
    ids=["connection lost", "refused"],
)
def test_an_ordered_message_is_never_tried_on_another_queue(
    cluster: ScriptedCluster, producer: Producer, fault: Script, error: type[RocketMQError]
) -> None:
    """G5: the error surfaces after one attempt."""
    broker = cluster.brokers["broker-b"]
    broker.fault = fault
    with pytest.raises(error):
        producer.send(message(), sharding_key="order-1")
    with pytest.raises(error):
        producer.send(message(), queue=B0)
    with pytest.raises(error):
        producer.send_batch([message()], B0)

    assert broker.server.requests.qsize() == 3
    assert cluster.brokers["broker-a"].server.requests.empty()


def test_a_lost_broker_makes_the_route_be_asked_for_again(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    """A2, G5: the caller's next attempt finds where the broker moved to."""
    cluster.brokers["broker-b"].fault = hang_up
    with pytest.raises(ChannelClosed):
        producer.send(message(), queue=B0)
    cluster.brokers["broker-b"].fault = None
    producer.send(message(), queue=B0)

    assert cluster.route_requests == ["orders", "orders"]


@pytest.mark.parametrize("how", ["async", "batches"])
def test_so_does_one_that_is_reported_later(cluster: ScriptedCluster, producer: Producer, how: str) -> None:
    """A2, G5: whichever way a message goes."""
    told: SimpleQueue[object] = SimpleQueue()

    def send() -> object:
        if how == "batches":
            return producer.send_batches({B0: [message()]})[B0]
        producer.send_async(message(), told.put, queue=B0)
        return told.get(timeout=PATIENCE_S)

    cluster.brokers["broker-b"].fault = hang_up
    assert isinstance(send(), ChannelClosed)
    cluster.brokers["broker-b"].fault = None

    assert isinstance(send(), SendResult)
    # Before each attempt after a failed one; Java repeats asynchronous sends twice.
    assert cluster.route_requests == ["orders"] * (4 if how == "async" else 2)


@pytest.mark.parametrize(
    "fault", [hang_up, refuse(ResponseCode.SYSTEM_BUSY), refuse(ResponseCode.NO_PERMISSION)]
)
def test_a_message_without_key_is_tried_on_the_other_broker(
    cluster: ScriptedCluster, producer: Producer, fault: Script
) -> None:
    """G3: with the same UNIQ_KEY, so that a double is recognisable."""
    cluster.brokers["broker-a"].fault = fault
    results = [producer.send(message()) for _ in range(8)]
    failed = cluster.brokers["broker-a"].server.requests
    tried = {properties_of(failed.get())["UNIQ_KEY"] for _ in range(failed.qsize())}

    assert {result.queue.broker_name for result in results} == {"broker-b"}
    assert tried
    assert tried < {result.msg_id for result in results}


def test_a_message_reaches_brokers_that_have_swapped_addresses(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    """A7, G3: each further attempt goes by the route as it is by then."""
    producer.queues("orders")
    cluster.brokers = dict(zip(cluster.brokers, reversed(cluster.brokers.values()), strict=True))
    for name, broker in cluster.brokers.items():
        broker.server.broker_name = name
    cluster.routes["orders"] = cluster.route({"broker-a": 4, "broker-b": 4})

    result = producer.send(message())

    assert len(cluster.brokers[result.queue.broker_name].sends) == 1
    assert cluster.route_requests == ["orders", "orders"]


def test_a_broker_that_failed_is_avoided_by_the_next_messages(cluster: ScriptedCluster) -> None:
    """G4: sendLatencyFaultEnable; a message with a key goes there all the same."""
    # On a clock that stands still no answer is slow, and no avoidance over.
    with Producer(
        (cluster.name_server.address,),
        "P",
        send_timeout_s=PATIENCE_S,
        send_latency_fault_enable=True,
        clock=FakeClock(),
    ) as producer:
        cluster.brokers["broker-a"].fault = refuse(ResponseCode.SYSTEM_BUSY)
        for _ in range(8):
            producer.send(message())
        cluster.brokers["broker-a"].fault = None
        results = [producer.send(message()) for _ in range(8)]
        keyed = producer.send(message(), queue=A0)

    assert {result.queue.broker_name for result in results} == {"broker-b"}
    assert keyed.queue == A0


def test_large_bodies_stay_as_they_are_if_configured_so(cluster: ScriptedCluster) -> None:
    """G2"""
    with Producer(
        (cluster.name_server.address,), "P", send_timeout_s=PATIENCE_S, compression_type=None
    ) as producer:
        producer.send(message(b"x" * 5000), queue=A0)

    (sent,) = cluster.brokers["broker-a"].sends
    assert (sent.body, sent.ext_fields["f"]) == (b"x" * 5000, "0")


@pytest.mark.parametrize("kind", CompressionType)
def test_large_bodies_are_compressed_as_configured(cluster: ScriptedCluster, kind: CompressionType) -> None:
    """G2: the flags say how."""
    with Producer(
        (cluster.name_server.address,), "P", send_timeout_s=PATIENCE_S, compression_type=kind
    ) as producer:
        producer.send(message(b"x" * 5000), queue=A0)

    (sent,) = cluster.brokers["broker-a"].sends
    assert decompress(sent.body, int(sent.ext_fields["f"])) == b"x" * 5000
    assert len(sent.body) < 200
    assert int(sent.ext_fields["f"]) >> 8 == kind


def test_attempts_end_after_the_retries(cluster: ScriptedCluster, producer: Producer) -> None:
    """G3: retryTimesWhenSendFailed 2 means three attempts."""
    for broker in cluster.brokers.values():
        broker.fault = refuse(ResponseCode.SYSTEM_ERROR)

    with pytest.raises(BrokerError, match="as told"):
        producer.send(message())
    assert sum(broker.server.requests.qsize() for broker in cluster.brokers.values()) == 3


def test_a_message_no_broker_would_take_is_not_tried_again(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    """G3, broker answers: MESSAGE_ILLEGAL is everywhere illegal."""
    for broker in cluster.brokers.values():
        broker.fault = refuse(ResponseCode.MESSAGE_ILLEGAL)

    with pytest.raises(BrokerError):
        producer.send(message())
    assert sum(broker.server.requests.qsize() for broker in cluster.brokers.values()) == 1


def test_all_attempts_share_one_deadline(cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """G3: a broker that hangs uses up the send's time."""
    monkeypatch.setattr(transport, "RECEIVE_TICK_S", 0.02)
    clock = FakeClock()
    for broker in cluster.brokers.values():
        broker.fault = lambda _peer, _request: clock.advance(PATIENCE_S)
    with (
        Producer((cluster.name_server.address,), "P", send_timeout_s=PATIENCE_S, clock=clock) as producer,
        pytest.raises(RequestTimeout, match="SEND_MESSAGE_V2"),
    ):
        producer.send(message())
    assert sum(broker.server.requests.qsize() for broker in cluster.brokers.values()) == 1


def test_a_topic_that_was_seen_is_sent_to_where_it_was(cluster: ScriptedCluster, producer: Producer) -> None:
    """G7: TBW102 is for topics that nobody has ever seen."""
    first = producer.send(message(), sharding_key="order-1")
    del cluster.routes["orders"]
    cluster.routes["TBW102"] = cluster.route({"broker-a": 8}, perm=7)
    with pytest.raises(ConnectFailed):
        producer.send(message(), queue=MessageQueue("orders", "broker-x", 0))
    later = [producer.send(message(), sharding_key="order-1") for _ in range(3)]

    assert {result.queue for result in later} == {first.queue}
    assert "TBW102" not in cluster.route_requests


@pytest.mark.parametrize("how", ["send", "batch", "batches", "anywhere"])
def test_a_broker_that_denies_a_topic_that_was_seen_may_have_it_again(
    cluster: ScriptedCluster, producer: Producer, how: str
) -> None:
    """G7: retryable, with what was known; of a topic never seen it is not."""
    for broker in cluster.brokers.values():
        broker.fault = refuse(ResponseCode.TOPIC_NOT_EXIST)

    def attempt() -> None:
        match how:
            case "send":
                producer.send(message(), queue=B0)
            case "batch":
                producer.send_batch([message()], B0)
            case "batches":
                outcome = producer.send_batches({B0: [message()]})[B0]
                assert isinstance(outcome, RocketMQError)
                raise outcome
            case _:
                producer.send(message())

    with pytest.raises(
        TopicAway, match=r"as told\. The topic was on broker-a \(.*\), broker-b \(.*\) before"
    ) as caught:
        attempt()
    assert caught.value.retryable

    cluster.routes["TBW102"] = cluster.route({"broker-a": 4}, perm=7)
    with pytest.raises(TopicNotFound) as never_seen:
        producer.send(Message(topic="new", body=b"x"))
    assert not never_seen.value.retryable


def test_a_missing_topic_is_left_for_the_broker_to_create(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    """G2: TBW102's brokers, at most four queues each."""
    cluster.routes["TBW102"] = cluster.route({"broker-a": 8}, perm=7)
    new = Message(topic="new", body=b"x")
    expected = producer.queues("new")
    result = producer.send(new, sharding_key="order-1")
    sent = cluster.brokers["broker-a"].server.next_request()

    assert expected == tuple(MessageQueue("new", "broker-a", number) for number in range(4))
    assert result.queue.topic == "new"
    assert (sent.ext_fields["b"], sent.ext_fields["c"], sent.ext_fields["d"]) == ("new", "TBW102", "4")


def test_keys_stay_in_their_queues_while_brokers_create_the_topic_one_by_one(
    cluster: ScriptedCluster,
) -> None:
    """G1, G2: for as long as a route is trusted; then by the queues there are."""
    cluster.routes["TBW102"] = cluster.route({"broker-a": 4, "broker-b": 4}, perm=7)
    clock = FakeClock()
    with (
        ChannelPool(SystemClock()) as pool,
        Producer(
            (cluster.name_server.address,), "P", send_timeout_s=PATIENCE_S, pool=pool, clock=clock
        ) as producer,
    ):
        before = producer.queues("new")
        cluster.routes["new"] = cluster.only({"broker-a": 4})
        producer.send_ordered((f"order-{n}", Message(topic="new", body=b"x")) for n in range(40))
        late = producer.send(Message(topic="new", body=b"x"), queue=MessageQueue("new", "broker-b", 3))
        clock.advance(30.1)
        after = producer.queues("new")
        # Chosen by the older route and sent by the newer one.
        later = producer.send(Message(topic="new", body=b"x"), queue=MessageQueue("new", "broker-b", 3))

    assert len(before) == 8
    assert sum(len(bodies) for bodies in cluster.brokers["broker-b"].stored.values()) > 10
    assert later.queue_offset == late.queue_offset + 1
    assert after == before[:4]


def test_a_missing_topic_without_template_is_an_error_about_the_topic(producer: Producer) -> None:
    """G2: not about TBW102."""
    with pytest.raises(TopicNotFound, match="topic=new"):
        producer.send(Message(topic="new", body=b"x"))


def test_a_read_only_topic_has_no_queue_to_write_to(cluster: ScriptedCluster, producer: Producer) -> None:
    """G2: a sentence instead of a division by zero."""
    cluster.routes["orders"] = cluster.route({"broker-a": 4}, perm=4)

    with pytest.raises(NoWritableQueue, match="Topic orders has no queue"):
        producer.send(message(), sharding_key="order-1")


def test_a_topic_without_a_queue_to_write_to_is_looked_up_at_once_when_it_is_used_again(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    """A8, G7: also if another process has seen the route; its master may come back within the 30 s in which
    a route is young. All name servers are asked: one that has just restarted may lack the master.
    """
    whole = cluster.routes["orders"]
    slaves = tuple(
        replace(broker, addresses={1: address})
        for broker in whole.brokers
        for address in broker.addresses.values()
    )
    cluster.routes["orders"] = replace(whole, brokers=slaves)

    def lists_slaves(peer: Peer, request: RemotingCommand) -> None:
        peer.answer(request, body=encode_route(replace(whole, brokers=slaves), standard_json=True))

    with ScriptedServer(lists_slaves) as behind:
        addresses = (behind.address, cluster.name_server.address)
        with Producer(addresses, "P", send_timeout_s=PATIENCE_S) as other:
            for one in (producer, other):
                cluster.routes["orders"] = replace(whole, brokers=slaves)
                one.know("orders", replace(whole, brokers=slaves))
                with pytest.raises(NoWritableQueue):
                    one.queues("orders")
                cluster.routes["orders"] = whole
                assert one.queues("orders") == whole.publish_queues("orders")


def test_a_topic_to_create_goes_to_brokers_that_have_a_master_again(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    """A8, G2: an expected route without queues would be kept until the topic exists, so for ever."""
    whole = cluster.route({"broker-a": 4}, perm=7)
    slaves = tuple(
        replace(broker, addresses={1: address})
        for broker in whole.brokers
        for address in broker.addresses.values()
    )
    cluster.routes["TBW102"] = replace(whole, brokers=slaves)
    with pytest.raises(NoWritableQueue, match="new"):
        producer.send(Message(topic="new", body=b"x"))

    cluster.routes["TBW102"] = whole
    assert producer.send(Message(topic="new", body=b"x")).queue.broker_name == "broker-a"


def test_a_queue_of_a_broker_without_master_cannot_be_sent_to(producer: Producer) -> None:
    """G5: the error names the broker."""
    with pytest.raises(ConnectFailed, match="broker-x"):
        producer.send(message(), queue=MessageQueue("orders", "broker-x", 0))


@pytest.mark.parametrize("size", [4095, 4096, 100_000])
def test_large_bodies_are_compressed(cluster: ScriptedCluster, producer: Producer, size: int) -> None:
    """G2: zlib from 4096 bytes on, with the flags of Java 5.x."""
    producer.send(message(b"x" * size), queue=A0)
    sent = cluster.brokers["broker-a"].server.next_request()

    if size < 4096:
        assert (sent.ext_fields["f"], len(sent.body)) == ("0", size)
    else:
        assert (sent.ext_fields["f"], zlib.decompress(sent.body)) == (str(0x301), b"x" * size)


def test_a_batch_is_not_compressed(cluster: ScriptedCluster, producer: Producer) -> None:
    """G2: as in Java; every message and the batch have an id."""
    result = producer.send_batch([message(b"x" * 5000), message(b"y", KEYS="k")], A1)
    sent = cluster.brokers["broker-a"].server.next_request()
    members = decode_batch(sent.body)
    ids = [member.properties["UNIQ_KEY"] for member in members]

    assert sent.code == RequestCode.SEND_BATCH_MESSAGE
    assert sent.ext_fields["f"] == "0"
    assert [member.body for member in members] == [b"x" * 5000, b"y"]
    assert members[1].properties == {"KEYS": "k", "WAIT": "true", "UNIQ_KEY": ids[1]}
    assert result.msg_id == ",".join(ids)
    assert len({*ids, properties_of(sent)["UNIQ_KEY"]}) == 3


def test_a_message_gets_its_id_and_keeps_its_properties(cluster: ScriptedCluster, producer: Producer) -> None:
    """G2: WAIT=true as Java sets it; an id of the caller's own is kept."""
    result = producer.send(message(TAGS="created", KEYS="k1 k2"), queue=A0)
    kept = producer.send(message(UNIQ_KEY="mine", WAIT="false"), queue=A0)
    first, second = (cluster.brokers["broker-a"].server.next_request() for _ in range(2))

    assert properties_of(first) == {
        "TAGS": "created",
        "KEYS": "k1 k2",
        "WAIT": "true",
        "UNIQ_KEY": result.msg_id,
    }
    assert properties_of(second) == {"UNIQ_KEY": "mine", "WAIT": "false"}
    assert kept.msg_id == "mine"


def test_a_property_with_a_separator_is_refused(producer: Producer) -> None:
    """G2: there is no escaping on the wire."""
    with pytest.raises(LocalProtocolError):
        producer.send(message(note="a\x01b"))


def test_batches_to_several_queues_have_outcomes_of_their_own(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    """G2, G5: one queue's failure is not another's."""
    cluster.brokers["broker-b"].fault = hang_up
    outcomes = producer.send_batches({A0: [message(b"1")], A1: [message(b"2")], B0: [message(b"3")]})

    assert isinstance(outcomes[A0], SendResult)
    assert isinstance(outcomes[A1], SendResult)
    assert isinstance(outcomes[B0], ChannelClosed)


def test_one_message_of_the_largest_size_may_be_sent_in_order(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    """G1, G2: a batch of one would have no room for it."""
    large = random.Random(0).randbytes(MAX_MESSAGE_BYTES)

    assert producer.send_ordered([("k", message(b"1")), ("k", message(large)), ("k", message(b"3"))]) == 3

    [stored] = [bodies for broker in cluster.brokers.values() for bodies in broker.stored.values()]
    assert stored == [b"1", large, b"3"]


def test_a_body_may_be_as_large_as_configured(cluster: ScriptedCluster) -> None:
    """G2: max_message_size, as Java's maxMessageSize."""
    with Producer(cluster.name_server.address, "P", max_message_size=5 << 20) as producer:
        producer.send(message(bytes(5 << 20)))
        with pytest.raises(LocalProtocolError, match="body of 5242881 bytes; 5242880 can be sent"):
            producer.send(message(bytes((5 << 20) + 1)))


def test_batches_in_order_are_as_small_as_configured(cluster: ScriptedCluster) -> None:
    """G2: max_message_size bounds requests, too."""
    with Producer(cluster.name_server.address, "P", max_message_size=64 << 10) as producer:
        assert producer.send_ordered(("k", message(b"%01000d" % number)) for number in range(200)) == 200

    [stored] = [bodies for broker in cluster.brokers.values() for bodies in broker.stored.values()]
    assert stored == [b"%01000d" % number for number in range(200)]


@pytest.mark.parametrize("method", ["send", "send_oneway", "send_async", "send_batches"])
def test_a_message_goes_to_no_queue_of_another_topic(
    cluster: ScriptedCluster, producer: Producer, method: str
) -> None:
    """G2: it would be stored in a topic that it does not name; Java refuses it."""
    other = Message(topic="refunds", body=b"x")
    cluster.routes["refunds"] = cluster.routes["orders"]

    def send() -> object:
        if method == "send_batches":
            (outcome,) = producer.send_batches({A0: [other]}).values()
            assert isinstance(outcome, RocketMQError)
            raise outcome
        more = (print,) if method == "send_async" else ()
        return getattr(producer, method)(other, *more, queue=A0)

    with pytest.raises(LocalProtocolError, match=r"topic refunds.*orders"):
        send()
    assert not any(broker.stored for broker in cluster.brokers.values())


def test_many_keyed_messages_keep_their_order_in_every_queue(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    """G1: order per key, also where a queue's share needs several batches."""
    steps = [(f"order-{number % 7}", number) for number in range(5000)]
    body_bytes = 2000
    sent = producer.send_ordered(
        (key, message(b"%s:%05d" % (key.encode(), number) + bytes(body_bytes))) for key, number in steps
    )
    stored = [bodies for broker in cluster.brokers.values() for bodies in broker.stored.values()]
    seen: dict[bytes, list[int]] = {}
    for bodies in stored:
        for body in bodies:
            key, _, number = body[:-body_bytes].partition(b":")
            seen.setdefault(key, []).append(int(number))

    assert sent == 5000
    assert seen == {
        f"order-{key}".encode(): [number for number in range(5000) if number % 7 == key] for key in range(7)
    }
    assert any(broker.server.requests.qsize() > 4 for broker in cluster.brokers.values())


def test_an_ordered_stream_stops_at_the_first_failure(cluster: ScriptedCluster, producer: Producer) -> None:
    """G5: nothing later overtakes what failed."""
    cluster.brokers["broker-b"].fault = refuse(ResponseCode.SYSTEM_BUSY)

    with pytest.raises(BrokerError):
        producer.send_ordered(("order-1", message(b"%d" % number)) for number in range(10_000))
    assert cluster.brokers["broker-b"].server.requests.qsize() == 1


def test_a_oneway_message_is_sent_and_forgotten(cluster: ScriptedCluster, producer: Producer) -> None:
    """G2: flag 2, no answer."""
    producer.send_oneway(message(b"once"), sharding_key="order-1")
    producer.send_oneway(message(b"anywhere"))
    sent = cluster.brokers["broker-b"].server.next_request()

    assert sent.is_oneway


def test_an_asynchronous_send_reports_its_outcome_once(cluster: ScriptedCluster, producer: Producer) -> None:
    """G2: results and errors come to the callback."""
    outcomes: SimpleQueue[object] = SimpleQueue()
    producer.send_async(message(), outcomes.put, queue=A0)
    first = outcomes.get(timeout=PATIENCE_S)
    cluster.brokers["broker-a"].fault = hang_up
    producer.send_async(message(), outcomes.put, queue=A0)

    assert isinstance(first, SendResult)
    assert isinstance(outcomes.get(timeout=PATIENCE_S), ChannelClosed)


def test_name_servers_may_be_one_text(cluster: ScriptedCluster) -> None:
    """A2: as options write them."""
    with Producer(f"{cluster.name_server.address} ; 127.0.0.1:9", "P", send_timeout_s=PATIENCE_S) as producer:
        assert len(producer.queues("orders")) == 8


def test_closing_leaves_a_shared_pool_open(
    cluster: ScriptedCluster, pool: ChannelPool, soon: Deadline
) -> None:
    """A1: who opened it closes it."""
    with Producer((cluster.name_server.address,), "P", send_timeout_s=PATIENCE_S, pool=pool) as producer:
        producer.send(message())
    own = Producer((cluster.name_server.address,), "P", clock=SystemClock())
    own.close()
    own.close()

    assert pool.get(cluster.name_server.address, soon).is_open
    with pytest.raises(ChannelClosed):
        own.send(message())
