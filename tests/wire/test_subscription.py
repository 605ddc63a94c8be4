"""Tag expressions as Java reads them, and the two tests a message's tag has to pass."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.wire.subscription import (
    SubscriptionData,
    build_subscription,
    java_string_hash,
)
from tests.helpers.golden import golden

EXPRESSIONS = golden("filter.json")["buildSubscriptionData"]
TYPED = golden("filter.json")["build"]
TAG_CODES = golden("filter.json")["tagsString2tagsCode"]
READABLE = [case for case in EXPRESSIONS if "error" not in case]


def subscribe(expression: str | None) -> SubscriptionData:
    return build_subscription("TopicT", expression, sub_version=1)


@pytest.mark.parametrize("case", READABLE, ids=lambda case: ascii(case["expr"]))
def test_a_tag_expression_is_read_as_java_reads_it(case: dict[str, Any]) -> None:
    """A4: which tags, which hash codes, which text goes to the broker."""
    subscription = subscribe(case["expr"])

    assert subscription.sub_string == case["subString"]
    assert subscription.tags_set == set(case["tagsSet"])
    assert subscription.code_set == set(case["codeSet"])
    assert subscription.expression_type == case["expressionType"]


@pytest.mark.parametrize("expression", [*(c["expr"] for c in EXPRESSIONS if "error" in c), "||||", "||||||"])
def test_only_separators_are_an_option_error_that_names_topic_and_remedy(expression: str) -> None:
    with pytest.raises(OptionError, match=r"topic TopicT: tag expression '\|+' names no tag; use '\*'"):
        subscribe(expression)


@pytest.mark.parametrize("case", TYPED, ids=lambda case: f"{case['type']}-{case['expr']}")
def test_an_expression_type_is_treated_as_in_java(case: dict[str, Any]) -> None:
    """A4: SQL92 is the broker's to parse."""
    if "error" in case:
        with pytest.raises(OptionError, match="SQL92 needs an expression"):
            build_subscription("TopicT", case["expr"], sub_version=1, expression_type=case["type"])
        return

    subscription = build_subscription("TopicT", case["expr"], sub_version=1, expression_type=case["type"])

    expected = json.loads(case["json"])
    assert subscription.expression_type == expected["expressionType"]
    assert subscription.sub_string == expected["subString"]
    assert subscription.tags_set == set(expected["tagsSet"])
    assert subscription.code_set == set(expected["codeSet"])


@pytest.mark.parametrize(("tag", "_filter_type", "code"), TAG_CODES, ids=ascii)
def test_the_stored_tag_code_is_java_s(tag: str | None, _filter_type: str, code: int) -> None:
    assert java_string_hash(tag or "") == code


def test_tags_are_kept_exactly_although_the_broker_cannot() -> None:
    """A4: Aa and BB have one hash code."""
    subscription = subscribe("Aa || C")

    assert subscription.tags_set == {"Aa", "C"}
    assert java_string_hash("BB") in subscription.code_set


@pytest.mark.parametrize("expression", ["*", "", None])
def test_everything_names_no_tag(expression: str | None) -> None:
    subscription = subscribe(expression)

    assert (subscription.sub_string, subscription.tags_set, subscription.code_set) == (
        "*",
        frozenset(),
        frozenset(),
    )


def test_a_blank_expression_passes_nothing_at_the_broker_and_everything_at_the_client() -> None:
    """Java's own inconsistency: the tag set is empty, the expression is not '*'."""
    subscription = subscribe(" ")

    assert (subscription.sub_string, subscription.tags_set, subscription.code_set) == (
        " ",
        frozenset(),
        frozenset(),
    )


@given(st.lists(st.text(), min_size=1))
def test_the_broker_gets_the_hash_codes_of_all_tags(tags: list[str]) -> None:
    """A4: the rough test never takes a message that the exact one wants."""
    expression = "||".join(tags)
    try:
        subscription = subscribe(expression)
    except OptionError:
        assert set(expression) == {"|"}
        return

    assert subscription.code_set == {java_string_hash(item) for item in subscription.tags_set}
