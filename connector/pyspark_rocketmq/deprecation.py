"""Warnings for public names that have a successor; such names keep working for a while.

``docs/api.md``, "Names that change", lists these names and states for how long they work.  They cause a
FutureWarning, as in pandas and PySpark: Python shows it by default, even in imported modules, once for each
place that uses the name.
The standard library's ``warnings.deprecated`` exists only from Python 3.13 on.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

C = TypeVar("C", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Deprecation:
    """An old name, its successor, and the releases between which both work."""

    name: str
    instead: str
    since: str
    """First release that has the successor."""
    until: str
    """First release that no longer has the old name."""

    def __str__(self) -> str:
        return (
            f"{self.name} is deprecated since {self.since} and will be removed in {self.until}; "
            f"use {self.instead}"
        )

    def warn(self, stacklevel: int = 2) -> None:
        """Show the warning, as one at the place in the user's code that uses the old name.

        With ``stacklevel`` 2 that place is the call of the function that calls this method. A higher number
        skips more frames.
        """
        warnings.warn(str(self), FutureWarning, stacklevel=stacklevel + 1)


def deprecated(instead: str, *, since: str, until: str, name: str | None = None) -> Callable[[C], C]:
    """Return a decorator, which makes a function, method or class warn when it is called.

    A subclass of a deprecated class warns, too.  The warning is also in attribute ``__deprecated__``, where
    PEP 702 puts it for tools.

    Args:
        instead: What to use in its place.
        since: First release that has the successor.
        until: First release that no longer has the old name.
        name: The old name; by default the name of what is decorated, with ``()``.
    """

    def decorate(target: C) -> C:
        warning = Deprecation(
            name=name or f"{target.__qualname__}()", instead=instead, since=since, until=until
        )
        called = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]

        @functools.wraps(called)
        def call(*args: Any, **kwargs: Any) -> Any:
            warning.warn()
            return called(*args, **kwargs)

        if isinstance(target, type):
            target.__init__ = call  # type: ignore[misc]
            target.__deprecated__ = str(warning)  # type: ignore[attr-defined]
            return target
        call.__deprecated__ = str(warning)  # type: ignore[attr-defined]
        return cast("C", call)

    return decorate
