"""What a listener gets: contexts with `emit`, hooks around each call."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from logging import Logger, LoggerAdapter, getLogger
from typing import Any, Final, Protocol

import pyarrow as pa

from pyspark_rocketmq.consume.concurrent import ACK_ALL, BROKER_DECIDES
from pyspark_rocketmq.errors import ListenerError, RocketMQError, SchemaError
from pyspark_rocketmq.listeners.messages import ArrowMessages
from pyspark_rocketmq.listeners.row_buffer import LOOK_EVERY, Emitted, RowBuffer, SpillFile
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus, MessageExt, MessageQueue

logger = logging.getLogger(__name__)

CONSUME_CONTEXT_TYPE: Final = "ConsumeContextType"
"""Key of the return type in a context's props (``MixAll.CONSUME_CONTEXT_TYPE``)."""


@dataclass(slots=True, kw_only=True)
class ConsumeMessageContext:
    """One listener call as hooks see it: the same object before and after (``ConsumeMessageContext``)."""

    consumer_group: str
    namespace: str | None
    mq: MessageQueue
    msg_list: Sequence[MessageExt]
    """As the listener gets them; not to be changed."""
    success: bool = False
    """Whether the answer was SUCCESS or COMMIT; known after the call."""
    status: str | None = None
    """The answer; an exception, None and what is no status count as the one that puts the messages back."""
    props: dict[str, str] = field(default_factory=dict)
    """After the call, ``ConsumeContextType``: SUCCESS, TIME_OUT, EXCEPTION, RETURNNULL or FAILED."""
    mq_trace_context: Any = None
    """The hook's own, from before the call to after it."""


class ConsumeMessageHook(Protocol):
    """What a user registers; pickled to the executors, and called there (``ConsumeMessageHook``)."""

    def hook_name(self) -> str:
        """Its name in the log."""
        ...

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        """Messages go to the listener now."""
        ...

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        """The listener has answered; nothing is committed yet."""
        ...


class ConsumeHooks:
    """Calls a consumer's hooks; an exception in one is logged and changes nothing."""

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
        """Whether there are any."""
        return bool(self._hooks)

    def before(self, queue: MessageQueue, messages: Sequence[MessageExt]) -> ConsumeMessageContext | None:
        """Call all before a delivery; the context for :meth:`after`, None without hooks.

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
        """Call all after a delivery (``executeHookAfter``)."""
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


_making = threading.Lock()
"""Two threads of a listener must not make two buffers of one list."""
_listener_logger = getLogger("pyspark_rocketmq.listener")


class DeliveryContext:
    """What the contexts of all deliveries have: the queue, and rows to emit; made anew for each delivery.

    Rows given to :meth:`emit` reach the sink only when their message is acknowledged; they are dropped
    otherwise.
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
        """Begin a delivery of ``messages``: at least one, of one queue, ascending; ``file`` is their range's."""
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
        """How many there are when their size is looked at."""
        self._buffer: RowBuffer | None = None
        """Theirs, once that was done."""
        self._file = file
        self.broken: RocketMQError | None = None
        """The engine's: why the first row that broke the output schema did, or could not be kept, whatever
        the listener made of that error."""

    def emit(self, message: MessageExt | None = None, /, **columns: Any) -> None:
        """Add one output row; columns not given are null.

        The row belongs to ``message``. It may be left out when the delivery has only one, and inside a loop
        ``for message in messages``, where it is the one the loop is at.

        Raises:
            ListenerError: If it cannot be told which message the row belongs to, or it is not of this
                delivery.
            SchemaError: If a column is not in the listener's output schema, or missing though it must not be
                null, or a value does not fit its column. To catch it changes nothing: it ends the query.
        """
        output = self._output
        try:
            if output.required or not output.known.issuperset(columns):
                output.check_names(columns)
            is_plainly = output.is_plainly
            for name, value in columns.items():
                if value is not None and not is_plainly[name](value):
                    output.check(name, value)
        except SchemaError as error:
            self.broken = self.broken or error
            raise
        if message is not None:
            self._check_delivered(message)
        else:
            message = self._current
            if message is None:
                raise ListenerError(
                    "emit() was called outside a loop 'for message in messages', in a delivery of more than "
                    "one message; say which message the row belongs to: context.emit(message, …)."
                )
        emitted = self._emitted
        emitted.append((message.queue_offset, *map(columns.get, output.names)))
        if len(emitted) >= self._look_at:
            self._keep(RowBuffer.look)

    def emit_batch(self, rows: pa.RecordBatch) -> None:
        """For the engine: add an ``ArrowListener``'s rows, each with the queue offset of its message.

        Raises:
            SchemaError: If they are not rows of the listener's output schema, as of :meth:`emit`.
        """
        try:
            self._emitted.append(self._output.fitted(rows))
        except SchemaError as error:
            self.broken = self.broken or error
            raise
        if len(self._emitted) > 1:
            self._keep(RowBuffer.pack)

    def arrow_column(self, name: str, values: list[Any]) -> pa.Array:
        """The engine's: ``values`` of an output column, each as :meth:`emit` takes it.

        Raises:
            SchemaError: If one does not fit the column, or there is none of this name.
        """
        try:
            return self._output.arrow_column(name, values)
        except SchemaError as error:
            self.broken = self.broken or error
            raise

    @property
    def logger(self) -> LoggerAdapter[Logger]:
        """Logs to ``pyspark_rocketmq.listener``, each text after the queue and the current offset.

        Outside a loop the offset is the delivery's first.
        """
        at = self._first_offset if self._current is None else self._current.queue_offset
        return _PositionLogger(_listener_logger, {"position": f"{self.message_queue} queueOffset={at}"})

    def take_emitted(self) -> list[Emitted]:
        """The engine's: rows of this delivery, each led by its message's queue offset."""
        emitted, self._emitted = self._emitted, []
        self._buffer, self._look_at = None, LOOK_EVERY
        return emitted

    def _keep(self, keep: Callable[[RowBuffer], int]) -> None:
        """Have large rows take less memory."""
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
        """For the engine: a list of ``messages`` that tells this context where a loop is.

        The listener may do with it what it likes: the engine goes by its own. Those of an ``ArrowListener``
        stay in their batch.
        """
        if type(messages) is ArrowMessages:
            return messages
        return list(messages) if len(messages) == 1 else _Followed(messages, self)

    def at(self, message: MessageExt | None) -> None:
        """The engine's: be told which message a loop is at; None before and after it."""
        self._current = message

    def broken_at(self, where: str) -> RocketMQError:
        """For the engine, after a call that left something in ``broken``: what ends the query (D5)."""
        if not isinstance(self.broken, SchemaError):
            return RocketMQError(f"{where}: {self.broken}")
        return SchemaError(
            f"{where}: {self.broken} The query ends, since no message is at fault, and nothing of this "
            "micro-batch counts: correct the listener or its output schema, and start the query again."
        )

    def _check_delivered(self, message: MessageExt) -> None:
        if not isinstance(message, MessageExt):
            raise ListenerError(
                f"emit() was given a {type(message).__name__} where a message belongs; give columns by name: "
                "context.emit(message, order_id=…)."
            )
        is_within = self._first_offset <= message.queue_offset <= self._last_offset
        # The first comparison is cheap, and settles it for all but messages given back, which tell two
        # topics.
        is_here = message[:3] == self.message_queue or message.message_queue == self.message_queue
        if not is_within or not is_here:
            raise ListenerError(
                f"emit() was given the message at {message.message_queue} "
                f"queueOffset={message.queue_offset}, but this delivery is {self.message_queue} "
                f"queueOffset={self._first_offset} to {self._last_offset}; a row can only belong to a "
                "message that is acknowledged with it."
            )


