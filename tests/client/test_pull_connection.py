from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_rocketmq.client import identity
from pyspark_rocketmq.client.pull_connection import (
    PullConnection,
    acquire_connection,
    close_idle_connections,
    release_connection,
)
from pyspark_rocketmq.errors import (
    BrokerError,
    ChannelClosed,
    ExpressionInvalid,
    GoAway,
    RemoteProtocolError,
    RequestTimeout,
    SystemBusy,
    WrongBroker,
)
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.codes import PullSysFlag, RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand, encode_frame
from pyspark_rocketmq.wire.framing import FrameDecoder
from pyspark_rocketmq.wire.requests.pull import PullRequest, PullResult
from tests.helpers.fake_clock import FakeClock

QUEUE = MessageQueue("orders", "broker-a", 3)
ADDRESS = "broker-a:10911"
FOUND = {"nextBeginOffset": "32", "minOffset": "0", "maxOffset": "64", "suggestWhichBrokerId": "0"}


class Broker:
    """A transport whose other end is the test: it keeps what was sent and gives what it was set to."""

    def __init__(self, clock: FakeClock) -> None:
        self.address = ADDRESS
        self.sends: list[bytes] = []
        self.is_closed = self.discards = False
        self.awaited_bytes = 1
        self._clock = clock
        self._incoming: list[bytes | float] = []

    def give(self, *commands: RemotingCommand) -> None:
        """One receive brings all of ``commands``."""
        self._incoming.append(b"".join(map(encode_frame, commands)))

    def give_bytes(self, data: bytes) -> None:
        """One receive brings ``data``; empty: the end."""
        self._incoming.append(data)

    def be_silent(self, seconds: int) -> None:
        """So many receives bring nothing, one a second."""
        self._incoming += [1.0] * seconds

    def stand_still(self, seconds: float) -> None:
        """A receive that takes so long, which brings nothing all the same."""
        self._incoming.append(seconds)

    def requests(self) -> list[RemotingCommand]:
        """What was sent, decoded."""
        return FrameDecoder().feed(b"".join(self.sends))

    def sendall(self, data: bytes, timeout_s: float = 0.0) -> None:
        self.sends.append(data)

    def recv_into(self, buffer: memoryview) -> int | None:
        data = self._incoming.pop(0)
        if isinstance(data, float):
            self._clock.advance(data)
            return None
        buffer[: len(data)] = data
        return len(data)

    def await_bytes(self, count: int) -> bool:
        self.awaited_bytes = count
        return count > 1

    def fileno(self) -> int:
        return -1

    def discard_unsent(self) -> None:
        self.discards = True

    def shutdown(self) -> None:
        self.is_closed = True

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def broker(clock: FakeClock) -> Broker:
    return Broker(clock)


@pytest.fixture
def line(broker: Broker, clock: FakeClock) -> PullConnection[PullRequest]:
    return PullConnection(broker, clock)


def pull(queue_offset: int) -> PullRequest:
    return PullRequest(consumer_group="g", queue=QUEUE, queue_offset=queue_offset)


def test_pulls_leave_in_one_piece_and_each_answer_finds_its_pull(
    broker: Broker, line: PullConnection[PullRequest]
) -> None:
    """A4: answers come in any order."""
    line.send([pull(0), pull(32)])
    first, second = broker.requests()
    broker.give(
        second.response(0, ext_fields={**FOUND, "nextBeginOffset": "64"}, body=b"later"),
        first.response(0, ext_fields=FOUND, body=b"earlier"),
    )

    answers = line.receive(3.0)

    assert len(broker.sends) == 1
    assert [sent for sent, _ in answers] == [pull(32), pull(0)]
    results = [outcome for _, outcome in answers if isinstance(outcome, PullResult)]
    assert [(result.next_begin_offset, result.body) for result in results] == [
        (64, b"later"),
        (32, b"earlier"),
    ]
    assert line.in_flight == 0


