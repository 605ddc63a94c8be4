"""The contexts of deliveries, with ``emit``, and the hooks around each call of a listener.

A delivery is one call of a listener, with messages of one queue. An *engine* is the code of a task that calls
the listener.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from logging import Logger, LoggerAdapter, getLogger
from typing import Any, Final, NoReturn, Protocol

import pyarrow as pa

from pyspark_rocketmq.consume.concurrent import ACK_ALL, BROKER_DECIDES
from pyspark_rocketmq.display import masking_logger
from pyspark_rocketmq.errors import ListenerError, RocketMQError, SchemaError
from pyspark_rocketmq.listeners.messages import ArrowMessages
from pyspark_rocketmq.listeners.row_buffer import LOOK_EVERY, Emitted, RowBuffer, SpillFile
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import (
    QUEUE_OFFSET,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    MessageExt,
    MessageQueue,
)

logger = masking_logger(__name__)
_listener_logger = getLogger("pyspark_rocketmq.listener")

CONSUME_CONTEXT_TYPE: Final = "ConsumeContextType"
"""Key of the return type in a context's props (``MixAll.CONSUME_CONTEXT_TYPE``)."""

_making = threading.Lock()
"""Lock that keeps two threads of a listener from making two buffers of one delivery's rows."""


@dataclass(slots=True, kw_only=True)
class ConsumeMessageContext:
    """One listener call, as its hooks see it. A hook gets the same object before and after the call.

    Source: Java's ``ConsumeMessageContext``.
    """

    consumer_group: str
    namespace: str | None
    mq: MessageQueue
    msg_list: Sequence[MessageExt]
    """Messages as the listener gets them; do not change the list."""
    success: bool = False
    """Whether the answer was SUCCESS, COMMIT or, in a concurrent listener, CONSUME_SUCCESS; False before the
    call."""
    status: str | None = None
    """The answer; None before the call. An exception, and a returned value that is not a status, count as the
    answer that gives the messages back."""
    props: dict[str, str] = field(default_factory=dict)
    """After the call, ``ConsumeContextType``: SUCCESS, TIME_OUT, EXCEPTION, RETURNNULL or FAILED."""
    mq_trace_context: Any = None
    """For the hook's own use."""


class ConsumeMessageHook(Protocol):
    """A user's hook, as Java's ``ConsumeMessageHook``; pickled to the executors, and called there."""

    def hook_name(self) -> str:
        """Name of the hook for the log."""
        ...

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        """Run before the listener is called."""
        ...

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        """Run after the listener was called, before anything is committed."""
        ...


class ConsumeHooks:
    """Calls a consumer's hooks; their exceptions are logged and have no effect."""

    def __init__(
        self,
        hooks: Sequence[ConsumeMessageHook] = (),
        *,
        consumer_group: str = "",
        namespace: str | None = None,
    ) -> None:
        self._hooks = tuple((hook.hook_name(), hook) for hook in hooks)
        self._consumer_group = consumer_group
        self._namespace = namespace

    def __bool__(self) -> bool:
        """Whether there are any hooks."""
        return bool(self._hooks)

    def before(self, queue: MessageQueue, messages: Sequence[MessageExt]) -> ConsumeMessageContext | None:
        """Call all hooks before a delivery; return the context for :meth:`after`, None without hooks.

        Source: ``DefaultMQPushConsumerImpl.executeHookBefore``.
        """
        if not self._hooks:
            return None
        context = ConsumeMessageContext(
            consumer_group=self._consumer_group,
            namespace=self._namespace,
            mq=queue,
            msg_list=tuple(messages),
        )
        self._call(context, lambda hook: hook.consume_message_before)
        return context

    def after(
        self, context: ConsumeMessageContext | None, *, status: str, is_success: bool, return_type: str
    ) -> None:
        """Write the outcome into ``context``, and call all hooks with it after a delivery.

        Do nothing if ``context`` is None. Source: ``DefaultMQPushConsumerImpl.executeHookAfter``.
        """
        if context is None:
            return
        context.status, context.success = status, is_success
        context.props[CONSUME_CONTEXT_TYPE] = return_type
        self._call(context, lambda hook: hook.consume_message_after)

    def _call(
        self,
        context: ConsumeMessageContext,
        step: Callable[[ConsumeMessageHook], Callable[[ConsumeMessageContext], None]],
    ) -> None:
        for name, hook in self._hooks:
            try:
                step(hook)(context)
            except Exception:
                logger.exception(
                    "consume message hook failed, nothing changes hook=%s %s queueOffset=%d",
                    name,
                    context.mq,
                    context.msg_list[0].queue_offset,
                )


