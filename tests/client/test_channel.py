from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue

import pytest

from pyspark_rocketmq.client import channel as channels
from pyspark_rocketmq.client import transport
from pyspark_rocketmq.client.channel import MOST_BYTES, MOST_REQUESTS, Channel, RequestHandler
from pyspark_rocketmq.client.transport import TcpTransport, open_socket
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.errors import ChannelClosed, RemoteProtocolError, RequestTimeout
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand, SerializeType, encode_frame
from tests.helpers.fake_clock import FakeClock
from tests.helpers.scripted_server import Peer, ScriptedServer
from tests.helpers.wait import PATIENCE_S, wait_until

CLOCK = SystemClock()
QUESTION = RemotingCommand(
    code=RequestCode.GET_MAX_OFFSET, ext_fields={"topic": "orders", "queueId": "3", "bname": "broker-a"}
)


def soon() -> Deadline:
    return Deadline.after(CLOCK, PATIENCE_S)


@contextmanager
def open_channel(
    server: ScriptedServer, *, clock: SystemClock | FakeClock = CLOCK, handler: RequestHandler | None = None
) -> Iterator[Channel]:
    channel = Channel(TcpTransport.connect(server.address, PATIENCE_S), clock, request_handler=handler)
    try:
        yield channel
    finally:
        channel.close()


def silent(peer: Peer, request: RemotingCommand) -> None:
    """Never answer."""


@pytest.mark.parametrize("serialize_type", list(SerializeType))
def test_a_request_gets_its_answer_in_either_header_form(serialize_type: SerializeType) -> None:
    """A1: both header forms are read and written."""
    with ScriptedServer(
        lambda peer, request: peer.answer(request, ext_fields={"offset": "7"}, body=b"x")
    ) as server:
        with open_channel(server) as channel:
            question = RemotingCommand(code=30, ext_fields={"topic": "T"}, serialize_type=serialize_type)
            answer = channel.request(question, soon())

        assert (answer.code, answer.ext_fields, answer.body) == (0, {"offset": "7"}, b"x")
        assert server.next_request().serialize_type == serialize_type


def test_answers_in_any_order_reach_their_requests() -> None:
    """A1: answers are matched by opaque."""
    held: list[RemotingCommand] = []

    def answer_in_reverse(peer: Peer, request: RemotingCommand) -> None:
        held.append(request)
        if len(held) == 3:
            for earlier in reversed(held):
                peer.answer(earlier, body=earlier.body)

    outcomes: SimpleQueue[object] = SimpleQueue()
    with ScriptedServer(answer_in_reverse) as server, open_channel(server) as channel:
        for name in (b"a", b"b", b"c"):
            channel.submit(
                RemotingCommand(code=30, body=name),
                partial(lambda of, answer: outcomes.put((of, answer.body)), name),
            )
        pairs = [outcomes.get(timeout=PATIENCE_S) for _ in range(3)]

    assert pairs == [(b"c", b"c"), (b"b", b"b"), (b"a", b"a")]


def test_a_servers_request_with_our_opaque_is_no_answer() -> None:
    """A1: the response bit decides, never only the opaque."""

    def ask_back_first(peer: Peer, request: RemotingCommand) -> None:
        peer.send(
            RemotingCommand(code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, opaque=request.opaque, flag=2)
        )
        peer.answer(request, body=b"the answer")

    seen: SimpleQueue[int] = SimpleQueue()
    with (
        ScriptedServer(ask_back_first) as server,
        open_channel(server, handler=lambda request: seen.put(request.code)) as channel,
    ):
        assert channel.request(QUESTION, soon()).body == b"the answer"
        assert seen.get(timeout=PATIENCE_S) == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED


def test_a_late_answer_is_ignored_and_the_channel_goes_on() -> None:
    """A1: an abandoned request's answer comes anyway and disturbs nobody."""
    held: SimpleQueue[RemotingCommand] = SimpleQueue()
    with ScriptedServer(lambda _peer, request: held.put(request)) as server, open_channel(server) as channel:
        peer = server.next_peer()
        with pytest.raises(RequestTimeout) as caught:
            channel.request(QUESTION, Deadline.after(CLOCK, 0.0))
        peer.answer(held.get(timeout=PATIENCE_S))
        server.script = lambda peer, request: peer.answer(request, body=b"second")

        assert channel.request(QUESTION, soon()).body == b"second"
        assert "GET_MAX_OFFSET topic=orders broker=broker-a queue=3" in str(caught.value)
        assert server.address in str(caught.value)


def test_a_submitted_request_is_given_up_after_its_deadline() -> None:
    """A1: no callback waits for ever."""
    clock = FakeClock()
    outcomes: SimpleQueue[object] = SimpleQueue()
    with ScriptedServer(silent) as server, open_channel(server, clock=clock) as channel:
        channel.submit(QUESTION, outcomes.put, Deadline.after(clock, 30.0))
        channel.submit(QUESTION, outcomes.put, Deadline.after(clock, 90.0))
        server.next_request()
        server.next_request()
        server.script = lambda peer, request: peer.answer(request)
        channel.request(QUESTION, soon())
        clock.advance(29.0)
        channel.expire_overdue()
        assert outcomes.empty()
        clock.advance(2.0)
        channel.expire_overdue()

        error = outcomes.get(timeout=PATIENCE_S)
        assert isinstance(error, RequestTimeout)
        assert error.timeout_s == pytest.approx(31.0)
        assert outcomes.empty()


def give_up(channel: Channel, clock: FakeClock, *, how: str) -> None:
    """Have a request overdue, one that somebody waits for or one that was submitted."""
    if how == "request":
        with pytest.raises(RequestTimeout):
            channel.request(QUESTION, Passed(clock, clock.monotonic_s()))
        return
    outcomes: SimpleQueue[object] = SimpleQueue()
    channel.submit(QUESTION, outcomes.put, Deadline.after(clock, 3.0))
    clock.advance(3.0)
    channel.expire_overdue()
    assert isinstance(outcomes.get(timeout=PATIENCE_S), RequestTimeout)


class Passed(Deadline):
    """A deadline that passes, by a clock of the test's, as soon as somebody looks how much time is left."""

    def remaining_s(self) -> float:
        assert isinstance(self.clock, FakeClock)
        self.clock.advance(3.0)
        return 0.001


class Discarding(TcpTransport):
    """Remembers whether its unsent bytes are to be discarded."""

    discards = False

    def discard_unsent(self) -> None:
        self.discards = True
        super().discard_unsent()


@pytest.mark.parametrize("how", ["request", "submit", "garbage", "close", "asked to leave"])
def test_what_a_channel_has_not_sent_outlives_only_its_end_in_good_order(how: str) -> None:
    """A7: after a failure, a request would arrive after those of the next connection."""
    clock = FakeClock()
    with ScriptedServer(silent) as server:
        connected = Discarding(server.address, open_socket(server.address, PATIENCE_S), stall_s=0.05)
        channel = Channel(connected, clock)
        if how in ("request", "submit"):
            give_up(channel, clock, how=how)
        elif how == "garbage":
            server.next_peer().send_bytes(b"GET / HTTP/1.1")
            wait_until(lambda: channel.has_ended)
        elif how == "asked to leave":
            server.script = lambda peer, request: peer.answer(request, code=ResponseCode.GO_AWAY)
            channel.request(QUESTION, soon())
            wait_until(lambda: channel.has_ended)
        channel.close()

    assert connected.discards is (how not in ("close", "asked to leave"))


@pytest.mark.parametrize("how", ["request", "submit"])
def test_a_connection_that_is_silent_when_a_request_times_out_is_closed(how: str) -> None:
    """A7: what else is under way fails with it, and the next request needs a new connection."""
    clock, others = FakeClock(), SimpleQueue[object]()
    with ScriptedServer(silent) as server, open_channel(server, clock=clock) as channel:
        channel.submit(QUESTION, others.put)
        give_up(channel, clock, how=how)

        assert not channel.is_open
        other = others.get(timeout=PATIENCE_S)
        assert isinstance(other, ChannelClosed)
        assert "the server sent nothing for" in str(other)
        assert server.next_peer().has_ended.wait(PATIENCE_S)