def answer_two(broker: Broker, line: PullConnection[PullRequest], body: bytes) -> int:
    """Answer two pulls with ``body`` each; return how many bytes one answer has."""
    line.send([pull(0), pull(32)])
    answers = [each.response(0, ext_fields=FOUND, body=body) for each in broker.requests()[-2:]]
    broker.give(*answers)
    line.receive(3.0)
    return len(encode_frame(answers[0]))


def test_a_wait_is_for_as_many_bytes_as_the_awaited_answers_will_have(
    broker: Broker, line: PullConnection[PullRequest]
) -> None:
    """A4: any byte ends a wait for one answer, and each wait until the size of answers is known."""
    assert not line.await_answers(8)
    assert broker.awaited_bytes == 1

    size = answer_two(broker, line, bytes(1000))

    assert line.await_answers(4)
    assert 3 * size < broker.awaited_bytes <= 4 * size
    assert line.await_answers(10_000)
    assert broker.awaited_bytes == 1 << 20
    for count in (1, 0):
        assert not line.await_answers(count)
        assert broker.awaited_bytes == 1


def test_a_wait_in_vain_is_followed_by_one_for_any_byte_and_shorter_ones(
    broker: Broker, line: PullConnection[PullRequest]
) -> None:
    """A4: answers that are shorter than the ones before them are received all the same."""
    size = answer_two(broker, line, bytes(1000))

    assert line.pass_time(0.0, 3.0) == []
    assert line.await_answers(4)
    assert line.pass_time(0.002, 3.0) == []
    assert not line.await_answers(4)
    assert line.pass_time(1.0, 3.0) == []
    assert not line.await_answers(4)

    assert answer_two(broker, line, bytes(1000)) == size
    assert line.await_answers(4)
    assert size < broker.awaited_bytes < 2 * size
    for _ in range(7):
        answer_two(broker, line, bytes(1000))
    assert line.await_answers(4)
    assert broker.awaited_bytes > 3 * size


def test_an_answer_in_two_parts_is_whole_when_the_second_came(
    broker: Broker, line: PullConnection[PullRequest]
) -> None:
    line.send([pull(0)])
    frame = encode_frame(broker.requests()[0].response(0, ext_fields=FOUND, body=b"body"))
    broker.give_bytes(frame[:50])
    broker.give_bytes(frame[50:])

    assert line.receive(3.0) == []
    assert line.in_flight == 1
    assert [sent for sent, _ in line.receive(3.0)] == [pull(0)]


def test_a_refused_pull_fails_by_itself(broker: Broker, line: PullConnection[PullRequest]) -> None:
    line.send([pull(0), pull(32)])
    busy, fine = broker.requests()
    broker.give(
        busy.response(ResponseCode.SYSTEM_BUSY, remark="later"), fine.response(0, ext_fields=FOUND, body=b"x")
    )

    outcomes = dict(line.receive(3.0))

    assert isinstance(outcomes[pull(0)], SystemBusy)
    assert isinstance(outcomes[pull(32)], PullResult)


def test_silence_is_reported_with_the_pull_that_was_not_answered(
    broker: Broker, line: PullConnection[PullRequest]
) -> None:
    line.send([pull(17)])
    broker.be_silent(3)

    with pytest.raises(RequestTimeout, match=r"PULL_MESSAGE .*queueOffset=17.* within 3 s"):
        line.receive(3.0)


def test_caller_busy_time_does_not_count_as_silence(
    broker: Broker, line: PullConnection[PullRequest], clock: FakeClock
) -> None:
    """The answers were there all the time."""
    line.send([pull(0)])
    clock.advance(600.0)
    broker.be_silent(1)
    broker.give(broker.requests()[0].response(0, ext_fields=FOUND, body=b"x"))

    assert [sent for sent, _ in line.receive(3.0)] == [pull(0)]


