"""Tests that tables name by node id: ``tests/source/test_columns.py::test_name``, with ``[sim]`` or not."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).parent.parent


def source_of(node_id: str) -> str | None:
    """The text of the named test, decorators included; None if there is none of that name."""
    file, *names = node_id.partition("[")[0].split("::")
    return _functions(file).get("::".join(names))


@cache
def _functions(file: str) -> dict[str, str]:
    path = _ROOT / file
    if not path.is_file():
        return {}
    text = path.read_text()
    found: dict[str, str] = {}

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                walk(child, f"{prefix}{child.name}::")
            elif isinstance(child, ast.FunctionDef):
                first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
                found[prefix + child.name] = "\n".join(text.splitlines()[first - 1 : child.end_lineno])

    walk(ast.parse(text), "")
    return found
