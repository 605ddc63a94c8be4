"""How things that hold sockets or threads end: closed by ``with``, and made anew after ``fork()``.

A child has a copy of everything but threads: connections that the parent reads from, locks that a thread held
which is not there, counters that go on from the same number.  Whatever has such things makes new ones in the
child, before anything else runs there.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Final, Protocol, Self
from weakref import WeakSet


class Closing(ABC):
    """To be used in ``with``."""

    @abstractmethod
    def close(self) -> None:
        """Give back what is held. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


logger = logging.getLogger(__name__)


class Renewed(Protocol):
    """Anything that a child must have new things of."""

    def renew(self) -> None:
        """Make new ones; the only thread is this one, so take no lock that is not new."""
        ...


_living: Final[WeakSet[Renewed]] = WeakSet()
"""Of this process."""


def renew_in_children(one: Renewed) -> None:
    """Have :meth:`Renewed.renew` called in every child that this process forks while ``one`` is in use."""
    _living.add(one)


def _renew_all() -> None:
    for one in list(_living):
        try:
            one.renew()
        except Exception:
            logger.exception("not renewed after a fork: %r", one)


os.register_at_fork(after_in_child=_renew_all)
