"""Starts applications of a group in separate processes,
and ends and pauses them in every possible way.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from pyspark_rocketmq.consume.membership import MembershipTiming
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.delta import _read_rows
from pyspark_rocketmq.offsets.store import OffsetRow
from tests.applications.storage import Storage
from tests.helpers.driver_process import ENVIRONMENT, REPO
from tests.helpers.processes import all_pids, is_jvm, is_planner, is_worker_daemon, parent_of, session_of

DIE = "die-before-offsets"
"""A file of a group's folder; the application that commits a queue of the broker in it ends."""
DIES = "killed between the sink's commit and that of the offsets"
_STARTS_S = 120.0
"""Longest time from the start of an application to its first plan."""
_POLL_S = 0.25
_PAUSES = 4.0
"""Pause between two checks, in multiples of the duration of the last one."""


class Pace(NamedTuple):
    """How often an application consumes and commits."""

    trigger: Mapping[str, str]
    commit_interval: str | None = None
    """Time between two commits within a batch; without one a micro-batch has one commit."""

    def __str__(self) -> str:
        [(kind, lasts)] = self.trigger.items()
        commits = "" if self.commit_interval is None else f", commits every {self.commit_interval}"
        return f"{kind} {lasts}{commits}"


EVERY_SECOND = Pace({"processingTime": "1 second"})


@dataclass(frozen=True, kw_only=True)
class Group:
    """Settings that the applications of one group share."""

    name_servers: str
    topic: str
    group: str
    folder: Path
    """For logs, checkpoints, and the tables where no storage is named."""
    timing: MembershipTiming
    more_topics: tuple[str, ...] = ()
    """Further topics of the subscription."""
    topics_change: bool = False
    """Whether topics are deleted and made again, so that offsets begin again (``failOnDataLoss=false``)."""

    on: Storage | None = None

    @property
    def storage(self) -> Storage:
        """Where the tables are."""
        return self.on or Storage(self.folder)

    @property
    def offsets(self) -> str:
        """The group's offset store."""
        return self.storage.uri("offsets")

    @property
    def sink(self) -> str:
        """The table all applications write to."""
        return self.storage.uri("sink")

    def rows(self) -> Mapping[MessageQueue, OffsetRow]:
        """Return the group's offsets, none without a store."""
        table = self.storage.table("offsets")
        return {} if table is None else _read_rows(table, self.group)


def wait_patiently(condition: Callable[[], bool], timeout_s: float, *, reason: str) -> None:
    """Wait like ``wait_until``, for conditions that are expensive to check.

    Raises:
        AssertionError: If it did not come true within ``timeout_s``.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        began_s = time.monotonic()
        if condition():
            return
        now_s = time.monotonic()
        if now_s >= deadline_s:
            raise AssertionError(f"{reason} did not come true within {timeout_s:g} s.")
        # An emulator of storage serves everyone from one core.
        time.sleep(max(_POLL_S, _PAUSES * (now_s - began_s)))


_PLANNING = ("PythonPlannerRunner.runInPython", "PythonStreamingSourceRunner")
"""Spark's classes that plan with Python."""