NO_HOOKS: Final = ConsumeHooks()


class DeliveryContext:
    """The context of one delivery: its queue and its emitted rows.

    Emitted rows reach the sink only if their message is acknowledged.
    """

    __slots__ = (
        "_buffer",
        "_current",
        "_emitted",
        "_file",
        "_first_offset",
        "_last_offset",
        "_look_at",
        "_output",
        "attempt",
        "broken",
        "message_queue",
    )

    def __init__(
        self, messages: Sequence[MessageExt], output: OutputColumns, file: SpillFile | None = None
    ) -> None:
        """Begin a delivery of one queue's ``messages``, at least one, ascending.

        ``file`` is the temporary file for rows of the messages' range; if None, one is made when needed.
        """
        if type(messages) is ArrowMessages:
            self.message_queue = messages.queue
            self.attempt = messages.attempt
            self._first_offset, self._last_offset = messages.queue_offsets[[0, -1]].tolist()
        else:
            first = messages[0]
            self.message_queue = first.message_queue
            """The queue being consumed."""
            self.attempt = first.reconsume_times + 1
            """Which delivery of its first message this is, from 1."""
            self._first_offset = first.queue_offset
            self._last_offset = messages[-1].queue_offset
        self._output = output
        self._current = messages[0] if len(messages) == 1 else None
        self._emitted: list[Emitted] = []
        self._look_at = LOOK_EVERY
        """Number of rows at which their size is checked next."""
        self._buffer: RowBuffer | None = None
        """Buffer of the rows, after the first check."""
        self._file = file
        self.broken: RocketMQError | None = None
        """For the engine: the first error of the emitted rows that ends the query, even if the listener has
        caught it; None without one."""

    def emit(self, message: MessageExt | None = None, /, **columns: Any) -> None:
        """Add one output row; columns that are not given are null.

        The row belongs to ``message``. You may leave ``message`` out if the delivery has only one message, or
        inside a loop ``for message in messages``: the row then belongs to the loop's current message.

        Raises:
            ListenerError: If the row's message is unclear, or not of this delivery.
            SchemaError: If a column is not in the listener's output schema, is missing and not nullable, or
                its value does not fit. The query ends even if the listener catches this error.
            RocketMQError: If there is no space for the rows; the query ends in the same way.
        """
        output = self._output
        try:
            if output.required or columns.keys() != output.known:
                columns = output.completed(columns)
            is_plainly = output.is_plainly
            for name, value in columns.items():
                if value is not None and not is_plainly[name](value):
                    output.check(name, value)
        except SchemaError as error:
            self.broken = self.broken or error
            raise
        if message is None:
            message = self._current or _unclear()
        elif message is not self._current:
            self._check_delivered(message)
        emitted = self._emitted
        columns[QUEUE_OFFSET] = message.queue_offset
        emitted.append(output.row_of(columns))
        if len(emitted) >= self._look_at:
            self._keep(RowBuffer.look)

    def emit_batch(self, rows: pa.RecordBatch) -> None:
        """For this package's listeners: add rows, whose column ``queueOffset`` names each row's message.

        Raises:
            SchemaError: If the rows do not fit the listener's output schema; see :meth:`emit`.
            RocketMQError: If there is no space for the rows.
        """
        try:
            self._emitted.append(self._output.fitted(rows))
        except SchemaError as error:
            self.broken = self.broken or error
            raise
        if len(self._emitted) > 1:
            self._keep(RowBuffer.pack)

    def arrow_column(self, name: str, values: list[Any]) -> pa.Array:
        """For the engine: convert ``values`` of an output column, each in the form that :meth:`emit` takes.

        Raises:
            SchemaError: If one does not fit the column, or there is no such column.
        """
        try:
            return self._output.arrow_column(name, values)
        except SchemaError as error:
            self.broken = self.broken or error
            raise

    @property
    def logger(self) -> LoggerAdapter[Logger]:
        """Logger of ``pyspark_rocketmq.listener``; its lines begin with the queue and the current offset.

        Outside a loop over the messages, the current offset is the first one of the delivery.
        """
        at = self._first_offset if self._current is None else self._current.queue_offset
        return _PositionLogger(_listener_logger, {"position": f"{self.message_queue} queueOffset={at}"})

    def take_emitted(self) -> list[Emitted]:
        """For the engine: remove and return the rows of this delivery.

        The first column of the rows is the queue offset of their message.
        """
        emitted, self._emitted = self._emitted, []
        self._buffer, self._look_at = None, LOOK_EVERY
        return emitted

    def _keep(self, keep: Callable[[RowBuffer], int]) -> None:
        """Put the emitted rows into a ``RowBuffer``, which saves memory, and call its method ``keep``.

        ``RowBuffer.look`` packs the rows only if they are large or many, ``RowBuffer.pack`` always.

        Raises:
            RocketMQError: If the temporary file has no space for the rows.
        """
        with _making:
            if self._buffer is None or self._buffer.rows is not self._emitted:
                self._file = self._file or SpillFile()
                self._buffer = RowBuffer(self._output.rows, self._file, self._emitted)
            buffer = self._buffer
        try:
            self._look_at = keep(buffer)
        except RocketMQError as error:
            self.broken = self.broken or error
            raise

    def follow(self, messages: Sequence[MessageExt]) -> Sequence[MessageExt]:
        """For the engine: return ``messages`` as the list that the listener gets.

        While the listener loops over the list, :meth:`emit` without a message means the loop's message.
        Messages of an ``ArrowListener`` are returned unchanged.
        """
        if type(messages) is ArrowMessages:
            return messages
        return list(messages) if len(messages) == 1 else _Followed(messages, self)

    def at(self, message: MessageExt | None) -> None:
        """For the engine: set the message that the listener's loop has reached; None outside the loop.

        :meth:`emit` without a message, and the logger, refer to this message.
        """
        self._current = message

    def broken_at(self, where: str) -> RocketMQError:
        """For the engine: return the error that ends the query, made from the one in ``broken``.

        Call this only if ``broken`` is not None.

        ``where`` describes the place in the queue, for the error's text. See row D5 of ``docs/semantics.md``.
        """
        if not isinstance(self.broken, SchemaError):
            return RocketMQError(f"{where}: {self.broken}")
        return SchemaError(
            f"{where}: {self.broken} The query ends, and this counts as no attempt of a message. Correct the "
            "listener or its output schema, and start the query again: it delivers the messages again that "
            "are not committed."
        )

    def _check_delivered(self, message: MessageExt) -> None:
        if not isinstance(message, MessageExt):
            raise ListenerError(
                f"emit() was given a {type(message).__name__} where a message belongs; give columns by name: "
                "context.emit(message, order_id=…)."
            )
        is_within = self._first_offset <= message.queue_offset <= self._last_offset
        # The first comparison is cheap and sufficient, except for messages that were given back.
        is_here = message[:3] == self.message_queue or message.message_queue == self.message_queue
        if not is_within or not is_here:
            raise ListenerError(
                f"emit() was given the message at {message.message_queue} "
                f"queueOffset={message.queue_offset}, but this delivery is {self.message_queue} "
                f"queueOffset={self._first_offset} to {self._last_offset}. Emit a row only with a message of "
                "the same delivery."
            )


