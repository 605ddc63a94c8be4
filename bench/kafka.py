"""A Kafka broker, and the jars with which Spark reads it."""

from __future__ import annotations

import base64
import socket
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from bench.cluster import SERVER_OPTIONS
from tests.helpers.wait import wait_until
from tests.real_broker.artifacts import CACHE, fetch_once
from tests.real_broker.java_process import JavaProcess, java_command, java_environment
from tests.real_broker.ports import free_ports

_HERE: Final = Path(__file__).parent
_START_S: Final = 60.0
_FORMAT_S: Final = 60.0
_PROPERTIES: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/logs
num.partitions={partitions}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


def fetch_spark_kafka_jars() -> list[Path]:
    """Return the jars of Spark's source for Kafka; download them if they are not there yet."""
    lib = fetch_once("Spark's source for Kafka", _HERE / "spark_kafka.pom.xml", CACHE / "spark-kafka-4.2.0")
    return sorted(lib.glob("*.jar"))


@contextmanager
def kafka_broker(folder: Path, *, partitions: int) -> Iterator[str]:
    """Run a broker during the block; yield its address. New topics have ``partitions`` partitions."""
    lib = fetch_once("Kafka", _HERE / "kafka.pom.xml", CACHE / "kafka-3.9.1")
    folder.mkdir(parents=True)
    port = free_ports(0, 1)
    properties = folder / "kafka.properties"
    properties.write_text(
        _PROPERTIES.format(port=port, controller=port + 1, folder=folder, partitions=partitions)
    )
    environment = {**java_environment([lib / "*"]), "_JAVA_OPTIONS": SERVER_OPTIONS}
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    format_logs = ["format", "-t", cluster_id, "-c", str(properties)]
    with (folder / "log").open("wb") as log:
        subprocess.run(
            java_command(folder, "kafka.tools.StorageTool", format_logs, heap=()),
            env=environment,
            check=True,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=_FORMAT_S,
        )
    command = java_command(folder, "kafka.Kafka", [str(properties)], heap=())
    broker = JavaProcess(command, environment, folder / "log")
    try:
        wait_until(lambda: broker.has_ended or _answers(port), _START_S, reason="Kafka's port")
        if broker.has_ended:
            raise RuntimeError(f"Kafka has ended: {broker.log_tail()}")
        yield f"127.0.0.1:{port}"
    finally:
        broker.kill()


def _answers(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
