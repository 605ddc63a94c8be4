"""What a running task is told: which of its queues it has to give up, and whether others of its batch are at work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from pyspark_rocketmq.model import MessageQueue


class RangeOrders(Protocol):
    """Looked at before every delivery, so it must cost no more than looking up an attribute."""

    def is_given_up(self, queue: MessageQueue) -> bool:
        """Whether the range of ``queue`` makes no further delivery; once true, true to the task's end.

        What was delivered and answered before counts, as where a range's time is used up (D7).
        """
        ...

    def idles(self, changed: Callable[[], None]) -> None:
        """Say, once, that the task has only suspended queues left; returns at once.

        Args:
            changed: Called by another thread when ``is_batch_at_work`` may have become false; must not wait.
        """
        ...

    def is_batch_at_work(self) -> bool:
        """Whether other tasks go on, so that a task that ``idles`` does not prolong its batch; once false, false to the end."""
        ...

    def take(self, rows: object) -> bool:
        """Take the engine's rows of a range that was given up, its ack row at their end; from any of the task's threads.

        Returns:
            Whether that was done: else the engine gives them out as any others.
        """
        ...


class NoOrders:
    """Implements :class:`RangeOrders` where nobody gives any."""

    def is_given_up(self, queue: MessageQueue) -> bool:  # noqa: ARG002 - the protocol's
        """Never."""
        return False

    def idles(self, changed: Callable[[], None]) -> None:
        """Nobody wants to know."""

    def is_batch_at_work(self) -> bool:
        """As far as anybody knows."""
        return False

    def take(self, rows: object) -> bool:  # noqa: ARG002 - the protocol's
        """Nothing."""
        return False


NO_ORDERS: Final[RangeOrders] = NoOrders()
