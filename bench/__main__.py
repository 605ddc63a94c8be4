"""``python -m bench [NAME …] [--write]``: run benchmarks, print their ratios, write the page of results."""

from __future__ import annotations

from pathlib import Path

import click

from bench import micro_batch, offset_commit, planner, source
from bench.machine import describe_machine
from bench.measure import TARGET_COLUMNS, Result, markdown_table

_PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
_RUNS = {
    "source": source.run,
    "micro_batch": micro_batch.run,
    "planner": planner.run,
    "offset_commit": offset_commit.run,
}


def render(results: list[Result]) -> str:
    """The page of results."""
    parts = [
        "# Benchmarks",
        (
            "Written by `make bench`; do not edit. Each figure stands next to a ceiling or a peer measured in the same run, and "
            "what counts is the ratio: absolute numbers are this machine's."
        ),
        describe_machine(),
        "Run one again with `make bench ARGS=source` (or `micro_batch`, `planner`, `offset_commit`).",
    ]
    for result in results:
        parts += [f"## {result.title}", result.method, _tables(result)]
    return "\n\n".join(parts) + "\n"


def _tables(result: Result) -> str:
    before, after = result.load
    return "\n\n".join(
        [
            markdown_table(result.columns, result.rows),
            markdown_table(TARGET_COLUMNS, (target.cells() for target in result.targets)),
            f"Load average before and after: {before:.1f}, {after:.1f}.",
        ]
    )


@click.command()
@click.argument("names", nargs=-1, type=click.Choice([*_RUNS, "all"]))
@click.option("--write", is_flag=True, help="Write docs/benchmarks.md from the newest results.")
def main(names: tuple[str, ...], *, write: bool) -> None:
    """Run the benchmarks NAMES, all of them by default."""
    chosen = list(_RUNS) if not names or "all" in names else names
    for name in chosen:
        click.echo(f"running {name} …")
        result = _RUNS[name]()
        result.save()
        click.echo(f"\n{result.title}\n\n{_tables(result)}\n")
    if write:
        saved = [result for name in _RUNS if (result := Result.load_saved(name)) is not None]
        _PAGE.write_text(render(saved), encoding="utf-8")
        click.echo(f"written: docs/{_PAGE.name}")


if __name__ == "__main__":
    main()
