"""Changes as JSON messages, in an envelope of the tests' own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pyspark_rocketmq.change_data.change import (
    BadChange,
    Change,
    ChangeMessage,
    Decoded,
    Operation,
    PassedOver,
    SourceTable,
)

TABLE = SourceTable("shop", None, "orders")


class JsonEnvelope:
    """Reads what :func:`body_of` writes; a heartbeat is ``null``."""

    def decode(self, message: ChangeMessage) -> Sequence[Decoded]:
        try:
            parts = json.loads(message.body)
        except ValueError:
            return [BadChange("The body is no JSON.")]
        return [_change_of(part) for part in parts] if parts else [PassedOver("heartbeat")]


def _change_of(part: dict[str, Any]) -> Change:
    position = part["position"]
    return Change(
        table=SourceTable(*part.get("table", TABLE_PARTS)),
        operation=Operation(part["operation"]),
        key=part["key"],
        row=part["row"],
        before=part.get("before"),
        position=None if position is None else tuple(position),
        absent=frozenset(part["absent"]),
        source_time=None if part["time"] is None else datetime.fromisoformat(part["time"]),
    )


TABLE_PARTS = (TABLE.database, TABLE.schema, TABLE.name)


def body_of(*changes: Change) -> bytes:
    """The body of a message with these changes."""
    return json.dumps(
        [
            {
                "table": [change.table.database, change.table.schema, change.table.name],
                "operation": str(change.operation),
                "key": dict(change.key),
                "row": dict(change.row),
                "before": change.before,
                "position": change.position,
                "absent": sorted(change.absent),
                "time": None if change.source_time is None else change.source_time.isoformat(),
            }
            for change in changes
        ]
    ).encode()
