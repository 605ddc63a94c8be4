from __future__ import annotations

import threading
from queue import SimpleQueue

import pytest

from pyspark_rocketmq.client.channel import Channel
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.transport import TcpTransport
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.errors import ChannelClosed, ConnectFailed
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from tests.helpers.scripted_server import Peer, ScriptedServer
from tests.helpers.wait import PATIENCE_S, wait_until

CLOCK = SystemClock()


class HeldConnect:
    """Connects only when the test says so, or fails then."""

    def __init__(self) -> None:
        self.asked: SimpleQueue[str] = SimpleQueue()
        self.may_go_on = threading.Event()
        self.fails = False

    def __call__(self, address: str, timeout_s: float) -> TcpTransport:
        """As ``TcpTransport.connect``."""
        self.asked.put(address)
        self.may_go_on.wait(PATIENCE_S)
        if self.fails:
            raise ConnectFailed(address, "as told")
        return TcpTransport.connect(address, timeout_s)


def get_in_thread(pool: ChannelPool, address: str, deadline: Deadline) -> SimpleQueue[object]:
    outcome: SimpleQueue[object] = SimpleQueue()

    def run() -> None:
        try:
            outcome.put(pool.get(address, deadline))
        except (ConnectFailed, ChannelClosed) as error:
            outcome.put(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome


def test_one_channel_serves_all_calls_to_an_address(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline
) -> None:
    """A1: one connection per server for everything, as in Java."""
    assert pool.get(server.address, soon) is pool.get(server.address, soon)
    server.next_peer()
    assert server.connection_count == 1


def test_a_dead_channel_is_replaced(server: ScriptedServer, pool: ChannelPool, soon: Deadline) -> None:
    """A1: a restarted broker is found again."""
    first = pool.get(server.address, soon)
    server.next_peer().close()
    wait_until(lambda: not first.is_open, reason="The channel's end")

    second = pool.get(server.address, soon)

    assert second is not first
    assert second.request(RemotingCommand(code=30), soon).code == 0


def test_the_connections_to_an_address_are_counted(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline
) -> None:
    """F4: a broker that was restarted has another one."""
    assert pool.opened(server.address) == 0
    first = pool.get(server.address, soon)
    pool.get(server.address, soon)
    assert pool.opened(server.address) == 1
    first.close()
    pool.get(server.address, soon)

    assert pool.opened(server.address) == 2
    assert pool.opened("127.0.0.1:1") == 0


def test_threads_that_ask_at_once_share_one_connect(server: ScriptedServer, soon: Deadline) -> None:
    """A1: nobody waits under the lock, nobody connects twice."""
    connect = HeldConnect()
    with ChannelPool(CLOCK, connect=connect) as pool:
        first = get_in_thread(pool, server.address, soon)
        connect.asked.get(timeout=PATIENCE_S)
        second = get_in_thread(pool, server.address, soon)
        other = ScriptedServer()
        connect.may_go_on.set()

        assert first.get(timeout=PATIENCE_S) is second.get(timeout=PATIENCE_S)
        assert isinstance(pool.get(other.address, soon), Channel)
        server.next_peer()
        assert server.connection_count == 1
        other.close()


def test_a_failed_connect_fails_all_who_wait_and_is_tried_again_by_the_next(
    server: ScriptedServer, soon: Deadline
) -> None:
    """A1: each gets an error of its own."""
    connect = HeldConnect()
    connect.fails = True
    with ChannelPool(CLOCK, connect=connect) as pool:
        outcomes = [get_in_thread(pool, server.address, soon) for _ in range(3)]
        connect.asked.get(timeout=PATIENCE_S)
        connect.may_go_on.set()
        errors = [outcome.get(timeout=PATIENCE_S) for outcome in outcomes]
        connect.fails = False

        assert all(isinstance(error, ConnectFailed) for error in errors)
        assert len({id(error) for error in errors}) == 3
        assert isinstance(pool.get(server.address, soon), Channel)


def test_a_caller_waiting_for_another_caller_s_connect_keeps_its_own_deadline(
    server: ScriptedServer, soon: Deadline
) -> None:
    """A1: every call has its bound."""
    connect = HeldConnect()
    with ChannelPool(CLOCK, connect=connect) as pool:
        first = get_in_thread(pool, server.address, soon)
        connect.asked.get(timeout=PATIENCE_S)

        with pytest.raises(ConnectFailed, match="still connecting"):
            pool.get(server.address, Deadline.after(CLOCK, 0.0))
        connect.may_go_on.set()
        assert isinstance(first.get(timeout=PATIENCE_S), Channel)


def test_a_closed_pool_gives_no_channel_and_closes_one_that_was_being_made(
    server: ScriptedServer, soon: Deadline
) -> None:
    """A1: nothing is left open."""
    connect = HeldConnect()
    pool = ChannelPool(CLOCK, connect=connect)
    outcome = get_in_thread(pool, server.address, soon)
    connect.asked.get(timeout=PATIENCE_S)
    pool.close()
    connect.may_go_on.set()

    assert isinstance(outcome.get(timeout=PATIENCE_S), ChannelClosed)
    with pytest.raises(ChannelClosed):
        pool.get(server.address, soon)
    assert server.next_peer().has_ended.wait(PATIENCE_S)


def test_a_server_that_says_go_away_gets_no_new_request_and_gives_its_last_answers(
    server: ScriptedServer, soon: Deadline
) -> None:
    """A1: code 1500; what is under way is not lost, what comes next goes over a new connection."""
    held: SimpleQueue[tuple[Peer, RemotingCommand]] = SimpleQueue()
    server.script = lambda peer, request: (
        held.put((peer, request)) if request.code == 11 else peer.answer(request, ResponseCode.GO_AWAY)
    )
    with ChannelPool(CLOCK) as pool:
        leaving = pool.get(server.address, soon)
        answers: SimpleQueue[object] = SimpleQueue()
        leaving.submit(RemotingCommand(code=11), answers.put)
        assert leaving.request(RemotingCommand(code=34), soon).code == ResponseCode.GO_AWAY
        fresh = pool.get(server.address, soon)
        peer, request = held.get(timeout=PATIENCE_S)
        peer.answer(request)

        assert fresh is not leaving
        answer = answers.get(timeout=PATIENCE_S)
        assert isinstance(answer, RemotingCommand)
        assert answer.code == ResponseCode.SUCCESS
        wait_until(lambda: leaving.has_ended)
        assert pool.get(server.address, soon) is fresh


def test_a_closed_pool_closes_what_it_had_replaced(server: ScriptedServer, soon: Deadline) -> None:
    """A1: a leaving channel that still waits for an answer is not forgotten."""
    server.script = lambda peer, request: (
        None if request.code == 11 else peer.answer(request, ResponseCode.GO_AWAY)
    )
    outcomes: SimpleQueue[object] = SimpleQueue()
    with ChannelPool(CLOCK) as pool:
        leaving = pool.get(server.address, soon)
        leaving.submit(RemotingCommand(code=11), outcomes.put)
        leaving.request(RemotingCommand(code=34), soon)
        pool.get(server.address, soon)

    assert isinstance(outcomes.get(timeout=PATIENCE_S), ChannelClosed)
    assert server.next_peer().has_ended.wait(PATIENCE_S)
