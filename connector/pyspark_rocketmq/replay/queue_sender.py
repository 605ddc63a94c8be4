"""Sends a range's messages to one queue: each once, whatever becomes of a request or of the task before this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark_rocketmq.client.retry import UNTIL_DEADLINE, call_with_retry
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.errors import ConnectFailed, RocketMQError, TransportError
from pyspark_rocketmq.model import Message

Row = tuple[int, Message]
"""Source offset and what is sent."""


class QueueSender:
    """For one range.

    After a request of which it is not known whether it was stored, the queue is looked at before anything is sent again; before
    that a moment passes, in which a request that was still on its way can arrive.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Message]], None],
        stored_until: Callable[[], int],
        clock: Clock,
        sleep: Callable[[float], object],
        *,
        is_repeated: bool,
        settle_s: float,
        retry_timeout_s: float,
    ) -> None:
        """Send nothing yet.

        Args:
            send: Stores messages, all or none, or raises.
            stored_until: Looks at the target: the first source offset that is not stored there.
            clock: For the time a batch is tried.
            sleep: Waits so many seconds.
            is_repeated: Whether somebody may have sent a part of the range before.
            settle_s: How long a request may be on its way whose sender has given it up.
            retry_timeout_s: For how long a batch is tried.
        """
        self._send = send
        self._look = stored_until
        self._clock = clock
        self._sleep = sleep
        self._settle_s = settle_s
        self._retry_timeout_s = retry_timeout_s
        self._stored_until = 0
        self._is_unsure = self._is_on_its_way = is_repeated

    def put(self, rows: Sequence[Row]) -> None:
        """Send the next messages of the range, few enough for a batch; they are stored when it returns.

        Raises:
            RocketMQError: If that is not so, or cannot be told.
        """
        deadline = Deadline.after(self._clock, self._retry_timeout_s)
        call_with_retry(lambda: self._attempt(rows), UNTIL_DEADLINE, deadline, self._sleep)

    def _attempt(self, rows: Sequence[Row]) -> None:
        if self._is_on_its_way:
            self._sleep(self._settle_s)
            self._is_on_its_way = False
        if self._is_unsure:
            self._stored_until = self._look()
            self._is_unsure = False
        missing = [message for queue_offset, message in rows if queue_offset >= self._stored_until]
        if not missing:
            return
        try:
            self._send(missing)
        except RocketMQError as error:
            # Where no connection could be made nothing was sent; a broker that answers has nothing left to do.
            self._is_unsure = self._is_unsure or not isinstance(error, ConnectFailed)
            self._is_on_its_way = isinstance(error, TransportError) and self._is_unsure
            raise
