"""What a user of a fresh machine sees: one sentence when something is missing, nothing when all is there."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from pyspark_rocketmq.cli.main import cli
from tests.packaging.checkout import ROOT, Checkout

NOWHERE = "http://127.0.0.1:9/simple"


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def one_line(text: str) -> str:
    (line,) = text.splitlines()
    return line


def test_help_needs_neither_python_nor_java(checkout: Checkout) -> None:
    result = checkout.spark_submit("--help")

    assert result.returncode == 0
    assert "./spark-submit.sh JOB" in result.stdout
    assert result.stderr == ""


def test_help_lists_every_job(checkout: Checkout) -> None:
    listed = checkout.spark_submit("--help").stdout

    for name, command in cli.commands.items():
        for job in (
            [name] if not hasattr(command, "commands") else [f"{name} {sub}" for sub in command.commands]
        ):
            assert f"\n  {job}  " in listed


def test_no_job_is_bad_input_and_shows_the_help(checkout: Checkout) -> None:
    result = checkout.spark_submit()

    assert result.returncode == 2
    assert "Usage:" in result.stderr


def test_a_missing_java_is_reported_in_one_sentence(checkout: Checkout) -> None:
    result = checkout.spark_submit("demo")

    assert result.returncode == 2
    assert one_line(result.stderr) == (
        "Java 17 or newer is needed, but no java was found on PATH; install it, or point at one with "
        "JAVA_HOME=/path/to/jdk-17."
    )


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.22", "16"])
def test_a_java_that_is_too_old_is_named_with_its_version(checkout: Checkout, version: str) -> None:
    checkout.java(version)

    result = checkout.spark_submit("demo")

    assert result.returncode == 2
    assert f"the one on PATH is {version}" in one_line(result.stderr)
    assert "JAVA_HOME=" in result.stderr


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.1", "25-ea"])
def test_a_java_that_is_new_enough_is_taken(checkout: Checkout, version: str) -> None:
    checkout.java(version)

    result = checkout.spark_submit("demo")

    assert "Python 3.11 or newer is needed" in one_line(result.stderr)


def test_a_java_that_does_not_run_is_distinguished_from_an_old_one(checkout: Checkout) -> None:
    checkout.command("java", "echo 'Unable to locate a Java Runtime.' >&2; exit 1")

    result = checkout.spark_submit("demo")

    assert result.returncode == 2
    assert "is a command that does not run" in one_line(result.stderr)


def test_java_home_wins_over_path(checkout: Checkout) -> None:
    checkout.java()

    result = checkout.spark_submit("demo", JAVA_HOME="/no/such/jdk")

    assert result.returncode == 2
    assert "JAVA_HOME=/no/such/jdk" in one_line(result.stderr)


@pytest.mark.parametrize(
    ("python", "said"),
    [
        pytest.param(
            None,
            "Python 3.11 or newer is needed, but no python3 was found on PATH; install it, or point at one "
            "with PYTHON=/path/to/python3.11.",
            id="missing",
        ),
        pytest.param("echo 3.9.18", "python3 is Python 3.9.18", id="too old"),
        pytest.param(
            'case "$2" in *version_info*) echo 3.12.3;; *) exit 1;; esac',
            "package python3.12-venv",
            id="without venv",
        ),
    ],
)
def test_a_python_that_cannot_be_used_is_named_with_the_remedy(
    checkout: Checkout, python: str | None, said: str
) -> None:
    checkout.java()
    if python is not None:
        checkout.command("python3", python)

    result = checkout.spark_submit("demo")

    assert result.returncode == 2
    assert said in one_line(result.stderr)


def test_a_python_asked_for_by_name_is_not_replaced_by_another(checkout: Checkout) -> None:
    checkout.java()
    checkout.finished_environment()
    old = checkout.command("old-python", "echo 3.10.1")

    result = checkout.spark_submit("demo", PYTHON=str(old))

    assert result.returncode == 2
    assert f"PYTHON={old} is Python 3.10.1" in one_line(result.stderr)


def test_a_first_start_without_network_says_so_and_names_the_log(checkout: Checkout) -> None:
    checkout.java()
    pip = {"PIP_INDEX_URL": NOWHERE, "PIP_NO_CACHE_DIR": "1", "PIP_RETRIES": "0"}
    result = checkout.spark_submit("demo", PYTHON=sys.executable, **pip)

    assert result.returncode == 3
    last = result.stderr.splitlines()[-1]
    log = checkout.root / ".cache/pip-runtime.log"
    assert last == (
        "Could not install the packages of requirements/runtime.txt because the network cannot be reached; "
        f"the first start needs it once, and the log is {log}."
    )
    assert "Connection refused" in log.read_text()


def test_a_second_start_makes_nothing_and_asks_for_nothing(checkout: Checkout) -> None:
    checkout.java()
    checkout.finished_environment()

    result = checkout.spark_submit(
        "demo", "--option", "orders=2 0", PYTHONPATH="/mine", SPARK_HOME="/other/spark"
    )

    assert result.stderr == ""
    assert result.returncode == 0
    root = checkout.root
    environment, *arguments = result.stdout.splitlines()
    assert environment == (
        f"SPARK_HOME={root}/.venv/lib/python3.11/site-packages/pyspark "
        f"PYSPARK_PYTHON={root}/.venv/bin/python PYTHONPATH={root}/connector:{root}:/mine"
    )
    jars = ",".join(str(root / ".cache/delta-jars-4.4.0" / name) for name in ("one.jar", "two.jar"))
    assert arguments == [
        f"<{argument}>"
        for argument in (
            *(
                "--master",
                "local[*]",
                "--properties-file",
                f"{root}/conf/spark-defaults.conf",
                "--jars",
                jars,
            ),
            *(f"{root}/jobs/main.py", "demo", "--option", "orders=2 0"),
        )
    ]


def test_a_job_knows_the_terminal_that_spark_hides_from_it(checkout: Checkout) -> None:
    """What it prints passes through Spark: without this there is no progress bar."""
    checkout.java()
    checkout.finished_environment()
    checkout.script(
        ".venv/lib/python3.11/site-packages/pyspark/bin/spark-submit",
        'echo "${TTY_COMPATIBLE-none} ${COLUMNS-none}"',
    )

    assert checkout.spark_submit_on_a_terminal("demo", COLUMNS="132").split() == ["1", "132"]
    assert checkout.spark_submit_on_a_terminal("demo", TTY_COMPATIBLE="0").split() == ["0", "80"]
    assert checkout.spark_submit("demo").stdout.split() == ["none", "none"]


def test_on_a_cluster_the_code_goes_with_the_job(checkout: Checkout) -> None:
    """Executors have a Python of their own,
    and do not reach a driver that listens on the loopback interface.
    """
    checkout.java()
    checkout.finished_environment()
    checkout.script(".venv/bin/python", "echo made-by-zip_packages.zip")
    checkout.script(
        ".venv/lib/python3.11/site-packages/pyspark/bin/spark-submit",
        'echo "$PYSPARK_PYTHON ${PYSPARK_DRIVER_PYTHON#$PWD} ${SPARK_LOCAL_IP-any address}"; echo "$@"',
    )

    result = checkout.spark_submit(
        "consume",
        SPARK_MASTER="spark://master:7077",
        PYSPARK_PYTHON="./environment/bin/python",
        SPARK_SUBMIT_ARGS="--archives packed.tar.gz#environment --conf a=b",
    )

    root = checkout.root
    pythons, arguments = result.stdout.splitlines()
    assert pythons == f"./environment/bin/python {root}/.venv/bin/python any address"
    assert arguments.startswith("--master spark://master:7077 ")
    assert arguments.endswith(
        "--py-files made-by-zip_packages.zip --archives packed.tar.gz#environment --conf a=b "
        f"{root}/jobs/main.py consume"
    )


@pytest.mark.parametrize("arguments", [("offsets", "show"), ("demo", "--help")])
def test_jobs_without_spark_start_no_spark(checkout: Checkout, arguments: tuple[str, ...]) -> None:
    checkout.finished_environment()

    result = checkout.spark_submit(*arguments)

    assert result.stdout.strip() == f"python: {checkout.root}/jobs/main.py {' '.join(arguments)}"
    assert result.returncode == 0


@pytest.mark.parametrize("damage", ["interrupted", "no python"])
def test_an_environment_that_was_left_half_made_is_made_again(checkout: Checkout, damage: str) -> None:
    checkout.java()
    checkout.finished_environment()
    if damage == "interrupted":
        (checkout.root / ".cache/venv-incomplete").touch()
    else:
        (checkout.root / ".venv/bin/python").unlink()

    result = checkout.spark_submit("demo")

    assert result.returncode == 2
    assert "Python 3.11 or newer is needed" in one_line(result.stderr)


def test_an_environment_behind_a_link_is_not_emptied(checkout: Checkout) -> None:
    """It may be another checkout's."""
    checkout.java()
    checkout.finished_environment()
    checkout.command("python3", 'case "$*" in *version_info*) echo 3.11.7 ;; esac')
    (checkout.root / ".cache/venv-incomplete").touch()
    elsewhere = checkout.root.parent / "elsewhere"
    (checkout.root / ".venv").rename(elsewhere)
    (checkout.root / ".venv").symlink_to(elsewhere)

    result = checkout.spark_submit("demo")

    assert result.returncode == 3
    assert "is a link" in one_line(result.stderr)
    assert (elsewhere / "bin/python").exists()


