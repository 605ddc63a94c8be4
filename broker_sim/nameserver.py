"""The name server without its sockets: the topics of the live brokers (``RouteInfoManager``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from broker_sim.bodies import encode_cluster_info, encode_route, encode_topic_list
from broker_sim.layout import Host
from broker_sim.replies import SEE_FAQ, Outgoing, Peer, Refused, in_json, not_supported, reply
from broker_sim.state import CLUSTER_NAME
from broker_sim.topics import PERM_READ_WRITE, PERM_WRITE, Topic, TopicTable
from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import BrokerAddress, BrokerData, QueueData, TopicRoute
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.fastjson import dumps_java
from pyspark_rocketmq.wire.requests.header_fields import from_ext_fields
from pyspark_rocketmq.wire.requests.headers import GetRouteInfoRequestHeader

MASTER_ID = 0
ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""Namespace of the key-value table that holds ``broker-a:4;broker-b:4`` for ordered topics."""

_OLDEST_WITH_STANDARD_JSON = 401  # V4_9_4
_ORDER_MESSAGE_ENABLE = "orderMessageEnable"
_SUPPORT_ACTING_MASTER = "supportActingMaster"
_UNCHANGEABLE = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})


@dataclass(slots=True)
class _Registration:
    """Topics of one broker name, and the addresses of its machines by broker id."""

    topics: TopicTable
    addresses: dict[int, Host] = field(default_factory=dict)


