"""Decides when a draining query ends: a query with ``trigger(availableNow=True)``, which reads what is there.

The ends of all queues are fixed when the drain begins. The drain is over when every queue has been read to
its fixed end. Spark ends the query at the first empty plan. So while nothing can be planned, the planner asks
this module whether the drain is over, or for what the query must wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.errors import OffsetError, RocketMQError, TransportError
from pyspark_rocketmq.model import MessageQueue, QueueBounds, QueueRange, QueueState
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.cluster_view import Snapshot
from pyspark_rocketmq.source.progress import ProgressSource

_MOST_SHOWN: Final = 5
"""Maximum number of queues named in an error."""
_SKIP: Final = (
    "`pyspark-rocketmq offsets skip --messages 1 --topic TOPIC --queue BROKER:ID --conf FILE` "
    "(DeltaOffsetStore.reset)"
)


class Drain:
    """The ends to which a draining query reads its queues; there are none before :meth:`begin`."""

    def __init__(
        self, options: ReadOptions, progress: ProgressSource, clock: Clock, held_up: Callable[[], str]
    ) -> None:
        """Prepare a drain, which :meth:`begin` starts.

        ``held_up`` returns the driver's reason why queues wait, for an error's text; '' if it has none.
        """
        self._options = options
        self._progress = progress
        self._clock = clock
        self._held_up = held_up
        self._watch = StandstillWatch()
        self.has_begun = False
        self.ends: dict[MessageQueue, int] = {}
        """The exclusive end to which each queue is read; empty before the drain begins."""

    def begin(self, bounds: Mapping[MessageQueue, QueueBounds]) -> None:
        """Fix the end of each queue; queues that appear later are not read."""
        self.has_begun = True
        self.ends = {queue: found.max_offset for queue, found in bounds.items()}

    def forget(self, queue: MessageQueue) -> None:
        """Remove the end of a queue that was deleted, so that the drain does not wait for it."""
        self.ends.pop(queue, None)

    def not_planned(self, previous: Sequence[QueueRange]) -> list[QueueRange]:
        """Return the queues to drain that no plan had yet, each as a range from 0 to 0.

        They are the queues with an end above 0 that are not in ``previous``, the last plan's ranges.
        """
        planned = {known.queue for known in previous}
        wanted = sorted(queue for queue, end in self.ends.items() if end and queue not in planned)
        return [QueueRange.between(queue, 0, 0) for queue in wanted]

    def left(self, progress: Mapping[MessageQueue, QueueState]) -> dict[MessageQueue, int]:
        """Return the next offset of each queue in ``progress`` that has not been read to its end."""
        return {
            queue: progress[queue].next_offset
            for queue, end in sorted(self.ends.items())
            if queue in progress and progress[queue].next_offset < end
        }

    def check_moves(self, left: Mapping[MessageQueue, int]) -> None:
        """Check that a group's drain makes progress; a query without a group is not checked.

        Args:
            left: The result of :meth:`left` for the newest plan.

        Raises:
            OffsetError: If no queue moved for ``drainTimeoutMs``. The error names the queues and either the
                driver's reason why they wait, or the remedies for a listener that gives messages back.
        """
        if self._options.consumer_group is None:
            return
        stands_for_s = self._watch.stands_for_s(left, self._clock.monotonic_s())
        if stands_for_s * 1000 < self._options.drain_timeout_ms:
            return
        shown = [f"{queue} at offset {offset}" for queue, offset in left.items()]
        more = f" and {len(shown) - _MOST_SHOWN} more" if len(shown) > _MOST_SHOWN else ""
        reason = self._held_up()
        advice = (
            f"{reason} Correct the cause, skip the message by {_SKIP}, or raise drainTimeoutMs."
            if reason
            else "The log says why the listener gives messages back: correct the listener, set "
            "max_reconsume_times (option maxReconsumeTimes) so that such messages become dead letters, skip "
            f"the message by {_SKIP}, or raise drainTimeoutMs."
        )
        raise OffsetError(
            f"The availableNow query of group {self._options.consumer_group} has made no "
            f"progress for {stands_for_s:.0f} s: {'; '.join(shown[:_MOST_SHOWN])}{more}. {advice}"
        )

    def trouble(
        self,
        snapshot: Snapshot,
        previous: Sequence[QueueRange],
        progress: Mapping[MessageQueue, QueueState],
        *,
        waiting: Mapping[MessageQueue, RocketMQError],
    ) -> RocketMQError | None:
        """Return why the query cannot end because of a queue that could not be planned; None if it can.

        Such a queue does not matter if it was read to its end, or if it is known to be another member's. A
        member that does not know a queue yet cannot say whose it is, so the query waits. Whether the others
        hold it up is in the plan.

        Args:
            snapshot: The newest snapshot.
            previous: The ranges of the last plan.
            progress: The progress of every queue that could be planned.
            waiting: Queues that the plan left out although their brokers report bounds, and why.
        """
        planned = progress.keys() & snapshot.bounds.keys()
        unread = [queue for queue in sorted(self.ends.keys() - planned) if self._is_unread(queue, previous)]
        not_held = {queue for queue in unread if queue in snapshot.bounds and queue not in waiting}
        others = self._progress.left_to_others(not_held) if not_held else ()
        for queue in unread:
            if queue not in not_held:
                return waiting.get(queue) or _why_missing(queue, snapshot)
            if queue not in others:
                return self._not_held_error(queue)
        return None

    def _is_unread(self, queue: MessageQueue, previous: Sequence[QueueRange]) -> bool:
        """Return whether a queue was not read to its end, as far as is known."""
        return (self._progress.position(queue, previous) or 0) < self.ends[queue]

    def _not_held_error(self, queue: MessageQueue) -> RocketMQError:
        return RocketMQError(
            f"{queue} may have unread messages, and this member of group {self._options.consumer_group} does "
            "not hold it. Either queues allocated to this member are still locked by another member, or this "
            "member's name server does not list the broker. `pyspark-rocketmq offsets lag --conf FILE` shows "
            "who holds the queue. Wait for that member's batch to end or, if the member was killed, 60 s "
            f"for its locks to end; or raise retryTimeoutMs, which is {self._options.retry_timeout_ms}."
        )


def _why_missing(queue: MessageQueue, snapshot: Snapshot) -> RocketMQError:
    return (
        snapshot.unreachable.get(queue.broker_name)
        or snapshot.absent.get(queue.topic)
        or TransportError(
            queue.broker_name,
            f"{queue} was there when this AvailableNow query began and is no longer in the topic's "
            "route. Start the broker; if the topic was given fewer queues, start the query again",
        )
    )


class StandstillWatch:
    """Measures how long a drain has stood still: no queue has moved or reached its end.

    Times are monotonic seconds.
    """

    def __init__(self) -> None:
        self._left: Mapping[MessageQueue, int] = {}
        self._moved_at_s = 0.0

    def stands_for_s(self, left: Mapping[MessageQueue, int], now_s: float) -> float:
        """Return for how many seconds none of the queues ``left`` to drain (queue → position) has moved.

        Return 0 if one has moved since the last call, or if none is left.
        """
        if not left or left != self._left:
            self._left, self._moved_at_s = dict(left), now_s
        return now_s - self._moved_at_s
