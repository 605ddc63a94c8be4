"""Copy the jars that Delta needs besides Spark's own from Ivy's folder into one of their own.

Usage: ``collect_delta_jars.py VERSION IVY_JARS TARGET``; exit code 1 names jars that are missing or have another
content than the published ones.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

# Ivy brings some 30 jars; the others (hadoop, parquet, jackson, …) are in the Spark distribution already.
NEEDED = {
    "4.0.1": {
        "io.delta_delta-spark_2.13-4.0.1.jar": "a1e76860b19fe1e6b205a4ea7a9099a2f9575d39bb71d49b3e679b299d0efb91",
        "io.delta_delta-storage-4.0.1.jar": "ecc42c5aaa51c423312d9e4e48aa4a12b34740bf2c37de0e8f279277ec3d12e4",
    },
    "4.3.1": {
        "io.delta_delta-spark_4.1_2.13-4.3.1.jar": "ebf35a4383f0a653c3ee3c7882c0edcac2f846be31ac61af4b96ccfaaf36c171",
        "io.delta_delta-storage-4.3.1.jar": "577c12c7e371be4c041714fb48e88ad86e3c3512beea2bdaffbe7a4debf79718",
        "io.delta_delta-kernel-api-4.3.1.jar": "b081b818d6f5686c7d6406588af72c9f8baf6765a41ada8197364aef90a260e8",
        "io.delta_delta-kernel-defaults-4.3.1.jar": "27471cca7dd7a36289af2c8d52d2babb37e9e5a13cdaaea76730120f4c72e62f",
        "io.delta_delta-kernel-unitycatalog-4.3.1.jar": "a288342b7e53da34a608a1a227c8109aa4681fcb582da499ed19347f2193362b",
        "io.unitycatalog_unitycatalog-client-0.5.0.jar": "9de6812122b411e74ee06c831dac5ccd5f87d69002c29170a37a8bce5e503615",
        "io.unitycatalog_unitycatalog-hadoop-0.5.0.jar": "baca7b2928afe2a1b1789b423ab817d5d4165218999a10ebeab4a8712683beb5",
    },
    "4.4.0": {
        "io.delta_delta-spark_4.2_2.13-4.4.0.jar": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
        "io.delta_delta-storage-4.4.0.jar": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
        "io.delta_delta-kernel-api-4.4.0.jar": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
        "io.delta_delta-kernel-defaults-4.4.0.jar": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
        "io.delta_delta-kernel-unitycatalog-4.4.0.jar": "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa",
        "io.unitycatalog_unitycatalog-client-0.6.0.jar": "48257499a86b801a3e2372cec55ac226ca1c1c7eabe5c118e7302f29a1fdbc19",
        "io.unitycatalog_unitycatalog-hadoop-0.6.0.jar": "c47b63c961c87102b9e1d63809a0915ba4c86b7652f57c8d39ca3a05b441a150",
    },
}
"""By version of Delta: names and SHA-256, as Maven Central has them; other jars of a mirror are refused."""


def collect(version: str, ivy_jars: Path, target: Path) -> None:
    """Copy the jars that ``version`` of Delta needs; copy none if one is missing or has another hash."""
    needed = NEEDED[version]
    missing = [name for name in needed if not (ivy_jars / name).is_file()]
    if missing:
        raise SystemExit(f"Ivy did not bring {', '.join(missing)} into {ivy_jars}.")
    others = [name for name, digest in needed.items() if _sha256(ivy_jars / name) != digest]
    if others:
        raise SystemExit(
            f"Ivy brought {', '.join(others)} into {ivy_jars} with another content than Maven Central has, "
            "and nothing of it is used. Look at the mirror or proxy that jars come from (DEFAULT_ARTIFACT_REPOSITORY, ~/.m2)."
        )
    target.mkdir(parents=True)
    for name in needed:
        shutil.copyfile(ivy_jars / name, target / name)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


if __name__ == "__main__":
    collect(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
