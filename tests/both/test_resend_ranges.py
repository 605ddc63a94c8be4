"""A range sent into another topic, without Spark: each message with all it had, and once,
whoever was at it before.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pyarrow as pa
import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import Message, MessageQueue, TopicRoute
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.replay import tasks
from pyspark_rocketmq.replay.ranges import Sending
from pyspark_rocketmq.replay.target import TargetTopic, read_tail
from pyspark_rocketmq.replay.tasks import RESEND_COLUMNS, Resending, ResendRanges, TargetQueue
from pyspark_rocketmq.source.ranges import QueuePartition
from pyspark_rocketmq.source.readers import RocketMQBatchReader
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.compression import COMPRESSION_TYPE_SHIFT, CompressionType
from pyspark_rocketmq.wire.requests.send import SendResult
from tests.both.support import ANSWER_S, await_readable
from tests.both.test_java_interop import read_topic
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.partitions import changed
from tests.helpers.poison import GARBAGE, store_as_it_is
from tests.helpers.wait import wait_until
from tests.real_broker import plain_remoting

MESSAGES = 30
AT_ONCE = 8
ONE_TASK = pa.RecordBatch.from_pydict({"id": [0]})


@pytest.fixture
def copy(cluster: ClusterUnderTest) -> MessageQueue:
    """Where messages go: the only queue of a topic."""
    return MessageQueue(cluster.create_topic(queues=1, brokers=["broker-a"]), "broker-a", 0)


@pytest.fixture(autouse=True)
def stored(cluster: ClusterUnderTest, client: BrokerClient, queue: MessageQueue) -> list[SendResult]:
    """Of the messages in ``queue``."""
    with Producer(
        (cluster.name_servers,), "p", send_timeout_s=ANSWER_S, compress_over_bytes=1000
    ) as producer:
        results = [producer.send(message_of(queue.topic, number), queue=queue) for number in range(MESSAGES)]
    await_readable(client, cluster.broker_addresses["broker-a"], queue, MESSAGES)
    return results


def message_of(topic: str, number: int) -> Message:
    return Message(
        topic=topic,
        body=str(number).encode() * (1 if number else 2000),
        properties={"KEYS": f"k{number}", "TAGS": "paid", "__SHARDINGKEY": "s", "colour": "blue"},
        flag=number,
    )


def options_for(cluster: ClusterUnderTest, queue: MessageQueue, **more: str) -> ReadOptions:
    """Those of a replay of the queue's topic."""
    return ReadOptions.parse(
        {
            "nameServers": cluster.name_servers,
            "topic": queue.topic,
            "decodeProperties": "true",
            "requestTimeoutMs": str(int(ANSWER_S * 1000)),
        }
        | more
    )


def part_of(
    cluster: ClusterUnderTest, queue: MessageQueue, copy: MessageQueue, **options_of_source: str
) -> Resending:
    """All of ``queue`` to ``copy``, as a step of a replay."""
    options = options_for(cluster, queue, **options_of_source)
    [partition] = RocketMQBatchReader(options).partitions()
    assert isinstance(partition, QueuePartition)
    target = TargetTopic(options, copy.topic)
    [sending] = target.sendings("r1", [partition.planned])
    return Resending(
        partition=changed(partition, columns=RESEND_COLUMNS),
        sending=sending,
        target=target.partition(sending.target),
    )


def resend(cluster: ClusterUnderTest, part: Resending) -> int:
    task = ResendRanges(
        parts=[part],
        name_servers=(cluster.name_servers,),
        send_timeout_s=ANSWER_S,
        messages_at_once=AT_ONCE,
        route=TargetTopic(options_for(cluster, part.sending.target), part.sending.target.topic).route(),
    )
    [row] = list(task([ONE_TASK]))
    return int(row.column("sent")[0].as_py())


def look(part: Resending) -> Sending:
    """How far the range has come, as a later run finds."""
    bounds, [highest] = read_tail(part.target, [part.sending], part.sending.target_offset)
    until = part.sending.stored_until(highest, bounds, fail_on_data_loss=True)
    return replace(part.sending, source=replace(part.sending.source, end=until))


