"""Random histories of one queue and a group that consumes it by the real planner, store rules and committer.

The broker's log is simulated: messages are numbered, each with a store time and a place in the log. Topics
are made again, ends are lost, clocks set back, messages expire; Java members and operators move the group at
the broker; the process is killed between any two steps, and the offset store is lost or put back.

One assumption is the page's (``docs/how-to/offsets.md``): of two messages that had one offset, the later one has
the larger place in the broker's log or the larger store time.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from pyspark_rocketmq.commit.recovery import check_sink, note_sink_ahead, seed_offsets_from_sink
from pyspark_rocketmq.consume.generations import shows_another_log
from pyspark_rocketmq.consume.part import Part, QueueAck
from pyspark_rocketmq.consume.planning import ReadLimits, plan_ranges
from pyspark_rocketmq.consumer import batch as batch_module
from pyspark_rocketmq.consumer.batch import BatchRunner, Job
from pyspark_rocketmq.errors import RocketMQError, SinkMoved
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, QueueBounds, QueueRange, QueueState
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.offsets.store import CommitResult, OffsetRow, QueueCommit
from pyspark_rocketmq.options.positions import EARLIEST
from pyspark_rocketmq.sinks.against_offsets import SinkStanding, with_newest
from pyspark_rocketmq.sinks.base import QueueGeneration, newest_generations
from pyspark_rocketmq.source.message_lookup import Found, MessageLookup
from pyspark_rocketmq.source.progress import GroupProgress
from pyspark_rocketmq.stored_values import NO_MESSAGES, LastMessage, RememberedMessages
from tests.helpers.fake_clock import FakeClock
from tests.helpers.ownership import OneMember
from tests.source.test_planner import A0, FakeView
from tests.source.test_queue_claims import FakeBrokerOffsets

GROUP = "g"


class Stored(NamedTuple):
    """A message at the broker."""

    number: int
    """Unique number of the message."""
    store_timestamp: int
    commit_log_offset: int


class Log(MessageLookup):
    """The queue at its broker."""

    def __init__(self) -> None:
        self.first = 0
        self.messages: list[Stored] = []
        self._made = 0
        self.clock_ms = 1_000
        self._place = 0
        self._highest_place = 0
        self._latest_ms = 0
        self.had: list[Stored] = []
        """All messages ever stored, by number."""

    @property
    def bounds(self) -> QueueBounds:
        """Bounds of the present log."""
        return QueueBounds(self.first, self.first + len(self.messages))

    def at(self, offset: int) -> Stored | None:
        """Return the message at an offset."""
        here = offset - self.first
        return self.messages[here] if 0 <= here < len(self.messages) else None

    def last_message(self, offset: int) -> LastMessage | None:
        """Return the message at an offset, as rows remember it."""
        stored = self.at(offset)
        return (
            None if stored is None else LastMessage(offset, stored.store_timestamp, stored.commit_log_offset)
        )

    def append(self, count: int) -> None:
        """Store messages."""
        for _ in range(count):
            stored = Stored(self._made, self.clock_ms, self._place)
            self._made += 1
            self._place += 64
            self.clock_ms += 1
            self._highest_place = max(self._highest_place, self._place)
            self._latest_ms = max(self._latest_ms, self.clock_ms)
            self.messages.append(stored)
            self.had.append(stored)

    def lose_end(self, count: int) -> None:
        """Lose power, or promote a slave: later messages overwrite the end of the log."""
        # An empty queue after expired messages has nothing to compare with: the page names it.
        least = 1 if self.first else 0
        kept = self.messages[: max(least, len(self.messages) - count)]
        lost = self.messages[len(kept) :]
        if not lost or max((each.store_timestamp for each in kept), default=-1) >= min(
            each.store_timestamp for each in lost
        ):
            return
        self.messages = kept
        self._place = lost[0].commit_log_offset
        self.clock_ms = max(self.clock_ms, self._latest_ms) + 1

    def make_again(self, count: int) -> None:
        """Delete the topic and make it again."""
        self.first, self.messages = 0, []
        self.append(count)

    def set_clock_back(self, by_ms: int) -> None:
        """Set the broker's clock back; not while it overwrites places of its log."""
        if self._place >= self._highest_place:
            self.clock_ms = max(0, self.clock_ms - by_ms)

    def expire(self, count: int) -> None:
        """Remove the oldest messages but one: an empty queue has nothing to compare with, as the page says."""
        gone = min(count, max(0, len(self.messages) - 1))
        self.first += gone
        del self.messages[:gone]

    def look(
        self, places: Mapping[MessageQueue, int], addresses: Mapping[str, BrokerAddress]
    ) -> dict[MessageQueue, Any]:
        return {queue: Found(self.bounds, self.last_message(offset)) for queue, offset in places.items()}

    def end_now(self, queue: MessageQueue, address: BrokerAddress) -> int:
        return self.bounds.max_offset

    def without_master(
        self,
        queues: Iterable[MessageQueue],
        addresses: Mapping[str, BrokerAddress],
        *,
        is_to_be_listed: bool,
    ) -> dict[MessageQueue, RocketMQError]:
        return {}

    def resets(self) -> dict[MessageQueue, int]:
        return {}


