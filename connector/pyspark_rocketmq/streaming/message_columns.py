"""Messages out of the columns in which Spark hands them to ``mapInArrow``."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_rocketmq.model import MessageExt, MessageQueue
from pyspark_rocketmq.streaming.arrived_range import MESSAGE_COLUMNS, messages_of

_TIMES = frozenset({"bornTimestamp", "storeTimestamp"})
_MICROS_PER_MILLI = 1000


def decode_messages(rows: pa.RecordBatch, queue: MessageQueue) -> list[MessageExt]:
    """The messages of ``rows``, all of which are of ``queue``."""
    of_queue = dict(zip(MESSAGE_COLUMNS, queue, strict=False))
    with _without_collector():
        return messages_of(
            [of_queue[name]] * rows.num_rows if name in of_queue else _values(rows.column(name), name)
            for name in MESSAGE_COLUMNS
        )


@contextmanager
def _without_collector() -> Iterator[None]:
    """No cycles are made here, and the garbage collector would look at all messages again and again: a quarter more."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _values(column: pa.Array, name: str) -> list[Any]:
    if name in _TIMES:
        # Milliseconds as in Java. Null where a producer claims a born time that Spark's timestamps cannot hold.
        micros = column.cast(pa.int64()).fill_null(0).to_numpy()
        return (micros // _MICROS_PER_MILLI).tolist()  # type: ignore[no-any-return]
    if pa.types.is_map(column.type):
        return _dicts(column)
    return column.to_pylist()  # type: ignore[no-any-return]


def _dicts(column: pa.MapArray) -> list[dict[str, str]]:
    """As ``to_pylist`` in half its time; a map of a message is never null."""
    offsets = column.offsets.to_numpy()
    # A slice of a map column has the keys and items of the whole.
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    keys, items = column.keys.slice(first, count), column.items.slice(first, count)
    pairs = zip(keys.to_pylist(), items.to_pylist(), strict=True)
    return [dict(islice(pairs, length)) for length in np.diff(offsets).tolist()]
