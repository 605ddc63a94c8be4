from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue

import pytest

from broker_sim.bodies import encode_consumer_list, encode_lock_response, encode_topic_stats
from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.errors import (
    BrokerError,
    ChannelClosed,
    ConnectFailed,
    ExpressionInvalid,
    LocalProtocolError,
    OffsetNotFound,
    RemoteProtocolError,
    RequestTimeout,
    SystemBusy,
    WrongBroker,
)
from pyspark_rocketmq.model import Message, MessageExt, MessageModel, MessageQueue, QueueBounds, SendStatus
from pyspark_rocketmq.wire.codes import PullSysFlag, RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import MAX_FRAME_LENGTH, RemotingCommand, decode_frame
from pyspark_rocketmq.wire.fastjson import decode_body, loads
from pyspark_rocketmq.wire.messages import decode_batch
from pyspark_rocketmq.wire.properties import decode_properties
from pyspark_rocketmq.wire.requests import bodies
from pyspark_rocketmq.wire.requests.bodies import LockBatchRequest
from pyspark_rocketmq.wire.requests.pull import PullRequest, PullResult, PullStatus
from pyspark_rocketmq.wire.requests.send import Batch, SendSettings
from pyspark_rocketmq.wire.subscription import build_subscription
from tests.helpers.fake_clock import FakeClock
from tests.helpers.golden import recorded_command
from tests.helpers.scripted_server import ScriptedServer
from tests.helpers.wait import PATIENCE_S, wait_until

QUEUE = MessageQueue("orders", "broker-a", 3)
OTHER = MessageQueue("orders", "broker-a", 5)
SETTINGS = SendSettings(producer_group="P")
MESSAGE = Message(topic="orders", body=b"paid", properties={"UNIQ_KEY": "AB", "WAIT": "true"})
BATCH = Batch(queue=QUEUE, messages=(MESSAGE, MESSAGE), properties={"UNIQ_KEY": "CD", "WAIT": "true"})
STORED = {"msgId": "7F", "queueId": "3", "queueOffset": "41"}
PULL = PullRequest(consumer_group="g", queue=QUEUE, queue_offset=17)
PULLED = {"suggestWhichBrokerId": "0", "nextBeginOffset": "49", "minOffset": "10", "maxOffset": "99"}
HEARTBEAT = bodies.HeartbeatData(
    client_id="10.0.0.1@1",
    consumers=(
        bodies.ConsumerData(
            group_name="g",
            message_model=MessageModel.CLUSTERING,
            subscriptions=(build_subscription("orders", "a || b", sub_version=7),),
        ),
    ),
)
CONSUMED = MessageExt(
    topic="orders",
    broker_name="broker-a",
    queue_id=3,
    queue_offset=9,
    commit_log_offset=4096,
    msg_id="AB",
    keys=None,
    tags=None,
    body=b"",
    properties={},
    born_timestamp=0,
    born_host="",
    store_timestamp=0,
    store_host="",
    reconsume_times=0,
    sys_flag=0,
    flag=0,
)


@pytest.fixture
def brokers(pool: ChannelPool) -> BrokerClient:
    return BrokerClient(pool, SystemClock(), request_timeout_s=PATIENCE_S)


Call = Callable[[BrokerClient, str], object]

