"""Claim queues in the offset store, and check that a broadcasting instance has only one query at a time.

A *broadcasting instance* is a member of a broadcasting group: it reads all queues, and keeps its own progress
under its ``instanceName``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from pyspark_rocketmq.client.cluster import Cluster, by_broker
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.consume.beginnings import begin_new_queues
from pyspark_rocketmq.consume.not_now import Rests, reports_no_members, waits
from pyspark_rocketmq.consume.recent_offsets import Outage, PassedOffset, RecentOffsets
from pyspark_rocketmq.display import peer_text
from pyspark_rocketmq.errors import BrokerOffsetUnavailable, OffsetError, RocketMQError
from pyspark_rocketmq.group.broker_offsets import Addresses, BrokerOffsets, at_each_broker
from pyspark_rocketmq.group.join import offset_key
from pyspark_rocketmq.group.member import CALL_TIMEOUT_S
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.offsets.store import OffsetRow, OffsetStore, QueueCommit, is_at_brokers
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.cluster_view import Snapshot

logger = logging.getLogger(__name__)

Rows = Mapping[MessageQueue, OffsetRow]
Waiting = dict[MessageQueue, RocketMQError]
"""Queues that cannot be planned yet, and why."""
Starts = Callable[[Snapshot, Collection[MessageQueue]], dict[MessageQueue, int]]
"""Function that returns where the options let queues without progress begin (``OptionPositions.starts``)."""
LatelyArrived = Callable[[Collection[MessageQueue]], Mapping[MessageQueue, Sequence[PassedOffset]]]
"""Function that returns the offsets of queues that have lately arrived at their brokers, oldest first."""

_STOP_S: Final = 30.0
"""How long a query that stops may take to leave the group, in seconds."""
_PAUSE_S: Final = 0.5
_KEPT_AFTER_S: Final = 10.0
"""Seconds after which a broker keeps an offset through a crash: it writes offsets to its disk every 5 s
(``flushConsumerOffsetInterval``)."""
_BEGINNING_S: Final = 10.0
"""Time for another member to write where the group begins, in seconds.

