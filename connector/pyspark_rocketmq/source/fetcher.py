"""Fetch the messages of queue ranges by pulls: one thread, and one connection per broker.

The thread sends several pulls together and takes all answers that have arrived; these are decoded while the
broker works on the pulls in flight.  :mod:`~pyspark_rocketmq.consume.fetch_window` decides what to pull, and
:mod:`~pyspark_rocketmq.client.pull_connection` sends and receives.  A *window* is the state of pulling one
range.  The rules for connections:

1. Back-pressure: nothing is sent or received until the caller asks for more.
2. A broken connection counts as a failure of the ranges that had pulls on it. If another broker is found at
   the address, this counts as a failure, too.
3. The next pulls are sent before answers are handed out. Only the thread that iterates over the answers
   waits; other threads wake it.
4. An open range never waits for the connection to another broker: each connection is made by a separate
   thread.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from pyspark_rocketmq.client.pool import ConnectionSettings
from pyspark_rocketmq.client.pull_connection import PullConnection, acquire_connection, release_connection
from pyspark_rocketmq.client.transport import RECEIVE_TICK_S, Poller, Wake, await_readable
from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.consume.fetch_window import (
    FetchedChunks,
    FetchWindow,
    PullTask,
    RangeWindow,
    reset_in,
)
from pyspark_rocketmq.consume.slave_reads import MASTER_ID
from pyspark_rocketmq.errors import BrokerError, ChannelClosed, RocketMQError
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, PulledBody
from pyspark_rocketmq.options.subscription import EVERYTHING
from pyspark_rocketmq.source.late_answers import read_late_answers
from pyspark_rocketmq.source.ranges import QueuePartition
from pyspark_rocketmq.wire.codes import PullSysFlag, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.namespace import queue_with_namespace, with_namespace
from pyspark_rocketmq.wire.requests.pull import HOLD_SCAN_S, PullRequest, PullRequestTemplate, PullResult
from pyspark_rocketmq.wire.subscription import expression_type

logger = logging.getLogger(__name__)

_HELD_S: Final = 15.0
"""Time for which a broker may hold a pull, in seconds
(``DefaultMQPushConsumerImpl.BROKER_SUSPEND_MAX_TIME_MILLIS``)."""
_BURST_S: Final = 0.002
"""Longest wait for several answers together, in seconds. If fewer answers come in this time, the next wait
ends at the first byte."""
_MUCH_BYTES: Final = 64 << 10
"""Number of decoded bytes in a receive buffer at which its connection changes to another buffer."""
_range_and_broker: Final = attrgetter("range_index", "broker_id")
"""The range of a ``PullTask``, and the broker that it goes to."""


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """A broker to pull from, over one connection; a fetcher has one object for each, compared by identity."""

    address: BrokerAddress
    broker_name: str
    settings: ConnectionSettings


class _Pull(NamedTuple):
    """A pull to send or in flight; implements :class:`pyspark_rocketmq.wire.framing.Outgoing`."""

    task: PullTask
    template: PullRequestTemplate
    longest_hold_s: float
    """Seconds for which the broker may wait for a message before it answers; 0 for an ordinary pull."""

    def encode(self, opaque: int) -> bytes:
        """Return the request's whole frame, length prefix included; ``opaque`` is its number."""
        return self.template.encode(self.task.queue_offset, self.task.max_msg_nums, opaque)

    @property
    def filter_check(self) -> RemotingCommand | None:
        """Request that the server must have accepted before the pull is sent; None without a condition."""
        return self.template.filter_check

    def command(self) -> RemotingCommand:
        """Return the request as a command, without its number (opaque)."""
        return self.template.request(self.task.queue_offset, self.task.max_msg_nums).command()


