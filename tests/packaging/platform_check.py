"""Installs the wheel with pip into an environment that has this Python's packages and nothing of the checkout, and
runs the README's consumer and a batch read there, against the simulator.

    python -m tests.packaging.platform_check WHEEL

The packages are looked at by pip, which refuses the wheel beside others than it allows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from sysconfig import get_path

from broker_sim.cluster import SimCluster
from broker_sim.settings import BrokerSettings
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.model import Message
from tests.docs.pages import blocks
from tests.helpers.quick_jvm import QUICK_JVM

_ORDERS = 50
_STEPS = ("created", "paid", "packed")
_PROGRAM = """
import sys, time
from pyspark.sql import SparkSession
from deltalake import DeltaTable

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
{consumer}
deadline = time.monotonic() + 150
def rows():
    return DeltaTable("{lake}/orders").to_pyarrow_table().num_rows if DeltaTable.is_deltatable("{lake}/orders") else 0
while query.isActive and rows() < {wanted} and time.monotonic() < deadline:
    time.sleep(0.2)
if query.exception() is not None:
    sys.exit(str(query.exception()))
query.stop()
rmq.register(spark)
read = spark.read.format("rocketmq").options(nameServers="{name_servers}", topic="orders").load()
print(f"spark {{spark.version}} consumed {{rows()}} read {{read.count()}} from {{rmq.__file__}}")
"""
"""The query has a trigger of its own: only what is in its table says when it is done."""


def run(wheel: Path) -> str:
    """What the program in the new environment printed at its end.

    Raises:
        CalledProcessError: If pip refuses the wheel, or the program fails.
    """
    with tempfile.TemporaryDirectory(prefix="wheel-") as folder:
        root = Path(folder)
        return consumed_by(_environment(root / "env", wheel), root)


def consumed_by(python: Path, root: Path) -> str:
    """Run the program in the environment of ``python``; what it printed at its end.

    Raises:
        SystemExit: If it failed, or has not consumed and read everything.
    """
    with _orders() as cluster:
        program = root / "program.py"
        program.write_text(_program(root / "lake", cluster.name_servers))
        elsewhere = {
            key: text for key, text in os.environ.items() if not key.startswith(("PYTHONPATH", "SPARK_"))
        }
        started = subprocess.run(
            [python, program],
            cwd=root,
            env=elsewhere
            | {
                "JDK_JAVA_OPTIONS": QUICK_JVM,
                "PYSPARK_PYTHON": str(python),
                "PYSPARK_DRIVER_PYTHON": str(python),
            },
            check=False,
            capture_output=True,
            text=True,
            timeout=240,
        )
    if started.returncode != 0:
        raise SystemExit(started.stderr[-4000:])
    told = started.stdout.splitlines()[-1]
    if f"consumed {2 * _ORDERS} read {len(_STEPS) * _ORDERS} " not in told:
        raise SystemExit(
            f"{told}\n{2 * _ORDERS} messages were to be consumed and {len(_STEPS) * _ORDERS} to be read."
        )
    return told


@contextmanager
def _orders() -> Iterator[SimCluster]:
    """Orders of which the README's consumer wants two messages in three."""
    with SimCluster(brokers=1, settings=BrokerSettings()) as cluster:
        cluster.create_topic("orders", queues=4)
        with Producer(cluster.name_servers, "shop") as producer:
            producer.send_ordered(
                (
                    f"o{number}",
                    Message(
                        topic="orders", body=step.encode(), properties={"KEYS": f"o{number}", "TAGS": step}
                    ),
                )
                for number in range(_ORDERS)
                for step in _STEPS
            )
        yield cluster


def _environment(folder: Path, wheel: Path) -> Path:
    """The Python of a new environment with the wheel, in which the packages of this one can be imported."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    site = next(folder.glob("lib/python3.*/site-packages"))
    (site / "packages.pth").write_text(get_path("purelib"))
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-index",
        str(wheel),
    ]
    subprocess.run(
        pip, check=True, env={key: text for key, text in os.environ.items() if key != "PYTHONPATH"}
    )
    return python


def _program(lake: Path, name_servers: str) -> str:
    (consumer,) = (
        block.text for block in blocks("python") if block.page == "README.md" and "PushConsumer" in block.text
    )
    fitted = consumer.replace("/lake", str(lake)).replace("127.0.0.1:9876", name_servers)
    return textwrap.dedent(_PROGRAM).format(
        consumer=fitted, lake=lake, wanted=2 * _ORDERS, name_servers=name_servers
    )


if __name__ == "__main__":
    (built,) = map(Path, sys.argv[1:])
    sys.stdout.write(f"{run(built)}\n")
