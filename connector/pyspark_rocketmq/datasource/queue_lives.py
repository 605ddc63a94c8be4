"""Begins the next life of a queue whose offsets began again: the one place where that is decided on, whatever moved them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from pyspark_rocketmq.consume.lives import Beginning, LastMessage, Standing, new_life
from pyspark_rocketmq.datasource.cluster_view import Snapshot
from pyspark_rocketmq.datasource.life_watch import Found, LifeWatch
from pyspark_rocketmq.errors import BrokerOffsetUnavailable, LogTailLost, OffsetsBeganAgain
from pyspark_rocketmq.model import MessageQueue, QueueBounds
from pyspark_rocketmq.offsets.store import NewLife, OffsetRow, OffsetStore, Passed

logger = logging.getLogger(__name__)

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

    def resets(self) -> dict[MessageQueue, int]:
        """Where operators want queues: brokers have told so with :meth:`follow`, failed or not, and have forgotten it."""
        return self._watch.resets()

    def follow(self, rows: Rows, snapshot: Snapshot) -> dict[MessageQueue, OffsetRow]:
        """Begin a new life of those of ``rows``, all held and in sight, that need one; the rows that were changed.

        A queue that was reset with the look is left for the next one.

        Raises:
            DataLoss: If ``failOnDataLoss`` is true and no operator has said where to go on.
            RocketMQError: If a broker was not reached: nothing must be planned before it is.
        """
        suspects = [queue for queue in rows if self._is_suspect(rows[queue], snapshot.bounds[queue])]
        standings = {queue: _standing(rows[queue]) for queue in suspects}
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
                "offsets begin again, other messages are under them: the sink gets every one from here on group=%s %s "
                "generation=%d next_offset=%d was=%d",
                self._group,
                queue,
                row.generation,
                row.next_offset,
                rows[queue].next_offset,
            )
        self._check_bounds({**{queue: rows[queue] for queue in found}, **begun}, found, snapshot)
        self._seen = {queue: snapshot.bounds[queue] for queue in rows}
        self._looked |= {
            queue: begun[queue].epoch if queue in begun else rows[queue].epoch
            for queue in suspects
            if queue not in reset
        }
        return begun

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
        """Refuse to plan by bounds that the queues have outgrown since: that would look like lost messages."""
        for queue, row in rows.items():
            now = found[queue].bounds
            if now.allow(row.next_offset) and not snapshot.bounds[queue].allow(row.next_offset):
                raise BrokerOffsetUnavailable(
                    f"Group {self._group}, {queue}: its offsets moved while they were looked at, to "
                    f"{now.min_offset} to {now.max_offset}. It is planned with the next look."
                )


def _standing(row: OffsetRow) -> Standing:
    return Standing(row.next_offset, LastMessage.from_text(row.last_message), row.was_reset)
