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
from pyspark_rocketmq.offsets.memory import MemoryOffsetStore
from pyspark_rocketmq.offsets.store import OffsetStore

_STORAGE_SCHEMES = frozenset({"abfs", "abfss", "az", "adl", "file", "gs", "hdfs", "s3", "s3a"})
"""Schemes of URIs that name a place, not a kind of store."""

_memory_stores: dict[str, MemoryOffsetStore] = {}
_memory_stores_lock = Lock()


def open_offset_store(spec: str) -> OffsetStore:
    """Return the store that ``spec`` names.

    Forms: ``delta:PATH``, a bare path or storage URI (the same), ``memory:NAME`` (one store per name and process).

    Raises:
        OptionError: If the scheme is unknown or what follows it is empty.
    """
    scheme, separator, rest = spec.strip().partition(":")
    if not separator or not scheme.isalnum() or rest.startswith("//"):
        return _open_path(spec.strip())
    if not rest:
        raise _unusable(spec, "names no path after its colon")
    if scheme == "delta":
        return _open_delta(rest)
    if scheme == "memory":
        return _open_memory(rest)
    raise _unusable(spec, f"has the unknown kind {scheme!r}")


def _open_path(path: str) -> OffsetStore:
    if not path:
        raise _unusable(path, "is empty")
    scheme, separator, _ = path.partition("://")
    if separator and scheme.lower() not in _STORAGE_SCHEMES:
        raise _unusable(path, f"has the unknown scheme {scheme!r}")
    return _open_delta(path)


def _open_delta(path: str) -> OffsetStore:
    module = import_module("pyspark_rocketmq.offsets.delta")
    return cast("OffsetStore", module.DeltaOffsetStore(path))


def _open_memory(name: str) -> MemoryOffsetStore:
    with _memory_stores_lock:
        if name not in _memory_stores:
            _memory_stores[name] = MemoryOffsetStore(name, clock=SystemClock())
        return _memory_stores[name]


def _unusable(spec: str, why: str) -> OptionError:
    remedy = "Use delta:PATH, a bare path or storage URI of a Delta table, or memory:NAME."
    return OptionError((f"offsetStore={spec!r} {why}. {remedy}",))
