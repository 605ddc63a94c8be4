"""Decode the messages fetched for ranges: each offset of a range once, in order; every gap is reported.

The messages of a range come in ascending queue offset, each once; a message that is missing causes an error
or a log entry, except with a filter and in a compacted topic.  :mod:`~pyspark_rocketmq.source.fetcher` sends
the pulls, and :mod:`~pyspark_rocketmq.source.range_arrivals` drives both.

Messages are decoded into Arrow columns, which takes about a millisecond for each call, even for one message.
So few messages are decoded one by one, into objects, if the caller accepts objects. All unusual cases are
left to the columns, so that both ways have the same result.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from operator import lt
from typing import Any, Final, NamedTuple, TypeAlias, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.consume.fetch_window import FetchedChunks, QueueReset, RangeWindow, TailLost
from pyspark_rocketmq.consume.generations import (
    NO_WITNESSES,
    NewestStored,
    shows_another_log,
    shows_later_log,
)
from pyspark_rocketmq.consume.metrics import ConsumeMetrics
from pyspark_rocketmq.consume.not_now import waits
from pyspark_rocketmq.errors import (
    BrokerError,
    DataLoss,
    RemoteProtocolError,
    RocketMQError,
    SystemBusy,
    UndecodableMessage,
)
from pyspark_rocketmq.model import QUEUE_OFFSET, BrokerAddress, MessageExt, PulledBody
from pyspark_rocketmq.retry import UNTIL_DEADLINE, call_with_retry
from pyspark_rocketmq.source.message_lookup import Found, found_at, found_in
from pyspark_rocketmq.source.ranges import QueuePartition, brokers_of
from pyspark_rocketmq.source.schema import (
    NOTHING_READ,
    Arrival,
    EndReason,
    RangeEnd,
    described_by,
    shown_to_listener,
    with_origin_topics,
)
from pyspark_rocketmq.spark.stored_messages import message_in
from pyspark_rocketmq.stored_values import LastMessage
from pyspark_rocketmq.wire.columnar.columns import have_usual_times
from pyspark_rocketmq.wire.columnar.decode import (
    Undecodable,
    decode_in_turn,
    decode_together,
    row_of,
    rows_of,
)
from pyspark_rocketmq.wire.messages import MIN_STORED_BYTES, decode_messages
from pyspark_rocketmq.wire.subscription import build_subscription

logger = logging.getLogger(__name__)

T = TypeVar("T")
_PATIENCE_S: Final = 10.0
"""Maximum time for which a failing broker is asked again about a range's log or topic, in seconds."""
_OBJECT_BYTES: Final = 2048
"""Assumed memory of a message object without its body, in bytes, if it has a few properties."""
_LARGE_COLUMNS: Final = ("body", "properties")
"""Columns whose rows can take any memory."""
_ROW_BYTES: Final = 256
"""Assumed memory of a row's other columns, in bytes."""
FEW: Final = 64
"""Minimum number of messages, arrived together for a range, that are decoded in columns; fewer become objects
if the caller accepts objects."""
_TOTAL: Final = struct.Struct(">I")
"""Total size of a message, with which it begins."""

Messages: TypeAlias = "pa.RecordBatch | list[MessageExt]"
"""Messages in the columns of the source, or as objects if they are few and the caller accepts objects."""


def _memory_of(messages: Messages) -> int:
    """Return about how much memory messages take, in bytes.

    A row's small columns count as ``_ROW_BYTES``.  Measuring them, too, with ``RecordBatch.nbytes``, would
    take a tenth as long as reading the messages does.
    """
    if isinstance(messages, list):
        return sum([len(message.body) + _OBJECT_BYTES for message in messages])
    names = messages.schema.names
    large = sum([messages.column(name).nbytes for name in _LARGE_COLUMNS if name in names])
    return int(large + messages.num_rows * _ROW_BYTES)


def _body_bytes(messages: Sequence[MessageExt]) -> int:
    return sum([len(message.body) for message in messages])


class DecodedChunks(NamedTuple):
    """The next messages of one range, decoded from the bodies of pulls (:class:`FetchedChunks`)."""

    range_index: int
    messages: Iterable[Messages | Undecodable]
    """The messages, without views of a receive buffer."""
    is_last: bool
    failure: RocketMQError | None
    reached: int


