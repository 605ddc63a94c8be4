"""Many ranges over one connection: fair, bounded, each on its own."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from pyspark_rocketmq.client.pull_connection import PullConnection, close_idle_connections
from pyspark_rocketmq.client.transport import RECEIVE_TICK_S, Poller, TcpTransport
from pyspark_rocketmq.consume.fetch_window import FetchedChunks, RangeWindow
from pyspark_rocketmq.consume.segments import PullChunk
from pyspark_rocketmq.errors import (
    BrokerError,
    ChannelClosed,
    DataLoss,
    ExpressionInvalid,
    NoPermission,
    RequestTimeout,
    RocketMQError,
    TransportError,
)
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, QueueRange
from pyspark_rocketmq.source.fetcher import Fetcher
from pyspark_rocketmq.source.ranges import QueuePartition
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from tests.helpers.approx import about
from tests.helpers.partitions import changed, partition_of
from tests.helpers.pauses import Pauses
from tests.helpers.refusing import refusing_address
from tests.helpers.scripted_server import Peer, ScriptedServer
from tests.helpers.wait import PATIENCE_S

KIB = 1024


class FetcherPauses(Pauses):
    def fetcher(self, partitions: list[QueuePartition], **changes: Any) -> Fetcher:
        return Fetcher(partitions, clock=self.clock, sleep=self, **changes)


@pytest.fixture
def pauses() -> FetcherPauses:
    return FetcherPauses()


def found(
    peer: Peer, request: RemotingCommand, *, at_most: int = 8, suggest: int = 0, padding: int = 0
) -> None:
    """Answer with messages that are their queue offsets, in text."""
    start = int(request.ext_fields["queueOffset"])
    count = min(int(request.ext_fields["maxMsgNums"]), at_most)
    body = " ".join(map(str, range(start, start + count))).encode() + b" " * padding + b" "
    outcome(peer, request, 0, start + count, suggest=suggest, body=body)


def outcome(
    peer: Peer,
    request: RemotingCommand,
    code: int,
    next_begin_offset: int,
    *,
    suggest: int = 0,
    body: bytes = b"",
    bounds: tuple[int, int] = (0, 1000),
) -> None:
    fields = {
        "nextBeginOffset": str(next_begin_offset),
        "minOffset": str(bounds[0]),
        "maxOffset": str(bounds[1]),
        "suggestWhichBrokerId": str(suggest),
    }
    peer.answer(request, code, ext_fields=fields, body=body)


def queue_of(request: RemotingCommand) -> int:
    return int(request.ext_fields["queueId"])


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(found) as server:
        yield server
        close_idle_connections()


@pytest.fixture
def replica() -> Iterator[ScriptedServer]:
    with ScriptedServer(lambda peer, request: found(peer, request, suggest=1)) as server:
        yield server
        close_idle_connections()


def partition(server: ScriptedServer, queue_id: int, end: int = 100, **changes: object) -> QueuePartition:
    planned = QueueRange.between(MessageQueue("orders", "broker-a", queue_id), 0, end)
    return partition_of(planned, server.address, **{"pulls_in_flight": 8, **changes})


def partitions(server: ScriptedServer, count: int, end: int = 100, **changes: object) -> list[QueuePartition]:
    return [partition(server, queue_id, end, **changes) for queue_id in range(count)]


def offsets_of(chunks: list[PullChunk]) -> list[int]:
    return [int(text) for chunk in chunks for text in bytes(chunk.body).split()]


def pulled(fetcher: Fetcher) -> tuple[dict[int, list[int]], dict[int, RocketMQError]]:
    """Offsets of each range in the order in which they came, and why ranges failed."""
    offsets: dict[int, list[int]] = defaultdict(list)
    failures: dict[int, RocketMQError] = {}
    ended: list[int] = []
    for fetched_of in chain.from_iterable(fetcher.arrivals()):
        assert fetched_of.range_index not in ended
        offsets[fetched_of.range_index] += offsets_of(fetched_of.chunks)
        if fetched_of.is_last:
            ended.append(fetched_of.range_index)
        if fetched_of.failure is not None:
            assert fetched_of.is_last
            failures[fetched_of.range_index] = fetched_of.failure
    assert sorted(ended) == list(range(len(fetcher.ranges)))
    return dict(offsets), failures


def whole(count: int, end: int = 100) -> dict[int, list[int]]:
    return {index: list(range(end)) for index in range(count)}


def test_many_ranges_arrive_over_one_connection_each_once_and_in_order(server: ScriptedServer) -> None:
    """D1, A4"""
    assert pulled(Fetcher(partitions(server, 20))) == (whole(20), {})
    assert server.connection_count == 1


def test_no_range_is_no_work_and_no_connection(server: ScriptedServer) -> None:
    assert pulled(Fetcher([])) == ({}, {})
    assert server.connection_count == 0


def test_an_empty_range_ends_at_once(server: ScriptedServer) -> None:
    fetched = list(chain.from_iterable(Fetcher([partition(server, 0, end=0)]).arrivals()))

    assert fetched == [FetchedChunks(0, [], is_last=True, failure=None, reached=0)]
    assert server.connection_count == 0


def test_the_pulls_in_flight_are_shared_and_no_range_waits_for_another(server: ScriptedServer) -> None:
    """Eight pulls in flight, four ranges: two each, whichever range has the most to read."""
    ends = [800, 80, 80, 80]
    held: list[tuple[Peer, RemotingCommand]] = []
    first_eight: Counter[int] = Counter()

    def hold_eight(peer: Peer, request: RemotingCommand) -> None:
        if sum(first_eight.values()) == 8:
            found(peer, request)
            return
        first_eight[queue_of(request)] += 1
        held.append((peer, request))
        if len(held) == 8:
            for each in held:
                found(*each)

    server.script = hold_eight

    offsets, _ = pulled(Fetcher([partition(server, n, end) for n, end in enumerate(ends)]))

    assert first_eight == {0: 2, 1: 2, 2: 2, 3: 2}
    assert {index: len(each) for index, each in offsets.items()} == dict(enumerate(ends))


def test_answers_that_become_short_are_received_although_long_ones_were_awaited(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A4: a wait for several answers is short, and the next one ends with any byte."""
    waits: list[float] = []
    awaited: list[int] = []

    def note_wait(self: Poller[Any], lines: list[Any], timeout_s: float) -> list[Any]:
        waits.append(timeout_s)
        return wait(self, lines, timeout_s)

    def note_bytes(self: TcpTransport, count: int) -> bool:
        awaited.append(count)
        return await_bytes(self, count)

    wait, await_bytes = Poller.await_readable, TcpTransport.await_bytes
    monkeypatch.setattr(Poller, "await_readable", note_wait)
    monkeypatch.setattr(TcpTransport, "await_bytes", note_bytes)
    padding = iter([20_000] * 8 + [0] * 10_000)
    server.script = lambda peer, request: found(peer, request, padding=next(padding))

    assert pulled(Fetcher(partitions(server, 4, 400))) == (whole(4, 400), {})
    assert max(awaited) > 20_000
    assert all(timeout_s <= 0.01 for timeout_s, count in zip(waits, awaited, strict=False) if count > 1)


