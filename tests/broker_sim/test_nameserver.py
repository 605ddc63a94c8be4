from __future__ import annotations

import json
from dataclasses import replace

import pytest

from broker_sim.layout import Host
from broker_sim.nameserver import NameServer
from broker_sim.topics import Topic, TopicTable
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.fastjson import loads
from pyspark_rocketmq.wire.requests.topics import decode_route
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
    tables["broker-b"].put(Topic(topic_name="T", read_queue_nums=3, write_queue_nums=2, perm=4))
    route = decode_route(ask(name_server, request(105, {"topic": "T"})).body)
    assert [(each.broker_name, each.master) for each in route.brokers] == [("broker-b", "127.0.0.1:10912")]
    (queues,) = route.queues
    assert (queues.broker_name, queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (
        "broker-b",
        3,
        2,
        4,
    )
    tables["broker-a"].put(Topic(topic_name="T", read_queue_nums=1, write_queue_nums=1))
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


def _topic_list(name_server: NameServer, code: int, **fields: str) -> list[str]:
    topics: list[str] = loads(ask(name_server, request(code, fields)).body)["topicList"]
    return topics


def test_all_topics_are_listed_or_those_of_a_cluster(
    name_server: NameServer, tables: dict[str, TopicTable]
) -> None:
    """206 and 224: what mqadmin's topicList shows."""
    tables["broker-b"].put(Topic(topic_name="T", read_queue_nums=1, write_queue_nums=1))
    assert _topic_list(name_server, 206) == ["T", "TBW102"]
    assert _topic_list(name_server, 224, cluster="DefaultCluster") == ["T", "TBW102"]
    assert _topic_list(name_server, 224, cluster="Other") == []
    name_server.unregister("broker-b")
    assert _topic_list(name_server, 206) == ["TBW102"]


@pytest.mark.parametrize("cluster", [{}, {"clusterName": ""}, {"clusterName": "DefaultCluster"}])
def test_a_deleted_topic_comes_back_when_a_broker_has_it_again(
    name_server: NameServer, tables: dict[str, TopicTable], cluster: dict[str, str]
) -> None:
    """216: gone from routes and lists while the broker only keeps it."""
    tables["broker-a"].put(Topic(topic_name="T", read_queue_nums=1, write_queue_nums=1))
    assert ask(name_server, request(216, {"topic": "T", **cluster})).code == ResponseCode.SUCCESS
    assert name_server.route("T") is None
    assert _topic_list(name_server, 206) == ["TBW102"]
    tables["broker-a"].put(Topic(topic_name="T", read_queue_nums=2, write_queue_nums=2))
    assert name_server.route("T") is not None


def test_a_deleted_topic_comes_back_when_its_broker_registers_again(
    name_server: NameServer, tables: dict[str, TopicTable]
) -> None:
    ask(name_server, request(216, {"topic": "TBW102"}))
    name_server.register("broker-a", Host("127.0.0.1", 10911), tables["broker-a"])
    route = name_server.route("TBW102")
    assert route is not None
    assert [each.broker_name for each in route.brokers] == ["broker-a"]


def test_a_topic_of_another_cluster_is_not_deleted(name_server: NameServer) -> None:
    ask(name_server, request(216, {"topic": "TBW102", "clusterName": "Other"}))
    assert name_server.route("TBW102") is not None


def test_values_are_kept_by_namespace_and_key(name_server: NameServer) -> None:
    """100, 101, 102 and 219, with the answers of golden frames 79 and 80."""
    key = {"namespace": "N", "key": "k"}
    assert ask(name_server, request(101, key)).remark == "No config item, Namespace: N Key: k"
    assert ask(name_server, request(219, {"namespace": "N"})).code == ResponseCode.QUERY_NOT_FOUND
    assert ask(name_server, request(100, {**key, "value": "v"})).code == ResponseCode.SUCCESS
    assert ask(name_server, request(101, key)).ext_fields == {"value": "v"}
    assert ask(name_server, request(219, {"namespace": "N"})).body == b'{"table":{"k":"v"}}'
    assert ask(name_server, request(102, key)).code == ResponseCode.SUCCESS
    assert ask(name_server, request(101, key)).code == ResponseCode.QUERY_NOT_FOUND
    assert ask(name_server, request(100, {"namespace": "N"})).code == ResponseCode.SYSTEM_ERROR


def test_the_order_of_a_topic_is_in_its_route_only_when_the_operator_says_so(name_server: NameServer) -> None:
    """A2: orderMessageEnable is off by default; 318 switches it on, 319 shows it."""
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "TBW102", "value": "broker-a:4;broker-b:2"}
    ask(name_server, request(100, order))
    route = decode_route(ask(name_server, request(105, {"topic": "TBW102"})).body)
    assert route.order_topic_conf is None
    assert b"orderMessageEnable=false\n" in ask(name_server, request(319)).body
    ask(name_server, request(318, body=b"# operator\norderMessageEnable=true\n"))
    assert b"orderMessageEnable=true\n" in ask(name_server, request(319)).body
    route = decode_route(ask(name_server, request(105, {"topic": "TBW102"})).body)
    assert route.order_topic_conf == "broker-a:4;broker-b:2"
    assert len(route.publish_queues("TBW102")) == 6


