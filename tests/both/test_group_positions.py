"""A batch read from where one group stands to where another does, without Spark."""

from __future__ import annotations

import json

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, HeartbeatData
from tests.both.conftest import Put
from tests.helpers.batch_read import read_batch
from tests.helpers.cluster import ClusterUnderTest


def test_a_batch_is_what_one_group_has_consumed_and_another_has_not(
    cluster: ClusterUnderTest, client: BrokerClient, address: str, queue: MessageQueue, put: Put
) -> None:
    """F2, H3 ★: startingGroup, endingGroup; neither group's offset is changed."""
    put(*map(b"%d".__mod__, range(6)))
    stands = {cluster.unique_name("behind"): 2, cluster.unique_name("ahead"): 5}
    # A broker keeps offsets of groups only that it has heard of.
    consumers = tuple(ConsumerData(group_name=group) for group in stands)
    client.heartbeat(address, HeartbeatData(client_id="client-1", consumers=consumers))
    for group, offset in stands.items():
        client.update_consumer_offset(address, group, queue, offset)
    behind, ahead = stands

    def offsets(**options: str) -> list[int]:
        rows = read_batch(nameServers=cluster.name_servers, topic=queue.topic, **options)
        return [row["queueOffset"] for row in rows.select(["queueOffset"]).to_pylist()]

    begins = {"startingOffsets": "group", "startingGroup": behind}
    ends = {"endingOffsets": "group", "endingGroup": ahead}
    nobody = cluster.unique_name("nobody")

    assert offsets(**begins) == [2, 3, 4, 5]
    assert offsets(**ends) == [0, 1, 2, 3, 4]
    assert offsets(**begins, **ends) == [2, 3, 4]
    assert offsets(**ends | {"endingGroup": nobody}) == []
    late = json.dumps({queue.topic: {"broker-a": {"0": 5}}})
    assert offsets(startingOffsets=late, endingOffsets="group", endingGroup=behind) == []
    assert [client.query_consumer_offset(address, group, queue) for group in stands] == [2, 5]


def test_a_group_without_offsets_is_reported(
    cluster: ClusterUnderTest, queue: MessageQueue, put: Put, caplog: pytest.LogCaptureFixture
) -> None:
    """H3: whose name may be mistyped; everything is read, or nothing."""
    put(b"0", b"1")
    nobody = cluster.unique_name("nobody")
    told = (
        f"group {nobody} has no offset in any of 1 queue(s), so its position is before their first "
        "messages; check the group's name."
    )

    for options, count in (
        ({"startingOffsets": "group", "startingGroup": nobody}, 2),
        ({"endingOffsets": "group", "endingGroup": nobody}, 0),
    ):
        caplog.clear()
        assert len(read_batch(nameServers=cluster.name_servers, topic=queue.topic, **options)) == count
        assert told in caplog.text
