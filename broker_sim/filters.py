"""What a pull takes of its queue, and the SQL92 expressions that heartbeats registered (``ConsumerFilterManager``)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from broker_sim.layout import MessageRun
from broker_sim.sql92 import Expression, Sql92Error
from broker_sim.sql92_parser import compile_expression
from broker_sim.stored import read_stored
from pyspark_rocketmq.wire.properties import decode_properties
from pyspark_rocketmq.wire.subscription import ALL, SQL92, TAG, SubscriptionData


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Tag hash codes or an expression; without both every message passes."""

    codes: frozenset[int] | None = None
    expression: Expression | None = None

    def accepts(self, message: bytes) -> bool:
        """Whether the expression takes a stored message."""
        return self.expression is None or self.expression.matches(read_stored(message).properties)

    def takes_any(self, run: MessageRun, tag_hashes: Iterable[int]) -> bool:
        """Whether a message just stored passes."""
        if self.expression is not None:
            matches = self.expression.matches
            return any(matches(decode_properties(member.properties)) for member in run.members)
        return self.codes is None or not self.codes.isdisjoint(tag_hashes)


EVERYTHING = MessageFilter()


def is_by_tags(subscription: SubscriptionData) -> bool:
    """Whether the subscription is no expression of another type (``ExpressionType.isTagType``)."""
    return subscription.expression_type in {TAG, ""}


def tag_filter(subscription: SubscriptionData) -> MessageFilter:
    """The filter of a subscription by tags."""
    return EVERYTHING if subscription.sub_string == ALL else MessageFilter(subscription.code_set)


def compile_or_none(expression_type: str, text: str) -> Expression | None:
    """The compiled expression; None when it is none or the broker has no filter of this type."""
    if expression_type != SQL92:
        return None
    try:
        return compile_expression(text)
    except Sql92Error:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredFilter:
    """The expression of one group for one topic."""

    expression_type: str
    text: str
    version: int
    """subVersion of the heartbeat that brought it."""
    compiled: Expression


class RegisteredFilters:
    """(topic, group) → expression; a group keeps what it registered when its members are gone."""

    def __init__(self) -> None:
        self._filters: dict[tuple[str, str], RegisteredFilter] = {}

    def register(self, consumer_group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Take the expressions of a heartbeat; an older one is ignored, one that does not compile removes the old."""
        for subscription in subscriptions:
            if not is_by_tags(subscription) and subscription.sub_string:
                self._register(consumer_group, subscription)

    def find(self, topic: str, consumer_group: str) -> RegisteredFilter | None:
        """The group's expression for the topic."""
        return self._filters.get((topic, consumer_group))

    def _register(self, consumer_group: str, subscription: SubscriptionData) -> None:
        key = (subscription.topic, consumer_group)
        old = self._filters.get(key)
        if old is not None and subscription.sub_version <= old.version:
            return
        compiled = compile_or_none(subscription.expression_type, subscription.sub_string)
        if compiled is None:
            self._filters.pop(key, None)
            return
        self._filters[key] = RegisteredFilter(
            expression_type=subscription.expression_type,
            text=subscription.sub_string,
            version=subscription.sub_version,
            compiled=compiled,
        )