def test_some_of_the_configuration_cannot_be_changed(name_server: NameServer) -> None:
    answer = ask(name_server, request(318, body=b"kvConfigPath=/elsewhere"))
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        "Can not update config in black list.",
    )


def test_a_broker_names_several_machines_until_the_last_one_stops(
    name_server: NameServer, tables: dict[str, TopicTable]
) -> None:
    """A2: 0 is the master; without one a topic can still be read."""
    name_server.register("broker-a", Host("127.0.0.1", 10999), tables["broker-a"], broker_id=1)
    name_server.unregister("broker-b")

    def addresses() -> dict[int, str]:
        return dict(
            decode_route(ask(name_server, request(105, {"topic": "TBW102"})).body).brokers[0].addresses
        )

    assert addresses() == {0: "127.0.0.1:10911", 1: "127.0.0.1:10999"}
    info = loads(ask(name_server, request(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
    assert set(info["brokerAddrTable"]["broker-a"]["brokerAddrs"]) == {"0", "1"}
    name_server.unregister("broker-a")
    assert addresses() == {1: "127.0.0.1:10999"}
    name_server.unregister("broker-a", broker_id=1)
    assert name_server.route("TBW102") is None


@pytest.mark.parametrize("anew", ["topic", "broker"])
def test_permissions_taken_at_the_name_server_hold_until_the_broker_registers_the_topic_again(
    name_server: NameServer, tables: dict[str, TopicTable], anew: str
) -> None:
    """205, 327."""
    topic = Topic(topic_name="T", read_queue_nums=1, write_queue_nums=1)
    for table in tables.values():
        table.put(topic)

    def perms() -> list[int]:
        return [
            each.perm for each in decode_route(ask(name_server, request(105, {"topic": "T"})).body).queues
        ]

    wiped = ask(name_server, request(205, {"brokerName": "broker-a"}))
    assert (wiped.ext_fields, perms()) == ({"wipeTopicCount": "2"}, [4, 6])
    if anew == "topic":
        tables["broker-a"].put(replace(topic, write_queue_nums=2))
    else:
        name_server.register("broker-a", Host("127.0.0.1", 10911), tables["broker-a"])
    assert perms() == [6, 6]
    ask(name_server, request(205, {"brokerName": "broker-b"}))
    added = ask(name_server, request(327, {"brokerName": "broker-b"}))
    assert (added.ext_fields, perms()) == ({"addTopicCount": "2"}, [6, 6])
    assert ask(name_server, request(327, {"brokerName": "nobody"})).ext_fields == {"addTopicCount": "0"}


def test_a_restart_forgets_what_operators_changed_about_topics(
    name_server: NameServer, tables: dict[str, TopicTable]
) -> None:
    """Both are only in memory, and come back with the brokers' registration (``RouteInfoManager``)."""
    for topic in ("closed", "deleted"):
        tables["broker-a"].put(Topic(topic_name=topic))
    before = [name_server.route(topic) for topic in ("closed", "deleted")]
    ask(name_server, request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"}))
    ask(name_server, request(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "deleted"}))
    assert [name_server.route(topic) for topic in ("closed", "deleted")] != before

    name_server.restart()
    name_server.register_forgotten()

    assert [name_server.route(topic) for topic in ("closed", "deleted")] == before


def test_a_master_is_known_again_after_its_replica_was_the_first_to_register(
    tables: dict[str, TopicTable],
) -> None:
    name_server, topics = NameServer(), tables["broker-a"]
    topics.put(Topic(topic_name="T"))
    for broker_id in (0, 1):
        name_server.register("broker-a", Host("127.0.0.1", 10911 + broker_id), topics, broker_id)
    before = name_server.route("T")

    name_server.restart()
    name_server.register("broker-a", Host("127.0.0.1", 10912), topics, 1)
    name_server.register_forgotten()

    assert name_server.route("T") == before
