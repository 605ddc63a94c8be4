"""Real clusters on this host, Spark's own and YARN: how our code gets to their executors,
and what the loss of a machine costs.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import pytest
from deltalake.exceptions import TableNotFoundError

from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from tests.applications.order_flow import OrderFlow, not_as_sent, stored_orders
from tests.applications.verdict import judge
from tests.docs.pages import ROOT, blocks
from tests.helpers import submitted_job
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.driver_process import consume_command, running
from tests.helpers.hadoop import Hdfs
from tests.helpers.machines import SPARK_HOME, Machines
from tests.helpers.orders import Orders, produce_orders
from tests.helpers.quick_jvm import QUICK_JVM
from tests.helpers.retries import rows_but_retries
from tests.helpers.standalone_cluster import StandaloneCluster
from tests.helpers.wait import wait_until
from tests.helpers.yarn_cluster import YarnCluster

pytestmark = [pytest.mark.driver, pytest.mark.long, pytest.mark.timeout(600)]

PATIENCE_S = 240.0
"""More than a job takes to start or to end on a busy machine."""
PAGE = "docs/how-to/deployment.md"
PRIVATE = "/proc/self/cwd/private"
"""Another folder for each process."""
DELTA_JARS = ROOT / ".cache" / f"delta-jars-{version('delta-spark')}"

T = TypeVar("T")

READ_BY_NAME = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
options = {"nameServers": sys.argv[1], "topic": sys.argv[2], "startingOffsets": "earliest"}
messages = spark.read.format("rocketmq").options(**options).load()
print("messages", messages.select("keys").distinct().count(), messages.count())
query = (
    spark.readStream.format("rocketmq").options(**options).load()
    .writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
)
assert query.awaitTermination(120)
print("stream", spark.table("seen").count())
listed = ", ".join(f"{name} '{value}'" for name, value in options.items())
spark.sql(f"CREATE TEMPORARY VIEW orders USING rocketmq OPTIONS ({listed})")
print("view", spark.table("orders").select("msgId", "keys").count())
where = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("pyspark_rocketmq").__file__).first()
print("executors import", where)
"""


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("standalone"), machines=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnCluster]:
    with YarnCluster(tmp_path_factory.mktemp("yarn"), machines=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    with Hdfs(tmp_path_factory.mktemp("hdfs")) as file_system:
        yield file_system


@pytest.fixture
def machines(request: pytest.FixtureRequest) -> Machines:
    found: Machines = request.getfixturevalue(request.param)
    return found


def environment_of(cluster: Machines, **more: str) -> dict[str, str]:
    """Of somebody who submits to the cluster, on a machine where nothing of ours is installed but Spark."""
    ours = {"PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_CONF_DIR"}
    return {
        **{name: value for name, value in os.environ.items() if name not in ours},
        **cluster.environment,
        "JDK_JAVA_OPTIONS": QUICK_JVM,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        **more,
    }


@pytest.fixture
def topic(cluster: ClusterUnderTest) -> str:
    """One of this test's own."""
    name = cluster.unique_name("orders")
    cluster.create_topic(name, queues=4)
    return name


def documented(*parts: str, **changes: str) -> str:
    """The block of commands of the page that has all the ``parts``, with what stands for the reader's
    own replaced.
    """
    (text,) = [
        block.text
        for block in blocks("bash")
        if block.page == PAGE and all(part in block.text for part in parts)
    ]
    # What is downloaded there is here.
    delta = re.search(r"--packages \S+", text)
    if delta:
        jars = ",".join(map(str, DELTA_JARS.glob("*.jar")))
        text = text.replace(delta[0], f"--jars {jars}")
    for part, value in changes.items():
        assert part in text
        text = text.replace(part, value)
    return text


@pytest.fixture
def packed_environment(wheel: Path, tmp_path: Path) -> Path:
    """The folder of somebody who submits, with an environment packed as the page says; what the wheel
    needs is the tests' own, instead of a download, and Spark is not in it.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "packed"], cwd=tmp_path, check=True)
    made = tmp_path / "packed"
    install = [sys.executable, "-m", "pip", "--python", str(made / "bin/python"), "install", "--quiet"]
    subprocess.run([*install, "--no-deps", "--no-index", str(wheel)], check=True)
    (packages,) = made.glob("lib/python*/site-packages")
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        link = packages / package.name
        if package.name not in {"pyspark", "py4j"} and not link.exists():
            link.symlink_to(package)
    pack = documented("pip install dist").splitlines()[-1]
    subprocess.run(["bash", "-c", pack], cwd=tmp_path, check=True)
    return tmp_path


class Submission:
    """What is submitted from ``folder``, and what is known of it from outside."""

    def __init__(
        self,
        machines: Machines,
        brokers: ClusterUnderTest,
        folder: Path,
        topic: str,
        *,
        lake: str | None = None,
    ) -> None:
        """Prepare it; its tables are in ``lake``, or in the folder itself."""
        lake = lake or str(folder)
        self.machines = machines
        self.folder = folder
        self.more = {
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.executor.instances": "2",
            f"spark.executorEnv.{submitted_job.FOLDER}": str(folder),
            **machines.settings,
        }
        """What this cluster and this test want from ``spark-submit``."""
        self.log = folder / "log"
        self.sink = f"{lake}/sink"
        self.flow = OrderFlow(brokers.name_servers, topic, per_second=50.0)
        self._brokers = brokers
        self._store = DeltaOffsetStore(f"{lake}/offsets")
        self.settings = {
            "nameServers": brokers.name_servers,
            "topic": topic,
            "consumerGroup": f"group-of-{topic}",
            "sink": self.sink,
            "offsetStore": f"{lake}/offsets",
            "checkpoint": f"{lake}/checkpoint",
        }

    @property
    def options(self) -> dict[str, str]:
        """Of job ``consume``."""
        return {
            **self.settings,
            "listener": "submitted_job:on_orders",
            "pyFiles": submitted_job.__file__,
            "outputSchema": submitted_job.OUTPUT_SCHEMA,
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "trigger": "500 milliseconds",
        }

    @property
    def environment(self) -> dict[str, str]:
        """With :attr:`more` in ``MORE``."""
        more = " ".join(f"--conf {name}={value}" for name, value in self.more.items())
        return environment_of(self.machines, MORE=more)

    @contextmanager
    def run(self, commands: str) -> Iterator[subprocess.Popen[bytes]]:
        """The commands, while orders flow."""
        shell = ["bash", "-c", commands]
        with (
            running(shell, self.log, folder=self.folder, environment=self.environment) as job,
            self.flow,
        ):
            self._job = job
            yield job

    def said(self) -> str:
        """The end of what the job printed."""
        return self.log.read_text()[-6000:]

    def until(self, condition: Callable[[], T | None], reason: str) -> T:
        """Wait for it while the job runs."""

        def met() -> T | None:
            assert self._job.poll() is None, self.said()
            return condition()

        return wait_until(met, PATIENCE_S, reason=reason)

    def await_progress(self) -> None:
        """Wait until each queue has moved on."""
        before = self._next_offsets()
        self.until(
            lambda: all(
                self._next_offsets().get(queue, 0) > before.get(queue, 0) for queue in self.flow.queues
            ),
            "progress of all queues",
        )

    def in_a_call(self) -> int:
        """A process that waits in the middle of a micro-batch until :meth:`go_on`."""
        (self.folder / "armed").touch()
        doomed = self.folder / "doomed"
        self.until(doomed.exists, "a listener's call")
        (self.folder / "armed").unlink()
        return int(doomed.read_text())

    def go_on(self) -> None:
        """Nobody needs to wait any more."""
        (self.folder / "doomed").unlink()

    def await_all(self) -> Orders:
        """Send what is missing of orders, and wait until all are consumed; what the brokers hold."""
        self.flow.finish()
        stored, ends = stored_orders(self._brokers.broker_addresses, self.flow.queues)
        self.until(
            lambda: all(self._next_offsets().get(queue, 0) >= end for queue, end in ends.items()), "the end"
        )
        return stored

    def end(self, job: subprocess.Popen[bytes]) -> None:
        """Have the job stop in good order."""
        job.send_signal(signal.SIGTERM)
        assert job.wait(PATIENCE_S) == 128 + signal.SIGTERM, self.said()

    def check(self, stored: Orders) -> None:
        """Nothing is lost, doubled or out of order."""
        assert not_as_sent(self.flow.sent, stored) == []
        verdict = judge(self.sink, stored)
        assert verdict.is_clean, verdict.text

    def _next_offsets(self) -> dict[MessageQueue, int]:
        try:
            rows = self._store.read(self.settings["consumerGroup"])
        except TableNotFoundError:
            return {}
        return {queue: row.next_offset for queue, row in rows_but_retries(rows).items()}


def consume_there(submission: Submission) -> str:
    """The page's commands that submit job ``consume``."""
    folder = submission.folder
    conf = folder / "job.toml"
    conf.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in submission.options.items()))
    unpack = documented("mkdir -p environment").splitlines()[0]
    submit = documented(
        "SPARK_SUBMIT_ARGS",
        "packed.tar.gz",
        **{
            "spark://master:7077": submission.machines.master,
            "./spark-submit.sh": str(ROOT / "spark-submit.sh"),
            '.gz#environment"': '.gz#environment $MORE"',
            "conf/consume.example.toml": str(conf),
        },
    )
    return f"{unpack}\nexec env {submit}"