def test_a_process_that_stood_still_has_heard_no_silence(
    broker: Broker, line: PullConnection[PullRequest]
) -> None:
    """Nor have other pulls been passed over meanwhile."""
    line.send([pull(0), pull(32)])
    first, second = broker.requests()
    broker.stand_still(600.0)
    broker.give(second.response(0, ext_fields=FOUND, body=b"x"))
    assert [sent for sent, _ in line.receive(3.0)] == [pull(32)]

    broker.stand_still(600.0)
    broker.give(first.response(0, ext_fields=FOUND, body=b"x"))
    assert [(sent, type(outcome)) for sent, outcome in line.receive(3.0)] == [(pull(0), PullResult)]


def test_a_pull_that_is_passed_over_is_given_up_by_itself(
    broker: Broker, line: PullConnection[PullRequest], clock: FakeClock
) -> None:
    """A broker under flow control drops answers that it cannot write, and answers later pulls."""
    line.send([pull(0), pull(32)])
    _, first = broker.requests()
    broker.be_silent(2)
    broker.give(first.response(0, ext_fields=FOUND, body=b"x"))
    assert [sent for sent, _ in line.receive(3.0)] == [pull(32)]

    line.send([pull(64)])
    broker.be_silent(1)
    broker.give(broker.requests()[-1].response(0, ext_fields=FOUND, body=b"x"))
    outcomes = dict(line.receive(3.0))

    assert isinstance(outcomes[pull(64)], PullResult)
    assert isinstance(outcomes[pull(0)], RequestTimeout)
    assert "queueOffset=0" in str(outcomes[pull(0)])
    assert line.in_flight == 0


def test_a_silent_line_that_is_waited_for_among_others_is_given_up_too(
    broker: Broker, line: PullConnection[PullRequest]
) -> None:
    """A7: a replica that is silent while its master talks."""
    line.send([pull(0)])

    assert line.pass_time(2.9, 3.0) == []
    with pytest.raises(RequestTimeout, match=r"queueOffset=0"):
        line.pass_time(0.8, 3.0)

    assert line.close() == [pull(0)]
    assert broker.discards


def test_a_pull_that_is_passed_over_among_others_is_given_up_by_itself(
    broker: Broker, line: PullConnection[PullRequest]
) -> None:
    """The caller has waited for several lines before this one brings something."""
    line.send([pull(0), pull(32)])
    broker.give(broker.requests()[1].response(0, ext_fields=FOUND, body=b"x"))
    assert line.pass_time(2.0, 3.0) == []
    assert [sent for sent, _ in line.receive(3.0, waited_s=0.5)] == [pull(32)]
    line.send([pull(64)])
    broker.give(broker.requests()[-1].response(0, ext_fields=FOUND, body=b"x"))
    outcomes = dict(line.receive(3.0, waited_s=0.6))

    assert isinstance(outcomes[pull(64)], PullResult)
    assert isinstance(outcomes[pull(0)], RequestTimeout)
    assert line.in_flight == 0


def held(queue_offset: int) -> PullRequest:
    sys_flag = PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND
    return replace(pull(queue_offset), sys_flag=sys_flag, suspend_timeout_millis=15_000)


def test_silence_about_a_held_pull_begins_when_its_broker_must_have_answered(
    broker: Broker, line: PullConnection[PullRequest]
) -> None:
    """15 s, 5 s because a broker looks so often, and the usual silence."""
    line.send([held(17)])

    assert line.pass_time(22.9, 3.0) == []
    with pytest.raises(RequestTimeout, match=r"queueOffset=17.* within 23"):
        line.pass_time(0.8, 3.0)


def test_a_receive_waits_for_a_held_pull_as_long(broker: Broker, line: PullConnection[PullRequest]) -> None:
    line.send([held(0)])
    broker.be_silent(22)
    broker.give(broker.requests()[0].response(0, ext_fields=FOUND, body=b"x"))
    assert [sent for sent, _ in line.receive(3.0)] == [held(0)]

    line.send([held(32)])
    broker.be_silent(23)
    with pytest.raises(RequestTimeout, match=r"queueOffset=32"):
        line.receive(3.0)


