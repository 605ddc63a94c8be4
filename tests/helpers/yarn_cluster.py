"""Hadoop's YARN on this host: a ResourceManager and NodeManagers, each a JVM with its folders and address.

The default file system is this machine's, which all "machines" share.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.helpers.hadoop import PORT_ATTEMPTS, answer_of, hadoop_process
from tests.helpers.machines import HOST, PATIENCE_S, SPARK_HOME, Machines
from tests.helpers.wait import wait_until
from tests.real_broker.java_process import JavaProcess
from tests.real_broker.ports import free_ports

_SERVER = "org.apache.hadoop.yarn.server"
_PORTS = ("", "scheduler.", "resource-tracker.", "admin.", "webapp.")
_LOST_AFTER_MS = 3_000
"""How long a machine may be silent, instead of ten minutes."""
_CONTAINER_MB = 896
"""Smallest container that Spark asks for: 512 MiB, and 384 MiB beside the JVM's heap."""


class YarnCluster(Machines):
    """Each machine has room for a driver and two executors of 512 MiB; child processes end with them."""

    master = "yarn"

    def __init__(self, folder: Path, *, machines: int) -> None:
        super().__init__(folder)
        self.environment = {"HADOOP_CONF_DIR": str(folder / "conf-manager")}
        self.settings = {
            # Files that all machines have need not be sent to them.
            "spark.yarn.jars": f"local:{SPARK_HOME / 'jars'}/*",
            "spark.yarn.stagingDir": str(folder / "staging"),
            # A lost machine leaves fewer executors than a driver waits for.
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "5s",
        }
        try:
            self._start_manager()
            self.start_machines([f"machine-{number}" for number in range(machines)])
        except BaseException:
            self.close()
            raise

    def _start_manager(self) -> None:
        for _ in range(PORT_ATTEMPTS):
            manager = self._start_manager_at(free_ports(*range(len(_PORTS))))
            wait_until(lambda: self._is_up() or manager.has_ended, PATIENCE_S, reason="YARN's manager")  # noqa: B023 - called at once
            if self._is_up():
                return
            assert "in use" in manager.log_tail(), manager.log_tail()
        raise AssertionError("YARN's ResourceManager found no free ports")

    def _start_manager_at(self, port: int) -> JavaProcess:
        self._manager = {
            f"yarn.resourcemanager.{name}address": f"{HOST}:{port + number}"
            for number, name in enumerate(_PORTS)
        }
        self._nodes = f"http://{HOST}:{port + len(_PORTS) - 1}/ws/v1/cluster/nodes?states=RUNNING"
        manager = self._start_daemon("manager", "resourcemanager.ResourceManager", HOST, {})
        self._managers.append(manager)
        return manager

    def _is_up(self) -> bool:
        return self._answer() is not None

    def _start_machine(self, name: str, address: str) -> JavaProcess:
        own = {
            "yarn.nodemanager.address": f"{address}:0",
            "yarn.nodemanager.localizer.address": f"{address}:0",
            "yarn.nodemanager.collector-service.address": f"{address}:0",
            "yarn.nodemanager.webapp.address": f"{address}:0",
            "yarn.nodemanager.local-dirs": str(self.folder_of(name)),
            "yarn.nodemanager.log-dirs": str(self.folder / f"{name}-logs"),
            "yarn.nodemanager.resource.memory-mb": str(3 * _CONTAINER_MB),
            "yarn.nodemanager.vmem-check-enabled": "false",
            # Accept any full disk: it is checked once even if checks are switched off.
            "yarn.nodemanager.disk-health-checker.enable": "false",
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
            # Variables of this process's environment that containers get.
            "yarn.nodemanager.env-whitelist": "JAVA_HOME,JDK_JAVA_OPTIONS,SPARK_LOCAL_IP",
        }
        return self._start_daemon(name, "nodemanager.NodeManager", address, own)

    def _start_daemon(self, name: str, main_class: str, address: str, own: Mapping[str, str]) -> JavaProcess:
        sites = {"yarn-site": {**_SHARED, **self._manager, **own}, "capacity-scheduler": _QUEUES}
        return hadoop_process(self.folder, name, sites, f"{_SERVER}.{main_class}", address=address)

    def _living(self) -> int:
        nodes = (self._answer() or {}).get("nodes") or {}
        return len(nodes.get("node", ()))

    def _answer(self) -> dict[str, Any] | None:
        return answer_of(self._nodes)


_SHARED = {
    "yarn.nm.liveness-monitor.expiry-interval-ms": str(_LOST_AFTER_MS),
    "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "200",
    "yarn.resourcemanager.am.max-attempts": "10",
    "yarn.scheduler.minimum-allocation-mb": "128",
}
_QUEUES = {
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
    # An application's executors are spread over the machines.
    "yarn.scheduler.capacity.per-node-heartbeat.multiple-assignments-enabled": "false",
}
