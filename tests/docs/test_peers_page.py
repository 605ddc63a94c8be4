"""``docs/peers.md`` names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.named_tests import source_of

PAGE = Path(__file__).parents[2] / "docs" / "peers.md"
ROW = re.compile(r"^\| .* \| .* \| (same|better|other|not) \| (.*)\|$")
NAMED = re.compile(r"\[(test_\w+)\]\(\.\./(tests/[\w/]+\.py)\)")


SECTIONS = ("Options of reading", "Behaviour", "Writing")
FEWEST_ROWS = 23


def rows_of(section: str) -> list[str]:
    """The rows of a section's table, without its head."""
    found = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None, f"the page has no section {section!r}"
    return [line for line in found[1].splitlines() if line.startswith("| ")][1:]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_row_names_a_test_that_is_there(section: str) -> None:
    rows = rows_of(section)

    wrong = []
    for line in rows:
        row = ROW.match(line)
        named = NAMED.findall(row[2]) if row else []
        is_there = bool(named) and all(source_of(f"{file}::{name}") for name, file in named)
        if row is None or not (is_there or (row[1] == "not" and not row[2].strip())):
            wrong.append(line)

    assert wrong == []
    assert len(rows) >= FEWEST_ROWS


def test_there_is_no_table_besides() -> None:
    """Which nobody would look at."""
    assert re.findall(r"^## (.*)$", PAGE.read_text(), re.MULTILINE) == list(SECTIONS)