Java's client stores its offsets every 5 s.
"""


class QueueClaims:
    """Makes this member the owner of queues (claims them) between their allocation and their first plan.

    See row C3 of ``docs/semantics.md``. The row of a queue in the offset store holds its owner. With
    ``broker_offsets`` the group may have Java members. Without them, as for a broadcasting consumer, only the
    store counts.
    """

    def __init__(
        self,
        *,
        consumer_group: str,
        owner: str,
        store: OffsetStore,
        starts: Starts,
        broker_offsets: BrokerOffsets | None,
        outage_of: Callable[[str], Outage | None] = lambda _: None,
        lately_arrived: LatelyArrived | None = None,
    ) -> None:
        """Prepare to claim queues.

        Args:
            consumer_group: The name its progress is stored under.
            owner: The owner that claims name (``new_owner``).
            store: Where the progress is.
            starts: Finds where queues without progress begin.
            broker_offsets: The group's offsets at the brokers, which a group with Java members follows; None
                if there are none.
            outage_of: Returns when a broker last did not answer the group's member, by the broker's name;
                None if it always has answered.
            lately_arrived: Asks the driver which offsets brokers have got lately; None if the query sends
                none to brokers.
        """
        self._group = consumer_group
        self._owner = owner
        self._outage_of = outage_of
        self._lately_arrived = lately_arrived
        self._store = store
        self._starts_by_options = starts
        self._broker_offsets = broker_offsets
        self._written: dict[MessageQueue, int] = {}
        """The epoch of the last reset that was written to the queue's broker, by queue."""
        self._taken_at_s: dict[MessageQueue, float] = {}
        """When brokers took the resets that the store has not recorded as kept yet, in monotonic seconds."""
        self._passed = RecentOffsets()
        """Latest offsets of the group; they show whether a broker's lower offset is one that it had before a
        crash."""
        self._begun_in_part: set[MessageQueue] = set()
        """Queues whose start was decided by the options, but may not have been written to their brokers."""
        self._begun_by_others: dict[MessageQueue, tuple[float, RocketMQError]] = {}
        """Queues without an offset that wait because other members have begun in their topics: since when
        each queue waits (monotonic seconds), and the reason."""
        self._rests: Rests[MessageQueue] = Rests()
        """Queues for which a broker refused a request: a trigger may come every few milliseconds."""
        self._waits_for: frozenset[str] = frozenset()
        """The silent brokers for which topics were last logged to wait."""

    def note(self, rows: Rows, snapshot: Snapshot, now_s: float) -> None:
        """Note the next offsets in ``rows``, and which brokers answer.

        By these notes :meth:`claim` recognises an old offset that a broker reports because it has crashed.
        """
        if self._broker_offsets is None:
            return
        answering = snapshot.addresses.keys() - snapshot.unreachable.keys()
        if snapshot.unreachable:
            # Some brokers refuse only one of their topics.
            answering |= {queue.broker_name for queue in snapshot.bounds}
        self._passed.note({queue: row.next_offset for queue, row in rows.items()}, answering, now_s)

    def claim(
        self, new: Collection[MessageQueue], rows: Rows, snapshot: Snapshot, now_s: float
    ) -> tuple[dict[MessageQueue, OffsetRow], Waiting]:
        """Claim the held queues ``new``; return the rows of those claimed, and why the others must wait.

        A topic waits if the group cannot begin in it yet; a queue waits if its broker does not report the
        group's offset, or does not take a newer one. The other queues do not wait for them. Brokers that
        refuse are asked again after 3 s. ``now_s`` is in monotonic seconds.

        Raises:
            NoPermission: If the group's offsets may not be read or written.
            RocketMQError: If a broker refuses for good, or the offset store does not take the claims.
        """
        known: Mapping[MessageQueue, int] | None = None
        waiting: Waiting = self._rests.among(new, now_s)
        asked = new = frozenset(new).difference(waiting)
        refused: Waiting = {}
        if self._broker_offsets is not None:
            known, refused = self._read(new, snapshot.addresses)
            known, not_taken = self._without_forgotten(known, rows, snapshot.addresses, now_s)
            refused |= not_taken
            waiting |= refused
            new = new.difference(waiting)
        at_broker = known or {}
        starts, cannot_begin, no_starts = self._starts(new, rows, at_broker, waiting, snapshot, now_s=now_s)
        waiting |= cannot_begin | no_starts
        self._rests.note({queue: (refused | no_starts).get(queue) for queue in asked}, now_s)
        ready = {queue: starts.get(queue, 0) for queue in sorted(new) if queue in rows or queue in starts}
        if not ready:
            return {}, waiting
        claimed, not_claimed = self._claim_in_store(ready, known, rows)
        waiting |= not_claimed
        for queue, row in claimed.items():
            before = rows.get(queue)
            if before is not None and before.next_offset != row.next_offset == at_broker.get(queue):
                # Ahead: a Java member has consumed. Behind: the group was reset while it had no members.
                logger.log(
                    logging.INFO if row.next_offset > before.next_offset else logging.WARNING,
                    "offset at the broker followed, which was not set by this store's members group=%s %s "
                    "stored=%d broker_offset=%d",
                    self._group,
                    queue,
                    before.next_offset,
                    row.next_offset,
                )
            logger.info(
                "queue claimed group=%s %s epoch=%d next_offset=%d broker_offset=%s",
                self._group,
                queue,
                row.epoch,
                row.next_offset,
                at_broker.get(queue, "none"),
            )
        return claimed, waiting

    def claim_again(
        self, next_offsets: Mapping[MessageQueue, int]
    ) -> tuple[dict[MessageQueue, OffsetRow], Waiting]:
        """Claim queues once more in a store at the brokers; return their rows, and why others wait.

        A queue for which the broker has no offset goes on at the offset in ``next_offsets``.

        Raises:
            RocketMQError: If the store does not take the claims.
        """
        return self._claim_in_store(next_offsets, None, {})

    def _claim_in_store(
        self, starts: Mapping[MessageQueue, int], known: Mapping[MessageQueue, int] | None, rows: Rows
    ) -> tuple[dict[MessageQueue, OffsetRow], Waiting]:
        """Claim queues in the store; return their rows, and why others must wait.

        Queues wait only if the brokers are the store, and the queue's broker does not answer.
        """
        claimed: dict[MessageQueue, OffsetRow] = {}
        waiting: Waiting = {}
        for some in by_broker(starts).values() if is_at_brokers(self._store) else [starts]:
            try:
                claimed |= self._store.claim(
                    self._group,
                    self._owner,
                    {queue: starts[queue] for queue in some},
                    at_brokers=known,
                    rows_before=rows,
                )
            except BrokerOffsetUnavailable as error:
                waiting |= dict.fromkeys(some, error)
        return claimed, waiting

    def _read(
        self, queues: Collection[MessageQueue], addresses: Addresses
    ) -> tuple[dict[MessageQueue, int], Waiting]:
        """Return the group's offsets at the brokers, and the queues whose brokers do not report them now.

        A queue for which the broker has no offset is in neither value.
        """
        assert self._broker_offsets is not None
        read = self._broker_offsets.read
        answers, silent = at_each_broker(queues, lambda some: read(some, addresses))
        return {queue: offset for each in answers for queue, offset in each.items()}, silent

    def _write(self, next_offsets: Mapping[MessageQueue, int], addresses: Addresses) -> Waiting:
        """Store offsets at their brokers; return the queues whose brokers do not take them now, and why.

        Raises:
            RocketMQError: If a broker refuses for good.
        """
        assert self._broker_offsets is not None
        write = self._broker_offsets.write
        _, silent = at_each_broker(
            next_offsets, lambda some: write({queue: next_offsets[queue] for queue in some}, addresses)
        )
        return silent

    def _without_forgotten(
        self, known: Mapping[MessageQueue, int], rows: Rows, addresses: Addresses, now_s: float
    ) -> tuple[Mapping[MessageQueue, int], Waiting]:
        """Correct the brokers' offsets ``known`` where one is too old because its broker has crashed.

        Such an offset is replaced by the row's newer one, which is also written to the broker. Return all
        offsets after this, and the queues whose brokers did not take the newer offsets, with the errors.
        ``now_s`` is a monotonic time in seconds before the brokers were asked.
        """
        lower = {
            queue: offset
            for queue, offset in known.items()
            if queue in rows and offset < rows[queue].next_offset
        }
        self._note_lately_arrived(lower.keys(), now_s)
        forgotten = {
            queue: rows[queue].next_offset
            for queue, offset in lower.items()
            if self._passed.has(queue, offset)
        }
        if not forgotten or self._broker_offsets is None:
            return known, {}
        for queue, offset in forgotten.items():
            logger.warning(
                "broker no longer has the group's last offset, which is sent to it again group=%s %s "
                "stored=%d broker_offset=%d",
                self._group,
                queue,
                offset,
                known[queue],
            )
        return {**known, **forgotten}, self._write(forgotten, addresses)

    def _note_lately_arrived(self, lower: Collection[MessageQueue], now_s: float) -> None:
        """Note what member and driver know about queues whose brokers have a ``lower`` offset than the rows.

        Since the last plan a batch may have sent offsets to the brokers. The driver is asked only if a broker
        was away. Without its answer an offset is followed that no plan has seen: that repeats messages, but
        an operator's reset is not lost.
        """
        for broker in {queue.broker_name for queue in lower}:
            self._passed.note_outage(broker, self._outage_of(broker))
        doubtful = [queue for queue in lower if self._passed.was_away(queue.broker_name)]
        if doubtful and self._lately_arrived is not None:
            for queue, arrived in self._lately_arrived(doubtful).items():
                self._passed.note_arrivals(queue, arrived, now_s)

    def write_resets(self, rows: Rows, addresses: Addresses, now_s: float) -> Waiting:
        """Write each reset of a held queue to the queue's broker, before the queue is consumed again.

        Otherwise the next claim would take the broker's old offset for one that another client has set. The
        store records what was written. Queues whose broker did not take the reset are returned with the
        reason, and must not be planned. Brokers that refuse are asked again after 3 s. ``now_s`` is in
        monotonic seconds.

        Raises:
            NoPermission: If the group's offsets may not be written.
            RocketMQError: If a broker refuses for good, or the offset store does not take the record.
        """
        if self._broker_offsets is None:
            return {}
        self._note_kept(rows, now_s)
        news = {
            queue: row
            for queue, row in rows.items()
            if row.was_reset and self._written.get(queue) != row.epoch and queue.broker_name in addresses
        }
        if not news:
            return {}
        resting = self._rests.among(news, now_s)
        targets = {queue: row.next_offset for queue, row in news.items() if queue not in resting}
        refused = self._write(targets, addresses)
        self._rests.note({queue: refused.get(queue) for queue in targets}, now_s)
        waiting = resting | refused
        taken = {queue: row for queue, row in news.items() if queue not in waiting}
        for batch_id in sorted({row.batch_id for row in taken.values()}):
            written = [
                QueueCommit(queue=queue, state=QueueState(row.next_offset, row.epoch), is_shown=True)
                for queue, row in taken.items()
                if row.batch_id == batch_id
            ]
            self._store.commit(self._group, written, query_id="", batch_id=batch_id)
        self._written |= {queue: row.epoch for queue, row in taken.items()}
        self._taken_at_s |= dict.fromkeys(taken, now_s)
        return waiting

    def _note_kept(self, rows: Rows, now_s: float) -> None:
        """Have the store record the resets that brokers took ten seconds ago and keep through a crash.

        From then on, whoever puts an offset from before the reset there moves the group on purpose. Resets of
        queues that a batch has moved since are left out. ``now_s`` is in monotonic seconds.
        """
        kept = [queue for queue, at_s in self._taken_at_s.items() if now_s - at_s >= _KEPT_AFTER_S]
        for queue in kept:
            del self._taken_at_s[queue]
        arrived = {
            queue: row.next_offset
            for queue in kept
            if (row := rows.get(queue)) is not None and row.was_reset and self._written[queue] == row.epoch
        }
        if arrived:
            self._store.note_arrivals(self._group, arrived)

    def _starts(
        self,
        reported: Collection[MessageQueue],
        rows: Rows,
        at_broker: Mapping[MessageQueue, int],
        not_reported: Waiting,
        snapshot: Snapshot,
        *,
        now_s: float,
    ) -> tuple[dict[MessageQueue, int], Waiting, Waiting]:
        """Return where queues without a row begin, and two groups of queues that must wait, with the reasons.

        In the first group are queues whose topic cannot begin yet: a broker is away, may not have registered
        yet or has not reported the group's offset, or another member may be beginning there. In the second
        group are queues that begin by the options, but for which a request failed now.

        Args:
            reported: Queues to claim, of which ``at_broker`` has the group's offset if there is one.
            rows: The rows of the offset store.
            at_broker: The group's offsets at the brokers.
            not_reported: Queues whose brokers did not report the group's offset, and why.
            snapshot: The bounds at the brokers.
            now_s: Monotonic time in seconds.
        """
        unknown = [queue for queue in reported if queue not in rows]
        beginnings = begin_new_queues(
            [queue for queue in unknown if queue not in at_broker],
            begun={queue.topic for queue in (*rows, *at_broker)},
            begun_in_part=self._begun_in_part,
            not_reported=not_reported,
            away=next(iter(snapshot.unreachable.values()), snapshot.still_registering),
        )
        waits_for = frozenset(snapshot.unreachable if beginnings.waiting else ())
        if waits_for - self._waits_for:
            logger.warning(
                "group=%s begins in %s when all brokers answer; waiting for %s",
                self._group,
                ", ".join(sorted({queue.topic for queue in beginnings.waiting})),
                ", ".join(sorted(snapshot.unreachable)),
            )
        self._waits_for = waits_for
        starts = {queue: snapshot.bounds[queue].min_offset for queue in beginnings.at_first}
        starts |= {queue: at_broker[queue] for queue in unknown if queue in at_broker}
        if beginnings.by_option:
            try:
                by_option, begun_elsewhere = self._beginning(
                    beginnings.by_option, reported, at_broker, snapshot, now_s
                )
                return starts | by_option, {**beginnings.waiting, **begun_elsewhere}, {}
            except RocketMQError as error:
                if not waits(error, has_worked=bool(rows)):
                    raise
                return starts, dict(beginnings.waiting), dict.fromkeys(beginnings.by_option, error)
        return starts, dict(beginnings.waiting), {}

    def _beginning(
        self,
        by_option: Collection[MessageQueue],
        reported: Collection[MessageQueue],
        at_broker: Mapping[MessageQueue, int],
        snapshot: Snapshot,
        now_s: float,
    ) -> tuple[dict[MessageQueue, int], Waiting]:
        """Return where a new group begins in the queues ``by_option``, and which of them wait, and why.

        With broker offsets, decide where all queues of the same topics begin, and write this to the brokers
        before any queue is claimed.

        The reason is that members which begin at the same time, including Java's, share the queues. Without
        these offsets at the brokers the second member would take its own queues for queues created later, and
        begin with their first messages. The offsets of the queues ``reported`` were just read, so the first
        request is only for the topics' other queues.
        """
        if self._broker_offsets is None:
            positions = self._starts_by_options(snapshot, by_option)
            self._report_passed_over(positions, snapshot)
            return positions, {}
        topics = {queue.topic for queue in by_option}
        queues = [queue for queue in snapshot.bounds if queue.topic in topics]
        known = {queue: at_broker[queue] for queue in queues if queue in at_broker}
        if others := [queue for queue in queues if queue not in reported]:
            known |= self._broker_offsets.read(others, snapshot.addresses)
        begun = {queue.topic for queue in known}
        late = {queue for queue in by_option if queue.topic in begun} - self._begun_in_part
        starts, waiting = self._begin_late(late, snapshot, now_s)
        undecided = [
            queue
            for queue in queues
            if queue not in known and (queue.topic not in begun or queue in self._begun_in_part)
        ]
        if undecided:
            decided = self._begin_everywhere(undecided, snapshot)
            starts |= {queue: decided[queue] for queue in by_option if queue not in late}
        return starts, waiting

    def _begin_everywhere(
        self, undecided: Collection[MessageQueue], snapshot: Snapshot
    ) -> dict[MessageQueue, int]:
        """Decide by the options where the queues ``undecided`` begin; write this to their brokers; return it.

        A queue for which its broker has an offset by now begins at that offset.
        """
        assert self._broker_offsets is not None
        positions = self._starts_by_options(snapshot, undecided)
        # Other members may have begun and consumed while this process stood still.
        known = self._broker_offsets.read(undecided, snapshot.addresses)
        positions = {queue: position for queue, position in positions.items() if queue not in known}
        self._begun_in_part |= positions.keys()
        self._broker_offsets.write(positions, snapshot.addresses)
        self._begun_in_part -= positions.keys()
        self._report_passed_over(positions, snapshot)
        return {**known, **positions}

    def _begin_late(
        self, queues: Collection[MessageQueue], snapshot: Snapshot, now_s: float
    ) -> tuple[dict[MessageQueue, int], Waiting]:
        """Return where queues without an offset begin if other members have begun in their topics.

        Another member may just be writing where the group begins in such a queue, so the queue waits for this
        for 10 s. After that it counts as created later, and begins with its first message. The second value
        has the queues that wait, and why.
        """
        since = {
            queue: self._begun_by_others.get(queue) or (now_s, _may_be_begun(self._group, queue))
            for queue in queues
        }
        self._begun_by_others = since
        waiting = {queue: why for queue, (at_s, why) in since.items() if now_s - at_s < _BEGINNING_S}
        at_first = {queue: snapshot.bounds[queue].min_offset for queue in queues if queue not in waiting}
        return at_first, waiting

    def _report_passed_over(self, positions: Mapping[MessageQueue, int], snapshot: Snapshot) -> None:
        """Log a warning if a new group skips stored messages, which users may not expect."""
        messages = sum(offset - snapshot.bounds[queue].min_offset for queue, offset in positions.items())
        if messages <= 0:
            return
        logger.warning(
            "group %s is new to %s and begins behind the first message, as consume_from_where (options "
            "consumeFromWhere, startingOffsets) says (RocketMQ's default: at the end): it skips %d "
            "stored messages. To consume them, stop the query and reset the group's offsets to the earliest "
            "(`pyspark-rocketmq offsets reset --to earliest --topic TOPIC --conf FILE`)",
            self._group,
            ", ".join(sorted({queue.topic for queue in positions})),
            messages,
        )


