"""Clusters that behave as managed ones: what each refuses, and the option with which it serves.

The simulator refuses what such a cloud refuses (``broker_sim/clouds.py``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from broker_sim.clouds import CloudRules, MessageType
from broker_sim.cluster import SimCluster
from broker_sim.layout import Host
from broker_sim.security import User
from broker_sim.settings import BrokerSettings
from pyspark_rocketmq.client.cluster import Cluster
from pyspark_rocketmq.client.pool import ConnectionSettings, process_pool
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.client.producer.send_back import SendBack, SendBackSettings
from pyspark_rocketmq.client.producer.transactions import TransactionProducer
from pyspark_rocketmq.client.pull_connection import close_idle_connections
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.errors import (
    BatchRefused,
    ConnectFailed,
    OptionError,
    RowNotSent,
    TopicNotFound,
    WrongMessageType,
)
from pyspark_rocketmq.group.retry_queues import warn_of_dropped_retries
from pyspark_rocketmq.model import LocalTransactionState, Message, MessageQueue, retry_topic
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, HeartbeatData
from pyspark_rocketmq.wire.subscription import build_subscription
from tests.helpers.batch_read import read_batch
from tests.helpers.messages import message_at
from tests.helpers.sent_rows import send_as_one_task
from tests.helpers.wait import PATIENCE_S, wait_until

CLOCK = SystemClock()
TOPIC, GROUP = "orders", "billing"
INSTANCE = "MQ_INST_1234567890_BXxYzAbC"
ENDPOINT = f"{INSTANCE}.cn-hangzhou.mq-internet.aliyuncs.com:80"
PATIENT = {"requestTimeoutMs": f"{PATIENCE_S * 1000:.0f}"}
ROWS: list[dict[str, Any]] = [
    {"body": f"{number}".encode(), "shardingKey": f"k{number % 3}"} for number in range(12)
]
OUT_OF_REACH = {"broker-a": Host("127.0.0.2", 10911), "broker-b": Host("127.0.0.3", 10911)}
"""Where nobody listens."""


@contextmanager
def cloud(*topics: str, users: tuple[User, ...] = (), **rules: Any) -> Iterator[SimCluster]:
    """A cluster of two brokers with these topics of two queues each."""
    with SimCluster(brokers=2, cloud=CloudRules(**rules), users=users) as cluster:
        for topic in topics:
            cluster.create_topic(topic, queues=2)
        yield cluster
        close_idle_connections()


def bodies(**options: str) -> list[bytes]:
    """Bodies that a batch reads, sorted."""
    return sorted(read_batch(**{"topic": TOPIC} | PATIENT | options).column("body").to_pylist())


ALL = sorted(row["body"] for row in ROWS)


def member_of(options: ReadOptions, address: str) -> tuple[str, ...]:
    """Join the group, lock a queue, store an offset and read it, leave; the members seen meanwhile."""
    assert options.consumer_group is not None
    brokers = Cluster.of(options, CLOCK).brokers()
    queue = MessageQueue(TOPIC, "broker-a", 0)
    subscriptions = tuple(
        build_subscription(name, "*", sub_version=1) for name in (TOPIC, retry_topic(options.consumer_group))
    )
    data = ConsumerData(group_name=options.consumer_group, subscriptions=subscriptions)
    brokers.heartbeat(address, HeartbeatData(client_id="me", consumers=(data,)))
    assert brokers.lock_batch(address, options.consumer_group, "me", [queue]) == {queue}
    brokers.update_consumer_offset(address, options.consumer_group, queue, 3)
    assert brokers.query_consumer_offset(address, options.consumer_group, queue) == 3
    members = brokers.consumer_list(address, options.consumer_group)
    brokers.unlock_batch(address, options.consumer_group, "me", [queue])
    brokers.unregister(address, "me", consumer_group=options.consumer_group)
    return members


def give_back(options: ReadOptions) -> None:
    """Send the topic's first message back."""
    rows = read_batch(nameServers=";".join(options.name_servers), **_again(options)).to_pylist()
    row = next(row for row in rows if row["brokerName"] == "broker-a")
    stored = message_at(row["queueOffset"], queue=MessageQueue(TOPIC, "broker-a", row["queueId"]))
    message = stored._replace(commit_log_offset=row["commitLogOffset"], msg_id=row["msgId"])
    SendBack(SendBackSettings.of(options)).send(message, 0, max_reconsume_times=16)


