"""Fetch queue ranges: one thread sends the pulls that a window plans, over one connection per broker.

It sends pulls in bursts and takes all answers that have arrived; these are decoded while the broker works on
the pulls in flight.  :mod:`~pyspark_rocketmq.consume.fetch_window` decides what to pull, and
:mod:`~pyspark_rocketmq.client.pull_connection` sends and receives.  Two rules are about connections:

1. Back-pressure: nothing happens until the caller wants more.
2. A broken connection counts as a failure of the ranges that had pulls on it; so does finding another broker
   at its address.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import NamedTuple

from pyspark_rocketmq.client.pool import ConnectionSettings
from pyspark_rocketmq.client.pull_connection import PullConnection, acquire_connection, release_connection
from pyspark_rocketmq.client.transport import RECEIVE_TICK_S, await_readable
from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.consume.fetch_window import FetchedChunks, FetchWindow, PullTask, RangeWindow
from pyspark_rocketmq.consume.slave_reads import MASTER_ID
from pyspark_rocketmq.errors import BrokerError, ChannelClosed, RocketMQError
from pyspark_rocketmq.model import BrokerAddress, PulledBody
from pyspark_rocketmq.source.ranges import QueuePartition
from pyspark_rocketmq.wire.codes import PullSysFlag, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.namespace import queue_with_namespace, with_namespace
from pyspark_rocketmq.wire.requests.pull import PullRequest, PullRequestTemplate, PullResult
from pyspark_rocketmq.wire.subscription import expression_type

logger = logging.getLogger(__name__)


class _Place(NamedTuple):
    """A broker to pull from, over one connection."""

    address: BrokerAddress
    broker_name: str
    settings: ConnectionSettings


class _Pull(NamedTuple):
    """A pull to send or in flight; implements :class:`pyspark_rocketmq.wire.framing.Outgoing`."""

    task: PullTask
    template: PullRequestTemplate

    def encode(self, opaque: int) -> bytes:
        """Return the whole frame, length prefix included."""
        return self.template.encode(self.task.queue_offset, self.task.max_msg_nums, opaque)

    def command(self) -> RemotingCommand:
        """Return the same request as a command, without its opaque."""
        return self.template.request(self.task.queue_offset, self.task.max_msg_nums).command()


_Answers = Iterable[tuple[_Pull, PullResult | RocketMQError]]


class Fetcher:
    """Reads ranges as :class:`~pyspark_rocketmq.consume.fetch_window.FetchWindow` decides. For one thread."""

    def __init__(
        self,
        partitions: Sequence[QueuePartition],
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare to read ``partitions``, which share one query's options; nothing is connected yet."""
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._timeout_s = max((each.settings.request_timeout_s for each in partitions), default=0.0)
        self._partitions = tuple(partitions)
        self._templates = [PullRequestTemplate(_request(each)) for each in partitions]
        self._window = FetchWindow(
            partitions,
            depth=max((each.settings.pulls_in_flight for each in partitions), default=1),
            max_bytes=max((each.settings.max_in_flight_bytes for each in partitions), default=0),
            log=logger.log,
        )
        self._connections: dict[_Place, PullConnection[_Pull]] = {}
        self._gone_away: set[_Place] = set()
        """Servers that sent GO_AWAY and have not answered a pull since."""

    @property
    def ranges(self) -> tuple[RangeWindow, ...]:
        """The windows of the partitions, in their order."""
        return self._window.ranges

    def chunks(self) -> Generator[list[FetchedChunks]]:
        """Yield the chunks of all ranges; each range's are in queue order, and its last one is marked.

        Bodies are views of receive buffers: see
        :class:`~pyspark_rocketmq.client.pull_connection.ReceiveBuffer`.
        """
        window = self._window
        is_ready = False
        try:
            while window.is_open:
                self._receive(can_wait=not is_ready)
                has_sent = self._send()
                is_ready = window.is_ready()
                if is_ready:
                    chunks = window.take()
                    self._swap_buffers()
                    yield chunks
                    del chunks
                    is_ready = window.is_ready()
                elif not has_sent and not window.in_flight:
                    self._wait()
        finally:
            # A caller that stops halfway (a LIMIT, a killed task) leaves unread answers: release closes such
            # a connection.
            for place, connection in self._connections.items():
                release_connection(connection, self._clock, place.settings)
            self._connections.clear()

    def _receive(self, *, can_wait: bool) -> None:
        waiting = [
            (place, connection) for place, connection in self._connections.items() if connection.in_flight
        ]
        if not waiting:
            return
        began_s = self._clock.monotonic_s()
        pause_s = self._window.shortest_pause_s(began_s)
        readable = waiting
        if not can_wait or len(waiting) > 1 or pause_s is not None:
            # A range whose pause is over must not wait for another range's slow answer.
            timeout_s = RECEIVE_TICK_S if pause_s is None else min(RECEIVE_TICK_S, pause_s)
            timeout_s = timeout_s if can_wait else 0.0
            ready = await_readable([each for _, each in waiting], timeout_s)
            # Time beyond the timeout means this process was suspended; it does not count as silence.
            waited_s = min(self._clock.monotonic_s() - began_s, timeout_s)
            readable = [(place, connection) for place, connection in waiting if connection in ready]
            for place, connection in waiting:
                if connection not in ready:
                    self._take_in(place, connection.pass_time(waited_s, self._timeout_s))
        for place, connection in readable:
            try:
                answers = connection.receive(self._timeout_s)
            except RocketMQError as error:
                self._lose_connection(place, error)
            else:
                self._take_in(place, answers)
        self._window.settle(self._clock.monotonic_s())

    def _take_in(self, place: _Place, answers: _Answers) -> None:
        refused: list[_Pull] = []
        now_s = self._clock.monotonic_s()
        for pull, outcome in answers:
            if isinstance(outcome, PullResult):
                if self._gone_away:
                    self._gone_away.discard(place)
            elif isinstance(outcome, BrokerError) and outcome.code == ResponseCode.GO_AWAY:
                refused.append(pull)
                continue
            self._window.answered(pull.task, outcome, now_s)
        if refused:
            self._go_away(place, refused)

    def _go_away(self, place: _Place, refused: Iterable[_Pull]) -> None:
        """Connect again to a broker that shuts down: first immediately, later as after any failure."""
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

    def _send(self) -> bool:
        """Send the pulls that the window plans; return whether there were any."""
        tasks = self._window.tasks(self._clock.monotonic_s())
        by_place: dict[_Place, list[_Pull]] = {}
        pulls: list[_Pull] = []
        last: tuple[int, int] | None = None
        for task in tasks:
            # The tasks of a range follow one another, and all go to one place.
            if last != (task.range_index, task.broker_id):
                last = task.range_index, task.broker_id
                pulls = by_place.setdefault(self._place(*last), [])
            pulls.append(_Pull(task, self._templates[task.range_index]))
        for place, to_send in by_place.items():
            self._send_to(place, to_send)
        if tasks:
            self._window.settle(self._clock.monotonic_s())
        return bool(tasks)

    def _place(self, range_index: int, broker_id: int) -> _Place:
        of = self._partitions[range_index]
        address = of.address if broker_id == MASTER_ID else of.replicas[broker_id]
        return _Place(address, of.planned.queue.broker_name, of.connection)

    def _send_to(self, place: _Place, pulls: list[_Pull]) -> None:
        connection = self._connections.get(place)
        try:
            if connection is None:
                connection = self._connections[place] = acquire_connection(
                    place.address, self._clock, place.settings, broker_name=place.broker_name
                )
        except RocketMQError as error:
            self._lose(pulls, error)
            return
        try:
            connection.send(pulls)
        except RocketMQError as error:
            self._lose_connection(place, error)

    def _swap_buffers(self) -> None:
        for connection in self._connections.values():
            connection.buffer.swap()
        self._window.move(self._retained)

    def _retained(self, body: PulledBody) -> PulledBody:
        for connection in self._connections.values():
            body = connection.buffer.retain(body)
        return body

    def _wait(self) -> None:
        pause_s = self._window.shortest_pause_s(self._clock.monotonic_s())
        if pause_s is None:
            self._window.stand_still()
        else:
            self._sleep(pause_s)


def _request(partition: QueuePartition) -> PullRequest:
    return PullRequest(
        consumer_group=with_namespace(partition.settings.namespace, partition.settings.consumer_group),
        queue=queue_with_namespace(partition.settings.namespace, partition.planned.queue),
        queue_offset=partition.planned.start,
        max_msg_nums=partition.settings.pull_batch_size,
        sys_flag=PullSysFlag.SUBSCRIPTION,
        subscription=partition.subscription,
        expression_type=expression_type(is_sql92=partition.is_sql92),
    )
