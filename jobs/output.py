"""How jobs print records: a table for people, JSON and CSV for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from rich.console import Console

from jobs.tables import records_table


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
    console.print_json(json.dumps(document), indent=2)


def print_csv(console: Console, columns: Sequence[str], records: Sequence[Mapping[str, Any]]) -> None:
    """Print a heading and a line per record; a missing value is an empty field."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    console.out(text.getvalue(), end="", highlight=False)
