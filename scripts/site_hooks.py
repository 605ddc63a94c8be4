"""What the documentation needs to be a site: its first page is the README, and links out of it lose their target.

Called by mkdocs (``mkdocs.yml``). The pages themselves are written for whoever reads them in the repository.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
_IMAGE = re.compile(r"(!\[[^\]]*\]\()docs/")
_OUTSIDE = ("http://", "https://", "#")


def on_files(files: Files, config: Any) -> Files:
    """Add the README as ``index.md``."""
    readme = Path(config.config_file_path).with_name("README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "index.md", content=_first_page(readme)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Leave only the text of a link to what is no page."""
    return _LINK.sub(lambda link: link[0] if _stays(link[2]) else link[1], markdown)


def _first_page(readme: str) -> str:
    return _LINK.sub(_from_the_root, _IMAGE.sub(r"\1", readme))


def _from_the_root(link: re.Match[str]) -> str:
    text, target = link.groups()
    if target.startswith(_OUTSIDE):
        return link[0]
    page = target.removeprefix("docs/")
    is_page = page != target and page.partition("#")[0].endswith(".md")
    return f"[{text}]({page})" if is_page else text


def _stays(target: str) -> bool:
    return target.startswith(_OUTSIDE) or target.partition("#")[0].endswith(".md")
