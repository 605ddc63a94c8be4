"""Canal's protobuf messages (``canal.mq.flatMessage=false``): a ``Packet`` of ``Entry`` values.

Position: number of transactions that the source has executed (0 without ``gtidon``), epoch of the server (its
number among the servers that were the primary: ``Rules.epoch_of``), number of the binary log's file, offset
in it. All rows of one event of the binary log have the same position, and only the order of the queue
distinguishes them.

If Canal chooses queues by a hash of the keys, each row of an event is in an entry of its own. The entries are
in several queues, which have no order among them. A statement such as
``UPDATE t SET no = no + 1 ORDER BY no DESC`` frees each key before another row gets this key. The delete of
an old key must then come before the insert of another row with this key. To ensure this, the delete gets the
position of the byte before the event, if its entry has only one of the event's several rows.

``INSERT … ON DUPLICATE KEY UPDATE`` and REPLACE may change a row's key twice in one event, from 1 to 2 to 3.
Nothing in the entries distinguishes this from keys that are freed. So the sink's table keeps a row with the
key 2, which the source no longer has.

This module reads the few fields that it needs without generated code. They are those of
``CanalProtocol.proto`` and ``EntryProtocol.proto``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from pyspark_rocketmq.change_data.change import (
    BadChange,
    Change,
    ChangeMessage,
    Decoded,
    Operation,
    PassedOver,
    Position,
    SchemaChange,
    SourceTable,
)
from pyspark_rocketmq.change_data.mysql_types import mysql_column
from pyspark_rocketmq.change_data.rows import RowImage, key_columns
from pyspark_rocketmq.change_data.rules import (
    Rules,
    checked,
    decoded,
    number_of_file,
    source_time,
    transactions_in,
)
from pyspark_rocketmq.change_data.times import MALFORMED, Unreadable

Fields: TypeAlias = Mapping[int, Sequence[int | bytes]]

_MESSAGES: Final = 7
"""``PacketType.MESSAGES``: the type of a packet that contains entries."""
_UNCOMPRESSED: Final = (0, 1)
_ROW_DATA: Final = 2
"""``EntryType.ROWDATA``: the type of an entry with rows or a statement."""
_OTHER_ENTRIES: Final = {1: "transaction mark", 3: "transaction mark", 4: "heartbeat", 5: "transaction mark"}
_OPERATIONS: Final = {1: Operation.INSERT, 2: Operation.UPDATE, 3: Operation.DELETE}
_TRUNCATE: Final = 8
_STATEMENTS: Final = {
    4: "create",
    5: "alter",
    6: "erase",
    7: "query",
    8: "truncate",
    9: "rename",
    10: "cindex",
    11: "dindex",
}
_ROWS_OF_EVENT: Final = "rowsCount"
"""Property in an entry's header: the number of rows in the entry's event."""
_UPDATE: Final = 2
"""Number of the event UPDATE, the default of the field ``eventType``."""


@dataclass(frozen=True, slots=True)
class CanalProtobuf:
    """Reads the messages of Canal in protobuf: the envelope ``canal-protobuf``."""

    rules: Rules

    def decode(self, message: ChangeMessage) -> Sequence[Decoded]:
        """Return the changes and other contents of a message, in their order; the result is never empty.

        A part that cannot be read becomes a :class:`BadChange`; no error is raised.
        """
        if not message.body:
            return [PassedOver("empty body")]
        try:
            packet = fields(message.body)
            if number(packet, 3) != _MESSAGES:
                return [BadChange("the body is not a packet of Canal with messages")]
            if number(packet, 4) not in _UNCOMPRESSED:
                return [BadChange("the packet is compressed, which Canal's own clients refuse, too")]
            entries = [part for part in fields(data(packet, 5)).get(2, ()) if isinstance(part, bytes)]
            return [change for entry in entries for change in self._entry(entry)] or [
                PassedOver("empty body")
            ]
        except MALFORMED as fault:
            return [BadChange(f"the body cannot be read as a packet of Canal: {fault}")]

    def _entry(self, encoded: bytes) -> Iterator[Decoded]:
        entry = fields(encoded)
        kind = number(entry, 2, _ROW_DATA)
        if kind != _ROW_DATA:
            yield PassedOver(_OTHER_ENTRIES.get(kind, "other entry"))
            return
        header, change = fields(data(entry, 1)), fields(data(entry, 3))
        name = text(header, 9)
        table = SourceTable(text(header, 8), None, name) if name else None
        try:
            yield from self._changes(header, change, table)
        except MALFORMED as fault:
            yield BadChange(str(fault), table)

    def _changes(self, header: Fields, change: Fields, table: SourceTable | None) -> Iterator[Decoded]:
        event = number(change, 2, _UPDATE)
        position = self._position(header)
        if number(change, 10):
            yield _statement(event, text(change, 11), table, position, header)
        elif event not in _OPERATIONS:
            yield PassedOver("statement")
        elif table is None:
            yield BadChange("the entry names no table")
        else:
            rows = change.get(12, ())
            left_at = _before(position) if len(rows) == 1 < _rows_of_event(header) else position
            for row in rows:
                try:
                    encoded = fields(row if isinstance(row, bytes) else b"")
                    of_row = _OPERATIONS[event], table, encoded, position, header
                    yield from self._image(*of_row, left_at=left_at).changes()
                except MALFORMED as fault:
                    yield BadChange(str(fault), table)

    def _image(
        self,
        operation: Operation,
        table: SourceTable,
        encoded: Fields,
        position: Position,
        header: Fields,
        *,
        left_at: Position,
    ) -> RowImage:
        is_delete = operation is Operation.DELETE
        before, after = _columns(encoded, 1), _columns(encoded, 2)
        known = before if is_delete else {**_keys_of(before), **after}
        own = [name for name, column in {**before, **after}.items() if column.is_key]
        columns = {
            name: mysql_column(column.type, self.rules) for name, column in {**before, **after}.items()
        }
        row = decoded(columns, ((name, column.value) for name, column in known.items()))
        return RowImage(
            table=table,
            operation=operation,
            key_columns=key_columns(self.rules.keys_of(table), own, row),
            row=row,
            old={}
            if is_delete
            else decoded(columns, ((name, column.value) for name, column in before.items())),
            position=position,
            absent=frozenset(columns.keys() - row.keys()),
            types={name: column.type for name, column in columns.items()},
            source_time=source_time(number(header, 6)),
            left_at=left_at,
        )

    def _position(self, header: Fields) -> Position:
        gtids = text(header, 13)
        return checked(
            (
                transactions_in(gtids) if gtids else 0,
                self.rules.epoch_of(number(header, 4)),
                number_of_file(text(header, 2)),
                number(header, 3),
            )
        )


def _statement(
    event: int, sql: str, table: SourceTable | None, position: Position, header: Fields
) -> Decoded:
    if event == _TRUNCATE and table is not None:
        return Change(
            table=table,
            operation=Operation.TRUNCATE,
            position=position,
            source_time=source_time(number(header, 6)),
        )
    return SchemaChange(table=table, statement=sql, kind=_STATEMENTS.get(event, ""), position=position)


def _rows_of_event(header: Fields) -> int:
    """Return how many rows an entry's event has; 0 if unknown. The entry may have only one of them."""
    pairs = (fields(pair) for pair in header.get(12, ()) if isinstance(pair, bytes))
    return next((int(text(pair, 2)) for pair in pairs if text(pair, 1) == _ROWS_OF_EVENT), 0)


