"""Where a demo run keeps its things, and what they are called."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from jobs.demo.settings import DemoSettings

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNames:
    """Names of one run; a new run does not meet what an earlier one left behind."""

    topic: str
    consumer_group: str
    work_dir: Path

    @classmethod
    def for_run(cls, settings: DemoSettings, started: datetime) -> RunNames:
        """What the settings say, else names made from the start time."""
        run = started.strftime("%Y%m%d-%H%M%S")
        work_dir = _ROOT / ".cache" / "demo" / run if settings.work_dir is None else Path(settings.work_dir)
        return cls(
            topic=settings.topic or f"demo-orders-{run}",
            consumer_group=settings.consumer_group or f"demo-group-{run}",
            work_dir=work_dir,
        )

    @property
    def orders(self) -> str:
        """The Delta table of consumed orders."""
        return str(self.work_dir / "orders")

    @property
    def offsets(self) -> str:
        """The Delta table of the group's progress."""
        return str(self.work_dir / "offsets")

    @property
    def checkpoint(self) -> str:
        """Spark's checkpoint."""
        return str(self.work_dir / "checkpoint")
