from __future__ import annotations

import base64
import contextlib
import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_rocketmq.errors import LocalProtocolError, RemoteProtocolError
from pyspark_rocketmq.model import Message
from pyspark_rocketmq.wire.compression import ExpansionBudget
from pyspark_rocketmq.wire.messages import (
    MessageVersion,
    StoredMessage,
    _usual_messages,
    body_crc,
    decode_batch,
    decode_messages,
    decode_stored_messages,
    encode_batch,
    iter_messages,
)
from pyspark_rocketmq.wire.properties import MAX_MEMBER_PROPERTIES_BYTES
from tests.helpers.golden import golden
from tests.helpers.stored_messages import encode_stored_message
from tests.wire.golden_messages import (
    CORRUPT,
    ENCODED,
    PULLS,
    WHOLE_PULLS,
    assert_shown_as,
    expected_messages,
    pull_body,
)

I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
PORTS = st.integers(0, 65535)
HOSTS = st.one_of(
    st.builds("{}:{}".format, st.ip_addresses(v=4), PORTS),
    st.builds(
        lambda ip, port: (
            "[" + ":".join(f"{int(ip) >> shift & 0xFFFF:x}" for shift in range(112, -1, -16)) + f"]:{port}"
        ),
        st.ip_addresses(v=6),
        PORTS,
    ),
)

AS_JAVA = "decodes as Java does"
RAISES = "raises where Java drops, cuts off or misreads"
REACTIONS = {
    "intact": AS_JAVA,
    "two messages": AS_JAVA,
    "empty buffer": AS_JAVA,
    "3 bytes": RAISES,
    "first 4 bytes only": RAISES,
    "cut in the fixed part": RAISES,
    "cut in the body": RAISES,
    "last byte missing": RAISES,
    "second message cut": RAISES,
    "second cut after its length field": RAISES,
    "2 stray bytes after": RAISES,
    "8 zero bytes after": RAISES,
    "bad magic": RAISES,
    "blank magic": RAISES,
    "bad magic in 1st of two": RAISES,
    "V2 magic on V1 layout": RAISES,
    "total size 0": RAISES,
    "total size negative": RAISES,
    "total size +1 (last of buffer)": RAISES,
    "total size +20, two": RAISES,
    "total size -1, two": RAISES,
    "total size larger, extra zero bytes inside, then a second": RAISES,
    "body CRC wrong": AS_JAVA,
    "body length negative": RAISES,
    "body length too long": RAISES,
    "body length 0 (shifts the rest)": RAISES,
    "properties length too long": RAISES,
    "properties length 0": RAISES,
    "properties length negative": RAISES,
    "topic length byte 0xff": RAISES,
    "topic length 0": RAISES,
    "sysFlag says zlib, body is not": RAISES,
    "sysFlag says lz4, body is not": RAISES,
    "sysFlag says zstd, body is not": RAISES,
    "sysFlag compression type 4 unknown": RAISES,
    "sysFlag type bits without the compressed bit": AS_JAVA,
    "sysFlag bornhost v6 on v4 layout": RAISES,
    "sysFlag inner batch bits, body is not a batch": RAISES,
    "sysFlag need-unwrap only": AS_JAVA,
    "born port 70000": RAISES,
    "born port -1": RAISES,
    "invalid utf-8 in topic": AS_JAVA,
    "invalid utf-8 in properties": AS_JAVA,
}


def stored_message(**changes: Any) -> StoredMessage:
    values = {
        "topic": "T",
        "queue_id": 3,
        "queue_offset": 7,
        "commit_log_offset": 4096,
        "body": b"hello",
        "properties_data": b"TAGS\x01TagA\x02UNIQ_KEY\x01AB\x02",
        "born_timestamp": 1700000000000,
        "born_host": "127.0.0.1:50000",
        "store_timestamp": 1700000000001,
        "store_host": "127.0.0.1:10911",
        "body_crc": body_crc(b"hello"),
    }
    return StoredMessage(**{**values, **changes})


@pytest.mark.parametrize("name", WHOLE_PULLS)
def test_a_pulled_body_decodes_to_what_java_shows(name: str) -> None:
    messages = decode_messages(pull_body(name), "broker-a")

    assert len(messages) == len(expected_messages(name))
    for message, expected in zip(messages, expected_messages(name), strict=True):
        assert message.broker_name == "broker-a"
        assert_shown_as(message, expected)


@pytest.mark.parametrize("name", WHOLE_PULLS)
def test_the_next_offset_counts_each_message_that_is_shown(name: str) -> None:
    """A1: members of an inner batch, too (golden fact 7)."""
    at, next_begin = PULLS[name]["pull_from"], int(PULLS[name]["response"]["ext"]["nextBeginOffset"])

    messages = decode_messages(pull_body(name), "b")

    assert [message.queue_offset for message in messages] == list(range(at, next_begin))


