from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from queue import Empty, SimpleQueue
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyspark_rocketmq.client.broker import OnSend
from pyspark_rocketmq.client.producer.attempts import FaultTable
from pyspark_rocketmq.errors import (
    BrokerError,
    ChannelClosed,
    ConnectFailed,
    MessageRefused,
    NoPermission,
    RemoteProtocolError,
    RequestTimeout,
    RocketMQError,
    RowNotSent,
    SystemBusy,
    TopicAway,
    TransportError,
    WrongBroker,
    WrongMessageType,
)
from pyspark_rocketmq.model import MessageQueue, SendStatus
from pyspark_rocketmq.options.write import WriteOptions
from pyspark_rocketmq.publish.batches import BatchBuilder, Destination, SendBatch
from pyspark_rocketmq.publish.rows import SinkRow
from pyspark_rocketmq.publish.sender import Sender, is_too_large
from pyspark_rocketmq.wire.requests.send import SendResult
from tests.helpers.fake_clock import FakeClock, TickingClock

A0, A1 = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1)
B0, C0 = MessageQueue("t", "b", 0), MessageQueue("t", "c", 0)
OPTIONS = replace(WriteOptions.parse({"nameServers": "h:1", "topic": "t"}), max_in_flight_bytes=100)
BUSY = SystemBusy(2, "broker busy")
ILLEGAL_SIZE = (
    "the message is illegal, maybe msg body or properties length not matched. msg body length limit 4194304B, msg "
    "properties length limit 32KB."
)


def batch_of(number: int, destination: Destination = A0, size: int = 1) -> SendBatch:
    row = SinkRow(number, "t", b"", b"", None, None, None, None)
    return SendBatch(destination, 0, row, row, [number], size=size)


def stored_at(queue: MessageQueue, status: SendStatus = SendStatus.SEND_OK) -> SendResult:
    return SendResult(status=status, msg_id="", offset_msg_id="", queue=queue, queue_offset=0)


class QuickWaits(SimpleQueue[Any]):
    """Waits by moving the clock."""

    clock: FakeClock

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if self.empty():
            assert timeout is not None, "nothing would ever come"
            self.clock.advance(timeout)
            raise Empty
        return super().get()


def sender_of(brokers: Brokers, options: dict[str, Any] | None = None, **given: Any) -> Sender:
    waits = QuickWaits()
    waits.clock = brokers.clock
    sender = Sender(brokers.begin, brokers.clock, replace(OPTIONS, **(options or {})), **given)
    sender._outcomes = waits
    return sender


def send_all(sender: Sender, *batches: SendBatch) -> None:
    for each in batches:
        sender.put(each, (A0, B0))
    sender.finish()


class Brokers:
    """Notes each send; answers at once by ``script``, or keeps the callback where that gives None."""

    def __init__(self, clock: FakeClock) -> None:
        self.sends: list[tuple[int, MessageQueue]] = []
        self.stored: list[tuple[int, MessageQueue]] = []
        self.kept: deque[Callable[[], None]] = deque()
        self.answers: list[Callable[[SendResult | RocketMQError], None]] = []
        """For each callback in ``kept``, one that takes the outcome."""
        self.script: Callable[[MessageQueue], SendResult | RocketMQError | None] = stored_at
        self.clock = clock

    def begin(self, sent: SendBatch, queue: MessageQueue, on_result: OnSend) -> None:
        number = sent.first.number
        self.sends.append((number, queue))
        outcome = self.script(queue)

        def answer(outcome: SendResult | RocketMQError) -> None:
            if isinstance(outcome, SendResult):
                self.stored.append((number, queue))
            on_result(outcome)

        if outcome is None:
            self.kept.append(lambda: answer(stored_at(queue)))
            self.answers.append(answer)
        else:
            answer(outcome)


@pytest.fixture
def brokers(clock: FakeClock) -> Brokers:
    return Brokers(clock)


@pytest.fixture
def sender(brokers: Brokers) -> Sender:
    return sender_of(brokers)