def test_a_short_request_that_times_out_leaves_the_others_three_seconds() -> None:
    """A7: a slow broker may answer those that have more time; one that is gone answers none of them."""
    clock, others = FakeClock(), SimpleQueue[object]()
    with ScriptedServer(silent) as server, open_channel(server, clock=clock) as channel:
        channel.submit(QUESTION, others.put, Deadline.after(clock, 10.0))
        for _ in range(2):
            channel.submit(QUESTION, lambda _: None, Deadline.after(clock, 1.0))
            clock.advance(1.0)
            channel.expire_overdue()
            assert channel.is_open

        channel.submit(QUESTION, lambda _: None, Deadline.after(clock, 1.0))
        clock.advance(1.0)
        channel.expire_overdue()

        assert not channel.is_open
        assert isinstance(others.get(timeout=PATIENCE_S), ChannelClosed)


@pytest.mark.parametrize("how", ["request", "submit"])
@pytest.mark.parametrize("by", ["answer", "request of the server"])
def test_a_connection_on_which_anything_came_outlives_a_timeout(how: str, by: str) -> None:
    """A7: a broker that drops one request, or is slow with it, serves the others on."""
    clock, outcomes = FakeClock(), SimpleQueue[object]()
    slow = RemotingCommand(code=11)

    def script(peer: Peer, request: RemotingCommand) -> None:
        if request.code == slow.code:
            return
        if by != "answer":
            peer.send(RemotingCommand(code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, opaque=7))
        peer.answer(request)

    with ScriptedServer(script) as server, open_channel(server, clock=clock) as channel:
        channel.submit(slow, outcomes.put, Deadline.after(clock, 3.0))
        channel.request(QUESTION, soon())
        clock.advance(3.0)
        channel.expire_overdue()

        assert isinstance(outcomes.get(timeout=PATIENCE_S), RequestTimeout)
        assert channel.is_open
        server.script = silent
        give_up(channel, clock, how=how)
        assert not channel.is_open, "nothing came since that one was sent"


def test_an_answer_that_has_come_while_the_process_stood_still_keeps_the_connection() -> None:
    """A7: the reader has not run yet when the caller's time is over; nothing is said of the peer."""
    clock, busy = FakeClock(), threading.Event()
    is_reading = threading.Event()

    def block(_: object) -> None:
        is_reading.set()
        assert busy.wait(PATIENCE_S)

    with ScriptedServer() as server, open_channel(server, clock=clock) as channel:
        channel.submit(QUESTION, block)
        assert is_reading.wait(PATIENCE_S)
        answered = threading.Event()

        def answer(peer: Peer, request: RemotingCommand) -> None:
            peer.answer(request)
            answered.set()

        server.script = answer

        outcomes: SimpleQueue[object] = SimpleQueue()
        channel.submit(QUESTION, outcomes.put, Deadline.after(clock, 3.0))
        assert answered.wait(PATIENCE_S)
        clock.advance(3.0)
        channel.expire_overdue()
        assert isinstance(outcomes.get(timeout=PATIENCE_S), RequestTimeout)
        busy.set()

        assert channel.is_open
        assert channel.request(QUESTION, soon()).code == 0


def test_a_request_that_had_hardly_any_time_says_nothing_of_the_connection() -> None:
    """A7: as in Java, where less than 100 ms were left."""
    with ScriptedServer(silent) as server, open_channel(server, clock=FakeClock()) as channel:
        with pytest.raises(RequestTimeout):
            channel.request(QUESTION, Deadline.after(CLOCK, 0.0))

        assert channel.is_open


