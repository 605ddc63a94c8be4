"""``docs/guarantees.md`` names a test for every sentence it promises."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.packaging.checkout import ROOT

PAGE = ROOT / "docs" / "guarantees.md"
PROMISES = re.findall(r"^\* (.+)$", PAGE.read_text(), re.MULTILINE)
_LINK = re.compile(r"\[(test_\w+)\]\((\S+)\)")


@cache
def functions_of(file: Path) -> frozenset[str]:
    nodes = ast.walk(ast.parse(file.read_text()))
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef))


def test_every_promise_is_one_sentence_with_a_test_behind_it() -> None:
    untested = [
        promise for promise in PROMISES if not re.fullmatch(r"[^\[\]]+\.( \[test_\w+\]\(\S+\))+", promise)
    ]
    several = [promise for promise in PROMISES if re.search(r"[.!?] [A-Z]", _LINK.sub("", promise).strip())]

    assert PROMISES
    assert (untested, several) == ([], [])


def test_every_test_that_the_page_names_is_there() -> None:
    named = {(PAGE.parent / target, name) for promise in PROMISES for name, target in _LINK.findall(promise)}

    assert [f"{file}: {name}" for file, name in sorted(named) if name not in functions_of(file)] == []


def test_every_way_to_break_things_has_promises() -> None:
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:-1]

    assert [section.splitlines()[0] for section in sections if "\n* " not in section] == []