def test_a_held_pull_hides_no_silence_about_another_one(
    broker: Broker, line: PullConnection[PullRequest]
) -> None:
    """A7: in whatever order they were sent."""
    line.send([held(0), pull(32)])

    assert line.pass_time(2.0, 3.0) == []
    with pytest.raises(RequestTimeout, match=r"queueOffset=32"):
        line.pass_time(1.0, 3.0)


def test_a_held_pull_is_given_up_by_itself_while_others_are_answered(
    broker: Broker, line: PullConnection[PullRequest]
) -> None:
    line.send([held(0)])
    for offset in range(1, 24):
        line.send([pull(offset)])
        broker.give(broker.requests()[-1].response(0, ext_fields=FOUND, body=b"x"))
        outcomes = dict(line.receive(3.0, waited_s=1.0))
        assert isinstance(outcomes[pull(offset)], PullResult)
        assert (held(0) in outcomes) is (offset == 23)


def test_unanswered_pulls_fail_when_the_connection_ends(
    broker: Broker, line: PullConnection[PullRequest]
) -> None:
    line.send([pull(0), pull(32)])
    broker.give(broker.requests()[0].response(0, ext_fields=FOUND, body=b"x"))
    broker.give_bytes(b"")
    line.receive(3.0)

    with pytest.raises(ChannelClosed, match="the server ended it"):
        line.receive(3.0)

    assert line.close() == [pull(32)]
    assert broker.is_closed


def test_garbage_ends_in_a_protocol_error(broker: Broker, line: PullConnection[PullRequest]) -> None:
    line.send([pull(0)])
    broker.give_bytes(b"HTTP/1.1 400 Bad Request\r\n")

    with pytest.raises(RemoteProtocolError):
        line.receive(3.0)


def test_unexpected_frames_are_ignored(broker: Broker, line: PullConnection[PullRequest]) -> None:
    """The opaque by itself does not make an answer: the broker numbers its own requests."""
    line.send([pull(0)])
    request = broker.requests()[0]
    broker.give(
        RemotingCommand(code=40, opaque=request.opaque),
        RemotingCommand(code=0, opaque=99, flag=1),
        request.response(0, ext_fields=FOUND, body=b"x"),
    )

    assert [sent for sent, _ in line.receive(3.0)] == [pull(0)]


def test_a_signed_pull_carries_its_signature(broker: Broker, clock: FakeClock) -> None:
    def sign(command: RemotingCommand) -> RemotingCommand:
        return replace(command, ext_fields={**command.ext_fields, "Signature": "s"})

    PullConnection[PullRequest](broker, clock, signer=sign).send([pull(17)])

    (request,) = broker.requests()
    assert request.ext_fields["Signature"] == "s"
    assert request.ext_fields["queueOffset"] == "17"


def introduction(request: RemotingCommand, name: str) -> RemotingCommand:
    return request.response(0, body=f"brokerId=0\nbrokerName={name}\nlistenPort=1\n".encode())


@pytest.fixture
def named(broker: Broker, clock: FakeClock) -> PullConnection[PullRequest]:
    """A new connection to broker-a."""
    return PullConnection(broker, clock, broker_name="broker-a")


def test_no_pull_leaves_before_the_server_has_said_which_broker_it_is(
    broker: Broker, named: PullConnection[PullRequest]
) -> None:
    """A7: it is asked once for each connection."""
    named.send([pull(0), pull(32)])
    named.send([pull(64)])
    (question,) = broker.requests()
    broker.give(introduction(question, "broker-a"))
    assert named.receive(3.0) == []
    _, first, second, third = broker.requests()
    broker.give(*(each.response(0, ext_fields=FOUND) for each in (first, second, third)))
    answers = named.receive(3.0)
    named.send([pull(96)])

    assert question.code == RequestCode.GET_BROKER_CONFIG
    assert [sent for sent, _ in answers] == [pull(0), pull(32), pull(64)]
    assert [request.code for request in broker.requests()].count(RequestCode.GET_BROKER_CONFIG) == 1