class _Templates(NamedTuple):
    """The requests of a range's pulls, except offset and number of messages."""

    ordinary: PullRequestTemplate
    held: PullRequestTemplate
    """For pulls that the broker may hold (long polling); as ``ordinary`` unless the range has an open end."""
    log_check: PullRequestTemplate
    """For the pull of the range's ``newest`` message without a filter, to check that the log is the same.

    The same as ``ordinary`` if the range has no filter, or no ``newest`` message.
    """

    @classmethod
    def of(cls, partition: QueuePartition) -> _Templates:
        """Return the templates for a range."""
        ordinary = PullRequestTemplate(_request(partition))
        held = log_check = ordinary
        if partition.planned.has_open_end:
            held = PullRequestTemplate(_request(partition, held_s=_HELD_S))
        if partition.newest is not None and partition.is_filtered:
            unfiltered = replace(partition, subscription=EVERYTHING, is_sql92=False)
            log_check = PullRequestTemplate(_request(unfiltered))
        return cls(ordinary, held, log_check)

    def pull(self, task: PullTask) -> _Pull:
        """Return the pull to send for a task of this range."""
        if task.is_held:
            return _Pull(task, self.held, _HELD_S + HOLD_SCAN_S)
        return _Pull(task, self.log_check if task.is_log_check else self.ordinary, 0.0)


class _Order(Enum):
    """An order about a queue from another thread.

    ``HOLD``: send no pulls for now; ``GO_ON``: send them again; ``LEAVE``: send none any more.
    """

    HOLD = auto()
    GO_ON = auto()
    LEAVE = auto()


_Answers = Iterable[tuple[_Pull, PullResult | RocketMQError]]
ResetFound = Callable[[MessageQueue, int], None]
"""Function that gets an operator's reset: the queue and the target offset.

It gets only resets that came too late to be returned with the end of a range. It is called on any thread, and
may wait.
"""


