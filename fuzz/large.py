"""Inputs of nearly the longest frame: the memory that each decoder needs for the most a peer can send at once.

Mutation uses small inputs, because it could try only few large ones; this module has one input of each of the most
expensive kinds. Only the decoding is measured, without a target's comparisons.
"""

from __future__ import annotations

import ctypes
import gc
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from fuzz.judge import Finding, judge
from fuzz.target import MAX_MEMORY_BYTES, Target
from pyspark_rocketmq.wire.command import MAX_FRAME_LENGTH, SerializeType, decode_parts
from pyspark_rocketmq.wire.compression import (
    COMPRESSION_TYPE_SHIFT,
    MAX_BODY_BYTES,
    CompressionType,
    compress,
    decompress,
)
from pyspark_rocketmq.wire.fastjson import loads
from pyspark_rocketmq.wire.framing import FrameDecoder
from pyspark_rocketmq.wire.messages import INNER_BATCH_FLAGS, StoredMessage, decode_batch, decode_messages
from pyspark_rocketmq.wire.properties import MAX_PROPERTIES_BYTES, decode_properties
from pyspark_rocketmq.wire.requests.bodies import decode_consumer_list
from pyspark_rocketmq.wire.requests.topics import MAX_QUEUES, decode_route, decode_topic_stats
from tests.helpers.stored_messages import decode_columns, encode_stored_message

