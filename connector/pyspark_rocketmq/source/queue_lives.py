"""Tells whether a queue's offsets began again, and begins its next life.

Once at each claim and each reset, and where what the broker has went back or the queue was out of sight:
never for a batch.

Looks whether a slave has the log that was consumed, before a queue goes on there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from pyspark_rocketmq.client.broker import PullRequest, PullStatus
from pyspark_rocketmq.client.cluster import Cluster, at_queues
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.consume.positions import Beginning, LastMessage, Standing, new_life
from pyspark_rocketmq.display import peer_text
from pyspark_rocketmq.errors import (
    BrokerOffsetUnavailable,
    LogTailLost,
    OffsetsBeganAgain,
    RemoteProtocolError,
    RocketMQError,
)
from pyspark_rocketmq.group.broker_offsets import ToldResets
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, PulledBody, QueueBounds, QueueRange
from pyspark_rocketmq.offsets.store import NewLife, OffsetRow, OffsetStore, Passed
from pyspark_rocketmq.options.connection import PLAIN_SOURCE_GROUP
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.cluster_view import Snapshot
from pyspark_rocketmq.wire.columnar.decode import offsets_of
from pyspark_rocketmq.wire.messages import decode_stored_messages

logger = logging.getLogger(__name__)


class Found(NamedTuple):
    """What a broker has at one offset."""

    bounds: QueueBounds
    """Of this moment."""
    message: LastMessage | None
    """The one at the offset; None if there is none."""
    is_reset: bool = False
    """Whether a reset was told in place of the message."""


class LifeWatch(Protocol):
    """Sees single messages, and keeps the resets that brokers tell with them, whatever else fails then."""

    def resets(self) -> dict[MessageQueue, int]:
        """Where operators want queues: told since the last call, and to nobody again."""
        ...

    def look(
        self, places: Mapping[MessageQueue, int], addresses: Mapping[str, BrokerAddress]
    ) -> dict[MessageQueue, Found]:
        """What is at these offsets.

        Raises:
            RocketMQError: If a broker does not answer, or refuses.
        """
        ...

    def stored_after(
        self, queue: MessageQueue, address: BrokerAddress, timestamp: int, bounds: QueueBounds
    ) -> int:
        """The offset of the first message stored later than a time (milliseconds), or the queue's end.

        Raises:
            RocketMQError: If the broker does not answer, or refuses.
        """
        ...


class PullingLifeWatch:
    """Implements :class:`LifeWatch` by a pull of one message as the group itself, which may read its topics; without one as what reads without one.

    Brokers are asked at once.
    """

    def __init__(self, options: ReadOptions, pool: ChannelPool, clock: Clock) -> None:
        self._group = options.consumer_group or PLAIN_SOURCE_GROUP
        self._brokers = Cluster.of(options, clock, pool=pool).brokers()
        self._told = ToldResets()

    def resets(self) -> dict[MessageQueue, int]:
        """See :class:`LifeWatch`."""
        return self._told.take()

    def look(
        self, places: Mapping[MessageQueue, int], addresses: Mapping[str, BrokerAddress]
    ) -> dict[MessageQueue, Found]:
        """See :class:`LifeWatch`."""
        return at_queues(places, lambda queue: self._at(queue, places[queue], addresses[queue.broker_name]))

    def stored_after(
        self, queue: MessageQueue, address: BrokerAddress, timestamp: int, bounds: QueueBounds
    ) -> int:
        """See :class:`LifeWatch`."""
        found = self._brokers.search_offset(address, queue, timestamp + 1)
        offset = min(max(found, bounds.min_offset), bounds.max_offset)
        seen = self._at(queue, offset, address)
        if seen.is_reset:
            # Told once, so that the next answer is the message.
            seen = self._at(queue, offset, address)
        there = seen.message
        # Brokers before 5 answer with the nearest message, which may be the one before.
        return offset + 1 if there is not None and there.store_timestamp <= timestamp else offset

    def _at(self, queue: MessageQueue, offset: int, address: BrokerAddress) -> Found:
        request = PullRequest(consumer_group=self._group, queue=queue, queue_offset=offset, max_msg_nums=1)
        pulled = self._brokers.pull(address, request)
        bounds = QueueBounds(pulled.min_offset, pulled.max_offset)
        if pulled.status is not PullStatus.FOUND:
            target = pulled.reset_from(offset)
            if target is not None:
                self._told.add(queue, target)
            return Found(bounds, None, is_reset=target is not None)
        return Found(bounds, _message_at(queue, offset, pulled.body))


def _message_at(queue: MessageQueue, offset: int, data: PulledBody) -> LastMessage | None:
    """The stored message at an offset; None if the layout is broken, so that nothing can be told."""
    try:
        messages = decode_stored_messages(data)
    except RemoteProtocolError as error:
        logger.warning(
            "the message that tells whether offsets begin again cannot be decoded %s queueOffset=%d: %s",
            queue,
            offset,
            error,
        )
        return None
    # Bodies are left as they are: one that cannot be decompressed has its place, too.
    for one in messages:
        if offset in offsets_of(one):
            return LastMessage(offset, one.store_timestamp, one.commit_log_offset)
    return None


Rows = Mapping[MessageQueue, OffsetRow]


class QueueLives:
    """Looks at queues when they are claimed or reset, and when what their brokers have went back."""

    def __init__(
        self, consumer_group: str, store: OffsetStore, watch: LifeWatch, *, fail_on_data_loss: bool
    ) -> None:
        self._group: Final = consumer_group
        self._store = store
        self._watch = watch
        self._fails = fail_on_data_loss
        self._looked: dict[MessageQueue, int] = {}
        """The epoch under which a queue was looked at."""
        self._seen: dict[MessageQueue, QueueBounds] = {}
        """As of the last plan; a queue that was out of sight then is not in it."""
        self._copied: dict[MessageQueue, tuple[int, BrokerAddress]] = {}
        """The epoch and the slave of a queue whose newest message consumed was seen there."""

    def copied_at(self, rows: Rows, snapshot: Snapshot) -> frozenset[MessageQueue]:
        """Those of ``rows`` that their brokers' slaves have a copy of: the newest message consumed is there.

        A queue of which no message was consumed is none of them. A slave that does not answer is left out.
        """
        unknown: dict[MessageQueue, LastMessage] = {}
        for queue, row in rows.items():
            last = LastMessage.from_text(row.state.last_message)
            is_known = self._copied.get(queue) == (row.epoch, snapshot.slaves[queue.broker_name])
            if last is not None and not is_known:
                unknown[queue] = last
        for name in sorted({queue.broker_name for queue in unknown}):
            wanted = {queue: last for queue, last in unknown.items() if queue.broker_name == name}
            places = {queue: last.queue_offset for queue, last in wanted.items()}
            try:
                found = self._watch.look(places, snapshot.slaves)
            except RocketMQError as error:
                logger.warning(
                    "queues wait for their master, its slave does not show what was consumed group=%s "
                    "broker=%s: %s",
                    self._group,
                    peer_text(name),
                    error,
                )
                continue
            for queue, last in wanted.items():
                if found[queue].message == last:
                    self._copied[queue] = rows[queue].epoch, snapshot.slaves[name]
                else:
                    logger.warning(
                        "queue waits for its master, its slave has not the message consumed last group=%s %s "
                        "queueOffset=%d",
                        self._group,
                        queue,
                        last.queue_offset,
                    )
        return frozenset(
            queue
            for queue, row in rows.items()
            if self._copied.get(queue) == (row.epoch, snapshot.slaves[queue.broker_name])
        )

    def resets(self) -> dict[MessageQueue, int]:
        """Where operators want queues: brokers reported it to :meth:`follow` and have forgotten it."""
        return self._watch.resets()

    def follow(self, rows: Rows, snapshot: Snapshot) -> dict[MessageQueue, OffsetRow]:
        """Begin a new life of the held, visible queues that need one; the rows that changed.

        A queue that was reset with the look is left for the next one.

        Raises:
            DataLoss: If ``failOnDataLoss`` is true and no operator has said where to go on.
            RocketMQError: If a broker was not reached: nothing must be planned before it is.
        """
        for queue in self._copied.keys() & rows.keys():
            # Its master is back: another time the slave is looked at anew.
            del self._copied[queue]
        suspects = [queue for queue in rows if self._is_suspect(rows[queue], snapshot.bounds[queue])]
        standings = {queue: self._standing(rows[queue]) for queue in suspects}
        places = {
            queue: standing.place_to_look_at()
            for queue, standing in standings.items()
            if standing.last is not None or standing.next_offset != snapshot.bounds[queue].min_offset
        }
        found = self._watch.look(places, snapshot.addresses) if places else {}
        reset = {queue for queue, each in found.items() if each.is_reset}
        lives = {
            queue: NewLife(rows[queue].epoch, start)
            for queue, each in found.items()
            if queue not in reset
            and (start := self._start(queue, standings[queue], each, snapshot)) is not None
        }
        begun = self._store.begin_lives(self._group, lives) if lives else {}
        passed = {
            queue: Passed(rows[queue].epoch, each.message.to_text())
            for queue, each in found.items()
            if standings[queue].last is None and each.message is not None and queue not in lives
        }
        if passed:
            self._store.note_passed(self._group, passed)
        for queue, row in begun.items():
            logger.warning(
                "offsets begin again, other messages are under them: the sink gets every one from here on "
                "group=%s %s generation=%d next_offset=%d was=%d",
                self._group,
                queue,
                row.generation,
                row.next_offset,
                rows[queue].next_offset,
            )
        self._check_bounds({**{queue: rows[queue] for queue in found}, **begun}, found, snapshot)
        self._seen = {queue: snapshot.bounds[queue] for queue in rows}
        # One that has begun is looked at once more, for the message before its beginning.
        self._looked |= {
            queue: rows[queue].epoch for queue in suspects if queue not in reset and queue not in begun
        }
        return begun

    def _standing(self, row: OffsetRow) -> Standing:
        last = LastMessage.from_text(row.state.last_message)
        # Right behind the newest message known a reset has moved nothing, or a life has begun. To a query that
        # is to fail on data loss a reset says that the loss is known.
        is_in_place = last is not None and last.queue_offset + 1 == row.next_offset and not self._fails
        return Standing(row.next_offset, last, row.was_reset and not is_in_place)

    def _is_suspect(self, row: OffsetRow, bounds: QueueBounds) -> bool:
        seen = self._seen.get(row.queue)
        return (
            self._looked.get(row.queue) != row.epoch
            or seen is None
            or bounds.min_offset < seen.min_offset
            or bounds.max_offset < seen.max_offset
            or not bounds.allow(row.next_offset)
        )

    def _start(self, queue: MessageQueue, standing: Standing, found: Found, snapshot: Snapshot) -> int | None:
        """Where the queue's next life begins; None while this one goes on."""
        bounds, last = found.bounds, standing.last
        beginning = new_life(standing, bounds, found.message)
        if beginning is None:
            return None
        if self._fails and not standing.was_reset:
            raise self._loss(queue, standing, found)
        if beginning is Beginning.STORED_LATER:
            assert last is not None
            address = snapshot.addresses[queue.broker_name]
            return self._watch.stored_after(queue, address, last.store_timestamp, bounds)
        if beginning is Beginning.BEHIND_LAST:
            assert last is not None
            return last.queue_offset + 1
        return min(max(standing.next_offset, bounds.min_offset), bounds.max_offset)

    def _loss(self, queue: MessageQueue, standing: Standing, found: Found) -> Exception:
        available = f"offsets {found.bounds.min_offset} to {found.bounds.max_offset}"
        if standing.next_offset > found.bounds.max_offset:
            return LogTailLost(str(queue), standing.next_offset, available)
        return OffsetsBeganAgain(str(queue), standing.place_to_look_at(), available)

    def _check_bounds(self, rows: Rows, found: Mapping[MessageQueue, Found], snapshot: Snapshot) -> None:
        """Refuse to plan by bounds that the queues have outgrown: it would look like lost messages."""
        for queue, row in rows.items():
            now = found[queue].bounds
            if now.allow(row.next_offset) and not snapshot.bounds[queue].allow(row.next_offset):
                raise BrokerOffsetUnavailable(
                    f"Group {self._group}, {queue}: its offsets moved while they were looked at, to "
                    f"{now.min_offset} to {now.max_offset}. It is planned with the next look."
                )


