"""Put the packages that executors import into one archive for ``--py-files``, and print where it is.

Usage: ``zip_packages.py ROOT FOLDER``. The archive is named after its content: an application that runs still finds
its own when a later version of the code is started beside it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

_PACKAGES = (("connector", "pyspark_rocketmq"),)
"""Source root and name of each package."""


def zip_packages(root: Path, folder: Path) -> Path:
    """Write the archive into ``folder``, unless it is there already; return its path."""
    content = {
        str(path.relative_to(root / source)): path.read_bytes()
        for source, package in _PACKAGES
        for path in sorted((root / source / package).rglob("*.py"))
    }
    digest = hashlib.sha256(repr(content).encode()).hexdigest()[:16]
    archive = folder / f"pyspark_rocketmq-{digest}.zip"
    if not archive.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = archive.with_suffix(f".{os.getpid()}.part")
        with ZipFile(part, "w") as target:
            for name, text in content.items():
                target.writestr(ZipInfo(name), text, compress_type=ZIP_DEFLATED)
        part.replace(archive)
    return archive


if __name__ == "__main__":
    sys.stdout.write(f"{zip_packages(Path(sys.argv[1]), Path(sys.argv[2]))}\n")
