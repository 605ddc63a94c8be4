"""A query of micro-batches in the simulation: its ranges are closed.

A task ends by itself once its ranges are consumed. Without its connection it hands nothing over any more: it
ends after the call in hand, and what is left comes with the job's result. Another attempt may begin while the
one before lives. In some worlds no cuts are asked for: then only queues that are given up are handed over,
and the driver has copies of the results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark_rocketmq.consume.cuts import Place
from pyspark_rocketmq.consume.part import Group
from pyspark_rocketmq.model import MessageQueue
from tests.simulation.driver import Driver
from tests.simulation.task import Task

if TYPE_CHECKING:
    from tests.simulation.world import World


class ClosedDriver(Driver):
    """One run of the query, until it ends or is killed."""

    def __init__(self, world: World) -> None:
        self.is_cut = world.random.random() < 0.75
        super().__init__(world)

    def _is_worth_a_batch(self) -> bool:
        # Few batches without messages are enough: Spark plans none.
        world = self.world
        if world.is_patient or (world.is_faulty and world.random.random() < 0.25):
            return True
        rows, stored = world.store.rows, world.brokers.stored
        return any(stored[queue] > rows[queue].next_offset for queue in self.held)

    def _plan_ranges(self, places: Mapping[MessageQueue, Place]) -> None:
        stored, random = self.world.brokers.stored, self.world.random
        is_backlog = self.world.is_backlog
        self.range_ends = {
            queue: stored[queue]
            if is_backlog
            else min(stored[queue], place.next_offset + random.randrange(12))
            for queue, place in places.items()
        }

    def _slots_now(self, most: int) -> int:
        return most

    def _new_task(self, partition: int, attempt: int) -> Task:
        for former in self.tasks.values():
            former.is_replaced |= former.partition == partition
        return super()._new_task(partition, attempt)

    def _check_latency(self, group: Group) -> None:
        if self.is_cut:
            super()._check_latency(group)