class CheckpointLives:
    """For a plain stream: looks at queues that were out of sight, as all are at the start, or went back.

    A checkpoint remembers no message, but when those that it has passed were stored at the latest: a later
    one in the place of the last of them is of another log, which may have grown past that place (row F4). So
    is a log that ends before it; its bounds alone end a query that is to fail on data loss.
    """

    def __init__(self, watch: LifeWatch, *, fail_on_data_loss: bool) -> None:
        self._watch = watch
        self._fails = fail_on_data_loss
        self._seen: frozenset[MessageQueue] = frozenset()
        """In sight at the last look."""
        self._begun: dict[MessageQueue, int] = {}
        """Where queues go on whose log is another one; until there is a plan that says so."""

    def follow(
        self, previous: Sequence[QueueRange], snapshot: Snapshot, stored_by_ms: int
    ) -> list[QueueRange]:
        """The positions of the plan before, or where queues go on whose offsets began again.

        Args:
            previous: The ranges of the plan before.
            snapshot: What the next plan is made from.
            stored_by_ms: When the messages before their ends were stored, at the latest; 0 if that is not
                known, so that nothing can be told.

        Raises:
            OffsetsBeganAgain: If some did, and ``failOnDataLoss`` is true.
            RocketMQError: If a broker did not say what it has; nothing must be planned before it does.
        """
        if stored_by_ms:
            self._look(previous, snapshot, stored_by_ms)
        self._seen = frozenset(snapshot.bounds)
        return [
            QueueRange.between(was.queue, self._begun[was.queue], self._begun[was.queue])
            if was.queue in self._begun
            else was
            for was in previous
        ]

    def planned(self) -> None:
        """There is a plan that goes on from there."""
        self._begun.clear()

    def _look(self, previous: Sequence[QueueRange], snapshot: Snapshot, stored_by_ms: int) -> None:
        places = {
            was.queue: was.end - 1
            for was in previous
            if (bounds := snapshot.bounds.get(was.queue)) is not None
            and was.queue not in self._begun
            and self._is_suspect(was, bounds, stored_by_ms)
        }
        for queue, found in self._watch.look(places, snapshot.addresses).items() if places else ():
            is_another = found.message is not None and found.message.store_timestamp > stored_by_ms
            available = f"offsets {found.bounds.min_offset} to {found.bounds.max_offset}"
            if is_another and self._fails:
                raise OffsetsBeganAgain(str(queue), places[queue], available)
            if not is_another and places[queue] < found.bounds.max_offset:
                continue
            address = snapshot.addresses[queue.broker_name]
            start = self._watch.stored_after(queue, address, stored_by_ms, found.bounds)
            self._begun[queue] = start
            logger.warning(
                "offsets begin again, other messages are under them %s next_offset=%d was=%d, the broker has %s",
                queue,
                start,
                places[queue] + 1,
                available,
            )

    def _is_suspect(self, was: QueueRange, bounds: QueueBounds, stored_by_ms: int) -> bool:
        if was.end > bounds.max_offset:
            return not self._fails
        is_new_there = not 0 < bounds.last_update_timestamp <= stored_by_ms
        return was.queue not in self._seen and was.end > bounds.min_offset and is_new_there
