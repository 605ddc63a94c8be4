"""Spark's own standalone cluster on this host: a master and workers, each a JVM,
from the installed pyspark.
"""

from __future__ import annotations

import json
import os
import re
import urllib.request
from contextlib import suppress
from pathlib import Path

from tests.helpers.machines import HOST, PATIENCE_S, SPARK_HOME, Machines
from tests.helpers.quick_jvm import QUICK_JVM
from tests.helpers.wait import wait_until
from tests.real_broker.java_process import JavaProcess


class StandaloneCluster(Machines):
    """A master, and workers of one core each; their child processes end with them."""

    def __init__(self, folder: Path, *, machines: int) -> None:
        super().__init__(folder)
        try:
            # The programs that bind ports choose them: one that was free a
            # moment ago may be somebody's page by now.
            master = self._start_daemon("master", "master.Master", HOST, "--port", "0")
            self._managers.append(master)
            self.master = _said_by(master, r"Starting Spark master at (spark://\S+)")
            self._page = _said_by(master, r"Bound MasterWebUI to .* and started at (http://\S+)") + "/json/"
            self.start_machines([f"machine-{number}" for number in range(machines)])
        except BaseException:
            self.close()
            raise

    def _living(self) -> int:
        with suppress(OSError), urllib.request.urlopen(self._page, timeout=5.0) as answer:
            page = answer.read()
            # Empty while the master is not up yet.
            return int(json.loads(page)["aliveworkers"]) if page else 0
        return 0

    def _start_machine(self, name: str, address: str) -> JavaProcess:
        resources = ("--cores", "1", "--memory", "1g", "--work-dir", str(self.folder_of(name)))
        return self._start_daemon(name, "worker.Worker", address, *resources, self.master)

    def _start_daemon(self, name: str, main_class: str, address: str, *arguments: str) -> JavaProcess:
        # The ports are logged under Spark's own configuration, not under ours.
        without = {"PYTHONPATH", "SPARK_CONF_DIR"}
        environment = {
            **{name: value for name, value in os.environ.items() if name not in without},
            "JDK_JAVA_OPTIONS": QUICK_JVM,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_DIRS": str(self.folder / f"{name}-scratch"),
            "SPARK_LOCAL_IP": address,
        }
        start = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{main_class}"]
        command = [*start, "--host", address, "--webui-port", "0", *arguments]
        return JavaProcess(command, environment, self.folder / f"{name}.log")


def _said_by(process: JavaProcess, what: str) -> str:
    """Return the group of a pattern in a process's output, once it is printed.

    Raises:
        AssertionError: If it ends, or has not printed that after two minutes.
    """

    def said() -> re.Match[str] | None:
        assert not process.has_ended, process.log_tail()
        return re.search(what, process.log_tail())

    found = wait_until(said, PATIENCE_S, reason=f"A line like {what!r}")
    return found[1]