def test_the_next_batch_of_a_queue_waits_for_the_one_before(sender: Sender, brokers: Brokers) -> None:
    """G1: two requests under way could be stored in either order; other queues do not wait."""
    brokers.script = lambda queue: None
    for number, queue in enumerate((A0, A0, A1)):
        sender.put(batch_of(number, queue))
    assert brokers.sends == [(0, A0), (2, A1)]

    brokers.kept.popleft()()
    sender.put(batch_of(3, A1))
    assert brokers.sends[2:] == [(1, A0)]

    brokers.script = stored_at
    while brokers.kept:
        brokers.kept.popleft()()
    sender.finish()
    assert brokers.stored == [(0, A0), (2, A1), (1, A0), (3, A1)]
    assert sender.messages == 4


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    limit=st.integers(0, 3000),
    has_queue=st.booleans(),
    code=st.sampled_from([1, 13]),
)
def test_what_a_broker_finds_too_large_goes_in_halves_in_its_order(
    sizes: list[int], limit: int, has_queue: bool, code: int
) -> None:
    """G1: down to single messages; a row that is too large by itself is named."""
    destination: Destination = A0 if has_queue else "t"
    builder = BatchBuilder(OPTIONS)
    rows = [SinkRow(n, "t", b"x" * size, b"", None, None, None, None) for n, size in enumerate(sizes)]
    batches = [batch for row in rows for batch in builder.add(row, destination)] + list(builder.rest())
    stored: list[int] = []
    too_large: list[int] = []
    refusal = BrokerError(1, "message body size exceeded") if code == 1 else MessageRefused(13, ILLEGAL_SIZE)

    def begin(sent: SendBatch, queue: MessageQueue, on_result: OnSend) -> None:
        if sent.count > 1 and sent.size > limit:
            on_result(refusal)
            return
        assert (sent.single is None) or sent.count == 1
        stored.extend(sent.numbers)
        on_result(stored_at(queue))

    sender = Sender(begin, FakeClock(), OPTIONS, too_large=too_large.append)
    for batch in batches:
        sender.put(batch, () if has_queue else (A0,))
    sender.finish()

    assert sorted(stored) == list(range(len(sizes)))
    assert sender.messages == len(sizes)
    assert sender._bytes == 0
    assert all(size > limit for size in too_large)
    if has_queue:
        assert stored == sorted(stored)


def test_halves_of_a_batch_are_named_by_their_own_rows() -> None:
    """G1: by its key a row is found in the DataFrame; another row's would mislead."""
    builder = BatchBuilder(OPTIONS)
    rows = [SinkRow(n, "t", b"x", b"", f"k{n}", None, None, None) for n in range(5)]
    [batch] = [each for row in rows for each in builder.add(row, A0)] + list(builder.rest())

    first, second = batch.halves()

    assert (first.first, second.last) == (rows[0], rows[4])
    for between in (first.last, second.first):
        assert between.sharding_key is None
        assert between.shown == f"row {between.number} of the task"


OTHER_REFUSALS = [
    NoPermission(16, "the broker[broker-a] sending message is forbidden"),
    NoPermission(1, "AclException: No default permission for the topic"),
    MessageRefused(13, "batch request does not support retry group %RETRY%g"),
    MessageRefused(13, "message topic length too long 255"),
    MessageRefused(
        13,
        "timer message illegal, the delay time should not be bigger than the max delay 259200000ms; or if set "
        "del msg, the delay time should be bigger than the current time",
    ),
    WrongMessageType(
        13, "TopicMessageType validate failed, the expected type is FIFO, but actual type is NORMAL"
    ),
    BrokerError(3, "request type 320 not supported"),
]


@pytest.mark.parametrize("has_queue", [True, False], ids=["a queue", "any queue"])
@pytest.mark.parametrize("refusal", OTHER_REFUSALS, ids=lambda error: error.remark[:24])
def test_a_refusal_that_is_not_of_the_size_is_not_tried_in_halves(
    refusal: BrokerError, has_queue: bool
) -> None:
    """G1: a single message would be refused as well."""
    sent: list[int] = []

    def begin(batch: SendBatch, queue: MessageQueue, on_result: OnSend) -> None:
        sent.append(batch.count)
        on_result(refusal)

    builder = BatchBuilder(OPTIONS)
    rows = [SinkRow(n, "t", b"x", b"", None, None, None, None) for n in range(64)]
    destination: Destination = A0 if has_queue else "t"
    batches = [batch for row in rows for batch in builder.add(row, destination)] + list(builder.rest())
    whole = max(batch.count for batch in batches)
    sender = Sender(begin, FakeClock(), OPTIONS)

    def send() -> None:
        for batch in batches:
            sender.put(batch, () if has_queue else (A0,))
        sender.finish()

    with pytest.raises(RowNotSent, match=re.escape(refusal.remark)):
        send()
    assert whole > 1
    assert set(sent) == {whole}


