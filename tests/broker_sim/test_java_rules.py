"""Rules of a broker that Java's own classes were asked for: names, permissions, delay levels, odd sends."""

from __future__ import annotations

from typing import Any

import pytest

from broker_sim.settings import BrokerSettings
from broker_sim.topics import Topic, is_closed_to_producers, is_system_topic, name_problem
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.message_ids import decode_offset_message_id
from tests.broker_sim.exchange import add_topic, ask, make_broker, request
from tests.helpers.fake_clock import FakeClock
from tests.helpers.golden import golden

NUMBERS = golden("numbers.json")
MESSAGES = golden("messages.json")
NAMES = NUMBERS["name_validation"]
_TOPIC = "GoldenRaw"
_UNIT_S = {"s": 1, "m": 60, "h": 3600}


def _name(case: dict[str, Any]) -> str:
    return f"{(case['name'] or str(case['name']))[:12]}-{case['len']}"


@pytest.mark.parametrize("case", NAMES, ids=_name)
def test_topic_names_are_judged_as_by_a_broker(case: dict[str, Any]) -> None:
    """G1: ``TopicValidator.validateTopic``, in its words."""
    judged = case["broker_validateTopic"]
    expected = None if judged == "ok" else judged["invalid"]

    assert name_problem(case["name"] or "") == expected


@pytest.mark.parametrize("case", [case for case in NAMES if case["name"] is not None], ids=_name)
def test_system_topics_and_those_closed_to_producers_are_java_s(case: dict[str, Any]) -> None:
    """G1: ``isSystemTopic`` and ``isNotAllowedSendTopic``."""
    assert is_system_topic(case["name"]) == (case["client_isSystemTopic"] != "ok")
    assert is_closed_to_producers(case["name"]) == (case["client_isNotAllowedSendTopic"] != "ok")


@pytest.mark.parametrize("topic", NUMBERS["not_allowed_send_topics"])
def test_every_topic_java_closes_to_producers_is_closed(topic: str) -> None:
    assert is_closed_to_producers(topic)


@pytest.mark.parametrize("topic", NUMBERS["system_topics"])
def test_every_system_topic_of_java_is_one(topic: str) -> None:
    assert is_system_topic(topic)


@pytest.mark.parametrize(("perm", "text"), NUMBERS["PermName_perm2String"].items())
def test_permissions_are_spelled_as_in_java(perm: str, text: str) -> None:
    config = Topic(topic_name="T", read_queue_nums=1, write_queue_nums=1, perm=int(perm))
    assert f"perm={text}," in str(config)


def test_the_delay_levels_are_java_s() -> None:
    """E3: eighteen, from one second to two hours."""
    levels = NUMBERS["MessageStoreConfig.messageDelayLevel_default"].split()
    assert BrokerSettings().delay_levels_s == tuple(int(text[:-1]) * _UNIT_S[text[-1]] for text in levels)


def test_odd_sends_are_answered_as_by_a_broker() -> None:
    """G2: 14 bare sends, one after another: without properties, without an end mark, too long,
    without a body.
    """
    broker = make_broker(FakeClock())
    for topic in (_TOPIC, "GoldenBatchRaw"):
        add_topic(broker, topic, 1)
    for case in MESSAGES["raw_send_results"]:
        answer = ask(broker, _raw_send(case))
        java = case["result"]
        assert answer.code == java["code"], case
        fields = java["ext"] or {}
        # A broker that stumbled over its own null has no fields; the simulator's refusal has none either.
        assert (answer.ext_fields or {}).keys() == fields.keys(), case
        for name in ("queueId", "queueOffset", "MSG_REGION", "TRACE_ON"):
            assert answer.ext_fields.get(name) == fields.get(name), case
        assert answer.ext_fields.get("msgId", "").count(",") == fields.get("msgId", "").count(","), case


def _raw_send(case: dict[str, Any]) -> RemotingCommand:
    note = case.get("note", "")
    properties = case["properties_sent"]
    body = case.get("body", "raw")
    is_batch = "batch_body_hex" in case
    if properties == "long":
        # Name, both marks, and as many letters as fit.
        properties = f"p\x01{'x' * (int(note.split()[0]) - 3)}\x02"
    if body in ("(empty array)", None):
        content = b""
    else:
        content = bytes.fromhex(case["batch_body_hex"]) if is_batch else body.encode()
    fields = {
        "a": "tests",
        "b": "GoldenBatchRaw" if is_batch else _TOPIC,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": case.get("sysFlag", 0),
        "g": 1_700_000_000_123,
        "h": "0",
        "i": "" if is_batch else properties,
        "j": case.get("reconsumeTimes", 0),
        "k": "false",
        "m": "true" if is_batch else "false",
    }
    code = RequestCode.SEND_BATCH_MESSAGE if is_batch else RequestCode.SEND_MESSAGE_V2
    return request(code, fields, body=content)


def test_sends_to_an_inner_batch_queue_are_counted_by_members() -> None:
    """A1: each SendResult names the first member's offset and the one
    place of the whole batch (golden fact 7).
    """
    (pull,) = (pull for pull in MESSAGES["pulls"] if pull["name"] == "inner_batch")
    queue = MessageQueue(pull["topic"], "broker-a", pull["queueId"])
    for shown, stored in zip(MESSAGES["inner_batch_send_results"], pull["expected"], strict=True):
        assert f"messageQueue=MessageQueue [topic={queue.topic}, brokerName=broker-a, queueId=0]" in shown
        assert f"queueOffset={stored['queueOffset']}," in shown
        offset_message_id = shown.partition("offsetMsgId=")[2].partition(",")[0]
        assert decode_offset_message_id(offset_message_id)[1] == stored["commitLogOffset"]
