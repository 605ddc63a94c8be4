"""Fuzz targets: a function of bytes, and initial inputs."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from pyspark_rocketmq.wire.command import MAX_FRAME_LENGTH

MAX_MEMORY_BYTES: Final = 2 * MAX_FRAME_LENGTH
"""Maximum memory for one input, without its own bytes."""

Repair = Callable[[bytes], bytes]


def as_it_is(data: bytes) -> bytes:
    """Repair nothing."""
    return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One entry point for foreign bytes.

    ``run`` returns for a value, raises ``RemoteProtocolError`` for a refusal; whatever else it raises is a finding,
    and it makes its own assertions (two decoders agree, what was read can be written and read again).
    """

    name: str
    run: Callable[[bytes], object]
    seeds: Callable[[], Iterable[bytes]]
    """Valid inputs, recorded from Java where there are any."""
    repair: Repair = as_it_is
    """Corrects the outer lengths, so that a change reaches the inner decoders."""
    max_memory_bytes: int = MAX_MEMORY_BYTES
    max_seconds: float = 2.0
    """Processor time for one input of at most 1 MiB; real time if it is a conversation."""
    is_conversation: bool = False
    """True if it runs over sockets, with threads: real time counts, and inputs stay small."""
    close: Callable[[], object] = lambda: None
    """Stops everything that ``run`` started on its first call."""


def with_frame_lengths(data: bytes) -> bytes:
    """Take ``data`` as one frame and write its two lengths as they are, keeping the type and the header's end."""
    if len(data) < 8:
        return data
    header_length = min(int.from_bytes(data[5:8], "big"), len(data) - 8)
    mark = data[4] << 24 | header_length
    return struct.pack(">II", len(data) - 4, mark) + data[8:]


def with_total_sizes(data: bytes) -> bytes:
    """Take ``data`` as sized parts one behind the other; the last gets the size it has."""
    parts = list(_sized_parts(data))
    if not parts or len(parts[-1]) < 4:
        return data
    return b"".join((*parts[:-1], struct.pack(">I", len(parts[-1])), parts[-1][4:]))


def _sized_parts(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        end = at + size if 4 <= size <= len(data) - at else len(data)
        yield data[at:end]
        at = end
