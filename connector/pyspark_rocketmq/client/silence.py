"""Decide when a connection on which nothing arrives has ended.  No I/O: callers pass the time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

_LEAST_S: Final = 0.1
"""A shorter silence proves nothing: the request had hardly any time left when it was sent."""
_SURE_S: Final = 3.0
"""Seconds of silence that end a connection even if requests with later deadlines are under way on it."""
_SLOWEST_S: Final = 2.5
"""Seconds of silence that are suspicious even if the server has needed longer for an answer; less than a
request's time-out."""


class Sent(NamedTuple):
    """The moment at which a request was sent."""

    at_s: float
    """Monotonic seconds."""
    received_before: int
    """How often something had arrived by then."""


class Silence:
    """The silence of one connection.

    A request that is given up ends its connection if nothing at all has arrived since it was sent, for at
    least 0.1 s and at least as long as this server has needed for an answer (at most 2.5 s). While other
    requests are under way, the silence must last 3 s: the broker may be too slow only for requests with
    little time.
    """

    def __init__(self) -> None:
        self.received = 0
        """How often something has arrived."""
        self._first = Sent(0.0, -1)
        """The first request since the last arrival."""
        self._least_s = _LEAST_S

    def came(self) -> None:
        """Note that something has arrived."""
        self.received += 1

    def sent(self, request: Sent) -> None:
        """Note a request; threads may note requests in another order than they read ``received``."""
        if request.received_before > self._first.received_before:
            self._first = request

    def answered_after(self, took_s: float) -> None:
        """Note how long an answer took that costs the server nothing: a slow server may be silent longer."""
        self._least_s = max(self._least_s, min(took_s, _SLOWEST_S))

    def is_suspicious(self, given_up: Iterable[Sent], now_s: float) -> bool:
        """Return whether silence since one of these requests suggests that the connection has ended."""
        silent_s = (now_s - each.at_s for each in given_up if each.received_before == self.received)
        return max(silent_s, default=0.0) >= self._least_s

    def over_after_s(self, now_s: float, *, has_others: bool) -> float | None:
        """Return how long the silence has lasted if it ends a suspicious connection; otherwise None.

        ``has_others``: whether other requests are under way.
        """
        if self._first.received_before != self.received:
            return None
        silent_s = now_s - self._first.at_s
        return None if has_others and silent_s < _SURE_S else silent_s
