"""Commands ``offsets history`` and ``offsets diff``: changes of a group, and their effect on its offsets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rich.console import Console

from pyspark_rocketmq.cli.offsets.groups import open_group
from pyspark_rocketmq.cli.offsets.moves import AtTime, AtVersion
from pyspark_rocketmq.cli.offsets.records import iso
from pyspark_rocketmq.cli.options import OffsetsHistorySettings
from pyspark_rocketmq.cli.output import OutputForm, print_records
from pyspark_rocketmq.model import QUEUE_COLUMNS, MessageQueue, queue_columns
from pyspark_rocketmq.offsets.history import StoredChange
from pyspark_rocketmq.offsets.store import OffsetRow

Rows = Mapping[MessageQueue, OffsetRow]
_DIFF_COLUMNS = (*QUEUE_COLUMNS, "from", "to", "moved", "epochFrom", "epochTo", "owner")


class Moments(NamedTuple):
    """The two moments that are compared."""

    since: AtTime | AtVersion
    until: AtTime | AtVersion | None
    """None means now."""


def show_history(settings: OffsetsHistorySettings, limit: int, form: OutputForm, console: Console) -> None:
    """Print the newest ``limit`` versions of the offset store to which the group can be reset, newest first.

    Raises:
        JobFailed: If there is no such store or group, or the store keeps no history.
    """
    group = open_group(settings, settings.consumer_group)
    records = [_record(change) for change in reversed(group.changes[-limit:])]
    print_records(console, form, f"Changes of consumer group {group.name}", tuple(_record(None)), records)


def show_diff(
    settings: OffsetsHistorySettings,
    other: Moments | str,
    form: OutputForm,
    console: Console,
) -> None:
    """Print the queues whose offsets differ between two moments of a group, or between two groups.

    Raises:
        JobFailed: If there is no such store, group or version, or the store keeps no history.
        OffsetError: If the store does not go back so far.
    """
    group = open_group(settings, settings.consumer_group)
    if isinstance(other, str):
        before, after = group.rows, open_group(settings, other).rows
        title = f"from {group.name} to {other}"
    else:
        change = group.change_at(other.since)
        before = group.rows_of(change)
        after = group.rows if other.until is None else group.rows_at(other.until)
        title = f"of {group.name} since version {change.version}, {iso(change.at_s)}"
    print_records(console, form, f"Differences {title}", _DIFF_COLUMNS, differences(before, after))


def differences(before: Rows, after: Rows) -> list[dict[str, Any]]:
    """Return a record for each queue whose offset or epoch differs; None where a side lacks the queue."""
    records = []
    for queue in sorted({**before, **after}):
        old, new = before.get(queue), after.get(queue)
        if (old and (old.next_offset, old.epoch)) == (new and (new.next_offset, new.epoch)):
            continue
        records.append(
            {
                **queue_columns(queue),
                "from": old.next_offset if old else None,
                "to": new.next_offset if new else None,
                "moved": new.next_offset - old.next_offset if old and new else None,
                "epochFrom": old.epoch if old else None,
                "epochTo": new.epoch if new else None,
                "owner": (new or old).owner_id or None,  # type: ignore[union-attr]
            }
        )
    return records


def _record(change: StoredChange | None) -> dict[str, Any]:
    if change is None:
        return dict.fromkeys(("version", "changedAt", "action"))
    return {"version": change.version, "changedAt": iso(change.at_s), "action": change.action}
