"""Add the compiled modules of the installed PySpark to the zip that Spark's Python processes import it from.

Spark puts ``python/lib/pyspark.zip`` and Py4J's zip in front of the installed packages, and Python does not
store what it compiles from a zip. So every planner compiles PySpark again, and so does every worker that is
not forked from a process which has imported PySpark. This takes about a second of a core before a query's
first batch. Run ``python scripts/precompile_pyspark.py`` in the environment after each installation of
PySpark.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.util import MAGIC_NUMBER, cache_from_source, find_spec
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

_HEADER_BYTES = 16
_VALID_WITHOUT_A_LOOK_AT_THE_SOURCE = MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)
"""Header of a compiled module (PEP 552); the zip's times are not those of the installed sources."""


def precompile(archive: Path, packages: Path) -> int:
    """Add the compiled form of the modules in ``archive``; return the number of modules that have one.

    The compiled forms are taken from the folder of installed packages, ``packages``. A module that is not
    installed, differs from the installed one, or was not compiled, gets none.
    """
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        written = Path(folder) / archive.name
        with ZipFile(archive) as old, ZipFile(written, "w", ZIP_DEFLATED) as new:
            sources = {each.filename: old.read(each) for each in old.infolist() if not each.is_dir()}
            modules = {
                f"{name}c": compiled
                for name, source in sources.items()
                if name.endswith(".py") and (compiled := _compiled(packages / name, source))
            }
            for name, content in {**sources, **modules}.items():
                new.writestr(name, content)
        written.replace(archive)
    return len(modules)


def _compiled(installed: Path, source: bytes) -> bytes | None:
    kept = Path(cache_from_source(str(installed)))
    if not kept.is_file() or installed.read_bytes() != source:
        return None
    content = kept.read_bytes()
    if not content.startswith(MAGIC_NUMBER):
        return None
    return _VALID_WITHOUT_A_LOOK_AT_THE_SOURCE + content[_HEADER_BYTES:]


def main() -> None:
    """Precompile the archives of PySpark and Py4J in this environment."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        sys.exit("There is no PySpark in this environment; run this with the Python that has it.")
    pyspark = Path(spec.origin).parent
    for archive in sorted((pyspark / "python" / "lib").glob("*.zip")):
        precompile(archive, pyspark.parent)


if __name__ == "__main__":
    main()
