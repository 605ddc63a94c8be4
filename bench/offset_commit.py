"""Cost of a commit of 64 queues to the offset store, from the first to the twenty-thousandth,
and of a planner's read.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from bench.measure import Result, Spread, Target, load_average
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.offsets.store import QueueCommit

_GROUP = "bench"
_QUEUES = 64
_MANY_QUEUES = 1_024
_P50_MS = 15.0
_P99_MS = 60.0
_READ_MS = 10.0
_FLAT = 1.5
_COMPARED_EVERY = 97
"""Not a divisor of the upkeep's hundred versions, so that the upkeep runs beside only some of these."""
_UPKEEP_TIMEOUT_S = 120.0
_METHOD = """\
`DeltaOffsetStore.commit` of {queues} queues (fenced by epoch: newest version, decide, overwrite of the group's partition with
a transaction id), {commits:,} times without a pause into one table, its upkeep running beside them; every commit moves
every queue. The columns are the first {block:,} commits, a block in the middle, and the last. At every
{compared_every}th commit: `read`, what the planner does once per trigger after another writer's commit, and a *bare* commit, delta-rs
overwriting the same rows of a table of the same form by the same literal predicate, which nobody looks after; what both cost beside each other is given for the first, the middle and the last third of these, too, for the machine's
other load changes over minutes. Then
`read` with {many:,} queues, {reads} times, each after another writer's commit."""


def run(*, commits: int = 20_000, warm_up: int = 10, seconds: float = 1200.0) -> Result:
    """Measure ``commits`` commits, or as many as there is time for."""
    before = load_average()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        found = _Figures(Path(folder), warm_up)
        found.measure(commits, seconds)
        commits = len(found.commits)
        many = _many_reads(Path(folder) / "many", reads := max(5, min(100, commits // 10)))
    block = max(1, commits // 20)
    middle = (commits - block) // 2
    parts = (found.commits[:block], found.commits[middle : middle + block], found.commits[-block:])
    flat = _quantile(parts[-1], 0.5) / _quantile(parts[0], 0.5)
    ratios = [ours / bare for ours, bare in zip(found.beside_bare, found.bare, strict=True)]
    third = max(1, len(ratios) // 3)
    thirds = (ratios[:third], ratios[third:-third] or ratios, ratios[-third:])
    return Result(
        name="offset_commit",
        title="Offset commit",
        method=_METHOD.format(
            queues=_QUEUES,
            commits=commits,
            block=block,
            compared_every=_COMPARED_EVERY,
            many=_MANY_QUEUES,
            reads=reads,
        ),
        columns=("what", "first / min", "middle / median", "last / max"),
        rows=(
            ("commit p50, ms", *(f"{_quantile(part, 0.5):.1f}" for part in parts)),
            ("commit p99, ms", *(f"{_quantile(part, 0.99):.1f}" for part in parts)),
            ("bare commit, ms", *Spread.of(found.bare).cells(".1f")),
            ("commit / bare commit, of thirds", *(f"{_quantile(part, 0.5):.2f}" for part in thirds)),
            ("commit / bare commit", *Spread.of(ratios).cells(".2f")),
            ("read, ms", *Spread.of(found.reads).cells(".1f")),
            (f"read of {_MANY_QUEUES:,} queues, ms", *Spread.of(many).cells(".1f")),
            ("files of the log at the end", str(found.log_files), str(found.log_files), str(found.log_files)),
        ),
        targets=(
            _target(f"commit of {_QUEUES} queues, p50", _quantile(found.commits, 0.5), _P50_MS, "ms"),
            _target(f"commit of {_QUEUES} queues, p99", _quantile(found.commits, 0.99), _P99_MS, "ms"),
            _target("last block's p50 / first block's", flat, _FLAT, ""),
            Target(
                what=f"read of {_MANY_QUEUES:,} queues",
                seen=Spread.of(many),
                bound=_READ_MS,
                at_most=True,
                unit="ms",
            ),
        ),
        load=(before, load_average()),
    )


class _Figures:
    """Cost of the commits in milliseconds, in order."""

    def __init__(self, folder: Path, warm_up: int) -> None:
        self._store = _Store(folder / "offsets", _QUEUES)
        self._reader = DeltaOffsetStore(self._store.path)
        self._bare = _BareTable(self._store.path, folder / "bare")
        self._warm_up = warm_up
        self.commits: list[float] = []
        self.beside_bare: list[float] = []
        self.bare: list[float] = []
        self.reads: list[float] = []
        self.log_files = 0

    def measure(self, count: int, seconds: float) -> None:
        """Commit ``count`` times, but not for longer than ``seconds``."""
        end_s = time.perf_counter() + seconds
        for number in range(-self._warm_up, count):
            if self.bare and time.perf_counter() > end_s:
                break
            is_compared = number >= 0 and number % _COMPARED_EVERY == 0
            if is_compared:
                # A planner has seen the commit before.
                self._reader.read(_GROUP)
            commit_ms = _milliseconds(partial(self._store.commit, number + self._warm_up))
            if number < 0:
                self._bare.commit()
                continue
            self.commits.append(commit_ms)
            if is_compared:
                self.beside_bare.append(commit_ms)
                self.reads.append(_milliseconds(lambda: self._reader.read(_GROUP)))
                self.bare.append(_milliseconds(self._bare.commit))
        self._store.wait()
        self.log_files = sum(1 for _ in (self._store.path / "_delta_log").iterdir())


class _Store:
    """An offset store whose queues are claimed by us."""

    def __init__(self, path: Path, queues: int) -> None:
        self.path = path
        self._store = DeltaOffsetStore(path)
        names = [MessageQueue("orders", f"broker-{n % 4}", n // 4) for n in range(queues)]
        self._epochs = {
            queue: row.epoch
            for queue, row in self._store.claim(_GROUP, "bench", dict.fromkeys(names, 0)).items()
        }

    def commit(self, number: int) -> None:
        self._store.commit(
            _GROUP,
            [
                QueueCommit(queue=queue, state=QueueState((number + 1) * 1000, epoch))
                for queue, epoch in self._epochs.items()
            ],
            query_id="bench",
            batch_id=number,
        )

    def wait(self) -> None:
        self._store.wait_for_upkeep(_UPKEEP_TIMEOUT_S)


class _BareTable:
    """A table with the same columns and rows, overwritten as a whole."""

    def __init__(self, like: Path, path: Path) -> None:
        model = DeltaTable(str(like))
        self._rows = pa.table(model.to_pyarrow_table())
        self._table = DeltaTable.create(
            str(path),
            schema=model.schema(),
            partition_by=["consumer_group"],
            # delta-rs creates tables only with properties that it knows.
            configuration={
                key: value
                for key, value in model.metadata().configuration.items()
                if key.startswith("delta.")
            },
        )

    def commit(self) -> None:
        write_deltalake(self._table, self._rows, mode="overwrite", predicate=f"consumer_group = '{_GROUP}'")


def _many_reads(path: Path, reads: int) -> list[float]:
    writer, reader = _Store(path, _MANY_QUEUES), DeltaOffsetStore(path)
    reader.read(_GROUP)
    times = []
    for number in range(reads):
        writer.commit(number)
        times.append(_milliseconds(lambda: reader.read(_GROUP)))
    return times


def _target(what: str, seen: float, bound: float, unit: str) -> Target:
    return Target(what=what, seen=Spread.of([seen]), bound=bound, at_most=True, unit=unit)


def _quantile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def _milliseconds(action: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    action()
    return (time.perf_counter() - started_s) * 1000
