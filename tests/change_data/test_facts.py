"""Facts about the programs that write change data, by number: each has a test that names it."""

from __future__ import annotations

from tests.facts_page import PAGE, files_by_fact, load, numbers, page


def test_every_fact_has_a_test() -> None:
    """K6: the page of facts is kept by tests."""
    assert set(numbers(load())) == files_by_fact().keys() == set(range(1, 44))


def test_the_page_is_made_of_the_facts() -> None:
    """K6: docs/change-facts.md has every fact with its tests."""
    assert PAGE.read_text() == page(load(), files_by_fact()), "write it again: make docs"
