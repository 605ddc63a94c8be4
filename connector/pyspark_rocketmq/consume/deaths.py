"""Counts deaths of tasks in real time, so that a query fails if one cause ends its tasks again and again.

After a task has died, Spark starts another attempt of it. Spark never gives up, because that attempt ends
well: it consumes nothing and has another batch planned (rule 3 of :mod:`~pyspark_rocketmq.consume.cuts`). So
the driver counts the deaths. A task that fails with an error reports it; a worker that is killed, for example
by a message, reports nothing.

A machine that is taken away ends tasks, too, and shows no fault of the query. Two facts together show that
neither a message nor the task's beginning (an import, for example) has ended a task: it had lived *quietly*
for a minute, without an error, and later plans found no message at the offset of any of its queues. Such a
death is taken back. As long as one of the two facts is not known, the death counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
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


@dataclass(slots=True)
class _QuietDeath:
    """A counted death of a task that had lived quietly; it is taken back if its queues had no message."""

    reached: Mapping[MessageQueue, int]
    unknown: set[MessageQueue]
    """Queues that no plan since the death has had."""


class DeathCounts:
    """Counts the deaths of tasks for each queue and the offset that it has reached, over a query's batches.

    The count of a queue begins again when its offset has moved, or a task of it has ended well.
    """

    def __init__(self) -> None:
        self._deaths: dict[MessageQueue, _Deaths] = {}
        self._quiet: list[_QuietDeath] = []
        """Deaths with queues that no plan since has had."""
        self._at_end: dict[MessageQueue, int] = {}
        """Offsets at which the newest plan that had the queue found no message."""

    def planned(self, starts: Mapping[MessageQueue, int], at_end: Collection[MessageQueue]) -> None:
        """Note that a new plan begins the queues of a task at these offsets; take back quiet deaths.

        ``at_end``: the queues that had no message at their offset when the plan was made.
        """
        for queue, start in starts.items():
            self._at_end.pop(queue, None)
            if queue in at_end:
                self._at_end[queue] = start
        undecided: list[_QuietDeath] = []
        for death in self._quiet:
            known = death.unknown & starts.keys()
            death.unknown -= known
            if not all(self._is_at_end(queue, death.reached[queue]) for queue in known):
                # A message may have been the cause, so the death counts for good.
                continue
            if death.unknown:
                undecided.append(death)
            else:
                self._take_back(death)
        self._quiet = undecided

    def _is_at_end(self, queue: MessageQueue, next_offset: int) -> bool:
        return self._at_end.get(queue) == next_offset

    def _take_back(self, death: _QuietDeath) -> None:
        for queue, next_offset in death.reached.items():
            counted = self._deaths.get(queue)
            if counted is not None and counted.next_offset == next_offset:
                self._deaths[queue] = counted._replace(times=counted.times - 1)

    def count(
        self, reached: Mapping[MessageQueue, int], error: str = "", *, is_quiet: bool = False
    ) -> RocketMQError | None:
        """Count the death of a task whose queues have reached these offsets.

        ``error`` is the text of the error that the task has reported; empty if it has reported none.
        ``is_quiet``: whether the task had reported no error and was past its beginning, so that
        :meth:`planned` takes the death back if its queues had no message.

        Return the error that fails the batch if there were too many: four while none of the task's queues
        has moved, or twelve while one of them has not. Otherwise return None.
        """
        for queue, next_offset in reached.items():
            before = self._deaths.get(queue)
            if before is None or before.next_offset != next_offset:
                before = _Deaths(next_offset, 0, "")
            self._deaths[queue] = _Deaths(next_offset, before.times + 1, error or before.error)
        if is_quiet:
            self._quiet.append(_QuietDeath(dict(reached), set(reached)))
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
        forgiven = frozenset(queues)
        for queue in forgiven:
            self._deaths.pop(queue, None)
        self._quiet = [death for death in self._quiet if forgiven.isdisjoint(death.reached)]

    def _error(self, reached: Mapping[MessageQueue, int], deaths: int, meanwhile: str) -> RocketMQError:
        listed = _listed(reached)
        reported = next((each.error for queue in reached if (each := self._deaths[queue]).error), "")
        if reported:
            return RocketMQError(
                f"{deaths} tasks failed one after the other {meanwhile}. The last error that "
                f"they reported: {reported.rstrip('.')}. Correct its cause and start the query again: it "
                f"continues at {listed}."
            )
        died = f"{listed}: {deaths} tasks died one after the other {meanwhile}."
        suspects = {queue: offset for queue, offset in reached.items() if not self._is_at_end(queue, offset)}
        if not suspects:
            return RocketMQError(
                f"{died} When the last batch was planned, no message was there, so a message is hardly the "
                "cause: look at the executors' logs for what ends the Python worker, such as an import, too "
                "little memory, or machines that are taken away. Then start the query again."
            )
        return RocketMQError(
            f"{died} A message at {_listed(suspects)} may end the Python worker: look at the executors' "
            "logs. If the message cannot be consumed, skip it: `pyspark-rocketmq offsets skip --messages 1 "
            "--topic TOPIC --queue BROKER:ID --conf FILE`."
        )


def _listed(reached: Mapping[MessageQueue, int]) -> str:
    return "; ".join(f"{queue} offset={next_offset}" for queue, next_offset in sorted(reached.items()))
