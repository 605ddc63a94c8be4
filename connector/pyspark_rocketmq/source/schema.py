"""Columns of the source, and the marker row that ends a range where rows cross Spark.

``topic``, ``brokerName``, ``queueId`` and ``queueOffset`` name the physical queue in every row: ranges, acks,
offsets and watermarks go by them.  A message that the group has given back is read from a queue of its retry
topic; the topic it was sent to first is then in ``originTopic``, which is null in every other row, and a
listener gets the message under that topic.

Consumer mode (option ``consumerGroup``) ends every planned range with one *marker row*, because a tag filter
may leave no message at all and the range must still be acknowledged.  In a marker row ``kind`` is ``"end"``,
``queueOffset`` is the range's exclusive end and ``plannedRange`` holds the range and the number of its
message rows as JSON, ``putBack`` if messages were given back, ``resetTo`` if an operator has moved the group
meanwhile, ``ended`` if it is not as long as it was planned, ``bounds`` if the broker told where the queue
begins and ends, and ``pulls`` and ``pullMs``, how many answers brought them and how long these took; in a
message row both columns are null.  Numbers are never null: pandas would turn the whole column into floats.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pyspark_rocketmq.consume.metrics import Figures
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageQueue, QueueRange, is_retry_topic
from pyspark_rocketmq.wire.columnar.decode import MESSAGE_SCHEMA, projected_schema
from pyspark_rocketmq.wire.namespace import without_namespace
from pyspark_rocketmq.wire.properties import MAX_OFFSET, MIN_OFFSET, RETRY_TOPIC

END_MARKER = "end"


class RangeEnd(StrEnum):
    """Why a range that has arrived ends where it does."""

    WHOLE = "whole"
    """It was planned so."""
    EARLY = "early"
    """Its broker was away or had no more, or an operator has moved the group."""
    REFUSED = "refused"
    """Its broker may not be read from, until an operator says otherwise."""
    FULL = "full"
    """It has become as large as it may (D13)."""
    UNDECODABLE = "undecodable"
    """What comes next cannot be decoded."""


ORIGIN_TOPIC = "originTopic"

_CONSUMER_FIELDS = tuple(pa.field(name, pa.string()) for name in (ORIGIN_TOPIC, "kind", "plannedRange"))
CONSUMER_SCHEMA = pa.schema([*MESSAGE_SCHEMA, *_CONSUMER_FIELDS])


def spark_schema(
    *, consumer_mode: bool, columns: Sequence[str] | None = None, property_columns: Sequence[str] = ()
) -> StructType:
    """The source's schema as Spark sees it; outside of consumer mode of these columns only."""
    # Not from DDL text: that needs a SparkContext, which the planner's process does not have.
    return from_arrow_schema(
        CONSUMER_SCHEMA if consumer_mode else projected_schema(columns, property_columns)
    )


def with_consumer_columns(messages: pa.RecordBatch, namespace: str) -> pa.RecordBatch:
    """The same messages of one queue with the columns of consumer mode.

    Args:
        messages: Not empty.
        namespace: That of the consumer; ``originTopic`` is without it, as every topic is.
    """
    nulls = pa.nulls(messages.num_rows, pa.string())
    origins = nulls
    if is_retry_topic(messages.column("topic")[0].as_py()):
        origins = _origin_topics(messages.column("properties"), namespace)
    return pa.RecordBatch.from_arrays([*messages.columns, origins, nulls, nulls], schema=CONSUMER_SCHEMA)


def _origin_topics(properties: pa.MapArray, namespace: str) -> pa.StringArray:
    """Null where a message does not tell: it then keeps the retry topic, as in Java."""
    named = pc.map_lookup(properties, RETRY_TOPIC, "last").to_pylist()
    bare = [None if topic is None else without_namespace(namespace, topic) for topic in named]
    return pa.array(bare, pa.string())


