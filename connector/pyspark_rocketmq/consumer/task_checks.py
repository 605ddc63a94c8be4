"""Checks, before a query starts, that tasks can connect to sinks into which they themselves commit rows."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql import SparkSession

from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.sinks.base import ReachedByTasks, Sink
from pyspark_rocketmq.sinks.multi import single_sinks
from pyspark_rocketmq.spark.session import ask_executors

logger = logging.getLogger(__name__)

_MOST_SHOWN = 3
"""Maximum number of hosts named in a problem."""


def check_reached(spark: SparkSession, sink: Sink) -> None:
    """Check, by a small job, that tasks can connect to each sink into which they will commit themselves.

    Sinks into which only the driver commits are not checked. If no executor runs in time, nothing is refused.

    Args:
        spark: A classic session.
        sink: The query's sinks, joined into one, after ``prepare``.

    Raises:
        OptionError: With the hosts that cannot reach a sink, and the reason for each.
    """
    problems = []
    for each in single_sinks(sink):
        check = each.task_check() if isinstance(each, ReachedByTasks) else None
        if check is not None and (unreached := _unreached(spark, each, check)):
            problems.append(unreached_problem(each, unreached))
    if problems:
        raise OptionError(tuple(problems), where="sink of the query")


def unreached_problem(sink: Sink, unreached: Mapping[str, str]) -> str:
    """Return the problem of executors that cannot reach a sink; ``unreached`` has a reason for each host."""
    shown = [f"{host} ({reason})" for host, reason in sorted(unreached.items())]
    more = f" and {len(shown) - _MOST_SHOWN} more hosts" if len(shown) > _MOST_SHOWN else ""
    return (
        f"tasks commit by themselves into {sink!r}, and executors on these hosts cannot reach it: "
        f"{', '.join(shown[:_MOST_SHOWN])}{more}. Let each executor reach the database at the address that "
        "connect() uses there, or leave out commit_in_task"
    )


def _unreached(spark: SparkSession, sink: Sink, check: Callable[[], str]) -> dict[str, str]:
    rows = ask_executors(
        spark, Reach(check), "host string, problem string", "Can all executors reach the database?"
    )
    if rows is None:
        logger.warning(
            "no executor was running in time to check that tasks reach %r; if one cannot, its batch fails",
            sink,
        )
        return {}
    return {row["host"]: row["problem"] for row in rows}


class Reach:
    """Function for tasks that yields a row with host and reason if the sink cannot be reached from there."""

    def __init__(self, check: Callable[[], str]) -> None:
        self._check = check

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Check once for the whole task; yield a batch with one row if that fails, else an empty batch."""
        for _ in batches:
            pass
        problems = [problem] if (problem := self._check()) else []
        yield pa.RecordBatch.from_pydict(
            {
                "host": pa.array([socket.gethostname()] * len(problems), pa.string()),
                "problem": pa.array(problems, pa.string()),
            }
        )
