"""Opens the store that option ``offsetStore`` names, and detects a store that was restored to an older state.

The planner runs in its own process and opens a store again by its ``spec``. Executors import this module,
too, and delta-rs must not be loaded in a process that forks. So Delta is imported only when a store needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from threading import Lock
from typing import cast

from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.delta.storage_options import NO_OPTIONS, StorageOptions
from pyspark_rocketmq.display import counted
from pyspark_rocketmq.errors import OffsetError, OptionError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.broker import BrokerOffsetStore, GroupAtBrokers
from pyspark_rocketmq.offsets.file import FileOffsetStore
from pyspark_rocketmq.offsets.rules import Change, ResultT, RowOffsetStore, Rows
from pyspark_rocketmq.offsets.store import OffsetRow, OffsetStore, is_at_brokers
from pyspark_rocketmq.options.store_spec import StoreKind, StoreSpec

_memory_stores: dict[str, MemoryOffsetStore] = {}
_memory_stores_lock = Lock()
_SHOWN_QUEUES = 5


class MemoryOffsetStore(RowOffsetStore):
    """Implements ``OffsetStore`` for the threads of one process, for tests and experiments."""

    def __init__(self, name: str, *, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._lock = Lock()
        self._groups: dict[str, dict[MessageQueue, OffsetRow]] = {}

    @property
    def spec(self) -> str:
        """The text ``memory:NAME``, which names this store only within this process."""
        return f"memory:{self._name}"

    def groups(self) -> tuple[str, ...]:
        """Return the names of the groups that have rows, sorted."""
        with self._lock:
            return tuple(sorted(self._groups))

    def read(self, consumer_group: str) -> dict[MessageQueue, OffsetRow]:
        """Return a copy of the group's rows; empty if the group is unknown."""
        with self._lock:
            return dict(self._groups.get(consumer_group, {}))

    def _change(
        self,
        consumer_group: str,
        decide: Callable[[Rows], Change[ResultT]],
        action: str,  # noqa: ARG002 - has no history
    ) -> ResultT:
        with self._lock:
            change = decide(self._groups.get(consumer_group, {}))
            if change.rows:
                self._groups[consumer_group] = change.rows
            return change.result


def open_offset_store(
    spec: str, group: GroupAtBrokers | None = None, storage: StorageOptions = NO_OPTIONS
) -> OffsetStore:
    """Return the store that ``spec`` names.

    ``group`` gives access to the brokers, which only ``broker:`` needs. ``storage`` gives access to a remote
    table.

    Forms: ``delta:PATH``, a bare path or storage URI (the same), ``broker:``, ``file:PATH``, ``memory:NAME``
    (one store per name and process).

    Raises:
        OptionError: If ``spec`` names no store, or is ``broker:`` and no ``group`` is given.
    """
    try:
        parsed = StoreSpec.parse(spec)
    except ValueError as error:
        raise OptionError((f"offsetStore={spec!r} {error}.",)) from error
    match parsed.kind:
        case StoreKind.DELTA:
            module = import_module("pyspark_rocketmq.offsets.delta")
            return cast("OffsetStore", module.DeltaOffsetStore(parsed.place, storage_options=storage))
        case StoreKind.FILE:
            return FileOffsetStore(parsed.place)
        case StoreKind.MEMORY:
            with _memory_stores_lock:
                return _memory_stores.setdefault(
                    parsed.place, MemoryOffsetStore(parsed.place, clock=SystemClock())
                )
        case StoreKind.BROKER:
            if group is None:
                problem = (
                    f"offsetStore={spec!r} names the offsets at the brokers, which only a query can "
                    "use. Name a Delta table, or use mqadmin (consumerProgress, resetOffsetByTime)."
                )
                raise OptionError((problem,))
            return BrokerOffsetStore(group)


def checked_rows(
    store: OffsetStore,
    consumer_group: str,
    rows: dict[MessageQueue, OffsetRow],
    *,
    seen: Mapping[MessageQueue, OffsetRow],
) -> dict[MessageQueue, OffsetRow]:
    """Check that the store has not gone back to an older state since ``seen`` was read; return ``rows``.

    If ``rows`` are older than ``seen``, the rows are read again, and these are returned if they are not
    older. With an older state a group could look new, and members that lost a queue could commit again. A
    store at the brokers is not checked: it has no epochs, and it returns no rows while all brokers are away.

    Raises:
        OffsetError: If the store was restored to an older state, replaced or deleted.
    """
    if is_at_brokers(store) or not describe_setbacks(seen, rows):
        return rows
    # Read again: a file store returns its previous content for a moment while its file is replaced.
    rows = store.read(consumer_group)
    setbacks = describe_setbacks(seen, rows)
    if not setbacks:
        return rows
    what = (
        "was deleted or overwritten"
        if not rows
        else f"was restored to an earlier state or replaced: {'; '.join(setbacks[:_SHOWN_QUEUES])}"
    )
    raise OffsetError(
        f"Offsets of group {consumer_group} are gone from {store!r}, which had {counted(len(seen), 'queue')} "
        f"of the group when it was last read: the store {what}. Nothing was consumed since. Put the store's "
        "newest state back and start the query again. If you cannot, start the query all the same: it "
        "continues at the offsets that the store has now. Messages consumed after that state are then "
        "delivered again, and a sink leaves out the rows that it has. A group that the store lacks continues "
        "at the offsets of its sink's table, or, without a sink, at the group's offsets at the brokers."
    )


def describe_setbacks(
    before: Mapping[MessageQueue, OffsetRow], now: Mapping[MessageQueue, OffsetRow]
) -> tuple[str, ...]:
    """Return a sentence for each queue whose row shows that the store has an older state now than before.

    Such a row is missing now, has a smaller epoch, or has a smaller offset in the same epoch. No change by a
    consumer or a command makes a row so. The sentences are in the order of the queues; empty if all rows are
    fine.
    """
    return tuple(
        words for queue, row in sorted(before.items()) if (words := _describe_setback(row, now.get(queue)))
    )


def _describe_setback(before: OffsetRow, now: OffsetRow | None) -> str:
    if now is None:
        return f"{before.queue} was at {before.next_offset} and is missing now"
    if now.epoch < before.epoch:
        return (
            f"{before.queue} was at {before.next_offset} in epoch {before.epoch} and is at "
            f"{now.next_offset} in epoch {now.epoch}"
        )
    if now.epoch == before.epoch and now.next_offset < before.next_offset:
        return (
            f"{before.queue} was at {before.next_offset} and is at {now.next_offset}, both in epoch "
            f"{now.epoch}"
        )
    return ""
