"""The documentation as a site: what its hooks add to pages, and how a browser lays them out."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pyspark_rocketmq.options.declare import specs_of
from pyspark_rocketmq.options.read import ReadOptions
from scripts.site_hooks import on_page_content, on_page_markdown
from tests.docs.pages import ROOT
from tests.helpers.browser import Browser, browser

__all__ = ["browser"]

TABLE = """<h2>Reading</h2>
<table>
<thead>
<tr>
<th>option</th>
<th>type</th>
<th>meaning</th>
</tr>
</thead>
<tbody>
<tr>
<td><code>topic</code></td>
<td>string</td>
<td>The <code>topic</code>.</td>
</tr>
</tbody>
</table>"""
PAGES = ("options.html", "errors.html", "answers.html", "api.html")
MEASURE = r"""
<script>
addEventListener("load", () => {
  const named = "tr[id] td:first-child code, .doc-heading > code, .doc-section-item > b > code";
  const names = [...document.querySelectorAll(named)].filter(name => name.textContent.match(/^\w+$/));
  const broken = names.filter(name => name.getClientRects().length > 1).map(name => name.textContent);
  const article = document.querySelector("article").getBoundingClientRect();
  // A phone has no room for some tables, which scroll there.
  const mayScroll = innerWidth < 720 ? ":not(.md-typeset__table *)" : "";
  const wide = [...document.querySelectorAll(`article :is(table, ul, h2, h3)${mayScroll}`)].filter(
    block => block.getBoundingClientRect().right > article.right + 1).map(block => block.textContent.trim());
  document.body.dataset.measured = `${names.length} names, broken: ${broken}, too wide: ${wide}`;
});
</script>
"""


def page(name: str, sections: int = 0) -> SimpleNamespace:
    described = [SimpleNamespace(children=["a method"]) for _ in range(sections)]
    toc = SimpleNamespace(items=[SimpleNamespace(children=described)])
    return SimpleNamespace(file=SimpleNamespace(src_uri=name), toc=toc)


def test_each_option_can_be_linked_to() -> None:
    html = on_page_content(TABLE, page=page("options.md"))

    assert '<table class="reference options">' in html
    assert '<tr id="topic">' in html
    assert '<td data-heading="option"><a href="#topic"><code>topic</code></a></td>' in html
    assert '<td data-heading="type">string</td>' in html
    assert '<td data-heading="meaning">The <code>topic</code>.</td>' in html
    assert html.count("<tr>") == 1, "that of the headings stays as it is"


def test_other_pages_stay_as_they_are() -> None:
    assert on_page_content(TABLE, page=page("columns.md")) == TABLE


def test_a_path_may_break_behind_its_folders() -> None:
    html = "<code>source/planner.py</code> <code>a / b</code> <code>topic</code>"

    assert on_page_content(html, page=page("semantics.md")) == html.replace("source/", "source/<wbr>")


def test_a_link_to_what_is_no_page_leaves_its_text() -> None:
    markdown = "[a page](sinks.md#x), [the suite](../tests/x.py), [test_one_thing](../tests/y.py)"

    shown = on_page_markdown(markdown)

    assert shown == '[a page](sinks.md#x), the suite, <span class="test">test_one_thing</span>'


def test_the_contents_of_the_python_api_are_its_classes() -> None:
    api = page("api.md", sections=2)

    on_page_content("", page=api)

    assert [each.children for each in api.toc.items[0].children] == [[], []]


@pytest.mark.long
def test_names_stay_whole_in_a_browser_and_no_table_is_wider_than_the_page(
    browser: Browser, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(site)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        check=True,
        timeout=240,
    )
    found = {}
    for name, width in itertools.product(PAGES, (400, 1280, 1920)):
        # Chromium's windows are at least 500 pixels wide, where pages are laid out as at 400.
        narrow = f"<style>html {{ width: {width}px }}</style>" if width < 500 else ""
        text = (site / name).read_text(encoding="utf-8")
        measured_page = site / f"{width} {name}"
        measured_page.write_text(text.replace("</head>", f"{narrow}{MEASURE}</head>"), encoding="utf-8")
        shown = browser.document(measured_page, tmp_path / "shown.png", width=width)
        measured = re.search(r'data-measured="(\d+) names, broken: (.*?), too wide: (.*?)"', shown, re.DOTALL)
        assert measured is not None
        found[name, width] = measured.groups()

    assert {place: rest for place, (_, *rest) in found.items() if rest != ["", ""]} == {}
    assert int(found["options.html", 400][0]) > len(specs_of(ReadOptions))
    assert int(found["api.html", 400][0]) > 100
