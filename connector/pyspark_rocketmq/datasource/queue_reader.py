"""Reads one queue range on an executor: pulls in flight, answers in order, columns out.

Owns the promise of the source: the messages of a range, ascending in queue offset, each once.  The pulls
themselves are made by :mod:`pyspark_rocketmq.datasource.queue_puller`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rocketmq.consume.pull_window import Piece
from pyspark_rocketmq.datasource.partition import QueuePartition
from pyspark_rocketmq.datasource.queue_puller import QueuePuller
from pyspark_rocketmq.datasource.schema import marker_row, with_marker_columns
from pyspark_rocketmq.errors import RemoteProtocolError, TransportError
from pyspark_rocketmq.model import BrokerAddress, QueueRange
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.wire.columnar import decode_columns
from pyspark_rocketmq.wire.subscription import build_subscription

_PLAIN_SOURCE_GROUP = "pyspark-rocketmq-source"
_QUEUE_OFFSET = 3
"""Position of the column ``queueOffset``."""


def partitions_of(
    planned: Iterable[QueueRange], options: ReadOptions, addresses: Mapping[str, BrokerAddress]
) -> list[QueuePartition]:
    """One partition per non-empty range.

    Raises:
        TransportError: If the name server knows no address of a range's broker any more.
    """
    partitions = []
    for queue_range in planned:
        if queue_range.count <= 0:
            continue
        address = addresses.get(queue_range.queue.broker_name)
        if address is None:
            raise TransportError(
                queue_range.queue.broker_name,
                f"{queue_range.queue} is planned from {queue_range.start} to {queue_range.end}, but the name "
                "server knows no living broker of that name",
            )
        partitions.append(
            QueuePartition(
                planned=queue_range,
                address=address,
                subscription=options.subscription,
                consumer_group=options.consumer_group or _PLAIN_SOURCE_GROUP,
                with_marker=options.consumer_group is not None,
                fail_on_data_loss=options.fail_on_data_loss,
                pull_batch_size=options.pull_batch_size,
                pulls_in_flight=options.pulls_in_flight,
                request_timeout_s=options.request_timeout_ms / 1000,
                retry_timeout_s=options.retry_timeout_ms / 1000,
            )
        )
    return partitions


def read_queue(partition: QueuePartition) -> Iterator[pa.RecordBatch]:
    """The range's messages in ascending queue offset, each once; then its marker row in consumer mode.

    Raises:
        DataLoss: If offsets of the range are gone and ``failOnDataLoss`` is true.
        RocketMQError: If the broker refuses, or cannot be reached for ``retryTimeoutMs``.
    """
    tags = build_subscription(partition.planned.queue.topic, partition.subscription, sub_version=0).tags_set
    expected = partition.planned.start
    for pieces in QueuePuller(partition).pieces():
        messages = _decode(pieces, partition, tags or None, expected)
        if messages.num_rows == 0:
            continue
        expected = messages.column(_QUEUE_OFFSET)[-1].as_py() + 1
        yield with_marker_columns(messages) if partition.with_marker else messages
    if partition.with_marker:
        yield marker_row(partition.planned)


def _decode(
    pieces: list[Piece], partition: QueuePartition, tags: frozenset[str] | None, expected: int
) -> pa.RecordBatch:
    broker_name = partition.planned.queue.broker_name
    if tags is None:
        joined = b"".join(piece.body for piece in pieces)
        messages = decode_columns(joined, broker_name, limit=partition.planned.end)
        if _is_ascending(messages, expected):
            return messages
    # Filtered pulls overlap their neighbours, and so do inner batches: cut each answer to what is its own.
    own = [
        _cut(piece, decode_columns(piece.body, broker_name, limit=piece.limit, tags=tags)) for piece in pieces
    ]
    messages = pa.concat_batches(own)
    if not _is_ascending(messages, expected):
        raise RemoteProtocolError(
            f"{partition.planned.queue}: {partition.address} gave queue offsets that are not ascending from "
            f"{expected} on; nothing of this pull is used. Look at the broker's log for a damaged consume queue."
        )
    return messages


def _cut(piece: Piece, messages: pa.RecordBatch) -> pa.RecordBatch:
    return messages.filter(pc.greater_equal(messages.column(_QUEUE_OFFSET), piece.start))


def _is_ascending(messages: pa.RecordBatch, expected: int) -> bool:
    """Checked on every batch, at the price of one comparison per message."""
    if messages.num_rows == 0:
        return True
    offsets = messages.column(_QUEUE_OFFSET).to_numpy(zero_copy_only=True)
    return bool(offsets[0] >= expected) and bool((offsets[1:] > offsets[:-1]).all())