class _PositionLogger(LoggerAdapter[Logger]):
    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        """Put together here: a topic's name is no part of the format."""
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
        """Messages of the queue, right before this delivery's, that were consumed and wait for a COMMIT. With
        0, whatever else the listener holds of the queue was given back and comes again."""
        self.auto_commit = True
        """False: SUCCESS accumulates, COMMIT commits everything accumulated."""
        self.suspend_current_queue_time_millis = -1
        """Pause after SUSPEND or ROLLBACK, clamped to 10..30000 ms; -1 takes the consumer's default."""


class ConsumeConcurrentlyContext(DeliveryContext):
    """A concurrent delivery's context (``ConsumeConcurrentlyContext`` of the Java client)."""

    __slots__ = ("ack_index", "delay_level_when_next_consume")

    def __init__(
        self, messages: Sequence[MessageExt], output: OutputColumns, file: SpillFile | None = None
    ) -> None:
        super().__init__(messages, output, file)
        self.ack_index = ACK_ALL
        """With CONSUME_SUCCESS: index of the last message that is done; those after it have failed."""
        self.delay_level_when_next_consume = BROKER_DECIDES
        """When failed messages come again: 0: after 3 + their reconsume times; -1: never, they become dead
        letters; else the broker's delay level."""


class _Followed(list[MessageExt]):
    """A list that tells the context which message a ``for`` loop is at; ``break`` stays there."""

    def __init__(self, messages: Sequence[MessageExt], context: DeliveryContext) -> None:
        super().__init__(messages)
        self._context = context

    def __iter__(self) -> Iterator[MessageExt]:
        for message in super().__iter__():
            self._context.at(message)
            yield message
        # Whoever walked through them all may take them up again by index or copy, which is not seen here.
        self._context.at(None)


MessageListenerOrderly = Callable[[Sequence[MessageExt], ConsumeOrderlyContext], ConsumeOrderlyStatus | None]
"""Takes messages of one queue in ascending queue offset; None and an exception count as SUSPEND (row D5)."""

MessageListenerConcurrently = Callable[
    [Sequence[MessageExt], ConsumeConcurrentlyContext],
    ConsumeConcurrentlyStatus | Awaitable[ConsumeConcurrentlyStatus | None] | None,
]
"""Takes messages of one queue, many calls at the same time; may be ``async def``. None and an exception count
as RECONSUME_LATER (row E2)."""
