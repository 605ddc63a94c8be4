"""Copy the jars that Delta needs besides Spark's own from Ivy's folder into one of their own.

Usage: ``collect_delta_jars.py IVY_JARS TARGET``; exit code 1 names jars that are missing or have another
content than the published ones.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

# Ivy brings some 30 jars; the others (hadoop, parquet, jackson, …) are in the Spark distribution already.
NEEDED = {
    "io.delta_delta-spark_4.2_2.13-4.4.0.jar": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    "io.delta_delta-storage-4.4.0.jar": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    "io.delta_delta-kernel-api-4.4.0.jar": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
    "io.delta_delta-kernel-defaults-4.4.0.jar": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
    "io.delta_delta-kernel-unitycatalog-4.4.0.jar": "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa",
    "io.unitycatalog_unitycatalog-client-0.6.0.jar": "48257499a86b801a3e2372cec55ac226ca1c1c7eabe5c118e7302f29a1fdbc19",
    "io.unitycatalog_unitycatalog-hadoop-0.6.0.jar": "c47b63c961c87102b9e1d63809a0915ba4c86b7652f57c8d39ca3a05b441a150",
}
"""Names and SHA-256, as Maven Central has them: other jars of a mirror are refused."""


def collect(ivy_jars: Path, target: Path) -> None:
    """Copy the needed jars, or none if one is missing or has another hash."""
    missing = [name for name in NEEDED if not (ivy_jars / name).is_file()]
    if missing:
        raise SystemExit(f"Ivy did not bring {', '.join(missing)} into {ivy_jars}.")
    others = [name for name, digest in NEEDED.items() if _sha256(ivy_jars / name) != digest]
    if others:
        raise SystemExit(
            f"Ivy brought {', '.join(others)} into {ivy_jars} with another content than Maven Central has, "
            "and nothing of it is used. Look at the mirror or proxy that jars come from (DEFAULT_ARTIFACT_REPOSITORY, ~/.m2)."
        )
    target.mkdir(parents=True)
    for name in NEEDED:
        shutil.copyfile(ivy_jars / name, target / name)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


if __name__ == "__main__":
    collect(Path(sys.argv[1]), Path(sys.argv[2]))