def test_a_refusal_of_a_batch_that_gives_no_reason_may_be_of_its_size() -> None:
    """G1"""
    assert is_too_large(MessageRefused(13, "MESSAGE_ILLEGAL"))


def test_a_message_too_large_by_itself_is_not_sent(sender: Sender, brokers: Brokers) -> None:
    """G1: there is nothing left to cut."""
    brokers.script = lambda queue: MessageRefused(13, "the message is illegal")

    with pytest.raises(RowNotSent, match=r"row 5 of the task: .*maxMessageSize"):
        send_all(sender, batch_of(5))
    assert len(brokers.sends) == 1


def test_a_batch_for_a_queue_is_tried_there_until_it_is_stored(sender: Sender, brokers: Brokers) -> None:
    """G5: nothing overtakes it, and it goes nowhere else."""
    answers: deque[SendResult | RocketMQError] = deque(
        [BUSY, RequestTimeout("h:1", "SEND", 3), stored_at(A0)]
    )
    brokers.script = lambda queue: answers.popleft() if answers else stored_at(queue)

    sender.put(batch_of(0))
    sender.put(batch_of(1))
    sender.finish()

    assert brokers.sends == [(0, A0), (0, A0), (0, A0), (1, A0)]


def test_a_batch_for_any_queue_goes_to_another_broker(sender: Sender, brokers: Brokers) -> None:
    """G3: where there is one."""
    brokers.script = lambda queue: BUSY if queue.broker_name == "a" else stored_at(queue)

    for number in range(4):
        sender.put(batch_of(number, "t"), (A0, B0, A1))
    sender.finish()

    assert sorted(brokers.stored) == [(number, B0) for number in range(4)]


@pytest.mark.parametrize("tick_s", [each / 1000 for each in range(5, 101, 5)])
def test_a_pause_may_end_between_any_two_looks_at_the_clock(tick_s: float) -> None:
    """G3: a batch whose pause has just ended is sent, and waits for no other batch's outcome."""
    brokers = Brokers(TickingClock(tick_s))
    answers: deque[RocketMQError] = deque([BUSY] * 4)
    brokers.script = lambda queue: answers.popleft() if answers else stored_at(queue)
    sender = sender_of(brokers, {"retry_timeout_ms": 1_000_000})

    send_all(sender, batch_of(0, "t"))

    assert brokers.clock.monotonic_s() < 30
    assert [number for number, _ in brokers.stored] == [0]


@pytest.mark.parametrize("code", [1, 14, 16, 17, 204, 205, 1500])
def test_messages_refused_by_one_broker_are_sent_to_another(
    sender: Sender, brokers: Brokers, code: int
) -> None:
    """G3: the codes of Producer.send."""
    refusal = BrokerError(code, "not here")
    brokers.script = lambda queue: refusal if queue.broker_name == "a" else stored_at(queue)

    send_all(sender, *(batch_of(number, "t") for number in range(4)))

    assert sorted(brokers.stored) == [(number, B0) for number in range(4)]
    with pytest.raises(RowNotSent, match="not here"):
        send_all(sender, batch_of(4, A0))


def test_messages_refused_by_every_broker_fail(sender: Sender, brokers: Brokers) -> None:
    """G3: each is asked once, though one of them was busy first."""
    answers = {"a": [BrokerError(16, "no")] * 2, "b": [BUSY, BrokerError(16, "no")]}
    brokers.script = lambda queue: answers[queue.broker_name].pop(0)

    with pytest.raises(RowNotSent, match="code 16"):
        send_all(sender, batch_of(0, "t"))

    assert {name: len(left) for name, left in answers.items()} == {"a": 1, "b": 0}


