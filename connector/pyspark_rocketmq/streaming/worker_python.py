"""Whether the Python that Spark starts on the executors can run us; asked before a query starts.

Without this check the user sees a worker's ModuleNotFoundError, wrapped three times, after the query has failed.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

from pyspark.sql import SparkSession

from pyspark_rocketmq.errors import RocketMQError

_PROBE = "import pandas, pyarrow, pyspark_rocketmq.wire.columnar"
_PROBE_TIMEOUT_S = 60.0


def check_worker_python(spark: SparkSession) -> None:
    """Try the workers' Python on this machine; a cluster's other machines are not asked.

    Raises:
        RocketMQError: If it cannot be started or lacks what the workers need.
    """
    executable = str(spark.sparkContext.pythonExec)
    if executable != sys.executable:
        _check(executable)


@cache
def _check(executable: str) -> None:
    advice = (
        f"Set PYSPARK_PYTHON (or spark.pyspark.python) to {sys.executable}, or install pyspark-rocketmq for "
        f"{executable}, and start the session again."
    )
    if not Path(executable).is_absolute() and "/" in executable:
        advice = (
            "The query is planned on the driver's machine, with the same Python: unpack the environment's archive in the "
            f"folder the driver is started in, {Path.cwd()}. {advice}"
        )
    try:
        probe = subprocess.run(  # noqa: S603 - the interpreter Spark itself is going to run
            [executable, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RocketMQError(
            f"Spark would start its workers with '{executable}', which failed: {error}. {advice}"
        ) from error
    if probe.returncode != 0:
        reason = (probe.stderr.strip().splitlines() or ["no message"])[-1]
        raise RocketMQError(
            f"Spark would start its workers with '{executable}', which cannot import what they need ({reason}). {advice}"
        )
