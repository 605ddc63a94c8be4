"""Several sinks of one query: each has its own watermarks, so that each gets its rows exactly once.

The sinks commit one after the other, and the group's offsets move after the last commit.  If the query is
killed in between, the batch runs again: the sinks that already have its rows drop them, and the others add
them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.model import POSITION_COLUMNS, MessageQueue
from pyspark_rocketmq.sinks.against_offsets import SinkStanding
from pyspark_rocketmq.sinks.base import (
    CommitsGroups,
    LeavesOutQueues,
    QueueGeneration,
    RowWriter,
    Sink,
    SinkBatch,
    Span,
    Writing,
    Written,
    commits_in_task,
    newest_generations,
    note_newest,
    sends_rows,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One of a query's several sinks, and which of the listener's rows and columns this sink gets."""

    sink: Sink
    where: pc.Expression | None = None
    """Condition such as ``pyarrow.compute.field("kind") == "paid"``; None selects all rows.

    Rows for which the condition is null are not selected.
    """
    columns: tuple[str, ...] | None = None
    """Columns of the listener's rows; None selects all. The message's position is always included."""

    def schema_of(self, rows: pa.Schema) -> pa.Schema:
        """Return the columns of ``rows`` that the sink gets: those of the position, and ``columns``.

        Raises:
            OptionError: If ``rows`` lacks one of ``columns``, or if ``where`` cannot be evaluated on them.
        """
        self._check_where(rows)
        if self.columns is None:
            return rows
        unknown = [name for name in self.columns if name not in rows.names]
        if unknown:
            problem = (
                f"columns names {', '.join(unknown)}, which the rows do not have; they have "
                f"{', '.join(rows.names)}"
            )
            raise OptionError((problem,), where="route to a sink")
        kept = {*POSITION_COLUMNS, *self.columns}
        return pa.schema([field for field in rows if field.name in kept])

    def _check_where(self, rows: pa.Schema) -> None:
        if self.where is None:
            return
        try:
            rows.empty_table().filter(self.where)
        except (pa.ArrowException, TypeError) as error:
            problem = (
                f"where={self.where} cannot be evaluated on the rows, which have the columns "
                f"{', '.join(rows.names)} (names are case-sensitive): "
                f"{str(error).partition(' in ')[0].rstrip('.')}"
            )
            raise OptionError((problem,), where="route to a sink") from error