def decode_chunks(
    partitions: Sequence[QueuePartition], together: Sequence[FetchedChunks], *, few_as_objects: bool = False
) -> list[DecodedChunks]:
    """Decode bodies of one broker and one kind of range together; if that fails, range by range.

    A range that still fails is decoded body by body.

    ``few_as_objects``: decode the messages of a range into objects if fewer than ``FEW`` have arrived, and
    none is malformed or has a time that a column cannot hold.
    """
    messages: dict[int, Iterable[Messages | Undecodable]] = {}
    alike: dict[tuple[Any, ...], dict[int, list[PulledBody]]] = {}
    for index, chunks, *_ in together:
        if chunks:
            partition = partitions[index]
            bodies = [chunk.body for chunk in chunks]
            few = _few_in(bodies, partition) if few_as_objects else None
            if few is not None:
                messages[index] = (few,)
                continue
            # All that the arguments depend on: ranges of one task differ, as a retry topic's has all columns.
            settings = partition.settings
            key = (
                partition.planned.queue.broker_name,
                partition.subscription,
                partition.is_sql92,
                settings.columns,
                settings.property_columns,
            )
            alike.setdefault(key, {})[index] = bodies
    for (broker_name, *_), by_range in alike.items():
        wanted = _decode_args(partitions[next(iter(by_range))])
        decoded = decode_together(list(by_range.values()), broker_name, **wanted)
        for (index, of_range), found in zip(by_range.items(), decoded, strict=True):
            messages[index] = (
                decode_in_turn(list(map(bytes, of_range)), broker_name, **wanted)
                if isinstance(found, RocketMQError)
                else (found,)
            )
    return [
        DecodedChunks(index, messages.get(index, ()), is_last, failure, reached)
        for index, _, is_last, failure, reached in together
    ]


def _few_in(bodies: Sequence[PulledBody], partition: QueuePartition) -> list[MessageExt] | None:
    """Return the messages as objects; None if they must be decoded into columns.

    Columns are needed if the messages are not few, or if one of them is malformed or has a time that a column
    cannot hold.
    """
    if not _are_few(bodies):
        return None
    broker_name = partition.planned.queue.broker_name
    try:
        messages = [message for body in bodies for message in decode_messages(body, broker_name)]
    except RemoteProtocolError:
        return None
    if not have_usual_times(messages):
        return None
    if not partition.is_filtered:
        return messages
    tags = _decode_args(partition)["tags"]
    return messages if tags is None else [message for message in messages if message.tags in tags]


def _are_few(bodies: Sequence[PulledBody]) -> bool:
    """Return whether there are fewer than ``FEW`` messages, counted by the size that each of them states."""
    count = 0
    for body in bodies:
        at, last = 0, len(body) - _TOTAL.size
        while at <= last:
            at += max(MIN_STORED_BYTES, _TOTAL.unpack_from(body, at)[0])
            count += 1
            if count >= FEW:
                return False
    return True


class _DecodeArgs(TypedDict):
    """Arguments with which a partition's messages are decoded: wanted tags, columns and properties."""

    tags: frozenset[str] | None
    columns: tuple[str, ...] | None
    properties: tuple[str, ...]


def _decode_args(partition: QueuePartition) -> _DecodeArgs:
    tags: frozenset[str] = frozenset()
    if not partition.is_sql92:
        topic = partition.planned.queue.topic
        tags = build_subscription(topic, partition.subscription, sub_version=0).tags_set
    columns = partition.settings.columns
    if columns is not None and QUEUE_OFFSET not in columns:
        # Needed to follow the range; :meth:`RangeReader._in_columns` removes it.
        columns = (QUEUE_OFFSET, *columns)
    return _DecodeArgs(tags=tags or None, columns=columns, properties=partition.settings.property_columns)


class RangeReader:
    """Turns what was pulled of one range into its messages: each offset once; gaps are errors or logged."""

    def __init__(self, partition: QueuePartition) -> None:
        self.partition = partition
        self.is_done = False
        self._window: RangeWindow
        self._expected = partition.planned.start
        """The next queue offset to read."""
        self._reached = 0
        """Offset that the pulls have reached, with or without messages."""
        self._rows = 0
        self._body_bytes = 0
        # An open range has no largest size: its queue is put on hold when too many messages wait.
        self._most_bytes = None if partition.planned.has_open_end else partition.settings.max_bytes
        self._pulls, self._pull_ms = 0, 0.0
        self._replica_id: int | None = None
        """Id of the replica that has sent messages last; None if none has, as far as is counted."""
        self._is_window_counted = False
        self._stopped: EndReason | None = None
        """Why the range ends after the last message read: FULL, UNDECODABLE or ANOTHER_LOG. None if it does
        not end there."""
        self._is_pulled_again = False
        """Whether the rest of the window's chunks is dropped and pulled again, because it is unknown where
        the next message begins."""
        self._before = partition.pulled_again
        """The consumed message right before the range, by which the log is compared. None if no such message
        is known, and from the first message of the range on."""
        self._is_compared = False
        """Whether the log has that message, as far as its broker shows."""
        self._failure: RocketMQError | None = None
        """Error because of which this is not known; it ends the range."""
        self._unexplained = range(0)
        """Offsets of an inner batch that could not be decoded; gaps in it are not reported, because some of
        these offsets may have no message."""
        self._kind_unknown: RocketMQError | None = None
        """Error of the question whether the topic is compacted; None if it was answered or not asked."""

    def left(self) -> QueuePartition:
        """Return the partition with the rest of its range, which is still to be pulled."""
        planned = self.partition.planned
        if self._expected == planned.start and self._before == self.partition.pulled_again:
            return self.partition
        from_here = planned.starting_at(self._expected)
        return replace(self.partition, planned=from_here, witnesses=NO_WITNESSES)

    def look_up(self, patience: Deadline) -> Found:
        """Ask the range's broker what it has at the offset of the witness that must be looked up.

        Call this before the range is read, and only if there is such a witness (``ReadRange.looked_up``). A
        busy broker is asked again until ``patience`` is over.

        Raises:
            RocketMQError: If the broker does not answer, or refuses.
        """
        partition, consumed = self.partition, self.partition.looked_up
        assert consumed is not None
        place = partition.planned.queue, consumed.queue_offset, partition.address
        return call_with_retry(
            lambda: found_at(brokers_of(partition), partition.settings.consumer_group, *place),
            UNTIL_DEADLINE,
            patience,
            time.sleep,
            is_tried_again=lambda error: isinstance(error, SystemBusy),
        )

    def judge(self, found: Found | RocketMQError) -> RangeEnd | None:
        """Return an end if the range must not be read; None if it may be.

        ``found`` is what :meth:`look_up` has returned or raised. The range is not read if its queue has
        another log than the one of the witness, if its group was reset, or if the broker cannot be asked now.
        A slave that refuses counts as such a broker, since its master may answer later.

        Raises:
            RocketMQError: If ``found`` is an error that does not pass.
        """
        partition, planned = self.partition, self.partition.planned
        consumed, reset_to = partition.looked_up, None
        assert consumed is not None
        if isinstance(found, RocketMQError):
            if not (partition.is_slave or self._may_end_early(found)):
                raise found
            reason, why = _reason_of(found), str(found)
        else:
            if not found.is_reset and not shows_another_log(consumed, found.message, found.bounds):
                return None
            reset_to = found.reset_to
            reason = EndReason.EARLY if found.is_reset else EndReason.ANOTHER_LOG
            why = f"reset to {reset_to}" if found.is_reset else str(reason)
        logger.warning(
            "range not read, to be planned again %s from=%d: %s", planned.queue, planned.start, why
        )
        self.is_done = True
        end = replace(planned, end=planned.start)
        return RangeEnd(planned=end, rows=0, reset_to=reset_to, reason=reason)

    def begin(self, window: RangeWindow) -> None:
        """Use a fetcher's ``window`` from now on, which has the state and bounds of the range's pulls."""
        self._window = window
        self._is_pulled_again = self._is_window_counted = False

    @property
    def reached(self) -> int:
        """Queue offset below which every message has been yielded or need not be."""
        return max(self._expected, self._reached)

    @property
    def bounds(self) -> tuple[int, int] | None:
        """The queue's smallest offset and its end, from the newest answer; None before the first one."""
        return self._window.bounds

    def pieces(self, fetched: DecodedChunks) -> Iterator[Messages | RangeEnd]:
        """Yield the next messages of the range; after the last ones, if a group reads, the range's end."""
        for decoded in fetched.messages:
            if self._is_cut:
                break
            piece = self._piece(decoded)
            if len(piece):
                yield piece
        if not self._is_cut:
            self._reached = fetched.reached
        if fetched.is_last:
            yield from self._last(self._failure or fetched.failure)

    @property
    def _is_cut(self) -> bool:
        """Whether the rest of what the window has pulled is dropped."""
        return self._is_pulled_again or self._stopped is not None or self._failure is not None

    def _piece(self, decoded: Messages | Undecodable) -> Messages:
        if isinstance(decoded, list):
            if self._is_usual(decoded):
                return self._as_objects(decoded)
            decoded = rows_of(decoded)
        if isinstance(decoded, Undecodable):
            decoded = self._kept(decoded)
        if self._before is not None:
            decoded = self._of_same_log(decoded, self._before)
        messages = self._within_size(_wanted(decoded, self.partition, self._expected))
        if not messages.num_rows:
            return messages
        self._follow(messages)
        return self._in_columns(messages)

    def _is_usual(self, messages: Sequence[MessageExt]) -> bool:
        """Return whether messages need no special care, so that they may stay objects.

        Usual messages belong to the range, are in ascending order, and keep the bodies of the whole range
        below the limit in bytes. No messages are usual while the reader still has to compare the message
        before the range with the one that was consumed there, which shows whether the queue's log is another.
        """
        offsets = [self._expected - 1, *[message.queue_offset for message in messages]]
        limit = self._most_bytes
        return (
            self._before is None
            and all(map(lt, offsets, offsets[1:]))
            and offsets[-1] < self.partition.planned.end
            and (limit is None or self._body_bytes + _body_bytes(messages) < limit)
        )

    def _as_objects(self, messages: list[MessageExt]) -> list[MessageExt]:
        if messages and messages[-1].queue_offset + 1 > self._expected + len(messages):
            for message in messages:
                self._report_gap_before(message.queue_offset)
                self._expected = message.queue_offset + 1
        else:
            self._expected += len(messages)
        self._rows += len(messages)
        if self._most_bytes is not None:
            self._body_bytes += _body_bytes(messages)
        return shown_to_listener(
            messages,
            self.partition.planned.queue,
            self.partition.settings.namespace,
            described_by(self.bounds),
        )

    def stopped(self) -> RangeEnd:
        """End the range after what has been read, because its task is over; call this once."""
        self.is_done = True
        self._count_pulls()
        return self._range_end(self.reached, EndReason.STOPPED)

    def arrival(self, pieces: Sequence[Messages | RangeEnd] = ()) -> Arrival:
        """Return pieces of the range that came together as one arrival; the last may be the range's end."""
        end = pieces[-1] if pieces and isinstance(pieces[-1], RangeEnd) else None
        messages = [piece for piece in pieces if not isinstance(piece, RangeEnd)]
        planned, reached, bounds = self.partition.planned, self.reached, self.bounds
        if not self.partition.settings.is_group_read:
            # Nobody uses the rest, which takes a twentieth of the time of reading.
            return Arrival(planned, messages, end, reached, bounds)
        nbytes = sum(map(_memory_of, messages))
        reading = NOTHING_READ if end is not None else self._reading()
        return Arrival(planned, messages, end, reached, bounds, nbytes, reading)

    def _reading(self) -> ConsumeMetrics:
        """Return statistics of reading the range so far: messages, pulls, and the time of the pulls."""
        pulls, pull_ms = self._pulls, self._pull_ms
        if not self._is_window_counted:
            pulls += self._window.answers
            pull_ms += self._window.answered_after_s * 1000
        return ConsumeMetrics(pulled=self._rows, pulls=pulls, pull_ms=pull_ms)

    def _last(self, failure: RocketMQError | None) -> Iterator[RangeEnd]:
        self._count_pulls()
        is_read = self._expected >= self.partition.planned.end
        if self._is_pulled_again and not is_read and not isinstance(failure, QueueReset):
            return
        self.is_done = True
        end, reason = self._end(failure)
        if self.partition.newest is not None:
            self._check_log(self.partition.newest)
        if self.partition.settings.is_group_read:
            yield self._range_end(end, reason, failure)

    def _check_log(self, newest: NewestStored) -> None:
        """Check that the queue still has the log that was planned, so that all messages read are of that log.

        An error of the broker is only logged. If the master does not answer, and a replica was read, the
        replica is asked: it may have become the master without the newest messages.

        Raises:
            DataLoss: If the queue has another log, and ``failOnDataLoss`` is true.
        """
        partition = self.partition
        queue, address = partition.planned.queue, partition.address
        found: Found | None
        try:
            found = self._newest_now(newest.queue_offset)
        except RocketMQError as error:
            if self._replica_id is None:
                logger.info("not known whether the queue still has the planned log %s: %s", queue, error)
                return
            address = partition.replicas[self._replica_id]
            found = self._found_at_replica(newest.queue_offset, address, error)
        if found is None or not shows_later_log(newest, found.message, found.bounds):
            return
        loss = DataLoss(
            f"{queue} at {address}",
            newest.queue_offset,
            "another log than when the read was planned: the topic was deleted and created again, or a slave "
            "that lacked the newest messages has become master",
            "The rows that were read may belong to both logs. Run the query again, or set "
            "failOnDataLoss=false to keep these rows.",
        )
        if partition.settings.fail_on_data_loss:
            raise loss
        logger.warning("rows may be of two logs: %s", loss)

    def _newest_now(self, offset: int) -> Found:
        """Return what the broker has at ``offset``, which is the offset of the planned log's last message.

        The window has usually pulled this message. If that pull brought no answer, the broker is asked here.

        Raises:
            RocketMQError: If the broker does not answer, or refuses.
        """
        answer = self._window.newest_answer
        if answer is not None:
            return found_in(answer, self.partition.planned.queue, offset)
        return self._found_at(offset, self.partition.address)

    def _found_at(self, offset: int, address: BrokerAddress) -> Found:
        """Ask a broker what it has at ``offset``; try again for ten seconds at most.

        Raises:
            RocketMQError: If the broker does not answer, or refuses.
        """
        partition = self.partition
        brokers, group = brokers_of(partition), partition.settings.consumer_group
        return self._patiently(lambda: found_at(brokers, group, partition.planned.queue, offset, address))

    def _found_at_replica(self, offset: int, address: BrokerAddress, error: RocketMQError) -> Found | None:
        """Return what a replica has at ``offset``, while its master does not answer (``error``).

        If it does not show a message there, log a warning and return None: the replica may lag, and so does
        not prove another log.
        """
        planned = self.partition.planned
        try:
            found = self._found_at(offset, address)
        except RocketMQError as at_replica:
            shown = str(at_replica)
        else:
            if found.message is not None:
                return found
            shown = found.available
        logger.warning(
            "not known whether all rows are of the planned log: a replica was read, and does not show the "
            "message to compare %s planned=%s offset=%d replica=%s: %s; master: %s",
            planned.queue,
            planned.extent,
            offset,
            address,
            shown,
            error,
        )
        return None

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Return the answer of ``ask``; try again for ten seconds at most if its error may pass."""
        clock = SystemClock()
        patience = Deadline.after(clock, min(self.partition.settings.retry_timeout_s, _PATIENCE_S))
        return call_with_retry(ask, UNTIL_DEADLINE, patience, time.sleep)

    def _count_pulls(self) -> None:
        self._pulls += self._window.answers
        self._pull_ms += self._window.answered_after_s * 1000
        if self._window.replica_id is not None:
            self._replica_id = self._window.replica_id
        self._is_window_counted = True

    def _range_end(self, end: int, reason: EndReason, failure: RocketMQError | None = None) -> RangeEnd:
        return RangeEnd(
            planned=replace(self.partition.planned, end=end),
            rows=self._rows,
            reset_to=failure.target if isinstance(failure, QueueReset) else None,
            pulls=self._pulls,
            pull_ms=self._pull_ms,
            bounds=self.bounds,
            reason=reason,
        )

    def _kept(self, undecodable: Undecodable) -> pa.RecordBatch:
        """Return an undecodable message's row, or an empty batch.

        The batch is empty if the message is not in the rest of the range, or may be the one just before the
        range. It is also empty if a group reads and such messages are not kept: this call ends the range
        before the message.

        Raises:
            UndecodableMessage: If such messages are not kept, and this one is at the start of the range or no
                group reads.
        """
        partition, expected = self.partition, self._expected
        planned, wanted = partition.planned, _decode_args(partition)
        offsets = undecodable.queue_offsets(expected, planned.end, is_filtered=partition.is_filtered)
        # An inner batch may begin before the offset pulled from.
        queue_offset = max(offsets.start, expected)
        row = row_of(
            undecodable.shown(planned.queue, queue_offset),
            columns=wanted["columns"],
            properties=wanted["properties"],
        )
        if undecodable.stored is None and self._before is not None:
            # This may be the message before the range, which does not have to be decoded.
            self._pull_again()
            return row.slice(0, 0)
        if offsets.stop <= expected or queue_offset >= planned.end:
            return row.slice(0, 0)
        if not partition.settings.keeps_undecodable:
            error = UndecodableMessage(
                str(planned.queue),
                queue_offset,
                undecodable.reason,
                has_group=partition.settings.is_group_read,
            )
            if not partition.settings.is_group_read or queue_offset == planned.start:
                raise error
            self._report_gap_before(queue_offset)
            logger.warning("range ended before a message that cannot be decoded: %s", error)
            self._expected, self._stopped = queue_offset, EndReason.UNDECODABLE
            self._window.stop()
            return row.slice(0, 0)
        logger.warning(
            "message that cannot be decoded is kept as it is stored %s offset=%d: %s",
            planned.queue,
            queue_offset,
            undecodable.reason,
        )
        self._unexplained = offsets
        if undecodable.stored is None:
            self._pull_again()
        return row

    def _pull_again(self) -> None:
        """Drop the rest of the window, so that the range is pulled again from its next message.

        The message before the range is not pulled again, because it may be what cannot be decoded. Without
        it, the reader cannot see whether the queue still has the log that was consumed up to the range.
        """
        self._before = None
        self._is_pulled_again = True
        self._window.stop()

    def _of_same_log(self, messages: pa.RecordBatch, before: LastMessage) -> pa.RecordBatch:
        """Return the messages from the range's start on, if the queue has the log that was consumed.

        The queue has another log if another message now has the offset of ``before``, a consumed message. In
        this case return no messages, and end the range at its start. If the pulls have not brought the
        message at this offset, look it up: the log may have ended there, and have grown again since.
        """
        offsets = _offsets(messages)
        own = np.flatnonzero(offsets >= self._expected)
        try:
            if not self._is_same(messages, offsets, before, is_last_chance=len(own) > 0):
                self._stopped = EndReason.ANOTHER_LOG
        except RocketMQError as error:
            # In the window, too: whoever drops the range's end still finds a reset there.
            self._failure = self._window.failure = error
        if self._is_cut:
            self._window.stop()
        if self._is_cut or not len(own):
            return messages.slice(0, 0)
        self._before = None
        return messages.slice(int(own[0]))

    def _is_same(
        self,
        messages: pa.RecordBatch,
        offsets: npt.NDArray[np.int64],
        before: LastMessage,
        *,
        is_last_chance: bool,
    ) -> bool:
        """Return whether nothing shows another log than that of ``before``, a consumed message.

        If ``is_last_chance`` is true and no message was compared with it yet, the broker is asked.

        Raises:
            QueueReset: If the broker reports an operator's reset in place of the message.
            RocketMQError: If the broker does not answer, or refuses.
        """
        found = np.flatnonzero(offsets == before.queue_offset)
        if len(found):
            self._is_compared = True
            return message_in(messages, int(found[0])) in {None, before}
        if self._is_compared or not is_last_chance:
            return True
        self._is_compared = True
        return self._is_there(before)

    def _is_there(self, consumed: LastMessage) -> bool:
        """Ask the range's broker; return false if the message ``consumed`` is replaced or after the end.

        The end in the answer to a pull may be too low (:meth:`MessageLookup.end_now`). So the log counts as
        shorter only if the broker also reports such an end when it is asked for only that.

        Raises:
            QueueReset: If the broker reports an operator's reset in place of the message.
            RocketMQError: If the broker does not answer, or refuses.
        """
        found = self._look_at(consumed.queue_offset)
        if found.message is None and consumed.queue_offset >= found.bounds.max_offset:
            partition = self.partition
            brokers, queue = brokers_of(partition), partition.planned.queue
            if consumed.queue_offset >= self._patiently(lambda: brokers.max_offset(partition.address, queue)):
                return False
            # The queue may have grown between these two answers.
            found = self._look_at(consumed.queue_offset)
        return found.message in {None, consumed}

    def _look_at(self, offset: int) -> Found:
        found = self._found_at(offset, self.partition.address)
        if found.reset_to is not None:
            queue = self.partition.planned.queue
            raise QueueReset(f"{queue}: an operator has reset the group's offset.", found.reset_to)
        return found

    def _within_size(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        """Return the messages up to the one with which the range reaches its largest size."""
        limit = self._most_bytes
        if limit is None or not messages.num_rows:
            return messages
        lengths = pc.binary_length(messages.column("body")).to_numpy()
        sizes = self._body_bytes + np.cumsum(lengths, dtype=np.int64)
        self._body_bytes = int(sizes[-1])
        if self._body_bytes < limit:
            return messages
        self._stopped = EndReason.FULL
        self._window.stop()
        return messages.slice(0, int(np.searchsorted(sizes, limit)) + 1)

    def _in_columns(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        if not self.partition.settings.is_group_read:
            columns = self.partition.settings.columns
            is_whole = columns is None or QUEUE_OFFSET in columns
            return messages if is_whole else messages.remove_column(0)
        return with_origin_topics(messages, self.partition.settings.namespace)

    def _end(self, failure: RocketMQError | None) -> tuple[int, EndReason]:
        """Return where the range has ended (exclusive), and why.

        Raises:
            RocketMQError: ``failure``, if the range must not end early.
            DataLoss: If the last messages of the range are missing, and ``failOnDataLoss`` is true.
        """
        planned = self.partition.planned
        if self._stopped is None and failure is None:
            self._report_gap_before(planned.end)
            return planned.end, EndReason.WHOLE
        if self._stopped is not None:
            reason = self._stopped
        elif failure is not None and not self._is_pulled_again and not self._may_end_early(failure):
            raise failure
        else:
            reason = _reason_of(failure)
        logger.log(
            logging.INFO if reason is EndReason.FULL else logging.WARNING,
            "range ended early, the rest is planned again %s planned=%s reached=%d: %s",
            planned.queue,
            planned.extent,
            self._expected,
            failure if self._stopped is None else reason,
        )
        return min(self._expected, planned.end), reason

    def _follow(self, messages: pa.RecordBatch) -> None:
        offsets = _offsets(messages)
        self._report_gaps(gaps_before(offsets, self._expected))
        self._expected = int(offsets[-1]) + 1
        self._rows += messages.num_rows

    def _may_end_early(self, error: RocketMQError) -> bool:
        return self.partition.settings.is_group_read and (
            isinstance(error, TailLost | QueueReset) or waits(error, has_worked=self._has_worked)
        )

    @property
    def _has_worked(self) -> bool:
        return self.partition.settings.has_worked or self._pulls > 0

    @cached_property
    def _is_compacted(self) -> bool:
        """Whether the topic keeps only the newest message of each key; False if that is not known.

        The broker is asked only after a gap.

        Raises:
            RocketMQError: If the broker does not answer now, and ``failOnDataLoss`` is true.
        """
        partition = self.partition
        brokers, topic = brokers_of(partition), partition.planned.queue.topic
        try:
            found = self._patiently(lambda: brokers.is_compacted(partition.address, topic))
        except RocketMQError as error:
            if error.retryable and partition.settings.fail_on_data_loss:
                raise
            logger.info("not known whether the topic is compacted %s: %s", partition.planned.queue, error)
            self._kind_unknown = error
            return False
        if found:
            logger.info("the topic is compacted, gaps in it are not data loss %s", partition.planned.queue)
        return found

    def _report_gap_before(self, goes_on: int) -> None:
        if self._expected < goes_on:
            self._report_gaps([(self._expected, goes_on)])

    def _report_gaps(self, gaps: Iterable[tuple[int, int]]) -> None:
        """Raise DataLoss for the first gap if ``failOnDataLoss`` is true; otherwise log the gaps.

        A gap is a span of offsets for which no answer had a message. Gaps are ignored with a filter, and in a
        compacted topic, which has gaps by design, even before its first message.

        A broker that removes a file of its log while it reads skips the file's messages. It reports this only
        if the answer has no messages (``DefaultMessageStore.getMessage``: MESSAGE_WAS_REMOVING).
        """
        if self.partition.is_filtered:
            return
        queue, skipped = self.partition.planned.queue, self._window.skipped
        for missing, goes_on in gaps:
            if missing in self._unexplained and goes_on <= self._unexplained.stop:
                continue
            if self._is_compacted:
                return
            if self.partition.settings.fail_on_data_loss:
                raise self._loss_of(missing, goes_on)
            if skipped.start <= missing and goes_on <= skipped.stop:
                continue
            logger.warning("offset hole %s missing=%d continuing_at=%d", queue, missing, goes_on)

    def _loss_of(self, missing: int, goes_on: int) -> DataLoss:
        last = goes_on - 1
        offsets = f"offset {missing}" if missing == last else f"offsets {missing} to {last}"
        remedy = (
            f"Set failOnDataLoss=false to go on at offset {goes_on}. Or, if a consumer group reads this "
            "queue, reset the group's offset: `pyspark-rocketmq offsets reset --to OFFSET --topic TOPIC "
            "--queue BROKER:ID --conf FILE`."
        )
        if self._kind_unknown is not None:
            remedy += (
                " If the topic is compacted (cleanup.policy=COMPACTION), nothing is lost, and "
                "failOnDataLoss=false is the right setting. Whether it is compacted is not known: "
                f"{self._kind_unknown}"
            )
        return DataLoss(
            f"{self.partition.planned.queue} at {self.partition.address}",
            missing,
            f"given no message for {offsets} and no reason; it may have removed a file of its log meanwhile",
            remedy,
        )


def _reason_of(failure: RocketMQError | None) -> EndReason:
    is_refused = isinstance(failure, BrokerError) and not failure.retryable
    return EndReason.REFUSED if is_refused else EndReason.EARLY


def _wanted(messages: pa.RecordBatch, partition: QueuePartition, expected: int) -> pa.RecordBatch:
    """Return each message once, from offset ``expected`` to the range's end (exclusive)."""
    planned = partition.planned
    offsets = _offsets(messages)
    if not _is_ascending(offsets, expected):
        is_new = _is_first_copy(offsets, expected)
        if is_new is None:
            raise RemoteProtocolError(
                f"{planned.queue}: {partition.address} gave queue offsets that are not ascending from "
                f"{expected} on; nothing of this pull is used. Look at the broker's log for a damaged "
                "consume queue."
            )
        messages, offsets = messages.filter(pa.array(is_new)), offsets[is_new]
    if len(offsets) and offsets[-1] >= planned.end:
        messages = messages.slice(0, int(np.searchsorted(offsets, planned.end)))
    place = messages.schema.get_field_index("topic") if partition.settings.namespace else -1
    if place >= 0:
        # Users know the topic without its namespace.
        topic = pa.repeat(pa.scalar(planned.queue.topic, pa.string()), messages.num_rows)
        messages = messages.set_column(place, messages.schema.field(place), topic)
    return messages


