"""Canal's flat JSON (``FlatMessage``), and what TiCDC writes as ``canal-json``.

Position: the number of transactions that the source has executed, if Canal reads by global transaction
ids (``canal.instance.gtidon=true``), or TiCDC's commit timestamp (``enable-tidb-extension=true``). A message
with neither number has no position. Its members ``es`` and ``id`` cannot replace it: ``es`` is a time in
whole seconds, and ``id`` starts again with the program.

All changes of a transaction have the same position, and only the order of the queue distinguishes them. A
transaction may take a key from one row and give it to another. If these two changes are in two queues, it is
unknown which of them came first.

A *run* is a number of consecutive messages with rows of one table and the same columns. They are decoded
together, column by column, which is faster.

Source: ``MQMessageUtils.messageConverter``, ``CanalRocketMQProducer.send``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

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
from pyspark_rocketmq.change_data.columnar import ChangeColumns, Run
from pyspark_rocketmq.change_data.json_text import parse
from pyspark_rocketmq.change_data.mysql_types import mysql_column
from pyspark_rocketmq.change_data.rows import RowImage, key_columns
from pyspark_rocketmq.change_data.rules import (
    HIDDEN_KEYS,
    Column,
    Rules,
    checked,
    decoded,
    source_time,
    transactions_in,
)
from pyspark_rocketmq.change_data.times import MALFORMED, Unreadable

_OPERATIONS: Final = {
    "INSERT": Operation.INSERT,
    "UPDATE": Operation.UPDATE,
    "DELETE": Operation.DELETE,
}
_NOTHING: Final = (b"", b"null")
"""Bodies without a change. Old versions of Canal send ``null`` to a queue if a message has no rows for it."""
_HEAD: Final = ("database", "table", "pkNames", "mysqlType")
"""Members of a message's JSON object that are equal in all messages of a run."""
_FEWEST_ROWS: Final = 24
"""Minimum number of rows of a run for which decoding by columns saves time."""
_MOST_ROWS, _MOST_BYTES = 4096, 8 << 20
"""Number of rows, and of bytes of messages, at which a run ends."""


@dataclass(frozen=True, slots=True)
class CanalJson:
    """Reads the messages of Canal in flat JSON, and of TiCDC: the envelope ``canal``."""

    rules: Rules

    def decode(self, message: ChangeMessage) -> Sequence[Decoded]:
        """Return the changes and other contents of a message, in their order; the result is never empty.

        A part that cannot be read becomes a :class:`BadChange`; no error is raised.
        """
        return self._contents(_members_of(message.body))

    def runs(self, bodies: Sequence[bytes]) -> Iterator[Run]:
        """Divide messages into runs, and yield the runs in the order of the messages.

        The messages are given by their bodies. A run has the same changes that :meth:`decode` returns for its
        messages one by one. A message that cannot be decoded together with others is a run of its own.
        """
        run: _Run | None = None
        for number, body in enumerate(bodies):
            members = _members_of(body)
            if run is not None and run.add(members, len(body)):
                continue
            if run is not None:
                yield self._ended(run)
            run = self._begun(number, members, len(body))
            if run is None:
                yield range(number, number + 1), [self._contents(members)]
        if run is not None:
            yield self._ended(run)

    def _ended(self, run: _Run) -> Run:
        contents = map(self._contents, run.messages)
        return run.numbers, run.columns(contents) or list(contents)

    def _contents(self, members: Mapping[str, Any] | Decoded) -> Sequence[Decoded]:
        if not isinstance(members, Mapping):
            return [members]
        try:
            return list(self._changes(_Flat(members)))
        except MALFORMED as fault:
            return [BadChange(f"the body cannot be read as a message of Canal: {fault}")]

    def _begun(self, number: int, members: Mapping[str, Any] | Decoded, nbytes: int) -> _Run | None:
        """Return a new run with this message as its first; None if it cannot be decoded with others.

        ``number`` is the message's number among all messages, from 0. ``nbytes`` is the size of its body.
        """
        if not isinstance(members, Mapping):
            return None
        flat = _Flat(members)
        try:
            table = flat.table()
            if table is None:
                return None
            shape = self._shape(Operation.UPDATE, table, flat)
        except MALFORMED:
            return None
        keys = frozenset(shape.own_keys if shape.named_keys is None else shape.named_keys)
        if not keys or not keys <= shape.columns.keys() or not HIDDEN_KEYS.isdisjoint(shape.columns):
            return None
        run = _Run(number, flat, shape, keys)
        return run if run.add(members, nbytes) else None

    def _changes(self, flat: _Flat) -> Iterator[Decoded]:
        kind = flat.text("type").upper()
        if kind == "TIDB_WATERMARK":
            yield PassedOver("heartbeat")
        elif flat.members.get("isDdl") is True:
            yield self._statement(kind, flat)
        elif kind not in _OPERATIONS or (flat.members.get("data") is None and not flat.text("table")):
            yield PassedOver("statement" if kind == "QUERY" else "transaction mark")
        else:
            yield from self._rows(_OPERATIONS[kind], flat)

    def _statement(self, kind: str, flat: _Flat) -> Decoded:
        table = flat.table()
        if kind == "TRUNCATE" and table is not None:
            return Change(
                table=table,
                operation=Operation.TRUNCATE,
                position=flat.position(),
                source_time=source_time(flat.members.get("es")),
            )
        return SchemaChange(
            table=table, statement=flat.text("sql"), kind=kind.lower(), position=flat.position()
        )

    def _rows(self, operation: Operation, flat: _Flat) -> Iterator[Decoded]:
        table = flat.table()
        if table is None:
            yield BadChange("the message names no table")
            return
        rows, olds = flat.rows("data"), flat.rows("old")
        if not rows:
            yield BadChange("the message has no rows in data", table)
            return
        try:
            shape = self._shape(operation, table, flat)
        except MALFORMED as fault:
            yield from (BadChange(str(fault), table) for _ in rows)
            return
        for at, row in enumerate(rows):
            try:
                yield from shape.image(row, olds[at] if at < len(olds) else {}).changes()
            except MALFORMED as fault:
                yield BadChange(str(fault), table)

    def _shape(self, operation: Operation, table: SourceTable, flat: _Flat) -> _Shape:
        declared = flat.members.get("mysqlType")
        if not isinstance(declared, dict) or not declared:
            raise Unreadable("the message has no mysqlType, without which the values of a row cannot be read")
        for name, text in declared.items():
            if not isinstance(text, str):
                raise Unreadable(f"the mysqlType of column {name} is not a text")
        columns, types = _columns_of(tuple(declared.items()), self.rules)
        return _Shape(
            operation=operation,
            table=table,
            columns=columns,
            types=types,
            named_keys=self.rules.keys_of(table),
            own_keys=flat.names("pkNames"),
            position=flat.position(),
            source_time=source_time(flat.members.get("es")),
        )


