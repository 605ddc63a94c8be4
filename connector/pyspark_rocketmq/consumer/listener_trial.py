"""``run_listener`` calls an orderly listener for tests, without Spark or brokers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pyspark.sql.types import StructType

from pyspark_rocketmq.consume.orderly import OrderlyFinish, OrderlySettings
from pyspark_rocketmq.consumer.engine.orderly import OrderlyRun
from pyspark_rocketmq.consumer.engine.output import listener_schema
from pyspark_rocketmq.listeners.forms import form_of
from pyspark_rocketmq.listeners.row_buffer import tuples_of
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import QUEUE_OFFSET, Message, MessageExt, QueueRange
from pyspark_rocketmq.options.consumer import CONSUMER_DEFAULTS

_BROKER: Final = "broker-a"
_ADDRESS: Final = "127.0.0.1:10911"
_START_S: Final = 1_700_000_000.0


class ListenerRun(NamedTuple):
    """Outcome of :func:`run_listener`: emitted rows, counts, dead letters, and the listener's newest error.

    ``consumed`` counts messages, ``failed`` counts calls. ``last_error`` is empty if there was no error.
    """

    rows: list[dict[str, Any]]
    """Rows that reach the sink: ``queueOffset`` (the index of the message) and the listener's columns."""
    consumed: int
    """How many messages, from the first on, are acknowledged or dead letters."""
    failed: int
    """Number of listener calls whose messages were given back, by the answer or by an exception."""
    dead_letters: list[MessageExt]
    last_error: str
    """Newest error of the listener or of its answer; empty if there was none."""


def run_listener(
    listener: object,
    messages: Sequence[Message | MessageExt],
    *,
    output_schema: str | StructType,
    consume_message_batch_max_size: int = CONSUMER_DEFAULTS.consume_message_batch_max_size,
    max_reconsume_times: int = CONSUMER_DEFAULTS.max_reconsume_times,
    max_suspensions: int = 20,
) -> ListenerRun:
    """Give an orderly listener the messages of one queue, without Spark or a broker; for tests.

    A suspended queue is delivered again immediately. ``reconsume_times`` and ``context.attempt`` are then one
    higher, except after a failure that does not count: a roll-back, an ``open`` that failed, or a schema
    registry that is down.

    Args:
        listener: Any form that ``register_message_listener`` takes with ``orderly=True``.
        messages: In queue order; their offsets are counted from 0.
        output_schema: As in ``register_message_listener``. Without a Spark session a string may only have
            columns of plain types.
        consume_message_batch_max_size: Maximum number of messages per call.
        max_reconsume_times: How often a message that fails is delivered again before it is a dead letter; -1
            means no limit.
        max_suspensions: Maximum number of suspensions after which the listener is called again; the next
            suspension ends the run.

    Raises:
        OptionError: If the listener has no form that ``register_message_listener`` takes.
        SchemaError: If the schema cannot be used, or the listener emits a row that breaks it.
        RocketMQError: If the disk has no space for the rows.
        ValueError: If a setting is out of its bounds.
    """
    stored = [_stored(message, offset) for offset, message in enumerate(messages)]
    if not stored:
        return ListenerRun([], 0, 0, [], "")
    output = OutputColumns.of(listener_schema(output_schema))
    dead_letters: list[MessageExt] = []
    now_s = _START_S
    with form_of(listener).borrow() as call:
        run = OrderlyRun(
            QueueRange.between(stored[0].message_queue, 0, len(stored), epoch=1),
            stored,
            listener=call,
            output=output,
            settings=OrderlySettings(
                consume_message_batch_max_size=consume_message_batch_max_size,
                max_reconsume_times=max_reconsume_times,
            ),
            now_s=lambda: now_s,
            dead_letters=dead_letters.append,
        )
        rows = run.consume()
        for _ in range(max_suspensions):
            if run.finished is not OrderlyFinish.SUSPENDED:
                break
            now_s += run.pause_left_s()
            rows = run.consume()
        ack = run.ack()
    names = (QUEUE_OFFSET, *output.names)
    return ListenerRun(
        [dict(zip(names, row, strict=True)) for some in tuples_of(rows, output.rows) for row in some],
        ack.state.next_offset,
        ack.failed,
        dead_letters,
        ack.last_error,
    )


def _stored(message: Message | MessageExt, offset: int) -> MessageExt:
    """Return the message as a broker would store it at ``offset``."""
    if isinstance(message, MessageExt):
        return message._replace(queue_offset=offset)
    at_ms = int(_START_S * 1000)
    return MessageExt(
        topic=message.topic,
        broker_name=_BROKER,
        queue_id=0,
        queue_offset=offset,
        commit_log_offset=offset,
        msg_id=message.properties.get("UNIQ_KEY", f"message-{offset}"),
        keys=message.properties.get("KEYS"),
        tags=message.properties.get("TAGS"),
        body=message.body,
        properties=message.properties,
        born_timestamp=at_ms,
        born_host=_ADDRESS,
        store_timestamp=at_ms,
        store_host=_ADDRESS,
        reconsume_times=0,
        sys_flag=0,
        flag=message.flag,
    )
