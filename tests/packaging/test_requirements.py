"""Packages that are too old are refused in a sentence, before they fail with an error of their own."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest

from pyspark_rocketmq import requirements
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.format import register
from tests.docs.pages import ROOT


def test_the_packages_that_are_checked_are_those_the_wheel_names() -> None:
    """Without those of the command line, which sessions and workers do not load."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    of_the_command_line = {"click", "rich"}

    assert list(requirements.REQUIREMENTS) == [
        each for each in project["dependencies"] if each.partition(">=")[0] not in of_the_command_line
    ]


@pytest.mark.parametrize(
    ("package", "version", "is_old"),
    [
        ("pyarrow", "17.0.0", True),
        ("pyarrow", "19.0.1", True),
        ("pyarrow", "20", False),
        ("pyarrow", "20.0.0", False),
        ("pyarrow", "100.1", False),
        ("deltalake", "1.6.5", True),
        ("deltalake", "1.6", True),
        ("deltalake", "1.6.6", False),
        ("deltalake", "1.10.0", False),
        ("numpy", "1.9.2", True),
        ("pandas", "2.2.0rc1", False),
        ("pandas", "1.5.3+local", True),
        ("lz4", "4.3.2", False),
    ],
)
def test_versions_are_compared_number_by_number(package: str, version: str, is_old: bool) -> None:
    found = requirements.outdated(lambda name: version if name == package else None)

    assert [needed.partition(">=")[0] for needed in found] == ([package] if is_old else [])


def test_packages_of_this_environment_are_new_enough() -> None:
    requirements.check_packages()


def test_register_names_every_package_that_is_too_old_and_what_to_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else pyarrow 17 fails at the first batch: no cast from string_view to utf8."""
    there = {"pyarrow": "17.0.0", "pandas": "1.5.3", "numpy": "1.26.4"}

    def version(name: str) -> str:
        if name not in there:
            raise PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(requirements, "version", version)
    session: Any = object()

    with pytest.raises(
        RocketMQError,
        match=r"needs newer packages than pandas 1\.5\.3, pyarrow 17\.0\.0\. "
        r"Run .*python\S* -m pip install 'pandas>=2\.2,<4' 'pyarrow>=20'",
    ):
        register(session)
