"""Command ``replay``: reads queues again, into a Delta table or another topic."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from pyspark_rocketmq.cli.options import ReplaySettings
from pyspark_rocketmq.cli.running import Shown, delta_place, spark_session, storage_secrets
from pyspark_rocketmq.replay.replay import Replay, ReplaySummary


def replay(settings: ReplaySettings, console: Console) -> None:
    """Replay the messages that ``settings`` choose into a table or a topic, and print a summary.

    Raises:
        OptionError: If topics or columns do not go together.
        RocketMQError: If messages cannot be read or written; the target keeps the work of finished steps.
    """
    with (
        spark_session("replay", needs_delta=settings.to_table is not None) as spark,
        Shown(console, "offsets replayed") as shown,
    ):
        places = delta_place(settings.offset_store), settings.record
        secrets = storage_secrets(spark, settings.storage_secrets, *places)
        settings = replace(settings, storage_secrets=secrets)
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
    """Summarise a replay in one line; ``what`` names the things whose number is ``summary.written``."""
    parts = [
        f"queues: {summary.queues}",
        f"offsets planned: {summary.planned}",
        *([f"replayed before: {summary.recorded}"] if summary.recorded else []),
        f"{what}: {summary.written}",
        f"steps: {summary.steps}",
        f"{summary.seconds:.1f} s",
    ]
    return " · ".join(parts)
