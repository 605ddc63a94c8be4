"""Decides how long a suspended queue rests, and when its suspension is over; pure functions.

A listener that gives messages back suspends their queue. While the task that consumes the queue runs, it ends
the suspension itself, by its own *monotonic* clock (``now_s`` of the state machine in
:mod:`pyspark_rocketmq.consume.orderly`). The task's acks, and the queue's row in the offset store, have the
suspension's end by the *wall* clock (``QueueState.suspended_until_s``), because another process or machine
reads it there. A wall clock may be set back, and clocks of two machines differ, so an end that is too far
away does not count.
"""

from __future__ import annotations

from typing import Final

from pyspark_rocketmq.consume.not_now import REFUSED_PAUSE_S
from pyspark_rocketmq.model import QueueState
from pyspark_rocketmq.options.consumer import consumer_bounds

SHORTEST_SUSPEND_MILLIS: Final = consumer_bounds("suspend_current_queue_time_millis")[0]
LONGEST_SUSPEND_MILLIS: Final = consumer_bounds("suspend_current_queue_time_millis")[1]
DEFAULT_SUSPEND: Final = -1
"""Suspend time of a context that means the consumer's own setting (``ConsumeOrderlyContext``)."""
LONGEST_SUSPEND_S: Final = LONGEST_SUSPEND_MILLIS / 1000
CLOCKS_DIFFER_S: Final = 30.0
"""How far a worker's clock may be ahead of the driver's, or a clock be set back, until a suspension counts as
over. Half a second between two clocks must not end a suspension of 30 s."""


def pause_s(suspend_millis: float, default_millis: float) -> float:
    """Return how long a queue rests, in seconds, after a listener has given its messages back.

    The pause is at least ``SHORTEST_SUSPEND_MILLIS`` and at most ``LONGEST_SUSPEND_MILLIS``.

    Args:
        suspend_millis: The suspend time of the listener's context; ``DEFAULT_SUSPEND`` if it set none.
        default_millis: The consumer's setting ``suspend_current_queue_time_millis``.

    Source: ``ConsumeMessageOrderlyService.submitConsumeRequestLater``.
    """
    if suspend_millis == DEFAULT_SUSPEND:
        suspend_millis = default_millis
    return max(SHORTEST_SUSPEND_MILLIS, min(suspend_millis, LONGEST_SUSPEND_MILLIS)) / 1000


def by_wall_clock(until_s: float | None, now_s: float, wall_s: float) -> float | None:
    """Return the end of a suspension by the wall clock; None without a suspension.

    ``until_s`` is the end by the task's monotonic clock. ``now_s`` and ``wall_s`` are the present times of
    the monotonic clock and of the wall clock.
    """
    return None if until_s is None else until_s + wall_s - now_s


def after_refusal(until_s: float | None, wall_s: float) -> float:
    """Return the end of a queue's suspension after its broker has refused pulls: 3 s from now at least.

    ``until_s`` is the end that the suspension had before; None if the queue was not suspended. ``wall_s`` is
    now, by the wall clock.
    """
    return max(until_s or 0.0, wall_s + REFUSED_PAUSE_S)


def suspended_for_s(until_s: float, wall_s: float) -> float:
    """Return for how many seconds a task lets a queue rest, at most 30; 0 or less if the suspension is over.

    ``until_s`` is the end of the suspension by the wall clock of the machine that wrote it. ``wall_s`` is the
    present time by this machine's wall clock.
    """
    return min(until_s - wall_s, LONGEST_SUSPEND_S)


def suspended_until(state: QueueState, wall_s: float) -> float | None:
    """Return the end of a queue's suspension for the planner; None if the queue may be planned now.

    An end further away than ``LONGEST_SUSPEND_S`` and ``CLOCKS_DIFFER_S`` together counts as over: it was
    written before the clock was set back.
    """
    due_s = state.suspended_until_s
    longest_s = LONGEST_SUSPEND_S + CLOCKS_DIFFER_S
    is_waiting = due_s is not None and wall_s < due_s <= wall_s + longest_s
    return due_s if is_waiting else None