def _may_be_begun(group: str, queue: MessageQueue) -> RocketMQError:
    return BrokerOffsetUnavailable(
        f"At the brokers group {group} has offsets in other queues of topic {queue.topic}, but none in "
        f"{queue}: the queue was created later, or another member is just beginning in this topic. If there "
        f"is still none after {_BEGINNING_S:.0f} s, the queue begins with its first message."
    )


def await_sole_owner(
    name: str,
    owners: Collection[str],
    members: Callable[[], Collection[str] | None],
    clock: Clock,
    sleep: Callable[[float], None],
) -> None:
    """Wait until no other query uses a broadcasting instance's progress: none of its ``owners`` is alive.

    ``name`` is the name of the progress. ``members`` returns the living members; None if they are not known,
    so that any owner may be alive. If they are still not known after half a minute, the query goes on. Two
    queries with the same progress are also detected later, by the owner of their rows (``GroupProgress``).
    Two that start at the same moment are detected only by this later check.

    Raises:
        OffsetError: If an owner is still alive after half a minute.
    """
    deadline = Deadline.after(clock, _STOP_S)
    is_logged = False
    while True:
        living = members()
        alive = sorted(set(owners).intersection(living or ()))
        if living is not None and not alive:
            return
        if deadline.has_passed:
            if alive:
                raise second_owner(name, alive[0])
            logger.warning("not known whether another query of this instance lives progress=%s", name)
            return
        if alive and not is_logged:
            logger.warning(
                "waiting for another query of this instance to end progress=%s member=%s",
                name,
                peer_text(alive[0]),
            )
            is_logged = True
        sleep(_PAUSE_S)


