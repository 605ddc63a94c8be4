"""Plans micro-batches: asks cluster and progress, lets ``consume.planning`` decide, waits.

Lives in the source runner, a long-lived process without a SparkSession, where an exception ends the query and
nothing times out by itself.  Hence: every call below has a deadline; a broker that cannot be reached costs
its queues this micro-batch and not the query; only what the user must act on is raised.

How large the messages of a queue are, about: seen by pulling a few before a plan that is limited in bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple, TypeVar

from pyspark_rocketmq.client.broker import BrokerClient, PullRequest, PullStatus
from pyspark_rocketmq.clock import Clock, Deadline, call_with_retry
from pyspark_rocketmq.consume.planning import DrainWatch, Plan, QueueProgress, ReadLimits, plan_ranges
from pyspark_rocketmq.consume.positions import stored_by_ms
from pyspark_rocketmq.consume.slave_reads import has_range
from pyspark_rocketmq.display import peer_text
from pyspark_rocketmq.errors import OffsetError, RocketMQError, TopicNotFound, TransportError
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, QueueBounds, QueueRange
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.cluster_view import FIRST_CONTACT, ClusterView, Snapshot
from pyspark_rocketmq.source.progress import ProgressSource
from pyspark_rocketmq.source.queue_lives import CheckpointLives
from pyspark_rocketmq.source.ranges import Offset, offset_to_plan, plan_to_offset, stored_by_of

logger = logging.getLogger(__name__)

_UNKNOWN_BYTES: Final = 1024.0
_WEIGHT_OF_NEW: Final = 0.5


class MessageSizes:
    """One pull for each topic and broker at a look, where most waits to be read. Not for members of a group.

    A broker tells of an operator's reset of a group once, with whatever pull of the group comes next.
    """

    def __init__(self, brokers: BrokerClient, consumer_group: str) -> None:
        self._brokers = brokers
        self._group = consumer_group
        self._known: dict[tuple[str, str], float] = {}

    def look(self, progress: Mapping[MessageQueue, QueueProgress], snapshot: Snapshot) -> None:
        """See how large the next messages are; what cannot be seen stays as it was known."""
        longest: dict[tuple[str, str], tuple[int, MessageQueue]] = {}
        for queue, at in progress.items():
            if queue not in snapshot.bounds:
                # Its master is down.
                continue
            backlog = snapshot.bounds[queue].max_offset - at.next_offset
            place = queue.topic, queue.broker_name
            if backlog > longest.get(place, (0, queue))[0]:
                longest[place] = backlog, queue
        for place, (_, queue) in longest.items():
            seen = self._seen(queue, progress[queue].next_offset, snapshot)
            if seen is not None:
                known = self._known.get(place, seen)
                self._known[place] = known + _WEIGHT_OF_NEW * (seen - known)

    def of(self, queue: MessageQueue) -> float:
        """Stored bytes of one of the queue's messages."""
        return self._known.get((queue.topic, queue.broker_name), _UNKNOWN_BYTES)

    def _seen(self, queue: MessageQueue, next_offset: int, snapshot: Snapshot) -> float | None:
        request = PullRequest(consumer_group=self._group, queue=queue, queue_offset=next_offset)
        try:
            pulled = self._brokers.pull(snapshot.addresses[queue.broker_name], request)
        except RocketMQError as error:
            logger.info("size of messages not seen %s: %s", queue, error)
            return None
        if pulled.status is not PullStatus.FOUND or pulled.next_begin_offset <= next_offset:
            return None
        return len(pulled.body) / (pulled.next_begin_offset - next_offset)


T = TypeVar("T")

_FIRST_OWNERSHIP_S = 5.0
"""How long the first plan waits for a group to give this member its queues."""
_PAUSE_S = 0.5
"""Between two looks at a cluster that is not there, or at a suspended queue that has no due time."""


_MOST_SHOWN = 5
"""Queues named in an error."""


class _Attempt(NamedTuple):
    snapshot: Snapshot
    plan: Plan
    ranges: Sequence[QueueRange]
    left: Mapping[MessageQueue, int]
    """Where queues stand that an AvailableNow query has not read to their ends."""