def test_messages_of_a_batch_keep_all_they_had_with_their_ids(
    cluster: ClusterUnderTest,
    client: BrokerClient,
    queue: MessageQueue,
    copy: MessageQueue,
    stored: list[SendResult],
) -> None:
    """H3, G2 ★: each its own UNIQ_KEY, because the batch has none that would hide them (golden fact 2)."""
    sent = resend(cluster, part_of(cluster, queue, copy))
    [messages] = read_topic(client, cluster, [copy], MESSAGES).values()

    assert sent == MESSAGES
    assert [message.msg_id for message in messages] == [one.msg_id for one in stored]
    assert [(m.body, m.flag) for m in messages] == [
        (message_of("", number).body, number) for number in range(MESSAGES)
    ]
    kept = dict(message_of("", 7).properties) | {
        "REPLAYED_BY": "r1",
        "REPLAYED_FROM": f"{queue.topic}/broker-a/0/7",
    }
    assert messages[7].properties.items() >= kept.items()


def test_a_message_that_cannot_be_decoded_is_copied_with_the_bytes_that_are_stored(
    cluster: ClusterUnderTest, client: BrokerClient, queue: MessageQueue, copy: MessageQueue
) -> None:
    """L7, H3, undecodableMessages: the copy is an ordinary message
    that says what was wrong with the original.
    """
    store_as_it_is(cluster.broker_addresses["broker-a"], queue)
    await_readable(client, cluster.broker_addresses["broker-a"], queue, MESSAGES + 1)

    sent = resend(cluster, part_of(cluster, queue, copy, undecodableMessages="keep"))

    assert sent == MESSAGES + 1
    [messages] = read_topic(client, cluster, [copy], MESSAGES + 1).values()
    kept = messages[-1]
    assert (kept.body, kept.sys_flag, kept.keys) == (GARBAGE, 0, "poison")
    assert "marked as zlib but is not" in kept.properties["UNDECODABLE"]


@pytest.mark.parametrize("kind", [CompressionType.ZLIB, CompressionType.ZSTD, CompressionType.LZ4])
def test_messages_that_no_batch_has_room_for_are_copied_as_they_are_stored(
    cluster: ClusterUnderTest,
    client: BrokerClient,
    queue: MessageQueue,
    copy: MessageQueue,
    kind: CompressionType,
) -> None:
    """H3, G2 ★: one that expands beyond what brokers store, and one that fills what they store."""
    random = Random(0)
    half = random.randbytes(2 << 20)
    bodies = [half + bytes(4 << 20) + half[:1000], random.randbytes((4 << 20) - 10), b"small"]
    with Producer(
        (cluster.name_servers,),
        "p",
        send_timeout_s=ANSWER_S,
        compression_type=kind,
        compress_over_bytes=5 << 20,
        max_message_size=8 << 20,
    ) as producer:
        ids = [producer.send(Message(topic=queue.topic, body=body), queue=queue).msg_id for body in bodies]
    await_readable(client, cluster.broker_addresses["broker-a"], queue, MESSAGES + 3)

    sent = resend(cluster, part_of(cluster, queue, copy))

    assert sent == MESSAGES + 3
    [messages] = read_topic(client, cluster, [copy], MESSAGES + 3).values()
    assert [(m.body, m.msg_id) for m in messages[-3:]] == list(zip(bodies, ids, strict=True))
    compression = [m.sys_flag >> COMPRESSION_TYPE_SHIFT for m in messages[-3:]]
    assert compression == [kind, 0, 0]


@pytest.fixture
def most_bytes(cluster: ClusterUnderTest) -> Iterator[int]:
    """The maxMessageSize of broker-a meanwhile."""

    def set_to(size: int) -> None:
        setting = f"maxMessageSize={size}".encode()
        address = cluster.broker_addresses["broker-a"]
        answer = plain_remoting.call(address, int(RequestCode.UPDATE_BROKER_CONFIG), body=setting)
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    set_to(10_000)
    yield 10_000
    set_to(4 << 20)


