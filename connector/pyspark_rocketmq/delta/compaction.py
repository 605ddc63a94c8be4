"""Compacts the small files of a table: decides when that is worth it, and has delta-rs do it.

A micro-batch leaves a file or more in each partition it writes to, so a day of batches leaves 86,400.  Files
grow in steps (:data:`TARGETS`): a row is rewritten about once a step, and not each time that new files come.

delta-rs packs the files of a partition into bins, keeps their order, and commits with ``dataChange`` false:
no query sees other rows, and appends beside it do not conflict.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from deltalake import DeltaTable

from pyspark_rocketmq.delta.table import ONLY_COMMIT
from pyspark_rocketmq.display import masked

logger = logging.getLogger(__name__)

TARGETS: Final = (1 << 20, 16 << 20, 128 << 20)
"""Bytes of a file, from one step to the next."""
WORTH_IT: Final = 64
"""Small files of a partition at which they are compacted."""
_COMMIT_EVERY: Final = timedelta(minutes=1)
"""What was compacted until then is kept if the process ends."""
_TARGET_PROPERTY: Final = "delta.targetFileSize"
_UNITS: Final = {"b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}


class Compacted(NamedTuple):
    """What a compaction has done."""

    files_removed: int
    files_added: int
    target: int
    """Bytes."""


def target_of(sizes: npt.NDArray[np.int64], targets: Sequence[int] = TARGETS) -> int | None:
    """The size to which one partition's files are worth being compacted; None while they are not.

    A file is small if it has less than half of that size.  The largest target is taken that the small files
    fill at least half; few bytes in many files go to the smallest.
    """
    for target in reversed(targets):
        small = sizes[sizes < target // 2]
        if len(small) >= WORTH_IT and (target == targets[0] or small.sum() >= target // 2):
            return target
    return None


def largest_target(configuration: Mapping[str, str]) -> int:
    """The size of files that a table's properties ask for, 128 MiB if none."""
    text = configuration.get(_TARGET_PROPERTY, "").strip().lower()
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(number) :].strip() or "b"
    if number.isdecimal() and int(number) > 0 and unit in _UNITS:
        return int(number) * _UNITS[unit]
    return TARGETS[-1]


def targets_of(configuration: Mapping[str, str]) -> tuple[int, ...]:
    """The steps of a table: those below its own size of files, and that."""
    largest = largest_target(configuration)
    return (*(target for target in TARGETS if target < largest), largest)


def compact_if_worth_it(table: DeltaTable) -> Compacted | None:
    """Compact the files if one of the partitions has many small ones; None if none has.

    Raises:
        DeltaError: If somebody else rewrites these files at the same time, too, or the storage does not
            answer.  What was not committed is no part of the table, and the next VACUUM removes it.
    """
    targets = targets_of(table.metadata().configuration)
    wanted = [target_of(sizes, targets) for sizes in _sizes_by_partition(table)]
    target = max((each for each in wanted if each is not None), default=None)
    return None if target is None else compact(table, target)


def compact(table: DeltaTable, target: int) -> Compacted:
    """Compact each partition's files of less than ``target`` bytes; raises as :func:`compact_if_worth_it`."""
    metrics: Mapping[str, Any] = table.optimize.compact(
        target_size=target,
        # One core at most: batches run beside it.
        max_concurrent_tasks=1,
        min_commit_interval=_COMMIT_EVERY,
        post_commithook_properties=ONLY_COMMIT,
    )
    done = Compacted(int(metrics["numFilesRemoved"]), int(metrics["numFilesAdded"]), target)
    logger.info(
        "files compacted path=%s from=%d to=%d target=%d",
        masked(table.table_uri),
        done.files_removed,
        done.files_added,
        target,
    )
    return done


def _sizes_by_partition(table: DeltaTable) -> Iterable[npt.NDArray[np.int64]]:
    files = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()
    keys = [name for name in files.column_names if name.startswith("partition.")]
    sizes = files.select(["size_bytes", *keys])
    if not keys:
        return [sizes["size_bytes"].to_numpy()]
    by_partition = sizes.group_by(keys).aggregate([("size_bytes", "list")])["size_bytes_list"]
    return [np.asarray(each.values.to_numpy(zero_copy_only=False)) for each in by_partition]