def test_a_range_without_answers_does_not_hold_up_the_others(server: ScriptedServer) -> None:
    """A broker that never answers for one queue: the others are read to their end meanwhile."""
    others_are_read = threading.Event()
    held: list[tuple[Peer, RemotingCommand]] = []

    def hold_queue_0(peer: Peer, request: RemotingCommand) -> None:
        if queue_of(request) == 0 and not others_are_read.is_set():
            held.append((peer, request))
        else:
            found(peer, request)

    server.script = hold_queue_0
    offsets: dict[int, list[int]] = defaultdict(list)
    ended: set[int] = set()
    for fetched_of in chain.from_iterable(Fetcher(partitions(server, 4)).arrivals()):
        offsets[fetched_of.range_index] += offsets_of(fetched_of.chunks)
        ended |= {fetched_of.range_index} if fetched_of.is_last else set()
        if ended == {1, 2, 3} and not others_are_read.is_set():
            others_are_read.set()
            for each in held:
                found(*each)

    assert offsets == whole(4)


def test_ranges_without_answers_leave_the_others_their_share(server: ScriptedServer) -> None:
    """Two of three queues hold two thirds of the pulls in flight; the third is read to its end meanwhile."""
    other_is_read = threading.Event()
    held: list[tuple[Peer, RemotingCommand]] = []

    def hold_two(peer: Peer, request: RemotingCommand) -> None:
        if queue_of(request) < 2 and not other_is_read.is_set():
            held.append((peer, request))
        else:
            found(peer, request)

    server.script = hold_two
    offsets: dict[int, list[int]] = defaultdict(list)
    wanted = partitions(server, 3, end=400, pulls_in_flight=32, request_timeout_s=60.0)
    for fetched_of in chain.from_iterable(Fetcher(wanted).arrivals()):
        offsets[fetched_of.range_index] += offsets_of(fetched_of.chunks)
        if fetched_of.range_index == 2 and fetched_of.is_last:
            other_is_read.set()
            for each in held:
                found(*each)

    assert offsets == whole(3, 400)


