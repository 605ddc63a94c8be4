"""docs/benchmarks.md: the comparisons and the newest figures.

No host names, no paths of a machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.machine import describe_machine
from bench.measure import TARGET_COLUMNS, Result, markdown_table

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"

_INTRODUCTION = """\
<!-- Written by `make bench`. -->

# Benchmarks

Most figures stand beside a ceiling or a peer of the same run. Compare the
ratios: absolute figures are this machine's, where broker, Spark and the measuring program share the cores.

{machine}

Figures are medians of rounds, except in *Latency*. A target is met if the median meets it.

    make bench                                          # all but growth; writes this page
    make bench ARGS=source                              # one of them, with its method and spread; writes its part of this page
    make bench ARGS="growth --other ../before"          # growth compares with another work tree
    make bench ARGS="source --messages 100000 --rounds 3"
    make bench ARGS="micro_batch --backend sim"         # without RocketMQ itself
    make bench ARGS="latency --rates 100,1000 --seconds 30 --only java,real-time"
    make bench-against OTHER=../before                  # this work tree beside another one
    make bench-against OTHER=. ARGS="--other-spark 4.1" # Spark 4.2's figures divided by 4.1's"""


class _Section(NamedTuple):
    """Text of the page about one benchmark."""

    compares: str
    figures: tuple[str, ...] = ()
    """Rows of the result to show in addition to its targets, by their first cell."""