@pytest.mark.parametrize(("broken", "other"), [("a", "b"), ("b", "a")])
def test_a_broker_that_refused_for_a_moment_is_tried_again_when_all_have(
    sender: Sender, brokers: Brokers, broken: str, other: str
) -> None:
    """G3, G1: a batch must not wait for the last one, which may never take it."""
    first = [BrokerError(1, "create mapped file failed")]
    refusal = BrokerError(1, "service not available now")
    brokers.script = lambda queue: (
        refusal if queue.broker_name == broken else first.pop() if first else stored_at(queue)
    )

    send_all(sender, batch_of(0, "t"))

    assert [queue.broker_name for _, queue in brokers.stored] == [other]


@pytest.mark.parametrize("refusals", [1, 3])
@pytest.mark.parametrize("has_faults", [False, True])
@pytest.mark.parametrize("queues", [(A0, B0), (B0, A0), (A0, B0, C0), (C0, B0, A0)])
@pytest.mark.parametrize(
    "failure",
    [ConnectFailed("b:1", "refused"), RequestTimeout("b:1", "SEND", 3), BUSY],
    ids=["away", "silent", "busy"],
)
def test_a_broker_that_refused_for_a_moment_is_tried_again_while_the_others_are_away(
    brokers: Brokers,
    refusals: int,
    has_faults: bool,
    queues: tuple[MessageQueue, ...],
    failure: RocketMQError,
) -> None:
    """G3: after a pause only the last broker is avoided."""
    answers = [BrokerError(1, "create mapped file failed")] * refusals
    brokers.script = lambda queue: (
        failure if queue.broker_name != "a" else answers.pop() if answers else stored_at(queue)
    )
    sender = sender_of(brokers, faults=FaultTable(brokers.clock) if has_faults else None)

    sender.put(batch_of(0, "t"), queues)
    sender.finish()

    assert brokers.stored == [(0, A0)]
    assert brokers.clock.monotonic_s() < 60


def test_a_broker_that_refuses_is_given_up_with_one_that_is_gone(sender: Sender, brokers: Brokers) -> None:
    """G3: to ask it again takes no more time."""
    brokers.script = lambda queue: (
        BrokerError(1, "no") if queue.broker_name == "a" else ConnectFailed("b:1", "refused")
    )

    with pytest.raises(RowNotSent):
        send_all(sender, batch_of(0, "t"))

    assert brokers.clock.monotonic_s() < 130


def test_messages_for_a_removed_queue_go_to_the_existing_queues(brokers: Brokers) -> None:
    """G3: also what waits; a batch of a queue of its own goes nowhere else,
    and a queue that is there refuses for another reason.
    """
    illegal = BrokerError(29, "request queueId[1] is illegal")
    asked: list[MessageQueue] = []

    def instead_of(queue: MessageQueue) -> tuple[MessageQueue, ...]:
        asked.append(queue)
        return (A0,) if queue == A1 else ()

    brokers.script = lambda queue: illegal if queue == A1 else stored_at(queue)
    sender = sender_of(brokers, instead_of=instead_of)
    for number in range(6):
        sender.put(batch_of(number, "t"), (A0, A1))
    sender.finish()

    assert sorted(brokers.stored) == [(number, A0) for number in range(6)]
    brokers.script = lambda queue: illegal
    for refused in (batch_of(6, "t"), batch_of(7, A1)):
        with pytest.raises(RowNotSent, match="is illegal"):
            send_all(sender_of(brokers, instead_of=instead_of), refused)
    assert asked[-1] == B0


def test_a_batch_that_has_got_other_queues_does_not_need_another_look(brokers: Brokers) -> None:
    """G3: one of two batches under way has found them; name servers are away then."""
    answers = [(B0,)]
    sender = sender_of(brokers, instead_of=lambda queue: answers.pop() if answers else ())
    brokers.script = lambda queue: None
    for number in range(2):
        sender.put(batch_of(number, "t"), (A0, A1))
    assert sorted(queue for _, queue in brokers.sends) == [A0, A1]

    brokers.script = stored_at
    for answer in list(brokers.answers):
        answer(BrokerError(29, "request queueId is illegal"))
    sender.finish()

    assert sorted(brokers.stored) == [(number, B0) for number in range(2)]


