"""Detect that a queue's offsets begin again with other messages, and begin its next generation.

A generation is one log of a queue; generations are numbered. To find out whether a queue has another log,
single messages are compared with those consumed before. A group does not do this for each batch. It looks up
a queue's messages only after a claim or a reset of the queue, when the queue's bounds look as if its log had
changed, and when its broker did not answer before. A slave is read instead of a master only if it has the log
consumed so far. A slave that the route names as master never proves that a log has changed: it may only lack
messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.consume.generations import (
    LogChange,
    NextGeneration,
    Standing,
    change_found,
    next_generation,
)
from pyspark_rocketmq.consume.not_now import sorted_out
from pyspark_rocketmq.consume.positions import StoredThen, latest_at, times_of_waiting
from pyspark_rocketmq.display import peer_text
from pyspark_rocketmq.errors import (
    BrokerOffsetUnavailable,
    DataLoss,
    LogTailLost,
    LostBehindSink,
    OffsetsBeganAgain,
    RocketMQError,
)
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, QueueBounds, QueueRange
from pyspark_rocketmq.offsets.rules import apply_last_skipped
from pyspark_rocketmq.offsets.store import LastSkipped, NewGeneration, OffsetRow, OffsetStore
from pyspark_rocketmq.source.cluster_view import Snapshot
from pyspark_rocketmq.source.message_lookup import Found, MessageLookup
from pyspark_rocketmq.stored_values import NO_MESSAGES, LastMessage, RememberedMessages

T = TypeVar("T")

logger = logging.getLogger(__name__)

Rows = Mapping[MessageQueue, OffsetRow]

_Place = tuple[str, str]
"""A topic and a broker."""
_LOOKED_AT_AGAIN_S: Final = 5.0
"""Time between two plans from which on each queue with new messages is looked at, in seconds.

