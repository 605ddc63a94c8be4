"""SIGINT and SIGTERM to a job that runs until somebody stops it.

``spark-submit`` runs two processes: the JVM, which is the one that was started, and its child, this one. A supervisor
sends SIGTERM to the first alone; Ctrl-C goes to both, and to the process that plans the query. The JVM would stop Spark
under the listener's calls. So it leaves SIGINT to this process, as its children do then, and passes SIGTERM on.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from types import FrameType
from typing import Any, Final, Self

from py4j.protocol import Py4JError
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_SAME_S: Final = 1.0
"""Who sends SIGTERM to all processes of a group sends it to this one, and again by way of the JVM."""


class StopSignals:
    """Notes the first signal within its block; a second one, of either kind, interrupts whatever is waited for."""

    def __init__(self, spark: SparkSession) -> None:
        """Take the signals from the session's JVM; before a query starts, whose planner inherits what is ignored."""
        self.received: signal.Signals | None = None
        """The first one."""
        self._at_s = 0.0
        self._before: dict[int, Any] = {}
        try:
            _take_from_jvm(spark)
        except Py4JError:
            # Such as with -Xrs, or where a platform allows no such call.
            logger.warning(
                "the JVM keeps SIGINT and SIGTERM to itself, so that it stops Spark under the listener's calls: what they had "
                "in hand is consumed again",
                exc_info=True,
            )

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *unused: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signal module's
        now_s = time.monotonic()
        if self.received is None:
            self.received, self._at_s = signal.Signals(number), now_s
        elif number != self.received or now_s - self._at_s > _SAME_S:
            raise KeyboardInterrupt


def _take_from_jvm(spark: SparkSession) -> None:
    context: Any = spark.sparkContext
    gateway, jvm = context._gateway, context._jvm  # noqa: SLF001 - Spark offers no other way to the JVM
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    of_java = jvm.sun.misc
    of_java.Signal.handle(of_java.Signal("INT"), of_java.SignalHandler.SIG_IGN)
    of_java.Signal.handle(of_java.Signal("TERM"), _PassesOn())


class _PassesOn:
    """A ``sun.misc.SignalHandler``; called by the JVM, on a thread of its connection."""

    def handle(self, of_java: object) -> None:  # noqa: ARG002 - the interface's
        """Send SIGTERM to this process."""
        os.kill(os.getpid(), signal.SIGTERM)

    class Java:
        """What Py4J asks for."""

        implements = ("sun.misc.SignalHandler",)
