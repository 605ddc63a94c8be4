"""The plot of growing tables says which commits it compares, and at which sizes they were measured."""

from __future__ import annotations

import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

from bench.growth import Point, commit_of, drawn
from bench.measure import Spread

_SIZES = {
    "commits": (10, 1_000, 10_000, 100_000),
    "files": (10, 1_000, 10_000, 200_000),
    "queues": (8, 64, 256, 1_024),
}


def _points() -> list[Point]:
    return [
        Point(axis, size, tree, Spread.of([factor * (100.0 + size / 100)]))
        for axis, sizes in _SIZES.items()
        for size in sizes
        for tree, factor in (("before", 2.0), ("now", 1.0))
    ]


def test_a_commit_is_shown_by_hash_and_subject_and_by_what_differs_from_it(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    (tmp_path / "file").write_text("one")
    git("add", ".")
    git("commit", "-m", "Begin the table")
    git("tag", "first")
    known = git("rev-parse", "--short", "HEAD")

    assert commit_of(tmp_path) == f"`{known}`, “Begin the table”"

    (tmp_path / "file").write_text("two")

    assert commit_of(tmp_path) == f"`{known}-dirty`, “Begin the table”"


def test_the_picture_marks_the_sizes_that_were_measured_and_names_both_trees() -> None:
    picture = ET.fromstring(drawn(_points()))
    texts = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]

    for sizes in _SIZES.values():
        assert {f"{size:,}" for size in sizes} <= set(texts)
    assert "50" not in texts
    assert texts.count("before") == texts.count("now") == 1
    # The largest of each, before and now.
    assert texts.count("2,200") == texts.count("1,100") == 1
    desc = picture.find("{http://www.w3.org/2000/svg}desc")
    assert desc is not None
    assert desc.text is not None
    assert "200,000 files, now: 2,100 ms" in desc.text