class Fetcher:
    """Reads ranges, with the pulls that :class:`~pyspark_rocketmq.consume.fetch_window.FetchWindow` chooses.

    Only one thread uses a fetcher; other threads may call ``hold``, ``go_on``, ``leave`` and ``end`` at any
    time.
    """

    def __init__(
        self,
        partitions: Sequence[QueuePartition],
        *,
        reset_found: ResetFound | None = None,
        clock: Clock | None = None,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        """Prepare to read ``partitions``, which share one query's options; nothing is connected yet.

        ``reset_found`` gets each operator's reset in an answer that comes after its range is over, even after
        the end of ``arrivals``: a broker reports a reset only once. If ``reset_found`` is None, such answers
        are not read.
        ``sleep`` is called instead of waiting for the end of a pause; for tests.
        """
        self._reset_found = reset_found
        self._clock = clock or SystemClock()
        self._sleep = sleep or self._await_wake
        self._timeout_s = max((each.settings.request_timeout_s for each in partitions), default=0.0)
        self._has_open_ends = any(each.planned.has_open_end for each in partitions)
        self._partitions: list[QueuePartition] = []
        self._templates: list[_Templates] = []
        """The templates of each range's pulls."""
        self._window = FetchWindow(
            (),
            depth=max((each.settings.pulls_in_flight for each in partitions), default=1),
            max_bytes=max((each.settings.max_in_flight_bytes for each in partitions), default=0),
            log=logger.log,
        )
        self._orders: deque[tuple[MessageQueue, _Order]] = deque()
        """Orders of other threads, in the order in which they were given."""
        self._on_hold: set[MessageQueue] = set()
        self._is_ended = False
        self._wake: Wake | None = None
        """Present while chunks are handed out."""
        self._poller: Poller[Wake | PullConnection[_Pull]] = Poller()
        self._connections: dict[_Place, PullConnection[_Pull]] = {}
        self._connecting: dict[_Place, list[_Pull]] = {}
        """Pulls that wait for a connection which a thread is making, by broker."""
        self._connected: deque[tuple[_Place, PullConnection[_Pull] | Exception]] = deque()
        """Connections that threads of :meth:`_connect` have made, or the errors of these threads."""
        self._places: dict[tuple[BrokerAddress, str, ConnectionSettings], _Place] = {}
        self._place_of: dict[tuple[int, int], _Place] = {}
        """The broker to pull from (a place), by index of the range and id of the broker."""
        self._gone_away: set[_Place] = set()
        """Servers that sent GO_AWAY and have not answered a pull since."""
        for each in partitions:
            self.add(each)

    @property
    def ranges(self) -> Sequence[RangeWindow]:
        """The state of pulling each partition (its window), in the order in which they were added."""
        return self._window.ranges

    def add(self, partition: QueuePartition) -> RangeWindow:
        """Begin to read one more range, with the same options; return its window (the state of pulling it).

        An earlier range of the same queue must be over.
        """
        self._partitions.append(partition)
        self._templates.append(_Templates.of(partition))
        window = self._window.add(partition)
        window.is_on_hold = partition.planned.queue in self._on_hold
        return window

    def hold(self, queue: MessageQueue) -> None:
        """Send no more pulls for the queue until ``go_on``; answers to those in flight are handed out."""
        self._orders.append((queue, _Order.HOLD))

    def go_on(self, queue: MessageQueue) -> None:
        """Send pulls for the queue again, after :meth:`hold`."""
        self._orders.append((queue, _Order.GO_ON))
        self._rouse()

    def leave(self, queue: MessageQueue) -> None:
        """Send no more pulls for the queue; its answers need not be handed out."""
        self._orders.append((queue, _Order.LEAVE))
        self._rouse()

    def end(self) -> None:
        """End ``arrivals`` immediately, even if chunks have not been handed out."""
        self._is_ended = True
        self._rouse()

    def arrivals(self, within_s: float = math.inf) -> Generator[list[FetchedChunks]]:
        """Yield the bodies of answers (chunks) of all ranges as they come, in lists.

        A list comes at the latest ``within_s`` seconds after the caller asks for it, and may be empty.

        Each range's chunks are in queue order, and the last ones of a range are marked (``is_last``). Bodies
        are views of receive buffers: see :class:`~pyspark_rocketmq.client.pull_connection.ReceiveBuffer`.
        """
        window, wake = self._window, Wake()
        self._wake = wake
        is_ready = False
        due_s = self._clock.monotonic_s() + within_s
        try:
            while window.is_open:
                left_s = due_s - self._clock.monotonic_s()
                self._receive(wake, 0.0 if is_ready else max(0.0, left_s))
                if self._connected:
                    self._take_connected()
                if self._orders:
                    self._follow_orders()
                if self._is_ended:
                    return
                asked_s = self._clock.monotonic_s()
                has_sent = self._send(asked_s)
                is_ready = window.is_ready()
                if is_ready or left_s <= 0:
                    chunks = window.take()
                    self._swap_buffers()
                    yield chunks
                    del chunks
                    is_ready = window.is_ready()
                    due_s = self._clock.monotonic_s() + within_s
                elif not has_sent and not self._is_waiting():
                    self._stand_by(asked_s, left_s)
        finally:
            self._wake = None
            wake.close()
            for place, connection in self._connections.items():
                self._release(place, connection)
            self._connections.clear()
            self._connecting.clear()
            self._release_connected()

    def _release(self, place: _Place, connection: PullConnection[_Pull]) -> None:
        connection.drop_held_back()
        if self._reset_found is not None and connection.in_flight and connection.is_confirmed:
            # The windows may hold many messages, and must not live as long as the last answers take.
            take_in = partial(_report_resets, self._partitions, self._reset_found)
            read_late_answers(connection, self._clock, place.settings, self._timeout_s, take_in)
        else:
            # A caller that stops halfway (a LIMIT, a killed task) leaves unread answers, with which this
            # closes the connection.
            release_connection(connection, self._clock, place.settings)

    def _follow_orders(self) -> None:
        while self._orders:
            queue, order = self._orders.popleft()
            (self._on_hold.add if order is _Order.HOLD else self._on_hold.discard)(queue)
            for window, partition in zip(self._window.ranges, self._partitions, strict=True):
                if partition.planned.queue == queue:
                    window.is_on_hold = order is _Order.HOLD
                    if order is _Order.LEAVE:
                        window.stop()

    def _rouse(self) -> None:
        wake = self._wake
        if wake is not None:
            wake.set()

    def _is_waiting(self) -> bool:
        return bool(self._connecting) or any(each.in_flight for each in self._connections.values())

    def _stand_by(self, asked_s: float, left_s: float) -> None:
        """Wait up to ``left_s`` for the end of a pause, or for a queue on hold to go on.

        Call this only while no pull is in flight. ``asked_s`` is the time at which there was no pull to send:
        a pause that has ended since then was still the reason. If there was no pause then, and no queue is on
        hold, no message can come any more, so the ranges fail.
        """
        pause_s = self._window.shortest_pause_s(asked_s)
        if pause_s is not None:
            self._sleep(min(pause_s, left_s))
        elif self._on_hold:
            self._sleep(min(RECEIVE_TICK_S, left_s))
        else:
            self._window.stand_still()

    def _await_wake(self, seconds: float) -> None:
        assert self._wake is not None
        if await_readable([self._wake], seconds):
            self._wake.clear()

    def _receive(self, wake: Wake, at_most_s: float) -> None:
        """Take in what has arrived; wait for that, or to be woken, at most ``at_most_s`` seconds."""
        waiting = [
            (place, connection) for place, connection in self._connections.items() if connection.in_flight
        ]
        if not waiting and not self._connecting:
            return
        began_s = self._clock.monotonic_s()
        pause_s = self._window.shortest_pause_s(began_s)
        # A range whose pause is over must not wait for another range's slow answer.
        timeout_s = min(RECEIVE_TICK_S, at_most_s, math.inf if pause_s is None else pause_s)
        if timeout_s and self._await_burst([connection for _, connection in waiting]):
            timeout_s = min(timeout_s, _BURST_S)
        sockets: list[Wake | PullConnection[_Pull]] = [wake, *(each for _, each in waiting)]
        ready = self._poller.await_readable(sockets, timeout_s)
        # Time beyond the timeout means this process was suspended; it does not count as silence.
        waited_s = min(self._clock.monotonic_s() - began_s, timeout_s)
        if wake in ready:
            wake.clear()
        for place, connection in waiting:
            try:
                if connection in ready:
                    answers = connection.receive(self._timeout_s, waited_s=waited_s)
                else:
                    answers = connection.pass_time(waited_s, self._timeout_s)
            except RocketMQError as error:
                self._lose_connection(place, error)
            else:
                self._take_in(place, answers)
        self._window.settle(self._clock.monotonic_s())

    def _await_burst(self, waiting: Sequence[PullConnection[_Pull]]) -> bool:
        """Let the next wait last until about as many answers have come as are needed to send more pulls.

        Return whether some connection waits for more than one byte. In this case the caller must keep the
        wait short: if the answers are smaller than expected, so many bytes never come.
        """
        answers, in_flight = self._window.answers_to_next_burst, self._window.in_flight
        awaited = [each.await_answers(answers * each.in_flight // max(1, in_flight)) for each in waiting]
        return any(awaited)

    def _take_in(self, place: _Place, answers: _Answers) -> None:
        refused: list[_Pull] = []
        now_s = self._clock.monotonic_s()
        for pull, outcome in answers:
            if isinstance(outcome, BrokerError) and outcome.code == ResponseCode.GO_AWAY:
                refused.append(pull)
                continue
            if self._gone_away and isinstance(outcome, PullResult):
                self._gone_away.discard(place)
            window = self._window.ranges[pull.task.range_index]
            if self._reset_found is not None and (window.is_stopped or window.failure is not None):
                _report_resets(self._partitions, self._reset_found, [(pull, outcome)])
            self._window.answered(pull.task, outcome, now_s)
        if refused:
            self._go_away(place, refused)

    def _go_away(self, place: _Place, refused: Iterable[_Pull]) -> None:
        """Connect again to a broker that shuts down (sent GO_AWAY), and send the ``refused`` pulls again.

        The first time this happens immediately. If the broker has answered no pull since, it counts as a
        failure, so that a pause comes first.
        """
        reason = "the broker is shutting down and sent the client away (GO_AWAY)"
        error = ChannelClosed(place.address, reason) if place in self._gone_away else None
        self._gone_away.add(place)
        self._lose(refused, error)
        self._lose_connection(place, error)

    def _lose_connection(self, place: _Place, error: RocketMQError | None) -> None:
        self._lose(self._connections.pop(place).close(), error)

    def _lose(self, pulls: Iterable[_Pull], error: RocketMQError | None) -> None:
        now_s = self._clock.monotonic_s()
        for pull in pulls:
            self._window.lost(pull.task, error, now_s)

    def _send(self, now_s: float) -> bool:
        """Send the pulls that the window plans; return whether it planned any, sent or not."""
        tasks = self._window.tasks(now_s)
        by_place: dict[_Place, list[_Pull]] = {}
        # The tasks of a range follow one another, and all go to one place.
        for (range_index, broker_id), of_range in groupby(tasks, _range_and_broker):
            pulls = by_place.setdefault(self._place(range_index, broker_id), [])
            pulls += map(self._templates[range_index].pull, of_range)
        for place, to_send in by_place.items():
            self._send_to(place, to_send)
        if tasks:
            self._window.settle(self._clock.monotonic_s())
        return bool(tasks)

    def _place(self, range_index: int, broker_id: int) -> _Place:
        found = self._place_of.get((range_index, broker_id))
        if found is None:
            of = self._partitions[range_index]
            address = of.address if broker_id == MASTER_ID else of.replicas[broker_id]
            key = address, of.planned.queue.broker_name, of.connection
            found = self._place_of[range_index, broker_id] = self._places.setdefault(key, _Place(*key))
        return found

    def _send_to(self, place: _Place, pulls: list[_Pull]) -> None:
        connection = self._connections.get(place)
        if connection is None and self._has_open_ends:
            self._send_when_connected(place, pulls)
            return
        try:
            if connection is None:
                connection = self._connections[place] = self._acquire(place)
        except RocketMQError as error:
            self._lose(pulls, error)
            return
        try:
            connection.send(pulls)
        except RocketMQError as error:
            self._lose_connection(place, error)

    def _acquire(self, place: _Place) -> PullConnection[_Pull]:
        return acquire_connection(place.address, self._clock, place.settings, broker_name=place.broker_name)

    def _send_when_connected(self, place: _Place, pulls: list[_Pull]) -> None:
        if place in self._connecting:
            self._connecting[place] += pulls
            return
        self._connecting[place] = pulls
        name = f"rocketmq-connect-{place.address}"
        threading.Thread(target=self._connect, args=(place, self._wake), name=name, daemon=True).start()

    def _connect(self, place: _Place, wake: Wake) -> None:
        """Connect to a broker, and pass the connection or the error to the reading thread.

        Runs on a separate thread.
        """
        made: PullConnection[_Pull] | Exception
        try:
            made = self._acquire(place)
        except Exception as error:  # noqa: BLE001 - handled by the thread that takes the connection
            made = error
        self._connected.append((place, made))
        wake.set()
        if self._wake is not wake:
            self._release_connected()

    def _take_connected(self) -> None:
        """Send the pulls that waited for connections which were made since the last call."""
        has_failed = False
        while self._connected:
            place, made = self._connected.popleft()
            pulls = self._connecting.pop(place)
            if isinstance(made, PullConnection):
                self._connections[place] = made
                self._send_to(place, pulls)
            elif isinstance(made, RocketMQError):
                self._lose(pulls, made)
                has_failed = True
            else:
                raise made
        if has_failed:
            self._window.settle(self._clock.monotonic_s())

    def _release_connected(self) -> None:
        """Release connections that were made too late; several threads may call this at the same time."""
        with suppress(IndexError):
            while True:
                place, made = self._connected.popleft()
                if isinstance(made, PullConnection):
                    release_connection(made, self._clock, place.settings)

    def _swap_buffers(self) -> None:
        used = [each.buffer for each in self._connections.values() if each.buffer.used >= _MUCH_BYTES]
        if not used:
            return
        for buffer in used:
            buffer.swap()
        self._window.move(self._retained)

    def _retained(self, body: PulledBody) -> PulledBody:
        for connection in self._connections.values():
            body = connection.buffer.retain(body)
        return body


def _report_resets(partitions: Sequence[QueuePartition], reset_found: ResetFound, answers: _Answers) -> None:
    """Pass the operators' resets in ``answers``, whose ranges are over, to ``reset_found``."""
    for pull, outcome in answers:
        of = partitions[pull.task.range_index]
        target = reset_in(of, pull.task, outcome)
        if target is not None:
            reset_found(of.planned.queue, target)


def _request(partition: QueuePartition, *, held_s: float = 0.0) -> PullRequest:
    return PullRequest(
        consumer_group=with_namespace(partition.settings.namespace, partition.settings.consumer_group),
        queue=queue_with_namespace(partition.settings.namespace, partition.planned.queue),
        queue_offset=partition.planned.start,
        max_msg_nums=partition.settings.pull_batch_size,
        sys_flag=PullSysFlag.SUBSCRIPTION | (PullSysFlag.SUSPEND if held_s else 0),
        suspend_timeout_millis=int(held_s * 1000),
        subscription=partition.subscription,
        expression_type=expression_type(is_sql92=partition.is_sql92),
    )
