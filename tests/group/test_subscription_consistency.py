"""What members of a group must have in common."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from pyspark_rocketmq.group.member import SubscriptionConsistency, differences
from pyspark_rocketmq.model import ConsumeFromWhere, MessageModel
from pyspark_rocketmq.wire.requests.admin import ConsumerConnection
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, ConsumeType
from pyspark_rocketmq.wire.subscription import SubscriptionData, build_subscription


def subscriptions(*texts: str, version: int = 1) -> tuple[SubscriptionData, ...]:
    return tuple(
        build_subscription(topic, expression, sub_version=version)
        for topic, _, expression in (text.partition(":") for text in texts)
    )


def mine(*texts: str, model: MessageModel = MessageModel.CLUSTERING) -> ConsumerData:
    return ConsumerData(
        group_name="g",
        consume_type=ConsumeType.CONSUME_PASSIVELY,
        message_model=model,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        subscriptions=subscriptions(*texts),
    )


def told(*texts: str, model: MessageModel = MessageModel.CLUSTERING) -> ConsumerConnection:
    return ConsumerConnection(
        connections=(),
        subscriptions={each.topic: each for each in subscriptions(*texts, version=2)},
        consume_type=ConsumeType.CONSUME_PASSIVELY,
        message_model=model,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    )


@pytest.mark.parametrize("other", ["T:a || b", "T:b||a"])
def test_equivalent_subscriptions_do_not_differ(other: str) -> None:
    """A3: a version, or the order of tags, means nothing."""
    assert differences(mine("T:a||b", "%RETRY%g:*"), "me", ["me"], told(other, "%RETRY%g:*")) == []


def test_different_expressions_and_topics_are_logged_with_both_sides() -> None:
    """A3."""
    one, two = differences(mine("T:a", "U:*"), "me", ["me"], told("T:b", "V:*", "U:*"))

    assert one == (
        "topic T is subscribed to as 'b' by another member and as 'a' by this one; "
        "members of a group must subscribe to the same"
    )
    assert "topic V is subscribed to as '*' by another member and as nothing by this one" in two


def test_a_subscription_cannot_forge_log_lines() -> None:
    """A3."""
    data = SubscriptionData(topic="V\nERROR forged", sub_string="\x1b[2J" * 10_000)
    connection = replace(told(), subscriptions={data.topic: data})

    (one,) = differences(mine(), "me", ["me"], connection)

    assert one.isprintable()
    assert len(one) < 3_000


def test_a_different_message_model_is_logged() -> None:
    """B3: one group cannot be clustering and broadcasting."""
    (problem,) = differences(mine("T:*"), "me", ["me"], told("T:*", model=MessageModel.BROADCASTING))

    assert "another member consumes in the model BROADCASTING, this one in CLUSTERING" in problem


def test_a_client_id_used_twice_is_logged_with_the_remedy() -> None:
    (problem,) = differences(mine("T:*"), "me", ["me", "you", "me"], told("T:*"))

    assert "client id 'me' is listed 2 times" in problem
    assert "give each query its own instanceName" in problem


def test_a_difference_is_logged_once_and_again_only_after_it_was_resolved(
    caplog: pytest.LogCaptureFixture,
) -> None:
    look = SubscriptionConsistency(mine("T:a"), "me").look
    with caplog.at_level(logging.WARNING):
        for seen in ("T:b", "T:b", "T:a", "T:b"):
            look(["me"], told(seen))

    assert len(caplog.records) == 2
    assert "group members differ group=g: topic T is subscribed to as 'b'" in caplog.text
