"""Requests from the broker: what reaches the member, and what the broker is answered."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from broker_sim.bodies import encode_offset_table
from pyspark_rocketmq.client.channel import Channel
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.group.requests import ClientRemotingProcessor
from pyspark_rocketmq.model import MessageExt, MessageQueue
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import ONEWAY_FLAG, RemotingCommand, SerializeType, decode_frame
from pyspark_rocketmq.wire.fastjson import decode_body, read_object
from pyspark_rocketmq.wire.messages import StoredMessage
from pyspark_rocketmq.wire.properties import encode_properties
from pyspark_rocketmq.wire.requests.bodies import offsets_from_json
from pyspark_rocketmq.wire.requests.client_info import (
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
)
from tests.helpers.golden import recorded_command
from tests.helpers.scripted_server import Peer, ScriptedServer
from tests.helpers.stored_messages import encode_stored_message
from tests.helpers.wait import PATIENCE_S, wait_until

RUNNING = decode_body(ConsumerRunningInfo, recorded_command(53, is_response=True).body)
OFFSETS = {MessageQueue("FrOrder", "broker-a", queue_id): 2 for queue_id in (1, 0)}
CONSUMED = ConsumeMessageDirectlyResult(
    consume_result=ConsumeResult.CR_SUCCESS, order=True, spent_time_mills=1
)
OTHER_GROUP = "not-ours"


class Member(ClientRemotingProcessor):
    """Notes what it gets and answers what Java answered in the recording; of one group it is no member."""

    def __init__(self, namespace: str | None = None) -> None:
        store = MemoryOffsetStore("requests", clock=SystemClock())
        options = {
            "nameServers": "ns:9876",
            "topic": "FrOrder",
            "consumerGroup": "g",
            "offsetStore": store.spec,
        }
        if namespace is not None:
            options["namespace"] = namespace
        super().__init__(ReadOptions.parse(options), store, "progress", SystemClock())
        self.told: list[tuple[object, ...]] = []
        self.has_been_told = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.error: Exception | None = None

    def consumer_ids_changed(self, consumer_group: str) -> None:
        self._note("changed", consumer_group)

    def reset_offsets(
        self, consumer_group: str, topic: str, next_offsets: Mapping[MessageQueue, int]
    ) -> None:
        self._note("reset", consumer_group, topic, dict(next_offsets))

    def next_offsets(self, consumer_group: str, topic: str) -> Mapping[MessageQueue, int]:
        self._note("status", consumer_group, topic)
        return {queue: offset for queue, offset in OFFSETS.items() if queue.topic == topic}

    def running_info(self, consumer_group: str) -> ConsumerRunningInfo | None:
        self._note("info", consumer_group)
        return None if consumer_group == OTHER_GROUP else RUNNING

    def consume_directly(
        self, consumer_group: str, message: MessageExt
    ) -> ConsumeMessageDirectlyResult | None:
        self._note("consume", consumer_group, message)
        return None if consumer_group == OTHER_GROUP else CONSUMED

    def _note(self, *what: object) -> None:
        self.told.append(what)
        self.has_been_told.set()
        self.may_go_on.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error


@pytest.fixture
def member() -> Member:
    return Member()


@pytest.fixture
def channel(server: ScriptedServer, member: Member, soon: Deadline) -> Iterator[Channel]:
    with ChannelPool(SystemClock(), handler_for=lambda _: member) as pool:
        yield pool.get(server.address, soon)


@pytest.fixture
def broker(server: ScriptedServer, channel: Channel) -> Peer:
    """The broker's end of the connection."""
    return server.next_peer()


def recorded_request(pair_id: int) -> RemotingCommand:
    return decode_frame(recorded_command(pair_id).frame)


@pytest.mark.parametrize("pair_id", [53, 64, 68])
@pytest.mark.parametrize("form", SerializeType)
def test_a_question_is_answered_with_java_s_bytes(
    server: ScriptedServer, broker: Peer, pair_id: int, form: SerializeType
) -> None:
    """A1: requests recorded from a real broker, in both header forms; the body is what Java's client gave."""
    request = replace(recorded_request(pair_id), serialize_type=form)
    broker.send(request)
    answer = server.next_answer()

    assert (answer.code, answer.opaque, answer.serialize_type) == (0, request.opaque, form)
    assert answer.body == recorded_command(pair_id, is_response=True).body


