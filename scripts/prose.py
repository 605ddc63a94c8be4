"""Count the habits of prose that reads as translated, and fail where there are more than before.

``prose.py`` compares each folder with ``scripts/prose.toml``, names the new places, and ends with 1 if there
are any; ``prose.py --write`` records today's counts; ``prose.py --list [FOLDER]`` prints every place.  The
habits are in ``CONTRIBUTING.md``.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

_ROOT: Final = Path(__file__).parents[1]
_RECORD: Final = _ROOT / "scripts" / "prose.toml"
_FOLDERS: Final = (
    "connector", "broker_sim", "jobs", "scripts", "tests", "bench", "fuzz", "examples", "docs",
)  # fmt: skip
_GENERATED: Final = {"options.md", "errors.md", "answers.md", "semantics.md"}
_FIRST_WORDS: Final = re.compile(r"(?:What|Of|As|By|Those|Whom|Whether it|Most)\b")
_WORDS: Final = {
    "told": re.compile(r"\b(?:tell|tells|told|telling)\b", re.IGNORECASE),
    "alone": re.compile(r"\b\w+ alone\b(?! with)", re.IGNORECASE),
    "anew": re.compile(r"\banew\b", re.IGNORECASE),
    "at once": re.compile(r"\bat once\b", re.IGNORECASE),
    "alike": re.compile(r"\balike\b", re.IGNORECASE),
    "data and offsets": re.compile(r"\bbetween (?:the )?data and (?:the )?offsets\b", re.IGNORECASE),
    "whom": re.compile(r"\b(?:whom|lest|thereby)\b", re.IGNORECASE),
}
HABITS: Final = ("first word", *_WORDS)


class Place(NamedTuple):
    """One use of a habit."""

    habit: str
    path: str
    line: int
    text: str


def places_in_python(path: str, source: str) -> Iterator[Place]:
    """Find habits in docstrings (those of attributes too), comments and texts of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _places(path, node.lineno, node.value)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str) and _FIRST_WORDS.match(text):
                yield Place("first word", path, node.lineno, text.splitlines()[0])
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from _places(path, token.start[0], token.string)


def places_in_page(path: str, text: str) -> Iterator[Place]:
    """Find habits in a page; code is left out."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        is_code ^= line.startswith("```")
        if not is_code:
            yield from _places(path, number, re.sub(r"`[^`]*`", "", line))


def _places(path: str, first: int, text: str) -> Iterator[Place]:
    for number, line in enumerate(text.splitlines()):
        for habit, words in _WORDS.items():
            for found in words.finditer(line):
                near = line[max(0, found.start() - 40) : found.end() + 40].strip()
                yield Place(habit, path, first + number, near)


def places(root: Path) -> list[Place]:
    """Return every place in the checkout at ``root``."""
    found: list[Place] = []
    own = Path("scripts") / "prose.py"
    for folder in _FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            path = file.relative_to(root)
            if file.suffix == ".py" and path != own:
                found += places_in_python(str(path), file.read_text(encoding="utf-8"))
            elif file.suffix == ".md" and file.name not in _GENERATED:
                found += places_in_page(str(path), file.read_text(encoding="utf-8"))
    found += places_in_page("README.md", (root / "README.md").read_text(encoding="utf-8"))
    return found


def counts(found: list[Place]) -> dict[str, dict[str, int]]:
    """Count the places of each habit by top folder."""
    counted = Counter((place.path.split("/")[0], place.habit) for place in found)
    folders = sorted({folder for folder, _ in counted})
    return {folder: {habit: counted[folder, habit] for habit in HABITS} for folder in folders}


def more_than(allowed: Mapping[str, Mapping[str, int]], found: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Describe each habit of which a folder has more places than allowed."""
    return [
        f"{folder}: {number} places of '{habit}', {allowed.get(folder, {}).get(habit, 0)} allowed"
        for folder, numbers in found.items()
        for habit, number in numbers.items()
        if number > allowed.get(folder, {}).get(habit, 0)
    ]


def main(arguments: list[str]) -> int:
    """Run the command line above; 1 if there are new places."""
    found = places(_ROOT)
    if arguments[:1] == ["--list"]:
        for place in found:
            if place.path.startswith(tuple(arguments[1:]) or ""):
                sys.stdout.write(f"{place.path}:{place.line}: {place.habit}: {place.text}\n")
        return 0
    now = counts(found)
    if arguments == ["--write"]:
        lines = ["# Places of each habit that are left; see scripts/prose.py. They only go down.", ""]
        for folder, numbers in now.items():
            lines += [f'["{folder}"]', *(f'"{habit}" = {number}' for habit, number in numbers.items()), ""]
        _RECORD.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
        return 0
    problems = more_than(tomllib.loads(_RECORD.read_text(encoding="utf-8")), now)
    if problems:
        advice = "Rewrite the new sentences: `python -m scripts.prose --list FOLDER` prints every place."
        sys.stderr.write("\n".join([*problems, advice, ""]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