_ROOM: Final = MAX_FRAME_LENGTH - 1024
_PIECE: Final = 64 * 1024
_MAX_SECONDS: Final = 30.0
COLUMNS_MEMORY_BYTES: Final = 8 * MAX_FRAME_LENGTH
"""Limit for messages as columns: a row adds a hundred bytes to the message, which may have only ninety-one."""
OBJECTS_MEMORY_BYTES: Final = 20 * MAX_FRAME_LENGTH
"""Limit for messages as objects, made only from answers to look-ups and checks: a property of five bytes is two texts."""
EXPANDED_MEMORY_BYTES: Final = 2 * (128 << 20) + MAX_MEMORY_BYTES
"""Limit for compressed messages: 32 messages of 4 MiB may expand to 128 MiB, once decompressed and once as a column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Large:
    """An input and its decoder."""

    name: str
    data: Callable[[], bytes]
    decode: Callable[[bytes], object]
    max_memory_bytes: int = MAX_MEMORY_BYTES


def judge_large(case: Large) -> Finding | None:
    """Decode once, after small inputs, so that loading and caching do not count."""
    data = case.data()
    target = Target(
        name=f"large {case.name}",
        run=case.decode,
        seeds=lambda: [data],
        max_memory_bytes=case.max_memory_bytes,
        max_seconds=_MAX_SECONDS,
    )
    judge(target, data[: 64 * 1024])
    gc.collect()
    # Memory that malloc kept from earlier cases would be used without being counted.
    ctypes.CDLL(None).malloc_trim(0)
    return judge(target, data)


# --- frames and headers --------------------------------------------------------------------------------------


def _feed(stream: bytes) -> None:
    """Feed a decoder like a connection: piece by piece, with commands dropped before the next ones."""
    decoder, view = FrameDecoder(), memoryview(stream)
    for at in range(0, len(stream), _PIECE):
        decoder.feed(view[at : at + _PIECE])


def _frame(kind: SerializeType, header: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def _json_header(fields: str) -> bytes:
    return f'{{"code":0,"extFields":{{{fields}}},"opaque":0}}'.encode()


def _binary_header(fields: bytes) -> bytes:
    return struct.pack(">hBhiiII", 0, 0, 0, 0, 1, 0, len(fields)) + fields


def _binary_field(name: bytes, value: bytes) -> bytes:
    return struct.pack(">H", len(name)) + name + struct.pack(">I", len(value)) + value


def _filled(part: Callable[[int], bytes], most: int = _ROOM) -> bytes:
    """Parts 0, 1, 2 … as long as they fit."""
    return b"".join(map(part, range(most // len(part(0)))))


_HEADERS: Final[dict[str, tuple[SerializeType, Callable[[], bytes]]]] = {
    "one text in JSON": (SerializeType.JSON, lambda: _json_header('"a":"' + "x" * (10 << 20) + '"')),
    "wide text in JSON": (SerializeType.JSON, lambda: _json_header('"a":"\U0001f600' + "x" * _ROOM + '"')),
    "many fields in JSON": (
        SerializeType.JSON,
        lambda: _json_header(",".join(f'"{at:06x}":"{at:06x}"' for at in range(_ROOM // 18))),
    ),
    "one field": (SerializeType.ROCKETMQ, lambda: _binary_header(_binary_field(b"a", b"x" * _ROOM))),
    "wide field": (
        SerializeType.ROCKETMQ,
        lambda: _binary_header(_binary_field(b"a", "\U0001f600".encode() + b"x" * (_ROOM - 4))),
    ),
    "many fields": (
        SerializeType.ROCKETMQ,
        lambda: _binary_header(_filled(lambda at: _binary_field(b"%06x" % at, b"%06x" % at))),
    ),
}


def _frames() -> Iterator[Large]:
    empty = _frame(SerializeType.ROCKETMQ, _binary_header(b""))
    body = bytes(_ROOM - len(empty))
    yield Large(
        name="frame: one body",
        data=lambda: _frame(SerializeType.ROCKETMQ, _binary_header(b""), body),
        decode=_feed,
    )
    yield Large(
        name="frame: announced",
        data=lambda: struct.pack(">I", _ROOM) + empty[4:],
        decode=_feed,
        max_memory_bytes=1 << 20,
    )
    yield Large(name="frame: empty ones", data=lambda: _filled(lambda _: empty), decode=_feed)
    for name, (kind, header) in _HEADERS.items():
        yield Large(name=f"frame: header of {name}", data=_framed(kind, header), decode=_feed)
        yield Large(name=f"header: {name}", data=header, decode=_decoded_header(kind))


def _framed(kind: SerializeType, header: Callable[[], bytes]) -> Callable[[], bytes]:
    return lambda: _frame(kind, header())


def _decoded_header(kind: SerializeType) -> Callable[[bytes], object]:
    return lambda header: decode_parts(kind << 24, header, b"")


# --- messages ------------------------------------------------------------------------------------------------


def _decode_columns(body: bytes) -> object:
    return decode_columns(body, "b")


_MESSAGE: Final = StoredMessage(
    topic="T",
    queue_id=0,
    queue_offset=7,
    commit_log_offset=0,
    body=b"",
    born_timestamp=1,
    born_host="127.0.0.1:1",
    store_timestamp=2,
    store_host="127.0.0.1:1",
    body_crc=0,
)


def _decode_messages(body: bytes) -> object:
    return decode_messages(body, "b")


def _repeated(**changes: Any) -> Callable[[], bytes]:
    """Repeat the message as often as it fits."""

    def data() -> bytes:
        message = encode_stored_message(replace(_MESSAGE, **changes))
        return message * (_ROOM // len(message))

    return data


def _compressed(kind: CompressionType, body: bytes, times: int, more_flags: int = 0) -> Callable[[], bytes]:
    def data() -> bytes:
        compressed, flags = compress(body, kind)
        message = replace(_MESSAGE, body=compressed, sys_flag=flags | more_flags)
        return encode_stored_message(message) * times

    return data


_MEMBER: Final = struct.pack(">iiiiih", 22, 0, 0, 0, 0, 0)
_MANY_PROPERTIES: Final = _filled(lambda at: b"%04x\1%x\2" % (at, at % 16), MAX_PROPERTIES_BYTES)
_MESSAGES: Final[dict[str, Callable[[], bytes]]] = {
    "one": _repeated(body=bytes(_ROOM - 100)),
    "without bodies": _repeated(),
    "of 100 bytes": _repeated(body=bytes(100)),
    "with many properties": _repeated(properties_data=_MANY_PROPERTIES),
    "and garbage": lambda: _repeated()() + b"garbage",
    "with malformed text": _repeated(properties_data=b"a\1\xff\2"),
}


def _messages() -> Iterator[Large]:
    for name, data in _MESSAGES.items():
        yield Large(
            name=f"columns: {name}",
            data=data,
            decode=_decode_columns,
            max_memory_bytes=COLUMNS_MEMORY_BYTES,
        )
        yield Large(
            name=f"messages: {name}",
            data=data,
            decode=_decode_messages,
            max_memory_bytes=OBJECTS_MEMORY_BYTES,
        )
    for kind in CompressionType:
        legal, bombs = _compressed(kind, bytes(4 << 20), 32), _compressed(kind, bytes(15 << 20), 16)
        for name, data in ((f"{kind.name}, 32 of 4 MiB", legal), (f"{kind.name}, 16 of 15 MiB", bombs)):
            yield Large(
                name=f"columns: {name}",
                data=data,
                decode=_decode_columns,
                max_memory_bytes=EXPANDED_MEMORY_BYTES,
            )
    yield Large(
        name="columns: inner batches that expand",
        data=_compressed(CompressionType.ZSTD, _MEMBER * (_ROOM // len(_MEMBER)), 64, INNER_BATCH_FLAGS),
        decode=_decode_columns,
        max_memory_bytes=EXPANDED_MEMORY_BYTES,
    )
    yield Large(name="batch: one member", data=_batch_of_one, decode=decode_batch)
    yield Large(
        name="batch: without bodies",
        data=lambda: _MEMBER * (_ROOM // len(_MEMBER)),
        decode=decode_batch,
        max_memory_bytes=OBJECTS_MEMORY_BYTES,
    )


def _batch_of_one() -> bytes:
    return struct.pack(">iiiii", _ROOM, 0, 0, 0, _ROOM - 22) + bytes(_ROOM - 22 + 2)


def _bodies() -> Iterator[Large]:
    noise = random.Random(1).randbytes(_ROOM - (1 << 16))
    for kind in CompressionType:
        flags = 1 | kind << COMPRESSION_TYPE_SHIFT
        bodies = {
            "noise": _compressed_body(noise, kind),
            "zeros": _compressed_body(bytes(MAX_BODY_BYTES), kind),
            "bomb": _compressed_body(bytes(MAX_BODY_BYTES + 1), kind),
            "many frames": _many_frames(kind),
        }
        for name, data in bodies.items():
            yield Large(
                name=f"{kind.name} of {name}",
                data=data,
                decode=lambda body, flags=flags: decompress(body, flags),  # type: ignore[misc]
                max_memory_bytes=EXPANDED_MEMORY_BYTES,
            )


def _compressed_body(plain: bytes, kind: CompressionType) -> Callable[[], bytes]:
    return lambda: compress(plain, kind)[0]


def _many_frames(kind: CompressionType) -> Callable[[], bytes]:
    frame = compress(b"", kind)[0]
    return lambda: frame * (_ROOM // len(frame))


# --- texts ---------------------------------------------------------------------------------------------------


def _queues(count: int) -> bytes:
    entries = ",".join(
        f'{{"brokerName":"broker-a","queueId":{at},"topic":"T"}}:'
        '{"lastUpdateTimestamp":1700000000000,"maxOffset":7,"minOffset":0}'
        for at in range(count)
    )
    return f'{{"offsetTable":{{{entries}}},"topicPutTps":0.0}}'.encode()


def _routed(count: int) -> bytes:
    brokers = ",".join(
        f'{{"brokerAddrs":{{"0":"10.0.0.1:{at}"}},"brokerName":"broker-{at}","cluster":"c"}}'
        for at in range(count)
    )
    return f'{{"brokerDatas":[{brokers}],"filterServerTable":{{}},"queueDatas":[]}}'.encode()


def _of_many_queues(count: int) -> bytes:
    queues = ",".join(
        f'{{"brokerName":"b","perm":6,"readQueueNums":{count},"writeQueueNums":{count}}}' for _ in range(4)
    )
    return f'{{"brokerDatas":[],"orderTopicConf":"b:{count};c:{count}","queueDatas":[{queues}]}}'.encode()


def _all_queues(body: bytes) -> object:
    route = decode_route(body, "T")
    return route.subscribe_queues("T"), route.publish_queues("T")


def _texts() -> Iterator[Large]:
    yield Large(name="properties of a request", data=lambda: b"a\1" + b"x" * _ROOM, decode=decode_properties)
    yield Large(
        name="properties, many",
        data=lambda: _filled(lambda at: b"%05x\1x\2" % at, 512 * 1024),
        decode=decode_properties,
    )
    yield Large(name="JSON of one text", data=lambda: b'{"a":"' + b"x" * (10 << 20) + b'"}', decode=loads)
    yield Large(name="JSON of maps", data=lambda: b"[" + b"{}," * (_ROOM // 3) + b"{}]", decode=loads)
    yield Large(name="JSON that is nested", data=lambda: b"[" * _ROOM, decode=loads)
    for count in (19_000, 150_000):
        yield Large(name=f"statistics of {count}", data=_counted(_queues, count), decode=decode_topic_stats)
        yield Large(name=f"route of {count}", data=_counted(_routed, count), decode=decode_route)
    for count in (MAX_QUEUES // 4, MAX_QUEUES, 999_999_999):
        yield Large(
            name=f"route of 4 x {count} queues", data=_counted(_of_many_queues, count), decode=_all_queues
        )
    yield Large(
        name="consumer list",
        data=lambda: b'{"consumerIdList":[' + b",".join([b'"10.0.0.1@1"'] * 200_000) + b"]}",
        decode=decode_consumer_list,
    )


def _counted(body: Callable[[int], bytes], count: int) -> Callable[[], bytes]:
    return lambda: body(count)


def large_inputs() -> Sequence[Large]:
    """One input of each kind that costs most."""
    return (*_frames(), *_messages(), *_bodies(), *_texts())
