"""Facts from ``/proc`` about the processes that Spark starts; empty for one that is gone."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_PARENT_FIELD: Final = 1
_SESSION_FIELD: Final = 3
"""Index in ``/proc/PID/stat``, counted after the name, which may contain anything."""

_RESIDENT_FIELD: Final = 1
"""Index in ``/proc/PID/statm``; the value is in pages."""


def all_pids() -> Iterator[int]:
    """Return the ids of all processes of this machine."""
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def is_planner(pid: int) -> bool:
    """Return whether the process is a query's source runner, which plans."""
    return "python_streaming_source_runner" in _read(pid, "cmdline")


def is_worker_daemon(pid: int) -> bool:
    """Return whether the process is the daemon that forks Python workers, or one of them."""
    # A setting names the daemon's module in the command lines of the JVM and of the shells that launch it, and
    # what the JVM forks has its command line at first.
    program, *arguments = _read(pid, "cmdline").split("\0")
    is_module = arguments[:1] == ["-m"] and "daemon" in "".join(arguments[1:2])
    return is_module and "python" in Path(program).name


def is_standalone_worker(pid: int) -> bool:
    """Return whether the process is a standalone cluster's Worker, which starts executors."""
    return "deploy.worker.Worker" in _read(pid, "cmdline")


def is_jvm(pid: int) -> bool:
    """Return whether the process is a JVM."""
    return _read(pid, "comm").strip() == "java"


def session_of(pid: int) -> int | None:
    """Return the session that the process belongs to."""
    return _stat(pid, _SESSION_FIELD)


def parent_of(pid: int) -> int | None:
    """Return the parent of the process."""
    return _stat(pid, _PARENT_FIELD)


def descendants_of(pid: int) -> list[int]:
    """Return the children of the process, and theirs."""
    children: dict[int | None, list[int]] = defaultdict(list)
    for each in all_pids():
        children[parent_of(each)].append(each)
    found = [pid]
    for each in found:
        found += children[each]
    return found[1:]


def resident_bytes(pid: int) -> int:
    """Return the resident memory of the process (RSS), including memory shared with others."""
    fields = _read(pid, "statm").split()
    return int(fields[_RESIDENT_FIELD]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def _stat(pid: int, field: int) -> int | None:
    after_name = _read(pid, "stat").rpartition(")")[2].split()
    return int(after_name[field]) if after_name else None


def _read(pid: int, name: str) -> str:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    return ""
