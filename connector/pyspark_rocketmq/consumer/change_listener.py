"""The listener of a consumer whose sink takes the changes of a database: messages in, changes out.

Rule 1: a message never stops its queue. A change that cannot be applied becomes a row with a reason, and the
sink decides what to do with it.
Rule 2: values are exact. A value that does not fit its column makes a bad change; it is never rounded, cut or
moved to another zone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import isnan
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as st
from pyspark.sql.pandas.types import from_arrow_schema

from pyspark_rocketmq.change_data.canal import CanalJson
from pyspark_rocketmq.change_data.change import (
    BadChange,
    Change,
    ChangeMessage,
    Decoded,
    Kind,
    Operation,
    SchemaChange,
    SourceType,
)
from pyspark_rocketmq.change_data.columnar import ChangeColumns
from pyspark_rocketmq.change_data.effects import Order, order_of
from pyspark_rocketmq.change_data.statements import removed_columns
from pyspark_rocketmq.change_data.times import moment
from pyspark_rocketmq.consumer.change_batches import ChangeBatches
from pyspark_rocketmq.consumer.fitted_values import FittedColumns
from pyspark_rocketmq.errors import OffsetError, SchemaError
from pyspark_rocketmq.listeners.context import DeliveryContext
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import ConsumeOrderlyStatus, MessageExt
from pyspark_rocketmq.sinks.base import TakesChanges
from pyspark_rocketmq.sinks.change_table.carried import carried, type_of
from pyspark_rocketmq.sinks.change_table.columns import (
    BODY,
    MORE,
    PROBLEM,
    SCHEMA,
    change_columns,
)
from pyspark_rocketmq.sinks.change_table.compaction import ABSENT, OPERATION, POSITION
from pyspark_rocketmq.sinks.change_table.new_columns import name_problem, unfit, unknown_column
from pyspark_rocketmq.sinks.change_table.versions import TIME

_BAD: Final = "bad"
"""Operation of a change that cannot be applied."""
_MESSAGES_PER_CALL: Final = 128
_LONGEST_REASON: Final = 4_000
"""Maximum number of characters of a reason, which may contain names and values of the message."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Unusable(Exception):
    """A change cannot be applied; the text is the reason."""

    operation: str = _BAD
    """Operation of the row that reports the reason, in place of the change's operation. Only a truncation
    keeps its own operation."""
    columns: Sequence[str] | None = None
    """Columns that the source has dropped or renamed, if that is the reason; otherwise None."""


class SchemaChanged(Unusable):
    """The source's schema has changed, and the query is to end."""

    operation = SCHEMA


