"""A name server and brokers made of scripted peers: they store sends, and fail exactly as scripted."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from broker_sim.bodies import encode_route
from pyspark_rocketmq.client.transport import Closing
from pyspark_rocketmq.model import BrokerAddress, BrokerData, QueueData, TopicRoute
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.messages import decode_batch
from tests.helpers.scripted_server import Peer, Script, ScriptedServer


class StoringBroker:
    """A broker that stores what it is sent, or follows ``fault`` instead."""

    def __init__(self) -> None:
        self.stored: dict[int, list[bytes]] = defaultdict(list)
        """Bodies by queue."""
        self.sends: list[RemotingCommand] = []
        self.sent_back: list[RemotingCommand] = []
        self.fault: Script | None = None
        self.fault_of_sent_back: Script | None = None
        """Fault only for messages that are sent back."""
        self.server = ScriptedServer(self._take_in)

    def _take_in(self, peer: Peer, request: RemotingCommand) -> None:
        if self.fault is not None:
            self.fault(peer, request)
            return
        if request.code == RequestCode.CONSUMER_SEND_MSG_BACK:
            self.sent_back.append(request)
            (self.fault_of_sent_back or Peer.answer)(peer, request)
            return
        if request.code == RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG:
            peer.answer(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="request type 352")
            return
        self.sends.append(request)
        queue_id = int(request.ext_fields["e"])
        kept = self.stored[queue_id]
        first = len(kept)
        if request.code == RequestCode.SEND_BATCH_MESSAGE:
            kept += [member.body for member in decode_batch(request.body)]
        else:
            kept.append(request.body)
        if not request.is_oneway:
            fields = {"msgId": f"{queue_id}-{first}", "queueId": str(queue_id), "queueOffset": str(first)}
            peer.answer(request, ext_fields=fields)


class ScriptedCluster(Closing):
    """``broker-a`` and ``broker-b`` behind one name server."""

    def __init__(self) -> None:
        self.brokers = {name: StoringBroker() for name in ("broker-a", "broker-b")}
        self.routes: dict[str, TopicRoute] = {}
        """Topics the name server knows."""
        self.route_requests: list[str] = []
        self._lock = threading.Lock()
        self.name_server = ScriptedServer(self._tell_route)

    def route(self, queue_nums: Mapping[str, int], *, perm: int = 6) -> TopicRoute:
        """Return a route over these brokers with so many queues each."""
        return TopicRoute(
            brokers=tuple(
                BrokerData(broker_name=name, cluster="C", addresses={0: BrokerAddress(broker.server.address)})
                for name, broker in self.brokers.items()
            ),
            queues=tuple(
                QueueData(broker_name=name, read_queue_nums=nums, write_queue_nums=nums, perm=perm)
                for name, nums in queue_nums.items()
            ),
        )

    def only(self, queue_nums: Mapping[str, int]) -> TopicRoute:
        """Return a route with only the brokers that have queues, as a name server's does."""
        whole = self.route(queue_nums)
        return replace(whole, brokers=tuple(b for b in whole.brokers if b.broker_name in queue_nums))

    def close(self) -> None:
        """Stop all three."""
        self.name_server.close()
        for broker in self.brokers.values():
            broker.server.close()

    def _tell_route(self, peer: Peer, request: RemotingCommand) -> None:
        topic = request.ext_fields["topic"]
        with self._lock:
            self.route_requests.append(topic)
        route = self.routes.get(topic)
        if route is None:
            peer.answer(request, ResponseCode.TOPIC_NOT_EXIST, remark=f"No topic route info: {topic}")
        else:
            peer.answer(request, body=encode_route(route, standard_json=True))
