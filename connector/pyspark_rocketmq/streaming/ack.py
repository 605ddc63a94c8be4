"""What the engine reports of one queue's range, on its way from a task to the committer on the driver."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from pyspark_rocketmq.consume.statistics import Figures
from pyspark_rocketmq.model import MessageQueue, QueueRange


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAck:
    """How far one queue came in one micro-batch."""

    topic: str
    broker_name: str
    queue_id: int
    epoch: int
    """The epoch the range was planned under."""
    start: int
    """First queue offset of the range."""
    next_offset: int
    """Next queue offset to consume."""
    reconsume_times: int
    """How often the message at ``next_offset`` was put back."""
    suspended_until_s: float | None
    """Wall-clock seconds; also set, to a moment that has come, when the time slice ended before any commit."""
    consumed: int
    """Messages passed in this batch, dead letters included."""
    failed: int
    """Deliveries the listener gave back."""
    finished: str
    """Why the engine stopped: EXHAUSTED, SUSPENDED, SLICE_USED, GIVEN_UP or, concurrent, THREADS_LOST."""
    listener_s: float
    """Seconds from the start of the consumption to the listener's last answer; 0 without a delivery."""
    read: int = 0
    """Messages of the range that were read, whether the listener got them or not."""
    reset_to: int | None = None
    """Where an operator wants the queue consumed from next: told by the broker while the range was read."""
    dead_letters: int = 0
    """Messages sent as dead letters in this batch; a batch that runs again sends them again."""
    sent_back: int = 0
    """Messages a concurrent listener gave back and their broker has, to deliver them again or as dead letters; a batch
    that runs again sends them again."""
    last_error: str = ""
    """What went wrong last, in one short line; empty if nothing did."""
    put_back: str = ""
    """How often messages from ``next_offset`` on were given back; empty when ``reconsume_times`` says it all."""
    last_message: str = ""
    """The newest message passed, as ``consume.lives`` writes it; empty when none was."""
    figures: Figures = field(default_factory=Figures)
    """What reading and consuming the range took (row D11)."""

    @classmethod
    def of(cls, planned: QueueRange, **reached: Any) -> Self:
        """How far the queue of a planned range came: the other fields by their names."""
        return cls(
            topic=planned.queue.topic,
            broker_name=planned.queue.broker_name,
            queue_id=planned.queue.queue_id,
            epoch=planned.epoch,
            start=planned.start,
            **reached,
        )

    @property
    def queue(self) -> MessageQueue:
        """The queue this speaks of."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)

    def to_json(self) -> str:
        """One line of text; floats keep all their digits."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The reverse of :meth:`to_json`."""
        facts = json.loads(text)
        return cls(**{**facts, "figures": Figures(*facts["figures"])})
