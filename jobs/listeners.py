"""Making sure that a user's message listener can be found by its name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.listeners.forms import form_of


def check_listener(name: str, py_files: Sequence[str], *, orderly: bool) -> None:
    """Import ``module:name`` from ``py_files``, the current directory or PYTHONPATH, in this process.

    Raises:
        OptionError: If there is no such module or listener, or the module fails while it is imported.
    """
    module_name, _, attribute = name.partition(":")
    _extend_path(py_files)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _unusable(name, f"its module needs {error.name!r}, which cannot be found") from error
        raise _unusable(
            name,
            f"there is no module {error.name!r} in pyFiles, in the current directory or on PYTHONPATH",
        ) from error
    except Exception as error:
        raise _unusable(name, f"importing its module failed: {type(error).__name__}: {error}") from error
    if not hasattr(module, attribute):
        raise _unusable(name, f"module {module_name!r} has no {attribute!r}")
    form_of(getattr(module, attribute), orderly=orderly)


def _extend_path(py_files: Sequence[str]) -> None:
    """Put archives and the folders of single files first, as ``--py-files`` does on the executors."""
    folders = [path if path.endswith((".zip", ".egg")) else str(Path(path).parent) for path in py_files]
    sys.path[:0] = [*folders, str(Path.cwd())]


def _unusable(name: str, why: str) -> OptionError:
    return OptionError((f"option listener='{name}' cannot be used: {why}",))
