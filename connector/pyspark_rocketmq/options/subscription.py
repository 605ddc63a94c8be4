"""Subscriptions: the topics and tags that are read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final, NamedTuple

from pyspark_rocketmq.options.declare import OptionSet
from pyspark_rocketmq.options.parsers import (
    MAX_TOPIC_LENGTH,
    parses,
    resource_name,
    tag_expression,
    text_value,
    unique_members,
)

EVERYTHING: Final = "*"
_SHAPE = '{"topic": "tag || tag", "other topic": "*", "third topic": {"sql": "amount > 10"}}'


class Subscription(NamedTuple):
    """Subscription to one topic."""

    topic: str
    expression: str
    """Tags separated by ``||``, or EVERYTHING; or an SQL92 condition."""
    is_sql92: bool = False


def subscriptions_of(topics: Iterable[str], tags: str, sql_filter: str | None) -> tuple[Subscription, ...]:
    """Return one subscription per topic, by the SQL92 condition if there is one, otherwise by tags."""
    if sql_filter is not None:
        return tuple(Subscription(topic, sql_filter, is_sql92=True) for topic in topics)
    return tuple(Subscription(topic, tags) for topic in topics)


def topic_problems(options: OptionSet) -> list[str]:
    """Return problems if more than one option names the topics, or more than one filters their messages."""
    filters = ("subscription", "sqlFilter")
    problems = options.said_twice("topic", "topics", "topicPattern", "subscriptions")
    problems += options.said_twice(*filters)
    given = options.given()
    if "subscriptions" in given:
        problems += [
            f"option 'subscriptions' has the tags of every topic; leave '{key}' out"
            for key in filters
            if key in given
        ]
    return problems


@parses("JSON")
def parse_subscriptions(text: str) -> tuple[Subscription, ...]:
    """Parser of JSON such as ``{"orders": "created || paid", "payments": {"sql": "amount > 10"}}``.

    Returns a subscription for each topic, in the order of the JSON.
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


def _subscription(topic: str, wanted: object) -> Subscription:
    try:
        name = resource_name("topic", MAX_TOPIC_LENGTH)(topic)
    except ValueError as problem:
        raise ValueError(f"names topic '{topic}', which {problem}") from None
    try:
        if isinstance(wanted, dict) and wanted.keys() == {"sql"}:
            return Subscription(name, text_value(_text(wanted["sql"])), is_sql92=True)
        return Subscription(name, tag_expression(_text(wanted)))
    except ValueError as problem:
        raise ValueError(f"has for topic '{topic}' the expression '{wanted}', which {problem}") from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"is not a string; the shape is {_SHAPE}")  # noqa: TRY004 - as every parser
    return value
