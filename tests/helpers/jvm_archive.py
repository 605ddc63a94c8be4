"""An archive of the classes that a Spark driver loads, which JVMs map into memory:
a start takes half of the time.

``python -m tests.helpers.jvm_archive`` writes it, once for a version of Java and of the jars.
"""

from __future__ import annotations

import hashlib
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tests.helpers.quick_jvm import QUICK_JVM
from tests.real_broker.artifacts import CACHE, require_program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUIETLY = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
_WRITING_S = 300.0


def with_archive(more_jars: list[Path]) -> str:
    """:data:`QUICK_JVM` for a driver with ``more_jars`` in front of Spark's,
    and the archive for it if there is one.
    """
    archive = _archive(tuple(more_jars))
    return f"{QUICK_JVM} {_QUIETLY} -XX:SharedArchiveFile={archive}" if archive.is_file() else QUICK_JVM


def write_archive() -> None:
    """Write the archive for the sessions of the tests, unless it is there."""
    from tests.helpers.spark_session import extra_jars, make_session

    archive = _archive(tuple(extra_jars()))
    if archive.is_file():
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix="partial-") as folder:
        written = Path(folder) / archive.name
        session = make_session(Path(folder), jvm=f"{QUICK_JVM} {_QUIETLY} -XX:ArchiveClassesAtExit={written}")
        _load_classes(session, Path(folder))
        # Spark's maintenance of the state store complains when the session ends.
        session.sparkContext.setLogLevel("OFF")
        gateway = session.sparkContext._gateway
        assert gateway is not None
        jvm = gateway.proc
        session.stop()
        # The JVM ends, and writes the archive, when its input ends.
        jvm.stdin.close()
        jvm.wait(_WRITING_S)
        written.rename(archive)


def _load_classes(session: SparkSession, folder: Path) -> None:
    """Load the classes that most tests use: a stream through Python, with state, into Delta."""
    source, table = str(folder / "source"), str(folder / "table")
    session.range(10).write.format("delta").save(source)
    with_state = (
        session.readStream.format("delta")
        .load(source)
        .groupBy("id")
        .applyInPandasWithState(
            lambda _key, chunks, _state: chunks, "id long", "n long", "append", "NoTimeout"
        )
    )
    (
        with_state.writeStream.foreachBatch(
            lambda rows, _: rows.write.format("delta").mode("append").save(table)
        )
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    rows = session.read.format("delta").load(table)
    rows.mapInArrow(lambda batches: batches, rows.schema).groupBy("id").count().collect()


@cache
def _archive(more_jars: tuple[Path, ...]) -> Path:
    """Return the path of the archive that fits this Java and these jars in this order."""
    import pyspark

    java = Path(require_program("java", "install a JDK of version 17 or later")).resolve()
    jars = sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))
    files = (f"{file} {file.stat().st_mtime_ns}" for file in (java, *more_jars, *jars))
    key = hashlib.sha256("\n".join([QUICK_JVM, *files]).encode()).hexdigest()[:16]
    return CACHE / "jvm" / f"spark-{key}.jsa"


if __name__ == "__main__":
    write_archive()
