"""A batch into a sink and its offsets on an emulator of S3, next to the same rows appended by delta-rs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from bench.delta_sink import GROUP, ROWS
from bench.delta_sink import made as made_rows
from bench.measure import Result, Spread, Target, load_average
from pyspark_rocketmq.delta.files import WrittenFile
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.offsets.store import QueueCommit
from pyspark_rocketmq.sinks.delta.batch import DeltaBatch
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.object_stores.server import Bucket, S3Server

_ROWS = 20_000
_QUEUE = MessageQueue("orders", "broker-a", 0)
_WARM_UP = 3
_OURS, _BARE, _OPEN = "ours", "delta-rs", "delta-rs, open table"
_METHOD = """\
Batches of {rows:,} rows of one queue on moto's S3 behind a proxy that counts requests, {rounds} of each contestant in turns after {warm_up} for warming up, in one process without Spark,
each with a table and an offset store of its own.

* *ours*: `DeltaSink.begin`, the rows written as a task does it, `DeltaBatch.commit`, and one commit of the queue's offset.
* *delta-rs*: `write_deltalake(uri, rows, mode="append")`, and the same commit of an offset into another store.
* *delta-rs, open table*: the same with a `DeltaTable` that stays open and reads what is new before each append, and knows of no other table in its place.

Requests are those of one batch: GET (lists apart), HEAD, PUT and POST. Upkeep runs beside every hundredth commit."""


def run(*, rounds: int = 30, rows: int = _ROWS) -> Result:
    """Measure ``rounds`` batches."""
    before = load_average()
    with S3Server() as server:
        contest = _Contest(Bucket(server), rows)
        found = [contest.round(number) for number in range(_WARM_UP + rounds)][_WARM_UP:]
    return Result(
        name="object_store",
        title="Sinks on object stores",
        method=_METHOD.format(rows=rows, rounds=rounds, warm_up=_WARM_UP),
        columns=("what", "min", "median", "max"),
        rows=(
            *(
                (f"{name}, ms", *Spread.of(one[name].seconds * 1000 for one in found).cells(".1f"))
                for name in found[0]
            ),
            *_requests(found),
        ),
        targets=(
            Target(
                what="ours / delta-rs",
                seen=Spread.of(one[_OURS].seconds / one[_BARE].seconds for one in found),
                bound=1.5,
                at_most=True,
            ),
        ),
        load=(before, load_average()),
    )


@dataclass(slots=True)
class _Cost:
    seconds: float = 0.0
    requests: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: _Cost) -> _Cost:
        return _Cost(self.seconds + other.seconds, self.requests + other.requests)


class _Contest:
    """Both contestants."""

    def __init__(self, s3: Bucket, rows: int) -> None:
        self._s3 = s3
        self._rows = rows
        self._options = s3.patient_options()
        self._sink = DeltaSink(s3.uri("sink"), storage_options=self._options)
        self._sink.prepare(ROWS)
        self._stores = {
            name: self._store(f"offsets-{number}") for number, name in enumerate((_OURS, _BARE, _OPEN))
        }
        for table in ("bare", "open"):
            write_deltalake(s3.uri(table), ROWS.empty_table(), storage_options=self._options)
        self._open = DeltaTable(s3.uri("open"), storage_options=self._options)

    def _store(self, table: str) -> DeltaOffsetStore:
        store = DeltaOffsetStore(self._s3.uri(table), storage_options=self._options)
        store.claim(GROUP, "bench", {_QUEUE: 0})
        return store

    def round(self, number: int) -> Mapping[str, _Cost]:
        """Return the cost of each contestant, with its parts."""
        offsets = np.arange(number * self._rows, (number + 1) * self._rows)
        made = made_rows(_QUEUE, offsets)
        contestants: dict[str, Callable[[], Iterator[tuple[str, _Cost]]]] = {
            _OURS: lambda: self._ours(made, number),
            _BARE: lambda: self._bare(made, number),
            _OPEN: lambda: self._by_open(made, number),
        }
        # Each is first, second and last equally often.
        order = [*contestants][number % 3 :] + [*contestants][: number % 3]
        parts = {name: dict(contestants[name]()) for name in order}
        found = {name: sum(parts[name].values(), _Cost()) for name in contestants}
        for name in contestants:
            found |= {f"{name}: {part}": cost for part, cost in parts[name].items()}
        shown = "  ".join(f"{name} {cost.seconds * 1000:,.0f} ms" for name, cost in found.items())
        print(f"  {shown}  load {load_average()}", flush=True)
        return found

    def _ours(self, made: pa.RecordBatch, number: int) -> Iterator[tuple[str, _Cost]]:
        end = (number + 1) * self._rows

        begun: list[DeltaBatch] = []
        files: list[WrittenFile] = []

        def write() -> None:
            writing = begun[0].task_writer().open()
            writing.add(made)
            files.extend(writing.finish())

        yield "begin", self._cost(lambda: begun.append(self._sink.begin(GROUP, {_QUEUE: 0})))
        yield "files", self._cost(write)
        yield "commit", self._cost(lambda: begun[0].commit(files, {_QUEUE: end}))
        yield "offsets", self._commit_offsets(_OURS, number)

    def _bare(self, made: pa.RecordBatch, number: int) -> Iterator[tuple[str, _Cost]]:
        rows = pa.Table.from_batches([made])
        yield (
            "append",
            self._cost(
                lambda: write_deltalake(
                    self._s3.uri("bare"), rows, mode="append", storage_options=self._options
                )
            ),
        )
        yield "offsets", self._commit_offsets(_BARE, number)

    def _by_open(self, made: pa.RecordBatch, number: int) -> Iterator[tuple[str, _Cost]]:
        def append() -> None:
            self._open.update_incremental()
            write_deltalake(self._open, pa.Table.from_batches([made]), mode="append")

        yield "append", self._cost(append)
        yield "offsets", self._commit_offsets(_OPEN, number)

    def _commit_offsets(self, name: str, number: int) -> _Cost:
        row = QueueCommit(queue=_QUEUE, state=QueueState((number + 1) * self._rows, 1))
        store = self._stores[name]
        return self._cost(lambda: store.commit(GROUP, [row], query_id="bench", batch_id=number))

    def _cost(self, action: Callable[[], object]) -> _Cost:
        self._s3.behave()
        started_s = time.perf_counter()
        action()
        seconds = time.perf_counter() - started_s
        return _Cost(seconds, Counter(_kind_of(request) for request in self._s3.seen))


def _kind_of(request: str) -> str:
    return "LIST" if request.startswith("GET") and "list-type" in request else request.partition(" ")[0]


def _requests(found: list[Mapping[str, _Cost]]) -> Iterator[tuple[str, ...]]:
    for name in found[0]:
        every = Spread.of(one[name].requests.total() for one in found)
        yield f"{name}, requests", *every.cells(".0f")
        for kind in sorted({kind for one in found for kind in one[name].requests}):
            counts = Spread.of(one[name].requests[kind] for one in found)
            yield f"{name}, {kind} requests", *counts.cells(".0f")