def test_the_reader_looks_after_deadlines_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A1: the sweep needs no traffic."""
    monkeypatch.setattr(transport, "RECEIVE_TICK_S", 0.02)
    monkeypatch.setattr(channels, "RECEIVE_TICK_S", 0.02)
    outcomes: SimpleQueue[object] = SimpleQueue()
    with ScriptedServer(silent) as server, open_channel(server) as channel:
        channel.submit(QUESTION, outcomes.put, Deadline.after(CLOCK, 0.0))

        assert isinstance(outcomes.get(timeout=PATIENCE_S), RequestTimeout)


def test_the_end_of_the_stream_fails_everything_under_way() -> None:
    """A1: one error per request, naming the request."""
    outcomes: SimpleQueue[object] = SimpleQueue()
    with ScriptedServer(silent) as server, open_channel(server) as channel:
        channel.submit(QUESTION, outcomes.put)
        channel.submit(QUESTION, outcomes.put)
        server.next_request()
        server.next_request()
        server.next_peer().close()
        first, second = outcomes.get(timeout=PATIENCE_S), outcomes.get(timeout=PATIENCE_S)

        assert isinstance(first, ChannelClosed)
        assert isinstance(second, ChannelClosed)
        assert first is not second
        assert "GET_MAX_OFFSET topic=orders" in str(first)
        assert not channel.is_open


def test_a_frame_cut_by_the_end_of_the_stream_is_reported() -> None:
    """A1: truncation is not a clean end."""

    def cut(peer: Peer, request: RemotingCommand) -> None:
        peer.send_bytes(encode_frame(request.response(0, body=b"x" * 100))[:-40])
        peer.close()

    with (
        ScriptedServer(cut) as server,
        open_channel(server) as channel,
        pytest.raises(ChannelClosed, match="bytes of an unfinished message"),
    ):
        channel.request(QUESTION, soon())


def test_a_reset_connection_ends_the_channel() -> None:
    """A1: a crash of the server is a retryable error."""
    with (
        ScriptedServer(lambda peer, _request: peer.reset()) as server,
        open_channel(server) as channel,
        pytest.raises(ChannelClosed) as caught,
    ):
        channel.request(QUESTION, soon())
    assert caught.value.retryable


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x00\x00\x00\x04\x00\x00\x00\xff",
        b"\x00\x00\x00\x06\x00\x00\x00\x02{]",
    ],
    ids=["another protocol", "header longer than frame", "no JSON"],
)
def test_garbage_fails_everything_and_closes_the_channel(garbage: bytes) -> None:
    """A1: after nonsense nothing on this connection can be trusted."""
    outcomes: SimpleQueue[object] = SimpleQueue()
    with ScriptedServer(silent) as server, open_channel(server) as channel:
        channel.submit(QUESTION, outcomes.put)
        channel.submit(QUESTION, outcomes.put)
        peer = server.next_peer()
        server.next_request()
        server.next_request()
        peer.send_bytes(garbage)

        assert isinstance(outcomes.get(timeout=PATIENCE_S), RemoteProtocolError)
        assert isinstance(outcomes.get(timeout=PATIENCE_S), RemoteProtocolError)
        assert peer.has_ended.wait(PATIENCE_S)
        assert not channel.is_open


def test_an_unknown_request_of_the_server_is_answered_and_the_channel_stays() -> None:
    """A1: code 3, never a dropped connection."""
    with ScriptedServer() as server, open_channel(server) as channel:
        server.next_peer().send(RemotingCommand(code=RequestCode.GET_CONSUMER_RUNNING_INFO, opaque=77))
        answer = server.next_answer()

        assert (answer.code, answer.opaque) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, 77)
        assert answer.is_response
        assert channel.request(QUESTION, soon()).code == 0


def test_a_handled_request_of_the_server_gets_the_handlers_answer() -> None:
    """A1: requests in both directions on one connection."""
    with (
        ScriptedServer() as server,
        open_channel(server, handler=lambda request: request.response(0, body=b"info")),
    ):
        server.next_peer().send(RemotingCommand(code=RequestCode.GET_CONSUMER_RUNNING_INFO, opaque=5))

        assert server.next_answer().body == b"info"


def test_a_failing_handler_is_answered_with_a_system_error(caplog: pytest.LogCaptureFixture) -> None:
    """A1: the server learns why, the channel lives."""

    def fail(request: RemotingCommand) -> RemotingCommand:
        raise ValueError("no such group")

    with ScriptedServer() as server, open_channel(server, handler=fail) as channel:
        server.next_peer().send(RemotingCommand(code=307, opaque=5))
        answer = server.next_answer()

        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "no such group" in (answer.remark or "")
        assert channel.request(QUESTION, soon()).code == 0
    assert "request handler failed" in caplog.text


def test_a_slow_handler_delays_no_answer() -> None:
    """A1: the reader never waits for a handler."""
    may_finish = threading.Event()

    def finish_late(_request: RemotingCommand) -> None:
        may_finish.wait(PATIENCE_S)

    with (
        ScriptedServer() as server,
        open_channel(server, handler=finish_late) as channel,
    ):
        server.next_peer().send(RemotingCommand(code=307, opaque=5))

        assert channel.request(QUESTION, soon()).code == 0
        may_finish.set()
        assert server.next_answer().code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


@pytest.mark.parametrize(
    ("size", "taken"), [(0, MOST_REQUESTS), (1 << 20, (MOST_BYTES >> 20) - 1)], ids=["many", "large"]
)
def test_requests_that_wait_for_a_slow_handler_are_bounded(
    size: int, taken: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A1: in number and in memory; the rest is answered that this client is busy, and the channel goes on."""
    may_finish = threading.Event()
    handled: list[int] = []

    def handle(request: RemotingCommand) -> RemotingCommand:
        assert may_finish.wait(PATIENCE_S)
        handled.append(request.opaque)
        return request.response(0)

    with ScriptedServer() as server, open_channel(server, handler=handle) as channel:
        peer = server.next_peer()
        for opaque in range(taken + 3):
            peer.send(RemotingCommand(code=307, opaque=opaque, body=bytes(size)))
        refused = [server.next_answer() for _ in range(3)]

        assert [answer.opaque for answer in refused] == [taken, taken + 1, taken + 2]
        assert {answer.code for answer in refused} == {ResponseCode.SYSTEM_BUSY}
        assert channel.request(QUESTION, soon()).code == 0
        may_finish.set()
        answers = [server.next_answer() for _ in range(taken)]
        assert {answer.code for answer in answers} == {0}
        assert handled == list(range(taken))
        # With room again nothing is refused.
        peer.send(RemotingCommand(code=307, opaque=9_999))
        assert server.next_answer().code == 0
    assert caplog.text.count("too many requests wait for a slow handler") == 1


