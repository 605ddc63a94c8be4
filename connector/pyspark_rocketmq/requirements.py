"""The packages that this one needs, and a check that the installed ones are new enough.

pip checks versions only when it installs this package. Another package may bring an older version later, and
platforms install versions of their own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from pyspark_rocketmq.errors import RocketMQError

REQUIREMENTS: Final = (
    "deltalake>=1.6.6,<2",
    "lz4>=4.3",
    "numpy>=1.26",
    "pandas>=2.2,<4",
    "pyarrow>=20",
    "zstandard>=0.22",
)
"""Dependencies of ``pyproject.toml``, except those of the command line.

They are repeated here because a package that came with ``--py-files`` has no metadata.
"""
_LOWEST: Final = re.compile(r"([\w-]+)>=([\d.]+)")
_RELEASE: Final = re.compile(r"(?:\d+!)?(\d+(?:\.\d+)*)")


def installed_version(package: str) -> str | None:
    """Return the installed version of a package; None if it is missing, or came without metadata."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def outdated(installed: Callable[[str], str | None] = installed_version) -> dict[str, str]:
    """Return the packages that are too old: requirement → installed version.

    Packages whose version is not known are left out.
    """
    lowest = [found for each in REQUIREMENTS if (found := _LOWEST.match(each))]
    versions = {each.string: (installed(each[1]), each[2]) for each in lowest}
    return {
        needed: there
        for needed, (there, least) in versions.items()
        if there is not None and (release := _release(there)) and release < _release(least)
    }


def _release(text: str) -> tuple[int, ...]:
    found = _RELEASE.match(text)
    return () if found is None else tuple(map(int, found[1].split(".")))


def check_packages(installed: Callable[[str], str | None] = installed_version) -> None:
    """Refuse packages that are too old, before they cause an error that does not name them.

    Raises:
        RocketMQError: If a package is too old.
    """
    if old := outdated(installed):
        found = ", ".join(f"{needed.partition('>')[0]} {there}" for needed, there in old.items())
        wanted = " ".join(f"'{needed}'" for needed in old)
        raise RocketMQError(
            f"pyspark-rocketmq needs newer packages than {found}. Run {sys.executable} -m pip install "
            f"{wanted}, and start the program again; executors need them, too."
        )
