"""Tests of listeners run in both modes, unless they say why they do not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parents[1] / "end_to_end"
_FILES = (
    "test_concurrent_consumer.py",
    "test_dead_letters.py",
    "test_given_up_in_batch.py",
    "test_listener_forms.py",
    "test_orderly_consumer.py",
    "test_slow_queues.py",
    "test_stop.py",
)
"""Tests of the rows D and E, and of a query's end."""
_IN_BOTH = ("BOTH_MODES", "REAL_TIME", "micro_batch_only(")


@pytest.mark.parametrize("name", _FILES)
def test_every_test_of_a_listener_has_both_modes_or_a_reason(name: str) -> None:
    """D1, E1: by its own marks, or by those of a fixture or constant that it uses."""
    module = ast.parse((_FOLDER / name).read_text())
    named = {found: ast.unparse(node) for node in module.body for found in _defined_by(node)}
    in_one = [
        node.name
        for node in module.body
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and not _is_in_both(node, named)
    ]
    assert not in_one


def _defined_by(node: ast.stmt) -> list[str]:
    """Return the fixture or the constants that a statement defines."""
    if isinstance(node, ast.FunctionDef) and not node.name.startswith("test_"):
        return [node.name]
    return (
        [each.id for each in node.targets if isinstance(each, ast.Name)]
        if isinstance(node, ast.Assign)
        else []
    )


def _is_in_both(test: ast.FunctionDef, named: dict[str, str]) -> bool:
    marks = [ast.unparse(each) for each in test.decorator_list]
    used = [each.arg for each in test.args.args] + [
        each.id for mark in test.decorator_list for each in ast.walk(mark) if isinstance(each, ast.Name)
    ]
    # Every test has these; they depend on the mode that its marks name.
    fixtures = [
        text for name, text in named.items() if name in used and name not in {"engine", "consumption"}
    ]
    return any(word in text for word in _IN_BOTH for text in (*marks, *fixtures))
