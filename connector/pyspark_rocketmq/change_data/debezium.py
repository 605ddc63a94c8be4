"""Debezium's JSON: with ``schema`` and ``payload``, without the schema, and flattened.

Parts of a position; their number is the same in all messages of a connector:

* PostgreSQL: last commit before the transaction, LSN, order in the transaction (0 without
  ``provide.transaction.metadata``). LSNs of interleaved transactions are not in the order of their commits.
* MySQL and MariaDB: epoch of the server (its number among the servers that were the primary:
  ``Rules.epoch_of``), number of the binary log's file, offset in it, order in the transaction (without
  ``provide.transaction.metadata``: number of the row in its event). All events of a compressed transaction
  have the same offset, and the rows of each event are numbered from 0, so only the order in the transaction
  distinguishes them. In other transactions the offset distinguishes the events.
* SQL Server: commit LSN and change LSN, three parts each, and the number of the event.
* Other connectors: none.

For an update of the table's own key, Debezium sends a delete and an insert, in two queues. Both have the same
position if messages have no order in the transaction. If the option ``keys`` names other columns, the update
may leave the values of these columns as they are. The delete and the insert then have the same key, and a
delete that is read last would remove the row. So the delete gets a position just below that of the insert.

Without a schema, values are as JSON has them, types are empty, and nothing distinguishes bytes and precise
decimals from text: set ``decimal.handling.mode=string``.

Debezium Server writes the key of the row into the message's KEYS, and headers into its properties.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

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
    SourceType,
)
from pyspark_rocketmq.change_data.connect_types import DEEPEST_ARRAY, connect_column, variable_decimal
from pyspark_rocketmq.change_data.json_text import parse, show
from pyspark_rocketmq.change_data.rules import Column, Rules, checked, decoded, number_of_file, source_time
from pyspark_rocketmq.change_data.times import MALFORMED, Unreadable

_OPERATIONS: Final = {
    "c": Operation.INSERT,
    "u": Operation.UPDATE,
    "d": Operation.DELETE,
    "r": Operation.SNAPSHOT,
    "t": Operation.TRUNCATE,
}
_FLAT: Final = "__"
"""Prefix of the fields that ``ExtractNewRecordState`` adds."""
_FLAT_MARKS: Final = frozenset({f"{_FLAT}op", f"{_FLAT}deleted"})
"""Fields that only flattened messages have; each has one of them at least."""
_SCHEMA, _PAYLOAD = '{"schema":', ',"payload":'
"""Texts before the schema, and between schema and payload, as Kafka Connect writes them."""
_LONGEST_KEPT: Final = 128 << 10
"""Maximum length of a schema's text, in characters, up to which the parsed schema is kept for later messages.

A parsed schema takes several times the memory of its text.
"""
_MOST_KINDS: Final = 64
"""Maximum number of different sets of column names for which a schema keeps the decoders.

Usually all messages with the schema have the same column names.
"""
NEW_KEY: Final = "__debezium.newkey"
"""Header of the delete that Debezium sends for an update of the table's own key."""


