"""What is read: one topic, several, or JSON ``{"topic": "expression"}`` with tags of their own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from pyspark_rocketmq.options.declare import said_twice
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
    """What is wanted of one topic."""

    topic: str
    expression: str
    """Tags separated by ``||``, or EVERYTHING; or an SQL92 condition."""
    is_sql92: bool = False


def subscriptions_of(topics: Iterable[str], tags: str, sql_filter: str | None) -> tuple[Subscription, ...]:
    """The same of each topic: a condition if there is one, else tags."""
    if sql_filter is not None:
        return tuple(Subscription(topic, sql_filter, is_sql92=True) for topic in topics)
    return tuple(Subscription(topic, tags) for topic in topics)


def topic_problems(topics: Mapping[str, object], filters: Mapping[str, object]) -> list[str]:
    """Sentences on options that say twice what is read.

    Args:
        topics: Options that name topics, of which one may be given, and which those are.
        filters: Options that filter messages of all topics, likewise.
    """
    problems = said_twice(topics) + said_twice(filters)
    if topics["subscriptions"]:
        problems += [
            f"option 'subscriptions' has the tags of every topic; leave '{key}' out"
            for key, is_given in filters.items()
            if is_given
        ]
    return problems


@parses("JSON")
def parse_subscriptions(text: str) -> tuple[Subscription, ...]:
    """Parse the JSON, in its order.

    Raises:
        ValueError: With the end of the sentence ``subscriptions='…' …``, naming the wrong part and the right
            form.
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
        if isinstance(wanted, dict) and wanted.keys() == {"sql"}:
            return Subscription(name, text_value(_text(wanted["sql"])), is_sql92=True)
        return Subscription(name, tag_expression(_text(wanted)))
    except ValueError as problem:
        raise ValueError(f"subscribes to '{wanted}' of '{topic}', which {problem}") from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"is no text; the shape is {_SHAPE}")  # noqa: TRY004 - as every parser
    return value
