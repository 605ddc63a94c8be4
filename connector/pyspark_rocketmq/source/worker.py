"""What Python's garbage collector looks at in a worker process of Spark's.

Spark collects garbage in a worker after every task. All that modules have made since the worker's start is
looked at each time, pandas and Arrow and the user's own: 20 to 50 ms of a core, and a micro-batch has two
Python processes at work on each queue.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TypeVar

from pyspark import TaskContext

T = TypeVar("T")

_is_settled = False
"""Python would tell by counting all that is exempt, each time: as long as a collection that the exemption
saves."""


def settle_modules() -> None:
    """Exempt objects that a worker's first task leaves from collection: they live as long as it.

    Freed it is all the same when nothing refers to it any more. Outside of a task nothing happens: the
    process is not ours.
    """
    global _is_settled  # noqa: PLW0603 - one per process is the point
    if not _is_settled and TaskContext.get() is not None:
        _is_settled = True
        gc.collect()
        gc.freeze()


def settled(rows: Iterator[T]) -> Iterator[T]:
    """``rows``, and :func:`settle_modules` when they are all there."""
    yield from rows
    settle_modules()
