"""Logs on the driver that a listener fails: which queues wait, since when and why, at most once a minute."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.commit.pipeline import BatchReport
from pyspark_rocketmq.consume.orderly import OrderlyFinish
from pyspark_rocketmq.consume.part import NOT_BEGUN, QueueAck
from pyspark_rocketmq.model import MessageQueue

logger = logging.getLogger(__name__)

PAUSE_S: Final = 60.0
"""Minimum time between two summaries; the first one comes immediately."""
_SHOWN: Final = 3
"""Maximum number of queues named in a summary."""
_FAILS_ALWAYS: Final = 3
"""Number of failed attempts from which on a summary warns that a message may fail for ever."""


class FailureSummary:
    """A batch listener that logs a summary of failed deliveries and suspended queues."""

    def __init__(self, consumer_group: str, clock: Clock, *, tries_for_ever: bool, drains: bool) -> None:
        """Log nothing yet.

        ``tries_for_ever``: a message that always fails is never given up. ``drains``: the query should end by
        itself, but cannot while a queue is suspended.
        """
        self._group = consumer_group
        self._clock = clock
        self._tries_for_ever = tries_for_ever
        self._drains = drains
        self._suspended: dict[MessageQueue, tuple[int, float, int]] = {}
        """For each suspended queue: its next offset, since when it has been there (wall-clock seconds), and
        how often the message there has failed."""
        self._failed = 0
        """Number of failed deliveries since the last summary."""
        self._last_error = ""
        self._due_s = 0.0

    def __call__(self, report: BatchReport) -> None:
        """Take the report of a commit (``BatchListener``), and log a summary if one is due."""
        summary = self.add(report)
        if summary is not None:
            logger.warning("%s", summary)

    def add(self, report: BatchReport) -> str | None:
        """Take the report of a commit; return the summary to log now.

        Return None if no delivery has failed since the last summary, or if the last summary is less than 60 s
        old.
        """
        now_s = self._clock.now_s()
        for ack in report.acks:
            self._add(ack, now_s)
        own = {row.queue for row in report.offsets}
        self._suspended = {queue: since for queue, since in self._suspended.items() if queue in own}
        if not self._failed or self._clock.monotonic_s() < self._due_s:
            return None
        self._due_s = self._clock.monotonic_s() + PAUSE_S
        text = " ".join(self._sentences())
        self._failed, self._last_error = 0, ""
        return text

    def _add(self, ack: QueueAck, now_s: float) -> None:
        self._failed += ack.failed
        self._last_error = ack.last_error or self._last_error
        if ack.finished == NOT_BEGUN:
            return
        if ack.finished != OrderlyFinish.SUSPENDED:
            self._suspended.pop(ack.queue, None)
        else:
            at, since_s, _ = self._suspended.get(ack.queue, (-1, now_s, 0))
            since_s = since_s if at == ack.state.next_offset else now_s
            self._suspended[ack.queue] = ack.state.next_offset, since_s, ack.state.reconsume_times

    def _sentences(self) -> list[str]:
        deliveries = _plural(self._failed, "delivery", "deliveries")
        sentences = [f"The listener of group {self._group} gave back {self._failed:,} {deliveries}."]
        if self._suspended:
            since = datetime.fromtimestamp(min(since for _, since, _ in self._suspended.values()), UTC)
            named = [
                f"{queue} at offset {at}" for queue, (at, *_) in sorted(self._suspended.items())[:_SHOWN]
            ]
            more = len(self._suspended) - len(named)
            count = len(self._suspended)
            sentences.append(
                f"{count:,} {_plural(count, 'queue is', 'queues are')} suspended since {since:%H:%M:%S} UTC: "
                f"{'; '.join(named)}{f' and {more:,} more' if more else ''}."
            )
        if self._last_error:
            sentences.append(f"Last error: {self._last_error.rstrip('.')}.")
        most_failures = max((times for _, _, times in self._suspended.values()), default=0)
        if self._suspended and self._tries_for_ever:
            if most_failures < _FAILS_ALWAYS:
                return sentences
            sentences.append(
                "A message that always fails is delivered for ever"
                + (", and the query never ends," if self._drains else "")
                + " unless max_reconsume_times (option maxReconsumeTimes) is set."
            )
        elif self._suspended and self._drains:
            sentences.append("The query waits for the suspended queues before it ends.")
        return sentences


class RefusedLetters:
    """A batch listener that passes on the reason why no broker accepts a failed message.

    An orderly listener's failed message is to become a dead letter. A concurrent listener's failed message is
    to be sent back, usually to be delivered again. The message's queue waits until a broker accepts it.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        """Take the function to call with the reason, a sentence; "" means that no message is refused now."""
        self._report = report
        self._refused: dict[MessageQueue, str] = {}

    def __call__(self, report: BatchReport) -> None:
        """Take the report of a commit (``BatchListener``); pass the reason on if it has changed."""
        before = dict(self._refused)
        for ack in report.acks:
            if ack.finished == NOT_BEGUN:
                continue
            self._refused.pop(ack.queue, None)
            if ack.refused_letter:
                self._refused[ack.queue] = ack.refused_letter
        own = {row.queue for row in report.offsets}
        self._refused = {queue: reason for queue, reason in self._refused.items() if queue in own}
        if self._refused != before:
            self._report(self._sentence())

    def _sentence(self) -> str:
        if not self._refused:
            return ""
        reason = self._refused[min(self._refused)]
        others = len(self._refused) - 1
        more = f" The same applies to {others:,} more {_plural(others, 'queue', 'queues')}." if others else ""
        what = "a message that was to be sent back or made a dead letter"
        return f"No broker accepted {what}: {reason.rstrip('.')}.{more}"


def _plural(count: int, one: str, many: str) -> str:
    return one if count == 1 else many
