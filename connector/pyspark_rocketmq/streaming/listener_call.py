"""One call of a concurrent listener, watched in the thread or on the event loop where it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import cast

from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.consume.concurrent_answer import Answer, answer_of, answer_of_failure
from pyspark_rocketmq.consume.orderly_outcome import ReturnType
from pyspark_rocketmq.model import ConsumeConcurrentlyStatus, MessageExt
from pyspark_rocketmq.streaming.consume_hooks import ConsumeHooks, ConsumeMessageContext
from pyspark_rocketmq.streaming.listener import ConsumeConcurrentlyContext, MessageListenerConcurrently


class ListenerCall:
    """A delivery: what is called with what, and, after one of the ``run`` methods, how that ended."""

    def __init__(
        self, messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext, *, timeout_s: float
    ) -> None:
        self.messages = messages
        self.context = context
        self.answer: Answer | None = None
        """None while it runs, and after what ends the process."""
        self.failure: BaseException | None = None
        """What the listener raised."""
        self.lasted_s = 0.0
        self._timeout_s = timeout_s

    @property
    def is_all_done(self) -> bool:
        """Whether it has ended with all its messages done, so that nothing is to be told or sent back."""
        answer = self.answer
        return answer is not None and answer.acknowledged == len(self.messages) and answer.problem is None

    def run(self, listener: MessageListenerConcurrently, hooks: ConsumeHooks, clock: Clock) -> None:
        """Call a listener that returns its answer.

        Raises:
            BaseException: What the listener raised, if it is no ``Exception``.
        """
        seen, began_s = self._begin(hooks, clock)
        answer: object = None
        try:
            answer = listener(self.context.follow(self.messages), self.context)
        except (Exception, asyncio.CancelledError) as failure:  # noqa: BLE001 - the run decides what it means
            self.failure = failure
        self._end(answer, seen, began_s, hooks, clock)

    async def run_async(
        self, listener: MessageListenerConcurrently, hooks: ConsumeHooks, clock: Clock
    ) -> None:
        """As :meth:`run`, for a listener that is to be awaited."""
        seen, began_s = self._begin(hooks, clock)
        answer: object = None
        try:
            answer = await cast(
                "Awaitable[object]", listener(self.context.follow(self.messages), self.context)
            )
        except (Exception, asyncio.CancelledError) as failure:  # noqa: BLE001 - the run decides what it means
            self.failure = failure
        self._end(answer, seen, began_s, hooks, clock)

    def _begin(self, hooks: ConsumeHooks, clock: Clock) -> tuple[ConsumeMessageContext | None, float]:
        """Source: RocketMQ 5.3.3 ``ConsumeMessageConcurrentlyService.ConsumeRequest.run``."""
        seen = hooks.before(self.messages[0].message_queue, self.messages) if hooks else None
        return seen, clock.monotonic_s()

    def _end(
        self,
        status: object,
        seen: ConsumeMessageContext | None,
        began_s: float,
        hooks: ConsumeHooks,
        clock: Clock,
    ) -> None:
        self.lasted_s = clock.monotonic_s() - began_s
        self.answer = self._answer_of(status)
        if seen is not None:
            is_success = self.answer.return_type is ReturnType.SUCCESS
            hooks.after(
                seen,
                status=_SUCCESS if is_success else _LATER,
                is_success=is_success,
                return_type=str(self.answer.ended_after(self.lasted_s, self._timeout_s)),
            )

    def _answer_of(self, status: object) -> Answer:
        delay_level = self.context.delay_level_when_next_consume
        if self.failure is not None:
            return answer_of_failure(delay_level=delay_level)
        return answer_of(
            status, ack_index=self.context.ack_index, delay_level=delay_level, count=len(self.messages)
        )


_SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
_LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER
