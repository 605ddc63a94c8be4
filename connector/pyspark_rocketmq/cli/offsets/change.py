"""Commands ``offsets reset``, ``skip``, ``clone`` and ``accept-gap``: make a group's moves, then show them.

A move gives a group another offset at which to continue in one queue. First everything is read and the moves
are planned. Harmful moves are shown and refused. Others are made in the offset store, then in the sink's
watermarks if requested, and shown at the end. A change raises the epoch of each queue that it moves, so a
running batch of the group cannot overwrite it.

A sink drops rows below a queue's watermark, since it has them already. To write them again, delete them and
lower the watermark.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from rich.console import Console

from pyspark_rocketmq.cli.offsets.cluster import ClusterInspector, members_holding
from pyspark_rocketmq.cli.offsets.groups import StoredGroup, open_group, open_group_or_new
from pyspark_rocketmq.cli.offsets.moves import (
    EARLIEST,
    AtTime,
    AtVersion,
    Position,
    QueueChoice,
    QueueMove,
    Target,
    ToBound,
    ToOffset,
    ToSink,
    ToTime,
    accepted,
    beyond_the_broker,
    moves_to,
    not_chosen,
    refusal,
    skipped,
)
from pyspark_rocketmq.cli.options import OffsetsChangeSettings
from pyspark_rocketmq.cli.output import OutputForm, print_records
from pyspark_rocketmq.cli.settings import JobFailed
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.commit.recovery import rows_problem
from pyspark_rocketmq.delta.paths import TableName
from pyspark_rocketmq.delta.storage_options import NO_OPTIONS, StorageOptions
from pyspark_rocketmq.delta.table import STORAGE_ERRORS, open_table
from pyspark_rocketmq.display import counted
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageQueue, QueueBounds
from pyspark_rocketmq.offsets.recorded_positions import RecordedPosition, move_to_recorded
from pyspark_rocketmq.offsets.recorded_sinks import NO_SINKS, RecordedSinks
from pyspark_rocketmq.offsets.store import OffsetRow
from pyspark_rocketmq.sinks.against_offsets import SinkGap, find_gaps, sinks_with_all_below
from pyspark_rocketmq.sinks.delta.rules import rows_condition
from pyspark_rocketmq.sinks.delta.sink_log import opened_log
from pyspark_rocketmq.sinks.delta.watermarks import read_queues

if TYPE_CHECKING:
    from pyspark_rocketmq.sinks.delta.sink import DeltaSink

T = TypeVar("T")

_RUNS_IF_YOUNGER_S = 60.0
"""If no broker can be queried, a group whose rows changed within this time counts as running."""
SINKS_LEAVE_OUT: Final = (
    "Messages are consumed again, but a sink drops those rows that it has already. --sink PATH shows in "
    "which queues; with --rewind-sink it writes them again."
)
"""Reminder after a group was moved back."""


class SinkWatermarks:
    """The watermarks in the Delta table at ``path``: the offset of each queue below which it has all rows."""

    def __init__(self, path: str, storage: StorageOptions = NO_OPTIONS) -> None:
        if TableName.of(path) is not None:
            raise JobFailed(
                f"Nothing was changed: {path} is the name of a table, which only a Spark session can read. "
                "Use pyspark_rocketmq.reset_to_sink and DeltaSink.rewind in Python."
            )
        self._path = path
        self._storage = storage

    def of(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Return each queue's watermark; leave out queues without one.

        ``queues`` gives each queue's generation: how often its offsets have started again.

        Raises:
            JobFailed: If there is no such table, or its storage does not answer.
            SinkConflict: If the table no longer shows up to which offsets it has the group's rows.
        """
        with self._answering():
            log = opened_log(self._table(), self._storage)
            return dict(read_queues(log, consumer_group, queues).watermarks)

    def lost(self, consumer_group: str, rows: Mapping[MessageQueue, OffsetRow]) -> SinkGap:
        """Return the gap of the table: queues of which it lacks rows, although the group has consumed them.

        Raises:
            JobFailed: If there is no such table, or its storage does not answer; if the table has all rows;
                if the group writes into other sinks, too; or if the table still has rows that would be
                written a second time.
        """
        self._table()
        queues = {queue: row.generation for queue, row in rows.items()}
        with self._answering():
            found = find_gaps(rows, self._sink().standings(consumer_group, queues))
        if not found:
            raise JobFailed(
                f"There is nothing to change: sink {self._path} has the rows of all messages up to the "
                f"offsets of group {consumer_group}. To consume messages again although the sink has their "
                "rows, give the position in --to and add --rewind-sink."
            )
        if found[0].is_one_of_several:
            raise JobFailed(
                f"Nothing was changed: group {consumer_group} writes into {self._path} and into other sinks. "
                "A reset to only one of them would discard the record of what the others lack. Name them all "
                "in Python: pyspark_rocketmq.reset_to_sink(store, [every sink of the query], consumer_group)."
            )
        with self._answering():
            problem = rows_problem(self._sink(), consumer_group, found[0])
        if problem is not None:
            raise JobFailed(problem)
        return found[0]

    def problem(self, consumer_group: str, moves: Sequence[QueueMove]) -> str | None:
        """Return why the watermarks must not be lowered to the targets of ``moves``; None if they may be.

        The watermarks must not be lowered while the table has rows that would be written a second time. If a
        queue's offsets have begun again, they must not be lowered while the table has rows that may belong to
        the queue's newer messages. After a RESTORE of the table, the watermarks of all the group's queues
        must be lowered together.
        """
        back = [move for move in moves if move.is_below_watermark]
        if not back:
            return None
        with self._answering():
            forgotten = self._sink().rewind_problem(consumer_group, [move.queue for move in back])
        if forgotten is not None:
            return f"Nothing was changed. {forgotten}"
        sink = self._sink()
        begun_again = {move.queue for move in back if move.row is not None and move.row.generation}
        with self._answering():
            begun_again |= {key.queue for key in sink.watermarks(consumer_group) if key.number}
            first = [move for move in back if move.queue not in begun_again]
            later = [move for move in back if move.queue in begun_again]
            count = sink.count_rows({move.queue: move.target for move in first}) if first else 0
            unclear = sink.count_rows({move.queue: move.target for move in later}) if later else 0
        if not count:
            return self._unclear_text(consumer_group, unclear, later, back) if unclear else None
        shown = " OR ".join(rows_condition(move.queue, move.target, "`") for move in first)
        remedy = f"DELETE FROM delta.`{self._path}` WHERE {shown}"  # noqa: S608 - shown, not run
        return (
            f"Nothing was changed: {self._path} still has {counted(count, 'row')} that group "
            f"{consumer_group} would write a second time. Remove them first, in Spark: {remedy}"
        )

    def _unclear_text(
        self, consumer_group: str, count: int, begun_again: Sequence[QueueMove], back: Sequence[QueueMove]
    ) -> str:
        """Return the text of a refusal, because of rows of queues whose offsets have begun again.

        In such a queue, offsets do not show which rows the group would write a second time.

        Args:
            consumer_group: The group.
            count: Number of these rows.
            begun_again: Moves of the queues whose offsets have begun again.
            back: All moves below the sink's watermarks.
        """
        queues = "; ".join(str(move.queue) for move in begun_again)
        targets = "; ".join(f"{move.queue} to {move.target}" for move in back)
        return (
            f"Nothing was changed: {self._path} still has {counted(count, 'row')} at or above the new "
            f"offsets in queues whose offsets have begun again: {queues}. Rows of earlier messages, which "
            "cannot be consumed again, have the same offsets as rows that group "
            f"{consumer_group} would write a second time. Remove only the newer rows, chosen by another "
            "column such as storeTimestamp. Then give this command without --rewind-sink and, before the "
            f"query starts, set the watermarks of all its queues in Python: DeltaSink({self._path!r}).rewind("
            f"{consumer_group!r}, {{queue: new offset}}), with {targets}."
        )

    def rewind(self, consumer_group: str, targets: Mapping[MessageQueue, int]) -> None:
        """Set each queue's watermark in the table to its target, so that the sink takes rows from there on.

        Raises:
            JobFailed: If the table does not answer.
            RocketMQError: If the watermarks cannot be set.
        """
        with self._answering():
            self._sink().rewind(consumer_group, targets)

    def _table(self) -> DeltaTable:
        with self._answering():
            return open_table(self._path, self._storage)

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Raise ``JobFailed`` if the table does not answer within the block."""
        try:
            yield
        except TableNotFoundError as error:
            raise JobFailed(f"There is no Delta table at {self._path}; correct --sink.") from error
        except STORAGE_ERRORS as error:
            raise JobFailed(
                f"The table {self._path} could not be read or written: {self._storage.describe_error(error)} "
                "Check "
                "option 'storageSecrets', that the storage can be reached, and that --sink is a table of "
                "the group's rows."
            ) from error

    def _sink(self) -> DeltaSink:
        """Create the sink's object for the table. This loads Spark's Python package, which takes seconds."""
        from pyspark_rocketmq.sinks.delta.sink import DeltaSink

        return DeltaSink(self._path, storage_options=self._storage)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOptions:
    """Options of all commands that move a group (``offsets reset``, ``skip``, ``clone``, ``accept-gap``)."""

    choice: QueueChoice
    is_dry_run: bool = False
    """Whether the moves are only shown."""
    is_forced: bool = False
    """Whether queues are moved that a member consumes now."""
    sink: str | None = None
    """Path of the group's Delta sink; None if the command does not look at the sink."""
    rewinds_sink: bool = False
    """Whether the sink's watermarks are lowered too, so that it takes the rows again."""
    form: OutputForm = OutputForm.TABLE
    is_new_group: bool = False
    """Whether the group may be missing from the store."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Offsets to which a command is to move a group, by queue."""

    targets: Mapping[MessageQueue, int]
    forgets_sinks: bool = False
    """Whether queues that are at their targets already are reset, too. A queue's row in the store records
    which sinks have its messages. A reset deletes that record, and these sinks are no longer checked for
    missing rows."""
    staying: frozenset[MessageQueue] = frozenset()
    """Queues that continue where the group left them, and are reset only to delete the record of sinks."""
    are_recorded: bool = False
    """Whether all targets are positions that a group or a sink has recorded, or are counted from such
    positions. False if they come from a broker or from the user."""
    copied: Mapping[MessageQueue, OffsetRow] = field(default_factory=dict)
    """Rows of another group from which the targets are copied, by queue."""
    sinks: Mapping[MessageQueue, RecordedSinks] = field(default_factory=dict)
    """Sinks that have all rows below a queue's target, which are recorded in place of the former ones."""

    def sinks_below(self, queue: MessageQueue, target: int) -> RecordedSinks:
        """Return the sinks to record for a queue that is moved to ``target``.

        There are none if the target was moved up, to the first message that is left: that is beyond the
        sinks' rows.
        """
        return self.sinks.get(queue, NO_SINKS) if target == self.targets[queue] else NO_SINKS

    @property
    def recorded(self) -> frozenset[MessageQueue]:
        """Queues whose targets are offsets that a group or a sink has recorded.

        Such a queue is moved only if its epoch is still the one that this command has read. The offset may
        belong to an earlier generation of the queue; the group's query then reports that.
        """
        return frozenset(self.targets) if self.are_recorded else self.staying


