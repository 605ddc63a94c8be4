"""How jobs print records: a table for people, JSON and CSV for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from rich.console import Console

from jobs.tables import records_table
from pyspark_rocketmq.display import peer_text

_FORMULA: Final = ("=", "+", "-", "@")
"""What a text of CSV begins with that spreadsheets would calculate."""


class OutputForm(StrEnum):
    """Values of ``--format``."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def print_records(
    console: Console,
    form: OutputForm,
    title: str,
    columns: Sequence[str],
    records: Sequence[Mapping[str, Any]],
) -> None:
    """Print ``records`` with ``columns``, which all of them have; of a table columns without values are left out."""
    match form:
        case OutputForm.TABLE:
            shown = [name for name in columns if any(record[name] is not None for record in records)]
            console.print(records_table(title, shown or columns, records))
        case OutputForm.JSON:
            print_json(console, [{name: record[name] for name in columns} for record in records])
        case OutputForm.CSV:
            print_csv(console, columns, records)


def print_json(console: Console, document: object) -> None:
    """Print one JSON document."""
    # Without ensure_ascii control characters from 0x7f on would reach the terminal.
    console.print_json(json.dumps(document), indent=2, ensure_ascii=True)


def print_csv(console: Console, columns: Sequence[str], records: Sequence[Mapping[str, Any]]) -> None:
    """Print a heading and a line per record; a missing value is an empty field.

    Text is as ``peer_text`` shows it, with an apostrophe before what a spreadsheet would take for a formula.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _field(record[name]) for name in columns} for record in records)
    console.out(text.getvalue(), end="", highlight=False)


def _field(value: object) -> object:
    if not isinstance(value, str):
        return value
    shown = peer_text(value)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown
