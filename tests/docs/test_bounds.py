"""The documentation stays short, names modules that are there, and draws with pictures."""

from __future__ import annotations

import ast
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from scripts.figures import figures
from tests.docs.pages import ROOT, pages

DOCS = ROOT / "docs"
PACKAGE = ROOT / "connector" / "pyspark_rocketmq"
_MODULE = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.py)`")
_NAMED_IN = re.compile(r"((?:`[A-Za-z_.]+`(?:, )?)+) \(`((?:[a-z_]+/)+[a-z_]+\.py)`")
"""Names before the module that defines them, as in: `Part.from_facts` (`consume/part.py`)."""
_OF_A_CLASS = re.compile(r"`([A-Z][A-Za-z]+|_[A-Z][A-Za-z]+)\.([a-z_]+)`")
_BOX = re.compile(r"[\u2500-\u257f]")


@pytest.mark.parametrize("name", ["words of hand-written documentation", "terms in the glossary"])
def test_the_pages_written_by_hand_are_short_enough_to_be_read(name: str) -> None:
    (figure,) = (each for each in figures(ROOT) if each.name == name)

    assert figure.wanted is not None
    assert 0 < figure.value <= figure.wanted


def test_every_term_of_the_glossary_has_an_origin() -> None:
    rows = re.findall(
        r"^\| \*\*(.+)\*\* \| (.+) \| (.+) \|$", (DOCS / "glossary.md").read_text(), re.MULTILINE
    )

    assert rows
    assert [
        term for term, _, origin in rows if not re.match(r"RocketMQ|Kafka|Spark|Delta|ours: ", origin)
    ] == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_draws_boxes_with_characters(page: Path) -> None:
    assert _BOX.findall(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", [*pages()[:2], *DOCS.rglob("*.md")], ids=lambda page: page.name)
def test_every_module_that_a_page_names_is_there(page: Path) -> None:
    named = set(_MODULE.findall(page.read_text(encoding="utf-8")))

    missing = [name for name in sorted(named) if not any((root / name).exists() for root in (PACKAGE, ROOT))]
    assert missing == []


def test_every_name_in_the_architecture_is_defined_where_the_page_says() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    found = _NAMED_IN.findall(text)
    everywhere = {name for path in PACKAGE.rglob("*.py") for name in defined_in(path)}

    assert found
    assert [
        (name, module)
        for names, module in found
        for name in re.findall(r"[A-Za-z_.]+", names)
        if name not in defined_in(PACKAGE / module)
    ] == []
    assert {f"{cls}.{name}" for cls, name in _OF_A_CLASS.findall(text)} <= everywhere


def defined_in(path: Path) -> set[str]:
    """Return the module's functions, classes, methods and attributes; members also as ``Class.member``."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    members = {(cls.name, name) for cls in classes for name in _members(cls)}
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return functions | {cls.name for cls in classes} | {f"{cls}.{name}" for cls, name in members}


def _members(cls: ast.ClassDef) -> set[str]:
    methods = {node.name for node in cls.body if isinstance(node, ast.FunctionDef)}
    attributes = {
        node.attr
        for node in ast.walk(cls)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    return methods | attributes


@pytest.mark.parametrize("picture", sorted((DOCS / "images").glob("*.svg")), ids=lambda path: path.name)
def test_every_picture_fits_a_phone_and_says_what_it_shows(picture: Path) -> None:
    space = "{http://www.w3.org/2000/svg}"
    root = ET.parse(picture).getroot()

    assert float(root.attrib["viewBox"].split()[2]) <= 420
    assert root.findtext(f"{space}title")
    assert root.findtext(f"{space}desc")


def test_the_picture_of_a_message_s_path_has_the_stations_of_the_page() -> None:
    told = re.findall(r"^\| (\d+) \| `([\w/]+\.py)`", (DOCS / "architecture.md").read_text(), re.MULTILINE)
    texts = [
        text
        for element in ET.parse(DOCS / "images" / "path.svg").iter("{http://www.w3.org/2000/svg}text")
        if (text := element.text) is not None
    ]
    drawn = [(texts[at - 1], text) for at, text in enumerate(texts) if text.endswith(".py")]

    assert len(told) == 20
    assert told == drawn


def test_the_index_of_helpers_names_each_module_once() -> None:
    helpers = ROOT / "tests" / "helpers"
    named = re.findall(r"^\| `(\w+)` \|", (helpers / "README.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert named == sorted(path.stem for path in helpers.glob("*.py"))