class ChangeListener:
    """Emits a row for each change that its sink is to apply or to report as bad; picklable."""

    def __init__(self, sink: TakesChanges) -> None:
        """Take the settings of ``sink``.

        Raises:
            SchemaError: If the columns of the sink's table are unknown, or cannot be emitted.
            OffsetError: If the table's storage does not answer.
        """
        table = sink.table_columns()
        self.schema = from_arrow_schema(pa.schema(change_columns(table)))
        """Columns of the rows."""
        self._envelope = sink.envelope
        # Not for a subclass, whose decode may be another one.
        self._runs = sink.envelope.runs if type(sink.envelope) is CanalJson else None
        """Reads many messages together; None if the envelope reads only one by one."""
        self.messages_per_call = 1 if self._runs is None else _MESSAGES_PER_CALL
        """Best number of messages per call: with more, a call saves no further time."""
        self._source_table = sink.source_table
        self._keys = sink.keys
        self._columns: tuple[str, ...] = tuple(table.names)
        output = OutputColumns.of(self.schema)
        self._fits = FittedColumns(table.names, output)
        floats = ((name, _type_with_nan(type_)) for name, type_ in self._fits.types.items())
        self._floats = {name: type_ for name, type_ in floats if type_ is not None}
        """Types of the columns that may have NaN, by name."""
        self._by_queue = sink.setting("order") == "queue"
        self._schema_changes = sink.setting("schema_changes")
        self._known = frozenset(table.names)
        self._batches = ChangeBatches(
            rows=output.rows,
            fits=self._fits,
            keys=self._keys,
            by_queue=self._by_queue,
            ignores_deletes=sink.setting("deletes") == "ignore",
            schema_changes=self._schema_changes,
        )
        self._rows: dict[Operation, Callable[[Change], Mapping[str, Any] | None]] = {
            Operation.DELETE: _passed_over if sink.setting("deletes") == "ignore" else self._key,
            Operation.TRUNCATE: {
                "apply": _no_values,
                "ignore": _passed_over,
                "stop": _stopped,
            }[sink.setting("truncates")],
            Operation.INSERT: self._whole_row,
            Operation.SNAPSHOT: self._whole_row,
            Operation.UPDATE: self._known_values,
        }

    def consume_message(
        self, messages: Sequence[MessageExt], context: DeliveryContext
    ) -> ConsumeOrderlyStatus:
        """Emit a row for each change in ``messages`` that the sink is to get; return SUCCESS."""
        if self._runs is None or len(messages) == 1:
            self._emit(messages, map(self._contents, messages), context)
            return ConsumeOrderlyStatus.SUCCESS
        for numbers, found in self._runs([message.body for message in messages]):
            some = [messages[number] for number in numbers]
            if not isinstance(found, ChangeColumns):
                self._emit(some, found, context)
            elif self._is_of_table(found):
                batch = self._batches.batch(found, messages)
                if batch is None:
                    self._emit(some, found.contents, context)
                else:
                    context.emit_batch(batch)
        return ConsumeOrderlyStatus.SUCCESS

    def rows(self, message: MessageExt) -> Iterator[dict[str, Any]]:
        """Yield a row for each change in a message that the sink is to apply or to report as bad.

        There is no row for a change of another table, nor for a change that the sink's settings ignore.
        """
        return self._rows_of(message, self._contents(message))

    def _contents(self, message: MessageExt) -> Sequence[Decoded]:
        return self._envelope.decode(ChangeMessage(message.body, message.keys or "", message.properties))

    def _emit(
        self,
        messages: Iterable[MessageExt],
        contents: Iterable[Sequence[Decoded]],
        context: DeliveryContext,
    ) -> None:
        """Emit the rows of messages one by one; ``contents`` has the decoded changes of each message."""
        for message, decoded in zip(messages, contents, strict=True):
            for row in self._rows_of(message, decoded):
                context.emit(message, **row)

    def _rows_of(self, message: MessageExt, contents: Sequence[Decoded]) -> Iterator[dict[str, Any]]:
        body: bytes | None = message.body
        for number, decoded in enumerate(contents):
            try:
                row = self._row(decoded, message, number)
            except Unusable as problem:
                row = bad_row(decoded, problem, body)
                body = body if row[BODY] is None else None
            if row is not None:
                yield row

    def _row(self, decoded: Decoded, message: MessageExt, number: int) -> dict[str, Any] | None:
        match decoded:
            case BadChange() if self._is_of_table(decoded):
                raise Unusable(decoded.reason)
            case Change() if self._is_of_table(decoded):
                values = self._rows[decoded.operation](decoded)
                if values is None:
                    return None
                nan = self._with_nan(values)
                columns = self._fits.columns
                row = {columns[name]: value for name, value in values.items() if name not in nan}
                return row | {
                    POSITION: place_of(decoded, message, number, by_queue=self._by_queue),
                    OPERATION: decoded.operation.value,
                    ABSENT: self._absent(decoded, values),
                    TIME: time_of(decoded, message),
                    MORE: self._carried(decoded, nan),
                }
            case SchemaChange() if decoded.table is not None and self._is_of_table(decoded):
                self._check_statement(decoded)
                return None
            case _:
                return None

    def _check_statement(self, change: SchemaChange) -> None:
        if self._schema_changes not in ("evolve", "exception"):
            return
        removed = removed_columns(change.statement)
        if removed:
            raise removal(change, removed)

    def _with_nan(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that are NaN, or arrays with NaN, which would be null in a column of the row."""
        return {name: values[name] for name in self._floats if _has_nan(values.get(name))}

    def _carried(self, change: Change, nan: Mapping[str, Any]) -> str | None:
        """Return one text with the values that have no column in the row: ``nan``, and those of new columns.

        New columns are those that the table did not have when the query started. Return None if there are no
        such values.

        Raises:
            Unusable: If the text cannot hold a value, a name is impossible, or new columns end the query.
        """
        values = {**self._new_values(change), **nan}
        if not values:
            return None
        types = {**change.types, **{name: self._floats[name] for name in nan}}
        try:
            return carried(values, types)
        except ValueError as error:
            raise Unusable(f"Columns {', '.join(values)}: {error}.") from error

    def _new_values(self, change: Change) -> dict[str, Any]:
        """Return the values of columns that the table did not have when the query started.

        A new column whose value an update leaves out has the value None. The result is empty if
        ``schema_changes`` is ``ignore``.

        Raises:
            Unusable: If a name is impossible, or new columns end the query.
        """
        if self._schema_changes == "ignore":
            return {}
        if self._known.issuperset(change.row) and self._known.issuperset(change.absent):
            return {}
        values = {name: value for name, value in change.row.items() if name not in self._known}
        values |= dict.fromkeys(self._new_absent(change))
        for name in values:
            if self._schema_changes == "exception":
                raise SchemaChanged(unknown_column(name, type_of(name, change.types)))
            problem = name_problem(name, self._columns)
            if problem is not None:
                raise Unusable(problem)
        return values

    def _is_of_table(self, change: Change | BadChange | SchemaChange | ChangeColumns) -> bool:
        return self._source_table is None or change.table is None or str(change.table) == self._source_table

    def _key(self, change: Change) -> dict[str, Any]:
        """Return the values of the key's columns, each converted to its column's type.

        Raises:
            Unusable: If a value is missing, or does not fit its column exactly.
        """
        return self._checked(self._found_key(change), change)

    def _found_key(self, change: Change) -> dict[str, Any]:
        """Return the values of the key's columns as the change has them.

        Raises:
            Unusable: If a value is missing.
        """
        key = {name: self._key_value(change, name) for name in self._keys}
        missing = [name for name, value in key.items() if value is None]
        if missing:
            raise Unusable(
                f"The change has no value for {', '.join(missing)} of the key. Have the program write the "
                "key's columns, or name others: ChangeTable(keys=…)."
            )
        return key

    @staticmethod
    def _key_value(change: Change, name: str) -> Any:
        for values in (change.key, change.row, change.before or {}):
            if name in values:
                return values[name]
        return None

    def _known_values(self, change: Change) -> dict[str, Any]:
        row = change.row
        values = {name: row[name] for name in self._columns if name in row}
        return self._checked(values | self._found_key(change), change)

    def _whole_row(self, change: Change) -> dict[str, Any]:
        # With 'ignore' or 'exception' the table gets no new columns, so only its own ones must be there.
        follows = self._schema_changes not in ("ignore", "exception")
        absent = change.absent if follows else change.absent.intersection(self._columns)
        if absent:
            raise whole_row_problem(sorted(absent))
        return self._known_values(change)

    def _absent(self, change: Change, values: Mapping[str, Any]) -> list[str] | None:
        if change.operation is not Operation.UPDATE or (
            len(values) == len(self._columns) and not change.absent
        ):
            return None
        lacking = [name for name in self._columns if name not in values]
        return [*lacking, *self._new_absent(change)] or None

    def _new_absent(self, change: Change) -> list[str]:
        """Return the columns whose values an update leaves out, and which the table lacked at the start.

        The sink adds these columns to the table, because the row must note that their values are missing.
        The result is empty if ``schema_changes`` is ``ignore``.
        """
        if self._schema_changes == "ignore":
            return []
        return sorted(change.absent - self._known)

    def _checked(self, values: Mapping[str, Any], change: Change) -> dict[str, Any]:
        """Return the values, each converted to its column's type.

        Raises:
            Unusable: If a value does not fit its column exactly.
        """
        is_plainly = self._fits.is_plainly
        return {
            name: value if value is None or is_plainly[name](value) else self._fitted(name, value, change)
            for name, value in values.items()
        }

    def _fitted(self, name: str, value: Any, change: Change) -> Any:
        try:
            return self._fits.fitted(name, value)
        except (SchemaError, ValueError, ArithmeticError) as error:
            type_ = self._fits.types[name].simpleString()
            source = type_of(name, change.types) if name in change.types else None
            kind = SchemaChanged if self._schema_changes == "exception" else Unusable
            raise kind(unfit(name, type_, value, source)) from error


def _type_with_nan(type_: st.DataType) -> SourceType | None:
    """Return a column's type as a ``SourceType``; None if no value of the column can be or contain NaN."""
    match type_:
        case st.FloatType() | st.DoubleType():
            return SourceType(type_.simpleString(), Kind(type_.simpleString()))
        case st.ArrayType(elementType=element):
            of_elements = _type_with_nan(element)
            return None if of_elements is None else SourceType("array", Kind.ARRAY, element=of_elements)
        case _:
            return None


def _has_nan(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_nan, value))
    return isinstance(value, float) and isnan(value)


