"""Maxwell's JSON.

Position (``output_binlog_position=true``): epoch of the server (with ``output_server_id=true``; its number
among the servers that were the primary: ``Rules.epoch_of``), number of the binary log's file, offset in it,
number of the row in its transaction. Rows of a bootstrap (Maxwell's snapshot of a table) have no position.

A message has no types. So values are as in its JSON, with exact decimals, and bytes are text in base64.
Documents of JSON columns become JSON text, and so do SETs, which Maxwell writes as arrays: ``["a","d"]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark_rocketmq.change_data.change import (
    BadChange,
    ChangeMessage,
    Decoded,
    Operation,
    PassedOver,
    Position,
    SchemaChange,
    SourceTable,
)
from pyspark_rocketmq.change_data.json_text import parse, show
from pyspark_rocketmq.change_data.rows import RowImage, key_columns
from pyspark_rocketmq.change_data.rules import Rules, checked, number_of_file, source_time
from pyspark_rocketmq.change_data.times import MALFORMED, Unreadable

_OPERATIONS: Final = {
    "insert": Operation.INSERT,
    "update": Operation.UPDATE,
    "delete": Operation.DELETE,
    "bootstrap-insert": Operation.SNAPSHOT,
}
_MARKS: Final = ("bootstrap-start", "bootstrap-complete", "heartbeat")
_STATEMENTS: Final = ("table-", "database-")
_LAST_ROW: Final = 2**62
"""Row number of the last row of a transaction, whose message has ``commit`` in place of a number."""


@dataclass(frozen=True, slots=True)
class MaxwellJson:
    """Reads the messages of Maxwell: the envelope ``maxwell``."""

    rules: Rules

    def decode(self, message: ChangeMessage) -> Sequence[Decoded]:
        """Return the changes and other contents of a message, in their order; the result is never empty.

        A part that cannot be read becomes a :class:`BadChange`; no error is raised.
        """
        if message.body.strip() in (b"", b"null"):
            return [PassedOver("empty body")]
        try:
            event = parse(message.body)
            if not isinstance(event, dict):
                return [BadChange("the body is not a JSON object")]
        except MALFORMED as fault:
            return [BadChange(f"the body cannot be read as a message of Maxwell: {fault}")]
        table = _table(event)
        try:
            return list(self._changes(event, table))
        except MALFORMED as fault:
            return [BadChange(str(fault), table)]

    def _changes(self, event: Mapping[str, Any], table: SourceTable | None) -> Iterator[Decoded]:
        kind = event.get("type")
        if not isinstance(kind, str):
            raise Unreadable("the message has no type")
        if kind in _MARKS:
            yield PassedOver(kind)
        elif kind.startswith(_STATEMENTS):
            yield SchemaChange(table=table, statement=str(event.get("sql") or ""), kind=kind)
        elif kind not in _OPERATIONS:
            raise Unreadable(
                f"Maxwell has no message of the type {show(kind)}: another program may have written it"
            )
        elif table is None:
            raise Unreadable(f"a message of the type {show(kind)} must name its table")
        else:
            yield from self._image(_OPERATIONS[kind], table, event).changes()

    def _image(self, operation: Operation, table: SourceTable, event: Mapping[str, Any]) -> RowImage:
        row, old = _row(event, "data"), _row(event, "old")
        own = event.get("primary_key_columns") or []
        if not isinstance(own, list) or not all(isinstance(name, str) for name in own):
            raise Unreadable("the message's member primary_key_columns is not a list of names")
        return RowImage(
            table=table,
            operation=operation,
            key_columns=key_columns(self.rules.keys_of(table), own, row),
            row=row,
            old=old,
            position=None if operation is Operation.SNAPSHOT else self._position(event),
            absent=frozenset(),
            types={},
            source_time=_time(event.get("ts")),
        )

    def _position(self, event: Mapping[str, Any]) -> Position | None:
        text = event.get("position")
        if not isinstance(text, str):
            return None
        file, _, offset = text.rpartition(":")
        row = _LAST_ROW if event.get("commit") is True else _whole(event.get("xoffset") or 0)
        return checked(
            (
                self.rules.epoch_of(_whole(event.get("server_id") or 0)),
                number_of_file(file),
                _whole(offset),
                row,
            )
        )


def _table(event: Mapping[str, Any]) -> SourceTable | None:
    name = event.get("table")
    return (
        SourceTable(str(event.get("database") or ""), None, name) if isinstance(name, str) and name else None
    )


def _row(event: Mapping[str, Any], member: str) -> dict[str, Any]:
    row = event.get(member) or {}
    if not isinstance(row, dict):
        raise Unreadable(f"the message's member {member} is not a row")
    return {name: _value(value) for name, value in row.items()}


def _value(value: Any) -> Any:
    # An array may be a SET or a document, so a text that fits both is chosen.
    return show(value) if isinstance(value, dict | list) else value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise Unreadable(f"{show(value)} is not a whole number")
    return int(value)


def _time(value: Any) -> Any:
    # Rows have seconds, statements milliseconds.
    return source_time(value * 1000) if isinstance(value, int) and not isinstance(value, bool) else None