def _is_first_copy(offsets: npt.NDArray[np.int64], expected: int) -> npt.NDArray[np.bool_] | None:
    """Return a mask of the messages that are new; None if a new one comes after one with a higher offset.

    A message may come twice: a filtered pull may go on into the offsets of the next pull, and a broker sends
    an inner batch whole, even if it begins before the offset pulled from.
    """
    highest_before = np.maximum.accumulate(np.concatenate(([expected - 1], offsets[:-1])))
    is_new: npt.NDArray[np.bool_] = offsets > highest_before
    late = offsets[~is_new]
    if not ((late < expected) | np.isin(late, offsets[is_new])).all():
        return None
    return is_new


def _is_ascending(offsets: npt.NDArray[np.int64], expected: int) -> bool:
    """Return whether offsets ascend from ``expected`` on. Checked for every batch, so it must be fast."""
    if not len(offsets):
        return True
    return bool(offsets[0] >= expected) and bool((offsets[1:] > offsets[:-1]).all())


def _offsets(messages: pa.RecordBatch) -> npt.NDArray[np.int64]:
    offsets: npt.NDArray[np.int64] = messages.column(QUEUE_OFFSET).to_numpy(zero_copy_only=True)
    return offsets


def gaps_before(offsets: npt.NDArray[np.int64], expected: int) -> list[tuple[int, int]]:
    """Return the gaps ``[first missing, next there)`` from ``expected`` to the last offset, ascending.

    Args:
        offsets: Strictly ascending queue offsets; at least one, and all at least ``expected``.
        expected: The queue offset that would come first without a gap.
    """
    last = int(offsets[-1])
    if last - expected + 1 == len(offsets):
        return []
    before = np.concatenate(([expected - 1], offsets[:-1]))
    at = np.flatnonzero(offsets - before > 1)
    return list(zip((before[at] + 1).tolist(), offsets[at].tolist(), strict=True))
