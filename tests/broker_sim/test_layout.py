from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_sim.layout import (
    Host,
    Member,
    MessageRun,
    Placement,
    decode_batch_members,
    encode_run,
    offset_message_id,
    store_timestamp_of,
    tag_hash,
)
from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import Message
from pyspark_rocketmq.wire.messages import StoredMessage, decode_stored_messages, encode_batch
from pyspark_rocketmq.wire.properties import encode_properties
from pyspark_rocketmq.wire.subscription import java_string_hash

_GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "messages.json").read_text())
_BODIES = [base64.b64decode(pull["body_b64"]) for pull in _GOLDEN["pulls"]]
_PLACE = Placement(4096, 7, 1_700_000_000_001, Host("127.0.0.1", 10911))


def _host(text: str) -> Host:
    ip, _, port = text.rpartition(":")
    return Host(ip, int(port))


def _written_again(stored: StoredMessage, properties: bytes) -> bytes:
    run = MessageRun(
        topic=stored.topic,
        queue_id=stored.queue_id,
        members=(Member(stored.flag, stored.body, properties),),
        sys_flag=stored.sys_flag,
        born_timestamp=stored.born_timestamp,
        born_host=_host(stored.born_host),
        reconsume_times=stored.reconsume_times,
    )
    place = Placement(
        stored.commit_log_offset, stored.queue_offset, stored.store_timestamp, _host(stored.store_host)
    )
    return encode_run(run, place).data


@pytest.mark.parametrize("body", _BODIES)
def test_messages_of_a_real_broker_are_written_byte_by_byte_as_it_wrote_them(body: bytes) -> None:
    position = 0
    for stored in decode_stored_messages(body):
        original = body[position : position + stored.store_size]
        position += stored.store_size
        if stored.prepared_transaction_offset:  # the simulator has no transactions
            continue
        properties_length = len(original) - original_length_without_properties(stored)
        properties = original[len(original) - properties_length :]
        assert _written_again(stored, properties) == original


def original_length_without_properties(stored: StoredMessage) -> int:
    topic = len(stored.topic.encode())
    return 88 + len(stored.body) + (2 if topic > 127 else 1) + topic + 2


@given(
    topic=st.text(alphabet="Tt%_-", min_size=1, max_size=200),
    bodies=st.lists(st.binary(max_size=40), min_size=1, max_size=5),
)
def test_a_run_reads_back_as_consecutive_messages(topic: str, bodies: list[bytes]) -> None:
    members = tuple(Member(index, body, b"KEYS\x01k\x02") for index, body in enumerate(bodies))
    encoded = encode_run(MessageRun(topic=topic, queue_id=3, members=members), _PLACE)
    stored = decode_stored_messages(encoded.data)
    assert [each.body for each in stored] == bodies
    assert [each.flag for each in stored] == list(range(len(bodies)))
    assert [each.queue_offset for each in stored] == list(range(7, 7 + len(bodies)))
    assert [each.commit_log_offset for each in stored] == encoded.commit_log_offsets
    assert [each.store_size for each in stored] == encoded.sizes
    assert {each.topic for each in stored} == {topic}
    assert {store_timestamp_of(encoded.data)} == {each.store_timestamp for each in stored}


def test_batch_members_get_the_batch_headers_properties_appended() -> None:
    messages = [
        Message(topic="T", body=b"one", properties={"KEYS": "k1", "UNIQ_KEY": "own"}, flag=5),
        Message(topic="T", body=b"two", properties={}),
    ]
    members = list(decode_batch_members(encode_batch(messages), b"UNIQ_KEY\x01batch\x02"))
    assert members == [
        Member(5, b"one", b"KEYS\x01k1\x02UNIQ_KEY\x01own\x02UNIQ_KEY\x01batch\x02"),
        Member(0, b"two", b"UNIQ_KEY\x01batch\x02"),
    ]


@given(cut=st.integers(min_value=1, max_value=59))
def test_a_cut_batch_is_refused(cut: int) -> None:
    batch = encode_batch([Message(topic="T", body=b"x" * 30, properties={"A": "b"})])
    with pytest.raises(RemoteProtocolError, match="batch"):
        list(decode_batch_members(batch[: min(cut, len(batch) - 1)], b""))


@pytest.mark.parametrize(
    ("properties", "tag"),
    [
        ({"TAGS": "TagA"}, "TagA"),
        ({"KEYS": "k", "TAGS": "订单", "WAIT": "true"}, "订单"),
        ({"MYTAGS": "no"}, None),
        ({"TAGS": "yes", "MYTAGS": "no"}, "yes"),
        ({}, None),
    ],
)
def test_the_tag_hash_is_javas_hash_of_the_tags_property(properties: dict[str, str], tag: str | None) -> None:
    assert tag_hash(encode_properties(properties)) == (java_string_hash(tag) if tag else 0)


def test_the_last_of_two_tags_counts_and_the_final_separator_may_be_missing() -> None:
    assert tag_hash(b"TAGS\x01one\x02TAGS\x01two") == java_string_hash("two")


def test_an_offset_message_id_is_address_port_and_commit_log_offset_in_hexadecimal() -> None:
    assert offset_message_id(Host("127.0.0.1", 10911), 4096) == "7F00000100002A9F0000000000001000"
