"""``docs/semantics.md`` is true: its tests and modules exist,
no rule that a test names is left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.semantics_page import PAGE, TESTS, NamingTest, ids_in, load_rows, page

ROWS = load_rows()
RULES = {rule: row for part in ROWS["parts"].values() for rule, row in part["rows"].items()}
_HAVING_DOCS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings() -> Iterator[tuple[str, str]]:
    """Of all tests, with the file they are in."""
    for file in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, _HAVING_DOCS) and (doc := ast.get_docstring(node)):
                yield str(file.relative_to(TESTS)), doc


def test_every_rule_that_a_test_names_is_on_the_page() -> None:
    text = PAGE.read_text()

    for file, doc in docstrings():
        for rule in ids_in(doc):
            assert rule in RULES, f"{file} names {rule}, which tests/semantics_rows.toml does not have"
            assert f"\n| {rule} | " in text, f"{rule} is not in docs/semantics.md: run make docs"


def test_every_file_and_module_on_the_page_exists() -> None:
    text = PAGE.read_text()
    links = re.findall(r"\]\(([^)#]+)\)", text)
    modules = {module for row in RULES.values() for module in row.get("where", ())}

    assert links
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
    package = TESTS.parent / "connector" / "pyspark_rocketmq"
    assert [module for module in sorted(modules) if not (package / module).is_file()] == []


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("B4: the list.", {"B4"}),
        ("D1, D13.", {"D1", "D13"}),
        ("D1-D3: all.", {"D1", "D2", "D3"}),
        ("UTF-8, A0, SHA1, B-4 and http2 are no rules", set()),
    ],
)
def test_ids_are_found_in_a_docstring(text: str, rules: set[str]) -> None:
    assert ids_in(text) == rules


def test_a_rule_is_either_kept_with_its_tests_or_listed_as_not_yet() -> None:
    rows = {
        "head": "# H",
        "not_yet_head": "## Not yet",
        "parts": {
            "A": {
                "title": "T",
                "rows": {
                    "A1": {"rule": "kept", "where": ["model.py"]},
                    "A2": {"rule": "in part", "where": ["model.py"], "missing": "half"},
                    "A3": {"rule": "untested", "where": ["model.py"]},
                    "A4": {"rule": "absent", "missing": "all of it"},
                },
            }
        },
    }
    tests = {rule: [NamingTest("tests/x/test_y.py::test_z", True)] for rule in ("A1", "A2", "A4")}

    kept, _, not_yet = page(rows, tests).partition("## Not yet")

    assert re.findall(r"^\| (A\d)", kept, re.MULTILINE) == ["A1", "A2"]
    assert "| [x/y](../tests/x/test_y.py) ★ |" in kept
    assert re.findall(r"^\| (A\d) .* \| (.+) \|", not_yet, re.MULTILINE) == [
        ("A2", "half"),
        ("A3", "a test that names it"),
        ("A4", "all of it"),
    ]
