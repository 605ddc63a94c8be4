"""The Delta jars are taken whole or not at all."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from scripts import collect_delta_jars
from scripts.collect_delta_jars import NEEDED, collect
from tests.helpers.driver_process import REPO

JARS = REPO / ".cache" / "delta-jars-4.4.0"


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jars whose content is their name."""
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in NEEDED}
    monkeypatch.setattr(collect_delta_jars, "NEEDED", digests)


def test_the_needed_jars_are_copied_and_no_others(tmp_path: Path) -> None:
    for name in (*NEEDED, "org.other_other-1.0.jar"):
        (tmp_path / name).write_text(name)

    collect(tmp_path, tmp_path / "jars")

    assert {path.name: path.read_text() for path in (tmp_path / "jars").iterdir()} == {
        name: name for name in NEEDED
    }


def test_a_missing_jar_is_named_and_nothing_is_made(tmp_path: Path) -> None:
    first, *others = NEEDED
    for name in others:
        (tmp_path / name).touch()

    with pytest.raises(SystemExit, match=first):
        collect(tmp_path, tmp_path / "jars")

    assert not (tmp_path / "jars").exists()


def test_a_jar_with_another_content_is_refused(tmp_path: Path) -> None:
    """As pip refuses a package whose hash is another."""
    for name in NEEDED:
        (tmp_path / name).write_text(name)
    changed = list(NEEDED)[2]
    (tmp_path / changed).write_text("changed")

    with pytest.raises(SystemExit, match=f"Ivy brought {changed} into .* another content"):
        collect(tmp_path, tmp_path / "jars")

    assert not (tmp_path / "jars").exists()


@pytest.mark.skipif(not JARS.is_dir(), reason="the first start with Java brings them")
def test_the_jars_that_are_in_use_are_those_known() -> None:
    """Spark and Delta work with just these."""
    assert {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in JARS.iterdir()} == NEEDED
