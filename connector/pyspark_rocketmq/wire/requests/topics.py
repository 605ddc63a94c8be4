"""Read the statistics and the route of a topic.

Servers write routes in standard JSON for clients with version 401 or higher, and with bare broker ids as keys
for older ones; both forms are read.

Source: RocketMQ 5.3.3 ``TopicRouteData``, namesrv ``ClientRequestProcessor.getRouteInfoByTopic``,
``remoting/protocol/admin/TopicStatsTable``, ``TopicOffset``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from pyspark_rocketmq.display import peer_text
from pyspark_rocketmq.errors import RemoteProtocolError, StaticTopic
from pyspark_rocketmq.model import (
    BrokerAddress,
    BrokerData,
    MessageQueue,
    QueueBounds,
    QueueData,
    TopicRoute,
    ordered_queues,
)
from pyspark_rocketmq.wire.fastjson import (
    JsonObject,
    check_json_size,
    checked_int64,
    read_object,
    short_repr,
)
from pyspark_rocketmq.wire.requests.bodies import queue_from_json

_WHERE: Final = "TopicStatsTable.offsetTable"
_NAME: Final = r'"([^"\\\x00-\x1f\x7f-\U0010ffff]*)"'
# Only as many digits as always fit the type, so that no conversion needs a check.
_INT32: Final = r"(0|-?[1-9][0-9]{0,8})"
_INT64: Final = r"(0|-?[1-9][0-9]{0,17})"
_ENTRY: Final = re.compile(
    rf'\{{"brokerName":{_NAME},"queueId":{_INT32},"topic":{_NAME}\}}:'
    rf'\{{"lastUpdateTimestamp":{_INT64},"maxOffset":{_INT64},"minOffset":{_INT64}\}}'
)
_GROUPS: Final = _ENTRY.groups
_BEFORE: Final = '{"offsetTable":{'
# Brokers before 5.3.3 have no such member.
_BEHIND: Final = re.compile(r'\}(?:,"topicPutTps":[0-9]+\.[0-9]+)?\}')

_BROKER_ID: Final = re.compile(r"-?[0-9]{1,19}")
_ORDER_CONF: Final = re.compile(r"([^:;]+:[0-9]{1,9}(;|$))*")
MAX_QUEUES: Final = 65_536
"""Maximum number of read queues of one topic on all its brokers together. The same limit counts for write
queues, and for queues in the order configuration. A list of so many takes some ten megabytes. A route
contains only numbers, so a short route could announce more queues than fit into memory: they are counted
before any is created."""


def decode_topic_stats(body: bytes) -> dict[MessageQueue, QueueBounds]:
    """Read the offset bounds of each queue that a topic has on one broker.

    A topic may have a thousand queues, so one regular expression reads the form that Java writes. The JSON
    reader reads every other form; both give the same results.

    Raises:
        RemoteProtocolError: If the body is malformed, or would take too much memory.
    """
    check_json_size(body)
    stats = _decode_as_java_writes(body)
    return _decode_any_form(body) if stats is None else stats


def _decode_as_java_writes(body: bytes) -> dict[MessageQueue, QueueBounds] | None:
    """Return the statistics, or None if the body is not exactly in Java's own form."""
    if not body.isascii():
        return None
    # Text between the entries, then the groups of an entry, and so on; text at the end.
    parts = _ENTRY.split(body.decode())
    between = parts[:: _GROUPS + 1]
    is_expected = between[0] == _BEFORE and _BEHIND.fullmatch(between[-1]) and set(between[1:-1]) <= {","}
    if len(between) == 1 or not is_expected:
        return None
    broker_names, queue_ids, topics, updated, maximum, minimum = (
        parts[group :: _GROUPS + 1] for group in range(1, _GROUPS + 1)
    )
    queues = map(MessageQueue, topics, broker_names, map(int, queue_ids))
    bounds = map(QueueBounds, map(int, minimum), map(int, maximum), map(int, updated))
    return dict(zip(queues, bounds, strict=True))


