"""Looks at single messages: brokers at once, and what they report besides is not lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consume.not_now import REFUSED_PAUSE_S
from pyspark_rocketmq.errors import RocketMQError, SystemBusy
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, QueueBounds
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.message_lookup import MessageLookup
from pyspark_rocketmq.stored_values import LastMessage
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.messages import StoredMessage, body_crc
from tests.helpers.fake_clock import FakeClock
from tests.helpers.scripted_server import Peer, ScriptedServer
from tests.helpers.stored_messages import encode_stored_message
from tests.helpers.wait import PATIENCE_S
from tests.source.test_planner import A0, A1, B0

END = 10


class OneBroker(ScriptedServer):
    """Has messages 0 to 9 in each queue, the message at offset n stored at n ms;
    searches by time as brokers before 5 do.
    """

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.resets: dict[int, int] = {}
        """Targets by queue id, given once."""
        self.refuses = False
        self.refused_queue: int | None = None
        self.before_answer: Callable[[], object] = lambda: None

    def _answer(self, peer: Peer, request: RemotingCommand) -> None:
        self.before_answer()
        queue_id = int(request.ext_fields.get("queueId", "-1"))
        if self.refuses or queue_id == self.refused_queue:
            peer.answer(request, ResponseCode.SYSTEM_BUSY, remark="busy")
        elif request.code == RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
            # The nearest one, which is the one before.
            peer.answer(request, ext_fields={"offset": str(int(request.ext_fields["timestamp"]) - 1)})
        else:
            self._answer_pull(peer, request)

    def _answer_pull(self, peer: Peer, request: RemotingCommand) -> None:
        offset, queue_id = (int(request.ext_fields[name]) for name in ("queueOffset", "queueId"))
        target = self.resets.pop(queue_id, None)
        fields = {"minOffset": "0", "maxOffset": str(END), "suggestWhichBrokerId": "0"}
        if target is not None:
            told = fields | {"nextBeginOffset": str(target)}
            peer.answer(request, ResponseCode.PULL_OFFSET_MOVED, ext_fields=told)
        else:
            fields |= {"nextBeginOffset": str(offset + 1)}
            peer.answer(request, ext_fields=fields, body=_stored(queue_id, offset))


def _stored(queue_id: int, offset: int) -> bytes:
    return encode_stored_message(
        StoredMessage(
            topic="orders",
            queue_id=queue_id,
            queue_offset=offset,
            commit_log_offset=offset * 100,
            body=b"",
            sys_flag=0,
            properties_data=b"",
            born_timestamp=0,
            born_host="127.0.0.1:1",
            store_timestamp=offset,
            store_host="127.0.0.1:2",
            body_crc=body_crc(b""),
        )
    )


class Looks:
    """A watch over ``broker-a`` and ``broker-b``."""

    def __init__(self, pool: ChannelPool) -> None:
        options = {
            "nameServers": "n:1",
            "topic": "orders",
            "consumerGroup": "g",
            "offsetStore": "delta:/unused",
        }
        self.clock = FakeClock()
        self.watch = MessageLookup(ReadOptions.parse(options), pool, self.clock)
        self.brokers = {"broker-a": OneBroker(), "broker-b": OneBroker()}
        self.addresses = {name: BrokerAddress(broker.address) for name, broker in self.brokers.items()}

    def at(self, **places: int) -> dict[MessageQueue, LastMessage | RocketMQError | None]:
        queues = {"A0": A0, "A1": A1, "B0": B0}
        wanted = {queues[name]: offset for name, offset in places.items()}
        found = self.watch.look(wanted, self.addresses)
        return {
            queue: each if isinstance(each, RocketMQError) else each.message for queue, each in found.items()
        }


@pytest.fixture
def looks() -> Iterator[Looks]:
    with ChannelPool(SystemClock()) as pool:
        looks = Looks(pool)
        yield looks
        for broker in looks.brokers.values():
            broker.close()


def test_brokers_are_looked_at_at_once(looks: Looks) -> None:
    """C3: each of them answers when both have been asked,
    so that one that is silent costs its time-out once.
    """
    both = threading.Barrier(2, timeout=PATIENCE_S)
    for broker in looks.brokers.values():
        broker.before_answer = both.wait

    assert looks.at(A0=3, B0=5) == {A0: LastMessage(3, 3, 300), B0: LastMessage(5, 5, 500)}


def test_a_reset_reported_with_a_look_is_kept_when_another_queue_cannot_be_looked_at(
    looks: Looks,
) -> None:
    """F5: of this broker or of another."""
    looks.brokers["broker-a"].resets = {0: 2}
    looks.brokers["broker-b"].refuses = True

    found = looks.at(A0=3, A1=3, B0=5)

    assert found[A1] == LastMessage(3, 3, 300)
    assert isinstance(found[B0], SystemBusy)
    assert looks.watch.resets() == {A0: 2}
    assert looks.watch.resets() == {}
    looks.clock.advance(REFUSED_PAUSE_S)
    looks.brokers["broker-b"].refuses = False
    assert looks.at(A0=3) == {A0: LastMessage(3, 3, 300)}


def test_a_queue_whose_look_is_refused_rests_and_the_broker_s_others_are_looked_at(looks: Looks) -> None:
    """A8, D3: as ``PullCallback.onException`` pulls again 3 s later, for that queue only."""
    looks.brokers["broker-a"].refused_queue = 0

    first = looks.at(A0=3, A1=3)
    looks.brokers["broker-a"].refused_queue = None

    assert first[A1] == LastMessage(3, 3, 300)
    assert looks.at(A0=3, A1=3)[A0] is first[A0]
    looks.clock.advance(REFUSED_PAUSE_S)
    assert looks.at(A0=3) == {A0: LastMessage(3, 3, 300)}


def test_a_reset_reported_while_the_next_generation_is_looked_for_is_kept(
    looks: Looks,
) -> None:
    """F5, F4: and the message after it is seen all the same."""
    looks.brokers["broker-a"].resets = {0: 2}

    start = looks.watch.stored_after(A0, looks.addresses["broker-a"], 4, QueueBounds(0, END))

    assert start == 5
    assert looks.watch.resets() == {A0: 2}
