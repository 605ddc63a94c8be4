from __future__ import annotations

from typing import Any

import pytest

from pyspark_rocketmq.errors import LocalProtocolError, RemoteProtocolError
from pyspark_rocketmq.wire.message_ids import (
    decode_host,
    decode_offset_message_id,
    encode_host,
    offset_message_id,
    unique_key,
)
from tests.helpers.golden import golden

NUMBERS = golden("numbers.json")
OFFSET_IDS = NUMBERS["offset_msg_id"]
ODD_IDS = [entry["id"] for entry in NUMBERS["decodeMessageId_odd_inputs"]]
UNIQUE_KEYS = NUMBERS["uniq_id_examples (MessageClientIDSetter.createUniqID and getters)"]


def bracketed(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@pytest.mark.parametrize("case", OFFSET_IDS, ids=lambda case: case[3])
def test_offset_message_ids_are_those_of_java(case: list[Any]) -> None:
    host, port, offset, message_id, java_host, java_port, java_offset = case

    assert offset_message_id(bracketed(host, port), offset) == message_id
    assert decode_offset_message_id(message_id) == (bracketed(java_host, java_port), java_offset)


@pytest.mark.parametrize("message_id", ODD_IDS)
def test_an_odd_offset_message_id_is_read_only_if_it_is_whole_and_hex(message_id: str) -> None:
    if len(message_id) in (32, 56) and "Z" not in message_id:
        host, offset = decode_offset_message_id(message_id)
        assert offset_message_id(host, offset) == message_id.upper()
    else:
        with pytest.raises(RemoteProtocolError, match="32 or 56 hex digits"):
            decode_offset_message_id(message_id)


@pytest.mark.parametrize(
    "message_id", [" 7F00000100002A9F0000000000001000", "7F 00000100002A9F00000000000010"]
)
def test_blanks_in_an_offset_message_id_are_refused(message_id: str) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_offset_message_id(message_id)


@pytest.mark.parametrize("example", UNIQUE_KEYS, ids=lambda example: example["id"])
def test_unique_keys_are_laid_out_as_in_java(example: dict[str, Any]) -> None:
    data = bytes.fromhex(example["id"])
    ip, numbers = data[:-12], data[-12:]
    hash_code, since_month_start_ms, counter = (
        int.from_bytes(numbers[start:end], "big") for start, end in ((2, 6), (6, 10), (10, 12))
    )

    assert encode_host(bracketed(example["ip"], 0))[:-4] == ip
    assert unique_key(ip, example["pid"], hash_code, since_month_start_ms, counter) == example["id"]


def test_numbers_of_a_unique_key_are_cut_to_their_width() -> None:
    assert unique_key(b"\x7f\0\0\1", 0x12345, -1, 1 << 32, 0x10001) == "7F0000012345FFFFFFFF000000000001"


@pytest.mark.parametrize(
    ("data", "host"),
    [
        ("0a0000ff00002a9f", "10.0.0.255:10911"),
        ("20010db80000000000000000000000010000ffff", "[2001:db8:0:0:0:0:0:1]:65535"),
    ],
)
def test_hosts_are_shown_with_ipv6_in_brackets(data: str, host: str) -> None:
    assert decode_host(bytes.fromhex(data)) == host
    assert encode_host(host).hex() == data


def test_an_ipv6_host_in_javas_spelling_without_brackets_is_understood() -> None:
    assert encode_host("2001:db8:0:0:0:0:0:1:50000") == encode_host("[2001:db8::1]:50000")


@pytest.mark.parametrize("data", ["7f000001ffffffff", "7f00000100010000"])
def test_an_impossible_stored_port_raises(data: str) -> None:
    with pytest.raises(RemoteProtocolError, match="impossible port"):
        decode_host(bytes.fromhex(data))


@pytest.mark.parametrize(
    "host", ["", "127.0.0.1", "broker:1", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:-1"]
)
def test_a_host_that_is_no_ip_address_and_port_is_refused(host: str) -> None:
    with pytest.raises(LocalProtocolError):
        encode_host(host)


def test_a_wrong_id_of_any_length_is_reported_in_a_short_sentence() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_offset_message_id("\U0001f600" * 100_000)
    assert len(str(caught.value)) < 1000
