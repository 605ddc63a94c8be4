"""Percentiles of latencies, and histograms of them as text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Latencies = npt.NDArray[np.float64]
"""Milliseconds."""

_STEPS: Final = (1, 2, 5)
"""Bounds of a decade's bins."""
_BAR: Final = 20
_FULL: Final = "█"
_PARTS: Final = " ▏▎▍▌▋▊▉"
"""Eighths of a character."""


def percentile(latencies: Latencies, percent: float) -> float:
    """Return the smallest latency that ``percent`` of all latencies do not exceed; NaN if there are none."""
    if not len(latencies):
        return float("nan")
    # 99.9 % of 1,000 is a little more than 999 in binary.
    rank = math.ceil(round(percent * len(latencies) / 100, 6))
    index = max(0, rank - 1)
    return float(np.partition(latencies, index)[index])


def bounds_for(longest: float) -> list[float]:
    """Return the upper bounds of bins: 1, 2, 5, 10 and so on, until one is at least ``longest``."""
    bounds: list[float] = []
    for bound in _all_bounds():
        bounds.append(bound)
        if longest <= bound:
            break
    return bounds


def _all_bounds() -> Iterator[float]:
    for power in itertools.count():
        yield from (float(step * 10**power) for step in _STEPS)


def counts(latencies: Latencies, bounds: Sequence[float]) -> list[int]:
    """Count the latencies in each bin; a bin includes its upper bound, and the first bin has no lower bound.

    Raises:
        ValueError: If a latency exceeds the last bound.
    """
    bins = np.searchsorted(bounds, latencies, side="left")
    found = np.bincount(bins, minlength=len(bounds))
    if len(found) > len(bounds):
        raise ValueError(f"The longest latency is {latencies.max():g} ms; the bins end at {bounds[-1]:g} ms.")
    return [int(each) for each in found]


def bar(share: float) -> str:
    """Return a bar for a share from 0 to 1; it is visible for every share above 0."""
    eighths = round(share * _BAR * 8)
    if share > 0:
        eighths = max(1, eighths)
    full, part = divmod(eighths, 8)
    return (_FULL * full + (_PARTS[part] if part else "")).ljust(_BAR)


def histogram(title: str, latencies: Mapping[str, Latencies]) -> str:
    """Draw histograms with the same bins beside each other, without bins before the first or after the last
    that contains any; empty without a latency.
    """
    measured = {who: each for who, each in latencies.items() if len(each)}
    if not measured:
        return ""
    bounds = bounds_for(max(float(each.max()) for each in measured.values()))
    by_who = {who: counts(each, bounds) for who, each in measured.items()}
    first = min(next(index for index, count in enumerate(each) if count) for each in by_who.values())
    label_width = max(len(title), *(len(_label(bounds, index)) for index in range(len(bounds))))
    cell_width = _BAR + len(" 100.00 %")
    lines = ["  ".join([title.ljust(label_width), *(who.ljust(cell_width) for who in by_who)]).rstrip()]
    for index in range(first, len(bounds)):
        cells = [_cell(each[index] / sum(each)) for each in by_who.values()]
        lines.append("  ".join([_label(bounds, index).rjust(label_width), *cells]).rstrip())
    return "\n".join(lines)


def _cell(share: float) -> str:
    return f"{bar(share)} {share * 100:6.2f} %" if share else " " * (_BAR + len(" 100.00 %"))


def _label(bounds: Sequence[float], index: int) -> str:
    lower = f"{bounds[index - 1]:,.0f}" if index else "0"
    return f"{lower} - {bounds[index]:,.0f} ms"
