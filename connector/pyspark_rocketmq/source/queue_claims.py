"""Claims queues in the offset store for one member of a group, at the offsets where the group has come to."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from pyspark_rocketmq.consume.positions import PassedOffsets
from pyspark_rocketmq.group.broker_offsets import Addresses, BrokerOffsets
from pyspark_rocketmq.model import MessageQueue, is_retry_topic
from pyspark_rocketmq.offsets.store import NO_BATCH, OffsetRow, OffsetStore, QueueCommit
from pyspark_rocketmq.options.positions import QueuePositions
from pyspark_rocketmq.source.cluster_view import ClusterView, Snapshot

logger = logging.getLogger(__name__)

Rows = Mapping[MessageQueue, OffsetRow]


class QueueClaims:
    """What happens between the grant of a queue and its first plan (C3).

    With ``broker_offsets`` the group may be a mixed one; without, as for a broadcasting consumer, the store
    is all.
    """

    def __init__(
        self,
        *,
        consumer_group: str,
        client_id: str,
        store: OffsetStore,
        view: ClusterView,
        default_start: QueuePositions,
        broker_offsets: BrokerOffsets | None,
    ) -> None:
        """The arguments are those of ``GroupProgress``."""
        self._group = consumer_group
        self._client_id = client_id
        self._store = store
        self._view = view
        self._default_start = default_start
        self._broker_offsets = broker_offsets
        self._told: dict[MessageQueue, int] = {}
        """The epoch of the reset that the queue's broker was told of."""
        self._passed = PassedOffsets()

    def note(self, rows: Rows, snapshot: Snapshot, now_s: float) -> None:
        """Be told where the queues stand that may be planned, and which brokers answer."""
        if self._broker_offsets is None:
            return
        answering = snapshot.addresses.keys() - snapshot.unreachable.keys()
        self._passed.note({queue: row.next_offset for queue, row in rows.items()}, answering, now_s)

    def claim(
        self, new: Collection[MessageQueue], rows: Rows, snapshot: Snapshot
    ) -> dict[MessageQueue, OffsetRow]:
        """Claim the held queues ``new``; their rows, without topics where the group cannot begin yet.

        Raises:
            BrokerOffsetUnavailable: If a broker did not tell the group's offset. Nothing was claimed.
        """
        known: Mapping[MessageQueue, int] | None = None
        if self._broker_offsets is not None:
            known = self._broker_offsets.read(new, snapshot.addresses)
            known = self._without_forgotten(known, rows, snapshot.addresses)
        at_broker = known or {}
        starts = self._starts([queue for queue in new if queue not in rows], rows, at_broker, snapshot)
        ready = {queue: starts.get(queue, 0) for queue in sorted(new) if queue in rows or queue in starts}
        if not ready:
            return {}
        claimed = self._store.claim(self._group, self._client_id, ready, at_brokers=known)
        for queue, row in claimed.items():
            before = rows.get(queue)
            if before is not None and before.next_offset != row.next_offset == at_broker.get(queue):
                # Forward a Java member has consumed; back somebody has reset the group while nobody of it was
                # there.
                logger.log(
                    logging.INFO if row.next_offset > before.next_offset else logging.WARNING,
                    "offset at the broker followed, another has put it there group=%s %s stored=%d "
                    "broker_offset=%d",
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
        return claimed

    def _without_forgotten(
        self, known: Mapping[MessageQueue, int], rows: Rows, addresses: Addresses
    ) -> Mapping[MessageQueue, int]:
        """``known`` without offsets a broker fell back to in a crash; it gets the newer ones again."""
        forgotten = {
            queue: rows[queue].next_offset
            for queue, offset in known.items()
            if queue in rows and offset < rows[queue].next_offset and self._passed.has(queue, offset)
        }
        if not forgotten or self._broker_offsets is None:
            return known
        for queue, offset in forgotten.items():
            logger.warning(
                "broker has forgotten the group's last offset, which is shown to it again group=%s %s "
                "stored=%d broker_offset=%d",
                self._group,
                queue,
                offset,
                known[queue],
            )
        self._broker_offsets.write(forgotten, addresses)
        return {**known, **forgotten}

    def tell_resets(self, rows: Rows, addresses: Addresses) -> None:
        """Have the brokers follow each reset of a held queue before anything is consumed from there.

        Otherwise the broker's offset would look like another's at the next claim.

        Raises:
            BrokerOffsetUnavailable: If a broker was not reached: the queue must not be planned.
        """
        if self._broker_offsets is None:
            return
        news = {
            queue: row
            for queue, row in rows.items()
            if row.was_reset and self._told.get(queue) != row.epoch and queue.broker_name in addresses
        }
        if news:
            self._broker_offsets.write({queue: row.next_offset for queue, row in news.items()}, addresses)
            told = [
                QueueCommit(queue=queue, epoch=row.epoch, next_offset=row.next_offset, is_shown=True)
                for queue, row in news.items()
            ]
            self._store.commit(self._group, told, query_id="", batch_id=NO_BATCH)
            self._told |= {queue: row.epoch for queue, row in news.items()}

    def _starts(
        self,
        unknown: Collection[MessageQueue],
        rows: Rows,
        at_broker: Mapping[MessageQueue, int],
        snapshot: Snapshot,
    ) -> dict[MessageQueue, int]:
        """Where queues without a row begin, without those of which that cannot be said yet.

        Where messages that were given back come again the group begins with the first, whatever the options
        say: each of them has failed in this very group
        (``RebalancePushImpl.computePullFromWhereWithException``; for CONSUME_FROM_TIMESTAMP Java begins at
        the end there, and loses what was given back before it looked).
        """
        begun = {queue.topic for queue in (*rows, *at_broker)}
        nobodys = [queue for queue in unknown if queue not in at_broker]
        by_option = [
            queue for queue in nobodys if queue.topic not in begun and not is_retry_topic(queue.topic)
        ]
        starts = {queue: snapshot.bounds[queue].min_offset for queue in set(nobodys).difference(by_option)}
        if by_option and snapshot.unreachable:
            # Where a group begins is decided once, for all queues: those of a broker that comes later would
            # look like queues made later, which begin at their earliest offset (A2).
            logger.warning(
                "group=%s begins in %s when all brokers answer; waiting for %s",
                self._group,
                ", ".join(sorted({queue.topic for queue in by_option})),
                ", ".join(sorted(snapshot.unreachable)),
            )
        elif by_option:
            starts |= self._beginning(by_option, snapshot)
        return starts | {queue: at_broker[queue] for queue in unknown if queue in at_broker}

    def _beginning(self, by_option: Collection[MessageQueue], snapshot: Snapshot) -> dict[MessageQueue, int]:
        """Where a new group begins, stored at the brokers of a topic before any queue is claimed.

        Members that begin at the same time share the queues between them: whoever comes second would take its
        own for queues made later. The same goes for a Java member with other ideas of where to begin.
        """
        if self._broker_offsets is None:
            positions = self._view.starting_positions(snapshot, by_option, self._default_start)
            self._tell_passed_over(positions, snapshot)
            return positions
        topics = {queue.topic for queue in by_option}
        queues = [queue for queue in snapshot.bounds if queue.topic in topics]
        known = self._broker_offsets.read(queues, snapshot.addresses)
        undecided = [queue for queue in queues if queue not in known]
        positions = self._view.starting_positions(snapshot, undecided, self._default_start)
        self._broker_offsets.write(positions, snapshot.addresses)
        self._tell_passed_over(positions, snapshot)
        decided = known | positions
        return {queue: decided[queue] for queue in by_option}

    def _tell_passed_over(self, positions: Mapping[MessageQueue, int], snapshot: Snapshot) -> None:
        """Say that a new group does not begin with the first message, which users wait for in vain."""
        messages = sum(offset - snapshot.bounds[queue].min_offset for queue, offset in positions.items())
        if messages <= 0:
            return
        logger.warning(
            "group %s is new to %s and begins behind the first message, as consumeFromWhere or "
            "startingOffsets says (RocketMQ's default: at the end): it passes over %d stored messages. To "
            "consume them, stop the query and reset the group's offsets to the earliest (offsets reset --to "
            "earliest)",
            self._group,
            ", ".join(sorted({queue.topic for queue in positions})),
            messages,
        )
