"""A micro-batch into a Delta sink with many commits or files, next to one into a new sink; opening them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from bench.delta_sink import GROUP, ROWS, Batch, Ours
from bench.measure import Result, Spread, Target, load_average
from bench.session import bench_session
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.sinks.delta.rules import SinkCommit, app_id
from pyspark_rocketmq.sinks.delta.sink import DeltaSink

_COMMITS, _FILES = 100_000, 200_000
_FILES_EACH = 2_000
_NEW = "new"
_OLD, _LARGE = f"{_COMMITS:,} commits", f"{_FILES:,} files"
_BATCH_ROWS = 100
_WARM_UP = 3
_OPENED = 5
_METHOD = """\
Micro-batches of {rows} rows of 8 queues by `BatchRunner`, as in the benchmark of the Delta sink, {rounds} of each kind in turns after {warm_up} for warming up: into a *new* table, one
of {commits:,} commits with a file each, and one of {files:,} files in {few} commits. Their commits are as the sink makes them, with a checkpoint of
the newest; the files are not there. *Data* is the commit of files and watermarks, the rest of a batch is mostly Spark's job. Opening is `DeltaSink.prepare` in a process that
has opened a small table before, {opened} times: its time, and by how much the process's memory was larger at most."""


def run(*, rounds: int = 30) -> Result:
    """Measure ``rounds`` batches of each kind."""
    before = load_average()
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        bench_session(Path(folder)) as spark,
    ):
        kinds = {
            _NEW: Path(folder) / "new",
            _OLD: make_table(Path(folder) / "old", ROWS, commits=_COMMITS, files_each=1),
            _LARGE: make_table(
                Path(folder) / "large", ROWS, commits=_FILES // _FILES_EACH, files_each=_FILES_EACH
            ),
        }
        opened = {name: [_opened(kinds[name]) for _ in range(_OPENED)] for name in (_OLD, _LARGE)}
        batches = _batches(spark, kinds, rounds)
    return Result(
        name="old_sinks",
        title="Old Delta sinks",
        method=_METHOD.format(
            rows=_BATCH_ROWS,
            rounds=rounds,
            warm_up=_WARM_UP,
            commits=_COMMITS,
            files=_FILES,
            few=_FILES // _FILES_EACH,
            opened=_OPENED,
        ),
        columns=("what", "min", "median", "max"),
        rows=(
            *_rows("batch, {}, ms", batches, "batch"),
            *_rows("data, {}, ms", batches, "data"),
        ),
        targets=(
            _ratio(f"batch: {_OLD} / new", batches, _OLD, "batch", 1.2),
            _ratio(f"data: {_OLD} / new", batches, _OLD, "data", 1.2),
            _ratio(f"batch: {_LARGE} / new", batches, _LARGE, "batch", 1.5),
            _ratio(f"data: {_LARGE} / new", batches, _LARGE, "data", 1.5),
            *(_target(f"opening {name}", [one["s"] for one in opened[name]], 2.0, "s") for name in opened),
            *(
                _target(f"opening {name}, memory", [one["mib"] for one in opened[name]], 300.0, "MiB")
                for name in opened
            ),
        ),
        load=(before, load_average()),
    )


def make_table(path: Path, schema: pa.Schema, *, commits: int, files_each: int) -> Path:
    """Make a sink's table with so many commits, each of so many files, and a checkpoint of the newest.

    Delta-rs needs a minute to make a checkpoint of 100,000 commits.  So it is made from one commit that has
    all their files, and renamed: a checkpoint does not contain its version.
    """
    DeltaSink(path).prepare(schema)
    log = path / "_delta_log"
    files = [_file(number) for number in range(commits * files_each)]
    _write(log, 1, [*_commit(1, []), *files, _watermark(commits)])
    DeltaTable(path).create_checkpoint()
    (log / f"{1:020d}.checkpoint.parquet").rename(log / f"{commits:020d}.checkpoint.parquet")
    newest = json.loads((log / "_last_checkpoint").read_text())
    (log / "_last_checkpoint").write_text(json.dumps({**newest, "version": commits}))
    for version in range(1, commits + 1):
        added = files[(version - 1) * files_each : version * files_each]
        _write(log, version, [*_commit(version, added), _watermark(version)])
    return path


