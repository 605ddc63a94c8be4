"""The pure decoders: each input is decoded, and the result compared with a second way to the same value."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final

from broker_sim.bodies import encode_route, encode_topic_stats
from broker_sim.sql92 import Sql92Error
from broker_sim.sql92_parser import compile_expression
from fuzz import seeds
from fuzz.frame_target import registry_frames, run_registry_frames
from fuzz.message_target import run_messages
from fuzz.target import MAX_MEMORY_BYTES, Target, with_frame_lengths, with_total_sizes
from pyspark_rocketmq import wire
from pyspark_rocketmq.errors import LocalProtocolError, OptionError, RemoteProtocolError
from pyspark_rocketmq.model import Message
from pyspark_rocketmq.wire.command import RemotingCommand, SerializeType, decode_parts, encode_frame
from pyspark_rocketmq.wire.compression import COMPRESSION_TYPE_SHIFT, MAX_EXPANDED_BYTES, decompress
from pyspark_rocketmq.wire.fastjson import dumps_java, loads
from pyspark_rocketmq.wire.framing import FrameDecoder
from pyspark_rocketmq.wire.message_ids import decode_offset_message_id, offset_message_id
from pyspark_rocketmq.wire.messages import decode_batch, encode_batch
from pyspark_rocketmq.wire.properties import decode_properties, encode_properties
from pyspark_rocketmq.wire.requests import headers
from pyspark_rocketmq.wire.requests import topics as topic_stats
from pyspark_rocketmq.wire.requests.header_fields import from_ext_fields, to_ext_fields
from pyspark_rocketmq.wire.requests.topics import MAX_QUEUES, decode_route
from pyspark_rocketmq.wire.subscription import build_subscription

_EXPRESSIONS: Final = (
    b"a", b"TagA || TagB", b"*", b"", b"||", b" ", b"a BETWEEN 1 AND 2.5 OR NOT (b IN ('x', 'y') AND c IS NOT NULL)",
    b"a <> 'it''s' AND b >= -3 AND TRUE AND d NOT IN ('z') OR e CONTAINS 'f'",
)  # fmt: skip
_MESSAGE_IDS: Final = (b"7F00000100002A9F0000000000000000", b"0" * 31 + b"1" + b"f" * 24, b"")


_LARGE_BYTES: Final = 1 << 16


def _run_frames(data: bytes) -> None:
    """Cut the input into pieces of a size given by its first byte: the outcome must not depend on it."""
    stream = data[1:]
    step = (1 + data[0] % 64) * (1 + len(stream) // 4096) if data else 1
    whole = _outcome(stream, max(1, len(stream)))
    assert _outcome(stream, step) == whole, f"pieces of {step} bytes are decoded to something else"


def _outcome(stream: bytes, step: int) -> list[RemotingCommand] | None:
    """The commands; None for a refusal."""
    decoder = FrameDecoder()
    view, commands = memoryview(stream), []
    try:
        for at in range(0, len(stream), step):
            commands += decoder.feed(view[at : at + step])
    except RemoteProtocolError as refusal:
        str(refusal)
        return None
    return commands


def _run_header(serialize_type: SerializeType, data: bytes) -> None:
    command = decode_parts(serialize_type << 24, data, b"body")
    with suppress(LocalProtocolError):  # half a surrogate pair in JSON, an empty name in the other form
        frame = encode_frame(command)
        (again,) = FrameDecoder().feed(frame)
        assert again == command, f"{command} became {again}"


@cache
def _header_classes() -> tuple[Any, ...]:
    return tuple(found for _, found in inspect.getmembers(headers, is_dataclass) if isinstance(found, type))


def _run_typed_headers(data: bytes) -> None:
    """The first byte chooses the class, the rest are its fields, written as properties are."""
    classes = _header_classes()
    header = from_ext_fields(
        classes[data[0] % len(classes)] if data else classes[0], decode_properties(data[1:])
    )
    assert from_ext_fields(type(header), to_ext_fields(header)) == header


def _typed_header_seeds() -> Iterable[bytes]:
    for number, header_class in enumerate(_header_classes()):
        names = [field.metadata["java_name"] for field in header_class.__dataclass_fields__.values()]
        yield bytes([number]) + "".join(f"{name}\x011\x02" for name in names).encode()


def _run_properties(data: bytes) -> None:
    properties = decode_properties(data)
    with suppress(LocalProtocolError):  # a value with a separator, or more than fits
        assert decode_properties(encode_properties(properties)) == properties


def _run_batch(data: bytes) -> None:
    members = decode_batch(data)
    messages = [
        Message(topic="T", body=member.body, properties=member.properties, flag=member.flag)
        for member in members
    ]
    with suppress(LocalProtocolError):
        again = decode_batch(encode_batch(messages))
        # One by one: the properties of all of them are many times as large as the batch.
        for one, other in zip(again, members, strict=True):
            assert (one.flag, one.body, one.properties) == (other.flag, other.body, other.properties)


def _run_compression(data: bytes) -> None:
    """The first byte is the type."""
    if data:
        decompress(data[1:], 1 | data[0] % 8 << COMPRESSION_TYPE_SHIFT)


def _run_route(data: bytes) -> None:
    route = decode_route(data)
    assert len(route.subscribe_queues("T")) <= MAX_QUEUES
    assert len(route.publish_queues("T")) <= MAX_QUEUES
    with suppress(LocalProtocolError, UnicodeEncodeError):
        for standard_json in (True, False):
            again = decode_route(encode_route(route, standard_json=standard_json))
            assert again == route, f"{route} became {again}"


def _run_json(data: bytes) -> None:
    value = loads(data)
    with suppress(LocalProtocolError, RecursionError):
        assert loads(dumps_java(value)) == value


@cache
def _body_decoders() -> tuple[Callable[[bytes], object], ...]:
    """Return every ``decode_…(body)`` of the wire, so that new bodies are fuzzed automatically."""
    modules = [import_module(info.name) for info in pkgutil.walk_packages(wire.__path__, f"{wire.__name__}.")]
    found = {
        name: function
        for module in modules
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if name.startswith("decode_") and [*inspect.signature(function).parameters] == ["body"]
    }
    return tuple(found[name] for name in sorted(found))


def _run_bodies(data: bytes) -> None:
    """Every decoder on every body: a recorded body of the one is a mutated body of the other."""
    decoders = _body_decoders()
    for decode in decoders if len(data) < _LARGE_BYTES else (decoders[len(data) % len(decoders)],):
        with suppress(RemoteProtocolError):
            decode(data)


def _run_topic_stats(data: bytes) -> None:
    """Check that the regular expression reads nothing differently from the JSON reader."""
    fast = topic_stats._decode_as_java_writes(data)  # noqa: SLF001 - both ways, one against the other
    stats = topic_stats._decode_any_form(data)  # noqa: SLF001
    assert fast is None or fast == stats
    with suppress(LocalProtocolError):  # half a surrogate pair in a name
        assert topic_stats.decode_topic_stats(encode_topic_stats(stats)) == stats


def _run_expression(data: bytes) -> None:
    text = data.decode(errors="surrogateescape")
    with suppress(OptionError):
        build_subscription("T", text, sub_version=0)
    with suppress(Sql92Error):
        expression = compile_expression(text)
        for properties in ({}, {"a": "1", "b": "x", "c": ""}, {"a": "-1e400", "b": "TRUE"}):
            assert expression.matches(properties) in (True, False)


def _run_message_id(data: bytes) -> None:
    text = data.decode(errors="surrogateescape")
    host, commit_log_offset = decode_offset_message_id(text)
    assert offset_message_id(host, commit_log_offset) == text.upper()


WIRE_TARGETS: Final = (
    Target(
        name="frames",
        run=_run_frames,
        seeds=lambda: [b"\x07" + frame for frame in seeds.frames()],
        repair=lambda data: data[:1] + with_frame_lengths(data[1:]),
    ),
    Target(
        name="json-header",
        run=lambda data: _run_header(SerializeType.JSON, data),
        seeds=lambda: seeds.headers(is_binary=False),
    ),
    Target(
        name="binary-header",
        run=lambda data: _run_header(SerializeType.ROCKETMQ, data),
        seeds=lambda: seeds.headers(is_binary=True),
    ),
    Target(name="typed-headers", run=_run_typed_headers, seeds=_typed_header_seeds),
    Target(
        name="messages",
        run=run_messages,
        seeds=seeds.pull_bodies,
        repair=with_total_sizes,
        # Memory of expanded bodies as columns, as messages and as compared values; ``fuzz.large`` measures only the
        # decoding.
        max_memory_bytes=MAX_MEMORY_BYTES + 3 * MAX_EXPANDED_BYTES,
    ),
    Target(name="properties", run=_run_properties, seeds=seeds.properties),
    Target(name="batch", run=_run_batch, seeds=seeds.batches, repair=with_total_sizes),
    Target(
        name="compression",
        run=_run_compression,
        seeds=seeds.compressed,
        max_memory_bytes=MAX_MEMORY_BYTES + 2 * MAX_EXPANDED_BYTES,
    ),
    Target(name="route", run=_run_route, seeds=seeds.json_bodies),
    Target(name="json", run=_run_json, seeds=seeds.json_bodies),
    Target(name="bodies", run=_run_bodies, seeds=seeds.json_bodies),
    Target(name="topic-stats", run=_run_topic_stats, seeds=seeds.json_bodies),
    Target(name="expression", run=_run_expression, seeds=lambda: _EXPRESSIONS),
    Target(name="registry-frames", run=run_registry_frames, seeds=registry_frames),
    Target(name="message-id", run=_run_message_id, seeds=lambda: _MESSAGE_IDS),
)
