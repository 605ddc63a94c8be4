"""The script that counts habits of prose."""

from __future__ import annotations

from scripts.prose import counts, more_than, places_in_page, places_in_python

_MODULE = '''
"""What a module must not begin with."""

LIMIT = 3
"""Of calls."""


def told(alone: int) -> str:
    """Return a text; names of code are left alone."""
    return "made anew"  # nobody is told
'''


def test_each_habit_of_a_module_is_found_with_its_line() -> None:
    """Docstrings of attributes, comments and texts count; names in code do not."""
    found = [(place.habit, place.line) for place in places_in_python("connector/a.py", _MODULE)]

    assert sorted(found) == [("alone", 9), ("anew", 10), ("first word", 2), ("first word", 5), ("told", 10)]


def test_words_with_two_meanings_are_found() -> None:
    """A maximum is not the majority, and "at once" is either immediately or at the same time."""
    module = 'MOST = 3\n"""Most calls at once, treated alike; most wait."""\n'

    found = [(place.habit, place.line) for place in places_in_python("connector/a.py", module)]

    assert sorted(found) == [("alike", 2), ("at once", 2), ("first word", 2)]


def test_code_in_a_page_is_left_out() -> None:
    """Blocks and words in backquotes are code."""
    page = "Use `tell`.\n\n```python\ntold = 1\n```\nIt is told.\n"

    assert [(place.habit, place.line) for place in places_in_page("docs/a.md", page)] == [("told", 6)]


def test_more_places_than_recorded_are_reported_by_folder_and_habit() -> None:
    """Fewer are fine, and a folder without a record has none."""
    now = counts(list(places_in_python("connector/a.py", _MODULE)))

    assert more_than({"connector": {"first word": 2, "told": 9, "alone": 1, "anew": 1}}, now) == []
    assert more_than({"connector": {"first word": 1, "told": 9, "alone": 1, "anew": 1}}, now) == [
        "connector: 2 places of 'first word', 1 allowed"
    ]
    assert len(more_than({}, now)) == 4
