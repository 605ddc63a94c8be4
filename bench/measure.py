"""Parts shared by benchmarks: spreads of repeated measurements, and results that can be printed
and rendered.

Nothing here asserts: a benchmark reports its figures next to their targets.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Spread:
    """Least, middle and greatest of repeated measurements."""

    least: float
    median: float
    greatest: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Compute the spread of at least one value."""
        ordered = sorted(values)
        return cls(ordered[0], statistics.median(ordered), ordered[-1], len(ordered))

    def cells(self, form: str) -> tuple[str, str, str]:
        """Min, median and max as text; ``form`` is a format specification such as ``,.0f``."""
        return format(self.least, form), format(self.median, form), format(self.greatest, form)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A target and the measured figures; the median counts."""

    what: str
    seen: Spread
    bound: float
    at_most: bool
    unit: str = ""

    @property
    def is_met(self) -> bool:
        """Whether the median meets the target."""
        return self.seen.median <= self.bound if self.at_most else self.seen.median >= self.bound

    def cells(self) -> tuple[str, ...]:
        """Return the cells: name, target, min, median, max, met."""
        wanted = f"{'≤' if self.at_most else '≥'} {self.bound:g} {self.unit}".rstrip()
        return self.what, wanted, *self.seen.cells(".2f"), "yes" if self.is_met else "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one benchmark."""

    name: str
    title: str
    method: str
    """Description of the measurement, as Markdown."""
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    targets: tuple[Target, ...]
    load: tuple[float, float] = (0.0, 0.0)
    """One-minute load average before and after."""
    about: str = ""
    """Text for the page about only this run, such as the compared commits."""
    picture: str = ""
    """An SVG for the page; empty without one."""
    page: str = ""
    """Markdown of the figures, for the page and the terminal, in place of the table of medians."""


TARGET_COLUMNS = ("target", "wanted", "min", "median", "max", "met")


def load_average() -> float:
    """One-minute load average of this machine."""
    return round(os.getloadavg()[0], 2)


class Stopwatch:
    """Seconds by name, summed over the blocks of one round."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Add the block's time to ``name``."""
        started_s = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started_s


class Timed:
    """Delegates to an object; the named methods add their time to a stopwatch."""

    def __init__(self, inner: Any, watch: Stopwatch, **labels: str) -> None:
        self._inner = inner
        self._watch = watch
        self._labels = labels

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        label = self._labels.get(name)
        if label is None:
            return value

        def timed(*arguments: Any, **keywords: Any) -> Any:
            with self._watch.time(label):
                return value(*arguments, **keywords)

        return timed


def markdown_table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Format a Markdown table with aligned columns, so that it is also readable on a terminal."""
    cells = [tuple(columns), *(tuple(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])