def test_a_refused_range_fails_by_itself_after_what_was_in_order(server: ScriptedServer) -> None:
    def refuse_some(peer: Peer, request: RemotingCommand) -> None:
        if queue_of(request) == 1 and int(request.ext_fields["queueOffset"]) >= 40:
            peer.answer(request, ResponseCode.NO_PERMISSION, remark="no")
        else:
            found(peer, request)

    server.script = refuse_some

    offsets, failures = pulled(Fetcher(partitions(server, 3)))

    assert offsets == {**whole(3), 1: list(range(40))}
    assert {index: type(error) for index, error in failures.items()} == {1: NoPermission}


def test_only_the_busy_queue_pauses(server: ScriptedServer, pauses: FetcherPauses) -> None:
    """Its pulls are tried until patience ends; nobody else's are late."""

    def busy_queue_1(peer: Peer, request: RemotingCommand) -> None:
        if queue_of(request) == 1:
            peer.answer(request, ResponseCode.SYSTEM_BUSY, remark="")
        else:
            found(peer, request)

    server.script = busy_queue_1
    fetched = [
        (fetched_of.range_index, fetched_of.is_last, sum(pauses.taken))
        for fetched_of in chain.from_iterable(pauses.fetcher(partitions(server, 3)).arrivals())
    ]

    assert [paused for index, is_last, paused in fetched if is_last and index != 1] == [0, 0]
    assert fetched[-1] == (1, True, about(1.0))


def test_flow_control_is_tried_again_after_20_ms(server: ScriptedServer, pauses: FetcherPauses) -> None:
    """Source: ``DefaultMQPushConsumerImpl``; a quota is full again soon, so the pause does not grow."""
    refusals = iter(range(4))

    def throttle(peer: Peer, request: RemotingCommand) -> None:
        if next(refusals, None) is None:
            found(peer, request)
        else:
            peer.answer(request, ResponseCode.FLOW_CONTROL, remark="quota")

    server.script = throttle

    assert pulled(pauses.fetcher([partition(server, 0, pulls_in_flight=1)])) == (whole(1), {})
    assert pauses.taken == [0.02] * 4


def test_a_broken_connection_is_made_again_for_all(server: ScriptedServer, pauses: FetcherPauses) -> None:
    """A2: nothing lost, nothing twice."""
    count = 0

    def break_twice(peer: Peer, request: RemotingCommand) -> None:
        nonlocal count
        count += 1
        if count in {12, 40}:
            peer.close()
        elif not peer.has_ended.is_set():
            found(peer, request)

    server.script = break_twice

    assert pulled(pauses.fetcher(partitions(server, 5))) == (whole(5), {})
    assert server.connection_count == 3


def test_a_broker_that_cannot_be_reached_fails_every_range_when_patience_ends(
    server: ScriptedServer, pauses: FetcherPauses
) -> None:
    with refusing_address() as gone:
        wanted = [replace(each, address=BrokerAddress(gone)) for each in partitions(server, 2)]
        offsets, failures = pulled(pauses.fetcher(wanted))

    assert not any(offsets.values())
    assert sorted(failures) == [0, 1]
    assert all(error.retryable for error in failures.values())
    assert sum(pauses.taken) == pytest.approx(1.0)