@lru_cache(maxsize=1024)
def _columns_of(
    declared: tuple[tuple[str, str], ...], rules: Rules
) -> tuple[Mapping[str, Column[str]], Mapping[str, SourceType]]:
    """Return the columns that a message's ``mysqlType`` declares, and their types, both by name.

    Raises:
        ValueError: If a type cannot be read.
    """
    columns = {name: mysql_column(text, rules) for name, text in declared}
    return columns, {name: column.type for name, column in columns.items()}


def _members_of(body: bytes) -> Mapping[str, Any] | Decoded:
    """Parse a message's body, and return the members of its JSON object.

    For a body without a change, return a ``PassedOver`` instead; for any other body, a ``BadChange``.
    """
    if body.strip() in _NOTHING:
        return PassedOver("empty body")
    try:
        members = parse(body)
    except MALFORMED as fault:
        return BadChange(f"the body cannot be read as a message of Canal: {fault}")
    return members if isinstance(members, dict) else BadChange("the body is not a JSON object")


class _Flat(NamedTuple):
    """Members of a message's JSON object. Each method checks the type of the member that it returns."""

    members: Mapping[str, Any]

    def text(self, name: str) -> str:
        value = self.members.get(name)
        if value is not None and not isinstance(value, str):
            raise Unreadable(f"the message's member {name} is not a text")
        return value or ""

    def table(self) -> SourceTable | None:
        name = self.text("table")
        return SourceTable(self.text("database"), None, name) if name else None

    def rows(self, name: str) -> Sequence[Mapping[str, Any]]:
        rows = self.members.get(name) or []
        if not isinstance(rows, list) or not all(row is None or isinstance(row, dict) for row in rows):
            raise Unreadable(f"the message's member {name} is not a list of rows")
        return [row or {} for row in rows]

    def names(self, name: str) -> Sequence[str]:
        names = self.members.get(name) or []
        if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
            raise Unreadable(f"the message's member {name} is not a list of names")
        return names

    def position(self) -> Position | None:
        extension = self.members.get("_tidb")
        if isinstance(extension, dict) and isinstance(extension.get("commitTs"), int):
            return checked([extension["commitTs"]])
        gtids = self.text("gtid")
        return checked([transactions_in(gtids)]) if gtids else None


