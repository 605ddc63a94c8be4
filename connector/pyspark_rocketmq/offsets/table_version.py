"""Which form of the offset table a release knows, and what was added since the first.

A table says its form in a property; one without it has the first.  Old tables are read as they are and brought to
the newest form by the first change; a table of a newer form is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark_rocketmq.errors import SchemaError

VERSION_PROPERTY: Final = "pyspark_rocketmq.offsetTableVersion"
NEWEST_VERSION: Final = 4
_ADDED = {"put_back": 3, "statistics": 3, "generation": 4, "last_message": 4, "shown": 4, "sinks": 4}
"""Column → the version it came with; all of them may be null."""
DROPPED: Final[Mapping[str, str]] = {"uncommitted": "string"}
"""Columns (name → type) of earlier versions: a table that has them keeps them, and they are null from now on."""


def check_version(path: str, configuration: Mapping[str, str]) -> int:
    """The version of the table at ``path``, whose properties are ``configuration``.

    Raises:
        SchemaError: If it is newer than this release, or no number.
    """
    text = configuration.get(VERSION_PROPERTY, "1")
    if text.isdecimal() and 1 <= int(text) <= NEWEST_VERSION:
        return int(text)
    raise SchemaError(
        f"The offset table at {path} has version {text!r} ({VERSION_PROPERTY}), this release knows versions 1 to "
        f"{NEWEST_VERSION}. Use the release that wrote it, or name another path for the offset store."
    )


def columns_of_version(version: int, columns: Mapping[str, str], found: Mapping[str, str]) -> dict[str, str]:
    """Which of the newest ``columns`` (name → type) a table of ``version`` with the columns ``found`` must have."""
    # One that was being upgraded has newer columns and still the old version.
    wanted = {
        name: type_ for name, type_ in columns.items() if _ADDED.get(name, 1) <= version or name in found
    }
    return wanted | {name: type_ for name, type_ in DROPPED.items() if name in found}
