"""mqadmin shows the same facts of the simulator as of a real broker."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.model import MessageQueue
from tests.both.support import ANSWER_S
from tests.helpers.cluster import Backend, ClusterUnderTest
from tests.helpers.wait import wait_until
from tests.java.clients import ANSWER_S as CALL_S
from tests.java.clients import JavaClients
from tests.java.push import PushConsumer, await_committed, await_producer

_BROKER = "broker-a"
_TOPIC, _GROUP, _PRODUCER = "AdminTopic", "AdminGroup", "AdminProducer"
_MAIN = "org.apache.rocketmq.tools.command.MQAdminStartup"
_STACK_TRACE = re.compile(r"^(Caused by: )?[\w.]+Exception", re.MULTILINE)
_LOG_LINE = re.compile(r"^\d\d:\d\d:\d\d\.\d{3} .*\n", re.MULTILINE)


def rows(printed: str) -> list[list[str]]:
    """Return the words of each line of a table, its heading and the empty lines left out."""
    lines = _LOG_LINE.sub("", printed).splitlines()
    return [line.split() for line in lines if line.strip() and not line.startswith("#")]


def settings(printed: str) -> dict[str, str]:
    """Return the values printed as "name : value" or "name = value"."""
    return dict(re.findall(r"^([\w ]+?) *[:=] +(.*?) *$", printed, re.MULTILINE))


class Reports:
    """Output of the read-only commands, for a topic with messages and a group that consumes them."""

    def __init__(self, commands: Mapping[str, Future[Any]], sent: list[dict[str, Any]]) -> None:
        self._commands = commands
        self.sent = sent

    def __getitem__(self, command: str) -> str:
        printed = self._commands[command].result(CALL_S)
        assert not _STACK_TRACE.search(printed), printed
        return str(printed)


@pytest.fixture(scope="module")
def reports(java: JavaClients, backend: tuple[str, Backend]) -> Iterator[Reports]:
    """Return all reports of the same moment, requested together."""
    kind, running = backend
    cluster = ClusterUnderTest(running, kind)
    address = cluster.broker_addresses[_BROKER]
    cluster.create_topic(_TOPIC, queues=1, brokers=[_BROKER])
    messages = [
        {"topic": _TOPIC, "body": f"m{number}", "keys": f"k{number}", "tags": "T"} for number in range(5)
    ]
    sent = java.call("producer.send", group=_PRODUCER, how="sync", messages=messages)
    consumer = PushConsumer(java, "admin-consumer", _GROUP, _TOPIC, isOrderly=True)
    consumer.delivered(5)
    with ChannelPool(SystemClock()) as pool:
        client = BrokerClient(pool, SystemClock(), request_timeout_s=ANSWER_S)
        await_committed(consumer, client, address, [MessageQueue(_TOPIC, _BROKER, 0)], 5)
    await_producer(address, _PRODUCER)
    commands = {
        "topicRoute": ["-t", _TOPIC],
        "topicStatus": ["-t", _TOPIC],
        "topicList": [],
        "topicClusterList": ["-t", _TOPIC],
        "consumerProgress": ["-g", _GROUP],
        "consumerConnection": ["-g", _GROUP],
        "consumerStatus": ["-g", _GROUP],
        "producerConnection": ["-g", _PRODUCER, "-t", _TOPIC],
        "queryMsgByKey": ["-t", _TOPIC, "-k", "k1"],
        "queryMsgById": ["-i", sent[1]["offsetMsgId"], "-t", _TOPIC],
        "queryMsgByUniqueKey": ["-i", sent[1]["msgId"], "-t", _TOPIC],
        "clusterList": [],
        "brokerStatus": ["-b", address],
        "brokerConsumeStats": ["-b", address],
        "haStatus": ["-b", address],
    }
    yield Reports(
        {name: java.submit("mqadmin", arguments=[name, *words]) for name, words in commands.items()}, sent
    )
    consumer.stop().result(2 * ANSWER_S)


def _progress(printed: str) -> list[str]:
    """Broker offset, consumer offset and difference of the topic's only queue."""
    for words in rows(printed):
        if words[:3] == [_TOPIC, _BROKER, "0"]:
            return words[3:6]
    return []


def test_the_route_of_a_topic(reports: Reports, cluster: ClusterUnderTest) -> None:
    printed = _LOG_LINE.sub("", reports["topicRoute"])
    # Java's JSON has a bare number for a key.
    route = json.loads(re.sub(r"\{(\d+):", r'{"\1":', printed))

    assert route == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": cluster.broker_addresses[_BROKER]},
                "brokerName": _BROKER,
                "cluster": "DefaultCluster",
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": _BROKER,
                "perm": 6,
                "readQueueNums": 1,
                "topicSysFlag": 0,
                "writeQueueNums": 1,
            }
        ],
    }


