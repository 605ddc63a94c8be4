"""Calls a listener with one message that an administrator names (``mqadmin``), as a broker asks for it.

The offsets of the message's queue play no part and do not change. See row D12 of ``docs/semantics.md``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import StructType

from pyspark_rocketmq.consume import concurrent, orderly
from pyspark_rocketmq.display import masked, masking_logger
from pyspark_rocketmq.listeners.context import (
    ConsumeConcurrentlyContext,
    ConsumeOrderlyContext,
    DeliveryContext,
)
from pyspark_rocketmq.listeners.event_loop import is_async, run_on_loop
from pyspark_rocketmq.listeners.forms import Call, form_of
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus, MessageExt
from pyspark_rocketmq.wire.requests.client_info import ConsumeMessageDirectlyResult, ConsumeResult

logger = masking_logger(__name__)

_LONGEST_CALL_S: Final = 900.0
"""Time-out of an ``async def``, in seconds: Java's consumeTimeout.

The administrator's request times out much earlier.
"""
_ORDERLY_RESULTS = {
    ConsumeOrderlyStatus.SUCCESS: ConsumeResult.CR_SUCCESS,
    ConsumeOrderlyStatus.COMMIT: ConsumeResult.CR_COMMIT,
    ConsumeOrderlyStatus.ROLLBACK: ConsumeResult.CR_ROLLBACK,
    ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT: ConsumeResult.CR_LATER,
}


class DirectConsumer:
    """Calls a listener for single messages, in this process, for its side effects; its rows are dropped.

    Source: RocketMQ 5.3.3 ``consumeMessageDirectly`` of ``ConsumeMessageOrderlyService`` and of
    ``ConsumeMessageConcurrentlyService``.
    """

    def __init__(self, listener: str, consumer_group: str, *, orderly: bool) -> None:
        """Take a listener by its name ``module:name``; this process must be able to import it."""
        self._form = form_of(listener, consumer_group, orderly=orderly)
        self._is_orderly = orderly

    def consume(self, message: MessageExt) -> ConsumeMessageDirectlyResult:
        """Call the listener with ``message``; return its answer or its error."""
        messages, output = [message], OutputColumns.of(StructType())
        context = _Orderly(messages, output) if self._is_orderly else _Concurrent(messages, output)
        began_s = time.monotonic()
        remark = None
        try:
            with self._form.borrow() as listener:
                answer = _answer(listener, messages, context)
        except BaseException as error:
            # Catch SystemExit too, which would only end the thread that answers this broker.
            logger.exception("could not consume the message of an administrator msgId=%s", message.msg_id)
            result, remark = ConsumeResult.CR_THROW_EXCEPTION, masked(f"{type(error).__name__}: {error}")
        else:
            result = self._result_of(answer)
        return ConsumeMessageDirectlyResult(
            consume_result=result,
            order=self._is_orderly,
            auto_commit=getattr(context, "auto_commit", True),
            remark=remark,
            spent_time_mills=int((time.monotonic() - began_s) * 1000),
        )

    def _result_of(self, answer: object) -> ConsumeResult:
        if answer is None:
            return ConsumeResult.CR_RETURN_NULL
        if self._is_orderly:
            return _ORDERLY_RESULTS[orderly.status_of(answer)]
        is_success = concurrent.status_of(answer) is ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        return ConsumeResult.CR_SUCCESS if is_success else ConsumeResult.CR_LATER


def _answer(listener: Call, messages: Sequence[MessageExt], context: DeliveryContext) -> object:
    call = partial(listener, messages, context)
    return run_on_loop(call, _LONGEST_CALL_S) if is_async(listener) else call()


class _Rowless:
    """A context that drops the rows that a listener emits: outside a batch they have no sink."""

    __slots__ = ()

    def emit(self, message: MessageExt | None = None, /, **columns: Any) -> None:
        """Drop the row."""

    def emit_batch(self, rows: pa.RecordBatch) -> None:
        """Drop the rows."""

    def arrow_column(self, name: str, values: list[Any]) -> pa.Array:  # noqa: ARG002
        """Return a column with a null for each value, since its rows are dropped."""
        return pa.nulls(len(values))


class _Orderly(_Rowless, ConsumeOrderlyContext):
    __slots__ = ()


class _Concurrent(_Rowless, ConsumeConcurrentlyContext):
    __slots__ = ()
