"""Routes in both of the name server's spellings."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_sim.bodies import encode_route
from pyspark_rocketmq.display import peer_text
from pyspark_rocketmq.errors import RemoteProtocolError, StaticTopic
from pyspark_rocketmq.model import BrokerAddress, BrokerData, MessageQueue, QueueData, TopicRoute
from pyspark_rocketmq.wire.requests.topics import MAX_QUEUES, decode_route
from tests.helpers.golden import RecordedCommand, recorded_command, recorded_commands

RECORDED = [command for command in recorded_commands(105) if command.is_response and command.body]
OLD_FORM = recorded_command(230, is_response=True).body
NEW_FORM = recorded_command(229, is_response=True).body

names = st.text(max_size=10)
flags = st.integers(0, (1 << 31) - 1)
counts = st.integers(0, MAX_QUEUES // 4)
brokers = st.builds(
    BrokerData,
    broker_name=names,
    cluster=names,
    addresses=st.dictionaries(
        st.integers(0, (1 << 63) - 1), names.map(peer_text).map(BrokerAddress), max_size=3
    ),
)
queues = st.builds(
    QueueData,
    broker_name=names,
    read_queue_nums=counts,
    write_queue_nums=counts,
    perm=flags,
    topic_sys_flag=flags,
)
routes = st.builds(
    TopicRoute,
    brokers=st.lists(brokers, max_size=3).map(tuple),
    queues=st.lists(queues, max_size=3).map(tuple),
    order_topic_conf=st.none() | st.sampled_from(["a:4", "a:4;b:8", "订单:1;"]),
)


def route_json(**fields: object) -> bytes:
    return json.dumps(fields).encode()


@pytest.mark.parametrize("command", RECORDED, ids=str)
def test_a_recorded_route_is_read_and_written_byte_for_byte(command: RecordedCommand) -> None:
    """A2."""
    route = decode_route(command.body)

    assert route.brokers[0].broker_name == "broker-a"
    assert route.brokers[0].addresses == {0: "127.0.0.1:20911"}
    assert route.queues[0].broker_name == "broker-a"
    assert encode_route(route, standard_json=b'{"0":' in command.body) == command.body


def test_both_spellings_of_the_broker_ids_mean_the_same() -> None:
    """A2: bare integer keys from servers before 4.9.4 or for clients of a lower version."""
    assert b"{0:" in OLD_FORM
    assert b'{"0":' in NEW_FORM
    assert decode_route(OLD_FORM) == decode_route(NEW_FORM)
    assert decode_route(OLD_FORM).subscribe_queues("T") == (
        MessageQueue("T", "broker-a", 0),
        MessageQueue("T", "broker-a", 1),
    )


@pytest.mark.parametrize("body", [OLD_FORM, NEW_FORM], ids=["old", "new"])
def test_every_truncation_raises(body: bytes) -> None:
    for end in range(len(body)):
        with pytest.raises(RemoteProtocolError):
            decode_route(body[:end])


@given(routes, st.booleans())
def test_any_route_is_read_back(route: TopicRoute, standard_json: bool) -> None:
    assert decode_route(encode_route(route, standard_json=standard_json)) == route


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ({"topicSynFlag": 3}, 3),
        ({"topicSysFlag": 4}, 4),
        ({"topicSysFlag": 4, "topicSynFlag": 3}, 4),
        ({}, 0),
    ],
    ids=str,
)
def test_the_old_spelling_of_the_topic_flag_is_read(spelling: dict[str, Any], expected: int) -> None:
    """A2: old servers write topicSynFlag."""
    queue = {"brokerName": "b", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, **spelling}

    assert decode_route(route_json(queueDatas=[queue])).queues[0].topic_sys_flag == expected


def test_fields_that_newer_servers_add_or_omit_do_not_matter() -> None:
    body = (
        b'{"brokerDatas":[{"brokerName":"b","brokerAddrs":{1:"s:1",0:"m:1"},"zoneName":"z"}],'
        b'"filterServerTable":{"x":[]},"orderTopicConf":"","queueDatas":null,'
        b'"topicQueueMappingByBroker":{}}'
    )

    route = decode_route(body)

    assert route.address_of("b") == "m:1"
    assert route.brokers[0].cluster == ""
    assert route.queues == ()
    assert route.order_topic_conf is None
    assert decode_route(b"{}") == TopicRoute(brokers=(), queues=())


def test_a_broker_that_waits_for_its_controller_is_no_replica() -> None:
    """L3: it has the id -1, and its log may be another one."""
    broker = {"brokerName": "b", "brokerAddrs": {"-1": "waits:1", "0": "m:1", "3": "s:1"}}
    route = decode_route(route_json(brokerDatas=[broker]))

    assert route.brokers[0].addresses == {0: "m:1", 3: "s:1"}


def test_an_order_configuration_defines_the_queues_to_publish_to() -> None:
    """G6."""
    route = decode_route(route_json(orderTopicConf="b:1;a:2"))

    assert [tuple(queue[1:]) for queue in route.publish_queues("T")] == [("b", 0), ("a", 0), ("a", 1)]


QUEUE = {"brokerName": "b", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}


@pytest.mark.parametrize(
    "fields",
    [
        {"brokerDatas": {}},
        {"brokerDatas": ["b"]},
        {"brokerDatas": [{"brokerAddrs": {"0": "a:1"}}]},
        {"brokerDatas": [{"brokerName": "b", "brokerAddrs": ["a:1"]}]},
        {"brokerDatas": [{"brokerName": "b", "brokerAddrs": {"x": "a:1"}}]},
        {"brokerDatas": [{"brokerName": "b", "brokerAddrs": {"": "a:1"}}]},
        {"brokerDatas": [{"brokerName": "b", "brokerAddrs": {"0": 1}}]},
        {"brokerDatas": [{"brokerName": "b", "brokerAddrs": {"0": None}}]},
        {"brokerDatas": [{"brokerName": "b", "cluster": {}}]},
        {"queueDatas": [{**QUEUE, "brokerName": None}]},
        {"queueDatas": [{**QUEUE, "readQueueNums": "x"}]},
        {"queueDatas": [{**QUEUE, "readQueueNums": -1}]},
        {"queueDatas": [{**QUEUE, "writeQueueNums": -1}]},
        {"queueDatas": [{**QUEUE, "perm": None}]},
        {"queueDatas": [{**QUEUE, "perm": {}}]},
        {"orderTopicConf": 1},
        {"orderTopicConf": "a"},
        {"orderTopicConf": "a:x"},
        {"orderTopicConf": "a:-1"},
        {"orderTopicConf": "a:1:2"},
        {"orderTopicConf": ";a:1"},
    ],
    ids=str,
)
def test_a_route_of_the_wrong_shape_raises(fields: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError, match="TopicRouteData"):
        decode_route(route_json(**fields))


@pytest.mark.parametrize("count", [MAX_QUEUES + 1, 1 << 31, (1 << 63) - 1])
@pytest.mark.parametrize("field", ["readQueueNums", "writeQueueNums"])
def test_a_route_of_more_queues_than_a_topic_has_is_refused_before_they_are_made(
    field: str, count: int
) -> None:
    """H9: 240 bytes would take gigabytes; the error names topic, broker and number."""
    body = route_json(queueDatas=[{**QUEUE, "brokerName": "broker-b"}, {**QUEUE, field: count}])

    with pytest.raises(
        RemoteProtocolError, match=rf"'orders' .* {count + 1} queues \({field}\), {count} .* 'b'"
    ):
        decode_route(body, "orders")


def test_queues_are_counted_over_all_brokers() -> None:
    """H9: many small numbers are as many as a large one."""
    half = {**QUEUE, "readQueueNums": MAX_QUEUES // 2}

    assert len(decode_route(route_json(queueDatas=[half, half])).subscribe_queues("T")) == MAX_QUEUES
    with pytest.raises(RemoteProtocolError, match=f"{MAX_QUEUES + 1} queues"):
        decode_route(route_json(queueDatas=[half, half, QUEUE]))


@pytest.mark.parametrize("order", ["a:999999999", f"a:1;b:{MAX_QUEUES}", "a:999;" * 999])
def test_an_order_configuration_of_too_many_queues_is_refused(order: str) -> None:
    """H9."""
    with pytest.raises(RemoteProtocolError, match=r"queues \(orderTopicConf\)"):
        decode_route(route_json(orderTopicConf=order), "orders")


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | names,
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["brokerDatas", "queueDatas", "brokerName", "brokerAddrs", "orderTopicConf", "perm", "0"]),
        inner,
    ),
    max_leaves=12,
))  # fmt: skip
def test_any_json_raises_nothing_but_remote_protocol_errors(
    value: dict[str, Any] | list[int | str | None] | None,
) -> None:
    try:
        decode_route(json.dumps(value).encode())
    except RemoteProtocolError as exc:
        assert str(exc)  # noqa: PT017 - most inputs raise, some do not


def test_an_address_has_no_characters_that_a_log_must_not_show() -> None:
    broker = {"brokerName": "a", "cluster": "c", "brokerAddrs": {"0": "h:1\nERROR forged\x1b[2J"}}

    route = decode_route(route_json(brokerDatas=[broker], queueDatas=[]))

    assert route.address_of("a") == "h:1\\nERROR forged\\x1b[2J"


def test_a_static_topic_is_refused_by_name_with_its_brokers() -> None:
    """L9: its queues may be remapped at any moment, and what a queue id means with them."""
    mapped = {"broker-a": {"currIdMap": {"0": 0}, "totalQueues": 2}, "broker-b": {"currIdMap": {"1": 0}}}

    with pytest.raises(StaticTopic, match=r"orders is a static topic: .*\(broker-a, broker-b\).*updateTopic"):
        decode_route(route_json(topicQueueMappingByBroker=mapped), "orders")


@pytest.mark.parametrize("mapped", [None, {}])
def test_a_route_without_a_mapping_is_an_ordinary_topic_s(mapped: object) -> None:
    """L9: brokers from 5 on write the field for every topic."""
    assert decode_route(route_json(topicQueueMappingByBroker=mapped), "orders") == TopicRoute(
        brokers=(), queues=()
    )
