"""Columns of the source, from one list, and the two that consumer mode adds.

Consumer mode (option ``consumerGroup``) ends every planned range with one *marker row*, because a tag filter may
leave no message at all and the range must still be acknowledged.  In a marker row ``kind`` is ``"end"``,
``queueOffset`` is the range's exclusive end and ``plannedRange`` holds the range and the number of its message
rows as JSON, and ``resetTo`` if an operator has moved the group meanwhile; in a message row both added columns are
null.  Numbers are never null: pandas would turn the whole column into floats.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageQueue, QueueRange
from pyspark_rocketmq.wire.columnar import MESSAGE_SCHEMA

END_MARKER = "end"

_MARKER_FIELDS = (pa.field("kind", pa.string()), pa.field("plannedRange", pa.string()))
CONSUMER_SCHEMA = pa.schema([*MESSAGE_SCHEMA, *_MARKER_FIELDS])


def spark_schema(*, consumer_mode: bool) -> StructType:
    """The source's schema as Spark sees it."""
    # Not from DDL text: that needs a SparkContext, which the planner's process does not have.
    return from_arrow_schema(CONSUMER_SCHEMA if consumer_mode else MESSAGE_SCHEMA)


def with_marker_columns(messages: pa.RecordBatch) -> pa.RecordBatch:
    """The same messages with empty marker columns."""
    nulls = [pa.nulls(messages.num_rows, field.type) for field in _MARKER_FIELDS]
    return pa.RecordBatch.from_arrays([*messages.columns, *nulls], schema=CONSUMER_SCHEMA)


def marker_row(planned: QueueRange, *, rows: int, reset_to: int | None = None) -> pa.RecordBatch:
    """The one row that ends a planned range, of which ``rows`` message rows were read.

    With ``reset_to`` the queue is to be planned from there next.
    """
    numbers = dict.fromkeys(("commitLogOffset", "reconsumeTimes", "sysFlag", "flag"), 0)
    times = dict.fromkeys(("bornTimestamp", "storeTimestamp"), datetime.fromtimestamp(0, UTC))
    values = dict.fromkeys(CONSUMER_SCHEMA.names) | {
        **numbers,
        **times,
        "topic": planned.queue.topic,
        "brokerName": planned.queue.broker_name,
        "queueId": planned.queue.queue_id,
        "queueOffset": planned.end,
        "kind": END_MARKER,
        "plannedRange": json.dumps(
            {
                "from": planned.start,
                "to": planned.end,
                "epoch": planned.epoch,
                "times": planned.reconsume_times,
                "rows": rows,
                **({} if reset_to is None else {"resetTo": reset_to}),
            }
        ),
    }
    return pa.RecordBatch.from_pylist([values], schema=CONSUMER_SCHEMA)


def planned_range(queue: MessageQueue, text: str, *, rows: int) -> QueueRange:
    """The range a marker row speaks of.

    Raises:
        RocketMQError: If ``rows``, the message rows that came with the marker row, are not as many as were read.
    """
    facts = json.loads(text)
    if rows != facts["rows"]:
        raise RocketMQError(
            f"{queue}: {facts['rows']} messages were read of the range {facts['from']} to {facts['to']}, but {rows} "
            "rows arrived. Do not filter, copy or sample the rows of format('rocketmq') before consume_orderly(): "
            "the whole range is acknowledged."
        )
    return QueueRange(
        queue=queue,
        start=facts["from"],
        end=facts["to"],
        epoch=facts["epoch"],
        reconsume_times=facts["times"],
    )


def reset_target(text: str) -> int | None:
    """Where an operator wants the queue of a marker row planned from next; None without a reset."""
    target: int | None = json.loads(text).get("resetTo")
    return target