def test_the_status_of_a_topic(reports: Reports) -> None:
    (row, *_) = rows(reports["topicStatus"])
    assert row[:4] == [_BROKER, "0", "0", "5"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", row[4])


def test_the_list_of_topics_and_the_cluster_of_one(reports: Reports) -> None:
    topics = {words[0] for words in rows(reports["topicList"])}
    assert {_TOPIC, f"%RETRY%{_GROUP}", "TBW102"} <= topics
    assert rows(reports["topicClusterList"]) == [["DefaultCluster"]]


def test_the_progress_of_a_group(reports: Reports) -> None:
    printed = reports["consumerProgress"]

    assert _progress(printed) == ["5", "5", "0"]
    assert settings(printed)["Consume Diff Total"] == "0"


def test_the_members_of_a_group_and_their_subscription(reports: Reports) -> None:
    printed = reports["consumerConnection"]
    (member, *_) = rows(printed)

    assert member[0].endswith("@admin-consumer")
    assert member[1].startswith("127.0.0.1:")
    assert member[2:] == ["JAVA", "V5_3_3"]
    assert [f"%RETRY%{_GROUP}", "*"] in rows(printed)
    assert [_TOPIC, "*"] in rows(printed)
    shown = settings(printed)
    assert (shown["ConsumeType"], shown["MessageModel"], shown["ConsumeFromWhere"]) == (
        "CONSUME_PASSIVELY",
        "CLUSTERING",
        "CONSUME_FROM_FIRST_OFFSET",
    )


def test_the_status_of_the_members(reports: Reports) -> None:
    """The broker passes the question on to the client (307)."""
    printed = reports["consumerStatus"]
    (member, *_) = rows(printed)

    assert (member[0], member[2]) == ("1", "V5_3_3")
    assert member[1].endswith("@admin-consumer")
    assert "Same subscription in the same group of consumer" in printed
    assert "Rebalance OK" in printed


def test_the_connections_of_a_producer(reports: Reports) -> None:
    (producer,) = rows(reports["producerConnection"])
    assert producer[1].endswith(f"@{_PRODUCER}")
    assert producer[3:] == ["JAVA", "V5_3_3"]


def test_a_message_is_found_by_its_key(reports: Reports) -> None:
    assert rows(reports["queryMsgByKey"]) == [[reports.sent[1]["msgId"], "0", "1"]]


@pytest.mark.parametrize("command", ["queryMsgById", "queryMsgByUniqueKey"])
def test_a_message_is_found_by_its_ids(command: str, reports: Reports, cluster: ClusterUnderTest) -> None:
    shown = settings(reports[command])

    assert shown["Topic"] == _TOPIC
    assert (shown["Keys"], shown["Tags"]) == ("[k1]", "[T]")
    assert (shown["Queue ID"], shown["Queue Offset"], shown["Reconsume Times"]) == ("0", "1", "0")
    assert shown["Store Host"] == cluster.broker_addresses[_BROKER]
    properties = dict(pair.split("=") for pair in shown["Properties"].strip("{}").split(", "))
    assert properties == {
        "CLUSTER": "DefaultCluster",
        "KEYS": "k1",
        "MSG_REGION": "DefaultRegion",
        "TAGS": "T",
        "TRACE_ON": "true",
        "UNIQ_KEY": reports.sent[1]["msgId"],
        "WAIT": "true",
    }
    assert f"MessageTrack [consumerGroup={_GROUP}, trackType=CONSUMED, " in reports[command]


def test_the_brokers_of_the_cluster(reports: Reports, cluster: ClusterUnderTest) -> None:
    brokers = {words[1]: (words[0], words[2], words[3], words[4]) for words in rows(reports["clusterList"])}
    assert brokers == {
        name: ("DefaultCluster", "0", address, "V5_3_3") for name, address in cluster.broker_addresses.items()
    }


def test_the_status_of_a_broker(reports: Reports) -> None:
    shown = settings(reports["brokerStatus"])

    assert (shown["brokerVersion"], shown["brokerVersionDesc"]) == ("479", "V5_3_3")
    assert shown["brokerActive"] == "true"
    assert shown["commitLogMinOffset"] == "0"
    assert int(shown["commitLogMaxOffset"]) > 0


def test_the_progress_of_all_groups_of_a_broker(reports: Reports) -> None:
    printed = reports["brokerConsumeStats"]
    (row,) = [words for words in rows(printed) if words[:2] == [_TOPIC, _GROUP]]

    assert row[2:7] == [_BROKER, "0", "5", "5", "0"]
    assert "Diff Total: " in printed


def test_the_state_of_a_master_s_replicas(reports: Reports, cluster: ClusterUnderTest) -> None:
    shown = dict(re.findall(r"^#(\w+)\t(.*)$", reports["haStatus"], re.MULTILINE))

    assert int(shown.pop("MasterCommitLogMaxOffset")) > 0
    assert shown == {"MasterAddr": cluster.broker_addresses[_BROKER], "SlaveNum": "0", "InSyncSlaveNum": "0"}


@pytest.mark.parametrize("command", ["cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"])
def test_a_broker_cleans_up(command: str, java: JavaClients, cluster: ClusterUnderTest) -> None:
    printed = java.mqadmin(command, "-b", cluster.broker_addresses[_BROKER])

    assert _LOG_LINE.sub("", printed).strip() == "success"


def test_a_broker_is_closed_to_producers_at_the_name_server_and_opened_again(
    java: JavaClients, cluster: ClusterUnderTest
) -> None:
    """205, 327."""
    topic = cluster.create_topic(queues=1)

    def permissions() -> dict[str, int]:
        route = json.loads(
            re.sub(r"\{(\d+):", r'{"\1":', _LOG_LINE.sub("", java.mqadmin("topicRoute", "-t", topic)))
        )
        return {queue["brokerName"]: queue["perm"] for queue in route["queueDatas"]}

    server = cluster.name_servers
    wiped = java.mqadmin("wipeWritePerm", "-b", _BROKER)
    assert re.search(rf"wipe write perm of broker\[{_BROKER}\] in name server\[{server}\] OK, [1-9]", wiped)
    assert permissions() == {"broker-a": 4, "broker-b": 6}
    added = java.mqadmin("addWritePerm", "-b", _BROKER)
    assert re.search(rf"add write perm of broker\[{_BROKER}\] in name server\[{server}\] OK, [1-9]", added)
    assert permissions() == {"broker-a": 6, "broker-b": 6}
    assert "OK, 0" in java.mqadmin("wipeWritePerm", "-b", "no-such-broker")


def test_a_topic_is_created_and_changed(java: JavaClients, cluster: ClusterUnderTest) -> None:
    topic, address = cluster.unique_name("admin"), cluster.broker_addresses[_BROKER]

    printed = java.mqadmin("updateTopic", "-b", address, "-t", topic, "-r", "3", "-w", "2")
    assert f"create topic to {address} success." in printed
    assert f"TopicConfig [topicName={topic}, readQueueNums=3, writeQueueNums=2, perm=RW-, " in printed
    wait_until(lambda: cluster.routed_brokers(topic) == {_BROKER}, ANSWER_S, reason=f"A route of {topic}")
    printed = java.mqadmin("updateTopicPerm", "-b", address, "-t", topic, "-p", "4")
    assert f"update topic perm from 6 to 4 in {address} success." in printed


def test_a_group_is_configured_and_deleted(java: JavaClients, cluster: ClusterUnderTest) -> None:
    group, address = cluster.unique_name("admin"), cluster.broker_addresses[_BROKER]

    printed = java.mqadmin("updateSubGroup", "-b", address, "-g", group, "-r", "3")
    assert f"create subscription group to {address} success." in printed
    shown = settings(java.mqadmin("getConsumerConfig", "-g", group))
    assert (shown["groupName"], shown["retryMaxTimes"], shown["retryQueueNums"]) == (group, "3", "1")
    assert (shown["consumeEnable"], shown["consumeBroadcastEnable"]) == ("true", "false")
    printed = java.mqadmin("deleteSubGroup", "-b", address, "-g", group)
    assert f"delete subscription group [{group}] from broker [{address}] success." in printed


def test_the_offsets_of_a_group_are_reset_by_time(
    java: JavaClients, cluster: ClusterUnderTest, client: BrokerClient
) -> None:
    """F4: to the beginning and to now, of a group that is known and has no members at the moment."""
    queue = MessageQueue(cluster.create_topic(queues=1, brokers=[_BROKER]), _BROKER, 0)
    group, address = cluster.unique_name("admin"), cluster.broker_addresses[_BROKER]
    name = f"{group}-member"
    message = {"topic": queue.topic, "body": "m"}
    java.call("producer.send", group=_PRODUCER, how="sync", messages=[message] * 3)
    consumer = PushConsumer(java, name, group, queue.topic)
    await_committed(consumer, client, address, [queue], 3)
    consumer.stop().result(2 * ANSWER_S)

    for moment, expected in (("0", 0), ("now", 3)):
        printed = java.mqadmin("resetOffsetByTime", "-g", group, "-t", queue.topic, "-s", moment)
        assert f"start reset consumer offset by specified, group[{group}], topic[{queue.topic}], " in printed
        assert [_BROKER, "0", str(expected)] in rows(printed)
        assert client.query_consumer_offset(address, group, queue) == expected


def test_a_missing_topic_is_reported_with_code_17(java: JavaClients) -> None:
    with pytest.raises(
        AssertionError, match=r"CODE: 17 .*No topic route info in name server for the topic: Absent"
    ):
        java.mqadmin("topicRoute", "-t", "Absent")


def test_mqadmin_ends_with_code_0_as_a_program_of_its_own(
    java: JavaClients, reports: Reports, cluster: ClusterUnderTest
) -> None:
    """The same main class that the shell script starts."""
    printed = java.run_program(_MAIN, "topicRoute", "-t", _TOPIC, "-n", cluster.name_servers)

    assert _LOG_LINE.sub("", printed).strip() == _LOG_LINE.sub("", reports["topicRoute"]).strip()
