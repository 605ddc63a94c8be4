"""What a user need not say means the same here as in Java's client, and what Java refuses is refused."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from pyspark_rocketmq.client.pool import ConnectionSettings
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.consume.membership import MembershipTiming
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.errors import LocalProtocolError
from pyspark_rocketmq.model import ConsumeFromWhere, Message, MessageModel, MessageQueue
from pyspark_rocketmq.options.parsers import resource_name
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.wire import properties
from pyspark_rocketmq.wire.requests.send import (
    AUTO_CREATE_TOPIC,
    DEFAULT_TOPIC_QUEUE_NUMS,
    SendSettings,
    send_command,
)
from tests.helpers.golden import golden

NUMBERS = golden("numbers.json")
PUSH = NUMBERS["defaults_DefaultMQPushConsumer"]
LITE_PULL = NUMBERS["defaults_DefaultLitePullConsumer"]
PRODUCER = NUMBERS["defaults_DefaultMQProducer"]
REFUSALS = {case["case"]: case["result"] for case in NUMBERS["Validators_checkMessage_and_putUserProperty"]}
GROUP_LIMIT = NUMBERS["name_limits"]["Validators.CHARACTER_MAX_LENGTH (group)"]
TOPIC_LIMIT = NUMBERS["name_limits"]["Validators.TOPIC_MAX_LENGTH"]
_QUEUE = MessageQueue("T", "broker-a", 0)


def _default(function: type[Producer] | type[PushConsumer], name: str) -> Any:
    return inspect.signature(function).parameters[name].default


SOURCE = ReadOptions.parse({"nameServers": "h:1", "topic": "T"})
TIMING = MembershipTiming()

CONSUMER_DEFAULTS = {
    "getConsumeFromWhere": _default(PushConsumer, "consume_from_where"),
    "getConsumeMessageBatchMaxSize": _default(PushConsumer, "consume_message_batch_max_size"),
    "getConsumeThreadMax": _default(PushConsumer, "consume_thread_max"),
    "getConsumeTimeout": _default(PushConsumer, "consume_timeout_s") / 60,
    "getHeartbeatBrokerInterval": TIMING.heartbeat_s * 1000,
    "getMaxReconsumeTimes": _default(PushConsumer, "max_reconsume_times"),
    "getMessageModel": _default(PushConsumer, "message_model"),
    "getNamespaceV2": SOURCE.namespace,
    "getPollNameServerInterval": SOURCE.route_refresh_ms,
    "getPullBatchSize": SOURCE.pull_batch_size,
    "getPullThresholdForTopic": -1 if SOURCE.max_offsets_per_trigger is None else None,
    "getPullThresholdSizeForQueue": SOURCE.pull_threshold_size_for_queue,
    "getPullThresholdSizeForTopic": -1 if SOURCE.max_bytes_per_trigger is None else None,
    "getSuspendCurrentQueueTimeMillis": _default(PushConsumer, "suspend_current_queue_time_millis"),
    "isUseTLS": SOURCE.use_tls,
    "isVipChannelEnabled": False,
}
LITE_PULL_DEFAULTS = {
    "getMessageModel": SOURCE.message_model,
    "getNamespaceV2": SOURCE.namespace,
    "getHeartbeatBrokerInterval": TIMING.heartbeat_s * 1000,
    "getPollNameServerInterval": SOURCE.route_refresh_ms,
    "getPullThresholdSizeForQueue": SOURCE.pull_threshold_size_for_queue,
    "getTopicMetadataCheckIntervalMillis": SOURCE.route_refresh_ms,
    "isUseTLS": SOURCE.use_tls,
}
PRODUCER_DEFAULTS = {
    "getCompressMsgBodyOverHowmuch": _default(Producer, "compress_over_bytes"),
    "getCompressType": _default(Producer, "compression_type").name,
    "getCreateTopicKey": AUTO_CREATE_TOPIC,
    "getDefaultTopicQueueNums": DEFAULT_TOPIC_QUEUE_NUMS,
    "getMaxMessageSize": _default(Producer, "max_message_size"),
    "getRetryTimesWhenSendAsyncFailed": _default(Producer, "retry_times_when_send_async_failed"),
    "getRetryTimesWhenSendFailed": _default(Producer, "retry_times_when_send_failed"),
    "getSendMsgTimeout": _default(Producer, "send_timeout_s") * 1000,
    "isSendLatencyFaultEnable": _default(Producer, "send_latency_fault_enable"),
    "isUseTLS": ConnectionSettings().use_tls,
}


@pytest.mark.parametrize(("getter", "ours"), CONSUMER_DEFAULTS.items())
def test_consumer_defaults_are_those_of_java(
    getter: str, ours: ConsumeFromWhere | MessageModel | bool | float | None
) -> None:
    """B4, D1, D6, E1, F1: sizes, times, numbers of redeliveries and threads."""
    assert ours == PUSH[getter]


@pytest.mark.parametrize(("getter", "ours"), LITE_PULL_DEFAULTS.items())
def test_source_defaults_are_those_of_java_s_lite_pull_consumer(
    getter: str, ours: MessageModel | bool | float | None
) -> None:
    """A2, D13."""
    assert ours == LITE_PULL[getter]


@pytest.mark.parametrize(("getter", "ours"), PRODUCER_DEFAULTS.items())
def test_producer_defaults_are_those_of_java(getter: str, ours: bool | float | str) -> None:
    """G1, G2: retries, time, compression, the topic others are made after."""
    assert ours == PRODUCER[getter]


def test_a_pull_asks_for_as_many_messages_as_the_push_consumer_s() -> None:
    """A1: the lite pull consumer asks for less, in batches of ten (golden fact 24)."""
    assert SOURCE.pull_batch_size == PUSH["getPullBatchSize"] > LITE_PULL["getPullBatchSize"]


def test_a_queue_has_no_bound_in_messages() -> None:
    """D13: the reason for the difference is the option's documentation."""
    assert SOURCE.pull_threshold_for_queue is None
    assert PUSH["getPullThresholdForQueue"] == LITE_PULL["getPullThresholdForQueue"] == 1000


