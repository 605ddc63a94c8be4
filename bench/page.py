"""docs/benchmarks.md: what was measured, how, and what it came to. No host names, no paths of a machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.machine import describe_machine
from bench.measure import TARGET_COLUMNS, Result, markdown_table

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"

_INTRODUCTION = """\
# Benchmarks

Made by `make bench`; do not edit. Every figure stands next to a peer or a ceiling that was measured in the same run,
because a ratio says more than a rate: rates change with the machine and with what else it does. Nothing here is a test.

{machine}

Broker, Spark, its Python workers and the measuring program share these cores, so a rate is what all of them reach
together. The load average before and after a benchmark counts its own processes too; well above the number of cores it
means that somebody else was busy as well, and then only the ratios are worth reading.
"""

_RERUN = """\
## Run it again

    make bench                                # everything, and this page
    ./scripts/with-env.sh --maven dev python -m bench source --messages 100000 --rounds 3
    ./scripts/with-env.sh dev python -m bench micro_batch --backend sim
    ./scripts/with-env.sh dev python -m bench planner
    ./scripts/with-env.sh dev python -m bench offset_commit --commits 500

`--write` renders this page from the newest result of each benchmark.
"""


def render(results: Sequence[Result]) -> str:
    """The whole page."""
    targets = [target.cells() for result in results for target in result.targets]
    parts = [
        _INTRODUCTION.format(machine=describe_machine()),
        f"## Targets\n\n{markdown_table(TARGET_COLUMNS, targets)}\n",
        *map(_section, results),
        _RERUN,
    ]
    return "\n".join(parts)


def _section(result: Result) -> str:
    before, after = result.load
    return (
        f"## {result.title}\n\n{result.method}\n\n{markdown_table(result.columns, result.rows)}\n\n"
        f"Load average: {before:g} before, {after:g} after.\n"
    )
