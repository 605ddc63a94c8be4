"""Filters that select the messages of a pull, and pulls that wait for a message.

SQL92 expressions are those that heartbeats registered (``ConsumerFilterManager``). A held pull is answered
once (``PullRequestHoldService``): when a message of its queue passes its filter, or when its time is up, even
if its connection is closed by then. The real broker checks the time only every 5 s; this one is exact.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from broker_sim.layout import MessageRun, read_stored
from broker_sim.replies import Peer
from broker_sim.sql92 import Expression, Sql92Error
from broker_sim.sql92_parser import compile_expression
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.properties import decode_properties
from pyspark_rocketmq.wire.subscription import ALL, SQL92, TAG, SubscriptionData


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Filter of a pull by tags' hash codes or an SQL92 expression; without either, every message passes."""

    codes: frozenset[int] | None = None
    expression: Expression | None = None

    def accepts(self, message: bytes) -> bool:
        """Whether a stored message matches the expression; True without one. Tags are not checked here."""
        return self.expression is None or self.expression.matches(read_stored(message).properties)

    def takes_any(self, run: MessageRun, tag_hashes: Iterable[int]) -> bool:
        """Whether any message of ``run`` passes; ``tag_hashes`` are the hash codes of its messages' tags."""
        if self.expression is not None:
            matches = self.expression.matches
            return any(matches(decode_properties(member.properties)) for member in run.members)
        return self.codes is None or not self.codes.isdisjoint(tag_hashes)


EVERYTHING = MessageFilter()


def is_by_tags(subscription: SubscriptionData) -> bool:
    """Whether the subscription's expression is of the tag type (``ExpressionType.isTagType``)."""
    return subscription.expression_type in {TAG, ""}


def tag_filter(subscription: SubscriptionData) -> MessageFilter:
    """Create the filter of a subscription by tags; every message passes if it subscribes to all (``*``)."""
    return EVERYTHING if subscription.sub_string == ALL else MessageFilter(subscription.code_set)


def compile_or_none(expression_type: str, text: str) -> Expression | None:
    """Compile the expression; None if it is invalid or the broker has no filter of this type."""
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
    """subVersion of the heartbeat that registered it."""
    compiled: Expression


class RegisteredFilters:
    """The SQL92 expressions that heartbeats registered, by topic and group.

    A group keeps its expressions when its members are gone.
    """

    def __init__(self) -> None:
        self._filters: dict[tuple[str, str], RegisteredFilter] = {}

    def register(self, consumer_group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Take the expressions of a heartbeat's subscriptions that are newer than the registered ones.

        An invalid expression removes the registered one. Subscriptions by tags are ignored.
        """
        for subscription in subscriptions:
            if not is_by_tags(subscription) and subscription.sub_string:
                self._register(consumer_group, subscription)

    def find(self, topic: str, consumer_group: str) -> RegisteredFilter | None:
        """Return the group's registered expression for the topic; None if there is none."""
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldPull:
    """A pull request that the broker answers when a message arrives, or at its deadline."""

    peer: Peer
    command: RemotingCommand
    topic: str
    queue_id: int
    wanted: MessageFilter
    """Filter of the messages for which it waits."""
    deadline_s: float
    """Monotonic time at which the pull is answered even without a message."""


class HeldPulls:
    """The pulls of a broker that wait for messages."""

    def __init__(self) -> None:
        self._by_queue: dict[tuple[str, int], dict[int, HeldPull]] = {}
        self._deadlines: list[tuple[float, int, HeldPull]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return sum(len(pulls) for pulls in self._by_queue.values())

    def hold(self, pull: HeldPull) -> None:
        """Keep ``pull`` until :meth:`arrived` or :meth:`expired` returns it, or :meth:`clear` drops it."""
        number = next(self._numbers)
        self._by_queue.setdefault((pull.topic, pull.queue_id), {})[number] = pull
        heapq.heappush(self._deadlines, (pull.deadline_s, number, pull))

    def arrived(self, run: MessageRun, tag_hashes: Sequence[int]) -> list[HeldPull]:
        """Remove and return the pulls that wait for one of the messages of ``run``, which were just stored.

        ``tag_hashes`` are the hash codes of the messages' tags.
        """
        pulls = self._by_queue.get((run.topic, run.queue_id))
        if not pulls:
            return []
        woken = [number for number, pull in pulls.items() if pull.wanted.takes_any(run, tag_hashes)]
        return [pulls.pop(number) for number in woken]

    def expired(self, now_s: float) -> list[HeldPull]:
        """Remove and return the pulls whose deadline is at or before the monotonic time ``now_s``.

        They are in the order of their deadlines.
        """
        gone = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, number, pull = heapq.heappop(self._deadlines)
            if self._by_queue[pull.topic, pull.queue_id].pop(number, None) is not None:
                gone.append(pull)
        return gone

    def next_deadline_s(self) -> float | None:
        """Return the earliest monotonic time at which a pull may expire; None if none waits.

        The pull with this deadline may have been released already.
        """
        return self._deadlines[0][0] if self._deadlines else None

    def clear(self) -> None:
        """Drop all pulls without an answer, as a broker does when it stops."""
        self._by_queue.clear()
        self._deadlines.clear()
