"""Micro-batches into a Delta sink while the same process compacts its small files, next to the same without."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.delta_sink import ROWS, Batch, Ours, made
from bench.measure import Result, Spread, Target, load_average
from bench.old_sinks import file_name, make_table
from bench.session import CORES, bench_session
from pyspark_rocketmq.delta.compaction import compact_if_worth_it
from pyspark_rocketmq.delta.log import LogFiles
from pyspark_rocketmq.delta.table import open_table
from pyspark_rocketmq.model import MessageQueue

_FILES: Final = 200_000
_FILES_EACH: Final = 2_000
_ROWS_OF_A_FILE: Final = 100
_LINKS: Final = 50_000
"""Maximum number of links to a file; some file systems allow only 65,000."""
_BATCH_ROWS: Final = 100_000
_WARM_UP: Final = 5
_METHOD: Final = """\
Micro-batches of {rows:,} rows of 8 queues by `BatchRunner` on `local[{cores}]`, one after the other, into a table of {files:,} files of {each} rows each: {seconds:g} s without anything beside, then
until a thread of the driver has compacted the files as the sink does in the background, then {seconds:g} s without it again; the faster of both counts. {rounds} rounds, each with a new
table. *Memory*: by how much the driver's Python process was larger at most than before, batches included."""


def run(*, seconds: float = 30.0, rounds: int = 1) -> Result:
    """Measure ``rounds`` pairs of stretches of ``seconds`` each."""
    before = load_average()
    found: list[tuple[float, float]] = []
    compacted: list[float] = []
    left: list[float] = []
    mib: list[float] = []
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        bench_session(Path(folder)) as spark,
    ):
        for number in range(rounds):
            table = _make_table(Path(folder) / f"table {number}")
            batches = _Batches(Ours(spark, table, Path(folder) / f"offsets {number}", compaction=False))
            for _ in range(_WARM_UP):
                batches.run()
            first = batches.rate(lambda taken_s: taken_s >= seconds)
            before_mib = _forget_most_mib()
            thread = threading.Thread(target=_compact, args=(table, compacted, left))
            thread.start()
            beside = batches.rate(partial(_has_ended, thread))
            mib.append(_mib("VmHWM") - before_mib)
            last = batches.rate(lambda taken_s: taken_s >= seconds)
            found.append((max(first, last), beside))
            print(
                f"  rows/s by itself {first:,.0f} and {last:,.0f}, beside {beside:,.0f}; files/s {compacted[-1]:,.0f}, left "
                f"{left[-1]:,.0f}; {mib[-1]:,.0f} MiB more",
                flush=True,
            )
    return Result(
        name="compaction",
        title="Compaction beside micro-batches",
        method=_METHOD.format(
            rows=_BATCH_ROWS,
            cores=CORES,
            files=_FILES,
            each=_ROWS_OF_A_FILE,
            seconds=seconds,
            rounds=rounds,
        ),
        columns=("what", "min", "median", "max"),
        rows=(
            ("alone, rows/s", *Spread.of(alone for alone, _ in found).cells(",.0f")),
            ("beside compaction, rows/s", *Spread.of(beside for _, beside in found).cells(",.0f")),
            ("files compacted a second", *Spread.of(compacted).cells(",.0f")),
            ("memory, MiB more", *Spread.of(mib).cells(",.0f")),
        ),
        targets=(
            Target(
                what="beside compaction / alone",
                seen=Spread.of(beside / alone for alone, beside in found),
                bound=0.9,
                at_most=False,
            ),
            Target(what="files left of them", seen=Spread.of(left), bound=1_000, at_most=True),
        ),
        load=(before, load_average()),
    )


def _make_table(path: Path) -> Path:
    make_table(path, ROWS, commits=_FILES // _FILES_EACH, files_each=_FILES_EACH)
    rows = made(MessageQueue("orders", "broker-a", 0), np.arange(_ROWS_OF_A_FILE))
    for number in range(_FILES):
        first = path / file_name(number - number % _LINKS)
        if number % _LINKS == 0:
            pq.write_table(pa.Table.from_batches([rows]), first, compression="zstd")
        else:
            (path / file_name(number)).hardlink_to(first)
    return path


class _Batches:
    """Commits batches one after the other."""

    def __init__(self, ours: Ours) -> None:
        self._ours = ours
        self._number = 0

    def run(self) -> None:
        """Commit the next batch."""
        self._ours.commit(Batch(self._number, _BATCH_ROWS))
        self._number += 1

    def rate(self, is_over: Callable[[float], bool]) -> float:
        """Return the rows per second until ``is_over`` is true of the seconds taken."""
        first, started_s = self._number, time.perf_counter()
        while not is_over(time.perf_counter() - started_s):
            self.run()
        return (self._number - first) * _BATCH_ROWS / (time.perf_counter() - started_s)


def _forget_most_mib() -> float:
    """Reset the peak memory (VmHWM) to the current memory, and return that."""
    Path("/proc/self/clear_refs").write_text("5")
    return _mib("VmRSS")


def _mib(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def _has_ended(thread: threading.Thread, _: float) -> bool:
    return not thread.is_alive()


def _compact(table: Path, files_per_s: list[float], left: list[float]) -> None:
    started_s = time.perf_counter()
    stored = open_table(str(table))
    before = len(stored.file_uris())
    done = compact_if_worth_it(stored, LogFiles(str(table)))
    files_per_s.append(done.files_removed / (time.perf_counter() - started_s))
    left.append(before - done.files_removed + done.files_added)
