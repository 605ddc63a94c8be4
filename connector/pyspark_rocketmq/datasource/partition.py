"""What a task gets: one queue range and how to read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql.datasource import InputPartition

from pyspark_rocketmq.client.settings import ConnectionSettings
from pyspark_rocketmq.model import BrokerAddress, QueueRange
from pyspark_rocketmq.pace_options import DEFAULT_IN_FLIGHT_BYTES
from pyspark_rocketmq.subscriptions import EVERYTHING


@dataclass(frozen=True, kw_only=True)
class QueuePartition(InputPartition):
    """One range of one queue; pickled to the executor, so it holds everything the read needs."""

    planned: QueueRange
    address: BrokerAddress
    """The master, where the range is read from."""
    subscription: str
    """Tags, or an SQL92 condition."""
    consumer_group: str
    """The name pulls are made under; the broker shows it in its statistics."""
    with_marker: bool
    """Whether a marker row ends the range (consumer mode)."""
    fail_on_data_loss: bool
    pull_batch_size: int
    pulls_in_flight: int
    request_timeout_s: float
    retry_timeout_s: float
    keeps_undecodable: bool = False
    """Whether a message that cannot be decoded is read with the bytes that are stored; else it is an error."""
    is_sql92: bool = False
    max_bytes: int | None = None
    """The range ends with the message whose body makes it as large as this (D13); consumer mode only."""
    replicas: Mapping[int, BrokerAddress] = field(default_factory=dict, hash=False)
    """Where the master's replicas are, by broker id: pulls go there when the master suggests it."""
    prefers_replica: bool = False
    """Whether pulls go to a replica without a suggestion."""
    max_in_flight_bytes: int = DEFAULT_IN_FLIGHT_BYTES
    """Stored bytes asked for or here and not decoded."""
    connection: ConnectionSettings = field(default_factory=ConnectionSettings)
    """Holds credentials: its repr, and so this class's, leaves them out."""
    columns: tuple[str, ...] | None = None
    """Columns of a message to read, in that order; None for all, as consumer mode needs."""
    property_columns: tuple[str, ...] = ()
    """Properties to read as columns behind them."""
    namespace: str = ""
    """That of topic and group, which are named without it here."""

    @property
    def is_filtered(self) -> bool:
        """Whether the broker may leave messages out."""
        return self.is_sql92 or self.subscription.strip() != EVERYTHING