CALLS: dict[str, tuple[int, Call]] = {
    "send": (2, lambda b, at: b.send(at, MESSAGE, QUEUE, SETTINGS)),
    "send to the retry topic": (
        42,
        lambda b, at: b.send(
            at, MESSAGE, QUEUE, SendSettings(producer_group="P", reconsume_times=3, max_reconsume_times=2)
        ),
    ),
    "send oneway": (4, lambda b, at: b.send_oneway(at, MESSAGE, QUEUE, SETTINGS)),
    "send a batch": (5, lambda b, at: b.send_batch(at, BATCH, SETTINGS)),
    "max offset": (8, lambda b, at: b.max_offset(at, QUEUE)),
    "min offset": (9, lambda b, at: b.min_offset(at, QUEUE)),
    "search offset": (11, lambda b, at: b.search_offset(at, QUEUE, 1_700_000_000_000)),
    "pull": (31, lambda b, at: b.pull(at, PULL)),
    "heartbeat": (34, lambda b, at: b.heartbeat(at, HEARTBEAT)),
    "consumer list": (35, lambda b, at: b.consumer_list(at, "g")),
    "lock": (36, lambda b, at: b.lock_batch(at, "g", "10.0.0.1@1", {QUEUE})),
    "query offset": (38, lambda b, at: b.query_consumer_offset(at, "g", QUEUE)),
    "commit": (82, lambda b, at: b.update_consumer_offset(at, "g", QUEUE, 5)),
    "unlock": (46, lambda b, at: b.unlock_batch(at, "g", "10.0.0.1@1", {QUEUE})),
    "topic stats": (71, lambda b, at: b.topic_stats(at, "orders")),
    "send back": (86, lambda b, at: b.send_message_back(at, CONSUMED, "g", 0, 16)),
    "unregister": (168, lambda b, at: b.unregister(at, "10.0.0.1@1", consumer_group="g")),
}
ANSWERS: dict[int, bytes] = {
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: encode_consumer_list(("a", "b")),
    RequestCode.LOCK_BATCH_MQ: encode_lock_response({QUEUE}),
    RequestCode.GET_TOPIC_STATS_INFO: encode_topic_stats(
        {QUEUE: QueueBounds(min_offset=1, max_offset=9, last_update_timestamp=5)}
    ),
}


def answer_well(server: ScriptedServer) -> None:
    """Answer every request with a success that has all fields."""
    server.script = lambda peer, request: (
        None
        if request.is_oneway
        else peer.answer(
            request,
            ext_fields={**STORED, **PULLED, "offset": "41", "timestamp": "-1"},
            body=ANSWERS.get(request.code, b""),
        )
    )


@pytest.mark.parametrize("name", list(CALLS))
def test_a_request_is_what_java_sends(server: ScriptedServer, brokers: BrokerClient, name: str) -> None:
    """A1, G1: code, flag, ext field names and body field names equal a recorded frame of the Java client."""
    pair_id, call = CALLS[name]
    java = decode_frame(recorded_command(pair_id).frame)
    answer_well(server)
    call(brokers, server.address)
    ours = server.next_request()

    assert (ours.code, ours.flag) == (java.code, java.flag)
    # ReqT and maxMsgBytes are sent by some versions of the Java client and read by no broker.
    assert set(ours.ext_fields) == set(java.ext_fields) - {"ReqT", "maxMsgBytes"}
    if java.body.startswith(b"{"):
        assert loads(ours.body).keys() == loads(java.body).keys()


def test_a_send_returns_where_the_message_is(server: ScriptedServer, brokers: BrokerClient) -> None:
    """G1: queue and offset come from the broker, the id from the message."""
    answer_well(server)
    result = brokers.send(server.address, MESSAGE, QUEUE, SETTINGS)
    sent = server.next_request()

    assert (result.status, result.msg_id, result.offset_msg_id) == (SendStatus.SEND_OK, "AB", "7F")
    assert (result.queue, result.queue_offset) == (QUEUE, 41)
    assert decode_properties(sent.ext_fields["i"].encode()) == MESSAGE.properties
    assert (sent.body, sent.ext_fields["e"], sent.ext_fields["n"]) == (b"paid", "3", "broker-a")


@pytest.mark.parametrize("status", list(SendStatus))
def test_a_message_stored_less_durably_is_a_result(
    server: ScriptedServer, brokers: BrokerClient, status: SendStatus
) -> None:
    """G2, broker answers: codes 10, 11 and 12 mean stored."""
    server.script = lambda peer, request: peer.answer(request, status, ext_fields=STORED)

    assert brokers.send(server.address, MESSAGE, QUEUE, SETTINGS).status is status


