from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from pyspark_rocketmq.client.process_lines import close_idle_lines
from pyspark_rocketmq.datasource.partition import QueuePartition
from pyspark_rocketmq.datasource.queue_puller import QueuePuller
from pyspark_rocketmq.errors import BrokerError, ChannelClosed, DataLoss, SystemBusy
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, QueueRange
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from tests.helpers.fake_clock import FakeClock
from tests.helpers.scripted_server import Peer, ScriptedServer

QUEUE = MessageQueue("orders", "broker-a", 3)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """A broker of which every message is its own queue offset, in text."""
    with ScriptedServer(answer_pull) as server:
        yield server
        close_idle_lines()


def partition(server: ScriptedServer, start: int, end: int) -> QueuePartition:
    return QueuePartition(
        planned=QueueRange(queue=QUEUE, start=start, end=end),
        address=BrokerAddress(server.address),
        subscription="*",
        consumer_group="g",
        with_marker=False,
        fail_on_data_loss=True,
        pull_batch_size=8,
        pulls_in_flight=4,
        request_timeout_s=5.0,
        retry_timeout_s=1.0,
    )


def answer_pull(peer: Peer, request: RemotingCommand, *, at_most: int = 8) -> None:
    start = int(request.ext_fields["queueOffset"])
    count = min(int(request.ext_fields["maxMsgNums"]), at_most)
    body = "".join(f"{queue_offset} " for queue_offset in range(start, start + count))
    answer(peer, request, 0, next_begin_offset=start + count, body=body.encode())


def answer(
    peer: Peer, request: RemotingCommand, code: int, *, next_begin_offset: int, body: bytes = b""
) -> None:
    fields = {
        "nextBeginOffset": str(next_begin_offset),
        "minOffset": "0",
        "maxOffset": "1000",
        "suggestWhichBrokerId": "0",
    }
    peer.answer(request, code, ext_fields=fields, body=body)


def pulled(puller: QueuePuller) -> list[int]:
    """Queue offsets in the order in which they were handed out."""
    return [int(text) for pieces in puller.pieces() for piece in pieces for text in piece.body.split()]


