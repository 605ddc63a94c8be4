"""The command line of all jobs, and what their exit codes mean.

0 done; 1 the job failed; 2 bad input, told without a traceback; 130 interrupted.  Heavy imports happen in the
command that needs them: ``--help`` and ``offsets …`` must not load Spark.
"""

from __future__ import annotations

import difflib
import logging
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from jobs.errors import JobFailed
from jobs.option_set import specs_of
from jobs.settings import (
    ConsumeSettings,
    DemoSettings,
    OffsetsLagSettings,
    OffsetsShowSettings,
    ReplaySettings,
    load_settings,
)
from pyspark_rocketmq.errors import OptionError, RocketMQError
from pyspark_rocketmq.option_set import OptionSet

PROGRAM = "./spark-submit.sh"
EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 130

_LOG_WIDTH = 140

_CallableT = TypeVar("_CallableT", bound=Callable[..., Any])


class JobGroup(click.Group):
    """A group that guesses which command was meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or refuse with the nearest name."""
        if self.get_command(ctx, args[0]) is None:
            near = difflib.get_close_matches(args[0], self.commands, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(sorted(self.commands))}"
            ctx.fail(f"There is no job '{args[0]}'; {hint}")
        return super().resolve_command(ctx, args)


class JobCommand(click.Command):
    """A command whose help lists what ``--option`` takes."""

    def __init__(self, *args: Any, settings: type[OptionSet], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.settings = settings

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """Write one entry an option, required ones first."""
        specs = sorted(specs_of(self.settings), key=lambda spec: spec.default_text != "required")
        with formatter.section("Keys of --option and of the --conf file"):
            formatter.write_dl(
                [
                    (spec.key, f"{spec.doc} [{spec.default_text}{' ' + spec.unit if spec.unit else ''}]")
                    for spec in specs
                ]
            )


def _settings_options(function: _CallableT) -> _CallableT:
    conf = click.option(
        "--conf",
        type=click.Path(path_type=Path, dir_okay=False),
        help="TOML file with keys as below; tables only group. --option wins over it.",
    )
    pairs = click.option(
        "--option", "pairs", multiple=True, metavar="KEY=VALUE", help="One setting; repeatable."
    )
    return conf(pairs(function))


def _output_options(function: _CallableT) -> _CallableT:
    form = click.option(
        "--format", "output", type=click.Choice(["table", "json"]), default="table", show_default=True
    )
    short = click.option("--json", "output", flag_value="json", help="As --format json.")
    return form(short(function))


@click.group(cls=JobGroup)
def cli() -> None:
    """Jobs of pyspark-rocketmq."""


@cli.command(cls=JobCommand, settings=DemoSettings)
@_settings_options
def demo(conf: Path | None, pairs: Sequence[str]) -> None:
    """Produce ordered order events, consume them into a Delta table, check the result."""
    settings = load_settings(DemoSettings, "demo", conf, pairs)
    import_module("jobs.demo.run").run_demo(settings, _console())


@cli.command(cls=JobCommand, settings=ConsumeSettings)
@_settings_options
def consume(conf: Path | None, pairs: Sequence[str]) -> None:
    """Run a message listener as a streaming consumer into a Delta table."""
    settings = load_settings(ConsumeSettings, "consume", conf, pairs)
    import_module("jobs.consume").consume(settings, _console())


@cli.command(cls=JobCommand, settings=ReplaySettings)
@_settings_options
def replay(conf: Path | None, pairs: Sequence[str]) -> None:
    """Read queues again, into a Delta table or another topic, without touching any group's offsets."""
    settings = load_settings(ReplaySettings, "replay", conf, pairs)
    import_module("jobs.replay").replay(settings, _console())


@cli.group(cls=JobGroup)
def offsets() -> None:
    """Look at the progress of consumer groups."""


@offsets.command(cls=JobCommand, settings=OffsetsShowSettings)
@_settings_options
@_output_options
def show(conf: Path | None, pairs: Sequence[str], output: str) -> None:
    """Print the progress of consumer groups from their offset table."""
    settings = load_settings(OffsetsShowSettings, "offsets show", conf, pairs)
    import_module("jobs.offsets_show").show_offsets(settings, _console(), as_json=output == "json")


@offsets.command(cls=JobCommand, settings=OffsetsLagSettings)
@_settings_options
@_output_options
def lag(conf: Path | None, pairs: Sequence[str], output: str) -> None:
    """Print how far consumer groups are behind, and who holds their queues."""
    settings = load_settings(OffsetsLagSettings, "offsets lag", conf, pairs)
    import_module("jobs.offsets_lag").show_lag(settings, _console(), as_json=output == "json")


def _console() -> Console:
    """Standard output; wide where nobody looks at it on a terminal, so that tables in logs stay whole."""
    console = Console()
    return console if console.is_terminal else Console(width=_LOG_WIDTH)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one job; return the process's exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        cli.main(
            args=None if arguments is None else list(arguments), prog_name=PROGRAM, standalone_mode=False
        )
    except click.exceptions.NoArgsIsHelpError as error:
        return _tell(error.format_message(), EXIT_BAD_INPUT)
    except click.ClickException as error:
        return _tell(f"{error.format_message()}\nSee {PROGRAM} --help.", EXIT_BAD_INPUT)
    except OptionError as error:
        return _tell(str(error), EXIT_BAD_INPUT)
    except (JobFailed, RocketMQError) as error:
        return _tell(str(error), EXIT_FAILED)
    except (KeyboardInterrupt, click.exceptions.Abort):
        return _tell("Interrupted.", EXIT_INTERRUPTED)
    return 0


def _tell(text: str, exit_code: int) -> int:
    print(text, file=sys.stderr)
    return exit_code
