"""Offsets at brokers before 5.0, which answer 0 for every empty or young queue, whatever they are asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import BrokerOffsetUnavailable
from pyspark_rocketmq.group.broker_offsets import RemoteBrokerOffsets
from pyspark_rocketmq.model import BrokerAddress, MessageQueue
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from tests.helpers.scripted_server import Peer, ScriptedServer
from tests.helpers.wait import PATIENCE_S

QUEUES = [MessageQueue("orders", "broker-a", queue_id) for queue_id in range(4)]
OF_4_9_7, OF_5_0_0, OF_5_3_3 = 407, 413, 475


class OldBroker:
    """Answers 14 with the offset it has or else 0, and 43 with all its offsets, or with ``refusal``."""

    def __init__(self) -> None:
        self.version = OF_4_9_7
        self.offsets = {1: 0, 2: 7}
        self.more = b""
        self.refusal: int | None = None
        self.listed = 0

    def __call__(self, peer: Peer, request: RemotingCommand) -> None:
        if request.code == RequestCode.GET_ALL_CONSUMER_OFFSET:
            self.listed += 1
            offsets = ",".join(f"{queue_id}:{offset}" for queue_id, offset in self.offsets.items())
            of_group = f'"orders@h":{{3:0}},"orders@g":{{{offsets}}}'.encode() if self.offsets else b""
            body = b'{"offsetTable":{' + self.more + of_group + b"}}"
            answer = request.response(self.refusal or 0, body=b"" if self.refusal else body)
        else:
            offset = self.offsets.get(int(request.ext_fields["queueId"]), 0)
            answer = request.response(0, ext_fields={"offset": f"{offset}"})
        peer.send(replace(answer, version=self.version))


@pytest.fixture
def broker() -> OldBroker:
    return OldBroker()


@pytest.fixture
def offsets(broker: OldBroker) -> Iterator[RemoteBrokerOffsets]:
    with ScriptedServer(broker) as server, ChannelPool(SystemClock()) as pool:
        brokers = BrokerClient(pool, SystemClock(), request_timeout_s=PATIENCE_S)
        yield AtOneServer("g", brokers, server.address)


class AtOneServer(RemoteBrokerOffsets):
    """Offsets at one broker."""

    def __init__(self, group: str, brokers: BrokerClient, address: str) -> None:
        super().__init__(group, brokers)
        self._at = {"broker-a": BrokerAddress(address)}

    def seen(self) -> dict[MessageQueue, int]:
        return self.read(QUEUES, self._at)


def test_only_stored_offsets_count(broker: OldBroker, offsets: AtOneServer) -> None:
    """F2, F3: one list for all queues; a 0 that is known to be stored is not looked up again."""
    assert offsets.seen() == {QUEUES[1]: 0, QUEUES[2]: 7}
    assert broker.listed == 1

    broker.offsets |= {0: 0, 3: 5}
    assert offsets.seen() == {QUEUES[0]: 0, QUEUES[1]: 0, QUEUES[2]: 7, QUEUES[3]: 5}
    assert broker.listed == 2
    assert offsets.seen()[QUEUES[0]] == 0
    assert broker.listed == 2


def test_a_broker_without_any_offset_has_none(broker: OldBroker, offsets: AtOneServer) -> None:
    """F3"""
    broker.offsets = {}
    assert offsets.seen() == {}


def test_an_offset_that_was_stored_meanwhile_counts(broker: OldBroker, offsets: AtOneServer) -> None:
    """F2: another member may begin between the two requests."""

    def later(peer: Peer, request: RemotingCommand) -> None:
        if request.code == RequestCode.GET_ALL_CONSUMER_OFFSET:
            broker.offsets[3] = 1000
        broker(peer, request)

    with ScriptedServer(later) as server:
        offsets._at = {"broker-a": BrokerAddress(server.address)}
        assert offsets.seen() == {QUEUES[1]: 0, QUEUES[2]: 7, QUEUES[3]: 1000}


def test_the_offsets_of_many_other_groups_do_no_harm(broker: OldBroker, offsets: AtOneServer) -> None:
    """F3: a broker keeps those of groups that are gone; all of them are too many to parse."""
    of_one = "{" + ",".join(f"{queue_id}:{10**9}" for queue_id in range(16)) + "}"
    broker.more = b"".join(f'"topic-{number}@group-{number}":{of_one},'.encode() for number in range(20_000))

    assert offsets.seen() == {QUEUES[1]: 0, QUEUES[2]: 7}


def test_a_broker_that_lists_nothing_is_believed(broker: OldBroker, offsets: AtOneServer) -> None:
    """F2: as Java's client believes it."""
    broker.refusal = ResponseCode.NO_PERMISSION
    assert offsets.seen() == {QUEUES[0]: 0, QUEUES[1]: 0, QUEUES[2]: 7, QUEUES[3]: 0}


def test_a_busy_broker_is_asked_again_later(broker: OldBroker, offsets: AtOneServer) -> None:
    """F3: no answer is no first start."""
    broker.refusal = ResponseCode.SYSTEM_BUSY
    with pytest.raises(BrokerOffsetUnavailable):
        offsets.seen()


@pytest.mark.parametrize("version", [0, OF_5_0_0, OF_5_3_3])
def test_a_0_of_another_broker_is_stored(broker: OldBroker, offsets: AtOneServer, version: int) -> None:
    """F2: 5.0 and later do as they are asked; a version that is not given decides nothing."""
    broker.version = version
    assert offsets.seen()[QUEUES[3]] == 0
    assert broker.listed == 0
