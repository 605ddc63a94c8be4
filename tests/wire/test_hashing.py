"""The string hash and the queue it chooses, against Java's values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.errors import LocalProtocolError
from pyspark_rocketmq.wire.requests.send import JavaInteger, java_hash, select_by_hash
from pyspark_rocketmq.wire.subscription import java_string_hash
from tests.helpers.golden import golden

STRINGS = golden("hashing.json")["strings"]
OTHER_KEYS = golden("hashing.json")["other_types"]
NUMBERS = [key for key in OTHER_KEYS if key["type"] in {"Long", "Integer", "Short", "Byte"}]
SAME_TEXT_SAME_HASH = [key for key in OTHER_KEYS if key["type"] == "Character"]


@pytest.mark.parametrize(("text", "expected", "_indexes"), STRINGS, ids=lambda value: ascii(value)[:30])
def test_the_hash_of_a_text_is_java_s(text: str, expected: int, _indexes: list[int]) -> None:
    """G1: surrogate halves and the smallest integer included."""
    assert java_string_hash(text) == expected


@pytest.mark.parametrize(("text", "_hash", "indexes"), STRINGS, ids=lambda value: ascii(value)[:30])
def test_a_key_goes_to_the_queue_java_chooses(text: str, _hash: int, indexes: list[int]) -> None:
    """G1: for 1 to 16 queues."""
    assert [select_by_hash(text, count) for count in range(1, len(indexes) + 1)] == indexes


@pytest.mark.parametrize("key", SAME_TEXT_SAME_HASH, ids=lambda key: ascii(key["value"]))
def test_a_java_character_hashes_like_the_text_of_it(key: dict[str, Any]) -> None:
    assert java_string_hash(key["value"]) == key["hashCode"]


@pytest.mark.parametrize("key", NUMBERS, ids=lambda key: f"{key['type']} {key['value']}")
def test_a_number_goes_to_the_queue_that_java_chooses_for_its_type(key: dict[str, Any]) -> None:
    """G1: a Long is folded, which moves negative ones; the smaller types are what they are."""
    number = int(key["value"]) if key["type"] == "Long" else JavaInteger(key["value"])

    assert java_hash(number) == key["hashCode"]
    assert [select_by_hash(number, count) for count in range(1, len(key["index"]) + 1)] == key["index"]


@pytest.mark.parametrize(
    "key", [1 << 63, -(1 << 63) - 1, True, 3.0, 3.7, float("nan"), None, pd.NA, b"3"], ids=repr
)
def test_a_key_that_is_no_number_of_javas_is_refused(key: Any) -> None:
    """G1: it would go to some queue, and not to the one of Java's producers."""
    with pytest.raises(LocalProtocolError, match="make it a string"):
        select_by_hash(key, 4)


def test_a_number_of_numpy_is_one_of_java() -> None:
    """G1: keys from a DataFrame of pandas are of this type."""
    number: Any = np.int64(-7)

    assert java_hash(number) == java_hash(-7)


@given(st.text(), st.text(), st.integers(1, 100_000))
def test_the_hash_is_a_signed_int_and_the_choice_is_a_queue(first: str, second: str, count: int) -> None:
    """G1: same key, same queue."""
    value = java_string_hash(first)

    assert -(1 << 31) <= value < 1 << 31
    # The law of the polynomial, which ties the ASCII path to the other one.
    units = len(second.encode("utf-16-be")) // 2
    joined = value * pow(31, units, 1 << 32) + java_string_hash(second)
    assert (java_string_hash(first + second) - joined) % (1 << 32) == 0
    assert 0 <= select_by_hash(first, count) < count
    assert select_by_hash(first, count) == select_by_hash(first, count)