def test_a_member_gets_what_the_broker_wants(server: ScriptedServer, broker: Peer, member: Member) -> None:
    """A1: rebalance, reset, status, info and a message to consume, as values."""
    for pair_id in (236, 123, 64, 53, 68):
        broker.send(replace(recorded_request(pair_id), flag=0))
        assert server.next_answer().code == ResponseCode.SUCCESS
    changed, reset, status, info, consume = member.told

    assert changed[0] == "changed"
    reset_queues = {MessageQueue("FrReset", "broker-a", number): 0 for number in (0, 1)}
    assert reset == ("reset", "FrResetG", "FrReset", reset_queues)
    assert status == ("status", "FrOrderG", "FrOrder")
    assert info == ("info", "FrOrderG")
    assert consume[1] == "FrOrderG"
    message = consume[2]
    assert isinstance(message, MessageExt)
    assert (message.topic, message.broker_name, message.queue_offset) == ("FrOrder", "broker-a", 2)
    assert message.body == b"consume me directly"


def test_a_message_of_the_retry_topic_is_consumed_under_its_own_topic() -> None:
    """D12, E3: ``resetRetryAndNamespace``; positions stay those of the retry queue."""
    broker = MessageQueue("%RETRY%g", "broker-a", 0)
    member = Member("shop")
    body = encode_stored_message(
        StoredMessage(
            topic="%RETRY%shop%g", queue_id=0, queue_offset=7, commit_log_offset=700, body=b"again",
            body_crc=0,
            properties_data=encode_properties({"RETRY_TOPIC": "shop%orders"}), born_timestamp=1,
            born_host="10.0.0.1:1",
            store_timestamp=2, store_host="10.0.0.1:2",
        )
    )  # fmt: skip

    member(replace(recorded_request(68), body=body))

    message = member.told[0][2]
    assert isinstance(message, MessageExt)
    assert (message.topic, message.message_queue) == ("orders", broker)


def test_a_reset_comes_in_two_forms(server: ScriptedServer, broker: Peer, member: Member) -> None:
    """A1: a map, or a list when the operator's tool is written in C++."""
    offsets = {MessageQueue("FrReset", "broker-a", 0): 7}
    in_cpp = b'{"offsetTable":[{"brokerName":"broker-a","offset":7,"queueId":0,"topic":"FrReset"}]}'
    for body in (encode_offset_table(offsets), in_cpp):
        broker.send(replace(recorded_request(123), flag=0, body=body))
        assert server.next_answer().code == ResponseCode.SUCCESS

    assert [told[3] for told in member.told] == [offsets, offsets]


def test_oneway_requests_are_not_answered(server: ScriptedServer, broker: Peer, member: Member) -> None:
    """A1: not even when they fail; the answer that comes next is of the next request."""
    member.error = ValueError("no")
    broker.send(replace(recorded_request(236), flag=ONEWAY_FLAG))
    broker.send(replace(recorded_request(123), flag=ONEWAY_FLAG))
    broker.send(RemotingCommand(code=9999, opaque=71, flag=ONEWAY_FLAG))
    broker.send(RemotingCommand(code=9998, opaque=72))

    assert server.next_answer().opaque == 72
    assert [told[0] for told in member.told] == ["changed", "reset"]


@pytest.mark.parametrize("code", [9999, RequestCode.CHECK_TRANSACTION_STATE, RequestCode.SEND_MESSAGE])
def test_an_unknown_request_is_answered_with_code_3(
    server: ScriptedServer, broker: Peer, channel: Channel, soon: Deadline, code: int
) -> None:
    """A1 ★: never a dropped connection."""
    broker.send(RemotingCommand(code=code, opaque=5))
    answer = server.next_answer()

    assert (answer.code, answer.opaque) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, 5)
    assert channel.request(RemotingCommand(code=34), soon).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    "request_",
    [
        RemotingCommand(code=RequestCode.CONSUME_MESSAGE_DIRECTLY, ext_fields={"consumerGroup": "g"}),
        RemotingCommand(code=RequestCode.GET_CONSUMER_RUNNING_INFO),
        replace(recorded_request(123), flag=0, body=b"[]"),
        replace(recorded_request(68), body=b"\x00\x00\x00\x09garbage"),
    ],
    ids=["no message", "no group", "no offsets", "garbage"],
)
def test_a_request_that_makes_no_sense_is_answered_with_an_error(
    server: ScriptedServer, broker: Peer, channel: Channel, soon: Deadline, request_: RemotingCommand
) -> None:
    """A1 ★: never a dropped connection."""
    broker.send(request_)

    assert server.next_answer().code == ResponseCode.SYSTEM_ERROR
    assert channel.request(RemotingCommand(code=34), soon).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("pair_id", [53, 68])
