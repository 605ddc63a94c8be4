"""What a commit of 64 queues to the offset store costs, next to a bare commit of the same rows by delta-rs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from bench.measure import Result, Spread, Target, load_average
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.offsets.store import QueueCommit

_GROUP = "bench"
_QUEUES = 64
_TARGET_MS = 25.0
_METHOD = """\
`DeltaOffsetStore.commit` of {queues} queues (fenced by epoch: read, decide, overwrite of the group's partition with
a transaction id) next to a *bare* commit: delta-rs overwriting the same rows of the same table form by the same
literal predicate, without reading them first. One of each in turn, {commits} times after {warm_up} for warming up;
every commit moves every queue. `read` is `DeltaOffsetStore.read`, which the planner does once per trigger, after
another writer's commit."""


def run(*, commits: int = 200, warm_up: int = 10) -> Result:
    """Measure ``commits`` commits of each kind."""
    before = load_average()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        store = _Store(Path(folder) / "offsets")
        reader = DeltaOffsetStore(store.path)
        bare = _BareTable(store.path, Path(folder) / "bare")
        times: dict[str, list[float]] = {"commit": [], "bare": [], "read": []}
        for number in range(warm_up + commits):
            figures = {
                "commit": _milliseconds(lambda n=number: store.commit(n)),
                "bare": _milliseconds(bare.commit),
                "read": _milliseconds(lambda: reader.read(_GROUP)),
            }
            if number >= warm_up:
                for name, figure in figures.items():
                    times[name].append(figure)
    spreads = {name: Spread.of(figures) for name, figures in times.items()}
    ratio = Spread.of(ours / ceiling for ours, ceiling in zip(times["commit"], times["bare"], strict=True))
    return Result(
        name="offset_commit",
        title="Offset commit",
        method=_METHOD.format(queues=_QUEUES, commits=commits, warm_up=warm_up),
        columns=("what", "min", "median", "max"),
        rows=(
            ("commit, ms", *spreads["commit"].cells(".1f")),
            ("bare commit, ms", *spreads["bare"].cells(".1f")),
            ("commit / bare commit", *ratio.cells(".2f")),
            ("read, ms", *spreads["read"].cells(".1f")),
        ),
        targets=(
            Target(
                what=f"commit of {_QUEUES} queues",
                seen=spreads["commit"],
                bound=_TARGET_MS,
                at_most=True,
                unit="ms",
            ),
        ),
        load=(before, load_average()),
    )


class _Store:
    """An offset store whose queues are claimed by us."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._store = DeltaOffsetStore(path)
        queues = [MessageQueue("orders", f"broker-{n % 4}", n // 4) for n in range(_QUEUES)]
        self._epochs = {
            queue: row.epoch
            for queue, row in self._store.claim(_GROUP, "bench", dict.fromkeys(queues, 0)).items()
        }

    def commit(self, number: int) -> None:
        self._store.commit(
            _GROUP,
            [
                QueueCommit(queue=queue, epoch=epoch, next_offset=(number + 1) * 1000)
                for queue, epoch in self._epochs.items()
            ],
            query_id="bench",
            batch_id=number,
        )


class _BareTable:
    """A table of the same form with the same rows, overwritten as it is."""

    def __init__(self, like: Path, path: Path) -> None:
        model = DeltaTable(str(like))
        self._rows = pa.table(model.to_pyarrow_table())
        self._table = DeltaTable.create(
            str(path),
            schema=model.schema(),
            partition_by=["consumer_group"],
            configuration=dict(model.metadata().configuration),
        )

    def commit(self) -> None:
        write_deltalake(self._table, self._rows, mode="overwrite", predicate=f"consumer_group = '{_GROUP}'")


def _milliseconds(action: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    action()
    return (time.perf_counter() - started_s) * 1000