def file_name(number: int) -> str:
    """Return the name of the table's file with this number, in the order of addition."""
    return f"part-{number:032x}.parquet"


def _write(log: Path, version: int, actions: list[dict[str, Any]]) -> None:
    (log / f"{version:020d}.json").write_text("".join(f"{json.dumps(action)}\n" for action in actions))


def _commit(version: int, files: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    seen = {
        "first": 0,
        "last": version - 1,
        "restored": None,
        "commits": {GROUP: version - 1} if version > 1 else {},
    }
    info = {
        "timestamp": version,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": "[]"},
    }
    yield {"commitInfo": {**info, **SinkCommit.of(GROUP, {}).metadata(seen=seen)}}
    yield from files


def _file(number: int) -> dict[str, Any]:
    least = {
        "topic": "orders",
        "brokerName": "broker-a",
        "queueId": 0,
        "queueOffset": number,
        "step": "created",
    }
    stats = {
        "numRecords": 100,
        "minValues": least,
        "maxValues": {**least, "queueOffset": number + 99, "step": "shipped"},
        "nullCount": dict.fromkeys(ROWS.names, 0),
    }
    return {
        "add": {
            "path": file_name(number),
            "partitionValues": {},
            "size": 5_000,
            "modificationTime": 1,
            "dataChange": True,
            "stats": json.dumps(stats),
        }
    }


def _watermark(version: int) -> dict[str, Any]:
    queue = MessageQueue("orders", "broker-b", 0)
    return {"txn": {"appId": app_id(GROUP, queue), "version": version}}


def _batches(
    spark: SparkSession, kinds: Mapping[str, Path], rounds: int
) -> list[dict[str, dict[str, float]]]:
    """Return the seconds of a batch and of its data's commit, by round and kind."""
    sinks = {name: Ours(spark, path, path.parent / f"{path.name} offsets") for name, path in kinds.items()}
    found = []
    for number in range(_WARM_UP + rounds):
        # Each kind is first, second and last equally often.
        order = [*sinks][number % 3 :] + [*sinks][: number % 3]
        one = {name: sinks[name].timed_commit(Batch(number, _BATCH_ROWS)) for name in order}
        shown = "  ".join(f"{name} {one[name]['batch'] * 1000:,.1f} ms" for name in sinks)
        print(f"  {shown}  load {load_average()}", flush=True)
        found.append(one)
    return found[_WARM_UP:]


_OPEN = """
import json, sys, time
from pathlib import Path
from bench.delta_sink import ROWS
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
def most_mib():
    # getrusage includes that of the process before exec, too.
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024
DeltaSink(sys.argv[2]).prepare(ROWS)
before_mib, started_s = most_mib(), time.perf_counter()
DeltaSink(sys.argv[1]).prepare(ROWS)
print(json.dumps({"s": time.perf_counter() - started_s, "mib": most_mib() - before_mib}))
"""


def _opened(path: Path) -> dict[str, float]:
    """Seconds and MiB."""
    arguments = [sys.executable, "-W", "ignore", "-c", _OPEN, str(path), f"{path} beside"]
    told = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
    return dict(json.loads(told))


def _rows(what: str, batches: list[dict[str, dict[str, float]]], part: str) -> Iterator[tuple[str, ...]]:
    for name in batches[0]:
        seconds = Spread.of(one[name][part] * 1000 for one in batches)
        yield (what.format(name), *seconds.cells(".1f"))


def _ratio(
    what: str, batches: list[dict[str, dict[str, float]]], name: str, part: str, bound: float
) -> Target:
    return _target(what, [one[name][part] / one[_NEW][part] for one in batches], bound)


def _target(what: str, values: list[float], bound: float, unit: str = "") -> Target:
    return Target(what=what, seen=Spread.of(values), bound=bound, at_most=True, unit=unit)
