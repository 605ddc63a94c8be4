"""Where a replay that was interrupted goes on: at what its target has stored."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker_sim.cluster import SimCluster
from broker_sim.settings import BrokerSettings
from pyspark_rocketmq.errors import TransportError
from pyspark_rocketmq.model import MessageQueue, QueueRange
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.replay.target import TargetTopic, read_tail
from tests.source.conftest import message

TARGET = MessageQueue("copies", "broker-a", 0)


def test_the_end_of_a_slave_in_its_masters_place_is_not_that_of_the_target() -> None:
    """H3, L3: what it lacks was sent, and would be sent again."""
    settings = BrokerSettings(slave_read_enable=True)
    with SimCluster(brokers=1, replicas=1, settings=settings) as sim:
        sim.create_topic(TARGET.topic, queues=1)
        sim.put(TARGET, [message(TARGET.topic, number) for number in range(3)])
        options = ReadOptions.parse({"nameServers": sim.name_servers, "topic": "orders"})
        target = TargetTopic(options, TARGET.topic)
        source = QueueRange.between(MessageQueue("orders", "broker-a", 0), 0, 3)
        sendings = target.sendings("r1", [source])
        at_master = target.partition(TARGET)

        assert read_tail(at_master, sendings, 0).bounds.max_offset == 3
        at_slave = replace(at_master, address=sim.replica_address("broker-a"))
        with pytest.raises(TransportError, match="is listed as master of broker-a, but is a slave") as raised:
            read_tail(at_slave, sendings, 0)
        assert raised.value.retryable
