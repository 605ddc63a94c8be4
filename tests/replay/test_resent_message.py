"""What of a message is the message, and what was only its first delivery."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.replay.ranges import batches_of, resent_message

ORIGIN = MessageQueue("orders", "broker-a", 3)


def resent(**properties: str) -> Message:
    original = Message(topic="orders", body=b"x", properties=properties, flag=7)
    return resent_message("copy", original, ORIGIN, 42, "r1")


def test_the_message_keeps_what_its_producer_gave_it() -> None:
    """H3"""
    message = resent(KEYS="k1 k2", TAGS="paid", __SHARDINGKEY="k1", colour="blue", UNIQ_KEY="AC10")

    assert (message.topic, message.body, message.flag) == ("copy", b"x", 7)
    assert message.properties == {
        "KEYS": "k1 k2", "TAGS": "paid", "__SHARDINGKEY": "k1", "colour": "blue", "UNIQ_KEY": "AC10",
        "REPLAYED_FROM": "orders/broker-a/3/42", "REPLAYED_BY": "r1",
    }  # fmt: skip


def test_properties_a_broker_would_act_upon_again_are_left_out() -> None:
    """H3, G3: a delayed message would be delayed once more, a message given back would count as one."""
    message = resent(
        DELAY="3", TIMER_DELIVER_MS="1", REAL_TOPIC="t", REAL_QID="1", TRAN_MSG="true", PGROUP="p",
        RETRY_TOPIC="orders",
        RECONSUME_TIME="4", MIN_OFFSET="0", MAX_OFFSET="9", CLUSTER="c", INNER_NUM="2", WAIT="true",
        TIMER_OUT_MS="1",
        TIMER_ENQUEUE_MS="1", TIMER_DEQUEUE_MS="1", TIMER_ROLL_TIMES="1", TRANSACTION_CHECK_TIMES="1",
        POP_CK="0 1", _SYS_MSG_PRIORITY_="3", __LITE_TOPIC="l",
    )  # fmt: skip

    assert message.properties.keys() == {"REPLAYED_FROM", "REPLAYED_BY"}


def test_a_run_that_an_original_names_is_kept_under_another_name() -> None:
    """H3: its producer's own property, or an earlier replay's."""
    message = resent(REPLAYED_BY="alice")

    assert (message.properties["REPLAYED_BY"], message.properties["REPLAYED_BY_BEFORE"]) == ("r1", "alice")


def test_dead_letters_keep_where_they_came_from() -> None:
    """E4, H3"""
    message = resent(DLQ_ORIGIN_TOPIC="orders", DLQ_ORIGIN_MESSAGE_ID="AC10")

    assert message.properties["DLQ_ORIGIN_TOPIC"] == "orders"


@pytest.mark.parametrize(
    ("value", "problem"), [("a\x01b", r"U\+0001"), ("x" * 32_750, "take 328.. bytes, more than the 32767")]
)
def test_a_message_whose_properties_cannot_be_sent_is_named(value: str, problem: str) -> None:
    """H3: Java's producers send such values, and a copy has two properties more than its original."""
    messages = [resent(colour="blue"), resent(colour=value)]
    named = r"^Message orders/broker-a/3/42 \(topic/broker/queue/offset\) cannot be sent to topic=copy .*"

    assert batches_of(messages[:1], ORIGIN._replace(topic="copy")) == [messages[:1]]
    with pytest.raises(RocketMQError, match=named + problem + ".* leave the message out of the replay"):
        batches_of(messages, ORIGIN._replace(topic="copy"))