@pytest.mark.parametrize(
    ("machines", "cluster"),
    [
        pytest.param("standalone", "real", marks=pytest.mark.real),
        pytest.param("yarn", "sim", marks=pytest.mark.sim),
    ],
    indirect=True,
)
def test_a_machine_that_is_killed_under_a_job_costs_nothing_but_time(
    machines: Machines, cluster: ClusterUnderTest, packed_environment: Path, topic: str
) -> None:
    """Row J6, H1, H5: daemon, executors and their Python, by SIGKILL in the middle of a listener's call."""
    submission = Submission(machines, cluster, packed_environment, topic)

    with submission.run(consume_there(submission)) as job:
        submission.await_progress()
        doomed = machines.machine_of(submission.in_a_call())
        machines.kill_machine(doomed)
        submission.go_on()
        submission.await_progress()
        machines.start_machines([doomed])
        stored = submission.await_all()
        submission.end(job)

    assert "Lost executor" in submission.log.read_text()
    submission.check(stored)


@SIM_ONLY
def test_a_machine_that_stands_still_under_a_job_and_goes_on_doubles_nothing(
    standalone: StandaloneCluster, cluster: ClusterUnderTest, packed_environment: Path, topic: str
) -> None:
    """Row J6, H1, H5: its tasks were tried again elsewhere when it goes on, in a listener's call."""
    submission = Submission(standalone, cluster, packed_environment, topic)
    # Spark gives an executor up after two minutes else.
    submission.more |= {
        "spark.executor.heartbeatInterval": "2s",
        "spark.network.timeout": "8s",
        "spark.network.timeoutInterval": "1s",
        "spark.storage.blockManagerHeartbeatTimeoutMs": "8000",
    }

    with submission.run(consume_there(submission)) as job:
        submission.await_progress()
        frozen = standalone.machine_of(submission.in_a_call())
        standalone.freeze_machine(frozen)
        submission.await_progress()
        submission.go_on()
        standalone.thaw_machine(frozen)
        submission.await_progress()
        stored = submission.await_all()
        submission.end(job)

    assert "Lost executor" in submission.log.read_text()
    submission.check(stored)


