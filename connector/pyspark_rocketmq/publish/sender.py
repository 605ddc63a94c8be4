"""Sends the batches of one task: one at a time to each queue, in order; retries for ``retryTimeoutMs``.

The thread that puts batches in does all the work; the callbacks of sends only note how long brokers took, and
leave outcomes in ``_outcomes``. A batch stays at the head of its queue's buffer until it is acknowledged, so
no other batch overtakes it. If an answer is lost, the retry may store the batch twice, one copy right after
the other.

Rule 1: a batch with its own queue is tried only on that queue. Any other batch moves to another broker's
queue after a failure, after a refusal that another broker might not give, and from a queue that its topic no
longer has; the topic may have moved to other brokers. After a pause, brokers that refused the batch may be
tried again: the others may be away for long. See rows G3 and G5 of ``docs/semantics.md``.
Rule 2: a batch that may go anywhere waits for an idle queue, so that it never waits for a request that may
hang: a broker that does not answer delays only its own batches.
Rule 3: a batch that its broker refuses for its size is sent again in two halves, one after the other, down to
single messages: only the broker knows its limit (``maxMessageSize``).
Rule 4: between two calls, for example while the caller waits for rows, no attempt can begin. Such time does
not count for a batch's ``retryTimeoutMs``; attempts under way and pauses do. So a batch has its attempts
however slowly rows come, and a broker that is gone is given up after as many.
Rule 5: when ``finish`` returns, every batch is acknowledged. When a method raises an error, any other batch
that is not acknowledged may or may not be stored.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Final

from pyspark_rocketmq.client.broker import OnSend
from pyspark_rocketmq.client.producer.attempts import FaultTable, SendOutcome, next_outcome, round_robin_queue
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.consume.not_now import is_sent_again
from pyspark_rocketmq.errors import (
    BrokerError,
    ConnectFailed,
    MessageRefused,
    RemoteProtocolError,
    RocketMQError,
    RowNotSent,
    TopicAway,
    TransportError,
    WrongBroker,
    WrongMessageType,
)
from pyspark_rocketmq.model import MessageQueue, SendStatus
from pyspark_rocketmq.options.write import WriteOptions
from pyspark_rocketmq.publish.batches import SendBatch
from pyspark_rocketmq.retry import UNTIL_DEADLINE
from pyspark_rocketmq.wire.codes import RETRIED_BY_PRODUCERS, ResponseCode
from pyspark_rocketmq.wire.requests.send import SendResult

logger = logging.getLogger(__name__)

Begin = Callable[[SendBatch, MessageQueue, OnSend], None]
"""Begins a send; the callback is called exactly once, from any thread."""

_SIGNS_OF_A_MOVE: Final = (TopicAway, ConnectFailed)
"""Errors after which a topic may have left a broker: the broker, or its route, no longer has the topic."""
_NEVER_SENT: Final = (ConnectFailed, WrongBroker)
"""Errors of a connection after which it is certain that the request was not sent."""
_TRIES_AT_FIRST_CONTACT = 3
"""Number of tries of a batch with an unspecific error, if the task has not sent any message yet."""
_SIZE_EXCEEDED = "size exceeded"
"""Part of a SYSTEM_ERROR's remark: a batch is larger than ``maxMessageSize`` (``MessageExtEncoder``)."""
_OF_SIZE: Final = re.compile(r"length|size|large|exceed", re.IGNORECASE)
"""Word in a MESSAGE_ILLEGAL's remark that names a size. The broker also returns this code for a delay that is
too long and for batches to a retry topic (``SendMessageProcessor``)."""
_OF_A_NAME: Final = "topic length"
"""Part of a remark about the topic's name, whose length is the same in a smaller batch."""


@dataclass(slots=True)
class _Sending:
    """A batch that waits or is being sent, until its broker acknowledges it."""

    batch: SendBatch
    failures: int = 0
    until_s: float | None = None
    """Monotonic second after which the batch is not tried again; None before its first attempt."""
    due_s: float = 0.0
    """Monotonic second at which its next attempt may begin."""
    choices: Sequence[MessageQueue] = ()
    """Queues to which the batch may go; empty if it has its own queue."""
    refused_by: frozenset[str] = frozenset()
    """Brokers that refused the batch since its last pause; it avoids their queues."""
    left_by: frozenset[str] = frozenset()
    """Brokers that could not be reached, or no longer had the topic, since the choices were looked up."""
    failed_broker: str | None = None
    """Broker at which the last attempt failed; the next one avoids it if possible."""
    may_be_stored: bool = False
    """Whether an attempt got no answer, so that its broker may have stored the batch."""


