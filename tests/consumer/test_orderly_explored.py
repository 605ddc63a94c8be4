"""Orderly runs, range after range, against a small model of RocketMQ's rules:
everything that can vary is drawn.

A step is one delivery. ``ORDERLY_STEPS`` asks for more of them than the default,
``ORDERLY_SEED`` for those of an earlier run; a failure names its seed.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import pytest
from pyspark.sql.types import StructType

from pyspark_rocketmq.consume.orderly import OrderlySettings
from pyspark_rocketmq.consume.part import QueueAck
from pyspark_rocketmq.consumer.engine.orderly import OrderlyRun
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import ConsumeOrderlyStatus, MessageExt, QueueRange, QueueState
from pyspark_rocketmq.stored_values import NO_RETRIES
from tests.helpers.messages import QUEUE, message_at

STEPS = int(os.environ.get("ORDERLY_STEPS", "30000"))
SEED = int(os.environ.get("ORDERLY_SEED", random.SystemRandom().getrandbits(32)))

SUCCESS = ConsumeOrderlyStatus.SUCCESS
COMMIT = ConsumeOrderlyStatus.COMMIT
ROLLBACK = ConsumeOrderlyStatus.ROLLBACK
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
OUTPUT = OutputColumns.of(StructType().add("step", "long"))


class Reference:
    """RocketMQ's orderly rules for one queue: ``ProcessQueue`` and ``processConsumeResult``,
    and rows beside them.
    """

    def __init__(self, offsets: Sequence[int], most: int) -> None:
        self.waiting, self.consuming, self.most = dict.fromkeys(offsets, 0), dict[int, int](), most
        self.pending, self.rows, self.dead = [], [], []  # type: ignore[var-annotated]

    def take(self, batch_size: int, arrived: int) -> list[int]:
        batch = [offset for offset in sorted(self.waiting) if offset < arrived][:batch_size]
        self.consuming |= {offset: self.waiting.pop(offset) for offset in batch}
        return batch

    def answer(
        self, batch: list[int], status: object, *, auto_commit: bool, step: int, refused: set[int]
    ) -> bool:
        rows = [(offset, step) for offset in batch]
        if status is ROLLBACK and not auto_commit:
            self.waiting, self.consuming, self.pending = self.waiting | self.consuming, {}, []
            return False
        if status not in {SUCCESS, COMMIT, ROLLBACK}:
            spent = [offset for offset in batch if 0 <= self.most <= self.consuming[offset]]
            sent = [offset for offset in spent if offset not in refused]
            self.dead += sent
            if sent != batch:
                for offset in batch:
                    self.waiting[offset] = self.consuming.pop(offset) + (offset not in sent)
                return False
            rows = []
        self.pending += rows
        if auto_commit or status is COMMIT:
            self.rows, self.pending, self.consuming = self.rows + self.pending, [], {}
        return True

    def forget(self) -> None:
        """Whoever goes on has everything delivered again, and counts on."""
        self.waiting = dict(sorted((self.waiting | self.consuming).items()))
        self.consuming, self.pending = {}, []

    def next_offset(self, end: int) -> int:
        """Where the next range begins if one that ended at ``end`` has passed all there was."""
        return min((offset for offset in (*self.waiting, *self.consuming) if offset < end), default=end)


class Episode:
    """One queue from its first message to its last."""

    def __init__(self, draw: random.Random, steps: itertools.count[int]) -> None:
        self.draw, self.steps = draw, steps
        self.end = draw.randint(1, 40)
        self.offsets = sorted(draw.sample(range(self.end), draw.randint(1, self.end)))
        self.most = draw.choice([-1, 0, 1, 2, 5])
        self.failures = draw.choice([0.05, 0.3, 0.6])
        self.start, self.times, self.retry_counts = 0, 0, NO_RETRIES
        self.model = Reference(self.offsets, self.most)
        self.now_s = 0.0

    @property
    def is_over(self) -> bool:
        return self.start == self.end

    def next_range(self) -> None:
        """Plan, consume and commit a range; or crash, and only the cuts before are committed."""
        planned = QueueRange(
            QUEUE,
            QueueState(self.start, epoch=1, reconsume_times=self.times, retry_counts=self.retry_counts),
            self.draw.randint(self.start, self.end) if self.draw.random() < 0.5 else self.end,
        )
        before = deepcopy(self.model)
        ack = self._consume(planned)
        self.model.forget()
        if self.draw.random() < 0.1:
            # The dead letters are sent; everything else since the last cut happens again.
            if self.cut is None:
                self.model = before
                return
            self.model, ack = self.cut
        self.start, self.times, self.retry_counts = (
            ack.state.next_offset,
            ack.state.reconsume_times,
            ack.state.retry_counts,
        )

    def _consume(self, planned: QueueRange) -> QueueAck:
        batch_size, goes_on = self.draw.randint(1, 7), True
        sent: list[int] = []
        rows: list[Any] = []
        refused: set[int] = set()
        self.cut: tuple[Reference, QueueAck] | None = None

        def listener(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> Any:
            nonlocal goes_on
            assert goes_on, "a delivery after a suspension"
            step = next(self.steps)
            batch = self.model.take(batch_size, planned.end)
            assert [message.queue_offset for message in messages] == batch
            assert [message.reconsume_times for message in messages] == [
                self.model.consuming[at] for at in batch
            ]
            for _ in messages:
                context.emit(step=step)
            if self.draw.random() < 0.1 and (taken := run.cut()) is not None:
                rows.extend(taken.rows)
                model = deepcopy(self.model)
                assert taken.ack.state.next_offset == model.next_offset(planned.end)
                model.forget()
                self.cut = model, taken.ack
            context.auto_commit = self.draw.random() < 0.5
            refused.clear()
            refused.update(at for at in batch if self.draw.random() < 0.2)
            if self.draw.random() < 0.05:
                self.now_s += 61
            status = self._status()
            goes_on = self.model.answer(
                batch, status, auto_commit=context.auto_commit, step=step, refused=refused
            )
            if isinstance(status, ValueError):
                raise status
            return status

        def send(message: MessageExt) -> None:
            if message.queue_offset in refused:
                raise RocketMQError("no broker takes it")
            sent.append(message.queue_offset)

        already_dead, already_out = len(self.model.dead), len(self.model.rows)
        run = OrderlyRun(
            planned,
            [message_at(offset) for offset in self.offsets if planned.start <= offset < planned.end],
            listener=listener,
            output=OUTPUT,
            settings=OrderlySettings(
                consume_message_batch_max_size=batch_size, max_reconsume_times=self.most
            ),
            now_s=lambda: self.now_s,
            dead_letters=send,
        )
        rows += run.consume()
        ack = run.ack()

        assert rows == self.model.rows[already_out:]
        assert sent == self.model.dead[already_dead:]
        assert ack.state.next_offset == self.model.next_offset(planned.end)
        assert (ack.finished == "SUSPENDED") == (not goes_on)
        return ack

    def _status(self) -> object:
        if self.draw.random() < self.failures:
            return self.draw.choice([SUSPEND, SUSPEND, None, 7, ROLLBACK, ValueError("no")])
        return self.draw.choice([SUCCESS, SUCCESS, COMMIT])


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("most", [STEPS, pytest.param(5 * STEPS, marks=pytest.mark.long)])
def test_whatever_happens_to_a_queue_it_is_consumed_as_rocketmq_would(most: int) -> None:
    """D1-D7: answers, batch sizes, autoCommit, limits, ranges cut anywhere, replays, time slices."""
    logging.disable(logging.CRITICAL)
    draw, steps, ranges = random.Random(SEED), itertools.count(1), 0
    try:
        while next(steps) <= most:
            episode = Episode(draw, steps)
            while not episode.is_over:
                ranges += 1
                episode.next_range()
            assert not episode.model.waiting
            passed = {offset for offset, _ in episode.model.rows} | set(episode.model.dead)
            assert passed == set(episode.offsets), "a message was lost"
    except AssertionError as error:
        raise AssertionError(f"ORDERLY_SEED={SEED}, range {ranges}: {error}") from error
    finally:
        logging.disable(logging.NOTSET)
