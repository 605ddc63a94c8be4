"""What a sink says of a group's queues, and its rewinding after the group was moved back.

A sink drops rows below a queue's watermark, since it has them already. To have them written again they must be
deleted and the watermark be set back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from jobs.errors import JobFailed
from jobs.offset_moves import QueueMove
from pyspark_rocketmq.delta.table import query_rows, sql_literal
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.store import OffsetRow
from pyspark_rocketmq.sinks.delta_rules import app_id
from pyspark_rocketmq.sinks.standing import lost_by

if TYPE_CHECKING:
    from pyspark_rocketmq.sinks.delta_sink import DeltaSink


class SinkWatermarks:
    """The watermarks in the Delta table at ``path``."""

    def __init__(self, path: str) -> None:
        self._path = path

    def of(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Each queue's watermark in the life of the generation given; a queue without one is absent.

        Raises:
            JobFailed: If there is no such table.
        """
        table = self._table()
        found = {
            queue: table.transaction_version(app_id(consumer_group, queue, generation))
            for queue, generation in queues.items()
        }
        return {queue: watermark for queue, watermark in found.items() if watermark is not None}

    def lost(self, consumer_group: str, rows: Mapping[MessageQueue, OffsetRow]) -> dict[MessageQueue, int]:
        """Where the table is in each queue whose rows it has lost, by what the group's rows say.

        Raises:
            JobFailed: If there is no such table, it lacks nothing, or it is one of several sinks.
        """
        self._table()
        queues = {queue: row.generation for queue, row in rows.items()}
        found = lost_by(rows, _delta_sink(self._path).standings(consumer_group, queues))
        if not found:
            raise JobFailed(
                f"There is nothing to change: {self._path} lacks nothing of what group {consumer_group} wrote into it by its "
                "offsets. To consume messages again whose rows it has, say from where, with --rewind-sink."
            )
        if found[0].is_one_of_several:
            raise JobFailed(
                f"Nothing was changed: group {consumer_group} writes into other sinks beside {self._path}, and going back to where one of "
                "them is would forget what the others lack. Name them all, in Python: rmq.reset_to_sink(store, [every sink of the "
                "query], consumer_group)."
            )
        return found[0].targets

    def problem(self, consumer_group: str, moves: Sequence[QueueMove]) -> str | None:
        """Why the watermarks must not be set to where ``moves`` go: rows would be there twice, or be forgotten."""
        back = [move for move in moves if move.is_below_watermark]
        if not back:
            return None
        forgotten = _delta_sink(self._path).rewind_problem(consumer_group, [move.queue for move in back])
        if forgotten is not None:
            return f"Nothing was changed. {forgotten}"
        # delta-rs' SQL takes a name without quotation marks for one in small letters.
        where = " OR ".join(_rows_from(move, '"') for move in back)
        sql = f"SELECT count(*) AS found FROM rows WHERE {where}"  # noqa: S608 - quoted literals
        [count] = query_rows(self._table(), sql).column("found").to_pylist()
        if count == 0:
            return None
        shown = " OR ".join(_rows_from(move, "`") for move in back)
        remedy = f"DELETE FROM delta.`{self._path}` WHERE {shown}"  # noqa: S608 - shown, not run
        return (
            f"Nothing was changed: {count} rows that group {consumer_group} would write again are still in {self._path}, "
            f"and would be there twice. Remove them first: {remedy}"
        )

    def rewind(self, consumer_group: str, targets: Mapping[MessageQueue, int]) -> None:
        """Set the watermarks; see ``DeltaSink.rewind``."""
        _delta_sink(self._path).rewind(consumer_group, targets)

    def _table(self) -> DeltaTable:
        try:
            return DeltaTable(self._path)
        except TableNotFoundError as error:
            raise JobFailed(f"There is no Delta table at {self._path}; correct --sink.") from error


def _delta_sink(path: str) -> DeltaSink:
    """Loaded only for who rewinds or goes back to the sink: it brings Spark along, which takes longer than all the rest of a job."""
    from pyspark_rocketmq.sinks.delta_sink import DeltaSink

    return DeltaSink(path)


def _rows_from(move: QueueMove, quote: str) -> str:
    """The condition that chooses the queue's rows from the move's target on."""
    topic, broker, queue_id, offset = (
        f"{quote}{name}{quote}" for name in ("topic", "brokerName", "queueId", "queueOffset")
    )
    queue = move.queue
    return (
        f"({topic} = {sql_literal(queue.topic)} AND {broker} = {sql_literal(queue.broker_name)} "
        f"AND {queue_id} = {queue.queue_id} AND {offset} >= {move.target})"
    )
