"""Every request on the wire of a simulated cluster, in its order, in the words of ``sequences.json``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from broker_sim.cluster import SimCluster
from broker_sim.replies import Outgoing, Peer
from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.command import RemotingCommand

CLIENT_TO_NAME_SERVER = "client->namesrv"
CLIENT_TO_BROKER = "client->broker"
BROKER_TO_CLIENT = "broker->client"
NO_REPLY = "no reply"
ONEWAY = "oneway"


@dataclass(slots=True)
class Seen:
    """One request."""

    path: str
    request: str
    topic: str | None
    answer: int | str
    """Response code, "oneway", or "no reply" while there is none."""
    command: RemotingCommand

    def __str__(self) -> str:
        return f"{self.path} {self.request} {self.topic} {self.answer}"


class RequestLog:
    """Listens to a cluster's name server and its first broker."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._seen: list[Seen] = []
        self._open: dict[tuple[str, int, int], Seen] = {}
        self._listen_to(cluster._cluster.name_server, CLIENT_TO_NAME_SERVER)
        self._listen_to(cluster.broker("broker-a"), CLIENT_TO_BROKER)

    def taken(self) -> list[Seen]:
        """Return the requests since the last call; a late answer is still entered into them."""

        def take() -> list[Seen]:
            seen, self._seen = self._seen, []
            return seen

        return self._cluster.call(take)

    def so_far(self) -> list[Seen]:
        """Return the requests since :meth:`taken` was called."""
        return self._cluster.call(lambda: list(self._seen))

    def _listen_to(self, endpoint: Any, path: str) -> None:
        original: Callable[..., list[Outgoing]] = endpoint.handle

        def handle(peer: Peer, command: RemotingCommand) -> list[Outgoing]:
            if command.is_response:
                self._answered((BROKER_TO_CLIENT, peer.connection_id, command.opaque), command)
            else:
                self._asked(path, peer, command)
            return self._sent(path, original(peer, command))

        def wrapped(method: Callable[..., list[Outgoing]]) -> Callable[..., list[Outgoing]]:
            return lambda *arguments: self._sent(path, method(*arguments))

        endpoint.handle = handle
        endpoint.connection_closed = wrapped(endpoint.connection_closed)
        endpoint.look_at_clock = wrapped(endpoint.look_at_clock)

    def _sent(self, path: str, outgoing: list[Outgoing]) -> list[Outgoing]:
        for each in outgoing:
            if each.command.is_response:
                self._answered((path, each.peer.connection_id, each.command.opaque), each.command)
            else:
                self._asked(BROKER_TO_CLIENT, each.peer, each.command)
        return outgoing

    def _asked(self, path: str, peer: Peer, command: RemotingCommand) -> None:
        fields = command.ext_fields
        topic = fields.get("topic") or (fields.get("b") if command.code in _SHORT_FIELD_NAMES else None)
        seen = Seen(path, _name(command.code), topic, ONEWAY if command.is_oneway else NO_REPLY, command)
        self._seen.append(seen)
        if not command.is_oneway:
            self._open[path, peer.connection_id, command.opaque] = seen

    def _answered(self, key: tuple[str, int, int], command: RemotingCommand) -> None:
        seen = self._open.pop(key, None)
        if seen is not None:
            seen.answer = int(command.code)


_SHORT_FIELD_NAMES = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


def _name(code: int) -> str:
    return RequestCode(code).name if code in RequestCode._value2member_map_ else str(code)
