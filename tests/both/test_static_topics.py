"""Topics whose queues are mapped to brokers (``mqadmin updateStaticTopic``): none is read or written."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import broker_sim.nameserver
from broker_sim.bodies import encode_route
from pyspark_rocketmq import Producer
from pyspark_rocketmq.client.nameserver import NameServerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.errors import StaticTopic
from pyspark_rocketmq.model import Message, TopicRoute
from tests.helpers.batch_read import read_batch
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.stream_read import StreamUnderTest
from tests.helpers.wait import PATIENCE_S, wait_until
from tests.real_broker import plain_remoting

_UPDATE_AND_CREATE_STATIC_TOPIC = 513


@pytest.fixture
def static_topic(cluster: ClusterUnderTest, pool: ChannelPool, monkeypatch: pytest.MonkeyPatch) -> str:
    """A static topic of one queue on broker-a."""
    if cluster.kind == "sim":
        topic = cluster.create_topic(queues=1, brokers=["broker-a"])
        monkeypatch.setattr(broker_sim.nameserver, "encode_route", _with_mapping)
        return topic
    topic = cluster.unique_name("static")
    item = {"bname": "broker-a", "gen": 0, "queueId": 0, "logicOffset": 0, "startOffset": 0}
    detail = {
        "topic": topic,
        "scope": "__global__",
        "totalQueues": 1,
        "bname": "broker-a",
        "epoch": 1,
        "dirty": False,
        "hostedQueues": {"0": [item | {"endOffset": -1, "timeOfStart": -1, "timeOfEnd": -1}]},
    }
    plain_remoting.call(
        cluster.broker_addresses["broker-a"],
        _UPDATE_AND_CREATE_STATIC_TOPIC,
        {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": "1",
            "writeQueueNums": "1",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
            "force": "true",
        },
        body=json.dumps(detail).encode(),
    )
    names = NameServerClient((cluster.name_servers,), pool, SystemClock(), PATIENCE_S, route_max_age_s=0)
    wait_until(lambda: _is_static(names, topic))
    return topic


def _is_static(names: NameServerClient, topic: str) -> bool:
    try:
        names.route(topic, Deadline.after(SystemClock(), PATIENCE_S))
    except StaticTopic:
        return True
    except Exception:  # noqa: BLE001 - the name server learns of it a moment later
        return False
    return False


def _with_mapping(route: TopicRoute, *, standard_json: bool) -> bytes:
    mapping = json.dumps({"broker-a": {"currIdMap": {"0": 0}, "totalQueues": 1}}).encode()
    return (
        encode_route(route, standard_json=standard_json)[:-1]
        + b',"topicQueueMappingByBroker":'
        + mapping
        + b"}"
    )


def read(name_servers: str, topic: str) -> None:
    read_batch(nameServers=name_servers, topic=topic)


def stream(name_servers: str, topic: str) -> None:
    StreamUnderTest(nameServers=name_servers, topic=topic, startingOffsets="earliest").next_offsets()


def send(name_servers: str, topic: str) -> None:
    with Producer(name_servers, "tests", send_timeout_s=PATIENCE_S) as producer:
        producer.send(Message(topic=topic, body=b"1"))


@pytest.mark.parametrize("use", [read, stream, send])
def test_a_static_topic_is_refused_by_name_at_first_contact(
    cluster: ClusterUnderTest, static_topic: str, use: Callable[[str, str], None]
) -> None:
    """L9 ★: after a remapping its reads and sends would fail, or go to the wrong queue."""
    with pytest.raises(StaticTopic, match=rf"{static_topic} is a static topic"):
        use(cluster.name_servers, static_topic)


def test_a_pattern_reads_what_it_matches_without_a_static_topic(
    cluster: ClusterUnderTest, static_topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """L9 ★: somebody else may make one at any time."""
    table = read_batch(nameServers=cluster.name_servers, topicPattern=static_topic)

    assert table.num_rows == 0
    assert f"topic of the pattern left out: Topic {static_topic} is a static topic" in caplog.text
