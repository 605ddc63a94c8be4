"""One range of one queue: drives the orderly machine, calls the listener, keeps the rows it emits.

No Spark here: messages in, rows and an ack out, the clock passed in.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from pyspark_rocketmq.consume.orderly import Effect, Finish, OrderlyConsumption, OrderlySettings, Outcome
from pyspark_rocketmq.model import MessageExt, QueueRange
from pyspark_rocketmq.streaming.ack import QueueAck
from pyspark_rocketmq.streaming.emitted_values import OutputColumns
from pyspark_rocketmq.streaming.listener import ConsumeOrderlyContext, MessageListenerOrderly

logger = logging.getLogger(__name__)

Row = tuple[Any, ...]
"""A queue offset, then one value per output column."""


class Uncommitted(NamedTuple):
    """What a listener without autoCommit has consumed but not committed, carried to the next range (row D4)."""

    accumulated_offset: int
    """Messages below it are not delivered again."""
    rows: list[Row]
    """Their rows, emitted but not acknowledged."""
    reconsume_times: int
    """How often the message at ``accumulated_offset`` was given back."""


class OrderlyRun:
    """The consumption of one planned range."""

    def __init__(
        self,
        planned: QueueRange,
        messages: Sequence[MessageExt],
        *,
        listener: MessageListenerOrderly,
        output: OutputColumns,
        settings: OrderlySettings,
        before: Uncommitted,
        now_s: Callable[[], float],
    ) -> None:
        self._planned = planned
        self._messages = messages
        self._listener = listener
        self._output = output
        self._now_s = now_s
        self._started_s = self._answered_s = now_s()
        self._before = before
        self._has_delivered = False
        self._pending = list(before.rows)
        self._failed = 0
        self._machine = OrderlyConsumption(
            count=len(messages),
            settings=settings,
            started_s=self._started_s,
            accumulated=bisect_left(messages, before.accumulated_offset, key=attrgetter("queue_offset")),
            reconsume_times=before.reconsume_times,
        )

    def consume(self) -> list[Row]:
        """Deliver until the range, the queue's patience or its time slice is used up; the acknowledged rows."""
        acknowledged: list[Row] = []
        while (delivery := self._machine.next_delivery(self._now_s())) is not None:
            self._has_delivered = True
            messages = self._messages[delivery.start : delivery.stop]
            if delivery.reconsume_times:
                messages = [
                    message._replace(reconsume_times=message.reconsume_times + delivery.reconsume_times)
                    for message in messages
                ]
            context = ConsumeOrderlyContext(messages, self._output)
            effect = self._deliver(messages, context).effect
            if effect is Effect.COMMIT:
                if self._pending:
                    acknowledged += self._pending
                    self._pending = []
                acknowledged += context.take_emitted()
            elif effect is Effect.ACCUMULATE:
                self._pending += context.take_emitted()
            else:
                self._failed += 1
                if effect is Effect.ROLL_BACK:
                    self._pending = []
        return acknowledged

    def ack(self) -> QueueAck:
        """What is to be committed; call after :meth:`consume`."""
        machine = self._machine
        return QueueAck(
            topic=self._planned.queue.topic,
            broker_name=self._planned.queue.broker_name,
            queue_id=self._planned.queue.queue_id,
            epoch=self._planned.epoch,
            start=self._planned.start,
            next_offset=self._offset_at(machine.committed),
            # The machine counts for the next delivery, which is not the message at next_offset while some wait.
            reconsume_times=0 if machine.accumulated else machine.reconsume_times,
            suspended_until_s=self._suspended_until_s(),
            consumed=machine.committed,
            failed=self._failed,
            finished=str(machine.finished),
            listener_s=self._answered_s - self._started_s,
        )

    def uncommitted(self) -> Uncommitted:
        """What the next range must not deliver again; call after :meth:`consume`."""
        if not self._has_delivered:
            # A range that was cut short may end before what an earlier one has consumed already.
            return self._before
        consumed = self._machine.committed + self._machine.accumulated
        return Uncommitted(self._offset_at(consumed), self._pending, self._machine.reconsume_times)

    def _suspended_until_s(self) -> float | None:
        # Without a suspension, a queue that stands still looks to the planner like one whose listener waits for
        # more messages before it commits: it would give it longer ranges, or none until there are new messages.
        # A queue whose time was up before its first commit, or whose broker was away, may go on at once as it is.
        is_out_of_time = self._machine.finished is Finish.SLICE_USED and not self._machine.committed
        brought_nothing = not self._messages and self._planned.end == self._planned.start
        if is_out_of_time or brought_nothing:
            return self._now_s()
        return self._machine.suspended_until_s

    def _offset_at(self, index: int) -> int:
        """The queue offset of a message, or the end of the range: offsets without a message are passed too."""
        return self._messages[index].queue_offset if index < len(self._messages) else self._planned.end

    def _deliver(self, messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> Outcome:
        try:
            status = self._listener(context.follow(messages), context)
        except Exception:
            logger.exception("listener failed %s", self._describe(messages))
            self._answered_s = self._now_s()
            return self._machine.listener_raised(
                self._answered_s,
                auto_commit=context.auto_commit,
                suspend_millis=context.suspend_current_queue_time_millis,
            )
        self._answered_s = self._now_s()
        outcome = self._machine.listener_returned(
            status,
            auto_commit=context.auto_commit,
            suspend_millis=context.suspend_current_queue_time_millis,
            now_s=self._answered_s,
        )
        if outcome.problem is not None:
            logger.error("%s %s", outcome.problem, self._describe(messages))
        return outcome

    def _describe(self, messages: Sequence[MessageExt]) -> str:
        return (
            f"{self._planned.queue} queueOffset={messages[0].queue_offset} messages={len(messages)} "
            f"reconsumeTimes={messages[0].reconsume_times}"
        )
