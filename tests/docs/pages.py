"""The pages that users read, taken apart."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str


def pages() -> list[Path]:
    """Return README.md, CONTRIBUTING.md, CHANGELOG.md and everything below docs/."""
    return [
        *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")),
        *sorted((ROOT / "docs").rglob("*.md")),
    ]


def blocks(language: str) -> list[Block]:
    """The blocks of one language in all pages."""
    found_blocks = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for found in _FENCE.finditer(text):
            if found[2] == language:
                line = text.count("\n", 0, found.start()) + 1
                found_blocks.append(Block(str(page.relative_to(ROOT)), line, language, found[3]))
    return found_blocks


def links(page: Path) -> list[str]:
    """Targets of a page's links to files and headings of the repository."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    return [target for target in _LINK.findall(text) if "://" not in target]


def anchors(page: Path) -> set[str]:
    """What headings of a page can be linked by."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    return {_anchor(heading) for heading in _HEADING.findall(text)}


def _anchor(heading: str) -> str:
    words = _LINK.sub(lambda link: link[0][1 : link[0].index("]")], heading).replace("`", "")
    return _NOT_IN_ANCHORS.sub("", words.strip().lower()).replace(" ", "-")
