from __future__ import annotations

from pathlib import Path

import pytest

from tests.packaging.python_check import pythons, requirements


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
