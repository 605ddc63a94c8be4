"""The route of a topic: which brokers have how many of its queues.

Servers write it in standard JSON for clients that show version 401 or higher, with bare broker ids as keys for
older ones; both are read. A route names numbers of queues only, so a short one could announce more queues than fit into
memory: they are counted before any is made.

Source: RocketMQ 5.3.3 ``TopicRouteData``, namesrv ``ClientRequestProcessor.getRouteInfoByTopic``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import BrokerAddress, BrokerData, QueueData, TopicRoute, ordered_queues
from pyspark_rocketmq.peer_text import peer_text
from pyspark_rocketmq.wire.brief import brief
from pyspark_rocketmq.wire.json_fields import JsonObject, read_object
from pyspark_rocketmq.wire.json_quirks import dumps_java, dumps_standard

_BROKER_ID: Final = re.compile(r"-?[0-9]{1,19}")
_ORDER_CONF: Final = re.compile(r"([^:;]+:[0-9]{1,9}(;|$))*")
MAX_QUEUES: Final = 65_536
"""Queues of one topic to read, and to write, on all its brokers together; a list of them takes some ten megabytes."""


def decode_route(body: bytes, topic: str = "") -> TopicRoute:
    """Read the body of the answer to 105 GET_ROUTEINFO_BY_TOPIC.

    Args:
        body: The answer's.
        topic: Whose route it is, for errors.

    Raises:
        RemoteProtocolError: If the body is not a route, or announces more than ``MAX_QUEUES``.
    """
    route = read_object(body, "TopicRouteData")
    order_topic_conf = route.optional_text("orderTopicConf") or None
    if order_topic_conf is not None and _ORDER_CONF.fullmatch(order_topic_conf) is None:
        raise RemoteProtocolError(
            f"TopicRouteData.orderTopicConf is no 'broker:queues;…': {brief(order_topic_conf)}."
        )
    queues = tuple(map(_queue, route.objects("queueDatas")))
    _check_count(topic, "readQueueNums", [(data.broker_name, data.read_queue_nums) for data in queues])
    _check_count(topic, "writeQueueNums", [(data.broker_name, data.write_queue_nums) for data in queues])
    _check_count(topic, "orderTopicConf", ordered_queues(order_topic_conf or ""))
    return TopicRoute(
        brokers=tuple(map(broker_from_json, route.objects("brokerDatas"))),
        queues=queues,
        order_topic_conf=order_topic_conf,
    )


def _check_count(topic: str, field: str, shares: Sequence[tuple[str, int]]) -> None:
    """Refuse more queues than a topic has; the broker named is the one with most of them."""
    total = sum(count for _, count in shares)
    if total > MAX_QUEUES:
        name, count = max(shares, key=lambda share: share[1])
        raise RemoteProtocolError(
            f"The route of topic {brief(topic)} announces {total} queues ({field}), {count} of them on broker "
            f"{brief(name)}; at most {MAX_QUEUES} queues of one topic are taken. Correct the topic's number of "
            "queues (mqadmin updateTopic) or its order configuration."
        )


def broker_from_json(data: JsonObject) -> BrokerData:
    """Read a broker's name, cluster and addresses.

    Raises:
        RemoteProtocolError: If a field is missing or of another type.
    """
    addresses: dict[int, BrokerAddress] = {}
    for broker_id, address in data.pairs("brokerAddrs"):
        if type(broker_id) is not str or _BROKER_ID.fullmatch(broker_id) is None or type(address) is not str:
            raise RemoteProtocolError(
                f"{data.where}.brokerAddrs maps no broker id to an address: {brief(broker_id)} to {brief(address)}."
            )
        # No address has such characters in it, and log lines have addresses.
        addresses[int(broker_id)] = BrokerAddress(peer_text(address))
    return BrokerData(
        broker_name=data.text("brokerName"), cluster=data.text("cluster", ""), addresses=addresses
    )


def _queue(data: JsonObject) -> QueueData:
    # Servers before 4.9 misspell it.
    sys_flag = data.integer("topicSynFlag", 0)
    queue = QueueData(
        broker_name=data.text("brokerName"),
        read_queue_nums=data.integer("readQueueNums"),
        write_queue_nums=data.integer("writeQueueNums"),
        perm=data.integer("perm"),
        topic_sys_flag=data.integer("topicSysFlag", sys_flag),
    )
    if min(queue.read_queue_nums, queue.write_queue_nums) < 0:
        raise RemoteProtocolError(
            f"{data.where}: broker {brief(queue.broker_name)} has a negative number of queues."
        )
    return queue


def encode_route(route: TopicRoute, *, standard_json: bool) -> bytes:
    """Write the body of the answer to 105 GET_ROUTEINFO_BY_TOPIC.

    Args:
        route: What to write.
        standard_json: Quote the broker ids, as for clients of version 401 and higher.
    """
    fields: dict[str, object] = {
        "brokerDatas": [
            {
                "brokerAddrs": dict(sorted(broker.addresses.items())),
                "brokerName": broker.broker_name,
                "cluster": broker.cluster,
                "enableActingMaster": False,
            }
            for broker in route.brokers
        ],
        "filterServerTable": {},
    }
    if route.order_topic_conf is not None:
        fields["orderTopicConf"] = route.order_topic_conf
    fields["queueDatas"] = [
        {
            "brokerName": queue.broker_name,
            "perm": queue.perm,
            "readQueueNums": queue.read_queue_nums,
            "topicSysFlag": queue.topic_sys_flag,
            "writeQueueNums": queue.write_queue_nums,
        }
        for queue in route.queues
    ]
    return dumps_standard(fields) if standard_json else dumps_java(fields)