def test_go_away_means_a_new_connection_at_once(server: ScriptedServer, pauses: FetcherPauses) -> None:
    """A2: code 1500 of brokers from 5.3.1 on, to clients that show such a version."""
    refused: list[Peer] = []

    def send_away_once(peer: Peer, request: RemotingCommand) -> None:
        if not refused or (peer is refused[0] and len(refused) < 3):
            refused.append(peer)
            peer.answer(request, ResponseCode.GO_AWAY, remark="shutting down")
        elif peer is not refused[0]:
            found(peer, request)

    server.script = send_away_once

    assert pulled(pauses.fetcher(partitions(server, 3))) == (whole(3), {})
    assert server.connection_count == 2
    assert pauses.taken == []


def test_go_away_again_and_again_is_trouble(server: ScriptedServer, pauses: FetcherPauses) -> None:
    server.script = lambda peer, request: peer.answer(request, ResponseCode.GO_AWAY, remark="")

    _, failures = pulled(pauses.fetcher(partitions(server, 2)))

    assert {type(error) for error in failures.values()} == {ChannelClosed}
    assert "GO_AWAY" in str(failures[0])
    assert sum(pauses.taken) == pytest.approx(1.0)


def test_a_pull_that_is_passed_over_is_sent_again(server: ScriptedServer) -> None:
    """Source: ``DefaultPullMessageResultHandler.channelIsWritable``: no answer at all to one of many."""
    passed_over: list[RemotingCommand] = []

    def pass_over_one(peer: Peer, request: RemotingCommand) -> None:
        if queue_of(request) == 1 and not passed_over:
            passed_over.append(request)
        else:
            found(peer, request)

    server.script = pass_over_one
    # Patience is not what this is about: all may stand still for longer than it lasts.
    wanted = partitions(server, 2, end=400, request_timeout_s=0.05, retry_timeout_s=PATIENCE_S)

    assert pulled(Fetcher(wanted)) == (whole(2, 400), {})


def test_bytes_over_all_ranges_are_bounded(server: ScriptedServer) -> None:
    """Only the pulls that have room, by the largest answer so far, are sent;
    the first of a range always is.
    """
    server.script = lambda peer, request: found(peer, request, padding=300 * KIB)
    largest = 300 * KIB + 40
    most = 0
    fetcher = Fetcher(partitions(server, 6, end=160, pulls_in_flight=32, max_in_flight_bytes=4 * largest))
    offsets: dict[int, list[int]] = defaultdict(list)
    for fetched_of in chain.from_iterable(fetcher.arrivals()):
        offsets[fetched_of.range_index] += offsets_of(fetched_of.chunks)
        held = sum(len(chunk.body) for chunk in fetched_of.chunks)
        held += sum(
            each.segments.buffered_bytes + each.segments.in_flight * largest for each in fetcher.ranges
        )
        most = max(most, held)

    assert offsets == whole(6, 160)
    # One batch may be with the caller while the pulls that take its room are under way.
    assert most <= 2 * 4 * largest