def test_a_server_that_refuses_its_name_is_pulled_from_with_a_warning(
    broker: Broker, named: PullConnection[PullRequest], caplog: pytest.LogCaptureFixture
) -> None:
    """A7: on the connections of tasks, too."""
    identity._warned.clear()
    named.send([pull(0)])
    broker.give(broker.requests()[0].response(ResponseCode.NO_PERMISSION, remark="no right"))
    assert named.receive(3.0) == []

    assert len(broker.requests()) == 2
    assert "Give this user the right to GET_BROKER_CONFIG" in caplog.text


def test_another_broker_gets_no_pull(broker: Broker, named: PullConnection[PullRequest]) -> None:
    """A7: brokers have changed addresses since the route was made."""
    named.send([pull(0)])
    broker.give(introduction(broker.requests()[0], "broker-b"))

    with pytest.raises(WrongBroker, match="broker-a:10911: it is broker-b, and broker-a was expected there"):
        named.receive(3.0)
    assert named.close() == [pull(0)]
    assert len(broker.requests()) == 1


@pytest.mark.parametrize(
    "code", [ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR]
)
def test_a_server_that_does_not_say_its_name_is_taken_for_the_broker_of_the_route(
    broker: Broker, named: PullConnection[PullRequest], code: ResponseCode
) -> None:
    """A7: a proxy finds the broker by itself; a managed cluster refuses the question."""
    named.send([pull(0)])
    broker.give(broker.requests()[0].response(code, remark="no"))

    assert named.receive(3.0) == []
    assert len(broker.requests()) == 2


@pytest.mark.parametrize(
    ("code", "expected"), [(ResponseCode.SYSTEM_BUSY, SystemBusy), (ResponseCode.GO_AWAY, GoAway)]
)
def test_a_server_that_is_too_busy_to_say_its_name_is_tried_again(
    broker: Broker, named: PullConnection[PullRequest], code: ResponseCode, expected: type[BrokerError]
) -> None:
    """A7: it may be any broker."""
    named.send([pull(0)])
    broker.give(broker.requests()[0].response(code, remark="later"))

    with pytest.raises(expected):
        named.receive(3.0)


# --- SQL92 conditions ---------------------------------------------------------------------------------------


def filtered(queue_offset: int, topic: str = "orders") -> PullRequest:
    queue = QUEUE._replace(topic=topic)
    return replace(pull(queue_offset), queue=queue, subscription="amount > 10", expression_type="SQL92")


def codes(broker: Broker) -> list[int]:
    return [request.code for request in broker.requests()]


CHECK, PULL = RequestCode.CHECK_CLIENT_CONFIG, RequestCode.PULL_MESSAGE


def test_a_condition_is_checked_before_its_first_pull_and_once_on_a_connection(
    broker: Broker, line: PullConnection[PullRequest]
) -> None:
    """A4: one check for each topic and condition; pulls without one do not wait for it."""
    line.send([filtered(0), filtered(32), pull(64), filtered(0, "payments")])
    assert codes(broker) == [CHECK, PULL, CHECK]
    of_orders, plain, of_payments = broker.requests()
    assert [b'"amount > 10"' in check.body for check in (of_orders, of_payments)] == [True, True]
    assert line.in_flight == 4

    broker.give(of_orders.response(0), plain.response(0, ext_fields=FOUND, body=b"x"))
    assert [sent for sent, _ in line.receive(3.0)] == [pull(64)]
    sent = [request.ext_fields["queueOffset"] for request in broker.requests()[3:]]
    assert sent == ["0", "32"]
    line.send([filtered(64), filtered(96, "payments")])
    assert codes(broker)[5:] == [PULL]

    broker.give(
        of_payments.response(0), *(each.response(0, ext_fields=FOUND) for each in broker.requests()[3:6])
    )
    assert [sent for sent, _ in line.receive(3.0)] == [filtered(0), filtered(32), filtered(64)]
    assert codes(broker)[6:] == [PULL, PULL]


