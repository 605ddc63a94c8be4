"""``python -m tests.facts_page``: print docs/change-facts.md, made of ``change_data/facts.toml`` and the tests."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

_FOLDER: Final = Path(__file__).parent / "change_data"
PAGE: Final = Path(__file__).parents[1] / "docs" / "change-facts.md"
_NAMED: Final = re.compile(r"K6: facts? ([0-9, ]+):")


def load() -> dict[str, Any]:
    """The texts: ``head``, and the parts with a title and their facts by number."""
    return tomllib.loads((_FOLDER / "facts.toml").read_text())


def numbers(texts: Mapping[str, Any]) -> list[int]:
    """The numbers of all facts."""
    return [int(number) for part in texts["part"] for number in part["facts"]]


def files_by_fact() -> dict[int, list[str]]:
    """The files, below ``tests``, whose tests name each fact."""
    found: dict[int, list[str]] = {}
    for path in sorted(_FOLDER.glob("test_*.py")):
        for number in sorted(set(_named_in(path))):
            found.setdefault(number, []).append(path.stem)
    return found


def _named_in(path: Path) -> Iterator[int]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            named = _NAMED.match((ast.get_docstring(node) or "").replace(".", ":", 1))
            if named:
                yield from map(int, named[1].split(","))


def page(texts: Mapping[str, Any], tests: Mapping[int, Sequence[str]]) -> str:
    """The whole page."""
    lines = [texts["head"].strip(), ""]
    for part in texts["part"]:
        lines += [
            f"## {part['title']}",
            "",
            "| | what happens | what this package does | tests |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| {number} | {fact} | {here} | {_links(tests[int(number)])} |"
            for number, (fact, here) in part["facts"].items()
        ]
        lines.append("")
    return "\n".join(lines)


def _links(files: Sequence[str]) -> str:
    return ", ".join(f"[{name.removeprefix('test_')}](../tests/change_data/{name}.py)" for name in files)


if __name__ == "__main__":
    sys.stdout.write(page(load(), files_by_fact()))