A look costs a pull. At this pace it costs little beside the pulls of the tasks, and the planner little time.
"""


class QueueGenerations:
    """Generations (numbered logs) of a group's queues: finds queues that have another log than before.

    Only queues whose log may have changed are checked; see :meth:`_is_suspect`.
    """

    def __init__(
        self, consumer_group: str, store: OffsetStore, lookup: MessageLookup, *, fail_on_data_loss: bool
    ) -> None:
        self._group: Final = consumer_group
        self._store = store
        self._lookup = lookup
        self._fails = fail_on_data_loss
        self._checked: dict[MessageQueue, int] = {}
        """The epoch under which a queue was last checked."""
        self._seen: dict[MessageQueue, QueueBounds] = {}
        """Each queue's bounds at the last plan, unless the queue was out of sight or had to wait."""
        self._copied: dict[MessageQueue, tuple[int, BrokerAddress]] = {}
        """The slave at which a queue's newest consumed message was seen, and the queue's epoch then."""
        self._ends: dict[MessageQueue, int] = {}
        """The offset at which a queue's generation (log) ends, for queues whose position is below it."""
        self.waiting: Mapping[MessageQueue, RocketMQError] = {}
        """Queues that must not be planned yet, and why, as of the last :meth:`follow`."""

    def resets(self) -> dict[MessageQueue, int]:
        """Return, by queue, the targets of resets that this object's look-ups met since the last call.

        A broker reports a reset only once.
        """
        return self._lookup.resets()

    def copied_at(self, rows: Rows, snapshot: Snapshot) -> frozenset[MessageQueue]:
        """Return the queues of ``rows`` whose newest consumed message is at the slave in ``snapshot.slaves``.

        A queue whose message was seen at this slave before is not looked up again. A queue is left out if its
        look-up fails, or if its row remembers no message.
        """
        unknown: dict[str, dict[MessageQueue, LastMessage]] = {}
        for queue, row in rows.items():
            last = row.state.last_message.newest
            if last is not None and not self._is_copied(queue, row, snapshot):
                unknown.setdefault(queue.broker_name, {})[queue] = last
        for name, wanted in sorted(unknown.items()):
            places = {queue: last.queue_offset for queue, last in wanted.items()}
            found = self._lookup.look(places, snapshot.slaves)
            errors = [each for each in found.values() if isinstance(each, RocketMQError)]
            if errors:
                logger.warning(
                    "queues wait for their master, its slave does not answer whether it has the consumed "
                    "messages group=%s broker=%s: %s",
                    self._group,
                    peer_text(name),
                    errors[0],
                )
            for queue, last in wanted.items():
                seen = found[queue]
                if isinstance(seen, RocketMQError):
                    continue
                if seen.message == last:
                    self._copied[queue] = rows[queue].epoch, snapshot.slaves[name]
                else:
                    logger.warning(
                        "queue waits for its master, its slave lacks the message consumed last group=%s %s "
                        "queueOffset=%d",
                        self._group,
                        queue,
                        last.queue_offset,
                    )
        return frozenset(queue for queue, row in rows.items() if self._is_copied(queue, row, snapshot))

    def _is_copied(self, queue: MessageQueue, row: OffsetRow, snapshot: Snapshot) -> bool:
        return self._copied.get(queue) == (row.epoch, snapshot.slaves[queue.broker_name])

    def follow(
        self, rows: Rows, snapshot: Snapshot, *, has_worked: bool = True
    ) -> dict[MessageQueue, OffsetRow]:
        """Check whether queues still have the log that was consumed; return the rows that changed.

        A queue whose position is in another log than before begins its next generation (log). A queue whose
        reset is reported meanwhile is left for the next call. A queue whose broker does not answer or does
        not work now is in :attr:`waiting`; the others go on.

        Args:
            rows: The rows of the queues, which this member holds and whose masters answer.
            snapshot: The bounds at the brokers.
            has_worked: Whether the group has ever consumed a message, so that its pulls are usually allowed.

        Raises:
            DataLoss: If messages of a queue are lost, nobody has moved the group since, and
                ``failOnDataLoss`` is true.
            LostBehindSink: Even if ``failOnDataLoss`` is false: if only a sink's watermark shows the loss, so
                that the first new message cannot be found.
            RocketMQError: If a broker refuses for good.
        """
        for queue in self._copied.keys() & rows.keys():
            # The queue's master is back; when it is down again, the slave is checked again.
            del self._copied[queue]
        suspects = [queue for queue in rows if self._is_suspect(rows[queue], snapshot.bounds[queue])]
        outside = {
            queue: wanted
            for queue in suspects
            if not snapshot.bounds[queue].allow(wanted := rows[queue].next_offset)
        }
        at_slaves = self._lookup.at_slaves(outside, snapshot) if outside else {}
        suspects = [queue for queue in suspects if queue not in at_slaves]
        standings = {queue: self._standing(rows[queue]) for queue in suspects}
        places = {
            queue: standing.place_to_look_at()
            for queue, standing in standings.items()
            if standing.last is not None or standing.next_offset != snapshot.bounds[queue].min_offset
        }
        looked = self._lookup.look(places, snapshot.addresses) if places else {}
        looked = self._with_ends(looked, standings, snapshot)
        found, waiting = sorted_out(looked, has_worked=has_worked)
        reset = {queue for queue, each in found.items() if each.is_reset}
        decided = _each(
            [queue for queue in found if queue not in reset],
            lambda queue: self._decide(rows[queue], standings[queue], found[queue], snapshot),
        )
        known, not_now = sorted_out(decided, has_worked=has_worked)
        waiting |= {**not_now, **at_slaves}
        self._note_ends(rows, suspects, known)
        beginnings = {
            queue: NewGeneration(rows[queue].epoch, following.next_offset, following.boundary)
            for queue, following in known.items()
            if following is not None and not following.is_later
        }
        going_on = {queue: found[queue] for queue in known if queue not in beginnings}
        passed, not_now = self._passed(rows, standings, going_on, snapshot)
        waiting |= not_now
        begun = self._store.begin_generations(self._group, beginnings) if beginnings else {}
        if passed:
            self._store.note_passed(self._group, passed)
        noted = apply_last_skipped({queue: rows[queue] for queue in passed}, passed).rows
        for queue, row in begun.items():
            logger.warning(
                "offsets begin again with other messages: every message from here on reaches the sink "
                "group=%s %s generation=%d next_offset=%d was=%d",
                self._group,
                queue,
                row.generation,
                row.next_offset,
                rows[queue].next_offset,
            )
        found = {queue: each for queue, each in found.items() if queue not in waiting}
        waiting |= self._outgrown({**{queue: rows[queue] for queue in found}, **begun}, found, snapshot)
        self._seen = {queue: snapshot.bounds[queue] for queue in rows if queue not in waiting}
        # A new generation is checked once more, to find the message before its beginning.
        self._checked |= {
            queue: rows[queue].epoch
            for queue in suspects
            if queue not in reset and queue not in begun and queue not in waiting
        }
        self.waiting = waiting
        return {**noted, **begun}

    def _with_ends(
        self,
        looked: Mapping[MessageQueue, Found | RocketMQError],
        standings: Mapping[MessageQueue, Standing],
        snapshot: Snapshot,
    ) -> dict[MessageQueue, Found | RocketMQError]:
        """Return the look-ups, with the broker's own word about an end on which two witnesses disagree.

        They disagree if a position is within the snapshot's bounds, but beyond the end that the look-up
        shows.
        """

        def with_end(queue: MessageQueue) -> Found | RocketMQError:
            seen = looked[queue]
            wanted = standings[queue].next_offset
            if isinstance(seen, RocketMQError) or not snapshot.bounds[queue].allow(wanted):
                return seen
            return self._lookup.with_end_from(seen, queue, wanted, snapshot.addresses[queue.broker_name])

        return _each(looked, with_end)

    def _note_ends(
        self,
        rows: Rows,
        suspects: Iterable[MessageQueue],
        known: Mapping[MessageQueue, NextGeneration | None],
    ) -> None:
        """Remember, for each queue of ``suspects``, the offset at which the log that is read now ends.

        A queue's log ends where its next log begins. If no next log is known, a remembered end is forgotten.
        A new end is reported by a warning.
        """
        for queue in suspects:
            before = self._ends.pop(queue, None)
            following = known.get(queue)
            if following is None or not following.is_later:
                continue
            self._ends[queue] = following.next_offset
            if before != following.next_offset:
                logger.warning(
                    "offsets begin again at %d: from there on they belong to other messages; the messages "
                    "below it are the same as before group=%s %s next_offset=%d",
                    following.next_offset,
                    self._group,
                    queue,
                    rows[queue].next_offset,
                )

    def _passed(
        self,
        rows: Rows,
        standings: Mapping[MessageQueue, Standing],
        found: Mapping[MessageQueue, Found],
        snapshot: Snapshot,
    ) -> tuple[dict[MessageQueue, LastSkipped], dict[MessageQueue, RocketMQError]]:
        """Return messages that rows must remember but lack, and the errors of look-ups, by queue.

        Later checks compare a queue's log with these messages. A row must remember the message right before
        the queue's position if it remembers no message, or if the group was put ahead of those it remembers.
        If it is known where the queue's current generation ends, the row must also remember the last message
        before this end.
        """
        messages = {queue: each.message for queue, each in found.items() if standings[queue].last is None}
        ahead = {
            queue: rows[queue].next_offset - 1
            for queue, each in found.items()
            if standings[queue].last is not None
            and rows[queue].was_moved
            and not standings[queue].is_in_place
            and each.bounds.min_offset < rows[queue].next_offset <= each.bounds.max_offset
        }
        ends = {
            queue: end - 1
            for queue, each in found.items()
            if (end := self._ends.get(queue, 0)) > each.bounds.min_offset
            and (last := standings[queue].last) is not None
            and last.queue_offset >= end
            and all(message.queue_offset != end - 1 for message in standings[queue].messages)
        }
        passed = {
            queue: RememberedMessages.of(message)
            for queue, message in messages.items()
            if message is not None
        }
        waiting: dict[MessageQueue, RocketMQError] = {}
        for places in (ahead, ends):
            looked = self._lookup.look(places, snapshot.addresses) if places else {}
            seen, not_now = sorted_out(looked, has_worked=True)
            waiting |= not_now
            for queue, each in seen.items():
                if each.message is not None:
                    known = passed.get(queue, NO_MESSAGES)
                    passed[queue] = known.with_newest_of(RememberedMessages.of(each.message))
        return {queue: LastSkipped(rows[queue].epoch, known) for queue, known in passed.items()}, waiting

    def end_of(self, queue: MessageQueue) -> int | None:
        """Return the offset at which a queue's current log ends and another begins; None if none is known."""
        return self._ends.get(queue)

    def _standing(self, row: OffsetRow) -> Standing:
        was_checked = self._checked.get(row.queue) == row.epoch
        return standing_of(row, was_checked=was_checked, fails=self._fails)

    def _is_suspect(self, row: OffsetRow, bounds: QueueBounds) -> bool:
        seen = self._seen.get(row.queue)
        return (
            self._checked.get(row.queue) != row.epoch
            or seen is None
            or bounds.min_offset < seen.min_offset
            or bounds.max_offset < seen.max_offset
            or (bounds.max_offset == seen.max_offset and _last_times_differ(bounds, seen))
            or not bounds.allow(row.next_offset)
            or row.next_offset >= self._ends.get(row.queue, row.next_offset + 1)
        )

    def _decide(
        self, row: OffsetRow, standing: Standing, found: Found, snapshot: Snapshot
    ) -> NextGeneration | None:
        """Return the queue's next generation: where another log begins, and whether the group has reached it.

        Return None if the queue still has the log that was consumed, and no other log is known. A loss is
        noted in the offset store before it is raised.

        Raises:
            DataLoss: If messages of the queue are lost, nobody has moved the group since their log changed,
                and ``failOnDataLoss`` is true.
            LostBehindSink: If only a sink's watermark shows the loss, so that the first new message is
                unknown. ``failOnDataLoss`` makes no difference.
            RocketMQError: If the broker did not return a message that must be compared, or the broker is a
                slave.
        """
        queue = row.queue
        change = self._change(queue, standing, found, snapshot)
        ahead = row.boundaries.ahead
        if ahead is not None and (change is None or ahead <= change.offset):
            # The group was set back from the next generation, so its beginning in this log is known.
            change = LogChange(ahead)
            standing = standing._replace(was_followed=standing.was_followed and standing.next_offset >= ahead)
        following = next_generation(standing, found.bounds, change)
        if following is None or following.is_later:
            return following
        self._lookup.require_master(queue, snapshot.addresses)
        if following.is_wanted or (ahead is not None and following.boundary == ahead):
            return following
        place = standing.place_to_look_at()
        if not following.is_certain:
            # The queue may have grown past this place by the time an operator resets the group.
            lost = {queue: LastSkipped(row.epoch, RememberedMessages.of(LastMessage.lost(place)))}
            self._store.note_passed(self._group, lost)
            raise LostBehindSink(str(queue), place, found.available)
        if self._fails and standing.next_offset > found.bounds.max_offset:
            raise LogTailLost(str(queue), standing.next_offset, found.available)
        if self._fails:
            raise OffsetsBeganAgain(str(queue), place, found.available)
        return following

    def _change(
        self, queue: MessageQueue, standing: Standing, found: Found, snapshot: Snapshot
    ) -> LogChange | None:
        """Return where the queue's log differs from the log that was consumed; None if it is the same."""
        known = {standing.place_to_look_at(): found.message}

        def message_at(place: int) -> LastMessage | None:
            if place not in known:
                known[place] = self._lookup.message_at(queue, place, snapshot, found.bounds)
            return known[place]

        return change_found(standing.messages, found.bounds, message_at)

    def _outgrown(
        self, rows: Rows, found: Mapping[MessageQueue, Found], snapshot: Snapshot
    ) -> dict[MessageQueue, RocketMQError]:
        """Return the queues whose position is within the bounds just ``found``, but outside the snapshot's.

        A plan from the older bounds of the snapshot would report a loss. So these queues wait for the next
        plan, each with the error returned.
        """
        return {
            queue: BrokerOffsetUnavailable(
                f"Group {self._group}, {queue}: the queue's offsets changed while they were looked up, to "
                f"{now.min_offset} to {now.max_offset}. The queue waits for the next plan."
            )
            for queue, row in rows.items()
            if (now := found[queue].bounds).allow(row.next_offset)
            and not snapshot.bounds[queue].allow(row.next_offset)
        }


