"""The listener of a consumer whose sink takes the changes of a database: messages in, changes out.

Rule 1: a message never stops its queue. A change that cannot be applied becomes a row with a reason, and the
sink decides what it means.
Rule 2: values are exact. A value that does not fit its column makes a bad change; it is never rounded, cut or
moved to another zone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as st
from pyspark.sql.pandas.types import from_arrow_schema

from pyspark_rocketmq.change_data.change import BadChange, Change, ChangeMessage, Decoded, Operation
from pyspark_rocketmq.change_data.effects import order_of
from pyspark_rocketmq.change_data.times import moment
from pyspark_rocketmq.errors import OffsetError, SchemaError
from pyspark_rocketmq.listeners.context import DeliveryContext
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import ConsumeOrderlyStatus, MessageExt
from pyspark_rocketmq.sinks.base import TakesChanges
from pyspark_rocketmq.sinks.change_table.columns import BODY, PROBLEM, change_columns, value_column
from pyspark_rocketmq.sinks.change_table.compaction import ABSENT, OPERATION, POSITION
from pyspark_rocketmq.sinks.change_table.versions import TIME

_TOO_EXACT: Final = re.compile(r"[.,]\d{7}")
"""Fraction of a second that a column of microseconds cannot hold."""
_BAD: Final = "bad"
"""Operation of a change that cannot be applied."""
_WHOLE: Final = (Operation.INSERT, Operation.SNAPSHOT)
"""Operations that give a row as a whole."""


class _Unusable(Exception):
    """A change cannot be applied; the text is the reason."""


class ChangeListener:
    """Emits a row for each change that its sink is to apply; picklable."""

    def __init__(self, sink: TakesChanges) -> None:
        """Take the settings of ``sink``.

        Raises:
            SchemaError: If the columns of the sink's table are unknown, or cannot be emitted.
            OffsetError: If its storage does not answer.
        """
        table = sink.table_columns()
        self.schema = from_arrow_schema(pa.schema(change_columns(table)))
        """Columns of the rows."""
        self._envelope = sink.envelope
        self._source_table = sink.source_table
        self._keys = sink.keys
        self._columns: tuple[str, ...] = tuple(table.names)
        self._output = OutputColumns.of(self.schema)
        self._is_moment = {
            name: isinstance(self.schema[value_column(name)].dataType, st.TimestampType)
            for name in table.names
            if isinstance(self.schema[value_column(name)].dataType, st.TimestampType | st.TimestampNTZType)
        }
        self._by_queue = sink.setting("order") == "queue"
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
        """Emit the changes of each message."""
        for message in messages:
            for row in self.rows(message):
                context.emit(message, **row)
        return ConsumeOrderlyStatus.SUCCESS

    def rows(self, message: MessageExt) -> Iterator[dict[str, Any]]:
        """Yield a row for each change of a message that the sink is to see."""
        given = ChangeMessage(message.body, message.keys or "", message.properties)
        for number, decoded in enumerate(self._envelope.decode(given)):
            try:
                row = self._row(decoded, message, number)
            except _Unusable as problem:
                row = {OPERATION: _operation(decoded), PROBLEM: str(problem), BODY: message.body}
            if row is not None:
                yield row

    def _row(self, decoded: Decoded, message: MessageExt, number: int) -> dict[str, Any] | None:
        match decoded:
            case BadChange() if self._is_of_table(decoded):
                raise _Unusable(decoded.reason)
            case Change() if self._is_of_table(decoded):
                values = self._rows[decoded.operation](decoded)
                if values is None:
                    return None
                row = {value_column(name): value for name, value in values.items()}
                return row | {
                    POSITION: self._place(decoded, message.queue_offset, number),
                    OPERATION: str(decoded.operation),
                    ABSENT: self._absent(decoded, values),
                    TIME: decoded.source_time or moment(message.store_timestamp * 1000),
                }
            case _:
                return None

    def _is_of_table(self, change: Change | BadChange) -> bool:
        return self._source_table is None or change.table is None or str(change.table) == self._source_table

    def _place(self, change: Change, offset: int, number: int) -> str:
        if change.position is None and not self._by_queue:
            raise _Unusable(
                "The change has no position in its source's log. Have the program write one, or set "
                "ChangeTable(order='queue') if all changes of a key are in one queue in their order."
            )
        position = None if self._by_queue else change.position
        is_snapshot = change.operation is Operation.SNAPSHOT
        try:
            return order_of(position, offset, number, is_snapshot=is_snapshot)
        except OffsetError as error:
            raise _Unusable(str(error)) from error

    def _key(self, change: Change) -> dict[str, Any]:
        """Return the values of the key's columns, checked."""
        key = {name: self._key_value(change, name) for name in self._keys}
        missing = [name for name, value in key.items() if value is None]
        if missing:
            raise _Unusable(
                f"The change has no value for {', '.join(missing)} of the key. Have the program write the "
                "key's columns, or name others: ChangeTable(keys=…)."
            )
        return self._checked(key)

    @staticmethod
    def _key_value(change: Change, name: str) -> Any:
        for values in (change.key, change.row, change.before or {}):
            if name in values:
                return values[name]
        return None

    def _known_values(self, change: Change) -> dict[str, Any]:
        values = {name: change.row[name] for name in self._columns if name in change.row}
        return self._checked(values) | self._key(change)

    def _whole_row(self, change: Change) -> dict[str, Any]:
        absent = sorted(change.absent.intersection(self._columns))
        if absent:
            raise _Unusable(
                f"The new row lacks the value of {', '.join(absent)}, which the program has left out, and "
                "which is stored nowhere else. Have the source log whole rows (MySQL: binlog_row_image=FULL; "
                "PostgreSQL: REPLICA IDENTITY FULL)."
            )
        return self._known_values(change)

    def _absent(self, change: Change, values: Mapping[str, Any]) -> list[str] | None:
        if change.operation is not Operation.UPDATE:
            return None
        return [name for name in self._columns if name not in values] or None

    def _checked(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values that fit their columns exactly."""
        return {name: None if value is None else self._fitted(name, value) for name, value in values.items()}

    def _fitted(self, name: str, value: Any) -> Any:
        column = value_column(name)
        if self._output.is_plainly[column](value):
            return value
        try:
            converted = _converted(value, self.schema[column].dataType)
            self._output.check(column, converted)
        except (SchemaError, ValueError, ArithmeticError) as error:
            raise self._unfit(name, value) from error
        wants_zone = self._is_moment.get(name)
        if wants_zone is not None and (converted.tzinfo is not None) != wants_zone:
            raise self._unfit(name, value)
        return converted

    def _unfit(self, name: str, value: Any) -> _Unusable:
        type_ = self.schema[value_column(name)].dataType.simpleString()
        return _Unusable(
            f"Column {name} is {type_} and cannot hold {value!r:.80} ({type(value).__name__}) exactly. Give "
            "the table another type for it."
        )


def _converted(value: Any, type_: st.DataType) -> Any:
    """Return a value in the class of its column, where a text or number has it exactly.

    Without types of the source, decimals and times come as texts, and numbers with a fraction as decimals.
    """
    match type_, value:
        case st.DecimalType(), str():
            return Decimal(value)
        case st.DateType(), str():
            return date.fromisoformat(value.removesuffix("Z"))
        case ((st.TimestampType() | st.TimestampNTZType()), str()) if not _TOO_EXACT.search(value):
            return datetime.fromisoformat(value)
        case ((st.DoubleType() | st.FloatType()), Decimal()):
            return float(value)
        case _:
            return value


def _operation(decoded: Decoded) -> str:
    """Return the operation of a change that cannot be applied; the sink stops at a truncation in any case."""
    is_truncation = isinstance(decoded, Change) and decoded.operation is Operation.TRUNCATE
    return str(Operation.TRUNCATE) if is_truncation else _BAD


def _no_values(change: Change) -> dict[str, Any]:  # noqa: ARG001 - called like the others
    return {}


def _passed_over(change: Change) -> None:  # noqa: ARG001 - called like the others
    return None


def _stopped(change: Change) -> dict[str, Any]:
    raise _Unusable(
        f"The source has truncated {change.table}, and truncates='stop'. Decide what the table is to have, "
        "and start the query with 'apply' or 'ignore'."
    )