def test_messages_as_large_as_their_broker_takes_are_copied(
    cluster: ClusterUnderTest, client: BrokerClient, queue: MessageQueue, copy: MessageQueue, most_bytes: int
) -> None:
    """H3, G2 ★: no batch has room for them, nor, once expanded, for a compressed one."""
    half = Random(0).randbytes(most_bytes // 2)
    bodies = [Random(1).randbytes(most_bytes), half + bytes(most_bytes) + half[:1000], b"small"]
    with Producer(
        (cluster.name_servers,), "p", send_timeout_s=ANSWER_S, compress_over_bytes=most_bytes + 1
    ) as producer:
        for body in bodies:
            producer.send(Message(topic=queue.topic, body=body), queue=queue)
    await_readable(client, cluster.broker_addresses["broker-a"], queue, MESSAGES + 3)

    assert resend(cluster, part_of(cluster, queue, copy)) == MESSAGES + 3

    [messages] = read_topic(client, cluster, [copy], MESSAGES + 3).values()
    assert [message.body for message in messages[-3:]] == bodies


@SIM_ONLY
def test_a_message_that_the_target_does_not_take_is_named(
    cluster: ClusterUnderTest, client: BrokerClient, queue: MessageQueue, copy: MessageQueue
) -> None:
    """H3: its broker may take less than that of the source."""
    for code in (RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2):
        cluster.faults.add(
            "answer-code",
            on=int(code),
            times=MESSAGES,
            response_code=ResponseCode.MESSAGE_ILLEGAL,
            remark="the message is illegal, msg body length limit 100B",
        )

    with pytest.raises(RocketMQError, match=rf"{queue.topic}/broker-a/0/0.*Raise maxMessageSize"):
        resend(cluster, part_of(cluster, queue, copy))


@SIM_ONLY
@pytest.mark.parametrize("code", [ResponseCode.MESSAGE_ILLEGAL, ResponseCode.REQUEST_CODE_NOT_SUPPORTED])
def test_a_batch_that_the_target_does_not_take_goes_in_parts_in_its_order(
    cluster: ClusterUnderTest,
    client: BrokerClient,
    queue: MessageQueue,
    copy: MessageQueue,
    code: ResponseCode,
) -> None:
    """H3, L8: in halves where it is too large, one by one where the cluster takes no batches."""
    cluster.faults.add(
        "answer-code",
        on=int(RequestCode.SEND_BATCH_MESSAGE),
        times=2,
        response_code=code,
        remark="msg body length limit 100B",
    )

    assert resend(cluster, part_of(cluster, queue, copy)) == MESSAGES

    [messages] = read_topic(client, cluster, [copy], MESSAGES).values()
    assert [message.flag for message in messages] == list(range(MESSAGES))
    assert len({message.msg_id for message in messages}) == MESSAGES
    cluster.faults.clear()


def test_after_a_death_at_any_point_the_rest_is_sent_and_nothing_twice(
    cluster: ClusterUnderTest,
    client: BrokerClient,
    queue: MessageQueue,
    copy: MessageQueue,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H3 ★: other writers send between, and behind, what is looked for."""
    store = TargetQueue.store

    def store_and_die(target: TargetQueue, messages: Sequence[Message]) -> SendResult:
        result = store(target, messages)
        if any(message.body == b"12" for message in messages):
            raise RocketMQError("killed")
        return result

    part = part_of(cluster, queue, copy)
    address = cluster.broker_addresses["broker-a"]
    assert look(part).source.count == 0
    with monkeypatch.context() as patch:
        patch.setattr(TargetQueue, "store", store_and_die)
        with pytest.raises(RocketMQError, match="killed"):
            resend(cluster, part)
    with Producer((cluster.name_servers,), "p", send_timeout_s=ANSWER_S) as producer:
        producer.send(Message(topic=copy.topic, body=b"other's"), queue=copy)
    await_readable(client, address, copy, 2 * AT_ONCE + 1)

    ended = look(part)
    rest = replace(part.partition, planned=part.partition.planned.starting_at(ended.source.end))
    again = replace(part.sending, run="r2", source=rest.planned, target_offset=2 * AT_ONCE + 1)
    resend(cluster, replace(part, partition=rest, sending=again))
    [messages] = read_topic(client, cluster, [copy], MESSAGES + 1).values()

    assert ended.source.end == 2 * AT_ONCE
    assert [m.flag for m in messages if m.body != b"other's"] == list(range(MESSAGES))
    whole = look(replace(part, sending=again))
    assert whole.source == rest.planned


@SIM_ONLY
def test_a_batch_whose_answer_is_lost_is_not_sent_again_if_it_is_stored(
    cluster: ClusterUnderTest,
    client: BrokerClient,
    queue: MessageQueue,
    copy: MessageQueue,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H3: within one task; the queue is looked at only when nothing can be on its way any more."""
    part = part_of(cluster, queue, copy)
    cluster.faults.add("cut", on=int(RequestCode.SEND_BATCH_MESSAGE))
    slept: list[float] = []
    monkeypatch.setattr(tasks, "time", SimpleNamespace(sleep=slept.append))

    resend(cluster, part)
    [messages] = read_topic(client, cluster, [copy], MESSAGES).values()

    assert not cluster.faults.pending
    assert slept.count(ANSWER_S) == 1
    assert [message.flag for message in messages] == list(range(MESSAGES))


def busy(cluster: ClusterUnderTest, times: int) -> None:
    cluster.faults.add(
        "answer-code",
        on=int(RequestCode.SEND_BATCH_MESSAGE),
        times=times,
        response_code=ResponseCode.SYSTEM_BUSY,
        remark="[TIMEOUT_CLEAN_QUEUE]",
    )


@SIM_ONLY
def test_a_busy_broker_is_waited_for(
    cluster: ClusterUnderTest, client: BrokerClient, queue: MessageQueue, copy: MessageQueue
) -> None:
    """H3, A2: nothing is sent twice that was refused."""
    busy(cluster, 3)

    assert resend(cluster, part_of(cluster, queue, copy)) == MESSAGES
    assert not cluster.faults.pending
    [messages] = read_topic(client, cluster, [copy], MESSAGES).values()
    assert [message.flag for message in messages] == list(range(MESSAGES))


@SIM_ONLY
def test_one_that_stays_busy_ends_the_task(
    cluster: ClusterUnderTest, queue: MessageQueue, copy: MessageQueue
) -> None:
    """H3: after retryTimeoutMs."""
    busy(cluster, 50)

    with pytest.raises(RocketMQError, match="TIMEOUT_CLEAN_QUEUE"):
        resend(cluster, part_of(cluster, queue, copy, retryTimeoutMs="300"))


@SIM_ONLY
def test_a_task_sends_to_the_target_the_driver_saw_while_a_restarted_name_server_knows_no_broker(
    cluster: ClusterUnderTest, client: BrokerClient, queue: MessageQueue, copy: MessageQueue
) -> None:
    """G7, H3: other brokers would make the topic."""
    part = part_of(cluster, queue, copy)
    route = TargetTopic(options_for(cluster, queue), copy.topic).route()
    task = ResendRanges(parts=[part], name_servers=(cluster.name_servers,), send_timeout_s=2.0, route=route)
    cluster.restart_name_server()
    cluster.faults.add("drop-before", on=int(RequestCode.SEND_BATCH_MESSAGE))

    [row] = list(task([ONE_TASK]))

    assert row.to_pydict() == {"task": [0], "sent": [MESSAGES]}
    assert cluster.routed_brokers(copy.topic) == set()
    [messages] = read_topic(client, cluster, [copy], MESSAGES).values()
    assert [message.flag for message in messages] == list(range(MESSAGES))


@SIM_ONLY
def test_an_unknown_target_topic_is_looked_up_before_brokers_create_it(
    cluster: ClusterUnderTest, queue: MessageQueue, copy: MessageQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """G7, H3: its broker may be restarting."""
    found: list[TopicRoute] = []
    cluster.restart_name_server()
    looking = threading.Thread(
        target=lambda: found.append(TargetTopic(options_for(cluster, queue), copy.topic).route())
    )
    looking.start()
    wait_until(lambda: "topic is not there, looking for it" in caplog.text)
    cluster.register_brokers()
    looking.join(3 * ANSWER_S)

    assert [one.publish_queues(copy.topic) for one in found] == [(copy,)]
