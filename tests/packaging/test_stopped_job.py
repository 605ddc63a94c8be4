"""Job ``consume`` is asked to end while its listener is at work."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from broker_sim.cluster import SimCluster
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from tests.helpers import held_listener
from tests.helpers.driver_process import ENVIRONMENT, consume_command, running
from tests.helpers.quick_jvm import QUICK_JVM
from tests.helpers.wait import wait_until

pytestmark = [pytest.mark.driver, pytest.mark.sim, pytest.mark.timeout(600)]

PATIENCE_S = 240.0
"""More than a job takes to start or to end on a busy machine."""

By = Callable[[int], None]
HOW: list[tuple[signal.Signals, By]] = [
    (signal.SIGTERM, lambda pid: os.kill(pid, signal.SIGTERM)),
    (signal.SIGINT, lambda pid: os.killpg(pid, signal.SIGINT)),
]
"""As a supervisor does it, and as Ctrl-C in a terminal."""


@pytest.fixture
def brokers() -> Iterator[SimCluster]:
    with SimCluster(brokers=1) as cluster:
        cluster.create_topic("orders", queues=1)
        yield cluster


@pytest.mark.parametrize(
    ("number", "tell", "is_driver"),
    [
        pytest.param(*HOW[0], False, id="SIGTERM to spark-submit"),
        pytest.param(*HOW[1], False, id="Ctrl-C"),
        pytest.param(*HOW[0], True, id="SIGTERM to the driver", marks=pytest.mark.long),
    ],
)
def test_a_job_that_is_to_end_waits_for_the_call_in_hand_and_commits_it(
    number: signal.Signals, tell: By, is_driver: bool, brokers: SimCluster, tmp_path: Path
) -> None:
    """B7: and calls the listener for nothing more."""
    with Producer((brokers.name_servers,), "P") as producer:
        for text in ("first", "second"):
            producer.send(Message(topic="orders", body=text.encode()))
    log = tmp_path / "log"
    options = {
        "nameServers": brokers.name_servers,
        "topic": "orders",
        "consumerGroup": "g",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "listener": f"{held_listener.__name__}:{held_listener.on_message.__name__}",
        "outputSchema": "text string",
        "sink": str(tmp_path / "sink"),
        "offsetStore": str(tmp_path / "offsets"),
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    environment = ENVIRONMENT | {
        "JDK_JAVA_OPTIONS": QUICK_JVM,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_MASTER": "local[2]",
        held_listener.FOLDER: str(tmp_path),
    }

    command = consume_command(options)
    if is_driver:
        # As the console script does: this process is the driver, and starts the JVM.
        command[:1] = [sys.executable, "-m", "pyspark_rocketmq.cli"]
        environment = {
            name: value for name, value in environment.items() if name not in {"SPARK_CONF_DIR", "SPARK_HOME"}
        }

    with running(command, log, folder=tmp_path, environment=environment) as job:
        wait_until(
            lambda: (tmp_path / "first").exists() or job.poll() is not None, PATIENCE_S, reason="A call"
        )
        tell(job.pid)
        wait_until(lambda: f"{number.name}: waiting" in log.read_text(), PATIENCE_S, reason="The signal")
        (tmp_path / "go").touch()
        exit_code = job.wait(PATIENCE_S)

    assert exit_code == 128 + number, log.read_text()[-4000:]
    shown = log.read_text()
    assert "Stopped: the finished work is committed, and the queues are given back." in shown
    assert "Starting Spark, which takes some seconds." in shown
    assert re.search(r"Spark started in \d+ s; its first rows take some seconds more", shown)
    assert "rows committed by this run: 1" in shown
    assert not (tmp_path / "second").exists()
    assert DeltaTable(tmp_path / "sink").to_pyarrow_table().column("text").to_pylist() == ["first"]
    row = DeltaOffsetStore(tmp_path / "offsets").read("g")[MessageQueue("orders", "broker-a", 0)]
    assert row.next_offset == 1