@SIM_ONLY
def test_executors_run_in_an_environment_that_came_packed(
    standalone: StandaloneCluster, cluster: ClusterUnderTest, packed_environment: Path, topic: str
) -> None:
    """A program of one's own; nothing of ours is installed on the cluster,
    and the source is found by its name: in a batch, a stream and SQL.
    """
    produce_orders(cluster.name_servers, topic, 200)
    (packed_environment / "your_job.py").write_text(READ_BY_NAME)
    log = packed_environment / "log"
    commands = documented(
        "mkdir -p environment",
        **{
            "spark://master:7077": standalone.master,
            "your_job.py": f"--conf spark.executor.memory=512m your_job.py {cluster.name_servers} {topic}",
        },
    )
    environment = environment_of(standalone)

    with running(["bash", "-c", commands], log, folder=packed_environment, environment=environment) as job:
        assert job.wait(PATIENCE_S) == 0, log.read_text()[-4000:]

    printed = log.read_text()
    assert {"messages 200 1000", "stream 1000", "view 1000"} <= set(printed.splitlines())
    assert re.search(
        r"executors import \S+/app-\S+/environment/lib/\S+/pyspark_rocketmq/__init__.py", printed
    ), printed


@SIM_ONLY
def test_an_offset_store_that_only_the_driver_can_see_is_refused(
    standalone: StandaloneCluster, cluster: ClusterUnderTest, tmp_path: Path, topic: str
) -> None:
    """Row J6: nothing is consumed, and no table is left."""
    submission = Submission(standalone, cluster, tmp_path, topic)
    options = {**submission.options, "offsetStore": f"{PRIVATE}/offsets"}
    submit = consume_command(options)
    environment = submission.environment
    environment |= {"SPARK_MASTER": standalone.master, "SPARK_SUBMIT_ARGS": environment["MORE"]}

    with running(submit, submission.log, folder=tmp_path, environment=environment) as job:
        assert job.wait(PATIENCE_S) == 1

    assert f"offset_store='{PRIVATE}/offsets' is another folder on" in submission.log.read_text()
    assert not list(tmp_path.glob("*/**/*.json"))


