"""Copy the jars that Delta needs beside Spark's own from Ivy's folder into one of their own.

Usage: ``collect_delta_jars.py IVY_JARS TARGET``; exit code 1 names what Ivy did not bring.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

# Ivy brings some 30 jars; the others (hadoop, parquet, jackson, …) are in the Spark distribution already.
NEEDED = (
    "io.delta_delta-spark_4.2_2.13-4.4.0.jar",
    "io.delta_delta-storage-4.4.0.jar",
    "io.delta_delta-kernel-api-4.4.0.jar",
    "io.delta_delta-kernel-defaults-4.4.0.jar",
    "io.delta_delta-kernel-unitycatalog-4.4.0.jar",
    "io.unitycatalog_unitycatalog-client-0.6.0.jar",
    "io.unitycatalog_unitycatalog-hadoop-0.6.0.jar",
)


def collect(ivy_jars: Path, target: Path) -> None:
    """Copy the needed jars; nothing is left in ``target`` unless all of them are there."""
    missing = [name for name in NEEDED if not (ivy_jars / name).is_file()]
    if missing:
        raise SystemExit(f"Ivy did not bring {', '.join(missing)} into {ivy_jars}.")
    target.mkdir(parents=True)
    for name in NEEDED:
        shutil.copyfile(ivy_jars / name, target / name)


if __name__ == "__main__":
    collect(Path(sys.argv[1]), Path(sys.argv[2]))