def _decode_any_form(body: bytes) -> dict[MessageQueue, QueueBounds]:
    return {
        queue_from_json(key, _WHERE): _bounds_from_json(value)
        for key, value in read_object(body, "TopicStatsTable").pairs("offsetTable")
    }


def _bounds_from_json(value: Any) -> QueueBounds:
    try:
        minimum, maximum = value["minOffset"], value["maxOffset"]
        updated = value.get("lastUpdateTimestamp", 0)
    except (KeyError, TypeError, AttributeError) as exc:
        raise RemoteProtocolError(
            f"{_WHERE} has an entry that is not a TopicOffset: {short_repr(value)}."
        ) from exc
    return QueueBounds(
        min_offset=checked_int64(minimum, _WHERE),
        max_offset=checked_int64(maximum, _WHERE),
        last_update_timestamp=checked_int64(updated, _WHERE),
    )


def decode_route(body: bytes, topic: str = "") -> TopicRoute:
    """Read the body of the answer to 105 GET_ROUTEINFO_BY_TOPIC; errors name ``topic``.

    Raises:
        RemoteProtocolError: If the body is not a route, or announces more than ``MAX_QUEUES``.
        StaticTopic: If the topic is static: its logical queues are mapped to brokers.

    Source: ``MQClientInstance.topicRouteData2EndpointsForStaticTopic``.
    """
    route = read_object(body, "TopicRouteData")
    if mapped := route.text_pairs("topicQueueMappingByBroker"):
        raise StaticTopic(topic, [broker_name for broker_name, _ in mapped])
    order_topic_conf = route.optional_text("orderTopicConf") or None
    if order_topic_conf is not None and _ORDER_CONF.fullmatch(order_topic_conf) is None:
        raise RemoteProtocolError(
            f"The order configuration of topic {short_repr(topic)} (TopicRouteData.orderTopicConf) must look "
            f"like 'broker:queues;…', but is {short_repr(order_topic_conf)}. Correct it: `mqadmin "
            "updateOrderConf -n NAMESRV -t TOPIC -m put -v BROKER:QUEUES`."
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
    """Refuse more than ``MAX_QUEUES`` queues; the error names the broker with most of them."""
    total = sum(count for _, count in shares)
    if total > MAX_QUEUES:
        name, count = max(shares, key=lambda share: share[1])
        raise RemoteProtocolError(
            f"The route of topic {short_repr(topic)} announces {total} queues ({field}), {count} of them on "
            f"broker {short_repr(name)}; at most {MAX_QUEUES} queues of one topic are accepted. Correct the "
            "topic's number of queues (`mqadmin updateTopic -n NAMESRV -c CLUSTER -t TOPIC -r QUEUES -w "
            "QUEUES`) or its order configuration."
        )


def broker_from_json(data: JsonObject) -> BrokerData:
    """Read a broker's name, cluster and addresses."""
    addresses: dict[int, BrokerAddress] = {}
    for broker_id, address in data.pairs("brokerAddrs"):
        if type(broker_id) is not str or _BROKER_ID.fullmatch(broker_id) is None or type(address) is not str:
            raise RemoteProtocolError(
                f"{data.where}.brokerAddrs must map broker ids to addresses, but maps "
                f"{short_repr(broker_id)} to {short_repr(address)}."
            )
        # A negative id is that of a broker that waits for its controller, with a log that may be another one.
        if int(broker_id) >= 0:
            # Replace odd characters, which no address has, because addresses are in log lines.
            addresses[int(broker_id)] = BrokerAddress(peer_text(address))
    return BrokerData(
        broker_name=data.text("brokerName"), cluster=data.text("cluster", ""), addresses=addresses
    )


def _queue(data: JsonObject) -> QueueData:
    # Servers before 4.9 misspell the field's name.
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
            f"{data.where}: broker {short_repr(queue.broker_name)} has a negative number of queues."
        )
    return queue