_SECTIONS: Final = {
    "wire": _Section(
        "Stored messages decoded into the source's 17 Arrow columns, beside the *plain* decoder that makes "
        "an object of each message. One core, no network.",
    ),
    "pull": _Section(
        "One reader process pulls 8 queues from a broker with default limits. *Bare loop*: a socket loop "
        "that drops the bodies. *DefaultLitePullConsumer*: Java's client. *librocketmq*: the PyPI package "
        "`rocketmq`.",
        (
            "1 KiB: pull + decode, messages/s",
            "1 KiB: DefaultLitePullConsumer, messages/s",
            "1 KiB: librocketmq, messages/s",
            "100 B: pull + decode, messages/s",
        ),
    ),
    "source": _Section(
        '`spark.read.format("rocketmq")` and a stream into `noop`. *Prebuilt*: a Python source that hands '
        "Spark batches made before. *Raw pull*: a socket loop without decoding. *Smaller ceiling*: the "
        "lower rate of these two; the source does the work of both on the same cores.",
        ("1 KiB: source, rows/s", "100 B: source, rows/s", "1 KiB: stream, rows/s", "100 B: stream, rows/s"),
    ),
    "beside_kafka": _Section(
        "The same messages of 1 KiB from RocketMQ and, by Spark's own source, from Kafka 3.9: the same "
        "columns, in one session, in turns. *mapInArrow*: five columns through a function that returns its "
        "input. *Stream*: seven columns into `noop`. *Row listener* and *ArrowListener* write exactly once, "
        "beside Kafka's plain stream into Delta. Rows a second.",
        (
            "batch read: ours",
            "batch read: Kafka",
            "stream to Delta: ours",
            "stream to Delta: Kafka",
            "row listener: ours",
            "ArrowListener: ours",
        ),
    ),
    "change_table": _Section(
        "Changes of 1 %, 10 % and 100 % of a table's 200,000 rows as Canal's JSON, beside a `foreachBatch` "
        "with a MERGE of the same changes from Kafka.",
        (
            "1% of the rows: ours, s",
            "1% of the rows: Kafka and MERGE, s",
            "10% of the rows: ours, s",
            "10% of the rows: Kafka and MERGE, s",
            "100% of the rows: ours, s",
            "100% of the rows: Kafka and MERGE, s",
        ),
    ),
    "sink": _Section(
        '`df.write.format("rocketmq")` of messages of 1 KiB, beside `DefaultMQProducer.send(list)` with two '
        "threads.",
        ("sink, messages/s", "sink, default batches, messages/s", "sink, by key, messages/s"),
    ),
    "micro_batch": _Section(
        "An orderly consumer that parses JSON and writes a Delta table exactly once, beside an "
        "`applyInPandasWithState` that returns its input and writes nothing. Micro-batches of 40,000 "
        "messages.",
        ("ours: triggerExecution, ms", "identity: triggerExecution, ms"),
    ),
    "consume": _Section(
        "An orderly listener that only answers SUCCESS, with both engines, beside Spark functions that "
        "return their input and beside Java's `DefaultMQPushConsumer`. Messages a second.",
        ("direct engine", "state engine", "Java orderly push"),
    ),
    "consume_concurrent": _Section(
        "A concurrent listener that waits 5 ms per message, 20 calls at a time. *Bare*: only Python, "
        "sleeping. *Ceiling*: 20 calls divided by 5 ms."
    ),
    "landing": _Section(
        "`register_message_columns` into a Delta table, exactly once, beside `write_deltalake` with the "
        'same rows, which are in memory before, and a plain stream into `format("delta")`. Messages of 1 '
        "KiB; rows a second.",
        ("landing", "write_deltalake", "plain stream"),
    ),
    "suspended": _Section(
        "One queue of eight suspends every message. The cost is what the other seven lose against a run "
        "without that queue."
    ),
    "order_by_key": _Section(
        "An orderly listener that waits 20 ms per message; one queue, 50 sharding keys, 20 calls at a time."
    ),
    "latency": _Section(
        "Milliseconds from store at the broker to the listener and to the committed row, orderly, 1 KiB, "
        "four queues: in real time, in micro-batches, and with Java's `DefaultMQPushConsumer`, which writes "
        "no rows. *Cores*: processor time by second; *others*: that of other programs, in the worst round."
    ),
    "rate_source": _Section(
        "1,000 messages a second; time from store at the broker to the committed micro-batch, without a "
        "pause between micro-batches. *Rate source*: Spark's own source with the same writer and no "
        "listener.",
        (
            "ours, Delta: p50, ms",
            "ours, Delta: p99, ms",
            "ours, no sink: p50, ms",
            "rate source, Delta: p50, ms",
            "rate source, Delta: p99, ms",
        ),
    ),
    "memory": _Section(
        "2,000 messages a second for 20 minutes: the resident memory of the largest of Spark's Python "
        "workers. *Growth*: median over the minutes."
    ),
    "endurance": _Section(
        "1,000 messages a second for an hour in real time: memory of all processes, and both latencies. A "
        "period is a sixth of the time: the sixth is compared with the second, or with the first.",
    ),
    "handover": _Section(
        "A Java member joins the group of a query in real time and gets half of its queues; then the query "
        "stops. *Meanwhile*: longest time from store to listener in our queues. *Free*: from the first "
        "heartbeat of a member that does not pause to its lock on its last queue. *To Java*: longest time "
        "from store to Java's listener, with Java's own pauses of 0.5 s.",
        ("meanwhile, our queues",),
    ),
    "planner": _Section(
        "Planning a micro-batch of 1,024 queues; `group` reads their offsets from a Delta table."
    ),
    "offset_commit": _Section("20,000 commits of 64 queues into one offset table, its upkeep beside them."),
    "delta_sink": _Section(
        "One micro-batch into a Delta table, exactly once, beside plain appends by delta-rs and by Spark. "
        "Of these, only the one with `txnAppId` recognises a batch that runs again.",
        (
            "100 rows, ours, ms",
            "100 rows, delta-rs, ms",
            '100 rows, format("delta"), ms',
            "100 rows, ours, by Spark's writer, ms",
            '100 rows, format("delta") with txnAppId, ms',
            "1,000,000 rows, ours, s",
            "1,000,000 rows, delta-rs, s",
            '1,000,000 rows, format("delta"), s',
        ),
    ),
    "old_sinks": _Section(
        "100 rows into a Delta sink of 100,000 commits and one of 200,000 files, beside a new one, on a "
        "local disk. *Data*: the commit of files and watermarks, without the rest of the batch. On storage "
        "of other machines (S3, Azure …) a sink commits through delta-rs, which keeps every file's name: a "
        "commit's cost grows with the number of files. delta-rs' commits on a local disk took 3.7 ms with "
        "some 10 files, 43 ms with 20,000, 126 ms with 60,000; compaction keeps files few.",
        (
            "data, new, ms",
            "data, 100,000 commits, ms",
            "data, 200,000 files, ms",
        ),
    ),
    "compaction": _Section(
        "Micro-batches of 100,000 rows while a thread of the same process compacts the table's 200,000 files, "
        "beside the same without it.",
        ("alone, rows/s", "beside compaction, rows/s", "files compacted a second", "memory, MiB more"),
    ),
    "object_store": _Section(
        "20,000 rows into a Delta sink and the offsets' commit on an emulator of S3, beside "
        "`write_deltalake` and the same commit. *Open*: with a `DeltaTable` that stays open. Requests are "
        "GET, HEAD, LIST, PUT and POST.",
        (
            "ours, ms",
            "delta-rs, ms",
            "delta-rs, open table, ms",
            "ours, requests",
            "delta-rs, requests",
            "delta-rs, open table, requests",
        ),
    ),
    "growth": _Section(
        "Milliseconds of a micro-batch into a Delta sink on a local disk, exactly once, as the table gets "
        "commits and files and the group gets queues.",
        (
            "100,000 commits, before",
            "100,000 commits, now",
            "200,000 files, before",
            "200,000 files, now",
            "1,024 queues, before",
            "1,024 queues, now",
        ),
    ),
    "groups": _Section(
        "Rebalance and triggers: eight members share 1,024 queues of four brokers, and the eighth joins; "
        "own computing only. Stop: two members on a real broker; from the stop of one until the other may "
        "plan its queues."
    ),
    "simulator": _Section(
        "`python -m broker_sim`, driven by bare sockets; rates are per second of the simulator's processor "
        "time."
    ),
    "worker": _Section(
        "One task of a query in real time, in a process without Spark: its processor time, pulls, calls and "
        "files, and the time from send to call.",
    ),
}


