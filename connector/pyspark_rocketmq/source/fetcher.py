"""Any number of queue ranges over one connection per broker, by one thread.

It sends pulls in bursts and takes in all that has come; what it hands out is decoded while the broker works
on the pulls that are out.  What an answer means for its range is decided by
:mod:`~pyspark_rocketmq.source.range_fetcher`; how pulls travel, by
:mod:`~pyspark_rocketmq.client.pull_connection`.

1. Fair: no range has more than its share of the pulls in flight, so one that gets no answers holds up nobody.
2. Bounded: no pull is sent whose answer, if as large as the largest so far, would exceed the bytes allowed
   over all ranges; but one pull always may be, lest everything wait for it.
3. Back-pressure: nothing happens until the caller wants more.
4. A failure is its range's alone; a broken connection is a failure of those that had pulls on it.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final, NamedTuple

from pyspark_rocketmq.client.pool import ConnectionSettings
from pyspark_rocketmq.client.pull_connection import PullLine, give_back_line, take_line
from pyspark_rocketmq.client.transport import RECEIVE_TICK_S, await_readable
from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.consume.fetch_window import Piece, PullStep
from pyspark_rocketmq.errors import BrokerError, ChannelClosed, RocketMQError
from pyspark_rocketmq.model import PulledBody
from pyspark_rocketmq.source.range_fetcher import RangePull
from pyspark_rocketmq.source.ranges import QueuePartition
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.requests.pull import PullResult

logger = logging.getLogger(__name__)

_BATCH_BYTES: Final = 4 << 20
"""Stored bytes handed out at once, of all ranges together: large enough to decode fast, small beside a
worker's memory."""
_USUAL_ANSWER_BYTES: Final = 256 << 10
"""``maxTransferBytesOnMessageInMemory``: what an answer is taken for until a larger one came."""


class Arrival(NamedTuple):
    """What is next of one range."""

    range_index: int
    """Position of the partition among those the pipeline was given."""
    pieces: list[Piece]
    """In queue order; may be empty at the end."""
    is_last: bool
    """Whether the range ends here: at its end, or with the failure."""
    failure: RocketMQError | None
    """Why the range ends before its end; everything that was next in queue order has been handed out."""


class _Place(NamedTuple):
    """Where pulls go; a line for each."""

    address: str
    settings: ConnectionSettings


class _Pull(NamedTuple):
    """A pull to send or in flight; implements :class:`pyspark_rocketmq.wire.framing.Outgoing`."""

    of: RangePull
    step: PullStep
    to: int
    """Broker id."""
    at_s: float
    """When it was sent, by the monotonic clock."""

    def encode(self, opaque: int) -> bytes:
        """The whole frame, length prefix included."""
        _, queue_offset, max_msg_nums = self.step
        return self.of.series.encode(queue_offset, max_msg_nums, opaque)

    def command(self) -> RemotingCommand:
        """The same request as a command, opaque not set."""
        _, queue_offset, max_msg_nums = self.step
        return self.of.series.request(queue_offset, max_msg_nums).command()


