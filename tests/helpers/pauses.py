"""Sleeping without waiting."""

from __future__ import annotations

from tests.helpers.fake_clock import FakeClock


class Pauses:
    """Sleeps by moving the clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.taken: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.taken.append(round(seconds, 3))
        self.clock.advance(seconds)
