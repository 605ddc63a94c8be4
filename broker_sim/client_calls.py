"""Requests a broker sends to its clients and waits to be answered (``Broker2Client``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from broker_sim.peers import Peer
from pyspark_rocketmq.wire.command import RemotingCommand


class NoAnswer(Enum):
    """Why a client's answer will not come."""

    TIMEOUT = auto()
    CONNECTION_CLOSED = auto()


Outcome = RemotingCommand | NoAnswer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClientCall:
    """One request that a client has not answered yet."""

    peer: Peer
    opaque: int
    deadline_s: float
    """Monotonic."""
    finish: Callable[[Outcome], None]
    """Called once, with the answer or why there is none."""


class ClientCalls:
    """All of them, by connection and opaque number."""

    def __init__(self) -> None:
        self._calls: dict[tuple[int, int], ClientCall] = {}

    def add(self, call: ClientCall) -> None:
        """Wait for the answer to ``call``."""
        self._calls[call.peer.connection_id, call.opaque] = call

    def answered(self, peer: Peer, answer: RemotingCommand) -> None:
        """Give an answer to whoever waits for it; one that comes too late is for nobody."""
        call = self._calls.pop((peer.connection_id, answer.opaque), None)
        if call is not None:
            call.finish(answer)

    def expire(self, now_s: float) -> None:
        """End the calls whose time is over."""
        self._end([key for key, call in self._calls.items() if call.deadline_s <= now_s], NoAnswer.TIMEOUT)

    def connection_closed(self, peer: Peer) -> None:
        """End the calls to a client that is gone."""
        mine = [key for key in self._calls if key[0] == peer.connection_id]
        self._end(mine, NoAnswer.CONNECTION_CLOSED)

    def next_deadline_s(self) -> float | None:
        """When :meth:`expire` next has something."""
        return min((call.deadline_s for call in self._calls.values()), default=None)

    def clear(self) -> None:
        """Forget all calls, as a broker does when it stops."""
        self._calls.clear()

    def _end(self, keys: list[tuple[int, int]], reason: NoAnswer) -> None:
        for key in keys:
            self._calls.pop(key).finish(reason)
