"""Job ``replay``: queues read again, into a Delta table or another topic, while no group's offsets are touched."""

from __future__ import annotations

import time

from rich.console import Console

from jobs.progress import LINE_EVERY_S, progress_bar
from jobs.session import spark_session
from jobs.settings import ReplaySettings
from pyspark_rocketmq.replay.replay import Replay, ReplaySummary


def replay(settings: ReplaySettings, console: Console) -> None:
    """Run to the end and print what was done.

    Raises:
        OptionError: If topics or columns do not go together.
        RocketMQError: If messages cannot be read or written; whole steps stay.
    """
    with spark_session("replay") as spark, _Shown(console) as shown:
        reading = Replay(spark, settings, offsets_per_step=settings.offsets_per_step)
        if settings.to_table is not None:
            summary, what = reading.to_table(settings.to_table, shown), f"rows added to {settings.to_table}"
        else:
            assert settings.to_topic is not None
            assert settings.record is not None
            summary = reading.to_topic(settings.to_topic, settings.record, shown)
            what = f"messages sent to topic {settings.to_topic}"
    console.print(summary_text(summary, what), soft_wrap=True)


def summary_text(summary: ReplaySummary, what: str) -> str:
    """One line."""
    parts = [
        f"queues: {summary.queues}",
        f"offsets planned: {summary.planned}",
        *([f"replayed before: {summary.recorded}"] if summary.recorded else []),
        f"{what}: {summary.written}",
        f"steps: {summary.steps}",
        f"{summary.seconds:.1f} s",
    ]
    return " · ".join(parts)


class _Shown:
    """Shows how many offsets are done: a bar, or, where there is no terminal, a line now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = progress_bar(console)
        self._task = self._bar.add_task("offsets replayed", total=None)
        self._line_due_s = time.monotonic() + LINE_EVERY_S

    def __enter__(self) -> _Shown:
        self._bar.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)
        if not self._console.is_terminal and time.monotonic() >= self._line_due_s:
            self._console.print(f"offsets replayed: {done} of {total}")
            self._line_due_s = time.monotonic() + LINE_EVERY_S
