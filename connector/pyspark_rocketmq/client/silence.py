"""Decide when a connection on which nothing arrives counts as ended. No I/O: callers pass the time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

_LEAST_S: Final = 0.1
"""Minimum seconds of silence that end a connection: some requests have hardly any time left when sent."""
_SURE_S: Final = 3.0
"""Seconds of silence that end a connection even while other requests are under way on it."""
_SLOWEST_S: Final = 2.5
"""Upper bound of the suspicious silence, in seconds, for a server that has needed longer for an answer; it is
less than a request's time-out."""


class Sent(NamedTuple):
    """The moment at which a request was sent: by the clock, and by the number of arrivals before it."""

    at_s: float
    """Monotonic seconds."""
    received_before: int
    """Number of times that bytes had arrived on the connection when the request was sent."""


class Silence:
    """Decides whether a silent connection must end, from a record of its sends and arrivals.

    A request is given up when its deadline has passed. Then its connection ends if nothing at all has arrived
    since the request was sent. This silence must have lasted at least 0.1 s, and as long as this server has
    needed for an answer, up to 2.5 s. While other requests are under way, the silence must have lasted 3 s:
    the given-up request may only have had too little time.
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
        """Note that a request is sent; only the first request after each arrival is kept.

        Threads may call this out of order. A request from before an arrival is ignored if a request from
        after that arrival is already noted.
        """
        if request.received_before > self._first.received_before:
            self._first = request

    def answered_after(self, took_s: float) -> None:
        """Note that the server took ``took_s`` seconds for an answer that costs it no work.

        From now on, only a silence of at least this length is suspicious. More than 2.5 s count as 2.5 s.
        """
        self._least_s = max(self._least_s, min(took_s, _SLOWEST_S))

    def is_suspicious(self, given_up: Iterable[Sent], now_s: float) -> bool:
        """Return whether nothing has arrived for suspiciously long since one of these requests was sent.

        A silence is suspicious if it lasted at least 0.1 s, and at least as long as the longest time noted by
        :meth:`answered_after` (which is at most 2.5 s).
        """
        silent_s = (now_s - each.at_s for each in given_up if each.received_before == self.received)
        return max(silent_s, default=0.0) >= self._least_s

    def over_after_s(self, now_s: float, *, has_others: bool) -> float | None:
        """Decide whether a suspicious connection must end: return its seconds of silence if so, else None.

        The silence counts from the first request after the last arrival. The connection need not end if no
        request was sent since the last arrival, or if other requests are under way (``has_others``) and the
        silence is shorter than 3 s.
        """
        if self._first.received_before != self.received:
            return None
        silent_s = now_s - self._first.at_s
        return None if has_others and silent_s < _SURE_S else silent_s
