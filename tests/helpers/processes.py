"""What ``/proc`` tells of the processes that Spark starts; nothing of one that is gone."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_PARENT_FIELD: Final = 1
_SESSION_FIELD: Final = 3
"""Of ``/proc/PID/stat``, counted after the name, which may hold anything."""

_RESIDENT_FIELD: Final = 1
"""Of ``/proc/PID/statm``, in pages."""


def all_pids() -> Iterator[int]:
    """Every process of this machine."""
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def is_planner(pid: int) -> bool:
    """Whether it is a query's source runner, which plans."""
    return "python_streaming_source_runner" in _read(pid, "cmdline")


def is_worker_daemon(pid: int) -> bool:
    """Whether it is what forks Python workers, or one of them."""
    return "daemon" in _read(pid, "cmdline")


def is_standalone_worker(pid: int) -> bool:
    """Whether it is the Worker of a standalone cluster, which starts executors."""
    return "deploy.worker.Worker" in _read(pid, "cmdline")


def is_jvm(pid: int) -> bool:
    """Whether it is Java."""
    return _read(pid, "comm").strip() == "java"


def session_of(pid: int) -> int | None:
    """The session of processes it belongs to."""
    return _stat(pid, _SESSION_FIELD)


def parent_of(pid: int) -> int | None:
    """Who started it."""
    return _stat(pid, _PARENT_FIELD)


def descendants_of(pid: int) -> list[int]:
    """Its children, and theirs."""
    children: dict[int | None, list[int]] = defaultdict(list)
    for each in all_pids():
        children[parent_of(each)].append(each)
    found = [pid]
    for each in found:
        found += children[each]
    return found[1:]


def resident_bytes(pid: int) -> int:
    """The memory it has (RSS), what it shares with others included."""
    fields = _read(pid, "statm").split()
    return int(fields[_RESIDENT_FIELD]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def _stat(pid: int, field: int) -> int | None:
    after_name = _read(pid, "stat").rpartition(")")[2].split()
    return int(after_name[field]) if after_name else None


def _read(pid: int, name: str) -> str:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    return ""
