"""Decide when a connection on which nothing arrives counts as ended. No I/O: callers pass the time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

_LEAST_S: Final = 0.1
"""Minimum seconds of silence that end a connection: some requests have hardly any time left when sent."""
_SURE_S: Final = 3.0
"""Seconds of silence that end a connection even if requests with later deadlines are under way on it."""
_SLOWEST_S: Final = 2.5
"""Seconds of silence that are suspicious even if the server has needed longer for an answer; less than a
request's time-out."""


class Sent(NamedTuple):
    """The moment at which a request was sent, on the clock and among the connection's arrivals."""

    at_s: float
    """Monotonic seconds."""
    received_before: int
    """Number of times that bytes had arrived on the connection by then."""


class Silence:
    """Record of one connection's sends and arrivals, which decides when its silence ends it.

    A request that is given up ends its connection if nothing at all has arrived since it was sent, for at
    least 0.1 s and at least as long as this server has needed for an answer (at most 2.5 s). While other
    requests are under way, the silence must last 3 s: the broker may be too slow only for requests with
    little time.
    """

    def __init__(self) -> None:
        self.received = 0
        """Number of times that bytes have arrived."""
        self._first = Sent(0.0, -1)
        """The first request since the last arrival."""
        self._least_s = _LEAST_S

    def came(self) -> None:
        """Note that bytes have arrived."""
        self.received += 1

    def sent(self, request: Sent) -> None:
        """Note that a request is sent; only the first one since the last arrival is kept.

        Threads may call this in another order than they read ``received``.
        """
        if request.received_before > self._first.received_before:
            self._first = request

    def answered_after(self, took_s: float) -> None:
        """Note that the server took ``took_s`` seconds for an answer that costs it no work.

        From now on, shorter silences (up to 2.5 s) are not suspicious.
        """
        self._least_s = max(self._least_s, min(took_s, _SLOWEST_S))

    def is_suspicious(self, given_up: Iterable[Sent], now_s: float) -> bool:
        """Return whether nothing has arrived since one of these requests was sent, for suspiciously long.

        This means 0.1 s, or the longest time noted by :meth:`answered_after` if that is longer.
        """
        silent_s = (now_s - each.at_s for each in given_up if each.received_before == self.received)
        return max(silent_s, default=0.0) >= self._least_s

    def over_after_s(self, now_s: float, *, has_others: bool) -> float | None:
        """Return for how many seconds nothing has arrived if this ends a suspicious connection; else None.

        The seconds count from the first request since the last arrival. If other requests are under way
        (``has_others``), less than 3 s do not end the connection.
        """
        if self._first.received_before != self.received:
            return None
        silent_s = now_s - self._first.at_s
        return None if has_others and silent_s < _SURE_S else silent_s
