from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.quick_jvm import QUICK_JVM


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the built wheel's content and nothing else of ours."""
    lib = tmp_path_factory.mktemp("installed") / "lib"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(lib), str(wheel)], check=True, capture_output=True)
    return lib


def run_installed(lib: Path, *arguments: str) -> str:
    # The repository's own Spark settings name Delta, which a user of the wheel need not have.
    elsewhere = {
        name: value for name, value in os.environ.items() if name not in {"SPARK_CONF_DIR", "SPARK_HOME"}
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=lib.parent,
        env=elsewhere
        | {
            "PYTHONPATH": str(lib),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JDK_JAVA_OPTIONS": QUICK_JVM,
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_importing_the_package_loads_nothing_heavy(installed: Path) -> None:
    """Spark imports every pyspark_* package when it looks for a data source."""
    loaded = run_installed(
        installed,
        "-c",
        "import json, sys, pyspark_rocketmq; print(json.dumps([pyspark_rocketmq.__file__, *sys.modules]))",
    )

    origin, *modules = json.loads(loaded)
    assert Path(origin).is_relative_to(installed)
    assert not {"pyspark", "pyarrow", "numpy", "pandas", "deltalake"}.intersection(modules)


def test_every_public_name_can_be_had(installed: Path) -> None:
    run_installed(
        installed, "-c", "import pyspark_rocketmq as r; print([getattr(r, name) for name in r.__all__])"
    )


def test_without_spark_the_extra_is_named(installed: Path) -> None:
    """As after pip install pyspark-rocketmq, without [spark]."""
    told = run_installed(
        installed,
        "-c",
        "import sys; sys.modules['pyspark'] = None; import pyspark_rocketmq as rmq\n"
        "try: rmq.PushConsumer\n"
        "except ModuleNotFoundError as error: print(error)",
    )

    assert told.startswith("pyspark_rocketmq.PushConsumer needs Spark and Delta Lake")
    assert "pip install 'pyspark-rocketmq[spark]'" in told


def test_the_wheel_holds_the_package_the_simulator_and_the_program(installed: Path) -> None:
    assert {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")} == {
        "bin",
        "broker_sim",
        "pyspark_rocketmq",
    }
    assert [path.name for path in (installed / "bin").iterdir()] == ["pyspark-rocketmq"]


def test_under_a_name_spark_takes_the_wheel_is_an_archive_for_py_files(wheel: Path, tmp_path: Path) -> None:
    archive = Path(shutil.copy(wheel, tmp_path / "pyspark_rocketmq.zip"))

    printed = run_installed(archive, "-c", "import pyspark_rocketmq.format as f; print(f.__file__)")

    assert printed.strip() == f"{archive}/pyspark_rocketmq/format.py"


def test_the_program_of_the_wheel_has_help_without_spark(installed: Path) -> None:
    printed = run_installed(
        installed,
        "-c",
        "import sys; sys.modules['pyspark'] = None; from pyspark_rocketmq.cli.main import main; main(['--help'])",
    )

    assert printed.startswith("Usage: pyspark-rocketmq [OPTIONS] COMMAND")


def test_without_spark_a_command_that_needs_it_names_the_extra(installed: Path) -> None:
    told = run_installed(
        installed,
        "-c",
        "import sys; sys.modules['pyspark'] = None; sys.stderr = sys.stdout\n"
        "from pyspark_rocketmq.cli.main import main; assert main(['demo']) == 1",
    )

    assert "pip install 'pyspark-rocketmq[spark]'" in told
    assert "Traceback" not in told


@pytest.mark.driver
@pytest.mark.sim
def test_the_demo_of_the_wheel_is_exact_without_a_checkout(installed: Path, tmp_path: Path) -> None:
    """H1: it starts a cluster and Spark, and checks that nothing is lost, doubled or out of order."""
    printed = run_installed(
        installed,
        str(installed / "bin" / "pyspark-rocketmq"),
        *("demo", "--option", "orders=200", "--option", f"workDir={tmp_path}/demo"),
    )

    assert (
        "messages: 1000 · rows: 1000 · duplicates: 0 · lost: 0 · order violations: 0" in printed.splitlines()
    )


def test_the_simulator_of_the_wheel_answers_until_it_is_stopped(installed: Path) -> None:
    command = [sys.executable, str(installed / "bin" / "pyspark-rocketmq"), "simulator", "--port", "0"]
    with subprocess.Popen(
        command, cwd=installed.parent, env=os.environ | {"PYTHONPATH": str(installed)}, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        host, _, port = json.loads(process.stdout.readline())["nameServers"].rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10):
            process.terminate()
        assert process.wait(60) == 0