class Killed(BaseException):
    """Raised where the process dies, between two steps."""


@dataclass
class HistorySink:
    """Rows by the number of their message, watermarks and newest messages by generation."""

    rows: list[int] = field(default_factory=list)
    watermarks_by: dict[QueueGeneration, int] = field(default_factory=dict)
    newest_by: dict[QueueGeneration, str] = field(default_factory=dict)
    place: str = "history"

    def watermarks(self, consumer_group: str) -> dict[QueueGeneration, int]:
        return newest_generations(self.watermarks_by)

    def standings(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> tuple[SinkStanding, ...]:
        keys = {queue: QueueGeneration(queue, number) for queue, number in queues.items()}
        marks = {queue: self.watermarks_by.get(key, 0) for queue, key in keys.items()}
        newest = {queue: self.newest_by[key] for queue, key in keys.items() if key in self.newest_by}
        return (with_newest(SinkStanding("history", "1", marks), newest),)

    def begin(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> SinkSide:
        return SinkSide(self, dict(queues), self.standings(consumer_group, queues))


@dataclass
class SinkSide:
    """A batch in the sink."""

    sink: HistorySink
    generations: dict[MessageQueue, int]
    all_standings: tuple[SinkStanding, ...]
    newest: Mapping[MessageQueue, str] = field(default_factory=dict)

    @property
    def standings(self) -> tuple[SinkStanding, ...]:
        return tuple(standing._replace(newest={}) for standing in self.all_standings)

    def task_writer(self) -> SinkSide:
        return self

    def written(self, facts: Mapping[str, Any]) -> tuple[int, int]:
        """Return the row of a part."""
        row: tuple[int, int] = facts["row"]
        return row

    def note_newest(self, newest: Mapping[MessageQueue, str]) -> None:
        self.newest = newest

    def commit(self, written: Sequence[tuple[int, int]], acked: Mapping[MessageQueue, int]) -> int:
        """``written`` has the offset and the number of each row's message."""
        key = QueueGeneration(A0, self.generations[A0])
        begun_at = self.all_standings[0].watermarks[A0]
        if self.sink.watermarks_by.get(key, 0) != begun_at:
            raise SinkMoved("by another one")
        self.sink.rows += [number for offset, number in written if offset >= begun_at]
        if acked[A0] > begun_at:
            self.sink.watermarks_by[key] = acked[A0]
            if self.newest.get(A0):
                self.sink.newest_by[key] = self.newest[A0]
        return 1


class HistoryStore(MemoryOffsetStore):
    """An offset store before and behind whose commits the process may be killed."""

    kill_at = ""

    def commit(
        self, consumer_group: str, commits: Sequence[QueueCommit], *, query_id: str, batch_id: int
    ) -> CommitResult:
        is_batch = batch_id >= 0
        if is_batch and self.kill_at == "before offsets":
            raise Killed
        result = super().commit(consumer_group, commits, query_id=query_id, batch_id=batch_id)
        if is_batch and self.kill_at == "behind offsets":
            raise Killed
        return result

    def state(self) -> dict[str, Any]:
        """Return a copy for :meth:`put_back`."""
        return {group: dict(rows) for group, rows in self._groups.items()}

    def put_back(self, state: Mapping[str, Any]) -> None:
        """Restore a backup; an empty one is a loss."""
        self._groups = {group: dict(rows) for group, rows in state.items()}


class Arrivals:
    """The mirror: shows committed offsets to the broker at once, unless the process is killed before."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._arrived: int | None = None

    def show(self, accepted: Sequence[QueueCommit]) -> None:
        for commit in accepted:
            if commit.queue == A0:
                self._arrived = commit.state.next_offset
                self._history.brokers.offsets[A0] = commit.state.next_offset

    def await_shown(self, accepted: Sequence[QueueCommit], timeout_s: float) -> bool:
        return True

    def arrived(self, queue: MessageQueue) -> int | None:
        return self._arrived


KILLS = ("", "", "", "after the plan", "before data", "before offsets", "behind offsets")
"""Where a batch may be killed, and how often it is not."""


class History:
    """The queue, the group, and the messages that may be missing in the sink at the end."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.random = random.Random(seed)
        self.log = Log()
        self.sink = HistorySink()
        self.is_log_unseen = False
        """Whether the topic was made again and no planner has looked since."""
        self.brokers = FakeBrokerOffsets()
        self.clock = FakeClock()
        self.store = HistoryStore("history", clock=self.clock)
        self.backups: list[dict[str, Any]] = []
        self.steps = 0
        self.story: list[str] = []
        """Steps so far, for the error."""
        self.excused: set[int] = set()
        """Messages that somebody else has consumed, or that an operator has passed over."""
        self.loses_store = self.random.random() < 0.5
        """Otherwise brokers keep a group's offset when its topic is deleted, as before RocketMQ 5."""
        self._patch = monkeypatch
        self._batch_id = 0
        self.start()

    def start(self) -> None:
        """A new process, as ``PushConsumer.start`` begins it."""
        self.store.kill_at = ""
        check_sink(self.store, self.sink, GROUP)  # type: ignore[arg-type]
        seed_offsets_from_sink(self.store, self.sink, GROUP)  # type: ignore[arg-type]
        note_sink_ahead(self.store, self.sink, GROUP)  # type: ignore[arg-type]
        self.view = FakeView({A0: tuple(self.log.bounds[:2])})  # type: ignore[dict-item]
        self.ownership = OneMember(lambda: self.view.bounds)
        self.progress = GroupProgress(
            consumer_group=GROUP,
            client_id="me",
            store=self.store,
            ownership=self.ownership,
            starts=lambda snapshot, queues: self.view.starting_positions(snapshot, queues, EARLIEST),
            clock=self.clock,
            broker_offsets=self.brokers,
            message_lookup=self.log,
            fail_on_data_loss=False,
        )
        self.committer = BatchRunner(
            consumer_group=GROUP,
            store=self.store,
            sink=self.sink,  # type: ignore[arg-type]
            query_id=lambda: "q",
            listeners=[],
            mirror=Arrivals(self),
            clock=self.clock,
        )

    def step(self) -> None:
        """Do one random thing of all that may happen."""
        self.steps += 1
        name = self.random.choice(_STEPS)
        count = self.random.randint(0, 6)
        self.story.append(f"{name} {count}")
        getattr(self, f"_{name}")(count)

    def _append(self, count: int) -> None:
        self.log.append(count)

    def _consume(self, count: int) -> None:
        kill = self.random.choice(KILLS)
        self.story[-1] += f" killed {kill}" if kill else ""
        try:
            self._batch(count, kill)
        except Killed:
            self.start()

    def _read_to(self, planned: QueueRange, end: int) -> tuple[int, bool]:
        """Return how far a task reads, and whether another log keeps it from reading (``source.reader``)."""
        [planned] = self.progress.runnable([planned])
        bounds = self.log.bounds
        before, ahead = self.progress.witnesses(planned, bounds.min_offset)
        if before is not None and self.log.last_message(before.queue_offset) not in {None, before}:
            return planned.start, True
        if ahead is not None and shows_another_log(ahead, self.log.last_message(ahead.queue_offset), bounds):
            return planned.start, True
        return max(planned.start, min(end, bounds.max_offset)), False

    def _batch(self, count: int, kill: str, change: Callable[[], None] | None = None) -> None:
        planned = self._plan()
        if planned is None:
            return
        if kill == "after the plan":
            raise Killed
        # A range of an ending generation from the queue's first message on has no message to compare with.
        is_comparable = planned.start > self.log.first or planned.end == self.log.bounds.max_offset
        if change is not None and is_comparable:
            change()
        end, is_another_log = self._read_to(planned, min(planned.end, planned.start + count))
        messages = [(offset, self.log.at(offset)) for offset in range(planned.start, end)]
        newest = (
            NO_MESSAGES
            if end == planned.start
            else RememberedMessages.of(self.log.last_message(end - 1) or LastMessage(0, 0, 0))
        )
        state = QueueState(end, planned.state.epoch, last_message=newest)
        ack = QueueAck(
            queue=A0,
            start=planned.start,
            state=state,
            consumed=end - planned.start,
            failed=0,
            finished="",
            is_another_log=is_another_log,
        )
        rows = tuple({"row": (offset, stored.number)} for offset, stored in messages if stored is not None)
        part = Part(id="part", acks=(ack,), written=rows, emitted=len(rows))
        self._patch.setattr(batch_module, "run_job", lambda *_: Job([part], None))
        if kill == "before data":
            raise Killed
        self.store.kill_at = kill
        self._batch_id += 1
        self.committer(None, self._batch_id)  # type: ignore[arg-type]
        self.store.kill_at = ""

    def _plan(self, *, is_away: bool = False) -> QueueRange | None:
        """Plan as the planner does at a trigger."""
        self.view.bounds = {} if is_away else {A0: tuple(self.log.bounds[:2])}  # type: ignore[dict-item]
        if self.log.messages:
            self.view.updated_ms[A0] = self.log.messages[-1].store_timestamp
        snapshot = self.view.snapshot()
        states = self.progress.read((), snapshot)
        self.is_log_unseen = self.is_log_unseen and is_away
        bounds = {queue: snapshot.bounds[queue] for queue in states}
        plan = plan_ranges(bounds, states, limits=ReadLimits(), now_s=self.clock.now_s(), skip_gaps=True)
        return next(iter(self.progress.compose((), plan)), None)

    def _consume_while_made_anew(self, count: int) -> None:
        """Make the topic again between a plan and its pulls."""
        self._batch(count, "", lambda: self._make_anew_now(count))

    def _lose_end(self, count: int) -> None:
        if self.random.random() < 0.5:
            self._plan(is_away=True)
        end = self.log.bounds.max_offset
        self.log.lose_end(count)
        at_broker = self.brokers.offsets.get(A0)
        if at_broker is not None and at_broker <= end and self.loses_store:
            # Offsets of groups are lost with messages: the broker has an earlier one.
            end = self.log.bounds.max_offset
            earlier = [each for each in (*self._shown(), at_broker) if each <= min(at_broker, end)]
            if earlier:
                self.brokers.offsets[A0] = max(earlier)
            else:
                del self.brokers.offsets[A0]

    def _make_again(self, count: int) -> None:
        if self.random.random() < 0.5:
            self._plan(is_away=True)
        self._make_anew_now(count)

    def _make_anew_now(self, count: int) -> None:
        row = self.store.read(GROUP).get(A0)
        if row is not None and row.next_offset and not self._is_comparable(row):
            return
        self.log.make_again(2 * count)
        self.is_log_unseen = True
        # Another member's offset that its broker keeps looks like one in the new log: the page names it.
        if self.loses_store or self.brokers.offsets.get(A0) not in self._shown():
            self.brokers.offsets.pop(A0, None)

    def _is_comparable(self, row: OffsetRow) -> bool:
        """Return whether the broker has a message that shows whether the row's position is of this log.

        All may have expired, or a reset to the queue's first message may have nothing before it.
        """
        if not any(each.is_known for each in row.state.last_message.messages):
            return False
        was_put_there = row.was_reset_by_operator or row.was_followed
        return not was_put_there or row.next_offset > self.log.first

    def _shown(self) -> list[int]:
        rows = self.store.read(GROUP)
        return list(rows[A0].shown.offsets) if A0 in rows else []

    def _clock_back(self, count: int) -> None:
        self.log.set_clock_back(count * 100)

    def _expire(self, count: int) -> None:
        row = self.store.read(GROUP).get(A0)
        # A group that has neither consumed nor passed over a message has none to compare with; nor has one whose
        # remembered messages expire in a new log before it is looked at.
        if row is not None and row.state.last_message and not self.is_log_unseen:
            self.log.expire(count // 2)

    def _restart(self, _: int) -> None:
        self.start()

    def _reset(self, count: int) -> None:
        """Move the group as an operator with this project's tools."""
        if A0 not in self.store.read(GROUP):
            return
        self._plan()
        target = self._anywhere(count)
        self.store.reset(GROUP, {A0: target})
        self._excuse_below(target)
        self._plan()

    def _reset_at_broker(self, count: int) -> None:
        """Move the group, which is away, as an operator with RocketMQ's tools."""
        self._away()
        target = self._anywhere(count)
        self.brokers.offsets[A0] = target
        self._excuse_below(target)
        self._back()

    def _java_member(self, count: int) -> None:
        """Let a Java member have the queue for a while."""
        self._away()
        low, high = self.log.bounds[:2]
        position = min(max(self.brokers.offsets.get(A0, low), low), high)
        self.brokers.offsets[A0] = min(position + count, high)
        self._excuse_below(self.brokers.offsets[A0])
        self._back()

    def _away(self) -> None:
        self.ownership.taken.add(A0)
        self._plan()

    def _back(self) -> None:
        self.ownership.give(A0)
        self._plan()

    def _lose_store(self, _: int) -> None:
        if self.loses_store:
            # The group continues without its past: an older backup does not belong to the new store.
            self.backups.clear()
            self.store.put_back({})
            self.start()

    def _back_up(self, _: int) -> None:
        if self.loses_store:
            self.backups.append(self.store.state())

    def _restore(self, _: int) -> None:
        if self.backups:
            self.store.put_back(self.backups[-1])
            self.start()

    def _anywhere(self, count: int) -> int:
        low, high = self.log.bounds[:2]
        return min(high, max(low, high - count))

    def _excuse_below(self, offset: int) -> None:
        self.excused |= {each.number for each in self.log.messages[: max(0, offset - self.log.first)]}

    def check(self) -> None:
        """Consume all, and check that every message not excused is in the sink exactly once."""
        self.log.append(2)
        for _ in range(20):
            self._batch(1_000, "")
            if self._plan() is None:
                break
        twice = [number for number, count in Counter(self.sink.rows).items() if count > 1]
        there = {each.number for each in self.log.messages}
        missing = sorted(there - set(self.sink.rows) - self.excused)
        assert not missing, f"missing {missing}"
        assert not twice, f"twice {twice}"


_STEPS = (
    *["append"] * 5,
    *["consume"] * 8,
    "lose_end",
    "make_again",
    "consume_while_made_anew",
    "clock_back",
    "expire",
    "restart",
    "reset",
    "reset_at_broker",
    "java_member",
    "lose_store",
    "back_up",
    "restore",
)


def run_histories(seeds: range, monkeypatch: pytest.MonkeyPatch, *, steps: int) -> int:
    """Run one history for each seed, and return the number of steps."""
    done = 0
    for seed in seeds:
        history = History(seed, monkeypatch)
        try:
            for _ in range(steps):
                history.step()
            history.check()
        except Exception as error:
            error.add_note(f"seed {seed}: {history.story}")
            raise
        done += history.steps
    return done
