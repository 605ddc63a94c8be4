"""What the suites of this folder share besides fixtures."""

from __future__ import annotations

import contextlib

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.errors import TransportError
from pyspark_rocketmq.model import MessageQueue
from tests.helpers.wait import wait_until

ANSWER_S = 30.0
"""More than any answer needs, so that a slow machine never fails a test."""

TRIES_TO_BE_HELD = 6
"""A pull holds only when the broker finds nothing first; how often a test may lose that race."""


def await_readable(client: BrokerClient, address: str, queue: MessageQueue, end: int) -> None:
    """Wait until the queue reaches ``end``: a real broker enters a stored message a moment later."""

    def is_there() -> bool:
        # A broker that has just started again may close the connection that its predecessor left behind.
        with contextlib.suppress(TransportError):
            return client.max_offset(address, queue) >= end
        return False

    wait_until(is_there, ANSWER_S, reason=f"{end} messages in {queue}")
