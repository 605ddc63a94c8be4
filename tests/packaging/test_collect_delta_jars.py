"""The Delta jars are taken whole or not at all."""

from __future__ import annotations

import pytest

from scripts.collect_delta_jars import NEEDED, collect


def test_the_needed_jars_are_copied_and_no_others(tmp_path):
    for name in (*NEEDED, "org.other_other-1.0.jar"):
        (tmp_path / name).write_text(name)

    collect(tmp_path, tmp_path / "jars")

    assert {path.name: path.read_text() for path in (tmp_path / "jars").iterdir()} == {
        name: name for name in NEEDED
    }


def test_a_missing_jar_is_named_and_nothing_is_made(tmp_path):
    for name in NEEDED[1:]:
        (tmp_path / name).touch()

    with pytest.raises(SystemExit, match=NEEDED[0]):
        collect(tmp_path, tmp_path / "jars")

    assert not (tmp_path / "jars").exists()