def test_a_changed_lock_file_is_installed_before_the_job_starts(checkout: Checkout) -> None:
    checkout.java()
    checkout.finished_environment()
    lock = checkout.root / "requirements/runtime.txt"
    lock.write_text("changed==1\n")

    result = checkout.spark_submit("demo")

    assert result.returncode == 0
    assert "pip install --disable-pip-version-check --require-hashes" in result.stderr
    assert f"-r {lock}" in result.stderr
    assert (checkout.root / ".venv/stamps/runtime").read_text() == "changed==1\n"
    assert not (checkout.root / ".cache/venv-incomplete").exists()
    assert checkout.spark_submit("demo").stderr == ""


def test_delta_jars_that_cannot_be_resolved_leave_nothing_half_made(checkout: Checkout) -> None:
    checkout.java()
    checkout.finished_environment()
    shutil.rmtree(checkout.root / ".cache/delta-jars-4.4.0")
    checkout.script(
        ".venv/lib/python3.11/site-packages/pyspark/bin/spark-submit",
        "echo 'Host somewhere not found.' >&2; exit 1",
    )

    result = checkout.spark_submit("demo")

    assert result.returncode == 3
    assert result.stderr.splitlines()[-1] == (
        "Could not resolve the Delta jars because the network cannot be reached; the first start needs it "
        "once, "
        f"and the log is {checkout.root}/.cache/ivy.log."
    )
    assert not (checkout.root / ".cache/delta-jars-4.4.0").exists()


@pytest.mark.parametrize("path", ["spark-submit.sh", "scripts/with-env.sh", ".ci/run"])
def test_entry_scripts_are_executable(path: str) -> None:
    assert (ROOT / path).stat().st_mode & 0o100


def pins(name: str) -> set[str]:
    lines = Path(ROOT / "requirements" / name).read_text().splitlines()
    return {line.split()[0] for line in lines if line[:1].isalnum()}


def test_the_development_lock_holds_the_runtime_lock() -> None:
    assert pins("runtime.txt") <= pins("dev.txt")
