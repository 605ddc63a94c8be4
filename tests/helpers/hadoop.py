"""Hadoop's servers as processes of this host: their classes, configuration and environment; and HDFS.

python -m tests.helpers.hadoop     # fetch the jars that Spark lacks into .cache/, as `make long-test` does
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from pyspark_rocketmq.client.transport import Closing
from tests.helpers.machines import HOST, PATIENCE_S, SPARK_HOME
from tests.helpers.quick_jvm import QUICK_JVM
from tests.helpers.wait import wait_until
from tests.real_broker.artifacts import fetch_hadoop_jars, fetch_s3a_jars, require_program
from tests.real_broker.java_process import JavaProcess
from tests.real_broker.ports import free_ports

Sites = Mapping[str, Mapping[str, str]]
"""Settings, by the file that has them, such as ``core-site``."""

PORT_ATTEMPTS = 3
_NOT_PASSED_ON = {"PYTHONPATH", "SPARK_CONF_DIR", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"}
_LOGGING = """
rootLogger.level = info
rootLogger.appenderRef.stdout.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""
_NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
_LIVING = "Hadoop:service=NameNode,name=FSNamesystemState"


def hadoop_process(
    folder: Path, name: str, sites: Sites, main_class: str, *arguments: str, address: str = HOST
) -> JavaProcess:
    """Start a server, or a program of Hadoop, that is configured in ``folder/conf-NAME`` and logs to
    ``folder/NAME.log``.
    """
    java = Path(require_program("java", "install a JDK of version 17 or later")).resolve()
    conf = folder / f"conf-{name}"
    conf.mkdir(exist_ok=True)
    core = {"hadoop.tmp.dir": str(folder / f"{name}-tmp"), **sites.get("core-site", {})}
    for site, settings in {**sites, "core-site": core}.items():
        (conf / f"{site}.xml").write_text(_xml(settings))
    (conf / "log4j2.properties").write_text(_LOGGING)
    environment = {
        **{variable: value for variable, value in os.environ.items() if variable not in _NOT_PASSED_ON},
        "CLASSPATH": os.pathsep.join([str(conf), f"{fetch_hadoop_jars()}/*", f"{SPARK_HOME}/jars/*"]),
        "JAVA_HOME": str(java.parents[1]),
        "JDK_JAVA_OPTIONS": QUICK_JVM,
        "SPARK_LOCAL_IP": address,
    }
    return JavaProcess([str(java), "-Xmx256m", main_class, *arguments], environment, folder / f"{name}.log")


def answer_of(url: str) -> dict[str, Any] | None:
    """Return the JSON that a server answers; None if it does not answer yet."""
    with suppress(OSError, ValueError), urllib.request.urlopen(url, timeout=5.0) as answer:
        return dict(json.loads(answer.read()))
    return None


def _xml(settings: Mapping[str, str]) -> str:
    properties = "".join(
        f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in settings.items()
    )
    return f"<configuration>\n{properties}</configuration>\n"


class Hdfs(Closing):
    """A NameNode and a DataNode; a context manager that leaves no process behind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[JavaProcess] = []
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill both."""
        while self._processes:
            self._processes.pop().kill()

    def _start(self) -> None:
        for _ in range(PORT_ATTEMPTS):
            port = free_ports(0, 1)
            self.uri = f"hdfs://{HOST}:{port}"
            """Address of its root."""
            sites = {
                "core-site": {"fs.defaultFS": self.uri, "hadoop.tmp.dir": str(self._folder / "hdfs-tmp")},
                "hdfs-site": {
                    "dfs.replication": "1",
                    "dfs.namenode.http-address": f"{HOST}:{port + 1}",
                    "dfs.datanode.address": f"{HOST}:0",
                    "dfs.datanode.http.address": f"{HOST}:0",
                    "dfs.datanode.ipc.address": f"{HOST}:0",
                    # Closing a file would otherwise wait 400 ms for the report of its last block.
                    "dfs.namenode.file.close.num-committed-allowed": "1",
                    "dfs.namenode.edits.noeditlogchannelflush": "true",
                },
            }
            arguments = ("-format", "-force", "-nonInteractive")
            formatting = hadoop_process(self._folder, "format", sites, _NAME_NODE, *arguments)
            self._processes.append(formatting)
            wait_until(lambda: formatting.has_ended, PATIENCE_S, reason="a file system")  # noqa: B023 - called at once
            self._processes += [
                hadoop_process(self._folder, "name-node", sites, _NAME_NODE),
                hadoop_process(self._folder, "data-node", sites, _DATA_NODE),
            ]
            living = f"http://{HOST}:{port + 1}/jmx?qry={_LIVING}"
            wait_until(lambda: self._is_up(living) or self._has_ended(), PATIENCE_S, reason="HDFS")  # noqa: B023
            if self._is_up(living):
                return
            said = "".join(process.log_tail() for process in self._processes)
            assert "in use" in said, said
            self.close()
        raise AssertionError("HDFS found no free ports")

    def _is_up(self, living: str) -> bool:
        beans = (answer_of(living) or {}).get("beans") or [{}]
        return bool(beans[0].get("NumLiveDataNodes"))

    def _has_ended(self) -> bool:
        return any(process.has_ended for process in self._processes[1:])


if __name__ == "__main__":
    fetch_hadoop_jars()
    fetch_s3a_jars()
