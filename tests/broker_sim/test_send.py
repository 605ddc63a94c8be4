from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker_sim.broker import Broker
from pyspark_rocketmq.model import Message, MessageExt, MessageQueue
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.messages import decode_messages
from tests.broker_sim.exchange import (
    GROUP,
    OTHER_PEER,
    PEER,
    TOPIC,
    ask,
    held_pull,
    make_broker,
    pull,
    request,
    send,
    send_batch,
)
from tests.helpers.fake_clock import FakeClock

_ALWAYS = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
_RETRY = f"%RETRY%{GROUP}"
_DEAD = f"%DLQ%{GROUP}"


@pytest.fixture
def broker(clock: FakeClock) -> Broker:
    return make_broker(clock)


def _stored(broker: Broker, topic: str = TOPIC, queue_id: int = 0) -> list[MessageExt]:
    return decode_messages(ask(broker, pull(topic=topic, queueId=queue_id)).body, "broker-a")


def test_a_send_is_answered_with_where_the_message_lies(broker: Broker) -> None:
    answers = [ask(broker, send(b"first")), ask(broker, send(b"second"))]
    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * 2
    first, second = _stored(broker)
    assert answers[1].ext_fields == {
        "queueId": "0",
        "queueOffset": "1",
        "msgId": f"7F00000100002A9F{second.commit_log_offset:016X}",
        "transactionId": "AB",
        **_ALWAYS,
    }
    assert (first.body, first.queue_offset, first.tags) == (b"first", 0, "TagA")


def test_what_the_producer_said_is_stored_and_the_broker_adds_its_own(
    broker: Broker, clock: FakeClock
) -> None:
    ask(broker, send(b"x", e=2, f=0x301, g=1234, h=-2, i="KEYS\x01k1 k2\x02", j=3))
    raw = ask(broker, pull(queueId=2)).body
    assert raw[36:40] == (0x301).to_bytes(4, "big")
    stored = _decoded_without_body(raw)
    assert (stored.queue_id, stored.flag, stored.born_timestamp, stored.reconsume_times) == (2, -2, 1234, 3)
    assert (stored.born_host, stored.store_host) == ("127.0.0.1:50001", "127.0.0.1:10911")
    assert stored.store_timestamp == clock.now_s() * 1000
    assert stored.keys == "k1 k2"
    assert stored.properties.items() >= {**_ALWAYS, "CLUSTER": "DefaultCluster"}.items()
    assert stored.properties["UNIQ_KEY"]


def _decoded_without_body(raw: bytes) -> MessageExt:
    """The body says it is compressed but is not: clear that bit before decoding."""
    return decode_messages(raw[:36] + bytes(4) + raw[40:], "broker-a")[0]


def test_version_1_of_the_send_request_is_understood(broker: Broker) -> None:
    fields = {
        "producerGroup": "P",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 1,
        "sysFlag": 0,
        "bornTimestamp": 0,
        "flag": 0,
        "properties": "TAGS\x01V1\x02",
        "reconsumeTimes": 0,
        "unitMode": "false",
        "batch": "false",
    }
    answer = ask(broker, request(RequestCode.SEND_MESSAGE, fields, body=b"v1"))
    assert answer.ext_fields["queueId"] == "1"
    assert [(each.body, each.tags) for each in _stored(broker, queue_id=1)] == [(b"v1", "V1")]


def test_a_batch_is_stored_as_consecutive_messages_that_show_one_msg_id(broker: Broker) -> None:
    ask(broker, send(b"before"))
    messages = [
        Message(
            topic=TOPIC, body=b"%d" % number, properties={"UNIQ_KEY": f"own{number}", "KEYS": f"k{number}"}
        )
        for number in range(3)
    ]
    answer = ask(broker, send_batch(messages))
    stored = _stored(broker)[1:]
    assert [(each.queue_offset, each.body, each.keys) for each in stored] == [
        (1, b"0", "k0"),
        (2, b"1", "k1"),
        (3, b"2", "k2"),
    ]
    assert {each.msg_id for each in stored} == {"CD"}
    assert answer.ext_fields["queueOffset"] == "1"
    assert answer.ext_fields["transactionId"] == "CD"
    ids = answer.ext_fields["msgId"].split(",")
    assert ids == [f"7F00000100002A9F{each.commit_log_offset:016X}" for each in stored]


def test_an_empty_body_is_refused_by_itself_and_stored_in_a_batch(broker: Broker) -> None:
    assert ask(broker, send(b"")).code == ResponseCode.SYSTEM_ERROR
    ask(broker, send_batch([Message(topic=TOPIC, body=b""), Message(topic=TOPIC, body=b"x")]))
    assert [each.body for each in _stored(broker)] == [b"", b"x"]


def test_a_batch_that_ends_inside_a_member_is_refused_whole(broker: Broker) -> None:
    whole = send_batch([Message(topic=TOPIC, body=b"one"), Message(topic=TOPIC, body=b"two")])
    answer = ask(broker, replace(whole, body=whole.body[:-1]))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert _stored(broker) == []


