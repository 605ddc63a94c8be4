"""Reads the answers to a batch's last pulls, which come after its task has ended.

In real time a broker holds a pull for up to 15 s, until a message comes. If the connection is closed
meanwhile, the broker does not drop the pull, but answers it later. If an operator has reset the queue, the
broker reports the reset in this answer, which nobody gets, and forgets it. So the pulls of the next batch
would not get the reset. Therefore a connection with pulls in flight stays open until they are answered, for
about 20 s at most.

Source: ``PullRequestHoldService``, ``ConsumerOffsetManager.queryThenEraseResetOffset``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from pyspark_rocketmq.client.pool import ConnectionSettings
from pyspark_rocketmq.client.pull_connection import Pull, PullConnection, release_connection
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.wire.requests.pull import PullResult

logger = logging.getLogger(__name__)

PullT = TypeVar("PullT", bound=Pull)
TakeIn = Callable[[Iterable[tuple[PullT, PullResult | RocketMQError]]], None]
"""Function that gets pulls with their answers. It runs on a separate thread, and may wait."""


def read_late_answers(
    connection: PullConnection[PullT],
    clock: Clock,
    settings: ConnectionSettings,
    silence_s: float,
    take_in: TakeIn[PullT],
) -> None:
    """Read the answers to the pulls in flight, then release the connection, all on a new thread.

    This returns immediately, and the caller must no longer use the connection. ``take_in`` gets the answers.
    A pull without an answer is given up ``silence_s`` seconds after the time at which its broker must have
    answered.
    """

    def read() -> None:
        try:
            connection.await_answers(0)
            while connection.in_flight:
                take_in(connection.receive(silence_s))
        except RocketMQError as error:
            logger.debug("late answers cannot be read address=%s: %s", connection.address, error)
            connection.close()
        else:
            release_connection(connection, clock, settings)

    thread = threading.Thread(target=read, name=f"rocketmq-late-{connection.address}", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        # A process that is about to end cannot start threads.
        connection.close()