def _again(options: ReadOptions) -> dict[str, str]:
    given = {"topic": TOPIC, **PATIENT}
    if options.broker_addresses:
        given["brokerAddresses"] = json.dumps(dict(options.broker_addresses))
    if options.namespace_v2:
        given["namespaceV2"] = options.namespace_v2
    return given


def group_options(**given: str) -> ReadOptions:
    return ReadOptions.parse(
        {"topic": TOPIC, "consumerGroup": GROUP, "offsetStore": "memory:clouds"} | PATIENT | given
    )


# --- an instance's host: http://, and a namespace of version 1 ----------------------------------------------


@pytest.fixture
def instance() -> Iterator[dict[str, str]]:
    """Options of an instance that only its namespace's names reach; its host leads to the simulator."""
    with cloud(f"{INSTANCE}%{TOPIC}", namespace=INSTANCE) as cluster:
        reach = json.dumps({ENDPOINT: cluster.name_servers})
        yield {
            "nameServers": f"http://{ENDPOINT}",
            "brokerAddresses": reach,
            "broker-a": cluster.broker_addresses["broker-a"],
            "bare": cluster.name_servers,
        }


def test_an_instance_s_host_says_its_namespace_for_topics_groups_and_retries(
    instance: dict[str, str],
) -> None:
    """L8: as Java's ``ClientConfig.getNamespace``: without it nothing of the instance is there."""
    address, bare = instance.pop("broker-a"), instance.pop("bare")
    with pytest.raises(TopicNotFound):
        send_as_one_task(bare, ROWS, topic=TOPIC, retryTimeoutMs=0)

    sent = send_as_one_task(
        instance["nameServers"], ROWS, topic=TOPIC, brokerAddresses=instance["brokerAddresses"]
    )
    options = group_options(**instance)

    assert sent == len(ROWS)
    assert bodies(**instance) == ALL
    assert options.namespace == INSTANCE
    assert member_of(options, address) == ("me",)
    give_back(options)
    names = Cluster.of(options, CLOCK).name_server()
    assert retry_topic(GROUP) in names.topics(Deadline.after(CLOCK, PATIENCE_S))


def test_producers_take_an_instance_s_host_too(instance: dict[str, str]) -> None:
    """L8: in one text or several, with transactions and without."""
    settings = ConnectionSettings(broker_addresses=tuple(json.loads(instance["brokerAddresses"]).items()))
    commit = LocalTransactionState.COMMIT_MESSAGE
    with Producer([f"http://{ENDPOINT}"], "p", settings=settings, send_timeout_s=PATIENCE_S) as producer:
        producer.send(Message(topic=TOPIC, body=b"sent"))
        producer.send_ordered([("k", Message(topic=TOPIC, body=b"in order"))] * 2)
    with TransactionProducer(
        ENDPOINT, "t", lambda _: commit, topics=[TOPIC], settings=settings, send_timeout_s=PATIENCE_S
    ) as transactions:
        transactions.send(Message(topic=TOPIC, body=b"committed"), lambda _: commit)

    del instance["broker-a"], instance["bare"]
    wait_until(lambda: bodies(**instance) == [b"committed", b"in order", b"in order", b"sent"])


def test_an_explicit_namespace_wins_over_the_host_s() -> None:
    """L8."""
    assert group_options(nameServers=ENDPOINT).namespace == INSTANCE
    assert group_options(nameServers=ENDPOINT, namespace="shop").namespace == "shop"
    assert group_options(nameServers=f"a:1;http://{ENDPOINT}").namespace == INSTANCE
    assert group_options(nameServers=ENDPOINT, namespaceV2="rmq-cn-1").namespace is None
    for other in ("mq_inst_1_b.x:80", "MQ_INST_1.x:80", "MQ_INST_1_b:80", "x.MQ_INST_1_b.y:80"):
        assert group_options(nameServers=other).namespace is None, other


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "tcp://10.0.0.5:9876",
            "'tcp://' means nothing to RocketMQ; give host:port, such as '10.0.0.5:9876'",
        ),
        ("https://ns:443", "means nothing to RocketMQ; TLS is switched on by useTls=true; give host:port"),
        ("http://ns:8080/rocketmq/nsaddr", "has a path: servers are named by host and port"),
        ("http://ns:8080/", "has a path"),
        ("http://ns", "which is not host:port; give host:port"),
        ("http://", "which is not host:port"),
        ("a:1;b", "holds 'b', which is not host:port"),
    ],
)
def test_other_spellings_of_an_address_are_refused_with_what_to_write(text: str, said: str) -> None:
    """L8: options and arguments alike."""
    with pytest.raises(OptionError, match=said):
        ReadOptions.parse({"nameServers": text, "topic": TOPIC})
    with pytest.raises(OptionError, match=said):
        Producer(text, "p")


