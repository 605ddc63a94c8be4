"""Plan micro-batches: get the queues' bounds and progress, have ``consume.planning`` decide, wait if needed.

This runs in the source runner, a long-lived process without a SparkSession, where an exception ends the query
and nothing times out by itself.  Hence every call below has a deadline. If a broker cannot be reached, its
queues miss this micro-batch and the query goes on. Only errors that the user must act on are raised. A *plain
stream* is a query without a consumer group; its progress is in Spark's checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple, TypeVar

from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.consume.generations import Witnesses
from pyspark_rocketmq.consume.not_now import REFUSED_PAUSE_S, waits
from pyspark_rocketmq.consume.planning import (
    OpenBatchLength,
    Plan,
    ReadLimits,
    plan_open_ranges,
    plan_ranges,
)
from pyspark_rocketmq.consume.positions import (
    NOTHING_STORED,
    StoredThen,
    stored_by,
    unread_after,
    with_times_of_waiting,
)
from pyspark_rocketmq.consume.slave_reads import has_range
from pyspark_rocketmq.display import peer_text
from pyspark_rocketmq.errors import OffsetError, RocketMQError, TopicDeleted, TopicNotFound
from pyspark_rocketmq.model import MessageQueue, QueueBounds, QueueRange, QueueState
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.retry import RetryPolicy, call_with_retry
from pyspark_rocketmq.source.cluster_view import ClusterView, Snapshot
from pyspark_rocketmq.source.drain import Drain
from pyspark_rocketmq.source.first_contact import at_first_contact
from pyspark_rocketmq.source.message_sizes import MessageSizes
from pyspark_rocketmq.source.progress import ProgressSource
from pyspark_rocketmq.source.queue_generations import CheckpointGenerations
from pyspark_rocketmq.source.ranges import (
    Offset,
    is_open_plan,
    offset_to_plan,
    plan_to_offset,
    stored_then_of,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_OWNERSHIP_S: Final = 5.0
"""Time for which the first plan waits for this member's queues, in seconds; queues that come later are in
later plans. In real time every plan waits this long while the member has no queue, because Spark would ask
again immediately."""
_FIRST_PLAN: Final = RetryPolicy(attempts=3, first_pause_s=REFUSED_PAUSE_S, max_pause_s=REFUSED_PAUSE_S)
"""Retries of requests that a broker refuses with an error that may pass, before the first plan. The pause is
as long as a refused queue rests."""
_PAUSE_S: Final = 0.5
"""Seconds between attempts while the cluster does not answer or a suspended queue has no due time."""


class _Attempt(NamedTuple):
    snapshot: Snapshot
    plan: Plan
    ranges: Sequence[QueueRange]
    progress: Mapping[MessageQueue, QueueState]
    """Progress of every queue that could be planned."""


class MicroBatchPlanner:
    """Plan each micro-batch from where the last one stopped. Only one thread may use it."""

    def __init__(
        self,
        options: ReadOptions,
        view: ClusterView,
        progress: ProgressSource,
        clock: Clock,
        pause: Callable[[float], None],
        *,
        sizes: MessageSizes | None = None,
        generations: CheckpointGenerations | None = None,
        held_up: Callable[[], str] = str,
    ) -> None:
        """Prepare to plan.

        ``sizes`` is given only if plans are limited in bytes, ``generations`` only for a plain stream.
        ``held_up`` returns the driver's reason why queues wait, for an error's text; '' if it has none.
        """
        self._options = options
        self._view = view
        view.had_it = self._brokers_before
        self._progress = progress
        self._clock = clock
        self._pause = pause
        self._limits = ReadLimits(
            max_offsets_per_trigger=options.max_offsets_per_trigger,
            max_bytes_per_trigger=options.max_bytes_per_trigger,
            pull_threshold_for_queue=options.pull_threshold_for_queue,
        )
        self._sizes = sizes
        self._generations = generations
        self._drain = Drain(options, progress, clock, held_up)
        self._open_length: OpenBatchLength | None = None
        """Decides how long a batch lasts in real time; None for a query that plans micro-batches."""
        if options.real_time_ms is not None:
            self._open_length = OpenBatchLength(options.real_time_ms / 1000)
        self._planned_at_s: float | None = None
        """Monotonic second of the last plan with something to run; None before the first one."""
        self._gone: set[MessageQueue] = set()
        """Queues of the newest checkpoint whose topics were deleted; a later queue of such a name is new."""
        self._removed: set[MessageQueue] = set()
        """Queues that their topics no longer had at the last plan; these are not logged again."""
        self._left_out: frozenset[QueueRange] = frozenset()
        """Ranges of the newest plan that are not run, because the query no longer reads their topics."""
        self._held_up: frozenset[QueueRange] = frozenset()
        """Uncommitted ranges that held up their queues at the last plan; these are not logged again."""
        self._has_awaited = False
        self._initial: Offset | None = None
        self._reported: dict[str, RocketMQError] = {}
        """The error logged last, by broker name; "" for the cluster as a whole."""
        self._borne_last = ""
        """Text of the trouble that was logged last while a plan waited."""
        self._has_planned = False
        """Whether a plan has succeeded: then the brokers have answered all requests that a plan needs."""
        self._seen: Snapshot | None = None
        """The newest snapshot; None before first contact."""
        self._missing: Collection[str] = ()
        """Brokers without an address for which :meth:`snapshot_for` has waited in vain."""
        self._logged: Collection[QueueRange] = ()
        """The plan in Spark's checkpoint with which this run began, if Spark has passed it on."""
        self._known: tuple[Offset, tuple[int, tuple[QueueRange, ...]]] = ({}, (0, ()))
        """The offset written last, and its sequence number and ranges."""

    def initial(self) -> Offset:
        """Return Spark's offset before the first micro-batch; the same at each call.

        For a plain stream, this waits up to ``retryTimeoutMs`` for brokers that do not answer.

        Raises:
            RocketMQError: If the cluster cannot be reached, if such a broker stays away, or if reading is
                switched off at a broker and ``failOnDataLoss`` is true.
        """
        if self._initial is None:
            self._initial = self._at_first_contact(self._first_offset)
        return self._initial

    def _first_offset(self) -> Offset:
        snapshot = self._first_snapshot() if self._progress.begins_in_checkpoint else self._look()
        first = self._progress.initial(snapshot)
        return plan_to_offset(0, first, then=self._stored_then(NOTHING_STORED, snapshot, (), first))

    def _first_snapshot(self) -> Snapshot:
        """Return a snapshot with every queue to which a plain stream's starting position applies.

        It must have all queues, because those that come later count as new and are read from their first
        messages.

        Raises:
            NameServerNotReady: If the name server has just started: other brokers may still register.
            RocketMQError: If brokers stay away, or if reading is switched off for queues and
                ``failOnDataLoss`` is true. The latter is no error if the stream begins with the first
                messages anyway.
        """
        begins_at_first = self._options.begins_at_first()
        snapshot = self._whole_snapshot(look=partial(self._look, is_only_one=not begins_at_first))
        if self._options.fail_on_data_loss and not begins_at_first:
            snapshot.check_switched_on("the stream would later read these queues from their first messages")
        return snapshot

    def _stored_then(
        self,
        before: StoredThen,
        snapshot: Snapshot,
        previous: Sequence[QueueRange],
        ranges: Sequence[QueueRange],
    ) -> StoredThen:
        """Return facts about the brokers' logs (store times, numbers of unread messages) for the next offset.

        By these facts, which a plain stream's offset has besides ``ranges``, a later plan finds out whether a
        queue still has the same log. A group's offset has none, because its progress is in its offset store.

        Args:
            before: These facts in the previous offset.
            snapshot: The snapshot from which the next plan is made.
            previous: The ranges of the previous offset.
            ranges: The ranges of the next offset.
        """
        if not self._progress.begins_in_checkpoint:
            return NOTHING_STORED
        bounds = snapshot.with_slaves().bounds
        known = [was.queue for was in self._of_read_topics(previous)]
        times = stored_by(before.times, bounds, known)
        if self._generations is not None:
            times = with_times_of_waiting(times, self._generations.times_of_waiting)
        return StoredThen(times, unread_after(ranges, bounds, before.unread))

    def prepare_available_now(self) -> None:
        """Fix the current ends of all queues as the offsets at which this query ends.

        This waits up to ``retryTimeoutMs`` for brokers that do not answer and have no readable slave, and for
        those that may still register at a name server that has just started.

        Raises:
            RocketMQError: If the cluster cannot be reached, or if such a broker stays away.
        """
        look = partial(self._look, is_only_one=True)
        bounds = self._whole_snapshot(can_read_slaves=True, look=look).with_slaves().bounds
        self._drain.begin(bounds)

    def until_drained(self, start: Offset) -> Offset:
        """Return the offset that holds the next plan, or ``start`` once everything is read.

        The query reads only what was stored at the first call of this method. In all other respects this does
        the same as :meth:`latest` with AvailableNow.
        """
        if not self._drain.has_begun:
            self.prepare_available_now()
        return self.latest(start)

    def all_at_once(self, start: Offset) -> Offset:
        """Return the offset whose plan holds everything stored now, without the limits of a micro-batch.

        This is for ``trigger(once=True)``, which ends after a single micro-batch: with limits, that would not
        read everything.

        Raises:
            DataLoss, RocketMQError: For the same reasons as :meth:`latest` with AvailableNow.
        """
        if not self._drain.has_begun:
            self._limits = ReadLimits()
            self.prepare_available_now()
        return self.latest(start)

    def runnable(self, offset: Offset) -> Sequence[QueueRange]:
        """Return those ranges of a plan in Spark's log that are run now; after a restart the plan may be old.

        Open ranges (of real time, without an end) are run only by the process that planned them. After a
        restart they are left out, and the next plan begins where the group is by then. A plain stream leaves
        out topics that it no longer reads; in the next plan the queues of these topics stand at the starts of
        the ranges left out.
        """
        planned = self.plan_of(offset)[1]
        if offset != self._known[0] and any(each.has_open_end for each in planned):
            logger.info(
                "the last plan of the previous run is not run again: in real time each run makes new plans"
            )
            planned = ()
        read = self._without_left_out(planned) if self._progress.begins_in_checkpoint else planned
        ranges = [planned for planned in self._progress.runnable(read) if planned.count > 0]
        if not ranges or self._generations is None or offset == self._known[0]:
            return ranges
        return self._of_same_logs(ranges, stored_then_of(offset, planned), self._generations)

    def _of_same_logs(
        self, ranges: Sequence[QueueRange], then: StoredThen, generations: CheckpointGenerations
    ) -> Sequence[QueueRange]:
        """Return the parts of ``ranges`` that still belong to the log from which an earlier process planned.

        Messages of another log are left out: the next plan has them. This waits up to ``retryTimeoutMs`` for
        brokers that do not show whether a queue has another log.

        Raises:
            DataLoss: If messages of a range are gone, and ``failOnDataLoss`` is true.
            RocketMQError: If such a broker stays away, or refuses for good.
        """
        patience = self._patience()
        snapshot = self.snapshot_for(ranges, can_wait=True)
        while True:
            same, waiting = generations.of_same_logs(ranges, snapshot, then)
            if not waiting:
                return [each for each in same if each.count > 0]
            trouble = next(iter(waiting.values()))
            if patience.has_passed:
                raise trouble
            logger.warning("the last plan of the previous run cannot be run again yet, waiting: %s", trouble)
            self._pause(_PAUSE_S)
            snapshot = self._retried(patience, self._look)

    def _without_left_out(self, planned: Sequence[QueueRange]) -> tuple[QueueRange, ...]:
        """Return the ranges whose topics the query still reads; note and log the others."""
        read = tuple(self._of_read_topics(planned))
        topics = {each.queue.topic for each in read}
        left_out = frozenset(each for each in planned if each.count > 0 and each.queue.topic not in topics)
        for each in sorted(left_out - self._left_out, key=attrgetter("queue")):
            logger.warning(
                "logged range not run again, the query no longer reads its topic; if it ends before its next "
                "plan and reads the topic later, these offsets are left out %s",
                each,
            )
        self._left_out = left_out
        return read

    def witnesses(self, planned: Iterable[QueueRange]) -> dict[MessageQueue, Witnesses]:
        """Return consumed messages of these queues, by which tasks check that logs are still the same."""
        bounds = self.newest()
        found: dict[MessageQueue, Witnesses] = {}
        for queue_range in planned:
            known = bounds.get(queue_range.queue)
            first = 0 if known is None else known.min_offset
            found[queue_range.queue] = self._progress.witnesses(queue_range, first)
        return found

    def listener_ms(self, queue: MessageQueue) -> float | None:
        """Return how long the group's listener takes per message of ``queue``, in ms; None if unknown."""
        return self._progress.listener_ms(queue)

    def _of_read_topics(self, previous: Sequence[QueueRange]) -> list[QueueRange]:
        """Return the ranges whose topics the query still reads."""
        read = {topic for topic in {was.queue.topic for was in previous} if self._options.reads(topic)}
        return [was for was in previous if was.queue.topic in read]

    @property
    def has_worked(self) -> bool:
        """Whether the query has read messages, in this run or an earlier one; always true without a group."""
        return self._progress.has_worked

    def newest(self) -> Mapping[MessageQueue, QueueBounds]:
        """Return first offset and end of each queue at its master, as last seen; empty if never seen."""
        return {} if self._seen is None else self._seen.bounds

    def snapshot_for(self, planned: Collection[QueueRange], *, can_wait: bool) -> Snapshot:
        """Return the newest snapshot, without slaves that lack messages of ``planned``.

        Args:
            planned: The ranges to run. After a restart they may be old: a broker may be down now, and its
                slave may lack messages.
            can_wait: Whether to wait up to ``retryTimeoutMs`` for a broker without an address, unless the
                last call waited for it in vain. If the broker stays away, the snapshot has no address for it.

        Raises:
            RocketMQError: If the cluster cannot be reached at first contact, or while this waits.
        """
        patience = self._patience()
        self._logged = self._logged or planned
        snapshot = self._seen or self._at_first_contact(self._look)
        names = {each.queue.broker_name for each in planned}
        while True:
            snapshot = _with_slaves_that_have(planned, snapshot)
            missing = names - snapshot.addresses.keys() - snapshot.slaves.keys()
            if not can_wait or missing.issubset(self._missing) or patience.has_passed:
                self._missing = missing
                return snapshot
            logger.warning("waiting for the addresses of brokers=%s", peer_text(",".join(sorted(missing))))
            self._pause(_PAUSE_S)
            snapshot = self._retried(patience, self._look)

    def latest(self, start: Offset) -> Offset:
        """Return the offset that holds the next plan, or ``start`` if there is nothing to do.

        With AvailableNow this waits for suspended queues and for brokers that are down, because returning
        ``start`` would end the query.

        Raises:
            DataLoss: If wanted messages are gone and ``failOnDataLoss`` is true.
            OffsetError: If a group with AvailableNow makes no progress for ``drainTimeoutMs``.
            RocketMQError: If a server refuses for good, or if the cluster cannot be reached at first contact
                or, with AvailableNow, within ``retryTimeoutMs``.
        """
        if not self._has_awaited:
            self._has_awaited = True
            self._progress.await_ready(_FIRST_OWNERSHIP_S)
            self._view.expect_retries()
        if self._open_length is not None:
            return self._latest_in_real_time(start, self._open_length)
        return self._latest_closed(start)

    def _latest_closed(self, start: Offset) -> Offset:
        seq, previous = self.plan_of(start)
        then = stored_then_of(start, previous)
        if self._left_out:
            previous = tuple(
                replace(was, end=was.start) if was in self._left_out else was for was in previous
            )
            left = {was.queue: then.unread.get(was.queue, 0) + was.count for was in self._left_out}
            then = then._replace(unread={**then.unread, **left})
        patience: Deadline | None = None
        while True:
            attempt = self._attempt(previous, then)
            if isinstance(attempt, _Attempt):
                self._drain.check_moves(self._drain.left(attempt.progress))
                if attempt.ranges:
                    if self._waits_for_more(attempt.plan):
                        return start
                    now = self._stored_then(then, attempt.snapshot, previous, attempt.ranges)
                    return self._remember(plan_to_offset(seq + 1, attempt.ranges, then=now), attempt.ranges)
                trouble = self._drain.trouble(
                    attempt.snapshot, previous, attempt.progress, waiting=self._waiting()
                )
                # Planned queues without ranges were lost while the plan was made; look again who has them.
                is_empty = not attempt.plan.ranges and not attempt.plan.gaps
                is_drained = trouble is None and attempt.plan.next_due_s is None and is_empty
                if not self._drain.has_begun or is_drained:
                    return start
                due_s = attempt.plan.next_due_s
            else:
                trouble, due_s = attempt, None
                if not self._drain.ends:
                    self._report_skipped(trouble)
                    return start
            patience = self._borne(trouble, patience)
            due_in_s = _PAUSE_S if due_s is None else due_s - self._clock.now_s()
            self._pause(min(max(due_in_s, 0.001), _PAUSE_S))

    def _latest_in_real_time(self, start: Offset, length: OpenBatchLength) -> Offset:
        """Return the offset that holds the next plan; ``start`` if no queue can be planned within 5 s."""
        seq, previous = self.plan_of(start)
        patience = Deadline.after(self._clock, _FIRST_OWNERSHIP_S)
        while True:
            self._progress.await_held(patience.remaining_s())
            attempt = self._attempt(previous, NOTHING_STORED)
            if not isinstance(attempt, _Attempt):
                self._report_skipped(attempt)
            # A queue with a gap is in no plan before its corrected offset is stored, so wait for that.
            elif attempt.ranges and (not attempt.plan.gaps or patience.has_passed):
                open_for_s = None
                if attempt.ranges[0].has_open_end:
                    open_for_s = length.of_next(is_complete=self._is_complete(attempt))
                offset = plan_to_offset(seq + 1, attempt.ranges, open_for_s=open_for_s)
                return self._remember(offset, attempt.ranges)
            if patience.has_passed:
                return start
            self._pause(min(max(patience.remaining_s(), 0.001), _PAUSE_S))

    def _is_complete(self, attempt: _Attempt) -> bool:
        """Return whether a plan has every queue of this consumer, each read from its master."""
        planned = {each.queue for each in attempt.ranges}
        names = {queue.broker_name for queue in planned}
        return planned.issuperset(self._progress.held) and names <= attempt.snapshot.addresses.keys()

    def _waits_for_more(self, plan: Plan) -> bool:
        """Return whether to wait for more messages before the next plan (``minOffsetsPerTrigger``)."""
        least = self._options.min_offsets_per_trigger
        is_enough = least is None or plan.readable >= least or plan.gaps
        if is_enough or self._drain.has_begun or self._planned_at_s is None:
            return False
        waited_s = self._clock.monotonic_s() - self._planned_at_s
        return waited_s < self._options.trigger_delay_ms() / 1000

    def _attempt(self, previous: Sequence[QueueRange], then: StoredThen) -> _Attempt | RocketMQError:
        """Return a plan from a new snapshot, or an error that may pass."""
        if self._seen is None:
            self._logged = previous
            self._at_first_contact(self._look)
        try:
            self._progress.begin_reading()
            snapshot = self._look()
        except RocketMQError as error:
            return self._put_off(error, previous, has_worked=True)
        try:
            if self._has_planned:
                return self._try_to_plan(previous, snapshot, then)
            return call_with_retry(
                lambda: self._try_to_plan(previous, snapshot, then),
                _FIRST_PLAN,
                self._patience(),
                self._pause,
                is_tried_again=lambda error: error.passes_later and not error.retryable,
            )
        except RocketMQError as error:
            return self._put_off(error, previous, has_worked=self._has_planned)

    def _put_off(
        self, error: RocketMQError, previous: Sequence[QueueRange], *, has_worked: bool
    ) -> RocketMQError:
        """Return ``error`` if planning is to be tried again after it; otherwise raise it.

        After TopicNotFound, planning is tried again, too: name servers forget topics whose brokers are away.
        """
        if isinstance(error, TopicNotFound):
            self._without_vanished(previous, None)
        elif not waits(error, has_worked=has_worked):
            raise error
        return error

    def _try_to_plan(self, previous: Sequence[QueueRange], snapshot: Snapshot, then: StoredThen) -> _Attempt:
        previous = self._without_vanished(previous, snapshot)
        previous, readable = self._follow(previous, snapshot, then)
        progress = self._progress.read(previous, readable)
        plan = self._plan(snapshot, progress)
        ranges = self._progress.compose(previous, plan)
        if self._left_out and not ranges:
            # Without a plan the checkpoint would keep the ends of ranges that were not run.
            ranges = [QueueRange.between(was.queue, was.end, was.end) for was in previous]
        self._has_planned = True
        return _Attempt(readable, plan, ranges, progress)

    def _follow(
        self, previous: Sequence[QueueRange], snapshot: Snapshot, then: StoredThen
    ) -> tuple[Sequence[QueueRange], Snapshot]:
        """Return where a plain stream's queues go on, and ``snapshot`` without the queues that must wait.

        A queue goes on at another offset than the end in ``previous`` if its offsets began again with other
        messages. For a group both arguments are returned unchanged.
        """
        if self._generations is None:
            return previous, snapshot
        before = self._generations.waiting
        previous = self._generations.follow(previous, snapshot, then)
        waiting = self._generations.waiting
        for queue, error in sorted(waiting.items()):
            if before.get(queue) is not error:
                logger.warning("queue left out of this plan %s: %s", queue, error)
        if not waiting:
            return previous, snapshot
        bounds = {queue: each for queue, each in snapshot.bounds.items() if queue not in waiting}
        return previous, replace(snapshot, bounds=bounds)

    def _waiting(self) -> Mapping[MessageQueue, RocketMQError]:
        """Return the queues that the last plan left out although their brokers report bounds, and why."""
        return self._progress.waiting if self._generations is None else self._generations.waiting

    def _without_vanished(
        self, previous: Sequence[QueueRange], snapshot: Snapshot | None
    ) -> Sequence[QueueRange]:
        """Return ``previous``; for a plain stream, leave out the queues of deleted topics.

        Queues that a topic lost, and queues of topics that the query no longer reads, keep their positions: a
        broker keeps their messages, and the topic may get these queues back.

        Raises:
            DataLoss: If messages of a queue that is gone are or may be lost, and ``failOnDataLoss`` is true.
        """
        if not self._progress.begins_in_checkpoint:
            return previous
        read = self._of_read_topics(previous)
        removed: set[MessageQueue] = set()
        for queue, loss in self._view.vanished([*read, *self._drain.not_planned(previous)], snapshot):
            if loss is not None and self._options.fail_on_data_loss:
                raise loss
            if queue not in self._gone | self._removed:
                logger.warning(
                    "queue is gone, going on without it %s: %s", queue, loss or "it was read to its end"
                )
            (self._gone if isinstance(loss, TopicDeleted) else removed).add(queue)
            self._drain.forget(queue)
        self._removed = removed
        if not self._gone:
            return previous
        return [planned for planned in previous if planned.queue not in self._gone]

    def _remember(self, offset: Offset, ranges: Sequence[QueueRange]) -> Offset:
        self._planned_at_s = self._clock.monotonic_s()
        self._gone.clear()
        self._left_out = frozenset()
        if self._generations is not None:
            self._generations.planned()
        self._known = (offset, (offset["seq"], tuple(sorted(ranges, key=attrgetter("queue")))))
        return offset

    def _borne(self, trouble: RocketMQError | None, patience: Deadline | None) -> Deadline | None:
        """Return the deadline until which the plan waits because of ``trouble``; None if there is no trouble.

        ``patience`` is the deadline that earlier trouble has set, if there has been trouble ever since; this
        deadline stays. If ``patience`` is None, the deadline is ``retryTimeoutMs`` from now on.

        Raises:
            RocketMQError: ``trouble``, if ``patience`` has passed.
        """
        if trouble is None:
            return None
        if patience is not None and patience.has_passed:
            raise trouble
        if patience is None or str(trouble) != self._borne_last:
            logger.warning("some queues cannot be planned, waiting: %s", trouble)
            self._borne_last = str(trouble)
        return patience or self._patience()

    def plan_of(self, offset: Offset) -> tuple[int, tuple[QueueRange, ...]]:
        """Return sequence number and ranges of an offset, without parsing the newest one again.

        Raises:
            OffsetError: If the offset cannot be used, or a plain stream gets the offset of a consumer group.
        """
        known_offset, plan = self._known
        if offset == known_offset:
            return plan
        number, ranges = offset_to_plan(offset)
        # A group's plan has only queues with new messages, and may be open.
        is_of_group = is_open_plan(offset) or any(each.state.epoch for each in ranges)
        if is_of_group and self._progress.begins_in_checkpoint:
            raise OffsetError(
                "The query's checkpoint (option checkpointLocation) is a consumer group's: its offsets lack "
                "the positions of some queues, so a stream without PushConsumer cannot go on from them. "
                "Take a new folder, and set with startingOffsets where to begin."
            )
        return number, ranges

    def _plan(self, snapshot: Snapshot, progress: Mapping[MessageQueue, QueueState]) -> Plan:
        bounds = {queue: snapshot.bounds_of(queue) for queue in progress}
        if self._open_length is not None and not self._progress.has_ends(progress):
            plan = plan_open_ranges(
                bounds,
                progress,
                now_s=self._clock.now_s(),
                skip_gaps=not self._options.fail_on_data_loss,
            )
        else:
            plan = self._plan_closed(bounds, progress, snapshot)
        for gap in plan.gaps:
            if self._options.fail_on_data_loss:
                raise gap.to_error()
            logger.warning("offset gap skipped %s", gap)
        self._report_held_up(plan.held_up)
        return plan

    def _plan_closed(
        self,
        bounds: Mapping[MessageQueue, QueueBounds],
        progress: Mapping[MessageQueue, QueueState],
        snapshot: Snapshot,
    ) -> Plan:
        if self._sizes is not None:
            self._sizes.look(progress, snapshot)
        return plan_ranges(
            bounds,
            progress,
            limits=self._limits,
            now_s=self._clock.now_s(),
            caps=self._drain.ends if self._drain.has_begun else None,
            uncommitted=self._progress.uncommitted_deliveries(progress),
            skip_gaps=not self._options.fail_on_data_loss,
            message_bytes=None if self._sizes is None else self._sizes.of,
        )

    def _report_held_up(self, held_up: Sequence[QueueRange]) -> None:
        """Log queues that are blocked: the listener has had all messages that it may get without a COMMIT.

        A queue that stays blocked is logged once, and again each time its messages were delivered again.
        """
        for had in held_up:
            if had not in self._held_up:
                logger.error(
                    "The listener has had %d messages from offset %d on without a COMMIT, and "
                    "pullThresholdForQueue allows no more: the queue is blocked. COMMIT after fewer "
                    "messages, or raise pullThresholdForQueue. group=%s %s",
                    had.count,
                    had.start,
                    self._options.consumer_group,
                    had.queue,
                )
        self._held_up = frozenset(held_up)

    def _patience(self) -> Deadline:
        return Deadline.after(self._clock, self._options.retry_timeout_ms / 1000)

    def _at_first_contact(self, action: Callable[[], T]) -> T:
        return at_first_contact(
            action, self._patience(), self._pause, has_worked=lambda: bool(self._read_before())
        )

    def _read_before(self) -> set[MessageQueue]:
        """Return the queues in checkpoint and offset store whose topics the query still reads."""
        known = {*(planned.queue for planned in self._logged), *self._progress.stored()}
        return {queue for queue in known if self._options.reads(queue.topic)}

    def _brokers_before(self, topic: str) -> set[str]:
        """Return the brokers at which the query has read a topic before."""
        return {queue.broker_name for queue in self._read_before() if queue.topic == topic}

    def _whole_snapshot(self, *, look: Callable[[], Snapshot], can_read_slaves: bool = False) -> Snapshot:
        """Return a snapshot with every broker; wait for absent ones up to ``retryTimeoutMs``.

        Args:
            look: Takes a snapshot, as :meth:`_look` does.
            can_read_slaves: Accept a slave while its master is down.
        """
        patience = self._patience()
        snapshot = self._at_first_contact(look) if self._seen is None else self._retried(patience, look)
        while missing := snapshot.unreadable if can_read_slaves else snapshot.out_of_sight:
            if patience.has_passed:
                raise next(iter(missing.values()))
            # Do not wait for a topic that was deleted meanwhile.
            self._view.forget_deleted(snapshot)
            self._pause(_PAUSE_S)
            snapshot = self._retried(patience, look)
        return snapshot

    def _retried(self, patience: Deadline, look: Callable[[], Snapshot]) -> Snapshot:
        while True:
            try:
                return look()
            except RocketMQError as error:
                if patience.has_passed or not (
                    isinstance(error, TopicNotFound) or waits(error, has_worked=True)
                ):
                    raise
                logger.warning("the cluster does not answer, trying again: %s", error)
            self._pause(_PAUSE_S)

    def _look(self, *, is_only_one: bool = False) -> Snapshot:
        """Return a new snapshot, and log what is left out of it.

        ``is_only_one``: whether the caller takes no further snapshot. Then an error is raised if brokers have
        yet to register (:meth:`ClusterView.whole_snapshot`).
        """
        snapshot = self._view.whole_snapshot() if is_only_one else self._view.snapshot()
        self._report_slaves(snapshot)
        for broker_name, error in snapshot.unreachable.items():
            if broker_name not in snapshot.slaves and self._is_news(broker_name, error):
                is_part = any(queue.broker_name == broker_name for queue in snapshot.bounds)
                logger.warning(
                    "%s left out of this plan broker=%s: %s",
                    "a topic of the broker" if is_part else "broker",
                    peer_text(broker_name),
                    error,
                )
        for topic, error in snapshot.absent.items():
            logger.warning("topic left out of this plan topic=%s: %s", topic, error)
        self._seen = snapshot
        return snapshot

    def _report_skipped(self, trouble: RocketMQError) -> None:
        if self._is_news("", trouble):
            logger.warning("planning skipped, trying again at the next trigger: %s", trouble)

    def _is_news(self, place: str, error: RocketMQError) -> bool:
        """Return whether an error must be logged, because the last one at ``place`` was another; remember it.

        ``place`` is a broker's name, or empty for the cluster as a whole. Errors are compared as objects:
        while a server that refused is not asked again, its error stays the same object.
        """
        is_news = self._reported.get(place) is not error
        self._reported[place] = error
        return is_news

    def _report_slaves(self, snapshot: Snapshot) -> None:
        """Log when a slave begins to be read instead of its master, and when that ends."""
        before = {} if self._seen is None else self._seen.slaves
        for name in sorted(snapshot.slaves.keys() - before.keys()):
            logger.warning(
                "master is down, reading from its slave instead; messages not yet copied to the slave wait "
                "for the master broker=%s slave=%s",
                peer_text(name),
                snapshot.slaves[name],
            )
        for name in sorted((before.keys() - snapshot.slaves.keys()) & snapshot.addresses.keys()):
            logger.info("master is back, reading from it again broker=%s", peer_text(name))


def _with_slaves_that_have(planned: Collection[QueueRange], snapshot: Snapshot) -> Snapshot:
    if not snapshot.slaves:
        return snapshot
    bounds = snapshot.slave_bounds
    lacking = {
        queue_range.queue.broker_name
        for queue_range in planned
        if queue_range.queue not in bounds or not has_range(bounds[queue_range.queue], queue_range)
    }
    slaves = {name: address for name, address in snapshot.slaves.items() if name not in lacking}
    return replace(snapshot, slaves=slaves)