def reset(
    settings: OffsetsChangeSettings,
    target: Target | AtTime | AtVersion,
    options: ChangeOptions,
    console: Console,
) -> None:
    """Move a group's chosen queues to ``target``: a position, or where the group was at a time or version.

    A reset to the earliest offsets also deletes the record of the sinks that have the group's messages.

    Raises:
        JobFailed: If the move cannot or must not be made, or is incomplete; the error reports what changed.
        RocketMQError: If the store does not answer, or its history does not go back so far.
    """
    is_position = not isinstance(target, AtTime | AtVersion | ToSink)
    may_be_new = is_position and options.is_new_group
    group = open_group_or_new(settings, settings.consumer_group, is_new=True) if may_be_new else None
    change = _OffsetChange(settings, group)
    if isinstance(target, ToSink):
        change.apply(change.lost_by_sink(options), options, console)
        return
    targets = change.targets(target, options.choice)
    if target != ToBound(EARLIEST):
        wanted = Wanted(targets, are_recorded=isinstance(target, AtTime | AtVersion))
        change.apply(wanted, options, console)
        return
    # Users who begin again empty their sink first, so it lacks the rows of the retry queues too, which are
    # not moved.
    stay = {queue: at for queue, at in accepted(change.chosen_rows(options)).items() if queue not in targets}
    change.apply(Wanted(stay | targets, forgets_sinks=True, staying=frozenset(stay)), options, console)


