"""Hostile JSON: bounded memory for what is read, and for the error that it is wrong."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.wire.command import MAX_FRAME_LENGTH, RemotingCommand, SerializeType, decode_parts
from pyspark_rocketmq.wire.fastjson import MAX_JSON_MEMORY, check_json_size, decode_body, loads, short_repr
from pyspark_rocketmq.wire.requests.bodies import HeartbeatData, decode_consumer_list, decode_lock_response
from pyspark_rocketmq.wire.requests.topics import decode_route, decode_topic_stats


def decode_heartbeat(body: bytes) -> HeartbeatData:
    return decode_body(HeartbeatData, body)


DENSE = {
    "empty maps": (b"[", b"{},", b"{}]"),
    "empty arrays": (b"[", b"[],", b"[]]"),
    "small maps": (b"[", b'{"":0},', b"0]"),
    "bare keys": (b"{", b"1:0,", b"1:0}"),
    "object keys": (b"{", b"{}:0,", b"{}:0}"),
    "texts": (b"[", b'"xx",', b"0]"),
    "one text": (b'"', b"x", b'"'),
    "one wide text": (b'"\xf0\x9f\x98\x80', b"x", b'"'),
}


def filled(shape: tuple[bytes, bytes, bytes], size: int) -> bytes:
    begin, part, end = shape
    return begin + part * (size // len(part)) + end


def peak_of(call: Callable[[bytes], object], data: bytes) -> int:
    tracemalloc.start()
    try:
        call(data)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


def decode_header(data: bytes) -> RemotingCommand:
    return decode_parts(SerializeType.JSON << 24, data, b"")


def test_the_limit_is_two_frames() -> None:
    assert MAX_JSON_MEMORY == 2 * MAX_FRAME_LENGTH


@pytest.mark.parametrize("shape", DENSE.values(), ids=DENSE)
def test_the_heaviest_text_that_is_read_stays_within_the_limit(shape: tuple[bytes, bytes, bytes]) -> None:
    """A1: counts are judged before memory is taken."""
    sizes = [1 << shift for shift in range(18, 24)]
    accepted = [size for size in sizes if not is_refused(check_json_size, filled(shape, size))]

    assert accepted[0] == sizes[0]
    assert peak_of(loads, filled(shape, accepted[-1])) < MAX_JSON_MEMORY


@pytest.mark.parametrize("decode", [loads, decode_header, decode_route, decode_topic_stats, decode_heartbeat])
def test_a_frame_full_of_small_objects_is_refused_before_it_is_read(
    decode: Callable[[bytes], object],
) -> None:
    """A1: 16 MiB of it would be 400 MiB of objects."""
    data = filled(DENSE["empty maps"], MAX_FRAME_LENGTH - 100)

    assert is_refused(decode, data)
    assert peak_of(lambda body: is_refused(decode, body), data) < 1 << 20


def is_refused(call: Callable[[bytes], object], data: bytes) -> bool:
    try:
        call(data)
    except RemoteProtocolError:
        return True
    return False


def test_the_bodies_of_a_large_cluster_are_read() -> None:
    """A2: fifty thousand consumers are no attack."""
    clients = ",".join(f'"10.0.0.1@{number}#123456789"' for number in range(50_000))
    assert len(decode_consumer_list(f'{{"consumerIdList":[{clients}]}}'.encode())) == 50_000


def test_the_error_of_a_wrong_value_costs_no_memory() -> None:
    """A1: the text by itself would be four times the value."""
    value = "\x7f" * 1_000_000
    assert peak_of(lambda _: short_repr([value]), b"") < 10_000


@pytest.mark.parametrize("name", ["code", "remark", "extFields"])
@pytest.mark.parametrize("depth", [50, 900, 940, 960, 980, 990, 100_000])
def test_a_header_nested_as_deeply_as_can_be_read_is_refused(name: str, depth: int) -> None:
    """A1: the error of a wrong value must not fail where reading it did not."""
    header = b'{"code":0,"opaque":0,"%s":%s}' % (name.encode(), b"[" * depth + b"]" * depth)
    with pytest.raises(RemoteProtocolError):
        decode_header(header)


@pytest.mark.parametrize("depth", [50, 900, 940, 960, 980, 990])
def test_a_body_nested_as_deeply_as_can_be_read_is_refused(depth: int) -> None:
    """A1: as for headers."""
    nested = b"[" * depth + b"]" * depth
    for decode, body in (
        (decode_heartbeat, b'{"clientID":%s}' % nested),
        (decode_lock_response, b'{"lockOKMQSet":[%s]}' % nested),
        (decode_route, b'{"brokerDatas":[{"brokerAddrs":{"0":%s}}]}' % nested),
        (decode_topic_stats, b'{"offsetTable":{{"topic":"T","brokerName":"b","queueId":0}:%s}}' % nested),
    ):
        with pytest.raises(RemoteProtocolError):
            decode(body)


def test_a_value_is_shown_in_at_most_eighty_characters() -> None:
    assert short_repr("12") == "'12'"
    assert short_repr({"a": 1}) == "{'a': 1}"
    assert len(short_repr("x" * 1_000_000)) <= 80
    assert len(short_repr([["x" * 100] * 100] * 100)) <= 80
    assert short_repr(10**4000)
