"""Shows the values of arguments' defaults on the page of the Python API, where the code has names for them.

Called by griffe, which reads the sources for mkdocs (``mkdocs.yml``).
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import griffe

from pyspark_rocketmq.options.consumer import CONSUMER_DEFAULTS
from pyspark_rocketmq.options.read import READ_DEFAULTS

_DECLARED = {"CONSUMER_DEFAULTS": CONSUMER_DEFAULTS, "READ_DEFAULTS": READ_DEFAULTS}


class DeclaredDefaults(griffe.Extension):
    """Replaces defaults such as ``CONSUMER_DEFAULTS.consume_thread_max`` by their values."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Replace the defaults of a function's parameters."""
        for parameter in func.parameters:
            declaration, _dot, name = str(parameter.default).partition(".")
            if declaration in _DECLARED:
                parameter.default = _shown(getattr(_DECLARED[declaration], name))


def _shown(value: object) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value)
