"""SQL92 expressions: the rules that RocketMQ's filter module follows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_sim.sql92 import Sql92Error
from broker_sim.sql92_parser import compile_expression
from tests.helpers.sql92_cases import CASES, ILLEGAL


@pytest.mark.parametrize(("expression", "properties", "matches"), CASES)
def test_an_expression_matches_as_in_java(expression: str, properties: dict[str, str], matches: bool) -> None:
    """E1: types, null and errors; the same table is put to the real broker in tests/both."""
    assert compile_expression(expression).matches(properties) is matches


@pytest.mark.parametrize("expression", ILLEGAL)
def test_what_java_does_not_compile_is_refused(expression: str) -> None:
    """E1."""
    with pytest.raises(Sql92Error):
        compile_expression(expression)


def test_long_chains_need_no_deep_stack() -> None:
    expression = compile_expression(" OR ".join(f"a = {number}" for number in range(2_000)))
    assert expression.matches({"a": "1999"})


def test_an_expression_nested_too_deeply_is_refused() -> None:
    with pytest.raises(Sql92Error):
        compile_expression("(" * 100_000 + "a = 1" + ")" * 100_000)


@given(st.text(alphabet="ab01'.()=<> -+,ELANDORBTWISU\n*/", max_size=40))
def test_any_text_compiles_or_is_refused_and_never_fails_otherwise(text: str) -> None:
    try:
        expression = compile_expression(text)
    except Sql92Error:
        return
    assert expression.matches({"a": "1", "b": "x"}) in {True, False}
