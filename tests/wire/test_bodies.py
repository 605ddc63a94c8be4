"""Bodies against Java's text, and what malformed ones do."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import pytest
from _pytest.mark import ParameterSet
from hypothesis import given
from hypothesis import strategies as st

from broker_sim.bodies import (
    dumps_standard,
    encode_consumer_list,
    encode_lock_response,
    encode_offset_table,
    encode_topic_stats,
)
from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import ConsumeFromWhere, MessageModel, MessageQueue, QueueBounds
from pyspark_rocketmq.wire.fastjson import as_object, decode_body, dumps_java, from_json
from pyspark_rocketmq.wire.requests import bodies
from pyspark_rocketmq.wire.requests import topics as topic_stats
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, ConsumeType, HeartbeatData, LockBatchRequest
from pyspark_rocketmq.wire.requests.topics import decode_topic_stats
from pyspark_rocketmq.wire.subscription import SubscriptionData, build_subscription
from tests.helpers.golden import golden, recorded_command, recorded_commands

FILTER = golden("filter.json")
SUBSCRIPTIONS = [case for case in [*FILTER["buildSubscriptionData"], *FILTER["build"]] if "error" not in case]
ODD_PAIRS = {95, 97, 192, 193}
"""Heartbeats with an SQL subscription and of version 2; lock requests without a usable body."""
DECODERS = {
    "heartbeat": partial(decode_body, HeartbeatData),
    "lock request": partial(decode_body, LockBatchRequest),
    "lock response": bodies.decode_lock_response,
    "consumer list": bodies.decode_consumer_list,
    "topic stats": decode_topic_stats,
    "offset table": bodies.decode_offset_table,
}

names = st.text(max_size=12)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
queues = st.builds(MessageQueue, names, names, int32)
subscriptions = st.builds(
    SubscriptionData,
    topic=names,
    sub_string=names,
    tags_set=st.frozensets(names, max_size=3),
    code_set=st.frozensets(int32, max_size=3),
    sub_version=int64,
    expression_type=names,
)
consumers = st.builds(
    ConsumerData,
    group_name=names,
    consume_type=st.sampled_from(ConsumeType),
    message_model=st.sampled_from(MessageModel),
    consume_from_where=st.sampled_from(ConsumeFromWhere),
    subscriptions=st.lists(subscriptions, max_size=3).map(tuple),
    unit_mode=st.booleans(),
)
heartbeats = st.builds(
    HeartbeatData,
    client_id=names,
    consumers=st.lists(consumers, max_size=3).map(tuple),
    producers=st.lists(names, max_size=3).map(tuple),
)
lock_requests = st.builds(
    LockBatchRequest,
    consumer_group=names,
    client_id=names,
    queues=st.frozensets(queues, max_size=4),
    only_this_broker=st.booleans(),
)
T = TypeVar("T")

stats = st.dictionaries(
    queues,
    st.builds(QueueBounds, min_offset=int64, max_offset=int64, last_update_timestamp=int64),
    max_size=4,
)


body_fields = st.sampled_from(
    [
        *("clientID", "consumerDataSet", "producerDataSet", "groupName"),
        *("clientId", "consumerGroup", "mqSet", "lockOKMQSet", "consumerIdList"),
        *("offsetTable", "topic", "brokerName", "queueId", "offset"),
    ]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(body_fields, inner, max_size=5),
    max_leaves=8,
)


def recorded(request_code: int, *, is_response: bool) -> list[ParameterSet]:
    return [
        pytest.param(command.body, id=str(command))
        for command in recorded_commands(request_code)
        if command.is_response == is_response
        and command.is_body_whole
        and command.body
        and command.pair_id not in ODD_PAIRS
    ]


def same_json(left: bytes, right: bytes) -> bool:
    """Equal but for the order of what Java keeps in sets."""
    return bool(json.loads(left, object_hook=unordered) == json.loads(right, object_hook=unordered))


def unordered(members: dict[str, Any]) -> dict[str, Any]:
    return {
        name: sorted(value, key=json.dumps) if isinstance(value, list) else value
        for name, value in members.items()
    }


class TestHeartbeat:
    def test_java_s_heartbeat_is_written_byte_for_byte(self) -> None:
        """A3."""
        heartbeat = HeartbeatData(
            client_id="127.0.0.1@1#2",
            consumers=(
                ConsumerData(
                    group_name="GroupG",
                    subscriptions=(build_subscription("TopicT", "a||b||c", sub_version=1),),
                ),
            ),
            producers=("GroupP",),
        )

        assert dumps_java(heartbeat).decode() == FILTER["heartbeat_json"]
        assert decode_body(HeartbeatData, FILTER["heartbeat_json"].encode()) == heartbeat

    @pytest.mark.parametrize("body", recorded(34, is_response=False))
    def test_a_recorded_heartbeat_comes_back_unchanged(self, body: bytes) -> None:
        """A3: push, lite-pull and producer clients."""
        assert same_json(dumps_java(decode_body(HeartbeatData, body)), body)

    def test_a_recorded_sql_subscription_is_read(self) -> None:
        """A4."""
        heartbeat = decode_body(HeartbeatData, recorded_command(95).body)

        by_topic = {item.topic: item for item in heartbeat.consumers[0].subscriptions}
        assert by_topic["FrSql"].expression_type == "SQL92"
        assert by_topic["FrSql"].sub_string == "a >>> 5"

    @given(heartbeats)
    def test_any_heartbeat_is_read_back(self, heartbeat: HeartbeatData) -> None:
        assert decode_body(HeartbeatData, dumps_java(heartbeat)) == heartbeat

    @pytest.mark.parametrize("case", SUBSCRIPTIONS, ids=lambda case: f"{case['expr']!a}-{case.get('type')}")
    def test_a_subscription_has_java_s_json(self, case: dict[str, Any]) -> None:
        """A4."""
        expected = json.loads(case["json"])
        subscription = build_subscription(
            "TopicT", case["expr"], sub_version=1_700_000_000_000, expression_type=case.get("type", "TAG")
        )

        written = json.loads(dumps_java(subscription))

        assert unordered(written) == unordered(expected)
        assert list(written) == list(expected)
        assert from_json(SubscriptionData, as_object(expected, "test")) == subscription

    def test_fields_that_other_clients_leave_out_have_java_s_defaults(self) -> None:
        body = b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":null}],"x":1}'

        heartbeat = decode_body(HeartbeatData, body)

        assert heartbeat == HeartbeatData(client_id="c", consumers=(ConsumerData(group_name="G"),))

    @pytest.mark.parametrize(
        "deprecated",
        [
            "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
            "CONSUME_FROM_MIN_OFFSET",
            "CONSUME_FROM_MAX_OFFSET",
        ],
    )
    def test_a_deprecated_start_means_the_last_offset_as_in_java(self, deprecated: str) -> None:
        """F2."""
        body = json.dumps(
            {"clientID": "c", "consumerDataSet": [{"groupName": "G", "consumeFromWhere": deprecated}]}
        ).encode()

        consumer = decode_body(HeartbeatData, body).consumers[0]

        assert consumer.consume_from_where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET

    @pytest.mark.parametrize(
        "consumer",
        [
            {},
            {"groupName": {}},
            {"groupName": "G", "messageModel": 7},
            {"groupName": "G", "consumeType": True},
            {"groupName": "G", "consumeFromWhere": {}},
            {"groupName": "G", "unitMode": "yes"},
            {"groupName": "G", "subscriptionDataSet": {}},
            {"groupName": "G", "subscriptionDataSet": [1]},
            {"groupName": "G", "subscriptionDataSet": [{"topic": "T"}]},
            {"groupName": "G", "subscriptionDataSet": [{"topic": "T", "subString": "*", "tagsSet": [{}]}]},
            {"groupName": "G", "subscriptionDataSet": [{"topic": "T", "subString": "*", "codeSet": ["1.9"]}]},
        ],
        ids=str,
    )
    def test_a_heartbeat_of_the_wrong_shape_raises_and_names_the_place(
        self, consumer: dict[str, Any]
    ) -> None:
        body = json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode()

        with pytest.raises(RemoteProtocolError, match=r"HeartbeatData\.consumerDataSet"):
            decode_body(HeartbeatData, body)


class TestScalarsOfOtherClients:
    """What RocketMQ 5.3.3 made of these texts (``RemotingSerializable.decode``, fastjson 1.2.83)."""

    def subscription(self, **fields: str) -> SubscriptionData:
        written = {"topic": '"T"', "subString": '"a"', **fields}
        text = ",".join(f'"{name}":{value}' for name, value in written.items())
        body = (
            f'{{"clientID":"c","consumerDataSet":[{{"groupName":"G","subscriptionDataSet":[{{{text}}}]}}]}}'
        )
        return decode_body(HeartbeatData, body.encode()).consumers[0].subscriptions[0]

    def consumer(self, field: str, value: str) -> ConsumerData:
        body = f'{{"clientID":"c","consumerDataSet":[{{"groupName":"G","{field}":{value}}}]}}'
        return decode_body(HeartbeatData, body.encode()).consumers[0]

    def test_a_go_client_s_tags_are_read(self) -> None:
        """A4: it writes their hash codes as texts."""
        body = (
            b'{"clientID":"10.0.0.1@7","producerDataSet":[],"consumerDataSet":[{"groupName":"G",'
            b'"consumeType":"CONSUME_PASSIVELY","messageModel":"Clustering",'
            b'"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","subscriptionDataSet":[{"classFilterMode":false,'
            b'"topic":"T","subString":"created","tagsSet":["created"],"codeSet":["1028554472"],'
            b'"subVersion":1795396573988,"expressionType":"TAG"}],"unitMode":false}]}'
        )

        consumer = decode_body(HeartbeatData, body).consumers[0]

        assert consumer.message_model is MessageModel.CLUSTERING
        assert consumer.subscriptions == (build_subscription("T", "created", sub_version=1795396573988),)

    @pytest.mark.parametrize(
        ("written", "codes"),
        [
            ('["112785"]', {112785}),
            ("[1.9]", {1}),
            ("[true]", {1}),
            ('["1,234"]', {1234}),
            ('["+5"]', {5}),
            ('["-5"]', {-5}),
            ('[null,3,"","null"]', {3}),
        ],
    )
    def test_whole_numbers_in_a_list(self, written: str, codes: set[int]) -> None:
        assert self.subscription(codeSet=written).code_set == codes

    @pytest.mark.parametrize(
        ("written", "version"), [('"5"', 5), ("5.7", 5), ("true", 1), ("1e3", 1000), ('""', 0), ('"null"', 0)]
    )
    def test_a_whole_number(self, written: str, version: int) -> None:
        assert self.subscription(subVersion=written).sub_version == version

    @pytest.mark.parametrize("written", ['"x"', '"5.7"', '" 5 "', '"1e3"', "[]", "{}", '"+"', "1e999"])
    def test_a_field_that_is_no_whole_number_is_refused_by_name(self, written: str) -> None:
        with pytest.raises(RemoteProtocolError, match="subVersion"):
            self.subscription(subVersion=written)

    @pytest.mark.parametrize(("written", "text"), [("5", "5"), ("true", "true"), ("1.5", "1.5")])
    def test_a_text(self, written: str, text: str) -> None:
        subscription = self.subscription(subString=written, tagsSet=f"[{written},null]")

        assert subscription.sub_string == text
        assert subscription.tags_set == {text}

    @pytest.mark.parametrize(
        ("written", "flag"),
        [
            *[(text, True) for text in ('"true"', '"TRUE"', '"1"', "1", "1.0", '"Y"', '"T"')],
            *[(text, False) for text in ('"false"', '"0"', "0", "2", '"N"', '"F"', '""', '"null"')],
        ],
    )
    def test_a_boolean(self, written: str, flag: bool) -> None:
        assert self.consumer("unitMode", written).unit_mode is flag

    @pytest.mark.parametrize(
        ("written", "model"),
        [
            ('"Broadcasting"', MessageModel.BROADCASTING),
            ("0", MessageModel.BROADCASTING),
            ("1", MessageModel.CLUSTERING),
            ('"X"', MessageModel.CLUSTERING),
            ('""', MessageModel.CLUSTERING),
        ],
    )
    def test_a_name_of_an_enum(self, written: str, model: MessageModel) -> None:
        assert self.consumer("messageModel", written).message_model is model

    def test_places_in_enums_are_java_s(self) -> None:
        assert self.consumer("consumeType", "2").consume_type is ConsumeType.CONSUME_POP
        start = self.consumer("consumeFromWhere", "4").consume_from_where
        assert start is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET

    @pytest.mark.parametrize("queue_id", ['"3"', "3.0", "3"])
    def test_a_queue(self, queue_id: str) -> None:
        body = (
            f'{{"clientId":1,"consumerGroup":true,"mqSet":[{{"topic":5,"brokerName":true,'
            f'"queueId":{queue_id}}}]}}'
        )

        request = decode_body(LockBatchRequest, body.encode())

        assert request == LockBatchRequest(
            consumer_group="true", client_id="1", queues=frozenset({MessageQueue("5", "true", 3)})
        )

    def test_an_offset(self) -> None:
        body = b'{"offsetTable":{{"brokerName":"b","queueId":"3","topic":"T"}:"7"}}'

        assert bodies.decode_offset_table(body) == {MessageQueue("T", "b", 3): 7}


class TestLocks:
    @pytest.mark.parametrize("body", [*recorded(41, is_response=False), *recorded(42, is_response=False)])
    def test_a_recorded_lock_request_comes_back_unchanged(self, body: bytes) -> None:
        """C1: onlyThisBroker may be missing and then is false."""
        expected = {"onlyThisBroker": False, **json.loads(body)}

        assert same_json(dumps_java(decode_body(LockBatchRequest, body)), json.dumps(expected).encode())

    @pytest.mark.parametrize("body", recorded(41, is_response=True))
    def test_a_recorded_lock_answer_comes_back_unchanged(self, body: bytes) -> None:
        """C1."""
        assert same_json(encode_lock_response(bodies.decode_lock_response(body)), body)

    def test_refused_queues_are_simply_not_in_the_answer(self) -> None:
        """C1: queue 0 belongs to somebody else."""
        asked = decode_body(LockBatchRequest, recorded_command(190).body)
        granted = bodies.decode_lock_response(recorded_command(190, is_response=True).body)

        assert {queue.queue_id for queue in asked.queues} == {0, 1}
        assert granted == {MessageQueue("FrA", "broker-a", 1)}

    def test_a_request_is_written_in_java_s_order(self) -> None:
        request = LockBatchRequest(
            consumer_group="G",
            client_id="c",
            queues=frozenset({MessageQueue("T", "b", 1), MessageQueue("T", "b", 0)}),
        )

        assert dumps_java(request) == (
            b'{"clientId":"c","consumerGroup":"G","mqSet":[{"brokerName":"b","queueId":0,"topic":"T"},'
            b'{"brokerName":"b","queueId":1,"topic":"T"}],"onlyThisBroker":false}'
        )

    @given(lock_requests)
    def test_any_lock_request_and_answer_is_read_back(self, request_: LockBatchRequest) -> None:
        assert decode_body(LockBatchRequest, dumps_java(request_)) == request_
        assert bodies.decode_lock_response(encode_lock_response(request_.queues)) == request_.queues

    def test_a_body_that_java_could_not_read_raises(self) -> None:
        for command in (recorded_command(192), recorded_command(193)):
            with pytest.raises(RemoteProtocolError):
                decode_body(LockBatchRequest, command.body)


class TestConsumerList:
    @pytest.mark.parametrize("body", recorded(38, is_response=True))
    def test_a_recorded_list_comes_back_unchanged(self, body: bytes) -> None:
        """B1."""
        assert encode_consumer_list(bodies.decode_consumer_list(body)) == body

    @given(st.lists(names).map(tuple))
    def test_any_list_is_read_back_in_order_with_its_duplicates(self, client_ids: tuple[str, ...]) -> None:
        """B1."""
        assert bodies.decode_consumer_list(encode_consumer_list(client_ids)) == client_ids

    @pytest.mark.parametrize("body", [b"{}", b'{"consumerIdList":null}'])
    def test_no_list_is_an_empty_list(self, body: bytes) -> None:
        """B4: what that means is decided elsewhere."""
        assert bodies.decode_consumer_list(body) == ()


def outcome(decode: Callable[[bytes], T], body: bytes) -> T | None:
    try:
        return decode(body)
    except RemoteProtocolError:
        return None


class TestTablesByQueue:
    def test_recorded_topic_stats_are_read(self) -> None:
        """A2: object keys."""
        body = recorded_command(71, is_response=True).body

        assert decode_topic_stats(body) == {
            MessageQueue("FrOrder", "broker-a", 1): QueueBounds(
                min_offset=0, max_offset=2, last_update_timestamp=1795207140490
            ),
            MessageQueue("FrOrder", "broker-a", 0): QueueBounds(
                min_offset=0, max_offset=3, last_update_timestamp=1795207184895
            ),
        }

    def test_topic_stats_of_brokers_before_5_3_3_are_read_by_the_same_expression(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A2: they have no rate of puts."""
        body = recorded_command(71, is_response=True).body
        wanted = decode_topic_stats(body)
        monkeypatch.setattr(topic_stats, "read_object", None)

        assert decode_topic_stats(body.replace(b',"topicPutTps":0.1', b"")) == wanted

    def test_topic_stats_are_written_byte_for_byte_as_java_does(self) -> None:
        body = recorded_command(71, is_response=True).body

        written = encode_topic_stats(decode_topic_stats(body))

        # The rate of puts is not kept.
        assert written == body.replace(b'"topicPutTps":0.1', b'"topicPutTps":0.0')

    @pytest.mark.parametrize("pair_id", [120, 122, 123])
    def test_recorded_reset_offsets_come_back_unchanged(self, pair_id: int) -> None:
        """F5: the request to the client and the answer to the administrator."""
        bodies_of_pair = [
            command.body for command in recorded_commands() if command.pair_id == pair_id and command.body
        ]

        assert bodies_of_pair
        for body in bodies_of_pair:
            assert encode_offset_table(bodies.decode_offset_table(body)) == body

    def test_the_list_form_for_cpp_administrators_is_read(self) -> None:
        body = b'{"offsetTable":[{"brokerName":"b","offset":7,"queueId":1,"topic":"T"}]}'

        assert bodies.decode_offset_table(body) == {MessageQueue("T", "b", 1): 7}

    @given(stats)
    def test_any_table_is_read_back(self, table: dict[MessageQueue, QueueBounds]) -> None:
        assert decode_topic_stats(encode_topic_stats(table)) == table
        offsets = {queue: bounds.max_offset for queue, bounds in table.items()}
        assert bodies.decode_offset_table(encode_offset_table(offsets)) == offsets

    @given(stats, st.data())
    def test_a_changed_byte_reads_as_the_same_json_in_another_form_does(
        self, table: dict[MessageQueue, QueueBounds], data: st.DataObject
    ) -> None:
        """Java's own form is read by a way of its own: a blank in front sends it the other way."""
        body = bytearray(encode_topic_stats(table))
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(
            st.sampled_from(b'{}",:-+.0123456789eE \\tn\x00\x1f\x7f\xc3') | st.integers(0, 255)
        )

        assert outcome(decode_topic_stats, bytes(body)) == outcome(decode_topic_stats, b" " + bytes(body))

    def test_keys_that_are_the_text_of_a_queue_are_read_too(self) -> None:
        """Standard JSON has no other way to write them."""
        key = json.dumps({"topic": "T", "brokerName": "b}:{", "queueId": 3})
        body = dumps_standard({"offsetTable": {key: {"minOffset": 1, "maxOffset": 2}}})

        assert decode_topic_stats(body) == {
            MessageQueue("T", "b}:{", 3): QueueBounds(min_offset=1, max_offset=2)
        }

    @pytest.mark.parametrize(
        "body", [b"{}", b'{"offsetTable":{}}', b'{"offsetTable":null,"topicPutTps":0.0}']
    )
    def test_a_topic_without_queues_is_an_empty_table(self, body: bytes) -> None:
        assert decode_topic_stats(body) == {}
        assert bodies.decode_offset_table(body) == {}

    def test_a_thousand_queues_are_read_by_one_expression(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The planner asks for this body in every round; the JSON reader would take four times as long."""
        table = {
            MessageQueue("orders", "broker-a", at): QueueBounds(
                min_offset=at, max_offset=10**12 + at, last_update_timestamp=1_795_207_140_490
            )
            for at in range(1024)
        }
        monkeypatch.setattr(topic_stats, "_decode_any_form", None)

        assert decode_topic_stats(encode_topic_stats(table)) == table

    @pytest.mark.parametrize(
        "table",
        [
            "[]",
            "7",
            '{"a":1}',
            '{0:{"minOffset":0,"maxOffset":1}}',
            '{"\\ud800":{"minOffset":0,"maxOffset":1}}',
            "{{}:1}",
            '{{"brokerName":"b","queueId":0}:{"minOffset":0,"maxOffset":1}}',
            '{{"brokerName":"b","queueId":"x","topic":"T"}:{"minOffset":0,"maxOffset":1}}',
            '{{"brokerName":"b","queueId":{},"topic":"T"}:{"minOffset":0,"maxOffset":1}}',
            '{{"brokerName":null,"queueId":0,"topic":"T"}:{"minOffset":0,"maxOffset":1}}',
            '{{"brokerName":"b","queueId":2147483648,"topic":"T"}:{"minOffset":0,"maxOffset":1}}',
            '{{"brokerName":["b"],"queueId":0,"topic":"T"}:{"minOffset":0,"maxOffset":1}}',
            '{[1]:{"minOffset":0,"maxOffset":1}}',
            '{{"brokerName":"b","queueId":0,"topic":"T"}:{"minOffset":0}}',
            '{{"brokerName":"b","queueId":0,"topic":"T"}:{"minOffset":0,"maxOffset":"x"}}',
            '{{"brokerName":"b","queueId":0,"topic":"T"}:{"minOffset":0,"maxOffset":9223372036854775808}}',
            '{{"brokerName":"b","queueId":0,"topic":"T"}:[0,1]}',
            '{{"brokerName":"b","queueId":0,"topic":"T"}:"x"}',
            '{{"brokerName":"b","queueId":0,"topic":"T"}:null}',
            '{{"brokerName":"b","queueId":0,"topic":"T"}:{{}:1}}',
        ],
    )
    def test_a_table_of_the_wrong_shape_raises(self, table: str) -> None:
        body = f'{{"offsetTable":{table}}}'.encode()

        with pytest.raises(RemoteProtocolError, match=r"offsetTable"):
            decode_topic_stats(body)


@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS.keys())
@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b"7", b'"x"', b"{{}:1}", b"\xff", b"{" * 100_000],
    ids=lambda body: repr(body[:9]),
)
def test_a_body_that_is_no_json_object_raises(decode: Callable[..., Any], body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(body)


@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS.keys())
@given(value=json_values)
def test_any_json_raises_nothing_but_remote_protocol_errors(decode: Callable[..., Any], value: Any) -> None:
    try:
        decode(json.dumps(value).encode())
    except RemoteProtocolError as exc:
        assert str(exc)  # noqa: PT017 - most inputs raise, some do not


@pytest.mark.parametrize(
    ("decode", "body"),
    [
        (DECODERS["heartbeat"], FILTER["heartbeat_json"].encode()),
        (DECODERS["lock request"], recorded_command(190).body),
        (bodies.decode_lock_response, recorded_command(189, is_response=True).body),
        (bodies.decode_consumer_list, recorded_command(35, is_response=True).body),
        (decode_topic_stats, recorded_command(71, is_response=True).body),
        (bodies.decode_offset_table, recorded_command(123).body),
    ],
    ids=DECODERS.keys(),
)
def test_every_truncation_of_a_body_raises(decode: Callable[..., Any], body: bytes) -> None:
    decode(body)

    for end in range(len(body)):
        with pytest.raises(RemoteProtocolError):
            decode(body[:end])
