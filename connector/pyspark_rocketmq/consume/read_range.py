"""A range to read, and the settings to read it with, as a plan gives them to the tasks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from pyspark_rocketmq.consume.generations import MOST_PULLED_AGAIN, NO_WITNESSES, NewestStored, Witnesses
from pyspark_rocketmq.model import BrokerAddress, QueueRange, UndecodableMessages
from pyspark_rocketmq.options.connection import PLAIN_SOURCE_GROUP
from pyspark_rocketmq.options.read import ReadFrom, ReadOptions
from pyspark_rocketmq.options.subscription import EVERYTHING
from pyspark_rocketmq.stored_values import LastMessage


class PullThresholds(NamedTuple):
    """How many messages of a queue may wait for a COMMIT in real time; None for any number."""

    messages: int | None = None
    body_bytes: int | None = None
    """Size of their bodies, in bytes."""


class ReadSettings(NamedTuple):
    """How the ranges of a plan are read; the same for all of them. Tasks get it with their ranges.

    :meth:`of` derives some fields from the options of a query, and copies the others, which have the names
    of their options in ``ReadOptions``.
    """

    fail_on_data_loss: bool
    pull_batch_size: int
    pulls_in_flight: int
    max_in_flight_bytes: int
    """Maximum number of stored bytes requested or received and not decoded yet."""
    property_columns: tuple[str, ...]
    """Properties to read as further columns behind ``columns``."""
    columns: tuple[str, ...] | None
    """Columns of a message to read, in this order; None for all, which consumer mode needs."""
    consumer_group: str
    """The group name in pulls; the broker shows it in its statistics."""
    is_group_read: bool
    """Whether a consumer group reads. If its messages go through Spark as rows, each range ends with a marker
    row."""
    namespace: str
    """Namespace of topic and group, which are named without it here."""
    request_timeout_s: float
    retry_timeout_s: float
    keeps_undecodable: bool
    """Whether a message that cannot be decoded is read with its stored bytes; otherwise it is an error."""
    max_bytes: int | None
    """Size of bodies, in bytes, at which a range ends, after the message that reaches it; None without a
    consumer group."""
    pull_threshold_for_queue: int | None
    """Number of a queue's uncommitted messages, in real time, at which no more are read; None for the
    default."""
    prefers_replica: bool
    """Whether pulls go to a replica even if the master does not suggest it."""
    replaces_master: bool
    """Whether pulls go to a replica when the master does not answer."""
    has_worked: bool
    """Whether the query has read messages before; decides after which errors a pull is repeated
    (``is_pulled_again``)."""

    @property
    def thresholds(self) -> PullThresholds:
        """How many messages of a queue may wait for a COMMIT in real time."""
        return PullThresholds(self.pull_threshold_for_queue, self.max_bytes)

    @classmethod
    def of(cls, options: ReadOptions, *, has_worked: bool = False) -> Self:
        """Return the settings in the options of a query."""
        is_group_read = options.consumer_group is not None
        derived: dict[str, Any] = {
            "columns": None if is_group_read else options.columns(),
            "consumer_group": options.consumer_group or PLAIN_SOURCE_GROUP,
            "is_group_read": is_group_read,
            "namespace": options.namespace or "",
            "request_timeout_s": options.request_timeout_ms / 1000,
            "retry_timeout_s": options.retry_timeout_ms / 1000,
            "keeps_undecodable": options.undecodable_messages is UndecodableMessages.KEEP,
            "max_bytes": options.pull_threshold_size_for_queue << 20 if is_group_read else None,
            "prefers_replica": options.read_from is ReadFrom.SLAVE,
            "replaces_master": options.goes_on_at_slaves(),
            "has_worked": has_worked,
        }
        names = (name for name in cls._fields if name not in derived)
        return cls(**derived, **{name: getattr(options, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class ReadRange:
    """One range of one queue, where it is read, and how."""

    planned: QueueRange
    address: BrokerAddress
    """The master from which the range is read; its slave if ``is_slave``."""
    subscription: str
    """Tags, or an SQL92 condition."""
    is_sql92: bool = False
    settings: ReadSettings
    witnesses: Witnesses = NO_WITNESSES
    """Messages that were consumed earlier. If another message now has the offset of one of them, the queue
    has another log: nothing of the range is read, and the range ends at its start."""
    newest: NewestStored | None = None
    """The queue's last message when a batch read was planned. At the end of the range, the read checks that
    the log still has this message. None if the message is not known, and in a stream, whose next plan
    compares the logs."""
    replicas: Mapping[int, BrokerAddress] = field(default_factory=dict, hash=False)
    """Addresses of the master's replicas, by broker id; ``slave_reads`` decides when pulls go there."""
    is_slave: bool = False
    """Whether the master was down when the range was given out, and ``address`` is its slave's."""

    @property
    def is_filtered(self) -> bool:
        """Whether the broker may leave messages out."""
        return self.is_sql92 or self.subscription.strip() != EVERYTHING

    @property
    def looked_up(self) -> LastMessage | None:
        """The witness that is looked up before the range is read; None if none has to be.

        That is the witness ahead of the range; without one, the witness before the range if it is not
        :attr:`pulled_again`.
        """
        ahead, before = self.witnesses.ahead, self.witnesses.before
        return before if ahead is None and self.pulled_again is None else ahead

    @property
    def pulled_again(self) -> LastMessage | None:
        """The witness before the range that is pulled with it; None if there is none that can be.

        Under a filter the broker may leave out the message that is now at this offset, so a pull of the range
        would not show another log. A message far before the range would bring too many others.
        """
        before = self.witnesses.before
        is_far = before is not None and self.planned.start - before.queue_offset > MOST_PULLED_AGAIN
        return None if self.is_filtered or is_far else before

    @property
    def pulled_from(self) -> int:
        """Offset at which pulling begins: that of :attr:`pulled_again`, else the range's start.

        A message before the range is only compared with that witness, and is not part of the range.
        """
        before = self.pulled_again
        return self.planned.start if before is None else before.queue_offset
