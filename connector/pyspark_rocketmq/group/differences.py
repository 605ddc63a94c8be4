"""Looks for what the members of a group must have in common, and says once when they have not.

A broker keeps one subscription table per group, that of the last heartbeat: members that subscribe to different
things take messages from each other without a word (rocketmq-client-go#592, apache/rocketmq#7885).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from pyspark_rocketmq.peer_text import peer_text
from pyspark_rocketmq.wire.admin_bodies import ConsumerConnection
from pyspark_rocketmq.wire.bodies import ConsumerData
from pyspark_rocketmq.wire.subscription import SubscriptionData

logger = logging.getLogger(__name__)


class Differences:
    """What was said already is not said again until it was right in between."""

    def __init__(self, own: ConsumerData, client_id: str) -> None:
        self._own = own
        self._client_id = client_id
        self._said: frozenset[str] = frozenset()

    def look(self, listed: Sequence[str], told: ConsumerConnection) -> None:
        """Compare what a broker tells of the group with what this member told it."""
        problems = frozenset(differences(self._own, self._client_id, listed, told))
        for problem in sorted(problems - self._said):
            logger.warning("group members differ group=%s: %s", self._own.group_name, problem)
        self._said = problems


def differences(
    own: ConsumerData, client_id: str, listed: Sequence[str], told: ConsumerConnection
) -> list[str]:
    """Sentences on what does not fit."""
    problems = []
    if list(listed).count(client_id) > 1:
        problems.append(
            f"client id '{client_id}' is used by {list(listed).count(client_id)} members, and each takes every one of "
            "its shares; give each query an instanceName of its own, or leave the option out"
        )
    if told.message_model is not own.message_model:
        problems.append(
            f"another member consumes in the model {told.message_model}, this one in {own.message_model}; "
            "a group has one model, so use another group for the other"
        )
    return problems + _subscription_problems(own, told.subscriptions)


def _subscription_problems(own: ConsumerData, told: Mapping[str, SubscriptionData]) -> list[str]:
    mine = {one.topic: one for one in own.subscriptions}
    return [
        f"topic {peer_text(topic)} is subscribed to as {_shown(told.get(topic))} by another member and as "
        f"{_shown(mine.get(topic))} by this one; members of a group must subscribe to the same"
        for topic in sorted(mine.keys() | told.keys())
        if _meaning(mine.get(topic)) != _meaning(told.get(topic))
    ]


def _meaning(subscription: SubscriptionData | None) -> object:
    if subscription is None:
        return None
    is_tags = subscription.expression_type == "TAG"
    return subscription.expression_type, subscription.tags_set if is_tags else subscription.sub_string


def _shown(subscription: SubscriptionData | None) -> str:
    return "nothing" if subscription is None else f"'{peer_text(subscription.sub_string)}'"
