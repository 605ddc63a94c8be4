"""Check and clean Spark's checkpoint before a consumer's query starts."""

from __future__ import annotations

import json
import logging
from typing import Any, Final

from pyspark.sql import SparkSession

from pyspark_rocketmq.display import masked
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.source.ranges import is_plan

logger = logging.getLogger(__name__)

_MOST_CHARACTERS: Final = 200
"""Maximum length of an offset shown in an error, in characters."""


def clear_unwritten_plan(spark: SparkSession, checkpoint: str) -> None:
    """Remove the temporary file that a query leaves in its offset log if it is killed while it writes there.

    Without this, Spark 4.2 refuses to start on a checkpoint that holds only temporary files
    (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY).  Nothing is removed if the log has a whole entry.

    Spark's check cannot be switched off for one query: Spark reads the setting for it from the session, and
    only some time after the query was started.
    """
    files, found = _offset_log(spark, checkpoint)
    if all(path.getName().startswith(".") for path in found):
        for path in found:
            logger.warning(
                "removed the unfinished file of a plan, which a killed query has left path=%s",
                masked(str(path)),
            )
            files.delete(path, False)


def _offset_log(spark: SparkSession, checkpoint: str) -> tuple[Any, list[Any]]:
    """Return a checkpoint's file system, and the files of its offset log (none before the first start)."""
    jvm: Any = spark._jvm  # noqa: SLF001 - the only way to reach files on any storage
    folder = jvm.org.apache.hadoop.fs.Path(checkpoint, "offsets")
    files = folder.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())  # noqa: SLF001
    return files, [each.getPath() for each in files.listStatus(folder)] if files.exists(folder) else []


def check_checkpoint(spark: SparkSession, checkpoint: str) -> None:
    """Refuse the checkpoint of a query that reads another source, before Spark uses the offsets in it.

    Only a checkpoint that is certainly another query's is refused. Spark and the planner check all others.

    Raises:
        OptionError: If the newest entry of the checkpoint's offset log has an offset of another source.
    """
    files, found = _offset_log(spark, checkpoint)
    entries = {int(name): path for path in found if (name := path.getName()).isdecimal()}
    if not entries:
        return
    jvm: Any = spark._jvm  # noqa: SLF001 - Python cannot read a Java stream
    stream = files.open(entries[max(entries)])
    try:
        text = jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
    finally:
        stream.close()
    if (offset := foreign_offset(text)) is not None:
        problem = (
            f"the checkpoint {masked(checkpoint)} is another query's: the offset in it, "
            f"{offset:.{_MOST_CHARACTERS}}, is not one of a RocketMQ consumer. Take a new folder for the "
            "checkpoint: the group continues at the offsets of its offset store"
        )
        raise OptionError((problem,), where="PushConsumer.start")


def foreign_offset(entry: str) -> str | None:
    """Return the first offset of another source in an entry of Spark's offset log; None if there is none.

    The first line of an entry is ``v1``, the second has the query's settings. Each further line is the offset
    of one source, or ``-`` if the source has none yet. An entry of another version, or a line that is not
    JSON, proves nothing, so it is not returned.
    """
    version, _, *offsets = (*entry.splitlines(), "", "")
    if version != "v1":
        return None
    for line in offsets:
        try:
            is_foreign = line not in {"", "-"} and not is_plan(json.loads(line))
        except ValueError:
            is_foreign = False
        if is_foreign:
            return line
    return None
