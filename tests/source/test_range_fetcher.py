from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator

import pytest

from pyspark_rocketmq.client.pull_connection import close_idle_connections
from pyspark_rocketmq.consume.fetch_window import QueueReset, RangeWindow, TailLost
from pyspark_rocketmq.errors import BrokerError, ChannelClosed, DataLoss, RocketMQError, SystemBusy
from pyspark_rocketmq.model import MessageQueue, QueueRange
from pyspark_rocketmq.source.ranges import QueuePartition
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand, encode_frame
from tests.helpers.fake_clock import TickingClock
from tests.helpers.partitions import changed, partition_of
from tests.helpers.pauses import Pauses
from tests.helpers.range_fetcher import RangeFetcher
from tests.helpers.scripted_server import Peer, ScriptedServer
from tests.helpers.wait import PATIENCE_S

QUEUE = MessageQueue("orders", "broker-a", 3)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """A broker of which every message is its own queue offset, in text."""
    with ScriptedServer(answer_pull) as server:
        yield server
        close_idle_connections()


def partition(server: ScriptedServer, start: int, end: int) -> QueuePartition:
    return partition_of(QueueRange.between(QUEUE, start, end), server.address)


def answer_pull(peer: Peer, request: RemotingCommand, *, at_most: int = 8) -> None:
    start = int(request.ext_fields["queueOffset"])
    count = min(int(request.ext_fields["maxMsgNums"]), at_most)
    body = "".join(f"{queue_offset} " for queue_offset in range(start, start + count))
    answer(peer, request, 0, next_begin_offset=start + count, body=body.encode())


def answer(
    peer: Peer,
    request: RemotingCommand,
    code: int,
    *,
    next_begin_offset: int,
    body: bytes = b"",
    min_offset: int = 0,
    max_offset: int = 1000,
) -> None:
    fields = {
        "nextBeginOffset": str(next_begin_offset),
        "minOffset": str(min_offset),
        "maxOffset": str(max_offset),
        "suggestWhichBrokerId": "0",
    }
    peer.answer(request, code, ext_fields=fields, body=body)


def pulled(fetcher: RangeFetcher) -> list[int]:
    """Queue offsets in the order in which they were handed out."""
    return [
        int(text) for chunks in fetcher.chunks() for chunk in chunks for text in bytes(chunk.body).split()
    ]


class FetcherPauses(Pauses):
    def fetcher(self, wanted: QueuePartition) -> RangeFetcher:
        return RangeFetcher(wanted, clock=self.clock, sleep=self)


@pytest.fixture
def pauses() -> FetcherPauses:
    return FetcherPauses()


def test_a_range_arrives_once_and_in_order(server: ScriptedServer) -> None:
    """D1, A4"""
    assert pulled(RangeFetcher(partition(server, 5, 203))) == list(range(5, 203))


def test_an_answer_that_is_short_is_completed(server: ScriptedServer) -> None:
    """A4: a broker gives 8 of 32 from disk."""
    server.script = lambda peer, request: answer_pull(peer, request, at_most=3)

    assert pulled(RangeFetcher(partition(server, 0, 50))) == list(range(50))


def test_tasks_of_one_process_share_a_connection_one_after_another(server: ScriptedServer) -> None:
    for start in (0, 50, 100):
        assert pulled(RangeFetcher(partition(server, start, start + 50))) == list(range(start, start + 50))

    assert server.connection_count == 1


def test_a_reader_that_stops_half_way_leaves_no_connection_behind(server: ScriptedServer) -> None:
    """A LIMIT or a killed task: unread answers must not reach the next task."""
    seen: list[RemotingCommand] = []

    def answer_two(peer: Peer, request: RemotingCommand) -> None:
        seen.append(request)
        if len(seen) <= 2:
            answer(peer, request, 0, next_begin_offset=8 * len(seen), body=b"x" * (4 << 20))

    server.script = answer_two
    chunks = RangeFetcher(partition(server, 0, 80)).chunks()
    next(chunks)

    assert isinstance(chunks, Generator)
    chunks.close()

    assert server.next_peer().has_ended.wait(PATIENCE_S)


def test_a_busy_broker_is_asked_again_after_growing_pauses(
    server: ScriptedServer, pauses: FetcherPauses
) -> None:
    refusals = 3

    def refuse(peer: Peer, request: RemotingCommand) -> None:
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            peer.answer(request, ResponseCode.SYSTEM_BUSY, remark="[TIMEOUT_CLEAN_QUEUE]")
        else:
            answer_pull(peer, request)

    server.script = refuse

    assert pulled(pauses.fetcher(changed(partition(server, 0, 50), pulls_in_flight=1))) == list(range(50))
    assert pauses.taken == [0.05, 0.1, 0.2]


