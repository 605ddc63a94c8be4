"""Prints records: a table for people, JSON and CSV for programs.

Cells of a table are text, never markup.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from pyspark_rocketmq.cli.offsets.records import BROKER_COLUMNS, LagTotal, OffsetView
from pyspark_rocketmq.display import peer_text
from pyspark_rocketmq.model import QUEUE_COLUMNS

_MOST_WIDE: Final = 120
"""Maximum width of a table for people, in characters; few terminals are wider."""
_ALWAYS = (*QUEUE_COLUMNS[1:], "nextOffset")
_WHERE_ANY = (*BROKER_COLUMNS, "note", "reconsumeTimes", "suspendedUntil")
"""Columns shown only if at least one queue has a value."""
_LAST = ("epoch", "updatedAt")
_SPARE = ("epoch", "brokerMinOffset", "updatedAt", "brokerMaxOffset", "reconsumeTimes")
"""Columns left out one by one, in this order, if a table is too wide; JSON and CSV have all columns."""

_TIMES: Final = ("suspendedUntil", "updatedAt")
_TO_SECONDS: Final = len("2026-11-20T10:00:00")
_LAG_ALWAYS = (*QUEUE_COLUMNS[1:], "nextOffset", "brokerMaxOffset", "lag", "lagSeconds")
_LAG_WHERE_ANY = ("note", "reconsumeTimes", "suspendedUntil")
_LAG_LAST = ("heldBy", "lockAgeSeconds", "epoch")
_LAG_SPARE = ("epoch", "claimedBy", "brokerMaxOffset", "reconsumeTimes", "lockAgeSeconds")
_TOTALS_WHERE_ANY = frozenset(
    {"failedPerSecond", "failedInHour", "callMs", "okPerSecond", "suspended", "beyondEnd", "withoutBroker"}
)
_TOTALS_SPARE = ("callMs", "okPerSecond", "failedPerSecond", "members", "queues")
_FORMULA: Final = ("=", "+", "-", "@")
"""First characters of strings that spreadsheets would interpret as formulas."""


def records_table(title: str, columns: Sequence[str], records: Iterable[Mapping[str, Any]]) -> Table:
    """Create a table of ``records``, with numbers aligned to the right and missing values empty."""
    records = list(records)
    heading = Text(peer_text(title))
    table = Table(
        title=heading, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for column in columns:
        is_number = any(isinstance(record[column], int | float) for record in records)
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for record in records:
        table.add_row(*(_cell(record[column]) for column in columns))
    return table


def _cell(value: object) -> Text:
    return Text("" if value is None else peer_text(str(value)))


def _fitted_table(
    console: Console,
    title: str,
    columns: Sequence[str],
    records: Sequence[Mapping[str, Any]],
    spare: Sequence[str],
) -> Table:
    """Create a table that fits the console and 120 characters.

    If the table is too wide, the columns ``spare`` are left out one by one, in their order, until it fits.
    The table's caption names the columns that are left out.
    """
    options = console.options.update(max_width=sys.maxsize)
    shown, left_out = list(columns), []
    table = records_table(title, shown, records)
    for name in (name for name in spare if name in columns):
        if Measurement.get(console, options, table).maximum <= min(console.width, _MOST_WIDE):
            break
        shown.remove(name)
        left_out.append(name)
        table = records_table(title, shown, records)
    if left_out:
        table.caption = Text(f"--json shows more: {', '.join(left_out)}")
        table.caption_justify = "left"
    return table


def offset_table(group: str, topic: str, views: Sequence[OffsetView], console: Console) -> Table:
    """Create a table of one group's progress in one topic.

    It has columns with offsets from the brokers only if a broker has answered.
    """
    records = [view.columns() for view in views]
    has_bounds = any(view.bounds is not None for view in views)
    optional = [
        name
        for name in _WHERE_ANY
        if (has_bounds if name in BROKER_COLUMNS else any(record[name] for record in records))
    ]
    title = f"Offsets of consumer group {group} in topic {topic}"
    return _fitted_table(console, title, (*_ALWAYS, *optional, *_LAST), _to_seconds(records), _SPARE)


def _to_seconds(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return ``records`` with times in a form for people, in UTC."""
    return [
        {
            name: value[:_TO_SECONDS].replace("T", " ") if name in _TIMES and value else value
            for name, value in record.items()
        }
        for record in records
    ]


def lag_table(total: LagTotal, console: Console) -> Table:
    """Create a table of one group's lag in one topic.

    A column with the member that claimed each queue is shown only if some queue is not held by that member.
    """
    records = [view.columns() for view in total.views]
    optional = [name for name in _LAG_WHERE_ANY if any(record[name] for record in records)]
    is_elsewhere = any(record["claimedBy"] != record["heldBy"] for record in records)
    claimed = ("claimedBy",) if is_elsewhere else ()
    title = f"Lag of consumer group {total.group} in topic {total.topic}"
    columns = (*_LAG_ALWAYS, *optional, *_LAG_LAST, *claimed)
    return _fitted_table(console, title, columns, _to_seconds(records), _LAG_SPARE)


def totals_table(sums: Sequence[LagTotal], console: Console) -> Table:
    """Create a table with a row for each group and topic.

    Columns that are seldom of interest are left out if all their values are 0 or empty.
    """
    records = [total.columns() for total in sums]
    names = tuple(records[0]) if records else ("consumerGroup",)
    columns = [
        name for name in names if name not in _TOTALS_WHERE_ANY or any(record[name] for record in records)
    ]
    return _fitted_table(console, "Totals", columns, records, _TOTALS_SPARE)


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
    """Print ``records``, which all have ``columns``; a table leaves out columns without values."""
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
    # Without ensure_ascii, control characters from 0x7f on would reach the terminal.
    console.print_json(json.dumps(document), indent=2, ensure_ascii=True)


def print_csv(console: Console, columns: Sequence[str], records: Sequence[Mapping[str, Any]]) -> None:
    """Print a heading and one line per record; a missing value is an empty field.

    Text is escaped by ``peer_text``; an apostrophe precedes what a spreadsheet would interpret as a formula.
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