@dataclass(frozen=True, slots=True)
class DebeziumJson:
    """Reads the messages of Debezium in JSON, nested or flattened: the envelope ``debezium``."""

    rules: Rules

    def decode(self, message: ChangeMessage) -> Sequence[Decoded]:
        """Return the contents of a message: one value, or two if an update changes a key that ``keys`` names.

        If the message cannot be read, the value is a :class:`BadChange`.
        """
        if message.body.strip() in (b"", b"null", b"default"):
            return [PassedOver("tombstone")]
        try:
            value = _Struct.of(message.body.decode(), self.rules)
        except MALFORMED as fault:
            return [BadChange(f"the body cannot be read as a message of Debezium: {fault}")]
        is_flat = not _FLAT_MARKS.isdisjoint(value.payload)
        # The columns of a flattened row may have any name, also one that marks other messages: ddl, op.
        control = None if is_flat else _control_message(value.payload)
        if control is not None:
            return [control]
        table: SourceTable | None = None
        try:
            event = _flat_event(value) if is_flat else _nested_event(value)
            table = event.table
            key = _key(message.keys, self.rules).typed_as(event.schema)
            change = self._change(event, key)
            if NEW_KEY in message.properties and not event.is_numbered:
                change = self._freed(change, key.payload)
            return self._with_key_change(change)
        except MALFORMED as fault:
            return [BadChange(str(fault), table)]

    def _freed(self, change: Change, own_key: Mapping[str, Any]) -> Change:
        """Return ``change``, Debezium's delete of a changed key, with a lower position if necessary.

        An insert follows. If the option ``keys`` lacks columns of the table's own key, delete and insert may
        have the same key. The delete's position must then be just below that of the insert.
        """
        named, position = self.rules.keys_of(change.table), change.position
        if change.operation is not Operation.DELETE or named is None or position is None:
            return change
        if own_key.keys() <= set(named):
            return change
        *place, offset, number = position
        return replace(change, position=(*place, max(offset - 1, 0), number))

    def _with_key_change(self, change: Change) -> Sequence[Change]:
        """Return a delete and an insert if an update changes a key that ``keys`` names, else the change.

        For the table's own key, Debezium already sends a delete and an insert. If the source logs no old
        values, a change of a key that ``keys`` names goes unnoticed, so such a key must never change.
        """
        named, before, row = self.rules.keys_of(change.table), change.before or {}, change.row
        if named is None or change.operation is not Operation.UPDATE:
            return [change]
        # A source that logs only a part of the row before has null for the rest.
        changed = {
            name: before[name]
            for name in named
            if before.get(name) is not None and name in row and before[name] != row[name]
        }
        if not changed:
            return [change]
        old = {**change.key, **changed}
        return [
            replace(change, operation=Operation.DELETE, key=old, row={}, absent=frozenset()),
            replace(change, operation=Operation.INSERT, before=None),
        ]

    def _change(self, event: _Event, key: _Struct) -> Change:
        table, position = event.table, event.position(self.rules)
        if event.operation is Operation.TRUNCATE:
            return Change(
                table=table,
                operation=event.operation,
                position=position,
                source_time=source_time(event.source.get("ts_ms")),
            )
        after, is_delete = event.after, event.operation is Operation.DELETE
        if after is None and not is_delete:
            raise Unreadable("the message has no row after the change")
        row, absent = after.row() if after is not None else ({}, frozenset())
        image = event.before if is_delete else after
        of_image = row if not is_delete else {} if image is None else image.row()[0]
        return Change(
            table=table,
            operation=event.operation,
            key=_key_values(self.rules.keys_of(table), key, image, of_image),
            row={} if is_delete else row,
            before=event.before.row()[0] if event.before is not None else None,
            position=position,
            absent=frozenset() if is_delete else absent,
            types=key.types() | (image.types() if image is not None else {}),
            source_time=source_time(event.source.get("ts_ms")),
        )


