"""Counts deaths of tasks in real time, so that a query fails if one cause ends its tasks again and again.

After a task has died, Spark starts another attempt of it. Spark never gives up, because that attempt ends
well: it consumes nothing and has another batch planned (rule 3 of :mod:`~pyspark_rocketmq.consume.cuts`). So
the driver counts the deaths. A task that fails with an error reports it; a worker that is killed, for example
by a message, reports nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageQueue

_MOST_DEATHS: Final = 4
"""Number of deaths of a task that fail the batch if none of its queues has moved meanwhile; the default of
Spark's ``spark.task.maxFailures``."""
_MOST_DEATHS_BESIDE_OTHERS: Final = 12
"""Number of deaths at the same offset of one queue that fail the batch, even if the task's other queues
move."""


class _Deaths(NamedTuple):
    next_offset: int
    times: int
    error: str
    """The last error that one of the tasks has reported; empty if none has."""


class DeathCounts:
    """Counts the deaths of tasks for each queue and the offset that it has reached, over a query's batches.

    The count of a queue begins again when its offset has moved, or a task of it has ended well.
    """

    def __init__(self) -> None:
        self._deaths: dict[MessageQueue, _Deaths] = {}

    def count(self, reached: Mapping[MessageQueue, int], error: str = "") -> RocketMQError | None:
        """Count the death of a task whose queues have reached these offsets.

        ``error`` is the text of the error that the task has reported; empty if it has reported none.

        Return the error that fails the batch if there were too many: four while none of the task's queues
        has moved, or twelve while one of them has not. Otherwise return None.
        """
        for queue, next_offset in reached.items():
            before = self._deaths.get(queue)
            if before is None or before.next_offset != next_offset:
                before = _Deaths(next_offset, 0, "")
            self._deaths[queue] = _Deaths(next_offset, before.times + 1, error or before.error)
        times = [self._deaths[queue].times for queue in reached]
        if min(times, default=0) >= _MOST_DEATHS:
            return self._error(reached, _MOST_DEATHS, "without getting further")
        if max(times, default=0) >= _MOST_DEATHS_BESIDE_OTHERS:
            # The cause may also be a queue that moves a little each time. An idle queue has no message that
            # could be the cause.
            return self._error(reached, _MOST_DEATHS_BESIDE_OTHERS, "while one of their queues stood still")
        return None

    def forgive(self, queues: Iterable[MessageQueue]) -> None:
        """Forget the deaths of queues whose task has ended well."""
        for queue in queues:
            self._deaths.pop(queue, None)

    def _error(self, reached: Mapping[MessageQueue, int], deaths: int, meanwhile: str) -> RocketMQError:
        listed = "; ".join(f"{queue} offset={next_offset}" for queue, next_offset in sorted(reached.items()))
        reported = next((each.error for queue in reached if (each := self._deaths[queue]).error), "")
        if reported:
            return RocketMQError(
                f"{deaths} tasks failed one after the other {meanwhile}. The last error that "
                f"they reported: {reported.rstrip('.')}. Correct its cause and start the query again: it "
                f"continues at {listed}."
            )
        return RocketMQError(
            f"{listed}: {deaths} tasks died one after the other {meanwhile}. The message "
            "at one of these offsets may end the Python worker: look at the executors' logs. If the message "
            "cannot be consumed, skip it: `pyspark-rocketmq offsets skip --messages 1 --topic TOPIC --queue "
            "BROKER:ID --conf FILE`."
        )