class PullPipeline:
    """Reads the ranges of ``partitions``, each as :class:`~pyspark_rocketmq.source.range_fetcher.RangePull` promises. For one thread."""

    def __init__(
        self,
        partitions: Sequence[QueuePartition],
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Connect to nobody yet.

        Args:
            partitions: Ranges of one set of options; more brokers and topics than one are allowed.
            clock: Measures patience and silence.
            sleep: Waits when every range waits.
        """
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._max_bytes = max((each.max_in_flight_bytes for each in partitions), default=0)
        """Of stored messages asked for or here and not yet handed out."""
        self._depth = max((each.pulls_in_flight for each in partitions), default=1)
        self._timeout_s = max((each.request_timeout_s for each in partitions), default=0.0)
        self.ranges = tuple(RangePull(each, self._clock, depth=self._depth) for each in partitions)
        """One for each partition, in their order."""
        self._open = deque(enumerate(self.ranges))
        """Not wholly handed out; the next to be given pulls comes first."""
        self._lines: dict[_Place, PullLine[_Pull]] = {}
        self._gone_away: set[_Place] = set()
        """Places that ended a connection by GO_AWAY and have not answered a pull since."""
        self._largest_answer = _USUAL_ANSWER_BYTES
        self._batch_bytes = min(_BATCH_BYTES, max(1, self._max_bytes // 2))

    def arrivals(self) -> Generator[list[Arrival]]:
        """Everything of all ranges, several at a time; each range's are in queue order and end with one that says so.

        Bodies are views of receive buffers: whoever keeps them keeps the buffers from being used again.
        """
        is_ready = False
        try:
            while self._open:
                self._receive(can_wait=not is_ready)
                has_sent = self._send()
                is_ready = self._is_ready()
                if is_ready:
                    arrivals = self._hand_out()
                    self._turn_over()
                    yield arrivals
                    del arrivals
                    is_ready = self._is_ready()
                elif not has_sent and not self._in_flight:
                    self._wait()
        finally:
            # Whoever stops half way (a LIMIT, a killed task) leaves answers that nobody will read: such a
            # line is closed.
            for place, line in self._lines.items():
                give_back_line(line, self._clock, place.settings)
            self._lines.clear()

    @property
    def _in_flight(self) -> int:
        return sum([line.in_flight for line in self._lines.values()])

    # --- receiving ------------------------------------------------------------------------------------------

    def _receive(self, *, can_wait: bool) -> None:
        waiting = [(place, line) for place, line in self._lines.items() if line.in_flight]
        if not waiting:
            return
        pauses = [pause_s for _, each in self._open if (pause_s := each.pause_left_s())]
        touched: set[RangePull] = set()
        readable = waiting
        if not can_wait or len(waiting) > 1 or pauses:
            # Not longer than the next pause lasts: who waits for nobody is not to wait for a slow answer.
            began_s = self._clock.monotonic_s()
            at_most_s = min([RECEIVE_TICK_S, *pauses]) if can_wait else 0.0
            lines = await_readable([line for _, line in waiting], at_most_s)
            # What it took longer, this process stood still, and nobody listened.
            waited_s = min(self._clock.monotonic_s() - began_s, at_most_s)
            readable = [(place, line) for place, line in waiting if line in lines]
            for place, line in waiting:
                if line not in lines:
                    touched |= self._take_in(place, line.pass_time(waited_s, self._timeout_s))
        for place, line in readable:
            touched |= self._receive_from(place, line)
        for each in touched:
            each.settle()

    def _receive_from(self, place: _Place, line: PullLine[_Pull]) -> set[RangePull]:
        try:
            answers = line.receive(self._timeout_s)
        except RocketMQError as error:
            return self._lose_line(place, error)
        return self._take_in(place, answers)

    def _take_in(
        self, place: _Place, answers: list[tuple[_Pull, PullResult | RocketMQError]]
    ) -> set[RangePull]:
        touched: set[RangePull] = set()
        refused: list[_Pull] = []
        now_s = self._clock.monotonic_s()
        for pull, outcome in answers:
            of, step, to, at_s = pull
            if of.failure is not None:
                continue
            touched.add(of)
            if isinstance(outcome, PullResult):
                if self._gone_away:
                    self._gone_away.discard(place)
                if body_bytes := len(outcome.body):
                    of.answers += 1
                    of.answered_after_s += now_s - at_s
                    self._largest_answer = max(self._largest_answer, body_bytes)
            elif isinstance(outcome, BrokerError) and outcome.code == ResponseCode.GO_AWAY:
                refused.append(pull)
                continue
            of.take_in(step, to, outcome)
        return touched | self._go_away(place, refused) if refused else touched

    def _go_away(self, place: _Place, refused: Iterable[_Pull]) -> set[RangePull]:
        """A broker that shuts down wants a new connection (5.3.1 and later): once at once, then as after any failure."""
        error: RocketMQError | None = None
        if place in self._gone_away:
            error = ChannelClosed(
                place.address, "the broker is shutting down and sent the client away (GO_AWAY)"
            )
        self._gone_away.add(place)
        for pull in refused:
            pull.of.lost(pull.step, pull.to, error)
        return self._lose_line(place, error)

    def _lose_line(self, place: _Place, error: RocketMQError | None) -> set[RangePull]:
        unanswered = self._lines.pop(place).close()
        for pull in unanswered:
            pull.of.lost(pull.step, pull.to, error)
        return {pull.of for pull in unanswered}

    # --- sending --------------------------------------------------------------------------------------------

    def _send(self) -> bool:
        """Send what may be sent, in bursts: one by one pulls cost the broker and this process twice as much."""
        in_flight = self._in_flight
        if in_flight > self._depth // 2 and not any(each.is_idle for _, each in self._open):
            return False
        room = min(self._depth, self._bytes_left() // self._largest_answer) - in_flight
        steps = self._fair_steps(room) if room > 0 else []
        if not steps and not in_flight:
            steps = self._only_step()
        by_place: dict[_Place, list[_Pull]] = {}
        now_s = self._clock.monotonic_s()
        for of, next_steps in steps:
            broker_id = of.broker_id
            by_place.setdefault(_Place(of.address, of.partition.connection), []).extend(
                [_Pull(of, step, broker_id, now_s) for step in next_steps]
            )
        for place, pulls in by_place.items():
            self._send_to(place, pulls)
        return bool(steps)

    def _bytes_left(self) -> int:
        return self._max_bytes - sum([each.window.buffered_bytes for _, each in self._open])

    def _fair_steps(self, room: int) -> list[tuple[RangePull, list[PullStep]]]:
        asking = [each for _, each in self._open if each.may_ask]
        share = max(1, self._depth // max(1, len(asking)))
        steps: list[tuple[RangePull, list[PullStep]]] = []
        for each in asking:
            at_most = min(share - each.in_flight, room)
            if at_most > 0 and (next_steps := each.steps(at_most)):
                steps.append((each, next_steps))
                room -= len(next_steps)
        # Whoever comes last now comes first some time.
        self._open.rotate(-1)
        return steps

    def _only_step(self) -> list[tuple[RangePull, list[PullStep]]]:
        """The one pull that frees most memory, when there is room for none and nothing that could be handed out."""
        if any(each.window.takeable_bytes for _, each in self._open):
            return []
        waiting = sorted((each for _, each in self._open), key=lambda each: -each.window.buffered_bytes)
        for each in waiting:
            if each.may_ask:
                return [(each, steps)] if (steps := each.steps(1, may_run_ahead=False)) else []
        return []

    def _send_to(self, place: _Place, pulls: list[_Pull]) -> None:
        line = self._lines.get(place)
        try:
            if line is None:
                line = self._lines[place] = take_line(place.address, self._clock, place.settings)
        except RocketMQError as error:
            touched = {pull.of for pull in pulls}
            for pull in pulls:
                pull.of.lost(pull.step, pull.to, error)
        else:
            touched = self._try_to_send(place, line, pulls)
        for each in touched:
            each.settle()

    def _try_to_send(self, place: _Place, line: PullLine[_Pull], pulls: list[_Pull]) -> set[RangePull]:
        try:
            line.send(pulls)
        except RocketMQError as error:
            return self._lose_line(place, error)
        return set()

    # --- handing out ----------------------------------------------------------------------------------------

    def _is_ready(self) -> bool:
        """Whether there is enough to be handed out."""
        takeable = 0
        for _, each in self._open:
            if each.is_over:
                return True
            takeable += each.window.takeable_bytes
        return takeable > 0 and (
            takeable >= self._batch_bytes
            or not self._in_flight
            or self._bytes_left() < self._largest_answer * (self._depth // 2 + 1)
        )

    def _hand_out(self) -> list[Arrival]:
        """Whatever is next of any range: decoded together it costs least, and its buffers become free together."""
        # Asked once for each: another thread may stop a range at any moment, and its last arrival must be
        # one.
        looked_at = [(entry, entry[1].is_over) for entry in self._open]
        ready = [
            (entry, is_over) for entry, is_over in looked_at if is_over or entry[1].window.takeable_bytes
        ]
        for entry, is_over in ready:
            if is_over:
                self._open.remove(entry)
        return [
            Arrival(index, each.window.take(), is_over, each.failure if is_over else None)
            for (index, each), is_over in ready
        ]

    def _turn_over(self) -> None:
        for line in self._lines.values():
            line.turn_over()
        for _, each in self._open:
            each.window.move(self._kept)

    def _kept(self, body: PulledBody) -> PulledBody:
        for line in self._lines.values():
            body = line.keep(body)
        return body

    def _wait(self) -> None:
        pauses = [pause_s for _, each in self._open if (pause_s := each.pause_left_s())]
        if pauses:
            self._sleep(min(pauses))
            return
        for _, each in self._open:
            each.failure = each.stands_still()