@pytest.mark.parametrize(
    "refusal",
    [TopicAway(17, "topic[t] not exist"), ConnectFailed("a", "the route of topic t names no master")],
    ids=["refused", "away"],
)
def test_messages_for_any_queue_follow_their_topic_to_another_broker(
    brokers: Brokers, refusal: RocketMQError
) -> None:
    """G3, G5: as soon as a name server lists it there; a batch of a queue of its own stays."""
    asked_s: list[float] = []

    def instead_of(queue: MessageQueue) -> tuple[MessageQueue, ...]:
        asked_s.append(brokers.clock.monotonic_s() - began_s)
        return (B0,) if queue in (A0, A1, C0) and asked_s[-1] >= 1 else ()

    brokers.script = lambda queue: stored_at(queue) if queue == B0 else refusal
    began_s = brokers.clock.monotonic_s()
    sender = sender_of(brokers, instead_of=instead_of)
    for number in range(20):
        sender.put(batch_of(number, "t"), (A0, A1, C0))
    sender.finish()

    assert sorted(brokers.stored) == [(number, B0) for number in range(20)]
    assert brokers.clock.monotonic_s() - began_s < 5
    assert all(later_s - earlier_s >= 0.1 for earlier_s, later_s in pairwise(asked_s))
    brokers.sends.clear()
    with pytest.raises(RowNotSent):
        send_all(sender_of(brokers, instead_of=instead_of), batch_of(20, A1))
    assert {queue for _, queue in brokers.sends} == {A1}


def test_a_broker_that_restarts_keeps_its_queues_while_another_one_takes_the_messages(
    brokers: Brokers,
) -> None:
    """G3: a name server drops it for the moment."""
    refusal = ConnectFailed("a", "the route of topic t names no master")
    brokers.script = lambda queue: refusal if queue.broker_name == "a" else stored_at(queue)
    sender = sender_of(brokers, instead_of=lambda queue: pytest.fail("looked up"))
    send_all(sender, *(batch_of(number, "t") for number in range(4)))
    assert {queue for _, queue in brokers.stored} == {B0}

    brokers.script = stored_at
    send_all(sender, batch_of(4, "t"), batch_of(5, "t"))
    assert {queue for number, queue in brokers.stored if number > 3} == {A0, B0}


def test_a_broker_that_hangs_holds_up_only_what_it_was_given(sender: Sender, brokers: Brokers) -> None:
    """G3: the other broker takes all the rest, however many there are; what hung goes there, too."""
    brokers.script = lambda queue: None if queue.broker_name == "a" else stored_at(queue)
    for number in range(50):
        sender.put(batch_of(number, "t"), (A0, A1, B0))
    assert len(brokers.kept) == 2
    assert len(brokers.stored) >= 40

    hung = [(number, queue) for number, queue in brokers.sends if queue.broker_name == "a"]
    brokers.script = stored_at
    for answer in brokers.answers:
        answer(RequestTimeout("h:1", "SEND", 5))
    sender.finish()

    assert sorted(number for number, _ in brokers.stored) == list(range(50))
    assert all((number, B0) in brokers.stored for number, _ in hung)


def test_a_batch_that_waits_for_its_next_attempt_blocks_no_queue(sender: Sender, brokers: Brokers) -> None:
    """G3: those behind it need not wait for its pause, at the broker that answers."""
    answers: deque[RocketMQError] = deque([RequestTimeout("h:1", "SEND", 5)])
    brokers.script = lambda queue: answers.popleft() if queue == A0 and answers else stored_at(queue)
    began_s = brokers.clock.monotonic_s()

    for number in range(20):
        sender.put(batch_of(number, "t"), (A0, B0))

    assert len(brokers.stored) >= 17
    assert brokers.clock.monotonic_s() == began_s
    sender.finish()
    assert sorted(number for number, _ in brokers.stored) == list(range(20))