class NameServer:
    """A name server without sockets, which decides every answer.

    It lists a broker's topics as soon as they are created, and forgets a broker as soon as it stops.
    """

    name = "namesrv"

    def __init__(
        self, *, mirror_header_form: bool = False, advertised: Mapping[str, Host] = MappingProxyType({})
    ) -> None:
        """Create a name server without brokers.

        ``mirror_header_form`` makes it answer binary requests in binary; otherwise it answers in JSON, as
        5.3.3 does. ``advertised`` has addresses by broker name that routes show in place of the masters' own
        (``brokerIP1``).
        """
        self._mirror_header_form = mirror_header_form
        self._advertised = advertised
        self._brokers: dict[str, _Registration] = {}
        self._forgotten: dict[str, _Registration] = {}
        """Live brokers that have not registered since the restart."""
        self._hidden: dict[tuple[str, str], Topic] = {}
        """Topics that an operator deleted here, by broker and topic; hidden while the topic is unchanged."""
        self._perms: dict[tuple[str, str], tuple[Topic, int]] = {}
        """Permissions that an operator set for a broker's topics, valid while the topic is unchanged."""
        self._tables: dict[str, dict[str, str]] = {}
        self._config = {
            _ORDER_MESSAGE_ENABLE: "false",
            "enableAllTopicList": "true",
            "enableTopicList": "true",
            "returnOrderTopicConfigToBroker": "true",
            _SUPPORT_ACTING_MASTER: "false",
        }
        self._handlers: Mapping[int, Callable[[RemotingCommand], RemotingCommand]] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._answer_route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._answer_cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._answer_all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._answer_topics_of_cluster,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_perm,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write_perm,
            RequestCode.PUT_KV_CONFIG: self._put_value,
            RequestCode.GET_KV_CONFIG: self._answer_value,
            RequestCode.DELETE_KV_CONFIG: self._delete_value,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._answer_table,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
            RequestCode.GET_NAMESRV_CONFIG: self._answer_config,
        }

    def register(self, broker_name: str, address: Host, topics: TopicTable, broker_id: int = 0) -> None:
        """Register a live broker at ``address``, whose ``topics`` are watched from now on."""
        registration = self._brokers.setdefault(broker_name, _Registration(topics))
        registration.topics = topics
        registration.addresses[broker_id] = (
            address if broker_id else self._advertised.get(broker_name, address)
        )
        self._remove(self._forgotten, broker_name, broker_id)
        self._hidden = {key: config for key, config in self._hidden.items() if key[0] != broker_name}
        self._perms = {key: known for key, known in self._perms.items() if key[0] != broker_name}

    def restart(self) -> None:
        """Forget all brokers until they register, and what operators changed about their topics.

        Connections and data on disk stay.
        """
        self._add(self._forgotten, self._brokers)
        self._brokers, self._hidden, self._perms = {}, {}, {}

    def register_forgotten(self) -> None:
        """Register the brokers that :meth:`restart` has forgotten, as live ones do within 30 s."""
        self._add(self._brokers, self._forgotten)
        self._forgotten = {}

    def unregister(self, broker_name: str, broker_id: int = 0) -> None:
        """Remove a stopped machine of a broker; with the last one, the broker's queues leave all routes."""
        for known in (self._brokers, self._forgotten):
            self._remove(known, broker_name, broker_id)

    def _add(self, known: dict[str, _Registration], more: Mapping[str, _Registration]) -> None:
        for name, registration in more.items():
            known.setdefault(name, _Registration(registration.topics)).addresses.update(
                registration.addresses
            )

    def _remove(self, known: dict[str, _Registration], broker_name: str, broker_id: int) -> None:
        registration = known.get(broker_name)
        if registration is not None:
            registration.addresses.pop(broker_id, None)
            if not registration.addresses:
                del known[broker_name]

    def route(self, topic: str) -> TopicRoute | None:
        """Return the topic's route; None if no live broker has the topic."""
        brokers, queues = [], []
        for name, registration in sorted(self._brokers.items()):
            config = self._topic(name, topic)
            if config is not None:
                addresses, perm = registration.addresses, self._perm(name, config)
                if MASTER_ID not in addresses and self._is_true(_SUPPORT_ACTING_MASTER):
                    # Every broker counts as one with enableSlaveActingMaster.
                    addresses = dict(addresses)
                    addresses[MASTER_ID] = addresses.pop(min(addresses))
                    perm &= ~PERM_WRITE
                brokers.append(_broker_data(name, addresses))
                queues.append(_queue_data(name, config, perm))
        if not brokers:
            return None
        shows_order = self._is_true(_ORDER_MESSAGE_ENABLE)
        order = self._tables.get(ORDER_TOPIC_CONFIG, {}).get(topic) if shows_order else None
        return TopicRoute(brokers=tuple(brokers), queues=tuple(queues), order_topic_conf=order)

    def handle(self, peer: Peer, command: RemotingCommand) -> list[Outgoing]:
        """Return the answer to one request; nothing for a oneway request or a response."""
        if command.is_response:
            return []
        handler = self._handlers.get(command.code, not_supported)
        try:
            answer = handler(command)
        except Refused as refused:
            answer = reply(command, refused.code, refused.remark)
        except RemoteProtocolError as error:
            answer = reply(command, ResponseCode.SYSTEM_ERROR, str(error))
        if not self._mirror_header_form:
            answer = in_json(answer)
        return [] if command.is_oneway else [Outgoing(peer, answer, command.code)]

    def connection_closed(self, _peer: Peer) -> list[Outgoing]:
        """Do nothing: no state belongs to connections."""
        return []

    def look_at_clock(self) -> list[Outgoing]:
        """Do nothing: no work depends on the time."""
        return []

    def next_deadline_s(self) -> float | None:
        """Return None, since no work is ever due."""
        return None

    # --- topics and brokers --------------------------------------------------------------------------------

    def _is_true(self, setting: str) -> bool:
        return self._config[setting].lower() == "true"

    def _topic(self, broker_name: str, topic: str) -> Topic | None:
        """Return a live broker's topic.

        None if the broker lacks it, or if it was deleted at the name server and has not changed since.
        """
        config = self._brokers[broker_name].topics.find(topic)
        return None if config is self._hidden.get((broker_name, topic)) else config

    def _topics(self, broker_names: Iterable[str]) -> list[str]:
        return sorted(
            {
                config.name
                for broker_name in broker_names
                for config in self._brokers[broker_name].topics
                if self._topic(broker_name, config.name) is not None
            }
        )

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

    def _answer_cluster_info(self, command: RemotingCommand) -> RemotingCommand:
        """Answer with all brokers' addresses; their ids are bare integers in the JSON for every client."""
        return reply(
            command,
            body=encode_cluster_info(
                _broker_data(name, registration.addresses)
                for name, registration in sorted(self._brokers.items())
            ),
        )

    def _answer_all_topics(self, command: RemotingCommand) -> RemotingCommand:
        return reply(command, body=encode_topic_list(self._topics(self._brokers)))

    def _answer_topics_of_cluster(self, command: RemotingCommand) -> RemotingCommand:
        """Answer with the cluster's topics; with none, and no error, for an unknown cluster, as in 5.3.3."""
        names = self._brokers if _required(command, "cluster") == CLUSTER_NAME else ()
        return reply(command, body=encode_topic_list(self._topics(names)))

    def _delete_topic(self, command: RemotingCommand) -> RemotingCommand:
        """Remove a topic from the routes until a broker changes or creates it, which registers it again."""
        topic = _required(command, "topic")
        if command.ext_fields.get("clusterName", CLUSTER_NAME) in {CLUSTER_NAME, ""}:
            for broker_name, registration in self._brokers.items():
                config = registration.topics.find(topic)
                if config is not None:
                    self._hidden[broker_name, topic] = config
        return reply(command)

    def _wipe_write_perm(self, command: RemotingCommand) -> RemotingCommand:
        return self._set_perms(command, "wipeTopicCount", lambda perm: perm & ~PERM_WRITE)

    def _add_write_perm(self, command: RemotingCommand) -> RemotingCommand:
        """Let all topics of the broker be read and written.

        5.3.3 does not record what was forbidden before an operator took away the right to write.
        """
        return self._set_perms(command, "addTopicCount", lambda _: PERM_READ_WRITE)

    def _set_perms(
        self, command: RemotingCommand, count_field: str, change: Callable[[int], int]
    ) -> RemotingCommand:
        name = _required(command, "brokerName")
        known = self._brokers.get(name)
        configs = [each for each in known.topics if self._topic(name, each.name)] if known else []
        for config in configs:
            self._perms[name, config.name] = config, change(self._perm(name, config))
        return reply(command, ext_fields={count_field: str(len(configs))})

    def _perm(self, broker_name: str, config: Topic) -> int:
        changed, perm = self._perms.get((broker_name, config.name), (None, 0))
        return perm if changed is config else config.perm

    # --- key-value tables and configuration ----------------------------------------------------------------

    def _put_value(self, command: RemotingCommand) -> RemotingCommand:
        table = self._tables.setdefault(_required(command, "namespace"), {})
        table[_required(command, "key")] = _required(command, "value")
        return reply(command)

    def _answer_value(self, command: RemotingCommand) -> RemotingCommand:
        namespace, key = _required(command, "namespace"), _required(command, "key")
        value = self._tables.get(namespace, {}).get(key)
        if value is None:
            raise Refused(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace} Key: {key}")
        return reply(command, ext_fields={"value": value})

    def _delete_value(self, command: RemotingCommand) -> RemotingCommand:
        self._tables.get(_required(command, "namespace"), {}).pop(_required(command, "key"), None)
        return reply(command)

    def _answer_table(self, command: RemotingCommand) -> RemotingCommand:
        namespace = _required(command, "namespace")
        table = self._tables.get(namespace)
        if table is None:
            raise Refused(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return reply(command, body=dumps_java({"table": table}))

    def _update_config(self, command: RemotingCommand) -> RemotingCommand:
        lines = command.body.decode("utf-8", "replace").splitlines()
        pairs = [line.partition("=") for line in lines if not line.startswith("#")]
        changes = {name.strip(): value.strip() for name, separator, value in pairs if separator}
        if not _UNCHANGEABLE.isdisjoint(changes):
            raise Refused(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        self._config |= changes
        return reply(command)

    def _answer_config(self, command: RemotingCommand) -> RemotingCommand:
        text = "".join(f"{name}={value}\n" for name, value in sorted(self._config.items()))
        return reply(command, body=text.encode())


def _required(command: RemotingCommand, name: str) -> str:
    value = command.ext_fields.get(name)
    if value is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the custom field <{name}> is null")
    return value


def _broker_data(name: str, addresses: Mapping[int, Host]) -> BrokerData:
    return BrokerData(
        broker_name=name,
        cluster=CLUSTER_NAME,
        addresses={
            broker_id: BrokerAddress(str(address)) for broker_id, address in sorted(addresses.items())
        },
    )


def _queue_data(name: str, config: Topic, perm: int) -> QueueData:
    return QueueData(
        broker_name=name,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=perm,
        topic_sys_flag=config.topic_sys_flag,
    )