@dataclass(frozen=True, slots=True)
class _Struct:
    """A JSON object, with the columns of its schema if it has one."""

    payload: Mapping[str, Any]
    schema: _Schema | None
    rules: Rules

    @classmethod
    def of(cls, text: str, rules: Rules) -> _Struct:
        """Parse a JSON text with ``schema`` and ``payload``; without these members, all of it is the payload.

        Raises:
            ValueError: If the text is no JSON, or the payload is no JSON object.
        """
        schema, payload = _schema_and_payload(text, rules)
        if not isinstance(payload, dict):
            raise Unreadable("the JSON value is not an object")
        return cls(payload, schema, rules)

    def member(self, name: str) -> _Struct | None:
        """Return a member, which must be an object, with its schema; None if it is null or missing.

        Raises:
            ValueError: If the member is no object, or if the schema lacks it.
        """
        value = self.payload.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise Unreadable(f"the message's member {name} is not a JSON object")
        schema = self.schema_of(name)
        if self.schema is not None and schema is None:
            raise Unreadable(f"the schema has no member {name}, which the message has")
        return _Struct(value, schema, self.rules)

    def schema_of(self, name: str) -> _Schema | None:
        """Return the schema of a member, even if the member's value is null.

        None if the object has no schema, or if its schema lacks the member.
        """
        return None if self.schema is None else self.schema.member(name)

    def without(self, prefix: str) -> _Struct:
        """Return the object without the members whose names begin with ``prefix``."""
        payload = {name: value for name, value in self.payload.items() if not name.startswith(prefix)}
        return _Struct(payload, self.schema, self.rules)

    def typed_as(self, row: _Schema | None) -> _Struct:
        """Return the object with the schema ``row``, or the object as it is.

        The object gets the schema if it has none, and if ``row`` has all of its members.
        """
        typed = _Struct(self.payload, row, self.rules)
        return typed if self.schema is None and typed.columns().keys() == self.payload.keys() else self

    def columns(self) -> Mapping[str, Column[Any]]:
        """Return the types and decoders of those members of the payload that the schema has, by name."""
        return {} if self.schema is None else self.schema.columns(tuple(self.payload))

    def types(self) -> dict[str, SourceType]:
        """Return the columns' types; empty without a schema."""
        return {name: column.type for name, column in self.columns().items()}

    def row(self) -> tuple[dict[str, Any], frozenset[str]]:
        """Return the row's values, and the columns for which Debezium sent a placeholder, not the value."""
        mark = self.rules.unavailable_value
        absent = frozenset(name for name, value in self.payload.items() if _is_unavailable(value, mark))
        here = {name: value for name, value in self.payload.items() if name not in absent}
        if self.schema is None:
            return {name: _without_schema(value) for name, value in here.items()}, absent
        columns = self.columns()
        unknown = sorted(here.keys() - columns.keys())
        if unknown:
            raise Unreadable(f"the schema has no column {', '.join(unknown)}, which the row has")
        return decoded(columns, here.items()), absent


class _Schema:
    """The schema of a JSON object. Messages with the same text of the schema share this object."""

    def __init__(self, schema: Mapping[str, Any], rules: Rules) -> None:
        self._schema = schema
        self._rules = rules
        self._members: dict[str, _Schema | None] = {}
        """Schemas of the members that :meth:`member` has returned so far."""
        self._columns: dict[tuple[str, ...], Mapping[str, Column[Any]]] = {}
        """Results of :meth:`columns` so far, by its argument."""

    def member(self, name: str) -> _Schema | None:
        """Return the schema of a member; None if there is no such member.

        Raises:
            ValueError: If the schema has no list of fields.
        """
        if name not in self._members:
            field = next((field for field in self._fields() if field.get("field") == name), None)
            self._members[name] = None if field is None else _Schema(field, self._rules)
        return self._members[name]

    def columns(self, names: tuple[str, ...]) -> Mapping[str, Column[Any]]:
        """Return the types and decoders of the members that have these names, by name.

        Raises:
            ValueError: If the schema has no list of fields, or if a field cannot be read.
        """
        found = self._columns.get(names)
        if found is None:
            wanted = frozenset(names)
            found = {
                name: connect_column(field, self._rules)
                for field in self._fields()
                if isinstance(name := field.get("field"), str) and name in wanted
            }
            if len(self._columns) >= _MOST_KINDS:
                self._columns.clear()
            self._columns[names] = found
        return found

    def _fields(self) -> Sequence[Mapping[str, Any]]:
        fields = self._schema.get("fields") or []
        if not isinstance(fields, list) or not all(isinstance(field, dict) for field in fields):
            raise Unreadable("the message's schema has no list of fields")
        return fields


def _schema_and_payload(text: str, rules: Rules) -> tuple[_Schema | None, Any]:
    """Parse a JSON text with ``schema`` and ``payload``, and return both.

    Any other value is the payload, without a schema. Debezium repeats the schema, which is most of the text,
    in each message, so a schema is parsed only once and kept.

    Raises:
        ValueError: If the text is no JSON.
    """
    end = text.find(_PAYLOAD) if text.startswith(_SCHEMA) and text.endswith("}") else -1
    if 0 <= end <= _LONGEST_KEPT:
        # If this is not where the schema ends, one of the two texts is no JSON.
        with suppress(*MALFORMED):
            return _schema_in(text[len(_SCHEMA) : end], rules), parse(text[end + len(_PAYLOAD) : -1])
    value = parse(text)
    if isinstance(value, dict) and value.keys() == {"schema", "payload"}:
        schema, payload = value["schema"], value["payload"]
        return (_Schema(schema, rules) if isinstance(schema, dict) else None), payload
    return None, value