def test_a_oneway_request_beyond_the_bound_is_dropped() -> None:
    """A1: flag bit 1 forbids an answer, even a refusal."""
    may_finish = threading.Event()
    handled: list[int] = []

    def handle(request: RemotingCommand) -> None:
        assert may_finish.wait(PATIENCE_S)
        handled.append(request.opaque)

    with ScriptedServer() as server, open_channel(server, handler=handle) as channel:
        peer = server.next_peer()
        for opaque in range(MOST_REQUESTS + 1):
            peer.send(RemotingCommand(code=40, opaque=opaque, flag=2))
        assert channel.request(QUESTION, soon()).code == 0  # all of them have arrived
        may_finish.set()
    assert handled == list(range(MOST_REQUESTS))


def test_one_request_is_taken_however_large_it_is() -> None:
    """A1."""
    with ScriptedServer() as server, open_channel(server, handler=lambda request: request.response(0)):
        server.next_peer().send(RemotingCommand(code=307, opaque=1, body=bytes(15 << 20)))

        assert server.next_answer().code == 0


def test_a_oneway_request_of_the_server_is_never_answered() -> None:
    """A1: flag bit 1 forbids an answer, even an error."""
    with ScriptedServer() as server, open_channel(server) as channel:
        peer = server.next_peer()
        peer.send(RemotingCommand(code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, opaque=1, flag=2))
        peer.send(RemotingCommand(code=307, opaque=2))

        assert server.next_answer().opaque == 2
        assert channel.is_open