def standing_of(row: OffsetRow, *, was_checked: bool, fails: bool) -> Standing:
    """Return a group's position in a queue, and whether somebody else has put the group there.

    Args:
        row: The queue's row in the offset store.
        was_checked: Whether the queue was checked since the row was claimed or reset.
        fails: Whether lost messages end the query (``failOnDataLoss``).
    """
    standing = Standing(row.next_offset, row.state.last_message.messages)
    # A position that was checked before belongs to the earlier log.
    is_known = standing.is_in_place or was_checked
    last = standing.last
    is_newest = last is not None and last.queue_offset + 1 == row.next_offset
    # With failOnDataLoss, a reset to the group's own position means that the operator knows of the loss.
    is_answer = fails and is_newest and not was_checked
    return standing._replace(
        was_reset=row.was_reset_by_operator and (is_answer or not is_known),
        was_followed=row.may_be_followed and not is_known,
    )


def _last_times_differ(bounds: QueueBounds, seen: QueueBounds) -> bool:
    """Return whether the store time of the queue's last message has changed, so that it is another message.

    A time that is unknown on only one side counts as a change.
    """
    return bounds.last_update_timestamp != seen.last_update_timestamp


def _each(
    queues: Iterable[MessageQueue], ask: Callable[[MessageQueue], T]
) -> dict[MessageQueue, T | RocketMQError]:
    """Return the result of ``ask``, or its error, for each queue; DataLoss is raised."""
    outcomes: dict[MessageQueue, T | RocketMQError] = {}
    for queue in queues:
        try:
            outcomes[queue] = ask(queue)
        except DataLoss:
            raise
        except RocketMQError as error:
            outcomes[queue] = error
    return outcomes