@lru_cache(maxsize=128)
def _schema_in(text: str, rules: Rules) -> _Schema | None:
    """Parse the text of a schema; return None if it is no JSON object.

    Raises:
        ValueError: If the text is no JSON.
    """
    schema = parse(text)
    return _Schema(schema, rules) if isinstance(schema, dict) else None


@dataclass(frozen=True, slots=True)
class _Event:
    operation: Operation
    table: SourceTable
    before: _Struct | None
    after: _Struct | None
    schema: _Schema | None
    """Schema of ``before`` and ``after``; None if the message has none."""
    source: Mapping[str, Any]
    order: Any
    """Number of the change in its transaction; None if the message has none."""

    @property
    def is_numbered(self) -> bool:
        """Whether the position has the number of the change in its transaction."""
        places = (self.source.get("lsn"), self.source.get("file"))
        return self.order is not None and places != (None, None)

    def position(self, rules: Rules) -> Position | None:
        source = self.source
        if source.get("lsn") is not None:
            return checked(_postgres(source, self.order))
        if source.get("file") is not None:
            epoch = rules.epoch_of(_whole(source.get("server_id") or 0))
            number = source.get("row") or 0 if self.order is None else self.order
            file = number_of_file(str(source["file"]))
            return checked((epoch, file, _whole(source.get("pos")), _whole(number)))
        if source.get("change_lsn") is not None or source.get("commit_lsn") is not None:
            return checked(
                (
                    *_lsn(source.get("commit_lsn")),
                    *_lsn(source.get("change_lsn")),
                    _whole(source.get("event_serial_no") or 0),
                )
            )
        return None


def _control_message(payload: Mapping[str, Any]) -> Decoded | None:
    if payload.get("op") == "m":
        return PassedOver("logical message")
    if isinstance(payload.get("ddl"), str) and "op" not in payload:
        return _schema_change(payload)
    if payload.get("status") in ("BEGIN", "END") and "id" in payload and "op" not in payload:
        return PassedOver("transaction mark")
    if payload.keys() == {"ts_ms"}:
        return PassedOver("heartbeat")
    return None


def _schema_change(payload: Mapping[str, Any]) -> SchemaChange:
    changes = payload.get("tableChanges")
    first = changes[0] if isinstance(changes, list) and changes and isinstance(changes[0], dict) else {}
    source = payload.get("source")
    name = source.get("table") if isinstance(source, dict) else None
    database, schema = payload.get("databaseName"), payload.get("schemaName")
    return SchemaChange(
        table=SourceTable(str(database or ""), str(schema) if schema else None, name)
        if isinstance(name, str) and name
        else None,
        statement=payload["ddl"],
        kind=str(first.get("type") or "").lower(),
    )


def _nested_event(value: _Struct) -> _Event:
    payload = value.payload
    if "op" not in payload:
        raise Unreadable("the body has neither op nor __op nor __deleted: it is not a change of Debezium")
    source = payload.get("source")
    if not isinstance(source, dict):
        raise Unreadable(
            "the message has op but no source, so a transform removed it. Send Debezium's messages as they "
            "are, or flattened by ExtractNewRecordState"
        )
    transaction = payload.get("transaction")
    return _Event(
        operation=_operation(payload.get("op")),
        table=_table(source),
        before=value.member("before"),
        after=value.member("after"),
        schema=value.schema_of("before") or value.schema_of("after"),
        source=source,
        order=transaction.get("total_order") if isinstance(transaction, dict) else None,
    )


def _flat_event(value: _Struct) -> _Event:
    added = {name.removeprefix(_FLAT): item for name, item in value.payload.items() if name.startswith(_FLAT)}
    source = {name.removeprefix("source_"): item for name, item in added.items()}
    is_deleted = added.get("deleted") in ("true", True) or added.get("op") == "d"
    operation = Operation.DELETE if is_deleted else _operation(added.get("op", "u"))
    row = value.without(_FLAT)
    return _Event(
        operation=operation,
        table=_table(source),
        before=row if is_deleted else None,
        after=None if is_deleted else row,
        schema=row.schema,
        source=source,
        order=added.get("transaction_total_order"),
    )


