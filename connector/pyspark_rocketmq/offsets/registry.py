"""From the text of option ``offsetStore`` to a store, in whichever process needs one.

The planner runs in a process of its own, so a store travels there as its ``spec``. Delta is loaded by name and
only when asked for: executors import this module too, and delta-rs must not be in a process that forks.
"""

from __future__ import annotations

from importlib import import_module
from threading import Lock
from typing import cast

from pyspark_rocketmq.client.system_clock import SystemClock
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.offsets.broker import BrokerOffsetStore, GroupAtBrokers
from pyspark_rocketmq.offsets.file import FileOffsetStore
from pyspark_rocketmq.offsets.memory import MemoryOffsetStore
from pyspark_rocketmq.offsets.store import OffsetStore
from pyspark_rocketmq.store_spec import StoreKind, StoreSpec

_memory_stores: dict[str, MemoryOffsetStore] = {}
_memory_stores_lock = Lock()


def open_offset_store(spec: str, group: GroupAtBrokers | None = None) -> OffsetStore:
    """Return the store that ``spec`` names; ``group`` reaches the brokers, for the kind that needs them.

    Forms: ``delta:PATH``, a bare path or storage URI (the same), ``broker:``, ``file:PATH``, ``memory:NAME`` (one
    store per name and process).

    Raises:
        OptionError: If it names none, or needs brokers and there are none.
    """
    try:
        parsed = StoreSpec.parse(spec)
    except ValueError as error:
        raise OptionError((f"offsetStore={spec!r} {error}.",)) from error
    match parsed.kind:
        case StoreKind.DELTA:
            module = import_module("pyspark_rocketmq.offsets.delta")
            return cast("OffsetStore", module.DeltaOffsetStore(parsed.place))
        case StoreKind.FILE:
            return FileOffsetStore(parsed.place)
        case StoreKind.MEMORY:
            return _open_memory(parsed.place)
        case StoreKind.BROKER:
            if group is None:
                problem = f"offsetStore={spec!r} needs a cluster and a group, which are not known here. Name a Delta table."
                raise OptionError((problem,))
            return BrokerOffsetStore(group)


def _open_memory(name: str) -> MemoryOffsetStore:
    with _memory_stores_lock:
        if name not in _memory_stores:
            _memory_stores[name] = MemoryOffsetStore(name, clock=SystemClock())
        return _memory_stores[name]
