"""Attempts of sends that nobody waits for: which are repeated, where, and what is learnt of brokers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pyspark_rocketmq.client.broker import OnSend
from pyspark_rocketmq.client.producer.attempts import AsyncAttempts, SendOutcome
from pyspark_rocketmq.clock import Deadline
from pyspark_rocketmq.errors import (
    ChannelClosed,
    ConnectFailed,
    LocalProtocolError,
    NoWritableQueue,
    RequestTimeout,
    RocketMQError,
    SystemBusy,
)
from pyspark_rocketmq.model import MessageQueue, SendStatus
from pyspark_rocketmq.wire.requests.send import SendResult
from tests.helpers.fake_clock import FakeClock

A0, B0 = MessageQueue("orders", "a", 0), MessageQueue("orders", "b", 0)
STORED = SendResult(status=SendStatus.SEND_OK, msg_id="1", offset_msg_id="2", queue=A0, queue_offset=0)
CLOSED, AWAY, BUSY = ChannelClosed("a:1", "cut"), ConnectFailed("a:1", "refused"), SystemBusy(2, "busy")
TIMEOUT_S, TAKES_S = 3.0, 0.5


class Run:
    """Attempts of one message, each of which ends half a second later as the script says."""

    def __init__(
        self,
        *script: SendResult | RocketMQError,
        retries: int = 2,
        has_thread: bool = True,
        search_fails_by: Exception | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.script = list(script)
        self.tried: list[MessageQueue] = []
        self.noted: list[tuple[str, SendOutcome]] = []
        self.results: list[SendResult | RocketMQError] = []
        self._has_thread = has_thread
        self._search_fails_by = search_fails_by
        self.attempts = AsyncAttempts(
            send=self._send,
            next_queue=self._next_queue,
            note=self._note,
            later=self._later,
            on_result=self.results.append,
            deadline=Deadline.after(self.clock, TIMEOUT_S),
            retries=retries,
        )

    def _send(self, queue: MessageQueue, told: OnSend) -> None:
        self.tried.append(queue)
        self.clock.advance(TAKES_S)
        told(self.script.pop(0))

    def _next_queue(self, failed: MessageQueue) -> MessageQueue:
        if self._search_fails_by is not None:
            raise self._search_fails_by
        return B0 if failed == A0 else A0

    def _note(self, queue: MessageQueue, begun_s: float, outcome: SendOutcome) -> None:
        assert self.clock.monotonic_s() - begun_s == TAKES_S
        self.noted.append((queue.broker_name, outcome))

    def _later(self, repeat: Callable[[], None]) -> bool:
        if self._has_thread:
            repeat()
        return self._has_thread


def test_an_unanswered_send_is_repeated_at_another_broker() -> None:
    """G3, G4: and each attempt notes its broker."""
    run = Run(AWAY, CLOSED, STORED)

    run.attempts.begin(A0)

    assert run.results == [STORED]
    assert run.tried == [A0, B0, A0]
    assert run.noted == [("a", SendOutcome.REFUSED), ("b", SendOutcome.UNHEARD), ("a", SendOutcome.ANSWERED)]


@pytest.mark.parametrize(("retries", "tried"), [(0, 1), (1, 2), (2, 3)])
def test_the_last_failure_is_reported_when_no_attempt_is_left(retries: int, tried: int) -> None:
    """G3"""
    run = Run(*[ChannelClosed("a:1", str(number)) for number in range(3)], retries=retries)

    run.attempts.begin(A0)

    assert [str(result) for result in run.results] == [str(ChannelClosed("a:1", str(tried - 1)))]
    assert len(run.tried) == tried


def test_any_failure_while_a_send_is_repeated_is_reported() -> None:
    """G3: somebody waits for it, and a thread of a pool keeps errors to itself."""
    run = Run(CLOSED, search_fails_by=RuntimeError("can't start new thread"))

    run.attempts.begin(A0)

    assert run.results == [CLOSED]


@pytest.mark.parametrize("refusal", [BUSY, LocalProtocolError("too large")])
def test_a_refusal_is_not_repeated(refusal: RocketMQError) -> None:
    """G3: ``onExceptionImpl(…, needRetry=false)``,
    where a send that is waited for would try another broker.
    """
    run = Run(refusal)

    run.attempts.begin(A0)

    assert run.results == [refusal]


def test_a_broker_that_refuses_can_be_reached() -> None:
    """G4: it is avoided for a while like one that was not heard."""
    run = Run(BUSY)

    run.attempts.begin(A0)

    assert run.noted == [("a", SendOutcome.UNHEARD)]


def test_an_attempt_that_used_up_the_time_has_no_successor() -> None:
    """G3: all attempts share ``sendMsgTimeout``."""
    late = RequestTimeout("a:1", "SEND_MESSAGE_V2", TIMEOUT_S)
    run = Run(late)
    run.clock.advance(TIMEOUT_S - TAKES_S)

    run.attempts.begin(A0)

    assert run.results == [late]


def test_the_failure_is_reported_if_there_is_no_queue_or_thread_for_another_attempt() -> None:
    """G2: once, whatever is missing."""
    run, closed = Run(CLOSED, search_fails_by=NoWritableQueue("orders")), Run(CLOSED, has_thread=False)

    run.attempts.begin(A0)
    closed.attempts.begin(A0)

    assert run.results == closed.results == [CLOSED]
