"""Verdict on a sink: whether all messages are there once and in order,
and how long queues stood still.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from deltalake import DeltaTable, QueryBuilder

from tests.helpers.orders import Orders, Row, check_sink

_COLUMNS = 'topic, "brokerName", "queueId", "queueOffset", delivered_ns, stored_ms, instance'


class Wait(NamedTuple):
    """How long a message waited in its queue after the one before it was done."""

    seconds: float
    queue: tuple[str, str, int]
    queue_offset: int
    before: str
    """Instance that had the message before it."""
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Findings of :func:`judge`."""

    is_clean: bool
    text: str
    waits: tuple[Wait, ...]

    @property
    def handovers(self) -> tuple[Wait, ...]:
        """Waits at which a queue moved from one instance to another."""
        return tuple(wait for wait in self.waits if wait.before != wait.after)


def judge(
    sink: Path | str,
    stored: Orders,
    *,
    but: str = "",
    lost: Collection[Row] = (),
    storage_options: dict[str, str] | None = None,
) -> Verdict:
    """Compare a sink with the brokers' messages and those ``lost`` with a tail, except for topic ``but``."""
    report = check_sink(sink, stored, but=but, lost=lost, storage_options=storage_options)
    waits = _waits(DeltaTable(str(sink), storage_options=storage_options), but)
    handovers = [wait.seconds for wait in waits if wait.before != wait.after]
    lines = [
        str(report),
        f"queues changed hands {len(handovers)} times, after standing still for {_spread(handovers)}",
        "longest time a queue stood still: {:.1f} s ({} {} {} at offset {}, {} -> {})".format(
            waits[0].seconds, *waits[0].queue, *waits[0][2:]
        )
        if waits
        else "no rows",
    ]
    return Verdict(is_clean=report.is_clean, text="\n".join(lines), waits=waits)


def _waits(sink: DeltaTable, but: str) -> tuple[Wait, ...]:
    """Return the waits, the longest first."""
    table = (
        QueryBuilder()
        .register("sink", sink)
        .execute(f"SELECT {_COLUMNS} FROM sink WHERE topic <> '{but}' ORDER BY \"queueOffset\"")
        .read_all()
    )
    rows = zip(*(table.column(index).to_pylist() for index in range(table.num_columns)), strict=True)
    by_queue: dict[tuple[str, str, int], list[tuple[int, int, int, str]]] = defaultdict(list)
    for topic, broker_name, queue_id, *row in rows:
        by_queue[topic, broker_name, queue_id].append(tuple(row))
    waits = [
        Wait((after[1] - max(before[1], after[2] * 1_000_000)) / 1e9, queue, after[0], before[3], after[3])
        for queue, theirs in by_queue.items()
        for before, after in pairwise(theirs)
    ]
    return tuple(sorted(waits, reverse=True))


def _spread(seconds: list[float]) -> str:
    if not seconds:
        return "no time"
    return (
        f"{min(seconds):.1f} .. {statistics.median(seconds):.1f} .. {max(seconds):.1f} s (least, median, "
        f"most)"
    )
