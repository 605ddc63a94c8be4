"""The name server without its sockets: which live broker has which topic (``RouteInfoManager``)."""

from __future__ import annotations

from typing import NamedTuple

from broker_sim.layout import Host
from broker_sim.peers import Outgoing, Peer
from broker_sim.replies import SEE_FAQ, Refused, in_json, not_supported, reply
from broker_sim.state import CLUSTER_NAME
from broker_sim.topics import TopicTable
from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import BrokerAddress, BrokerData, QueueData, TopicRoute
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.headers import GetRouteInfoRequestHeader, from_ext_fields
from pyspark_rocketmq.wire.json_quirks import dumps_java
from pyspark_rocketmq.wire.route import encode_route

_OLDEST_WITH_STANDARD_JSON = 401  # V4_9_4


class _Registration(NamedTuple):
    address: Host
    topics: TopicTable


class NameServer:
    """Knows a broker's topics from the moment they are made, and forgets a broker when it stops."""

    name = "namesrv"

    def __init__(self, *, mirror_header_form: bool = False) -> None:
        """Answer binary requests in binary, or everything in JSON as 5.3.3 does."""
        self._mirror_header_form = mirror_header_form
        self._brokers: dict[str, _Registration] = {}

    def register(self, broker_name: str, address: Host, topics: TopicTable) -> None:
        """A broker is alive at ``address``; ``topics`` is watched from now on."""
        self._brokers[broker_name] = _Registration(address, topics)

    def unregister(self, broker_name: str) -> None:
        """The broker stopped: its queues leave every route at once."""
        self._brokers.pop(broker_name, None)

    def route(self, topic: str) -> TopicRoute | None:
        """Where the topic's queues are, None when no live broker has it."""
        brokers, queues = [], []
        for name, (address, topics) in sorted(self._brokers.items()):
            config = topics.find(topic)
            if config is not None:
                brokers.append(_broker_data(name, address))
                queues.append(
                    QueueData(
                        broker_name=name,
                        read_queue_nums=config.read_queue_nums,
                        write_queue_nums=config.write_queue_nums,
                        perm=config.perm,
                        topic_sys_flag=config.topic_sys_flag,
                    )
                )
        return TopicRoute(brokers=tuple(brokers), queues=tuple(queues)) if brokers else None

    def handle(self, peer: Peer, command: RemotingCommand) -> list[Outgoing]:
        """Answer one request."""
        if command.is_response:
            return []
        try:
            answer = self._answer(command)
        except Refused as refused:
            answer = reply(command, refused.code, refused.remark)
        except RemoteProtocolError as error:
            answer = reply(command, ResponseCode.SYSTEM_ERROR, str(error))
        if not self._mirror_header_form:
            answer = in_json(answer)
        return [] if command.is_oneway else [Outgoing(peer, answer, command.code)]

    def connection_closed(self, _peer: Peer) -> list[Outgoing]:
        """Nothing is remembered of connections."""
        return []

    def look_at_clock(self) -> list[Outgoing]:
        """Nothing happens by time alone."""
        return []

    def next_deadline_s(self) -> float | None:
        """Nothing waits."""
        return None

    def _answer(self, command: RemotingCommand) -> RemotingCommand:
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return self._answer_route(command)
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return reply(command, body=self._cluster_info())
        return not_supported(command)

    def _answer_route(self, command: RemotingCommand) -> RemotingCommand:
        header = from_ext_fields(GetRouteInfoRequestHeader, command.ext_fields)
        route = self.route(header.topic)
        if route is None:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {header.topic}{SEE_FAQ}",
            )
        standard = command.version >= _OLDEST_WITH_STANDARD_JSON or bool(header.accept_standard_json_only)
        return reply(command, body=encode_route(route, standard_json=standard))

    def _cluster_info(self) -> bytes:
        """Always with bare integer keys, whatever the version."""
        brokers = {
            name: {
                "brokerAddrs": {0: str(registration.address)},
                "brokerName": name,
                "cluster": CLUSTER_NAME,
                "enableActingMaster": False,
            }
            for name, registration in sorted(self._brokers.items())
        }
        return dumps_java({"brokerAddrTable": brokers, "clusterAddrTable": {CLUSTER_NAME: list(brokers)}})


def _broker_data(name: str, address: Host) -> BrokerData:
    return BrokerData(broker_name=name, cluster=CLUSTER_NAME, addresses={0: BrokerAddress(str(address))})