def test_batch_for_any_queue_take_turns(sender: Sender, brokers: Brokers) -> None:
    """G3: round robin, past queues that have something to do."""
    brokers.script = lambda queue: None if queue == A1 else stored_at(queue)

    for number in range(6):
        sender.put(batch_of(number, "t"), (A0, A1, B0))

    assert {queue for _, queue in brokers.sends} == {A0, A1, B0}
    assert [queue for _, queue in brokers.sends].count(A1) == 1


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (
            BrokerError(13, "the message is illegal"),
            "Not sent: row 0 of the task: .* code 13: the message is illegal",
        ),
        (BUSY, "Not sent: row 0 of the task: .*broker busy"),
        (
            stored_at(A0, SendStatus.FLUSH_SLAVE_TIMEOUT),
            "Stored less durably .*: row 0 of the task: .* FLUSH_SLAVE_TIMEOUT, .* all rows .* again",
        ),
        (TransportError("10.0.0.5:10911"), "Not acknowledged: row 0 of the task: .* may be stored"),
    ],
)
def test_a_message_that_is_not_stored_as_required_fails(
    sender: Sender, brokers: Brokers, outcome: SendResult | RocketMQError, said: str
) -> None:
    """G5: at once where trying again is of no use, else after retryTimeoutMs."""
    brokers.script = lambda queue: outcome

    with pytest.raises(RowNotSent, match=said):
        send_all(sender, batch_of(0))


SILENT = RequestTimeout("a:1", "SEND", 3)
GARBLED = RemoteProtocolError("no frame of RocketMQ")
AWAY = ConnectFailed("a:1", "refused")
OTHER_BROKER = WrongBroker("a:1", "it is b, and a was expected there")
FORBIDDEN = NoPermission(16, "sending is forbidden")


@pytest.mark.parametrize(
    ("errors", "is_stored"),
    [
        ([SILENT, FORBIDDEN], None),
        ([SILENT, BUSY, AWAY, FORBIDDEN], None),
        ([ChannelClosed("a:1", "cut"), AWAY], None),
        ([GARBLED], None),
        ([SILENT], None),
        ([FORBIDDEN], False),
        ([AWAY, BUSY], False),
        ([AWAY], False),
        ([OTHER_BROKER], False),
    ],
    ids=lambda each: (
        "-".join(type(error).__name__ for error in each) if isinstance(each, list) else str(each)
    ),
)
@pytest.mark.parametrize("destination", [A0, "t"])
def test_an_error_says_whether_any_attempt_may_have_stored_the_rows(
    sender: Sender,
    brokers: Brokers,
    errors: Sequence[RocketMQError],
    is_stored: bool | None,
    destination: Destination,
) -> None:
    """G5: not only the last one."""
    left = deque(errors)
    brokers.script = lambda queue: left.popleft() if len(left) > 1 else left[0]

    with pytest.raises(RowNotSent) as caught:
        send_all(sender, batch_of(0, destination))

    assert caught.value.is_stored is is_stored


def test_a_half_of_a_batch_may_be_stored_if_the_whole_may_be() -> None:
    """G1: one broker did not answer, and the other one takes less at a time."""
    builder = BatchBuilder(OPTIONS)
    rows = [SinkRow(n, "t", b"x", b"", None, None, None, None) for n in range(2)]
    [batch] = [each for row in rows for each in builder.add(row, "t")] + list(builder.rest())
    errors: list[RocketMQError | None] = [
        SILENT,
        MessageRefused(13, ILLEGAL_SIZE),
        None,
        FORBIDDEN,
        FORBIDDEN,
    ]

    def begin(sent: SendBatch, queue: MessageQueue, on_result: OnSend) -> None:
        on_result(errors.pop(0) or stored_at(queue))

    brokers = Brokers(FakeClock())
    brokers.begin = begin  # type: ignore[method-assign]

    with pytest.raises(RowNotSent, match="row 1 of the task") as caught:
        send_all(sender_of(brokers), batch)

    assert caught.value.is_stored is None


def test_a_broker_may_store_less_durably_if_that_is_enough(brokers: Brokers) -> None:
    """G2: requireSendOk=false."""
    sender = sender_of(brokers, {"require_send_ok": False})
    brokers.script = lambda queue: stored_at(queue, SendStatus.SLAVE_NOT_AVAILABLE)

    sender.put(batch_of(0))
    sender.finish()

    assert sender.messages == 1