@pytest.mark.parametrize(
    ("case", "body"),
    [("empty body", b""), ("body 4194304", bytes(4194304)), ("body 4194305", bytes(4194305))],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_message_is_refused_before_sending_where_java_refuses_it(case: str, body: bytes) -> None:
    """G2: ``Validators.checkMessage``."""
    message, settings = Message(topic="T", body=body), SendSettings(producer_group="P")
    if REFUSALS[case] == "ok":
        assert send_command(message, _QUEUE, settings, 0).body == body
    else:
        with pytest.raises(LocalProtocolError):
            send_command(message, _QUEUE, settings, 0)


def test_what_else_java_refuses_cannot_be_written_in_python_or_is_a_property_of_its_own() -> None:
    """G2: no null message or body by type; reserved names are how tags and keys are given here."""
    others = REFUSALS.keys() - {"empty body", "body 4194304", "body 4194305"}
    assert others == {
        "null body",
        "null message",
        "putUserProperty blank value",
        "putUserProperty empty value",
        "putUserProperty null value",
        "putUserProperty reserved name KEYS",
    }
    assert all("error" in REFUSALS[case] for case in others)


def test_the_properties_we_write_are_names_java_reserves() -> None:
    """G2: a user's own property never has one of these names in Java."""
    reserved = set(NUMBERS["MessageConst_reserved_property_names"])
    constants = (
        value for name, value in vars(properties).items() if name.isupper() and isinstance(value, str)
    )
    ours = {value for value in constants if value.replace("_", "").isalpha()}

    assert {"UNIQ_KEY", "WAIT"} <= ours & reserved
    # Java has constants for these too, but forgot to reserve them.
    assert ours - reserved == {"INNER_NUM", "__SHARDINGKEY"}


@pytest.mark.parametrize(
    "case", NUMBERS["name_validation"], ids=lambda case: f"{case['name']!s:.12}-{case['len']}"
)
def test_topic_and_group_options_take_the_names_java_takes(case: dict[str, Any]) -> None:
    """``Validators.checkTopic`` and ``checkGroup``; blanks around an option's value are not part of it."""
    name = (case["name"] or "").strip()
    for kind, limit, judged in (
        ("topic", TOPIC_LIMIT, case["client_checkTopic"]),
        ("consumer group", GROUP_LIMIT, case["client_checkGroup"]),
    ):
        parse = resource_name(kind, limit)
        if judged == "ok" or (name and name != case["name"]):
            assert parse(case["name"]) == name
        else:
            with pytest.raises(ValueError):
                parse(name)


def test_topics_are_limited_to_127_characters_and_groups_to_255() -> None:
    """Golden fact 22."""
    assert (TOPIC_LIMIT, GROUP_LIMIT) == (127, 255)
    base = {"nameServers": "h:1", "offsetStore": "offsets"}
    ReadOptions.parse({**base, "topic": "t" * TOPIC_LIMIT, "consumerGroup": "g" * GROUP_LIMIT})
    for key, name in (("topic", "t" * (TOPIC_LIMIT + 1)), ("consumerGroup", "g" * (GROUP_LIMIT + 1))):
        with pytest.raises(Exception, match="longer than"):
            ReadOptions.parse({**base, "topic": "T", key: name})
