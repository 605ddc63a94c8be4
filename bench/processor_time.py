"""Processor time that processes have used."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.helpers.processes import descendants_of

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
"""Unit in which the kernel counts processor time, in seconds."""


def processor_s(pid: int) -> float:
    """User and system time of a process since its start, of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def processor_s_by_process() -> dict[int, float]:
    """Return the processor time of this process and its running descendants."""
    spent: dict[int, float] = {}
    for pid in (os.getpid(), *descendants_of(os.getpid())):
        with suppress(FileNotFoundError, ProcessLookupError):
            spent[pid] = processor_s(pid)
    return spent


def spent_since_s(before: Mapping[int, float]) -> float:
    """Return the time they have used since ``before``, including processes that started meanwhile."""
    return sum(spent - before.get(pid, 0.0) for pid, spent in processor_s_by_process().items())


def machine_s() -> float:
    """Return the time that all processes of this machine have used since it started."""
    user, nice, system, _, _, irq, softirq, *_ = map(
        int, Path("/proc/stat").read_text().partition("\n")[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) * TICK_S
