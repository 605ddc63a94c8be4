"""Every command that a page, an error or a log text names is one that its reader has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from pyspark_rocketmq.cli.main import cli
from pyspark_rocketmq.cli.parts import PROGRAM
from tests.docs.pages import ROOT, pages

CONNECTOR = ROOT / "connector" / "pyspark_rocketmq"
CLI = CONNECTOR / "cli"
NAMED = re.compile(rf"(?:{PROGRAM}|\./spark-submit\.sh) (?!\[)([a-z][\w-]*)(?: ([a-z][\w-]*))?")
"""A command with its first two words; what follows the second one is its own affair."""
QUOTED = re.compile(f"`{NAMED.pattern}")
"""The same in a text that also has the project's name."""
GROUPS = {name: group for name, group in cli.commands.items() if isinstance(group, click.Group)}
BARE = re.compile(
    "|".join(
        rf"(?<!{PROGRAM} )(?<!\./spark-submit\.sh )\b{name} (?:{'|'.join(group.commands)})\b(?! (?:by|while|and) )"
        for name, group in GROUPS.items()
    )
)
"""A group's command without its program, which nobody can run."""
TEXTS = [
    *(page for page in pages() if page.name != "CHANGELOG.md"),
    *sorted((ROOT / "jobs").rglob("*.ipynb")),
    *sorted((ROOT / "conf").iterdir()),
    *sorted(path for path in (ROOT / "examples").rglob("*") if path.suffix in {".py", ".yaml"}),
]


def strings(module: Path) -> Iterator[str]:
    """Texts of a module, docstrings among them; the parts of an f-string as one."""
    inside: set[int] = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in node.values}
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.value


def named_in(text: str, pattern: re.Pattern[str] = NAMED) -> Iterator[tuple[str, str]]:
    for first, second in pattern.findall(" ".join(text.split())):
        yield first, second if first in GROUPS else ""


def is_there(first: str, second: str) -> bool:
    return first in cli.commands and (not second or second in GROUPS[first].commands)


CONNECTOR_TEXTS = [(module, text) for module in sorted(CONNECTOR.rglob("*.py")) for text in strings(module)]


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_a_page_exist_and_are_written_with_their_program(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    assert [command for command in named_in(text) if not is_there(*command)] == []
    assert BARE.findall(text) == []


def test_commands_in_texts_of_the_package_exist() -> None:
    named = {
        (module.name, *command) for module, text in CONNECTOR_TEXTS for command in named_in(text, QUOTED)
    }

    assert {command for command in named if not is_there(*command[1:])} == set()
    assert {command[1:] for command in named} >= {("offsets", "reset"), ("offsets", "skip"), ("consume", "")}


def test_texts_below_the_command_line_name_commands_with_their_program() -> None:
    below = [(module.name, text) for module, text in CONNECTOR_TEXTS if CLI not in module.parents]

    assert [(name, found) for name, text in below for found in BARE.findall(" ".join(text.split()))] == []


def test_texts_of_the_command_line_quote_commands_with_their_program() -> None:
    quoted = re.compile(rf"(?<!`)`(?:{'|'.join(GROUPS)}) ")
    ours = [
        (module.name, text) for module, text in CONNECTOR_TEXTS if CLI in module.parents and "\n" not in text
    ]

    assert [(name, text) for name, text in ours if quoted.search(text)] == []


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("run `offsets reset --to earliest`", ["offsets reset"]),
        (f"run `{PROGRAM} offsets reset`", []),
        ("by job tables compact", ["tables compact"]),
        ("offsets reset by an operator", []),
    ],
)
def test_a_command_without_its_program_is_found(text: str, bare: list[str]) -> None:
    assert BARE.findall(text) == bare
