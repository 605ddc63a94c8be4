"""A task's result in parts, each with files and acks of its own, so that some of it can be committed before the rest, or without it.

Normally there is one part, and it comes to the driver when the job ends. A queue that was given up leaves in a part of its own; ranges that
had come to their end before are handed over in the part that they are in.

The part that grows is with one thread at a time: who needs it takes it out and puts it back, and nothing waits.
"""

from __future__ import annotations

import threading
import uuid
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rocketmq.hub.task_line import Fate, TaskOrders
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.streaming.ack import QueueAck
from pyspark_rocketmq.streaming.output_schema import ACK_COLUMN, QUEUE_COLUMNS
from pyspark_rocketmq.streaming.sink import RowWriter, Writing


class TaskPart:
    """Rows written and acknowledged together."""

    def __init__(self, writer: RowWriter | None) -> None:
        self.id = uuid.uuid4().hex
        self.queues: set[MessageQueue] = set()
        self._writing: Writing | None = writer.open() if writer is not None else None
        self._acks: list[str] = []
        self._emitted = 0
        self._left_out = 0

    def add(self, data: pa.RecordBatch, acks: list[str]) -> None:
        """Take rows of one or more ranges, and the acks of those that end with them."""
        self._acks += acks
        self._emitted += data.num_rows
        if data.num_rows and self._writing is not None:
            self._left_out += self._writing.add(data)

    def finish(self) -> dict[str, Any]:
        """What the driver needs to commit it."""
        written = self._writing.finish() if self._writing is not None else ()
        return {
            "id": self.id,
            "written": [each.to_dict() for each in written],
            "acks": self._acks,
            "emitted": self._emitted,
            "left_out": self._left_out,
        }

    def abandon(self) -> None:
        """Undo it; see ``Writing.abandon``."""
        if self._writing is not None:
            self._writing.abandon()


class TaskParts:
    """What a task has so far."""

    def __init__(self, writer: RowWriter | None, orders: TaskOrders | None) -> None:
        self._writer = writer
        self._orders = orders
        self._guard = threading.Lock()
        """Over what follows; nothing is written or sent under it."""
        self._growing: TaskPart | None = TaskPart(writer)
        """None while a thread adds to it."""
        self._is_cut_wanted = False
        self._cuts: list[threading.Thread] = []
        self._finished: list[dict[str, Any]] = []
        """Parts that the driver gets with the job."""
        self._failure: BaseException | None = None
        if orders is not None:
            orders.when_cut(self._begin_cut)
            orders.taken_by(self.take)

    def take(self, batch: pa.RecordBatch) -> bool:
        """Take the rows of a range that was given up, from any thread; not those that are kept all the same."""
        assert self._orders is not None
        queue = MessageQueue(*(batch.column(name)[-1].as_py() for name in QUEUE_COLUMNS))
        fate = self._orders.fate(queue)
        if fate is Fate.KEPT:
            return False
        ack = batch.column(ACK_COLUMN)[-1].as_py()
        data = batch.drop_columns([ACK_COLUMN]).slice(0, batch.num_rows - 1)
        self._give_up(queue, fate, data, [ack])
        return True

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the engine's rows: data rows of a range, behind them its ack row."""
        ack = batch.column(ACK_COLUMN)
        data = batch.drop_columns([ACK_COLUMN])
        if ack.null_count == len(ack):
            self._add(data, [], ())
            return
        is_ack = ack.is_valid()
        acks = ack.filter(is_ack).to_pylist()
        if self._orders is None:
            self._add(data.filter(pc.invert(is_ack)), acks, ())
            return
        queues = {
            MessageQueue(*key)
            for key in zip(
                *(data.column(name).filter(is_ack).to_pylist() for name in QUEUE_COLUMNS), strict=True
            )
        }
        fates = {self._orders.fate(queue) for queue in queues}
        if fates == {Fate.KEPT} or len(queues) > 1:
            self._add(data.filter(pc.invert(is_ack)), acks, queues)
        else:
            self._give_up(next(iter(queues)), fates.pop(), data.filter(pc.invert(is_ack)), acks)

    def finish(self) -> list[dict[str, Any]]:
        """End it; the parts that the driver gets with the job.

        Raises:
            RocketMQError: If it is not known whether the driver has what was handed over.
        """
        if self._orders is not None:
            # From here on the driver has a copy of what is left; nothing is cut any more.
            self._orders.when_cut(lambda: None)
        for cut in self._cuts:
            cut.join()
        if self._failure is not None:
            raise self._failure
        assert self._growing is not None
        last = self._growing
        if last.queues or self._orders is None:
            self._finished.append(last.finish())
        else:
            last.abandon()
        if self._orders is not None:
            self._orders.await_taken()
            self._orders.done(last.id, last.queues, self._finished[-1] if last.queues else {})
        return self._finished

    def abandon(self) -> None:
        """The task has failed: undo what was not handed over."""
        if self._orders is not None:
            self._orders.forget()
        if self._growing is not None:
            self._growing.abandon()

    # --- inside --------------------------------------------------------------------------------------------------

    def _add(self, data: pa.RecordBatch, acks: list[str], queues: set[MessageQueue] | tuple[()]) -> None:
        with self._guard:
            part, self._growing = self._growing, None
        assert part is not None
        try:
            part.add(data, acks)
            part.queues.update(queues)
        finally:
            with self._guard:
                self._growing = part
                is_cut_wanted, self._is_cut_wanted = self._is_cut_wanted, False
        # Who was told while the rows were written did not find the queue among those that are kept.
        is_given_up = bool(queues) and self._orders is not None and self._orders.kept(queues)
        if is_cut_wanted or is_given_up:
            self._cut()

    def _give_up(self, queue: MessageQueue, fate: Fate, data: pa.RecordBatch, acks: list[str]) -> None:
        assert self._orders is not None
        if fate is Fate.DROPPED or not _counts(acks):
            self._orders.released(queue)
            return
        part = TaskPart(self._writer)
        part.queues.add(queue)
        try:
            part.add(data, acks)
            self._hand_over(part)
        except BaseException:
            part.abandon()
            raise

    def _begin_cut(self) -> None:
        """By the connection's thread, which must not wait for storage."""
        thread = threading.Thread(target=self._cut_beside, name="rocketmq-hand-over", daemon=True)
        self._cuts.append(thread)
        thread.start()

    def _cut_beside(self) -> None:
        try:
            self._cut()
        except BaseException as error:  # noqa: BLE001 - the task raises it
            self._failure = error

    def _cut(self) -> None:
        fresh = TaskPart(self._writer)
        with self._guard:
            part = self._growing
            self._is_cut_wanted = part is None
            if part is not None and part.queues:
                self._growing = fresh
        if part is None or not part.queues:
            # Whoever adds to it cuts it after that; of an empty one there is nothing to hand over.
            fresh.abandon()
            return
        self._hand_over(part)

    def _hand_over(self, part: TaskPart) -> None:
        assert self._orders is not None
        result = part.finish()
        if not self._orders.hand_over(part.id, part.queues, result):
            self._finished.append(result)


def _counts(acks: list[str]) -> bool:
    """Whether there is anything to commit of a range: progress, an attempt, a message sent elsewhere, or a reset."""
    return any(
        ack.consumed or ack.failed or ack.dead_letters or ack.sent_back or ack.reset_to is not None
        or ack.next_offset != ack.start
        for ack in map(QueueAck.from_json, acks)
    )  # fmt: skip
