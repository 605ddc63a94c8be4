"""The command line ``pyspark-rocketmq``, and its exit codes.

Exit codes: 0 done; 1 the command failed; 2 bad input, reported without a traceback; 130 interrupted; 143
ended by SIGTERM.
Each command imports the heavy modules that it needs: ``--help`` must not load Spark, and ``offsets …`` loads
it only to change a sink.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class

from pyspark_rocketmq.cli.demo.settings import DemoSettings
from pyspark_rocketmq.cli.offsets.commands import offsets
from pyspark_rocketmq.cli.options import (
    ConsumeSettings,
    PublishSettings,
    ReplaySettings,
    TablesCompactSettings,
)
from pyspark_rocketmq.cli.parts import (
    COMPLETION_VARIABLE,
    CommandGroup,
    SettingsCommand,
    implementation,
    open_console,
    program,
    settings_options,
)
from pyspark_rocketmq.cli.settings import JobFailed, load_settings
from pyspark_rocketmq.display import masked
from pyspark_rocketmq.errors import OptionError, RocketMQError

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 130
_EXTRA_OF: Final = {
    "delta": "spark",
    "prometheus_client": "prometheus",
    "py4j": "spark",
    "pyspark": "spark",
}
"""Extra of the wheel that installs a missing module, by the module's name."""


_TOPIC: Final = "--option nameServers=127.0.0.1:9876 --option topic=orders"


@click.group(cls=CommandGroup)
def cli() -> None:
    """Consume, read and write RocketMQ topics with Spark, and look after consumer groups."""


@cli.command(
    cls=SettingsCommand,
    settings=DemoSettings,
    examples=("demo", "demo --real-time", "demo --option nameServers=127.0.0.1:9876"),
)
@settings_options
@click.option("--real-time", is_flag=True, help="Consume while messages are sent, and show the latency.")
def demo(conf: Path | None, pairs: Sequence[str], *, real_time: bool) -> None:
    """Produce ordered order events, consume them into a Delta table, check the result."""
    asked = ["realTime=true"] if real_time else []
    settings = load_settings(DemoSettings, "demo", conf, [*pairs, *asked])
    implementation("demo.run").run_demo(settings, open_console())


@cli.command(
    cls=SettingsCommand,
    settings=ConsumeSettings,
    examples=(
        "consume --conf conf/consume.example.toml",
        "consume --conf conf/consume.example.toml --option trigger=availableNow",
        "consume --conf lake.toml --raw",
    ),
)
@settings_options
@click.option("--raw", is_flag=True, help="Write messages as they are, without a listener (raw=true).")
def consume(conf: Path | None, pairs: Sequence[str], *, raw: bool) -> None:
    """Run a message listener as a streaming consumer into a Delta table."""
    asked = ["raw=true"] if raw else []
    settings = load_settings(ConsumeSettings, "consume", conf, [*pairs, *asked])
    implementation("consume").consume(settings, open_console())


@cli.command(
    cls=SettingsCommand,
    settings=ReplaySettings,
    examples=(
        f"replay {_TOPIC} --option startingTimestamp=2026-11-20T10:00 --option toTable=/lake/again",
        f"replay {_TOPIC} --option toTopic=orders-again --option record=/lake/_replayed",
    ),
)
@settings_options
def replay(conf: Path | None, pairs: Sequence[str]) -> None:
    """Read queues again, into a Delta table or another topic, without touching any group's offsets."""
    settings = load_settings(ReplaySettings, "replay", conf, pairs)
    implementation("replay").replay(settings, open_console())


@cli.command(
    cls=SettingsCommand,
    settings=PublishSettings,
    examples=(
        f"publish {_TOPIC} --option input=/lake/orders",
        (
            f"publish {_TOPIC} --option input=events --option inputFormat=json --option orderBy=step "
            "--option 'select=to_json(struct(*)) AS body, order_id AS shardingKey'"
        ),
    ),
)
@settings_options
def publish(conf: Path | None, pairs: Sequence[str]) -> None:
    """Send the rows of a table or of files to a topic, in order by sharding key."""
    settings = load_settings(PublishSettings, "publish", conf, pairs)
    implementation("publish").publish(settings, open_console())


cli.add_command(offsets)


@cli.group(cls=CommandGroup)
def tables() -> None:
    """Look after tables."""


@tables.command(
    cls=SettingsCommand,
    settings=TablesCompactSettings,
    examples=("tables compact --option table=/lake/orders",),
)
@settings_options
def compact(conf: Path | None, pairs: Sequence[str]) -> None:
    """Compact a Delta table's many files into few; queries may write to the table meanwhile."""
    settings = load_settings(TablesCompactSettings, "tables compact", conf, pairs)
    implementation("compact").compact_table(settings, open_console())


@cli.command(
    context_settings={"ignore_unknown_options": True}, add_help_option=False, options_metavar="[--help]"
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def simulator(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Run a simulated RocketMQ cluster on this machine until Ctrl-C."""
    # A separate package, which shares only the wire protocol with the connector.
    context.exit(import_module("broker_sim.__main__").main(arguments, context.command_path))


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL, such as for: eval "$(pyspark-rocketmq completion bash)"."""
    of_shell = get_completion_class(shell)
    assert of_shell is not None
    click.echo(of_shell(cli, {}, program(), COMPLETION_VARIABLE).source())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the process's exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        result = cli.main(
            args=None if arguments is None else list(arguments),
            prog_name=program(),
            complete_var=COMPLETION_VARIABLE,
            standalone_mode=False,
        )
    except click.exceptions.NoArgsIsHelpError as error:
        return _report(error.format_message(), EXIT_BAD_INPUT)
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        command = context.command_path if context else program()
        return _report(f"{error.format_message()}\nSee {command} --help.", EXIT_BAD_INPUT)
    except OptionError as error:
        return _report(str(error), EXIT_BAD_INPUT)
    except (JobFailed, RocketMQError, ModuleNotFoundError) as error:
        text = _missing(error) if isinstance(error, ModuleNotFoundError) else str(error)
        return _report(text, EXIT_FAILED)
    except (KeyboardInterrupt, click.exceptions.Abort):
        return _report("Interrupted.", EXIT_INTERRUPTED)
    return result if isinstance(result, int) else 0


def _missing(error: ModuleNotFoundError) -> str:
    """Return a sentence that names the extra of the wheel which installs the missing module.

    Raise the error again if no extra installs the module.
    """
    extra = _EXTRA_OF.get((error.name or "").partition(".")[0])
    if extra is None:
        raise error
    return (
        f"This command needs module '{error.name}', which the Python {sys.executable} lacks. Run "
        f"{sys.executable} -m pip install 'pyspark-rocketmq[{extra}]', or use a Python that has the module."
    )


def _report(text: str, exit_code: int) -> int:
    print(masked(text), file=sys.stderr)
    return exit_code
