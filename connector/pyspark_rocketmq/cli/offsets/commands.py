"""The commands ``offsets …``: show the progress of consumer groups, and move them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

from pyspark_rocketmq.cli.offsets.moves import QueueChoice, parse_moment, parse_queue, parse_target
from pyspark_rocketmq.cli.options import (
    OffsetsChangeSettings,
    OffsetsHistorySettings,
    OffsetsLagSettings,
    OffsetsShowSettings,
)
from pyspark_rocketmq.cli.output import OutputForm
from pyspark_rocketmq.cli.parts import (
    CallableT,
    CommandGroup,
    SettingsCommand,
    implementation,
    open_console,
    output_options,
    settings_options,
)
from pyspark_rocketmq.cli.settings import load_settings

_STORE: Final = "--option offsetStore=/lake/_offsets"
_CONF: Final = "--conf order-etl.toml"
"""A file with offsetStore, consumerGroup and nameServers, for the examples."""

_FILE = click.Path(path_type=Path, dir_okay=False, writable=True)


class Parsed(click.ParamType[Any]):
    """A parameter with our own parser, whose ValueErrors complete a sentence that begins with the value."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the parsed value; if the parser refuses the text, fail with a sentence about it."""
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(f"'{value}' {error}.", param, ctx)


_MOMENT = Parsed("time|version", parse_moment)


def _change_options(function: CallableT) -> CallableT:
    """Add the options of all commands that move a group; pass their values as one ``ChangeOptions``."""

    @wraps(function)
    def with_options(*, topics: Sequence[str], queues: Sequence[tuple[str, int]], **rest: Any) -> Any:
        names = ("is_dry_run", "is_forced", "sink", "rewinds_sink")
        given = {name: rest.pop(name) for name in names}
        if given["rewinds_sink"] and given["sink"] is None:
            raise click.UsageError(
                "--rewind-sink needs --sink, the table whose watermarks are to be set back."
            )
        choice = QueueChoice(frozenset(topics), frozenset(queues))
        # Imported here because it loads delta-rs, which --help does not need.
        options = implementation("offsets.change").ChangeOptions
        return function(options=options(choice=choice, form=OutputForm(rest.pop("output")), **given), **rest)

    for add in (
        click.option(
            "--rewind-sink",
            "rewinds_sink",
            is_flag=True,
            help="Set the sink's watermarks back, too, so that rows are written again. Refused while the "
            "query runs, and while those rows are still in the table.",
        ),
        click.option(
            "--sink", metavar="PATH", help="The group's Delta sink: show which rows it would drop as known."
        ),
        click.option(
            "--force",
            "is_forced",
            is_flag=True,
            help="Also while the group runs: the running batch is dropped, and the query goes on from the "
            "new offsets.",
        ),
        click.option("--dry-run", "is_dry_run", is_flag=True, help="Show the change without applying it."),
        click.option(
            "--queue",
            "queues",
            multiple=True,
            type=Parsed("broker:id", parse_queue),
            help="Only this queue, such as broker-a:0; repeatable.",
        ),
        click.option(
            "--topic",
            "topics",
            multiple=True,
            help="Only this topic; repeatable. The group's retry topic is left as it is unless it is named.",
        ),
        output_options,
        settings_options,
    ):
        with_options = add(with_options)
    return with_options  # type: ignore[return-value]


@click.group(cls=CommandGroup)
def offsets() -> None:
    """Look at the progress of consumer groups, and move it."""


@offsets.command(
    cls=SettingsCommand,
    settings=OffsetsShowSettings,
    examples=(f"offsets show {_STORE}", f"offsets show --json {_CONF}"),
)
@settings_options
@output_options
def show(conf: Path | None, pairs: Sequence[str], output: str) -> None:
    """Print the progress of consumer groups."""
    settings = load_settings(OffsetsShowSettings, "offsets show", conf, pairs)
    implementation("offsets.show").show_offsets(settings, open_console(), OutputForm(output))


@offsets.command(
    cls=SettingsCommand,
    settings=OffsetsLagSettings,
    examples=(
        f"offsets lag {_CONF}",
        f"offsets lag --html lag.html --hours 6 {_CONF}",
        f"offsets lag --png lag.png {_CONF}",
    ),
)
@settings_options
@output_options
@click.option(
    "--html",
    "page",
    type=_FILE,
    help="Draw the group's past, too: backlog and rate of each queue, suspensions, dead letters.",
)
@click.option("--png", type=_FILE, help="The same as a PNG.")
@click.option(
    "--hours",
    type=click.FloatRange(min=0.05),
    default=24.0,
    show_default=True,
    help="How far back the chart goes.",
)
def lag(
    conf: Path | None, pairs: Sequence[str], *, output: str, page: Path | None, png: Path | None, hours: float
) -> None:
    """Print how far consumer groups are behind, and who holds their queues; draw the lag over time."""
    settings = load_settings(OffsetsLagSettings, "offsets lag", conf, pairs)
    if page is not None or png is not None:
        implementation("offsets.lag_samples").draw_lag(settings, hours, page, png)
    implementation("offsets.lag").show_lag(settings, open_console(), OutputForm(output))


