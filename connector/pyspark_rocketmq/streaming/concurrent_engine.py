"""The concurrent engine: each task takes the planned ranges it reads through the user's listener, many calls at once.

Runs where a range is read, without shuffle and state, as the direct engine does.  A range is gathered and checked
before anything of it is delivered, because the whole of it is acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing

import pyarrow as pa
from pyspark.sql.types import StructType

from pyspark_rocketmq.client.send_back import SendBack, SendBackSettings
from pyspark_rocketmq.client.system_clock import SystemClock
from pyspark_rocketmq.consume.concurrent import ConcurrentSettings
from pyspark_rocketmq.consume.range_orders import NO_ORDERS, RangeOrders
from pyspark_rocketmq.model import MessageExt
from pyspark_rocketmq.streaming.ack import QueueAck
from pyspark_rocketmq.streaming.arrived_range import ArrivedRange
from pyspark_rocketmq.streaming.arrow_listener import ArrowListener
from pyspark_rocketmq.streaming.concurrent_run import ConcurrentRun, put_off
from pyspark_rocketmq.streaming.consume_hooks import NO_HOOKS, ConsumeHooks
from pyspark_rocketmq.streaming.direct_engine import arrived_ranges
from pyspark_rocketmq.streaming.emitted_values import OutputColumns
from pyspark_rocketmq.streaming.listener_errors import tell_failure
from pyspark_rocketmq.streaming.listener_forms import ListenerForm
from pyspark_rocketmq.streaming.listener_workers import workers_for
from pyspark_rocketmq.streaming.opened_listeners import Call, NotOpened
from pyspark_rocketmq.streaming.output_rows import Emitted, RowColumns, engine_batch
from pyspark_rocketmq.streaming.output_schema import engine_schema


class ConcurrentEngine:
    """Takes a task's ranges; pickled to the executors with the listener."""

    def __init__(
        self,
        listener: ListenerForm,
        schema: StructType,
        settings: ConcurrentSettings,
        send_back: SendBackSettings,
        *,
        hooks: ConsumeHooks = NO_HOOKS,
    ) -> None:
        """Run ``listener`` over a task's ranges.

        Args:
            listener: The calls of an ``async def`` share the process's event loop.
            schema: Columns of the rows it emits.
            settings: The consumer's.
            send_back: How failed messages are sent back.
            hooks: Called before and after each call of the listener, where it is called.

        Raises:
            SchemaError: If a column of ``schema`` has a type that cannot be emitted.
        """
        self._listener = listener
        self._output = OutputColumns.of(schema)
        self._settings = settings
        self._sender = _Sender(send_back, settings.max_reconsume_times)
        self._rows = RowColumns(engine_schema(schema))
        self._hooks = hooks

    def __call__(
        self, batches: Iterable[pa.RecordBatch], orders: RangeOrders = NO_ORDERS
    ) -> Iterator[pa.RecordBatch]:
        """Consume a task's ranges, one after the other: each one's data rows, then its ack row."""
        for arrived in arrived_ranges(batches):
            yield self._consume(arrived, orders)

    def _consume(self, arrived: ArrivedRange, orders: RangeOrders) -> pa.RecordBatch:
        with self._listener.lease() as listener:
            rows, ack = self._through(listener, arrived, orders)
        ack = arrived.acknowledged(ack)
        return engine_batch(self._rows, self._output.rows, rows, ack)

    def _through(
        self, listener: Call, arrived: ArrivedRange, orders: RangeOrders
    ) -> tuple[list[Emitted], QueueAck]:
        if isinstance(listener, NotOpened):
            # To fail its calls would send a whole backlog back, and drop it in broadcasting.
            last_error = tell_failure("listener not opened", str(arrived.planned.queue), listener.error())
            return [], put_off(arrived.planned, len(arrived.messages), SystemClock(), last_error)
        # Workers of its own, so that a call the range before has given up cannot answer into this one.
        with closing(workers_for(listener, self._settings.consume_thread_max)) as workers:
            run = ConcurrentRun(
                arrived.planned,
                arrived.messages if isinstance(listener, ArrowListener) else list(arrived.messages),
                listener=listener,
                output=self._output,
                settings=self._settings,
                workers=workers,
                send_back=self._sender,
                clock=SystemClock(),
                hooks=self._hooks,
                orders=orders,
            )
            return run.consume(), run.ack()


class _Sender:
    """Sends messages back; connects when the first one fails, on the executor."""

    def __init__(self, settings: SendBackSettings, max_reconsume_times: int) -> None:
        self._settings = settings
        self._max_reconsume_times = max_reconsume_times
        self._opened: SendBack | None = None

    def __call__(self, message: MessageExt, delay_level: int) -> None:
        if self._opened is None:
            # Two threads may open one each; neither has a connection of its own.
            self._opened = self._settings.open()
        self._opened.send(message, delay_level=delay_level, max_reconsume_times=self._max_reconsume_times)
