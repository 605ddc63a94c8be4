"""Two traps of Spark's thread that runs a query: one at its first start after a kill, one when it is stopped.

*Start.* Killed while Spark writes the first entry of a query's offset log, a checkpoint holds nothing but a temporary file,
and Spark 4.2 refuses every restart with it (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY). To switch that check off for one query
is not possible: it is read from the session some time after the start.

*Stop.* A query that is stopped in the middle of a batch finds out what ended the batch by a regular expression that takes a
step deeper for every character (``StreamExecution.PROXY_ERROR``). Over the text of a whole Java stack trace it overflows the
stack, the thread dies, and whoever waits for the query waits for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from pyspark_rocketmq.masked import masked

logger = logging.getLogger(__name__)

BatchFunction = Callable[[DataFrame, int], None]

_INTERRUPTIONS: Final = frozenset(
    {
        "java.lang.InterruptedException",
        "java.io.InterruptedIOException",
        "java.nio.channels.ClosedByInterruptException",
    }
)
"""What ``StreamExecution.isInterruptionException`` looks for."""
_JOB_CANCELLED: Final = "[SPARK_JOB_CANCELLED]"
"""A stop cancels the query's jobs before it interrupts its thread."""
_MOST_CHARACTERS: Final = 200


class BatchInterrupted(Exception):
    """A batch ended because its query is being stopped, or its job was cancelled; worded as Spark looks for it."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling the batch's job: "
            f"java.lang.InterruptedException: {reason[:_MOST_CHARACTERS]}"
        )


def clear_unwritten_plan(spark: SparkSession, checkpoint: str) -> None:
    """Remove what a kill has left of the first entry of the offset log; nothing if there is any whole entry, or no checkpoint."""
    jvm: Any = spark._jvm  # noqa: SLF001 - the only way to files wherever the checkpoint is
    folder = jvm.org.apache.hadoop.fs.Path(checkpoint, "offsets")
    files = folder.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())  # noqa: SLF001
    if not files.exists(folder):
        return
    found = [each.getPath() for each in files.listStatus(folder)]
    if all(path.getName().startswith(".") for path in found):
        for path in found:
            logger.warning(
                "leftover of a plan that was never written whole removed path=%s", masked(str(path))
            )
            files.delete(path, False)


def stoppable(function: BatchFunction) -> BatchFunction:
    """The same function, whose interruption is told in so few words that a stop goes well.

    Raises:
        BatchInterrupted: In place of the error of a job that was interrupted or cancelled.
    """

    def run(batch: DataFrame, batch_id: int) -> None:
        try:
            function(batch, batch_id)
        except Py4JJavaError as error:
            reason = _interruption(error.java_exception)
            if reason is None:
                raise
            raise BatchInterrupted(reason) from None

    return run


def _interruption(error: Any) -> str | None:
    """What a Java exception says of an interruption; None if it or one of its causes is none."""
    while error is not None:
        name, message = error.getClass().getName(), error.getMessage() or ""
        if name in _INTERRUPTIONS or _JOB_CANCELLED in message:
            return f"{name} {message}".strip()
        error = error.getCause()
    return None