def test_a_batch_is_encoded_as_one_body(server: ScriptedServer, brokers: BrokerClient) -> None:
    """G2: members keep their own properties, the header carries the batch's."""
    answer_well(server)
    result = brokers.send_batch(server.address, BATCH, SETTINGS)
    sent = server.next_request()

    assert result.msg_id == "AB,AB"
    assert [(member.body, member.properties) for member in decode_batch(sent.body)] == [
        (b"paid", MESSAGE.properties)
    ] * 2
    assert decode_properties(sent.ext_fields["i"].encode()) == BATCH.properties


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ((), "holds no message"),
        ((MESSAGE, Message(topic="other", body=b"x")), "topic other"),
        ((Message(topic="orders", body=b"x", properties={"DELAY": "3"}),), "delayed or transactional"),
        (
            (Message(topic="orders", body=b"x", properties={"TIMER_DELIVER_MS": "3"}),),
            "delayed or transactional",
        ),
        ((Message(topic="orders", body=b"x", properties={"TRAN_MSG": "true"}),), "delayed or transactional"),
        ((Message(topic="orders", body=bytes(4 << 20)),), "at most 4194304"),
    ],
)
def test_a_batch_that_brokers_refuse_is_not_sent(
    server: ScriptedServer, brokers: BrokerClient, messages: tuple[Message, ...], problem: str
) -> None:
    """G2: refused here, in a sentence."""
    with pytest.raises(LocalProtocolError, match=problem):
        brokers.send_batch(server.address, Batch(queue=QUEUE, messages=messages, properties={}), SETTINGS)
    assert server.requests.empty()


@pytest.mark.parametrize(("body", "problem"), [(b"", "empty body"), (bytes((4 << 20) + 1), "can be sent")])
def test_a_message_that_brokers_refuse_is_not_sent(
    server: ScriptedServer, brokers: BrokerClient, body: bytes, problem: str
) -> None:
    """G2: an empty body is a NullPointerException in the broker."""
    with pytest.raises(LocalProtocolError, match=problem):
        brokers.send(server.address, Message(topic="orders", body=body), QUEUE, SETTINGS)


def test_answers_become_values(server: ScriptedServer, brokers: BrokerClient) -> None:
    """A1: offsets, members, locks and bounds."""
    answer_well(server)
    at = server.address

    assert brokers.max_offset(at, QUEUE) == brokers.min_offset(at, QUEUE) == 41
    assert brokers.search_offset(at, QUEUE, 0) == brokers.query_consumer_offset(at, "g", QUEUE) == 41
    assert brokers.consumer_list(at, "g") == ("a", "b")
    assert brokers.lock_batch(at, "g", "me", [QUEUE, OTHER]) == {QUEUE}
    assert brokers.topic_stats(at, "orders")[QUEUE].max_offset == 9


def test_a_lock_request_names_all_queues(server: ScriptedServer, brokers: BrokerClient) -> None:
    """A1: one request per broker for all of them."""
    answer_well(server)
    brokers.lock_batch(server.address, "g", "me", [QUEUE, OTHER])

    assert decode_body(LockBatchRequest, server.next_request().body) == bodies.LockBatchRequest(
        consumer_group="g", client_id="me", queues=frozenset({QUEUE, OTHER})
    )


def test_no_stored_offset_is_distinguished_from_every_failure(
    server: ScriptedServer, brokers: BrokerClient
) -> None:
    """F3: code 22 and nothing else means a first start."""
    server.script = lambda peer, request: peer.answer(request, ResponseCode.QUERY_NOT_FOUND)
    with pytest.raises(OffsetNotFound):
        brokers.query_consumer_offset(server.address, "g", QUEUE)

    server.script = lambda peer, request: peer.answer(request, ResponseCode.SYSTEM_BUSY)
    with pytest.raises(SystemBusy):
        brokers.query_consumer_offset(server.address, "g", QUEUE)

    server.script = lambda peer, request: peer.answer(request)
    unreadable = re.escape(f"The answer of {server.address} cannot be read: OffsetResponseHeader:")
    with pytest.raises(RemoteProtocolError, match=unreadable):
        brokers.query_consumer_offset(server.address, "g", QUEUE)
    with pytest.raises(RemoteProtocolError, match=unreadable):
        brokers.max_offset(server.address, QUEUE)

    server.script = lambda peer, _request: peer.close()
    with pytest.raises(ChannelClosed):
        brokers.query_consumer_offset(server.address, "g", QUEUE)


def test_a_true_last_offset_can_be_asked_for(server: ScriptedServer, brokers: BrokerClient) -> None:
    """F2, F3: setZeroIfNotFound=false stops the broker from making up a 0."""
    answer_well(server)
    brokers.query_consumer_offset(server.address, "g", QUEUE, set_zero_if_not_found=False)

    assert server.next_request().ext_fields["setZeroIfNotFound"] == "false"


