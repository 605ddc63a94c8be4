"""Hooks around every listener call (row D10): for tracing and measuring, without a say in what happens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from pyspark_rocketmq.model import MessageExt, MessageQueue

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
    """Calls a consumer's hooks; an exception in one is logged and changes nothing, not even for the others."""

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