def removal(change: SchemaChange, removed: Sequence[str]) -> SchemaChanged:
    """Return the error that ends the query at a statement that drops or renames columns of its table."""
    problem = SchemaChanged(
        f"The source has dropped or renamed {', '.join(removed)} of {change.table}, which the change "
        f"table still has ({change.statement:.200}). While no query writes the change table, rewrite it "
        "without these columns, which deletes their values (in Spark: mode overwrite with "
        "overwriteSchema=true); or keep them, with schema_changes='lenient'"
    )
    problem.columns = list(removed)
    return problem


def bad_row(decoded: Decoded, problem: Unusable, body: bytes | None) -> dict[str, Any]:
    """Return the row for a change that cannot be applied: operation, reason, and its message's ``body``.

    ``body`` is None if the row must not show it, or if an earlier row of the message has it: a message of
    a thousand changes would else be stored a thousand times. A row that ends the query has no body either, as
    it is not stored.
    """
    operation = _operation(decoded, problem)
    reason = str(problem)
    return {
        OPERATION: operation,
        PROBLEM: reason if len(reason) <= _LONGEST_REASON else reason[: _LONGEST_REASON - 1] + "…",
        BODY: body if operation == _BAD else None,
        ABSENT: problem.columns,
    }


def place_of(change: Change, message: MessageExt, number: int, *, by_queue: bool) -> Order:
    """Return the place of a change in the order of its table's changes.

    ``number`` is the change's number in its ``message``. With ``by_queue`` only the message's offset and this
    number decide. Otherwise the change's position in the source's log comes first.

    A snapshot's row without a position comes before all changes that have one: changes since the snapshot are
    in the log. Of two such rows the later one counts, even if the topic was created again between them, so
    that its offsets began again.

    Raises:
        Unusable: If the position is invalid. Also if it is missing, unless the change is a snapshot's row or
            ``by_queue`` is set.
    """
    is_snapshot = change.operation is Operation.SNAPSHOT
    if change.position is None and not by_queue and not is_snapshot:
        raise Unusable(
            "The change has no position in its source's log. Have the program write one, or set "
            "ChangeTable(order='queue') if all changes of a key are in one queue in their order."
        )
    position = None if by_queue else change.position
    time_ms = None
    if is_snapshot and position is None and not by_queue:
        time_ms = max(0, (time_of(change, message) - _EPOCH) // timedelta(milliseconds=1))
    try:
        return order_of(position, message.queue_offset, number, is_snapshot=is_snapshot, time_ms=time_ms)
    except OffsetError as error:
        raise Unusable(str(error)) from error


def time_of(change: Change, message: MessageExt) -> datetime:
    """Return the time of a change in its source; if it has none, when a broker stored its message."""
    return change.source_time or moment(message.store_timestamp * 1000)


def whole_row_problem(absent: Sequence[str]) -> Unusable:
    """Return the error for a new row whose values of the columns ``absent`` are left out."""
    return Unusable(
        f"The new row lacks the value of {', '.join(absent)}: the program that reads the source's log left "
        "it out, and it is stored nowhere else. Have the source log whole rows (MySQL: "
        "binlog_row_image=FULL; PostgreSQL: REPLICA IDENTITY FULL)."
    )


def _operation(decoded: Decoded, problem: Unusable) -> str:
    """Return the operation for the row of a change that cannot be applied.

    It is ``problem.operation``, except that a truncation remains a truncation: the sink always stops at a
    truncation that cannot be applied.
    """
    is_truncation = isinstance(decoded, Change) and decoded.operation is Operation.TRUNCATE
    return str(Operation.TRUNCATE) if is_truncation else problem.operation


def _no_values(change: Change) -> dict[str, Any]:  # noqa: ARG001 - called like the others
    return {}


def _passed_over(change: Change) -> None:  # noqa: ARG001 - called like the others
    return None


def _stopped(change: Change) -> dict[str, Any]:
    raise Unusable(
        f"The source has truncated {change.table}, and truncates='stop'. Start the query with 'apply' to "
        "delete the table's rows, or with 'ignore' to keep them."
    )