def second_owner(name: str, member: str) -> OffsetError:
    """Return the error of a query that must not consume, because ``member`` uses the same progress."""
    return OffsetError(
        f"Another query uses progress {name} of this broadcasting group: member {peer_text(member)} is alive "
        "and consumes under the same instanceName. Both would share one progress, and each would miss "
        "messages that only the other gets. Nothing was lost. Stop one of them, or give each query its own "
        "instanceName, also on different machines. If the machine of that member was lost, brokers forget "
        "the member within two minutes: start the query again then."
    )


def possible_owners(options: ReadOptions, member_id: str, store: OffsetStore) -> frozenset[str]:
    """Return the client ids of members that may be using the group's progress.

    These are this member's id, and the owners that the group's rows in the offset store name. Members with
    the same instance name on the same machine have the same client id. If the store cannot be read, only this
    member's is returned.
    """
    try:
        rows = store.read(offset_key(options)).values()
    except RocketMQError as error:
        # Planning reads the store again, and waits until it answers.
        logger.warning("could not read owners in offset store progress=%s: %s", offset_key(options), error)
        return frozenset({member_id})
    return frozenset({member_id, *(row.owner_id for row in rows if row.owner)})


def living_members(options: ReadOptions, pool: ChannelPool, clock: Clock) -> frozenset[str] | None:
    """Return the client ids of the group's members at all brokers that report them; None if no broker does.

    A broker drops a member that disconnects.
    """
    group = options.consumer_group
    assert group is not None
    cluster = Cluster.of(options, clock, pool=pool, at_most_s=CALL_TIMEOUT_S)
    brokers = cluster.brokers()
    found: set[str] = set()
    is_known = False
    try:
        routes = cluster.routes(options).look(Deadline.after(clock, cluster.timeout_s))
    except RocketMQError as error:
        logger.warning("could not query the members of the group group=%s: %s", group, error)
        return None
    for name, address in routes.masters.items():
        try:
            found.update(brokers.consumer_list(address, group, broker_name=name))
        except RocketMQError as error:
            if not reports_no_members(error):
                logger.warning(
                    "could not get the group's members group=%s broker=%s: %s", group, address, error
                )
                continue
        is_known = True
    return frozenset(found) if is_known else None
