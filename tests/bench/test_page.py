"""The page of the benchmarks takes a result without losing the others."""

from __future__ import annotations

from pathlib import Path

from bench.__main__ import _RUNS
from bench.measure import Result, Spread, Target
from bench.page import _SECTIONS, write_section


def _result(name: str, title: str, median: float, *, about: str = "", picture: str = "") -> Result:
    target = Target(what=f"{name} took", seen=Spread(0.5, median, 9.0, 3), bound=2.0, at_most=True, unit="s")
    return Result(
        name=name,
        title=title,
        method="",
        columns=("what",),
        rows=(),
        targets=(target,),
        about=about,
        picture=picture,
    )


def test_a_result_takes_the_place_of_its_earlier_one_and_leaves_all_others(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    for result in (
        _result("wire", "Decode", 1.0),
        _result("pull", "Pull", 3.0),
        _result("sink", "Write", 1.5),
    ):
        write_section(result, page)
    before = page.read_text()

    write_section(_result("pull", "Pull", 1.25), page)

    text = page.read_text()
    assert text.index("## Decode") < text.index("## Pull") < text.index("## Write")
    assert text.splitlines()[:8] == before.splitlines()[:8]
    changed = set(text.splitlines()) ^ set(before.splitlines())
    assert len(changed) == 2
    assert all(line.startswith("| pull took") for line in changed)


def test_the_page_says_of_a_run_what_the_run_says(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    result = _result("growth", "Growth", 1.0, about="*Before*: `1234567`, “Begin”.")

    write_section(result, page)

    assert "gets queues. *Before*: `1234567`, “Begin”.\n" in page.read_text()


def test_a_picture_lies_beside_the_page(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"

    write_section(_result("growth", "Growth", 1.0, picture="<svg/>\n"), page)

    assert "![Growth](images/growth.svg)" in page.read_text()
    assert (tmp_path / "images" / "growth.svg").read_text() == "<svg/>\n"


def test_a_section_of_another_machine_says_so(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text("# Benchmarks\n\n64 cores of another make.\n")

    write_section(_result("wire", "Decode", 1.0), page)

    assert "64 cores of another make.\n\n## Decode\n" in page.read_text()
    assert "Measured with " in page.read_text()


def test_each_benchmark_has_a_section_on_the_page() -> None:
    """A result that has none would be lost at its end."""
    assert _SECTIONS.keys() == _RUNS.keys()
