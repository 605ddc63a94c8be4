"""Ranges to read, as a plan gives them to tasks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from pyspark_rocketmq.client.pool import ConnectionSettings
from pyspark_rocketmq.consume.read_range import ReadRange, ReadSettings
from pyspark_rocketmq.model import BrokerAddress, QueueRange
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.ranges import QueuePartition
from tests.helpers.wait import PATIENCE_S

RangeT = TypeVar("RangeT", bound=ReadRange)

DEFAULT_SETTINGS = ReadSettings.of(ReadOptions.parse({"nameServers": "127.0.0.1:9876", "topic": "orders"}))
"""Settings of a query without a group, from the options' defaults."""


def partition_of(planned: QueueRange, address: str, **changes: Any) -> QueuePartition:
    """Return a partition of all messages of a range, read without a group by a few small pulls at a time."""
    made = QueuePartition(
        planned=planned,
        address=BrokerAddress(address),
        subscription="*",
        settings=DEFAULT_SETTINGS._replace(
            consumer_group="g",
            columns=None,
            pull_batch_size=8,
            pulls_in_flight=4,
            request_timeout_s=PATIENCE_S,
            retry_timeout_s=1.0,
            replaces_master=False,
        ),
        connection=ConnectionSettings(),
    )
    return changed(made, **changes)


def changed(made: RangeT, **changes: Any) -> RangeT:
    """Return the same range with other values of its own fields and of its settings'."""
    settings = {name: value for name, value in changes.items() if name in ReadSettings._fields}
    own = {name: value for name, value in changes.items() if name not in settings}
    return replace(made, settings=made.settings._replace(**settings), **own)
