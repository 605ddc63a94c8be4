"""Rows arranged by sharding key, and the check that no key came from two tasks.

Of more keys than a sample holds, those with the smallest hashes stay; the comparison goes up to the smallest
of the samples' greatest hashes.  A DataFrame that is not arranged by key has most of its keys in several
tasks: one is found.
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
from pyspark_rocketmq.source.session import check_speculation, is_classic

MOST_KEYS: Final = 4096
_SHOWN_CHARACTERS: Final = 100


@dataclass(frozen=True, slots=True)
class KeySample:
    """Topics and sharding keys of a task, by hash."""

    keys: dict[int, str]
    end: int
    """Every key of the task with a hash below this is here."""


@dataclass(slots=True)
class KeySampler:
    """Gathers the sample of one task."""

    _found: dict[int, str] = field(default_factory=dict)
    _end: int = 1 << 64

    def add(self, topic: str, sharding_key: str) -> None:
        """Take in a key, which may come again."""
        digest = hashlib.blake2b(f"{topic}\0{sharding_key}".encode(), digest_size=8).digest()
        number = int.from_bytes(digest, "big")
        if number >= self._end:
            return
        self._found[number] = sharding_key[:_SHOWN_CHARACTERS]
        if len(self._found) >= 2 * MOST_KEYS:
            self._shrink()

    def sample(self) -> KeySample:
        """Of what was added so far."""
        if len(self._found) > MOST_KEYS:
            self._shrink()
        return KeySample(self._found, self._end)

    def _shrink(self) -> None:
        kept = heapq.nsmallest(MOST_KEYS, self._found)
        self._end = kept[-1] + 1
        self._found = {number: self._found[number] for number in kept}


def keys_of_several_tasks(samples: Iterable[KeySample]) -> list[str]:
    """Sharding keys that more than one of the tasks sent, as far as the samples tell."""
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


_POSITION = "_rocketmqPosition"


def by_sharding_key(rows: DataFrame, *, partitions: int | None = None) -> DataFrame:
    """The same rows, those of one ``shardingKey`` in one partition, in the order of ``rows``.

    That order is the one in which ``rows.collect()`` gives them: to publish in the order of a column, sort by
    it first. Rows without a key are spread.  It costs one shuffle, and a sort within each partition.

    Args:
        rows: Not a stream; of a stream, arrange the DataFrame that ``foreachBatch`` gets.
        partitions: Tasks that will send; by default as many as Spark runs at once, or, through Spark Connect,
            which does not tell that, ``spark.sql.shuffle.partitions``, of which adaptive execution joins
            small ones.

    Raises:
        SchemaError: If ``rows`` is a stream, or has no column ``shardingKey``.
        OptionError: If ``spark.speculation`` is on: two copies of a task would send its rows, in no order.
    """
    if rows.isStreaming:
        raise SchemaError(
            "by_sharding_key() needs rows that are there already, and Spark sorts no stream: arrange and "
            "write the DataFrame that foreachBatch gets. A stream of queues of RocketMQ needs it only if it "
            "was shuffled."
        )
    if SHARDING_KEY.lower() not in map(str.lower, rows.columns):
        raise SchemaError(
            f"by_sharding_key() needs a column '{SHARDING_KEY}'; there are {', '.join(rows.columns)}."
        )
    check_speculation(rows.sparkSession)
    # Numbers partitions and their rows in ascending order.
    numbered = rows.withColumn(_POSITION, sf.monotonically_increasing_id())
    key = sf.coalesce(sf.col(SHARDING_KEY).cast("string"), sf.col(_POSITION).cast("string"))
    count = partitions or _cores(rows.sparkSession)
    arranged = numbered.repartition(key) if count is None else numbered.repartition(count, key)
    return arranged.sortWithinPartitions(_POSITION).drop(_POSITION)


def _cores(spark: object) -> int | None:
    """How many tasks run at once; None if the session does not tell."""
    return spark.sparkContext.defaultParallelism if is_classic(spark) else None
