"""The quick start as it is written, in a program whose environment nobody has activated."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from broker_sim.cluster import SimCluster
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.model import Message
from tests.docs.pages import ROOT, blocks
from tests.helpers.quick_jvm import QUICK_JVM
from tests.helpers.spark_session import delta_jars

pytestmark = [pytest.mark.spark, pytest.mark.driver, pytest.mark.sim]

CHOICE = 'os.environ["PYSPARK_PYTHON"] = sys.executable'
WITHOUT_MAVEN = """
import delta
delta.configure_spark_with_delta_pip = lambda builder: builder.config("spark.jars", {jars!r})
"""
NOT_ACTIVATED = {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV", "SPARK_CONF_DIR", "SPARK_HOME"}


def page() -> list[str]:
    return [block.text for block in blocks("python") if block.page == "docs/quickstart.md"]


def run_unactivated(program: str, folder: Path) -> str:
    """Run it as an IDE, a Jupyter kernel or cron does: by the path of its Python.

    The ``python3`` of the PATH has none of the packages.
    """
    venv.create(folder / "bare", with_pip=False)
    elsewhere = {name: text for name, text in os.environ.items() if name not in NOT_ACTIVATED}
    jars = ",".join(map(str, delta_jars()))
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MAVEN.format(jars=jars) + program],
        cwd=folder,
        env=elsewhere
        | {
            "PATH": f"{folder / 'bare' / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "connector"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JDK_JAVA_OPTIONS": QUICK_JVM,
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout


@pytest.mark.parametrize("chooses", [True, False], ids=["as written", "without PYSPARK_PYTHON"])
def test_the_quick_start_runs_where_no_environment_is_activated(chooses: bool, tmp_path: Path) -> None:
    """Spark starts ``python3`` for workers, whatever runs the program; register() gives the session ours."""
    program = "\n".join(page())
    assert CHOICE in program
    with SimCluster(brokers=1) as cluster:
        cluster.create_topic("orders", queues=4)
        with Producer(cluster.name_servers, "shop") as producer:
            for number in range(3):
                producer.send(Message(topic="orders", body=b"paid", properties={"KEYS": f"o{number}"}))
        program = program.replace("127.0.0.1:9876", cluster.name_servers).replace("/lake", f"{tmp_path}/lake")

        printed = run_unactivated(program if chooses else program.replace(CHOICE, ""), tmp_path)

    assert printed.count("paid") == 6, printed