def test_a_request_for_another_group_is_answered_as_unknown(
    server: ScriptedServer, broker: Peer, pair_id: int
) -> None:
    """A1: in the words of Java's client."""
    request = recorded_request(pair_id)
    broker.send(replace(request, ext_fields={**request.ext_fields, "consumerGroup": OTHER_GROUP}))
    answer = server.next_answer()

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"The Consumer Group <{OTHER_GROUP}> not exist in this consumer"


def test_stacks_are_added_when_asked_for(server: ScriptedServer, broker: Peer) -> None:
    """A1: pair 62; those of this process's threads."""
    broker.send(recorded_request(62))
    info = decode_body(ConsumerRunningInfo, server.next_answer().body)

    assert info.jstack is not None
    assert "rocketmq-requests" in info.jstack
    assert replace(info, jstack=None) == RUNNING


def test_a_member_that_is_slow_holds_up_no_answer_of_ours(
    server: ScriptedServer, broker: Peer, channel: Channel, member: Member, soon: Deadline
) -> None:
    """A1: our requests go on while the listener works on the broker's."""
    member.may_go_on.clear()
    broker.send(recorded_request(68))
    assert member.has_been_told.wait(PATIENCE_S)

    assert channel.request(RemotingCommand(code=34), soon).code == ResponseCode.SUCCESS
    member.may_go_on.set()
    assert server.next_answer().code == ResponseCode.SUCCESS


def test_a_listener_that_is_slow_holds_up_no_news_of_the_broker(
    server: ScriptedServer, broker: Peer, channel: Channel, member: Member
) -> None:
    """D12, B1: members that come and go, and resets, are reported while it works; one message after another."""
    member.may_go_on.clear()
    for _ in range(2):
        broker.send(recorded_request(68))
    assert member.has_been_told.wait(PATIENCE_S)
    for pair_id in (236, 123):
        broker.send(replace(recorded_request(pair_id), flag=ONEWAY_FLAG))

    wait_until(lambda: len(member.told) == 2)
    assert [told[0] for told in member.told] == ["consume", "changed"]
    member.may_go_on.set()
    assert [server.next_answer().opaque for _ in range(2)] == [recorded_request(68).opaque] * 2
    wait_until(lambda: len(member.told) == 4)
    assert sorted(str(told[0]) for told in member.told) == ["changed", "consume", "consume", "reset"]


def test_a_member_that_raises_is_answered_for(
    server: ScriptedServer, broker: Peer, channel: Channel, member: Member, soon: Deadline
) -> None:
    """A1: with the error's text, and the connection goes on."""
    member.error = ValueError("out of order")
    broker.send(recorded_request(68))
    answer = server.next_answer()

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "out of order" in str(answer.remark)
    assert channel.request(RemotingCommand(code=34), soon).code == ResponseCode.SUCCESS


def test_the_member_knows_no_namespace() -> None:
    """A6: groups, topics, queues and messages arrive without it; offsets leave with it."""
    member = Member("shop")
    full = MessageQueue("shop%FrOrder", "broker-a", 0)
    fields = {"consumerGroup": "shop%g", "group": "shop%g", "topic": "shop%FrOrder"}
    reset = replace(recorded_request(123), body=encode_offset_table({full: 5}))
    member(replace(reset, ext_fields={**reset.ext_fields, **fields}))
    member(RemotingCommand(code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext_fields=fields))
    status = member(RemotingCommand(code=RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext_fields=fields))

    assert member.told[0] == ("reset", "g", "FrOrder", {MessageQueue("FrOrder", "broker-a", 0): 5})
    assert member.told[1:] == [("changed", "g"), ("status", "g", "FrOrder")]
    assert status is not None
    assert offsets_from_json(read_object(status.body, "status"), "messageQueueTable")[full] == 2


def test_results_name_what_the_listener_did() -> None:
    """A1: mqadmin prints it."""
