"""What a replay tells: one line at its end, lines on the way where there is no terminal."""

from __future__ import annotations

from jobs.replay import summary_text
from pyspark_rocketmq.replay.replay import ReplaySummary


def test_the_summary_tells_what_an_earlier_run_has_done_only_where_one_has():
    """H3"""
    summary = ReplaySummary(queues=2, planned=60, recorded=0, written=40, steps=3, seconds=1.25)
    again = ReplaySummary(queues=2, planned=60, recorded=60, written=0, steps=0, seconds=0.04)

    assert summary_text(summary, "rows added to /t") == (
        "queues: 2 · offsets planned: 60 · rows added to /t: 40 · steps: 3 · 1.2 s"
    )
    assert "replayed before: 60 · messages sent" in summary_text(again, "messages sent to topic copy")
