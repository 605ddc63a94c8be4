"""Messages gathered into requests: by destination, in their order, up to a size. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from pyspark_rocketmq.datasource.sink_rows import SinkRow
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.wire.compression import CompressionType, compress
from pyspark_rocketmq.wire.messages import BATCH_MEMBER_OVERHEAD, batch_member
from pyspark_rocketmq.wire.properties import decode_properties
from pyspark_rocketmq.write_options import BodyCompression, WriteOptions

_STORED_OVERHEAD: Final = 320
"""Bytes a member may take in the broker's log beside what is sent: head, hosts, topic and the broker's own properties.
The log's limit of one batch is that of one message."""

Destination = MessageQueue | str
"""A queue, or a topic whose queues take turns."""


def compression_of(options: WriteOptions) -> CompressionType | None:
    """How long bodies are compressed; None if they are not."""
    wanted = options.compression_type
    return None if wanted is BodyCompression.NONE else CompressionType[wanted.name]


@dataclass(slots=True)
class Parcel:
    """The messages of one request, in order."""

    destination: Destination
    sys_flag: int
    parts: list[bytes] = field(default_factory=list)
    """Members as a batch holds them, in pieces."""
    count: int = 0
    size: int = 0
    """Bytes, as stored."""
    first: SinkRow | None = None
    last: SinkRow | None = None
    single: Message | None = None
    """The one message in place of members: brokers take no batch of delayed ones, and a batch has no room for the largest."""

    def shown(self) -> str:
        """Which rows these are."""
        assert self.first is not None
        assert self.last is not None
        if self.count == 1:
            return self.first.shown
        return f"{self.first.shown} to {self.last.shown}, {self.count} messages"

    def _add(self, row: SinkRow, size: int) -> None:
        if self.first is None:
            self.first = row
        self.last = row
        self.count += 1
        self.size += size


class Gatherer:
    """Gathers the rows of one task."""

    def __init__(self, options: WriteOptions) -> None:
        self._most_messages = options.batch_size
        self._most_bytes = min(options.batch_bytes, options.max_message_size)
        self._compress_over = options.compress_over_bytes
        self._compression = compression_of(options)
        self._open: dict[Destination, Parcel] = {}

    def add(self, row: SinkRow, destination: Destination) -> Iterator[Parcel]:
        """Take in the next row; what is now complete, in the order in which it must be sent."""
        parcel = self._open.get(destination)
        body, sys_flag = self._compressed(row, into_compressed=parcel is not None and parcel.sys_flag != 0)
        size = len(body) + len(row.properties_data) + BATCH_MEMBER_OVERHEAD + _STORED_OVERHEAD
        is_single = row.delay is not None or size > self._most_bytes
        # All members of a batch have its flags; to keep the order, others begin a new one.
        if parcel is not None and (
            is_single or parcel.sys_flag != sys_flag or parcel.size + size > self._most_bytes
        ):
            yield self._open.pop(destination)
            parcel = None
        if is_single:
            yield _alone(row, destination, size)
            return
        if parcel is None:
            parcel = self._open[destination] = Parcel(destination, sys_flag)
        parcel.parts += batch_member(body, row.properties_data)
        parcel._add(row, size)  # noqa: SLF001 - of this module
        if parcel.count >= self._most_messages or parcel.size >= self._most_bytes:
            yield self._open.pop(destination)

    def _compressed(self, row: SinkRow, *, into_compressed: bool) -> tuple[bytes, int]:
        """The body as a member of a batch, and its flags; the producer does it for a message that goes alone.

        A batch that is compressed takes short bodies compressed, too, instead of ending before each of them.
        """
        if self._compression is None or row.delay is not None:
            return row.body, 0
        if len(row.body) < self._compress_over and not into_compressed:
            return row.body, 0
        return compress(row.body, self._compression)

    def rest(self) -> Iterator[Parcel]:
        """What is not complete, when no row comes any more."""
        while self._open:
            yield self._open.pop(next(iter(self._open)))


def _alone(row: SinkRow, destination: Destination, size: int) -> Parcel:
    properties = decode_properties(row.properties_data)
    if row.delay is not None:
        name, text = row.delay
        properties[name] = text
    parcel = Parcel(destination, 0)
    parcel.single = Message(topic=row.topic, body=row.body, properties=properties)
    parcel._add(row, size)  # noqa: SLF001 - of this module
    return parcel
