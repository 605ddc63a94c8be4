"""A cluster of either kind that clients reach through relays: to its name server, and to each of its brokers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

from pyspark_rocketmq.client.transport import Closing
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.relay import Relay
from tests.helpers.scripted_server import Peer, Script, ScriptedServer
from tests.real_broker import plain_remoting


class FrontNameServer(ScriptedServer):
    """Answers as the cluster's name server does, with other addresses, or as ``instead`` does."""

    def __init__(
        self,
        cluster: ClusterUnderTest,
        addresses: Callable[[], Mapping[str, str]] = dict,
        *,
        instead: Script | None = None,
    ) -> None:
        """Announce the values of ``addresses`` in place of brokers' addresses."""
        super().__init__(self._serve_request)
        self._cluster = cluster
        self._addresses = addresses
        self.instead = instead

    def _serve_request(self, peer: Peer, request: RemotingCommand) -> None:
        if self.instead is not None:
            self.instead(peer, request)
            return
        answer = plain_remoting.call(
            self._cluster.name_servers, request.code, request.ext_fields, body=request.body
        )
        pieces = answer.body.split(b'"')
        named = {old.encode(): new.encode() for old, new in self._addresses().items()}
        body = b'"'.join(named.get(piece, piece) for piece in pieces)
        peer.answer(request, answer.code, remark=answer.remark, ext_fields=answer.ext_fields, body=body)


def not_ready(peer: Peer, request: RemotingCommand) -> None:
    """Answer as a name server that has just started with ``needWaitForService``."""
    peer.answer(request, ResponseCode.SYSTEM_ERROR, remark="name server not ready")


def knowing_nothing(peer: Peer, request: RemotingCommand) -> None:
    """Answer as a running name server with which no broker registers."""
    if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
        topic = request.ext_fields["topic"]
        peer.answer(
            request,
            ResponseCode.TOPIC_NOT_EXIST,
            remark=f"No topic route info in name server for the topic: {topic}",
        )
    elif request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
        peer.answer(request, body=b'{"brokerAddrTable":{},"clusterAddrTable":{}}')
    else:
        peer.answer(request, body=b'{"topicList":[]}')


class RelayedCluster(Closing):
    """Relays in front of ``cluster``; open inside ``with``."""

    def __init__(self, cluster: ClusterUnderTest) -> None:
        self._cluster = cluster
        self._stack = ExitStack()
        self.brokers = {name: Relay(address) for name, address in cluster.broker_addresses.items()}
        """The way to each broker that is announced, by broker name."""
        self.front = self._stack.enter_context(FrontNameServer(cluster, self._announced))
        self.name_server = Relay(self.front.address)
        for relay in (self.name_server, *self.brokers.values()):
            self._stack.enter_context(relay)

    @property
    def name_servers(self) -> str:
        """Addresses in the form that option ``nameServers`` takes."""
        return self.name_server.address

    def swap(self) -> None:
        """Have brokers a and b come back with each other's address; name servers have not noticed yet."""
        a, b = self.brokers["broker-a"], self.brokers["broker-b"]
        a.target, b.target = b.target, a.target
        a.cut()
        b.cut()

    def swallow(self, broker_name: str) -> Relay:
        """From now on the broker's address accepts connections and never answers."""
        old = self.brokers[broker_name]
        old.target = self._stack.enter_context(ScriptedServer(lambda *_: None)).address
        old.cut()
        return old

    def move(self, broker_name: str) -> None:
        """Have the broker come back at another address, which name servers announce."""
        address = self._cluster.broker_addresses[broker_name]
        self.brokers[broker_name] = self._stack.enter_context(Relay(address))

    def register(self) -> None:
        """Announce where the brokers are now, after :meth:`swap`."""
        behind = {relay.target: relay for relay in self.brokers.values()}
        self.brokers = {name: behind[at] for name, at in self._cluster.broker_addresses.items()}

    def close(self) -> None:
        """End all relays."""
        self._stack.close()

    def _announced(self) -> dict[str, str]:
        addresses = self._cluster.broker_addresses
        return {addresses[name]: relay.address for name, relay in self.brokers.items()}
