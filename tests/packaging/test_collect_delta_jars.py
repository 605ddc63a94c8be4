"""The Delta jars are taken whole or not at all."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from scripts import collect_delta_jars
from scripts.collect_delta_jars import NEEDED, collect
from tests.helpers.driver_process import REPO

CACHE = REPO / ".cache"


JARS = NEEDED["4.4.0"]


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jars whose content is their name."""
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in JARS}
    monkeypatch.setattr(collect_delta_jars, "NEEDED", {"4.4.0": digests})


def test_the_needed_jars_are_copied_and_no_others(tmp_path: Path) -> None:
    for name in (*JARS, "org.other_other-1.0.jar"):
        (tmp_path / name).write_text(name)

    collect("4.4.0", tmp_path, tmp_path / "jars")

    assert {path.name: path.read_text() for path in (tmp_path / "jars").iterdir()} == {
        name: name for name in JARS
    }


def test_a_missing_jar_is_named_and_nothing_is_made(tmp_path: Path) -> None:
    first, *others = JARS
    for name in others:
        (tmp_path / name).touch()

    with pytest.raises(SystemExit, match=first):
        collect("4.4.0", tmp_path, tmp_path / "jars")

    assert not (tmp_path / "jars").exists()


def test_a_jar_with_another_content_is_refused(tmp_path: Path) -> None:
    """As pip refuses a package whose hash is another."""
    for name in JARS:
        (tmp_path / name).write_text(name)
    changed = list(JARS)[2]
    (tmp_path / changed).write_text("changed")

    with pytest.raises(SystemExit, match=f"Ivy brought {changed} into .* another content"):
        collect("4.4.0", tmp_path, tmp_path / "jars")

    assert not (tmp_path / "jars").exists()


def test_the_jars_that_are_in_use_are_those_known() -> None:
    """Spark and Delta work with just these; other Sparks' are there after their first start."""
    found = {
        version: {
            jar.name: hashlib.sha256(jar.read_bytes()).hexdigest()
            for jar in (CACHE / f"delta-jars-{version}").iterdir()
        }
        for version in NEEDED
        if (CACHE / f"delta-jars-{version}").is_dir()
    }

    assert found
    assert found == {version: NEEDED[version] for version in found}