# --- namespaces of version 2 --------------------------------------------------------------------------------


@pytest.mark.parametrize("users", [(), (User(access_key="instance-user", secret_key="s3", is_super=True),)])
def test_every_request_names_the_instance_of_namespace_v2(users: tuple[User, ...]) -> None:
    """L8: as Java's ``NamespaceRpcHook``; signed, where requests are."""
    with cloud(TOPIC, namespace_v2="rmq-cn-1", users=users) as cluster:
        access = {"accessKey": "instance-user", "secretKey": "s3"} if users else {}
        servers = cluster.name_servers
        with pytest.raises(TopicNotFound, match="instance not found: none is named"):
            send_as_one_task(servers, ROWS, topic=TOPIC, retryTimeoutMs=0, **access)
        with pytest.raises(TopicNotFound, match="instance not found: rmq-cn-2"):
            bodies(nameServers=servers, namespaceV2="rmq-cn-2", **access)
        given = {"namespaceV2": "rmq-cn-1", **access}

        assert send_as_one_task(servers, ROWS, topic=TOPIC, **given) == len(ROWS)
        assert bodies(nameServers=servers, **given) == ALL
        options = group_options(nameServers=servers, **given)
        assert member_of(options, cluster.broker_addresses["broker-a"]) == ("me",)
        settings = ConnectionSettings.of(options)
        with Producer(servers, "p", settings=settings, send_timeout_s=PATIENCE_S) as producer:
            producer.send(Message(topic=TOPIC, body=b"by a producer"))
        assert process_pool(settings) is not process_pool(ConnectionSettings())


def test_a_group_s_messages_go_back_to_the_instance() -> None:
    """L8: requests of tasks name it, too."""
    with cloud(TOPIC, namespace_v2="rmq-cn-1") as cluster:
        given = {"nameServers": cluster.name_servers, "namespaceV2": "rmq-cn-1"}
        send_as_one_task(cluster.name_servers, ROWS, topic=TOPIC, namespaceV2="rmq-cn-1")
        options = group_options(**given)
        member_of(options, cluster.broker_addresses["broker-a"])

        give_back(options)

        names = Cluster.of(options, CLOCK).name_server()
        assert retry_topic(GROUP) in names.topics(Deadline.after(CLOCK, PATIENCE_S))


def test_both_kinds_of_namespaces_together_are_refused() -> None:
    """L8."""
    with pytest.raises(OptionError, match="'namespace' and 'namespaceV2' exclude each other"):
        group_options(nameServers="a:1", namespace="shop", namespaceV2="rmq-cn-1")
    settings = ConnectionSettings(namespace_v2="rmq-cn-1")
    with pytest.raises(OptionError, match=r"namespace and namespace_v2 .* exclude each other"):
        Producer("a:1", "p", namespace="shop", settings=settings)
    commit = LocalTransactionState.COMMIT_MESSAGE
    with pytest.raises(OptionError, match="exclude each other"):
        TransactionProducer("a:1", "p", lambda _: commit, topics=[], namespace="shop", settings=settings)


# --- no batches, and topics of one type of messages ---------------------------------------------------------


def test_a_cluster_without_batches_gets_messages_one_by_one_in_order() -> None:
    """L8, G1: the refusal names the option."""
    with cloud(TOPIC, takes_batches=False) as cluster:
        with pytest.raises(
            RowNotSent, match=r"code 3: .* This cluster takes no batches: set option batchSend=false"
        ):
            send_as_one_task(cluster.name_servers, ROWS, topic=TOPIC)
        with (
            Producer(cluster.name_servers, "p", send_timeout_s=PATIENCE_S) as producer,
            pytest.raises(BatchRefused, match=r"Producer\(batch_send=False\)"),
        ):
            producer.send_ordered([("k", Message(topic=TOPIC, body=b"x"))] * 2)

        assert send_as_one_task(cluster.name_servers, ROWS, topic=TOPIC, batchSend=False) == len(ROWS)
        rows = read_batch(nameServers=cluster.name_servers, topic=TOPIC, **PATIENT).to_pylist()
        keys = [dict(row["properties"])["__SHARDINGKEY"] for row in rows]
        by_key = {
            key: [row["body"] for row, own in zip(rows, keys, strict=True) if own == key] for key in keys
        }
        assert by_key == {
            f"k{n}": [row["body"] for row in ROWS if row["shardingKey"] == f"k{n}"] for n in range(3)
        }
        with Producer(cluster.name_servers, "p", send_timeout_s=PATIENCE_S, batch_send=False) as producer:
            assert (
                producer.send_ordered((f"k{n % 3}", Message(topic=TOPIC, body=b"%d" % n)) for n in range(9))
                == 9
            )


