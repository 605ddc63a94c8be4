"""What is read, as options say it: one topic, several, or JSON ``{"topic": "expression"}`` with tags of their own."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from pyspark_rocketmq.option_parsers import MAX_TOPIC_LENGTH, resource_name, tag_expression, unique_members

_SHAPE = '{"topic": "tag || tag", "other topic": "*"}'


class Subscription(NamedTuple):
    """What is wanted of one topic."""

    topic: str
    expression: str
    """Tags separated by ``||``, or ``*``."""


def subscribed(
    topic: str | None, topics: Iterable[str], subscription: str, subscriptions: Iterable[Subscription]
) -> dict[str, str]:
    """Each topic's expression, by whichever of the options ``topic``, ``topics`` and ``subscriptions`` is given."""
    if subscriptions:
        return dict(subscriptions)
    return dict.fromkeys(topics if topic is None else (topic,), subscription)


def topic_problems(
    topic: str | None, topics: Iterable[str], subscription: str, subscriptions: Iterable[Subscription]
) -> list[str]:
    """Sentences on options that say twice what is read."""
    given = {"topic": topic, "topics": topics, "subscriptions": subscriptions}
    named = [f"'{key}'" for key, value in given.items() if value]
    problems = []
    if len(named) > 1:
        problems.append(f"options {' and '.join(named)} exclude each other; give one")
    if subscriptions and subscription != "*":
        problems.append("option 'subscriptions' has the tags of every topic; leave 'subscription' out")
    return problems


def parse_subscriptions(text: str) -> tuple[Subscription, ...]:
    """Parse the JSON, in its order.

    Raises:
        ValueError: With the end of the sentence ``subscriptions='…' …``, naming the wrong part and the right form.
    """
    try:
        named = json.loads(text, object_pairs_hook=unique_members)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"is not JSON of the shape {_SHAPE}; reading it failed at character {error.pos}: {error.msg}"
        ) from error
    except RecursionError:
        raise ValueError(f"is nested too deeply; the shape is {_SHAPE}") from None
    if not isinstance(named, dict) or not named:
        raise ValueError(f"is of another shape than {_SHAPE}")
    return tuple(_subscription(topic, expression) for topic, expression in named.items())


def _subscription(topic: str, expression: object) -> Subscription:
    try:
        return Subscription(resource_name("topic", MAX_TOPIC_LENGTH)(topic), _tags(expression))
    except ValueError as problem:
        raise ValueError(f"subscribes to '{expression}' of '{topic}', which {problem}") from None


def _tags(expression: object) -> str:
    if not isinstance(expression, str):
        raise ValueError(f"is no text; the shape is {_SHAPE}")  # noqa: TRY004 - as every parser
    return tag_expression(expression)
