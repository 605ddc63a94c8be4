"""Decides when a connection on which nothing comes has ended.  Pure: callers pass the time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

_LEAST_S: Final = 0.1
"""A shorter silence says nothing: the request had hardly any time left when it was sent."""
_SURE_S: Final = 3.0
"""A silence this long ends a connection even if requests with more time are under way on it."""
_SLOWEST_S: Final = 2.5
"""A longer silence is always a sign that the peer is gone; below the time-out of a request."""


class Sent(NamedTuple):
    """The moment at which a request was sent."""

    at_s: float
    """Monotonic seconds."""
    received_before: int
    """How often something had come by then."""


class Silence:
    """The silence of one connection.

    A request that is given up ends its connection if nothing at all has come since it was sent, for 0.1 s or
    as long as this server has needed for an answer. While other requests are under way, the silence must last
    3 s: a broker may be too slow only for the shorter ones.
    """

    def __init__(self) -> None:
        self.received = 0
        """How often something has come."""
        self._first = Sent(0.0, -1)
        """The first request since something came."""
        self._least_s = _LEAST_S

    def came(self) -> None:
        """Note that something has come."""
        self.received += 1

    def sent(self, request: Sent) -> None:
        """Note a request; threads may note theirs in another order than they looked at ``received``."""
        if request.received_before > self._first.received_before:
            self._first = request

    def answered_after(self, took_s: float) -> None:
        """Note how long the server took to answer a question that costs it nothing."""
        self._least_s = max(self._least_s, min(took_s, _SLOWEST_S))

    def is_suspicious(self, given_up: Iterable[Sent], now_s: float) -> bool:
        """Whether one of the requests that are given up now was met by silence only, and for long enough."""
        silent_s = (now_s - each.at_s for each in given_up if each.received_before == self.received)
        return max(silent_s, default=0.0) >= self._least_s

    def over_after_s(self, now_s: float, *, has_others: bool) -> float | None:
        """Return how long the silence has lasted if it ends the connection, which was suspicious; else None.

        ``has_others``: other requests are under way.
        """
        if self._first.received_before != self.received:
            return None
        silent_s = now_s - self._first.at_s
        return None if has_others and silent_s < _SURE_S else silent_s
