"""Thousands of connections to a simulated broker, most of which break: neither side may keep anything of them."""

from __future__ import annotations

import logging
import operator
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from itertools import cycle, islice
from typing import Any, Final, NamedTuple

from broker_sim.cluster import SimCluster
from fuzz.reconnects import (
    QUESTION,
    SOON_S,
    Held,
    ask,
    ask_from_threads,
    come_and_go,
    pull,
    settled,
    tls_to_plain,
)
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.command import RemotingCommand, encode_frame
from pyspark_rocketmq.wire.fastjson import dumps_java
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, HeartbeatData
from pyspark_rocketmq.wire.subscription import build_subscription

_BROKER: Final = "broker-a"
_TOPIC: Final = "T"
_GROUP: Final = "G"
_FAULT_EVERY: Final = 4
_RESET: Final = struct.pack("ii", 1, 0)
_FAULTS: Final[tuple[tuple[str, int | None, dict[str, Any]], ...]] = (
    ("refuse", None, {}),
    ("drop-before", QUESTION.code, {}),
    ("drop-after", QUESTION.code, {}),
    ("cut", QUESTION.code, {"keep_bytes": 9}),
    ("corrupt", QUESTION.code, {"at": 0, "size": 2}),
    ("twice", QUESTION.code, {}),
    ("drop-after", RequestCode.HEART_BEAT, {}),
    ("drop-before", RequestCode.PULL_MESSAGE, {}),
    ("go-away", QUESTION.code, {}),
)
_HEARTBEAT: Final = RemotingCommand(
    code=RequestCode.HEART_BEAT,
    body=dumps_java(
        HeartbeatData(
            client_id="c",
            consumers=(
                ConsumerData(
                    group_name=_GROUP, subscriptions=(build_subscription(_TOPIC, "*", sub_version=1),)
                ),
            ),
        )
    ),
)
_HELD_PULL: Final = RemotingCommand(
    code=RequestCode.PULL_MESSAGE,
    ext_fields={
        "consumerGroup": _GROUP, "topic": _TOPIC, "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "6",
        "commitOffset": "0", "suspendTimeoutMillis": "60000", "subscription": "*", "subVersion": "1", "expressionType": "TAG",
    },
)  # fmt: skip


class HeldByBoth(NamedTuple):
    """Resources of the process, which contains both sides, and the broker's state of its clients."""

    process: Held
    connections: int
    held_pulls: int
    members: int

    @classmethod
    def now(cls, cluster: SimCluster) -> HeldByBoth:
        """Count."""
        membership = cluster.broker(_BROKER).state.membership
        members = cluster.call(lambda: len(membership.members(_GROUP)))
        return cls(Held.now(), cluster.connections(_BROKER), cluster.held_pulls(), members)

    def is_at_most(self, before: HeldByBoth) -> bool:
        """Implement :meth:`fuzz.reconnects.Countable.is_at_most`."""
        known, at_first = self[1:], before[1:]
        return self.process.is_at_most(before.process) and all(map(operator.le, known, at_first))


def reconnect_to_simulator(count: int) -> tuple[HeldByBoth, HeldByBoth]:
    """Connect ``count`` times with every kind of client, every fourth time with a fault; what was held before, after.

    Raises:
        AssertionError: If a client ended in anything but an answer or an error of ours, if a request was not called
            back once, or if the broker then answers nobody.
    """
    clients: tuple[Callable[[str], object], ...] = (
        *(_consume, ask, pull, come_and_go, _reset) * 2,
        ask_from_threads,
        tls_to_plain(),
    )
    log = logging.getLogger("broker_sim")
    level = log.level
    with SimCluster() as cluster:
        log.setLevel(logging.CRITICAL)
        cluster.create_topic(_TOPIC, queues=1)
        address = cluster.broker_addresses[_BROKER]
        before = HeldByBoth.now(cluster)
        faults = cycle(_FAULTS)
        for number, client in enumerate(islice(cycle(clients), count)):
            if number % _FAULT_EVERY == 0:
                name, code, options = next(faults)
                cluster.faults.add(name, on=code, **options)
            with suppress(RocketMQError):
                client(address)
        cluster.faults.clear()
        # A broker also holds the pulls of connections that are gone, until a message comes.
        cluster.put(MessageQueue(_TOPIC, _BROKER, 0), [Message(topic=_TOPIC, body=b"x")])
        ask(address)
        after = settled(lambda: HeldByBoth.now(cluster), before)
        log.setLevel(level)
    return before, after


def _consume(address: str) -> None:
    """Leave a group without unregistering while the broker holds the member's pull."""
    ask(address, _HEARTBEAT, _HELD_PULL)


def _reset(address: str) -> None:
    """Send half a frame, then reset the connection."""
    host, _, port = address.rpartition(":")
    with suppress(ConnectionError), socket.create_connection((host, int(port)), timeout=SOON_S) as connected:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        connected.sendall(encode_frame(_HELD_PULL) + encode_frame(QUESTION)[:-3])