def test_a_group_without_members_is_an_error(server: ScriptedServer, brokers: BrokerClient) -> None:
    """F3, broker answers: never an empty list."""
    server.script = lambda peer, request: peer.answer(request, 1, remark="no consumer for this group, g")

    with pytest.raises(BrokerError, match="no consumer"):
        brokers.consumer_list(server.address, "g")


def test_pulls_go_and_come_back_in_both_ways(server: ScriptedServer, brokers: BrokerClient) -> None:
    """A1: blocking and with a callback."""
    server.script = lambda peer, request: peer.answer(request, ext_fields=PULLED, body=b"m")
    outcomes: SimpleQueue[object] = SimpleQueue()
    expected = PullResult(
        status=PullStatus.FOUND, next_begin_offset=49, min_offset=10, max_offset=99, body=b"m"
    )
    brokers.pull_async(server.address, PULL, outcomes.put)

    assert outcomes.get(timeout=PATIENCE_S) == expected
    assert brokers.pull(server.address, PULL) == expected


def test_a_callback_may_pull_again(server: ScriptedServer, brokers: BrokerClient) -> None:
    """A1: this is how pulls are kept going."""
    server.script = lambda peer, request: peer.answer(request, ext_fields=PULLED)
    outcomes: SimpleQueue[object] = SimpleQueue()

    def again(outcome: object) -> None:
        outcomes.put(outcome)
        if outcomes.qsize() < 50:
            brokers.pull_async(server.address, PULL, again)

    brokers.pull_async(server.address, PULL, again)
    for _ in range(50):
        assert isinstance(outcomes.get(timeout=PATIENCE_S), PullResult)


def test_a_refused_pull_is_raised_or_handed_over(server: ScriptedServer, brokers: BrokerClient) -> None:
    """Broker answers: the same class either way."""
    server.script = lambda peer, request: peer.answer(request, ResponseCode.FLOW_CONTROL)
    outcomes: SimpleQueue[object] = SimpleQueue()
    brokers.pull_async(server.address, PULL, outcomes.put)

    assert isinstance(outcomes.get(timeout=PATIENCE_S), SystemBusy)
    with pytest.raises(SystemBusy):
        brokers.pull(server.address, PULL)


def test_a_pull_without_connection_is_handed_over_as_an_error(brokers: BrokerClient) -> None:
    """F3: one callback, always."""
    with ScriptedServer() as gone:
        address = gone.address
    outcomes: SimpleQueue[object] = SimpleQueue()
    brokers.pull_async(address, PULL, outcomes.put)
    brokers.send_batch_async(address, BATCH, SETTINGS, outcomes.put)

    assert isinstance(outcomes.get(timeout=PATIENCE_S), ConnectFailed)
    assert isinstance(outcomes.get(timeout=PATIENCE_S), ConnectFailed)


def test_a_send_that_does_not_fit_into_a_frame_is_handed_over_as_an_error(
    server: ScriptedServer, brokers: BrokerClient
) -> None:
    """F3: one callback, always; a producer may allow larger messages than a frame holds."""
    answer_well(server)
    large = replace(MESSAGE, body=bytes(MAX_FRAME_LENGTH))
    settings = replace(SETTINGS, max_message_bytes=2 * MAX_FRAME_LENGTH)
    outcomes: SimpleQueue[object] = SimpleQueue()
    # The first has no connection yet, and the second has an open one.
    for _ in range(2):
        brokers.send_async(server.address, large, QUEUE, settings, outcomes.put)
        assert isinstance(outcomes.get(timeout=PATIENCE_S), LocalProtocolError)
    with pytest.raises(LocalProtocolError, match="at most 16777216 are accepted"):
        brokers.send(server.address, large, QUEUE, settings)

    assert brokers.send(server.address, MESSAGE, QUEUE, SETTINGS).queue_offset == 41
    assert outcomes.empty()


