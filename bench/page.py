"""docs/benchmarks.md: what was measured, how, and what it came to. No host names, no paths of a machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.machine import describe_machine
from bench.measure import TARGET_COLUMNS, Result, markdown_table

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"

_INTRODUCTION = """\
# Benchmarks

Written by `make bench`; do not edit. Each figure stands next to a ceiling or a peer measured in the same run, and what
counts is the ratio: absolute numbers are this machine's. Nothing here is a test.

{machine}

Broker, Spark, its Python workers and the measuring program share these cores, so a rate is what all of them reach
together. The load average counts a benchmark's own processes too; well above the number of cores it means that
somebody else was busy as well, and then only the ratios are worth reading."""

_AGAIN = """\
## Run it again

    make bench                                    # everything, and this page
    make bench ARGS=source                        # one of those of python -m bench --help
    make bench ARGS="source --messages 100000 --rounds 3"
    make bench ARGS="micro_batch --backend sim"   # without RocketMQ itself
    make bench-against OTHER=../before            # this work tree beside another one

The page is written from the newest result of each benchmark."""


def render(results: Sequence[Result]) -> str:
    """The whole page."""
    wanted = [target.cells() for result in results for target in result.targets]
    parts = [
        _INTRODUCTION.format(machine=describe_machine()),
        f"## Targets\n\n{markdown_table(TARGET_COLUMNS, wanted)}",
        *(f"## {result.title}\n\n{result.method}\n\n{tables(result)}" for result in results),
        _AGAIN,
    ]
    return "\n\n".join(parts) + "\n"


def tables(result: Result) -> str:
    """One result's figures, its targets and the load they were measured under."""
    before, after = result.load
    targets = [markdown_table(TARGET_COLUMNS, (target.cells() for target in result.targets))]
    return "\n\n".join(
        [
            markdown_table(result.columns, result.rows),
            *(targets if result.targets else []),
            f"Load average before and after: {before:.1f}, {after:.1f}.",
        ]
    )
