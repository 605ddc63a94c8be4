from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import create_autospec

import pytest

from tests.packaging import python_check
from tests.packaging.python_check import Trial, named, pythons, requirements, tried

_MINOR = sys.version_info[1]


def test_what_the_wheel_needs_is_read_without_its_extras(wheel: Path) -> None:
    """Row J4"""
    needed = requirements(wheel)

    assert any(each.startswith("deltalake<2,>=") for each in needed)
    assert not any(each.startswith(("pyspark", "delta-spark", "pytest")) for each in needed)


@pytest.mark.parametrize("answer", ["13", "12"])
def test_a_command_that_is_another_python_than_its_name_says_is_passed_over(
    answer: str, tmp_path: Path
) -> None:
    """Row J4: as pyenv's are for a version that is not chosen."""
    named = tmp_path / "python3.13"
    named.write_text(f"#!/bin/sh\necho {answer}\n")
    named.chmod(0o755)

    assert pythons(str(tmp_path), tmp_path) == ({13: named} if answer == "13" else {})


@pytest.mark.parametrize("ci", ["", "true"])
@pytest.mark.parametrize("found", [set(), {_MINOR}, {_MINOR + 1}])
def test_a_check_without_this_python_or_in_ci_the_newest_fails(
    ci: str, found: set[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Row J4: it would show nothing of them, and pass."""
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(python_check, "_NEWEST", _MINOR + 1)
    monkeypatch.setattr(python_check, "pythons", lambda *_: dict.fromkeys(found, tmp_path))
    monkeypatch.setattr(python_check, "Trial", create_autospec(Trial))
    lacking = {_MINOR, *([_MINOR + 1] if ci else [])} - found

    with pytest.raises(SystemExit, match=f"Python {named(lacking)}. Install") if lacking else nullcontext():
        list(tried(tmp_path, tmp_path))


@pytest.mark.parametrize(
    ("only_ends", "expected"),
    [
        (False, ["3.11 low", "3.11 high", "3.12 low", "3.12 high", "3.13 low", "3.13 high"]),
        (True, ["3.11 low", "3.13 high"]),
    ],
)
def test_the_ends_are_the_lowest_of_the_oldest_and_the_newest_of_the_newest(
    only_ends: bool, expected: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Row J4"""
    seen: list[str] = []
    trial = create_autospec(Trial)
    trial.return_value.tests.side_effect = lambda minor, _, packages: seen.append(
        f"3.{minor} {packages.removesuffix('est-direct').removesuffix('est')}"
    )
    monkeypatch.setattr(python_check, "pythons", lambda *_: dict.fromkeys((11, 12, 13), tmp_path))
    monkeypatch.setattr(python_check, "Trial", trial)

    list(tried(tmp_path, tmp_path, only_ends=only_ends))

    assert seen == expected
