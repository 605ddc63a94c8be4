"""Recorded messages, and decoding them."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC
from functools import cache
from pathlib import Path
from typing import Any

from pyspark_rocketmq.change_data.canal import CanalJson
from pyspark_rocketmq.change_data.canal_protobuf import CanalProtobuf
from pyspark_rocketmq.change_data.change import (
    BadChange,
    Change,
    ChangeMessage,
    Decoded,
    Position,
    SchemaChange,
)
from pyspark_rocketmq.change_data.debezium import DebeziumJson
from pyspark_rocketmq.change_data.rules import OutOfRangeTimes, Rules

RULES = Rules(source_time_zone=UTC)
LENIENT = Rules(out_of_range=OutOfRangeTimes.NULL)
_FOLDER = Path(__file__).parents[1] / "golden" / "change_data"


@cache
def recorded(name: str) -> Sequence[Mapping[str, Any]]:
    """Return the lines of a recording."""
    return [json.loads(line) for line in (_FOLDER / f"{name}.jsonl").read_text().splitlines()]


def canal(line: Mapping[str, Any], rules: Rules = RULES) -> Sequence[Decoded]:
    """Decode the flat JSON of a recorded entry."""
    return CanalJson(rules).decode(ChangeMessage((line["flat"] or "").encode()))


def protobuf(line: Mapping[str, Any], rules: Rules = RULES) -> Sequence[Decoded]:
    """Decode the protobuf packet of a recorded entry."""
    return CanalProtobuf(rules).decode(ChangeMessage(b64decode(line["protobuf"])))


def debezium(line: Mapping[str, Any], rules: Rules = LENIENT) -> Sequence[Decoded]:
    """Decode a recorded message of Debezium."""
    return DebeziumJson(rules).decode(ChangeMessage((line["value"] or "").encode(), line["key"] or ""))


def canal_entries(table: str, event: str, name: str = "canal") -> Sequence[Mapping[str, Any]]:
    """Return the recorded entries of a table."""
    return [line for line in recorded(name) if (line["table"], line["event"]) == (table, event)]


def debezium_changes(name: str, table: str) -> Sequence[Change]:
    """Return the changes of a table in a recording of Debezium."""
    decoded = [change for line in recorded(f"debezium_{name}") for change in debezium(line)]
    return [change for change in decoded if isinstance(change, Change) and change.table.name == table]


def flat(**members: Any) -> bytes:
    """Return a flat message of Canal about one row of ``shop.t``."""
    base = {
        "data": [{"id": "1"}],
        "database": "shop",
        "es": 1795788551000,
        "gtid": "",
        "id": 1,
        "isDdl": False,
        "mysqlType": {"id": "int(11)"},
        "old": None,
        "pkNames": ["id"],
        "sql": "",
        "sqlType": {"id": 4},
        "table": "t",
        "ts": 1795788551648,
        "type": "INSERT",
    }
    return json.dumps(base | members).encode()


def one(decoded: Sequence[Decoded]) -> Change:
    """Return the only change."""
    (change,) = decoded
    assert isinstance(change, Change), change
    return change


def positions(decoded: Iterable[Decoded]) -> list[Position]:
    """Return the positions of changes and statements."""
    found = [change.position for change in decoded if isinstance(change, Change | SchemaChange)]
    assert None not in found
    return [position for position in found if position is not None]


def reason(decoded: Sequence[Decoded]) -> str:
    """Return why the only change is bad."""
    (change,) = decoded
    assert isinstance(change, BadChange), change
    return change.reason
