"""What a task gets: one queue range and how to read it."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.sql.datasource import InputPartition

from pyspark_rocketmq.client.settings import ConnectionSettings
from pyspark_rocketmq.model import BrokerAddress, QueueRange


@dataclass(frozen=True, kw_only=True)
class QueuePartition(InputPartition):
    """One range of one queue; pickled to the executor, so it holds everything the read needs."""

    planned: QueueRange
    address: BrokerAddress
    """Where the range is read from."""
    subscription: str
    consumer_group: str
    """The name pulls are made under; the broker shows it in its statistics."""
    with_marker: bool
    """Whether a marker row ends the range (consumer mode)."""
    fail_on_data_loss: bool
    pull_batch_size: int
    pulls_in_flight: int
    request_timeout_s: float
    retry_timeout_s: float
    connection: ConnectionSettings = field(default_factory=ConnectionSettings)
    """Holds credentials: its repr, and so this class's, leaves them out."""
    namespace: str = ""
    """That of topic and group, which are named without it here."""
