"""Spark's own standalone cluster on this host: a master and workers, each a JVM,
from the installed pyspark.
"""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from tests.helpers.processes import is_standalone_worker, parent_of
from tests.helpers.quick_jvm import QUICK_JVM
from tests.helpers.wait import wait_until
from tests.real_broker.java_process import JavaProcess

SPARK_HOME = Path(pyspark.__file__).parent
_PATIENCE_S = 120.0
"""More than a JVM takes to start on a busy machine."""
_HOST = "127.0.0.1"


class StandaloneCluster:
    """A master and ``workers`` workers of one core each; whatever they started ends with them."""

    def __init__(self, folder: Path, *, workers: int) -> None:
        self._folder = folder
        self._processes = ExitStack()
        # Spark's own configuration tells the ports; ours is silent.
        without = {"PYTHONPATH", "SPARK_CONF_DIR"}
        self._environment = {
            **{name: value for name, value in os.environ.items() if name not in without},
            "JDK_JAVA_OPTIONS": QUICK_JVM,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_DIRS": str(folder / "scratch"),
            "SPARK_LOCAL_IP": _HOST,
        }
        try:
            # Ports are chosen by who binds them: one that was free a
            # moment ago may be somebody's page by now.
            master = self._start("master", "master.Master", "--port", "0", "--webui-port", "0")
            self.master = _said_by(master, r"Starting Spark master at (spark://\S+)")
            self._page = _said_by(master, r"Bound MasterWebUI to .* and started at (http://\S+)") + "/json/"
            for number in range(workers):
                self._start_worker(f"worker-{number}")
            self.await_workers(workers)
        except BaseException:
            self._processes.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._processes.close()

    def await_workers(self, count: int) -> None:
        """Wait until the master counts so many living workers."""
        wait_until(lambda: self._living_workers() == count, _PATIENCE_S, reason=f"{count} living workers")

    def _living_workers(self) -> int:
        with suppress(OSError), urllib.request.urlopen(self._page, timeout=5.0) as answer:
            page = answer.read()
            # Empty while the master is not up yet.
            return int(json.loads(page)["aliveworkers"]) if page else 0
        return 0

    def _start_worker(self, name: str) -> None:
        resources = ("--cores", "1", "--memory", "1g", "--webui-port", "0")
        self._start(name, "worker.Worker", *resources, "--work-dir", str(self._folder / name), self.master)

    def _start(self, name: str, main_class: str, *arguments: str) -> JavaProcess:
        process = JavaProcess(
            [
                str(SPARK_HOME / "bin" / "spark-class"),
                f"org.apache.spark.deploy.{main_class}",
                "--host",
                _HOST,
                *arguments,
            ],
            self._environment,
            self._folder / f"{name}.log",
        )
        self._processes.callback(process.kill)
        return process


def _said_by(process: JavaProcess, what: str) -> str:
    """The group of a pattern in what a process prints, once it does.

    Raises:
        AssertionError: If it ends, or has not printed that after two minutes.
    """

    def said() -> re.Match[str] | None:
        assert not process.has_ended, process.log_tail()
        return re.search(what, process.log_tail())

    found = wait_until(said, _PATIENCE_S, reason=f"A line like {what!r}")
    return found[1]


def kill_machine_of(pid: int) -> Sequence[int]:
    """SIGKILL at once to a Python worker and all that a lost machine takes along: daemon, executor,
    Spark's Worker.

    Returns:
        Who was killed, the Worker last.
    """
    doomed = [pid]
    while not is_standalone_worker(doomed[-1]):
        parent = parent_of(doomed[-1])
        assert parent, f"process {pid} does not descend from a Worker of Spark's"
        doomed.append(parent)
    # From the top, so that nobody sees another one die.
    for each in reversed(doomed):
        os.kill(each, signal.SIGKILL)
    return doomed