def test_a_batch_larger_than_its_broker_takes_is_sent_in_smaller_ones() -> None:
    """L8, G1: a broker's maxMessageSize is not asked for; every key keeps its order."""
    settings = BrokerSettings(max_message_size=10_000)
    rows = [{"body": f"{n:05d}" + "x" * (n * 7 % 900), "shardingKey": f"k{n % 3}"} for n in range(300)]
    with SimCluster(settings=settings) as cluster:
        cluster.create_topic(TOPIC, queues=2)

        assert send_as_one_task(cluster.name_servers, rows, topic=TOPIC) == len(rows)
        stored = read_batch(nameServers=cluster.name_servers, topic=TOPIC, **PATIENT).to_pylist()
        numbers = {
            queue: [int(row["body"][:5]) for row in stored if row["queueId"] == queue] for queue in (0, 1)
        }
        assert sorted(numbers[0] + numbers[1]) == list(range(300))
        for in_queue in numbers.values():
            for key in range(3):
                assert [n for n in in_queue if n % 3 == key] in ([], list(range(key, 300, 3)))
        with pytest.raises(
            RowNotSent, match=r"^Not sent: row 1 of the task\b.*: .*code 13: .*\(maxMessageSize\)"
        ):
            send_as_one_task(cluster.name_servers, [{"body": "x"}, {"body": "x" * 10_001}], topic=TOPIC)


def typed() -> AbstractContextManager[SimCluster]:
    types = {name.value: name for name in MessageType}
    return cloud(*types, message_types=types)


@pytest.mark.parametrize(
    ("topic", "fits"),
    [
        ("NORMAL", {"body": "x"}),
        ("FIFO", {"body": "x", "shardingKey": "k"}),
        ("DELAY", {"body": "x", "delayLevel": 1}),
    ],
)
def test_a_topic_of_one_type_takes_what_fits_and_the_refusal_of_others_says_what_does(
    topic: str, fits: dict[str, Any]
) -> None:
    """L8: a proxy judges a batch by the request's properties, so FIFO messages go by themselves."""
    others: list[dict[str, Any]] = [
        {"body": "x"},
        {"body": "x", "delayLevel": 1},
        {"body": "x", "shardingKey": "k"},
    ]
    with typed() as cluster:
        assert send_as_one_task(cluster.name_servers, [fits], topic=topic, batchSend=False) == 1
        for row in others:
            if row == fits:
                continue
            with pytest.raises(
                RowNotSent, match=r"takes messages of one type only\. FIFO: each has a sharding key"
            ):
                send_as_one_task(cluster.name_servers, [row], topic=topic, batchSend=False)


def test_a_topic_of_transactions_refuses_plain_messages_with_what_to_use() -> None:
    """L8."""
    commit = LocalTransactionState.COMMIT_MESSAGE
    message = Message(topic="TRANSACTION", body=b"x")
    with typed() as cluster:
        with (
            Producer(cluster.name_servers, "p", send_timeout_s=PATIENCE_S) as producer,
            pytest.raises(WrongMessageType, match="TRANSACTION: send by TransactionProducer"),
        ):
            producer.send(message)
        with TransactionProducer(
            cluster.name_servers, "t", lambda _: commit, topics=["TRANSACTION"], send_timeout_s=PATIENCE_S
        ) as transactions:
            assert transactions.send(message, lambda _: commit).state is commit


# --- what proxies and clouds do with reads ------------------------------------------------------------------


@pytest.mark.parametrize("pull_batch_size", ["32", "1000"])
def test_pulls_that_bring_less_than_asked_for_lose_nothing(pull_batch_size: str) -> None:
    """L8: clouds bring at most 32 messages, whatever is asked for."""
    with cloud(TOPIC, most_pulled=32) as cluster:
        queue = MessageQueue(TOPIC, "broker-a", 0)
        cluster.put(queue, [Message(topic=TOPIC, body=b"%03d" % n) for n in range(500)])

        assert bodies(nameServers=cluster.name_servers, pullBatchSize=pull_batch_size) == [
            b"%03d" % n for n in range(500)
        ]


