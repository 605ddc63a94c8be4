"""Spark's daemon of Python workers, which imports the packages of all workers before it forks them.

Only third-party packages: each worker imports the connector's own modules itself, as at users'. Spark runs
it as ``python -m tests.helpers.warm_daemon WORKER_MODULE`` (``spark.python.daemon.module``).
"""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np  # noqa: F401
import pandas as pd  # noqa: F401
import pyarrow.compute as pc  # noqa: F401
import pyspark.sql.pandas.serializers
import pyspark.sql.types  # noqa: F401
from pyspark.daemon import manager

_THREADS = Path("/proc/self/task")


def _refuse_threads() -> None:
    """Fail if there are several threads: a fork copies only one thread, and also locks that others hold.

    Spark's own daemon imports nothing for this reason.
    """
    count = len(list(_THREADS.iterdir())) if _THREADS.is_dir() else threading.active_count()
    if count > 1:
        raise AssertionError(
            f"Importing numpy, pandas, pyarrow and pyspark started {count - 1} threads, so workers cannot "
            f"be forked afterwards: take {__name__} out of tests/helpers/spark_session.py."
        )


if __name__ == "__main__":
    _refuse_threads()
    manager()
