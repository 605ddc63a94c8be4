"""What the engines share: a range that has arrived goes through the listener; columns of rows and an ack come out."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import pyarrow as pa

from pyspark_rocketmq.client.send_back import SendBackSettings
from pyspark_rocketmq.client.system_clock import SystemClock
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.consume.orderly import UNLIMITED, OrderlySettings
from pyspark_rocketmq.consume.range_orders import NO_ORDERS, RangeOrders
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.streaming.ack import QueueAck
from pyspark_rocketmq.streaming.arrived_range import ArrivedRange
from pyspark_rocketmq.streaming.consume_hooks import NO_HOOKS, ConsumeHooks
from pyspark_rocketmq.streaming.dead_letters import DeadLetterSender
from pyspark_rocketmq.streaming.emitted_values import OutputColumns
from pyspark_rocketmq.streaming.listener_forms import form_of
from pyspark_rocketmq.streaming.opened_listeners import Call
from pyspark_rocketmq.streaming.orderly_run import DeadLetters, OrderlyRun, no_dead_letters
from pyspark_rocketmq.streaming.output_rows import (
    Emitted,
    RowColumns,
    as_tuples,
    engine_batch,
    engine_columns,
)


class Consumed(NamedTuple):
    """What one range brought."""

    rows: list[Emitted]
    """Those that may reach the sink."""
    ack: QueueAck


class RangeConsumer:
    """Takes one range after the other; pickled to the executors with the listener."""

    def __init__(
        self,
        listener: object,
        output: OutputColumns,
        settings: OrderlySettings,
        send_back: SendBackSettings | None = None,
        hooks: ConsumeHooks | None = None,
    ) -> None:
        """Prepare for any number of ranges; ``listener`` has any of the forms of ``listener_forms``.

        Raises:
            OptionError: If the listener is none, or the settings limit the reconsumptions and ``send_back`` does not say how messages that
                reached the limit are sent.
        """
        self._listener = form_of(listener)
        self._hooks = hooks or NO_HOOKS
        self._output = output
        self._settings = settings
        self._dead_letters: DeadLetters = no_dead_letters
        if settings.max_reconsume_times != UNLIMITED:
            if send_back is None:
                problem = (
                    f"max_reconsume_times={settings.max_reconsume_times} needs send_back, which says how dead letters "
                    "are sent: SendBackSettings(name_servers=…, consumer_group=…)"
                )
                raise OptionError((problem,), where="orderly settings")
            self._dead_letters = DeadLetterSender(send_back, settings.max_reconsume_times)

    def consume(self, arrived: ArrivedRange) -> Consumed:
        """Deliver the range's messages."""
        with self.lease() as listener:
            run = self.run_of(arrived, listener, NO_ORDERS)
            rows = run.consume()
        return Consumed(rows, arrived.acknowledged(run.ack()))

    @property
    def most_calls(self) -> int:
        """Of the listener at the same time, of different queues."""
        return self._settings.consume_thread_max

    def lease(self) -> AbstractContextManager[Call]:
        """The listener for a while; see :class:`ListenerForm`."""
        return self._listener.lease()

    def run_of(
        self,
        arrived: ArrivedRange,
        listener: Call,
        orders: RangeOrders,
        clock: Clock | None = None,
    ) -> OrderlyRun:
        """The consumption of ``arrived``, which has not begun, by a leased listener; by the system's clock if none is given."""
        clock = clock or SystemClock()
        return OrderlyRun(
            arrived.planned,
            arrived.messages,
            listener=listener,
            output=self._output,
            settings=self._settings,
            ended=arrived.ended,
            now_s=clock.monotonic_s,
            wall_s=clock.now_s,
            dead_letters=self._dead_letters,
            hooks=self._hooks,
            orders=orders,
        )

    def columns(self, consumed: Consumed) -> dict[str, Any]:
        """See :func:`engine_columns`."""
        rows, ack = consumed
        return engine_columns(self._output.names, ack.queue, as_tuples(rows), ack)

    def batch(self, columns: RowColumns, consumed: Consumed) -> pa.RecordBatch:
        """See :func:`engine_batch`; ``columns`` are the engine's."""
        return engine_batch(columns, self._output.rows, consumed.rows, consumed.ack)
