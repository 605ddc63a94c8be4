from __future__ import annotations

import json

import pytest

from broker_sim.layout import Host
from broker_sim.nameserver import NameServer
from broker_sim.topics import TopicConfig, TopicTable
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.json_quirks import loads
from pyspark_rocketmq.wire.route import decode_route
from tests.broker_sim.exchange import ask, request


@pytest.fixture
def tables() -> dict[str, TopicTable]:
    return {name: TopicTable(8) for name in ("broker-a", "broker-b")}


@pytest.fixture
def name_server(tables: dict[str, TopicTable]) -> NameServer:
    name_server = NameServer()
    for number, (name, topics) in enumerate(tables.items()):
        name_server.register(name, Host("127.0.0.1", 10911 + number), topics)
    return name_server


def test_a_topic_is_routed_to_the_brokers_that_have_it_from_the_moment_it_is_made(
    name_server: NameServer, tables: dict[str, TopicTable]
) -> None:
    """A2: new queues and brokers appear in the next route."""
    tables["broker-b"].put(TopicConfig(name="T", read_queue_nums=3, write_queue_nums=2, perm=4))
    route = decode_route(ask(name_server, request(105, {"topic": "T"})).body)
    assert [(each.broker_name, each.master) for each in route.brokers] == [("broker-b", "127.0.0.1:10912")]
    (queues,) = route.queues
    assert (queues.broker_name, queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (
        "broker-b",
        3,
        2,
        4,
    )
    tables["broker-a"].put(TopicConfig(name="T", read_queue_nums=1, write_queue_nums=1))
    route = decode_route(ask(name_server, request(105, {"topic": "T"})).body)
    assert len(route.subscribe_queues("T")) == 4


def test_the_template_topic_has_8_queues_that_can_be_inherited(name_server: NameServer) -> None:
    route = decode_route(ask(name_server, request(105, {"topic": "TBW102"})).body)
    assert {(each.read_queue_nums, each.perm) for each in route.queues} == {(8, 7)}


def test_an_unknown_topic_has_no_route(name_server: NameServer) -> None:
    answer = ask(name_server, request(105, {"topic": "NoSuch"}))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark is not None
    assert answer.remark.startswith("No topic route info in name server for the topic: NoSuch")


def test_a_stopped_broker_leaves_every_route(name_server: NameServer) -> None:
    name_server.unregister("broker-a")
    route = decode_route(ask(name_server, request(105, {"topic": "TBW102"})).body)
    assert [each.broker_name for each in route.brokers] == ["broker-b"]
    name_server.unregister("broker-b")
    assert ask(name_server, request(105, {"topic": "TBW102"})).code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize(
    ("version", "accept", "is_standard"),
    [(333, None, False), (400, None, False), (401, None, True), (333, "true", True), (333, "false", False)],
)
def test_old_clients_get_bare_integer_keys(
    name_server: NameServer, version: int, accept: str | None, is_standard: bool
) -> None:
    """A2: JSON with bare integer keys is what clients before 4.9.4 receive."""
    fields = {"topic": "TBW102", "acceptStandardJsonOnly": accept}
    body = ask(name_server, request(105, fields, version=version)).body
    assert (b'{"0":"127.0.0.1:10911"}' in body) is is_standard
    assert (b'{0:"127.0.0.1:10911"}' in body) is not is_standard
    assert len(decode_route(body).brokers) == 2


def test_cluster_information_always_has_bare_integer_keys(name_server: NameServer) -> None:
    body = ask(name_server, request(RequestCode.GET_BROKER_CLUSTER_INFO)).body
    with pytest.raises(json.JSONDecodeError):
        json.loads(body)
    info = loads(body)
    assert info["clusterAddrTable"] == {"DefaultCluster": ["broker-a", "broker-b"]}
    assert info["brokerAddrTable"]["broker-b"]["brokerAddrs"] == {"0": "127.0.0.1:10912"}


def test_other_requests_are_not_supported_and_nameless_ones_an_error(name_server: NameServer) -> None:
    assert ask(name_server, request(9999)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert ask(name_server, request(105)).code == ResponseCode.SYSTEM_ERROR