@offsets.command(
    cls=SettingsCommand,
    settings=OffsetsChangeSettings,
    examples=(
        (
            f"offsets reset --to earliest --dry-run {_STORE} --option consumerGroup=order-etl --option "
            "nameServers=127.0.0.1:9876"
        ),
        f"offsets reset --to 2026-11-20T10:00 --topic orders {_CONF}",
        f"offsets reset --to 1200 --queue broker-a:0 {_CONF}",
        f"offsets reset --as-of 2026-11-20T10:00 {_CONF}",
        f"offsets reset --as-of v120 --force {_CONF}",
        f"offsets reset --to earliest --sink /lake/orders --rewind-sink {_CONF}",
        f"offsets reset --to sink --sink /lake/orders {_CONF}",
    ),
)
@_change_options
@click.option(
    "--to",
    "target",
    type=Parsed("position", parse_target),
    help="earliest, latest, a queue offset, or a time: from the first message stored then; or sink: where "
    "--sink is, of the queues whose rows it has lost.",
)
@click.option(
    "--as-of",
    "moment",
    type=_MOMENT,
    help="Where the group itself was at a time or in a version (v120) of the store.",
)
@click.option(
    "--new-group",
    "is_new_group",
    is_flag=True,
    help="The group is not in the store yet: have it begin where --to says.",
)
def reset(
    conf: Path | None, pairs: Sequence[str], *, target: Any, moment: Any, is_new_group: bool, options: Any
) -> None:
    """Move a group to a position in its queues, or back to where it once was."""
    if (target is None) == (moment is None):
        raise click.UsageError("Give the new position: either --to or --as-of.")
    settings = load_settings(OffsetsChangeSettings, "offsets reset", conf, pairs)
    options = replace(options, is_new_group=is_new_group)
    implementation("offsets.change").reset(settings, target or moment, options, open_console())


@offsets.command(
    name="accept-gap",
    cls=SettingsCommand,
    settings=OffsetsChangeSettings,
    examples=(f"offsets accept-gap {_CONF}",),
)
@_change_options
def accept_gap(conf: Path | None, pairs: Sequence[str], options: Any) -> None:
    """Let a group continue where it is although its sink has lost rows, which stay lost."""
    settings = load_settings(OffsetsChangeSettings, "offsets accept-gap", conf, pairs)
    implementation("offsets.change").accept_gap(settings, options, open_console())


@offsets.command(
    cls=SettingsCommand,
    settings=OffsetsChangeSettings,
    examples=(f"offsets skip {_CONF}", f"offsets skip --messages 1 --queue broker-a:0 {_CONF}"),
)
@_change_options
@click.option(
    "--messages", type=click.IntRange(min=1), help="Number of messages in each queue; by default all of them."
)
def skip(conf: Path | None, pairs: Sequence[str], messages: int | None, options: Any) -> None:
    """Skip messages: a group's backlog, or a message that cannot be consumed."""
    if messages is not None and not options.choice.queues:
        raise click.UsageError("--messages needs --queue: messages are counted in each queue.")
    settings = load_settings(OffsetsChangeSettings, "offsets skip", conf, pairs)
    implementation("offsets.change").skip(settings, messages, options, open_console())


@offsets.command(
    cls=SettingsCommand,
    settings=OffsetsChangeSettings,
    examples=(f"offsets clone --from order-etl {_STORE} --option consumerGroup=order-etl-test",),
)
@_change_options
@click.option("--from", "source", required=True, metavar="GROUP", help="The group whose offsets are taken.")
def clone(conf: Path | None, pairs: Sequence[str], source: str, options: Any) -> None:
    """Move a group, perhaps a new one, to the position of another group in the same store."""
    settings = load_settings(OffsetsChangeSettings, "offsets clone", conf, pairs)
    implementation("offsets.change").clone(settings, source, options, open_console())


@offsets.command(cls=SettingsCommand, settings=OffsetsHistorySettings, examples=(f"offsets history {_CONF}",))
@settings_options
@output_options
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Maximum number of changes."
)
def history(conf: Path | None, pairs: Sequence[str], output: str, limit: int) -> None:
    """Print the changes to which a group can be reset, the newest first."""
    settings = load_settings(OffsetsHistorySettings, "offsets history", conf, pairs)
    implementation("offsets.history").show_history(settings, limit, OutputForm(output), open_console())


@offsets.command(
    cls=SettingsCommand,
    settings=OffsetsHistorySettings,
    examples=(
        f"offsets diff --from 2026-11-20T10:00 {_CONF}",
        f"offsets diff --from v120 --to v140 {_CONF}",
        f"offsets diff --with order-etl-test {_CONF}",
    ),
)
@settings_options
@output_options
@click.option("--from", "since", type=_MOMENT, help="The earlier moment.")
@click.option("--to", "until", type=_MOMENT, help="The later moment; now, if not given.")
@click.option("--with", "other", metavar="GROUP", help="Another group of the same store, as it is now.")
def diff(
    conf: Path | None, pairs: Sequence[str], *, output: str, since: Any, until: Any, other: str | None
) -> None:
    """Print what changed between two moments of a group, or what is different in another group."""
    if (since is None) == (other is None) or (other is not None and until is not None):
        raise click.UsageError("Give two states to compare: --from with or without --to, or --with.")
    settings = load_settings(OffsetsHistorySettings, "offsets diff", conf, pairs)
    module = implementation("offsets.history")
    module.show_diff(settings, other or module.Moments(since, until), OutputForm(output), open_console())
