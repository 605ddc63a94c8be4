"""A group's offsets at several brokers, of which one is silent."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from pyspark_rocketmq.client.cluster import SILENT_TIMEOUT_S
from pyspark_rocketmq.errors import BrokerOffsetUnavailable
from pyspark_rocketmq.group.broker_offsets import RemoteGroup
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.wire.command import RemotingCommand
from tests.helpers.scripted_cluster import ScriptedCluster
from tests.helpers.scripted_server import Peer
from tests.helpers.wait import PATIENCE_S, wait_until

AT_A, AT_B = (MessageQueue("orders", name, 0) for name in ("broker-a", "broker-b"))


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    """``broker-a`` answers every request with the offset 7, ``broker-b`` none."""

    def answer(peer: Peer, request: RemotingCommand) -> None:
        peer.answer(request, ext_fields={"offset": "7"})

    with ScriptedCluster() as cluster:
        cluster.routes["orders"] = cluster.route({"broker-a": 1, "broker-b": 1})
        cluster.brokers["broker-a"].fault = answer
        cluster.brokers["broker-b"].fault = lambda peer, request: None
        yield cluster


def test_a_silent_broker_costs_its_own_queues_and_from_then_on_a_second(cluster: ScriptedCluster) -> None:
    """A8, F3: its routes are asked for again each time, for it may have moved."""
    options = {
        "nameServers": cluster.name_server.address, "topic": "orders", "consumerGroup": "g",
        "offsetStore": "broker:", "consumeOrderly": "false",
        "requestTimeoutMs": "3000",
    }  # fmt: skip
    group = RemoteGroup(ReadOptions.parse(options))

    for is_known in (False, True):
        cluster.route_requests.clear()
        answers = group.read([AT_A, AT_B])
        assert answers[AT_A] == 7
        assert isinstance(answers[AT_B], BrokerOffsetUnavailable)
        [waited_s] = re.findall(r"within ([\d.]+) s", str(answers[AT_B]))
        assert (float(waited_s) < 2 * SILENT_TIMEOUT_S) == is_known
        assert cluster.route_requests
    assert group.write({AT_A: 8, AT_B: 8}).keys() == {AT_B}

    cluster.brokers["broker-b"].fault = cluster.brokers["broker-a"].fault
    wait_until(lambda: group.read() == {AT_A: 7, AT_B: 7}, PATIENCE_S, reason="Both brokers' offsets")