def _place_of(queue: MessageQueue) -> _Place:
    return queue.topic, queue.broker_name


class CheckpointGenerations:
    """Detects that a plain stream's queue has another log than before, whose offsets began again.

    Queues are checked if they were out of sight at the last plan, as all are at the start, or if they now end
    before their position. The ranges that a new process reads again are checked, too. In addition, one queue
    of each topic and broker is checked at each plan if it has new messages: a topic's queues are deleted
    together.

    A slave that becomes master may lack the ends of some queues only, and so may a broker after a crash. Both
    may happen between two plans. Therefore every queue of a broker that has new messages is checked if the
    broker has another address than at the last plan, if the connection to it is another one, or if the last
    plan was made 5 seconds ago or earlier. The last sign is for a master that has become a slave and has
    replaced the end of its log, while the route that is known still names it as master.

    A checkpoint contains no messages. It contains, for each broker, the latest store time of a message there
    when the plan was made. If the message before a queue's position was stored later than this, or the log
    ends before the position, the log is another one. See row F4 of ``docs/semantics.md``. With
    ``failOnDataLoss``, a log that ends before the position is not checked here, since the planner raises
    DataLoss for it.

    A broker's clock may have been set back. Then the message before the position may have a later store time
    than the queue's last message at the plan, whose time the checkpoint has. So that last message is looked
    at, too: while it is still there, the log is the same.
    """

    def __init__(self, lookup: MessageLookup, clock: Clock, *, fail_on_data_loss: bool) -> None:
        self._lookup = lookup
        self._clock = clock
        self._fails = fail_on_data_loss
        self._seen: frozenset[MessageQueue] = frozenset()
        """Queues that were in sight at the last :meth:`follow` and did not have to wait.

        Without those of brokers whose logs may have changed since.
        """
        self._contacts: Mapping[str, tuple[BrokerAddress, int]] = {}
        """Each broker's address and number of connections at the last :meth:`follow`."""
        self._looked_at_s = 0.0
        """Monotonic second of the last :meth:`follow`."""
        self._begun: dict[MessageQueue, int] = {}
        """The offset at which a queue with another log goes on; kept until a plan contains it."""
        self.waiting: Mapping[MessageQueue, RocketMQError] = {}
        """Queues that must not be planned yet, and why, as of the last :meth:`follow`."""
        self.times_of_waiting: dict[MessageQueue, int] = {}
        """The store time to compare with, by queue that waits or is out of sight.

        It is from the last plan that had the queue. All other queues are compared with the newest plan's.
        """

    def follow(
        self, previous: Sequence[QueueRange], snapshot: Snapshot, then: StoredThen
    ) -> Sequence[QueueRange]:
        """Return the previous ranges, with new positions for queues whose offsets began again.

        Queues whose brokers do not show their messages are in :attr:`waiting`; the others go on.

        Args:
            previous: The ranges of the previous plan.
            snapshot: The snapshot that the next plan is made from.
            then: Facts about the brokers' logs when the previous plan was made. A queue that had to wait or
                was out of sight at that time has a store time of its own, from an earlier plan.

        Raises:
            OffsetsBeganAgain: If a queue's offsets began again, and ``failOnDataLoss`` is true.
            RocketMQError: If a broker refuses for good.
        """
        self.times_of_waiting = times_of_waiting(then.times)
        self._doubt(snapshot.addresses)
        remade, silent = self._made_again(previous, snapshot, then)
        self._seen -= {was.queue for was in previous if _place_of(was.queue) in remade}
        self.waiting = {was.queue: silent[at] for was in previous if (at := _place_of(was.queue)) in silent}
        outside = {
            was.queue: was.end
            for was in previous
            if (bounds := snapshot.bounds.get(was.queue)) is not None and not bounds.allow(was.end)
        }
        if outside:
            self.waiting |= self._lookup.at_slaves(outside, snapshot)
        self.waiting |= self._look([was for was in previous if was.queue not in self.waiting], snapshot, then)
        in_sight = snapshot.with_slaves().bounds
        unseen = {was.queue for was in previous if was.queue not in in_sight}
        self.times_of_waiting = {queue: self._stored_by(queue, then) for queue in unseen.union(self.waiting)}
        self._seen = frozenset(snapshot.bounds).difference(self.waiting)
        if not self._begun:
            return previous
        return [
            QueueRange.between(was.queue, self._begun[was.queue], self._begun[was.queue])
            if was.queue in self._begun
            else was
            for was in previous
        ]

    def _doubt(self, addresses: Mapping[str, BrokerAddress]) -> None:
        """Count the queues of each broker as not seen if its log may have changed since the last call."""
        now_s = self._clock.monotonic_s()
        contacts = {name: (at, self._lookup.connections_to(at)) for name, at in addresses.items()}
        is_long_ago = now_s - self._looked_at_s >= _LOOKED_AT_AGAIN_S
        same = frozenset() if is_long_ago else contacts.items() & self._contacts.items()
        names = {name for name, _ in same}
        self._seen = frozenset(queue for queue in self._seen if queue.broker_name in names)
        self._contacts, self._looked_at_s = contacts, now_s

    def of_same_logs(
        self, planned: Sequence[QueueRange], snapshot: Snapshot, then: StoredThen
    ) -> tuple[list[QueueRange], dict[MessageQueue, RocketMQError]]:
        """Return the ranges of a logged plan, each cut at the offset where another log begins, if one does.

        A range is empty if nothing is left of the log from which it was planned. The next :meth:`follow`
        returns the queue's position in the other log. The second value has the queues for which the brokers
        do not show this now, and why. Ranges whose masters are away are not checked.

        Args:
            planned: The ranges, not empty, which an earlier process planned.
            snapshot: The newest snapshot.
            then: Facts about the brokers' logs when the ranges were planned.

        Raises:
            OffsetsBeganAgain, LogTailLost: If a log is another one or lacks messages of its range, and
                ``failOnDataLoss`` is true.
            RocketMQError: If a broker refuses for good.
        """
        self.times_of_waiting = times_of_waiting(then.times)
        shorter = {
            was.queue: was
            for was in planned
            if (bounds := snapshot.bounds.get(was.queue)) is not None and was.end > bounds.max_offset
        }
        ends = {queue: was.end for queue, was in shorter.items()}
        waiting = self._lookup.at_slaves(ends, snapshot) if ends else {}
        lost = sorted(shorter.keys() - waiting.keys())
        if lost and self._fails:
            queue = lost[0]
            bounds = snapshot.bounds[queue]
            raise LogTailLost(
                str(queue), max(shorter[queue].start, bounds.max_offset), f"offsets {bounds.extent}"
            )
        waiting |= self._look([was for was in planned if was.queue not in waiting], snapshot, then)
        return [
            replace(was, end=min(was.end, max(was.start, self._begun.get(was.queue, was.end))))
            for was in planned
        ], waiting

    def _stored_by(self, queue: MessageQueue, then: StoredThen) -> int:
        return self.times_of_waiting.get(queue, latest_at(then.times, queue.broker_name))

    def planned(self) -> None:
        """Note that a plan contains the positions that the last :meth:`follow` returned."""
        self._begun.clear()

    def _made_again(
        self, previous: Sequence[QueueRange], snapshot: Snapshot, then: StoredThen
    ) -> tuple[frozenset[_Place], dict[_Place, RocketMQError]]:
        """Return the topics, each at one broker, that were created again while their queues were in sight.

        Only one queue of each topic and broker is looked at. The second value has the topics for which the
        broker does not show this now, and why.
        """
        places: dict[_Place, tuple[MessageQueue, int]] = {}
        for was in previous:
            bounds = snapshot.bounds.get(was.queue)
            if was.queue not in self._seen or was.queue in self._begun or bounds is None:
                continue
            stored_by_ms = self._stored_by(was.queue, then)
            is_there = bounds.min_offset < was.end <= bounds.max_offset
            if is_there and 0 < stored_by_ms < bounds.last_update_timestamp:
                places.setdefault(_place_of(was.queue), (was.queue, was.end - 1))
        if not places:
            return frozenset(), {}
        found, silent = sorted_out(
            self._lookup.look(dict(places.values()), snapshot.addresses), has_worked=True
        )
        offsets = dict(places.values())
        judged = _each(
            found, lambda queue: self._is_another(queue, offsets[queue], found[queue], snapshot, then)
        )
        known, not_now = sorted_out(judged, has_worked=True)
        remade = {_place_of(queue) for queue, is_another in known.items() if is_another}
        return frozenset(remade), {_place_of(queue): error for queue, error in (silent | not_now).items()}

    def _is_another(
        self, queue: MessageQueue, place: int, found: Found, snapshot: Snapshot, then: StoredThen
    ) -> bool:
        """Return whether the message ``found`` at ``place``, right before a position, shows another log.

        Raises:
            RocketMQError: If the broker did not show a message that must be compared.
        """
        stored_by_ms = self._stored_by(queue, then)
        if found.message is None or found.message.store_timestamp <= stored_by_ms:
            return False
        newest = then.newest_of(queue, place)
        if newest <= place:
            return True
        found = self._lookup.with_end_from(found, queue, newest + 1, snapshot.addresses[queue.broker_name])
        if newest >= found.bounds.max_offset:
            return True
        last = self._lookup.message_at(queue, newest, snapshot, found.bounds)
        return last is None or last.store_timestamp > stored_by_ms

    def _look(
        self, previous: Sequence[QueueRange], snapshot: Snapshot, then: StoredThen
    ) -> dict[MessageQueue, RocketMQError]:
        places = {
            was.queue: was.end - 1
            for was in previous
            if (bounds := snapshot.bounds.get(was.queue)) is not None
            and was.queue not in self._begun
            and (stored_by_ms := self._stored_by(was.queue, then))
            and self._is_suspect(was, bounds, stored_by_ms)
        }
        if not places:
            return {}
        looked, waiting = sorted_out(self._lookup.look(places, snapshot.addresses), has_worked=True)
        starts = _each(
            looked,
            lambda queue: self._start(queue, looked[queue], places[queue], snapshot, then),
        )
        known, not_now = sorted_out(starts, has_worked=True)
        for queue, start in known.items():
            if start is not None:
                self._begun[queue] = start
                logger.warning(
                    "offsets begin again with other messages %s next_offset=%d was=%d, the broker has %s",
                    queue,
                    start,
                    places[queue] + 1,
                    looked[queue].available,
                )
        return waiting | not_now

    def _start(
        self, queue: MessageQueue, found: Found, place: int, snapshot: Snapshot, then: StoredThen
    ) -> int | None:
        """Return where the queue goes on in another log; None if the log is the same."""
        if found.is_reset and found.bounds.min_offset <= place < found.bounds.max_offset:
            # The broker answered with a reset, which a plain stream does not follow.
            message = self._lookup.message_at(queue, place, snapshot, found.bounds)
            found = found._replace(message=message)
        is_another = self._is_another(queue, place, found, snapshot, then)
        if not is_another and place < found.bounds.max_offset:
            return None
        self._lookup.require_master(queue, snapshot.addresses)
        if is_another and self._fails:
            raise OffsetsBeganAgain(str(queue), place, found.available)
        address = snapshot.addresses[queue.broker_name]
        return self._lookup.stored_after(queue, address, self._stored_by(queue, then), found.bounds)

    def _is_suspect(self, was: QueueRange, bounds: QueueBounds, stored_by_ms: int) -> bool:
        if was.end > bounds.max_offset:
            return not self._fails
        is_new_there = not 0 < bounds.last_update_timestamp <= stored_by_ms
        return was.queue not in self._seen and was.end > bounds.min_offset and is_new_there
