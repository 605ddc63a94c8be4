"""Connections of DB-API 2 that are lost at a statement, or a commit, that a test names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any


class ConnectionLost(Exception):
    """Error that the driver raises for it."""


@dataclass
class Faults:
    """When connections are lost; counts statements and commits of all of them together."""

    at: int | None = None
    """Number of the statement or commit, from 0; None: never."""
    is_done: bool = False
    """Whether the server carries it out before the connection is lost."""
    is_down_then: bool = False
    """Whether no connection can be made from then on."""
    is_down: bool = False
    seen: list[str] = field(default_factory=list)
    """Statements and commits so far."""

    def carry_out(self, what: str, lose: Callable[[], Any], action: Callable[[], Any]) -> Any:
        """Run a statement or commit, and lose the connection if it is its turn."""
        number = len(self.seen)
        self.seen.append(what)
        if number != self.at:
            return action()
        if self.is_done:
            action()
        self.is_down = self.is_down_then
        lose()
        raise ConnectionLost(f"{'after' if self.is_done else 'before'} {what}")


@dataclass
class Connecting:
    """Connects in a way that a test may change."""

    by: Callable[[], Any]

    def __call__(self) -> Any:
        return self.by()


class FailingConnection:
    """A driver's connection with faults."""

    def __init__(self, real: Any, faults: Faults) -> None:
        if faults.is_down:
            real.close()
            raise ConnectionLost("the server is down")
        self.real = real
        self._faults = faults

    def cursor(self) -> FailingCursor:
        return FailingCursor(self, self.real.cursor(), self._faults)

    def commit(self) -> None:
        self._faults.carry_out("COMMIT", self.lose, self.real.commit)

    def lose(self) -> None:
        """Act as the server does when its client is gone."""
        with suppress(Exception):
            self.real.rollback()
        self.real.close()

    def rollback(self) -> None:
        self.real.rollback()

    def close(self) -> None:
        self.real.close()


class FailingCursor:
    """Its cursor."""

    def __init__(self, connection: FailingConnection, real: Any, faults: Faults) -> None:
        self.connection = connection
        self._real = real
        self._faults = faults

    @property
    def rowcount(self) -> int:
        return int(self._real.rowcount)

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> None:
        self._faults.carry_out(statement, self._lose, lambda: self._real.execute(statement, parameters))

    def executemany(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        self._faults.carry_out(statement, self._lose, lambda: self._real.executemany(statement, rows))

    def _lose(self) -> None:
        # SQLite keeps the locks of a closed connection that has open cursors.
        self._real.close()
        self.connection.lose()

    def fetchall(self) -> list[Any]:
        return list(self._real.fetchall())

    def close(self) -> None:
        with suppress(Exception):
            self._real.close()


class ExecutesNothing(FailingConnection):
    """A connection that is open, and of which every statement fails, as behind a proxy."""

    def cursor(self) -> FailingCursor:
        return FailingCursor(self, self.real.cursor(), Faults(at=0))
