"""Looks for a topic's queues for as long as sends are tried."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from pyspark_rocketmq.client.producer import Producer
from pyspark_rocketmq.client.retry import UNTIL_DEADLINE, call_with_retry
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.errors import TopicNotFound
from pyspark_rocketmq.model import MessageQueue

logger = logging.getLogger(__name__)


class _NotThere(TopicNotFound):
    retryable: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class PatientLookup:
    """Finds the queues of topics for one producer.

    A topic that the producer has never seen may be new, or be on brokers that restart: nobody can tell.  It is looked for
    all the time there is before brokers are expected to make it, because other brokers would, and keys would move to them.
    """

    producer: Producer
    clock: Clock
    timeout_s: float
    """For one topic."""
    sleep: Callable[[float], object] = time.sleep

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The topic's queues, as :meth:`Producer.queues` has them.

        Raises:
            RocketMQError: As of :meth:`Producer.queues`, after the time is over if it may pass.
        """
        deadline = Deadline.after(self.clock, self.timeout_s)
        try:
            return call_with_retry(lambda: self._look(topic), UNTIL_DEADLINE, deadline, self.sleep)
        except _NotThere:
            return self.producer.queues(topic)

    def _look(self, topic: str) -> tuple[MessageQueue, ...]:
        try:
            return self.producer.queues(topic, may_create=False)
        except TopicNotFound as error:
            logger.warning(
                "topic is not there, looking for it up to %g s: its brokers may be restarting; a new one is best created before "
                "it is written to topic=%s",
                self.timeout_s,
                topic,
            )
            raise _NotThere(error.code, error.remark, request=error.request, address=error.address) from error
