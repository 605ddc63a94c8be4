"""Clusters on this host whose machines are processes: each a daemon with its own address and folder,
and its descendants.
"""

from __future__ import annotations

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import pyspark

from pyspark_rocketmq.client.transport import Closing
from tests.helpers.processes import descendants_of, parent_of
from tests.helpers.wait import wait_until
from tests.real_broker.java_process import JavaProcess

SPARK_HOME = Path(pyspark.__file__).parent
PATIENCE_S = 120.0
"""Time limit for a JVM to start on a busy machine."""
HOST = "127.0.0.1"
"""Host of masters and drivers; it is not the address of any machine."""


class Machines(Closing, ABC):
    """A cluster that runs executors; a context manager that leaves no process behind."""

    master: str
    """Value for ``spark-submit --master``."""

    settings: Mapping[str, str] = MappingProxyType({})
    """Spark's settings, as the cluster's administrator chooses them."""
    environment: Mapping[str, str] = MappingProxyType({})
    """Environment variables of the process that submits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._managers: list[JavaProcess] = []
        """Processes that no test kills."""
        self._machines: dict[str, JavaProcess] = {}

    def close(self) -> None:
        """Kill all processes started here, and their descendants."""
        for process in (*self._managers, *self._machines.values()):
            _kill_with_descendants(process)

    def machine_of(self, pid: int) -> str:
        """Return the name of the machine on which a process runs.

        Raises:
            AssertionError: If it is on none that lives.
        """
        by_pid = {process.pid: name for name, process in self._machines.items()}
        ancestor: int | None = pid
        while ancestor not in by_pid:
            assert ancestor, f"process {pid} does not descend from a machine of this cluster"
            ancestor = parent_of(ancestor)
        return by_pid[ancestor]

    def folder_of(self, machine: str) -> Path:
        """Return the folder in which executors on the machine run."""
        return self.folder / machine

    def kill_machine(self, name: str) -> None:
        """Send SIGKILL to all processes of the machine at once."""
        _kill_with_descendants(self._machines[name])

    def freeze_machine(self, name: str) -> None:
        """Send SIGSTOP to all processes of the machine, as if the network had lost it."""
        _freeze(self._machines[name].pid)

    def thaw_machine(self, name: str) -> None:
        """Let the machine continue."""
        pid = self._machines[name].pid
        _signal([*descendants_of(pid), pid], signal.SIGCONT)

    def start_machines(self, names: Sequence[str]) -> None:
        """Start them, again if they were killed, and wait for all machines that live."""
        for name in names:
            self._machines[name] = self._start_machine(name, f"127.0.0.{2 + _number(name)}")
        self.await_machines(sum(not machine.has_ended for machine in self._machines.values()))

    def await_machines(self, count: int) -> None:
        """Wait until the cluster lists so many living machines."""
        wait_until(lambda: self._living() == count, PATIENCE_S, reason=f"{count} living machines")

    @abstractmethod
    def _start_machine(self, name: str, address: str) -> JavaProcess: ...

    @abstractmethod
    def _living(self) -> int:
        """Return how many machines the cluster lists as living."""


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])


def _kill_with_descendants(process: JavaProcess) -> None:
    if process.has_ended:
        return
    # Once all are stopped, none can start a process or see another one die.
    _signal(_freeze(process.pid), signal.SIGKILL)
    process.kill()


def _freeze(pid: int) -> Sequence[int]:
    """Send SIGSTOP to a process and its descendants until there are no new ones."""
    frozen: list[int] = []
    while len(found := [pid, *descendants_of(pid)]) > len(frozen):
        frozen = found
        _signal(frozen, signal.SIGSTOP)
    return frozen


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
