"""The failure of a query as users see it, out of the pages that Spark prints."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from pyspark_rocketmq.cli.running import RowCounter, Shown, behind_text, failure_sentence
from pyspark_rocketmq.commit.pipeline import BatchReport
from pyspark_rocketmq.consume.latencies import LatencyHistogram
from pyspark_rocketmq.consume.part import QueueAck
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.source.ranges import plan_to_offset
from tests.helpers.fake_clock import FakeClock
from tests.monitoring.events import NOW_S, Q0, planned, progress, report, told

FROM_THE_PLANNER = """\
[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] \
Failed when Python streaming data source perform latestOffset: Traceback (most recent call last):
  File "planner.py", line 90, in latest
    raise DataLoss(str(gap.queue), gap.wanted, available)
pyspark_rocketmq.errors.DataLoss: topic=orders broker=broker-a queue=0: offset 5 was wanted, but the broker has 9 to 12.

\tat org.apache.spark.sql.Somewhere(Somewhere.scala:1)
"""


def ack(failed: int) -> QueueAck:
    return QueueAck(
        queue=MessageQueue("orders", "broker-a", 0), start=0, state=QueueState(1, 1), consumed=1,
        failed=failed,
        finished="EXHAUSTED", last_error="ValueError: no",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            FROM_THE_PLANNER,
            (
                "pyspark_rocketmq.errors.DataLoss: topic=orders broker=broker-a queue=0: offset 5 was "
                "wanted, but the broker has 9 to 12."
            ),
        ),
        (
            (
                "Traceback\npyspark_rocketmq.errors.TopicNotFound: no route: nope\nSee the manual. Create "
                "it.\n SQLSTATE: 38000\n=== Streaming Query ==="
            ),
            "pyspark_rocketmq.errors.TopicNotFound: no route: nope See the manual. Create it.",
        ),
        ("first line\nsecond line", "first line"),
        ("", "no reason given"),
        ("Traceback\nValueError: no\n\nJVM\njava.lang.IllegalStateException: wrapped", "ValueError: no"),
    ],
)
def test_the_reason_is_found_in_sparks_text(text: str, sentence: str) -> None:
    assert failure_sentence(text) == sentence


def test_committed_rows_and_failed_deliveries_are_added_up() -> None:
    counter = RowCounter()
    for rows, failed in ((10, 1), (5, 2)):
        counter(
            BatchReport(
                query_id="q",
                batch_id=0,
                acks=(ack(failed),),
                rows=rows,
                left_out=0,
                sink_version=1,
                refused=(),
            )
        )

    assert (counter.rows, counter.given_back) == (15, 3)
    assert str(counter) == (
        "rows committed by this run: 15; deliveries given back by the listener: 3; last error: ValueError: no"
    )


def test_where_there_is_no_terminal_a_line_now_and_then_says_how_much_is_done() -> None:
    output, clock = io.StringIO(), FakeClock()
    with Shown(Console(file=output, width=120), "rows committed by this run", clock.monotonic_s) as shown:
        for done, total, beside in (
            (1_000, None, ""),
            (2_000, None, "7 messages behind"),
            (3_000, 9_000, ""),
        ):
            shown(done, total, beside)
            clock.advance(2.5)
            shown(done, total, beside)
            clock.advance(2.5)

    lines = [line for line in output.getvalue().splitlines() if line]
    assert lines == [
        "rows committed by this run: 2,000 · 7 messages behind",
        "rows committed by this run: 3,000 of 9,000",
    ]


@pytest.mark.parametrize(
    ("seconds", "lines"), [(4.0, []), (6.0, ["messages stored: 0 of 900", "messages stored: 900 of 900"])]
)
def test_the_end_is_shown_after_the_beginning_was(seconds: float, lines: list[str]) -> None:
    output, clock = io.StringIO(), FakeClock()
    with Shown(Console(file=output, width=120), "messages stored", clock.monotonic_s) as shown:
        clock.advance(seconds)
        shown(0, 900)
        shown(900, 900)

    assert output.getvalue().splitlines() == lines


def test_lag_of_an_older_batch_is_not_shown_beside_newer_rows() -> None:
    metrics = told(
        progress(end=plan_to_offset(1, [planned(Q0, 0, 10)]), latest={Q0: 40}, batch_id=3), None, NOW_S
    )
    counter = RowCounter()

    def committed(batch_id: int) -> str:
        counter(replace(report(acks=[], rows=[]), batch_id=batch_id))
        return behind_text(metrics, counter)

    assert [committed(batch_id) for batch_id in (2, 3, 4)] == ["30 messages behind", "30 messages behind", ""]


def test_beside_the_rows_is_how_far_the_query_is_behind() -> None:
    metrics = told(progress(end=plan_to_offset(1, [planned(Q0, 0, 10)]), latest={Q0: 40}), None, NOW_S)

    assert behind_text(metrics, RowCounter()) == "30 messages behind"
    metrics = metrics.with_stored_times({Q0: NOW_S - 2})
    assert behind_text(metrics, RowCounter()) == "30 messages behind for 2.0 s"
    metrics = replace(metrics, store_to_listener=LatencyHistogram.of([3] * 98 + [9, 1_500]))
    assert behind_text(metrics, RowCounter()) == "30 messages behind for 2.0 s"
    live = replace(metrics, has_ended=False)
    assert behind_text(live, RowCounter()) == (
        "30 messages behind for 2.0 s, 99 % at the listener within 9 ms"
    )


def test_unknown_broker_positions_are_not_shown() -> None:
    metrics = told(progress(end=plan_to_offset(1, [planned(Q0, 0, 10)]), latest=None), None, NOW_S)

    assert behind_text(metrics, RowCounter()) == ""
