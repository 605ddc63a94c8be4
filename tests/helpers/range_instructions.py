"""Instructions for a running task, given by a test."""

from __future__ import annotations

from collections.abc import Callable

from pyspark_rocketmq.consume.turns import RangeInstructions
from pyspark_rocketmq.model import MessageQueue


class GivenUpWhen(RangeInstructions):
    """Gives up every queue as soon as ``is_so`` returns true."""

    def __init__(self, is_so: Callable[[], bool]) -> None:
        self._is_so = is_so

    def is_given_up(self, queue: MessageQueue) -> bool:
        return self._is_so()
