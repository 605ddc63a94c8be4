"""Writes ``docs/semantics.md``: every rule of RocketMQ that is kept here, where, and the tests that name it.

A test names a rule by its id in its docstring, as in ``B4: …``; ids of a class count for its tests. The rules
are in ``semantics_rows.toml`` beside this file, the tests are what pytest collects. ``python -m
tests.semantics_page`` prints the page, ``python -m tests.semantics_page B4`` the tests of one rule.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

TESTS = Path(__file__).parent
ROWS_FILE = TESTS / "semantics_rows.toml"
PAGE = TESTS.parent / "docs" / "semantics.md"
_NOT_OURS = ("tests/broker_sim/", "tests/java/", "tests/real_broker/")
"""Tests of what the package is tested with."""
_ID = re.compile(r"(?<![\w-])([A-JL])([1-9]\d?)(?:\s*-\s*\1([1-9]\d?))?(?![\w-])")


class NamingTest(NamedTuple):
    """A test whose docstring names rules."""

    name: str
    """Node id without parameters."""
    is_real: bool
    """Whether it runs on a real RocketMQ too."""

    @property
    def file(self) -> str:
        """Path from the repository's root."""
        return self.name.partition("::")[0]


@dataclass
class _Collector:
    """A pytest plugin that keeps what was collected."""

    by_id: dict[str, dict[str, bool]] = field(default_factory=dict)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            docs = (getattr(node, "obj", None) for node in item.listchain()[2:])
            text = " ".join(doc for node in docs if (doc := getattr(node, "__doc__", None)))
            is_real = item.get_closest_marker("real") is not None
            name = item.nodeid.partition("[")[0]
            if name.startswith(_NOT_OURS):
                continue
            for rule in ids_in(text):
                tests = self.by_id.setdefault(rule, {})
                tests[name] = tests.get(name, False) or is_real


def ids_in(text: str) -> set[str]:
    """The ids a docstring names; ``D1-D5`` names five."""
    found = set()
    for letter, first, last in _ID.findall(text):
        found |= {f"{letter}{number}" for number in range(int(first), int(last or first) + 1)}
    return found


def collect() -> dict[str, list[NamingTest]]:
    """The tests by the ids they name.

    Raises:
        RuntimeError: If pytest cannot collect the tests.
    """
    collector, said = _Collector(), io.StringIO()
    with contextlib.redirect_stdout(said):
        code = pytest.main(
            ["--collect-only", "-q", "-p", "no:cacheprovider", str(TESTS)], plugins=[collector]
        )
    if code != pytest.ExitCode.OK:
        raise RuntimeError(f"pytest could not collect the tests: {said.getvalue()[-2000:]}")
    return {
        rule: [NamingTest(name, is_real) for name, is_real in sorted(tests.items())]
        for rule, tests in collector.by_id.items()
    }


def load_rows() -> dict[str, Any]:
    """``semantics_rows.toml``: texts, and per letter a title and the rows by id."""
    return tomllib.loads(ROWS_FILE.read_text())


def page(rows: Mapping[str, Any], tests: Mapping[str, Iterable[NamingTest]]) -> str:
    """The whole page."""
    lines = [rows["head"].strip(), ""]
    for letter, part in rows["parts"].items():
        lines += [f"## {letter}. {part['title']}", ""]
        kept = {rule: row for rule, row in part["rows"].items() if row.get("where") and tests.get(rule)}
        if kept:
            lines += ["| id | rule | where | tests |", "|---|---|---|---|"]
            lines += [_line(rule, row, tests[rule]) for rule, row in kept.items()]
            lines.append("")
        if "after" in part:
            lines += [part["after"].strip(), ""]
    lines += [rows["not_yet_head"].strip(), "", "| id | rule | missing |", "|---|---|---|"]
    for part in rows["parts"].values():
        lines += [
            f"| {rule} | {row['rule']} | {row.get('missing') or 'a test that names it'} |"
            for rule, row in part["rows"].items()
            if row.get("missing") or not tests.get(rule)
        ]
    return "\n".join(lines) + "\n"


def _line(rule: str, row: Mapping[str, Any], tests: Iterable[NamingTest]) -> str:
    files: dict[str, bool] = {}
    for test in tests:
        files[test.file] = files.get(test.file, False) or test.is_real
    named = ", ".join(
        f"[{_short(file)}](../{file}){' ★' if is_real else ''}" for file, is_real in sorted(files.items())
    )
    where = ", ".join(f"`{module}`" for module in row["where"])
    return f"| {rule} | {row['rule']} | {where} | {named} |"


def _short(file: str) -> str:
    return file.removeprefix("tests/").removesuffix(".py").replace("/test_", "/")


def main(arguments: list[str]) -> None:
    """Print the page, or the tests of the rules that are named."""
    tests = collect()
    if not arguments:
        sys.stdout.write(page(load_rows(), tests))
    for rule in arguments:
        for test in tests.get(rule, []):
            sys.stdout.write(f"{rule} {test.name}{' ★' if test.is_real else ''}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
