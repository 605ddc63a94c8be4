"""The listener of a consumer whose sink takes the changes of many tables: messages in, changes out.

Tables have different columns. So a row holds its values and their types in one text, and the driver makes
columns of them. Otherwise the rules of :mod:`~pyspark_rocketmq.consumer.change_listener` hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.pandas.types import from_arrow_schema

from pyspark_rocketmq.change_data.change import (
    BadChange,
    Change,
    ChangeMessage,
    Decoded,
    Operation,
    SchemaChange,
)
from pyspark_rocketmq.change_data.effects import Order
from pyspark_rocketmq.change_data.routes import Routed
from pyspark_rocketmq.change_data.rules import columns_in
from pyspark_rocketmq.change_data.statements import removed_columns
from pyspark_rocketmq.consumer.change_listener import (
    Unusable,
    bad_row,
    place_of,
    removal,
    time_of,
    whole_row_problem,
)
from pyspark_rocketmq.listeners.context import DeliveryContext
from pyspark_rocketmq.model import ConsumeOrderlyStatus, MessageExt
from pyspark_rocketmq.sinks.base import RoutesChanges
from pyspark_rocketmq.sinks.change_table.carried import carried
from pyspark_rocketmq.sinks.change_table.columns import (
    BODY,
    KEYS,
    MORE,
    SOURCE,
    TARGET,
    routed_columns,
)
from pyspark_rocketmq.sinks.change_table.compaction import ABSENT, OPERATION, POSITION
from pyspark_rocketmq.sinks.change_table.new_columns import KEEPING_COLUMNS, name_problem
from pyspark_rocketmq.sinks.change_table.versions import TIME


class TablesListener:
    """Emits a row for each change that a table of its sink is to get, or that cannot be used; picklable."""

    def __init__(self, sink: RoutesChanges) -> None:
        """Take the settings of ``sink``."""
        self.schema = from_arrow_schema(routed_columns())
        """Columns of the rows."""
        self._envelope = sink.envelope
        self._router = sink.router
        self._by_queue = sink.setting("order") == "queue"
        self._ignores_deletes = sink.setting("deletes") == "ignore"
        self._truncates = sink.setting("truncates")
        schema_changes = sink.setting("schema_changes")
        self._ends_at_statements = schema_changes in ("evolve", "exception")
        self._keeps_columns = schema_changes in KEEPING_COLUMNS
        self._problems: dict[tuple[Any, ...], str | None] = {}
        """Problem of the columns' names, for each table and set of columns seen so far; None without one."""

    def consume_message(
        self, messages: Sequence[MessageExt], context: DeliveryContext
    ) -> ConsumeOrderlyStatus:
        """Emit a row for each change in ``messages`` that the sink is to get; return SUCCESS."""
        for message in messages:
            for row in self.rows(message):
                context.emit(message, **row)
        return ConsumeOrderlyStatus.SUCCESS

    def rows(self, message: MessageExt) -> Iterator[dict[str, Any]]:
        """Yield a row for each change in a message that a table is to get, or that cannot be used."""
        given = ChangeMessage(message.body, message.keys or "", message.properties)
        body: bytes | None = message.body
        for number, decoded in enumerate(self._envelope.decode(given)):
            if not isinstance(decoded, Change | BadChange | SchemaChange):
                continue
            routed = None if decoded.table is None else self._router.route(decoded.table)
            if routed is None and decoded.table is not None:
                continue
            try:
                row = self._row(decoded, routed, message, number)
            except Unusable as problem:
                # The body has the values of hidden columns, perhaps also one whose table is unknown.
                hides = self._router.hides_columns if routed is None else routed.route.hides_columns
                row = bad_row(decoded, problem, None if hides else body)
                body = body if row[BODY] is None else None
            if row is not None:
                where = {} if routed is None else {SOURCE: routed.source}
                yield row | {TARGET: "" if routed is None else routed.target, **where}

    def _row(
        self, decoded: Decoded, routed: Routed | None, message: MessageExt, number: int
    ) -> dict[str, Any] | None:
        match decoded:
            case BadChange():
                raise Unusable(decoded.reason if routed is None else _shown(decoded.reason, routed))
            case SchemaChange() if routed is not None:
                self._check_statement(decoded, routed)
                return None
            case Change() if routed is not None and routed.folder_problem is not None:
                raise Unusable(routed.folder_problem)
            case Change(operation=Operation.TRUNCATE) if routed is not None:
                if self._truncates == "ignore":
                    return None
                self._check_truncation(routed, place_of(decoded, message, number, by_queue=self._by_queue))
                values = dict[str, Any]()
            case Change(operation=Operation.DELETE) if self._ignores_deletes:
                return None
            case Change() if routed is not None:
                values = self._values(decoded, routed)
            case _:
                return None
        return values | {
            POSITION: place_of(decoded, message, number, by_queue=self._by_queue),
            TIME: time_of(decoded, message),
            OPERATION: str(decoded.operation),
        }

    def _check_statement(self, change: SchemaChange, routed: Routed) -> None:
        removed = routed.names_of(removed_columns(change.statement))
        if removed and self._ends_at_statements:
            raise removal(change, removed)

    def _values(self, change: Change, routed: Routed) -> dict[str, Any]:
        key = self._key(change, routed)
        lacking = routed.kept(sorted(change.absent))
        if change.operation is not Operation.UPDATE and lacking:
            raise whole_row_problem(lacking)
        # The row of an update notes that these values are missing, so the table must have their columns.
        absent = routed.row(dict.fromkeys(lacking))
        values = {**routed.row(change.row), **absent, **key}
        given = (routed.table, *change.key, None, *change.row, *lacking)
        if given not in self._problems:
            problem = routed.names_problem([*change.row, *lacking], change.key)
            # Other columns are judged where the table's own ones are known: it may leave them out.
            judged = key if self._keeps_columns else values
            self._problems[given] = problem or _names_problem(tuple(judged))
        problem = self._problems[given]
        if problem is not None:
            raise Unusable(problem)
        try:
            return {
                KEYS: json.dumps(list(key)),
                MORE: carried(values, routed.types(change.types, change.key)),
                ABSENT: [*absent] or None,
            }
        except ValueError as error:
            raise Unusable(f"Columns {', '.join(values)}: {error}.") from error

    @staticmethod
    def _key(change: Change, routed: Routed) -> Mapping[str, Any]:
        if not change.key:
            raise Unusable(
                f"The messages of table {change.table} name no key. Name columns that identify a row, "
                f"keys={{'{change.table}': ['id']}}, or leave the table out of the routes."
            )
        missing = [name for name, value in change.key.items() if value is None]
        if missing:
            raise Unusable(
                f"Key column {', '.join(missing)} of table {change.table} has no value in the change. Have "
                f"the program write it, or name other columns: keys={{'{change.table}': […]}}."
            )
        return routed.key(change.key)

    def _check_truncation(self, routed: Routed, place: Order) -> None:
        if self._truncates == "stop":
            raise Unusable(
                f"The source has truncated {routed.table}, and truncates='stop'. Start the query with "
                "'apply' to delete the table's rows, or with 'ignore' to keep them."
            )
        if routed.route.merges:
            raise Unusable(
                f"The source has truncated {routed.table}, but {routed.target} may have rows of other "
                "tables. Start the query with truncates='ignore'. When it has consumed all earlier messages "
                f"of every queue, delete the rows of {routed.table} there whose {POSITION} is below "
                f"'{place}'."
            )


def _shown(reason: str, routed: Routed) -> str:
    """Return the reason of a bad change, without the value of a column that its route hides."""
    for name in columns_in(reason):
        if routed.hides(name):
            return (
                f"column {name} has a value that cannot be read. It is not shown, since the route of "
                f"{routed.table} masks the column or leaves it out: look at the message in its queue"
            )
    return reason


def _names_problem(names: Sequence[str]) -> str | None:
    problems = (name_problem(name, names) for name in names)
    return next((problem for problem in problems if problem is not None), None)