def accept_gap(settings: OffsetsChangeSettings, options: ChangeOptions, console: Console) -> None:
    """Let a group continue at its offsets in the chosen queues, although their sink has lost rows.

    The queues' rows in the offset store are reset to the same offsets, so that the sink is no longer checked
    for earlier rows.

    Raises:
        JobFailed: If the move cannot or must not be made, or is incomplete; the error reports what changed.
    """
    change = _OffsetChange(settings)
    stay = accepted(change.chosen_rows(options))
    change.apply(Wanted(stay, forgets_sinks=True, staying=frozenset(stay)), options, console)


def skip(
    settings: OffsetsChangeSettings, messages: int | None, options: ChangeOptions, console: Console
) -> None:
    """Move a group past ``messages`` messages of each chosen queue, or to the queue's end if None.

    Raises:
        JobFailed: If the move cannot or must not be made, or is incomplete; the error reports what changed.
    """
    change = _OffsetChange(settings)
    rows = {queue: row for queue, row in change.group.rows.items() if options.choice.takes(queue)}
    targets = skipped(rows, change.needed_bounds(rows), messages)
    change.apply(Wanted(targets, are_recorded=messages is not None), options, console)


def clone(settings: OffsetsChangeSettings, source: str, options: ChangeOptions, console: Console) -> None:
    """Move the group of ``settings``, which may be new, to the offsets of group ``source`` of the same store.

    Raises:
        JobFailed: If the move cannot or must not be made, or is incomplete; the error reports what changed.
    """
    change = _OffsetChange(settings, open_group_or_new(settings, settings.consumer_group, is_new=False))
    rows = open_group(settings, source).rows
    targets = {queue: row.next_offset for queue, row in rows.items() if options.choice.takes(queue)}
    change.apply(Wanted(targets, are_recorded=True, copied=rows), options, console)


