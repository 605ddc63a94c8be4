"""A topic's messages into a Delta table as they are, exactly once, next to writers that promise less."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from bench.cluster import QUEUES
from bench.measure import Result, Spread, Target, load_average
from bench.session import CORES
from bench.streams import Backlog, drain, real_backlog
from pyspark_rocketmq.format import register
from pyspark_rocketmq.model import DEFAULT_MESSAGE_COLUMNS, POSITION_COLUMNS, Message
from pyspark_rocketmq.wire.properties import KEYS, TAGS

_TOPIC = "landing"
_BODY_BYTES = 1024
_SKIPPED = 1
"""First micro-batches of a run: they start processes and compile."""
_OURS, _ARROW, _PLAIN = "landing", "write_deltalake", "plain stream"
_COLUMNS = (*POSITION_COLUMNS, *DEFAULT_MESSAGE_COLUMNS)
_METHOD = """\
{messages:,} messages of about 1 KiB of JSON with KEYS and TAGS in {queues} queues of one real broker, all of it in the page cache.
Each of {rounds} rounds, after one for warming up, takes the whole backlog in turn through:

* *landing*: `PushConsumer.register_message_columns()` into a `DeltaSink`, with the default columns and the position, offsets in a Delta
  table; `availableNow`, `local[{cores}]`, micro-batches of {per_trigger:,} messages. Exactly once.
* *write_deltalake*: the same rows, which are in memory as one Arrow table before, by `deltalake.write_deltalake(mode="append")` in
  appends of {per_trigger:,} rows, with all threads it wants. Nothing is pulled or decoded, and no Spark runs.
* *plain stream*: `readStream.format("rocketmq")`, the same columns, `writeStream.format("delta")`, with the same micro-batches.

Rates of the queries are messages of a micro-batch by the median of `triggerExecution` over a run's micro-batches without the
first {skipped}; that of write_deltalake is by the median of its appends without the first {skipped}. Ratios are taken round by round."""


def run(*, per_trigger: int = 200_000, batches: int = 4, rounds: int = 3) -> Result:
    """Measure ``rounds`` rounds."""
    before = load_average()
    with real_backlog(
        _TOPIC, order_message, per_trigger=per_trigger, batches=batches, with_delta=True
    ) as backlog:
        contest = _Contest(backlog)
        contest.round()
        figures = [contest.round() for _ in range(rounds)]
    arrow = Spread.of(each[_OURS] / each[_ARROW] for each in figures)
    plain = Spread.of(each[_OURS] / each[_PLAIN] for each in figures)
    return Result(
        name="landing",
        title="Messages as they are into Delta",
        method=_METHOD.format(
            messages=per_trigger * batches,
            queues=QUEUES,
            rounds=rounds,
            cores=CORES,
            per_trigger=per_trigger,
            skipped=_SKIPPED,
        ),
        columns=("messages/s", "min", "median", "max"),
        rows=tuple((who, *Spread.of(each[who] for each in figures).cells(",.0f")) for who in figures[0]),
        targets=(
            Target(what=f"{_OURS} / {_ARROW}", seen=arrow, bound=0.8, at_most=False),
            Target(what=f"{_OURS} / {_PLAIN}", seen=plain, bound=1.0, at_most=False),
        ),
        load=(before, load_average()),
    )


def order_message(number: int) -> Message:
    """Make an order of about 1 KiB, of which each is another one."""
    draw = random.Random(number)
    status = draw.choice(("created", "paid", "packed", "shipped"))
    order = {
        "order_id": f"order-{number}",
        "customer": f"customer-{draw.randrange(50_000)}",
        "status": status,
        "lines": [
            {
                "sku": f"SKU-{draw.randrange(10**8):08}",
                "quantity": draw.randrange(1, 9),
                "price": draw.randrange(10**5) / 100,
            }
            for _ in range(10)
        ],
        "note": draw.randbytes(150).hex(),
    }
    body = json.dumps(order).encode().ljust(_BODY_BYTES)
    return Message(topic=_TOPIC, body=body, properties={KEYS: f"order-{number}", TAGS: status})


class _Contest:
    """All contestants on one topic; every run has a new group, table and checkpoint."""

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._numbers = itertools.count()
        register(backlog.spark)
        self._plain = self._read_stream()
        self._rows = self._read_all()

    def round(self) -> Mapping[str, float]:
        """Return the messages per second of each contestant."""
        folder = self._backlog.work / f"round-{next(self._numbers)}"
        rates = {
            _OURS: self._rate(lambda: self._land(folder / "ours")),
            _ARROW: self._arrow_rate(folder / "arrow"),
            _PLAIN: self._rate(lambda: self._stream(folder / "plain")),
        }
        self._check_rows(folder)
        shutil.rmtree(folder)
        shown = "  ".join(f"{who} {rate:,.0f}" for who, rate in rates.items())
        print(f"  {folder.name}: {shown}  load {load_average()}", flush=True)
        return rates

    def _rate(self, start: Callable[[], StreamingQuery]) -> float:
        steady = drain(start, batches=self._backlog.batches, skipped=_SKIPPED)
        return self._backlog.per_trigger * 1000 / steady["triggerExecution"]

    def _land(self, folder: Path) -> StreamingQuery:
        # Else a queue's share of a micro-batch may end before its messages.
        consumer = self._backlog.consumer(folder, options={"pullThresholdSizeForQueue": "1024"})
        consumer.register_message_columns()
        return self._backlog.start(consumer, folder, with_sink=True)

    def _stream(self, folder: Path) -> StreamingQuery:
        return (
            self._plain.writeStream.format("delta")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(folder / "sink"))
        )

    def _arrow_rate(self, folder: Path) -> float:
        each = self._backlog.per_trigger
        took_s = []
        for begin in range(0, each * self._backlog.batches, each):
            began_s = time.perf_counter()
            write_deltalake(str(folder / "sink"), self._rows.slice(begin, each), mode="append")
            took_s.append(time.perf_counter() - began_s)
        return each / Spread.of(took_s[_SKIPPED:]).median

    def _check_rows(self, folder: Path) -> None:
        wanted = self._backlog.per_trigger * self._backlog.batches
        for name in ("ours", "arrow", "plain"):
            found = DeltaTable(folder / name / "sink").to_pyarrow_dataset().count_rows()
            if found != wanted:
                raise RuntimeError(f"{name} has {found} rows instead of {wanted}.")

    def _read_stream(self) -> DataFrame:
        stream = self._backlog.spark.readStream.format("rocketmq").options(
            **self._options, startingOffsets="earliest", maxOffsetsPerTrigger=self._backlog.per_trigger
        )
        return stream.load()

    def _read_all(self) -> pa.Table:
        return self._backlog.spark.read.format("rocketmq").options(**self._options).load().toArrow()

    @property
    def _options(self) -> dict[str, str]:
        return {
            "nameServers": self._backlog.name_servers,
            "topic": self._backlog.topic,
            "includeColumns": ",".join(_COLUMNS),
        }
