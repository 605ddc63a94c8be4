"""``python -m bench [NAME …] [--write]``: run benchmarks, print their ratios, write the page of results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import click

from bench import (
    beside_kafka,
    change_table,
    compaction,
    consume,
    consume_concurrent,
    delta_sink,
    endurance,
    groups,
    growth,
    handover,
    landing,
    latency,
    memory,
    micro_batch,
    object_store,
    offset_commit,
    old_sinks,
    order_by_key,
    planner,
    pull,
    rate_source,
    simulator,
    sink,
    source,
    suspended,
    wire,
    worker,
)
from bench.measure import Result
from bench.page import PAGE, tables, write_section

_RUNS: dict[str, Callable[..., Result]] = {
    "wire": wire.run,
    "pull": pull.run,
    "source": source.run,
    "beside_kafka": beside_kafka.run,
    "change_table": change_table.run,
    "sink": sink.run,
    "micro_batch": micro_batch.run,
    "consume": consume.run,
    "consume_concurrent": consume_concurrent.run,
    "landing": landing.run,
    "suspended": suspended.run,
    "order_by_key": order_by_key.run,
    "latency": latency.run,
    "rate_source": rate_source.run,
    "handover": handover.run,
    "memory": memory.run,
    "endurance": endurance.run,
    "planner": planner.run,
    "offset_commit": offset_commit.run,
    "delta_sink": delta_sink.run,
    "old_sinks": old_sinks.run,
    "compaction": compaction.run,
    "object_store": object_store.run,
    "growth": growth.run,
    "groups": groups.run,
    "simulator": simulator.run,
    "worker": worker.run,
}


class _Listed(click.ParamType):  # type: ignore[type-arg]
    """Parameter whose value is a list, separated by commas."""

    name = "a,b"

    def __init__(self, of: Callable[[str], Any], allowed: Sequence[str] = ()) -> None:
        self._of = of
        self._allowed = allowed

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        """Return the values of the list."""
        texts = value.split(",")
        if self._allowed and (unknown := [text for text in texts if text not in self._allowed]):
            self.fail(f"unknown: {', '.join(unknown)}; choose from {', '.join(self._allowed)}", param, ctx)
        try:
            return tuple(map(self._of, texts))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice([*_RUNS, "all"]))
@click.option("--write", is_flag=True, help="Write these results into docs/benchmarks.md.")
@click.option(
    "--other",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="growth: the work tree to compare with; it runs only with one.",
)
@click.option(
    "--messages",
    type=int,
    help="pull, source, sink: messages per body size; beside_kafka: messages; change_table: rows of the table.",
)
@click.option(
    "--rounds",
    type=int,
    help=(
        "pull, source, beside_kafka, change_table, sink, micro_batch, consume, consume_concurrent, landing, suspended, "
        "order_by_key, latency, "
        "handover, rate_source, delta_sink, old_sinks, compaction, object_store, growth, groups, simulator, "
        "worker: rounds that count."
    ),
)
@click.option(
    "--per-trigger",
    type=int,
    help="micro_batch, consume, consume_concurrent, landing, suspended, order_by_key: messages per micro-batch.",
)
@click.option(
    "--batches",
    type=int,
    help="micro_batch, consume, consume_concurrent, landing, suspended: micro-batches per run.",
)
@click.option(
    "--seconds",
    type=float,
    help=(
        "latency, worker, rate_source, memory, endurance, compaction: length of a run; "
        "offset_commit: longest length of a run."
    ),
)
@click.option(
    "--rates", type=_Listed(int), help="latency, worker: messages sent per second, such as 100,1000."
)
@click.option(
    "--only",
    type=_Listed(str, (*latency.CONTENDERS, *latency.WITHOUT_CONTENDER)),
    help="latency: what to measure, such as java,real-time; all by default.",
)
@click.option("--backend", type=click.Choice(["real", "sim"]), help="micro_batch: the broker.")
@click.option("--triggers", type=int, help="planner, groups: triggers that count.")
@click.option("--commits", type=int, help="offset_commit: commits that count.")
@click.option("--rows", type=int, help="delta_sink: rows of the large batch.")
@click.option("--takeovers", type=int, help="groups: queues that change hands.")
def main(names: tuple[str, ...], *, write: bool, **sizes: Any) -> None:
    """Run the benchmarks NAMES, all of them by default. Sizes not given are those of the page."""
    given = {name: value for name, value in sizes.items() if value is not None}
    if "growth" in names and "other" not in given:
        raise click.UsageError("growth compares with an earlier work tree: --other ../before")
    every = [name for name in _RUNS if name != "growth" or "other" in given]
    for name in every if not names or "all" in names else names:
        click.echo(f"running {name} …")
        run = _RUNS[name]
        result = run(**{size: value for size, value in given.items() if size in signature(run).parameters})
        click.echo(f"\n{result.title}\n\n{result.method}\n\n{tables(result)}\n")
        if write:
            write_section(result)
            click.echo(f"written: docs/{PAGE.name}")


if __name__ == "__main__":
    main()
