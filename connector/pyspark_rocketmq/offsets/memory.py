"""An offset store in memory: for tests and for trying things out; gone with the process."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.ruled import RuledOffsetStore
from pyspark_rocketmq.offsets.rules import Change, ResultT, Rows
from pyspark_rocketmq.offsets.store import OffsetRow


class MemoryOffsetStore(RuledOffsetStore):
    """Implements ``OffsetStore`` for the threads of one process."""

    def __init__(self, name: str, *, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._lock = Lock()
        self._groups: dict[str, dict[MessageQueue, OffsetRow]] = {}

    @property
    def spec(self) -> str:
        """``memory:NAME``; means this store only within this process."""
        return f"memory:{self._name}"

    def groups(self) -> tuple[str, ...]:
        """See ``OffsetStore.groups``."""
        with self._lock:
            return tuple(sorted(self._groups))

    def read(self, consumer_group: str) -> dict[MessageQueue, OffsetRow]:
        """Return the group's rows."""
        with self._lock:
            return dict(self._groups.get(consumer_group, {}))

    def _change(self, consumer_group: str, decide: Callable[[Rows], Change[ResultT]], action: str) -> ResultT:  # noqa: ARG002 - has no history
        with self._lock:
            change = decide(self._groups.get(consumer_group, {}))
            if change.rows:
                self._groups[consumer_group] = change.rows
            return change.result
