"""Public names that have a successor: they keep working for a while, and warn.

``docs/api.md``, "Names that change", lists them and states for how long they work.  They warn by
FutureWarning, as pandas and PySpark do, because Python shows it by default, even in imported modules, and
once for each place that uses the name.
``warnings.deprecated`` of the standard library exists only from Python 3.13 on.
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
        """Warn the caller of the function that calls this; a higher ``stacklevel`` skips more frames."""
        warnings.warn(str(self), FutureWarning, stacklevel=stacklevel + 1)


def deprecated(instead: str, *, since: str, until: str, name: str | None = None) -> Callable[[C], C]:
    """Decorator of a function, method or class that warns when it is called and then does the same as before.

    A subclass of a deprecated class warns, too.  The warning is also in attribute ``__deprecated__``, where
    PEP 702 puts it for tools.
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