def _unclear() -> NoReturn:
    raise ListenerError(
        "emit() was called outside a loop 'for message in messages', in a delivery of more than one message; "
        "say which message the row belongs to: context.emit(message, …)."
    )


class _PositionLogger(LoggerAdapter[Logger]):
    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        """Log a line that begins with the position of the current message.

        ``msg`` is formatted here, since a topic's name must not become part of the format.
        """
        if self.isEnabledFor(level):
            text = str(msg) % args if args else msg
            self.logger.log(level, "%s %s", (self.extra or {})["position"], text, **kwargs)


class ConsumeOrderlyContext(DeliveryContext):
    """An orderly delivery's context (``ConsumeOrderlyContext`` of the Java client)."""

    __slots__ = ("accumulated", "auto_commit", "suspend_current_queue_time_millis")

    def __init__(
        self,
        messages: Sequence[MessageExt],
        output: OutputColumns,
        accumulated: int = 0,
        file: SpillFile | None = None,
    ) -> None:
        super().__init__(messages, output, file)
        self.accumulated: Final = accumulated
        """Number of the queue's messages right before this delivery that were consumed and wait for a COMMIT;
        with ``orderly_by="sharding_key"`` those of its key. If it is 0, the listener must discard earlier
        messages of the queue, or key, that it still holds: they will be delivered again."""
        self.auto_commit = True
        """Whether SUCCESS commits the messages. If False, they wait until a later delivery returns COMMIT."""
        self.suspend_current_queue_time_millis = -1
        """Pause of the queue after SUSPEND or ROLLBACK, clamped to 10..30000 ms; -1: the consumer's pause."""


