"""Turns the options for the start and the end of reading into an offset of each queue.

A position that an option gives as a time, or as a group's progress, is looked up at the brokers or in an
offset store.  A broker whose master is down answers only for the messages that its slave certainly has.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.cluster import Cluster, at_queues
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.consume.generations import change_found, next_generation
from pyspark_rocketmq.consume.positions import (
    ending_positions,
    first_stored_at,
    starting_positions,
    timed_positions,
    unknown_queue_problems,
)
from pyspark_rocketmq.consume.slave_reads import ends_in_doubt, offsets_in_doubt, starts_in_doubt
from pyspark_rocketmq.delta.storage_options import StorageOptions
from pyspark_rocketmq.display import masked
from pyspark_rocketmq.errors import LogTailLost, OffsetsBeganAgain, OptionError, TransportError
from pyspark_rocketmq.group.broker_offsets import RemoteBrokerOffsets
from pyspark_rocketmq.model import MessageQueue, QueueBounds
from pyspark_rocketmq.offsets.open import open_offset_store
from pyspark_rocketmq.offsets.store import OffsetKey, OffsetRow
from pyspark_rocketmq.options.connection import PLAIN_SOURCE_GROUP
from pyspark_rocketmq.options.positions import (
    COMMITTED,
    EARLIEST_OFFSET,
    LATEST,
    NoMatchStrategy,
    QueuePositions,
)
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.options.store_spec import StoreKind, StoreSpec
from pyspark_rocketmq.source.cluster_view import Snapshot
from pyspark_rocketmq.source.message_lookup import found_at, stored_ms_at
from pyspark_rocketmq.source.queue_generations import standing_of
from pyspark_rocketmq.stored_values import LastMessage

logger = logging.getLogger(__name__)


class OptionPositions:
    """The starting and ending positions that the options of one query give."""

    def __init__(self, options: ReadOptions, brokers: BrokerClient, default_start: QueuePositions) -> None:
        """Use ``default_start`` for queues if ``options`` give no start."""
        self._options = options
        self._brokers = brokers
        self._default_start = default_start

    @classmethod
    def of(
        cls, options: ReadOptions, pool: ChannelPool, clock: Clock, default_start: QueuePositions
    ) -> OptionPositions:
        """Return the positions of ``options``; the brokers of their cluster are asked for them."""
        return cls(options, Cluster.of(options, clock, pool=pool).brokers(), default_start)

    def starts(self, snapshot: Snapshot, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        """Return where each of ``queues`` begins if it has no stored offset.

        Raises:
            OptionError: If ``failOnDataLoss`` is true and an option names offsets or queues that do not
                exist, or if a queue has no message at or after its time and
                ``startingOffsetsByTimestampStrategy`` is ``error``.
            DataLoss: If ``failOnDataLoss`` is true and an option names a group whose messages are gone.
            TransportError: If only a master that is down can answer.
            RocketMQError: If a broker or the offset store that must be asked does not answer or refuses.
        """
        times = self._options.starting_times()
        if times is not None:
            return self._starting_at(times, snapshot, queues)
        wanted: QueuePositions = self._options.starting_offsets or self._default_start
        if wanted == COMMITTED:
            committed = self._committed(self._options.starting_group, snapshot, queues)
            wanted = QueuePositions(EARLIEST_OFFSET, committed)
        doubts = offsets_in_doubt(wanted, _restrict(snapshot.slave_bounds, queues))
        _await_masters(doubts, "startingOffsets")
        positions, problems = starting_positions(wanted, {queue: snapshot.bounds[queue] for queue in queues})
        self._refuse("startingOffsets", wanted, problems, snapshot)
        return positions

    def ends(self, snapshot: Snapshot) -> dict[MessageQueue, int]:
        """Return where a batch read of each queue ends (exclusive).

        Raises:
            OptionError: If ``failOnDataLoss`` is true and an option names offsets or queues that do not
                exist.
            DataLoss: If ``failOnDataLoss`` is true and an option names a group whose messages are gone.
            TransportError: If only a master that is down can answer.
            RocketMQError: If a broker or the offset store that must be asked does not answer or refuses.
        """
        times = self._options.ending_times()
        if times is not None:
            ends, _ = self._times(times, snapshot, snapshot.bounds.keys())
            doubts = ends_in_doubt(times, ends, _restrict(snapshot.slave_bounds, ends))
            _await_masters(doubts, "endingOffsetsByTimestamp")
            self._refuse("endingOffsetsByTimestamp", times, (), snapshot)
            return ends
        wanted = self._options.ending_offsets or LATEST
        if self._options.ends_at_group():
            # A queue without an offset ends at its beginning: the group has consumed nothing of it.
            committed = self._committed(self._options.ending_group, snapshot, snapshot.bounds.keys())
            wanted = QueuePositions(EARLIEST_OFFSET, committed)
        _await_masters(offsets_in_doubt(wanted, snapshot.slave_bounds), "endingOffsets")
        ends, problems = ending_positions(wanted, snapshot.bounds)
        self._refuse("endingOffsets", wanted, problems, snapshot)
        return ends

    def _starting_at(
        self, times: QueuePositions, snapshot: Snapshot, queues: Collection[MessageQueue]
    ) -> dict[MessageQueue, int]:
        positions, unmatched = self._times(times, snapshot, queues)
        doubts = starts_in_doubt(times, positions, _restrict(snapshot.slave_bounds, positions))
        _await_masters(doubts, "startingOffsetsByTimestamp")
        if self._options.starting_offsets_by_timestamp_strategy is NoMatchStrategy.ERROR and unmatched:
            raise OptionError(
                tuple(
                    f"{queue} has no message stored at or after {times.wanted(queue)} (ms since the epoch), "
                    "where reading is to begin; correct the time, or set "
                    "startingOffsetsByTimestampStrategy=latest to begin with the next one."
                    for queue in unmatched
                )
            )
        self._refuse("startingOffsetsByTimestamp", times, (), snapshot)
        return positions

    def _times(
        self, times: QueuePositions, snapshot: Snapshot, queues: Collection[MessageQueue]
    ) -> tuple[dict[MessageQueue, int], tuple[MessageQueue, ...]]:
        """Return the positions by time, and the queues without a message stored at or after their time."""
        wanted = {queue: times.wanted(queue) for queue in queues}
        found = at_queues(
            [queue for queue, time_ms in wanted.items() if time_ms >= 0],
            lambda queue: self._searched(queue, wanted[queue], snapshot),
        )
        positions, unmatched = timed_positions(found, snapshot.bounds)
        for queue, word in wanted.items():
            if word < 0:
                bounds = snapshot.bounds[queue]
                positions[queue] = bounds.min_offset if word == EARLIEST_OFFSET else bounds.max_offset
        return positions, unmatched

    def _searched(self, queue: MessageQueue, time_ms: int, snapshot: Snapshot) -> int:
        """Return the offset of the first message stored at or after a time; the queue's end if none was."""
        address = snapshot.addresses[queue.broker_name]
        group = self._options.consumer_group or PLAIN_SOURCE_GROUP
        found = self._brokers.search_offset(address, queue, time_ms)

        def stored_ms(offset: int) -> int | None:
            return stored_ms_at(self._brokers, group, queue, offset, address)

        return first_stored_at(time_ms, found, snapshot.bounds[queue], stored_ms)

    def _committed(
        self, group: str | None, snapshot: Snapshot, queues: Collection[MessageQueue]
    ) -> dict[MessageQueue, int]:
        """Return the committed offsets of a group that an option names, for the queues that have one."""
        assert group is not None, "options that say 'group' name it"
        store = self._options.offset_store
        if store is not None and StoreSpec.parse(store).kind is not StoreKind.BROKER:
            name = str(OffsetKey(self._options.namespace or "", group, None))
            storage = StorageOptions.parse(self._options.storage_secrets)
            rows = open_offset_store(store, storage=storage).read(name)
            found = at_queues(
                [queue for queue in queues if queue in rows],
                lambda queue: self._in_this_log(rows[queue], snapshot),
            )
        else:
            # A slave's copy of the group's offsets may be some seconds old.
            _await_masters(sorted(_restrict(snapshot.slave_bounds, queues)), f"the offset of group {group}")
            known = RemoteBrokerOffsets(group, self._brokers).read(queues, snapshot.addresses)
            found = {queue: offset for queue, offset in known.items() if offset >= 0}
        if queues and not found and len(queues) == len(snapshot.bounds):
            logger.warning(
                "group %s has no offset in any of %d queue(s), so its position is before their first "
                "messages; check the group's name. The offsets were looked up %s",
                group,
                len(queues),
                "at the brokers" if store is None else f"in offsetStore={masked(store)}",
            )
        return found

    def _in_this_log(self, row: OffsetRow, snapshot: Snapshot) -> int:
        """Return the offset at which a group has stopped in a queue.

        This is the group's stored offset. If the queue has another log than the group has consumed, it is the
        first offset of which the group has not consumed the message.

        Raises:
            OffsetsBeganAgain, LogTailLost: If the log is another one, and ``failOnDataLoss`` is true.
            TransportError: If the master, which is down, may have the messages that a slave lacks.
            RocketMQError: If the broker does not answer or refuses.
        """
        queue, bounds = row.queue, snapshot.bounds[row.queue]
        standing = standing_of(row, was_checked=False, fails=self._options.fail_on_data_loss)
        change = change_found(
            standing.messages, bounds, lambda offset: self._message_at(queue, offset, snapshot)
        )
        following = None if change is None else next_generation(standing, bounds, change)
        if following is None or following.is_later or following.next_offset == row.next_offset:
            return row.next_offset
        _await_masters([*_restrict(snapshot.slave_bounds, [queue])], "the offset of a group")
        if following.is_wanted:
            return following.next_offset
        if self._options.fail_on_data_loss and row.next_offset > bounds.max_offset:
            raise LogTailLost(str(queue), row.next_offset, f"offsets {bounds.extent}")
        if self._options.fail_on_data_loss:
            raise OffsetsBeganAgain(str(queue), standing.place_to_look_at(), f"offsets {bounds.extent}")
        logger.warning(
            "offsets begin again with other messages since a group consumed them %s next_offset=%d was=%d, "
            "the broker has offsets %s",
            queue,
            following.next_offset,
            row.next_offset,
            bounds.extent,
        )
        return following.next_offset

    def _message_at(self, queue: MessageQueue, offset: int, snapshot: Snapshot) -> LastMessage | None:
        group = self._options.consumer_group or PLAIN_SOURCE_GROUP
        address = snapshot.addresses[queue.broker_name]
        found = found_at(self._brokers, group, queue, offset, address)
        if found.is_reset:
            # A reset is reported only once: the next answer is the message.
            found = found_at(self._brokers, group, queue, offset, address)
        return found.message

    def _refuse(
        self, option: str, positions: QueuePositions, problems: Sequence[str], snapshot: Snapshot
    ) -> None:
        """Raise OptionError for the problems of an option, if ``failOnDataLoss`` is true.

        A queue in ``positions`` that does not exist is a problem, too, unless queues may be missing in
        ``snapshot``.
        """
        found = [*problems]
        if not snapshot.out_of_sight:
            found += unknown_queue_problems(positions, snapshot.bounds.keys(), option)
        if found and self._options.fail_on_data_loss:
            raise OptionError(tuple(found))


def _await_masters(queues: Sequence[MessageQueue], wanted: str) -> None:
    """Raise a retryable TransportError if there are ``queues``: their masters, which are down, must answer.

    ``wanted`` names for the error's text what only a master can answer.
    """
    if queues:
        raise TransportError(
            queues[0].broker_name,
            f"the master is down, and only the master can answer {wanted} for {queues[0]}: its slave may "
            "lack the newest messages and offsets. Start the master; or, in a batch read, take what the "
            "slave has, with startingOffsets=earliest and endingOffsets=latest",
        )


def _restrict(
    bounds: Mapping[MessageQueue, QueueBounds], queues: Collection[MessageQueue]
) -> dict[MessageQueue, QueueBounds]:
    return {queue: found for queue, found in bounds.items() if queue in queues}
