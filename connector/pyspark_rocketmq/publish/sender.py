"""Requests under way: one at a time for each queue, in their order, and tried again until they are stored.

Theory.  Everything here is done by the one thread that puts batches in; the callbacks of sends only leave
outcomes in ``_outcomes``.  A batch stays at the head of its queue's buffer until it is acknowledged, so that
nothing overtakes it. A retry after a lost answer may store a batch twice, one copy behind the other.

Rule 1: a batch for a queue of its own is tried on that queue only (G5); any other moves to another broker's
queue (G3), also after a refusal that another broker may not share, until each has refused it, and from a
queue that its topic has no more.
Rule 2: a batch that may go anywhere waits in a common line for a queue that has nothing to do, never behind a
    request that may hang: a broker that does not answer holds up what it was given, and nothing else.
Rule 3: when ``finish`` returns, every batch is acknowledged; when anything raises, those that are not told of
may or may not be stored.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from pyspark_rocketmq.client.broker import OnSend
from pyspark_rocketmq.client.producer.attempts import FaultTable, SendOutcome, next_outcome, round_robin_queue
from pyspark_rocketmq.client.producer.producer import RETRIED_ELSEWHERE
from pyspark_rocketmq.clock import UNTIL_DEADLINE, Clock, Deadline
from pyspark_rocketmq.errors import BrokerError, RocketMQError, RowNotSent
from pyspark_rocketmq.model import MessageQueue, SendStatus
from pyspark_rocketmq.publish.batches import SendBatch
from pyspark_rocketmq.wire.requests.send import SendResult

logger = logging.getLogger(__name__)

Begin = Callable[[SendBatch, MessageQueue, OnSend], None]
"""Begins a send; the callback is called exactly once, from any thread."""


@dataclass(slots=True)
class _Sending:
    """A batch that is not acknowledged yet."""

    batch: SendBatch
    failures: int = 0
    deadline: Deadline | None = None
    """Until when it is tried, from its first attempt on."""
    begun_s: float = 0.0
    """When its last attempt was."""
    due_s: float = 0.0
    """When it may be tried (next)."""
    choices: Sequence[MessageQueue] = ()
    """Where it may go; of one for a queue of its own, none. Brokers that refused it are not among them any
    more."""
    failed_broker: str | None = None
    """Where its last attempt failed; another one is next, if there is any."""


@dataclass(slots=True)
class _QueueBuffer:
    """What waits for one queue; the head is under way, or waits for its next attempt."""

    waiting: deque[_Sending] = field(default_factory=deque)
    is_under_way: bool = False


class Sender:
    """Sends the batches of one task. For one thread."""

    def __init__(
        self,
        begin: Begin,
        clock: Clock,
        *,
        max_bytes: int,
        send_timeout_s: float,
        retry_timeout_s: float,
        require_send_ok: bool,
        faults: FaultTable | None = None,
        instead_of: Callable[[MessageQueue], Sequence[MessageQueue]] = lambda _: (),
    ) -> None:
        """Send nothing yet.

        Args:
            begin: Begins a send.
            clock: For retries.
            max_bytes: Of what is not acknowledged; a batch that is larger goes alone.
            send_timeout_s: How long one send may take.
            retry_timeout_s: How long a batch is tried, from its first attempt on.
            require_send_ok: Whether a batch that is stored less durably than it should be is a failure.
            faults: Notes how brokers do; those it advises against are avoided by batches that may go
                anywhere.
            instead_of: Asked after a refusal: the queues there are now, if that one is gone; else none.
        """
        self._begin = begin
        self._clock = clock
        self._max_bytes = max_bytes
        self._send_timeout_s = send_timeout_s
        self._retry_timeout_s = retry_timeout_s
        self._require_send_ok = require_send_ok
        self._buffers: dict[MessageQueue, _QueueBuffer] = {}
        self._faults = faults
        self._instead_of = instead_of
        self._outcomes: SimpleQueue[tuple[MessageQueue, SendResult | RocketMQError]] = SimpleQueue()
        self._bytes = 0
        self._turn = 0
        self._moved: list[_Sending] = []
        """Failed at a broker; each waits for its time and then for an idle queue of another one."""
        self._lines: dict[str, deque[_Sending]] = {}
        """By topic, in order: what waits for any idle queue."""
        self.messages = 0
        """Acknowledged."""

    def put(self, batch: SendBatch, queues: Sequence[MessageQueue] = ()) -> None:
        """Have ``batch`` sent; waits while too much is under way.

        Args:
            batch: Goes to its queue, behind all put in before.
            queues: Where it may go if its destination is a topic.

        Raises:
            RowNotSent: If this or another batch could not be sent.
        """
        self._bytes += batch.size
        if isinstance(batch.destination, str):
            line = self._lines.setdefault(batch.destination, deque())
            line.append(_Sending(batch, choices=queues))
        else:
            self._append(batch.destination, _Sending(batch))
        self._settle()

    def finish(self) -> None:
        """Wait until everything is acknowledged.

        Raises:
            RowNotSent: If a batch could not be sent.
        """
        while self._buffers or self._moved:
            self._wait()
        assert not self._lines

    def _settle(self) -> None:
        while not self._outcomes.empty():
            self._take_in(*self._outcomes.get())
        self._begin_due()
        self._place()
        while self._bytes > self._max_bytes:
            self._wait()

    def _place(self) -> None:
        """Give idle queues what may go there, those that have failed elsewhere first."""
        now_s = self._clock.monotonic_s()
        self._moved = [one for one in self._moved if one.due_s > now_s or not self._is_placed(one)]
        for topic, line in list(self._lines.items()):
            while line and self._is_placed(line[0]):
                line.popleft()
            if not line:
                del self._lines[topic]

    def _is_placed(self, sending: _Sending) -> bool:
        """Whether a queue with nothing to do was found, the next in turn."""
        queues, failed_broker = sending.choices, sending.failed_broker
        if self._faults is not None:
            queues = self._faults.preferred(queues, failed_broker)
        for step in range(1, len(queues) + 1):
            queue = round_robin_queue(queues, self._turn + step, failed_broker)
            if queue not in self._buffers:
                self._turn += step
                self._append(queue, sending)
                return True
        return False

    def _append(self, queue: MessageQueue, sending: _Sending) -> None:
        buffer = self._buffers.setdefault(queue, _QueueBuffer())
        buffer.waiting.append(sending)
        self._begin_head(queue, buffer)

    def _begin_head(self, queue: MessageQueue, buffer: _QueueBuffer) -> None:
        head = buffer.waiting[0]
        if buffer.is_under_way or head.due_s > self._clock.monotonic_s():
            return
        if head.deadline is None:
            head.deadline = Deadline.after(self._clock, self._retry_timeout_s)
        buffer.is_under_way = True
        head.begun_s = self._clock.monotonic_s()
        self._begin(head.batch, queue, lambda outcome: self._outcomes.put((queue, outcome)))

    def _begin_due(self) -> None:
        for queue, buffer in list(self._buffers.items()):
            self._begin_head(queue, buffer)

    def _wait(self) -> None:
        """Until an outcome has come or a retry is due."""
        now_s = self._clock.monotonic_s()
        dues = [buffer.waiting[0].due_s for buffer in self._buffers.values() if not buffer.is_under_way]
        dues += [one.due_s for one in self._moved if one.due_s > now_s]
        if dues:
            with suppress(Empty):
                self._take_in(*self._outcomes.get(timeout=max(0.0, min(dues) - self._clock.monotonic_s())))
        else:
            self._take_in(*next_outcome(self._outcomes, self._send_timeout_s))
        self._begin_due()
        self._place()

    def _take_in(self, queue: MessageQueue, outcome: SendResult | RocketMQError) -> None:
        buffer = self._buffers[queue]
        buffer.is_under_way = False
        head = buffer.waiting[0]
        if self._faults is not None:
            took_ms = (self._clock.monotonic_s() - head.begun_s) * 1000
            told = SendOutcome.ANSWERED if isinstance(outcome, SendResult) else SendOutcome.of(outcome)
            self._faults.note(queue.broker_name, took_ms, told)
        if isinstance(outcome, SendResult):
            self._check_status(head.batch, queue, outcome)
            self.messages += head.batch.count
            self._bytes -= head.batch.size
            self._leave(queue, buffer)
            return
        self._put_off(head, queue, outcome)
        if head.choices:
            head.failed_broker = queue.broker_name
            self._moved.append(head)
            self._leave(queue, buffer)

    def _leave(self, queue: MessageQueue, buffer: _QueueBuffer) -> None:
        buffer.waiting.popleft()
        if buffer.waiting:
            self._begin_head(queue, buffer)
        else:
            del self._buffers[queue]

    def _put_off(self, head: _Sending, queue: MessageQueue, error: RocketMQError) -> None:
        head.failures += 1
        pause_s = UNTIL_DEADLINE.pause_s(head.failures)
        assert head.deadline is not None
        if not error.retryable and isinstance(error, BrokerError) and error.code in RETRIED_ELSEWHERE:
            others = [other for other in head.choices if other.broker_name != queue.broker_name]
            if others:
                head.choices = others
                logger.warning("send refused, trying another broker %s: %s", queue, error)
                return
        if not error.retryable and head.choices and (queues := self._instead_of(queue)):
            logger.warning("queue is gone, trying the others of its topic %s: %s", queue, error)
            for sending in (head, *self._moved, *self._lines.get(queue.topic, ())):
                if queue in sending.choices:
                    sending.choices = queues
            return
        if not error.retryable or pause_s >= head.deadline.remaining_s():
            raise RowNotSent(head.batch.shown(), str(error)) from error
        logger.warning("send failed, trying again %s attempt=%d: %s", queue, head.failures + 1, error)
        head.due_s = self._clock.monotonic_s() + pause_s

    def _check_status(self, batch: SendBatch, queue: MessageQueue, result: SendResult) -> None:
        if self._require_send_ok and result.status is not SendStatus.SEND_OK:
            raise RowNotSent(
                batch.shown(),
                f"{queue} stored them with {result.status.name}, less durably than its broker is set up for. "
                "Mend the broker, or set requireSendOk=false.",
            )