class _OffsetChange:
    """Plans and makes the change of one group; queries the group's cluster if name servers are given."""

    def __init__(self, settings: OffsetsChangeSettings, group: StoredGroup | None = None) -> None:
        """Take the group to change, by default the stored group that ``settings`` name."""
        self._settings = settings
        self._clock = SystemClock()
        self._storage = StorageOptions.parse(settings.storage_secrets)
        self.group = group or open_group(settings, settings.consumer_group)
        self._cluster: ClusterInspector | None = None
        if settings.name_servers is not None:
            self._cluster = ClusterInspector(settings, self.group.name.namespace, self._clock)

    def targets(self, target: Position | AtTime | AtVersion, choice: QueueChoice) -> dict[MessageQueue, int]:
        """Return the offset to which ``target`` moves each chosen queue.

        Raises:
            JobFailed: If the brokers or the store's history do not have the offsets.
            OffsetError: If the history does not go back so far.
        """
        if isinstance(target, AtTime | AtVersion):
            then = self.group.rows_at(target)
            return self._as_of({queue: row for queue, row in then.items() if choice.takes(queue)})
        queues = {queue for queue in self.group.rows if choice.takes(queue)}
        queues |= {queue for queue in self._bounds(choice.topics) if choice.takes(queue)}
        match target:
            case ToOffset(next_offset):
                return dict.fromkeys(queues, next_offset)
            case ToBound(end):
                bounds = self.needed_bounds(queues)
                return {
                    queue: bounds[queue].min_offset if end == EARLIEST else bounds[queue].max_offset
                    for queue in queues
                }
            case ToTime(at_s):
                self.needed_bounds(queues)
                assert self._cluster is not None
                return _complete(queues, self._cluster.stored_from(queues, at_s))

    def _as_of(self, then: Mapping[MessageQueue, OffsetRow]) -> dict[MessageQueue, int]:
        """Return the next offset of each queue in ``then``, the group's rows at an earlier time.

        If the offsets of a queue have started again since, its value is the broker's first offset.
        """
        rows = self.group.rows
        begun = {
            queue for queue, row in then.items() if queue in rows and row.generation < rows[queue].generation
        }
        bounds = self.needed_bounds(begun) if begun else {}
        return {
            queue: bounds[queue].min_offset if queue in begun else row.next_offset
            for queue, row in then.items()
        }

    def chosen_rows(self, options: ChangeOptions) -> dict[MessageQueue, OffsetRow]:
        """Return the group's rows of the chosen queues; if no topic is chosen, also of its retry topic."""
        rows = self.group.rows
        return {queue: row for queue, row in rows.items() if options.choice.takes_retries_too(queue)}

    def lost_by_sink(self, options: ChangeOptions) -> Wanted:
        """Return the moves of the chosen queues of which the sink lacks rows, to the end of its rows.

        If the sink has no rows of a queue, the move is to the first offset that the broker has.
        """
        if options.sink is None:
            raise JobFailed("--to sink needs --sink, the table to which the group goes back.")
        gap = SinkWatermarks(options.sink, self._storage).lost(
            str(self.group.name), self.chosen_rows(options)
        )
        begins = {queue for queue, at in gap.targets.items() if at == 0}
        bounds = self.needed_bounds(begins) if begins else {}
        targets = gap.targets | {queue: bounds[queue].min_offset for queue in begins}
        sinks = {
            queue: sinks_with_all_below(queue, target, [gap.standing]) for queue, target in targets.items()
        }
        return Wanted(targets, forgets_sinks=True, are_recorded=True, sinks=sinks)

    def needed_bounds(
        self, queues: Mapping[MessageQueue, object] | set[MessageQueue]
    ) -> dict[MessageQueue, QueueBounds]:
        """Return the minimum and maximum offsets of all ``queues`` at their brokers.

        Raises:
            JobFailed: If a broker does not give them, or no name servers are given.
        """
        if self._cluster is None:
            raise JobFailed(
                "This change needs the first and last offset of each queue, which only the brokers have: "
                "give option 'nameServers'."
            )
        return _complete(queues, self._bounds({queue.topic for queue in queues}))

    def apply(self, wanted: Wanted, options: ChangeOptions, console: Console) -> None:
        """Make the moves, then show them; in a dry run, or if they are refused, only show them.

        Raises:
            JobFailed: If there are no moves. Except in a dry run, also if they are refused or cannot be made.
        """
        is_first = options.is_new_group and not self.group.store.groups()
        known = {*self.group.rows, *wanted.targets, *self._bounds(options.choice.topics)}
        mistaken = not_chosen(options.choice, known)
        if mistaken is not None:
            raise JobFailed(f"{mistaken} Nothing was changed.")
        moves = self._moves(wanted, options)
        if not moves:
            raise JobFailed(
                f"There is nothing to change: group '{self.group.name}' has these offsets already, or none "
                "of its queues was chosen. `pyspark-rocketmq offsets show --conf FILE` prints the group's "
                "queues and offsets. A new group needs --topic and option 'nameServers'."
            )
        problem = self._problem(moves, wanted, options)
        if problem is None and not options.is_dry_run:
            moves = self._made(moves, wanted, options)
        title = f"Offsets of consumer group {self.group.name}" + (
            ", as they would be" if problem is not None or options.is_dry_run else ", as they are now"
        )
        print_records(
            console, options.form, title, tuple(moves[0].columns()), [move.columns() for move in moves]
        )
        if problem is not None and not options.is_dry_run:
            raise JobFailed(problem)
        # On standard error, since a program may read the table.
        if problem is not None:
            print(f"Without --dry-run this is refused: {problem}", file=sys.stderr)
        if options.sink is None and any((move.moved or 0) < 0 for move in moves):
            print(SINKS_LEAVE_OUT, file=sys.stderr)
        if is_first:
            print(
                f"These are the first offsets of the store {self.group.store.spec}. The group begins there "
                "only if its query has the same option offsetStore.",
                file=sys.stderr,
            )

    def _made(
        self, moves: Sequence[QueueMove], wanted: Wanted, options: ChangeOptions
    ) -> Sequence[QueueMove]:
        rows = self._stored(moves, wanted, options)
        if options.rewinds_sink:
            assert options.sink is not None
            back = {move.queue: move.target for move in moves if move.is_below_watermark}
            try:
                SinkWatermarks(options.sink, self._storage).rewind(str(self.group.name), back)
            except (JobFailed, RocketMQError) as error:
                raise JobFailed(
                    f"The offsets of group {self.group.name} were moved, but the watermarks of its sink "
                    f"{options.sink} were not, so the sink would drop rows: {error} Give the same command "
                    "again before the query starts."
                ) from error
        return [dataclasses.replace(move, new_epoch=rows[move.queue].epoch) for move in moves]

    def _stored(
        self, moves: Sequence[QueueMove], wanted: Wanted, options: ChangeOptions
    ) -> Mapping[MessageQueue, OffsetRow]:
        """Move the queues in the offset store; return their new rows.

        Raises:
            JobFailed: If another process claimed or moved some queues meanwhile; the others were moved.
        """
        store, group = self.group.store, str(self.group.name)
        targets = {move.queue: move.target for move in moves}
        said = {queue: target for queue, target in targets.items() if queue not in wanted.recorded}
        rows = store.reset(group, said) if said else {}
        recorded = {
            queue: _recorded_position(target, wanted.copied.get(queue))._replace(
                sinks=wanted.sinks_below(queue, target)
            )
            for queue, target in targets.items()
            if queue not in said
        }
        if recorded:
            rows = {**rows, **move_to_recorded(store, group, recorded, self.group.rows)}
        missed = sorted(targets.keys() - rows.keys())
        if missed:
            # A skip counts from where a queue is: given again for all, it would skip further messages.
            again = (
                "the same command again before one of them starts: the sink's watermarks were not moved"
                if options.rewinds_sink
                else "the command again for these queues only, with --queue"
            )
            raise JobFailed(
                "Another process claimed or moved some queues meanwhile, which were left as they are: "
                f"{'; '.join(map(str, missed))}. All others were moved. Stop the group's queries, and give "
                f"{again}."
            )
        return rows

    def _moves(self, wanted: Wanted, options: ChangeOptions) -> Sequence[QueueMove]:
        targets = wanted.targets
        topics = {queue.topic for queue in targets}
        rows = self.group.rows
        generations = {queue: rows[queue].generation if queue in rows else 0 for queue in targets}
        watermarks = (
            {}
            if options.sink is None
            else SinkWatermarks(options.sink, self._storage).of(str(self.group.name), generations)
        )
        moves = moves_to(
            targets,
            self.group.rows,
            self._bounds(topics),
            watermarks=watermarks,
            rewinds_sink=options.rewinds_sink,
            forgets_sinks=wanted.forgets_sinks,
            staying=wanted.staying,
        )
        holders = self._holders(targets, topics)
        return [dataclasses.replace(move, held_by=holders.get(move.queue)) for move in moves]

    def _problem(self, moves: Sequence[QueueMove], wanted: Wanted, options: ChangeOptions) -> str | None:
        """Return why the moves must not be made; None if they may."""
        beyond = beyond_the_broker(move for move in moves if move.queue not in wanted.staying)
        if beyond:
            queues = "; ".join(f"{move.queue}: {move.target} ({move.note})" for move in beyond)
            return (
                f"Nothing was changed: the new offset is beyond the end of its queue. {queues}. Choose an "
                "offset in the queue. `pyspark-rocketmq offsets reset --to latest --topic TOPIC --queue "
                "BROKER:ID --conf FILE` moves the group to the queue's end, past messages that the "
                "group has not consumed."
            )
        is_running = refusal(moves, rewinds_sink=options.rewinds_sink)
        if is_running is not None and (not options.is_forced or options.rewinds_sink):
            return is_running
        if options.rewinds_sink:
            assert options.sink is not None
            return SinkWatermarks(options.sink, self._storage).problem(str(self.group.name), moves)
        return None

    def _holders(self, queues: Iterable[MessageQueue], topics: set[str]) -> Mapping[MessageQueue, str]:
        """Return a text for each queue that a member consumes, or may consume, which names that member.

        A member that did not answer may have any queue. If the members are not known, the owner of a row that
        changed within the last 60 s counts as consuming its queue.
        """
        name, rows = self.group.name, self.group.rows
        if self._cluster is None or not self._cluster.knows_members_of(name.group, topics):
            now_s = self._clock.now_s()
            return {
                queue: f"{row.owner_id} (its offset changed {now_s - row.updated_at_s:.0f} s ago)"
                for queue, row in rows.items()
                if row.owner and not row.was_reset and now_s - row.updated_at_s < _RUNS_IF_YOUNGER_S
            }
        members = self._cluster.members_of(name.group, topics)
        silent = self._cluster.silent_members_of(name.group, topics)
        if name.instance is not None:
            # Every instance has all queues, so an owner runs if it is a member at all.
            running = {*members, *silent}
            return {queue: row.owner_id for queue, row in rows.items() if row.owner_id in running}
        holders = members_holding(members)
        unclear = f"{', '.join(sorted(silent))} (which did not report what it consumes)"
        return {**(dict.fromkeys(queues, unclear) if silent else {}), **holders}

    def _bounds(self, topics: set[str] | frozenset[str]) -> dict[MessageQueue, QueueBounds]:
        return {} if self._cluster is None else self._cluster.bounds(sorted(topics))


def _recorded_position(target: int, copied: OffsetRow | None) -> RecordedPosition:
    """Return ``target`` as a recorded position.

    If the offset is copied from another group, ``copied`` is that group's row; otherwise None.
    """
    if copied is None:
        return RecordedPosition(target)
    return RecordedPosition(target, copied.generation, copied.state.last_message)


def _complete(queues: Iterable[MessageQueue], found: dict[MessageQueue, T]) -> dict[MessageQueue, T]:
    """Return ``found``, the brokers' answers by queue, after a check that it has every queue in ``queues``.

    Raises:
        JobFailed: If the answer for a queue is missing.
    """
    missing = sorted(set(queues).difference(found))
    if missing:
        raise JobFailed(
            "Nothing was changed: the brokers do not answer, or no longer have these queues: "
            f"{'; '.join(str(queue) for queue in missing)}. Start the brokers, or choose other queues "
            "with --topic and --queue."
        )
    return found