def test_a_cluster_that_serves_no_statistics_is_read_all_the_same() -> None:
    """L8: as a proxy does not."""
    with cloud(TOPIC, unserved=frozenset({int(RequestCode.GET_TOPIC_STATS_INFO)})) as cluster:
        send_as_one_task(cluster.name_servers, ROWS, topic=TOPIC)

        assert bodies(nameServers=cluster.name_servers) == ALL


def test_a_cluster_that_does_not_show_groups_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """L8, E3: nobody knows whether it keeps what is sent back."""
    with cloud(TOPIC, unserved=frozenset({int(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)})) as cluster:
        warn_of_dropped_retries(group_options(nameServers=cluster.name_servers), CLOCK)

    assert caplog.messages == []


@pytest.mark.parametrize("topic", ["rmq-cluster|shop%orders", "shop%orders"])
def test_a_topic_of_a_virtual_cluster_is_named_whole(topic: str) -> None:
    """L8: no option `namespace` is needed."""
    with cloud(topic) as cluster:
        assert send_as_one_task(cluster.name_servers, ROWS, topic=topic) == len(ROWS)
        table = read_batch(nameServers=cluster.name_servers, topic=topic, **PATIENT)
        assert set(table.column("topic").to_pylist()) == {topic}


# --- addresses out of reach ---------------------------------------------------------------------------------


def test_addresses_out_of_reach_are_replaced_wherever_a_route_s_address_is_used() -> None:
    """L8: by writes, reads, members, messages sent back, producers; without the option its name is in the error."""
    with cloud(TOPIC, advertised=OUT_OF_REACH) as cluster:
        servers = cluster.name_servers
        with pytest.raises(
            ConnectFailed, match=r"127\.0\.0\.[23]:10911.*use instead in option brokerAddresses"
        ):
            bodies(nameServers=servers)
        with pytest.raises(RowNotSent, match=r"option brokerAddresses"):
            send_as_one_task(servers, ROWS, topic=TOPIC, retryTimeoutMs=0)
        real = {str(host): cluster.broker_addresses[name] for name, host in OUT_OF_REACH.items()}
        given = {"brokerAddresses": json.dumps(real)}

        assert bodies(nameServers=servers, **given) == []
        assert send_as_one_task(servers, ROWS, topic=TOPIC, **given) == len(ROWS)
        assert bodies(nameServers=servers, **given) == ALL
        options = group_options(nameServers=servers, **given)
        assert member_of(options, str(OUT_OF_REACH["broker-a"])) == ("me",)
        give_back(options)
        settings = ConnectionSettings(broker_addresses=tuple(real.items()))
        with Producer(servers, "p", settings=settings, send_timeout_s=PATIENCE_S) as producer:
            producer.send(Message(topic=TOPIC, body=b"x"))


def test_an_address_given_in_place_of_another_is_named_with_it_when_nobody_is_there() -> None:
    """L8."""
    pool = ConnectionSettings(broker_addresses=(("10.0.0.5:10911", "127.0.0.2:1"),)).open_pool(CLOCK)
    with (
        pool,
        pytest.raises(
            ConnectFailed, match=r"127\.0\.0\.2:1 \(which brokerAddresses gives for 10\.0\.0\.5:10911\)"
        ),
    ):
        pool.get("10.0.0.5:10911", Deadline.after(CLOCK, PATIENCE_S))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "is not a JSON object of strings such as"),
        ("10.0.0.5:10911=1.2.3.4:10911", 'is not a JSON object such as {"10.0.0.5:10911": "1.2.3.4:10911"}'),
        ('{"10.0.0.5": "1.2.3.4:10911"}', "holds '10.0.0.5', which is not host:port"),
        ('{"10.0.0.5:1": "1.2.3.4"}', "holds '1.2.3.4', which is not host:port"),
        ('{"a:1": "b:1", "a:1": "c:1"}', "has the name 'a:1' twice"),
    ],
)
def test_a_map_of_addresses_that_is_none_is_refused(text: str, said: str) -> None:
    """L8."""
    with pytest.raises(OptionError) as refused:
        group_options(nameServers="a:1", brokerAddresses=text)
    assert said in str(refused.value)