def _before(position: Position) -> Position:
    """Return the position of the byte before an event: below the event, and not below any earlier one."""
    *place, offset = position
    return (*place, max(offset - 1, 0))


@dataclass(frozen=True, slots=True)
class _Column:
    value: str | None
    type: str
    is_key: bool


def _columns(row: Fields, at: int) -> dict[str, _Column]:
    columns = {}
    for encoded in row.get(at, ()):
        column = fields(encoded if isinstance(encoded, bytes) else b"")
        value = None if number(column, 6) else text(column, 8)
        columns[text(column, 3)] = _Column(value, text(column, 10), bool(number(column, 4)))
    return columns


def _keys_of(columns: Mapping[str, _Column]) -> dict[str, _Column]:
    return {name: column for name, column in columns.items() if column.is_key}


def fields(encoded: bytes) -> dict[int, list[int | bytes]]:
    """Return the values of each field of a protobuf message, by the field's number.

    A value is a number, or bytes for a field with a length.

    Raises:
        ValueError: If the bytes are no such message.
    """
    found: dict[int, list[int | bytes]] = {}
    at = 0
    while at < len(encoded):
        tag, at = _varint(encoded, at)
        value: int | bytes
        match tag & 7:
            case 0:
                value, at = _varint(encoded, at)
            case 2:
                length, at = _varint(encoded, at)
                value, at = encoded[at : at + length], at + length
            case 1 | 5 as width:
                size = 8 if width == 1 else 4
                value, at = int.from_bytes(encoded[at : at + size], "little"), at + size
            case other:
                raise Unreadable(f"a field has the wire type {other}, which protobuf does not have here")
        if at > len(encoded):
            raise Unreadable("a protobuf message in the body is cut off")
        found.setdefault(tag >> 3, []).append(value)
    return found


def _varint(encoded: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(encoded):
            raise Unreadable("a protobuf message in the body is cut off")
        byte = encoded[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise Unreadable("a number has more than ten bytes")


def number(message: Fields, field: int, otherwise: int = 0) -> int:
    """Return the number in a field of a protobuf message; ``otherwise`` if the field is missing.

    If the field occurs more than once, its last value counts.

    Raises:
        ValueError: If the field is no number.
    """
    value = message.get(field, (otherwise,))[-1]
    if not isinstance(value, int):
        raise Unreadable(f"field {field} of a protobuf message in the body is not a number")
    return value


def data(message: Fields, field: int) -> bytes:
    """Return the bytes in a field of a protobuf message; empty if the field is missing.

    If the field occurs more than once, its last value counts.

    Raises:
        ValueError: If the field is a number.
    """
    value = message.get(field, (b"",))[-1]
    if not isinstance(value, bytes):
        raise Unreadable(
            f"field {field} of a protobuf message in the body is a number, and should have a length"
        )
    return value


def text(message: Fields, field: int) -> str:
    """Return the text in a field of a protobuf message; empty if the field is missing.

    If the field occurs more than once, its last value counts.

    Raises:
        ValueError: If the field is no text in UTF-8.
    """
    try:
        return data(message, field).decode("utf-8")
    except UnicodeDecodeError:
        raise Unreadable(f"field {field} of a protobuf message in the body is not text in UTF-8") from None