@pytest.mark.parametrize("tick_s", [each / 1000 for each in range(5, 51, 5)])
def test_a_pause_may_end_between_any_two_looks_at_the_clock(server: ScriptedServer, tick_s: float) -> None:
    """A range whose pause has just ended has a pull to send, and is not blocked."""
    refusals = 7

    def refuse(peer: Peer, request: RemotingCommand) -> None:
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            peer.answer(request, ResponseCode.SYSTEM_BUSY, remark="[TIMEOUT_CLEAN_QUEUE]")
        else:
            answer_pull(peer, request)

    server.script = refuse
    clock = TickingClock(tick_s)
    patient = {"request_timeout_s": 1e6, "retry_timeout_s": 1e6}
    wanted = changed(partition(server, 0, 50), pulls_in_flight=1, **patient)

    assert pulled(RangeFetcher(wanted, clock=clock, sleep=clock.advance)) == list(range(50))


def test_a_broken_connection_is_made_again_and_nothing_is_lost_or_doubled(
    server: ScriptedServer, pauses: FetcherPauses
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

    assert pulled(pauses.fetcher(partition(server, 0, 100))) == list(range(100))
    assert server.connection_count == 2


def test_a_broker_that_stays_away_ends_the_task_with_the_reason(
    server: ScriptedServer, pauses: FetcherPauses
) -> None:
    server.script = lambda peer, request: peer.close()

    with pytest.raises(ChannelClosed):
        pulled(pauses.fetcher(partition(server, 0, 100)))

    assert sum(pauses.taken) == pytest.approx(1.0)


def test_a_success_gives_the_patience_back(server: ScriptedServer, pauses: FetcherPauses) -> None:
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

    wanted = changed(partition(server, 0, 400), pulls_in_flight=1)
    assert pulled(pauses.fetcher(wanted)) == list(range(400))
    assert sum(pauses.taken) > wanted.settings.retry_timeout_s


def test_a_refusal_is_reported_at_once(server: ScriptedServer, pauses: FetcherPauses) -> None:
    server.script = lambda peer, request: peer.answer(request, ResponseCode.NO_PERMISSION, remark="no")

    with pytest.raises(BrokerError, match="no"):
        pulled(pauses.fetcher(partition(server, 0, 100)))

    assert pauses.taken == []


def test_nothing_where_something_was_planned_is_waited_for(
    server: ScriptedServer, pauses: FetcherPauses
) -> None:
    """A broker that recovers may not have its last messages yet."""
    server.script = lambda peer, request: answer(
        peer, request, ResponseCode.PULL_NOT_FOUND, next_begin_offset=0
    )

    with pytest.raises(SystemBusy, match="nothing at offset"):
        pulled(pauses.fetcher(partition(server, 0, 100)))


def lose_below(first: int) -> Callable[[Peer, RemotingCommand], None]:
    def script(peer: Peer, request: RemotingCommand) -> None:
        if int(request.ext_fields["queueOffset"]) < first:
            answer(peer, request, ResponseCode.PULL_OFFSET_MOVED, next_begin_offset=first, min_offset=first)
        else:
            answer_pull(peer, request)

    return script


def test_messages_that_are_gone_are_data_loss(server: ScriptedServer) -> None:
    """F4"""
    server.script = lose_below(20)

    with pytest.raises(DataLoss, match="20 \\(inclusive\\) to 1000"):
        pulled(RangeFetcher(partition(server, 0, 100)))


def test_messages_that_are_gone_are_skipped_on_demand(server: ScriptedServer) -> None:
    """F4"""
    server.script = lose_below(24)

    fetcher = RangeFetcher(changed(partition(server, 0, 100), fail_on_data_loss=False))

    assert pulled(fetcher) == list(range(24, 100))


def test_a_gap_that_many_pulls_meet_is_reported_once(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """F4: the gap is reported, with both its ends."""
    server.script = lose_below(24)
    fetcher = RangeFetcher(changed(partition(server, 0, 100), fail_on_data_loss=False))

    with caplog.at_level(logging.WARNING):
        pulled(fetcher)

    assert [record.args[1] for record in caplog.records if "offset gap" in record.message] == [0]  # type: ignore[index]
    assert fetcher.skipped == range(24)


def moved(request: RemotingCommand, first: int) -> bytes:
    fields = {
        "nextBeginOffset": str(first),
        "minOffset": str(first),
        "maxOffset": "1000",
        "suggestWhichBrokerId": "0",
    }
    return encode_frame(request.response(ResponseCode.PULL_OFFSET_MOVED, ext_fields=fields))


def test_the_first_missing_offset_is_named_and_before_any_trouble_that_may_pass(
    server: ScriptedServer, pauses: FetcherPauses
) -> None:
    """F4: pulls under way at once fail in any order, and their answers come in one chunk."""
    held: list[RemotingCommand] = []

    def answer_four(peer: Peer, request: RemotingCommand) -> None:
        held.append(request)
        if len(held) == 4:
            busy = encode_frame(held[0].response(ResponseCode.SYSTEM_BUSY, remark=""))
            peer.send_bytes(busy + b"".join(moved(held[late], 500) for late in (3, 1, 2)))

    server.script = answer_four

    with pytest.raises(DataLoss) as caught:
        pulled(pauses.fetcher(partition(server, 0, 32)))

    assert caught.value.wanted == 8
    assert pauses.taken == []


def answer_reset(peer: Peer, request: RemotingCommand) -> None:
    answer(peer, request, ResponseCode.PULL_OFFSET_MOVED, next_begin_offset=3)


def test_a_reset_that_the_broker_stored_is_no_gap(
    server: ScriptedServer, pauses: FetcherPauses, caplog: pytest.LogCaptureFixture
) -> None:
    """F4, F5: one pull is answered "offset moved" after resetOffsetByTime although the offset is there."""
    count = 0

    def reset_once(peer: Peer, request: RemotingCommand) -> None:
        nonlocal count
        count += 1
        (answer_reset if count == 2 else answer_pull)(peer, request)

    server.script = reset_once

    with caplog.at_level(logging.INFO):
        assert pulled(pauses.fetcher(partition(server, 0, 100))) == list(range(100))

    assert pauses.taken == []
    assert "is ignored, because this query has no consumerGroup" in caplog.text


def test_a_reset_ends_a_groups_range_where_it_was_reached(
    server: ScriptedServer, pauses: FetcherPauses
) -> None:
    """F5: what came before is consumed, and the target notified; nothing of it is tried again."""

    def reset_at_40(peer: Peer, request: RemotingCommand) -> None:
        (answer_reset if request.ext_fields["queueOffset"] == "40" else answer_pull)(peer, request)

    server.script = reset_at_40
    fetcher = pauses.fetcher(changed(partition(server, 0, 100), is_group_read=True))
    bodies: list[bytes] = []

    with pytest.raises(QueueReset, match="has reset the group's offset to 3") as caught:
        bodies += (bytes(chunk.body) for chunks in fetcher.chunks() for chunk in chunks)

    assert [int(text) for body in bodies for text in body.split()] == list(range(40))
    assert caught.value.target == 3
    assert pauses.taken == []


def test_resets_without_end_are_not_followed_for_ever(server: ScriptedServer, pauses: FetcherPauses) -> None:
    """F5"""
    server.script = answer_reset

    with pytest.raises(SystemBusy, match="again and again"):
        pulled(pauses.fetcher(partition(server, 0, 100)))

    assert sum(pauses.taken) == pytest.approx(1.0)


def lose_from(first: int) -> Callable[[Peer, RemotingCommand], None]:
    def script(peer: Peer, request: RemotingCommand) -> None:
        start = int(request.ext_fields["queueOffset"])
        if start > first:
            answer(peer, request, ResponseCode.PULL_OFFSET_MOVED, next_begin_offset=first, max_offset=first)
        else:
            answer_pull(peer, request)

    return script


def test_a_lost_tail_is_passed_by_a_plain_read_on_demand(server: ScriptedServer) -> None:
    """F4: the planner corrects the position at its next look."""
    server.script = lose_from(16)

    fetcher = RangeFetcher(changed(partition(server, 0, 100), fail_on_data_loss=False))

    assert pulled(fetcher) == list(range(24))


def test_a_group_reports_a_lost_tail_and_never_passes_it(server: ScriptedServer) -> None:
    """F4: what comes after the broker's end must not be acknowledged, for new messages will be there."""
    server.script = lose_from(0)
    wanted = changed(partition(server, 0, 100), fail_on_data_loss=False, is_group_read=True)

    with pytest.raises(TailLost, match="lost its tail"):
        pulled(RangeFetcher(wanted))


def test_a_group_waits_ten_seconds_for_a_broker_and_no_longer(
    server: ScriptedServer, pauses: FetcherPauses
) -> None:
    """A2: other queues wait for the micro-batch to end."""
    server.script = lambda peer, request: peer.answer(request, ResponseCode.SYSTEM_BUSY, remark="")
    wanted = changed(partition(server, 0, 100), retry_timeout_s=120.0, is_group_read=True)

    with pytest.raises(SystemBusy):
        pulled(pauses.fetcher(wanted))

    assert sum(pauses.taken) == pytest.approx(10.0)


def test_what_came_in_order_before_patience_ended_is_given_out(
    server: ScriptedServer, pauses: FetcherPauses
) -> None:
    def busy_from_40(peer: Peer, request: RemotingCommand) -> None:
        if int(request.ext_fields["queueOffset"]) < 40:
            answer_pull(peer, request)
        else:
            peer.answer(request, ResponseCode.SYSTEM_BUSY, remark="")

    server.script = busy_from_40
    seen: list[int] = []

    def read() -> None:
        for chunks in pauses.fetcher(partition(server, 0, 100)).chunks():
            seen.extend(int(text) for chunk in chunks for text in bytes(chunk.body).split())

    with pytest.raises(SystemBusy):
        read()

    assert seen == list(range(40))


def test_a_window_that_has_nothing_left_to_ask_is_an_error_and_no_endless_loop(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RangeWindow, "tasks", lambda window, *_, **__: [])

    with pytest.raises(RocketMQError, match="is blocked, with no pull in flight"):
        pulled(RangeFetcher(partition(server, 0, 100)))
