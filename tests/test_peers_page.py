"""``docs/peers.md`` names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.named_tests import source_of

PAGE = Path(__file__).parent.parent / "docs" / "peers.md"
ROW = re.compile(r"^\| .* \| .* \| (same|better|other|not) \| (.*)\|$")
NAMED = re.compile(r"\[(test_\w+)\]\(\.\./(tests/[\w/]+\.py)\)")


def test_every_row_names_a_test_that_is_there() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "|---" not in line]
    rows = [line for line in rows if not line.startswith("| Kafka's source |")]

    wrong = []
    for line in rows:
        row = ROW.match(line)
        named = NAMED.findall(row[2]) if row else []
        is_there = bool(named) and all(source_of(f"{file}::{name}") for name, file in named)
        if row is None or not (is_there or (row[1] == "not" and not row[2].strip())):
            wrong.append(line)

    assert wrong == []
    assert len(rows) > 50