def test_a_held_pull_may_take_longer_than_a_request(server: ScriptedServer, pool: ChannelPool) -> None:
    """A1: the deadline is what the broker may hold, plus its scan, plus the request time-out."""
    brokers = BrokerClient(pool, SystemClock(), request_timeout_s=0.05)
    held: SimpleQueue[tuple[object, RemotingCommand]] = SimpleQueue()
    server.script = lambda peer, request: held.put((peer, request))
    suspended = PullRequest(
        consumer_group="g",
        queue=QUEUE,
        queue_offset=99,
        sys_flag=PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND,
        suspend_timeout_millis=60_000,
    )
    outcomes: SimpleQueue[object] = SimpleQueue()
    brokers.pull_async(server.address, suspended, outcomes.put)
    peer, request = held.get(timeout=PATIENCE_S)
    with pytest.raises(RequestTimeout):
        brokers.pull(server.address, PULL)
    peer.answer(request, ResponseCode.PULL_NOT_FOUND, ext_fields=PULLED)  # type: ignore[attr-defined]

    outcome = outcomes.get(timeout=PATIENCE_S)
    assert isinstance(outcome, PullResult)
    assert outcome.status is PullStatus.NO_NEW_MSG


def test_a_held_pull_is_given_up_only_after_the_broker_s_scan(server: ScriptedServer) -> None:
    """A1: golden fact 10: a suspension of 2 s ended after 2.7 and 6.4 s, because brokers look every 5 s."""
    clock = FakeClock()
    suspended = replace(PULL, sys_flag=PULL.sys_flag | PullSysFlag.SUSPEND, suspend_timeout_millis=2000)
    outcomes: SimpleQueue[object] = SimpleQueue()
    server.script = lambda _peer, _request: None
    with ChannelPool(clock) as pool:
        BrokerClient(pool, clock, request_timeout_s=1.0).pull_async(server.address, suspended, outcomes.put)
        channel = pool.get(server.address, Deadline.after(clock, 1.0))
        clock.advance(2 + 5 + 0.9)
        channel.expire_overdue()
        assert outcomes.empty()
        clock.advance(0.2)
        channel.expire_overdue()

    assert isinstance(outcomes.get(timeout=PATIENCE_S), RequestTimeout)


def test_sends_with_a_callback_report_results_and_refusals(
    server: ScriptedServer, brokers: BrokerClient
) -> None:
    """G2: errors come as values."""
    outcomes: SimpleQueue[object] = SimpleQueue()
    answer_well(server)
    brokers.send_async(server.address, MESSAGE, QUEUE, SETTINGS, outcomes.put)
    assert getattr(outcomes.get(timeout=PATIENCE_S), "queue_offset", None) == 41

    server.script = lambda peer, request: peer.answer(request, ResponseCode.MESSAGE_ILLEGAL, remark="too big")
    brokers.send_batch_async(server.address, BATCH, SETTINGS, outcomes.put)
    assert "too big" in str(outcomes.get(timeout=PATIENCE_S))

    server.script = lambda peer, request: peer.answer(request)
    brokers.send_async(server.address, MESSAGE, QUEUE, SETTINGS, outcomes.put)
    assert isinstance(outcomes.get(timeout=PATIENCE_S), RemoteProtocolError)


def test_a_condition_is_checked_again_on_the_next_connection(
    brokers: BrokerClient, pool: ChannelPool, server: ScriptedServer
) -> None:
    """A4: the broker at the address may have restarted as an older version."""
    wanted = build_subscription("orders", "a > 5", sub_version=0, expression_type="SQL92")
    other = replace(wanted, topic="payments")
    for subscription in (wanted, wanted, other, wanted):
        brokers.check_subscription(server.address, "me", "g", subscription)
    assert server.requests.qsize() == 2

    channel = pool.get(server.address, Deadline.after(SystemClock(), PATIENCE_S))
    server.next_peer().close()
    wait_until(lambda: not channel.is_open, reason="The end of the connection")
    server.script = lambda peer, request: peer.answer(request, ResponseCode.SUBSCRIPTION_PARSE_FAILED)
    with pytest.raises(ExpressionInvalid):
        brokers.check_subscription(server.address, "me", "g", wanted)


def test_another_broker_is_not_asked_about_a_condition(pool: ChannelPool) -> None:
    """A7: its refusal would end the query."""
    wanted = build_subscription("orders", "a > 5", sub_version=0, expression_type="SQL92")
    with ScriptedServer(broker_name="broker-b") as server, pytest.raises(WrongBroker):
        BrokerClient(pool, SystemClock(), PATIENCE_S).check_subscription(
            server.address, "me", "g", wanted, broker_name="broker-a"
        )
    assert server.requests.empty()