@pytest.mark.parametrize(
    ("code", "remark", "expected"),
    [
        (ResponseCode.SUBSCRIPTION_PARSE_FAILED, "Encountered STARTSWITH", ExpressionInvalid),
        (
            ResponseCode.SYSTEM_ERROR,
            "The broker does not support consumer to filter message by SQL92",
            ExpressionInvalid,
        ),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "no", BrokerError),
        (ResponseCode.SYSTEM_BUSY, "later", SystemBusy),
        (ResponseCode.GO_AWAY, "bye", GoAway),
    ],
)
def test_pulls_whose_condition_is_refused_are_not_sent(
    broker: Broker,
    line: PullConnection[PullRequest],
    code: ResponseCode,
    remark: str,
    expected: type[BrokerError],
) -> None:
    """A4: a broker that cannot compile a condition would answer with all messages; it is asked again."""
    line.send([filtered(0), filtered(32), pull(64)])
    check, plain = broker.requests()
    broker.give(check.response(code, remark=remark), plain.response(0, ext_fields=FOUND, body=b"x"))
    outcomes = dict(line.receive(3.0))

    assert [type(outcomes[filtered(offset)]) for offset in (0, 32)] == [expected, expected]
    assert isinstance(outcomes[pull(64)], PullResult)
    assert (line.in_flight, codes(broker)) == (0, [CHECK, PULL])

    line.send([filtered(0)])
    assert codes(broker) == [CHECK, PULL, CHECK]
    broker.give(broker.requests()[2].response(0))
    assert line.receive(3.0) == []
    assert codes(broker) == [CHECK, PULL, CHECK, PULL]


def test_a_check_comes_after_the_server_s_name(broker: Broker, named: PullConnection[PullRequest]) -> None:
    """A4, A7: another broker at the address is not asked about the condition either."""
    named.send([filtered(0)])
    assert codes(broker) == [RequestCode.GET_BROKER_CONFIG]

    broker.give(introduction(broker.requests()[0], "broker-a"))
    assert named.receive(3.0) == []
    assert codes(broker)[1:] == [CHECK]
    broker.give(broker.requests()[1].response(0))
    assert named.receive(3.0) == []
    assert codes(broker)[2:] == [PULL]


def test_a_check_that_is_passed_over_fails_its_pulls_and_is_sent_again(
    broker: Broker, line: PullConnection[PullRequest]
) -> None:
    """A broker under flow control drops answers that it cannot write, and answers later requests."""
    held_flags = PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND
    long_poll = replace(filtered(32), sys_flag=held_flags, suspend_timeout_millis=15_000)
    line.send([filtered(0), long_poll, pull(64)])
    check, plain = broker.requests()
    broker.be_silent(2)
    broker.give(plain.response(0, ext_fields=FOUND))
    assert [sent for sent, _ in line.receive(3.0)] == [pull(64)]
    line.send([pull(96)])
    broker.be_silent(1)
    broker.give(broker.requests()[-1].response(0, ext_fields=FOUND))
    outcomes = [outcome for _, outcome in line.receive(3.0)]

    assert [type(outcome) for outcome in outcomes] == [PullResult, RequestTimeout, RequestTimeout]
    assert "CHECK_CLIENT_CONFIG" in str(outcomes[1])
    assert line.in_flight == 0
    line.send([filtered(0)])
    assert codes(broker)[3:] == [CHECK]
    broker.give(check.response(0))
    assert line.receive(3.0) == []
    assert codes(broker)[3:] == [CHECK]


def test_silence_about_a_check_ends_the_connection(broker: Broker, line: PullConnection[PullRequest]) -> None:
    line.send([filtered(0)])
    broker.be_silent(3)

    with pytest.raises(RequestTimeout, match=r"CHECK_CLIENT_CONFIG.* within 3 s"):
        line.receive(3.0)
    assert line.close() == [filtered(0)]


