"""The command line: exit codes, help, hints; no traceback for bad input and no Spark where none is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from jobs.cli import cli, main
from tests.packaging.checkout import ROOT


def run(capsys, *arguments):
    code = main(arguments)
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return code, captured.out, captured.err


def test_help_of_a_job_lists_its_options_with_defaults(capsys):
    code, out, _ = run(capsys, "demo", "--help")

    assert code == 0
    assert "orders " in out
    assert "[20000]" in out


def test_required_options_come_first_in_the_help(capsys):
    _, out, _ = run(capsys, "consume", "--help")

    assert out.index("checkpoint") < out.index("subscription")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("dmeo",), "There is no job 'dmeo'; did you mean 'demo'?"),
        (("xyz",), "There is no job 'xyz'; known: consume, demo, offsets"),
        (("offsets", "showw"), "did you mean 'show'?"),
        (("demo", "--optoin", "a=b"), "--option"),
        (("demo", "--option", "ordres=3"), "unknown option 'ordres'; did you mean 'orders'?"),
        (("offsets", "show", "--format", "xml"), "xml"),
        (("offsets", "show"), "option 'offsetStore' is required"),
        (("offsets",), "Usage:"),
        ((), "Usage:"),
    ],
)
def test_bad_input_ends_with_code_2_and_says_what_was_wrong(capsys, arguments, hint):
    code, _, err = run(capsys, *arguments)

    assert code == 2
    assert hint in err


def test_a_failure_ends_with_code_1_and_its_sentence(capsys, tmp_path):
    code, _, err = run(capsys, "offsets", "show", "--option", f"offsetStore={tmp_path}/none")

    assert code == 1
    assert err == f"There is no offset table at {tmp_path}/none; correct option 'offsetStore'.\n"


def test_ctrl_c_ends_with_code_130(capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.commands["offsets"].commands["show"], "callback", lambda **_: interrupted())

    code, _, err = run(capsys, "offsets", "show")

    assert (code, err.strip()) == (130, "Interrupted.")


def test_showing_offsets_loads_no_spark():
    program = "import sys, jobs.cli, jobs.offsets_show, jobs.offsets_lag; sys.exit('pyspark' in sys.modules or 'py4j' in sys.modules)"

    environment = {"PYTHONPATH": f"{ROOT / 'connector'}:{ROOT}"}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0