def marker_row(
    planned: QueueRange,
    *,
    rows: int,
    reset_to: int | None = None,
    pulls: int = 0,
    pull_ms: float = 0.0,
    bounds: tuple[int, int] | None = None,
    ended: RangeEnd = RangeEnd.WHOLE,
) -> pa.RecordBatch:
    """The one row that ends a planned range, of which ``rows`` message rows were read by ``pulls``.

    With ``reset_to`` the queue is to be planned from there next; ``bounds`` are its smallest offset and its
    end.
    """
    values = {
        "topic": planned.queue.topic,
        "brokerName": planned.queue.broker_name,
        "queueId": planned.queue.queue_id,
        "queueOffset": planned.end,
        "plannedRange": json.dumps(
            {
                "from": planned.start,
                "to": planned.end,
                "epoch": planned.epoch,
                "times": planned.reconsume_times,
                "rows": rows,
                "pulls": pulls,
                "pullMs": round(pull_ms, 1),
                **({"putBack": planned.put_back} if planned.put_back else {}),
                **({} if reset_to is None else {"resetTo": reset_to}),
                **({} if bounds is None else {"bounds": bounds}),
                **({} if ended is RangeEnd.WHOLE else {"ended": str(ended)}),
            }
        ),
    }
    columns = _same_in_markers().columns
    for name, value in values.items():
        index = CONSUMER_SCHEMA.get_field_index(name)
        columns[index] = pa.array([value], CONSUMER_SCHEMA.field(index).type)
    return pa.RecordBatch.from_arrays(columns, schema=CONSUMER_SCHEMA)


@cache
def _same_in_markers() -> pa.RecordBatch:
    """A marker row without what is different in each."""
    numbers = dict.fromkeys(
        ("queueId", "queueOffset", "commitLogOffset", "reconsumeTimes", "sysFlag", "flag"), 0
    )
    times = dict.fromkeys(("bornTimestamp", "storeTimestamp"), datetime.fromtimestamp(0, UTC))
    texts = dict.fromkeys(("topic", "brokerName"), "")
    values = dict.fromkeys(CONSUMER_SCHEMA.names) | {**numbers, **times, **texts, "kind": END_MARKER}
    return pa.RecordBatch.from_pylist([values], schema=CONSUMER_SCHEMA)


def planned_range(queue: MessageQueue, text: str, *, rows: int) -> QueueRange:
    """The range a marker row speaks of.

    Raises:
        RocketMQError: If ``rows``, the message rows that came with the marker row, are not as many as were
            read.
    """
    facts = json.loads(text)
    if rows != facts["rows"]:
        raise RocketMQError(
            f"{queue}: {facts['rows']} messages were read of the range {facts['from']} to {facts['to']}, but "
            f"{rows} rows arrived. Do not filter, copy or sample the rows of format('rocketmq') before "
            "consume_orderly(): the whole range is acknowledged."
        )
    return QueueRange(
        queue=queue,
        start=facts["from"],
        end=facts["to"],
        epoch=facts["epoch"],
        reconsume_times=facts["times"],
        put_back=facts.get("putBack", ""),
    )


def pull_figures(text: str) -> Figures:
    """What reading the range of a marker row took."""
    facts = json.loads(text)
    return Figures(pulled=facts["rows"], pulls=facts["pulls"], pull_ms=facts["pullMs"])


def told_with_messages(text: str) -> dict[str, str]:
    """The properties a consumer adds to a range's messages: the queue's bounds at its newest pull.

    Source: ``PullAPIWrapper.processPullResult``.
    """
    bounds = json.loads(text).get("bounds")
    return {} if bounds is None else {MIN_OFFSET: str(bounds[0]), MAX_OFFSET: str(bounds[1])}


def range_end(text: str) -> RangeEnd:
    """Why the range of a marker row ends where it does."""
    return RangeEnd(json.loads(text).get("ended", RangeEnd.WHOLE))


def reset_target(text: str) -> int | None:
    """Where an operator wants the queue of a marker row planned from next; None without a reset."""
    target: int | None = json.loads(text).get("resetTo")
    return target


MESSAGE_COLUMNS = (
    "topic", "brokerName", "queueId", "queueOffset", "commitLogOffset", "msgId", "keys", "tags", "body", "properties",
    "bornTimestamp", "bornHost", "storeTimestamp", "storeHost", "reconsumeTimes", "sysFlag", "flag",
    ORIGIN_TOPIC,
)  # fmt: skip
"""What messages are made of: MessageExt's fields in their order but for the last."""
