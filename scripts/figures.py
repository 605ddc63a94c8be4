"""Print figures of the project's size, each with its upper limit: ``figures.py [ROOT]``."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

_LINE = 110
_SMALL = 60
_WORD = re.compile(r"\S*\w\S*")
_GENERATED = ("options.md", "errors.md", "answers.md", "semantics.md", "benchmarks.md", "change-facts.md")
_REPORTS = "upstream"
"""Folder of reports for other projects: users need not read them."""
_LOCK = re.compile(r"\b(?:Lock|RLock|Condition|Semaphore)\(\)")
_STATION = re.compile(r"^\| \d+ \| `", re.MULTILINE)
_TERM = re.compile(r"^(?:\*\*|### |\| \*\*)", re.MULTILINE)


class Figure(NamedTuple):
    """One line of what is printed."""

    name: str
    value: float
    wanted: float | None
    """Upper limit; None if there is no limit, but fewer are better."""
    detail: str = ""


def figures(root: Path) -> list[Figure]:
    """Measure the checkout at ``root``."""
    connector = _modules(root / "connector")
    texts = {path: text for path, text in connector.items() if path.name != "__init__.py"}
    folders = Counter(path.parent.relative_to(root / "connector").as_posix() for path in texts)
    largest, modules = folders.most_common(1)[0]
    small = [path for path, text in texts.items() if len(text.splitlines()) < _SMALL]
    locks = sorted(path.stem for path, text in texts.items() if _LOCK.search(text))
    lines = _lines(connector)
    packages = [connector, *(_modules(root / name) for name in ("broker_sim",))]
    long = sum(len(line) > _LINE for part in packages for text in part.values() for line in text.splitlines())
    pages = [
        page
        for page in root.glob("docs/**/*.md")
        if page.name not in _GENERATED and page.parent.name != _REPORTS
    ]
    found = [
        Figure("modules in the connector", len(texts), 150),
        Figure("modules in the largest folder", modules, 15, largest),
        Figure(f"modules under {_SMALL} lines", len(small), 10, ", ".join(path.stem for path in small)),
        Figure(f"lines over {_LINE} characters", long, 0, "connector, broker_sim"),
        Figure("modules with locks", len(locks), None, ", ".join(locks)),
        Figure("lines of the connector", lines, 34_600),
        Figure("lines of tests to a line of it", round(_lines(_modules(root / "tests")) / lines, 2), None),
        Figure("words of hand-written documentation", sum(map(words, pages)), 50_000, "docs"),
    ]
    architecture = root / "docs" / "architecture.md"
    if architecture.is_file():
        stations = len(_STATION.findall(architecture.read_text()))
        found.append(Figure("modules on a message's path", stations, 20, "docs/architecture.md"))
    glossary = root / "docs" / "glossary.md"
    if glossary.is_file():
        found.append(Figure("terms in the glossary", len(_TERM.findall(glossary.read_text())), 40))
    return found


def words(page: Path) -> int:
    """Return the number of words of a page, without the signs that only draw tables and lists."""
    return len(_WORD.findall(page.read_text(encoding="utf-8")))


def _modules(folder: Path) -> dict[Path, str]:
    return {path: path.read_text() for path in sorted(folder.rglob("*.py"))}


def _lines(modules: dict[Path, str]) -> int:
    return sum(len(text.splitlines()) for text in modules.values())


def main() -> None:
    """Print the figures as a table."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]
    print(f"{'':36} {'now':>8} {'at most':>8}")  # noqa: T201
    for name, value, wanted, detail in figures(root):
        limit = "fewer" if wanted is None else f"{wanted:,}"
        print(f"{name:36} {value:>8,} {limit:>8}  {detail}".rstrip())  # noqa: T201


if __name__ == "__main__":
    main()