@SIM_ONLY
def test_yarn_starts_a_killed_driver_again_and_nothing_is_lost(
    yarn: YarnCluster, hdfs: Hdfs, cluster: ClusterUnderTest, packed_environment: Path, topic: str
) -> None:
    """Row J6, H1, H5: the machine of the driver is killed while a listener's call runs; tables and
    checkpoint are on HDFS. A table that each machine sees elsewhere is refused before.
    """
    submission = Submission(yarn, cluster, packed_environment, topic, lake=f"{hdfs.uri}/lake")
    shared = {
        name: str(packed_environment / f"refused-{name}") for name in ("sink", "offsetStore", "checkpoint")
    }
    refused = [{**shared, name: f"{PRIVATE}/{name}"} for name in ("sink", "offsetStore")]
    (packed_environment / "settings.json").write_text(json.dumps({**submission.settings, "refused": refused}))
    (packed_environment / "your_job.py").write_bytes(Path(submitted_job.__file__).read_bytes())
    commands = documented(
        "--deploy-mode cluster", "yarn", **{"your_job.py": f"$MORE your_job.py {packed_environment}"}
    )

    def drivers() -> set[int]:
        return {int(note.stem) for note in packed_environment.glob("*.driver")}

    with submission.run(commands) as job:
        submission.await_progress()
        submission.in_a_call()
        (driver,) = drivers()
        doomed = yarn.machine_of(driver)
        yarn.kill_machine(doomed)
        submission.go_on()
        submission.until(lambda: len(drivers()) == 2, "another driver")
        submission.await_progress()
        yarn.start_machines([doomed])
        stored = submission.await_all()
        (packed_environment / "enough").touch()
        assert job.wait(PATIENCE_S) == 0, submission.said()

    submission.check(stored)
    for driver in drivers():
        refusals = json.loads((packed_environment / f"{driver}.refusals").read_text())
        assert [(refusal["type"], refusal["left"]) for refusal in refusals] == [("StorageNotShared", [])] * 2
        assert [refusal["text"].partition("=")[0] for refusal in refusals] == ["sink", "offset_store"]
    assert not list(packed_environment.glob("refused-*/**/*.json"))
