"""The attempts of one send that nobody waits for. Decides alone; who sends, looks for queues and has threads is given.

Source: RocketMQ 5.3.3 ``MQClientAPIImpl.sendMessageAsync``, ``onExceptionImpl``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from pyspark_rocketmq.client.broker import OnSend
from pyspark_rocketmq.client.fault_tolerance import SendOutcome
from pyspark_rocketmq.client.sending import SendResult
from pyspark_rocketmq.clock import Deadline
from pyspark_rocketmq.errors import RocketMQError, TransportError
from pyspark_rocketmq.model import MessageQueue

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class AsyncAttempts:
    """Of one message.

    An attempt that was not answered is repeated while there is time; a broker's refusal is not, whatever it says.  All attempts
    share one time, so one that used it up has no successor.
    """

    send: Callable[[MessageQueue, OnSend], None]
    """Begins an attempt; what it is given is called exactly once, on any thread, unless it raises."""
    next_queue: Callable[[MessageQueue], MessageQueue]
    """Where to try after a failure at this queue; may block."""
    note: Callable[[MessageQueue, float, SendOutcome], None]
    """Takes in how an attempt at a queue, begun at a moment in monotonic seconds, went."""
    later: Callable[[Callable[[], None]], bool]
    """Has something done on a thread that may block; False if there is none any more."""
    on_result: OnSend
    """Told once, in the end."""
    deadline: Deadline
    retries: int
    """Attempts left after the first."""

    def begin(self, queue: MessageQueue) -> None:
        """Try; :attr:`on_result` is called when it is over.

        Raises:
            RocketMQError: If the first attempt could not be begun; then it is not called.
        """
        begun_s = self.deadline.clock.monotonic_s()
        self.send(queue, lambda outcome: self._ended(queue, begun_s, outcome))

    def _ended(self, queue: MessageQueue, begun_s: float, outcome: SendResult | RocketMQError) -> None:
        self.note(queue, begun_s, SendOutcome.of_async(outcome))
        if isinstance(outcome, TransportError) and self.retries > 0 and not self.deadline.has_passed:
            self.retries -= 1
            failure = outcome
            if self.later(lambda: self._repeat(queue, failure)):
                return
        self.on_result(outcome)

    def _repeat(self, queue: MessageQueue, failure: RocketMQError) -> None:
        try:
            self.begin(self.next_queue(queue))
        except Exception as error:
            # Of any kind: nobody else would hear of it, and somebody waits for the result.
            if not isinstance(error, RocketMQError):
                logger.exception("a send could not be repeated queue=%s", queue)
            # What became of the message says the attempt, not the search for another queue.
            self.on_result(failure)