def write_section(result: Result, page: Path = PAGE) -> None:
    """Write one result and its picture, replacing an earlier one or after all others."""
    machine = describe_machine()
    text = page.read_text(encoding="utf-8") if page.exists() else _INTRODUCTION.format(machine=machine)
    introduction, *sections = text.rstrip().split("\n\n## ")
    parts = [result.title, f"{_SECTIONS[result.name].compares} {result.about}".rstrip()]
    if machine not in introduction:
        parts.append(f"Measured with {machine}")
    if result.picture:
        picture = page.parent / "images" / f"{result.name}.svg"
        picture.parent.mkdir(exist_ok=True)
        picture.write_text(result.picture, encoding="utf-8")
        parts.append(f"![{result.title}](images/{picture.name})")
    parts.append(result.page or _median_table(result, _SECTIONS[result.name].figures))
    titles = [section.partition("\n")[0] for section in sections]
    here = titles.index(result.title) if result.title in titles else len(sections)
    sections[here : here + 1] = ["\n\n".join(parts)]
    page.write_text("\n\n## ".join([introduction, *sections]) + "\n", encoding="utf-8")


def _median_table(result: Result, shown: Sequence[str]) -> str:
    # The median is the last but one of a row's spread.
    figures = [(row[0], row[-2], "", "") for row in result.rows if row[0] in shown]
    targets = []
    for target in result.targets:
        what, wanted, _, median, _, is_met = target.cells()
        targets.append((what, median, wanted, is_met))
    return markdown_table(("what", "median", "wanted", "met"), [*figures, *targets])


def tables(result: Result) -> str:
    """Format one result's figures, its targets and the load during the measurement."""
    before, after = result.load
    targets = [markdown_table(TARGET_COLUMNS, (target.cells() for target in result.targets))]
    return "\n\n".join(
        [
            result.page or markdown_table(result.columns, result.rows),
            *(targets if result.targets else []),
            f"Load average before and after: {before:.1f}, {after:.1f}.",
        ]
    )
