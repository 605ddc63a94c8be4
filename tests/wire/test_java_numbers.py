"""Small tables of Java's own output: names, flags, checksums and versions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker_sim.replies import SERVER_VERSION
from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import dlq_topic, retry_topic
from pyspark_rocketmq.wire.codes import CLIENT_VERSION, MessageSysFlag
from pyspark_rocketmq.wire.compression import CompressionType, compress, decompress
from pyspark_rocketmq.wire.fastjson import decode_body, dumps_java
from pyspark_rocketmq.wire.message_ids import decode_offset_message_id
from pyspark_rocketmq.wire.messages import body_crc
from pyspark_rocketmq.wire.requests.bodies import HeartbeatData
from pyspark_rocketmq.wire.subscription import java_string_hash
from tests.helpers.golden import golden
from tests.real_broker.artifacts import rocketmq_version

NUMBERS = golden("numbers.json")
_BODY = b"compressed " * 20


@pytest.mark.parametrize("case", NUMBERS["MixAll_getRetryTopic_getDLQTopic"], ids=lambda case: case["group"])
def test_retry_and_dead_letter_topics_are_named_as_in_java(case: dict[str, Any]) -> None:
    """D6: whatever the group's name."""
    assert (retry_topic(case["group"]), dlq_topic(case["group"])) == (case["retry"], case["dlq"])


@pytest.mark.parametrize("case", NUMBERS["crc32"], ids=lambda case: case["utf8"][:9])
def test_the_checksum_of_a_body_is_java_s(case: dict[str, Any]) -> None:
    """G2: the sign bit is cleared; the property's text has the ten digits reversed."""
    body = case["utf8"].encode()

    assert body_crc(body) == case["UtilAll.crc32"]
    reversed_digits = f"{body_crc(body):010d}"[::-1]
    assert case["MessageDecoder.createCrc32_property_text"] == f"__CRC32#\x01{reversed_digits}\x02"


@pytest.mark.parametrize("case", NUMBERS["MessageSysFlag"], ids=lambda case: hex(case["flag"]))
def test_the_bits_of_sysflag_are_java_s(case: dict[str, Any]) -> None:
    """G2: the transaction's two bits, the compressed bit, and the number of the compression type."""
    flag = case["flag"]

    assert flag & MessageSysFlag.TRANSACTION_ROLLBACK == case["transaction"]
    committed = flag & ~int(MessageSysFlag.TRANSACTION_ROLLBACK) | MessageSysFlag.TRANSACTION_COMMIT
    assert committed == case["resetToCommit"]
    assert flag & ~int(MessageSysFlag.COMPRESSED) == case["clearCompressed"]
    compressed = flag | MessageSysFlag.COMPRESSED
    if isinstance(case["compression"], str):
        body, _ = compress(_BODY, CompressionType[case["compression"]])
        assert decompress(body, compressed) == _BODY
    else:
        with pytest.raises(RemoteProtocolError, match="unknown compression type"):
            decompress(_BODY, compressed)


@pytest.mark.parametrize(("hex_text", "java"), NUMBERS["UtilAll_bytes2string"])
def test_bytes_are_written_as_upper_case_hex(hex_text: str, java: str) -> None:
    assert bytes.fromhex(hex_text).hex().upper() == java


@pytest.mark.parametrize(("text", "java"), NUMBERS["UtilAll_string2bytes"])
def test_ids_are_read_in_either_case_but_never_with_half_a_byte(text: str, java: str) -> None:
    """G2: Java drops the odd digit; an id cut like that is refused here."""
    if len(text) % 2:
        assert java == text[:-1].lower()
        with pytest.raises(RemoteProtocolError):
            decode_offset_message_id("0" * 30 + text)
    else:
        assert bytes.fromhex(text).hex() == java
        padded = text.rjust(32, "0")
        assert decode_offset_message_id(padded) == decode_offset_message_id(padded.lower())


def test_our_version_is_one_that_java_knows_by_name() -> None:
    """A1: we say we are a 4.9 client, in every header; the broker the tests run is Java's current version."""
    names = dict(NUMBERS["MQVersion_getVersionDesc"])

    assert names[CLIENT_VERSION] == "V4_9_8"
    assert names[NUMBERS["MQVersion_CURRENT_VERSION"]] == "V" + rocketmq_version().replace(".", "_")
    assert names[SERVER_VERSION] == names[NUMBERS["MQVersion_CURRENT_VERSION"]]
    assert sorted(names) == list(names)


@pytest.mark.parametrize("case", NUMBERS["MixAll_brokerVIPChannel"], ids=lambda case: case["addr"])
def test_a_broker_is_called_at_the_address_of_its_route(case: dict[str, Any]) -> None:
    """A1: the second port, two below the first, is used by old clients only; Java's default is off."""
    assert case["vip_false"] == case["addr"]
    for client in ("PushConsumer", "Producer"):
        assert NUMBERS[f"defaults_DefaultMQ{client}"]["isVipChannelEnabled"] is False
    if isinstance(case["vip_true"], str):
        host, _, port = case["addr"].rpartition(":")
        assert case["vip_true"] == f"{host}:{int(port) - 2}"


@pytest.mark.parametrize(
    "case", NUMBERS["ClientConfig_buildMQClientId"], ids=lambda case: case["buildMQClientId"]
)
def test_a_client_id_is_any_text_with_the_host_before_the_first_at_sign(case: dict[str, Any]) -> None:
    """B1: members are distinguished by the whole text; nothing else of it is read."""
    host, at, rest = case["buildMQClientId"].partition("@")

    assert (host, at) == (case.get("clientIP", "10.0.0.1"), "@")
    if "clientIP" in case:
        parts = [case["instanceName"]]
        parts += [unit for unit in (case["unitName"],) if unit and unit.strip()]
        parts += ["STREAM"] if case["streamRequestType"] else []
        assert rest == "@".join(parts)
    else:
        assert rest.startswith(f"{case['pid']}#")


def test_the_fingerprint_of_a_heartbeat_is_the_hash_of_what_does_not_change() -> None:
    """B1: its JSON without client id and versions, by ``String.hashCode``:
    members of one group have the same.
    """
    heartbeat = decode_body(HeartbeatData, golden("filter.json")["heartbeat_json"].encode())
    consumers = tuple(
        replace(data, subscriptions=tuple(replace(each, sub_version=0) for each in data.subscriptions))
        for data in heartbeat.consumers
    )
    lasting = dumps_java(replace(heartbeat, client_id="", fingerprint=0, consumers=consumers))

    assert java_string_hash(lasting.decode()) == golden("filter.json")["heartbeat_fingerprint"]