def _operation(name: Any) -> Operation:
    if not isinstance(name, str) or name not in _OPERATIONS:
        raise Unreadable(
            f"the message names the operation {show(name)}, which Debezium does not have: another program "
            "may have written it"
        )
    return _OPERATIONS[name]


def _table(source: Mapping[str, Any]) -> SourceTable:
    name, schema = source.get("table"), source.get("schema")
    if not isinstance(name, str) or not name:
        raise Unreadable(
            "the message names no table; if it is flattened, set transforms.unwrap.add.fields to "
            "op,db,schema,table,lsn (PostgreSQL), op,db,table,file,pos,row,server_id (MySQL), or "
            "op,db,schema,table,commit_lsn,change_lsn,event_serial_no (SQL Server)"
        )
    return SourceTable(str(source.get("db") or ""), str(schema) if schema else None, name)


def _key(keys: str, rules: Rules) -> _Struct:
    if not keys.strip().startswith("{"):
        return _Struct({}, None, rules)
    try:
        return _Struct.of(keys, rules)
    except MALFORMED as fault:
        raise Unreadable(f"the message's KEYS cannot be read as a key of Debezium: {fault}") from None


def _key_values(
    named: Sequence[str] | None, key: _Struct, image: _Struct | None, of_row: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values of the key's columns: from the message's KEYS, or else from the row ``image``.

    If only the row has a schema, its values are preferred to those in KEYS. ``of_row`` has the row's values,
    already decoded. ``named`` are the key columns that the user has named; None if there are none.
    """
    names = list(key.payload) if named is None else named
    of_key = key.row()[0] if key.payload else {}
    missing = [name for name in names if name not in of_key and name not in of_row]
    if missing:
        raise Unreadable(
            f"key column {', '.join(missing)} is neither in the message's KEYS nor in its row: correct keys, "
            "or have Debezium send the column"
        )
    is_row_first = key.schema is None and image is not None and image.schema is not None
    known = {**of_key, **of_row} if is_row_first else {**of_row, **of_key}
    return {name: known[name] for name in names}


def _postgres(source: Mapping[str, Any], order: Any) -> tuple[int, int, int]:
    lsn = _whole(source["lsn"])
    sequence = source.get("sequence")
    commit = None
    if isinstance(sequence, str):
        parts = parse(sequence)
        commit = parts[0] if isinstance(parts, list) and parts else None
    # There is no commit before the first one that the connector has seen, and for rows of its snapshot.
    return (lsn if commit is None else _whole(commit)), lsn, _whole(order or 0)


def _lsn(text: Any) -> tuple[int, int, int]:
    if text is None:
        return (0, 0, 0)
    parts = [int(part, 16) for part in str(text).split(":")]
    if len(parts) != 3:
        raise Unreadable(f"{text!r} is not an LSN of SQL Server")
    return parts[0], parts[1], parts[2]


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise Unreadable(f"{show(value)} in source is not a whole number")
    return int(value)


def _is_unavailable(value: Any, placeholder: str) -> bool:
    match value:
        case None | int():
            return False
        case str():
            return value in _texts_of(placeholder)
        case [str() as only]:
            return only in _texts_of(placeholder)
        case list():
            return value == list(placeholder.encode())
        case dict():
            return placeholder in value
        case _:
            return False


@lru_cache(maxsize=16)
def _texts_of(placeholder: str) -> tuple[str, str]:
    """Return the placeholder as text, and in base64, as it stands in a column of bytes."""
    return placeholder, b64encode(placeholder.encode()).decode()


def _without_schema(value: Any, depth: int = 0) -> Any:
    match value:
        case {"scale": int(), "value": str(), **rest} if not rest:
            return variable_decimal(value)
        case dict():
            return show(value)
        case list() if depth < DEEPEST_ARRAY:
            return tuple(_without_schema(item, depth + 1) for item in value)
        case list():
            raise Unreadable(f"an array has more than {DEEPEST_ARRAY} dimensions")
        case _:
            return value
