"""Imports that import-linter does not see: those of modules whose names are strings."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.packaging.checkout import ROOT

PACKAGE = ROOT / "connector" / "pyspark_rocketmq"
MODULES = sorted(PACKAGE.rglob("*.py"))


def named_imports(module: Path) -> list[str]:
    """Modules of this package that ``import_module`` is called with, as far as a literal shows it."""
    return [
        first.value
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module")
        for first in node.args[:1]
        if isinstance(first, ast.Constant)
        and isinstance(first.value, str)
        and first.value.startswith("pyspark_rocketmq.")
    ]


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_by_name_only_from_its_own_folder(module: Path) -> None:
    folder = module.relative_to(PACKAGE).parts[0]

    assert [name for name in named_imports(module) if name.split(".")[1] != folder] == []
