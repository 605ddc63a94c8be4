"""Every message of a range is stored once and in order,
whatever becomes of requests and of the sender before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, Never, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyspark_rocketmq.errors import (
    BatchRefused,
    ChannelClosed,
    ConnectFailed,
    MessageRefused,
    RequestTimeout,
    RocketMQError,
    SystemBusy,
)
from pyspark_rocketmq.model import Message, MessageQueue, QueueRange, SendStatus
from pyspark_rocketmq.replay.ranges import Sending, batches_of
from pyspark_rocketmq.replay.tasks import QueueSender, Resending, TargetQueue
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.messages import decode_batch
from pyspark_rocketmq.wire.requests.send import EncodedBatch, SendResult
from tests.helpers.fake_clock import FakeClock

SETTLE_S = 3.0
ROWS = [(offset, Message(topic="copy", body=str(offset).encode())) for offset in range(100, 130)]
BODIES = [message.body for _, message in ROWS]


class Target:
    """A queue that does with each request as its script says, and can be looked at."""

    def __init__(self, script: list[str], clock: FakeClock, stored: Iterable[bytes] = ()) -> None:
        self.stored = list(stored)
        self.script = list(script)
        self.clock = clock
        self.late: list[tuple[float, list[bytes]]] = []
        self.looks = 0

    def send(self, messages: Sequence[Message]) -> None:
        bodies = [message.body for message in messages]
        what = self.script.pop(0) if self.script else "stored"
        if what in ("stored", "answer lost"):
            self.stored += bodies
        if what == "late":
            self.late.append((self.clock.monotonic_s() + SETTLE_S, bodies))
        error = {
            "answer lost": RequestTimeout("a:1", "SEND_BATCH_MESSAGE", 3),
            "late": ChannelClosed("a:1", "cut"),
            "request lost": ChannelClosed("a:1", "cut"),
            "busy": SystemBusy(2, "busy"),
            "away": ConnectFailed("a:1", "refused"),
        }.get(what)
        if error is not None:
            raise error

    def stored_until(self) -> int:
        self.looks += 1
        for at, bodies in self.late:
            assert self.clock.monotonic_s() >= at, "it was looked at before a late request could arrive"
            self.stored += bodies
        self.late.clear()
        return max((int(body) + 1 for body in self.stored), default=100)


def sender_of(target: Target, clock: FakeClock, *, is_repeated: bool = False) -> QueueSender:
    return QueueSender(
        target.send, target.stored_until, clock, clock.advance, what="orders/0 into copy/0",
        is_repeated=is_repeated, settle_s=SETTLE_S, retry_timeout_s=1e6,
    )  # fmt: skip


def send_all(sender: QueueSender, size: int) -> None:
    for start in range(0, len(ROWS), size):
        sender.put(ROWS[start : start + size])


OUTCOMES = st.sampled_from(["stored", "answer lost", "late", "request lost", "busy", "away"])


@given(st.lists(OUTCOMES, max_size=12), st.integers(1, 12))
def test_whatever_becomes_of_a_request_its_messages_are_stored_once(script: list[str], size: int) -> None:
    """H3: batches are cut otherwise than they failed, and a request may arrive after it was given up."""
    clock = FakeClock()
    target = Target(script, clock)

    send_all(sender_of(target, clock), size)

    assert target.stored == BODIES


@given(st.integers(0, 30), st.lists(OUTCOMES, max_size=4), st.integers(1, 12))
def test_a_sender_goes_on_where_the_one_before_it_has_come(
    sent_before: int, script: list[str], size: int
) -> None:
    """H3: a task of Spark's that is run again."""
    clock = FakeClock()
    target = Target(script, clock, BODIES[:sent_before])

    send_all(sender_of(target, clock, is_repeated=True), size)

    assert target.stored == BODIES


def test_nothing_is_looked_at_while_all_goes_well() -> None:
    clock = FakeClock()
    target = Target(["away"], clock)

    send_all(sender_of(target, clock), 10)

    assert target.looks == 0
    assert clock.monotonic_s() < SETTLE_S


@pytest.mark.parametrize("slept", ["not", "asleep", "stopped"])
def test_an_attempt_that_stood_still_sends_nothing_behind_another(slept: str) -> None:
    """H3: Spark has begun the task again, and this one wakes."""
    clock = FakeClock()
    target = Target([], clock)
    sender = sender_of(target, clock)
    sender.put(ROWS[:10])
    if slept != "not":
        send_all(sender_of(target, clock, is_repeated=True), 10)
    if slept == "asleep":
        # The monotonic clock of a machine that sleeps stands still.
        clock.step(200.0)
    else:
        clock.advance(200.0)

    if slept == "not":
        sender.put(ROWS[10:20])
        assert target.stored == BODIES[:20]
        return
    with pytest.raises(
        RocketMQError, match=r"up to 130 of orders/0 into copy/0, while this attempt .* at 110"
    ):
        sender.put(ROWS[10:20])
    assert target.stored == BODIES