class Pauses:
    """Sleeps by moving the clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.taken: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.taken.append(round(seconds, 3))
        self.clock.advance(seconds)

    def puller(self, wanted: QueuePartition) -> QueuePuller:
        return QueuePuller(wanted, clock=self.clock, sleep=self)


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


def test_a_range_arrives_once_and_in_order(server: ScriptedServer) -> None:
    """D1, A4"""
    assert pulled(QueuePuller(partition(server, 5, 203))) == list(range(5, 203))


def test_an_answer_that_is_short_is_completed(server: ScriptedServer) -> None:
    """A4: a broker gives 8 of 32 from disk."""
    server.script = lambda peer, request: answer_pull(peer, request, at_most=3)

    assert pulled(QueuePuller(partition(server, 0, 50))) == list(range(50))


def test_tasks_of_one_process_share_a_connection_one_after_another(server: ScriptedServer) -> None:
    for start in (0, 50, 100):
        assert pulled(QueuePuller(partition(server, start, start + 50))) == list(range(start, start + 50))

    assert server.connection_count == 1


def test_a_reader_that_stops_half_way_leaves_no_connection_behind(server: ScriptedServer) -> None:
    """A LIMIT or a killed task: unread answers must not reach the next task."""
    seen: list[RemotingCommand] = []

    def answer_two(peer: Peer, request: RemotingCommand) -> None:
        seen.append(request)
        if len(seen) <= 2:
            answer(peer, request, 0, next_begin_offset=8 * len(seen), body=b"x" * (4 << 20))

    server.script = answer_two
    pieces = QueuePuller(partition(server, 0, 80)).pieces()
    next(pieces)

    pieces.close()

    assert server.next_peer().has_ended.wait(5)


def test_a_busy_broker_is_asked_again_after_growing_pauses(server: ScriptedServer, pauses: Pauses) -> None:
    refusals = 3

    def refuse(peer: Peer, request: RemotingCommand) -> None:
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            peer.answer(request, ResponseCode.SYSTEM_BUSY, remark="[TIMEOUT_CLEAN_QUEUE]")
        else:
            answer_pull(peer, request)

    server.script = refuse

    assert pulled(pauses.puller(replace(partition(server, 0, 50), pulls_in_flight=1))) == list(range(50))
    assert pauses.taken == [0.05, 0.1, 0.2]


def test_a_broken_connection_is_made_anew_and_nothing_is_lost_or_doubled(
    server: ScriptedServer, pauses: Pauses
) -> None:
    """A2"""
    count = 0

    def break_once(peer: Peer, request: RemotingCommand) -> None:
        nonlocal count
        count += 1
        if count == 6:
            peer.close()
        elif not peer.has_ended.is_set():
            answer_pull(peer, request)

    server.script = break_once

    assert pulled(pauses.puller(partition(server, 0, 100))) == list(range(100))
    assert server.connection_count == 2


def test_a_broker_that_stays_away_ends_the_task_with_the_reason(
    server: ScriptedServer, pauses: Pauses
) -> None:
    server.script = lambda peer, request: peer.close()

    with pytest.raises(ChannelClosed):
        pulled(pauses.puller(partition(server, 0, 100)))

    assert sum(pauses.taken) == pytest.approx(1.0)


def test_a_success_gives_the_patience_back(server: ScriptedServer, pauses: Pauses) -> None:
    """Every second pull is refused; no single trouble lasts, so the task never gives up."""
    count = 0

    def refuse_every_second(peer: Peer, request: RemotingCommand) -> None:
        nonlocal count
        count += 1
        if count % 2:
            peer.answer(request, ResponseCode.SYSTEM_BUSY, remark="")
        else:
            answer_pull(peer, request)

    server.script = refuse_every_second

    wanted = replace(partition(server, 0, 400), pulls_in_flight=1)
    assert pulled(pauses.puller(wanted)) == list(range(400))
    assert sum(pauses.taken) > wanted.retry_timeout_s


def test_a_refusal_is_told_at_once(server: ScriptedServer, pauses: Pauses) -> None:
    server.script = lambda peer, request: peer.answer(request, ResponseCode.NO_PERMISSION, remark="no")

    with pytest.raises(BrokerError, match="no"):
        pulled(pauses.puller(partition(server, 0, 100)))

    assert pauses.taken == []


def test_nothing_where_something_was_planned_is_waited_for(server: ScriptedServer, pauses: Pauses) -> None:
    """A broker that recovers may not have its last messages yet."""
    server.script = lambda peer, request: answer(
        peer, request, ResponseCode.PULL_NOT_FOUND, next_begin_offset=0
    )

    with pytest.raises(SystemBusy, match="nothing at offset"):
        pulled(pauses.puller(partition(server, 0, 100)))


def lose_below(first: int) -> Callable[[Peer, RemotingCommand], None]:
    def script(peer: Peer, request: RemotingCommand) -> None:
        if int(request.ext_fields["queueOffset"]) < first:
            answer(peer, request, ResponseCode.PULL_OFFSET_MOVED, next_begin_offset=first)
        else:
            answer_pull(peer, request)

    return script


def test_messages_that_are_gone_are_data_loss(server: ScriptedServer) -> None:
    """F4"""
    server.script = lose_below(20)

    with pytest.raises(DataLoss, match="0 \\(inclusive\\) to 1000"):
        pulled(QueuePuller(partition(server, 0, 100)))


def test_messages_that_are_gone_are_skipped_on_demand(server: ScriptedServer) -> None:
    """F4"""
    server.script = lose_below(24)

    puller = QueuePuller(replace(partition(server, 0, 100), fail_on_data_loss=False))

    assert pulled(puller) == list(range(24, 100))
