"""``python -m fuzz [TARGET …] [--seconds N]``: run every target, print what was tried, fail if anything was found."""

from __future__ import annotations

import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import click

from fuzz.engine import has_coverage_engine
from fuzz.judge import judge
from fuzz.large import judge_large, large_inputs
from fuzz.reconnects import reconnect
from fuzz.run import ROOT, Outcome, run_target
from fuzz.simulator_reconnects import reconnect_to_simulator
from fuzz.targets import TARGETS

_RECONNECTS: Final = 10_000


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(TARGETS)))
@click.option("--seconds", type=float, default=300.0, show_default=True, help="For all targets together.")
@click.option("--seed", type=int, help="Repeats the choice of inputs; a new one each time by default.")
@click.option("--jobs", type=int, default=os.cpu_count() or 1, show_default=True, help="Targets at a time.")
@click.option("--blind", is_flag=True, help="Mutate without looking at coverage.")
@click.option(
    "--again", type=click.Path(exists=True, path_type=Path), help="Run one saved input and nothing else."
)
def main(
    names: tuple[str, ...], *, seconds: float, seed: int | None, jobs: int, blind: bool, again: Path | None
) -> None:
    """Run the targets NAMES, all of them by default."""
    if again is not None:
        sys.exit(_run_again(again))
    chosen = list(names or TARGETS)
    seed = random.randrange(1 << 31) if seed is None else seed
    each_s = seconds * jobs / len(chosen)
    kind = "by coverage" if has_coverage_engine() and not blind else "blindly"
    click.echo(f"{len(chosen)} targets, {each_s:.0f} s each, {jobs} at a time, {kind}, seed {seed}")
    with ThreadPoolExecutor(jobs) as pool:
        runs = [pool.submit(run_target, name, seconds=each_s, seed=seed, is_blind=blind) for name in chosen]
        outcomes = []
        for run in runs:
            outcomes.append(run.result())
            _show(outcomes[-1])
    failures = sum(len(outcome.findings) for outcome in outcomes)
    if not names:
        failures += _large() + _reconnect()
    click.echo(f"{sum(outcome.inputs for outcome in outcomes):,} inputs, {failures} failures")
    sys.exit(1 if failures else 0)


def _show(outcome: Outcome) -> None:
    click.echo(
        f"  {outcome.target:15} {outcome.inputs:>11,} inputs {outcome.inputs_per_s:>9,.0f}/s "
        f"{len(outcome.findings):>3} failures"
    )
    for path in outcome.findings:
        shown = path.relative_to(ROOT)
        reason = path.with_suffix(".txt").read_text(encoding="utf-8").strip().splitlines()[-1]
        click.echo(f'    {reason[:200]}\n    again: make fuzz ARGS="--again {shown}"')


def _large() -> int:
    """How many inputs of nearly a frame's length cost more than they may."""
    cases = large_inputs()
    failed = 0
    for case in cases:
        finding = judge_large(case)
        if finding is not None:
            failed += 1
            click.echo(f"    {case.name}: {finding.trace.strip().splitlines()[-1][:200]}")
    click.echo(f"  {len(cases)} inputs of nearly 16 MiB, {failed} failures")
    return failed


def _reconnect() -> int:
    """How many kinds of connections that come and go leave something behind."""
    before, after = reconnect(_RECONNECTS)
    click.echo(f"  {_RECONNECTS:,} reconnects: before {before}, after {after}")
    known, left = reconnect_to_simulator(_RECONNECTS)
    click.echo(f"  {_RECONNECTS:,} reconnects to the simulator: before {known}, after {left}")
    return int(not after.is_at_most(before)) + int(not left.is_at_most(known))


def _run_again(path: Path) -> int:
    target = TARGETS[path.name.rpartition("-")[0]]
    for seed in target.seeds():  # so that modules are imported and caches filled, as they were
        judge(target, seed)
    finding = judge(target, path.read_bytes())
    click.echo(finding.trace if finding else f"{target.name}: this input is answered as it should be.")
    target.close()
    return 1 if finding else 0


if __name__ == "__main__":
    main()
