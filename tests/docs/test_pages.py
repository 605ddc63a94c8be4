"""What the pages say to be there is there: files, headings, names, options, columns, errors."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from pathlib import Path
from typing import get_args, get_type_hints

import click
import pytest

import pyspark_rocketmq
from pyspark_rocketmq import errors
from pyspark_rocketmq.cli.main import cli
from pyspark_rocketmq.cli.parts import SettingsCommand
from pyspark_rocketmq.options.declare import specs_of
from pyspark_rocketmq.source.schema import spark_schema
from tests.docs.pages import ROOT, Block, anchors, blocks, links, pages


def named(block: Block) -> str:
    return f"{block.page}:{block.line}"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    lost = []
    for target in links(page):
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors(there)):
            lost.append(target)
    assert not lost


@pytest.mark.parametrize("block", blocks("python"), ids=named)
def test_python_in_the_pages_is_python_that_names_what_is_there(block: Block) -> None:
    tree = ast.parse(block.text)
    missing = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("pyspark_rocketmq"):
            module = __import__(node.module, fromlist=["_"])
            missing += [alias.name for alias in node.names if not hasattr(module, alias.name)]
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "rmq":
            missing += [] if hasattr(pyspark_rocketmq, node.attr) else [node.attr]
    assert not missing


@pytest.mark.parametrize("block", blocks("python"), ids=named)
def test_calls_on_the_pages_use_existing_parameters(block: Block) -> None:
    wrong = []
    for node in ast.walk(ast.parse(block.text)):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Attribute(ast.Name("rmq"), name):
                called = getattr(pyspark_rocketmq, name)
            case ast.Attribute(ast.Name("consumer"), name):
                called = getattr(pyspark_rocketmq.PushConsumer, name)
            case _:
                continue
        known = _parameters(called)
        wrong += [
            f"{name}({each.arg}=)" for each in node.keywords if each.arg is not None and each.arg not in known
        ]
    assert not wrong


def _parameters(called: object) -> set[str]:
    """Return the names of parameters, and those of the keywords that ``**options`` takes."""
    parameters = inspect.signature(called).parameters  # type: ignore[arg-type]
    names = set(parameters)
    hints = get_type_hints(called.__init__ if inspect.isclass(called) else called)
    for parameter in parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            for unpacked in get_args(hints.get(parameter.name)):
                names |= get_type_hints(unpacked).keys()
    return names


JOB_CALL = re.compile(r"(?:\./spark-submit\.sh|pyspark-rocketmq) ((?:\\\n|[^\n])*)")


def job_calls() -> list[tuple[str, list[str]]]:
    return [
        (f"{named(block)} {call[:40]}", shlex.split(call.replace("\\\n", " "), comments=True))
        for block in blocks("bash")
        for call in JOB_CALL.findall(block.text)
    ]


@pytest.mark.parametrize("words", [pytest.param(words, id=name) for name, words in job_calls()])
def test_jobs_in_the_pages_exist_and_have_the_options(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    command: click.Command = cli
    while isinstance(command, click.Group):
        command, words = command.commands[words[0]], words[1:]
    if "--help" in words:
        return
    given = command.make_context("job", words).params.get("pairs", ())
    known = (
        {spec.key.lower() for spec in specs_of(command.settings)}
        if isinstance(command, SettingsCommand)
        else set()
    )
    assert {pair.partition("=")[0].lower() for pair in given if "=" in pair} <= known


def test_the_page_of_columns_has_those_of_the_source() -> None:
    text = (ROOT / "docs/columns.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, re.MULTILINE)
    schema = spark_schema(consumer_mode=False)
    assert told == [(field.name, field.dataType.simpleString()) for field in schema]


def test_the_page_of_errors_has_all_of_them_and_says_which_are_tried_again() -> None:
    text = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `(\w+)` \| (yes|later|no) \|", text, re.MULTILINE))
    # The head of the page describes the one; the other is never raised.
    parents = {errors.RocketMQError, errors.WireError}
    raised = {path for path in (ROOT / "connector").rglob("*.py") if "WireError(" in path.read_text()}
    assert {path.name for path in raised} <= {"errors.py"}
    known = {
        cls.__name__: "yes" if cls.retryable else "later" if cls.passes_later else "no"
        for cls in _errors()
        if cls not in parents
    }
    assert told == known


def _errors() -> list[type[errors.RocketMQError]]:
    return [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.RocketMQError)
    ]