def test_a_oneway_request_carries_its_flag_and_waits_for_nothing() -> None:
    """A1: flag bit 1."""
    with ScriptedServer(silent) as server, open_channel(server) as channel:
        channel.oneway(QUESTION)

        assert server.next_request().is_oneway


def test_closing_fails_what_is_under_way_and_ends_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A1: close is complete and may be repeated."""
    monkeypatch.setattr(channels, "_JOIN_S", PATIENCE_S)
    outcomes: SimpleQueue[object] = SimpleQueue()
    with ScriptedServer(silent) as server, open_channel(server) as channel:
        channel.submit(QUESTION, outcomes.put)
        peer = server.next_peer()
        channel.close()
        channel.close()

        assert isinstance(outcomes.get(timeout=PATIENCE_S), ChannelClosed)
        assert not [thread for thread in threading.enumerate() if server.address in thread.name]
        assert peer.has_ended.wait(PATIENCE_S)


def test_a_closed_channel_refuses_at_once() -> None:
    """A1: the caller hears of it like of any other failure."""
    outcomes: SimpleQueue[object] = SimpleQueue()
    with ScriptedServer(silent) as server, open_channel(server) as channel:
        channel.close()
        channel.submit(QUESTION, outcomes.put)

        assert isinstance(outcomes.get(timeout=0), ChannelClosed)
        with pytest.raises(ChannelClosed):
            channel.request(QUESTION, soon())
        with pytest.raises(ChannelClosed):
            channel.oneway(QUESTION)


def test_a_callback_may_close_the_channel_and_submit_again() -> None:
    """A1: callbacks run without a lock held."""
    outcomes: SimpleQueue[object] = SimpleQueue()
    with ScriptedServer() as server, open_channel(server) as channel:

        def again(_answer: object) -> None:
            channel.submit(QUESTION, close)

        def close(_answer: object) -> None:
            channel.close()
            channel.submit(QUESTION, outcomes.put)

        channel.submit(QUESTION, again)

        assert isinstance(outcomes.get(timeout=PATIENCE_S), ChannelClosed)


def test_a_failing_callback_is_logged_and_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """A1: the reader survives its callers' bugs."""
    with ScriptedServer() as server, open_channel(server) as channel:
        channel.submit(QUESTION, lambda _answer: 1 // 0)

        assert channel.request(QUESTION, soon()).code == 0
    assert "response callback failed request=GET_MAX_OFFSET" in caplog.text


def test_a_peer_that_takes_nothing_ends_the_channel_instead_of_hanging() -> None:
    """A1: sending is bounded by the transport's own time-out."""
    may_read = threading.Event()
    outcomes: SimpleQueue[object] = SimpleQueue()
    with ScriptedServer(lambda _peer, _request: may_read.wait(PATIENCE_S)) as server:
        impatient = TcpTransport(server.address, open_socket(server.address, PATIENCE_S), stall_s=0.05)
        channel = Channel(impatient, CLOCK)
        for _ in range(4):
            channel.submit(RemotingCommand(code=30, body=bytes(15 * 1024 * 1024)), outcomes.put)
        may_read.set()
        channel.close()

    first = outcomes.get(timeout=PATIENCE_S)
    assert isinstance(first, ChannelClosed)
    assert re.search(r"accepted \d+ of 15728\d+ bytes within [0-9.]+ s", str(first))


def test_many_threads_share_one_channel() -> None:
    """A1: frames of different threads never mix."""
    with (
        ScriptedServer(lambda peer, request: peer.answer(request, body=request.body)) as server,
        open_channel(server) as channel,
    ):
        wrong: SimpleQueue[object] = SimpleQueue()

        def ask(name: int) -> None:
            for count in range(30):
                body = f"{name}-{count}".encode() * 200
                if channel.request(RemotingCommand(code=30, body=body), soon()).body != body:
                    wrong.put((name, count))

        threads = [threading.Thread(target=ask, args=(name,)) for name in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)

        assert wrong.empty()
        assert server.requests.qsize() == 180