class ConsumeConcurrentlyContext(DeliveryContext):
    """A concurrent delivery's context (``ConsumeConcurrentlyContext`` of the Java client)."""

    __slots__ = ("ack_index", "delay_level_when_next_consume")

    def __init__(
        self, messages: Sequence[MessageExt], output: OutputColumns, file: SpillFile | None = None
    ) -> None:
        super().__init__(messages, output, file)
        self.ack_index = ACK_ALL
        """With CONSUME_SUCCESS: index of the last message that is done. The messages after it have failed.

        By default, all messages are done.
        """
        self.delay_level_when_next_consume = BROKER_DECIDES
        """Delay level with which failed messages are sent back to the broker.

        0, the default: level 3 plus the message's reconsume times. -1: the failed messages become dead
        letters immediately.
        """


class _Followed(list[MessageExt]):
    """A list of messages: a ``for`` loop over it sets each message as the context's current one.

    After a ``break``, the loop's last message remains the current one.
    """

    def __init__(self, messages: Sequence[MessageExt], context: DeliveryContext) -> None:
        super().__init__(messages)
        self._context = context

    def __iter__(self) -> Iterator[MessageExt]:
        for message in super().__iter__():
            self._context.at(message)
            yield message
        # Later accesses by index or copy cannot be followed.
        self._context.at(None)


MessageListenerOrderly = Callable[[Sequence[MessageExt], ConsumeOrderlyContext], ConsumeOrderlyStatus | None]
"""Takes messages of one queue in ascending order; None and an exception count as SUSPEND.

See row D5 of ``docs/semantics.md``.
"""

MessageListenerConcurrently = Callable[
    [Sequence[MessageExt], ConsumeConcurrentlyContext],
    ConsumeConcurrentlyStatus | Awaitable[ConsumeConcurrentlyStatus | None] | None,
]
"""Takes messages of one queue, with many calls at the same time; may be ``async def``.

None and an exception count as RECONSUME_LATER. See row E2 of ``docs/semantics.md``.
"""
