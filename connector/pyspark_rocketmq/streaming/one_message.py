"""One message consumed because an administrator asks for it (row D12), outside its queue and whatever the offsets are."""

from __future__ import annotations

import logging
import time
from typing import Any

from pyspark.sql.types import StructType

from pyspark_rocketmq.consume.orderly_outcome import status_of
from pyspark_rocketmq.model import ConsumeOrderlyStatus, MessageExt
from pyspark_rocketmq.streaming.emitted_values import OutputColumns
from pyspark_rocketmq.streaming.listener import ConsumeOrderlyContext
from pyspark_rocketmq.streaming.listener_forms import form_of
from pyspark_rocketmq.wire.client_info import ConsumeMessageDirectlyResult, ConsumeResult

logger = logging.getLogger(__name__)

_RESULTS = {
    ConsumeOrderlyStatus.SUCCESS: ConsumeResult.CR_SUCCESS,
    ConsumeOrderlyStatus.COMMIT: ConsumeResult.CR_COMMIT,
    ConsumeOrderlyStatus.ROLLBACK: ConsumeResult.CR_ROLLBACK,
    ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT: ConsumeResult.CR_LATER,
}


class OneMessageConsumer:
    """Calls an orderly listener for single messages, in this process; for its side effects, its rows are dropped.

    Source: RocketMQ 5.3.3 ``ConsumeMessageOrderlyService.consumeMessageDirectly``.
    """

    def __init__(self, listener: str, consumer_group: str) -> None:
        """``listener`` is a ``module:name`` that this process can import."""
        self._form = form_of(listener, consumer_group)

    def consume(self, message: MessageExt) -> ConsumeMessageDirectlyResult:
        """Have the listener consume ``message``; what it answered, or why it could not."""
        context = _RowlessContext([message], OutputColumns.of(StructType()))
        began_s = time.monotonic()
        remark = None
        try:
            with self._form.lease() as call:
                answer = call([message], context)
        except Exception as error:
            logger.exception("message not consumed directly msgId=%s", message.msg_id)
            result, remark = ConsumeResult.CR_THROW_EXCEPTION, f"{type(error).__name__}: {error}"
        else:
            result = ConsumeResult.CR_RETURN_NULL if answer is None else _RESULTS[status_of(answer)]
        return ConsumeMessageDirectlyResult(
            consume_result=result,
            order=True,
            auto_commit=context.auto_commit,
            remark=remark,
            spent_time_mills=int((time.monotonic() - began_s) * 1000),
        )


class _RowlessContext(ConsumeOrderlyContext):
    """There is no sink for rows of a message that is consumed outside its batch."""

    __slots__ = ()

    def emit(self, message: MessageExt | None = None, /, **columns: Any) -> None:
        pass
