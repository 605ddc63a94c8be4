"""Runs programs as an IDE, a Jupyter kernel or cron does: without an activated environment."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.helpers.driver_process import REPO
from tests.helpers.quick_jvm import QUICK_JVM
from tests.helpers.spark_session import delta_jars

_WITHOUT_MAVEN = """
import delta
delta.configure_spark_with_delta_pip = lambda builder: builder.config("spark.jars", {jars!r})
"""
_OF_AN_ACTIVATED = {
    "PYSPARK_PYTHON",
    "PYSPARK_DRIVER_PYTHON",
    "VIRTUAL_ENV",
    "SPARK_CONF_DIR",
    "SPARK_DIST_CLASSPATH",
    "SPARK_HOME",
}


def without_maven(program: str) -> str:
    """Return a program whose session takes Delta's jars from this checkout."""
    return _WITHOUT_MAVEN.format(jars=",".join(map(str, delta_jars()))) + program


def run_unactivated(program: str, folder: Path, variables: Mapping[str, str] = MappingProxyType({})) -> str:
    """Run a program by the path of its Python, and return its output.

    The ``python3`` of the PATH has none of the packages, and Delta's jars are those of this checkout.
    """
    venv.create(folder / "bare", with_pip=False)
    elsewhere = {name: text for name, text in os.environ.items() if name not in _OF_AN_ACTIVATED}
    done = subprocess.run(
        [sys.executable, "-c", without_maven(program)],
        cwd=folder,
        env=elsewhere
        | {
            "PATH": f"{folder / 'bare' / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(REPO / "connector"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JDK_JAVA_OPTIONS": QUICK_JVM,
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout
