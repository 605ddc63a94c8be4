"""Scripted failures, for tests of the other side.

Each line of the script is used once, by the first request or answer it fits, in the order it was written; what
nothing fits yet stays. Nothing is random.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fail:
    """Answer with an error code instead of doing the work."""

    response_code: int


@dataclass(frozen=True, slots=True)
class DropConnection:
    """Close the connection instead of doing the work."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Do the work, send the first bytes of the answer's frame, close the connection."""

    keep_bytes: int


@dataclass(frozen=True, slots=True)
class Lose:
    """Do the work and never answer; the connection stays."""


Fault = Fail | DropConnection | Cut | Lose


@dataclass(frozen=True, slots=True, eq=False)
class _Line:
    request_code: int
    fault: Fault
    where: str | None


class FaultScript:
    """What goes wrong next; ``where`` restricts a line to one broker name or to ``namesrv``.

    Write the script before the request it is meant for: it is read on another thread.
    """

    def __init__(self) -> None:
        self._lines: list[_Line] = []

    @property
    def pending(self) -> int:
        """Lines not used yet."""
        return len(self._lines)

    def fail_next(
        self, request_code: int, response_code: int, times: int = 1, *, where: str | None = None
    ) -> None:
        """Answer the next ``times`` requests of this code with ``response_code``, undone."""
        self._lines += [_Line(request_code, Fail(response_code), where) for _ in range(times)]

    def drop_connection_on(self, request_code: int, times: int = 1, *, where: str | None = None) -> None:
        """Close the connection at the next ``times`` requests of this code, undone."""
        self._lines += [_Line(request_code, DropConnection(), where) for _ in range(times)]

    def cut_next_response(self, request_code: int, keep_bytes: int, *, where: str | None = None) -> None:
        """Do the next request of this code, send ``keep_bytes`` of its answer and close the connection."""
        self._lines.append(_Line(request_code, Cut(keep_bytes), where))

    def lose_next_response(self, request_code: int, times: int = 1, *, where: str | None = None) -> None:
        """Do the next ``times`` requests of this code and answer none; the connection stays open."""
        self._lines += [_Line(request_code, Lose(), where) for _ in range(times)]

    def clear(self) -> None:
        """Forget the rest of the script."""
        self._lines.clear()

    def take_for_request(self, where: str, request_code: int) -> Fail | DropConnection | None:
        """What happens instead of handling this request."""
        fault = self._take(where, request_code, (Fail, DropConnection))
        return fault if isinstance(fault, Fail | DropConnection) else None

    def take_for_response(self, where: str, request_code: int) -> Cut | Lose | None:
        """What happens to the answer of a request of this code."""
        fault = self._take(where, request_code, (Cut, Lose))
        return fault if isinstance(fault, Cut | Lose) else None

    def _take(self, where: str, request_code: int, kinds: tuple[type[Fault], ...]) -> Fault | None:
        for line in self._lines:
            fits = line.request_code == request_code and line.where in {None, where}
            if fits and isinstance(line.fault, kinds):
                self._lines.remove(line)
                return line.fault
        return None
