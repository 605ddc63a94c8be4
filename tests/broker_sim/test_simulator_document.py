"""docs/how-to/simulator.md keeps its word."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_sim.faults import FAULTS

_ROOT = Path(__file__).parents[2]
_TEXT = (_ROOT / "docs" / "how-to" / "simulator.md").read_text(encoding="utf-8")


def test_the_example_is_ten_lines_and_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", _TEXT, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(example, "docs/how-to/simulator.md", "exec"), names)
    tests: list[Callable[[], None]] = [
        value for name, value in names.items() if name.startswith("test_") and callable(value)
    ]
    assert len(tests) == 1
    assert len([line for line in example.splitlines() if line]) <= 10
    tests[0]()


def test_every_test_the_document_names_exists() -> None:
    named = set(re.findall(r"`(\w+/test_\w+\.py)::(test_\w+)`", _TEXT))
    assert len(named) > 20
    written = {
        (f"{path.parent.name}/{path.name}", name)
        for path in (_ROOT / "tests").glob("*/test_*.py")
        for name in re.findall(r"^\s*def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert named - written == set()


@pytest.mark.parametrize("heading", ["What it does as a broker does", "What it does not"])
def test_every_row_names_a_test_or_an_issue(heading: str) -> None:
    """Whether the tests exist is asked above; an issue is one of RocketMQ's trackers."""
    section = _TEXT.split(f"## {heading}\n")[1].split("\n## ")[0]
    _, table = section.split("|---|", 1)
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    proof = re.compile(r"`\w+/test_\w+\.py::test_\w+`|[\w-]+ #\d+")
    assert len(rows) >= 8
    assert [row[0] for row in rows if not proof.search(row[-1])] == []


def test_every_fault_is_described() -> None:
    described = re.findall(r"^\| `([a-z-]+)` \|", _TEXT, re.MULTILINE)
    assert sorted(described) == sorted(FAULTS)


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", _TEXT):
        assert (_ROOT / "docs" / "how-to" / target).exists(), target