@pytest.mark.parametrize("name", sorted(PULLS.keys() - WHOLE_PULLS))
def test_the_undecompressable_message_java_drops_silently_raises_and_names_its_place(name: str) -> None:
    """Golden fact 1: of ten messages Java shows eight, and goes on after the tenth."""
    with pytest.raises(RemoteProtocolError, match=r"topic=GoldenRaw broker=b queue=0 queueOffset=8 .* zlib"):
        decode_messages(pull_body(name), "b")

    stored = decode_stored_messages(pull_body(name))
    assert [message.queue_offset for message in stored] == list(range(10))
    readable = b"".join(encode_stored_message(message) for message in stored if message.queue_offset != 8)
    for message, expected in zip(decode_messages(readable, "b"), expected_messages(name), strict=False):
        assert_shown_as(message, expected)


@pytest.mark.parametrize("name", WHOLE_PULLS)
def test_a_pulled_body_is_encoded_again_to_the_same_bytes(name: str) -> None:
    body = pull_body(name)

    assert b"".join(map(encode_stored_message, decode_stored_messages(body))) == body


@pytest.mark.parametrize("name", ENCODED)
def test_messages_encoded_by_java_decode_and_encode_to_the_same_bytes(name: str) -> None:
    data = base64.b64decode(ENCODED[name]["bytes_b64"])

    (stored,) = decode_stored_messages(data)
    (message,) = decode_messages(data, "b")

    (expected,) = ENCODED[name]["expected"]
    assert_shown_as(message, expected)
    assert stored.prepared_transaction_offset == expected["preparedTransactionOffset"]
    assert stored.body_crc == expected["bodyCRC"]
    assert stored.store_size == expected["storeSize"] == len(data)
    assert encode_stored_message(stored) == data


def test_every_corrupt_case_has_a_reaction() -> None:
    assert set(REACTIONS) == set(CORRUPT)


@pytest.mark.parametrize("case", CORRUPT)
def test_corrupt_messages_are_shown_whole_or_raise(case: str) -> None:
    data = bytes.fromhex(CORRUPT[case]["bytes_hex"])

    if REACTIONS[case] is RAISES:
        with pytest.raises(RemoteProtocolError):
            decode_messages(data, "b")
        return

    messages = decode_messages(data, "b")
    assert len(messages) == len(CORRUPT[case]["messages"])
    for message, expected in zip(messages, CORRUPT[case]["messages"], strict=True):
        assert_shown_as(message, expected)


def test_every_truncation_raises() -> None:
    data = encode_stored_message(stored_message())

    for length in range(1, len(data)):
        with pytest.raises(RemoteProtocolError, match="byte 0 of a pull response"):
            decode_stored_messages(data[:length])
        with pytest.raises(RemoteProtocolError, match=f"byte {len(data)} of a pull response"):
            decode_stored_messages(data + data[:length])


@settings(deadline=None)
@given(st.data())
def test_a_changed_byte_raises_or_decodes_but_never_fails_otherwise(data: st.DataObject) -> None:
    message = bytearray(encode_stored_message(stored_message()) * 2)
    message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))

    with contextlib.suppress(RemoteProtocolError):
        assert len(decode_messages(bytes(message), "b")) == 2


@pytest.mark.parametrize("name", PULLS)
def test_the_usual_messages_of_an_answer_are_the_same_by_the_short_way(name: str) -> None:
    assert_same_by_both_ways(pull_body(name))


def test_usual_messages_take_the_short_way() -> None:
    data = b"".join(
        encode_stored_message(stored_message(topic=topic, properties_data=properties))
        for topic in ("T", "", "T" * 128)
        for properties in (b"", b"KEYS\x01k", b"UNIQ_KEY\x01A\x02")
    )

    usual = _usual_messages(data, "b")

    assert usual is not None
    assert len(usual) == 9
    assert_same_by_both_ways(data)


@settings(deadline=None)
@given(st.data())
def test_changed_bytes_have_the_same_effect_by_both_ways(data: st.DataObject) -> None:
    message = bytearray(encode_stored_message(stored_message()) * 2)
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))

    assert_same_by_both_ways(bytes(message))


