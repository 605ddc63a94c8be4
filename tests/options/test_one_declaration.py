"""A consumer's settings are declared once: every other place takes default and bounds from there."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from pyspark_rocketmq.cli import options as cli_options
from pyspark_rocketmq.cli import settings as cli_settings
from pyspark_rocketmq.cli.demo import settings as demo_settings
from pyspark_rocketmq.consume import concurrent, orderly
from pyspark_rocketmq.consume.concurrent import ConcurrentSettings
from pyspark_rocketmq.consume.orderly import OrderlySettings
from pyspark_rocketmq.consumer import listener_trial, push_consumer, settings
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.options.consumer import CONSUMER_DEFAULTS, ConsumerOptions
from pyspark_rocketmq.options.declare import OptionSpec
from pyspark_rocketmq.options.read import READ_DEFAULTS, ReadOptions
from pyspark_rocketmq.options.write import WriteOptions

SPECS: dict[str, OptionSpec] = {
    field.name: field.metadata["spec"] for field in dataclasses.fields(ConsumerOptions)
}
BOUNDS = {name: spec.parse.bounds for name, spec in SPECS.items() if spec.parse.bounds is not None}
DECLARED = SPECS.keys() | {field.name for field in dataclasses.fields(ReadOptions)}
MODULES = (push_consumer, settings, listener_trial, orderly, concurrent)
ELSEWHERE = {("concurrent", "max_reconsume_times", "DEFAULT_MAX_RECONSUME_TIMES")}
"""Defaults of another name: Java's concurrent consumer has a limit of its own."""


def tree_of(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def defaults_in(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Names of arguments and fields of settings, with the source of their defaults."""
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.FunctionDef):
            for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
                if default is not None:
                    yield argument.arg, ast.unparse(default)
        elif isinstance(node, ast.ClassDef) and node.name.endswith("Settings"):
            for field in node.body:
                value = field.value if isinstance(field, ast.AnnAssign) else None
                # field(repr=False) has no default.
                if isinstance(field, ast.AnnAssign) and value is not None and not isinstance(value, ast.Call):
                    yield ast.unparse(field.target), ast.unparse(value)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_no_default_of_a_setting_is_written_a_second_time(module: ModuleType) -> None:
    name_of_module = module.__name__.rpartition(".")[2]
    found = {(name_of_module, name, default) for name, default in defaults_in(module) if name in DECLARED}
    derived = {
        (name_of_module, name, f"{declaration}.{name}")
        for _, name, _ in found
        for declaration in ("CONSUMER_DEFAULTS", "READ_DEFAULTS")
    }

    assert found - derived <= ELSEWHERE


def test_defaults_are_those_of_the_declaration() -> None:
    arguments = inspect.signature(PushConsumer).parameters
    for name, argument in arguments.items():
        if argument.default is not argument.empty and name != "options":
            declared = CONSUMER_DEFAULTS if name in SPECS else READ_DEFAULTS
            assert argument.default == getattr(declared, name), name
    assert arguments.keys() - DECLARED == {"options"}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_no_bound_of_a_setting_is_written_a_second_time(module: ModuleType) -> None:
    written = {
        constant.value
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Compare)
        or (isinstance(node, ast.Call) and ast.unparse(node.func) in {"min", "max"})
        for constant in ast.walk(node)
        if isinstance(constant, ast.Constant) and isinstance(constant.value, int)
    }

    assert written.isdisjoint({bound for bounds in BOUNDS.values() for bound in bounds} - {1, -1})


@pytest.mark.parametrize("name", ["consume_message_batch_max_size", "consume_thread_max"])
def test_arguments_and_engines_refuse_what_the_declaration_refuses(name: str) -> None:
    low, high = BOUNDS[name]
    for value in (low - 1, high + 1):
        consumer = PushConsumer(
            consumer_group="g",
            name_servers="a:1",
            offset_store=DeltaOffsetStore("unused"),
            **{name: value},  # type: ignore[arg-type]
        )
        with pytest.raises(OptionError, match=f"{name}={value} is not between {low} and {high}"):
            consumer.source_options()
        for engine in (OrderlySettings, ConcurrentSettings):
            with pytest.raises(ValueError, match=f"must be from {low} to {high}, not {value}"):
                engine(**{name: value})  # type: ignore[arg-type]
    for value in (low, high):
        assert getattr(OrderlySettings(**{name: value}), name) == value


def test_the_documentation_of_the_arguments_has_the_declared_bounds() -> None:
    documented = re.findall(
        r"^ {4}(\w+): (.*?)(?=^ {4}\w|\Z)", inspect.getdoc(PushConsumer) or "", re.MULTILINE | re.DOTALL
    )
    assert dict(documented).keys() >= SPECS.keys()

    shown = {name: re.search(r"(\d+)\.\.(\d+)", text) for name, text in documented}
    found = {name: (int(each[1]), int(each[2])) for name, each in shown.items() if each is not None}

    assert found == {name: BOUNDS[name] for name in found}
    assert len(found) == 3


@pytest.mark.parametrize("module", [cli_options, cli_settings, demo_settings])
def test_a_command_writes_a_default_only_where_it_has_another(module: ModuleType) -> None:
    declaring: dict[str, Any] = {
        "like_source": ReadOptions,
        "like_writer": WriteOptions,
        "like_consumer": ConsumerOptions,
    }
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in declaring:
            given = {each.arg: each.value for each in node.keywords}
            if "default" in given:
                name = ast.literal_eval(node.args[0])
                fields = {each.name: each for each in dataclasses.fields(declaring[ast.unparse(node.func)])}
                default = eval(ast.unparse(given["default"]), vars(module))
                is_same = default == fields[name].default and type(default) is type(fields[name].default)
                assert fields[name].metadata["spec"].required or not is_same, name
