from __future__ import annotations

import importlib
import py_compile
import sys
from collections.abc import Iterator
from importlib.util import cache_from_source
from pathlib import Path
from zipfile import ZipFile

import pytest

from scripts.precompile_pyspark import precompile


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Path]:
    """A zip that is first on the path, of modules that say 1."""
    archive = tmp_path / "lib" / "modules.zip"
    archive.parent.mkdir()
    modules = ("of_the_zip_same", "of_the_zip_other", "of_the_zip_alone")
    with ZipFile(archive, "w") as file:
        for name in modules:
            file.writestr(f"{name}.py", "says = 1\n")
    sys.path.insert(0, str(archive))
    yield archive
    sys.path.remove(str(archive))
    for name in modules:
        sys.modules.pop(name, None)


def install(packages: Path, name: str, source: str, *, compiled: str) -> None:
    """A module whose compiled form says something else than its source, to show which was imported."""
    module = packages / f"{name}.py"
    module.parent.mkdir(exist_ok=True)
    module.write_text(compiled)
    py_compile.compile(str(module), cache_from_source(str(module)), doraise=True)
    module.write_text(source)


def test_modules_are_imported_from_the_zip_as_they_were_compiled_when_installed(
    archive: Path, tmp_path: Path
) -> None:
    install(tmp_path / "packages", "of_the_zip_same", "says = 1\n", compiled="says = 'compiled'")
    install(tmp_path / "packages", "of_the_zip_other", "says = 2\n", compiled="says = 'of another version'")

    assert precompile(archive, tmp_path / "packages") == 1

    assert importlib.import_module("of_the_zip_same").says == "compiled"
    assert importlib.import_module("of_the_zip_other").says == 1
    assert importlib.import_module("of_the_zip_alone").says == 1
    assert precompile(archive, tmp_path / "packages") == 1
    with ZipFile(archive) as file:
        assert len(file.namelist()) == len(set(file.namelist())) == 4
    assert list(archive.parent.iterdir()) == [archive]
