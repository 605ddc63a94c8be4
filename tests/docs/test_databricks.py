"""The bundle, the example and the page for Databricks agree with each other, and nothing in them is refused."""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml  # type: ignore[import-untyped]

import pyspark_rocketmq as rmq
from examples import consumer_on_databricks
from pyspark_rocketmq.consumer.settings import start_problems
from pyspark_rocketmq.delta.paths import TableName, local_path
from pyspark_rocketmq.delta.storage_options import _FROM_ENVIRONMENT
from tests.docs.pages import ROOT, blocks

CONF = ROOT / "conf"
PAGE = "docs/how-to/databricks.md"
KEYS = {"azure_storage_account_key": "a2V5"}


def bundle() -> Any:
    return yaml.safe_load((CONF / "databricks.yml").read_text(encoding="utf-8"))


def task() -> Any:
    (only,) = bundle()["resources"]["jobs"]["order_etl"]["tasks"]
    return only


def values() -> dict[str, str]:
    """The bundle's variables: defaults, and what the page has its reader set."""
    (shell,) = (block.text for block in blocks("bash") if block.page == PAGE)
    given = dict(re.findall(r"BUNDLE_VAR_(\w+)=(\S+)", shell))
    variables: dict[str, dict[str, str]] = bundle()["variables"]
    assert given.keys() == {name for name, each in variables.items() if "default" not in each}
    return given | {name: each["default"] for name, each in variables.items() if "default" in each}


def test_the_bundle_gives_the_example_its_arguments_in_its_order() -> None:
    parameters = task()["spark_python_task"]["parameters"]

    names = list(inspect.signature(consumer_on_databricks.main).parameters)
    assert parameters == [f"${{var.{name}}}" for name in names]
    assert values().keys() == set(names)
    usage = (consumer_on_databricks.__doc__ or "").splitlines()[2].split()
    assert usage == ["consumer_on_databricks.py", *map(str.upper, names)]


def test_the_bundle_s_files_are_there_and_within_what_is_uploaded() -> None:
    program = (CONF / task()["spark_python_task"]["python_file"]).resolve()
    uploaded = [(CONF / path).resolve() for path in bundle()["sync"]["paths"]]

    assert program == Path(consumer_on_databricks.__file__).resolve()
    assert any(program.is_relative_to(folder) for folder in uploaded)
    assert (CONF / bundle()["artifacts"]["wheel"]["path"] / "pyproject.toml").is_file()


def test_the_example_is_not_refused_with_the_bundle_s_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made as on Databricks, but its query is not started."""
    started: dict[str, Any] = {}

    def start(_: rmq.PushConsumer, __: object, **given: Any) -> MagicMock:
        started.update(given)
        return MagicMock()

    secrets = MagicMock()
    secrets.secrets.get.return_value = json.dumps(KEYS)
    runtime = ModuleType("databricks.sdk.runtime")
    monkeypatch.setattr(runtime, "dbutils", secrets, raising=False)
    for name in ("databricks", "databricks.sdk"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "databricks.sdk.runtime", runtime)
    store = MagicMock(wraps=rmq.DeltaOffsetStore)
    monkeypatch.setattr(rmq, "DeltaOffsetStore", store)
    monkeypatch.setattr(rmq.PushConsumer, "start", start)
    monkeypatch.setattr(consumer_on_databricks, "SparkSession", MagicMock())

    consumer_on_databricks.main(**values())

    secrets.secrets.get.assert_called_once_with(values()["secret_scope"], "storage")
    assert start_problems(**started) == []
    assert TableName.is_name(started["sink"].path), "Spark writes it, without keys of ours"
    ((offsets,), given) = store.call_args
    assert given == {"storage_options": KEYS}
    for place in (offsets, started["checkpoint"]):
        assert local_path(place) is None, "a volume is refused"


def test_the_coordinates_of_delta_lake_are_those_that_are_tested() -> None:
    """Which jars a Spark needs, as scripts/bootstrap.sh has it."""
    page = (ROOT / "docs" / "platforms.md").read_text(encoding="utf-8")

    for spark in ("4.0", "4.1", "4.2"):
        lock = "runtime" if spark == "4.2" else f"spark-{spark}"
        locked = (ROOT / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
        found = re.search(r"^delta-spark==([\d.]+)", locked, re.MULTILINE)
        assert found
        suffix = "" if spark == "4.0" else f"_{spark}"
        assert f"`delta-spark{suffix}_2.13:{found[1]}`" in page


def test_the_page_of_options_lists_the_variables_of_the_driver_that_count() -> None:
    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")

    told = set(re.findall(r"`((?:AWS|AZURE|GOOGLE)_\w+)`", page))
    assert told == {name for names in _FROM_ENVIRONMENT.values() for name in names}