class MicroBatchPlanner:
    """The plan of the next micro-batch, from where the last one stopped.

    Single-threaded, as Spark's call loop is.
    """

    def __init__(
        self,
        options: ReadOptions,
        view: ClusterView,
        progress: ProgressSource,
        clock: Clock,
        pause: Callable[[float], None],
        *,
        sizes: MessageSizes | None = None,
        lives: CheckpointLives | None = None,
    ) -> None:
        self._options = options
        self._view = view
        self._progress = progress
        self._clock = clock
        self._pause = pause
        self._limits = ReadLimits(
            max_offsets_per_trigger=options.max_offsets_per_trigger,
            max_bytes_per_trigger=options.max_bytes_per_trigger,
            pull_threshold_for_queue=options.pull_threshold_for_queue,
        )
        self._sizes = sizes
        self._lives = lives
        self._planned_at_s: float | None = None
        """When the last plan with something to run was made."""
        self._gone: set[MessageQueue] = set()
        """Queues of the newest checkpoint that are no longer there: what comes under their names is new."""
        self._drain_watch = DrainWatch()
        self._held_up: frozenset[QueueRange] = frozenset()
        """As of the last plan: told already."""
        self._caps: dict[MessageQueue, int] | None = None
        self._in_contact = False
        self._is_ready = False
        self._initial: Offset | None = None
        self._newest: Mapping[MessageQueue, QueueBounds] = {}
        self._addresses: Mapping[str, BrokerAddress] = {}
        self._replicas: Mapping[str, Mapping[int, BrokerAddress]] = {}
        self._seen: Snapshot | None = None
        """The last look; its slaves are read in the place of masters that are down."""
        self._known: tuple[Offset, tuple[int, tuple[QueueRange, ...]]] = ({}, (0, ()))

    def initial(self) -> Offset:
        """The offset before the first micro-batch; Spark asks twice and must get one answer."""
        if self._initial is None:
            self._initial = self._at_first_contact(self._first_offset)
        return self._initial

    def _first_offset(self) -> Offset:
        snapshot = self._whole_snapshot() if self._progress.begins_in_checkpoint else self._look()
        return plan_to_offset(
            0, self._progress.initial(snapshot), stored_by_ms=self._stored_by_ms(0, snapshot, ())
        )

    def _stored_by_ms(self, before_ms: int, snapshot: Snapshot, previous: Sequence[QueueRange]) -> int:
        """What the next offset says of a plain stream's messages; a group's offset rows remember the messages."""
        if not self._progress.begins_in_checkpoint:
            return 0
        known = [was.queue for was in previous]
        return stored_by_ms(before_ms, snapshot.with_stand_ins().bounds, known)

    def prepare_available_now(self) -> None:
        """Take what is stored now as the end of this query."""
        snapshot = self._whole_snapshot(with_slaves=True)
        bounds = {**snapshot.at_stand_ins, **snapshot.bounds}
        self._caps = {queue: each.max_offset for queue, each in bounds.items()}

    def all_at_once(self, start: Offset) -> Offset:
        """The offset whose plan holds everything that is stored now, whatever the limits of a micro-batch.

        For ``trigger(once=True)``, which runs one micro-batch: with limits it would end after a part.

        Raises:
            DataLoss, RocketMQError: As :meth:`latest` with AvailableNow.
        """
        if self._caps is None:
            self._limits = ReadLimits()
            self.prepare_available_now()
        return self.latest(start)

    def runnable(self, offset: Offset) -> Sequence[QueueRange]:
        """The ranges of a plan to run now, with the addresses to read them from in :meth:`addresses`.

        Spark asks for a plan it has logged; after a restart that may be an old one.
        """
        ranges = self._progress.runnable(self.plan_of(offset)[1])
        return [planned for planned in ranges if planned.count > 0]

    def listener_ms(self, queue: MessageQueue) -> float | None:
        """How long the group's listener has a message of ``queue``, about; None if that is not known."""
        return self._progress.listener_ms(queue)

    def newest(self) -> Mapping[MessageQueue, QueueBounds]:
        """Bounds as of the last look, for progress reports."""
        return self._newest

    def addresses(self, planned: Sequence[QueueRange]) -> Mapping[str, BrokerAddress]:
        """Where masters are, from the newest plan's look if it has places for all of ``planned``.

        A plan that is run again after a restart may name a broker that is down now, without a slave that has
        all that is planned; it is waited for as long as ``retryTimeoutMs``, after which its address is
        missing.

        Raises:
            RocketMQError: If the cluster cannot be reached at first contact.
        """
        patience = self._patience()
        if not self._in_contact:
            self._at_first_contact(self._look)
        names = {each.queue.broker_name for each in planned}
        while (
            not self._addresses.keys() | self.stand_ins(planned).keys() >= names and not patience.has_passed
        ):
            logger.warning(
                "waiting for a broker without an address, wanted=%s",
                peer_text(",".join(sorted(names))),
            )
            self._pause(_PAUSE_S)
            self._retried(patience)
        return self._addresses

    def stand_ins(self, planned: Collection[QueueRange]) -> Mapping[str, BrokerAddress]:
        """Slaves to read ``planned`` from where masters are down, as of the same look: those that have all of it."""
        if self._seen is None:
            return {}
        bounds = self._seen.at_stand_ins
        lacking = {
            each.queue.broker_name
            for each in planned
            if each.queue not in bounds or not has_range(bounds[each.queue], each)
        }
        return {name: at for name, at in self._seen.stand_ins.items() if name not in lacking}

    def replicas(self) -> Mapping[str, Mapping[int, BrokerAddress]]:
        """Where the replicas of those brokers are, by broker id; none for a broker without a living one."""
        return self._replicas

    def latest(self, start: Offset) -> Offset:
        """The offset that holds the next plan, or ``start`` when there is nothing to do.

        With AvailableNow this waits for suspended queues and for brokers that are down: returning ``start``
        would end the query before it has drained.

        Raises:
            DataLoss: If wanted messages are gone and ``failOnDataLoss`` is true.
            RocketMQError: If the cluster cannot be reached at first contact, or, with AvailableNow, for as
                long as ``retryTimeoutMs``.
        """
        seq, previous = self.plan_of(start)
        patience: Deadline | None = None
        self._await_ready()
        while True:
            attempt = self._attempt(previous, stored_by_of(start))
            if isinstance(attempt, _Attempt):
                self._check_drain(attempt.left)
                if attempt.ranges:
                    if self._waits_for_more(attempt.plan):
                        return start
                    stored_by = self._stored_by_ms(stored_by_of(start), attempt.snapshot, previous)
                    offset = plan_to_offset(seq + 1, attempt.ranges, stored_by_ms=stored_by)
                    return self._remember(offset, attempt.ranges)
                trouble = self._missing_error(attempt.snapshot, previous) or self._unsettled_error()
                is_drained = trouble is None and attempt.plan.next_due_s is None and not attempt.plan.gaps
                if self._caps is None or is_drained:
                    return start
                due_s = attempt.plan.next_due_s
            else:
                trouble, due_s = attempt, None
                if self._caps is not None and not self._caps:
                    return start
                if self._caps is None:
                    logger.warning("planning skipped, trying again at the next trigger: %s", trouble)
                    return start
            patience = self._borne(trouble, patience)
            due_in_s = _PAUSE_S if due_s is None else due_s - self._clock.now_s()
            self._pause(min(max(due_in_s, 0.001), _PAUSE_S))

    def _left(self, progress: Mapping[MessageQueue, QueueProgress]) -> dict[MessageQueue, int]:
        return {
            queue: progress[queue].next_offset
            for queue, cap in sorted((self._caps or {}).items())
            if queue in progress and progress[queue].next_offset < cap
        }

    def _check_drain(self, left: Mapping[MessageQueue, int]) -> None:
        """Raise if a group's drain made no progress for ``drainTimeoutMs``: a message fails for ever."""
        if self._options.consumer_group is None:
            return
        stands_for_s = self._drain_watch.stands_for_s(left, self._clock.monotonic_s())
        if stands_for_s * 1000 < self._options.drain_timeout_ms:
            return
        shown = [f"{queue} at offset {offset}" for queue, offset in left.items()]
        more = f" and {len(shown) - _MOST_SHOWN} more" if len(shown) > _MOST_SHOWN else ""
        raise OffsetError(
            f"The drain of group {self._options.consumer_group} has stood still for {stands_for_s:.0f} s: "
            f"{'; '.join(shown[:_MOST_SHOWN])}{more}. Look in the log for why the listener gives messages "
            "back; mend it, set maxReconsumeTimes so that such messages become dead letters, skip them by "
            "job 'offsets skip', or raise drainTimeoutMs."
        )

    def _waits_for_more(self, plan: Plan) -> bool:
        """Whether there is too little to read, and time to wait for more (``minOffsetsPerTrigger``)."""
        least = self._options.min_offsets_per_trigger
        if least is None or plan.readable >= least or plan.gaps:
            return False
        if self._caps is not None or self._planned_at_s is None:
            return False
        waited_s = self._clock.monotonic_s() - self._planned_at_s
        return waited_s < self._options.trigger_delay_ms() / 1000

    def _await_ready(self) -> None:
        """At the first plan; a group that takes longer gets its first micro-batch at a later trigger."""
        if not self._is_ready:
            self._is_ready = True
            self._progress.await_ready(_FIRST_OWNERSHIP_S)

    def _unsettled_error(self) -> RocketMQError | None:
        """Why an AvailableNow query cannot end yet: queues of its own are still in another member's hands."""
        if self._caps is None or self._progress.await_ready(0.0):
            return None
        return RocketMQError(
            f"Queues of {', '.join(self._options.subscribed())} allocated to this member of group "
            f"{self._options.consumer_group} were locked by another one for "
            f"{self._options.retry_timeout_ms / 1000:g} s. Wait for its batch to end, "
            "or raise retryTimeoutMs."
        )

    def _attempt(self, previous: Sequence[QueueRange], stored_by_ms: int) -> _Attempt | RocketMQError:
        """One look at cluster and progress, and the plan from it; or the fault that may pass."""
        if not self._in_contact:
            self._at_first_contact(self._look)
        try:
            self._progress.begin_reading()
            snapshot = self._look()
            previous = self._without_vanished(previous, snapshot)
            if self._lives is not None:
                previous = self._lives.follow(previous, snapshot, stored_by_ms)
            progress = self._progress.read(previous, snapshot)
            plan = self._plan(snapshot, progress)
            return _Attempt(snapshot, plan, self._progress.compose(previous, plan), self._left(progress))
        except RocketMQError as error:
            if not _may_pass(error):
                raise
            if isinstance(error, TopicNotFound):
                self._without_vanished(previous, None)
            return error

    def _without_vanished(
        self, previous: Sequence[QueueRange], snapshot: Snapshot | None
    ) -> Sequence[QueueRange]:
        """Positions of queues that are there or may come back.

        Raises:
            DataLoss: If a queue is gone that was not read to its end, and ``failOnDataLoss`` is true.
        """
        if not self._progress.begins_in_checkpoint:
            return previous
        for queue, loss in self._view.vanished([*previous, *self._not_planned(previous)], snapshot):
            if loss is not None and self._options.fail_on_data_loss:
                raise loss
            if queue not in self._gone:
                logger.warning(
                    "queue is gone, going on without it %s: %s", queue, loss or "it was read to its end"
                )
            self._gone.add(queue)
            if self._caps is not None:
                self._caps.pop(queue, None)
        if not self._gone:
            return previous
        return [planned for planned in previous if planned.queue not in self._gone]

    def _not_planned(self, previous: Sequence[QueueRange]) -> list[QueueRange]:
        """What an AvailableNow query is to read of queues that no plan has had yet."""
        planned = {known.queue for known in previous}
        caps = sorted((self._caps or {}).items())
        return [
            QueueRange(queue=queue, start=0, end=0) for queue, cap in caps if cap and queue not in planned
        ]

    def _remember(self, offset: Offset, ranges: Sequence[QueueRange]) -> Offset:
        self._planned_at_s = self._clock.monotonic_s()
        self._gone.clear()
        if self._lives is not None:
            self._lives.planned()
        self._known = (offset, (offset["seq"], tuple(sorted(ranges, key=attrgetter("queue")))))
        return offset

    def _borne(self, trouble: RocketMQError | None, patience: Deadline | None) -> Deadline | None:
        """Patience runs from the first trouble to the next moment without one; raise when it is over."""
        if trouble is None:
            return None
        if patience is not None and patience.has_passed:
            raise trouble
        logger.warning("not all can be planned, waiting: %s", trouble)
        return patience or self._patience()

    def plan_of(self, offset: Offset) -> tuple[int, tuple[QueueRange, ...]]:
        """As ``offset_to_plan``, but remembers what it wrote last: Spark asks for that twice."""
        known_offset, plan = self._known
        return plan if offset == known_offset else offset_to_plan(offset)

    def _plan(self, snapshot: Snapshot, progress: Mapping[MessageQueue, QueueProgress]) -> Plan:
        if self._sizes is not None:
            self._sizes.look(progress, snapshot)
        plan = plan_ranges(
            {queue: snapshot.bounds_of(queue) for queue in progress},
            progress,
            limits=self._limits,
            now_s=self._clock.now_s(),
            caps=self._caps,
            had=self._progress.had_in_vain(progress),
            skip_gaps=not self._options.fail_on_data_loss,
            message_bytes=None if self._sizes is None else self._sizes.of,
        )
        for gap in plan.gaps:
            if self._options.fail_on_data_loss:
                raise gap.to_error()
            logger.warning("offset gap skipped %s", gap)
        self._tell_held_up(plan.held_up)
        return plan

    def _tell_held_up(self, held_up: Sequence[QueueRange]) -> None:
        """Once a minute, when they have been given out again: nothing moves on before somebody acts."""
        for had in held_up:
            if had not in self._held_up:
                logger.error(
                    "The listener has had %d messages from offset %d on without a COMMIT, and "
                    "pullThresholdForQueue allows no more: the queue stands still. COMMIT after fewer "
                    "messages, or raise pullThresholdForQueue. group=%s %s",
                    had.count,
                    had.start,
                    self._options.consumer_group,
                    had.queue,
                )
        self._held_up = frozenset(held_up)

    def _missing_error(self, snapshot: Snapshot, previous: Sequence[QueueRange]) -> RocketMQError | None:
        """Why an AvailableNow query cannot end yet although nothing is planned: a queue is out of sight."""
        for queue, cap in sorted((self._caps or {}).items()):
            if queue in snapshot.bounds:
                continue
            position = self._progress.position(queue, previous)
            if position is None or position < cap:
                found = snapshot.unreachable.get(queue.broker_name) or snapshot.absent.get(queue.topic)
                return found or TransportError(
                    queue.broker_name,
                    f"{queue} was there when this AvailableNow query began and is no longer in the topic's "
                    "route. Start the broker, or the query again if the topic was made smaller",
                )
        return None

    def _patience(self) -> Deadline:
        return Deadline.after(self._clock, self._options.retry_timeout_ms / 1000)

    def _at_first_contact(self, action: Callable[[], T]) -> T:
        return call_with_retry(action, FIRST_CONTACT, self._patience(), self._pause)

    def _whole_snapshot(self, *, with_slaves: bool = False) -> Snapshot:
        """A look that waits, as long as ``retryTimeoutMs``, for the brokers of every topic; for masters, or slaves in their place."""
        patience = self._patience()
        snapshot = self._retried(patience) if self._in_contact else self._at_first_contact(self._look)
        while missing := snapshot.without_readers if with_slaves else snapshot.out_of_sight:
            if patience.has_passed:
                raise next(iter(missing.values()))
            # A topic that is deleted while this waits would be waited for in vain.
            self._view.forget_deleted(snapshot)
            self._pause(_PAUSE_S)
            snapshot = self._retried(patience)
        return snapshot

    def _retried(self, patience: Deadline) -> Snapshot:
        while True:
            try:
                return self._look()
            except RocketMQError as error:
                if not _may_pass(error) or patience.has_passed:
                    raise
                logger.warning("the cluster does not answer, trying again: %s", error)
            self._pause(_PAUSE_S)

    def _look(self) -> Snapshot:
        snapshot = self._view.snapshot()
        self._tell_slaves(snapshot)
        for broker_name, error in snapshot.unreachable.items():
            if broker_name in snapshot.stand_ins:
                continue
            logger.warning("broker left out of this plan broker=%s: %s", peer_text(broker_name), error)
        for topic, error in snapshot.absent.items():
            logger.warning("topic left out of this plan topic=%s: %s", topic, error)
        self._in_contact = True
        self._newest = snapshot.bounds
        self._addresses, self._replicas = snapshot.addresses, snapshot.replicas
        self._seen = snapshot
        return snapshot

    def _tell_slaves(self, snapshot: Snapshot) -> None:
        """Say when a slave is read in its master's place, and when that is over."""
        before = {} if self._seen is None else self._seen.stand_ins
        for name in sorted(snapshot.stand_ins.keys() - before.keys()):
            logger.warning(
                "master is down, its slave is read instead; what it has not copied waits for the master "
                "broker=%s slave=%s",
                peer_text(name),
                snapshot.stand_ins[name],
            )
        for name in sorted((before.keys() - snapshot.stand_ins.keys()) & snapshot.addresses.keys()):
            logger.info("master is back and read again broker=%s", peer_text(name))


def _may_pass(error: RocketMQError) -> bool:
    """After first contact a missing topic means that all its brokers are away: a name server forgets them."""
    return error.retryable or isinstance(error, TopicNotFound)
