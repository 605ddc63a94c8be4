"""Ranges to read, as a plan gives them to tasks."""

from __future__ import annotations

from dataclasses import replace

from pyspark_rocketmq.model import BrokerAddress, QueueRange
from pyspark_rocketmq.source.ranges import QueuePartition
from tests.helpers.wait import PATIENCE_S


def partition_of(planned: QueueRange, address: str, **changes: object) -> QueuePartition:
    """Return a partition of all messages of a range, read without a group by a few small pulls at a time."""
    made = QueuePartition(
        planned=planned,
        address=BrokerAddress(address),
        subscription="*",
        consumer_group="g",
        is_group_read=False,
        fail_on_data_loss=True,
        pull_batch_size=8,
        pulls_in_flight=4,
        request_timeout_s=PATIENCE_S,
        retry_timeout_s=1.0,
    )
    return replace(made, **changes)  # type: ignore[arg-type]
