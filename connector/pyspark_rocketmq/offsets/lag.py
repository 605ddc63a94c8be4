"""How far one queue is behind: the one place that says what lag is, in messages and in seconds. Pure."""

from __future__ import annotations

from typing import NamedTuple


class QueueLag(NamedTuple):
    """Where a queue is read next, beside what its broker holds."""

    next_offset: int
    """Next queue offset to consume."""
    max_offset: int | None
    """The broker's, exclusive; None when it did not answer or does not have the queue."""
    next_stored_at_s: float | None = None
    """Wall-clock second at which the message at ``next_offset`` was stored, where it was asked for and is there."""

    @property
    def messages(self) -> int | None:
        """Messages stored and not yet consumed; offsets that hold none, as after a filter, count too."""
        return None if self.max_offset is None else max(0, self.max_offset - self.next_offset)

    @property
    def beyond_end(self) -> int | None:
        """By how many messages the next offset is beyond the end of the queue; None where the end is not known."""
        return None if self.max_offset is None else max(0, self.next_offset - self.max_offset)

    @property
    def note(self) -> str | None:
        """What 0 messages do not say of a queue that nothing is consumed of."""
        return f"beyond the end by {self.beyond_end}" if self.beyond_end else None

    def seconds(self, now_s: float) -> float | None:
        """For how long the next message has waited; 0 when there is none, and where clocks differ."""
        if self.messages == 0:
            return 0.0
        return None if self.next_stored_at_s is None else max(0.0, now_s - self.next_stored_at_s)
