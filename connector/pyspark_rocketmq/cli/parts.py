"""Parts that the commands share: options, help, the console to print on."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

import click
from rich.console import Console

from pyspark_rocketmq.cli.output import OutputForm
from pyspark_rocketmq.cli.settings import ClusterAccess
from pyspark_rocketmq.options.declare import OptionSet, OptionSpec, specs_of
from pyspark_rocketmq.options.parsers import closest

PROGRAM: Final = "pyspark-rocketmq"
PROGRAM_VARIABLE: Final = "PYSPARK_ROCKETMQ_PROGRAM"
"""Environment variable for a script that starts this program under another name: help and hints show it."""
COMPLETION_VARIABLE: Final = "_PYSPARK_ROCKETMQ_COMPLETE"
"""Environment variable by which a shell asks for completions instead of running a command."""
_LOG_WIDTH: Final = 200
_HELP_WIDTH: Final = 120
"""Maximum width of the help, in characters: longer lines are hard to read."""

CallableT = TypeVar("CallableT", bound=Callable[..., Any])

_LINK: Final = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")


def program() -> str:
    """Return the name under which the program was started."""
    return os.environ.get(PROGRAM_VARIABLE, PROGRAM)


def implementation(name: str) -> ModuleType:
    """Import and return module ``pyspark_rocketmq.cli.NAME``, which does the work of a command.

    A command calls this when it runs, so that ``--help`` loads no such module.
    """
    return import_module(f"pyspark_rocketmq.cli.{name}")


class CommandGroup(click.Group):
    """A group that suggests the command that was probably meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; if there is none, fail with the nearest name, or with all names."""
        if self.get_command(ctx, args[0]) is None:
            near = difflib.get_close_matches(args[0], self.commands, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(sorted(self.commands))}"
            ctx.fail(f"There is no command '{args[0]}'; {hint}")
        return super().resolve_command(ctx, args)


class SettingsCommand(click.Command):
    """A command with settings: its help lists the keys that ``--option`` takes."""

    def __init__(
        self, *args: Any, settings: type[OptionSet], examples: Sequence[str] = (), **kwargs: Any
    ) -> None:
        """Take the arguments of ``click.Command``.

        Args:
            args: Passed on to click.
            settings: The class of options whose keys ``--option`` takes.
            examples: Arguments that may follow the program's name, one line per example.
            kwargs: Passed on to click.
        """
        super().__init__(*args, **kwargs)
        self.context_settings = {"max_content_width": _HELP_WIDTH}
        self.settings = settings
        self._examples = examples

    @property
    def option_keys(self) -> tuple[str, ...]:
        """The keys of ``--option``."""
        return tuple(spec.key for spec in specs_of(self.settings))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments.

        If ``topic`` is a key of ``--option``, ``--topic orders`` fails with the hint ``--option topic=...``.
        """
        try:
            ctx.allow_extra_args = True
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-").replace("-", "").lower()
            near = closest(name, self.option_keys)
            if near is None or (error.possibilities and near.lower() != name):
                raise
            raise click.UsageError(
                f"No such option '{error.option_name}'. Did you mean '--option {near}=...'?", ctx
            ) from None
        if ctx.args and not ctx.resilient_parsing:
            # Do not show it: after --option secretKey it is the secret.
            ctx.fail(
                "There is a word too many. Write each setting as --option key=value, and put quotes around a "
                "value that has blanks."
            )
        return rest

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the end of the help: each key of ``--option``, required ones first, then the examples."""
        access = {spec.key for spec in specs_of(ClusterAccess)}
        known = specs_of(self.settings)
        keys = {spec.key for spec in known}
        specs = sorted(
            known,
            key=lambda spec: (not spec.default_text.startswith("required"), spec.key in access),
        )
        with formatter.section("Keys of --option and of the --conf file"):
            formatter.write_dl(
                [
                    (
                        spec.key,
                        f"{_plain(spec.doc)} [{_default_of(spec, keys)}{spec.unit and ' ' + spec.unit}]",
                    )
                    for spec in specs
                ]
            )
        if self._examples:
            with formatter.section("Examples"):
                for example in self._examples:
                    formatter.write(f"{'':{formatter.current_indent}}{program()} {example}\n")


def _plain(doc: str) -> str:
    """Return an option's text, with each Markdown link as ``TEXT (docs/PATH)``."""
    return _LINK.sub(r"\1 (docs/\2)", doc)


def _default_of(spec: OptionSpec, keys: Collection[str]) -> str:
    """Return an option's default text, and those of ``keys`` that may be given instead of the option."""
    return ", or ".join([spec.default_text, *(f"`{key}`" for key in spec.instead if key in keys)])


def _complete_key(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    assert isinstance(ctx.command, SettingsCommand)
    return [f"{key}=" for key in ctx.command.option_keys if key.lower().startswith(incomplete.lower())]


def settings_options(function: CallableT) -> CallableT:
    """Add the options ``--conf`` and ``--option`` to a command's function."""
    conf = click.option(
        "--conf",
        type=click.Path(path_type=Path, dir_okay=False),
        help="TOML file with keys as below; tables only group. --option wins over it.",
    )
    pairs = click.option(
        "--option",
        "pairs",
        multiple=True,
        metavar="KEY=VALUE",
        shell_complete=_complete_key,
        help="One setting; repeatable.",
    )
    return conf(pairs(function))


def output_options(function: CallableT) -> CallableT:
    """Add the options ``--format`` and ``--json``, which both set argument ``output`` of the function."""
    form = click.option(
        "--format",
        "output",
        type=click.Choice([form.value for form in OutputForm]),
        default=OutputForm.TABLE.value,
        show_default=True,
    )
    short = click.option("--json", "output", flag_value=OutputForm.JSON.value, help="As --format json.")
    return form(short(function))


def open_console() -> Console:
    """Return a console on standard output. Without a terminal it is 200 characters wide, for logs."""
    console = Console()
    return console if console.is_terminal else Console(width=_LOG_WIDTH)