class _Shape(NamedTuple):
    """The parts of a message that apply to all of its rows."""

    operation: Operation
    table: SourceTable
    columns: Mapping[str, Column[str]]
    types: Mapping[str, SourceType]
    named_keys: Sequence[str] | None
    """Key columns that the option ``keys`` names for the table; None if it names none."""
    own_keys: Sequence[str]
    """Key columns that the message names."""
    position: Position | None
    source_time: datetime | None

    def image(self, row: Mapping[str, Any], old: Mapping[str, Any]) -> RowImage:
        known = self.columns.keys()
        if not (known >= row.keys() and known >= old.keys()):
            unknown = sorted({*row, *old} - known)
            raise Unreadable(
                f"the message's mysqlType lacks column {', '.join(unknown)} of the row: the source's table "
                "was altered, and Canal did not have its present columns when it wrote the message"
            )
        keys = key_columns(self.named_keys, self.own_keys, row)
        if self.operation is Operation.UPDATE and not old and not keys:
            raise Unreadable(
                "the row has neither a key nor an old value: set MySQL's binlog_row_image=FULL, or have "
                "Canal send protobuf (canal.mq.flatMessage=false), which has the key"
            )
        return RowImage(
            table=self.table,
            operation=self.operation,
            key_columns=keys,
            row=decoded(self.columns, _texts(row)),
            old=decoded(self.columns, _texts(old)),
            position=self.position,
            absent=frozenset(known - row.keys()),
            types=self.types,
            source_time=self.source_time,
        )


def _texts(row: Mapping[str, Any]) -> Iterable[tuple[str, str | None]]:
    """Return the names and values of a row's columns. Check before that each value is text or null.

    Raises:
        ValueError: If a value is neither a text nor null.
    """
    for name, value in row.items():
        if value is not None and not isinstance(value, str):
            raise Unreadable(
                f"the value of column {name} is not a text; Canal writes each value as text or null"
            )
    return row.items()


class _Run:
    """Consecutive messages of one table whose rows have the same columns; no message changes a key."""

    def __init__(self, begin: int, first: _Flat, shape: _Shape, keys: frozenset[str]) -> None:
        """Begin an empty run. The caller then adds its first message by :meth:`add`.

        ``begin`` is the number of that message among all messages, and ``first`` has its members.
        """
        self.messages: list[Mapping[str, Any]] = []
        """Members of each message."""
        self._begin = begin
        self._shape = shape
        self._head = _head_of(first.members)
        self._others = shape.columns.keys() - keys
        """Names of the columns that are not part of the key."""
        self._nbytes = 0
        self._rows: list[Mapping[str, Any]] = []
        self._old: dict[str, list[Any]] = {}
        self._message_numbers: list[int] = []
        self._numbers: list[int] = []
        self._operations: list[Operation] = []
        self._positions: list[Position | None] = []
        self._times: list[datetime | None] = []

    @property
    def numbers(self) -> range:
        """Numbers of the run's messages among all messages, from 0."""
        return range(self._begin, self._begin + len(self.messages))

    def add(self, members: Mapping[str, Any] | Decoded, nbytes: int) -> bool:
        """Add the next message, whose body has ``nbytes``; return whether it fits into the run.

        A message that does not fit is not added.
        """
        if not isinstance(members, Mapping) or len(self._rows) >= _MOST_ROWS or self._nbytes >= _MOST_BYTES:
            return False
        get = members.get
        kind = get("type")
        if not isinstance(kind, str) or kind not in _OPERATIONS or get("isDdl") is True:
            return False
        rows: Any = get("data")
        old: Any = get("old") or []
        if _head_of(members) != self._head or not self._are_whole(rows) or not self._keep_keys(old):
            return False
        try:
            position, time = _Flat(members).position(), source_time(get("es"))
        except MALFORMED:
            return False
        count = len(rows)
        self._rows += rows
        for before in filter(None, old):
            for name, text in before.items():
                self._old.setdefault(name, []).append(text)
        self._message_numbers += [self._begin + len(self.messages)] * count
        self._numbers += range(count)
        self._operations += [_OPERATIONS[kind]] * count
        self._positions += [position] * count
        self._times += [time] * count
        self._nbytes += nbytes
        self.messages.append(members)
        return True

    def columns(self, contents: Iterator[Sequence[Decoded]]) -> ChangeColumns | None:
        """Return the run's changes as columns; None if there are so few that columns would save no time.

        ``contents`` yields the contents of each message of the run, as :meth:`CanalJson.decode` returns them.
        """
        if len(self._rows) < _FEWEST_ROWS:
            return None
        return ChangeColumns(
            table=self._shape.table,
            columns=self._shape.columns,
            rows=self._rows,
            old=self._old,
            messages=self._message_numbers,
            numbers=self._numbers,
            operations=self._operations,
            positions=self._positions,
            source_times=self._times,
            contents=contents,
        )

    def _are_whole(self, rows: Any) -> bool:
        """Return whether ``rows`` is a list of rows, at least one, each with exactly the run's columns."""
        names = self._shape.columns.keys()
        return (
            isinstance(rows, list)
            and bool(rows)
            and all(isinstance(row, dict) and row.keys() == names for row in rows)
        )

    def _keep_keys(self, old: Any) -> bool:
        """Return whether no update changes a key: ``old``, the values before updates, has no key column."""
        others = self._others
        return isinstance(old, list) and all(
            before is None or (isinstance(before, dict) and before.keys() <= others) for before in old
        )


def _head_of(members: Mapping[str, Any]) -> Sequence[Any]:
    """Return the members of a message that must be equal in all messages of a run."""
    return tuple(map(members.get, _HEAD))
