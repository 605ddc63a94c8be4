"""The peers of the orderly engines: functions that only return their rows unchanged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from pyspark_rocketmq.model import QUEUE_COLUMNS

STATE_SCHEMA = "rows bigint"


def identity(rows: DataFrame) -> DataFrame:
    """``rows``, grouped by queue, through ``applyInPandasWithState``."""
    return rows.groupBy(*QUEUE_COLUMNS).applyInPandasWithState(
        give_back, rows.schema, STATE_SCHEMA, "append", GroupStateTimeout.NoTimeout
    )


def arrow_identity(rows: DataFrame) -> DataFrame:
    """``rows`` through ``mapInArrow``."""
    return rows.mapInArrow(give_batches_back, rows.schema)


def give_batches_back(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the batches unchanged."""
    return batches


def give_back(
    key: tuple[Any, ...],  # noqa: ARG001 - Spark's signature
    chunks: Iterable[pd.DataFrame],
    state: GroupState,
) -> Iterator[pd.DataFrame]:
    """Collect a group's chunks, count them in the state, and return them unchanged."""
    gathered = list(chunks)
    known = state.get[0] if state.exists else 0
    state.update((known + sum(map(len, gathered)),))
    yield from gathered