class RunningApplication:
    """One Spark application: the driver, its JVM, the process that plans, Python workers;
    one session of processes.
    """

    def __init__(
        self,
        group: Group,
        instance: str,
        *,
        checkpoint: str | None = None,
        pace: Pace = EVERY_SECOND,
        module: str = "tests.applications.application",
        more: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """Start it under ``instance``.

        Args:
            group: What it is a member of.
            instance: Its name.
            checkpoint: Name of an earlier application's folder, to continue from its checkpoint.
            pace: How often it consumes and commits.
            module: Program that it runs.
            more: Further settings of that program.
        """
        self.instance = instance
        self.client_id = f"{os.uname().nodename}@{instance}"
        self.log = group.folder / f"{instance}.log"
        self._log_begins_at = self.log.stat().st_size if self.log.exists() else 0
        """Size of the log that earlier applications of this name have written."""
        self.was_ended = False
        """Whether a test asked it to end."""
        config = {
            "nameServers": group.name_servers,
            "topics": [group.topic, *group.more_topics],
            "topicsChange": group.topics_change,
            "trigger": pace.trigger,
            "commitInterval": pace.commit_interval,
            "group": group.group,
            "offsets": group.offsets,
            "sink": group.sink,
            "keys": str(group.storage.keys.path) if group.storage.keys else None,
            "timing": asdict(group.timing),
            "instance": instance,
            "folder": str(group.folder),
            "work": str(group.folder / f"{instance}-work"),
            "checkpoint": str(group.folder / f"{checkpoint or instance}-checkpoint"),
            **more,
        }
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(config)],
                cwd=REPO,
                env=ENVIRONMENT,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    @property
    def is_alive(self) -> bool:
        """Whether any of its processes lives; orphans of a killed one end by themselves."""
        return self.exit_code is None or bool(self._pids())

    def ask_to_stop(self) -> None:
        """Let its query stop in good order; it then exits with code 0."""
        self.was_ended = True
        assert self._process.stdin is not None
        self._process.stdin.close()

    def await_exit(self, timeout_s: float) -> int:
        """Wait for the end, and return the exit code."""
        return self._process.wait(timeout_s)

    def kill(self) -> None:
        """Send SIGKILL to everything, as when a machine dies."""
        self.was_ended = True
        self._signal(signal.SIGKILL, *self._pids())
        self._process.wait()

    def kill_driver(self) -> None:
        """Send SIGKILL only to the driver's Python; the JVM and its children notice by themselves."""
        self.was_ended = True
        self._process.kill()
        self._process.wait()

    def kill_jvm(self) -> None:
        """Send SIGKILL only to the JVM: the driver's Python lives on, perhaps in the middle of a commit."""
        self._kill_once_there("its JVM", is_jvm)

    def kill_planner(self) -> None:
        """Send SIGKILL to Spark's source runner, which ends the query and so the application."""
        self._kill_once_there("the process that plans", is_planner)

    def kill_worker(self) -> None:
        """Send SIGKILL to one Python worker, whose task Spark tries again;
        do nothing if there is none at this moment.
        """
        self._signal(signal.SIGKILL, *self._workers()[-1:])

    def pause_worker(self) -> None:
        """Send SIGSTOP to one Python worker; do nothing if there is none at this moment."""
        self._signal(signal.SIGSTOP, *self._workers()[-1:])

    @property
    def ended_planning(self) -> bool:
        """True if it ended because a worker that Spark plans with died:
        Spark does not retry those.
        """
        return any(name in self._said for name in _PLANNING)

    @property
    def ended_before_offsets(self) -> bool:
        """True if it was killed between the commits of the sink and of the offsets."""
        return DIES in self._said

    @property
    def _said(self) -> str:
        return self.log.read_bytes()[self._log_begins_at :].decode(errors="replace")

    def pause(self) -> None:
        """Send SIGSTOP to everything."""
        self._signal(signal.SIGSTOP, *self._pids())
        # Stop processes that were forked meanwhile, too.
        self._signal(signal.SIGSTOP, *self._pids())

    def resume(self) -> None:
        """Send SIGCONT to everything."""
        self._signal(signal.SIGCONT, *self._pids())

    def close(self) -> None:
        """Leave no process behind."""
        self.kill()
        with suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()

    def _workers(self) -> list[int]:
        """Python workers of tasks, the oldest first."""
        daemons = {pid for pid in self._pids() if is_worker_daemon(pid)}
        return sorted(pid for pid in daemons if parent_of(pid) in daemons)

    def _kill_once_there(self, what: str, is_it: Callable[[int], bool]) -> None:
        """Send SIGKILL to the processes that are meant; wait for one while the application still starts."""

        def found() -> list[int]:
            return [pid for pid in self._pids() if is_it(pid)]

        self.was_ended = True
        wait_patiently(
            lambda: self.exit_code is not None or bool(found()),
            _STARTS_S,
            reason=f"{what} of {self.instance}",
        )
        self._signal(signal.SIGKILL, *found())

    def _signal(self, number: signal.Signals, *pids: int) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _pids(self) -> list[int]:
        """Return all processes of its session; Python workers have their own process group."""
        return [pid for pid in all_pids() if session_of(pid) == self._process.pid]