def test_a_broker_that_was_slow_is_avoided(brokers: Brokers, clock: FakeClock) -> None:
    """G4: until its time is over; what must go there goes there."""
    sender = sender_of(brokers, faults=FaultTable(clock))

    def slow(queue: MessageQueue) -> SendResult:
        clock.advance(1.0 if queue == A0 else 0.0)
        return stored_at(queue)

    brokers.script = slow
    send_all(sender, batch_of(0, A0), *(batch_of(number, "t") for number in range(1, 5)), batch_of(5, A0))
    assert brokers.sends == [(0, A0), *((number, B0) for number in range(1, 5)), (5, A0)]

    clock.advance(10)
    send_all(sender, batch_of(6, "t"), batch_of(7, "t"))
    assert {queue for _, queue in brokers.sends[6:]} == {A0, B0}


def test_two_brokers_that_are_gone_are_not_tried_for_ever(sender: Sender, brokers: Brokers) -> None:
    """G3: a batch takes its time along when it moves."""
    brokers.script = lambda queue: BUSY

    with pytest.raises(RowNotSent):
        send_all(sender, batch_of(0, "t"))

    assert {queue for _, queue in brokers.sends} == {A0, B0}
    assert len(brokers.sends) < 40


@pytest.mark.parametrize(
    ("outcome", "away_s", "is_available"),
    [
        (stored_at(A0), 20.0, True),
        (RequestTimeout("a:1", "SEND", 3), 5.0, False),
        (RequestTimeout("a:1", "SEND", 3), 20.0, True),
    ],
    ids=["an answer", "a failure just now", "a failure long ago"],
)
def test_a_broker_is_judged_by_when_its_answer_came(
    brokers: Brokers, clock: FakeClock, outcome: SendResult | RocketMQError, away_s: float, is_available: bool
) -> None:
    """G4: not by when the task's next row came."""
    faults = FaultTable(clock)
    sender = sender_of(brokers, faults=faults)
    brokers.script = lambda queue: None
    sender.put(batch_of(0))
    brokers.answers[0](outcome)

    clock.advance(away_s)
    sender.put(batch_of(1, B0))

    assert faults.is_available("a") is is_available