@dataclass(slots=True)
class _QueueBuffer:
    """The batches of one queue; the head is being sent, or waits for its next attempt."""

    waiting: deque[_Sending] = field(default_factory=deque)
    is_under_way: bool = False


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outcome of an attempt at a queue."""

    queue: MessageQueue
    value: SendResult | RocketMQError
    came_s: float
    """Monotonic second at which it came, perhaps long before the sender takes it in."""


class Sender:
    """Sends the batches of one task. For one thread."""

    def __init__(
        self,
        begin: Begin,
        clock: Clock,
        options: WriteOptions,
        *,
        faults: FaultTable | None = None,
        instead_of: Callable[[MessageQueue], Sequence[MessageQueue]] = lambda _: (),
        too_large: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Set up the sender; :meth:`put` begins to send.

        Args:
            begin: Begins a send.
            clock: Clock for retries.
            options: The write's options.
            faults: Brokers that batches without their own queue should avoid; None to avoid no broker.
            instead_of: Called with a queue after a refusal, or a failed connection to its broker; returns
                the topic's current queues if that queue is gone, otherwise an empty sequence.
            too_large: Called with the size of a batch that a broker refused for its size.
        """
        self._begin = begin
        self._clock = clock
        self._max_bytes = options.max_in_flight_bytes
        self._send_timeout_s = options.request_timeout_ms / 1000
        self._retry_timeout_s = options.retry_timeout_ms / 1000
        self._require_send_ok = options.require_send_ok
        self._faults = faults
        self._instead_of = instead_of
        self._too_large = too_large
        self._buffers: dict[MessageQueue, _QueueBuffer] = {}
        self._outcomes: SimpleQueue[_Outcome] = SimpleQueue()
        self._bytes = 0
        self._turn = 0
        self._moved: list[_Sending] = []
        """Batches, or second halves of batches, that failed at one queue and wait for an idle one."""
        self._placed_s = 0.0
        """Monotonic second at which batches were last assigned to queues."""
        self._unplaced: dict[str, deque[_Sending]] = {}
        """Batches that wait for any idle queue, in order, by topic."""
        self._look_again_s: dict[str, float] = {}
        """Monotonic second before which a topic's queues are not looked up again, by topic."""
        self._left_s = clock.monotonic_s()
        """Monotonic second at which the last call of :meth:`put` ended."""
        self.messages = 0
        """Number of acknowledged messages."""

    def put(self, batch: SendBatch, queues: Sequence[MessageQueue] = ()) -> None:
        """Put ``batch`` behind all earlier ones for its queue, without waiting for its acknowledgement.

        Wait only while more than ``maxInFlightBytes`` bytes are not acknowledged. ``queues`` are the possible
        queues if the batch's destination is a topic.

        Raises:
            RowNotSent: If this or another batch could not be sent.
        """
        self._come_back()
        self._bytes += batch.size
        if isinstance(batch.destination, str):
            waiting = self._unplaced.setdefault(batch.destination, deque())
            waiting.append(_Sending(batch, choices=queues))
        else:
            self._append(batch.destination, _Sending(batch))
        self._settle()
        self._left_s = self._clock.monotonic_s()

    def finish(self) -> None:
        """Wait until every batch is acknowledged.

        Raises:
            RowNotSent: If a batch could not be sent.
        """
        self._come_back()
        self._settle()
        while self._buffers or self._moved:
            self._wait()
        assert not self._unplaced

    def _come_back(self) -> None:
        """Take in what has come while the caller was away, and add this time to what batches have left.

        Only time counts as away in which a batch might have been tried: it was not under way, nor in a pause.
        """
        self._take_in_all()
        now_s = self._clock.monotonic_s()
        idle = [buffer.waiting[0] for buffer in self._buffers.values() if not buffer.is_under_way]
        for sending in (*idle, *self._moved):
            if sending.until_s is not None:
                sending.until_s += max(0.0, now_s - max(self._left_s, sending.due_s))

    def _settle(self) -> None:
        self._take_in_all()
        self._begin_due()
        self._place()
        while self._bytes > self._max_bytes:
            self._wait()

    def _take_in_all(self) -> None:
        while not self._outcomes.empty():
            self._take_in(self._outcomes.get())

    def _place(self) -> None:
        """Assign batches to idle queues, first those that failed elsewhere."""
        now_s = self._placed_s = self._clock.monotonic_s()
        self._moved = [one for one in self._moved if one.due_s > now_s or not self._is_placed(one)]
        for topic, waiting in list(self._unplaced.items()):
            while waiting and self._is_placed(waiting[0]):
                waiting.popleft()
            if not waiting:
                del self._unplaced[topic]

    def _is_placed(self, sending: _Sending) -> bool:
        """Append the batch to the next idle one of its possible queues; return whether there was one."""
        queues, failed_broker = sending.choices, sending.failed_broker
        if sending.refused_by:
            queues = [queue for queue in queues if queue.broker_name not in sending.refused_by]
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
        buffer.is_under_way = True
        begun_s = self._clock.monotonic_s()
        if head.until_s is None:
            head.until_s = begun_s + self._retry_timeout_s
        self._begin(head.batch, queue, lambda outcome: self._ended(queue, begun_s, outcome))

    def _ended(self, queue: MessageQueue, begun_s: float, outcome: SendResult | RocketMQError) -> None:
        """Leave the outcome of an attempt that began at ``begun_s``. Runs on the thread of the callback."""
        came_s = self._clock.monotonic_s()
        if self._faults is not None:
            kind = SendOutcome.ANSWERED if isinstance(outcome, SendResult) else SendOutcome.of(outcome)
            self._faults.note(queue.broker_name, (came_s - begun_s) * 1000, kind)
        self._outcomes.put(_Outcome(queue, outcome, came_s))

    def _begin_due(self) -> None:
        for queue, buffer in list(self._buffers.items()):
            self._begin_head(queue, buffer)

    def _wait(self) -> None:
        """Wait until an outcome comes or a retry is due."""
        dues = [buffer.waiting[0].due_s for buffer in self._buffers.values() if not buffer.is_under_way]
        # A pause that has ended since then is still the reason to wait; others wait for a queue's outcome.
        dues += [one.due_s for one in self._moved if one.due_s > self._placed_s]
        if dues:
            with suppress(Empty):
                self._take_in(self._outcomes.get(timeout=max(0.0, min(dues) - self._clock.monotonic_s())))
        else:
            self._take_in(next_outcome(self._outcomes, self._send_timeout_s))
        self._begin_due()
        self._place()

    def _take_in(self, ended: _Outcome) -> None:
        queue, outcome = ended.queue, ended.value
        buffer = self._buffers[queue]
        buffer.is_under_way = False
        head = buffer.waiting[0]
        # Unless it is put off, the batch may be tried again from then on.
        head.due_s = ended.came_s
        if isinstance(outcome, SendResult):
            self._check_status(head.batch, queue, outcome)
            self.messages += head.batch.count
            self._bytes -= head.batch.size
            self._leave(queue, buffer)
            return
        head.may_be_stored |= _may_have_stored(outcome)
        if head.batch.count > 1 and is_too_large(outcome):
            self._split(head, queue, buffer, outcome)
            return
        self._put_off(head, queue, outcome)
        if head.choices:
            head.failed_broker = queue.broker_name
            self._moved.append(head)
            self._leave(queue, buffer)

    def _split(
        self, head: _Sending, queue: MessageQueue, buffer: _QueueBuffer, refusal: RocketMQError
    ) -> None:
        logger.warning(
            "batch of %d messages is too large for its broker, sending it in halves; lower batchBytes %s: %s",
            head.batch.count,
            queue,
            refusal,
        )
        self._too_large(head.batch.size)
        head.batch, half = head.batch.halves()
        second = _Sending(half, choices=head.choices, may_be_stored=head.may_be_stored)
        if head.choices:
            self._moved.append(second)
        else:
            buffer.waiting.insert(1, second)

    def _leave(self, queue: MessageQueue, buffer: _QueueBuffer) -> None:
        buffer.waiting.popleft()
        if buffer.waiting:
            self._begin_head(queue, buffer)
        else:
            del self._buffers[queue]

    def _put_off(self, head: _Sending, queue: MessageQueue, error: RocketMQError) -> None:
        head.failures += 1
        # Another batch may have found meanwhile that the queue is gone.
        if head.choices and (queue not in head.choices or self._goes_elsewhere(head, queue, error)):
            return
        pause_s = UNTIL_DEADLINE.pause_s(head.failures)
        # Pause even if the topic has moved: name servers may contradict each other.
        head.due_s += pause_s
        assert head.until_s is not None
        if not self._is_tried_again(head, error) or head.due_s >= head.until_s:
            is_stored = None if head.may_be_stored else False
            raise RowNotSent(head.batch.shown(), str(error), is_stored=is_stored) from error
        if self._has_moved(head, queue, error, pause_s):
            return
        logger.warning("send failed, trying again %s attempt=%d: %s", queue, head.failures + 1, error)
        head.refused_by = frozenset()

    def _goes_elsewhere(self, head: _Sending, queue: MessageQueue, error: RocketMQError) -> bool:
        """Return whether a refused batch goes to another broker's queue, or its topic has lost this queue."""
        if error.retryable:
            return False
        if isinstance(error, BrokerError) and error.code in RETRIED_BY_PRODUCERS:
            refused_by = head.refused_by | {queue.broker_name}
            if any(other.broker_name not in refused_by for other in head.choices):
                head.refused_by = refused_by
                logger.warning("send refused, trying another broker %s: %s", queue, error)
                return True
        return self._follows_topic(head, queue, error)

    def _has_moved(self, head: _Sending, queue: MessageQueue, error: RocketMQError, pause_s: float) -> bool:
        """Return whether the whole topic has left its brokers; look that up at most once in ``pause_s``."""
        if isinstance(error, _SIGNS_OF_A_MOVE):
            head.left_by |= {queue.broker_name}
        now_s = self._clock.monotonic_s()
        if not self._may_have_moved(head) or now_s < self._look_again_s.get(queue.topic, now_s):
            return False
        if self._follows_topic(head, queue, error):
            return True
        # A look-up may take seconds, in which nothing is sent.
        looked_s = self._clock.monotonic_s()
        self._look_again_s[queue.topic] = looked_s + max(pause_s, looked_s - now_s)
        return False

    @staticmethod
    def _may_have_moved(head: _Sending) -> bool:
        """Return whether the whole topic may have left its brokers, and the batch may follow it.

        While another broker takes the batch or is only busy, a broker that restarts keeps its place among the
        choices.
        """
        return bool(head.choices) and head.left_by >= {each.broker_name for each in head.choices}

    def _follows_topic(self, head: _Sending, queue: MessageQueue, error: RocketMQError) -> bool:
        """Look up whether ``queue`` is gone; return whether it is.

        If so, all batches without a key that might have gone there get the topic's current queues.
        """
        queues = self._instead_of(queue)
        if not queues:
            return False
        logger.warning("queue is gone, trying the others of its topic %s: %s", queue, error)
        under_way = (sending for buffer in self._buffers.values() for sending in buffer.waiting)
        for sending in (head, *under_way, *self._moved, *self._unplaced.get(queue.topic, ())):
            if queue in sending.choices:
                sending.choices, sending.refused_by, sending.left_by = queues, frozenset(), frozenset()
        return True

    def _is_tried_again(self, head: _Sending, error: RocketMQError) -> bool:
        """Return whether the same queue may accept the batch later.

        An unspecific code that Java's producer retries counts as temporary. Before the task's first
        acknowledged message, it counts so only for a batch's first tries.
        """
        if error.retryable:
            return True
        has_worked = self.messages > 0 or head.failures < _TRIES_AT_FIRST_CONTACT
        return not is_too_large(error) and is_sent_again(error, has_worked=has_worked)

    def _check_status(self, batch: SendBatch, queue: MessageQueue, result: SendResult) -> None:
        if self._require_send_ok and result.status is not SendStatus.SEND_OK:
            raise RowNotSent(
                batch.shown(),
                f"the broker of {queue} answered {result.status.name}, an error with requireSendOk=true. "
                "Repair the broker, or set requireSendOk=false to accept such answers.",
                is_stored=True,
            )


def _may_have_stored(error: RocketMQError) -> bool:
    """Return whether a broker may have stored the messages of a send that ended with ``error``."""
    is_unheard = isinstance(error, TransportError | RemoteProtocolError)
    return is_unheard and not isinstance(error, _NEVER_SENT)


def is_too_large(error: RocketMQError) -> bool:
    """Return whether a broker refused a batch for its size, so that it may accept smaller ones."""
    if not isinstance(error, MessageRefused):
        return isinstance(error, BrokerError) and _SIZE_EXCEEDED in error.remark
    if isinstance(error, WrongMessageType) or _OF_A_NAME in error.remark:
        return False
    has_no_reason = error.remark == ResponseCode.MESSAGE_ILLEGAL.name
    return has_no_reason or _OF_SIZE.search(error.remark) is not None
