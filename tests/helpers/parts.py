"""Parts of tasks' results."""

from __future__ import annotations

from pyspark_rocketmq.consume.part import Part, QueueAck
from pyspark_rocketmq.model import MessageQueue, QueueState


def part_of(part_id: str, *queues: MessageQueue) -> Part:
    """A part in which one message of each queue was consumed, and nothing was written."""
    return Part(id=part_id, acks=tuple(map(_ack, queues)))


def _ack(queue: MessageQueue) -> QueueAck:
    return QueueAck(
        queue=queue, start=0, state=QueueState(1, epoch=1), consumed=1, failed=0, finished="GIVEN_UP"
    )