def test_a_range_that_is_stopped_while_it_is_handed_out_ends_once(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D13: the thread that decodes stops a range that has become large enough, in the middle of anything."""
    server.script = lambda peer, request: found(peer, request, padding=1 << 20)
    fetcher = Fetcher([partition(server, 0, end=1000)])
    take = RangeWindow.take

    def stop_and_take(window: RangeWindow) -> list[PullChunk]:
        fetcher.ranges[0].stop()
        return take(window)

    monkeypatch.setattr(RangeWindow, "take", stop_and_take)
    ends = [fetched_of.is_last for fetched_of in chain.from_iterable(fetcher.arrivals())]

    assert ends == [False, True]


def test_memory_for_less_than_one_answer_still_makes_progress(server: ScriptedServer) -> None:
    assert pulled(Fetcher(partitions(server, 3, max_in_flight_bytes=1))) == (whole(3), {})


def test_nothing_is_asked_while_the_caller_does_not_take(server: ScriptedServer) -> None:
    """Back-pressure: the pulls in flight when a batch is handed out are the last."""
    asked = 0

    def count(peer: Peer, request: RemotingCommand) -> None:
        nonlocal asked
        asked += 1
        found(peer, request, padding=2 << 20)

    server.script = count
    fetched = Fetcher([partition(server, 0, end=1000)]).arrivals()
    next(fetched)
    in_flight_then = [server.next_request() for _ in range(asked)]

    fetched.close()

    assert len(in_flight_then) <= 2 + 2 * 8
    assert server.next_peer().has_ended.wait(PATIENCE_S)


# --- replicas -----------------------------------------------------------------------------------------------


def with_replica(wanted: list[QueuePartition], replica: ScriptedServer) -> list[QueuePartition]:
    return [replace(each, replicas={1: BrokerAddress(replica.address)}) for each in wanted]


def asked_for(server: ScriptedServer) -> set[int]:
    """Queue offsets that a server was asked for, all that it was sent so far."""
    asked = set()
    while not server.requests.empty():
        asked.add(int(server.next_request().ext_fields["queueOffset"]))
    return asked


def test_pulls_go_to_the_replica_that_the_master_suggests(
    server: ScriptedServer, replica: ScriptedServer
) -> None:
    """A4: suggestWhichBrokerId of a master with slaveReadEnable."""
    both_were_told = threading.Event()

    def suggest(peer: Peer, request: RemotingCommand) -> None:
        found(peer, request, suggest=1)
        if server.requests.qsize() == 2:
            both_were_told.set()

    def serve(peer: Peer, request: RemotingCommand) -> None:
        # Else one range might be over before the other one's first answer, and leave it a second pull.
        assert both_were_told.wait(PATIENCE_S)
        found(peer, request, suggest=1)

    server.script, replica.script = suggest, serve
    wanted = with_replica(partitions(server, 2, pulls_in_flight=2), replica)

    assert pulled(Fetcher(wanted)) == (whole(2), {})
    by_master, by_replica = asked_for(server), asked_for(replica)
    # Two pulls are in flight, and both may be before the first answer comes.
    assert by_master <= {0, 8}
    assert by_replica >= set(range(16, 100, 8))
    assert by_master | by_replica == set(range(0, 100, 8))


def test_without_an_address_the_master_serves_although_it_suggests_a_replica(server: ScriptedServer) -> None:
    server.script = lambda peer, request: found(peer, request, suggest=1)

    assert pulled(Fetcher(partitions(server, 2))) == (whole(2), {})


def test_a_replica_sends_back_to_the_master(server: ScriptedServer, replica: ScriptedServer) -> None:
    """A4: a replica that has caught up suggests 0."""
    server.script = lambda peer, request: found(
        peer, request, suggest=1 if int(request.ext_fields["queueOffset"]) < 8 else 0
    )
    replica.script = lambda peer, request: found(
        peer, request, suggest=1 if int(request.ext_fields["queueOffset"]) < 40 else 0
    )
    wanted = with_replica([partition(server, 0, pulls_in_flight=1)], replica)

    assert pulled(Fetcher(wanted)) == (whole(1), {})
    assert asked_for(replica) == {8, 16, 24, 32, 40}
    assert asked_for(server) == {0, *range(48, 100, 8)}


@pytest.mark.parametrize(
    ("code", "next_begin_offset"),
    [(19, 40), (20, 40), (20, 64), (21, 64), (21, 0)],
    ids=["nothing new", "no match", "scanned on", "beginning gone", "lags"],
)
def test_messages_that_a_replica_lacks_are_pulled_from_the_master(
    server: ScriptedServer, replica: ScriptedServer, pauses: FetcherPauses, code: int, next_begin_offset: int
) -> None:
    """F4: a replica's word about what is not there is never believed; nothing is lost,
    nothing comes twice.
    """
    server.script = lambda peer, request: found(peer, request, suggest=1)

    def not_from_40(peer: Peer, request: RemotingCommand) -> None:
        if int(request.ext_fields["queueOffset"]) < 40:
            found(peer, request, suggest=1)
        else:
            outcome(peer, request, code, next_begin_offset, suggest=1, bounds=(64, 1000))

    replica.script = not_from_40

    assert pulled(pauses.fetcher(with_replica(partitions(server, 3), replica))) == (whole(3), {})
    assert pauses.taken == []


def test_a_replica_that_refuses_or_breaks_is_left_for_the_master(
    server: ScriptedServer, replica: ScriptedServer, pauses: FetcherPauses
) -> None:
    server.script = lambda peer, request: found(peer, request, suggest=1)
    for script in (
        lambda peer, request: peer.answer(request, ResponseCode.SYSTEM_BUSY, remark=""),
        lambda peer, request: peer.answer(request, ResponseCode.NO_PERMISSION, remark=""),
        lambda peer, request: peer.close(),
    ):
        replica.script = script
        assert pulled(pauses.fetcher(with_replica(partitions(server, 3), replica))) == (whole(3), {})

    assert pauses.taken == []


def conditional(server: ScriptedServer, count: int) -> list[QueuePartition]:
    """Ranges with an SQL92 condition."""
    return partitions(server, count, subscription="city STARTSWITH 'Pa'", is_sql92=True)


def as_older_version(peer: Peer, request: RemotingCommand) -> None:
    """Answer as a broker that cannot compile the condition: it refuses the check, and filters no pull."""
    if request.code == RequestCode.CHECK_CLIENT_CONFIG:
        peer.answer(request, ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark="Encountered STARTSWITH")
    else:
        outcome(peer, request, 0, int(request.ext_fields["queueOffset"]) + 1, body=b"-1 ")


def as_newer_version(peer: Peer, request: RemotingCommand) -> None:
    if request.code == RequestCode.CHECK_CLIENT_CONFIG:
        peer.answer(request)
    else:
        found(peer, request, suggest=1)


@pytest.mark.parametrize("prefers_replica", [False, True], ids=["suggested", "preferred"])
def test_a_replica_that_cannot_filter_by_the_condition_is_not_read(
    server: ScriptedServer, replica: ScriptedServer, pauses: FetcherPauses, prefers_replica: bool
) -> None:
    """A4: in a rolling upgrade the slave is older than its master, and would give all messages."""
    server.script, replica.script = as_newer_version, as_older_version
    wanted = [
        changed(each, prefers_replica=prefers_replica)
        for each in with_replica(conditional(server, 3), replica)
    ]

    assert pulled(pauses.fetcher(wanted)) == (whole(3), {})
    assert replica.next_request().code == RequestCode.CHECK_CLIENT_CONFIG


def test_a_slave_that_cannot_filter_by_the_condition_does_not_replace_its_master(
    server: ScriptedServer, pauses: FetcherPauses
) -> None:
    """A4, L3: the range waits for the master."""
    server.script = as_older_version
    wanted = [changed(each, is_slave=True, replaces_master=True) for each in conditional(server, 1)]

    offsets, failures = pulled(pauses.fetcher(wanted))

    assert offsets == {0: []}
    assert isinstance(failures[0], TransportError)
    assert "Encountered STARTSWITH" in str(failures[0])


def test_a_broker_that_comes_back_as_an_older_version_is_not_pulled_from(
    server: ScriptedServer, pauses: FetcherPauses
) -> None:
    """A4: the new connection begins with the check again."""
    pulls: list[RemotingCommand] = []

    def restart_at_second_pull(peer: Peer, request: RemotingCommand) -> None:
        if request.code == RequestCode.CHECK_CLIENT_CONFIG:
            peer.answer(request)
            return
        pulls.append(request)
        if len(pulls) == 1:
            found(peer, request)
        else:
            server.script = as_older_version
            peer.close()

    server.script = restart_at_second_pull

    offsets, failures = pulled(pauses.fetcher(conditional(server, 1)))

    assert offsets == {0: [*range(8)]}
    assert isinstance(failures[0], ExpressionInvalid)


def in_place_of(server: ScriptedServer, count: int = 1, **changes: Any) -> list[QueuePartition]:
    """Ranges whose master was down when they were given out."""
    return partitions(server, count, is_slave=True, replaces_master=True, **changes)


def test_a_range_goes_on_at_the_replica_when_the_master_ends(
    server: ScriptedServer, replica: ScriptedServer, pauses: FetcherPauses
) -> None:
    """L3: no pause, nothing lost, nothing twice; the replica's suggestion of the master is not followed."""

    def up_to_40(peer: Peer, request: RemotingCommand) -> None:
        if int(request.ext_fields["queueOffset"]) < 40:
            found(peer, request)
        else:
            peer.close()

    server.script, replica.script = up_to_40, found
    wanted = [changed(each, replaces_master=True) for each in with_replica(partitions(server, 3), replica)]

    assert pulled(pauses.fetcher(wanted)) == (whole(3), {})
    assert pauses.taken == []


def test_a_range_of_a_master_that_ends_waits_where_no_replica_may_take_its_place(
    server: ScriptedServer, replica: ScriptedServer, pauses: FetcherPauses
) -> None:
    """C1: orderly consumers read under the master's lock."""
    server.script = lambda peer, request: peer.close()

    _, failures = pulled(pauses.fetcher(with_replica(partitions(server, 1), replica)))

    assert isinstance(failures[0], ChannelClosed)
    assert asked_for(replica) == set()


def test_messages_that_only_a_stopped_master_has_are_waited_for(
    server: ScriptedServer, replica: ScriptedServer, pauses: FetcherPauses
) -> None:
    """L3: the tail was planned by the master's end; it is never counted as read."""
    server.script = lambda peer, request: peer.close()

    def lags(peer: Peer, request: RemotingCommand) -> None:
        start = int(request.ext_fields["queueOffset"])
        if start < 40:
            found(peer, request)
        else:
            outcome(peer, request, 20, start, bounds=(0, 40))

    replica.script = lags
    wanted = [changed(each, replaces_master=True) for each in with_replica(partitions(server, 1), replica)]

    offsets, failures = pulled(pauses.fetcher(wanted))

    assert offsets == {0: list(range(40))}
    assert isinstance(failures[0], ChannelClosed)
    assert sum(pauses.taken) >= wanted[0].settings.retry_timeout_s


def test_a_filter_that_matches_nothing_at_a_slave_brings_the_range_forward(server: ScriptedServer) -> None:
    """A4, L3: unlike an offset that a slave does not have, which has the same code."""

    def no_match(peer: Peer, request: RemotingCommand) -> None:
        fields = {"nextBeginOffset": "100", "minOffset": "0", "maxOffset": "100", "suggestWhichBrokerId": "0"}
        peer.answer(request, 20, ext_fields=fields, remark="NO_MATCHED_MESSAGE")

    server.script = no_match

    assert pulled(Fetcher(in_place_of(server, subscription="TagA"))) == ({0: []}, {})


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
@pytest.mark.parametrize("is_group_read", [True, False])
@pytest.mark.parametrize(
    "told",
    [
        (19, "OFFSET_OVERFLOW_ONE", 40, (0, 40)),
        (20, "OFFSET_OVERFLOW_ONE", 40, (0, 40)),
        (20, "OFFSET_TOO_SMALL", 40, (64, 1000)),
        (20, "OFFSET_TOO_SMALL", 64, (64, 1000)),
        (20, "MESSAGE_WAS_REMOVING", 64, (64, 1000)),
        (21, "OFFSET_TOO_SMALL", 64, (64, 1000)),
        (21, "OFFSET_OVERFLOW_BADLY", 20, (0, 20)),
        (21, "OFFSET_RESET", 0, (0, 1000)),
        (17, "topic not exist", 0, (0, 0)),
    ],
)
def test_messages_that_only_a_slave_lacks_are_neither_lost_nor_skipped(
    server: ScriptedServer,
    pauses: FetcherPauses,
    told: tuple[int, str, int, tuple[int, int]],
    is_group_read: bool,
    fail_on_data_loss: bool,
) -> None:
    """L3: the range waits and fails, or in a consumer ends where it was reached; nothing is skipped."""
    code, remark, next_begin_offset, bounds = told

    def not_from_40(peer: Peer, request: RemotingCommand) -> None:
        if int(request.ext_fields["queueOffset"]) < 40:
            found(peer, request)
            return
        fields = {
            "nextBeginOffset": str(next_begin_offset),
            "minOffset": str(bounds[0]),
            "maxOffset": str(bounds[1]),
            "suggestWhichBrokerId": "0",
        }
        peer.answer(request, code, ext_fields=fields, remark=remark)

    server.script = not_from_40
    wanted = in_place_of(server, is_group_read=is_group_read, fail_on_data_loss=fail_on_data_loss)
    fetcher = pauses.fetcher(wanted)

    offsets, failures = pulled(fetcher)

    assert offsets == {0: list(range(40))}
    assert not isinstance(failures[0], DataLoss)
    assert failures[0].retryable
    assert sum(pauses.taken) >= wanted[0].settings.retry_timeout_s
    assert not fetcher.ranges[0].skipped


def test_a_replica_that_cannot_be_reached_is_left_for_the_master(
    server: ScriptedServer, pauses: FetcherPauses
) -> None:
    server.script = lambda peer, request: found(peer, request, suggest=1)
    with refusing_address() as gone:
        replicas = {1: BrokerAddress(gone)}
        wanted = [replace(each, replicas=replicas) for each in partitions(server, 3)]

        assert pulled(pauses.fetcher(wanted)) == (whole(3), {})
    assert pauses.taken == []


def test_a_silent_replica_does_not_hold_up_the_queues_that_the_master_serves(
    server: ScriptedServer, replica: ScriptedServer
) -> None:
    """Only queue 0 is sent to the replica, which says nothing until the others are read."""
    server.script = lambda peer, request: found(peer, request, suggest=1 if queue_of(request) == 0 else 0)
    held: list[tuple[Peer, RemotingCommand]] = []
    others_are_read = threading.Event()

    def hold(peer: Peer, request: RemotingCommand) -> None:
        if others_are_read.is_set():
            found(peer, request, suggest=1)
        else:
            held.append((peer, request))

    replica.script = hold
    offsets: dict[int, list[int]] = defaultdict(list)
    ended: set[int] = set()
    for fetched_of in chain.from_iterable(Fetcher(with_replica(partitions(server, 3), replica)).arrivals()):
        offsets[fetched_of.range_index] += offsets_of(fetched_of.chunks)
        ended |= {fetched_of.range_index} if fetched_of.is_last else set()
        if ended == {1, 2} and not others_are_read.is_set():
            others_are_read.set()
            for each in held:
                found(*each, suggest=1)

    assert offsets == whole(3)


def test_a_replica_that_stays_silent_is_given_up_for_the_master(
    server: ScriptedServer, replica: ScriptedServer
) -> None:
    server.script = lambda peer, request: found(peer, request, suggest=1 if queue_of(request) == 0 else 0)
    replica.script = lambda peer, request: None
    wanted = with_replica(partitions(server, 3, request_timeout_s=0.1, retry_timeout_s=PATIENCE_S), replica)

    assert pulled(Fetcher(wanted)) == (whole(3), {})


def test_a_process_that_stood_still_has_heard_no_silence(
    server: ScriptedServer, replica: ScriptedServer, pauses: FetcherPauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither from the master nor from the replica, which in the end say nothing until that is judged."""
    is_judged, counted = threading.Event(), []

    def answer(peer: Peer, request: RemotingCommand) -> None:
        if int(request.ext_fields["queueOffset"]) > 90:
            is_judged.wait(PATIENCE_S)
        found(peer, request, suggest=1 if queue_of(request) == 0 else 0)

    def stand_still(
        self: Poller[Any], lines: list[PullConnection[Any]], timeout_s: float
    ) -> list[PullConnection[Any]]:
        pauses.clock.advance(600.0)
        return wait(self, lines, min(timeout_s, 0.01))

    def pass_time(line: PullConnection[Any], waited_s: float, silence_s: float) -> list[Any]:
        counted.append(waited_s)
        is_judged.set()
        return []

    server.script = replica.script = answer

    wait = Poller.await_readable
    monkeypatch.setattr(Poller, "await_readable", stand_still)
    monkeypatch.setattr(PullConnection, "pass_time", pass_time)

    assert pulled(pauses.fetcher(with_replica(partitions(server, 3), replica))) == (whole(3), {})
    assert 0 < max(counted) <= RECEIVE_TICK_S


def test_silence_of_the_master_is_reported_with_the_pull_that_was_not_answered(
    server: ScriptedServer,
) -> None:
    server.script = lambda peer, request: None
    wanted = [partition(server, 3, request_timeout_s=0.1, retry_timeout_s=0.0)]

    _, failures = pulled(Fetcher(wanted))

    assert isinstance(failures[0], RequestTimeout)
    assert not isinstance(failures[0], BrokerError)
    assert "queue=3" in str(failures[0])