def test_an_attempt_that_lost_an_answer_sends_nothing_behind_another() -> None:
    """H3"""
    clock = FakeClock()
    target = Target(["stored", "request lost"], clock)
    sender = sender_of(target, clock)
    sender.put(ROWS[:10])
    other = sender_of(target, clock, is_repeated=True)
    target.stored += BODIES[10:15]

    def overtaken() -> int:
        target.stored_until = real  # type: ignore[method-assign]
        target.stored += BODIES[15:25]
        return real()

    real, target.stored_until = target.stored_until, overtaken  # type: ignore[method-assign]
    sender._read_stored_until = target.stored_until
    with pytest.raises(RocketMQError, match="Another attempt of this task"):
        sender.put(ROWS[10:20])
    other.put(ROWS[10:20])
    other.put(ROWS[20:])
    assert target.stored == BODIES


def test_permanent_errors_surface() -> None:
    """H3: a message that brokers do not take, or a look that cannot show it."""
    clock = FakeClock()

    def refuse(messages: Sequence[Message]) -> Never:
        raise RocketMQError("too large")

    sender = QueueSender(
        refuse, lambda: 0, clock, clock.advance, what="q", is_repeated=False, settle_s=1, retry_timeout_s=9
    )

    with pytest.raises(RocketMQError, match="too large"):
        sender.put(ROWS)


SOURCE = QueueRange.between(MessageQueue("orders", "a", 0), 100, 130)
COPY = MessageQueue("copy", "a", 0)


class SmallBroker:
    """A producer whose broker takes ``most`` messages in a request, and does with these as its script says."""

    def __init__(self, target: Target, *, most: int, takes_batches: bool) -> None:
        self._target = target
        self._most = most
        self._takes_batches = takes_batches
        self.requests: list[str] = []

    def send_encoded(self, batch: EncodedBatch, on_result: Callable[[object], None]) -> None:
        self.requests.append("in a batch")
        messages = [Message(topic="copy", body=member.body) for member in decode_batch(batch.body)]
        illegal = int(ResponseCode.MESSAGE_ILLEGAL)
        if not self._takes_batches:
            on_result(BatchRefused(illegal, "no batches"))
        elif len(messages) > self._most:
            on_result(MessageRefused(illegal, "size exceeded"))
        else:
            on_result(self._outcome(messages))

    def send_as_stored(
        self, message: Message, queue: MessageQueue, sys_flag: int, on_result: Callable[[object], None]
    ) -> None:
        self.requests.append("by itself")
        on_result(self._outcome([message]))

    def _outcome(self, messages: Sequence[Message]) -> SendResult | RocketMQError:
        try:
            self._target.send(messages)
        except RocketMQError as error:
            return error
        return SendResult(
            status=SendStatus.SEND_OK, msg_id="id", offset_msg_id="id", queue=COPY, queue_offset=0
        )


@pytest.mark.parametrize(("size", "how"), [(32_200, "in a batch"), (32_700, "by itself")])
def test_a_message_whose_properties_leave_a_batch_no_room_is_sent_by_itself(size: int, how: str) -> None:
    """H3, G2: brokers do not check a batch for it, and damage their log."""
    target = Target([], FakeClock())
    broker = SmallBroker(target, most=9, takes_batches=True)
    message = Message(topic="copy", body=b"1", properties={"long": "x" * size})
    producer: Any = broker

    sending = Sending(run="r", source=SOURCE, target=COPY, target_offset=0)
    queue = TargetQueue(cast("Resending", SimpleNamespace(sending=sending)), producer, SETTLE_S)
    for messages in batches_of([ROWS[0][1], message, ROWS[1][1]], COPY):
        queue.store(messages)

    assert target.stored == [BODIES[0], b"1", BODIES[1]]
    assert broker.requests == ["in a batch", how, "in a batch"]


@given(st.lists(OUTCOMES, max_size=12), st.integers(1, 12), st.integers(1, 12), st.booleans())
@example(["stored", "away"], 4, 2, True)
@example(["stored", "away"], 3, 3, False)
def test_a_batch_that_goes_in_parts_is_stored_once_whatever_becomes_of_each(
    script: list[str], size: int, most: int, takes_batches: bool
) -> None:
    """H3, L8: a part is stored, and no connection can be made for the next one."""
    clock = FakeClock()
    target = Target(script, clock)
    sending = Sending(run="r", source=SOURCE, target=COPY, target_offset=0)
    part = cast("Resending", SimpleNamespace(sending=sending))
    producer: Any = SmallBroker(target, most=most, takes_batches=takes_batches)
    queue = TargetQueue(part, producer, SETTLE_S)
    sender = QueueSender(
        queue.send, target.stored_until, clock, clock.advance, what="orders/0 into copy/0",
        is_repeated=False, settle_s=SETTLE_S, retry_timeout_s=1e6,
    )  # fmt: skip

    send_all(sender, size)

    assert target.stored == BODIES
