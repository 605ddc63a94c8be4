"""What jobs print of texts that others choose: client ids of members, names of brokers."""

from __future__ import annotations

import csv
import io
import json

import pytest
from rich.console import Console

from pyspark_rocketmq.cli.output import OutputForm, print_records

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b2J\u202e[red]x[/nosuch][link=http://evil]y[/link]\r\n2026 INFO forged"


def printed(form: OutputForm, value: object, title: str = "t") -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=400, color_system=None)
    print_records(console, form, title, ("heldBy", "n"), [{"heldBy": value, "n": -1}])
    return file.getvalue()


@pytest.mark.parametrize("form", OutputForm)
def test_no_text_of_others_commands_the_terminal(form: OutputForm) -> None:
    out = printed(form, EVIL, title=EVIL)

    assert [line for line in out.splitlines() if line.startswith("2026")] == []
    assert all(
        character.isprintable() or character == "\n"
        for character in out.replace("\x1b[1m", "").replace("\x1b[0m", "")
    )
    assert "[/nosuch][link=http://evil]y[/link]" in out


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+1", "-1", "@x", "plain@1", "订单"])
def test_a_field_of_csv_is_no_formula(text: str) -> None:
    _, (shown, number) = csv.reader(io.StringIO(printed(OutputForm.CSV, text)))

    assert shown == (text if text in ("plain@1", "订单") else f"'{text}")
    assert number == "-1"


def test_json_holds_the_text_as_it_is() -> None:
    assert json.loads(printed(OutputForm.JSON, EVIL)) == [{"heldBy": EVIL, "n": -1}]