def assert_same_by_both_ways(data: bytes) -> None:
    for end in {len(data), len(data) // 2, len(data) - 1}:
        usual = _usual_messages(data[:end], "b")
        if usual is not None:
            assert usual == list(iter_messages(data[:end], "b", ExpansionBudget(end)))


@settings(deadline=None)
@given(
    st.builds(
        StoredMessage,
        topic=st.text(st.characters(codec="utf-8"), max_size=200),
        queue_id=I32,
        queue_offset=I64,
        commit_log_offset=I64,
        body=st.binary(max_size=200),
        properties_data=st.binary(max_size=200),
        flag=I32,
        sys_flag=I32.map(lambda bits: bits & ~0x30),
        born_timestamp=I64,
        born_host=HOSTS,
        store_timestamp=I64,
        store_host=HOSTS,
        reconsume_times=I32,
        prepared_transaction_offset=I64,
        body_crc=st.integers(0, (1 << 31) - 1),
    )
)
def test_any_stored_message_survives_encoding_and_decoding(message: StoredMessage) -> None:
    data = encode_stored_message(message)

    (decoded,) = decode_stored_messages(data)

    hosts = (message.born_host, 0x10), (message.store_host, 0x20)
    sys_flag = message.sys_flag | sum(bit for host, bit in hosts if host.startswith("["))
    assert decoded == dataclasses.replace(message, store_size=len(data), sys_flag=sys_flag)
    assert_same_by_both_ways(data)


@pytest.mark.parametrize(("length", "version"), [(127, MessageVersion.V1), (128, MessageVersion.V2)])
def test_a_topic_over_127_bytes_is_stored_in_layout_v2(length: int, version: MessageVersion) -> None:
    message = stored_message(topic="t" * length)

    data = encode_stored_message(message)

    assert int.from_bytes(data[4:8], "big", signed=True) == version
    assert decode_stored_messages(data)[0].topic == message.topic


@pytest.mark.parametrize(
    "changes",
    [
        {"queue_id": 1 << 31},
        {"properties_data": bytes(32768)},
        {"topic": "t" * 40000},
        {"topic": "\ud800"},
        {"born_host": "localhost:1"},
        {"store_host": "127.0.0.1:70000"},
    ],
)
def test_a_message_that_does_not_fit_the_layout_is_not_encoded(changes: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError):
        encode_stored_message(stored_message(**changes))


def test_the_offset_message_id_stands_in_for_a_missing_unique_key() -> None:
    (message,) = decode_messages(encode_stored_message(stored_message(properties_data=b"")), "b")

    assert message.msg_id == "7F00000100002A9F0000000000001000"
    assert (message.keys, message.tags, message.properties) == (None, None, {})


@pytest.mark.parametrize("sys_flag", [0x1000, -0x80000000, 0x7FFFFF0E])
def test_bits_of_the_sys_flag_without_a_name_are_kept(sys_flag: int) -> None:
    (message,) = decode_messages(encode_stored_message(stored_message(sys_flag=sys_flag)), "b")

    assert message.sys_flag == sys_flag
    assert type(message.sys_flag) is int


def test_an_inner_batch_that_lost_members_raises() -> None:
    body = encode_batch([Message(topic="T", body=b"one")])
    stored = stored_message(body=body, sys_flag=0xC0, properties_data=b"INNER_NUM\x012\x02")

    with pytest.raises(RemoteProtocolError, match=r"queueOffset=7 .* 1 messages, not the 2 announced"):
        decode_messages(encode_stored_message(stored), "b")


def test_an_inner_batch_member_without_unique_key_shows_the_offset_id_of_its_batch() -> None:
    body = encode_batch([Message(topic="T", body=b"one"), Message(topic="T", body=b"two")])
    stored = stored_message(body=body, sys_flag=0xC0, reconsume_times=2)

    messages = decode_messages(encode_stored_message(stored), "b")

    assert [message.queue_offset for message in messages] == [7, 8]
    assert {message.msg_id for message in messages} == {"7F00000100002A9F0000000000001000"}
    assert {message.reconsume_times for message in messages} == {0}


BATCHES = golden("remoting.json")["batch_body"]


@pytest.mark.parametrize("batch", BATCHES)
def test_a_batch_is_encoded_and_decoded_as_java_does(batch: dict[str, Any]) -> None:
    """G2: batch sends."""
    messages = [
        Message(
            topic="T", body=bytes.fromhex(part["body_hex"]), properties=part["properties"], flag=part["flag"]
        )
        for part in batch["parts"]
    ]
    data = bytes.fromhex(batch["encodeMessages_hex"])

    members = decode_batch(data)

    assert encode_batch(messages) == data
    assert [(member.flag, member.body, member.properties) for member in members] == [
        (message.flag, message.body, message.properties) for message in messages
    ]


def test_every_truncation_of_a_batch_raises() -> None:
    data = encode_batch([Message(topic="T", body=b"hello", properties={"TAGS": "A"})])

    for length in range(1, len(data)):
        with pytest.raises(RemoteProtocolError, match="batch member at byte 0"):
            decode_batch(data[:length])


def test_a_batch_member_leaves_room_for_the_batchs_own_properties() -> None:
    """G2: a broker adds those to each, and would write a longer sum into its log as a negative length."""
    most = MAX_MEMBER_PROPERTIES_BYTES - len("a\x01\x02")

    assert encode_batch([Message(topic="T", body=b"x", properties={"a": "x" * most})])
    with pytest.raises(LocalProtocolError, match=r"topic T has 32256 bytes of properties.*32255.*by itself"):
        encode_batch([Message(topic="T", body=b"x", properties={"a": "x" * (most + 1)})])


def test_a_batch_member_with_a_flag_over_32_bits_is_not_encoded() -> None:
    with pytest.raises(LocalProtocolError, match="topic T"):
        encode_batch([Message(topic="T", body=b"", flag=1 << 31)])
