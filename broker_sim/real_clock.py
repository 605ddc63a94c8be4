"""The system's time, for a simulator that runs on its own."""

from __future__ import annotations

import time


class RealClock:
    """A ``Clock`` that reads the operating system."""

    def now_s(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic_s(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()
