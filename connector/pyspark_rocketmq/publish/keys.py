"""Arranges rows by sharding key, and checks that no two tasks sent rows of the same key.

Each task takes a sample of its keys: those with the smallest hashes. The samples are compared up to the hash
below which every sample has all keys of its task. A sample is enough, because in a DataFrame that is not
arranged most keys are in several tasks.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from pyspark_rocketmq.errors import SchemaError
from pyspark_rocketmq.publish.rows import SHARDING_KEY
from pyspark_rocketmq.spark.session import check_speculation, is_classic

MOST_KEYS: Final = 4096
"""Maximum number of keys in a sample."""
_SHOWN_CHARACTERS: Final = 100

_POSITION = "_rocketmqPosition"


@dataclass(frozen=True, slots=True)
class KeySample:
    """Sample of a task's sharding keys: those with the smallest hashes."""

    keys: dict[int, str]
    """Sharding keys, each by the hash of its topic and itself."""
    end: int
    """The sample has all keys of the task with a hash below this."""


@dataclass(slots=True)
class KeySampler:
    """Gathers the sample of one task."""

    _found: dict[int, str] = field(default_factory=dict)
    _end: int = 1 << 64

    def add(self, topic: str, sharding_key: str) -> None:
        """Add the key of a row. A key that was added before changes nothing."""
        digest = hashlib.blake2b(f"{topic}\0{sharding_key}".encode(), digest_size=8).digest()
        number = int.from_bytes(digest, "big")
        if number >= self._end:
            return
        self._found[number] = sharding_key[:_SHOWN_CHARACTERS]
        if len(self._found) >= 2 * MOST_KEYS:
            self._shrink()

    def sample(self) -> KeySample:
        """Return the sample of the keys added so far."""
        if len(self._found) > MOST_KEYS:
            self._shrink()
        return KeySample(self._found, self._end)

    def _shrink(self) -> None:
        kept = heapq.nsmallest(MOST_KEYS, self._found)
        self._end = kept[-1] + 1
        self._found = {number: self._found[number] for number in kept}


def keys_of_several_tasks(samples: Iterable[KeySample]) -> list[str]:
    """Return the sharding keys, sorted, that the samples of several tasks share; empty if there are none."""
    known = list(samples)
    end = min((sample.end for sample in known), default=0)
    seen: set[int] = set()
    twice: dict[int, str] = {}
    for sample in known:
        for number, sharding_key in sample.keys.items():
            if number < end and number in seen:
                twice[number] = sharding_key
            seen.add(number)
    return sorted(twice.values())


def by_sharding_key(rows: DataFrame, *, partitions: int | None = None) -> DataFrame:
    """Put the rows of each ``shardingKey`` into one partition, in the order of ``rows``.

    The order of ``rows`` is that of ``rows.collect()``: to publish in the order of a column, sort by the
    column first. Rows without a key are spread over the partitions. The cost is one shuffle and a sort within
    each partition.

    Args:
        rows: Not a stream; for a stream, arrange the DataFrame that ``foreachBatch`` gets.
        partitions: Number of tasks that send; by default as many as Spark runs at the same time or, with
            Spark Connect, ``spark.sql.shuffle.partitions``.

    Raises:
        SchemaError: If ``rows`` is a stream, or has no column ``shardingKey``.
        OptionError: If ``spark.speculation`` is on: two copies of a task would send its rows, in no order.
    """
    if rows.isStreaming:
        raise SchemaError(
            "by_sharding_key() needs all rows at the same time, and Spark does not sort a stream. Call it "
            "within foreachBatch, for the DataFrame of each batch. A stream that was read from RocketMQ "
            "needs it only after a shuffle."
        )
    if SHARDING_KEY.lower() not in map(str.lower, rows.columns):
        raise SchemaError(
            f"by_sharding_key() needs a column '{SHARDING_KEY}', but there are only "
            f"{', '.join(rows.columns)}. Add or rename a column."
        )
    check_speculation(rows.sparkSession)
    # This numbers partitions and their rows in ascending order.
    numbered = rows.withColumn(_POSITION, sf.monotonically_increasing_id())
    key = sf.coalesce(sf.col(SHARDING_KEY).cast("string"), sf.col(_POSITION).cast("string"))
    spark = rows.sparkSession
    # Spark Connect does not report how many tasks run at the same time.
    count = partitions or (spark.sparkContext.defaultParallelism if is_classic(spark) else None)
    arranged = numbered.repartition(key) if count is None else numbered.repartition(count, key)
    return arranged.sortWithinPartitions(_POSITION).drop(_POSITION)