@given(
    st.lists(
        st.tuples(st.floats(0, 3), st.floats(0, 1000), st.sampled_from([A0, B0, "t"])),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from([BUSY, RequestTimeout("h:1", "SEND", 3)]),
)
@example([(0.0, 125.0, B0)], BUSY)
@example([(0.0, 125.0, "t"), (0.0, 0.0, "t")], BUSY)
@example([(3.0, 5.0, A0), (0.0, 1000.0, A0)], BUSY)
def test_a_batch_is_given_up_only_for_time_in_which_it_could_be_tried(
    rounds: Sequence[tuple[float, float, Destination]], failure: RocketMQError
) -> None:
    """G3, G5: rows may come as slowly as they like, and the last one long before their end."""
    brokers = Brokers(FakeClock())
    sender = sender_of(brokers)
    brokers.script = lambda queue: None
    sender.put(batch_of(0, rounds[0][2]), (A0, B0))
    for number, (answered_s, away_s, destination) in enumerate(rounds, 1):
        brokers.clock.advance(answered_s)
        under_way = list(brokers.answers)
        brokers.answers.clear()
        brokers.kept.clear()
        for answer in under_way:
            answer(failure)
        brokers.clock.advance(away_s)
        if number == len(rounds):
            break
        sender.put(batch_of(number, destination), (A0, B0))

    brokers.script = stored_at
    for stored in brokers.kept:
        stored()
    sender.finish()

    assert sorted(number for number, _ in brokers.stored) == list(range(len(rounds)))


@pytest.mark.parametrize("destination", [A0, "t"])
@pytest.mark.parametrize("away_s", [1.0, 10.0, 1000.0])
def test_a_broker_that_is_gone_is_given_up_though_rows_come_slowly(
    brokers: Brokers, destination: Destination, away_s: float
) -> None:
    """G3, G5: the pauses between its attempts count."""
    brokers.script = lambda queue: ConnectFailed("a:1", "refused")
    sender = sender_of(brokers, {"max_in_flight_bytes": 10**6})

    def send() -> None:
        for number in range(1000):
            sender.put(batch_of(number, destination), (A0,))
            brokers.clock.advance(away_s)

    with pytest.raises(RowNotSent):
        send()

    assert [number for number, _ in brokers.sends].count(0) < 40


@given(
    st.lists(st.sampled_from([A0, A1, B0]), max_size=40),
    st.lists(st.sampled_from(["ok", "busy", "later"]), max_size=80),
)
def test_whatever_brokers_do_each_queue_gets_its_batch_once_and_in_order(
    queues: Sequence[MessageQueue], script: Sequence[str]
) -> None:
    """G1, G5."""
    brokers = Brokers(FakeClock())
    told = deque(script)

    def answer(queue: MessageQueue) -> SendResult | RocketMQError | None:
        what = told.popleft() if told else "ok"
        answers: dict[str, SendResult | RocketMQError | None] = {
            "ok": stored_at(queue),
            "busy": BUSY,
            "later": None,
        }
        return answers[what]

    brokers.script = answer
    sender = sender_of(brokers, {"retry_timeout_ms": 10**12})
    for number, queue in enumerate(queues):
        sender.put(batch_of(number, queue))
        if number % 3 == 0 and brokers.kept:
            brokers.kept.popleft()()
    told.clear()
    while brokers.kept:
        brokers.kept.popleft()()
    sender.finish()

    for queue in set(queues):
        expected = [number for number, other in enumerate(queues) if other == queue]
        assert [number for number, other in brokers.stored if other == queue] == expected


def test_a_send_is_waited_for_as_long_as_one_may_take() -> None:
    """With requestTimeoutMs=600000 a broker that hangs is no lost callback before that."""
    brokers = Brokers(FakeClock())
    brokers.script = lambda queue: None
    began_s = brokers.clock.monotonic_s()

    with pytest.raises(AssertionError, match="neither succeeded nor failed"):
        send_all(sender_of(brokers, {"request_timeout_ms": 600_000}), batch_of(1))

    assert brokers.clock.monotonic_s() - began_s > 600.0


@pytest.mark.parametrize("code", [1, 204, 205])
def test_a_queue_that_gives_no_reason_gets_the_batch_again_and_its_order_is_kept(
    sender: Sender, brokers: Brokers, code: int
) -> None:
    """A8, G5: once, though it is the first answer of all, and for a while by one that has taken messages."""
    answers: list[SendResult | RocketMQError] = [BrokerError(code, "a failure inside"), stored_at(A0)]
    brokers.script = lambda _: answers.pop(0) if answers else stored_at(A0)
    send_all(sender, batch_of(0, A0), batch_of(1, A0))
    assert brokers.stored == [(0, A0), (1, A0)]

    answers += [BrokerError(code, "a failure inside")] * 5
    send_all(sender, batch_of(2, A0), batch_of(3, A0))
    assert brokers.stored[2:] == [(2, A0), (3, A0)]


@pytest.mark.parametrize("error", [BrokerError(1, "no reason"), BrokerError(3, "not supported")])
def test_a_queue_that_has_never_taken_a_message_fails_after_a_few_tries(
    sender: Sender, brokers: Brokers, error: BrokerError
) -> None:
    """A8: and at once with a code that Java's producer does not try again."""
    brokers.script = lambda _: error

    with pytest.raises(RowNotSent, match=error.remark):
        send_all(sender, batch_of(0, A0))

    assert len(brokers.sends) == (3 if error.code == 1 else 1)


@pytest.mark.parametrize("remark", ["message body size exceeded", "AclException: no"])
def test_a_refusal_that_says_why_is_not_tried_again(sender: Sender, brokers: Brokers, remark: str) -> None:
    """A8: though its code is that of a failure inside the broker."""
    kind = NoPermission if "Acl" in remark else BrokerError
    send_all(sender, batch_of(0, A0))
    brokers.script = lambda _: kind(1, remark)

    with pytest.raises(RowNotSent, match=remark):
        send_all(sender, batch_of(1, A0))

    assert len(brokers.sends) == 2
