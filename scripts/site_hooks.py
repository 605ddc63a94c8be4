"""Makes a site of the documentation: the README becomes its first page; links out of it lose their target.

Called by mkdocs (``mkdocs.yml``). The pages themselves are written for readers of the repository.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
_IMAGE = re.compile(r"(!\[[^\]]*\]\()docs/")
_PATH = re.compile(r"<code>[\w.]+(?:/[\w.]+)+</code>")
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_ROW = re.compile(r"<tr>\n(.*?)</tr>", re.DOTALL)
_CELL = re.compile(r"<td>")
_HEADING = re.compile(r"<th>(.*?)</th>")
_NAME = re.compile(r"<td><code>(\w+)</code></td>")
_REFERENCES = {"options.md": "options", "errors.md": "errors"}
"""Pages with a row for each name, to which readers link; docs/stylesheets/site.css lays them out by class."""
_LONG_CONTENTS = "api.md"
_OUTSIDE = ("http://", "https://", "#")


def on_files(files: Files, config: Any) -> Files:
    """Add the README as ``index.md``."""
    readme = Path(config.config_file_path).with_name("README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "index.md", content=_first_page(readme)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace each link to a file that is no page by the link's text."""
    return _LINK.sub(lambda link: link[0] if _stays(link[2]) else _without_target(*link.groups()), markdown)


def _without_target(text: str, target: str) -> str:
    is_name = "tests/" in target and " " not in text
    return f'<span class="test">{text}</span>' if is_name else text


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Give each option and error an anchor, and let lines break within paths of files.

    The contents of the Python API list only its classes.
    """
    if page.file.src_uri == _LONG_CONTENTS:
        for section in page.toc.items:
            for described in section.children:
                described.children = []
    html = _PATH.sub(lambda path: path[0].replace("/", "/<wbr>").replace("</<wbr>", "</"), html)
    if page.file.src_uri not in _REFERENCES:
        return html
    style = _REFERENCES[page.file.src_uri]
    return _TABLE.sub(lambda table: _with_anchors(table[0], style), html)


def _with_anchors(table: str, style: str) -> str:
    headings = _HEADING.findall(table)
    rows = _ROW.sub(lambda row: _with_anchor(row[1], headings), table)
    return rows.replace("<table>", f'<table class="reference {style}">')


def _with_anchor(row: str, headings: list[str]) -> str:
    named = _NAME.search(row)
    if named is None:
        return f"<tr>\n{row}</tr>"
    name = named[1]
    cells = iter(headings)
    row = _CELL.sub(lambda _: f'<td data-heading="{next(cells)}">', row)
    link = f'<a href="#{name}"><code>{name}</code></a>'
    return f'<tr id="{name}">\n{row.replace(f"<code>{name}</code>", link, 1)}</tr>'


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
