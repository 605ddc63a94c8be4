"""The command line: exit codes, help, hints; no traceback for bad input and no Spark where none is needed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Never

import click
import pytest
from click.shell_completion import ShellComplete

from pyspark_rocketmq.cli.main import cli, main
from pyspark_rocketmq.cli.parts import COMPLETION_VARIABLE, PROGRAM, PROGRAM_VARIABLE, SettingsCommand
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from tests.packaging.checkout import ROOT


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return code, captured.out, captured.err


def test_help_of_a_job_lists_its_options_with_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "demo", "--help")

    assert code == 0
    assert "orders " in out
    assert "[20000]" in out


def test_required_options_come_first_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "consume", "--help")

    assert out.index("  checkpoint ") < out.index("  subscription ")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("dmeo",), "There is no command 'dmeo'; did you mean 'demo'?"),
        (("xyz",), "There is no command 'xyz'; known: "),
        (
            ("offsets", "reset", "--to", "yesterday"),
            "'yesterday' is not earliest, latest, sink, a queue offset, or a time",
        ),
        (("offsets", "reset", "--queue", "0"), "'0' is not BROKER:ID, such as broker-a:0"),
        (("offsets", "reset", "--as-of", "v1.5"), "'v1.5' is neither a time such as 2026-11-20T10:00"),
        (("offsets", "reset"), "Give the new position: either --to or --as-of."),
        (
            ("offsets", "reset", "--to", "latest", "--as-of", "v3"),
            "Give the new position: either --to or --as-of.",
        ),
        (("offsets", "reset", "--to", "latest", "--rewind-sink"), "--rewind-sink needs --sink"),
        (("offsets", "skip", "--messages", "1"), "--messages needs --queue"),
        (("offsets", "diff"), "Give two states to compare"),
        (("offsets", "showw"), "did you mean 'show'?"),
        (("demo", "--optoin", "a=b"), "Did you mean '--option'?\nSee pyspark-rocketmq demo --help."),
        (("consume", "--topic", "orders"), "'--topic'. Did you mean '--option topic=...'?"),
        (("replay", "--name-server", "a:9876"), "Did you mean '--option nameServers=...'?"),
        (("demo", "--option", "ordres=3"), "unknown option 'ordres'; did you mean 'orders'?"),
        (("offsets", "show", "--format", "xml"), "xml"),
        (("offsets", "show"), "option 'offsetStore' is required"),
        (("offsets",), "Usage:"),
        ((), "Usage:"),
    ],
)
def test_bad_input_ends_with_code_2_and_says_what_was_wrong(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], hint: str
) -> None:
    code, _, err = run(capsys, *arguments)

    assert code == 2
    assert hint in err


def test_a_failure_ends_with_code_1_and_its_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, _, err = run(capsys, "offsets", "show", "--option", f"offsetStore={tmp_path}/none")

    assert code == 1
    assert err == (
        f"There are no offsets at {tmp_path}/none: correct option 'offsetStore'. A store gets its first offsets when "
        "a query starts.\n"
    )


def test_ctrl_c_ends_with_code_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Never:
        raise KeyboardInterrupt

    offsets = cli.commands["offsets"]
    assert isinstance(offsets, click.Group)
    monkeypatch.setattr(offsets.commands["show"], "callback", lambda **_: interrupted())

    code, _, err = run(capsys, "offsets", "show")

    assert (code, err.strip()) == (130, "Interrupted.")


def test_showing_offsets_loads_neither_spark_nor_pandas(tmp_path: Path) -> None:
    """They take longer to load than all the rest takes."""
    DeltaOffsetStore(tmp_path).claim("etl", "me", {MessageQueue("orders", "broker-a", 0): 7})
    program = (
        "import sys, pyspark_rocketmq.cli.main, pyspark_rocketmq.cli.offsets.lag, pyspark_rocketmq.cli.offsets.change;"
        f"pyspark_rocketmq.cli.main.main(['offsets', 'show', '--json', '--option', 'offsetStore={tmp_path}']);"
        "sys.exit(str({'pyspark', 'py4j', 'pandas', 'altair'} & set(sys.modules) or ''))"
    )

    environment = {"PYTHONPATH": f"{ROOT / 'connector'}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=False, capture_output=True, text=True
    )
    assert done.stderr.strip() == ""
    assert '"nextOffset": 7' in done.stdout


def test_help_shows_examples_that_can_be_copied(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "offsets", "reset", "--help")

    assert "  pyspark-rocketmq offsets reset --as-of v120 --force --conf order-etl.toml\n" in out


def jobs_of(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], SettingsCommand]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from jobs_of(command, *path, name)
        elif isinstance(command, SettingsCommand):
            yield (*path, name), command


@pytest.mark.parametrize("path", [path for path, _ in jobs_of(cli)], ids=" ".join)
def test_each_job_s_help_is_plain_text_with_examples_of_options_that_it_has(
    capsys: pytest.CaptureFixture[str], path: tuple[str, ...]
) -> None:
    _, out, _ = run(capsys, *path, "--help")
    examples = [shlex.split(line) for line in out.splitlines() if line.startswith(f"  {PROGRAM} ")]
    known = dict(jobs_of(cli))[path].option_keys

    assert "](" not in out
    assert examples
    for words in examples:
        assert tuple(words[1 : len(path) + 1]) == path
        given = [word.partition("=")[0] for before, word in pairwise(words) if before == "--option"]
        assert set(given) <= set(known)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completions(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    code, out, _ = run(capsys, "completion", shell)

    assert code == 0
    assert f"_PYSPARK_ROCKETMQ_COMPLETE={shell}_complete" in out


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (("offsets", "re"), "reset"),
        (("offsets", "reset", "--dry"), "--dry-run"),
        (("offsets", "reset", "--option", "consumerg"), "consumerGroup="),
        (("offsets", "show", "--format", "c"), "csv"),
    ],
)
def test_jobs_options_and_keys_are_completed(words: tuple[str, ...], completed: str) -> None:
    complete = ShellComplete(cli, {}, PROGRAM, COMPLETION_VARIABLE)

    assert [item.value for item in complete.get_completions(list(words[:-1]), words[-1])] == [completed]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--option", "secretKey:CANARY"),
        ("--option", "secretKey CANARY"),
        ("--option", "=CANARY"),
        ("--option", "secretKey:CANARY="),
        ("--option", "secretKey", "CANARY"),
        ("CANARY",),
        ("--secretKey=CANARY",),
        ("--secret-key", "CANARY"),
        ("--option", "secretKei=CANARY"),
        ("--option", "nameServers=user:CANARY@host"),
        ("--option", "offsetStore=postgres://u:CANARY@h/db"),
        ("--option", "offsetStore=s3://AKIA:CANARY@bucket/x", "--option", "nonsense=1"),
    ],
    ids=" ".join,
)
def test_a_secret_typed_nearly_right_is_not_shown(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    """A5."""
    code, out, err = run(capsys, "offsets", "lag", *arguments)

    assert code == 2
    assert "CANARY" not in out + err


@pytest.mark.parametrize(
    ("pair", "shown"), [("secretKey:x", "'secretKey…'"), ("=x", "'…'"), ("secretKey", "'secretKey'")]
)
def test_an_invalid_setting_is_shown_up_to_the_end_of_its_name(
    capsys: pytest.CaptureFixture[str], pair: str, shown: str
) -> None:
    assert f"--option {shown} is not key=value" in run(capsys, "offsets", "lag", "--option", pair)[2]


def test_extra_argument_error_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        "a word too many. Write each setting as --option key=value" in run(capsys, "offsets", "lag", "x")[2]
    )


def test_the_help_of_consume_begins_with_what_is_needed_and_ends_with_access(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, out, _ = run(capsys, "consume", "--help")

    assert out.index("  listener ") < out.index("  subscription ") < out.index("  tlsCaFile ")


def test_the_help_of_consume_says_what_will_do_in_place_of_a_topic(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, out, _ = run(capsys, "consume", "--help")

    words = " ".join(out.split())
    assert "The topic to read. [required, or `topics`, or `subscriptions`]" in words
    assert "or `topicPattern`" not in words


def test_help_uses_the_width_of_a_wide_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_: os.terminal_size((200, 50)))
    _, out, _ = run(capsys, "consume", "--help")

    assert 100 < max(map(len, out.splitlines())) <= 120


def test_help_names_the_script_that_started_the_program(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PROGRAM_VARIABLE, "./spark-submit.sh")

    assert "  ./spark-submit.sh offsets reset --as-of v120" in run(capsys, "offsets", "reset", "--help")[1]
    assert "See ./spark-submit.sh demo --help." in run(capsys, "demo", "--optoin")[2]


@pytest.mark.parametrize(
    ("module", "extra"),
    [("pyspark", "spark"), ("delta", "spark"), ("prometheus_client.core", "prometheus")],
)
def test_a_module_of_an_extra_that_is_not_installed_ends_with_the_extra_s_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, module: str, extra: str
) -> None:
    def lacking(**_: Any) -> Never:
        raise ModuleNotFoundError(name=module)

    monkeypatch.setattr(cli.commands["demo"], "callback", lacking)

    code, _, err = run(capsys, "demo")

    assert code == 1
    assert f"needs module '{module}', which the Python {sys.executable} lacks" in err
    assert f"-m pip install 'pyspark-rocketmq[{extra}]'" in err


def test_a_module_that_no_extra_has_is_a_bug_and_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(**_: Any) -> Never:
        raise ModuleNotFoundError(name="pyspark_rocketmq.gone")

    monkeypatch.setattr(cli.commands["demo"], "callback", lacking)

    with pytest.raises(ModuleNotFoundError):
        main(["demo"])


def test_the_simulator_takes_its_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["simulator", "--help"])

    out = capsys.readouterr().out
    assert out.startswith("usage: pyspark-rocketmq simulator ")
    assert "--brokers BROKERS" in out