def test_the_silence_about_a_pull_begins_when_its_condition_is_accepted(
    broker: Broker, line: PullConnection[PullRequest]
) -> None:
    line.send([filtered(0)])
    broker.be_silent(2)
    broker.give(broker.requests()[0].response(0))
    assert line.receive(3.0) == []
    broker.be_silent(2)
    broker.give(broker.requests()[1].response(0, ext_fields=FOUND))

    assert [(sent, type(outcome)) for sent, outcome in line.receive(3.0)] == [(filtered(0), PullResult)]


def test_answers_are_not_lost_if_the_accepted_pulls_cannot_be_sent(
    broker: Broker, line: PullConnection[PullRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """F5: a broker reports a reset in one answer only."""

    def fail(data: bytes, timeout_s: float = 0.0) -> None:
        raise ChannelClosed(ADDRESS, "gone")

    line.send([filtered(0), pull(32)])
    check, plain = broker.requests()
    broker.give(check.response(0), plain.response(0, ext_fields=FOUND))
    monkeypatch.setattr(broker, "sendall", fail)

    assert [sent for sent, _ in line.receive(3.0)] == [pull(32)]
    with pytest.raises(ChannelClosed):
        line.receive(3.0)
    with pytest.raises(ChannelClosed):
        line.pass_time(0.0, 3.0)
    assert line.close() == [filtered(0)]


def test_pulls_that_wait_for_a_check_can_be_dropped(
    broker: Broker, line: PullConnection[PullRequest]
) -> None:
    """Their range is over: they are not sent, and their connection can be used again."""
    line.send([filtered(0), pull(32)])
    check, plain = broker.requests()
    line.drop_held_back()
    broker.give(check.response(0), plain.response(0, ext_fields=FOUND))

    assert [sent for sent, _ in line.receive(3.0)] == [pull(32)]
    assert (line.in_flight, codes(broker)) == (0, [CHECK, PULL])


def test_a_kept_line_is_that_of_one_broker(clock: FakeClock) -> None:
    """A7: an address that another broker has now is not served by the connection to the one before."""

    def connect(address: str, timeout_s: float) -> Broker:
        return Broker(clock)

    kept = acquire_connection(ADDRESS, clock, broker_name="broker-a", connect=connect)
    release_connection(kept, clock)

    assert acquire_connection(ADDRESS, clock, broker_name="broker-b", connect=connect) is not kept
    assert acquire_connection(ADDRESS, clock, broker_name="broker-a", connect=connect) is kept


def test_a_line_is_taken_by_one_at_a_time_and_kept_for_the_next(clock: FakeClock) -> None:
    def connect(address: str, timeout_s: float) -> Broker:
        return Broker(clock)

    first = acquire_connection(ADDRESS, clock, connect=connect)
    second = acquire_connection(ADDRESS, clock, connect=connect)
    release_connection(first, clock)

    assert first is not second
    assert acquire_connection(ADDRESS, clock, connect=connect) is first
    assert acquire_connection("broker-b:10911", clock, connect=connect) is not first


def test_lines_that_are_old_or_in_use_are_not_kept(clock: FakeClock) -> None:
    """A broker ends silent connections after two minutes;
    answers nobody reads must not reach the next task.
    """
    brokers = [Broker(clock), Broker(clock), Broker(clock)]

    def connect(address: str, timeout_s: float) -> Broker:
        return brokers[0]

    old = acquire_connection(ADDRESS, clock, connect=connect)
    in_use = acquire_connection(ADDRESS, clock, connect=lambda *_: brokers[1])
    in_use.send([pull(0)])
    release_connection(in_use, clock)
    release_connection(old, clock)
    clock.advance(60.0)
    fresh = acquire_connection(ADDRESS, clock, connect=lambda *_: brokers[2])

    assert fresh is not old
    assert fresh is not in_use
    assert [broker.is_closed for broker in brokers] == [True, True, False]
    release_connection(fresh, clock)
    close_idle_connections()
    assert brokers[2].is_closed
