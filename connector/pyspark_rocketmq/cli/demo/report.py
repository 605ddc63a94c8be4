"""Checks that a demo's table has every message that was sent, once, and each order's steps in order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from rich.console import Console

from pyspark_rocketmq.cli.demo.orders import STEPS, order_ids
from pyspark_rocketmq.cli.output import records_table
from pyspark_rocketmq.model import POSITION_COLUMNS

_MOST_EXAMPLES = 5

Position = tuple[str, str, int, int]
"""Topic, broker name, queue id and queue offset. Only together do they identify a message."""

_NOT_SHOWN = ("topic", "delivered_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderReport:
    """Findings of the check; ``is_clean`` if there are none."""

    messages: int
    """Number of distinct messages, by topic, broker, queue and queue offset."""
    rows: int
    duplicates: int
    """Extra rows of messages that have one already."""
    lost: int
    """Steps that were sent, but have no message."""
    unexpected: int
    """Messages with an order key and step that were never sent, or were sent fewer times than they came."""
    order_violations: int
    """Messages that arrived after a later message of the same queue or order key."""
    examples: tuple[str, ...] = ()
    """The first five findings as sentences."""

    @property
    def is_clean(self) -> bool:
        """Whether everything arrived, once and in order."""
        return not (self.duplicates or self.lost or self.unexpected or self.order_violations)

    def __str__(self) -> str:
        verdict = "in order" if self.is_clean else "NOT as sent"
        counts = (
            f"{verdict}: {self.messages} messages in {self.rows} rows, {self.duplicates} duplicates, "
            f"{self.lost} lost, {self.unexpected} unexpected, {self.order_violations} order violations"
        )
        return "\n  - ".join((counts, *self.examples))


def check_order(
    rows: Iterable[tuple[str, str, int, int, str, str]], expected: Mapping[str, Sequence[str]]
) -> OrderReport:
    """Compare consumed rows with what was sent.

    Args:
        rows: ``(topic, broker name, queue id, queue offset, order key, step)`` in the order of consumption.
            A table has no order: sort its rows by the moment of delivery, if the listener recorded it. Rows
            sorted by queue and queue offset only show whether each key's steps were stored in order.
        expected: The steps sent for each order key, in order; a step may occur more than once.
    """
    check = _Check(expected)
    for topic, broker_name, queue_id, queue_offset, order_key, step in rows:
        check.add((topic, broker_name, queue_id, queue_offset), order_key, step)
    return check.report()


class _Check:
    def __init__(self, expected: Mapping[str, Sequence[str]]) -> None:
        self._places: dict[tuple[str, str], list[int]] = defaultdict(list)
        """For each order key and step, the indexes of that step among the steps sent for the key."""
        for order_key, steps in expected.items():
            for place, step in enumerate(steps):
                self._places[order_key, step].append(place)
        self._occurrences: Counter[tuple[str, str]] = Counter()
        self._seen: set[Position] = set()
        self._last_offset: dict[tuple[str, str, int], int] = {}
        self._last_place: dict[str, int] = {}
        self._rows = self._duplicates = self._unexpected = self._order_violations = 0
        self._examples: list[str] = []

    def add(self, position: Position, order_key: str, step: str) -> None:
        self._rows += 1
        if position in self._seen:
            self._duplicates += 1
            self._note(position, f"{order_key} {step} came again")
            return
        self._seen.add(position)
        is_late = self._is_late_in_queue(position)
        place = self._place(order_key, step)
        if place is None:
            self._unexpected += 1
            self._note(position, f"{order_key} {step} was not expected (again)")
        else:
            is_late |= place < self._last_place.get(order_key, -1)
            self._last_place[order_key] = max(place, self._last_place.get(order_key, -1))
        if is_late:
            self._order_violations += 1
            self._note(position, f"{order_key} {step} came after a later one")

    def report(self) -> OrderReport:
        missing = {
            what: len(places) - self._occurrences[what]
            for what, places in self._places.items()
            if self._occurrences[what] < len(places)
        }
        for order_key, step in missing:
            self._note(None, f"{order_key} {step} never came")
        return OrderReport(
            messages=len(self._seen),
            rows=self._rows,
            duplicates=self._duplicates,
            lost=sum(missing.values()),
            unexpected=self._unexpected,
            order_violations=self._order_violations,
            examples=tuple(self._examples),
        )

    def _is_late_in_queue(self, position: Position) -> bool:
        topic, broker_name, queue_id, queue_offset = position
        queue = (topic, broker_name, queue_id)
        last = self._last_offset.get(queue, -1)
        self._last_offset[queue] = max(last, queue_offset)
        return queue_offset < last

    def _place(self, order_key: str, step: str) -> int | None:
        places = self._places.get((order_key, step), ())
        occurrence = self._occurrences[order_key, step]
        if occurrence >= len(places):
            return None
        self._occurrences[order_key, step] += 1
        return places[occurrence]

    def _note(self, position: Position | None, finding: str) -> None:
        if len(self._examples) < _MOST_EXAMPLES:
            where = "topic={} broker={} queue={} offset={}: ".format(*position) if position else ""
            self._examples.append(where + finding)


def read_orders(path: str) -> pa.Table:
    """Return all rows of the orders table, in the order in which the listener received their messages."""
    # Let the engine sort: Arrow cannot sort the string views that it returns.
    query = 'SELECT * FROM orders ORDER BY delivered_ns, "queueOffset"'
    return pa.table(QueryBuilder().register("orders", DeltaTable(path)).execute(query).read_all())


def check_orders(rows: pa.Table, orders: int) -> OrderReport:
    """Compare ``rows``, in the order of delivery, with the messages sent: five steps of every order."""
    names = (*POSITION_COLUMNS, "order_id", "step")
    tuples: Iterator[tuple[str, str, int, int, str, str]] = zip(
        *(rows.column(name).to_pylist() for name in names), strict=True
    )
    return check_order(tuples, dict.fromkeys(order_ids(orders), STEPS))


def verdict_line(messages_sent: int, report: OrderReport) -> str:
    """Return the check's result in one line: messages sent, rows, duplicates, losses, order violations."""
    return (
        f"messages: {messages_sent} · rows: {report.rows} · duplicates: {report.duplicates} · "
        f"lost: {report.lost} · order violations: {report.order_violations}"
    )


def print_head(rows: pa.Table, path: str, console: Console, count: int = 10) -> None:
    """Print the first ``count`` rows of the table, without the columns ``topic`` and ``delivered_ns``."""
    columns = [name for name in rows.column_names if name not in _NOT_SHOWN]
    console.print(f"First {count} rows of {path}", markup=False, soft_wrap=True)
    console.print(records_table("", columns, rows.slice(0, count).to_pylist()))


def print_findings(findings: Iterable[str], console: Console) -> None:
    """Print ``findings``, the errors that the check has kept as examples, one per line."""
    for finding in findings:
        console.print(f"  - {finding}", markup=False)