class MultiSink:
    """A sink that passes rows on to several other sinks; implements ``Sink``."""

    def __init__(self, sinks: Sequence[Sink | Route]) -> None:
        """Send each sink all rows, or those that its route selects.

        Raises:
            OptionError: If there is no sink, if one commits in tasks, or if two have the same place: then the
                first sink's commit would move the watermarks of the second, whose rows would never be
                written.
        """
        self._routes = tuple(sink if isinstance(sink, Route) else Route(sink=sink) for sink in sinks)
        if not self._routes:
            raise OptionError(
                ("sink=[] is an empty list: put a sink into it, or use sink=None",), where="several sinks"
            )
        if in_task := [sink for sink in self.sinks if commits_in_task(sink)]:
            problem = (
                f"{in_task!r} commits in tasks, which is for a query with only this sink: several sinks "
                "commit on the driver, one after the other; leave out commit_in_task=True, or pass the sink "
                "itself to the query, without a list and without a route"
            )
            raise OptionError((problem,), where="several sinks")
        self._check_places()
        self._columns: list[tuple[str, ...]] = []

    def __repr__(self) -> str:
        return f"MultiSink({list(self.sinks)!r})"

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """The sinks to which this one passes rows, without their routes."""
        return tuple(route.sink for route in self._routes)

    @property
    def place(self) -> Hashable:
        """The places of all sinks. A place is a value that identifies where a sink stores its watermarks."""
        return tuple(sink.place for sink in self.sinks)

    def prepare(self, schema: pa.Schema) -> None:
        """Prepare each sink for those columns of ``schema`` that its route selects.

        Raises:
            OptionError: If a route does not fit the rows, or if two sinks turn out to have the same place.
        """
        schemas = [route.schema_of(schema) for route in self._routes]
        for route, own in zip(self._routes, schemas, strict=True):
            route.sink.prepare(own)
        self._check_places()
        self._columns = [tuple(own.names) for own in schemas]

    def _check_places(self) -> None:
        places = Counter(sink.place for sink in self.sinks)
        twice = [sink for sink in self.sinks if places[sink.place] > 1]
        if twice:
            problem = (
                f"{twice!r} have one place for their watermarks: once the first sink has committed, the "
                "other would drop its rows; name each Delta table once, and give each "
                "DatabaseSink a watermark_table=… of its own"
            )
            raise OptionError((problem,), where="several sinks")

    def standings(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> tuple[SinkStanding, ...]:
        """Return the group's progress in each of the sinks."""
        return tuple(standing for sink in self.sinks for standing in sink.standings(consumer_group, queues))

    def watermarks(self, consumer_group: str) -> dict[QueueGeneration, int]:
        """Return the smallest of the sinks' watermarks of each queue, in the queue's newest generation.

        The watermark of a sink without rows of that generation counts as 0. See ``Sink.watermarks``.
        """
        found = [sink.watermarks(consumer_group) for sink in self.sinks]
        generations = {key for watermarks in found for key in watermarks}
        return newest_generations(
            {key: min(watermarks.get(key, 0) for watermarks in found) for key in generations}
        )

    def begin(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> SinkBatch:
        """Begin a micro-batch in each sink, and return these batches as one.

        The result implements ``CommitsGroups`` or ``LeavesOutQueues`` only if the batches of all sinks do.
        """
        begun = [sink.begin(consumer_group, queues) for sink in self.sinks]
        filters = tuple(
            _Filter(route.where, columns) for route, columns in zip(self._routes, self._columns, strict=True)
        )
        commits_groups = all(isinstance(each, CommitsGroups) for each in begun)
        leaves_out = all(isinstance(each, LeavesOutQueues) for each in begun)
        kind = _KINDS[commits_groups, leaves_out]
        return kind(begun, filters)


def as_single_sink(sinks: Sink | Route | Sequence[Sink | Route]) -> Sink:
    """Return one sink that stands for all sinks and routes passed to a query.

    Raises:
        OptionError: If a list is empty, or has a sink that commits in tasks, or two with the same place.
    """
    if isinstance(sinks, Route):
        return MultiSink([sinks])
    return MultiSink(sinks) if isinstance(sinks, Sequence) else sinks


def single_sinks(sink: Sink) -> tuple[Sink, ...]:
    """Return the single sinks within a sink; only the sink itself if it is a single one."""
    if not isinstance(sink, MultiSink):
        return (sink,)
    return tuple(single for inner in sink.sinks for single in single_sinks(inner))


@dataclass(frozen=True, slots=True)
class _Filter:
    where: pc.Expression | None
    columns: tuple[str, ...]

    def apply(self, rows: pa.RecordBatch) -> list[pa.RecordBatch]:
        table = pa.Table.from_batches([rows])
        if self.where is not None:
            table = table.filter(self.where)
        return table.select(list(self.columns)).to_batches() if len(table) else []


@dataclass(frozen=True, slots=True)
class _WrittenBy:
    """A task's result for one of the sinks."""

    index: int
    """Number of the sink, from 0."""
    of_sink: Written

    def to_dict(self) -> dict[str, Any]:
        return {"sink": self.index, "written": self.of_sink.to_dict()}


@dataclass(frozen=True, slots=True)
class _MultiWriter:
    writers: tuple[RowWriter, ...]
    filters: tuple[_Filter, ...]

    @property
    def sends_rows(self) -> bool:
        return any(map(sends_rows, self.writers))

    def open(self) -> Writing:
        return _MultiWriting([writer.open() for writer in self.writers], self.filters)

    def written(self, facts: Mapping[str, Any]) -> Written:
        return _WrittenBy(facts["sink"], self.writers[facts["sink"]].written(facts["written"]))


@dataclass(frozen=True, slots=True)
class _MultiWriting:
    writings: Sequence[Writing]
    filters: tuple[_Filter, ...]

    def add(self, rows: pa.RecordBatch) -> int:
        # Several sinks may leave out the same row, so return the largest count instead of the sum.
        return max(
            sum(writing.add(own) for own in rows_of.apply(rows))
            for writing, rows_of in zip(self.writings, self.filters, strict=True)
        )

    def finish(self) -> list[Written]:
        return [
            _WrittenBy(index, written)
            for index, writing in enumerate(self.writings)
            for written in writing.finish()
        ]

    def abandon(self) -> None:
        for writing in self.writings:
            writing.abandon()


@dataclass(frozen=True, slots=True)
class _MultiBatch:
    batches: Sequence[SinkBatch]
    filters: tuple[_Filter, ...]

    @property
    def standings(self) -> tuple[SinkStanding, ...]:
        return tuple(standing for batch in self.batches for standing in batch.standings)

    def task_writer(self) -> RowWriter:
        return _MultiWriter(tuple(batch.task_writer() for batch in self.batches), self.filters)

    def note_newest(self, newest: Mapping[MessageQueue, str]) -> None:
        for batch in self.batches:
            note_newest(batch, newest)

    def commit(self, written: Sequence[_WrittenBy], acked: Mapping[MessageQueue, int]) -> int | None:
        return _first_version(
            [batch.commit(_of_sink(index, written), acked) for index, batch in enumerate(self.batches)]
        )


class _MultiGroups(_MultiBatch):
    """A batch whose sinks can all commit groups; implements ``CommitsGroups``."""

    def commit_group(
        self, written: Sequence[_WrittenBy], spans: Mapping[MessageQueue, Span], group_id: str
    ) -> int | None:
        # If a sink refuses queues, this is called again for the same group without them. The sinks before it
        # have committed the group by then, and do nothing.
        versions = []
        for index, batch in enumerate(self.batches):
            assert isinstance(batch, CommitsGroups)
            versions.append(batch.commit_group(_of_sink(index, written), spans, group_id))
        return _first_version(versions)


class _MultiLeavingOut(_MultiBatch):
    """A batch whose sinks can all drop the rows of some queues; implements ``LeavesOutQueues``."""

    def without(
        self, written: Sequence[_WrittenBy], queues: Collection[MessageQueue]
    ) -> tuple[list[_WrittenBy], int]:
        kept: list[_WrittenBy] = []
        most = 0
        for index, batch in enumerate(self.batches):
            assert isinstance(batch, LeavesOutQueues)
            rest, removed = batch.without(_of_sink(index, written), queues)
            kept += (_WrittenBy(index, each) for each in rest)
            # Several sinks may have the same row, so count it once: the largest number is returned.
            most = max(most, removed)
        return kept, most


class _MultiGroupsLeavingOut(_MultiGroups, _MultiLeavingOut):
    """A batch whose sinks can all commit groups and drop the rows of some queues."""


_KINDS: Final[Mapping[tuple[bool, bool], type[_MultiBatch]]] = {
    (False, False): _MultiBatch,
    (False, True): _MultiLeavingOut,
    (True, False): _MultiGroups,
    (True, True): _MultiGroupsLeavingOut,
}
"""Class of the batch, by whether all sinks can commit groups, and whether all can leave out queues."""


def _of_sink(index: int, written: Iterable[_WrittenBy]) -> list[Written]:
    return [each.of_sink for each in written if each.index == index]


def _first_version(versions: Iterable[int | None]) -> int | None:
    return next((version for version in versions if version is not None), None)