def test_a_batch_that_a_broker_would_store_damaged_is_refused_whole(broker: Broker) -> None:
    """RocketMQ writes the sum of a member's and the batch's properties as a short, without a check."""
    batch = [Message(topic=TOPIC, body=b"y"), Message(topic=TOPIC, body=b"x", properties={"a": "x" * 32_000})]
    answer = ask(broker, send_batch(batch, i="b\x01" + "x" * 800 + "\x02"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "damage" in str(answer.remark)
    assert _stored(broker) == []


@pytest.mark.parametrize(("asked", "queues"), [(4, 4), (2, 2), (16, 8)])
def test_a_topic_is_made_at_its_first_message(broker: Broker, asked: int, queues: int) -> None:
    assert ask(broker, send(b="new", d=asked)).code == ResponseCode.SUCCESS
    topic = broker.state.topics.find("new")
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (queues, queues, 6)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"b": "bad.topic"}, ResponseCode.INVALID_PARAMETER),
        ({"b": "x" * 128}, ResponseCode.INVALID_PARAMETER),
        ({"b": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION),
        ({"b": "new", "c": "NoDefaultTopic"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"e": 4}, ResponseCode.INVALID_PARAMETER),
        ({"i": "a\x01" + "x" * 32767 + "\x02"}, ResponseCode.MESSAGE_ILLEGAL),
    ],
)
def test_a_send_that_cannot_be_stored_is_refused(broker: Broker, fields: dict[str, Any], code: int) -> None:
    answer = ask(broker, send(**fields))
    assert (answer.code, answer.ext_fields) == (code, _ALWAYS)


def test_a_body_over_4_mib_is_refused(broker: Broker) -> None:
    assert ask(broker, send(bytes(4 << 20))).code == ResponseCode.SUCCESS
    assert ask(broker, send(bytes((4 << 20) + 1))).code == ResponseCode.MESSAGE_ILLEGAL


def test_automatic_topics_can_be_switched_off(broker: Broker) -> None:
    broker.state.settings = replace(broker.state.settings, auto_create_topic_enable=False)
    assert ask(broker, send(b="new")).code == ResponseCode.TOPIC_NOT_EXIST


def test_without_a_queue_id_the_broker_goes_round_the_queues(broker: Broker) -> None:
    answers = [ask(broker, send(e=-1)) for _ in range(8)]
    assert {answer.ext_fields["queueId"] for answer in answers} == {"0", "1", "2", "3"}


def test_a_retry_of_an_unlocked_group_stays_in_the_retry_topic_until_its_maximum(broker: Broker) -> None:
    """D6: reconsumeTimes above the maximum goes to the dead letters."""
    ask(broker, send(b"again", b=_RETRY, j=2, l=2))
    ask(broker, send(b"dead", b=_RETRY, j=3, l=2))
    assert [each.body for each in _stored(broker, _RETRY)] == [b"again"]
    assert [(each.body, each.properties["DELAY"]) for each in _stored(broker, _DEAD)] == [(b"dead", "-1")]


def test_a_retry_of_a_group_that_holds_a_lock_is_a_dead_letter_at_once(
    broker: Broker, clock: FakeClock
) -> None:
    """D6: orderly consumers hold locks; their retries come after the last attempt."""
    broker.state.locks.lock_batch(GROUP, "c1", [MessageQueue(TOPIC, "broker-a", 0)])
    ask(broker, send(b"dead", b=_RETRY, j=1, l=16))
    clock.advance(61)
    ask(broker, send(b"again", b=_RETRY, j=1, l=16))
    assert [each.body for each in _stored(broker, _DEAD)] == [b"dead"]
    assert [each.body for each in _stored(broker, _RETRY)] == [b"again"]


def test_a_retry_of_a_group_that_may_not_be_made_is_refused(broker: Broker) -> None:
    broker.state.settings = replace(broker.state.settings, auto_create_subscription_group=False)
    assert ask(broker, send(b=_RETRY)).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_a_oneway_send_is_stored_and_not_answered(broker: Broker) -> None:
    assert broker.handle(PEER, replace(send(b"quiet"), flag=2)) == []
    assert [each.body for each in _stored(broker)] == [b"quiet"]


# --- delay ---


@pytest.mark.parametrize(
    ("level", "queue_id", "seconds"), [(1, 0, 1), (3, 2, 10), (18, 17, 7200), (99, 17, 7200)]
)
def test_a_delayed_message_waits_in_the_schedule_topic_until_its_time(
    broker: Broker, clock: FakeClock, level: int, queue_id: int, seconds: int
) -> None:
    """G2: 18 levels; what lies above the highest counts as the highest."""
    answer = ask(broker, send(b"later", e=1, i=f"DELAY\x01{level}\x02TAGS\x01TagA\x02"))
    assert (answer.code, answer.ext_fields["queueId"]) == (ResponseCode.SUCCESS, "1")
    (waiting,) = _stored(broker, "SCHEDULE_TOPIC_XXXX", queue_id)
    kept = {"REAL_TOPIC": TOPIC, "REAL_QID": "1", "DELAY": str(queue_id + 1)}
    assert waiting.properties.items() >= kept.items()
    assert broker.next_deadline_s() == clock.monotonic_s() + seconds
    clock.advance(seconds - 0.001)
    broker.look_at_clock()
    assert _stored(broker, queue_id=1) == []
    clock.advance(0.001)
    broker.look_at_clock()
    (delivered,) = _stored(broker, queue_id=1)
    assert (delivered.body, delivered.queue_offset, delivered.tags) == (b"later", 0, "TagA")
    assert delivered.properties == waiting.properties
    assert broker.next_deadline_s() is None


def test_a_delivered_message_wakes_who_waits_for_it(broker: Broker, clock: FakeClock) -> None:
    """G2: delayed messages reach long polls."""
    broker.handle(PEER, held_pull())
    ask(broker, send(b"later", i="DELAY\x011\x02"), OTHER_PEER)
    clock.advance(1)
    (outgoing,) = broker.look_at_clock()
    assert [each.body for each in decode_messages(outgoing.command.body, "broker-a")] == [b"later"]


@pytest.mark.parametrize("level", ["0", "-1", "soon"])
def test_what_is_no_level_delays_nothing(broker: Broker, level: str) -> None:
    ask(broker, send(b"now", i=f"DELAY\x01{level}\x02"))
    assert [each.body for each in _stored(broker)] == [b"now"]
